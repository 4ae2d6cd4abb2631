/* From a request to a variant. A miss: sat_select_variant, sat_select_tune, sat_select_run_race, sat_tune_race. */
#include "core/select.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/ranges.h"
#include "core/agree.h"
#include "core/noise.h"
#include "core/rates.h"
#include "core/runner.h"

static sat_status estimate(sat_request *q, bool without_memory, sat_selection *selection) {
    *selection = (sat_selection){0};
    return sat_request_pick_by_estimate(q, without_memory, &selection->variant);
}

sat_status sat_select_by_estimate(sat_request *q, sat_selection *selection) { return estimate(q, false, selection); }

sat_status sat_select_instead(sat_request *q, sat_status why, sat_selection *selection) {
    if (q->ctx->options.effort == SAT_EFFORT_PINNED) return why;
    return estimate(q, false, selection);
}

/* ---- storing results ---- */

/* A name that no other process or thread uses. It begins with the date, for readers of the file. */
static void name_race(char *name, size_t size, int64_t when) {
    static atomic_uint counter;
    char date[32];
    struct tm tm;
    time_t t = (time_t)when;
    gmtime_r(&t, &tm);
    strftime(date, sizeof date, "%Y%m%dT%H%M%S", &tm);
    snprintf(name, size, "%s-%d-%u", date, (int)getpid(), atomic_fetch_add(&counter, 1));
}

/* Adds the fingerprint of this build and machine to a verdict, and the pattern's digest. Of right results only the
 * winner gets the fingerprint: losers passed fewer checks, and are verified before they serve. */
static void add_fingerprint(const sat_request *q, sat_record *r, bool winner) {
    if (r->verdict == SAT_VERDICT_SKIPPED || (r->verdict == SAT_VERDICT_OK && !winner)) return;
    memcpy(r->checked_by, sat_cache_fingerprint(q->ctx->cache), sizeof r->checked_by);
    snprintf(r->pattern, sizeof r->pattern, "%016" PRIx64, sat_pattern_digest(q->pattern));
}

/* Stores results in the cache. Of a race the winner is the first. */
static void store_results(const sat_request *q, const sat_record *results, size_t count, sat_record_kind kind,
                          bool noisy) {
    sat_record *records = malloc((count + 1) * sizeof *records);
    if (!records) return;
    char race[sizeof records->race] = "";
    int64_t when = (int64_t)time(NULL);
    name_race(race, sizeof race, when);
    size_t kept = 0;
    bool wrong = false;
    for (size_t i = 0; i < count; i++) {
        sat_record *r = &records[kept];
        if (results[i].verdict == SAT_VERDICT_MEMORY) { /* a later context may have more of it */
            sat_memo_note_without_memory(q->ctx->memo, q->key, results[i].variant, results[i].revision);
            continue;
        }
        *r = results[i];
        r->kind = kind, r->when = when, r->noisy = noisy;
        memcpy(r->race, race, sizeof r->race);
        snprintf(r->full_key, sizeof r->full_key, "%s", q->full_key);
        add_fingerprint(q, r, kind == SAT_RECORD_VERIFIED || (i == 0 && results[i].may_win));
        wrong = wrong || r->verdict == SAT_VERDICT_WRONG;
        kept++;
    }
    sat_status status = sat_cache_add(q->ctx->cache, q->key, records, kept);
    if (wrong) atomic_fetch_add(&q->ctx->wrong_generation, 1); /* after adding: plans that check again find it */
    if (status != SAT_OK) sat_logf(&q->ctx->log, SAT_LOG_DEBUG, "cache: %s", sat_last_error());
    free(records);
}

/* A variant that left the device unusable is stored before the failure is returned, so that the next process does not
 * run it. The message stays that of the failure. */
static sat_status store_and_fail(const sat_request *q, const sat_record *results, size_t count, sat_record_kind kind,
                                 sat_status status) {
    char message[512];
    if (count == 0) return status;
    snprintf(message, sizeof message, "%s", sat_last_error());
    store_results(q, results, count, kind, false);
    return sat_fail(status, "%s", message);
}

/* ---- racing ---- */

static const sat_race_how tuning_now = {.store = true, .skip_failed = true}; /* while the caller waits for a plan */

double sat_tuning_lock_timeout(const sat_context *ctx) {
    double budget = ctx->options.budget_seconds > 0 ? ctx->options.budget_seconds : 1;
    return 30 + 4 * budget;
}

static sat_tuning make_tuning(const sat_request *q, const sat_pattern_view *with_columns, const sat_race_how *how) {
    const sat_context_options *o = &q->ctx->options;
    bool all = o->effort == SAT_EFFORT_FULL;
    return (sat_tuning){.ctx = q->ctx,
                        .device = &q->device,
                        .problem = &q->race_problem,
                        .pattern = with_columns,
                        .exhaustive = all,
                        .budget_seconds = o->budget_seconds > 0 ? o->budget_seconds
                                          : all                 ? 10
                                                                : 1,
                        .progress = how->progress,
                        .progress_user = how->progress_user,
                        .cancel = how->cancel};
}

/* One line a race, with the full key: the key's sizes are rounded. */
static void log_race(const sat_request *q, const sat_outcome *outcome) {
    const sat_record *best = outcome->results;
    bool won = outcome->count && best->verdict == SAT_VERDICT_OK && best->may_win;
    int raced = 0;
    for (size_t i = 0; i < outcome->count; i++) raced += best[i].verdict != SAT_VERDICT_SKIPPED;
    sat_logf(&q->ctx->log, SAT_LOG_INFO, "raced %s: best %s, %.4g s, %d variant%s in %.3g s", q->full_key,
             won ? best->variant : "none", won ? best->seconds : 0, raced, raced == 1 ? "" : "s", outcome->seconds);
}

static sat_status race_these(const sat_request *q, const sat_variant **list, size_t count, const sat_race_how *how,
                             sat_outcome *outcome) {
    const sat_pattern_view *with_columns; /* the checks look at columns too */
    SAT_TRY(sat_pattern_transposed(q->pattern, &with_columns));
    sat_tuning t = make_tuning(q, with_columns, how);
    sat_device device = q->device;
    if (how->store) sat_rates_before_race(q->ctx, &device); /* measured rates are stored, too */
    t.device = &device;
    t.candidates = list, t.count = count;
    sat_range_push(q->key);
    sat_status status = sat_tune_race(&t, outcome);
    sat_range_pop();
    if (status == SAT_OK) log_race(q, outcome);
    if (!how->store) return status;
    if (status != SAT_OK) return store_and_fail(q, outcome->results, outcome->count, SAT_RECORD_RACED, status);
    store_results(q, outcome->results, outcome->count, SAT_RECORD_RACED, outcome->noisy);
    sat_cache_forget_untuned(q->ctx->cache, q->key);
    return SAT_OK;
}

/* Drops variants that ended in an error in an earlier race of this key, unless all did. */
static size_t drop_failed(const sat_request *q, const sat_variant **list, size_t count) {
    sat_entry entry;
    if (sat_cache_find(q->ctx->cache, q->key, false, &entry) != SAT_OK) return count;
    size_t kept = 0, failed = 0;
    for (size_t i = 0; i < count; i++) failed += sat_choose_failed(&entry, list[i], NULL);
    for (size_t i = 0; i < count; i++)
        if (failed == count || !sat_choose_failed(&entry, list[i], NULL)) list[kept++] = list[i];
    sat_entry_free(&entry);
    return kept;
}

sat_status sat_select_run_race(const sat_request *q, const sat_race_how *how, sat_outcome *outcome) {
    const sat_variant *list[SAT_MAX_VARIANTS];
    size_t count = sat_request_find_candidates(q, how->only, list);
    if (count == 0) {
        if (how->only)
            return sat_fail(SAT_NOT_FOUND, "only is '%s'; no variant of that name fits the problem", how->only);
        return sat_fail(SAT_UNSUPPORTED, "no variant fits %s", q->full_key);
    }
    if (how->skip_failed) count = drop_failed(q, list, count);
    return race_these(q, list, count, how, outcome);
}

/* ---- selecting ---- */

/* Checks a variant from the cache on this problem and pattern. Nothing is timed, so it may run without the tuning lock.
 * SAT_DEVICE_ERROR where that left the device unusable; any other failure only leaves it unchecked. A right result is
 * stored if how->store, a wrong one always. */
static sat_status verify(const sat_request *q, const sat_variant *v, const sat_race_how *how, sat_verdict *verdict) {
    const sat_pattern_view *with_columns = NULL;
    sat_record result = {0};
    sat_status status = sat_pattern_transposed(q->pattern, &with_columns);
    if (status == SAT_OK) {
        sat_tuning t = make_tuning(q, with_columns, how);
        status = sat_tune_verify(&t, v, &result);
    }
    *verdict = result.verdict;
    if (status != SAT_OK) return result.verdict ? store_and_fail(q, &result, 1, SAT_RECORD_VERIFIED, status) : SAT_OK;
    if (how->store || result.verdict != SAT_VERDICT_OK) store_results(q, &result, 1, SAT_RECORD_VERIFIED, false);
    if (result.verdict != SAT_VERDICT_OK)
        sat_logf(&q->ctx->log, SAT_LOG_WARN, "%s failed its check and is not used: %s", v->name, result.message);
    return SAT_OK;
}

/* New patterns of a problem may come every second. Their right results stay in this process: in the file they would
 * push the checks of other problems out. */
sat_status sat_select_check_variant(const sat_request *q, const sat_variant *v, uint64_t check_id,
                                    const sat_race_how *how) {
    sat_verdict verdict = 0;
    sat_race_how in_memory = *how;
    in_memory.store = false;
    SAT_TRY(verify(q, v, &in_memory, &verdict));
    if (verdict == SAT_VERDICT_OK) sat_memo_note_checked(q->ctx->memo, check_id);
    return SAT_OK;
}

/* A hash that names a variant's check on this pattern, for the memo; never 0. */
static uint64_t make_check_id(const sat_request *q, const sat_variant *v) {
    const char *const parts[] = {v->name, v->revision, q->full_key};
    uint64_t h = sat_pattern_digest(q->pattern);
    for (int i = 0; i < 3; i++) {
        h = sat_hash_bytes(h, parts[i], strlen(parts[i]));
        h = sat_hash_number(h, '\t');
    }
    return h ? h : 1;
}

/* A variant was found right on this full key. On this pattern, too? If not, it serves all the same, and is checked in
 * the background where there is a thread for that. */
static void look_up_pattern_check(const sat_request *q, const sat_entry *entry, sat_selection *selection) {
    char digest[SAT_DIGEST_SIZE];
    const sat_variant *v = selection->variant;
    snprintf(digest, sizeof digest, "%016" PRIx64, sat_pattern_digest(q->pattern));
    selection->pattern_verified = sat_choose_verified(entry, v, q->full_key, digest);
    if (selection->pattern_verified) return;
    selection->check_id = make_check_id(q, v);
    selection->pattern_verified = sat_memo_checked(q->ctx->memo, selection->check_id);
    if (!selection->pattern_verified && q->ctx->background)
        sat_background_check(q->ctx->background, q->pattern, &q->problem, v, selection->check_id);
}

/* Selects the best variant of the entry that fits this very call. Verifies it first, unless this build has verified it
 * for this full key on this machine. Leaves selection->variant NULL where there is none. */
static sat_status select_from_entry(sat_request *q, const sat_entry *entry, const sat_race_how *how,
                                    sat_selection *selection) {
    const sat_variant *ranking[SAT_MAX_VARIANTS];
    size_t count = sat_choose_ranking(entry, &q->ctx->registry, q->problem.flags, ranking, SAT_MAX_VARIANTS);
    for (size_t i = 0; i < count; i++) {
        const sat_variant *v = ranking[i];
        if (!sat_variant_fits(v, &q->problem, q->view, &q->device) || !sat_request_affords(q, v)) continue;
        if (sat_choose_failed(entry, v, q->full_key)) continue;
        bool was_verified = sat_choose_verified(entry, v, q->full_key, NULL), verified = was_verified;
        if (!was_verified) {
            sat_verdict verdict = 0;
            double start = sat_now();
            sat_status status = verify(q, v, how, &verdict);
            selection->tuning_seconds += sat_now() - start;
            SAT_TRY(status);
            verified = verdict == SAT_VERDICT_OK;
            if (verdict && !verified) continue;
        }
        if (!verified && !sat_registry_trusted(&q->ctx->registry, v)) continue;
        selection->variant = v, selection->cached = true, selection->verified = selection->pattern_verified = verified;
        selection->threads = sat_choose_threads(entry, v);
        if (was_verified) look_up_pattern_check(q, entry, selection);
        return SAT_OK;
    }
    return SAT_OK;
}

size_t sat_select_find_unraced(const sat_request *q, const sat_entry *entry, const sat_variant **out) {
    size_t count = sat_request_find_candidates(q, NULL, out), found = 0;
    for (size_t i = 0; i < count; i++) {
        const sat_variant *v = out[i];
        bool raced = (v->flags & SAT_V_REFERENCE) || sat_choose_has_result(entry, v) ||
                     sat_memo_without_memory(q->ctx->memo, q->key, v->name, v->revision);
        if (!raced) out[found++] = v;
    }
    return found;
}

static void take_winner(const sat_request *q, const sat_outcome *outcome, sat_selection *selection) {
    const sat_record *best = outcome->count ? &outcome->results[0] : NULL;
    if (best && best->verdict == SAT_VERDICT_OK && best->may_win) {
        selection->variant = sat_registry_find(&q->ctx->registry, best->variant);
        selection->verified = selection->pattern_verified = true;
        selection->threads = best->threads;
    }
    selection->tuned = true;
    selection->tuning_seconds += outcome->seconds;
}

bool sat_select_should_retune(const sat_request *q, const sat_entry *entry) {
    return sat_choose_needs_retune(entry, (int64_t)time(NULL)) && sat_memo_once(q->ctx->memo, q->key) &&
           sat_noise_quiet(q->ctx, &q->device);
}

sat_status sat_select_tune(sat_request *q, const sat_variant *best, bool retune, const sat_race_how *how,
                           sat_selection *selection) {
    const sat_variant *list[SAT_MAX_VARIANTS + 1];
    sat_entry entry = {0};
    sat_outcome outcome = {0};
    if (!sat_cache_tuning_lock(q->ctx->cache, sat_tuning_lock_timeout(q->ctx)))
        return sat_fail(SAT_BUSY, "another process has been tuning this device for too long");
    sat_status status = sat_cache_find(q->ctx->cache, q->key, true, &entry); /* it may have tuned this meanwhile */
    bool served = false;
    retune = retune && sat_choose_needs_retune(&entry, (int64_t)time(NULL));
    if (status == SAT_OK && entry.count > 0 && !retune) {
        size_t unraced = sat_select_find_unraced(q, &entry, list);
        if (unraced == 0) {
            selection->variant = NULL;
            status = select_from_entry(q, &entry, how, selection);
            served = selection->variant != NULL;
        } else if (best) { /* the best known variant races against the new ones */
            list[unraced] = best;
            status = race_these(q, list, unraced + 1, how, &outcome);
        }
    }
    /* Also where no result of the cache serves: a race verifies the variants that it skipped before. */
    if (status == SAT_OK && !served && !outcome.results) status = sat_select_run_race(q, how, &outcome);
    sat_cache_tuning_unlock(q->ctx->cache);
    if (status == SAT_OK && outcome.results) take_winner(q, &outcome, selection);
    free(outcome.results);
    sat_entry_free(&entry);
    return status;
}

/* ---- pinned choices ---- */

static bool pinned(const sat_context *ctx) { return ctx->options.effort == SAT_EFFORT_PINNED; }

static sat_status check_pinned(sat_request *q, const sat_entry *entry, const sat_record *winner,
                               sat_selection *selection) {
    const sat_variant *v = sat_registry_find(&q->ctx->registry, winner->variant);
    const char *name = winner->variant;
    sat_verdict verdict = 0;
    if (!v) return sat_fail(SAT_NOT_FOUND, "%s is pinned to %s, which is not here", q->full_key, name);
    if (strcmp(v->revision, winner->revision) != 0)
        return sat_fail(SAT_NOT_FOUND, "%s is pinned to %s of revision %s; here it is %s", q->full_key, name,
                        winner->revision, v->revision);
    if (!sat_variant_fits(v, &q->problem, q->view, &q->device))
        return sat_fail(SAT_NOT_FOUND, "%s is pinned to %s, which does not fit it%s", q->full_key, name,
                        sat_forked() ? " in a forked process" : "");
    if (!sat_request_affords(q, v))
        return sat_fail(SAT_OUT_OF_MEMORY, "%s is pinned to %s, whose workspace is beyond the memory limit",
                        q->full_key, name);
    bool wrong = sat_choose_wrong(entry, v) || sat_choose_failed(entry, v, q->full_key);
    double start = sat_now();
    selection->cached = true, selection->threads = sat_choose_threads(entry, v);
    selection->verified = !wrong && sat_choose_verified(entry, v, q->full_key, NULL);
    selection->variant = v;
    if (selection->verified) look_up_pattern_check(q, entry, selection);
    else if (!wrong) {
        SAT_TRY(verify(q, v, &tuning_now, &verdict));
        selection->verified = selection->pattern_verified = verdict == SAT_VERDICT_OK;
    }
    selection->tuning_seconds = sat_now() - start;
    wrong = wrong || (verdict && verdict != SAT_VERDICT_OK);
    bool serves = !wrong && (selection->verified || sat_registry_trusted(&q->ctx->registry, v));
    if (serves) return SAT_OK;
    return sat_fail(SAT_WRONG_RESULT, "%s is pinned to %s, which failed its check here", q->full_key, name);
}

/* The winner of the cache's race, or none: whatever else would serve has other bits. */
static sat_status select_pinned(sat_request *q, sat_selection *selection) {
    sat_entry entry;
    sat_record winner;
    SAT_TRY(sat_cache_find(q->ctx->cache, q->key, false, &entry));
    uint32_t flags = q->problem.flags & ~(uint32_t)SAT_ALLOW_NONDETERMINISTIC;
    bool found = sat_choose_winner(&entry, &q->ctx->registry, flags, &winner);
    sat_status status = found ? check_pinned(q, &entry, &winner, selection) : SAT_NOT_FOUND;
    sat_entry_free(&entry);
    if (found) return status;
    (void)sat_cache_note_untuned(q->ctx->cache, q->key, q->full_key);
    return sat_fail(SAT_NOT_FOUND, "nothing is pinned for %s: tune it first (sparse_autotune tune)", q->full_key);
}

static bool select_forced(const sat_request *q, sat_selection *selection) {
    if (!q->ctx->force[0]) return false;
    const sat_variant *v = sat_registry_find(&q->ctx->registry, q->ctx->force);
    if (!v) sat_logf(&q->ctx->log, SAT_LOG_WARN, SAT_NO_FORCE, q->ctx->force);
    if (!v || !sat_variant_fits(v, &q->problem, q->view, &q->device)) return false;
    *selection = (sat_selection){.variant = v};
    return true;
}

sat_status sat_select_without_memory(sat_request *q, sat_selection *selection) {
    *selection = (sat_selection){0};
    if (select_forced(q, selection) && sat_request_takes_no_memory(q, selection->variant)) return SAT_OK;
    if (pinned(q->ctx)) return sat_fail(SAT_UNSUPPORTED, "what is pinned is looked up and checked before");
    return estimate(q, true, selection);
}

/* Where no output has an element nothing will run: the reference, which prepares nothing, is selected. */
static bool select_for_no_output(const sat_request *q, sat_selection *selection) {
    sat_operand o[SAT_MAX_OPERANDS];
    const sat_variant *list[SAT_MAX_VARIANTS];
    int operands = q->op->operands(&q->problem, q->view, o);
    for (int i = 0; i < operands; i++)
        if (o[i].output && o[i].span) return false;
    size_t count = sat_request_find_candidates(q, NULL, list);
    for (size_t i = 0; i < count && !selection->variant; i++)
        if ((list[i]->flags & SAT_V_REFERENCE) && sat_registry_trusted(&q->ctx->registry, list[i]))
            selection->variant = list[i];
    return selection->variant != NULL;
}

/* A variant that the entry has found wrong is not selected by estimate either. */
static void distrust_wrong(const sat_request *q, const sat_entry *entry) {
    const sat_registry *all = &q->ctx->registry;
    for (size_t i = 0; i < entry->count; i++) {
        if (entry->records[i].verdict != SAT_VERDICT_WRONG) continue;
        const sat_variant *v = sat_registry_find(all, entry->records[i].variant);
        if (v && sat_choose_wrong(entry, v)) sat_registry_distrust(all, v);
    }
}

/* ---- agreement with other ranks ---- */

/* What is agreed on, as text: a variant's name, and where it was raced its threads and seconds: "name,threads,seconds".
 * No name has a comma. */
typedef struct agreed_variant {
    char name[128];
    int threads;
    double seconds;
} agreed_variant;

static void format_agreed(const sat_request *q, const sat_selection *selection, char text[SAT_AGREED_SIZE]) {
    const sat_variant *v = selection->variant;
    sat_entry entry = {0};
    double seconds = 0;
    if (sat_cache_find(q->ctx->cache, q->key, false, &entry) == SAT_OK)
        for (size_t i = 0; i < entry.count; i++) {
            const sat_record *r = &entry.records[i];
            bool same = strcmp(r->variant, v->name) == 0 && strcmp(r->revision, v->revision) == 0;
            if (same && r->kind == SAT_RECORD_RACED && r->verdict == SAT_VERDICT_OK && r->seconds > 0)
                seconds = r->seconds;
        }
    sat_entry_free(&entry);
    if (seconds > 0) snprintf(text, SAT_AGREED_SIZE, "%s,%d,%.6g", v->name, selection->threads, seconds);
    else snprintf(text, SAT_AGREED_SIZE, "%s", v->name);
}

static agreed_variant parse_agreed(const char *text) {
    agreed_variant a = {.threads = 0};
    size_t length = strcspn(text, ",");
    if (length < sizeof a.name) memcpy(a.name, text, length);
    if (text[length] && sscanf(text + length, ",%d,%lf", &a.threads, &a.seconds) != 2) a.threads = 0, a.seconds = 0;
    if (a.threads < 0 || !(a.seconds >= 1e-9 && a.seconds < 1e9)) a.threads = 0, a.seconds = 0; /* no time of a run */
    return a;
}

/* Another rank's race is an answer for later jobs, too: a race of one. */
static void store_agreed(const sat_request *q, const sat_variant *v, const agreed_variant *a, const sat_entry *entry) {
    sat_record r = {.kind = SAT_RECORD_RACED, .verdict = SAT_VERDICT_OK, .runs = 1, .may_win = true};
    if (a->seconds == 0 || sat_choose_has_result(entry, v)) return;
    r.seconds = r.least_seconds = a->seconds, r.threads = a->threads, r.when = (int64_t)time(NULL);
    name_race(r.race, sizeof r.race, r.when);
    snprintf(r.variant, sizeof r.variant, "%s", v->name);
    snprintf(r.revision, sizeof r.revision, "%s", v->revision);
    snprintf(r.full_key, sizeof r.full_key, "%s", q->full_key);
    if (sat_cache_add(q->ctx->cache, q->key, &r, 1) != SAT_OK)
        sat_logf(&q->ctx->log, SAT_LOG_DEBUG, "cache: %s", sat_last_error());
    else sat_cache_forget_untuned(q->ctx->cache, q->key);
}

/* What this rank would select: the cache's answer, or a race's if it is for this rank to race. selection->variant stays
 * NULL where there is nothing to propose. */
static sat_status select_to_propose(sat_request *q, const char *key, sat_selection *selection) {
    sat_entry entry;
    SAT_TRY(sat_cache_find(q->ctx->cache, q->key, false, &entry));
    sat_status status = select_from_entry(q, &entry, &tuning_now, selection);
    if (!selection->variant) distrust_wrong(q, &entry);
    sat_entry_free(&entry);
    if (status != SAT_OK || selection->variant) return status;
    if (q->ctx->options.effort == SAT_EFFORT_CACHED || !sat_agree_claim(q->ctx->agree, key)) return SAT_OK;
    status = sat_select_tune(q, NULL, false, &tuning_now, selection);
    if (status == SAT_OK && selection->variant) return SAT_OK;
    if (status == SAT_DEVICE_ERROR && q->ctx->backend->broken(&q->device)) return status;
    if (status != SAT_OK) sat_logf(&q->ctx->log, SAT_LOG_WARN, "not tuned: %s", sat_last_error());
    return sat_select_by_estimate(q, selection); /* nobody else will race it */
}

/* Takes on what was agreed, once it is verified here. selection->variant is NULL where it does not fit here, there is
 * no memory for it, or it is wrong here or has ended in an error. */
static sat_status take_agreed(sat_request *q, const char *text, sat_selection *selection) {
    agreed_variant a = parse_agreed(text);
    const sat_variant *v = sat_registry_find(&q->ctx->registry, a.name);
    bool chosen = v && v == selection->variant && selection->verified;
    selection->threads = a.threads;
    if (chosen) return SAT_OK;
    sat_selection found = {.variant = v, .threads = a.threads, .tuning_seconds = selection->tuning_seconds};
    sat_entry entry;
    selection->variant = NULL;
    if (!v || !sat_choose_allowed(v, q->problem.flags)) return SAT_OK;
    if (!sat_variant_fits(v, &q->problem, q->view, &q->device) || !sat_request_affords(q, v)) return SAT_OK;
    SAT_TRY(sat_cache_find(q->ctx->cache, q->key, false, &entry));
    bool wrong = sat_choose_wrong(&entry, v) || sat_choose_failed(&entry, v, q->full_key);
    sat_verdict verdict = 0;
    sat_status status = SAT_OK;
    double start = sat_now();
    found.cached = found.verified = !wrong && sat_choose_verified(&entry, v, q->full_key, NULL);
    if (found.verified) look_up_pattern_check(q, &entry, &found);
    else if (!wrong) {
        status = verify(q, v, &tuning_now, &verdict);
        found.verified = found.pattern_verified = verdict == SAT_VERDICT_OK;
    }
    if (found.verified) store_agreed(q, v, &a, &entry);
    sat_entry_free(&entry);
    found.tuning_seconds += sat_now() - start;
    wrong = wrong || (verdict && verdict != SAT_VERDICT_OK);
    if (status == SAT_OK && !wrong && (found.verified || sat_registry_trusted(&q->ctx->registry, v)))
        *selection = found;
    return status;
}

/* Where nobody has answered the key, this rank does: by its cache, or its race, or once it has waited for the rank that
 * races, by its estimate. The first answer is that of all ranks. Under SAT_EFFORT_CACHED it proposes nothing but what
 * its cache has: an estimate would keep all others from racing. */
static sat_status select_agreed(sat_request *q, const char *key, sat_selection *selection) {
    char text[SAT_AGREED_SIZE], mine[SAT_AGREED_SIZE];
    sat_agree *a = q->ctx->agree;
    bool tunes = q->ctx->options.effort != SAT_EFFORT_CACHED;
    if (!sat_agree_find(a, key, 0, text)) {
        SAT_TRY(select_to_propose(q, key, selection));
        bool found = !selection->variant && tunes && sat_agree_find(a, key, -1, text);
        if (!selection->variant && !found) {
            if (!tunes) sat_cache_note_untuned(q->ctx->cache, q->key, q->full_key);
            SAT_TRY(sat_select_by_estimate(q, selection));
            if (!tunes) return SAT_OK;
        }
        if (!found) {
            format_agreed(q, selection, mine);
            sat_agree_propose(a, key, mine, text);
        }
    }
    SAT_TRY(take_agreed(q, text, selection));
    if (selection->variant) return SAT_OK;
    sat_logf(&q->ctx->log, SAT_LOG_WARN, "the ranks agreed on %s, which does not serve here: %s", text,
             key != q->full_key ? "they agree on the exact problem" : "the estimate decides");
    /* Ranks whose sizes differ share a key, and not all of them may run the same. */
    return key != q->full_key ? select_agreed(q, q->full_key, selection) : sat_select_by_estimate(q, selection);
}

sat_status sat_select_variant(sat_request *q, sat_selection *selection) {
    sat_context *ctx = q->ctx;
    sat_effort effort = ctx->options.effort;
    *selection = (sat_selection){0};
    if (select_forced(q, selection) || select_for_no_output(q, selection)) return SAT_OK;
    if (effort == SAT_EFFORT_OFF) return sat_select_by_estimate(q, selection);
    if (effort == SAT_EFFORT_PINNED) return select_pinned(q, selection);
    if (ctx->agree && !sat_forked()) return select_agreed(q, q->key, selection); /* the store is the parent's */
    sat_entry entry;
    SAT_TRY(sat_cache_find(ctx->cache, q->key, false, &entry));
    sat_status status = select_from_entry(q, &entry, &tuning_now, selection);
    const sat_variant *unraced[SAT_MAX_VARIANTS];
    bool tunes = effort != SAT_EFFORT_CACHED, found = selection->variant != NULL;
    bool retune = found && tunes && sat_select_should_retune(q, &entry);
    bool race_needed = !found || retune || sat_select_find_unraced(q, &entry, unraced) > 0;
    if (!found) distrust_wrong(q, &entry);
    sat_entry_free(&entry);
    SAT_TRY(status);
    if (!race_needed) return SAT_OK;
    if (effort == SAT_EFFORT_CACHED) {
        if (!found) sat_cache_note_untuned(ctx->cache, q->key, q->full_key);
    } else if (ctx->background) {
        sat_background_post(ctx->background, q->pattern, &q->problem, q->key);
    } else {
        sat_selection raced = *selection;
        raced.cached = false;
        status = sat_select_tune(q, selection->variant, retune, &tuning_now, &raced);
        if (status == SAT_OK && raced.variant) {
            *selection = raced;
            return SAT_OK;
        }
        if (status != SAT_OK) sat_logf(&ctx->log, SAT_LOG_WARN, "not tuned: %s", sat_last_error());
        if (status == SAT_DEVICE_ERROR && ctx->backend->broken(&q->device)) return status; /* nothing would run */
    }
    if (found) return SAT_OK;
    return sat_select_by_estimate(q, selection);
}
