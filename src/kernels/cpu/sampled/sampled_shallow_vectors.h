/* Vectors as the shallow sampled product moves them, beside those of common/vector.h, which a family includes first:
 *   VINDEX, VLOAD_INDEX(p)   a lane's index for each lane, from LANES int32
 *   VPERMUTE(v, i)           lane i[e] of v in lane e
 *   SEGMENT                  elements in 16 bytes
 *   VSEGMENTS(p, at)         the segments at p + at[0], p + at[SEGMENT], p + at[2 SEGMENT], ..., side by side
 *   VTRANSPOSE_SEGMENTS(v)   of SEGMENT such vectors: v[e] becomes element e of each segment, in the order of `at`
 *   VPLACES(at, col, n, ..)  at[e] = min(col[block[e]] * wide + column[e], last) * step; col has n entries, and behind
 *                            them any place will do
 * 16-bit elements, as many as a vector of f32 has: vec_narrow_f16(v), vec_narrow_bf16(v), vec_store_half(p, h), and the
 * first n of them, vec_store_some_half(p, h, n). */
#ifndef SAT_SAMPLED_SHALLOW_VECTORS_H
#define SAT_SAMPLED_SHALLOW_VECTORS_H

#include "kernels/cpu/common/vector.h"

#define SEGMENT             FN(vec_segment)
#define VINDEX              FN(vec_index)
#define VLOAD_INDEX         FN(vec_load_index)
#define VPERMUTE            FN(vec_permute)
#define VSEGMENTS           FN(vec_segments)
#define VTRANSPOSE_SEGMENTS FN(vec_transpose_segments)
#define VPLACES             FN(vec_places)

enum { vec_segment_f32 = 4, vec_segment_f64 = 2 };

#if VECTOR_BYTES == 64

typedef __m512i vec_index_f32, vec_index_f64;
#define vec_load_index_f32(p) _mm512_loadu_si512(p)
#define vec_load_index_f64(p) _mm512_cvtepi32_epi64(_mm256_loadu_si256((const __m256i *)(const void *)(p)))
#define vec_permute_f32(v, i) _mm512_permutexvar_ps(i, v)
#define vec_permute_f64(v, i) _mm512_permutexvar_pd(i, v)

INLINE __m512 vec_segments_f32(const float *p, const int32_t *at) {
    __m512 v = _mm512_castps128_ps512(_mm_loadu_ps(p + at[0]));
    v = _mm512_mask_broadcast_f32x4(v, 0x00f0, _mm_loadu_ps(p + at[4]));
    v = _mm512_mask_broadcast_f32x4(v, 0x0f00, _mm_loadu_ps(p + at[8]));
    return _mm512_mask_broadcast_f32x4(v, 0xf000, _mm_loadu_ps(p + at[12]));
}
INLINE __m512d vec_segments_f64(const double *p, const int32_t *at) {
    __m512d v = _mm512_castpd128_pd512(_mm_loadu_pd(p + at[0]));
    v = _mm512_insertf64x2(v, _mm_loadu_pd(p + at[2]), 1);
    v = _mm512_insertf64x2(v, _mm_loadu_pd(p + at[4]), 2);
    return _mm512_insertf64x2(v, _mm_loadu_pd(p + at[6]), 3);
}

INLINE void vec_transpose_segments_f32(__m512 *v) {
    __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(v[0], v[1])), b = _mm512_castps_pd(_mm512_unpackhi_ps(v[0], v[1]));
    __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(v[2], v[3])), d = _mm512_castps_pd(_mm512_unpackhi_ps(v[2], v[3]));
    v[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c)), v[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
    v[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d)), v[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
}
INLINE void vec_transpose_segments_f64(__m512d *v) {
    __m512d low = _mm512_unpacklo_pd(v[0], v[1]);
    v[1] = _mm512_unpackhi_pd(v[0], v[1]), v[0] = low;
}

INLINE void vec_places_f32(int32_t *at, const int32_t *col, int64_t n, const int32_t *block, const int32_t *column,
                           int64_t wide, int64_t last, int64_t step) {
    __m512i v = _mm512_maskz_loadu_epi32((__mmask16)((1u << n) - 1), col);
    v = _mm512_permutexvar_epi32(_mm512_loadu_si512(block), v);
    v = _mm512_add_epi32(_mm512_mullo_epi32(v, _mm512_set1_epi32((int)wide)), _mm512_loadu_si512(column));
    v = _mm512_min_epi32(v, _mm512_set1_epi32((int)last));
    _mm512_storeu_si512(at, _mm512_mullo_epi32(v, _mm512_set1_epi32((int)step)));
}

#define vec_store_half(p, h)         _mm256_storeu_si256((__m256i *)(void *)(p), h)
#define vec_store_some_half(p, h, n) _mm256_mask_storeu_epi16(p, (__mmask16)((1u << (n)) - 1), h)
#define vec_narrow_f16(v)            _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
INLINE __m256i vec_narrow_bf16(__m512 v) { /* nearest even; NaN stays NaN */
    __m512i x = _mm512_castps_si512(v), odd = _mm512_and_si512(_mm512_srli_epi32(x, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(x, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, x, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

#else

typedef __m256i vec_index_f32, vec_index_f64;
#define vec_load_index_f32(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
INLINE __m256i vec_load_index_f64(const int32_t *p) { /* each as the places of its two halves */
    __m256i i = _mm256_cvtepi32_epi64(_mm_loadu_si128((const __m128i *)(const void *)p));
    i = _mm256_slli_epi64(i, 1);
    return _mm256_or_si256(i, _mm256_slli_epi64(_mm256_or_si256(i, _mm256_set1_epi64x(1)), 32));
}
#define vec_permute_f32(v, i) _mm256_permutevar8x32_ps(v, i)
#define vec_permute_f64(v, i) _mm256_castps_pd(_mm256_permutevar8x32_ps(_mm256_castpd_ps(v), i))

INLINE __m256 vec_segments_f32(const float *p, const int32_t *at) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p + at[0])), _mm_loadu_ps(p + at[4]), 1);
}
INLINE __m256d vec_segments_f64(const double *p, const int32_t *at) {
    return _mm256_insertf128_pd(_mm256_castpd128_pd256(_mm_loadu_pd(p + at[0])), _mm_loadu_pd(p + at[2]), 1);
}

INLINE void vec_transpose_segments_f32(__m256 *v) {
    __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(v[0], v[1])), b = _mm256_castps_pd(_mm256_unpackhi_ps(v[0], v[1]));
    __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(v[2], v[3])), d = _mm256_castps_pd(_mm256_unpackhi_ps(v[2], v[3]));
    v[0] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c)), v[1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
    v[2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d)), v[3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
}
INLINE void vec_transpose_segments_f64(__m256d *v) {
    __m256d low = _mm256_unpacklo_pd(v[0], v[1]);
    v[1] = _mm256_unpackhi_pd(v[0], v[1]), v[0] = low;
}

#define vec_store_half(p, h) _mm_storeu_si128((__m128i *)(void *)(p), h)
INLINE void vec_store_some_half(uint16_t *p, __m128i h, int n) {
    uint16_t lanes[8];
    vec_store_half(lanes, h);
    for (int e = 0; e < n; e++) p[e] = lanes[e];
}
#define vec_narrow_f16(v)    _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
INLINE __m128i vec_narrow_bf16(__m256 v) { /* nearest even; NaN stays NaN */
    __m256i x = _mm256_castps_si256(v), odd = _mm256_and_si256(_mm256_srli_epi32(x, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(x, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    x = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, _mm256_or_si256(x, _mm256_set1_epi32(0x400000)), nan), 16);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(x, x), 0x08));
}

#endif

/* Eight places: all that a vector of other elements has. */
INLINE void vec_places_8(int32_t *at, const int32_t *col, int64_t n, const int32_t *block, const int32_t *column,
                         int64_t wide, int64_t last, int64_t step) {
    __m256i some = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256i v = _mm256_maskload_epi32(col, some);
    v = _mm256_permutevar8x32_epi32(v, _mm256_loadu_si256((const __m256i *)(const void *)block));
    v = _mm256_add_epi32(_mm256_mullo_epi32(v, _mm256_set1_epi32((int)wide)),
                         _mm256_loadu_si256((const __m256i *)(const void *)column));
    v = _mm256_min_epi32(v, _mm256_set1_epi32((int)last));
    _mm256_storeu_si256((__m256i *)(void *)at, _mm256_mullo_epi32(v, _mm256_set1_epi32((int)step)));
}
#if VECTOR_BYTES == 32
#define vec_places_f32 vec_places_8
#endif
#define vec_places_f64 vec_places_8

#endif
