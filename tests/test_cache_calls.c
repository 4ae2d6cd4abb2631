/* Every system call of the cache fails once, with EIO, ENOSPC, ESTALE and EINTR, and the clock jumps. What was written
 * before stays, what an add reported as written is there, every file stays valid, no descriptor is lost, and the next
 * call without the failure works.
 *
 * The linker sends the library's calls through here. By default some of them fail, one a run; where SAT_TEST_LONG is
 * set, all do. */
#define _GNU_SOURCE
#include "cache_helpers.h"

#include <limits.h>

#include "cache/cache_rates.h"
#include "core/rates.h"

/* ---- calls that fail ---- */

static bool counting;
static int64_t counted, failing; /* calls of this run; the one that fails, from 1; 0: none */
static int error_number;
static const char *failed; /* the name of the one that did */
static int64_t seconds_ahead;

static bool fails(const char *name) {
    if (!counting || ++counted != failing) return false;
    failed = name, errno = error_number;
    return true;
}

#define WRAP(type, name, failure, parameters, arguments)                                                               \
    type __real_##name parameters;                                                                                     \
    type __wrap_##name parameters;                                                                                     \
    type __wrap_##name parameters { return fails(#name) ? (failure) : __real_##name arguments; }

WRAP(ssize_t, read, -1, (int fd, void *to, size_t bytes), (fd, to, bytes))
WRAP(ssize_t, write, -1, (int fd, const void *from, size_t bytes), (fd, from, bytes))
WRAP(int, fsync, -1, (int fd), (fd))
WRAP(int, rename, -1, (const char *from, const char *to), (from, to))
WRAP(int, unlink, -1, (const char *path), (path))
WRAP(int, unlinkat, -1, (int fd, const char *path, int flags), (fd, path, flags))
WRAP(int, mkdir, -1, (const char *path, mode_t mode), (path, mode))
WRAP(int, stat, -1, (const char *path, struct stat *to), (path, to))
WRAP(int, lstat, -1, (const char *path, struct stat *to), (path, to))
WRAP(int, fstat, -1, (int fd, struct stat *to), (fd, to))
WRAP(int, fstatat, -1, (int fd, const char *path, struct stat *to, int flags), (fd, path, to, flags))
WRAP(int, access, -1, (const char *path, int mode), (path, mode))
WRAP(DIR *, opendir, NULL, (const char *path), (path))
WRAP(struct dirent *, readdir, NULL, (DIR * d), (d))
WRAP(char *, realpath, NULL, (const char *path, char *to), (path, to))
WRAP(FILE *, fopen, NULL, (const char *path, const char *mode), (path, mode))

int __real_open(const char *path, int flags, mode_t mode);
int __wrap_open(const char *path, int flags, mode_t mode);
int __wrap_open(const char *path, int flags, mode_t mode) { /* the mode is passed on, used or not */
    return fails("open") ? -1 : __real_open(path, flags, mode);
}

int __real_fcntl(int fd, int command, void *argument);
int __wrap_fcntl(int fd, int command, void *argument);
int __wrap_fcntl(int fd, int command, void *argument) {
    return fails("fcntl") ? -1 : __real_fcntl(fd, command, argument);
}

int __real_close(int fd);
int __wrap_close(int fd);
int __wrap_close(int fd) { /* Linux closes it whatever it says */
    int result = __real_close(fd);
    return fails("close") ? -1 : result;
}

time_t __real_time(time_t *to);
time_t __wrap_time(time_t *to);
time_t __wrap_time(time_t *to) {
    time_t now = __real_time(NULL) + (time_t)seconds_ahead;
    if (to) *to = now;
    return now;
}

int __real_clock_gettime(clockid_t clock, struct timespec *to);
int __wrap_clock_gettime(clockid_t clock, struct timespec *to);
int __wrap_clock_gettime(clockid_t clock, struct timespec *to) {
    int result = __real_clock_gettime(clock, to);
    if (clock == CLOCK_REALTIME) to->tv_sec += (time_t)seconds_ahead;
    return result;
}

/* ---- a cache that is used ---- */

static const char other_key[] = "another key", bad_key[] = "a damaged one";

static int open_files(void) {
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static int leftovers(const char *folder) {
    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) n += !strncmp(e->d_name, ".tmp-", 5);
    if (d) closedir(d);
    return n;
}

/* What was there before: a race, a file that cannot be read, and what a killed writer left an hour ago. */
static void prepare(const char *dir) {
    char folder[4200], path[4200];
    struct timespec old[2] = {{.tv_sec = time(NULL) - 7200}, {.tv_sec = time(NULL) - 7200}};
    sat_cache *cache = open_cache(dir);
    sat_record r = raced("before", 9, "v", 1);
    assert_int_equal(sat_cache_add(cache, key, &r, 1), SAT_OK);
    sat_cache_close(cache);
    device_folder(dir, folder);
    write_file(entry_path(path, dir, bad_key), "garbage", 7);
    write_file(in(path, folder, ".tmp-1-2-3"), "x", 1);
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
}

typedef struct outcome {
    sat_status added, other, removed, exported, imported, rated;
} outcome;

static bool ignore_entry(void *user, const char *k, const char *text) {
    (void)user, (void)k, (void)text;
    return true;
}

static outcome use(const char *dir, const char *export) {
    sat_record one = raced("one", 11, "v", 1), two = raced("two", 12, "w", 1);
    sat_rates rates = {.memory = 1, .l2 = 1, .tf32 = 1, .flop = {0, 1, 1, 1, 1}};
    outcome o;
    sat_entry entry;
    int64_t n;
    sat_cache *cache = open_cache(dir);
    counting = true;
    assert_int_equal(sat_cache_load(cache, key, &entry), SAT_OK); /* a hit or a miss, no failure */
    sat_entry_free(&entry);
    o.added = sat_cache_add(cache, key, &one, 1);
    o.other = sat_cache_add(cache, other_key, &two, 1);
    assert_int_equal(sat_cache_load(cache, bad_key, &entry), SAT_OK);
    sat_entry_free(&entry);
    (void)sat_cache_note_untuned(cache, key, "exact");
    (void)sat_cache_each_untuned(cache, ignore_entry, NULL);
    assert_int_equal(sat_cache_each(cache, ignore_entry, NULL), SAT_OK);
    if (sat_cache_tuning_lock(cache, 1)) sat_cache_tuning_unlock(cache);
    o.rated = sat_cache_keep_rates(cache, &rates);
    (void)sat_cache_load_rates(cache, &rates);
    o.exported = sat_cache_export_file(cache, export);
    o.imported = sat_cache_import_file(cache, export, &n);
    o.removed = sat_cache_remove(cache, other_key, &n);
    counting = false;
    /* What the disk refused is in memory, so this process has it all the same. */
    assert_has(cache, key, &one);
    sat_cache_close(cache);
    return o;
}

static void expect_status(const char *what, sat_status status, bool clean) {
    if (status == SAT_OK || (!clean && status == SAT_IO)) return;
    fail_msg("%s, call %lld (%s, %s): %s", what, (long long)failing, failed ? failed : "none", strerror(error_number),
             sat_status_name(status));
}

/* With the disk as it should be: all that was promised is there, and works. */
static void look_after(const char *dir, const outcome *o) {
    char folder[4200];
    sat_record before = raced("before", 9, "v", 1), one = raced("one", 11, "v", 1), more = raced("more", 13, "v", 1);
    char bad[4200];
    device_folder(dir, folder);
    unlink(entry_path(bad, dir, bad_key)); /* where it could not be moved aside */
    all_valid(folder);
    sat_cache *cache = open_cache(dir);
    assert_has(cache, key, &before);
    if (o->added == SAT_OK) assert_has(cache, key, &one);
    assert_int_equal(sat_cache_add(cache, key, &more, 1), SAT_OK);
    assert_has(cache, key, &before);
    assert_has(cache, key, &more);
    sat_cache_close(cache);
    int left = leftovers(folder);
    bool removal = failed && (!strncmp(failed, "unlink", 6) || strstr("opendir readdir fstatat", failed));
    if (left > removal) fail_msg("call %lld (%s) left %d temporary files", (long long)failing, failed, left);
}

static int64_t one_life(const char *base, int64_t n, int error) {
    char dir[4200], export[4200];
    in(dir, base, "cache"), in(export, base, "export");
    remove_tree(dir);
    prepare(dir);
    write_file(export, "old", 3); /* is replaced */
    int files = open_files();
    counted = 0, failing = n, error_number = error, failed = NULL;
    outcome o = use(dir, export);
    bool clean = n == 0;
    expect_status("add", o.added, clean), expect_status("another add", o.other, clean);
    expect_status("rates", o.rated, clean), expect_status("export", o.exported, clean);
    if (o.exported == SAT_OK) expect_status("import", o.imported, clean);
    expect_status("remove", o.removed, clean);
    look_after(dir, &o);
    assert_int_equal(open_files(), files);
    return counted;
}

static void fail_each_call(const char *base, int error) {
    int64_t count = one_life(base, 0, 0), step = getenv("SAT_TEST_LONG") ? 1 : 3, done = 0;
    for (int64_t n = 1 + error % step; n <= count; n += step, done++) one_life(base, n, error);
    print_message("%lld calls, %lld of them failed with %s\n", (long long)count, (long long)done, strerror(error));
    assert_true(done > 20);
}

static void each_call_fails_once_with_an_io_error(void **state) { fail_each_call(*state, EIO); }
static void each_call_fails_once_for_want_of_room(void **state) { fail_each_call(*state, ENOSPC); }
static void each_call_fails_once_with_a_stale_handle(void **state) { fail_each_call(*state, ESTALE); }
static void each_call_is_interrupted_once(void **state) { fail_each_call(*state, EINTR); }

/* ---- clocks that jump ---- */

static bool has_race(sat_cache *cache, const char *race) {
    sat_entry entry;
    bool found = false;
    assert_int_equal(sat_cache_load(cache, key, &entry), SAT_OK);
    for (size_t i = 0; i < entry.count; i++) {
        found = found || !strcmp(entry.records[i].race, race);
        assert_true(entry.records[i].when <=
                    (int64_t)time(NULL)); /* nothing is dated later than now, whenever that is */
    }
    assert_true(entry.count <= SAT_RACED_KEPT + SAT_VERIFIED_KEPT);
    sat_entry_free(&entry);
    return found;
}

static void results_are_found_while_the_clock_jumps(void **state) {
    static const int64_t day = 86400, year = 365 * 86400;
    const int64_t jumps[] = {0, day, -day, 40 * year, -40 * year, 0, 400 * year, -3 * year, 3600, -3600, 0};
    uint64_t random = 77;
    char name[64], folder[4200];
    int rounds = getenv("SAT_TEST_LONG") ? 2000 : 60;
    sat_cache *cache = open_cache(*state), *reader = open_cache(*state);
    for (int i = 0; i < rounds; i++) {
        seconds_ahead = jumps[i < 11 ? i : (int)(next_random(&random) % 11)];
        snprintf(name, sizeof name, "race %d", i);
        sat_record r = raced(name, (int64_t)time(NULL), "v", 1);
        assert_int_equal(sat_cache_add(cache, key, &r, 1), SAT_OK);
        assert_true(has_race(cache, name));
        assert_true(has_race(reader, name));
        seconds_ahead = jumps[next_random(&random) % 11]; /* and again between writing and reading */
        assert_true(has_race(reader, name));
        assert_true(sat_cache_tuning_lock(cache, 1));
        sat_cache_tuning_unlock(cache);
    }
    seconds_ahead = 0;
    device_folder(*state, folder);
    assert_int_equal(all_valid(folder), 1);
    assert_int_equal(leftovers(folder), 0);
    sat_cache_close(cache);
    sat_cache_close(reader);
}

int main(void) {
    if (!access("/dev/shm", W_OK)) setenv("TMPDIR", "/dev/shm", 0); /* thousands of files: a disk would take minutes */
    umask(022);
    const struct CMUnitTest tests[] = {
        TEST_IN_FOLDER(each_call_fails_once_with_an_io_error),    TEST_IN_FOLDER(each_call_fails_once_for_want_of_room),
        TEST_IN_FOLDER(each_call_fails_once_with_a_stale_handle), TEST_IN_FOLDER(each_call_is_interrupted_once),
        TEST_IN_FOLDER(results_are_found_while_the_clock_jumps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
