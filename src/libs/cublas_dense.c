// The matmul by a dense product: all of A, zeros too, is written into workspace, and cuBLAS or cuBLASLt multiplies
// that. cuBLASLt has a line in variants.def for each of the two algorithms that its heuristic ranks first: the race
// chooses between them, and each stays the same from run to run. `turned` has the dense matrix in transposed
// storage, for which cuBLAS has other kernels; `aligned` multiplies a copy of B with longer lines, into sums with
// longer lines, where those of B or C are no multiples of 16 bytes.
//
// `dense` is no more than that: a baseline for comparison, which wins only where the problem allows it. `guarded` is
// right for NaN and infinities in B too: a kernel after the product looks at one row of it and computes columns that
// are not finite once more, from the stored blocks. Nothing waits for the host. Good for densities at which sparse
// kernels gain little.

#include <limits.h>
#include <stdlib.h>

#include "libs/aligned.h"
#include "libs/cublaslt.h"

/* sat_instance.option: cuBLAS; with the dense matrix in transposed storage; with aligned copies; or the rank of
 * cuBLASLt's algorithm. */
enum { CUBLAS = -1, CUBLAS_TURNED = -2, CUBLAS_ALIGNED = -3 };

/* Elements of C up to which the epilogue is the guard, too: that saves a launch, but each element takes longer. */
enum { SHORT_FINISH = 1 << 20 };

typedef struct places { /* of the workspace */
    bool by_columns;    /* the dense matrix is column-major */
    int64_t stride;     /* elements from row to row of it, or from column to column: a multiple of 16 bytes */
    sat_sizes sizes;    /* of what is multiplied: the problem's, or larger */
    bool copy_b, apart; /* apart: sums have a place of their own */
    sat_matrix b, to;   /* strides of what is multiplied, and of where the product goes */
    bool odd;           /* lines of B or C are no multiples of 16 bytes */
    size_t dense, rows, b_copy, sum, library, bytes;
} places;

typedef struct dense_state {
    places at;
    sat_gemm gemm;
    void *handle;
    sat_lt *lt;
    int device;
} dense_state;

static bool guarded(const sat_variant *v) { return !(v->flags & SAT_V_DENSE); }

static sat_dtype sum_dtype(const sat_problem *p, const places *at) { return at->apart ? p->compute_dtype : p->c_dtype; }

/* op(A) with its zeros. */
static sat_matrix dense_matrix(const sat_problem *p, const places *at, void *workspace) {
    bool column_major = (p->matmul.transpose == SAT_TRANSPOSE) != at->by_columns;
    void *data = workspace ? sat_libs_place(workspace, at->dense) : NULL;
    return (sat_matrix){data, column_major ? 1 : at->stride, column_major ? at->stride : 1};
}

/* What is multiplied, and where to. Sums have a place of their own where C has not enough bits for them, or is still
 * needed when they are looked at, or has lines that are not aligned. */
static void plan_operands(const sat_variant *v, const sat_problem *p, places *x) {
    sat_matrix a = dense_matrix(p, x, NULL), b = {NULL, p->b.row_stride, p->b.col_stride},
               c = sat_libs_target(p, false);
    int64_t leading;
    bool a_by_rows = a.col_stride == 1, b_by_rows = sat_matrix_row_major(&b, p->k, p->n, &leading);
    bool c_by_rows = sat_matrix_row_major(&c, p->m, p->n, &leading), aligned = v->instance.option == CUBLAS_ALIGNED;
    sat_sizes real = {p->m, p->n, p->k}, longer = sat_aligned_sizes(p->a_dtype, real, a_by_rows, b_by_rows, c_by_rows);
    bool longer_m = longer.m != real.m, longer_n = longer.n != real.n, longer_k = longer.k != real.k;
    bool odd_b = sat_aligned_odd(p, p->b_dtype, &b, &p->b, p->b_align, longer_n || longer_k);
    bool odd_c = sat_aligned_odd(p, p->c_dtype, &c, &p->c, p->c_align, longer_n || longer_m);
    x->odd = odd_b || odd_c;
    x->sizes = aligned ? longer : real;
    x->copy_b = aligned && odd_b;
    x->apart = sat_libs_wide(p) || (guarded(v) && p->beta != 0) || (aligned && odd_c);
    x->b = x->copy_b ? sat_aligned_copy(p->b_dtype, longer.k, longer.n, b_by_rows) : b;
    x->to = c;
    if (x->apart) x->to = (sat_matrix){NULL, c_by_rows ? x->sizes.n : 1, c_by_rows ? 1 : x->sizes.m};
}

static places plan_places(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a) {
    places x = {0};
    int64_t size = (int64_t)sat_dtype_size(p->a_dtype);
    /* Tall, thin blocks are written in long lines, if they are written at each call. */
    x.by_columns = !sat_libs_keeps(p) && a->block_cols < a->block_rows && a->block_cols * size < 16;
    if (v->instance.option == CUBLAS_TURNED) x.by_columns = !x.by_columns;
    x.stride = sat_aligned_size(p->a_dtype, x.by_columns ? a->rows : a->cols);
    plan_operands(v, p, &x);
    int64_t lines = sat_aligned_size(p->a_dtype, x.by_columns ? a->cols : a->rows);
    bool b_by_rows = x.b.col_stride == 1;
    x.dense = sat_carve(&x.bytes, (double)lines * (double)x.stride * (double)size);
    x.rows = sat_carve(&x.bytes, 4.0 * (double)a->stored_blocks);
    x.b_copy = sat_carve(&x.bytes, x.copy_b ? sat_aligned_bytes(p->b_dtype, x.sizes.k, x.sizes.n, b_by_rows) : 0);
    double sums = (double)sat_dtype_size(p->compute_dtype) * (double)x.sizes.m * (double)x.sizes.n;
    x.sum = sat_carve(&x.bytes, x.apart ? sums : 0);
    x.library = sat_carve(&x.bytes, SAT_CUBLAS_WORKSPACE);
    return x;
}

static bool make_gemm(sat_gemm *g, const sat_problem *p, const places *at) {
    sat_matrix a = dense_matrix(p, at, NULL);
    return sat_matrix_fits(INT_MAX, p->k, p->n, p->b.row_stride, p->b.col_stride) &&
           sat_matrix_fits(INT_MAX, p->m, p->n, p->c.row_stride, p->c.col_stride) &&
           sat_gemm_make(g, p, sum_dtype(p, at), at->sizes.m, at->sizes.n, at->sizes.k, &a, &at->b, &at->to);
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    double bytes = (double)a->rows * (double)a->cols * (double)sat_dtype_size(p->a_dtype);
    if (!sat_libs_some(p, a) || bytes > (double)d->memory_bytes / 4) return false;
    places at = plan_places(v, p, a);
    sat_gemm g;
    if (v->instance.option == CUBLAS_ALIGNED && !sat_aligned_gains(p, at.odd)) return false;
    return make_gemm(&g, p, &at);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    places at = plan_places(v, p, a);
    double size = (double)sat_dtype_size(p->a_dtype), batch = (double)sat_max(1, p->batch);
    double bytes = sat_bytes(p, a) + batch * (double)a->rows * (double)a->cols * size, extra = 0;
    if (!sat_libs_keeps(p)) extra += batch * 2 * (double)a->stored_elements * size;
    if (at.copy_b) extra += batch * 2 * size * (double)p->k * (double)p->n;
    extra += sat_libs_finish_bytes(p, at.apart);
    double dense = sat_libs_dense_seconds(p, d, bytes, extra, !at.odd || v->instance.option == CUBLAS_ALIGNED);
    double launches = (guarded(v) ? 2e-6 : 0) + (at.copy_b ? 2e-6 : 0);
    double later = v->instance.option == CUBLAS_TURNED ? 0.03 : 0.03 * (double)sat_max(0, v->instance.option);
    return dense * (1 + later) + launches * batch;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)d;
    return plan_places(v, p, a).bytes;
}

static void release(const sat_variant *v, void *state) {
    (void)v;
    dense_state *st = state;
    if (!st) return;
    sat_cublas_close(st->handle, st->device);
    sat_lt_close(st->lt);
    free(st);
}

/* The absent blocks are zero from here on: only stored ones are ever written again. */
static sat_status clear(const sat_prepare *p, const dense_state *st) {
    cudaError_t error = cudaMemsetAsync(p->workspace, 0, st->at.rows, p->stream);
    sat_status status = sat_libs_status(error, p->variant, "clearing the workspace");
    return status == SAT_OK ? sat_libs_upload_rows(p, sat_libs_place(p->workspace, st->at.rows)) : status;
}

static sat_status open_library(const sat_prepare *p, dense_state *st) {
    const sat_problem *x = p->problem;
    if (p->variant->instance.option < 0) return sat_cublas_open(p, &st->handle);
    uint32_t align[3] = {16, sat_item_align(x->b_align, &x->b, x->batch, x->b_dtype),
                         st->at.apart ? 256 : sat_item_align(x->c_align, &x->c, x->batch, x->c_dtype)};
    return sat_lt_open(p, &st->gemm, align, p->variant->instance.option, &st->lt);
}

static sat_status prepare(const sat_prepare *p, void **state) {
    dense_state *st = calloc(1, sizeof *st);
    *state = NULL;
    if (!st) return sat_fail(SAT_OUT_OF_MEMORY, "%s: no memory on the host", p->variant->name);
    st->at = plan_places(p->variant, p->problem, p->pattern);
    st->device = p->device->index;
    sat_status status = make_gemm(&st->gemm, p->problem, &st->at)
                            ? SAT_OK
                            : sat_fail(SAT_UNSUPPORTED, "%s: strides or sizes", p->variant->name);
    if (status == SAT_OK) status = open_library(p, st);
    if (status == SAT_OK) status = clear(p, st);
    if (status == SAT_OK) *state = st;
    else release(p->variant, st);
    return status;
}

static sat_status densify(const sat_launch *l, const dense_state *st) {
    sat_unpack u = {.rows = sat_libs_place(l->workspace, st->at.rows),
                    .values = l->operands[0],
                    .to = sat_libs_place(l->workspace, st->at.dense),
                    .stride = st->at.stride,
                    .by_columns = st->at.by_columns};
    return sat_libs_spread(l, &u);
}

static sat_status refresh(const sat_launch *l) { return sat_libs_keeps(l->problem) ? densify(l, l->state) : SAT_OK; }

static sat_status copy_b(const sat_launch *l, const dense_state *st) {
    const sat_problem *p = l->problem;
    sat_copying x = {
        {l->operands[1], p->b.row_stride, p->b.col_stride}, st->at.b, p->k, p->n, st->at.sizes.k, st->at.sizes.n};
    x.to.data = sat_libs_place(l->workspace, st->at.b_copy);
    return sat_libs_copy(l, p->b_dtype, &x);
}

static sat_status multiply(const sat_launch *l, const dense_state *st, void *a, double beta, void *to) {
    const sat_problem *p = l->problem;
    void *library = sat_libs_place(l->workspace, st->at.library);
    void *b = st->at.copy_b ? sat_libs_place(l->workspace, st->at.b_copy) : l->operands[1];
    if (st->lt) return sat_lt_gemm(l, st->lt, p->alpha, a, b, beta, to, library);
    sat_status status = sat_cublas_bind(l, st->handle, library);
    return status == SAT_OK ? sat_cublas_gemm(l, st->handle, &st->gemm, p->alpha, a, b, beta, to) : status;
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const dense_state *st = l->state;
    bool apart = st->at.apart;
    sat_matrix a = dense_matrix(p, &st->at, l->workspace), to = st->at.to;
    to.data = apart ? sat_libs_place(l->workspace, st->at.sum) : l->operands[2];
    sat_status status = sat_libs_keeps(p) ? SAT_OK : densify(l, st);
    if (status == SAT_OK && st->at.copy_b) status = copy_b(l, st);
    if (status == SAT_OK) status = multiply(l, st, a.data, apart ? 0 : p->beta, to.data);
    bool guard = guarded(l->variant), in_finish = guard && apart && p->m <= SHORT_FINISH / sat_max(1, p->n);
    if (status == SAT_OK && guard && !in_finish) status = sat_libs_recompute(l, &a, sum_dtype(p, &st->at), &to);
    if (status != SAT_OK || (!apart && !sat_libs_epilogue(p))) return status;
    sat_finishing f = {.sum = apart ? to.data : NULL, .row_stride = to.row_stride, .col_stride = to.col_stride};
    if (in_finish) f.guard = &a;
    return sat_libs_finish(l, &f);
}

#define DENSE(library_version, more_flags, words)                                                                      \
    {                                                                                                                  \
        .version = library_version, .op = SAT_MATMUL, .backend = SAT_CUDA, .flags = SAT_V_LIBRARY | (more_flags),      \
        .about = words, .supports = supports, .estimate = estimate, .workspace = workspace, .prepare = prepare,        \
        .refresh = refresh, .launch = launch, .release = release                                                       \
    }

SAT_FAMILY(cuda_matmul_cublas_dense) = DENSE(sat_cublas_version, SAT_V_DENSE, "cuBLAS on the matrix spread out");
SAT_FAMILY(cuda_matmul_cublas_guarded) = DENSE(sat_cublas_version, 0,
                                               "cuBLAS on the matrix spread out, right beside NaN and infinities");
SAT_FAMILY(cuda_matmul_cublaslt_dense) = DENSE(sat_cublaslt_version, SAT_V_DENSE,
                                               "cuBLASLt on the matrix spread out, by one of its first algorithms");
SAT_FAMILY(cuda_matmul_cublaslt_guarded) =
    DENSE(sat_cublaslt_version, 0,
          "cuBLASLt on the matrix spread out, by one of its first algorithms, right beside NaN and infinities");
