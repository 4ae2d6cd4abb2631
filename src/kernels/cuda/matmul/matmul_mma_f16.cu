// cuda_matmul_mma_f16: tensor cores by mma.sync, operands by cp.async, for blocks whose sides are multiples of 16.
// A CTA has a tile of C, walks the stored blocks of its rows and keeps several steps of copies ahead of itself.

#include "kernels/cuda/matmul/mma_16bit.cuh"

SAT_FAMILY(cuda_matmul_mma_f16) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .flags = SAT_V_BATCHED,
    .about = "tensor cores by mma.sync, several steps of copies ahead",
    .supports = sat_mma_plain<sat_mma_find_16bit<sat_f16_math>>::supports,
    .estimate = sat_mma_plain<sat_mma_find_16bit<sat_f16_math>>::estimate,
    .prepare = sat_mma_plain<sat_mma_find_16bit<sat_f16_math>>::prepare,
    .launch = sat_mma_plain<sat_mma_find_16bit<sat_f16_math>>::launch,
};

SAT_FAMILY(cuda_matmul_mma_f16_split) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .about = "the same, longest rows first, heavy rows cut and joined in order",
    .supports = sat_mma_plain<sat_mma_find_16bit<sat_f16_math>>::supports,
    .estimate = sat_mma_split<sat_mma_find_16bit<sat_f16_math>>::estimate,
    .workspace = sat_mma_split<sat_mma_find_16bit<sat_f16_math>>::workspace,
    .prepare = sat_mma_split<sat_mma_find_16bit<sat_f16_math>>::prepare,
    .launch = sat_mma_split<sat_mma_find_16bit<sat_f16_math>>::launch,
    .release = sat_release_schedule,
};
