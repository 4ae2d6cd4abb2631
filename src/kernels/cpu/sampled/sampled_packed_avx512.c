// cpu_sampled_packed_avx512: as the AVX2 family, in vectors twice as wide and with twice as many registers (8 rows of
// 3 vectors, 6 of 4). See sampled_packed.h.

#include "sampled_packed_x86.h"

// clang-format off
#define OUTER_TILES(X)                                                                                                 \
    X(1, 1)                                                                                                            \
    X(2, 1)                                                                                                            \
    X(3, 1)                                                                                                            \
    X(4, 1)                                                                                                            \
    X(5, 1)                                                                                                            \
    X(6, 1)                                                                                                            \
    X(7, 1)                                                                                                            \
    X(8, 1)                                                                                                            \
    X(1, 2)                                                                                                            \
    X(2, 2)                                                                                                            \
    X(3, 2) X(4, 2) X(5, 2) X(6, 2) X(7, 2) X(8, 2) X(1, 3) X(2, 3) X(3, 3) X(4, 3) X(5, 3) X(6, 3) X(7, 3) X(8, 3)    \
        X(1, 4) X(2, 4) X(3, 4) X(4, 4) X(5, 4) X(6, 4) X(7, 4)
#define DOT_TILES(X)                                                                                                   \
    X(1, 1)                                                                                                            \
    X(1, 2)                                                                                                            \
    X(1, 3)                                                                                                            \
    X(1, 4)                                                                                                            \
    X(1, 5)                                                                                                            \
    X(1, 6)                                                                                                            \
    X(1, 7)                                                                                                            \
    X(1, 8)                                                                                                            \
    X(2, 1)                                                                                                            \
    X(2, 2)                                                                                                            \
    X(2, 3) X(2, 4) X(2, 5) X(2, 6) X(2, 7) X(2, 8) X(3, 1) X(3, 2) X(3, 3) X(3, 4) X(3, 5) X(3, 6) X(3, 7) X(3, 8)    \
        X(4, 1) X(4, 2) X(4, 3) X(4, 4) X(4, 5) X(4, 6)
// clang-format on

#define VPIN(v) __asm__("" : "+v"(v))

#define T                    float
#define FN(name)             name##_f32
#define LANES                16
#define V                    __m512
#define VLOAD(p)             _mm512_loadu_ps(p)
#define VLOAD_SOME(p, n)     _mm512_maskz_loadu_ps((__mmask16)((1u << (n)) - 1), p)
#define VSTORE(p, v)         _mm512_storeu_ps(p, v)
#define VBROADCAST(p)        _mm512_set1_ps(*(p))
#define VZERO()              _mm512_setzero_ps()
#define VFMA(a, b, c)        _mm512_fmadd_ps(a, b, c)
#define VSUM4(p, a, b, c, d) sampled_sum4(p, a, b, c, d)
#define WV                   __m256
#define SQUARE               8
#define WIDEN                sampled_widen8
#define WSTORE(p, v)         _mm256_storeu_ps(p, v)
#define TRANSPOSE(r)         sampled_turn8(r)
#include "sampled_packed_simd.h"
#include "sampled_packed_body.h"

#define T                double
#define FN(name)         name##_f64
#define LANES            8
#define V                __m512d
#define VLOAD(p)         _mm512_loadu_pd(p)
#define VLOAD_SOME(p, n) _mm512_maskz_loadu_pd((__mmask8)((1u << (n)) - 1), p)
#define VSTORE(p, v)     _mm512_storeu_pd(p, v)
#define VBROADCAST(p)    _mm512_set1_pd(*(p))
#define VZERO()          _mm512_setzero_pd()
#define VFMA(a, b, c)    _mm512_fmadd_pd(a, b, c)
#define VSUM4(p, a, b, c, d)                                                                                           \
    do {                                                                                                               \
        __m512d ab = _mm512_add_pd(_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));                                \
        __m512d cd = _mm512_add_pd(_mm512_unpacklo_pd(c, d), _mm512_unpackhi_pd(c, d));                                \
        __m256d lo = _mm256_add_pd(_mm512_castpd512_pd256(ab), _mm512_extractf64x4_pd(ab, 1));                         \
        __m256d hi = _mm256_add_pd(_mm512_castpd512_pd256(cd), _mm512_extractf64x4_pd(cd, 1));                         \
        _mm256_storeu_pd(p,                                                                                            \
                         _mm256_add_pd(_mm256_permute2f128_pd(lo, hi, 0x20), _mm256_permute2f128_pd(lo, hi, 0x31)));   \
    } while (0)
#define WV           __m256d
#define SQUARE       4
#define WIDEN        sampled_widen4
#define WSTORE(p, v) _mm256_storeu_pd(p, v)
#define TRANSPOSE(r) sampled_turn4(r)
#include "sampled_packed_simd.h"
#include "sampled_packed_body.h"

static sampled_vectors vectors_of(const sat_problem *p, const sat_device *d) {
    (void)d;
    return p->compute_dtype == SAT_F64 ? (sampled_vectors){8, 8, 1} : (sampled_vectors){16, 4, 1};
}

static bool runs_on(const sat_problem *p, const sat_device *d) {
    (void)p;
    return (d->isa & SAT_ISA_AVX512) != 0;
}

static sat_status run(const sat_launch *l, int tile_m, int tile_n) {
    return l->problem->compute_dtype == SAT_F64 ? launch_f64(l, tile_m, tile_n) : launch_f32(l, tile_m, tile_n);
}

#include "sampled_packed_family.h"

SAT_FAMILY(cpu_sampled_packed_avx512) =
    SAMPLED_FAMILY("AVX-512 register tiles on packed X and Y, whole or along k; any dtype and block shape");
