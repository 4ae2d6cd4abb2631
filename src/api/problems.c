/* The public problem constructors: a problem of each operation with everything else at its default. */
#include "sparse_autotune.h"

static sat_problem plain_problem(sat_operation op, sat_dtype dtype) {
    return (sat_problem){SAT_SIZED(sat_problem), .op = op,         .batch = 1,   .a_dtype = dtype,
                         .b_dtype = dtype,       .c_dtype = dtype, .alpha = 1.0, .compute_dtype = 0};
}

sat_problem sat_matmul_problem(sat_dtype dtype, int64_t n) {
    sat_problem p = plain_problem(SAT_MATMUL, dtype);
    p.n = n;
    return p;
}

sat_problem sat_sampled_problem(sat_dtype dtype, int64_t k) {
    sat_problem p = plain_problem(SAT_SAMPLED, dtype);
    p.k = k;
    return p;
}

sat_problem sat_attention_problem(sat_dtype dtype, int64_t heads, int64_t kv_heads, int64_t dim) {
    sat_problem p = plain_problem(SAT_ATTENTION, dtype);
    p.alpha = 0;
    p.attention = (sat_attention){.heads = heads, .kv_heads = kv_heads, .dim = dim};
    return p;
}
