/* The search for rows that share columns, and the union entries of the groups; on the host. */
#include "kernels/cuda/matmul/row_groups.h"

#include <stdlib.h>

/* ---- union entries ---- */

void sat_union_free(sat_union *u) {
    free(u->ptr);
    free(u->entry);
    u->ptr = NULL, u->entry = NULL;
}

/* The entries of one group: merges the ascending columns of its `size` rows, of which -1 is none.
 * size*columns_per_entry is at most 32. Returns how many entries were written to `to`. */
static int64_t merge(const sat_rows *r, const int32_t *row, int size, int columns_per_entry, sat_union_entry *to) {
    int64_t at[32], end[32], count = 0;
    for (int i = 0; i < size; i++)
        at[i] = row[i] < 0 ? 0 : r->ptr[row[i]], end[i] = row[i] < 0 ? 0 : r->ptr[row[i] + 1];
    for (;; count++) {
        int32_t col = INT32_MAX;
        for (int i = 0; i < size; i++)
            if (at[i] < end[i] && r->col[at[i]] < col) col = r->col[at[i]];
        if (col == INT32_MAX) return count;
        sat_union_entry entry = {col / columns_per_entry, 0};
        for (int i = 0; i < size; i++)
            for (; at[i] < end[i] && r->col[at[i]] / columns_per_entry == entry.col; at[i]++)
                entry.block_mask |= 1u << (r->col[at[i]] % columns_per_entry * size + i);
        to[count] = entry;
    }
}

bool sat_union_make(const sat_rows *r, const int32_t *row, int size, int columns_per_entry, sat_union *u) {
    u->groups = (r->count + size - 1) / size, u->entries = 0;
    u->ptr = (int64_t *)malloc(((size_t)u->groups + 1) * sizeof *u->ptr);
    u->entry = (sat_union_entry *)malloc(((size_t)r->ptr[r->count] + 1) * sizeof *u->entry);
    if (!u->ptr || !u->entry) {
        sat_union_free(u);
        return false;
    }
    u->ptr[0] = 0;
    for (int64_t g = 0; g < u->groups; g++) {
        u->entries += merge(r, row + g * size, size, columns_per_entry, u->entry + u->entries);
        u->ptr[g + 1] = u->entries;
    }
    return true;
}

double sat_union_expected(int64_t rows, int64_t cols, int64_t blocks, int size) {
    double density = fmin(1, (double)blocks / ((double)rows * (double)cols + 1e-9));
    int64_t groups = (rows + size - 1) / size;
    double all = (double)groups * (double)cols * (1 - pow(1 - density, size));
    return fmax((double)blocks / size, fmax(all - 0.25 * ((double)blocks - all), all * 0.85));
}

size_t sat_union_bytes(int64_t blocks) { return ((size_t)blocks * sizeof(sat_union_entry) + 511) / 256 * 256; }

/* ---- the search for groups ---- */

/* A window of rows: which rows have a column, and how many columns each row shares with the group that is being
 * formed. Rows are counted from the window's first. */
typedef struct search_window {
    int64_t first, count;
    int64_t *ptr; /* column c is in the rows row[ptr[c]] to row[ptr[c + 1] - 1] */
    int32_t *row;
    int32_t *common; /* by row: columns that it shares with the group; -1: it is in a group */
    int32_t *seen;   /* by column: the last group that has it */
} search_window;

/* Fills `ptr` and `row`. */
static void index_columns(const sat_rows *r, int64_t cols, search_window *w) {
    int64_t from = r->ptr[w->first], to = r->ptr[w->first + w->count];
    memset(w->ptr, 0, (size_t)(cols + 2) * sizeof *w->ptr);
    for (int64_t i = from; i < to; i++) w->ptr[r->col[i] + 2]++;
    for (int64_t c = 0; c < cols; c++) w->ptr[c + 2] += w->ptr[c + 1];
    for (int64_t x = 0; x < w->count; x++)
        for (int64_t i = r->ptr[w->first + x]; i < r->ptr[w->first + x + 1]; i++)
            w->row[w->ptr[r->col[i] + 1]++] = (int32_t)x;
}

/* Adds row x to group number `group`: rows that have a column new to the group share one more column with it. */
static void add_row(const sat_rows *r, search_window *w, int64_t x, int32_t group) {
    w->common[x] = -1;
    for (int64_t i = r->ptr[w->first + x]; i < r->ptr[w->first + x + 1]; i++) {
        int32_t c = r->col[i];
        if (w->seen[c] == group) continue;
        w->seen[c] = group;
        for (int64_t y = w->ptr[c]; y < w->ptr[c + 1]; y++)
            if (w->common[w->row[y]] >= 0) w->common[w->row[y]]++;
    }
}

/* Forms the groups of a window. A group begins with the first row that is in none; then the row that shares most
 * columns with the group is added, until the group is full. Writes the rows of the groups, -1 for none, to `to`. */
static void form_groups(const sat_rows *r, search_window *w, int size, int32_t *group, int32_t *to) {
    int64_t first = 0;
    for (int64_t remaining = w->count; remaining > 0;) {
        (*group)++;
        while (w->common[first] < 0) first++;
        for (int64_t x = first; x < w->count; x++)
            if (w->common[x] > 0) w->common[x] = 0;
        for (int i = 0; i < size; i++) {
            int64_t best = i == 0 ? first : -1;
            for (int64_t x = first; i > 0 && x < w->count; x++)
                if (w->common[x] >= 0 && (best < 0 || w->common[x] > w->common[best])) best = x;
            *to++ = best < 0 ? -1 : (int32_t)(w->first + best);
            if (best >= 0) add_row(r, w, best, *group), remaining--;
        }
    }
}

bool sat_union_groups(const sat_rows *r, int64_t cols, int size, int32_t *row) {
    int64_t most = 0, window = SAT_SEARCH_WINDOW / size * size, end = (r->count + size - 1) / size * size;
    for (int64_t x = 0; x < r->count; x += window)
        most = sat_max(most, r->ptr[sat_min(x + window, r->count)] - r->ptr[x]);
    search_window w = {0};
    w.ptr = (int64_t *)malloc((size_t)(cols + 2) * sizeof *w.ptr);
    w.row = (int32_t *)malloc((size_t)(most + 1) * sizeof *w.row);
    w.common = (int32_t *)malloc((size_t)window * sizeof *w.common);
    w.seen = (int32_t *)calloc((size_t)cols + 1, sizeof *w.seen);
    bool enough = w.ptr && w.row && w.common && w.seen;
    int32_t group = 0;
    for (int64_t x = 0; enough && x < end; x += window) {
        w.first = x, w.count = sat_min(window, r->count - x);
        memset(w.common, 0, (size_t)w.count * sizeof *w.common);
        index_columns(r, cols, &w);
        form_groups(r, &w, size, &group, row + x);
    }
    free(w.ptr), free(w.row), free(w.common), free(w.seen);
    return enough;
}
