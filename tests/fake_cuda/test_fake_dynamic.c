/* On the model of CUDA: runs on patterns whose indices change. The indices are the device's: no run reads them on the
 * host, copies them there, waits or allocates, so it can be captured whatever they are. */
#include "fake_support.h"

enum { GRID = 6, BLOCK = 4, CAPACITY = 20, INDICES = 64, COLUMNS = 8 };

typedef struct dynamic_scene {
    sat_context *ctx;
    sat_pattern *pattern;
    sat_problem problem;
    void *at[3], *row_ptr, *col_idx;
    cudaStream_t stream;
} dynamic_scene;

static void *device_memory(size_t bytes) {
    void *p = NULL;
    assert_int_equal(cudaMalloc(&p, bytes), cudaSuccess);
    memset(p, 0x91, bytes); /* indices too: negative ones */
    return p;
}

/* `which`: 0 A*B, 1 A^T*B, 2 the sampled product. */
static void open_dynamic(dynamic_scene *s, int which) {
    *s = (dynamic_scene){.ctx = open_with((sat_context_options){.effort = SAT_EFFORT_OFF}), .stream = new_stream()};
    for (int i = 0; i < 3; i++) s->at[i] = device_memory(1 << 16);
    s->row_ptr = device_memory(INDICES * 8), s->col_idx = device_memory(INDICES * 8);
    sat_dynamic_bsr a = {SAT_SIZED(sat_dynamic_bsr), .rows = GRID * BLOCK, .cols = GRID * BLOCK, .block_rows = BLOCK};
    a.block_cols = BLOCK, a.capacity = CAPACITY, a.index_type = SAT_I64, a.row_ptr = s->row_ptr, a.col_idx = s->col_idx;
    int waits = fake_pending();
    assert_ok(sat_pattern_create_dynamic(s->ctx, &a, &s->pattern));
    assert_int_equal(fake_pending(), waits); /* nothing was read */
    s->problem = which == 2 ? sampled_problem(SAT_F32, COLUMNS) : matmul_problem(SAT_F32, COLUMNS);
    if (which == 1) s->problem.matmul.transpose = SAT_TRANSPOSE;
}

static void close_dynamic(dynamic_scene *s) {
    sat_pattern_free(s->pattern);
    sat_context_free(s->ctx);
    for (int i = 0; i < 3; i++) cudaFree(s->at[i]);
    cudaFree(s->row_ptr), cudaFree(s->col_idx);
    cudaStreamDestroy(s->stream);
    assert_int_equal(fake.misuses, 0);
}

static sat_status run_dynamic(dynamic_scene *s, sat_plan *plan) {
    return sat_run(plan, (const void *[]){s->at[0], s->at[1]}, 2, (void *[]){s->at[2]}, 1, s->stream);
}

static void every_run_is_captured_whatever_the_indices_are(void **state) {
    static const int kernels[] = {2, 3, 3}; /* the copy; the transposed index, or zeros after it; the product */
    (void)state;
    for (int which = 0; which < 3; which++) {
        dynamic_scene s;
        sat_plan *plan = NULL;
        open_dynamic(&s, which);
        assert_ok(sat_plan_create(s.ctx, s.pattern, &s.problem, &plan));
        int before = fake.kernels, allocations = fake.allocations;
        begin_capture(s.stream);
        assert_ok(run_dynamic(&s, plan));
        cudaGraphExec_t exec = end_capture(s.stream);
        assert_int_equal(fake.spoilt, 0);
        assert_int_equal(fake.kernels - before, kernels[which]);
        replay(exec, s.stream);
        assert_ok(run_dynamic(&s, plan));
        assert_true(fake_pending() > 0); /* it waits for nothing */
        assert_int_equal(fake.allocations, allocations);
        assert_ok(sat_pattern_fault(s.pattern, false));
        assert_true(fake_pending() > 0); /* nor does the question */
        assert_ok(sat_pattern_fault(s.pattern, true));
        assert_int_equal(fake_pending(), 0);
        cudaGraphExecDestroy(exec);
        sat_plan_free(plan);
        close_dynamic(&s);
    }
}

/* As Python runs it: one plan, and each run's indices are where they are. */
static void runs_that_bring_indices_wait_for_nothing_and_are_captured(void **state) {
    (void)state;
    for (int which = 0; which < 3; which++) {
        dynamic_scene s;
        sat_plan *plan = NULL;
        open_dynamic(&s, which);
        void *row_ptr = device_memory(INDICES * 8), *col_idx = device_memory(INDICES * 8);
        const void *inputs[] = {s.at[0], s.at[1], row_ptr, col_idx};
        assert_ok(sat_plan_create(s.ctx, s.pattern, &s.problem, &plan));
        int allocations = fake.allocations;
        begin_capture(s.stream);
        assert_ok(sat_run(plan, inputs, 4, (void *[]){s.at[2]}, 1, s.stream));
        cudaGraphExec_t exec = end_capture(s.stream);
        assert_int_equal(fake.spoilt, 0);
        replay(exec, s.stream);
        assert_ok(sat_run(plan, inputs, 4, (void *[]){s.at[2]}, 1, s.stream));
        assert_ok(run_dynamic(&s, plan));
        assert_true(fake_pending() > 0);
        assert_int_equal(fake.allocations, allocations);
        int64_t of_the_host[INDICES] = {0};
        inputs[3] = of_the_host;
        assert_fails(sat_run(plan, inputs, 4, (void *[]){s.at[2]}, 1, s.stream), SAT_WRONG_MEMORY, "col_idx");
        inputs[2] = of_the_host;
        assert_fails(sat_run(plan, inputs, 4, (void *[]){s.at[2]}, 1, s.stream), SAT_WRONG_MEMORY, "row_ptr");
        assert_true(fake_pending() > 0);
        cudaGraphExecDestroy(exec);
        sat_plan_free(plan);
        cudaFree(row_ptr), cudaFree(col_idx);
        close_dynamic(&s);
    }
}

static void a_plan_gives_back_what_it_has_of_the_indices(void **state) {
    (void)state;
    dynamic_scene s;
    sat_plan *plan = NULL, *copy = NULL;
    open_dynamic(&s, 1);
    assert_ok(sat_plan_create(s.ctx, s.pattern, &s.problem, &plan)); /* the library's own stream, and such things */
    sat_plan_free(plan);
    int allocations = fake.allocations;
    assert_ok(sat_plan_create(s.ctx, s.pattern, &s.problem, &plan));
    assert_ok(sat_plan_dup(plan, &copy));
    assert_true(fake.allocations > allocations);
    assert_ok(run_dynamic(&s, plan));
    assert_ok(run_dynamic(&s, copy));
    sat_plan_free(copy);
    sat_plan_free(plan);
    assert_int_equal(fake.allocations, allocations);
    close_dynamic(&s);
}

static void memory_of_the_host_is_refused(void **state) {
    (void)state;
    dynamic_scene s;
    int64_t indices[INDICES] = {0};
    sat_pattern *pattern = NULL;
    open_dynamic(&s, 0);
    sat_dynamic_bsr a = {SAT_SIZED(sat_dynamic_bsr), .rows = 8, .cols = 8, .block_rows = 4, .block_cols = 4};
    a.capacity = 4, a.index_type = SAT_I64, a.row_ptr = s.row_ptr, a.col_idx = indices;
    assert_fails(sat_pattern_create_dynamic(s.ctx, &a, &pattern), SAT_WRONG_MEMORY, "col_idx");
    a.row_ptr = indices, a.col_idx = s.col_idx;
    assert_fails(sat_pattern_create_dynamic(s.ctx, &a, &pattern), SAT_WRONG_MEMORY, "row_ptr");
    close_dynamic(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(every_run_is_captured_whatever_the_indices_are),
        TEST(runs_that_bring_indices_wait_for_nothing_and_are_captured),
        TEST(a_plan_gives_back_what_it_has_of_the_indices),
        TEST(memory_of_the_host_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
