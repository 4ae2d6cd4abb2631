/* Runs a job of this program in a process of its own, so that a variant that crashes or hangs takes only that process
 * with it. The job is another call of this very program (fork and exec: a forked copy of a process that used OpenMP
 * could not use it again); it reports through lines on a pipe. The library itself never does this. */
#ifndef CLI_ISOLATE_H
#define CLI_ISOLATE_H

#include <stdbool.h>
#include <stddef.h>

typedef enum isolate_end {
    ISOLATE_DONE = 0,    /* said "done" and left with 0 */
    ISOLATE_CRASHED = 1, /* ended by a signal, or without saying "done" */
    ISOLATE_HUNG = 2,    /* said nothing for longer than the limit, and was killed */
    ISOLATE_UNABLE = 3   /* could not be started */
} isolate_end;

typedef struct isolate_job {
    const char *const *words; /* the arguments, NULL at the end */
    double limit_seconds;     /* between two lines */
    bool loud;                /* its stderr is shown; else only where $SPARSE_AUTOTUNE_LOG is set */
    void (*line)(void *user, const char *line);
    void *user;
} isolate_job;

/* `message` reports how it ended where that is not ISOLATE_DONE: "crashed: signal 11 (Segmentation fault)". */
isolate_end isolate_run(const isolate_job *job, char *message, size_t capacity);

/* In the job: writes one line to the parent; the descriptor is the value of the hidden option --report-fd. */
void isolate_report(int fd, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
