/* Selects a request's variant: forced, cached, raced now, or estimated, as the context's effort allows. */
#ifndef SAT_SELECT_H
#define SAT_SELECT_H

#include "core/request.h"
#include "core/tune.h"

typedef struct sat_selection {
    const sat_variant *variant;
    bool cached, tuned, verified;
    bool pattern_verified; /* also on this very pattern */
    uint64_t check_id;     /* where not: names that check for sat_memo_checked */
    double tuning_seconds;
    int threads; /* its runs use at most so many; 0: all */
} sat_selection;

sat_status sat_select_variant(sat_request *q, sat_selection *selection);
sat_status sat_select_by_estimate(sat_request *q, sat_selection *selection); /* nothing is looked up or run */
/* The same where what was selected cannot be: `why`, with its message, where choices are pinned. */
sat_status sat_select_instead(sat_request *q, sat_status why, sat_selection *selection);
/* The same among those whose plan takes no memory and prepares nothing: for a call that is captured into a graph. */
sat_status sat_select_without_memory(sat_request *q, sat_selection *selection);

/* How a race, or a check, is run for a request. */
typedef struct sat_race_how {
    const char *only; /* names separated by commas; NULL: all that fit */
    bool store;       /* writes the results to the cache */
    bool skip_failed; /* leaves out variants that ended in an error before: they may end this process */
    bool (*progress)(void *user, int done, int total, const char *what);
    void *progress_user;
    const atomic_bool *cancel;
} sat_race_how;

/* Races under the device's tuning lock: all variants that fit, or, where `best` served so far, those without a result
 * and it. What another process has raced meanwhile is selected instead. `retune`: the key may be raced once more
 * (sat_choose_needs_retune). */
sat_status sat_select_tune(sat_request *q, const sat_variant *best, bool retune, const sat_race_how *how,
                           sat_selection *selection);
/* Races all variants that fit. The caller holds the tuning lock. */
sat_status sat_select_run_race(const sat_request *q, const sat_race_how *how, sat_outcome *outcome);
/* Checks a variant that serves this pattern already. A right result is noted in this process only; a wrong one is
 * stored in the cache, and the variant never serves the key again. Nothing is timed, so no tuning lock is needed; the
 * background thread holds it all the same, so that its check does not disturb a race of another process. */
sat_status sat_select_check_variant(const sat_request *q, const sat_variant *variant, uint64_t check_id,
                                    const sat_race_how *how);
/* Variants that fit and of which the entry has no race result at their present revision; returns how many. Neither the
 * reference counts, nor what had no memory in a race of this context. `out` has room for SAT_MAX_VARIANTS. */
size_t sat_select_find_unraced(const sat_request *q, const sat_entry *entry, const sat_variant **out);
/* Does the key need a new race (sat_choose_needs_retune), and is the machine quiet now? True at most once for a context
 * and key, so that a noisy machine is not asked, or raced on, again and again. */
bool sat_select_should_retune(const sat_request *q, const sat_entry *entry);
double sat_tuning_lock_timeout(const sat_context *ctx); /* seconds to wait for another tuner of this device */

#endif
