/* Many processes on one cache, and processes killed in the middle of writing: every file stays valid, and what an
 * add() reported as written is there. */
#define _XOPEN_SOURCE 700
#define _DEFAULT_SOURCE
#include "cache_helpers.h"

#include <signal.h>
#include <sys/prctl.h>

#include "cache/cache_private.h"

enum { PROCESSES = 32, KEYS = 200, WRITERS = 6, KILLS = 200 };

static void name_key(char out[64], int i) { snprintf(out, 64, "matmul f32 m=%d n=%d", i * 16, i % 7); }

/* What process p adds to key i: a race of three, and a check. */
static void made_by(int p, int i, sat_record r[4]) {
    char race[64], exact[64];
    snprintf(race, sizeof race, "race-%d-%d", p, i);
    snprintf(exact, sizeof exact, "process %d key %d", p, i);
    for (int v = 0; v < 3; v++) {
        char variant[64];
        snprintf(variant, sizeof variant, "variant_%d", v);
        r[v] = raced(race, 1000 + p, variant, 1e-4 * (p + v + 1));
    }
    r[3] = verified(1000 + p, "variant_0", exact);
}

static bool writes(int p, int i) { return (p + i) % PROCESSES < WRITERS; }

static int adding_process(const char *dir, int p) {
    sat_cache *cache;
    uint64_t seed = (uint64_t)p + 99;
    int order[KEYS];
    if (sat_cache_open(dir, device, NULL, &cache) != SAT_OK) return 1;
    cache->merge_seconds = 600; // a slow machine is no failure
    for (int i = 0; i < KEYS; i++) order[i] = i;
    for (int i = KEYS - 1; i > 0; i--) {
        int j = (int)(next_random(&seed) % (uint64_t)(i + 1)), t = order[i];
        order[i] = order[j], order[j] = t;
    }
    for (int n = 0; n < KEYS; n++) {
        char k[64];
        sat_record r[4];
        sat_entry entry;
        if (!writes(p, order[n])) continue;
        name_key(k, order[n]);
        made_by(p, order[n], r);
        if (sat_cache_add(cache, k, r, 4) != SAT_OK) return 2;
        if (sat_cache_load(cache, k, &entry) != SAT_OK) return 3;
        for (int i = 0; i < 4; i++)
            if (!has(&entry, &r[i])) return 4;
        sat_entry_free(&entry);
    }
    sat_cache_close(cache);
    return 0;
}

static void wait_for_all(pid_t *children, int count) {
    for (int i = 0; i < count; i++) {
        int status;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

static void thirty_two_processes_lose_nothing(void **state) {
    pid_t children[PROCESSES];
    char folder[4200];
    fflush(NULL);
    for (int p = 0; p < PROCESSES; p++) {
        children[p] = fork();
        assert_true(children[p] >= 0);
        if (children[p] == 0) _exit(adding_process(*state, p));
    }
    wait_for_all(children, PROCESSES);
    device_folder(*state, folder);
    assert_int_equal(all_valid(folder), KEYS);
    assert_int_equal(count_files(folder, ".bad"), 0);
    sat_cache *cache = open_cache(*state);
    for (int i = 0; i < KEYS; i++) {
        char k[64];
        sat_entry entry;
        name_key(k, i);
        assert_int_equal(sat_cache_load(cache, k, &entry), SAT_OK);
        assert_int_equal(entry.count, 4 * WRITERS);
        for (int p = 0; p < PROCESSES; p++) {
            sat_record r[4];
            if (!writes(p, i)) continue;
            made_by(p, i, r);
            for (int j = 0; j < 4; j++) assert_true(has(&entry, &r[j]));
        }
        sat_entry_free(&entry);
    }
    sat_cache_close(cache);
}

/* Where nothing can be locked a rename may win over another: files stay valid, and hardly anything is lost. */
static int unlocked_process(const char *dir, int p) {
    sat_cache *cache;
    if (sat_cache_open(dir, device, NULL, &cache) != SAT_OK) return 1;
    for (int i = 0; i < 20; i++) {
        sat_record r[4];
        made_by(p, i, r);
        if (sat_cache_add(cache, "one key", &r[3], 1) != SAT_OK) return 2;
    }
    sat_cache_close(cache);
    return 0;
}

static void without_locks_files_stay_valid(void **state) {
    pid_t children[8];
    char folder[4200], lock[4200];
    sat_cache *cache = open_cache(*state);
    sat_record r = raced("r", 1, "v", 1);
    assert_int_equal(sat_cache_add(cache, "makes the folder", &r, 1), SAT_OK);
    device_folder(*state, folder);
    assert_int_equal(unlink(in(lock, folder, "lock")), 0);
    assert_int_equal(mkdir(lock, 0755), 0);
    fflush(NULL);
    for (int p = 0; p < 8; p++) {
        children[p] = fork();
        assert_true(children[p] >= 0);
        if (children[p] == 0) _exit(unlocked_process(*state, p));
    }
    wait_for_all(children, 8);
    assert_int_equal(all_valid(folder), 2);
    size_t kept = count_of(cache, "one key");
    print_message("without locks: %zu of 160 records kept\n", kept);
    assert_true(kept > 0 && kept <= 160);
    sat_cache_close(cache);
}

/* ---- killed while writing ---- */

enum { KILL_KEYS = 20, ADDS = 20 };

static sat_record added(int round, int n) {
    char exact[64];
    snprintf(exact, sizeof exact, "round %d add %d", round, n);
    return verified(5000 + round, "v", exact);
}

static void add_until_killed(const char *dir, int round, int report) {
    sat_cache *cache;
    if (sat_cache_open(dir, device, NULL, &cache) != SAT_OK) _exit(1);
    for (int n = 0; n < ADDS; n++) {
        char k[64];
        unsigned char done = (unsigned char)n;
        sat_record r = added(round, n);
        name_key(k, n % KILL_KEYS);
        if (sat_cache_add(cache, k, &r, 1) != SAT_OK) _exit(2);
        if (write(report, &done, 1) != 1) _exit(3);
    }
    pause();
    _exit(0);
}

static void a_killed_writer_harms_nothing(void **state) {
    char folder[4200] = "", (*finished)[ADDS] = calloc(KILLS, sizeof *finished);
    uint64_t seed = 4711;
    int total = 0, all = 0;
    assert_non_null(finished);
    fflush(NULL);
    for (int round = 0; round < KILLS; round++) {
        int ends[2], status;
        unsigned char n;
        assert_int_equal(pipe(ends), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            close(ends[0]);
            add_until_killed(*state, round, ends[1]);
        }
        close(ends[1]);
        long wait = (long)(next_random(&seed) % 40000000);
        nanosleep(&(struct timespec){.tv_nsec = wait}, NULL);
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        int got = 0;
        while (read(ends[0], &n, 1) == 1) finished[round][n] = 1, got++;
        close(ends[0]);
        total += got, all += got == ADDS;
    }
    print_message("killed %d writers, %d of them when done; %d adds had finished\n", KILLS, all, total);
    assert_true(total > 0);
    device_folder(*state, folder);
    all_valid(folder);
    assert_int_equal(count_files(folder, ".bad"), 0);
    messages m;
    sat_cache *cache = open_logged(*state, &m);
    for (int round = 0; round < KILLS; round++)
        for (int n = 0; n < ADDS; n++) {
            char k[64];
            sat_record r = added(round, n);
            name_key(k, n % KILL_KEYS);
            if (finished[round][n]) assert_has(cache, k, &r);
        }
    assert_int_equal(m.count, 0);
    assert_int_equal(sat_cache_add(cache, "after it all", &(sat_record){0}, 0), SAT_OK);
    sat_cache_close(cache);
    free(finished);
}

/* ---- the tuning lock ---- */

static void a_process_waits_for_another_ones_tuning_and_gets_it_when_that_one_dies(void **state) {
    int ends[2], status;
    char ready;
    sat_cache *cache = open_cache(*state);
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (!sat_cache_tuning_lock(cache, 1)) _exit(1);
        if (write(ends[1], "x", 1) != 1) _exit(2);
        pause();
        _exit(0);
    }
    assert_int_equal(read(ends[0], &ready, 1), 1);
    double start = seconds_now();
    assert_false(sat_cache_tuning_lock(cache, 0.1));
    assert_true(seconds_now() - start < 5);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(sat_cache_tuning_lock(cache, 1));
    sat_cache_tuning_unlock(cache);
    sat_cache_close(cache);
    close(ends[0]);
    close(ends[1]);
}

static void a_folder_that_stays_locked_delays_but_loses_nothing(void **state) {
    int ends[2], status;
    char ready, folder[4200], path[4200];
    sat_record one = raced("one", 1, "v", 1), two = raced("two", 2, "v", 1);
    sat_cache *cache = open_cache(*state);
    assert_int_equal(sat_cache_add(cache, "key", &one, 1), SAT_OK);
    device_folder(*state, folder);
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        sat_file_lock lock;
        if (sat_file_lock_take(&lock, in(path, folder, "lock"), false, 1) != SAT_LOCK_HELD) _exit(1);
        if (write(ends[1], "x", 1) != 1) _exit(2);
        pause();
        _exit(0);
    }
    assert_int_equal(read(ends[0], &ready, 1), 1);
    cache->merge_seconds = 0.1;
    assert_int_equal(sat_cache_add(cache, "key", &two, 1), SAT_IO);
    assert_int_equal(count_of(cache, "key"), 2);
    assert_int_equal(sat_cache_remove(cache, "another key", NULL), SAT_BUSY);
    assert_non_null(strstr(sat_last_error(), "locked by another process"));
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(sat_cache_add(cache, "key", &one, 1), SAT_OK); /* and what waited in memory with it */
    sat_cache_close(cache);
    cache = open_cache(*state);
    assert_int_equal(count_of(cache, "key"), 2);
    sat_cache_close(cache);
    close(ends[0]);
    close(ends[1]);
}

/* ---- a holder that is stuck, and one that is not ---- */

/* A process that takes the lock and then stops. */
static pid_t stopped_holder(const char *path) {
    int status;
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        sat_file_lock lock;
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* nobody stays behind if the alarm ends this test */
        if (sat_file_lock_take(&lock, path, false, 1) != SAT_LOCK_HELD) _exit(1);
        raise(SIGSTOP);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, WUNTRACED), child);
    assert_true(WIFSTOPPED(status));
    return child;
}

static void end(pid_t child) {
    int status;
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
}

/* Where each key waited a second, or each context thirty, this would take more than five minutes. */
static void a_stuck_writer_is_waited_for_once(void **state) {
    char folder[4200], path[4200], k[64];
    sat_record r = raced("one", 1, "v", 1);
    sat_cache *cache = open_cache(*state);
    assert_int_equal(sat_cache_add(cache, "key", &r, 1), SAT_OK);
    device_folder(*state, folder);
    pid_t child = stopped_holder(in(path, folder, "lock"));
    alarm(120);
    for (int context = 0; context < 4; context++) {
        sat_cache *other = open_cache(*state);
        for (int i = 0; i < 80; i++) {
            name_key(k, i);
            assert_int_equal(sat_cache_add(other, k, &r, 1), SAT_IO);
            assert_int_equal(count_of(other, k), 1);
        }
        assert_int_equal(sat_cache_note_untuned(other, k, "exact"), SAT_IO);
        sat_cache_close(other);
    }
    alarm(0);
    end(child);
    assert_int_equal(sat_cache_add(cache, "another key", &r, 1), SAT_OK);
    sat_cache_close(cache);
}

static void a_stuck_tuner_is_waited_for_once(void **state) {
    char folder[4200], path[4200];
    sat_record r = raced("one", 1, "v", 1);
    sat_cache *cache = open_cache(*state);
    assert_int_equal(sat_cache_add(cache, "key", &r, 1), SAT_OK);
    device_folder(*state, folder);
    pid_t child = stopped_holder(in(path, folder, "tuning.lock"));
    alarm(120);
    for (int i = 0; i < 10; i++) {
        sat_cache *other = open_cache(*state);
        assert_false(sat_cache_tuning_lock(other, 34));
        assert_false(sat_cache_tuning_lock(cache, 34));
        sat_cache_close(other);
    }
    alarm(0);
    end(child);
    assert_true(sat_cache_tuning_lock(cache, 34));
    sat_cache_tuning_unlock(cache);
    sat_cache_close(cache);
}

/* Longer than a stuck one would be given. */
static void a_tuner_that_works_is_waited_for(void **state) {
    int ends[2], status;
    char ready;
    sat_cache *cache = open_cache(*state);
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (!sat_cache_tuning_lock(cache, 1)) _exit(1);
        if (write(ends[1], "x", 1) != 1) _exit(2);
        double start = seconds_now();
        while (seconds_now() - start < 3) continue;
        sat_cache_tuning_unlock(cache);
        _exit(0);
    }
    assert_int_equal(read(ends[0], &ready, 1), 1);
    assert_true(sat_cache_tuning_lock(cache, 120));
    sat_cache_tuning_unlock(cache);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    sat_cache_close(cache);
    close(ends[0]);
    close(ends[1]);
}

static void one_process_tunes_at_a_time(void **state) {
    pid_t children[8];
    char path[4200];
    in(path, *state, "inside");
    fflush(NULL);
    for (int p = 0; p < 8; p++) {
        children[p] = fork();
        assert_true(children[p] >= 0);
        if (children[p]) continue;
        sat_cache *cache;
        if (sat_cache_open(*state, device, NULL, &cache) != SAT_OK) _exit(1);
        for (int i = 0; i < 5; i++) {
            if (!sat_cache_tuning_lock(cache, 60)) _exit(2);
            int fd = open(path, O_CREAT | O_EXCL | O_WRONLY, 0644); /* fails where another one is inside */
            if (fd < 0) _exit(3);
            close(fd);
            nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
            if (unlink(path)) _exit(4);
            sat_cache_tuning_unlock(cache);
        }
        _exit(0);
    }
    wait_for_all(children, 8);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST_IN_FOLDER(thirty_two_processes_lose_nothing),
        TEST_IN_FOLDER(without_locks_files_stay_valid),
        TEST_IN_FOLDER(a_killed_writer_harms_nothing),
        TEST_IN_FOLDER(a_process_waits_for_another_ones_tuning_and_gets_it_when_that_one_dies),
        TEST_IN_FOLDER(a_folder_that_stays_locked_delays_but_loses_nothing),
        TEST_IN_FOLDER(a_stuck_writer_is_waited_for_once),
        TEST_IN_FOLDER(a_stuck_tuner_is_waited_for_once),
        TEST_IN_FOLDER(a_tuner_that_works_is_waited_for),
        TEST_IN_FOLDER(one_process_tunes_at_a_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
