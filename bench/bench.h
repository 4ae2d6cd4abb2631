/* The CPU benchmark's own small library: problems, the dense rival, what the machine can do, timing in turns, and the
 * rows it prints. It knows only the public header. See docs/internals/measuring.md. */
#ifndef BENCH_H
#define BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sparse_autotune.h"

/* ---- options (bench_cpu.c) ---- */

typedef struct bench_options {
    double row_seconds; /* how long a row's rounds may take */
    int threads;        /* all cores, or as many as were asked for */
    int repeats;        /* races of each problem, for regret and flips */
    double exhaustive_seconds;
    sat_effort effort;
    const char *cache_root; /* a temporary folder */
    const char *rival;      /* path of a BLAS; NULL: found */
} bench_options;

/* ---- problems (problem.c) ---- */

typedef enum bench_shape { BENCH_RANDOM, BENCH_POWERLAW } bench_shape;

typedef struct bench_problem {
    int64_t m, n, k, block;
    double density;
    bench_shape shape;
    sat_dtype dtype;
    /* Made by bench_problem_make. */
    int64_t stored_blocks;
    int64_t *row_ptr;
    int32_t *col_idx;
    void *values, *b, *c;
    size_t values_bytes, b_bytes, c_bytes;
} bench_problem;

void bench_problem_make(bench_problem *p, uint64_t seed);
void bench_problem_free(bench_problem *p);
sat_status bench_pattern(sat_context *context, const bench_problem *p, sat_pattern **pattern);
/* Looks at 64 elements of C in double precision. */
bool bench_problem_check(const bench_problem *p, uint64_t seed);
size_t bench_dtype_size(sat_dtype t);
const char *bench_dtype_name(sat_dtype t);
void *bench_alloc(size_t bytes); /* 64-byte aligned; never NULL: ends the program when memory is short */
void bench_fill(sat_dtype t, void *to, int64_t count, uint64_t seed);

/* ---- the rival (rival.c) ---- */

typedef struct bench_rival {
    char name[64]; /* "OpenBLAS 0.3.21" */
    void (*sgemm)(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *, int);
    void (*dgemm)(int, int, int, int, int, int, double, const double *, int, const double *, int, double, double *,
                  int);
    void (*set_threads)(int);
} bench_rival;

bool bench_rival_open(bench_rival *rival, const char *path); /* false: there is none */
void bench_rival_gemm(const bench_rival *rival, sat_dtype t, int64_t m, int64_t n, int64_t k, const void *a,
                      const void *b, void *c);

/* ---- the machine (machine.c) ---- */

double bench_now(void);
double bench_peak_flops(sat_dtype t, int threads);                        /* multiply-adds counted as two, a second */
double bench_read_bandwidth(const void *from, size_t bytes, int threads); /* one pass, bytes a second */
uint64_t bench_sum(const void *from, size_t bytes, int threads);          /* that pass by itself */
double bench_handover(int threads); /* seconds for a line of memory to get from one thread to another */
size_t bench_peak_rss(void);

/* ---- timing (turns.c) ---- */

typedef struct bench_turn {
    void (*run)(void *arg);
    void *arg;
    /* Results. */
    double median, fastest;
} bench_turn;

typedef struct bench_ratio {
    double median;  /* of b's time over a's, round by round */
    double fastest; /* b's fastest time over a's */
    int rounds;
} bench_ratio;

/* Times two things in turns until the seconds are spent, at least five rounds. */
bench_ratio bench_in_turns(bench_turn *a, bench_turn *b, double seconds);
double bench_median(double *values, int count); /* sorts them */

/* ---- sections ---- */

void bench_matmul(const bench_options *o, const bench_rival *rival); /* rates against dense: rows_matmul.c */
void bench_skinny(const bench_options *o);                           /* few columns against a streaming read */
void bench_costs(const bench_options *o);                            /* what the tuner itself costs: rows_costs.c */
void bench_choice(const bench_options *o);                           /* regret and flips: rows_choice.c */

/* ---- help (bench_cpu.c) ---- */

sat_context *bench_context(const bench_options *o, const char *cache, int threads); /* ends the program on failure */
void bench_must(sat_status status, const char *what);
const char *bench_cache_dir(const bench_options *o, const char *name, char *buffer, size_t capacity);

#endif
