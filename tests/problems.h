/* Problems as values, for tests that change a field or two; and runs of operands in one array. */
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

/* What a planted variant computes: alpha*A*B in f32, A as it is stored. */
__attribute__((noinline, unused)) static void multiply_plainly(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const sat_pattern_view *a = l->pattern;
    const float *values = l->operands[0], *b = l->operands[1];
    float *c = l->operands[2];
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++) {
            double sum = 0;
            int64_t row = i / a->block_rows;
            for (int64_t t = a->row_ptr[row]; t < a->row_ptr[row + 1]; t++)
                for (int64_t k = 0; k < a->block_cols; k++)
                    sum += (double)values[(t * a->block_rows + i % a->block_rows) * a->block_cols + k] *
                           b[(a->col_idx[t] * a->block_cols + k) * p->b.row_stride + j * p->b.col_stride];
            c[i * p->c.row_stride + j * p->c.col_stride] = (float)(p->alpha * sum);
        }
}

/* The operands in the order in which variants get them. */
__attribute__((noinline, unused)) static sat_status run_in_order(sat_plan *plan, const sat_problem *p, void *const *o,
                                                                 void *stream) {
    bool bias = p->op == SAT_MATMUL && p->matmul.bias == SAT_BIAS_ROW;
    bool sinks = p->op >= SAT_ATTENTION && p->op <= SAT_ATTENTION_BACKWARD && p->attention.sinks;
    switch (p->op) {
    case SAT_MATMUL:
        return sat_run(plan, (const void *[]){o[0], o[1], bias ? o[3] : NULL}, bias ? 3 : 2, o + 2, 1, stream);
    case SAT_SAMPLED: return sat_run(plan, (const void *[]){o[0], o[1]}, 2, o + 2, 1, stream);
    case SAT_ATTENTION:
        return sat_run(plan, (const void *[]){o[0], o[1], o[2], sinks ? o[5] : NULL}, sinks ? 4 : 3, o + 3,
                       p->attention.lse ? 2 : 1, stream);
    default:
        return sat_run(plan, (const void *[]){o[0], o[1], o[2], o[3], o[4], o[5], sinks ? o[9] : NULL}, sinks ? 7 : 6,
                       (void *[]){o[6], o[7], o[8], sinks ? o[10] : NULL}, sinks ? 4 : 3, stream);
    }
}

#endif
