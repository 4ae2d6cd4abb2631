/* Operands of the structure probe, and the inner loops of the host checks, which run on every candidate of every race.
 */
#include "ops/check.h"

/* ---- operands of the structure probe ---- */

double sat_exact_widest(const sat_problem *p) {
    return sat_rounds_to_tf32(p) ? 2047 : sat_dtype_widest(p->a_dtype); /* TF32 has 11 bits */
}

/* Eight standard deviations of a sum stay below this: a quarter, at most, of what the compute type holds exactly with
 * the two bits that scalars like 1.5 and 0.75 add; and where the output is f16, finite. */
static double largest_sum(const sat_problem *p, int fill_case) {
    if (sat_activation_of(p) != SAT_ACT_NONE && fill_case % 2 == 1) return 64; /* around zero, where activations bend */
    if (p->c_dtype == SAT_F16) return 0x1p14;
    if (p->compute_dtype == SAT_F64) return 0x1p46;
    return p->a_dtype == SAT_F32 && !sat_rounds_to_tf32(p) ? 0x1p22 : 0x1p20;
}

static double rms_up_to(double most) { return sqrt((most + 1) * (2 * most + 1) / 6); }

static const double WIDE_RMS = 0.77; /* of odd integers from most/2 to most */

static void scales(const sat_problem *p, int fill_case, double *a, double *b) {
    bool narrow = p->a_dtype == SAT_F16;
    double large = narrow ? 0x1p5 : 0x1p20, tiny = narrow ? 0x1p-24 : 0x1p-40; /* f16: subnormal */
    *a = fill_case < SAT_FILL_LARGE ? 1 : fill_case == SAT_FILL_LARGE ? large : tiny;
    *b = fill_case < SAT_FILL_LARGE ? 1 : fill_case == SAT_FILL_LARGE ? tiny : large;
}

void sat_exact_fills(const sat_problem *p, int64_t depth, int fill_case, sat_fill *a, sat_fill *b, sat_fill *rest) {
    double limit = largest_sum(p, fill_case) / 8, root = sqrt(fmax((double)depth, 1)), zeros = 1.0 / 16,
           most = sat_exact_widest(p), other = 1;
    bool must_be_wide = p->a_dtype == SAT_F64 || (p->a_dtype == SAT_F32 && !sat_rounds_to_tf32(p));
    if (sat_activation_of(p) != SAT_ACT_NONE && fill_case % 2 == 1) must_be_wide = false;
    if (!must_be_wide) most = fmin(most, fmax(3, floor(limit / (WIDE_RMS * root))));
    double unit = WIDE_RMS * most, kept = limit / (unit * root); /* kept^2: the share of products that may be there */
    if (kept < 1) zeros = fmax(zeros, 1 - kept * kept);
    while (other < sat_exact_widest(p) && rms_up_to(other + 1) < kept) other++;
    sat_fill wide = {.most = most, .wide = true, .zeros = 4096}, narrow = {.most = other};
    narrow.zeros = (unsigned)fmin(65472, 65536 * zeros);
    *a = fill_case % 2 ? narrow : wide, *b = fill_case % 2 ? wide : narrow;
    scales(p, fill_case, &a->scale, &b->scale);
    *rest = (sat_fill){.most = 255, .scale = 4 * a->scale * b->scale}; /* 4: times 0.75 it is an integer */
}

/* ---- numbers that are not finite ---- */

int sat_special_add(sat_special *list, int count, int operand, int64_t row, int64_t col) {
    const double values[3] = {(double)INFINITY, -(double)INFINITY, (double)NAN};
    for (int i = 0; i < count; i++) /* two in one place would overwrite each other */
        if (list[i].operand == operand && list[i].row == row && list[i].col == col) return count;
    if (count == SAT_MAX_SPECIALS) return count;
    list[count] = (sat_special){.operand = operand, .row = row, .col = col, .value = values[count % 3]};
    return count + 1;
}

static bool repeats(const sat_operand *o) {
    return (o->rows > 1 && o->layout.row_stride == 0) || (o->cols > 1 && o->layout.col_stride == 0);
}

bool sat_specials_show(const sat_problem *p, const sat_operand *inputs, int count) {
    if (sat_activation_of(p) != SAT_ACT_NONE || p->alpha == 0) return false;
    for (int i = 0; i < count; i++)
        if (!inputs[i].values && (repeats(&inputs[i]) || inputs[i].span == 0)) return false;
    return true;
}

/* ---- rows ---- */

void sat_load_row(double *to, sat_dtype t, const void *from, int64_t start, int64_t stride, int64_t count) {
    switch (t) {
#define SAT_DTYPE(id, name, stored, on_device, library, compute, bits, unit, tiny)                                     \
    case id:                                                                                                           \
        for (int64_t i = 0; i < count; i++) to[i] = sat_##name##_read(((const stored *)from)[start + i * stride]);     \
        break;
#include "base/dtypes.def"
#undef SAT_DTYPE
    }
}

void sat_store_row(sat_dtype t, void *to, int64_t start, int64_t stride, const double *from, int64_t count) {
    switch (t) {
#define SAT_DTYPE(id, name, stored, on_device, library, compute, bits, unit, tiny)                                     \
    case id:                                                                                                           \
        for (int64_t i = 0; i < count; i++) ((stored *)to)[start + i * stride] = sat_##name##_round(from[i]);          \
        break;
#include "base/dtypes.def"
#undef SAT_DTYPE
    }
}

bool sat_integer_row(uint64_t *to, double *work, sat_dtype t, const void *from, int64_t start, int64_t stride,
                     int64_t count, double scale) {
    bool all = true;
    sat_load_row(work, t, from, start, stride, count);
    for (int64_t i = 0; i < count; i++) all &= sat_integer(work[i], scale, &to[i]);
    return all;
}

uint64_t sat_dot_modular(const uint64_t *x, const uint64_t *y, int64_t n) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

double sat_dot(const double *x, const double *y, int64_t n) {
    double s[8] = {0}; /* independent sums, so that compilers vectorise without reordering by themselves */
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) s[j] += x[i + j] * y[i + j];
    for (; i < n; i++) s[0] += x[i] * y[i];
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

/* Each loop is compiled twice: for any machine, and for those with AVX2 and FMA. The second sum of `twice` is what
 * rounding took from the first (two-product and two-sum). */
#define LOOPS(attribute, suffix)                                                                                       \
    attribute static void axpy##suffix(double *restrict y, const double *restrict x, double a, int64_t n) {            \
        for (int64_t i = 0; i < n; i++) y[i] += a * x[i];                                                              \
    }                                                                                                                  \
    attribute static void add##suffix(double *restrict s, double *restrict q, const double *restrict b, double a,      \
                                      int64_t n) {                                                                     \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            double x = a * b[i];                                                                                       \
            s[i] += x, q[i] += x * x;                                                                                  \
        }                                                                                                              \
    }                                                                                                                  \
    attribute static void twice##suffix(double *restrict s, double *restrict low, double *restrict q,                  \
                                        const double *restrict b, double a, int64_t n) {                               \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            double x = a * b[i], lost = fma(a, b[i], -x), sum = s[i] + x, part = sum - s[i];                           \
            low[i] += lost + ((s[i] - (sum - part)) + (x - part));                                                     \
            s[i] = sum, q[i] += x * x;                                                                                 \
        }                                                                                                              \
    }

LOOPS(, _any)
#if defined(__x86_64__)
LOOPS(__attribute__((target("avx2,fma"))), _avx2)
#define CHOOSE(name) (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? name##_avx2 : name##_any)
#else
#define CHOOSE(name) name##_any
#endif

void sat_axpy(double *y, const double *x, double a, int64_t n) { CHOOSE(axpy)(y, x, a, n); }

void sat_true_add(const sat_true_line *line, double a, const double *b, int64_t n) {
    if (line->low) CHOOSE(twice)(line->sum, line->low, line->squares, b, a, n);
    else CHOOSE(add)(line->sum, line->squares, b, a, n);
}

/* ---- judging ---- */

static int64_t first_difference(const double *got, const double *want, int64_t count) {
    bool same = true;
    for (int64_t j = 0; j < count; j++) same &= got[j] == want[j];
    for (int64_t j = 0; j < count && !same; j++)
        if (!sat_equal(got[j], want[j])) return j;
    return count;
}

int64_t sat_compare_exact(const sat_problem *p, const double *got, double *want, const double *rest, int64_t count) {
    bool plain = p->alpha == 1 && !rest && sat_activation_of(p) == SAT_ACT_NONE && p->c_dtype == p->compute_dtype;
    if (plain) return first_difference(got, want, count);
    for (int64_t j = 0; j < count; j++) {
        double sum = want[j], other = rest ? rest[j] : 0;
        want[j] = sat_exact_element(p, sum, other);
        double slack = sat_exact_slack(p, sum, other, want[j]);
        if (!(sat_equal(got[j], want[j]) || fabs(got[j] - want[j]) <= slack)) return j;
    }
    return count;
}

int64_t sat_compare_precisely(const sat_precision *c, sat_finding *f, sat_squares *squares) {
    const sat_problem *p = c->problem;
    for (int64_t j = 0; j < c->count; j++) {
        double other = c->rest ? c->rest[j] : 0, other_square = c->rest_squares ? c->rest_squares[j] : 0;
        double x = p->alpha * c->line.sum[j] + other, low = c->line.low ? p->alpha * c->line.low[j] : 0;
        double scale = sqrt(p->alpha * p->alpha * c->line.squares[j] + other_square);
        double want = sat_act_f64(sat_activation_of(p), x + low),
               off = sat_activation_of(p) == SAT_ACT_NONE ? fabs((c->got[j] - x) - low) : fabs(c->got[j] - want);
        if (scale > 0 && off / scale > f->error) f->error = off / scale;
        c->bound[0] = sat_precision_bound(p, c->loss.most, scale, x, want), c->bound[1] = off;
        f->share = fmax(f->share, off / c->bound[0]);
        if (!(off <= c->bound[0])) return j;
        if (!sat_repeats(p)) sat_squares_add(squares, off, sat_predicted_square(p, c->loss.rms, scale, x, want));
    }
    return c->count;
}
