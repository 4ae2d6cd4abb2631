/* The skinny matmul's plan: how the lanes of a vector are split, what is widened, how block rows are shared among
 * threads, and what the tuner asks. The same for every instruction set.
 *
 * A product with few columns reads every stored block once and does little with it, so memory sets the pace and the
 * micro-kernel only has to keep up. Values are not packed. With n columns, padded to a power of two, the lanes of a
 * vector are split among columns and g neighbours in the block's memory:
 *
 *   A not transposed:   lane (n, j) sums column k+j of a row of A times B(k+j, n); the g lanes are added up at the end
 *   A transposed:       lane (n, j) sums row i+j of op(A) times B(k, n)
 *   one column, and rows of a block shorter than a vector: a vector takes whole rows of the block; lane (i, j)
 *   up to four columns, where the block's width suits none of these: a vector for each column; lane j sums columns
 *   k+j of a row of A, and the last vector of a row is not full
 *
 * so that a step is always: repeat a few elements of A over a vector, the same with B, multiply and add. B is packed
 * once, in the order in which the steps read it. A family defines VECTOR_BYTES (common/vector.h) before it. */
#ifndef SAT_MATMUL_SKINNY_PLAN_H
#define SAT_MATMUL_SKINNY_PLAN_H

#include "kernels/cpu/common/widen.h"

enum {
    SKINNY_MAX_N = 16,
    SKINNY_MOST_PARTIAL = 4,   /* columns that have vectors of their own */
    SKINNY_WIDEN = 4096,       /* 16-bit values that are widened at a time: 16 KiB, half of a small L1 */
    SKINNY_PENDING = 1024,     /* sums that wait before they are stored to C */
    SKINNY_L2 = 1 << 18,       /* elements of values and B that stay within a core's L2 */
    SKINNY_SLICES = 64,        /* a row with two of so many equal slices of all blocks is split among threads */
    SKINNY_AHEAD = 12,         /* blocks by which B is prefetched, */
    SKINNY_AHEAD_BYTES = 8192, /* bytes by which values are, */
    SKINNY_AHEAD_SMALL = 2048, /* and those of small blocks */
};

/* The order in which the micro-kernel reads a block; flat: a vector spans whole rows; partial: by rows, the last vector
 * of which is not full. */
typedef enum skinny_order { BY_ROWS, BY_COLUMNS, FLAT, PARTIAL } skinny_order;

static const double SKINNY_PARTIAL_GAIN = 1.3; /* of lanes used: adding them up costs more */

/* How one problem is computed. */
typedef struct skinny_plan {
    int64_t lanes, real; /* of a vector, and bytes of an element as computed */
    int64_t np, g;       /* columns after padding, and lanes of each */
    int64_t ga, gb, vs;  /* what the kernel repeats of A and of B, and vectors of B */
    skinny_order by;
    int64_t rows_a_vec;           /* rows of C that share a vector of sums */
    int64_t rows, steps, b_step;  /* as in the kernel's run */
    int64_t add;                  /* neighbouring lanes that make one sum */
    int64_t b_size;               /* elements of packed B, with room to read a vector past its end */
    int64_t slice_blocks, slices; /* blocks of a slice of a split row, see SKINNY_SLICES; slices in all, 0: no split */
    int64_t part_blocks;          /* blocks of a row that are summed together: see SAT_SUM_PART */
    int64_t together;             /* blocks that are multiplied by one call: all, or as many as are widened together */
    bool beyond_l2;               /* values and B exceed L2, so that prefetching pays */
    int64_t edge, edge_k;         /* the ragged block column (-1: none), and its columns inside the matrix */
    /* Elements of a block row's sums, and of a thread's buffers: pending rows, a part of a long sum, widened values. */
    int64_t sums, pending, part_sums, scratch;
} skinny_plan;

static inline int64_t skinny_round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

/* A vector for each column, if that leaves fewer lanes unused than what is planned. */
static inline void skinny_plan_partial(skinny_plan *s, const sat_rows *r, int64_t n) {
    const int64_t steps = (r->bc + s->lanes - 1) / s->lanes;
    const double planned = (double)(n * s->g) / (double)(s->lanes * s->vs),
                 used = (double)r->bc / (double)(steps * s->lanes);
    if (n > SKINNY_MOST_PARTIAL || used < SKINNY_PARTIAL_GAIN * planned) return;
    s->np = s->vs = n, s->g = s->ga = s->gb = s->add = s->lanes;
    s->by = PARTIAL, s->steps = steps;
}

/* Lanes are filled where the block's side allows. Where it does not, columns are padded further; but for a single
 * column B stays as small as it is and its elements are repeated: only so many splits are worth a kernel. */
static inline void skinny_plan_lanes(skinny_plan *s, const sat_rows *r, bool transposed, int64_t n) {
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
    s->by = flat ? FLAT : transposed ? BY_COLUMNS : BY_ROWS;
    s->rows_a_vec = flat ? s->lanes / along : transposed ? s->g : 1;
    s->add = transposed ? 1 : s->g;
    s->rows = r->br / s->rows_a_vec, s->steps = transposed ? r->bc : r->bc / s->g;
    if (!transposed && !flat) skinny_plan_partial(s, r, n);
    s->b_step = s->steps * s->gb * s->vs;
}

/* The splits that skinny_plan_lanes makes of 4, 8 and 16 lanes: X(ga, gb, vs, by) as in the plan. */
// clang-format off
#define SKINNY_SPLITS_4(X)                                                                                             \
    X(1, 1, 1, BY_COLUMNS) X(1, 4, 1, BY_COLUMNS) X(1, 4, 2, BY_COLUMNS) X(1, 4, 4, BY_COLUMNS) X(2, 4, 1, BY_COLUMNS) \
    X(4, 1, 1, BY_COLUMNS) X(1, 1, 1, BY_ROWS) X(1, 4, 1, BY_ROWS) X(1, 4, 2, BY_ROWS) X(1, 4, 4, BY_ROWS)             \
    X(2, 2, 1, BY_ROWS) X(2, 4, 1, BY_ROWS) X(4, 4, 1, BY_ROWS) X(4, 1, 1, FLAT) X(4, 2, 1, FLAT) \
    X(4, 4, 1, PARTIAL) X(4, 4, 2, PARTIAL) X(4, 4, 3, PARTIAL) X(4, 4, 4, PARTIAL)
#define SKINNY_SPLITS_8(X)                                                                                             \
    X(1, 1, 1, BY_COLUMNS) X(1, 8, 1, BY_COLUMNS) X(1, 8, 2, BY_COLUMNS) X(2, 8, 1, BY_COLUMNS) X(4, 1, 1, BY_COLUMNS) \
    X(4, 8, 1, BY_COLUMNS) X(8, 1, 1, BY_COLUMNS) X(1, 1, 1, BY_ROWS) X(1, 8, 1, BY_ROWS) X(1, 8, 2, BY_ROWS)          \
    X(2, 2, 1, BY_ROWS) X(2, 8, 1, BY_ROWS) X(4, 8, 1, BY_ROWS) X(8, 8, 1, BY_ROWS) X(8, 1, 1, FLAT) X(8, 2, 1, FLAT)  \
    X(8, 4, 1, FLAT) \
    X(8, 8, 1, PARTIAL) X(8, 8, 2, PARTIAL) X(8, 8, 3, PARTIAL) X(8, 8, 4, PARTIAL)
#define SKINNY_SPLITS_16(X)                                                                                            \
    X(1, 1, 1, BY_COLUMNS) X(1, 16, 1, BY_COLUMNS) X(2, 16, 1, BY_COLUMNS) X(4, 1, 1, BY_COLUMNS)                      \
    X(4, 16, 1, BY_COLUMNS) X(8, 16, 1, BY_COLUMNS) X(16, 1, 1, BY_COLUMNS) X(1, 1, 1, BY_ROWS) X(1, 16, 1, BY_ROWS)   \
    X(2, 2, 1, BY_ROWS) X(2, 16, 1, BY_ROWS) X(4, 16, 1, BY_ROWS) X(8, 16, 1, BY_ROWS) X(16, 16, 1, BY_ROWS)           \
    X(16, 1, 1, FLAT) X(16, 2, 1, FLAT) X(16, 4, 1, FLAT) X(16, 8, 1, FLAT) \
    X(16, 16, 1, PARTIAL) X(16, 16, 2, PARTIAL) X(16, 16, 3, PARTIAL) X(16, 16, 4, PARTIAL)
// clang-format on

#define SKINNY_SPLITS FN(skinny_splits) /* those of the element type at hand */
#if VECTOR_BYTES == 32
#define skinny_splits_f32 SKINNY_SPLITS_8
#define skinny_splits_f64 SKINNY_SPLITS_4
#else
#define skinny_splits_f32 SKINNY_SPLITS_16
#define skinny_splits_f64 SKINNY_SPLITS_8
#endif

static inline skinny_plan skinny_make_plan(const sat_problem *p, const sat_pattern_view *a) {
    sat_rows r = sat_op_rows(p, a);
    bool transposed = p->matmul.transpose == SAT_TRANSPOSE, narrow = sat_dtype_size(p->a_dtype) == 2;
    skinny_plan s = {.real = p->compute_dtype == SAT_F64 ? 8 : 4, .edge = -1};
    int64_t grid_k = transposed ? a->grid_rows : a->grid_cols;
    s.lanes = VECTOR_BYTES / s.real;
    skinny_plan_lanes(&s, &r, transposed, p->n);
    s.b_size = skinny_round_up(grid_k * s.b_step, 16);
    if (r.k % r.bc) s.edge = grid_k - 1, s.edge_k = r.k % r.bc;
    s.slice_blocks = sat_max(256, (a->stored_blocks + SKINNY_SLICES - 1) / SKINNY_SLICES);
    if ((transposed ? a->max_col : a->max_row) >= 2 * s.slice_blocks) s.slices = a->stored_blocks / s.slice_blocks + 1;
    s.beyond_l2 = a->stored_blocks * r.block_elements + s.b_size > SKINNY_L2;
    s.sums = s.rows * s.vs * s.lanes;
    s.pending = sat_max(SKINNY_PENDING, s.sums);
    s.part_blocks = sat_part_blocks(s.steps);
    s.together = narrow ? sat_max(1, SKINNY_WIDEN / r.block_elements) : INT64_MAX;
    if ((transposed ? a->max_col : a->max_row) > s.part_blocks) s.part_sums = s.sums;
    s.scratch = skinny_round_up(narrow        ? sat_max(SKINNY_WIDEN, r.block_elements)
                                : s.edge >= 0 ? r.block_elements
                                              : 0,
                                16);
    return s;
}

/* ---- sharing block rows ---- */

/* A thread's share is an interval of the total cost, to which every block and every block row adds one unit. */
typedef struct skinny_share {
    int64_t from, to, first_row;
} skinny_share;

static inline int64_t skinny_cost(const sat_rows *r, int64_t row) { return r->ptr[row] + row; }

static inline skinny_share skinny_share_of(const sat_rows *r, int thread, int threads) {
    int64_t total = skinny_cost(r, r->count), low = 0, high = r->count;
    skinny_share s = {.from = total / threads * thread + sat_min(thread, total % threads)};
    s.to = s.from + total / threads + (thread < total % threads);
    while (high - low > 1) { /* the last row that begins at or before the share */
        int64_t middle = (low + high) / 2;
        if (skinny_cost(r, middle) <= s.from) low = middle;
        else high = middle;
    }
    s.first_row = low;
    return s;
}

static inline bool skinny_in_share(const skinny_share *s, int64_t at) { return at >= s->from && at < s->to; }

/* Starting threads costs microseconds; a small product is done by fewer. */
static inline int skinny_threads(const sat_launch *l) {
    double seconds = sat_bytes(l->problem, l->pattern) / 12e9 + sat_flops(l->problem, l->pattern) / 2e10;
    double useful = seconds / 4e-6 + 1;
    return useful < l->threads ? (int)useful : l->threads;
}

/* ---- what the tuner asks ---- */

static bool skinny_supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                            const sat_device *d) {
    (void)a;
    return (d->isa & VECTOR_ISA) == VECTOR_ISA && p->a_dtype == v->instance.dtype && p->n <= SKINNY_MAX_N;
}

/* Values and B are read once, B is packed. A step's arithmetic counts for all lanes, padded ones too. */
static double skinny_estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                              const sat_device *d) {
    (void)v;
    if (p->n == 0) return 1e-6;
    skinny_plan s = skinny_make_plan(p, a);
    double used = (double)p->n * (double)(s.rows_a_vec * s.add) / (double)(s.lanes * s.vs);
    if (s.by == PARTIAL) used = (double)sat_op_rows(p, a).bc / (double)(s.steps * s.lanes);
    double packed = 2.0 * (double)(s.b_size * s.real) * (double)p->batch;
    return sat_roofline(d, p->compute_dtype, sat_flops(p, a), 0.5 * used, sat_bytes(p, a) + packed);
}

static size_t skinny_workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                               const sat_device *d) {
    (void)v;
    if (p->n == 0) return 0;
    skinny_plan s = skinny_make_plan(p, a);
    return (size_t)((s.b_size + s.slices * s.sums + d->threads * (s.pending + s.part_sums + s.scratch)) * s.real);
}

#define SKINNY_FAMILY(words)                                                                                           \
    {                                                                                                                  \
        .revision = "2", .op = SAT_MATMUL, .backend = SAT_CPU, .flags = SAT_V_SCRATCH | SAT_V_DYNAMIC, .about = words, \
        .supports = skinny_supports, .estimate = skinny_estimate, .workspace = skinny_workspace, .launch = launch      \
    }

#endif
