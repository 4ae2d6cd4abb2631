/* Dense products that are guarded, on the CPU: right for NaN and infinities, so that they may win anywhere. */
#include "not_finite.h"

static void guarded_products_are_right_beside_nan_and_infinities(void **state) {
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    int64_t runs = expect_guarded_right(ctx, 25);
    print_message("%lld plans\n", (long long)runs);
    assert_true(runs > 0 || !has_guarded(ctx)); /* without OpenBLAS and MKL there are none */
    sat_context_free(ctx);
}

static sat_variant found; /* a copy */

static bool find(sat_context *ctx, const char *part) {
    for (size_t i = 0; i < sat_variant_count(ctx); i++) {
        const sat_variant *v = sat_variant_at(ctx, i);
        if (v->op == SAT_MATMUL && strstr(v->name, part)) return found = *v, true;
    }
    return false;
}

/* Without asking for it; the bare one is a baseline. */
static void a_guarded_product_wins_and_a_bare_one_does_not(void **state) {
    (void)state;
    uint64_t random = 3;
    sat_context *ctx = open_context(SAT_EFFORT_QUICK);
    sat_pattern *pattern = random_pattern(ctx, &random, 96, 80, 8, 8, 0.5, false);
    sat_problem p = matmul_problem(SAT_F32, 40);
    for (int guarded = 0; guarded < 2; guarded++) {
        sat_race *race = NULL;
        if (!find(ctx, guarded ? "blas_guarded" : "blas_dense")) continue;
        sat_race_options o = {SAT_SIZED(sat_race_options), .only = found.name, .fresh = true};
        assert_ok(sat_race_run(ctx, pattern, &p, &o, &race));
        const sat_result *best = sat_race_best(race);
        assert_true((best != NULL) == guarded);
        assert_true((found.flags & SAT_V_DENSE) ? !guarded : guarded);
        sat_race_free(race);
    }
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

/* Nothing has been checked there, so a library may not serve, however fast it is estimated to be. */
static void an_estimate_alone_chooses_no_guarded_product(void **state) {
    (void)state;
    uint64_t random = 4;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    sat_pattern *pattern = random_pattern(ctx, &random, 512, 512, 1, 1, 1, false);
    sat_problem p = matmul_problem(SAT_F64, 256);
    sat_plan *plan = NULL;
    sat_plan_info info = {SAT_SIZED(sat_plan_info)};
    assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
    assert_ok(sat_plan_get_info(plan, &info));
    assert_null(strstr(info.variant, "_guarded"));
    sat_plan_free(plan);
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guarded_products_are_right_beside_nan_and_infinities),
        cmocka_unit_test(a_guarded_product_wins_and_a_bare_one_does_not),
        cmocka_unit_test(an_estimate_alone_chooses_no_guarded_product),
    };
    return cmocka_run_group_tests_name("guarded", tests, NULL, NULL);
}
