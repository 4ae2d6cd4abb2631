/* The entries this process has read or made, so that a second plan of a key reads no file. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "core/context.h"

enum { SLOTS = 256, MOST = 4096, CHECKS = 1024 };

typedef struct node {
    struct node *next;
    char *key;
    sat_entry entry;
} node;

struct sat_memo {
    pthread_mutex_t lock;
    sat_cache *cache;
    size_t count;
    node *slots[SLOTS];
    uint64_t asked[MOST]; /* hashes of the keys that sat_memo_once was asked for */
    size_t asked_count;
    uint64_t checks[CHECKS]; /* 0: none */
    size_t next_check;
};

static uint64_t hash_of(const char *key) { return sat_hash_bytes(SAT_HASH_START, key, strlen(key)); }

static size_t slot_of(const char *key) { return (size_t)(hash_of(key) % SLOTS); }

sat_status sat_memo_open(sat_cache *cache, sat_memo **memo) {
    *memo = calloc(1, sizeof **memo);
    if (!*memo) return sat_fail(SAT_OUT_OF_MEMORY, "memo");
    (*memo)->cache = cache;
    pthread_mutex_init(&(*memo)->lock, NULL);
    return SAT_OK;
}

static void drop_all(sat_memo *m) {
    for (size_t i = 0; i < SLOTS; i++) {
        for (node *n = m->slots[i], *next; n; n = next) {
            next = n->next;
            sat_entry_free(&n->entry);
            free(n->key), free(n);
        }
        m->slots[i] = NULL;
    }
    m->count = 0;
}

void sat_memo_close(sat_memo *m) {
    if (!m) return;
    drop_all(m);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

static node **find(sat_memo *m, const char *key) {
    node **at = &m->slots[slot_of(key)];
    while (*at && strcmp((*at)->key, key) != 0) at = &(*at)->next;
    return at;
}

static sat_status copy_entry(const sat_entry *from, sat_entry *to) {
    *to = (sat_entry){.count = from->count};
    if (from->count == 0) return SAT_OK;
    to->records = malloc(from->count * sizeof *to->records);
    if (!to->records) return sat_fail(SAT_OUT_OF_MEMORY, "%zu cache records", from->count);
    memcpy(to->records, from->records, from->count * sizeof *to->records);
    return SAT_OK;
}

static void remove_at(sat_memo *m, node **at) {
    node *n = *at;
    *at = n->next;
    sat_entry_free(&n->entry);
    free(n->key), free(n);
    m->count--;
}

/* With the lock held. Brings the key's entry in from the cache. */
static sat_status bring(sat_memo *m, const char *key, node **found) {
    node *n = calloc(1, sizeof *n);
    if (n) n->key = strdup(key);
    sat_status status = n && n->key ? sat_cache_load(m->cache, key, &n->entry) : sat_fail(SAT_OUT_OF_MEMORY, "memo");
    if (status != SAT_OK) {
        if (n) free(n->key);
        free(n);
        return status;
    }
    if (m->count >= MOST) drop_all(m);
    node **at = &m->slots[slot_of(key)];
    n->next = *at, *at = n, m->count++;
    *found = n;
    return SAT_OK;
}

sat_status sat_memo_get(sat_memo *m, const char *key, bool reload, sat_entry *entry) {
    *entry = (sat_entry){0};
    pthread_mutex_lock(&m->lock);
    node **at = find(m, key);
    /* An empty entry is read again: another process may have filled it since. */
    if (*at && (reload || (*at)->entry.count == 0)) remove_at(m, at), at = find(m, key);
    node *n = *at;
    sat_status status = n ? SAT_OK : bring(m, key, &n);
    if (status == SAT_OK) status = copy_entry(&n->entry, entry);
    pthread_mutex_unlock(&m->lock);
    return status;
}

sat_status sat_memo_add(sat_memo *m, const char *key, const sat_record *records, size_t count) {
    sat_status status = sat_cache_add(m->cache, key, records, count); /* keeps them itself where the disk refuses */
    sat_memo_drop(m, key);
    return status;
}

void sat_memo_drop(sat_memo *m, const char *key) {
    pthread_mutex_lock(&m->lock);
    if (!key) drop_all(m);
    else {
        node **at = find(m, key);
        if (*at) remove_at(m, at);
    }
    pthread_mutex_unlock(&m->lock);
}

bool sat_memo_once(sat_memo *m, const char *key) {
    uint64_t h = hash_of(key);
    size_t i = 0;
    pthread_mutex_lock(&m->lock);
    while (i < m->asked_count && m->asked[i] != h) i++;
    bool first = i == m->asked_count && i < MOST;
    if (first) m->asked[m->asked_count++] = h;
    pthread_mutex_unlock(&m->lock);
    return first;
}

/* With the lock held. */
static bool has_check(const sat_memo *m, uint64_t check) {
    for (size_t i = 0; i < CHECKS; i++)
        if (m->checks[i] == check) return true;
    return false;
}

bool sat_memo_checked(sat_memo *m, uint64_t check) {
    if (!check) return false;
    pthread_mutex_lock(&m->lock);
    bool found = has_check(m, check);
    pthread_mutex_unlock(&m->lock);
    return found;
}

void sat_memo_note_checked(sat_memo *m, uint64_t check) {
    if (!check) return;
    pthread_mutex_lock(&m->lock);
    if (!has_check(m, check)) m->checks[m->next_check++ % CHECKS] = check;
    pthread_mutex_unlock(&m->lock);
}
