/* The one-call form: a plan from the pool, or a new one that is kept there. */
#ifndef SAT_POOL_H
#define SAT_POOL_H

#include "base/status.h"

/* `op` is what the public function does; a problem of another one is refused. */
sat_status sat_pool_call(sat_context *ctx, const sat_pattern *pattern, const sat_problem *problem, sat_operation op,
                         void *const *operands, void *stream);

#endif
