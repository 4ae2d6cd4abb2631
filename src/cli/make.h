/* Makes up block patterns: any size, block shape, sparsity and skew, the same for the same seed. */
#ifndef CLI_MAKE_H
#define CLI_MAKE_H

#include <stdbool.h>

#include "blocks.h"

typedef enum make_kind {
    MAKE_RANDOM = 0,   /* the same number of blocks in every row (but for a remainder), columns uniform */
    MAKE_BANDED = 1,   /* one band around the diagonal */
    MAKE_DIAGONAL = 2, /* whole diagonals, evenly spaced, wrapping around */
    MAKE_POWERLAW = 3  /* few heavy rows and many light ones, and the same of columns */
} make_kind;

extern const char *const make_kind_names[]; /* NULL at the end */

typedef struct make_request {
    make_kind kind;
    int64_t rows, cols, block_rows, block_cols;
    int64_t stored;  /* how many blocks; below 0: taken from the sparsity */
    double sparsity; /* share of the blocks that are absent; below 0: the kind's own */
    double skew;     /* heaviest row over the mean; 0: the kind's own (1, powerlaw 8) */
    double overlap;  /* random: share of a row's columns that the next row has too; below 0: as it comes */
    bool by_columns; /* the skew is that of the columns */
    uint64_t seed;
} make_request;

/* False with a message where the memory is not there. */
bool make_blocks(const make_request *request, blocks *out, char *message, size_t capacity);

#endif
