/* Elements of every dtype as doubles and back. The command line's own, so that what `check` expects does not rest on
 * the library's conversions. */
#ifndef CLI_NUMBER_H
#define CLI_NUMBER_H

#include "sparse_autotune.h"

size_t number_size(sat_dtype t);
double number_load(sat_dtype t, const void *p, int64_t i);
void number_store(sat_dtype t, void *p, int64_t i, double x); /* nearest, ties to even; finite x within range */
double number_roundoff(sat_dtype t);                          /* half a unit in the last place of 1 */
double number_tiny(sat_dtype t);                              /* half of the smallest number above 0 */

/* "f32", or "f16:f32" where the output differs. Both are the same kind of names as the library's. */
bool dtype_parse(const char *text, sat_dtype *a, sat_dtype *c);
const char *dtype_name(sat_dtype t);
const char *dtype_pair_name(sat_dtype a, sat_dtype c);

#endif
