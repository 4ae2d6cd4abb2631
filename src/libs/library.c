// The finder of official libraries; see library.h.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libs/library.h"

/* Privileged programs take no advice from their environment. */
static const char *environment(const char *name) {
#if defined(__GLIBC__)
    const char *value = secure_getenv(name);
#else
    const char *value = getenv(name);
#endif
    return value && value[0] ? value : NULL;
}

/* The loader must resolve all of it now, or a broken file would end the process when it is first called. */
static void *open_file(const char *path) { return dlopen(path, RTLD_NOW | RTLD_LOCAL); }

static void *open_in(const char *folder, const char *below, const char *const *names) {
    char path[PATH_MAX];
    if (!folder || folder[0] != '/') return NULL;
    for (; *names; names++) {
        int length = snprintf(path, sizeof path, "%s%s/%s", folder, below, *names);
        if (length < 0 || (size_t)length >= sizeof path || access(path, R_OK) != 0) continue;
        void *library = open_file(path);
        if (library) return library;
    }
    return NULL;
}

/* pip puts shared libraries into lib/ of the prefix whose bin/ holds the interpreter. */
static void *open_beside_program(const char *const *names) {
    char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0) return NULL;
    path[length] = 0;
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(path, '/');
        if (!slash || slash == path) return NULL;
        *slash = 0;
    }
    return open_in(path, "/lib", names);
}

/* Installed as part of a wheel this library lies below such a lib/ too: lib/python3.x/site-packages/... */
static void *open_above_this(const char *const *names) {
    static const char here = 0;
    Dl_info info;
    char path[PATH_MAX];
    if (!dladdr(&here, &info) || !info.dli_fname || info.dli_fname[0] != '/') return NULL;
    if (strlen(info.dli_fname) >= sizeof path) return NULL;
    strcpy(path, info.dli_fname);
    for (char *slash; (slash = strrchr(path, '/')) && slash != path;) {
        *slash = 0;
        char *last = strrchr(path, '/');
        void *library = last && strcmp(last, "/lib") == 0 ? open_in(path, "", names) : NULL;
        if (library) return library;
    }
    return NULL;
}

void *sat_library_open(const char *env, const char *const *names) {
    const char *forced = environment(env);
    if (forced) return forced[0] == '/' ? open_file(forced) : NULL;
    void *library = NULL;
    for (const char *const *name = names; *name && !library; name++) library = open_file(*name);
    if (!library) library = open_in(environment("CONDA_PREFIX"), "/lib", names);
    if (!library) library = open_in(environment("VIRTUAL_ENV"), "/lib", names);
    if (!library) library = open_above_this(names);
    if (!library) library = open_beside_program(names);
    if (!library) library = open_in(environment("HOME"), "/.local/lib", names);
    return library;
}

bool sat_library_loaded(const char *const *names) {
    for (; *names; names++) {
        void *library = dlopen(*names, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
        if (!library) continue;
        dlclose(library); /* gives back what this call took */
        return true;
    }
    return false;
}

bool sat_library_path(void *library, const char *symbol, char *path, size_t capacity) {
    void *address = dlsym(library, symbol);
    Dl_info info;
    if (!address || !dladdr(address, &info) || !info.dli_fname || info.dli_fname[0] != '/') return false;
    if (strlen(info.dli_fname) >= capacity) return false;
    strcpy(path, info.dli_fname);
    return true;
}

bool sat_library_symbols(void *library, const char *const *names, void **functions, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!(functions[i] = dlsym(library, names[i]))) return false;
    return true;
}
