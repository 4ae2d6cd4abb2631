/* What a right result is, and how far from it rounding may lead: double precision, written from the definition. */
#ifndef CLI_CHECK_REFERENCE_H
#define CLI_CHECK_REFERENCE_H

#include "check_data.h"

/* Fills `expected` and `bound` of the output from the operands as they are now. False without memory. */
bool reference_compute(check_data *d, const check_case *c);

/* From sums to what may be stored, and how far from it rounding may lead. */
typedef struct reference_sum {
    double sum, magnitude, depth; /* of so many products */
    double before, bias;          /* what the output held, where that is read; 0: none */
} reference_sum;
void reference_finish(const sat_problem *p, const reference_sum *s, double *expected, double *bound);

sat_activation activation_of(const sat_problem *p);
double reference_activate(sat_activation f, double x);

#endif
