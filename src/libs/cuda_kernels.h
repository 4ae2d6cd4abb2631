/* Small kernels around library calls: values into other layouts, pointer arrays, and what comes after a product. All
 * are queued on a stream and nothing more, most of them by programmatic dependent launch (variant.cuh). */
#ifndef SAT_CUDA_KERNELS_H
#define SAT_CUDA_KERNELS_H

#include <cuda_runtime_api.h>

#include "libs/matrix.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Stored blocks into a matrix `to`, `stride` elements from row to row, which holds zeros elsewhere already. `rows` is
 * what sat_convert_rows made of the same order of blocks. by_columns: the matrix is column-major, with `stride` from
 * column to column; so tall, thin blocks are written in long lines. */
typedef struct sat_unpack {
    const int32_t *rows;
    const void *values;
    void *to;
    int64_t stride;
    bool by_columns;
} sat_unpack;

/* Each block at its place in A as stored, whatever op(A) is. What a block holds beyond the matrix is left out. */
sat_status sat_libs_spread(const sat_launch *l, const sat_unpack *u);
/* The blocks of a row of op(A) side by side from the left: the values of Blocked-ELL. */
sat_status sat_libs_align_left(const sat_launch *l, const sat_unpack *u);

/* to[i] = values[from[i]], `count` of them: stored values in the order of CSR entries. */
cudaError_t sat_libs_gather(sat_dtype t, const void *values, const int32_t *from, void *to, int64_t count,
                            void *stream);

/* A copy of a matrix in the same storage order, zero from there on to rows x cols of the copy. One of the strides is 1,
 * and the copy's lines begin at multiples of 16 bytes. */
typedef struct sat_copying {
    sat_matrix from, to;
    int64_t from_rows, from_cols, rows, cols;
} sat_copying;

sat_status sat_libs_copy(const sat_launch *l, sat_dtype t, const sat_copying *x);

/* Pointer arrays of a batched product, `count` entries: first + step*index for each of the three operands. */
typedef struct sat_pointers {
    int64_t count;
    const int32_t *at;  /* place in the order of op(A)'s rows; NULL: the entry's own number */
    const int32_t *row; /* block row */
    const void *base[3];
    int64_t step[3]; /* bytes: by stored block, by block column, by block row, as `by` says */
    const void **to[3];
} sat_pointers;

enum { SAT_BY_BLOCK = 0, SAT_BY_COL = 1, SAT_BY_ROW = 2 };
cudaError_t sat_libs_point(const sat_problem *p, const sat_pattern_view *a, const sat_pointers *x, const int by[3],
                           void *stream);

/* C = act(sum + beta*C + bias) where `sum` has the product, alpha included, in the compute type; in place C = act(C +
 * bias) where it is NULL. With `check_empty`, the library has left out the rows of op(A) that have no blocks: their
 * product is zero. */
typedef struct sat_finishing {
    const void *sum;
    int64_t row_stride, col_stride; /* of sum */
    bool check_empty;
    const sat_matrix *guard; /* op(A) with its zeros, by which `sum` was made: see sat_libs_recompute; NULL: no guard */
} sat_finishing;

sat_status sat_libs_finish(const sat_launch *l, const sat_finishing *f);

/* Makes a dense product right where B is not finite. `a` is op(A) with its zeros, `sums` alpha*op(A)*B of dtype t
 * before anything else is added. Where B(k, j) is not finite as it is multiplied, all of column j is not, since 0*Inf
 * and 0*NaN are NaN: so row 0 shows which columns to compute once more, from the stored blocks alone. Where all of row
 * 0 is finite the kernel ends at once. A column that is not finite for another reason is computed once more for
 * nothing. Sums that sat_libs_finish reads are guarded there, without a launch of their own. */
sat_status sat_libs_recompute(const sat_launch *l, const sat_matrix *a, sat_dtype t, const sat_matrix *sums);

/* Values of the sampled product out of all of X*Y, row-major: S = product + beta*S, zero beyond the matrix. */
sat_status sat_libs_pick(const sat_launch *l, const int32_t *rows, sat_dtype t, const void *product, int64_t stride);

/* The same where the product has the layout of the values, and is f32: S = product + beta*S. For 16-bit values. */
cudaError_t sat_libs_merge(const sat_launch *l, const float *product);

#ifdef __cplusplus
}
#endif

#endif
