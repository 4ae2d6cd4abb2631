/* The public race: run now, or read back from the cache. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/select.h"

struct sat_race {
    sat_result *results;
    size_t count;
    sat_race_info info;
};

static bool won(const sat_record *r) { return r->verdict == SAT_VERDICT_OK && r->may_win; }

/* A record as the public header shows it. */
static sat_result as_result(const sat_record *r) {
    sat_result x = {SAT_SIZED(sat_result), .verdict = r->verdict, .seconds = r->seconds, .spread = r->spread};
    memcpy(x.variant, r->variant, sizeof x.variant);
    memcpy(x.revision, r->revision, sizeof x.revision);
    memcpy(x.message, r->message, sizeof x.message);
    x.error = r->error, x.runs = r->runs, x.least_seconds = r->least_seconds, x.may_win = r->may_win;
    x.estimate_seconds = r->estimate_seconds, x.prepare_seconds = r->prepare_seconds;
    x.workspace_bytes = (size_t)r->workspace_bytes, x.threads = r->threads;
    return x;
}

static sat_status show(sat_race *race, const sat_record *records, size_t count) {
    race->results = malloc((count + 1) * sizeof *race->results);
    if (!race->results) return sat_fail(SAT_OUT_OF_MEMORY, "%zu results", count);
    for (size_t i = 0; i < count; i++) race->results[i] = as_result(&records[i]);
    race->count = count;
    return SAT_OK;
}

/* All results of the race that `one` is of, in order. */
static sat_record *results_of(const sat_request *q, const sat_entry *entry, const sat_record *one, size_t *count) {
    sat_record *results = malloc(entry->count * sizeof *results);
    *count = 0;
    for (size_t i = 0; results && i < entry->count; i++) {
        const sat_record *r = &entry->records[i];
        if (r->kind != SAT_RECORD_RACED || strcmp(r->race, one->race) != 0) continue;
        results[*count] = *r;
        results[(*count)++].may_win = sat_choose_may_win(entry, &q->ctx->registry, q->problem.flags, r);
    }
    if (results) sat_choose_sort(results, *count, &q->ctx->registry);
    return results;
}

/* The first race of an entry whose winner may still win now. None where a variant that fits has no result yet. */
static void read_back(const sat_request *q, const sat_entry *entry, sat_race *race) {
    const sat_variant *unraced[SAT_MAX_VARIANTS];
    if (sat_select_find_unraced(q, entry, unraced) > 0) return;
    for (const sat_record *r = sat_choose_race(entry, NULL); r; r = sat_choose_race(entry, r)) {
        size_t count;
        sat_record *results = results_of(q, entry, r, &count);
        race->info.disturbed = r->noisy;
        bool found = results && won(&results[0]);
        if (found) (void)show(race, results, count); /* without memory it is raced again */
        free(results);
        if (!results || found) return;
    }
}

/* Takes the results from the cache, where it has them all and they need not be measured again. `look_again`: another
 * process may have written since. `retune`: in, may they be measured again; out, must they be. */
static sat_status look_up(const sat_request *q, bool look_again, bool *retune, sat_race *race) {
    sat_entry entry = {0};
    sat_status status = sat_cache_find(q->ctx->cache, q->key, look_again, &entry);
    if (look_again) *retune = *retune && sat_choose_needs_retune(&entry, (int64_t)time(NULL));
    else *retune = *retune && status == SAT_OK && sat_select_should_retune(q, &entry);
    if (status == SAT_OK && entry.count && !*retune) read_back(q, &entry, race);
    race->info.cached = race->results != NULL;
    sat_entry_free(&entry);
    return status;
}

static sat_status race_now(const sat_request *q, const sat_race_options *o, bool retune, sat_race *race) {
    /* A race of only some variants does not say which of all is best. */
    sat_race_how how = {
        .only = o->only, .store = !o->discard && !o->only, .progress = o->progress, .progress_user = o->progress_user};
    sat_outcome outcome = {0};
    if (!sat_cache_tuning_lock(q->ctx->cache, sat_tuning_lock_timeout(q->ctx)))
        return sat_fail(SAT_BUSY, "another process has been tuning this device for too long");
    sat_status status = SAT_OK;
    if (!o->fresh && !o->only)
        (void)look_up(q, true, &retune, race); /* another process may have raced this meanwhile */
    if (!race->results) status = sat_select_run_race(q, &how, &outcome);
    sat_cache_tuning_unlock(q->ctx->cache);
    if (race->results) return SAT_OK;
    if (status == SAT_OK) status = show(race, outcome.results, outcome.count);
    free(outcome.results);
    race->info.seconds = outcome.seconds, race->info.peak_bytes = outcome.peak_bytes;
    race->info.disturbed = outcome.noisy;
    return status;
}

sat_status sat_race_run(sat_context *ctx, const sat_pattern *pattern, const sat_problem *problem,
                        const sat_race_options *options, sat_race **out) {
    if (!out) return sat_fail(SAT_NULL_POINTER, "race is NULL");
    *out = NULL;
    sat_race_options o = {SAT_SIZED(sat_race_options)};
    if (options) SAT_TRY(sat_struct_in(&o, sizeof o, options, sizeof o, "sat_race_options"));
    sat_request q;
    SAT_TRY(sat_request_make(&q, ctx, pattern, problem));
    if (ctx->options.effort == SAT_EFFORT_OFF) o.fresh = true, o.discard = true; /* the cache is left alone */
    if (ctx->options.effort == SAT_EFFORT_PINNED) o.discard = true;
    sat_race *race = calloc(1, sizeof *race);
    if (!race) return sat_fail(SAT_OUT_OF_MEMORY, "race");
    race->info = (sat_race_info){SAT_SIZED(sat_race_info), .flops = q.op->flops(&q.problem, q.view),
                                 .bytes = q.op->bytes(&q.problem, q.view)};
    snprintf(race->info.key, sizeof race->info.key, "%s", q.key);
    bool retune = !o.discard;
    sat_status status = o.fresh || o.only ? SAT_OK : look_up(&q, false, &retune, race);
    if (status == SAT_OK && !race->results) status = race_now(&q, &o, retune, race);
    if (status != SAT_OK) sat_race_free(race);
    else *out = race;
    return status;
}

void sat_race_free(sat_race *race) {
    if (race) free(race->results);
    free(race);
}

size_t sat_race_count(const sat_race *race) { return race ? race->count : 0; }

const sat_result *sat_race_at(const sat_race *race, size_t i) {
    return race && i < race->count ? &race->results[i] : NULL;
}

const sat_result *sat_race_best(const sat_race *race) {
    const sat_result *first = sat_race_at(race, 0);
    return first && first->verdict == SAT_VERDICT_OK && first->may_win ? first : NULL;
}

sat_status sat_race_get_info(const sat_race *race, sat_race_info *info) {
    if (!race) return sat_fail(SAT_NULL_POINTER, "race is NULL");
    if (!info) return sat_fail(SAT_NULL_POINTER, "info is NULL");
    return sat_struct_out(info, &race->info, sizeof race->info, sizeof race->info, "sat_race_info");
}
