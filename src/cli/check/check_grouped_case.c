// Random problems of groups for `check`: few and many groups, sizes around the tiles, strides of every order.

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "check_grouped.h"

typedef struct draw {
    rng *r;
    double wild;
    bool even;     // strides and pointers that suit wide loads
    int64_t sides; // sizes up to that; 0: mostly small ones
} draw;

static bool wildly(draw *d, double p) { return rng_chance(d->r, p * d->wild); }

static int64_t at_least_1(int64_t x) { return x < 1 ? 1 : x; }

static int64_t size(draw *d) {
    if (wildly(d, 0.015)) return 0;
    if (d->sides > 0 && rng_chance(d->r, 0.8)) return rng_between(d->r, 1, d->sides);
    double u = rng_unit(d->r);
    if (u < 0.15) return rng_between(d->r, 1, 8);
    if (u < 0.35) return 16 * rng_between(d->r, 1, 8);
    if (u < 0.80) return rng_between(d->r, 9, 100);
    return rng_between(d->r, 101, u < 0.95 ? 300 : 700);
}

static int64_t group_count(draw *d) {
    double u = rng_unit(d->r);
    if (wildly(d, 0.015)) return 0;
    if (u < 0.15) return 1;
    return u < 0.85 ? rng_between(d->r, 2, 9) : rng_between(d->r, 10, 70);
}

static int64_t stride(const draw *d, int64_t least) {
    least = at_least_1(least);
    return d->even ? (least + 15) / 16 * 16 : least;
}

static sat_layout layout(draw *d, int64_t rows, int64_t cols, int64_t items, bool output) {
    int64_t gap = wildly(d, 0.4) ? rng_between(d->r, 1, 9) : 0;
    sat_layout l = {.row_stride = stride(d, cols + gap), .col_stride = 1};
    if (rng_chance(d->r, 0.35)) l = (sat_layout){.row_stride = 1, .col_stride = stride(d, rows + gap)};
    if (wildly(d, 0.1)) { // neither order
        l.col_stride = rng_between(d->r, 2, 3);
        l.row_stride = at_least_1(cols * l.col_stride + gap);
    }
    if (!output && wildly(d, 0.02)) l = (sat_layout){.row_stride = 0, .col_stride = 1}; // one row for all
    if (!output && wildly(d, 0.02)) l = (sat_layout){.row_stride = 1, .col_stride = 0};
    if (items <= 1) return l;
    l.batch_stride = stride(d, rows * l.row_stride + cols * l.col_stride + gap);
    if (!output && wildly(d, 0.05)) l.batch_stride = 0;
    else if (wildly(d, 0.05))
        l = (sat_layout){.row_stride = at_least_1(cols * items), .col_stride = items, .batch_stride = 1};
    return l;
}

static uint32_t alignment(draw *d, sat_dtype t) {
    static const uint32_t bytes[] = {16, 32, 64};
    return !d->even && wildly(d, 0.5) ? (uint32_t)number_size(t) : bytes[rng_below(d->r, 3)];
}

static void choose_dtypes(draw *d, const sat_variant *v, sat_problem *p) {
    sat_dtype own = v->instance.dtype;
    p->a_dtype = own && !wildly(d, 0.1) ? own : (sat_dtype)rng_between(d->r, SAT_F32, SAT_BF16);
    p->b_dtype = p->c_dtype = p->a_dtype;
    if ((p->a_dtype == SAT_F16 || p->a_dtype == SAT_BF16) && rng_chance(d->r, 0.5)) p->c_dtype = SAT_F32;
    p->compute_dtype = p->a_dtype == SAT_F64 ? SAT_F64 : SAT_F32;
    p->a_align = alignment(d, p->a_dtype), p->b_align = alignment(d, p->b_dtype), p->c_align = alignment(d, p->c_dtype);
}

static void choose_sizes(draw *d, sat_problem *p) {
    double u = rng_unit(d->r), budget = u < 0.7 ? 4e5 : u < 0.96 ? 2e6 : 1e7, sides = (double)d->sides;
    if (sides > 0) budget = fmax(budget, sides * sides * sides / 16);
    p->m = size(d), p->n = size(d), p->k = size(d), p->grouped.groups = group_count(d);
    while ((double)p->m * (double)p->n * (double)p->k > budget) {
        int64_t *most = p->m >= p->n && p->m >= p->k ? &p->m : p->n >= p->k ? &p->n : &p->k;
        *most = (*most + 1) / 2;
    }
    while ((double)p->grouped.groups * (double)p->n * (double)p->k > fmax(1e6, budget / 4))
        p->grouped.groups = (p->grouped.groups + 1) / 2;
}

static void choose_scalars(draw *d, sat_problem *p) {
    static const double factors[] = {-1, 0.5, 2, 1, -0.375, 0}, skews[] = {1, 2, 4, 16};
    p->alpha = wildly(d, 0.4) ? factors[rng_below(d->r, 6)] : 1;
    p->beta = wildly(d, 0.4) ? factors[rng_below(d->r, 5)] : 0;
    if (wildly(d, 0.1)) p->alpha = 4 * rng_unit(d->r) - 2;
    p->grouped.skew = skews[rng_below(d->r, 4)];
    p->grouped.offset_type = rng_chance(d->r, 0.5) ? SAT_I32 : SAT_I64;
    if (p->op != SAT_GROUPED) return;
    p->grouped.bias = wildly(d, 0.4);
    if (wildly(d, 0.35)) p->grouped.activation = (sat_activation)rng_between(d->r, SAT_ACT_RELU, SAT_ACT_SILU);
}

void grouped_case(const sat_variant *v, rng *r, double wild, int64_t sides, check_case *c) {
    draw d = {.r = r, .wild = wild, .even = rng_chance(r, 0.5), .sides = sides};
    sat_problem *p = &c->problem;
    bool weights = v->op == SAT_GROUPED_WEIGHTS;
    // Tiles of a GPU are large: several of them either way
    if (sides == 0 && v->backend == SAT_CUDA && rng_chance(r, 0.3)) d.sides = 400;
    *p = (sat_problem){SAT_SIZED(sat_problem), .op = v->op, .batch = 1};
    choose_dtypes(&d, v, p);
    choose_sizes(&d, p);
    choose_scalars(&d, p);
    int64_t groups = p->grouped.groups;
    p->a = layout(&d, p->m, p->k, 1, false);
    p->b = layout(&d, weights ? p->m : p->k, p->n, weights ? 1 : groups, false);
    p->c = layout(&d, weights ? p->k : p->m, p->n, weights ? groups : 1, true);
    p->flags = SAT_ALLOW_BROADCAST; // layout means its zeros
    if (v->flags & SAT_V_NONDETERMINISTIC) p->flags |= SAT_ALLOW_NONDETERMINISTIC;
    if (v->flags & SAT_V_DENSE) p->flags |= SAT_ALLOW_DENSE;
    if (p->a_dtype == SAT_F32 && rng_chance(r, 0.3)) p->flags |= SAT_ALLOW_TF32;
    c->faults = rng_chance(r, 0.25);
    if (p->alpha != 0 && groups > 0 && rng_chance(r, 0.25)) c->poisoned = rng_below(r, groups);
}

void grouped_text(const check_case *c, char *out, size_t capacity) {
    static const char *const acts[] = {"none", "relu", "gelu", "silu"};
    const sat_problem *p = &c->problem;
    const sat_grouped *g = &p->grouped;
    const sat_layout *layouts[] = {&p->a, &p->b, &p->c};
    int at =
        snprintf(out, capacity,
                 "%s %s %" PRId64 "x%" PRId64 "x%" PRId64 ", %" PRId64 " groups, skew %g, alpha %g beta %g bias %d "
                 "%s%s, align %u,%u,%u, i%d, place %d%s",
                 p->op == SAT_GROUPED ? "grouped" : "grouped-weights", dtype_pair_name(p->a_dtype, p->c_dtype), p->m,
                 p->n, p->k, g->groups, g->skew, p->alpha, p->beta, g->bias, acts[g->activation],
                 p->flags & SAT_ALLOW_TF32 ? ", TF32" : "", p->a_align, p->b_align, p->c_align,
                 g->offset_type == SAT_I32 ? 32 : 64, (int)c->place, c->faults ? ", faults in offsets" : "");
    for (int i = 0; i < 3 && at > 0 && (size_t)at < capacity; i++)
        at += snprintf(out + at, capacity - (size_t)at, " %c=%" PRId64 ",%" PRId64 ",%" PRId64, "abc"[i],
                       layouts[i] -> row_stride, layouts[i] -> col_stride, layouts[i] -> batch_stride);
    if (c->poisoned >= 0 && at > 0 && (size_t)at < capacity)
        snprintf(out + at, capacity - (size_t)at, ", NaN in group %" PRId64, c->poisoned);
}
