/* Growing and printable text. */
#include "base/text.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static bool reserve(sat_text *t, size_t more) {
    if (t->failed) return false;
    if (more < t->capacity - t->length) return true; /* strictly: room for the closing zero */
    size_t capacity = t->capacity ? t->capacity : 1024;
    while (capacity - t->length <= more) {
        if (capacity > SIZE_MAX / 2) return t->failed = true, false;
        capacity *= 2;
    }
    char *data = realloc(t->data, capacity);
    if (!data) return t->failed = true, false;
    t->data = data, t->capacity = capacity;
    return true;
}

void sat_text_add(sat_text *t, const char *data, size_t length) {
    if (!reserve(t, length)) return;
    memcpy(t->data + t->length, data, length);
    t->length += length;
    t->data[t->length] = 0;
}

void sat_text_adds(sat_text *t, const char *string) { sat_text_add(t, string, strlen(string)); }

void sat_text_free(sat_text *t) {
    free(t->data);
    *t = (sat_text){0};
}

static bool shows(char c) { return c >= 0x20 && c <= 0x7e; }

bool sat_printable(const char *s, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (!shows(s[i])) return false;
    return true;
}

void sat_make_printable(char *s) {
    for (; *s; s++)
        if (!shows(*s)) *s = '?';
}
