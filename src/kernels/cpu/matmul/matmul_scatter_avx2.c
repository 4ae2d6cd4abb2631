// cpu_matmul_scatter_avx2: A^T times 1 to 16 columns: streams the blocks as they are stored and adds to rows of C. Good
// for small blocks, CSR matrices among them, and few rows in X*A. AVX-512 is no faster where this wins.

#define VECTOR_BYTES 32
#include "kernels/cpu/common/widen.h"

#include <omp.h>

enum {
    SCATTER_MAX_N = 16,
    SCATTER_SLICES = 32,  /* of the depth, at most where sums are short */
    SCATTER_WIDEN = 4096, /* 16-bit values that are widened at a time */
};

static const double SCATTER_MOST_SUMS = 1e12; /* elements: more would fit into no machine */

/* ---- the shape of the work ---- */

typedef struct scatter_shape {
    int64_t np;         /* elements of a row of sums: columns, rounded up to what a vector takes */
    int64_t slices;     /* of the depth; each has sums of its own */
    int64_t slice_rows; /* its block rows of A; 0: slices have equally many blocks */
    int64_t sums;       /* elements of a slice's sums, with room for a vector past the end */
    int64_t panel;      /* elements of a thread's rows of B, */
    int64_t widened;    /* and of its widened values */
} scatter_shape;

/* Slices depend on the pattern alone, so that the result is the same for any number of threads. Zeroing them and
 * adding them up takes a sixth of the product at most, but for two slices, so that two threads have work. Their number
 * is even; none is deeper than a part of a sum. */
static inline scatter_shape scatter_shape_of(const sat_problem *p, const sat_pattern_view *a) {
    scatter_shape s = {.np = p->n <= 2 ? p->n : p->n <= 4 ? 4 : p->n <= 8 ? 8 : 16};
    const int64_t stored = a->stored_blocks * a->block_rows * a->block_cols, m = sat_max(1, p->m);
    const int64_t most = sat_min(SCATTER_SLICES, sat_min(stored / (24 * m), a->stored_blocks / 4) / 2 * 2);
    const int64_t wanted = stored < 4 * m || a->stored_blocks < 2 ? 1 : sat_max(2, most);
    s.slices = wanted;
    if (a->grid_rows > SAT_SUM_PART / a->block_rows) {
        s.slice_rows = sat_max(1, sat_min((a->grid_rows + wanted - 1) / wanted, SAT_SUM_PART / a->block_rows));
        s.slices = (a->grid_rows + s.slice_rows - 1) / s.slice_rows;
    }
    s.sums = (p->m * s.np + 31) / 16 * 16;
    s.panel = (a->block_rows * s.np + 15) / 16 * 16;
    if (sat_dtype_size(p->a_dtype) == 2) s.widened = sat_max(SCATTER_WIDEN, a->block_rows * a->block_cols);
    return s;
}

/* Blocks [begin, end), the first of them in block row `row`. */
typedef struct scatter_slice {
    int64_t begin, end, row;
} scatter_slice;

static inline scatter_slice scatter_slice_of(const scatter_shape *s, const sat_pattern_view *a, int64_t i) {
    if (s->slice_rows) {
        const int64_t row = i * s->slice_rows;
        return (scatter_slice){a->row_ptr[row], a->row_ptr[sat_min(a->grid_rows, row + s->slice_rows)], row};
    }
    const int64_t part = a->stored_blocks / s->slices, rest = a->stored_blocks % s->slices;
    scatter_slice found = {.begin = i * part + sat_min(i, rest)};
    found.end = found.begin + part + (i < rest);
    int64_t low = 0, high = a->grid_rows;
    while (high - low > 1) { /* the last row that begins at or before the slice */
        const int64_t middle = (low + high) / 2;
        if (a->row_ptr[middle] <= found.begin) low = middle;
        else high = middle;
    }
    found.row = low;
    return found;
}

/* ---- kernels ---- */

#define FN(x)             x##_f32
#define SCATTER_WIDTH(np) ((np) < lanes_f32 ? (np) : lanes_f32)
#include "matmul_scatter.h"

#define FN(x)             x##_f64
#define SCATTER_WIDTH(np) ((np) < lanes_f64 ? (np) : lanes_f64)
#include "matmul_scatter.h"

static sat_status launch(const sat_launch *l) {
    if (l->problem->n == 0 || l->problem->m == 0) return SAT_OK;
    return l->problem->compute_dtype == SAT_F64 ? scatter_launch_f64(l) : scatter_launch_f32(l);
}

/* ---- what the tuner asks ---- */

static bool scatter_supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                             const sat_device *d) {
    if ((d->isa & VECTOR_ISA) != VECTOR_ISA || p->a_dtype != v->instance.dtype) return false;
    if (!sat_transposed(p) || p->n > SCATTER_MAX_N || a->block_rows > SAT_SUM_PART) return false;
    const scatter_shape s = scatter_shape_of(p, a);
    return (double)s.slices * (double)s.sums < SCATTER_MOST_SUMS;
}

/* Values are read once; the sums of a slice are zeroed, read and written where blocks are, and added up. */
static double scatter_estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                               const sat_device *d) {
    (void)v;
    if (p->n == 0) return 1e-6;
    const scatter_shape s = scatter_shape_of(p, a);
    const double size = p->compute_dtype == SAT_F64 ? 8 : 4, lanes = VECTOR_BYTES / size;
    const double used = p->n == 1 ? sat_min(a->block_cols, (int64_t)lanes) / lanes : (double)p->n / (double)s.np;
    const double sums = 3 * size * (double)s.slices * (double)s.sums * (double)p->batch;
    return sat_roofline(d, p->compute_dtype, sat_flops(p, a), 0.25 * used, sat_bytes(p, a) + sums);
}

static size_t scatter_workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                                const sat_device *d) {
    (void)v;
    if (p->n == 0) return 0;
    const scatter_shape s = scatter_shape_of(p, a);
    return (size_t)(s.slices * s.sums + d->threads * (s.panel + s.widened)) * (p->compute_dtype == SAT_F64 ? 8 : 4);
}

SAT_FAMILY(cpu_matmul_scatter_avx2) = {
    .revision = "3",
    .op = SAT_MATMUL,
    .backend = SAT_CPU,
    .flags = SAT_V_SCRATCH | SAT_V_DYNAMIC,
    .about = "A^T times 1 to 16 vectors: streams the blocks and adds to rows of C (AVX2)",
    .supports = scatter_supports,
    .estimate = scatter_estimate,
    .workspace = scatter_workspace,
    .launch = launch,
};
