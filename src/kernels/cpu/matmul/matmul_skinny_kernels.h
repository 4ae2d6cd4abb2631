/* The skinny families' inner kernel; a template, included once for each element type.
 *
 * The includer defines REAL, VEC, LANES, FN(name) and five operations: zero, load, store, fma, and group, which repeats
 * the next 1, 2, 4, ... elements in memory over a vector. The kernel takes a run of whole blocks of one block row,
 * keeps its sums in registers over as many of them as it can, and adds them, lane by lane, to r->out. Where few rows
 * would make every addition wait for the one before, several blocks run side by side with sums of their own.
 *
 * What can be a constant is one: everything here is inlined into one function for each split of the lanes (ga, gb, vs,
 * by), and there again for common numbers of rows and steps.
 */

typedef struct FN(run) {
    const REAL *a;        /* values */
    const int64_t *block; /* places of the blocks in the values; NULL: one after the other */
    const int32_t *col;   /* block columns */
    int64_t count;        /* blocks */
    bool far;             /* operands come from beyond L2, and SK_AHEAD more blocks follow */
    const REAL *b;        /* packed B */
    int64_t rows, steps;  /* vectors of sums, and multiply-adds that go into each, a block */
    REAL *out;
} FN(run);

typedef void (*FN(kernel))(const FN(run) * r);

/* How a kernel splits the lanes: it repeats ga elements of A and gb of B over a vector, and takes vs vectors of B.
 * Between rows and steps it moves in A as the blocks lie: by rows, by columns (transposed), or flat, where a vector
 * spans rows and a row has one step. */
typedef struct FN(split) {
    int ga, gb, vs;
    sk_order by;
} FN(split);

SK_INLINE int64_t FN(a_row)(FN(split) x, int64_t steps) { return x.by == SK_BY_ROWS ? x.ga * steps : x.ga; }
SK_INLINE int64_t FN(a_step)(FN(split) x, int64_t rows) { return x.by == SK_BY_ROWS ? x.ga : x.ga * rows; }

/* Elements of a block and of a block column of packed B: constants where rows and steps are. */
SK_INLINE int64_t FN(a_size)(FN(split) x, int64_t rows, int64_t steps) { return rows * steps * x.ga; }
SK_INLINE int64_t FN(b_size)(FN(split) x, int64_t steps) { return steps * x.gb * x.vs; }

/* Block t of the run. */
SK_INLINE const REAL *FN(a_at)(FN(split) x, const FN(run) * r, int64_t t, int64_t a_size) {
    return r->a + (x.by == SK_BY_COLUMNS && r->block ? r->block[t] : t) * a_size;
}
SK_INLINE const REAL *FN(b_at)(const FN(run) * r, int64_t t, int64_t b_size) { return r->b + r->col[t] * b_size; }

SK_INLINE void FN(fetch_lines)(const REAL *p, int64_t elements) {
    for (int64_t i = 0; i < elements * (int64_t)sizeof(REAL); i += 64) _mm_prefetch((const char *)p + i, _MM_HINT_T0);
}

/* Asks for what later blocks need. The jumps through B spoil the hardware's own guesses about the stream of blocks, so
 * that is asked for too: far ahead, and only into L2, where many requests may wait; of small blocks' stream every other
 * line, since their B needs the other requests that may be under way. Small blocks need no help with B:
 * many of them are under way at a time. */
SK_INLINE void FN(fetch)(FN(split) x, const FN(run) * r, int64_t t, int side, int64_t rows, int64_t steps) {
    const int64_t a_size = FN(a_size)(x, rows, steps), b_size = FN(b_size)(x, steps);
    const int64_t stream = side * a_size * (int64_t)sizeof(REAL);
#pragma GCC unroll 4
    for (int u = 0; u < side; u++) {
        if (rows * steps * x.vs >= 8) FN(fetch_lines)(FN(b_at)(r, t + u + SK_AHEAD, b_size), b_size);
        if (x.by == SK_BY_COLUMNS && r->block) FN(fetch_lines)(FN(a_at)(x, r, t + u + SK_AHEAD, a_size), a_size);
    }
    if (x.by == SK_BY_COLUMNS || stream < 64) return;
    const char *a = (const char *)(r->a + t * a_size) + (stream < 512 ? SK_AHEAD_SMALL : SK_AHEAD_BYTES);
    for (int64_t i = 0; i < stream; i += stream < 512 ? 128 : 64) _mm_prefetch(a + i, _MM_HINT_T1);
}

/* One step of `rows` rows. */
SK_INLINE void FN(step)(FN(split) x, const REAL *a, int64_t a_row, const REAL *b, VEC *sums, int rows) {
    const REAL *a3 = a + 3 * a_row, *a6 = a + 6 * a_row; /* so that addresses need no arithmetic of their own */
    VEC bv[4];
#pragma GCC unroll 16
    for (int v = 0; v < x.vs; v++) bv[v] = FN(group)(b + v * LANES, x.gb);
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        VEC av = FN(group)((i < 3 ? a : i < 6 ? a3 : a6) + (i < 6 ? i % 3 : i - 6) * a_row, x.ga);
#pragma GCC unroll 16
        for (int v = 0; v < x.vs; v++) sums[i * x.vs + v] = FN(fma)(av, bv[v], sums[i * x.vs + v]);
    }
}

/* Blocks of few rows: all sums in registers over the whole run, `side` blocks side by side. */
SK_INLINE void FN(narrow)(FN(split) x, const FN(run) * r, int rows, int64_t steps, int side) {
    VEC sums[4][16];
    const int64_t a_row = FN(a_row)(x, steps), a_step = FN(a_step)(x, rows), b_k = x.gb * x.vs, count = r->count;
    const int64_t a_size = FN(a_size)(x, rows, steps), b_size = FN(b_size)(x, steps);
#pragma GCC unroll 16
    for (int u = 0; u < side; u++)
#pragma GCC unroll 16
        for (int i = 0; i < rows * x.vs; i++) sums[u][i] = FN(zero)();
    int64_t t = 0;
    for (; t + side <= count; t += side) {
        const REAL *a[4], *b[4];
#pragma GCC unroll 16
        for (int u = 0; u < side; u++) a[u] = FN(a_at)(x, r, t + u, a_size), b[u] = FN(b_at)(r, t + u, b_size);
        if (r->far) FN(fetch)(x, r, t, side, rows, steps);
        for (int64_t k = 0; k < steps; k++)
#pragma GCC unroll 16
            for (int u = 0; u < side; u++) {
                FN(step)(x, a[u], a_row, b[u], sums[u], rows);
                a[u] += a_step, b[u] += b_k;
            }
    }
    for (; t < count; t++) {
        const REAL *a = FN(a_at)(x, r, t, a_size), *b = FN(b_at)(r, t, b_size);
        for (int64_t k = 0; k < steps; k++, a += a_step, b += b_k) FN(step)(x, a, a_row, b, sums[0], rows);
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows * x.vs; i++) {
        VEC sum = FN(load)(r->out + i * LANES);
#pragma GCC unroll 16
        for (int u = 0; u < side; u++) sum = FN(add)(sum, sums[u][i]);
        FN(store)(r->out + i * LANES, sum);
    }
}

/* `rows` rows of one block of a taller kind: sums live in memory between blocks. A block that is deeper than a part of
 * a sum is several: each begins with zero and is added. */
SK_INLINE void FN(tile)(FN(split) x, const REAL *a, int64_t a_row, int64_t a_step, const REAL *b, REAL *out, int rows,
                        int64_t steps) {
    VEC sums[16];
    const bool whole = steps <= SAT_SUM_PART;
    for (int64_t k = 0, end; k < steps; k = end) {
        end = whole ? steps : sat_min(steps, k + SAT_SUM_PART);
#pragma GCC unroll 16
        for (int i = 0; i < rows * x.vs; i++) sums[i] = whole ? FN(load)(out + i * LANES) : FN(zero)();
        for (int64_t e = k; e < end; e++, a += a_step, b += x.gb * x.vs) FN(step)(x, a, a_row, b, sums, rows);
#pragma GCC unroll 16
        for (int i = 0; i < rows * x.vs; i++)
            FN(store)(out + i * LANES, whole ? sums[i] : FN(add)(FN(load)(out + i * LANES), sums[i]));
    }
}

SK_INLINE void FN(tall)(FN(split) x, const FN(run) * r, int64_t steps) {
    const int64_t a_row = FN(a_row)(x, steps), a_step = FN(a_step)(x, r->rows), out = x.vs * LANES;
    const int64_t a_size = FN(a_size)(x, r->rows, steps), b_size = FN(b_size)(x, steps);
    const int most = 8 / x.vs;
    for (int64_t t = 0; t < r->count; t++) {
        const REAL *a = FN(a_at)(x, r, t, a_size), *b = FN(b_at)(r, t, b_size);
        if (r->far) FN(fetch)(x, r, t, 1, r->rows, steps);
        int64_t i = 0;
        for (; i + most <= r->rows; i += most)
            FN(tile)(x, a + i * a_row, a_row, a_step, b, r->out + i * out, most, steps);
        for (; i < r->rows; i++) FN(tile)(x, a + i * a_row, a_row, a_step, b, r->out + i * out, 1, steps);
    }
}

SK_INLINE void FN(any)(FN(split) x, const FN(run) * r) {
    const int64_t rows = r->rows, steps = x.by == SK_FLAT ? 1 : r->steps;
    const int side = x.vs > 1 ? 1 : 2;
    if (steps > SAT_SUM_PART) FN(tall)(x, r, steps);
    else if (rows == 1 && steps == 1) FN(narrow)(x, r, 1, 1, 4);
    else if (rows == 1) FN(narrow)(x, r, 1, steps, 4);
    else if (rows == 2 && steps == 1) FN(narrow)(x, r, 2, 1, 2 * side);
    else if (rows == 2 && steps == 2) FN(narrow)(x, r, 2, 2, 2 * side);
    else if (rows == 2) FN(narrow)(x, r, 2, steps, 2);
    else if (rows == 4 && steps == 1) FN(narrow)(x, r, 4, 1, side);
    else if (rows == 4 && steps == 2) FN(narrow)(x, r, 4, 2, side);
    else if (rows == 4 && steps == 4) FN(narrow)(x, r, 4, 4, side);
    else if (rows == 4) FN(narrow)(x, r, 4, steps, side);
    else if (rows == 8 && steps == 8 && x.vs == 1) FN(narrow)(x, r, 8, 8, 1);
    else if (rows == 8 && x.vs == 1) FN(narrow)(x, r, 8, steps, 1);
    else if (rows == 3 && x.ga == 1) FN(narrow)(x, r, 3, steps, side);
    else if (rows == 5 && x.ga == 1 && x.vs == 1) FN(narrow)(x, r, 5, steps, 1);
    else if (rows == 6 && x.ga <= 2 && x.vs == 1) FN(narrow)(x, r, 6, steps, 1);
    else if (rows == 16 && steps == 1 && x.vs == 1 && SK_WIDTH == 64) FN(narrow)(x, r, 16, 1, 1); /* 32 registers */
    else if (rows == 16 && steps == 8 && x.vs == 1 && SK_WIDTH == 64) FN(narrow)(x, r, 16, 8, 1);
    else if (steps == 16 && x.ga == 1) FN(tall)(x, r, 16);
    else FN(tall)(x, r, steps);
}
