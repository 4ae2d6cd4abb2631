/* On the model of CUDA: captures into graphs, what is waited for, freeing while work is queued, and threads. */
#include "fake_support.h"
#include "../problems.h"

/* ---- captures ---- */

static void a_run_is_captured_and_replayed_with_new_values(void **state) {
    (void)state;
    scene s;
    open_scene(&s, (planted){0});
    assert_ok(sat_plan_create(s.ctx, s.pattern, &s.problem, &s.plan));
    begin_capture(s.stream);
    assert_ok(run_scene(&s)); /* its first, with pointers that it has not seen */
    cudaGraphExec_t exec = end_capture(s.stream);
    assert_int_equal(s.o.at[2][5], 33); /* nothing ran */
    for (int value = 1; value < 4; value++) {
        memset(s.o.at[0], value, BYTES);
        replay(exec, s.stream);
        assert_int_equal(s.o.at[2][BYTES - 1], value);
    }
    cudaGraphExecDestroy(exec);
    close_scene(&s);
}

static void a_launch_that_allocates_under_capture_is_found_out(void **state) {
    (void)state;
    scene s;
    cudaGraph_t graph;
    open_scene(&s, (planted){.allocates = true});
    make_plan(&s);
    begin_capture(s.stream);
    (void)run_scene(&s);
    assert_int_equal(cudaStreamEndCapture(s.stream, &graph), cudaErrorStreamCaptureInvalidated);
    close_scene(&s);
}

static void what_is_prepared_is_there_before_a_run_on_any_stream(void **state) {
    (void)state;
    scene s;
    open_scene(&s, (planted){.workspace = BYTES, .prepares = true});
    make_plan(&s);
    assert_ok(run_scene(&s));
    assert_ok(sat_stream_wait(s.ctx, s.stream));
    assert_int_equal(s.o.at[2][0], 7);
    close_scene(&s);
}

static void fixed_values_taken_in_by_a_graph_are_not_taken_for_done(void **state) {
    (void)state;
    scene s;
    open_scene(&s, (planted){.workspace = BYTES, .refreshes = true});
    s.problem.flags |= SAT_FIXED_VALUES;
    make_plan(&s);
    begin_capture(s.stream);
    assert_ok(run_scene(&s));
    cudaGraphExec_t exec = end_capture(s.stream);
    memset(s.o.at[0], 5, BYTES);
    assert_ok(run_scene(&s)); /* outside of the graph, which has not run: it takes the values in itself */
    assert_ok(sat_stream_wait(s.ctx, s.stream));
    assert_int_equal(s.o.at[2][0], 5);
    memset(s.o.at[0], 6, BYTES);
    assert_ok(run_scene(&s)); /* now they are fixed */
    assert_ok(sat_stream_wait(s.ctx, s.stream));
    assert_int_equal(s.o.at[2][0], 5);
    replay(exec, s.stream); /* the graph has its own conversion */
    assert_int_equal(s.o.at[2][0], 6);
    cudaGraphExecDestroy(exec);
    close_scene(&s);
}

/* All that takes memory and waits, while the main thread captures. */
static void *work_beside_a_capture(void *user) {
    sat_context *ctx = user;
    sat_problem p = matmul_problem(SAT_F32, SIDE);
    sat_pattern *pattern = full_pattern(ctx);
    sat_plan *plan = NULL, *copy = NULL;
    cudaStream_t s = new_stream();
    char host[BYTES];
    void *memory = NULL, *at[3];
    assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
    assert_ok(sat_plan_dup(plan, &copy));
    for (int i = 0; i < 3; i++) assert_ok(sat_memory_alloc(ctx, BYTES, &at[i]));
    assert_ok(sat_memory_alloc(ctx, BYTES, &memory));
    assert_ok(sat_memory_write(ctx, at[0], memset(host, 9, BYTES), BYTES));
    assert_ok(run_in_order(plan, &p, at, s));
    assert_ok(sat_stream_wait(ctx, s));
    assert_ok(sat_memory_read(ctx, host, at[2], BYTES));
    assert_int_equal(host[100], 9);
    sat_plan_free(plan), sat_plan_free(copy), sat_pattern_free(pattern);
    for (int i = 0; i < 3; i++) sat_memory_free(ctx, at[i]);
    sat_memory_free(ctx, memory);
    cudaStreamDestroy(s);
    return NULL;
}

static void other_threads_tune_allocate_and_free_while_a_graph_is_captured(void **state) {
    (void)state;
    for (int warm = 0; warm < 2; warm++) {
        scene s;
        pthread_t thread;
        sat_context_options options = {.effort = SAT_EFFORT_QUICK, .measure = (sat_measure)warm};
        open_scene_with(&s, (planted){0}, options);
        make_plan(&s);
        begin_capture(s.stream);
        assert_int_equal(pthread_create(&thread, NULL, work_beside_a_capture, s.ctx), 0);
        pthread_join(thread, NULL);
        work_beside_a_capture(s.ctx); /* and this very thread */
        assert_ok(run_scene(&s));
        assert_fails(sat_stream_wait(s.ctx, s.stream), SAT_UNSUPPORTED, "captured");
        cudaGraphExecDestroy(end_capture(s.stream));
        assert_int_equal(fake.spoilt, 0);
        close_scene(&s);
    }
}

static void one_call_under_capture_takes_a_plan_that_needs_nothing(void **state) {
    (void)state;
    scene s;
    open_scene(&s, (planted){.workspace = BYTES, .prepares = true});
    sat_problem turned = s.problem;
    turned.matmul.transpose = SAT_TRANSPOSE;
    int allocations = fake.allocations, kernels = fake.kernels;
    begin_capture(s.stream);
    assert_ok(call_scene(&s));
    assert_int_equal(s.x.launches, 0); /* that one is neither checked nor without memory */
    assert_true(fake.kernels > kernels);
    assert_fails(sat_bsr_matmul(s.ctx, s.pattern, &turned, s.o.at[0], s.o.at[1], s.o.at[2], NULL, s.stream),
                 SAT_UNSUPPORTED, "before the capture"); /* its index is not made yet */
    assert_int_equal(fake.allocations, allocations);
    cudaGraphExecDestroy(end_capture(s.stream));
    assert_ok(call_scene(&s)); /* not kept to the estimate of the capture: this one tunes */
    assert_true(s.x.launches > 0);
    assert_ok(sat_stream_wait(s.ctx, s.stream));
    assert_int_equal(s.o.at[2][0], 7);
    close_scene(&s);
}

static void a_captured_one_call_keeps_its_workspace_for_the_graph(void **state) {
    (void)state;
    scene s;
    open_scene(&s, (planted){.workspace = BYTES, .prepares = true});
    assert_ok(call_scene(&s));
    void *plain = s.x.used;
    begin_capture(s.stream);
    assert_ok(call_scene(&s));
    void *captured = s.x.used;
    assert_ptr_equal(captured, plain); /* the plan that is there */
    cudaGraphExec_t exec = end_capture(s.stream);
    assert_ok(call_scene(&s));
    assert_ptr_not_equal(s.x.used, captured); /* the graph may run at any time, on any stream */
    begin_capture(s.stream);
    assert_ok(call_scene(&s));
    assert_ptr_equal(s.x.used, captured); /* captures share */
    cudaGraphExecDestroy(end_capture(s.stream));
    for (int64_t n = 1; n < 12; n++) /* more problems than the pool has places */
        for (int stream = 0; stream < 8; stream++) {
            static cudaStream_t more[8];
            if (!more[stream]) more[stream] = new_stream();
            assert_ok(one_call(s.ctx, s.pattern, n, &s.o, more[stream]));
        }
    memset(s.o.at[2], 0, BYTES);
    assert_true(fake_live(captured));
    replay(exec, s.stream);
    assert_int_equal(s.o.at[2][0], 7);
    cudaGraphExecDestroy(exec);
    close_scene(&s);
}

/* ---- freeing while work is queued ---- */

static void memory_goes_back_when_nothing_uses_it_any_more(void **state) {
    (void)state;
    for (int custom = 0; custom < 3; custom++) {
        planted x = {.workspace = BYTES, .prepares = custom < 2}; /* with a state besides, or memory alone */
        size_t most = SIZE_MAX;
        sat_context_options options = {.effort = SAT_EFFORT_QUICK};
        sat_allocator own = {SAT_SIZED(sat_allocator), user_alloc, user_free, &most};
        if (custom) options.allocator = &own;
        held_now = too_early = 0;
        sat_context *ctx = open_with(options);
        plant(ctx, &x, "planted");
        sat_pattern *pattern = full_pattern(ctx);
        sat_problem p = matmul_problem(SAT_F32, SIDE);
        sat_plan *plan = NULL;
        cudaStream_t s = new_stream();
        operands o = make_operands();
        assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
        memset(o.at[2], 0, BYTES);
        assert_ok(run(plan, &o, s));
        assert_true(fake_pending() > 0);
        sat_plan_free(plan), sat_pattern_free(pattern);
        assert_int_equal(fake_pending(), 0);
        assert_int_equal(o.at[2][0], x.prepares ? 7 : 11);
        pattern = full_pattern(ctx);
        memset(o.at[2], 0, BYTES);
        assert_ok(one_call(ctx, pattern, SIDE, &o, s));
        sat_context_free(ctx); /* before its pattern, and before the work is done */
        assert_int_equal(o.at[2][0], x.prepares ? 7 : 11);
        sat_pattern_free(pattern);
        assert_int_equal(held_now, 0);
        assert_int_equal(too_early, 0);
        assert_int_equal(fake.misuses, 0);
        free_operands(&o), cudaStreamDestroy(s);
    }
}

/* ---- threads ---- */

static atomic_bool stop;
static atomic_int bad_copies;

/* The copy of a pattern goes through the stream that races run on, which a warm race captures. */
static void *make_patterns(void *user) {
    sat_context *ctx = user;
    while (!stop) {
        sat_pattern *pattern = full_pattern(ctx);
        sat_pattern_view v = view_of(pattern);
        if (memcmp(v.device_row_ptr, v.row_ptr, 5 * 8) || memcmp(v.device_t_row, v.t_row, 16 * 4)) bad_copies++;
        sat_pattern_free(pattern);
    }
    return NULL;
}

static void races_and_other_threads_share_the_tuning_stream(void **state) {
    (void)state;
    planted x = {0}, y = {.workspace = BYTES, .prepares = true};
    sat_context *ctx = open_with(
        (sat_context_options){.effort = SAT_EFFORT_QUICK, .measure = SAT_MEASURE_WARM, .budget_seconds = 0.3});
    plant(ctx, &x, "planted"), plant(ctx, &y, "prepared");
    sat_pattern *pattern = full_pattern(ctx);
    sat_problem p = matmul_problem(SAT_F32, SIDE);
    pthread_t threads[2];
    stop = false;
    bad_copies = 0;
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, make_patterns, ctx), 0);
    for (int i = 0; i < 3; i++) {
        sat_race *race = NULL;
        assert_ok(sat_race_run(
            ctx, pattern, &p, &(sat_race_options){SAT_SIZED(sat_race_options), .fresh = true, .discard = true}, &race));
        assert_int_equal(result_of(race, "planted")->verdict, SAT_VERDICT_OK);
        assert_int_equal(result_of(race, "prepared")->verdict, SAT_VERDICT_OK);
        sat_race_free(race);
    }
    stop = true;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    assert_int_equal(bad_copies, 0);
    assert_int_equal(fake.spoilt, 0);
    assert_int_equal(fake.misuses, 0);
    sat_pattern_free(pattern), sat_context_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_run_is_captured_and_replayed_with_new_values),
        TEST(a_launch_that_allocates_under_capture_is_found_out),
        TEST(what_is_prepared_is_there_before_a_run_on_any_stream),
        TEST(fixed_values_taken_in_by_a_graph_are_not_taken_for_done),
        TEST(other_threads_tune_allocate_and_free_while_a_graph_is_captured),
        TEST(one_call_under_capture_takes_a_plan_that_needs_nothing),
        TEST(a_captured_one_call_keeps_its_workspace_for_the_graph),
        TEST(memory_goes_back_when_nothing_uses_it_any_more),
        TEST(races_and_other_threads_share_the_tuning_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
