// cuda_matmul_mma_f16: f16 on tensor cores by mma.sync (matmul_mma.cuh), for blocks whose sides are multiples of 16.

#include "kernels/cuda/matmul/matmul_mma.cuh"

SAT_FAMILY(cuda_matmul_mma_f16) = mma_whole_rows<mma_16bit_instances<sat_f16_math>>::family;
SAT_FAMILY(cuda_matmul_mma_f16_split) = mma_split_rows<mma_16bit_instances<sat_f16_math>>::family;
