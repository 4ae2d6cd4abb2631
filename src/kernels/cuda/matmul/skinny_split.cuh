/* What the skinny kernels share on the host: split-K of long block rows, and launches over a batch. skinny_share,
 * _estimate, _workspace and _prepare are for the two that use tensor cores. */
#ifndef SAT_SKINNY_SPLIT_CUH
#define SAT_SKINNY_SPLIT_CUH

#include "kernels/cuda/common/scheduler.h"

/* A work item of less than about 256 k costs more as a partial sum than it gains. */
static inline int64_t skinny_share(const sat_variant *v, const sat_rows *r, const sat_device *d) {
    return sat_schedule_share(r, r->br / v->instance.tile_m, 2 * d->multiprocessors, sat_max(2, 256 / r->bc));
}

/* Whether a schedule changes anything: block rows differ in length, or some are split. */
static inline bool skinny_schedule_helps(const sat_problem *p, const sat_pattern_view *a, int64_t share) {
    int64_t longest = p->matmul.transpose == SAT_TRANSPOSE ? a->max_col : a->max_row;
    double skew = p->matmul.transpose == SAT_TRANSPOSE ? a->t_skew : a->skew;
    return skew > 1.25 || sat_schedule_parts(longest, share) > 1;
}

/* Each tile of rows reads B again from L2, and a multiprocessor gets at most its share of L2's rate. */
static inline double skinny_estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                                     const sat_device *d, bool split) {
    sat_rows r = sat_op_rows(p, a);
    double tiles = (double)(r.br / v->instance.tile_m), share = (double)skinny_share(v, &r, d);
    double longest = (double)(p->matmul.transpose == SAT_TRANSPOSE ? a->max_col : a->max_row);
    split = split && longest > share * 1.25;
    if (split) longest = share;
    double l2_rate = 0.87 * d->l2_rate, tile = (double)r.bc * 2 * (double)(v->instance.tile_m + p->n);
    double l2 = (double)a->stored_blocks * (double)p->batch * tiles * tile / l2_rate;
    double alone = longest * tile / (l2_rate / d->multiprocessors), memory = sat_bytes(p, a) / (0.9 * d->memory_rate);
    return fmax(fmax(memory, l2), alone) + (split ? 4e-6 : 2.5e-6);
}

static inline size_t skinny_workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                                      const sat_device *d, bool split) {
    if (!split) return 0;
    sat_rows r = sat_op_rows(p, a);
    return sat_schedule_workspace(&r, skinny_share(v, &r, d), p->n, sizeof(float));
}

template <typename KERNEL>
static sat_status skinny_prepare(const sat_prepare *l, KERNEL kernel, int shared, bool split, void **state) {
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (e != cudaSuccess) return sat_fail(SAT_DEVICE_ERROR, "%s: %s", l->variant->name, cudaGetErrorString(e));
    if (!split) return SAT_OK;
    sat_rows r = sat_op_rows(l->problem, l->pattern);
    return sat_prepare_schedule(l, skinny_share(l->variant, &r, l->device), state);
}

/* run(args, batch) launches the kernel for `batch` matrices. Where rows are split, the partial sums have room for one
 * matrix, so each has a launch and a reduction of its own. */
template <typename ARGS, typename RUN> static sat_status skinny_launch_batch(const sat_launch *l, ARGS args, RUN run) {
    const sat_problem *p = l->problem;
    if (args.work.splits == 0) return run(args, (unsigned)p->batch);
    for (int64_t z = 0; z < p->batch; z++) {
        sat_status status = run(args, 1u);
        if (status == SAT_OK) status = sat_launch_split_reduction(l, args.r, args.out, args.work);
        if (status != SAT_OK) return status;
        args.values = sat_at(p->a_dtype, args.values, args.a_batch_stride);
        args.b = sat_at(p->b_dtype, args.b, args.b_batch_stride);
        args.out.c = (char *)args.out.c + args.c_batch_stride;
    }
    return SAT_OK;
}

#endif
