// cpu_matmul_packed_avx2: B packed into narrow panels, tiles of 4x24 and 6x16 (f32; f64 half as wide) in registers over
// a whole block row. For products with more columns than a vector has; wide ones pay for the packing.

#include <immintrin.h>

#include "packed_family.h"

#define TALL_TILES(X) X(5, 1) X(5, 2) X(6, 1) X(6, 2)
#define WIDE_TILES(X) X(1, 1) X(1, 2) X(1, 3) X(2, 1) X(2, 2) X(2, 3) X(3, 1) X(3, 2) X(3, 3) X(4, 1) X(4, 2) X(4, 3)

#define NAME(x)        x##_f32
#define T              float
#define V              __m256
#define E              float
#define W              __m256
#define VL             8
#define V_ZERO         _mm256_setzero_ps
#define V_LOAD         _mm256_loadu_ps
#define V_STORE        _mm256_storeu_ps
#define V_STREAM       _mm256_stream_ps
#define V_FMA(c, a, b) __asm__("vfmadd231ps %2, %1, %0" : "+x"(c) : "x"(a), "x"(b))
#define W_LOAD         _mm256_loadu_ps
#define W_BROADCAST    _mm256_broadcast_ss
#define V_LOAD_F16(p)  _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p)))
#define V_LOAD_BF16(p)                                                                                                 \
    _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p))), 16))
#define KERNELS        TALL_TILES
#define DIRECT_KERNELS WIDE_TILES
#define STEPS          4
#define MAX_H          6
#define MAX_NV         3
#define HALVES         1
#define ACTIVATE       packed_activate_line_f32
#define PAIRS          0
#define AHEAD          1
#include "matmul_packed.h"

#define NAME(x)        x##_f64
#define T              double
#define V              __m256d
#define E              double
#define W              __m256d
#define VL             4
#define V_ZERO         _mm256_setzero_pd
#define V_LOAD         _mm256_loadu_pd
#define V_STORE        _mm256_storeu_pd
#define V_STREAM       _mm256_stream_pd
#define V_FMA(c, a, b) __asm__("vfmadd231pd %2, %1, %0" : "+x"(c) : "x"(a), "x"(b))
#define W_LOAD         _mm256_loadu_pd
#define W_BROADCAST    _mm256_broadcast_sd
#define KERNELS        TALL_TILES
#define DIRECT_KERNELS WIDE_TILES
#define STEPS          4
#define MAX_H          6
#define MAX_NV         3
#define HALVES         0
#define ACTIVATE       packed_activate_line_f64
#define PAIRS          0
#define AHEAD          1
#include "matmul_packed.h"

static const packed_isa isa = {.needs = SAT_ISA_AVX2, .bytes = 32, .efficiency = 0.8};
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

SAT_FAMILY(cpu_matmul_packed_avx2) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CPU,
    .flags = SAT_V_BATCHED | SAT_V_SCRATCH,
    .about = "AVX2 tiles over packed panels of B: many columns, any block shape",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .refresh = refresh,
    .launch = launch,
    .release = release,
};
