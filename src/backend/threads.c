/* Threads that this process may start, and what a fork leaves of them. libgomp ends the process when it cannot start
 * one, and waits for ever when those it had are gone. */
#define _GNU_SOURCE
#include "backend/threads.h"

#include <errno.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif

#include "variant.h"

/* ---- forks ---- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_bool had_threads, forked;

/* Where it is unknown, there may be others. */
static bool alone(void) {
    int threads = 0;
    char text[512];
    FILE *f = fopen("/proc/self/status", "re");
    while (f && threads == 0 && fgets(text, sizeof text, f)) (void)sscanf(text, "Threads: %d", &threads);
    if (f) fclose(f);
    return threads == 1;
}

static void before_fork(void) { atomic_store(&had_threads, !alone()); }

static void child_after_fork(void) {
    if (atomic_load(&had_threads)) atomic_store(&forked, true);
}

static void watch(void) { pthread_atfork(before_fork, NULL, child_after_fork); }

void sat_threads_watch_forks(void) { (void)pthread_once(&once, watch); }

bool sat_forked(void) { return atomic_load_explicit(&forked, memory_order_relaxed); }

/* ---- threads that can be started ---- */

typedef struct probe {
    pthread_t thread;
    pthread_mutex_t *gate;
    long id;
} probe;

static void *pass_gate(void *user) {
    probe *p = user;
#if defined(__linux__)
    p->id = syscall(SYS_gettid);
#endif
    pthread_mutex_lock(p->gate);
    pthread_mutex_unlock(p->gate);
    return NULL;
}

/* A thread that was joined still counts against the limits for a moment, until the kernel has let go of it. */
static void wait_until_gone(const probe *p) {
#if defined(__linux__)
    for (int i = 0; i < 100000 && syscall(SYS_tgkill, (long)getpid(), p->id, 0) == 0; i++) sched_yield();
#else
    (void)p;
#endif
}

int sat_threads_startable(int wanted) {
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    probe *list = wanted > 0 ? calloc((size_t)wanted, sizeof *list) : NULL;
    int started = 0;
    if (!list) return 0;
    pthread_mutex_lock(&gate); /* so that all of them are there at once */
    for (; started < wanted; started++) {
        list[started].gate = &gate;
        if (pthread_create(&list[started].thread, NULL, pass_gate, &list[started]) != 0) break;
    }
    pthread_mutex_unlock(&gate);
    for (int i = 0; i < started; i++) pthread_join(list[i].thread, NULL);
    for (int i = 0; i < started; i++) wait_until_gone(&list[i]);
    pthread_mutex_destroy(&gate);
    free(list);
    return started;
}

int sat_threads_usable(int wanted) {
    static _Thread_local int tried = 1, usable = 1; /* OpenMP has other threads for each thread that calls it */
    if (sat_forked()) return 1;
    if (wanted <= tried) return wanted < usable ? wanted : usable;
    if (omp_get_active_level() >= omp_get_max_active_levels()) return wanted; /* in a region: none will be started */
    int started = sat_threads_startable(wanted - 1);
    tried = wanted;
    usable = started == wanted - 1 ? wanted : 1 + started / 2; /* others may want some of the rest */
    return usable;
}
