/* What this process has of the cache in memory, in one hash table by key: entries that it has read, and records that it
 * could not write. All of it is under the guard. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "cache/cache_private.h"

enum { MOST_READ = 4096 };

static sat_memory_entry **find(sat_cache *cache, const char *identity, const char *key) {
    uint64_t hash = sat_hash_text(key);
    sat_memory_entry **at = &cache->in_memory[hash % SAT_MEMORY_CHAINS];
    while (*at && (strcmp((*at)->key, key) || strcmp((*at)->identity, identity))) at = &(*at)->next;
    return at;
}

static void free_entry(sat_memory_entry *k) {
    sat_entry_free(&k->entry);
    sat_entry_free(&k->unsaved);
    free(k->identity);
    free(k->key);
    free(k);
}

/* Takes a key without entry and unsaved records out of the table. True: it did. */
static bool drop_idle(sat_memory_entry **at) {
    sat_memory_entry *k = *at;
    if (k->read || k->unsaved.count) return false;
    *at = k->next;
    free_entry(k);
    return true;
}

static sat_memory_entry *make_entry(const char *identity, const char *key) {
    sat_memory_entry *k = calloc(1, sizeof *k);
    if (!k) return NULL;
    k->identity = strdup(identity), k->key = strdup(key);
    if (k->identity && k->key) return k;
    free_entry(k);
    return NULL;
}

/* NULL for want of memory. */
static sat_memory_entry *find_or_make(sat_cache *cache, const char *identity, const char *key) {
    sat_memory_entry **at = find(cache, identity, key);
    if (!*at) *at = make_entry(identity, key);
    return *at;
}

static void forget_entry(sat_cache *cache, sat_memory_entry *k) {
    if (k->read) cache->read_count--;
    k->read = false;
    sat_entry_free(&k->entry);
}

static void forget_unsaved(sat_cache *cache, sat_memory_entry *k) {
    if (k->unsaved.count) cache->unsaved_count--;
    sat_entry_free(&k->unsaved);
}

static sat_status copy_entry(const sat_entry *from, sat_entry *to) {
    *to = (sat_entry){.count = from->count};
    if (from->count == 0) return SAT_OK;
    to->records = malloc(from->count * sizeof *to->records);
    if (!to->records) return to->count = 0, sat_fail(SAT_OUT_OF_MEMORY, "%zu cache records", from->count);
    memcpy(to->records, from->records, from->count * sizeof *to->records);
    return SAT_OK;
}

/* ---- entries that were read ---- */

bool sat_memory_entry_get(sat_cache *cache, const char *key, sat_entry *entry, sat_seen *seen) {
    *entry = (sat_entry){0};
    sat_guard_lock();
    const sat_memory_entry *k = *find(cache, cache->identity, key);
    bool found = k && k->read && copy_entry(&k->entry, entry) == SAT_OK;
    *seen = (sat_seen){.stamp = found ? k->stamp : 0, .changes = cache->changes};
    sat_guard_unlock();
    return found;
}

static void forget_all_entries(sat_cache *cache) {
    for (int i = 0; i < SAT_MEMORY_CHAINS; i++)
        for (sat_memory_entry **at = &cache->in_memory[i]; *at;) {
            forget_entry(cache, *at);
            if (!drop_idle(at)) at = &(*at)->next;
        }
}

void sat_memory_entry_set(sat_cache *cache, const char *key, const sat_entry *entry, const sat_seen *seen) {
    sat_entry copy;
    if (copy_entry(entry, &copy) != SAT_OK) return; /* it is read again */
    sat_guard_lock();
    if (cache->read_count >= MOST_READ) forget_all_entries(cache);
    bool late = cache->changes != seen->changes; /* another thread has written since */
    sat_memory_entry *k = late ? NULL : find_or_make(cache, cache->identity, key);
    if (k) {
        forget_entry(cache, k);
        k->entry = copy, k->stamp = seen->stamp, k->read = true;
        cache->read_count++;
    } else sat_entry_free(&copy);
    sat_guard_unlock();
}

void sat_memory_entry_forget(sat_cache *cache, const char *identity, const char *key) {
    sat_guard_lock();
    sat_memory_entry **at = find(cache, identity, key);
    cache->changes++;
    if (*at) {
        forget_entry(cache, *at);
        (void)drop_idle(at);
    }
    sat_guard_unlock();
}

/* ---- records that could not be written ---- */

static void drop_oldest_unsaved(sat_cache *cache) {
    sat_memory_entry **oldest = NULL;
    for (int i = 0; i < SAT_MEMORY_CHAINS; i++)
        for (sat_memory_entry **at = &cache->in_memory[i]; *at; at = &(*at)->next)
            if ((*at)->unsaved.count && (!oldest || (*at)->age < (*oldest)->age)) oldest = at;
    if (!oldest) return;
    forget_entry(cache, *oldest); /* it has them, too */
    forget_unsaved(cache, *oldest);
    (void)drop_idle(oldest);
}

sat_status sat_memory_entry_keep_unsaved(sat_cache *cache, const char *identity, const char *key,
                                         const sat_entry *entry) {
    sat_guard_lock();
    sat_memory_entry *k = find_or_make(cache, identity, key);
    sat_status status = k ? SAT_OK : sat_cache_no_memory();
    if (k) {
        bool first = k->unsaved.count == 0;
        forget_entry(cache, k);
        status = sat_entry_merge(&k->unsaved, entry->records, entry->count);
        if (first && k->unsaved.count) k->age = ++cache->clock, cache->unsaved_count++;
        if (cache->unsaved_count > SAT_UNSAVED_KEYS) drop_oldest_unsaved(cache);
    }
    sat_guard_unlock();
    return status;
}

sat_status sat_memory_entry_merge_unsaved(sat_cache *cache, const char *identity, const char *key, sat_entry *entry) {
    sat_guard_lock();
    const sat_memory_entry *k = *find(cache, identity, key);
    sat_status status = k ? sat_entry_merge(entry, k->unsaved.records, k->unsaved.count) : SAT_OK;
    sat_guard_unlock();
    return status;
}

/* ---- all of them ---- */

int64_t sat_memory_entry_remove(sat_cache *cache, const char *identity, const char *key) {
    int64_t removed = 0;
    sat_guard_lock();
    cache->changes++;
    for (int i = 0; i < SAT_MEMORY_CHAINS; i++)
        for (sat_memory_entry **at = &cache->in_memory[i]; *at;) {
            sat_memory_entry *k = *at;
            bool meant = !strcmp(k->identity, identity) && (!key || !strcmp(k->key, key));
            if (meant) {
                removed += k->unsaved.count > 0;
                forget_entry(cache, k);
                forget_unsaved(cache, k);
            }
            if (!drop_idle(at)) at = &(*at)->next;
        }
    sat_guard_unlock();
    return removed;
}

bool sat_memory_entry_names(sat_cache *cache, const char *identity, sat_names *names) {
    bool good = true;
    sat_guard_lock();
    for (int i = 0; i < SAT_MEMORY_CHAINS; i++)
        for (const sat_memory_entry *k = cache->in_memory[i]; k && good; k = k->next)
            if (k->unsaved.count && (!identity || !strcmp(identity, k->identity)))
                good = sat_names_add(names, k->identity, k->key);
    sat_guard_unlock();
    return good;
}

void sat_memory_entry_free_all(sat_cache *cache) {
    for (int i = 0; i < SAT_MEMORY_CHAINS; i++)
        for (sat_memory_entry *k = cache->in_memory[i], *next; k; k = next) {
            next = k->next;
            free_entry(k);
        }
}
