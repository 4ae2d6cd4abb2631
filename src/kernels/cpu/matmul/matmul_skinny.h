/* What the skinny families share, whatever their instruction set and element type: how a shape is laid out over the
 * lanes of a vector, what they answer to the tuner, and how block rows are dealt out to threads.
 *
 * A product with few columns reads every stored block once and does little with it, so the stream of blocks sets the
 * pace and the inner kernel (matmul_skinny_kernels.h) only has to keep up. It does not rearrange values. With n
 * columns, padded to a power of two, the lanes of a vector are split among columns and g neighbours in the block's
 * memory:
 *
 *   A as stored:    lane (n, j) sums column k+j of a row of A times B(k+j, n); the g lanes are added up at the end
 *   A transposed:   lane (n, j) sums row i+j of op(A) times B(k, n)
 *   one column, and rows of a block shorter than a vector: a vector takes whole rows of the block; lane (i, j)
 *
 * so that a step is always: repeat a few elements of A over a vector, the same with B, multiply and add. B is packed
 * once, into the order in which the steps want it.
 */
#ifndef SAT_MATMUL_SKINNY_H
#define SAT_MATMUL_SKINNY_H

#include <immintrin.h>
#include <omp.h>

#include "variant.h"

#define SK_INLINE static inline __attribute__((always_inline))

enum {
    SK_MAX_N = 16,
    SK_BATCH = 4096,       /* elements of 16-bit values that are widened at a time: 16 KiB, half of a small L1 */
    SK_GATHER = 1024,      /* sums that gather before they are written to C */
    SK_NEAR = 1 << 18,     /* elements of values and B that stay within a core's L2 */
    SK_PARTS = 64,         /* a block row with more than two shares in so many is cut, so that threads can share it */
    SK_AHEAD = 12,         /* blocks by which B is asked for ahead */
    SK_AHEAD_BYTES = 8192, /* and the stream of values, */
    SK_AHEAD_SMALL = 2048, /* or that of small blocks */
};

/* How a kernel walks through a block; flat: a vector spans whole rows. */
typedef enum sk_order { SK_BY_ROWS, SK_BY_COLUMNS, SK_FLAT } sk_order;

/* How one problem is computed. */
typedef struct sk_plan {
    int64_t lanes, real; /* of a vector, and bytes of an element as computed */
    int64_t np, g;       /* columns after padding, and lanes of each */
    int64_t ga, gb, vs;  /* what the kernel repeats of A and of B, and vectors of B */
    sk_order by;
    int64_t rows_a_vec;          /* rows of C that share a vector of sums */
    int64_t rows, steps, b_step; /* as in the kernel's run */
    int64_t lane_i, lane_n, add; /* the sum of (i, n): `add` lanes from (i % rows_a_vec)*lane_i + n*lane_n */
    int64_t b_size;              /* elements of packed B, with room to read a vector past its end */
    int64_t part, parts;         /* blocks of a part of a long row, see SK_PARTS; parts in all, 0 when none is cut */
    int64_t sum_blocks;          /* blocks of a row that are summed together: see SAT_SUM_PART */
    bool far;                    /* values and B exceed L2, so that asking for them early pays */
    int64_t edge, edge_k;        /* the block column that reaches beyond the matrix (-1: none), its columns inside */
    /* Elements of a block row's sums, and of a thread's buffers: rows that wait, a part of a long sum, widened values.
     */
    int64_t sums, gather, apart, scratch;
} sk_plan;

static inline int64_t sk_round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

/* Lanes are filled where the block's side allows; where it does not, columns are padded further, but for a single
 * column B stays as small as it is and its elements are repeated: only so many splits are worth a kernel. */
static inline void sk_plan_lanes(sk_plan *s, const sat_rows *r, bool transposed, int64_t n) {
    int64_t along = transposed ? r->br : r->bc, even = along & -along; /* the largest power of two that divides it */
    bool flat = !transposed && n == 1 && along < s->lanes && even == along && r->block_elements % s->lanes == 0;
    for (s->np = 1; s->np < n;) s->np *= 2;
    int64_t most = sat_max(1, s->lanes / s->np);
    s->g = sat_min(most, even);
    if (n == 1 && transposed && s->g < most) s->g = even >= 4 ? 4 : 1;
    else if (s->g < most && !(n == 1 && even <= 2) && !flat) s->np = s->lanes / s->g;
    s->vs = sat_max(1, s->np / s->lanes);
    s->ga = flat ? s->lanes : s->g;
    s->gb = transposed && n == 1 ? 1 : s->np * s->g / s->vs;
    s->by = flat ? SK_FLAT : transposed ? SK_BY_COLUMNS : SK_BY_ROWS;
    s->rows_a_vec = flat ? s->lanes / along : transposed ? s->g : 1;
    s->lane_i = flat ? along : 1, s->lane_n = s->g, s->add = transposed ? 1 : s->g;
    s->rows = r->br / s->rows_a_vec, s->steps = transposed ? r->bc : r->bc / s->g;
    s->b_step = s->steps * s->gb * s->vs;
}

/* `vector_bytes` is the width that the kernels were compiled for. */
static inline sk_plan sk_make_plan(const sat_problem *p, const sat_pattern_view *a, int64_t vector_bytes) {
    sat_rows r = sat_op_rows(p, a);
    bool transposed = p->transpose == SAT_TRANSPOSE, narrow = sat_dtype_size(p->a_dtype) == 2;
    sk_plan s = {.real = p->compute_dtype == SAT_F64 ? 8 : 4, .edge = -1};
    int64_t grid_k = transposed ? a->grid_rows : a->grid_cols;
    s.lanes = vector_bytes / s.real;
    sk_plan_lanes(&s, &r, transposed, p->n);
    s.b_size = sk_round_up(grid_k * s.b_step, 16);
    if (r.k % r.bc) s.edge = grid_k - 1, s.edge_k = r.k % r.bc;
    s.part = sat_max(256, (a->stored_blocks + SK_PARTS - 1) / SK_PARTS);
    if ((transposed ? a->max_col : a->max_row) >= 2 * s.part) s.parts = a->stored_blocks / s.part + 1;
    s.far = a->stored_blocks * r.block_elements + s.b_size > SK_NEAR;
    s.sums = s.rows * s.vs * s.lanes;
    s.gather = sat_max(SK_GATHER, s.sums);
    s.sum_blocks = sat_part_blocks(s.steps);
    if ((transposed ? a->max_col : a->max_row) > s.sum_blocks) s.apart = s.sums;
    s.scratch = sk_round_up(narrow ? sat_max(SK_BATCH, r.block_elements) : s.edge >= 0 ? r.block_elements : 0, 16);
    return s;
}

/* ---- what the tuner asks ---- */

static inline bool sk_supports(const sat_variant *v, const sat_problem *p, const sat_device *d, uint32_t isa) {
    return (d->isa & isa) == isa && p->a_dtype == v->instance.dtype && p->n <= SK_MAX_N;
}

/* Streams the values; B is read once and packed. A step's arithmetic counts for all lanes, padded ones too. */
static inline double sk_estimate(const sat_problem *p, const sat_pattern_view *a, const sat_device *d, int64_t width) {
    if (p->n == 0) return 1e-6;
    sk_plan s = sk_make_plan(p, a, width);
    double used = (double)p->n * (double)(s.rows_a_vec * s.add) / (double)(s.lanes * s.vs);
    double packed = 2.0 * (double)(s.b_size * s.real) * (double)p->batch;
    return sat_roofline(d, p->compute_dtype, sat_flops(p, a), 0.5 * used, sat_bytes(p, a) + packed);
}

static inline size_t sk_workspace(const sat_problem *p, const sat_pattern_view *a, const sat_device *d, int64_t width) {
    if (p->n == 0) return 0;
    sk_plan s = sk_make_plan(p, a, width);
    return (size_t)((s.b_size + s.parts * s.sums + d->threads * (s.gather + s.apart + s.scratch)) * s.real);
}

/* Starting threads costs microseconds; a small product is done by fewer. */
static inline int sk_threads(const sat_launch *l) {
    double seconds = sat_bytes(l->problem, l->pattern) / 12e9 + sat_flops(l->problem, l->pattern) / 2e10;
    double useful = seconds / 4e-6 + 1;
    return useful < l->threads ? (int)useful : l->threads;
}

/* ---- dealing out block rows ---- */

/* A thread's share is an interval of the cost line, on which every block and every block row takes one unit. */
typedef struct sk_share {
    int64_t from, to, first_row;
} sk_share;

static inline int64_t sk_cost(const sat_rows *r, int64_t row) { return r->ptr[row] + row; }

static inline sk_share sk_deal(const sat_rows *r, int thread, int threads) {
    int64_t total = sk_cost(r, r->count), low = 0, high = r->count;
    sk_share s = {.from = total / threads * thread + sat_min(thread, total % threads)};
    s.to = s.from + total / threads + (thread < total % threads);
    while (high - low > 1) { /* the last row that begins at or before the share */
        int64_t middle = (low + high) / 2;
        if (sk_cost(r, middle) <= s.from) low = middle;
        else high = middle;
    }
    s.first_row = low;
    return s;
}

static inline bool sk_mine(const sk_share *s, int64_t at) { return at >= s->from && at < s->to; }

#endif
