// cuda_matmul_register: a thread keeps four elements of a column of C in registers and walks the block row.
// Any dtype, block and strides; the next rung after atomics. What it taught: with the sum in a register, C is written
// once and the result no longer depends on timing; what is left is that every product costs more than a load.

#include "kernels/cuda/matmul/walk.cuh"

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    // A load of B for 4 products and one of A for each: the load units are the limit, a quarter as wide.
    double busy = sat_flops(p, a) / (sat_simt_rate(d, p->compute_dtype) * 0.06);
    double l2 = walk_traffic(p, a, 32) / sat_l2_rate(d), memory = sat_bytes(p, a) / d->memory_rate;
    if (p->b.col_stride != 1 || p->n < 8) l2 *= 4; // each load brings a sector for one element
    double depth = (double)sat_op_rows(p, a).bc, alone = walk_alone(p, a, 1 + depth / 4);
    return sat_worst(sat_worst(busy, l2, memory), alone, 0) + 3e-6 * (double)p->batch;
}

static sat_status launch(const sat_launch *l) {
    if (l->problem->m == 0 || l->problem->n == 0) return SAT_OK;
    walk_job x = walk_job_of(l, 1);
    switch (l->problem->a_dtype) {
    case SAT_F64: return walk_launch<double, 1>(l, x);
    case SAT_F32: return walk_launch<float, 1>(l, x);
    case SAT_F16: return walk_launch<__half, 1>(l, x);
    default: return walk_launch<__nv_bfloat16, 1>(l, x);
    }
}

SAT_FAMILY(cuda_matmul_register) = {
    .revision = "2",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .about = "a thread keeps elements of C in registers over a block row; any dtype, block and strides",
    .supports = sat_takes_all,
    .estimate = estimate,
    .launch = launch,
};
