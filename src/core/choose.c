/* The rule that turns timings into a winner. The same records give the same winner every time. */
#include "core/choose.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double MOST_TOLERANCE = 0.03; /* of a tie */

static int priority_of(const sat_registry *registry, const char *name) {
    const sat_variant *v = sat_registry_find(registry, name);
    return v ? v->priority : 0;
}

static int group(const sat_record *r) {
    if (r->verdict == SAT_VERDICT_OK && r->seconds > 0) return r->may_win ? 0 : 1;
    return 2 + (int)r->verdict;
}

static int by_time(const void *x, const void *y) {
    const sat_record *a = x, *b = y;
    if (group(a) != group(b)) return group(a) < group(b) ? -1 : 1;
    if (a->seconds != b->seconds) return a->seconds < b->seconds ? -1 : 1;
    return strcmp(a->variant, b->variant);
}

static int by_value(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

void sat_choose_sort_times(double *seconds, size_t count) { qsort(seconds, count, sizeof *seconds, by_value); }

double sat_choose_median_error(const sat_record *r) { return r->runs > 1 ? 1.85 * r->spread / sqrt(r->runs) : 0; }

void sat_choose_sort(sat_record *results, size_t count, const sat_registry *registry) {
    if (count == 0) return;
    qsort(results, count, sizeof *results, by_time);
    if (group(&results[0]) != 0) return;
    double best = results[0].seconds;
    size_t winner = 0;
    for (size_t i = 1; i < count && group(&results[i]) == 0; i++) {
        double tolerance =
            fmin(MOST_TOLERANCE,
                 fmax(0.015, (sat_choose_median_error(&results[0]) + sat_choose_median_error(&results[i])) / best));
        if (results[i].seconds > best * (1 + tolerance)) continue;
        int mine = priority_of(registry, results[i].variant), theirs = priority_of(registry, results[winner].variant);
        if (mine > theirs || (mine == theirs && strcmp(results[i].variant, results[winner].variant) < 0)) winner = i;
    }
    sat_record first = results[winner];
    memmove(results + 1, results, winner * sizeof *results);
    results[0] = first;
}

static bool current(const sat_record *r, const sat_variant *v) {
    return strcmp(r->variant, v->name) == 0 && strcmp(r->revision, v->revision) == 0;
}

bool sat_choose_has_result(const sat_entry *entry, const sat_variant *v) {
    for (size_t i = 0; i < entry->count; i++)
        if (entry->records[i].kind == SAT_RECORD_RACED && current(&entry->records[i], v)) return true;
    return false;
}

/* Did this build give the verdict, on this machine? Reading has cleared all other fingerprints. */
static bool ours(const sat_record *r) { return r->checked_by[0] != 0; }

bool sat_choose_verified(const sat_entry *entry, const sat_variant *v, const char *full_key, const char *pattern) {
    for (size_t i = 0; i < entry->count; i++) {
        const sat_record *r = &entry->records[i];
        if (r->verdict != SAT_VERDICT_OK || !ours(r) || !current(r, v) || strcmp(r->full_key, full_key) != 0) continue;
        if (!pattern || strcmp(r->pattern, pattern) == 0) return true;
    }
    return false;
}

bool sat_choose_failed(const sat_entry *entry, const sat_variant *v, const char *full_key) {
    for (size_t i = 0; i < entry->count; i++) {
        const sat_record *r = &entry->records[i];
        if (r->verdict == SAT_VERDICT_ERROR && current(r, v) && (!full_key || strcmp(r->full_key, full_key) == 0))
            return true;
    }
    return false;
}

bool sat_choose_wrong(const sat_entry *entry, const sat_variant *v) {
    for (size_t i = 0; i < entry->count; i++) {
        const sat_record *r = &entry->records[i];
        if (r->verdict == SAT_VERDICT_WRONG && ours(r) && current(r, v)) return true;
    }
    return false;
}

bool sat_choose_allowed(const sat_variant *v, uint32_t flags) {
    if ((v->flags & SAT_V_NONDETERMINISTIC) && !(flags & SAT_ALLOW_NONDETERMINISTIC)) return false;
    return !(v->flags & SAT_V_DENSE) || (flags & SAT_ALLOW_DENSE);
}

bool sat_choose_may_win(const sat_entry *entry, const sat_registry *registry, uint32_t flags, const sat_record *r) {
    const sat_variant *v = sat_registry_find(registry, r->variant);
    return v && current(r, v) && sat_choose_allowed(v, flags) && !sat_choose_wrong(entry, v);
}

/* Does the race of `a` come before that of `b`? By name in the end, so that the order is total. */
static bool race_before(const sat_record *a, const sat_record *b) {
    if (a->noisy != b->noisy) return b->noisy;
    if (a->when != b->when) return a->when > b->when;
    return strcmp(a->race, b->race) > 0;
}

const sat_record *sat_choose_race(const sat_entry *entry, const sat_record *last) {
    const sat_record *best = NULL;
    for (size_t i = 0; i < entry->count; i++) {
        const sat_record *r = &entry->records[i];
        if (r->kind != SAT_RECORD_RACED || (last && !race_before(last, r))) continue;
        if (!best || race_before(r, best)) best = r;
    }
    return best;
}

int sat_choose_threads(const sat_entry *entry, const sat_variant *v) {
    for (const sat_record *r = sat_choose_race(entry, NULL); r; r = sat_choose_race(entry, r))
        for (size_t i = 0; i < entry->count; i++) {
            const sat_record *other = &entry->records[i];
            bool raced = other->kind == SAT_RECORD_RACED && strcmp(other->race, r->race) == 0;
            if (raced && current(other, v) && group(other) <= 1) return other->threads;
        }
    return 0;
}

bool sat_choose_winner(const sat_entry *entry, const sat_registry *registry, uint32_t flags, sat_record *winner) {
    const sat_record *first = sat_choose_race(entry, NULL);
    sat_record *race = malloc((entry->count + 1) * sizeof *race);
    size_t count = 0;
    for (size_t i = 0; race && first && i < entry->count; i++) {
        const sat_record *r = &entry->records[i];
        const sat_variant *v = sat_registry_find(registry, r->variant);
        if (r->kind != SAT_RECORD_RACED || strcmp(r->race, first->race) != 0) continue;
        if (r->verdict != SAT_VERDICT_OK || !(r->seconds > 0)) continue;
        if (v ? !sat_choose_allowed(v, flags) : !r->may_win) continue;
        race[count] = *r;
        race[count++].may_win = true;
    }
    sat_choose_sort(race, count, registry);
    if (count) *winner = race[0];
    for (size_t i = 0; i < count; i++) {
        const sat_variant *v = sat_registry_find(registry, race[i].variant);
        bool gone = !v || !current(&race[i], v);
        if (gone && race[i].seconds <= winner->seconds * (1 + MOST_TOLERANCE)) {
            *winner = race[i];
            break;
        }
    }
    free(race);
    return count > 0;
}

enum {
    MOST_NOISY_RACES = 3, /* after so many of one key it is not raced again */
    RETUNE_SECONDS = 60   /* to wait after a noisy race */
};

bool sat_choose_needs_retune(const sat_entry *entry, int64_t now) {
    int noisy_races = 0;
    int64_t quiet = -1, noisy = -1; /* when the newest of each was */
    for (const sat_record *r = sat_choose_race(entry, NULL); r; r = sat_choose_race(entry, r)) {
        int64_t *newest = r->noisy ? &noisy : &quiet;
        if (r->when > *newest) *newest = r->when;
        noisy_races += r->noisy;
    }
    return noisy_races > 0 && noisy_races < MOST_NOISY_RACES && noisy > quiet && now - noisy > RETUNE_SECONDS;
}

size_t sat_choose_ranking(const sat_entry *entry, const sat_registry *registry, uint32_t flags, const sat_variant **out,
                          size_t capacity) {
    sat_record *race = malloc((entry->count + 1) * sizeof *race);
    size_t found = 0;
    for (const sat_record *r = race ? sat_choose_race(entry, NULL) : NULL; r; r = sat_choose_race(entry, r)) {
        size_t count = 0;
        for (size_t i = 0; i < entry->count; i++) {
            const sat_record *other = &entry->records[i];
            if (other->kind != SAT_RECORD_RACED || strcmp(other->race, r->race) != 0) continue;
            if (!sat_choose_may_win(entry, registry, flags, other)) continue;
            race[count] = *other;
            race[count++].may_win = true;
        }
        sat_choose_sort(race, count, registry);
        for (size_t i = 0; i < count && group(&race[i]) == 0; i++) {
            const sat_variant *v = sat_registry_find(registry, race[i].variant);
            bool seen = false;
            for (size_t j = 0; j < found; j++) seen = seen || out[j] == v;
            if (!seen && found < capacity) out[found++] = v;
        }
    }
    free(race);
    return found;
}
