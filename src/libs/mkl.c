// MKL, found at run time. Its runtime library picks an interface and a threading layer at the first call, and ends the
// process when a file that these need is missing; so this looks before it calls. The Intel threading layer gives wrong
// results beside another OpenMP runtime: GNU's is chosen where this process runs on libgomp, else the sequential one.
// Where the program itself has MKL loaded already its choice of layers is not ours to change, and MKL stays out.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libs/library.h"
#include "libs/mkl.h"
#include "libs/room.h"

enum { LP64 = 0, ILP64 = 1, SEQUENTIAL = 1, GNU = 3 }; /* as mkl_service.h numbers the layers */

static const char *const names[] = {"libmkl_rt.so.3", "libmkl_rt.so.2", "libmkl_rt.so.1", "libmkl_rt.so", NULL};
static const char *const gomp[] = {"libgomp.so.1", NULL};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static sat_mkl mkl;
static bool usable;

/* The other files have the runtime library's own suffix and are in the same folder. */
static bool is_complete(void *library, const char *threading) {
    const char *parts[] = {"core", "intel_lp64", "def", threading};
    char path[PATH_MAX], part[PATH_MAX];
    if (!sat_library_path(library, "MKL_Get_Version_String", path, sizeof path)) return false;
    char *name = strstr(path, "/libmkl_rt.so");
    if (!name) return false;
    *name = 0; /* now path is the folder, and the suffix follows "/libmkl_rt" */
    const char *suffix = name + strlen("/libmkl_rt");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        int length = snprintf(part, sizeof part, "%s/libmkl_%s%s", path, parts[i], suffix);
        if (length < 0 || (size_t)length >= sizeof part || access(part, R_OK) != 0) return false;
    }
    return true;
}

/* MKL_THREADING_LAYER, where the user set it, must name what was going to be chosen anyway. */
static bool user_agrees(int layer) {
    const char *wish = getenv("MKL_THREADING_LAYER"), *interface = getenv("MKL_INTERFACE_LAYER");
    if (interface && interface[0] && strncmp(interface, "LP64", 4) != 0) return false;
    return !wish || !wish[0] || strcmp(wish, layer == GNU ? "GNU" : "SEQUENTIAL") == 0;
}

/* MKL takes kernels for the CPU at hand, unless these say otherwise: then it is a version of its own. */
static void name(const char *version) {
    static const char *const choices[] = {"MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "MKL_DEBUG_CPU_TYPE"};
    uint32_t hash = 2166136261u; /* FNV-1a */
    bool chosen = false;
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        const char *value = getenv(choices[i]);
        chosen = chosen || (value && value[0]);
        for (const char *c = value ? value : ""; *c; c++) hash = (hash ^ (unsigned char)*c) * 16777619u;
        hash = (hash ^ '\n') * 16777619u;
    }
    int length = snprintf(mkl.version, sizeof mkl.version - 12, "MKL %.*s", (int)strcspn(version, "- "), version);
    if (chosen && length > 0) snprintf(mkl.version + strlen(mkl.version), 12, " %08x", (unsigned)hash);
}

static void load(void) {
    static const char *const symbols[] = {"MKL_Set_Interface_Layer", "MKL_Set_Threading_Layer",
                                          "MKL_Get_Version_String", "MKL_Set_Num_Threads_Local"};
    void *f[4];
    int layer = sat_library_loaded(gomp) ? GNU : SEQUENTIAL;
    if (sat_library_loaded(names) || !user_agrees(layer) || !sat_room_to_load()) return;
    mkl.library = sat_library_open("SPARSE_AUTOTUNE_MKL", names);
    if (!mkl.library || !sat_library_symbols(mkl.library, symbols, f, 4)) return;
    if (!is_complete(mkl.library, layer == GNU ? "gnu_thread" : "sequential")) return;
    int interface = ((int (*)(int))f[0])(LP64);
    if ((interface != LP64 && interface != ILP64) || ((int (*)(int))f[1])(layer) != layer) return;
    char words[256] = "";
    ((void (*)(char *, int))f[2])(words, sizeof words - 1);
    const char *version = strstr(words, "Version ");
    version = version ? version + strlen("Version ") : "";
    name(version);
    mkl.wide = interface == ILP64;
    mkl.set_threads = (int (*)(int))f[3];
    usable = true;
}

const sat_mkl *sat_mkl_get(void) {
    pthread_once(&once, load);
    return usable ? &mkl : NULL;
}

const char *sat_mkl_version(void) {
    const sat_mkl *m = sat_mkl_get();
    return m ? m->version : NULL;
}
