/* What a check of attention is made of, on the host and on a device: which lines of the outputs are worked out, and how
 * far a right result may be from them.
 *
 * A line is one row of an output: query i of head h and batch item b of O, LSE and dQ, key j of dK and dV. Small
 * problems have all of their lines worked out in double precision; of larger ones, in every group of `step` lines, one
 * that the seed chooses. Every element of every line is looked at for NaN, which the poison under it is, and every
 * element of O for being in the range of V.
 *
 * The bounds use that the operands are random. O_x is the sum of P_j*V_jx over keys. Errors in P_j (its rounding to 16
 * bits, that of the score, that of exp) do not depend on the signs of V, so they add up as a random walk does: to
 *     eps * sqrt(sum of P_j^2) * max|V|      times SURE, which one sum in 10^13 goes beyond (Hoeffding),
 * and not to eps * sum of P_j*|V_jx|, under which a dropped block of a long row would hide. What all P_j of a row have
 * in common, and what a truncating conversion does, is relative to O_x itself. Sums of a row in f32 likewise: each
 * partial sum is such a random walk. The gradients are the same with dS in place of P, and Q, K or dO in place of V. */
#ifndef SAT_ATTENTION_CHECK_H
#define SAT_ATTENTION_CHECK_H

#include "attention.h"
#include "ops/check.h"

#define SAT_LINE_STEP 64  /* at most so many lines, of one head, for one that is worked out */
#define SAT_SURE      8.0 /* standard deviations */
#define SAT_WORK      1e9 /* multiply-adds that a host spends on an expectation */

/* The cases of a race's operands. The first two are of the uniform probe, see attention_uniform.h; the others have
 * lines worked out, an eighth as many as random reals have, and are for the winner. */
enum {
    SAT_FILL_NO_KEYS = 0,    /* K is zero */
    SAT_FILL_NO_QUERIES = 1, /* Q is zero */
    SAT_FILL_FAR = 2,        /* scores are so far apart that only the largest counts, and those that are equal to it */
    SAT_FILL_RISING = 3,     /* the largest score grows in every tile, beyond what a kernel may leave unscaled */
    SAT_FILL_FALLING = 4,    /* from the last tile to the first */
    SAT_FILL_REALS = 5       /* random ones */
};

/* The lines of one output. Line (b, h, i) is number (b*heads + h)*groups + i/step, where it is worked out. */
typedef struct sat_lines {
    int operand;
    int64_t heads, rows, cols, step, groups;
    double *value;              /* cols of each line */
    double *wide, *rel, *scale; /* of each line: a right element is within wide + rel*|value|; scale is for reports */
    double most;                /* no element of any line may be larger; 0: any finite one */
} sat_lines;

/* The row that group g, of all groups of an output, has worked out. */
SAT_BOTH static inline int64_t sat_line_row(const sat_lines *l, uint64_t seed, int64_t g) {
    int64_t first = g % l->groups * l->step, count = sat_min(l->step, l->rows - first);
    return first + (int64_t)(sat_mix(seed + (uint64_t)g) % (uint64_t)count);
}

/* Relative errors of one row of scores and weights. `magnitude`: the largest |alpha|*|q|*|k| (norms); `lse`: |LSE|
 * where weights come from it; `depth`: how many are summed. */
typedef struct sat_row_loss {
    double weight; /* of a weight, beside what all of the row share */
    double sum;    /* of a sum over the row */
} sat_row_loss;

SAT_BOTH static inline double sat_low_unit(const sat_problem *p) { /* weights may be rounded as the inputs are */
    return (p->flags & SAT_ALLOW_TF32) && p->a_dtype == SAT_F32 ? 2 * 0x1p-11 : sat_unit(p->a_dtype);
}

SAT_BOTH static inline double sat_dot_loss(const sat_problem *p) { /* of a product over dim, per product of norms */
    return sat_accumulated(p, p->attention.dim);
}

SAT_BOTH static inline double sat_value_loss(const sat_problem *p) { /* the same over the elements of a value */
    return sat_accumulated(p, sat_value_dim(&p->attention));
}

/* What dO*O of a query may be off by. O is given, rounded; a kernel may also sum weights times dO*V, which is that O
 * before it was rounded, as a random walk over the keys. */
SAT_BOTH static inline double sat_delta_loss(const sat_problem *p, double d_norm, double o_norm, double v_norm) {
    double walk = SAT_SURE * sqrt((double)p->n + 1) * sat_unit(p->compute_dtype) * v_norm;
    return d_norm * (o_norm * (sat_unit(p->c_dtype) + sat_value_loss(p)) + walk);
}

/* A score as it is weighed, and by how much a change of s changes it: at most by as much. */
SAT_BOTH static inline double sat_capped(const sat_problem *p, double s) {
    double cap = p->attention.softcap;
    return cap != 0 ? cap * tanh(s / cap) : s;
}

SAT_BOTH static inline double sat_cap_slope(const sat_problem *p, double s) {
    double cap = p->attention.softcap, t = cap != 0 ? tanh(s / cap) : 0;
    return 1 - t * t;
}

/* What that slope may be off by. 1 - t*t is good for a few units of 1; and the slope's own slope is at most 0.77/cap,
 * which an error of the score meets. Scores that are far apart are 0 or so far beyond the cap that it is 0. */
SAT_BOTH static inline double sat_slope_loss(const sat_problem *p, bool far, double magnitude) {
    double u = sat_unit(p->compute_dtype), cap = p->attention.softcap;
    if (cap == 0) return 0;
    return fmin(1.0, 34 * u + (far ? 0 : 0.77 * magnitude * (sat_dot_loss(p) + 2 * u) / cap));
}

/* Scores that are far apart are sums of +-1 times a power of two, and exact but for alpha. A cap lets through no more
 * error than a score has, and tanh itself is good for 8 units of what it gives. */
SAT_BOTH static inline sat_row_loss sat_loss_of(const sat_problem *p, bool far, double magnitude, double lse,
                                                double depth) {
    double u = sat_unit(p->compute_dtype), dots = far ? 0 : magnitude * sat_dot_loss(p);
    sat_row_loss e = {.sum = 2 * (depth + 8) * u}; /* twice: what is rescaled is rounded again */
    double cap = p->attention.softcap;
    if (cap != 0) {
        dots += 8 * fmin(cap, magnitude) * u;
        if (far) magnitude = fmin(cap, magnitude);
    }
    e.weight = sat_low_unit(p) + dots + (magnitude + lse + 8) * u + lse * 0x1p-24;
    return e;
}

/* Where only the largest score of a row counts, O is a row of V, or the mean of `ties` of them; all others weigh
 * e^-40. The weight of that score is whatever exp gives, divided by itself: it loses one unit where it was rounded to
 * 16 bits, and its row of V nothing. Ties may be weighed apart, by LSEs that were rounded as numbers of the size of the
 * score are: 8 such roundings. Their sum is one of random reals, whose partial sums stay below 8*sqrt(ties)*max|V|; an
 * addition loses 2u of one where it is truncated. */
SAT_BOTH static inline double sat_far_bound(const sat_problem *p, double largest, double ties, double v_largest) {
    double several = ties > 1.5 ? 4 * log(ties) + 16 * sqrt(ties) + 8 * fabs(largest) : 0;
    return sat_unit(p->compute_dtype) * (16 + several) * v_largest + sat_tiny(p->c_dtype);
}

/* Where weights are rounded to 16 bits afterwards, an exp that is good for an eighth of their unit is good enough. */
SAT_BOTH static inline double sat_exp_loss(const sat_problem *p) { return sat_low_unit(p) / 8; }

SAT_BOTH static inline double sat_far_lse_bound(const sat_problem *p, double largest, double ties) {
    return 0x1p-24 * (16 + 8 * log(ties) + 8 * fabs(largest)) + sat_exp_loss(p);
}

/* By how much a pair adds to the depth of a sum. Beside the largest score the others are nothing, and nothing is lost
 * in adding them; but they are kept. */
SAT_BOTH static inline double sat_counts(bool far, double weight) { return far && weight < 1e-12 ? 1e-9 : 1; }

/* What exp may make of a weight that is next to nothing: 0. Only scores that are far apart have such. */
SAT_BOTH static inline double sat_lost_weight(bool far) { return far ? 1e-30 : 0; }

/* From a random walk of length `walk` (the root of the sum of squares of what was summed, times the largest of the
 * other factor) to `wide`. `depth` terms of f16 may each have lost `least` where they were too small for it. */
SAT_BOTH static inline double sat_walk_bound(const sat_problem *p, sat_row_loss e, double walk, double depth,
                                             double largest) {
    return SAT_SURE * ((e.weight + e.sum) * walk + sqrt(depth) * sat_tiny(p->a_dtype) * largest) + sat_tiny(p->c_dtype);
}

/* The gradient of a head's sink: -sum of exp(sink - lse)*delta over its queries, of the whole batch. What one term may
 * be off by: exp of a difference of two numbers, and delta. */
SAT_BOTH static inline double sat_sink_loss(const sat_problem *p, double sink, double lse, double weight, double delta,
                                            double delta_off) {
    double u = sat_unit(p->compute_dtype) + 0x1p-24; /* LSE and sinks are f32, and so may be their difference */
    return weight * (fabs(delta) * (fabs(sink) + fabs(lse) + 16) * u + delta_off);
}

/* Errors of queries are independent of each other, and add up as a random walk does, unless queries have one place. */
SAT_BOTH static inline double sat_sink_bound(const sat_problem *p, double error_squares, double errors,
                                             double squares) {
    const sat_attention *t = &p->attention;
    const sat_heads *const list[] = {&t->q, &t->do_};
    double terms = (double)(p->m * p->batch), walk = SAT_SURE * sqrt(error_squares);
    bool repeats = false;
    for (int i = 0; i < 2; i++)
        repeats = repeats || (p->m > 1 && list[i]->row_stride == 0) || (p->batch > 1 && list[i]->batch_stride == 0);
    double sums = SAT_SURE * 2 * (terms + 8) * sat_unit(p->compute_dtype) * sqrt(squares);
    return (repeats ? errors : fmin(walk, errors)) + sums + 0x1p-149;
}

SAT_BOTH static inline double sat_rel_bound(const sat_problem *p, sat_row_loss e) {
    return 1.001 * sat_unit(p->c_dtype) + e.weight + e.sum;
}

#endif
