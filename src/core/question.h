/* A problem on its way to an answer, the variants that fit it, and which of them is estimated to be the fastest. */
#ifndef SAT_QUESTION_H
#define SAT_QUESTION_H

#include "core/context.h"
#include "core/pattern.h"

/* A problem as core handles it: normalised, with its spellings. Cheap to make; holds no memory. */
typedef struct sat_question {
    sat_context *ctx;
    const sat_pattern *pattern;
    const sat_pattern_view *view; /* with the transposed index, if the problem needs it; checks take their own */
    const sat_op *op;
    sat_device device;
    sat_problem problem;
    sat_problem
        race_problem;    /* what races and checks run: the same, with alpha and beta that no operand overflows from */
    size_t memory_limit; /* for workspace; SAT_USUAL_LIMIT until somebody asks */
    unsigned wrong_generation; /* the context's, when this was made */
    char key[SAT_KEY_SIZE], exact[SAT_KEY_SIZE];
} sat_question;

/* Validates everything that a caller gives. */
sat_status sat_question_make(sat_question *q, sat_context *ctx, const sat_pattern *pattern, const sat_problem *problem);

/* The variants that fit; returns how many. `only`: NULL, or names separated by commas. */
size_t sat_question_candidates(const sat_question *q, const char *only, const sat_variant **out);

bool sat_question_affords(sat_question *q, const sat_variant *v); /* its workspace stays within the memory limit */
/* A variant that takes no memory of the device and does no work on it before its first run. */
bool sat_question_without_memory(const sat_question *q, const sat_variant *v);

/* The fastest by estimate among those that may serve unchecked; `without_memory`: and take no memory. */
sat_status sat_question_estimate(sat_question *q, bool without_memory, const sat_variant **variant);

#endif
