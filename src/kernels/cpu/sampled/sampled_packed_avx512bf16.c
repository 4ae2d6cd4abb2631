// cpu_sampled_packed_avx512bf16: dot tiles that multiply pairs of bf16 and add them to f32 in one instruction, twice
// the work of a fused multiply-add. X and Y stay bf16, so packing moves half the bytes. See sampled_packed.h.

#include "sampled_packed_x86.h"

#define OUTER_TILES(X)
// clang-format off
#define DOT_TILES(X)                                                                                                   \
    X(1, 1)                                                                                                            \
    X(1, 2)                                                                                                            \
    X(1, 3)                                                                                                            \
    X(1, 4)                                                                                                            \
    X(1, 5)                                                                                                            \
    X(1, 6)                                                                                                            \
    X(1, 7) X(1, 8) X(2, 1) X(2, 2) X(2, 3) X(2, 4) X(2, 5) X(2, 6) X(2, 7) X(2, 8) X(3, 1) X(3, 2) X(3, 3) X(3, 4)    \
        X(3, 5) X(3, 6) X(3, 7) X(3, 8) X(4, 1) X(4, 2) X(4, 3) X(4, 4) X(4, 5) X(4, 6)
// clang-format on

static inline __m128i load8(sat_dtype t, const void *p, int64_t i) {
    (void)t; /* bf16 stays as it is */
    return _mm_loadu_si128((const __m128i *)(const void *)((const uint16_t *)p + i));
}

static inline void turn8(__m128i *r) {
    __m128i t[8], u[8];
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm_unpacklo_epi16(r[i], r[i + 4]);
        t[2 * i + 1] = _mm_unpackhi_epi16(r[i], r[i + 4]);
    }
    for (int i = 0; i < 4; i++) {
        u[2 * i] = _mm_unpacklo_epi16(t[i], t[i + 4]);
        u[2 * i + 1] = _mm_unpackhi_epi16(t[i], t[i + 4]);
    }
    for (int i = 0; i < 4; i++) {
        r[2 * i] = _mm_unpacklo_epi16(u[i], u[i + 4]);
        r[2 * i + 1] = _mm_unpackhi_epi16(u[i], u[i + 4]);
    }
}

#define VPIN(v) __asm__("" : "+v"(v))

#define T                    float
#define E                    uint16_t
#define FN(name)             name##_bf16
#define LANES                16
#define STEP                 32
#define V                    __m512
#define W                    __m512i
#define VLOAD(p)             _mm512_loadu_si512(p)
#define VLOAD_SOME(p, n)     _mm512_maskz_loadu_epi16((__mmask32)((1ull << (n)) - 1), p)
#define VSTORE(p, v)         _mm512_storeu_ps(p, v)
#define VBROADCAST(p)        _mm512_set1_epi16((short)*(p))
#define VZERO()              _mm512_setzero_ps()
#define VFMA(a, b, c)        _mm512_dpbf16_ps(c, (__m512bh)(a), (__m512bh)(b))
#define VSUM4(p, a, b, c, d) sampled_sum4(p, a, b, c, d)
#define SQUARE               8
#define WV                   __m128i
#define WIDEN                load8
#define WSTORE(p, v)         _mm_storeu_si128((__m128i *)(void *)(p), v)
#define TRANSPOSE(r)         turn8(r)
#include "sampled_packed_simd.h"
#include "sampled_packed_body.h"

static sampled_vectors vectors_of(const sat_problem *p, const sat_device *d) {
    (void)p, (void)d;
    return (sampled_vectors){16, 2, 1.8}; /* of the rate of f32 */
}

static bool runs_on(const sat_problem *p, const sat_device *d) {
    return (d->isa & SAT_ISA_AVX512_BF16) != 0 && p->a_dtype == SAT_BF16 && p->b_dtype == SAT_BF16;
}

static sat_status run(const sat_launch *l, int tile_m, int tile_n) { return launch_bf16(l, tile_m, tile_n); }

#include "sampled_packed_family.h"

SAT_FAMILY(cpu_sampled_packed_avx512bf16) = SAMPLED_FAMILY("AVX-512 pairs of bf16 along k; any block shape");
