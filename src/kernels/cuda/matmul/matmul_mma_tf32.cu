// cuda_matmul_mma_tf32: f32 rounded to TF32 on tensor cores by mma.sync (matmul_mma.cuh), where the problem allows
// TF32, for blocks whose sides are multiples of 16.

#include "kernels/cuda/matmul/matmul_mma.cuh"

template <int... SHAPE> static constexpr mma_instance tile() {
    return mma_instance_of<mma_shape<mma_tf32, SHAPE...>>();
}

static constexpr mma_instance instances[] = {
    /* BM   BN  KU units stages WM  WN  CTAs on a multiprocessor */
    tile<128, 128, 16, 1, 5, 64, 64, 2>(), /**/
    tile<64, 256, 16, 1, 5, 64, 64, 2>(),  /**/
    tile<64, 64, 32, 1, 4, 32, 32, 3>(),   /**/
    tile<32, 128, 16, 1, 5, 32, 32, 3>(),  /**/
    tile<16, 128, 16, 1, 5, 16, 32, 4>(),  /**/
};

SAT_FAMILY(cuda_matmul_mma_tf32) = mma_whole_rows<instances>::family;
SAT_FAMILY(cuda_matmul_mma_tf32_split) = mma_split_rows<instances>::family;
