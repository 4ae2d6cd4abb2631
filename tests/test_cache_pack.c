/* Export, import and merging of exports. */
#define _XOPEN_SOURCE 700
#define _DEFAULT_SOURCE
#include "cache_helpers.h"

static sat_cache *open_as(const char *dir, const char *identity) {
    sat_cache *cache;
    assert_int_equal(sat_cache_open(dir, identity, NULL, &cache), SAT_OK);
    return cache;
}

/* A cache of three devices with keys `from` to `to`, each with a race of its own and one that all share. */
static void fill(const char *dir, int from, int to, const char *race) {
    static const char *const devices[] = {"cpu B", "cpu A/1", "cuda C"};
    for (int d = 0; d < 3; d++) {
        sat_cache *cache = open_as(dir, devices[d]);
        for (int i = from; i < to; i++) {
            char name[64];
            snprintf(name, sizeof name, "key %d", i);
            sat_record r[3] = {raced(race, 100 + i, "v", 1e-3), raced(race, 100 + i, "w", 2e-3),
                               verified(50 + i, "v", "exact")};
            assert_int_equal(sat_cache_add(cache, name, r, 3), SAT_OK);
        }
        sat_cache_close(cache);
    }
}

static char *export_of(const char *dir, const char *file, size_t *length) {
    sat_cache *cache = open_as(dir, device);
    assert_int_equal(sat_cache_export_file(cache, file), SAT_OK);
    sat_cache_close(cache);
    return read_file(file, length);
}

static sat_status import_into(const char *dir, const char *file, int64_t *entries) {
    sat_cache *cache = open_as(dir, device);
    sat_status status = sat_cache_import_file(cache, file, entries);
    sat_cache_close(cache);
    return status;
}

static void an_import_into_an_empty_cache_exports_the_same(void **state) {
    char a[4200], b[4200], file_a[4200], file_b[4200];
    size_t na, nb;
    int64_t entries;
    fill(in(a, *state, "a"), 0, 5, "race");
    char *first = export_of(a, in(file_a, *state, "a.txt"), &na);
    assert_int_equal(import_into(in(b, *state, "b"), file_a, &entries), SAT_OK);
    assert_int_equal(entries, 15);
    char *second = export_of(b, in(file_b, *state, "b.txt"), &nb);
    assert_string_equal(first, second);
    assert_int_equal(import_into(b, file_a, &entries), SAT_OK); /* again: nothing changes */
    free(second);
    second = export_of(b, file_b, &nb);
    assert_string_equal(first, second);
    char *cpu_a = strstr(first, "device=cpu A/1\n"), *cpu_b = strstr(first, "device=cpu B\n");
    assert_true(cpu_a && cpu_b && cpu_a < cpu_b); /* sorted */
    free(first);
    free(second);
}

static void merging_two_exports_gives_the_union_in_either_order(void **state) {
    char a[4200], b[4200], ab[4200], ba[4200], joined[4200], fa[4200], fb[4200], out[4200], command[16384];
    size_t n;
    int64_t entries;
    fill(in(a, *state, "a"), 0, 5, "race of a");
    fill(in(b, *state, "b"), 3, 8, "race of b");
    free(export_of(a, in(fa, *state, "a.txt"), &n));
    free(export_of(b, in(fb, *state, "b.txt"), &n));
    assert_int_equal(import_into(in(ab, *state, "ab"), fa, &entries), SAT_OK);
    assert_int_equal(import_into(ab, fb, &entries), SAT_OK);
    assert_int_equal(import_into(in(ba, *state, "ba"), fb, &entries), SAT_OK);
    assert_int_equal(import_into(ba, fa, &entries), SAT_OK);
    snprintf(command, sizeof command, "cat '%s' '%s' > '%s/cat.txt'", fa, fb, (char *)*state);
    assert_int_equal(system(command), 0);
    assert_int_equal(import_into(in(joined, *state, "joined"), in(out, *state, "cat.txt"), &entries), SAT_OK);
    assert_int_equal(entries, 30);
    char *one = export_of(ab, in(out, *state, "ab.txt"), &n), *two = export_of(ba, in(out, *state, "ba.txt"), &n);
    char *three = export_of(joined, in(out, *state, "joined.txt"), &n);
    assert_string_equal(one, two);
    assert_string_equal(one, three);
    assert_non_null(strstr(one, "entries=24\n"));
    sat_cache *cache = open_as(ab, "cuda C");
    assert_int_equal(count_of(cache, "key 4"), 5); /* two races of two, and one check that both have */
    sat_cache_close(cache);
    free(one);
    free(two);
    free(three);
}

static void an_entry_file_alone_can_be_imported(void **state) {
    char a[4200], b[4200], path[4200];
    int64_t entries;
    sat_cache *cache = open_cache(in(a, *state, "a"));
    sat_record r = raced("r", 1, "v", 1);
    assert_int_equal(sat_cache_add(cache, "k", &r, 1), SAT_OK);
    sat_cache_close(cache);
    assert_int_equal(import_into(in(b, *state, "b"), entry_path(path, a, "k"), &entries), SAT_OK);
    assert_int_equal(entries, 1);
    cache = open_cache(b);
    assert_has(cache, "k", &r);
    sat_cache_close(cache);
}

static void an_empty_cache_exports_and_imports(void **state) {
    char a[4200], file[4200];
    size_t n;
    int64_t entries = -1;
    char *text = export_of(in(a, *state, "a"), in(file, *state, "a.txt"), &n);
    assert_string_equal(text, "sparse_autotune export 1.2\nentries=0\n");
    free(text);
    assert_int_equal(import_into(a, file, &entries), SAT_OK);
    assert_int_equal(entries, 0);
    assert_int_not_equal(access(a, F_OK), 0);
}

static void a_damaged_export_changes_nothing(void **state) {
    char a[4200], b[4200], file[4200];
    size_t n;
    int64_t entries = -1;
    fill(in(a, *state, "a"), 0, 1, "race");
    char *text = export_of(a, in(file, *state, "a.txt"), &n);
    in(b, *state, "b");
    for (size_t cut = 0; cut < n; cut++) assert_int_equal(sat_pack_parse(text, cut, NULL, NULL), SAT_BAD_FORMAT);
    for (size_t i = 0; i < n; i++)
        for (int bit = 0; bit < 8; bit++) {
            text[i] = (char)(text[i] ^ (1 << bit));
            bool minor = i == strlen("sparse_autotune export 1."); /* says nothing about what follows */
            if (!minor && sat_pack_parse(text, n, NULL, NULL) == SAT_OK)
                fail_msg("byte %zu, bit %d went unseen", i, bit);
            text[i] = (char)(text[i] ^ (1 << bit));
        }
    write_file(file, text, n - 20); /* all entries but the last are whole */
    assert_int_equal(import_into(b, file, &entries), SAT_BAD_FORMAT);
    assert_int_equal(entries, 0);
    assert_int_not_equal(access(b, F_OK), 0);
    write_file(file, "", 0);
    assert_int_equal(import_into(b, file, &entries), SAT_BAD_FORMAT);
    static const char newer[] = "sparse_autotune export 2.0\nwhatever\n";
    write_file(file, newer, strlen(newer));
    assert_int_equal(import_into(b, file, &entries), SAT_UNSUPPORTED);
    assert_int_equal(import_into(b, *state, &entries), SAT_IO); /* a folder */
    assert_int_equal(import_into(b, in(file, *state, "none"), &entries), SAT_IO);
    assert_non_null(strstr(sat_last_error(), "none"));
    free(text);
}

static int outside(const char *path, const struct stat *info, int flag, struct FTW *ftw) {
    const char *name = path + ftw->base;
    (void)info;
    return flag == FTW_F && (strstr(name, "escape") || strstr(name, "passwd"));
}

static void strings_in_an_import_never_become_paths(void **state) {
    static const char *const names[] = {"../escape",      "/etc/passwd", "..",        ".",   "../../../../escape",
                                        "a/../../escape", "~/escape",    "$(escape)", "%s%n"};
    char file[4200], dir[4200], nested[4200];
    int64_t entries;
    sat_text text = {0};
    sat_record r = raced("../escape", 1, "/etc/passwd", 1);
    sat_entry entry = {&r, 1};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        for (size_t j = 0; j < sizeof names / sizeof names[0]; j++) sat_entry_format(&text, names[i], names[j], &entry);
    write_file(in(file, *state, "import"), text.data, text.length);
    in(nested, *state, "deep");
    assert_int_equal(mkdir(nested, 0755), 0);
    assert_int_equal(import_into(in(dir, nested, "cache"), file, &entries), SAT_OK);
    assert_int_equal(entries, 81);
    assert_int_equal(count_files(dir, ""), 9);    /* a folder a device, all inside, none hidden */
    assert_int_equal(count_files(nested, ""), 1); /* nothing beside the cache */
    assert_int_equal(nftw(*state, outside, 16, FTW_PHYS), 0);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        sat_cache *cache = open_as(dir, names[i]);
        for (size_t j = 0; j < sizeof names / sizeof names[0]; j++) assert_has(cache, names[j], &r);
        sat_cache_close(cache);
    }
    sat_text_free(&text);
}

static void an_import_is_trimmed_like_everything_else(void **state) {
    char file[4200], dir[4200];
    int64_t entries;
    sat_entry entry = {calloc(3000, sizeof(sat_record)), 3000};
    sat_text text = {0};
    for (int i = 0; i < 3000; i++) {
        char exact[64];
        snprintf(exact, sizeof exact, "problem %d", i);
        entry.records[i] = verified(i, "v", exact);
    }
    sat_entry_format(&text, device, "k", &entry);
    write_file(in(file, *state, "import"), text.data, text.length);
    assert_int_equal(import_into(in(dir, *state, "cache"), file, &entries), SAT_OK);
    sat_cache *cache = open_cache(dir);
    assert_int_equal(count_of(cache, "k"), SAT_VERIFIED_KEPT);
    assert_has(cache, "k", &entry.records[2999]);
    sat_cache_close(cache);
    sat_entry_free(&entry);
    sat_text_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST_IN_FOLDER(an_import_into_an_empty_cache_exports_the_same),
        TEST_IN_FOLDER(merging_two_exports_gives_the_union_in_either_order),
        TEST_IN_FOLDER(an_entry_file_alone_can_be_imported),
        TEST_IN_FOLDER(an_empty_cache_exports_and_imports),
        TEST_IN_FOLDER(a_damaged_export_changes_nothing),
        TEST_IN_FOLDER(strings_in_an_import_never_become_paths),
        TEST_IN_FOLDER(an_import_is_trimmed_like_everything_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
