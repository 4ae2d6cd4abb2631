// cuda_sampled_reference: one thread an element of a stored block, in double precision. Supports everything.

#include "variant.cuh"

struct kernel_args {
    sat_pattern_view a;
    sat_problem p;
    const void *x, *y;
    void *s;
};

// A CTA has block rows. What is past the matrix in a block becomes zero.
static __global__ void multiply(kernel_args args) {
    int64_t area = args.a.block_rows * args.a.block_cols;
    for (int64_t g = blockIdx.x; g < args.a.grid_rows; g += gridDim.x) {
        int64_t first = args.a.device_row_ptr[g], count = args.a.device_row_end[g] - first;
        for (int64_t e = threadIdx.x; e < count * area; e += blockDim.x) {
            int64_t at = first * area + e, i = g * args.a.block_rows + e % area / args.a.block_cols;
            int64_t j = (int64_t)args.a.device_col_idx[first + e / area] * args.a.block_cols + e % args.a.block_cols;
            if (i >= args.p.m || j >= args.p.n) {
                sat_device_store(args.p.c_dtype, args.s, at, 0);
                continue;
            }
            double sum = 0;
            for (int64_t k = 0; k < args.p.k; k++)
                sum += sat_device_load(args.p.a_dtype, args.x, i * args.p.a.row_stride + k * args.p.a.col_stride) *
                       sat_device_load(args.p.b_dtype, args.y, k * args.p.b.row_stride + j * args.p.b.col_stride);
            double y = args.p.alpha * sum;
            if (args.p.beta != 0) y += args.p.beta * sat_device_load(args.p.c_dtype, args.s, at);
            sat_device_store(args.p.c_dtype, args.s, at, y);
        }
    }
}

/* Everything is in double precision, and each element is fetched when it is needed. */
static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    return sat_roofline(d, SAT_F64, sat_flops(p, a), 0.02, 40 * sat_bytes(p, a));
}

static sat_status launch(const sat_launch *l) {
    if (l->pattern->stored_blocks == 0) return SAT_OK;
    kernel_args args = {*l->pattern, *l->problem, l->operands[0], l->operands[1], l->operands[2]};
    multiply<<<sat_blocks(l->pattern->grid_rows, 1), 256, 0, (cudaStream_t)l->stream>>>(args);
    return sat_launched(l);
}

SAT_FAMILY(cuda_sampled_reference) = {
    .revision = "1",
    .op = SAT_SAMPLED,
    .backend = SAT_CUDA,
    .flags = SAT_V_REFERENCE | SAT_V_DYNAMIC,
    .about = "one thread an element of a stored block, in double precision: slow, always right",
    .supports = sat_takes_all,
    .estimate = estimate,
    .launch = launch,
};
