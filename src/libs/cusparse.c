// cuSPARSE, found at run time; see cusparse.h.

#include <stdio.h>

#include "libs/cusparse.h"
#include "libs/library.h"

/* As cusparse.h numbers them; the same from CUDA 12.0 on. */
enum { SUCCESS = 0, ALLOC_FAILED = 2, NOT_SUPPORTED = 10, NO_RESOURCES = 11 };
enum { AS_IT_IS = 0, INDEX_32 = 2, BASE_ZERO = 0, COL_MAJOR = 1, ROW_MAJOR = 2 };
/* Algorithms. */
static const int algorithms[] = {[SAT_SPMM_BSR] = 14, [SAT_SPMM_ELL] = 13, [SAT_SDDMM] = 0, [SAT_SPMM_CSR] = 6};

typedef int ask_product(void *handle, int op_a, int op_b, const void *alpha, void *a, void *b, const void *beta,
                        void *c, cudaDataType compute, int algorithm, size_t *bytes);
typedef int do_product(void *handle, int op_a, int op_b, const void *alpha, void *a, void *b, const void *beta, void *c,
                       cudaDataType compute, int algorithm, void *buffer);

static struct {
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, cudaStream_t stream);
    int (*property)(libraryPropertyType type, int *value);
    const char *(*words)(int status);
    int (*create_bsr)(void **matrix, int64_t grid_rows, int64_t grid_cols, int64_t blocks, int64_t block_rows,
                      int64_t block_cols, void *row_ptr, void *col_idx, void *values, int row_ptr_type,
                      int col_idx_type, int base, cudaDataType t, int order);
    int (*create_ell)(void **matrix, int64_t rows, int64_t cols, int64_t block, int64_t ell_cols, void *columns,
                      void *values, int index_type, int base, cudaDataType t);
    int (*create_csr)(void **matrix, int64_t rows, int64_t cols, int64_t entries, void *row_ptr, void *col_idx,
                      void *values, int row_ptr_type, int col_idx_type, int base, cudaDataType t);
    int (*create_dense)(void **matrix, int64_t rows, int64_t cols, int64_t leading, void *values, cudaDataType t,
                        int order);
    int (*destroy_sparse)(void *matrix);
    int (*destroy_dense)(void *matrix);
    int (*set_sparse)(void *matrix, void *values);
    int (*set_dense)(void *matrix, void *values);
    ask_product *ask_spmm;
    do_product *look_spmm, *spmm;
    ask_product *ask_sddmm;
    do_product *sddmm;
} cusparse;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char version[48]; /* "": not on this machine */
static int number;       /* 12601 for 12.6.1 */
static void *library;
static sat_handles handles = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void load(void) {
    static const char *const names[] = {"libcusparse.so.12", NULL};
    static const char *const needs[] = {"libnvJitLink.so.13", "libnvJitLink.so.12", NULL};
    static const char *const packages[] = {"/nvidia/cu13/lib", "/nvidia/cusparse/lib", "/torch/lib", NULL};
    static const char *const symbols[] = {"cusparseCreate",           "cusparseDestroy",
                                          "cusparseSetStream",        "cusparseGetProperty",
                                          "cusparseGetErrorString",   "cusparseCreateBsr",
                                          "cusparseCreateBlockedEll", "cusparseCreateCsr",
                                          "cusparseCreateDnMat",      "cusparseDestroySpMat",
                                          "cusparseDestroyDnMat",     "cusparseSpMatSetValues",
                                          "cusparseDnMatSetValues",   "cusparseSpMM_bufferSize",
                                          "cusparseSpMM_preprocess",  "cusparseSpMM",
                                          "cusparseSDDMM_bufferSize", "cusparseSDDMM"};
    const sat_cuda_library place = {"SPARSE_AUTOTUNE_CUSPARSE", names, needs, packages, NULL};
    void *f[18];
    int v[3];
    library = sat_library_open_cuda(&place);
    if (!library || !sat_library_symbols(library, symbols, f, 18)) return;
    _Static_assert(sizeof cusparse == sizeof f, "a symbol for each function");
    memcpy(&cusparse, f, sizeof f);
    for (int i = 0; i < 3; i++)
        if (cusparse.property((libraryPropertyType)i, &v[i]) != SUCCESS) return;
    number = v[0] * 1000 + v[1] * 100 + v[2]; /* as CUSPARSE_VERSION */
    snprintf(version, sizeof version, "cuSPARSE %d.%d.%d", v[0], v[1], v[2]);
}

const char *sat_cusparse_version(void) {
    pthread_once(&once, load);
    return version[0] ? version : NULL;
}

const char *sat_cusparse_bsr_version(void) {
    const char *words = sat_cusparse_version();
    return words && number >= 12501 ? words : NULL;
}

sat_status sat_cusparse_judge(int status, const sat_variant *v) {
    if (status == SUCCESS) return SAT_OK;
    return sat_fail(status == ALLOC_FAILED || status == NO_RESOURCES ? SAT_OUT_OF_MEMORY
                    : status == NOT_SUPPORTED                        ? SAT_UNSUPPORTED
                                                                     : SAT_LIBRARY_ERROR,
                    "%s: cuSPARSE: %s", v->name, cusparse.words(status));
}

void *sat_cusparse_library(void) { return sat_cusparse_version() ? library : NULL; }

sat_status sat_cusparse_bind(const sat_launch *l, const sat_cusparse *s) {
    return sat_cusparse_judge(cusparse.set_stream(s->handle, l->stream), l->variant);
}

/* ---- matrices ---- */

sat_status sat_cusparse_open(const sat_prepare *p, sat_cusparse *s) {
    *s = (sat_cusparse){.device = p->device->index};
    if (!sat_cusparse_version()) return sat_fail(SAT_LIBRARY_ERROR, "%s: cuSPARSE is gone", p->variant->name);
    s->handle = sat_handles_take(&handles, s->device);
    return s->handle ? SAT_OK : sat_cusparse_judge(cusparse.create(&s->handle), p->variant);
}

void sat_cusparse_close(sat_cusparse *s) {
    for (int i = 0; i < 2; i++)
        if (s->dense[i]) cusparse.destroy_dense(s->dense[i]);
    if (s->sparse) cusparse.destroy_sparse(s->sparse);
    if (s->handle && !sat_handles_give(&handles, s->handle, s->device)) cusparse.destroy(s->handle);
    *s = (sat_cusparse){0};
}

/* Descriptions want pointers that are not NULL; each launch brings the true ones. */
sat_status sat_cusparse_bsr(const sat_prepare *p, sat_cusparse *s, void *row_ptr, void *col_idx, sat_dtype t) {
    const sat_pattern_view *a = p->pattern;
    int status =
        cusparse.create_bsr(&s->sparse, a->grid_rows, a->grid_cols, a->stored_blocks, a->block_rows, a->block_cols,
                            row_ptr, col_idx, p->workspace, INDEX_32, INDEX_32, BASE_ZERO, sat_libs_type(t), ROW_MAJOR);
    return sat_cusparse_judge(status, p->variant);
}

sat_status sat_cusparse_ell(const sat_prepare *p, sat_cusparse *s, int64_t width, void *columns, void *values) {
    int64_t block = p->pattern->block_rows;
    int status = cusparse.create_ell(&s->sparse, p->problem->m, p->problem->k, block, width * block, columns, values,
                                     INDEX_32, BASE_ZERO, sat_libs_type(p->problem->a_dtype));
    return sat_cusparse_judge(status, p->variant);
}

sat_status sat_cusparse_csr(const sat_prepare *p, sat_cusparse *s, void *row_ptr, void *col_idx) {
    int status =
        cusparse.create_csr(&s->sparse, p->problem->m, p->problem->k, p->pattern->stored_elements, row_ptr, col_idx,
                            p->workspace, INDEX_32, INDEX_32, BASE_ZERO, sat_libs_type(p->problem->a_dtype));
    return sat_cusparse_judge(status, p->variant);
}

sat_status sat_cusparse_dense(const sat_prepare *p, sat_cusparse *s, int which, sat_dtype t, int64_t rows, int64_t cols,
                              const sat_matrix *layout) {
    int64_t leading;
    int order = sat_matrix_row_major(layout, rows, cols, &leading) ? ROW_MAJOR : COL_MAJOR;
    int status = cusparse.create_dense(&s->dense[which], rows, cols, leading, p->workspace, sat_libs_type(t), order);
    return sat_cusparse_judge(status, p->variant);
}

/* ---- products ---- */

static cudaDataType compute_of(const sat_problem *p) { return p->compute_dtype == SAT_F64 ? CUDA_R_64F : CUDA_R_32F; }

sat_status sat_cusparse_ask(const sat_prepare *p, sat_cusparse *s, sat_cusparse_call call, size_t most) {
    sat_scalar one = sat_libs_scalar(p->problem, 1);
    bool sampled = call == SAT_SDDMM;
    int status = (sampled ? cusparse.ask_sddmm : cusparse.ask_spmm)(
        s->handle, AS_IT_IS, AS_IT_IS, &one, sampled ? s->dense[0] : s->sparse, sampled ? s->dense[1] : s->dense[0],
        &one, sampled ? s->sparse : s->dense[1], compute_of(p->problem), algorithms[call], &s->buffer_bytes);
    if (status == SUCCESS && s->buffer_bytes > most)
        return sat_fail(SAT_UNSUPPORTED, "%s: cuSPARSE wants %zu bytes, %zu are set aside", p->variant->name,
                        s->buffer_bytes, most);
    return sat_cusparse_judge(status, p->variant);
}

sat_status sat_cusparse_look(const sat_prepare *p, sat_cusparse *s, sat_cusparse_call call, void *buffer) {
    sat_scalar one = sat_libs_scalar(p->problem, 1);
    int status = cusparse.set_stream(s->handle, p->stream);
    if (status == SUCCESS)
        status = cusparse.look_spmm(s->handle, AS_IT_IS, AS_IT_IS, &one, s->sparse, s->dense[0], &one, s->dense[1],
                                    compute_of(p->problem), algorithms[call], buffer);
    return sat_cusparse_judge(status, p->variant);
}

sat_status sat_cusparse_run(const sat_launch *l, const sat_cusparse *s, sat_cusparse_call call, double beta,
                            void *const pointers[3], void *buffer) {
    sat_scalar x = sat_libs_scalar(l->problem, l->problem->alpha), y = sat_libs_scalar(l->problem, beta);
    bool sampled = call == SAT_SDDMM;
    int status = cusparse.set_stream(s->handle, l->stream);
    if (status == SUCCESS) status = cusparse.set_sparse(s->sparse, pointers[0]);
    if (status == SUCCESS) status = cusparse.set_dense(s->dense[0], pointers[1]);
    if (status == SUCCESS) status = cusparse.set_dense(s->dense[1], pointers[2]);
    if (status == SUCCESS)
        status = (sampled ? cusparse.sddmm : cusparse.spmm)(
            s->handle, AS_IT_IS, AS_IT_IS, &x, sampled ? s->dense[0] : s->sparse, sampled ? s->dense[1] : s->dense[0],
            &y, sampled ? s->sparse : s->dense[1], compute_of(l->problem), algorithms[call], buffer);
    return sat_cusparse_judge(status, l->variant);
}
