/* Row groups: several block rows of op(A) that are multiplied together, along the union of their block columns.
 *
 * Where rows of a group have a block in the same column, they need the same rows of B, which are then loaded once for
 * all of them. The host searches for rows that share many columns; they need not be neighbours. A group's K loop is a
 * list of *union entries*: a block column (or a few neighbouring ones), and which rows of the group have a block there.
 *
 * row_groups.c has the search; row_groups.cu brings the groups to the device, where each is a work item of the tile
 * scheduler. */
#ifndef SAT_ROW_GROUPS_H
#define SAT_ROW_GROUPS_H

#include "kernels/cuda/common/scheduler.h"

/* ==== host: union entries ==== */

/* An entry covers columns_per_entry neighbouring block columns, from col*columns_per_entry on. */
typedef struct sat_union_entry {
    int32_t col;
    /* Which blocks there are. Bit column*size + row: row `row` of the group has one in column col*columns_per_entry +
     * column. */
    uint32_t block_mask;
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
/* Bytes for the entries of any groups of rows with so many blocks. */
size_t sat_union_bytes(int64_t blocks);
/* About how many entries of one column the groups have where columns are random. The search finds a little more sharing
 * than chance. */
double sat_union_expected(int64_t rows, int64_t cols, int64_t blocks, int size);
#ifdef __cplusplus
}
#endif

#ifdef __CUDACC__
/* ==== the groups on the device ==== */

/* The workspace: the entries, the groups' rows, the schedule with one work item a group, and the tile counter. */
size_t sat_row_groups_bytes(const sat_rows *r, int size);
/* `prepare` of the kernels: groups of `size` of the problem's rows along their union entries. A work item's `first` and
 * `count` are its entries, its `row` is the group. */
sat_status sat_prepare_row_groups(const sat_prepare *q, int size, int columns_per_entry, sat_device_schedule *work,
                                  const sat_union_entry **entries, const int32_t **rows, unsigned **counter);

#endif
#endif
