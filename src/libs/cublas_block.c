// cuBLAS on the stored blocks, by batched products whose pointers a small kernel fills in at every launch.
//
// Matmul: round t multiplies block t of every row that has so many, all in one call, and adds to what the rounds before
// it left: no two products of a call meet in C, so the sum is the same every time. As many calls as the heaviest row
// has blocks. For 16-bit results the sums are kept in f32 and rounded once at the end.
// Sampled: all blocks in one call; into f32 where 16-bit results are to be added to what is there.

#include <limits.h>
#include <stdlib.h>

#include "libs/convert.h"
#include "libs/cublas.h"
#include "libs/cuda_kernels.h"

typedef struct places { /* of the workspace */
    size_t at, row, pointers[3], sum, library, bytes;
} places;

typedef struct block_state {
    places at;
    sat_gemm gemm;
    void *handle;
    int device;
    bool some_empty; /* rows of op(A) without blocks */
    int64_t depth, *first;
} block_state;

static bool sums_apart(const sat_problem *p) {
    return p->op == SAT_MATMUL ? sat_libs_narrow(p->c_dtype) : sat_libs_wide(p);
}

static places plan_places(const sat_problem *p, const sat_pattern_view *a) {
    places x = {0};
    double blocks = (double)a->stored_blocks;
    double sums = p->op == SAT_MATMUL ? (double)p->m * (double)p->n : (double)a->stored_elements;
    x.at = sat_carve(&x.bytes, 4 * blocks);
    x.row = sat_carve(&x.bytes, 4 * blocks);
    for (int i = 0; i < 3; i++) x.pointers[i] = sat_carve(&x.bytes, 8 * blocks);
    x.sum = sat_carve(&x.bytes, sums_apart(p) ? 4 * sums : 0);
    x.library = sat_carve(&x.bytes, SAT_CUBLAS_WORKSPACE);
    return x;
}

/* Elements from one block (row, column) to the next in each operand, as sat_libs_point wants it. */
typedef struct steps {
    int64_t step[3];
    int by[3];
} steps;

static steps plan_steps(const sat_problem *p, const sat_pattern_view *a) {
    int64_t area = a->block_rows * a->block_cols;
    if (p->op == SAT_SAMPLED)
        return (steps){{a->block_rows * p->a.row_stride, a->block_cols * p->b.col_stride, area},
                       {SAT_BY_ROW, SAT_BY_COL, SAT_BY_BLOCK}};
    sat_rows r = sat_op_rows(p, a);
    sat_matrix to = sat_libs_target(p, sums_apart(p));
    return (steps){{area, r.bc * p->b.row_stride, r.br * to.row_stride}, {SAT_BY_BLOCK, SAT_BY_COL, SAT_BY_ROW}};
}

static bool make_gemm(sat_gemm *g, const sat_problem *p, const sat_pattern_view *a) {
    sat_matrix b = {NULL, p->b.row_stride, p->b.col_stride};
    sat_dtype c = sums_apart(p) ? SAT_F32 : p->c_dtype;
    if (p->op == SAT_SAMPLED) {
        sat_matrix x = {NULL, p->a.row_stride, p->a.col_stride}, s = {NULL, a->block_cols, 1};
        return sat_gemm_make(g, p, c, a->block_rows, a->block_cols, p->k, &x, &b, &s);
    }
    sat_rows r = sat_op_rows(p, a);
    sat_matrix block = {NULL, r.row_step, r.col_step}, to = sat_libs_target(p, sums_apart(p));
    return sat_matrix_fits(INT_MAX, p->m, p->n, p->c.row_stride, p->c.col_stride) &&
           sat_gemm_make(g, p, c, r.br, p->n, r.bc, &block, &b, &to);
}

/* The library sees pointers only on the device, so it must be able to rely on 16 bytes for each of them. */
static bool aligned(const sat_problem *p, const sat_pattern_view *a) {
    steps s = plan_steps(p, a);
    int64_t ab = (int64_t)sat_dtype_size(p->a_dtype), c = sums_apart(p) ? 4 : (int64_t)sat_dtype_size(p->c_dtype);
    if (s.step[0] * ab % 16 || s.step[1] * ab % 16 || s.step[2] * c % 16) return false;
    return sat_item_align(p->a_align, &p->a, p->batch, p->a_dtype) >= 16 &&
           sat_item_align(p->b_align, &p->b, p->batch, p->b_dtype) >= 16 &&
           (sums_apart(p) || sat_item_align(p->c_align, &p->c, p->batch, p->c_dtype) >= 16);
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)d;
    sat_gemm g;
    return sat_libs_some(p, a) && sat_libs_whole(a) && make_gemm(&g, p, a) && aligned(p, a);
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)d;
    return plan_places(p, a).bytes;
}

static double block_rate(const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    double side = sqrt((double)a->block_rows * (double)a->block_cols);
    return sat_libs_rate(p, d) * 0.6 * side / (side + 128);
}

static double matmul_estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                              const sat_device *d) {
    (void)v;
    double rounds = (double)(p->matmul.transpose == SAT_TRANSPOSE ? a->max_col : a->max_row);
    double batch = (double)sat_max(1, p->batch), size = (double)sat_dtype_size(p->c_dtype);
    double rows =
        (double)a->stored_blocks * (double)(p->matmul.transpose == SAT_TRANSPOSE ? a->block_cols : a->block_rows);
    double moved = 2 * (size > 4 ? size : 4) * rows * (double)p->n * batch; /* the sums pass by once a block */
    double rate = moved / (2 * rounds) < (double)d->l2_bytes / 2 ? 0.87 * d->l2_rate : d->memory_rate;
    double extra = sat_libs_finish_bytes(p, sums_apart(p));
    double time = sat_flops(p, a) / block_rate(p, a, d) + moved / rate + (sat_bytes(p, a) + extra) / d->memory_rate;
    return time + batch * (rounds * 3e-6 + 6e-6);
}

static double sampled_estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                               const sat_device *d) {
    (void)v;
    double batch = (double)sat_max(1, p->batch);
    double bytes = sat_bytes(p, a) + sat_libs_pass_bytes(p, sums_apart(p), (double)a->stored_elements);
    return sat_flops(p, a) / block_rate(p, a, d) + bytes / d->memory_rate + batch * 8e-6;
}

/* ---- prepare ---- */

static void release(const sat_variant *v, void *state) {
    (void)v;
    block_state *st = state;
    if (!st) return;
    sat_cublas_close(st->handle, st->device);
    free(st->first);
    free(st);
}

/* Which blocks come in which round. The sampled product has one, in the order of the blocks. */
static sat_status schedule(const sat_prepare *p, block_state *st) {
    int64_t blocks = p->pattern->stored_blocks;
    sat_rows r = sat_op_rows(p->problem, p->pattern);
    st->depth = p->problem->op == SAT_MATMUL ? sat_convert_widest(&r) : 1;
    st->first = malloc((size_t)(st->depth + 1) * sizeof *st->first);
    int32_t *at = malloc((size_t)blocks * 2 * sizeof *at);
    if (!at || !st->first) {
        free(at);
        return sat_fail(SAT_OUT_OF_MEMORY, "%s: no memory on the host", p->variant->name);
    }
    int32_t *row = at + blocks;
    if (p->problem->op == SAT_MATMUL) {
        sat_convert_rounds(&r, st->depth, st->first, at, row);
        st->some_empty = st->first[1] < r.count;
    } else {
        for (int64_t t = 0; t < blocks; t++) at[t] = (int32_t)t;
        sat_convert_rows(&r, row);
        st->first[0] = 0, st->first[1] = blocks;
    }
    size_t bytes = (size_t)blocks * sizeof *at;
    sat_status status = sat_libs_upload(p, sat_libs_place(p->workspace, st->at.at), at, bytes);
    if (status == SAT_OK) status = sat_libs_upload(p, sat_libs_place(p->workspace, st->at.row), row, bytes);
    free(at);
    return status;
}

static sat_status prepare(const sat_prepare *p, void **state) {
    block_state *st = calloc(1, sizeof *st);
    *state = NULL;
    if (!st) return sat_fail(SAT_OUT_OF_MEMORY, "%s: no memory on the host", p->variant->name);
    st->at = plan_places(p->problem, p->pattern);
    st->device = p->device->index;
    sat_status status = make_gemm(&st->gemm, p->problem, p->pattern)
                            ? SAT_OK
                            : sat_fail(SAT_UNSUPPORTED, "%s: strides or sizes", p->variant->name);
    if (status == SAT_OK) status = sat_cublas_open(p, &st->handle);
    if (status == SAT_OK) status = schedule(p, st);
    if (status == SAT_OK) *state = st;
    else release(p->variant, st);
    return status;
}

/* ---- launch ---- */

static sat_status point(const sat_launch *l, const block_state *st, void *to, const void **pointers[3]) {
    const sat_problem *p = l->problem;
    steps s = plan_steps(p, l->pattern);
    int64_t ab = (int64_t)sat_dtype_size(p->a_dtype), c = (int64_t)sat_dtype_size(st->gemm.c);
    sat_pointers x = {.count = l->pattern->stored_blocks,
                      .at = sat_libs_place(l->workspace, st->at.at),
                      .row = sat_libs_place(l->workspace, st->at.row),
                      .base = {l->operands[0], l->operands[1], to},
                      .step = {s.step[0] * ab, s.step[1] * ab, s.step[2] * c}};
    for (int i = 0; i < 3; i++) x.to[i] = pointers[i] = sat_libs_place(l->workspace, st->at.pointers[i]);
    return sat_libs_status(sat_libs_point(p, l->pattern, &x, s.by, l->stream), l->variant, "filling pointer arrays");
}

/* What comes after the products: sums to be rounded, rows that no product has touched, bias and activation. */
static sat_status finish(const sat_launch *l, const block_state *st, const float *sum) {
    const sat_problem *p = l->problem;
    if (p->op == SAT_SAMPLED) return sum ? sat_libs_status(sat_libs_merge(l, sum), l->variant, "the epilogue") : SAT_OK;
    if (!sum && !st->some_empty && !sat_libs_epilogue(p)) return SAT_OK;
    sat_matrix sums = sat_libs_target(p, sum != NULL);
    sat_finishing f = {
        .sum = sum, .row_stride = sums.row_stride, .col_stride = sums.col_stride, .check_empty = st->some_empty};
    return sat_libs_finish(l, &f);
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const block_state *st = l->state;
    bool apart = sums_apart(p);
    void *to = apart ? sat_libs_place(l->workspace, st->at.sum) : l->operands[2];
    const void **x[3];
    sat_status status = point(l, st, to, x);
    if (status == SAT_OK) status = sat_cublas_bind(l, st->handle, sat_libs_place(l->workspace, st->at.library));
    for (int64_t t = 0; t < st->depth && status == SAT_OK; t++) {
        int64_t at = st->first[t];
        double beta = t > 0 ? 1 : apart ? 0 : p->beta;
        status = sat_cublas_gemm_batched(l, st->handle, &st->gemm, p->alpha, x[0] + at, x[1] + at, beta, x[2] + at,
                                         st->first[t + 1] - at);
    }
    return status == SAT_OK ? finish(l, st, apart ? to : NULL) : status;
}

#define BLOCK(operation, estimated, words)                                                                             \
    {                                                                                                                  \
        .version = sat_cublas_version, .op = operation, .backend = SAT_CUDA, .flags = SAT_V_LIBRARY, .about = words,   \
        .supports = supports, .estimate = estimated, .workspace = workspace, .prepare = prepare, .launch = launch,     \
        .release = release                                                                                             \
    }

SAT_FAMILY(cuda_matmul_cublas_block) = BLOCK(SAT_MATMUL, matmul_estimate,
                                             "cuBLAS, batched over the blocks; aligned, whole blocks");
SAT_FAMILY(cuda_sampled_cublas_block) = BLOCK(SAT_SAMPLED, sampled_estimate,
                                              "cuBLAS, batched over the blocks; aligned, whole blocks");
