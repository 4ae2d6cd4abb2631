/* Variants from the variants.def files, and user-registered ones. */
#include "core/registry.h"

#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "variant.h"

typedef struct line {
    const char *name;
    const sat_family *family;
    int priority;
    sat_instance instance;
} line;

#define SAT_VARIANT(name, family, priority, dtype, tile_m, tile_n, tile_k, option)                                     \
    extern const sat_family sat_family_##family;
#include "kernels/cpu/variants.def"
#ifdef SAT_HAVE_CUDA
#include "kernels/cuda/variants.def"
#endif
#include "libs/variants.def"
#undef SAT_VARIANT

static const line lines[] = {
#define SAT_VARIANT(name, family, priority, dtype, tile_m, tile_n, tile_k, option)                                     \
    {#name, &sat_family_##family, priority, {dtype, tile_m, tile_n, tile_k, option}},
#include "kernels/cpu/variants.def"
#ifdef SAT_HAVE_CUDA
#include "kernels/cuda/variants.def"
#endif
#include "libs/variants.def"
#undef SAT_VARIANT
};

static sat_variant from_line(const line *l, const char *revision) {
    sat_variant v = sat_variant_of(l->family, l->instance, l->name);
    v.revision = revision, v.priority = l->priority;
    return v;
}

static sat_status append(sat_registry *r, const sat_variant *v) {
    size_t count = atomic_load(&r->count);
    sat_variant *copy = count < SAT_MAX_VARIANTS ? malloc(sizeof *copy) : NULL;
    if (!copy) return sat_fail(SAT_OUT_OF_MEMORY, "variant %s: %zu are registered", v->name, count);
    *copy = *v;
    r->list[count] = copy;
    atomic_store(&r->count, count + 1);
    return SAT_OK;
}

sat_status sat_registry_open(sat_registry *r, sat_backend_kind backend) {
    pthread_mutex_init(&r->lock, NULL);
    atomic_init(&r->count, 0);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        const sat_family *f = lines[i].family;
        if (f->backend != backend) continue;
        const char *revision = f->version ? f->version() : f->revision;
        if (!revision) continue; /* a library that is not on this machine */
        sat_variant v = from_line(&lines[i], revision);
        SAT_TRY(append(r, &v));
    }
    r->built_in = atomic_load(&r->count);
    return SAT_OK;
}

void sat_registry_close(sat_registry *r) {
    size_t count = atomic_load(&r->count);
    for (size_t i = 0; i < count; i++) free(r->list[i]);
    pthread_mutex_destroy(&r->lock);
}

const sat_variant *sat_registry_find(const sat_registry *r, const char *name) {
    size_t count = atomic_load(&r->count);
    for (size_t i = 0; i < count; i++)
        if (strcmp(r->list[i]->name, name) == 0) return r->list[i];
    return NULL;
}

/* Names and revisions go into the cache's lines, so they are printable. */
static bool printable_name(const char *s, size_t limit) {
    size_t n = strlen(s);
    return n > 0 && n < limit && sat_printable(s, n) && !strchr(s, ',');
}

sat_status sat_registry_add(sat_registry *r, const sat_variant *v) {
    if (!v->name) return sat_fail(SAT_NULL_POINTER, "variant: name is NULL");
    if (!printable_name(v->name, 128))
        return sat_fail(SAT_UNSUPPORTED, "variant: name '%s'; expected 1 to 127 printable characters, no ','", v->name);
    if (!v->revision) return sat_fail(SAT_NULL_POINTER, "variant %s: revision is NULL", v->name);
    if (!printable_name(v->revision, 48))
        return sat_fail(SAT_UNSUPPORTED, "variant %s: revision '%s'; expected 1 to 47 printable characters, no ','",
                        v->name, v->revision);
    if (!v->supports) return sat_fail(SAT_NULL_POINTER, "variant %s: supports is NULL", v->name);
    if (!v->estimate) return sat_fail(SAT_NULL_POINTER, "variant %s: estimate is NULL", v->name);
    if (!v->launch) return sat_fail(SAT_NULL_POINTER, "variant %s: launch is NULL", v->name);
    const uint32_t known = SAT_V_REFERENCE | SAT_V_NONDETERMINISTIC | SAT_V_DENSE | SAT_V_LIBRARY | SAT_V_BATCHED |
                           SAT_V_SCRATCH | SAT_V_DYNAMIC;
    if (v->flags & ~known)
        return sat_fail(SAT_BAD_ENUM, "variant %s: flags is 0x%x; bits beyond 0x%x are unknown", v->name, v->flags,
                        known);
    pthread_mutex_lock(&r->lock);
    sat_status status = sat_registry_find(r, v->name)
                            ? sat_fail(SAT_DUPLICATE, "variant %s is registered already", v->name)
                            : append(r, v);
    pthread_mutex_unlock(&r->lock);
    return status;
}

/* ---- trust ---- */

/* Names of variants that this process found wrong; built-in ones have the same name in all registries. Append-only. */
static _Atomic(const char *) wrong[SAT_MAX_VARIANTS];
static atomic_size_t wrong_count;

static bool known_wrong(const sat_variant *v) {
    size_t count = sat_min((int64_t)atomic_load(&wrong_count), SAT_MAX_VARIANTS);
    for (size_t i = 0; i < count; i++)
        if (atomic_load(&wrong[i]) == v->name) return true;
    return false;
}

static bool built_in(const sat_registry *r, const sat_variant *v) {
    for (size_t i = 0; i < r->built_in; i++)
        if (r->list[i] == v) return true;
    return false;
}

void sat_registry_distrust(const sat_registry *r, const sat_variant *v) {
    if (!built_in(r, v) || (v->flags & SAT_V_REFERENCE) || known_wrong(v)) return;
    size_t at = atomic_fetch_add(&wrong_count, 1);
    if (at < SAT_MAX_VARIANTS) atomic_store(&wrong[at], v->name);
}

bool sat_registry_trusted(const sat_registry *r, const sat_variant *v) {
    return built_in(r, v) && !(v->flags & SAT_V_LIBRARY) && !known_wrong(v);
}
