/* How often a plan goes to the disk: once to look for an entry that is not there, once to add it, and never again for
 * an entry that this process has read. The linker sends the library's calls through here. */
#define _GNU_SOURCE
#include "support.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "folder.h"
#include "problems.h"

/* ---- counting ---- */

static struct {
    int looked; /* at the file of an entry, to read it */
    int opened; /* such a file */
    int memory; /* /proc/meminfo */
} seen;

/* sixteen hexadecimal digits and ".txt" */
static bool is_entry(const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    return strspn(name, "0123456789abcdef") == 16 && strcmp(name + 16, ".txt") == 0;
}

int __real_lstat(const char *path, struct stat *to);
int __wrap_lstat(const char *path, struct stat *to);
int __wrap_lstat(const char *path, struct stat *to) {
    seen.looked += is_entry(path);
    return __real_lstat(path, to);
}

int __real_open(const char *path, int flags, mode_t mode);
int __wrap_open(const char *path, int flags, mode_t mode);
int __wrap_open(const char *path, int flags, mode_t mode) {
    seen.opened += is_entry(path);
    return __real_open(path, flags, mode);
}

FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode) {
    seen.memory += strcmp(path, "/proc/meminfo") == 0;
    return __real_fopen(path, mode);
}

/* ---- plans ---- */

static sat_context *open_on(const char *dir) {
    sat_context *ctx = NULL;
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = dir, .threads = 1};
    o.effort = SAT_EFFORT_QUICK, o.budget_seconds = 0.01;
    assert_ok(sat_context_create(&o, &ctx));
    return ctx;
}

static sat_plan_info plan(sat_context *ctx, const sat_pattern *pattern) {
    sat_problem p = matmul_problem(SAT_F32, 16);
    sat_plan_info info = {SAT_SIZED(sat_plan_info)};
    sat_plan *made = NULL;
    memset(&seen, 0, sizeof seen);
    assert_ok(sat_plan_create(ctx, pattern, &p, &made));
    assert_ok(sat_plan_get_info(made, &info));
    sat_plan_free(made);
    return info;
}

static void a_miss_looks_for_the_entry_once_and_once_more_to_add_it(void **state) {
    uint64_t r = 5;
    sat_context *ctx = open_on(*state);
    sat_pattern *pattern = random_pattern(ctx, &r, 64, 64, 4, 4, 0.3, false);
    (void)plan(ctx, pattern); /* the device has a folder from then on */
    sat_pattern_free(pattern);
    pattern = random_pattern(ctx, &r, 64, 64, 8, 8, 0.3, false);
    assert_true(plan(ctx, pattern).tuned);
    assert_int_equal(seen.looked, 2);
    assert_int_equal(seen.opened, 0); /* there is none yet */
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

static void a_hit_opens_the_entry_once_a_process_and_never_asks_for_free_memory(void **state) {
    uint64_t r = 5;
    sat_context *ctx = open_on(*state);
    sat_pattern *pattern = random_pattern(ctx, &r, 64, 64, 8, 8, 0.3, false);
    (void)plan(ctx, pattern);
    for (int other = 0; other < 2; other++) {
        for (int i = 0; i < 3; i++) {
            assert_true(plan(ctx, pattern).cached);
            assert_int_equal(seen.looked, i == 0);
            assert_int_equal(seen.opened, i == 0);
            assert_int_equal(seen.memory, 0);
        }
        sat_pattern_free(pattern);
        sat_context_free(ctx);
        ctx = open_on(*state); /* as another process would */
        pattern = random_pattern(ctx, &(uint64_t){5}, 64, 64, 8, 8, 0.3, false);
    }
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST_IN_FOLDER(a_miss_looks_for_the_entry_once_and_once_more_to_add_it),
        TEST_IN_FOLDER(a_hit_opens_the_entry_once_a_process_and_never_asks_for_free_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
