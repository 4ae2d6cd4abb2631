/* The validated copy of indices that change, made on the host. */
#include "backend/indices.h"

#include <string.h>

enum { WORTH_THREADS = 1 << 14 }; /* indices: fewer are copied before other threads are awake */

sat_status sat_index_fault_fail(const sat_index_fault *f, int64_t capacity, int64_t grid_cols) {
    long long at = f->at, value = f->value, before = f->before;
    if (f->status == SAT_COLUMN_RANGE)
        return sat_fail(SAT_COLUMN_RANGE, "col_idx[%lld] is %lld; expected 0 to %lld", at, value,
                        (long long)grid_cols - 1);
    if (f->status == SAT_COLUMN_ORDER)
        return sat_fail(SAT_COLUMN_ORDER, "col_idx[%lld] is %lld after %lld in block row %lld; expected %s", at, value,
                        before, (long long)f->row, value == before ? "no repeats" : "increasing columns");
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

void sat_indices_copy(const sat_index_copy *x) {
    int64_t broken = copy_pointers(x), first = broken, count = x->row_ptr[x->grid_rows];
    int threads = count + x->grid_rows < WORTH_THREADS ? 1 : x->threads;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static) reduction(min : first)
    for (int64_t row = 0; row < x->grid_rows; row++)
        if (!copy_row(x, row) && row < first) first = row;
    memset(x->col_idx + count, 0, (size_t)(x->capacity - count) * sizeof *x->col_idx);
    if (x->t_ptr) transpose(x);
    if (first == x->grid_rows) return;
    sat_index_describe(x, first, first == broken, x->fault);
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
