// The sampled product by cuBLAS: all of X*Y into workspace, from which the stored blocks are gathered.

#include <stdlib.h>

#include "libs/cublas.h"
#include "libs/cuda_kernels.h"

typedef struct places { /* of the workspace */
    int64_t stride;     /* elements from row to row of the product: a multiple of 16 bytes */
    size_t rows, product, library, bytes;
} places;

typedef struct sampled_state {
    places at;
    sat_gemm gemm;
    void *handle;
    int device;
} sampled_state;

/* Rounded to 16 bits by the library where nothing is added after it. */
static sat_dtype product_dtype(const sat_problem *p) { return sat_libs_wide(p) ? SAT_F32 : p->c_dtype; }

static places plan_places(const sat_problem *p, const sat_pattern_view *a) {
    places x = {0};
    int64_t size = (int64_t)sat_dtype_size(product_dtype(p)), step = 16 / size;
    x.stride = (p->n + step - 1) / step * step;
    x.rows = sat_carve(&x.bytes, 4.0 * (double)a->stored_blocks);
    x.product = sat_carve(&x.bytes, (double)p->m * (double)x.stride * (double)size);
    x.library = sat_carve(&x.bytes, SAT_CUBLAS_WORKSPACE);
    return x;
}

static bool make_gemm(sat_gemm *g, const sat_problem *p, const places *at) {
    sat_matrix x = {NULL, p->a.row_stride, p->a.col_stride}, y = {NULL, p->b.row_stride, p->b.col_stride};
    sat_matrix to = {NULL, at->stride, 1};
    return sat_gemm_make(g, p, product_dtype(p), p->m, p->n, p->k, &x, &y, &to);
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    double bytes = (double)p->m * (double)p->n * (double)sat_dtype_size(product_dtype(p));
    if (!sat_libs_some(p, a) || bytes > (double)d->memory_bytes / 4) return false;
    places at = plan_places(p, a);
    sat_gemm g;
    return make_gemm(&g, p, &at);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    double size = (double)sat_dtype_size(product_dtype(p)), batch = (double)sat_max(1, p->batch);
    double bytes = sat_bytes(p, a) + batch * size * (double)p->m * (double)p->n;
    return sat_libs_dense_seconds(p, d, bytes, batch * 2 * size * (double)a->stored_elements);
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)d;
    return plan_places(p, a).bytes;
}

static void release(const sat_variant *v, void *state) {
    (void)v;
    sampled_state *st = state;
    if (!st) return;
    sat_cublas_close(st->handle, st->device);
    free(st);
}

static sat_status prepare(const sat_prepare *p, void **state) {
    sampled_state *st = calloc(1, sizeof *st);
    *state = NULL;
    if (!st) return sat_fail(SAT_OUT_OF_MEMORY, "%s: no memory on the host", p->variant->name);
    st->at = plan_places(p->problem, p->pattern);
    st->device = p->device->index;
    sat_status status = make_gemm(&st->gemm, p->problem, &st->at)
                            ? SAT_OK
                            : sat_fail(SAT_UNSUPPORTED, "%s: strides or sizes", p->variant->name);
    if (status == SAT_OK) status = sat_cublas_open(p, &st->handle);
    if (status == SAT_OK) status = sat_libs_upload_rows(p, sat_libs_place(p->workspace, st->at.rows));
    if (status == SAT_OK) *state = st;
    else release(p->variant, st);
    return status;
}

static sat_status launch(const sat_launch *l) {
    const sampled_state *st = l->state;
    void *product = sat_libs_place(l->workspace, st->at.product);
    sat_status status = sat_cublas_bind(l, st->handle, sat_libs_place(l->workspace, st->at.library));
    if (status == SAT_OK)
        status =
            sat_cublas_gemm(l, st->handle, &st->gemm, l->problem->alpha, l->operands[0], l->operands[1], 0, product);
    if (status != SAT_OK) return status;
    cudaError_t error = sat_libs_pick(l, sat_libs_place(l->workspace, st->at.rows), st->gemm.c, product, st->at.stride);
    return sat_libs_status(error, l->variant, "picking the blocks");
}

SAT_FAMILY(cuda_sampled_cublas_dense) = {
    .version = sat_cublas_version,
    .op = SAT_SAMPLED,
    .backend = SAT_CUDA,
    .flags = SAT_V_LIBRARY,
    .about = "cuBLAS on all of X*Y, blocks picked",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = release,
};
