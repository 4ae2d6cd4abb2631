// cpu_matmul_mkl_bsr: MKL's own product of a BSR and a dense matrix. Square blocks that fill the matrix, B and C in the
// same storage order; MKL knows the transpose in row-major order alone. The columns of B are cut into slabs, each a
// call of its own on one of our threads.

#include <limits.h>
#include <stdlib.h>

#include "libs/blas.h"
#include "libs/library.h"
#include "libs/mkl.h"
#include "libs/room.h"

/* As mkl_spblas.h numbers them. */
enum { ROW_MAJOR = 101, COL_MAJOR = 102, BASE_ZERO = 0, NO_TRANSPOSE = 10, TRANSPOSE = 11, GENERAL = 20, SUCCESS = 0 };

typedef struct description {
    int type, mode, diagonal;
} description;

typedef int (*create_32)(void **, int, int, int, int, int, void *, void *, void *, void *);
typedef int (*create_64)(void **, int, int, int64_t, int64_t, int64_t, void *, void *, void *, void *);
typedef int (*multiply_s32)(int, float, void *, description, int, const void *, int, int, float, void *, int);
typedef int (*multiply_d32)(int, double, void *, description, int, const void *, int, int, double, void *, int);
typedef int (*multiply_s64)(int, float, void *, description, int, const void *, int64_t, int64_t, float, void *,
                            int64_t);
typedef int (*multiply_d64)(int, double, void *, description, int, const void *, int64_t, int64_t, double, void *,
                            int64_t);

/* Looked up in prepare, since only then is MKL sure to be there. */
typedef struct bsr_state {
    const sat_mkl *mkl;
    void *create, *multiply;
    int (*destroy)(void *);
    void *row_ptr, *col_idx; /* in MKL's integers */
} bsr_state;

enum { SLAB = 512 };

static bool row_major(const sat_problem *p) { return p->b.col_stride == 1 && p->c.col_stride == 1; }

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    if (!sat_room_to_run(d->threads)) return false;
    if (p->a_dtype != SAT_F32 && p->a_dtype != SAT_F64) return false;
    if (p->b_dtype != p->a_dtype || p->c_dtype != p->a_dtype || p->compute_dtype != p->a_dtype) return false;
    if (a->block_rows != a->block_cols || a->rows % a->block_rows || a->cols % a->block_cols) return false;
    if (a->stored_blocks == 0 || p->n == 0) return false;
    /* MKL takes one column for a vector without gaps. */
    if (p->n == 1 && (p->b.row_stride != 1 || p->c.row_stride != 1)) return false;
    bool rows = row_major(p) && p->b.row_stride >= p->n && p->c.row_stride >= p->n;
    bool cols = p->b.row_stride == 1 && p->c.row_stride == 1 && p->b.col_stride >= p->k && p->c.col_stride >= p->m;
    if (!rows && (!cols || p->matmul.transpose == SAT_TRANSPOSE)) return false;
    int64_t most = sat_max(a->stored_blocks * a->block_rows * a->block_cols, sat_max(p->m, sat_max(p->k, p->n)));
    int64_t stride = sat_max(sat_max(p->b.row_stride, p->b.col_stride), sat_max(p->c.row_stride, p->c.col_stride));
    return sat_max(most, stride) < INT_MAX;
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    double reached = row_major(p) ? 0.1 : 0.01; /* on processors of other makers; Intel's own do better */
    return sat_roofline(d, p->compute_dtype, sat_flops(p, a), reached, sat_bytes(p, a)) + 1e-5;
}

static void release(const sat_variant *v, void *state) {
    (void)v;
    bsr_state *st = state;
    if (!st) return;
    free(st->row_ptr);
    free(st->col_idx);
    free(st);
}

static void copy_indices(const bsr_state *st, const sat_pattern_view *a) {
    for (int64_t i = 0; i <= a->grid_rows; i++)
        if (st->mkl->wide) ((int64_t *)st->row_ptr)[i] = a->row_ptr[i];
        else ((int32_t *)st->row_ptr)[i] = (int32_t)a->row_ptr[i];
    for (int64_t t = 0; t < a->stored_blocks; t++)
        if (st->mkl->wide) ((int64_t *)st->col_idx)[t] = a->col_idx[t];
        else ((int32_t *)st->col_idx)[t] = a->col_idx[t];
}

static sat_status prepare(const sat_prepare *prepare, void **state) {
    bool wide = prepare->problem->a_dtype == SAT_F64;
    const char *const symbols[] = {wide ? "mkl_sparse_d_create_bsr" : "mkl_sparse_s_create_bsr",
                                   wide ? "mkl_sparse_d_mm" : "mkl_sparse_s_mm", "mkl_sparse_destroy"};
    const sat_pattern_view *a = prepare->pattern;
    void *f[3];
    const sat_mkl *mkl = sat_mkl_get();
    if (!mkl || !sat_library_symbols(mkl->library, symbols, f, 3))
        return sat_fail(SAT_LIBRARY_ERROR, "MKL lacks %s", symbols[0]);
    bsr_state *st = calloc(1, sizeof *st);
    if (!st) return sat_fail(SAT_OUT_OF_MEMORY, "no memory for MKL's indices");
    size_t size = mkl->wide ? 8 : 4;
    *st = (bsr_state){.mkl = mkl, .create = f[0], .multiply = f[1], .destroy = (int (*)(void *))f[2]};
    st->row_ptr = malloc(((size_t)a->grid_rows + 1) * size);
    st->col_idx = malloc((size_t)a->stored_blocks * size);
    if (!st->row_ptr || !st->col_idx) {
        release(prepare->variant, st);
        return sat_fail(SAT_OUT_OF_MEMORY, "no memory for MKL's indices");
    }
    copy_indices(st, a);
    *state = st;
    return SAT_OK;
}

/* A handle only points at the arrays, so each thread makes its own. */
static int create(const sat_launch *l, const bsr_state *st, void **handle) {
    const sat_pattern_view *a = l->pattern;
    void *values = l->operands[0];
    if (st->mkl->wide)
        return ((create_64)st->create)(handle, BASE_ZERO, ROW_MAJOR, a->grid_rows, a->grid_cols, a->block_rows,
                                       st->row_ptr, (int64_t *)st->row_ptr + 1, st->col_idx, values);
    return ((create_32)st->create)(handle, BASE_ZERO, ROW_MAJOR, (int)a->grid_rows, (int)a->grid_cols,
                                   (int)a->block_rows, st->row_ptr, (int32_t *)st->row_ptr + 1, st->col_idx, values);
}

static int multiply(const sat_launch *l, const bsr_state *st, void *handle, int64_t j, int64_t cols) {
    const sat_problem *p = l->problem;
    const description general = {.type = GENERAL};
    int op = p->matmul.transpose == SAT_TRANSPOSE ? TRANSPOSE : NO_TRANSPOSE;
    int order = row_major(p) ? ROW_MAJOR : COL_MAJOR;
    int64_t ldb = row_major(p) ? p->b.row_stride : p->b.col_stride;
    int64_t ldc = row_major(p) ? p->c.row_stride : p->c.col_stride;
    const void *b = sat_at(p->b_dtype, l->operands[1], j * p->b.col_stride);
    void *c = sat_at(p->c_dtype, l->operands[2], j * p->c.col_stride);
    if (p->a_dtype == SAT_F64 && st->mkl->wide)
        return ((multiply_d64)st->multiply)(op, p->alpha, handle, general, order, b, cols, ldb, p->beta, c, ldc);
    if (p->a_dtype == SAT_F64)
        return ((multiply_d32)st->multiply)(op, p->alpha, handle, general, order, b, (int)cols, (int)ldb, p->beta, c,
                                            (int)ldc);
    if (st->mkl->wide)
        return ((multiply_s64)st->multiply)(op, (float)p->alpha, handle, general, order, b, cols, ldb, (float)p->beta,
                                            c, ldc);
    return ((multiply_s32)st->multiply)(op, (float)p->alpha, handle, general, order, b, (int)cols, (int)ldb,
                                        (float)p->beta, c, (int)ldc);
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const bsr_state *st = l->state;
    int64_t slabs = (p->n + SLAB - 1) / SLAB; /* of like width: never a single column of many */
    int failure = SUCCESS;
    sat_status room = sat_room_check(l);
    if (room != SAT_OK) return room;
#pragma omp parallel num_threads(l->threads)
    {
        void *handle = NULL;
        int token = st->mkl->set_threads(1), status = create(l, st, &handle);
#pragma omp for schedule(dynamic, 1)
        for (int64_t slab = 0; slab < slabs; slab++) {
            int64_t from = p->n * slab / slabs, cols = p->n * (slab + 1) / slabs - from;
            sat_matrix c = {l->operands[2], p->c.row_stride, p->c.col_stride};
            sat_matrix tile = sat_matrix_at(p->c_dtype, &c, 0, from);
            if (status == SUCCESS) status = multiply(l, st, handle, from, cols);
            if (status == SUCCESS) sat_blas_finish(l, &tile, 0, p->m, cols);
        }
        if (handle) st->destroy(handle);
        st->mkl->set_threads(token);
        if (status != SUCCESS) {
#pragma omp atomic write
            failure = status;
        }
    }
    return failure == SUCCESS ? SAT_OK : sat_fail(SAT_LIBRARY_ERROR, "MKL's BSR product gave status %d", failure);
}

SAT_FAMILY(cpu_matmul_mkl_bsr) = {
    .version = sat_mkl_version,
    .op = SAT_MATMUL,
    .backend = SAT_CPU,
    .flags = SAT_V_LIBRARY,
    .about = "MKL's BSR product; square blocks that fill the matrix, f32, f64",
    .supports = supports,
    .estimate = estimate,
    .prepare = prepare,
    .launch = launch,
    .release = release,
};
