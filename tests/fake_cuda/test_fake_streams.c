/* On the model of CUDA: cudaStreamPerThread, one handle that is another stream in each thread. */
#include "fake_support.h"

#include "backend/backend.h"

static void only_one_handle_means_a_stream_of_each_thread(void **state) {
    (void)state;
    cudaStream_t s = new_stream();
    assert_true(sat_backend_cuda.per_thread(cudaStreamPerThread));
    assert_false(sat_backend_cuda.per_thread(cudaStreamLegacy));
    assert_false(sat_backend_cuda.per_thread(NULL));
    assert_false(sat_backend_cuda.per_thread(s));
    cudaStreamDestroy(s);
}

typedef struct caller {
    sat_context *ctx;
    sat_pattern *pattern;
    planted *x;
    operands o;
    void *used; /* the workspace of its call */
} caller;

static caller open_caller(planted *x) {
    caller c = {.ctx = open_fake(), .x = x, .o = make_operands()};
    plant(c.ctx, x, "planted");
    c.pattern = full_pattern(c.ctx);
    return c;
}

static void close_caller(caller *c) {
    sat_pattern_free(c->pattern), sat_context_free(c->ctx);
    free_operands(&c->o);
    assert_int_equal(fake.misuses, 0);
}

static void *call_on_its_own_stream(void *user) { /* and leaves the work queued */
    caller *c = user;
    assert_ok(one_call(c->ctx, c->pattern, SIDE, &c->o, cudaStreamPerThread));
    c->used = c->x->used;
    return NULL;
}

static void *call_in_another_thread(caller *c) {
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, call_on_its_own_stream, c), 0);
    pthread_join(thread, NULL);
    return c->used;
}

static void threads_with_one_handle_have_plans_of_their_own(void **state) {
    (void)state;
    planted x = {.workspace = BYTES, .prepares = true};
    caller c = open_caller(&x);
    call_on_its_own_stream(&c);
    void *mine = c.used;
    void *first = call_in_another_thread(&c);
    assert_ptr_not_equal(first, mine);
    /* What the thread that has ended queued is still to run, and this one may well lie where that one lay. */
    assert_true(fake_pending() > 0);
    void *second = call_in_another_thread(&c);
    assert_ptr_not_equal(second, first);
    assert_ptr_not_equal(second, mine);
    call_on_its_own_stream(&c);
    assert_ptr_equal(c.used, mine);
    close_caller(&c);
}

static void a_thread_waits_for_its_own_stream(void **state) {
    (void)state;
    planted x = {.workspace = BYTES, .prepares = true};
    caller c = open_caller(&x);
    call_on_its_own_stream(&c); /* tunes */
    assert_ok(sat_stream_wait(c.ctx, cudaStreamPerThread));
    memset(c.o.at[2], 0, BYTES);
    call_in_another_thread(&c);
    assert_ok(sat_stream_wait(c.ctx, cudaStreamPerThread));
    assert_int_equal(c.o.at[2][0], 0); /* that was the other thread's */
    call_on_its_own_stream(&c);
    assert_ok(sat_stream_wait(c.ctx, cudaStreamPerThread));
    assert_int_equal(c.o.at[2][0], 7);
    close_caller(&c);
}

static void it_is_captured_like_any_other(void **state) {
    (void)state;
    planted x = {.workspace = BYTES, .prepares = true};
    caller c = open_caller(&x);
    call_on_its_own_stream(&c);
    void *plain = c.used;
    begin_capture(cudaStreamPerThread);
    assert_ptr_not_equal(call_in_another_thread(&c), plain); /* not captured: that thread's stream is another */
    call_on_its_own_stream(&c);
    assert_ptr_equal(c.used, plain);
    cudaGraphExec_t exec = end_capture(cudaStreamPerThread);
    assert_int_equal(fake.spoilt, 0);
    memset(c.o.at[2], 0, BYTES);
    replay(exec, cudaStreamPerThread);
    assert_int_equal(c.o.at[2][0], 7);
    call_on_its_own_stream(&c);
    assert_ptr_not_equal(c.used, plain); /* that one is the graph's now */
    cudaGraphExecDestroy(exec);
    close_caller(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(only_one_handle_means_a_stream_of_each_thread),
        TEST(threads_with_one_handle_have_plans_of_their_own),
        TEST(a_thread_waits_for_its_own_stream),
        TEST(it_is_captured_like_any_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
