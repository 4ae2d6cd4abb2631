/* The matmul's check on the device: what src/ops/matmul_check.c does, read there for why, without moving a matrix to
 * the host. */
#include "backend/cuda_check.cuh"

static const double WORK = 4e9; /* multiply-adds for rows that are worked out */

struct expectation : expectation_base {
    uint64_t seed;
    int64_t step, groups;        /* one row of `step` */
    double *sum, *low, *squares; /* [batch][groups][n]; low: where the compute type is f64 */
    int64_t *depth;              /* [groups] */
};

/* What the kernels get: one batch item of a problem. */
struct item {
    sat_rows r;
    sat_problem p;
    const void *values, *b, *c, *before, *bias, *sums;
    sat_fill fills[2];
    planted_specials specials;
    expectation e;
    outcome *result;
    int64_t z;
};

static item make_item(const sat_trial *t, int64_t z) {
    const sat_problem *p = t->problem;
    item x = {};
    x.r = sat_device_rows(p, t->pattern), x.p = *p, x.z = z;
    x.values = sat_at(p->a_dtype, t->operands[0], z * p->a.batch_stride);
    x.b = sat_at(p->b_dtype, t->operands[1], z * p->b.batch_stride);
    x.c = sat_at(p->c_dtype, t->operands[2], z * p->c.batch_stride);
    x.before = t->before ? sat_at(p->c_dtype, t->before, z * p->c.batch_stride) : NULL;
    x.bias = p->matmul.bias == SAT_BIAS_ROW ? t->operands[3] : NULL;
    x.sums = t->sums ? sat_at(p->compute_dtype, t->sums, z * p->m * p->n) : NULL;
    x.fills[0] = t->fills[0], x.fills[1] = t->fills[1];
    x.specials = specials_of(t);
    return x;
}

static int64_t step_of(const sat_problem *p, const sat_pattern_view *a) {
    return sat_line_step(p->m, (double)a->stored_elements * (double)p->n * (double)p->batch, WORK);
}

static size_t bytes(const sat_problem *p, const sat_pattern_view *a, sat_probe probe) {
    if (probe == SAT_PROBE_STRUCTURE) return (size_t)(p->k + p->m + 1) * 8 + 4096;
    int64_t groups = sat_line_groups(p->m, step_of(p, a));
    return (size_t)(3 * p->batch * groups * p->n + groups) * sizeof(double) + 4096;
}

/* Element (i, k0 + k) of op(A), in block t of row i's block row. */
__device__ static double value_at(const item &x, int64_t t, int64_t i, int64_t k) {
    int64_t at = sat_block_of(&x.r, t) * x.r.block_elements + i % x.r.br * x.r.row_step + k * x.r.col_step;
    return sat_device_load(x.p.a_dtype, x.values, at);
}

/* beta*before + bias of one element, and the squares of both. */
__device__ static double rest_at(const item &x, int64_t i, int64_t j, double *squares) {
    double bias = x.bias ? sat_device_load(x.p.c_dtype, x.bias, i) : 0, before = 0;
    if (x.before)
        before = x.p.beta * sat_device_load(x.p.c_dtype, x.before, i * x.p.c.row_stride + j * x.p.c.col_stride);
    *squares = bias * bias + before * before;
    return bias + before;
}

/* ---- precision ---- */

/* A thread has one element of the rows that are worked out. */
static __global__ void true_rows(item x) {
    int64_t all = x.e.groups * x.p.n, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < all; at += step) {
        int64_t g = at / x.p.n, j = at % x.p.n, i = sat_line_of_group(x.p.m, x.e.step, x.e.seed, g), depth = 0;
        true_sum sum = {};
        for (int64_t t = x.r.ptr[i / x.r.br]; t < x.r.end[i / x.r.br]; t++) {
            int64_t k0 = x.r.col[t] * x.r.bc, cols = sat_min(x.r.bc, x.r.k - k0);
            for (int64_t k = 0; k < cols; k++) {
                double b = sat_device_load(x.p.b_dtype, x.b, (k0 + k) * x.p.b.row_stride + j * x.p.b.col_stride);
                add_product(&sum, value_at(x, t, i, k), b);
            }
            depth += cols;
        }
        int64_t to = x.z * all + at;
        x.e.sum[to] = sum.sum, x.e.low[to] = sum.low, x.e.squares[to] = sum.squares;
        if (j == 0) x.e.depth[g] = depth;
    }
}

static sat_status expect(const sat_trial *t, sat_probe probe, uint64_t seed, void **out) {
    const sat_problem *p = t->problem;
    int64_t step = step_of(p, t->pattern), groups = sat_line_groups(p->m, step), count = p->batch * groups * p->n;
    bool exact = probe == SAT_PROBE_STRUCTURE;
    int before = sat_cuda_enter(t->device);
    cudaStream_t stream = (cudaStream_t)sat_backend_cuda.stream(t->device);
    expectation *e = make_expectation<expectation>(exact ? 0 : (size_t)(3 * count + groups));
    if (!e) {
        sat_cuda_leave(t->device, before);
        return sat_fail(SAT_OUT_OF_MEMORY, "check: rows of a %lld x %lld output", (long long)p->m, (long long)p->n);
    }
    e->exact = exact, e->seed = seed, e->step = step, e->groups = groups;
    e->sum = e->memory, e->low = e->sum + count, e->squares = e->low + count;
    e->depth = (int64_t *)(e->squares + count);
    for (int64_t z = 0; z < p->batch && !exact && count > 0; z++) {
        item x = make_item(t, z);
        x.e = *e;
        true_rows<<<sat_blocks(groups * p->n, 128), 128, 0, stream>>>(x);
    }
    sat_status status = finish_expectation(e, cudaGetLastError(), stream, out);
    sat_cuda_leave(t->device, before);
    return status;
}

/* ---- comparing ---- */

enum { WRONG_SUM = 1, EXACT = 2, PRECISION = 3 };

/* What is planted in column j of B reaches row i through its stored blocks. */
__device__ static double with_specials(const item &x, int64_t i, int64_t j, double sum) {
    for (int s = 0; s < x.specials.count; s++) {
        const sat_special &at = x.specials.list[s];
        if (at.col != j || (at.item != x.z && x.p.b.batch_stride != 0)) continue;
        int64_t t = sat_find_block(&x.r, i / x.r.br, at.row / x.r.bc);
        if (t >= 0) sum += value_at(x, t, i, at.row % x.r.bc) * at.value;
    }
    return sum;
}

static __global__ void compare_exactly(item x) {
    int64_t all = x.p.m * x.p.n, step = (int64_t)gridDim.x * blockDim.x;
    bool columns = x.p.c.row_stride == 1; /* neighbouring threads read neighbouring elements */
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < all; at += step) {
        int64_t i = columns ? at % x.p.m : at / x.p.n, j = columns ? at / x.p.m : at % x.p.n;
        double got = sat_device_load(x.p.c_dtype, x.c, i * x.p.c.row_stride + j * x.p.c.col_stride), squares;
        double sum = with_specials(x, i, j, sat_device_load(x.p.compute_dtype, x.sums, i * x.p.n + j));
        double rest = rest_at(x, i, j, &squares), want = sat_exact_element(&x.p, sum, rest);
        if (!sat_equal(got, want)) note(x.result, EXACT, i, j, got, want, sat_exact_slack(&x.p, sum, rest, want), 0);
    }
}

static __global__ void compare_precisely(item x) {
    int64_t all = x.e.groups * x.p.n, step = (int64_t)gridDim.x * blockDim.x;
    sat_squares mine = {};
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < all; at += step) {
        int64_t g = at / x.p.n, j = at % x.p.n, i = sat_line_of_group(x.p.m, x.e.step, x.e.seed, g),
                from = x.z * all + at;
        double got = sat_device_load(x.p.c_dtype, x.c, i * x.p.c.row_stride + j * x.p.c.col_stride), squares;
        true_sum sum = {x.e.sum[from], x.e.low[from], x.e.squares[from]};
        double rest = rest_at(x, i, j, &squares);
        sat_loss loss = sat_loss_of_sum(&x.p, SAT_CUDA, x.e.depth[g], x.p.batch * all);
        note_precisely(x.result, PRECISION, i, j, x.p, loss, got, sum, rest, squares, &mine);
    }
    add_squares(x.result, mine);
}

static void words(char *to, size_t size, const outcome *o) {
    if (o->kind == WRONG_SUM) snprintf(to, size, "the sums of row %lld are not those of A*B", o->line);
    else if (o->kind == EXACT)
        snprintf(to, size, "row %lld, column %lld: %.9g where %.9g is exact", o->line, o->column, o->got, o->want);
    else
        snprintf(to, size, "row %lld, column %lld: off by %.3g where rounding allows %.3g", o->line, o->column,
                 fabs(o->got - o->want), o->bound);
}

static sat_status compare(const sat_trial *t, const void *expectation_, sat_finding *finding) {
    const expectation *e = (const expectation *)expectation_;
    const sat_problem *p = t->problem;
    int before = sat_cuda_enter(t->device);
    cudaStream_t stream = (cudaStream_t)sat_backend_cuda.stream(t->device);
    (void)cudaMemsetAsync(e->result, 0, sizeof *e->result, stream);
    for (int64_t z = 0; z < p->batch && p->m * p->n > 0; z++) {
        item x = make_item(t, z);
        x.e = *e, x.result = e->result;
        if (e->exact) compare_exactly<<<sat_blocks(sat_min(p->m * p->n, 1 << 24), 256), 256, 0, stream>>>(x);
        else compare_precisely<<<sat_blocks(e->groups * p->n, 256), 256, 0, stream>>>(x);
    }
    sat_status status = fetch_outcome(e->result, stream, words, finding);
    sat_cuda_leave(t->device, before);
    return status;
}

/* ---- proving the sums ---- */

static __global__ void fold(item x, sat_dtype type, const void *from, sat_layout layout, int64_t rows, double scale,
                            uint64_t seed, unsigned long long *to) {
    fold_rows(x.result, WRONG_SUM, type, from, layout, 1, rows, x.p.n, scale, seed, to);
}

/* A warp has a row of op(A). */
static __global__ void prove_rows(item x, const unsigned long long *folded, const unsigned long long *sums) {
    int64_t lane = threadIdx.x % 32, warps = (int64_t)gridDim.x * (blockDim.x / 32);
    for (int64_t i = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; i < x.p.m; i += warps) {
        uint64_t sum = 0, value;
        for (int64_t t = x.r.ptr[i / x.r.br]; t < x.r.end[i / x.r.br]; t++) {
            int64_t k0 = x.r.col[t] * x.r.bc, cols = sat_min(x.r.bc, x.r.k - k0);
            for (int64_t k = lane; k < cols; k += 32) {
                (void)sat_integer(value_at(x, t, i, k), x.fills[0].scale, &value);
                sum += value * folded[k0 + k];
            }
        }
        sum = warp_sum(sum);
        if (lane == 0 && sum != sums[i]) note(x.result, WRONG_SUM, i, 0, 1, 0, 0, 0);
    }
}

static sat_status prove(const sat_trial *t, uint64_t seed, sat_finding *finding) {
    const sat_problem *p = t->problem;
    int before = sat_cuda_enter(t->device);
    cudaStream_t stream = (cudaStream_t)sat_backend_cuda.stream(t->device);
    expectation *e = make_expectation<expectation>((size_t)(p->k + p->m + 1));
    sat_status status = SAT_OK;
    *finding = (sat_finding){};
    if (!e)
        status = sat_fail(SAT_OUT_OF_MEMORY, "check: a proof of %lld x %lld sums", (long long)p->m, (long long)p->n);
    else (void)cudaMemsetAsync(e->result, 0, sizeof *e->result, stream);
    for (int64_t z = 0; z < p->batch && e && p->m * p->n > 0; z++) {
        item x = make_item(t, z);
        x.result = e->result;
        unsigned long long *folded = (unsigned long long *)e->memory, *sums = folded + p->k;
        sat_layout plain = {p->n, 1, 0};
        double scale = t->fills[0].scale * t->fills[1].scale;
        (void)cudaMemsetAsync(folded, 0, (size_t)(p->k + p->m) * 8, stream);
        if (p->k > 0)
            fold<<<sat_blocks(sat_tiles(p->k) * sat_tiles(p->n), 1), 128, 0, stream>>>(x, p->b_dtype, x.b, p->b, p->k,
                                                                                       t->fills[1].scale, seed, folded);
        fold<<<sat_blocks(sat_tiles(p->m) * sat_tiles(p->n), 1), 128, 0, stream>>>(x, p->compute_dtype, x.sums, plain,
                                                                                   p->m, scale, seed, sums);
        prove_rows<<<sat_blocks(p->m, 4), 128, 0, stream>>>(x, folded, sums);
    }
    if (e) status = fetch_outcome(e->result, stream, words, finding);
    free_expectation(e);
    sat_cuda_leave(t->device, before);
    return status;
}

extern "C" const sat_checker sat_cuda_matmul_check = {bytes, expect, compare, free_expectation, prove};
