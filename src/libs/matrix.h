/* A strided matrix as BLAS libraries see it: lines without gaps inside, one leading dimension between them. */
#ifndef SAT_MATRIX_H
#define SAT_MATRIX_H

#include "variant.h"

/* Element (i, j) is data[i*row_stride + j*col_stride]; one of the strides is 1. */
typedef struct sat_matrix {
    void *data;
    int64_t row_stride, col_stride;
} sat_matrix;

static inline sat_matrix sat_matrix_of(void *data, const sat_layout *l) {
    return (sat_matrix){data, l->row_stride, l->col_stride};
}

static inline sat_matrix sat_matrix_at(sat_dtype t, const sat_matrix *m, int64_t i, int64_t j) {
    return (sat_matrix){sat_at(t, m->data, i * m->row_stride + j * m->col_stride), m->row_stride, m->col_stride};
}

/* A leading dimension must cover a line; with one line there is none to speak of. */
static inline bool sat_matrix_lines(int64_t lines, int64_t length, int64_t stride, int64_t unit) {
    return (unit == 1 || length <= 1) && (lines <= 1 || stride >= sat_max(1, length));
}

/* Can a library whose integers reach up to `most` represent such a matrix? */
static inline bool sat_matrix_fits(int64_t most, int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride) {
    if (rows > most || cols > most || row_stride > most || col_stride > most) return false;
    return sat_matrix_lines(rows, cols, row_stride, col_stride) || sat_matrix_lines(cols, rows, col_stride, row_stride);
}

/* True: row-major; false: column-major. Of a matrix that fits. */
static inline bool sat_matrix_row_major(const sat_matrix *m, int64_t rows, int64_t cols, int64_t *leading) {
    if (sat_matrix_lines(rows, cols, m->row_stride, m->col_stride)) {
        *leading = rows <= 1 ? sat_max(1, cols) : m->row_stride;
        return true;
    }
    *leading = cols <= 1 ? sat_max(1, rows) : m->col_stride;
    return false;
}

#endif
