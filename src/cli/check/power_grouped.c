// The planted products of groups: plain loops over groups. Sums are in the compute type, one rounding an addition.

#include <stdlib.h>
#include <string.h>

#include "../number.h"
#include "check_grouped.h"
#include "power.h"

enum { PART = 8 }; // products of the depth that count as one part

typedef struct groups {
    const run *r;
    int64_t *offsets;
    double *x, *second, *out, *bias, *sums; // x: m x k; second: of the gradient m x n, else one W
} groups;

int64_t power_offset(const run *r, int64_t i) {
    const void *from = r->host[3];
    return r->p.grouped.offset_type == SAT_I32 ? ((const int32_t *)from)[i] : ((const int64_t *)from)[i];
}

// The group where a rule is broken is empty, and so are all after it.
static void take_offsets(const run *r, int64_t *to) {
    bool right = r->p.grouped.groups == 0 || power_offset(r, 0) == 0;
    to[0] = 0;
    for (int64_t g = 1; g <= r->p.grouped.groups; g++) {
        int64_t at = power_offset(r, g);
        right = right && at >= to[g - 1] && at <= r->p.m;
        to[g] = right ? at : to[g - 1];
    }
    if (r->how->take) r->how->take(r, to);
}

static void close_groups(groups *w) {
    free(w->offsets), free(w->x), free(w->second), free(w->out), free(w->bias), free(w->sums);
}

static bool open_groups(groups *w, const run *r) {
    const sat_problem *p = &r->p;
    *w = (groups){.r = r, .offsets = calloc((size_t)p->grouped.groups + 1, sizeof *w->offsets)};
    w->x = power_load(r, 0, 0, 0, p->m), w->sums = malloc((size_t)(p->n + 1) * sizeof *w->sums);
    w->bias = p->grouped.bias ? power_load(r, 4, 0, 0, p->grouped.groups) : NULL;
    if (!w->offsets || !w->x || !w->sums || (p->grouped.bias && !w->bias)) return false;
    take_offsets(r, w->offsets);
    return true;
}

// A sum of `depth` products: x[t * x_step] times row t of `rows`.
static void add_terms(const groups *w, spot *s, const double *x, int64_t x_step, const double *rows, int64_t depth) {
    const run *r = w->r;
    int64_t n = r->p.n;
    s->depth = depth, s->parts = (depth + PART - 1) / PART;
    for (int64_t at = 0; at < depth; at++) {
        s->t = r->backwards ? depth - 1 - at : at, s->part = s->t / PART, s->j = s->t - s->t % PART;
        if (!(r->how->skip && r->how->skip(s))) power_add_row(r, w->sums, x[s->t * x_step], rows + s->t * n, n);
        if (!r->how->part || (at % PART != PART - 1 && at != depth - 1)) continue;
        for (int64_t j = 0; j < n; j++) w->sums[j] = r->how->part(s, w->sums[j]);
    }
}

static void store_row(const groups *w, spot *s, int64_t to, int64_t group) {
    const run *r = w->r;
    for (s->j = 0; s->j < r->p.n; s->j++) {
        s->here = s->z == r->list[2].batch / 2 && s->i == s->rows / 2 && s->j == s->cols / 3;
        double bias = w->bias && group >= 0 ? w->bias[group * r->p.n + s->j] : 0;
        power_store(s, to, power_finish(r, w->sums[s->j], w->out[s->i * r->p.n + s->j], bias));
    }
}

static spot row_spot(const groups *w, int64_t z, int64_t i) {
    const operand *out = &w->r->list[2];
    return (spot){.r = w->r, .which = 2, .z = z, .i = i, .rows = out->rows, .cols = out->cols};
}

/* ---- Y ---- */

static void multiply_row(const groups *w, int64_t i, int64_t group, const double *others) {
    const sat_problem *p = &w->r->p;
    spot s = row_spot(w, 0, i);
    int64_t to = w->r->how->row ? w->r->how->row(&s) : i;
    if (to < 0) return;
    memset(w->sums, 0, (size_t)p->n * sizeof *w->sums);
    if (group >= 0) add_terms(w, &s, w->x + i * p->k, 1, w->second, p->k);
    for (int64_t k = 0; others && k < p->k; k++) power_add_row(w->r, w->sums, 0, others + k * p->n, p->n);
    store_row(w, &s, to, group < 0 && w->r->how->bias_for_all ? p->grouped.groups - 1 : group);
}

static bool multiply_group(groups *w, int64_t g) {
    const run *r = w->r;
    int64_t next = (g + 1) % r->p.grouped.groups;
    double *others = r->how->absent_too ? power_load(r, 1, next, 0, r->p.k) : NULL;
    w->second = power_load(r, 1, g, 0, r->p.k);
    bool ok = w->second && (others || !r->how->absent_too);
    for (int64_t i = w->offsets[g]; ok && i < w->offsets[g + 1]; i++) multiply_row(w, i, g, others);
    free(w->second), free(others);
    w->second = NULL;
    return ok;
}

bool power_grouped(const run *r) {
    groups w;
    int64_t count = r->p.grouped.groups;
    bool ok = open_groups(&w, r) && (w.out = power_load(r, 2, 0, 0, r->p.m));
    for (int64_t g = 0; ok && g < count; g++) ok = w.offsets[g] == w.offsets[g + 1] || multiply_group(&w, g);
    for (int64_t i = ok ? w.offsets[count] : r->p.m; i < r->p.m && !r->how->unwritten; i++)
        multiply_row(&w, i, -1, NULL);
    close_groups(&w);
    return ok;
}

/* ---- the gradient of W ---- */

static void sum_row(const groups *w, int64_t g, int64_t i) {
    const sat_problem *p = &w->r->p;
    int64_t first = w->offsets[g], end = w->offsets[g + 1];
    spot s = row_spot(w, g, i);
    int64_t to = w->r->how->row ? w->r->how->row(&s) : i;
    if (to < 0) return;
    memset(w->sums, 0, (size_t)p->n * sizeof *w->sums);
    add_terms(w, &s, w->x + first * p->k + i, p->k, w->second + first * p->n, end - first);
    for (int64_t row = 0; w->r->how->absent_too && row < p->m; row++)
        if (row < first || row >= end) power_add_row(w->r, w->sums, 0, w->second + row * p->n, p->n);
    store_row(w, &s, to, -1);
}

bool power_grouped_weights(const run *r) {
    groups w;
    bool ok = open_groups(&w, r) && (w.second = power_load(r, 1, 0, 0, r->p.m));
    for (int64_t g = 0; ok && g < r->p.grouped.groups; g++) {
        if (r->how->unwritten && w.offsets[g] == w.offsets[g + 1]) continue;
        ok = (w.out = power_load(r, 2, g, 0, r->p.k));
        for (int64_t i = 0; ok && i < r->p.k; i++) sum_row(&w, g, i);
        free(w.out), w.out = NULL;
    }
    close_groups(&w);
    return ok;
}
