// What the tuner itself costs: a run above its kernel, the one-call form on a hit, a key read from disk, and a race's
// time and memory against what the design allows.

#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool noop_supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)p, (void)a, (void)d;
    return true;
}

static double noop_estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                            const sat_device *d) {
    (void)v, (void)p, (void)a, (void)d;
    return 1.0;
}

static sat_status noop_launch(const sat_launch *l) {
    (void)l;
    return SAT_OK;
}

static void print_cost(const char *name, double value, double limit, const char *unit, const char *note) {
    printf("{\"section\":\"costs\",\"name\":\"%s\",\"value\":%.6g,\"limit\":%.6g,\"unit\":\"%s\",\"note\":\"%s\"}\n",
           name, value, limit, unit, note);
    fflush(stdout);
}

// The median of 21 batches, in seconds a call.
#define PER_CALL(result, batch, call)                                                                                  \
    do {                                                                                                               \
        double per_call_all[21];                                                                                       \
        for (int per_call_i = 0; per_call_i < 21; per_call_i++) {                                                      \
            double per_call_begin = bench_now();                                                                       \
            for (int per_call_j = 0; per_call_j < (batch); per_call_j++) call;                                         \
            per_call_all[per_call_i] = (bench_now() - per_call_begin) / (batch);                                       \
        }                                                                                                              \
        result = bench_median(per_call_all, 21);                                                                       \
    } while (0)

// A variant that does nothing shows what a run costs; the one-call form is judged on the smallest product there is.
static void cost_of_a_run(const bench_options *o) {
    char cache[256];
    sat_context *context = bench_context(o, bench_cache_dir(o, "costs", cache, sizeof cache), 1);
    sat_variant noop = {SAT_SIZED(sat_variant),
                        .name = "bench_noop",
                        .revision = "1",
                        .op = SAT_MATMUL,
                        .backend = SAT_CPU,
                        .priority = -1000,
                        .about = "does nothing: shows what a run costs",
                        .supports = noop_supports,
                        .estimate = noop_estimate,
                        .launch = noop_launch};
    bench_problem p = {.m = 4, .n = 1, .k = 4, .block = 4, .density = 1, .dtype = SAT_F32};
    bench_problem_make(&p, 7);
    sat_pattern *pattern = NULL;
    sat_plan *plan = NULL, *empty = NULL;
    sat_problem problem = {SAT_SIZED(sat_problem)};
    bench_must(sat_problem_matmul(&problem, SAT_F32, p.n), "problem");
    bench_must(bench_pattern(context, &p, &pattern), "pattern");
    // The problem is tuned before the empty variant is there, which would only be found wrong.
    bench_must(sat_plan_create(context, pattern, &problem, &plan), "plan");
    bench_must(sat_bsr_matmul(context, pattern, &problem, p.values, p.b, p.c, NULL, NULL), "one call");
    double run = 0, one_call = 0, nothing = 0;
    const void *inputs[] = {p.values, p.b};
    void *outputs[] = {p.c};
    PER_CALL(run, 20000, (void)sat_run(plan, inputs, 2, outputs, 1, NULL)); // the first only warms up
    PER_CALL(run, 20000, (void)sat_run(plan, inputs, 2, outputs, 1, NULL));
    PER_CALL(one_call, 20000, (void)sat_bsr_matmul(context, pattern, &problem, p.values, p.b, p.c, NULL, NULL));
    bench_must(sat_variant_register(context, &noop), "register");
    bench_must(sat_plan_create_with(context, pattern, &problem, "bench_noop", &empty), "plan of the empty variant");
    PER_CALL(nothing, 20000, (void)sat_run(empty, inputs, 2, outputs, 1, NULL));
    print_cost("a plan's run, above its kernel", nothing * 1e9, 200, "ns", "a variant that does nothing, one thread");
    print_cost("one call on a hit, above its kernel", (one_call - run + nothing) * 1e9, 1000, "ns",
               "4x4 times one column");
    sat_plan_free(empty);
    sat_plan_free(plan);
    sat_pattern_free(pattern);
    sat_context_free(context);
    bench_problem_free(&p);
}

// A context that has never seen the key: the file is opened, read and understood, and the plan made.
static void cost_of_a_key(const bench_options *o) {
    enum { TIMES = 51 };
    char cache[256];
    double load[TIMES], open[TIMES];
    bench_problem p = {.m = 256, .n = 64, .k = 256, .block = 16, .density = 0.25, .dtype = SAT_F32};
    bench_problem_make(&p, 8);
    for (int i = -1; i < TIMES; i++) {
        double begin = bench_now();
        sat_context *context = bench_context(o, bench_cache_dir(o, "keys", cache, sizeof cache), o->threads);
        double opened = bench_now() - begin;
        sat_pattern *pattern = NULL;
        sat_plan *plan = NULL;
        sat_problem problem = {SAT_SIZED(sat_problem)};
        bench_must(sat_problem_matmul(&problem, SAT_F32, p.n), "problem");
        bench_must(bench_pattern(context, &p, &pattern), "pattern");
        begin = bench_now();
        bench_must(sat_plan_create(context, pattern, &problem, &plan), "plan");
        double loaded = bench_now() - begin;
        sat_plan_info info = {SAT_SIZED(sat_plan_info)};
        bench_must(sat_plan_get_info(plan, &info), "plan info");
        if (i >= 0 && !info.cached) fprintf(stderr, "bench: a key that was tuned before was not found in the cache\n");
        if (i >= 0) load[i] = loaded, open[i] = opened;
        sat_plan_free(plan);
        sat_pattern_free(pattern);
        sat_context_free(context);
    }
    print_cost("a plan from a cached key, first in its context", bench_median(load, TIMES) * 1e3, 1, "ms",
               "256x64x256, block 16; median of 51");
    print_cost("a context", bench_median(open, TIMES) * 1e3, 0, "ms", "not asked for");
    bench_problem_free(&p);
}

// 1 s, three runs of each candidate estimated within 3x of the best, one of each slower one that ran at all.
static double allowed_seconds(const sat_race *race) {
    double best = INFINITY, allowed = 1;
    for (size_t i = 0; i < sat_race_count(race); i++) best = fmin(best, sat_race_at(race, i)->estimate_seconds);
    for (size_t i = 0; i < sat_race_count(race); i++) {
        const sat_result *r = sat_race_at(race, i);
        if (r->runs > 0) allowed += (r->estimate_seconds <= 3 * best ? 3 : 1) * r->seconds;
    }
    return allowed;
}

static bool is_scratch(const sat_context *context, const char *variant) {
    for (size_t i = 0; i < sat_variant_count(context); i++)
        if (strcmp(sat_variant_at(context, i)->name, variant) == 0)
            return sat_variant_at(context, i)->flags & SAT_V_SCRATCH;
    return false;
}

static void cost_of_a_race(const bench_options *o, bench_problem p, const char *name) {
    char text[128];
    bench_problem_make(&p, 9);
    bench_options quick = *o;
    quick.effort = SAT_EFFORT_QUICK;
    sat_context *context = bench_context(&quick, "", o->threads);
    sat_pattern *pattern = NULL;
    sat_race *race = NULL;
    sat_problem problem = {SAT_SIZED(sat_problem)};
    bench_must(sat_problem_matmul(&problem, p.dtype, p.n), "problem");
    sat_race_options options = {SAT_SIZED(sat_race_options), .fresh = true, .discard = true};
    bench_must(bench_pattern(context, &p, &pattern), "pattern");
    size_t before = bench_peak_rss();
    double begin = bench_now();
    bench_must(sat_race_run(context, pattern, &problem, &options, &race), "race");
    double seconds = bench_now() - begin;
    size_t grown = bench_peak_rss() - before, shared = 0, kept = 0;
    sat_race_info info = {SAT_SIZED(sat_race_info)};
    bench_must(sat_race_get_info(race, &info), "race info");
    for (size_t i = 0; i < sat_race_count(race); i++) {
        const sat_result *r = sat_race_at(race, i);
        if (r->verdict == SAT_VERDICT_SKIPPED) continue;
        if (is_scratch(context, r->variant)) shared = r->workspace_bytes > shared ? r->workspace_bytes : shared;
        else kept = r->workspace_bytes > kept ? r->workspace_bytes : kept;
    }
    snprintf(text, sizeof text, "quick race, %s", name);
    print_cost(text, seconds, allowed_seconds(race), "s", "limit: 1 s and the runs that the design allows");
    snprintf(text, sizeof text, "memory of that race, %s", name);
    char note[160];
    snprintf(note, sizeof note,
             "limit: operands, two outputs, workspace (shared and one's own), 1 MB; the process grew by %.0f MB",
             (double)grown * 1e-6);
    // The megabyte is for guard zones and what the check keeps.
    double allowed = (double)(p.values_bytes + p.b_bytes + 2 * p.c_bytes + shared + kept) + 1e6;
    print_cost(text, (double)info.peak_bytes * 1e-6, allowed * 1e-6, "MB", note);
    sat_race_free(race);
    sat_pattern_free(pattern);
    sat_context_free(context);
    bench_problem_free(&p);
}

void bench_costs(const bench_options *o) {
    cost_of_a_run(o);
    cost_of_a_key(o);
    cost_of_a_race(o, (bench_problem){.m = 256, .n = 256, .k = 256, .block = 16, .density = 0.125, .dtype = SAT_F32},
                   "f32 256x256x256, block 16");
    cost_of_a_race(o, (bench_problem){.m = 2048, .n = 2048, .k = 2048, .block = 64, .density = 0.125, .dtype = SAT_F32},
                   "f32 2048x2048x2048, block 64");
    cost_of_a_race(o, (bench_problem){.m = 4096, .n = 4096, .k = 4096, .block = 64, .density = 0.125, .dtype = SAT_F32},
                   "f32 4096x4096x4096, block 64");
}
