/* What the host checks share: rounding units, the random signs of their probes, and loads in double precision. */
#ifndef SAT_CHECK_H
#define SAT_CHECK_H

#include <stdio.h>

#include "ops/op.h"
#include "variant.h"

enum { SAT_PANEL = 64 }; /* columns or rows that one probe sums over */

/* Half the distance between neighbours, relative: what one rounding may lose. */
SAT_BOTH static inline double sat_unit(sat_dtype t) {
    switch (t) {
    case SAT_F64: return 0x1p-53;
    case SAT_F32: return 0x1p-24;
    case SAT_F16: return 0x1p-11;
    default: return 0x1p-8;
    }
}

/* Absolute: below the smallest normal number rounding is no longer relative. */
SAT_BOTH static inline double sat_tiny(sat_dtype t) {
    switch (t) {
    case SAT_F64: return 0x1p-1074;
    case SAT_F32: return 0x1p-126; /* a unit that flushes subnormals to zero is still right */
    case SAT_F16: return 0x1p-25;
    default: return 0x1p-126;
    }
}

/* What `depth` products summed in any order may lose, relative to the sum of their magnitudes. The four: alpha, beta
 * times C, bias, and the conversion of alpha to the compute type. TF32 rounds both inputs to 11 bits first. */
SAT_BOTH static inline double sat_accumulated(const sat_problem *p, int64_t depth) {
    double loss = (double)(depth + 4) * sat_unit(p->compute_dtype);
    if ((p->flags & SAT_ALLOW_TF32) && p->a_dtype == SAT_F32) loss += 2 * 0x1p-11;
    return loss;
}

SAT_BOTH static inline uint64_t sat_mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* One in four is negative, so that a probe over operands of one sign does not cancel what it looks for. */
SAT_BOTH static inline double sat_sign(uint64_t seed, int64_t i) { return sat_mix(seed + (uint64_t)i) & 3 ? 1 : -1; }

SAT_BOTH static inline int64_t sat_panels(int64_t n) { return (n + SAT_PANEL - 1) / SAT_PANEL; }

/* What line i of n weighs in its panel: a sign, or where lines are sampled 1 for the one that is and 0 for others. */
SAT_BOTH static inline double sat_weight(sat_probe probe, uint64_t seed, int64_t i, int64_t n) {
    if (probe == SAT_PROBE_PANELS) return sat_sign(seed, i);
    int64_t panel = i / SAT_PANEL, first = panel * SAT_PANEL, count = sat_min(SAT_PANEL, n - first);
    return i - first == (int64_t)(sat_mix(seed + (uint64_t)panel) % (uint64_t)count) ? 1 : 0;
}

/* What rounding may do to sums of magnitude `scale`, `depth` products in each, of which `elements` show `shown`. */
SAT_BOTH static inline double sat_allowance(const sat_problem *p, int64_t depth, double scale, double shown,
                                            double elements) {
    double loss = sat_accumulated(p, depth) * scale;
    /* An activation's slope stays below 1.13, and its own evaluation is good for a few units. */
    if (p->activation != SAT_ACT_NONE) loss = 1.13 * loss + 16 * sat_unit(p->compute_dtype) * scale;
    return loss + sat_unit(p->c_dtype) * shown * 1.001 + elements * sat_tiny(p->c_dtype);
}

void sat_load_row(double *to, sat_dtype t, const void *from, int64_t start, int64_t stride, int64_t count);
void sat_axpy(double *y, const double *x, double a, int64_t n);                       /* y += a*x */
void sat_axpy2(double *y, double *z, const double *x, double a, double b, int64_t n); /* y += a*x, z += b*|x| */
double sat_dot(const double *x, const double *y, int64_t n);

/* Notes a probe's outcome: `got` against `want`, which may differ by `bound`; `scale` is what was summed. */
static inline bool sat_judge(sat_finding *f, double got, double want, double bound, double scale) {
    double difference = fabs(got - want);
    if (scale > 0 && difference / scale > f->error) f->error = difference / scale;
    return difference <= bound; /* false for NaN */
}

#endif
