/* What the two operations on groups share with their check. */
#ifndef SAT_OPS_GROUPED_H
#define SAT_OPS_GROUPED_H

#include "groups.h"
#include "ops/check.h"

/* Beside SAT_FILL_LARGE and SAT_FILL_TINY: offsets with a fault. One is beyond the last row, or below the one before
 * it, or the first is not 0. */
enum { SAT_FILL_BEYOND = 4, SAT_FILL_BELOW, SAT_FILL_FIRST };

/* A matmul with the same scalars, dtypes, activation and depth (k), as the arithmetic of the checks wants to see it: B
 * repeats its elements where X or W does. */
#ifdef __cplusplus
extern "C" {
#endif
sat_problem sat_grouped_like_matmul(const sat_problem *p);
#ifdef __cplusplus
}
#endif

#endif
