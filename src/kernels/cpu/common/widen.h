/* Elements as they are computed: f16 and bf16 as f32. Needs F16C. A family defines VECTOR_BYTES (vector.h) before it.
 */
#ifndef SAT_CPU_WIDEN_H
#define SAT_CPU_WIDEN_H

#include <string.h>

#include "kernels/cpu/common/vector.h"

INLINE float widen_f32(sat_dtype t, const void *p, int64_t i) {
    if (t == SAT_F32) return ((const float *)p)[i];
    return t == SAT_F16 ? _cvtsh_ss(((const uint16_t *)p)[i]) : sat_from_bf16(((const uint16_t *)p)[i]);
}

/* n elements of 16 bits. */
static inline void widen_all_f32(sat_dtype t, const uint16_t *from, float *to, int64_t n) {
    int64_t i = 0;
    for (; i + lanes_f32 <= n; i += lanes_f32) {
        vec_half h = vec_load_half(from + i);
        vec_store_f32(to + i, t == SAT_F16 ? vec_widen_f16(h) : vec_widen_bf16(h));
    }
    for (; i < n; i++) to[i] = widen_f32(t, from, i);
}

INLINE double widen_f64(sat_dtype t, const void *p, int64_t i) { return (void)t, ((const double *)p)[i]; }

static inline void widen_all_f64(sat_dtype t, const double *from, double *to, int64_t n) {
    (void)t, memcpy(to, from, (size_t)n * sizeof *to);
}

#endif
