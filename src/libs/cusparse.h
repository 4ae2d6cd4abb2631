/* cuSPARSE, found at run time: its products on BSR, Blocked-ELL and CSR. */
#ifndef SAT_CUSPARSE_H
#define SAT_CUSPARSE_H

#include "libs/cuda_common.h"

enum { SAT_CUSPARSE_BUFFER = 8 << 20 }; /* bytes set aside for the library where its needs do not grow */

const char *sat_cusparse_version(void);     /* for sat_family.version: "cuSPARSE 12.6.3"; NULL: not on this machine */
const char *sat_cusparse_bsr_version(void); /* the same, from the version on that multiplies BSR matrices (12.5.1) */

/* One product: its handle and the descriptions of its three matrices. Zeroed before open. */
typedef struct sat_cusparse {
    void *handle, *sparse, *dense[2];
    int device;
    size_t buffer_bytes; /* that the library wants */
} sat_cusparse;

/* The sparse matrix, with indices in the workspace. Values are given at each launch. */
sat_status sat_cusparse_bsr(const sat_prepare *p, sat_cusparse *s, void *row_ptr, void *col_idx, sat_dtype t);
sat_status sat_cusparse_ell(const sat_prepare *p, sat_cusparse *s, int64_t width, void *columns, void *values);
sat_status sat_cusparse_csr(const sat_prepare *p, sat_cusparse *s, void *row_ptr, void *col_idx); /* of op(A) */

/* A dense operand; `which` is 0 or 1. */
sat_status sat_cusparse_dense(const sat_prepare *p, sat_cusparse *s, int which, sat_dtype t, int64_t rows, int64_t cols,
                              const sat_matrix *layout);

sat_status sat_cusparse_open(const sat_prepare *p, sat_cusparse *s); /* takes a handle; first of all */
void sat_cusparse_close(sat_cusparse *s);                            /* accepts a failed one */

/* For calls that are not listed here: the open library, its stream, and what a status means. */
void *sat_cusparse_library(void);
sat_status sat_cusparse_bind(const sat_launch *l, const sat_cusparse *s);
sat_status sat_cusparse_judge(int status, const sat_variant *v);

typedef enum sat_cusparse_call { SAT_SPMM_BSR, SAT_SPMM_ELL, SAT_SDDMM, SAT_SPMM_CSR } sat_cusparse_call;

/* Asks the library whether it can, with a buffer of at most `most` bytes; for `prepare`. */
sat_status sat_cusparse_ask(const sat_prepare *p, sat_cusparse *s, sat_cusparse_call call, size_t most);

/* Lets the library look at the indices once, for all products with this buffer. SpMM on CSR; for `prepare`. */
sat_status sat_cusparse_look(const sat_prepare *p, sat_cusparse *s, sat_cusparse_call call, void *buffer);

/* SpMM: dense[1] = alpha*sparse*dense[0] + beta*dense[1]. SDDMM: sparse = alpha*dense[0]*dense[1] + beta*sparse.
 * Pointers in the order sparse, dense[0], dense[1]. */
sat_status sat_cusparse_run(const sat_launch *l, const sat_cusparse *s, sat_cusparse_call call, double beta,
                            void *const pointers[3], void *buffer);

#endif
