// OpenBLAS and MKL behind one GEMM; see blas.h.

#include <limits.h>
#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "libs/blas.h"
#include "libs/library.h"
#include "libs/mkl.h"
#include "libs/room.h"

enum { ROW_MAJOR = 101, COL_MAJOR = 102, NO_TRANS = 111, TRANS = 112 }; /* as cblas.h numbers them */

typedef void (*sgemm_32)(int, int, int, int, int, int, float, const void *, int, const void *, int, float, void *, int);
typedef void (*sgemm_64)(int, int, int, int64_t, int64_t, int64_t, float, const void *, int64_t, const void *, int64_t,
                         float, void *, int64_t);
typedef void (*dgemm_32)(int, int, int, int, int, int, double, const void *, int, const void *, int, double, void *,
                         int);
typedef void (*dgemm_64)(int, int, int, int64_t, int64_t, int64_t, double, const void *, int64_t, const void *, int64_t,
                         double, void *, int64_t);

/* ---- OpenBLAS ---- */

static pthread_once_t openblas_once = PTHREAD_ONCE_INIT, mkl_once = PTHREAD_ONCE_INIT;
static sat_blas openblas, mkl;
static bool openblas_usable, mkl_usable;

static int (*openblas_get_threads)(void);
static void (*openblas_set_threads)(int);

/* OpenBLAS with its own threads has one setting for the process: the first to enter makes it 1, the last to leave
 * restores what was there. A build on OpenMP follows the calling thread's OpenMP setting instead. */
static pthread_mutex_t openblas_lock = PTHREAD_MUTEX_INITIALIZER;
static int openblas_users, openblas_before;

static int openblas_enter(void) {
    pthread_mutex_lock(&openblas_lock);
    if (openblas_users++ == 0) {
        openblas_before = openblas_get_threads();
        if (openblas_before != 1) openblas_set_threads(1);
    }
    pthread_mutex_unlock(&openblas_lock);
    return 0;
}

static void openblas_leave(int token) {
    (void)token;
    pthread_mutex_lock(&openblas_lock);
    if (--openblas_users == 0 && openblas_before != 1) openblas_set_threads(openblas_before);
    pthread_mutex_unlock(&openblas_lock);
}

static int openmp_enter(void) {
    int before = omp_get_max_threads();
    omp_set_num_threads(1);
    return before;
}

static void openmp_leave(int token) { omp_set_num_threads(token); }

/* One file has kernels for many CPUs, and the environment may choose among them: each is a version of its own. */
static void openblas_name(void *library, const char *config) {
    static const char *const symbol[] = {"openblas_get_corename"};
    void *f[1];
    const char *core = sat_library_symbols(library, symbol, f, 1) ? ((char *(*)(void))f[0])() : NULL;
    snprintf(openblas.version, sizeof openblas.version, "OpenBLAS %.*s%s%.20s", (int)strcspn(config, " "), config,
             core ? " " : "", core ? core : "");
}

static void openblas_load(void) {
    static const char *const names[] = {"libopenblas.so.0", "libopenblasp.so.0", "libopenblas.so", NULL};
    static const char *const symbols[] = {"openblas_get_config",
                                          "openblas_get_num_threads",
                                          "openblas_set_num_threads",
                                          "openblas_get_parallel",
                                          "cblas_sgemm",
                                          "cblas_dgemm"};
    void *f[6];
    if (!sat_library_loaded(names) && !sat_room_to_load()) return;
    void *library = sat_library_open("SPARSE_AUTOTUNE_BLAS", names);
    if (!library || !sat_library_symbols(library, symbols, f, 6)) return;
    const char *config = ((char *(*)(void))f[0])();
    if (!config || strncmp(config, "OpenBLAS ", 9) != 0) return;
    openblas_name(library, config + 9);
    openblas.wide = strstr(config, "USE64BITINT") != NULL;
    openblas_get_threads = (int (*)(void))f[1];
    openblas_set_threads = (void (*)(int))f[2];
    bool on_openmp = ((int (*)(void))f[3])() == 2;
    openblas.sgemm = f[4], openblas.dgemm = f[5];
    openblas.enter = on_openmp ? openmp_enter : openblas_enter;
    openblas.leave = on_openmp ? openmp_leave : openblas_leave;
    openblas_usable = true;
}

/* ---- MKL ---- */

static int mkl_enter(void) { return sat_mkl_get()->set_threads(1); }
static void mkl_leave(int token) { sat_mkl_get()->set_threads(token); }

static void mkl_load(void) {
    static const char *const symbols[] = {"cblas_sgemm", "cblas_dgemm"};
    const sat_mkl *m = sat_mkl_get();
    void *f[2];
    if (!m || !sat_library_symbols(m->library, symbols, f, 2)) return;
    snprintf(mkl.version, sizeof mkl.version, "%s", m->version);
    mkl.wide = m->wide, mkl.sgemm = f[0], mkl.dgemm = f[1];
    mkl.enter = mkl_enter, mkl.leave = mkl_leave;
    mkl_usable = true;
}

const sat_blas *sat_blas_get(int which) {
    if (which == SAT_BLAS_MKL) {
        pthread_once(&mkl_once, mkl_load);
        return mkl_usable ? &mkl : NULL;
    }
    pthread_once(&openblas_once, openblas_load);
    return openblas_usable ? &openblas : NULL;
}

const sat_blas *sat_blas_of(const sat_variant *v) { return sat_blas_get(v->instance.option); }

bool sat_blas_takes(const sat_variant *v, const sat_problem *p, const sat_device *d) {
    if (!sat_blas_of(v) || !sat_room_to_run(d->threads)) return false;
    if (p->a_dtype != SAT_F32 && p->a_dtype != SAT_F64) return false;
    return p->b_dtype == p->a_dtype && p->c_dtype == p->a_dtype && p->compute_dtype == p->a_dtype;
}

const char *sat_openblas_version(void) {
    const sat_blas *blas = sat_blas_get(SAT_BLAS_OPENBLAS);
    return blas ? blas->version : NULL;
}

const char *sat_mkl_blas_version(void) {
    const sat_blas *blas = sat_blas_get(SAT_BLAS_MKL);
    return blas ? blas->version : NULL;
}

/* ---- matrices ---- */

bool sat_blas_fits(const sat_blas *blas, int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride) {
    return sat_matrix_fits(blas->wide ? INT64_MAX : INT_MAX, rows, cols, row_stride, col_stride);
}

void sat_blas_gemm(const sat_blas *blas, sat_dtype t, int64_t m, int64_t n, int64_t k, double alpha,
                   const sat_matrix *a, const sat_matrix *b, double beta, const sat_matrix *c) {
    int64_t lda, ldb, ldc;
    if (m == 0 || n == 0) return;
    bool rows_a = sat_matrix_row_major(a, m, k, &lda), rows_b = sat_matrix_row_major(b, k, n, &ldb);
    bool rows_c = sat_matrix_row_major(c, m, n, &ldc);
    int order = rows_c ? ROW_MAJOR : COL_MAJOR;
    int ta = rows_a == rows_c ? NO_TRANS : TRANS, tb = rows_b == rows_c ? NO_TRANS : TRANS;
    if (t == SAT_F64 && blas->wide)
        ((dgemm_64)blas->dgemm)(order, ta, tb, m, n, k, alpha, a->data, lda, b->data, ldb, beta, c->data, ldc);
    else if (t == SAT_F64)
        ((dgemm_32)blas->dgemm)(order, ta, tb, (int)m, (int)n, (int)k, alpha, a->data, (int)lda, b->data, (int)ldb,
                                beta, c->data, (int)ldc);
    else if (blas->wide)
        ((sgemm_64)blas->sgemm)(order, ta, tb, m, n, k, (float)alpha, a->data, lda, b->data, ldb, (float)beta, c->data,
                                ldc);
    else
        ((sgemm_32)blas->sgemm)(order, ta, tb, (int)m, (int)n, (int)k, (float)alpha, a->data, (int)lda, b->data,
                                (int)ldb, (float)beta, c->data, (int)ldc);
}

/* ---- around a product ---- */

static inline __attribute__((always_inline)) void finish_line(sat_dtype t, sat_activation act, void *data, int64_t step,
                                                              int64_t count, const void *bias, int64_t bias_step) {
    for (int64_t e = 0; e < count; e++) {
        if (t == SAT_F32) {
            float *x = (float *)data + e * step;
            *x = sat_act_f32(act, *x + (bias ? ((const float *)bias)[e * bias_step] : 0));
        } else {
            double *x = (double *)data + e * step;
            *x = sat_act_f64(act, *x + (bias ? ((const double *)bias)[e * bias_step] : 0));
        }
    }
}

void sat_blas_finish(const sat_launch *l, const sat_matrix *c, int64_t i0, int64_t rows, int64_t cols) {
    const sat_problem *p = l->problem;
    sat_dtype t = p->c_dtype;
    if (p->matmul.bias == SAT_BIAS_NONE && p->matmul.activation == SAT_ACT_NONE) return;
    const void *bias = p->matmul.bias == SAT_BIAS_ROW ? sat_at(t, l->operands[3], i0) : NULL;
    bool along_rows = c->col_stride == 1;
    for (int64_t line = 0; line < (along_rows ? rows : cols); line++) {
        void *data = sat_at(t, c->data, line * (along_rows ? c->row_stride : c->col_stride));
        if (along_rows) finish_line(t, p->matmul.activation, data, 1, cols, bias ? sat_at(t, bias, line) : NULL, 0);
        else finish_line(t, p->matmul.activation, data, c->row_stride, rows, bias, 1);
    }
}

sat_tiles sat_blas_tiles(int64_t m, int64_t n) {
    sat_tiles t;
    t.high = m <= 384 ? sat_max(1, m) : m < 1024 ? 256 : 512;
    t.wide = n <= 768 ? sat_max(1, n) : 512;
    t.down = (m + t.high - 1) / t.high, t.across = (n + t.wide - 1) / t.wide;
    return t;
}
