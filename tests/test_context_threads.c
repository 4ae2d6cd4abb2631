/* Contexts and patterns shared between threads: plans, one-call products, registration and background tuning at once.
 */
#include "support.h"

#include <pthread.h>
#include "problems.h"

enum { THREADS = 6, ROUNDS = 12 };

typedef struct worker {
    sat_context *ctx;
    sat_pattern *pattern;
    const float *values, *b;
    const double *want;
    int64_t rows, n;
    int index;
    const char *problem; /* what went wrong; NULL if nothing did */
} worker;

static bool close_enough(const float *got, const double *want, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (!(got[i] - want[i] < 1e-4 && got[i] - want[i] > -1e-4)) return false;
    return true;
}

static bool yes(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)p, (void)a, (void)d;
    return false;
}

static double one(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)p, (void)a, (void)d;
    return 1;
}

static sat_status nothing(const sat_launch *l) {
    (void)l;
    return SAT_OK;
}

static const char *const registered[THREADS] = {"v0", "v1", "v2", "v3", "v4", "v5"};

static void *work(void *user) {
    worker *w = user;
    float *c = malloc((size_t)(w->rows * w->n) * sizeof *c);
    sat_variant v = {SAT_SIZED(sat_variant), .name = registered[w->index],
                     .revision = "1",        .op = SAT_MATMUL,
                     .backend = SAT_CPU,     .supports = yes,
                     .estimate = one,        .launch = nothing};
    if (sat_variant_register(w->ctx, &v) != SAT_OK) w->problem = "register";
    for (int i = 0; i < ROUNDS && !w->problem; i++) {
        sat_problem p = matmul_problem(SAT_F32, w->n);
        memset(c, 0xff, (size_t)(w->rows * w->n) * sizeof *c);
        if (i % 2) {
            if (sat_bsr_matmul(w->ctx, w->pattern, &p, w->values, w->b, c, NULL, NULL) != SAT_OK)
                w->problem = "one call";
        } else {
            sat_plan *plan = NULL;
            if (sat_plan_create(w->ctx, w->pattern, &p, &plan) != SAT_OK) w->problem = "plan";
            else if (sat_run(plan, (const void *[]){w->values, w->b}, 2, (void *[]){c}, 1, NULL) != SAT_OK)
                w->problem = "run";
            sat_plan_free(plan);
        }
        if (!w->problem && !close_enough(c, w->want, w->rows * w->n)) w->problem = "wrong product";
    }
    free(c);
    return NULL;
}

static void run_threads(bool background) {
    sat_context *ctx = NULL;
    sat_context_options o = {
        SAT_SIZED(sat_context_options), .device = "cpu",          .cache_dir = "", .budget_seconds = 0.05,
        .effort = SAT_EFFORT_QUICK,     .background = background, .threads = 1};
    assert_ok(sat_context_create(&o, &ctx));
    uint64_t random = 31;
    int64_t n = 24;
    sat_pattern *pattern = random_pattern(ctx, &random, 40, 32, 4, 8, 0.5, false);
    sat_pattern_view view = view_of(pattern);
    float *values = random_floats(&random, view.stored_blocks * 32), *b = random_floats(&random, 32 * n);
    double *want = dense_product(&view, values, b, n);
    pthread_t threads[THREADS];
    worker workers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){ctx, pattern, values, b, want, 40, n, i, NULL};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        if (workers[i].problem) fail_msg("thread %d: %s: %s", i, workers[i].problem, sat_last_error());
    }
    assert_ok(sat_context_wait(ctx));
    sat_problem p = matmul_problem(SAT_F32, n);
    sat_plan *plan = NULL;
    sat_plan_info info = {SAT_SIZED(sat_plan_info)};
    assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
    assert_ok(sat_plan_get_info(plan, &info));
    assert_true(info.cached && info.verified);
    sat_plan_free(plan);
    free(values), free(b), free(want);
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

static void threads_share_a_context(void **state) {
    (void)state;
    run_threads(false);
}

static void threads_share_a_context_that_tunes_in_the_background(void **state) {
    (void)state;
    run_threads(true);
}

static void a_context_may_close_while_the_background_has_work(void **state) {
    (void)state;
    for (int i = 0; i < 5; i++) {
        sat_context *ctx = NULL;
        sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = "", .background = true,
                                 .effort = SAT_EFFORT_QUICK,     .threads = 1};
        assert_ok(sat_context_create(&o, &ctx));
        uint64_t random = 5;
        for (int64_t n = 1; n < 30; n++) {
            sat_pattern *pattern = random_pattern(ctx, &random, 64, 64, 8, 8, 0.5, false);
            sat_problem p = matmul_problem(SAT_F32, n);
            sat_plan *plan = NULL;
            assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
            sat_plan_free(plan);
            sat_pattern_free(pattern); /* queued races hold on to it */
        }
        sat_context_free(ctx);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_share_a_context),
        cmocka_unit_test(threads_share_a_context_that_tunes_in_the_background),
        cmocka_unit_test(a_context_may_close_while_the_background_has_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
