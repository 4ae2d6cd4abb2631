/* Which variant serves a problem: forced, remembered, raced now, or estimated, as the context's effort allows. */
#ifndef SAT_ANSWER_H
#define SAT_ANSWER_H

#include "core/question.h"
#include "core/tune.h"

typedef struct sat_answer {
    const sat_variant *variant;
    bool cached, tuned, verified;
    bool pattern_verified; /* on this very pattern */
    uint64_t check_id;     /* where not: the number of that check, for sat_memo_checked */
    double tuning_seconds;
    int threads; /* that its runs use at most; 0: all */
} sat_answer;

sat_status sat_answer_find(sat_question *q, sat_answer *answer);
sat_status sat_answer_estimate(sat_question *q, sat_answer *answer); /* nothing is looked up or run */
/* The same among those whose plan takes no memory and prepares nothing: for a call that is captured into a graph. */
sat_status sat_answer_without_memory(sat_question *q, sat_answer *answer);

/* How a race is run for a question. */
typedef struct sat_race_how {
    const char *only; /* NULL: all that fit */
    bool keep;
    bool wary; /* leaves out variants that ended in an error before: they may end this process */
    bool (*progress)(void *user, int done, int total, const char *what);
    void *progress_user;
    const atomic_bool *cancel;
} sat_race_how;

/* Races everything that fits, and remembers it if `keep`. The caller holds the tuning lock. */
sat_status sat_answer_race(const sat_question *q, const sat_race_how *how, sat_outcome *outcome);
/* Checks a variant that serves this pattern already. What is right is known to this process from then on; what is not
 * is remembered, and never serves the key again. The caller holds the tuning lock. */
sat_status sat_answer_check(const sat_question *q, const sat_variant *variant, uint64_t check_id,
                            const sat_race_how *how);
/* Was what the entry knows of this key timed on a busy machine, and is it quiet now? True once a context and key, so
 * that nobody looks, or races, again and again. */
bool sat_answer_again(const sat_question *q, const sat_entry *entry);
double sat_tuning_patience(const sat_context *ctx); /* seconds to wait for another tuner on this device */

#endif
