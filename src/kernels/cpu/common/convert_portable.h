/* Elements of any dtype as f32 and back, and transposes, in the compiler's own vectors of 128 bits: what packing copies
 * by where there is nothing wider. Beside common/vector.h with VECTOR_BYTES 16. */
#ifndef SAT_CPU_CONVERT_PORTABLE_H
#define SAT_CPU_CONVERT_PORTABLE_H

#include "variant.h"

typedef vec_f32 pack_vec_f32;
typedef vec_f64 pack_vec_f64;
enum { pack_lanes_f32 = 4, pack_lanes_f64 = 2 };
#define pack_store_f32(p, v) vec_store_f32(p, v)
#define pack_store_f64(p, v) vec_store_f64(p, v)

static inline vec_f32 pack_load_f32(sat_dtype t, const void *p, int64_t i) {
    if (t == SAT_F32) return *(const vec_f32 *)(const void *)((const float *)p + i);
    const uint16_t *h = (const uint16_t *)p + i;
    if (t == SAT_F16) return (vec_f32){sat_from_f16(h[0]), sat_from_f16(h[1]), sat_from_f16(h[2]), sat_from_f16(h[3])};
    return (vec_f32){sat_from_bf16(h[0]), sat_from_bf16(h[1]), sat_from_bf16(h[2]), sat_from_bf16(h[3])};
}

static inline vec_f64 pack_load_f64(sat_dtype t, const void *p, int64_t i) {
    (void)t; /* f64 alone is computed in f64 */
    return *(const vec_f64 *)(const void *)((const double *)p + i);
}

static inline void pack_transpose_f32(vec_f32 *r) {
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++) {
            float x = r[i][j];
            r[i][j] = r[j][i], r[j][i] = x;
        }
}

static inline void pack_transpose_f64(vec_f64 *r) {
    double x = r[1][0];
    r[1][0] = r[0][1], r[0][1] = x;
}

static inline void narrow(uint16_t *to, const float *from, int64_t n, sat_dtype t) {
    for (int64_t e = 0; e < n; e++) to[e] = t == SAT_F16 ? sat_to_f16(from[e]) : sat_to_bf16(from[e]);
}

#endif
