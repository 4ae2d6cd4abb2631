/* The rows of a product cut into pieces of work: longest first, and a row that is more than a fair share in several.
 * The pieces of a cut row leave partial sums, which join.cuh adds in their order: the result does not depend on who
 * was done first. Plain C, so that the host's tests see every block covered exactly once. */
#ifndef SAT_SCHEDULE_H
#define SAT_SCHEDULE_H

#include <stdlib.h>

#include "variant.h"

enum { SAT_PIECE_COLUMNS = 11 };

typedef struct sat_piece {
    int64_t first; /* its first block, as a position in the rows' order */
    int32_t row;
    int32_t count;                  /* blocks; 0 for an empty row, which has its output to write all the same */
    int32_t slot;                   /* where its partial sum goes; -1: it is the whole row */
    int32_t col[SAT_PIECE_COLUMNS]; /* of its first blocks: known with the piece, not one load later */
} sat_piece;

typedef struct sat_join { /* a row that was cut: slots slot .. slot + parts - 1 */
    int32_t row, slot, parts, unused;
} sat_join;

typedef struct sat_schedule {
    int64_t pieces, joins, slots;
    int64_t heavy;    /* the first so many have over twice as many blocks as the mean of those that have any */
    bool even;        /* none has a quarter more than that mean */
    sat_piece *piece; /* NULL where only counted */
    sat_join *join;
} sat_schedule;

/* The most blocks that a piece should have, so that `workers` CTAs have like shares of all rows, each row walked
 * `times` (once a tile of columns). Never fewer than `least`: below that a partial sum costs more than it evens out. */
static inline int64_t sat_schedule_share(const sat_rows *r, int64_t times, int64_t workers, int64_t least) {
    double fair = (double)r->ptr[r->count] * (double)times / (double)sat_max(1, workers);
    return sat_max(least, fair < 1e15 ? (int64_t)fair + 1 : INT64_MAX);
}

/* A row slightly above the share stays whole. */
static inline int64_t sat_schedule_parts(int64_t blocks, int64_t share) {
    return blocks - share <= share / 4 ? 1 : (blocks + share - 1) / share;
}

static inline sat_schedule sat_schedule_count(const sat_rows *r, int64_t share) {
    sat_schedule s = {0};
    for (int64_t i = 0; i < r->count; i++) {
        int64_t parts = sat_schedule_parts(r->ptr[i + 1] - r->ptr[i], share);
        s.pieces += parts;
        if (parts > 1) s.joins++, s.slots += parts;
    }
    return s;
}

/* Longest first; among equals the order of the rows, which neighbours in memory like. */
static inline int sat_piece_order(const void *a, const void *b) {
    const sat_piece *x = (const sat_piece *)a, *y = (const sat_piece *)b;
    if (x->count != y->count) return x->count < y->count ? 1 : -1;
    return x->first < y->first ? -1 : x->first > y->first ? 1 : x->row < y->row ? -1 : x->row > y->row;
}

static inline void sat_schedule_free(sat_schedule *s) {
    free(s->piece);
    free(s->join);
    s->piece = NULL, s->join = NULL;
}

static inline bool sat_schedule_make(const sat_rows *r, int64_t share, sat_schedule *s) {
    *s = sat_schedule_count(r, share);
    s->piece = (sat_piece *)malloc(((size_t)s->pieces + 1) * sizeof *s->piece);
    s->join = (sat_join *)malloc(((size_t)s->joins + 1) * sizeof *s->join);
    if (!s->piece || !s->join) {
        sat_schedule_free(s);
        return false;
    }
    int64_t at = 0, joins = 0;
    int32_t slot = 0;
    for (int64_t i = 0; i < r->count; i++) {
        int64_t first = r->ptr[i], blocks = r->ptr[i + 1] - first, parts = sat_schedule_parts(blocks, share);
        if (parts > 1) {
            sat_join join = {(int32_t)i, slot, (int32_t)parts, 0};
            s->join[joins++] = join;
        }
        for (int64_t part = 0; part < parts; part++) {
            int64_t from = blocks * part / parts, to = blocks * (part + 1) / parts;
            sat_piece piece = {first + from, (int32_t)i, (int32_t)(to - from), parts > 1 ? slot++ : -1, {0}};
            for (int64_t t = 0; r->col && t < to - from && t < SAT_PIECE_COLUMNS; t++)
                piece.col[t] = r->col[first + from + t];
            s->piece[at++] = piece;
        }
    }
    qsort(s->piece, (size_t)s->pieces, sizeof *s->piece, sat_piece_order);
    int64_t busy = s->pieces;
    while (busy > 0 && s->piece[busy - 1].count == 0) busy--;
    while (s->heavy < busy && s->piece[s->heavy].count * busy > 2 * r->ptr[r->count]) s->heavy++;
    s->even = busy == 0 || s->piece[0].count * busy * 4 <= 5 * r->ptr[r->count];
    return true;
}

/* ---- parts of long sums ---- */

/* What a launch takes of every piece: some blocks, and of each some columns. */
typedef struct sat_row_part {
    int32_t first_block, blocks;
    int64_t column;
    int32_t deep;      /* columns from there on */
    bool first, whole; /* whole: it reaches the end of its blocks */
} sat_row_part;

static inline sat_row_part sat_row_part_at(int64_t block, int64_t column, sat_parts parts, int64_t depth) {
    sat_row_part p = {(int32_t)block, (int32_t)sat_min(parts.blocks, INT32_MAX), column, 0, false, false};
    p.deep = (int32_t)sat_min(parts.deep, depth - column);
    p.first = block == 0 && column == 0, p.whole = column + parts.deep >= depth;
    return p;
}

/* The next one, where blocks are `depth` deep and no piece has more than `longest`; false: there is none. */
static inline bool sat_next_row_part(sat_row_part *p, sat_parts parts, int64_t depth, int64_t longest) {
    int64_t block = p->first_block, column = p->column + parts.deep;
    if (column >= depth) column = 0, block += parts.blocks;
    if (block >= longest) return false;
    *p = sat_row_part_at(block, column, parts, depth);
    return true;
}

/* What a part has of a piece; false: nothing. `last`: no part comes after it. */
SAT_BOTH static inline bool sat_take_part(const sat_row_part *part, sat_piece *piece, bool *last) {
    *last = (part->whole && piece->count - part->first_block <= part->blocks) || piece->count == 0;
    if (!part->first && piece->count <= part->first_block) return false;
    piece->first += part->first_block, piece->count = (int32_t)sat_min(piece->count - part->first_block, part->blocks);
    return true;
}

/* The sampled product's pieces, `each` neighbours of a block row, where there is room for them; returns how many. */
static inline int64_t sat_schedule_runs(const sat_pattern_view *a, int64_t each, sat_piece *piece) {
    int64_t count = 0;
    for (int64_t row = 0; row < a->grid_rows; row++)
        for (int64_t first = a->row_ptr[row], end = a->row_ptr[row + 1]; first < end; first += each) {
            sat_piece one = {first, (int32_t)row, (int32_t)sat_min(each, end - first), -1, {0}};
            if (piece) piece[count] = one;
            count++;
        }
    return count;
}

/* Bytes of a workspace that holds the pieces, the joins and the partial sums, [slot][row in block][column]. */
static inline size_t sat_schedule_bytes(const sat_schedule *s, int64_t block_rows, int64_t n, size_t element) {
    return (size_t)s->pieces * sizeof(sat_piece) + (size_t)s->joins * sizeof(sat_join) + 256 +
           (size_t)s->slots * (size_t)block_rows * (size_t)n * element;
}

/* ---- tiles ---- */

/* A piece's rows in `slices`, its columns in `panels`. Heavy pieces come first, with all their panels; the others by
 * `together` panels at a time, which stay in the cache, and the longest of those first: no long one is begun late. */
typedef struct sat_tiles {
    unsigned pieces, heavy, slices, panels, together;
} sat_tiles;

typedef struct sat_tile_place {
    unsigned piece, slice, panel;
} sat_tile_place;

/* As many panels of `panel_bytes` as have the tiles that are wanted at a time, but no more than L2 holds beside what is
 * written; one where all pieces are alike. The last ones are hardly fewer: what they begin late takes long. */
static inline unsigned sat_tiles_together(bool even, int64_t tiles_of_panel, int64_t panels, double panel_bytes,
                                          double tiles, double l2_bytes) {
    double wanted = ceil(tiles / (double)sat_max(1, tiles_of_panel));
    double most = fmax(1, floor(0.7 * l2_bytes / fmax(1, panel_bytes)));
    double times = fmax(1, fmax(ceil((double)panels / most), floor((double)panels / wanted)));
    return even ? 1 : (unsigned)fmax(1, ceil((double)panels / times));
}

SAT_BOTH static inline sat_tile_place sat_tile_at(const sat_tiles *d, unsigned number) {
    unsigned first = d->heavy * d->slices * d->panels, rest = number / d->slices;
    sat_tile_place t;
    t.slice = number % d->slices;
    if (number < first) {
        t.piece = rest / d->panels, t.panel = rest % d->panels;
    } else {
        unsigned each = d->pieces - d->heavy, from, wide;
        rest -= d->heavy * d->panels;
        from = rest / (each * d->together) * d->together;
        wide = d->panels - from < d->together ? d->panels - from : d->together;
        rest -= from * each;
        t.piece = d->heavy + rest / wide, t.panel = from + rest % wide;
    }
    return t;
}

#endif
