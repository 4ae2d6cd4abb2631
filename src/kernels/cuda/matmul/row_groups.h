/* Row groups: several block rows of op(A) that are multiplied together, along the union of their block columns.
 *
 * Where rows of a group have a block in the same column, they need the same rows of B, which are then loaded once for
 * all of them. The host searches for rows that share many columns; they need not be neighbours. A group's K loop is a
 * list of *union entries*: a block column (or a few neighbouring ones), and which rows of the group have a block there.
 *
 * The first part is plain C; tests include it. The second part brings the groups to the device, where each is a work
 * item of the tile scheduler. */
#ifndef SAT_ROW_GROUPS_H
#define SAT_ROW_GROUPS_H

#include <stdlib.h>

#include "kernels/cuda/common/scheduler.h"

/* ==== host: union entries ==== */

/* An entry covers columns_per_entry neighbouring block columns, from col*columns_per_entry on. */
typedef struct sat_union_entry {
    int32_t col;
    uint32_t row_mask; /* bit column*size + row: row `row` of the group has a block in column col*columns_per_entry +
                          column */
} sat_union_entry;

/* The entries of all groups. */
typedef struct sat_union {
    int64_t groups, entries;
    int64_t *ptr; /* group g has the entries ptr[g] to ptr[g + 1] - 1 */
    sat_union_entry *entry;
} sat_union;

static inline void sat_union_free(sat_union *u) {
    free(u->ptr);
    free(u->entry);
    u->ptr = NULL, u->entry = NULL;
}

/* The entries of one group: merges the ascending columns of its `size` rows, of which -1 is none.
 * size*columns_per_entry is at most 32. Returns how many entries were written to `to`. */
static inline int64_t sat_union_merge(const sat_rows *r, const int32_t *row, int size, int columns_per_entry,
                                      sat_union_entry *to) {
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
                entry.row_mask |= 1u << (r->col[at[i]] % columns_per_entry * size + i);
        to[count] = entry;
    }
}

/* ==== host: the search for groups ==== */

enum { SAT_SEARCH_WINDOW = 2048 }; /* rows among which a group is searched */

/* A window of rows: which rows have a column, and how many columns each row shares with the group that is being
 * formed. Rows are counted from the window's first. */
typedef struct sat_search_window {
    int64_t first, count;
    int64_t *ptr; /* column c is in the rows row[ptr[c]] to row[ptr[c + 1] - 1] */
    int32_t *row;
    int32_t *common; /* by row: columns that it shares with the group; -1: it is in a group */
    int32_t *seen;   /* by column: the last group that has it */
} sat_search_window;

/* Fills `ptr` and `row`. */
static inline void sat_union_index(const sat_rows *r, int64_t cols, sat_search_window *b) {
    int64_t from = r->ptr[b->first], to = r->ptr[b->first + b->count];
    memset(b->ptr, 0, (size_t)(cols + 2) * sizeof *b->ptr);
    for (int64_t i = from; i < to; i++) b->ptr[r->col[i] + 2]++;
    for (int64_t c = 0; c < cols; c++) b->ptr[c + 2] += b->ptr[c + 1];
    for (int64_t x = 0; x < b->count; x++)
        for (int64_t i = r->ptr[b->first + x]; i < r->ptr[b->first + x + 1]; i++)
            b->row[b->ptr[r->col[i] + 1]++] = (int32_t)x;
}

/* Adds row x to group number `group`: rows that have a column new to the group share one more column with it. */
static inline void sat_union_add(const sat_rows *r, sat_search_window *b, int64_t x, int32_t group) {
    b->common[x] = -1;
    for (int64_t i = r->ptr[b->first + x]; i < r->ptr[b->first + x + 1]; i++) {
        int32_t c = r->col[i];
        if (b->seen[c] == group) continue;
        b->seen[c] = group;
        for (int64_t y = b->ptr[c]; y < b->ptr[c + 1]; y++)
            if (b->common[b->row[y]] >= 0) b->common[b->row[y]]++;
    }
}

/* Forms the groups of a window. A group begins with the first row that is in none; then the row that shares most
 * columns with the group is added, until the group is full. Writes the rows of the groups, -1 for none, to `to`. */
static inline void sat_union_search(const sat_rows *r, sat_search_window *b, int size, int32_t *group, int32_t *to) {
    int64_t first = 0;
    for (int64_t left = b->count; left > 0;) {
        (*group)++;
        while (b->common[first] < 0) first++;
        for (int64_t x = first; x < b->count; x++)
            if (b->common[x] > 0) b->common[x] = 0;
        for (int i = 0; i < size; i++) {
            int64_t best = i == 0 ? first : -1;
            for (int64_t x = first; i > 0 && x < b->count; x++)
                if (b->common[x] >= 0 && (best < 0 || b->common[x] > b->common[best])) best = x;
            *to++ = best < 0 ? -1 : (int32_t)(b->first + best);
            if (best >= 0) sat_union_add(r, b, best, *group), left--;
        }
    }
}

/* Puts every row into a group of `size` rows. `row`: the rows of the groups, -1 for none; it has room for whole groups.
 * False: out of memory. */
static inline bool sat_union_groups(const sat_rows *r, int64_t cols, int size, int32_t *row) {
    int64_t most = 0, window = SAT_SEARCH_WINDOW / size * size, end = (r->count + size - 1) / size * size;
    for (int64_t x = 0; x < r->count; x += window)
        most = sat_max(most, r->ptr[sat_min(x + window, r->count)] - r->ptr[x]);
    sat_search_window b = {0};
    b.ptr = (int64_t *)malloc((size_t)(cols + 2) * sizeof *b.ptr);
    b.row = (int32_t *)malloc((size_t)(most + 1) * sizeof *b.row);
    b.common = (int32_t *)malloc((size_t)window * sizeof *b.common);
    b.seen = (int32_t *)calloc((size_t)cols + 1, sizeof *b.seen);
    bool enough = b.ptr && b.row && b.common && b.seen;
    int32_t group = 0;
    for (int64_t x = 0; enough && x < end; x += window) {
        b.first = x, b.count = sat_min(window, r->count - x);
        memset(b.common, 0, (size_t)b.count * sizeof *b.common);
        sat_union_index(r, cols, &b);
        sat_union_search(r, &b, size, &group, row + x);
    }
    free(b.ptr), free(b.row), free(b.common), free(b.seen);
    return enough;
}

/* Makes the entries of all groups. `row`: as from sat_union_groups. False: out of memory. */
static inline bool sat_union_make(const sat_rows *r, const int32_t *row, int size, int columns_per_entry,
                                  sat_union *u) {
    u->groups = (r->count + size - 1) / size, u->entries = 0;
    u->ptr = (int64_t *)malloc(((size_t)u->groups + 1) * sizeof *u->ptr);
    u->entry = (sat_union_entry *)malloc(((size_t)r->ptr[r->count] + 1) * sizeof *u->entry);
    if (!u->ptr || !u->entry) {
        sat_union_free(u);
        return false;
    }
    u->ptr[0] = 0;
    for (int64_t g = 0; g < u->groups; g++) {
        u->entries += sat_union_merge(r, row + g * size, size, columns_per_entry, u->entry + u->entries);
        u->ptr[g + 1] = u->entries;
    }
    return true;
}

/* Bytes for the entries of any groups of rows with so many blocks. */
static inline size_t sat_union_bytes(int64_t blocks) {
    return ((size_t)blocks * sizeof(sat_union_entry) + 511) / 256 * 256;
}
/* About how many entries of one column the groups have where columns are random. The search finds a little more sharing
 * than chance. */
static inline double sat_union_expected(int64_t rows, int64_t cols, int64_t blocks, int size) {
    double density = fmin(1, (double)blocks / ((double)rows * (double)cols + 1e-9));
    int64_t groups = (rows + size - 1) / size;
    double all = (double)groups * (double)cols * (1 - pow(1 - density, size));
    return fmax((double)blocks / size, fmax(all - 0.25 * ((double)blocks - all), all * 0.85));
}

#ifdef __CUDACC__
/* ==== device ==== */

/* The workspace holds the entries, the groups' rows, the schedule with one work item a group, and the tile counter. */
static inline size_t sat_row_groups_rows_from(const sat_rows *r) { return sat_union_bytes(r->ptr[r->count]); }
static inline size_t sat_row_groups_items_from(const sat_rows *r, int size) {
    return sat_row_groups_rows_from(r) + (size_t)(r->count + size) * sizeof(int32_t) / 256 * 256 + 256;
}
static inline size_t sat_row_groups_bytes(const sat_rows *r, int size) {
    size_t items = (size_t)(r->count / size + 2) * sizeof(sat_work_item);
    return sat_row_groups_items_from(r, size) + items / 256 * 256 + 512 + SAT_COUNTER_BYTES;
}

static inline sat_status sat_upload_row_groups(const sat_prepare *q, const sat_rows *r, const int32_t *row, int size,
                                               const sat_union *u, sat_device_schedule *work) {
    char *to = (char *)q->workspace;
    cudaStream_t stream = (cudaStream_t)q->stream;
    cudaError_t e =
        cudaMemcpyAsync(to, u->entry, (size_t)u->entries * sizeof *u->entry, cudaMemcpyHostToDevice, stream);
    if (e == cudaSuccess)
        e = cudaMemcpyAsync(to + sat_row_groups_rows_from(r), row, (size_t)(u->groups * size) * sizeof *row,
                            cudaMemcpyHostToDevice, stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream);
    if (e != cudaSuccess) return sat_fail(SAT_DEVICE_ERROR, "%s: %s", q->variant->name, cudaGetErrorString(e));
    sat_rows groups = {.count = u->groups, .ptr = u->ptr};
    return sat_upload_schedule(q, &groups, INT32_MAX, to + sat_row_groups_items_from(r, size), work);
}

/* `prepare` of the kernels: groups of `size` rows along their union entries. A work item's `first` and `count` are its
 * entries, its `row` is the group. */
static inline sat_status sat_prepare_row_groups(const sat_prepare *q, const sat_rows *r, int size,
                                                int columns_per_entry, sat_device_schedule *work,
                                                const sat_union_entry **entries, const int32_t **rows,
                                                unsigned **counter) {
    sat_union u = {};
    int32_t *row = (int32_t *)malloc((size_t)(r->count + size) * sizeof *row);
    sat_status status =
        row && sat_union_groups(r, (r->k + r->bc - 1) / r->bc, size, row) &&
                sat_union_make(r, row, size, columns_per_entry, &u)
            ? sat_upload_row_groups(q, r, row, size, &u, work)
            : sat_fail(SAT_OUT_OF_MEMORY, "%s: groups of %lld rows", q->variant->name, (long long)r->count);
    *entries = (const sat_union_entry *)q->workspace;
    *rows = (const int32_t *)((char *)q->workspace + sat_row_groups_rows_from(r));
    sat_union_free(&u);
    free(row);
    return status == SAT_OK ? sat_tile_counter_init(q, sat_row_groups_bytes(r, size), counter) : status;
}

#endif
#endif
