// cuda_sampled_cusparse_bsr: cuSPARSE's SDDMM, straight into the values, or into f32 where 16-bit results are to be
// added to what is there. Whole square blocks with a side that is a power of two, 2 to 128.

#include <limits.h>
#include <stdlib.h>

#include "libs/convert.h"
#include "libs/cuda_kernels.h"
#include "libs/cusparse.h"

typedef struct places { /* of the workspace */
    size_t index, product, buffer, bytes;
} places;

typedef struct sddmm_state {
    places at;
    sat_cusparse library;
} sddmm_state;

static places plan_places(const sat_problem *p, const sat_pattern_view *a) {
    places x = {0};
    x.index = sat_carve(&x.bytes, 4 * ((double)a->grid_rows + 1));
    x.product = sat_carve(&x.bytes, sat_libs_wide(p) ? 4 * (double)a->stored_elements : 0);
    x.buffer = sat_carve(&x.bytes, SAT_CUSPARSE_BUFFER);
    return x;
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)d;
    int64_t side = a->block_rows;
    if (!sat_libs_some(p, a) || !sat_libs_whole(a) || side != a->block_cols) return false;
    if (side < 2 || side > 128 || (side & (side - 1))) return false;
    return sat_matrix_fits(INT_MAX, p->m, p->k, p->a.row_stride, p->a.col_stride) &&
           sat_matrix_fits(INT_MAX, p->k, p->n, p->b.row_stride, p->b.col_stride) &&
           sat_item_align(p->a_align, &p->a, p->batch, p->a_dtype) >= 16 &&
           sat_item_align(p->b_align, &p->b, p->batch, p->b_dtype) >= 16 &&
           (sat_libs_wide(p) || sat_item_align(p->c_align, &p->c, p->batch, p->c_dtype) >= 16);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    double pass = sat_libs_pass_bytes(p, sat_libs_wide(p), (double)a->stored_elements);
    return sat_libs_seconds(p, d, sat_flops(p, a), sat_libs_plain_rate(p, d, 0.25), sat_bytes(p, a), pass);
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)d;
    return plan_places(p, a).bytes;
}

static void release(const sat_variant *v, void *state) {
    (void)v;
    sddmm_state *st = state;
    if (!st) return;
    sat_cusparse_close(&st->library);
    free(st);
}

static sat_status upload_indices(const sat_prepare *p, void *to) {
    sat_problem as_stored = *p->problem;
    as_stored.matmul.transpose = SAT_NO_TRANSPOSE;
    sat_rows r = sat_op_rows(&as_stored, p->pattern);
    size_t bytes = (size_t)(r.count + 1) * sizeof(int32_t);
    int32_t *index = malloc(bytes);
    if (!index) return sat_fail(SAT_OUT_OF_MEMORY, "%s: no memory on the host", p->variant->name);
    sat_convert_pointers(&r, index);
    sat_status status = sat_libs_upload(p, to, index, bytes);
    free(index);
    return status;
}

static sat_status describe(const sat_prepare *p, sddmm_state *st, void *index) {
    const sat_problem *q = p->problem;
    sat_matrix x = {NULL, q->a.row_stride, q->a.col_stride}, y = {NULL, q->b.row_stride, q->b.col_stride};
    sat_status status = sat_cusparse_open(p, &st->library);
    if (status == SAT_OK)
        status = sat_cusparse_bsr(p, &st->library, index, (void *)(uintptr_t)p->pattern->device_col_idx,
                                  sat_libs_wide(q) ? SAT_F32 : q->c_dtype);
    if (status == SAT_OK) status = sat_cusparse_dense(p, &st->library, 0, q->a_dtype, q->m, q->k, &x);
    if (status == SAT_OK) status = sat_cusparse_dense(p, &st->library, 1, q->b_dtype, q->k, q->n, &y);
    return status == SAT_OK ? sat_cusparse_ask(p, &st->library, SAT_SDDMM, SAT_CUSPARSE_BUFFER) : status;
}

static sat_status prepare(const sat_prepare *p, void **state) {
    sddmm_state *st = calloc(1, sizeof *st);
    *state = NULL;
    if (!st) return sat_fail(SAT_OUT_OF_MEMORY, "%s: no memory on the host", p->variant->name);
    st->at = plan_places(p->problem, p->pattern);
    void *index = sat_libs_place(p->workspace, st->at.index);
    sat_status status = upload_indices(p, index);
    if (status == SAT_OK) status = describe(p, st, index);
    if (status == SAT_OK) *state = st;
    else release(p->variant, st);
    return status;
}

static sat_status launch(const sat_launch *l) {
    const sddmm_state *st = l->state;
    bool wide = sat_libs_wide(l->problem);
    void *product = sat_libs_place(l->workspace, st->at.product);
    void *pointers[3] = {wide ? product : l->operands[2], l->operands[0], l->operands[1]};
    sat_status status = sat_cusparse_run(l, &st->library, SAT_SDDMM, wide ? 0 : l->problem->beta, pointers,
                                         sat_libs_place(l->workspace, st->at.buffer));
    if (status != SAT_OK || !wide) return status;
    return sat_libs_status(sat_libs_merge(l, product), l->variant, "the epilogue");
}

SAT_FAMILY(cuda_sampled_cusparse_bsr) = {
    .version = sat_cusparse_version,
    .op = SAT_SAMPLED,
    .backend = SAT_CUDA,
    .flags = SAT_V_LIBRARY,
    .about = "cuSPARSE's SDDMM on BSR; whole square blocks, sides 2 to 128",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = release,
};
