/* OpenBLAS and MKL as single-threaded GEMMs on strided matrices.
 *
 * Threads are ours: callers cut the product into tiles that do not depend on the number of threads, and call BLAS from
 * each of their own threads, between enter and leave. So results are the same for any number of threads, and no
 * process-wide setting has to be agreed on. */
#ifndef SAT_BLAS_H
#define SAT_BLAS_H

#include "libs/matrix.h"

enum { SAT_BLAS_OPENBLAS = 0, SAT_BLAS_MKL = 1 }; /* sat_instance.option */

typedef struct sat_blas {
    char version[48]; /* "OpenBLAS 0.3.21 Haswell": with the CPU that its kernels are for */
    bool wide;        /* its integers have 64 bits */
    void *sgemm, *dgemm;
    /* Make the calling thread's calls single-threaded; leave takes what enter gave. */
    int (*enter)(void);
    void (*leave)(int token);
} sat_blas;

const sat_blas *sat_blas_get(int which);           /* NULL: not on this machine */
const sat_blas *sat_blas_of(const sat_variant *v); /* the one that its option names */

const char *sat_openblas_version(void); /* for sat_family.version */
const char *sat_mkl_blas_version(void);

/* Is the library of this variant there, with room to run, and is the problem all in f32 or all in f64? */
bool sat_blas_takes(const sat_variant *v, const sat_problem *p, const sat_device *d);

/* Can BLAS represent such a matrix? */
bool sat_blas_fits(const sat_blas *blas, int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride);

/* C = alpha*A*B + beta*C, C m x n, k deep; f32 or f64. Does nothing when m or n is 0. */
void sat_blas_gemm(const sat_blas *blas, sat_dtype t, int64_t m, int64_t n, int64_t k, double alpha,
                   const sat_matrix *a, const sat_matrix *b, double beta, const sat_matrix *c);

/* Adds the bias and applies the activation to a tile of C whose first row is row i0. */
void sat_blas_finish(const sat_launch *l, const sat_matrix *c, int64_t i0, int64_t rows, int64_t cols);

/* How a dense product of m x n is cut for threads: tiles large enough for BLAS, enough of them for many cores. */
typedef struct sat_tiles {
    int64_t high, wide, down, across;
} sat_tiles;

sat_tiles sat_blas_tiles(int64_t m, int64_t n);

#endif
