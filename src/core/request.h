/* One request for a variant: the normalised problem with its keys, the variants that fit it, and which of them is
 * estimated to be the fastest. */
#ifndef SAT_REQUEST_H
#define SAT_REQUEST_H

#include "core/context.h"
#include "core/pattern.h"

/* Cheap to make; owns no memory. */
typedef struct sat_request {
    sat_context *ctx;
    const sat_pattern *pattern;
    const sat_pattern_view *view; /* with the transposed index, if the problem needs it; checks take their own */
    const sat_op *op;
    sat_device device;
    sat_problem problem;
    /* What races and checks run: the same, with an alpha and a beta that stand for all of their case (core/key.h). */
    sat_problem race_problem;
    size_t memory_limit;       /* for workspace; SAT_LIMIT_UNKNOWN until sat_within_limit needs it */
    unsigned wrong_generation; /* the context's, when this was made */
    char key[SAT_KEY_SIZE], full_key[SAT_KEY_SIZE]; /* core/key.h */
} sat_request;

/* Validates everything that a caller gives. */
sat_status sat_request_make(sat_request *q, sat_context *ctx, const sat_pattern *pattern, const sat_problem *problem);

/* The variants that fit; returns how many. `only`: NULL, or names separated by commas. */
size_t sat_request_find_candidates(const sat_request *q, const char *only, const sat_variant **out);

bool sat_request_affords(sat_request *q, const sat_variant *v); /* its workspace stays within the memory limit */
/* Its plan takes no memory of the device and does no work on it before the first run. */
bool sat_request_takes_no_memory(const sat_request *q, const sat_variant *v);

/* Picks the fastest by estimate among those that may serve unchecked; `without_memory`: and take no memory. */
sat_status sat_request_pick_by_estimate(sat_request *q, bool without_memory, const sat_variant **variant);

#endif
