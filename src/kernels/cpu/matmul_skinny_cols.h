/* The skinny families' inner kernel for several columns; a template, included for each element type and each of 4, 8
 * and 16 columns. The includer defines REAL, LANES and FN(name) as for matmul_skinny_kernels.h, COLS, and CN(name),
 * which names what is defined here.
 *
 * A row of packed B lies in COLS / COLS_LANES registers, an element of A is broadcast against it, and up to eight rows
 * of C gather their sums in registers. Right for every block shape and both orders of a block in memory.
 */

#if COLS < LANES
#define COLS_LANES COLS
#else
#define COLS_LANES LANES
#endif

typedef REAL CN(vec) __attribute__((vector_size(COLS_LANES * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));
enum { CN(vs) = COLS / COLS_LANES };

/* Adds columns 0..bc-1 of `rows` rows at a, times b, to the sums. */
SK_INLINE void CN(step)(const REAL *a, int64_t rs, const REAL *b, CN(vec) * sums, int rows) {
    CN(vec) bv[CN(vs)];
    for (int v = 0; v < CN(vs); v++) bv[v] = *(const CN(vec) *)(b + v * COLS_LANES);
    for (int i = 0; i < rows; i++) {
        CN(vec) x = a[i * rs] - (CN(vec)){0};
        for (int v = 0; v < CN(vs); v++) sums[i * CN(vs) + v] += x * bv[v];
    }
}

SK_INLINE void CN(fetch)(const FN(run) * r, int64_t t, int64_t bc) {
    enum { AHEAD_B = 6, AHEAD_A = 1024 };
    if (r->block) FN(fetch)(r, t, r->elements >= 256 ? 1 : 8);
    else {
        const char *a = (const char *)(r->a + t * r->elements) + AHEAD_A;
        for (int64_t i = 0; i < r->elements * (int64_t)sizeof(REAL); i += 64) _mm_prefetch(a + i, _MM_HINT_T0);
    }
    const char *b = (const char *)FN(b_at)(r, sat_min(t + AHEAD_B, r->count - 1));
    for (int64_t i = 0; i < bc * COLS * (int64_t)sizeof(REAL); i += 64) _mm_prefetch(b + i, _MM_HINT_T0);
}

/* Blocks of `rows` rows: sums in registers over the whole run, `side` blocks side by side. */
SK_INLINE void CN(short)(const FN(run) * r, int rows, int side, int64_t bc, int64_t rs, int64_t cs) {
    CN(vec) sums[4][8 * CN(vs)];
    for (int u = 0; u < side; u++)
        for (int i = 0; i < rows * CN(vs); i++) sums[u][i] = (CN(vec)){0};
    int64_t t = 0;
    for (; t + side <= r->count; t += side) {
        const REAL *a[4], *b[4];
        for (int u = 0; u < side; u++) {
            a[u] = FN(a_at)(r, t + u), b[u] = FN(b_at)(r, t + u);
            CN(fetch)(r, t + u, bc);
        }
        for (int64_t k = 0; k < bc; k++)
            for (int u = 0; u < side; u++) CN(step)(a[u] + k * cs, rs, b[u] + k * COLS, sums[u], rows);
    }
    for (; t < r->count; t++)
        for (int64_t k = 0; k < bc; k++)
            CN(step)(FN(a_at)(r, t) + k * cs, rs, FN(b_at)(r, t) + k * COLS, sums[0], rows);
    for (int i = 0; i < rows * CN(vs); i++) {
        CN(vec) x = sums[0][i];
        for (int u = 1; u < side; u++) x += sums[u][i];
        *(CN(vec) *)(r->out + i * COLS_LANES) += x;
    }
}

/* `rows` rows of one block of a taller kind: sums live in memory between blocks. */
SK_INLINE void CN(tile)(const REAL *a, const REAL *b, REAL *out, int rows, int64_t bc, int64_t rs, int64_t cs) {
    CN(vec) sums[8 * CN(vs)];
    for (int i = 0; i < rows * CN(vs); i++) sums[i] = *(const CN(vec) *)(out + i * COLS_LANES);
    for (int64_t k = 0; k < bc; k++) CN(step)(a + k * cs, rs, b + k * COLS, sums, rows);
    for (int i = 0; i < rows * CN(vs); i++) *(CN(vec) *)(out + i * COLS_LANES) = sums[i];
}

SK_INLINE void CN(tall)(const FN(run) * r, int64_t bc, int64_t rs, int64_t cs) {
    enum { ROWS = CN(vs) > 2 ? 2 : CN(vs) > 1 ? 4 : 8 };
    for (int64_t t = 0; t < r->count; t++) {
        const REAL *a = FN(a_at)(r, t), *b = FN(b_at)(r, t);
        CN(fetch)(r, t, bc);
        int64_t i = 0;
        for (; i + ROWS <= r->br; i += ROWS) CN(tile)(a + i * rs, b, r->out + i * COLS, ROWS, bc, rs, cs);
        for (; i < r->br; i++) CN(tile)(a + i * rs, b, r->out + i * COLS, 1, bc, rs, cs);
    }
}

static void CN(any)(const FN(run) * r) {
    enum { WIDE = CN(vs) > 1 }; /* half as many rows fit */
    int64_t br = r->br, bc = r->bc, rs = r->rs, cs = r->cs;
    if (br == 4 && bc == 4 && cs == 1) CN(short)(r, 4, WIDE ? 1 : 2, 4, 4, 1);
    else if (br == 4 && bc == 4) CN(short)(r, 4, WIDE ? 1 : 2, 4, 1, 4);
    else if (br == 8 && bc == 8 && cs == 1 && !WIDE) CN(short)(r, 8, 1, 8, 8, 1);
    else if (br == 8 && bc == 8 && !WIDE) CN(short)(r, 8, 1, 8, 1, 8);
    else if (br == 1) CN(short)(r, 1, 4, bc, rs, cs);
    else if (br == 2) CN(short)(r, 2, 2, bc, rs, cs);
    else if (br == 3) CN(short)(r, 3, WIDE ? 1 : 2, bc, rs, cs);
    else if (br == 4) CN(short)(r, 4, WIDE ? 1 : 2, bc, rs, cs);
    else if (br == 5 && !WIDE) CN(short)(r, 5, 1, bc, rs, cs);
    else if (br == 6 && !WIDE) CN(short)(r, 6, 1, bc, rs, cs);
    else if (bc == 16 && cs == 1) CN(tall)(r, 16, 16, 1);
    else CN(tall)(r, bc, rs, cs);
}

#undef COLS
#undef COLS_LANES
#undef CN
