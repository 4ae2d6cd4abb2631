// cuda_sampled_shallow: sums of few products, for any dtype, block shape, stride and alignment. A thread has one column
// of a stored block, or up to eight rows of it, so that an element of Y serves them all; elements of X are the same for
// neighbouring threads. Both are read where they are: so short a product is latency and the bytes of its output, and a
// tile in shared memory would only come between.

#include "kernels/cuda/common/simt_rates.h"
#include "variant.cuh"

enum { THREADS = 256, DEEPEST = 128 };

struct kernel_args {
    const int2 *place; // of each stored block: block row, block column
    const void *x, *y;
    void *s;
    int64_t x_row, x_k, y_col, y_k; // strides, in elements
    int64_t m, n;
    unsigned threads, k;   // threads that have work
    unsigned br, bc;       // of a block
    unsigned rows, groups; // of a thread; of a column of a block
    double alpha, beta;
    sat_dtype dtype; // of S
};

// ---- kernel: threads along a block's columns, then down its groups of rows, then from block to block

template <typename T, typename W, int ROWS>
static __global__ void __launch_bounds__(THREADS) shallow(const __grid_constant__ kernel_args args) {
    griddepcontrol_launch_dependents();
    const unsigned number = blockIdx.x * THREADS + threadIdx.x, group = number / args.bc,
                   in_col = number - group * args.bc, block = group / args.groups,
                   in_row = (group - block * args.groups) * args.rows;
    const bool mine = number < args.threads;
    const int2 place = mine ? args.place[block] : int2();
    griddepcontrol_wait();
    if (!mine) return;

    const int64_t i = (int64_t)place.x * args.br + in_row, j = (int64_t)place.y * args.bc + in_col;
    const int count = (int)min(args.rows, args.br - in_row); // rows that are stored
    const int inside = j < args.n ? (int)max((int64_t)0, min((int64_t)count, args.m - i)) : 0;
    const T *x[ROWS], *y = (const T *)args.y + j * args.y_col;
    W sum[ROWS] = {};
#pragma unroll
    for (int r = 0; r < ROWS; r++) // those beyond the last read it once more: there are not as many predicates as rows
        x[r] = (const T *)args.x + (i + max(0, min(r, inside - 1))) * args.x_row;
    const unsigned depth = inside > 0 ? args.k : 0;
#pragma unroll(ROWS > 4 ? 4 : 8)
    for (unsigned k = 0; k < depth; k++) {
        const W b = (W)y[k * args.y_k];
#pragma unroll
        for (int r = 0; r < ROWS; r++) sum[r] += (W)x[r][k * args.x_k] * b;
    }

    const int64_t to = ((int64_t)block * args.br + in_row) * args.bc + in_col;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (r >= count) continue;
        W value = (W)args.alpha * sum[r];
        if (args.beta != 0) value += (W)args.beta * sat_load_as(W(), args.dtype, args.s, to + r * args.bc);
        sat_store_from(r < inside ? value : W(0), args.dtype, args.s, to + r * args.bc); // beyond the matrix: zero
    }
}

// ---- host: instances

struct instance {
    sat_dtype dtype;
    int rows;
    sat_status (*start)(const sat_launch *, unsigned grid, const kernel_args &);
};

template <typename T, typename W, int ROWS>
static sat_status start(const sat_launch *l, unsigned grid, const kernel_args &args) {
    return sat_start<shallow<T, W, ROWS>>(l, grid, THREADS, 0, args);
}

#define OF_DTYPE(dtype, T, W)                                                                                          \
    {dtype, 1, start<T, W, 1>}, {dtype, 2, start<T, W, 2>}, {dtype, 3, start<T, W, 3>}, {dtype, 4, start<T, W, 4>},    \
        {dtype, 5, start<T, W, 5>}, {dtype, 6, start<T, W, 6>}, {                                                      \
        dtype, 8, start<T, W, 8>                                                                                       \
    }
static const instance instances[] = {OF_DTYPE(SAT_F32, float, float), OF_DTYPE(SAT_F64, double, double),
                                     OF_DTYPE(SAT_F16, __half, float), OF_DTYPE(SAT_BF16, __nv_bfloat16, float)};

// The rows of a thread: as many as leave the device enough threads.
struct shape {
    int64_t rows, groups, threads;
    const instance *kernel;
};

static shape choose(const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    shape s = {};
    for (int64_t most = 8; most >= 1; most /= 2) {
        s.groups = (a->block_rows + most - 1) / most, s.rows = (a->block_rows + s.groups - 1) / s.groups;
        s.threads = a->stored_blocks * s.groups * a->block_cols;
        if (s.threads >= 512 * (int64_t)d->multiprocessors) break;
    }
    for (const instance &x : instances)
        if (!s.kernel && x.dtype == p->a_dtype && x.rows >= s.rows) s.kernel = &x;
    return s;
}

// ---- host: what a variant has

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)d;
    return p->k <= DEEPEST && a->block_rows <= INT32_MAX && a->block_cols <= INT32_MAX &&
           a->stored_elements < INT32_MAX - THREADS;
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    shape s = choose(p, a, d);
    // a load takes a warp's turn at L1; where lanes are on different lines of X or Y, it takes several
    double lanes = (double)sat_min(32, a->block_cols), lines = p->b.col_stride == 1 ? 1 : lanes / 4;
    double loads = (double)s.threads / 32 * (double)p->k * (lines + (double)s.rows * fmax(1, 4 / lanes));
    double batch = (double)p->batch, issue = loads * 1.3 / sat_simt_cycles(d);
    double memory = (sat_bytes(p, a) / batch + 8.0 * (double)a->stored_blocks) / d->memory_rate; // of an item
    return (2e-6 + fmax(issue, memory)) * batch;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)p, (void)d;
    return (size_t)a->stored_blocks * sizeof(int2);
}

static sat_status prepare(const sat_prepare *q, void **state) {
    const sat_pattern_view *a = q->pattern;
    const size_t bytes = (size_t)a->stored_blocks * sizeof(int2);
    int2 *place = (int2 *)malloc(bytes + 1);
    *state = NULL;
    if (!place) return sat_fail(SAT_OUT_OF_MEMORY, "%s: no memory on the host", q->variant->name);
    for (int64_t row = 0; row < a->grid_rows; row++)
        for (int64_t t = a->row_ptr[row]; t < a->row_ptr[row + 1]; t++) place[t] = {(int)row, (int)a->col_idx[t]};
    cudaStream_t stream = (cudaStream_t)q->stream;
    cudaError_t e = cudaSuccess;
    if (bytes > 0) e = cudaMemcpyAsync(q->workspace, place, bytes, cudaMemcpyHostToDevice, stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream); // before the host's copy goes
    free(place);
    return e == cudaSuccess ? SAT_OK : sat_fail(SAT_DEVICE_ERROR, "%s: %s", q->variant->name, cudaGetErrorString(e));
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const sat_pattern_view *a = l->pattern;
    if (a->stored_blocks == 0) return SAT_OK;
    shape s = choose(p, a, l->device);
    kernel_args args = {};
    args.place = (const int2 *)l->workspace;
    args.x = l->operands[0], args.y = l->operands[1], args.s = l->operands[2];
    args.x_row = p->a.row_stride, args.x_k = p->a.col_stride, args.y_col = p->b.col_stride, args.y_k = p->b.row_stride;
    args.m = p->m, args.n = p->n, args.k = (unsigned)p->k, args.threads = (unsigned)s.threads;
    args.br = (unsigned)a->block_rows, args.bc = (unsigned)a->block_cols;
    args.rows = (unsigned)s.rows, args.groups = (unsigned)s.groups;
    args.alpha = p->alpha, args.beta = p->beta, args.dtype = p->c_dtype;
    return s.kernel->start(l, sat_blocks(s.threads, THREADS), args);
}

SAT_FAMILY(cuda_sampled_shallow) = {
    .revision = "1",
    .op = SAT_SAMPLED,
    .backend = SAT_CUDA,
    .about = "short sums, any dtype, block and stride: a thread has up to eight rows of a block's column, one launch",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
};
