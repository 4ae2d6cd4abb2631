/* The matmul's check on the device: what src/ops/matmul_check.c does, read there for why, without moving a matrix to
 * the host. */
#include "backend/cuda_check.cuh"

struct expectation : expectation_base {
    sat_probe probe;
    uint64_t seed;
    int64_t row_panels, col_panels;
    double *right, *right_rest, *right_scale; /* [batch][m][col_panels] */
    double *left, *left_rest, *left_scale;    /* [batch][row_panels][n] */
    int64_t *depth;                           /* [m], then the largest of each row panel */
};

/* What the kernels get: one batch item of a problem. */
struct item {
    sat_rows r;
    sat_problem p;
    const void *values, *b, *before, *bias, *c;
    expectation e;
    double *br, *ba; /* B r and |B| r, [k][col_panels] */
    double sign;
    int64_t z;
};

static size_t bytes(const sat_problem *p, const sat_pattern_view *a, sat_probe probe) {
    (void)a, (void)probe;
    double sides = (double)p->m * (double)sat_panels(p->n) + (double)sat_panels(p->m) * (double)p->n;
    return (size_t)((sides * 3 * (double)p->batch + (double)p->m * 2 + 2.0 * (double)p->k * (double)sat_panels(p->n)) *
                    8) +
           4096;
}

/* ---- the weights of the probes ---- */

__device__ static double column_weight(const expectation &e, int64_t j, int64_t n) {
    return sat_weight(e.probe, e.seed, j, n);
}

__device__ static double row_weight(const expectation &e, int64_t i, int64_t m) {
    return sat_weight(e.probe, ~e.seed, i, m);
}

/* ---- what a right result must show ---- */

static __global__ void find_depth(item x) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < x.r.m; i += step) {
        int64_t row = i / x.r.br, depth = 0;
        for (int64_t t = x.r.ptr[row]; t < x.r.ptr[row + 1]; t++) depth += sat_min(x.r.bc, x.r.k - x.r.col[t] * x.r.bc);
        x.e.depth[i] = depth;
        atomicMax((long long *)&x.e.depth[x.r.m + i / SAT_PANEL], (long long)depth);
    }
}

/* B r and |B| r by tiles. */
static __global__ void fold_b(item x) {
    __shared__ double tile[TILE][PITCH];
    int64_t cp = x.e.col_panels, all = sat_panels(x.p.k) * cp;
    for (int64_t at = blockIdx.x; at < all; at += gridDim.x) {
        int64_t k0 = at / cp * TILE, c = at % cp;
        load_tile(tile, x.p.b_dtype, x.b, x.p.b, k0, c * TILE, x.p.k, x.p.n);
        __syncthreads();
        if (threadIdx.x < TILE && k0 + threadIdx.x < x.p.k) {
            double sum = 0, magnitude = 0;
            for (int64_t j = 0; j < sat_min(TILE, x.p.n - c * TILE); j++) {
                double w = column_weight(x.e, c * TILE + j, x.p.n), v = tile[threadIdx.x][j];
                sum += w * v;
                magnitude += fabs(w * v);
            }
            x.br[(k0 + threadIdx.x) * cp + c] = sum, x.ba[(k0 + threadIdx.x) * cp + c] = magnitude;
        }
        __syncthreads();
    }
}

/* beta*C0 + bias of one element: what does not change its sign when A or B does. `magnitude` grows by both. */
__device__ static double rest_at(const item &x, int64_t i, int64_t j, double &magnitude) {
    double bias = x.bias ? sat_device_load(x.p.c_dtype, x.bias, i) : 0, before = 0;
    if (x.before)
        before = x.p.beta * sat_device_load(x.p.c_dtype, x.before, i * x.p.c.row_stride + j * x.p.c.col_stride);
    magnitude += fabs(bias) + fabs(before);
    return bias + before;
}

/* A (B r): a thread has a row and a panel of columns. */
static __global__ void right_side(item x) {
    int64_t cp = x.e.col_panels, all = x.r.m * cp, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < all; at += step) {
        int64_t i = at / cp, c = at % cp, row = i / x.r.br, in_row = i % x.r.br;
        double sum = 0, magnitude = 0;
        for (int64_t t = x.r.ptr[row]; t < x.r.ptr[row + 1]; t++) {
            int64_t k0 = x.r.col[t] * x.r.bc, cols = sat_min(x.r.bc, x.r.k - k0);
            int64_t base = sat_block_of(&x.r, t) * x.r.block_elements + in_row * x.r.row_step;
            for (int64_t k = 0; k < cols; k++) {
                double v = sat_device_load(x.p.a_dtype, x.values, base + k * x.r.col_step);
                sum += v * x.br[(k0 + k) * cp + c];
                magnitude += fabs(v) * x.ba[(k0 + k) * cp + c];
            }
        }
        double rest = 0, rest_magnitude = 0;
        if (x.before || x.bias)
            for (int64_t j = c * TILE; j < sat_min((c + 1) * TILE, x.p.n); j++) {
                double w = column_weight(x.e, j, x.p.n);
                if (w == 0) continue;
                rest += w * rest_at(x, i, j, rest_magnitude);
            }
        int64_t to = x.z * all + at;
        x.e.right[to] = x.p.alpha * sum, x.e.right_rest[to] = rest;
        x.e.right_scale[to] = fabs(x.p.alpha) * magnitude + rest_magnitude;
    }
}

/* (l^T A) B: a thread has a panel of rows and a column. */
static __global__ void left_side(item x) {
    int64_t n = x.p.n, all = x.e.row_panels * n, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < all; at += step) {
        int64_t q = at / n, j = at % n, i0 = q * TILE, i_end = sat_min(i0 + TILE, x.r.m);
        double sum = 0, magnitude = 0, rest = 0, rest_magnitude = 0;
        for (int64_t row = i0 / x.r.br; row * x.r.br < i_end; row++) {
            int64_t from = sat_max(i0, row * x.r.br), to = sat_min(i_end, (row + 1) * x.r.br);
            for (int64_t t = x.r.ptr[row]; t < x.r.ptr[row + 1]; t++) {
                int64_t k0 = x.r.col[t] * x.r.bc, cols = sat_min(x.r.bc, x.r.k - k0);
                int64_t base = sat_block_of(&x.r, t) * x.r.block_elements - row * x.r.br * x.r.row_step;
                for (int64_t k = 0; k < cols; k++) {
                    double folded = 0, absolute = 0;
                    for (int64_t i = from; i < to; i++) {
                        double w = row_weight(x.e, i, x.r.m);
                        if (w == 0) continue;
                        double v = sat_device_load(x.p.a_dtype, x.values, base + i * x.r.row_step + k * x.r.col_step);
                        folded += w * v, absolute += fabs(v);
                    }
                    double b = sat_device_load(x.p.b_dtype, x.b, (k0 + k) * x.p.b.row_stride + j * x.p.b.col_stride);
                    sum += folded * b, magnitude += absolute * fabs(b);
                }
            }
        }
        if (x.before || x.bias)
            for (int64_t i = i0; i < i_end; i++) {
                double w = row_weight(x.e, i, x.r.m);
                if (w == 0) continue;
                rest += w * rest_at(x, i, j, rest_magnitude);
            }
        int64_t to = x.z * all + at;
        x.e.left[to] = x.p.alpha * sum, x.e.left_rest[to] = rest;
        x.e.left_scale[to] = fabs(x.p.alpha) * magnitude + rest_magnitude;
    }
}

/* ---- comparing ---- */

__device__ static double wanted(const item &x, double product, double rest) {
    double v = x.sign * product + rest;
    return x.e.probe == SAT_PROBE_SAMPLES ? sat_act_f64(x.p.activation, v) : v;
}

enum { ROWS = 1, COLUMNS = 2 };

/* One tile of C: half of the threads sum its rows, the others its columns. */
static __global__ void compare_tiles(item x) {
    __shared__ double tile[TILE][PITCH];
    int64_t cp = x.e.col_panels, all = x.e.row_panels * cp, m = x.r.m, n = x.p.n;
    for (int64_t at = blockIdx.x; at < all; at += gridDim.x) {
        int64_t q = at / cp, c = at % cp, i0 = q * TILE, j0 = c * TILE;
        int64_t rows = sat_min(TILE, m - i0), cols = sat_min(TILE, n - j0);
        load_tile(tile, x.p.c_dtype, x.c, x.p.c, i0, j0, m, n);
        __syncthreads();
        double sum = 0, shown = 0;
        if (threadIdx.x < rows) {
            int64_t i = i0 + threadIdx.x, to = (x.z * m + i) * cp + c;
            for (int64_t j = 0; j < cols; j++) {
                double w = column_weight(x.e, j0 + j, n);
                if (w == 0) continue;
                sum += w * tile[threadIdx.x][j], shown += fabs(tile[threadIdx.x][j]);
            }
            double scale = x.e.right_scale[to];
            note(x.e.result, ROWS, i, j0, j0 + cols - 1, sum, wanted(x, x.e.right[to], x.e.right_rest[to]),
                 sat_allowance(&x.p, x.e.depth[i], scale, shown, (double)cols), scale);
        } else if (threadIdx.x >= TILE && threadIdx.x - TILE < cols) {
            int64_t j = j0 + threadIdx.x - TILE, to = (x.z * x.e.row_panels + q) * n + j;
            for (int64_t i = 0; i < rows; i++) {
                double w = row_weight(x.e, i0 + i, m);
                if (w == 0) continue;
                sum += w * tile[i][threadIdx.x - TILE], shown += fabs(tile[i][threadIdx.x - TILE]);
            }
            double scale = x.e.left_scale[to];
            note(x.e.result, COLUMNS, j, i0, i0 + rows - 1, sum, wanted(x, x.e.left[to], x.e.left_rest[to]),
                 sat_allowance(&x.p, x.e.depth[m + q], scale, shown, (double)rows), scale);
        }
        __syncthreads();
    }
}

/* ---- the host's side ---- */

static item make_item(const sat_trial *t, const expectation *e, int64_t z) {
    const sat_problem *p = t->problem;
    item x = {};
    x.r = sat_device_rows(p, t->pattern), x.p = *p, x.e = *e, x.z = z, x.sign = t->flipped ? -1 : 1;
    x.values = sat_at(p->a_dtype, t->operands[0], z * p->a.batch_stride);
    x.b = sat_at(p->b_dtype, t->operands[1], z * p->b.batch_stride);
    x.c = sat_at(p->c_dtype, t->operands[2], z * p->c.batch_stride);
    x.before = t->before ? sat_at(p->c_dtype, t->before, z * p->c.batch_stride) : NULL;
    x.bias = p->bias == SAT_BIAS_ROW ? t->operands[3] : NULL;
    return x;
}

static sat_status expect(const sat_trial *t, sat_probe probe, uint64_t seed, void **out) {
    const sat_problem *p = t->problem;
    int64_t cp = sat_panels(p->n), rp = sat_panels(p->m), right = p->batch * p->m * cp, left = p->batch * rp * p->n;
    int before = sat_cuda_enter(t->device);
    cudaStream_t stream = (cudaStream_t)sat_backend_cuda.stream(t->device);
    size_t doubles = (size_t)(3 * (right + left) + p->m + rp + 2 * p->k * cp);
    expectation *e = make_expectation<expectation>(doubles);
    if (!e) {
        sat_cuda_leave(t->device, before);
        return sat_fail(SAT_OUT_OF_MEMORY, "check: expectation of a %lld x %lld output", (long long)p->m,
                        (long long)p->n);
    }
    e->probe = probe, e->seed = seed, e->col_panels = cp, e->row_panels = rp;
    e->right = e->memory, e->right_rest = e->right + right, e->right_scale = e->right_rest + right;
    e->left = e->right_scale + right, e->left_rest = e->left + left, e->left_scale = e->left_rest + left;
    e->depth = (int64_t *)(e->left_scale + left);
    double *br = (double *)(e->depth + p->m + rp);
    cudaError_t error = cudaMemsetAsync(e->depth, 0, (size_t)(p->m + rp) * 8, stream);
    for (int64_t z = 0; z < p->batch && error == cudaSuccess && p->m * p->n > 0; z++) {
        item x = make_item(t, e, z);
        x.br = br, x.ba = br + p->k * cp;
        if (z == 0) find_depth<<<sat_blocks(p->m, 256), 256, 0, stream>>>(x);
        if (p->k > 0) fold_b<<<sat_blocks(sat_panels(p->k) * cp, 1), 128, 0, stream>>>(x);
        right_side<<<sat_blocks(p->m * cp, 128), 128, 0, stream>>>(x);
        left_side<<<sat_blocks(rp * p->n, 128), 128, 0, stream>>>(x);
        error = cudaGetLastError();
    }
    sat_status status = finish_expectation(e, error, stream, out);
    sat_cuda_leave(t->device, before);
    return status;
}

static void words(char *to, size_t size, const outcome *o) {
    snprintf(to, size, "%s %lld, %s %lld to %lld: off by %.3g where rounding allows %.3g",
             o->kind == ROWS ? "row" : "column", o->line, o->kind == ROWS ? "columns" : "rows", o->from, o->to, o->off,
             o->bound);
}

static sat_status compare(const sat_trial *t, const void *expectation_, sat_finding *finding) {
    const expectation *e = (const expectation *)expectation_;
    int before = sat_cuda_enter(t->device);
    cudaStream_t stream = (cudaStream_t)sat_backend_cuda.stream(t->device);
    (void)cudaMemsetAsync(e->result, 0, sizeof *e->result, stream);
    for (int64_t z = 0; z < t->problem->batch && t->problem->m * t->problem->n > 0; z++)
        compare_tiles<<<sat_blocks(e->row_panels * e->col_panels, 1), 128, 0, stream>>>(make_item(t, e, z));
    sat_status status = fetch_outcome(e->result, stream, words, finding);
    sat_cuda_leave(t->device, before);
    return status;
}

extern "C" const sat_checker sat_cuda_matmul_check = {bytes, expect, compare, free_expectation};
