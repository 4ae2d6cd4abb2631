/* The cache on a healthy disk: what is kept, layers, memory, folders and slots, visiting, removing, the untuned list.
 */
#define _XOPEN_SOURCE 700
#define _DEFAULT_SOURCE
#include "cache_helpers.h"

#include <float.h>
#include <math.h>

static void only_the_last_races_are_kept_and_those_whole(void **state) {
    sat_cache *cache = open_cache(*state);
    for (int i = 0; i < 20; i++) {
        char race[64];
        snprintf(race, sizeof race, "race-%d", i);
        sat_record r[3] = {raced(race, 100 + i, "a", 1), raced(race, 100 + i, "b", 2), raced(race, 100 + i, "c", 3)};
        assert_int_equal(sat_cache_add(cache, key, r, 3), SAT_OK);
    }
    sat_entry entry;
    assert_int_equal(sat_cache_load(cache, key, &entry), SAT_OK);
    assert_int_equal(entry.count, 3 * SAT_RACES_KEPT);
    assert_string_equal(entry.records[0].race, "race-12");
    assert_string_equal(entry.records[entry.count - 1].race, "race-19");
    sat_entry_free(&entry);
    sat_cache_close(cache);
}

static void the_number_of_records_is_bounded(void **state) {
    sat_cache *cache = open_cache(*state);
    enum { N = 1500 };
    sat_record *r = calloc(N, sizeof *r);
    for (int i = 0; i < N; i++) {
        char exact[64];
        snprintf(exact, sizeof exact, "problem %d", i);
        r[i] = verified(i, "v", exact);
    }
    assert_int_equal(sat_cache_add(cache, "checks", r, N), SAT_OK);
    assert_int_equal(count_of(cache, "checks"), SAT_VERIFIED_KEPT);
    assert_has(cache, "checks", &r[N - 1]);
    for (int i = 0; i < N; i++) { /* one race that is too large, then one of a third of what is kept, four times */
        char name[64];
        snprintf(name, sizeof name, "v%d", i);
        r[i] = raced("huge", 5, name, 1);
    }
    assert_int_equal(sat_cache_add(cache, "huge", r, N), SAT_OK);
    assert_int_equal(count_of(cache, "huge"), SAT_RACED_KEPT);
    for (int race = 0; race < 4; race++) {
        for (int i = 0; i < 341; i++) r[i].when = 10 + race, snprintf(r[i].race, sizeof r[i].race, "race %d", race);
        assert_int_equal(sat_cache_add(cache, "many", r, 341), SAT_OK);
    }
    assert_int_equal(count_of(cache, "many"), 3 * 341);
    free(r);
    sat_cache_close(cache);
}

/* ---- the cache ---- */

static void what_was_added_is_loaded_by_another_cache(void **state) {
    sat_cache *a = open_cache(*state), *b = open_cache(*state);
    sat_record one = full_record(), two = verified(7, "v", "exact");
    assert_int_equal(count_of(b, key), 0);
    assert_int_equal(sat_cache_add(a, key, &one, 1), SAT_OK);
    assert_has(b, key, &one);
    assert_int_equal(sat_cache_add(b, key, &two, 1), SAT_OK);
    assert_has(a, key, &one);
    assert_has(a, key, &two);
    assert_int_equal(count_of(a, key), 2);
    assert_int_equal(count_of(a, "another key"), 0);
    assert_string_equal(sat_cache_dir(a), *state);
    sat_cache_close(a);
    sat_cache_close(b);
}

static void adding_the_same_again_changes_no_file(void **state) {
    sat_cache *cache = open_cache(*state);
    char path[4200];
    struct stat before, after;
    sat_record r = full_record();
    assert_int_equal(sat_cache_add(cache, key, &r, 1), SAT_OK);
    assert_int_equal(stat(entry_path(path, *state, key), &before), 0);
    assert_int_equal(sat_cache_add(cache, key, &r, 1), SAT_OK);
    assert_int_equal(sat_cache_add(cache, key, NULL, 0), SAT_OK);
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    assert_int_equal(count_of(cache, key), 1);
    sat_cache_close(cache);
}

static void of_two_results_with_the_same_name_the_later_stays(void **state) {
    sat_cache *cache = open_cache(*state);
    sat_record early = verified(10, "v", "exact"), late = early;
    late.when = 20, late.verdict = SAT_VERDICT_WRONG;
    assert_int_equal(sat_cache_add(cache, key, &late, 1), SAT_OK);
    assert_int_equal(sat_cache_add(cache, key, &early, 1), SAT_OK);
    assert_int_equal(count_of(cache, key), 1);
    assert_has(cache, key, &late);
    sat_cache_close(cache);
}

static void records_that_cannot_be_stored_are_refused_and_the_others_kept(void **state) {
    sat_cache *cache = open_cache(*state);
    sat_record r[4] = {raced("r", 1, "v", 1), raced("r", 1, "tab\there", 1), raced("r", 1, "", 1),
                       raced("r", 1, "w", 1)};
    r[3].runs = -1;
    assert_int_equal(sat_cache_add(cache, key, r, 4), SAT_BAD_FORMAT);
    assert_int_equal(count_of(cache, key), 1);
    assert_int_equal(sat_cache_add(cache, "", r, 1), SAT_BAD_FORMAT);
    assert_int_equal(sat_cache_add(cache, "line\nbreak", r, 1), SAT_BAD_FORMAT);
    char long_key[SAT_KEY_CAPACITY + 1];
    memset(long_key, 'k', sizeof long_key);
    long_key[SAT_KEY_CAPACITY] = 0;
    assert_int_equal(sat_cache_add(cache, long_key, r, 1), SAT_BAD_FORMAT);
    assert_int_equal(count_of(cache, long_key), 0);
    long_key[SAT_KEY_CAPACITY - 1] = 0;
    assert_int_equal(sat_cache_add(cache, long_key, r, 1), SAT_OK);
    assert_int_equal(count_of(cache, long_key), 1);
    sat_cache_close(cache);
}

static void a_result_that_is_not_finite_or_has_an_odd_message_is_stored_all_the_same(void **state) {
    sat_cache *cache = open_cache(*state);
    sat_record r = raced("r", 1, "v", -1);
    sat_entry entry;
    r.verdict = SAT_VERDICT_WRONG, r.error = NAN, r.estimate_seconds = INFINITY;
    strcpy(r.message, "line\nbreak \xc3\xa9 tab\t");
    assert_int_equal(sat_cache_add(cache, key, &r, 1), SAT_OK);
    assert_int_equal(sat_cache_load(cache, key, &entry), SAT_OK);
    assert_int_equal(entry.count, 1);
    assert_true(entry.records[0].error == DBL_MAX && entry.records[0].estimate_seconds == DBL_MAX);
    assert_true(entry.records[0].seconds == 0);
    assert_string_equal(entry.records[0].message, "line?break ?? tab?");
    sat_entry_free(&entry);
    sat_cache_close(cache);
}

static void all_layers_are_read_and_the_first_is_written(void **state) {
    char user[4200], site[4200], shipped[4200], dirs[16384];
    sat_record r[3] = {raced("shipped", 1, "v", 1), raced("site", 2, "v", 1), raced("user", 3, "v", 1)};
    in(user, *state, "user"), in(site, *state, "site"), in(shipped, *state, "shipped");
    sat_cache *cache = open_cache(shipped);
    assert_int_equal(sat_cache_add(cache, key, &r[0], 1), SAT_OK);
    sat_cache_close(cache);
    cache = open_cache(site);
    assert_int_equal(sat_cache_add(cache, key, &r[1], 1), SAT_OK);
    sat_cache_close(cache);
    snprintf(dirs, sizeof dirs, "%s:%s/::%s", user, site, shipped);
    cache = open_cache(dirs);
    assert_string_equal(sat_cache_dir(cache), user);
    assert_int_equal(count_of(cache, key), 2);
    assert_int_equal(sat_cache_add(cache, key, &r[2], 1), SAT_OK);
    for (int i = 0; i < 3; i++) assert_has(cache, key, &r[i]);
    int64_t removed = -1;
    assert_int_equal(sat_cache_remove(cache, key, &removed), SAT_OK);
    assert_int_equal(removed, 1);
    assert_int_equal(count_of(cache, key), 2);
    sat_cache_close(cache);
    cache = open_cache(site);
    assert_int_equal(count_of(cache, key), 1);
    sat_cache_close(cache);
}

static void a_mark_counts_in_the_first_layer_and_for_its_owner(void **state) {
    char a[4200], b[4200], dirs[9000];
    sat_record r = full_record(), plain = r;
    plain.checked_by[0] = 0;
    in(a, *state, "a"), in(b, *state, "b");
    sat_cache *cache = open_cache(b);
    assert_int_equal(sat_cache_add(cache, key, &r, 1), SAT_OK);
    assert_has(cache, key, &r);
    sat_cache_set_fingerprint(cache, "another's");
    assert_has(cache, key, &plain);
    assert_int_equal(sat_cache_add(cache, key,
                                   &(sat_record){.kind = SAT_RECORD_VERIFIED,
                                                 .verdict = SAT_VERDICT_OK,
                                                 .variant = "w",
                                                 .checked_by = "another's"},
                                   1),
                     SAT_OK);
    sat_cache_close(cache);
    cache = open_cache(b); /* both fingerprints are on the disk still */
    assert_has(cache, key, &r);
    sat_cache_close(cache);
    snprintf(dirs, sizeof dirs, "%s:%s", a, b);
    cache = open_cache(dirs);
    assert_has(cache, key, &plain);
    assert_int_equal(sat_cache_add(cache, key, &r, 1), SAT_OK);
    assert_has(cache, key, &r); /* the first layer has it now */
    sat_cache_close(cache);
}

static bool count_visit(void *user, const char *k, const char *text) {
    (void)k, (void)text;
    return ++*(int *)user < 100;
}

static void memory_only_keeps_everything_but_writes_nothing(void **state) {
    sat_cache *cache = open_cache("");
    sat_record r = full_record();
    int64_t n = 0;
    int visits = 0;
    char file[4200];
    assert_string_equal(sat_cache_dir(cache), "");
    assert_int_equal(sat_cache_add(cache, key, &r, 1), SAT_OK);
    assert_int_equal(sat_cache_add(cache, "second", &r, 1), SAT_OK);
    assert_has(cache, key, &r);
    assert_int_equal(sat_cache_each(cache, count_visit, &visits), SAT_OK);
    assert_int_equal(visits, 2);
    assert_int_equal(sat_cache_export_file(cache, in(file, *state, "export.txt")), SAT_OK);
    assert_int_equal(sat_cache_remove(cache, "second", &n), SAT_OK);
    assert_int_equal(n, 1);
    assert_int_equal(sat_cache_import_file(cache, file, &n), SAT_OK);
    assert_int_equal(n, 2);
    assert_has(cache, key, &r);
    r.checked_by[0] = 0; /* what comes from a file nobody answers for */
    assert_has(cache, "second", &r);
    assert_int_equal(sat_cache_remove(cache, NULL, &n), SAT_OK);
    assert_int_equal(n, 2);
    assert_int_equal(count_of(cache, key), 0);
    assert_true(sat_cache_tuning_lock(cache, 0));
    sat_cache_tuning_unlock(cache);
    sat_cache_close(cache);
}

static void memory_is_bounded(void **state) {
    (void)state;
    sat_cache *cache = open_cache("");
    sat_record r = full_record();
    int visits = -100000;
    for (int i = 0; i < 4200; i++) {
        char name[64];
        snprintf(name, sizeof name, "key %d", i);
        assert_int_equal(sat_cache_add(cache, name, &r, 1), SAT_OK);
    }
    assert_int_equal(sat_cache_each(cache, count_visit, &visits), SAT_OK);
    assert_int_equal(visits, -100000 + 4096);
    assert_int_equal(count_of(cache, "key 0"), 0);
    assert_int_equal(count_of(cache, "key 4199"), 1);
    sat_cache_close(cache);
}

static void the_default_folder_follows_the_environment(void **state) {
    char *saved[3] = {NULL};
    static const char *const names[] = {"SPARSE_AUTOTUNE_CACHE", "XDG_CACHE_HOME", "HOME"};
    char expected[4200];
    for (int i = 0; i < 3; i++) saved[i] = getenv(names[i]) ? strdup(getenv(names[i])) : NULL;
    static const struct {
        const char *own, *xdg, *home, *expected;
    } cases[] = {{"/a:/b", "/x", "/h", "/a"},
                 {"", "/x", "/h", ""},
                 {NULL, "/x:y", "/h", "/x:y/sparse_autotune"},
                 {NULL, "", "/h", "/h/.cache/sparse_autotune"},
                 {NULL, "relative", "/h", "/h/.cache/sparse_autotune"},
                 {NULL, NULL, "/h", "/h/.cache/sparse_autotune"},
                 {NULL, NULL, NULL, ""},
                 {NULL, NULL, "", ""}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *values[3] = {cases[i].own, cases[i].xdg, cases[i].home};
        for (int j = 0; j < 3; j++) values[j] ? setenv(names[j], values[j], 1) : unsetenv(names[j]);
        sat_cache *cache = open_cache(NULL);
        assert_string_equal(sat_cache_dir(cache), cases[i].expected);
        sat_cache_close(cache);
    }
    for (int i = 0; i < 3; i++) {
        saved[i] ? setenv(names[i], saved[i], 1) : unsetenv(names[i]);
        free(saved[i]);
    }
    char *here = getcwd(NULL, 0);
    assert_int_equal(chdir(*state), 0);
    sat_cache *cache = open_cache("relative/folder/");
    assert_int_equal(chdir("/"), 0);
    sat_record r = full_record();
    assert_int_equal(sat_cache_add(cache, key, &r, 1), SAT_OK);
    assert_string_equal(sat_cache_dir(cache), in(expected, *state, "relative/folder"));
    assert_int_equal(access(expected, F_OK), 0);
    sat_cache_close(cache);
    assert_int_equal(chdir(here), 0);
    free(here);
}

static void devices_have_folders_of_their_own(void **state) {
    sat_cache *a, *b, *hidden;
    char folder[4200], command[4400];
    sat_record r = full_record();
    assert_int_equal(sat_cache_open(*state, "../../etc/x y", NULL, &a), SAT_OK);
    assert_int_equal(sat_cache_open(*state, "../../etc/x_y", NULL, &b), SAT_OK);
    assert_int_equal(sat_cache_open(*state, "..", NULL, &hidden), SAT_OK);
    assert_int_equal(sat_cache_add(a, key, &r, 1), SAT_OK);
    assert_int_equal(count_of(b, key), 0);
    device_folder(*state, folder); /* inside, and not hidden */
    assert_non_null(strstr(folder, "/etc_x_y_"));
    assert_int_equal(sat_cache_add(hidden, key, &r, 1), SAT_OK);
    assert_int_equal(count_files(*state, ""), 2);
    sat_cache_close(a);
    sat_cache_close(b);
    sat_cache_close(hidden);
    /* A file carried by hand into another device's folder is no answer there. */
    snprintf(command, sizeof command, "cd '%s' && cp etc_x_y_*/*.txt [0-9]*/", (char *)*state);
    assert_int_equal(system(command), 0);
    assert_int_equal(sat_cache_open(*state, "..", NULL, &hidden), SAT_OK);
    assert_int_equal(count_of(hidden, key), 0);
    sat_cache_close(hidden);
}

/* Puts a valid file of another key where `key` would go. */
static void plant_collision(const char *dir, const char *own, const char *foreign, const sat_record *r, int slot) {
    char path[4200];
    sat_text text = {0};
    sat_entry entry = {(sat_record *)(uintptr_t)r, 1};
    sat_entry_format(&text, device, foreign, &entry);
    entry_path(path, dir, own);
    if (slot) snprintf(strrchr(path, '.'), 16, "-%d.txt", slot);
    write_file(path, text.data, text.length);
    sat_text_free(&text);
}

static void keys_with_the_same_hash_do_not_disturb_each_other(void **state) {
    sat_cache *cache = open_cache(*state);
    char path[4200];
    size_t length;
    sat_record r = full_record(), other = raced("theirs", 3, "w", 1);
    assert_int_equal(sat_cache_add(cache, "makes the folder", &r, 1), SAT_OK);
    plant_collision(*state, key, "another key", &other, 0);
    assert_int_equal(count_of(cache, key), 0);
    assert_int_equal(sat_cache_add(cache, key, &r, 1), SAT_OK);
    assert_has(cache, key, &r);
    char *text = read_file(entry_path(path, *state, key), &length);
    assert_non_null(strstr(text, "key=another key\n"));
    free(text);
    /* The one in the first slot goes: the second takes its place and is still found. */
    assert_int_equal(unlink(path), 0);
    plant_collision(*state, key, key, &other, 0);
    int64_t n;
    plant_collision(*state, key, "third key", &other, 1);
    assert_int_equal(sat_cache_remove(cache, key, &n), SAT_OK);
    assert_int_equal(n, 1);
    text = read_file(path, &length);
    assert_non_null(strstr(text, "key=third key\n"));
    free(text);
    assert_int_equal(sat_cache_add(cache, key, &r, 1), SAT_OK);
    assert_has(cache, key, &r);
    assert_int_equal(count_of(cache, key), 1);
    sat_cache_close(cache);
}

static void a_hash_with_all_slots_taken_keeps_results_in_memory(void **state) {
    sat_cache *cache = open_cache(*state);
    sat_record r = full_record();
    assert_int_equal(sat_cache_add(cache, "makes the folder", &r, 1), SAT_OK);
    for (int slot = 0; slot < 8; slot++) plant_collision(*state, key, "another key", &r, slot);
    assert_int_equal(sat_cache_add(cache, key, &r, 1), SAT_IO);
    assert_has(cache, key, &r);
    sat_cache_close(cache);
}

typedef struct visited {
    int count, stop_after;
    char keys[8][64];
} visited;

static bool visit_entry(void *user, const char *k, const char *text) {
    visited *v = user;
    char found[SAT_KEY_CAPACITY];
    sat_entry entry;
    assert_int_equal(sat_entry_parse(text, strlen(text), found, sizeof found, &entry), SAT_OK);
    assert_string_equal(found, k);
    assert_true(entry.count > 0);
    sat_entry_free(&entry);
    snprintf(v->keys[v->count++ % 8], 64, "%s", k);
    return v->count != v->stop_after;
}

static void entries_are_visited_by_key_merged_over_layers(void **state) {
    char a[4200], b[4200], dirs[9000];
    sat_record r = full_record(), other = raced("other", 9, "v", 1);
    in(a, *state, "a"), in(b, *state, "b");
    sat_cache *cache = open_cache(b);
    assert_int_equal(sat_cache_add(cache, "key 2", &other, 1), SAT_OK);
    assert_int_equal(sat_cache_add(cache, "key 1", &other, 1), SAT_OK);
    sat_cache_close(cache);
    snprintf(dirs, sizeof dirs, "%s:%s", a, b);
    cache = open_cache(dirs);
    assert_int_equal(sat_cache_add(cache, "key 3", &r, 1), SAT_OK);
    assert_int_equal(sat_cache_add(cache, "key 2", &r, 1), SAT_OK);
    visited v = {0};
    assert_int_equal(sat_cache_each(cache, visit_entry, &v), SAT_OK);
    assert_int_equal(v.count, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(v.keys[i][4], '1' + i);
    v = (visited){.stop_after = 2};
    assert_int_equal(sat_cache_each(cache, visit_entry, &v), SAT_OK);
    assert_int_equal(v.count, 2);
    sat_cache_close(cache);
}

static void removing_takes_the_key_or_all_of_this_device(void **state) {
    sat_cache *cache = open_cache(*state), *other;
    sat_record r = full_record();
    int64_t n;
    assert_int_equal(sat_cache_open(*state, "another device", NULL, &other), SAT_OK);
    assert_int_equal(sat_cache_remove(cache, NULL, &n), SAT_OK); /* no folder yet */
    assert_int_equal(n, 0);
    assert_int_equal(sat_cache_add(other, "one", &r, 1), SAT_OK);
    for (const char **k = (const char *[]){"one", "two", "three", NULL}; *k; k++)
        assert_int_equal(sat_cache_add(cache, *k, &r, 1), SAT_OK);
    assert_int_equal(sat_cache_remove(cache, "four", &n), SAT_OK);
    assert_int_equal(n, 0);
    assert_int_equal(sat_cache_remove(cache, "two", NULL), SAT_OK);
    assert_int_equal(count_of(cache, "two"), 0);
    assert_int_equal(count_of(cache, "one"), 1);
    assert_int_equal(sat_cache_remove(cache, NULL, &n), SAT_OK);
    assert_int_equal(n, 2);
    assert_int_equal(count_of(cache, "one"), 0);
    assert_int_equal(count_of(other, "one"), 1);
    sat_cache_close(cache);
    sat_cache_close(other);
}

static void loading_a_key_takes_well_under_a_millisecond(void **state) {
    sat_cache *cache = open_cache(*state);
    enum { RUNS = 301 };
    double times[2][RUNS];
    for (int race = 0; race < 8; race++) {
        sat_record r[10];
        for (int i = 0; i < 10; i++) {
            char id[64], name[64];
            snprintf(id, sizeof id, "20240101-%d", race);
            snprintf(name, sizeof name, "cpu_matmul_f32_any_avx2_%d", i);
            r[i] = raced(id, 1000 + race, name, 1.2345678e-3 / 7 * (i + 1));
        }
        if (race == 0) assert_int_equal(sat_cache_add(cache, "one race", r, 10), SAT_OK);
        assert_int_equal(sat_cache_add(cache, "eight races", r, 10), SAT_OK);
    }
    for (int which = 0; which < 2; which++)
        for (int i = 0; i < RUNS; i++) {
            double start = seconds_now();
            assert_int_equal(count_of(cache, which ? "eight races" : "one race"), which ? 80 : 10);
            double t = seconds_now() - start;
            int at = i;
            for (; at > 0 && times[which][at - 1] > t; at--) times[which][at] = times[which][at - 1];
            times[which][at] = t;
        }
    print_message("load: one race of 10 %.1f us, eight races of 10 %.1f us (medians)\n", times[0][RUNS / 2] * 1e6,
                  times[1][RUNS / 2] * 1e6);
    if (!SANITIZED) assert_true(times[1][RUNS / 2] < 1e-3);
    sat_cache_close(cache);
}

/* ---- the untuned list ---- */

typedef struct pairs_seen {
    int count;
    char first[64], last[64];
} pairs_seen;

static bool visit_pair(void *user, const char *k, const char *exact) {
    pairs_seen *seen = user;
    snprintf(seen->count ? seen->last : seen->first, 64, "%s|%s", k, exact);
    seen->count++;
    return true;
}

static pairs_seen untuned_of(sat_cache *cache) {
    pairs_seen seen = {0};
    assert_int_equal(sat_cache_each_untuned(cache, visit_pair, &seen), SAT_OK);
    return seen;
}

static void untuned_problems_are_noted_once_and_forgotten_when_tuned(void **state) {
    for (int memory = 0; memory < 2; memory++) {
        sat_cache *cache = open_cache(memory ? "" : *state);
        assert_int_equal(untuned_of(cache).count, 0);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(sat_cache_note_untuned(cache, "k1", "m=1"), SAT_OK);
            assert_int_equal(sat_cache_note_untuned(cache, "k1", "m=2"), SAT_OK);
            assert_int_equal(sat_cache_note_untuned(cache, "k2", ""), SAT_OK);
        }
        assert_int_equal(sat_cache_note_untuned(cache, "bad\tkey", ""), SAT_BAD_FORMAT);
        assert_int_equal(untuned_of(cache).count, 3);
        assert_string_equal(untuned_of(cache).first, "k1|m=1");
        if (!memory) {
            sat_cache *second = open_cache(*state);
            assert_int_equal(untuned_of(second).count, 3);
            sat_cache_forget_untuned(second, "k2");
            assert_int_equal(untuned_of(cache).count, 2);
            sat_cache_close(second);
        } else sat_cache_forget_untuned(cache, "k2");
        sat_cache_forget_untuned(cache, "k1");
        sat_cache_forget_untuned(cache, "k1");
        assert_int_equal(untuned_of(cache).count, 0);
        sat_cache_close(cache);
    }
}

static void the_untuned_list_is_bounded_and_survives_nonsense(void **state) {
    sat_cache *cache = open_cache(*state);
    char folder[4200], path[4200];
    assert_int_equal(sat_cache_note_untuned(cache, "first", "x"), SAT_OK);
    device_folder(*state, folder);
    in(path, folder, "untuned.txt");
    sat_text text = {0};
    sat_text_adds(&text, "sparse_autotune untuned 1.0\n\n\t\n\tx\nonly a key\nbad\x01\tx\na\tb\tc\n");
    for (int i = 0; i < SAT_UNTUNED_KEPT + 50; i++) {
        char line[64];
        snprintf(line, sizeof line, "key %d\tm=%d\n", i, i);
        sat_text_adds(&text, line);
    }
    sat_text_adds(&text, "cut off");
    write_file(path, text.data, text.length);
    sat_text_free(&text);
    assert_int_equal(sat_cache_note_untuned(cache, "last", "y"), SAT_OK);
    pairs_seen seen = untuned_of(cache);
    assert_int_equal(seen.count, SAT_UNTUNED_KEPT);
    assert_string_equal(seen.last, "last|y");
    write_file(path, "garbage", 7);
    assert_int_equal(sat_cache_note_untuned(cache, "after garbage", "z"), SAT_OK);
    assert_int_equal(untuned_of(cache).count, 1);
    static const char newer[] = "sparse_autotune untuned 2.0\n???\n";
    write_file(path, newer, strlen(newer));
    assert_int_equal(sat_cache_note_untuned(cache, "beside a later version", "z"), SAT_UNSUPPORTED);
    assert_int_equal(untuned_of(cache).count, 1);
    size_t length;
    char *now = read_file(path, &length);
    assert_string_equal(now, newer);
    free(now);
    sat_cache_close(cache);
}

/* Another cache on the folder stands for another process. */
static void what_another_process_adds_is_found_when_it_matters(void **state) {
    sat_entry entry;
    sat_record one = raced("one", 1, "v", 1), two = raced("two", 2, "v", 1);
    sat_cache *ours = open_cache(*state), *theirs = open_cache(*state);
    assert_int_equal(sat_cache_find(ours, key, false, &entry), SAT_OK);
    assert_int_equal(entry.count, 0);
    assert_int_equal(sat_cache_add(theirs, key, &one, 1), SAT_OK);
    assert_int_equal(sat_cache_find(ours, key, false, &entry), SAT_OK); /* what was empty is looked at again */
    assert_true(has(&entry, &one));
    sat_entry_free(&entry);
    assert_int_equal(sat_cache_add(theirs, key, &two, 1), SAT_OK);
    assert_int_equal(sat_cache_find(ours, key, false, &entry), SAT_OK);
    assert_int_equal(entry.count, 1); /* as this process knows it */
    sat_entry_free(&entry);
    assert_int_equal(sat_cache_find(ours, key, true, &entry), SAT_OK);
    assert_true(has(&entry, &one) && has(&entry, &two));
    sat_entry_free(&entry);
    assert_int_equal(sat_cache_remove(ours, key, NULL), SAT_OK);
    assert_int_equal(sat_cache_find(ours, key, false, &entry), SAT_OK);
    assert_int_equal(entry.count, 0);
    sat_cache_close(ours);
    sat_cache_close(theirs);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST_IN_FOLDER(what_another_process_adds_is_found_when_it_matters),
        TEST_IN_FOLDER(only_the_last_races_are_kept_and_those_whole),
        TEST_IN_FOLDER(the_number_of_records_is_bounded),
        TEST_IN_FOLDER(what_was_added_is_loaded_by_another_cache),
        TEST_IN_FOLDER(adding_the_same_again_changes_no_file),
        TEST_IN_FOLDER(of_two_results_with_the_same_name_the_later_stays),
        TEST_IN_FOLDER(records_that_cannot_be_stored_are_refused_and_the_others_kept),
        TEST_IN_FOLDER(a_result_that_is_not_finite_or_has_an_odd_message_is_stored_all_the_same),
        TEST_IN_FOLDER(all_layers_are_read_and_the_first_is_written),
        TEST_IN_FOLDER(a_mark_counts_in_the_first_layer_and_for_its_owner),
        TEST_IN_FOLDER(memory_only_keeps_everything_but_writes_nothing),
        cmocka_unit_test(memory_is_bounded),
        TEST_IN_FOLDER(the_default_folder_follows_the_environment),
        TEST_IN_FOLDER(devices_have_folders_of_their_own),
        TEST_IN_FOLDER(keys_with_the_same_hash_do_not_disturb_each_other),
        TEST_IN_FOLDER(a_hash_with_all_slots_taken_keeps_results_in_memory),
        TEST_IN_FOLDER(entries_are_visited_by_key_merged_over_layers),
        TEST_IN_FOLDER(removing_takes_the_key_or_all_of_this_device),
        TEST_IN_FOLDER(loading_a_key_takes_well_under_a_millisecond),
        TEST_IN_FOLDER(untuned_problems_are_noted_once_and_forgotten_when_tuned),
        TEST_IN_FOLDER(the_untuned_list_is_bounded_and_survives_nonsense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
