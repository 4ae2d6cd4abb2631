/* What the system lets this process have: memory, by its control groups and resource limits. */
#ifndef SAT_LIMITS_H
#define SAT_LIMITS_H

#include <stddef.h>

typedef struct sat_memory {
    size_t total; /* the machine's, or the smallest limit on it */
    size_t left;  /* what may still be taken before the system is out of it, or a limit is reached */
} sat_memory;

/* `root` stands before every path that is read: "", and a folder of made-up files in tests. */
sat_memory sat_memory_now(const char *root);

#endif
