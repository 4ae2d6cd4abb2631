/* The plan of the sampled product whose sums have few terms: S = alpha*(X*Y at the stored blocks) + beta*S. The same
 * for every instruction set; a family defines VECTOR_BYTES (common/vector.h) before it.
 *
 * The lanes of a vector are neighbouring elements of a block row as it is stored, and each step of k is one
 * multiply-add of a vector of X and one of Y. Three ways to cut a block row into vectors:
 *   rows      a block at least as wide as a vector: a vector is part of a row of it. X is one element, repeated.
 *   lines     a narrower one of more elements than half a vector: vectors go along the block from row to row. X is the
 *             same for all blocks of a block row; Y is a narrow panel, repeated or permuted.
 *   together  a smaller one: a vector has several blocks. Parts of Y's columns along k are collected, then transposed.
 * Rows and lines read Y from panels [k][width], a vector or a block wide, together reads it from columns along k; both
 * are packed at each launch. X is put in the order of the lanes when a block row begins. */
#ifndef SAT_SAMPLED_SHALLOW_PLAN_H
#define SAT_SAMPLED_SHALLOW_PLAN_H

#include <stdlib.h>

#include "kernels/cpu/common/csr.h"
#include "sampled_shallow_vectors.h"

enum {
    SHALLOW_DEEPEST = 64, /* terms of a sum */
    SHALLOW_STRIP = 4,    /* vectors of a block that share what is read of Y */
    SHALLOW_ROWS = (SHALLOW_STRIP + 1) * VECTOR_BYTES / 4, /* of X that a strip of vectors reads, at most */
};

/* ---- the shape of the work ---- */

typedef struct shallow_shape {
    int64_t lanes, size;       /* of a vector; bytes of an element */
    int64_t elements;          /* of a block */
    int64_t together;          /* blocks that share a vector, or 0 */
    bool lines;                /* else rows, where they are not together */
    int64_t width, panels;     /* columns of a panel; panels of a block column */
    int64_t vectors;           /* of a block, in each of its panels */
    int64_t strips, high;      /* of its vectors, and vectors of a strip */
    int64_t deep;              /* together: k, rounded up to whole parts */
    int64_t y_elements;
} shallow_shape;

static inline int64_t shallow_ceil(int64_t x, int64_t y) { return (x + y - 1) / y; }

static shallow_shape shallow_shape_of(const sat_problem *p, const sat_pattern_view *a) {
    shallow_shape s = {.size = p->compute_dtype == SAT_F64 ? 8 : 4, .elements = a->block_rows * a->block_cols};
    s.lanes = VECTOR_BYTES / s.size;
    s.width = sat_min(a->block_cols, s.lanes), s.panels = 1, s.vectors = 1;
    if (2 * s.elements <= s.lanes) s.together = s.lanes / s.elements;
    else {
        s.lines = a->block_cols < s.lanes;
        s.panels = shallow_ceil(a->block_cols, s.lanes);
        s.vectors = s.lines ? shallow_ceil(s.elements, s.lanes) : a->block_rows;
    }
    s.strips = shallow_ceil(s.vectors, SHALLOW_STRIP), s.high = shallow_ceil(s.vectors, s.strips);
    s.deep = shallow_ceil(p->k, 16 / s.size) * (16 / s.size);
    s.y_elements = s.together ? p->n * s.deep : a->grid_cols * s.panels * s.width * p->k + s.lanes;
    return s;
}

/* ---- where the lanes are ---- */

typedef struct shallow_state {
    shallow_shape shape;
    int32_t *row, *column; /* of each lane of a block's vectors: its row above `first`, its column in the panel */
    int64_t *first;        /* row of each vector's first lane */
} shallow_state;

static void shallow_release(const sat_variant *v, void *state) {
    (void)v;
    shallow_state *st = state;
    if (!st) return;
    free(st->row), free(st->column), free(st->first);
    free(st);
}

/* Lanes beyond the last element repeat the vector's first: they are computed, and never stored. */
static void shallow_place_lanes(shallow_state *st, const sat_pattern_view *a) {
    const shallow_shape *s = &st->shape;
    const bool rows = !s->together && !s->lines;
    for (int64_t v = 0; v < s->vectors; v++) {
        st->first[v] = rows ? v : v * s->lanes / a->block_cols;
        for (int64_t e = 0; e < s->lanes; e++) {
            int64_t at = s->together ? e % s->elements : v * s->lanes + e;
            if (at >= s->elements) at = v * s->lanes;
            st->row[v * s->lanes + e] = rows ? 0 : (int32_t)(at / a->block_cols - st->first[v]);
            st->column[v * s->lanes + e] = (int32_t)(rows ? e : at % a->block_cols);
        }
    }
}

static sat_status shallow_prepare(const sat_prepare *prepare, void **state) {
    shallow_state *st = calloc(1, sizeof *st);
    if (!st) return sat_fail(SAT_OUT_OF_MEMORY, "no memory for a schedule");
    st->shape = shallow_shape_of(prepare->problem, prepare->pattern);
    const size_t vectors = (size_t)st->shape.vectors, lanes = vectors * (size_t)st->shape.lanes;
    st->row = malloc(lanes * sizeof *st->row), st->column = malloc(lanes * sizeof *st->column);
    st->first = malloc(vectors * sizeof *st->first);
    if (!st->row || !st->column || !st->first) {
        shallow_release(prepare->variant, st);
        return sat_fail(SAT_OUT_OF_MEMORY, "no memory for the places of %lld lanes", (long long)lanes);
    }
    shallow_place_lanes(st, prepare->pattern);
    *state = st;
    return SAT_OK;
}

/* ---- the share of a thread ---- */

/* Work is counted in steps: a strip of the vectors of a block, or of blocks that share vectors, a block. Steps go by
 * block row, then by strip, then by block. */
typedef struct shallow_part {
    int64_t row, strip, t, t_end;
} shallow_part;

/* The part that begins with step `at` and ends with the block row, its strip, or step `end`. */
static inline shallow_part shallow_part_at(const sat_pattern_view *a, int64_t strips, int64_t at, int64_t end) {
    int64_t low = 0, high = a->grid_rows - 1;
    while (low < high) { /* the last block row that begins by then; of empty ones beside it, the last */
        int64_t middle = (low + high + 1) / 2;
        if (a->row_ptr[middle] * strips <= at) low = middle;
        else high = middle - 1;
    }
    const int64_t first = a->row_ptr[low], count = a->row_ptr[low + 1] - first, step = at - first * strips;
    shallow_part part = {.row = low, .strip = step / count, .t = first + step % count};
    part.t_end = sat_min(first + count, part.t + end - at);
    return part;
}

/* ---- what the tuner asks ---- */

static bool shallow_supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                             const sat_device *d) {
    (void)v;
    if ((d->isa & VECTOR_ISA) != VECTOR_ISA || p->k > SHALLOW_DEEPEST) return false;
    const double columns = (double)p->n + (double)a->block_cols + 64, elements = (double)a->block_rows * columns;
    return columns * SHALLOW_DEEPEST < INT32_MAX && elements < CSR_MOST_COPIED;
}

/* Whole vectors, with lanes that are not stored; each is begun and finished too. */
static double shallow_estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                               const sat_device *d) {
    (void)v;
    const shallow_shape s = shallow_shape_of(p, a);
    const double batch = (double)p->batch, blocks = (double)a->stored_blocks;
    const double vectors = s.together ? blocks / (double)s.together : blocks * (double)(s.vectors * s.panels);
    const double work = 2.0 * vectors * (double)(s.lanes * (p->k + (s.together ? 24 : 8))) * batch;
    const double copied = 2 * (double)s.size * ((double)s.y_elements + (double)p->m * (double)p->k) * batch;
    return sat_roofline(d, p->compute_dtype, work, 0.4, sat_bytes(p, a) + copied);
}

static size_t shallow_workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                                const sat_device *d) {
    (void)v, (void)d;
    shallow_shape s = shallow_shape_of(p, a);
    return (size_t)(s.y_elements * s.size);
}

#define SHALLOW_FAMILY(words)                                                                                          \
    {                                                                                                                  \
        .revision = "1", .op = SAT_SAMPLED, .backend = SAT_CPU, .flags = SAT_V_SCRATCH, .about = words,                \
        .supports = shallow_supports, .estimate = shallow_estimate, .workspace = shallow_workspace,                    \
        .prepare = shallow_prepare, .launch = launch, .release = shallow_release                                       \
    }

/* Tiles: vectors of a strip, blocks (or panels) at a time, and the elements of Y that a vector repeats; 0: permuted. */
#define SHALLOW_STRIPS(X, repeat) X(1, 4, repeat) X(2, 4, repeat) X(3, 2, repeat) X(4, 2, repeat)
#if VECTOR_BYTES == 64
#define SHALLOW_REPEATS(X, Y) X(Y, 0) X(Y, 1) X(Y, 2) X(Y, 4) X(Y, 8) X(Y, 16)
#else
#define SHALLOW_REPEATS(X, Y) X(Y, 0) X(Y, 1) X(Y, 2) X(Y, 4) X(Y, 8)
#endif

#endif
