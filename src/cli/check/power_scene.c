// The scenario of a fault: the problem of its race, small, ragged, and with what the fault needs to show.

#include <stdlib.h>

#include "../number.h"
#include "check_find.h"
#include "power.h"

enum { BLOCK = 8, ROWS = 29, TALL_ROWS = 4096, COLUMNS = 13, WIDE_COLUMNS = 70, RAGGED = 3, GAP = 5, WRONG_ROW = 4001 };
enum { QUERIES = 11, DIM = 8, VALUES = 13, GROUPS = 5, DEEP = 11 }; // DEEP: rows of one gradient

// Some blocks of the first row are always there, the first of the second never: no pattern is full, and none is empty.
static bool make_blocks_of(blocks *b, double density, unsigned scene) {
    rng r = {99};
    b->block_rows = b->block_cols = BLOCK;
    b->grid_rows = grid_of(b->rows, BLOCK), b->grid_cols = grid_of(b->cols, BLOCK);
    b->row_ptr = calloc((size_t)b->grid_rows + 1, sizeof *b->row_ptr);
    b->col_idx = calloc((size_t)(b->grid_rows * b->grid_cols) + 1, sizeof *b->col_idx);
    if (!b->row_ptr || !b->col_idx) return false;
    for (int64_t i = 0; i < b->grid_rows; i++) {
        for (int64_t j = 0; j < b->grid_cols; j++) {
            bool edge = i == 0 && (j == 0 || j == b->grid_cols - 1), drawn = rng_chance(&r, density);
            edge = edge || i == WRONG_ROW / BLOCK;
            if (scene & SCENE_SPARSE) drawn = drawn || j == b->grid_cols - 1;
            bool never = (i == 1 && j == 0) || (scene & SCENE_EMPTY && i % 2 == 1);
            if (edge || (drawn && !never)) b->col_idx[b->count++] = j;
        }
        b->row_ptr[i + 1] = b->count;
    }
    return true;
}

// Items of a batch with a gap between them; the pointers are no better aligned than an element.
static void spread_batch(sat_problem *p, const blocks *b) {
    int64_t values = b->count * BLOCK * BLOCK + GAP;
    p->batch = 2;
    if (p->op == SAT_SAMPLED) {
        p->a = (sat_layout){p->k, 1, b->rows * p->k + GAP}, p->b = (sat_layout){b->cols, 1, p->k * b->cols + GAP};
        p->c = (sat_layout){0, 0, values};
    } else {
        p->a = (sat_layout){0, 0, values};
        p->b = (sat_layout){p->n, 1, b->cols * p->n + GAP}, p->c = (sat_layout){p->n, 1, b->rows * p->n + GAP};
    }
}

static void product_blocks(const fault *f, sat_operation op, int64_t depth, blocks *b, double *density) {
    int64_t rows = f->scene & SCENE_TALL ? TALL_ROWS : ROWS, deep = depth - RAGGED;
    *density = f->scene & SCENE_SPARSE ? 0.2 : f->scene & SCENE_EMPTY ? 0.4 : 0.9;
    if (op == SAT_SAMPLED) {
        b->rows = rows, b->cols = f->scene & SCENE_WIDE ? WIDE_COLUMNS : 29;
        *density = f->scene & SCENE_TALL ? fmax(0.02, fmin(0.6, 64.0 / (double)depth)) : 0.6;
    } else {
        b->rows = f->scene & SCENE_TRANSPOSE ? deep : rows, b->cols = f->scene & SCENE_TRANSPOSE ? rows : deep;
        if (f->scene & SCENE_TALL) *density = fmin(0.9, 0x1p18 / ((double)rows * (double)depth));
    }
}

static bool product_scene(const fault *f, sat_operation op, sat_dtype t, int64_t depth, blocks *b, sat_problem *p) {
    double density;
    product_blocks(f, op, depth, b, &density);
    if (!make_blocks_of(b, density, f->scene)) return false;
    int64_t columns = f->scene & SCENE_WIDE ? WIDE_COLUMNS : f->scene & SCENE_TALL ? 5 : COLUMNS;
    *p = (sat_problem){SAT_SIZED(sat_problem)};
    sat_status made = op == SAT_SAMPLED ? sat_problem_sampled(p, t, depth - RAGGED) : sat_problem_matmul(p, t, columns);
    if (made != SAT_OK) return false;
    if (f->scene & SCENE_SCALARS) p->alpha = -1.5, p->beta = 0.75;
    if (f->scene & SCENE_BIAS) p->matmul.bias = SAT_BIAS_ROW;
    if (f->scene & SCENE_RELU) p->matmul.activation = SAT_ACT_RELU;
    if (f->scene & SCENE_GELU) p->matmul.activation = SAT_ACT_GELU;
    if (f->scene & SCENE_TRANSPOSE) p->matmul.transpose = SAT_TRANSPOSE;
    if (f->scene & SCENE_COLUMNS) p->b = (sat_layout){1, op == SAT_SAMPLED ? p->k : b->cols, 0};
    if (f->scene & SCENE_FIXED) p->flags |= SAT_FIXED_VALUES;
    if (f->scene & SCENE_BATCH) spread_batch(p, b);
    return true;
}

static bool attention_scene(const fault *f, sat_operation op, sat_dtype t, int64_t depth, blocks *b, sat_problem *p) {
    bool groups = f->scene & SCENE_GROUPS;
    int64_t keys = depth - RAGGED, heads = groups ? 4 : 2, each = grid_of(QUERIES, BLOCK) * BLOCK;
    *p = (sat_problem){SAT_SIZED(sat_problem)};
    if (sat_problem_attention(p, t, heads, groups ? 2 : 1, DIM) != SAT_OK) return false;
    p->op = op, p->m = QUERIES, p->n = keys;
    p->attention.causal = f->scene & SCENE_CAUSAL, p->attention.window = f->scene & SCENE_WINDOW ? 5 : 0;
    p->attention.lse = op == SAT_ATTENTION && f->scene & SCENE_LSE;
    if (f->scene & SCENE_VALUES) p->attention.value_dim = VALUES;
    if (f->scene & SCENE_CAP) p->attention.softcap = 2;
    p->attention.sinks = f->scene & SCENE_SINKS;
    if (f->scene & SCENE_BATCH) p->batch = 2;
    b->rows = f->scene & SCENE_MASKS ? heads * each : QUERIES, b->cols = keys;
    if (!make_blocks_of(b, 0.8, f->scene)) return false;
    if (!(f->scene & SCENE_PACKED)) return true;
    b->sequences = 2;
    b->q_offsets = calloc(3, sizeof *b->q_offsets), b->kv_offsets = calloc(3, sizeof *b->kv_offsets);
    if (!b->q_offsets || !b->kv_offsets) return false;
    b->q_offsets[1] = 4, b->q_offsets[2] = QUERIES, b->kv_offsets[1] = keys / 2, b->kv_offsets[2] = keys;
    return true;
}

// Of few rows the product is deep, of many its gradient.
static bool grouped_scene(const fault *f, sat_operation op, sat_dtype t, int64_t depth, blocks *b, sat_problem *p) {
    bool weights = op == SAT_GROUPED_WEIGHTS;
    int64_t columns = f->scene & SCENE_WIDE ? WIDE_COLUMNS : f->scene & SCENE_TALL ? 5 : COLUMNS;
    int64_t rows = f->scene & SCENE_TALL ? TALL_ROWS : ROWS, deep = depth - RAGGED;
    (void)b;
    *p = (sat_problem){SAT_SIZED(sat_problem)};
    if (sat_problem_grouped(p, t, weights ? deep : rows, columns, weights ? DEEP : deep, GROUPS) != SAT_OK)
        return false;
    p->op = op;
    if (f->scene & SCENE_SCALARS) p->alpha = -1.5, p->beta = 0.75;
    p->grouped.bias = f->scene & SCENE_BIAS;
    if (f->scene & SCENE_RELU) p->grouped.activation = SAT_ACT_RELU;
    if (f->scene & SCENE_GELU) p->grouped.activation = SAT_ACT_GELU;
    if (f->scene & SCENE_COLUMNS) p->b = (sat_layout){1, weights ? p->m : p->k, weights ? 0 : p->k * p->n};
    return true;
}

bool power_scene(sat_context *context, const fault *f, sat_operation op, sat_dtype t, int64_t depth,
                 sat_pattern **pattern, sat_problem *p) {
    check_case c = {.index_type = SAT_I64};
    bool made = (op <= SAT_SAMPLED              ? product_scene
                 : op <= SAT_ATTENTION_BACKWARD ? attention_scene
                                                : grouped_scene)(f, op, t, depth, &c.blocks, p);
    c.problem.op = op;
    made = made && case_pattern(context, &c, pattern) == SAT_OK;
    blocks_free(&c.blocks);
    return made;
}
