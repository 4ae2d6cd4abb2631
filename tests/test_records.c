/* What a file may say and what it may not: timings are taken from records; what is allowed, registered and right comes
 * from the registry, the problem and all that is known. */
#include "support.h"

#include "core/select.h"
#include "problems.h"

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)a, (void)d;
    return p->a_dtype == SAT_F32;
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)p, (void)a, (void)d;
    return 1e-6;
}

static sat_status launch(const sat_launch *l) {
    (void)l;
    return sat_fail(SAT_INTERNAL, "%s was run", l->variant->name);
}

/* A context in memory whose cache says that a planted variant is ten times faster than all others. */
typedef struct scene {
    sat_context *ctx;
    sat_pattern *pattern;
    sat_problem problem;
    sat_request q;
} scene;

static sat_record record_of(const sat_request *q, const char *race, const char *name, const char *revision,
                            double seconds) {
    sat_record r = {.kind = SAT_RECORD_RACED, .when = 1000, .verdict = SAT_VERDICT_OK, .seconds = seconds, .runs = 9};
    r.may_win = true;
    snprintf(r.race, sizeof r.race, "%s", race);
    snprintf(r.variant, sizeof r.variant, "%s", name);
    snprintf(r.revision, sizeof r.revision, "%s", revision);
    snprintf(r.full_key, sizeof r.full_key, "%s", q->full_key);
    snprintf(r.checked_by, sizeof r.checked_by, "%s", sat_cache_fingerprint(q->ctx->cache)); /* its verdict counts */
    return r;
}

static void add(scene *s, const sat_record *r) { assert_ok(sat_cache_add(s->ctx->cache, s->q.key, r, 1)); }

/* Records of all that fit, as a race would write them, the planted one the fastest. */
static scene open_scene(uint32_t variant_flags, uint32_t problem_flags, bool may_win) {
    scene s = {.ctx = open_context(SAT_EFFORT_CACHED)};
    uint64_t random = 5;
    const sat_variant *fit[SAT_MAX_VARIANTS];
    sat_variant v = {SAT_SIZED(sat_variant), .name = "planted",    .revision = "7",       .op = SAT_MATMUL,
                     .backend = SAT_CPU,     .supports = supports, .estimate = estimate,  .launch = launch,
                     .priority = 0,          .about = "",          .flags = variant_flags};
    assert_ok(sat_variant_register(s.ctx, &v));
    s.pattern = random_pattern(s.ctx, &random, 64, 64, 8, 8, 0.3, false);
    s.problem = matmul_problem(SAT_F32, 32);
    s.problem.flags = problem_flags;
    assert_ok(sat_request_make(&s.q, s.ctx, s.pattern, &s.problem));
    size_t count = sat_request_find_candidates(&s.q, NULL, fit);
    for (size_t i = 0; i < count; i++) {
        sat_record r = record_of(&s.q, "one", fit[i]->name, fit[i]->revision, 1);
        if (strcmp(fit[i]->name, "planted") == 0) continue;
        r.may_win = may_win;
        add(&s, &r);
    }
    sat_record r = record_of(&s.q, "one", "planted", "7", 0.1);
    r.may_win = may_win;
    add(&s, &r);
    return s;
}

static void close_scene(scene *s) {
    sat_pattern_free(s->pattern);
    sat_context_free(s->ctx);
}

static bool planted_serves(scene *s) {
    sat_plan *plan;
    sat_plan_info info = {SAT_SIZED(sat_plan_info)};
    assert_ok(sat_plan_create(s->ctx, s->pattern, &s->problem, &plan));
    assert_ok(sat_plan_get_info(plan, &info));
    assert_true(info.cached);
    sat_plan_free(plan);
    return strcmp(info.variant, "planted") == 0;
}

/* The race as the cache has it: is the planted one its best? */
static bool planted_is_best(scene *s) {
    sat_race *race;
    assert_ok(sat_race_run(s->ctx, s->pattern, &s->problem, NULL, &race));
    sat_race_info info = {SAT_SIZED(sat_race_info)};
    assert_ok(sat_race_get_info(race, &info));
    assert_true(info.cached);
    assert_non_null(sat_race_best(race));
    bool best = strcmp(sat_race_best(race)->variant, "planted") == 0;
    sat_race_free(race);
    return best;
}

static void a_record_allows_no_dense_variant(void **state) {
    (void)state;
    scene s = open_scene(SAT_V_DENSE, 0, true);
    assert_false(planted_serves(&s));
    assert_false(planted_is_best(&s));
    close_scene(&s);
    s = open_scene(SAT_V_DENSE, SAT_ALLOW_DENSE, true); /* the problem does */
    assert_true(planted_serves(&s));
    assert_true(planted_is_best(&s));
    close_scene(&s);
}

static void a_record_allows_no_variant_whose_results_depend_on_timing(void **state) {
    (void)state;
    scene s = open_scene(SAT_V_NONDETERMINISTIC, 0, true);
    assert_false(planted_serves(&s));
    assert_false(planted_is_best(&s));
    close_scene(&s);
    s = open_scene(SAT_V_NONDETERMINISTIC, SAT_ALLOW_NONDETERMINISTIC, true);
    assert_true(planted_serves(&s));
    close_scene(&s);
}

static void a_record_forbids_nothing_either(void **state) {
    (void)state;
    scene s = open_scene(0, 0, false);
    assert_true(planted_serves(&s));
    assert_true(planted_is_best(&s));
    close_scene(&s);
}

static void a_variant_that_is_not_there_is_nobodys_best(void **state) {
    (void)state;
    scene s = open_scene(0, 0, true);
    sat_record gone = record_of(&s.q, "one", "gone", "1", 0.01), revised = record_of(&s.q, "one", "planted", "8", 0.02);
    add(&s, &gone);
    assert_true(planted_is_best(&s));
    add(&s, &revised); /* takes the place of the one that is registered as it is now */
    sat_race *race;
    sat_race_options o = {SAT_SIZED(sat_race_options), .discard = true};
    s.ctx->options.budget_seconds = 0.01;
    assert_ok(sat_race_run(s.ctx, s.pattern, &s.problem, &o, &race));
    const sat_result *best = sat_race_best(race);
    assert_non_null(best);
    assert_string_not_equal(best->variant, "gone");
    assert_string_not_equal(best->revision, "8");
    sat_race_free(race);
    close_scene(&s);
}

static void what_a_check_found_wrong_is_not_shown_as_the_best(void **state) {
    (void)state;
    scene s = open_scene(0, 0, true);
    assert_true(planted_is_best(&s));
    sat_record wrong = record_of(&s.q, "", "planted", "7", 0);
    wrong.kind = SAT_RECORD_VERIFIED, wrong.verdict = SAT_VERDICT_WRONG, wrong.when = 2000;
    snprintf(wrong.full_key, sizeof wrong.full_key, "another exact problem of this key");
    add(&s, &wrong);
    assert_false(planted_serves(&s));
    assert_false(planted_is_best(&s));
    close_scene(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_allows_no_dense_variant),
        cmocka_unit_test(a_record_allows_no_variant_whose_results_depend_on_timing),
        cmocka_unit_test(a_record_forbids_nothing_either),
        cmocka_unit_test(a_variant_that_is_not_there_is_nobodys_best),
        cmocka_unit_test(what_a_check_found_wrong_is_not_shown_as_the_best),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
