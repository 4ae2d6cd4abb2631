// cuBLAS, found at run time; see cublas.h.

#include <limits.h>
#include <stdio.h>

#include "libs/cublas.h"
#include "libs/library.h"

/* As cublas_api.h numbers them; the same in CUDA 12 and 13. */
enum { SUCCESS = 0, ALLOC_FAILED = 3, NOT_SUPPORTED = 15 };
enum { NO_TRANSPOSE = 0, TRANSPOSE = 1, DEFAULT_ALGORITHM = -1 };
enum { DEFAULT_MATH = 0, NO_REDUCED_PRECISION_REDUCTION = 16 };
enum { COMPUTE_32F = 68, COMPUTE_64F = 70, COMPUTE_TF32 = 77 };
enum { MOST_BATCH = 65535 }; /* what one launch's grid holds */

static struct {
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, cudaStream_t stream);
    int (*set_workspace)(void *handle, void *workspace, size_t bytes);
    int (*set_math)(void *handle, int mode);
    int (*property)(libraryPropertyType type, int *value);
    const char *(*words)(int status);
    int (*gemm)(void *handle, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, cudaDataType at,
                int lda, const void *b, cudaDataType bt, int ldb, const void *beta, void *c, cudaDataType ct, int ldc,
                int compute, int algorithm);
    int (*gemm_batched)(void *handle, int ta, int tb, int m, int n, int k, const void *alpha, const void **a,
                        cudaDataType at, int lda, const void **b, cudaDataType bt, int ldb, const void *beta,
                        const void **c, cudaDataType ct, int ldc, int count, int compute, int algorithm);
} cublas;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char version[48]; /* "": not on this machine */
static sat_handles handles = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void load(void) {
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", NULL};
    static const char *const needs[] = {"libcublasLt.so.13", "libcublasLt.so.12", NULL};
    static const char *const packages[] = {"/nvidia/cu13/lib", "/nvidia/cublas/lib", "/torch/lib", NULL};
    static const char *const symbols[] = {"cublasCreate_v2",       "cublasDestroy_v2",  "cublasSetStream_v2",
                                          "cublasSetWorkspace_v2", "cublasSetMathMode", "cublasGetProperty",
                                          "cublasGetStatusString", "cublasGemmEx",      "cublasGemmBatchedEx"};
    const sat_cuda_library place = {"SPARSE_AUTOTUNE_CUBLAS", names, needs, packages, NULL};
    void *f[9], *library = sat_library_open_cuda(&place);
    int v[3];
    if (!library || !sat_library_symbols(library, symbols, f, 9)) return;
    _Static_assert(sizeof cublas == sizeof f, "a symbol for each function");
    memcpy(&cublas, f, sizeof f);
    for (int i = 0; i < 3; i++)
        if (cublas.property((libraryPropertyType)i, &v[i]) != SUCCESS) return;
    snprintf(version, sizeof version, "cuBLAS %d.%d.%d", v[0], v[1], v[2]);
}

const char *sat_cublas_version(void) {
    pthread_once(&once, load);
    return version[0] ? version : NULL;
}

sat_status sat_cublas_failure(int status, const sat_variant *v, const char *library, const char *words) {
    return sat_fail(status == ALLOC_FAILED    ? SAT_OUT_OF_MEMORY
                    : status == NOT_SUPPORTED ? SAT_UNSUPPORTED
                                              : SAT_LIBRARY_ERROR,
                    "%s: %s: %s", v->name, library, words);
}

static sat_status status_of(int status, const sat_variant *v) {
    return status == SUCCESS ? SAT_OK : sat_cublas_failure(status, v, "cuBLAS", cublas.words(status));
}

sat_status sat_cublas_open(const sat_prepare *p, void **handle) {
    *handle = NULL;
    if (!sat_cublas_version()) return sat_fail(SAT_LIBRARY_ERROR, "%s: cuBLAS is gone", p->variant->name);
    *handle = sat_handles_take(&handles, p->device->index);
    if (*handle) return SAT_OK;
    int status = cublas.create(handle);
    /* 16-bit results are summed in f32 to the end, and f32 is not rounded to TF32 unless a call asks for that. */
    if (status == SUCCESS) status = cublas.set_math(*handle, DEFAULT_MATH | NO_REDUCED_PRECISION_REDUCTION);
    if (status == SUCCESS) return SAT_OK;
    if (*handle) cublas.destroy(*handle);
    *handle = NULL;
    return status_of(status, p->variant);
}

void sat_cublas_close(void *handle, int device) {
    if (handle && !sat_handles_give(&handles, handle, device)) cublas.destroy(handle);
}

sat_status sat_cublas_bind(const sat_launch *l, void *handle, void *workspace) {
    int status = cublas.set_stream(handle, l->stream); /* takes back the workspace, so that comes after it */
    if (status == SUCCESS) status = cublas.set_workspace(handle, workspace, SAT_CUBLAS_WORKSPACE);
    return status_of(status, l->variant);
}

/* ---- products ---- */

bool sat_gemm_make(sat_gemm *g, const sat_problem *p, sat_dtype c, int64_t m, int64_t n, int64_t k, const sat_matrix *a,
                   const sat_matrix *b, const sat_matrix *to) {
    if (!sat_matrix_fits(INT_MAX, m, k, a->row_stride, a->col_stride) ||
        !sat_matrix_fits(INT_MAX, k, n, b->row_stride, b->col_stride) ||
        !sat_matrix_fits(INT_MAX, m, n, to->row_stride, to->col_stride))
        return false;
    int64_t lda, ldb, ldc;
    bool rows_a = sat_matrix_row_major(a, m, k, &lda), rows_b = sat_matrix_row_major(b, k, n, &ldb);
    bool rows_c = sat_matrix_row_major(to, m, n, &ldc);
    int ta = rows_a == rows_c ? NO_TRANSPOSE : TRANSPOSE, tb = rows_b == rows_c ? NO_TRANSPOSE : TRANSPOSE;
    *g = (sat_gemm){.m = (int)(rows_c ? n : m),
                    .n = (int)(rows_c ? m : n),
                    .k = (int)k,
                    .ta = rows_c ? tb : ta,
                    .tb = rows_c ? ta : tb,
                    .lda = (int)(rows_c ? ldb : lda),
                    .ldb = (int)(rows_c ? lda : ldb),
                    .ldc = (int)ldc,
                    .swapped = rows_c,
                    .tf32 = sat_libs_tf32(p),
                    .ab = p->a_dtype,
                    .c = c};
    return true;
}

int sat_gemm_compute(const sat_gemm *g) {
    return g->ab == SAT_F64 ? COMPUTE_64F : g->tf32 ? COMPUTE_TF32 : COMPUTE_32F;
}

sat_status sat_cublas_gemm(const sat_launch *l, void *handle, const sat_gemm *g, double alpha, const void *a,
                           const void *b, double beta, void *c) {
    sat_scalar x = sat_libs_scalar(l->problem, alpha), y = sat_libs_scalar(l->problem, beta);
    cudaDataType ab = sat_libs_type(g->ab);
    int status =
        cublas.gemm(handle, g->ta, g->tb, g->m, g->n, g->k, &x, g->swapped ? b : a, ab, g->lda, g->swapped ? a : b, ab,
                    g->ldb, &y, c, sat_libs_type(g->c), g->ldc, sat_gemm_compute(g), DEFAULT_ALGORITHM);
    return status_of(status, l->variant);
}

sat_status sat_cublas_gemm_batched(const sat_launch *l, void *handle, const sat_gemm *g, double alpha, const void **a,
                                   const void **b, double beta, const void **c, int64_t count) {
    sat_scalar x = sat_libs_scalar(l->problem, alpha), y = sat_libs_scalar(l->problem, beta);
    cudaDataType ab = sat_libs_type(g->ab);
    int status = SUCCESS;
    for (int64_t at = 0; at < count && status == SUCCESS; at += MOST_BATCH)
        status = cublas.gemm_batched(handle, g->ta, g->tb, g->m, g->n, g->k, &x, (g->swapped ? b : a) + at, ab, g->lda,
                                     (g->swapped ? a : b) + at, ab, g->ldb, &y, c + at, sat_libs_type(g->c), g->ldc,
                                     (int)sat_min(MOST_BATCH, count - at), sat_gemm_compute(g), DEFAULT_ALGORITHM);
    return status_of(status, l->variant);
}
