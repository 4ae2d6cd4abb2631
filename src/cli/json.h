/* Writes JSON: one object on one line. Keys come in the order they are written; commas and escapes are done here. */
#ifndef CLI_JSON_H
#define CLI_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct json {
    FILE *file;
    int depth;
    char close[16];
    bool some[16]; /* this level holds something already */
} json;

/* `key` is NULL for the outermost value and inside arrays. */
void json_object(json *j, const char *key);
void json_array(json *j, const char *key);
void json_end(json *j); /* closes the innermost; after the outermost, ends the line */
void json_text(json *j, const char *key, const char *value); /* NULL gives null */
void json_int(json *j, const char *key, int64_t value);
void json_real(json *j, const char *key, double value); /* null where it is not finite: JSON has no such numbers */
void json_bool(json *j, const char *key, bool value);

#endif
