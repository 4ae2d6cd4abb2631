/* What a right result is, and how far from it rounding may lead: double precision, written from the definition. */
#ifndef CLI_CHECK_REFERENCE_H
#define CLI_CHECK_REFERENCE_H

#include "check_data.h"

/* Fills `expected` and `bound` of the output from the operands as they are now. False without memory. */
bool reference_compute(check_data *d, const check_case *c);

double reference_activate(sat_activation f, double x);

#endif
