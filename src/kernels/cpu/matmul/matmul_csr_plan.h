/* What the CSR matmul needs beside its loops, the same for every instruction set. A family defines VECTOR_BYTES
 * (common/vector.h) before it. */
#ifndef SAT_MATMUL_CSR_PLAN_H
#define SAT_MATMUL_CSR_PLAN_H

#include "kernels/cpu/common/csr.h"

enum {
    CSR_ROWS = 16, /* of sums that are computed, and stored, together */
#if VECTOR_BYTES == 64
    CSR_VECTORS = 8,
#else
    CSR_VECTORS = 6,
#endif
};

#if VECTOR_BYTES == 64
#define CSR_WIDTHS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
#else
#define CSR_WIDTHS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#endif

#define CSR_SIDE(vectors) ((vectors) <= 2 ? 4 : 4 * (vectors) <= 3 * CSR_VECTORS ? 2 : 1) /* entries side by side */

/* ---- the shape of the work ---- */

typedef struct csr_shape {
    bool copies;   /* of B */
    int64_t width; /* as in the job */
    int64_t b_stride, b_elements;
} csr_shape;

static inline csr_shape csr_shape_of(const sat_problem *p, const sat_pattern_view *a) {
    sat_rows r = sat_op_rows(p, a);
    int64_t lanes = VECTOR_BYTES / (p->compute_dtype == SAT_F64 ? 8 : 4);
    csr_shape s = {.width = (p->n + lanes - 1) / lanes * lanes};
    s.copies = p->b_dtype != p->compute_dtype || (p->n == 1 ? p->b.row_stride != 1 : p->b.col_stride != 1);
    s.b_stride = p->n == 1 ? 1 : s.width;
    s.b_elements = s.copies ? (r.k * s.b_stride + 15) / 16 * 16 : 0;
    return s;
}

/* ---- what the tuner asks ---- */

/* Rows are computed one by one: blocks with more of them have better kernels. */
static bool csr_supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    if ((d->isa & VECTOR_ISA) != VECTOR_ISA || p->a_dtype != v->instance.dtype || r.br > 8) return false;
    return r.k <= INT32_MAX && ((double)r.k + CSR_ROWS * d->threads) * (double)p->n < CSR_MOST_COPIED;
}

static double csr_estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    if (p->n == 0) return 1e-6;
    csr_shape s = csr_shape_of(p, a);
    double used = p->n == 1 ? 0.25 : (double)p->n / (double)s.width;
    double size = p->compute_dtype == SAT_F64 ? 8 : 4, copy = 3 * size * (double)s.b_elements * (double)p->batch;
    return sat_roofline(d, p->compute_dtype, sat_flops(p, a), 0.25 * used, sat_bytes(p, a) + copy);
}

static size_t csr_workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                            const sat_device *d) {
    (void)v;
    if (p->n == 0) return 0;
    csr_shape s = csr_shape_of(p, a);
    return (size_t)(s.b_elements + d->threads * CSR_ROWS * s.width) * (p->compute_dtype == SAT_F64 ? 8 : 4);
}

#define CSR_FAMILY(words)                                                                                              \
    {                                                                                                                  \
        .revision = "3", .op = SAT_MATMUL, .backend = SAT_CPU, .flags = SAT_V_SCRATCH | SAT_V_DYNAMIC, .about = words, \
        .supports = csr_supports, .estimate = csr_estimate, .workspace = csr_workspace, .launch = launch               \
    }

#endif
