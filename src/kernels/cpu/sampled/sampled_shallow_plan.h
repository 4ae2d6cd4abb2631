/* The plan of the sampled product whose sums have few terms: S = alpha*(X*Y at the stored blocks) + beta*S. The same
 * for every instruction set; a family defines VECTOR_BYTES (common/vector.h) before it.
 *
 * The lanes of a vector are neighbouring elements of a stored block, and each step of k is one multiply-add of a vector
 * of X and one of Y. Three ways to fill vectors:
 *   wide      more than half a vector of columns: a vector is part of one row. X is one element, repeated.
 *   narrow    fewer: a vector has several rows of a block. Their elements of X are brought into the order of the lanes,
 *             once for all blocks of a block row; an element of Y is repeated for each row.
 *   together  a quarter of a vector has room for a block: a vector has several blocks. Segments of Y's columns along k
 *             are collected for its lanes, then transposed.
 *
 * Wide and narrow read Y from panels [k][width], a vector or a block wide, together reads it from columns along k; both
 * are packed at each launch. */
#ifndef SAT_SAMPLED_SHALLOW_PLAN_H
#define SAT_SAMPLED_SHALLOW_PLAN_H

#include "kernels/cpu/common/csr.h"
#include "sampled_shallow_vectors.h"

enum {
    SHALLOW_DEEPEST = 64,       /* terms of a sum */
    SHALLOW_DEEPEST_WIDE = 128, /* where nothing is set up for each term of a block row */
    SHALLOW_STRIP = 4,          /* vectors of a block, below each other, that share what is read of Y */
};

/* ---- the shape of the work ---- */

typedef struct shallow_shape {
    int64_t size, lanes;   /* bytes of an element; of a vector */
    int64_t elements;      /* of a block */
    int64_t together;      /* blocks that share a vector, or 0 */
    int64_t rows;          /* of a block in a vector: 1 if wide */
    int64_t width, panels; /* columns of a panel; panels of a block column */
    int64_t strips, high;  /* of each panel of a block, and vectors of a strip */
    int64_t deep;          /* k, rounded up to whole segments of 16 bytes */
    int64_t y_elements;
} shallow_shape;

static inline int64_t shallow_ceil(int64_t x, int64_t y) { return (x + y - 1) / y; }

static inline shallow_shape shallow_shape_of(const sat_problem *p, const sat_pattern_view *a) {
    const int64_t br = a->block_rows, bc = a->block_cols, size = p->compute_dtype == SAT_F64 ? 8 : 4;
    shallow_shape s = {.size = size, .lanes = VECTOR_BYTES / size, .elements = br * bc};
    if (4 * s.elements <= s.lanes) s.together = s.lanes / s.elements;
    s.rows = s.together ? br : sat_min(br, sat_max(1, s.lanes / bc));
    s.width = sat_min(bc, s.lanes), s.panels = shallow_ceil(bc, s.lanes);
    const int64_t vectors = shallow_ceil(br, s.rows);
    s.strips = shallow_ceil(vectors, SHALLOW_STRIP), s.high = shallow_ceil(vectors, s.strips);
    s.deep = shallow_ceil(p->k, 16 / size) * (16 / size);
    s.y_elements = s.together ? p->n * s.deep : a->grid_cols * s.panels * s.width * p->k + s.lanes;
    return s;
}

static inline bool shallow_wide(const shallow_shape *s) { return 2 * s->width > s->lanes; }

/* Of each lane: block, row and column; those beyond the last element are computed like the first, and never stored. */
typedef struct shallow_lanes {
    int32_t block[VECTOR_BYTES / 4], row[VECTOR_BYTES / 4], column[VECTOR_BYTES / 4];
} shallow_lanes;

static inline shallow_lanes shallow_lanes_of(const shallow_shape *s, int64_t block_cols) {
    shallow_lanes l = {{0}, {0}, {0}};
    const int64_t wide = sat_min(block_cols, s->lanes), elements = s->rows * wide;
    for (int64_t e = 0; e < elements * sat_max(1, s->together); e++) {
        l.block[e] = (int32_t)(e / elements);
        l.row[e] = (int32_t)(e % elements / wide), l.column[e] = (int32_t)(e % wide);
    }
    return l;
}

/* ---- the share of a thread ---- */

/* Work is counted in steps: a strip of a block. They go by block row, then by strip, then by block. A part is as many
 * as have one block row and one strip. */
typedef struct shallow_part {
    int64_t row, strip, t, t_end;
} shallow_part;

/* The part that begins with step `at`; steps end before `end`. */
static inline shallow_part shallow_first(const sat_pattern_view *a, int64_t strips, int64_t at, int64_t end) {
    int64_t low = 0, high = a->grid_rows - 1;
    while (low < high) { /* the last block row that begins by then, so not an empty one */
        int64_t middle = (low + high + 1) / 2;
        if (a->row_ptr[middle] * strips <= at) low = middle;
        else high = middle - 1;
    }
    const int64_t first = a->row_ptr[low], count = a->row_ptr[low + 1] - first, step = at - first * strips;
    shallow_part part = {.row = low, .strip = step / count, .t = first + step % count};
    part.t_end = sat_min(first + count, part.t + end - at);
    return part;
}

/* The part after it, where `left` steps are left. */
static inline void shallow_next(const sat_pattern_view *a, int64_t strips, int64_t left, shallow_part *part) {
    if (++part->strip == strips) {
        part->strip = 0;
        do part->row++;
        while (a->row_ptr[part->row] == a->row_ptr[part->row + 1]);
    }
    part->t = a->row_ptr[part->row];
    part->t_end = sat_min(a->row_ptr[part->row + 1], part->t + left);
}

/* ---- what the tuner asks ---- */

static bool shallow_supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                             const sat_device *d) {
    (void)v;
    const shallow_shape s = shallow_shape_of(p, a);
    const int64_t deepest = shallow_wide(&s) ? SHALLOW_DEEPEST_WIDE : SHALLOW_DEEPEST;
    if ((d->isa & VECTOR_ISA) != VECTOR_ISA || p->k > deepest) return false;
    const double columns = (double)p->n + (double)a->block_cols + 64, elements = (double)a->block_rows * columns;
    return columns * SHALLOW_DEEPEST_WIDE < INT32_MAX && elements < CSR_MOST_COPIED;
}

/* Vectors count whole, with lanes that are not stored. A vector costs some terms more at its beginning and its end; one
 * of several blocks costs more for each term too, to be collected, and one that has X as it is costs less. */
static double shallow_estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                               const sat_device *d) {
    (void)v;
    const shallow_shape s = shallow_shape_of(p, a);
    const double batch = (double)p->batch, blocks = (double)a->stored_blocks, k = (double)p->k;
    const double peak = VECTOR_BYTES == 32 && d->isa & SAT_ISA_AVX512 ? 0.6 : 1;
    const double vectors =
        s.together ? blocks / (double)s.together : blocks * (double)(shallow_ceil(a->block_rows, s.rows) * s.panels);
    const double terms = s.together ? 2.7 * k + 18 : shallow_wide(&s) ? 0.75 * k + 6 : k + 12;
    const double copied = 2 * (double)s.size * ((double)s.y_elements + (double)p->m * k) * batch;
    return sat_roofline(d, p->compute_dtype, 2 * vectors * (double)s.lanes * terms * batch, 0.6 * peak,
                        sat_bytes(p, a) + copied);
}

static size_t shallow_workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                                const sat_device *d) {
    (void)v, (void)d;
    shallow_shape s = shallow_shape_of(p, a);
    return (size_t)(s.y_elements * s.size);
}

#define SHALLOW_FAMILY(words)                                                                                          \
    {                                                                                                                  \
        .revision = "1", .op = SAT_SAMPLED, .backend = SAT_CPU, .flags = SAT_V_SCRATCH | SAT_V_DYNAMIC,                \
        .about = words, .supports = shallow_supports, .estimate = shallow_estimate, .workspace = shallow_workspace,    \
        .launch = launch                                                                                               \
    }

/* Tiles: vectors of a strip, panels at a time, and how many elements of Y a vector repeats: a whole vector where X is
 * one element; 0: permuted. */
#define SHALLOW_STRIPS(X, repeat) X(1, 4, repeat) X(2, 4, repeat) X(3, 2, repeat) X(4, 2, repeat)
#if VECTOR_BYTES == 64
#define SHALLOW_TILES(X)                                                                                               \
    SHALLOW_STRIPS(X, 0)                                                                                               \
    SHALLOW_STRIPS(X, 1) SHALLOW_STRIPS(X, 2) SHALLOW_STRIPS(X, 4) SHALLOW_STRIPS(X, 8) SHALLOW_STRIPS(X, 16)
#else
#define SHALLOW_TILES(X)                                                                                               \
    SHALLOW_STRIPS(X, 0) SHALLOW_STRIPS(X, 1) SHALLOW_STRIPS(X, 2) SHALLOW_STRIPS(X, 4) SHALLOW_STRIPS(X, 8)
#endif

#endif
