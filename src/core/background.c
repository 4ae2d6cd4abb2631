/* Background tuning: one thread that races problems whose plans were made by estimate, and checks variants on patterns
 * that they serve already. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/select.h"
#include "core/context.h"

enum { LONGEST_QUEUE = 256 };

typedef struct job {
    struct job *next;
    sat_pattern *pattern; /* a reference */
    sat_problem problem;
    const sat_variant *variant; /* to check; NULL: a race */
    uint64_t check_id;
    char key[SAT_KEY_SIZE]; /* the same job is not queued twice */
} job;

struct sat_background {
    sat_context *ctx;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    job *queue;
    int queued;
    char running[SAT_KEY_SIZE]; /* "": none */
    atomic_bool stop;
    atomic_uint done;
};

static void free_job(job *j) {
    sat_pattern_free(j->pattern);
    free(j);
}

static sat_status check(sat_background *b, const sat_request *q, const job *j, const sat_race_how *how) {
    if (!sat_cache_tuning_lock(b->ctx->cache, sat_tuning_lock_timeout(b->ctx))) return SAT_OK;
    sat_status status = sat_select_check_variant(q, j->variant, j->check_id, how);
    sat_cache_tuning_unlock(b->ctx->cache);
    return status;
}

static void do_job(sat_background *b, const job *j) {
    sat_request q;
    sat_selection unused = {0};
    if (sat_request_make(&q, b->ctx, j->pattern, &j->problem) != SAT_OK) return;
    sat_race_how how = {.store = true, .skip_failed = true, .cancel = &b->stop};
    sat_status status = j->variant ? check(b, &q, j, &how) : sat_select_tune(&q, NULL, true, &how, &unused);
    if (status != SAT_OK) sat_logf(&b->ctx->log, SAT_LOG_WARN, "not tuned in the background: %s", sat_last_error());
}

static void *work(void *user) {
    sat_background *b = user;
    pthread_mutex_lock(&b->lock);
    while (!atomic_load(&b->stop)) {
        job *j = b->queue;
        if (!j) {
            pthread_cond_wait(&b->changed, &b->lock);
            continue;
        }
        b->queue = j->next, b->queued--;
        memcpy(b->running, j->key, sizeof b->running);
        pthread_mutex_unlock(&b->lock);
        do_job(b, j);
        free_job(j);
        pthread_mutex_lock(&b->lock);
        b->running[0] = 0;
        atomic_fetch_add(&b->done, 1);
        pthread_cond_broadcast(&b->changed);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

sat_status sat_background_open(sat_context *ctx, sat_background **background) {
    sat_background *b = calloc(1, sizeof *b);
    if (!b) return sat_fail(SAT_OUT_OF_MEMORY, "background tuning");
    b->ctx = ctx;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->changed, NULL);
    if (pthread_create(&b->thread, NULL, work, b) != 0) {
        free(b);
        return sat_fail(SAT_OUT_OF_MEMORY, "background tuning: no thread could be started");
    }
    *background = b;
    return SAT_OK;
}

void sat_background_close(sat_background *b) {
    if (!b || sat_forked()) return; /* the thread is the parent's, and so may be the lock */
    atomic_store(&b->stop, true);
    pthread_mutex_lock(&b->lock);
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    pthread_join(b->thread, NULL);
    for (job *j = b->queue, *next; j; j = next) {
        next = j->next;
        free_job(j);
    }
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

static bool waits(const sat_background *b, const char *key) {
    if (strcmp(b->running, key) == 0) return true;
    for (const job *j = b->queue; j; j = j->next)
        if (strcmp(j->key, key) == 0) return true;
    return false;
}

static void post(sat_background *b, const sat_pattern *pattern, const job *wanted) {
    if (sat_forked()) return; /* the thread is the parent's */
    job *j = malloc(sizeof *j);
    if (!j) return;
    *j = *wanted;
    pthread_mutex_lock(&b->lock);
    bool take = b->queued < LONGEST_QUEUE && !waits(b, j->key);
    if (take) {
        j->pattern = sat_pattern_ref(pattern);
        job **end = &b->queue;
        while (*end) end = &(*end)->next;
        *end = j, b->queued++;
        pthread_cond_broadcast(&b->changed);
    }
    pthread_mutex_unlock(&b->lock);
    if (!take) free(j);
}

void sat_background_post(sat_background *b, const sat_pattern *pattern, const sat_problem *problem, const char *key) {
    job j = {.problem = *problem};
    memcpy(j.key, key, sizeof j.key);
    post(b, pattern, &j);
}

void sat_background_check(sat_background *b, const sat_pattern *pattern, const sat_problem *problem,
                          const sat_variant *variant, uint64_t check_id) {
    job j = {.problem = *problem, .variant = variant, .check_id = check_id};
    snprintf(j.key, sizeof j.key, "check %016" PRIx64, check_id);
    post(b, pattern, &j);
}

void sat_background_wait(sat_background *b) {
    if (sat_forked()) return;
    pthread_mutex_lock(&b->lock);
    while (b->queue || b->running[0]) pthread_cond_wait(&b->changed, &b->lock);
    pthread_mutex_unlock(&b->lock);
}

unsigned sat_background_done(const sat_background *b) { return atomic_load(&b->done); }
