/* What the tests of long sums share: the bound that sums in parts keep, positive operands, and attention over many keys
 * or queries with its weights in f64.
 *
 * Adding up n positive terms of like size rounds each partial sum by up to u, at random: the standard deviation of the
 * relative error is u*sqrt(n)/3. In parts of p it is that of p terms and that of n/p parts. Six of both are the bound
 * here, which a single sum of n exceeds where n is many times p. */
#ifndef LONG_SUMS_H
#define LONG_SUMS_H

#include "support.h"

#include <math.h>

#include "variant.h"

static const double U = 0x1p-24; /* of f32 */

/* Beside the sum there are the products, the epilogue and, in attention, weights: `besides`, in units of u. */
static inline double bound(double terms, double part, double besides) {
    return U * (2 * (sqrt(part) + sqrt(terms / part)) + besides);
}

static inline void expect_error(double error, double most, const char *variant, const char *what) {
#ifdef PRINT
    printf("%-50s %-40s %7.1f of %7.1f u\n", variant, what, error / U, most / U);
#else
    if (!(error <= most)) fail_msg("%s, %s: the error is %.3g; expected at most %.3g", variant, what, error, most);
#endif
}

/* ---- positive operands ---- */

static inline float positive(uint64_t *random) { return 0.5f + (float)(next_random(random) >> 40) * 0x1p-24f; }

static inline uint16_t to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static inline uint16_t to_f16(float x) { /* of 0.5 to 1.5, cut off */
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(((bits >> 13) & 0x3ff) | (((bits >> 23) - 112) << 10));
}

static inline float from_half(sat_dtype t, uint16_t h) {
    uint32_t bits = t == SAT_BF16 ? (uint32_t)h << 16 : (uint32_t)(h & 0x3ff) << 13 | (uint32_t)((h >> 10) + 112) << 23;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Elements of a dtype, and the same as f32. */
typedef struct numbers {
    void *data;
    float *exact;
} numbers;

static inline numbers make_numbers(uint64_t *random, int64_t count, sat_dtype t) {
    numbers x = {.exact = malloc((size_t)count * sizeof(float))};
    for (int64_t i = 0; i < count; i++) x.exact[i] = positive(random);
    if (t == SAT_F32) return x.data = x.exact, x;
    uint16_t *halves = x.data = malloc((size_t)count * sizeof *halves);
    for (int64_t i = 0; i < count; i++) {
        halves[i] = t == SAT_BF16 ? to_bf16(x.exact[i]) : to_f16(x.exact[i]);
        x.exact[i] = from_half(t, halves[i]);
    }
    return x;
}

static inline void free_numbers(numbers *x) {
    if (x->data != x->exact) free(x->data);
    free(x->exact);
}

/* All blocks stored. */
static inline sat_pattern *full_pattern(sat_context *ctx, int64_t rows, int64_t cols, int64_t br, int64_t bc) {
    uint64_t random = 1;
    return random_pattern(ctx, &random, rows, cols, br, bc, 2, false);
}

static inline double largest_error(const float *got, const double *want, int64_t count) {
    double largest = 0;
    for (int64_t i = 0; i < count; i++) {
        double error = fabs((double)got[i] - want[i]) / want[i];
        if (!(error <= largest)) largest = error; /* NaN too */
    }
    return largest;
}

/* ---- attention ---- */

enum { DIM = 16 };

/* One head; all pairs are kept. Weights in f64 from the scores of the very same numbers. */
typedef struct attention {
    int64_t queries, keys;
    numbers q, k, v, dout;
    double *weight; /* [queries][keys] */
    double *o;      /* [queries][DIM] */
    float *o32, *lse;
} attention;

static inline attention make_attention(int64_t queries, int64_t keys) {
    uint64_t random = 3;
    attention x = {.queries = queries, .keys = keys};
    x.q = make_numbers(&random, queries * DIM, SAT_F32), x.k = make_numbers(&random, keys * DIM, SAT_F32);
    x.v = make_numbers(&random, keys * DIM, SAT_F32), x.dout = make_numbers(&random, queries * DIM, SAT_F32);
    x.weight = malloc((size_t)(queries * keys) * sizeof *x.weight);
    x.o = calloc((size_t)(queries * DIM), sizeof *x.o);
    x.o32 = malloc((size_t)(queries * DIM) * sizeof *x.o32), x.lse = malloc((size_t)queries * sizeof *x.lse);
    for (int64_t i = 0; i < queries; i++) {
        double total = 0, *weight = x.weight + i * keys;
        for (int64_t j = 0; j < keys; j++) {
            double score = 0;
            for (int e = 0; e < DIM; e++) score += (double)x.q.exact[i * DIM + e] * (double)x.k.exact[j * DIM + e];
            total += weight[j] = exp(score / 4); /* 1/sqrt(DIM) */
        }
        for (int64_t j = 0; j < keys; j++) {
            weight[j] /= total;
            for (int e = 0; e < DIM; e++) x.o[i * DIM + e] += weight[j] * (double)x.v.exact[j * DIM + e];
        }
        for (int e = 0; e < DIM; e++) x.o32[i * DIM + e] = (float)x.o[i * DIM + e];
        x.lse[i] = (float)log(total);
    }
    return x;
}

static inline void free_attention(attention *x) {
    free_numbers(&x->q), free_numbers(&x->k), free_numbers(&x->v), free_numbers(&x->dout);
    free(x->weight), free(x->o), free(x->o32), free(x->lse);
}

#endif
