/* Problems as values, for tests that change a field or two. */
#ifndef SAT_TESTS_PROBLEMS_H
#define SAT_TESTS_PROBLEMS_H

#include "sparse_autotune.h"

static inline sat_problem matmul_problem(sat_dtype dtype, int64_t n) {
    sat_problem p = {SAT_SIZED(sat_problem)};
    (void)sat_problem_matmul(&p, dtype, n);
    return p;
}

static inline sat_problem sampled_problem(sat_dtype dtype, int64_t k) {
    sat_problem p = {SAT_SIZED(sat_problem)};
    (void)sat_problem_sampled(&p, dtype, k);
    return p;
}

static inline sat_problem attention_problem(sat_dtype dtype, int64_t heads, int64_t kv_heads, int64_t dim) {
    sat_problem p = {SAT_SIZED(sat_problem)};
    (void)sat_problem_attention(&p, dtype, heads, kv_heads, dim);
    return p;
}

#endif
