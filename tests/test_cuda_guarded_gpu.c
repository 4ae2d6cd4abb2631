/* Dense products that are guarded, and tiles that are gathered, on a GPU: both branches, in every dtype, and in a
 * graph.
 */
#include "not_finite.h"

#include <cuda_runtime_api.h>

#include "cuda_support.h"

static void guarded_products_are_right_beside_nan_and_infinities(void **state) {
    (void)state;
    sat_context *ctx = open_cuda(SAT_EFFORT_OFF);
    int64_t runs = expect_guarded_right(ctx, 12);
    print_message("%lld plans\n", (long long)runs);
    assert_true(runs > 0 || !has_guarded(ctx)); /* without cuBLAS there are none */
    sat_context_free(ctx);
}

/* A graph is captured once and replayed on operands with and without NaN: the branch is taken on the device. */
static void a_captured_product_takes_the_branch_that_its_operands_need(void **state) {
    (void)state;
    sat_context *ctx = open_cuda(SAT_EFFORT_OFF);
    uint64_t random = 5;
    cudaStream_t stream;
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    for (int i = 0; i < 12; i++) {
        specimen s = make_specimen(ctx, &random, i % 2 ? SAT_F16 : SAT_F32, i % 2 ? SAT_F16 : SAT_F32);
        s.problem.flags = 0;
        for (size_t e = 0; e < sat_variant_count(ctx); e++) {
            const sat_variant *v = sat_variant_at(ctx, e);
            sat_plan *plan = NULL;
            cudaGraph_t graph;
            cudaGraphExec_t exec;
            if (!is_guarded(v) || sat_plan_create_with(ctx, s.pattern, &s.problem, v->name, &plan) != SAT_OK) continue;
            fill_specimen(ctx, &s, NOTHING, &random);
            assert_ok(run_in_order(plan, &s.problem, s.device, stream)); /* what a first run loads is not captured */
            assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
            assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
            assert_ok(run_in_order(plan, &s.problem, s.device, stream));
            assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
            assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
            for (int round = 0; round < 2 * PLANTS; round++) {
                plant what = round % 2 ? NOTHING : (plant)(round / 2);
                fill_specimen(ctx, &s, what, &random);
                assert_int_equal(cudaGraphLaunch(exec, stream), cudaSuccess);
                assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
                expect_result(ctx, &s, v->name, what);
            }
            cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
            sat_plan_free(plan);
        }
        free_specimen(ctx, &s);
    }
    cudaStreamDestroy(stream);
    sat_context_free(ctx);
}

/* B is finite in f32 and infinite once it is rounded to TF32: the branch computes what f32 makes of it. */
static void what_only_tf32_cannot_hold_is_computed_in_f32(void **state) {
    (void)state;
    sat_context *ctx = open_cuda(SAT_EFFORT_OFF);
    enum { SIDE = 64 };
    uint64_t random = 6;
    sat_pattern *pattern = random_pattern(ctx, &random, SIDE, SIDE, 16, 16, 0.5, false);
    sat_pattern_view a = view_of(pattern);
    int64_t count = a.stored_blocks * 256;
    float *values = calloc((size_t)count, 4), b[SIDE * SIDE] = {0}, c[SIDE * SIDE];
    for (int64_t e = 0; e < count; e++) values[e] = 0x1p-4f;
    b[3 * SIDE + 5] = 0x1.fffffep127f; /* FLT_MAX */
    void *device[3] = {to_device(ctx, values, (size_t)count * 4), to_device(ctx, b, sizeof b),
                       to_device(ctx, c, sizeof c)};
    sat_problem p = matmul_problem(SAT_F32, SIDE);
    p.flags = SAT_ALLOW_TF32;
    for (size_t e = 0; e < sat_variant_count(ctx); e++) {
        const sat_variant *v = sat_variant_at(ctx, e);
        sat_plan *plan = NULL;
        if (!is_guarded(v) || sat_plan_create_with(ctx, pattern, &p, v->name, &plan) != SAT_OK) continue;
        assert_ok(run_in_order(plan, &p, device, NULL));
        assert_ok(sat_stream_wait(ctx, NULL));
        assert_ok(sat_memory_read(ctx, c, device[2], sizeof c));
        for (int i = 0; i < SIDE; i++)
            for (int j = 0; j < SIDE; j++) {
                bool stored = false;
                for (int64_t t = a.row_ptr[i / 16]; t < a.row_ptr[i / 16 + 1]; t++)
                    stored = stored || a.col_idx[t] == 0;
                double want = j == 5 && stored ? 0x1.fffffep123 : 0, got = (double)c[i * SIDE + j];
                if (!(fabs(got - want) <= 1e-3 * want))
                    fail_msg("%s: C(%d, %d) is %g and not %g", v->name, i, j, got, want);
            }
        sat_plan_free(plan);
    }
    for (int i = 0; i < 3; i++) sat_memory_free(ctx, device[i]);
    free(values);
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

int main(void) {
    if (!has_gpu()) return NO_GPU;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guarded_products_are_right_beside_nan_and_infinities),
        cmocka_unit_test(a_captured_product_takes_the_branch_that_its_operands_need),
        cmocka_unit_test(what_only_tf32_cannot_hold_is_computed_in_f32),
    };
    return cmocka_run_group_tests_name("cuda_guarded", tests, NULL, NULL);
}
