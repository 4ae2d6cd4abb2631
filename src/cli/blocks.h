/* Where the blocks of one BSR matrix are: what the generator and the Matrix Market reader both give. */
#ifndef CLI_BLOCKS_H
#define CLI_BLOCKS_H

#include <stdint.h>
#include <stdlib.h>

typedef struct blocks {
    int64_t rows, cols;
    int64_t block_rows, block_cols;
    int64_t grid_rows, grid_cols;
    int64_t count;
    int64_t *row_ptr;  /* grid_rows + 1 */
    int64_t *row_end;  /* grid_rows, where some rows end before the next begins; else NULL */
    int64_t *col_idx;  /* count; never NULL once made */
    int64_t sequences; /* packed ones of attention; 0: none, and no offsets */
    int64_t *q_offsets, *kv_offsets;
} blocks;

static inline void blocks_free(blocks *b) {
    free(b->row_ptr);
    free(b->row_end);
    free(b->col_idx);
    free(b->q_offsets);
    free(b->kv_offsets);
    *b = (blocks){0};
}

static inline int64_t blocks_end(const blocks *b, int64_t row) {
    return b->row_end ? b->row_end[row] : b->row_ptr[row + 1];
}

static inline int64_t grid_of(int64_t size, int64_t block) { return size / block + (size % block != 0); }

#endif
