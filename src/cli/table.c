// Tables and short texts for people.

#include "table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void table_row(table *t, const char *const *cells) {
    if (t->rows == t->capacity) {
        int capacity = t->capacity ? 2 * t->capacity : 16;
        char **grown = realloc(t->cells, (size_t)capacity * (size_t)t->columns * sizeof *grown);
        if (!grown) return;
        t->cells = grown, t->capacity = capacity;
    }
    for (int i = 0; i < t->columns; i++) t->cells[t->rows * t->columns + i] = cells[i] ? strdup(cells[i]) : NULL;
    t->rows++;
}

static const char *cell(const table *t, int row, int column) {
    const char *text = t->cells[row * t->columns + column];
    return text ? text : "";
}

void table_print(const table *t, FILE *file, const char *indent) {
    int width[TABLE_COLUMNS] = {0};
    for (int r = 0; r < t->rows; r++)
        for (int c = 0; c < t->columns; c++) {
            int length = (int)strlen(cell(t, r, c));
            if (length > width[c]) width[c] = length;
        }
    for (int r = 0; r < t->rows; r++) {
        int last = t->columns - 1; // no blanks at the end of a line
        while (last > 0 && !*cell(t, r, last)) last--;
        fputs(indent, file);
        for (int c = 0; c < last; c++) fprintf(file, "%-*s", width[c] + 3, cell(t, r, c));
        fprintf(file, "%s\n", cell(t, r, last));
    }
}

void table_free(table *t) {
    for (int i = 0; i < t->rows * t->columns; i++) free(t->cells[i]);
    free(t->cells);
    *t = (table){.columns = t->columns};
}

// Three to four digits that matter, without an exponent: "1.234", "12.34", "123.4", "1234".
static void scaled(char *out, size_t capacity, double x, const char *unit) {
    int digits = x < 9.9995 ? 3 : x < 99.995 ? 2 : x < 999.95 ? 1 : 0;
    snprintf(out, capacity, "%.*f %s", digits, x, unit);
}

const char *text_seconds(char *out, size_t capacity, double s) {
    if (!isfinite(s) || s < 0) snprintf(out, capacity, "-");
    else if (s < 1e-6) scaled(out, capacity, s * 1e9, "ns");
    else if (s < 1e-3) scaled(out, capacity, s * 1e6, "us");
    else if (s < 1) scaled(out, capacity, s * 1e3, "ms");
    else scaled(out, capacity, s, "s");
    return out;
}

const char *text_rate(char *out, size_t capacity, double rate) {
    if (!isfinite(rate) || rate < 0) snprintf(out, capacity, "-");
    else if (rate < 1e9) scaled(out, capacity, rate * 1e-6, "MFLOPS");
    else if (rate < 1e13) scaled(out, capacity, rate * 1e-9, "GFLOPS");
    else scaled(out, capacity, rate * 1e-12, "TFLOPS");
    return out;
}

const char *text_bytes(char *out, size_t capacity, double bytes) {
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    int i = 0;
    while (bytes >= 1024 && i < 6) bytes /= 1024, i++;
    snprintf(out, capacity, bytes == floor(bytes) ? "%.0f %s" : "%.1f %s", bytes, unit[i]);
    return out;
}
