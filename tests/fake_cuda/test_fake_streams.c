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

static void *call_on_its_own_stream(void *user) { /* and leaves the work queued */
    scene *s = user;
    assert_ok(one_call(s->ctx, s->pattern, SIDE, &s->o, cudaStreamPerThread));
    return s->x.used;
}

static void *call_in_another_thread(scene *s) {
    pthread_t thread;
    void *used = NULL;
    assert_int_equal(pthread_create(&thread, NULL, call_on_its_own_stream, s), 0);
    pthread_join(thread, &used);
    return used;
}

static void threads_with_one_handle_have_plans_of_their_own(void **state) {
    (void)state;
    scene s;
    open_scene(&s, (planted){.workspace = BYTES, .prepares = true});
    void *mine = call_on_its_own_stream(&s), *first = call_in_another_thread(&s);
    assert_ptr_not_equal(first, mine);
    /* What the thread that has ended queued is still to run, and the next one may well lie where that one lay. */
    assert_true(fake_pending() > 0);
    void *second = call_in_another_thread(&s);
    assert_ptr_not_equal(second, first);
    assert_ptr_not_equal(second, mine);
    assert_ptr_equal(call_on_its_own_stream(&s), mine);
    close_scene(&s);
}

static void a_thread_waits_for_its_own_stream(void **state) {
    (void)state;
    scene s;
    open_scene(&s, (planted){.workspace = BYTES, .prepares = true});
    call_on_its_own_stream(&s); /* tunes */
    assert_ok(sat_stream_wait(s.ctx, cudaStreamPerThread));
    memset(s.o.at[2], 0, BYTES);
    call_in_another_thread(&s);
    assert_ok(sat_stream_wait(s.ctx, cudaStreamPerThread));
    assert_int_equal(s.o.at[2][0], 0); /* that was the other thread's */
    call_on_its_own_stream(&s);
    assert_ok(sat_stream_wait(s.ctx, cudaStreamPerThread));
    assert_int_equal(s.o.at[2][0], 7);
    close_scene(&s);
}

static void it_is_captured_like_any_other(void **state) {
    (void)state;
    scene s;
    open_scene(&s, (planted){.workspace = BYTES, .prepares = true});
    void *plain = call_on_its_own_stream(&s);
    begin_capture(cudaStreamPerThread);
    assert_ptr_not_equal(call_in_another_thread(&s), plain); /* not captured: that thread's stream is another */
    assert_ptr_equal(call_on_its_own_stream(&s), plain);
    cudaGraphExec_t exec = end_capture(cudaStreamPerThread);
    assert_int_equal(fake.spoilt, 0);
    memset(s.o.at[2], 0, BYTES);
    replay(exec, cudaStreamPerThread);
    assert_int_equal(s.o.at[2][0], 7);
    assert_ptr_not_equal(call_on_its_own_stream(&s), plain); /* that one is the graph's now */
    cudaGraphExecDestroy(exec);
    close_scene(&s);
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
