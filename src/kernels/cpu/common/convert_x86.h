/* Elements of any dtype as f32 and back, eight at a time, and transposes in 256-bit vectors: for copies. Needs AVX2 and
 * F16C. */
#ifndef SAT_CPU_CONVERT_X86_H
#define SAT_CPU_CONVERT_X86_H

#include <immintrin.h>

#include "variant.h"

/* Elements i to i+7 of p. */
static inline __attribute__((always_inline)) __m256 load8(sat_dtype t, const void *p, int64_t i) {
    if (t == SAT_F32) return _mm256_loadu_ps((const float *)p + i);
    __m128i half = _mm_loadu_si128((const __m128i *)(const void *)((const uint16_t *)p + i));
    if (t == SAT_F16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

static inline __attribute__((always_inline)) void store8(sat_dtype t, void *p, int64_t at, __m256 v) {
    if (t == SAT_F32) {
        _mm256_storeu_ps((float *)p + at, v);
        return;
    }
    __m128i half;
    if (t == SAT_F16) half = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    else {
        __m256i x = _mm256_castps_si256(v), odd = _mm256_and_si256(_mm256_srli_epi32(x, 16), _mm256_set1_epi32(1));
        __m256i rounded = _mm256_add_epi32(x, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        x = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, _mm256_or_si256(x, _mm256_set1_epi32(0x400000)), nan), 16);
        half = _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(x, x), 0x08));
    }
    _mm_storeu_si128((__m128i *)(void *)((uint16_t *)p + at), half);
}

static inline __attribute__((always_inline)) void transpose8x8(__m256 r[8]) {
    __m256 t[8], u[8];
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

/* n sums as 16-bit elements. */
static inline void narrow(uint16_t *to, const float *from, int64_t n, sat_dtype t) {
    int64_t e = 0;
    if (t == SAT_F16) {
        for (; e + 8 <= n; e += 8) {
            __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(from + e), _MM_FROUND_TO_NEAREST_INT);
            _mm_storeu_si128((__m128i *)(void *)(to + e), half);
        }
        for (; e < n; e++) to[e] = sat_to_f16(from[e]);
    }
    for (; e < n; e++) to[e] = sat_to_bf16(from[e]);
}

/* ---- the vectors that packing copies, by the type of their elements ---- */

typedef __m256 pack_vec_f32;
typedef __m256d pack_vec_f64;
enum { pack_lanes_f32 = 8, pack_lanes_f64 = 4 };
#define pack_store_f32(p, v) _mm256_storeu_ps(p, v)
#define pack_store_f64(p, v) _mm256_storeu_pd(p, v)

static inline __m256 pack_load_f32(sat_dtype t, const void *p, int64_t i) { return load8(t, p, i); }

static inline __m256d pack_load_f64(sat_dtype t, const void *p, int64_t i) {
    (void)t; /* f64 alone is computed in f64 */
    return _mm256_loadu_pd((const double *)p + i);
}

static inline void pack_transpose_f32(__m256 *r) { transpose8x8(r); }

static inline void pack_transpose_f64(__m256d *r) {
    __m256d a = _mm256_unpacklo_pd(r[0], r[1]), b = _mm256_unpackhi_pd(r[0], r[1]);
    __m256d c = _mm256_unpacklo_pd(r[2], r[3]), d = _mm256_unpackhi_pd(r[2], r[3]);
    r[0] = _mm256_permute2f128_pd(a, c, 0x20), r[1] = _mm256_permute2f128_pd(b, d, 0x20);
    r[2] = _mm256_permute2f128_pd(a, c, 0x31), r[3] = _mm256_permute2f128_pd(b, d, 0x31);
}

#endif
