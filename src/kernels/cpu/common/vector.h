/* The vectors of an instruction set, so that one source serves all of them. A family's file defines VECTOR_BYTES
 * (16: the compiler's own vectors, 32: AVX2, 64: AVX-512) and includes this. A template is included once for each
 * element type, after FN(name) has been defined as name##_f32, name##_f64, ...; the words below then mean that type:
 *   REAL, VEC, LANES                     the type of the sums, a vector of it, and its elements
 *   VZERO() VSET(x) VLOAD(p) VSTORE(p, v)   loads and stores need no alignment,
 *   VSTREAM(p, v)                        but this store does: it goes around the cache
 *   VADD(a, b) VSUB(a, b) VMUL(a, b)
 *   VMAX(a, b)                           b where either is NaN
 *   VFMA(a, b, c)                        a*b + c
 *   VFMA_INTO(c, a, b)                   c += a*b as one instruction on registers
 *   VPIN(v)                              keeps v in a register
 *   VSUM4(p, a, b, c, d)                 stores four sums to p: those of the lanes of a, b, c and d
 * What is multiplied has a type of its own, which is the same unless it is bf16:
 *   OPERAND, OPERAND_VEC, OPERAND_LANES
 *   VLOAD_OPERAND(p), VLOAD_SOME(p, n)   neighbours; the first n, the others zero
 *   VBROADCAST(p)                        one in every lane
 *   VSTORE_SOME(p, v, n)                 the first n lanes, at least one and fewer than all
 *   VREPEAT(p, g)                        p[0] to p[g-1], repeated over a vector; g is a constant
 *   VSPREAD(p, g)                        each of p[0] to p[LANES/g - 1] in g lanes; AVX2 alone
 *   VPAIRS(a, b)                         sums of neighbours: first those of a's lanes, then of b's
 * 16-bit elements, as many as a vector of f32 has: vec_load_half(p), vec_widen_f16(h), vec_widen_bf16(h); #if WIDENS is
 * true where such elements are widened to REAL. Macros, so that a compiler sees the same as if it were written by hand.
 */
#ifndef SAT_CPU_VECTOR_H
#define SAT_CPU_VECTOR_H

#include "variant.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

#define REAL          FN(real)
#define VEC           FN(vec)
#define LANES         FN(lanes)
#define OPERAND       FN(operand)
#define OPERAND_VEC   FN(operand_vec)
#define VZERO         FN(vec_zero)
#define VSET          FN(vec_set)
#define VLOAD         FN(vec_load)
#define VSTORE        FN(vec_store)
#define VSTREAM       FN(vec_stream)
#define VADD          FN(vec_add)
#define VSUB          FN(vec_sub)
#define VMUL          FN(vec_mul)
#define VMAX          FN(vec_max)
#define VFMA          FN(vec_fma)
#define VFMA_INTO     FN(vec_fma_into)
#define VPIN          FN(vec_pin)
#define VLOAD_OPERAND FN(vec_load_operand)
#define VBROADCAST    FN(vec_broadcast)
#define OPERAND_LANES FN(operand_lanes)
#define VLOAD_SOME    FN(vec_load_some)
#define VSTORE_SOME   FN(vec_store_some)
#define VSUM4         FN(vec_sum4)
#define VREPEAT       FN(vec_repeat)
#define VSPREAD       FN(vec_spread)
#define VPAIRS        FN(vec_pairs)
#define WIDENS        FN(vec_widens)

typedef float real_f32, operand_f32;
typedef double real_f64, operand_f64;

#define vec_load_operand_f32(p) vec_load_f32(p)
#define vec_load_operand_f64(p) vec_load_f64(p)

#define vec_widens_f32    1
#define vec_widens_f64    0
#define vec_widens_bf16x2 0

enum {
    lanes_f32 = VECTOR_BYTES / 4,
    lanes_f64 = VECTOR_BYTES / 8,
    operand_lanes_f32 = lanes_f32,
    operand_lanes_f64 = lanes_f64,
};

#if VECTOR_BYTES == 16

#define VECTOR_ISA 0
typedef float vec_f32 __attribute__((vector_size(16), aligned(4), may_alias));
typedef double vec_f64 __attribute__((vector_size(16), aligned(8), may_alias));

#define vec_zero_f32()       ((vec_f32){0})
#define vec_load_f32(p)      (*(const vec_f32 *)(const void *)(p))
#define vec_store_f32(p, v)  (*(vec_f32 *)(void *)(p) = (v))
#define vec_fma_f32(a, b, c) ((a) * (b) + (c))
#define vec_pin_f32(v)       ((void)0)
#define vec_broadcast_f32(p) ((vec_f32){*(p), *(p), *(p), *(p)})

#define vec_zero_f64()       ((vec_f64){0})
#define vec_load_f64(p)      (*(const vec_f64 *)(const void *)(p))
#define vec_store_f64(p, v)  (*(vec_f64 *)(void *)(p) = (v))
#define vec_fma_f64(a, b, c) ((a) * (b) + (c))
#define vec_pin_f64(v)       ((void)0)
#define vec_broadcast_f64(p) ((vec_f64){*(p), *(p)})

INLINE float vec_sum_f32(vec_f32 v) { return (v[0] + v[1]) + (v[2] + v[3]); }
INLINE double vec_sum_f64(vec_f64 v) { return v[0] + v[1]; }

#define vec_sum4_f32(p, a, b, c, d)                                                                                    \
    do {                                                                                                               \
        (p)[0] = vec_sum_f32(a), (p)[1] = vec_sum_f32(b), (p)[2] = vec_sum_f32(c), (p)[3] = vec_sum_f32(d);            \
    } while (0)
#define vec_sum4_f64(p, a, b, c, d)                                                                                    \
    do {                                                                                                               \
        (p)[0] = vec_sum_f64(a), (p)[1] = vec_sum_f64(b), (p)[2] = vec_sum_f64(c), (p)[3] = vec_sum_f64(d);            \
    } while (0)

static inline vec_f32 vec_load_some_f32(const float *p, int n) {
    vec_f32 v = {0};
    for (int i = 0; i < n; i++) v[i] = p[i];
    return v;
}
#define vec_load_some_f64(p, n) ((void)(n), (vec_f64){*(p), 0}) /* of two lanes, some is one */

#elif VECTOR_BYTES == 32

#include <immintrin.h>

#define VECTOR_ISA SAT_ISA_AVX2
typedef __m256 vec_f32;
typedef __m256d vec_f64;

#define vec_zero_f32()            _mm256_setzero_ps()
#define vec_set_f32(x)            _mm256_set1_ps(x)
#define vec_load_f32(p)           _mm256_loadu_ps(p)
#define vec_store_f32(p, v)       _mm256_storeu_ps(p, v)
#define vec_stream_f32(p, v)      _mm256_stream_ps(p, v)
#define vec_add_f32(a, b)         _mm256_add_ps(a, b)
#define vec_sub_f32(a, b)         _mm256_sub_ps(a, b)
#define vec_mul_f32(a, b)         _mm256_mul_ps(a, b)
#define vec_max_f32(a, b)         _mm256_max_ps(a, b)
#define vec_fma_f32(a, b, c)      _mm256_fmadd_ps(a, b, c)
#define vec_fma_into_f32(c, a, b) __asm__("vfmadd231ps %2, %1, %0" : "+x"(c) : "x"(a), "x"(b))
#define vec_pin_f32(v)            __asm__("" : "+x"(v))
#define vec_broadcast_f32(p)      _mm256_broadcast_ss(p)

INLINE vec_f32 vec_repeat_f32(const float *p, int g) {
    if (g == lanes_f32) return _mm256_loadu_ps(p);
    if (g == 1) return _mm256_broadcast_ss(p);
    if (g == 2) return _mm256_castpd_ps(_mm256_broadcastsd_pd(_mm_loadl_pd(_mm_setzero_pd(), (const double *)p)));
    return _mm256_broadcast_ps((const __m128 *)p);
}

#define vec_zero_f64()            _mm256_setzero_pd()
#define vec_load_f64(p)           _mm256_loadu_pd(p)
#define vec_store_f64(p, v)       _mm256_storeu_pd(p, v)
#define vec_stream_f64(p, v)      _mm256_stream_pd(p, v)
#define vec_set_f64(x)            _mm256_set1_pd(x)
#define vec_add_f64(a, b)         _mm256_add_pd(a, b)
#define vec_mul_f64(a, b)         _mm256_mul_pd(a, b)
#define vec_fma_f64(a, b, c)      _mm256_fmadd_pd(a, b, c)
#define vec_fma_into_f64(c, a, b) __asm__("vfmadd231pd %2, %1, %0" : "+x"(c) : "x"(a), "x"(b))
#define vec_pin_f64(v)            __asm__("" : "+x"(v))
#define vec_broadcast_f64(p)      _mm256_broadcast_sd(p)

INLINE vec_f64 vec_repeat_f64(const double *p, int g) {
    if (g == lanes_f64) return _mm256_loadu_pd(p);
    if (g == 1) return _mm256_broadcast_sd(p);
    return _mm256_broadcast_pd((const __m128d *)p);
}

/* The first n lanes, of 4 or 8 bytes. */
static inline __m256i vec_mask(int n, int bytes) {
    static const int32_t masks[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
    return _mm256_loadu_si256((const __m256i *)(const void *)(masks + 8 - n * (bytes / 4)));
}
#define vec_load_some_f32(p, n)   _mm256_maskload_ps(p, vec_mask(n, 4))
#define vec_load_some_f64(p, n)   _mm256_maskload_pd(p, vec_mask(n, 8))

INLINE void vec_store_some_f32(float *p, __m256 v, int n) { /* a masked store takes several times as long */
    __m128 half = _mm256_castps256_ps128(v);
    if (n & 4) _mm_storeu_ps(p, half), half = _mm256_extractf128_ps(v, 1), p += 4;
    if (n & 2) _mm_storel_pi((__m64 *)(void *)p, half), half = _mm_movehl_ps(half, half), p += 2;
    if (n & 1) _mm_store_ss(p, half);
}
INLINE void vec_store_some_f64(double *p, __m256d v, int n) {
    __m128d half = _mm256_castpd256_pd128(v);
    if (n & 2) _mm_storeu_pd(p, half), half = _mm256_extractf128_pd(v, 1), p += 2;
    if (n & 1) _mm_store_sd(p, half);
}

#define vec_sum4_f32(p, a, b, c, d)                                                                                    \
    do {                                                                                                               \
        __m256 sum4 = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));                                      \
        _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(sum4), _mm256_extractf128_ps(sum4, 1)));                    \
    } while (0)
#define vec_sum4_f64(p, a, b, c, d)                                                                                    \
    do {                                                                                                               \
        __m256d ab = _mm256_hadd_pd(a, b), cd = _mm256_hadd_pd(c, d);                                                  \
        _mm256_storeu_pd(p,                                                                                            \
                         _mm256_add_pd(_mm256_permute2f128_pd(ab, cd, 0x20), _mm256_permute2f128_pd(ab, cd, 0x31)));   \
    } while (0)

INLINE vec_f32 vec_spread_f32(const float *p, int g) {
    if (g == 1) return _mm256_loadu_ps(p);
    if (g == 2)
        return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)),
                                        _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
    if (g == 8) return _mm256_broadcast_ss(p);
    return _mm256_set_m128(_mm_broadcast_ss(p + 1), _mm_broadcast_ss(p));
}
INLINE vec_f64 vec_spread_f64(const double *p, int g) {
    if (g == 1) return _mm256_loadu_pd(p);
    if (g == 2) return _mm256_permute4x64_pd(_mm256_castpd128_pd256(_mm_loadu_pd(p)), 0x50);
    return _mm256_broadcast_sd(p);
}

INLINE vec_f32 vec_pairs_f32(vec_f32 a, vec_f32 b) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_hadd_ps(a, b)), 0xd8));
}
INLINE vec_f64 vec_pairs_f64(vec_f64 a, vec_f64 b) { return _mm256_permute4x64_pd(_mm256_hadd_pd(a, b), 0xd8); }

/* As many 16-bit elements as a vector of f32 has, and those as f32. */
typedef __m128i vec_half;
#define vec_load_half(p)  _mm_loadu_si128((const __m128i *)(p))
#define vec_widen_f16(h)  _mm256_cvtph_ps(h)
#define vec_widen_bf16(h) _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16))

#elif VECTOR_BYTES == 64

#include <immintrin.h>

#define VECTOR_ISA SAT_ISA_AVX512
typedef __m512 vec_f32;
typedef __m512d vec_f64;

#define vec_zero_f32()            _mm512_setzero_ps()
#define vec_set_f32(x)            _mm512_set1_ps(x)
#define vec_load_f32(p)           _mm512_loadu_ps(p)
#define vec_store_f32(p, v)       _mm512_storeu_ps(p, v)
#define vec_stream_f32(p, v)      _mm512_stream_ps(p, v)
#define vec_add_f32(a, b)         _mm512_add_ps(a, b)
#define vec_sub_f32(a, b)         _mm512_sub_ps(a, b)
#define vec_mul_f32(a, b)         _mm512_mul_ps(a, b)
#define vec_max_f32(a, b)         _mm512_max_ps(a, b)
#define vec_fma_f32(a, b, c)      _mm512_fmadd_ps(a, b, c)
#define vec_fma_into_f32(c, a, b) __asm__("vfmadd231ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b))
#define vec_pin_f32(v)            __asm__("" : "+v"(v))
#define vec_broadcast_f32(p)      _mm512_set1_ps(*(p))

INLINE vec_f32 vec_repeat_f32(const float *p, int g) {
    if (g == lanes_f32) return _mm512_loadu_ps(p);
    if (g == 1) return _mm512_set1_ps(*p);
    if (g == 2) return _mm512_castpd_ps(_mm512_broadcastsd_pd(_mm_loadl_pd(_mm_setzero_pd(), (const double *)p)));
    if (g == 4) return _mm512_broadcast_f32x4(_mm_loadu_ps(p));
    return _mm512_broadcast_f32x8(_mm256_loadu_ps(p));
}

#define vec_zero_f64()            _mm512_setzero_pd()
#define vec_load_f64(p)           _mm512_loadu_pd(p)
#define vec_store_f64(p, v)       _mm512_storeu_pd(p, v)
#define vec_stream_f64(p, v)      _mm512_stream_pd(p, v)
#define vec_set_f64(x)            _mm512_set1_pd(x)
#define vec_add_f64(a, b)         _mm512_add_pd(a, b)
#define vec_mul_f64(a, b)         _mm512_mul_pd(a, b)
#define vec_fma_f64(a, b, c)      _mm512_fmadd_pd(a, b, c)
#define vec_fma_into_f64(c, a, b) __asm__("vfmadd231pd %2, %1, %0" : "+v"(c) : "v"(a), "v"(b))
#define vec_pin_f64(v)            __asm__("" : "+v"(v))
#define vec_broadcast_f64(p)      _mm512_set1_pd(*(p))

INLINE vec_f64 vec_repeat_f64(const double *p, int g) {
    if (g == lanes_f64) return _mm512_loadu_pd(p);
    if (g == 1) return _mm512_set1_pd(*p);
    if (g == 2) return _mm512_broadcast_f64x2(_mm_loadu_pd(p));
    return _mm512_broadcast_f64x4(_mm256_loadu_pd(p));
}

#define vec_load_some_f32(p, n) _mm512_maskz_loadu_ps((__mmask16)((1u << (n)) - 1), p)
#define vec_load_some_f64(p, n) _mm512_maskz_loadu_pd((__mmask8)((1u << (n)) - 1), p)

#define vec_store_some_f32(p, v, n) _mm512_mask_storeu_ps(p, (__mmask16)((1u << (n)) - 1), v)
#define vec_store_some_f64(p, v, n) _mm512_mask_storeu_pd(p, (__mmask8)((1u << (n)) - 1), v)

static inline void vec_sum4_f32(float *to, __m512 a, __m512 b, __m512 c, __m512 d) {
    __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    __m512 all = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}
#define vec_sum4_f64(p, a, b, c, d)                                                                                    \
    do {                                                                                                               \
        __m512d ab = _mm512_add_pd(_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));                                \
        __m512d cd = _mm512_add_pd(_mm512_unpacklo_pd(c, d), _mm512_unpackhi_pd(c, d));                                \
        __m256d lo = _mm256_add_pd(_mm512_castpd512_pd256(ab), _mm512_extractf64x4_pd(ab, 1));                         \
        __m256d hi = _mm256_add_pd(_mm512_castpd512_pd256(cd), _mm512_extractf64x4_pd(cd, 1));                         \
        _mm256_storeu_pd(p,                                                                                            \
                         _mm256_add_pd(_mm256_permute2f128_pd(lo, hi, 0x20), _mm256_permute2f128_pd(lo, hi, 0x31)));   \
    } while (0)

INLINE vec_f32 vec_pairs_f32(vec_f32 a, vec_f32 b) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    return _mm512_add_ps(_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(a, odd, b));
}
INLINE vec_f64 vec_pairs_f64(vec_f64 a, vec_f64 b) {
    const __m512i even = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
    const __m512i odd = _mm512_add_epi64(even, _mm512_set1_epi64(1));
    return _mm512_add_pd(_mm512_permutex2var_pd(a, even, b), _mm512_permutex2var_pd(a, odd, b));
}

typedef __m256i vec_half;
#define vec_load_half(p)  _mm256_loadu_si256((const __m256i *)(p))
#define vec_widen_f16(h)  _mm512_cvtph_ps(h)
#define vec_widen_bf16(h) _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))

#ifdef VECTOR_BF16 /* defined by a family whose instructions multiply pairs of bf16 and add them up in f32 */

#undef VECTOR_ISA
#define VECTOR_ISA SAT_ISA_AVX512_BF16

/* bf16x2: an operand is a pair of bf16, a vector of them 16 pairs. bf16: an operand is one bf16, a vector 32. */
typedef float real_bf16x2, real_bf16;
typedef __m512 vec_bf16x2, vec_bf16;
typedef uint32_t operand_bf16x2;
typedef uint16_t operand_bf16;
typedef __m512i operand_vec_bf16x2, operand_vec_bf16;
enum { lanes_bf16x2 = 16, lanes_bf16 = 16, operand_lanes_bf16 = 32 };

#define vec_zero_bf16x2()            _mm512_setzero_ps()
#define vec_load_bf16x2(p)           _mm512_loadu_ps(p)
#define vec_store_bf16x2(p, v)       _mm512_storeu_ps(p, v)
#define vec_stream_bf16x2(p, v)      _mm512_stream_ps(p, v)
#define vec_add_bf16x2(a, b)         _mm512_add_ps(a, b)
#define vec_fma_into_bf16x2(c, a, b) __asm__("vdpbf16ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b))
#define vec_load_operand_bf16x2(p)   _mm512_loadu_si512(p)
#define vec_broadcast_bf16x2(p)      _mm512_set1_epi32((int)*(p))

#define vec_zero_bf16()              _mm512_setzero_ps()
#define vec_store_bf16(p, v)         _mm512_storeu_ps(p, v)
#define vec_fma_bf16(a, b, c)        _mm512_dpbf16_ps(c, (__m512bh)(a), (__m512bh)(b))
#define vec_pin_bf16(v)              __asm__("" : "+v"(v))
#define vec_load_operand_bf16(p)     _mm512_loadu_si512(p)
#define vec_broadcast_bf16(p)        _mm512_set1_epi16((short)*(p))
#define vec_load_some_bf16(p, n)     _mm512_maskz_loadu_epi16((__mmask32)((1ull << (n)) - 1), p)
#define vec_sum4_bf16(p, a, b, c, d) vec_sum4_f32(p, a, b, c, d)

#endif
#endif

typedef vec_f32 operand_vec_f32;
typedef vec_f64 operand_vec_f64;

#endif
