// cpu_attention_tiled_avx2, cpu_attention_backward_tiled_avx2: tiles of 64 queries by 64 keys with online softmax, in
// panels of 16 rows.

#define VECTOR_BYTES 32
#include "kernels/cpu/common/vector.h"
#include "kernels/cpu/common/convert_x86.h"

#define COLUMNS 4

static inline __attribute__((always_inline)) __m256 select_lanes(__m256 v, uint64_t bits, __m256 other) {
    const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i set = _mm256_and_si256(_mm256_set1_epi32((int)(bits & 0xff)), lane);
    return _mm256_blendv_ps(other, v, _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, lane)));
}

/* 2^n as bits; below the normal numbers, 0. n may be NaN, where p is too. */
static inline __attribute__((always_inline)) __m256 exp2_join(__m256 p, __m256 n) {
    __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    __m256 low = _mm256_cmp_ps(n, _mm256_set1_ps(-126.0f), _CMP_LT_OQ);
    return _mm256_andnot_ps(low, _mm256_mul_ps(p, _mm256_castsi256_ps(power)));
}

#define VSELECT(v, b, o) select_lanes(v, b, o)
#define VEXP2_SPLIT(x, n, f)                                                                                           \
    do {                                                                                                               \
        __m256 split_x = (x);                                                                                          \
        n = _mm256_round_ps(split_x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);                                   \
        f = _mm256_sub_ps(split_x, n);                                                                                 \
    } while (0)
#define VEXP2_JOIN(p, n)       exp2_join(p, n)
#define VBELOW(x, limit, a, b) _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, limit, _CMP_LT_OQ))
#define VRECIPROCAL(x)         _mm256_div_ps(_mm256_set1_ps(1.0f), x)

static double rate_on(const sat_device *d) { return d->isa & SAT_ISA_AVX512 ? 0.5 : 0.6; }

#include "attention_tiled.h"

SAT_FAMILY(cpu_attention_tiled_avx2) =
    TILED_FAMILY(SAT_ATTENTION, forward, "AVX2, tiles of 64 x 64 with online softmax, absent ones passed over");
SAT_FAMILY(cpu_attention_backward_tiled_avx2) = TILED_FAMILY(SAT_ATTENTION_BACKWARD, backward,
                                                             "AVX2, tiles of 64 x 64, dQ and then dK and dV");
