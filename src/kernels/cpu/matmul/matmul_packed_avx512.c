// cpu_matmul_packed_avx512: B packed into narrow panels, tiles of 4x64 to 14x32 (f32; f64 half as wide) in registers
// over a whole block row. For products with more columns than a vector has; wide ones pay for the packing.

#include <immintrin.h>

#include "packed_family.h"

// clang-format off
#define TALL_TILES(X)                                                                                                  \
    X(9, 1) X(9, 2) X(10, 1) X(10, 2) X(11, 1) X(11, 2) X(12, 1) X(12, 2) X(13, 1) X(13, 2) X(14, 1) X(14, 2)
#define WIDE_TILES(X) \
    X(1, 1) X(1, 2) X(1, 3) X(1, 4) X(2, 1) X(2, 2) X(2, 3) X(2, 4) X(3, 1) X(3, 2) X(3, 3) X(3, 4) X(4, 1) X(4, 2) \
    X(4, 3) X(4, 4) X(5, 1) X(5, 2) X(5, 3) X(6, 1) X(6, 2) X(6, 3) X(7, 1) X(7, 2) X(7, 3) X(8, 1) X(8, 2) X(8, 3)
// clang-format on

#define NAME(x)        x##_f32
#define T              float
#define V              __m512
#define E              float
#define W              __m512
#define VL             16
#define V_ZERO         _mm512_setzero_ps
#define V_LOAD         _mm512_loadu_ps
#define V_STORE        _mm512_storeu_ps
#define V_STREAM       _mm512_stream_ps
#define V_FMA(c, a, b) __asm__("vfmadd231ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b))
#define W_LOAD         _mm512_loadu_ps
#define W_BROADCAST(p) _mm512_set1_ps(*(p))
#define V_LOAD_F16(p)  _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p)))
#define V_LOAD_BF16(p)                                                                                                 \
    _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(p))), 16))
#define KERNELS        TALL_TILES
#define DIRECT_KERNELS WIDE_TILES
#define STEPS          2
#define MAX_H          14
#define MAX_NV         4
#define HALVES         1
#define ACTIVATE       packed_activate_line_f32
#define PAIRS          0
#define AHEAD          0
#include "matmul_packed.h"

#define NAME(x)        x##_f64
#define T              double
#define V              __m512d
#define E              double
#define W              __m512d
#define VL             8
#define V_ZERO         _mm512_setzero_pd
#define V_LOAD         _mm512_loadu_pd
#define V_STORE        _mm512_storeu_pd
#define V_STREAM       _mm512_stream_pd
#define V_FMA(c, a, b) __asm__("vfmadd231pd %2, %1, %0" : "+v"(c) : "v"(a), "v"(b))
#define W_LOAD         _mm512_loadu_pd
#define W_BROADCAST(p) _mm512_set1_pd(*(p))
#define KERNELS        TALL_TILES
#define DIRECT_KERNELS WIDE_TILES
#define STEPS          2
#define MAX_H          14
#define MAX_NV         4
#define HALVES         0
#define ACTIVATE       packed_activate_line_f64
#define PAIRS          0
#define AHEAD          0
#include "matmul_packed.h"

static const packed_isa isa = {.needs = SAT_ISA_AVX512, .bytes = 64, .efficiency = 0.7};

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)a;
    return packed_supports(v, &isa, p, d);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    return packed_estimate(v, &isa, p, a, d);
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    return packed_workspace(v, &isa, p, a, d);
}

static sat_status prepare(const sat_prepare *q, void **state) { return packed_prepare(q, &isa, state); }

static sat_status refresh(const sat_launch *l) {
    return l->problem->compute_dtype == SAT_F64 ? packed_refresh_f64(l, &isa) : packed_refresh_f32(l, &isa);
}

static sat_status launch(const sat_launch *l) {
    return l->problem->compute_dtype == SAT_F64 ? packed_launch_f64(l, &isa) : packed_launch_f32(l, &isa);
}

static void release(const sat_variant *v, void *state) {
    (void)v;
    packed_free_state(state);
}

SAT_FAMILY(cpu_matmul_packed_avx512) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CPU,
    .flags = SAT_V_BATCHED | SAT_V_SCRATCH,
    .about = "AVX-512 tiles over packed panels of B: many columns, any block shape",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .refresh = refresh,
    .launch = launch,
    .release = release,
};
