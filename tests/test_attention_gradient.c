/* The gradients of attention against its forward pass, in directions that are drawn: the forward pass is worked out in
 * double precision from its definition, a little to either side, and shares no code with the library. */
#include "scene.h"

#include <math.h>

#include "core/pattern.h"
#include "variant.h"
#include "problems.h"

/* One problem with all its numbers as doubles, (batch, head, row, dim) without gaps. */
typedef struct numbers {
    const scene *s;
    const sat_problem *p;
    int64_t dim, value_dim;
    int64_t queries, keys, values; /* elements of Q, of K and of V */
    double *q, *k, *v, *o, *d;     /* d: dO */
    double *dq, *dk, *dv;
    int64_t heads; /* with a sink; 0: there are none */
    double *sinks, *dsinks;
} numbers;

static double *load(const scene *s, int operand) {
    const sat_operand *o = &s->bench.operand[operand];
    double *x = malloc((size_t)(o->batch * o->rows * o->cols + 1) * sizeof *x), *at = x;
    for (int64_t z = 0; z < o->batch; z++)
        for (int64_t i = 0; i < o->rows; i++)
            for (int64_t j = 0; j < o->cols; j++)
                *at++ = sat_load(o->dtype, s->bench.pointer[operand], sat_operand_at(o, z, i, j));
    return x;
}

static numbers load_numbers(const scene *s) {
    const sat_problem *p = &s->q.problem;
    const sat_attention *t = &p->attention;
    numbers x = {.s = s, .p = p, .dim = t->dim, .value_dim = t->value_dim};
    x.queries = p->batch * t->heads * p->m * t->dim, x.keys = p->batch * t->kv_heads * p->n * t->dim;
    x.values = p->batch * t->kv_heads * p->n * t->value_dim;
    x.q = load(s, 0), x.k = load(s, 1), x.v = load(s, 2), x.o = load(s, 3), x.d = load(s, 5);
    x.dq = load(s, 6), x.dk = load(s, 7), x.dv = load(s, 8);
    if (t->sinks) x.heads = t->heads, x.sinks = load(s, 9), x.dsinks = load(s, 10);
    return x;
}

static void free_numbers(numbers *x) {
    free(x->sinks), free(x->dsinks);
    free(x->q), free(x->k), free(x->v), free(x->o), free(x->d), free(x->dq), free(x->dk), free(x->dv);
}

/* ---- the forward pass, by its definition ---- */

static bool is_kept(const numbers *x, int64_t h, int64_t i, int64_t j) {
    const sat_pattern_view *a = x->s->view;
    const sat_attention *t = &x->p->attention;
    int64_t ahead = j - i - (x->p->n - x->p->m), each = (x->p->m + a->block_rows - 1) / a->block_rows;
    int64_t row = i / a->block_rows + (a->grid_rows == each ? 0 : h * each);
    if (t->causal && ahead > 0) return false;
    if (t->window && (ahead >= t->window || ahead <= -t->window)) return false;
    for (int64_t b = a->row_ptr[row]; b < a->row_ptr[row + 1]; b++)
        if (a->col_idx[b] == j / a->block_cols) return true;
    return false;
}

static double dot(const double *x, const double *y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

static double dot_size(const double *x, const double *y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += fabs(x[i] * y[i]);
    return sum;
}

static double capped(const numbers *x, double s) {
    double cap = x->p->attention.softcap;
    return cap != 0 ? cap * tanh(s / cap) : s;
}

/* Weights of one query, n of them; gives LSE. */
static double weigh(const numbers *x, const double *q, const double *k, const double *sinks, int64_t h, int64_t i,
                    double *weight) {
    double largest = sinks ? sinks[h] : -INFINITY, total = 0;
    for (int64_t j = 0; j < x->p->n; j++) {
        weight[j] = is_kept(x, h, i, j) ? capped(x, x->p->alpha * dot(q, k + j * x->dim, x->dim)) : -INFINITY;
        largest = fmax(largest, weight[j]);
    }
    if (sinks) total = exp(sinks[h] - largest);
    for (int64_t j = 0; j < x->p->n; j++) total += weight[j] = isinf(weight[j]) ? 0 : exp(weight[j] - largest);
    for (int64_t j = 0; j < x->p->n && total > 0; j++) weight[j] /= total;
    return total > 0 ? largest + log(total) : 0;
}

static int64_t keys_of(const numbers *x, int64_t bh) { /* of a head of queries: the row of its first key */
    const sat_attention *t = &x->p->attention;
    return (bh / t->heads * t->kv_heads + bh % t->heads / (t->heads / t->kv_heads)) * x->p->n;
}

/* dO*O, summed over everything. */
static double loss_at(const numbers *x, const double *q, const double *k, const double *v, const double *sinks) {
    double sum = 0, *weight = malloc((size_t)(x->p->n + 1) * sizeof *weight);
    for (int64_t row = 0; row < x->queries / x->dim; row++) {
        int64_t bh = row / x->p->m, keys = keys_of(x, bh);
        weigh(x, q + row * x->dim, k + keys * x->dim, sinks, bh % x->p->attention.heads, row % x->p->m, weight);
        for (int64_t j = 0; j < x->p->n; j++)
            if (weight[j] > 0)
                sum += weight[j] * dot(x->d + row * x->value_dim, v + (keys + j) * x->value_dim, x->value_dim);
    }
    free(weight);
    return sum;
}

/* ---- directions ---- */

typedef struct direction {
    double *q, *k, *v, *sinks; /* +-1 */
} direction;

static double *signs(uint64_t *r, int64_t count) {
    double *x = malloc((size_t)(count + 1) * sizeof *x);
    for (int64_t i = 0; i < count; i++) x[i] = next_random(r) & 1 ? 1 : -1;
    return x;
}

static double *moved(const double *x, const double *by, double step, int64_t count) {
    double *y = malloc((size_t)(count + 1) * sizeof *y);
    for (int64_t i = 0; i < count; i++) y[i] = x[i] + step * by[i];
    return y;
}

static double loss_beside(const numbers *x, const direction *to, double step) {
    double *q = moved(x->q, to->q, step, x->queries), *k = moved(x->k, to->k, step, x->keys);
    double *v = moved(x->v, to->v, step, x->values);
    double *sinks = x->heads ? moved(x->sinks, to->sinks, step, x->heads) : NULL, loss = loss_at(x, q, k, v, sinks);
    free(q), free(k), free(v), free(sinks);
    return loss;
}

/* Central differences, one step and two, so that what is left goes with the fourth power of the step. */
static double slope_of_forward(const numbers *x, const direction *to) {
    const double step = 0x1p-10;
    double one = (loss_beside(x, to, step) - loss_beside(x, to, -step)) / (2 * step);
    double two = (loss_beside(x, to, 2 * step) - loss_beside(x, to, -2 * step)) / (4 * step);
    return (4 * one - two) / 3;
}

static double slope_of_gradients(const numbers *x, const direction *to) {
    return dot(x->dq, to->q, x->queries) + dot(x->dk, to->k, x->keys) + dot(x->dv, to->v, x->values) +
           dot(x->dsinks, to->sinks, x->heads);
}

/* ---- what rounding may do ---- */

static double unit_of(sat_dtype t) {
    return t == SAT_F64 ? 0x1p-53 : t == SAT_F32 ? 0x1p-24 : t == SAT_F16 ? 0x1p-11 : 0x1p-8;
}

/* For every element of the gradients what it may be off by: relative errors of weights and of dS, times the magnitudes
 * of what is summed. Signs of a direction are random, so that the errors add up as a walk does: 8 standard deviations.
 */
static double bound_of(const numbers *x) {
    const sat_problem *p = x->p;
    int64_t n = p->n, dim = x->dim, value_dim = x->value_dim;
    double u = unit_of(p->compute_dtype), low = unit_of(p->a_dtype), squares = 0, all = 0;
    double dots = (double)(dim + 4) * u, value_dots = (double)(value_dim + 4) * u;
    double *dq = calloc((size_t)x->queries + 1, 8), *dk = calloc((size_t)x->keys + 1, 8);
    double *dv = calloc((size_t)x->values + 1, 8), *weight = malloc((size_t)(n + 1) * sizeof *weight);
    for (int64_t row = 0; row < x->queries / dim; row++) {
        int64_t bh = row / p->m, keys = keys_of(x, bh);
        const double *q = x->q + row * dim, *d = x->d + row * value_dim, *o = x->o + row * value_dim;
        int64_t h = bh % p->attention.heads;
        double lse = weigh(x, q, x->k + keys * dim, x->sinks, h, row % p->m, weight);
        double delta = dot(d, o, value_dim), delta_off = dot_size(d, o, value_dim) * (value_dots + 3 * low);
        if (x->heads) { /* LSE is f32 */
            double eps = (fabs(x->sinks[h]) + fabs(lse) + 16) * (u + 0x1p-23) + (double)(p->m * p->batch) * u;
            squares += pow(exp(x->sinks[h] - lse) * (fabs(delta) * (eps + 0x1p-23) + delta_off), 2);
        }
        for (int64_t j = 0; j < n; j++) {
            const double *k = x->k + (keys + j) * dim, *v = x->v + (keys + j) * value_dim;
            if (weight[j] == 0) continue;
            double size = fabs(p->alpha) * dot_size(q, k, dim), dp = dot(d, v, value_dim);
            double eps = low + size * dots + (size + fabs(lse) + 16) * u + (fabs(lse) + 8) * 0x1p-24;
            if (p->attention.softcap != 0) eps += 50 * u + size * dots / p->attention.softcap;
            double ds = weight[j] * (2 * eps * fabs(dp - delta) + value_dots * dot_size(d, v, value_dim) + delta_off);
            ds += 2 * (double)(n + p->m) * u * weight[j] * fabs(dp - delta);
            double w = weight[j] * (eps + 2 * (double)(n + p->m) * u);
            all += weight[j] * fabs(dp);
            for (int64_t e = 0; e < dim; e++) {
                dq[row * dim + e] += fabs(p->alpha) * ds * fabs(k[e]);
                dk[(keys + j) * dim + e] += fabs(p->alpha) * ds * fabs(q[e]);
            }
            for (int64_t e = 0; e < value_dim; e++) dv[(keys + j) * value_dim + e] += w * fabs(d[e]);
        }
    }
    for (int64_t i = 0; i < x->queries; i++) squares += pow(dq[i] + 1.01 * low * fabs(x->dq[i]), 2);
    for (int64_t i = 0; i < x->keys; i++) squares += pow(dk[i] + 1.01 * low * fabs(x->dk[i]), 2);
    for (int64_t i = 0; i < x->values; i++) squares += pow(dv[i] + 1.01 * low * fabs(x->dv[i]), 2);
    free(dq), free(dk), free(dv), free(weight);
    return 8 * sqrt(squares) + 1e-9 * all; /* the differences' own error */
}

/* ---- tests ---- */

static void open_scene(scene *s, sat_context *ctx, sat_pattern *pattern, sat_problem p) {
    *s = (scene){.ctx = ctx, .pattern = pattern};
    assert_ok(sat_pattern_transposed(s->pattern, &s->view));
    assert_ok(sat_request_make(&s->q, s->ctx, s->pattern, &p));
    assert_ok(sat_bench_open(&s->bench, s->ctx, &s->q.problem, s->view, &s->q.device, (size_t)1 << 32));
}

static void run_variant(scene *s, const sat_variant *v) {
    sat_runner_close(&s->runner);
    assert_ok(sat_runner_open(&s->runner, s->ctx, v, &s->q.problem, s->view, &s->q.device, (size_t)1 << 30, NULL));
    run(s);
}

static sat_problem random_problem(uint64_t *r, sat_dtype type) {
    int64_t kv = 1 + random_below(r, 2), heads = kv * (1 + random_below(r, 2));
    sat_problem p = attention_problem(type, heads, kv, 8 + 8 * random_below(r, 5));
    p.op = SAT_ATTENTION_BACKWARD, p.batch = 1 + random_below(r, 2), p.attention.causal = random_below(r, 2);
    if (random_below(r, 3) == 0) p.attention.window = 1 + random_below(r, 30);
    if (random_below(r, 3) == 0) p.alpha = 0.4;
    p.attention.sinks = random_below(r, 3) == 0;
    if (random_below(r, 3) == 0) p.attention.softcap = random_below(r, 2) ? 0.7 : 5;
    if (random_below(r, 3) == 0) p.attention.value_dim = 1 + random_below(r, 50);
    if (random_below(r, 3) == 0) p.attention.dim = 1 + random_below(r, 50);
    return p;
}

/* How far the slopes are apart, in bounds. */
static double off(const numbers *x, uint64_t *r) {
    direction to = {signs(r, x->queries), signs(r, x->keys), signs(r, x->values), signs(r, x->heads)};
    double difference = fabs(slope_of_forward(x, &to) - slope_of_gradients(x, &to)), bound = bound_of(x);
    free(to.q), free(to.k), free(to.v), free(to.sinks);
    return difference == 0 ? 0 : difference / bound;
}

static void open_random(scene *s, uint64_t *r, sat_dtype type) {
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    sat_problem p = random_problem(r, type);
    int64_t m = 1 + random_below(r, 60), n = 1 + random_below(r, 90);
    sat_pattern *pattern = random_pattern(ctx, r, m, n, 1 + random_below(r, 40), 1 + random_below(r, 40), 0.7, false);
    open_scene(s, ctx, pattern, p);
    assert_ok(sat_bench_fill(&s->bench, SAT_PROBE_PRECISION, 0, next_random(r)));
}

static const sat_dtype types[] = {SAT_F32, SAT_F64, SAT_F16, SAT_BF16};

static void gradients_are_slopes_of_the_forward_pass(void **state) {
    (void)state;
    uint64_t r = 41;
    double worst = 0;
    int checked = 0;
    for (int i = 0; i < 32; i++) {
        scene s;
        open_random(&s, &r, types[i % 4]);
        for (size_t k = 0; k < atomic_load(&s.ctx->registry.count); k++) {
            const sat_variant *v = s.ctx->registry.list[k];
            if (!sat_variant_fits(v, &s.q.problem, s.view, &s.q.device)) continue;
            run_variant(&s, v);
            numbers x = load_numbers(&s);
            double far = off(&x, &r);
            if (!(far <= 1)) fail_msg("case %d, %s by %s: %g bounds apart", i, s.q.full_key, v->name, far);
            worst = fmax(worst, far), checked++;
            free_numbers(&x);
        }
        close_scene(&s);
    }
    print_message("%d directions, the farthest at %.2g of its bound\n", checked, worst);
    assert_true(checked >= 32);
}

/* One row of one gradient has the wrong sign: some direction tells. */
static void a_wrong_row_is_no_slope(void **state) {
    (void)state;
    uint64_t r = 42;
    int seen[4][3] = {0};
    for (int i = 0; i < 96; i++) {
        scene s;
        sat_selection selection = {0};
        int type = i % 4, which = i / 4 % 3;
        open_random(&s, &r, types[type]);
        assert_ok(sat_select_by_estimate(&s.q, &selection));
        run_variant(&s, selection.variant);
        numbers x = load_numbers(&s);
        double *gradient = which == 0 ? x.dq : which == 1 ? x.dk : x.dv, most = 0;
        int64_t dim = which == 2 ? x.value_dim : x.dim, row = 0;
        int64_t rows = (which == 0 ? x.queries : which == 1 ? x.keys : x.values) / dim;
        for (int64_t k = 0; k < rows; k++) { /* the largest one */
            double size = dot(gradient + k * dim, gradient + k * dim, dim);
            if (size > most) most = size, row = k;
        }
        for (int64_t e = 0; e < dim; e++) gradient[row * dim + e] *= -1;
        for (int tries = 0; tries < 4 && !seen[type][which]; tries++) seen[type][which] = off(&x, &r) > 1;
        free_numbers(&x);
        close_scene(&s);
    }
    for (int type = 0; type < 4; type++)
        for (int which = 0; which < 3; which++)
            if (!seen[type][which]) fail_msg("%s: gradient %d, no direction told", sat_dtype_name(types[type]), which);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(gradients_are_slopes_of_the_forward_pass),
                                       cmocka_unit_test(a_wrong_row_is_no_slope)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
