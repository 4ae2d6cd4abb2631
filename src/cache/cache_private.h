/* What the files of the cache share. Nothing else includes this, but its tests. */
#ifndef SAT_CACHE_PRIVATE_H
#define SAT_CACHE_PRIVATE_H

#include <stdatomic.h>

#include "cache/cache_disk.h"
#include "cache/cache_file.h"

enum {
    SAT_LAYERS = 16,
    SAT_UNSAVED_KEYS = 4096, /* whose records are in memory only */
    SAT_MEMORY_CHAINS = 256, /* of the hash table of entries in memory */
    SAT_FOLDER_NAME = 80     /* a device folder's name */
};

/* What this process has in memory of one key. */
typedef struct sat_memory_entry {
    struct sat_memory_entry *next;
    char *identity, *key;
    bool read;      /* the entry was read: as sat_cache_load gives it */
    uint64_t stamp; /* of its files then */
    sat_entry entry;
    sat_entry unsaved; /* records that are in memory only: there is no folder, or the disk refused them */
    uint64_t age;      /* of the first of those; larger is younger */
} sat_memory_entry;

typedef struct sat_untuned {
    char *key, *full_key;
    bool on_disk;
} sat_untuned;

/* What is warned of, each once a cache. */
typedef enum sat_cache_warning {
    SAT_WARN_READ = 1,
    SAT_WARN_WRITE = 2,
    SAT_WARN_BAD = 4,
    SAT_WARN_NEWER = 8,
    SAT_WARN_LOCK = 16,
    SAT_WARN_RECORD = 32,
    SAT_WARN_OTHERS = 64
} sat_cache_warning;

struct sat_cache {
    sat_log log;
    char *identity;
    char fingerprint[SAT_DIGEST_SIZE]; /* of this build and machine */
    int layers;                        /* 0: memory only */
    char *dirs[SAT_LAYERS];
    atomic_uint logged; /* sat_cache_warning bits */
    atomic_bool swept;
    double merge_seconds; /* how long a writer waits for a folder's lock */
    /* Under the guard. */
    sat_memory_entry *in_memory[SAT_MEMORY_CHAINS];
    size_t read_count, unsaved_count; /* keys with an entry, and with unsaved records */
    uint64_t clock, changes;
    sat_untuned *untuned; /* oldest first */
    size_t untuned_count;
    sat_file_lock *tuning;
    char *tuning_path; /* what the tuning lock is called; never changes */
};

void sat_cache_warn_once(sat_cache *cache, sat_cache_warning warning, const char *format, ...)
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

/* Takes a folder's own lock. BUSY only where another process does not move on, NO_PATH where the folder's path leaves
 * no room for the lock's: both are reported. `path` lives as long as the lock. */
sat_lock_result sat_cache_lock_folder(sat_cache *cache, const char *folder, char path[SAT_PATH_CAPACITY],
                                      sat_file_lock *lock);

/* Entries in memory (cache_memory.c). Get copies what was read of a key of this device, false where nothing was; set
 * keeps a copy, forget drops it. Keep_unsaved takes records that could not be written, merge_unsaved adds those to an
 * entry. Remove drops both of a key, or of all (NULL), and returns how many had unsaved records; names adds the keys of
 * those. */
typedef struct sat_seen {
    uint64_t stamp;   /* of the key's files, when they were read */
    uint64_t changes; /* that this process has made to the cache; what was read before the last one is not kept */
} sat_seen;
bool sat_memory_entry_get(sat_cache *cache, const char *key, sat_entry *entry, sat_seen *seen);
void sat_memory_entry_set(sat_cache *cache, const char *key, const sat_entry *entry, const sat_seen *seen);
void sat_memory_entry_forget(sat_cache *cache, const char *identity, const char *key);
sat_status sat_memory_entry_keep_unsaved(sat_cache *cache, const char *identity, const char *key,
                                         const sat_entry *entry);
sat_status sat_memory_entry_merge_unsaved(sat_cache *cache, const char *identity, const char *key, sat_entry *entry);
int64_t sat_memory_entry_remove(sat_cache *cache, const char *identity, const char *key);
bool sat_memory_entry_names(sat_cache *cache, const char *identity, sat_names *names);
void sat_memory_entry_free_all(sat_cache *cache);

/* Entry files (cache_entry_files.c). Get merges a layer's entry into `entry`; put merges `entry` into the first layer's
 * file; names adds those of a layer, false for want of memory. A stamp stays the same as long as the key's files do, in
 * all layers; no file is opened for it. */
uint64_t sat_entry_file_stamp(const sat_cache *cache, const char *identity, const char *key);
sat_status sat_entry_file_get(sat_cache *cache, int layer, const char *identity, const char *key, sat_entry *entry);
sat_status sat_entry_file_put(sat_cache *cache, const char *identity, const char *key, const sat_entry *entry);
bool sat_entry_file_names(sat_cache *cache, int layer, const char *identity, sat_names *names);
sat_status sat_entry_file_remove(sat_cache *cache, const char *identity, const char *key, int64_t *removed);

bool sat_rates_named(const char *name); /* is a file of this name the rates of a device? */

void sat_untuned_free(sat_cache *cache);

#endif
