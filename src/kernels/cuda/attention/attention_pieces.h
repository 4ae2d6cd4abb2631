/* What a CTA of the Hopper attention kernel visits: a piece, which is 64 query rows for each of its warpgroups and
 * tiles of keys. Where every block is stored the tiles are a range of keys; otherwise they are a list, made here on the
 * host once a pattern. A tile has two halves, *chunks* of keys at multiples of their width, which need not be
 * neighbours; in a list it says which warpgroups want it. What kernel and tests must agree on is here, too. Plain C. */
#ifndef SAT_ATTENTION_PIECES_H
#define SAT_ATTENTION_PIECES_H

#include <stdlib.h>

#include "attention.h"

enum {
    SAT_ATT_ALL = 1 << 29,     /* no limit */
    SAT_ATT_LARGEST = 1 << 28, /* lengths are below it, so that sums with the above fit an int */
    SAT_ATT_STEP = 8,          /* tiles begin at multiples of this; in a list, a bit below it for each warpgroup */
    SAT_ATT_NONE = 1 << 30,    /* a half without keys: nothing is read there */
    SAT_ATT_ROWS = 64,         /* of a warpgroup */
    SAT_ATT_GROUPS = 3         /* warpgroups at most */
};

/* Query rows of each warpgroup, 64 from row[g] on as far as `row_end`, and the tiles they visit. Rows and keys count
 * over the operand; query row i stands at key i + diagonal. */
typedef struct sat_att_piece {
    int32_t row[SAT_ATT_GROUPS], row_end;
    int32_t diagonal, key_begin, key_end;
    int32_t first, count; /* entries of the list; first -1: a range of `count` tiles */
    int32_t order;        /* all warpgroups visit all tiles, so that they can take turns */
} sat_att_piece;

/* A tile of a list: first keys of both halves; in the low bits of the first, who wants it. */
typedef struct sat_att_entry {
    int32_t a, b;
} sat_att_entry;

/* Row i keeps keys of i + diagonal - behind to before i + diagonal + ahead. */
typedef struct sat_att_reach {
    int32_t ahead, behind;
} sat_att_reach;

static inline sat_att_reach sat_att_reach_of(const sat_mask *k) {
    sat_att_reach r = {k->causal   ? 1
                       : k->window ? (int32_t)k->window
                                   : SAT_ATT_ALL,
                       k->window ? (int32_t)k->window - 1 : SAT_ATT_ALL};
    return r;
}

SAT_BOTH static inline int32_t sat_att_least(int32_t x, int32_t y) { return x < y ? x : y; }
SAT_BOTH static inline int32_t sat_att_most(int32_t x, int32_t y) { return x > y ? x : y; }

/* Narrows the keys of a piece of `rows` neighbouring rows to those that some row keeps, and counts its tiles. */
SAT_BOTH static inline void sat_att_narrow(sat_att_piece *p, int32_t rows, int32_t keys, sat_att_reach r) {
    int32_t low = p->row[0], high = sat_att_least(low + rows, p->row_end) - 1;
    p->key_begin = sat_att_most(p->key_begin, low + p->diagonal - r.behind);
    p->key_end = sat_att_least(p->key_end, high + p->diagonal + r.ahead);
    int32_t from = p->key_begin & -SAT_ATT_STEP;
    p->count = p->key_end > p->key_begin ? (p->key_end - from + keys - 1) / keys : 0;
}

/* The first key of tile i of a range: the last tile first, since what causality cuts is there. */
SAT_BOTH static inline int32_t sat_att_tile_at(const sat_att_piece *p, int32_t i, int32_t keys) {
    return (p->key_begin & -SAT_ATT_STEP) + (p->count - 1 - i) * keys;
}

/* What row i keeps of the piece's tiles: keys from `left` to before `right`. */
SAT_BOTH static inline int32_t sat_att_left(const sat_att_piece *p, int32_t i, sat_att_reach r) {
    return sat_att_most(p->key_begin, i + p->diagonal - r.behind);
}
SAT_BOTH static inline int32_t sat_att_right(const sat_att_piece *p, int32_t i, sat_att_reach r) {
    return sat_att_least(p->key_end, i + p->diagonal + r.ahead);
}

/* ---- lists, on the host ---- */

/* Whether a mask that is not full can be made of chunks of `chunk` keys by rows of one warpgroup. */
static inline bool sat_att_lists_fit(const sat_mask *k, int64_t chunk) {
    if (k->block_rows % SAT_ATT_ROWS != 0 && k->block_rows < k->m) return false;
    if (k->block_cols % chunk != 0 && k->block_cols < k->n) return false;
    if (chunk % SAT_ATT_STEP != 0) return false;
    for (int64_t s = 0; s < k->sequences; s++) /* a warpgroup's rows are of one sequence and of one block row */
        if (k->q_offsets[s] < k->q_offsets[s + 1] && k->q_offsets[s] % SAT_ATT_ROWS != 0) return false;
    return true;
}

/* At most so many pieces for a mask, and entries for all masks. */
static inline int64_t sat_att_most_pieces(const sat_mask *k, int groups) {
    int64_t rows = (int64_t)SAT_ATT_ROWS * groups;
    return (k->m + rows - 1) / rows + k->sequences;
}
static inline double sat_att_most_entries(const sat_mask *k, int64_t stored_blocks, int64_t chunk) {
    int64_t down = (sat_min(k->block_rows, k->m) + SAT_ATT_ROWS - 1) / SAT_ATT_ROWS;
    int64_t over = (sat_min(k->block_cols, k->n) + chunk - 1) / chunk;
    return (double)stored_blocks * (double)down * (double)over;
}

typedef struct sat_att_lists {
    int64_t pieces; /* of each mask; those of a mask stand together, the longest first */
    sat_att_piece *piece;
    int64_t entries;
    sat_att_entry *entry;
} sat_att_lists;

static inline void sat_att_lists_free(sat_att_lists *l) {
    free(l->piece), free(l->entry);
    l->piece = NULL, l->entry = NULL;
}

/* 64 rows and the chunks they keep, rising. */
typedef struct sat_att_unit {
    int64_t first, from;
    int32_t count;
} sat_att_unit;

typedef struct sat_att_maker {
    const sat_mask *k;
    sat_att_reach reach;
    int groups;
    int64_t chunk; /* keys of a chunk */
    sat_att_unit *unit;
    int32_t *chunks;                   /* of all units of a sequence */
    int32_t *part[SAT_ATT_GROUPS + 1]; /* chunks of a piece that one warpgroup wants alone; last: that all want */
    int64_t parts[SAT_ATT_GROUPS + 1];
    sat_att_lists *to;
} sat_att_maker;

/* The chunks of a unit's rows, which share a block row. */
static inline void sat_att_unit_chunks(const sat_att_maker *x, int64_t mask, const sat_att_piece *p, int64_t end,
                                       sat_att_unit *u) {
    const sat_mask *k = x->k;
    int64_t last = sat_min(u->first + SAT_ATT_ROWS, end) - 1, row = sat_mask_row(k, mask, u->first);
    int64_t low = sat_att_left(p, (int32_t)u->first, x->reach), high = sat_att_right(p, (int32_t)last, x->reach);
    int32_t *to = x->chunks + u->from;
    u->count = 0;
    if (high <= low) return;
    for (int64_t t = sat_mask_find(k, row, low / k->block_cols); t < k->row_ptr[row + 1]; t++) {
        int64_t from = sat_max(k->col_idx[t] * k->block_cols, low / x->chunk * x->chunk);
        int64_t stop = sat_min((k->col_idx[t] + 1) * k->block_cols, high);
        for (int64_t c = from / x->chunk; c * x->chunk < stop; c++) to[u->count++] = (int32_t)c;
    }
}

/* Sorts the chunks of `count` units by who wants them. A chunk that some want, but not all, each takes alone. */
static inline void sat_att_share(sat_att_maker *x, const sat_att_unit *const *u, int count) {
    int32_t at[SAT_ATT_GROUPS] = {0};
    int all = x->groups;
    for (int g = 0; g <= all; g++) x->parts[g] = 0;
    for (;;) {
        int32_t least = INT32_MAX;
        int wanted = 0;
        for (int g = 0; g < count; g++)
            if (at[g] < u[g]->count) least = sat_att_least(least, x->chunks[u[g]->from + at[g]]);
        if (least == INT32_MAX) break;
        for (int g = 0; g < count; g++) {
            if (at[g] >= u[g]->count || x->chunks[u[g]->from + at[g]] != least) continue;
            at[g]++, wanted++;
            x->part[g][x->parts[g]++] = least;
        }
        if (wanted < all) continue;
        for (int g = 0; g < all; g++) x->parts[g]--;
        x->part[all][x->parts[all]++] = least;
    }
    bool odd = x->parts[all] % 2 != 0 && all > 1; /* rather two halves that find company than one that does not */
    for (int g = 0; g < all; g++) odd = odd && x->parts[g] % 2 != 0;
    if (!odd) return;
    int32_t last = x->part[all][--x->parts[all]];
    for (int g = 0; g < all; g++) x->part[g][x->parts[g]++] = last;
}

static inline void sat_att_put_entry(sat_att_maker *x, int part, int64_t at) {
    const int32_t *from = x->part[part];
    int32_t who = part == x->groups ? (1 << x->groups) - 1 : 1 << part, chunk = (int32_t)x->chunk;
    sat_att_entry e = {from[at] * chunk | who, at + 1 < x->parts[part] ? from[at + 1] * chunk : SAT_ATT_NONE};
    x->to->entry[x->to->entries++] = e;
}

/* The entries of what was shared: what all want first, then each warpgroup's own in turns, so that from one tile that
 * it wants to the next are never more than there are warpgroups. */
static inline void sat_att_put_entries(sat_att_maker *x, sat_att_piece *p) {
    p->first = (int32_t)x->to->entries, p->order = 1;
    for (int64_t at = 0; at < x->parts[x->groups]; at += 2) sat_att_put_entry(x, x->groups, at);
    for (int64_t at = 0, more = 1; more; at += 2) {
        more = 0;
        for (int g = 0; g < x->groups; g++)
            if (at < x->parts[g]) sat_att_put_entry(x, g, at), more = 1, p->order = 0;
    }
    p->count = (int32_t)(x->to->entries - p->first);
}

/* Pieces of units in the order they stand in. Gives what they cost: products, and tiles that are fetched. */
static inline int64_t sat_att_put_pieces(sat_att_maker *x, const sat_att_piece *like, int64_t units) {
    int64_t cost = 0;
    for (int64_t u = 0; u < units; u += x->groups) {
        const sat_att_unit *some[SAT_ATT_GROUPS];
        int count = (int)sat_min(x->groups, units - u);
        int64_t longest = 0;
        sat_att_piece p = *like;
        for (int g = 0; g < SAT_ATT_GROUPS; g++) {
            p.row[g] = g < count ? (int32_t)x->unit[u + g].first : p.row_end;
            if (g < count) some[g] = &x->unit[u + g], longest = sat_max(longest, some[g]->count);
        }
        sat_att_share(x, some, count);
        sat_att_put_entries(x, &p);
        x->to->piece[x->to->pieces++] = p;
        cost += longest * x->groups + 2 * p.count;
    }
    return cost;
}

static inline int sat_att_unit_compare(const void *a, const void *b) { /* the longest first; of equals the first */
    const sat_att_unit *x = (const sat_att_unit *)a, *y = (const sat_att_unit *)b;
    if (x->count != y->count) return x->count < y->count ? 1 : -1;
    return (x->first > y->first) - (x->first < y->first);
}

static inline int sat_att_unit_place(const void *a, const void *b) {
    const sat_att_unit *x = (const sat_att_unit *)a, *y = (const sat_att_unit *)b;
    return (x->first > y->first) - (x->first < y->first);
}

static inline int sat_att_piece_compare(const void *a, const void *b) {
    const sat_att_piece *x = (const sat_att_piece *)a, *y = (const sat_att_piece *)b;
    if (x->count != y->count) return x->count < y->count ? 1 : -1;
    return (x->row[0] > y->row[0]) - (x->row[0] < y->row[0]);
}

/* A sequence of one mask: neighbours together, or those of like length, whichever costs less. */
static inline void sat_att_list_sequence(sat_att_maker *x, int64_t mask, const sat_att_piece *like, int64_t begin) {
    int64_t units = 0, from = 0, pieces = x->to->pieces, entries = x->to->entries, cost[2];
    for (int64_t i = begin; i < like->row_end; i += SAT_ATT_ROWS) {
        sat_att_unit *u = &x->unit[units++];
        u->first = i, u->from = from;
        sat_att_unit_chunks(x, mask, like, like->row_end, u);
        from += u->count;
    }
    cost[0] = sat_att_put_pieces(x, like, units);
    if (x->groups == 1) return;
    qsort(x->unit, (size_t)units, sizeof *x->unit, sat_att_unit_compare);
    x->to->pieces = pieces, x->to->entries = entries;
    cost[1] = sat_att_put_pieces(x, like, units);
    if (cost[1] < cost[0]) return;
    qsort(x->unit, (size_t)units, sizeof *x->unit, sat_att_unit_place);
    x->to->pieces = pieces, x->to->entries = entries;
    sat_att_put_pieces(x, like, units);
}

static inline void sat_att_range_sequence(sat_att_maker *x, const sat_att_piece *like, int64_t begin) {
    int32_t rows = SAT_ATT_ROWS * x->groups;
    for (int64_t i = begin; i < like->row_end; i += rows) {
        sat_att_piece p = *like;
        for (int g = 0; g < SAT_ATT_GROUPS; g++) p.row[g] = (int32_t)i + g * SAT_ATT_ROWS;
        p.first = -1, p.order = 1;
        sat_att_piece narrow = p;
        sat_att_narrow(&narrow, rows, (int32_t)(2 * x->chunk), x->reach);
        p.count = narrow.count; /* to sort by; the kernel narrows for itself */
        x->to->piece[x->to->pieces++] = p;
    }
}

static inline void sat_att_fill(sat_att_maker *x, int64_t masks) {
    const sat_mask *k = x->k;
    for (int64_t mask = 0; mask < masks; mask++) {
        int64_t before = x->to->pieces;
        for (int64_t s = 0; s < (k->sequences ? k->sequences : 1); s++) {
            int64_t q0 = 0, q1 = k->m, k0 = 0, k1 = k->n;
            if (k->sequences)
                q0 = k->q_offsets[s], q1 = k->q_offsets[s + 1], k0 = k->kv_offsets[s], k1 = k->kv_offsets[s + 1];
            sat_att_piece like = {.row_end = (int32_t)q1,
                                  .diagonal = (int32_t)(k1 - q1),
                                  .key_begin = (int32_t)k0,
                                  .key_end = (int32_t)k1};
            if (k->full) sat_att_range_sequence(x, &like, q0);
            else sat_att_list_sequence(x, mask, &like, q0);
        }
        qsort(x->to->piece + before, (size_t)(x->to->pieces - before), sizeof *x->to->piece, sat_att_piece_compare);
    }
    x->to->pieces /= masks;
}

/* Pieces for `groups` warpgroups and tiles of two chunks. False without memory; what was made is to be freed in any
 * case. */
static inline bool sat_att_lists_make(const sat_mask *k, int64_t masks, int64_t stored_blocks, int groups,
                                      int64_t chunk, sat_att_lists *to) {
    int64_t units = k->m / SAT_ATT_ROWS + 1, chunks = k->n / chunk + 2;
    double entries = k->full ? 0 : sat_att_most_entries(k, stored_blocks, chunk);
    sat_att_maker x = {.k = k, .reach = sat_att_reach_of(k), .groups = groups, .chunk = chunk, .to = to};
    to->pieces = to->entries = 0;
    to->piece = (sat_att_piece *)malloc(((size_t)(sat_att_most_pieces(k, groups) * masks) + 1) * sizeof *to->piece);
    to->entry = (sat_att_entry *)malloc(((size_t)entries + 1) * sizeof *to->entry);
    bool ok = to->piece && to->entry;
    if (!k->full) {
        x.unit = (sat_att_unit *)malloc((size_t)units * sizeof *x.unit);
        x.chunks = (int32_t *)malloc(((size_t)entries + 1) * sizeof *x.chunks);
        ok = ok && x.unit && x.chunks;
        for (int g = 0; g <= groups; g++)
            x.part[g] = (int32_t *)malloc((size_t)chunks * sizeof *x.part[g]), ok = ok && x.part[g];
    }
    if (ok) sat_att_fill(&x, masks);
    free(x.unit), free(x.chunks);
    for (int g = 0; g <= groups; g++) free(x.part[g]);
    return ok;
}

#endif
