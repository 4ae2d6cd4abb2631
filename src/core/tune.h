/* One race: candidates, verification, timing, choice. */
#ifndef SAT_TUNE_H
#define SAT_TUNE_H

#include "core/choose.h"
#include "core/context.h"

typedef struct sat_tuning {
    sat_context *ctx;
    const sat_device *device;
    const sat_problem *problem;           /* normalised */
    const sat_pattern_view *pattern;      /* with the transposed index */
    const sat_variant *const *candidates; /* all fit */
    size_t count;
    bool exhaustive; /* no variant is skipped or dropped early */
    double budget_seconds;
    bool (*progress)(void *user, int done, int total, const char *what);
    void *progress_user;
    const atomic_bool *cancel; /* may be NULL */
} sat_tuning;

typedef struct sat_outcome {
    sat_record *results; /* as sat_choose_sort orders them, without what a cache adds; free() */
    size_t count;
    double seconds;
    size_t peak_bytes;
    bool noisy; /* other work disturbed the timing */
} sat_outcome;

/* Fails where a race cannot take place or go on (memory, cancelled): a candidate's failure is a result. But where a
 * candidate leaves the device unusable, the race ends and fails, and that candidate is its one result. */
sat_status sat_tune_race(const sat_tuning *t, sat_outcome *outcome);
/* Checks one variant as a winner is checked, by parts 1 and 3 of a race, and times nothing: the verdict is in *result;
 * 0 where there is none. Fails as a race does. */
sat_status sat_tune_verify(const sat_tuning *t, const sat_variant *v, sat_record *result);

#endif
