/* What the files of the cache share. Nothing else includes this, but its tests. */
#ifndef SAT_CACHE_PRIVATE_H
#define SAT_CACHE_PRIVATE_H

#include <stdatomic.h>

#include "cache/cache_disk.h"
#include "cache/cache_file.h"

enum {
    SAT_LAYERS = 16,
    SAT_HELD_KEYS = 4096, /* entries kept in memory */
    SAT_FOLDER_NAME = 80  /* a device folder's name */
};

/* Records of one key that are in memory only: there is no folder, or the disk refused them. */
typedef struct sat_held {
    struct sat_held *next;
    char *identity, *key;
    sat_entry entry;
} sat_held;

typedef struct sat_untuned {
    char *key, *exact;
    bool on_disk;
} sat_untuned;

/* What is logged, each once a cache. */
typedef enum sat_trouble {
    SAT_TROUBLE_READ = 1,
    SAT_TROUBLE_WRITE = 2,
    SAT_TROUBLE_BAD = 4,
    SAT_TROUBLE_NEWER = 8,
    SAT_TROUBLE_LOCK = 16,
    SAT_TROUBLE_RECORD = 32,
    SAT_TROUBLE_OTHERS = 64
} sat_trouble;

struct sat_cache {
    sat_log log;
    char *identity;
    char mark[SAT_MARK_SIZE]; /* of records that this process makes */
    int layers;               /* 0: memory only */
    char *dirs[SAT_LAYERS];
    atomic_uint logged; /* sat_trouble bits */
    atomic_bool swept;
    double merge_seconds; /* how long a writer waits for a folder's lock */
    /* Under the guard, newest first. */
    sat_held *held;
    size_t held_count;
    sat_untuned *untuned; /* oldest first */
    size_t untuned_count;
    sat_file_lock *tuning;
    char *tuning_path; /* what the tuning lock is called; never changes */
};

void sat_cache_trouble(sat_cache *cache, sat_trouble trouble, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The folder of a device in a layer; false where the path does not fit. */
bool sat_cache_folder(const sat_cache *cache, int layer, const char *identity, char out[SAT_PATH_CAPACITY]);

/* Makes a folder of the first layer where it is missing. False, and reported: it cannot be made, or others may write
 * it.
 */
bool sat_cache_make(sat_cache *cache, const char *folder);
/* Reports why a file was not read; `error` as sat_disk_read_own gives it. */
void sat_cache_unread(sat_cache *cache, const char *path, int error);

/* As sat_cache_load and sat_cache_add, for any device. */
sat_status sat_cache_get(sat_cache *cache, const char *identity, const char *key, sat_entry *entry);
sat_status sat_cache_put(sat_cache *cache, const char *identity, const char *key, const sat_record *records,
                         size_t count);

/* The names of all entries, of one device or (NULL) of all, over all layers and memory, sorted, without repeats. */
typedef struct sat_entry_name {
    char *identity, *key;
} sat_entry_name;
typedef struct sat_names {
    sat_entry_name *list;
    size_t count, capacity;
} sat_names;
sat_status sat_cache_names(sat_cache *cache, const char *identity, sat_names *names);
void sat_names_free(sat_names *names);
bool sat_names_add(sat_names *names, const char *identity, const char *key); /* false for want of memory */

/* Takes a folder's own lock. BUSY only where another process does not move on: that is reported. `path` lives as long
 * as the lock. */
sat_lock_result sat_cache_lock_folder(sat_cache *cache, const char *folder, char path[SAT_PATH_CAPACITY],
                                      sat_file_lock *lock);

/* The files (cache_slots.c). Get merges a layer's entry into `entry`; put merges `entry` into the first layer's file;
 * names adds those of a layer, false for want of memory. */
sat_status sat_slots_get(sat_cache *cache, int layer, const char *identity, const char *key, sat_entry *entry);
sat_status sat_slots_put(sat_cache *cache, const char *identity, const char *key, const sat_entry *entry);
bool sat_slots_names(sat_cache *cache, int layer, const char *identity, sat_names *names);
sat_status sat_slots_remove(sat_cache *cache, const char *identity, const char *key, int64_t *removed);

bool sat_rates_named(const char *name); /* is a file of this name the rates of a device? */

void sat_untuned_free(sat_cache *cache);

#endif
