/* What the cache's tests share: a folder of their own, made-up records, and looking at files from outside. */
#ifndef CACHE_HELPERS_H
#define CACHE_HELPERS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "folder.h"

#include "cache/cache.h"
#include "cache/cache_file.h"

#include "sanitized.h"

static const char key[] = "matmul f32 m=512 n=512 k=512 block=16x16 density=0.125 skew=1";
static const char fingerprint[] = "0123456789abcdef"; /* of whoever opens a cache here */
static const char device[] = "cpu Some Model 9/64 (2 cores, AVX2) ../threads 2";

/* ---- the cache's folders ---- */

/* The first (and in these tests only) device folder below a cache folder. */
static inline void device_folder(const char *dir, char out[4200]) {
    DIR *d = opendir(dir);
    assert_non_null(d);
    out[0] = 0;
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.') in(out, dir, e->d_name);
    closedir(d);
    assert_true(out[0]);
}

static inline bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n >= m && !strcmp(name + n - m, end);
}

static inline int count_files(const char *folder, const char *ending) {
    DIR *d = opendir(folder);
    int n = 0;
    if (!d) return 0;
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.' && ends_with(e->d_name, ending);
    closedir(d);
    return n;
}

/* Where a key's file is, in its first slot. */
static inline const char *entry_path(char out[4200], const char *dir, const char *key) {
    char folder[4200], name[64];
    device_folder(dir, folder);
    snprintf(name, sizeof name, "%016" PRIx64 ".txt", sat_checksum(key, strlen(key)));
    return in(out, folder, name);
}

/* Every entry file of a folder must parse; gives how many there are. */
static inline int all_valid(const char *folder) {
    DIR *d = opendir(folder);
    int n = 0;
    if (!d) return 0;
    for (struct dirent *e; (e = readdir(d));) {
        char path[4200], key[SAT_KEY_CAPACITY];
        sat_entry entry;
        size_t length;
        if (!ends_with(e->d_name, ".txt") || !strcmp(e->d_name, "untuned.txt") || !strcmp(e->d_name, "rates.txt"))
            continue;
        char *text = read_file(in(path, folder, e->d_name), &length);
        if (sat_entry_parse(text, length, key, sizeof key, &entry) != SAT_OK)
            fail_msg("%s is not valid:\n%.2000s", path, text);
        sat_entry_free(&entry);
        free(text);
        n++;
    }
    closedir(d);
    return n;
}

/* ---- records ---- */

static inline void put(char *to, size_t capacity, const char *from) {
    assert_true(strlen(from) < capacity);
    strcpy(to, from);
}

static inline sat_record raced(const char *race, int64_t when, const char *variant, double seconds) {
    sat_record r = {.kind = SAT_RECORD_RACED, .when = when, .verdict = SAT_VERDICT_OK, .seconds = seconds, .runs = 9};
    put(r.race, sizeof r.race, race);
    put(r.variant, sizeof r.variant, variant);
    strcpy(r.revision, "1");
    strcpy(r.full_key, "op=matmul m=512 n=512 k=512 block=16x16 stored=128");
    r.spread = seconds / 50, r.error = 1.2345678901234567e-7, r.estimate_seconds = seconds * 1.1;
    r.prepare_seconds = 1e-6 / 3, r.workspace_bytes = 1 << 20, r.may_win = true;
    return r;
}

static inline sat_record verified(int64_t when, const char *variant, const char *exact) {
    sat_record r = {.kind = SAT_RECORD_VERIFIED, .when = when, .verdict = SAT_VERDICT_OK, .error = 3e-8};
    put(r.variant, sizeof r.variant, variant);
    put(r.full_key, sizeof r.full_key, exact);
    strcpy(r.revision, "1");
    return r;
}

/* Every field in use. */
static inline sat_record full_record(void) {
    sat_record r = raced("20240101-1234-1", 1704067200, "cpu_matmul_f32_any_avx2_6x16", 0.00123456789012345678);
    r.verdict = SAT_VERDICT_WRONG, r.workspace_bytes = INT64_MAX, r.runs = 2147483647;
    r.least_seconds = 0.001 / 3, r.noisy = true, r.threads = 3;
    strcpy(r.revision, "OpenBLAS 0.3.21 (a=b)");
    strcpy(r.message, "element (3, 7) is 1.5 = not 2 | bound 1e-6");
    strcpy(r.checked_by, fingerprint), strcpy(r.pattern, "fedcba9876543210");
    return r;
}

static inline bool has(const sat_entry *entry, const sat_record *record) {
    for (size_t i = 0; i < entry->count; i++)
        if (sat_record_same(&entry->records[i], record)) return true;
    return false;
}

static inline sat_cache *open_cache(const char *dirs) {
    sat_cache *cache;
    assert_int_equal(sat_cache_open(dirs, device, NULL, &cache), SAT_OK);
    sat_cache_set_fingerprint(cache, fingerprint);
    return cache;
}

static inline void assert_has(sat_cache *cache, const char *key, const sat_record *record) {
    sat_entry entry;
    assert_int_equal(sat_cache_load(cache, key, &entry), SAT_OK);
    if (!has(&entry, record)) fail_msg("%s lacks %s %s", key, record->race, record->full_key);
    sat_entry_free(&entry);
}

static inline size_t count_of(sat_cache *cache, const char *key) {
    sat_entry entry;
    assert_int_equal(sat_cache_load(cache, key, &entry), SAT_OK);
    size_t n = entry.count;
    sat_entry_free(&entry);
    return n;
}

/* ---- the log ---- */

typedef struct messages {
    int count;
    char last[1024];
} messages;

static inline void take_message(void *user, sat_log_level level, const char *message) {
    messages *m = user;
    (void)level;
    m->count++;
    snprintf(m->last, sizeof m->last, "%s", message);
}

static inline sat_cache *open_logged(const char *dirs, messages *m) {
    sat_log log = {.fn = take_message, .user = m, .level = SAT_LOG_WARN};
    sat_cache *cache;
    memset(m, 0, sizeof *m);
    assert_int_equal(sat_cache_open(dirs, device, &log, &cache), SAT_OK);
    sat_cache_set_fingerprint(cache, fingerprint);
    return cache;
}

/* ---- time and chance ---- */

static inline double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline uint64_t next_random(uint64_t *state) { /* xorshift64* */
    *state ^= *state >> 12, *state ^= *state << 25, *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1du;
}

#endif
