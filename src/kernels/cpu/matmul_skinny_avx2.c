// cpu_matmul_skinny_avx2: 1 to 16 columns, bound by reading the stored blocks once. See matmul_skinny.h.
//
// This file brings the vector operations for AVX2; the templates do the rest, in f32 and in f64.

#include "matmul_skinny.h"

#define SK_WIDTH 32

/* ---- f32, and 16-bit types that widen to it ---- */

#define REAL  float
#define VEC   __m256
#define MASK  __m256i
#define INDEX __m256i
#define LANES 8
#define FN(x) f32_##x

SK_INLINE VEC FN(zero)(void) { return _mm256_setzero_ps(); }
SK_INLINE VEC FN(load)(const float *p) { return _mm256_loadu_ps(p); }
SK_INLINE MASK FN(mask_first)(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
SK_INLINE VEC FN(load_first)(const float *p, MASK m) { return _mm256_maskload_ps(p, m); }
SK_INLINE VEC FN(broadcast)(const float *p) { return _mm256_broadcast_ss(p); }
SK_INLINE VEC FN(fma)(VEC a, VEC b, VEC c) { return _mm256_fmadd_ps(a, b, c); }
SK_INLINE VEC FN(add)(VEC a, VEC b) { return _mm256_add_ps(a, b); }
SK_INLINE float FN(sum)(VEC a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
SK_INLINE VEC FN(group)(const float *p, int g) { /* p[0..g-1], repeated */
    if (g == 1) return _mm256_broadcast_ss(p);
    if (g == 2) return _mm256_castpd_ps(_mm256_broadcastsd_pd(_mm_loadl_pd(_mm_setzero_pd(), (const double *)p)));
    return _mm256_broadcast_ps((const __m128 *)p);
}
SK_INLINE INDEX FN(spread_index)(int g) {
    int32_t at[LANES];
    for (int e = 0; e < LANES; e++) at[e] = e / g;
    return _mm256_loadu_si256((const __m256i *)at);
}
SK_INLINE VEC FN(spread)(const float *p, INDEX i) { return _mm256_permutevar8x32_ps(_mm256_loadu_ps(p), i); }

SK_INLINE float FN(widen)(sat_dtype t, const void *p, int64_t i) {
    if (t == SAT_F32) return ((const float *)p)[i];
    return t == SAT_F16 ? _cvtsh_ss(((const uint16_t *)p)[i]) : sat_from_bf16(((const uint16_t *)p)[i]);
}
static void FN(widen_all)(sat_dtype t, const uint16_t *from, float *to, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        __m128i h = _mm_loadu_si128((const __m128i *)(from + i));
        _mm256_storeu_ps(to + i, t == SAT_F16 ? _mm256_cvtph_ps(h)
                                              : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)));
    }
    for (; i < n; i++) to[i] = FN(widen)(t, from, i);
}
SK_INLINE float FN(activate)(sat_activation a, float x) { return sat_act_f32(a, x); }

#include "matmul_skinny_drive.h"

/* ---- f64 ---- */

#define REAL  double
#define VEC   __m256d
#define MASK  __m256i
#define INDEX __m256i
#define LANES 4
#define FN(x) f64_##x

SK_INLINE VEC FN(zero)(void) { return _mm256_setzero_pd(); }
SK_INLINE VEC FN(load)(const double *p) { return _mm256_loadu_pd(p); }
SK_INLINE MASK FN(mask_first)(int64_t n) {
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
}
SK_INLINE VEC FN(load_first)(const double *p, MASK m) { return _mm256_maskload_pd(p, m); }
SK_INLINE VEC FN(broadcast)(const double *p) { return _mm256_broadcast_sd(p); }
SK_INLINE VEC FN(fma)(VEC a, VEC b, VEC c) { return _mm256_fmadd_pd(a, b, c); }
SK_INLINE VEC FN(add)(VEC a, VEC b) { return _mm256_add_pd(a, b); }
SK_INLINE double FN(sum)(VEC a) {
    __m128d x = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_add_sd(x, _mm_unpackhi_pd(x, x)));
}
SK_INLINE VEC FN(group)(const double *p, int g) {
    if (g == 1) return _mm256_broadcast_sd(p);
    return _mm256_broadcast_pd((const __m128d *)p);
}
SK_INLINE INDEX FN(spread_index)(int g) { /* the permute moves halves of an element */
    int32_t at[2 * LANES];
    for (int e = 0; e < 2 * LANES; e++) at[e] = e / 2 / g * 2 + e % 2;
    return _mm256_loadu_si256((const __m256i *)at);
}
SK_INLINE VEC FN(spread)(const double *p, INDEX i) {
    return _mm256_castps_pd(_mm256_permutevar8x32_ps(_mm256_castpd_ps(_mm256_loadu_pd(p)), i));
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
    return sk_supports(v, p, d, SAT_ISA_AVX2);
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

SAT_FAMILY(cpu_matmul_skinny_avx2) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CPU,
    .about = "a matrix times 1 to 16 vectors: streams the blocks once (AVX2)",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .launch = launch,
};
