/* cuBLAS, found at run time: products of strided matrices in either storage order. */
#ifndef SAT_CUBLAS_H
#define SAT_CUBLAS_H

#include "libs/cuda_common.h"

enum { SAT_CUBLAS_WORKSPACE = 32 << 20 }; /* bytes: what cuBLAS recommends on Hopper, and enough elsewhere */

const char *sat_cublas_version(void); /* for sat_family.version: "cuBLAS 13.1.0"; NULL: not on this machine */

/* C = alpha*A*B + beta*C as the libraries have it, which is column-major: a row-major C is its transpose, B^T*A^T. */
typedef struct sat_gemm {
    int m, n, k, ta, tb, lda, ldb, ldc;
    bool swapped; /* B is the library's first operand */
    bool tf32;
    sat_dtype ab, c; /* accumulation in f32; in f64 for f64 */
} sat_gemm;

/* False where the libraries cannot represent these strides and sizes. The data pointers do not matter. */
bool sat_gemm_make(sat_gemm *g, const sat_problem *p, sat_dtype c, int64_t m, int64_t n, int64_t k, const sat_matrix *a,
                   const sat_matrix *b, const sat_matrix *to);

int sat_gemm_compute(const sat_gemm *g); /* a cublasComputeType_t */

/* A call of cuBLAS or cuBLASLt, which number their statuses alike, has failed; `words` are the library's own. */
sat_status sat_cublas_failure(int status, const sat_variant *v, const char *library, const char *words);

/* ---- products ---- */

/* A handle for the device that is current; it goes back with sat_cublas_close, which accepts NULL. */
sat_status sat_cublas_open(const sat_prepare *p, void **handle);
void sat_cublas_close(void *handle, int device);

/* Where the next products run; `workspace` has SAT_CUBLAS_WORKSPACE bytes. */
sat_status sat_cublas_bind(const sat_launch *l, void *handle, void *workspace);
sat_status sat_cublas_gemm(const sat_launch *l, void *handle, const sat_gemm *g, double alpha, const void *a,
                           const void *b, double beta, void *c);
/* `count` products of one shape; a, b and c are arrays of pointers on the device. */
sat_status sat_cublas_gemm_batched(const sat_launch *l, void *handle, const sat_gemm *g, double alpha, const void **a,
                                   const void **b, double beta, const void **c, int64_t count);

#endif
