// Random problems of attention for `check`: lengths around the tiles, grouped heads, masks of every kind, packed
// sequences, strides of every layout.

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "../number.h"
#include "check_attention.h"
#include "check_mask.h"

typedef struct draw {
    rng *r;
    double wild;
    bool even;     // strides and pointers that suit wide loads
    int64_t sides; // lengths up to that, all alike; 0: around the tiles
} draw;

static bool wildly(draw *d, double p) { return rng_chance(d->r, p * d->wild); }

static int64_t length(draw *d) {
    double u = rng_unit(d->r);
    if (wildly(d, 0.02)) return 0;
    if (d->sides > 0 && rng_chance(d->r, 0.8)) return rng_between(d->r, 1, d->sides);
    if (u < 0.12) return rng_between(d->r, 1, 4);
    if (u < 0.35) return rng_between(d->r, 5, 63);
    if (u < 0.50) return 64 * rng_between(d->r, 1, 3);
    if (u < 0.90) return rng_between(d->r, 65, 200);
    return rng_between(d->r, 201, 500);
}

static int64_t head_size(draw *d, const sat_variant *v) {
    static const int64_t usual[] = {64, 64, 128, 32, 96, 16, 256};
    if (rng_chance(d->r, 0.6)) return usual[rng_below(d->r, 7)];
    if ((v->flags & SAT_V_REFERENCE) && rng_chance(d->r, 0.1)) return 8 * rng_between(d->r, 33, 64);
    return 8 * rng_between(d->r, 1, rng_chance(d->r, 0.3) ? 32 : 12);
}

static void choose_options(draw *d, const sat_variant *v, sat_attention *t) {
    if (wildly(d, 0.2)) t->dim = rng_between(d->r, 1, rng_chance(d->r, 0.05) ? 576 : 100); // no multiple of 8
    if (wildly(d, 0.2)) t->value_dim = rng_chance(d->r, 0.3) ? rng_between(d->r, 1, 100) : head_size(d, v);
    static const double caps[] = {0.5, 1, 5, 30, 50};
    if (wildly(d, 0.2)) t->softcap = caps[rng_below(d->r, 5)];
    t->sinks = wildly(d, 0.25);
}

/* ---- masks ---- */

static int64_t block_side(draw *d, int64_t whole) {
    static const int64_t sides[] = {64, 64, 128, 32, 16, 8, 1, 7, 33, 48, 100};
    if (rng_chance(d->r, 0.3)) return whole < 1 ? 1 : whole;
    return sides[rng_below(d->r, wildly(d, 1) ? 11 : 4)];
}

// `masks` of the problem's rows, one after the other.
static bool make_mask(draw *d, const sat_problem *p, int64_t masks, blocks *b) {
    bool full = rng_chance(d->r, 0.35);
    *b = (blocks){.block_rows = block_side(d, p->m), .block_cols = block_side(d, p->n), .cols = p->n};
    b->rows = masks > 1 ? masks * grid_of(p->m, b->block_rows) * b->block_rows : p->m;
    b->grid_rows = grid_of(b->rows, b->block_rows), b->grid_cols = grid_of(b->cols, b->block_cols);
    b->row_ptr = calloc((size_t)b->grid_rows + 1, sizeof *b->row_ptr);
    b->col_idx = calloc((size_t)(b->grid_rows * b->grid_cols) + 1, sizeof *b->col_idx);
    if (!b->row_ptr || !b->col_idx) return false;
    double density = full ? 1 : rng_chance(d->r, 0.05) ? 0 : rng_unit(d->r);
    for (int64_t row = 0; row < b->grid_rows; row++) {
        double here = !full && rng_chance(d->r, 0.15) ? 0 : density;
        for (int64_t col = 0; col < b->grid_cols; col++)
            if (rng_chance(d->r, here)) b->col_idx[b->count++] = col;
        b->row_ptr[row + 1] = b->count;
    }
    return true;
}

// One whose indices change: every item and head may have one of its own.
static bool make_changing_mask(draw *d, check_case *c) {
    const sat_problem *p = &c->problem;
    c->mask.batch = rng_chance(d->r, 0.5) ? p->batch : 1;
    c->mask.heads = rng_chance(d->r, 0.5) ? p->attention.heads : 1;
    return make_mask(d, p, c->mask.batch * c->mask.heads, &c->blocks) && mask_open(c, d->r);
}

static void cut(draw *d, int64_t total, int64_t parts, int64_t *offsets) { // random lengths, some of them 0
    for (int64_t i = 1; i < parts; i++) {
        int64_t x = rng_below(d->r, total + 1), at = i;
        for (; at > 1 && offsets[at - 1] > x; at--) offsets[at] = offsets[at - 1];
        offsets[at] = x;
    }
    offsets[parts] = total;
}

static bool make_sequences(draw *d, const sat_problem *p, blocks *b) {
    if (p->batch != 1 || !wildly(d, 0.3)) return true;
    b->sequences = rng_between(d->r, 1, 6);
    b->q_offsets = calloc((size_t)b->sequences + 1, sizeof *b->q_offsets);
    b->kv_offsets = calloc((size_t)b->sequences + 1, sizeof *b->kv_offsets);
    if (!b->q_offsets || !b->kv_offsets) return false;
    cut(d, p->m, b->sequences, b->q_offsets);
    cut(d, p->n, b->sequences, b->kv_offsets);
    return true;
}

/* ---- layouts ---- */

// Rows of all heads side by side, or heads one after the other; a gap anywhere; batch items last.
static sat_heads layout(draw *d, int64_t heads, int64_t rows, int64_t dim, bool output) {
    int64_t gap = wildly(d, 0.5) ? (d->even ? 8 : 1) * rng_between(d->r, 1, 9) : 0;
    sat_heads s = {.row_stride = dim + gap};
    s.head_stride = rows * s.row_stride + (wildly(d, 0.3) ? gap : 0);
    s.batch_stride = heads * s.head_stride;
    if (rng_chance(d->r, 0.4)) { // BSHD, packed or not
        s.head_stride = dim + gap;
        s.row_stride = heads * s.head_stride * (rng_chance(d->r, 0.3) ? 3 : 1) + (wildly(d, 0.3) ? gap : 0);
        s.batch_stride = rows * s.row_stride;
    }
    if (rows == 0) s = (sat_heads){.row_stride = dim};
    if (!output && wildly(d, 0.05)) s.batch_stride = 0; // shared
    if (!output && wildly(d, 0.05)) s.head_stride = 0;
    return s;
}

static void choose_layouts(draw *d, sat_problem *p) {
    sat_attention *t = &p->attention;
    bool back = p->op == SAT_ATTENTION_BACKWARD;
    int64_t dim = t->dim, value_dim = value_dim_of(p);
    t->q = layout(d, t->heads, p->m, dim, false), t->o = layout(d, t->heads, p->m, value_dim, true);
    t->k = layout(d, t->kv_heads, p->n, dim, false), t->v = layout(d, t->kv_heads, p->n, value_dim, false);
    if (!back) return;
    t->do_ = layout(d, t->heads, p->m, value_dim, false), t->dq = layout(d, t->heads, p->m, dim, true);
    t->dk = layout(d, t->kv_heads, p->n, dim, true), t->dv = layout(d, t->kv_heads, p->n, value_dim, true);
}

static void choose_problem(draw *d, const sat_variant *v, sat_problem *p) {
    sat_attention *t = &p->attention;
    *p = (sat_problem){SAT_SIZED(sat_problem), .op = v->op};
    p->a_dtype = v->instance.dtype ? v->instance.dtype : (sat_dtype)rng_between(d->r, SAT_F32, SAT_BF16);
    p->b_dtype = p->c_dtype = p->a_dtype;
    p->compute_dtype = p->a_dtype == SAT_F64 ? SAT_F64 : SAT_F32;
    t->kv_heads = wildly(d, 0.5) ? rng_between(d->r, 2, 3) : 1;
    t->heads = t->kv_heads * (wildly(d, 0.5) ? rng_between(d->r, 2, 4) : 1);
    t->dim = head_size(d, v);
    choose_options(d, v, t);
    p->k = t->dim;
    p->batch = wildly(d, 0.25) ? rng_between(d->r, 2, 3) : 1;
    p->m = length(d), p->n = rng_chance(d->r, 0.5) ? p->m : length(d);
    double sides = (double)d->sides, budget = rng_chance(d->r, 0.15) ? 6e6 : 1.5e6;
    if (sides > 0) budget = fmax(budget, sides * sides * 64); // what the host works out in a tenth of a second
    while ((double)(p->batch * t->heads * p->m * p->n) * (double)(t->dim + value_dim_of(p)) / 2 > budget) {
        if (p->batch * t->heads > 4 && t->heads > t->kv_heads) t->heads = t->kv_heads;
        else if (p->batch > 1) p->batch = 1;
        else if (t->kv_heads > 2) t->heads = t->heads / t->kv_heads, t->kv_heads = 1;
        else p->m = (p->m + 1) / 2, p->n = (p->n + 1) / 2;
    }
    if (rng_chance(d->r, 0.2)) p->n = (p->n + 127) / 128 * 128; // some take nothing else
    t->causal = rng_chance(d->r, 0.4);
    t->window = rng_chance(d->r, 0.25) ? rng_between(d->r, 1, 100) : 0;
    t->lse = p->op == SAT_ATTENTION && rng_chance(d->r, t->sinks ? 0.7 : 0.4);
    static const double scales[] = {1, -0.1, 30, -2, 200, 0.001};
    p->alpha = wildly(d, 0.3) ? scales[rng_below(d->r, 6)] : 1 / sqrt((double)t->dim);
    if (p->op == SAT_ATTENTION_BACKWARD && fabs(p->alpha) > 2) p->alpha /= 20; // else gradients are all 0
    uint32_t element = (uint32_t)number_size(p->a_dtype);
    p->a_align = d->even ? 16 : element, p->b_align = p->a_align, p->c_align = d->even ? 16 : element;
    p->flags |= SAT_ALLOW_BROADCAST; // layout means its zeros
    if (v->flags & SAT_V_NONDETERMINISTIC) p->flags |= SAT_ALLOW_NONDETERMINISTIC;
    if (v->flags & SAT_V_DENSE) p->flags |= SAT_ALLOW_DENSE;
    if (p->a_dtype == SAT_F32 && rng_chance(d->r, 0.2)) p->flags |= SAT_ALLOW_TF32;
}

bool attention_case(const sat_variant *v, rng *r, double wild, int64_t sides, check_case *c) {
    draw d = {.r = r, .wild = wild, .even = rng_chance(r, 0.5), .sides = sides};
    // Tiles of a GPU are large: several of them either way, and rings that go round
    if (sides == 0 && v->backend == SAT_CUDA && rng_chance(r, 0.3)) d.sides = 800;
    choose_problem(&d, v, &c->problem);
    choose_layouts(&d, &c->problem);
    if ((v->flags & SAT_V_DYNAMIC) && rng_chance(r, 0.4)) return make_changing_mask(&d, c);
    int64_t masks = wildly(&d, 0.25) ? c->problem.attention.heads : 1;
    return make_mask(&d, &c->problem, masks, &c->blocks) && make_sequences(&d, &c->problem, &c->blocks);
}

void attention_text(const check_case *c, char *out, size_t capacity) {
    static const char *const names[] = {"q", "k", "v", "o", "do", "dq", "dk", "dv"};
    const sat_problem *p = &c->problem;
    const sat_attention *t = &p->attention;
    const blocks *b = &c->blocks;
    const sat_heads *list[] = {&t->q, &t->k, &t->v, &t->o, &t->do_, &t->dq, &t->dk, &t->dv};
    int at = snprintf(
        out, capacity,
        "%s %s batch %" PRId64 ", %" PRId64 " heads over %" PRId64 ", %" PRId64 "x%" PRId64 " dim %" PRId64
        " and %" PRId64 ", block %" PRId64 "x%" PRId64 ", %" PRId64 " of %" PRId64 "x%" PRId64
        " blocks%s, window %" PRId64 "%s%s, %" PRId64 " sequences, scale %g, softcap %g, align %u,%u, place %d",
        p->op == SAT_ATTENTION ? "attention" : "attention-backward", dtype_name(p->a_dtype), p->batch, t->heads,
        t->kv_heads, p->m, p->n, t->dim, value_dim_of(p), b->block_rows, b->block_cols, b->count, b->grid_rows,
        b->grid_cols, t->causal ? ", causal" : "", t->window, t->lse ? ", LSE" : "", t->sinks ? ", sinks" : "",
        b->sequences, p->alpha, t->softcap, p->a_align, p->c_align, (int)c->place);
    if (c->mask.used && at > 0 && (size_t)at < capacity)
        at += snprintf(out + at, capacity - (size_t)at,
                       ", i%d, changing, masks of %" PRId64 " items and %" PRId64 " heads, row stride %" PRId64 "%s",
                       c->index_type == SAT_I32 ? 32 : 64, c->mask.batch, c->mask.heads, c->mask.row_stride,
                       c->mask.fault ? ", faulty" : "");
    for (int i = 0; i < (p->op == SAT_ATTENTION ? 4 : 8) && at > 0 && (size_t)at < capacity; i++)
        at += snprintf(out + at, capacity - (size_t)at, " %s=%" PRId64 ",%" PRId64 ",%" PRId64, names[i],
                       list[i]->batch_stride, list[i]->head_stride, list[i]->row_stride);
}
