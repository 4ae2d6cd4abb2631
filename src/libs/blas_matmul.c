// The matmul by BLAS: `dense` writes all of A, zeros too, into workspace and multiplies that; `guarded` does the same
// and computes columns that are not finite once more, from the stored blocks; `block` makes one call a stored block.
// Good for dense matrices and for large blocks; elsewhere baselines for comparison.

#include <omp.h>

#include "libs/blas.h"
#include "libs/room.h"

static bool fits(const sat_variant *v, const sat_problem *p, const sat_device *d) {
    const sat_blas *blas = sat_blas_of(v);
    return sat_blas_takes(v, p, d) && sat_blas_fits(blas, p->k, p->n, p->b.row_stride, p->b.col_stride) &&
           sat_blas_fits(blas, p->m, p->n, p->c.row_stride, p->c.col_stride);
}

/* C = beta*C where op(A) has nothing. */
static void scale(const sat_problem *p, const sat_matrix *c, int64_t rows, int64_t cols) {
    if (p->beta == 1) return;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            int64_t at = i * c->row_stride + j * c->col_stride;
            sat_store(p->c_dtype, c->data, at, p->beta == 0 ? 0 : p->beta * sat_load(p->c_dtype, c->data, at));
        }
}

/* ---- dense: A row-major in workspace; BLAS transposes it where op(A) is the transpose ---- */

static bool guarded(const sat_variant *v) { return !(v->flags & SAT_V_DENSE); }

/* Sums of a tile go to a buffer of the thread's where C is still needed when they are looked at. */
static bool sums_apart(const sat_variant *v, const sat_problem *p) { return guarded(v) && p->beta != 0; }

static size_t dense_bytes(const sat_problem *p, const sat_pattern_view *a) {
    return ((size_t)a->rows * (size_t)a->cols * sat_dtype_size(p->a_dtype) + 63) / 64 * 64;
}

static size_t tile_bytes(const sat_problem *p) {
    sat_tiles tiles = sat_blas_tiles(p->m, p->n);
    return (size_t)tiles.high * (size_t)tiles.wide * sat_dtype_size(p->c_dtype);
}

static bool dense_supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    if (!fits(v, p, d) || !sat_blas_fits(sat_blas_of(v), a->rows, a->cols, a->cols, 1)) return false;
    double bytes = (double)a->rows * (double)a->cols * (double)sat_dtype_size(p->a_dtype);
    return bytes <= (double)d->memory_bytes / 4;
}

static double dense_estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                             const sat_device *d) {
    double size = (double)sat_dtype_size(p->a_dtype), batch = (double)sat_max(1, p->batch);
    double flops = 2.0 * (double)p->m * (double)p->n * (double)p->k * batch;
    double bytes = sat_bytes(p, a) + batch * (double)a->rows * (double)a->cols * size;
    if (!(p->flags & SAT_FIXED_VALUES)) bytes += batch * 2 * (double)a->stored_elements * size;
    if (sums_apart(v, p)) bytes += batch * 0.5 * (double)p->m * (double)p->n * size; /* mostly in cache */
    return flops / (d->flop_rate[p->compute_dtype] * 0.85) + bytes / d->memory_rate + 5e-6;
}

static size_t dense_workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                              const sat_device *d) {
    return dense_bytes(p, a) + (sums_apart(v, p) ? (size_t)d->threads * tile_bytes(p) : 0);
}

/* The absent blocks stay zero from here on: only stored ones are ever written again. */
static sat_status dense_prepare(const sat_prepare *prepare, void **state) {
    *state = NULL;
    size_t bytes = dense_bytes(prepare->problem, prepare->pattern);
    if (bytes) memset(prepare->workspace, 0, bytes);
    return SAT_OK;
}

static void densify(const sat_launch *l) {
    const sat_pattern_view *a = l->pattern;
    int64_t size = (int64_t)sat_dtype_size(l->problem->a_dtype), br = a->block_rows, bc = a->block_cols;
#pragma omp parallel for num_threads(l->threads) schedule(dynamic, 1)
    for (int64_t row = 0; row < a->grid_rows; row++) {
        int64_t rows = sat_min(br, a->rows - row * br);
        for (int64_t t = a->row_ptr[row]; t < a->row_ptr[row + 1]; t++) {
            int64_t col = a->col_idx[t] * bc, cols = sat_min(bc, a->cols - col);
            const char *from = (const char *)l->operands[0] + t * br * bc * size;
            char *to = (char *)l->workspace + (row * br * a->cols + col) * size;
            for (int64_t r = 0; r < rows; r++)
                memcpy(to + r * a->cols * size, from + r * bc * size, (size_t)(cols * size));
        }
    }
}

/* There is one dense A: values that differ from one batch item to the next are written at every launch. */
static bool densified_once(const sat_problem *p) {
    return (p->flags & SAT_FIXED_VALUES) && (p->batch <= 1 || p->a.batch_stride == 0);
}

static sat_status dense_refresh(const sat_launch *l) {
    if (densified_once(l->problem)) densify(l);
    return SAT_OK;
}

/* op(A) with its zeros. */
static sat_matrix dense_matrix(const sat_launch *l) {
    bool transposed = l->problem->matmul.transpose == SAT_TRANSPOSE;
    return (sat_matrix){l->workspace, transposed ? 1 : l->pattern->cols, transposed ? l->pattern->cols : 1};
}

/* A tile of C: its first row and column, its size, and where its sums are. */
typedef struct dense_tile {
    int64_t i, j, rows, cols;
    sat_matrix sums;
} dense_tile;

enum { TOGETHER = 16 }; /* columns that are computed once more at a time */

/* Columns of a tile's sums from the stored blocks alone. */
static inline __attribute__((always_inline)) void sparse_columns(sat_dtype t, const sat_launch *l, const dense_tile *x,
                                                                 const int64_t *columns, int count) {
    const sat_problem *p = l->problem;
    sat_rows r = sat_op_rows(p, l->pattern);
    sat_matrix a = dense_matrix(l);
    for (int64_t i = x->i; i < x->i + x->rows; i++) {
        double sum[TOGETHER] = {0};
        for (int64_t s = r.ptr[i / r.br]; s < r.ptr[i / r.br + 1]; s++) {
            int64_t first = r.col[s] * r.bc, end = sat_min(r.k, first + r.bc);
            for (int64_t k = first; k < end; k++) {
                double factor = sat_load(t, a.data, i * a.row_stride + k * a.col_stride);
                const void *b = sat_at(t, l->operands[1], k * p->b.row_stride + x->j * p->b.col_stride);
                for (int e = 0; e < count; e++) sum[e] += factor * sat_load(t, b, columns[e] * p->b.col_stride);
            }
        }
        for (int e = 0; e < count; e++)
            sat_store(t, x->sums.data, (i - x->i) * x->sums.row_stride + columns[e] * x->sums.col_stride,
                      p->alpha == 0 ? 0 : p->alpha * sum[e]); /* as BLAS has it, and OpenBLAS not always */
    }
}

/* Where B(k, j) is not finite, all of column j of a dense product is not, since 0*Inf and 0*NaN are NaN: so the first
 * row of a tile shows which columns to compute once more. Those that are not finite for another reason come out as they
 * were. Nothing has been added to the sums yet: relu would hide NaN. */
static void recompute(const sat_launch *l, const dense_tile *x) {
    sat_dtype t = l->problem->c_dtype;
    int64_t columns[TOGETHER];
    int count = 0;
    for (int64_t j = 0; j < x->cols; j++) {
        if (!isfinite(sat_load(t, x->sums.data, j * x->sums.col_stride))) columns[count++] = j;
        if (count == 0 || (count < TOGETHER && j + 1 < x->cols)) continue;
        if (t == SAT_F32) sparse_columns(SAT_F32, l, x, columns, count);
        else sparse_columns(SAT_F64, l, x, columns, count);
        count = 0;
    }
}

/* C = sums + beta*C, a line at a time: both are in the same order, and the sums have no gaps. */
static inline __attribute__((always_inline)) void add_line(sat_dtype t, double beta, const void *sums, void *c,
                                                           int64_t step, int64_t count) {
    for (int64_t e = 0; e < count; e++)
        sat_store(t, c, e * step, sat_load(t, sums, e) + beta * sat_load(t, c, e * step));
}

static void add_sums(const sat_problem *p, const dense_tile *x, const sat_matrix *c) {
    bool by_rows = x->sums.col_stride == 1;
    int64_t lines = by_rows ? x->rows : x->cols, count = by_rows ? x->cols : x->rows;
    int64_t step = by_rows ? c->col_stride : c->row_stride;
    for (int64_t line = 0; line < lines; line++) {
        void *to = sat_at(p->c_dtype, c->data, line * (by_rows ? c->row_stride : c->col_stride));
        const void *sums = sat_at(p->c_dtype, x->sums.data, line * count);
        if (p->c_dtype == SAT_F64) add_line(SAT_F64, p->beta, sums, to, step, count);
        else if (step == 1) add_line(SAT_F32, p->beta, sums, to, 1, count);
        else add_line(SAT_F32, p->beta, sums, to, step, count);
    }
}

static void multiply_tile(const sat_launch *l, const sat_tiles *tiles, int64_t tile) {
    const sat_problem *p = l->problem;
    bool apart = sums_apart(l->variant, p), by_rows = p->c.col_stride == 1;
    dense_tile x = {.i = tile / tiles->across * tiles->high, .j = tile % tiles->across * tiles->wide};
    x.rows = sat_min(tiles->high, p->m - x.i), x.cols = sat_min(tiles->wide, p->n - x.j);
    sat_matrix a = dense_matrix(l), b = sat_matrix_of(l->operands[1], &p->b), c = sat_matrix_of(l->operands[2], &p->c);
    sat_matrix at = sat_matrix_at(p->a_dtype, &a, x.i, 0), bt = sat_matrix_at(p->b_dtype, &b, 0, x.j);
    sat_matrix ct = sat_matrix_at(p->c_dtype, &c, x.i, x.j);
    size_t buffer = dense_bytes(p, l->pattern) + (size_t)omp_get_thread_num() * tile_bytes(p);
    x.sums = apart ? (sat_matrix){(char *)l->workspace + buffer, by_rows ? x.cols : 1, by_rows ? 1 : x.rows} : ct;
    if (p->k == 0) scale(p, &ct, x.rows, x.cols);
    else {
        sat_blas_gemm(sat_blas_of(l->variant), p->a_dtype, x.rows, x.cols, p->k, p->alpha, &at, &bt,
                      apart ? 0 : p->beta, &x.sums);
        if (guarded(l->variant)) recompute(l, &x);
        if (apart) add_sums(p, &x, &ct);
    }
    sat_blas_finish(l, &ct, x.i, x.rows, x.cols);
}

static sat_status dense_launch(const sat_launch *l) {
    const sat_blas *blas = sat_blas_of(l->variant);
    sat_status room = sat_room_check(l);
    if (room != SAT_OK) return room;
    if (!densified_once(l->problem)) densify(l);
    sat_tiles tiles = sat_blas_tiles(l->problem->m, l->problem->n);
#pragma omp parallel num_threads(l->threads)
    {
        int token = blas->enter();
#pragma omp for schedule(dynamic, 1)
        for (int64_t tile = 0; tile < tiles.down * tiles.across; tile++) multiply_tile(l, &tiles, tile);
        blas->leave(token);
    }
    return SAT_OK;
}

/* ---- block: one call a stored block and slab of columns ---- */

enum { SLAB = 512 };

static bool block_supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)d;
    return fits(v, p, d) && sat_blas_fits(sat_blas_of(v), a->block_rows, a->block_cols, a->block_cols, 1);
}

static double block_estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                             const sat_device *d) {
    (void)v;
    double side = sqrt((double)a->block_rows * (double)a->block_cols), batch = (double)sat_max(1, p->batch);
    double slabs = ceil((double)p->n / SLAB), size = (double)sat_dtype_size(p->c_dtype);
    double calls = (double)a->stored_blocks * slabs * batch / (double)sat_max(1, d->threads);
    double rate =
        d->flop_rate[p->compute_dtype] * (0.3 + 0.5 * side / (side + 24)) * (double)(p->n + 1) / (double)(p->n + 16);
    double moved = 2 * size * (double)a->stored_blocks * (double)a->block_rows * (double)p->n * batch;
    double memory =
        (sat_bytes(p, a) + 0.25 * moved) / d->memory_rate; /* C is read and written once a block, mostly in cache */
    return calls * 1.5e-7 + sat_flops(p, a) / rate + memory + 5e-6;
}

static void block_row(const sat_launch *l, const sat_rows *r, int64_t row, int64_t j) {
    const sat_problem *p = l->problem;
    sat_matrix b = sat_matrix_of(l->operands[1], &p->b), c = sat_matrix_of(l->operands[2], &p->c);
    int64_t i = row * r->br, rows = sat_min(r->br, r->m - i), cols = sat_min(SLAB, p->n - j);
    sat_matrix ct = sat_matrix_at(p->c_dtype, &c, i, j);
    double beta = p->beta;
    for (int64_t t = r->ptr[row]; t < r->end[row]; t++, beta = 1) {
        int64_t k = r->col[t] * r->bc, deep = sat_min(r->bc, r->k - k);
        void *values = sat_at(p->a_dtype, l->operands[0], sat_block_of(r, t) * r->block_elements);
        sat_matrix block = {values, r->row_step, r->col_step}, bt = sat_matrix_at(p->b_dtype, &b, k, j);
        sat_blas_gemm(sat_blas_of(l->variant), p->a_dtype, rows, cols, deep, p->alpha, &block, &bt, beta, &ct);
    }
    if (r->ptr[row] == r->end[row]) scale(p, &ct, rows, cols);
    sat_blas_finish(l, &ct, i, rows, cols);
}

static sat_status block_launch(const sat_launch *l) {
    const sat_blas *blas = sat_blas_of(l->variant);
    sat_status room = sat_room_check(l);
    if (room != SAT_OK) return room;
    sat_rows r = sat_op_rows(l->problem, l->pattern);
    int64_t slabs = (l->problem->n + SLAB - 1) / SLAB;
#pragma omp parallel num_threads(l->threads)
    {
        int token = blas->enter();
#pragma omp for schedule(dynamic, 1)
        for (int64_t item = 0; item < r.count * slabs; item++) block_row(l, &r, item / slabs, item % slabs * SLAB);
        blas->leave(token);
    }
    return SAT_OK;
}

/* ---- families: one a library, since each has a version of its own ---- */

#define DENSE(library_version, more_flags, words)                                                                      \
    {                                                                                                                  \
        .version = library_version, .op = SAT_MATMUL, .backend = SAT_CPU, .flags = SAT_V_LIBRARY | (more_flags),       \
        .about = words, .supports = dense_supports, .estimate = dense_estimate, .workspace = dense_workspace,          \
        .prepare = dense_prepare, .refresh = dense_refresh, .launch = dense_launch                                     \
    }
#define BLOCK(library_version, words)                                                                                  \
    {                                                                                                                  \
        .version = library_version, .op = SAT_MATMUL, .backend = SAT_CPU, .flags = SAT_V_LIBRARY | SAT_V_DYNAMIC,      \
        .about = words, .supports = block_supports, .estimate = block_estimate, .launch = block_launch                 \
    }

SAT_FAMILY(cpu_matmul_openblas_dense) = DENSE(sat_openblas_version, SAT_V_DENSE,
                                              "OpenBLAS on the matrix spread out; f32, f64");
SAT_FAMILY(cpu_matmul_openblas_guarded) =
    DENSE(sat_openblas_version, 0, "OpenBLAS on the matrix spread out, right beside NaN and infinities; f32, f64");
SAT_FAMILY(cpu_matmul_openblas_block) = BLOCK(sat_openblas_version, "OpenBLAS, one call a block; f32, f64");
SAT_FAMILY(cpu_matmul_mkl_dense) = DENSE(sat_mkl_blas_version, SAT_V_DENSE, "MKL on the matrix spread out; f32, f64");
SAT_FAMILY(cpu_matmul_mkl_guarded) = DENSE(sat_mkl_blas_version, 0,
                                           "MKL on the matrix spread out, right beside NaN and infinities; f32, f64");
SAT_FAMILY(cpu_matmul_mkl_block) = BLOCK(sat_mkl_blas_version, "MKL, one call a block; f32, f64");
