/* Problems that were answered by estimate, one line each, for a later offline run. A hint and no result: a line that
 * is no good is skipped, and there is no checksum to keep a person from editing the list. */
#include "cache/cache_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char untuned_title[] = "sparse_autotune untuned";
enum { FULL_KEY_CAPACITY = sizeof(((sat_record *)0)->full_key), FILE_LIMIT = 4 << 20 };

/* ---- the list ---- */

typedef struct pairs {
    sat_untuned *list; /* oldest first */
    size_t count;
    bool failed;
} pairs;

static void pair_drop(pairs *p, size_t i) {
    free(p->list[i].key);
    free(p->list[i].full_key);
    memmove(&p->list[i], &p->list[i + 1], (--p->count - i) * sizeof *p->list);
}

static void pairs_free(pairs *p) {
    while (p->count) pair_drop(p, p->count - 1);
    free(p->list);
    *p = (pairs){0};
}

static sat_untuned *pair_find(const pairs *p, const char *key, const char *full_key) {
    for (size_t i = 0; i < p->count; i++)
        if (!strcmp(p->list[i].key, key) && !strcmp(p->list[i].full_key, full_key)) return &p->list[i];
    return NULL;
}

/* Adds what is not there, at the end; the oldest makes room. */
static void pair_add(pairs *p, const char *key, const char *full_key) {
    if (pair_find(p, key, full_key)) return;
    if (p->count == SAT_UNTUNED_KEPT) pair_drop(p, 0);
    sat_untuned *list = realloc(p->list, (p->count + 1) * sizeof *list);
    if (list) p->list = list;
    sat_untuned pair = {strdup(key), strdup(full_key), false};
    if (list && pair.key && pair.full_key) {
        p->list[p->count++] = pair;
        return;
    }
    free(pair.key);
    free(pair.full_key);
    p->failed = true;
}

static bool pairs_forget(pairs *p, const char *key) {
    size_t before = p->count;
    for (size_t i = p->count; i-- > 0;)
        if (!strcmp(p->list[i].key, key)) pair_drop(p, i);
    return p->count != before;
}

/* ---- the file ---- */

sat_status sat_untuned_parse(const char *text, size_t length,
                             void (*take)(void *user, const char *key, const char *full_key), void *user) {
    const char *line;
    size_t n;
    int minor;
    if (!sat_text_line(&text, &length, &line, &n)) return SAT_BAD_FORMAT;
    SAT_TRY(sat_title_parse(line, n, untuned_title, &minor));
    for (size_t lines = 0; lines < 4 * SAT_UNTUNED_KEPT && sat_text_line(&text, &length, &line, &n); lines++) {
        char key[SAT_KEY_CAPACITY], full_key[FULL_KEY_CAPACITY];
        const char *tab = memchr(line, '\t', n);
        size_t before = tab ? (size_t)(tab - line) : n, after = tab ? n - before - 1 : 0;
        if (before >= sizeof key || after >= sizeof full_key) continue;
        memcpy(key, line, before);
        key[before] = 0;
        if (after) memcpy(full_key, tab + 1, after);
        full_key[after] = 0;
        if (strlen(key) == before && strlen(full_key) == after && sat_key_valid(key) &&
            sat_text_valid(full_key, sizeof full_key))
            take(user, key, full_key);
    }
    return SAT_OK;
}

static void take_pair(void *user, const char *key, const char *full_key) { pair_add(user, key, full_key); }

/* SAT_UNSUPPORTED for a later version's; whatever else is wrong with the file, an empty list. */
static sat_status pairs_read(sat_cache *cache, const char *path, pairs *p) {
    char *text;
    size_t length;
    int error = sat_disk_read_own(path, FILE_LIMIT, &text, &length);
    if (error == ENOENT || error == ENOTDIR) return SAT_OK;
    if (error) return sat_cache_unread(cache, path, error), SAT_IO;
    sat_status status = sat_untuned_parse(text, length, take_pair, p);
    free(text);
    return status == SAT_BAD_FORMAT ? SAT_OK : status;
}

static int pairs_write(const char *path, const pairs *p) {
    char line[64];
    sat_text text = {0};
    snprintf(line, sizeof line, "%s %d.%d\n", untuned_title, SAT_CACHE_MAJOR, SAT_CACHE_MINOR);
    sat_text_adds(&text, line);
    for (size_t i = 0; i < p->count; i++) {
        sat_text_adds(&text, p->list[i].key);
        sat_text_add(&text, "\t", 1);
        sat_text_adds(&text, p->list[i].full_key);
        sat_text_add(&text, "\n", 1);
    }
    int error = text.failed ? ENOMEM : sat_disk_write(path, text.data, text.length);
    sat_text_free(&text);
    return error;
}

static bool untuned_path(const sat_cache *cache, char path[SAT_PATH_CAPACITY], char folder[SAT_PATH_CAPACITY]) {
    return cache->layers && sat_cache_folder(cache, 0, cache->identity, folder) &&
           sat_path_join(path, folder, "untuned.txt");
}

/* Adds a pair to the file (full_key given), or removes a key from it (NULL). */
static sat_status update_file(sat_cache *cache, const char *key, const char *full_key) {
    char path[SAT_PATH_CAPACITY], folder[SAT_PATH_CAPACITY], lock_path[SAT_PATH_CAPACITY];
    sat_file_lock lock;
    pairs p = {0};
    int error = 0;
    if (!untuned_path(cache, path, folder) || !sat_path_join(lock_path, folder, "lock")) return SAT_IO;
    if (full_key && !sat_cache_make(cache, folder)) return SAT_IO;
    if (sat_file_lock_take(&lock, lock_path, false, 1) == SAT_LOCK_BUSY) return SAT_IO;
    sat_status status = pairs_read(cache, path, &p);
    if (status == SAT_OK) {
        bool changed = full_key ? !pair_find(&p, key, full_key) : pairs_forget(&p, key);
        if (full_key && changed) pair_add(&p, key, full_key);
        if (p.failed) status = sat_cache_no_memory();
        else if (changed) error = pairs_write(path, &p);
    }
    sat_file_lock_give(&lock);
    pairs_free(&p);
    return status != SAT_OK ? status : error ? SAT_IO : SAT_OK;
}

/* ---- what others call ---- */

/* The cache's own list, as pairs, under the guard. */
static pairs borrow(sat_cache *cache) { return (pairs){.list = cache->untuned, .count = cache->untuned_count}; }
static void put_back(sat_cache *cache, const pairs *p) { cache->untuned = p->list, cache->untuned_count = p->count; }

void sat_untuned_free(sat_cache *cache) {
    pairs p = borrow(cache);
    pairs_free(&p);
    put_back(cache, &p);
}

sat_status sat_cache_note_untuned(sat_cache *cache, const char *key, const char *full_key) {
    if (!sat_key_valid(key) || !sat_text_valid(full_key, FULL_KEY_CAPACITY))
        return sat_fail(SAT_BAD_FORMAT, "cache: an untuned problem is too long or not printable");
    sat_guard_lock();
    pairs p = borrow(cache);
    bool known = pair_find(&p, key, full_key);
    pair_add(&p, key, full_key);
    put_back(cache, &p);
    sat_guard_unlock();
    if (p.failed) return sat_cache_no_memory();
    if (known || !cache->layers) return SAT_OK; /* one attempt a process at a problem: it is only a hint */
    sat_status status = update_file(cache, key, full_key);
    if (status != SAT_OK) return status;
    sat_guard_lock();
    p = borrow(cache);
    sat_untuned *noted = pair_find(&p, key, full_key);
    if (noted) noted->on_disk = true;
    sat_guard_unlock();
    return SAT_OK;
}

void sat_cache_forget_untuned(sat_cache *cache, const char *key) {
    char path[SAT_PATH_CAPACITY], folder[SAT_PATH_CAPACITY];
    pairs on_disk = {0};
    sat_guard_lock();
    pairs p = borrow(cache);
    pairs_forget(&p, key);
    put_back(cache, &p);
    sat_guard_unlock();
    if (!untuned_path(cache, path, folder)) return;
    /* Every finished race comes here, and most find nothing to forget: look before locking. */
    if (pairs_read(cache, path, &on_disk) == SAT_OK && pairs_forget(&on_disk, key)) update_file(cache, key, NULL);
    pairs_free(&on_disk);
}

sat_status sat_cache_each_untuned(sat_cache *cache, sat_cache_visit_fn visit, void *user) {
    char path[SAT_PATH_CAPACITY], folder[SAT_PATH_CAPACITY];
    pairs all = {0};
    if (untuned_path(cache, path, folder)) pairs_read(cache, path, &all);
    sat_guard_lock();
    for (size_t i = 0; i < cache->untuned_count; i++)
        if (!cache->untuned[i].on_disk) pair_add(&all, cache->untuned[i].key, cache->untuned[i].full_key);
    sat_guard_unlock();
    sat_status status = all.failed ? sat_cache_no_memory() : SAT_OK;
    for (size_t i = 0; i < all.count && status == SAT_OK; i++)
        if (!visit(user, all.list[i].key, all.list[i].full_key)) break;
    pairs_free(&all);
    return status;
}
