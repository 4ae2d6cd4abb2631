/* A race, in three parts: verify_structure runs every candidate and checks it; time_candidates times in turns
 * those that may still win, and checks their precision; confirm_winner checks the fastest under every other change
 * (confirm.h), and where it fails, the next fastest. sat_tune_race, at the end, calls them in order. */
#include "core/tune.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fewer.h"
#include "core/trial.h"

enum {
    LEAST_ROUNDS = 2,     /* of timing; one where a round takes longer than the budget */
    SLOW = 3,             /* times the best: dropped after verification, see drop_slow */
    TOO_SLOW = 40,        /* times the best estimate: skipped, see too_slow */
    TOO_SLOW_AND_LONG = 6 /* the same, of a run beyond LONG_RUN */
};
static const double SHORT_RUN = 0.02;       /* seconds: a slow library still runs, and one sample drops no candidate */
static const double LONG_RUN = 0.1;         /* seconds: checking it would be most of the race */
static const double FEW_THREADS_RUN = 3e-4; /* seconds: a longer run wants all threads */

/* ---- results ---- */

/* Sorts the samples: their order is not needed afterwards. */
static double quantile(sat_candidate *c, double q) {
    sat_choose_sort_times(c->times, (size_t)c->runs);
    double at = q * (c->runs - 1);
    int low = (int)at, high = low + 1 < c->runs ? low + 1 : low;
    return c->times[low] + (at - low) * (c->times[high] - c->times[low]);
}

static void summarise(sat_candidate *c) {
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

static void report(sat_trials *r, const char *what) {
    if (r->t->progress && !r->t->progress(r->t->progress_user, r->done, r->total, what)) r->stop_asked = true;
}

static bool is_cancelled(const sat_trials *r) { return r->stop_asked || (r->t->cancel && atomic_load(r->t->cancel)); }
static bool has_ended(const sat_trials *r) { return r->broke_device || is_cancelled(r); }

/* Why a race has ended; SAT_OK for one that goes on. */
static sat_status end_status(const sat_trials *r) {
    if (r->broke_device)
        return sat_fail(SAT_DEVICE_ERROR,
                        "%s broke the device (%.160s): this process cannot use %s any more; `sparse_autotune race "
                        "--isolate` tries each variant in a process of its own",
                        r->broke_device->result.variant, r->broke_device->result.message, r->t->device->name);
    return is_cancelled(r) ? sat_fail(SAT_CANCELLED, "the race was cancelled") : SAT_OK;
}

/* ---- candidates ---- */

static int by_estimate(const void *x, const void *y) {
    const sat_candidate *a = x, *b = y;
    if (a->estimate != b->estimate) return a->estimate < b->estimate ? -1 : 1;
    return strcmp(a->result.variant, b->result.variant);
}

/* Estimated too slow to be worth a run? A library still runs, for comparison, where that takes little time. A baseline,
 * which may not win, is there to be shown: only TOO_SLOW skips it, however long it runs. */
static bool too_slow(const sat_candidate *c, double best) {
    bool library = c->runner.variant->flags & SAT_V_LIBRARY;
    if (c->result.may_win && c->estimate > LONG_RUN && c->estimate > TOO_SLOW_AND_LONG * best) return true;
    return c->estimate > TOO_SLOW * best && !(library && c->estimate <= SHORT_RUN);
}

static sat_status gather_candidates(sat_trials *r) {
    const sat_tuning *t = r->t;
    r->list = calloc(t->count + 1, sizeof *r->list);
    if (!r->list) return sat_fail(SAT_OUT_OF_MEMORY, "race of %zu candidates", t->count);
    r->count = t->count;
    size_t contenders = 0;
    for (size_t i = 0; i < t->count; i++) {
        sat_candidate *c = &r->list[i];
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
        sat_candidate *c = &r->list[i];
        bool reference = c->runner.variant->flags & SAT_V_REFERENCE;
        c->racing = true;
        if (reference && contenders > 0)
            sat_trial_judge(c, SAT_VERDICT_SKIPPED, "the reference, beside others that fit");
        else if (!t->exhaustive && too_slow(c, best))
            sat_trial_judge(c, SAT_VERDICT_SKIPPED, "estimated too slow to win");
    }
    return SAT_OK;
}

/* ---- part 1: verify the structure ---- */

/* Drops candidates that are far slower than one that may win, and frees their workspace. Either the estimate is beyond
 * SLOW times the best one and the fastest of up to three runs beyond 1.3 times the best; or the measured
 * time is beyond SLOW times the best and 20 ms, whatever the estimate. A shorter first run may be slow by accident, and
 * never decides alone. */
static void drop_slow(sat_trials *r) {
    double fastest = INFINITY, estimate = INFINITY;
    for (size_t i = 0; i < r->count; i++) {
        sat_candidate *c = &r->list[i];
        if (!c->racing || !c->result.may_win || c->result.verdict != SAT_VERDICT_OK) continue;
        if (c->first_seconds < fastest) fastest = c->first_seconds;
        if (c->estimate < estimate) estimate = c->estimate;
    }
    for (size_t i = 0; i < r->count && !has_ended(r); i++) {
        sat_candidate *c = &r->list[i];
        if (!c->racing || c->result.verdict != SAT_VERDICT_OK || r->t->exhaustive) continue;
        bool estimated_slow = c->estimate > SLOW * estimate;
        for (int repeat = 0;
             repeat < 2 && estimated_slow && c->first_seconds > 1.3 * fastest && c->first_seconds < 1.5 * SHORT_RUN;
             repeat++) {
            double seconds; /* the first run may have included the start of a library */
            if (sat_trial_run(r, c, 1, &seconds)) c->first_seconds = fmin(c->first_seconds, seconds);
        }
        bool measured_slow = c->first_seconds > SLOW * fastest && c->first_seconds > SHORT_RUN;
        if (!measured_slow && !(estimated_slow && c->first_seconds > 1.3 * fastest)) continue;
        c->racing = false;
        sat_trial_close(r, c);
    }
}

/* Runs every candidate on one set of operands of the structure probe: only a right structure passes. */
static sat_status verify_structure(sat_trials *r) {
    SAT_TRY(sat_trials_fill(r, SAT_PROBE_STRUCTURE, 0));
    for (size_t i = 0; i < r->count && !has_ended(r); i++) {
        sat_candidate *c = &r->list[i];
        if (!c->racing || c->result.verdict == SAT_VERDICT_OK) continue;
        report(r, c->result.variant);
        if (!c->open && !sat_trial_open(r, c)) continue;
        if (r->t->ctx->backend->lazy_loading &&
            !sat_trial_run(r, c, 1, &c->first_seconds)) { /* loads the code; the time does not count */
            sat_trial_close(r, c);
            continue;
        }
        if (sat_trial_spoil_workspace(r, c) && sat_trial_run(r, c, 1, &c->first_seconds) && sat_trial_check(r, c))
            c->result.verdict = SAT_VERDICT_OK;
        if (!c->racing) sat_trial_close(r, c);
        drop_slow(r);
        r->done++;
    }
    return end_status(r);
}

/* If no candidate that may win is left, verifies those that were skipped, the reference among them. */
static sat_status retry_skipped(sat_trials *r) {
    for (size_t i = 0; i < r->count; i++)
        if ((r->list[i].racing || r->list[i].confirmed) && r->list[i].result.may_win) return SAT_OK;
    for (size_t i = 0; i < r->count; i++) {
        sat_candidate *c = &r->list[i];
        c->racing = c->result.verdict == SAT_VERDICT_SKIPPED;
        if (c->racing) c->result.message[0] = 0;
    }
    return verify_structure(r);
}

/* An estimate orders a race and does not decide it. Candidates that were skipped are verified too if they are estimated
 * within SLOW times the fastest first run: the best estimate, which they were compared with, was then too low. */
static sat_status reconsider_by_estimate(sat_trials *r) {
    double fastest = INFINITY;
    size_t reconsidered = 0;
    for (size_t i = 0; i < r->count; i++) {
        sat_candidate *c = &r->list[i];
        if (c->racing && c->result.may_win && c->first_seconds < fastest) fastest = c->first_seconds;
    }
    for (size_t i = 0; i < r->count; i++) {
        sat_candidate *c = &r->list[i];
        bool reference = c->runner.variant->flags & SAT_V_REFERENCE;
        if (c->result.verdict != SAT_VERDICT_SKIPPED || reference || c->estimate > SLOW * fastest) continue;
        c->racing = true, c->result.message[0] = 0;
        reconsidered++;
    }
    return reconsidered ? verify_structure(r) : SAT_OK;
}

/* ---- part 2: time in turns ---- */

static size_t count_racing(const sat_trials *r) {
    size_t n = 0;
    for (size_t i = 0; i < r->count; i++) n += r->list[i].racing;
    return n;
}

/* The fastest time so far among the candidates that may win. */
static double best_time(sat_trials *r) {
    double best = INFINITY;
    for (size_t i = 0; i < r->count; i++) {
        sat_candidate *c = &r->list[i];
        if (!c->racing || !c->result.may_win) continue;
        double t = c->runs ? quantile(c, 0.5) : c->first_seconds;
        if (t < best) best = t;
    }
    return best;
}

/* Stops timing candidates that cannot win any more. They stay open, since the winner may yet fail its checks. */
static void drop_losers(sat_trials *r) {
    double best = best_time(r);
    for (size_t i = 0; i < r->count; i++) {
        sat_candidate *c = &r->list[i];
        if (!c->racing || r->t->exhaustive || c->runs < 1) continue;
        if (c->runs == 1 && c->times[0] < SHORT_RUN) continue; /* a short run may be slow by accident */
        double margin = c->runs < 4 ? 1.5 : c->runs < 10 ? 1.2 : 1.08;
        if (quantile(c, 0) <= margin * best) continue;
        c->racing = false;
    }
}

static void shuffle(sat_trials *r, size_t *order) {
    for (size_t i = r->count; i > 1; i--) {
        size_t j = (size_t)((sat_trials_next_random(r) >> 26) % i), keep = order[i - 1];
        order[i - 1] = order[j], order[j] = keep;
    }
}

static int repeats(const sat_trials *r, const sat_candidate *c) {
    if (r->t->ctx->options.measure == SAT_MEASURE_COLD) return 1;
    double t = c->runs ? c->times[0] : c->first_seconds;
    return t >= 2e-3 ? 1 : (int)fmin(1000, ceil(2e-3 / fmax(t, 1e-7)));
}

/* Are the times of the fastest candidates known well enough to choose among them? */
static bool times_known_enough(sat_trials *r) {
    double best = best_time(r), error = 0, most = 0; /* of the medians */
    for (size_t i = 0; i < r->count; i++) {
        sat_candidate *c = &r->list[i];
        if (!c->racing || !c->result.may_win || c->runs < 2) continue;
        summarise(c);
        if (c->result.seconds > 1.06 * best) continue;
        if (c->result.seconds == best) error = sat_choose_median_error(&c->result);
        most = fmax(most, sat_choose_median_error(&c->result));
    }
    return error + most < 0.005 * best;
}

/* The first timed run is checked, since its operands are those of the precision probe. Where several are timed together
 * the output has been added to several times, and a run of its own is checked. */
static bool time_one(sat_trials *r, sat_candidate *c) {
    double seconds;
    int repeat = repeats(r, c);
    bool first = c->runs == 0;
    if (first && repeat > 1 && !(sat_trial_run_untimed(r, c) && sat_trial_check(r, c))) return false;
    if (first && repeat == 1 && !sat_trial_spoil_workspace(r, c)) return false;
    if (!sat_trial_run(r, c, repeat, &seconds)) return false;
    c->times[c->runs++] = seconds;
    return !first || repeat > 1 || sat_trial_check(r, c);
}

/* Times are those of random reals: integers draw less power, and a chip that draws less is faster. */
static sat_status time_candidates(sat_trials *r) {
    SAT_TRY(sat_trials_fill_reals(r));
    size_t *order = malloc((r->count + 1) * sizeof *order);
    if (!order) return sat_fail(SAT_OUT_OF_MEMORY, "race of %zu candidates", r->count);
    for (size_t i = 0; i < r->count; i++) order[i] = i;
    double begun = sat_now(), budget = r->t->budget_seconds - (begun - r->start), last = 0;
    int enough = r->t->exhaustive ? 100 : 30;
    r->noise = sat_noise_begin(r->t->ctx);
    for (int round = 0; round < SAT_MOST_ROUNDS && !has_ended(r); round++) {
        double now = sat_now(), spent = now - begun;
        bool long_round = last > r->t->budget_seconds;
        if (round >= (long_round ? 1 : LEAST_ROUNDS) && spent + last > budget) break;
        if (round >= enough && spent > 0.2 && times_known_enough(r)) break;
        if (round >= 5 && count_racing(r) <= 1) break;
        shuffle(r, order);
        for (size_t i = 0; i < r->count && !has_ended(r); i++) {
            sat_candidate *c = &r->list[order[i]];
            if (!c->racing) continue;
            if (time_one(r, c)) continue;
            sat_trial_close(r, c);
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
    sat_trials *trials;
    sat_candidate *candidate;
} timed_candidate;

static bool time_again(void *user, double *seconds) {
    timed_candidate *t = user;
    return !has_ended(t->trials) && sat_trial_run(t->trials, t->candidate, repeats(t->trials, t->candidate), seconds);
}

/* Short runs: times candidates on fewer threads, in turns with all of them, and keeps the fastest number. */
static sat_status try_fewer_threads(sat_trials *r) {
    int all = r->t->ctx->backend->threads(r->t->device->threads);
    double best = best_time(r), begun = sat_now();
    if (all <= 1 || !(best < FEW_THREADS_RUN)) return SAT_OK;
    for (size_t i = 0; i < r->count && sat_now() - begun < 0.3 * r->t->budget_seconds && !has_ended(r); i++) {
        sat_candidate *c = &r->list[i];
        bool near = c->open && c->runs > 0 && c->result.may_win && quantile(c, 0.5) < 3 * best;
        sat_fewer fewer;
        if (c->result.verdict != SAT_VERDICT_OK || !near) continue;
        if (!sat_fewer_threads(&c->runner, all, time_again, &(timed_candidate){r, c}, &fewer)) {
            sat_trial_close(r, c);
            continue;
        }
        if (!fewer.threads) continue;
        c->result.threads = fewer.threads, c->runs = SAT_FEWER_ROUNDS;
        memcpy(c->times, fewer.times, sizeof fewer.times);
    }
    return end_status(r);
}

/* ---- part 3: confirm the winner ---- */

/* Finds the candidate that would win now; NULL where none may. */
static sat_status find_leader(sat_trials *r, sat_candidate **leader) {
    sat_record *results = malloc((r->count + 1) * sizeof *results);
    *leader = NULL;
    if (!results) return sat_fail(SAT_OUT_OF_MEMORY, "race of %zu candidates", r->count);
    for (size_t i = 0; i < r->count; i++) {
        summarise(&r->list[i]);
        results[i] = r->list[i].result;
    }
    sat_choose_sort(results, r->count, &r->t->ctx->registry);
    if (r->count && results[0].verdict == SAT_VERDICT_OK && results[0].may_win)
        for (size_t i = 0; i < r->count; i++)
            if (strcmp(r->list[i].result.variant, results[0].variant) == 0) *leader = &r->list[i];
    free(results);
    return SAT_OK;
}

/* Checks the winner under every change that may come between runs. Where it fails, the next fastest is checked. */
static sat_status confirm_winner(sat_trials *r) {
    while (!has_ended(r)) {
        sat_candidate *c;
        SAT_TRY(find_leader(r, &c));
        if (!c || c->confirmed) break;
        if (!c->open && !sat_trial_open(r, c)) continue;
        SAT_TRY(sat_trials_fill_reals(r));
        if (sat_trial_check_precision(r, c)) sat_trial_check_changes(r, c);
        c->confirmed = c->result.verdict == SAT_VERDICT_OK;
        if (!c->confirmed) sat_trial_close(r, c);
    }
    return end_status(r);
}

/* ---- the race ---- */

static sat_status open_race(sat_trials *r, const sat_tuning *t) {
    *r = (sat_trials){.t = t, .start = sat_now(), .limit = sat_memory_limit(t->ctx)};
    r->random = (uint64_t)(uintptr_t)r ^ (uint64_t)(r->start * 1e9);
    SAT_TRY(sat_bench_open(&r->bench, t->ctx, t->problem, t->pattern, t->device, r->limit));
    r->held = r->peak = r->bench.held;
    SAT_TRY(gather_candidates(r));
    r->total = (int)count_racing(r) + (t->exhaustive ? 100 : 30);
    return SAT_OK;
}

static void close_race(sat_trials *r) {
    const sat_registry *all = &r->t->ctx->registry;
    for (size_t i = 0; r->list && i < r->count; i++) {
        const sat_record *x = &r->list[i].result;
        const sat_variant *v = x->verdict == SAT_VERDICT_WRONG ? sat_registry_find(all, x->variant) : NULL;
        if (v) sat_registry_distrust(all, v);
    }
    for (size_t i = 0; r->list && i < r->count; i++) sat_trial_close(r, &r->list[i]);
    free(r->list);
    if (r->scratch.memory) sat_free(r->t->ctx, r->scratch.memory);
    sat_bench_close(&r->bench);
}

static sat_status collect_results(sat_trials *r, sat_outcome *outcome) {
    outcome->results = malloc((r->count + 1) * sizeof *outcome->results);
    if (!outcome->results) return sat_fail(SAT_OUT_OF_MEMORY, "%zu results", r->count);
    for (size_t i = 0; i < r->count; i++) {
        sat_candidate *c = &r->list[i];
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
    sat_trials r;
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
    sat_trials r;
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
