/* What the library does around kernels on CUDA, on a machine without: captures, waiting, freeing, pointers, threads,
 * drivers that do not fit, memory that runs out, and candidates that break the device. See fake_cuda.h. */
#define _GNU_SOURCE
#include "support.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "fake_cuda.h"

enum { SIDE = 16, BYTES = SIDE * SIDE * 4 }; /* every operand of the usual problem */

/* ---- a variant of the host's own: it copies its values, or what it prepared, to the output ---- */

typedef struct planted {
    size_t workspace;
    bool prepares, refreshes, allocates;
    int64_t faults_at; /* n that it breaks the device with; -1: any */
    int launches, device;
    void *used; /* the workspace of the last launch */
} planted;

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)a, (void)d;
    return p->a_dtype == SAT_F32 && p->transpose == SAT_NO_TRANSPOSE;
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)p, (void)a, (void)d;
    return 1e-9;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)p, (void)a, (void)d;
    return ((const planted *)v->user)->workspace;
}

static sat_status prepare(const sat_prepare *p, void **state) {
    const planted *x = p->variant->user;
    if (!x->prepares) return SAT_OK;
    *state = malloc(1);
    return cudaMemsetAsync(p->workspace, 7, x->workspace, p->stream) == cudaSuccess ? SAT_OK : SAT_DEVICE_ERROR;
}

static atomic_int too_early; /* memory and states given back while something queued may use them */

static void release(const sat_variant *v, void *state) {
    (void)v;
    if (fake_pending()) too_early++;
    free(state);
}

static sat_status refresh(const sat_launch *l) {
    cudaError_t e = cudaMemcpyAsync(l->workspace, l->operands[0], BYTES, cudaMemcpyDeviceToDevice, l->stream);
    return e == cudaSuccess ? SAT_OK : sat_fail(SAT_DEVICE_ERROR, "refresh: %s", cudaGetErrorString(e));
}

static sat_status launch(const sat_launch *l) {
    planted *x = l->variant->user;
    bool fixed = x->refreshes && (l->problem->flags & SAT_FIXED_VALUES);
    size_t bytes = (size_t)(l->problem->m * l->problem->n) * 4;
    const void *from = x->prepares || fixed ? l->workspace : l->operands[0];
    void *taken = NULL;
    x->launches++, x->used = l->workspace;
    cudaGetDevice(&x->device);
    if (x->allocates && cudaMalloc(&taken, 64) == cudaSuccess) cudaFree(taken);
    if (x->faults_at == -1 || x->faults_at == l->problem->n) fake_fault(l->stream);
    cudaError_t e =
        cudaMemcpyAsync(l->operands[2], from, bytes < BYTES ? bytes : BYTES, cudaMemcpyDeviceToDevice, l->stream);
    if (e == cudaSuccess) return SAT_OK;
    return sat_fail(SAT_DEVICE_ERROR, "planted: %s", cudaGetErrorString(e));
}

static void plant(sat_context *ctx, planted *x, const char *name) {
    sat_variant v = {SAT_SIZED(sat_variant),
                     .name = name,
                     .revision = "1",
                     .op = SAT_MATMUL,
                     .backend = SAT_CUDA,
                     .priority = 1000,
                     .user = x,
                     .supports = supports,
                     .estimate = estimate,
                     .workspace = workspace,
                     .release = release,
                     .launch = launch,
                     .prepare = x->prepares ? prepare : NULL,
                     .refresh = x->refreshes ? refresh : NULL};
    assert_ok(sat_register_variant(ctx, &v));
}

/* ---- contexts, patterns and operands ---- */

static sat_context *open_with(sat_context_options o) {
    sat_context *ctx = NULL;
    o.size = sizeof o;
    if (!o.device) o.device = "cuda";
    if (!o.cache_dir) o.cache_dir = "";
    if (!o.budget_seconds) o.budget_seconds = 0.02;
    assert_ok(sat_context_create(&o, &ctx));
    return ctx;
}

static sat_context *open_fake(void) { return open_with((sat_context_options){.effort = SAT_EFFORT_QUICK}); }

static sat_pattern *full_pattern(sat_context *ctx) { /* 16 x 16 in blocks of 4 x 4, all of them stored */
    uint64_t random = 1;
    return random_pattern(ctx, &random, SIDE, SIDE, 4, 4, 1.1, false);
}

typedef struct operands {
    char *at[3];
} operands;

static operands make_operands(void) {
    operands o;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(cudaMalloc((void **)&o.at[i], BYTES), cudaSuccess);
        memset(o.at[i], 11 * (i + 1), BYTES);
    }
    return o;
}

static void free_operands(operands *o) {
    for (int i = 0; i < 3; i++) cudaFree(o->at[i]);
}

static sat_status run(sat_plan *plan, const operands *o, cudaStream_t stream) {
    return sat_run(plan, (void *[]){o->at[0], o->at[1], o->at[2]}, stream);
}

static sat_status one_call(sat_context *ctx, const sat_pattern *pattern, int64_t n, const operands *o,
                           cudaStream_t stream) {
    sat_problem p = sat_matmul_problem(SAT_F32, n);
    return sat_bsr_matmul(ctx, pattern, &p, o->at[0], o->at[1], o->at[2], NULL, stream);
}

static cudaStream_t new_stream(void) {
    cudaStream_t s;
    assert_int_equal(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
    return s;
}

static void begin_capture(cudaStream_t s) {
    assert_int_equal(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal), cudaSuccess);
}

static cudaGraphExec_t end_capture(cudaStream_t s) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    assert_int_equal(cudaStreamEndCapture(s, &graph), cudaSuccess);
    assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    cudaGraphDestroy(graph);
    return exec;
}

static void replay(cudaGraphExec_t exec, cudaStream_t s) {
    assert_int_equal(cudaGraphLaunch(exec, s), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(s), cudaSuccess);
}

/* ---- captures ---- */

static void a_run_is_captured_and_replayed_with_new_values(void **state) {
    (void)state;
    planted x = {0};
    sat_context *ctx = open_fake();
    plant(ctx, &x, "planted");
    sat_pattern *pattern = full_pattern(ctx);
    sat_problem p = sat_matmul_problem(SAT_F32, SIDE);
    sat_plan *plan = NULL;
    cudaStream_t s = new_stream();
    operands o = make_operands();
    assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
    begin_capture(s);
    assert_ok(run(plan, &o, s)); /* its first, with pointers that it has not seen */
    cudaGraphExec_t exec = end_capture(s);
    assert_int_equal(o.at[2][5], 33); /* nothing ran */
    for (int value = 1; value < 4; value++) {
        memset(o.at[0], value, BYTES);
        replay(exec, s);
        assert_int_equal(o.at[2][BYTES - 1], value);
    }
    cudaGraphExecDestroy(exec);
    sat_plan_free(plan), sat_pattern_free(pattern), sat_context_free(ctx);
    free_operands(&o), cudaStreamDestroy(s);
}

static void a_launch_that_allocates_under_capture_is_found_out(void **state) {
    (void)state;
    planted x = {.allocates = true};
    sat_context *ctx = open_fake();
    plant(ctx, &x, "planted");
    sat_pattern *pattern = full_pattern(ctx);
    sat_problem p = sat_matmul_problem(SAT_F32, SIDE);
    sat_plan *plan = NULL;
    cudaStream_t s = new_stream();
    cudaGraph_t graph;
    operands o = make_operands();
    assert_ok(sat_plan_create_with(ctx, pattern, &p, "planted", &plan));
    begin_capture(s);
    (void)run(plan, &o, s);
    assert_int_equal(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureInvalidated);
    sat_plan_free(plan), sat_pattern_free(pattern), sat_context_free(ctx);
    free_operands(&o), cudaStreamDestroy(s);
}

static void what_is_prepared_is_there_before_a_run_on_any_stream(void **state) {
    (void)state;
    planted x = {.workspace = BYTES, .prepares = true};
    sat_context *ctx = open_fake();
    plant(ctx, &x, "planted");
    sat_pattern *pattern = full_pattern(ctx);
    sat_problem p = sat_matmul_problem(SAT_F32, SIDE);
    sat_plan *plan = NULL;
    cudaStream_t s = new_stream();
    operands o = make_operands();
    assert_ok(sat_plan_create_with(ctx, pattern, &p, "planted", &plan));
    assert_ok(run(plan, &o, s));
    assert_ok(sat_stream_wait(ctx, s));
    assert_int_equal(o.at[2][0], 7);
    sat_plan_free(plan), sat_pattern_free(pattern), sat_context_free(ctx);
    free_operands(&o), cudaStreamDestroy(s);
}

static void fixed_values_taken_in_by_a_graph_are_not_taken_for_done(void **state) {
    (void)state;
    planted x = {.workspace = BYTES, .refreshes = true};
    sat_context *ctx = open_fake();
    plant(ctx, &x, "planted");
    sat_pattern *pattern = full_pattern(ctx);
    sat_problem p = sat_matmul_problem(SAT_F32, SIDE);
    p.flags |= SAT_FIXED_VALUES;
    sat_plan *plan = NULL;
    cudaStream_t s = new_stream();
    operands o = make_operands();
    assert_ok(sat_plan_create_with(ctx, pattern, &p, "planted", &plan));
    begin_capture(s);
    assert_ok(run(plan, &o, s));
    cudaGraphExec_t exec = end_capture(s);
    memset(o.at[0], 5, BYTES);
    assert_ok(run(plan, &o, s)); /* outside of the graph, which has not run: it takes the values in itself */
    assert_ok(sat_stream_wait(ctx, s));
    assert_int_equal(o.at[2][0], 5);
    memset(o.at[0], 6, BYTES);
    assert_ok(run(plan, &o, s)); /* now they are fixed */
    assert_ok(sat_stream_wait(ctx, s));
    assert_int_equal(o.at[2][0], 5);
    replay(exec, s); /* the graph has its own conversion */
    assert_int_equal(o.at[2][0], 6);
    cudaGraphExecDestroy(exec);
    sat_plan_free(plan), sat_pattern_free(pattern), sat_context_free(ctx);
    free_operands(&o), cudaStreamDestroy(s);
}

typedef struct other {
    sat_context *ctx;
    planted *x;
} other;

/* All that takes memory and waits, while the main thread captures. */
static void *work_beside_a_capture(void *user) {
    other *t = user;
    sat_problem p = sat_matmul_problem(SAT_F32, SIDE);
    sat_pattern *pattern = full_pattern(t->ctx);
    sat_plan *plan = NULL, *copy = NULL;
    cudaStream_t s = new_stream();
    char host[BYTES];
    void *memory = NULL, *at[3];
    assert_ok(sat_plan_create(t->ctx, pattern, &p, &plan));
    assert_ok(sat_plan_dup(plan, &copy));
    for (int i = 0; i < 3; i++) assert_ok(sat_memory_alloc(t->ctx, BYTES, &at[i]));
    assert_ok(sat_memory_alloc(t->ctx, BYTES, &memory));
    assert_ok(sat_memory_write(t->ctx, at[0], memset(host, 9, BYTES), BYTES));
    assert_ok(sat_run(plan, at, s));
    assert_ok(sat_stream_wait(t->ctx, s));
    assert_ok(sat_memory_read(t->ctx, host, at[2], BYTES));
    assert_int_equal(host[100], 9);
    sat_plan_free(plan), sat_plan_free(copy), sat_pattern_free(pattern);
    for (int i = 0; i < 3; i++) sat_memory_free(t->ctx, at[i]);
    sat_memory_free(t->ctx, memory);
    return NULL;
}

static void other_threads_tune_allocate_and_free_while_a_graph_is_captured(void **state) {
    (void)state;
    for (int warm = 0; warm < 2; warm++) {
        planted x = {0};
        sat_context *ctx = open_with((sat_context_options){.effort = SAT_EFFORT_QUICK, .measure = (sat_measure)warm});
        plant(ctx, &x, "planted");
        sat_pattern *pattern = full_pattern(ctx);
        sat_problem p = sat_matmul_problem(SAT_F32, SIDE);
        sat_plan *plan = NULL;
        cudaStream_t s = new_stream();
        operands o = make_operands();
        pthread_t thread;
        other t = {ctx, &x};
        assert_ok(sat_plan_create_with(ctx, pattern, &p, "planted", &plan));
        begin_capture(s);
        assert_int_equal(pthread_create(&thread, NULL, work_beside_a_capture, &t), 0);
        pthread_join(thread, NULL);
        work_beside_a_capture(&t); /* and this very thread */
        assert_ok(run(plan, &o, s));
        assert_fails(sat_stream_wait(ctx, s), SAT_UNSUPPORTED, "captured");
        cudaGraphExecDestroy(end_capture(s));
        assert_int_equal(fake.spoilt, 0);
        sat_plan_free(plan), sat_pattern_free(pattern), sat_context_free(ctx);
        free_operands(&o), cudaStreamDestroy(s);
    }
}

static void one_call_under_capture_takes_a_plan_that_needs_nothing(void **state) {
    (void)state;
    planted x = {.workspace = BYTES, .prepares = true};
    sat_context *ctx = open_fake();
    plant(ctx, &x, "planted");
    sat_pattern *pattern = full_pattern(ctx);
    cudaStream_t s = new_stream();
    operands o = make_operands();
    sat_problem turned = sat_matmul_problem(SAT_F32, SIDE);
    turned.transpose = SAT_TRANSPOSE;
    int allocations = fake.allocations, kernels = fake.kernels;
    begin_capture(s);
    assert_ok(one_call(ctx, pattern, SIDE, &o, s));
    assert_int_equal(x.launches, 0); /* that one is neither checked nor without memory */
    assert_true(fake.kernels > kernels);
    assert_fails(sat_bsr_matmul(ctx, pattern, &turned, o.at[0], o.at[1], o.at[2], NULL, s), SAT_UNSUPPORTED,
                 "before the capture"); /* its index is not made yet */
    assert_int_equal(fake.allocations, allocations);
    cudaGraphExecDestroy(end_capture(s));
    assert_ok(one_call(ctx, pattern, SIDE, &o, s)); /* not kept to the estimate of the capture: this one tunes */
    assert_true(x.launches > 0);
    assert_ok(sat_stream_wait(ctx, s));
    assert_int_equal(o.at[2][0], 7);
    sat_pattern_free(pattern), sat_context_free(ctx);
    free_operands(&o), cudaStreamDestroy(s);
}

static void a_captured_one_call_keeps_its_workspace_for_the_graph(void **state) {
    (void)state;
    planted x = {.workspace = BYTES, .prepares = true};
    sat_context *ctx = open_fake();
    plant(ctx, &x, "planted");
    sat_pattern *pattern = full_pattern(ctx);
    cudaStream_t s = new_stream();
    operands o = make_operands();
    assert_ok(one_call(ctx, pattern, SIDE, &o, s));
    void *plain = x.used;
    begin_capture(s);
    assert_ok(one_call(ctx, pattern, SIDE, &o, s));
    void *captured = x.used;
    assert_ptr_equal(captured, plain); /* the plan that is there */
    cudaGraphExec_t exec = end_capture(s);
    assert_ok(one_call(ctx, pattern, SIDE, &o, s));
    assert_ptr_not_equal(x.used, captured); /* the graph may run at any time, on any stream */
    begin_capture(s);
    assert_ok(one_call(ctx, pattern, SIDE, &o, s));
    assert_ptr_equal(x.used, captured); /* captures share */
    cudaGraphExecDestroy(end_capture(s));
    for (int64_t n = 1; n < 12; n++) /* more problems than the pool has places */
        for (int stream = 0; stream < 8; stream++) {
            static cudaStream_t more[8];
            if (!more[stream]) more[stream] = new_stream();
            assert_ok(one_call(ctx, pattern, n, &o, more[stream]));
        }
    memset(o.at[2], 0, BYTES);
    assert_true(fake_live(captured));
    replay(exec, s);
    assert_int_equal(o.at[2][0], 7);
    assert_int_equal(fake.misuses, 0);
    cudaGraphExecDestroy(exec);
    sat_pattern_free(pattern), sat_context_free(ctx);
    free_operands(&o), cudaStreamDestroy(s);
}

/* ---- freeing while work is queued ---- */

static atomic_int held_now;

static void *user_alloc(void *user, size_t bytes, size_t alignment) {
    size_t *most = user;
    void *p = NULL;
    (void)alignment;
    if (bytes > *most || cudaMalloc(&p, bytes) != cudaSuccess) return NULL;
    held_now++;
    return p;
}

static void user_free(void *user, void *pointer) {
    (void)user;
    if (fake_pending()) too_early++; /* what is queued may use it */
    held_now--;
    cudaFree(pointer);
}

static void memory_goes_back_when_nothing_uses_it_any_more(void **state) {
    (void)state;
    for (int custom = 0; custom < 2; custom++) {
        planted x = {.workspace = BYTES, .prepares = true};
        size_t most = SIZE_MAX;
        sat_context_options options = {.effort = SAT_EFFORT_QUICK};
        if (custom) options.allocator = (sat_allocator){user_alloc, user_free, &most};
        held_now = too_early = 0;
        sat_context *ctx = open_with(options);
        plant(ctx, &x, "planted");
        sat_pattern *pattern = full_pattern(ctx);
        sat_problem p = sat_matmul_problem(SAT_F32, SIDE);
        sat_plan *plan = NULL;
        cudaStream_t s = new_stream();
        operands o = make_operands();
        assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
        memset(o.at[2], 0, BYTES);
        assert_ok(run(plan, &o, s));
        assert_true(fake_pending() > 0);
        sat_plan_free(plan), sat_pattern_free(pattern);
        assert_int_equal(fake_pending(), 0);
        assert_int_equal(o.at[2][0], 7);
        pattern = full_pattern(ctx);
        memset(o.at[2], 0, BYTES);
        assert_ok(one_call(ctx, pattern, SIDE, &o, s));
        sat_context_free(ctx); /* before its pattern, and before the work is done */
        assert_int_equal(o.at[2][0], 7);
        sat_pattern_free(pattern);
        assert_int_equal(held_now, 0);
        assert_int_equal(too_early, 0);
        assert_int_equal(fake.misuses, 0);
        free_operands(&o), cudaStreamDestroy(s);
    }
}

/* ---- pointers and devices ---- */

static void pointers_that_the_device_cannot_use_are_named(void **state) {
    (void)state;
    fake.devices = 2;
    planted x = {0};
    sat_context *ctx = open_fake();
    plant(ctx, &x, "planted");
    sat_pattern *pattern = full_pattern(ctx);
    sat_problem p = sat_matmul_problem(SAT_F32, SIDE);
    sat_plan *plan = NULL;
    operands o = make_operands();
    static char host[BYTES + 64];
    char *aligned = host + (64 - (uintptr_t)host % 64) % 64, *foreign, *managed, *pinned;
    cudaSetDevice(1);
    assert_int_equal(cudaMalloc((void **)&foreign, BYTES), cudaSuccess);
    cudaSetDevice(0);
    assert_int_equal(cudaMallocManaged((void **)&managed, BYTES, 0), cudaSuccess);
    assert_int_equal(cudaMallocHost((void **)&pinned, BYTES), cudaSuccess);
    assert_ok(sat_plan_create_with(ctx, pattern, &p, "planted", &plan));
    assert_fails(sat_run(plan, (void *[]){aligned, o.at[1], o.at[2]}, NULL), SAT_WRONG_MEMORY, "values is");
    assert_fails(sat_run(plan, (void *[]){o.at[0], aligned, o.at[2]}, NULL), SAT_WRONG_MEMORY, "b is");
    assert_fails(sat_run(plan, (void *[]){o.at[0], o.at[1], foreign}, NULL), SAT_WRONG_MEMORY, "c is");
    assert_ok(sat_run(plan, (void *[]){managed, pinned, o.at[2]}, NULL));
    assert_fails(sat_memory_read(ctx, host, aligned, 4), SAT_WRONG_MEMORY, "fake 0");
    assert_fails(sat_memory_write(ctx, foreign, host, 4), SAT_WRONG_MEMORY, "fake 0");
    sat_plan_free(plan), sat_pattern_free(pattern), sat_context_free(ctx);
    cudaFree(foreign), cudaFree(managed), cudaFreeHost(pinned);
    free_operands(&o);
}

static void buffers_that_take_turns_are_asked_about_once(void **state) {
    (void)state;
    planted x = {0};
    sat_context *ctx = open_fake();
    plant(ctx, &x, "planted");
    sat_pattern *pattern = full_pattern(ctx);
    sat_problem p = sat_matmul_problem(SAT_F32, SIDE);
    sat_plan *plan = NULL;
    operands o[6];
    for (int i = 0; i < 6; i++) o[i] = make_operands();
    assert_ok(sat_plan_create_with(ctx, pattern, &p, "planted", &plan));
    for (int i = 0; i < 600; i++) assert_ok(run(plan, &o[i % 6], NULL));
    assert_int_equal(fake.attribute_calls, 18);
    assert_fails(sat_run(plan, (void *[]){o[0].at[0], o[0].at[1], o[0].at[2] + 2}, NULL), SAT_MISALIGNED, "c is");
    assert_fails(sat_run(plan, (void *[]){o[0].at[0], o[0].at[1], o[0].at[1]}, NULL), SAT_OVERLAP, "overlaps");
    sat_plan_free(plan), sat_pattern_free(pattern), sat_context_free(ctx);
    for (int i = 0; i < 6; i++) free_operands(&o[i]);
}

static void everything_runs_on_the_contexts_device_and_leaves_the_callers(void **state) {
    (void)state;
    fake.devices = 3;
    planted x = {.workspace = BYTES, .prepares = true};
    sat_context *ctx = open_with((sat_context_options){.device = "cuda:2", .effort = SAT_EFFORT_QUICK});
    plant(ctx, &x, "planted");
    cudaSetDevice(2);
    operands o = make_operands();
    cudaStream_t s = new_stream();
    cudaSetDevice(1);
    sat_pattern *pattern = full_pattern(ctx);
    int device = -1;
    assert_ok(one_call(ctx, pattern, SIDE, &o, s));
    assert_int_equal(x.device, 2);
    cudaGetDevice(&device);
    assert_int_equal(device, 1);
    sat_pattern_free(pattern), sat_context_free(ctx);
    cudaGetDevice(&device);
    assert_int_equal(device, 1);
    free_operands(&o), cudaStreamDestroy(s);
}

static char warning[512];

static void note_warning(void *user, sat_log_level level, const char *message) {
    (void)user;
    if (level == SAT_LOG_WARN) snprintf(warning, sizeof warning, "%s", message);
}

static void devices_and_drivers_that_do_not_serve_say_why(void **state) {
    (void)state;
    sat_context *ctx = NULL;
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cuda", .cache_dir = "", .log = note_warning};
    unsetenv("CUDA_VISIBLE_DEVICES");
    fake.count_error = cudaErrorInsufficientDriver, fake.driver = 0;
    assert_fails(sat_context_create(&o, &ctx), SAT_NOT_FOUND, "no NVIDIA driver");
    fake.driver = 11040;
    assert_fails(sat_context_create(&o, &ctx), SAT_UNSUPPORTED, "CUDA 11.4");
    assert_non_null(strstr(sat_last_error(), "update the driver"));
    fake.count_error = cudaErrorNoDevice, fake.devices = 0;
    assert_fails(sat_context_create(&o, &ctx), SAT_NOT_FOUND, "finds no GPU");
    setenv("CUDA_VISIBLE_DEVICES", "7", 1);
    assert_fails(sat_context_create(&o, &ctx), SAT_NOT_FOUND, "CUDA_VISIBLE_DEVICES is '7'");
    unsetenv("CUDA_VISIBLE_DEVICES");
    fake_reset();
    o.device = "cuda:1";
    assert_fails(sat_context_create(&o, &ctx), SAT_NOT_FOUND, "this machine has 1");
    o.device = "cuda:99";
    assert_fails(sat_context_create(&o, &ctx), SAT_NOT_FOUND, "cuda:99");
    fake.capability[0] = 75;
    o.device = "cuda";
    assert_fails(sat_context_create(&o, &ctx), SAT_UNSUPPORTED, "capability 7.5");
    assert_null(ctx);
}

static void the_best_device_is_one_that_serves(void **state) {
    (void)state;
    sat_context *ctx = NULL;
    sat_context_options o = {SAT_SIZED(sat_context_options), .cache_dir = "", .log = note_warning};
    unsetenv("SPARSE_AUTOTUNE_DEVICE");
    fake.devices = 2, fake.capability[0] = 75;
    assert_ok(sat_context_create(&o, &ctx));
    assert_string_equal(sat_context_device(ctx)->name, "fake 1 (4 SMs, 1 GB)");
    assert_non_null(strstr(warning, "capability 7.5"));
    sat_context_free(ctx);
    fake.devices = 1;
    assert_ok(sat_context_create(&o, &ctx));
    assert_int_equal(sat_context_device(ctx)->backend, SAT_CPU);
    sat_context_free(ctx);
    fake_reset();
    warning[0] = 0;
    fake.count_error = cudaErrorInsufficientDriver, fake.driver = 12040;
    assert_ok(sat_context_create(&o, &ctx));
    assert_int_equal(sat_context_device(ctx)->backend, SAT_CPU);
    assert_non_null(strstr(warning, "CUDA 12.4"));
    sat_context_free(ctx);
    warning[0] = 0;
    fake.driver = 0; /* no driver at all is nothing to talk about */
    assert_ok(sat_context_create(&o, &ctx));
    assert_string_equal(warning, "");
    sat_context_free(ctx);
}

/* ---- memory that runs out ---- */

static const sat_result *result_of(const sat_race *race, const char *variant) {
    for (size_t i = 0; i < sat_race_count(race); i++)
        if (strcmp(sat_race_at(race, i)->variant, variant) == 0) return sat_race_at(race, i);
    return NULL;
}

static void memory_that_runs_out_is_an_error_and_nothing_leaks(void **state) {
    (void)state;
    planted x = {.workspace = 1 << 20}, small = {0};
    size_t most = SIZE_MAX;
    held_now = 0;
    sat_context *ctx =
        open_with((sat_context_options){.effort = SAT_EFFORT_QUICK, .allocator = {user_alloc, user_free, &most}});
    plant(ctx, &x, "large"), plant(ctx, &small, "small");
    sat_bsr empty = {
        SAT_SIZED(sat_bsr),          .rows = 4, .cols = 4, .block_rows = 4, .block_cols = 4, .index_type = SAT_I32,
        .row_ptr = (int32_t[]){0, 0}};
    sat_pattern *pattern = full_pattern(ctx), *none = NULL;
    sat_problem p = sat_matmul_problem(SAT_F32, SIDE);
    sat_plan *plan = NULL;
    sat_race *race = NULL;
    size_t whole = fake.memory;
    fake.memory = fake.held;
    assert_fails(sat_pattern_create(ctx, &empty, &none), SAT_OUT_OF_MEMORY, "pattern");
    assert_null(none);
    fake.memory = whole;
    most = 100000; /* enough for the operands, not for the workspace */
    int before = fake.allocations;
    assert_fails(sat_plan_create_with(ctx, pattern, &p, "large", &plan), SAT_OUT_OF_MEMORY, "large");
    assert_int_equal(held_now, 0);
    assert_int_equal(fake.allocations, before);
    assert_ok(sat_race_run(ctx, pattern, &p, NULL, &race));
    assert_int_equal(result_of(race, "large")->verdict, SAT_VERDICT_MEMORY);
    assert_int_equal(result_of(race, "small")->verdict, SAT_VERDICT_OK);
    assert_string_equal(sat_race_best(race)->variant, "small");
    assert_int_equal(held_now, 0);
    sat_race_free(race);
    most = 0; /* not even the operands: no race, and the estimate serves */
    p.n = SIDE / 2;
    assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
    assert_int_equal(held_now, 0);
    sat_plan_free(plan), sat_pattern_free(pattern), sat_context_free(ctx);
}

/* ---- candidates that break the device ---- */

static char folder[64];

static void a_candidate_that_breaks_the_device_ends_the_race_and_is_remembered(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/sat_fake_cuda_XXXXXX");
    assert_non_null(mkdtemp(folder));
    planted good = {0}, bad = {.faults_at = -1};
    for (int process = 0; process < 3; process++) {
        sat_context *ctx = open_with((sat_context_options){.effort = SAT_EFFORT_QUICK, .cache_dir = folder});
        plant(ctx, &bad, "a_bad_one"), plant(ctx, &good, "good");
        sat_pattern *pattern = full_pattern(ctx);
        sat_problem p = sat_matmul_problem(SAT_F32, SIDE);
        sat_plan *plan = NULL;
        sat_race *race = NULL;
        if (process == 0) { /* who asks for a race gets everybody */
            assert_fails(sat_race_run(ctx, pattern, &p, &(sat_race_options){SAT_SIZED(sat_race_options)}, &race),
                         SAT_DEVICE_ERROR, "a_bad_one broke the device");
            assert_non_null(strstr(sat_last_error(), "illegal memory access"));
            assert_non_null(strstr(sat_last_error(), "--isolate"));
            assert_null(race);
        } else if (process == 1) {
            assert_fails(sat_plan_create(ctx, pattern, &p, &plan), SAT_DEVICE_ERROR, "a_bad_one broke the device");
            assert_null(plan);
        } else {
            int launches = bad.launches;
            assert_ok(sat_plan_create(ctx, pattern, &p, &plan)); /* whom the last process saw break it stays out */
            assert_int_equal(bad.launches, launches);
            sat_plan_info info = {SAT_SIZED(sat_plan_info)};
            assert_ok(sat_plan_get_info(plan, &info));
            assert_string_equal(info.variant, "good");
        }
        assert_int_equal(fake.dead, process < 2 ? cudaErrorIllegalAddress : cudaSuccess);
        sat_plan_free(plan), sat_pattern_free(pattern), sat_context_free(ctx);
        fake_reset(); /* as in the next process */
    }
}

static void one_that_breaks_it_when_checked_is_passed_over_next_time(void **state) {
    (void)state;
    planted good = {0}, bad = {.faults_at = SIDE - 1};
    for (int process = 0; process < 3; process++) {
        sat_context *ctx = open_with((sat_context_options){.effort = SAT_EFFORT_QUICK, .cache_dir = folder});
        plant(ctx, &bad, "a_sly_one"), plant(ctx, &good, "b_good");
        sat_pattern *pattern = full_pattern(ctx);
        sat_problem p = sat_matmul_problem(SAT_F32, process == 0 ? SIDE : SIDE - 1); /* one key */
        sat_plan_info info = {SAT_SIZED(sat_plan_info)};
        sat_plan *plan = NULL;
        if (process == 1)
            assert_fails(sat_plan_create(ctx, pattern, &p, &plan), SAT_DEVICE_ERROR, "a_sly_one broke the device");
        else {
            assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
            assert_ok(sat_plan_get_info(plan, &info));
            assert_string_equal(info.variant, process == 0 ? "a_sly_one" : "b_good");
        }
        sat_plan_free(plan), sat_pattern_free(pattern), sat_context_free(ctx);
        fake_reset();
    }
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
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
    sat_problem p = sat_matmul_problem(SAT_F32, SIDE);
    pthread_t threads[2];
    stop = false;
    bad_copies = 0;
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, make_patterns, ctx), 0);
    for (int i = 0; i < 3; i++) {
        sat_race *race = NULL;
        assert_ok(
            sat_race_run(ctx, pattern, &p, &(sat_race_options){SAT_SIZED(sat_race_options), .fresh = true}, &race));
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

static int reset(void **state) {
    (void)state;
    fake_reset();
    return 0;
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup(name, reset)
    const struct CMUnitTest tests[] = {
        TEST(a_run_is_captured_and_replayed_with_new_values),
        TEST(a_launch_that_allocates_under_capture_is_found_out),
        TEST(what_is_prepared_is_there_before_a_run_on_any_stream),
        TEST(fixed_values_taken_in_by_a_graph_are_not_taken_for_done),
        TEST(other_threads_tune_allocate_and_free_while_a_graph_is_captured),
        TEST(one_call_under_capture_takes_a_plan_that_needs_nothing),
        TEST(a_captured_one_call_keeps_its_workspace_for_the_graph),
        TEST(memory_goes_back_when_nothing_uses_it_any_more),
        TEST(pointers_that_the_device_cannot_use_are_named),
        TEST(buffers_that_take_turns_are_asked_about_once),
        TEST(everything_runs_on_the_contexts_device_and_leaves_the_callers),
        TEST(devices_and_drivers_that_do_not_serve_say_why),
        TEST(the_best_device_is_one_that_serves),
        TEST(memory_that_runs_out_is_an_error_and_nothing_leaks),
        TEST(a_candidate_that_breaks_the_device_ends_the_race_and_is_remembered),
        TEST(one_that_breaks_it_when_checked_is_passed_over_next_time),
        TEST(races_and_other_threads_share_the_tuning_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
