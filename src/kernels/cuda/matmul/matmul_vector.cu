// cuda_matmul_vector: four rows by 16 bytes of columns of C a thread, B (and A, where its blocks allow) read 16 bytes
// at a time. For row-major B whose rows are multiples of 16 bytes. What it taught: one wide load does what four or
// eight narrow ones did, and each value of A now serves several products; still every thread fetches its own.

#include "kernels/cuda/matmul/walk.cuh"

static bool aligned(const sat_problem *p) {
    int64_t size = (int64_t)sat_dtype_size(p->b_dtype);
    return p->b_align >= 16 && p->b.col_stride == 1 && p->b.row_stride * size % 16 == 0 &&
           (p->batch == 1 || p->b.batch_stride * size % 16 == 0);
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)a, (void)d;
    return aligned(p);
}

static bool values_aligned(const sat_problem *p, const sat_rows &r) { // each row of each block
    int64_t size = (int64_t)sat_dtype_size(p->a_dtype);
    return p->a_align >= 16 && r.col_step == 1 && r.bc * size % 16 == 0 &&
           (p->batch == 1 || p->a.batch_stride * size % 16 == 0);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    sat_rows r = sat_op_rows(p, a);
    int64_t vector = 16 / (int64_t)sat_dtype_size(p->b_dtype);
    bool wide = values_aligned(p, r);
    double busy = sat_flops(p, a) / (sat_simt_rate(d, p->compute_dtype) * (wide ? 0.25 : 0.15));
    double l2 = walk_traffic(p, a, 32 * vector) / sat_l2_rate(d), memory = sat_bytes(p, a) / d->memory_rate;
    double alone = walk_alone(p, a, 1 + (double)r.bc / (double)(wide ? vector : 4));
    return sat_worst(sat_worst(busy, l2, memory), alone, 0) + 3e-6 * (double)p->batch;
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    if (p->m == 0 || p->n == 0) return SAT_OK;
    walk_job x = walk_job_of(l, 16 / (int)sat_dtype_size(p->b_dtype));
    x.a_vector = values_aligned(p, x.r);
    switch (p->a_dtype) {
    case SAT_F64: return walk_launch<double, 2>(l, x);
    case SAT_F32: return walk_launch<float, 4>(l, x);
    case SAT_F16: return walk_launch<__half, 8>(l, x);
    default: return walk_launch<__nv_bfloat16, 8>(l, x);
    }
}

SAT_FAMILY(cuda_matmul_vector) = {
    .revision = "2",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .about = "as register, with loads of 16 bytes; row-major B with aligned rows",
    .supports = supports,
    .estimate = estimate,
    .launch = launch,
};
