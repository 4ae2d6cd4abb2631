// cpu_matmul_packed_avx512bf16: as cpu_matmul_packed_avx512, with the instruction that multiplies pairs of bf16 and
// adds them up in f32: two k in each step. It takes subnormal values as zero.

#include <immintrin.h>

#include "packed_family.h"

// clang-format off
#define TILES(X) \
    X(1, 1) X(1, 2) X(1, 3) X(1, 4) X(2, 1) X(2, 2) X(2, 3) X(2, 4) X(3, 1) X(3, 2) X(3, 3) X(3, 4) X(4, 1) X(4, 2) \
    X(4, 3) X(4, 4) X(5, 1) X(5, 2) X(5, 3) X(6, 1) X(6, 2) X(6, 3) X(7, 1) X(7, 2) X(7, 3) X(8, 1) X(8, 2) X(8, 3)
// clang-format on

#define NO_TILES(X)

#define NAME(x)        x##_bf16
#define T              float
#define V              __m512
#define E              uint32_t
#define W              __m512i
#define VL             16
#define V_ZERO         _mm512_setzero_ps
#define V_LOAD         _mm512_loadu_ps
#define V_STORE        _mm512_storeu_ps
#define V_STREAM       _mm512_stream_ps
#define V_FMA(c, a, b) __asm__("vdpbf16ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b))
#define W_LOAD(p)      _mm512_loadu_si512(p)
#define W_BROADCAST(p) _mm512_set1_epi32((int)*(p))
#define KERNELS        TILES
#define DIRECT_KERNELS NO_TILES
#define STEPS          2
#define MAX_H          8
#define MAX_NV         4
#define HALVES         0
#define ACTIVATE       packed_activate_line_f32
#define PAIRS          1
#define AHEAD          0
#include "matmul_packed.h"

static const packed_isa isa = {.needs = SAT_ISA_AVX512_BF16, .bytes = 64, .efficiency = 1.2, .pairs = true};

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

static sat_status refresh(const sat_launch *l) { return packed_refresh_bf16(l, &isa); }

static sat_status launch(const sat_launch *l) { return packed_launch_bf16(l, &isa); }

static void release(const sat_variant *v, void *state) {
    (void)v;
    packed_free_state(state);
}

SAT_FAMILY(cpu_matmul_packed_avx512bf16) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CPU,
    .flags = SAT_V_BATCHED | SAT_V_SCRATCH,
    .about = "AVX-512 tiles of bf16 pairs over packed panels of B: many columns, any block shape",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .refresh = refresh,
    .launch = launch,
    .release = release,
};
