// MKL's own products of a sparse and a dense matrix. B and C have the same storage order. What is cut for threads is a
// call of its own on one of ours.
//   bsr: square blocks that fill the matrix; MKL knows the transpose in row-major order alone. The columns of B are cut
//        into slabs.
//   csr: single elements, and blocks with a thin side, whose elements become entries one by one. The entries are those
//        of op(A), so MKL never transposes. Their values are copied from the order of the blocks, but where that is the
//        order of the entries already. The rows are cut into strips of like work, besides the slabs.

#include <limits.h>
#include <stdlib.h>

#include "libs/blas.h"
#include "libs/convert.h"
#include "libs/library.h"
#include "libs/mkl.h"
#include "libs/room.h"

/* As mkl_spblas.h numbers them. */
enum { ROW_MAJOR = 101, COL_MAJOR = 102, BASE_ZERO = 0, NO_TRANSPOSE = 10, TRANSPOSE = 11, GENERAL = 20, SUCCESS = 0 };

typedef struct description {
    int type, mode, diagonal;
} description;

typedef int (*create_bsr_32)(void **, int, int, int, int, int, void *, void *, void *, void *);
typedef int (*create_bsr_64)(void **, int, int, int64_t, int64_t, int64_t, void *, void *, void *, void *);
typedef int (*create_csr_32)(void **, int, int, int, void *, void *, void *, void *);
typedef int (*create_csr_64)(void **, int, int64_t, int64_t, void *, void *, void *, void *);
typedef int (*multiply_s32)(int, float, void *, description, int, const void *, int, int, float, void *, int);
typedef int (*multiply_d32)(int, double, void *, description, int, const void *, int, int, double, void *, int);
typedef int (*multiply_s64)(int, float, void *, description, int, const void *, int64_t, int64_t, float, void *,
                            int64_t);
typedef int (*multiply_d64)(int, double, void *, description, int, const void *, int64_t, int64_t, double, void *,
                            int64_t);

enum { SLAB = 512, STRIPS = 256, STRIP_WORK = 1 << 18, THIN = 8 };

/* Functions are looked up in prepare, since only then is MKL sure to be there. */
typedef struct sparse_state {
    const sat_mkl *mkl;
    void *create, *multiply;
    int (*destroy)(void *);
    void *row_ptr, *col_idx; /* in MKL's integers; a strip's row pointers begin at 0, after those of the one before */
    int32_t *from;           /* csr: where an entry's value is stored; NULL: the values are in order */
    int64_t strips;          /* 1: all rows */
    int64_t first_row[STRIPS + 1]; /* of each strip, and the end; csr alone */
    int64_t first_entry[STRIPS];
} sparse_state;

static bool is_csr(const sat_variant *v) { return v->instance.option == 1; }
static bool row_major(const sat_problem *p) { return p->b.col_stride == 1 && p->c.col_stride == 1; }

/* ---- what they take ---- */

static bool fits(const sat_problem *p, const sat_pattern_view *a, const sat_device *d, bool column_major) {
    if (!sat_room_to_run(d->threads)) return false;
    if (p->a_dtype != SAT_F32 && p->a_dtype != SAT_F64) return false;
    if (p->b_dtype != p->a_dtype || p->c_dtype != p->a_dtype || p->compute_dtype != p->a_dtype) return false;
    if (a->stored_elements == 0 || p->n == 0) return false;
    /* MKL takes one column for a vector without gaps. */
    if (p->n == 1 && (p->b.row_stride != 1 || p->c.row_stride != 1)) return false;
    bool rows = row_major(p) && p->b.row_stride >= p->n && p->c.row_stride >= p->n;
    bool cols = p->b.row_stride == 1 && p->c.row_stride == 1 && p->b.col_stride >= p->k && p->c.col_stride >= p->m;
    if (!rows && !(cols && column_major)) return false;
    int64_t most = sat_max(a->stored_blocks * a->block_rows * a->block_cols, sat_max(p->m, sat_max(p->k, p->n)));
    int64_t stride = sat_max(sat_max(p->b.row_stride, p->b.col_stride), sat_max(p->c.row_stride, p->c.col_stride));
    return sat_max(most, stride) < INT_MAX;
}

static bool bsr_supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    if (a->block_rows != a->block_cols || a->rows % a->block_rows || a->cols % a->block_cols) return false;
    return fits(p, a, d, !sat_transposed(p));
}

static bool csr_supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    return sat_convert_csr_thin(a, THIN) && fits(p, a, d, true);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    double reached = row_major(p) ? 0.1 : is_csr(v) ? 0.02 : 0.01; /* on other makers' processors; Intel's do better */
    return sat_roofline(d, p->compute_dtype, sat_flops(p, a), reached, sat_bytes(p, a)) + 1e-5;
}

static bool in_order(const sat_problem *p, const sat_pattern_view *a) {
    sat_rows r = sat_op_rows(p, a);
    return sat_convert_csr_in_order(&r);
}

static size_t csr_workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                            const sat_device *d) {
    (void)v, (void)d;
    return in_order(p, a) ? 0 : (size_t)a->stored_elements * sat_dtype_size(p->a_dtype);
}

/* ---- prepare ---- */

static void release(const sat_variant *v, void *state) {
    (void)v;
    sparse_state *st = state;
    if (!st) return;
    free(st->row_ptr);
    free(st->col_idx);
    free(st->from);
    free(st);
}

static void set_index(const sparse_state *st, void *to, int64_t at, int64_t x) {
    if (st->mkl->wide) ((int64_t *)to)[at] = x;
    else ((int32_t *)to)[at] = (int32_t)x;
}

static bool make_bsr(sparse_state *st, const sat_pattern_view *a) {
    size_t size = st->mkl->wide ? 8 : 4;
    st->strips = 1;
    st->row_ptr = malloc(((size_t)a->grid_rows + 1) * size);
    st->col_idx = malloc((size_t)a->stored_blocks * size);
    if (!st->row_ptr || !st->col_idx) return false;
    for (int64_t i = 0; i <= a->grid_rows; i++) set_index(st, st->row_ptr, i, a->row_ptr[i]);
    for (int64_t t = 0; t < a->stored_blocks; t++) set_index(st, st->col_idx, t, a->col_idx[t]);
    return true;
}

/* Strips of like numbers of entries. They depend on the problem alone, so that results do not depend on threads. */
static void cut_strips(sparse_state *st, const sat_problem *p, const int32_t *ptr) {
    int64_t entries = ptr[p->m], work = entries * sat_min(p->n, SLAB);
    int64_t strips = sat_max(1, sat_min(sat_min(STRIPS, p->m), work / STRIP_WORK)), row = 0;
    for (int64_t s = 0; s < strips; s++) {
        while (row < p->m && ptr[row] < entries * s / strips) row++;
        st->first_row[s] = row, st->first_entry[s] = ptr[row];
    }
    st->first_row[0] = 0, st->first_entry[0] = 0;
    st->first_row[strips] = p->m;
    st->strips = strips;
}

static bool make_csr(sparse_state *st, const sat_problem *p, const sat_pattern_view *a) {
    size_t entries = (size_t)a->stored_elements, size = st->mkl->wide ? 8 : 4;
    sat_rows r = sat_op_rows(p, a);
    int32_t *ptr = malloc(((size_t)p->m + 1) * sizeof *ptr), *col = malloc(entries * sizeof *col);
    st->from = sat_convert_csr_in_order(&r) ? NULL : malloc(entries * sizeof *st->from);
    st->row_ptr = malloc(((size_t)p->m + STRIPS) * size), st->col_idx = malloc(entries * size);
    bool made = ptr && col && st->row_ptr && st->col_idx && (st->from || sat_convert_csr_in_order(&r));
    if (made) {
        sat_convert_csr(&r, ptr, col, st->from);
        cut_strips(st, p, ptr);
        for (int64_t s = 0, at = 0; s < st->strips; s++)
            for (int64_t i = st->first_row[s]; i <= st->first_row[s + 1]; i++)
                set_index(st, st->row_ptr, at++, ptr[i] - st->first_entry[s]);
        for (size_t t = 0; t < entries; t++) set_index(st, st->col_idx, (int64_t)t, col[t]);
    }
    free(ptr), free(col);
    return made;
}

static sat_status prepare(const sat_prepare *prepare, void **state) {
    bool wide = prepare->problem->a_dtype == SAT_F64, csr = is_csr(prepare->variant);
    const char *create[2][2] = {{"mkl_sparse_s_create_bsr", "mkl_sparse_d_create_bsr"},
                                {"mkl_sparse_s_create_csr", "mkl_sparse_d_create_csr"}};
    const char *const symbols[] = {create[csr][wide], wide ? "mkl_sparse_d_mm" : "mkl_sparse_s_mm",
                                   "mkl_sparse_destroy"};
    void *f[3];
    const sat_mkl *mkl = sat_mkl_get();
    if (!mkl || !sat_library_symbols(mkl->library, symbols, f, 3))
        return sat_fail(SAT_LIBRARY_ERROR, "MKL lacks %s", symbols[0]);
    sparse_state *st = calloc(1, sizeof *st);
    if (!st) return sat_fail(SAT_OUT_OF_MEMORY, "no memory for MKL's indices");
    st->mkl = mkl, st->create = f[0], st->multiply = f[1], st->destroy = (int (*)(void *))f[2];
    if (csr ? !make_csr(st, prepare->problem, prepare->pattern) : !make_bsr(st, prepare->pattern)) {
        release(prepare->variant, st);
        return sat_fail(SAT_OUT_OF_MEMORY, "no memory for MKL's indices");
    }
    *state = st;
    return SAT_OK;
}

/* ---- launch ---- */

static void copy_values(const sat_launch *l, const sparse_state *st) {
    const int64_t entries = l->pattern->stored_elements;
    if (!st->from) return;
    if (l->problem->a_dtype == SAT_F64) {
        const double *values = l->operands[0];
        double *to = l->workspace;
#pragma omp parallel for num_threads(l->threads)
        for (int64_t t = 0; t < entries; t++) to[t] = values[st->from[t]];
    } else {
        const float *values = l->operands[0];
        float *to = l->workspace;
#pragma omp parallel for num_threads(l->threads)
        for (int64_t t = 0; t < entries; t++) to[t] = values[st->from[t]];
    }
}

/* One copy of the values is kept: those that differ from one batch item to the next are copied every time. */
static bool keeps(const sat_problem *p) {
    return (p->flags & SAT_FIXED_VALUES) && (p->batch <= 1 || p->a.batch_stride == 0);
}

static sat_status refresh(const sat_launch *l) {
    if (keeps(l->problem)) copy_values(l, l->state);
    return SAT_OK;
}

static int create_bsr(const sat_launch *l, const sparse_state *st, void **handle) {
    const sat_pattern_view *a = l->pattern;
    void *values = l->operands[0];
    if (st->mkl->wide)
        return ((create_bsr_64)st->create)(handle, BASE_ZERO, ROW_MAJOR, a->grid_rows, a->grid_cols, a->block_rows,
                                           st->row_ptr, (int64_t *)st->row_ptr + 1, st->col_idx, values);
    return ((create_bsr_32)st->create)(handle, BASE_ZERO, ROW_MAJOR, (int)a->grid_rows, (int)a->grid_cols,
                                       (int)a->block_rows, st->row_ptr, (int32_t *)st->row_ptr + 1, st->col_idx,
                                       values);
}

static int create_csr(const sat_launch *l, const sparse_state *st, int64_t strip, void **handle) {
    const sat_problem *p = l->problem;
    int64_t row = st->first_row[strip], rows = st->first_row[strip + 1] - row, entry = st->first_entry[strip];
    void *values = sat_at(p->a_dtype, st->from ? l->workspace : l->operands[0], entry);
    if (st->mkl->wide) {
        int64_t *ptr = (int64_t *)st->row_ptr + row + strip;
        return ((create_csr_64)st->create)(handle, BASE_ZERO, rows, p->k, ptr, ptr + 1, (int64_t *)st->col_idx + entry,
                                           values);
    }
    int32_t *ptr = (int32_t *)st->row_ptr + row + strip;
    return ((create_csr_32)st->create)(handle, BASE_ZERO, (int)rows, (int)p->k, ptr, ptr + 1,
                                       (int32_t *)st->col_idx + entry, values);
}

/* Rows of C from i on, as many as the handle has, and some columns. */
static int multiply(const sat_launch *l, const sparse_state *st, void *handle, int64_t i, int64_t j, int64_t cols) {
    const sat_problem *p = l->problem;
    const description general = {.type = GENERAL};
    int op = sat_transposed(p) && !is_csr(l->variant) ? TRANSPOSE : NO_TRANSPOSE;
    int order = row_major(p) ? ROW_MAJOR : COL_MAJOR;
    int64_t ldb = row_major(p) ? p->b.row_stride : p->b.col_stride;
    int64_t ldc = row_major(p) ? p->c.row_stride : p->c.col_stride;
    const void *b = sat_at(p->b_dtype, l->operands[1], j * p->b.col_stride);
    void *c = sat_at(p->c_dtype, l->operands[2], i * p->c.row_stride + j * p->c.col_stride);
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

/* Slab `slab` of the columns and strip `strip` of the rows. A handle only points at the arrays, so each tile of them
 * has its own. */
static int multiply_tile(const sat_launch *l, const sparse_state *st, int64_t strip, int64_t from, int64_t cols) {
    const sat_problem *p = l->problem;
    bool csr = is_csr(l->variant);
    int64_t row = csr ? st->first_row[strip] : 0, rows = csr ? st->first_row[strip + 1] - row : p->m;
    sat_matrix c = {l->operands[2], p->c.row_stride, p->c.col_stride};
    sat_matrix tile = sat_matrix_at(p->c_dtype, &c, row, from);
    void *handle = NULL;
    if (rows == 0) return SUCCESS;
    int status = csr ? create_csr(l, st, strip, &handle) : create_bsr(l, st, &handle);
    if (status == SUCCESS) status = multiply(l, st, handle, row, from, cols);
    if (status == SUCCESS) sat_blas_finish(l, &tile, row, rows, cols);
    if (handle) st->destroy(handle);
    return status;
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const sparse_state *st = l->state;
    int64_t slabs = (p->n + SLAB - 1) / SLAB; /* of like width: never a single column of many */
    int failure = SUCCESS;
    sat_status room = sat_room_check(l);
    if (room != SAT_OK) return room;
    if (!keeps(p)) copy_values(l, st);
#pragma omp parallel num_threads(l->threads)
    {
        int token = st->mkl->set_threads(1), status = SUCCESS;
#pragma omp for schedule(dynamic, 1)
        for (int64_t tile = 0; tile < slabs * st->strips; tile++) {
            int64_t slab = tile / st->strips, from = p->n * slab / slabs, cols = p->n * (slab + 1) / slabs - from;
            if (status == SUCCESS) status = multiply_tile(l, st, tile % st->strips, from, cols);
        }
        st->mkl->set_threads(token);
        if (status != SUCCESS) {
#pragma omp atomic write
            failure = status;
        }
    }
    return failure == SUCCESS ? SAT_OK
                              : sat_fail(SAT_LIBRARY_ERROR, "%s: MKL gave status %d", l->variant->name, failure);
}

SAT_FAMILY(cpu_matmul_mkl_bsr) = {
    .version = sat_mkl_version,
    .op = SAT_MATMUL,
    .backend = SAT_CPU,
    .flags = SAT_V_LIBRARY,
    .about = "MKL's BSR product; square blocks that fill the matrix, f32, f64",
    .supports = bsr_supports,
    .estimate = estimate,
    .prepare = prepare,
    .launch = launch,
    .release = release,
};

SAT_FAMILY(cpu_matmul_mkl_csr) = {
    .version = sat_mkl_version,
    .op = SAT_MATMUL,
    .backend = SAT_CPU,
    .flags = SAT_V_LIBRARY,
    .about = "MKL's CSR product; single elements and thin blocks, f32, f64",
    .supports = csr_supports,
    .estimate = estimate,
    .workspace = csr_workspace,
    .prepare = prepare,
    .refresh = refresh,
    .launch = launch,
    .release = release,
};
