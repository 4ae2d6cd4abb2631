// Does the quick race choose well, and does it choose the same every time? Each problem is raced many times from an
// empty cache; a long race, which skips nobody, says what the choices were worth.

#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_REPEATS = 100, MOST_NAMES = 32 };

static const bench_problem problems[] = {
    {.m = 512, .n = 512, .k = 512, .block = 16, .density = 0.125, .dtype = SAT_F32},
    {.m = 512, .n = 512, .k = 512, .block = 64, .density = 0.25, .dtype = SAT_F32},
    {.m = 1024, .n = 256, .k = 1024, .block = 4, .density = 0.05, .dtype = SAT_F32},
    {.m = 1024, .n = 256, .k = 1024, .block = 8, .density = 0.125, .dtype = SAT_F32},
    {.m = 1024, .n = 1024, .k = 1024, .block = 16, .density = 0.05, .dtype = SAT_F32},
    {.m = 1024, .n = 1024, .k = 1024, .block = 32, .density = 0.125, .dtype = SAT_F32},
    {.m = 1024, .n = 1024, .k = 1024, .block = 64, .density = 0.5, .dtype = SAT_F32},
    {.m = 1024, .n = 1000, .k = 1024, .block = 128, .density = 0.25, .dtype = SAT_F32},
    {.m = 2048, .n = 1, .k = 2048, .block = 4, .density = 0.125, .dtype = SAT_F32},
    {.m = 4096, .n = 1, .k = 4096, .block = 16, .density = 0.125, .dtype = SAT_F32},
    {.m = 4096, .n = 8, .k = 4096, .block = 16, .density = 0.125, .dtype = SAT_F32},
    {.m = 4096, .n = 16, .k = 4096, .block = 64, .density = 0.05, .dtype = SAT_F32},
    {.m = 1000, .n = 100, .k = 1000, .block = 10, .density = 0.1, .dtype = SAT_F32},
    {.m = 1024, .n = 512, .k = 1024, .block = 16, .density = 0.125, .dtype = SAT_F32, .shape = BENCH_POWERLAW},
    {.m = 1024, .n = 512, .k = 1024, .block = 64, .density = 0.125, .dtype = SAT_F32, .shape = BENCH_POWERLAW},
    {.m = 1024, .n = 512, .k = 1024, .block = 16, .density = 0.125, .dtype = SAT_F64},
    {.m = 1024, .n = 512, .k = 1024, .block = 64, .density = 0.125, .dtype = SAT_F64},
    {.m = 2048, .n = 4, .k = 2048, .block = 8, .density = 0.125, .dtype = SAT_F64},
    {.m = 1024, .n = 512, .k = 1024, .block = 32, .density = 0.125, .dtype = SAT_BF16},
    {.m = 2048, .n = 2048, .k = 2048, .block = 32, .density = 0.05, .dtype = SAT_F32},
};

static sat_race *run_race(const bench_options *o, sat_effort effort, double budget, const bench_problem *p) {
    sat_context_options options = {
        SAT_SIZED(sat_context_options), .cache_dir = "",         .device = "cpu", .effort = effort,
        .threads = o->threads,          .budget_seconds = budget};
    sat_context *context = NULL;
    sat_pattern *pattern = NULL;
    sat_race *race = NULL;
    sat_problem problem = {SAT_SIZED(sat_problem)};
    bench_must(sat_problem_matmul(&problem, p->dtype, p->n), "problem");
    sat_race_options race_options = {SAT_SIZED(sat_race_options), .fresh = true, .discard = true};
    bench_must(sat_context_create(&options, &context), "context");
    bench_must(bench_pattern(context, p, &pattern), "pattern");
    bench_must(sat_race_run(context, pattern, &problem, &race_options, &race), "race");
    sat_pattern_free(pattern);
    sat_context_free(context);
    return race;
}

// The long race comes in parts between the quick ones, so that both see the same changes of a shared machine. A
// variant's time is the median of its medians.
enum { PARTS = 5 };

typedef struct long_race {
    sat_race *part[PARTS];
} long_race;

static double seconds_of(const long_race *l, const char *variant) {
    double times[PARTS];
    int count = 0;
    for (int part = 0; part < PARTS; part++)
        for (size_t i = 0; i < sat_race_count(l->part[part]); i++) {
            const sat_result *r = sat_race_at(l->part[part], i);
            if (strcmp(r->variant, variant) == 0 && r->verdict == SAT_VERDICT_OK && r->may_win && r->runs > 0)
                times[count++] = r->seconds;
        }
    return count == PARTS ? bench_median(times, PARTS) : INFINITY;
}

static const char *best_of(const long_race *l) {
    const char *best = "none";
    for (size_t i = 0; i < sat_race_count(l->part[0]); i++) {
        const char *name = sat_race_at(l->part[0], i)->variant;
        if (seconds_of(l, name) < seconds_of(l, best)) best = name;
    }
    return best;
}

typedef struct tally {
    char name[MOST_NAMES][128];
    int count[MOST_NAMES], names, most;
} tally;

static void vote(tally *t, const char *name) {
    int i = 0;
    while (i < t->names && strcmp(t->name[i], name) != 0) i++;
    if (i == MOST_NAMES) return;
    if (i == t->names) snprintf(t->name[t->names++], sizeof t->name[0], "%s", name);
    if (++t->count[i] > t->count[t->most]) t->most = i;
}

static void choose(const bench_options *o) {
    int count = (int)(sizeof problems / sizeof *problems), good = 0, steady = 0;
    int repeats = o->repeats < MOST_REPEATS ? o->repeats : MOST_REPEATS;
    int allowed = repeats * 2 / 30; // two of thirty
    double worst = 0, near = INFINITY, far = 0;
    for (int i = 0; i < count; i++) {
        bench_problem p = problems[i];
        bench_problem_make(&p, 100 + (uint64_t)i);
        tally votes = {.names = 0};
        double quick_seconds = 0;
        long_race full = {.part = {NULL}};
        for (int r = 0, part = 0; r < repeats || part < PARTS; r++) {
            for (; part < PARTS && part * repeats <= r * PARTS; part++)
                full.part[part] = run_race(o, SAT_EFFORT_FULL, o->exhaustive_seconds / PARTS, &p);
            if (r >= repeats) break;
            double handover = bench_handover(o->threads), begin = bench_now();
            near = fmin(near, handover), far = fmax(far, handover);
            sat_race *race = run_race(o, SAT_EFFORT_QUICK, 0, &p);
            quick_seconds += bench_now() - begin;
            const sat_result *best = sat_race_best(race);
            vote(&votes, best ? best->variant : "none");
            sat_race_free(race);
        }
        const char *winner = best_of(&full);
        double best = seconds_of(&full, winner), chosen = seconds_of(&full, votes.name[votes.most]), most_regret = 0;
        int flips = 0;
        for (int v = 0; v < votes.names; v++) {
            double t = seconds_of(&full, votes.name[v]);
            most_regret = fmax(most_regret, t / best - 1);
            if (v != votes.most && !(fabs(t / chosen - 1) <= 0.03)) flips += votes.count[v];
        }
        double regret = chosen / best - 1;
        if (regret <= 0.03) good++;
        if (flips <= allowed) steady++;
        worst = fmax(worst, regret);
        printf("{\"section\":\"choice\",\"threads\":%d,\"problem\":{\"op\":\"matmul\",\"m\":%lld,\"n\":%lld,\"k\":%lld,"
               "\"block\":[%"
               "lld,%lld],"
               "\"dtype\":\"%s\",\"density\":%g,\"pattern\":\"%s\"},\"variant\":\"%s\",\"full_variant\":\"%s\","
               "\"regret\":%.4g,\"worst_regret\":%.4g,\"flips\":%d,\"repeats\":%d,\"names\":%d,\"seconds\":%.6g,"
               "\"race_seconds\":%.4g}\n",
               o->threads, (long long)p.m, (long long)p.n, (long long)p.k, (long long)p.block, (long long)p.block,
               bench_dtype_name(p.dtype), p.density, p.shape == BENCH_POWERLAW ? "powerlaw" : "random",
               votes.name[votes.most], winner, regret, most_regret, flips, repeats, votes.names, chosen,
               quick_seconds / repeats);
        fflush(stdout);
        for (int part = 0; part < PARTS; part++) sat_race_free(full.part[part]);
        bench_problem_free(&p);
    }
    printf("{\"section\":\"choice_summary\",\"problems\":%d,\"repeats\":%d,\"within_3_percent\":%d,\"steady\":%d,"
           "\"worst_regret\":%.4g,\"threads\":%d,\"handover_seconds\":[%.3g,%.3g]}\n",
           count, repeats, good, steady, worst, o->threads, near, far);
    fflush(stdout);
}

void bench_choice(const bench_options *o) {
    choose(o);
    bench_options one = *o;
    one.threads = 1;
    if (o->threads > 1) choose(&one);
}
