// What the machine can do, measured: multiply-adds that never leave the registers, and one pass over memory. A row's
// floor is the larger of its operations over the one and its bytes over the other.

#include "bench.h"

#include <omp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

double bench_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double bench_handover(int threads) {
    enum { TIMES = 2000 };
    _Alignas(64) static _Atomic int turn;
    double seconds = 0;
    if (threads < 2) return 0;
    atomic_store(&turn, 0);
#pragma omp parallel num_threads(2)
    {
        int me = omp_get_thread_num();
#pragma omp barrier
        double begin = bench_now();
        for (int i = me; i < 2 * TIMES; i += 2) {
            while (atomic_load(&turn) != i) {}
            atomic_store(&turn, i + 1);
        }
        if (me == 0) seconds = (bench_now() - begin) / (2 * TIMES);
    }
    return seconds;
}

size_t bench_peak_rss(void) {
    char line[256];
    size_t kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "VmHWM:", 6) == 0) sscanf(line + 6, "%zu", &kib);
    if (f) fclose(f);
    return kib * 1024;
}

// Twelve chains hide the latency of a multiply-add on every core of today. The result is returned so that nobody
// leaves the loop out.
#define PEAK(name, type, bytes, attributes)                                                                            \
    attributes static double name(int64_t steps) {                                                                     \
        typedef type vec __attribute__((vector_size(bytes)));                                                          \
        vec x = {0}, y = x, s[12];                                                                                     \
        for (int j = 0; j < (int)(bytes / sizeof(type)); j++) x[j] = (type)0.999, y[j] = (type)0.001;                  \
        for (int i = 0; i < 12; i++) s[i] = y;                                                                         \
        for (int64_t t = 0; t < steps; t++)                                                                            \
            for (int i = 0; i < 12; i++) s[i] = s[i] * x + y;                                                          \
        for (int i = 1; i < 12; i++) s[0] += s[i];                                                                     \
        return (double)s[0][0];                                                                                        \
    }

PEAK(peak_f32_any, float, 16, )
PEAK(peak_f64_any, double, 16, )
#if defined(__x86_64__)
PEAK(peak_f32_avx2, float, 32, __attribute__((target("avx2,fma"))))
PEAK(peak_f64_avx2, double, 32, __attribute__((target("avx2,fma"))))
PEAK(peak_f32_avx512, float, 64, __attribute__((target("avx512f,fma"))))
PEAK(peak_f64_avx512, double, 64, __attribute__((target("avx512f,fma"))))
#endif

static volatile double sink;

double bench_peak_flops(sat_dtype t, int threads) {
    double (*loop)(int64_t) = t == SAT_F64 ? peak_f64_any : peak_f32_any;
    double width = 16.0;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) loop = t == SAT_F64 ? peak_f64_avx512 : peak_f32_avx512, width = 64;
    else if (__builtin_cpu_supports("fma")) loop = t == SAT_F64 ? peak_f64_avx2 : peak_f32_avx2, width = 32;
#endif
    const int64_t steps = 2000000;
    double lanes = width / (t == SAT_F64 ? 8.0 : 4.0), best = 0;
    for (int round = 0; round < 5; round++) {
        double begin = 0, end = 0;
#pragma omp parallel num_threads(threads)
        {
#pragma omp barrier
#pragma omp master
            begin = bench_now();
            double result = loop(steps);
#pragma omp critical
            sink += result;
#pragma omp barrier
#pragma omp master
            end = bench_now();
        }
        double rate = 2.0 * 12.0 * lanes * (double)steps * (double)threads / (end - begin);
        if (rate > best) best = rate;
    }
    return best;
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx2"))) static uint64_t sum_avx2(const uint64_t *p, int64_t n) {
    typedef uint64_t vec __attribute__((vector_size(32)));
    vec s[8] = {{0}};
    int64_t i = 0;
    for (; i + 32 <= n; i += 32)
        for (int j = 0; j < 8; j++) s[j] += *(const vec *)(p + i + 4 * j);
    for (int j = 1; j < 8; j++) s[0] += s[j];
    uint64_t sum = s[0][0] + s[0][1] + s[0][2] + s[0][3];
    for (; i < n; i++) sum += p[i];
    return sum;
}
#endif

static uint64_t sum_any(const uint64_t *p, int64_t n) {
    uint64_t s[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) s[j] += p[i + j];
    for (int j = 1; j < 8; j++) s[0] += s[j];
    for (; i < n; i++) s[0] += p[i];
    return s[0];
}

uint64_t bench_sum(const void *from, size_t bytes, int threads) {
    uint64_t (*sum)(const uint64_t *, int64_t) = sum_any;
#if defined(__x86_64__) && defined(__GNUC__)
    if (__builtin_cpu_supports("avx2")) sum = sum_avx2;
#endif
    int64_t words = (int64_t)(bytes / 8);
    uint64_t total = 0;
#pragma omp parallel num_threads(threads) reduction(+ : total)
    {
        int64_t t = omp_get_thread_num(), of = omp_get_num_threads();
        int64_t begin = words * t / of / 8 * 8, end = t + 1 == of ? words : words * (t + 1) / of / 8 * 8;
        total += sum((const uint64_t *)from + begin, end - begin);
    }
    return total;
}

double bench_read_bandwidth(const void *from, size_t bytes, int threads) {
    double begin = bench_now();
    sink += (double)bench_sum(from, bytes, threads);
    return (double)bytes / (bench_now() - begin);
}
