// cuda_matmul_mma_f64: f64 on tensor cores by mma.sync (matmul_mma.cuh), for blocks whose sides are multiples of 8.

#include "kernels/cuda/matmul/matmul_mma.cuh"

template <int BM, int... SHAPE> static constexpr mma_instance tile() {
    typedef mma_f64<BM == 8 ? 8 : 16, BM == 8 ? 4 : 8> math;
    return mma_instance_of<mma_shape<math, BM, SHAPE...>>();
}

static constexpr mma_instance instances[] = {
    /* BM  BN  KU units stages WM  WN  CTAs on a multiprocessor */
    tile<64, 128, 16, 1, 4, 32, 32, 1>(), /**/
    tile<64, 64, 16, 1, 3, 32, 32, 3>(),  /**/
    tile<32, 128, 16, 1, 4, 32, 32, 2>(), /**/
    tile<16, 128, 8, 2, 4, 16, 32, 3>(),  /**/
    tile<8, 64, 8, 2, 4, 8, 16, 4>(),     /**/
};

SAT_FAMILY(cuda_matmul_mma_f64) = mma_whole_rows<instances>::family;
SAT_FAMILY(cuda_matmul_mma_f64_split) = mma_split_rows<instances>::family;
