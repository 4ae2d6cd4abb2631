/* The skinny families' inner kernel; a template, included once for each element type.
 *
 * The includer defines REAL, VEC, LANES, FN(name) and three operations: load, fma, and group, which repeats the next
 * 1, 2, 4, ... elements in memory over a vector. The kernel takes a run of whole blocks of one block row, keeps its sums
 * in registers over as many of them as it can, and adds them, lane by lane, to r->out. Where few rows would make every
 * addition wait for the one before, several blocks run side by side with sums of their own.
 */

typedef struct FN(run) {
    const REAL *a;        /* values */
    const int64_t *block; /* places of the blocks in the values; NULL: one after the other */
    const int32_t *col;   /* block columns */
    int64_t count, elements; /* blocks, and elements of each */
    const REAL *b;           /* packed B */
    int64_t b_step;          /* elements of it to the next block column */
    int64_t rows, steps;     /* vectors of sums, and multiply-adds that go into each, a block */
    int64_t a_row, a_step, b_k; /* elements of A to the next row and step, of B to the next step */
    REAL *out;
} FN(run);

typedef void (*FN(kernel))(const FN(run) * r);

#define SK_UNROLL _Pragma("GCC unroll 16") /* so that the sums' arrays become registers */

/* Block t of the run. */
SK_INLINE const REAL *FN(a_at)(const FN(run) * r, int64_t t) {
    return r->a + (r->block ? r->block[t] : t) * r->elements;
}
SK_INLINE const REAL *FN(b_at)(const FN(run) * r, int64_t t) { return r->b + r->col[t] * r->b_step; }

/* One step of `rows` rows: ga elements of A at a time against gb elements of B at a time, vs vectors of B. */
SK_INLINE void FN(step)(const REAL *a, int64_t a_row, const REAL *b, VEC *sums, int rows, int ga, int gb, int vs) {
    const REAL *a3 = a + 3 * a_row, *a6 = a + 6 * a_row; /* three bases: an address then needs no arithmetic of its own */
    VEC bv[4];
    SK_UNROLL for (int v = 0; v < vs; v++) bv[v] = FN(group)(b + v * LANES, gb);
    SK_UNROLL for (int i = 0; i < rows; i++) {
        VEC x = FN(group)((i < 3 ? a : i < 6 ? a3 : a6) + i % 3 * a_row, ga);
        SK_UNROLL for (int v = 0; v < vs; v++) sums[i * vs + v] = FN(fma)(x, bv[v], sums[i * vs + v]);
    }
}

/* Blocks of few rows: all sums in registers over the whole run. */
SK_INLINE void FN(narrow)(const FN(run) * r, int rows, int side, int64_t steps, int ga, int gb, int vs) {
    VEC sums[4][16];
    const int64_t a_row = r->a_row, a_step = r->a_step, b_k = r->b_k, count = r->count;
    SK_UNROLL for (int u = 0; u < side; u++)
        SK_UNROLL for (int i = 0; i < rows * vs; i++) sums[u][i] = FN(zero)();
    int64_t t = 0;
    for (; t + side <= count; t += side) {
        const REAL *a[4], *b[4];
        SK_UNROLL for (int u = 0; u < side; u++) a[u] = FN(a_at)(r, t + u), b[u] = FN(b_at)(r, t + u);
        for (int64_t k = 0; k < steps; k++)
            SK_UNROLL for (int u = 0; u < side; u++) {
                FN(step)(a[u], a_row, b[u], sums[u], rows, ga, gb, vs);
                a[u] += a_step, b[u] += b_k;
            }
    }
    for (; t < count; t++) {
        const REAL *a = FN(a_at)(r, t), *b = FN(b_at)(r, t);
        for (int64_t k = 0; k < steps; k++, a += a_step, b += b_k)
            FN(step)(a, a_row, b, sums[0], rows, ga, gb, vs);
    }
    SK_UNROLL for (int i = 0; i < rows * vs; i++) {
        VEC x = FN(load)(r->out + i * LANES);
        SK_UNROLL for (int u = 0; u < side; u++) x = FN(add)(x, sums[u][i]);
        FN(store)(r->out + i * LANES, x);
    }
}

/* `rows` rows of one block of a taller kind: sums live in memory between blocks. */
SK_INLINE void FN(tile)(const FN(run) * r, const REAL *a, const REAL *b, REAL *out, int rows, int ga, int gb, int vs) {
    const int64_t a_row = r->a_row, a_step = r->a_step, b_k = r->b_k, steps = r->steps;
    VEC sums[16];
    SK_UNROLL for (int i = 0; i < rows * vs; i++) sums[i] = FN(load)(out + i * LANES);
    for (int64_t k = 0; k < steps; k++, a += a_step, b += b_k) FN(step)(a, a_row, b, sums, rows, ga, gb, vs);
    SK_UNROLL for (int i = 0; i < rows * vs; i++) FN(store)(out + i * LANES, sums[i]);
}

SK_INLINE void FN(tall)(const FN(run) * r, int ga, int gb, int vs) {
    const int tile = 8 / vs;
    for (int64_t t = 0; t < r->count; t++) {
        const REAL *a = FN(a_at)(r, t), *b = FN(b_at)(r, t);
        int64_t i = 0;
        for (; i + tile <= r->rows; i += tile)
            FN(tile)(r, a + i * r->a_row, b, r->out + i * vs * LANES, tile, ga, gb, vs);
        for (; i + 2 <= r->rows; i += 2) FN(tile)(r, a + i * r->a_row, b, r->out + i * vs * LANES, 2, ga, gb, vs);
        if (i < r->rows) FN(tile)(r, a + i * r->a_row, b, r->out + i * vs * LANES, 1, ga, gb, vs);
    }
}

SK_INLINE void FN(any)(const FN(run) * r, int ga, int gb, int vs) {
    const int64_t rows = r->rows, steps = r->steps;
    const int side = vs > 1 ? 1 : 2;
    if (rows == 1 && steps == 1) FN(narrow)(r, 1, 4, 1, ga, gb, vs);
    else if (rows == 1) FN(narrow)(r, 1, 4, steps, ga, gb, vs);
    else if (rows == 2 && steps == 1) FN(narrow)(r, 2, 2 * side, 1, ga, gb, vs);
    else if (rows == 2 && steps == 2) FN(narrow)(r, 2, 2 * side, 2, ga, gb, vs);
    else if (rows == 2) FN(narrow)(r, 2, 2, steps, ga, gb, vs);
    else if (rows == 3 && steps == 3) FN(narrow)(r, 3, side, 3, ga, gb, vs);
    else if (rows == 3) FN(narrow)(r, 3, side, steps, ga, gb, vs);
    else if (rows == 4 && steps == 1) FN(narrow)(r, 4, side, 1, ga, gb, vs);
    else if (rows == 4 && steps == 2) FN(narrow)(r, 4, side, 2, ga, gb, vs);
    else if (rows == 4 && steps == 4) FN(narrow)(r, 4, side, 4, ga, gb, vs);
    else if (rows == 4) FN(narrow)(r, 4, side, steps, ga, gb, vs);
    else if (rows == 5 && vs == 1) FN(narrow)(r, 5, 1, steps, ga, gb, vs);
    else if (rows == 6 && vs == 1) FN(narrow)(r, 6, 1, steps, ga, gb, vs);
    else if (rows == 7 && vs == 1) FN(narrow)(r, 7, 1, steps, ga, gb, vs);
    else if (rows == 8 && vs == 1) FN(narrow)(r, 8, 1, steps, ga, gb, vs);
    else FN(tall)(r, ga, gb, vs);
}
