/* The portable matmul's loops; a template, included for f32 and f64. matmul_portable.c defines REAL, FN(name) and
 * FN(widen), FN(act). */

enum { FN(lanes) = 16 / (int)sizeof(REAL), FN(width) = PORTABLE_VECTORS * FN(lanes) };
typedef REAL FN(vec) __attribute__((vector_size(16), aligned(sizeof(REAL)), may_alias));

/* ---- packing ---- */

/* Rows [from, to) of a panel of B, `columns` of them inside the matrix, zeros beyond. */
static void FN(pack_b)(const sat_problem *p, const void *b, int64_t n0, int64_t from, int64_t to, REAL *panel) {
    int64_t columns = sat_min(FN(width), p->n - n0);
    for (int64_t k = from; k < to; k++) {
        REAL *row = panel + k * FN(width);
        int64_t at = k * p->b.row_stride + n0 * p->b.col_stride;
        for (int64_t j = columns; j < FN(width); j++) row[j] = 0;
        for (int64_t j = 0; j < columns; j++) row[j] = FN(widen)(p->b_dtype, b, at + j * p->b.col_stride);
    }
}

/* ---- a register tile of C: up to four rows by the width of a panel ---- */

typedef struct FN(tile) {
    const sat_rows *r;
    const REAL *a; /* block values as REAL, from the first row of the tile: of its first block, or of all */
    bool all;      /* a has all blocks, at the same positions as the values */
    const REAL *panel;
    int64_t begin, end; /* stored blocks */
    int64_t k, k_end;   /* the columns of each, where it is a part of a deep block */
} FN(tile);

PORTABLE_INLINE void FN(multiply)(const FN(tile) * x, REAL *out, int rows, bool some) {
    const sat_rows *r = x->r;
    const int64_t row_step = r->row_step, col_step = r->col_step;
    FN(vec) sums[4][PORTABLE_VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 16
        for (int v = 0; v < PORTABLE_VECTORS; v++) sums[i][v] = (FN(vec)){0};
    for (int64_t t = x->begin; t < x->end; t++) {
        const REAL *a = x->a + (x->all ? sat_block_of(r, t) : t - x->begin) * r->block_elements;
        const REAL *b = x->panel + r->col[t] * r->bc * FN(width);
        int64_t depth = sat_min(r->bc, r->k - r->col[t] * r->bc);
        if (some) a += x->k * col_step, b += x->k * FN(width), depth = sat_min(depth, x->k_end) - x->k;
        for (int64_t k = 0; k < depth; k++, a += col_step, b += FN(width)) {
            FN(vec) bv[PORTABLE_VECTORS];
#pragma GCC unroll 16
            for (int v = 0; v < PORTABLE_VECTORS; v++) bv[v] = *(const FN(vec) *)(b + v * FN(lanes));
#pragma GCC unroll 16
            for (int i = 0; i < rows; i++) {
                FN(vec) av = a[i * row_step] - (FN(vec)){0};
#pragma GCC unroll 16
                for (int v = 0; v < PORTABLE_VECTORS; v++) sums[i][v] += av * bv[v];
            }
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 16
        for (int v = 0; v < PORTABLE_VECTORS; v++) *(FN(vec) *)(out + i * FN(width) + v * FN(lanes)) = sums[i][v];
}

/* Not inlined into what calls them, so that the loops above have all registers. */
static __attribute__((noinline)) void FN(multiply_whole)(const FN(tile) * x, REAL *out, int64_t rows) {
    if (rows == 4) FN(multiply)(x, out, 4, false);
    else if (rows == 3) FN(multiply)(x, out, 3, false);
    else if (rows == 2) FN(multiply)(x, out, 2, false);
    else FN(multiply)(x, out, 1, false);
}

static __attribute__((noinline)) void FN(multiply_some)(const FN(tile) * x, REAL *out, int64_t rows) {
    if (rows == 4) FN(multiply)(x, out, 4, true);
    else if (rows == 3) FN(multiply)(x, out, 3, true);
    else if (rows == 2) FN(multiply)(x, out, 2, true);
    else FN(multiply)(x, out, 1, true);
}

/* A long sum, part by part. */
static void FN(multiply_parts)(const FN(tile) * all, REAL *out, int64_t rows) {
    const int64_t depth = all->r->bc, blocks = sat_part_blocks(depth);
    REAL sums[4 * FN(width)];
    memset(out, 0, sizeof sums);
    sat_part p = sat_before_parts(all->begin, depth);
    while (sat_next_part(&p, all->end, depth, blocks)) {
        FN(tile) x = *all;
        x.begin = p.t, x.end = p.t_end, x.k = p.k, x.k_end = p.k_end;
        if (!x.all) x.a += (p.t - all->begin) * x.r->block_elements;
        if (depth > SAT_SUM_PART) FN(multiply_some)(&x, sums, rows);
        else FN(multiply_whole)(&x, sums, rows);
        for (int64_t e = 0; e < rows * FN(width); e++) out[e] += sums[e];
    }
}

static void FN(store)(const sat_launch *l, const REAL *sums, int64_t i, int64_t n0) {
    const sat_problem *p = l->problem;
    void *c = l->operands[2];
    REAL alpha = (REAL)p->alpha, beta = (REAL)p->beta;
    REAL bias = p->matmul.bias == SAT_BIAS_ROW ? FN(widen)(p->c_dtype, l->operands[3], i) : 0;
    int64_t columns = sat_min(FN(width), p->n - n0), at = i * p->c.row_stride + n0 * p->c.col_stride;
    for (int64_t j = 0; j < columns; j++, at += p->c.col_stride) {
        REAL x = alpha * sums[j] + bias;
        if (beta != 0) x += beta * FN(widen)(p->c_dtype, c, at);
        sat_store(p->c_dtype, c, at, FN(act)(p->matmul.activation, x));
    }
}

/* One block row times panels [from, to), which begin at column n0. */
static void FN(block_row)(const sat_launch *l, const sat_rows *r, int64_t row, int64_t n0, int64_t panels,
                          const REAL *b, REAL *wide) {
    REAL sums[4 * FN(width)];
    const sat_problem *p = l->problem;
    FN(tile) x = {.r = r, .begin = r->ptr[row], .end = r->end[row], .all = wide == NULL};
    bool parts = (x.end - x.begin) * r->bc > SAT_SUM_PART;
    if (wide)
        for (int64_t t = x.begin; t < x.end; t++)
            for (int64_t e = 0; e < r->block_elements; e++)
                wide[(t - x.begin) * r->block_elements + e] =
                    FN(widen)(p->a_dtype, l->operands[0], sat_block_of(r, t) * r->block_elements + e);
    int64_t first = row * r->br, rows = sat_min(r->br, r->m - first);
    for (int64_t i = 0; i < rows; i += 4) {
        x.a = (wide ? wide : (const REAL *)l->operands[0]) + i * r->row_step;
        for (int64_t s = 0; s < panels; s++) {
            int64_t n = n0 + s * FN(width), here = sat_min(4, rows - i);
            x.panel = b + s * r->k * FN(width);
            if (parts) FN(multiply_parts)(&x, sums, here);
            else FN(multiply_whole)(&x, sums, here);
            for (int64_t q = 0; q < here; q++) FN(store)(l, sums + q * FN(width), first + i + q, n);
        }
    }
}

static sat_status FN(launch)(const sat_launch *l) {
    const sat_problem *p = l->problem;
    sat_rows r = sat_op_rows(p, l->pattern);
    portable_shape s = portable_make_shape(p, l->pattern);
    REAL *b = l->workspace, *wide = b + s.b_elements;
#pragma omp parallel num_threads(l->threads)
    {
        REAL *mine = s.wide_elements ? wide + omp_get_thread_num() * s.wide_elements : NULL;
        for (int64_t first = 0; first < s.panels; first += s.packed_panels) {
            int64_t here = sat_min(s.packed_panels, s.panels - first), n0 = first * FN(width),
                    tasks = here * s.pack_tasks;
#pragma omp for schedule(static)
            for (int64_t i = 0; i < tasks; i++) {
                int64_t panel = i / s.pack_tasks, from = i % s.pack_tasks * s.pack_rows;
                FN(pack_b)
                (p, l->operands[1], n0 + panel * FN(width), from, sat_min(r.k, from + s.pack_rows),
                 b + panel * r.k * FN(width));
            }
#pragma omp for schedule(dynamic, 1) collapse(2)
            for (int64_t q = 0; q < s.items; q++)
                for (int64_t u = 0; u < here; u += s.panels_at_once)
                    for (int64_t row = q * s.item_rows; row < sat_min(r.count, (q + 1) * s.item_rows); row++)
                        FN(block_row)
            (l, &r, row, n0 + u * FN(width), sat_min(s.panels_at_once, here - u), b + u * r.k * FN(width), mine);
        }
    }
    return SAT_OK;
}

#undef REAL
#undef FN
