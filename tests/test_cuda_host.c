/* What the CUDA backend shows of itself on any machine, with a device or without a driver. */
#include "cuda_support.h"
#include "cuda_variants.h"

#include <cuda_runtime_api.h>
#include <math.h>

#include "core/registry.h"
#include "problems.h"

static sat_status open_named(const char *device, sat_context **ctx) {
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = device, .cache_dir = ""};
    return sat_context_create(&o, ctx);
}

static void a_device_that_is_not_there_is_not_found(void **state) {
    (void)state;
    sat_context *ctx = NULL;
    assert_fails(open_named("cuda:63", &ctx), SAT_NOT_FOUND, "cuda:63");
    assert_null(ctx);
    if (has_gpu()) return;
    assert_fails(open_named("cuda", &ctx), SAT_NOT_FOUND, "cuda:0");
    assert_null(ctx);
}

static void the_best_device_is_the_cpu_where_there_is_no_other(void **state) {
    (void)state;
    unsetenv("SPARSE_AUTOTUNE_DEVICE");
    sat_context *ctx = NULL;
    assert_ok(open_named(NULL, &ctx));
    assert_int_equal(sat_context_device(ctx)->backend, has_gpu() ? SAT_CUDA : SAT_CPU);
    sat_context_free(ctx);
}

static void a_program_may_have_a_cuda_runtime_of_its_own(void **state) {
    (void)state;
    int ours = 0;
    if (cudaGetDeviceCount(&ours) != cudaSuccess) ours = 0;
    assert_int_equal(ours, sat_backend_cuda.count());
}

static void the_variants_are_listed_without_a_device(void **state) {
    (void)state;
    static sat_registry cuda, cpu;
    assert_ok(sat_registry_open(&cuda, SAT_CUDA));
    assert_ok(sat_registry_open(&cpu, SAT_CPU));
    assert_non_null(sat_registry_find(&cuda, "cuda_matmul_any_any_simt_reference"));
    assert_non_null(sat_registry_find(&cuda, "cuda_sampled_any_any_simt_reference"));
    for (size_t i = 0; i < cuda.built_in; i++) {
        assert_int_equal(cuda.list[i]->backend, SAT_CUDA);
        assert_memory_equal(cuda.list[i]->name, "cuda_", 5);
        assert_null(sat_registry_find(&cpu, cuda.list[i]->name));
    }
    sat_registry_close(&cpu);
    sat_registry_close(&cuda);
}

/* Of all that take a problem: a time, and a workspace that the device could hold. */
static int look_at_estimates(const sat_registry *r, const sat_pattern *pattern, sat_problem p) {
    int taken = 0;
    sat_pattern_view a = view_of(pattern);
    assert_ok(sat_op_find(p.op)->normalise(&p, &a));
    for (size_t i = 0; i < r->built_in; i++) {
        const sat_variant *v = r->list[i];
        if (v->op != p.op || !v->supports(v, &p, &a, &hopper)) continue;
        double seconds = v->estimate(v, &p, &a, &hopper);
        if (!isfinite(seconds) || seconds <= 0) fail_msg("%s: an estimate of %g s", v->name, seconds);
        size_t bytes = v->workspace ? v->workspace(v, &p, &a, &hopper) : 0;
        if (bytes > (size_t)hopper.memory_bytes) fail_msg("%s: a workspace of %zu bytes", v->name, bytes);
        taken++;
    }
    return taken;
}

static void every_estimate_is_a_time_even_of_nothing(void **state) {
    (void)state;
    static sat_registry registry;
    static const int64_t sizes[][2] = {{0, 0}, {1, 1}, {100, 37}, {512, 768}}, widths[] = {0, 1, 8, 100, 512};
    static const int64_t blocks[][2] = {{1, 1}, {4, 4}, {8, 32}, {16, 16}, {32, 32}, {64, 64}, {128, 128}, {7, 5}};
    assert_ok(sat_registry_open(&registry, SAT_CUDA));
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    uint64_t seed = 1;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++) {
            sat_pattern *pattern = random_pattern(ctx, &seed, sizes[s][0], sizes[s][1], blocks[b][0], blocks[b][1],
                                                  s % 2 ? 1.0 : 0.3, false);
            for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
                for (int t = SAT_F32; t <= SAT_BF16; t++) {
                    sat_problem p = matmul_problem((sat_dtype)t, widths[w]);
                    assert_true(look_at_estimates(&registry, pattern, p) > 0);
                    p.matmul.transpose = SAT_TRANSPOSE, p.flags = SAT_ALLOW_TF32;
                    assert_true(look_at_estimates(&registry, pattern, p) > 0);
                    p = sampled_problem((sat_dtype)t, widths[w]);
                    assert_true(look_at_estimates(&registry, pattern, p) > 0);
                }
            sat_pattern_free(pattern);
        }
    sat_context_free(ctx);
    sat_registry_close(&registry);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_that_is_not_there_is_not_found),
        cmocka_unit_test(the_best_device_is_the_cpu_where_there_is_no_other),
        cmocka_unit_test(a_program_may_have_a_cuda_runtime_of_its_own),
        cmocka_unit_test(the_variants_are_listed_without_a_device),
        cmocka_unit_test(every_estimate_is_a_time_even_of_nothing),
    };
    return cmocka_run_group_tests_name("cuda_host", tests, NULL, NULL);
}
