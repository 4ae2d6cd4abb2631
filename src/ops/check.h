/* The arithmetic of the checks, the same on the host and on a device. docs/internals/check.md has the reasons and the
 * measurements.
 *
 * Structure: operands are integers times a power of two, chosen so that every product and every partial sum is exact in
 * the compute type, in any order. A right result is then known to the last bit.
 *
 * Precision: operands are random reals in [-1, 1]. A right result differs from the true one by half a unit of the
 * output, and by what n additions lose: a random walk, so it grows with sqrt(n) and is measured against
 * N2 = sqrt(sum (a*b)^2). Tensor cores truncate, which adds up: h counts those additions. */
#ifndef SAT_CHECK_H
#define SAT_CHECK_H

#include <stdio.h>
#include <string.h>

#include "ops/op.h"
#include "variant.h"

/* Does this problem let f32 inputs be rounded to TF32? */
SAT_BOTH static inline bool sat_rounds_to_tf32(const sat_problem *p) {
    return (p->flags & SAT_ALLOW_TF32) && p->a_dtype == SAT_F32;
}

/* ---- random numbers ---- */

SAT_BOTH static inline uint64_t sat_mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Element number i of an operand that a fill makes. Without branches on random bits, which no processor predicts. */
SAT_BOTH static inline double sat_made_up(const sat_fill *f, uint64_t seed, int64_t i) {
    uint64_t x = sat_mix(seed ^ ((uint64_t)i * 0x2545f4914f6cdd1du));
    if (f->most == 0) return (2 * ((double)(x >> 11) * 0x1p-53) - 1) * f->scale;
    uint64_t most = (uint64_t)f->most, least = f->wide ? most / 2 : 1, range = f->wide ? most - most / 2 : most;
    uint64_t magnitude = (least + (((x >> 32) * range) >> 32)) | f->wide; /* range is below 2^32 */
    int64_t kept = -(int64_t)((x & 0xffff) >= f->zeros), minus = -(int64_t)(x >> 16 & 1);
    return (double)((((int64_t)magnitude & kept) ^ minus) - minus) * f->scale;
}

/* What a fill adds to all elements of row i. Rows that share a place are alike. */
SAT_BOTH static inline double sat_made_up_rise(const sat_fill *f, const sat_operand *o, int64_t i) {
    int64_t row = o->group ? i % o->group : i;
    return f->offset + (o->layout.row_stride ? f->slope * (double)row : 0);
}

/* Element `at` of an operand, in row i and column j. */
SAT_BOTH static inline double sat_made_up_at(const sat_fill *f, const sat_operand *o, uint64_t seed, int64_t at,
                                             int64_t i, int64_t j) {
    if (f->rank_one) {
        double sign = sat_mix(seed ^ ~(uint64_t)j) & 1 ? -1 : 1;
        return sign * sat_made_up(f, seed, at - j * o->layout.col_stride);
    }
    return sat_made_up(f, seed, at) + sat_made_up_rise(f, o, i);
}

/* ---- structure ---- */

/* An element of an integer operand, or of its sums, as the integer it is; false: it is none. */
SAT_BOTH static inline bool sat_integer(double x, double scale, uint64_t *to) {
    double units = x / scale; /* a power of two */
    *to = 0;
    if (!(fabs(units) < 0x1p53)) return false;
    int64_t integer = (int64_t)units;
    *to = (uint64_t)integer;
    return (double)integer == units;
}

/* What an element of the output is, by its sum: act(alpha*sum + beta*before + bias), rounded once. */
SAT_BOTH static inline double sat_exact_element(const sat_problem *p, double sum, double rest) {
    return sat_rounded(p->c_dtype, sat_act_f64(sat_activation_of(p), p->alpha * sum + rest));
}

/* NaN is NaN; zeros of either sign are equal. */
SAT_BOTH static inline bool sat_equal(double x, double y) { return x == y || (x != x && y != y); }

/* How far from that a right element may be: nothing, but for activations that are computed and not exact. */
SAT_BOTH static inline double sat_exact_slack(const sat_problem *p, double sum, double rest, double want) {
    if (sat_activation_of(p) != SAT_ACT_GELU && sat_activation_of(p) != SAT_ACT_SILU) return 0;
    double x = fabs(p->alpha * sum + rest), units = 16 * sat_unit(p->compute_dtype) * x;
    return units + 2.002 * sat_unit(p->c_dtype) * fabs(want) + 2 * sat_tiny(p->c_dtype);
}

/* The block row of a stored block: the last whose blocks begin at or before it. */
SAT_BOTH static inline int64_t sat_block_row(const int64_t *row_ptr, int64_t rows, int64_t block) {
    int64_t low = 0, high = rows - 1;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (row_ptr[middle] <= block) low = middle;
        else high = middle - 1;
    }
    return low;
}

/* The same where blocks may be no row's: -1 for those, which a faulty row lost or which are beyond the last row. */
SAT_BOTH static inline int64_t sat_row_of_block(const int64_t *row_ptr, const int64_t *row_end, int64_t rows,
                                                int64_t block) {
    int64_t row = sat_block_row(row_ptr, rows, block);
    return rows > 0 && block < row_end[row] ? row : -1;
}

/* Where the block of block column `col` stands in a block row of op(A); -1: it is not stored. */
SAT_BOTH static inline int64_t sat_find_block(const sat_rows *r, int64_t row, int64_t col) {
    for (int64_t t = r->ptr[row]; t < r->end[row]; t++)
        if (r->col[t] == col) return t;
    return -1;
}

/* ---- precision ---- */

/* Statistics want sums that are independent of each other. They are not where an input repeats its elements, or where
 * the items of a batch have both inputs in common. */
SAT_BOTH static inline bool sat_repeats(const sat_problem *p) {
    bool a = p->op == SAT_SAMPLED && ((p->m > 1 && p->a.row_stride == 0) || (p->k > 1 && p->a.col_stride == 0));
    bool b = (p->k > 1 && p->b.row_stride == 0) || (p->n > 1 && p->b.col_stride == 0);
    return a || b || (p->batch > 1 && p->a.batch_stride == 0 && p->b.batch_stride == 0);
}

/* All products of a sum are one number where both inputs repeat theirs along the depth. */
SAT_BOTH static inline bool sat_products_equal(const sat_problem *p) {
    return p->op == SAT_SAMPLED && p->k > 1 && p->a.col_stride == 0 && p->b.row_stride == 0;
}

/* What the sums of one problem lose, in units of N2: `depth` products each, so many `elements` looked at. An error
 * beyond c*u*sqrt(n)*N2 has a probability below exp(-3.78*c) where all products make one chain, the worst of orders; so
 * the logarithm leaves all elements together what c = 6 leaves one. docs/internals/check.md derives it. */
typedef struct sat_loss {
    double most, rms; /* of an element; of many */
} sat_loss;

SAT_BOTH static inline sat_loss sat_loss_of_sum(const sat_problem *p, sat_backend_kind backend, int64_t depth,
                                                int64_t elements) {
    double u = sat_unit(p->compute_dtype), n = (double)depth + 8, h = 0; /* 8: scalars, bias, products rounded alone */
    double c = 6 + 0.3 * log((double)sat_max(elements, 1));
    bool tf32 = sat_rounds_to_tf32(p);
    if (backend == SAT_CUDA && p->compute_dtype == SAT_F32) h = p->a_dtype == SAT_F32 ? (tf32 ? n / 8 : 0) : n / 16;
    sat_loss loss = {u * (c * sqrt(n) + 2 * h), u * (0.3 * sqrt(n) + 0.42 * h)};
    if (sat_products_equal(p)) loss.most = u * n * sqrt(n);        /* no random walk: n*u of the sum of n equal terms */
    if (tf32) loss.most += 4 * 0x1p-10, loss.rms += 0.6 * 0x1p-10; /* both inputs of every product are rounded */
    return loss;
}

/* How far an element may be from the true one. `scale` is sqrt((alpha*N2)^2 + (beta*before)^2 + bias^2); `x` what the
 * activation gets, `want` what it gives. */
SAT_BOTH static inline double sat_precision_bound(const sat_problem *p, double loss, double scale, double x,
                                                  double want) {
    double sums = loss * scale;
    /* An activation's slope stays below 1.13, and its own evaluation is good for a few units. */
    if (sat_activation_of(p) != SAT_ACT_NONE) sums = 1.13 * sums + 16 * sat_unit(p->compute_dtype) * fabs(x);
    return sums + sat_unit(p->c_dtype) * (fabs(want) + sums) * 1.001 + sat_tiny(p->c_dtype);
}

/* The square that is predicted of such a difference. Rounding the output loses up to half a unit of the power of two
 * below: a twelfth of its square. */
SAT_BOTH static inline double sat_predicted_square(const sat_problem *p, double rms, double scale, double x,
                                                   double want) {
    int exponent;
    (void)frexp(want, &exponent); /* the unit of the power of two below |want|, twice sat_unit of it */
    double unit = want == 0 ? 0 : 2 * sat_unit(p->c_dtype) * ldexp(1.0, exponent - 1), sums = rms * scale;
    if (sat_activation_of(p) != SAT_ACT_NONE) sums = 1.13 * sums + 4 * sat_unit(p->compute_dtype) * fabs(x);
    double rounding = fmax(unit, 2 * sat_tiny(p->c_dtype));
    return rounding * rounding / 12 + sums * sums;
}

/* What a check of precision gathers over the elements it looks at. */
typedef struct sat_squares {
    double seen, predicted; /* by sat_squares_add */
    int64_t count;
    double weights; /* squares of what is predicted of each */
} sat_squares;

/* An element counts for at most three times what is predicted of it: the error of one long chain of additions has an
 * exponential tail, and a few such elements, which have their own bound, say nothing of the others. */
SAT_BOTH static inline void sat_squares_add(sat_squares *s, double off, double predicted) {
    s->seen += fmin(off * off, 9 * predicted), s->predicted += predicted, s->count++;
    s->weights += predicted * predicted;
}

/* How many elements the sum is made of. Where one row is much longer than the others, its few elements are most of it,
 * and their mean is that of a few. */
SAT_BOTH static inline double sat_squares_effective(const sat_squares *s) {
    return s->weights > 0 ? s->predicted * s->predicted / s->weights : (double)s->count; /* 0: underflow */
}

/* May squares that are predicted on average add up to those seen? A few elements may be off by chance: six and a half
 * standard deviations of their mean are allowed for, beside a quarter. */
SAT_BOTH static inline double sat_squares_most(double count) {
    double most = 1.25 + 6.5 / sqrt(count + 1);
    return most * most;
}

SAT_BOTH static inline bool sat_squares_fit(const sat_squares *s) {
    return s->count == 0 || s->seen <= sat_squares_most(sat_squares_effective(s)) * s->predicted;
}

/* Lines of an output that are worked out: one of `step`, which the seed chooses. */
SAT_BOTH static inline int64_t sat_line_groups(int64_t lines, int64_t step) { return (lines + step - 1) / step; }
SAT_BOTH static inline int64_t sat_line_of_group(int64_t lines, int64_t step, uint64_t seed, int64_t g) {
    int64_t first = g * step, count = sat_min(step, lines - first);
    return first + (int64_t)(sat_mix(seed + (uint64_t)g) % (uint64_t)count);
}

/* So many lines that working them out takes at most `work` multiply-adds, and a few in any case. */
static inline int64_t sat_line_step(int64_t lines, double all_work, double work) {
    int64_t step = 1;
    while (all_work / (double)step > work && sat_line_groups(lines, 2 * step) >= 8) step *= 2;
    return step;
}

/* ---- attention ---- */

/* What `depth` products summed in any order may lose, relative to the sum of their magnitudes. The four: alpha, beta
 * times C, bias, and the conversion of alpha to the compute type. TF32 rounds both inputs to 11 bits first. */
SAT_BOTH static inline double sat_accumulated(const sat_problem *p, int64_t depth) {
    double loss = (double)(depth + 4) * sat_unit(p->compute_dtype);
    if (sat_rounds_to_tf32(p)) loss += 2 * 0x1p-11;
    return loss;
}

/* Notes an element's outcome: `got` against `want`, which may differ by `bound`; `scale` is what was summed. */
static inline bool sat_judge(sat_finding *f, double got, double want, double bound, double scale) {
    double difference = fabs(got - want);
    if (scale > 0 && difference / scale > f->error) f->error = difference / scale;
    if (bound > 0 && difference / bound > f->share) f->share = difference / bound;
    return difference <= bound; /* false for NaN */
}

/* ---- the host's loops ---- */

void sat_load_row(double *to, sat_dtype t, const void *from, int64_t start, int64_t stride, int64_t count);
void sat_store_row(sat_dtype t, void *to, int64_t start, int64_t stride, const double *from, int64_t count);
void sat_axpy(double *y, const double *x, double a, int64_t n); /* y += a*x */
double sat_dot(const double *x, const double *y, int64_t n);

/* Integers of a row of exact elements; false where one is none. */
bool sat_integer_row(uint64_t *to, double *work, sat_dtype t, const void *from, int64_t start, int64_t stride,
                     int64_t count, double scale);
uint64_t sat_dot_modular(const uint64_t *x, const uint64_t *y, int64_t n); /* modulo 2^64 */

/* One line of true sums: sum and sum of squares of a*b for each column, in twice the precision of the compute type. */
typedef struct sat_true_line {
    double *sum, *low, *squares; /* low: what `sum` lacks, where the compute type is f64; else NULL */
} sat_true_line;
void sat_true_add(const sat_true_line *line, double a, const double *b, int64_t n);

/* Both compare elements of a line and return the column of the first that is wrong, or count. `rest` is beta*before +
 * bias; NULL: there is none. */

/* `want` holds the bare sums, and then what was wanted up to that column. */
int64_t sat_compare_exact(const sat_problem *p, const double *got, double *want, const double *rest, int64_t count);

typedef struct sat_precision {
    const sat_problem *problem;
    sat_loss loss;
    const double *got, *rest, *rest_squares; /* (beta*before)^2 + bias^2 */
    sat_true_line line;
    int64_t count;
    double *bound; /* [2]: of the last element, what was allowed, and how far off it was */
} sat_precision;
int64_t sat_compare_precisely(const sat_precision *c, sat_finding *finding, sat_squares *squares);

/* What one thread found of an output, added to what others did. */
static inline void sat_finding_add(sat_finding *all, const sat_finding *mine) {
    all->error = fmax(all->error, mine->error), all->share = fmax(all->share, mine->share);
    if (mine->ok || !all->ok) return;
    all->ok = false;
    memcpy(all->where, mine->where, sizeof all->where);
}

static inline void sat_squares_sum(sat_squares *all, const sat_squares *mine) {
    all->seen += mine->seen, all->predicted += mine->predicted, all->weights += mine->weights;
    all->count += mine->count;
}

/* Squares of a whole output against what is predicted of them. */
static inline void sat_judge_squares(const sat_squares *s, sat_finding *f) {
    if (s->count > 0 && s->predicted > 0) f->rms = sqrt(s->seen / s->predicted);
    if (!f->ok || sat_squares_fit(s)) return;
    f->ok = false;
    snprintf(f->where, sizeof f->where, "errors of %lld elements have %.3g times the rms that rounding has",
             (long long)s->count, f->rms);
}

#endif
