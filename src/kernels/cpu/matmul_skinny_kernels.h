/* The skinny families' inner kernels for one to four columns; a template, included once for each element type.
 *
 * The includer defines REAL, VEC, LANES, MASK, INDEX, FN(name) and the small operations on them: zero, load,
 * load_first, mask_first, fma, sum, group, spread, spread_index, broadcast. Each kernel takes a run of whole blocks of
 * one block row, keeps its sums in registers over as many of them as it can, and adds them to out[i*np + n] at the end.
 * Several sums run side by side where one alone would wait for its own additions.
 */

typedef struct FN(run) {
    const REAL *a;        /* values */
    const int64_t *block; /* places of the blocks in the values; NULL: one after the other */
    const int32_t *col;   /* block columns */
    int64_t count;
    const REAL *b;              /* packed B */
    int64_t br, bc, rs, cs, np; /* rs, cs: steps in a block to the next row and column of op(A) */
    int64_t b_step;             /* elements of packed B to the next block column */
    int64_t elements;           /* of a block */
    REAL *out;
} FN(run);

typedef void (*FN(kernel))(const FN(run) * r);

SK_INLINE const REAL *FN(a_at)(const FN(run) * r, int64_t t) {
    return r->a + (r->block ? r->block[t] : t) * r->elements;
}
SK_INLINE const REAL *FN(b_at)(const FN(run) * r, int64_t t) { return r->b + r->col[t] * r->b_step; }

/* Blocks that follow an index are out of the hardware prefetcher's sight: ask for one that comes soon. */
SK_INLINE void FN(fetch)(const FN(run) * r, int64_t t, int64_t ahead) {
    if (!r->block || t + ahead >= r->count) return;
    const char *p = (const char *)(r->a + r->block[t + ahead] * r->elements);
    int64_t bytes = sat_min(r->elements * (int64_t)sizeof(REAL), 1024);
    for (int64_t i = 0; i < bytes; i += 64) _mm_prefetch(p + i, _MM_HINT_T0);
}

/* ---- blocks of one element, one column ---- */

static void FN(scalar)(const FN(run) * r) {
    REAL s[8] = {0};
    const REAL *b = r->b;
    int64_t t = 0;
    if (r->block) {
        for (; t + 8 <= r->count; t += 8)
            for (int u = 0; u < 8; u++) s[u] += r->a[r->block[t + u]] * b[r->col[t + u]];
        for (; t < r->count; t++) s[0] += r->a[r->block[t]] * b[r->col[t]];
    } else {
        for (; t + 8 <= r->count; t += 8)
            for (int u = 0; u < 8; u++) s[u] += r->a[t + u] * b[r->col[t + u]];
        for (; t < r->count; t++) s[0] += r->a[t] * b[r->col[t]];
    }
    r->out[0] += ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
}

/* ---- flat: element e of a block is row e/g, column e%g, and a vector of them meets columns 0..g-1 of B repeated ---- */

SK_INLINE void FN(flat_out)(const FN(run) * r, int64_t v, int n, VEC sums, int g) {
    REAL lane[LANES];
    memcpy(lane, &sums, sizeof lane);
    for (int i = 0; i < LANES / g; i++) {
        int64_t row = v * (LANES / g) + i;
        if (row >= r->br) return;
        REAL x = lane[i * g];
        for (int k = 1; k < g; k++) x += lane[i * g + k];
        r->out[row * r->np + n] += x;
    }
}

/* V vectors make a block; `side` blocks run side by side; whole: the last vector is full. */
SK_INLINE void FN(flat_block)(const REAL *a, const REAL *b, VEC *sums, int g, int vs, int np, bool whole, MASK last) {
    VEC bn[4];
    for (int n = 0; n < np; n++) bn[n] = FN(group)(b + n * g, g);
    for (int v = 0; v < vs; v++) {
        VEC x = whole || v < vs - 1 ? FN(load)(a + v * LANES) : FN(load_first)(a + v * LANES, last);
        for (int n = 0; n < np; n++) sums[v * np + n] = FN(fma)(x, bn[n], sums[v * np + n]);
    }
}

SK_INLINE void FN(flat)(const FN(run) * r, int g, int vs, int np, int side, bool whole) {
    VEC sums[4][16];
    MASK last = FN(mask_first)(r->elements - (vs - 1) * LANES);
    for (int u = 0; u < side; u++)
        for (int i = 0; i < vs * np; i++) sums[u][i] = FN(zero)();
    int64_t t = 0;
    for (; t + side <= r->count; t += side)
        for (int u = 0; u < side; u++)
            FN(flat_block)(r->a + (t + u) * r->elements, FN(b_at)(r, t + u), sums[u], g, vs, np, whole, last);
    for (; t < r->count; t++)
        FN(flat_block)(r->a + t * r->elements, FN(b_at)(r, t), sums[0], g, vs, np, whole, last);
    for (int v = 0; v < vs; v++)
        for (int n = 0; n < np; n++) {
            VEC x = sums[0][v * np + n];
            for (int u = 1; u < side; u++) x = FN(add)(x, sums[u][v * np + n]);
            FN(flat_out)(r, v, n, x, g);
        }
}

/* Blocks of more vectors than registers: sums in memory, a stretch of the block after the other. */
SK_INLINE void FN(flat_long)(const FN(run) * r, int g, int np) {
    enum { SPAN = 64 };
    VEC sums[SPAN];
    int64_t vectors = (r->elements + LANES - 1) / LANES, span = SPAN / np;
    for (int64_t v0 = 0; v0 < vectors; v0 += span) {
        int64_t vs = sat_min(span, vectors - v0), full = sat_min(vs, r->elements / LANES - v0);
        MASK last = FN(mask_first)(r->elements % LANES);
        for (int64_t i = 0; i < vs * np; i++) sums[i] = FN(zero)();
        for (int64_t t = 0; t < r->count; t++) {
            const REAL *a = r->a + t * r->elements + v0 * LANES, *b = FN(b_at)(r, t);
            int64_t v = 0;
            for (; v + 4 <= full; v += 4) FN(flat_block)(a + v * LANES, b, sums + v * np, g, 4, np, true, last);
            for (; v < full; v++) FN(flat_block)(a + v * LANES, b, sums + v * np, g, 1, np, true, last);
            if (v < vs) FN(flat_block)(a + v * LANES, b, sums + v * np, g, 1, np, false, last);
        }
        for (int64_t v = 0; v < vs; v++)
            for (int n = 0; n < np; n++) FN(flat_out)(r, v0 + v, n, sums[v * np + n], g);
    }
}

SK_INLINE void FN(flat_any)(const FN(run) * r, int g, int np) {
    int64_t vectors = (r->elements + LANES - 1) / LANES;
    bool whole = r->elements % LANES == 0;
    if (vectors == 1 && whole) FN(flat)(r, g, 1, np, 4 / np < 2 ? 2 : 4, true);
    else if (vectors == 1) FN(flat)(r, g, 1, np, 4 / np < 2 ? 2 : 4, false);
    else if (vectors == 2 && whole) FN(flat)(r, g, 2, np, 4 / np > 1 ? 2 : 1, true);
    else if (vectors == 4 && whole && np <= 2) FN(flat)(r, g, 4, np, 1, true);
    else FN(flat_long)(r, g, np);
}

/* ---- flat, transposed: element e is column e/g, row e%g; vectors of a block fall on the same sums ---- */

SK_INLINE void FN(flat_t)(const FN(run) * r, int g, int np) {
    VEC sums[4][4];
    INDEX index = FN(spread_index)(g);
    int64_t full = r->elements / LANES, rest = r->elements % LANES;
    MASK last = FN(mask_first)(rest);
    for (int u = 0; u < 4; u++)
        for (int n = 0; n < np; n++) sums[u][n] = FN(zero)();
    for (int64_t t = 0; t < r->count; t++) {
        const REAL *a = FN(a_at)(r, t), *b = FN(b_at)(r, t);
        FN(fetch)(r, t, 16);
        int64_t v = 0;
        for (; v + 4 <= full; v += 4)
            for (int u = 0; u < 4; u++) {
                VEC x = FN(load)(a + (v + u) * LANES);
                for (int n = 0; n < np; n++)
                    sums[u][n] = FN(fma)(x, FN(spread)(b + n * r->bc + (v + u) * (LANES / g), index), sums[u][n]);
            }
        for (; v < full; v++)
            for (int n = 0; n < np; n++)
                sums[0][n] = FN(fma)(FN(load)(a + v * LANES), FN(spread)(b + n * r->bc + v * (LANES / g), index),
                                     sums[0][n]);
        if (rest == 0) continue;
        for (int n = 0; n < np; n++)
            sums[1][n] = FN(fma)(FN(load_first)(a + v * LANES, last),
                                 FN(spread)(b + n * r->bc + v * (LANES / g), index), sums[1][n]);
    }
    for (int n = 0; n < np; n++) {
        REAL lane[LANES];
        VEC x = FN(add)(FN(add)(sums[0][n], sums[1][n]), FN(add)(sums[2][n], sums[3][n]));
        memcpy(lane, &x, sizeof lane);
        for (int e = 0; e < LANES; e++) r->out[(e % g) * r->np + n] += lane[e];
    }
}

/* ---- dot: a vector lies along a row of the block; B by column ---- */

SK_INLINE void FN(dot_rows)(const FN(run) * r, const REAL *a, const REAL *b, VEC *sums, int rows, int np, MASK last) {
    int64_t bcp = r->b_step / r->np, full = r->bc / LANES * LANES, k = 0;
    for (; k < full; k += LANES) {
        VEC bn[4];
        for (int n = 0; n < np; n++) bn[n] = FN(load)(b + n * bcp + k);
        for (int i = 0; i < rows; i++) {
            VEC x = FN(load)(a + i * r->bc + k);
            for (int n = 0; n < np; n++) sums[i * np + n] = FN(fma)(x, bn[n], sums[i * np + n]);
        }
    }
    if (full == r->bc) return;
    for (int i = 0; i < rows; i++) {
        VEC x = FN(load_first)(a + i * r->bc + k, last);
        for (int n = 0; n < np; n++) sums[i * np + n] = FN(fma)(x, FN(load)(b + n * bcp + k), sums[i * np + n]);
    }
}

/* All rows of the block at once: the sums stay in registers over the whole run. */
SK_INLINE void FN(dot_short)(const FN(run) * r, int rows, int np) {
    VEC sums[16];
    MASK last = FN(mask_first)(r->bc % LANES);
    for (int i = 0; i < rows * np; i++) sums[i] = FN(zero)();
    for (int64_t t = 0; t < r->count; t++)
        FN(dot_rows)(r, r->a + t * r->elements, FN(b_at)(r, t), sums, rows, np, last);
    for (int i = 0; i < rows * np; i++) r->out[i / np * r->np + i % np] += FN(sum)(sums[i]);
}

SK_INLINE void FN(dot_long)(const FN(run) * r, int np) {
    enum { SPAN = 64 };
    VEC sums[SPAN];
    MASK last = FN(mask_first)(r->bc % LANES);
    int64_t span = SPAN / np;
    for (int64_t i0 = 0; i0 < r->br; i0 += span) {
        int64_t rows = sat_min(span, r->br - i0);
        for (int64_t i = 0; i < rows * np; i++) sums[i] = FN(zero)();
        for (int64_t t = 0; t < r->count; t++) {
            const REAL *a = r->a + t * r->elements + i0 * r->bc, *b = FN(b_at)(r, t);
            int64_t i = 0;
            for (; i + 4 <= rows; i += 4) {
                VEC s[16];
                for (int j = 0; j < 4 * np; j++) s[j] = sums[i * np + j];
                FN(dot_rows)(r, a + i * r->bc, b, s, 4, np, last);
                for (int j = 0; j < 4 * np; j++) sums[i * np + j] = s[j];
            }
            for (; i < rows; i++) FN(dot_rows)(r, a + i * r->bc, b, sums + i * np, 1, np, last);
        }
        for (int64_t i = 0; i < rows * np; i++) r->out[(i0 + i / np) * r->np + i % np] += FN(sum)(sums[i]);
    }
}

SK_INLINE void FN(dot_any)(const FN(run) * r, int np) {
    if (r->br == 1) FN(dot_short)(r, 1, np);
    else if (r->br == 2) FN(dot_short)(r, 2, np);
    else if (r->br == 3 && np <= 2) FN(dot_short)(r, 3, np);
    else if (r->br == 4 && np <= 2) FN(dot_short)(r, 4, np);
    else if (r->br == 8 && np == 1) FN(dot_short)(r, 8, np);
    else FN(dot_long)(r, np);
}

/* ---- dot, transposed: a vector lies along a column of op(A), so its lanes are rows of C ---- */

SK_INLINE void FN(dot_t_panel)(const FN(run) * r, int64_t i0, int vs, int np, int side, bool whole) {
    VEC sums[4][16];
    MASK last = FN(mask_first)(r->br - i0 - (vs - 1) * LANES);
    for (int u = 0; u < side; u++)
        for (int i = 0; i < vs * np; i++) sums[u][i] = FN(zero)();
    for (int64_t t = 0; t < r->count; t++) {
        const REAL *a = FN(a_at)(r, t) + i0, *b = FN(b_at)(r, t);
        FN(fetch)(r, t, r->elements >= 256 ? 2 : 8);
        int64_t k = 0;
        for (int64_t step = side; step >= 1; step = step > 1 ? 1 : 0)
            for (; k + step <= r->bc; k += step)
                for (int u = 0; u < (step > 1 ? side : 1); u++)
                    for (int v = 0; v < vs; v++) {
                        const REAL *at = a + (k + u) * r->br + v * LANES;
                        VEC x = whole || v < vs - 1 ? FN(load)(at) : FN(load_first)(at, last);
                        for (int n = 0; n < np; n++)
                            sums[u][v * np + n] = FN(fma)(x, FN(broadcast)(b + (k + u) * np + n), sums[u][v * np + n]);
                    }
    }
    for (int v = 0; v < vs; v++)
        for (int n = 0; n < np; n++) {
            REAL lane[LANES];
            VEC x = sums[0][v * np + n];
            for (int u = 1; u < side; u++) x = FN(add)(x, sums[u][v * np + n]);
            memcpy(lane, &x, sizeof lane);
            int64_t rows = sat_min(LANES, r->br - i0 - v * LANES);
            for (int64_t i = 0; i < rows; i++) r->out[(i0 + v * LANES + i) * r->np + n] += lane[i];
        }
}

SK_INLINE void FN(dot_t_any)(const FN(run) * r, int np) {
    int64_t i = 0;
    if (np <= 2)
        for (; i + 4 * LANES <= r->br; i += 4 * LANES) FN(dot_t_panel)(r, i, 4, np, 1, true);
    for (; i + 2 * LANES <= r->br; i += 2 * LANES) FN(dot_t_panel)(r, i, 2, np, np == 1 ? 2 : 1, true);
    for (; i + LANES <= r->br; i += LANES) FN(dot_t_panel)(r, i, 1, np, 2, true);
    if (i < r->br) FN(dot_t_panel)(r, i, 1, np, 2, false);
}

/* ---- instances ---- */

#define SK_INSTANCES(np)                                                                                               \
    static void FN(dot_##np)(const FN(run) * r) { FN(dot_any)(r, np); }                                                \
    static void FN(dot_t_##np)(const FN(run) * r) { FN(dot_t_any)(r, np); }                                            \
    static void FN(flat_##np)(const FN(run) * r) {                                                                     \
        if (r->bc == 1) FN(flat_any)(r, 1, np);                                                                        \
        else if (r->bc == 2) FN(flat_any)(r, 2, np);                                                                   \
        else if (r->bc == 4) FN(flat_any)(r, 4, np);                                                                   \
        else FN(flat_any)(r, 8, np);                                                                                   \
    }                                                                                                                  \
    static void FN(flat_t_##np)(const FN(run) * r) {                                                                   \
        if (r->br == 1) FN(flat_t)(r, 1, np);                                                                          \
        else if (r->br == 2) FN(flat_t)(r, 2, np);                                                                     \
        else if (r->br == 4) FN(flat_t)(r, 4, np);                                                                     \
        else FN(flat_t)(r, 8, np);                                                                                     \
    }

SK_INSTANCES(1)
SK_INSTANCES(2)
SK_INSTANCES(4)
#undef SK_INSTANCES
