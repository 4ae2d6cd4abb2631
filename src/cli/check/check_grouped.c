// Products of groups from their definition, in double precision, sharing no code with the library. The bound is that of
// the other products (check_reference.c).

#include "check_grouped.h"

#include <math.h>
#include <stdlib.h>

#include "check_reference.h"

enum { X = 0, SECOND = 1, OUT = 2, OFFSETS = 3, BIAS = 4 }; // SECOND: W, or Z of the gradient

static bool of_weights(const sat_problem *p) { return p->op == SAT_GROUPED_WEIGHTS; }

/* ---- operands ---- */

int grouped_operands(const sat_problem *p, operand *list) {
    const sat_grouped *g = &p->grouped;
    bool weights = of_weights(p);
    operand rows = {.rows = p->m, .cols = p->n, .batch = 1},
            matrices = {.rows = p->k, .cols = p->n, .batch = g->groups};
    list[X] = (operand){
        .name = "X", .dtype = p->a_dtype, .rows = p->m, .cols = p->k, .batch = 1, .layout = p->a, .align = p->a_align};
    list[SECOND] = weights ? rows : matrices, list[OUT] = weights ? matrices : rows;
    list[SECOND].name = weights ? "Z" : "W", list[OUT].name = weights ? "W" : "Y";
    list[SECOND].dtype = p->b_dtype, list[SECOND].layout = p->b, list[SECOND].align = p->b_align;
    list[OUT].dtype = p->c_dtype, list[OUT].layout = p->c, list[OUT].align = p->c_align;
    list[OUT].output = true;
    int bytes = g->offset_type == SAT_I32 ? 4 : 8;
    list[OFFSETS] = (operand){.name = "offsets",
                              .index = bytes,
                              .rows = g->groups + 1,
                              .cols = 1,
                              .batch = 1,
                              .layout = {.row_stride = 1, .col_stride = 1},
                              .align = (uint32_t)bytes};
    list[BIAS] = (operand){.name = "bias",
                           .dtype = p->c_dtype,
                           .rows = g->groups,
                           .cols = p->n,
                           .batch = 1,
                           .layout = {.row_stride = p->n, .col_stride = 1},
                           .align = (uint32_t)number_size(p->c_dtype)};
    return g->bias ? 5 : 4;
}

bool grouped_open(check_data *d, const check_case *c) {
    d->groups = calloc((size_t)c->problem.grouped.groups + 1, sizeof *d->groups);
    return d->groups != NULL;
}

/* ---- offsets ---- */

// Groups of all kinds: as many rows each, many empty, one with all rows, sizes at random; rows of no group at the end.
static void draw_sizes(rng *r, int64_t m, int64_t groups, int64_t *to) {
    int64_t style = rng_below(r, 5), end = rng_chance(r, 0.5) ? m : m - rng_below(r, m / 3 + 1);
    int64_t whole = groups > 0 ? 1 + rng_below(r, groups) : 0;
    if (rng_chance(r, 0.03)) end = 0;
    for (int64_t g = 1; g <= groups; g++) {
        int64_t left = end - to[g - 1], share = left / (groups - g + 1), size = share;
        if (style == 1) size = g == whole ? left : 0;
        if (style == 2) size = rng_chance(r, 0.5) ? 0 : rng_below(r, 3 * share + 2);
        if (style >= 3) size = rng_below(r, 2 * share + 2);
        to[g] = to[g - 1] + (size < left ? size : left);
    }
}

static void store_offset(const operand *o, int64_t i, int64_t x) {
    if (o->index == 4) ((int32_t *)(void *)o->data)[i] = (int32_t)x;
    else ((int64_t *)(void *)o->data)[i] = x;
}

// Breaks one offset's rule: the group that it ends is empty then, and so are all after it.
static void plant_fault(const sat_problem *p, rng *r, const operand *o, int64_t *groups) {
    int64_t i = rng_chance(r, 0.2) ? 0 : rng_below(r, p->grouped.groups + 1), bad = p->m + 1;
    int64_t least = o->index == 4 ? INT32_MIN : INT64_MIN + groups[i]; // of 64 bits, the lower half is right
    bool first = i == 0;
    switch (rng_below(r, 4)) {
    case 0: bad = -1; break;
    case 1: bad = least; break;
    case 2: bad = first || groups[i - 1] == 0 ? p->m + 7 : groups[i - 1] - 1; break;
    default: break;
    }
    store_offset(o, i, bad);
    for (int64_t g = first ? 1 : i; g <= p->grouped.groups; g++) groups[g] = first ? 0 : groups[i - 1];
}

// A row of X, or of Z: where one row stands for all of them it stays.
static void poison_row(const operand *o, int64_t row) {
    if (o->rows > 1 && o->layout.row_stride == 0) return;
    for (int64_t j = 0; j < o->cols; j++) number_store(o->dtype, o->data, operand_at(o, 0, row, j), NAN);
}

static bool is_written(const operand *o) { return o->rows > 0 && o->cols > 0 && o->batch > 0; }

void grouped_inputs(check_data *d, const check_case *c, rng *r) {
    const sat_problem *p = &c->problem;
    int64_t groups = p->grouped.groups;
    draw_sizes(r, p->m, groups, d->groups);
    for (int64_t g = 0; g <= groups; g++) store_offset(&d->list[OFFSETS], g, d->groups[g]);
    if (c->faults && groups > 0 && rng_chance(r, 0.5)) {
        plant_fault(p, r, &d->list[OFFSETS], d->groups);
        if (is_written(&d->list[OUT])) d->expected = SAT_BAD_ROW_PTR;
    }
    for (int64_t row = d->groups[groups]; row < p->m; row++) {
        poison_row(&d->list[X], row);
        if (of_weights(p)) poison_row(&d->list[SECOND], row);
    }
    if (c->poisoned < 0) return;
    const operand *w = &d->list[SECOND];
    if (of_weights(p))
        for (int64_t row = d->groups[c->poisoned]; row < d->groups[c->poisoned + 1]; row++) poison_row(w, row);
    else if (w->layout.batch_stride != 0)
        for (int64_t i = 0; i < w->rows; i++)
            for (int64_t j = 0; j < w->cols; j++)
                number_store(w->dtype, w->data, operand_at(w, c->poisoned, i, j), NAN);
}

/* ---- what is right ---- */

static double at(const operand *o, int64_t z, int64_t i, int64_t j) {
    return number_load(o->dtype, o->data, operand_at(o, z, i, j));
}

static void add(reference_sum *s, double x, double y) { s->sum += x * y, s->magnitude += fabs(x * y), s->depth++; }

static void expect(const check_data *d, const sat_problem *p, int64_t z, int64_t i, int64_t j, reference_sum *s) {
    const operand *out = &d->list[OUT];
    int64_t to = (z * out->rows + i) * out->cols + j;
    s->before = p->beta != 0 ? at(out, z, i, j) : 0;
    reference_finish(p, s, &out->expected[to], &out->bound[to]);
}

// Rows of group g; -1: those of none, whose product is 0 and which have no bias.
static void expect_rows(const check_data *d, const sat_problem *p, int64_t g, int64_t first, int64_t end,
                        const double *w) {
    for (int64_t i = first; i < end; i++)
        for (int64_t j = 0; j < p->n; j++) {
            reference_sum s = {0};
            for (int64_t k = 0; k < p->k && g >= 0; k++) add(&s, at(&d->list[X], 0, i, k), w[k * p->n + j]);
            if (p->grouped.bias && g >= 0) s.bias = at(&d->list[BIAS], 0, g, j);
            expect(d, p, 0, i, j, &s);
        }
}

static bool expect_output(const check_data *d, const sat_problem *p) {
    double *w = malloc((size_t)(p->k * p->n + 1) * sizeof *w);
    for (int64_t g = 0; w && g < p->grouped.groups; g++) {
        if (d->groups[g] == d->groups[g + 1]) continue;
        for (int64_t e = 0; e < p->k * p->n; e++) w[e] = at(&d->list[SECOND], g, e / p->n, e % p->n);
        expect_rows(d, p, g, d->groups[g], d->groups[g + 1], w);
    }
    if (w) expect_rows(d, p, -1, d->groups[p->grouped.groups], p->m, w);
    free(w);
    return w != NULL;
}

static void expect_weights(const check_data *d, const sat_problem *p, int64_t g) {
    for (int64_t i = 0; i < p->k; i++)
        for (int64_t j = 0; j < p->n; j++) {
            reference_sum s = {0};
            for (int64_t row = d->groups[g]; row < d->groups[g + 1]; row++)
                add(&s, at(&d->list[X], 0, row, i), at(&d->list[SECOND], 0, row, j));
            expect(d, p, g, i, j, &s);
        }
}

bool grouped_reference(check_data *d, const check_case *c) {
    const sat_problem *p = &c->problem;
    if (!of_weights(p)) return expect_output(d, p);
    for (int64_t g = 0; g < p->grouped.groups; g++) expect_weights(d, p, g);
    return true;
}
