/* Merging entries: the union of their records, oldest first, within what is kept. The order of merging never shows in
 * the outcome, so that layers, imports and processes can come in any order. */
#include "cache/cache_file.h"

#include <stdlib.h>
#include <string.h>

static int compare_numbers(double a, double b) { return (a > b) - (a < b); }

/* What two records must share to be the same one. */
static int compare_names(const sat_record *a, const sat_record *b) {
    int c = strcmp(a->race, b->race);
    if (!c) c = (int)a->kind - (int)b->kind;
    if (!c) c = strcmp(a->variant, b->variant);
    return c ? c : strcmp(a->full_key, b->full_key);
}

static int compare_rest(const sat_record *a, const sat_record *b) {
    int c = strcmp(a->revision, b->revision);
    if (!c) c = (int)a->verdict - (int)b->verdict;
    if (!c) c = compare_numbers(a->seconds, b->seconds);
    if (!c) c = compare_numbers(a->spread, b->spread);
    if (!c) c = compare_numbers(a->error, b->error);
    if (!c) c = compare_numbers(a->estimate_seconds, b->estimate_seconds);
    if (!c) c = compare_numbers(a->prepare_seconds, b->prepare_seconds);
    if (!c) c = (a->workspace_bytes > b->workspace_bytes) - (a->workspace_bytes < b->workspace_bytes);
    if (!c) c = (a->runs > b->runs) - (a->runs < b->runs);
    if (!c) c = (int)a->may_win - (int)b->may_win;
    if (!c) c = compare_numbers(a->least_seconds, b->least_seconds);
    if (!c) c = (int)a->noisy - (int)b->noisy;
    if (!c) c = (a->threads > b->threads) - (a->threads < b->threads);
    if (!c) c = strcmp(a->message, b->message);
    if (!c)
        c = strcmp(a->checked_by,
                   b->checked_by); /* of two that differ in nothing else, the one with a fingerprint stays */
    return c ? c : strcmp(a->pattern, b->pattern);
}

static int compare_when(const sat_record *a, const sat_record *b) { return (a->when > b->when) - (a->when < b->when); }

/* The order in a file. */
static int by_age(const void *x, const void *y) {
    const sat_record *a = *(const sat_record *const *)x, *b = *(const sat_record *const *)y;
    int c = compare_when(a, b);
    if (!c) c = compare_names(a, b);
    return c ? c : compare_rest(a, b);
}

/* Brings those together that may not both stay, the one that stays first. */
static int by_name(const void *x, const void *y) {
    const sat_record *a = *(const sat_record *const *)x, *b = *(const sat_record *const *)y;
    int c = compare_names(a, b);
    if (!c)
        c = (b->checked_by[0] != 0) -
            (a->checked_by[0] != 0); /* a record with a fingerprint is not replaced by one without */
    if (!c) c = compare_when(b, a);
    return c ? c : compare_rest(b, a);
}

bool sat_record_same(const sat_record *a, const sat_record *b) { return by_age(&a, &b) == 0; }

bool sat_entry_same(const sat_entry *a, const sat_entry *b) {
    if (a->count != b->count) return false;
    for (size_t i = 0; i < a->count; i++)
        if (!sat_record_same(&a->records[i], &b->records[i])) return false;
    return true;
}

void sat_entry_date(sat_entry *entry, int64_t now) {
    for (size_t i = 0; i < entry->count; i++)
        if (entry->records[i].when > now) entry->records[i].when = 0;
}

void sat_entry_clear_foreign(sat_entry *entry, const char *fingerprint) {
    for (size_t i = 0; i < entry->count; i++)
        if (strcmp(entry->records[i].checked_by, fingerprint) != 0) entry->records[i].checked_by[0] = 0;
}

/* Sets what is past the limits to NULL. `list` is oldest first, so the loop starts at the end, with the latest races. A
 * race that does not fit whole is dropped whole, with all that are older. */
static void drop_oldest(const sat_record **list, size_t count) {
    const char *races[SAT_RACES_KEPT];
    size_t sizes[SAT_RACES_KEPT] = {0}, kept = 0, verified = 0;
    for (size_t i = count; i-- > 0;) {
        if (list[i]->kind == SAT_RECORD_VERIFIED) {
            if (++verified > SAT_VERIFIED_KEPT) list[i] = NULL;
            continue;
        }
        size_t r = 0;
        while (r < kept && strcmp(races[r], list[i]->race)) r++;
        if (r == SAT_RACES_KEPT) {
            list[i] = NULL;
            continue;
        }
        if (r == kept) races[kept++] = list[i]->race;
        if (r == 0 && sizes[0] == SAT_RACED_KEPT) list[i] = NULL; /* one race larger than all that may be kept */
        else sizes[r]++;
    }
    size_t total = 0, whole = 0;
    while (whole < kept && total + sizes[whole] <= SAT_RACED_KEPT) total += sizes[whole++];
    if (whole == kept) return;
    for (size_t i = 0; i < count; i++) {
        if (!list[i] || list[i]->kind == SAT_RECORD_VERIFIED) continue;
        size_t r = 0;
        while (r < whole && strcmp(races[r], list[i]->race)) r++;
        if (r == whole) list[i] = NULL;
    }
}

sat_status sat_entry_merge(sat_entry *into, const sat_record *records, size_t count) {
    size_t all = into->count + count, unique = 0, kept = 0;
    if (!all) return SAT_OK;
    const sat_record **list = malloc(all * sizeof *list);
    sat_record *merged = malloc(all * sizeof *merged);
    if (!list || !merged) return free(list), free(merged), sat_cache_no_memory();
    for (size_t i = 0; i < into->count; i++) list[i] = &into->records[i];
    for (size_t i = 0; i < count; i++) list[into->count + i] = &records[i];
    qsort(list, all, sizeof *list, by_name);
    for (size_t i = 0; i < all; i++)
        if (!unique || compare_names(list[unique - 1], list[i])) list[unique++] = list[i];
    qsort(list, unique, sizeof *list, by_age);
    drop_oldest(list, unique);
    for (size_t i = 0; i < unique; i++)
        if (list[i]) merged[kept++] = *list[i];
    free(list);
    free(into->records);
    into->records = merged, into->count = kept;
    return SAT_OK;
}
