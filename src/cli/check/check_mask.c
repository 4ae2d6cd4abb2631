// Cases whose indices change from run to run.

#include "check_mask.h"

#include <stdlib.h>
#include <string.h>

/* ---- drawing ---- */

// Rows of their own density, as far as the capacity goes; now and then it is used up, or nothing is stored.
static void draw_blocks(check_case *c, rng *r) {
    blocks *b = &c->blocks;
    double style = rng_unit(r), density = rng_unit(r);
    int64_t heavy = b->grid_rows ? rng_below(r, b->grid_rows) : 0;
    b->count = 0;
    for (int64_t row = 0; row < b->grid_rows; row++) {
        double here = style < 0.1 ? 0 : style < 0.3 ? 1 : style < 0.5 ? (row == heavy ? 1 : 0.1) : density;
        if (style > 0.8 && rng_chance(r, 0.4)) here = 0;
        int64_t most = c->mask.row_stride ? b->count + c->mask.row_stride : c->mask.capacity;
        for (int64_t col = 0; col < b->grid_cols && b->count < most; col++)
            if (rng_chance(r, here)) b->col_idx[b->count++] = col;
        b->row_ptr[row + 1] = b->row_end[row] = b->count;
    }
}

static int64_t bad_column(const check_case *c, rng *r, int64_t right) {
    switch (rng_below(r, 4)) {
    case 0: return -1;
    case 1: return c->blocks.grid_cols;
    case 2: return c->index_type == SAT_I32 ? INT32_MAX : right + ((int64_t)1 << 32); // the lower half is right
    default: return c->index_type == SAT_I32 ? INT32_MIN : INT64_MIN + right;
    }
}

// Where a run is given the columns of a row.
static int64_t *raw_row(const check_case *c, int64_t row) {
    return c->mask.raw_col + (c->mask.row_stride ? row * c->mask.row_stride : c->blocks.row_ptr[row]);
}

// One wrong column: the row is empty.
static sat_status spoil_row(check_case *c, rng *r, int64_t row) {
    blocks *b = &c->blocks;
    int64_t begin = b->row_ptr[row], count = b->row_end[row] - begin, at = rng_below(r, count);
    int64_t *col = raw_row(c, row);
    b->row_end[row] = begin;
    if (at == 0 || rng_chance(r, 0.5)) {
        col[at] = bad_column(c, r, col[at]);
        return SAT_COLUMN_RANGE;
    }
    col[at] = rng_chance(r, 0.5) ? col[at - 1] : rng_below(r, col[at - 1] + 1); // repeated or unsorted
    return SAT_COLUMN_ORDER;
}

// A wrong row pointer: that row is empty, and all after it.
static int64_t spoil_pointer(check_case *c, rng *r) {
    blocks *b = &c->blocks;
    int64_t row = rng_below(r, b->grid_rows), begin = b->row_ptr[row], *raw = c->mask.raw_ptr;
    bool wide = c->index_type == SAT_I64 && rng_chance(r, 0.5);
    double kind = rng_unit(r);
    if (kind < 0.2) row = begin = 0, raw[0] = rng_chance(r, 0.5) ? 1 : -1;
    else if (kind < 0.6) raw[row + 1] = wide ? begin + ((int64_t)1 << 32) : c->mask.capacity + 1;
    else raw[row + 1] = wide ? INT64_MIN + begin : begin - 1;
    for (int64_t i = row; i < b->grid_rows; i++) b->row_ptr[i + 1] = b->row_end[i] = begin;
    b->count = begin;
    return row;
}

// A count that cannot be: that row is empty.
static void spoil_count(check_case *c, rng *r, int64_t row) {
    int64_t *count = &c->mask.raw_ptr[row], right = *count;
    bool wide = c->index_type == SAT_I64 && rng_chance(r, 0.5);
    switch (rng_below(r, 3)) {
    case 0: *count = wide ? INT64_MIN + right : -1; break;
    case 1: *count = wide ? right + ((int64_t)1 << 32) : c->mask.row_stride + 1; break; // the lower half is right
    default: *count = c->index_type == SAT_I32 ? INT32_MAX : INT64_MAX; break;
    }
    c->blocks.row_end[row] = c->blocks.row_ptr[row];
}

static void write_raw(check_case *c) {
    const blocks *b = &c->blocks;
    memset(c->mask.raw_col, 0xff, (size_t)c->mask.raw_count * sizeof *b->col_idx); // -1: nobody's
    c->mask.raw_ptr[0] = 0;
    for (int64_t row = 0; row < b->grid_rows; row++) {
        int64_t count = b->row_end[row] - b->row_ptr[row];
        memcpy(raw_row(c, row), b->col_idx + b->row_ptr[row], (size_t)count * sizeof *b->col_idx);
        if (c->mask.row_stride) c->mask.raw_ptr[row] = count;
        else c->mask.raw_ptr[row + 1] = b->row_ptr[row + 1];
    }
}

void mask_draw(check_case *c, rng *r) {
    blocks *b = &c->blocks;
    bool padded = c->mask.row_stride > 0;
    draw_blocks(c, r);
    write_raw(c);
    c->mask.fault = SAT_OK;
    if (b->grid_rows == 0 || rng_chance(r, 0.5)) return;
    int64_t broken = !padded && rng_chance(r, 0.4) ? spoil_pointer(c, r) : b->grid_rows;
    if (broken < b->grid_rows) c->mask.fault = SAT_BAD_ROW_PTR;
    for (int64_t row = broken - 1; row >= 0; row--) { // the fault of the first row is the one that is returned
        if (padded && rng_chance(r, 0.1)) {
            spoil_count(c, r, row);
            c->mask.fault = SAT_BAD_ROW_PTR;
        }
        if (b->row_ptr[row] == b->row_end[row] || !rng_chance(r, 0.3)) continue;
        c->mask.fault = spoil_row(c, r, row);
    }
}

/* ---- memory ---- */

// Of attention's masks some are padded.
static void choose_room(check_case *c, rng *r) {
    const blocks *b = &c->blocks;
    int64_t room = b->grid_rows * b->grid_cols - b->count;
    c->mask.capacity = b->count + (rng_chance(r, 0.4) ? 0 : rng_between(r, 0, room));
    c->mask.raw_count = c->mask.capacity;
    if (c->mask.heads == 0 || rng_chance(r, 0.4)) return;
    c->mask.row_stride = rng_chance(r, 0.5) ? b->grid_cols + 1 : rng_between(r, 1, b->grid_cols + 3);
    c->mask.capacity = c->mask.raw_count = b->grid_rows * c->mask.row_stride;
}

bool mask_open(check_case *c, rng *r) {
    blocks *b = &c->blocks;
    c->mask.used = true;
    choose_room(c, r);
    c->mask.density = rng_chance(r, 0.5) ? 0 : rng_unit(r);
    b->row_end = calloc((size_t)b->grid_rows + 1, sizeof *b->row_end);
    c->mask.raw_ptr = calloc((size_t)b->grid_rows + 1, sizeof *c->mask.raw_ptr);
    c->mask.raw_col = calloc((size_t)c->mask.raw_count + 1, sizeof *c->mask.raw_col);
    if (!b->row_end || !c->mask.raw_ptr || !c->mask.raw_col) return false;
    mask_draw(c, r);
    return true;
}

void mask_close(check_case *c) {
    free(c->mask.raw_ptr);
    free(c->mask.raw_col);
    c->mask = (check_mask){0};
}

static size_t width_of(const check_case *c) { return c->index_type == SAT_I32 ? 4 : 8; }

sat_status mask_place(check_case *c, sat_context *context) {
    sat_status status = sat_memory_alloc(context, ((size_t)c->blocks.grid_rows + 1) * width_of(c), &c->mask.row_ptr);
    if (status != SAT_OK) return status;
    return sat_memory_alloc(context, ((size_t)c->mask.raw_count + 1) * width_of(c), &c->mask.col_idx);
}

void mask_unplace(check_case *c, sat_context *context) {
    sat_memory_free(context, c->mask.row_ptr);
    sat_memory_free(context, c->mask.col_idx);
}

static sat_status write_indices(const check_case *c, sat_context *context, void *to, const int64_t *from,
                                int64_t count) {
    if (c->index_type == SAT_I64) return sat_memory_write(context, to, from, (size_t)count * 8);
    int32_t *narrow = malloc(((size_t)count + 1) * sizeof *narrow);
    if (!narrow) return SAT_OUT_OF_MEMORY;
    for (int64_t i = 0; i < count; i++) narrow[i] = (int32_t)from[i];
    sat_status status = sat_memory_write(context, to, narrow, (size_t)count * 4);
    free(narrow);
    return status;
}

sat_status mask_write(const check_case *c, sat_context *context) {
    sat_status status = write_indices(c, context, c->mask.row_ptr, c->mask.raw_ptr, c->blocks.grid_rows + 1);
    return status == SAT_OK ? write_indices(c, context, c->mask.col_idx, c->mask.raw_col, c->mask.raw_count) : status;
}

// Before there is memory of the device, any will do: only a run reads it.
sat_status mask_pattern(sat_context *context, const check_case *c, sat_pattern **pattern) {
    const blocks *b = &c->blocks;
    const void *row_ptr = c->mask.row_ptr ? c->mask.row_ptr : b->row_ptr;
    sat_dynamic_bsr s = {SAT_SIZED(sat_dynamic_bsr), .rows = b->rows, .cols = b->cols, .block_rows = b->block_rows};
    s.block_cols = b->block_cols, s.index_type = c->index_type, s.density = c->mask.density;
    s.col_idx = c->mask.col_idx ? c->mask.col_idx : b->col_idx;
    if (c->mask.heads) s.rows = c->problem.m, s.mask_batch = c->mask.batch, s.mask_heads = c->mask.heads;
    if (c->mask.row_stride) s.row_counts = row_ptr, s.row_stride = c->mask.row_stride;
    else s.row_ptr = row_ptr, s.capacity = c->mask.capacity;
    return sat_pattern_create_dynamic(context, &s, pattern);
}
