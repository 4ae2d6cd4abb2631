// Progress for a person at a terminal.

#include "progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

progress progress_start(bool quiet) {
    const char *term = getenv("TERM");
    progress p = {.on = !quiet && isatty(STDERR_FILENO) && !(term && strcmp(term, "dumb") == 0), .columns = 80};
    struct winsize size;
    if (p.on && ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 8) p.columns = size.ws_col;
    return p;
}

void progress_show(progress *p, const char *format, ...) {
    if (!p->on) return;
    double now = now_seconds();
    if (p->shown && now - p->last < 0.05) return;
    char text[256];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    fprintf(stderr, "\r%.*s\033[K", p->columns - 1, text);
    fflush(stderr);
    p->shown = true, p->last = now;
}

void progress_clear(progress *p) {
    if (!p->shown) return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    p->shown = false;
}
