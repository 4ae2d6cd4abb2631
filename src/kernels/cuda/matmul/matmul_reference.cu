// cuda_matmul_reference: one thread an element of C, in double precision. Supports everything; slow and always right.

#include "variant.cuh"

struct kernel_args {
    sat_rows r;
    sat_problem p;
    const void *values, *b, *bias;
    void *c;
};

static __global__ void multiply(kernel_args args) {
    int64_t all = args.r.m * args.p.n, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < all; at += step) {
        int64_t i = at / args.p.n, j = at % args.p.n, row = i / args.r.br;
        double sum = 0;
        for (int64_t t = args.r.ptr[row]; t < args.r.end[row]; t++) {
            int64_t k0 = args.r.col[t] * args.r.bc, cols = sat_min(args.r.bc, args.r.k - k0);
            int64_t base = sat_block_of(&args.r, t) * args.r.block_elements + i % args.r.br * args.r.row_step;
            for (int64_t k = 0; k < cols; k++)
                sum +=
                    sat_device_load(args.p.a_dtype, args.values, base + k * args.r.col_step) *
                    sat_device_load(args.p.b_dtype, args.b, (k0 + k) * args.p.b.row_stride + j * args.p.b.col_stride);
        }
        int64_t to = i * args.p.c.row_stride + j * args.p.c.col_stride;
        double y = args.p.alpha * sum;
        if (args.p.beta != 0) y += args.p.beta * sat_device_load(args.p.c_dtype, args.c, to);
        if (args.bias) y += sat_device_load(args.p.c_dtype, args.bias, i);
        sat_device_store(args.p.c_dtype, args.c, to, sat_act_f64(args.p.matmul.activation, y));
    }
}

/* Everything is in double precision, and each element is fetched when it is needed. */
static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    return sat_roofline(d, SAT_F64, sat_flops(p, a), 0.02, 40 * sat_bytes(p, a));
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    if (p->m == 0 || p->n == 0) return SAT_OK;
    kernel_args args = {sat_device_rows(p, l->pattern),
                        *p,
                        l->operands[0],
                        l->operands[1],
                        p->matmul.bias == SAT_BIAS_ROW ? l->operands[3] : NULL,
                        l->operands[2]};
    multiply<<<sat_blocks(p->m * p->n, 256), 256, 0, (cudaStream_t)l->stream>>>(args);
    return sat_launched(l);
}

SAT_FAMILY(cuda_matmul_reference) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .flags = SAT_V_REFERENCE | SAT_V_DYNAMIC,
    .about = "one thread an element, in double precision: slow, always right",
    .supports = sat_takes_all,
    .estimate = estimate,
    .launch = launch,
};
