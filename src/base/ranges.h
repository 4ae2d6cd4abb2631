/* Named ranges for profilers, by NVIDIA's NVTX: races, plans and the variants that run show by name in Nsight Systems.
 *
 * Only where a profiler is attached (it sets $NVTX_INJECTION64_PATH), or $SPARSE_AUTOTUNE_NVTX names the library by its
 * full path. Otherwise nothing is looked for, and a range costs a look at one flag. */
#ifndef SAT_RANGES_H
#define SAT_RANGES_H

#include <stddef.h>

typedef struct sat_ranges {
    int (*push)(const char *name); /* NULL: no profiler */
    int (*pop)(void);
} sat_ranges;

extern sat_ranges sat_profiler;

/* To be called before the first range; the second time it does nothing. */
void sat_ranges_open(void);

/* A range of this thread, from push to pop. They nest. */
static inline void sat_range_push(const char *name) {
    if (sat_profiler.push) sat_profiler.push(name);
}

static inline void sat_range_pop(void) {
    if (sat_profiler.push) sat_profiler.pop();
}

#endif
