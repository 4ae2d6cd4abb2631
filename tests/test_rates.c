/* A device's measured rates: their file, and when a context measures. The device is a CPU that claims to be measurable.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "cache_helpers.h"

#include "cache/cache_rates.h"
#include "core/rates.h"
#include "problems.h"

static const sat_rates some = {
    .memory = 4.3e12, .l2 = 8.9e12, .tf32 = 3.1e14, .flop = {0, 5.1e13, 6.2e13, 6.1e14, 6e14}};

static const char *rates_path(char out[4200], const char *dir) {
    char folder[4200];
    device_folder(dir, folder);
    return in(out, folder, "rates.txt");
}

static bool loads(const char *dirs, sat_rates *rates) {
    sat_cache *cache = open_cache(dirs);
    bool found = sat_cache_load_rates(cache, rates);
    sat_cache_close(cache);
    return found;
}

static void keep(const char *dir, const sat_rates *rates) {
    sat_cache *cache = open_cache(dir);
    assert_int_equal(sat_cache_keep_rates(cache, rates), SAT_OK);
    sat_cache_close(cache);
}

static void same(const sat_rates *a, const sat_rates *b) {
    assert_true(a->memory == b->memory && a->l2 == b->l2 && a->tf32 == b->tf32);
    for (int t = SAT_F32; t <= SAT_BF16; t++) assert_true(a->flop[t] == b->flop[t]);
}

/* A file with these lines between title and checksum. */
static void write_sealed(const char *path, const char *title, const char *identity, const char *numbers) {
    sat_text text = {0};
    sat_text_adds(&text, title);
    sat_text_adds(&text, "\ndevice=");
    sat_text_adds(&text, identity);
    sat_text_adds(&text, "\n");
    sat_text_adds(&text, numbers);
    sat_text_adds(&text, "\n");
    sat_text_seal(&text, 0);
    write_file(path, text.data, text.length);
    sat_text_free(&text);
}

/* ---- the file ---- */

static void what_was_kept_is_read_back(void **state) {
    sat_rates got, other = some;
    assert_false(loads(*state, &got));
    keep(*state, &some);
    assert_true(loads(*state, &got));
    same(&got, &some);
    other.flop[SAT_F64] = 1.0 / 3 * 1e13; /* every digit counts */
    keep(*state, &other);
    assert_true(loads(*state, &got));
    same(&got, &other);
}

static void the_file_is_text_that_a_person_reads(void **state) {
    char path[4200];
    size_t length;
    keep(*state, &some);
    char *text = read_file(rates_path(path, *state), &length);
    assert_non_null(strstr(text, "sparse_autotune rates 1.2\ndevice=cpu Some Model"));
    assert_non_null(strstr(text, "\nrevision=1\twhen="));
    assert_non_null(strstr(text, "\tmemory=4.3e+12\tl2=8.9e+12\t"));
    assert_true(length < 512 && ends_with(text, "\n") && strstr(text, "\nchecksum="));
    free(text);
}

static void a_damaged_file_is_none_and_is_replaced(void **state) {
    char path[4200];
    size_t length;
    sat_rates got;
    messages m;
    keep(*state, &some);
    char *text = read_file(rates_path(path, *state), &length);
    for (size_t i = 0; i < length; i++) { /* any byte, and any end */
        char was = text[i];
        text[i] = (char)(was ^ 1);
        write_file(path, text, length);
        if (loads(*state, &got)) fail_msg("byte %zu changed and nobody saw it", i);
        text[i] = was;
        write_file(path, text, i);
        if (loads(*state, &got)) fail_msg("cut after %zu bytes and nobody saw it", i);
    }
    sat_cache *cache = open_logged(*state, &m);
    assert_false(sat_cache_load_rates(cache, &got));
    assert_false(sat_cache_load_rates(cache, &got));
    assert_int_equal(m.count, 1);
    assert_int_equal(sat_cache_keep_rates(cache, &some), SAT_OK);
    assert_true(sat_cache_load_rates(cache, &got));
    sat_cache_close(cache);
    free(text);
}

static void numbers_that_cannot_be_are_refused(void **state) {
    static const char *const lines[] = {
        "revision=1\tmemory=0\tl2=1\tf32=1\tf64=1\tf16=1\tbf16=1\ttf32=1",
        "revision=1\tmemory=nan\tl2=1\tf32=1\tf64=1\tf16=1\tbf16=1\ttf32=1",
        "revision=1\tmemory=-1\tl2=1\tf32=1\tf64=1\tf16=1\tbf16=1\ttf32=1",
        "revision=1\tmemory=1e300\tl2=1\tf32=1\tf64=1\tf16=1\tbf16=1\ttf32=1",
        "revision=1\tmemory=1\tmemory=2\tl2=1\tf32=1\tf64=1\tf16=1\tbf16=1\ttf32=1",
        "revision=1\tmemory=1\tl2=1\tf32=1\tf64=1\tf16=1\tbf16=1",
        "revision=2\tmemory=1\tl2=1\tf32=1\tf64=1\tf16=1\tbf16=1\ttf32=1",
        "memory=1\tl2=1\tf32=1\tf64=1\tf16=1\tbf16=1\ttf32=1",
        "",
    };
    char path[4200];
    sat_rates got, bad = some;
    keep(*state, &some);
    rates_path(path, *state);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        write_sealed(path, "sparse_autotune rates 1.2", device, lines[i]);
        if (loads(*state, &got)) fail_msg("taken: %s", lines[i]);
    }
    bad.l2 = 0;
    sat_cache *cache = open_cache(*state);
    assert_int_equal(sat_cache_keep_rates(cache, &bad), SAT_BAD_FORMAT);
    sat_cache_close(cache);
}

static void a_later_minor_version_is_read(void **state) {
    char path[4200];
    sat_rates got;
    keep(*state, &some);
    write_sealed(rates_path(path, *state), "sparse_autotune rates 1.7", device,
                 "revision=1\tfp4=9\tmemory=1e12\tl2=2e12\tf32=3\tf64=4\tf16=5\tbf16=6\ttf32=7\twhen=8\nmore=1");
    assert_true(loads(*state, &got));
    assert_true(got.memory == 1e12 && got.l2 == 2e12 && got.flop[SAT_F64] == 4 && got.tf32 == 7);
}

static void a_later_major_version_is_left_alone(void **state) {
    char path[4200];
    size_t before, after;
    sat_rates got;
    messages m;
    keep(*state, &some);
    write_sealed(rates_path(path, *state), "sparse_autotune rates 2.0", device, "something else");
    char *first = read_file(path, &before);
    sat_cache *cache = open_logged(*state, &m);
    assert_false(sat_cache_load_rates(cache, &got));
    assert_int_equal(sat_cache_keep_rates(cache, &some), SAT_UNSUPPORTED);
    assert_int_equal(m.count, 1);
    sat_cache_close(cache);
    char *second = read_file(path, &after);
    assert_true(before == after && !memcmp(first, second, before));
    free(first);
    free(second);
}

static void another_devices_file_is_none(void **state) {
    char path[4200];
    sat_rates got;
    keep(*state, &some);
    write_sealed(rates_path(path, *state), "sparse_autotune rates 1.2", "cuda Another",
                 "revision=1\tmemory=1\tl2=1\tf32=1\tf64=1\tf16=1\tbf16=1\ttf32=1");
    assert_false(loads(*state, &got));
}

static void lower_layers_serve(void **state) {
    char lower[4200], both[8500];
    sat_rates got, better = some;
    better.memory = 5e12;
    in(lower, *state, "shipped");
    keep(lower, &some);
    snprintf(both, sizeof both, "%s/own:%s", (char *)*state, lower);
    assert_true(loads(both, &got));
    same(&got, &some);
    keep(both, &better);
    assert_true(loads(both, &got));
    same(&got, &better);
    assert_true(loads(lower, &got));
    same(&got, &some);
}

static void a_folder_that_cannot_be_written_is_reported_once(void **state) {
    char place[4200];
    sat_rates got;
    messages m;
    write_file(in(place, *state, "file"), "x", 1);
    sat_cache *cache = open_logged(place, &m);
    assert_int_equal(sat_cache_keep_rates(cache, &some), SAT_IO);
    assert_int_equal(sat_cache_keep_rates(cache, &some), SAT_IO);
    assert_int_equal(m.count, 1);
    assert_false(sat_cache_load_rates(cache, &got));
    sat_cache_close(cache);
}

/* As root every folder is writable, so a child becomes someone else. */
static void a_read_only_folder_is_read(void **state) {
    char folder[4200], path[4200];
    keep(*state, &some);
    device_folder(*state, folder);
    assert_int_equal(chmod(folder, 0555), 0);
    assert_int_equal(chmod(rates_path(path, *state), 0444), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (getuid() == 0 && (setgid(65534) || setuid(65534))) _exit(1);
        sat_cache *cache;
        sat_rates got;
        if (sat_cache_open(*state, device, NULL, &cache) != SAT_OK) _exit(2);
        if (!sat_cache_load_rates(cache, &got) || got.memory != some.memory) _exit(3);
        if (sat_cache_keep_rates(cache, &some) != SAT_IO) _exit(4);
        sat_cache_close(cache);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(chmod(folder, 0755), 0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void clearing_a_device_forgets_its_rates_too(void **state) {
    sat_rates got;
    int64_t entries;
    sat_record r = raced("r1", 1, "v", 1);
    sat_cache *cache = open_cache(*state);
    assert_int_equal(sat_cache_add(cache, key, &r, 1), SAT_OK);
    assert_int_equal(sat_cache_keep_rates(cache, &some), SAT_OK);
    assert_int_equal(sat_cache_remove(cache, key, &entries), SAT_OK);
    assert_true(sat_cache_load_rates(cache, &got));
    assert_int_equal(sat_cache_add(cache, key, &r, 1), SAT_OK);
    assert_int_equal(sat_cache_remove(cache, NULL, &entries), SAT_OK);
    assert_int_equal(entries, 1);
    assert_false(sat_cache_load_rates(cache, &got));
    sat_cache_close(cache);
}

/* ---- contexts ---- */

static sat_backend measurable;
static int measured; /* how often */
static sat_status outcome;

static sat_status measure(const sat_device *d, void *scratch, size_t bytes, sat_rates *rates) {
    assert_non_null(scratch);
    assert_true(bytes >= 8 * (size_t)d->l2_bytes);
    memset(scratch, 1, bytes);
    measured++;
    *rates = some;
    rates->memory += measured;
    return outcome == SAT_OK ? SAT_OK : sat_fail(outcome, "planted");
}

static sat_context *open_measurable(const char *dir, sat_effort effort, messages *m) {
    sat_context *ctx;
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = dir, .effort = effort,
                             .budget_seconds = 0.01};
    if (m) memset(m, 0, sizeof *m), o.log = take_message, o.log_user = m;
    assert_int_equal(sat_context_create(&o, &ctx), SAT_OK);
    assert_false(sat_context_device(ctx)->measured);
    measurable = *ctx->backend;
    measurable.measure = measure;
    ctx->backend = &measurable;
    sat_rates_open(ctx);
    if (m) m->count = 0;
    return ctx;
}

static void race_something(sat_context *ctx, bool keep_it) {
    const int32_t ptr[] = {0, 1, 2}, col[] = {0, 1};
    sat_bsr s = {SAT_SIZED(sat_bsr), .rows = 8, .cols = 8, .block_rows = 4, .block_cols = 4, .stored_blocks = 2};
    s.index_type = SAT_I32, s.row_ptr = ptr, s.col_idx = col;
    sat_pattern *pattern;
    sat_race *race;
    sat_problem p = matmul_problem(SAT_F32, 16);
    sat_race_options o = {SAT_SIZED(sat_race_options), .fresh = true, .discard = !keep_it};
    assert_int_equal(sat_pattern_create(ctx, &s, &pattern), SAT_OK);
    assert_int_equal(sat_race_run(ctx, pattern, &p, &o, &race), SAT_OK);
    sat_race_free(race);
    sat_pattern_free(pattern);
}

static void the_first_race_measures_and_later_contexts_know(void **state) {
    measured = 0, outcome = SAT_OK;
    sat_context *ctx = open_measurable(*state, SAT_EFFORT_QUICK, NULL);
    const sat_device *before = sat_context_device(ctx);
    double nominal = before->memory_rate;
    race_something(ctx, true);
    race_something(ctx, true);
    assert_int_equal(measured, 1);
    assert_true(sat_context_device(ctx)->measured);
    assert_true(sat_context_device(ctx)->memory_rate == some.memory + 1);
    assert_true(sat_context_device(ctx)->flop_rate[SAT_F16] == some.flop[SAT_F16]);
    assert_true(sat_context_device(ctx)->tf32_rate == some.tf32 && sat_context_device(ctx)->l2_rate == some.l2);
    assert_true(before->memory_rate == nominal); /* who holds the old one still reads it */
    sat_context_free(ctx);
    ctx = open_measurable(*state, SAT_EFFORT_QUICK, NULL);
    assert_true(sat_context_device(ctx)->measured);
    race_something(ctx, true);
    assert_int_equal(measured, 1);
    sat_context_free(ctx);
}

static void the_plan_that_raced_estimates_like_later_ones(void **state) {
    measured = 0, outcome = SAT_OK;
    sat_context *ctx = open_measurable(*state, SAT_EFFORT_QUICK, NULL);
    const int32_t ptr[] = {0, 1, 2}, col[] = {0, 1};
    sat_bsr s = {SAT_SIZED(sat_bsr), .rows = 128, .cols = 128, .block_rows = 64, .block_cols = 64, .stored_blocks = 2};
    s.index_type = SAT_I32, s.row_ptr = ptr, s.col_idx = col;
    sat_pattern *pattern;
    sat_problem p = matmul_problem(SAT_F32, 128);
    double seconds[2];
    assert_int_equal(sat_pattern_create(ctx, &s, &pattern), SAT_OK);
    for (int i = 0; i < 2; i++) {
        sat_plan *plan;
        sat_plan_info info = {SAT_SIZED(sat_plan_info)};
        assert_int_equal(sat_plan_create(ctx, pattern, &p, &plan), SAT_OK);
        assert_int_equal(sat_plan_get_info(plan, &info), SAT_OK);
        assert_true(i == 0 ? info.tuned : info.cached);
        seconds[i] = info.estimate_seconds;
        sat_plan_free(plan);
    }
    assert_int_equal(measured, 1);
    assert_true(seconds[0] == seconds[1]);
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

static void what_another_process_measured_meanwhile_serves(void **state) {
    measured = 0, outcome = SAT_OK;
    sat_context *first = open_measurable(*state, SAT_EFFORT_QUICK, NULL);
    sat_context *second = open_measurable(*state, SAT_EFFORT_QUICK, NULL);
    race_something(first, true);
    race_something(second, true);
    assert_int_equal(measured, 1);
    assert_true(sat_context_device(second)->memory_rate == some.memory + 1);
    sat_context_free(first);
    sat_context_free(second);
}

static void no_other_effort_measures(void **state) {
    measured = 0, outcome = SAT_OK;
    static const sat_effort efforts[] = {SAT_EFFORT_OFF, SAT_EFFORT_CACHED};
    for (int i = 0; i < 2; i++) {
        sat_context *ctx = open_measurable(*state, efforts[i], NULL);
        race_something(ctx, true);
        assert_int_equal(measured, 0);
        assert_false(sat_context_device(ctx)->measured);
        sat_context_free(ctx);
    }
}

static void a_race_that_is_not_kept_measures_nothing(void **state) {
    measured = 0, outcome = SAT_OK;
    sat_context *ctx = open_measurable(*state, SAT_EFFORT_QUICK, NULL);
    race_something(ctx, false);
    assert_int_equal(measured, 0);
    sat_context_free(ctx);
}

static void a_measurement_that_fails_is_reported_and_not_repeated(void **state) {
    messages m;
    measured = 0, outcome = SAT_DEVICE_ERROR;
    sat_context *ctx = open_measurable(*state, SAT_EFFORT_QUICK, &m);
    race_something(ctx, true);
    assert_int_equal(measured, 1);
    race_something(ctx, true);
    assert_int_equal(measured, 1);
    assert_false(sat_context_device(ctx)->measured);
    assert_int_equal(sat_context_measure_rates(ctx), SAT_DEVICE_ERROR);
    sat_context_free(ctx);
}

static void asking_measures_again(void **state) {
    measured = 0, outcome = SAT_OK;
    sat_context *ctx = open_measurable(*state, SAT_EFFORT_QUICK, NULL);
    assert_int_equal(sat_context_measure_rates(ctx), SAT_OK);
    const sat_device *first = sat_context_device(ctx);
    assert_int_equal(sat_context_measure_rates(ctx), SAT_OK);
    assert_int_equal(measured, 2);
    assert_true(first->memory_rate == some.memory + 1);
    assert_true(sat_context_device(ctx)->memory_rate == some.memory + 2);
    sat_context_free(ctx);
    assert_int_equal(sat_context_measure_rates(NULL), SAT_NULL_POINTER);
}

/* A stopped process that holds the tuning lock is waited for a second. */
static void rates_are_not_measured_while_another_process_tunes(void **state) {
    int status;
    measured = 0, outcome = SAT_OK;
    sat_context *ctx = open_measurable(*state, SAT_EFFORT_QUICK, NULL);
    fflush(NULL);
    pid_t tuner = fork();
    assert_true(tuner >= 0);
    if (tuner == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (!sat_cache_tuning_lock(ctx->cache, 1)) _exit(2);
        raise(SIGSTOP);
        _exit(3);
    }
    assert_int_equal(waitpid(tuner, &status, WUNTRACED), tuner);
    assert_true(WIFSTOPPED(status));
    sat_status busy = sat_context_measure_rates(ctx);
    assert_int_equal(kill(tuner, SIGKILL), 0);
    assert_int_equal(waitpid(tuner, &status, 0), tuner);
    assert_int_equal(busy, SAT_BUSY);
    assert_non_null(strstr(sat_last_error(), "tuning this device"));
    assert_int_equal(measured, 0);
    assert_int_equal(sat_context_measure_rates(ctx), SAT_OK);
    assert_int_equal(measured, 1);
    sat_context_free(ctx);
}

static void a_cpu_stays_nominal(void **state) {
    sat_context *ctx;
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = *state};
    assert_int_equal(sat_context_create(&o, &ctx), SAT_OK);
    assert_int_equal(sat_context_measure_rates(ctx), SAT_UNSUPPORTED);
    assert_false(sat_context_device(ctx)->measured);
    assert_true(sat_context_device(ctx)->tf32_rate == sat_context_device(ctx)->flop_rate[SAT_F32]);
    sat_context_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST_IN_FOLDER(what_was_kept_is_read_back),
        TEST_IN_FOLDER(the_file_is_text_that_a_person_reads),
        TEST_IN_FOLDER(a_damaged_file_is_none_and_is_replaced),
        TEST_IN_FOLDER(numbers_that_cannot_be_are_refused),
        TEST_IN_FOLDER(a_later_minor_version_is_read),
        TEST_IN_FOLDER(a_later_major_version_is_left_alone),
        TEST_IN_FOLDER(another_devices_file_is_none),
        TEST_IN_FOLDER(lower_layers_serve),
        TEST_IN_FOLDER(a_folder_that_cannot_be_written_is_reported_once),
        TEST_IN_FOLDER(a_read_only_folder_is_read),
        TEST_IN_FOLDER(clearing_a_device_forgets_its_rates_too),
        TEST_IN_FOLDER(the_first_race_measures_and_later_contexts_know),
        TEST_IN_FOLDER(the_plan_that_raced_estimates_like_later_ones),
        TEST_IN_FOLDER(what_another_process_measured_meanwhile_serves),
        TEST_IN_FOLDER(no_other_effort_measures),
        TEST_IN_FOLDER(a_race_that_is_not_kept_measures_nothing),
        TEST_IN_FOLDER(a_measurement_that_fails_is_reported_and_not_repeated),
        TEST_IN_FOLDER(asking_measures_again),
        TEST_IN_FOLDER(rates_are_not_measured_while_another_process_tunes),
        TEST_IN_FOLDER(a_cpu_stays_nominal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
