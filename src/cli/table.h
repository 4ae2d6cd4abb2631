/* A table for people: collects rows, then prints columns as wide as they need to be. */
#ifndef CLI_TABLE_H
#define CLI_TABLE_H

#include <stdio.h>

#define TABLE_COLUMNS 12

typedef struct table {
    int columns;
    int rows, capacity;
    char **cells; /* rows * columns, owned */
} table;

/* `cells` gives t->columns texts; NULL is an empty cell. Without memory a row is lost, not the program. */
void table_row(table *t, const char *const *cells);
void table_print(const table *t, FILE *file, const char *indent);
void table_free(table *t);

/* Short texts for people, into `out`, which is returned. */
const char *text_seconds(char *out, size_t capacity, double seconds); /* "1.234 ms" */
const char *text_rate(char *out, size_t capacity, double flops_per_second);
const char *text_bytes(char *out, size_t capacity, double bytes);

#endif
