// cpu_sampled_reference: loops from the definition, for every listed dtype, shape and stride. What others are checked
// against; slow.

#include "variant.h"

static double dot(const sat_problem *p, const void *x, const void *y, int64_t i, int64_t j) {
    double sum = 0; /* in f64 for every dtype: the reference itself makes no error */
    for (int64_t k = 0; k < p->k; k++) {
        double u = sat_load(p->a_dtype, x, i * p->a.row_stride + k * p->a.col_stride);
        double w = sat_load(p->b_dtype, y, k * p->b.row_stride + j * p->b.col_stride);
        sum += u * w;
    }
    return sum;
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    return sat_roofline(d, p->compute_dtype, sat_flops(p, a), 0.004, sat_bytes(p, a)) + 1e-5;
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const sat_pattern_view *a = l->pattern;
    const void *x = l->operands[0], *y = l->operands[1];
    void *s = l->operands[2];
#pragma omp parallel for num_threads(l->threads) schedule(dynamic, 1)
    for (int64_t row = 0; row < a->grid_rows; row++) {
        for (int64_t t = a->row_ptr[row]; t < a->row_end[row]; t++) {
            int64_t i0 = row * a->block_rows, j0 = a->col_idx[t] * a->block_cols;
            for (int64_t e = 0; e < a->block_rows * a->block_cols; e++) {
                int64_t i = i0 + e / a->block_cols, j = j0 + e % a->block_cols;
                int64_t at = t * a->block_rows * a->block_cols + e;
                double sum = 0; /* beyond the matrix */
                if (i < a->rows && j < a->cols) {
                    sum = p->alpha * dot(p, x, y, i, j);
                    if (p->beta != 0) sum += p->beta * sat_load(p->c_dtype, s, at);
                }
                sat_store(p->c_dtype, s, at, sum);
            }
        }
    }
    return SAT_OK;
}

SAT_FAMILY(cpu_sampled_reference) = {
    .revision = "1",
    .op = SAT_SAMPLED,
    .backend = SAT_CPU,
    .flags = SAT_V_REFERENCE | SAT_V_DYNAMIC,
    .about = "plain loops for every listed dtype, block shape and layout",
    .supports = sat_takes_all,
    .estimate = estimate,
    .launch = launch,
};
