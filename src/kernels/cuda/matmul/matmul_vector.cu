// cuda_matmul_vector: four rows by 16 bytes of columns of C a thread. B, and A where its blocks allow it, are read 16
// bytes at a time. For row-major B whose rows are multiples of 16 bytes. One vector load replaces two to eight loads,
// and each value of A serves several products; but every thread still loads its own operands.

#include "kernels/cuda/matmul/register_tile.cuh"

static const register_tile_instance instances[] = {
    {SAT_F32, 4, register_tile_matmul<float, 4>},
    {SAT_F64, 2, register_tile_matmul<double, 2>},
    {SAT_F16, 8, register_tile_matmul<__half, 8>},
    {SAT_BF16, 8, register_tile_matmul<__nv_bfloat16, 8>},
};

static bool aligned(const sat_problem *p) {
    int64_t size = (int64_t)sat_dtype_size(p->b_dtype);
    return p->b_align >= 16 && p->b.col_stride == 1 && p->b.row_stride * size % 16 == 0 &&
           (p->batch == 1 || p->b.batch_stride * size % 16 == 0);
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)a, (void)d;
    return aligned(p);
}

static bool values_aligned(const sat_problem *p, const sat_rows &r) { // every row of every block
    int64_t size = (int64_t)sat_dtype_size(p->a_dtype);
    return p->a_align >= 16 && r.col_step == 1 && r.bc * size % 16 == 0 &&
           (p->batch == 1 || p->a.batch_stride * size % 16 == 0);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    sat_rows r = sat_op_rows(p, a);
    int64_t vector = 16 / (int64_t)sat_dtype_size(p->b_dtype);
    bool a_vectors = values_aligned(p, r);
    double busy = sat_flops(p, a) / (sat_simt_rate(d, p->compute_dtype) * (a_vectors ? 0.25 : 0.15));
    double l2 = register_tile_traffic(p, a, 32 * vector) / d->l2_rate, memory = sat_bytes(p, a) / d->memory_rate;
    double longest = register_tile_longest(p, a, 1 + (double)r.bc / (double)(a_vectors ? vector : 4));
    return sat_worst(sat_worst(busy, l2, memory), longest, 0) + 3e-6 * (double)p->batch;
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    return register_tile_launch(l, register_tile_find(instances, p->a_dtype),
                                values_aligned(p, sat_op_rows(p, l->pattern)));
}

SAT_FAMILY(cuda_matmul_vector) = {
    .revision = "2",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .flags = SAT_V_DYNAMIC,
    .about = "as register, with loads of 16 bytes; row-major B with aligned rows",
    .supports = supports,
    .estimate = estimate,
    .launch = launch,
};
