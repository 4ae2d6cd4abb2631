/* On the model of CUDA: pointers and devices that do not serve, drivers that do not fit, memory that runs out, and
 * candidates that break the device. */
#define _GNU_SOURCE
#include "fake_support.h"

#include "cli/why.h"
#include "core/identity.h"
#include "../problems.h"

/* ---- pointers and devices ---- */

static void two_devices_of_one_kind_are_told_apart(void **state) {
    (void)state;
    char fingerprint[2][SAT_DIGEST_SIZE], text[64], small[4];
    fake.devices = 2;
    for (int i = 0; i < 2; i++) {
        sat_device d;
        assert_ok(sat_backend_cuda.open(i, &(sat_context_options){0}, &d));
        snprintf(d.identity, sizeof d.identity, "one kind");
        sat_identity_fingerprint(&sat_backend_cuda, &d, fingerprint[i]);
        sat_backend_cuda.unique(&d, text, sizeof text);
        assert_string_equal(text, i ? "a0000000000000000000000000000001" : "a0000000000000000000000000000000");
        sat_backend_cuda.unique(&d, small, sizeof small);
        assert_string_equal(small, "a0");
    }
    assert_string_not_equal(fingerprint[0], fingerprint[1]);
}

sat_status start_nothing(const sat_launch *l, int shared);

static const sat_device one_device = {SAT_SIZED(sat_device), .backend = SAT_CUDA, .capability = 90, .driver = 13000};
static const sat_variant some_variant = {SAT_SIZED(sat_variant), .name = "nothing"};
static const sat_launch some_launch = {SAT_SIZED(sat_launch), .variant = &some_variant, .device = &one_device};

/* A kernel's shared memory may depend on the problem: what comes later may ask for more, or for less. */
static void a_kernel_may_ask_for_more_shared_memory_later(void **state) {
    (void)state;
    const int bytes[] = {1000, 100000, 50000, 200000, 0, 200000};
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) assert_ok(start_nothing(&some_launch, bytes[i]));
}

static void *start_many(void *user) {
    uint64_t random = (uint64_t)(uintptr_t)user;
    intptr_t failures = 0;
    for (int i = 0; i < 2000; i++)
        failures += start_nothing(&some_launch, (int)random_below(&random, 220 << 10)) != SAT_OK;
    return (void *)failures;
}

static void threads_that_ask_for_shared_memory_do_not_take_it_from_each_other(void **state) {
    (void)state;
    pthread_t threads[4];
    for (intptr_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, start_many, (void *)(i + 1)), 0);
    for (int i = 0; i < 4; i++) {
        void *failures;
        assert_int_equal(pthread_join(threads[i], &failures), 0);
        assert_ptr_equal(failures, NULL);
    }
}

static void pointers_that_the_device_cannot_use_are_named(void **state) {
    (void)state;
    fake.devices = 2;
    scene s;
    open_scene(&s, (planted){0});
    char *const *at = s.o.at;
    static char host[BYTES + 64];
    char *aligned = host + (64 - (uintptr_t)host % 64) % 64, *foreign, *managed, *pinned;
    cudaSetDevice(1);
    assert_int_equal(cudaMalloc((void **)&foreign, BYTES), cudaSuccess);
    cudaSetDevice(0);
    assert_int_equal(cudaMallocManaged((void **)&managed, BYTES, 0), cudaSuccess);
    assert_int_equal(cudaMallocHost((void **)&pinned, BYTES), cudaSuccess);
    make_plan(&s);
    assert_fails(sat_run(s.plan, (const void *[]){aligned, at[1]}, 2, (void *[]){at[2]}, 1, NULL), SAT_WRONG_MEMORY,
                 "values is");
    assert_fails(sat_run(s.plan, (const void *[]){at[0], aligned}, 2, (void *[]){at[2]}, 1, NULL), SAT_WRONG_MEMORY,
                 "b is");
    assert_fails(sat_run(s.plan, (const void *[]){at[0], at[1]}, 2, (void *[]){foreign}, 1, NULL), SAT_WRONG_MEMORY,
                 "c is");
    assert_ok(sat_run(s.plan, (const void *[]){managed, pinned}, 2, (void *[]){at[2]}, 1, NULL));
    assert_fails(sat_memory_read(s.ctx, host, aligned, 4), SAT_WRONG_MEMORY, "fake 0");
    assert_fails(sat_memory_write(s.ctx, foreign, host, 4), SAT_WRONG_MEMORY, "fake 0");
    close_scene(&s);
    cudaFree(foreign), cudaFree(managed), cudaFreeHost(pinned);
}

static void buffers_that_take_turns_are_asked_about_once(void **state) {
    (void)state;
    scene s;
    open_scene(&s, (planted){0});
    make_plan(&s);
    operands o[6] = {s.o};
    for (int i = 1; i < 6; i++) o[i] = make_operands();
    for (int i = 0; i < 600; i++) assert_ok(run(s.plan, &o[i % 6], NULL));
    assert_int_equal(fake.attribute_calls, 18);
    char *const *at = s.o.at;
    assert_fails(sat_run(s.plan, (const void *[]){at[0], at[1]}, 2, (void *[]){at[2] + 2}, 1, NULL), SAT_MISALIGNED,
                 "c is");
    assert_fails(sat_run(s.plan, (const void *[]){at[0], at[1]}, 2, (void *[]){at[1]}, 1, NULL), SAT_OVERLAP,
                 "overlaps");
    close_scene(&s);
    for (int i = 1; i < 6; i++) free_operands(&o[i]);
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

static void *use_device_1(void *user) { /* as a thread that has not met CUDA before */
    planted x = {.workspace = BYTES, .prepares = true};
    sat_context *ctx = open_with((sat_context_options){.device = "cuda:1", .effort = SAT_EFFORT_QUICK});
    plant(ctx, &x, "planted");
    sat_pattern *pattern = full_pattern(ctx);
    sat_problem p = matmul_problem(SAT_F32, SIDE);
    sat_plan *plan = NULL;
    operands o;
    char host[BYTES] = {0};
    for (int i = 0; i < 3; i++) assert_ok(sat_memory_alloc(ctx, BYTES, (void **)&o.at[i]));
    assert_ok(sat_memory_write(ctx, o.at[0], host, BYTES));
    assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
    assert_ok(run(plan, &o, NULL));
    assert_ok(one_call(ctx, pattern, SIDE, &o, NULL));
    assert_ok(sat_stream_wait(ctx, NULL));
    assert_ok(sat_memory_read(ctx, host, o.at[2], BYTES));
    assert_int_equal(host[0], 7);
    for (int i = 0; i < 3; i++) sat_memory_free(ctx, o.at[i]);
    sat_plan_free(plan), sat_pattern_free(pattern), sat_context_free(ctx);
    return user;
}

static void a_device_that_nobody_uses_gets_no_context(void **state) {
    (void)state;
    pthread_t thread;
    fake.devices = 2;
    assert_int_equal(pthread_create(&thread, NULL, use_device_1, NULL), 0);
    pthread_join(thread, NULL);
    use_device_1(NULL);
    assert_false(fake.contexts[0]);
    assert_true(fake.contexts[1]);
    int device = -1;
    cudaGetDevice(&device);
    assert_int_equal(device, 0);
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

/* What `info` shows of a context on the CPU. */
static void assert_why(const char *asked, const char *word) {
    char why[256];
    sat_context *ctx = open_with((sat_context_options){.device = "cpu"});
    assert_true(why_not_cuda(ctx, asked, why, sizeof why));
    if (!strstr(why, word)) fail_msg("'%s' does not name %s", why, word);
    sat_context_free(ctx);
}

static void who_does_without_cuda_is_told_why(void **state) {
    (void)state;
    char why[256];
    setenv("SPARSE_AUTOTUNE_DEVICE", "cpu", 1);
    assert_why(NULL, "SPARSE_AUTOTUNE_DEVICE is 'cpu'");
    unsetenv("SPARSE_AUTOTUNE_DEVICE");
    assert_why("cpu:0", "--device is 'cpu:0'");
    fake.capability[0] = 75;
    assert_why(NULL, "fake 0 of capability 7.5; expected 8.0");
    fake.count_error = cudaErrorInsufficientDriver, fake.driver = 0;
    assert_why(NULL, "no NVIDIA driver");
    fake.driver = 12040;
    assert_why(NULL, "the NVIDIA driver is of CUDA 12.4");
    fake.count_error = cudaErrorNoDevice, fake.devices = 0;
    assert_why(NULL, "finds no GPU");
    fake_reset();
    sat_context *ctx = open_fake();
    assert_false(why_not_cuda(ctx, NULL, why, sizeof why));
    sat_context_free(ctx);
}

/* ---- memory that runs out ---- */

static void memory_that_runs_out_is_an_error_and_nothing_leaks(void **state) {
    (void)state;
    planted x = {.workspace = 4 << 20}, small = {0};
    size_t most = SIZE_MAX;
    held_now = 0;
    sat_allocator own = {SAT_SIZED(sat_allocator), user_alloc, user_free, &most};
    sat_context *ctx = open_with((sat_context_options){.effort = SAT_EFFORT_QUICK, .allocator = &own});
    plant(ctx, &x, "large"), plant(ctx, &small, "small");
    sat_bsr empty = {
        SAT_SIZED(sat_bsr),          .rows = 4, .cols = 4, .block_rows = 4, .block_cols = 4, .index_type = SAT_I32,
        .row_ptr = (int32_t[]){0, 0}};
    sat_pattern *pattern = full_pattern(ctx), *none = NULL;
    sat_problem p = matmul_problem(SAT_F32, SIDE);
    sat_plan *plan = NULL;
    sat_race *race = NULL;
    size_t whole = fake.memory;
    fake.memory = fake.held;
    assert_fails(sat_pattern_create(ctx, &empty, &none), SAT_OUT_OF_MEMORY, "pattern");
    assert_null(none);
    fake.memory = whole;
    most = 3 << 20; /* enough for the operands and a flush, not for the workspace */
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

static sat_race_info race_within(size_t limit, sat_measure measure, sat_status expected) {
    scene s;
    size_t before = fake.held;
    sat_race_info info = {SAT_SIZED(sat_race_info)};
    sat_race *race = NULL;
    open_scene_with(&s, (planted){0},
                    (sat_context_options){.effort = SAT_EFFORT_OFF, .measure = measure, .memory_limit = limit});
    sat_status status = sat_race_run(s.ctx, s.pattern, &s.problem, NULL, &race);
    assert_string_equal(sat_status_name(status), sat_status_name(expected));
    if (status == SAT_OK) assert_ok(sat_race_get_info(race, &info));
    sat_race_free(race);
    close_scene(&s);
    assert_int_equal(fake.held, before);
    return info;
}

static void the_limit_counts_what_a_flush_of_the_cache_takes(void **state) {
    (void)state;
    const size_t room = 2 * FAKE_L2;
    size_t all = race_within((size_t)1 << 28, SAT_MEASURE_COLD, SAT_OK).peak_bytes;
    assert_true(all > room && all < room + (1 << 20));
    (void)race_within(all, SAT_MEASURE_COLD, SAT_OK);
    (void)race_within(all - 1, SAT_MEASURE_COLD, SAT_OUT_OF_MEMORY);
    assert_non_null(strstr(sat_last_error(), "to flush the cache"));
    assert_int_equal(race_within(all - room, SAT_MEASURE_WARM, SAT_OK).peak_bytes, all - room); /* flushes nothing */
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
        sat_problem p = matmul_problem(SAT_F32, SIDE);
        sat_plan *plan = NULL;
        sat_race *race = NULL;
        if (process == 0) { /* who asks for a race gets everybody */
            assert_fails(sat_race_run(ctx, pattern, &p,
                                      &(sat_race_options){SAT_SIZED(sat_race_options), .discard = true}, &race),
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
        sat_problem p = matmul_problem(SAT_F32, process == 0 ? SIDE : SIDE - 1); /* one key */
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

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(two_devices_of_one_kind_are_told_apart),
        TEST(threads_that_ask_for_shared_memory_do_not_take_it_from_each_other), /* before one has asked for the most */
        TEST(a_kernel_may_ask_for_more_shared_memory_later),
        TEST(pointers_that_the_device_cannot_use_are_named),
        TEST(buffers_that_take_turns_are_asked_about_once),
        TEST(everything_runs_on_the_contexts_device_and_leaves_the_callers),
        TEST(a_device_that_nobody_uses_gets_no_context),
        TEST(devices_and_drivers_that_do_not_serve_say_why),
        TEST(the_best_device_is_one_that_serves),
        TEST(who_does_without_cuda_is_told_why),
        TEST(memory_that_runs_out_is_an_error_and_nothing_leaks),
        TEST(the_limit_counts_what_a_flush_of_the_cache_takes),
        TEST(a_candidate_that_breaks_the_device_ends_the_race_and_is_remembered),
        TEST(one_that_breaks_it_when_checked_is_passed_over_next_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
