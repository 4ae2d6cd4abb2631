// One case: a plan with exactly this variant, or with the tuner's choice, run twice on different data, once more on one
// thread.

#include "check_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../isolate.h"
#include "check_find.h"
#include "check_mask.h"

bool checker_open(checker *k, const setup *s, bool tuned, bool by_race) {
    *k = (checker){.report_fd = -1, .tuned = tuned, .by_race = by_race};
    setup many = *s, one = *s;
    many.cache = one.cache = "", many.effort = one.effort = SAT_EFFORT_OFF;
    if (tuned || by_race) many.effort = SAT_EFFORT_QUICK;
    if (by_race) many.budget = 1e-3; // it is to be verified, not timed
    one.threads = 1;
    k->many = setup_open(&many);
    if (k->many && !s->threads && sat_context_device(k->many)->threads == 1) { // a single core shows nothing else
        sat_context_free(k->many);
        many.threads = 2;
        k->many = setup_open(&many);
    }
    // On a GPU three multiprocessors: CTAs of a persistent kernel have several tiles each, and take them from one
    // counter.
    if (k->many && sat_context_device(k->many)->backend == SAT_CUDA) one.multiprocessors = 3;
    k->one = k->many ? setup_open(&one) : NULL;
    one.device = "cpu", one.threads = 1;
    k->host = k->one ? setup_open(&one) : NULL;
    return k->host && setup_plugins(s, k->many) && setup_plugins(s, k->one);
}

void checker_close(checker *k) {
    data_free(&k->data);
    sat_context_free(k->many);
    sat_context_free(k->one);
    sat_context_free(k->host);
}

typedef struct trial {
    checker *k;
    const sat_variant *v;
    check_case *c;
    char *message;
    size_t capacity;
    bool *declined; // by_race: the variant does not take the problem on this device
} trial;

static bool wrong(const trial *t, const char *what) {
    snprintf(t->message, t->capacity, "%s", what);
    return false;
}

static bool wrong_status(const trial *t, const char *call, sat_status status) {
    snprintf(t->message, t->capacity, "%s: %s (%s)", call, sat_last_error(), sat_status_name(status));
    return false;
}

static sat_status make_plan(const trial *t, sat_context *context, sat_plan **plan) {
    sat_pattern *pattern = NULL;
    *plan = NULL;
    sat_status status = case_pattern(context, t->c, &pattern);
    if (status == SAT_OK && t->k->tuned) status = sat_plan_create(context, pattern, &t->c->problem, plan);
    else if (status == SAT_OK) status = sat_plan_create_with(context, pattern, &t->c->problem, t->v->name, plan);
    sat_pattern_free(pattern); // the plan must not need it
    return status;
}

// A library may decline a problem when it is asked, which is no failure.
static bool failed(const sat_result *r) {
    bool declined = strncmp(r->message, "SAT_UNSUPPORTED", strlen("SAT_UNSUPPORTED")) == 0;
    return r->verdict == SAT_VERDICT_WRONG || (r->verdict == SAT_VERDICT_ERROR && !declined);
}

// The race that the plan's choice comes from, or of one variant alone. A variant that it found wrong is a failure,
// though it cannot win.
static bool tune(const trial *t) {
    sat_race_options o = {SAT_SIZED(sat_race_options), .fresh = true, .discard = !t->k->tuned};
    if (t->k->by_race) o.only = t->v->name;
    sat_pattern *pattern = NULL;
    sat_race *race = NULL;
    sat_status status = case_pattern(t->k->many, t->c, &pattern);
    if (status == SAT_OK) status = sat_race_run(t->k->many, pattern, &t->c->problem, &o, &race);
    sat_pattern_free(pattern);
    const sat_result *bad = NULL;
    for (size_t i = 0; status == SAT_OK && i < sat_race_count(race); i++) {
        const sat_result *r = sat_race_at(race, i);
        if (failed(r)) bad = r;
    }
    if (status == SAT_NOT_FOUND && t->k->by_race) *t->declined = true;
    if (bad) snprintf(t->message, t->capacity, "in its race %s was wrong: %s", bad->variant, bad->message);
    else if (status != SAT_OK) wrong_status(t, "race", status);
    sat_race_free(race);
    return status == SAT_OK && !bad;
}

// A device with its own memory gets the operands first, and they come back after the run.
static sat_status run(check_data *d, const check_case *c, sat_context *context, sat_plan *plan) {
    sat_status status = data_push(d, context);
    if (status == SAT_OK && c->mask.used) status = mask_write(c, context);
    const void *inputs[CHECK_OPERANDS];
    void *outputs[CHECK_OPERANDS];
    size_t in = 0, out = 0;
    for (int i = 0; i < d->count; i++) {
        if (!d->list[i].name) continue;
        if (d->list[i].output) outputs[out++] = d->pointers[i];
        else inputs[in++] = d->pointers[i];
    }
    if (status != SAT_OK) return status;
    bool host = sat_context_device(context)->backend == SAT_CPU;
    status = sat_run(plan, inputs, in, outputs, out, NULL);
    if (!host && c->mask.used && mask_fault(status)) status = SAT_OK; // of an earlier run: a GPU says it later
    if (host && d->expected != SAT_OK) {                              // the outputs are written all the same
        if (status == SAT_OK)
            return sat_fail(SAT_WRONG_RESULT, "the run returned SAT_OK; expected %s", sat_status_name(d->expected));
        if (status == d->expected) status = SAT_OK;
    }
    return status == SAT_OK ? data_pull(d) : status;
}

static bool run_and_compare(const trial *t, sat_plan *plan, const char *which) {
    check_data *d = &t->k->data;
    sat_status status = run(d, t->c, t->k->many, plan);
    if (status != SAT_OK) return wrong_status(t, which, status);
    char what[256];
    if (data_compare(d, t->c, what, sizeof what)) return true;
    snprintf(t->message, t->capacity, "%s: %s", which, what);
    return false;
}

// The outputs' zones, one after the other.
static char *copy_outputs(const check_data *d) {
    size_t bytes = 1;
    for (int i = 0; i < d->count; i++) bytes += d->list[i].output ? d->list[i].zone_bytes : 0;
    char *copy = malloc(bytes), *at = copy;
    for (int i = 0; copy && i < d->count; i++)
        if (d->list[i].output) memcpy(at, d->list[i].zone, d->list[i].zone_bytes), at += d->list[i].zone_bytes;
    return copy;
}

static bool same_outputs(const check_data *d, const char *at) {
    bool same = true;
    for (int i = 0; i < d->count; i++)
        if (d->list[i].output)
            same = same && memcmp(at, d->list[i].zone, d->list[i].zone_bytes) == 0, at += d->list[i].zone_bytes;
    return same;
}

// On a GPU a plan for fewer multiprocessors may split rows elsewhere, so there the same plan runs once more.
static bool run_again(const trial *t, sat_plan *plan) {
    check_data *d = &t->k->data;
    if (t->v->backend != SAT_CUDA || t->k->tuned || t->v->flags & SAT_V_NONDETERMINISTIC) return true;
    char *first = copy_outputs(d);
    if (!first) return wrong(t, "not enough memory to compare");
    data_restore(d);
    sat_status status = run(d, t->c, t->k->many, plan);
    bool same = status == SAT_OK && same_outputs(d, first);
    free(first);
    if (status != SAT_OK) return wrong_status(t, "third run", status);
    return same || wrong(t, "two runs on the same operands differ");
}

// The second run has other data, and the plan either takes the new values in or is a copy of the first.
static bool second_run(const trial *t, sat_plan *plan) {
    check_data *d = &t->k->data;
    if (t->c->mask.used) mask_draw(t->c, &(rng){t->c->seed + 2}); // and another mask
    if (!data_fill(d, t->c, t->c->seed + 1)) return wrong(t, "not enough memory for the reference");
    sat_plan *copy = NULL;
    sat_status status = data_push(d, t->k->many);
    if (status != SAT_OK) return wrong_status(t, "operands", status);
    if (t->c->duplicate) status = sat_plan_dup(plan, &copy);
    else if (t->c->problem.flags & SAT_FIXED_VALUES) status = sat_plan_refresh(plan, d->pointers[0], NULL);
    if (status != SAT_OK) return wrong_status(t, t->c->duplicate ? "sat_plan_dup" : "sat_plan_refresh", status);
    bool ok = run_and_compare(t, copy ? copy : plan, copy ? "second run, on a copy of the plan" : "second run") &&
              run_again(t, copy ? copy : plan);
    sat_plan_free(copy);
    return ok;
}

static bool run_on_one_thread(const trial *t) {
    check_data *d = &t->k->data;
    if (t->k->tuned || t->v->flags & SAT_V_NONDETERMINISTIC) return true;
    sat_plan *plan;
    sat_status status = make_plan(t, t->k->one, &plan);
    if (status == SAT_UNSUPPORTED) return true;
    if (status != SAT_OK) return wrong_status(t, "plan for one thread", status);
    char *many = copy_outputs(d);
    if (!many) return sat_plan_free(plan), wrong(t, "not enough memory to compare");
    data_restore(d);
    status = run(d, t->c, t->k->many, plan); // on the memory of the first
    bool same = same_outputs(d, many);
    free(many);
    sat_plan_free(plan);
    if (status != SAT_OK) return wrong_status(t, "run on one thread", status);
    if (t->v->backend == SAT_CUDA) { // rows may be cut elsewhere
        char what[256];
        if (same || data_compare(d, t->c, what, sizeof what)) return true;
        snprintf(t->message, t->capacity, "planned for three multiprocessors: %s", what);
        return false;
    }
    return same || wrong(t, "the result depends on the number of threads, or on timing");
}

static bool run_all(const trial *t, sat_plan *plan) {
    check_data *d = &t->k->data;
    bool ok = data_open(d, t->c) && data_fill(d, t->c, t->c->seed);
    if (!ok) wrong(t, "not enough memory for the operands");
    ok = ok && run_and_compare(t, plan, "first run") && second_run(t, plan) && run_on_one_thread(t);
    data_close(d);
    return ok;
}

case_end checker_run(checker *k, const sat_variant *v, uint64_t seed, int64_t number, char *message, size_t capacity) {
    const sat_device *d = sat_context_device(k->many);
    check_case c;
    for (int attempt = 0; case_find(v, d, k->host, seed, number, k->sides, &attempt, &c); attempt++) {
        char what[512] = "";
        bool declined = false;
        trial t = {.k = k, .v = v, .c = &c, .message = what, .capacity = sizeof what, .declined = &declined};
        char problem[512];
        case_text(&c, problem, sizeof problem);
        if (k->report_fd >= 0) isolate_report(k->report_fd, "problem %s", problem);
        sat_plan *plan = NULL;
        sat_status placed = c.mask.used ? mask_place(&c, k->many) : SAT_OK;
        bool raced = !(k->tuned || k->by_race) || tune(&t);
        sat_status status = raced && !k->by_race && placed == SAT_OK ? make_plan(&t, k->many, &plan) : placed;
        case_end end = CASE_NOT_TAKEN;
        if (!raced) end = declined ? CASE_NOT_TAKEN : CASE_WRONG;
        else if (k->by_race) end = CASE_RIGHT;
        else if (status == SAT_OK) end = run_all(&t, plan) ? CASE_RIGHT : CASE_WRONG;
        else if (status != SAT_UNSUPPORTED) end = CASE_WRONG, wrong_status(&t, "plan", status);
        sat_plan_free(plan);
        if (end == CASE_WRONG) snprintf(message, capacity, "%s; problem: %s", what, problem);
        if (c.mask.used) mask_unplace(&c, k->many);
        case_free(&c);
        if (end != CASE_NOT_TAKEN) return end;
    }
    return CASE_NOT_TAKEN;
}
