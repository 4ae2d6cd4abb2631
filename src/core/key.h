/* Formats a problem as text. The key has bucketed sizes and names the problem's cache entry; the full key has all sizes
 * as they are and says what a result was checked on. Both are lines of `name=value` fields, readable and stable. */
#ifndef SAT_KEY_H
#define SAT_KEY_H

#include "base/status.h"

enum { SAT_KEY_SIZE = 512 };

/* Both take a normalised problem. `threads`: those of the host that a run uses; 0 where it uses none. */
void sat_key_format(char key[SAT_KEY_SIZE], const sat_problem *p, const sat_pattern_view *a, sat_measure m,
                    int threads);
void sat_full_key_format(char full_key[SAT_KEY_SIZE], const sat_problem *p, const sat_pattern_view *a);
/* The same problem with an alpha and a beta that stand for all others of their case (0, 1, anything else): what was
 * right with these is right with any. */
sat_problem sat_representative_scalars(const sat_problem *p);

int64_t sat_bucket_size(int64_t x); /* exact up to 8, then four steps an octave */
double sat_bucket_ratio(double x);  /* two steps an octave; 0 stays 0 */

#endif
