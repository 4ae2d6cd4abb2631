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
    REAL *sums, *apart, *scratch;
    int64_t first, rows; /* block rows that wait among the sums */
} FN(mine);

/* ---- packing B ---- */

/* One block column of `inside` rows: groups of `together` rows, in each of them column by column, every element
 * `copies` times. */
SK_INLINE void FN(pack_column)(const sat_problem *p, const void *b, int64_t k0, int64_t inside, REAL *to, int64_t b_k,
                               int64_t together, int64_t copies) {
    int64_t rs = p->b.row_stride, cs = p->b.col_stride;
    for (int64_t k = 0; k < inside; k += together, to += b_k)
        for (int64_t n = 0; n < p->n; n++)
            for (int64_t i = 0; i < sat_min(together, inside - k); i++) {
                REAL x = FN(widen)(p->b_dtype, b, (k0 + k + i) * rs + n * cs);
                for (int64_t c = 0; c < copies; c++) to[(n * together + i) * copies + c] = x;
            }
}

static void FN(pack)(const FN(job) * j, int thread, int threads) {
    const sat_problem *p = j->p;
    const sk_plan *s = &j->s;
    const void *b = j->l->operands[1];
    int64_t bc = j->r.bc, groups = (j->r.k + bc - 1) / bc, b_k = s->gb * s->vs;
    bool transposed = p->transpose == SAT_TRANSPOSE;
    int64_t together = transposed ? 1 : s->g, copies = transposed && p->n > 1 ? s->g : 1;
    for (int64_t c = groups * thread / threads; c < groups * (thread + 1) / threads; c++) {
        REAL *to = j->b + c * s->b_step;
        int64_t inside = sat_min(bc, j->r.k - c * bc);
        if (p->n < s->np || inside < bc) memset(to, 0, (size_t)s->b_step * sizeof(REAL));
        if (copies > 1) FN(pack_column)(p, b, c * bc, inside, to, b_k, 1, copies);
        else if (together == 1) FN(pack_column)(p, b, c * bc, inside, to, b_k, 1, 1);
        else FN(pack_column)(p, b, c * bc, inside, to, b_k, together, 1);
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

/* Adds stored blocks [begin, end) of one block row to out, which is one part of their sum. */
static void FN(part)(const FN(job) * j, const FN(mine) * m, int64_t begin, int64_t end, REAL *out) {
    const sat_rows *r = &j->r;
    const sk_plan *s = &j->s;
    FN(run) run = {.b = j->b, .rows = s->rows, .steps = s->steps, .out = out};
    run.far = s->far && end + SK_AHEAD <= r->ptr[r->count];
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
            for (int64_t i = 0; i < (r->block ? run.count : 1); i++) FN(widen_all)
            (j->p->a_dtype, sat_at(j->p->a_dtype, j->l->operands[0], sat_block_of(r, t + i) * r->block_elements),
             m->scratch + i * r->block_elements, r->block_elements * (r->block ? 1 : run.count));
            j->kernel(&run);
        }
    }
    if (whole == end) return;
    FN(copy_edge)(j, sat_block_of(r, whole), m->scratch);
    run.a = m->scratch, run.block = NULL, run.col = r->col + whole, run.count = 1, run.far = false;
    j->kernel(&run);
}

/* Adds stored blocks [begin, end) of one block row to out. A long sum is made of parts. */
static void FN(blocks)(const FN(job) * j, const FN(mine) * m, int64_t begin, int64_t end, REAL *out) {
    const int64_t some = j->s.sum_blocks, size = j->s.sums;
    if (end - begin <= some) {
        FN(part)(j, m, begin, end, out);
        return;
    }
    for (int64_t t = begin; t < end; t += some) {
        memset(m->apart, 0, (size_t)size * sizeof(REAL));
        FN(part)(j, m, t, sat_min(end, t + some), m->apart);
        for (int64_t e = 0; e < size; e++) out[e] += m->apart[e];
    }
}

/* ---- writing C ---- */

/* One row of C from its sums. */
static void FN(write_row)(const FN(job) * j, const REAL *sum, int64_t row) {
    const sat_problem *p = j->p;
    void *c = j->l->operands[2];
    REAL alpha = (REAL)p->alpha, beta = (REAL)p->beta;
    REAL bias = p->bias == SAT_BIAS_ROW ? FN(widen)(p->c_dtype, j->l->operands[3], row) : 0;
    int64_t at = row * p->c.row_stride, step = p->c.col_stride;
    if (sat_dtype_size(p->c_dtype) == sizeof(REAL) && p->activation == SAT_ACT_NONE) { /* no rounding, no branches */
        REAL *to = (REAL *)c + at;
        if (beta == 0)
            for (int64_t n = 0; n < p->n; n++) to[n * step] = alpha * sum[n] + bias;
        else
            for (int64_t n = 0; n < p->n; n++) to[n * step] = alpha * sum[n] + beta * to[n * step] + bias;
        return;
    }
    for (int64_t n = 0; n < p->n; n++, at += step) {
        REAL x = alpha * sum[n] + bias;
        if (beta != 0) x += beta * FN(widen)(p->c_dtype, c, at);
        sat_store(p->c_dtype, c, at, FN(activate)(p->activation, x));
    }
}

/* Adds up each sum's lanes: columns stand lane_n apart, rows that share a vector lane_i. */
SK_INLINE void FN(write_rows)(const FN(job) * j, const REAL *sums, int64_t first, int64_t rows, int add) {
    const sk_plan *s = &j->s;
    for (int64_t i = 0; i < rows; i += s->rows_a_vec, sums += s->vs * s->lanes)
        for (int64_t e = 0; e < sat_min(s->rows_a_vec, rows - i); e++) {
            REAL sum[SK_MAX_N];
            for (int64_t n = 0; n < j->p->n; n++) {
                const REAL *lane = sums + e * s->lane_i + n * s->lane_n;
                REAL x = lane[0];
                for (int k = 1; k < add; k++) x += lane[k];
                sum[n] = x;
            }
            FN(write_row)(j, sum, first + i + e);
        }
}

/* Writes the rows of C that begin at `first`. */
static void FN(write)(const FN(job) * j, const REAL *sums, int64_t first, int64_t rows) {
    rows = sat_min(rows, j->p->m - first);
    switch (j->s.add) {
    case 1: FN(write_rows)(j, sums, first, rows, 1); break;
    case 2: FN(write_rows)(j, sums, first, rows, 2); break;
    case 4: FN(write_rows)(j, sums, first, rows, 4); break;
    case 8: FN(write_rows)(j, sums, first, rows, 8); break;
    default: FN(write_rows)(j, sums, first, rows, 16); break;
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
        FN(mine) m = {.sums = own + thread * (j.s.gather + j.s.apart + j.s.scratch)};
        m.apart = m.sums + j.s.gather, m.scratch = m.apart + j.s.apart;
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
