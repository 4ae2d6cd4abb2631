/* Every variant of this build that this device can have, and those a user registered. Append-only, so readers need
 * no lock. */
#ifndef SAT_REGISTRY_H
#define SAT_REGISTRY_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/status.h"

enum { SAT_MAX_VARIANTS = 1024 };

typedef struct sat_registry {
    pthread_mutex_t lock; /* writers only */
    atomic_size_t count;
    size_t built_in; /* the first so many came with the library */
    sat_variant *list[SAT_MAX_VARIANTS];
} sat_registry;

sat_status sat_registry_open(sat_registry *registry, sat_backend_kind backend);
void sat_registry_close(sat_registry *registry);
sat_status sat_registry_add(sat_registry *registry, const sat_variant *variant);
const sat_variant *sat_registry_find(const sat_registry *registry, const char *name); /* NULL if unknown */
/* May it serve before any check on this machine? Built in, our own code, and never found wrong by this process. */
bool sat_registry_trusted(const sat_registry *registry, const sat_variant *variant);
/* It was found wrong on some problem: from now on it serves nothing unchecked, in any context of this process. */
void sat_registry_distrust(const sat_registry *registry, const sat_variant *variant);

#endif
