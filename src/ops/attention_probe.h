/* The two probes of attention on the host: attention_check.c has the one of lines, attention_uniform.c that of equal
 * weights, which is attention's structure probe. */
#ifndef SAT_ATTENTION_PROBE_H
#define SAT_ATTENTION_PROBE_H

#include "ops/op.h"

/* What every expectation begins with. */
typedef struct sat_attention_probe {
    bool uniform;
} sat_attention_probe;

size_t sat_uniform_bytes(const sat_problem *p, const sat_pattern_view *a);
sat_status sat_uniform_expect(const sat_trial *t, void **expectation); /* malloc()ed */
sat_status sat_uniform_compare(const sat_trial *t, const void *expectation, sat_finding *finding);

#endif
