/* cuBLASLt, found at run time: one product with an algorithm of our choice. */
#ifndef SAT_CUBLASLT_H
#define SAT_CUBLASLT_H

#include "libs/cublas.h"

const char *sat_cublaslt_version(void); /* for sat_family.version: "cuBLASLt 13.1.0"; NULL: not on this machine */

typedef struct sat_lt sat_lt; /* a product, and how it is done; used by any number of launches */

/* The algorithm that the library's heuristic ranks `rank`-th, 0 the first. Pointers are multiples of `align` bytes: of
 * A, B and C. SAT_UNSUPPORTED where the heuristic has fewer to offer. */
sat_status sat_lt_open(const sat_prepare *p, const sat_gemm *g, const uint32_t align[3], int rank, sat_lt **lt);
void sat_lt_close(sat_lt *lt); /* accepts NULL */

/* `workspace` has SAT_CUBLAS_WORKSPACE bytes. */
sat_status sat_lt_gemm(const sat_launch *l, const sat_lt *lt, double alpha, const void *a, const void *b, double beta,
                       void *c, void *workspace);

#endif
