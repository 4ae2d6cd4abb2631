/* A race, in three parts: verify_structure runs every candidate and checks it; time_candidates times in turns
 * those that may still win, and checks their precision; confirm_winner checks the fastest under every other change
 * (confirm.h), and where it fails, the next fastest. sat_tune_race, at the end, calls them in order. */
#include "core/tune.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/confirm.h"
#include "core/fewer.h"
#include "core/noise.h"
#include "core/runner.h"
#include "core/bench.h"

enum {
    LEAST_ROUNDS = 2, /* of timing; one where a round takes longer than the budget */
    MOST_ROUNDS = 400,
    SLOW = 3,             /* times the best: dropped after verification, see drop_slow */
    TOO_SLOW = 40,        /* times the best estimate: skipped, see too_slow */
    TOO_SLOW_AND_LONG = 6 /* the same, of a run beyond LONG_RUN */
};
static const double SHORT_RUN = 0.02;       /* seconds: a slow library still runs, and one sample drops no candidate */
static const double LONG_RUN = 0.1;         /* seconds: checking it would be most of the race */
static const double FEW_THREADS_RUN = 3e-4; /* seconds: a longer run wants all threads */

typedef struct candidate {
    sat_record result;
    sat_runner runner;
    bool open;            /* the runner is */
    bool racing;          /* it is still run and timed. One that is not may yet win, by its verdict and its times */
    bool confirmed;       /* right under every change that may come between runs */
    double estimate;      /* seconds */
    double first_seconds; /* of the run that was verified, or of a repetition (drop_slow) */
    double times[MOST_ROUNDS];
    int runs;
} candidate;

typedef struct race {
    const sat_tuning *t;
    sat_bench bench;
    candidate *list;
    size_t count;
    const candidate *broke_device; /* left the device unusable */
    sat_scratch scratch;
    size_t limit, held, peak; /* held: without the scratch */
    double start;
    sat_noise noise; /* while runs were timed */
    uint64_t random;
    int done, total;
    bool stop_asked; /* the caller's progress function returned false */
} race;

/* ---- results ---- */

static void set_verdict(candidate *c, sat_verdict verdict, const char *message) {
    c->result.verdict = verdict;
    c->racing = false;
    snprintf(c->result.message, sizeof c->result.message, "%.190s", message);
}

/* After a candidate has broken the device every run fails. The others are not run, so that none is blamed for it. */
static void set_verdict_from_status(race *r, candidate *c, sat_status status) {
    char message[192];
    snprintf(message, sizeof message, "%s: %.150s", sat_status_name(status), sat_last_error());
    set_verdict(c, status == SAT_OUT_OF_MEMORY ? SAT_VERDICT_MEMORY : SAT_VERDICT_ERROR, message);
    if (r->t->ctx->backend->broken(r->t->device)) r->broke_device = c; /* it also waits for what was queued */
}

/* Sorts the samples: their order is not needed afterwards. */
static double quantile(candidate *c, double q) {
    sat_choose_sort_times(c->times, (size_t)c->runs);
    double at = q * (c->runs - 1);
    int low = (int)at, high = low + 1 < c->runs ? low + 1 : low;
    return c->times[low] + (at - low) * (c->times[high] - c->times[low]);
}

static void summarise(candidate *c) {
    if (c->runs == 0) {
        c->result.seconds = c->result.least_seconds = c->first_seconds;
        c->result.runs = c->first_seconds > 0;
        return;
    }
    c->result.seconds = quantile(c, 0.5);
    c->result.least_seconds = c->times[0]; /* sorted now */
    c->result.spread = (quantile(c, 0.75) - quantile(c, 0.25)) / 2;
    c->result.runs = c->runs;
}

static void report(race *r, const char *what) {
    if (r->t->progress && !r->t->progress(r->t->progress_user, r->done, r->total, what)) r->stop_asked = true;
}

static bool is_cancelled(const race *r) { return r->stop_asked || (r->t->cancel && atomic_load(r->t->cancel)); }
static bool has_ended(const race *r) { return r->broke_device || is_cancelled(r); }

/* Why a race has ended; SAT_OK for one that goes on. */
static sat_status end_status(const race *r) {
    if (r->broke_device)
        return sat_fail(SAT_DEVICE_ERROR,
                        "%s broke the device (%.160s): this process cannot use %s any more; `sparse_autotune race "
                        "--isolate` tries each variant in a process of its own",
                        r->broke_device->result.variant, r->broke_device->result.message, r->t->device->name);
    return is_cancelled(r) ? sat_fail(SAT_CANCELLED, "the race was cancelled") : SAT_OK;
}

/* ---- candidates ---- */

static int by_estimate(const void *x, const void *y) {
    const candidate *a = x, *b = y;
    if (a->estimate != b->estimate) return a->estimate < b->estimate ? -1 : 1;
    return strcmp(a->result.variant, b->result.variant);
}

/* Estimated too slow to be worth a run? A library still runs, for comparison, where that takes little time. A baseline,
 * which may not win, is there to be shown: only TOO_SLOW skips it, however long it runs. */
static bool too_slow(const candidate *c, double best) {
    bool library = c->runner.variant->flags & SAT_V_LIBRARY;
    if (c->result.may_win && c->estimate > LONG_RUN && c->estimate > TOO_SLOW_AND_LONG * best) return true;
    return c->estimate > TOO_SLOW * best && !(library && c->estimate <= SHORT_RUN);
}

static sat_status gather_candidates(race *r) {
    const sat_tuning *t = r->t;
    r->list = calloc(t->count + 1, sizeof *r->list);
    if (!r->list) return sat_fail(SAT_OUT_OF_MEMORY, "race of %zu candidates", t->count);
    r->count = t->count;
    size_t contenders = 0;
    for (size_t i = 0; i < t->count; i++) {
        candidate *c = &r->list[i];
        const sat_variant *v = t->candidates[i];
        c->runner.variant = v;
        c->estimate = v->estimate(v, t->problem, t->pattern, t->device);
        if (!(c->estimate > 0)) c->estimate = 1e-9;
        c->result = (sat_record){.verdict = SAT_VERDICT_SKIPPED, .estimate_seconds = c->estimate};
        snprintf(c->result.variant, sizeof c->result.variant, "%s", v->name);
        snprintf(c->result.revision, sizeof c->result.revision, "%s", v->revision);
        c->result.may_win = sat_choose_allowed(v, t->problem->flags);
        contenders += c->result.may_win && !(v->flags & SAT_V_REFERENCE);
    }
    qsort(r->list, r->count, sizeof *r->list, by_estimate);
    double best = r->count ? r->list[0].estimate : 0;
    for (size_t i = 0; i < r->count; i++) {
        candidate *c = &r->list[i];
        bool reference = c->runner.variant->flags & SAT_V_REFERENCE;
        c->racing = true;
        if (reference && contenders > 0) set_verdict(c, SAT_VERDICT_SKIPPED, "the reference, beside others that fit");
        else if (!t->exhaustive && too_slow(c, best)) set_verdict(c, SAT_VERDICT_SKIPPED, "estimated too slow to win");
    }
    return SAT_OK;
}

static void close_candidate(race *r, candidate *c) {
    if (!c->open) return;
    if (!c->runner.scratch) r->held -= c->runner.workspace_bytes;
    sat_runner_close(&c->runner);
    c->open = false;
}

static bool open_candidate(race *r, candidate *c) {
    const sat_tuning *t = r->t;
    const sat_variant *v = c->runner.variant;
    size_t held = r->held + r->scratch.bytes, left = r->limit > held ? r->limit - held : 0;
    sat_status status = sat_runner_open(&c->runner, t->ctx, v, t->problem, t->pattern, t->device, left, &r->scratch);
    c->runner.variant = v;
    if (status != SAT_OK) {
        set_verdict_from_status(r, c, status);
        return false;
    }
    c->open = true;
    c->runner.most_threads = c->result.threads;
    c->result.prepare_seconds = c->runner.prepare_seconds;
    c->result.workspace_bytes = (int64_t)c->runner.workspace_bytes;
    if (!c->runner.scratch) r->held += c->runner.workspace_bytes;
    if (r->held + r->scratch.bytes > r->peak) r->peak = r->held + r->scratch.bytes;
    return true;
}

/* ---- one run ---- */

typedef struct call {
    sat_runner *runner;
    void *const *operands;
    void *stream;
} call;

static sat_status run_call(void *user) {
    call *c = user;
    return sat_runner_launch(c->runner, c->operands, c->stream);
}

static sat_status refresh(race *r, candidate *c, void *stream) {
    const sat_backend *b = r->t->ctx->backend;
    int before = b->enter(&c->runner.device, true);
    sat_status status = sat_runner_refresh(&c->runner, r->bench.pointer[0], stream);
    b->leave(&c->runner.device, before);
    return status;
}

/* Resets the output, flushes if cold, runs and times. False when the candidate failed. */
static bool run(race *r, candidate *c, int repeat, double *seconds) {
    sat_context *ctx = r->t->ctx;
    void *stream = ctx->backend->stream(&c->runner.device);
    call call = {&c->runner, r->bench.pointer, stream};
    sat_status status = sat_bench_reset(&r->bench);
    if (status == SAT_OK && !c->runner.refreshed) status = refresh(r, c, stream);
    if (status == SAT_OK && ctx->options.measure == SAT_MEASURE_COLD) sat_bench_flush(&r->bench);
    if (status == SAT_OK) status = ctx->backend->time(&c->runner.device, run_call, &call, repeat, seconds);
    if (status == SAT_OK) status = ctx->backend->sync(&c->runner.device, stream);
    if (status != SAT_OK) set_verdict_from_status(r, c, status);
    return status == SAT_OK;
}

/* Garbage into a workspace that need not keep anything between runs. */
static bool spoil_workspace(race *r, candidate *c) {
    sat_status status = sat_runner_spoil_workspace(&c->runner, 0xff);
    if (status != SAT_OK) set_verdict_from_status(r, c, status);
    return status == SAT_OK;
}

static bool check(race *r, candidate *c) {
    sat_finding finding;
    sat_status status = sat_bench_check(&r->bench, &finding);
    if (status != SAT_OK) {
        set_verdict_from_status(r, c, status);
        return false;
    }
    if (finding.error > c->result.error) c->result.error = finding.error;
    if (r->bench.probe == SAT_PROBE_PRECISION)
        sat_logf(&r->t->ctx->log, SAT_LOG_DEBUG, "%s: errors up to %.3g of what rounding allows, rms %.3g of predicted",
                 c->result.variant, finding.share, finding.rms);
    if (!finding.ok) set_verdict(c, SAT_VERDICT_WRONG, finding.where);
    return finding.ok;
}

/* ---- part 1: verify the structure ---- */

static uint64_t next_seed(race *r) {
    r->random = r->random * 6364136223846793005u + 1442695040888963407u;
    return r->random >> 7;
}

/* The operands are new: fixed values that a candidate has converted are stale. */
static void forget_values(race *r) {
    for (size_t i = 0; i < r->count; i++) r->list[i].runner.refreshed = false;
}

static sat_status fill(race *r, sat_probe probe, int fill_case) {
    forget_values(r);
    return sat_bench_fill(&r->bench, probe, fill_case, next_seed(r));
}

static sat_status fill_reals(race *r) {
    bool reals = r->bench.probe == SAT_PROBE_PRECISION && r->bench.fill_case == 0;
    return reals ? SAT_OK : fill(r, SAT_PROBE_PRECISION, 0);
}

/* Drops candidates that are far slower than one that may win, and frees their workspace. Either the estimate is beyond
 * SLOW times the best one and the fastest of up to three runs beyond 1.3 times the best; or the measured
 * time is beyond SLOW times the best and 20 ms, whatever the estimate. A shorter first run may be slow by accident, and
 * never decides alone. */
static void drop_slow(race *r) {
    double fastest = INFINITY, estimate = INFINITY;
    for (size_t i = 0; i < r->count; i++) {
        candidate *c = &r->list[i];
        if (!c->racing || !c->result.may_win || c->result.verdict != SAT_VERDICT_OK) continue;
        if (c->first_seconds < fastest) fastest = c->first_seconds;
        if (c->estimate < estimate) estimate = c->estimate;
    }
    for (size_t i = 0; i < r->count && !has_ended(r); i++) {
        candidate *c = &r->list[i];
        if (!c->racing || c->result.verdict != SAT_VERDICT_OK || r->t->exhaustive) continue;
        bool estimated_slow = c->estimate > SLOW * estimate;
        for (int repeat = 0;
             repeat < 2 && estimated_slow && c->first_seconds > 1.3 * fastest && c->first_seconds < 1.5 * SHORT_RUN;
             repeat++) {
            double seconds; /* the first run may have included the start of a library */
            if (run(r, c, 1, &seconds)) c->first_seconds = fmin(c->first_seconds, seconds);
        }
        bool measured_slow = c->first_seconds > SLOW * fastest && c->first_seconds > SHORT_RUN;
        if (!measured_slow && !(estimated_slow && c->first_seconds > 1.3 * fastest)) continue;
        c->racing = false;
        close_candidate(r, c);
    }
}

/* Runs every candidate on one set of operands of the structure probe: only a right structure passes. */
static sat_status verify_structure(race *r) {
    SAT_TRY(fill(r, SAT_PROBE_STRUCTURE, 0));
    for (size_t i = 0; i < r->count && !has_ended(r); i++) {
        candidate *c = &r->list[i];
        if (!c->racing || c->result.verdict == SAT_VERDICT_OK) continue;
        report(r, c->result.variant);
        if (!c->open && !open_candidate(r, c)) continue;
        if (r->t->ctx->backend->lazy_loading &&
            !run(r, c, 1, &c->first_seconds)) { /* loads the code; the time does not count */
            close_candidate(r, c);
            continue;
        }
        if (spoil_workspace(r, c) && run(r, c, 1, &c->first_seconds) && check(r, c)) c->result.verdict = SAT_VERDICT_OK;
        if (!c->racing) close_candidate(r, c);
        drop_slow(r);
        r->done++;
    }
    return end_status(r);
}

/* If no candidate that may win is left, verifies those that were skipped, the reference among them. */
static sat_status retry_skipped(race *r) {
    for (size_t i = 0; i < r->count; i++)
        if ((r->list[i].racing || r->list[i].confirmed) && r->list[i].result.may_win) return SAT_OK;
    for (size_t i = 0; i < r->count; i++) {
        candidate *c = &r->list[i];
        c->racing = c->result.verdict == SAT_VERDICT_SKIPPED;
        if (c->racing) c->result.message[0] = 0;
    }
    return verify_structure(r);
}

/* An estimate orders a race and does not decide it. Candidates that were skipped are verified too if they are estimated
 * within SLOW times the fastest first run: the best estimate, which they were compared with, was then too low. */
static sat_status reconsider_by_estimate(race *r) {
    double fastest = INFINITY;
    size_t reconsidered = 0;
    for (size_t i = 0; i < r->count; i++) {
        candidate *c = &r->list[i];
        if (c->racing && c->result.may_win && c->first_seconds < fastest) fastest = c->first_seconds;
    }
    for (size_t i = 0; i < r->count; i++) {
        candidate *c = &r->list[i];
        bool reference = c->runner.variant->flags & SAT_V_REFERENCE;
        if (c->result.verdict != SAT_VERDICT_SKIPPED || reference || c->estimate > SLOW * fastest) continue;
        c->racing = true, c->result.message[0] = 0;
        reconsidered++;
    }
    return reconsidered ? verify_structure(r) : SAT_OK;
}

/* ---- part 2: time in turns ---- */

static size_t count_racing(const race *r) {
    size_t n = 0;
    for (size_t i = 0; i < r->count; i++) n += r->list[i].racing;
    return n;
}

/* The fastest time so far among the candidates that may win. */
static double best_time(race *r) {
    double best = INFINITY;
    for (size_t i = 0; i < r->count; i++) {
        candidate *c = &r->list[i];
        if (!c->racing || !c->result.may_win) continue;
        double t = c->runs ? quantile(c, 0.5) : c->first_seconds;
        if (t < best) best = t;
    }
    return best;
}

/* Stops timing candidates that cannot win any more. They stay open, since the winner may yet fail its checks. */
static void drop_losers(race *r) {
    double best = best_time(r);
    for (size_t i = 0; i < r->count; i++) {
        candidate *c = &r->list[i];
        if (!c->racing || r->t->exhaustive || c->runs < 1) continue;
        if (c->runs == 1 && c->times[0] < SHORT_RUN) continue; /* a short run may be slow by accident */
        double margin = c->runs < 4 ? 1.5 : c->runs < 10 ? 1.2 : 1.08;
        if (quantile(c, 0) <= margin * best) continue;
        c->racing = false;
    }
}

static void shuffle(race *r, size_t *order) {
    for (size_t i = r->count; i > 1; i--) {
        size_t j = (size_t)((next_seed(r) >> 26) % i), keep = order[i - 1];
        order[i - 1] = order[j], order[j] = keep;
    }
}

static int repeats(const race *r, const candidate *c) {
    if (r->t->ctx->options.measure == SAT_MEASURE_COLD) return 1;
    double t = c->runs ? c->times[0] : c->first_seconds;
    return t >= 2e-3 ? 1 : (int)fmin(1000, ceil(2e-3 / fmax(t, 1e-7)));
}

/* Are the times of the fastest candidates known well enough to choose among them? */
static bool times_known_enough(race *r) {
    double best = best_time(r), error = 0, most = 0; /* of the medians */
    for (size_t i = 0; i < r->count; i++) {
        candidate *c = &r->list[i];
        if (!c->racing || !c->result.may_win || c->runs < 2) continue;
        summarise(c);
        if (c->result.seconds > 1.06 * best) continue;
        if (c->result.seconds == best) error = sat_choose_median_error(&c->result);
        most = fmax(most, sat_choose_median_error(&c->result));
    }
    return error + most < 0.005 * best;
}

/* A run without timing: garbage in the workspace, no flush of the cache. */
static bool run_untimed(race *r, candidate *c) {
    const sat_backend *b = r->t->ctx->backend;
    void *stream = b->stream(&c->runner.device);
    if (!spoil_workspace(r, c)) return false;
    sat_status status = sat_bench_reset(&r->bench);
    if (status == SAT_OK) status = sat_runner_launch(&c->runner, r->bench.pointer, stream);
    if (status == SAT_OK) status = b->sync(&c->runner.device, stream);
    if (status != SAT_OK) set_verdict_from_status(r, c, status);
    return status == SAT_OK;
}

/* The first timed run is checked, since its operands are those of the precision probe. Where several are timed together
 * the output has been added to several times, and a run of its own is checked. */
static bool time_one(race *r, candidate *c) {
    double seconds;
    int repeat = repeats(r, c);
    bool first = c->runs == 0;
    if (first && repeat > 1 && !(run_untimed(r, c) && check(r, c))) return false;
    if (first && repeat == 1 && !spoil_workspace(r, c)) return false;
    if (!run(r, c, repeat, &seconds)) return false;
    c->times[c->runs++] = seconds;
    return !first || repeat > 1 || check(r, c);
}

/* Times are those of random reals: integers draw less power, and a chip that draws less is faster. */
static sat_status time_candidates(race *r) {
    SAT_TRY(fill_reals(r));
    size_t *order = malloc((r->count + 1) * sizeof *order);
    if (!order) return sat_fail(SAT_OUT_OF_MEMORY, "race of %zu candidates", r->count);
    for (size_t i = 0; i < r->count; i++) order[i] = i;
    double begun = sat_now(), budget = r->t->budget_seconds - (begun - r->start), last = 0;
    int enough = r->t->exhaustive ? 100 : 30;
    r->noise = sat_noise_begin(r->t->ctx);
    for (int round = 0; round < MOST_ROUNDS && !has_ended(r); round++) {
        double now = sat_now(), spent = now - begun;
        bool long_round = last > r->t->budget_seconds;
        if (round >= (long_round ? 1 : LEAST_ROUNDS) && spent + last > budget) break;
        if (round >= enough && spent > 0.2 && times_known_enough(r)) break;
        if (round >= 5 && count_racing(r) <= 1) break;
        shuffle(r, order);
        for (size_t i = 0; i < r->count && !has_ended(r); i++) {
            candidate *c = &r->list[order[i]];
            if (!c->racing) continue;
            if (time_one(r, c)) continue;
            close_candidate(r, c);
        }
        drop_losers(r);
        r->done++;
        report(r, "timing in turns");
        last = sat_now() - now;
    }
    sat_noise_end(&r->noise, r->t->ctx);
    free(order);
    return end_status(r);
}

/* ---- between the parts: fewer threads ---- */

typedef struct timed_candidate {
    race *race;
    candidate *candidate;
} timed_candidate;

static bool time_again(void *user, double *seconds) {
    timed_candidate *t = user;
    return !has_ended(t->race) && run(t->race, t->candidate, repeats(t->race, t->candidate), seconds);
}

/* Short runs: times candidates on fewer threads, in turns with all of them, and keeps the fastest number. */
static sat_status try_fewer_threads(race *r) {
    int all = r->t->ctx->backend->threads(r->t->device->threads);
    double best = best_time(r), begun = sat_now();
    if (all <= 1 || !(best < FEW_THREADS_RUN)) return SAT_OK;
    for (size_t i = 0; i < r->count && sat_now() - begun < 0.3 * r->t->budget_seconds && !has_ended(r); i++) {
        candidate *c = &r->list[i];
        bool near = c->open && c->runs > 0 && c->result.may_win && quantile(c, 0.5) < 3 * best;
        sat_fewer fewer;
        if (c->result.verdict != SAT_VERDICT_OK || !near) continue;
        if (!sat_fewer_threads(&c->runner, all, time_again, &(timed_candidate){r, c}, &fewer)) {
            close_candidate(r, c);
            continue;
        }
        if (!fewer.threads) continue;
        c->result.threads = fewer.threads, c->runs = SAT_FEWER_ROUNDS;
        memcpy(c->times, fewer.times, sizeof fewer.times);
    }
    return end_status(r);
}

/* ---- part 3: confirm the winner ---- */

static bool digest_outputs(race *r, candidate *c, uint64_t *digest) {
    const sat_bench *s = &r->bench;
    sat_status status = SAT_OK;
    *digest = 0;
    for (int i = 0; i < s->count && status == SAT_OK; i++) {
        uint64_t one = 0;
        if (!s->operand[i].output) continue;
        status = r->t->ctx->backend->digest(r->t->device, s->pointer[i], s->bytes[i], &one);
        *digest = *digest * 0x9e3779b97f4a7c15u + one;
    }
    if (status != SAT_OK) set_verdict_from_status(r, c, status);
    return status == SAT_OK;
}

/* Checks a candidate on random reals. One that calls itself deterministic must give the same bits twice; the second
 * time other work takes part of the device, so that a result that depends on timing differs. */
static bool check_precision(race *r, candidate *c) {
    const sat_backend *b = r->t->ctx->backend;
    uint64_t first, second;
    if (!run_untimed(r, c) || !digest_outputs(r, c, &first) || !check(r, c)) return false;
    if (c->runner.variant->flags & SAT_V_NONDETERMINISTIC) return true;
    if (b->add_load) b->add_load(r->t->device);
    if (!run_untimed(r, c) || !digest_outputs(r, c, &second)) return false;
    if (first != second) set_verdict(c, SAT_VERDICT_WRONG, "calls itself deterministic, and two runs differ");
    return first == second;
}

/* The candidate that would win now. */
static candidate *find_leader(race *r) {
    sat_record *results = malloc((r->count + 1) * sizeof *results);
    candidate *found = NULL;
    size_t count = 0;
    for (size_t i = 0; results && i < r->count; i++) {
        summarise(&r->list[i]);
        results[count++] = r->list[i].result;
    }
    if (results) sat_choose_sort(results, count, &r->t->ctx->registry);
    if (count && results[0].verdict == SAT_VERDICT_OK && results[0].may_win)
        for (size_t i = 0; i < r->count; i++)
            if (strcmp(r->list[i].result.variant, results[0].variant) == 0) found = &r->list[i];
    free(results);
    return found;
}

static void check_changes(race *r, candidate *c) {
    sat_finding finding = {.ok = true};
    size_t held = r->held + r->scratch.bytes, left = r->limit > held ? r->limit - held : 0;
    sat_status status = sat_confirm(&r->bench, &c->runner, left, next_seed(r), &finding);
    forget_values(r);
    if (status == SAT_OUT_OF_MEMORY) return; /* the checks so far have to suffice */
    if (status != SAT_OK) set_verdict_from_status(r, c, status);
    else if (!finding.ok) set_verdict(c, SAT_VERDICT_WRONG, finding.where);
}

/* Checks the winner under every change that may come between runs. Where it fails, the next fastest is checked. */
static sat_status confirm_winner(race *r) {
    for (candidate *c = find_leader(r); c && !c->confirmed && !has_ended(r); c = find_leader(r)) {
        if (!c->open && !open_candidate(r, c)) continue;
        SAT_TRY(fill_reals(r));
        if (check_precision(r, c)) check_changes(r, c);
        c->confirmed = c->result.verdict == SAT_VERDICT_OK;
        if (!c->confirmed) close_candidate(r, c);
    }
    return end_status(r);
}

/* ---- the race ---- */

static sat_status open_race(race *r, const sat_tuning *t) {
    *r = (race){.t = t, .start = sat_now(), .limit = sat_memory_limit(t->ctx)};
    r->random = (uint64_t)(uintptr_t)r ^ (uint64_t)(r->start * 1e9);
    SAT_TRY(sat_bench_open(&r->bench, t->ctx, t->problem, t->pattern, t->device, r->limit));
    r->held = r->peak = r->bench.held;
    SAT_TRY(gather_candidates(r));
    r->total = (int)count_racing(r) + (t->exhaustive ? 100 : 30);
    return SAT_OK;
}

static void close_race(race *r) {
    const sat_registry *all = &r->t->ctx->registry;
    for (size_t i = 0; r->list && i < r->count; i++) {
        const sat_record *x = &r->list[i].result;
        const sat_variant *v = x->verdict == SAT_VERDICT_WRONG ? sat_registry_find(all, x->variant) : NULL;
        if (v) sat_registry_distrust(all, v);
    }
    for (size_t i = 0; r->list && i < r->count; i++) close_candidate(r, &r->list[i]);
    free(r->list);
    if (r->scratch.memory) sat_free(r->t->ctx, r->scratch.memory);
    sat_bench_close(&r->bench);
}

static sat_status collect_results(race *r, sat_outcome *outcome) {
    outcome->results = malloc((r->count + 1) * sizeof *outcome->results);
    if (!outcome->results) return sat_fail(SAT_OUT_OF_MEMORY, "%zu results", r->count);
    for (size_t i = 0; i < r->count; i++) {
        candidate *c = &r->list[i];
        summarise(c);
        if (!r->broke_device || r->broke_device == c) outcome->results[outcome->count++] = c->result;
    }
    sat_choose_sort(outcome->results, outcome->count, &r->t->ctx->registry);
    if (outcome->count) outcome->noisy = sat_noise_too_high(&r->noise, r->t->ctx, r->t->device, &outcome->results[0]);
    outcome->peak_bytes = r->peak;
    outcome->seconds = sat_now() - r->start;
    return SAT_OK;
}

sat_status sat_tune_race(const sat_tuning *t, sat_outcome *outcome) {
    race r;
    *outcome = (sat_outcome){0};
    sat_status status = open_race(&r, t);
    if (status == SAT_OK) status = verify_structure(&r);
    if (status == SAT_OK) status = retry_skipped(&r);
    if (status == SAT_OK) status = reconsider_by_estimate(&r);
    if (status == SAT_OK) status = time_candidates(&r);
    if (status == SAT_OK) status = try_fewer_threads(&r);
    if (status == SAT_OK) status = retry_skipped(&r);
    if (status == SAT_OK) status = confirm_winner(&r);
    if (status == SAT_OK) status = retry_skipped(&r);
    if (status == SAT_OK) status = confirm_winner(&r); /* the candidates that retry_skipped brought */
    if (status == SAT_OK) status = collect_results(&r, outcome);
    else if (r.broke_device) (void)collect_results(&r, outcome);
    sat_logf(&t->ctx->log, SAT_LOG_DEBUG, "timed in %.3g s, preempted %lld times%s", r.noise.seconds,
             (long long)r.noise.preempted, outcome->noisy ? ": the machine was busy" : "");
    close_race(&r);
    for (size_t i = 0; i < outcome->count; i++) {
        const sat_record *x = &outcome->results[i];
        if (x->verdict == SAT_VERDICT_WRONG)
            sat_logf(&t->ctx->log, SAT_LOG_WARN, "%s gave a wrong result and can not win: %s", x->variant, x->message);
        sat_logf(&t->ctx->log, SAT_LOG_DEBUG, "%s: %s, %.3g s over %d runs", x->variant, sat_verdict_name(x->verdict),
                 x->seconds, x->runs);
    }
    return status;
}

sat_status sat_tune_verify(const sat_tuning *t, const sat_variant *v, sat_record *result) {
    race r;
    sat_tuning one = *t;
    *result = (sat_record){0};
    one.candidates = &v, one.count = 1, one.exhaustive = true;
    sat_status status = open_race(&r, &one);
    if (status == SAT_OK) {
        r.list[0].racing = true;
        status = verify_structure(&r);
        if (status == SAT_OK && r.list[0].open) status = confirm_winner(&r);
    }
    if (status == SAT_OK || r.broke_device) *result = r.list[0].result;
    close_race(&r);
    return status;
}
