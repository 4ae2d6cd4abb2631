// cpu_sampled_portable: the packed sampled product in 128-bit vectors of the compiler's own, which every processor with
// SIMD has. Good anywhere; where there is something wider, the wider families win. See sampled_packed.h.

#include "sampled_packed.h"

typedef float vector_f32 __attribute__((vector_size(16), aligned(4), may_alias));
typedef double vector_f64 __attribute__((vector_size(16), aligned(8), may_alias));

static inline vector_f32 widen_f32(sat_dtype t, const void *p, int64_t i) {
    if (t == SAT_F32) return *(const vector_f32 *)(const void *)((const float *)p + i);
    const uint16_t *h = (const uint16_t *)p + i;
    if (t == SAT_F16)
        return (vector_f32){sat_from_f16(h[0]), sat_from_f16(h[1]), sat_from_f16(h[2]), sat_from_f16(h[3])};
    return (vector_f32){sat_from_bf16(h[0]), sat_from_bf16(h[1]), sat_from_bf16(h[2]), sat_from_bf16(h[3])};
}

static inline vector_f64 widen_f64(sat_dtype t, const void *p, int64_t i) {
    (void)t; /* f64 alone is computed in f64 */
    return *(const vector_f64 *)(const void *)((const double *)p + i);
}

static inline void turn_f32(vector_f32 *r) {
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++) {
            float x = r[i][j];
            r[i][j] = r[j][i], r[j][i] = x;
        }
}

static inline void turn_f64(vector_f64 *r) {
    double x = r[1][0];
    r[1][0] = r[0][1], r[0][1] = x;
}

static inline vector_f32 load_some_f32(const float *p, int n) {
    vector_f32 v = {0};
    for (int i = 0; i < n; i++) v[i] = p[i];
    return v;
}

static inline float sum_f32(vector_f32 v) { return (v[0] + v[1]) + (v[2] + v[3]); }
static inline double sum_f64(vector_f64 v) { return v[0] + v[1]; }

static inline void narrow(uint16_t *to, const float *from, int64_t n, sat_dtype t) {
    for (int64_t e = 0; e < n; e++) to[e] = t == SAT_F16 ? sat_to_f16(from[e]) : sat_to_bf16(from[e]);
}

#define OUTER_TILES(X) X(1, 1) X(2, 1) X(3, 1) X(4, 1) X(5, 1) X(6, 1) X(1, 2) X(2, 2) X(3, 2) X(4, 2) X(5, 2) X(6, 2)
#define DOT_TILES(X)                                                                                                   \
    X(1, 1)                                                                                                            \
    X(1, 2)                                                                                                            \
    X(1, 3)                                                                                                            \
    X(1, 4)                                                                                                            \
    X(1, 5)                                                                                                            \
    X(1, 6)                                                                                                            \
    X(1, 7)                                                                                                            \
    X(1, 8) X(2, 1) X(2, 2) X(2, 3) X(2, 4) X(2, 5) X(2, 6) X(3, 1) X(3, 2) X(3, 3) X(3, 4) X(4, 1) X(4, 2) X(4, 3)

#define VPIN(v) ((void)0)

#define T                float
#define FN(name)         name##_f32
#define LANES            4
#define V                vector_f32
#define VLOAD(p)         (*(const V *)(const void *)(p))
#define VLOAD_SOME(p, n) load_some_f32(p, n)
#define VSTORE(p, v)     (*(V *)(void *)(p) = (v))
#define VBROADCAST(p)    ((V){*(p), *(p), *(p), *(p)})
#define VZERO()          ((V){0})
#define VFMA(a, b, c)    ((a) * (b) + (c))
#define VSUM4(p, a, b, c, d)                                                                                           \
    do {                                                                                                               \
        (p)[0] = sum_f32(a), (p)[1] = sum_f32(b), (p)[2] = sum_f32(c), (p)[3] = sum_f32(d);                            \
    } while (0)
#define SQUARE       4
#define WV           vector_f32
#define WIDEN        widen_f32
#define WSTORE(p, v) VSTORE(p, v)
#define TRANSPOSE(r) turn_f32(r)
#include "sampled_packed_simd.h"
#include "sampled_packed_body.h"

#define T                double
#define FN(name)         name##_f64
#define LANES            2
#define V                vector_f64
#define VLOAD(p)         (*(const V *)(const void *)(p))
#define VLOAD_SOME(p, n) ((void)(n), (V){*(p), 0}) /* of two lanes, some is one */
#define VSTORE(p, v)     (*(V *)(void *)(p) = (v))
#define VBROADCAST(p)    ((V){*(p), *(p)})
#define VZERO()          ((V){0})
#define VFMA(a, b, c)    ((a) * (b) + (c))
#define VSUM4(p, a, b, c, d)                                                                                           \
    do {                                                                                                               \
        (p)[0] = sum_f64(a), (p)[1] = sum_f64(b), (p)[2] = sum_f64(c), (p)[3] = sum_f64(d);                            \
    } while (0)
#define SQUARE       2
#define WV           vector_f64
#define WIDEN        widen_f64
#define WSTORE(p, v) VSTORE(p, v)
#define TRANSPOSE(r) turn_f64(r)
#include "sampled_packed_simd.h"
#include "sampled_packed_body.h"

static sampled_vectors vectors_of(const sat_problem *p, const sat_device *d) {
    double peak = d->isa & SAT_ISA_AVX2 ? 0.2 : 0.7; /* 128 bits of 256 or more, and no fused multiply-add */
    return p->compute_dtype == SAT_F64 ? (sampled_vectors){2, 8, peak} : (sampled_vectors){4, 4, peak};
}

static bool runs_on(const sat_problem *p, const sat_device *d) {
    (void)p, (void)d;
    return true;
}

static sat_status run(const sat_launch *l, int tile_m, int tile_n) {
    return l->problem->compute_dtype == SAT_F64 ? launch_f64(l, tile_m, tile_n) : launch_f32(l, tile_m, tile_n);
}

#include "sampled_packed_family.h"

SAT_FAMILY(cpu_sampled_portable) =
    SAMPLED_FAMILY("128-bit register tiles on packed X and Y, whole or along k; any dtype and block shape");
