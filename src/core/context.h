/* What a context holds, and the small services on it that the rest of core uses. */
#ifndef SAT_CONTEXT_H
#define SAT_CONTEXT_H

#include <pthread.h>
#include <stdatomic.h>

#include "backend/backend.h"
#include "cache/cache.h"
#include "core/key.h"
#include "core/registry.h"

typedef struct sat_memo sat_memo;             /* memo.c: what this process need not do again */
typedef struct sat_pool sat_pool;             /* pool.c: plans of the one-call form */
typedef struct sat_background sat_background; /* background.c: the tuning thread */
typedef struct sat_agree sat_agree;           /* agree.c: what the ranks of a job agree on */
struct sat_rated;                             /* rates.h */

struct sat_context {
    const sat_backend *backend;
    sat_device device;
    sat_context_options options; /* environment and defaults filled in; its pointers are not kept */
    sat_allocator allocator;
    sat_log log;
    char force[128];    /* $SPARSE_AUTOTUNE_FORCE */
    char no_effort[64]; /* $SPARSE_AUTOTUNE, where that is no effort */
    sat_registry registry;
    sat_cache *cache;
    sat_memo *memo;
    sat_pool *pool;
    sat_background *background;
    sat_agree *agree;                  /* NULL: this process decides by itself */
    _Atomic(struct sat_rated *) rated; /* the device with measured rates; NULL: there are none */
    atomic_bool rates_tried;
    atomic_uint wrong_generation; /* incremented when a variant is found wrong; older plans check again */
};

#define SAT_NO_FORCE "SPARSE_AUTOTUNE_FORCE is '%s'; no such variant"

double sat_now(void); /* seconds of a monotonic clock */

/* Device memory through the context's allocator; NULL when out. */
void *sat_alloc(sat_context *ctx, size_t bytes);
void sat_free(sat_context *ctx, void *pointer);
/* Bytes that workspace and tuning may take: an option, or half of what is free now. Finding that out reads files. */
size_t sat_memory_limit(const sat_context *ctx);
/* A limit that is not known yet: sat_within_limit evaluates it on first use. */
#define SAT_LIMIT_UNKNOWN ((size_t)-1)
/* Is a workspace of so many bytes within the limit? Replaces SAT_LIMIT_UNKNOWN in `limit` by sat_memory_limit(), but
 * not for a small workspace, which is taken without asking what is free. */
bool sat_within_limit(const sat_context *ctx, size_t bytes, size_t *limit);

/* The device as a plan made now would see it: with the threads a run would use now. */
sat_device sat_device_now(const sat_context *ctx);
int sat_threads_now(const sat_context *ctx);

/* memo.c */
sat_status sat_memo_open(sat_memo **memo);
void sat_memo_close(sat_memo *memo);
bool sat_memo_once(sat_memo *memo, const char *key); /* true when first asked for this key, then false */
/* Patterns that this process found right beside those in the cache: `check_id` is a hash of variant, full key and
 * pattern. The last 1024. */
bool sat_memo_checked(sat_memo *memo, uint64_t check_id);
void sat_memo_note_checked(sat_memo *memo, uint64_t check_id);
/* Variants that had no memory in a race of this context: no cache has a result of them. The last 1024. */
bool sat_memo_without_memory(sat_memo *memo, const char *key, const char *variant, const char *revision);
void sat_memo_note_without_memory(sat_memo *memo, const char *key, const char *variant, const char *revision);

sat_status sat_pool_open(sat_pool **pool);
void sat_pool_close(sat_pool *pool);

sat_status sat_background_open(sat_context *ctx, sat_background **background);
void sat_background_close(sat_background *background); /* stops a race under way */
/* Queues a race unless its key waits already. */
void sat_background_post(sat_background *b, const sat_pattern *pattern, const sat_problem *problem, const char *key);
/* Queues a check of a variant that serves this pattern already, unless it waits; `check_id` as sat_memo_checked has it.
 */
void sat_background_check(sat_background *b, const sat_pattern *pattern, const sat_problem *problem,
                          const sat_variant *variant, uint64_t check_id);
void sat_background_wait(sat_background *b);
unsigned sat_background_done(const sat_background *b); /* races and checks finished so far */

#endif
