/* The sampled product's check on the device: what src/ops/sampled_check.c does, read there for why. */
#include "backend/cuda_check.cuh"

static const double WORK = 4e9; /* multiply-adds for lines that are worked out */

struct expectation : expectation_base {
    uint64_t seed;
    int64_t step, groups;        /* one line, a row of a stored block, of `step` */
    double *sum, *low, *squares; /* [batch][groups][block_cols] */
};

struct item {
    sat_pattern_view a;
    sat_problem p;
    const void *x, *y, *s, *before, *sums;
    sat_fill fills[2];
    planted_specials specials;
    expectation e;
    outcome *result;
    int64_t z;
};

static item make_item(const sat_trial *t, int64_t z) {
    const sat_problem *p = t->problem;
    int64_t stored = t->pattern->stored_blocks * t->pattern->block_rows * t->pattern->block_cols;
    item w = {};
    w.a = *t->pattern, w.p = *p, w.z = z;
    w.x = sat_at(p->a_dtype, t->operands[0], z * p->a.batch_stride);
    w.y = sat_at(p->b_dtype, t->operands[1], z * p->b.batch_stride);
    w.s = sat_at(p->c_dtype, t->operands[2], z * p->c.batch_stride);
    w.before = t->before ? sat_at(p->c_dtype, t->before, z * p->c.batch_stride) : NULL;
    w.sums = t->sums ? sat_at(p->compute_dtype, t->sums, z * stored) : NULL;
    w.fills[0] = t->fills[0], w.fills[1] = t->fills[1];
    w.specials = specials_of(t);
    return w;
}

static int64_t line_count(const sat_pattern_view *a) { return a->stored_blocks * a->block_rows; }

static int64_t step_of(const sat_problem *p, const sat_pattern_view *a) {
    return sat_line_step(line_count(a), (double)a->stored_elements * (double)p->k * (double)p->batch, WORK);
}

static size_t bytes(const sat_problem *p, const sat_pattern_view *a, sat_probe probe) {
    if (probe == SAT_PROBE_STRUCTURE) return (size_t)((a->grid_rows + a->grid_cols) * p->k + 1) * 8 + 4096;
    return (size_t)(3 * p->batch * sat_line_groups(line_count(a), step_of(p, a)) * a->block_cols) * 8 + 4096;
}

__device__ static double x_at(const item &w, int64_t i, int64_t k) {
    return sat_device_load(w.p.a_dtype, w.x, i * w.p.a.row_stride + k * w.p.a.col_stride);
}

__device__ static double y_at(const item &w, int64_t k, int64_t j) {
    return sat_device_load(w.p.b_dtype, w.y, k * w.p.b.row_stride + j * w.p.b.col_stride);
}

__device__ static int64_t row_of(const item &w, int64_t block) {
    return sat_row_of_block(w.a.device_row_ptr, w.a.device_row_end, w.a.grid_rows, block);
}

/* Row `row` and column `col` of the matrix where element `in` of a line is; false: beyond it, or no row's. */
__device__ static bool place_of(const item &w, int64_t line, int64_t in, int64_t *row, int64_t *col) {
    int64_t block = line / w.a.block_rows, g = row_of(w, block);
    *row = g * w.a.block_rows + line % w.a.block_rows;
    *col = w.a.device_col_idx[block] * w.a.block_cols + in;
    return g >= 0 && *row < w.a.rows && *col < w.a.cols;
}

/* ---- precision ---- */

/* A warp has one element of the lines that are worked out; its lanes share the depth. */
static __global__ void true_lines(item w) {
    int64_t width = w.a.block_cols, all = w.e.groups * width, lane = threadIdx.x % 32;
    int64_t warps = (int64_t)gridDim.x * (blockDim.x / 32), row, col;
    for (int64_t at = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; at < all; at += warps) {
        int64_t line = sat_line_of_group(w.a.stored_blocks * w.a.block_rows, w.e.step, w.e.seed, at / width);
        true_sum sum = {};
        if (place_of(w, line, at % width, &row, &col))
            for (int64_t k = lane; k < w.p.k; k += 32) add_product(&sum, x_at(w, row, k), y_at(w, k, col));
        sum = warp_true_sum(sum);
        int64_t to = w.z * all + at;
        if (lane == 0) w.e.sum[to] = sum.sum, w.e.low[to] = sum.low, w.e.squares[to] = sum.squares;
    }
}

static sat_status expect(const sat_trial *t, sat_probe probe, uint64_t seed, void **out) {
    const sat_problem *p = t->problem;
    const sat_pattern_view *a = t->pattern;
    int64_t step = step_of(p, a), groups = sat_line_groups(line_count(a), step),
            count = p->batch * groups * a->block_cols;
    bool exact = probe == SAT_PROBE_STRUCTURE;
    int before = sat_cuda_enter(t->device);
    cudaStream_t stream = (cudaStream_t)sat_backend_cuda.stream(t->device);
    expectation *e = make_expectation<expectation>(exact ? 0 : (size_t)(3 * count));
    if (!e) {
        sat_cuda_leave(t->device, before);
        return sat_fail(SAT_OUT_OF_MEMORY, "check: lines of %lld stored blocks", (long long)a->stored_blocks);
    }
    e->exact = exact, e->seed = seed, e->step = step, e->groups = groups;
    e->sum = e->memory, e->low = e->sum + count, e->squares = e->low + count;
    for (int64_t z = 0; z < p->batch && !exact && count > 0; z++) {
        item w = make_item(t, z);
        w.e = *e;
        true_lines<<<sat_blocks(groups * a->block_cols, 8), 256, 0, stream>>>(w);
    }
    sat_status status = finish_expectation(e, cudaGetLastError(), stream, out);
    sat_cuda_leave(t->device, before);
    return status;
}

/* ---- comparing ---- */

enum { WRONG_SUM = 1, EXACT = 2, PRECISION = 3 };

__device__ static double rest_at(const item &w, int64_t at) {
    return w.before ? w.p.beta * sat_device_load(w.p.c_dtype, w.before, at) : 0;
}

/* What is planted in row i of X or in column j of Y reaches element (i, j). */
__device__ static double with_specials(const item &w, int64_t i, int64_t j, double sum) {
    for (int s = 0; s < w.specials.count; s++) {
        const sat_special &at = w.specials.list[s];
        bool left = at.operand == 0;
        if (at.item != w.z && (left ? w.p.a.batch_stride : w.p.b.batch_stride) != 0) continue;
        if (left ? at.row != i : at.col != j) continue;
        int64_t k = left ? at.col : at.row;
        sum += x_at(w, i, k) * y_at(w, k, j);
    }
    return sum;
}

static __global__ void compare_exactly(item w) {
    int64_t width = w.a.block_cols, all = w.a.stored_blocks * w.a.block_rows * width;
    int64_t step = (int64_t)gridDim.x * blockDim.x, row, col;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < all; at += step) {
        bool inside = place_of(w, at / width, at % width, &row, &col);
        double got = sat_device_load(w.p.c_dtype, w.s, at), sum = 0, rest = 0, want = 0, slack = 0;
        if (inside) { /* what is beyond the matrix is zero */
            sum = with_specials(w, row, col, sat_device_load(w.p.compute_dtype, w.sums, at)), rest = rest_at(w, at);
            want = sat_exact_element(&w.p, sum, rest), slack = sat_exact_slack(&w.p, sum, rest, want);
        }
        if (!sat_equal(got, want)) note(w.result, EXACT, at / width, at % width, got, want, slack, 0);
    }
}

static __global__ void compare_precisely(item w) {
    int64_t width = w.a.block_cols, all = w.e.groups * width, step = (int64_t)gridDim.x * blockDim.x, row, col;
    sat_squares mine = {};
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < all; at += step) {
        int64_t line = sat_line_of_group(w.a.stored_blocks * w.a.block_rows, w.e.step, w.e.seed, at / width);
        int64_t from = w.z * all + at, here = line * width + at % width;
        if (!place_of(w, line, at % width, &row, &col)) continue;
        true_sum sum = {w.e.sum[from], w.e.low[from], w.e.squares[from]};
        double rest = rest_at(w, here), got = sat_device_load(w.p.c_dtype, w.s, here);
        sat_loss loss = sat_loss_of_sum(&w.p, SAT_CUDA, w.p.k, w.p.batch * all);
        note_precisely(w.result, PRECISION, line, at % width, w.p, loss, got, sum, rest, rest * rest, &mine);
    }
    add_squares(w.result, mine);
}

static void words(char *to, size_t size, const outcome *o) {
    if (o->kind == WRONG_SUM) snprintf(to, size, "the sums of block %lld are not those of X*Y", o->line);
    else if (o->kind == EXACT)
        snprintf(to, size, "line %lld of the stored blocks, column %lld: %.9g where %.9g is exact", o->line, o->column,
                 o->got, o->want);
    else
        snprintf(to, size, "line %lld of the stored blocks, column %lld: off by %.3g where rounding allows %.3g",
                 o->line, o->column, fabs(o->got - o->want), o->bound);
}

static sat_status compare(const sat_trial *t, const void *expectation_, sat_finding *finding) {
    const expectation *e = (const expectation *)expectation_;
    const sat_pattern_view *a = t->pattern;
    int64_t elements = line_count(a) * a->block_cols;
    int before = sat_cuda_enter(t->device);
    cudaStream_t stream = (cudaStream_t)sat_backend_cuda.stream(t->device);
    (void)cudaMemsetAsync(e->result, 0, sizeof *e->result, stream);
    for (int64_t z = 0; z < t->problem->batch && elements > 0; z++) {
        item w = make_item(t, z);
        w.e = *e, w.result = e->result;
        if (e->exact) compare_exactly<<<sat_blocks(sat_min(elements, 1 << 24), 256), 256, 0, stream>>>(w);
        else compare_precisely<<<sat_blocks(e->groups * a->block_cols, 256), 256, 0, stream>>>(w);
    }
    sat_status status = fetch_outcome(e->result, stream, words, finding);
    sat_cuda_leave(t->device, before);
    return status;
}

/* ---- proving the sums ---- */

/* l^T*X_I of every block row, or Y_J*r of every block column: [groups][k]. */
static __global__ void fold(item w, bool right, uint64_t seed, uint64_t *to) {
    int64_t groups = right ? w.a.grid_cols : w.a.grid_rows, width = right ? w.a.block_cols : w.a.block_rows;
    int64_t lines = right ? w.p.n : w.p.m, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < groups * w.p.k; at += step) {
        int64_t g = at / w.p.k, k = at % w.p.k;
        uint64_t sum = 0, value;
        for (int64_t i = g * width; i < sat_min((g + 1) * width, lines); i++) {
            (void)sat_integer(right ? y_at(w, k, i) : x_at(w, i, k), w.fills[right].scale, &value);
            sum += value * sat_mix(seed + (uint64_t)i);
        }
        to[at] = sum;
    }
}

/* A warp has a stored block: l^T*S_t*r against (l^T*X_I)*(Y_J*r). */
static __global__ void prove_blocks(item w, const uint64_t *left, const uint64_t *right, uint64_t seed) {
    int64_t lane = threadIdx.x % 32, warps = (int64_t)gridDim.x * (blockDim.x / 32);
    int64_t area = w.a.block_rows * w.a.block_cols, row, col;
    double scale = w.fills[0].scale * w.fills[1].scale;
    for (int64_t t = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; t < w.a.stored_blocks; t += warps) {
        uint64_t difference = 0, value;
        bool integer = true;
        if (row_of(w, t) < 0) continue;
        for (int64_t e = lane; e < area; e += 32) {
            if (!place_of(w, t * w.a.block_rows + e / w.a.block_cols, e % w.a.block_cols, &row, &col)) continue;
            integer &= sat_integer(sat_device_load(w.p.compute_dtype, w.sums, t * area + e), scale, &value);
            difference += value * sat_mix(seed + (uint64_t)row) * sat_mix(~seed + (uint64_t)col);
        }
        place_of(w, t * w.a.block_rows, 0, &row, &col);
        const uint64_t *l = left + row / w.a.block_rows * w.p.k, *r = right + col / w.a.block_cols * w.p.k;
        for (int64_t k = lane; k < w.p.k; k += 32) difference -= l[k] * r[k];
        difference = warp_sum(difference);
        if (!integer || (lane == 0 && difference != 0)) note(w.result, WRONG_SUM, t, 0, 1, 0, 0, 0);
    }
}

static sat_status prove(const sat_trial *t, uint64_t seed, sat_finding *finding) {
    const sat_problem *p = t->problem;
    const sat_pattern_view *a = t->pattern;
    int before = sat_cuda_enter(t->device);
    cudaStream_t stream = (cudaStream_t)sat_backend_cuda.stream(t->device);
    expectation *e = make_expectation<expectation>((size_t)((a->grid_rows + a->grid_cols) * p->k + 1));
    sat_status status = SAT_OK;
    *finding = (sat_finding){};
    if (!e) status = sat_fail(SAT_OUT_OF_MEMORY, "check: a proof of %lld blocks", (long long)a->stored_blocks);
    else (void)cudaMemsetAsync(e->result, 0, sizeof *e->result, stream);
    for (int64_t z = 0; z < p->batch && e && a->stored_blocks > 0; z++) {
        item w = make_item(t, z);
        w.result = e->result;
        uint64_t *left = (uint64_t *)e->memory, *right = left + a->grid_rows * p->k;
        if (p->k > 0) {
            fold<<<sat_blocks(a->grid_rows * p->k, 256), 256, 0, stream>>>(w, false, seed, left);
            fold<<<sat_blocks(a->grid_cols * p->k, 256), 256, 0, stream>>>(w, true, ~seed, right);
        }
        prove_blocks<<<sat_blocks(a->stored_blocks, 4), 128, 0, stream>>>(w, left, right, seed);
    }
    if (e) status = fetch_outcome(e->result, stream, words, finding);
    free_expectation(e);
    sat_cuda_leave(t->device, before);
    return status;
}

extern "C" const sat_checker sat_cuda_sampled_check = {bytes, expect, compare, free_expectation, prove};
