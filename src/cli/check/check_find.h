/* Finds the cases of `check` that a variant takes. Whether it does is asked on the host, before anything is made on a
 * device: so many draws can be thrown away. */
#ifndef CLI_CHECK_FIND_H
#define CLI_CHECK_FIND_H

#include "check_case.h"

sat_status case_pattern(sat_context *context, const check_case *c, sat_pattern **pattern);

/* The first draw from `*attempt` on that the variant takes on this device; `*attempt` says which. False: none is left.
 * `host` is a context on the CPU. The caller frees the case. */
bool case_find(const sat_variant *v, const sat_device *d, sat_context *host, uint64_t seed, int64_t number,
               int64_t sides, int *attempt, check_case *c);

#endif
