// cuBLASLt, found at run time; see cublaslt.h.

#include <stdio.h>
#include <stdlib.h>

#include "libs/cublaslt.h"
#include "libs/library.h"

/* As cublas_api.h and cublasLt.h number them; the same in CUDA 12 and 13. */
enum { SUCCESS = 0, NOT_SUPPORTED = 15 };
enum { TRANSPOSE_A = 3, TRANSPOSE_B = 4 };                                  /* cublasLtMatmulDescAttributes_t */
enum { MOST_WORKSPACE = 1, REDUCTION = 3, ALIGN_A = 5, REDUCE_IN_F32 = 2 }; /* cublasLtMatmulPreferenceAttributes_t */
enum { MOST_RANKS = 8, MOST_DEVICES = 64 };

typedef struct algorithm { /* cublasLtMatmulAlgo_t */
    uint64_t data[8];
} algorithm;

typedef struct heuristic { /* cublasLtMatmulHeuristicResult_t */
    algorithm algo;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} heuristic;

struct sat_lt {
    void *operation, *layout[3]; /* layouts in the library's order: first, second, output */
    algorithm algo;
    bool swapped;
};

static struct {
    int (*create)(void **handle);
    size_t (*version)(void);
    const char *(*words)(int status);
    int (*layout_create)(void **layout, cudaDataType t, uint64_t rows, uint64_t cols, int64_t leading);
    int (*layout_destroy)(void *layout);
    int (*operation_create)(void **operation, int compute, cudaDataType scale);
    int (*operation_destroy)(void *operation);
    int (*operation_set)(void *operation, int attribute, const void *value, size_t bytes);
    int (*preference_create)(void **preference);
    int (*preference_destroy)(void *preference);
    int (*preference_set)(void *preference, int attribute, const void *value, size_t bytes);
    int (*search)(void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference, int wanted,
                  heuristic *results, int *found);
    int (*matmul)(void *handle, void *operation, const void *alpha, const void *a, void *a_layout, const void *b,
                  void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,
                  const algorithm *algo, void *workspace, size_t bytes, cudaStream_t stream);
} lt;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char version[48]; /* "": not on this machine */
static pthread_mutex_t handles_lock = PTHREAD_MUTEX_INITIALIZER;
static void *handles[MOST_DEVICES]; /* one a device: unlike cuBLAS's, any number of threads may share it */

static void load(void) {
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", NULL};
    static const char *const packages[] = {"/nvidia/cu13/lib", "/nvidia/cublas/lib", "/torch/lib", NULL};
    static const char *const symbols[] = {"cublasLtCreate",
                                          "cublasLtGetVersion",
                                          "cublasLtGetStatusString",
                                          "cublasLtMatrixLayoutCreate",
                                          "cublasLtMatrixLayoutDestroy",
                                          "cublasLtMatmulDescCreate",
                                          "cublasLtMatmulDescDestroy",
                                          "cublasLtMatmulDescSetAttribute",
                                          "cublasLtMatmulPreferenceCreate",
                                          "cublasLtMatmulPreferenceDestroy",
                                          "cublasLtMatmulPreferenceSetAttribute",
                                          "cublasLtMatmulAlgoGetHeuristic",
                                          "cublasLtMatmul"};
    const sat_cuda_library place = {"SPARSE_AUTOTUNE_CUBLASLT", names, NULL, packages, NULL};
    void *f[13], *library = sat_library_open_cuda(&place);
    if (!library || !sat_library_symbols(library, symbols, f, 13)) return;
    _Static_assert(sizeof lt == sizeof f, "a symbol for each function");
    memcpy(&lt, f, sizeof f);
    size_t v = lt.version();
    snprintf(version, sizeof version, "cuBLASLt %zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
}

const char *sat_cublaslt_version(void) {
    pthread_once(&once, load);
    return version[0] ? version : NULL;
}

static sat_status status_of(int status, const sat_variant *v) {
    return status == SUCCESS ? SAT_OK : sat_cublas_failure(status, v, "cuBLASLt", lt.words(status));
}

static int handle_of(const sat_device *d, void **handle) {
    int status = SUCCESS;
    pthread_mutex_lock(&handles_lock);
    if (!handles[d->index]) status = lt.create(&handles[d->index]);
    *handle = handles[d->index];
    pthread_mutex_unlock(&handles_lock);
    return status;
}

static int describe(sat_lt *x, const sat_gemm *g) {
    cudaDataType ab = sat_libs_type(g->ab), c = sat_libs_type(g->c);
    int32_t ta = g->ta, tb = g->tb; /* cublasOperation_t: 0 as it is, 1 transposed */
    int status = lt.operation_create(&x->operation, sat_gemm_compute(g), g->ab == SAT_F64 ? CUDA_R_64F : CUDA_R_32F);
    if (status == SUCCESS) status = lt.operation_set(x->operation, TRANSPOSE_A, &ta, sizeof ta);
    if (status == SUCCESS) status = lt.operation_set(x->operation, TRANSPOSE_B, &tb, sizeof tb);
    uint64_t m = (uint64_t)g->m, n = (uint64_t)g->n, k = (uint64_t)g->k;
    if (status == SUCCESS) status = lt.layout_create(&x->layout[0], ab, ta ? k : m, ta ? m : k, g->lda);
    if (status == SUCCESS) status = lt.layout_create(&x->layout[1], ab, tb ? n : k, tb ? k : n, g->ldb);
    if (status == SUCCESS) status = lt.layout_create(&x->layout[2], c, m, n, g->ldc);
    return status;
}

/* Partial sums stay in f32: sums in the output's 16 bits would lose what the problem asks to keep. */
static int prefer(void **preference, const sat_gemm *g, const uint32_t align[3]) {
    uint64_t workspace = SAT_CUBLAS_WORKSPACE;
    uint32_t reduction = REDUCE_IN_F32;
    uint32_t aligned[4] = {align[g->swapped ? 1 : 0], align[g->swapped ? 0 : 1], align[2], align[2]};
    int status = lt.preference_create(preference);
    if (status == SUCCESS) status = lt.preference_set(*preference, MOST_WORKSPACE, &workspace, sizeof workspace);
    if (status == SUCCESS) status = lt.preference_set(*preference, REDUCTION, &reduction, sizeof reduction);
    for (int i = 0; i < 4 && status == SUCCESS; i++)
        status = lt.preference_set(*preference, ALIGN_A + i, &aligned[i], sizeof aligned[i]);
    return status;
}

static int search(sat_lt *x, void *handle, void *preference, int rank) {
    heuristic results[MOST_RANKS];
    int found = 0;
    int status = lt.search(handle, x->operation, x->layout[0], x->layout[1], x->layout[2], x->layout[2], preference,
                           MOST_RANKS, results, &found);
    if (status != SUCCESS) return status;
    if (found <= rank || results[rank].state != SUCCESS || results[rank].workspace > SAT_CUBLAS_WORKSPACE)
        return NOT_SUPPORTED;
    x->algo = results[rank].algo;
    return SUCCESS;
}

sat_status sat_lt_open(const sat_prepare *p, const sat_gemm *g, const uint32_t align[3], int rank, sat_lt **result) {
    *result = NULL;
    if (!sat_cublaslt_version() || p->device->index >= MOST_DEVICES || rank >= MOST_RANKS)
        return sat_fail(SAT_UNSUPPORTED, "%s: device %d, rank %d", p->variant->name, p->device->index, rank);
    sat_lt *x = calloc(1, sizeof *x);
    if (!x) return sat_fail(SAT_OUT_OF_MEMORY, "%s: no memory on the host", p->variant->name);
    void *handle = NULL, *preference = NULL;
    x->swapped = g->swapped;
    int status = handle_of(p->device, &handle);
    if (status == SUCCESS) status = describe(x, g);
    if (status == SUCCESS) status = prefer(&preference, g, align);
    if (status == SUCCESS) status = search(x, handle, preference, rank);
    if (preference) lt.preference_destroy(preference);
    if (status == SUCCESS) *result = x;
    else sat_lt_close(x);
    return status_of(status, p->variant);
}

void sat_lt_close(sat_lt *x) {
    if (!x) return;
    for (int i = 0; i < 3; i++)
        if (x->layout[i]) lt.layout_destroy(x->layout[i]);
    if (x->operation) lt.operation_destroy(x->operation);
    free(x);
}

sat_status sat_lt_gemm(const sat_launch *l, const sat_lt *x, double alpha, const void *a, const void *b, double beta,
                       void *c, void *workspace) {
    sat_scalar u = sat_libs_scalar(l->problem, alpha), v = sat_libs_scalar(l->problem, beta);
    int status = lt.matmul(handles[l->device->index], x->operation, &u, x->swapped ? b : a, x->layout[0],
                           x->swapped ? a : b, x->layout[1], &v, c, x->layout[2], c, x->layout[2], &x->algo, workspace,
                           SAT_CUBLAS_WORKSPACE, l->stream);
    return status_of(status, l->variant);
}
