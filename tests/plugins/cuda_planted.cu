// Variants on CUDA, one right and the others faulty on purpose: a matmul for f32 (any layout, alpha and beta, no
// epilogue), one thread an element. Each is estimated to be very fast, so that nothing but its fault keeps it from
// winning.

#include <cuda_runtime.h>

#include "sparse_autotune.h"

enum fault { NONE, WRONG_ELEMENT, WRITES_PAST, ILLEGAL_ADDRESS, NEVER_ENDS };

struct job {
    const float *values, *b;
    float *c, *nowhere;
    const int64_t *row_ptr;
    const int32_t *col_idx;
    int64_t br, bc, m, n, k, b_row, b_col, c_row, c_col;
    float alpha, beta;
    int fault;
};

static __global__ void multiply(job x) {
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= x.m * x.n) return;
    int64_t i = at / x.n, j = at % x.n, row = i / x.br;
    float sum = 0;
    for (int64_t t = x.row_ptr[row]; t < x.row_ptr[row + 1]; t++) {
        int64_t k0 = x.col_idx[t] * x.bc;
        for (int64_t k = 0; k < x.bc && k0 + k < x.k; k++)
            sum += x.values[(t * x.br + i % x.br) * x.bc + k] * x.b[(k0 + k) * x.b_row + j * x.b_col];
    }
    float *c = x.c + i * x.c_row + j * x.c_col;
    *c = x.alpha * sum + (x.beta != 0 ? x.beta * *c : 0);
    if (x.fault == WRONG_ELEMENT && at == x.m * x.n / 2) *c += 0.25f;
    if (x.fault == WRITES_PAST && at == x.m * x.n - 1) c[1] = 0;
    if (x.fault == ILLEGAL_ADDRESS) *x.nowhere = sum;
    while (x.fault == NEVER_ENDS && clock64() != -1) __nanosleep(1000);
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)a, (void)d;
    return p->a_dtype == SAT_F32 && p->c_dtype == SAT_F32 && p->matmul.transpose == SAT_NO_TRANSPOSE &&
           p->matmul.bias == SAT_BIAS_NONE && p->matmul.activation == SAT_ACT_NONE && p->m * p->n > 0;
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)p, (void)a, (void)d;
    return 1e-9;
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const sat_pattern_view *a = l->pattern;
    job x = {(const float *)l->operands[0],
             (const float *)l->operands[1],
             (float *)l->operands[2],
             (float *)64,
             a->device_row_ptr,
             a->device_col_idx,
             a->block_rows,
             a->block_cols,
             p->m,
             p->n,
             p->k,
             p->b.row_stride,
             p->b.col_stride,
             p->c.row_stride,
             p->c.col_stride,
             (float)p->alpha,
             (float)p->beta,
             l->variant->instance.option};
    multiply<<<(unsigned)((p->m * p->n + 127) / 128), 128, 0, (cudaStream_t)l->stream>>>(x);
    cudaError_t e = cudaGetLastError();
    return e == cudaSuccess ? SAT_OK : sat_fail(SAT_DEVICE_ERROR, "planted: %s", cudaGetErrorString(e));
}

extern "C" __attribute__((visibility("default"))) sat_status sat_plugin(sat_context *context) {
    static const char *const names[] = {"plugin_cuda_good", "plugin_cuda_wrong_element", "plugin_cuda_writes_past",
                                        "plugin_cuda_illegal_address", "plugin_cuda_never_ends"};
    sat_status status = SAT_OK;
    for (int fault = NONE; fault <= NEVER_ENDS && status == SAT_OK; fault++) {
        sat_variant v = {};
        v.size = sizeof v, v.name = names[fault], v.revision = "1", v.about = "planted";
        v.op = SAT_MATMUL, v.backend = SAT_CUDA, v.priority = 1000, v.instance.option = fault;
        v.supports = supports, v.estimate = estimate, v.launch = launch;
        status = sat_variant_register(context, &v);
    }
    return status;
}
