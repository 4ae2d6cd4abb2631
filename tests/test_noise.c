/* Races on a busy machine: what counts as busy, that it is recorded and shown, and when such a race is run again. The
 * machine's signs are planted, so that the tests hold on any. */
#define _GNU_SOURCE
#include "support.h"

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/select.h"
#include "core/noise.h"
#include "problems.h"

/* ---- a machine as it is told to be ---- */

static sat_backend planted;
static int64_t preemptions, each; /* so far; how many more each time that it is asked */
static bool is_quiet;
static int asked; /* whether it is quiet */

static int64_t preempted(void) { return preemptions += each; }

static bool quiet(const sat_device *d) {
    (void)d;
    asked++;
    return is_quiet;
}

static sat_context *open_on(sat_effort effort, int64_t more, bool now_quiet) {
    sat_context *ctx = NULL;
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = "", .effort = effort};
    o.budget_seconds = 0.02;
    assert_ok(sat_context_create(&o, &ctx));
    planted = *ctx->backend;
    planted.preempted = preempted, planted.quiet = quiet;
    ctx->backend = &planted;
    each = more, is_quiet = now_quiet, asked = 0;
    return ctx;
}

/* ---- the signs ---- */

static sat_record timed(double seconds, double least, int runs) {
    return (sat_record){
        .verdict = SAT_VERDICT_OK, .seconds = seconds, .runs = runs, .least_seconds = least, .may_win = true};
}

static void threads_that_are_preempted_often_make_a_race_a_disturbed_one(void **state) {
    (void)state;
    sat_context *ctx = open_on(SAT_EFFORT_QUICK, 0, true);
    sat_device d = ctx->device;
    sat_record r = timed(1e-3, 1e-3, 1); /* one run tells nothing by itself */
    d.threads = 2;
    assert_false(sat_noise_too_high(&(sat_noise){0.5, 0}, ctx, &d, &r));
    assert_false(sat_noise_too_high(&(sat_noise){0.5, 3}, ctx, &d, &r));
    assert_int_equal(asked, 0);
    assert_false(sat_noise_too_high(&(sat_noise){0.5, 20}, ctx, &d, &r)); /* not many, and nobody is there now */
    assert_int_equal(asked, 1);
    assert_true(sat_noise_too_high(&(sat_noise){0.5, 90}, ctx, &d, &r)); /* gone now, but it was there */
    is_quiet = false;
    assert_true(sat_noise_too_high(&(sat_noise){0.5, 20}, ctx, &d, &r));
    assert_false(sat_noise_too_high(&(sat_noise){0.5, 3}, ctx, &d, &r));
    sat_context_free(ctx);
}

static void runs_that_differ_far_more_than_usual_make_a_race_a_disturbed_one(void **state) {
    (void)state;
    sat_context *ctx = open_on(SAT_EFFORT_QUICK, 0, true);
    sat_noise none = {0.5, 0};
    sat_record far = timed(14e-3, 1e-3, 30), near = timed(1.2e-3, 1e-3, 30), few = timed(14e-3, 1e-3, 2);
    sat_record tiny = timed(8e-6, 5e-6, 30), old = timed(14e-3, 0, 30);
    assert_true(sat_noise_too_high(&none, ctx, &ctx->device, &far));
    assert_false(sat_noise_too_high(&none, ctx, &ctx->device, &near));
    assert_false(sat_noise_too_high(&none, ctx, &ctx->device, &few));
    assert_false(sat_noise_too_high(&none, ctx, &ctx->device, &tiny)); /* the clock's own noise */
    assert_false(sat_noise_too_high(&none, ctx, &ctx->device, &old));  /* an earlier version's */
    planted.preempted = NULL, planted.quiet = NULL;                    /* a backend without these signs */
    assert_true(sat_noise_too_high(&none, ctx, &ctx->device, &far));
    assert_false(sat_noise_too_high(&none, ctx, &ctx->device, &near));
    assert_true(sat_noise_quiet(ctx, &ctx->device));
    sat_context_free(ctx);
}

static void a_machine_with_more_work_than_processors_is_not_quiet(void **state) {
    (void)state;
    enum { MOST = 256 };
    cpu_set_t allowed;
    pid_t hogs[MOST];
    int count = 0;
    if (sched_getaffinity(0, sizeof allowed, &allowed) || 2 * CPU_COUNT(&allowed) > MOST) skip();
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    fflush(NULL);
    for (; count < 2 * CPU_COUNT(&allowed); count++) {
        hogs[count] = fork();
        assert_true(hogs[count] >= 0);
        if (hogs[count]) continue;
        alarm(60);
        for (volatile int i = 0;; i++) continue;
    }
    bool now = ctx->backend->quiet(&ctx->device);
    int64_t before = ctx->backend->preempted();
    for (int i = 0; i < 5; i++) (void)ctx->backend->quiet(&ctx->device);
    int64_t since = ctx->backend->preempted() - before;
    for (int i = 0; i < count; i++) kill(hogs[i], SIGKILL), waitpid(hogs[i], NULL, 0);
    assert_false(now);
    assert_true(since > 0);
    sat_context_free(ctx);
}

/* ---- what is recorded ---- */

typedef struct scene {
    sat_context *ctx;
    sat_pattern *pattern;
    sat_problem problem;
    sat_request q;
} scene;

static scene open_scene(sat_effort effort, int64_t more, bool now_quiet) {
    scene s = {.ctx = open_on(effort, more, now_quiet)};
    uint64_t random = 5;
    s.pattern = random_pattern(s.ctx, &random, 64, 64, 8, 8, 0.3, false);
    s.problem = matmul_problem(SAT_F32, 32);
    assert_ok(sat_request_make(&s.q, s.ctx, s.pattern, &s.problem));
    return s;
}

static void close_scene(scene *s) {
    sat_pattern_free(s->pattern);
    sat_context_free(s->ctx);
}

static sat_race_info race(scene *s, bool fresh, double *seconds, double *least) {
    sat_race *race;
    sat_race_info info = {SAT_SIZED(sat_race_info)};
    sat_race_options o = {SAT_SIZED(sat_race_options), .fresh = fresh};
    assert_ok(sat_race_run(s->ctx, s->pattern, &s->problem, &o, &race));
    assert_ok(sat_race_get_info(race, &info));
    assert_non_null(sat_race_best(race));
    *seconds = sat_race_best(race)->seconds, *least = sat_race_best(race)->least_seconds;
    sat_race_free(race);
    return info;
}

static void a_disturbed_race_is_recorded_and_shown_as_one(void **state) {
    (void)state;
    double seconds, least, again, least_again;
    scene s = open_scene(SAT_EFFORT_QUICK, 1000000, true);
    sat_race_info info = race(&s, false, &seconds, &least);
    assert_true(info.disturbed && !info.cached);
    assert_true(least > 0 && least <= seconds);
    info = race(&s, false, &again, &least_again); /* at once it is not raced again */
    assert_true(info.disturbed && info.cached);
    assert_true(again == seconds && least_again == least);
    sat_entry entry;
    assert_ok(sat_cache_find(s.ctx->cache, s.q.key, false, &entry));
    for (size_t i = 0; i < entry.count; i++) assert_true(entry.records[i].noisy);
    sat_entry_free(&entry);
    close_scene(&s);
}

/* ---- racing again ---- */

/* Records of all that fit, as a race so long ago would have left them. */
static void remember_race(scene *s, const char *name, int64_t seconds_ago, bool busy) {
    const sat_variant *fit[SAT_MAX_VARIANTS];
    size_t count = sat_request_find_candidates(&s->q, NULL, fit);
    for (size_t i = 0; i < count; i++) {
        sat_record r = {.kind = SAT_RECORD_RACED, .verdict = SAT_VERDICT_OK, .seconds = 1, .runs = 9, .noisy = busy};
        r.when = (int64_t)time(NULL) - seconds_ago;
        snprintf(r.race, sizeof r.race, "%s", name);
        snprintf(r.variant, sizeof r.variant, "%s", fit[i]->name);
        snprintf(r.revision, sizeof r.revision, "%s", fit[i]->revision);
        snprintf(r.full_key, sizeof r.full_key, "%s", s->q.full_key);
        assert_ok(sat_cache_add(s->ctx->cache, s->q.key, &r, 1));
    }
}

static bool plan_races(scene *s) {
    sat_plan *plan;
    sat_plan_info info = {SAT_SIZED(sat_plan_info)};
    assert_ok(sat_plan_create(s->ctx, s->pattern, &s->problem, &plan));
    assert_ok(sat_plan_get_info(plan, &info));
    assert_true(info.tuned != info.cached);
    sat_plan_free(plan);
    return info.tuned;
}

static bool race_races(scene *s) {
    double seconds, least;
    return !race(s, false, &seconds, &least).cached;
}

static void what_a_busy_machine_timed_is_raced_again_on_a_quiet_one(void **state) {
    (void)state;
    bool (*const ways[])(scene *) = {plan_races, race_races};
    for (int i = 0; i < 2; i++) {
        scene s = open_scene(SAT_EFFORT_QUICK, 0, true);
        remember_race(&s, "one", 3600, true);
        assert_true(ways[i](&s));
        assert_false(ways[i](&s));
        assert_int_equal(asked, 1);
        close_scene(&s);
    }
}

static void it_is_not_raced_again_while_the_machine_is_busy(void **state) {
    (void)state;
    bool (*const ways[])(scene *) = {plan_races, race_races};
    for (int i = 0; i < 2; i++) {
        scene s = open_scene(SAT_EFFORT_QUICK, 0, false);
        remember_race(&s, "one", 3600, true);
        assert_false(ways[i](&s));
        is_quiet = true;
        assert_false(ways[i](&s)); /* another process will look again */
        assert_int_equal(asked, 1);
        close_scene(&s);
    }
}

static void three_disturbed_races_are_enough(void **state) {
    (void)state;
    scene s = open_scene(SAT_EFFORT_QUICK, 0, true);
    remember_race(&s, "one", 4000, true);
    remember_race(&s, "two", 3000, true);
    remember_race(&s, "three", 2000, true);
    assert_false(plan_races(&s));
    assert_false(race_races(&s));
    assert_int_equal(asked, 0);
    close_scene(&s);
}

static void a_quiet_race_or_a_fresh_one_or_less_effort_settles_it(void **state) {
    (void)state;
    const struct {
        int64_t busy_ago, quiet_ago; /* 0: none */
        sat_effort effort;
    } cases[] = {{3600, 1800, SAT_EFFORT_QUICK},
                 {0, 3600, SAT_EFFORT_QUICK},
                 {10, 0, SAT_EFFORT_QUICK},
                 {3600, 0, SAT_EFFORT_CACHED}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        scene s = open_scene(cases[i].effort, 0, true);
        if (cases[i].busy_ago) remember_race(&s, "busy", cases[i].busy_ago, true);
        if (cases[i].quiet_ago) remember_race(&s, "quiet", cases[i].quiet_ago, false);
        assert_false(plan_races(&s));
        assert_int_equal(asked, 0);
        close_scene(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_that_are_preempted_often_make_a_race_a_disturbed_one),
        cmocka_unit_test(runs_that_differ_far_more_than_usual_make_a_race_a_disturbed_one),
        cmocka_unit_test(a_machine_with_more_work_than_processors_is_not_quiet),
        cmocka_unit_test(a_disturbed_race_is_recorded_and_shown_as_one),
        cmocka_unit_test(what_a_busy_machine_timed_is_raced_again_on_a_quiet_one),
        cmocka_unit_test(it_is_not_raced_again_while_the_machine_is_busy),
        cmocka_unit_test(three_disturbed_races_are_enough),
        cmocka_unit_test(a_quiet_race_or_a_fresh_one_or_less_effort_settles_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
