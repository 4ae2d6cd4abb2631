// cpu_matmul_skinny_avx512: 1 to 16 columns, bound by reading the stored blocks once. See matmul_skinny.h.
//
// This file brings the vector operations for AVX-512; the templates do the rest, in f32 and in f64.

#include "matmul_skinny.h"

#define SK_WIDTH 64

/* ---- f32, and 16-bit types that widen to it ---- */

#define REAL  float
#define VEC   __m512
#define LANES 16
#define FN(x) f32_##x
// clang-format off
#define SK_SPLITS(X)                                                                                                   \
    X(1, 1, 1, SK_BY_COLUMNS)                                                                                          \
    X(1, 16, 1, SK_BY_COLUMNS)                                                                                         \
    X(2, 16, 1, SK_BY_COLUMNS)                                                                                         \
    X(4, 1, 1, SK_BY_COLUMNS)                                                                                          \
    X(4, 16, 1, SK_BY_COLUMNS)                                                                                         \
    X(8, 16, 1, SK_BY_COLUMNS)                                                                                         \
    X(16, 1, 1, SK_BY_COLUMNS)                                                                                         \
    X(1, 1, 1, SK_BY_ROWS) X(1, 16, 1, SK_BY_ROWS) X(2, 2, 1, SK_BY_ROWS) X(2, 16, 1, SK_BY_ROWS)                      \
        X(4, 16, 1, SK_BY_ROWS) X(8, 16, 1, SK_BY_ROWS) X(16, 16, 1, SK_BY_ROWS) X(16, 1, 1, SK_FLAT)                  \
            X(16, 2, 1, SK_FLAT) X(16, 4, 1, SK_FLAT) X(16, 8, 1, SK_FLAT)
// clang-format on

SK_INLINE VEC FN(zero)(void) { return _mm512_setzero_ps(); }
SK_INLINE VEC FN(load)(const float *p) { return _mm512_loadu_ps(p); }
SK_INLINE void FN(store)(float *p, VEC x) { _mm512_storeu_ps(p, x); }
SK_INLINE VEC FN(fma)(VEC a, VEC b, VEC c) { return _mm512_fmadd_ps(a, b, c); }
SK_INLINE VEC FN(add)(VEC a, VEC b) { return _mm512_add_ps(a, b); }
SK_INLINE VEC FN(group)(const float *p, int g) { /* p[0..g-1], repeated */
    if (g == LANES) return FN(load)(p);
    if (g == 1) return _mm512_set1_ps(*p);
    if (g == 2) return _mm512_castpd_ps(_mm512_broadcastsd_pd(_mm_loadl_pd(_mm_setzero_pd(), (const double *)p)));
    if (g == 4) return _mm512_broadcast_f32x4(_mm_loadu_ps(p));
    return _mm512_broadcast_f32x8(_mm256_loadu_ps(p));
}

SK_INLINE float FN(widen)(sat_dtype t, const void *p, int64_t i) {
    if (t == SAT_F32) return ((const float *)p)[i];
    return t == SAT_F16 ? _cvtsh_ss(((const uint16_t *)p)[i]) : sat_from_bf16(((const uint16_t *)p)[i]);
}
static void FN(widen_all)(sat_dtype t, const uint16_t *from, float *to, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        __m256i h = _mm256_loadu_si256((const __m256i *)(from + i));
        _mm512_storeu_ps(to + i, t == SAT_F16 ? _mm512_cvtph_ps(h)
                                              : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16)));
    }
    for (; i < n; i++) to[i] = FN(widen)(t, from, i);
}
SK_INLINE float FN(activate)(sat_activation a, float x) { return sat_act_f32(a, x); }

#include "matmul_skinny_drive.h"

/* ---- f64 ---- */

#define REAL  double
#define VEC   __m512d
#define LANES 8
#define FN(x) f64_##x
// clang-format off
#define SK_SPLITS(X)                                                                                                   \
    X(1, 1, 1, SK_BY_COLUMNS)                                                                                          \
    X(1, 8, 1, SK_BY_COLUMNS)                                                                                          \
    X(1, 8, 2, SK_BY_COLUMNS)                                                                                          \
    X(2, 8, 1, SK_BY_COLUMNS)                                                                                          \
    X(4, 1, 1, SK_BY_COLUMNS)                                                                                          \
    X(4, 8, 1, SK_BY_COLUMNS)                                                                                          \
    X(8, 1, 1, SK_BY_COLUMNS)                                                                                          \
    X(1, 1, 1, SK_BY_ROWS) X(1, 8, 1, SK_BY_ROWS) X(1, 8, 2, SK_BY_ROWS) X(2, 2, 1, SK_BY_ROWS) X(2, 8, 1, SK_BY_ROWS) \
        X(4, 8, 1, SK_BY_ROWS) X(8, 8, 1, SK_BY_ROWS) X(8, 1, 1, SK_FLAT) X(8, 2, 1, SK_FLAT) X(8, 4, 1, SK_FLAT)
// clang-format on

SK_INLINE VEC FN(zero)(void) { return _mm512_setzero_pd(); }
SK_INLINE VEC FN(load)(const double *p) { return _mm512_loadu_pd(p); }
SK_INLINE void FN(store)(double *p, VEC x) { _mm512_storeu_pd(p, x); }
SK_INLINE VEC FN(fma)(VEC a, VEC b, VEC c) { return _mm512_fmadd_pd(a, b, c); }
SK_INLINE VEC FN(add)(VEC a, VEC b) { return _mm512_add_pd(a, b); }
SK_INLINE VEC FN(group)(const double *p, int g) {
    if (g == LANES) return FN(load)(p);
    if (g == 1) return _mm512_set1_pd(*p);
    if (g == 2) return _mm512_broadcast_f64x2(_mm_loadu_pd(p));
    return _mm512_broadcast_f64x4(_mm256_loadu_pd(p));
}
SK_INLINE double FN(widen)(sat_dtype t, const void *p, int64_t i) { return (void)t, ((const double *)p)[i]; }
static void FN(widen_all)(sat_dtype t, const double *from, double *to, int64_t n) {
    (void)t, memcpy(to, from, (size_t)n * sizeof *to);
}
SK_INLINE double FN(activate)(sat_activation a, double x) { return sat_act_f64(a, x); }

#include "matmul_skinny_drive.h"

/* ---- the family ---- */

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)a;
    return sk_supports(v, p, d, SAT_ISA_AVX512);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    return sk_estimate(p, a, d, SK_WIDTH);
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    return sk_workspace(p, a, d, SK_WIDTH);
}

static sat_status launch(const sat_launch *l) {
    return l->problem->compute_dtype == SAT_F64 ? f64_launch(l) : f32_launch(l);
}

SAT_FAMILY(cpu_matmul_skinny_avx512) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CPU,
    .flags = SAT_V_SCRATCH,
    .about = "a matrix times 1 to 16 vectors: streams the blocks once (AVX-512)",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .launch = launch,
};
