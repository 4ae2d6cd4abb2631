/* Row groups: several block rows of op(A) that are multiplied together, along the union of their block columns.
 *
 * Where rows of a group have a block in the same column, they need the same rows of B, which are then loaded once for
 * all of them. The host searches for rows that share many columns; they need not be neighbours. A group's K loop is a
 * list of *union entries*: a block column (or a few neighbouring ones), and which rows of the group have a block there.
 *
 * The first part is plain C; row_groups.c has the search. The second part brings the groups to the device, where each
 * is a work item of the tile scheduler. */
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

enum { SAT_SEARCH_WINDOW = 2048 }; /* rows among which a group is searched */

#ifdef __cplusplus
extern "C" {
#endif
/* Puts every row into a group of `size` rows that share columns. `row`: the rows of the groups, -1 for none; it has
 * room for whole groups. False: out of memory. */
bool sat_union_groups(const sat_rows *r, int64_t cols, int size, int32_t *row);
/* Makes the entries of all groups. `row`: as from sat_union_groups; size*columns_per_entry is at most 32. False: out of
 * memory. */
bool sat_union_make(const sat_rows *r, const int32_t *row, int size, int columns_per_entry, sat_union *u);
void sat_union_free(sat_union *u);
#ifdef __cplusplus
}
#endif

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
