// Attention from its definition, in double precision, sharing no code with the library, and how far from it rounding
// may lead. A weight may be rounded to the operands' dtype; its score is a sum of dim products; exp is good for a few
// units; sums of n terms are in the compute dtype. All of it relative to sums of magnitudes: no luck is assumed.

#include "check_attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../number.h"

/* ---- operands ---- */

static operand heads_operand(const sat_problem *p, const char *name, const sat_heads *s, bool of_keys, int64_t dim,
                             bool output) {
    const sat_attention *t = &p->attention;
    int64_t heads = of_keys ? t->kv_heads : t->heads, rows = of_keys ? p->n : p->m;
    return (operand){.name = name,
                     .dtype = p->a_dtype,
                     .output = output,
                     .rows = heads * rows,
                     .cols = dim,
                     .layout = {.row_stride = s->row_stride, .col_stride = 1, .batch_stride = s->batch_stride},
                     .group = rows,
                     .group_stride = s->head_stride,
                     .align = output ? p->c_align : p->a_align};
}

// One number a head, shared by the batch.
static operand sinks_operand(const sat_problem *p, bool output) {
    return (operand){.name = output ? "dsinks" : "sinks",
                     .dtype = SAT_F32,
                     .output = output,
                     .rows = p->attention.heads,
                     .cols = 1,
                     .batch = output, // else the problem's
                     .layout = {.row_stride = 1, .col_stride = 1},
                     .align = 4};
}

int attention_operands(const sat_problem *p, operand *list) {
    const sat_attention *t = &p->attention;
    bool back = p->op == SAT_ATTENTION_BACKWARD;
    list[0] = heads_operand(p, "q", &t->q, false, t->dim, false);
    list[1] = heads_operand(p, "k", &t->k, true, t->dim, false);
    list[2] = heads_operand(p, "v", &t->v, true, value_dim_of(p), false);
    list[3] = heads_operand(p, "o", &t->o, false, value_dim_of(p), !back);
    sat_layout lse = {.row_stride = 1, .col_stride = 1, .batch_stride = t->heads * p->m};
    list[4] = (operand){.name = "lse",
                        .dtype = SAT_F32,
                        .output = !back,
                        .rows = t->heads * p->m,
                        .cols = 1,
                        .layout = lse,
                        .align = 4};
    if (!back && !t->lse) list[4] = (operand){.dtype = SAT_F32, .align = 4};
    if (!back && t->sinks) list[5] = sinks_operand(p, false);
    if (!back) return t->sinks ? 6 : t->lse ? 5 : 4;
    list[5] = heads_operand(p, "do", &t->do_, false, value_dim_of(p), false);
    list[6] = heads_operand(p, "dq", &t->dq, false, t->dim, true);
    list[7] = heads_operand(p, "dk", &t->dk, true, t->dim, true);
    list[8] = heads_operand(p, "dv", &t->dv, true, value_dim_of(p), true);
    if (t->sinks) list[9] = sinks_operand(p, false), list[10] = sinks_operand(p, true);
    return t->sinks ? 11 : 9;
}

/* ---- which keys a query keeps ---- */

static bool is_stored(const blocks *b, int64_t row, int64_t col) {
    for (int64_t t = b->row_ptr[row]; t < blocks_end(b, row); t++)
        if (b->col_idx[t] == col) return true;
    return false;
}

// Masks that all heads share, or all items, are counted as one.
static int64_t mask_number(const check_case *c, int64_t item, int64_t h) {
    if (!c->mask.used) return c->blocks.grid_rows == grid_of(c->problem.m, c->blocks.block_rows) ? 0 : h;
    return (c->mask.batch > 1 ? item : 0) * c->mask.heads + (c->mask.heads > 1 ? h : 0);
}

static bool is_kept(const check_case *c, int64_t item, int64_t h, int64_t i, int64_t j) {
    const blocks *b = &c->blocks;
    const sat_attention *t = &c->problem.attention;
    int64_t row = mask_number(c, item, h) * grid_of(c->problem.m, b->block_rows) + i / b->block_rows;
    int64_t q0 = 0, q1 = c->problem.m, k0 = 0, k1 = c->problem.n;
    for (int64_t s = 0; s < b->sequences; s++)
        if (i >= b->q_offsets[s] && i < b->q_offsets[s + 1])
            q0 = b->q_offsets[s], q1 = b->q_offsets[s + 1], k0 = b->kv_offsets[s], k1 = b->kv_offsets[s + 1];
    if (j < k0 || j >= k1) return false;
    int64_t ahead = (j - k0) - (i - q0) - ((k1 - k0) - (q1 - q0)); // of the query's diagonal position
    if (t->causal && ahead > 0) return false;
    if (t->window && (ahead >= t->window || ahead <= -t->window)) return false;
    return is_stored(b, row, j / b->block_cols);
}

/* ---- one head ---- */

typedef struct head {
    const check_case *c;
    const check_data *d;
    int64_t b, h, kv;
    double sink;               // -inf: there is none
    double *q, *k, *v, *o, *g; // rows x dim; g: dO
    double *p;                 // m x n: weights; 0 where not kept
    double *ds, *p_error, *ds_error;
    bool *kept;
    double *lse, *loss; // of each query: what rounding may do to its weights, relative
} head;

static double *load_head(const check_data *d, int which, int64_t b, int64_t h, int64_t rows, int64_t dim) {
    const operand *o = &d->list[which];
    double *out = malloc((size_t)(rows * dim + 1) * sizeof *out);
    for (int64_t i = 0; out && i < rows; i++)
        for (int64_t x = 0; x < dim; x++)
            out[i * dim + x] = number_load(o->dtype, o->data, operand_at(o, b, h * rows + i, x));
    return out;
}

static double dot(const double *x, const double *y, int64_t n, double *magnitude) {
    double sum = 0, all = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i], all += fabs(x[i] * y[i]);
    if (magnitude) *magnitude = all;
    return sum;
}

// What may be lost, or taken for 0, where a number is too small for its dtype.
static double least_of(sat_dtype t) { return t == SAT_F16 ? number_tiny(t) : t == SAT_F64 ? 0x1p-1022 : 0x1p-126; }

static double unit(const sat_problem *p) { return number_roundoff(p->compute_dtype) + 0x1p-53; }

// What one product of two vectors of dim may lose, over the sum of magnitudes.
static double loss_over(const sat_problem *p, int64_t dim) {
    double loss = (double)(dim + 4) * unit(p);
    return (p->flags & SAT_ALLOW_TF32) && p->a_dtype == SAT_F32 ? loss + 2 * 0x1p-11 + 0x1p-22 : loss;
}

static double dot_loss(const sat_problem *p) { return loss_over(p, p->attention.dim); }

static double low_unit(const sat_problem *p) {
    return (p->flags & SAT_ALLOW_TF32) && p->a_dtype == SAT_F32 ? 2 * 0x1p-11 + 0x1p-22 : number_roundoff(p->a_dtype);
}

static double capped(const sat_problem *p, double s) {
    double cap = p->attention.softcap;
    return cap != 0 ? cap * tanh(s / cap) : s;
}

// What tanh may lose: units of what it gives.
static double cap_loss(const sat_problem *p, double score) {
    double cap = p->attention.softcap;
    return cap != 0 ? 8 * fmin(cap, score) * unit(p) : 0;
}

// What the slope of tanh may be off by: units of 1, and by the slope's own slope what its score is off by.
static double slope_loss(const sat_problem *p, double score_loss) {
    double cap = p->attention.softcap;
    return cap != 0 ? fmin(1, 34 * unit(p) + 0.77 * score_loss / cap) : 0;
}

// Scores of query i become weights; LSE, and the loss that any weight of the row may have.
static void weigh(const head *w, int64_t i) {
    const sat_problem *p = &w->c->problem;
    int64_t dim = p->attention.dim, n = p->n;
    double largest = w->sink, total = 0, worst = 0, *row = w->p + i * n;
    for (int64_t j = 0; j < n; j++) {
        w->kept[i * n + j] = is_kept(w->c, w->b, w->h, i, j);
        if (!w->kept[i * n + j]) continue;
        double magnitude;
        row[j] = capped(p, p->alpha * dot(w->q + i * dim, w->k + j * dim, dim, &magnitude));
        largest = fmax(largest, row[j]);
        worst = fmax(worst, fabs(p->alpha) * magnitude);
    }
    bool sink = !isinf(w->sink);
    if (sink) total = exp(w->sink - largest), worst = fmax(worst, fabs(w->sink));
    for (int64_t j = 0; j < n; j++)
        if (w->kept[i * n + j]) total += row[j] = exp(row[j] - largest);
    for (int64_t j = 0; j < n; j++)
        if (w->kept[i * n + j]) row[j] /= total;
    w->lse[i] = total > 0 ? largest + log(total) : -INFINITY;
    double lse = isinf(w->lse[i]) ? 0 : fabs(w->lse[i]);
    w->loss[i] = worst * dot_loss(p) + (2 * worst + lse + 16) * unit(p) + cap_loss(p, worst);
}

static void store_expected(const head *w, int which, int64_t row, int64_t x, double value, double error) {
    const operand *o = &w->d->list[which];
    int64_t at = (w->b * o->rows + row) * o->cols + x;
    o->expected[at] = value;
    o->bound[at] = error + number_roundoff(o->dtype) * (fabs(value) + error) + least_of(o->dtype);
}

static void forward_row(const head *w, int64_t i, bool expect) {
    const sat_problem *p = &w->c->problem;
    int64_t dim = value_dim_of(p), row = w->h * p->m + i;
    double depth = (double)p->n, u = unit(p), steps = 2 * w->loss[i] + low_unit(p) + (2 * depth + 16) * u;
    double least = depth * least_of(p->a_dtype); // weights too small for f16
    for (int64_t x = 0; x < dim; x++) {
        double sum = 0, magnitude = 0, largest = 0;
        for (int64_t j = 0; j < p->n; j++) {
            if (!w->kept[i * p->n + j]) continue;
            double term = w->p[i * p->n + j] * w->v[j * dim + x];
            sum += term, magnitude += fabs(term), largest = fmax(largest, fabs(w->v[j * dim + x]));
        }
        if (w->o) w->o[i * dim + x] = sum;
        if (expect) store_expected(w, 3, row, x, sum, isinf(w->lse[i]) ? 0 : steps * magnitude + least * largest);
    }
    if (!expect || !p->attention.lse) return;
    store_expected(w, 4, row, 0, w->lse[i], isinf(w->lse[i]) ? 0 : w->loss[i] + (depth + 8) * u + low_unit(p));
}

// Adds what a query gives to the gradient of its head's sink, which is one sum over the batch.
static void add_to_sink(const head *w, double given, double delta, double delta_error) {
    const sat_problem *p = &w->c->problem;
    const operand *o = &w->d->list[10];
    if (isinf(w->sink)) return;
    double weight = exp(w->sink - given), term = weight * delta, depth = (double)(p->m * p->batch);
    double u = unit(p) + 0x1p-24, loss = (fabs(w->sink) + fabs(given) + 16) * u + (depth + 8) * unit(p);
    o->expected[w->h] -= term;
    o->bound[w->h] += fabs(term) * (loss + 0x1p-24) + weight * delta_error + 0x1p-126;
}

// Weights by the LSE that was given, and dS/alpha, with what each may be off by.
static void gradients(const head *w, int64_t i) {
    const sat_problem *p = &w->c->problem;
    int64_t dim = p->attention.dim, value_dim = value_dim_of(p), n = p->n;
    const double *g = w->g + i * value_dim;
    double delta_size, delta = dot(g, w->o + i * value_dim, value_dim, &delta_size);
    double value_loss = loss_over(p, value_dim), delta_error = delta_size * (value_loss + number_roundoff(p->a_dtype));
    double given = number_load(SAT_F32, w->d->list[4].data, w->b * w->d->list[4].rows + w->h * p->m + i);
    if (p->attention.sinks) add_to_sink(w, given, delta, delta_error);
    for (int64_t j = 0; j < n; j++) {
        int64_t at = i * n + j;
        if (!w->kept[at]) continue;
        double size, dp = dot(g, w->v + j * value_dim, value_dim, &size);
        double s = p->alpha * dot(w->q + i * dim, w->k + j * dim, dim, NULL), t = 0;
        double weight = exp(capped(p, s) - given), slope_error = slope_loss(p, w->loss[i]);
        if (p->attention.softcap != 0) t = tanh(s / p->attention.softcap);
        double loss = w->loss[i] + low_unit(p) + fabs(given) * 0x1p-23;
        w->p[at] = weight, w->ds[at] = weight * (dp - delta) * (1 - t * t);
        w->p_error[at] = weight * loss + least_of(p->a_dtype);
        w->ds_error[at] =
            weight * ((2 * loss + slope_error) * fabs(dp - delta) + size * value_loss + delta_error) * (1 + loss) +
            least_of(p->a_dtype) * (1 + fabs(dp - delta));
    }
}

// sum over rows (or keys) of a weight times a vector, with the errors of both
typedef struct sum {
    double value, magnitude, error, before; // before: the value without this head
} sum;

static void add(sum *s, double weight, double error, double x) {
    s->value += weight * x, s->magnitude += fabs(weight * x), s->error += error * fabs(x);
}

// A head's part may be rounded before heads that share keys are added up: cuDNN stores each head's gradients, and then
// adds.
static void end_head(const head *w, sum *s) {
    s->error += number_roundoff(w->c->problem.a_dtype) * fabs(s->value - s->before);
    s->before = s->value;
}

static void finish(const head *w, int which, int64_t row, int64_t x, const sum *s, double alpha, double depth) {
    double error = s->error + (depth + 8) * unit(&w->c->problem) * s->magnitude;
    store_expected(w, which, row, x, alpha * s->value, fabs(alpha) * error);
}

static void query_gradients(const head *w) {
    const sat_problem *p = &w->c->problem;
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t x = 0; x < p->attention.dim; x++) {
            sum s = {0};
            for (int64_t j = 0; j < p->n; j++)
                if (w->kept[i * p->n + j])
                    add(&s, w->ds[i * p->n + j], w->ds_error[i * p->n + j], w->k[j * p->attention.dim + x]);
            finish(w, 6, w->h * p->m + i, x, &s, p->alpha, (double)p->n);
        }
}

// What this head adds to the gradients of its keys and values: dk is n x dim, dv n x value_dim.
static void key_gradients(const head *w, sum *dk, sum *dv) {
    const sat_problem *p = &w->c->problem;
    int64_t dim = p->attention.dim, value_dim = value_dim_of(p);
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++) {
            int64_t at = i * p->n + j;
            for (int64_t x = 0; w->kept[at] && x < dim; x++)
                add(&dk[j * dim + x], w->ds[at], w->ds_error[at], w->q[i * dim + x]);
            for (int64_t x = 0; w->kept[at] && x < value_dim; x++)
                add(&dv[j * value_dim + x], w->p[at], w->p_error[at], w->g[i * value_dim + x]);
        }
}

/* ---- all heads ---- */

static void free_head(head *w) {
    free(w->q), free(w->k), free(w->v), free(w->o), free(w->g), free(w->p);
    free(w->ds), free(w->p_error), free(w->ds_error), free(w->kept), free(w->lse), free(w->loss);
}

static bool open_head(head *w, const check_data *d, const check_case *c, int64_t b, int64_t h) {
    const sat_problem *p = &c->problem;
    const sat_attention *t = &p->attention;
    bool back = p->op == SAT_ATTENTION_BACKWARD;
    const operand *sinks = &d->list[back ? 9 : 5];
    size_t pairs = (size_t)(p->m * p->n) + 1, queries = (size_t)p->m + 1;
    *w = (head){.c = c, .d = d, .b = b, .h = h, .kv = h / (t->heads / t->kv_heads)};
    w->sink = t->sinks ? number_load(SAT_F32, sinks->data, operand_at(sinks, b, h, 0)) : -INFINITY;
    w->q = load_head(d, 0, b, h, p->m, t->dim);
    w->k = load_head(d, 1, b, w->kv, p->n, t->dim), w->v = load_head(d, 2, b, w->kv, p->n, value_dim_of(p));
    w->p = calloc(pairs, sizeof *w->p), w->kept = calloc(pairs, sizeof *w->kept);
    w->lse = calloc(queries, sizeof *w->lse), w->loss = calloc(queries, sizeof *w->loss);
    bool ok = w->q && w->k && w->v && w->p && w->kept && w->lse && w->loss;
    if (!back) return ok;
    w->o = load_head(d, 3, b, h, p->m, value_dim_of(p)), w->g = load_head(d, 5, b, h, p->m, value_dim_of(p));
    w->ds = calloc(pairs, sizeof *w->ds);
    w->p_error = calloc(pairs, sizeof *w->ds), w->ds_error = calloc(pairs, sizeof *w->ds);
    return ok && w->o && w->g && w->ds && w->p_error && w->ds_error;
}

bool attention_inputs(check_data *d, const check_case *c) {
    const sat_problem *p = &c->problem;
    bool ok = true;
    for (int64_t b = 0; ok && b < p->batch; b++)
        for (int64_t h = 0; ok && h < p->attention.heads; h++) {
            head w;
            ok = open_head(&w, d, c, b, h);
            const operand *o = &d->list[3], *lse = &d->list[4];
            for (int64_t i = 0; ok && i < p->m; i++) {
                int64_t row = h * p->m + i;
                weigh(&w, i);
                forward_row(&w, i, false);
                for (int64_t x = 0; x < o->cols; x++)
                    number_store(o->dtype, o->data, operand_at(o, b, row, x), w.o[i * o->cols + x]);
                ((float *)lse->data)[operand_at(lse, b, row, 0)] = (float)w.lse[i];
            }
            free_head(&w);
        }
    return ok;
}

static bool expect_keys(check_data *d, const check_case *c, int64_t b, int64_t kv) {
    const sat_problem *p = &c->problem;
    const sat_attention *t = &p->attention;
    int64_t share = t->heads / t->kv_heads, value_dim = value_dim_of(p);
    int64_t of_dk = p->n * t->dim, of_dv = p->n * value_dim;
    sum *dk = calloc((size_t)of_dk + 1, sizeof *dk), *dv = calloc((size_t)of_dv + 1, sizeof *dv);
    bool ok = dk && dv;
    head w = {0};
    for (int64_t h = kv * share; ok && h < (kv + 1) * share; h++) {
        ok = open_head(&w, d, c, b, h);
        for (int64_t i = 0; ok && i < p->m; i++) weigh(&w, i), gradients(&w, i);
        if (ok) query_gradients(&w), key_gradients(&w, dk, dv);
        for (int64_t e = 0; ok && share > 1 && e < of_dk; e++) end_head(&w, &dk[e]);
        for (int64_t e = 0; ok && share > 1 && e < of_dv; e++) end_head(&w, &dv[e]);
        free_head(&w);
    }
    double depth = (double)(share * p->m);
    for (int64_t e = 0; ok && e < of_dk; e++)
        finish(&w, 7, kv * p->n + e / t->dim, e % t->dim, &dk[e], p->alpha, depth);
    for (int64_t e = 0; ok && e < of_dv; e++) finish(&w, 8, kv * p->n + e / value_dim, e % value_dim, &dv[e], 1, depth);
    free(dk), free(dv);
    return ok;
}

bool attention_reference(check_data *d, const check_case *c) {
    const sat_problem *p = &c->problem;
    const sat_attention *t = &p->attention;
    bool ok = true, of_sinks = p->op == SAT_ATTENTION_BACKWARD && t->sinks;
    for (int64_t h = 0; of_sinks && h < t->heads; h++) d->list[10].expected[h] = d->list[10].bound[h] = 0;
    for (int64_t b = 0; ok && b < p->batch; b++) {
        for (int64_t kv = 0; ok && p->op == SAT_ATTENTION_BACKWARD && kv < t->kv_heads; kv++)
            ok = expect_keys(d, c, b, kv);
        for (int64_t h = 0; ok && p->op == SAT_ATTENTION && h < t->heads; h++) {
            head w;
            ok = open_head(&w, d, c, b, h);
            for (int64_t i = 0; ok && i < p->m; i++) weigh(&w, i), forward_row(&w, i, true);
            free_head(&w);
        }
    }
    return ok;
}
