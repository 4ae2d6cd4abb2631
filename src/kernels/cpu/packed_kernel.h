/* The packed matmul's innermost part, once for each kind of element: H x NV vectors of C stay in registers while all
 * blocks of a strip pass by. Included by matmul_packed.h, which says what must be defined.
 *
 * Each k-step loads NV vectors of B and multiplies them by H broadcast values of A. Values come in columns of a strip
 * (neighbouring rows are neighbours in memory: the packed stream, or blocks of a transposed matrix) or in rows (blocks
 * as they are stored). Vectors of B are made opaque to the compiler: it would else fold their loads into the
 * multiply-adds and load each H times. */

/* One strip times one panel. Distances count elements. */
typedef struct NAME(packed_tile) {
    const E *a;                         /* the strip's values in block 0 */
    const int64_t *block;               /* places of the blocks; NULL: first, first + 1, ... */
    int64_t first, a_block, a_row, a_k; /* first block; distance between blocks, rows, and k */
    const int32_t *col;                 /* packed block columns */
    int64_t blocks, steps, last_steps;  /* blocks; k-steps of each; of the last */
    const E *b;                         /* the panel */
    int64_t b_block;                    /* distance between its block columns */
    T *c;                               /* H x NV*VL */
    int64_t c_row;                      /* distance between its rows */
    bool resume;                        /* c holds what earlier blocks gave */
    bool ahead;                         /* fetch B before its turn: small blocks, which no hardware foresees */
} NAME(packed_tile);

typedef void (*NAME(packed_kernel))(const NAME(packed_tile) * x);

#define UNROLL _Pragma("GCC unroll 16")
#define INLINE static inline __attribute__((always_inline))

/* Values in rows are addressed in threes: base, base + row and base + 2*row need one register together. */
INLINE void NAME(packed_step)(const int H, const int NV, const int ROWS, V (*acc)[MAX_NV], const E *const *a,
                              int64_t row, const E *b) {
    W x[MAX_NV];
    UNROLL for (int j = 0; j < NV; j++) {
        x[j] = W_LOAD(b + j * VL);
        __asm__("" : "+v"(x[j]));
    }
    UNROLL for (int i = 0; i < H; i++) {
        W y = W_BROADCAST(ROWS ? a[i / 3] + (i % 3) * row : a[0] + i);
        UNROLL for (int j = 0; j < NV; j++) acc[i][j] = V_FMA(y, x[j], acc[i][j]);
    }
}

INLINE void NAME(packed_run_tile)(const int H, const int NV, const int ROWS, const NAME(packed_tile) * x) {
    enum { LINE = 64 / sizeof(E) };
    const int bases = ROWS ? (H + 2) / 3 : 1;
    V acc[MAX_H][MAX_NV];
    UNROLL for (int i = 0; i < H; i++) {
        UNROLL for (int j = 0; j < NV; j++) acc[i][j] = x->resume ? V_LOAD(x->c + i * x->c_row + j * VL) : V_ZERO();
    }
    const int64_t blocks = x->blocks, steps = x->steps, row = x->a_row, next = ROWS ? 1 : x->a_k;
    for (int64_t t = 0; t < blocks; t++) {
        const E *b = x->b + x->col[t] * x->b_block, *a[(MAX_H + 2) / 3];
        a[0] = x->a + (x->block ? x->block[x->first + t] : x->first + t) * x->a_block;
        UNROLL for (int i = 1; i < bases; i++) a[i] = a[i - 1] + 3 * row;
        if (x->ahead) {
            const E *later = x->b + x->col[sat_min(t + 2, blocks - 1)] * x->b_block;
            for (const E *end = later + steps * NV * VL; later < end; later += LINE) __builtin_prefetch(later, 0, 3);
        }
        int64_t n = t + 1 < blocks ? steps : x->last_steps;
        for (; n >= 4; n -= 4) {
            UNROLL for (int u = 0; u < 4; u++) {
                NAME(packed_step)(H, NV, ROWS, acc, a, row, b + u * NV * VL);
                UNROLL for (int i = 0; i < bases; i++) a[i] += next;
            }
            b += 4 * NV * VL;
        }
        for (; n > 0; n--) {
            NAME(packed_step)(H, NV, ROWS, acc, a, row, b);
            UNROLL for (int i = 0; i < bases; i++) a[i] += next;
            b += NV * VL;
        }
    }
    UNROLL for (int i = 0; i < H; i++) {
        UNROLL for (int j = 0; j < NV; j++) V_STORE(x->c + i * x->c_row + j * VL, acc[i][j]);
    }
}

#define DEFINE(H, NV)                                                                                                  \
    static void NAME(packed_cols_##H##x##NV)(const NAME(packed_tile) * x) { NAME(packed_run_tile)(H, NV, 0, x); }      \
    static void NAME(packed_rows_##H##x##NV)(const NAME(packed_tile) * x) { NAME(packed_run_tile)(H, NV, 1, x); }
KERNELS(DEFINE)
#undef DEFINE

static const NAME(packed_kernel) NAME(packed_cols)[MAX_H][MAX_NV] = {
#define LIST(H, NV) [H - 1][NV - 1] = NAME(packed_cols_##H##x##NV),
    KERNELS(LIST)
#undef LIST
};

static const NAME(packed_kernel) NAME(packed_rows)[MAX_H][MAX_NV] = {
#define LIST(H, NV) [H - 1][NV - 1] = NAME(packed_rows_##H##x##NV),
    KERNELS(LIST)
#undef LIST
};
