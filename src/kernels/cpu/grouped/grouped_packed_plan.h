/* The plan of the packed products of groups. The same for every instruction set. Both operations are products
 * C[g] = A[g]*B[g] of dense matrices, one for each group:
 *   grouped        A is X's rows of the group, B is W[g], C is Y's rows of the group
 *   its weights    A is X's rows of the group transposed, B is Z's rows of the group, C is the gradient of W[g]
 *
 * C is cut into tasks of at most GROUPED_ROWS x GROUPED_COLUMNS. A task goes over the depth in chunks: it packs (and
 * widens, where they are 16-bit) its part of A as rows along the depth, and its part of B as panels [depth][lanes],
 * into buffers of its thread, and adds what tiles of registers sum up to sums that stay in the cache. Sums of a chunk
 * begin at zero, so that long ones lose no digits. `direct` reads B in place where its rows have no gaps between
 * columns: good for few rows, which do not pay for packing. Nothing depends on the number of threads.
 *
 * A family defines VECTOR_BYTES (common/vector.h) before it, and GROUPED_PEAK, what tiles reach of the device's rate.
 */
#ifndef SAT_GROUPED_PACKED_PLAN_H
#define SAT_GROUPED_PACKED_PLAN_H

#include <omp.h>

#include "groups.h"

enum { GROUPED_ROWS = 96, GROUPED_COLUMNS = 256, GROUPED_CHUNK = 1024 /* bytes along the depth */ };
enum { GROUPED_DIRECT = 1 }; /* sat_instance.option */

/* ---- how a launch is cut ---- */

typedef struct grouped_job {
    const sat_launch *l;
    const sat_problem *p;
    bool weights, direct;
    int64_t products;    /* groups, and of Y the rows behind the last one, which are a product without depth */
    int64_t across;      /* tasks side by side */
    int64_t *offsets;    /* without faults */
    int64_t *first_task; /* of each product, and how many there are */
    char *buffers;
} grouped_job;

/* One of the products. Element (i, k) of A is a[i*a_row + k*a_depth]. */
typedef struct grouped_product {
    int64_t rows, depth, a_row, a_depth;
    const void *a, *b, *bias;
    void *c;
} grouped_product;

static inline int64_t grouped_ceil(int64_t x, int64_t y) { return (x + y - 1) / y; }
static inline size_t grouped_lines(double bytes) { return ((size_t)bytes + 63) / 64 * 64; }

static grouped_product grouped_product_of(const grouped_job *j, int64_t g) {
    const sat_problem *p = j->p;
    void *const *operands = j->l->operands;
    bool group = g < p->grouped.groups;
    int64_t first = j->offsets[g], end = group ? j->offsets[g + 1] : p->m;
    const void *x = sat_at(p->a_dtype, operands[0], first * p->a.row_stride);
    if (j->weights)
        return (grouped_product){.rows = p->k,
                                 .depth = end - first,
                                 .a = x,
                                 .a_row = p->a.col_stride,
                                 .a_depth = p->a.row_stride,
                                 .b = sat_at(p->b_dtype, operands[1], first * p->b.row_stride),
                                 .c = sat_at(p->c_dtype, operands[2], g * p->c.batch_stride)};
    return (grouped_product){.rows = end - first,
                             .depth = group ? p->k : 0,
                             .a = x,
                             .a_row = p->a.row_stride,
                             .a_depth = p->a.col_stride,
                             .b = group ? sat_at(p->b_dtype, operands[1], g * p->b.batch_stride) : NULL,
                             .c = sat_at(p->c_dtype, operands[2], first * p->c.row_stride),
                             .bias = group && p->grouped.bias ? sat_at(p->c_dtype, operands[4], g * p->n) : NULL};
}

/* The product of a task: the last whose first task is at or before it, passing over those without one. */
static int64_t grouped_product_of_task(const grouped_job *j, int64_t task) {
    int64_t low = 0, high = j->products - 1;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (j->first_task[middle] <= task) low = middle;
        else high = middle - 1;
    }
    return low;
}

static size_t grouped_lists(const sat_problem *p) {
    return grouped_lines((double)(2 * p->grouped.groups + 4) * sizeof(int64_t));
}

/* ---- buffers of a thread, in elements: rows of A, panels of B, sums ---- */

typedef struct grouped_sizes {
    int64_t element, lanes; /* bytes of what is multiplied and summed; of a vector */
    int64_t chunk, pitch;   /* steps of the depth at a time; from row to row of A */
    int64_t panel, width;   /* from panel to panel of B; from row to row of the sums */
    size_t bytes;           /* of all three, and of a line of biases */
} grouped_sizes;

static grouped_sizes grouped_sizes_of(const sat_problem *p) {
    int64_t element = p->compute_dtype == SAT_F64 ? 8 : 4, line = 64 / element;
    grouped_sizes s = {.element = element, .lanes = VECTOR_BYTES / element, .chunk = GROUPED_CHUNK / element};
    s.pitch = s.chunk + line; /* a line more, or powers of two would share cache sets */
    s.panel = s.chunk * s.lanes + line;
    s.width = grouped_ceil(sat_min(GROUPED_COLUMNS, sat_max(1, p->n)), s.lanes) * s.lanes;
    int64_t elements = GROUPED_ROWS * s.pitch + s.width / s.lanes * s.panel + (GROUPED_ROWS + 1) * s.width;
    s.bytes = grouped_lines((double)(element * elements));
    return s;
}

static void grouped_open(grouped_job *j, const sat_launch *l) {
    const sat_problem *p = l->problem;
    *j = (grouped_job){.l = l, .p = p, .weights = p->op == SAT_GROUPED_WEIGHTS};
    j->direct = l->variant->instance.option == GROUPED_DIRECT;
    j->products = p->grouped.groups + !j->weights;
    j->across = grouped_ceil(p->n, GROUPED_COLUMNS);
    j->offsets = l->workspace, j->first_task = j->offsets + p->grouped.groups + 1;
    j->buffers = (char *)l->workspace + grouped_lists(p);
    (void)sat_groups_take(p, l->operands[3], j->offsets);
    j->first_task[0] = 0;
    for (int64_t g = 0; g < j->products; g++)
        j->first_task[g + 1] = j->first_task[g] + grouped_ceil(grouped_product_of(j, g).rows, GROUPED_ROWS) * j->across;
}

/* ---- what the tuner asks ---- */

static bool grouped_supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                             const sat_device *d) {
    (void)a;
    bool as_is = sat_dtype_size(p->b_dtype) == sat_dtype_size(p->compute_dtype);
    if (v->instance.option == GROUPED_DIRECT && !(as_is && p->b.col_stride == 1)) return false;
    return (d->isa & VECTOR_ISA) == VECTOR_ISA;
}

/* Packing writes and reads B once more for every strip of rows; tiles that are not full compute less. */
static double grouped_estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                               const sat_device *d) {
    bool weights = p->op == SAT_GROUPED_WEIGHTS;
    double m = (double)p->m, n = (double)p->n, k = (double)p->k, groups = (double)sat_max(1, p->grouped.groups);
    double rows = weights ? k : fmax(1, m / groups), depth = weights ? fmax(1, m / groups) : k, size = VECTOR_BYTES;
    double strips = groups * ceil(rows / GROUPED_ROWS), packed = strips * depth * n * 8;
    double full = fmin(1, rows / (double)v->instance.tile_m) * n / (ceil(n * 4 / size) * size / 4);
    double compute = 2 * m * n * k / (d->flop_rate[p->compute_dtype] * GROUPED_PEAK(d) * 0.85 * (0.2 + 0.8 * full));
    double bytes = m * k * (double)sat_dtype_size(p->a_dtype) + m * n * (double)sat_dtype_size(p->c_dtype) +
                   fmin(groups, m) * k * n * (double)sat_dtype_size(p->b_dtype);
    (void)a;
    if (v->instance.option != GROUPED_DIRECT) compute += packed / (40e9 * (double)sat_max(1, d->threads));
    return fmax(compute, bytes / d->memory_rate) + 3e-6;
}

static size_t grouped_workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                                const sat_device *d) {
    (void)v, (void)a;
    return grouped_lists(p) + (size_t)sat_max(1, d->threads) * grouped_sizes_of(p).bytes;
}

#define GROUPED_FAMILY(operation, words)                                                                               \
    {                                                                                                                  \
        .revision = "1", .op = operation, .backend = SAT_CPU, .flags = SAT_V_SCRATCH, .about = words,                  \
        .supports = grouped_supports, .estimate = grouped_estimate, .workspace = grouped_workspace, .launch = launch   \
    }

#endif
