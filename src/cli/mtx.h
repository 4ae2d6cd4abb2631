/* Reads Matrix Market files and cuts them into blocks.
 *
 * Coordinate and array; real, integer and pattern; general, symmetric and skew-symmetric. Complex files are refused.
 * Nothing in a file is believed: sizes are checked against what follows, memory grows with what was really read and
 * never past a limit, and a message names the line. Zeros of an array file are not stored; those of a coordinate file
 * are. Entries given twice are added. Needs libc only. */
#ifndef CLI_MTX_H
#define CLI_MTX_H

#include <stdbool.h>
#include <stddef.h>

#include "blocks.h"

typedef struct mtx_entry {
    int32_t row, col; /* zero-based */
    double value;     /* 1 in a pattern file */
} mtx_entry;

typedef struct mtx {
    int64_t rows, cols;
    mtx_entry *entries; /* both halves of a symmetric file */
    int64_t count;
} mtx;

typedef struct mtx_error {
    char text[256];
} mtx_error;

/* `limit` is the most memory to use, in bytes. False with a message, and nothing to free. */
bool mtx_read_file(const char *path, size_t limit, mtx *out, mtx_error *error);
bool mtx_read_memory(const char *bytes, size_t length, size_t limit, mtx *out, mtx_error *error);
void mtx_free(mtx *m);

/* The blocks that hold an entry; `values`, where not NULL, gets them as doubles, row-major, padding 0 (free it). */
bool mtx_block(const mtx *m, int64_t block_rows, int64_t block_cols, size_t limit, blocks *out, double **values,
               mtx_error *error);

#endif
