/* What the sampled product by single elements needs beside its loops, the same for every instruction set. A family
 * defines VECTOR_BYTES (common/vector.h) before it. */
#ifndef SAT_SAMPLED_CSR_PLAN_H
#define SAT_SAMPLED_CSR_PLAN_H

#include "kernels/cpu/common/csr.h"

enum {
#if VECTOR_BYTES == 64
    CSR_VECTORS = 16, /* of a line, in registers */
#else
    CSR_VECTORS = 8,
#endif
};

#if VECTOR_BYTES == 64
#define CSR_WIDTHS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16)
#else
#define CSR_WIDTHS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
#endif

/* ---- the shape of the work ---- */

typedef struct csr_shape {
    int64_t depth, x_elements, y_elements;
} csr_shape;

static inline csr_shape csr_shape_of(const sat_problem *p) {
    int64_t lanes = VECTOR_BYTES / (p->compute_dtype == SAT_F64 ? 8 : 4);
    csr_shape s = {.depth = (p->k + lanes - 1) / lanes * lanes};
    s.x_elements = p->m * s.depth, s.y_elements = p->n * s.depth;
    return s;
}

/* ---- what the tuner asks ---- */

static bool csr_supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    if ((d->isa & VECTOR_ISA) != VECTOR_ISA || sat_min(a->block_rows, a->block_cols) > 8) return false;
    return p->n <= INT32_MAX && ((double)p->m + (double)p->n) * ((double)p->k + 16) < CSR_MOST_COPIED;
}

static double csr_estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    csr_shape s = csr_shape_of(p);
    double size = p->compute_dtype == SAT_F64 ? 8 : 4, lanes = VECTOR_BYTES / size;
    double copied = 3 * size * (double)(s.x_elements + s.y_elements) * (double)p->batch;
    double work = 2.0 * (double)a->stored_elements * ((double)s.depth + 2 * lanes) * (double)p->batch;
    return sat_roofline(d, p->compute_dtype, work, 0.3, sat_bytes(p, a) + copied);
}

static size_t csr_workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                            const sat_device *d) {
    (void)v, (void)a, (void)d;
    csr_shape s = csr_shape_of(p);
    return (size_t)(s.x_elements + s.y_elements) * (p->compute_dtype == SAT_F64 ? 8 : 4);
}

#define CSR_FAMILY(words)                                                                                              \
    {                                                                                                                  \
        .revision = "1", .op = SAT_SAMPLED, .backend = SAT_CPU, .flags = SAT_V_SCRATCH | SAT_V_DYNAMIC,                \
        .about = words, .supports = csr_supports, .estimate = csr_estimate, .workspace = csr_workspace,                \
        .launch = launch                                                                                               \
    }

#endif
