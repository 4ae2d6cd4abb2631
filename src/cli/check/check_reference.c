// The reference of `check`, independent of the library: it shares no code with it.
//
// The bound is that of the arithmetic. A sum of d products in a precision with unit roundoff u, in any order, is off by
// at most d*u/(1-d*u) times the sum of the magnitudes; alpha and beta rounded to that precision, their products and the
// two additions add six more roundings. The reference itself rounds likewise, in double. Storing the result adds half a
// unit in its last place. Where TF32 is allowed both factors may have been rounded to it. An activation multiplies what
// came before by its steepest slope (below 1.13 for all three) and may itself be off by a few roundings of its
// argument.

#include "check_reference.h"

#include <math.h>
#include <string.h>

#include "../number.h"

static const double tf32_inputs = 2 * 0x1p-11 + 0x1p-22; // both factors rounded to 11 bits
static const double steepest = 1.13, activation_roundings = 8;

static double *load_item(const operand *o, int64_t z) { // rows x cols, row-major
    double *out = malloc((size_t)(o->rows * o->cols + 1) * sizeof *out);
    if (!out) return NULL;
    const sat_layout *l = &o->layout;
    for (int64_t i = 0; i < o->rows; i++)
        for (int64_t j = 0; j < o->cols; j++)
            out[i * o->cols + j] =
                number_load(o->dtype, o->data, z * l->batch_stride + i * l->row_stride + j * l->col_stride);
    return out;
}

double reference_activate(sat_activation f, double x) {
    switch (f) {
    case SAT_ACT_RELU: return x < 0 ? 0 : x;
    case SAT_ACT_GELU: return 0.5 * x * erfc(-x * 0.70710678118654752440);
    case SAT_ACT_SILU: return x / (1 + exp(-x));
    default: return x;
    }
}

sat_activation activation_of(const sat_problem *p) {
    return p->op == SAT_MATMUL ? p->matmul.activation : p->op == SAT_GROUPED ? p->grouped.activation : SAT_ACT_NONE;
}

void reference_finish(const sat_problem *p, const reference_sum *s, double *expected, double *bound) {
    sat_activation f = activation_of(p);
    double u = number_roundoff(p->compute_dtype) + 0x1p-53, steps = (s->depth + 6) * u;
    if ((p->flags & SAT_ALLOW_TF32) && p->a_dtype == SAT_F32) steps += tf32_inputs;
    double x = p->alpha * s->sum + s->bias, scale = fabs(p->alpha) * s->magnitude + fabs(s->bias);
    if (p->beta != 0) x += p->beta * s->before, scale += fabs(p->beta * s->before);
    double error = steps / (1 - steps) * scale;
    if (f) error = steepest * error + activation_roundings * u * fabs(x);
    *expected = reference_activate(f, x);
    *bound = error + number_roundoff(p->c_dtype) * (fabs(*expected) + error) + number_tiny(p->c_dtype);
}

/* ---- matmul ---- */

typedef struct sums {
    double *sum, *magnitude; // rows x n
    int64_t *depth;          // of each row: how many products
} sums;

static void add_block(const check_case *c, const double *values, int64_t block, int64_t block_row, const double *b,
                      const sums *s) {
    const blocks *a = &c->blocks;
    const sat_problem *p = &c->problem;
    for (int64_t e = 0; e < a->block_rows * a->block_cols; e++) {
        int64_t row = block_row * a->block_rows + e / a->block_cols;
        int64_t col = a->col_idx[block] * a->block_cols + e % a->block_cols;
        if (row >= a->rows || col >= a->cols) continue;
        int64_t to = p->matmul.transpose ? col : row, from = p->matmul.transpose ? row : col;
        double x = values[block * a->block_rows * a->block_cols + e];
        double *sum = s->sum + to * p->n, *magnitude = s->magnitude + to * p->n;
        const double *y = b + from * p->n;
        s->depth[to]++;
        for (int64_t j = 0; j < p->n; j++) {
            double product = x * y[j];
            sum[j] += product, magnitude[j] += fabs(product);
        }
    }
}

static void finish_matmul(const check_data *d, const check_case *c, int64_t z, const sums *s) {
    const sat_problem *p = &c->problem;
    const operand *out = &d->list[2];
    const sat_layout *l = &out->layout;
    for (int64_t i = 0; i < p->m; i++) {
        double bias = p->matmul.bias ? number_load(p->c_dtype, d->list[3].data, i) : 0;
        for (int64_t j = 0; j < p->n; j++) {
            int64_t at = z * l->batch_stride + i * l->row_stride + j * l->col_stride, to = (z * p->m + i) * p->n + j;
            double before = p->beta != 0 ? number_load(out->dtype, out->data, at) : 0;
            reference_sum x = {s->sum[i * p->n + j], s->magnitude[i * p->n + j], (double)s->depth[i], before, bias};
            reference_finish(p, &x, &out->expected[to], &out->bound[to]);
        }
    }
}

static bool matmul_item(const check_data *d, const check_case *c, int64_t z) {
    const sat_problem *p = &c->problem;
    const blocks *a = &c->blocks;
    double *values = load_item(&d->list[0], z), *b = load_item(&d->list[1], z);
    sums s = {.sum = calloc((size_t)(p->m * p->n) + 1, sizeof *s.sum),
              .magnitude = calloc((size_t)(p->m * p->n) + 1, sizeof *s.magnitude),
              .depth = calloc((size_t)p->m + 1, sizeof *s.depth)};
    bool ok = values && b && s.sum && s.magnitude && s.depth;
    for (int64_t row = 0; ok && row < a->grid_rows; row++)
        for (int64_t block = a->row_ptr[row]; block < blocks_end(a, row); block++)
            add_block(c, values, block, row, b, &s);
    if (ok) finish_matmul(d, c, z, &s);
    free(values);
    free(b);
    free(s.sum);
    free(s.magnitude);
    free(s.depth);
    return ok;
}

/* ---- sampled ---- */

// One row of one block: its elements are sums over k. Beyond the matrix the output is zero, exactly.
static void sample_row(const check_data *d, const check_case *c, int64_t z, int64_t block, int64_t row,
                       int64_t in_block, const double *x, const double *y, double *sum, double *magnitude) {
    const sat_problem *p = &c->problem;
    const blocks *a = &c->blocks;
    const operand *out = &d->list[2];
    int64_t col = a->col_idx[block] * a->block_cols, width = a->cols - col;
    if (width > a->block_cols) width = a->block_cols;
    memset(sum, 0, (size_t)a->block_cols * sizeof *sum);
    memset(magnitude, 0, (size_t)a->block_cols * sizeof *magnitude);
    for (int64_t k = 0; row < a->rows && k < p->k; k++)
        for (int64_t j = 0; j < width; j++) {
            double product = x[row * p->k + k] * y[k * p->n + col + j];
            sum[j] += product, magnitude[j] += fabs(product);
        }
    for (int64_t j = 0; j < a->block_cols; j++) {
        int64_t at = (block * a->block_rows + in_block) * a->block_cols + j, to = z * out->rows * out->cols + at;
        out->expected[to] = out->bound[to] = 0;
        if (row >= a->rows || j >= width) continue;
        double before = p->beta != 0 ? number_load(out->dtype, out->data, z * out->layout.batch_stride + at) : 0;
        reference_sum s = {sum[j], magnitude[j], (double)p->k, before, 0};
        reference_finish(p, &s, &out->expected[to], &out->bound[to]);
    }
}

static bool sampled_item(const check_data *d, const check_case *c, int64_t z) {
    const blocks *a = &c->blocks;
    double *x = load_item(&d->list[0], z), *y = load_item(&d->list[1], z);
    double *sum = malloc((size_t)a->block_cols * sizeof *sum), *magnitude = malloc((size_t)a->block_cols * sizeof *sum);
    const operand *out = &d->list[2];
    bool ok = x && y && sum && magnitude;
    for (int64_t e = z * out->rows * out->cols; e < (z + 1) * out->rows * out->cols; e++) // where no row has a block
        out->expected[e] = out->bound[e] = 0;
    for (int64_t row = 0; ok && row < a->grid_rows; row++)
        for (int64_t block = a->row_ptr[row]; block < blocks_end(a, row); block++)
            for (int64_t i = 0; i < a->block_rows; i++)
                sample_row(d, c, z, block, row * a->block_rows + i, i, x, y, sum, magnitude);
    free(x);
    free(y);
    free(sum);
    free(magnitude);
    return ok;
}

bool reference_compute(check_data *d, const check_case *c) {
    for (int64_t z = 0; z < c->problem.batch; z++)
        if (!(c->problem.op == SAT_SAMPLED ? sampled_item(d, c, z) : matmul_item(d, c, z))) return false;
    return true;
}
