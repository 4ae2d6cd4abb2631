/* Many processes tuning into one cache, and processes killed while they tune: every file stays valid and nothing that
 * was finished is lost. */
#define _GNU_SOURCE
#include "support.h"

#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/context.h"
#include "problems.h"

static char folder[64];

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/sat_test_tuning_XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

/* Problem i, small and with a key of its own: block shapes are never bucketed. `again` races even what is known. */
static sat_status make_plan(sat_context *ctx, int i, bool again, char *key, size_t size, bool *cached) {
    int64_t br = 1 + i % 20, bc = 1 + i / 20;
    int32_t row_ptr[] = {0, 1, 2}, col_idx[] = {0, 1};
    sat_bsr s = {SAT_SIZED(sat_bsr), .rows = 2 * br,        .cols = 2 * bc,     .block_rows = br,  .block_cols = bc,
                 .stored_blocks = 2, .index_type = SAT_I32, .row_ptr = row_ptr, .col_idx = col_idx};
    sat_pattern *pattern = NULL;
    sat_plan *plan = NULL;
    sat_problem p = matmul_problem(SAT_F32, 4);
    sat_plan_info info = {SAT_SIZED(sat_plan_info)};
    sat_status status = sat_pattern_create(ctx, &s, &pattern);
    if (status == SAT_OK) status = sat_problem_key(ctx, pattern, &p, key, size);
    sat_race_options fresh = {SAT_SIZED(sat_race_options), .fresh = true};
    sat_race *race = NULL;
    if (status == SAT_OK && again) status = sat_race_run(ctx, pattern, &p, &fresh, &race);
    if (status == SAT_OK) status = sat_plan_create(ctx, pattern, &p, &plan);
    if (status == SAT_OK) status = sat_plan_get_info(plan, &info);
    *cached = info.cached;
    sat_race_free(race);
    sat_plan_free(plan);
    sat_pattern_free(pattern);
    return status;
}

static sat_context *open_small(const char *dir) {
    sat_context *ctx = NULL;
    /* One thread: OpenMP's threads and fork do not mix, and the work is tiny. */
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cpu",        .cache_dir = dir, .threads = 1,
                             .effort = SAT_EFFORT_QUICK,     .budget_seconds = 0.001};
    return sat_context_create(&o, &ctx) == SAT_OK ? ctx : NULL;
}

/* Every entry file under the folder parses, its checksum included. Returns how many there are. */
static int valid_files(const char *path) {
    DIR *dir = opendir(path);
    int count = 0;
    if (!dir) return 0;
    for (struct dirent *e; (e = readdir(dir));) {
        char name[512];
        struct stat st;
        if (e->d_name[0] == '.') continue;
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        if (stat(name, &st) == 0 && S_ISDIR(st.st_mode)) count += valid_files(name);
        if (strstr(e->d_name, ".bad")) fail_msg("%s was moved aside", name);
        size_t length = strlen(e->d_name);
        if (!S_ISREG(st.st_mode) || length < 20 || strcmp(e->d_name + length - 4, ".txt") != 0) continue;
        FILE *f = fopen(name, "r");
        assert_non_null(f);
        char *text = malloc((size_t)st.st_size + 1), key[512];
        size_t got = fread(text, 1, (size_t)st.st_size, f);
        fclose(f);
        sat_entry entry;
        sat_status status = sat_entry_parse(text, got, key, sizeof key, &entry);
        if (status != SAT_OK) fail_msg("%s: %s", name, sat_last_error());
        assert_true(entry.count > 0);
        sat_entry_free(&entry);
        free(text);
        count++;
    }
    closedir(dir);
    return count;
}

enum { KEYS = 200, PROCESSES = 32, EACH = 25, KILLS = 200 };

/* A child says on its pipe what it has finished: one byte after the plan is made. */
static void child(const char *dir, int first, int count, bool again, int pipe_end) {
    sat_context *ctx = open_small(dir);
    if (!ctx) _exit(2);
    for (int i = 0; i < count; i++) {
        char key[512];
        bool cached;
        unsigned char which = (unsigned char)((first + i) % KEYS);
        if (make_plan(ctx, which, again, key, sizeof key, &cached) != SAT_OK) _exit(3);
        if (write(pipe_end, &which, 1) != 1) _exit(4);
    }
    sat_context_free(ctx);
    _exit(0);
}

/* How many that are finished are not remembered. */
static int count_lost(const char *dir, const bool *finished) {
    sat_context *ctx = open_small(dir);
    int lost = 0;
    if (!ctx) return -1;
    for (int i = 0; i < KEYS; i++) {
        char key[512];
        bool cached = false;
        if (!finished[i]) continue;
        if (make_plan(ctx, i, false, key, sizeof key, &cached) == SAT_OK && cached) continue;
        fprintf(stderr, "key %d was finished and is lost: %s\n", i, key);
        lost++;
    }
    sat_context_free(ctx);
    return lost;
}

/* In a child as those that tuned were: a forked process may have fewer libraries than its parent, and a parent would
 * race what is new to it. */
static void assert_all_present(const char *dir, const bool *finished) {
    int status;
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) _exit(count_lost(dir, finished) != 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void thirty_two_processes_tune_two_hundred_keys_into_one_cache(void **state) {
    (void)state;
    char dir[128];
    snprintf(dir, sizeof dir, "%s/many", folder);
    int ends[2];
    pid_t children[PROCESSES];
    bool finished[KEYS] = {0};
    assert_int_equal(pipe(ends), 0);
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0) child(dir, i * KEYS / PROCESSES, EACH, false, ends[1]); /* neighbours overlap */
    }
    close(ends[1]);
    unsigned char which;
    while (read(ends[0], &which, 1) == 1) finished[which] = true;
    close(ends[0]);
    for (int i = 0; i < PROCESSES; i++) {
        int status;
        waitpid(children[i], &status, 0);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    int done = 0;
    for (int i = 0; i < KEYS; i++) done += finished[i];
    assert_int_equal(done, KEYS);
    assert_int_equal(valid_files(dir), KEYS);
    assert_all_present(dir, finished);
}

static void a_tuning_process_killed_at_any_moment_harms_nothing(void **state) {
    (void)state;
    char dir[128];
    snprintf(dir, sizeof dir, "%s/killed", folder);
    uint64_t random = (uint64_t)time(NULL);
    bool finished[KEYS] = {0};
    int interrupted = 0;
    for (int i = 0; i < KILLS; i++) {
        int ends[2];
        assert_int_equal(pipe(ends), 0);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) child(dir, (int)random_below(&random, KEYS), 100000, true, ends[1]);
        close(ends[1]);
        usleep((useconds_t)random_below(&random, 40000));
        kill(pid, SIGKILL);
        unsigned char which;
        while (read(ends[0], &which, 1) == 1) finished[which] = true;
        close(ends[0]);
        int status;
        waitpid(pid, &status, 0);
        interrupted += WIFSIGNALED(status);
    }
    assert_int_equal(interrupted, KILLS);
    valid_files(dir);
    assert_all_present(dir, finished);
}

/* A tuner that was stopped is waited for a second, not as long as a race may take. */
static void a_race_is_refused_while_another_process_tunes(void **state) {
    (void)state;
    char dir[128], key[512];
    bool cached;
    int status;
    snprintf(dir, sizeof dir, "%s/busy", folder);
    pid_t tuner = fork();
    assert_true(tuner >= 0);
    if (tuner == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        sat_context *ctx = open_small(dir);
        if (!ctx || !sat_cache_tuning_lock(ctx->cache, 1)) _exit(2);
        raise(SIGSTOP);
        _exit(3);
    }
    assert_int_equal(waitpid(tuner, &status, WUNTRACED), tuner);
    assert_true(WIFSTOPPED(status));
    sat_context *ctx = open_small(dir);
    assert_non_null(ctx);
    sat_status raced = make_plan(ctx, 0, true, key, sizeof key, &cached);
    assert_int_equal(kill(tuner, SIGKILL), 0);
    assert_int_equal(waitpid(tuner, &status, 0), tuner);
    assert_int_equal(raced, SAT_BUSY);
    assert_non_null(strstr(sat_last_error(), "tuning this device"));
    assert_int_equal(make_plan(ctx, 0, true, key, sizeof key, &cached), SAT_OK);
    sat_context_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thirty_two_processes_tune_two_hundred_keys_into_one_cache),
        cmocka_unit_test(a_tuning_process_killed_at_any_moment_harms_nothing),
        cmocka_unit_test(a_race_is_refused_while_another_process_tunes),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
