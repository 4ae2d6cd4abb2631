/* The persistent cache: one small text file a key, in a folder a device, in one or more layers.
 *
 * All results go in, losers and failures too; which variant is best is derived on reading (choose.h), never stored.
 * Nothing here fails a product: a broken folder, disk or file is logged once and is a miss.
 * The format is in docs/internals/cache-format.md. Safe between threads and between processes. */
#ifndef SAT_CACHE_H
#define SAT_CACHE_H

#include "base/status.h"

typedef enum sat_record_kind {
    SAT_RECORD_RACED = 1,   /* one candidate's result in one race */
    SAT_RECORD_VERIFIED = 2 /* a variant's result was checked on the problem of its full key; see verdict */
} sat_record_kind;

enum { SAT_DIGEST_SIZE = 17 }; /* 16 hexadecimal digits and the closing zero */

/* One line of an entry. The file calls three of the fields by other names, which may not change: busy, exact, by.
 * Strings hold printable ASCII; the cache refuses others, but in a message it replaces what is not. A number that is
 * not finite is stored as the largest that is, a negative one as 0. */
typedef struct sat_record {
    sat_record_kind kind;
    char race[40]; /* names the race: records of one race share it; times compare only within one */
    int64_t when;  /* seconds since 1970 */
    char variant[128];
    char revision[48];
    sat_verdict verdict;
    double seconds, spread, error, estimate_seconds, prepare_seconds;
    int64_t workspace_bytes;
    int runs;
    bool may_win;
    double least_seconds; /* the fastest run */
    bool noisy;           /* other work disturbed the timing of this race */
    int threads;          /* on which the run takes the least time; 0: on all */
    char full_key[512];   /* the problem without buckets: core/key.h */
    char message[192];
    char checked_by[SAT_DIGEST_SIZE]; /* fingerprint of the build and machine that gave the verdict; "": not known */
    char pattern[SAT_DIGEST_SIZE];    /* a digest of the pattern that it was checked on */
} sat_record;

typedef struct sat_entry {
    sat_record *records; /* oldest first */
    size_t count;
} sat_entry;

void sat_entry_free(sat_entry *entry); /* frees the records and zeroes the struct */

typedef struct sat_cache sat_cache;

/* `dirs`: NULL for $SPARSE_AUTOTUNE_CACHE, else $XDG_CACHE_HOME/sparse_autotune, else ~/.cache/sparse_autotune;
 * "" (also of $SPARSE_AUTOTUNE_CACHE) for memory only; folders separated by ':' are layers, the first written, all
 * read. `identity` is the device's. Folders are made when first written to. Fails only for want of memory. */
sat_status sat_cache_open(const char *dirs, const char *identity, const sat_log *log, sat_cache **cache);
void sat_cache_close(sat_cache *cache);
/* The fingerprint of this build and machine (identity.h), which its records get as `checked_by`. "" at first: then no
 * record's counts. */
void sat_cache_set_fingerprint(sat_cache *cache, const char *fingerprint);
const char *sat_cache_fingerprint(const sat_cache *cache);
const char *sat_cache_dir(const sat_cache *cache); /* the folder written to; "" for memory only */

/* Reads the entry from all layers, merged; a miss gives count 0. Never fails but for memory. `checked_by` is
 * cleared, but for records that have the cache's own fingerprint and are in the first layer or in memory. */
sat_status sat_cache_load(sat_cache *cache, const char *key, sat_entry *entry);
/* The same, served from memory where this process has read the key before: no file is touched then. With `look_again`,
 * and for an empty entry, it first compares the files' times and sizes, without opening them, and reads them again if
 * they changed. */
sat_status sat_cache_find(sat_cache *cache, const char *key, bool look_again, sat_entry *entry);
/* Adds records to what is on disk now (another process may have added too), atomically. SAT_IO when the disk refuses,
 * SAT_UNSUPPORTED when a later version's file is in the way: the records are then kept in memory for this process.
 * SAT_BAD_FORMAT for a key or records that cannot be stored; the other records are. */
sat_status sat_cache_add(sat_cache *cache, const char *key, const sat_record *records, size_t count);

/* Text of one record and back: what the file holds, what fuzzing feeds. Parse returns false for anything odd. */
bool sat_record_parse(const char *line, size_t length, sat_record *record);
/* A whole entry file: header, key, records, checksum. Parse gives SAT_BAD_FORMAT, or SAT_UNSUPPORTED for a newer
 * version. */
sat_status sat_entry_parse(const char *text, size_t length, char *key, size_t key_capacity, sat_entry *entry);

/* Entries of this device, merged over the layers, by key. `text` is what a file with all of it would hold. */
sat_status sat_cache_each(sat_cache *cache, sat_cache_visit_fn visit, void *user);
/* All devices' entries, without fingerprints. Import checks the whole file before it changes anything, and clears all
 * fingerprints; `entries` counts the imported ones. */
sat_status sat_cache_export_file(sat_cache *cache, const char *file);
sat_status sat_cache_import_file(sat_cache *cache, const char *file, int64_t *entries);
/* Removes a key of this device, or all (NULL), from the first layer and from memory; other layers still serve it. */
sat_status sat_cache_remove(sat_cache *cache, const char *key, int64_t *entries);

/* Problems answered by estimate, for a later offline run: one line each, without repeats, bounded. */
sat_status sat_cache_note_untuned(sat_cache *cache, const char *key, const char *full_key);
sat_status sat_cache_each_untuned(sat_cache *cache, sat_cache_visit_fn visit, void *user);
void sat_cache_forget_untuned(sat_cache *cache, const char *key);

/* One tuner a device at a time, across threads and processes. False when `seconds` passed without getting it; a
 * folder that cannot be locked counts as got. Pairs with unlock after true. */
bool sat_cache_tuning_lock(sat_cache *cache, double seconds);
void sat_cache_tuning_unlock(sat_cache *cache);

#endif
