// cpu_sampled_packed_avx2: packs chunks of X and Y, keeps a tile of S in registers (4 rows of 3 vectors, 6 of 2), or
// for narrow blocks a tile of dot products along k. The direct form reads X and Y in place when both run along k,
// which suits patterns too sparse to pay for packing. See sampled_packed.h.

#include "sampled_packed_x86.h"

#define OUTER_TILES(X)                                                                                                 \
    X(1, 1)                                                                                                            \
    X(2, 1)                                                                                                            \
    X(3, 1) X(4, 1) X(5, 1) X(6, 1) X(1, 2) X(2, 2) X(3, 2) X(4, 2) X(5, 2) X(6, 2) X(1, 3) X(2, 3) X(3, 3) X(4, 3)
#define DOT_TILES(X)                                                                                                   \
    X(1, 1)                                                                                                            \
    X(1, 2)                                                                                                            \
    X(1, 3)                                                                                                            \
    X(1, 4)                                                                                                            \
    X(1, 5)                                                                                                            \
    X(1, 6)                                                                                                            \
    X(1, 7)                                                                                                            \
    X(1, 8) X(2, 1) X(2, 2) X(2, 3) X(2, 4) X(2, 5) X(2, 6) X(3, 1) X(3, 2) X(3, 3) X(3, 4) X(4, 1) X(4, 2) X(4, 3)

/* Loads of the first n lanes start their mask at 8 - n of these. */
static const int32_t masks[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};

static inline __m256i mask_of(int lanes, int bytes) {
    return _mm256_loadu_si256((const __m256i *)(const void *)(masks + 8 - lanes * (bytes / 4)));
}

#define VPIN(v) __asm__("" : "+x"(v))

#define T                float
#define FN(name)         name##_f32
#define LANES            8
#define V                __m256
#define VLOAD(p)         _mm256_loadu_ps(p)
#define VLOAD_SOME(p, n) _mm256_maskload_ps(p, mask_of(n, 4))
#define VSTORE(p, v)     _mm256_storeu_ps(p, v)
#define VBROADCAST(p)    _mm256_broadcast_ss(p)
#define VZERO()          _mm256_setzero_ps()
#define VFMA(a, b, c)    _mm256_fmadd_ps(a, b, c)
#define VSUM4(p, a, b, c, d)                                                                                           \
    do {                                                                                                               \
        __m256 sum4 = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));                                      \
        _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(sum4), _mm256_extractf128_ps(sum4, 1)));                    \
    } while (0)
#define WV           __m256
#define SQUARE       8
#define WIDEN        sampled_widen8
#define WSTORE(p, v) _mm256_storeu_ps(p, v)
#define TRANSPOSE(r) sampled_turn8(r)
#include "sampled_packed_simd.h"
#include "sampled_packed_body.h"

#define T                double
#define FN(name)         name##_f64
#define LANES            4
#define V                __m256d
#define VLOAD(p)         _mm256_loadu_pd(p)
#define VLOAD_SOME(p, n) _mm256_maskload_pd(p, mask_of(n, 8))
#define VSTORE(p, v)     _mm256_storeu_pd(p, v)
#define VBROADCAST(p)    _mm256_broadcast_sd(p)
#define VZERO()          _mm256_setzero_pd()
#define VFMA(a, b, c)    _mm256_fmadd_pd(a, b, c)
#define VSUM4(p, a, b, c, d)                                                                                           \
    do {                                                                                                               \
        __m256d ab = _mm256_hadd_pd(a, b), cd = _mm256_hadd_pd(c, d);                                                  \
        _mm256_storeu_pd(p,                                                                                            \
                         _mm256_add_pd(_mm256_permute2f128_pd(ab, cd, 0x20), _mm256_permute2f128_pd(ab, cd, 0x31)));   \
    } while (0)
#define WV           __m256d
#define SQUARE       4
#define WIDEN        sampled_widen4
#define WSTORE(p, v) _mm256_storeu_pd(p, v)
#define TRANSPOSE(r) sampled_turn4(r)
#include "sampled_packed_simd.h"
#include "sampled_packed_body.h"

static sampled_vectors vectors_of(const sat_problem *p, const sat_device *d) {
    double peak = d->isa & SAT_ISA_AVX512 ? 0.9 : 1; /* where vectors can be wider, they may be no faster */
    return p->compute_dtype == SAT_F64 ? (sampled_vectors){4, 8, peak} : (sampled_vectors){8, 4, peak};
}

static bool runs_on(const sat_problem *p, const sat_device *d) {
    (void)p;
    return (d->isa & SAT_ISA_AVX2) != 0;
}

static sat_status run(const sat_launch *l, int tile_m, int tile_n) {
    return l->problem->compute_dtype == SAT_F64 ? launch_f64(l, tile_m, tile_n) : launch_f32(l, tile_m, tile_n);
}

#include "sampled_packed_family.h"

SAT_FAMILY(cpu_sampled_packed_avx2) =
    SAMPLED_FAMILY("AVX2 register tiles on packed X and Y, whole or along k; any dtype and block shape");
