// The one JSON emitter of the command line.

#include "json.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

// Length of the UTF-8 character at s, or 0 if there is none: device names and file names come from outside.
static int utf8_length(const unsigned char *s) {
    if (s[0] < 0x80) return 1;
    int more = s[0] >= 0xc2 && s[0] < 0xe0 ? 1 : s[0] >= 0xe0 && s[0] < 0xf0 ? 2 : s[0] >= 0xf0 && s[0] < 0xf5 ? 3 : 0;
    if (more == 0) return 0;
    for (int i = 1; i <= more; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if (s[0] == 0xe0 && s[1] < 0xa0) return 0; // overlong
    if (s[0] == 0xed && s[1] > 0x9f) return 0; // surrogates
    if (s[0] == 0xf0 && s[1] < 0x90) return 0;
    if (s[0] == 0xf4 && s[1] > 0x8f) return 0;
    return more + 1;
}

static void quoted(FILE *f, const char *text) {
    putc('"', f);
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        int length = utf8_length(s);
        if (length == 0) fputs("\\ufffd", f), s++;
        else if (*s == '"' || *s == '\\') fprintf(f, "\\%c", *s++);
        else if (*s == '\n') fputs("\\n", f), s++;
        else if (*s == '\t') fputs("\\t", f), s++;
        else if (*s < 0x20 || *s == 0x7f) fprintf(f, "\\u%04x", *s++);
        else
            for (; length > 0; length--) putc(*s++, f);
    }
    putc('"', f);
}

static void begin(json *j, const char *key) {
    if (j->some[j->depth]) fputs(", ", j->file);
    j->some[j->depth] = true;
    if (key) quoted(j->file, key), fputs(": ", j->file);
}

static void open_level(json *j, const char *key, char open, char close) {
    begin(j, key);
    putc(open, j->file);
    if (j->depth + 1 >= (int)sizeof j->close) abort(); // nesting is fixed by this program's own code
    j->close[++j->depth] = close;
    j->some[j->depth] = false;
}

void json_object(json *j, const char *key) { open_level(j, key, '{', '}'); }

void json_array(json *j, const char *key) { open_level(j, key, '[', ']'); }

void json_end(json *j) {
    putc(j->close[j->depth], j->file);
    if (--j->depth == 0) putc('\n', j->file);
}

void json_text(json *j, const char *key, const char *value) {
    begin(j, key);
    if (value) quoted(j->file, value);
    else fputs("null", j->file);
}

void json_int(json *j, const char *key, int64_t value) {
    begin(j, key);
    fprintf(j->file, "%" PRId64, value);
}

void json_real(json *j, const char *key, double value) {
    begin(j, key);
    if (!isfinite(value)) {
        fputs("null", j->file);
        return;
    }
    if (value == floor(value) && fabs(value) < 0x1p53) {
        fprintf(j->file, "%.0f", value);
        return;
    }
    char text[40]; // the shortest of these that reads back as the same number
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    fputs(text, j->file);
}

void json_bool(json *j, const char *key, bool value) {
    begin(j, key);
    fputs(value ? "true" : "false", j->file);
}
