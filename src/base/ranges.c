/* Named ranges for profilers, by NVTX's plain functions, which libnvtx3interop (CUDA 13) and libnvToolsExt (before)
 * have. */
#include "base/ranges.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>

#include "base/trust.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
sat_ranges sat_profiler;

static const char *const names[] = {"libnvtx3interop.so.1", "libnvToolsExt.so.1"};
enum { NAMES = sizeof names / sizeof *names };

static void *open_safely(const char *path) {
    char why[256], text[512];
    if (sat_path_safe(path, true, why, sizeof why)) return dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (errno != EPERM) return NULL;
    snprintf(text, sizeof text, "%.200s is not loaded: %.200s", path, why);
    sat_refusal_note(text);
    return NULL;
}

/* One that the program has loaded serves us too; else the toolkit's. */
static void *find(void) {
    void *library = NULL;
    char path[128];
    for (int i = 0; i < NAMES && !library; i++) library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    for (int i = 0; i < NAMES && !library; i++) {
        snprintf(path, sizeof path, "/usr/local/cuda/lib64/%s", names[i]);
        library = open_safely(path);
    }
    return library;
}

static void load(void) {
    const char *named = sat_environment("SPARSE_AUTOTUNE_NVTX"), *profiler = sat_environment("NVTX_INJECTION64_PATH");
    void *library = named && *named ? open_safely(named) : profiler && *profiler ? find() : NULL;
    if (!library) return;
    sat_ranges found = {0};
    *(void **)&found.push = dlsym(library, "nvtxRangePushA");
    *(void **)&found.pop = dlsym(library, "nvtxRangePop");
    if (found.push && found.pop) sat_profiler = found; /* stays open: the program may end in a range */
}

void sat_ranges_open(void) { pthread_once(&once, load); }
