// cuda_matmul_reference: one thread an element of C, in double precision. Supports everything; slow and always right.

#include "variant.cuh"

struct job {
    sat_rows r;
    sat_problem p;
    const void *values, *b, *bias;
    void *c;
};

static __global__ void multiply(job x) {
    int64_t all = x.r.m * x.p.n, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < all; at += step) {
        int64_t i = at / x.p.n, j = at % x.p.n, row = i / x.r.br;
        double sum = 0;
        for (int64_t t = x.r.ptr[row]; t < x.r.ptr[row + 1]; t++) {
            int64_t k0 = x.r.col[t] * x.r.bc, cols = sat_min(x.r.bc, x.r.k - k0);
            int64_t base = sat_block_of(&x.r, t) * x.r.block_elements + i % x.r.br * x.r.row_step;
            for (int64_t k = 0; k < cols; k++)
                sum += sat_device_load(x.p.a_dtype, x.values, base + k * x.r.col_step) *
                       sat_device_load(x.p.b_dtype, x.b, (k0 + k) * x.p.b.row_stride + j * x.p.b.col_stride);
        }
        int64_t to = i * x.p.c.row_stride + j * x.p.c.col_stride;
        double y = x.p.alpha * sum;
        if (x.p.beta != 0) y += x.p.beta * sat_device_load(x.p.c_dtype, x.c, to);
        if (x.bias) y += sat_device_load(x.p.c_dtype, x.bias, i);
        sat_device_store(x.p.c_dtype, x.c, to, sat_act_f64(x.p.activation, y));
    }
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    if (p->m == 0 || p->n == 0) return SAT_OK;
    job x = {sat_device_rows(p, l->pattern),
             *p,
             l->operands[0],
             l->operands[1],
             p->bias == SAT_BIAS_ROW ? l->operands[3] : NULL,
             l->operands[2]};
    multiply<<<sat_blocks(p->m * p->n, 256), 256, 0, (cudaStream_t)l->stream>>>(x);
    return sat_launched(l);
}

SAT_FAMILY(cuda_matmul_reference) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .flags = SAT_V_REFERENCE,
    .about = "one thread an element, in double precision: slow, always right",
    .supports = sat_takes_all,
    .estimate = sat_reference_estimate,
    .launch = launch,
};
