// The matmul by cuSPARSE's SpMM. Whole square blocks: others it refuses as an invalid value.
//   bsr: on the values as they are; op(A) = A.
//   ell: on Blocked-ELL, into which the values are copied; transposing comes with the copy. It uses tensor cores: f32
//        only where TF32 is allowed. Every row has as many blocks: in the places that a shorter row leaves empty the
//        library was seen to multiply rows of B by zero, which shows where B holds Inf or NaN.

#include <limits.h>
#include <stdlib.h>

#include "libs/convert.h"
#include "libs/cuda_kernels.h"
#include "libs/cusparse.h"

enum { ELL_COLUMNS = 16 }; /* of C, a multiple of it: the library stores several at once, and past the last one */

typedef struct places { /* of the workspace */
    size_t index, rows, values, sum, buffer, bytes;
} places;

typedef struct spmm_state {
    places at;
    sat_cusparse library;
} spmm_state;

static bool is_ell(const sat_variant *v) { return v->instance.option == SAT_SPMM_ELL; }

static double values_bytes(const sat_problem *p, const sat_pattern_view *a) {
    return (double)a->stored_elements * (double)sat_dtype_size(p->a_dtype);
}

static places plan_places(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a) {
    places x = {0};
    double blocks = 4 * (double)a->stored_blocks, pointers = 4 * ((double)a->grid_rows + 1);
    x.index = sat_carve(&x.bytes, is_ell(v) ? blocks : pointers);
    x.rows = sat_carve(&x.bytes, is_ell(v) ? blocks : 0);
    x.values = sat_carve(&x.bytes, is_ell(v) ? values_bytes(p, a) : 0);
    x.sum = sat_carve(&x.bytes, sat_libs_wide(p) ? 4.0 * (double)p->m * (double)p->n : 0);
    x.buffer = sat_carve(&x.bytes, SAT_CUSPARSE_BUFFER);
    return x;
}

/* Blocks of a row of op(A); 0: they differ. */
static int64_t width_of(const sat_problem *p, const sat_pattern_view *a) {
    bool transposed = p->matmul.transpose == SAT_TRANSPOSE;
    int64_t width = transposed ? a->max_col : a->max_row, rows = transposed ? a->grid_cols : a->grid_rows;
    return width * rows == a->stored_blocks ? width : 0;
}

/* ---- what it takes ---- */

/* One column is a vector, which the library sends elsewhere. */
static bool fits(const sat_problem *p, const sat_pattern_view *a) {
    if (!sat_libs_some(p, a) || !sat_libs_whole(a) || a->block_rows != a->block_cols || p->n < 2) return false;
    return sat_matrix_fits(INT_MAX, p->k, p->n, p->b.row_stride, p->b.col_stride) &&
           sat_matrix_fits(INT_MAX, p->m, p->n, p->c.row_stride, p->c.col_stride) &&
           sat_item_align(p->b_align, &p->b, p->batch, p->b_dtype) >= 16 &&
           (sat_libs_wide(p) || sat_item_align(p->c_align, &p->c, p->batch, p->c_dtype) >= 16);
}

static bool bsr_supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)d;
    return fits(p, a) && p->matmul.transpose == SAT_NO_TRANSPOSE &&
           sat_item_align(p->a_align, &p->a, p->batch, p->a_dtype) >= 16;
}

static bool lines_aligned(sat_dtype t, int64_t row_stride, int64_t col_stride) {
    return sat_max(row_stride, col_stride) * (int64_t)sat_dtype_size(t) % 16 == 0;
}

static bool ell_supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    if (!fits(p, a) || width_of(p, a) == 0 || p->n % ELL_COLUMNS != 0 || d->capability < 80) return false;
    if (p->a_dtype == SAT_F32 && !sat_libs_tf32(p)) return false;
    sat_matrix to = sat_libs_target(p, sat_libs_wide(p));
    return lines_aligned(p->b_dtype, p->b.row_stride, p->b.col_stride) &&
           lines_aligned(sat_libs_wide(p) ? SAT_F32 : p->c_dtype, to.row_stride, to.col_stride) &&
           values_bytes(p, a) <= (double)d->memory_bytes / 4;
}

/* On plain units whatever the dtype: an H200 does 13.4 TFLOPS in f16, 13.8 in f32, at blocks of 16 to 128. */
static double bsr_estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    return sat_libs_seconds(p, d, sat_flops(p, a), sat_libs_plain_rate(p, d, 0.25), sat_bytes(p, a),
                            sat_libs_finish_bytes(p, sat_libs_wide(p)));
}

/* On tensor cores: an H200 does 76 TFLOPS at blocks of 16, 170 to 220 from 32 on. */
static double ell_estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    double side = (double)a->block_rows, batch = (double)sat_max(1, p->batch);
    double rate = sat_libs_rate(p, d) * (side >= 32 ? 0.22 : 0.095 * side / 16);
    double copied = sat_libs_keeps(p) ? 0 : batch * 2 * values_bytes(p, a);
    return sat_libs_seconds(p, d, sat_flops(p, a), rate, sat_bytes(p, a),
                            copied + sat_libs_finish_bytes(p, sat_libs_wide(p)));
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)d;
    return plan_places(v, p, a).bytes;
}

/* ---- prepare ---- */

static void release(const sat_variant *v, void *state) {
    (void)v;
    spmm_state *st = state;
    if (!st) return;
    sat_cusparse_close(&st->library);
    free(st);
}

/* For BSR the row pointers, of 32 bits. For Blocked-ELL the columns: rows are equally long, so these are the pattern's,
 * one row after the other; and the row of each block, for the copy of the values. */
static sat_status upload_indices(const sat_prepare *p, const spmm_state *st) {
    bool ell = is_ell(p->variant);
    sat_rows r = sat_op_rows(p->problem, p->pattern);
    size_t bytes = (size_t)(ell ? p->pattern->stored_blocks : r.count + 1) * sizeof(int32_t);
    int32_t *made = malloc(bytes);
    if (!made) return sat_fail(SAT_OUT_OF_MEMORY, "%s: no memory on the host", p->variant->name);
    if (ell) sat_convert_rows(&r, made);
    else sat_convert_pointers(&r, made);
    void *index = sat_libs_place(p->workspace, st->at.index), *rows = sat_libs_place(p->workspace, st->at.rows);
    sat_status status = sat_libs_upload(p, ell ? rows : index, made, bytes);
    if (status == SAT_OK && ell) status = sat_libs_upload(p, index, r.col, bytes);
    free(made);
    return status;
}

static sat_status describe_sparse(const sat_prepare *p, spmm_state *st) {
    const sat_pattern_view *a = p->pattern;
    void *index = sat_libs_place(p->workspace, st->at.index), *values = sat_libs_place(p->workspace, st->at.values);
    if (is_ell(p->variant)) return sat_cusparse_ell(p, &st->library, width_of(p->problem, a), index, values);
    return sat_cusparse_bsr(p, &st->library, index, (void *)(uintptr_t)a->device_col_idx, p->problem->a_dtype);
}

static sat_status describe(const sat_prepare *p, spmm_state *st) {
    const sat_problem *x = p->problem;
    sat_matrix b = {NULL, x->b.row_stride, x->b.col_stride}, c = sat_libs_target(x, sat_libs_wide(x));
    sat_status status = sat_cusparse_open(p, &st->library);
    if (status == SAT_OK) status = describe_sparse(p, st);
    if (status == SAT_OK) status = sat_cusparse_dense(p, &st->library, 0, x->b_dtype, x->k, x->n, &b);
    if (status == SAT_OK)
        status = sat_cusparse_dense(p, &st->library, 1, sat_libs_wide(x) ? SAT_F32 : x->c_dtype, x->m, x->n, &c);
    return status == SAT_OK ? sat_cusparse_ask(p, &st->library, p->variant->instance.option, SAT_CUSPARSE_BUFFER)
                            : status;
}

static sat_status prepare(const sat_prepare *p, void **state) {
    spmm_state *st = calloc(1, sizeof *st);
    *state = NULL;
    if (!st) return sat_fail(SAT_OUT_OF_MEMORY, "%s: no memory on the host", p->variant->name);
    st->at = plan_places(p->variant, p->problem, p->pattern);
    sat_status status = upload_indices(p, st);
    if (status == SAT_OK) status = describe(p, st);
    if (status == SAT_OK) *state = st;
    else release(p->variant, st);
    return status;
}

/* ---- launch ---- */

static sat_status copy_values(const sat_launch *l, const spmm_state *st) {
    sat_unpack u = {.rows = sat_libs_place(l->workspace, st->at.rows),
                    .values = l->operands[0],
                    .to = sat_libs_place(l->workspace, st->at.values),
                    .stride = width_of(l->problem, l->pattern) * l->pattern->block_cols};
    return sat_libs_align_left(l, &u);
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
    if (status != SAT_OK || (!wide && !sat_libs_epilogue(p))) return status;
    sat_matrix to = sat_libs_target(p, wide);
    sat_finishing f = {.sum = sum, .row_stride = to.row_stride, .col_stride = to.col_stride};
    return sat_libs_finish(l, &f);
}

SAT_FAMILY(cuda_matmul_cusparse_bsr) = {
    .version = sat_cusparse_bsr_version,
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .flags = SAT_V_LIBRARY,
    .about = "cuSPARSE on BSR; whole square blocks, not transposed",
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
    .about = "cuSPARSE on Blocked-ELL; whole square blocks, as many in every row, columns by 16",
    .supports = ell_supports,
    .estimate = ell_estimate,
    .workspace = workspace,
    .prepare = prepare,
    .refresh = ell_refresh,
    .launch = launch,
    .release = release,
};
