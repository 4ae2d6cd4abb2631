/* On a GPU: runs captured into graphs and replayed with new values, for every variant that fits; the one-call form
 * under capture; other threads at work meanwhile; and what a run costs the host. */
#define _GNU_SOURCE
#include "gpu_product.h"

#include <pthread.h>
#include "problems.h"

static void begin_capture(cudaStream_t s) { assert_cuda(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal)); }

/* NULL: the capture was spoilt, and `why` says by what. */
static cudaGraphExec_t end_capture(cudaStream_t s, const char **why) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cudaError_t e = cudaStreamEndCapture(s, &graph);
    if (e == cudaSuccess) e = cudaGraphInstantiate(&exec, graph, 0);
    if (graph) cudaGraphDestroy(graph);
    if (e != cudaSuccess) (void)cudaGetLastError();
    *why = e == cudaSuccess ? "" : cudaGetErrorString(e);
    return e == cudaSuccess ? exec : NULL;
}

static cudaGraphExec_t must_end(cudaStream_t s) {
    const char *why;
    cudaGraphExec_t exec = end_capture(s, &why);
    if (!exec) fail_msg("the capture was spoilt: %s", why);
    return exec;
}

/* ---- every variant ---- */

static bool complain(const sat_variant *v, const char *what, const char *why) {
    print_error("%s: %s: %s\n", v->name, what, why);
    return false;
}

static bool replay_right(cudaGraphExec_t exec, const sat_variant *v, product *x, cudaStream_t s, const char *which) {
    renew(x);
    assert_cuda(cudaGraphLaunch(exec, s));
    int64_t at = differs(x, s);
    if (at < 0) return true;
    char text[96];
    snprintf(text, sizeof text, "element %lld differs", (long long)at);
    return complain(v, which, text);
}

/* Captures the plan's very first run, then one more after it ran by itself; both graphs see new values. With fixed
 * values the first graph takes them in each time, the second none. */
static bool capture_variant(sat_context *ctx, const sat_variant *v, product *x, cudaStream_t s) {
    sat_plan *plan = NULL;
    const char *why;
    bool right = true, fixed = x->problem.flags & SAT_FIXED_VALUES;
    sat_status status = sat_plan_create_with(ctx, x->pattern, &x->problem, v->name, &plan);
    if (status == SAT_UNSUPPORTED) return true;
    if (status != SAT_OK) return complain(v, "plan", sat_last_error());
    begin_capture(s);
    status = run(plan, x, s);
    cudaGraphExec_t first = end_capture(s, &why), second = NULL;
    if (status != SAT_OK) right = complain(v, "first run, captured", sat_last_error());
    else if (!first) right = complain(v, "first run, captured", why);
    for (int i = 0; i < 2 && right; i++) right = replay_right(first, v, x, s, "a replay of its first run");
    renew(x);
    if (right && (run(plan, x, s) != SAT_OK || differs(x, s) >= 0))
        right = complain(v, "a plain run after captured ones", sat_last_error());
    if (right && !fixed) {
        begin_capture(s);
        status = run(plan, x, s);
        second = end_capture(s, &why);
        if (status != SAT_OK || !second) right = complain(v, "second run, captured", second ? sat_last_error() : why);
    }
    for (int i = 0; i < 2 && right && second; i++) right = replay_right(second, v, x, s, "a replay of a later run");
    if (first) cudaGraphExecDestroy(first);
    if (second) cudaGraphExecDestroy(second);
    sat_plan_free(plan);
    return right;
}

static void every_variant_is_captured_and_replayed_with_new_values(void **state) {
    (void)state;
    static const sat_dtype dtypes[] = {SAT_F32, SAT_F16, SAT_BF16, SAT_F64};
    static const int64_t blocks[] = {4, 16, 64, 128};
    sat_context *ctx = open_gpu((sat_context_options){.effort = SAT_EFFORT_OFF});
    cudaStream_t s = new_stream();
    int wrong = 0, tried = 0;
    for (int d = 0; d < 4; d++)
        for (int b = 0; b < 4; b++)
            for (int kind = 0; kind < 5; kind++) { /* matmul, one column, transposed, fixed values, sampled */
                sat_problem p =
                    kind == 4 ? sampled_problem(dtypes[d], 64) : matmul_problem(dtypes[d], kind == 1 ? 1 : 64);
                p.matmul.transpose = kind == 2 ? SAT_TRANSPOSE : SAT_NO_TRANSPOSE;
                p.flags = SAT_ALLOW_DENSE | SAT_ALLOW_NONDETERMINISTIC | SAT_ALLOW_TF32;
                if (kind == 3) p.flags |= SAT_FIXED_VALUES;
                p.a_align = p.b_align = p.c_align = 128;
                product x = make_product(ctx, p, 256, 256, blocks[b], (uint64_t)(d * 100 + b * 10 + kind));
                for (size_t i = 0; i < sat_variant_count(ctx); i++) {
                    const sat_variant *v = sat_variant_at(ctx, i);
                    if (v->op != p.op) continue;
                    tried++;
                    wrong += !capture_variant(ctx, v, &x, s);
                }
                free_product(&x);
            }
    print_message("%d captures of %zu variants\n", tried, sat_variant_count(ctx));
    assert_int_equal(wrong, 0);
    cudaStreamDestroy(s);
    sat_context_free(ctx);
}

/* ---- the one-call form ---- */

static void one_call_is_captured_with_and_without_a_plan(void **state) {
    (void)state;
    sat_context *ctx = open_gpu((sat_context_options){.effort = SAT_EFFORT_QUICK, .budget_seconds = 0.1});
    cudaStream_t s = new_stream(), other = new_stream();
    product x = make_product(ctx, matmul_problem(SAT_F16, 64), 256, 128, 16, 5);
    cudaGraphExec_t exec[2];
    for (int i = 0; i < 2; i++) {
        if (i) assert_ok(one_call(ctx, &x, s)); /* tunes; the graph then has the winner */
        if (i) assert_int_equal(differs(&x, s), -1);
        begin_capture(s);
        assert_ok(one_call(ctx, &x, s));
        assert_fails(sat_stream_wait(ctx, s), SAT_UNSUPPORTED, "captured");
        exec[i] = must_end(s);
        for (int again = 0; again < 2; again++) {
            renew(&x);
            assert_cuda(cudaGraphLaunch(exec[i], s));
            assert_int_equal(differs(&x, s), -1);
        }
    }
    renew(&x); /* a graph on one stream beside plain calls on the one that it was captured on */
    product y = x;
    for (int i = 0; i < 3; i++) y.host[i] = x.host[i];
    assert_cuda(cudaMalloc(&y.device[2], (size_t)x.count[2] * 2));
    hold(s, 0.01), hold(other, 0.01);
    assert_cuda(cudaGraphLaunch(exec[1], other));
    assert_ok(one_call(ctx, &y, s));
    assert_int_equal(differs(&x, other), -1);
    assert_int_equal(differs(&y, s), -1);
    cudaFree(y.device[2]);
    for (int i = 0; i < 2; i++) cudaGraphExecDestroy(exec[i]);
    free_product(&x);
    sat_context_free(ctx);
    cudaStreamDestroy(s), cudaStreamDestroy(other);
}

/* ---- at the same time ---- */

typedef struct worker {
    sat_context *ctx;
    sat_measure measure;
    uint64_t seed;
    int64_t wrong;
    int rounds;
} worker;

/* Makes patterns and plans, tunes, runs on a stream of its own, and frees all of it. */
static void *work(void *user) {
    worker *w = user;
    cudaStream_t s = new_stream();
    for (int round = 0; round < w->rounds; round++) {
        sat_problem p = matmul_problem(round % 2 ? SAT_F32 : SAT_F16, 32 + 8 * (int64_t)(w->seed % 7) + round);
        product x = make_product(w->ctx, p, 192, 160, 16, w->seed + (uint64_t)round);
        sat_plan *plan = NULL, *copy = NULL;
        assert_ok(sat_plan_create(w->ctx, x.pattern, &p, &plan));
        assert_ok(sat_plan_dup(plan, &copy));
        assert_ok(run(plan, &x, s));
        w->wrong += differs(&x, s) >= 0;
        renew(&x);
        assert_ok(run(copy, &x, s));
        w->wrong += differs(&x, s) >= 0;
        renew(&x);
        assert_ok(one_call(w->ctx, &x, s));
        w->wrong += differs(&x, s) >= 0;
        sat_plan_free(plan), sat_plan_free(copy);
        free_product(&x);
    }
    cudaStreamDestroy(s);
    return NULL;
}

static void two_threads_tune_and_run_on_streams_of_their_own(void **state) {
    (void)state;
    for (int warm = 0; warm < 2; warm++) {
        sat_context_options o = {.effort = SAT_EFFORT_QUICK, .budget_seconds = 0.05, .measure = (sat_measure)warm};
        sat_context *shared = open_gpu(o), *own = open_gpu(o);
        worker w[3] = {{.ctx = shared, .seed = 1, .rounds = 4},
                       {.ctx = shared, .seed = 11, .rounds = 4},
                       {.ctx = own, .seed = 21, .rounds = 4}};
        pthread_t t[3];
        for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&t[i], NULL, work, &w[i]), 0);
        for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
        for (int i = 0; i < 3; i++) assert_int_equal(w[i].wrong, 0);
        sat_context_free(shared), sat_context_free(own);
    }
}

/* As `work`, through the library alone: what the program's own thread does beside a capture is its own affair. */
static void *work_beside_a_capture(void *user) {
    worker *w = user;
    sat_problem p = matmul_problem(SAT_F32, 40);
    uint64_t random = w->seed;
    sat_pattern *pattern = random_pattern(w->ctx, &random, 96, 96, 16, 16, 0.5, false);
    sat_plan *plan = NULL;
    void *memory = NULL;
    char host[256] = "there and back";
    assert_ok(sat_plan_create(w->ctx, pattern, &p, &plan)); /* tunes */
    assert_ok(sat_memory_alloc(w->ctx, sizeof host, &memory));
    assert_ok(sat_memory_write(w->ctx, memory, host, sizeof host));
    memset(host, 0, sizeof host);
    assert_ok(sat_memory_read(w->ctx, host, memory, sizeof host));
    assert_string_equal(host, "there and back");
    sat_memory_free(w->ctx, memory);
    sat_plan_free(plan);
    sat_pattern_free(pattern);
    return NULL;
}

static void the_library_works_while_a_graph_is_captured(void **state) {
    (void)state;
    for (int warm = 0; warm < 2; warm++) {
        sat_context *ctx = open_gpu(
            (sat_context_options){.effort = SAT_EFFORT_QUICK, .budget_seconds = 0.05, .measure = (sat_measure)warm});
        cudaStream_t s = new_stream();
        product x = make_product(ctx, matmul_problem(SAT_F32, 64), 256, 128, 16, 9);
        sat_plan *plan = NULL;
        pthread_t thread;
        worker w = {.ctx = ctx, .seed = 31};
        assert_ok(sat_plan_create(ctx, x.pattern, &x.problem, &plan));
        begin_capture(s);
        assert_int_equal(pthread_create(&thread, NULL, work_beside_a_capture, &w), 0);
        pthread_join(thread, NULL);
        w.seed = 32;
        work_beside_a_capture(&w); /* and this very thread */
        assert_ok(run(plan, &x, s));
        cudaGraphExec_t exec = must_end(s);
        renew(&x);
        assert_cuda(cudaGraphLaunch(exec, s));
        assert_int_equal(differs(&x, s), -1);
        cudaGraphExecDestroy(exec);
        sat_plan_free(plan);
        free_product(&x);
        sat_context_free(ctx);
        cudaStreamDestroy(s);
    }
}

/* ---- what a run costs ---- */

int main(void) {
    if (!has_gpu()) return NO_GPU;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant_is_captured_and_replayed_with_new_values),
        cmocka_unit_test(one_call_is_captured_with_and_without_a_plan),
        cmocka_unit_test(two_threads_tune_and_run_on_streams_of_their_own),
        cmocka_unit_test(the_library_works_while_a_graph_is_captured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
