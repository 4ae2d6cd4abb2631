/* The tiles for 16-bit elements, f16 and bf16 alike. */
#ifndef SAT_MMA_16BIT_CUH
#define SAT_MMA_16BIT_CUH

#include "kernels/cuda/matmul/mma_family.cuh"

template <class MATH> static const sat_mma_instance *sat_mma_find_16bit(const sat_variant *v) {
    static constexpr sat_mma_instance all[] = {
        /*                                            BM   BN  KU units stages WM  WN  CTAs on a multiprocessor */
        sat_mma_tile_of<sat_mma_16bit<MATH>, 128, 256, 32, 1, 6, 64, 64, 1>(), /**/
        sat_mma_tile_of<sat_mma_16bit<MATH>, 128, 128, 32, 1, 5, 64, 64, 2>(), /**/
        sat_mma_tile_of<sat_mma_16bit<MATH>, 64, 512, 32, 1, 5, 64, 64, 1>(),  /**/
        sat_mma_tile_of<sat_mma_16bit<MATH>, 64, 256, 32, 1, 5, 64, 64, 2>(),  /**/
        sat_mma_tile_of<sat_mma_16bit<MATH>, 64, 128, 32, 1, 5, 32, 64, 3>(),  /**/
        sat_mma_tile_of<sat_mma_16bit<MATH>, 64, 64, 64, 1, 4, 32, 32, 3>(),   /**/
        sat_mma_tile_of<sat_mma_16bit<MATH>, 32, 512, 32, 1, 5, 32, 64, 1>(),  /**/
        sat_mma_tile_of<sat_mma_16bit<MATH>, 32, 256, 32, 1, 5, 32, 64, 2>(),  /**/
        sat_mma_tile_of<sat_mma_16bit<MATH>, 32, 64, 32, 1, 5, 16, 32, 4>(),   /**/
        sat_mma_tile_of<sat_mma_16bit<MATH>, 16, 512, 16, 2, 5, 16, 64, 1>(),  /**/
        sat_mma_tile_of<sat_mma_16bit<MATH>, 16, 256, 16, 2, 4, 16, 64, 3>(),  /**/
        sat_mma_tile_of<sat_mma_16bit<MATH>, 16, 64, 16, 2, 6, 16, 32, 6>(),   /**/
    };
    return sat_mma_find(all, v);
}

#endif
