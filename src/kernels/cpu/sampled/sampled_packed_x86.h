/* Widening, narrowing and turning in 256-bit vectors, for the x86 families of the sampled product. */
#ifndef SAT_SAMPLED_PACKED_X86_H
#define SAT_SAMPLED_PACKED_X86_H

#include <immintrin.h>

#include "sampled_packed.h"

static inline __m256 sampled_widen8(sat_dtype t, const void *p, int64_t i) {
    if (t == SAT_F32) return _mm256_loadu_ps((const float *)p + i);
    __m128i half = _mm_loadu_si128((const __m128i *)(const void *)((const uint16_t *)p + i));
    if (t == SAT_F16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

static inline __m256d sampled_widen4(sat_dtype t, const void *p, int64_t i) {
    (void)t; /* f64 alone is computed in f64 */
    return _mm256_loadu_pd((const double *)p + i);
}

static inline void sampled_turn8(__m256 *r) {
    __m256 t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

static inline void sampled_turn4(__m256d *r) {
    __m256d a = _mm256_unpacklo_pd(r[0], r[1]), b = _mm256_unpackhi_pd(r[0], r[1]);
    __m256d c = _mm256_unpacklo_pd(r[2], r[3]), d = _mm256_unpackhi_pd(r[2], r[3]);
    r[0] = _mm256_permute2f128_pd(a, c, 0x20), r[1] = _mm256_permute2f128_pd(b, d, 0x20);
    r[2] = _mm256_permute2f128_pd(a, c, 0x31), r[3] = _mm256_permute2f128_pd(b, d, 0x31);
}

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

#if defined(__AVX512F__)
/* The sums of four vectors' lanes. */
static inline void sampled_sum4(float *to, __m512 a, __m512 b, __m512 c, __m512 d) {
    __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    __m512 all = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}
#endif

#endif
