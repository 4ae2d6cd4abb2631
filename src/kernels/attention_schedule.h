/* Which tiles of the score matrix a kernel visits. Queries are cut into tiles of `q_rows`, keys into tiles of `k_rows`;
 * tiles begin anew with every packed sequence, so that no tile has two. For each mask (one, or one a head) and query
 * tile the schedule lists the key tiles that keep a pair, in rising order, each marked *whole* (a full tile of which
 * every pair is kept: there is nothing to test) or *edge*. The same by key tiles, for what sums over queries. Made on
 * the host, once a pattern. */
#ifndef SAT_ATTENTION_SCHEDULE_H
#define SAT_ATTENTION_SCHEDULE_H

#include <stdlib.h>

#include "attention.h"

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

typedef struct sat_schedule {
    int64_t masks, q_tiles, k_tiles;
    sat_tile *q, *k;
    sat_step_lists by_query, by_key; /* of by_key, steps are query tiles */
} sat_schedule;

static inline void sat_schedule_free(sat_schedule *s) {
    if (!s) return;
    free(s->q), free(s->k);
    free(s->by_query.start), free(s->by_query.step), free(s->by_query.order);
    free(s->by_key.start), free(s->by_key.step), free(s->by_key.order);
    free(s);
}

/* Cuts `length` rows, or each sequence of them, into tiles. False without memory. */
static inline bool sat_schedule_cut(const int64_t *offsets, int64_t sequences, int64_t length, int64_t rows,
                                    sat_tile **tiles, int64_t *count) {
    const int64_t whole[] = {0, length}, *o = sequences ? offsets : whole;
    int64_t pieces = sequences ? sequences : 1, n = 0;
    for (int64_t s = 0; s < pieces; s++) n += (o[s + 1] - o[s] + rows - 1) / rows;
    *tiles = (sat_tile *)malloc(((size_t)n + 1) * sizeof **tiles);
    *count = n;
    if (!*tiles || n > INT32_MAX / 2) return false;
    n = 0;
    for (int64_t s = 0; s < pieces; s++)
        for (int64_t i = o[s]; i < o[s + 1]; i += rows) {
            sat_tile t = {i, (int32_t)sat_min(rows, o[s + 1] - i), (int32_t)s};
            (*tiles)[n++] = t;
        }
    return true;
}

/* The key tiles of one sequence, and how many blocks of a query tile's rows each has seen stored. */
typedef struct sat_schedule_row {
    const sat_mask *mask;
    const sat_schedule *s;
    int64_t k_rows;
    const int64_t *first; /* of each sequence, its first key tile; sequences + 1 */
    int64_t *seen;        /* stored blocks, by key tile; all 0 between calls */
} sat_schedule_row;

/* Counts the stored blocks of the tile's block rows in each key tile they reach, between two of these. */
static inline void sat_schedule_count(const sat_schedule_row *r, int64_t mask, const sat_tile *q, int64_t from,
                                      int64_t to) {
    const sat_mask *k = r->mask;
    int64_t base = r->s->k[from].first, end = r->s->k[to - 1].first + r->s->k[to - 1].count;
    for (int64_t row = sat_mask_row(k, mask, q->first); row <= sat_mask_row(k, mask, q->first + q->count - 1); row++)
        for (int64_t t = sat_mask_find(k, row, base / k->block_cols); t < k->row_ptr[row + 1]; t++) {
            int64_t begin = k->col_idx[t] * k->block_cols, stop = sat_min(begin + k->block_cols, end);
            if (begin >= end) break;
            begin = sat_max(begin, base);
            for (int64_t x = (begin - base) / r->k_rows; x <= (stop - 1 - base) / r->k_rows; x++) r->seen[from + x]++;
        }
}

/* Writes the list of one query tile, where `step` is not NULL; gives its length. */
static inline int64_t sat_schedule_list(const sat_schedule_row *r, int64_t mask, const sat_tile *q, int32_t *step) {
    const sat_mask *k = r->mask;
    int64_t sequence = k->sequences ? q->sequence : 0, from = r->first[sequence], to = r->first[sequence + 1], n = 0;
    sat_range top = sat_keys_of(k, q->first), bottom = sat_keys_of(k, q->first + q->count - 1);
    if (from == to || bottom.end <= top.begin) return 0;
    int64_t base = r->s->k[from].first; /* only tiles between the outermost keys that any row may keep */
    int64_t low = from + sat_max(0, top.begin - base) / r->k_rows;
    int64_t high = sat_min(to, from + (sat_max(0, bottom.end - base) + r->k_rows - 1) / r->k_rows);
    if (low >= high) return 0;
    if (!k->full) sat_schedule_count(r, mask, q, low, high);
    int64_t rows = (q->first + q->count - 1) / k->block_rows - q->first / k->block_rows + 1;
    for (int64_t x = low; x < high; x++) {
        const sat_tile *t = &r->s->k[x];
        int64_t end = t->first + t->count, columns = (end - 1) / k->block_cols - t->first / k->block_cols + 1;
        int64_t seen = k->full ? rows * columns : r->seen[x];
        r->seen[x] = 0;
        if (seen == 0) continue;
        bool whole = seen == rows * columns && t->count == r->k_rows && t->first >= bottom.begin && end <= top.end;
        if (step) step[n] = sat_step(x, !whole);
        n++;
    }
    return n;
}

/* Places by length, the longest first; of equals the first. A counting sort: lengths are below `most`. */
static inline bool sat_schedule_sort(sat_step_lists *l, int64_t most) {
    int64_t *at = (int64_t *)calloc((size_t)most + 2, sizeof *at);
    l->order = (int32_t *)malloc(((size_t)l->places + 1) * sizeof *l->order);
    if (!at || !l->order) return free(at), false;
    for (int64_t i = 0; i < l->places; i++) at[most - (l->start[i + 1] - l->start[i]) + 1]++;
    for (int64_t i = 0; i < most + 1; i++) at[i + 1] += at[i];
    for (int64_t i = 0; i < l->places; i++) l->order[at[most - (l->start[i + 1] - l->start[i])]++] = (int32_t)i;
    free(at);
    return true;
}

static inline bool sat_schedule_rows(sat_schedule *s, sat_schedule_row *r) {
    sat_step_lists *l = &s->by_query;
    l->places = s->masks * s->q_tiles;
    l->start = (int64_t *)calloc((size_t)l->places + 1, sizeof *l->start);
    if (!l->start || l->places > INT32_MAX) return false;
    for (int64_t i = 0; i < l->places; i++)
        l->start[i + 1] = l->start[i] + sat_schedule_list(r, i / s->q_tiles, &s->q[i % s->q_tiles], NULL);
    l->steps = l->start[l->places];
    l->step = (int32_t *)malloc(((size_t)l->steps + 1) * sizeof *l->step);
    if (!l->step) return false;
    for (int64_t i = 0; i < l->places; i++)
        sat_schedule_list(r, i / s->q_tiles, &s->q[i % s->q_tiles], l->step + l->start[i]);
    return sat_schedule_sort(l, s->k_tiles);
}

static inline bool sat_schedule_columns(sat_schedule *s) {
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
    return sat_schedule_sort(l, s->q_tiles);
}

/* NULL without memory, or with more than 2^30 tiles. `by_key`: the lists of key tiles too. */
static inline sat_schedule *sat_schedule_make(const sat_problem *p, const sat_pattern_view *a, int64_t q_rows,
                                              int64_t k_rows, bool by_key) {
    sat_mask mask = sat_mask_of(p, a);
    int64_t sequences = mask.sequences ? mask.sequences : 1;
    sat_schedule *s = (sat_schedule *)calloc(1, sizeof *s);
    if (!s) return NULL;
    s->masks = sat_mask_count(&mask, p);
    bool ok = sat_schedule_cut(mask.q_offsets, mask.sequences, mask.m, q_rows, &s->q, &s->q_tiles) &&
              sat_schedule_cut(mask.kv_offsets, mask.sequences, mask.n, k_rows, &s->k, &s->k_tiles);
    int64_t *first = (int64_t *)calloc((size_t)sequences + 1, sizeof *first);
    int64_t *seen = (int64_t *)calloc((size_t)s->k_tiles + 1, sizeof *seen);
    ok = ok && first && seen;
    for (int64_t i = 0; ok && i < s->k_tiles; i++) first[s->k[i].sequence + 1]++;
    for (int64_t i = 0; ok && i < sequences; i++) first[i + 1] += first[i];
    sat_schedule_row r = {&mask, s, k_rows, first, seen};
    ok = ok && sat_schedule_rows(s, &r) && (!by_key || sat_schedule_columns(s));
    free(first), free(seen);
    if (ok) return s;
    sat_schedule_free(s);
    return NULL;
}

#endif
