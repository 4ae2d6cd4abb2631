// Random problems for `check`. Mostly small: what breaks kernels are edges, and thousands of cases should take a
// minute.

#include "check_case.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "../hash.h"
#include "../number.h"
#include "../rng.h"
#include "check_attention.h"
#include "check_grouped.h"
#include "check_mask.h"

typedef struct draw {
    rng r;
    double wild;         // 1: anything; near 0: the plainest problem
    double lean;         // how often a size is one that the variant's tile is made for
    bool transposed;     // a matmul of A^T
    bool even;           // strides and pointers that suit wide loads, whatever else is wild
    double area, budget; // limits of rows * columns, and of products to sum
    int64_t tiles;       // of the variant's own, either way, at most
    int64_t sides;       // the longest side, where that was asked for; else 0
    const sat_variant *v;
} draw;

static bool large_tiles(const sat_variant *v) { // of a GPU's matrix products
    return v->backend == SAT_CUDA && v->op == SAT_MATMUL && v->instance.tile_m >= 64;
}

static bool wide_tiles(const sat_variant *v) { // of its sampled ones, which hold several blocks or a part of one
    return v->backend == SAT_CUDA && v->op == SAT_SAMPLED && v->instance.tile_m >= 64;
}

static bool wildly(draw *d, double p) { return rng_chance(&d->r, p * d->wild); }

static bool leans(draw *d) { return rng_chance(&d->r, d->lean); }

static int64_t pick(draw *d, const int64_t *list, int count) { return list[rng_below(&d->r, count)]; }

/* ---- shapes ---- */

static int64_t block_side(draw *d) {
    static const int64_t powers[] = {1, 2, 4, 4, 8, 8, 16, 16, 16, 32, 32, 64, 128};
    static const int64_t odd[] = {3, 5, 6, 7, 9, 10, 12, 13, 17, 20, 24, 31, 33, 40, 48, 65, 96, 100};
    return wildly(d, 0.3) ? pick(d, odd, 18) : pick(d, powers, 13);
}

// Of op(A). Most variants want multiples of their tile, some want squares.
static void block_shape(draw *d, int64_t *rows, int64_t *cols) {
    const sat_instance *own = &d->v->instance;
    *rows = block_side(d), *cols = wildly(d, 0.35) ? block_side(d) : *rows;
    if (!leans(d)) return;
    static const int64_t low[] = {16, 16, 16, 32, 32, 32, 48, 64};
    if (large_tiles(d->v) && rng_chance(&d->r, 0.5)) { // which take the rows of several blocks, too
        *rows = pick(d, low, 8), *cols = pick(d, low, 8);
        return;
    }
    static const int64_t many[] = {16, 32, 48, 64, 80, 112, 128, 160, 192, 256, 320, 512};
    if (wide_tiles(d->v) && rng_chance(&d->r, 0.5)) {
        *rows = pick(d, many, 8), *cols = pick(d, many, 12);
        return;
    }
    if (own->tile_m > 1 && own->tile_m <= 128) *rows = *cols = own->tile_m * (rng_chance(&d->r, 0.25) ? 2 : 1);
    if (own->tile_k > 1 && own->tile_k <= 128 && rng_chance(&d->r, 0.5))
        *cols = own->tile_k * (rng_chance(&d->r, 0.25) ? 2 : 1);
}

// From 1 to d->sides: now any of them alike, now as likely below 32 as above.
static int64_t any_side(draw *d) {
    if (rng_chance(&d->r, 0.3)) return rng_between(&d->r, 1, d->sides);
    return (int64_t)exp(rng_unit(&d->r) * log((double)d->sides + 1));
}

// Blocks along one side: many small ones, few large ones; now and then a long row of them.
static int64_t grid_side(draw *d, int64_t block) {
    if (d->sides > 0) {
        int64_t blocks = (any_side(d) + block - 1) / block, room = d->sides / block;
        return blocks <= room ? blocks : room < 1 ? 1 : room;
    }
    int64_t most = block >= 64 ? 4 : block >= 16 ? 7 : block >= 4 ? 14 : 40;
    if (rng_chance(&d->r, d->area > 1e6 ? 0.5 : 0.03)) most *= 12;
    return rng_between(&d->r, 1, most);
}

// The same along the rows of op(A): of several tiles, where those are wanted.
static int64_t grid_rows(draw *d, int64_t block) {
    int64_t blocks = d->tiles * d->v->instance.tile_m / block;
    return d->tiles > 1 && blocks > 1 ? rng_between(&d->r, 1, blocks) : grid_side(d, block);
}

// Columns of B, or the inner size of a sampled product.
static int64_t other_side(draw *d) {
    int64_t own = d->v->op == SAT_MATMUL ? d->v->instance.tile_n : 0;
    if (own > 0 && own <= 1024 && leans(d)) {
        int64_t n = rng_between(&d->r, own / 2 + 1, own * d->tiles);
        return large_tiles(d->v) && rng_chance(&d->r, 0.5) ? (n + 63) / 64 * 64 : n; // copies of whole lines
    }
    if (d->sides > 0) return any_side(d);
    double u = rng_unit(&d->r);
    if (u < 0.12) return 1;
    if (u < 0.30) return rng_between(&d->r, 2, 8);
    if (u < 0.45) return rng_between(&d->r, 9, 16);
    if (u < 0.60) return 16 * rng_between(&d->r, 1, 8);
    if (u < 0.85) return rng_between(&d->r, 17, 100);
    return rng_between(&d->r, 101, 700);
}

// Every row is the first one, moved on by a block at each step: as many blocks in every row, and in every column too
// where the grid is square.
static void repeat_first_row(blocks *b) {
    int64_t width = b->row_ptr[1];
    for (int64_t row = 1; row < b->grid_rows; row++) {
        int64_t shift = row % b->grid_cols, wrapped = 0, at = b->count;
        while (wrapped < width && b->col_idx[width - 1 - wrapped] + shift >= b->grid_cols) wrapped++;
        for (int64_t i = 0; i < width; i++) { // those that went over the edge come first
            int64_t from = i < wrapped ? width - wrapped + i : i - wrapped;
            b->col_idx[at + i] = b->col_idx[from] + shift - (i < wrapped ? b->grid_cols : 0);
        }
        b->row_ptr[row + 1] = b->count = at + width;
    }
}

// Each row its own share of blocks: even, with empty rows, one heavy row, or all the same.
static void choose_blocks(draw *d, blocks *b) {
    double density = rng_chance(&d->r, 0.1) ? 1 : rng_unit(&d->r) * 0.7, style = rng_unit(&d->r);
    if (rng_chance(&d->r, 0.04)) density = 0;
    if (leans(d) && rng_chance(&d->r, 0.3)) style = 1; // some cut heavy rows, and want one
    int64_t heavy = b->grid_rows ? rng_below(&d->r, b->grid_rows) : 0;
    b->count = 0;
    for (int64_t row = 0; row < b->grid_rows; row++) {
        double here = density;
        if (style < 0.3 && rng_chance(&d->r, 0.4)) here = 0;
        if (style > 0.8) here = row == heavy ? 1 : density * 0.2;
        for (int64_t col = 0; col < b->grid_cols; col++)
            if (rng_chance(&d->r, here)) b->col_idx[b->count++] = col;
        b->row_ptr[row + 1] = b->count;
        if (row == 0 && b->count > 0 && style > 0.3 && style < 0.45) {
            repeat_first_row(b);
            return;
        }
    }
}

static bool make_pattern(draw *d, blocks *b) {
    int64_t rows, cols;
    block_shape(d, &rows, &cols);
    *b = (blocks){.block_rows = d->transposed ? cols : rows, .block_cols = d->transposed ? rows : cols};
    b->rows = b->block_rows * (d->transposed ? grid_side(d, b->block_rows) : grid_rows(d, b->block_rows));
    b->cols = b->block_cols * (d->transposed ? grid_rows(d, b->block_cols) : grid_side(d, b->block_cols));
    while ((double)b->rows * (double)b->cols > d->area) { // a long row of large blocks would be a large problem
        if (b->rows >= b->cols && b->rows > b->block_rows) b->rows = (b->rows / b->block_rows + 1) / 2 * b->block_rows;
        else if (b->cols > b->block_cols) b->cols = (b->cols / b->block_cols + 1) / 2 * b->block_cols;
        else break;
    }
    if (wildly(d, 0.4)) b->rows -= rng_below(&d->r, b->block_rows);
    if (wildly(d, 0.4)) b->cols -= rng_below(&d->r, b->block_cols);
    if (wildly(d, 0.015)) b->rows = 0;
    if (wildly(d, 0.015)) b->cols = 0;
    b->grid_rows = grid_of(b->rows, b->block_rows), b->grid_cols = grid_of(b->cols, b->block_cols);
    b->row_ptr = calloc((size_t)b->grid_rows + 1, sizeof *b->row_ptr);
    b->col_idx = calloc((size_t)(b->grid_rows * b->grid_cols) + 1, sizeof *b->col_idx);
    if (!b->row_ptr || !b->col_idx) return false;
    choose_blocks(d, b);
    return true;
}

/* ---- layouts ---- */

static int64_t at_least_1(int64_t x) { return x < 1 ? 1 : x; }

static int64_t stride(const draw *d, int64_t least) {
    least = at_least_1(least);
    return d->even ? (least + 15) / 16 * 16 : least;
}

static sat_layout dense_layout(draw *d, int64_t rows, int64_t cols, int64_t batch, bool output) {
    int64_t gap = wildly(d, 0.4) ? rng_between(&d->r, 1, 9) : 0;
    sat_layout l = {.row_stride = stride(d, cols + gap), .col_stride = 1};
    if (rng_chance(&d->r, 0.3)) l = (sat_layout){.row_stride = 1, .col_stride = stride(d, rows + gap)};
    if (wildly(d, 0.1)) { // neither order
        l.col_stride = rng_between(&d->r, 2, 3);
        l.row_stride = at_least_1(cols * l.col_stride + gap);
    }
    if (!output && wildly(d, 0.02)) l = (sat_layout){.row_stride = 0, .col_stride = 1}; // one row for all
    if (!output && wildly(d, 0.02)) l = (sat_layout){.row_stride = 1, .col_stride = 0};
    if (batch <= 1) return l;
    l.batch_stride = stride(d, rows * l.row_stride + cols * l.col_stride + gap);
    if (!output && rng_chance(&d->r, 0.3)) l.batch_stride = 0;
    else if (wildly(d, 0.1))
        l = (sat_layout){.row_stride = at_least_1(cols * batch), .col_stride = batch, .batch_stride = 1};
    return l;
}

static sat_layout values_layout(draw *d, const check_case *c, int64_t batch, bool output) {
    const blocks *b = &c->blocks;
    sat_layout l = {0};
    if (batch > 1 && (output || rng_chance(&d->r, 0.6)))
        l.batch_stride =
            stride(d, case_room(c) * b->block_rows * b->block_cols + (wildly(d, 0.5) ? rng_between(&d->r, 1, 9) : 0));
    return l;
}

static uint32_t alignment(draw *d, sat_dtype t) {
    static const int64_t bytes[] = {16, 32, 64};
    return !d->even && wildly(d, 0.5) ? (uint32_t)number_size(t) : (uint32_t)pick(d, bytes, 3);
}

/* ---- problems ---- */

static void choose_dtypes(draw *d, sat_problem *p) {
    sat_dtype own = d->v->instance.dtype;
    p->a_dtype = own && !wildly(d, 0.1) ? own : (sat_dtype)rng_between(&d->r, SAT_F32, SAT_BF16);
    p->b_dtype = p->c_dtype = p->a_dtype;
    if ((p->a_dtype == SAT_F16 || p->a_dtype == SAT_BF16) && rng_chance(&d->r, 0.5)) p->c_dtype = SAT_F32;
    p->compute_dtype = p->a_dtype == SAT_F64 ? SAT_F64 : SAT_F32;
}

static void choose_scalars(draw *d, sat_problem *p) {
    static const double factors[] = {-1, 0.5, 2, 1, -0.375, 0};
    p->alpha = wildly(d, 0.4) ? factors[rng_below(&d->r, 6)] : 1;
    p->beta = wildly(d, 0.4) ? factors[rng_below(&d->r, 5)] : 0;
    if (wildly(d, 0.1)) p->alpha = 4 * rng_unit(&d->r) - 2;
    if (p->op == SAT_SAMPLED) return;
    if (wildly(d, 0.3)) p->matmul.bias = SAT_BIAS_ROW;
    if (wildly(d, 0.35)) p->matmul.activation = (sat_activation)rng_between(&d->r, SAT_ACT_RELU, SAT_ACT_SILU);
}

static void choose_flags(draw *d, sat_problem *p) {
    p->flags |= SAT_ALLOW_BROADCAST; // dense_layout means its zeros
    if (d->v->flags & SAT_V_NONDETERMINISTIC) p->flags |= SAT_ALLOW_NONDETERMINISTIC;
    if (d->v->flags & SAT_V_DENSE) p->flags |= SAT_ALLOW_DENSE;
    if (p->a_dtype == SAT_F32 && rng_chance(&d->r, 0.3)) p->flags |= SAT_ALLOW_TF32;
    bool own_values = p->batch > 1 && p->a.batch_stride != 0; // those cannot be converted once for all
    if (p->op == SAT_MATMUL && !own_values && rng_chance(&d->r, 0.25)) p->flags |= SAT_FIXED_VALUES;
}

static void choose_problem(draw *d, check_case *c) {
    const blocks *b = &c->blocks;
    sat_problem *p = &c->problem;
    *p = (sat_problem){SAT_SIZED(sat_problem), .op = d->v->op};
    choose_dtypes(d, p);
    p->batch = wildly(d, 0.15) ? rng_between(&d->r, 2, 3) : 1;
    int64_t other = wildly(d, 0.015) ? 0 : other_side(d);
    double work = (double)case_room(c) * (double)b->block_rows * (double)b->block_cols * (double)p->batch;
    if (work * (double)other > d->budget) other = at_least_1((int64_t)(d->budget / work));
    if (p->op == SAT_SAMPLED) {
        p->m = b->rows, p->n = b->cols, p->k = other;
        p->a = dense_layout(d, p->m, p->k, p->batch, false);
        p->b = dense_layout(d, p->k, p->n, p->batch, false);
        p->c = values_layout(d, c, p->batch, true);
    } else {
        p->matmul.transpose = d->transposed ? SAT_TRANSPOSE : SAT_NO_TRANSPOSE;
        p->m = p->matmul.transpose ? b->cols : b->rows, p->k = p->matmul.transpose ? b->rows : b->cols, p->n = other;
        p->a = values_layout(d, c, p->batch, false);
        p->b = dense_layout(d, p->k, p->n, p->batch, false);
        p->c = dense_layout(d, p->m, p->n, p->batch, true);
    }
    p->a_align = alignment(d, p->a_dtype), p->b_align = alignment(d, p->b_dtype), p->c_align = alignment(d, p->c_dtype);
    choose_scalars(d, p);
    choose_flags(d, p);
}

// A few larger ones cross the edges of what kernels keep in a cache.
static void choose_limits(draw *d, int attempt) {
    double size = rng_unit(&d->r), sides = (double)d->sides;
    d->area = size < 0.96 ? 2e5 : 2e6, d->budget = size < 0.80 ? 4e5 : size < 0.98 ? 4e6 : 2e7;
    if (attempt > 0 && d->budget < 4e6) d->budget = 4e6; // else a tile's own width would be cut
    if (d->tiles > 1) d->area = 5e5, d->budget = 2e7;
    if (sides > 0) d->area = sides * sides, d->budget = fmax(4e6, sides * sides * sides / 16);
}

bool case_make(const sat_variant *v, uint64_t seed, int64_t number, int attempt, int64_t sides, check_case *c) {
    uint64_t state = rng_mix(seed ^ 0x5851f42d4c957f2du) ^ rng_mix(hash_text(v->name) + (uint64_t)number);
    double wild = attempt < 8 ? 1 : attempt < 24 ? 0.5 : attempt < 56 ? 0.15 : 0.02;
    double lean = attempt < 2 ? 0.3 : attempt < 8 ? 0.6 : 0.85;
    draw d = {
        .r = {state + (uint64_t)attempt * 0x632be59bd9b4e019u}, .wild = wild, .lean = lean, .sides = sides, .v = v};
    *c = (check_case){.seed = rng_next(&d.r), .poisoned = -1};
    d.tiles =
        large_tiles(v) && rng_chance(&d.r, 0.3) ? 4 : 1; // several to a CTA, when few multiprocessors are planned for
    choose_limits(&d, attempt);
    d.even = rng_chance(&d.r, 0.5);
    c->index_type = rng_chance(&d.r, 0.5) ? SAT_I32 : SAT_I64;
    c->place = (place)rng_below(&d.r, 3);
    c->duplicate = rng_chance(&d.r, 0.2);
    if (v->op == SAT_ATTENTION || v->op == SAT_ATTENTION_BACKWARD) return attention_case(v, &d.r, wild, sides, c);
    if (v->op >= SAT_GROUPED) return grouped_case(v, &d.r, wild, sides, c), true;
    d.transposed = v->op == SAT_MATMUL && wildly(&d, 0.35);
    if (!make_pattern(&d, &c->blocks)) return false;
    if ((v->flags & SAT_V_DYNAMIC) && rng_chance(&d.r, 0.3) && !mask_open(c, &d.r)) return false;
    choose_problem(&d, c);
    const blocks *b = &c->blocks;
    int64_t bands = c->problem.op == SAT_SAMPLED || c->problem.matmul.transpose ? b->grid_rows : b->grid_cols;
    if (!(v->flags & SAT_V_DENSE) && c->problem.alpha != 0 && bands > 0 && rng_chance(&d.r, 0.25))
        c->poisoned = rng_below(&d.r, bands);
    return true;
}

void case_free(check_case *c) {
    blocks_free(&c->blocks);
    mask_close(c);
}

static int layout_text(char *out, size_t capacity, const char *name, const sat_layout *l) {
    return snprintf(out, capacity, " %s=%" PRId64 ",%" PRId64 ",%" PRId64, name, l->row_stride, l->col_stride,
                    l->batch_stride);
}

void case_text(const check_case *c, char *out, size_t capacity) {
    static const char *const places[] = {"middle", "end", "start"}, *const acts[] = {"none", "relu", "gelu", "silu"};
    const sat_problem *p = &c->problem;
    const blocks *b = &c->blocks;
    if (is_attention(p)) return attention_text(c, out, capacity);
    if (is_grouped(p)) return grouped_text(c, out, capacity);
    int at = snprintf(out, capacity,
                      "%s %s %" PRId64 "x%" PRId64 "x%" PRId64 " block %" PRId64 "x%" PRId64 ", %" PRId64
                      " blocks, batch %" PRId64 "%s, alpha %g beta %g bias %d %s%s%s, align %u,%u,%u, i%d, %s",
                      p->op == SAT_SAMPLED ? "sampled" : "matmul", dtype_pair_name(p->a_dtype, p->c_dtype), p->m, p->n,
                      p->k, b->block_rows, b->block_cols, b->count, p->batch, p->matmul.transpose ? ", transposed" : "",
                      p->alpha, p->beta, p->matmul.bias, acts[p->matmul.activation],
                      p->flags & SAT_FIXED_VALUES ? ", fixed" : "", p->flags & SAT_ALLOW_TF32 ? ", TF32" : "",
                      p->a_align, p->b_align, p->c_align, c->index_type == SAT_I32 ? 32 : 64, places[c->place]);
    const sat_layout *layouts[] = {&p->a, &p->b, &p->c};
    static const char *const names[] = {"a", "b", "c"};
    for (int i = 0; i < 3 && at > 0 && (size_t)at < capacity; i++)
        at += layout_text(out + at, capacity - (size_t)at, names[i], layouts[i]);
    if (c->mask.used && (size_t)at < capacity)
        at += snprintf(out + at, capacity - (size_t)at, ", changing within %" PRId64 " blocks%s", c->mask.capacity,
                       c->mask.fault ? ", faulty" : "");
    if (c->poisoned >= 0 && (size_t)at < capacity)
        snprintf(out + at, capacity - (size_t)at, ", NaN in band %" PRId64, c->poisoned);
}
