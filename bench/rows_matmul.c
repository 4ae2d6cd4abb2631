// Rates: the tuned plan against the dense product of the same size, and few columns against a streaming read.

#include "bench.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct job {
    const bench_problem *p;
    sat_plan *plan;
    const bench_rival *rival;
    void *dense, *dense_b, *dense_c;
    sat_dtype dense_dtype;
    int threads;
    sat_status status;
} job;

static void run_ours(void *arg) {
    job *j = arg;
    sat_status status = sat_run(j->plan, (const void *[]){j->p->values, j->p->b}, 2, (void *[]){j->p->c}, 1, NULL);
    if (status != SAT_OK) j->status = status;
}

static void run_dense(void *arg) {
    job *j = arg;
    bench_rival_gemm(j->rival, j->dense_dtype, j->p->m, j->p->n, j->p->k, j->dense, j->dense_b, j->dense_c);
}

static volatile uint64_t sink; // what was read is used

static void run_read(void *arg) {
    job *j = arg;
    sink += bench_sum(j->p->values, j->p->values_bytes, j->threads);
}

static double larger(double x, double y) { return x > y ? x : y; }

typedef struct ceiling {
    double flops[3], bytes; /* by sat_dtype: f32 at 1, f64 at 2 */
} ceiling;

// The best seen so far: measured again before every row, because a busy moment would make the floor too high.
static void raise_ceiling(ceiling *c, int threads) {
    size_t bytes = (size_t)256 << 20;
    void *buffer = bench_alloc(bytes);
    bench_fill(SAT_F32, buffer, (int64_t)(bytes / 4), 1);
    for (int i = 0; i < 5; i++) c->bytes = larger(c->bytes, bench_read_bandwidth(buffer, bytes, threads));
    free(buffer);
    for (int t = SAT_F32; t <= SAT_F64; t++) c->flops[t] = larger(c->flops[t], bench_peak_flops((sat_dtype)t, threads));
    printf("{\"section\":\"machine\",\"threads\":%d,\"peak_f32\":%.6g,\"peak_f64\":%.6g,\"read_bandwidth\":%.6g}\n",
           threads, c->flops[SAT_F32], c->flops[SAT_F64], c->bytes);
}

typedef struct row {
    const char *section, *note;
    int threads;
    double target; /* 0: none is set */
    const char *rival;
} row;

static void print_row(const row *w, const bench_problem *p, const sat_plan_info *info, const ceiling *top,
                      const bench_turn *ours, const bench_turn *rival, double ratio, double fastest, bool right) {
    sat_dtype arithmetic = p->dtype == SAT_F64 ? SAT_F64 : SAT_F32;
    double floor_seconds = larger(info->flops / top->flops[arithmetic], info->bytes / top->bytes);
    printf("{\"section\":\"%s\",\"problem\":{\"op\":\"matmul\",\"m\":%lld,\"n\":%lld,\"k\":%lld,\"block\":[%lld,%lld],"
           "\"dtype\":\"%s\",\"stored_blocks\":%lld,\"density\":%g,\"pattern\":\"%s\",\"threads\":%d,\"flops\":%.17g,"
           "\"bytes\":%.17g},",
           w->section, (long long)p->m, (long long)p->n, (long long)p->k, (long long)p->block, (long long)p->block,
           bench_dtype_name(p->dtype), (long long)p->stored_blocks, p->density,
           p->shape == BENCH_POWERLAW ? "powerlaw" : "random", w->threads, info->flops, info->bytes);
    printf("\"variant\":\"%s\",\"verified\":%s,\"checked\":%s,\"seconds\":%.6g,\"fastest\":%.6g,\"rate\":%.6g,"
           "\"bandwidth\":%.6g,\"floor_seconds\":%.6g,\"tuning_seconds\":%.4g,\"workspace_bytes\":%zu,",
           info->variant, info->verified ? "true" : "false", right ? "true" : "false", ours->median, ours->fastest,
           info->flops / ours->median, info->bytes / ours->median, floor_seconds, info->tuning_seconds,
           info->workspace_bytes);
    printf("\"rival\":\"%s\",\"rival_seconds\":%.6g,\"rival_fastest\":%.6g,\"ratio\":%.5g,\"ratio_fastest\":%.5g,"
           "\"target\":%g,\"note\":\"%s\"}\n",
           w->rival, rival->median, rival->fastest, ratio, fastest, w->target, w->note ? w->note : "");
    fflush(stdout);
}

static void measure(const bench_options *o, const bench_rival *rival, ceiling *top, bench_problem p, row w) {
    char cache[256];
    raise_ceiling(top, w.threads);
    bench_problem_make(&p, (uint64_t)(p.block * 1000 + p.n));
    sat_context *context = bench_context(o, bench_cache_dir(o, "rows", cache, sizeof cache), w.threads);
    sat_pattern *pattern = NULL;
    sat_plan *plan = NULL;
    sat_problem problem = {SAT_SIZED(sat_problem)};
    bench_must(sat_problem_matmul(&problem, p.dtype, p.n), "problem");
    problem.a_align = problem.b_align = problem.c_align = 64;
    bench_must(bench_pattern(context, &p, &pattern), "pattern");
    bench_must(sat_plan_create(context, pattern, &problem, &plan), "plan");
    sat_plan_info info = {SAT_SIZED(sat_plan_info)};
    bench_must(sat_plan_get_info(plan, &info), "plan info");

    job j = {.p = &p, .plan = plan, .rival = rival, .threads = w.threads};
    bench_turn ours = {.run = run_ours, .arg = &j}, other = {.run = run_read, .arg = &j};
    if (rival) {
        j.dense_dtype = p.dtype == SAT_F64 ? SAT_F64 : SAT_F32;
        size_t size = bench_dtype_size(j.dense_dtype);
        j.dense = bench_alloc((size_t)(p.m * p.k) * size);
        j.dense_b = bench_alloc((size_t)(p.k * p.n) * size);
        j.dense_c = bench_alloc((size_t)(p.m * p.n) * size);
        bench_fill(j.dense_dtype, j.dense, p.m * p.k, 5);
        bench_fill(j.dense_dtype, j.dense_b, p.k * p.n, 6);
        rival->set_threads(w.threads);
        other.run = run_dense;
    }
    bench_ratio r = bench_in_turns(&ours, &other, o->row_seconds);
    bench_must(j.status, "run");
    // From times to rates: dense counts every element, a read counts its bytes, ours what was stored and must move.
    double scale =
        rival ? info.flops / (2.0 * (double)p.m * (double)p.n * (double)p.k) : info.bytes / (double)p.values_bytes;
    print_row(&w, &p, &info, top, &ours, &other, r.median * scale, r.fastest * scale, bench_problem_check(&p, 99));

    sat_plan_free(plan);
    sat_pattern_free(pattern);
    sat_context_free(context);
    free(j.dense);
    free(j.dense_b);
    free(j.dense_c);
    bench_problem_free(&p);
}

static bench_problem square(int64_t size, int64_t n, int64_t block, double density, sat_dtype dtype,
                            bench_shape shape) {
    return (bench_problem){
        .m = size, .n = n, .k = size, .block = block, .density = density, .dtype = dtype, .shape = shape};
}

enum { MANY = 8 };

void bench_matmul(const bench_options *o, const bench_rival *rival) {
    static const int64_t blocks[] = {4, 8, 16, 32, 64, 128};
    static const int64_t two[] = {16, 64};
    const int64_t size = 2048;
    for (int pass = 0; pass < 2; pass++) {
        int threads = pass == 0 ? o->threads : 1;
        if (pass == 1 && o->threads == 1) break;
        ceiling top = {{0}, 0};
        row w = {.section = "matmul", .threads = threads, .rival = rival->name};
        for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
            w.target = 0.90;
            measure(o, rival, &top, square(size, size, blocks[i], 0.125, SAT_F32, BENCH_RANDOM), w);
        }
        for (int i = 1; i >= 0; i--) {
            w.target = two[i] == 64 ? 0.90 : 0.82;
            measure(o, rival, &top, square(size, size, two[i], 0.125, SAT_F64, BENCH_RANDOM), w);
        }
        if (pass == 1) break;
        for (int i = 0; i < 2; i++) {
            w.target = 0.80;
            measure(o, rival, &top, square(size, size, two[i], 0.05, SAT_F32, BENCH_RANDOM), w);
            measure(o, rival, &top, square(size, size, two[i], 0.5, SAT_F32, BENCH_RANDOM), w);
            measure(o, rival, &top, square(size, 2000, two[i], 0.125, SAT_F32, BENCH_RANDOM), w);
            measure(o, rival, &top, square(size, size, two[i], 0.125, SAT_F32, BENCH_POWERLAW), w);
        }
        w.target = 0, w.note = "rival computes in f32";
        measure(o, rival, &top, square(size, size, 64, 0.125, SAT_BF16, BENCH_RANDOM), w);
        if (threads < MANY) continue; // with many cores 2048 is over too soon to compare dense rates by
        measure(o, rival, &top, square(2 * size, 2 * size, 64, 0.125, SAT_BF16, BENCH_RANDOM), w);
        w.note = "";
        measure(o, rival, &top, square(2 * size, 2 * size, 64, 0.125, SAT_F32, BENCH_RANDOM), w);
    }
}

// 500 MB of values: far beyond any cache of today.
void bench_skinny(const bench_options *o) {
    static const int64_t blocks[] = {4, 16}, columns[] = {1, 8};
    ceiling top = {{0}, 0};
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < 2; j++) {
            int64_t size = 65536;
            double density = 125e6 / ((double)size * (double)size);
            row w = {.section = "skinny",
                     .threads = o->threads,
                     .rival = "streaming read",
                     .target = columns[j] == 1 ? 0.9 : 0.7};
            measure(o, NULL, &top, square(size, columns[j], blocks[i], density, SAT_F32, BENCH_RANDOM), w);
        }
    }
}
