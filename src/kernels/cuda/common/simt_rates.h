/* Rates of a device's FMA units, for the estimates of kernels without tensor cores. */
#ifndef SAT_SIMT_RATES_H
#define SAT_SIMT_RATES_H

#include "variant.h"

/* Cycles a second of all multiprocessors together, derived from the nominal f32 rate. */
static inline double sat_simt_cycles(const sat_device *d) {
    return d->flop_rate[SAT_F32] / (0.8 * (d->capability == 80 ? 128 : 256));
}

/* Operations a second: two for each of 128 lanes in f32 (64 on sm_80), 64 in f64 on a server's chip (32 on sm_80). */
static inline double sat_simt_rate(const sat_device *d, sat_dtype compute) {
    if (compute != SAT_F64) return sat_simt_cycles(d) * (d->capability == 80 ? 128 : 256);
    double nominal = d->flop_rate[SAT_F64] / 0.8;
    return d->capability == 80 || d->capability >= 90 ? nominal / 2 : nominal; /* there f64 counts tensor cores */
}

static inline double sat_worst(double x, double y, double z) {
    double most = x > y ? x : y;
    return most > z ? most : z;
}

/* The most blocks of one row of op(A): where rows are not split, it may end last. */
static inline double sat_heaviest(const sat_problem *p, const sat_pattern_view *a) {
    return (double)(sat_transposed(p) ? a->max_col : a->max_row);
}

/* Seconds from the request of an operand in L2 or memory to its use, when nothing else runs. */
#define SAT_SIMT_LATENCY 0.4e-6

#endif
