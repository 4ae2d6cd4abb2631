// The matmul by cuSPARSE's SpMM.
//   bsr: on the values as they are. Whole blocks, op(A) = A.
//   ell: on Blocked-ELL, into which the values are copied: each row as long as the heaviest, so rows must be alike.
//        Whole square blocks; transposing comes with the copy. Tensor cores: f32 only where TF32 is allowed.

#include <limits.h>
#include <stdlib.h>

#include "libs/convert.h"
#include "libs/cuda_kernels.h"
#include "libs/cusparse.h"

enum { MOST_PADDING = 4 }; /* Blocked-ELL: slots for each stored block, on average */

typedef struct places { /* of the workspace */
    size_t index, rows, values, sum, buffer, bytes;
} places;

typedef struct spmm_state {
    places at;
    int64_t width; /* Blocked-ELL: slots of a block row */
    sat_cusparse library;
} spmm_state;

static bool is_ell(const sat_variant *v) { return v->instance.option == SAT_SPMM_ELL; }

static places plan_places(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, int64_t width) {
    places x = {0};
    double blocks = (double)a->stored_blocks, size = (double)sat_dtype_size(p->a_dtype);
    double slots = (double)width * (double)p->m / (double)sat_max(1, a->block_rows);
    x.index = sat_libs_carve(&x.bytes, is_ell(v) ? 4 * slots : 4 * ((double)a->grid_rows + 1));
    x.rows = sat_libs_carve(&x.bytes, is_ell(v) ? 4 * blocks : 0);
    x.values = sat_libs_carve(&x.bytes, is_ell(v) ? slots * (double)(a->block_rows * a->block_cols) * size : 0);
    x.sum = sat_libs_carve(&x.bytes, sat_libs_wide(p) ? 4.0 * (double)p->m * (double)p->n : 0);
    x.buffer = sat_libs_carve(&x.bytes, SAT_CUSPARSE_BUFFER);
    return x;
}

static int64_t width_of(const sat_problem *p, const sat_pattern_view *a) {
    return p->transpose == SAT_TRANSPOSE ? a->max_col : a->max_row;
}

/* ---- what it takes ---- */

/* One column is a vector, which the library sends elsewhere. */
static bool fits(const sat_problem *p, const sat_pattern_view *a) {
    if (!sat_libs_some(p, a) || !sat_libs_whole(a) || p->n < 2) return false;
    return sat_matrix_fits(INT_MAX, p->k, p->n, p->b.row_stride, p->b.col_stride) &&
           sat_matrix_fits(INT_MAX, p->m, p->n, p->c.row_stride, p->c.col_stride) &&
           sat_libs_alignment(p->b_align, &p->b, p->batch, p->b_dtype) >= 16 &&
           (sat_libs_wide(p) || sat_libs_alignment(p->c_align, &p->c, p->batch, p->c_dtype) >= 16);
}

static bool bsr_supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)d;
    return fits(p, a) && p->transpose == SAT_NO_TRANSPOSE &&
           sat_libs_alignment(p->a_align, &p->a, p->batch, p->a_dtype) >= 16;
}

static bool lines_aligned(sat_dtype t, const sat_layout *l) {
    int64_t size = (int64_t)sat_dtype_size(t);
    return sat_max(l->row_stride, l->col_stride) * size % 16 == 0;
}

static bool ell_supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    if (!fits(p, a) || a->block_rows != a->block_cols || d->capability < 80) return false;
    if (p->a_dtype == SAT_F32 && !sat_libs_tf32(p)) return false;
    if (!lines_aligned(p->b_dtype, &p->b) || (!sat_libs_wide(p) && !lines_aligned(p->c_dtype, &p->c))) return false;
    double slots = (double)p->m / (double)a->block_rows * (double)width_of(p, a);
    double bytes = slots * (double)(a->block_rows * a->block_cols) * (double)sat_dtype_size(p->a_dtype);
    return slots <= MOST_PADDING * (double)a->stored_blocks && bytes <= (double)d->memory_bytes / 4;
}

static double extra_seconds(const sat_problem *p, const sat_device *d) {
    double passes = sat_libs_epilogue(p) ? sat_libs_finish_bytes(p, sat_libs_wide(p)) : 0;
    return passes / d->memory_rate + 8e-6 * (double)sat_max(1, p->batch);
}

/* On plain units whatever the dtype: an H200 does 13.4 TFLOPS in f16, 13.8 in f32, at blocks of 16 to 128. */
static double bsr_estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    double rate = 0.25 * d->flop_rate[SAT_F32] * (p->a_dtype == SAT_F64 ? 0.5 : 1);
    double compute = sat_flops(p, a) / rate, memory = sat_bytes(p, a) / d->memory_rate;
    return (compute > memory ? compute : memory) + extra_seconds(p, d);
}

/* On tensor cores: an H200 does 76 TFLOPS at blocks of 16, 170 to 220 from 32 on. */
static double ell_estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    double side = (double)a->block_rows, batch = (double)sat_max(1, p->batch);
    double slots = (double)p->m / side * (double)width_of(p, a), size = (double)sat_dtype_size(p->a_dtype);
    double flops = 2 * slots * side * side * (double)p->n * batch;
    double compute = flops / (sat_libs_rate(p, d) * (side >= 32 ? 0.22 : 0.095 * side / 16));
    double memory = (sat_bytes(p, a) + slots * side * side * size * batch) / d->memory_rate;
    double copied = sat_libs_keeps(p) ? 0 : batch * 2 * (double)a->stored_elements * size / d->memory_rate;
    return (compute > memory ? compute : memory) + copied + extra_seconds(p, d);
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)d;
    return plan_places(v, p, a, width_of(p, a)).bytes;
}

/* ---- prepare ---- */

static void release(const sat_variant *v, void *state) {
    (void)v;
    spmm_state *st = state;
    if (!st) return;
    sat_cusparse_close(&st->library);
    free(st);
}

/* Indices of 32 bits for the library; for Blocked-ELL also the row of each block, and zeros in slots that stay empty.
 */
static sat_status upload_indices(const sat_prepare *p, const spmm_state *st) {
    bool ell = is_ell(p->variant);
    sat_rows r = sat_op_rows(p->problem, p->pattern);
    int64_t count = ell ? r.count * st->width : r.count + 1, blocks = p->pattern->stored_blocks;
    int32_t *index = malloc((size_t)sat_max(count, blocks) * sizeof *index);
    if (!index) return sat_fail(SAT_OUT_OF_MEMORY, "%s: no memory on the host", p->variant->name);
    if (ell) sat_convert_ell(&r, st->width, index);
    else sat_convert_pointers(&r, index);
    void *to = sat_libs_place(p->workspace, st->at.index), *values = sat_libs_place(p->workspace, st->at.values);
    sat_status status = sat_libs_upload(p, to, index, (size_t)count * sizeof *index);
    if (ell && status == SAT_OK) {
        sat_convert_rows(&r, index);
        to = sat_libs_place(p->workspace, st->at.rows);
        status = sat_libs_upload(p, to, index, (size_t)blocks * sizeof *index);
    }
    if (ell && status == SAT_OK) {
        cudaError_t error = cudaMemsetAsync(values, 0, st->at.sum - st->at.values, p->stream);
        if (error == cudaSuccess) error = cudaStreamSynchronize(p->stream);
        status = sat_libs_status(error, p->variant, "clearing the workspace");
    }
    free(index);
    return status;
}

static sat_status describe(const sat_prepare *p, spmm_state *st) {
    const sat_problem *x = p->problem;
    void *index = sat_libs_place(p->workspace, st->at.index), *values = sat_libs_place(p->workspace, st->at.values);
    sat_matrix b = {NULL, x->b.row_stride, x->b.col_stride}, c = sat_libs_target(x, sat_libs_wide(x));
    sat_status status = sat_cusparse_open(p, &st->library);
    if (status == SAT_OK && is_ell(p->variant)) status = sat_cusparse_ell(p, &st->library, st->width, index, values);
    else if (status == SAT_OK)
        status = sat_cusparse_bsr(p, &st->library, index, (void *)(uintptr_t)p->pattern->device_col_idx, x->a_dtype);
    if (status == SAT_OK) status = sat_cusparse_dense(p, &st->library, 0, x->b_dtype, x->k, x->n, &b);
    if (status == SAT_OK)
        status = sat_cusparse_dense(p, &st->library, 1, sat_libs_wide(x) ? SAT_F32 : x->c_dtype, x->m, x->n, &c);
    return status == SAT_OK ? sat_cusparse_ask(p, &st->library, p->variant->instance.option) : status;
}

static sat_status prepare(const sat_prepare *p, void **state) {
    spmm_state *st = calloc(1, sizeof *st);
    *state = NULL;
    if (!st) return sat_fail(SAT_OUT_OF_MEMORY, "%s: no memory on the host", p->variant->name);
    st->width = width_of(p->problem, p->pattern);
    st->at = plan_places(p->variant, p->problem, p->pattern, st->width);
    int before = sat_libs_enter(p->device);
    sat_status status = upload_indices(p, st);
    if (status == SAT_OK) status = describe(p, st);
    sat_libs_leave(p->device, before);
    if (status == SAT_OK) *state = st;
    else release(p->variant, st);
    return status;
}

/* ---- launch ---- */

static sat_status copy_values(const sat_launch *l, const spmm_state *st) {
    sat_unpack u = {.rows = sat_libs_place(l->workspace, st->at.rows),
                    .values = l->operands[0],
                    .to = sat_libs_place(l->workspace, st->at.values),
                    .stride = st->width * l->pattern->block_cols};
    return sat_libs_status(sat_libs_align_left(l->problem, l->pattern, &u, l->stream), l->variant,
                           "making Blocked-ELL");
}

static sat_status ell_refresh(const sat_launch *l) {
    return sat_libs_keeps(l->problem) ? copy_values(l, l->state) : SAT_OK;
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const spmm_state *st = l->state;
    bool wide = sat_libs_wide(p), ell = is_ell(l->variant);
    void *sum = wide ? sat_libs_place(l->workspace, st->at.sum) : NULL;
    sat_status status = ell && !sat_libs_keeps(p) ? copy_values(l, st) : SAT_OK;
    void *pointers[3] = {ell ? sat_libs_place(l->workspace, st->at.values) : l->operands[0], l->operands[1],
                         wide ? sum : l->operands[2]};
    if (status == SAT_OK)
        status = sat_cusparse_run(l, &st->library, l->variant->instance.option, wide ? 0 : p->beta, pointers,
                                  sat_libs_place(l->workspace, st->at.buffer));
    if (status != SAT_OK || !sat_libs_epilogue(p)) return status;
    sat_matrix to = sat_libs_target(p, wide);
    sat_finishing f = {.sum = sum, .row_stride = to.row_stride, .col_stride = to.col_stride};
    return sat_libs_status(sat_libs_finish(l, &f), l->variant, "the epilogue");
}

SAT_FAMILY(cuda_matmul_cusparse_bsr) = {
    .version = sat_cusparse_bsr_version,
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .flags = SAT_V_LIBRARY,
    .about = "cuSPARSE on BSR; whole blocks, not transposed",
    .supports = bsr_supports,
    .estimate = bsr_estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = release,
};

SAT_FAMILY(cuda_matmul_cusparse_ell) = {
    .version = sat_cusparse_version,
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .flags = SAT_V_LIBRARY,
    .about = "cuSPARSE on Blocked-ELL; square blocks in rows that are alike",
    .supports = ell_supports,
    .estimate = ell_estimate,
    .workspace = workspace,
    .prepare = prepare,
    .refresh = ell_refresh,
    .launch = launch,
    .release = release,
};
