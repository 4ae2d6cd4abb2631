/* What this process has done and need not do again: asking whether a key should be raced once more, and checking a
 * variant on a pattern. */
#include <stdlib.h>

#include "base/hash.h"
#include "core/context.h"

enum { MOST = 4096, CHECKS = 1024 };

struct sat_memo {
    pthread_mutex_t lock;
    uint64_t asked[MOST]; /* hashes of the keys that sat_memo_once was asked for */
    size_t asked_count;
    uint64_t checks[CHECKS]; /* 0: none */
    size_t next_check;
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
static bool has_check(const sat_memo *m, uint64_t check_id) {
    for (size_t i = 0; i < CHECKS; i++)
        if (m->checks[i] == check_id) return true;
    return false;
}

bool sat_memo_checked(sat_memo *m, uint64_t check_id) {
    if (!check_id) return false;
    pthread_mutex_lock(&m->lock);
    bool found = has_check(m, check_id);
    pthread_mutex_unlock(&m->lock);
    return found;
}

void sat_memo_note_checked(sat_memo *m, uint64_t check_id) {
    if (!check_id) return;
    pthread_mutex_lock(&m->lock);
    if (!has_check(m, check_id)) m->checks[m->next_check++ % CHECKS] = check_id;
    pthread_mutex_unlock(&m->lock);
}
