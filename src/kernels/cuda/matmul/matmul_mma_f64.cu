// cuda_matmul_mma_f64: double precision on the tensor cores, for blocks whose sides are multiples of 8.

#include "kernels/cuda/matmul/mma_family.cuh"

static const sat_mma_instance instances[] = {
    /* BM  BN  KU units stages WM  WN  CTAs on a multiprocessor */
    sat_mma_tile_of<sat_mma_f64, 64, 64, 16, 1, 4, 32, 32, 2>(), /**/
    sat_mma_tile_of<sat_mma_f64, 32, 64, 16, 1, 4, 16, 32, 4>(), /**/
    sat_mma_tile_of<sat_mma_f64, 16, 64, 8, 2, 4, 16, 16, 3>(),  /**/
    sat_mma_tile_of<sat_mma_f64, 8, 64, 8, 2, 4, 8, 16, 4>(),    /**/
};

static const sat_mma_instance *find(const sat_variant *v) { return sat_mma_find(instances, v); }

SAT_FAMILY(cuda_matmul_mma_f64) = {
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

SAT_FAMILY(cuda_matmul_mma_f64_split) = {
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
