// The planted attention and its gradients: plain loops over all pairs of a query and a key, in double precision. The
// forward pass goes through the keys in small tiles and rescales, as kernels do.

#include <stdlib.h>
#include <string.h>

#include "../number.h"
#include "check_attention.h"
#include "power.h"

enum { TILE = 8 };

/* ---- which keys a query keeps ---- */

typedef struct keys {
    const run *r;
    bool *stored;                 // of the block columns, for the query's block row
    int64_t h, i, begin, end, at; // at: the query's diagonal position
} keys;

// The keys of query i: by its sequence, and by the blocks of its row.
static void choose_keys(keys *k, int64_t h, int64_t i) {
    const sat_pattern_view *a = k->r->a;
    const sat_problem *p = &k->r->p;
    int64_t q0 = 0, q1 = p->m, each = grid_of(p->m, a->block_rows), row = i / a->block_rows;
    if (a->grid_rows != each) row += h * each;
    k->h = h, k->i = i, k->begin = 0, k->end = p->n;
    for (int64_t s = 0; s < a->sequences; s++)
        if (i >= a->q_offsets[s] && i < a->q_offsets[s + 1])
            q0 = a->q_offsets[s], q1 = a->q_offsets[s + 1], k->begin = a->kv_offsets[s], k->end = a->kv_offsets[s + 1];
    k->at = k->begin + (i - q0) + (k->end - k->begin) - (q1 - q0);
    memset(k->stored, 0, (size_t)a->grid_cols * sizeof *k->stored);
    for (int64_t t = a->row_ptr[row]; t < a->row_ptr[row + 1]; t++) k->stored[a->col_idx[t]] = true;
}

static bool is_kept(const keys *k, spot *s, int64_t j) {
    const sat_attention *t = &k->r->p.attention;
    int64_t ahead = j - k->at;
    bool kept = j >= k->begin && j < k->end && !(t->causal && ahead > 0) &&
                !(t->window && (ahead >= t->window || ahead <= -t->window)) && k->stored[j / k->r->a->block_cols];
    s->i = k->i, s->j = j, s->h = k->h;
    s->part = j / k->r->a->block_cols, s->parts = k->r->a->grid_cols, s->rows = k->r->p.m, s->cols = k->r->p.n;
    s->t = k->at; // what a mask with a fault asks for
    return k->r->how->keep ? k->r->how->keep(s, kept) : kept;
}

static bool is_skipped(const spot *s) { return s->r->how->skip && s->r->how->skip(s); }

/* ---- one head ---- */

typedef struct head {
    const run *r;
    int64_t z, h, kv, dim, value_dim;
    double *q, *k, *v, *o, *g; // g: dO
    double *dk, *dv, *dsinks;  // of the keys' head; of all heads
    double sink;               // -inf: there is none
    keys keys;
} head;

static double dot(const double *x, const double *y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

static void add(const run *r, double *to, double factor, const double *x, int64_t n) {
    bool narrow = r->p.compute_dtype == SAT_F32; // one rounding an addition, so that the order shows
    for (int64_t i = 0; i < n; i++) to[i] = narrow ? (double)(float)(to[i] + factor * x[i]) : to[i] + factor * x[i];
    for (int64_t i = 0; r->how->sum && i < n; i++) to[i] = r->how->sum(to[i]);
}

static double hooked(double (*hook)(double), double x) { return hook ? hook(x) : x; }

static double score_of(const head *w, int64_t i, int64_t j) {
    double x = w->r->p.alpha * dot(w->q + i * w->dim, w->k + j * w->dim, w->dim), cap = w->r->p.attention.softcap;
    return hooked(w->r->how->score, cap != 0 ? cap * tanh(x / cap) : x);
}

static int64_t reversed(const run *r, int64_t at, int64_t n) { return r->backwards ? n - 1 - at : at; }

static void free_head(head *w) {
    free(w->q), free(w->k), free(w->v), free(w->o), free(w->g), free(w->keys.stored);
    w->q = w->k = w->v = w->o = w->g = NULL, w->keys.stored = NULL;
}

static bool open_head(head *w) {
    const run *r = w->r;
    const sat_problem *p = &r->p;
    const sat_attention *t = &p->attention;
    bool back = p->op == SAT_ATTENTION_BACKWARD;
    w->dim = t->dim, w->value_dim = value_dim_of(p),
    w->kv = r->how->kv_head ? r->how->kv_head(t, w->h) : w->h / (t->heads / t->kv_heads);
    w->q = power_load(r, 0, w->z, w->h * p->m, p->m);
    w->k = power_load(r, 1, w->z, w->kv * p->n, p->n), w->v = power_load(r, 2, w->z, w->kv * p->n, p->n);
    w->o = back ? power_load(r, 3, w->z, w->h * p->m, p->m) : NULL;
    w->g = back ? power_load(r, 5, w->z, w->h * p->m, p->m) : NULL;
    w->sink = -INFINITY;
    if (t->sinks) w->sink = number_load(SAT_F32, r->host[back ? 9 : 5], r->how->first_sink ? 0 : w->h);
    w->keys = (keys){.r = r, .stored = calloc((size_t)r->a->grid_cols + 1, sizeof(bool))};
    return w->q && w->k && w->v && w->keys.stored && (!back || (w->o && w->g));
}

static void store_row(const head *w, int which, int64_t h, int64_t row, int64_t rows, const double *x, double factor) {
    spot s = {.r = w->r, .which = which, .z = w->z, .h = h, .i = row, .rows = rows, .cols = w->r->list[which].cols};
    int64_t to = w->r->how->row ? w->r->how->row(&s) : row;
    for (s.j = 0; to >= 0 && s.j < s.cols; s.j++) {
        s.here = w->z == w->r->p.batch - 1 && h == 0 && row == rows / 2 && s.j == s.cols / 3;
        power_store(&s, h * rows + to, factor * x[s.j]);
    }
}

/* ---- forward ---- */

typedef struct softmax {
    double largest, total;
    double *sum; // value_dim
    int64_t count;
} softmax;

// One tile of keys: its scores, the new largest one, and what was summed before brought down to that.
static void add_tile(const head *w, softmax *x, int64_t i, const int64_t *list, int count) {
    const fault_hooks *how = w->r->how;
    double score[TILE], largest = x->largest;
    for (int n = 0; n < count; n++) largest = fmax(largest, score[n] = score_of(w, i, list[n]));
    double factor = x->count && !how->never_rescales ? exp(x->largest - largest) : 1;
    if (how->without_largest) factor = 1, largest = 0;
    for (int64_t e = 0; e < w->value_dim; e++) x->sum[e] *= factor;
    x->total *= factor, x->largest = largest, x->count += count;
    for (int n = 0; n < count; n++) {
        double weight = exp(score[n] - largest);
        if (w->r->p.a_dtype != SAT_F64) weight = (double)(float)weight;
        x->total += weight;
        add(w->r, x->sum, hooked(how->weight, weight), w->v + list[n] * w->value_dim, w->value_dim);
    }
}

// The sink counts as a key without a value.
static void add_sink(const head *w, softmax *x) {
    double largest = fmax(x->largest, w->sink), factor = x->count ? exp(x->largest - largest) : 0;
    if (isinf(w->sink)) return;
    for (int64_t e = 0; e < w->value_dim; e++) x->sum[e] *= factor;
    x->total = x->total * factor + exp(w->sink - largest), x->largest = largest;
}

static void forward_row(head *w, int64_t i, double *sum) {
    const run *r = w->r;
    const sat_problem *p = &r->p;
    softmax x = {.largest = -INFINITY, .sum = sum};
    int64_t list[TILE];
    int count = 0;
    spot s = {.r = r, .which = 3, .z = w->z};
    choose_keys(&w->keys, w->h, i);
    memset(sum, 0, (size_t)w->value_dim * sizeof *sum);
    for (int64_t at = 0; at < p->n; at++) {
        int64_t j = reversed(r, at, p->n);
        if (is_kept(&w->keys, &s, j) && !is_skipped(&s)) list[count++] = j;
        if (count == TILE) add_tile(w, &x, i, list, count), count = 0;
    }
    if (count) add_tile(w, &x, i, list, count);
    if (x.count == 0 && r->how->unwritten) return;
    if (x.count && r->how->zero_keys > 0) x.total += r->how->zero_keys * exp(-x.largest);
    softmax keys_alone = x;
    add_sink(w, &x);
    for (int64_t e = 0; e < w->value_dim; e++) sum[e] = x.count ? sum[e] / x.total : r->how->nothing;
    store_row(w, 3, w->h, i, p->m, sum, 1);
    if (!p->attention.lse) return;
    if (r->how->lse_without_sink) x = keys_alone;
    double lse = r->how->lse ? r->how->lse(x.largest, x.total) : x.largest + log(x.total);
    if (x.total == 0 && !r->how->lse) lse = -INFINITY;
    spot at = {.r = r, .which = 4, .z = w->z, .h = w->h, .i = i, .rows = p->m, .cols = 1};
    power_store(&at, w->h * p->m + i, lse);
}

bool power_attention(const run *r) {
    bool ok = true;
    double *sum = malloc((size_t)(value_dim_of(&r->p) + 1) * sizeof *sum);
    for (int64_t at = 0; ok && at < r->p.batch * r->p.attention.heads; at++) {
        head w = {.r = r, .z = at / r->p.attention.heads, .h = at % r->p.attention.heads};
        ok = open_head(&w) && sum;
        for (int64_t i = 0; ok && i < r->p.m; i++) forward_row(&w, i, sum);
        free_head(&w);
    }
    free(sum);
    return ok;
}

/* ---- gradients ---- */

static void backward_row(head *w, int64_t i, double *dq) {
    const run *r = w->r;
    const sat_problem *p = &r->p;
    const double *q = w->q + i * w->dim, *g = w->g + i * w->value_dim;
    double lse = number_load(SAT_F32, r->host[4], operand_at(&r->list[4], w->z, w->h * p->m + i, 0));
    spot s = {.r = r, .z = w->z, .h = w->h, .i = i, .rows = p->m};
    int64_t kept = 0;
    double delta = dot(g, w->o + i * w->value_dim, w->value_dim);
    if (r->how->delta) delta = r->how->delta(&s, delta);
    if (s.which = 10, !isinf(w->sink) && !is_skipped(&s)) w->dsinks[w->h] -= exp(w->sink - lse) * delta;
    choose_keys(&w->keys, w->h, i);
    memset(dq, 0, (size_t)w->dim * sizeof *dq);
    for (int64_t at = 0; at < p->n; at++) {
        int64_t j = reversed(r, at, p->n);
        s.which = 0;
        if (!is_kept(&w->keys, &s, j)) continue;
        kept++;
        double score = score_of(w, i, j), weight = exp(score - lse), cap = p->attention.softcap;
        double slope = cap != 0 && !r->how->flat_cap ? 1 - score / cap * (score / cap) : 1;
        double ds = hooked(r->how->ds, weight * slope * (dot(g, w->v + j * w->value_dim, w->value_dim) - delta));
        if (s.which = 6, !is_skipped(&s)) add(r, dq, ds, w->k + j * w->dim, w->dim);
        if (s.which = 7, !is_skipped(&s)) add(r, w->dk + j * w->dim, ds, q, w->dim);
        if (s.which = 8, !is_skipped(&s))
            add(r, w->dv + j * w->value_dim, hooked(r->how->weight, weight), g, w->value_dim);
    }
    for (int64_t e = 0; kept == 0 && e < w->dim; e++) dq[e] = r->how->nothing;
    if (kept || !r->how->unwritten) store_row(w, 6, w->h, i, p->m, dq, p->alpha);
}

static bool key_head(head *w, int64_t kv, double *dq) {
    const sat_problem *p = &w->r->p;
    int64_t share = p->attention.heads / p->attention.kv_heads;
    bool ok = true;
    for (w->h = kv * share; ok && w->h < (kv + 1) * share; w->h++) {
        ok = open_head(w);
        for (int64_t i = 0; ok && i < p->m; i++) backward_row(w, reversed(w->r, i, p->m), dq);
        free_head(w);
    }
    for (int64_t j = 0; ok && j < p->n; j++) {
        store_row(w, 7, kv, j, p->n, w->dk + j * w->dim, p->alpha);
        store_row(w, 8, kv, j, p->n, w->dv + j * w->value_dim, 1);
    }
    return ok;
}

bool power_gradients(const run *r) {
    const sat_problem *p = &r->p;
    int64_t dim = p->attention.dim, value_dim = value_dim_of(p);
    double *dsinks = calloc((size_t)p->attention.heads, sizeof *dsinks);
    bool ok = dsinks != NULL;
    for (int64_t at = 0; ok && at < p->batch * p->attention.kv_heads; at++) {
        head w = {.r = r, .z = at / p->attention.kv_heads, .dim = dim, .value_dim = value_dim, .dsinks = dsinks};
        w.dk = calloc((size_t)(p->n * dim) + 1, sizeof *w.dk);
        w.dv = calloc((size_t)(p->n * value_dim) + 1, sizeof *w.dv);
        double *dq = malloc((size_t)(w.dim + 1) * sizeof *dq);
        ok = w.dk && w.dv && dq && key_head(&w, at % p->attention.kv_heads, dq);
        free(w.dk), free(w.dv), free(dq);
    }
    for (int64_t h = 0; ok && p->attention.sinks && h < p->attention.heads; h++)
        power_store(&(spot){.r = r, .which = 10, .h = h, .rows = 1, .cols = 1}, h, dsinks[h]);
    free(dsinks);
    return ok;
}
