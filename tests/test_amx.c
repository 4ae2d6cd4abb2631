/* The AMX kernel's packing and addressing, on any machine with AVX-512: its tile instructions are emulated, and every
 * result goes through the check of a race. */
#if defined(__x86_64__) && !defined(SAT_NO_AMX)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c,amx-tile,amx-bf16")
#include <immintrin.h>

#include "support.h"

#include "amx_emulate.h"
#define sat_family_cpu_matmul_amx emulated_family
#include "kernels/cpu/matmul/matmul_amx.c" // NOLINT(bugprone-suspicious-include)
#include "problems.h"

static bool emulated_supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                              const sat_device *d) {
    sat_device with_amx = *d;
    with_amx.isa |= SAT_ISA_AMX_BF16;
    return emulated_family.supports(v, p, a, &with_amx);
}

static void race_one(sat_context *ctx, uint64_t *r) {
    sat_problem p = matmul_problem(SAT_BF16, 1 + random_below(r, 120));
    int64_t sides[] = {1, 7, 16, 32, 33, 48, 64};
    int64_t br = sides[random_below(r, 7)], bc = sides[random_below(r, 7)];
    sat_pattern *pattern =
        random_pattern(ctx, r, 1 + random_below(r, 200), 1 + random_below(r, 200), br, bc, 0.5, false);
    if (random_below(r, 2)) p.c_dtype = SAT_F32;
    if (random_below(r, 2)) p.matmul.transpose = SAT_TRANSPOSE;
    if (random_below(r, 3) == 0) p.beta = -0.5;
    if (random_below(r, 3) == 0) p.matmul.bias = SAT_BIAS_ROW;
    if (random_below(r, 3) == 0) p.matmul.activation = SAT_ACT_GELU;
    if (random_below(r, 4) == 0) p.flags = SAT_FIXED_VALUES;
    if (random_below(r, 3) == 0) p.b = (sat_layout){.row_stride = 1, .col_stride = 211};
    if (random_below(r, 3) == 0) p.c = (sat_layout){.row_stride = 1, .col_stride = 205};
    sat_race_options o = {SAT_SIZED(sat_race_options), .only = "emulated", .fresh = true};
    sat_race *race = NULL;
    assert_ok(sat_race_run(ctx, pattern, &p, &o, &race));
    const sat_result *x = sat_race_at(race, 0);
    if (x->verdict != SAT_VERDICT_OK) fail_msg("%s", x->message);
    sat_race_free(race);
    sat_pattern_free(pattern);
}

static sat_context *open_emulated(void) {
    sat_context *ctx = NULL;
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = "", .budget_seconds = 1e-6};
    assert_ok(sat_context_create(&o, &ctx));
    sat_variant v = {SAT_SIZED(sat_variant),
                     .name = "emulated",
                     .revision = "1",
                     .op = SAT_MATMUL,
                     .backend = SAT_CPU,
                     .instance = {.dtype = SAT_BF16, .tile_m = 32, .tile_n = 32},
                     .supports = emulated_supports};
    v.estimate = emulated_family.estimate, v.workspace = emulated_family.workspace, v.launch = emulated_family.launch;
    v.prepare = emulated_family.prepare, v.refresh = emulated_family.refresh, v.release = emulated_family.release;
    assert_ok(sat_variant_register(ctx, &v));
    return ctx;
}

static void the_amx_kernel_is_right_on_emulated_tiles(void **state) {
    (void)state;
    sat_context *ctx = open_emulated();
    uint64_t r = 41;
    for (int i = 0; i < 150; i++) race_one(ctx, &r);
    sat_context_free(ctx);
}

/* As in test_long_sums.c: positive terms, all blocks stored. `high` rows, `wide` columns in each block. */
static void expect_long(sat_context *ctx, int64_t high, int64_t wide, int64_t depth) {
    enum { N = 5 };
    uint64_t random = 8;
    sat_pattern *pattern = random_pattern(ctx, &random, high, depth, high, wide, 2, false);
    int64_t padded = (depth + wide - 1) / wide * wide;
    uint16_t *values = malloc((size_t)(high * padded) * 2), *b = malloc((size_t)(depth * N) * 2);
    float *c = malloc((size_t)(high * N) * sizeof *c);
    for (int64_t i = 0; i < high * padded; i++) values[i] = (uint16_t)(0x3f00 + random_below(&random, 0xc0));
    for (int64_t i = 0; i < depth * N; i++) b[i] = (uint16_t)(0x3f00 + random_below(&random, 0xc0)); /* 0.5 to 1.5 */
    sat_problem p = matmul_problem(SAT_BF16, N);
    p.c_dtype = SAT_F32;
    sat_plan *plan = NULL;
    assert_ok(sat_plan_create_with(ctx, pattern, &p, "emulated", &plan));
    assert_ok(sat_run(plan, (const void *[]){values, b}, 2, (void *[]){c}, 1, NULL));
    double bound = 0x1p-24 * (2 * (sqrt(SAT_SUM_PART) + sqrt((double)depth / SAT_SUM_PART)) + 16);
    for (int64_t i = 0; i < high; i++)
        for (int64_t j = 0; j < N; j++) {
            double sum = 0;
            for (int64_t k = 0; k < depth; k++)
                sum += (double)sat_from_bf16(values[k / wide * high * wide + i * wide + k % wide]) *
                       (double)sat_from_bf16(b[k * N + j]);
            double error = fabs((double)c[i * N + j] - sum) / sum;
            if (!(error <= bound))
                fail_msg("%lldx%lld: the error is %g; expected at most %g", (long long)high, (long long)wide, error,
                         bound);
        }
    sat_plan_free(plan);
    sat_pattern_free(pattern);
    free(values), free(b), free(c);
}

static void long_sums_are_made_of_parts(void **state) {
    (void)state;
    sat_context *ctx = open_emulated();
    expect_long(ctx, 20, 64, 1 << 16);
    expect_long(ctx, 7, 48, 1 << 17);
    expect_long(ctx, 5, 3001, 1 << 17);
    sat_context_free(ctx);
}

static __attribute__((noinline)) int run(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_amx_kernel_is_right_on_emulated_tiles),
                                       cmocka_unit_test(long_sums_are_made_of_parts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* All of this file is compiled for AVX-512: nothing that could need it stands before the question. */
int main(void) { return __builtin_cpu_supports("avx512bf16") ? run() : 77; /* skipped */ }
#else
int main(void) { return 77; } /* skipped */
#endif
