/* The entry files of a folder: how a key's file is named, reading one, merging into one, listing and removing them.
 *
 * A key's file is named by the key's hash and a slot: where another key with that hash has a slot already, the next one
 * is tried. A file says its own key and device, so a name alone never makes a hit. The slots of one hash have no gaps.
 * Readers take no lock: files change by rename only. Writers and removers take the folder's. */
#include "cache/cache_private.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"

enum {
    SLOTS = 8,
    PUT_ATTEMPTS = 100 /* rewrites of one file, where it cannot be locked, before giving up */
};

/* ---- names ---- */

/* A device's folder: what a person recognises, then what distinguishes devices. */
static void folder_name(const char *identity, char out[SAT_FOLDER_NAME]) {
    size_t n = 0;
    for (const char *s = identity; *s && n < 48; s++) {
        bool safe =
            (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || (*s >= '0' && *s <= '9') || *s == '.' || *s == '-';
        if (safe && (n || *s != '.')) out[n++] = *s;
        else if (n && out[n - 1] != '_') out[n++] = '_';
    }
    snprintf(out + n, SAT_FOLDER_NAME - n, "%s%016" PRIx64, n && out[n - 1] != '_' ? "_" : "",
             sat_checksum(identity, strlen(identity)));
}

bool sat_cache_folder(const sat_cache *cache, int layer, const char *identity, char out[SAT_PATH_CAPACITY]) {
    char name[SAT_FOLDER_NAME];
    folder_name(identity, name);
    return sat_path_join(out, cache->dirs[layer], name);
}

static bool slot_path(char out[SAT_PATH_CAPACITY], const char *folder, const char *key, int slot) {
    char name[64], number[16] = "";
    if (slot) snprintf(number, sizeof number, "-%d", slot);
    snprintf(name, sizeof name, "%016" PRIx64 "%s.txt", sat_checksum(key, strlen(key)), number);
    return sat_path_join(out, folder, name);
}

/* Is this file's name one that slot_path gives? */
static bool slot_named(const char *name) {
    size_t hex = strspn(name, "0123456789abcdef");
    const char *rest = name + hex;
    if (hex == 16 && rest[0] == '-' && rest[1] >= '1' && rest[1] < '0' + SLOTS) rest += 2;
    return hex == 16 && !strcmp(rest, ".txt");
}

/* ---- one file ---- */

typedef enum slot_state { FREE, OURS, OTHER, BAD, NEWER, UNREADABLE, NO_MEMORY } slot_state;

static slot_state slot_read(const char *path, sat_entry_head *head, sat_entry *entry) {
    char *text;
    size_t length, used = 0;
    int error = sat_disk_read_own(path, SAT_ENTRY_LIMIT, &text, &length);
    if (error == ENOENT || error == ENOTDIR) return FREE;
    if (error == ENOMEM) return NO_MEMORY;
    if (error) return errno = error, UNREADABLE;
    sat_status status = sat_entry_read(text, length, head, entry, &used);
    free(text);
    if (status == SAT_OK && used != length) sat_entry_free(entry), status = SAT_BAD_FORMAT;
    if (status == SAT_OUT_OF_MEMORY) return NO_MEMORY;
    return status == SAT_OK ? OURS : status == SAT_UNSUPPORTED ? NEWER : BAD;
}

/* Looks for the key's file: where it is (OURS, with its entry), where it would go (FREE, BAD), or why neither. */
static slot_state slot_find(const char *folder, const char *identity, const char *key, char path[SAT_PATH_CAPACITY],
                            sat_entry *entry) {
    slot_state state = OTHER;
    for (int slot = 0; slot < SLOTS && state == OTHER; slot++) {
        sat_entry_head head;
        if (!slot_path(path, folder, key, slot)) return errno = ENAMETOOLONG, UNREADABLE;
        *entry = (sat_entry){0};
        state = slot_read(path, &head, entry);
        if (state != OURS || (!strcmp(head.key, key) && !strcmp(head.identity, identity))) continue;
        sat_entry_free(entry);
        state = OTHER;
    }
    if (state == OURS) sat_entry_date(entry, (int64_t)time(NULL));
    return state;
}

/* Fills the gap that a removed file leaves in its hash's row of slots. Under the folder's lock. `path` is the gap. */
static void slot_close_gap(const char *path) {
    char gap[SAT_PATH_CAPACITY], next[SAT_PATH_CAPACITY], last[SAT_PATH_CAPACITY] = "";
    size_t length = strlen(path), stem = (size_t)(strrchr(path, '/') - path) + 1 + 16;
    memcpy(gap, path, length + 1);
    int slot = gap[stem] == '-' ? gap[stem + 1] - '0' : 0;
    for (int i = slot + 1; i < SLOTS; i++) {
        snprintf(next, sizeof next, "%.*s-%d.txt", (int)stem, path, i);
        if (access(next, F_OK)) break;
        memcpy(last, next, sizeof last);
    }
    if (last[0] && rename(last, gap)) errno = 0; /* the entry in `last` becomes a miss, no more */
}

/* Moves a file that cannot be read aside, so that a person can look at it. Sixteen such names a folder, by the last
 * digit of the hash, so that they never grow many. Under the folder's lock. */
static bool slot_set_aside(sat_cache *cache, const char *path) {
    char aside[SAT_PATH_CAPACITY];
    size_t folder = (size_t)(strrchr(path, '/') - path) + 1;
    if (folder + 16 >= sizeof aside) return false;
    snprintf(aside, sizeof aside, "%.*s%c.bad", (int)folder, path, path[folder + 15]);
    if (rename(path, aside)) return false;
    sat_logf(&cache->log, SAT_LOG_WARN, "cache: %s was damaged; moved aside to %s", path, aside);
    slot_close_gap(path);
    return true;
}

/* A reader met a bad file. Another process may have put a good one in its place since, so look again, locked. */
static void set_aside_locked(sat_cache *cache, const char *folder, const char *path) {
    char lock_path[SAT_PATH_CAPACITY];
    sat_file_lock lock;
    sat_entry_head head;
    sat_entry entry = {0};
    if (!sat_path_join(lock_path, folder, "lock")) return;
    if (sat_file_lock_take(&lock, lock_path, false, 0.1) == SAT_LOCK_BUSY) return;
    slot_state state = slot_read(path, &head, &entry);
    sat_entry_free(&entry);
    if (state == BAD && !slot_set_aside(cache, path))
        sat_cache_warn_once(cache, SAT_WARN_BAD, "%s is damaged and cannot be moved aside: %s", path, strerror(errno));
    sat_file_lock_give(&lock);
}

/* ---- reading and writing ---- */

#ifdef __APPLE__
#define CHANGED st_mtimespec
#else
#define CHANGED st_mtim
#endif

/* The slots of one hash have no gaps, so those up to the first free one are all. */
uint64_t sat_entry_file_stamp(const sat_cache *cache, const char *identity, const char *key) {
    uint64_t stamp = SAT_HASH_START;
    for (int layer = 0; layer < cache->layers; layer++) {
        char folder[SAT_PATH_CAPACITY], path[SAT_PATH_CAPACITY];
        struct stat info;
        if (!sat_cache_folder(cache, layer, identity, folder)) continue;
        for (int slot = 0; slot < SLOTS && slot_path(path, folder, key, slot) && !stat(path, &info); slot++) {
            const uint64_t parts[] = {(uint64_t)info.st_dev, (uint64_t)info.st_ino, (uint64_t)info.st_size,
                                      (uint64_t)info.CHANGED.tv_sec, (uint64_t)info.CHANGED.tv_nsec};
            for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) stamp = sat_hash_number(stamp, parts[i]);
        }
        stamp = sat_hash_number(stamp, (uint64_t)layer);
    }
    return stamp;
}

sat_status sat_entry_file_get(sat_cache *cache, int layer, const char *identity, const char *key, sat_entry *entry) {
    char folder[SAT_PATH_CAPACITY], path[SAT_PATH_CAPACITY];
    sat_entry found = {0};
    if (!sat_cache_folder(cache, layer, identity, folder)) return SAT_OK;
    sat_status status = SAT_OK;
    switch (slot_find(folder, identity, key, path, &found)) {
    case OURS:
        if (layer > 0) sat_entry_clear_foreign(&found, ""); /* shipped by others: only its times count */
        status = sat_entry_merge(entry, found.records, found.count);
        break;
    case BAD:
        if (layer == 0) set_aside_locked(cache, folder, path);
        else sat_cache_warn_once(cache, SAT_WARN_BAD, "%s is damaged", path);
        break;
    case NEWER: sat_cache_warn_once(cache, SAT_WARN_NEWER, "%s is of a later version", path); break;
    case UNREADABLE: sat_cache_unread(cache, path, errno); break;
    case NO_MEMORY: status = sat_cache_no_memory(); break;
    case FREE:
    case OTHER: break;
    }
    sat_entry_free(&found);
    return status;
}

typedef struct put_job {
    sat_cache *cache;
    const char *folder, *identity, *key;
    const sat_entry *entry;
    bool locked; /* against other processes too */
} put_job;

/* Without a lock another process may write between our reading and our renaming: compare just before. */
static bool slot_unchanged(const put_job *job, const char *path, const sat_entry *before) {
    char again[SAT_PATH_CAPACITY];
    sat_entry entry = {0};
    slot_find(job->folder, job->identity, job->key, again, &entry);
    bool same = !strcmp(again, path) && sat_entry_same(before, &entry);
    sat_entry_free(&entry);
    return same;
}

static sat_status write_entry(const put_job *job, const char *path, const sat_entry *before, const sat_entry *merged,
                              bool *written) {
    char temporary[SAT_PATH_CAPACITY];
    sat_text text = {0};
    sat_entry_format(&text, job->identity, job->key, merged);
    if (text.failed) return sat_text_free(&text), sat_cache_no_memory();
    int error = sat_disk_write_temporary(path, text.data, text.length, temporary);
    sat_text_free(&text);
    if (!error && !job->locked && !slot_unchanged(job, path, before)) {
        sat_disk_discard(temporary);
        return SAT_OK;
    }
    if (!error) error = sat_disk_commit(temporary, path);
    if (error) {
        sat_cache_warn_once(job->cache, SAT_WARN_WRITE, "cannot write %s: %s; results are kept in memory", path,
                            strerror(error));
        return SAT_IO;
    }
    *written = true;
    return SAT_OK;
}

/* Reads, merges, writes. `stored`: the file now holds all of the entry's records. */
static sat_status put_once(const put_job *job, bool *stored) {
    char path[SAT_PATH_CAPACITY];
    sat_entry before = {0}, merged = {0};
    bool written = false;
    slot_state state = slot_find(job->folder, job->identity, job->key, path, &before);
    if (state == BAD && slot_set_aside(job->cache, path)) return SAT_OK; /* and once more: slots may have moved */
    if (state == NO_MEMORY) return sat_cache_no_memory();
    if (state == NEWER) {
        sat_cache_warn_once(job->cache, SAT_WARN_NEWER, "%s is of a later version and is left alone", path);
        return SAT_UNSUPPORTED;
    }
    if (state != OURS && state != FREE) {
        sat_cache_warn_once(job->cache, SAT_WARN_WRITE, "cannot use %s: %s; results are kept in memory", path,
                            state == OTHER ? "every slot of this hash is taken" : strerror(errno));
        return SAT_IO;
    }
    sat_status status = sat_entry_merge(&merged, before.records, before.count);
    if (status == SAT_OK) status = sat_entry_merge(&merged, job->entry->records, job->entry->count);
    *stored = status == SAT_OK && sat_entry_same(&before, &merged);
    if (status == SAT_OK && !*stored) {
        status = write_entry(job, path, &before, &merged, &written);
        *stored = job->locked && written;
    }
    sat_entry_free(&before);
    sat_entry_free(&merged);
    return status;
}

sat_status sat_entry_file_put(sat_cache *cache, const char *identity, const char *key, const sat_entry *entry) {
    char folder[SAT_PATH_CAPACITY], lock_path[SAT_PATH_CAPACITY];
    sat_file_lock lock;
    if (!sat_cache_folder(cache, 0, identity, folder)) return SAT_IO;
    if (!sat_cache_make(cache, folder)) return SAT_IO;
    sat_lock_result got = sat_cache_lock_folder(cache, folder, lock_path, &lock);
    if (got == SAT_LOCK_BUSY || got == SAT_LOCK_NO_PATH) return SAT_IO;
    if (!atomic_exchange(&cache->swept, true)) sat_disk_sweep(folder);
    put_job job = {cache, folder, identity, key, entry, got == SAT_LOCK_HELD};
    sat_status status = SAT_OK;
    bool stored = false;
    for (int i = 0; i < PUT_ATTEMPTS && status == SAT_OK && !stored; i++) status = put_once(&job, &stored);
    sat_file_lock_give(&lock);
    return status == SAT_OK && !stored ? SAT_IO : status;
}

/* ---- listing and removing ---- */

/* Entries of one folder. Those whose identity does not give the folder's name would never be found by a key. */
static bool names_of_folder(sat_cache *cache, const char *folder, const char *name, const char *identity,
                            sat_names *names) {
    DIR *d = opendir(folder);
    bool good = true;
    if (!d) return true;
    for (struct dirent *e; good && (e = readdir(d));) {
        char path[SAT_PATH_CAPACITY], expected[SAT_FOLDER_NAME];
        sat_entry_head head;
        sat_entry entry = {0};
        if (!slot_named(e->d_name) || !sat_path_join(path, folder, e->d_name)) continue;
        slot_state state = slot_read(path, &head, &entry);
        sat_entry_free(&entry);
        good = state != NO_MEMORY;
        if (state == UNREADABLE) sat_cache_unread(cache, path, errno);
        if (state != OURS || (identity && strcmp(head.identity, identity))) continue;
        folder_name(head.identity, expected);
        if (!strcmp(expected, name)) good = sat_names_add(names, head.identity, head.key);
    }
    closedir(d);
    return good;
}

bool sat_entry_file_names(sat_cache *cache, int layer, const char *identity, sat_names *names) {
    const char *dir = cache->dirs[layer];
    char path[SAT_PATH_CAPACITY], name[SAT_FOLDER_NAME];
    if (identity) {
        folder_name(identity, name);
        return !sat_path_join(path, dir, name) || names_of_folder(cache, path, name, identity, names);
    }
    DIR *d = opendir(dir);
    bool good = true;
    if (!d) return true;
    for (struct dirent *e; good && (e = readdir(d));)
        if (e->d_name[0] != '.' && sat_path_join(path, dir, e->d_name))
            good = names_of_folder(cache, path, e->d_name, NULL, names);
    closedir(d);
    return good;
}

static int remove_one(const char *folder, const char *identity, const char *key, int64_t *removed) {
    char path[SAT_PATH_CAPACITY];
    sat_entry entry = {0};
    slot_state state = slot_find(folder, identity, key, path, &entry);
    sat_entry_free(&entry);
    if (state != OURS) return 0;
    if (unlink(path)) return errno;
    slot_close_gap(path);
    ++*removed;
    return 0;
}

static int remove_all(const char *folder, int64_t *removed) {
    DIR *d = opendir(folder);
    int error = 0;
    if (!d) return errno == ENOENT || errno == ENOTDIR ? 0 : errno;
    for (struct dirent *e; (e = readdir(d));) {
        size_t length = strlen(e->d_name);
        bool entry = slot_named(e->d_name), bad = length == 5 && !strcmp(e->d_name + 1, ".bad");
        if (!entry && !bad && !sat_rates_named(e->d_name)) continue;
        if (!unlinkat(dirfd(d), e->d_name, 0)) *removed += entry;
        else if (errno != ENOENT) error = errno;
    }
    closedir(d);
    return error;
}

sat_status sat_entry_file_remove(sat_cache *cache, const char *identity, const char *key, int64_t *removed) {
    char folder[SAT_PATH_CAPACITY], lock_path[SAT_PATH_CAPACITY];
    sat_file_lock lock;
    *removed = 0;
    if (!sat_cache_folder(cache, 0, identity, folder) || access(folder, F_OK)) return SAT_OK;
    sat_lock_result got = sat_cache_lock_folder(cache, folder, lock_path, &lock);
    if (got == SAT_LOCK_BUSY) return sat_fail(SAT_BUSY, "cache: %s stays locked by another process", lock_path);
    if (got == SAT_LOCK_NO_PATH)
        return sat_fail(SAT_IO, "cache: cannot remove from a folder whose path is too long: %s", folder);
    int error = key ? remove_one(folder, identity, key, removed) : remove_all(folder, removed);
    sat_file_lock_give(&lock);
    return error ? sat_fail(SAT_IO, "cache: cannot remove from %s: %s", folder, strerror(error)) : SAT_OK;
}
