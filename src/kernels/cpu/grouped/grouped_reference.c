// cpu_grouped_reference, cpu_grouped_weights_reference: loops from the definition, for every listed dtype and stride.
// What others are checked against; slow.

#include "groups.h"

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)a;
    double flops = 2.0 * (double)p->m * (double)p->n * (double)p->k;
    return flops / (d->flop_rate[p->compute_dtype] * 0.004) + 1e-5;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)a, (void)d;
    return (size_t)(p->grouped.groups + 1) * sizeof(int64_t);
}

/* `x` has the sum, in f64 for every dtype: the reference itself makes no error. */
static void finish(const sat_problem *p, void *to, int64_t at, double x, double bias) {
    x *= p->alpha;
    if (p->beta != 0) x += p->beta * sat_load(p->c_dtype, to, at);
    sat_store(p->c_dtype, to, at, sat_act_f64(p->grouped.activation, x + bias));
}

/* ---- Y ---- */

static void multiply_row(const sat_launch *l, const int64_t *offsets, int64_t row) {
    const sat_problem *p = l->problem;
    int64_t group = sat_group_of(offsets, p->grouped.groups, row);
    for (int64_t j = 0; j < p->n; j++) {
        double sum = 0, bias = 0;
        for (int64_t k = 0; k < (group < 0 ? 0 : p->k); k++)
            sum += sat_load(p->a_dtype, l->operands[0], row * p->a.row_stride + k * p->a.col_stride) *
                   sat_load(p->b_dtype, l->operands[1],
                            group * p->b.batch_stride + k * p->b.row_stride + j * p->b.col_stride);
        if (p->grouped.bias && group >= 0) bias = sat_load(p->c_dtype, l->operands[4], group * p->n + j);
        finish(p, l->operands[2], row * p->c.row_stride + j * p->c.col_stride, sum, bias);
    }
}

static sat_status launch(const sat_launch *l) {
    int64_t *offsets = l->workspace;
    (void)sat_groups_take(l->problem, l->operands[3], offsets);
#pragma omp parallel for num_threads(l->threads) schedule(dynamic, 4)
    for (int64_t row = 0; row < l->problem->m; row++) multiply_row(l, offsets, row);
    return SAT_OK;
}

SAT_FAMILY(cpu_grouped_reference) = {
    .revision = "1",
    .op = SAT_GROUPED,
    .backend = SAT_CPU,
    .flags = SAT_V_REFERENCE | SAT_V_SCRATCH,
    .about = "plain loops for every listed dtype and layout",
    .supports = sat_takes_all,
    .estimate = estimate,
    .workspace = workspace,
    .launch = launch,
};

/* ---- the gradient of W ---- */

static void sum_row(const sat_launch *l, const int64_t *offsets, int64_t group, int64_t i) {
    const sat_problem *p = l->problem;
    for (int64_t j = 0; j < p->n; j++) {
        double sum = 0;
        for (int64_t row = offsets[group]; row < offsets[group + 1]; row++)
            sum += sat_load(p->a_dtype, l->operands[0], row * p->a.row_stride + i * p->a.col_stride) *
                   sat_load(p->b_dtype, l->operands[1], row * p->b.row_stride + j * p->b.col_stride);
        finish(p, l->operands[2], group * p->c.batch_stride + i * p->c.row_stride + j * p->c.col_stride, sum, 0);
    }
}

static sat_status launch_weights(const sat_launch *l) {
    const sat_problem *p = l->problem;
    int64_t *offsets = l->workspace;
    (void)sat_groups_take(p, l->operands[3], offsets);
#pragma omp parallel for num_threads(l->threads) schedule(dynamic, 4)
    for (int64_t line = 0; line < p->grouped.groups * p->k; line++) sum_row(l, offsets, line / p->k, line % p->k);
    return SAT_OK;
}

SAT_FAMILY(cpu_grouped_weights_reference) = {
    .revision = "1",
    .op = SAT_GROUPED_WEIGHTS,
    .backend = SAT_CPU,
    .flags = SAT_V_REFERENCE | SAT_V_SCRATCH,
    .about = "plain loops for every listed dtype and layout",
    .supports = sat_takes_all,
    .estimate = estimate,
    .workspace = workspace,
    .launch = launch_weights,
};
