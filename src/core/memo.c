/* What this process has done and need not do again: asking whether a key should be raced once more, checking a variant
 * on a pattern, and racing a variant that had no memory. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "core/context.h"

enum { MOST = 4096, NEWEST = 1024 };

/* The newest hashes that were noted. */
typedef struct hashes {
    uint64_t hash[NEWEST]; /* 0: none */
    size_t next;
} hashes;

struct sat_memo {
    pthread_mutex_t lock;
    uint64_t asked[MOST]; /* hashes of the keys that sat_memo_once was asked for */
    size_t asked_count;
    hashes checks, without_memory;
};

sat_status sat_memo_open(sat_memo **memo) {
    *memo = calloc(1, sizeof **memo);
    if (!*memo) return sat_fail(SAT_OUT_OF_MEMORY, "memo");
    pthread_mutex_init(&(*memo)->lock, NULL);
    return SAT_OK;
}

void sat_memo_close(sat_memo *m) {
    if (!m) return;
    pthread_mutex_destroy(&m->lock);
    free(m);
}

bool sat_memo_once(sat_memo *m, const char *key) {
    uint64_t h = sat_hash_text(key);
    size_t i = 0;
    pthread_mutex_lock(&m->lock);
    while (i < m->asked_count && m->asked[i] != h) i++;
    bool first = i == m->asked_count && i < MOST;
    if (first) m->asked[m->asked_count++] = h;
    pthread_mutex_unlock(&m->lock);
    return first;
}

/* With the lock held. */
static bool holds(const hashes *all, uint64_t hash) {
    for (size_t i = 0; i < NEWEST; i++)
        if (all->hash[i] == hash) return true;
    return false;
}

static bool is_noted(sat_memo *m, const hashes *all, uint64_t hash) {
    if (!hash) return false;
    pthread_mutex_lock(&m->lock);
    bool found = holds(all, hash);
    pthread_mutex_unlock(&m->lock);
    return found;
}

static void note(sat_memo *m, hashes *all, uint64_t hash) {
    if (!hash) return;
    pthread_mutex_lock(&m->lock);
    if (!holds(all, hash)) all->hash[all->next++ % NEWEST] = hash;
    pthread_mutex_unlock(&m->lock);
}

bool sat_memo_checked(sat_memo *m, uint64_t check_id) { return is_noted(m, &m->checks, check_id); }
void sat_memo_note_checked(sat_memo *m, uint64_t check_id) { note(m, &m->checks, check_id); }

static uint64_t race_id(const char *key, const char *variant, const char *revision) {
    uint64_t h = sat_hash_text(key);
    h = sat_hash_number(sat_hash_bytes(h, variant, strlen(variant)), '\t');
    return sat_hash_bytes(h, revision, strlen(revision));
}

bool sat_memo_without_memory(sat_memo *m, const char *key, const char *variant, const char *revision) {
    return is_noted(m, &m->without_memory, race_id(key, variant, revision));
}

void sat_memo_note_without_memory(sat_memo *m, const char *key, const char *variant, const char *revision) {
    note(m, &m->without_memory, race_id(key, variant, revision));
}
