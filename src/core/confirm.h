/* The checks of a race's winner: everything that may change between two runs of a plan is changed once. */
#ifndef SAT_CONFIRM_H
#define SAT_CONFIRM_H

#include "core/runner.h"
#include "core/bench.h"

/* `limit`: bytes for a second runner of the variant. A finding that is not ok says what went wrong; the status is that
 * of the runs. The bench's operands are other ones afterwards. */
sat_status sat_confirm(sat_bench *bench, sat_runner *runner, size_t limit, uint64_t seed, sat_finding *finding);

#endif
