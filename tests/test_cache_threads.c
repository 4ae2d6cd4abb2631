/* One cache, or several on one folder, used by many threads; and what a forked child inherits. */
#define _XOPEN_SOURCE 700
#define _DEFAULT_SOURCE
#include "cache_helpers.h"

#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 8, KEYS = 10, ROUNDS = 20 };

typedef struct worker {
    pthread_t thread;
    const char *dir;
    sat_cache *cache;
    int number;
    atomic_int *failures;
} worker;

static void name_key(char out[64], int i) { snprintf(out, 64, "key %d", i); }

static sat_record made_by(int thread, int round) {
    char exact[64];
    snprintf(exact, sizeof exact, "thread %d round %d", thread, round);
    return verified(1000 + round, "v", exact);
}

static void *add_and_load(void *arg) {
    worker *w = arg;
    for (int round = 0; round < ROUNDS; round++) {
        char k[64];
        sat_entry entry;
        sat_record r = made_by(w->number, round);
        name_key(k, (w->number + round) % KEYS);
        if (sat_cache_add(w->cache, k, &r, 1) != SAT_OK) atomic_fetch_add(w->failures, 1);
        if (sat_cache_load(w->cache, k, &entry) != SAT_OK || !has(&entry, &r)) atomic_fetch_add(w->failures, 1);
        sat_entry_free(&entry);
        if (round % 8 == 0) sat_cache_note_untuned(w->cache, k, "exact");
        if (round % 8 == 4) sat_cache_forget_untuned(w->cache, k);
    }
    return NULL;
}

static void run_all(worker *workers, void *(*body)(void *), const char *dir, sat_cache *shared) {
    atomic_int failures = 0;
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){.dir = dir, .number = i, .failures = &failures};
        workers[i].cache = shared ? shared : open_cache(dir);
        assert_int_equal(pthread_create(&workers[i].thread, NULL, body, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        if (!shared) sat_cache_close(workers[i].cache);
    }
    assert_int_equal(failures, 0);
}

static void expect_all(sat_cache *cache) {
    for (int i = 0; i < THREADS; i++)
        for (int round = 0; round < ROUNDS; round++) {
            char k[64];
            sat_record r = made_by(i, round);
            name_key(k, (i + round) % KEYS);
            assert_has(cache, k, &r);
        }
}

/* Others read and add the same keys meanwhile: what they have read may not hide what was added since. */
static void *add_and_find(void *arg) {
    worker *w = arg;
    for (int round = 0; round < ROUNDS; round++) {
        char k[64];
        sat_entry entry;
        sat_record r = made_by(w->number, round);
        name_key(k, round % 2);
        if (sat_cache_add(w->cache, k, &r, 1) != SAT_OK) atomic_fetch_add(w->failures, 1);
        for (int again = 0; again < 5; again++) {
            if (sat_cache_find(w->cache, k, again == 4, &entry) != SAT_OK || !has(&entry, &r))
                atomic_fetch_add(w->failures, 1);
            sat_entry_free(&entry);
        }
    }
    return NULL;
}

static void what_a_thread_adds_is_found_at_once(void **state) {
    worker workers[THREADS];
    const char *dirs[] = {*state, ""};
    for (int i = 0; i < 2; i++) {
        sat_cache *cache = open_cache(dirs[i]);
        run_all(workers, add_and_find, dirs[i], cache);
        sat_cache_close(cache);
    }
}

static void eight_threads_share_a_cache(void **state) {
    worker workers[THREADS];
    char folder[4200];
    sat_cache *cache = open_cache(*state);
    run_all(workers, add_and_load, *state, cache);
    expect_all(cache);
    device_folder(*state, folder);
    assert_int_equal(all_valid(folder), KEYS);
    sat_cache_close(cache);
}

static void eight_threads_with_a_cache_each_share_a_folder(void **state) {
    worker workers[THREADS];
    char folder[4200];
    run_all(workers, add_and_load, *state, NULL);
    sat_cache *cache = open_cache(*state);
    expect_all(cache);
    device_folder(*state, folder);
    assert_int_equal(all_valid(folder), KEYS);
    sat_cache_close(cache);
}

static void eight_threads_share_memory(void **state) {
    worker workers[THREADS];
    (void)state;
    sat_cache *cache = open_cache("");
    run_all(workers, add_and_load, "", cache);
    expect_all(cache);
    sat_cache_close(cache);
}

/* ---- the tuning lock ---- */

static int inside; /* plain: the lock alone keeps threads apart, and ThreadSanitizer watches */

static void *tune(void *arg) {
    worker *w = arg;
    for (int i = 0; i < 5; i++) {
        if (!sat_cache_tuning_lock(w->cache, 60)) {
            atomic_fetch_add(w->failures, 1);
            continue;
        }
        if (++inside != 1) atomic_fetch_add(w->failures, 1);
        nanosleep(&(struct timespec){.tv_nsec = 300000}, NULL);
        inside--;
        sat_cache_tuning_unlock(w->cache);
    }
    return NULL;
}

static void one_thread_tunes_at_a_time(void **state) {
    worker workers[THREADS];
    run_all(workers, tune, *state, NULL);
    sat_cache *cache = open_cache(*state), *memory = open_cache("");
    run_all(workers, tune, *state, cache);
    run_all(workers, tune, "", memory);
    sat_cache_close(cache);
    sat_cache_close(memory);
}

static void the_tuning_lock_gives_up_in_time(void **state) {
    char spelled[4300];
    snprintf(spelled, sizeof spelled, "%s/.//.", (char *)*state);
    sat_cache *a = open_cache(*state), *b = open_cache(spelled); /* one folder, two spellings */
    assert_true(sat_cache_tuning_lock(a, 0));
    double start = seconds_now();
    assert_false(sat_cache_tuning_lock(b, 0.2));
    double waited = seconds_now() - start;
    assert_true(waited > 0.15 && waited < 5);
    assert_false(sat_cache_tuning_lock(b, 0));
    sat_cache_tuning_unlock(a);
    assert_true(sat_cache_tuning_lock(b, 0));
    sat_cache_tuning_unlock(b);
    assert_true(sat_cache_tuning_lock(a, 1));
    sat_cache_close(a); /* closing gives it back */
    assert_true(sat_cache_tuning_lock(b, 0));
    sat_cache_tuning_unlock(b);
    sat_cache_close(b);
}

/* ---- fork ---- */

static int child_result(pid_t child) {
    int status;
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void a_child_does_not_inherit_the_tuning_lock(void **state) {
    sat_cache *cache = open_cache(*state);
    assert_true(sat_cache_tuning_lock(cache, 0));
    pid_t child = fork();
    if (child == 0) {
        bool got = sat_cache_tuning_lock(cache, 0.05);
        sat_cache_tuning_unlock(cache); /* of nothing: may not free the parent's */
        _exit(got ? 1 : 0);
    }
    assert_int_equal(child_result(child), 0);
    child = fork();
    if (child == 0) _exit(sat_cache_tuning_lock(cache, 0.05) ? 1 : 0);
    assert_int_equal(child_result(child), 0); /* still ours */
    sat_cache_tuning_unlock(cache);
    child = fork();
    if (child == 0) _exit(sat_cache_tuning_lock(cache, 0.5) ? 0 : 1);
    assert_int_equal(child_result(child), 0);
    sat_cache_close(cache);
}

static atomic_bool stop;

static void *keep_adding(void *arg) {
    worker *w = arg;
    for (int i = 0; !stop; i++) {
        sat_record r = made_by(w->number, i % 50);
        char k[64];
        name_key(k, i % KEYS);
        sat_cache_add(w->cache, k, &r, 1);
        sat_cache_note_untuned(w->cache, k, "exact");
    }
    return NULL;
}

static void a_child_forked_among_busy_threads_can_use_the_cache(void **state) {
    worker workers[2];
    sat_cache *disk = open_cache(*state), *memory = open_cache("");
    stop = false;
    for (int i = 0; i < 2; i++) {
        workers[i] = (worker){.number = i, .cache = i ? memory : disk};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, keep_adding, &workers[i]), 0);
    }
    for (int round = 0; round < 25; round++) {
        sat_record r = made_by(77, round);
        pid_t child = fork();
        if (child == 0) {
            sat_entry entry;
            alarm(30); /* a lock that nobody holds any more would hang here */
            bool good = sat_cache_add(disk, "from a child", &r, 1) == SAT_OK &&
                        sat_cache_add(memory, "from a child", &r, 1) == SAT_OK &&
                        sat_cache_load(memory, "from a child", &entry) == SAT_OK && entry.count == 1;
            _exit(good ? 0 : 1);
        }
        assert_int_equal(child_result(child), 0);
        assert_has(disk, "from a child", &r);
    }
    stop = true;
    for (int i = 0; i < 2; i++) pthread_join(workers[i].thread, NULL);
    assert_int_equal(count_of(disk, "from a child"), 25);
    assert_int_equal(count_of(memory, "from a child"), 0);
    sat_cache_close(disk);
    sat_cache_close(memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST_IN_FOLDER(eight_threads_share_a_cache),
        TEST_IN_FOLDER(eight_threads_with_a_cache_each_share_a_folder),
        cmocka_unit_test(eight_threads_share_memory),
        TEST_IN_FOLDER(what_a_thread_adds_is_found_at_once),
        TEST_IN_FOLDER(one_thread_tunes_at_a_time),
        TEST_IN_FOLDER(the_tuning_lock_gives_up_in_time),
        TEST_IN_FOLDER(a_child_does_not_inherit_the_tuning_lock),
        TEST_IN_FOLDER(a_child_forked_among_busy_threads_can_use_the_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
