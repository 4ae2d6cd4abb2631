/* The sampled product's check on the device: what src/ops/sampled_check.c does, read there for why. */
#include "backend/cuda_check.cuh"

enum { WIDE = 16, ROW = 1, COLUMN = 2, PADDING = 3 };

struct expectation : expectation_base {
    uint64_t seed;
    bool both;                                /* the left side too */
    double *right, *right_rest, *right_scale; /* [batch][stored_blocks][block_rows] */
    double *left, *left_rest, *left_scale;    /* [batch][stored_blocks][block_cols] */
};

struct item {
    sat_pattern_view a;
    sat_problem p;
    const void *x, *y, *before, *s;
    expectation e;
    double *folded, *magnitude; /* right: Y_J r, [grid_cols][k]; left: l^T X_I, [grid_rows][k] */
    bool flipped;
    int64_t z;
};

static size_t bytes(const sat_problem *p, const sat_pattern_view *a, sat_probe probe) {
    (void)probe;
    double per_block = 3 * (double)(a->block_rows + (a->block_cols > WIDE ? a->block_cols : 0));
    double work = 2 * (double)p->k * (double)sat_max(a->grid_cols, a->grid_rows);
    return (size_t)(((double)a->stored_blocks * per_block * (double)p->batch + work) * 8) + 4096;
}

/* ---- what a right result must show ---- */

__device__ static double x_at(const item &w, int64_t i, int64_t k) {
    return sat_device_load(w.p.a_dtype, w.x, i * w.p.a.row_stride + k * w.p.a.col_stride);
}

__device__ static double y_at(const item &w, int64_t k, int64_t j) {
    return sat_device_load(w.p.b_dtype, w.y, k * w.p.b.row_stride + j * w.p.b.col_stride);
}

static __global__ void fold(item w, bool right) {
    int64_t groups = right ? w.a.grid_cols : w.a.grid_rows, width = right ? w.a.block_cols : w.a.block_rows;
    int64_t lines = right ? w.p.n : w.p.m, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < groups * w.p.k; at += step) {
        int64_t g = at / w.p.k, k = at % w.p.k;
        double sum = 0, magnitude = 0;
        for (int64_t i = g * width; i < sat_min((g + 1) * width, lines); i++) {
            double v = right ? y_at(w, k, i) : x_at(w, i, k);
            sum += sat_sign(right ? w.e.seed : ~w.e.seed, i) * v, magnitude += fabs(v);
        }
        w.folded[at] = sum, w.magnitude[at] = magnitude;
    }
}

/* A CTA takes a block row, a warp a line of one of its blocks: a row (right) or a column of it. */
static __global__ void project(item w, bool right) {
    int64_t width = right ? w.a.block_rows : w.a.block_cols, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    for (int64_t g = blockIdx.x; g < w.a.grid_rows; g += gridDim.x) {
        int64_t first = w.a.device_row_ptr[g], count = w.a.device_row_ptr[g + 1] - first;
        for (int64_t at = threadIdx.x / 32; at < count * width; at += warps) {
            int64_t t = first + at / width, column = w.a.device_col_idx[t];
            int64_t line = (right ? g : column) * width + at % width, other = right ? column : g;
            if (line >= (right ? w.p.m : w.p.n)) continue;
            double sum = 0, magnitude = 0;
            for (int64_t k = lane; k < w.p.k; k += 32) {
                double v = right ? x_at(w, line, k) : y_at(w, k, line);
                sum += v * w.folded[other * w.p.k + k], magnitude += fabs(v) * w.magnitude[other * w.p.k + k];
            }
            sum = warp_sum(sum), magnitude = warp_sum(magnitude);
            int64_t to = (w.z * w.a.stored_blocks + first) * width + at;
            if (lane == 0) {
                (right ? w.e.right : w.e.left)[to] = w.p.alpha * sum;
                (right ? w.e.right_scale : w.e.left_scale)[to] = fabs(w.p.alpha) * magnitude;
            }
        }
    }
}

/* One line of one block of `values`: its signed sum and magnitude; false where the line is beyond the matrix. */
__device__ static bool fold_line(const item &w, const void *values, int64_t g, int64_t t, int64_t in, bool right,
                                 double *sum, double *magnitude, bool *padding) {
    int64_t row0 = g * w.a.block_rows, col0 = (int64_t)w.a.device_col_idx[t] * w.a.block_cols;
    int64_t other = right ? w.a.block_cols : w.a.block_rows;
    *sum = *magnitude = 0, *padding = true;
    for (int64_t e = 0; e < other; e++) {
        int64_t i = right ? in : e, j = right ? e : in;
        double v = sat_device_load(w.p.c_dtype, values, (t * w.a.block_rows + i) * w.a.block_cols + j);
        if (row0 + i >= w.a.rows || col0 + j >= w.a.cols) {
            *padding = *padding && v == 0;
            continue;
        }
        *sum += (right ? sat_sign(w.e.seed, col0 + j) : sat_sign(~w.e.seed, row0 + i)) * v;
        *magnitude += fabs(v);
    }
    return right ? row0 + in < w.a.rows : col0 + in < w.a.cols;
}

static __global__ void add_rest(item w, bool right) {
    int64_t width = right ? w.a.block_rows : w.a.block_cols;
    for (int64_t g = blockIdx.x; g < w.a.grid_rows; g += gridDim.x) {
        int64_t first = w.a.device_row_ptr[g], count = w.a.device_row_ptr[g + 1] - first;
        for (int64_t at = threadIdx.x; at < count * width; at += blockDim.x) {
            double sum, magnitude;
            bool padding;
            fold_line(w, w.before, g, first + at / width, at % width, right, &sum, &magnitude, &padding);
            int64_t to = (w.z * w.a.stored_blocks + first) * width + at;
            (right ? w.e.right_rest : w.e.left_rest)[to] = w.p.beta * sum;
            (right ? w.e.right_scale : w.e.left_scale)[to] += fabs(w.p.beta) * magnitude;
        }
    }
}

/* ---- comparing ---- */

static __global__ void compare_lines(item w, bool right) {
    int64_t width = right ? w.a.block_rows : w.a.block_cols, other = right ? w.a.block_cols : w.a.block_rows;
    for (int64_t g = blockIdx.x; g < w.a.grid_rows; g += gridDim.x) {
        int64_t first = w.a.device_row_ptr[g], count = w.a.device_row_ptr[g + 1] - first;
        for (int64_t at = threadIdx.x; at < count * width; at += blockDim.x) {
            double got, shown;
            bool padding;
            int64_t t = first + at / width, to = (w.z * w.a.stored_blocks + first) * width + at;
            bool inside = fold_line(w, w.s, g, t, at % width, right, &got, &shown, &padding);
            if (!padding) note(w.e.result, PADDING, 0, t, 0, 1, 0, 0, 0);
            if (!inside) continue;
            double product = (right ? w.e.right : w.e.left)[to], scale = (right ? w.e.right_scale : w.e.left_scale)[to];
            double want = (w.flipped ? -product : product) + (right ? w.e.right_rest : w.e.left_rest)[to];
            double bound = sat_allowance(&w.p, w.p.k, scale, shown, (double)other);
            note(w.e.result, right ? ROW : COLUMN, at % width, t, 0, got, want, bound, scale);
        }
    }
}

/* ---- the host's side ---- */

static item make_item(const sat_trial *t, const expectation *e, int64_t z) {
    const sat_problem *p = t->problem;
    item w = {};
    w.a = *t->pattern, w.p = *p, w.e = *e, w.z = z, w.flipped = t->flipped;
    w.x = sat_at(p->a_dtype, t->operands[0], z * p->a.batch_stride);
    w.y = sat_at(p->b_dtype, t->operands[1], z * p->b.batch_stride);
    w.s = sat_at(p->c_dtype, t->operands[2], z * p->c.batch_stride);
    w.before = t->before ? sat_at(p->c_dtype, t->before, z * p->c.batch_stride) : NULL;
    return w;
}

static sat_status expect(const sat_trial *t, sat_probe probe, uint64_t seed, void **out) {
    (void)probe; /* there is no activation here */
    const sat_problem *p = t->problem;
    const sat_pattern_view *a = t->pattern;
    bool both = a->block_cols > WIDE;
    int64_t right = p->batch * a->stored_blocks * a->block_rows, groups = sat_max(a->grid_cols, a->grid_rows);
    int64_t left = both ? p->batch * a->stored_blocks * a->block_cols : 0;
    int before = sat_cuda_enter(t->device);
    cudaStream_t stream = (cudaStream_t)sat_backend_cuda.stream(t->device);
    size_t doubles = (size_t)(3 * (right + left) + 2 * groups * p->k);
    expectation *e = make_expectation<expectation>(doubles);
    if (!e) {
        sat_cuda_leave(t->device, before);
        return sat_fail(SAT_OUT_OF_MEMORY, "check: expectation of %lld stored blocks", (long long)a->stored_blocks);
    }
    e->seed = seed, e->both = both;
    e->right = e->memory, e->right_rest = e->right + right, e->right_scale = e->right_rest + right;
    e->left = e->right_scale + right, e->left_rest = e->left + left, e->left_scale = e->left_rest + left;
    double *work = e->left_scale + left;
    cudaError_t error = cudaMemsetAsync(e->memory, 0, doubles * sizeof(double), stream);
    unsigned rows = sat_blocks(a->grid_rows, 1);
    for (int64_t z = 0; z < p->batch && error == cudaSuccess && a->stored_blocks > 0; z++) {
        item w = make_item(t, e, z);
        w.folded = work, w.magnitude = work + groups * p->k;
        for (int side = 0; side < (both ? 2 : 1); side++) {
            if (p->k > 0) {
                fold<<<sat_blocks(groups * p->k, 256), 256, 0, stream>>>(w, side == 0);
                project<<<rows, 256, 0, stream>>>(w, side == 0);
            }
            if (w.before) add_rest<<<rows, 128, 0, stream>>>(w, side == 0);
        }
        error = cudaGetLastError();
    }
    sat_status status = finish_expectation(e, error, stream, out);
    sat_cuda_leave(t->device, before);
    return status;
}

static void words(char *to, size_t size, const outcome *o) {
    if (o->kind == PADDING) snprintf(to, size, "block %lld: not zero beyond the matrix", o->from);
    else
        snprintf(to, size, "block %lld, %s %lld: off by %.3g where rounding allows %.3g", o->from,
                 o->kind == ROW ? "row" : "column", o->line, o->off, o->bound);
}

static sat_status compare(const sat_trial *t, const void *expectation_, sat_finding *finding) {
    const expectation *e = (const expectation *)expectation_;
    int before = sat_cuda_enter(t->device);
    cudaStream_t stream = (cudaStream_t)sat_backend_cuda.stream(t->device);
    (void)cudaMemsetAsync(e->result, 0, sizeof *e->result, stream);
    for (int64_t z = 0; z < t->problem->batch && t->pattern->stored_blocks > 0; z++) {
        item w = make_item(t, e, z);
        for (int side = 0; side < (e->both ? 2 : 1); side++)
            compare_lines<<<sat_blocks(t->pattern->grid_rows, 1), 128, 0, stream>>>(w, side == 0);
    }
    sat_status status = fetch_outcome(e->result, stream, words, finding);
    sat_cuda_leave(t->device, before);
    return status;
}

extern "C" const sat_checker sat_cuda_sampled_check = {bytes, expect, compare, free_expectation};
