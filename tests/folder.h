/* A folder of a test's own, and files in it. Include it after cmocka.h. */
#ifndef SAT_TEST_FOLDER_H
#define SAT_TEST_FOLDER_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static inline int remove_entry(const char *path, const struct stat *info, int flag, struct FTW *ftw) {
    (void)info, (void)flag, (void)ftw;
    return remove(path);
}

static inline void remove_tree(const char *path) { nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS); }

static inline int make_folder(void **state) {
    const char *base = getenv("TMPDIR");
    char *path = malloc(4096);
    if (!path) return -1;
    snprintf(path, 4096, "%s/sat_cache_XXXXXX", base && base[0] == '/' ? base : "/tmp");
    if (!mkdtemp(path)) return -1;
    chmod(path, 0755);
    *state = path;
    return 0;
}

static inline int drop_folder(void **state) {
    remove_tree(*state);
    free(*state);
    return 0;
}

#define TEST_IN_FOLDER(name) cmocka_unit_test_setup_teardown(name, make_folder, drop_folder)

static inline const char *in(char out[4200], const char *folder, const char *name) {
    assert_true(strlen(folder) + strlen(name) + 2 <= 4200);
    strcpy(out, folder);
    strcat(out, "/");
    return strcat(out, name);
}

static inline void write_file(const char *path, const char *text, size_t length) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, length, f), length);
    assert_int_equal(fclose(f), 0);
}

static inline char *read_file(const char *path, size_t *length) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *text = calloc(1, 16 << 20);
    assert_non_null(text);
    *length = fread(text, 1, (16 << 20) - 1, f);
    fclose(f);
    return text;
}

#endif
