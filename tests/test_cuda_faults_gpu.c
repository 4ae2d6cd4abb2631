/* On a GPU: pointers that do not serve, memory that runs out, objects freed while their work is queued, and at the very
 * end, since nothing works after it, a candidate that breaks the device. Without one: what the library says then. */
#define _GNU_SOURCE
#include "gpu_product.h"

#include <stdatomic.h>
#include <unistd.h>
#include "problems.h"

/* ---- a variant of the program's own, from its side of the API ---- */

static size_t planted_workspace;
static bool planted_breaks;

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)a, (void)d;
    return p->a_dtype == SAT_F32 && p->c_dtype == SAT_F32;
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)p, (void)a, (void)d;
    return 1e-9;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)p, (void)a, (void)d;
    return planted_workspace;
}

/* Puts 1 to 256 bytes into the workspace, and copies what stands there to the output. */
static sat_status launch(const sat_launch *l) {
    if (planted_breaks) launch_kernel("write_nowhere", NULL, l->stream);
    if (!planted_workspace) return SAT_OK;
    return cudaMemsetAsync(l->workspace, 5, 64, l->stream) == cudaSuccess &&
                   cudaMemcpyAsync(l->operands[2], l->workspace, 64, cudaMemcpyDeviceToDevice, l->stream) == cudaSuccess
               ? SAT_OK
               : sat_fail(SAT_DEVICE_ERROR, "planted");
}

static void plant(sat_context *ctx) {
    sat_variant v = {SAT_SIZED(sat_variant), .name = "planted", .revision = "1",      .op = SAT_MATMUL,
                     .backend = SAT_CUDA,    .priority = 1000,  .supports = supports, .estimate = estimate,
                     .workspace = workspace, .launch = launch};
    assert_ok(sat_variant_register(ctx, &v));
}

static size_t free_bytes(void) {
    size_t free = 0, total = 0;
    assert_cuda(cudaDeviceSynchronize());
    assert_cuda(cudaMemGetInfo(&free, &total));
    return free;
}

/* Kernels that run for the first time take a little memory for their code, and keep it. */
static void assert_no_leak(size_t before) { assert_true(before < free_bytes() + ((size_t)32 << 20)); }

/* ---- pointers and devices ---- */

static void pointers_of_the_wrong_memory_are_refused_by_name(void **state) {
    (void)state;
    int devices = 0;
    sat_context *ctx = open_gpu((sat_context_options){.effort = SAT_EFFORT_OFF}), *cpu = open_context(SAT_EFFORT_OFF);
    product x = make_product(ctx, matmul_problem(SAT_F32, 32), 128, 96, 16, 3);
    sat_plan *plan = NULL, *cpu_plan = NULL;
    void *managed, *pinned, *foreign;
    size_t bytes = (size_t)x.count[1] * 4;
    assert_ok(sat_plan_create(ctx, x.pattern, &x.problem, &plan));
    assert_fails(sat_run(plan, (const void *[]){x.host[0], x.device[1]}, 2, (void *[]){x.device[2]}, 1, NULL),
                 SAT_WRONG_MEMORY, "values is");
    assert_fails(sat_run(plan, (const void *[]){x.device[0], x.host[1]}, 2, (void *[]){x.device[2]}, 1, NULL),
                 SAT_WRONG_MEMORY, "b is");
    assert_fails(sat_run(plan, (const void *[]){x.device[0], x.device[1]}, 2, (void *[]){x.host[2]}, 1, NULL),
                 SAT_WRONG_MEMORY, "c is");
    assert_fails(sat_memory_read(ctx, x.host[0], x.host[1], 4), SAT_WRONG_MEMORY, "is not memory of");
    assert_cuda(cudaMallocManaged(&managed, bytes, cudaMemAttachGlobal));
    assert_cuda(cudaMallocHost(&pinned, bytes));
    for (int i = 0; i < 2; i++) { /* both sides can use these */
        void *b = memcpy(i ? pinned : managed, x.host[1], bytes);
        assert_ok(sat_run(plan, (const void *[]){x.device[0], b}, 2, (void *[]){x.device[2]}, 1, NULL));
        assert_int_equal(differs(&x, NULL), -1);
    }
    assert_cuda(cudaGetDeviceCount(&devices));
    if (devices > 1) {
        assert_cuda(cudaSetDevice(1));
        assert_cuda(cudaMalloc(&foreign, bytes));
        assert_cuda(cudaSetDevice(0));
        assert_fails(sat_run(plan, (const void *[]){x.device[0], foreign}, 2, (void *[]){x.device[2]}, 1, NULL),
                     SAT_WRONG_MEMORY, "b is");
        cudaFree(foreign);
    } else print_message("another device's pointers: not tried, since there is one device\n");
    sat_pattern *pattern = NULL;
    sat_bsr indices = {SAT_SIZED(sat_bsr), .rows = x.a.rows,   .cols = x.a.cols,      .block_rows = 16,
                       .block_cols = 16,   .stored_blocks = 0, .index_type = SAT_I64, .row_ptr = x.device[0]};
    assert_fails(sat_pattern_create(cpu, &indices, &pattern), SAT_WRONG_MEMORY, "row_ptr is");
    uint64_t random = 3;
    pattern = random_pattern(cpu, &random, 128, 96, 16, 16, 0.4, true);
    assert_ok(sat_plan_create(cpu, pattern, &x.problem, &cpu_plan));
    assert_fails(sat_run(cpu_plan, (const void *[]){x.host[0], x.device[1]}, 2, (void *[]){x.host[2]}, 1, NULL),
                 SAT_WRONG_MEMORY, "b is");
    assert_fails(sat_memory_write(cpu, x.device[0], x.host[0], 4), SAT_WRONG_MEMORY, "is not memory of");
    sat_plan_free(plan), sat_plan_free(cpu_plan), sat_pattern_free(pattern);
    cudaFree(managed), cudaFreeHost(pinned);
    free_product(&x);
    sat_context_free(ctx), sat_context_free(cpu);
}

static void buffers_may_take_turns_and_move(void **state) {
    (void)state;
    enum { BUFFERS = 12 }; /* more than a plan remembers */
    sat_context *ctx = open_gpu((sat_context_options){.effort = SAT_EFFORT_OFF});
    product x = make_product(ctx, matmul_problem(SAT_F32, 32), 128, 96, 16, 4);
    sat_plan *plan = NULL;
    void *out[BUFFERS], *first = x.device[2];
    assert_ok(sat_plan_create(ctx, x.pattern, &x.problem, &plan));
    for (int i = 0; i < BUFFERS; i++) assert_cuda(cudaMalloc(&out[i], (size_t)x.count[2] * 4));
    for (int i = 0; i < 5 * BUFFERS; i++) {
        x.device[2] = out[i % BUFFERS];
        assert_ok(run(plan, &x, NULL));
        assert_int_equal(differs(&x, NULL), -1);
        if (i % 7 == 0) renew(&x);
    }
    x.device[2] = first;
    for (int i = 0; i < BUFFERS; i++) cudaFree(out[i]);
    sat_plan_free(plan);
    free_product(&x);
    sat_context_free(ctx);
}

static void a_device_that_is_not_there_is_named(void **state) {
    (void)state;
    sat_context *ctx = NULL;
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cuda:63", .cache_dir = ""};
    assert_fails(sat_context_create(&o, &ctx), SAT_NOT_FOUND, "cuda:63");
    assert_null(ctx);
}

/* ---- freeing while work is queued ---- */

static atomic_int held_now, too_early;
static cudaEvent_t last_run; /* what must be done before memory comes back */

/* An allocator that heeds captures, as a framework's does. */
static enum cudaStreamCaptureMode exchange_mode(enum cudaStreamCaptureMode mode) {
    assert_cuda(cudaThreadExchangeStreamCaptureMode(&mode));
    return mode;
}

static void *user_alloc(void *user, size_t bytes, size_t alignment) {
    void *p = NULL;
    (void)alignment;
    enum cudaStreamCaptureMode before = exchange_mode(cudaStreamCaptureModeRelaxed);
    if (bytes > *(size_t *)user || cudaMalloc(&p, bytes) != cudaSuccess) p = NULL;
    (void)cudaGetLastError();
    exchange_mode(before);
    held_now += p != NULL;
    return p;
}

static void user_free(void *user, void *pointer) {
    (void)user;
    enum cudaStreamCaptureMode before = exchange_mode(cudaStreamCaptureModeRelaxed);
    if (last_run && cudaEventQuery(last_run) != cudaSuccess) too_early++;
    (void)cudaGetLastError();
    cudaFree(pointer);
    exchange_mode(before);
    held_now--;
}

static void objects_are_freed_while_their_work_is_queued(void **state) {
    (void)state;
    for (int custom = 0; custom < 2; custom++) {
        size_t most = SIZE_MAX;
        sat_context_options o = {.effort = SAT_EFFORT_OFF};
        sat_allocator own = {SAT_SIZED(sat_allocator), user_alloc, user_free, &most};
        if (custom) o.allocator = &own;
        sat_context *ctx = open_gpu(o);
        cudaStream_t s = new_stream();
        cudaEvent_t done;
        assert_cuda(cudaEventCreate(&done));
        planted_workspace = 1 << 20;
        plant(ctx);
        product x = make_product(ctx, matmul_problem(SAT_F32, 32), 128, 96, 16, 6);
        sat_plan *plan = NULL, *owner = NULL;
        unsigned char got[64];
        assert_ok(sat_plan_create_with(ctx, x.pattern, &x.problem, "planted", &owner)); /* with memory of its own */
        hold(s, 0.1);
        assert_ok(run(owner, &x, s));
        assert_cuda(cudaEventRecord(done, s));
        last_run = done;
        sat_plan_free(owner);
        last_run = NULL;
        assert_cuda(cudaEventQuery(done)); /* it has waited */
        assert_cuda(cudaMemcpy(got, x.device[2], sizeof got, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < sizeof got; i++) assert_int_equal(got[i], 5);

        renew(&x);
        assert_ok(sat_plan_create_with(ctx, x.pattern, &x.problem, "cuda_matmul_any_any_simt_reference", &plan));
        hold(s, 0.1);
        assert_ok(run(plan, &x, s)); /* reads the pattern's index, which goes with its last owner */
        sat_plan_free(plan), sat_pattern_free(x.pattern);
        x.pattern = NULL;
        assert_int_equal(differs(&x, s), -1);
        free_product(&x);

        x = make_product(ctx, matmul_problem(SAT_F32, 48), 128, 96, 16, 7);
        hold(s, 0.1);
        assert_ok(one_call(ctx, &x, s));
        assert_cuda(cudaEventRecord(done, s));
        last_run = done;
        sat_context_free(ctx); /* with the plans of its pool, and before the pattern */
        last_run = NULL;
        assert_int_equal(differs(&x, s), -1);
        free_product(&x);
        assert_int_equal(held_now, 0);
        assert_int_equal(too_early, 0);
        cudaStreamDestroy(s), cudaEventDestroy(done);
    }
    planted_workspace = 0;
}

static void freeing_leaves_a_capture_alone(void **state) {
    (void)state;
    size_t most = SIZE_MAX;
    sat_allocator own = {SAT_SIZED(sat_allocator), user_alloc, user_free, &most};
    sat_context *ctx = open_gpu((sat_context_options){.effort = SAT_EFFORT_OFF, .allocator = &own});
    cudaStream_t s = new_stream();
    cudaGraph_t graph = NULL;
    planted_workspace = 1 << 20;
    plant(ctx);
    product x = make_product(ctx, matmul_problem(SAT_F32, 32), 128, 96, 16, 8);
    sat_plan *plan = NULL, *other = NULL;
    assert_ok(sat_plan_create(ctx, x.pattern, &x.problem, &plan));
    assert_ok(sat_plan_create_with(ctx, x.pattern, &x.problem, "planted", &other));
    assert_cuda(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    assert_ok(run(plan, &x, s));
    sat_plan_free(other);
    assert_cuda(cudaStreamEndCapture(s, &graph));
    cudaGraphDestroy(graph);
    planted_workspace = 0;
    sat_plan_free(plan);
    free_product(&x);
    sat_context_free(ctx);
    cudaStreamDestroy(s);
}

/* ---- memory that runs out ---- */

enum { CHUNKS = 4096 };

static int take_all(void **chunk) {
    int count = 0;
    for (size_t bytes = (size_t)8 << 30; bytes >= (size_t)1 << 20; bytes /= 2)
        while (count < CHUNKS && cudaMalloc(&chunk[count], bytes) == cudaSuccess) count++;
    (void)cudaGetLastError();
    return count;
}

static void a_full_device_is_an_error_and_nothing_leaks(void **state) {
    (void)state;
    enum { ROWS = 1 << 20 };
    static void *chunk[CHUNKS];
    sat_context *ctx = open_gpu((sat_context_options){.effort = SAT_EFFORT_QUICK, .budget_seconds = 0.05});
    planted_workspace = 64 << 20;
    plant(ctx);
    product x = make_product(ctx, matmul_problem(SAT_F32, 32), 128, 96, 16, 9);
    int32_t *row_ptr = malloc(((size_t)ROWS + 1) * 4), *col_idx = calloc(ROWS, 4);
    for (int i = 0; i <= ROWS; i++) row_ptr[i] = i;
    sat_bsr large = {SAT_SIZED(sat_bsr), .rows = ROWS, .cols = 1, .block_rows = 1, .block_cols = 1};
    large.stored_blocks = ROWS, large.index_type = SAT_I32, large.row_ptr = row_ptr, large.col_idx = col_idx;
    sat_pattern *pattern = NULL;
    sat_plan *plan = NULL;
    sat_problem other = x.problem;
    assert_ok(sat_plan_create(ctx, x.pattern, &x.problem, &plan)); /* what tuning keeps is there from now on */
    size_t before = free_bytes();
    int count = take_all(chunk);
    assert_fails(sat_pattern_create(ctx, &large, &pattern), SAT_OUT_OF_MEMORY, "pattern");
    assert_null(pattern);
    sat_plan *none = NULL;
    assert_fails(sat_plan_create_with(ctx, x.pattern, &x.problem, "planted", &none), SAT_OUT_OF_MEMORY, "planted");
    other.n = 24; /* not raced yet: nothing to race with, so the estimate serves, and without workspace */
    assert_ok(sat_plan_create(ctx, x.pattern, &other, &none));
    sat_plan_free(none);
    assert_ok(run(plan, &x, NULL)); /* a plan that is there runs */
    for (int i = 0; i < count; i++) cudaFree(chunk[i]);
    assert_no_leak(before);
    assert_ok(sat_pattern_create(ctx, &large, &pattern));
    sat_pattern_free(pattern);
    planted_workspace = 0;
    free(row_ptr), free(col_idx);
    sat_plan_free(plan);
    free_product(&x);
    sat_context_free(ctx);
}

static void a_candidate_without_memory_loses_and_nothing_leaks(void **state) {
    (void)state;
    size_t most = (size_t)1 << 30, before = 0;
    held_now = 0;
    planted_workspace = most + 1;
    sat_allocator own = {SAT_SIZED(sat_allocator), user_alloc, user_free, &most};
    sat_context *ctx =
        open_gpu((sat_context_options){.effort = SAT_EFFORT_QUICK, .budget_seconds = 0.05, .allocator = &own});
    plant(ctx);
    product x = make_product(ctx, matmul_problem(SAT_F32, 32), 128, 96, 16, 10);
    for (int round = 0; round < 3; round++) {
        sat_race *race = NULL;
        bool seen = false;
        sat_race_options o = {SAT_SIZED(sat_race_options), .fresh = true, .discard = true};
        assert_ok(sat_race_run(ctx, x.pattern, &x.problem, &o, &race));
        for (size_t i = 0; i < sat_race_count(race); i++) {
            const sat_result *r = sat_race_at(race, i);
            if (strcmp(r->variant, "planted") != 0) continue;
            assert_int_equal(r->verdict, SAT_VERDICT_MEMORY);
            seen = true;
        }
        assert_true(seen);
        assert_non_null(sat_race_best(race));
        sat_race_free(race);
        assert_int_equal(held_now, 0);
        if (round == 0) before = free_bytes();
        assert_no_leak(before);
    }
    planted_workspace = 0;
    free_product(&x);
    sat_context_free(ctx);
}

/* ---- the end of the device ---- */

static void a_candidate_that_breaks_the_device_is_named_and_kept_out_next_time(void **state) {
    (void)state;
    char folder[] = "/tmp/sat_faults_gpu_XXXXXX", command[96];
    assert_non_null(mkdtemp(folder));
    sat_context *ctx = open_gpu((sat_context_options){.effort = SAT_EFFORT_QUICK, .cache_dir = folder});
    planted_breaks = true;
    plant(ctx);
    product x = make_product(ctx, matmul_problem(SAT_F32, 32), 128, 96, 16, 11);
    sat_plan *plan = NULL;
    assert_fails(sat_plan_create(ctx, x.pattern, &x.problem, &plan), SAT_DEVICE_ERROR, "planted broke the device");
    assert_non_null(strstr(sat_last_error(), "race --isolate"));
    assert_null(plan);
    assert_int_not_equal(sat_stream_wait(ctx, NULL), SAT_OK); /* as whatever needs the device from now on */
    (void)sat_plan_create(ctx, x.pattern, &x.problem, &plan); /* which may fail, and may not crash */
    sat_plan_free(plan);
    snprintf(command, sizeof command, "grep -rq 'verdict=error.*variant=planted' %s", folder);
    assert_int_equal(system(command), 0);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
    free_product(&x);
    sat_context_free(ctx);
}

/* Where there is no device, the message says what is missing; then the rest is skipped. */
static int without_gpu(void) {
    sat_context *ctx = NULL;
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cuda", .cache_dir = ""};
    sat_status status = sat_context_create(&o, &ctx);
    bool told = (status == SAT_NOT_FOUND || status == SAT_UNSUPPORTED) && strstr(sat_last_error(), "NVIDIA driver");
    fprintf(stderr, "%s: %s\n", told ? "skipped" : "FAILED", sat_last_error());
    return told ? NO_GPU : 1;
}

int main(void) {
    if (!has_gpu()) return without_gpu();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pointers_of_the_wrong_memory_are_refused_by_name),
        cmocka_unit_test(buffers_may_take_turns_and_move),
        cmocka_unit_test(a_device_that_is_not_there_is_named),
        cmocka_unit_test(objects_are_freed_while_their_work_is_queued),
        cmocka_unit_test(freeing_leaves_a_capture_alone),
        cmocka_unit_test(a_full_device_is_an_error_and_nothing_leaks),
        cmocka_unit_test(a_candidate_without_memory_loses_and_nothing_leaks),
        cmocka_unit_test(a_candidate_that_breaks_the_device_is_named_and_kept_out_next_time), /* the last */
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
