/* Which variant is best, derived from records. Times are compared only within one race. */
#ifndef SAT_CHOOSE_H
#define SAT_CHOOSE_H

#include "cache/cache.h"
#include "core/registry.h"

/* Orders results of one race: those that may win and are right by time, then variants that may not win by time, then
 * the rest. Within the tie tolerance of the fastest, the larger of 1.5 % and the measured noise but at most 3 %,
 * priority decides, then name.
 */
void sat_choose_sort(sat_record *results, size_t count, const sat_registry *registry);

void sat_choose_sort_times(double *seconds, size_t count); /* fastest first */

/* Seconds by which a result's median may be off: its standard error, from the quartiles. */
double sat_choose_median_error(const sat_record *r);

/* May this variant win a problem with these flags (SAT_ALLOW_*)? A record says what was so when it was written; what
 * is allowed comes from the registry and the problem. */
bool sat_choose_allowed(const sat_variant *variant, uint32_t flags);

/* The races of an entry, one record of each: those on a quiet machine first, then by age, newest first. `last` is the
 * one before, NULL at first; NULL past the end. */
const sat_record *sat_choose_race(const sat_entry *entry, const sat_record *last);

/* Should this key be raced again once the machine is quiet? True where its newest race was noisy and more than a minute
 * ago, and fewer than three races were noisy. */
bool sat_choose_needs_retune(const sat_entry *entry, int64_t now);

/* The variants of an entry, best first, each once: the first race's order (sat_choose_race), then variants of other
 * races. Only variants that are registered with the recorded revision, that this build never found wrong on this
 * machine, and that may win a problem with these flags. Timings of other machines count; that a variant is right must
 * be checked here. Returns how many were written to `out`. */
size_t sat_choose_ranking(const sat_entry *entry, const sat_registry *registry, uint32_t flags, const sat_variant **out,
                          size_t capacity);

/* The variant that won the entry's first race, by the records alone: it need not be registered, or as it was then. A
 * right one within a tie's reach that is not here as it was then may have won, and counts as the winner. False: no
 * variant of that race may win a problem with these flags. */
bool sat_choose_winner(const sat_entry *entry, const sat_registry *registry, uint32_t flags, sat_record *winner);

/* On how many threads it was fastest in the first race that has a time of this variant as it is now; 0: on all. */
int sat_choose_threads(const sat_entry *entry, const sat_variant *variant);

/* May a record's variant win here and now? It is registered as it was then, allowed, and no record of this build and
 * machine found it wrong. */
bool sat_choose_may_win(const sat_entry *entry, const sat_registry *registry, uint32_t flags, const sat_record *record);

/* Has this entry a result of a race, of any verdict, of this variant as it is now? */
bool sat_choose_has_result(const sat_entry *entry, const sat_variant *variant);
/* Was this variant, as it is now, found right on the problem of this full key, by this build on this machine
 * (sat_record.checked_by)? `pattern`: a pattern's digest, and on no other; NULL: on any. */
bool sat_choose_verified(const sat_entry *entry, const sat_variant *variant, const char *full_key, const char *pattern);
/* Was it found wrong, by this build on this machine, on any problem of the key? What another one found wrong has to be
 * found right here before it serves, as everything else. */
bool sat_choose_wrong(const sat_entry *entry, const sat_variant *variant);
/* Did this variant, as it is now, end in an error, on the problem of this full key (NULL: any of the key)? Errors
 * that were recorded elsewhere count: to try again may cost a process, to leave it alone costs some speed. */
bool sat_choose_failed(const sat_entry *entry, const sat_variant *variant, const char *full_key);

#endif
