// Jobs in processes of their own: start, read their lines, kill what is silent for too long, report how it ended.

#include "isolate.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "progress.h"

enum { REPORT_FD = 3, LINE_MOST = 4096 };

void isolate_report(int fd, const char *format, ...) {
    char line[LINE_MOST];
    va_list list;
    va_start(list, format);
    int length = vsnprintf(line, sizeof line - 1, format, list);
    va_end(list);
    if (length < 0) return;
    if (length > LINE_MOST - 2) length = LINE_MOST - 2;
    for (int i = 0; i < length; i++)
        if (line[i] == '\n') line[i] = ' ';
    line[length] = '\n';
    for (int sent = 0; sent < length + 1;) {
        ssize_t n = write(fd, line + sent, (size_t)(length + 1 - sent));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) _exit(1); // the parent has stopped reading
        sent += (int)n;
    }
}

// In the child, between fork and exec: only calls that are safe after a fork of a process with threads.
static void become(char **argv, int pipe_end, bool loud) {
    struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGKILL); // the job ends with its parent
#endif
    int null = open("/dev/null", O_RDWR);
    if (null < 0) _exit(127);
    dup2(null, STDIN_FILENO);
    dup2(null, STDOUT_FILENO);
    if (!loud) dup2(null, STDERR_FILENO);
    if (pipe_end == REPORT_FD) fcntl(pipe_end, F_SETFD, 0);
    else dup2(pipe_end, REPORT_FD);
    execv(argv[0], argv);
    _exit(127);
}

// The job's argument list: this program, the words, and where to report.
static char **make_argv(const char *const *words, char *self, size_t capacity) {
    ssize_t length = readlink("/proc/self/exe", self, capacity - 1);
    if (length <= 0) return NULL;
    self[length] = 0;
    size_t count = 0;
    while (words[count]) count++;
    char **argv = calloc(count + 3, sizeof *argv);
    if (!argv) return NULL;
    argv[0] = self;
    for (size_t i = 0; i < count; i++) argv[i + 1] = (char *)(size_t)words[i];
    argv[count + 1] = (char *)(size_t) "--report-fd=3";
    return argv;
}

typedef struct reader {
    const isolate_job *job;
    char line[LINE_MOST];
    size_t length;
    bool done;
} reader;

static void take(reader *r, const char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] != '\n') {
            if (r->length + 1 < sizeof r->line) r->line[r->length++] = bytes[i];
            continue;
        }
        r->line[r->length] = 0;
        r->length = 0;
        if (strcmp(r->line, "done") == 0) r->done = true;
        else if (r->job->line) r->job->line(r->job->user, r->line);
    }
}

// Reads until the job closes its end. False when it was silent for too long.
static bool listen_to(reader *r, int fd) {
    double deadline = now_seconds() + r->job->limit_seconds;
    for (;;) {
        double left = deadline - now_seconds();
        if (left <= 0) return false;
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        int ready = poll(&wait, 1, left > 1e6 ? 1000000000 : (int)(left * 1e3) + 1);
        if (ready < 0 && errno != EINTR) return true;
        if (ready <= 0) continue;
        char bytes[8192];
        ssize_t n = read(fd, bytes, sizeof bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return true;
        take(r, bytes, (size_t)n);
        deadline = now_seconds() + r->job->limit_seconds;
    }
}

// Waits for a process that closed its pipe; one that does not leave is killed.
static int reap(pid_t child, double limit) {
    int status = 0;
    double deadline = now_seconds() + limit;
    for (;;) {
        pid_t got = waitpid(child, &status, WNOHANG);
        if (got == child) return status;
        if (got < 0 && errno != EINTR) return 0;
        if (now_seconds() > deadline) break;
        usleep(1000);
    }
    kill(child, SIGKILL);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    return status;
}

static isolate_end judge(const reader *r, int status, char *message, size_t capacity) {
    if (WIFSIGNALED(status)) {
        int number = WTERMSIG(status);
        snprintf(message, capacity, "crashed: signal %d (%s)", number, strsignal(number));
        return ISOLATE_CRASHED;
    }
    if (r->done && WIFEXITED(status) && WEXITSTATUS(status) == 0) return ISOLATE_DONE;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127 && !r->done) {
        snprintf(message, capacity, "could not start a process for it");
        return ISOLATE_UNABLE;
    }
    snprintf(message, capacity, "crashed: its process ended with status %d", WEXITSTATUS(status));
    return ISOLATE_CRASHED;
}

isolate_end isolate_run(const isolate_job *job, char *message, size_t capacity) {
    message[0] = 0;
    char self[4096];
    int ends[2];
    char **argv = make_argv(job->words, self, sizeof self);
    if (!argv || pipe(ends) != 0) {
        snprintf(message, capacity, "could not start a process for it: %s", strerror(errno));
        free(argv);
        return ISOLATE_UNABLE;
    }
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    bool loud = job->loud || getenv("SPARSE_AUTOTUNE_LOG") != NULL;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) become(argv, ends[1], loud);
    close(ends[1]);
    free(argv);
    if (child < 0) {
        snprintf(message, capacity, "could not start a process for it: %s", strerror(errno));
        close(ends[0]);
        return ISOLATE_UNABLE;
    }
    reader r = {.job = job};
    bool heard = listen_to(&r, ends[0]);
    if (!heard) kill(child, SIGKILL);
    close(ends[0]);
    int status = reap(child, 5);
    if (!heard) {
        snprintf(message, capacity, "hung: no answer in %g s", job->limit_seconds);
        return ISOLATE_HUNG;
    }
    return judge(&r, status, message, capacity);
}
