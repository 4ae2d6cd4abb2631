/* A small seedable generator (splitmix64): the same seed gives the same problem on every machine. */
#ifndef CLI_RNG_H
#define CLI_RNG_H

#include <stdint.h>

typedef struct rng {
    uint64_t state;
} rng;

static inline uint64_t rng_mix(uint64_t x) {
    x ^= x >> 30, x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27, x *= 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline uint64_t rng_next(rng *r) { return rng_mix(r->state += 0x9e3779b97f4a7c15u); }

/* From 0 to limit - 1; limit at least 1. The bias of the product is below 2^-32 for limits this program uses. */
static inline int64_t rng_below(rng *r, int64_t limit) {
    return (int64_t)(((__uint128_t)rng_next(r) * (uint64_t)limit) >> 64);
}

static inline int64_t rng_between(rng *r, int64_t least, int64_t most) {
    return least + rng_below(r, most - least + 1);
}

static inline double rng_unit(rng *r) { return (double)(rng_next(r) >> 11) * 0x1p-53; } /* 0 <= x < 1 */

static inline int rng_chance(rng *r, double p) { return rng_unit(r) < p; }

#endif
