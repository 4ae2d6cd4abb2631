/* Trials: each candidate of a race first runs in a process of its own. Those that crash, hang or are wrong there stay
 * out of the race and are reported. */
#ifndef CLI_TRIAL_H
#define CLI_TRIAL_H

#include "race_show.h"
#include "setup.h"

/* Built in; and the references, which are slow, so that a trial would take long, and need none. */
enum { CANDIDATE_BUILT_IN = -1, CANDIDATE_TRUSTED = -2 };

typedef struct candidate {
    char name[128];
    int plugin; /* its place among the plugins, or one of the above */
    bool in;    /* takes part in the race */
} candidate;

typedef struct trials {
    candidate list[EXCLUDED_MOST];
    int count;
    excluded out[EXCLUDED_MOST];
    int out_count;
} trials;

typedef struct trial_request {
    const char *command;
    int argc; /* the words of the race, as given */
    char **argv;
    int64_t block_rows, block_cols; /* the blocking at hand */
    bool everyone;                  /* try the built-in ones too */
    const char *only;               /* NULL, or the names asked for */
    double limit_seconds;
} trial_request;

/* An exit code; what is not EXIT_DONE was printed (a plugin that does not load, a name that no variant has). */
int trials_run(const trial_request *q, trials *t);

/* The other side: this process is one trial. `name` "" lists the candidates. */
int trial_child(const setup *s, spec *problem, const char *name, int report_fd);

#endif
