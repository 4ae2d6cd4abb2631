/* The packed matmul's innermost part, once for each kind of element: H x NV vectors of C stay in registers while all
 * blocks of a strip pass by. Included by matmul_packed.h, which says what must be defined.
 *
 * Each k-step loads NV vectors of B and multiplies them by H broadcast values of A. Values come in columns of a strip
 * (neighbouring rows are neighbours in memory: the packed stream, or blocks of a transposed matrix) or in rows (blocks
 * as they are stored). The multiply-adds are written as instructions, since compilers fold the loads of B into them,
 * and so load each H times, or choose forms that need copies of the accumulators. */

/* One strip times one panel. Distances count elements. */
typedef struct NAME(packed_tile) {
    const E *a;                  /* the strip's values in the first block, or in block 0 if `block` */
    const int64_t *block;        /* places of the blocks; NULL: one after the other */
    int64_t a_block, a_row, a_k; /* distance between blocks, rows, and k */
    const int32_t *col;          /* packed block columns */
    int64_t blocks, steps[2];    /* blocks; k-steps of each, and of the last */
    const E *b;                  /* the panel */
    int64_t b_block;             /* distance between its block columns */
    T *c;                        /* H x NV*VL */
    int64_t c_row;               /* distance between its rows */
    bool around;                 /* write c around the cache: its lines are whole and aligned */
    bool resume;                 /* c holds what earlier blocks gave */
    int64_t soon;                /* fetch values so many blocks before their turn, where they are not a stream */
    int64_t ahead;               /* fetch B so many blocks before its turn: the hardware does not see small ones
                                    coming; 0: not at all */
} NAME(packed_tile);

typedef void (*NAME(packed_kernel))(const NAME(packed_tile) * x);

enum { NAME(PACKED_STREAM), NAME(PACKED_COLS), NAME(PACKED_ROWS) }; /* where values come from */

#define UNROLL _Pragma("GCC unroll 16")
#define INLINE static inline __attribute__((always_inline))

/* Values in rows are addressed in threes: base, base + row and base + 2*row need one register together. */
INLINE void NAME(packed_step)(const int H, const int NV, const int ROWS, V (*acc)[MAX_NV], const E *const *a,
                              int64_t row, const E *b) {
    W x[MAX_NV];
    UNROLL for (int j = 0; j < NV; j++) x[j] = W_LOAD(b + j * VL);
    UNROLL for (int i = 0; i < H; i++) {
        W y = W_BROADCAST(ROWS ? a[i / 3] + (i % 3) * row : a[0] + i);
        UNROLL for (int j = 0; j < NV; j++) V_FMA(acc[i][j], y, x[j]);
    }
}

INLINE void NAME(packed_run_tile)(const int H, const int NV, const int FROM, const NAME(packed_tile) * x) {
    enum { LINE = 64 / sizeof(E) };
    const int ROWS = FROM == NAME(PACKED_ROWS), COLS = FROM == NAME(PACKED_COLS), bases = ROWS ? (H + 2) / 3 : 1;
    V acc[MAX_H][MAX_NV];
    UNROLL for (int i = 0; i < H; i++) {
        UNROLL for (int j = 0; j < NV; j++) acc[i][j] = x->resume ? V_LOAD(x->c + i * x->c_row + j * VL) : V_ZERO();
    }
    const int64_t end = x->blocks - 1, next = COLS ? x->a_k : ROWS ? 1 : H, row = ROWS ? x->a_row : 0;
    const E *a[(MAX_H + 2) / 3];
    const int32_t *col = x->col, *last = col + end;
    a[0] = x->a;
    for (int64_t t = 0; col <= last; col++, t++) {
        const E *b = x->b + *col * x->b_block;
        if (ROWS) a[0] = x->a + t * x->a_block;
        if (COLS) a[0] = x->a + x->block[t] * x->a_block;
        UNROLL for (int i = 1; i < bases; i++) a[i] = a[i - 1] + 3 * row;
        const E *later = AHEAD && x->ahead ? x->b + col[sat_min(x->ahead, last - col)] * x->b_block : NULL;
        const E *soon = ROWS   ? a[0] + x->soon * x->a_block
                        : COLS ? x->a + x->block[sat_min(t + x->soon, end)] * x->a_block
                               : NULL;
        int64_t n = x->steps[col == last];
        for (; n >= STEPS; n -= STEPS) {
            if (ROWS) { /* the strip's part of a block is contiguous */
                UNROLL for (int e = 0; e < H * STEPS; e += LINE) __builtin_prefetch(soon + e, 0, 3);
                soon += H * STEPS;
            }
            if (COLS) {
                UNROLL for (int u = 0; u < STEPS; u++) __builtin_prefetch(soon + u * next, 0, 3);
                soon += STEPS * next;
            }
            if (AHEAD && later) {
                UNROLL for (int e = 0; e < STEPS * NV * VL; e += LINE) __builtin_prefetch(later + e, 0, 3);
                later += STEPS * NV * VL;
            }
            UNROLL for (int u = 0; u < STEPS; u++) {
                NAME(packed_step)(H, NV, ROWS, acc, a, row, b + u * NV * VL);
                UNROLL for (int i = 0; i < bases; i++) a[i] += next;
            }
            b += STEPS * NV * VL;
        }
        for (; n > 0; n--) {
            NAME(packed_step)(H, NV, ROWS, acc, a, row, b);
            UNROLL for (int i = 0; i < bases; i++) a[i] += next;
            b += NV * VL;
        }
    }
    UNROLL for (int i = 0; i < H; i++) {
        T *c = x->c + i * x->c_row;
        if (x->around) {
            UNROLL for (int j = 0; j < NV; j++) V_STREAM(c + j * VL, acc[i][j]);
        } else {
            UNROLL for (int j = 0; j < NV; j++) V_STORE(c + j * VL, acc[i][j]);
        }
    }
}

#define DEFINE(H, NV)                                                                                                  \
    static void NAME(packed_stream_##H##x##NV)(const NAME(packed_tile) * x) {                                          \
        NAME(packed_run_tile)(H, NV, NAME(PACKED_STREAM), x);                                                          \
    }
KERNELS(DEFINE)
DIRECT_KERNELS(DEFINE)
#undef DEFINE
#define DEFINE(H, NV)                                                                                                  \
    static void NAME(packed_cols_##H##x##NV)(const NAME(packed_tile) * x) {                                            \
        NAME(packed_run_tile)(H, NV, NAME(PACKED_COLS), x);                                                            \
    }                                                                                                                  \
    static void NAME(packed_rows_##H##x##NV)(const NAME(packed_tile) * x) {                                            \
        NAME(packed_run_tile)(H, NV, NAME(PACKED_ROWS), x);                                                            \
    }
DIRECT_KERNELS(DEFINE)
#undef DEFINE

/* By where values come from, then by tile. */
static const NAME(packed_kernel) NAME(packed_kernels)[3][MAX_H][MAX_NV] = {
#define LIST(H, NV) [NAME(PACKED_STREAM)][H - 1][NV - 1] = NAME(packed_stream_##H##x##NV),
    KERNELS(LIST) DIRECT_KERNELS(LIST)
#undef LIST
#define LIST(H, NV)                                                                                                    \
    [NAME(PACKED_COLS)][H - 1][NV - 1] = NAME(packed_cols_##H##x##NV),                                                 \
                                    [NAME(PACKED_ROWS)][H - 1][NV - 1] = NAME(packed_rows_##H##x##NV),
        DIRECT_KERNELS(LIST)
#undef LIST
};
