// The sampled product by BLAS: `dense` computes all of X*Y into workspace and gathers the stored blocks; `block` makes
// one call a stored block, into its values. Good for dense patterns and for large blocks.

#include "libs/blas.h"
#include "libs/room.h"

static bool fits(const sat_variant *v, const sat_problem *p, const sat_device *d) {
    const sat_blas *blas = sat_blas_of(v);
    return sat_blas_takes(v, p, d) && sat_blas_fits(blas, p->m, p->k, p->a.row_stride, p->a.col_stride) &&
           sat_blas_fits(blas, p->k, p->n, p->b.row_stride, p->b.col_stride);
}

/* Zero in what block t holds beyond its rows and cols inside the matrix. */
static void clear_padding(const sat_launch *l, int64_t t, int64_t rows, int64_t cols) {
    int64_t size = (int64_t)sat_dtype_size(l->problem->c_dtype), br = l->pattern->block_rows,
            bc = l->pattern->block_cols;
    char *block = (char *)l->operands[2] + t * br * bc * size;
    if (cols < bc)
        for (int64_t r = 0; r < rows; r++) memset(block + (r * bc + cols) * size, 0, (size_t)((bc - cols) * size));
    if (rows < br) memset(block + rows * bc * size, 0, (size_t)((br - rows) * bc * size));
}

/* ---- dense ---- */

static bool dense_supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)a;
    if (!fits(v, p, d) || !sat_blas_fits(sat_blas_of(v), p->m, p->n, p->n, 1)) return false;
    double bytes = (double)p->m * (double)p->n * (double)sat_dtype_size(p->c_dtype);
    return bytes <= (double)d->memory_bytes / 4;
}

static double dense_estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                             const sat_device *d) {
    (void)v;
    double size = (double)sat_dtype_size(p->c_dtype), batch = (double)sat_max(1, p->batch);
    double flops = 2.0 * (double)p->m * (double)p->n * (double)p->k * batch;
    double bytes = sat_bytes(p, a) + batch * size * ((double)p->m * (double)p->n + (double)a->stored_elements);
    return flops / (d->flop_rate[p->compute_dtype] * 0.85) + bytes / d->memory_rate + 5e-6;
}

static size_t dense_workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                              const sat_device *d) {
    (void)v, (void)a, (void)d;
    return (size_t)p->m * (size_t)p->n * sat_dtype_size(p->c_dtype);
}

static inline __attribute__((always_inline)) void gather_line(sat_dtype t, double beta, void *to, const void *from,
                                                              int64_t count) {
    if (t == SAT_F32) {
        float *restrict s = to;
        const float *v = from;
        if (beta == 0) memcpy(s, v, (size_t)count * sizeof *s);
        else
            for (int64_t e = 0; e < count; e++) s[e] = v[e] + (float)beta * s[e];
    } else {
        double *restrict s = to;
        const double *v = from;
        if (beta == 0) memcpy(s, v, (size_t)count * sizeof *s);
        else
            for (int64_t e = 0; e < count; e++) s[e] = v[e] + beta * s[e];
    }
}

static void gather_row(const sat_launch *l, int64_t row) {
    const sat_problem *p = l->problem;
    const sat_pattern_view *a = l->pattern;
    int64_t br = a->block_rows, bc = a->block_cols, i = row * br, rows = sat_min(br, a->rows - i);
    for (int64_t t = a->row_ptr[row]; t < a->row_ptr[row + 1]; t++) {
        int64_t j = a->col_idx[t] * bc, cols = sat_min(bc, a->cols - j);
        for (int64_t r = 0; r < rows; r++)
            gather_line(p->c_dtype, p->beta, sat_at(p->c_dtype, l->operands[2], (t * br + r) * bc),
                        sat_at(p->c_dtype, l->workspace, (i + r) * p->n + j), cols);
        clear_padding(l, t, rows, cols);
    }
}

static sat_status dense_launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const sat_blas *blas = sat_blas_of(l->variant);
    sat_status room = sat_room_check(l);
    if (room != SAT_OK) return room;
    sat_matrix x = sat_matrix_of(l->operands[0], &p->a), y = sat_matrix_of(l->operands[1], &p->b);
    sat_matrix product = {l->workspace, p->n, 1};
    sat_tiles tiles = sat_blas_tiles(p->m, p->n);
    if (p->k == 0 && l->workspace) memset(l->workspace, 0, dense_workspace(l->variant, p, l->pattern, l->device));
#pragma omp parallel num_threads(l->threads)
    {
        int token = blas->enter();
#pragma omp for schedule(dynamic, 1)
        for (int64_t tile = 0; tile < (p->k == 0 ? 0 : tiles.down * tiles.across); tile++) {
            int64_t i = tile / tiles.across * tiles.high, j = tile % tiles.across * tiles.wide;
            int64_t rows = sat_min(tiles.high, p->m - i), cols = sat_min(tiles.wide, p->n - j);
            sat_matrix xt = sat_matrix_at(p->a_dtype, &x, i, 0), yt = sat_matrix_at(p->b_dtype, &y, 0, j);
            sat_matrix pt = sat_matrix_at(p->c_dtype, &product, i, j);
            sat_blas_gemm(blas, p->a_dtype, rows, cols, p->k, p->alpha, &xt, &yt, 0, &pt);
        }
        blas->leave(token);
#pragma omp for schedule(dynamic, 1)
        for (int64_t row = 0; row < l->pattern->grid_rows; row++) gather_row(l, row);
    }
    return SAT_OK;
}

/* ---- block ---- */

static bool block_supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)d;
    return fits(v, p, d) && sat_blas_fits(sat_blas_of(v), a->block_rows, a->block_cols, a->block_cols, 1) && p->k > 0;
}

static double block_estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                             const sat_device *d) {
    (void)v;
    double side = sqrt((double)a->block_rows * (double)a->block_cols), batch = (double)sat_max(1, p->batch);
    double calls = (double)a->stored_blocks * batch / (double)sat_max(1, d->threads);
    double rate = d->flop_rate[p->compute_dtype] * 0.85 * side * side / (side * side + 1600);
    return calls * 4e-7 + sat_flops(p, a) / rate + sat_bytes(p, a) / d->memory_rate + 5e-6;
}

static void block_one(const sat_launch *l, int64_t row, int64_t t) {
    const sat_problem *p = l->problem;
    const sat_pattern_view *a = l->pattern;
    int64_t br = a->block_rows, bc = a->block_cols, i = row * br, j = a->col_idx[t] * bc;
    int64_t rows = sat_min(br, a->rows - i), cols = sat_min(bc, a->cols - j);
    sat_matrix x = sat_matrix_of(l->operands[0], &p->a), y = sat_matrix_of(l->operands[1], &p->b);
    sat_matrix s = {sat_at(p->c_dtype, l->operands[2], t * br * bc), bc, 1};
    sat_matrix xt = sat_matrix_at(p->a_dtype, &x, i, 0), yt = sat_matrix_at(p->b_dtype, &y, 0, j);
    sat_blas_gemm(sat_blas_of(l->variant), p->a_dtype, rows, cols, p->k, p->alpha, &xt, &yt, p->beta, &s);
    clear_padding(l, t, rows, cols);
}

/* The block row that holds stored block t. */
static int64_t row_of(const sat_pattern_view *a, int64_t t) {
    int64_t low = 0, high = a->grid_rows;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (a->row_ptr[middle] <= t) low = middle;
        else high = middle;
    }
    return low;
}

static sat_status block_launch(const sat_launch *l) {
    const sat_blas *blas = sat_blas_of(l->variant);
    sat_status room = sat_room_check(l);
    if (room != SAT_OK) return room;
    const sat_pattern_view *a = l->pattern;
    const int64_t stored = a->row_ptr[a->grid_rows];
    enum { SOME = 8 }; /* blocks of a work item: so that skewed rows are shared among threads too */
#pragma omp parallel num_threads(l->threads)
    {
        int token = blas->enter();
#pragma omp for schedule(dynamic, 1)
        for (int64_t first = 0; first < stored; first += SOME) {
            int64_t row = row_of(a, first);
            for (int64_t t = first; t < sat_min(first + SOME, stored); t++) {
                while (a->row_ptr[row + 1] <= t) row++;
                block_one(l, row, t);
            }
        }
        blas->leave(token);
    }
    return SAT_OK;
}

/* ---- families: one a library, since each has a version of its own ---- */

#define DENSE(library_version, words)                                                                                  \
    {                                                                                                                  \
        .version = library_version, .op = SAT_SAMPLED, .backend = SAT_CPU,                                             \
        .flags = SAT_V_LIBRARY | SAT_V_SCRATCH | SAT_V_DYNAMIC, .about = words, .supports = dense_supports,            \
        .estimate = dense_estimate, .workspace = dense_workspace, .launch = dense_launch                               \
    }
#define BLOCK(library_version, words)                                                                                  \
    {                                                                                                                  \
        .version = library_version, .op = SAT_SAMPLED, .backend = SAT_CPU, .flags = SAT_V_LIBRARY | SAT_V_DYNAMIC,     \
        .about = words, .supports = block_supports, .estimate = block_estimate, .launch = block_launch                 \
    }

SAT_FAMILY(cpu_sampled_openblas_dense) = DENSE(sat_openblas_version, "OpenBLAS on all of X*Y, blocks picked; f32, f64");
SAT_FAMILY(cpu_sampled_openblas_block) = BLOCK(sat_openblas_version, "OpenBLAS, one call a block; f32, f64");
SAT_FAMILY(cpu_sampled_mkl_dense) = DENSE(sat_mkl_blas_version, "MKL on all of X*Y, blocks picked; f32, f64");
SAT_FAMILY(cpu_sampled_mkl_block) = BLOCK(sat_mkl_blas_version, "MKL, one call a block; f32, f64");
