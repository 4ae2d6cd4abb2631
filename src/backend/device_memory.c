/* Distinguishes memory of a CUDA device from memory that the CPU can read, in any build and without a CUDA library: it
 * asks the driver, if something else in the process has loaded it. A process without CUDA pays for a look at a counter.
 */
#define _GNU_SOURCE
#include "backend/backend.h"

#if defined(__linux__)
#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <string.h>

/* cuPointerGetAttribute, and the few of the driver's constants that it takes here. */
typedef int (*attribute_fn)(void *data, int attribute, unsigned long long pointer);
enum { MEMORY_TYPE = 2, IS_MANAGED = 8, TYPE_DEVICE = 2 };

typedef struct search {
    unsigned long long before, adds; /* objects loaded by the last look, and by now */
    bool found;
} search;

static int look_at(struct dl_phdr_info *info, size_t size, void *user) {
    search *s = user;
    (void)size;
    s->adds = info->dlpi_adds;
    if (s->adds == s->before) return 1; /* nothing has come since */
    const char *slash = strrchr(info->dlpi_name, '/'), *name = slash ? slash + 1 : info->dlpi_name;
    s->found = strncmp(name, "libcuda.so", 10) == 0;
    return s->found;
}

static attribute_fn driver(void) {
    static _Atomic(attribute_fn) known;
    static _Atomic(unsigned long long) looked;
    attribute_fn f = atomic_load(&known);
    if (f) return f;
    search s = {.before = atomic_load(&looked)};
    dl_iterate_phdr(look_at, &s);
    if (s.found) {
        void *handle = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY); /* keeps it: what is found stays right */
        if (handle) *(void **)&f = dlsym(handle, "cuPointerGetAttribute");
        atomic_store(&known, f);
    }
    atomic_store(&looked, s.adds);
    return f;
}

bool sat_is_device_memory(const void *pointer) {
    attribute_fn ask = driver();
    unsigned long long at = (unsigned long long)(uintptr_t)pointer;
    int type = 0, managed = 0;
    if (!ask || ask(&type, MEMORY_TYPE, at) != 0 || type != TYPE_DEVICE) return false;
    return ask(&managed, IS_MANAGED, at) != 0 || !managed;
}
#else
bool sat_is_device_memory(const void *pointer) {
    (void)pointer;
    return false;
}
#endif
