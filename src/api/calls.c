/* The public one-call forms: one function an operation, all through the pool of plans. */
#include "core/pool.h"

sat_status sat_bsr_matmul(sat_context *ctx, const sat_pattern *pattern, const sat_problem *problem, const void *values,
                          const void *b, void *c, const void *bias, void *stream) {
    void *operands[] = {(void *)(uintptr_t)values, (void *)(uintptr_t)b, c, (void *)(uintptr_t)bias};
    return sat_pool_call(ctx, pattern, problem, SAT_MATMUL, operands, stream);
}

sat_status sat_bsr_sampled_matmul(sat_context *ctx, const sat_pattern *pattern, const sat_problem *problem,
                                  const void *x, const void *y, void *values, void *stream) {
    void *operands[] = {(void *)(uintptr_t)x, (void *)(uintptr_t)y, values};
    return sat_pool_call(ctx, pattern, problem, SAT_SAMPLED, operands, stream);
}

sat_status sat_attention_forward(sat_context *ctx, const sat_pattern *pattern, const sat_problem *problem,
                                 const void *q, const void *k, const void *v, void *o, float *lse, void *stream) {
    void *operands[] = {(void *)(uintptr_t)q, (void *)(uintptr_t)k, (void *)(uintptr_t)v, o, lse};
    return sat_pool_call(ctx, pattern, problem, SAT_ATTENTION, operands, stream);
}

sat_status sat_attention_backward(sat_context *ctx, const sat_pattern *pattern, const sat_problem *problem,
                                  const void *q, const void *k, const void *v, const void *o, const float *lse,
                                  const void *d_o, void *dq, void *dk, void *dv, void *stream) {
    void *operands[] = {(void *)(uintptr_t)q,
                        (void *)(uintptr_t)k,
                        (void *)(uintptr_t)v,
                        (void *)(uintptr_t)o,
                        (void *)(uintptr_t)lse,
                        (void *)(uintptr_t)d_o,
                        dq,
                        dk,
                        dv};
    return sat_pool_call(ctx, pattern, problem, SAT_ATTENTION_BACKWARD, operands, stream);
}

sat_status sat_grouped_matmul(sat_context *ctx, const sat_problem *problem, const void *x, const void *w,
                              const void *offsets, void *y, const void *bias, void *stream) {
    void *operands[] = {(void *)(uintptr_t)x, (void *)(uintptr_t)w, y, (void *)(uintptr_t)offsets,
                        (void *)(uintptr_t)bias};
    return sat_pool_call(ctx, NULL, problem, SAT_GROUPED, operands, stream);
}

sat_status sat_grouped_weights(sat_context *ctx, const sat_problem *problem, const void *x, const void *z,
                               const void *offsets, void *w, void *stream) {
    void *operands[] = {(void *)(uintptr_t)x, (void *)(uintptr_t)z, w, (void *)(uintptr_t)offsets};
    return sat_pool_call(ctx, NULL, problem, SAT_GROUPED_WEIGHTS, operands, stream);
}
