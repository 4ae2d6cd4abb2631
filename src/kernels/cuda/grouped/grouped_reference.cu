// cuda_grouped_reference, cuda_grouped_weights_reference: one thread an element, in double precision, for every listed
// dtype and stride. What others are checked against; slow and always right.

#include "groups.h"
#include "variant.cuh"

/* ---- offsets ---- */

/* One CTA copies them to the workspace, and what is wrong with them ends there. */
static __global__ void take_offsets(sat_problem p, const void *from, int64_t *to) {
    sat_groups_take_by_cta(p, from, to);
}

/* ---- elements ---- */

struct kernel_args {
    sat_problem p;
    const int64_t *offsets;
    const void *a, *b, *bias;
    void *c;
};

/* act(alpha*sum + beta*C + bias) */
__device__ static void finish(const kernel_args &args, int64_t at, double sum, double bias) {
    double y = args.p.alpha * sum;
    if (args.p.beta != 0) y += args.p.beta * sat_device_load(args.p.c_dtype, args.c, at);
    sat_device_store(args.p.c_dtype, args.c, at, sat_act_f64(args.p.grouped.activation, y + bias));
}

static __global__ void multiply(kernel_args args) {
    const sat_problem &p = args.p;
    int64_t all = p.m * p.n, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < all; at += step) {
        int64_t row = at / p.n, j = at % p.n, group = sat_group_of(args.offsets, p.grouped.groups, row);
        double sum = 0, bias = 0;
        for (int64_t k = 0; k < (group < 0 ? 0 : p.k); k++)
            sum +=
                sat_device_load(p.a_dtype, args.a, row * p.a.row_stride + k * p.a.col_stride) *
                sat_device_load(p.b_dtype, args.b, group * p.b.batch_stride + k * p.b.row_stride + j * p.b.col_stride);
        if (args.bias && group >= 0) bias = sat_device_load(p.c_dtype, args.bias, group * p.n + j);
        finish(args, row * p.c.row_stride + j * p.c.col_stride, sum, bias);
    }
}

static __global__ void sum_weights(kernel_args args) {
    const sat_problem &p = args.p;
    int64_t all = p.grouped.groups * p.k * p.n, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < all; at += step) {
        int64_t group = at / p.n / p.k, i = at / p.n % p.k, j = at % p.n;
        double sum = 0;
        for (int64_t row = args.offsets[group]; row < args.offsets[group + 1]; row++)
            sum += sat_device_load(p.a_dtype, args.a, row * p.a.row_stride + i * p.a.col_stride) *
                   sat_device_load(p.b_dtype, args.b, row * p.b.row_stride + j * p.b.col_stride);
        finish(args, group * p.c.batch_stride + i * p.c.row_stride + j * p.c.col_stride, sum, 0);
    }
}

/* ---- host ---- */

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)a;
    double flops = 2.0 * (double)p->m * (double)p->n * (double)p->k;
    return sat_roofline(d, SAT_F64, flops, 0.02, 0) + 1e-5;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)a, (void)d;
    return (size_t)(p->grouped.groups + 1) * sizeof(int64_t);
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    bool weights = p->op == SAT_GROUPED_WEIGHTS;
    int64_t all = weights ? p->grouped.groups * p->k * p->n : p->m * p->n;
    if (all == 0) return SAT_OK;
    cudaStream_t stream = (cudaStream_t)l->stream;
    kernel_args args = {*p, (const int64_t *)l->workspace, l->operands[0], l->operands[1], NULL, l->operands[2]};
    if (!weights && p->grouped.bias) args.bias = l->operands[4];
    take_offsets<<<1, 1024, 0, stream>>>(*p, l->operands[3], (int64_t *)l->workspace);
    if (weights) sum_weights<<<sat_blocks(all, 256), 256, 0, stream>>>(args);
    else multiply<<<sat_blocks(all, 256), 256, 0, stream>>>(args);
    return sat_launched(l);
}

SAT_FAMILY(cuda_grouped_reference) = {
    .revision = "1",
    .op = SAT_GROUPED,
    .backend = SAT_CUDA,
    .flags = SAT_V_REFERENCE | SAT_V_SCRATCH,
    .about = "one thread an element, in double precision: slow, always right",
    .supports = sat_takes_all,
    .estimate = estimate,
    .workspace = workspace,
    .launch = launch,
};

SAT_FAMILY(cuda_grouped_weights_reference) = {
    .revision = "1",
    .op = SAT_GROUPED_WEIGHTS,
    .backend = SAT_CUDA,
    .flags = SAT_V_REFERENCE | SAT_V_SCRATCH,
    .about = "one thread an element, in double precision: slow, always right",
    .supports = sat_takes_all,
    .estimate = estimate,
    .workspace = workspace,
    .launch = launch,
};
