/* The sampled product by single elements, from thin blocks too; a template, included once for each element type.
 *
 * Each stored element is the dot product of a row of X and a column of Y. Both are copied, once, to lines along k in
 * the type that is computed in, filled up with zeros to whole vectors: a line of X stays in registers, and four columns
 * of Y are multiplied and added up at a time. Where k is deeper than those registers, and than a part of a sum, a line
 * is several parts. Threads have whole block rows, about as many blocks each. */

/* ---- the micro-kernel: four elements of a row ---- */

/* sums[0..3] of `vectors` vectors of x and of the lines y[0..3]. */
INLINE void FN(csr_dots)(const VEC *x, const REAL *const y[4], int vectors, REAL *sums) {
    VEC s[4] = {VZERO(), VZERO(), VZERO(), VZERO()};
#pragma GCC unroll 16
    for (int v = 0; v < vectors; v++)
#pragma GCC unroll 16
        for (int u = 0; u < 4; u++) s[u] = VFMA(x[v], VLOAD(y[u] + v * LANES), s[u]);
    VSUM4(sums, s[0], s[1], s[2], s[3]);
}

/* `count` elements in columns j[e]: sums of a part of the lines, `vectors` deep. */
INLINE void FN(csr_part)(const REAL *line, const REAL *y, int64_t stride, const int32_t *j, int64_t count, int vectors,
                         REAL *sums) {
    VEC x[CSR_VECTORS];
#pragma GCC unroll 16
    for (int v = 0; v < vectors; v++) x[v] = VLOAD(line + v * LANES);
    for (int64_t e = 0; e < count; e += 4) {
        const REAL *lines[4];
#pragma GCC unroll 16
        for (int u = 0; u < 4; u++) lines[u] = y + j[sat_min(e + u, count - 1)] * stride;
        FN(csr_dots)(x, lines, vectors, sums + e);
    }
}

/* Whole lines: sums has room for three elements more. */
static void FN(csr_elements)(const REAL *line, const REAL *y, int64_t stride, const int32_t *j, int64_t count,
                             REAL *sums, REAL *part) {
    for (int64_t k = 0; k < stride; k += CSR_VECTORS * LANES) {
        const int vectors = (int)(sat_min(stride - k, CSR_VECTORS * LANES) / LANES);
        REAL *to = k == 0 ? sums : part;
#define CSR_WIDTH(width)                                                                                               \
    if (vectors == width) FN(csr_part)(line + k, y + k, stride, j, count, width, to);
        CSR_WIDTHS(CSR_WIDTH)
#undef CSR_WIDTH
        if (k > 0)
            for (int64_t e = 0; e < count; e++) sums[e] += part[e];
    }
    if (stride == 0) memset(sums, 0, (size_t)count * sizeof *sums);
}

/* ---- rows ---- */

typedef struct FN(csr_job) {
    const sat_launch *l;
    const sat_problem *p;
    const sat_pattern_view *a;
    const REAL *x, *y; /* lines along k */
    int64_t depth;     /* of a line: k, rounded up to whole vectors */
} FN(csr_job);

/* Lines [from, to) of an operand. */
static void FN(csr_lines)(sat_dtype t, const void *matrix, int64_t line_stride, int64_t k_stride, int64_t k,
                          int64_t depth, int64_t from, int64_t to, REAL *lines) {
    enum { AT_ONCE = 16 };
    for (int64_t i = from; i < to; i += AT_ONCE) {
        const int64_t end = sat_min(to, i + AT_ONCE);
        for (int64_t q = i; q < end; q++) memset(lines + q * depth + k, 0, (size_t)(depth - k) * sizeof *lines);
        if (line_stride < k_stride) {
            for (int64_t e = 0; e < k; e++)
                for (int64_t q = i; q < end; q++)
                    lines[q * depth + e] = FN(widen)(t, matrix, q * line_stride + e * k_stride);
        } else {
            for (int64_t q = i; q < end; q++)
                for (int64_t e = 0; e < k; e++)
                    lines[q * depth + e] = FN(widen)(t, matrix, q * line_stride + e * k_stride);
        }
    }
}

/* Row `in` of some blocks of a block row, from the t-th on: of each, `deep` columns from `first` on. */
static void FN(csr_some)(const FN(csr_job) * j, int64_t row, int64_t in, int64_t t, int64_t blocks, int64_t first,
                         int64_t deep) {
    const sat_problem *p = j->p;
    const int64_t br = j->a->block_rows, bc = j->a->block_cols, i = row * br + in;
    const int64_t end = sat_min(bc, first + deep);
    int32_t column[CSR_ENTRIES];
    REAL sums[CSR_ENTRIES + 4], part[CSR_ENTRIES + 4];
    int64_t count = 0;
    for (int64_t e = t; e < t + blocks; e++)
        for (int64_t c = first; c < end; c++) /* beyond the matrix: any column */
            column[count++] = (int32_t)sat_min(j->a->col_idx[e] * bc + c, p->n - 1);
    if (i < p->m && p->n > 0) FN(csr_elements)(j->x + i * j->depth, j->y, j->depth, column, count, sums, part);
    REAL alpha = (REAL)p->alpha, beta = (REAL)p->beta;
    void *s = j->l->operands[2];
    count = 0;
    for (int64_t e = t; e < t + blocks; e++)
        for (int64_t c = first; c < end; c++, count++) {
            const int64_t at = (e * br + in) * bc + c;
            REAL y = 0;
            if (i < p->m && j->a->col_idx[e] * bc + c < p->n) {
                y = alpha * sums[count];
                if (beta != 0) y += beta * FN(widen)(p->c_dtype, s, at);
            }
            FN(csr_put)(p->c_dtype, s, at, y);
        }
}

static sat_status FN(csr_launch)(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const csr_shape s = csr_shape_of(p);
    FN(csr_job) j = {.l = l, .p = p, .a = l->pattern, .depth = s.depth};
    REAL *x = l->workspace, *y = x + s.x_elements;
    j.x = x, j.y = y;
#pragma omp parallel num_threads(l->threads) if (l->threads > 1)
    {
        const int thread = omp_get_thread_num(), threads = omp_get_num_threads();
        FN(csr_lines)
        (p->a_dtype, l->operands[0], p->a.row_stride, p->a.col_stride, p->k, s.depth, p->m * thread / threads,
         p->m * (thread + 1) / threads, x);
        FN(csr_lines)
        (p->b_dtype, l->operands[1], p->b.col_stride, p->b.row_stride, p->k, s.depth, p->n * thread / threads,
         p->n * (thread + 1) / threads, y);
#pragma omp barrier
        const int64_t bc = j.a->block_cols, some = sat_max(1, CSR_ENTRIES / bc);
        const int64_t last = csr_first_row(j.a->row_ptr, j.a->grid_rows, thread + 1, threads);
        for (int64_t row = csr_first_row(j.a->row_ptr, j.a->grid_rows, thread, threads); row < last; row++)
            for (int64_t in = 0; in < j.a->block_rows; in++)
                for (int64_t t = j.a->row_ptr[row], end = j.a->row_end[row]; t < end; t += some)
                    for (int64_t first = 0; first < bc; first += CSR_ENTRIES)
                        FN(csr_some)(&j, row, in, t, sat_min(some, end - t), first, CSR_ENTRIES);
    }
    return SAT_OK;
}

#undef FN
