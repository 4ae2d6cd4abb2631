/* Text that grows, and text that is printable. */
#ifndef SAT_TEXT_H
#define SAT_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* Once memory ran out, `failed` is set and stays set, so that callers check once, at the end. */
typedef struct sat_text {
    char *data; /* closed by a zero, where not NULL */
    size_t length, capacity;
    bool failed;
} sat_text;

void sat_text_add(sat_text *t, const char *data, size_t length);
void sat_text_adds(sat_text *t, const char *string);
void sat_text_free(sat_text *t);

bool sat_printable(const char *s, size_t length); /* ASCII from the space to '~', nothing else */
void sat_make_printable(char *s);                 /* every other character becomes '?' */

#endif
