/* What a packed family answers to the tuner, the same for every instruction set. */
#ifndef SAT_PACKED_FAMILY_H
#define SAT_PACKED_FAMILY_H

#include "packed_plan.h"

static bool packed_supports(const sat_variant *v, const packed_isa *isa, const sat_problem *p, const sat_device *d) {
    if ((d->isa & isa->needs) != isa->needs || p->a_dtype != v->instance.dtype) return false;
    if (p->compute_dtype != (p->a_dtype == SAT_F64 ? SAT_F64 : SAT_F32)) return false;
    return !(v->instance.option & PACKED_DIRECT) || p->a_dtype == SAT_F32 || p->a_dtype == SAT_F64;
}

static size_t packed_workspace(const sat_variant *v, const packed_isa *isa, const sat_problem *p,
                               const sat_pattern_view *a, const sat_device *d) {
    return packed_make_shape(v, isa, p, a, d).total_bytes;
}

/* Multiply-adds at the rate that a tile of this height reaches, B packed and values copied once, C written. */
static double packed_estimate(const sat_variant *v, const packed_isa *isa, const sat_problem *p,
                              const sat_pattern_view *a, const sat_device *d) {
    packed_shape s = packed_make_shape(v, isa, p, a, d);
    double width = (double)(s.vectors * s.lanes), batch = (double)p->batch, element = (double)s.element;
    double panel = s.panels ? (double)s.vectors / (double)s.panels : 1, tile = (double)s.height * panel;
    /* A k-step costs its multiply-adds, or its loads where the tile is small. */
    double slow = (panel + (double)s.height) / (1.5 * tile), work = slow > 1 ? slow : 1;
    double flops = 2.0 * (double)a->stored_elements * width * batch * work;
    double packed = (double)p->k * width * element * batch;
    double streamed = s.direct || s.keeps ? 0 : (double)a->stored_elements * element * batch;
    double depth = 1e-6 + 3e-9 * (double)a->grid_rows * (double)s.panels * batch / d->threads;
    return flops / (d->flop_rate[s.element == 8 ? SAT_F64 : SAT_F32] * isa->efficiency) +
           (packed + 1.5 * streamed) / d->memory_rate + sat_bytes(p, a) / (4 * d->memory_rate) + depth;
}

#endif
