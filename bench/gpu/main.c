// bench_gpu time FILE | costs. One JSON object a line; bench/gpu_check makes the file and reads the lines.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench_gpu.h"

void need(bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "bench_gpu: failed: %s; %s; %s\n", what, sat_last_error(), cudaGetErrorString(cudaGetLastError()));
    exit(2);
}

void need_ok(sat_status status, const char *what) { need(status == SAT_OK, what); }

double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, by_value);
    return values[count / 2];
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "time") == 0) return time_jobs(argv[2]);
    if (argc == 2 && strcmp(argv[1], "costs") == 0) return measure_costs();
    fprintf(stderr, "usage: bench_gpu time FILE | bench_gpu costs\n");
    return 2;
}
