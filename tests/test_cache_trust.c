/* Whom the cache believes: files and folders that nobody but root and this user can have changed. The rest is a miss
 * that is reported. What a setuid program's caller says counts for nothing, nor does a date that is still to come. */
#define _GNU_SOURCE
#include "cache_helpers.h"

#include <grp.h>
#include <limits.h>
#include <pwd.h>

#include "core/context.h"
#include "cache/cache_rates.h"
#include "core/rates.h"

static const uid_t nobody = 65534;

#define NEEDS_ROOT(why)                                                                                                \
    do {                                                                                                               \
        if (getuid() != 0) {                                                                                           \
            print_message("needs root, " why "\n");                                                                    \
            skip();                                                                                                    \
        }                                                                                                              \
    } while (0)

static void fill_one(const char *dir) {
    sat_cache *cache = open_cache(dir);
    sat_record r = raced("good", 9, "v", 1);
    assert_int_equal(sat_cache_add(cache, key, &r, 1), SAT_OK);
    sat_cache_close(cache);
}

static void expect_hit(const char *dir) {
    messages m;
    sat_cache *cache = open_logged(dir, &m);
    assert_int_equal(count_of(cache, key), 1);
    assert_int_equal(m.count, 0);
    sat_cache_close(cache);
}

static bool count_visit(void *user, const char *k, const char *text) {
    (void)k, (void)text;
    ++*(int *)user;
    return true;
}

/* A miss, reported once in these words; what is added stays in memory, and nothing new is on the disk. */
static void expect_miss(const char *dir, const char *folder, const char *words, bool writable) {
    messages m;
    int seen = 0, files = count_files(folder, ".txt");
    sat_cache *cache = open_logged(dir, &m);
    sat_record r = raced("more", 10, "w", 1);
    assert_int_equal(count_of(cache, key), 0);
    assert_int_equal(count_of(cache, key), 0);
    assert_int_equal(m.count, 1);
    if (!strstr(m.last, words)) fail_msg("'%s' does not say '%s'", m.last, words);
    assert_int_equal(sat_cache_each(cache, count_visit, &seen), SAT_OK);
    assert_int_equal(seen, 0);
    if (!writable) {
        assert_int_equal(sat_cache_add(cache, "another key", &r, 1), SAT_IO);
        assert_int_equal(count_of(cache, "another key"), 1);
        assert_int_equal(count_files(folder, ".txt"), files);
    }
    sat_cache_close(cache);
}

/* ---- modes ---- */

static void what_others_may_write_is_not_read(void **state) {
    char dir[4200], folder[4200], path[4200];
    fill_one(in(dir, *state, "cache"));
    device_folder(dir, folder);
    entry_path(path, dir, key);
    const char *const places[] = {*state, dir, folder, path};
    for (int i = 0; i < 4; i++) {
        expect_hit(dir);
        mode_t mode = i == 3 ? 0644 : 0755;
        assert_int_equal(chmod(places[i], mode | 0002), 0);
        expect_miss(dir, folder, "may be written by others", i == 3);
        assert_int_equal(chmod(places[i], mode), 0);
    }
    assert_int_equal(chmod(folder, 01777), 0); /* like /tmp: anybody could have added a file */
    expect_miss(dir, folder, "everybody may write", false);
    assert_int_equal(chmod(folder, 0755), 0);
    assert_int_equal(chmod(*state, 01777), 0); /* on the way to a folder of ours it is harmless */
    expect_hit(dir);
}

/* Has this user's own group somebody else in it? */
static bool group_is_private(void) {
    struct passwd *us = getpwuid(geteuid());
    struct group *g = getgrgid(getegid());
    if (!us || !g) return false;
    char name[256];
    snprintf(name, sizeof name, "%s", us->pw_name);
    for (char **m = g->gr_mem; *m; m++)
        if (strcmp(*m, name) && strcmp(*m, "root")) return false;
    bool only = true;
    setpwent();
    for (struct passwd *p; (p = getpwent());)
        only = only && (p->pw_gid != getegid() || p->pw_uid == geteuid() || p->pw_uid == 0);
    endpwent();
    return only;
}

static void a_group_of_ones_own_may_write_and_another_may_not(void **state) {
    char folder[4200];
    fill_one(*state);
    device_folder(*state, folder);
    assert_int_equal(chmod(folder, 0775), 0);
    if (group_is_private()) expect_hit(*state);
    else expect_miss(*state, folder, "may be written by others", false);
    if (getuid() == 0) {
        assert_int_equal(chown(folder, 0, 65533), 0);
        expect_miss(*state, folder, "may be written by others", false);
    }
}

static void nothing_that_is_made_may_be_written_by_others(void **state) {
    char dir[4200], folder[4200], path[4200];
    struct stat info;
    mode_t before = umask(0);
    fill_one(in(dir, *state, "a/b"));
    device_folder(dir, folder);
    sat_cache *cache = open_cache(dir);
    assert_true(sat_cache_tuning_lock(cache, 1));
    sat_cache_tuning_unlock(cache);
    assert_int_equal(sat_cache_note_untuned(cache, "k", "exact"), SAT_OK);
    assert_int_equal(sat_cache_export_file(cache, in(path, folder, "export")), SAT_OK);
    sat_cache_close(cache);
    umask(before);
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (!strcmp(e->d_name, "..")) continue;
        assert_int_equal(fstatat(dirfd(d), e->d_name, &info, 0), 0);
        if (info.st_mode & 0022) fail_msg("%s has mode %o", e->d_name, (unsigned)info.st_mode);
    }
    closedir(d);
    assert_true(!stat(in(path, *state, "a"), &info) && !(info.st_mode & 0022));
    expect_hit(dir);
}

static void rates_and_untuned_problems_are_held_to_the_same(void **state) {
    char folder[4200], path[4200];
    messages m;
    sat_rates rates = {.memory = 1, .l2 = 1, .tf32 = 1, .flop = {0, 1, 1, 1, 1}}, got;
    int seen = 0;
    sat_cache *cache = open_cache(*state);
    assert_int_equal(sat_cache_keep_rates(cache, &rates), SAT_OK);
    assert_int_equal(sat_cache_note_untuned(cache, "k", "exact"), SAT_OK);
    sat_cache_close(cache);
    device_folder(*state, folder);
    for (int open_to_all = 0; open_to_all < 2; open_to_all++) {
        mode_t mode = open_to_all ? 0666 : 0644;
        assert_int_equal(chmod(in(path, folder, "rates.txt"), mode), 0);
        assert_int_equal(chmod(in(path, folder, "untuned.txt"), mode), 0);
        cache = open_logged(*state, &m);
        assert_int_equal(sat_cache_load_rates(cache, &got), !open_to_all);
        assert_int_equal(m.count, open_to_all);
        seen = 0;
        assert_int_equal(sat_cache_each_untuned(cache, count_visit, &seen), SAT_OK);
        assert_int_equal(seen, !open_to_all);
        sat_cache_close(cache);
    }
    assert_int_equal(chmod(folder, 0777), 0);
    cache = open_logged(*state, &m);
    assert_int_equal(sat_cache_keep_rates(cache, &rates), SAT_IO);
    assert_int_equal(m.count, 1);
    sat_cache_close(cache);
}

/* ---- owners ---- */

static void what_another_user_owns_is_not_read(void **state) {
    NEEDS_ROOT("to give files away");
    char dir[4200], folder[4200], path[4200], link[4200];
    fill_one(in(dir, *state, "cache"));
    device_folder(dir, folder);
    entry_path(path, dir, key);
    const char *const places[] = {dir, folder, path};
    for (int i = 0; i < 3; i++) {
        expect_hit(dir);
        assert_int_equal(chown(places[i], nobody, 0), 0);
        expect_miss(dir, folder, "belongs to user 65534", i == 2);
        assert_int_equal(chown(places[i], 0, 0), 0);
    }
    assert_int_equal(symlink(dir, in(link, *state, "link")), 0);
    expect_hit(link);
    assert_int_equal(chmod(*state, 01777), 0);
    assert_int_equal(lchown(link, nobody, 0), 0);
    expect_miss(link, folder, "another user's link", false);
}

/* ---- setuid ---- */

enum { ALL_GOOD = 40, TOOK_THE_FOLDER, TOOK_THE_EFFORT, SKIPPED };

static int as_setuid(void) {
    sat_cache *cache;
    sat_context *ctx;
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = ""};
    if (getuid() == geteuid()) return SKIPPED;
    if (sat_cache_open(NULL, device, NULL, &cache) != SAT_OK) return 1;
    if (sat_cache_dir(cache)[0]) return TOOK_THE_FOLDER;
    sat_cache_close(cache);
    if (sat_context_create(&o, &ctx) != SAT_OK) return 1;
    if (ctx->options.effort != SAT_EFFORT_QUICK) return TOOK_THE_EFFORT;
    sat_context_free(ctx);
    return ALL_GOOD;
}

static void a_setuid_program_takes_nothing_from_its_environment(void **state) {
    NEEDS_ROOT("to make a setuid program");
    char program[4200], command[9000];
    int status;
    in(program, *state, "program");
    snprintf(command, sizeof command, "cp /proc/%d/exe '%s' && chmod 4755 '%s'", (int)getpid(), program, program);
    assert_int_equal(system(command), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        setenv("SPARSE_AUTOTUNE_CACHE", *state, 1), setenv("HOME", *state, 1), setenv("XDG_CACHE_HOME", *state, 1);
        setenv("SPARSE_AUTOTUNE", "off", 1);
        if (setgid(nobody) || setuid(nobody)) _exit(1);
        execl(program, program, "setuid", (char *)NULL);
        _exit(2);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == SKIPPED) skip();
    assert_int_equal(WEXITSTATUS(status), ALL_GOOD);
}

/* ---- dates ---- */

static sat_record future_race(int i) {
    char race[32];
    snprintf(race, sizeof race, "z%d", i);
    return raced(race, (int64_t)32503680000 + i, "v", 1); /* the year 3000 */
}

/* A file with eight races that are still to come, as a hostile or a misdated one would be. */
static void write_future(const char *dir) {
    char path[4200];
    sat_text text = {0};
    sat_record r[8];
    fill_one(dir);
    for (int i = 0; i < 8; i++) r[i] = future_race(i);
    sat_entry_format(&text, device, key, &(sat_entry){r, 8});
    write_file(entry_path(path, dir, key), text.data, text.length);
    sat_text_free(&text);
}

static bool has_race(sat_cache *cache, const char *race, bool newest) {
    sat_entry entry;
    bool found = false;
    assert_int_equal(sat_cache_load(cache, key, &entry), SAT_OK);
    for (size_t i = newest && entry.count ? entry.count - 1 : 0; i < entry.count; i++)
        found = found || !strcmp(entry.records[i].race, race);
    for (size_t i = 0; i < entry.count; i++) assert_true(entry.records[i].when <= (int64_t)time(NULL));
    sat_entry_free(&entry);
    return found;
}

static void races_dated_in_the_future_push_nobody_out(void **state) {
    char dir[4200], upper[4200], dirs[9000];
    write_future(in(dir, *state, "dir"));
    snprintf(dirs, sizeof dirs, "%s:%s", in(upper, *state, "upper"), dir);
    const char *const caches[] = {dirs, dir}; /* in a lower layer, and in the one that is written */
    for (int i = 0; i < 2; i++) {
        sat_cache *cache = open_cache(caches[i]);
        assert_true(has_race(cache, "z7", false)); /* what they say is not lost */
        sat_record now = raced("now", (int64_t)time(NULL), "v", 1);
        assert_int_equal(sat_cache_add(cache, key, &now, 1), SAT_OK);
        assert_true(has_race(cache, "now", true));
        sat_cache_close(cache);
        cache = open_cache(caches[i]);
        assert_true(has_race(cache, "now", true));
        sat_cache_close(cache);
    }
}

static void an_import_from_the_future_pushes_nobody_out(void **state) {
    char from[4200], to[4200], file[4200];
    int64_t entries;
    write_future(in(from, *state, "from"));
    sat_cache *cache = open_cache(in(to, *state, "to"));
    sat_record now = raced("now", (int64_t)time(NULL), "v", 1);
    assert_int_equal(sat_cache_add(cache, key, &now, 1), SAT_OK);
    assert_int_equal(sat_cache_import_file(cache, entry_path(file, from, key), &entries), SAT_OK);
    assert_true(has_race(cache, "now", true));
    sat_cache_close(cache);
}

int main(int argc, char **argv) {
    (void)argv;
    if (argc == 2) return as_setuid();
    umask(022);
    const struct CMUnitTest tests[] = {
        TEST_IN_FOLDER(what_others_may_write_is_not_read),
        TEST_IN_FOLDER(a_group_of_ones_own_may_write_and_another_may_not),
        TEST_IN_FOLDER(nothing_that_is_made_may_be_written_by_others),
        TEST_IN_FOLDER(rates_and_untuned_problems_are_held_to_the_same),
        TEST_IN_FOLDER(what_another_user_owns_is_not_read),
        TEST_IN_FOLDER(a_setuid_program_takes_nothing_from_its_environment),
        TEST_IN_FOLDER(races_dated_in_the_future_push_nobody_out),
        TEST_IN_FOLDER(an_import_from_the_future_pushes_nobody_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
