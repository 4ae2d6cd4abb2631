// cuda_matmul_register: a thread keeps four elements of a column of C in registers while it goes along the block row.
// Any dtype, block and strides; the step after atomics. With the sum in a register, C is stored once and the result no
// longer depends on timing; but every product still costs more than a load.

#include "kernels/cuda/matmul/register_tile.cuh"

static const register_tile_instance instances[] = {
    {SAT_F32, 1, register_tile_matmul<float, 1>},
    {SAT_F64, 1, register_tile_matmul<double, 1>},
    {SAT_F16, 1, register_tile_matmul<__half, 1>},
    {SAT_BF16, 1, register_tile_matmul<__nv_bfloat16, 1>},
};

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    // A load of B for 4 products and one of A for each: the load units are the limit, a quarter as wide.
    double busy = sat_flops(p, a) / (sat_simt_rate(d, p->compute_dtype) * 0.06);
    double l2 = register_tile_traffic(p, a, 32) / d->l2_rate, memory = sat_bytes(p, a) / d->memory_rate;
    if (p->b.col_stride != 1 || p->n < 8) l2 *= 4; // each load reads a sector for one element
    double depth = (double)sat_op_rows(p, a).bc, longest = register_tile_longest(p, a, 1 + depth / 4);
    return sat_worst(sat_worst(busy, l2, memory), longest, 0) + 3e-6 * (double)p->batch;
}

static sat_status launch(const sat_launch *l) {
    return register_tile_launch(l, register_tile_find(instances, l->problem->a_dtype), false);
}

SAT_FAMILY(cuda_matmul_register) = {
    .revision = "2",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .flags = SAT_V_DYNAMIC,
    .about = "a thread keeps elements of C in registers over a block row; any dtype, block and strides",
    .supports = sat_takes_all,
    .estimate = estimate,
    .launch = launch,
};
