/* The validated copy of indices that change, made on the host. */
#include "backend/indices.h"

#include <string.h>

enum { WORTH_THREADS = 1 << 14 }; /* indices: fewer are copied before other threads are awake */

sat_status sat_index_fault_fail(const sat_index_fault *f, int64_t capacity, int64_t grid_cols, int64_t row_stride) {
    long long at = f->at, value = f->value, before = f->before;
    if (f->status == SAT_COLUMN_RANGE)
        return sat_fail(SAT_COLUMN_RANGE, "col_idx[%lld] is %lld; expected 0 to %lld", at, value,
                        (long long)grid_cols - 1);
    if (f->status == SAT_COLUMN_ORDER)
        return sat_fail(SAT_COLUMN_ORDER, "col_idx[%lld] is %lld after %lld in block row %lld; expected %s", at, value,
                        before, (long long)f->row, value == before ? "no repeats" : "increasing columns");
    if (row_stride)
        return sat_fail(SAT_BAD_ROW_PTR, "row_counts[%lld] is %lld; expected 0 to row_stride, %lld", at, value,
                        (long long)row_stride);
    if (at == 0) return sat_fail(SAT_BAD_ROW_PTR, "row_ptr[0] is %lld; expected 0", value);
    if (value < before)
        return sat_fail(SAT_BAD_ROW_PTR, "row_ptr[%lld] is %lld, below the %lld before it", at, value, before);
    return sat_fail(SAT_BAD_ROW_PTR, "row_ptr[%lld] is %lld, beyond the capacity of %lld", at, value,
                    (long long)capacity);
}

/* Every pointer is read once. Returns the first row that breaks the rules; grid_rows: none does. */
static int64_t copy_pointers(const sat_index_copy *x) {
    int64_t broken = x->grid_rows, begin = x->grid_rows ? sat_offset_at(x->from_ptr, x->type, 0) : 0;
    x->row_ptr[0] = 0;
    for (int64_t i = 0; i < x->grid_rows; i++) {
        int64_t end = broken < i ? 0 : sat_offset_at(x->from_ptr, x->type, i + 1);
        if (broken > i && sat_row_breaks(i, begin, end, x->capacity)) broken = i;
        x->row_ptr[i + 1] = broken <= i ? x->row_ptr[i] : end;
        begin = end;
    }
    return broken;
}

/* Every column is read once. False: the row is at fault, and empty now. */
static bool copy_row(const sat_index_copy *x, int64_t row) {
    int64_t begin = x->row_ptr[row], end = x->row_ptr[row + 1], before = -1;
    bool right = true;
    for (int64_t t = begin; t < end; t++) {
        int64_t col = sat_offset_at(x->from_col, x->type, t);
        right = right && col > before && col < x->grid_cols;
        x->col_idx[t] = (int32_t)col, before = col;
    }
    x->row_end[row] = right ? end : begin;
    if (!right) memset(x->col_idx + begin, 0, (size_t)(end - begin) * sizeof *x->col_idx);
    return right;
}

/* Counting sort by column; t_ptr is shifted by one so that it ends as the start of each column. */
static void transpose(const sat_index_copy *x) {
    int64_t *ptr = x->t_ptr, cols = x->grid_cols, count;
    memset(ptr, 0, ((size_t)cols + 2) * sizeof *ptr);
    for (int64_t r = 0; r < x->grid_rows; r++)
        for (int64_t t = x->row_ptr[r]; t < x->row_end[r]; t++) ptr[x->col_idx[t] + 2]++;
    for (int64_t c = 0; c < cols; c++) ptr[c + 2] += ptr[c + 1];
    count = ptr[cols + 1];
    for (int64_t r = 0; r < x->grid_rows; r++) {
        for (int64_t t = x->row_ptr[r]; t < x->row_end[r]; t++) {
            int64_t at = ptr[x->col_idx[t] + 1]++;
            x->t_row[at] = (int32_t)r, x->t_block[at] = t;
        }
    }
    memset(x->t_row + count, 0, (size_t)(x->capacity - count) * sizeof *x->t_row);
    memset(x->t_block + count, 0, (size_t)(x->capacity - count) * sizeof *x->t_block);
}

static int threads_of(const sat_index_copy *x, int64_t count) {
    return count + x->grid_rows < WORTH_THREADS ? 1 : x->threads;
}

/* The rows between pointers that are there. Returns the first faulty one. */
static int64_t copy_rows(const sat_index_copy *x, int64_t broken) {
    int64_t first = broken;
    int threads = threads_of(x, x->row_ptr[x->grid_rows]);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static) reduction(min : first)
    for (int64_t row = 0; row < x->grid_rows; row++)
        if (!copy_row(x, row) && row < first) first = row;
    return first;
}

/* `count`: the entries of col_idx that rows may have. */
static void end_copy(const sat_index_copy *x, int64_t count) {
    memset(x->col_idx + count, 0, (size_t)(x->capacity - count) * sizeof *x->col_idx);
    if (x->t_ptr) transpose(x);
}

void sat_indices_copy(const sat_index_copy *x) {
    int64_t broken = copy_pointers(x), first = copy_rows(x, broken);
    end_copy(x, x->row_ptr[x->grid_rows]);
    if (first == x->grid_rows) return;
    sat_index_describe(x, first, first == broken, x->fault);
    x->fault->runs++;
}

/* ---- masks ---- */

/* Count and columns are read once each. False: the row is at fault, and empty now. A right one has no more blocks than
 * there are block columns, whatever its stride. */
static bool copy_padded_row(const sat_index_copy *x, const sat_mask_form *form, int64_t row) {
    int64_t begin = row * form->row_room, count = sat_offset_at(x->from_ptr, x->type, row), before = -1;
    bool right = count >= 0 && count <= form->row_stride;
    for (int64_t i = 0; right && i < count; i++) {
        int64_t col = sat_offset_at(x->from_col, x->type, row * form->row_stride + i);
        right = col > before && col < x->grid_cols;
        if (right) x->col_idx[begin + i] = (int32_t)col;
        before = col;
    }
    x->row_ptr[row] = begin, x->row_end[row] = right ? begin + count : begin;
    return right;
}

static int64_t copy_padded_rows(const sat_index_copy *x, const sat_mask_form *form) {
    int64_t first = x->grid_rows;
    int threads = threads_of(x, x->capacity);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static) reduction(min : first)
    for (int64_t row = 0; row < x->grid_rows; row++)
        if (!copy_padded_row(x, form, row) && row < first) first = row;
    return first;
}

/* What is wrong with a padded row. */
static void describe_padded(const sat_index_copy *x, const sat_mask_form *form, int64_t row, sat_index_fault *to) {
    int64_t count = sat_offset_at(x->from_ptr, x->type, row);
    to->row = to->at = row, to->status = SAT_BAD_ROW_PTR, to->value = count, to->before = -1;
    if (count < 0 || count > form->row_stride) return;
    sat_index_describe_columns(x, row * form->row_stride, row * form->row_stride + count, to);
}

/* Moves every row's columns to the end of those before. Returns how many there are in all. */
static int64_t close_gaps(const sat_index_copy *x) {
    int64_t at = 0;
    for (int64_t row = 0; row < x->grid_rows; row++) {
        int64_t begin = x->row_ptr[row], count = x->row_end[row] - begin;
        if (at < begin) memmove(x->col_idx + at, x->col_idx + begin, (size_t)count * sizeof *x->col_idx);
        x->row_ptr[row] = at, x->row_end[row] = at += count;
    }
    return x->row_ptr[x->grid_rows] = at;
}

void sat_masks_copy(const sat_index_copy *x, const sat_mask_form *form) {
    bool padded = form->row_stride > 0;
    int64_t broken = padded ? x->grid_rows : copy_pointers(x);
    int64_t first = padded ? copy_padded_rows(x, form) : copy_rows(x, broken);
    end_copy(x, close_gaps(x));
    if (first == x->grid_rows) return;
    if (padded) describe_padded(x, form, first, x->fault);
    else sat_index_describe(x, first, first == broken, x->fault);
    x->fault->runs++;
}

void sat_indices_clear(const sat_index_copy *x, const sat_block_values *values) {
    int64_t count = x->row_ptr[x->grid_rows];
    size_t size = values->block_bytes;
    for (int64_t z = 0; z < values->items; z++) {
        char *base = (char *)values->base + (size_t)z * values->item_bytes;
        for (int64_t r = 0; r < x->grid_rows; r++) {
            int64_t lost = x->row_ptr[r + 1] - x->row_end[r];
            if (lost) memset(base + (size_t)x->row_end[r] * size, 0, (size_t)lost * size);
        }
        memset(base + (size_t)count * size, 0, (size_t)(x->capacity - count) * size);
    }
}
