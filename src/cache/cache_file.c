/* The text of records and entries: writing it, and reading it back with every bound checked.
 *
 * A reader trusts nothing: lines, counts and numbers have limits, the checksum is compared before anything is parsed,
 * and numbers are spelled and read the same in every locale. */
#include "cache/cache_file.h"

#include <float.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

static const char entry_title[] = "sparse_autotune cache";
static const char checksum_name[] = "checksum=";

/* ---- text ---- */

bool sat_text_line(const char **text, size_t *left, const char **line, size_t *length) {
    size_t window = *left < SAT_LINE_LIMIT ? *left : SAT_LINE_LIMIT;
    const char *end = window ? memchr(*text, '\n', window) : NULL;
    if (!end) return false;
    *line = *text;
    *length = (size_t)(end - *text);
    *left -= *length + 1;
    *text = end + 1;
    return true;
}

bool sat_text_valid(const char *s, size_t capacity) {
    size_t length = strnlen(s, capacity);
    return length < capacity && sat_printable(s, length);
}

bool sat_key_valid(const char *key) { return sat_text_valid(key, SAT_KEY_CAPACITY) && key[0]; }

uint64_t sat_checksum(const char *data, size_t length) { return sat_hash_bytes(SAT_HASH_START, data, length); }

void sat_text_seal(sat_text *t, size_t start) {
    char line[64];
    if (t->failed) return;
    snprintf(line, sizeof line, "%s%016" PRIx64 "\n", checksum_name, sat_checksum(t->data + start, t->length - start));
    sat_text_adds(t, line);
}

/* ---- numbers ---- */

static bool parse_digits(const char *s, size_t length, uint64_t limit, uint64_t *out) {
    if (!length || length > 20) return false;
    uint64_t x = 0;
    for (size_t i = 0; i < length; i++) {
        unsigned digit = (unsigned)(s[i] - '0');
        if (digit > 9 || digit > limit || x > (limit - digit) / 10) return false;
        x = x * 10 + digit;
    }
    *out = x;
    return true;
}

/* strtod would look for the locale's decimal sign, so it gets the digits without any: "1.25e-3" is read as "125e-5". */
bool sat_number_parse(const char *s, size_t length, double *out) {
    char digits[64];
    size_t n = 0, i = 0, before = 0, after = 0;
    if (length > 40) return false;
    for (; i < length && s[i] >= '0' && s[i] <= '9'; i++, before++) digits[n++] = s[i];
    if (i < length && s[i] == '.')
        for (i++; i < length && s[i] >= '0' && s[i] <= '9'; i++, after++) digits[n++] = s[i];
    if (!before || n == 0) return false;
    long exponent = 0;
    if (i < length && s[i] == 'e') {
        bool negative = ++i < length && s[i] == '-';
        if (i < length && (s[i] == '-' || s[i] == '+')) i++;
        uint64_t e;
        if (!parse_digits(s + i, length - i, 999, &e)) return false;
        exponent = negative ? -(long)e : (long)e;
        i = length;
    }
    if (i != length) return false;
    exponent -= (long)after;
    digits[n++] = 'e', digits[n++] = exponent < 0 ? '-' : '+';
    unsigned e = (unsigned)labs(exponent); /* at most 999 + 40 */
    for (unsigned unit = 1000; unit; unit /= 10) digits[n++] = (char)('0' + e / unit % 10);
    digits[n] = 0;
    double x = strtod(digits, NULL);
    if (!isfinite(x)) return false;
    *out = x;
    return true;
}

void sat_number_format(char out[40], double x) {
    static const int precisions[] = {6, 15, 16, 17};
    for (size_t p = 0; p < sizeof precisions / sizeof precisions[0]; p++) {
        char spelled[48];
        snprintf(spelled, sizeof spelled, "%.*g", precisions[p], x);
        size_t n = 0;
        for (const char *s = spelled; *s && n < 39; s++) {
            bool known = (*s >= '0' && *s <= '9') || *s == 'e' || *s == '+' || *s == '-';
            if (known) out[n++] = *s;
            else if (n && out[n - 1] != '.') out[n++] = '.';
        }
        out[n] = 0;
        double back;
        if (sat_number_parse(out, n, &back) && back == x) return;
    }
}

/* ---- records ---- */

/* The fields of a record, in the order in which they are written. One that is zero or empty is left out. */
typedef enum field_type { TEXT, REAL, COUNT, INTEGER, BOOLEAN } field_type;
typedef struct field {
    const char *name;
    size_t length; /* of the name */
    field_type type;
    size_t offset, capacity;
} field;

#define FIELD_AS(field, name, type)                                                                                    \
    { name, sizeof name - 1, type, offsetof(sat_record, field), sizeof(((sat_record *)0)->field) }
#define FIELD(field, type) FIELD_AS(field, #field, type)
static const field fields[] = {
    FIELD(race, TEXT),
    FIELD(when, COUNT),
    FIELD(variant, TEXT),
    FIELD(revision, TEXT),
    FIELD(seconds, REAL),
    FIELD(spread, REAL),
    FIELD(error, REAL),
    FIELD(estimate_seconds, REAL),
    FIELD(prepare_seconds, REAL),
    FIELD(workspace_bytes, COUNT),
    FIELD(runs, INTEGER),
    FIELD(may_win, BOOLEAN),
    FIELD(least_seconds, REAL),
    FIELD_AS(noisy, "busy", BOOLEAN),
    FIELD(threads, INTEGER),
    FIELD_AS(full_key, "exact", TEXT),
    FIELD(message, TEXT),
    FIELD_AS(checked_by, "by", TEXT),
    FIELD(pattern, TEXT),
};
#undef FIELD
#undef FIELD_AS
enum { FIELDS = sizeof fields / sizeof fields[0] };

static const char *kind_name(sat_record_kind kind) {
    switch (kind) {
    case SAT_RECORD_RACED: return "raced";
    case SAT_RECORD_VERIFIED: return "verified";
    }
    return NULL;
}

static bool kind_parse(const char *s, size_t length, sat_record_kind *out) {
    for (sat_record_kind kind = SAT_RECORD_RACED; kind <= SAT_RECORD_VERIFIED; kind++)
        if (strlen(kind_name(kind)) == length && !memcmp(s, kind_name(kind), length)) return *out = kind, true;
    return false;
}

static bool verdict_parse(const char *s, size_t length, sat_verdict *out) {
    for (sat_verdict v = SAT_VERDICT_OK; v <= SAT_VERDICT_SKIPPED; v++)
        if (strlen(sat_verdict_name(v)) == length && !memcmp(s, sat_verdict_name(v), length)) return *out = v, true;
    return false;
}

/* What every stored record has. */
static bool record_complete(const sat_record *r) {
    return kind_name(r->kind) && r->variant[0] && r->verdict >= SAT_VERDICT_OK && r->verdict <= SAT_VERDICT_SKIPPED &&
           (r->kind != SAT_RECORD_RACED || r->race[0]);
}

static double sanitize_number(double x) { return isnan(x) || x > DBL_MAX ? DBL_MAX : x > 0 ? x : 0; }

bool sat_record_sanitize(const sat_record *from, sat_record *to) {
    memset(to, 0, sizeof *to);
    to->kind = from->kind, to->verdict = from->verdict;
    for (int i = 0; i < FIELDS; i++) {
        const field *f = &fields[i];
        const char *in = (const char *)from + f->offset;
        char *out = (char *)to + f->offset;
        if (f->type == TEXT) {
            size_t length = strnlen(in, f->capacity - 1); /* an unclosed string is cut, and then refused or a message */
            memcpy(out, in, length);
        } else {
            memcpy(out, in, f->capacity);
        }
    }
    to->seconds = sanitize_number(to->seconds), to->spread = sanitize_number(to->spread);
    to->error = sanitize_number(to->error);
    to->estimate_seconds = sanitize_number(to->estimate_seconds);
    to->prepare_seconds = sanitize_number(to->prepare_seconds);
    to->least_seconds = sanitize_number(to->least_seconds);
    sat_make_printable(to->message); /* free text, maybe from a library: worth keeping, not worth a refusal */
    return record_complete(to) && to->when >= 0 && to->runs >= 0 && to->threads >= 0 && to->workspace_bytes >= 0 &&
           sat_text_valid(from->race, sizeof from->race) && sat_text_valid(from->variant, sizeof from->variant) &&
           sat_text_valid(from->revision, sizeof from->revision) &&
           sat_text_valid(from->full_key, sizeof from->full_key) &&
           sat_text_valid(from->checked_by, sizeof from->checked_by) &&
           sat_text_valid(from->pattern, sizeof from->pattern);
}

/* The field's value as text; "" where it is zero. */
static const char *field_format(const field *f, const sat_record *r, char buffer[40]) {
    const void *at = (const char *)r + f->offset;
    buffer[0] = 0;
    switch (f->type) {
    case TEXT: return at;
    case REAL:
        if (*(const double *)at != 0) sat_number_format(buffer, *(const double *)at);
        break;
    case COUNT:
        if (*(const int64_t *)at) snprintf(buffer, 40, "%" PRId64, *(const int64_t *)at);
        break;
    case INTEGER:
        if (*(const int *)at) snprintf(buffer, 40, "%d", *(const int *)at);
        break;
    case BOOLEAN:
        if (*(const bool *)at) return "1";
    }
    return buffer;
}

void sat_record_format(sat_text *out, const sat_record *record) {
    char buffer[40];
    sat_text_adds(out, "kind=");
    sat_text_adds(out, kind_name(record->kind));
    sat_text_adds(out, "\tverdict=");
    sat_text_adds(out, sat_verdict_name(record->verdict));
    for (int i = 0; i < FIELDS; i++) {
        const char *value = field_format(&fields[i], record, buffer);
        if (!value[0]) continue;
        sat_text_add(out, "\t", 1);
        sat_text_adds(out, fields[i].name);
        sat_text_add(out, "=", 1);
        sat_text_adds(out, value);
    }
    sat_text_add(out, "\n", 1);
}

static bool field_parse(const field *f, const char *s, size_t length, sat_record *r) {
    void *at = (char *)r + f->offset;
    uint64_t x = 0;
    switch (f->type) {
    case TEXT:
        if (length >= f->capacity || !sat_printable(s, length)) return false;
        memcpy(at, s, length);
        return true;
    case REAL: return sat_number_parse(s, length, at);
    case COUNT:
        if (!parse_digits(s, length, INT64_MAX, &x)) return false;
        *(int64_t *)at = (int64_t)x;
        return true;
    case INTEGER:
        if (!parse_digits(s, length, INT_MAX, &x)) return false;
        *(int *)at = (int)x;
        return true;
    case BOOLEAN:
        if (!parse_digits(s, length, 1, &x)) return false;
        *(bool *)at = x == 1;
        return true;
    }
    return false;
}

/* Takes one "name=value" in. `seen` has a bit a field, since a repeated one leaves open which counts. */
static bool record_take(const char *s, size_t length, sat_record *r, uint32_t *seen) {
    const char *equals = memchr(s, '=', length);
    if (!equals || equals == s || !sat_printable(s, length)) return false;
    size_t name = (size_t)(equals - s), size = length - name - 1;
    int i = 0;
    while (i < FIELDS && (fields[i].length != name || memcmp(fields[i].name, s, name))) i++;
    bool kind = name == 4 && !memcmp(s, "kind", 4), verdict = name == 7 && !memcmp(s, "verdict", 7);
    uint32_t bit = 1u << (kind ? FIELDS : verdict ? FIELDS + 1 : i);
    if (i == FIELDS && !kind && !verdict) return true; /* a later minor version's */
    if (*seen & bit) return false;
    *seen |= bit;
    if (kind) return kind_parse(equals + 1, size, &r->kind);
    if (verdict) return verdict_parse(equals + 1, size, &r->verdict);
    return field_parse(&fields[i], equals + 1, size, r);
}

bool sat_record_parse(const char *line, size_t length, sat_record *record) {
    uint32_t seen = 0;
    memset(record, 0, sizeof *record);
    if (!length || length >= SAT_LINE_LIMIT) return false;
    for (const char *s = line, *end = line + length; s <= end;) {
        const char *tab = s < end ? memchr(s, '\t', (size_t)(end - s)) : NULL;
        const char *stop = tab ? tab : end;
        if (!record_take(s, (size_t)(stop - s), record, &seen)) return false;
        s = stop + 1;
    }
    return record_complete(record);
}

/* ---- entries ---- */

void sat_entry_free(sat_entry *entry) {
    free(entry->records);
    *entry = (sat_entry){0};
}

void sat_entry_format(sat_text *out, const char *identity, const char *key, const sat_entry *entry) {
    size_t start = out->length;
    char line[64];
    snprintf(line, sizeof line, "%s %d.%d\n", entry_title, SAT_CACHE_MAJOR, SAT_CACHE_MINOR);
    sat_text_adds(out, line);
    sat_text_adds(out, "device=");
    sat_text_adds(out, identity);
    sat_text_adds(out, "\nkey=");
    sat_text_adds(out, key);
    sat_text_add(out, "\n", 1);
    for (size_t i = 0; i < entry->count; i++) sat_record_format(out, &entry->records[i]);
    sat_text_seal(out, start);
}

static bool begins(const char *line, size_t length, const char *with) {
    size_t n = strlen(with);
    return length >= n && !memcmp(line, with, n);
}

sat_status sat_title_parse(const char *line, size_t length, const char *title, int *minor) {
    size_t n = strlen(title);
    if (!begins(line, length, title) || length < n + 4 || line[n] != ' ') return SAT_BAD_FORMAT;
    const char *version = line + n + 1, *end = line + length, *dot = memchr(version, '.', (size_t)(end - version));
    uint64_t high, low;
    if (!dot || !parse_digits(version, (size_t)(dot - version), 999999, &high) || high == 0 ||
        !parse_digits(dot + 1, (size_t)(end - dot - 1), 999999, &low))
        return SAT_BAD_FORMAT;
    *minor = (int)low;
    return high > SAT_CACHE_MAJOR ? SAT_UNSUPPORTED : SAT_OK;
}

bool sat_head_parse(const char *line, size_t length, const char *name, char *out, size_t capacity) {
    size_t n = strlen(name);
    if (!begins(line, length, name) || length == n || length - n >= capacity) return false;
    if (!sat_printable(line + n, length - n)) return false;
    memcpy(out, line + n, length - n);
    out[length - n] = 0;
    return true;
}

bool sat_text_sealed(const char *text, size_t length, size_t *body, size_t *used, size_t *lines) {
    const char *at = text, *line;
    size_t left = length < SAT_ENTRY_LIMIT ? length : SAT_ENTRY_LIMIT, n;
    for (*lines = 0; sat_text_line(&at, &left, &line, &n); ++*lines) {
        if (!begins(line, n, checksum_name)) continue;
        char expected[sizeof checksum_name + 16];
        *body = (size_t)(line - text);
        *used = (size_t)(at - text);
        snprintf(expected, sizeof expected, "%s%016" PRIx64, checksum_name, sat_checksum(text, *body));
        return n == sizeof expected - 1 && !memcmp(line, expected, n);
    }
    return false;
}

/* A line that a later minor version may have and this one skips: a kind of record that it does not know, or no record
 * at all. */
static bool line_foreign(const char *line, size_t length) {
    sat_record_kind kind;
    for (size_t i = 0; i < length; i++)
        if (line[i] != '\t' && !sat_printable(line + i, 1)) return false;
    if (!begins(line, length, "kind=")) return true;
    const char *tab = memchr(line, '\t', length);
    return !kind_parse(line + 5, (tab ? (size_t)(tab - line) : length) - 5, &kind);
}

sat_status sat_entry_read(const char *text, size_t length, sat_entry_head *head, sat_entry *entry, size_t *used) {
    const char *at = text, *line;
    size_t left = length, n, lines;
    int minor = 0;
    *entry = (sat_entry){0};
    if (!sat_text_line(&at, &left, &line, &n)) return SAT_BAD_FORMAT;
    SAT_TRY(sat_title_parse(line, n, entry_title, &minor));
    if (!sat_text_sealed(text, length, &left, used, &lines)) return SAT_BAD_FORMAT;
    if (lines < 3 || lines - 3 > SAT_RECORD_LIMIT) return SAT_BAD_FORMAT;
    left -= (size_t)(at - text);
    if (!sat_text_line(&at, &left, &line, &n) ||
        !sat_head_parse(line, n, "device=", head->identity, SAT_IDENTITY_CAPACITY))
        return SAT_BAD_FORMAT;
    if (!sat_text_line(&at, &left, &line, &n) || !sat_head_parse(line, n, "key=", head->key, SAT_KEY_CAPACITY))
        return SAT_BAD_FORMAT;
    if (lines == 3) return SAT_OK;
    entry->records = malloc((lines - 3) * sizeof *entry->records);
    if (!entry->records) return sat_cache_no_memory();
    while (sat_text_line(&at, &left, &line, &n)) {
        if (sat_record_parse(line, n, &entry->records[entry->count])) entry->count++;
        else if (minor <= SAT_CACHE_MINOR || !line_foreign(line, n)) return sat_entry_free(entry), SAT_BAD_FORMAT;
    }
    return SAT_OK;
}

sat_status sat_entry_parse(const char *text, size_t length, char *key, size_t key_capacity, sat_entry *entry) {
    sat_entry_head head;
    size_t used = 0;
    SAT_TRY(sat_entry_read(text, length, &head, entry, &used));
    size_t n = strlen(head.key) + 1;
    if (used != length || n > key_capacity) return sat_entry_free(entry), SAT_BAD_FORMAT;
    memcpy(key, head.key, n);
    return SAT_OK;
}
