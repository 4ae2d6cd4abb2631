/* What the planted variants share: a matmul that is right (f32, any layout, alpha and beta, no epilogue), and how they
 * put themselves forward. Each is estimated to be very fast, so that nothing but its fault keeps it from winning. */
#ifndef PLANTED_H
#define PLANTED_H

#include <stdlib.h>

#include "sparse_autotune.h"

#define PLUGIN_EXPORT __attribute__((visibility("default")))

PLUGIN_EXPORT sat_status sat_plugin(sat_context *context);

static bool planted_supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                             const sat_device *d) {
    (void)v, (void)a, (void)d;
    return p->a_dtype == SAT_F32 && p->c_dtype == SAT_F32 && p->matmul.transpose == SAT_NO_TRANSPOSE &&
           p->matmul.bias == SAT_BIAS_NONE && p->matmul.activation == SAT_ACT_NONE;
}

static double planted_estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                               const sat_device *d) {
    (void)v, (void)p, (void)a, (void)d;
    return 1e-9;
}

static inline float *planted_at(const sat_launch *l, int64_t i, int64_t j) {
    return (float *)l->operands[2] + i * l->problem->c.row_stride + j * l->problem->c.col_stride;
}

/* Rows of blocks from `first` on, leaving out stored block `drop` (-1: none). */
static inline void planted_product(const sat_launch *l, int64_t first, int64_t drop) {
    const sat_problem *p = l->problem;
    const sat_pattern_view *a = l->pattern;
    const float *values = l->operands[0], *b = l->operands[1];
    int64_t elements = a->block_rows * a->block_cols;
    for (int64_t i = first * a->block_rows; i < p->m; i++) {
        int64_t row = i / a->block_rows, in_row = i % a->block_rows;
        for (int64_t j = 0; j < p->n; j++) {
            float sum = 0;
            for (int64_t t = a->row_ptr[row]; t < a->row_ptr[row + 1]; t++) {
                int64_t k0 = a->col_idx[t] * a->block_cols;
                for (int64_t k = 0; t != drop && k < a->block_cols && k0 + k < p->k; k++)
                    sum += values[t * elements + in_row * a->block_cols + k] *
                           b[(k0 + k) * p->b.row_stride + j * p->b.col_stride];
            }
            float *c = planted_at(l, i, j);
            *c = (float)p->alpha * sum + (p->beta != 0 ? (float)p->beta * *c : 0);
        }
    }
}

static inline sat_status planted_register(sat_context *context, sat_variant v) {
    v.size = sizeof v;
    v.revision = "1";
    v.op = SAT_MATMUL;
    v.backend = SAT_CPU;
    v.priority = 1000;
    v.supports = planted_supports;
    v.estimate = planted_estimate;
    return sat_variant_register(context, &v);
}

#endif
