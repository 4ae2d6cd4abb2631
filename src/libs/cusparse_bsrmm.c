// cuda_matmul_cusparse_bsrmm: cuSPARSE's older product on BSR, for versions whose SpMM does not know the format yet.
// f32 and f64, whole square blocks, op(A) = A, C column-major.

#include <limits.h>
#include <stdlib.h>

#include "libs/convert.h"
#include "libs/cuda_kernels.h"
#include "libs/cusparse.h"
#include "libs/library.h"

enum { BY_ROWS = 0, AS_IT_IS = 0, TRANSPOSED = 1 }; /* as cusparse.h numbers them */

typedef int bsrmm(void *handle, int direction, int op_a, int op_b, int grid_rows, int n, int grid_cols, int blocks,
                  const void *alpha, void *description, const void *values, const int *row_ptr, const int *col_idx,
                  int side, const void *b, int ldb, const void *beta, void *c, int ldc);

static struct {
    bsrmm *single, *wide;
    int (*describe)(void **description);
    int (*forget)(void *description);
} api;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool usable;

static void load(void) {
    static const char *const symbols[] = {"cusparseSbsrmm", "cusparseDbsrmm", "cusparseCreateMatDescr",
                                          "cusparseDestroyMatDescr"};
    void *f[4], *library = sat_cusparse_library();
    _Static_assert(sizeof api == sizeof f, "a symbol for each function");
    usable = library && sat_library_symbols(library, symbols, f, 4);
    if (usable) memcpy(&api, f, sizeof f);
}

static const char *version(void) {
    pthread_once(&once, load);
    return usable ? sat_cusparse_version() : NULL;
}

typedef struct bsrmm_state {
    sat_cusparse library;
    void *description;
    int ldb, ldc;
    bool b_rows; /* B is row-major, which is a column-major transpose */
} bsrmm_state;

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)d;
    int64_t side = a->block_rows, leading;
    if (p->a_dtype != SAT_F32 && p->a_dtype != SAT_F64) return false;
    if (!sat_libs_some(p, a) || !sat_libs_whole(a) || p->matmul.transpose != SAT_NO_TRANSPOSE) return false;
    if (side != a->block_cols || side < 2 || p->n > (side <= 4 ? 524272 : 262136)) return false;
    if (a->grid_rows > (side <= 8 ? 524272 : 65534) || p->m > INT_MAX || p->k > INT_MAX) return false;
    sat_matrix c = {NULL, p->c.row_stride, p->c.col_stride};
    return sat_matrix_fits(INT_MAX, p->k, p->n, p->b.row_stride, p->b.col_stride) &&
           sat_matrix_fits(INT_MAX, p->m, p->n, p->c.row_stride, p->c.col_stride) &&
           !sat_matrix_row_major(&c, p->m, p->n, &leading);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    return sat_libs_seconds(p, d, sat_flops(p, a), sat_libs_plain_rate(p, d, 0.15), sat_bytes(p, a),
                            sat_libs_finish_bytes(p, false));
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)p, (void)d;
    return (size_t)(a->grid_rows + 1) * sizeof(int32_t); /* row pointers of 32 bits */
}

static void release(const sat_variant *v, void *state) {
    (void)v;
    bsrmm_state *st = state;
    if (!st) return;
    if (st->description) api.forget(st->description);
    sat_cusparse_close(&st->library);
    free(st);
}

static sat_status upload_indices(const sat_prepare *p) {
    sat_rows r = sat_op_rows(p->problem, p->pattern);
    size_t bytes = (size_t)(r.count + 1) * sizeof(int32_t);
    int32_t *index = malloc(bytes);
    if (!index) return sat_fail(SAT_OUT_OF_MEMORY, "%s: no memory on the host", p->variant->name);
    sat_convert_pointers(&r, index);
    sat_status status = sat_libs_upload(p, p->workspace, index, bytes);
    free(index);
    return status;
}

static sat_status prepare(const sat_prepare *p, void **state) {
    const sat_problem *q = p->problem;
    bsrmm_state *st = calloc(1, sizeof *st);
    *state = NULL;
    if (!st) return sat_fail(SAT_OUT_OF_MEMORY, "%s: no memory on the host", p->variant->name);
    sat_matrix b = {NULL, q->b.row_stride, q->b.col_stride}, c = {NULL, q->c.row_stride, q->c.col_stride};
    int64_t ldb, ldc;
    st->b_rows = sat_matrix_row_major(&b, q->k, q->n, &ldb);
    (void)sat_matrix_row_major(&c, q->m, q->n, &ldc);
    st->ldb = (int)ldb, st->ldc = (int)ldc;
    sat_status status = upload_indices(p);
    if (status == SAT_OK) status = sat_cusparse_open(p, &st->library);
    if (status == SAT_OK) status = sat_cusparse_judge(api.describe(&st->description), p->variant);
    if (status == SAT_OK) *state = st;
    else release(p->variant, st);
    return status;
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const sat_pattern_view *a = l->pattern;
    const bsrmm_state *st = l->state;
    sat_scalar x = sat_libs_scalar(p, p->alpha), y = sat_libs_scalar(p, p->beta);
    sat_status status = sat_cusparse_bind(l, &st->library);
    if (status != SAT_OK) return status;
    int code = (p->a_dtype == SAT_F64 ? api.wide : api.single)(
        st->library.handle, BY_ROWS, AS_IT_IS, st->b_rows ? TRANSPOSED : AS_IT_IS, (int)a->grid_rows, (int)p->n,
        (int)a->grid_cols, (int)a->stored_blocks, &x, st->description, l->operands[0], l->workspace, a->device_col_idx,
        (int)a->block_rows, l->operands[1], st->ldb, &y, l->operands[2], st->ldc);
    status = sat_cusparse_judge(code, l->variant);
    if (status != SAT_OK || !sat_libs_epilogue(p)) return status;
    return sat_libs_finish(l, &(sat_finishing){.sum = NULL});
}

SAT_FAMILY(cuda_matmul_cusparse_bsrmm) = {
    .version = version,
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .flags = SAT_V_LIBRARY,
    .about = "cuSPARSE's older BSR product; f32, f64, whole square blocks, C column-major",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = release,
};
