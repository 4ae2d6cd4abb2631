// cpu_matmul_reference: loops from the definition, for every listed dtype, shape and stride. What others are checked
// against; slow.

#include "variant.h"

static double dot(const sat_problem *p, const sat_rows *r, const void *values, const void *b, int64_t i, int64_t j) {
    int64_t row = i / r->br, in_row = i % r->br;
    double sum = 0; /* in f64 for every dtype: the reference itself makes no error */
    for (int64_t t = r->ptr[row]; t < r->end[row]; t++) {
        int64_t k0 = r->col[t] * r->bc, kn = sat_min(r->bc, r->k - k0);
        int64_t base = sat_block_of(r, t) * r->block_elements + in_row * r->row_step;
        for (int64_t k = 0; k < kn; k++) {
            double x = sat_load(p->a_dtype, values, base + k * r->col_step);
            double y = sat_load(p->b_dtype, b, (k0 + k) * p->b.row_stride + j * p->b.col_stride);
            sum += x * y;
        }
    }
    return sum;
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    return sat_roofline(d, p->compute_dtype, sat_flops(p, a), 0.004, sat_bytes(p, a)) + 1e-5;
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const void *values = l->operands[0], *b = l->operands[1], *bias = l->operands[3];
    void *c = l->operands[2];
    sat_rows r = sat_op_rows(p, l->pattern);
#pragma omp parallel for num_threads(l->threads) schedule(dynamic, 4)
    for (int64_t i = 0; i < p->m; i++) {
        for (int64_t j = 0; j < p->n; j++) {
            int64_t at = i * p->c.row_stride + j * p->c.col_stride;
            double x = p->alpha * dot(p, &r, values, b, i, j);
            if (p->beta != 0) x += p->beta * sat_load(p->c_dtype, c, at);
            if (p->matmul.bias == SAT_BIAS_ROW) x += sat_load(p->c_dtype, bias, i);
            sat_store(p->c_dtype, c, at, sat_act_f64(p->matmul.activation, x));
        }
    }
    return SAT_OK;
}

SAT_FAMILY(cpu_matmul_reference) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CPU,
    .flags = SAT_V_REFERENCE | SAT_V_DYNAMIC,
    .about = "plain loops for every listed dtype, block shape and layout",
    .supports = sat_takes_all,
    .estimate = estimate,
    .launch = launch,
};
