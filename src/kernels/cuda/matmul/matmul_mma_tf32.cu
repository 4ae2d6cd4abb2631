// cuda_matmul_mma_tf32: f32 rounded to TF32 on its way to the tensor cores, where the problem allows it. Blocks whose
// sides are multiples of 16.

#include "kernels/cuda/matmul/mma_family.cuh"

static const sat_mma_instance instances[] = {
    /* BM   BN  KU units stages WM  WN  CTAs on a multiprocessor */
    sat_mma_tile_of<sat_mma_tf32, 128, 128, 16, 1, 5, 64, 64, 2>(), /**/
    sat_mma_tile_of<sat_mma_tf32, 64, 256, 16, 1, 5, 64, 64, 2>(),  /**/
    sat_mma_tile_of<sat_mma_tf32, 64, 64, 32, 1, 4, 32, 32, 3>(),   /**/
    sat_mma_tile_of<sat_mma_tf32, 32, 128, 16, 1, 5, 32, 32, 3>(),  /**/
    sat_mma_tile_of<sat_mma_tf32, 16, 128, 16, 1, 5, 16, 32, 4>(),  /**/
};

static const sat_mma_instance *find(const sat_variant *v) { return sat_mma_find(instances, v); }

SAT_FAMILY(cuda_matmul_mma_tf32) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .flags = SAT_V_BATCHED,
    .about = "tensor cores by mma.sync, several steps of copies ahead",
    .supports = sat_mma_plain<find>::supports,
    .estimate = sat_mma_plain<find>::estimate,
    .prepare = sat_mma_plain<find>::prepare,
    .launch = sat_mma_plain<find>::launch,
};

SAT_FAMILY(cuda_matmul_mma_tf32_split) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .about = "the same, longest rows first, heavy rows cut and joined in order",
    .supports = sat_mma_plain<find>::supports,
    .estimate = sat_mma_split<find>::estimate,
    .workspace = sat_mma_split<find>::workspace,
    .prepare = sat_mma_split<find>::prepare,
    .launch = sat_mma_split<find>::launch,
    .release = sat_release_schedule,
};
