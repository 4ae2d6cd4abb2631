// The matmul by cuSPARSE's SpMM on CSR: single elements, and blocks with a thin side, whose elements become entries one
// by one. The entries are those of op(A), so the library never transposes, which it does by atomic additions. Their
// values are copied from the order of the blocks, but where that is the order of the entries already: 1xC blocks, not
// transposed. Its algorithm 2 may sum in another order from run to run, says its manual. Algorithms 1 and 3 are
// left out: they let NaN of rows of B through that they should not touch, 1 in the last row of C (cuSPARSE 12.6.3).
// Sums of several parts are rounded once only where they are f32 or f64, so 16-bit results are made of f32 sums here.

#include <limits.h>
#include <stdlib.h>

#include "libs/convert.h"
#include "libs/cuda_kernels.h"
#include "libs/cusparse.h"

enum { THIN = 16 }; /* blocks whose shorter side is below this */

typedef struct places { /* of the workspace */
    size_t pointers, columns, from, values, sum, buffer, buffer_bytes, bytes;
} places;

typedef struct csr_state {
    places at;
    sat_cusparse library;
} csr_state;

/* Columns and values are the pattern's own. Those of blocks of one element are, the columns also where transposed. */
static bool own_columns(const sat_pattern_view *a) { return a->block_rows == 1 && a->block_cols == 1; }

static bool own_values(const sat_problem *p, const sat_pattern_view *a) {
    sat_rows r = sat_op_rows(p, a);
    return sat_convert_csr_in_order(&r);
}

static bool sums_apart(const sat_problem *p) { return sat_libs_narrow(p->c_dtype); }

static double copied_bytes(const sat_problem *p, const sat_pattern_view *a) {
    return own_values(p, a) ? 0 : (double)a->stored_elements * (double)sat_dtype_size(p->a_dtype);
}

/* What the library asks for is known only later; its needs grow with the entries and the rows. */
static places plan_places(const sat_problem *p, const sat_pattern_view *a) {
    places x = {0};
    double entries = 4 * (double)a->stored_elements, rows = 4 * ((double)p->m + 1);
    double buffer = SAT_CUSPARSE_BUFFER + 4 * entries + 4 * rows;
    x.pointers = sat_carve(&x.bytes, rows);
    x.columns = sat_carve(&x.bytes, own_columns(a) ? 0 : entries);
    x.from = sat_carve(&x.bytes, own_values(p, a) ? 0 : entries);
    x.values = sat_carve(&x.bytes, copied_bytes(p, a));
    x.sum = sat_carve(&x.bytes, sums_apart(p) ? 4.0 * (double)p->m * (double)p->n : 0);
    x.buffer = sat_carve(&x.bytes, buffer);
    x.buffer_bytes = x.bytes - x.buffer;
    return x;
}

/* ---- what it takes ---- */

/* One column is a vector, which the library sends elsewhere. */
static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    if (!sat_libs_some(p, a) || !sat_convert_csr_thin(a, THIN) || p->n < 2 || a->stored_elements == 0) return false;
    if ((double)a->stored_blocks * (double)a->block_rows * (double)a->block_cols >= INT_MAX) return false;
    if (16.0 * (double)a->stored_elements > (double)d->memory_bytes / 4) return false;
    if (own_values(p, a) && sat_item_align(p->a_align, &p->a, p->batch, p->a_dtype) < 16) return false;
    return sat_matrix_fits(INT_MAX, p->k, p->n, p->b.row_stride, p->b.col_stride) &&
           sat_matrix_fits(INT_MAX, p->m, p->n, p->c.row_stride, p->c.col_stride) &&
           sat_item_align(p->b_align, &p->b, p->batch, p->b_dtype) >= 16 &&
           (sums_apart(p) || sat_item_align(p->c_align, &p->c, p->batch, p->c_dtype) >= 16);
}

/* On plain units: an H200 does 1.6 to 4 TFLOPS, whatever the dtype. */
static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    double copied = 2 * copied_bytes(p, a) + (own_values(p, a) ? 0 : 4 * (double)a->stored_elements);
    if (sat_libs_keeps(p)) copied = 0;
    return sat_libs_seconds(p, d, sat_flops(p, a), sat_libs_plain_rate(p, d, 0.06), sat_bytes(p, a),
                            copied * (double)sat_max(1, p->batch) + sat_libs_finish_bytes(p, sums_apart(p)));
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)d;
    return plan_places(p, a).bytes;
}

/* ---- prepare ---- */

static void release(const sat_variant *v, void *state) {
    (void)v;
    csr_state *st = state;
    if (!st) return;
    sat_cusparse_close(&st->library);
    free(st);
}

static sat_status upload_indices(const sat_prepare *p, const csr_state *st) {
    const sat_pattern_view *a = p->pattern;
    sat_rows r = sat_op_rows(p->problem, a);
    size_t rows = (size_t)(r.m + 1) * sizeof(int32_t), entries = (size_t)a->stored_elements * sizeof(int32_t);
    int32_t *ptr = malloc(rows), *col = malloc(entries), *from = malloc(entries);
    sat_status status =
        ptr && col && from ? SAT_OK : sat_fail(SAT_OUT_OF_MEMORY, "%s: no memory on the host", p->variant->name);
    if (status == SAT_OK) {
        sat_convert_csr(&r, ptr, col, from);
        status = sat_libs_upload(p, sat_libs_place(p->workspace, st->at.pointers), ptr, rows);
    }
    if (status == SAT_OK && !own_columns(a))
        status = sat_libs_upload(p, sat_libs_place(p->workspace, st->at.columns), col, entries);
    if (status == SAT_OK && !own_values(p->problem, a))
        status = sat_libs_upload(p, sat_libs_place(p->workspace, st->at.from), from, entries);
    free(ptr), free(col), free(from);
    return status;
}

static void *columns_of(const sat_prepare *p, const csr_state *st) {
    const sat_pattern_view *a = p->pattern;
    if (!own_columns(a)) return sat_libs_place(p->workspace, st->at.columns);
    return (void *)(uintptr_t)(sat_transposed(p->problem) ? a->device_t_row : a->device_col_idx);
}

static sat_status describe(const sat_prepare *p, csr_state *st) {
    const sat_problem *x = p->problem;
    sat_cusparse_call call = p->variant->instance.option;
    sat_matrix b = {NULL, x->b.row_stride, x->b.col_stride}, c = sat_libs_target(x, sums_apart(x));
    sat_status status = sat_cusparse_open(p, &st->library);
    if (status == SAT_OK)
        status = sat_cusparse_csr(p, &st->library, sat_libs_place(p->workspace, st->at.pointers), columns_of(p, st));
    if (status == SAT_OK) status = sat_cusparse_dense(p, &st->library, 0, x->b_dtype, x->k, x->n, &b);
    if (status == SAT_OK)
        status = sat_cusparse_dense(p, &st->library, 1, sums_apart(x) ? SAT_F32 : x->c_dtype, x->m, x->n, &c);
    if (status == SAT_OK) status = sat_cusparse_ask(p, &st->library, call, st->at.buffer_bytes);
    if (status == SAT_OK)
        status = sat_cusparse_look(p, &st->library, call, sat_libs_place(p->workspace, st->at.buffer));
    return status;
}

static sat_status prepare(const sat_prepare *p, void **state) {
    csr_state *st = calloc(1, sizeof *st);
    *state = NULL;
    if (!st) return sat_fail(SAT_OUT_OF_MEMORY, "%s: no memory on the host", p->variant->name);
    st->at = plan_places(p->problem, p->pattern);
    sat_status status = upload_indices(p, st);
    if (status == SAT_OK) status = describe(p, st);
    if (status == SAT_OK) *state = st;
    else release(p->variant, st);
    return status;
}

/* ---- launch ---- */

static sat_status copy_values(const sat_launch *l, const csr_state *st) {
    if (own_values(l->problem, l->pattern)) return SAT_OK;
    cudaError_t error =
        sat_libs_gather(l->problem->a_dtype, l->operands[0], sat_libs_place(l->workspace, st->at.from),
                        sat_libs_place(l->workspace, st->at.values), l->pattern->stored_elements, l->stream);
    return sat_libs_status(error, l->variant, "ordering the values");
}

static sat_status refresh(const sat_launch *l) {
    return sat_libs_keeps(l->problem) ? copy_values(l, l->state) : SAT_OK;
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const csr_state *st = l->state;
    bool apart = sums_apart(p), own = own_values(p, l->pattern);
    void *sum = apart ? sat_libs_place(l->workspace, st->at.sum) : NULL;
    sat_status status = sat_libs_keeps(p) ? SAT_OK : copy_values(l, st);
    void *pointers[3] = {own ? l->operands[0] : sat_libs_place(l->workspace, st->at.values), l->operands[1],
                         apart ? sum : l->operands[2]};
    if (status == SAT_OK)
        status = sat_cusparse_run(l, &st->library, l->variant->instance.option, apart ? 0 : p->beta, pointers,
                                  sat_libs_place(l->workspace, st->at.buffer));
    if (status != SAT_OK || (!apart && !sat_libs_epilogue(p))) return status;
    sat_matrix to = sat_libs_target(p, apart);
    sat_finishing f = {.sum = sum, .row_stride = to.row_stride, .col_stride = to.col_stride};
    return sat_libs_finish(l, &f);
}

SAT_FAMILY(cuda_matmul_cusparse_csr) = {
    .version = sat_cusparse_version,
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .flags = SAT_V_LIBRARY | SAT_V_NONDETERMINISTIC,
    .about = "cuSPARSE on CSR; single elements and thin blocks, op(A) as it is or transposed",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .refresh = refresh,
    .launch = launch,
    .release = release,
};
