/* What the matmul with the dense matrix on the left needs beside its loops, the same for every instruction set. A
 * family defines VECTOR_BYTES (common/vector.h) before it. */
#ifndef SAT_MATMUL_LEFT_PLAN_H
#define SAT_MATMUL_LEFT_PLAN_H

#include <omp.h>

#include "kernels/cpu/common/vector.h"

enum { LEFT_COLUMNS = 8, LEFT_VECTORS = 3 }; /* of a tile */

#define LEFT_TILES(X)                                                                                                  \
    X(1, 1)                                                                                                            \
    X(1, 2)                                                                                                            \
    X(1, 3)                                                                                                            \
    X(2, 1)                                                                                                            \
    X(2, 2)                                                                                                            \
    X(2, 3)                                                                                                            \
    X(3, 1)                                                                                                            \
    X(3, 2)                                                                                                            \
    X(3, 3)                                                                                                            \
    X(4, 1)                                                                                                            \
    X(4, 2) X(4, 3) X(5, 1) X(5, 2) X(5, 3) X(6, 1) X(6, 2) X(6, 3) X(7, 1) X(7, 2) X(7, 3) X(8, 1) X(8, 2) X(8, 3)

/* ---- the share of a thread ---- */

/* A unit is a block row times a strip of columns; they go by strip, then by block row. Where a thread's units begin:
 * each counts as its blocks, and one more. */
static inline int64_t left_first_unit(const sat_rows *r, int64_t strips, int thread, int threads) {
    const int64_t each = r->ptr[r->count] + r->count;
    const double target = (double)each * (double)strips * thread / threads;
    const int64_t strip = sat_min(strips, (int64_t)(target / (double)each));
    const int64_t rest = (int64_t)(target - (double)strip * (double)each);
    int64_t low = 0, high = r->count;
    if (thread == threads || strip == strips) return strips * r->count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (r->ptr[middle] + middle < rest) low = middle + 1;
        else high = middle;
    }
    return strip * r->count + low;
}

/* ---- what the tuner asks ---- */

static bool left_supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const sat_dtype t = v->instance.dtype;
    if ((d->isa & VECTOR_ISA) != VECTOR_ISA || !sat_transposed(p) || p->b.row_stride != 1 || p->c.row_stride != 1)
        return false;
    if (p->a_dtype != t || p->b_dtype != t || p->c_dtype != t || p->compute_dtype != t) return false;
    return 2 * a->block_cols * (int64_t)sat_dtype_size(t) >= VECTOR_BYTES; /* else most lanes would be idle */
}

/* Lanes and columns of a tile count whole; a tile of few columns waits for its loads. */
static double left_estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                            const sat_device *d) {
    (void)v;
    const int64_t lanes = VECTOR_BYTES / (int64_t)sat_dtype_size(p->a_dtype), bc = a->block_cols;
    const int64_t whole = (bc + lanes - 1) / lanes * lanes;
    const double used = (double)bc / (double)whole, n = (double)p->n;
    return sat_roofline(d, p->compute_dtype, sat_flops(p, a), 0.7 * used * (n + 1) / (n + 4), sat_bytes(p, a));
}

#define LEFT_FAMILY(words)                                                                                             \
    {                                                                                                                  \
        .revision = "1", .op = SAT_MATMUL, .backend = SAT_CPU, .about = words, .supports = left_supports,              \
        .estimate = left_estimate, .launch = launch                                                                    \
    }

#endif
