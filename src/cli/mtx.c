// Matrix Market: a bounded line reader, the banner, the size line, the entries; then blocking by two counting sorts.

#include "mtx.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { LINE_MOST = 1025 }; // the format allows 1024 characters

typedef struct source {
    FILE *file;       // or, where NULL,
    const char *next; // memory, up to
    const char *end;
    char line[LINE_MOST + 1];
    int64_t number; // of the line, from 1
    mtx_error *error;
} source;

typedef struct banner {
    bool array, pattern, integer, symmetric, skew;
} banner;

static bool fail(source *s, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool fail(source *s, const char *format, ...) {
    int at = snprintf(s->error->text, sizeof s->error->text, "line %" PRId64 ": ", s->number);
    va_list list;
    va_start(list, format);
    vsnprintf(s->error->text + at, sizeof s->error->text - (size_t)at, format, list);
    va_end(list);
    return false;
}

static int get(source *s) {
    if (s->file) return getc_unlocked(s->file);
    return s->next < s->end ? (unsigned char)*s->next++ : EOF;
}

typedef enum got { GOT_LINE, GOT_END, GOT_BAD } got;

// One line without its end. A comment may be longer than the format allows and is cut; anything else may not.
static got read_line(source *s) {
    size_t length = 0;
    int c = get(s);
    if (c == EOF) return s->file && ferror(s->file) ? fail(s, "cannot be read: %s", strerror(errno)), GOT_BAD : GOT_END;
    s->number++;
    bool comment = c == '%';
    for (; c != EOF && c != '\n'; c = get(s)) {
        if (c == 0) return fail(s, "holds a zero byte: not a text file"), GOT_BAD;
        if (length < LINE_MOST) s->line[length++] = (char)c;
        else if (!comment) return fail(s, "longer than 1024 characters"), GOT_BAD;
    }
    if (length > 0 && s->line[length - 1] == '\r') length--;
    s->line[length] = 0;
    return GOT_LINE;
}

static const char *skip_blanks(const char *p) {
    while (*p == ' ' || *p == '\t') p++;
    return p;
}

// The next line that is neither empty nor a comment.
static got read_data(source *s, const char *what) {
    for (;;) {
        got g = read_line(s);
        if (g == GOT_END && what) fail(s, "the file ends before %s", what);
        if (g != GOT_LINE) return g;
        const char *p = skip_blanks(s->line);
        if (*p && *p != '%') return GOT_LINE;
    }
}

// A whole number of at least 0 at *p, which moves on.
static bool read_whole(const char **p, int64_t most, int64_t *out) {
    const char *q = skip_blanks(*p);
    if (!isdigit((unsigned char)*q)) return false;
    int64_t x = 0;
    for (; isdigit((unsigned char)*q); q++) {
        int digit = *q - '0';
        if (x > (most - digit) / 10) return false;
        x = 10 * x + digit;
    }
    if (*q && *q != ' ' && *q != '\t') return false;
    *p = q, *out = x;
    return true;
}

static bool read_value(const banner *b, const char **p, double *out) {
    const char *q = skip_blanks(*p);
    char *end;
    double x = strtod(q, &end);
    if (end == q || (*end && *end != ' ' && *end != '\t')) return false;
    if (!isfinite(x) || (b->integer && x != floor(x))) return false;
    *p = end, *out = x;
    return true;
}

static bool one_of(const char *word, const char *const *names, int *which) {
    for (int i = 0; names[i]; i++)
        if (strcasecmp(word, names[i]) == 0) return *which = i, true;
    return false;
}

static bool read_banner(source *s, banner *b) {
    static const char *const formats[] = {"coordinate", "array", NULL};
    static const char *const fields[] = {"real", "integer", "pattern", "double", "complex", NULL};
    static const char *const kinds[] = {"general", "symmetric", "skew-symmetric", "hermitian", NULL};
    got g = read_line(s);
    if (g == GOT_BAD) return false;
    s->number = s->number ? s->number : 1;
    char head[32], object[32], format[32], field[32], kind[32];
    if (g == GOT_END || sscanf(s->line, "%31s %31s %31s %31s %31s", head, object, format, field, kind) != 5 ||
        strcasecmp(head, "%%MatrixMarket") != 0)
        return fail(s, "expected '%%%%MatrixMarket matrix <format> <field> <symmetry>'");
    int which = 0;
    if (strcasecmp(object, "matrix") != 0) return fail(s, "object '%s' is not supported, only 'matrix' is", object);
    if (!one_of(format, formats, &which)) return fail(s, "format '%s': expected coordinate or array", format);
    b->array = which == 1;
    if (!one_of(field, fields, &which)) return fail(s, "field '%s': expected real, integer or pattern", field);
    if (which == 4) return fail(s, "complex matrices are not supported");
    b->integer = which == 1, b->pattern = which == 2;
    if (!one_of(kind, kinds, &which))
        return fail(s, "symmetry '%s': expected general, symmetric or skew-symmetric", kind);
    if (which == 3) return fail(s, "hermitian matrices are not supported");
    b->symmetric = which == 1, b->skew = which == 2;
    if (b->pattern && b->array) return fail(s, "an array file cannot have the field 'pattern'");
    if (b->pattern && b->skew) return fail(s, "a pattern file cannot be skew-symmetric");
    return true;
}

// Entries the file has to hold, by its own account.
static bool read_sizes(source *s, const banner *b, mtx *m, int64_t *promised) {
    if (read_data(s, "its sizes") != GOT_LINE) return false;
    const char *p = s->line;
    if (!read_whole(&p, INT32_MAX, &m->rows) || !read_whole(&p, INT32_MAX, &m->cols))
        return fail(s, "expected rows and columns, whole numbers from 0 to 2147483647");
    if ((b->symmetric || b->skew) && m->rows != m->cols)
        return fail(s, "a symmetric matrix must be square, not %" PRId64 " by %" PRId64, m->rows, m->cols);
    int64_t most = m->rows * m->cols; // below 2^62
    int64_t half = b->symmetric ? m->rows : 0;
    if (b->symmetric || b->skew) most = (most - m->rows) / 2 + half;
    if (b->array) *promised = most;
    else if (!read_whole(&p, INT64_MAX, promised)) return fail(s, "expected rows, columns and the number of entries");
    if (*promised > most)
        return fail(s, "%" PRId64 " entries do not fit into %" PRId64 " by %" PRId64, *promised, m->rows, m->cols);
    if (*skip_blanks(p)) return fail(s, "'%.40s' after the sizes", skip_blanks(p));
    return true;
}

typedef struct room {
    int64_t capacity, most;
} room;

static bool push(source *s, mtx *m, room *r, int64_t row, int64_t col, double value) {
    if (m->count == r->capacity) {
        int64_t capacity = r->capacity ? 2 * r->capacity : 1024;
        if (capacity > r->most) capacity = r->most;
        if (capacity <= m->count) return fail(s, "too large: over %" PRId64 " entries", r->most);
        mtx_entry *grown = realloc(m->entries, (size_t)capacity * sizeof *grown);
        if (!grown) return fail(s, "not enough memory for %" PRId64 " entries", capacity);
        m->entries = grown, r->capacity = capacity;
    }
    m->entries[m->count++] = (mtx_entry){(int32_t)row, (int32_t)col, value};
    return true;
}

static bool push_both(source *s, const banner *b, mtx *m, room *r, int64_t row, int64_t col, double value) {
    if (!push(s, m, r, row, col, value)) return false;
    if (!(b->symmetric || b->skew) || row == col) return true;
    return push(s, m, r, col, row, b->skew ? -value : value);
}

static bool read_coordinate(source *s, const banner *b, mtx *m, room *r) {
    const char *p = s->line;
    int64_t row, col;
    double value = 1;
    if (!read_whole(&p, INT64_MAX, &row) || !read_whole(&p, INT64_MAX, &col))
        return fail(s, "expected a row and a column, but found '%.60s'", s->line);
    if (row < 1 || row > m->rows) return fail(s, "row %" PRId64 " is outside 1 to %" PRId64, row, m->rows);
    if (col < 1 || col > m->cols) return fail(s, "column %" PRId64 " is outside 1 to %" PRId64, col, m->cols);
    if (!b->pattern && !read_value(b, &p, &value))
        return fail(s, "expected %s, but found '%.60s'", b->integer ? "a whole number" : "a finite number",
                    skip_blanks(p));
    if (*skip_blanks(p)) return fail(s, "'%.60s' after the entry", skip_blanks(p));
    if (b->symmetric && col > row) return fail(s, "a symmetric file holds the lower half only");
    if (b->skew && col >= row) return fail(s, "a skew-symmetric file holds only what is below the diagonal");
    return push_both(s, b, m, r, row - 1, col - 1, value);
}

// Array files hold columns one after the other; of a symmetric one only from the diagonal down.
static bool read_array(source *s, const banner *b, mtx *m, room *r, int64_t *row, int64_t *col) {
    const char *p = s->line;
    double value;
    if (!read_value(b, &p, &value))
        return fail(s, "expected %s, but found '%.60s'", b->integer ? "a whole number" : "a finite number", s->line);
    if (*skip_blanks(p)) return fail(s, "'%.60s' after the value", skip_blanks(p));
    if (value != 0 && !push_both(s, b, m, r, *row, *col, value)) return false;
    if (++*row == m->rows) ++*col, *row = b->symmetric ? *col : b->skew ? *col + 1 : 0;
    return true;
}

static bool read_all(source *s, size_t limit, mtx *m) {
    banner b = {0};
    int64_t promised = 0;
    if (!read_banner(s, &b) || !read_sizes(s, &b, m, &promised)) return false;
    int64_t sizes_line = s->number, row = b.skew ? 1 : 0, col = 0;
    room r = {.most = (int64_t)(limit / sizeof(mtx_entry))};
    for (int64_t i = 0; i < promised; i++) {
        got g = read_data(s, NULL);
        if (g == GOT_END)
            return fail(s, "the file ends after %" PRId64 " of the %" PRId64 " entries that line %" PRId64 " promises",
                        i, promised, sizes_line);
        if (g == GOT_BAD) return false;
        if (!(b.array ? read_array(s, &b, m, &r, &row, &col) : read_coordinate(s, &b, m, &r))) return false;
    }
    for (;;) { // nothing but comments and empty lines may follow
        got g = read_line(s);
        if (g != GOT_LINE) return g == GOT_END;
        const char *p = skip_blanks(s->line);
        if (*p && *p != '%')
            return fail(s, "more entries than the %" PRId64 " that line %" PRId64 " promises", promised, sizes_line);
    }
}

void mtx_free(mtx *m) {
    free(m->entries);
    *m = (mtx){0};
}

bool mtx_read_memory(const char *bytes, size_t length, size_t limit, mtx *out, mtx_error *error) {
    source s = {.next = bytes, .end = bytes + length, .error = error};
    *out = (mtx){0};
    if (read_all(&s, limit, out)) return true;
    mtx_free(out);
    return false;
}

bool mtx_read_file(const char *path, size_t limit, mtx *out, mtx_error *error) {
    *out = (mtx){0};
    FILE *file = fopen(path, "re");
    if (!file) {
        snprintf(error->text, sizeof error->text, "cannot be opened: %s", strerror(errno));
        return false;
    }
    source s = {.file = file, .error = error};
    bool ok = read_all(&s, limit, out);
    fclose(file);
    if (!ok) mtx_free(out);
    return ok;
}

/* ---- blocking ---- */

// Where each bucket begins, from how many are in it: counts become places.
static void to_places(int64_t *count, int64_t buckets) {
    int64_t sum = 0;
    for (int64_t i = 0; i <= buckets; i++) {
        int64_t here = count[i];
        count[i] = sum, sum += here;
    }
}

// Entry numbers ordered by block row, then block column. Two stable counting sorts: files come in any order.
static void order(const mtx *m, const blocks *b, int64_t *places, uint32_t *scratch, uint32_t *ordered) {
    memset(places, 0, (size_t)(b->grid_cols + 1) * sizeof *places);
    for (int64_t i = 0; i < m->count; i++) places[m->entries[i].col / b->block_cols]++;
    to_places(places, b->grid_cols);
    for (int64_t i = 0; i < m->count; i++) scratch[places[m->entries[i].col / b->block_cols]++] = (uint32_t)i;
    memset(places, 0, (size_t)(b->grid_rows + 1) * sizeof *places);
    for (int64_t i = 0; i < m->count; i++) places[m->entries[i].row / b->block_rows]++;
    to_places(places, b->grid_rows);
    for (int64_t i = 0; i < m->count; i++) ordered[places[m->entries[scratch[i]].row / b->block_rows]++] = scratch[i];
}

// Fills row_ptr and col_idx (where it is there) from the ordered entries; gives how many blocks there are.
static int64_t distinct(const mtx *m, blocks *b, const uint32_t *ordered) {
    int64_t count = 0, last_row = -1, last_col = -1;
    for (int64_t i = 0; i < m->count; i++) {
        const mtx_entry *e = &m->entries[ordered[i]];
        int64_t row = e->row / b->block_rows, col = e->col / b->block_cols;
        if (row == last_row && col == last_col) continue;
        if (b->col_idx) b->col_idx[count] = col;
        else b->row_ptr[row + 1]++;
        count++, last_row = row, last_col = col;
    }
    return count;
}

static void scatter(const mtx *m, const blocks *b, const uint32_t *ordered, double *values) {
    int64_t block = -1, last_row = -1, last_col = -1;
    for (int64_t i = 0; i < m->count; i++) {
        const mtx_entry *e = &m->entries[ordered[i]];
        int64_t row = e->row / b->block_rows, col = e->col / b->block_cols;
        if (row != last_row || col != last_col) block++, last_row = row, last_col = col;
        values[(block * b->block_rows + e->row % b->block_rows) * b->block_cols + e->col % b->block_cols] += e->value;
    }
}

static bool too_large(mtx_error *error, const char *what, double bytes) {
    snprintf(error->text, sizeof error->text, "%s takes %.3g GB, more than is allowed", what, bytes * 1e-9);
    return false;
}

static bool fill_blocks(const mtx *m, size_t limit, blocks *out, double **values, const uint32_t *ordered,
                        mtx_error *error) {
    out->count = distinct(m, out, ordered);
    for (int64_t i = 0; i < out->grid_rows; i++) out->row_ptr[i + 1] += out->row_ptr[i];
    out->col_idx = malloc((size_t)(out->count + 1) * sizeof *out->col_idx);
    if (!out->col_idx) return too_large(error, "the block index", (double)out->count * 8);
    distinct(m, out, ordered);
    if (!values) return true;
    double bytes = 8.0 * (double)out->count * (double)out->block_rows * (double)out->block_cols;
    if (bytes > (double)limit) return too_large(error, "the blocked matrix", bytes);
    *values = calloc((size_t)(bytes / 8) + 1, sizeof **values);
    if (!*values) return too_large(error, "the blocked matrix", bytes);
    scatter(m, out, ordered, *values);
    return true;
}

bool mtx_block(const mtx *m, int64_t block_rows, int64_t block_cols, size_t limit, blocks *out, double **values,
               mtx_error *error) {
    *out = (blocks){.rows = m->rows, .cols = m->cols, .block_rows = block_rows, .block_cols = block_cols};
    if (values) *values = NULL;
    if (block_rows < 1 || block_cols < 1) {
        snprintf(error->text, sizeof error->text, "a block of %" PRId64 " by %" PRId64, block_rows, block_cols);
        return false;
    }
    if (m->count > UINT32_MAX) return too_large(error, "sorting the entries", 24.0 * (double)m->count);
    out->grid_rows = grid_of(m->rows, block_rows), out->grid_cols = grid_of(m->cols, block_cols);
    int64_t longer = out->grid_rows > out->grid_cols ? out->grid_rows : out->grid_cols;
    double bytes = 8.0 * (double)(out->grid_rows + longer + 2) + 16.0 * (double)m->count;
    if (bytes > (double)limit) return too_large(error, "the block index", bytes);
    out->row_ptr = calloc((size_t)out->grid_rows + 1, sizeof *out->row_ptr);
    int64_t *places = malloc((size_t)(longer + 1) * sizeof *places);
    uint32_t *scratch = malloc(((size_t)m->count + 1) * sizeof *scratch);
    uint32_t *ordered = malloc(((size_t)m->count + 1) * sizeof *ordered);
    bool ok = out->row_ptr && places && scratch && ordered;
    if (!ok) too_large(error, "the block index", bytes);
    if (ok) order(m, out, places, scratch, ordered);
    free(places);
    free(scratch);
    if (ok) ok = fill_blocks(m, limit, out, values, ordered, error);
    free(ordered);
    if (!ok) blocks_free(out);
    return ok;
}
