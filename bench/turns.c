// Timing two things in turns, so that whatever the machine does meanwhile hits both.

#include "bench.h"

#include <stdlib.h>
#include <time.h>

enum { MOST_ROUNDS = 200, MOST_RUNS = 4096 };

static int ascending(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

double bench_median(double *values, int count) {
    if (count == 0) return 0;
    qsort(values, (size_t)count, sizeof *values, ascending);
    return count % 2 ? values[count / 2] : 0.5 * (values[count / 2 - 1] + values[count / 2]);
}

static double timed(bench_turn *t) {
    double begin = bench_now();
    t->run(t->arg);
    return bench_now() - begin;
}

// The other side's worker threads spin for a while after their last job; a nap lets them sleep, and a run that is not
// counted wakes our own.
static void settle(bench_turn *t) {
    struct timespec nap = {0, 60 * 1000 * 1000};
    nanosleep(&nap, NULL);
    t->run(t->arg);
}

typedef struct samples {
    double *all;
    int count;
} samples;

static double take_turn(bench_turn *t, samples *s, int runs) {
    double mine[16];
    settle(t);
    for (int i = 0; i < runs; i++) {
        mine[i] = timed(t);
        if (s->count < MOST_RUNS) s->all[s->count++] = mine[i];
    }
    return bench_median(mine, runs);
}

// A turn lasts some 20 ms where one run is shorter than that.
static int runs_in_turn(bench_turn *t) {
    settle(t);
    double once = timed(t);
    return once >= 0.02 ? 1 : once <= 0.02 / 15 ? 15 : (int)(0.02 / once) + 1;
}

static void finish(bench_turn *t, samples *s) {
    t->median = bench_median(s->all, s->count); // sorts
    t->fastest = s->count ? s->all[0] : 0;
    free(s->all);
}

bench_ratio bench_in_turns(bench_turn *a, bench_turn *b, double seconds) {
    samples sa = {bench_alloc(MOST_RUNS * sizeof(double)), 0}, sb = {bench_alloc(MOST_RUNS * sizeof(double)), 0};
    double ratios[MOST_ROUNDS] = {0};
    bench_ratio r = {0, 0, 0};
    int na = runs_in_turn(a), nb = runs_in_turn(b);
    double end = bench_now() + seconds;
    while (r.rounds < MOST_ROUNDS && (r.rounds < 5 || bench_now() < end)) {
        // Who begins changes from round to round.
        double ta, tb;
        if (r.rounds % 2) tb = take_turn(b, &sb, nb), ta = take_turn(a, &sa, na);
        else ta = take_turn(a, &sa, na), tb = take_turn(b, &sb, nb);
        ratios[r.rounds++] = tb / ta;
    }
    finish(a, &sa);
    finish(b, &sb);
    r.median = bench_median(ratios, r.rounds);
    r.fastest = b->fastest / a->fastest;
    return r;
}
