/* One line of progress on a terminal; nothing at all where stderr is a pipe or a file. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <stdbool.h>

typedef struct progress {
    bool on;
    bool shown;
    int columns;
    double last; /* when it was drawn last, so that thousands of steps do not flood the terminal */
} progress;

progress progress_start(bool quiet);
void progress_show(progress *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
void progress_clear(progress *p);

double now_seconds(void); /* a monotonic clock */

#endif
