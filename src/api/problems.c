/* The public problem constructors: a problem of each operation with everything else at its default. */
#include "base/status.h"

static sat_problem usual(sat_operation op, sat_dtype dtype) {
    return (sat_problem){SAT_SIZED(sat_problem), .op = op,         .batch = 1,   .a_dtype = dtype,
                         .b_dtype = dtype,       .c_dtype = dtype, .alpha = 1.0, .compute_dtype = 0};
}

static sat_status give(sat_problem *to, const sat_problem *problem) {
    if (!to) return sat_fail(SAT_NULL_POINTER, "problem is NULL");
    size_t size = to->size;
    SAT_TRY(sat_struct_out(to, problem, sizeof *problem, sizeof *problem, "sat_problem"));
    to->size = size; /* what a later caller sets behind this is looked at */
    return SAT_OK;
}

sat_status sat_problem_matmul(sat_problem *problem, sat_dtype dtype, int64_t n) {
    sat_problem p = usual(SAT_MATMUL, dtype);
    p.n = n;
    return give(problem, &p);
}

sat_status sat_problem_sampled(sat_problem *problem, sat_dtype dtype, int64_t k) {
    sat_problem p = usual(SAT_SAMPLED, dtype);
    p.k = k;
    return give(problem, &p);
}

static sat_problem attention(sat_operation op, sat_dtype dtype, int64_t heads, int64_t kv_heads, int64_t dim) {
    sat_problem p = usual(op, dtype);
    p.alpha = 0;
    p.attention = (sat_attention){.heads = heads, .kv_heads = kv_heads, .dim = dim};
    return p;
}

sat_status sat_problem_attention(sat_problem *problem, sat_dtype dtype, int64_t heads, int64_t kv_heads, int64_t dim) {
    sat_problem p = attention(SAT_ATTENTION, dtype, heads, kv_heads, dim);
    return give(problem, &p);
}

sat_status sat_problem_attention_backward(sat_problem *problem, sat_dtype dtype, int64_t heads, int64_t kv_heads,
                                          int64_t dim) {
    sat_problem p = attention(SAT_ATTENTION_BACKWARD, dtype, heads, kv_heads, dim);
    return give(problem, &p);
}

static sat_problem grouped(sat_operation op, sat_dtype dtype, int64_t m, int64_t n, int64_t k, int64_t groups) {
    sat_problem p = usual(op, dtype);
    p.m = m, p.n = n, p.k = k;
    p.grouped = (sat_grouped){.groups = groups, .offset_type = SAT_I64};
    return p;
}

sat_status sat_problem_grouped(sat_problem *problem, sat_dtype dtype, int64_t m, int64_t n, int64_t k, int64_t groups) {
    sat_problem p = grouped(SAT_GROUPED, dtype, m, n, k, groups);
    return give(problem, &p);
}

sat_status sat_problem_grouped_weights(sat_problem *problem, sat_dtype dtype, int64_t m, int64_t n, int64_t k,
                                       int64_t groups) {
    sat_problem p = grouped(SAT_GROUPED_WEIGHTS, dtype, m, n, k, groups);
    return give(problem, &p);
}
