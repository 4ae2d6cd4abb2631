/* Fewer threads than there are, where that is faster. */
#include "core/fewer.h"

#include <string.h>

#include "core/choose.h"

enum { ROUNDS = SAT_FEWER_ROUNDS, COUNTS = 13 /* 4096 threads, halved */ };
static const double WORTH = 0.95; /* fewer threads must take at most this part of the time on all */

/* By the median and by the fastest, since other work on the machine delays a run on more threads more. */
static bool worth(const double *times, const double *all) {
    return times[ROUNDS / 2] <= WORTH * all[ROUNDS / 2] && times[0] <= WORTH * all[0];
}

bool sat_fewer_threads(sat_runner *runner, int all, sat_timed_run_fn run, void *user, sat_fewer *found) {
    double times[COUNTS][ROUNDS] = {{0}};
    int counts = 0, threads[COUNTS] = {0}, best = 0;
    for (int t = all; t > 0 && counts < COUNTS; t /= 2) threads[counts++] = t;
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < counts; i++) {
            runner->most_threads = threads[i];
            if (!run(user, &times[i][round])) return runner->most_threads = 0, false;
        }
    for (int i = 0; i < counts; i++) {
        sat_choose_sort_times(times[i], ROUNDS);
        if (worth(times[i], times[0]) && times[i][ROUNDS / 2] < times[best][ROUNDS / 2]) best = i;
    }
    found->threads = best ? threads[best] : 0;
    memcpy(found->times, times[best], sizeof found->times);
    runner->most_threads = found->threads;
    return true;
}
