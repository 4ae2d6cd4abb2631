/* From a problem to a variant. */
#include "core/answer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"
#include "core/noise.h"
#include "core/rates.h"
#include "core/runner.h"

static sat_status estimate(sat_question *q, bool without_memory, sat_answer *answer) {
    *answer = (sat_answer){0};
    return sat_question_estimate(q, without_memory, &answer->variant);
}

sat_status sat_answer_estimate(sat_question *q, sat_answer *answer) { return estimate(q, false, answer); }

/* ---- remembering ---- */

/* A name that no other process or thread gives. It begins with the date, for readers of the file. */
static void name_race(char *name, size_t size, int64_t when) {
    static atomic_uint counter;
    char date[32];
    struct tm tm;
    time_t t = (time_t)when;
    gmtime_r(&t, &tm);
    strftime(date, sizeof date, "%Y%m%dT%H%M%S", &tm);
    snprintf(name, size, "%s-%d-%u", date, (int)getpid(), atomic_fetch_add(&counter, 1));
}

/* Signs a verdict with this build's mark. Of right results only the winner's is signed: losers passed fewer checks, and
 * are verified before they serve. */
static void sign(const sat_question *q, sat_record *r, bool winner) {
    if (r->verdict == SAT_VERDICT_SKIPPED || (r->verdict == SAT_VERDICT_OK && !winner)) return;
    memcpy(r->by, sat_cache_mark(q->ctx->cache), sizeof r->by);
    snprintf(r->pattern, sizeof r->pattern, "%016" PRIx64, sat_pattern_digest(q->pattern));
}

/* Of a race the winner is the first. */
static void remember(const sat_question *q, const sat_record *results, size_t count, sat_record_kind kind, bool busy) {
    sat_record *records = malloc((count + 1) * sizeof *records);
    if (!records) return;
    char race[sizeof records->race] = "";
    int64_t when = (int64_t)time(NULL);
    name_race(race, sizeof race, when);
    size_t kept = 0;
    bool wrong = false;
    for (size_t i = 0; i < count; i++) {
        sat_record *r = &records[kept];
        if (results[i].verdict == SAT_VERDICT_MEMORY) continue; /* there may be more of it next time */
        *r = results[i];
        r->kind = kind, r->when = when, r->busy = busy;
        memcpy(r->race, race, sizeof r->race);
        snprintf(r->exact, sizeof r->exact, "%s", q->exact);
        sign(q, r, kind == SAT_RECORD_VERIFIED || (i == 0 && results[i].may_win));
        wrong = wrong || r->verdict == SAT_VERDICT_WRONG;
        kept++;
    }
    sat_status status = sat_cache_add(q->ctx->cache, q->key, records, kept);
    if (wrong) atomic_fetch_add(&q->ctx->wrong_generation, 1); /* after adding: plans that look again find it */
    if (status != SAT_OK) sat_logf(&q->ctx->log, SAT_LOG_DEBUG, "cache: %s", sat_last_error());
    free(records);
}

/* A variant that left the device unusable is recorded before the failure is returned, so that the next process does not
 * run it. The message stays that of the failure. */
static sat_status remember_broken(const sat_question *q, const sat_record *results, size_t count, sat_record_kind kind,
                                  sat_status status) {
    char message[512];
    if (count == 0) return status;
    snprintf(message, sizeof message, "%s", sat_last_error());
    remember(q, results, count, kind, false);
    return sat_fail(status, "%s", message);
}

/* ---- racing ---- */

double sat_tuning_patience(const sat_context *ctx) {
    double budget = ctx->options.budget_seconds > 0 ? ctx->options.budget_seconds : 1;
    return 30 + 4 * budget;
}

static sat_tuning make_tuning(const sat_question *q, const sat_pattern_view *full, const sat_race_how *how) {
    const sat_context_options *o = &q->ctx->options;
    bool all = o->effort == SAT_EFFORT_FULL;
    return (sat_tuning){.ctx = q->ctx,
                        .device = &q->device,
                        .problem = &q->race_problem,
                        .pattern = full,
                        .exhaustive = all,
                        .budget_seconds = o->budget_seconds > 0 ? o->budget_seconds
                                          : all                 ? 10
                                                                : 1,
                        .progress = how ? how->progress : NULL,
                        .progress_user = how ? how->progress_user : NULL,
                        .cancel = how ? how->cancel : NULL};
}

/* One line a race, in exact sizes: the key's are rounded. */
static void log_race(const sat_question *q, const sat_outcome *outcome) {
    const sat_record *best = outcome->results;
    bool won = outcome->count && best->verdict == SAT_VERDICT_OK && best->may_win;
    int raced = 0;
    for (size_t i = 0; i < outcome->count; i++) raced += best[i].verdict != SAT_VERDICT_SKIPPED;
    sat_logf(&q->ctx->log, SAT_LOG_INFO, "raced %s: best %s, %.4g s, %d variant%s in %.3g s", q->exact,
             won ? best->variant : "none", won ? best->seconds : 0, raced, raced == 1 ? "" : "s", outcome->seconds);
}

static sat_status race_these(const sat_question *q, const sat_variant **list, size_t count, const sat_race_how *how,
                             sat_outcome *outcome) {
    const sat_pattern_view *full; /* the checks look at columns too */
    SAT_TRY(sat_pattern_transposed(q->pattern, &full));
    sat_tuning t = make_tuning(q, full, how);
    sat_device device = q->device;
    if (how->keep) sat_rates_before_race(q->ctx, &device);
    t.device = &device;
    t.candidates = list, t.count = count;
    sat_status status = sat_tune_race(&t, outcome);
    if (status == SAT_OK) log_race(q, outcome);
    if (!how->keep) return status;
    if (status != SAT_OK) return remember_broken(q, outcome->results, outcome->count, SAT_RECORD_RACED, status);
    remember(q, outcome->results, outcome->count, SAT_RECORD_RACED, outcome->busy);
    sat_cache_forget_untuned(q->ctx->cache, q->key);
    return SAT_OK;
}

/* Drops variants that ended in an error in an earlier race of this key, unless all did. */
static size_t drop_failed(const sat_question *q, const sat_variant **list, size_t count) {
    sat_entry entry;
    if (sat_cache_find(q->ctx->cache, q->key, false, &entry) != SAT_OK) return count;
    size_t kept = 0, failed = 0;
    for (size_t i = 0; i < count; i++) failed += sat_choose_failed(&entry, list[i], NULL);
    for (size_t i = 0; i < count; i++)
        if (failed == count || !sat_choose_failed(&entry, list[i], NULL)) list[kept++] = list[i];
    sat_entry_free(&entry);
    return kept;
}

sat_status sat_answer_race(const sat_question *q, const sat_race_how *how, sat_outcome *outcome) {
    const sat_variant *list[SAT_MAX_VARIANTS];
    size_t count = sat_question_candidates(q, how->only, list);
    if (count == 0) {
        if (how->only)
            return sat_fail(SAT_NOT_FOUND, "only is '%s'; no variant of that name fits the problem", how->only);
        return sat_fail(SAT_UNSUPPORTED, "no variant fits %s", q->exact);
    }
    if (how->wary) count = drop_failed(q, list, count);
    return race_these(q, list, count, how, outcome);
}

/* ---- the answer ---- */

/* Checks a remembered variant on this exact problem and pattern. SAT_DEVICE_ERROR where that left the device unusable;
 * any other failure only leaves it unchecked. With how->keep a good result is remembered, and a bad one always is. */
static sat_status verify(const sat_question *q, const sat_variant *v, const sat_race_how *how, sat_verdict *verdict) {
    const sat_pattern_view *full = NULL;
    sat_record result = {0};
    sat_status status = sat_pattern_transposed(q->pattern, &full);
    if (status == SAT_OK) {
        sat_tuning t = make_tuning(q, full, how);
        status = sat_tune_verify(&t, v, &result);
    }
    *verdict = result.verdict;
    if (status != SAT_OK) return result.verdict ? remember_broken(q, &result, 1, SAT_RECORD_VERIFIED, status) : SAT_OK;
    if (how->keep || result.verdict != SAT_VERDICT_OK) remember(q, &result, 1, SAT_RECORD_VERIFIED, false);
    if (result.verdict != SAT_VERDICT_OK)
        sat_logf(&q->ctx->log, SAT_LOG_WARN, "%s failed its check and is not used: %s", v->name, result.message);
    return SAT_OK;
}

/* New patterns of a known problem may come every second: each has a place in this process, and none in the file, where
 * they would push the checks of other problems out. */
sat_status sat_answer_check(const sat_question *q, const sat_variant *v, uint64_t check_id, const sat_race_how *how) {
    sat_verdict verdict = 0;
    sat_race_how unkept = *how;
    unkept.keep = false;
    SAT_TRY(verify(q, v, &unkept, &verdict));
    if (verdict == SAT_VERDICT_OK) sat_memo_note_checked(q->ctx->memo, check_id);
    return SAT_OK;
}

/* The number under which the memo keeps a variant's check on this pattern. */
static uint64_t check_name(const sat_question *q, const sat_variant *v) {
    const char *const parts[] = {v->name, v->revision, q->exact};
    uint64_t h = sat_pattern_digest(q->pattern);
    for (int i = 0; i < 3; i++) {
        h = sat_hash_bytes(h, parts[i], strlen(parts[i]));
        h = sat_hash_number(h, '\t');
    }
    return h ? h : 1;
}

/* A variant was found right on this exact problem. On this pattern, too? If not, it serves all the same, and is checked
 * in the background where there is a thread for that. */
static void find_pattern_check(const sat_question *q, const sat_entry *entry, sat_answer *answer) {
    char digest[SAT_MARK_SIZE];
    const sat_variant *v = answer->variant;
    snprintf(digest, sizeof digest, "%016" PRIx64, sat_pattern_digest(q->pattern));
    answer->pattern_verified = sat_choose_verified(entry, v, q->exact, digest);
    if (answer->pattern_verified) return;
    answer->check_id = check_name(q, v);
    answer->pattern_verified = sat_memo_checked(q->ctx->memo, answer->check_id);
    if (!answer->pattern_verified && q->ctx->background)
        sat_background_check(q->ctx->background, q->pattern, &q->problem, v, answer->check_id);
}

/* Takes the best remembered variant that fits this very call, after checking it on this exact problem, unless this
 * build did so before on this machine; leaves answer->variant NULL where there is none. */
static sat_status from_entry(sat_question *q, const sat_entry *entry, sat_answer *answer) {
    const sat_variant *ranking[SAT_MAX_VARIANTS];
    size_t count = sat_choose_ranking(entry, &q->ctx->registry, q->problem.flags, ranking, SAT_MAX_VARIANTS);
    for (size_t i = 0; i < count; i++) {
        const sat_variant *v = ranking[i];
        if (!sat_variant_fits(v, &q->problem, q->view, &q->device) || !sat_question_affords(q, v)) continue;
        if (sat_choose_failed(entry, v, q->exact)) continue;
        bool known = sat_choose_verified(entry, v, q->exact, NULL), verified = known;
        if (!known) {
            sat_verdict verdict = 0;
            double start = sat_now();
            sat_status status = verify(q, v, &(sat_race_how){.keep = true}, &verdict);
            answer->tuning_seconds += sat_now() - start;
            SAT_TRY(status);
            verified = verdict == SAT_VERDICT_OK;
            if (verdict && !verified) continue;
        }
        if (!verified && !sat_registry_trusted(&q->ctx->registry, v)) continue;
        answer->variant = v, answer->cached = true, answer->verified = answer->pattern_verified = verified;
        answer->threads = sat_choose_threads(entry, v);
        if (known) find_pattern_check(q, entry, answer);
        return SAT_OK;
    }
    return SAT_OK;
}

/* Variants that fit and of which the entry has no result at their present revision. The reference does not count. */
static size_t newcomers(const sat_question *q, const sat_entry *entry, const sat_variant **out) {
    const sat_variant *all[SAT_MAX_VARIANTS];
    size_t count = sat_question_candidates(q, NULL, all), found = 0;
    for (size_t i = 0; i < count; i++)
        if (!(all[i]->flags & SAT_V_REFERENCE) && !sat_choose_knows(entry, all[i])) out[found++] = all[i];
    return found;
}

static void take_winner(const sat_question *q, const sat_outcome *outcome, sat_answer *answer) {
    const sat_record *best = outcome->count ? &outcome->results[0] : NULL;
    if (best && best->verdict == SAT_VERDICT_OK && best->may_win) {
        answer->variant = sat_registry_find(&q->ctx->registry, best->variant);
        answer->verified = answer->pattern_verified = true;
        answer->threads = best->threads;
    }
    answer->tuned = true;
    answer->tuning_seconds += outcome->seconds;
}

bool sat_answer_again(const sat_question *q, const sat_entry *entry) {
    return sat_choose_provisional(entry, (int64_t)time(NULL)) && sat_memo_once(q->ctx->memo, q->key) &&
           sat_noise_quiet(q->ctx, &q->device);
}

/* `again`: the best one is known from a disturbed race alone. */
static sat_status tune_now(sat_question *q, const sat_variant *best, bool again, sat_answer *answer) {
    const sat_variant *list[SAT_MAX_VARIANTS + 1];
    sat_entry entry = {0};
    sat_outcome outcome = {0};
    if (!sat_cache_tuning_lock(q->ctx->cache, sat_tuning_patience(q->ctx)))
        return sat_fail(SAT_BUSY, "another process has been tuning this device for too long");
    sat_status status = sat_cache_find(q->ctx->cache, q->key, true, &entry); /* it may have tuned this meanwhile */
    bool served = false;
    again = again && sat_choose_provisional(&entry, (int64_t)time(NULL));
    if (status == SAT_OK && entry.count > 0 && !again) {
        size_t fresh = newcomers(q, &entry, list);
        if (fresh == 0) {
            answer->variant = NULL;
            status = from_entry(q, &entry, answer);
            served = answer->variant != NULL;
        } else if (best) { /* the best known one races the new ones again */
            list[fresh] = best;
            status = race_these(q, list, fresh + 1, &(sat_race_how){.keep = true}, &outcome);
        }
    }
    if (status == SAT_OK && !served && !outcome.results)
        status = sat_answer_race(q, &(sat_race_how){.keep = true, .wary = true}, &outcome);
    sat_cache_tuning_unlock(q->ctx->cache);
    if (status == SAT_OK && outcome.results) take_winner(q, &outcome, answer);
    free(outcome.results);
    sat_entry_free(&entry);
    return status;
}

static bool forced(const sat_question *q, sat_answer *answer) {
    if (!q->ctx->force[0]) return false;
    const sat_variant *v = sat_registry_find(&q->ctx->registry, q->ctx->force);
    if (!v) sat_logf(&q->ctx->log, SAT_LOG_WARN, SAT_NO_FORCE, q->ctx->force);
    if (!v || !sat_variant_fits(v, &q->problem, q->view, &q->device)) return false;
    *answer = (sat_answer){.variant = v};
    return true;
}

sat_status sat_answer_without_memory(sat_question *q, sat_answer *answer) {
    if (forced(q, answer) && sat_question_without_memory(q, answer->variant)) return SAT_OK;
    return estimate(q, true, answer);
}

/* Where no output has an element nothing will run: the reference, which plans nothing, stands for all. */
static bool writes_nothing(const sat_question *q, sat_answer *answer) {
    sat_operand o[SAT_MAX_OPERANDS];
    const sat_variant *list[SAT_MAX_VARIANTS];
    int operands = q->op->operands(&q->problem, q->view, o);
    for (int i = 0; i < operands; i++)
        if (o[i].output && o[i].span) return false;
    size_t count = sat_question_candidates(q, NULL, list);
    for (size_t i = 0; i < count && !answer->variant; i++)
        if ((list[i]->flags & SAT_V_REFERENCE) && sat_registry_trusted(&q->ctx->registry, list[i]))
            answer->variant = list[i];
    return answer->variant != NULL;
}

/* What the entry has found wrong does not serve by estimate either. */
static void distrust_wrong(const sat_question *q, const sat_entry *entry) {
    const sat_registry *all = &q->ctx->registry;
    for (size_t i = 0; i < entry->count; i++) {
        if (entry->records[i].verdict != SAT_VERDICT_WRONG) continue;
        const sat_variant *v = sat_registry_find(all, entry->records[i].variant);
        if (v && sat_choose_wrong(entry, v)) sat_registry_distrust(all, v);
    }
}

sat_status sat_answer_find(sat_question *q, sat_answer *answer) {
    sat_context *ctx = q->ctx;
    sat_effort effort = ctx->options.effort;
    *answer = (sat_answer){0};
    if (forced(q, answer) || writes_nothing(q, answer)) return SAT_OK;
    if (effort == SAT_EFFORT_OFF) return sat_answer_estimate(q, answer);
    sat_entry entry;
    SAT_TRY(sat_cache_find(ctx->cache, q->key, false, &entry));
    sat_status looked = from_entry(q, &entry, answer);
    const sat_variant *fresh[SAT_MAX_VARIANTS];
    bool tunes = effort != SAT_EFFORT_CACHED, found = answer->variant != NULL;
    bool again = found && tunes && sat_answer_again(q, &entry);
    bool race_needed = !found || again || newcomers(q, &entry, fresh) > 0;
    if (!found) distrust_wrong(q, &entry);
    sat_entry_free(&entry);
    SAT_TRY(looked);
    if (!race_needed) return SAT_OK;
    if (effort == SAT_EFFORT_CACHED) {
        if (!found) sat_cache_note_untuned(ctx->cache, q->key, q->exact);
    } else if (ctx->background) {
        sat_background_post(ctx->background, q->pattern, &q->problem, q->key);
    } else {
        sat_answer raced = *answer;
        raced.cached = false;
        sat_status status = tune_now(q, answer->variant, again, &raced);
        if (status == SAT_OK && raced.variant) {
            *answer = raced;
            return SAT_OK;
        }
        if (status != SAT_OK) sat_logf(&ctx->log, SAT_LOG_WARN, "not tuned: %s", sat_last_error());
        if (status == SAT_DEVICE_ERROR && ctx->backend->broken(&q->device)) return status; /* nothing would run */
    }
    if (found) return SAT_OK;
    return sat_answer_estimate(q, answer);
}
