/* The cache as others see it: opening, layers, finding and adding, and the tuning lock. The files are in
 * cache_entry_files.c, what is kept in memory in cache_memory.c. */
#include "cache/cache_private.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/trust.h"

void sat_cache_warn_once(sat_cache *cache, sat_cache_warning warning, const char *format, ...) {
    if (atomic_fetch_or(&cache->logged, warning) & warning) return;
    char message[768];
    va_list list;
    va_start(list, format);
    vsnprintf(message, sizeof message, format, list);
    va_end(list);
    sat_logf(&cache->log, SAT_LOG_WARN, "cache: %s; more like this is not reported", message);
}

/* A folder that others may write is refused before anything is made in it. */
bool sat_cache_make(sat_cache *cache, const char *folder) {
    char why[256];
    int error = sat_path_safe(folder, true, why, sizeof why) ? 0 : errno;
    if (error == ENOENT) {
        error = sat_disk_make(folder);
        snprintf(why, sizeof why, "%s", strerror(error));
        if (!error && !sat_path_safe(folder, true, why, sizeof why)) error = errno;
    }
    if (!error) return true;
    sat_cache_warn_once(cache, error == EPERM ? SAT_WARN_OTHERS : SAT_WARN_WRITE,
                        "cannot use %s: %s; results are kept in memory", folder, why);
    return false;
}

void sat_cache_unread(sat_cache *cache, const char *path, int error) {
    char why[256];
    if (error == EPERM && !sat_path_safe(path, true, why, sizeof why))
        sat_cache_warn_once(cache, SAT_WARN_OTHERS, "%s is not read: %s", path, why);
    else sat_cache_warn_once(cache, SAT_WARN_READ, "cannot read %s: %s", path, strerror(error));
}

sat_lock_result sat_cache_lock_folder(sat_cache *cache, const char *folder, char path[SAT_PATH_CAPACITY],
                                      sat_file_lock *lock) {
    if (!sat_path_join(path, folder, "lock")) {
        sat_cache_warn_once(cache, SAT_WARN_WRITE,
                            "a folder's path is too long to lock it; results are kept in memory: %s", folder);
        return SAT_LOCK_NO_PATH;
    }
    sat_lock_result got = sat_file_lock_take(lock, path, false, cache->merge_seconds);
    if (got == SAT_LOCK_BUSY)
        sat_cache_warn_once(cache, SAT_WARN_LOCK, "%s stays locked; results are kept in memory", path);
    return got;
}

/* ---- opening ---- */

/* Adds a layer. Later changes of the working directory do not move it. */
static bool add_layer(sat_cache *cache, const char *dir, size_t length) {
    char here[SAT_PATH_CAPACITY] = "";
    if (!length || cache->layers == SAT_LAYERS) return true;
    bool relative = dir[0] != '/' && getcwd(here, sizeof here);
    size_t prefix = relative ? strlen(here) + 1 : 0;
    char *path = malloc(prefix + length + 1);
    if (!path) return false;
    if (relative) snprintf(path, prefix + 1, "%s/", here);
    memcpy(path + prefix, dir, length);
    path[prefix + length] = 0;
    while (length > 1 && path[prefix + length - 1] == '/') path[prefix + --length] = 0;
    cache->dirs[cache->layers++] = path;
    return true;
}

static bool add_layers(sat_cache *cache, const char *dirs) {
    for (;;) {
        size_t length = strcspn(dirs, ":");
        if (!add_layer(cache, dirs, length)) return false;
        if (!dirs[length]) return true;
        dirs += length + 1;
    }
}

/* The user's cache folder is one folder, even if its name holds a colon. */
static bool add_default(sat_cache *cache) {
    static const char *const places[][2] = {{"XDG_CACHE_HOME", "/sparse_autotune"},
                                            {"HOME", "/.cache/sparse_autotune"}};
    const char *dirs = sat_environment("SPARSE_AUTOTUNE_CACHE");
    if (dirs) return add_layers(cache, dirs);
    for (int i = 0; i < 2; i++) {
        const char *base = sat_environment(places[i][0]);
        if (!base || base[0] != '/') continue;
        size_t length = strlen(base) + strlen(places[i][1]);
        char *path = malloc(length + 1);
        if (!path) return false;
        snprintf(path, length + 1, "%s%s", base, places[i][1]);
        bool good = add_layer(cache, path, length);
        free(path);
        return good;
    }
    sat_logf(&cache->log, SAT_LOG_WARN,
             "cache: neither XDG_CACHE_HOME nor HOME is set, or this is a setuid program; results are kept in memory");
    return true;
}

/* An identity is a line of the file; what could break that is replaced. */
static char *copy_identity(const char *identity) {
    size_t length = strnlen(identity, SAT_IDENTITY_CAPACITY - 1);
    char *copy = malloc((length ? length : 1) + 1);
    if (!copy) return NULL;
    memcpy(copy, length ? identity : "?", length ? length : 1);
    copy[length ? length : 1] = 0;
    sat_make_printable(copy);
    return copy;
}

sat_status sat_cache_open(const char *dirs, const char *identity, const sat_log *log, sat_cache **cache) {
    char folder[SAT_PATH_CAPACITY], path[SAT_PATH_CAPACITY];
    *cache = NULL;
    sat_cache *c = calloc(1, sizeof *c);
    if (!c) return sat_cache_no_memory();
    if (log) c->log = *log;
    c->merge_seconds = 30;
    c->identity = copy_identity(identity ? identity : "");
    if (!c->identity || !(dirs ? add_layers(c, dirs) : add_default(c))) goto no_memory;
    bool placed =
        c->layers && sat_cache_folder(c, 0, c->identity, folder) && sat_path_join(path, folder, "tuning.lock");
    c->tuning_path = strdup(placed ? path : c->identity);
    if (!c->tuning_path) goto no_memory;
    *cache = c;
    return SAT_OK;
no_memory:
    sat_cache_close(c);
    return sat_cache_no_memory();
}

void sat_cache_set_fingerprint(sat_cache *cache, const char *fingerprint) {
    snprintf(cache->fingerprint, sizeof cache->fingerprint, "%s", fingerprint);
}

const char *sat_cache_fingerprint(const sat_cache *cache) { return cache->fingerprint; }

const char *sat_cache_dir(const sat_cache *cache) { return cache->layers ? cache->dirs[0] : ""; }

void sat_cache_close(sat_cache *cache) {
    if (!cache) return;
    if (cache->tuning) sat_cache_tuning_unlock(cache);
    sat_memory_entry_free_all(cache);
    sat_untuned_free(cache);
    for (int i = 0; i < cache->layers; i++) free(cache->dirs[i]);
    free(cache->identity);
    free(cache->tuning_path);
    free(cache);
}

/* ---- load and add ---- */

sat_status sat_cache_get(sat_cache *cache, const char *identity, const char *key, sat_entry *entry) {
    *entry = (sat_entry){0};
    sat_status status = SAT_OK;
    for (int i = 0; i < cache->layers && status == SAT_OK; i++)
        status = sat_entry_file_get(cache, i, identity, key, entry);
    if (status == SAT_OK) status = sat_memory_entry_merge_unsaved(cache, identity, key, entry);
    if (status != SAT_OK) sat_entry_free(entry);
    return status;
}

sat_status sat_cache_load(sat_cache *cache, const char *key, sat_entry *entry) {
    *entry = (sat_entry){0};
    if (!sat_key_valid(key)) return SAT_OK;
    SAT_TRY(sat_cache_get(cache, cache->identity, key, entry));
    sat_entry_clear_foreign(entry, cache->fingerprint);
    return SAT_OK;
}

sat_status sat_cache_find(sat_cache *cache, const char *key, bool look_again, sat_entry *entry) {
    sat_seen seen;
    *entry = (sat_entry){0};
    if (!sat_key_valid(key)) return SAT_OK;
    bool in_memory = sat_memory_entry_get(cache, key, entry, &seen);
    /* An empty one may have been filled since: another process has raced. */
    if (in_memory && entry->count > 0 && !look_again) return SAT_OK;
    uint64_t stamp =
        sat_entry_file_stamp(cache, cache->identity, key); /* before reading: what changes meanwhile shows */
    if (in_memory && stamp == seen.stamp) return SAT_OK;
    sat_entry_free(entry);
    SAT_TRY(sat_cache_load(cache, key, entry));
    seen.stamp = stamp;
    sat_memory_entry_set(cache, key, entry, &seen);
    return SAT_OK;
}

static sat_status put(sat_cache *cache, const char *identity, const char *key, const sat_record *records,
                      size_t count) {
    sat_entry entry = {0}, dated = {.records = malloc(count * sizeof *records), .count = count};
    if (!count || !dated.records) return free(dated.records), count ? sat_cache_no_memory() : SAT_OK;
    memcpy(dated.records, records, count * sizeof *records);
    sat_entry_date(&dated, (int64_t)time(NULL));
    sat_status status = sat_entry_merge(&entry, dated.records, dated.count);
    sat_entry_free(&dated);
    if (status == SAT_OK && cache->layers) {
        status = sat_memory_entry_merge_unsaved(cache, identity, key,
                                                &entry); /* what the disk refused before has another chance */
        if (status == SAT_OK) status = sat_entry_file_put(cache, identity, key, &entry);
        if (status == SAT_OK) return sat_entry_free(&entry), SAT_OK;
    }
    if (entry.count) {
        sat_status memory = sat_memory_entry_keep_unsaved(cache, identity, key, &entry);
        if (memory != SAT_OK) status = memory;
    }
    sat_entry_free(&entry);
    return status;
}

sat_status sat_cache_put(sat_cache *cache, const char *identity, const char *key, const sat_record *records,
                         size_t count) {
    sat_status status = put(cache, identity, key, records, count);
    sat_memory_entry_forget(cache, identity, key); /* whatever came of it */
    return status;
}

sat_status sat_cache_add(sat_cache *cache, const char *key, const sat_record *records, size_t count) {
    if (!sat_key_valid(key)) return sat_fail(SAT_BAD_FORMAT, "cache: a key is empty, too long or not printable");
    if (!count) return SAT_OK;
    sat_record *sanitized = malloc(count * sizeof *sanitized);
    if (!sanitized) return sat_cache_no_memory();
    size_t good = 0;
    for (size_t i = 0; i < count; i++) good += sat_record_sanitize(&records[i], &sanitized[good]);
    sat_status status = sat_cache_put(cache, cache->identity, key, sanitized, good);
    free(sanitized);
    if (status != SAT_OK || good == count) return status;
    sat_cache_warn_once(cache, SAT_WARN_RECORD, "a record of %s cannot be stored", key);
    return sat_fail(SAT_BAD_FORMAT, "cache: %zu of %zu records have a field that cannot be stored", count - good,
                    count);
}

/* ---- all entries ---- */

bool sat_names_add(sat_names *names, const char *identity, const char *key) {
    if (names->count == names->capacity) {
        size_t capacity = names->capacity ? names->capacity * 2 : 64;
        sat_entry_name *list = realloc(names->list, capacity * sizeof *list);
        if (!list) return false;
        names->list = list, names->capacity = capacity;
    }
    sat_entry_name name = {strdup(identity), strdup(key)};
    if (name.identity && name.key) return names->list[names->count++] = name, true;
    free(name.identity);
    free(name.key);
    return false;
}

void sat_names_free(sat_names *names) {
    for (size_t i = 0; i < names->count; i++) free(names->list[i].identity), free(names->list[i].key);
    free(names->list);
    *names = (sat_names){0};
}

static int compare_entry_names(const void *x, const void *y) {
    const sat_entry_name *a = x, *b = y;
    int c = strcmp(a->identity, b->identity);
    return c ? c : strcmp(a->key, b->key);
}

sat_status sat_cache_names(sat_cache *cache, const char *identity, sat_names *names) {
    bool good = true;
    *names = (sat_names){0};
    for (int i = 0; i < cache->layers && good; i++) good = sat_entry_file_names(cache, i, identity, names);
    good = good && sat_memory_entry_names(cache, identity, names);
    if (!good) return sat_names_free(names), sat_cache_no_memory();
    size_t unique = 0;
    if (names->count) qsort(names->list, names->count, sizeof *names->list, compare_entry_names);
    for (size_t i = 0; i < names->count; i++) {
        if (unique && !compare_entry_names(&names->list[unique - 1], &names->list[i])) {
            free(names->list[i].identity);
            free(names->list[i].key);
        } else names->list[unique++] = names->list[i];
    }
    names->count = unique;
    return SAT_OK;
}

sat_status sat_cache_each(sat_cache *cache, sat_cache_visit_fn visit, void *user) {
    sat_names names;
    SAT_TRY(sat_cache_names(cache, cache->identity, &names));
    sat_status status = SAT_OK;
    bool more = true;
    for (size_t i = 0; i < names.count && status == SAT_OK && more; i++) {
        sat_entry entry;
        sat_text text = {0};
        status = sat_cache_get(cache, cache->identity, names.list[i].key, &entry);
        if (status != SAT_OK) break;
        sat_entry_format(&text, cache->identity, names.list[i].key, &entry);
        if (text.failed) status = sat_cache_no_memory();
        else if (entry.count) more = visit(user, names.list[i].key, text.data);
        sat_text_free(&text);
        sat_entry_free(&entry);
    }
    sat_names_free(&names);
    return status;
}

/* Layers below the first are not ours to change: what they hold of the key is served again. */
sat_status sat_cache_remove(sat_cache *cache, const char *key, int64_t *entries) {
    int64_t removed = 0;
    sat_status status = cache->layers ? sat_entry_file_remove(cache, cache->identity, key, &removed) : SAT_OK;
    int64_t unsaved = sat_memory_entry_remove(cache, cache->identity, key);
    if (entries) *entries = cache->layers ? removed : unsaved;
    return status;
}

/* ---- the tuning lock ---- */

bool sat_cache_tuning_lock(sat_cache *cache, double seconds) {
    char folder[SAT_PATH_CAPACITY];
    sat_file_lock *lock = malloc(sizeof *lock);
    if (!lock) return true; /* as a folder that cannot be locked */
    bool placed = cache->layers && sat_cache_folder(cache, 0, cache->identity, folder) && sat_cache_make(cache, folder);
    if (sat_file_lock_take(lock, cache->tuning_path, !placed, seconds) == SAT_LOCK_BUSY) return free(lock), false;
    sat_guard_lock();
    sat_file_lock *inherited = cache->tuning; /* from a parent process; one of ours would have made us wait */
    cache->tuning = lock;
    sat_guard_unlock();
    free(inherited);
    return true;
}

void sat_cache_tuning_unlock(sat_cache *cache) {
    sat_guard_lock();
    sat_file_lock *lock = cache->tuning;
    cache->tuning = NULL;
    sat_guard_unlock();
    if (!lock) return;
    sat_file_lock_give(lock);
    free(lock);
}
