/* What the core's tests share: contexts without a disk cache, random patterns, operands, and planted variants. */
#ifndef SAT_TEST_SUPPORT_H
#define SAT_TEST_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sparse_autotune.h"

#define assert_ok(call)                                                                                                \
    do {                                                                                                               \
        sat_status status_ = (call);                                                                                   \
        if (status_ != SAT_OK) fail_msg("%s: %s: %s", #call, sat_status_name(status_), sat_last_error());              \
    } while (0)

/* The status, and that the message names what it should. */
#define assert_fails(call, expected, word)                                                                             \
    do {                                                                                                               \
        sat_status status_ = (call);                                                                                   \
        assert_string_equal(sat_status_name(status_), sat_status_name(expected));                                      \
        if (!strstr(sat_last_error(), word)) fail_msg("'%s' does not name %s", sat_last_error(), word);                \
    } while (0)

static inline uint64_t next_random(uint64_t *state) {
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline int64_t random_below(uint64_t *state, int64_t n) { return (int64_t)(next_random(state) % (uint64_t)n); }

static inline sat_context *open_context(sat_effort effort) {
    sat_context *ctx = NULL;
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = "", .effort = effort};
    assert_ok(sat_context_create(&o, &ctx));
    return ctx;
}

/* Each block is stored with this probability; the indices are 64-bit when `wide`. */
static inline sat_pattern *random_pattern(sat_context *ctx, uint64_t *state, int64_t rows, int64_t cols, int64_t br,
                                          int64_t bc, double density, bool wide) {
    int64_t gr = (rows + br - 1) / br, gc = (cols + bc - 1) / bc, stored = 0;
    int64_t *row64 = malloc((size_t)(gr + 1) * 8), *col64 = malloc((size_t)(gr * gc + 1) * 8);
    int32_t *row32 = malloc((size_t)(gr + 1) * 4), *col32 = malloc((size_t)(gr * gc + 1) * 4);
    row64[0] = row32[0] = 0;
    for (int64_t i = 0; i < gr; i++) {
        for (int64_t j = 0; j < gc; j++) {
            if ((double)(next_random(state) >> 11) * 0x1p-53 >= density) continue;
            col64[stored] = j, col32[stored] = (int32_t)j, stored++;
        }
        row64[i + 1] = stored, row32[i + 1] = (int32_t)stored;
    }
    sat_bsr s = {SAT_SIZED(sat_bsr), .rows = rows, .cols = cols, .block_rows = br, .block_cols = bc};
    s.stored_blocks = stored, s.index_type = wide ? SAT_I64 : SAT_I32;
    s.row_ptr = wide ? (void *)row64 : (void *)row32, s.col_idx = wide ? (void *)col64 : (void *)col32;
    sat_pattern *pattern = NULL;
    assert_ok(sat_pattern_create(ctx, &s, &pattern));
    free(row64), free(row32), free(col64), free(col32);
    return pattern;
}

static inline sat_pattern_view view_of(const sat_pattern *pattern) {
    sat_pattern_view v = {SAT_SIZED(sat_pattern_view)};
    assert_ok(sat_pattern_get(pattern, &v));
    return v;
}

static inline float *random_floats(uint64_t *state, int64_t count) {
    float *x = malloc((size_t)(count + 1) * sizeof *x);
    for (int64_t i = 0; i < count; i++) x[i] = (float)((double)(next_random(state) >> 11) * 0x1p-52 - 1);
    return x;
}

/* C = A*B in double, from the stored blocks: independent of the library's own code. */
static inline double *dense_product(const sat_pattern_view *a, const float *values, const float *b, int64_t n) {
    double *c = calloc((size_t)(a->rows * n + 1), sizeof *c);
    for (int64_t r = 0; r < a->grid_rows; r++)
        for (int64_t t = a->row_ptr[r]; t < a->row_ptr[r + 1]; t++)
            for (int64_t e = 0; e < a->block_rows * a->block_cols; e++) {
                int64_t i = r * a->block_rows + e / a->block_cols,
                        k = a->col_idx[t] * a->block_cols + e % a->block_cols;
                if (i >= a->rows || k >= a->cols) continue;
                for (int64_t j = 0; j < n; j++)
                    c[i * n + j] += (double)values[t * a->block_rows * a->block_cols + e] * (double)b[k * n + j];
            }
    return c;
}

static inline void assert_close(const float *got, const double *want, int64_t count, double depth) {
    for (int64_t i = 0; i < count; i++) {
        double error = got[i] - want[i];
        if (!(error < 0x1p-22 * (depth + 4) && error > -0x1p-22 * (depth + 4)))
            fail_msg("element %lld is %g; expected %g", (long long)i, (double)got[i], want[i]);
    }
}

#endif
