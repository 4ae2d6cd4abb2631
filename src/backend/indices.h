/* Indices that change between runs: where a run reads them, and the validated copy that it works on. The rules are the
 * public header's (sat_dynamic_bsr); the host's form of the copy is indices.c, the device's is cuda_indices.cu. That of
 * masks is on the host alone, so far. */
#ifndef SAT_INDICES_H
#define SAT_INDICES_H

#include "base/status.h"
#include "groups.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a run found wrong, in memory that host and device both reach. The run that writes it is the only one at a time,
 * and raises `runs` last. */
typedef struct sat_index_fault {
    uint64_t runs; /* with a fault, so far; the rest is of the newest */
    int64_t status;
    int64_t row;           /* the first faulty block row */
    int64_t at;            /* the entry of row_ptr or col_idx that is wrong, */
    int64_t value, before; /* it, and the one before it in the same row */
} sat_index_fault;

typedef struct sat_index_copy {
    int64_t grid_rows, grid_cols, capacity;
    sat_index_type type;
    const void *from_ptr, *from_col; /* the caller's, where the device reads them */
    int64_t *row_ptr, *row_end;      /* the copy: grid_rows + 1, grid_rows, */
    int32_t *col_idx;                /* capacity */
    int64_t *t_ptr;                  /* the transposed index, grid_cols + 2, */
    int32_t *t_row;                  /* capacity, */
    int64_t *t_block;                /* capacity; NULL, all three: not wanted */
    void *scratch;                   /* as many bytes as the backend asks for */
    sat_index_fault *fault;
    int threads; /* CPU */
} sat_index_copy;

/* Masks, where a block's place says nothing: rows of the copy follow one another without gaps. `from_ptr` has the
 * number of blocks of each row where `row_stride` is not 0, and row i's columns begin at i * row_stride. */
typedef struct sat_mask_form {
    int64_t row_stride;
    int64_t row_room; /* then: the most blocks of a row of the copy, whose capacity is grid_rows * row_room */
} sat_mask_form;

/* Blocks of one operand of values, in each item of a batch. */
typedef struct sat_block_values {
    void *base;
    size_t block_bytes, item_bytes; /* from one item to the next */
    int64_t items;
} sat_block_values;

/* Where rows before it are right, row i, which reaches from `begin` to `end`: do its pointers break the rules? Each end
 * is the next row's begin, so where no row breaks them alone they never decrease. */
SAT_BOTH static inline bool sat_row_breaks(int64_t i, int64_t begin, int64_t end, int64_t capacity) {
    return (i == 0 && begin != 0) || begin < 0 || end < begin || end > capacity;
}

/* The first column of a row that is out of range, or not above the one before it. */
SAT_BOTH static inline void sat_index_describe_columns(const sat_index_copy *x, int64_t begin, int64_t end,
                                                       sat_index_fault *to) {
    to->before = -1;
    for (int64_t t = begin; t < end; t++, to->before = to->value) {
        to->at = t, to->value = sat_offset_at(x->from_col, x->type, t);
        bool outside = to->value < 0 || to->value >= x->grid_cols;
        to->status = outside ? SAT_COLUMN_RANGE : SAT_COLUMN_ORDER;
        if (outside || to->value <= to->before) return;
    }
}

/* Looks for what is wrong with a faulty row. `pointers`: it is its row pointers. */
SAT_BOTH static inline void sat_index_describe(const sat_index_copy *x, int64_t row, bool pointers,
                                               sat_index_fault *to) {
    int64_t begin = sat_offset_at(x->from_ptr, x->type, row), end = sat_offset_at(x->from_ptr, x->type, row + 1);
    bool first = row == 0 && begin != 0;
    to->row = row, to->status = SAT_BAD_ROW_PTR, to->at = first ? 0 : row + 1;
    to->value = first ? begin : end, to->before = begin;
    if (pointers || sat_row_breaks(row, begin, end, x->capacity)) return;
    sat_index_describe_columns(x, begin, end, to);
}

/* A fault as a failure with its message. `row_stride` is that of padded indices, else 0. */
sat_status sat_index_fault_fail(const sat_index_fault *f, int64_t capacity, int64_t grid_cols, int64_t row_stride);

/* On the host: makes the copy, and the transposed index where it is wanted. */
void sat_indices_copy(const sat_index_copy *x);
void sat_masks_copy(const sat_index_copy *x, const sat_mask_form *form);
/* Zeros into the blocks that no row has. */
void sat_indices_clear(const sat_index_copy *x, const sat_block_values *values);

#ifdef __cplusplus
}
#endif

#endif
