/* Trials of a race's candidates: one is opened, run on the race's bench, timed and checked. A candidate that fails gets
 * its verdict here and is out of the race. Which trials there are, and in which order, is tune.c's. */
#ifndef SAT_TRIAL_H
#define SAT_TRIAL_H

#include "core/bench.h"
#include "core/noise.h"
#include "core/runner.h"
#include "core/tune.h"

enum { SAT_MOST_ROUNDS = 400 }; /* of timing */

typedef struct sat_candidate {
    sat_record result;
    sat_runner runner;
    bool open;            /* the runner is */
    bool racing;          /* it is still run and timed. One that is not may yet win, by its verdict and its times */
    bool confirmed;       /* right under every change that may come between runs */
    double estimate;      /* seconds */
    double first_seconds; /* of the run that was verified, or of a repetition */
    double times[SAT_MOST_ROUNDS];
    int runs;
} sat_candidate;

typedef struct sat_trials {
    const sat_tuning *t;
    sat_bench bench;
    sat_candidate *list;
    size_t count;
    bool has_reals;                    /* the bench has random reals, and what a right result of them is */
    const sat_candidate *broke_device; /* left the device unusable */
    sat_scratch scratch;
    size_t limit, held, peak; /* held: without the scratch */
    uint64_t random;
    /* What tune.c keeps of the race. */
    double start;
    sat_noise noise; /* while runs were timed */
    int done, total;
    bool stop_asked; /* the caller's progress function returned false */
} sat_trials;

/* A verdict, which ends the candidate's race; and the verdict of a status that is no success. After a candidate has
 * broken the device every run fails. The others are not run, so that none is blamed for it. */
void sat_trial_judge(sat_candidate *c, sat_verdict verdict, const char *message);
void sat_trial_fail(sat_trials *r, sat_candidate *c, sat_status status);

/* False, here and below: the candidate failed, and has its verdict. */
bool sat_trial_open(sat_trials *r, sat_candidate *c);
void sat_trial_close(sat_trials *r, sat_candidate *c);

uint64_t sat_trials_next_random(sat_trials *r);
/* New operands for all candidates. The second: random reals, unless the bench has them already. */
sat_status sat_trials_fill(sat_trials *r, sat_probe probe, int fill_case);
sat_status sat_trials_fill_reals(sat_trials *r);

/* Resets the output, flushes if cold, runs and times. */
bool sat_trial_run(sat_trials *r, sat_candidate *c, int repeat, double *seconds);
/* A run without timing: garbage in the workspace, no flush of the cache. */
bool sat_trial_run_untimed(sat_trials *r, sat_candidate *c);
/* Garbage into a workspace that need not keep anything between runs. */
bool sat_trial_spoil_workspace(sat_trials *r, sat_candidate *c);
/* Is what the last run left in the output right? */
bool sat_trial_check(sat_trials *r, sat_candidate *c);

/* Checks a candidate on random reals. One that calls itself deterministic must give the same bits twice; the second
 * time other work takes part of the device, so that a result that depends on timing differs. */
bool sat_trial_check_precision(sat_trials *r, sat_candidate *c);
/* Checks a candidate under every change that may come between runs (confirm.h). Where one of these checks has no
 * memory, the candidate has failed: nobody knows that it is right. */
void sat_trial_check_changes(sat_trials *r, sat_candidate *c);

#endif
