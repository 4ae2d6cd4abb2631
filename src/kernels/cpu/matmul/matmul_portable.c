// cpu_matmul_portable: C that any compiler turns into its machine's vectors, for every listed dtype, shape and stride.
//
// B is packed, a few panels of columns at a time, into rows of 32 bytes (64 where there are registers for it) in the
// type computed in. A register tile of C, four rows by one panel, stays in vectors of 16 bytes, which every 64-bit
// machine has, over a whole block row. 16-bit values are widened once a block row for all packed panels. Good anywhere;
// where there is an instruction set with a family of its own, that one wins.

#include <omp.h>

#include "variant.h"

#define PORTABLE_INLINE static inline __attribute__((always_inline))

#if defined(__x86_64__)
#define PORTABLE_VECTORS 2 /* 16 registers: eight for sums */
#else
#define PORTABLE_VECTORS 4
#endif

typedef struct portable_shape {
    int64_t panels, packed_panels; /* panels in all, and packed at a time */
    int64_t panels_at_once;        /* panels that are multiplied with a block row before the next */
    int64_t item_rows, items;      /* block rows of a work item, and work items */
    int64_t pack_rows, pack_tasks; /* rows of a panel that are packed as one task, and such tasks of a panel */
    int64_t b_elements, wide_elements;
} portable_shape;

enum { PORTABLE_PACKED_BYTES = 4 << 20 }; /* of B at a time: L3 holds it and the threads share it */

static portable_shape portable_make_shape(const sat_problem *p, const sat_pattern_view *a) {
    sat_rows r = sat_op_rows(p, a);
    int64_t width = PORTABLE_VECTORS * (p->compute_dtype == SAT_F64 ? 2 : 4),
            panel_bytes = sat_max(1, r.k * PORTABLE_VECTORS * 16);
    portable_shape s = {.panels = (p->n + width - 1) / width};
    s.packed_panels = sat_min(s.panels, sat_max(1, PORTABLE_PACKED_BYTES / panel_bytes));
    s.b_elements = (s.packed_panels * r.k * width + 15) / 16 * 16;
    bool narrow = sat_dtype_size(p->a_dtype) == 2;
    s.wide_elements = narrow ? ((p->matmul.transpose ? a->max_col : a->max_row) * r.block_elements + 15) / 16 * 16 : 0;
    s.panels_at_once = narrow ? s.packed_panels : sat_min(s.packed_panels, 8);
    s.item_rows = sat_max(1, 16 / r.br), s.items = (r.count + s.item_rows - 1) / s.item_rows;
    s.pack_rows = 256, s.pack_tasks = (r.k + s.pack_rows - 1) / s.pack_rows;
    return s;
}

#define REAL  float
#define FN(x) x##_f32
PORTABLE_INLINE float widen_f32(sat_dtype t, const void *p, int64_t i) {
    if (t == SAT_F32) return ((const float *)p)[i];
    return t == SAT_F16 ? sat_from_f16(((const uint16_t *)p)[i]) : sat_from_bf16(((const uint16_t *)p)[i]);
}
PORTABLE_INLINE float act_f32(sat_activation a, float x) { return sat_act_f32(a, x); }
#include "matmul_portable.h"

#define REAL  double
#define FN(x) x##_f64
PORTABLE_INLINE double widen_f64(sat_dtype t, const void *p, int64_t i) { return (void)t, ((const double *)p)[i]; }
PORTABLE_INLINE double act_f64(sat_activation a, double x) { return sat_act_f64(a, x); }
#include "matmul_portable.h"

/* Vectors of 16 bytes, without fused multiply-adds where the compiler may not assume them. */
static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    double width = d->isa & SAT_ISA_AVX512 ? 4 : d->isa & SAT_ISA_AVX2 ? 2 : 1;
    return sat_roofline(d, p->compute_dtype, sat_flops(p, a), 0.3 / width, sat_bytes(p, a)) + 5e-6;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    portable_shape s = portable_make_shape(p, a);
    return (size_t)(s.b_elements + d->threads * s.wide_elements) * (p->compute_dtype == SAT_F64 ? 8 : 4);
}

static sat_status launch(const sat_launch *l) {
    if (l->problem->n == 0 || l->problem->m == 0) return SAT_OK;
    return l->problem->compute_dtype == SAT_F64 ? launch_f64(l) : launch_f32(l);
}

SAT_FAMILY(cpu_matmul_portable) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CPU,
    .flags = SAT_V_SCRATCH | SAT_V_DYNAMIC,
    .about = "C for any compiler and machine; B packed, four rows of C in registers over a block row",
    .supports = sat_takes_all,
    .estimate = estimate,
    .workspace = workspace,
    .launch = launch,
};
