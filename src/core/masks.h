/* Masks that races make up for patterns whose indices change: as the hints expect them, extreme, and faulty. */
#ifndef SAT_MASKS_H
#define SAT_MASKS_H

#include "ops/op.h"

typedef enum sat_mask_kind {
    SAT_MASK_EXPECTED = 0, /* as dense and as skewed as the hints say */
    SAT_MASK_EMPTY,
    SAT_MASK_FULL,    /* the capacity is used up, by all rows alike */
    SAT_MASK_HEAVY,   /* one row has all that it can, others little or nothing */
    SAT_MASK_COLUMNS, /* some rows have columns out of range, unsorted or repeated */
    SAT_MASK_BELOW,   /* a row pointer decreases; padded: counts are below 0 */
    SAT_MASK_BEYOND,  /* a row pointer is beyond the capacity; counts are above the row stride */
    SAT_MASK_FIRST,   /* the first row pointer is not 0; counts are the largest there are */
    SAT_MASKS
} sat_mask_kind;

const char *sat_mask_label(sat_mask_kind kind, bool padded); /* for messages */

/* Both as a caller would write it and as it must be understood: the rows that are made faulty are empty. */
typedef struct sat_mask_indices {
    int64_t *raw_ptr, *raw_col;           /* grid_rows + 1, or as many counts; raw_count */
    int64_t *row_ptr, *row_end, *col_idx; /* grid_rows + 1, grid_rows, capacity */
    int64_t raw_count;
} sat_mask_indices;

/* `row_stride`: of padded indices, else 0. */
sat_status sat_mask_make(const sat_pattern_view *a, sat_index_type type, int64_t row_stride, sat_mask_kind kind,
                         uint64_t seed, sat_mask_indices *mask);
void sat_mask_free(sat_mask_indices *mask);

#endif
