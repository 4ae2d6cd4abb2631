/* How the skinny families run a product; a template, included once for each element type that is computed in.
 *
 * Threads pack B together, then each takes its share of the block rows. A block row whose blocks outnumber two shares
 * of SK_PARTS is cut at places that depend on the pattern alone, its parts are summed apart and then in order: so the
 * result is the same for any number of threads. 16-bit values are widened a few kilobytes at a time; a block that
 * reaches beyond the matrix is copied with zeros in place of its padding.
 * What the includer must define stands in matmul_skinny_kernels.h; it is undefined again at the end.
 */

#include "matmul_skinny_kernels.h"

typedef struct FN(job) {
    const sat_launch *l;
    const sat_problem *p;
    sat_rows r;
    sk_plan s;
    FN(kernel) kernel;
    REAL *b, *parts;
} FN(job);

typedef struct FN(mine) { /* a thread's own buffers */
    REAL *sums, *scratch;
    int64_t first, rows; /* block rows that wait among the sums */
} FN(mine);

/* ---- packing B ---- */

static void FN(pack)(const FN(job) * j, int thread, int threads) {
    const sat_problem *p = j->p;
    const sk_plan *s = &j->s;
    int64_t bc = j->r.bc, groups = (j->r.k + bc - 1) / bc;
    bool transposed = p->transpose == SAT_TRANSPOSE;
    int64_t b_k = s->gb * s->vs, together = transposed ? 1 : s->g, copies = transposed && s->np > 1 ? s->g : 1;
    for (int64_t c = groups * thread / threads; c < groups * (thread + 1) / threads; c++) {
        REAL *to = j->b + c * s->b_step;
        int64_t inside = sat_min(bc, j->r.k - c * bc);
        if (p->n < s->np || inside < bc) memset(to, 0, (size_t)s->b_step * sizeof(REAL));
        for (int64_t k = 0; k < inside; k++)
            for (int64_t n = 0; n < p->n; n++) {
                int64_t from = (c * bc + k) * p->b.row_stride + n * p->b.col_stride;
                REAL x = FN(widen)(p->b_dtype, j->l->operands[1], from);
                REAL *at = to + k / together * b_k + n * (copies > 1 ? copies : together) + k % together;
                for (int64_t i = 0; i < copies; i++) at[i] = x;
            }
    }
}

/* ---- running blocks ---- */

static void FN(copy_edge)(const FN(job) * j, int64_t block, REAL *to) {
    const sat_rows *r = &j->r;
    memset(to, 0, (size_t)r->block_elements * sizeof(REAL));
    for (int64_t i = 0; i < r->br; i++)
        for (int64_t k = 0; k < j->s.edge_k; k++) {
            int64_t at = i * r->row_step + k * r->col_step;
            to[at] = FN(widen)(j->p->a_dtype, j->l->operands[0], block * r->block_elements + at);
        }
}

/* Adds stored blocks [begin, end) of one block row to out. */
static void FN(blocks)(const FN(job) * j, const FN(mine) * m, int64_t begin, int64_t end, REAL *out) {
    const sat_rows *r = &j->r;
    const sk_plan *s = &j->s;
    FN(run) run = {.b = j->b, .b_step = s->b_step, .elements = r->block_elements, .out = out};
    run.rows = s->rows, run.steps = s->steps;
    int64_t whole = end - (end > begin && r->col[end - 1] == j->s.edge);
    if (sat_dtype_size(j->p->a_dtype) == sizeof(REAL)) {
        const REAL *values = j->l->operands[0];
        run.a = values + (r->block ? 0 : begin * r->block_elements);
        run.block = r->block ? r->block + begin : NULL;
        run.col = r->col + begin, run.count = whole - begin;
        if (run.count > 0) j->kernel(&run);
    } else {
        int64_t batch = sat_max(1, SK_BATCH / r->block_elements);
        run.a = m->scratch;
        for (int64_t t = begin; t < whole; t += batch) {
            run.col = r->col + t, run.count = sat_min(batch, whole - t);
            for (int64_t i = 0; i < (r->block ? run.count : 1); i++)
                FN(widen_all)
                (j->p->a_dtype, sat_at(j->p->a_dtype, j->l->operands[0], sat_block_of(r, t + i) * r->block_elements),
                 m->scratch + i * r->block_elements, r->block_elements * (r->block ? 1 : run.count));
            j->kernel(&run);
        }
    }
    if (whole == end) return;
    FN(copy_edge)(j, sat_block_of(r, whole), m->scratch);
    run.a = m->scratch, run.block = NULL, run.col = r->col + whole, run.count = 1;
    j->kernel(&run);
}

/* ---- writing C ---- */

SK_INLINE REAL FN(finish)(const sat_problem *p, REAL sum, REAL alpha, REAL beta, const void *c, int64_t at,
                          const void *bias, int64_t row) {
    REAL x = alpha * sum;
    if (beta != 0) x += beta * FN(widen)(p->c_dtype, c, at);
    if (bias) x += FN(widen)(p->c_dtype, bias, row);
    return p->activation == SAT_ACT_NONE ? x : FN(activate)(p->activation, x);
}

/* Writes the rows of C that begin at `first` from their sums. */
static void FN(write)(const FN(job) * j, const REAL *sums, int64_t first, int64_t rows) {
    const sat_problem *p = j->p;
    const sk_plan *s = &j->s;
    const void *bias = p->bias == SAT_BIAS_ROW ? j->l->operands[3] : NULL;
    void *c = j->l->operands[2];
    REAL alpha = (REAL)p->alpha, beta = (REAL)p->beta;
    rows = sat_min(rows, p->m - first);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t n = 0; n < p->n; n++) {
            const REAL *lane =
                sums + i / s->rows_a_vec * s->vs * s->lanes + i % s->rows_a_vec * s->lane_i + n * s->lane_n;
            REAL x = lane[0];
            for (int64_t e = 1; e < s->add; e++) x += lane[e];
            int64_t at = (first + i) * p->c.row_stride + n * p->c.col_stride;
            sat_store(p->c_dtype, c, at, FN(finish)(p, x, alpha, beta, c, at, bias, first + i));
        }
}

/* ---- a thread's share ---- */

static void FN(flush)(const FN(job) * j, FN(mine) * m) {
    if (m->rows) FN(write)(j, m->sums, m->first * j->r.br, m->rows * j->r.br);
    m->rows = 0;
}

static void FN(light_row)(const FN(job) * j, FN(mine) * m, int64_t row) {
    if (m->rows == 0) m->first = row;
    REAL *out = m->sums + m->rows * j->s.sums;
    memset(out, 0, (size_t)j->s.sums * sizeof(REAL));
    FN(blocks)(j, m, j->r.ptr[row], j->r.ptr[row + 1], out);
    m->rows++;
    if ((m->rows + 1) * j->s.sums > j->s.gather) FN(flush)(j, m);
}

/* A long block row is cut into `cuts` parts; part i's sums go to a slot of its own. */
static int64_t FN(cuts)(const FN(job) * j, int64_t row) {
    int64_t n = j->r.ptr[row + 1] - j->r.ptr[row];
    return j->s.parts && n >= 2 * j->s.part ? n / j->s.part : 1;
}

static REAL *FN(slot)(const FN(job) * j, int64_t row, int64_t i) {
    return j->parts + (j->r.ptr[row] / j->s.part + i) * j->s.sums;
}

static void FN(share)(const FN(job) * j, FN(mine) * m, const sk_share *s) {
    for (int64_t row = s->first_row; row < j->r.count && sk_cost(&j->r, row) < s->to; row++) {
        int64_t cuts = FN(cuts)(j, row), begin = j->r.ptr[row], n = j->r.ptr[row + 1] - begin;
        if (cuts == 1) {
            if (sk_mine(s, sk_cost(&j->r, row))) FN(light_row)(j, m, row);
            continue;
        }
        FN(flush)(j, m);
        for (int64_t i = 0; i < cuts; i++) {
            int64_t from = begin + n * i / cuts, to = begin + n * (i + 1) / cuts;
            if (!sk_mine(s, from + row)) continue;
            memset(FN(slot)(j, row, i), 0, (size_t)j->s.sums * sizeof(REAL));
            FN(blocks)(j, m, from, to, FN(slot)(j, row, i));
        }
    }
    FN(flush)(j, m);
}

static void FN(join)(const FN(job) * j, const sk_share *s) {
    for (int64_t row = s->first_row; row < j->r.count && sk_cost(&j->r, row) < s->to; row++) {
        int64_t cuts = FN(cuts)(j, row);
        if (cuts == 1 || !sk_mine(s, sk_cost(&j->r, row))) continue;
        REAL *sum = FN(slot)(j, row, 0);
        for (int64_t i = 1; i < cuts; i++)
            for (int64_t e = 0; e < j->s.sums; e++) sum[e] += FN(slot)(j, row, i)[e];
        FN(write)(j, sum, row * j->r.br, j->r.br);
    }
}

/* The kernel for each split of the lanes that sk_plan_lanes makes. */
#define SK_KERNEL(ga, gb, vs, by)                                                                                      \
    static void FN(kernel_##ga##_##gb##_##vs##_##by)(const FN(run) * r) { FN(any)((FN(split)){ga, gb, vs, by}, r); }
SK_SPLITS(SK_KERNEL)

static FN(kernel) FN(pick)(const sk_plan *s) {
    static const struct {
        FN(split) split;
        FN(kernel) kernel;
    } table[] = {
#define SK_ENTRY(ga, gb, vs, by) {{ga, gb, vs, by}, FN(kernel_##ga##_##gb##_##vs##_##by)},
        SK_SPLITS(SK_ENTRY)};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const FN(split) *x = &table[i].split;
        if (x->ga == s->ga && x->gb == s->gb && x->vs == s->vs && x->by == s->by) return table[i].kernel;
    }
    return NULL;
}

static sat_status FN(launch)(const sat_launch *l) {
    FN(job) j = {.l = l, .p = l->problem, .r = sat_op_rows(l->problem, l->pattern)};
    if (j.p->n == 0 || j.p->m == 0) return SAT_OK;
    j.s = sk_make_plan(j.p, l->pattern, SK_WIDTH);
    j.kernel = FN(pick)(&j.s);
    if (!j.kernel) return sat_fail(SAT_UNSUPPORTED, "no kernel splits a vector this way");
    j.b = l->workspace;
    j.parts = j.b + j.s.b_size;
    REAL *own = j.parts + j.s.parts * j.s.sums;
    int wanted = sk_threads(l);
#pragma omp parallel num_threads(wanted) if (wanted > 1)
    {
        int thread = omp_get_thread_num(), threads = omp_get_num_threads();
        FN(mine) m = {.sums = own + thread * (j.s.gather + j.s.scratch)};
        m.scratch = m.sums + j.s.gather;
        sk_share s = sk_deal(&j.r, thread, threads);
        FN(pack)(&j, thread, threads);
#pragma omp barrier
        FN(share)(&j, &m, &s);
        if (j.s.parts) {
#pragma omp barrier
            FN(join)(&j, &s);
        }
    }
    return SAT_OK;
}

#undef REAL
#undef VEC
#undef LANES
#undef FN
#undef SK_SPLITS
#undef SK_KERNEL
#undef SK_ENTRY
