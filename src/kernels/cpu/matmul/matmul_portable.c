// cpu_matmul_portable: C that any compiler turns into its machine's vectors, for every listed dtype, shape and stride.
//
// B is packed, a few panels of columns at a time, into rows of 32 bytes (64 where there are registers for it) in the
// type computed in. Four rows of C by one panel gather over a whole block row in vectors of 16 bytes, which every
// 64-bit machine has. 16-bit values are widened once per block row for all panels at hand.

#include <omp.h>

#include "variant.h"

#define PO_INLINE static inline __attribute__((always_inline))

#if defined(__x86_64__)
#define PO_VECTORS 2 /* 16 registers: eight for sums */
#else
#define PO_VECTORS 4
#endif

typedef struct po_shape {
    int64_t panels, together; /* panels in all, and packed at a time */
    int64_t at_once;          /* panels that one visit to a block row takes */
    int64_t rows, groups;     /* block rows that are one piece of work, and how many such there are */
    int64_t slice, slices;    /* rows of a panel that are packed as one piece of work, and how many such there are */
    int64_t b_elements, wide_elements;
} po_shape;

enum { PO_PACKED_BYTES = 4 << 20 }; /* of B at a time: L3 holds it and the threads share it */

static po_shape po_make_shape(const sat_problem *p, const sat_pattern_view *a) {
    sat_rows r = sat_op_rows(p, a);
    int64_t width = PO_VECTORS * (p->compute_dtype == SAT_F64 ? 2 : 4), panel_bytes = sat_max(1, r.k * PO_VECTORS * 16);
    po_shape s = {.panels = (p->n + width - 1) / width};
    s.together = sat_min(s.panels, sat_max(1, PO_PACKED_BYTES / panel_bytes));
    s.b_elements = (s.together * r.k * width + 15) / 16 * 16;
    bool narrow = sat_dtype_size(p->a_dtype) == 2;
    s.wide_elements = narrow ? ((p->transpose ? a->max_col : a->max_row) * r.block_elements + 15) / 16 * 16 : 0;
    s.at_once = narrow ? s.together : sat_min(s.together, 8);
    s.rows = sat_max(1, 16 / r.br), s.groups = (r.count + s.rows - 1) / s.rows;
    s.slice = 256, s.slices = (r.k + s.slice - 1) / s.slice;
    return s;
}

#define REAL  float
#define FN(x) f32_##x
PO_INLINE float f32_widen(sat_dtype t, const void *p, int64_t i) {
    if (t == SAT_F32) return ((const float *)p)[i];
    return t == SAT_F16 ? sat_from_f16(((const uint16_t *)p)[i]) : sat_from_bf16(((const uint16_t *)p)[i]);
}
PO_INLINE float f32_act(sat_activation a, float x) { return sat_act_f32(a, x); }
#include "matmul_portable_body.h"

#define REAL  double
#define FN(x) f64_##x
PO_INLINE double f64_widen(sat_dtype t, const void *p, int64_t i) { return (void)t, ((const double *)p)[i]; }
PO_INLINE double f64_act(sat_activation a, double x) { return sat_act_f64(a, x); }
#include "matmul_portable_body.h"

/* Vectors of 16 bytes, without fused multiply-adds where the compiler may not assume them. */
static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    double width = d->isa & SAT_ISA_AVX512 ? 4 : d->isa & SAT_ISA_AVX2 ? 2 : 1;
    return sat_roofline(d, p->compute_dtype, sat_flops(p, a), 0.3 / width, sat_bytes(p, a)) + 5e-6;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    po_shape s = po_make_shape(p, a);
    return (size_t)(s.b_elements + d->threads * s.wide_elements) * (p->compute_dtype == SAT_F64 ? 8 : 4);
}

static sat_status launch(const sat_launch *l) {
    if (l->problem->n == 0 || l->problem->m == 0) return SAT_OK;
    return l->problem->compute_dtype == SAT_F64 ? f64_launch(l) : f32_launch(l);
}

SAT_FAMILY(cpu_matmul_portable) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CPU,
    .flags = SAT_V_SCRATCH,
    .about = "C for any compiler and machine; B packed, four rows of C in registers over a block row",
    .supports = sat_takes_all,
    .estimate = estimate,
    .workspace = workspace,
    .launch = launch,
};
