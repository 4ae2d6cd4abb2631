/* The cache's text: records, entries, and what merging two entries gives. Opens no file, so that all of it can be
 * fuzzed. The format and the limits are in docs/internals/cache-format.md. */
#ifndef SAT_CACHE_FILE_H
#define SAT_CACHE_FILE_H

#include "base/text.h"
#include "cache/cache.h"

static inline sat_status sat_cache_no_memory(void) { return sat_fail(SAT_OUT_OF_MEMORY, "cache: no memory"); }

enum {
    SAT_CACHE_MAJOR = 1, /* a reader refuses a higher one */
    SAT_CACHE_MINOR = 2, /* a higher one has fields or lines that a reader may skip */

    SAT_KEY_CAPACITY = 1024, /* with the closing zero, as all capacities here */
    SAT_IDENTITY_CAPACITY = 256,
    SAT_LINE_LIMIT = 4096,      /* bytes, with the newline */
    SAT_ENTRY_LIMIT = 4 << 20,  /* bytes of an entry's file */
    SAT_RECORD_LIMIT = 4096,    /* records that a reader takes from one entry */
    SAT_RACES_KEPT = 8,         /* what a writer keeps: the last races whole, ... */
    SAT_RACED_KEPT = 1024,      /* ... no more than so many records of them, ... */
    SAT_VERIFIED_KEPT = 256,    /* ... and the last checks */
    SAT_PACK_LIMIT = 256 << 20, /* bytes of an exported file */
    SAT_UNTUNED_KEPT = 1000
};

/* A text's last line is the checksum of what stands before it. Sealed finds that line and compares: `body` is the
 * length before it, `used` goes past it, `lines` counts those before it. */
void sat_text_seal(sat_text *t, size_t start);
bool sat_text_sealed(const char *text, size_t length, size_t *body, size_t *used, size_t *lines);

/* Takes the next line, without its newline, off the text; false at the end, or if none ends within SAT_LINE_LIMIT. */
bool sat_text_line(const char **text, size_t *left, const char **line, size_t *length);

/* Printable ASCII, closed by a zero within `capacity`: what every string of the cache must be. */
bool sat_text_valid(const char *s, size_t capacity);
bool sat_key_valid(const char *key); /* that, within SAT_KEY_CAPACITY, and not empty */

uint64_t sat_checksum(const char *data, size_t length); /* FNV-1a, 64 bits; also names files */

/* A finite number that is not negative, all of the text. Format gives the shortest spelling that reads back as the same
 * number, with a point in every locale. */
bool sat_number_parse(const char *s, size_t length, double *out);
void sat_number_format(char out[40], double x);

/* Checks a line "<title> <major>.<minor>": SAT_BAD_FORMAT, SAT_UNSUPPORTED for a higher major, else its minor. */
sat_status sat_title_parse(const char *line, size_t length, const char *title, int *minor);

/* The value of a line "<name><value>", the name with its '='; false where it does not fit, is empty or not printable.
 */
bool sat_head_parse(const char *line, size_t length, const char *name, char *out, size_t capacity);

/* Copies a caller's record as the file would give it back: tails zeroed, numbers made finite, the message printable.
 * False for a record that cannot be stored. */
bool sat_record_sanitize(const sat_record *from, sat_record *to);
void sat_record_format(sat_text *out, const sat_record *record); /* one line, with its newline */
bool sat_record_same(const sat_record *a, const sat_record *b);

typedef struct sat_entry_head {
    char identity[SAT_IDENTITY_CAPACITY];
    char key[SAT_KEY_CAPACITY];
} sat_entry_head;

void sat_entry_format(sat_text *out, const char *identity, const char *key, const sat_entry *entry);
/* Reads one entry off the front of a text; `used` is its length. Statuses as sat_entry_parse. */
sat_status sat_entry_read(const char *text, size_t length, sat_entry_head *head, sat_entry *entry, size_t *used);

/* The union by kind, race, variant and full key; of two that agree in these the later one stays. Sorts oldest
 * first and drops what is past the limits. The outcome does not depend on the order of merging. Only SAT_OK or
 * SAT_OUT_OF_MEMORY, which leaves `into` as it was. */
sat_status sat_entry_merge(sat_entry *into, const sat_record *records, size_t count);
/* Takes the dates off records that are later than now: some clock was wrong, and as the oldest they push no other
 * record out. Does not sort. */
void sat_entry_date(sat_entry *entry, int64_t now);
/* Clears `checked_by` of all records but those whose it is `fingerprint`; of all where that is "". */
void sat_entry_clear_foreign(sat_entry *entry, const char *fingerprint);
bool sat_entry_same(const sat_entry *a, const sat_entry *b);

/* Calls `take` for every entry of an exported file, in order, until it fails; NULL only checks. It may change the
 * entry, which is freed afterwards. */
typedef sat_status (*sat_pack_fn)(void *user, const sat_entry_head *head, sat_entry *entry);
sat_status sat_pack_parse(const char *text, size_t length, sat_pack_fn take, void *user);

/* The list of untuned problems: calls `take` for each good line, skips the others. */
sat_status sat_untuned_parse(const char *text, size_t length,
                             void (*take)(void *user, const char *key, const char *full_key), void *user);

#endif
