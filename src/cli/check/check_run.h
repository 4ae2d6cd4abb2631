/* Runs cases of `check`: one case on one variant, and the loop over all of them. */
#ifndef CLI_CHECK_RUN_H
#define CLI_CHECK_RUN_H

#include "../setup.h"
#include "check_data.h"

/* Two contexts, since results must not depend on the number of threads; and one on the CPU, to ask what a variant
 * takes.
 */
typedef struct checker {
    sat_context *many, *one, *host;
    check_data data;
    bool tuned;    /* the library tunes each case and its choice is run, whatever variant the case was drawn for */
    bool by_race;  /* a case is a race of its variant alone: the library's own check is what verifies */
    int64_t sides; /* of the cases; 0: mostly small ones */
    int report_fd; /* the worker's: reports what it is about to run, in case it does not come back; -1: none */
} checker;

bool checker_open(checker *k, const setup *s, bool tuned, bool by_race); /* prints what went wrong */
void checker_close(checker *k);

typedef enum case_end { CASE_RIGHT = 0, CASE_WRONG = 1, CASE_NOT_TAKEN = 2 } case_end;

/* `message` reports what was wrong, and with which problem. */
case_end checker_run(checker *k, const sat_variant *v, uint64_t seed, int64_t number, char *message, size_t capacity);

#endif
