/* On the model of CUDA: runs of products of groups. The offsets are the device's: no run reads them on the host, waits
 * or allocates, so it can be captured whatever they are. */
#include "fake_support.h"

enum { ROWS = 200, COLUMNS = 64, DEPTH = 32, GROUPS = 5, OPERANDS = 4 };

typedef struct grouped_scene {
    sat_context *ctx;
    sat_problem problem;
    void *at[OPERANDS]; /* x, w or z, y or w, offsets */
    cudaStream_t stream;
} grouped_scene;

static void open_grouped(grouped_scene *s, bool weights, sat_dtype t) {
    static const size_t elements = GROUPS * ROWS * COLUMNS;
    *s = (grouped_scene){.ctx = open_with((sat_context_options){.effort = SAT_EFFORT_OFF}), .stream = new_stream()};
    s->problem = (sat_problem){SAT_SIZED(sat_problem)};
    if (weights) assert_ok(sat_problem_grouped_weights(&s->problem, t, ROWS, COLUMNS, DEPTH, GROUPS));
    else assert_ok(sat_problem_grouped(&s->problem, t, ROWS, COLUMNS, DEPTH, GROUPS));
    s->problem.a_align = s->problem.b_align = s->problem.c_align = 64;
    for (int i = 0; i < OPERANDS; i++) {
        assert_int_equal(cudaMalloc(&s->at[i], elements * 8), cudaSuccess);
        memset(s->at[i], 0x91, elements * 8); /* offsets too: negative ones */
    }
}

static void close_grouped(grouped_scene *s) {
    sat_context_free(s->ctx);
    for (int i = 0; i < OPERANDS; i++) cudaFree(s->at[i]);
    cudaStreamDestroy(s->stream);
    assert_int_equal(fake.misuses, 0);
}

static sat_status run_grouped(grouped_scene *s, sat_plan *plan, void *offsets) {
    return sat_run(plan, (const void *[]){s->at[0], s->at[1], offsets}, 3, (void *[]){s->at[2]}, 1, s->stream);
}

static void every_run_is_captured_whatever_the_offsets_are(void **state) {
    int plans = 0;
    (void)state;
    for (int which = 0; which < 4; which++) {
        grouped_scene s;
        open_grouped(&s, which % 2, which < 2 ? SAT_F16 : SAT_F64);
        for (size_t i = 0; i < sat_variant_count(s.ctx); i++) {
            const sat_variant *v = sat_variant_at(s.ctx, i);
            sat_plan *plan = NULL;
            if (v->op != s.problem.op) continue;
            if (sat_plan_create_with(s.ctx, NULL, &s.problem, v->name, &plan) != SAT_OK) continue;
            int kernels = fake.kernels, allocations = fake.allocations;
            begin_capture(s.stream);
            assert_ok(run_grouped(&s, plan, s.at[3]));
            cudaGraphExec_t exec = end_capture(s.stream);
            assert_int_equal(fake.spoilt, 0);
            assert_in_range(fake.kernels - kernels, 1, 2);
            assert_int_equal(fake.allocations, allocations);
            replay(exec, s.stream);
            assert_ok(run_grouped(&s, plan, s.at[3]));
            assert_true(fake_pending() > 0); /* it waits for nothing */
            assert_ok(sat_stream_wait(s.ctx, s.stream));
            cudaGraphExecDestroy(exec);
            sat_plan_free(plan);
            plans++;
        }
        close_grouped(&s);
    }
    assert_true(plans >= 4);
}

static void offsets_in_memory_of_the_host_are_refused(void **state) {
    (void)state;
    grouped_scene s;
    sat_plan *plan = NULL;
    static int64_t offsets[GROUPS + 1];
    open_grouped(&s, false, SAT_F32);
    assert_ok(sat_plan_create(s.ctx, NULL, &s.problem, &plan));
    assert_fails(run_grouped(&s, plan, offsets), SAT_WRONG_MEMORY, "offsets");
    assert_ok(run_grouped(&s, plan, s.at[3]));
    assert_ok(sat_stream_wait(s.ctx, s.stream));
    sat_plan_free(plan);
    close_grouped(&s);
}

/* Kernels do nothing here, so a race finds nothing out. What is tested is that the calls around them are right. */
static void a_race_goes_through_its_checks(void **state) {
    (void)state;
    for (int weights = 0; weights < 2; weights++) {
        grouped_scene s;
        sat_race *race = NULL;
        open_grouped(&s, weights, SAT_F32);
        (void)sat_race_run(s.ctx, NULL, &s.problem, NULL, &race);
        sat_race_free(race);
        assert_int_equal(fake.dead, cudaSuccess);
        close_grouped(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(every_run_is_captured_whatever_the_offsets_are),
        TEST(offsets_in_memory_of_the_host_are_refused),
        TEST(a_race_goes_through_its_checks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
