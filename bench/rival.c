// The dense rival: OpenBLAS or MKL, loaded at run time, so that the benchmark builds where neither is installed.

#include "bench.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROW_MAJOR = 101, NO_TRANSPOSE = 111 };

static void *symbol(void *library, const char *name) { return dlsym(library, name); }

static void name_rival(bench_rival *rival, void *library) {
    char *(*config)(void) = NULL;
    void (*mkl_version)(char *, int) = NULL;
    *(void **)&config = symbol(library, "openblas_get_config");
    *(void **)&mkl_version = symbol(library, "mkl_get_version_string");
    if (config) {
        // "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ...": the first two words
        snprintf(rival->name, sizeof rival->name, "%s", config());
        char *space = strchr(rival->name, ' ');
        if (space) space = strchr(space + 1, ' ');
        if (space) *space = 0;
    } else if (mkl_version) {
        char text[200] = "";
        mkl_version(text, (int)sizeof text - 1);
        char *version = strstr(text, "Version ");
        snprintf(rival->name, sizeof rival->name, "MKL %.16s", version ? version + 8 : "");
        char *space = strchr(rival->name + 4, ' ');
        if (space) *space = 0;
    } else {
        snprintf(rival->name, sizeof rival->name, "a BLAS without a name");
    }
}

bool bench_rival_open(bench_rival *rival, const char *path) {
    static const char *const known[] = {"libopenblas.so.0", "libopenblas.so", "libmkl_rt.so.2", "libmkl_rt.so"};
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    for (size_t i = 0; !path && !library && i < sizeof known / sizeof *known; i++)
        library = dlopen(known[i], RTLD_NOW | RTLD_LOCAL);
    memset(rival, 0, sizeof *rival);
    if (!library) return false;
    *(void **)&rival->sgemm = symbol(library, "cblas_sgemm");
    *(void **)&rival->dgemm = symbol(library, "cblas_dgemm");
    *(void **)&rival->set_threads = symbol(library, "openblas_set_num_threads");
    if (!rival->set_threads) *(void **)&rival->set_threads = symbol(library, "MKL_Set_Num_Threads");
    name_rival(rival, library);
    return rival->sgemm && rival->dgemm && rival->set_threads;
}

void bench_rival_gemm(const bench_rival *rival, sat_dtype t, int64_t m, int64_t n, int64_t k, const void *a,
                      const void *b, void *c) {
    if (t == SAT_F64)
        rival->dgemm(ROW_MAJOR, NO_TRANSPOSE, NO_TRANSPOSE, (int)m, (int)n, (int)k, 1.0, a, (int)k, b, (int)n, 0.0, c,
                     (int)n);
    else
        rival->sgemm(ROW_MAJOR, NO_TRANSPOSE, NO_TRANSPOSE, (int)m, (int)n, (int)k, 1.0f, a, (int)k, b, (int)n, 0.0f, c,
                     (int)n);
}
