/* Random masks that change within one capacity, with what they mean and what products with them must give, worked out
 * here by loops: for the tests on a CPU and on a GPU. Operands are small integers, so every sum is exact. */
#ifndef SAT_TEST_DYNAMIC_CASES_H
#define SAT_TEST_DYNAMIC_CASES_H

#include "base/dtype.h"
#include "problems.h"
#include "support.h"

typedef struct dynamic_case {
    int64_t rows, cols, br, bc, grid_rows, grid_cols, capacity;
    sat_index_type type;
    int64_t *raw_ptr, *raw_col; /* what a run is given */
    int64_t *begin, *end;       /* what it means: the blocks of each row, at their places */
    sat_status fault;
    sat_problem problem;
    int64_t m, n, k;
    double *values, *x, *y; /* of the matmul: values and B (x); of the sampled product: X and Y */
    double *want;
    int64_t wanted; /* elements of the output */
} dynamic_case;

static inline double *integers(uint64_t *r, int64_t count) {
    double *x = malloc((size_t)(count + 1) * sizeof *x);
    for (int64_t i = 0; i < count; i++) x[i] = (double)(random_below(r, 3) - 1);
    return x;
}

static inline int64_t value_count(const dynamic_case *c) { return c->capacity * c->br * c->bc; }

/* `which`: 0 A*B, 1 A^T*B, 2 the sampled product; `other`: columns of B, or the inner size. */
static inline dynamic_case make_dynamic_case(uint64_t *r, sat_dtype t, int which, int64_t grid_rows, int64_t grid_cols,
                                             int64_t br, int64_t bc, int64_t other, int64_t capacity, bool ragged) {
    dynamic_case c = {.br = br, .bc = bc, .grid_rows = grid_rows, .grid_cols = grid_cols, .capacity = capacity};
    c.rows = grid_rows * br - (ragged ? br / 3 : 0), c.cols = grid_cols * bc - (ragged ? bc / 3 : 0);
    c.type = random_below(r, 2) ? SAT_I32 : SAT_I64;
    c.raw_ptr = calloc((size_t)grid_rows + 1, 8), c.raw_col = calloc((size_t)capacity + 1, 8);
    c.begin = calloc((size_t)grid_rows + 1, 8), c.end = calloc((size_t)grid_rows + 1, 8);
    c.problem = which == 2 ? sampled_problem(t, other) : matmul_problem(t, other);
    if (which == 1) c.problem.matmul.transpose = SAT_TRANSPOSE;
    c.m = which == 1 ? c.cols : c.rows, c.n = which == 2 ? c.cols : other;
    c.k = which == 2 ? other : which == 1 ? c.rows : c.cols;
    c.values = integers(r, value_count(&c));
    c.x = which == 2 ? integers(r, c.m * c.k) : integers(r, c.k * c.n);
    c.y = integers(r, which == 2 ? c.k * c.n : 0);
    c.wanted = which == 2 ? value_count(&c) : c.m * c.n;
    c.want = calloc((size_t)c.wanted + 1, sizeof *c.want);
    return c;
}

static inline void free_dynamic_case(dynamic_case *c) {
    free(c->raw_ptr), free(c->raw_col), free(c->begin), free(c->end);
    free(c->values), free(c->x), free(c->y), free(c->want);
}

/* ---- masks ---- */

/* What the header says of these indices. */
static inline void understand(dynamic_case *c) {
    bool broken = false;
    c->fault = SAT_OK;
    for (int64_t i = 0; i < c->grid_rows; i++) {
        int64_t from = c->raw_ptr[i], to = c->raw_ptr[i + 1], before = -1;
        sat_status fault = SAT_OK;
        broken = broken || from < 0 || (i == 0 && from != 0) || to < from || to > c->capacity;
        if (broken) fault = SAT_BAD_ROW_PTR;
        for (int64_t t = from; t < to && !fault; t++) {
            if (c->raw_col[t] < 0 || c->raw_col[t] >= c->grid_cols) fault = SAT_COLUMN_RANGE;
            else if (c->raw_col[t] <= before) fault = SAT_COLUMN_ORDER;
            before = c->raw_col[t];
        }
        if (fault && !c->fault) c->fault = fault;
        c->begin[i] = fault ? 0 : from, c->end[i] = fault ? 0 : to;
    }
}

static inline int64_t any_number(uint64_t *r, const dynamic_case *c) {
    static const int64_t wild[] = {-1, 0, 1, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, (int64_t)1 << 32};
    int64_t x = random_below(r, 2) ? random_below(r, c->capacity + 3) - 1 : wild[random_below(r, 8)];
    return c->type == SAT_I32 ? (int32_t)x : x;
}

/* A right mask: even, empty, full, or with one heavy row. */
static inline void draw_right_mask(uint64_t *r, dynamic_case *c) {
    int64_t kind = random_below(r, 6), heavy = random_below(r, c->grid_rows), at = 0;
    double share = (double)(next_random(r) >> 11) * 0x1p-53;
    for (int64_t i = 0; i < c->grid_rows; i++) {
        double here = kind == 0 ? 0 : kind == 1 ? 1 : kind == 2 ? (i == heavy ? 1 : 0.05) : share;
        for (int64_t j = 0; j < c->grid_cols && at < c->capacity; j++)
            if ((double)(next_random(r) >> 11) * 0x1p-53 < here) c->raw_col[at++] = j;
        c->raw_ptr[i + 1] = at;
    }
    c->raw_ptr[0] = 0;
    for (int64_t t = at; t < c->capacity; t++) c->raw_col[t] = any_number(r, c); /* nobody's */
    understand(c);
}

/* And some of its numbers are any others. */
static inline void draw_hostile_mask(uint64_t *r, dynamic_case *c) {
    draw_right_mask(r, c);
    int64_t count = 1 + random_below(r, 4);
    for (int64_t i = 0; i < count; i++) {
        if (random_below(r, 3) == 0) c->raw_ptr[random_below(r, c->grid_rows + 1)] = any_number(r, c);
        else if (c->capacity) c->raw_col[random_below(r, c->capacity)] = any_number(r, c);
    }
    understand(c);
}

/* ---- what is right ---- */

static inline void expect_product(dynamic_case *c) {
    bool t = c->problem.matmul.transpose == SAT_TRANSPOSE;
    for (int64_t i = 0; i < c->grid_rows; i++)
        for (int64_t b = c->begin[i]; b < c->end[i]; b++)
            for (int64_t e = 0; e < c->br * c->bc; e++) {
                int64_t row = i * c->br + e / c->bc, col = c->raw_col[b] * c->bc + e % c->bc;
                double v = c->values[b * c->br * c->bc + e];
                if (row >= c->rows || col >= c->cols) continue;
                for (int64_t j = 0; j < c->n; j++)
                    c->want[(t ? col : row) * c->n + j] += v * c->x[(t ? row : col) * c->n + j];
            }
}

static inline void expect_samples(dynamic_case *c) {
    for (int64_t i = 0; i < c->grid_rows; i++)
        for (int64_t b = c->begin[i]; b < c->end[i]; b++)
            for (int64_t e = 0; e < c->br * c->bc; e++) {
                int64_t row = i * c->br + e / c->bc, col = c->raw_col[b] * c->bc + e % c->bc;
                if (row >= c->rows || col >= c->cols) continue;
                for (int64_t k = 0; k < c->k; k++)
                    c->want[b * c->br * c->bc + e] += c->x[row * c->k + k] * c->y[k * c->n + col];
            }
}

static inline void expect_dynamic(dynamic_case *c) {
    memset(c->want, 0, (size_t)c->wanted * sizeof *c->want);
    if (c->problem.op == SAT_SAMPLED) expect_samples(c);
    else expect_product(c);
}

/* ---- as bytes ---- */

/* The blocks that no row has are NaN: no right result depends on them. */
static inline void *stored(const dynamic_case *c, sat_dtype t, const double *from, int64_t count, bool values) {
    char *to = malloc((size_t)(count + 1) * sat_dtype_size(t));
    memset(to, 0xff, (size_t)(count + 1) * sat_dtype_size(t));
    for (int64_t i = 0; !values && i < count; i++) sat_store(t, to, i, from[i]);
    int64_t block = c->br * c->bc;
    for (int64_t i = 0; values && i < c->grid_rows; i++)
        for (int64_t e = c->begin[i] * block; e < c->end[i] * block; e++) sat_store(t, to, e, from[e]);
    return to;
}

static inline size_t index_bytes(const dynamic_case *c, int64_t count) {
    return (size_t)count * (c->type == SAT_I32 ? 4 : 8);
}

static inline void store_indices(const dynamic_case *c, void *row_ptr, void *col_idx) {
    for (int64_t i = 0; i <= c->grid_rows; i++) {
        if (c->type == SAT_I64) ((int64_t *)row_ptr)[i] = c->raw_ptr[i];
        else ((int32_t *)row_ptr)[i] = (int32_t)c->raw_ptr[i];
    }
    for (int64_t t = 0; t < c->capacity; t++) {
        if (c->type == SAT_I64) ((int64_t *)col_idx)[t] = c->raw_col[t];
        else ((int32_t *)col_idx)[t] = (int32_t)c->raw_col[t];
    }
}

static inline void expect_dynamic_output(const dynamic_case *c, const void *got, const char *who, int number) {
    for (int64_t i = 0; i < c->wanted; i++) {
        double rounded = 0, x = sat_load(c->problem.c_dtype, got, i);
        sat_store(c->problem.c_dtype, &rounded, 0, c->want[i]); /* an exact sum, stored once */
        double want = sat_load(c->problem.c_dtype, &rounded, 0);
        if (x != want)
            fail_msg("%s, mask %d: element %lld is %g where %g is right", who, number, (long long)i, x, want);
    }
}

static inline sat_pattern *make_dynamic_pattern(sat_context *ctx, const dynamic_case *c, const void *row_ptr,
                                                const void *col_idx) {
    sat_dynamic_bsr s = {SAT_SIZED(sat_dynamic_bsr), .rows = c->rows, .cols = c->cols, .block_rows = c->br};
    sat_pattern *pattern = NULL;
    s.block_cols = c->bc, s.capacity = c->capacity, s.index_type = c->type;
    s.row_ptr = row_ptr, s.col_idx = col_idx;
    assert_ok(sat_pattern_create_dynamic(ctx, &s, &pattern));
    return pattern;
}

#endif
