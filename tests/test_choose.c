/* Keys, buckets, and the rule that turns records into a winner. */
#include "support.h"

#include "cache/cache_file.h"
#include "core/choose.h"
#include "core/key.h"
#include "problems.h"

static sat_registry registry;

static bool yes(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)p, (void)a, (void)d;
    return true;
}

static double one(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)p, (void)a, (void)d;
    return 1;
}

static sat_status nothing(const sat_launch *l) {
    (void)l;
    return SAT_OK;
}

static int set_up(void **state) {
    (void)state;
    assert_ok(sat_registry_open(&registry, SAT_CPU));
    const char *names[] = {"ant", "bee", "cat", "dog"};
    int priorities[] = {0, 5, 5, 0};
    for (int i = 0; i < 4; i++) {
        sat_variant v = {SAT_SIZED(sat_variant), .name = names[i],   .revision = "1",
                         .op = SAT_MATMUL,       .backend = SAT_CPU, .priority = priorities[i],
                         .supports = yes,        .estimate = one,    .launch = nothing};
        assert_ok(sat_registry_add(&registry, &v));
    }
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    sat_registry_close(&registry);
    return 0;
}

static sat_record result(const char *name, double seconds) {
    sat_record r = {.verdict = SAT_VERDICT_OK, .seconds = seconds, .runs = 9, .may_win = true};
    snprintf(r.variant, sizeof r.variant, "%s", name);
    return r;
}

static sat_record record(const char *race, int64_t when, const char *name, double seconds) {
    sat_record r = {.kind = SAT_RECORD_RACED,
                    .when = when,
                    .verdict = SAT_VERDICT_OK,
                    .seconds = seconds,
                    .runs = 9,
                    .may_win = true};
    snprintf(r.race, sizeof r.race, "%s", race);
    snprintf(r.variant, sizeof r.variant, "%s", name);
    snprintf(r.revision, sizeof r.revision, "1");
    snprintf(r.full_key, sizeof r.full_key, "this one");
    snprintf(r.checked_by, sizeof r.checked_by, "us");
    snprintf(r.pattern, sizeof r.pattern, "diagonal");
    return r;
}

static void the_fastest_right_one_wins(void **state) {
    (void)state;
    sat_record r[] = {result("dog", 1.0), result("ant", 0.5), result("bee", 0.1), result("cat", 0.2)};
    r[2].verdict = SAT_VERDICT_WRONG;
    r[3].may_win = false;
    sat_choose_sort(r, 4, &registry);
    assert_string_equal(r[0].variant, "ant");
    assert_string_equal(r[1].variant, "dog");
    assert_string_equal(r[2].variant, "cat"); /* a baseline, after those that may win */
    assert_string_equal(r[3].variant, "bee");
}

static void within_the_tolerance_priority_decides_and_then_the_name(void **state) {
    (void)state;
    sat_record r[] = {result("dog", 1.0), result("ant", 1.005), result("cat", 1.014), result("bee", 1.016)};
    sat_choose_sort(r, 4, &registry);
    assert_string_equal(r[0].variant, "cat"); /* bee is beyond the tolerance, ant and dog have no priority */
    sat_record s[] = {result("dog", 1.0), result("ant", 1.005)};
    sat_choose_sort(s, 2, &registry);
    assert_string_equal(s[0].variant, "ant");
}

static void noise_widens_the_tolerance_to_three_percent_at_most(void **state) {
    (void)state;
    sat_record r[] = {result("dog", 1.0), result("bee", 1.028)};
    sat_choose_sort(r, 2, &registry);
    assert_string_equal(r[0].variant, "dog");
    r[0].spread = r[1].spread = 0.1;
    sat_choose_sort(r, 2, &registry);
    assert_string_equal(r[0].variant, "bee");
    sat_record far[] = {result("dog", 1.0), result("bee", 1.04)};
    far[0].spread = far[1].spread = 0.5;
    sat_choose_sort(far, 2, &registry);
    assert_string_equal(far[0].variant, "dog");
}

static void times_of_different_races_are_never_compared(void **state) {
    (void)state;
    /* bee lost to ant in the newer race; that the older race, on a faster day, had it at 0.1 says nothing. */
    sat_record r[] = {record("one", 100, "bee", 0.1), record("one", 100, "dog", 0.2), record("two", 200, "ant", 0.5),
                      record("two", 200, "bee", 0.7)};
    sat_entry entry = {r, 4};
    const sat_variant *ranking[8];
    assert_int_equal(sat_choose_ranking(&entry, &registry, 0, ranking, 8), 3);
    assert_string_equal(ranking[0]->name, "ant");
    assert_string_equal(ranking[1]->name, "bee");
    assert_string_equal(ranking[2]->name, "dog");
}

static void a_race_on_a_quiet_machine_says_more_than_a_newer_one_on_a_busy_machine(void **state) {
    (void)state;
    sat_record r[] = {record("one", 100, "bee", 0.2), record("one", 100, "dog", 0.3), record("two", 200, "ant", 0.5),
                      record("two", 200, "dog", 0.4)};
    r[2].noisy = r[3].noisy = true;
    sat_entry entry = {r, 4};
    const sat_variant *ranking[8];
    assert_int_equal(sat_choose_ranking(&entry, &registry, 0, ranking, 8), 3);
    assert_string_equal(ranking[0]->name, "bee");
    assert_string_equal(ranking[1]->name, "dog");
    assert_string_equal(ranking[2]->name, "ant"); /* known from the disturbed one alone */
    assert_true(sat_choose_needs_retune(&entry, 1000));
    assert_false(sat_choose_needs_retune(&entry, 210)); /* not at once */
    r[0].when = r[1].when = 300;
    assert_false(sat_choose_needs_retune(&entry, 1000)); /* a quiet one came after it */
}

static void wrong_unknown_and_revised_variants_are_not_ranked(void **state) {
    (void)state;
    sat_record r[] = {record("one", 100, "ant", 0.1), record("one", 100, "bee", 0.2), record("one", 100, "elk", 0.3),
                      record("one", 100, "dog", 0.4), record("two", 200, "ant", 0.1)};
    r[1].revision[0] = '2';
    r[4].verdict = SAT_VERDICT_WRONG; /* once wrong is enough */
    sat_entry entry = {r, 5};
    const sat_variant *ranking[8];
    assert_int_equal(sat_choose_ranking(&entry, &registry, 0, ranking, 8), 1);
    assert_string_equal(ranking[0]->name, "dog");
    assert_false(sat_choose_has_result(&entry, sat_registry_find(&registry, "bee")));
    assert_true(sat_choose_has_result(&entry, sat_registry_find(&registry, "ant")));
    assert_true(sat_choose_verified(&entry, sat_registry_find(&registry, "dog"), "this one", NULL));
    assert_false(sat_choose_verified(&entry, sat_registry_find(&registry, "dog"), "another", NULL));
    assert_false(sat_choose_verified(&entry, sat_registry_find(&registry, "bee"), "this one", NULL));
}

/* Reading takes every fingerprint off that is not this build's and machine's own. */
static void what_others_found_is_neither_right_nor_wrong_here(void **state) {
    (void)state;
    sat_record r[] = {record("one", 100, "ant", 0.1), record("one", 100, "bee", 0.2), record("two", 200, "bee", 0.1)};
    r[2].verdict = SAT_VERDICT_WRONG;
    sat_entry entry = {r, 3};
    const sat_variant *ranking[8], *ant = sat_registry_find(&registry, "ant"),
                                   *bee = sat_registry_find(&registry, "bee");
    assert_true(sat_choose_verified(&entry, ant, "this one", "diagonal"));
    assert_false(sat_choose_verified(&entry, ant, "this one", "another pattern"));
    assert_true(sat_choose_wrong(&entry, bee));
    assert_int_equal(sat_choose_ranking(&entry, &registry, 0, ranking, 8), 1);
    sat_entry_clear_foreign(&entry, "us");
    assert_true(sat_choose_verified(&entry, ant, "this one", NULL));
    sat_entry_clear_foreign(&entry, "them");
    assert_false(sat_choose_verified(&entry, ant, "this one", NULL));
    assert_false(sat_choose_wrong(&entry, bee));
    assert_int_equal(sat_choose_ranking(&entry, &registry, 0, ranking, 8), 2); /* by time, to be checked */
    r[2].verdict = SAT_VERDICT_ERROR;
    assert_true(sat_choose_failed(&entry, bee, "this one"));
}

static void buckets_keep_small_sizes_exact_and_are_idempotent(void **state) {
    (void)state;
    for (int64_t i = 0; i <= 8; i++) assert_int_equal(sat_bucket_size(i), i);
    assert_int_equal(sat_bucket_size(2000), 2048);
    assert_int_equal(sat_bucket_size(4096), 4096);
    int64_t last = 0;
    for (int64_t i = 1; i < 100000; i += 7) {
        int64_t b = sat_bucket_size(i);
        assert_true(b >= last && b <= i * 9 / 8 + 1 && b >= i * 7 / 8 - 1);
        assert_int_equal(sat_bucket_size(b), b);
        last = b;
    }
    assert_true(sat_bucket_ratio(0) == 0);
    assert_true(sat_bucket_ratio(0.125) == 0.125);
    assert_true(sat_bucket_ratio(0.12) == 0.125);
}

static void the_key_tells_apart_what_decides_and_nothing_else(void **state) {
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    uint64_t random = 3;
    sat_pattern *x = random_pattern(ctx, &random, 512, 512, 16, 16, 1, false);
    sat_pattern *y = random_pattern(ctx, &random, 520, 515, 16, 16, 1, true);
    char base[512], other[512];
    sat_problem p = matmul_problem(SAT_F32, 512);
    assert_ok(sat_problem_key(ctx, x, &p, base, sizeof base));
    assert_ok(sat_problem_key(ctx, y, &p, other, sizeof other));
    assert_string_equal(base, other);
    p.alpha = 3; /* scalars but a zero beta cost nothing */
    assert_ok(sat_problem_key(ctx, x, &p, other, sizeof other));
    assert_string_equal(base, other);
    p = matmul_problem(SAT_F32, 512), p.b_align = 64; /* on the CPU chance */
    assert_ok(sat_problem_key(ctx, x, &p, other, sizeof other));
    assert_string_equal(base, other);
#define DIFFERS(change)                                                                                                \
    p = matmul_problem(SAT_F32, 512);                                                                                  \
    change;                                                                                                            \
    assert_ok(sat_problem_key(ctx, x, &p, other, sizeof other));                                                       \
    assert_string_not_equal(base, other)
    DIFFERS(p.n = 1024);
    DIFFERS(p = matmul_problem(SAT_F16, 512));
    DIFFERS(p = sampled_problem(SAT_F32, 512));
    DIFFERS(p.matmul.transpose = SAT_TRANSPOSE);
    DIFFERS(p.beta = 1);
    DIFFERS(p.matmul.bias = SAT_BIAS_ROW);
    DIFFERS(p.matmul.activation = SAT_ACT_RELU);
    DIFFERS(p.flags = SAT_FIXED_VALUES);
    DIFFERS(p.flags = SAT_ALLOW_DENSE);
    DIFFERS((p.b.row_stride = 1, p.b.col_stride = 512));
    DIFFERS((p.c.row_stride = 600, p.c.col_stride = 1));
    DIFFERS((p.batch = 4, p.c.batch_stride = 512 * 512));
#undef DIFFERS
    assert_fails(sat_problem_key(ctx, x, &p, other, 10), SAT_BAD_SIZE, "capacity");
    sat_pattern_free(x), sat_pattern_free(y);
    sat_context_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fastest_right_one_wins),
        cmocka_unit_test(within_the_tolerance_priority_decides_and_then_the_name),
        cmocka_unit_test(noise_widens_the_tolerance_to_three_percent_at_most),
        cmocka_unit_test(times_of_different_races_are_never_compared),
        cmocka_unit_test(a_race_on_a_quiet_machine_says_more_than_a_newer_one_on_a_busy_machine),
        cmocka_unit_test(wrong_unknown_and_revised_variants_are_not_ranked),
        cmocka_unit_test(what_others_found_is_neither_right_nor_wrong_here),
        cmocka_unit_test(buckets_keep_small_sizes_exact_and_are_idempotent),
        cmocka_unit_test(the_key_tells_apart_what_decides_and_nothing_else),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
