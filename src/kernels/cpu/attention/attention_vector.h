/* What kernels of attention add to the vectors of an instruction set (common/vector.h), in f32:
 *   VSELECT(v, bits, other)   lanes of v whose bit is set, else those of other
 *   exp2_of(x)                2^x, 0 where that is below every normal number */
#ifndef SAT_ATTENTION_VECTOR_H
#define SAT_ATTENTION_VECTOR_H

#include "kernels/cpu/common/convert_x86.h"
#include "kernels/cpu/common/vector.h"

#define ATTENTION_LOG2E 1.44269504088896340736
#define ATTENTION_LN2   0.69314718055994530942

#if VECTOR_BYTES == 32

INLINE __m256 select_lanes(__m256 v, uint64_t bits, __m256 other) {
    const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i set = _mm256_and_si256(_mm256_set1_epi32((int)(bits & 0xff)), lane);
    return _mm256_blendv_ps(other, v, _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, lane)));
}

/* p * 2^n by the bits of n; below the normal numbers, 0. n may be NaN, where p is too. */
INLINE __m256 exp2_join(__m256 p, __m256 n) {
    __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    __m256 low = _mm256_cmp_ps(n, _mm256_set1_ps(-126.0f), _CMP_LT_OQ);
    return _mm256_andnot_ps(low, _mm256_mul_ps(p, _mm256_castsi256_ps(power)));
}

#define VSELECT(v, b, o) select_lanes(v, b, o)
#define VROUND(x)        _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define VEXP2_JOIN(p, n) exp2_join(p, n)

#else

#define VSELECT(v, b, o) _mm512_mask_blend_ps((__mmask16)(b), o, v)
#define VROUND(x)        _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define VEXP2_JOIN(p, n) _mm512_scalef_ps(p, n)

#endif

/* Good to two units in the last place. */
INLINE vec_f32 exp2_of(vec_f32 x) {
    x = vec_max_f32(vec_set_f32(-200.0f), x);
    vec_f32 n = VROUND(x), f = vec_sub_f32(x, n);
    vec_f32 p = vec_fma_f32(vec_set_f32(0.00015461445f), f, vec_set_f32(0.0013400428f));
    p = vec_fma_f32(p, f, vec_set_f32(0.0096180567f));
    p = vec_fma_f32(p, f, vec_set_f32(0.055503272f));
    p = vec_fma_f32(p, f, vec_set_f32(0.24022651f));
    p = vec_fma_f32(p, f, vec_set_f32(0.69314721f));
    p = vec_fma_f32(p, f, vec_set_f32(1.0f));
    return VEXP2_JOIN(p, n);
}

#endif
