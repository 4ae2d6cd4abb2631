/* The cache on disks that refuse, lie or hold nonsense: a load is a miss, an add is remembered in memory, nothing
 * good is lost and nothing kills the process.
 *
 * What needs another user, a full disk or a size limit happens in a child process, whose exit status is the number of
 * the line that failed (modulo 250), or 0. */
#define _GNU_SOURCE
#include "cache_helpers.h"

#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                            \
            _exit(__LINE__ % 250 + 1);                                                                                 \
        }                                                                                                              \
    } while (0)
enum { SKIPPED = 254 };

/* Runs `body` in a child and expects a clean end: no signal, no failed check. */
static void in_child(void (*body)(const char *folder), const char *folder) {
    int status;
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        body(folder);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) fail_msg("killed by signal %d", WTERMSIG(status));
    if (WEXITSTATUS(status) == SKIPPED) skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

static sat_cache *child_cache(const char *dirs) {
    sat_cache *cache;
    CHECK(sat_cache_open(dirs, device, NULL, &cache) == SAT_OK);
    return cache;
}

static size_t child_count(sat_cache *cache, const char *k) {
    sat_entry entry;
    CHECK(sat_cache_load(cache, k, &entry) == SAT_OK);
    size_t n = entry.count;
    sat_entry_free(&entry);
    return n;
}

/* What must hold wherever nothing can be written: refused, remembered, and everything else still works. */
static void expect_refusal(const char *dirs) {
    sat_cache *cache = child_cache(dirs);
    sat_record one = raced("r1", 1, "v", 1), two = raced("r2", 2, "v", 1);
    int64_t n;
    size_t before = child_count(cache, key);
    CHECK(sat_cache_add(cache, key, &one, 1) == SAT_IO);
    CHECK(sat_cache_add(cache, key, &two, 1) == SAT_IO);
    CHECK(child_count(cache, key) == before + 2);
    CHECK(sat_cache_tuning_lock(cache, 0.01));
    sat_cache_tuning_unlock(cache);
    CHECK(sat_cache_note_untuned(cache, key, "exact") != SAT_OK);
    CHECK(sat_cache_note_untuned(cache, key, "exact") == SAT_OK); /* one attempt is enough */
    sat_cache_forget_untuned(cache, key);
    sat_cache_remove(cache, key, &n);
    CHECK(child_count(cache, key) == before);
    sat_cache_close(cache);
}

/* ---- who may write ---- */

/* As root every folder is writable, so become someone else. */
static void become_nobody(void) {
    if (getuid() != 0) return;
    CHECK(setgid(65534) == 0 && setuid(65534) == 0);
}

static void fill_one(const char *dir, const char *k) {
    sat_cache *cache = open_cache(dir);
    sat_record r = raced("good", 9, "v", 1);
    assert_int_equal(sat_cache_add(cache, k, &r, 1), SAT_OK);
    sat_cache_close(cache);
}

static void try_unwritable(const char *dir) {
    become_nobody();
    sat_cache *cache = child_cache(dir);
    CHECK(child_count(cache, key) == 1); /* readable all the same */
    sat_cache_close(cache);
    expect_refusal(dir);
}

static void a_read_only_folder_is_read(void **state) {
    char folder[4200], path[4200];
    fill_one(*state, key);
    device_folder(*state, folder);
    assert_int_equal(chmod(folder, 0555), 0);
    in_child(try_unwritable, *state);
    assert_int_equal(chmod(folder, 0755), 0);
    assert_int_equal(access(entry_path(path, *state, key), F_OK), 0);
    assert_int_equal(all_valid(folder), 1);
}

static void try_unreadable(const char *dir) {
    become_nobody();
    sat_cache *cache = child_cache(dir);
    CHECK(child_count(cache, key) == 0);
    sat_cache_close(cache);
    expect_refusal(dir);
}

static void a_folder_of_someone_else_is_a_miss(void **state) {
    char folder[4200];
    fill_one(*state, key);
    device_folder(*state, folder);
    assert_int_equal(chmod(folder, 0700), 0);
    if (getuid() != 0) assert_int_equal(chmod(folder, 0), 0);
    in_child(try_unreadable, *state);
    assert_int_equal(chmod(folder, 0755), 0);
    assert_int_equal(all_valid(folder), 1);
}

static void try_unreadable_file(const char *dir) {
    become_nobody();
    sat_cache *cache = child_cache(dir);
    sat_record r = raced("r", 1, "v", 1);
    CHECK(child_count(cache, key) == 0);
    CHECK(sat_cache_add(cache, key, &r, 1) == SAT_IO);
    CHECK(child_count(cache, key) == 1);
    CHECK(sat_cache_add(cache, "a key of ours", &r, 1) == SAT_IO); /* nor is anything put beside it */
    sat_cache_close(cache);
}

static void a_file_of_someone_else_in_a_shared_folder_is_left_alone(void **state) {
    char folder[4200], path[4200];
    size_t before, after;
    fill_one(*state, key);
    device_folder(*state, folder);
    assert_int_equal(chmod(folder, 0777), 0); /* so that renaming over it would be allowed */
    char *text = read_file(entry_path(path, *state, key), &before);
    assert_int_equal(chmod(path, 0), 0);
    in_child(try_unreadable_file, *state);
    assert_int_equal(chmod(path, 0644), 0);
    char *now = read_file(path, &after);
    assert_string_equal(text, now);
    assert_int_equal(count_files(folder, ".txt"), 1);
    free(text);
    free(now);
}

/* ---- what stands in the way ---- */

static void no_folder_can_be_made_where_a_file_stands(void **state) {
    char file[4200], below[4200];
    write_file(in(file, *state, "file"), "x", 1);
    in_child(expect_refusal, file);
    in_child(expect_refusal, in(below, file, "deeper/still"));
    in_child(expect_refusal, "/proc/nonexistent/cache");
    in_child(expect_refusal, "/dev/null");
    char loop[4200];
    assert_int_equal(symlink("loop", in(loop, *state, "loop")), 0);
    in_child(expect_refusal, loop);
    static char endless[6000];
    memset(endless, 'x', sizeof endless - 1);
    endless[0] = '/';
    in_child(expect_refusal, endless);
}

static void missing_parents_are_made(void **state) {
    char deep[4200];
    fill_one(in(deep, *state, "a/b//c/d/"), key);
    sat_cache *cache = open_cache(deep);
    assert_int_equal(count_of(cache, key), 1);
    sat_cache_close(cache);
}

/* Makes a cache folder below `top` whose device folder, called `name`, has a path of `length` characters. */
static void make_long_folder(char path[4200], const char *top, const char *name, size_t length) {
    size_t end = length - 1 - strlen(name);
    strcpy(path, top);
    while (strlen(path) < end) {
        size_t at = strlen(path), left = end - at - 1, part = left <= 200 ? left : left <= 201 ? 100 : 200;
        path[at] = '/';
        memset(path + at + 1, 'd', part);
        path[at + 1 + part] = 0;
        assert_int_equal(mkdir(path, 0755), 0);
    }
    size_t at = strlen(path);
    path[at] = '/', strcpy(path + at + 1, name);
    assert_int_equal(mkdir(path, 0755), 0);
    path[at] = 0;
}

/* Nobody locks such a folder, so no message says so. */
static void a_folder_without_room_for_its_locks_path_is_refused(void **state) {
    char folder[4200], path[4200];
    sat_record one = raced("r1", 1, "v", 1);
    messages said;
    fill_one(*state, key);
    device_folder(*state, folder);
    make_long_folder(path, *state, strrchr(folder, '/') + 1, 4093);
    sat_cache *cache = open_logged(path, &said);
    assert_int_equal(sat_cache_add(cache, key, &one, 1), SAT_IO);
    assert_int_equal(said.count, 1);
    assert_non_null(strstr(said.last, "path is too long"));
    assert_int_equal(count_of(cache, key), 1);
    assert_int_equal(sat_cache_remove(cache, key, NULL), SAT_IO);
    assert_non_null(strstr(sat_last_error(), "path is too long"));
    sat_cache_close(cache);
}

static void expect_refusal_for_the_slot(const char *dir) {
    sat_cache *cache = child_cache(dir);
    sat_record r = raced("r", 1, "v", 1);
    alarm(20); /* opening a pipe must not wait for its other end */
    CHECK(child_count(cache, key) == 0);
    CHECK(sat_cache_add(cache, key, &r, 1) == SAT_IO);
    CHECK(child_count(cache, key) == 1);
    sat_cache_close(cache);
}

static void a_folder_or_a_pipe_with_an_entrys_name_is_left_alone(void **state) {
    char path[4200];
    struct stat info;
    fill_one(*state, key);
    entry_path(path, *state, key);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0755), 0);
    in_child(expect_refusal_for_the_slot, *state);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(mkfifo(path, 0644), 0);
    in_child(expect_refusal_for_the_slot, *state);
    assert_true(!lstat(path, &info) && S_ISFIFO(info.st_mode));
}

/* ---- no room ---- */

static void fill_until_full(const char *dir) {
    sat_cache *cache = child_cache(dir);
    int refused = 0;
    for (int i = 0; i < 100; i++) {
        char name[64];
        sat_record r[20];
        snprintf(name, sizeof name, "key %d", i);
        for (int j = 0; j < 20; j++) {
            char variant[64];
            snprintf(variant, sizeof variant, "v%d", j);
            r[j] = raced("r", i, variant, 1e-3 / (j + 1));
        }
        sat_status status = sat_cache_add(cache, name, r, 20);
        CHECK(status == SAT_OK || status == SAT_IO);
        refused += status == SAT_IO;
        CHECK(child_count(cache, name) == 20);
    }
    CHECK(refused > 10 && refused < 100);
    sat_cache_close(cache);
}

static void on_a_tiny_disk(const char *folder) {
    char device_dir[4200];
    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("tiny", folder, "tmpfs", 0, "size=256k"))
        _exit(SKIPPED);
    fill_until_full(folder);
    DIR *d = opendir(folder);
    CHECK(d);
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.') in(device_dir, folder, e->d_name);
    closedir(d);
    CHECK(all_valid(device_dir) > 0);
    CHECK(count_files(device_dir, ".bad") == 0);
    d = opendir(device_dir); /* no temporary file stays behind to keep the disk full */
    for (struct dirent *e; (e = readdir(d));) CHECK(strncmp(e->d_name, ".tmp-", 5));
    closedir(d);
}

static void a_full_disk_loses_no_entry(void **state) { in_child(on_a_tiny_disk, *state); }

static void under_a_size_limit(const char *folder) {
    struct rlimit limit = {.rlim_cur = 3000, .rlim_max = RLIM_INFINITY};
    sat_record small = raced("r", 1, "v", 1), *large = calloc(100, sizeof *large);
    sat_cache *cache = child_cache(folder);
    sigset_t pending;
    signal(SIGXFSZ, SIG_DFL);
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    for (int i = 0; i < 100; i++) {
        char name[64];
        snprintf(name, sizeof name, "v%d", i);
        large[i] = raced("large", 2, name, 1);
    }
    CHECK(sat_cache_add(cache, "small", &small, 1) == SAT_OK);
    CHECK(sat_cache_add(cache, "large", large, 100) == SAT_IO);
    CHECK(child_count(cache, "large") == 100);
    CHECK(sat_cache_add(cache, "small", large, 100) == SAT_IO);
    CHECK(child_count(cache, "small") == 101);
    sigpending(&pending);
    CHECK(!sigismember(&pending, SIGXFSZ));
    sat_cache_close(cache);
    cache = child_cache(folder);
    CHECK(child_count(cache, "small") == 1);
    sat_cache_close(cache);
    free(large);
}

static void a_file_size_limit_does_not_kill(void **state) { in_child(under_a_size_limit, *state); }

static void room_again(const char *folder) {
    struct rlimit limit = {.rlim_cur = 10, .rlim_max = RLIM_INFINITY};
    sat_record one = raced("one", 1, "v", 1), two = raced("two", 2, "v", 1);
    sat_cache *cache = child_cache(folder);
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK(sat_cache_add(cache, key, &one, 1) == SAT_IO);
    limit.rlim_cur = RLIM_INFINITY;
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK(sat_cache_add(cache, key, &two, 1) == SAT_OK);
    sat_cache_close(cache);
    cache = child_cache(folder);
    CHECK(child_count(cache, key) == 2);
    sat_cache_close(cache);
}

static void what_was_refused_is_written_when_there_is_room_again(void **state) { in_child(room_again, *state); }

static void to_odd_places(const char *folder) {
    char path[4200];
    struct stat info;
    int ends[2];
    sat_cache *cache = child_cache(folder);
    sat_record r = raced("r", 1, "v", 1);
    CHECK(sat_cache_add(cache, key, &r, 1) == SAT_OK);
    CHECK(sat_cache_export_file(cache, "/dev/full") == SAT_IO);
    CHECK(sat_cache_export_file(cache, "/dev/null") == SAT_OK);
    CHECK(!lstat("/dev/null", &info) && S_ISCHR(info.st_mode));
    CHECK(sat_cache_export_file(cache, folder) == SAT_IO);
    CHECK(sat_cache_export_file(cache, in(path, folder, "none/export")) == SAT_IO);
    CHECK(strstr(sat_last_error(), "none/export"));
    signal(SIGPIPE, SIG_DFL);
    CHECK(pipe(ends) == 0);
    close(ends[0]);
    snprintf(path, sizeof path, "/dev/fd/%d", ends[1]);
    sat_status status = sat_cache_export_file(cache, path);
    CHECK(status == SAT_IO);
    /* A link stays a link, and what it points to is replaced. */
    char link[4200], target[4200];
    write_file(in(target, folder, "target"), "old", 3);
    CHECK(symlink("target", in(link, folder, "link")) == 0);
    CHECK(sat_cache_export_file(cache, link) == SAT_OK);
    CHECK(!lstat(link, &info) && S_ISLNK(info.st_mode));
    CHECK(!stat(target, &info) && info.st_size > 100);
    sat_cache_close(cache);
}

static void an_export_to_an_odd_place_fails_or_works_but_breaks_nothing(void **state) {
    in_child(to_odd_places, *state);
}

/* ---- garbage ---- */

static void damage_is_a_miss_moved_aside_and_reported_once(void **state) {
    static const char *const garbage[] = {"", "\n", "garbage", "sparse_autotune cache 1.0\n"};
    char path[4200], folder[4200];
    messages m;
    sat_record r = raced("new", 1, "v", 1);
    fill_one(*state, key);
    entry_path(path, *state, key);
    device_folder(*state, folder);
    for (size_t i = 0; i < sizeof garbage / sizeof garbage[0]; i++) {
        write_file(path, garbage[i], strlen(garbage[i]));
        sat_cache *cache = open_logged(*state, &m);
        for (int j = 0; j < 3; j++) assert_int_equal(count_of(cache, key), 0);
        assert_int_equal(m.count, 1);
        assert_non_null(strstr(m.last, "moved aside"));
        assert_int_not_equal(access(path, F_OK), 0);
        assert_int_equal(count_files(folder, ".bad"), 1);
        assert_int_equal(sat_cache_add(cache, key, &r, 1), SAT_OK);
        assert_has(cache, key, &r);
        write_file(path, garbage[i], strlen(garbage[i])); /* met by a writer first */
        assert_int_equal(sat_cache_add(cache, key, &r, 1), SAT_OK);
        assert_int_equal(count_of(cache, key), 1);
        assert_int_equal(m.count, 2);
        sat_cache_close(cache);
    }
    char *huge = calloc(1, SAT_ENTRY_LIMIT + 100);
    write_file(path, huge, SAT_ENTRY_LIMIT + 100);
    free(huge);
    sat_cache *cache = open_cache(*state);
    assert_int_equal(count_of(cache, key), 0);
    assert_int_equal(count_files(folder, ".bad"), 1);
    sat_cache_close(cache);
}

static void files_moved_aside_never_grow_many(void **state) {
    char path[4200], folder[4200];
    fill_one(*state, key);
    sat_cache *cache = open_cache(*state);
    int64_t n;
    for (int i = 0; i < 100; i++) {
        char name[64];
        snprintf(name, sizeof name, "key %d", i);
        write_file(entry_path(path, *state, name), "x", 1);
        assert_int_equal(count_of(cache, name), 0);
    }
    device_folder(*state, folder);
    assert_in_range(count_files(folder, ".bad"), 1, 16);
    assert_int_equal(count_of(cache, key), 1);
    assert_int_equal(sat_cache_remove(cache, NULL, &n), SAT_OK);
    assert_int_equal(n, 1);
    assert_int_equal(count_files(folder, ".bad"), 0);
    sat_cache_close(cache);
}

static void damage_in_a_lower_layer_is_left_there(void **state) {
    char dirs[9000], upper[4200], lower[4200], path[4200];
    messages m;
    fill_one(in(lower, *state, "lower"), key);
    write_file(entry_path(path, lower, key), "garbage", 7);
    snprintf(dirs, sizeof dirs, "%s:%s", in(upper, *state, "upper"), lower);
    sat_cache *cache = open_logged(dirs, &m);
    for (int i = 0; i < 3; i++) assert_int_equal(count_of(cache, key), 0);
    assert_int_equal(m.count, 1);
    assert_int_equal(access(path, F_OK), 0);
    sat_cache_close(cache);
}

static void a_damaged_file_does_not_hide_the_next_slot(void **state) {
    char path[4200], second[4200];
    fill_one(*state, key);
    entry_path(path, *state, key);
    snprintf(second, sizeof second, "%.*s-1.txt", (int)(strrchr(path, '.') - path), path);
    assert_int_equal(rename(path, second), 0);
    write_file(path, "garbage", 7);
    sat_cache *cache = open_cache(*state);
    assert_int_equal(count_of(cache, key), 0); /* the damaged one goes, the next moves up */
    assert_int_equal(count_of(cache, key), 1);
    sat_cache_close(cache);
}

static void a_later_versions_file_is_a_miss_and_stays_as_it_is(void **state) {
    static const char newer[] = "sparse_autotune cache 2.0\nwho knows\x01\n";
    char path[4200];
    size_t length;
    messages m;
    sat_record r = raced("r", 1, "v", 1);
    int64_t n;
    fill_one(*state, key);
    write_file(entry_path(path, *state, key), newer, sizeof newer);
    sat_cache *cache = open_logged(*state, &m);
    for (int i = 0; i < 3; i++) assert_int_equal(count_of(cache, key), i ? 1 : 0), sat_cache_add(cache, key, &r, 1);
    assert_int_equal(sat_cache_add(cache, key, &r, 1), SAT_UNSUPPORTED);
    assert_has(cache, key, &r);
    assert_int_equal(m.count, 1);
    assert_int_equal(sat_cache_remove(cache, key, &n), SAT_OK);
    char *text = read_file(path, &length);
    assert_int_equal(length, sizeof newer);
    assert_memory_equal(text, newer, length);
    free(text);
    sat_cache_close(cache);
}

/* ---- locks and leftovers ---- */

static void results_are_kept_where_files_cannot_be_locked(void **state) {
    char folder[4200], lock[4200];
    sat_record one = raced("one", 1, "v", 1), two = raced("two", 2, "v", 1);
    fill_one(*state, key);
    device_folder(*state, folder);
    in(lock, folder, "lock");
    unlink(lock);
    assert_int_equal(mkdir(lock, 0755), 0); /* nothing that could be opened for writing */
    sat_cache *a = open_cache(*state), *b = open_cache(*state);
    assert_int_equal(sat_cache_add(a, key, &one, 1), SAT_OK);
    assert_int_equal(sat_cache_add(b, key, &two, 1), SAT_OK);
    assert_has(a, key, &one);
    assert_has(a, key, &two);
    assert_int_equal(count_of(a, key), 3);
    assert_int_equal(all_valid(folder), 1);
    sat_cache_close(a);
    sat_cache_close(b);
}

static void old_temporary_files_are_removed_and_fresh_ones_left(void **state) {
    char folder[4200], old[4200], fresh[4200], other[4200];
    struct timespec times[2] = {{.tv_sec = time(NULL) - 7200}, {.tv_sec = time(NULL) - 7200}};
    fill_one(*state, key);
    device_folder(*state, folder);
    write_file(in(old, folder, ".tmp-1-2-3"), "x", 1);
    write_file(in(fresh, folder, ".tmp-4-5-6"), "x", 1);
    write_file(in(other, folder, "notes"), "x", 1);
    assert_int_equal(utimensat(AT_FDCWD, old, times, 0), 0);
    assert_int_equal(utimensat(AT_FDCWD, other, times, 0), 0);
    fill_one(*state, "another key");
    assert_int_not_equal(access(old, F_OK), 0);
    assert_int_equal(access(fresh, F_OK), 0);
    assert_int_equal(access(other, F_OK), 0);
}

static void files_that_are_not_the_caches_are_ignored(void **state) {
    char folder[4200], path[4200];
    int64_t entries;
    fill_one(*state, key);
    device_folder(*state, folder);
    write_file(in(path, folder, "README.txt"), "hello", 5);
    write_file(in(path, folder, "0123456789abcdef-9.txt"), "hello", 5);
    write_file(in(path, folder, "0123456789ABCDEF.txt"), "hello", 5);
    write_file(in(path, *state, "stray"), "hello", 5);
    assert_int_equal(mkdir(in(path, *state, "empty folder"), 0755), 0);
    sat_cache *cache = open_cache(*state);
    assert_int_equal(sat_cache_export_file(cache, in(path, *state, "export")), SAT_OK);
    assert_int_equal(sat_cache_import_file(cache, path, &entries), SAT_OK);
    assert_int_equal(entries, 1);
    assert_int_equal(sat_cache_remove(cache, NULL, &entries), SAT_OK);
    assert_int_equal(entries, 1);
    assert_int_equal(access(in(path, folder, "README.txt"), F_OK), 0);
    sat_cache_close(cache);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST_IN_FOLDER(a_read_only_folder_is_read),
        TEST_IN_FOLDER(a_folder_of_someone_else_is_a_miss),
        TEST_IN_FOLDER(a_file_of_someone_else_in_a_shared_folder_is_left_alone),
        TEST_IN_FOLDER(no_folder_can_be_made_where_a_file_stands),
        TEST_IN_FOLDER(missing_parents_are_made),
        TEST_IN_FOLDER(a_folder_without_room_for_its_locks_path_is_refused),
        TEST_IN_FOLDER(a_folder_or_a_pipe_with_an_entrys_name_is_left_alone),
        TEST_IN_FOLDER(a_full_disk_loses_no_entry),
        TEST_IN_FOLDER(a_file_size_limit_does_not_kill),
        TEST_IN_FOLDER(what_was_refused_is_written_when_there_is_room_again),
        TEST_IN_FOLDER(an_export_to_an_odd_place_fails_or_works_but_breaks_nothing),
        TEST_IN_FOLDER(damage_is_a_miss_moved_aside_and_reported_once),
        TEST_IN_FOLDER(files_moved_aside_never_grow_many),
        TEST_IN_FOLDER(damage_in_a_lower_layer_is_left_there),
        TEST_IN_FOLDER(a_damaged_file_does_not_hide_the_next_slot),
        TEST_IN_FOLDER(a_later_versions_file_is_a_miss_and_stays_as_it_is),
        TEST_IN_FOLDER(results_are_kept_where_files_cannot_be_locked),
        TEST_IN_FOLDER(old_temporary_files_are_removed_and_fresh_ones_left),
        TEST_IN_FOLDER(files_that_are_not_the_caches_are_ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
