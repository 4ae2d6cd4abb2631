/* Validation, the owned copy, statistics and the transposed index of a pattern; of one whose indices change, what is
 * expected of them. */
#include "core/pattern.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/dynamic.h"

struct sat_pattern {
    atomic_int references;
    pthread_mutex_t lock; /* guards the making of the transposed index */
    bool has_transposed;
    uint64_t digest;
    sat_pattern_view by_rows, full;
    int64_t *row_ptr, *row_end; /* row_end NULL: the next row begins where a row ends */
    int32_t *col_idx;
    int64_t *t_ptr, *t_block;
    int32_t *t_row;
    int64_t *offsets; /* both lists of sequences, one after the other */
    /* Where the device cannot read the host's memory, its own copy of both indices, in the backend's memory: a
     * pattern may outlive the context that it was made with, and that context's allocator. */
    const sat_backend *backend;
    sat_device device;
    void *device_index, *device_t_index, *device_offsets, *device_row_end;
    bool is_dynamic;
    sat_dynamic dynamic; /* where it is */
};

/* Three arrays as the device sees them: the same where it reads the host's memory, else one copy of all. */
typedef struct index_arrays {
    const int64_t *ptr;
    const int32_t *number;
    const int64_t *block; /* may be NULL */
    int64_t lines, entries;
} index_arrays;

static sat_status on_device(sat_pattern *p, index_arrays *x, void **memory) {
    if (p->backend->shares_memory) return SAT_OK;
    size_t ptr = ((size_t)x->lines + 1) * 8, block = x->block ? (size_t)x->entries * 8 : 0;
    size_t number = (size_t)x->entries * 4;
    char *to = p->backend->alloc(&p->device, ptr + block + number, p->backend->alignment);
    if (!to) return sat_fail(SAT_OUT_OF_MEMORY, "pattern: %zu bytes on the device", ptr + block + number);
    sat_status status = p->backend->write(&p->device, to, x->ptr, ptr);
    if (status == SAT_OK && block) status = p->backend->write(&p->device, to + ptr, x->block, block);
    if (status == SAT_OK && number) status = p->backend->write(&p->device, to + ptr + block, x->number, number);
    if (status != SAT_OK) {
        p->backend->free(&p->device, to);
        return status;
    }
    *memory = to;
    x->ptr = (const int64_t *)(const void *)to;
    if (x->block) x->block = (const int64_t *)(const void *)(to + ptr);
    x->number = (const int32_t *)(const void *)(to + ptr + block);
    return SAT_OK;
}

static int64_t index_at(const void *p, sat_index_type t, int64_t i) {
    return t == SAT_I32 ? ((const int32_t *)p)[i] : ((const int64_t *)p)[i];
}

/* Blocks that are not stored and that reach far beyond the matrix are cut to it: else variants would plan for them. */
static int64_t cut_side(int64_t side, int64_t extent) {
    enum { LARGE = 1 << 20 };
    return side <= LARGE || side <= extent ? side : extent > 0 ? extent : 1;
}

/* `count` is what messages call the number of stored blocks. */
static sat_status check_sizes(sat_bsr *s, const char *count, int64_t *grid_rows, int64_t *grid_cols) {
    if (s->rows < 0) return sat_fail(SAT_BAD_SIZE, "rows is %lld; expected 0 or more", (long long)s->rows);
    if (s->cols < 0) return sat_fail(SAT_BAD_SIZE, "cols is %lld; expected 0 or more", (long long)s->cols);
    if (s->block_rows < 1)
        return sat_fail(SAT_BAD_BLOCK, "block_rows is %lld; expected 1 or more", (long long)s->block_rows);
    if (s->block_cols < 1)
        return sat_fail(SAT_BAD_BLOCK, "block_cols is %lld; expected 1 or more", (long long)s->block_cols);
    if (s->index_type != SAT_I32 && s->index_type != SAT_I64)
        return sat_fail(SAT_BAD_ENUM, "index_type is %d; expected SAT_I32 or SAT_I64", (int)s->index_type);
    *grid_rows = s->rows / s->block_rows + (s->rows % s->block_rows != 0);
    *grid_cols = s->cols / s->block_cols + (s->cols % s->block_cols != 0);
    if (*grid_rows >= INT32_MAX)
        return sat_fail(SAT_BAD_SIZE, "rows/block_rows is %lld; expected below 2^31-1", (long long)*grid_rows);
    if (*grid_cols >= INT32_MAX)
        return sat_fail(SAT_BAD_SIZE, "cols/block_cols is %lld; expected below 2^31-1", (long long)*grid_cols);
    if (s->stored_blocks < 0)
        return sat_fail(SAT_BAD_SIZE, "%s is %lld; expected 0 or more", count, (long long)s->stored_blocks);
    if (s->stored_blocks > *grid_rows * *grid_cols)
        return sat_fail(SAT_BAD_SIZE, "%s is %lld; expected at most the %lld x %lld blocks of the matrix", count,
                        (long long)s->stored_blocks, (long long)*grid_rows, (long long)*grid_cols);
    if (s->stored_blocks == 0)
        s->block_rows = cut_side(s->block_rows, s->rows), s->block_cols = cut_side(s->block_cols, s->cols);
    int64_t area, elements;
    if (__builtin_mul_overflow(s->block_rows, s->block_cols, &area) ||
        __builtin_mul_overflow(area, s->stored_blocks, &elements) || elements > INT64_MAX / 64)
        return sat_fail(SAT_BAD_SIZE, "block_rows %lld, block_cols %lld, %s %lld: their product overflows",
                        (long long)s->block_rows, (long long)s->block_cols, count, (long long)s->stored_blocks);
    return SAT_OK;
}

static sat_status check_pointers(const sat_bsr *s) {
    if (!s->row_ptr) return sat_fail(SAT_NULL_POINTER, "row_ptr is NULL");
    if (!s->col_idx && s->stored_blocks > 0)
        return sat_fail(SAT_NULL_POINTER, "col_idx is NULL; expected %lld entries", (long long)s->stored_blocks);
    size_t width = s->index_type == SAT_I32 ? 4 : 8;
    if ((uintptr_t)s->row_ptr % width) return sat_fail(SAT_MISALIGNED, "row_ptr is not a multiple of %zu bytes", width);
    if ((uintptr_t)s->col_idx % width) return sat_fail(SAT_MISALIGNED, "col_idx is not a multiple of %zu bytes", width);
    return SAT_OK;
}

static sat_status copy_indices(sat_pattern *p, const sat_bsr *s, const void *row_ptr, const void *col_idx) {
    int64_t grid_rows = p->by_rows.grid_rows, grid_cols = p->by_rows.grid_cols;
    for (int64_t i = 0; i <= grid_rows; i++) {
        int64_t at = index_at(row_ptr, s->index_type, i), before = i ? p->row_ptr[i - 1] : 0;
        if (i == 0 && at != 0) return sat_fail(SAT_BAD_ROW_PTR, "row_ptr[0] is %lld; expected 0", (long long)at);
        if (at < before)
            return sat_fail(SAT_BAD_ROW_PTR, "row_ptr[%lld] is %lld, below the %lld before it", (long long)i,
                            (long long)at, (long long)before);
        if (at > s->stored_blocks)
            return sat_fail(SAT_BAD_ROW_PTR, "row_ptr[%lld] is %lld, beyond the %lld stored blocks", (long long)i,
                            (long long)at, (long long)s->stored_blocks);
        p->row_ptr[i] = at;
    }
    if (p->row_ptr[grid_rows] != s->stored_blocks)
        return sat_fail(SAT_BAD_ROW_PTR, "row_ptr[%lld] is %lld; expected stored_blocks, %lld", (long long)grid_rows,
                        (long long)p->row_ptr[grid_rows], (long long)s->stored_blocks);
    for (int64_t r = 0; r < grid_rows; r++) {
        for (int64_t t = p->row_ptr[r]; t < p->row_ptr[r + 1]; t++) {
            int64_t col = index_at(col_idx, s->index_type, t);
            if (col < 0 || col >= grid_cols)
                return sat_fail(SAT_COLUMN_RANGE, "col_idx[%lld] is %lld; expected 0 to %lld", (long long)t,
                                (long long)col, (long long)grid_cols - 1);
            if (t > p->row_ptr[r] && col <= p->col_idx[t - 1])
                return sat_fail(SAT_COLUMN_ORDER, "col_idx[%lld] is %lld after %d in block row %lld; expected %s",
                                (long long)t, (long long)col, p->col_idx[t - 1], (long long)r,
                                col == p->col_idx[t - 1] ? "no repeats" : "increasing columns");
            p->col_idx[t] = (int32_t)col;
        }
    }
    return SAT_OK;
}

/* Columns that row r shares with row r+1, both sorted. */
static int64_t shared_columns(const sat_pattern_view *v, int64_t r) {
    int64_t i = v->row_ptr[r], j = v->row_ptr[r + 1], i_end = v->row_end[r], j_end = v->row_end[r + 1], shared = 0;
    while (i < i_end && j < j_end) {
        int32_t x = v->col_idx[i], y = v->col_idx[j];
        shared += x == y;
        i += x <= y;
        j += y <= x;
    }
    return shared;
}

static int by_number(const void *x, const void *y) {
    int32_t a = *(const int32_t *)x, b = *(const int32_t *)y;
    return a < b ? -1 : a > b;
}

/* The most blocks of a column, by sorting their columns: memory for what is stored, however wide the matrix is. */
static sat_status sort_for_heaviest(sat_pattern_view *v) {
    size_t count = 0;
    int32_t *sorted = malloc(((size_t)v->stored_blocks + 1) * sizeof *sorted);
    if (!sorted) return sat_fail(SAT_OUT_OF_MEMORY, "pattern: the columns of %lld blocks", (long long)v->stored_blocks);
    for (int64_t r = 0; r < v->grid_rows; r++)
        for (int64_t t = v->row_ptr[r]; t < v->row_end[r]; t++) sorted[count++] = v->col_idx[t];
    qsort(sorted, count, sizeof *sorted, by_number);
    for (size_t i = 0, first = 0; i < count; i++) {
        if (sorted[i] != sorted[first]) first = i;
        if ((int64_t)(i - first + 1) > v->max_col) v->max_col = (int64_t)(i - first + 1);
    }
    free(sorted);
    return SAT_OK;
}

static sat_status find_heaviest_column(sat_pattern_view *v) {
    if (v->grid_cols > 4 * v->stored_blocks + 4096) return sort_for_heaviest(v);
    int64_t *column = calloc((size_t)v->grid_cols + 1, sizeof *column);
    if (!column) return sat_fail(SAT_OUT_OF_MEMORY, "pattern: %lld column counts", (long long)v->grid_cols);
    for (int64_t r = 0; r < v->grid_rows; r++)
        for (int64_t t = v->row_ptr[r]; t < v->row_end[r]; t++)
            if (++column[v->col_idx[t]] > v->max_col) v->max_col = column[v->col_idx[t]];
    free(column);
    return SAT_OK;
}

static sat_status fill_statistics(sat_pattern_view *v) {
    SAT_TRY(find_heaviest_column(v));
    int64_t last_row_height = v->rows - (v->grid_rows - 1) * v->block_rows, shared = 0, first_blocks = 0, all = 0;
    int64_t last_col_width = v->cols - (v->grid_cols - 1) * v->block_cols;
    for (int64_t r = 0; r < v->grid_rows; r++) {
        int64_t blocks = v->row_end[r] - v->row_ptr[r], height = v->block_rows;
        if (r == v->grid_rows - 1) height = last_row_height;
        if (blocks > v->max_row) v->max_row = blocks;
        v->empty_rows += blocks == 0, all += blocks;
        for (int64_t t = v->row_ptr[r]; t < v->row_end[r]; t++) {
            v->stored_elements += height * (v->col_idx[t] == v->grid_cols - 1 ? last_col_width : v->block_cols);
        }
        if (r + 1 < v->grid_rows) {
            shared += shared_columns(v, r);
            first_blocks += blocks;
        }
    }
    double stored = (double)all, rows = (double)v->grid_rows, cols = (double)v->grid_cols;
    if (all > 0) {
        v->density = stored / (rows * cols);
        v->skew = (double)v->max_row * rows / stored;
        v->t_skew = (double)v->max_col * cols / stored;
    }
    v->overlap = first_blocks ? (double)shared / (double)first_blocks : 0;
    return SAT_OK;
}

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    return x ^ (x >> 29);
}

/* A sum over words, each mixed with its place, so that no step waits for the one before. */
static uint64_t digest_of(const void *from, size_t bytes, uint64_t seed) {
    const char *p = from, *end = p + bytes / 8 * 8;
    uint64_t sum = 0, place = seed, x = 0;
    for (; p < end; p += 8, place += 0x9e3779b97f4a7c15u) {
        memcpy(&x, p, 8);
        sum += mix(x ^ place);
    }
    x = 0;
    memcpy(&x, p, bytes % 8);
    return sum + mix(x ^ place);
}

static void fill_digest(sat_pattern *p) {
    const sat_pattern_view *v = &p->by_rows;
    p->digest = digest_of(p->row_ptr, ((size_t)v->grid_rows + 1) * sizeof *p->row_ptr, 1) +
                digest_of(p->col_idx, (size_t)v->stored_blocks * sizeof *p->col_idx, 2);
    if (v->sequences) p->digest += digest_of(p->offsets, 2 * ((size_t)v->sequences + 1) * sizeof *p->offsets, 3);
}

static sat_status show_index(sat_pattern *p) {
    sat_pattern_view *v = &p->by_rows;
    index_arrays x = {v->row_ptr, v->col_idx, NULL, v->grid_rows, v->stored_blocks};
    SAT_TRY(on_device(p, &x, &p->device_index));
    v->device_row_ptr = x.ptr, v->device_col_idx = x.number, v->device_row_end = x.ptr + 1;
    if (!p->row_end) return SAT_OK;
    index_arrays ends = {p->row_end, NULL, NULL, v->grid_rows, 0};
    SAT_TRY(on_device(p, &ends, &p->device_row_end));
    v->device_row_end = ends.ptr;
    return SAT_OK;
}

static void destroy(sat_pattern *p) {
    if (p->device_index) p->backend->free(&p->device, p->device_index);
    if (p->device_t_index) p->backend->free(&p->device, p->device_t_index);
    if (p->device_offsets) p->backend->free(&p->device, p->device_offsets);
    if (p->device_row_end) p->backend->free(&p->device, p->device_row_end);
    if (p->is_dynamic) sat_dynamic_end(&p->dynamic);
    free(p->row_ptr), free(p->row_end), free(p->col_idx), free(p->t_ptr), free(p->t_block), free(p->t_row),
        free(p->offsets);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

/* On a device whose memory the host cannot read, the indices are brought over first, from either side. */
static sat_status host_copy(sat_context *ctx, const void *from, const char *name, size_t bytes, const void **host,
                            void **owned) {
    *host = from, *owned = NULL;
    if (bytes == 0) return SAT_OK;
    if (ctx->backend->shares_memory)
        return ctx->backend->usable(&ctx->device, from)
                   ? SAT_OK
                   : sat_fail(SAT_WRONG_MEMORY, "%s is %p, which %s cannot use", name, from, ctx->device.name);
    *owned = malloc(bytes);
    if (!*owned) return sat_fail(SAT_OUT_OF_MEMORY, "pattern: %zu bytes of indices", bytes);
    *host = *owned;
    return ctx->backend->read(&ctx->device, *owned, from, bytes);
}

/* ---- packed sequences ---- */

/* `most`: what the last may not go beyond. That it ends there is for the operation to say, which knows the length. */
static sat_status check_offsets(const int64_t *offsets, int64_t sequences, int64_t most, const char *name) {
    if (offsets[0] != 0) return sat_fail(SAT_BAD_ROW_PTR, "%s[0] is %lld; expected 0", name, (long long)offsets[0]);
    for (int64_t i = 1; i <= sequences; i++) {
        if (offsets[i] < offsets[i - 1])
            return sat_fail(SAT_BAD_ROW_PTR, "%s[%lld] is %lld, below the %lld before it", name, (long long)i,
                            (long long)offsets[i], (long long)offsets[i - 1]);
        if (offsets[i] > most)
            return sat_fail(SAT_BAD_ROW_PTR, "%s[%lld] is %lld, beyond the %lld of the pattern", name, (long long)i,
                            (long long)offsets[i], (long long)most);
    }
    return SAT_OK;
}

static sat_status copy_offsets(sat_context *ctx, sat_pattern *p, const sat_bsr *s) {
    sat_pattern_view *v = &p->by_rows;
    const int64_t *from[2] = {s->q_offsets, s->kv_offsets ? s->kv_offsets : s->q_offsets};
    const char *const names[] = {"q_offsets", "kv_offsets"};
    const int64_t most[] = {v->rows, v->cols};
    if (s->sequences == 0) return SAT_OK;
    if (s->sequences < 0 || s->sequences >= INT32_MAX)
        return sat_fail(SAT_BAD_SIZE, "sequences is %lld; expected 0 to 2^31-2", (long long)s->sequences);
    if (!s->q_offsets)
        return sat_fail(SAT_NULL_POINTER, "q_offsets is NULL; expected %lld entries", (long long)s->sequences + 1);
    size_t count = (size_t)s->sequences + 1;
    p->offsets = malloc(2 * count * sizeof *p->offsets);
    if (!p->offsets) return sat_fail(SAT_OUT_OF_MEMORY, "pattern: %zu offsets", 2 * count);
    for (int i = 0; i < 2; i++) {
        if ((uintptr_t)from[i] % 8) return sat_fail(SAT_MISALIGNED, "%s is not a multiple of 8 bytes", names[i]);
        const void *host;
        void *owned;
        sat_status status = host_copy(ctx, from[i], names[i], count * 8, &host, &owned);
        if (status == SAT_OK) memcpy(p->offsets + (size_t)i * count, host, count * 8);
        free(owned);
        SAT_TRY(status);
        SAT_TRY(check_offsets(p->offsets + (size_t)i * count, s->sequences, most[i], names[i]));
    }
    v->sequences = s->sequences, v->q_offsets = p->offsets, v->kv_offsets = p->offsets + count;
    index_arrays x = {p->offsets, NULL, NULL, (int64_t)(2 * count) - 1, 0};
    SAT_TRY(on_device(p, &x, &p->device_offsets));
    v->device_q_offsets = x.ptr, v->device_kv_offsets = x.ptr + count;
    return SAT_OK;
}

/* A pattern without indices, with one reference. */
static sat_status make_pattern(sat_context *context, const sat_bsr *s, int64_t grid_rows, int64_t grid_cols,
                               sat_pattern **pattern) {
    sat_pattern *p = calloc(1, sizeof *p);
    if (!p) return sat_fail(SAT_OUT_OF_MEMORY, "pattern");
    atomic_init(&p->references, 1);
    pthread_mutex_init(&p->lock, NULL);
    p->backend = context->backend, p->device = context->device;
    p->by_rows = (sat_pattern_view){
        SAT_SIZED(sat_pattern_view), .rows = s->rows,        .cols = s->cols,        .block_rows = s->block_rows,
        .block_cols = s->block_cols, .grid_rows = grid_rows, .grid_cols = grid_cols, .stored_blocks = s->stored_blocks};
    *pattern = p;
    return SAT_OK;
}

/* And with room for its indices. `ends`: rows may end before the next begins. */
static sat_status make_with_room(sat_context *context, const sat_bsr *s, int64_t grid_rows, int64_t grid_cols,
                                 bool ends, sat_pattern **pattern) {
    SAT_TRY(make_pattern(context, s, grid_rows, grid_cols, pattern));
    sat_pattern *p = *pattern;
    p->row_ptr = malloc(((size_t)grid_rows + 1) * sizeof *p->row_ptr);
    p->row_end = ends ? calloc((size_t)grid_rows + 1, sizeof *p->row_end) : NULL;
    p->col_idx = malloc(((size_t)s->stored_blocks + 1) * sizeof *p->col_idx);
    if (!p->row_ptr || !p->col_idx || (ends && !p->row_end)) {
        destroy(p);
        return sat_fail(SAT_OUT_OF_MEMORY, "pattern: %lld block rows, %lld stored blocks", (long long)grid_rows,
                        (long long)s->stored_blocks);
    }
    p->by_rows.row_ptr = p->row_ptr, p->by_rows.row_end = ends ? p->row_end : p->row_ptr + 1;
    p->by_rows.col_idx = p->col_idx;
    return SAT_OK;
}

sat_status sat_pattern_create(sat_context *context, const sat_bsr *indices, sat_pattern **pattern) {
    if (!context) return sat_fail(SAT_NULL_POINTER, "context is NULL");
    if (!indices) return sat_fail(SAT_NULL_POINTER, "indices is NULL");
    if (!pattern) return sat_fail(SAT_NULL_POINTER, "pattern is NULL");
    *pattern = NULL;
    sat_bsr s;
    sat_pattern *p;
    SAT_TRY(sat_struct_in(&s, sizeof s, indices, sizeof s, "sat_bsr"));
    int64_t grid_rows = 0, grid_cols = 0;
    SAT_TRY(check_sizes(&s, "stored_blocks", &grid_rows, &grid_cols));
    SAT_TRY(check_pointers(&s));
    SAT_TRY(make_with_room(context, &s, grid_rows, grid_cols, false, &p));
    size_t width = s.index_type == SAT_I32 ? 4 : 8;
    const void *row_ptr, *col_idx;
    void *owned_rows, *owned_cols = NULL;
    sat_status status =
        host_copy(context, s.row_ptr, "row_ptr", ((size_t)grid_rows + 1) * width, &row_ptr, &owned_rows);
    if (status == SAT_OK)
        status = host_copy(context, s.col_idx, "col_idx", (size_t)s.stored_blocks * width, &col_idx, &owned_cols);
    if (status == SAT_OK) status = copy_indices(p, &s, row_ptr, col_idx);
    if (status == SAT_OK) status = copy_offsets(context, p, &s);
    if (status == SAT_OK) fill_digest(p);
    if (status == SAT_OK) status = fill_statistics(&p->by_rows);
    if (status == SAT_OK) status = show_index(p);
    free(owned_rows), free(owned_cols);
    if (status != SAT_OK) {
        destroy(p);
        return status;
    }
    *pattern = p;
    return SAT_OK;
}

/* ---- indices that change ---- */

/* What is expected of the indices, by the hints. */
static void expect_statistics(sat_pattern_view *v, const sat_dynamic_bsr *s) {
    double rows = (double)v->grid_rows, cols = (double)v->grid_cols, all = rows * cols;
    double most = (double)v->stored_blocks, stored = s->density > 0 ? fmin(most, s->density * all) : most;
    v->max_row = v->grid_cols < v->stored_blocks ? v->grid_cols : v->stored_blocks;
    v->max_col = v->grid_rows < v->stored_blocks ? v->grid_rows : v->stored_blocks;
    if (all == 0 || stored == 0) return;
    double skew = s->skew > 0 ? s->skew : 2, elements = stored * (double)v->block_rows * (double)v->block_cols;
    v->density = stored / all;
    v->skew = fmax(1, fmin(skew, fmin(rows, 1 / v->density)));
    v->t_skew = fmax(1, fmin(skew, fmin(cols, 1 / v->density)));
    v->stored_elements = (int64_t)fmin(elements, (double)v->rows * (double)v->cols);
}

static sat_status check_source(const sat_context *ctx, const sat_dynamic_bsr *s, const sat_bsr *like) {
    const void *const pointers[] = {like->row_ptr, s->col_idx};
    const char *const names[] = {s->row_counts ? "row_counts" : "row_ptr", "col_idx"};
    bool by_runs = !like->row_ptr && !s->col_idx; /* each run brings its own */
    if (!by_runs) SAT_TRY(check_pointers(like));
    for (int i = 0; !by_runs && i < (s->capacity > 0 ? 2 : 1); i++)
        if (!ctx->backend->usable(&ctx->device, pointers[i]))
            return sat_fail(SAT_WRONG_MEMORY, "%s is %p, which %s cannot use", names[i], pointers[i], ctx->device.name);
    if (!(s->density >= 0 && s->density <= 1))
        return sat_fail(SAT_BAD_SIZE, "density is %g; expected 0 to 1", s->density);
    if (!(s->skew >= 0 && s->skew < INFINITY))
        return sat_fail(SAT_BAD_SIZE, "skew is %g; expected 0, or a number from 1 on", s->skew);
    return SAT_OK;
}

/* The rows of all masks, whole blocks where there are several. */
static sat_status stack_masks(sat_dynamic_bsr *s, int64_t *rows) {
    if (s->mask_batch == 0) s->mask_batch = 1;
    if (s->mask_heads == 0) s->mask_heads = 1;
    if (s->mask_batch < 1)
        return sat_fail(SAT_BAD_SIZE, "mask_batch is %lld; expected 0 or more", (long long)s->mask_batch);
    if (s->mask_heads < 1)
        return sat_fail(SAT_BAD_SIZE, "mask_heads is %lld; expected 0 or more", (long long)s->mask_heads);
    *rows = s->rows;
    if ((s->mask_batch == 1 && s->mask_heads == 1) || s->rows < 0 || s->block_rows < 1) return SAT_OK;
    int64_t each = s->rows / s->block_rows + (s->rows % s->block_rows != 0), masks;
    if (!__builtin_mul_overflow(s->mask_batch, s->mask_heads, &masks) && !__builtin_mul_overflow(masks, each, rows) &&
        !__builtin_mul_overflow(*rows, s->block_rows, rows))
        return SAT_OK;
    return sat_fail(SAT_BAD_SIZE, "mask_batch %lld, mask_heads %lld, rows %lld: their product overflows",
                    (long long)s->mask_batch, (long long)s->mask_heads, (long long)s->rows);
}

/* Of padded rows: what the copy has room for, since no right row has more blocks than there are block columns. */
static sat_status set_padded_capacity(sat_dynamic_bsr *s, int64_t rows) {
    int64_t room, all;
    if (!s->row_counts && s->row_stride == 0) return SAT_OK;
    if (!s->row_counts)
        return sat_fail(SAT_NULL_POINTER, "row_counts is NULL; expected counts beside a row_stride of %lld",
                        (long long)s->row_stride);
    if (s->row_ptr) return sat_fail(SAT_BAD_STRUCT, "row_ptr and row_counts are set; expected one of them");
    if (s->capacity != 0)
        return sat_fail(SAT_BAD_SIZE, "capacity is %lld; expected 0 beside row_counts", (long long)s->capacity);
    if (s->row_stride < 1)
        return sat_fail(SAT_BAD_SIZE, "row_stride is %lld; expected 1 or more beside row_counts",
                        (long long)s->row_stride);
    if (rows < 0 || s->cols < 0 || s->block_rows < 1 || s->block_cols < 1) return SAT_OK; /* refused below */
    int64_t grid_rows = rows / s->block_rows + (rows % s->block_rows != 0);
    room = s->cols / s->block_cols + (s->cols % s->block_cols != 0);
    if (room > s->row_stride) room = s->row_stride;
    if (!__builtin_mul_overflow(grid_rows, s->row_stride, &all) && all <= INT64_MAX / 64)
        return s->capacity = grid_rows * room, SAT_OK;
    return sat_fail(SAT_BAD_SIZE, "row_stride is %lld; %lld rows of it overflow", (long long)s->row_stride,
                    (long long)grid_rows);
}

sat_status sat_pattern_create_dynamic(sat_context *context, const sat_dynamic_bsr *indices, sat_pattern **pattern) {
    if (!context) return sat_fail(SAT_NULL_POINTER, "context is NULL");
    if (!indices) return sat_fail(SAT_NULL_POINTER, "indices is NULL");
    if (!pattern) return sat_fail(SAT_NULL_POINTER, "pattern is NULL");
    *pattern = NULL;
    sat_dynamic_bsr s;
    SAT_TRY(sat_struct_in(&s, sizeof s, indices, offsetof(sat_dynamic_bsr, mask_batch), "sat_dynamic_bsr"));
    int64_t rows = 0, grid_rows = 0, grid_cols = 0;
    SAT_TRY(stack_masks(&s, &rows));
    SAT_TRY(set_padded_capacity(&s, rows));
    const void *row_ptr = s.row_counts ? s.row_counts : s.row_ptr;
    sat_bsr like = {.rows = rows, .cols = s.cols, .block_rows = s.block_rows, .block_cols = s.block_cols};
    like.stored_blocks = s.capacity, like.index_type = s.index_type;
    like.row_ptr = row_ptr, like.col_idx = s.col_idx;
    sat_pattern *p;
    SAT_TRY(check_sizes(&like, "capacity", &grid_rows, &grid_cols));
    SAT_TRY(check_source(context, &s, &like));
    SAT_TRY(make_pattern(context, &like, grid_rows, grid_cols, &p));
    sat_dynamic_init(&p->dynamic, s.index_type, row_ptr, s.col_idx, s.row_stride);
    p->is_dynamic = true;
    p->by_rows.dynamic = &p->dynamic;
    p->by_rows.mask_batch = s.mask_batch, p->by_rows.mask_heads = s.mask_heads, p->by_rows.mask_rows = s.rows;
    expect_statistics(&p->by_rows, &s);
    const int64_t sizes[] = {grid_rows, grid_cols, s.capacity, s.mask_batch, s.mask_heads, s.row_stride};
    p->digest = digest_of(sizes, sizeof sizes, 4);
    p->full = p->by_rows, p->has_transposed = true; /* plans have what there is of them */
    *pattern = p;
    return SAT_OK;
}

sat_status sat_pattern_fault(const sat_pattern *pattern, bool wait) {
    if (!pattern) return sat_fail(SAT_NULL_POINTER, "pattern is NULL");
    if (!pattern->is_dynamic) return SAT_OK;
    if (wait) pattern->backend->sync_device(&pattern->device);
    return sat_dynamic_fault(&pattern->by_rows);
}

/* The blocks of each row at their places. */
static void take_mask(sat_pattern *p, const sat_mask_indices *mask) {
    const sat_pattern_view *v = &p->by_rows;
    memcpy(p->row_ptr, mask->row_ptr, ((size_t)v->grid_rows + 1) * sizeof *p->row_ptr);
    memcpy(p->row_end, mask->row_end, (size_t)v->grid_rows * sizeof *p->row_end);
    for (int64_t t = 0; t < v->stored_blocks; t++) p->col_idx[t] = 0;
    for (int64_t r = 0; r < v->grid_rows; r++)
        for (int64_t t = p->row_ptr[r]; t < p->row_end[r]; t++) p->col_idx[t] = (int32_t)mask->col_idx[t];
}

/* Without gaps, as attention has it. */
static void take_packed_mask(sat_pattern *p, const sat_mask_indices *mask) {
    int64_t at = 0;
    for (int64_t r = 0; r < p->by_rows.grid_rows; r++) {
        p->row_ptr[r] = at;
        for (int64_t t = mask->row_ptr[r]; t < mask->row_end[r]; t++) p->col_idx[at++] = (int32_t)mask->col_idx[t];
        p->row_end[r] = at;
    }
    p->row_ptr[p->by_rows.grid_rows] = p->by_rows.stored_blocks = at;
}

sat_status sat_pattern_create_mask(sat_context *context, const sat_pattern_view *shape, const sat_mask_indices *mask,
                                   bool packed, sat_pattern **pattern) {
    sat_bsr s = {.rows = shape->rows, .cols = shape->cols, .stored_blocks = shape->stored_blocks};
    sat_pattern *p;
    s.block_rows = shape->block_rows, s.block_cols = shape->block_cols;
    *pattern = NULL;
    SAT_TRY(make_with_room(context, &s, shape->grid_rows, shape->grid_cols, true, &p));
    p->by_rows.mask_batch = shape->mask_batch, p->by_rows.mask_heads = shape->mask_heads;
    p->by_rows.mask_rows = shape->mask_rows;
    if (packed) take_packed_mask(p, mask);
    else take_mask(p, mask);
    fill_digest(p);
    sat_status status = fill_statistics(&p->by_rows);
    if (status == SAT_OK) status = show_index(p);
    if (status != SAT_OK) destroy(p);
    else *pattern = p;
    return status;
}

/* For operations without a pattern: it has one reference more than are ever given back. */
static int64_t no_rows[1];
static sat_pattern none = {
    .references = 1,
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .has_transposed = true,
    .by_rows = {SAT_SIZED(sat_pattern_view), .block_rows = 1, .block_cols = 1, .row_ptr = no_rows, .row_end = no_rows},
    .full = {SAT_SIZED(sat_pattern_view), .block_rows = 1, .block_cols = 1, .row_ptr = no_rows, .row_end = no_rows,
             .t_ptr = no_rows},
};

sat_status sat_pattern_for(const sat_op *op, const sat_pattern **pattern) {
    if (!op->without_pattern) return *pattern ? SAT_OK : sat_fail(SAT_NULL_POINTER, "pattern is NULL");
    if (*pattern && *pattern != &none)
        return sat_fail(SAT_UNSUPPORTED, "pattern is %p; expected NULL, since op %s has none", (const void *)*pattern,
                        op->name);
    *pattern = &none;
    return SAT_OK;
}

void sat_pattern_free(sat_pattern *pattern) {
    if (pattern && atomic_fetch_sub(&pattern->references, 1) == 1) destroy(pattern);
}

sat_pattern *sat_pattern_ref(const sat_pattern *pattern) {
    sat_pattern *p = (sat_pattern *)(uintptr_t)pattern;
    atomic_fetch_add(&p->references, 1);
    return p;
}

const sat_pattern_view *sat_pattern_by_rows(const sat_pattern *pattern) { return &pattern->by_rows; }

uint64_t sat_pattern_digest(const sat_pattern *pattern) { return pattern->digest; }

static sat_status sort_by_column(sat_pattern *p) {
    const sat_pattern_view *v = &p->by_rows;
    size_t blocks = (size_t)v->stored_blocks + 1;
    int64_t *ptr = calloc((size_t)v->grid_cols + 2, sizeof *ptr);
    int32_t *row = malloc(blocks * sizeof *row);
    int64_t *block = malloc(blocks * sizeof *block);
    if (!ptr || !row || !block) {
        free(ptr), free(row), free(block);
        return sat_fail(SAT_OUT_OF_MEMORY, "transposed index of %lld blocks", (long long)v->stored_blocks);
    }
    /* Counting sort by column; ptr is shifted by one so that it ends as the start of each column. */
    for (int64_t r = 0; r < v->grid_rows; r++)
        for (int64_t t = v->row_ptr[r]; t < v->row_end[r]; t++) ptr[v->col_idx[t] + 2]++;
    for (int64_t c = 0; c < v->grid_cols; c++) ptr[c + 2] += ptr[c + 1];
    for (int64_t r = 0; r < v->grid_rows; r++) {
        for (int64_t t = v->row_ptr[r]; t < v->row_end[r]; t++) {
            int64_t at = ptr[v->col_idx[t] + 1]++;
            row[at] = (int32_t)r;
            block[at] = t;
        }
    }
    p->t_ptr = ptr, p->t_row = row, p->t_block = block;
    return SAT_OK;
}

static sat_status make_transposed(sat_pattern *p) {
    if (!p->t_ptr) SAT_TRY(sort_by_column(p));
    index_arrays x = {p->t_ptr, p->t_row, p->t_block, p->by_rows.grid_cols, p->by_rows.stored_blocks};
    SAT_TRY(on_device(p, &x, &p->device_t_index));
    p->full = p->by_rows;
    p->full.t_ptr = p->t_ptr, p->full.t_row = p->t_row, p->full.t_block = p->t_block;
    p->full.device_t_ptr = x.ptr, p->full.device_t_row = x.number, p->full.device_t_block = x.block;
    p->has_transposed = true;
    return SAT_OK;
}

sat_status sat_pattern_transposed(const sat_pattern *pattern, const sat_pattern_view **view) {
    sat_pattern *p = (sat_pattern *)(uintptr_t)pattern; /* const to callers: what it stands for does not change */
    pthread_mutex_lock(&p->lock);
    sat_status status = p->has_transposed ? SAT_OK : make_transposed(p);
    pthread_mutex_unlock(&p->lock);
    *view = &p->full;
    return status;
}

bool sat_pattern_has_transposed(const sat_pattern *pattern) {
    sat_pattern *p = (sat_pattern *)(uintptr_t)pattern;
    pthread_mutex_lock(&p->lock);
    bool has = p->has_transposed;
    pthread_mutex_unlock(&p->lock);
    return has;
}

sat_status sat_pattern_get(const sat_pattern *pattern, sat_pattern_view *view) {
    if (!pattern) return sat_fail(SAT_NULL_POINTER, "pattern is NULL");
    if (!view) return sat_fail(SAT_NULL_POINTER, "view is NULL");
    const sat_pattern_view *full;
    SAT_TRY(sat_pattern_transposed(pattern, &full));
    return sat_struct_out(view, full, sizeof *full, offsetof(sat_pattern_view, row_end), "sat_pattern_view");
}
