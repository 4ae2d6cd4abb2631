/* Made-up masks. */
#include "core/masks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *sat_mask_label(sat_mask_kind kind, bool padded) {
    static const char *const labels[SAT_MASKS] = {"on another mask",
                                                  "on an empty mask",
                                                  "on a mask that fills the capacity",
                                                  "on a mask with one heavy row",
                                                  "on a mask with faulty columns",
                                                  "on a mask whose row pointers decrease",
                                                  "on a mask whose row pointers go beyond the capacity",
                                                  "on a mask whose row pointers do not begin with 0"};
    static const char *const of_counts[] = {"on a mask with counts below 0",
                                            "on a mask with counts above the row stride", "on a mask with huge counts"};
    return padded && kind >= SAT_MASK_BELOW ? of_counts[kind - SAT_MASK_BELOW] : labels[kind];
}

static uint64_t mixed(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static double part(uint64_t x) { return (double)(mixed(x) >> 11) * 0x1p-53; } /* of [0, 1) */

/* ---- right masks ---- */

/* One row has `skew` times the mean, the others share the rest at random. */
static void count_expected(const sat_pattern_view *a, uint64_t seed, int64_t *count) {
    int64_t rows = a->grid_rows, heavy = (int64_t)(mixed(seed) % (uint64_t)rows), all = a->stored_blocks;
    double stored = fmin((double)all, round(a->density * (double)rows * (double)a->grid_cols)), sum = 0, given = 0;
    int64_t most = sat_min(a->max_row, (int64_t)ceil(a->skew * stored / (double)rows));
    double rest = fmax(0, stored - (double)most);
    for (int64_t r = 0; r < rows; r++)
        if (r != heavy) sum += 0.5 + part(seed + 1 + (uint64_t)r);
    for (int64_t r = 0, before = 0; r < rows; r++) {
        count[r] = sat_min(most, all);
        if (r == heavy) continue;
        given += 0.5 + part(seed + 1 + (uint64_t)r);
        int64_t now = (int64_t)(rest * fmin(1, given / sum));
        count[r] = sat_min(now - before, a->grid_cols), before = now;
    }
}

static void count_heavy(const sat_pattern_view *a, uint64_t seed, int64_t *count) {
    int64_t rows = a->grid_rows, heavy = (int64_t)(mixed(seed) % (uint64_t)rows), left = a->stored_blocks;
    count[heavy] = sat_min(a->grid_cols, left), left -= count[heavy];
    for (int64_t r = 0; r < rows; r++) {
        if (r == heavy) continue;
        int64_t some = (int64_t)(mixed(seed ^ (uint64_t)r) % 4); /* 0 to 3 */
        count[r] = sat_min(sat_min(some, a->grid_cols), left), left -= count[r];
    }
}

/* Columns of a row, each at random within its share of them all. */
static void lay_row(const sat_pattern_view *a, uint64_t seed, int64_t count, int64_t *col) {
    double wide = (double)a->grid_cols / (double)count;
    for (int64_t i = 0, before = -1; i < count; i++) {
        int64_t at = (int64_t)(((double)i + part(seed + (uint64_t)i)) * wide);
        at = sat_max(before + 1, sat_min(at, a->grid_cols - (count - i))); /* room for those that follow */
        col[i] = before = at;
    }
}

/* `most`: blocks of any row. */
static void lay_mask(const sat_pattern_view *a, sat_mask_kind kind, uint64_t seed, int64_t most, sat_mask_indices *m) {
    int64_t rows = a->grid_rows, *count = m->row_end;
    for (int64_t r = 0; r < rows; r++) count[r] = 0;
    if (rows > 0 && a->grid_cols > 0 && kind != SAT_MASK_EMPTY) {
        if (kind == SAT_MASK_HEAVY) count_heavy(a, seed, count);
        else if (kind != SAT_MASK_FULL) count_expected(a, seed, count);
        int64_t even = a->stored_blocks / rows, more = a->stored_blocks % rows;
        for (int64_t r = 0; r < rows && kind == SAT_MASK_FULL; r++) count[r] = even + (r < more);
    }
    m->row_ptr[0] = 0;
    for (int64_t r = 0; r < rows; r++) {
        count[r] = sat_min(count[r], most);
        lay_row(a, mixed(seed + 77 * (uint64_t)r), count[r], m->col_idx + m->row_ptr[r]);
        m->row_ptr[r + 1] = m->row_ptr[r] + count[r];
        m->row_end[r] = m->row_ptr[r + 1];
    }
}

/* ---- faults ---- */

/* A column that is out of range; of 64 bits, one whose lower half is right. */
static int64_t bad_column(const sat_pattern_view *a, sat_index_type type, uint64_t x, int64_t right) {
    switch (x % 4) {
    case 0: return -1;
    case 1: return a->grid_cols;
    case 2: return type == SAT_I32 ? INT32_MAX : right + ((int64_t)1 << 32);
    default: return type == SAT_I32 ? INT32_MIN : INT64_MIN + right;
    }
}

/* Where the caller has the columns of a row. */
static int64_t *raw_row(const sat_mask_indices *m, int64_t row_stride, int64_t row) {
    return m->raw_col + (row_stride ? row * row_stride : m->row_ptr[row]);
}

/* About every third row that has blocks. */
static void spoil_columns(const sat_pattern_view *a, sat_index_type type, int64_t row_stride, uint64_t seed,
                          sat_mask_indices *m) {
    bool some = false;
    for (int64_t r = 0; r < a->grid_rows; r++) {
        int64_t begin = m->row_ptr[r], count = m->row_end[r] - begin;
        uint64_t x = mixed(seed + 131 * (uint64_t)r);
        if (count == 0 || (some && x % 3 != 0)) continue;
        int64_t *col = raw_row(m, row_stride, r), at = (int64_t)(mixed(x) % (uint64_t)count);
        if (count < 2 || x % 7 < 4) col[at] = bad_column(a, type, mixed(x + 1), col[at]);
        else if (x % 7 < 6) col[count - 1] = col[count - 2];
        else col[0] = m->col_idx[begin + 1], col[1] = m->col_idx[begin];
        m->row_end[r] = begin, some = true;
    }
}

static void spoil_pointers(const sat_pattern_view *a, sat_index_type type, sat_mask_kind kind, uint64_t seed,
                           sat_mask_indices *m) {
    int64_t rows = a->grid_rows, row = (int64_t)(mixed(seed + 5) % (uint64_t)rows), begin = m->row_ptr[row];
    bool wide = type == SAT_I64 && (seed & 1);
    if (kind == SAT_MASK_FIRST) row = begin = 0, m->raw_ptr[0] = 1;
    else if (kind == SAT_MASK_BEYOND) m->raw_ptr[row + 1] = wide ? begin + ((int64_t)1 << 32) : a->stored_blocks + 1;
    else m->raw_ptr[row + 1] = wide ? INT64_MIN + begin : begin - 1;
    for (int64_t r = row; r < rows; r++) m->row_ptr[r + 1] = m->row_end[r] = begin;
}

/* About every third row has a count that cannot be. */
static void spoil_counts(const sat_pattern_view *a, sat_index_type type, int64_t row_stride, sat_mask_kind kind,
                         uint64_t seed, sat_mask_indices *m) {
    bool wide = type == SAT_I64 && (seed & 1);
    int64_t first = (int64_t)(mixed(seed + 5) % (uint64_t)a->grid_rows);
    for (int64_t r = 0; r < a->grid_rows; r++) {
        int64_t right = m->raw_ptr[r];
        if (r != first && mixed(seed + 131 * (uint64_t)r) % 3) continue;
        if (kind == SAT_MASK_BELOW) m->raw_ptr[r] = wide ? INT64_MIN + right : -1;
        else if (kind == SAT_MASK_BEYOND) m->raw_ptr[r] = wide ? right + ((int64_t)1 << 32) : row_stride + 1;
        else m->raw_ptr[r] = type == SAT_I32 ? INT32_MAX : INT64_MAX;
        m->row_end[r] = m->row_ptr[r];
    }
}

/* ---- both ---- */

/* As a caller would write the mask that was laid; what is nobody's is no column. */
static void write_raw(const sat_pattern_view *a, int64_t row_stride, sat_mask_indices *m) {
    for (int64_t t = 0; t < m->raw_count; t++) m->raw_col[t] = -1;
    for (int64_t r = 0; r < a->grid_rows; r++) {
        int64_t count = m->row_end[r] - m->row_ptr[r];
        memcpy(raw_row(m, row_stride, r), m->col_idx + m->row_ptr[r], (size_t)count * sizeof *m->col_idx);
        if (row_stride) m->raw_ptr[r] = count;
        else m->raw_ptr[r + 1] = m->row_ptr[r + 1];
    }
}

sat_status sat_mask_make(const sat_pattern_view *a, sat_index_type type, int64_t row_stride, sat_mask_kind kind,
                         uint64_t seed, sat_mask_indices *mask) {
    size_t rows = (size_t)a->grid_rows + 1, blocks = (size_t)a->stored_blocks + 1;
    int64_t raw = row_stride ? a->grid_rows * row_stride : a->stored_blocks;
    int64_t *memory = calloc(3 * rows + blocks + (size_t)raw + 1, sizeof *memory);
    *mask = (sat_mask_indices){0};
    if (!memory) return sat_fail(SAT_OUT_OF_MEMORY, "tuning: a mask of %lld blocks", (long long)a->stored_blocks);
    *mask = (sat_mask_indices){.raw_ptr = memory, .row_ptr = memory + rows, .row_end = memory + 2 * rows};
    mask->col_idx = memory + 3 * rows, mask->raw_col = mask->col_idx + blocks, mask->raw_count = raw;
    lay_mask(a, kind, seed, row_stride ? row_stride : a->grid_cols, mask);
    write_raw(a, row_stride, mask);
    if (kind == SAT_MASK_COLUMNS) spoil_columns(a, type, row_stride, seed, mask);
    if (kind <= SAT_MASK_COLUMNS || a->grid_rows == 0) return SAT_OK;
    if (row_stride) spoil_counts(a, type, row_stride, kind, seed, mask);
    else spoil_pointers(a, type, kind, seed, mask);
    return SAT_OK;
}

void sat_mask_free(sat_mask_indices *mask) {
    free(mask->raw_ptr);
    *mask = (sat_mask_indices){0};
}
