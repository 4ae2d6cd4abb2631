// cuda_matmul_atomic: the simplest kernel after the reference. A CTA has one stored block and a tile of columns, and
// adds its product to C by atomics, in a workspace of the accumulators' type. The workspace is cleared before, and goes
// through the epilogue afterwards. A block row's sum passes through memory once for each stored block, and the order of
// the additions, so the last bits, changes from run to run. Skewed rows cost nothing. Where rows are long, the
// workspace is f64: so many f32 additions of one sign would lose digits.

#include "kernels/cuda/common/simt_rates.h"
#include "variant.cuh"

enum { THREADS = 128, WIDTH = 64 };

struct kernel_args {
    sat_rows r;
    sat_epilogue out;
    const void *values, *b;
    int64_t b_row_stride, b_col_stride, stored;
    sat_dtype dtype;
    void *sums; // out.m x out.n
};

static __device__ int64_t row_of(const sat_rows &r, int64_t t) { // the block row of position t
    int64_t low = 0, high = r.count;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (r.ptr[middle] <= t) low = middle;
        else high = middle;
    }
    return low;
}

// S: the type of the sum of a part of a block, at most SAT_SUM_PART columns. SUM: the type of the whole sum.
template <typename S, typename SUM> static __global__ void multiply(const __grid_constant__ kernel_args args) {
    int64_t tiles = (args.out.n + WIDTH - 1) / WIDTH;
    for (int64_t w = blockIdx.x; w < args.stored * tiles; w += gridDim.x) {
        int64_t t = w / tiles, j0 = w % tiles * WIDTH, width = sat_min(WIDTH, args.out.n - j0);
        int64_t i0 = row_of(args.r, t) * args.r.br, rows = sat_min(args.r.br, args.r.m - i0);
        int64_t k0 = args.r.col[t] * args.r.bc, depth = sat_min(args.r.bc, args.r.k - k0);
        int64_t base = sat_block_of(&args.r, t) * args.r.block_elements;
        for (int64_t e = threadIdx.x; e < rows * width; e += THREADS) {
            int64_t i = e / width, j = j0 + e % width;
            SUM sum = 0;
            for (int64_t k = 0; k < depth;) {
                S part = 0;
                for (int64_t end = sat_min(depth, k + SAT_SUM_PART); k < end; k++)
                    part +=
                        sat_load_as(S(), args.dtype, args.values, base + i * args.r.row_step + k * args.r.col_step) *
                        sat_load_as(S(), args.dtype, args.b, (k0 + k) * args.b_row_stride + j * args.b_col_stride);
                sum += part;
            }
            atomicAdd((SUM *)args.sums + (i0 + i) * args.out.n + j, sum);
        }
    }
}

template <typename S, typename SUM> static __global__ void finish(const __grid_constant__ kernel_args args) {
    int64_t all = args.out.m * args.out.n, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t e = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; e < all; e += step)
        sat_epilogue_store(args.out, e / args.out.n, e % args.out.n, (S)((const SUM *)args.sums)[e]);
}

static bool is_long(const sat_problem *p, const sat_pattern_view *a) {
    return sat_heaviest(p, a) * (double)sat_op_rows(p, a).bc > (double)SAT_SUM_PART;
}

static sat_dtype summed_in(const sat_problem *p, const sat_pattern_view *a) {
    return is_long(p, a) ? SAT_F64 : p->compute_dtype;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)d;
    return (size_t)p->m * (size_t)p->n * sat_dtype_size(summed_in(p, a));
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    double sums = (double)workspace(v, p, a, d), batch = (double)p->batch;
    double added = (double)a->stored_blocks * (double)r.br * (double)p->n * sat_dtype_size(summed_in(p, a)) * batch;
    double rate = sat_simt_rate(d, p->compute_dtype) * 0.03;
    double memory = (sat_bytes(p, a) + 3 * sums * batch) / d->memory_rate;
    return sat_worst(sat_flops(p, a) / rate, 4 * added / d->l2_rate, memory) + 8e-6 * batch;
}

template <typename S, typename SUM> static sat_status run(const sat_launch *l, const kernel_args &args) {
    cudaStream_t stream = (cudaStream_t)l->stream;
    (void)cudaMemsetAsync(args.sums, 0, workspace(l->variant, l->problem, l->pattern, l->device), stream);
    int64_t tiles = (args.out.n + WIDTH - 1) / WIDTH;
    if (args.stored) multiply<S, SUM><<<sat_blocks(args.stored * tiles, 1), THREADS, 0, stream>>>(args);
    finish<S, SUM><<<sat_blocks(args.out.m * args.out.n, 256), 256, 0, stream>>>(args);
    return sat_launched(l);
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    if (p->m == 0 || p->n == 0) return SAT_OK;
    kernel_args args = {sat_device_rows(p, l->pattern),
                        sat_epilogue_of(l),
                        l->operands[0],
                        l->operands[1],
                        p->b.row_stride,
                        p->b.col_stride,
                        l->pattern->stored_blocks,
                        p->a_dtype,
                        l->workspace};
    if (p->compute_dtype == SAT_F64) return run<double, double>(l, args);
    return summed_in(p, l->pattern) == SAT_F64 ? run<float, double>(l, args) : run<float, float>(l, args);
}

SAT_FAMILY(cuda_matmul_atomic) = {
    .revision = "2",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .flags = SAT_V_NONDETERMINISTIC | SAT_V_SCRATCH,
    .about = "a CTA a stored block, added to C by atomics; any dtype, block and strides",
    .supports = sat_takes_all,
    .estimate = estimate,
    .workspace = workspace,
    .launch = launch,
};
