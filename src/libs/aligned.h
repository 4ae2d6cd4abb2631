/* Dense products as cuBLAS is fast on: every line of an operand begins at a multiple of 16 bytes, and is one long. On
 * others it computes 16-bit inputs at a seventh of its rate (measured on an H200, cuBLAS 13.1: 94 to 116 TFLOPS), so
 * that copies of the operands with longer lines, zeros at their ends, soon pay. */
#ifndef SAT_ALIGNED_H
#define SAT_ALIGNED_H

#include "libs/cuda_common.h"
#include "libs/cuda_kernels.h"

enum { SAT_ALIGNED_LEAST = 16 }; /* sizes from which such copies are made */

static inline int64_t sat_aligned_size(sat_dtype t, int64_t x) {
    int64_t step = 16 / (int64_t)sat_dtype_size(t);
    return (x + step - 1) / step * step;
}

/* The sizes of C = A*B: those along which lines of an operand go are rounded up. */
typedef struct sat_sizes {
    int64_t m, n, k;
} sat_sizes;

static inline sat_sizes sat_aligned_sizes(sat_dtype t, sat_sizes s, bool a_by_rows, bool b_by_rows, bool c_by_rows) {
    if (!a_by_rows || !c_by_rows) s.m = sat_aligned_size(t, s.m);
    if (b_by_rows || c_by_rows) s.n = sat_aligned_size(t, s.n);
    if (a_by_rows || !b_by_rows) s.k = sat_aligned_size(t, s.k);
    return s;
}

/* Copies are worth a try: lines are `odd`, and tensor cores are at stake. */
static inline bool sat_aligned_gains(const sat_problem *p, bool odd) {
    bool large = sat_min(p->m, sat_min(p->n, p->k)) >= SAT_ALIGNED_LEAST;
    return odd && large && (sat_libs_narrow(p->a_dtype) || sat_libs_tf32(p));
}

/* Lines begin at multiples of 16 bytes; one of the strides is 1. */
static inline bool sat_aligned_lines(sat_dtype t, const sat_matrix *x, uint32_t align) {
    return align % 16 == 0 && x->row_stride * x->col_stride * (int64_t)sat_dtype_size(t) % 16 == 0;
}

/* Is an operand `odd`? Either a copy of it would be `longer`, or its lines do not begin at multiples of 16 bytes. */
static inline bool sat_aligned_odd(const sat_problem *p, sat_dtype t, const sat_matrix *x, const sat_layout *l,
                                   uint32_t align, bool longer) {
    return longer || !sat_aligned_lines(t, x, sat_item_align(align, l, p->batch, t));
}

/* The strides of a copy of rows x cols, and its bytes. */
static inline sat_matrix sat_aligned_copy(sat_dtype t, int64_t rows, int64_t cols, bool by_rows) {
    return by_rows ? (sat_matrix){NULL, sat_aligned_size(t, cols), 1}
                   : (sat_matrix){NULL, 1, sat_aligned_size(t, rows)};
}

static inline double sat_aligned_bytes(sat_dtype t, int64_t rows, int64_t cols, bool by_rows) {
    sat_matrix x = sat_aligned_copy(t, rows, cols, by_rows);
    return (double)sat_dtype_size(t) * (double)(by_rows ? rows : cols) * (double)(x.row_stride * x.col_stride);
}

#endif
