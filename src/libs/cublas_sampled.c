// The sampled product by cuBLAS: all of X*Y into workspace, from which the stored blocks are gathered. `aligned`
// multiplies copies of X and Y with longer lines, where theirs are no multiples of 16 bytes.

#include <limits.h>
#include <stdlib.h>

#include "libs/aligned.h"
#include "libs/cublas.h"

enum { ALIGNED = 1 }; /* sat_instance.option; 0: no copies */

typedef struct places { /* of the workspace */
    int64_t stride;     /* elements from row to row of the product: a multiple of 16 bytes */
    sat_sizes sizes;    /* of what is multiplied: the problem's, or larger */
    bool odd[2];        /* lines of X, of Y, are no multiples of 16 bytes */
    bool copied[2];
    sat_matrix factor[2]; /* strides of what is multiplied */
    size_t rows, product, copy[2], library, bytes;
} places;

typedef struct sampled_state {
    places at;
    sat_gemm gemm;
    void *handle;
    int device;
} sampled_state;

/* Rounded to 16 bits by the library where nothing is added after it. */
static sat_dtype product_dtype(const sat_problem *p) { return sat_libs_wide(p) ? SAT_F32 : p->c_dtype; }

/* What is multiplied. The product is row-major, with lines as long as the library likes them. */
static void plan_factors(bool aligned, const sat_problem *p, places *at) {
    sat_matrix x = {NULL, p->a.row_stride, p->a.col_stride}, y = {NULL, p->b.row_stride, p->b.col_stride};
    int64_t leading;
    bool x_by_rows = sat_matrix_row_major(&x, p->m, p->k, &leading);
    bool y_by_rows = sat_matrix_row_major(&y, p->k, p->n, &leading);
    sat_sizes real = {p->m, p->n, p->k}, longer = sat_aligned_sizes(p->a_dtype, real, x_by_rows, y_by_rows, true);
    bool longer_m = longer.m != real.m, longer_n = longer.n != real.n, longer_k = longer.k != real.k;
    at->odd[0] = sat_aligned_odd(p, p->a_dtype, &x, &p->a, p->a_align, longer_m || longer_k);
    at->odd[1] = sat_aligned_odd(p, p->b_dtype, &y, &p->b, p->b_align, longer_n || longer_k);
    for (int i = 0; i < 2; i++) at->copied[i] = aligned && at->odd[i];
    at->sizes = aligned ? longer : real;
    at->factor[0] = at->copied[0] ? sat_aligned_copy(p->a_dtype, longer.m, longer.k, x_by_rows) : x;
    at->factor[1] = at->copied[1] ? sat_aligned_copy(p->b_dtype, longer.k, longer.n, y_by_rows) : y;
}

static places plan_places(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a) {
    places x = {0};
    plan_factors(v->instance.option == ALIGNED, p, &x);
    const sat_matrix *f = x.factor;
    const sat_sizes *s = &x.sizes;
    x.stride = sat_max(s->n, sat_aligned_size(product_dtype(p), p->n));
    x.rows = sat_carve(&x.bytes, 4.0 * (double)a->stored_blocks);
    x.product = sat_carve(&x.bytes, (double)s->m * (double)x.stride * (double)sat_dtype_size(product_dtype(p)));
    x.copy[0] = sat_carve(&x.bytes, x.copied[0] ? sat_aligned_bytes(p->a_dtype, s->m, s->k, f[0].col_stride == 1) : 0);
    x.copy[1] = sat_carve(&x.bytes, x.copied[1] ? sat_aligned_bytes(p->b_dtype, s->k, s->n, f[1].col_stride == 1) : 0);
    x.library = sat_carve(&x.bytes, SAT_CUBLAS_WORKSPACE);
    return x;
}

static bool make_gemm(sat_gemm *g, const sat_problem *p, const places *at) {
    sat_matrix to = {NULL, at->stride, 1};
    return sat_matrix_fits(INT_MAX, p->m, p->k, p->a.row_stride, p->a.col_stride) &&
           sat_matrix_fits(INT_MAX, p->k, p->n, p->b.row_stride, p->b.col_stride) &&
           sat_gemm_make(g, p, product_dtype(p), at->sizes.m, at->sizes.n, at->sizes.k, &at->factor[0], &at->factor[1],
                         &to);
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    double bytes = (double)p->m * (double)p->n * (double)sat_dtype_size(product_dtype(p));
    if (!sat_libs_some(p, a) || bytes > (double)d->memory_bytes / 4) return false;
    places at = plan_places(v, p, a);
    sat_gemm g;
    if (v->instance.option == ALIGNED && !sat_aligned_gains(p, at.odd[0] || at.odd[1])) return false;
    return make_gemm(&g, p, &at);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    places at = plan_places(v, p, a);
    double size = (double)sat_dtype_size(product_dtype(p)), batch = (double)sat_max(1, p->batch);
    double bytes = sat_bytes(p, a) + batch * size * (double)p->m * (double)p->n;
    double extra = 2 * size * (double)a->stored_elements,
           inputs = 2 * (double)sat_dtype_size(p->a_dtype) * (double)p->k;
    if (at.copied[0]) extra += inputs * (double)p->m;
    if (at.copied[1]) extra += inputs * (double)p->n;
    bool aligned = v->instance.option == ALIGNED || !(at.odd[0] || at.odd[1]);
    return sat_libs_dense_seconds(p, d, bytes, batch * extra, aligned) + 2e-6 * (at.copied[0] + at.copied[1]) * batch;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)d;
    return plan_places(v, p, a).bytes;
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
    st->at = plan_places(p->variant, p->problem, p->pattern);
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

static sat_status copy_factor(const sat_launch *l, const sampled_state *st, int i) {
    const sat_problem *p = l->problem;
    const sat_sizes *s = &st->at.sizes;
    sat_matrix from = i == 0 ? sat_matrix_of(l->operands[0], &p->a) : sat_matrix_of(l->operands[1], &p->b);
    sat_copying x = {
        from, st->at.factor[i], i == 0 ? p->m : p->k, i == 0 ? p->k : p->n, i == 0 ? s->m : s->k, i == 0 ? s->k : s->n};
    x.to.data = sat_libs_place(l->workspace, st->at.copy[i]);
    return sat_libs_copy(l, p->a_dtype, &x);
}

static sat_status launch(const sat_launch *l) {
    const sampled_state *st = l->state;
    void *product = sat_libs_place(l->workspace, st->at.product), *factor[2];
    sat_status status = SAT_OK;
    for (int i = 0; i < 2 && status == SAT_OK; i++) {
        factor[i] = st->at.copied[i] ? sat_libs_place(l->workspace, st->at.copy[i]) : l->operands[i];
        if (st->at.copied[i]) status = copy_factor(l, st, i);
    }
    if (status == SAT_OK) status = sat_cublas_bind(l, st->handle, sat_libs_place(l->workspace, st->at.library));
    if (status == SAT_OK)
        status = sat_cublas_gemm(l, st->handle, &st->gemm, l->problem->alpha, factor[0], factor[1], 0, product);
    if (status != SAT_OK) return status;
    return sat_libs_pick(l, sat_libs_place(l->workspace, st->at.rows), st->gemm.c, product, st->at.stride);
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
