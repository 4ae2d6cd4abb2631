// The finder of official libraries; see library.h.

#define _GNU_SOURCE
#include <dirent.h>
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

/* `needs`: files beside a library to load first, where the loader does not find them by itself; may be NULL. */
static void *open_in(const char *folder, const char *below, const char *const *names, const char *const *needs) {
    char path[PATH_MAX];
    if (!folder || folder[0] != '/') return NULL;
    for (; *names; names++) {
        int length = snprintf(path, sizeof path, "%s%s/%s", folder, below, *names);
        if (length < 0 || (size_t)length >= sizeof path || access(path, R_OK) != 0) continue;
        void *library = open_file(path);
        if (library) return library;
        if (needs && open_in(folder, below, needs, NULL)) library = open_file(path);
        if (library) return library;
    }
    return NULL;
}

/* pip puts shared libraries into lib/ of the prefix whose bin/ holds the interpreter. */
static bool program_prefix(char *path, size_t capacity) {
    ssize_t length = readlink("/proc/self/exe", path, capacity - 1);
    if (length <= 0) return false;
    path[length] = 0;
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(path, '/');
        if (!slash || slash == path) return false;
        *slash = 0;
    }
    return true;
}

static bool this_file(char *path, size_t capacity) {
    static const char here = 0;
    Dl_info info;
    if (!dladdr(&here, &info) || !info.dli_fname || info.dli_fname[0] != '/') return false;
    if (strlen(info.dli_fname) >= capacity) return false;
    strcpy(path, info.dli_fname);
    return true;
}

/* Installed as part of a wheel this library lies below such a lib/ too: lib/python3.x/site-packages/... */
static void *open_above_this(const char *const *names) {
    char path[PATH_MAX];
    if (!this_file(path, sizeof path)) return NULL;
    for (char *slash; (slash = strrchr(path, '/')) && slash != path;) {
        *slash = 0;
        char *last = strrchr(path, '/');
        void *library = last && strcmp(last, "/lib") == 0 ? open_in(path, "", names, NULL) : NULL;
        if (library) return library;
    }
    return NULL;
}

void *sat_library_open(const char *env, const char *const *names) {
    const char *forced = environment(env);
    if (forced) return forced[0] == '/' ? open_file(forced) : NULL;
    void *library = NULL;
    char prefix[PATH_MAX];
    for (const char *const *name = names; *name && !library; name++) library = open_file(*name);
    if (!library) library = open_in(environment("CONDA_PREFIX"), "/lib", names, NULL);
    if (!library) library = open_in(environment("VIRTUAL_ENV"), "/lib", names, NULL);
    if (!library) library = open_above_this(names);
    if (!library && program_prefix(prefix, sizeof prefix)) library = open_in(prefix, "/lib", names, NULL);
    if (!library) library = open_in(environment("HOME"), "/.local/lib", names, NULL);
    return library;
}

/* ---- NVIDIA's libraries: part of a toolkit, or wheels of their own ---- */

static void *open_package(const char *packages, const sat_cuda_library *l) {
    for (const char *const *below = l->packages; *below; below++) {
        void *library = open_in(packages, *below, l->names, l->needs);
        if (library) return library;
    }
    return NULL;
}

/* <prefix>/lib/python3.x/site-packages, for whichever x there is; Debian calls its own dist-packages. */
static void *open_below_prefix(const char *prefix, const sat_cuda_library *l) {
    char path[PATH_MAX];
    void *library = NULL;
    int length = prefix ? snprintf(path, sizeof path, "%s/lib", prefix) : -1;
    if (length < 0 || (size_t)length >= sizeof path || path[0] != '/') return NULL;
    DIR *lib = opendir(path);
    for (struct dirent *entry; lib && !library && (entry = readdir(lib));) {
        if (strncmp(entry->d_name, "python3", 7) != 0) continue;
        static const char *const kinds[] = {"site-packages", "dist-packages"};
        for (int i = 0; i < 2 && !library; i++) {
            length = snprintf(path, sizeof path, "%s/lib/%s/%s", prefix, entry->d_name, kinds[i]);
            if (length > 0 && (size_t)length < sizeof path) library = open_package(path, l);
        }
    }
    if (lib) closedir(lib);
    return library;
}

static void *open_toolkit(const char *root, const sat_cuda_library *l) {
    void *library = open_in(root, "/lib64", l->names, l->needs);
    return library ? library : open_in(root, "/lib", l->names, l->needs);
}

static void *open_wheel(const sat_cuda_library *l) {
    char path[PATH_MAX];
    void *library = open_below_prefix(environment("VIRTUAL_ENV"), l);
    if (!library) library = open_below_prefix(environment("CONDA_PREFIX"), l);
    if (!library && this_file(path, sizeof path))
        for (char *slash; !library && (slash = strrchr(path, '/')) && slash != path;) {
            *slash = 0;
            library = open_package(path, l);
        }
    if (!library && program_prefix(path, sizeof path)) library = open_below_prefix(path, l);
    const char *home = environment("HOME");
    if (!library && home && (size_t)snprintf(path, sizeof path, "%s/.local", home) < sizeof path)
        library = open_below_prefix(path, l);
    return library ? library : open_below_prefix("/usr/local", l);
}

void *sat_library_open_cuda(const sat_cuda_library *l) {
    const char *forced = environment(l->env);
    if (forced) return forced[0] == '/' ? open_file(forced) : NULL;
    void *library = NULL;
    for (const char *const *name = l->names; *name && !library; name++)
        library = dlopen(*name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    for (const char *const *name = l->names; *name && !library; name++) library = open_file(*name);
    if (!library) library = open_toolkit(environment("CUDA_HOME"), l);
    if (!library) library = open_toolkit(environment("CUDA_PATH"), l);
    if (!library) library = open_toolkit("/usr/local/cuda", l);
    if (!library) library = open_in(environment("CONDA_PREFIX"), "/lib", l->names, l->needs);
    return library ? library : open_wheel(l);
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
