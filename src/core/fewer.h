/* On how many threads does a run take the least time? Starting and joining threads costs microseconds, so that a short
 * run may be faster on fewer of them. */
#ifndef SAT_FEWER_H
#define SAT_FEWER_H

#include "core/runner.h"

/* One timed run; false where it failed. */
typedef bool (*sat_timed_run_fn)(void *user, double *seconds);

enum { SAT_FEWER_ROUNDS = 9 };

typedef struct sat_fewer {
    int threads;                    /* 0: all, as far as could be seen */
    double times[SAT_FEWER_ROUNDS]; /* on these, fastest first */
} sat_fewer;

/* Times a runner on all threads and on a half, a quarter, ... down to one, in turns. Leaves runner->most_threads at
 * what it found. False where a run failed. */
bool sat_fewer_threads(sat_runner *runner, int all, sat_timed_run_fn run, void *user, sat_fewer *found);

#endif
