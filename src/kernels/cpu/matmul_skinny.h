/* What the skinny families share, whatever their instruction set and element type: which inner kernel serves a shape,
 * what they answer to the tuner, and how block rows are dealt out to threads.
 *
 * A product with few columns reads every stored block once and does little with it, so the stream of blocks sets the
 * pace. The inner kernels (matmul_skinny_kernels.h, matmul_skinny_cols.h) only have to keep up with it; each suits
 * another shape. B is packed first, once, into the order that the chosen kernel reads.
 */
#ifndef SAT_MATMUL_SKINNY_H
#define SAT_MATMUL_SKINNY_H

#include <immintrin.h>
#include <omp.h>

#include "variant.h"

#define SK_INLINE static inline __attribute__((always_inline))

enum {
    SK_MAX_N = 16,
    SK_BATCH = 4096, /* elements of 16-bit values that are widened at a time: 16 KiB, half of a small L1 */
    SK_ROWS = 64,    /* rows of C that gather before they are written out */
    SK_PARTS = 64,   /* a block row with more than two shares in so many is cut, so that threads can share it */
};

typedef enum sk_kind {
    SK_SCALAR, /* blocks of one element, one column: a gather of B */
    SK_FLAT,   /* block columns a power of two below the vector: a vector spans whole rows of the block */
    SK_DOT,    /* a vector lies along one row of the block */
    SK_FLAT_T, /* the same two for transposed blocks, which lie in memory by columns */
    SK_DOT_T,
    SK_COLS, /* a vector lies along a row of B; right for every shape */
} sk_kind;

/* How one problem is computed. */
typedef struct sk_plan {
    sk_kind kind;
    int64_t np;     /* columns after padding */
    int64_t bcp;    /* by column: block columns after padding; else 0, and packed B is k x np row-major */
    int64_t b_size; /* elements of packed B, with room to read a vector past its end */
    int64_t part;   /* blocks of a share, see SK_PARTS */
    int64_t parts;  /* shares whose sums are kept apart; 0 when no row is cut */
    int64_t edge;   /* the block column that reaches beyond the matrix; -1: none */
    int64_t edge_k; /* its columns inside */
    int64_t real;   /* bytes of an element as computed */
    int64_t acc, scratch; /* elements of both of a thread's buffers */
} sk_plan;

static inline bool sk_power_of_two(int64_t x) { return (x & (x - 1)) == 0; }
static inline int64_t sk_round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

static inline sk_kind sk_choose(const sat_rows *r, bool transposed, int64_t n, int64_t lanes) {
    int64_t side = transposed ? r->br : r->bc; /* the one along memory */
    if (n == 1 && r->block_elements == 1) return SK_SCALAR;
    if (n > 4 || r->block_elements == 1) return SK_COLS;
    if (side >= lanes || !sk_power_of_two(side)) return transposed ? SK_DOT_T : SK_DOT;
    return transposed ? SK_FLAT_T : SK_FLAT;
}

/* `vector_bytes` is the width that the kernels were compiled for. */
static inline sk_plan sk_make_plan(const sat_problem *p, const sat_pattern_view *a, int64_t vector_bytes) {
    sat_rows r = sat_op_rows(p, a);
    bool transposed = p->transpose == SAT_TRANSPOSE;
    sk_plan s = {.real = p->compute_dtype == SAT_F64 ? 8 : 4, .edge = -1};
    int64_t lanes = vector_bytes / s.real, grid_k = transposed ? a->grid_rows : a->grid_cols;
    s.kind = sk_choose(&r, transposed, p->n, lanes);
    s.np = p->n <= 2 ? p->n : p->n <= 4 ? 4 : p->n <= 8 ? 8 : 16;
    if (s.kind == SK_COLS) s.np = sat_max(s.np, 4);
    if (s.kind == SK_FLAT || s.kind == SK_FLAT_T) s.bcp = r.bc;
    if (s.kind == SK_DOT) s.bcp = sk_round_up(r.bc, lanes);
    s.b_size = grid_k * s.np * (s.bcp ? s.bcp : r.bc) + 2 * lanes;
    if (r.k % r.bc) s.edge = grid_k - 1, s.edge_k = r.k % r.bc;
    s.part = sat_max(256, (a->stored_blocks + SK_PARTS - 1) / SK_PARTS);
    if ((transposed ? a->max_col : a->max_row) >= 2 * s.part) s.parts = a->stored_blocks / s.part + 1;
    s.acc = sk_round_up(sat_max(SK_ROWS, r.br) * s.np, 16);
    bool narrow = sat_dtype_size(p->a_dtype) == 2;
    s.scratch = sk_round_up(narrow ? sat_max(SK_BATCH, r.block_elements) : s.edge >= 0 ? r.block_elements : 0, 16);
    return s;
}

/* ---- what the tuner asks ---- */

static inline bool sk_supports(const sat_variant *v, const sat_problem *p, const sat_device *d, uint32_t isa) {
    return (d->isa & isa) == isa && p->a_dtype == v->instance.dtype && p->n <= SK_MAX_N;
}

/* Streams the values; B is read once and packed; the arithmetic of the narrow loops reaches half of the peak. */
static inline double sk_estimate(const sat_problem *p, const sat_pattern_view *a, const sat_device *d, int64_t width) {
    if (p->n == 0) return 1e-6;
    sk_plan s = sk_make_plan(p, a, width);
    double packed = 2.0 * (double)(s.b_size * s.real), padded = (double)s.np / (double)p->n;
    double lanes = (double)sat_min(s.np * s.real, width) / (double)width;
    double efficiency = s.kind == SK_COLS ? 0.5 * lanes / padded : 0.35 / padded;
    return sat_roofline(d, p->compute_dtype, sat_flops(p, a), efficiency, sat_bytes(p, a) + packed * (double)p->batch);
}

static inline size_t sk_workspace(const sat_problem *p, const sat_pattern_view *a, const sat_device *d, int64_t width) {
    if (p->n == 0) return 0;
    sk_plan s = sk_make_plan(p, a, width);
    int64_t br = sat_op_rows(p, a).br;
    int64_t elements = sk_round_up(s.b_size, 16) + s.parts * sk_round_up(br * s.np, 16) + d->threads * (s.acc + s.scratch);
    return (size_t)(elements * s.real);
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
