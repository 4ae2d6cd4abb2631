// cpu_sampled_portable: the packed sampled product in 128-bit vectors of the compiler's own, which every processor with
// SIMD has. Good anywhere; where there is something wider, the wider families win.

#define VECTOR_BYTES 16
#include "kernels/cpu/common/vector.h"

#define SAMPLED_BF16    0
#define SAMPLED_PEAK(d) ((d)->isa & SAT_ISA_AVX2 ? 0.2 : 0.7) /* 128 bits of 256 or more, no fused multiply-add */
#include "sampled_packed_plan.h"

#define OUTER_TILES(X) X(1, 1) X(2, 1) X(3, 1) X(4, 1) X(5, 1) X(6, 1) X(1, 2) X(2, 2) X(3, 2) X(4, 2) X(5, 2) X(6, 2)
#define DOT_TILES      SAMPLED_DOT_TILES_12

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

#define FN(name) name##_f32
#include "sampled_packed.h"

#define FN(name) name##_f64
#include "sampled_packed.h"

static sat_status launch(const sat_launch *l) {
    return l->problem->compute_dtype == SAT_F64 ? launch_f64(l) : launch_f32(l);
}

SAT_FAMILY(cpu_sampled_portable) =
    SAMPLED_FAMILY("128-bit register tiles on packed X and Y, whole or along k; any dtype and block shape");
