/* Short runs on fewer threads than there are: what is chosen, what is remembered, and what a plan then does. */
#include "support.h"
#include "problems.h"

#include "core/select.h"
#include "core/fewer.h"

/* ---- the choice, by made-up times ---- */

enum { ALL = 8 };

typedef struct stopwatch {
    sat_runner runner;
    double seconds[ALL + 1]; /* by threads */
    double delay;            /* of every second run on all threads */
    int runs, fails_at;
} stopwatch;

static bool tick(void *user, double *seconds) {
    stopwatch *c = user;
    int threads = c->runner.most_threads;
    c->runs++;
    assert_in_range(threads, 1, ALL);
    *seconds = c->seconds[threads] + (threads == ALL && c->runs % 8 < 5 ? c->delay : 0);
    return c->runs != c->fails_at;
}

static stopwatch stopwatch_of(double one, double two, double four, double eight) {
    return (stopwatch){.seconds = {[1] = one, [2] = two, [4] = four, [8] = eight}};
}

static int chosen(stopwatch c) {
    sat_fewer fewer;
    assert_true(sat_fewer_threads(&c.runner, ALL, tick, &c, &fewer));
    assert_int_equal(c.runner.most_threads, fewer.threads);
    assert_true(fabs(fewer.times[0] - c.seconds[fewer.threads ? fewer.threads : ALL]) < 1e-12);
    return fewer.threads;
}

static void a_run_keeps_to_the_threads_on_which_it_is_fastest(void **state) {
    (void)state;
    assert_int_equal(chosen(stopwatch_of(5e-6, 6e-6, 8e-6, 12e-6)), 1);
    assert_int_equal(chosen(stopwatch_of(9e-6, 5e-6, 6e-6, 12e-6)), 2);
    assert_int_equal(chosen(stopwatch_of(40e-6, 20e-6, 10e-6, 5e-6)), 0);
}

static void a_few_percent_are_not_worth_it(void **state) {
    (void)state;
    assert_int_equal(chosen(stopwatch_of(9.7e-6, 9.8e-6, 9.9e-6, 10e-6)), 0);
}

static void delays_by_other_work_are_no_reason_for_fewer_threads(void **state) {
    (void)state;
    stopwatch c = stopwatch_of(9e-6, 8e-6, 7e-6, 6e-6);
    c.delay = 4e-3;
    assert_int_equal(chosen(c), 0);
}

static void a_run_that_fails_ends_the_search(void **state) {
    (void)state;
    stopwatch c = stopwatch_of(1e-6, 2e-6, 3e-6, 4e-6);
    sat_fewer fewer;
    c.fails_at = 6;
    assert_false(sat_fewer_threads(&c.runner, ALL, tick, &c, &fewer));
    assert_int_equal(c.runs, 6);
    assert_int_equal(c.runner.most_threads, 0);
}

/* ---- a variant that wants one thread ---- */

static int last_threads, wrong_on; /* so many threads; 0: never */

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)a, (void)d;
    return p->a_dtype == SAT_F32;
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)p, (void)a, (void)d;
    return 1e-6;
}

static sat_status launch(const sat_launch *l) {
    const sat_variant *reference = l->variant->user;
    last_threads = l->threads;
    sat_status status = reference->launch(l);
    if (status == SAT_OK && l->threads == wrong_on) ((float *)l->operands[2])[0] += 1;
    return status;
}

/* The backend's clock: ten times as long on two threads as on one, whatever the machine does. */
static sat_status made_up_time(const sat_device *d, sat_status (*call)(void *), void *user, int repeat,
                               double *seconds) {
    (void)d, (void)repeat;
    sat_status status = call(user);
    *seconds = last_threads > 1 ? 5e-5 : 5e-6;
    return status;
}

typedef struct fixture {
    sat_backend backend;
    sat_context *ctx;
    sat_pattern *pattern;
    sat_problem problem;
    const sat_variant *variant;
    sat_request q;
} fixture;

static fixture open_fixture_on(int threads) {
    sat_context_options o = {SAT_SIZED(sat_context_options),
                             .device = "cpu",
                             .cache_dir = "",
                             .threads = threads,
                             .effort = SAT_EFFORT_CACHED,
                             .measure = SAT_MEASURE_WARM};
    fixture f = {.problem = matmul_problem(SAT_F32, 3)};
    uint64_t random = 5;
    assert_ok(sat_context_create(&o, &f.ctx));
    const sat_variant *reference = sat_registry_find(&f.ctx->registry, "cpu_matmul_any_any_c_reference");
    sat_variant v = {SAT_SIZED(sat_variant), .name = "one_thread", .revision = "1",
                     .op = SAT_MATMUL,       .backend = SAT_CPU,   .user = (void *)(uintptr_t)reference,
                     .supports = supports,   .estimate = estimate, .launch = launch};
    assert_ok(sat_variant_register(f.ctx, &v));
    f.variant = sat_registry_find(&f.ctx->registry, v.name);
    f.pattern = random_pattern(f.ctx, &random, 12, 8, 4, 4, 0.5, false);
    assert_ok(sat_request_make(&f.q, f.ctx, f.pattern, &f.problem));
    return f;
}

static fixture open_fixture(void) { return open_fixture_on(2); }

static void close_fixture(fixture *f) {
    sat_pattern_free(f->pattern);
    sat_context_free(f->ctx);
}

static sat_record race(fixture *f) {
    const sat_pattern_view *full;
    sat_outcome outcome;
    assert_ok(sat_pattern_transposed(f->pattern, &full));
    f->backend = *f->ctx->backend, f->backend.time = made_up_time;
    f->ctx->backend = &f->backend;
    sat_tuning t = {.ctx = f->ctx,
                    .device = &f->q.device,
                    .problem = &f->q.race_problem,
                    .pattern = full,
                    .candidates = &f->variant,
                    .count = 1,
                    .budget_seconds = 1};
    assert_ok(sat_tune_race(&t, &outcome));
    assert_int_equal(outcome.count, 1);
    sat_record r = outcome.results[0];
    free(outcome.results);
    return r;
}

static void a_race_finds_the_threads_of_a_short_run_and_its_time_on_them(void **state) {
    (void)state;
    fixture f = open_fixture();
    if (f.q.device.threads < 2) skip(); /* no second thread can be started here */
    sat_record r = race(&f);
    assert_int_equal(r.verdict, SAT_VERDICT_OK);
    assert_int_equal(r.threads, 1);
    assert_true(r.seconds < 1e-5 && r.least_seconds < 1e-5);
    close_fixture(&f);
}

/* A race is on all threads, or on the fewer that it found; its winner is tried on one, and on more than half. */
static void a_winner_is_tried_on_a_number_of_threads_between_one_and_all(void **state) {
    (void)state;
    fixture f = open_fixture_on(4);
    if (f.q.device.threads < 4) skip();
    wrong_on = 3;
    sat_record r = race(&f);
    wrong_on = 0;
    assert_int_equal(r.verdict, SAT_VERDICT_WRONG);
    close_fixture(&f);
}

static void a_plan_runs_on_the_threads_that_are_remembered(void **state) {
    (void)state;
    for (int threads = 0; threads < 2; threads++) {
        fixture f = open_fixture();
        if (f.q.device.threads < 2) skip();
        sat_record r = {.kind = SAT_RECORD_RACED,
                        .verdict = SAT_VERDICT_OK,
                        .seconds = 1e-6,
                        .runs = 9,
                        .may_win = true,
                        .threads = threads,
                        .race = "r"};
        snprintf(r.variant, sizeof r.variant, "%s", f.variant->name);
        snprintf(r.revision, sizeof r.revision, "%s", f.variant->revision);
        snprintf(r.full_key, sizeof r.full_key, "%s", f.q.full_key);
        assert_ok(sat_cache_add(f.ctx->cache, f.q.key, &r, 1));
        sat_plan *plan = NULL, *copy = NULL;
        uint64_t random = 7;
        float *values = random_floats(&random, 24 * 16), *b = random_floats(&random, 24),
              *c = random_floats(&random, 36);
        assert_ok(sat_plan_create(f.ctx, f.pattern, &f.problem, &plan));
        assert_ok(sat_plan_dup(plan, &copy));
        sat_plan *const both[] = {plan, copy};
        for (int i = 0; i < 2; i++) {
            last_threads = -1;
            assert_ok(sat_run(both[i], (const void *[]){values, b}, 2, (void *[]){c}, 1, NULL));
            assert_int_equal(last_threads, threads == 0 ? 2 : 1);
        }
        sat_plan_free(plan), sat_plan_free(copy);
        free(values), free(b), free(c);
        close_fixture(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_keeps_to_the_threads_on_which_it_is_fastest),
        cmocka_unit_test(a_few_percent_are_not_worth_it),
        cmocka_unit_test(delays_by_other_work_are_no_reason_for_fewer_threads),
        cmocka_unit_test(a_run_that_fails_ends_the_search),
        cmocka_unit_test(a_race_finds_the_threads_of_a_short_run_and_its_time_on_them),
        cmocka_unit_test(a_winner_is_tried_on_a_number_of_threads_between_one_and_all),
        cmocka_unit_test(a_plan_runs_on_the_threads_that_are_remembered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
