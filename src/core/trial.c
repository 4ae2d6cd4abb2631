/* What tune.c does with a candidate. See trial.h. */
#include "core/trial.h"

#include <stdio.h>

#include "core/confirm.h"

/* ---- verdicts ---- */

void sat_trial_judge(sat_candidate *c, sat_verdict verdict, const char *message) {
    c->result.verdict = verdict;
    c->racing = false;
    snprintf(c->result.message, sizeof c->result.message, "%.190s", message);
}

void sat_trial_fail(sat_trials *r, sat_candidate *c, sat_status status) {
    char message[192];
    snprintf(message, sizeof message, "%s: %.150s", sat_status_name(status), sat_last_error());
    sat_trial_judge(c, status == SAT_OUT_OF_MEMORY ? SAT_VERDICT_MEMORY : SAT_VERDICT_ERROR, message);
    if (r->t->ctx->backend->broken(r->t->device)) r->broke_device = c; /* it also waits for what was queued */
}

/* ---- opening and closing ---- */

void sat_trial_close(sat_trials *r, sat_candidate *c) {
    if (!c->open) return;
    if (!c->runner.scratch) r->held -= c->runner.workspace_bytes;
    sat_runner_close(&c->runner);
    c->open = false;
}

bool sat_trial_open(sat_trials *r, sat_candidate *c) {
    const sat_tuning *t = r->t;
    const sat_variant *v = c->runner.variant;
    size_t held = r->held + r->scratch.bytes, left = r->limit > held ? r->limit - held : 0;
    sat_status status =
        sat_runner_open(&c->runner, t->ctx, v, t->problem, r->bench.run_with, t->device, left, &r->scratch);
    if (status != SAT_OK) {
        sat_trial_fail(r, c, status);
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

/* ---- operands ---- */

uint64_t sat_trials_next_random(sat_trials *r) {
    r->random = r->random * 6364136223846793005u + 1442695040888963407u;
    return r->random >> 7;
}

/* The operands are new: fixed values that a candidate has converted are stale. */
static void forget_values(sat_trials *r) {
    for (size_t i = 0; i < r->count; i++) r->list[i].runner.refreshed = false;
}

sat_status sat_trials_fill(sat_trials *r, sat_probe probe, int fill_case) {
    forget_values(r);
    r->has_reals = false;
    return sat_bench_fill(&r->bench, probe, fill_case, sat_trials_next_random(r));
}

sat_status sat_trials_fill_reals(sat_trials *r) {
    if (!r->has_reals) SAT_TRY(sat_trials_fill(r, SAT_PROBE_PRECISION, 0));
    r->has_reals = true;
    return SAT_OK;
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

static sat_status refresh(sat_trials *r, sat_candidate *c, void *stream) {
    const sat_backend *b = r->t->ctx->backend;
    int before = b->enter(&c->runner.device, true);
    sat_status status = sat_runner_refresh(&c->runner, r->bench.pointer[0], stream);
    b->leave(&c->runner.device, before);
    return status;
}

bool sat_trial_run(sat_trials *r, sat_candidate *c, int repeat, double *seconds) {
    sat_context *ctx = r->t->ctx;
    void *stream = ctx->backend->stream(&c->runner.device);
    call call = {&c->runner, r->bench.pointer, stream};
    sat_status status = sat_bench_reset(&r->bench);
    if (status == SAT_OK && !c->runner.refreshed) status = refresh(r, c, stream);
    if (status == SAT_OK && ctx->options.measure == SAT_MEASURE_COLD) sat_bench_flush(&r->bench);
    if (status == SAT_OK) status = ctx->backend->time(&c->runner.device, run_call, &call, repeat, seconds);
    if (status == SAT_OK) status = ctx->backend->sync(&c->runner.device, stream);
    if (status != SAT_OK) sat_trial_fail(r, c, status);
    return status == SAT_OK;
}

bool sat_trial_spoil_workspace(sat_trials *r, sat_candidate *c) {
    sat_status status = sat_runner_spoil_workspace(&c->runner, 0xff);
    if (status != SAT_OK) sat_trial_fail(r, c, status);
    return status == SAT_OK;
}

bool sat_trial_check(sat_trials *r, sat_candidate *c) {
    sat_finding finding;
    sat_status status = sat_bench_check(&r->bench, &finding);
    if (status != SAT_OK) {
        sat_trial_fail(r, c, status);
        return false;
    }
    if (finding.error > c->result.error) c->result.error = finding.error;
    if (r->bench.probe == SAT_PROBE_PRECISION)
        sat_logf(&r->t->ctx->log, SAT_LOG_DEBUG, "%s: errors up to %.3g of what rounding allows, rms %.3g of predicted",
                 c->result.variant, finding.share, finding.rms);
    if (!finding.ok) sat_trial_judge(c, SAT_VERDICT_WRONG, finding.where);
    return finding.ok;
}

bool sat_trial_run_untimed(sat_trials *r, sat_candidate *c) {
    const sat_backend *b = r->t->ctx->backend;
    void *stream = b->stream(&c->runner.device);
    if (!sat_trial_spoil_workspace(r, c)) return false;
    sat_status status = sat_bench_reset(&r->bench);
    if (status == SAT_OK) status = sat_runner_launch(&c->runner, r->bench.pointer, stream);
    if (status == SAT_OK) status = b->sync(&c->runner.device, stream);
    if (status != SAT_OK) sat_trial_fail(r, c, status);
    return status == SAT_OK;
}

/* ---- checks of a winner ---- */

static bool digest_outputs(sat_trials *r, sat_candidate *c, uint64_t *digest) {
    const sat_bench *s = &r->bench;
    sat_status status = SAT_OK;
    *digest = 0;
    for (int i = 0; i < s->count && status == SAT_OK; i++) {
        uint64_t one = 0;
        if (!s->operand[i].output) continue;
        status = r->t->ctx->backend->digest(r->t->device, s->pointer[i], s->bytes[i], &one);
        *digest = *digest * 0x9e3779b97f4a7c15u + one;
    }
    if (status != SAT_OK) sat_trial_fail(r, c, status);
    return status == SAT_OK;
}

bool sat_trial_check_precision(sat_trials *r, sat_candidate *c) {
    const sat_backend *b = r->t->ctx->backend;
    uint64_t first, second;
    if (!sat_trial_run_untimed(r, c) || !digest_outputs(r, c, &first) || !sat_trial_check(r, c)) return false;
    if (c->runner.variant->flags & SAT_V_NONDETERMINISTIC) return true;
    if (b->add_load) b->add_load(r->t->device);
    if (!sat_trial_run_untimed(r, c) || !digest_outputs(r, c, &second)) return false;
    if (first != second) sat_trial_judge(c, SAT_VERDICT_WRONG, "calls itself deterministic, and two runs differ");
    return first == second;
}

void sat_trial_check_changes(sat_trials *r, sat_candidate *c) {
    sat_finding finding = {.ok = true};
    size_t held = r->held + r->scratch.bytes, left = r->limit > held ? r->limit - held : 0;
    sat_status status = sat_confirm(&r->bench, &c->runner, left, sat_trials_next_random(r), &finding);
    forget_values(r);
    r->has_reals = false;
    if (status != SAT_OK) sat_trial_fail(r, c, status);
    else if (!finding.ok) sat_trial_judge(c, SAT_VERDICT_WRONG, finding.where);
}
