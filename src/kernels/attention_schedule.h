/* Which tiles of the score matrix a kernel visits. Queries are split into tiles of `q_rows`, keys into tiles of
 * `k_rows`; a tile never holds two packed sequences. For each mask (one, or one a head) and query tile the schedule
 * lists the key tiles with at least one kept pair, in rising order. Each is marked *whole* (a full tile whose pairs are
 * all kept, so that nothing is masked) or *edge*. The same lists exist by key tile, for what sums over queries. Made on
 * the host, once a pattern, for both backends. Where indices change there are tiles alone, and a run makes the list of
 * each when it needs it. */
#ifndef SAT_ATTENTION_SCHEDULE_H
#define SAT_ATTENTION_SCHEDULE_H

#include <stdlib.h>

#include "attention.h"

/* The bits of up to 64 keys from `first` on that are in stored blocks of a block row. */
static inline uint64_t sat_stored_bits(const sat_mask *k, int64_t row, int64_t first, int64_t count) {
    uint64_t stored = 0;
    for (int64_t t = sat_mask_find(k, row, first / k->block_cols); t < k->row_ptr[row + 1]; t++) {
        int64_t from = k->col_idx[t] * k->block_cols - first, to = sat_min(from + k->block_cols, 64);
        if (from >= count) break;
        from = sat_max(from, 0);
        stored |= (~(uint64_t)0 >> (64 - (to - from))) << from;
    }
    return stored;
}

/* The bits of up to 64 keys from `first` on that query i keeps. */
static inline uint64_t sat_mask_bits(const sat_mask *k, int64_t head, int64_t i, int64_t first, int64_t count) {
    sat_range r = sat_keys_of(k, i);
    int64_t begin = sat_max(r.begin, first) - first, end = sat_min(r.end, first + count) - first;
    if (end <= begin) return 0;
    uint64_t inside = (~(uint64_t)0 >> (64 - (end - begin))) << begin;
    return k->full ? inside : inside & sat_stored_bits(k, sat_mask_row(k, head, i), first, count);
}

typedef struct sat_tile {
    int64_t first;
    int32_t count, sequence;
} sat_tile;

/* A step of a list: a tile, and whether it is an edge. */
static inline int32_t sat_step(int64_t tile, bool edge) { return (int32_t)(2 * tile + edge); }
SAT_BOTH static inline int64_t sat_step_tile(int32_t step) { return step >> 1; }
SAT_BOTH static inline bool sat_step_edge(int32_t step) { return step & 1; }

/* Lists by place: mask * tiles + tile. `order` has the places by length, the longest first. */
typedef struct sat_step_lists {
    int64_t places, steps;
    int64_t *start; /* places + 1 */
    int32_t *step;
    int32_t *order;
} sat_step_lists;

typedef struct sat_attention_schedule {
    int64_t masks, q_tiles, k_tiles;
    sat_tile *q, *k;
    sat_step_lists by_query, by_key; /* the steps of by_key are query tiles */
} sat_attention_schedule;

static inline void sat_attention_schedule_free(sat_attention_schedule *s) {
    if (!s) return;
    free(s->q), free(s->k);
    free(s->by_query.start), free(s->by_query.step), free(s->by_query.order);
    free(s->by_key.start), free(s->by_key.step), free(s->by_key.order);
    free(s);
}

/* Splits `length` rows, or each sequence of them, into tiles of `rows`. Tiles begin with the sequence, or, `aligned`,
 * at multiples of `rows`. False: out of memory. */
static inline bool sat_attention_schedule_tiles(const int64_t *offsets, int64_t sequences, int64_t length, int64_t rows,
                                                bool aligned, sat_tile **tiles, int64_t *count) {
    const int64_t whole[] = {0, length}, *o = sequences ? offsets : whole;
    int64_t parts = sequences ? sequences : 1, n = 0;
    for (int64_t s = 0; s < parts; s++)
        if (o[s + 1] > o[s]) n += (o[s + 1] - (aligned ? o[s] / rows * rows : o[s]) + rows - 1) / rows;
    *tiles = (sat_tile *)malloc(((size_t)n + 1) * sizeof **tiles);
    *count = n;
    if (!*tiles || n > INT32_MAX / 2) return false;
    n = 0;
    for (int64_t s = 0; s < parts; s++)
        for (int64_t i = o[s], next; i < o[s + 1]; i = next) {
            next = sat_min(aligned ? (i / rows + 1) * rows : i + rows, o[s + 1]);
            sat_tile t = {i, (int32_t)(next - i), (int32_t)s};
            (*tiles)[n++] = t;
        }
    return true;
}

/* What the lists of query tiles are made from. */
typedef struct sat_attention_schedule_builder {
    const sat_mask *mask;
    const sat_attention_schedule *s;
    int64_t k_rows;
    bool aligned;         /* key tiles begin at multiples of k_rows */
    const int64_t *first; /* of each sequence, its first key tile; sequences + 1 */
    int64_t *seen;        /* by key tile: stored blocks of a query tile's rows; all 0 between calls */
} sat_attention_schedule_builder;

/* The key that tile `tile` and the tiles after it are counted from, `k_rows` each. */
static inline int64_t sat_attention_schedule_base(const sat_attention_schedule_builder *b, int64_t tile) {
    int64_t first = b->s->k[tile].first;
    return b->aligned ? first / b->k_rows * b->k_rows : first;
}

/* Counts, for key tiles `from` to before `to`, the stored blocks of the query tile's block rows. */
static inline void sat_attention_schedule_count(const sat_attention_schedule_builder *b, int64_t mask,
                                                const sat_tile *q, int64_t from, int64_t to) {
    const sat_mask *k = b->mask;
    int64_t base = sat_attention_schedule_base(b, from), first = b->s->k[from].first;
    int64_t end = b->s->k[to - 1].first + b->s->k[to - 1].count;
    for (int64_t row = sat_mask_row(k, mask, q->first); row <= sat_mask_row(k, mask, q->first + q->count - 1); row++)
        for (int64_t t = sat_mask_find(k, row, first / k->block_cols); t < k->row_ptr[row + 1]; t++) {
            int64_t begin = k->col_idx[t] * k->block_cols, stop = sat_min(begin + k->block_cols, end);
            if (begin >= end) break;
            begin = sat_max(begin, first);
            for (int64_t x = (begin - base) / b->k_rows; x <= (stop - 1 - base) / b->k_rows; x++) b->seen[from + x]++;
        }
}

/* Writes the list of one query tile, where `step` is not NULL; returns its length. */
static inline int64_t sat_attention_schedule_list(const sat_attention_schedule_builder *b, int64_t mask,
                                                  const sat_tile *q, int32_t *step) {
    const sat_mask *k = b->mask;
    int64_t sequence = k->sequences ? q->sequence : 0, from = b->first[sequence], to = b->first[sequence + 1], n = 0;
    sat_range top = sat_keys_of(k, q->first), bottom = sat_keys_of(k, q->first + q->count - 1);
    if (from == to || bottom.end <= top.begin) return 0;
    int64_t base =
        sat_attention_schedule_base(b, from); /* only tiles between the outermost keys that any row may keep */
    int64_t low = from + sat_max(0, top.begin - base) / b->k_rows;
    int64_t high = sat_min(to, from + (sat_max(0, bottom.end - base) + b->k_rows - 1) / b->k_rows);
    if (low >= high) return 0;
    if (!k->full) sat_attention_schedule_count(b, mask, q, low, high);
    int64_t rows = (q->first + q->count - 1) / k->block_rows - q->first / k->block_rows + 1;
    for (int64_t x = low; x < high; x++) {
        int64_t seen = b->seen[x];
        if (!k->full && seen == 0) continue;
        b->seen[x] = 0;
        const sat_tile *t = &b->s->k[x];
        int64_t end = t->first + t->count, columns = (end - 1) / k->block_cols - t->first / k->block_cols + 1;
        bool stored = k->full || seen == rows * columns;
        bool whole = stored && t->count == b->k_rows && t->first >= bottom.begin && end <= top.end;
        if (step) step[n] = sat_step(x, !whole);
        n++;
    }
    return n;
}

/* Numbers 0 to before `count` by their length, the longest first, of equals the lowest: a counting sort. No length is
 * above `most`. False: out of memory. */
static inline bool sat_longest_first(const int64_t *length, int64_t count, int64_t most, int32_t *order) {
    int64_t *at = (int64_t *)calloc((size_t)most + 2, sizeof *at);
    if (!at) return false;
    for (int64_t i = 0; i < count; i++) at[most - length[i] + 1]++;
    for (int64_t i = 0; i < most + 1; i++) at[i + 1] += at[i];
    for (int64_t i = 0; i < count; i++) order[at[most - length[i]]++] = (int32_t)i;
    free(at);
    return true;
}

/* Fills `order`; no list is longer than `most`. */
static inline bool sat_attention_schedule_order(sat_step_lists *l, int64_t most) {
    int64_t *length = (int64_t *)malloc(((size_t)l->places + 1) * sizeof *length);
    l->order = (int32_t *)malloc(((size_t)l->places + 1) * sizeof *l->order);
    bool ok = length && l->order;
    for (int64_t i = 0; ok && i < l->places; i++) length[i] = l->start[i + 1] - l->start[i];
    ok = ok && sat_longest_first(length, l->places, most, l->order);
    free(length);
    return ok;
}

static inline bool sat_attention_schedule_by_query(sat_attention_schedule *s, const sat_attention_schedule_builder *b) {
    sat_step_lists *l = &s->by_query;
    l->places = s->masks * s->q_tiles;
    l->start = (int64_t *)calloc((size_t)l->places + 1, sizeof *l->start);
    if (!l->start || l->places > INT32_MAX) return false;
    for (int64_t i = 0; i < l->places; i++)
        l->start[i + 1] = l->start[i] + sat_attention_schedule_list(b, i / s->q_tiles, &s->q[i % s->q_tiles], NULL);
    l->steps = l->start[l->places];
    l->step = (int32_t *)malloc(((size_t)l->steps + 1) * sizeof *l->step);
    if (!l->step) return false;
    for (int64_t i = 0; i < l->places; i++)
        sat_attention_schedule_list(b, i / s->q_tiles, &s->q[i % s->q_tiles], l->step + l->start[i]);
    return sat_attention_schedule_order(l, s->k_tiles);
}

static inline bool sat_attention_schedule_by_key(sat_attention_schedule *s) {
    const sat_step_lists *q = &s->by_query;
    sat_step_lists *l = &s->by_key;
    l->places = s->masks * s->k_tiles, l->steps = q->steps;
    l->start = (int64_t *)calloc((size_t)l->places + 2, sizeof *l->start);
    l->step = (int32_t *)malloc(((size_t)l->steps + 1) * sizeof *l->step);
    if (!l->start || !l->step || l->places > INT32_MAX) return false;
    /* Counting sort by key tile; start is shifted by one so that it ends as the start of each. */
    for (int64_t i = 0; i < q->places; i++)
        for (int64_t t = q->start[i]; t < q->start[i + 1]; t++)
            l->start[i / s->q_tiles * s->k_tiles + sat_step_tile(q->step[t]) + 2]++;
    for (int64_t i = 0; i < l->places; i++) l->start[i + 2] += l->start[i + 1];
    for (int64_t i = 0; i < q->places; i++)
        for (int64_t t = q->start[i]; t < q->start[i + 1]; t++) {
            int64_t to = l->start[i / s->q_tiles * s->k_tiles + sat_step_tile(q->step[t]) + 1]++;
            l->step[to] = sat_step(i % s->q_tiles, sat_step_edge(q->step[t]));
        }
    return sat_attention_schedule_order(l, s->q_tiles);
}

/* The tiles alone. NULL: out of memory, or more than 2^30 tiles. `aligned`: key tiles begin at multiples of k_rows. */
static inline sat_attention_schedule *sat_attention_schedule_of_tiles(const sat_mask *mask, int64_t masks,
                                                                      int64_t q_rows, int64_t k_rows, bool aligned) {
    sat_attention_schedule *s = (sat_attention_schedule *)calloc(1, sizeof *s);
    if (!s) return NULL;
    s->masks = masks;
    if (sat_attention_schedule_tiles(mask->q_offsets, mask->sequences, mask->m, q_rows, false, &s->q, &s->q_tiles) &&
        sat_attention_schedule_tiles(mask->kv_offsets, mask->sequences, mask->n, k_rows, aligned, &s->k, &s->k_tiles))
        return s;
    sat_attention_schedule_free(s);
    return NULL;
}

/* And the lists. `by_key`: those of key tiles too. */
static inline sat_attention_schedule *sat_attention_schedule_of_mask(const sat_mask *mask, int64_t masks,
                                                                     int64_t q_rows, int64_t k_rows, bool aligned,
                                                                     bool by_key) {
    int64_t sequences = sat_max(1, mask->sequences);
    sat_attention_schedule *s = sat_attention_schedule_of_tiles(mask, masks, q_rows, k_rows, aligned);
    if (!s) return NULL;
    int64_t *first = (int64_t *)calloc((size_t)sequences + 1, sizeof *first);
    int64_t *seen = (int64_t *)calloc((size_t)s->k_tiles + 1, sizeof *seen);
    bool ok = first && seen;
    for (int64_t i = 0; ok && i < s->k_tiles; i++) first[s->k[i].sequence + 1]++;
    for (int64_t i = 0; ok && i < sequences; i++) first[i + 1] += first[i];
    sat_attention_schedule_builder b = {mask, s, k_rows, aligned, first, seen};
    ok = ok && sat_attention_schedule_by_query(s, &b) && (!by_key || sat_attention_schedule_by_key(s));
    free(first), free(seen);
    if (ok) return s;
    sat_attention_schedule_free(s);
    return NULL;
}

static inline sat_attention_schedule *sat_attention_schedule_make(const sat_problem *p, const sat_pattern_view *a,
                                                                  int64_t q_rows, int64_t k_rows, bool by_key) {
    sat_mask mask = sat_mask_of(p, a);
    int64_t masks = sat_mask_count(&mask, p);
    if (a->dynamic) return sat_attention_schedule_of_tiles(&mask, masks, q_rows, k_rows, false);
    return sat_attention_schedule_of_mask(&mask, masks, q_rows, k_rows, false, by_key);
}

/* ---- the lists of a run, where indices change ---- */

/* What they are made from: tiles of one batch item, whose masks are `mask`. Such a pattern has no sequences. */
typedef struct sat_changing_lists {
    const sat_attention_schedule *s;
    const sat_mask *mask;
    int64_t q_rows, k_rows;
    const int64_t *t_ptr; /* the transposed index of all masks: for the lists of key tiles */
    const int32_t *t_row;
    int64_t first_row; /* the block row in it where the item's masks begin */
    int64_t *seen;     /* as many as there are query tiles, or key tiles; all 0 between calls */
} sat_changing_lists;

/* Writes the key tiles of a query tile of a head; returns how many there are. */
static inline int64_t sat_changing_list_of_query(const sat_changing_lists *x, int64_t head, const sat_tile *q,
                                                 int32_t *step) {
    const int64_t first[] = {0, x->s->k_tiles};
    sat_attention_schedule_builder b = {x->mask, x->s, x->k_rows, false, first, x->seen};
    return sat_attention_schedule_list(&b, head, q, step);
}

/* Counts, for query tiles `from` to before `to`, the stored blocks of one block column. */
static inline void sat_changing_count(const sat_changing_lists *x, int64_t head, int64_t column, int64_t from,
                                      int64_t to) {
    const sat_mask *k = x->mask;
    int64_t begin_row = x->first_row + head * k->head_rows, first = from * x->q_rows,
            end = sat_min(to * x->q_rows, k->m);
    int64_t low = x->t_ptr[column], high = x->t_ptr[column + 1], last = high;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (x->t_row[middle] < begin_row + first / k->block_rows) low = middle + 1;
        else high = middle;
    }
    for (; low < last; low++) {
        int64_t begin = (x->t_row[low] - begin_row) * k->block_rows, stop = sat_min(begin + k->block_rows, end);
        if (begin >= end) break;
        for (int64_t i = sat_max(begin, first) / x->q_rows; i <= (stop - 1) / x->q_rows; i++) x->seen[i]++;
    }
}

/* Writes the query tiles of a key tile of a head; returns how many there are. */
static inline int64_t sat_changing_list_of_key(const sat_changing_lists *x, int64_t head, const sat_tile *t,
                                               int32_t *step) {
    const sat_mask *k = x->mask;
    int64_t end = t->first + t->count, first_column = t->first / k->block_cols, n = 0;
    int64_t columns = (end - 1) / k->block_cols - first_column + 1;
    sat_range left = sat_queries_of(k, t->first), right = sat_queries_of(k, end - 1); /* both ends rise */
    int64_t low = sat_max(0, left.begin) / x->q_rows;
    int64_t high = sat_min(x->s->q_tiles, (sat_max(0, right.end) + x->q_rows - 1) / x->q_rows);
    if (low >= high) return 0;
    for (int64_t c = 0; c < columns; c++) sat_changing_count(x, head, first_column + c, low, high);
    for (int64_t i = low; i < high; i++) {
        int64_t seen = x->seen[i];
        if (seen == 0) continue;
        x->seen[i] = 0;
        const sat_tile *q = &x->s->q[i];
        int64_t rows = (q->first + q->count - 1) / k->block_rows - q->first / k->block_rows + 1;
        sat_range top = sat_keys_of(k, q->first), bottom = sat_keys_of(k, q->first + q->count - 1);
        bool inside = t->count == x->k_rows && t->first >= bottom.begin && end <= top.end;
        step[n++] = sat_step(i, !(inside && seen == rows * columns));
    }
    return n;
}

#endif
