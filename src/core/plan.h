/* What core asks of plans besides the public functions. */
#ifndef SAT_PLAN_H
#define SAT_PLAN_H

#include "base/status.h"

/* By estimate, and only among what takes no memory of the device and prepares nothing. SAT_UNSUPPORTED if that cannot
 * be. Queues nothing and waits for nothing, so it is allowed while a graph is captured. */
sat_status sat_plan_create_without_memory(sat_context *context, const sat_pattern *pattern, const sat_problem *problem,
                                          sat_plan **plan);

/* sat_run with the operands in the order in which variants get them. `indices`: row_ptr and col_idx of this run, or
 * NULL for the pattern's own. */
sat_status sat_plan_launch(sat_plan *plan, void *const *operands, const void *const *indices, void *stream);

#endif
