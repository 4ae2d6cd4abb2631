// The finder of official libraries; see library.h.

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libs/library.h"
#include "variant.h"

static const char *environment(const char *name) {
    const char *value = sat_environment(name);
    return value && value[0] ? value : NULL;
}

/* ---- one file ---- */

static void note(const char *path, const char *why) {
    char text[512];
    snprintf(text, sizeof text, "%.200s is not loaded: %.200s", path, why);
    sat_refusal_note(text);
}

/* The loader must resolve all of it now, or a broken file would end the process when it is first called. */
static void *open_file(const char *path) {
    char why[256];
    if (sat_path_safe(path, true, why, sizeof why)) return dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (errno == EPERM) note(path, why);
    return NULL;
}

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

/* ---- the loader's own search ---- */

#if defined(__GLIBC__)
/* Where the loader looks for a name is the user's and the administrator's to say (LD_LIBRARY_PATH, ld.so.conf), but
 * not where everybody may put a file, and not the working directory, which an empty entry means. */
static bool loader_is_safe(const char *name) {
    static const char here = 0;
    Dl_info info;
    struct link_map *map = NULL;
    Dl_serinfo head, *list;
    bool safe = true;
    if (!dladdr1(&here, &info, (void **)&map, RTLD_DL_LINKMAP) || dlinfo(map, RTLD_DI_SERINFOSIZE, &head)) return true;
    if (!(list = malloc(head.dls_size))) return false;
    if (!dlinfo(map, RTLD_DI_SERINFOSIZE, list) && !dlinfo(map, RTLD_DI_SERINFO, list))
        for (unsigned i = 0; i < list->dls_cnt && safe; i++) {
            char path[PATH_MAX], why[256];
            const char *folder = list->dls_serpath[i].dls_name;
            int length = snprintf(path, sizeof path, "%s/%s", folder[0] ? folder : ".", name);
            if (length < 0 || (size_t)length >= sizeof path || access(path, F_OK) != 0) continue;
            safe = sat_path_safe(path, false, why, sizeof why);
            if (!safe) note(path, why);
        }
    free(list);
    return safe;
}
#else
static bool loader_is_safe(const char *name) { return (void)name, true; }
#endif

static void *open_by_name(const char *const *names) {
    void *library = NULL;
    for (; *names && !library; names++)
        if (loader_is_safe(*names)) library = dlopen(*names, RTLD_NOW | RTLD_LOCAL);
    return library;
}

/* ---- the wheel and the environment that this library belongs to ---- */

/* Takes the last name off a path; NULL where nothing would be left. */
static char *cut(char *path) {
    char *slash = strrchr(path, '/');
    if (!slash || slash == path) return NULL;
    *slash = 0;
    return slash + 1;
}

/* <prefix>/bin/program: an environment's interpreter, or a program installed with its libraries. */
static bool program_prefix(char *path, size_t capacity) {
    ssize_t length = readlink("/proc/self/exe", path, capacity - 1);
    if (length <= 0) return false;
    path[length] = 0;
    const char *program = cut(path), *folder = program ? cut(path) : NULL;
    return folder && strcmp(folder, "bin") == 0;
}

/* The folder of this library's file. */
static bool this_folder(char *path, size_t capacity) {
    static const char here = 0;
    Dl_info info;
    if (!dladdr(&here, &info) || !info.dli_fname || info.dli_fname[0] != '/') return false;
    if (strlen(info.dli_fname) >= capacity) return false;
    strcpy(path, info.dli_fname);
    return cut(path) != NULL;
}

/* Installed as a wheel it is in <packages>/sparse_autotune, beside other packages. */
static bool packages_folder(char *path, size_t capacity) {
    const char *package = this_folder(path, capacity) ? cut(path) : NULL;
    return package && strcmp(package, "sparse_autotune") == 0;
}

/* <prefix>/lib/python3.x/site-packages; pip puts shared libraries into lib/ of the same prefix. */
static bool packages_prefix(char *path, size_t capacity) {
    const char *packages = packages_folder(path, capacity) ? cut(path) : NULL;
    const char *python = packages ? cut(path) : NULL, *lib = python ? cut(path) : NULL;
    return lib && strncmp(python, "python3", 7) == 0 && (strcmp(lib, "lib") == 0 || strcmp(lib, "lib64") == 0);
}

static void *open_beside_this(const char *const *names) {
    char path[PATH_MAX];
    if (packages_prefix(path, sizeof path)) return open_in(path, "/lib", names, NULL);
    const char *last = this_folder(path, sizeof path) ? strrchr(path, '/') : NULL; /* conda's <prefix>/lib */
    return last && strcmp(last, "/lib") == 0 ? open_in(path, "", names, NULL) : NULL;
}

void *sat_library_open(const char *env, const char *const *names) {
    const char *forced = environment(env);
    if (forced) return forced[0] == '/' ? open_file(forced) : NULL;
    char prefix[PATH_MAX];
    void *library = open_by_name(names);
    if (!library) library = open_in(environment("CONDA_PREFIX"), "/lib", names, NULL);
    if (!library) library = open_in(environment("VIRTUAL_ENV"), "/lib", names, NULL);
    if (!library) library = open_beside_this(names);
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
    if (!library && program_prefix(path, sizeof path)) library = open_below_prefix(path, l);
    const char *home = environment("HOME");
    if (!library && home && (size_t)snprintf(path, sizeof path, "%s/.local", home) < sizeof path)
        library = open_below_prefix(path, l);
    return library ? library : open_below_prefix("/usr/local", l);
}

/* A library that the process has loaded, or NULL. */
static void *loaded(const char *const *names) {
    void *library = NULL;
    for (; names && *names && !library; names++) library = dlopen(*names, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    return library;
}

/* From the folder of a library that is loaded. */
static void *open_beside(const sat_cuda_library *l) {
    char path[PATH_MAX];
    struct link_map *map = NULL;
    void *other = loaded(l->beside), *library = NULL;
    if (other && !dlinfo(other, RTLD_DI_LINKMAP, &map) && strlen(map->l_name) < sizeof path) {
        strcpy(path, map->l_name);
        if (cut(path)) library = open_in(path, "", l->names, l->needs);
    }
    if (other) dlclose(other); /* gives back what loaded() took */
    return library;
}

void *sat_library_open_cuda(const sat_cuda_library *l) {
    char packages[PATH_MAX];
    const char *forced = environment(l->env);
    if (forced) return forced[0] == '/' ? open_file(forced) : NULL;
    void *library = loaded(l->names);
    if (!library) library = open_beside(l);
    if (!library && packages_folder(packages, sizeof packages)) library = open_package(packages, l);
    if (!library) library = open_by_name(l->names);
    if (!library) library = open_toolkit(environment("CUDA_HOME"), l);
    if (!library) library = open_toolkit(environment("CUDA_PATH"), l);
    if (!library) library = open_toolkit("/usr/local/cuda", l);
    if (!library) library = open_in(environment("CONDA_PREFIX"), "/lib", l->names, l->needs);
    return library ? library : open_wheel(l);
}

bool sat_library_loaded(const char *const *names) {
    void *library = loaded(names);
    if (library) dlclose(library); /* gives back what loaded() took */
    return library != NULL;
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
