/* A device's memory given to a context on the CPU: found out where the process has a CUDA driver, which is never loaded
 * for that. FAKE_DRIVER is the stand-in for it. */
#define _GNU_SOURCE
#include "support.h"

#include <dlfcn.h>

#include "fake_driver.h"
#include "problems.h"

enum { N = 8, SIDE = 16 };

static float values[SIDE * SIDE], b[SIDE * N], c[SIDE * N];

static fake_driver_memory *load_driver(void) {
    void *driver = dlopen(FAKE_DRIVER, RTLD_NOW | RTLD_LOCAL);
    if (!driver) fail_msg("%s", dlerror());
    fake_driver_memory *range = dlsym(driver, "fake_driver_range");
    assert_non_null(range);
    return range;
}

static void a_device_s_memory_is_refused_on_the_cpu(void **state) {
    (void)state;
    uint64_t random = 3;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    sat_pattern *pattern = random_pattern(ctx, &random, SIDE, SIDE, 4, 4, 1.1, false), *none = NULL;
    sat_problem p = matmul_problem(SAT_F32, N);
    sat_plan *plan = NULL;
    int32_t row_ptr[] = {0, 0};
    sat_bsr empty = {SAT_SIZED(sat_bsr),    .rows = 4,         .cols = 4, .block_rows = 4, .block_cols = 4,
                     .index_type = SAT_I32, .row_ptr = row_ptr};
    assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
    assert_ok(sat_bsr_matmul(ctx, pattern, &p, values, b, c, NULL, NULL)); /* there is no driver yet */
    assert_null(dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY));

    fake_driver_memory *range = load_driver();
    range->from = (uintptr_t)b, range->to = (uintptr_t)(b + SIDE * N);
    assert_fails(sat_run(plan, (const void *[]){values, b}, 2, (void *[]){c}, 1, NULL), SAT_WRONG_MEMORY, "b is");
    range->managed = 1; /* both sides can use that */
    assert_ok(sat_run(plan, (const void *[]){values, b}, 2, (void *[]){c}, 1, NULL));
    *range = (fake_driver_memory){(uintptr_t)row_ptr, (uintptr_t)(row_ptr + 2), 0};
    assert_fails(sat_pattern_create(ctx, &empty, &none), SAT_WRONG_MEMORY, "row_ptr is");
    assert_fails(sat_memory_write(ctx, row_ptr, values, 4), SAT_WRONG_MEMORY, "not memory of");
    *range = (fake_driver_memory){0};
    assert_ok(sat_pattern_create(ctx, &empty, &none));
    sat_pattern_free(none), sat_plan_free(plan), sat_pattern_free(pattern), sat_context_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_device_s_memory_is_refused_on_the_cpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
