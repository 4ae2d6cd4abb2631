/* Weights of scores, as all kernels of attention make them: powers of two. */
#ifndef SAT_ATTENTION_EXP_CUH
#define SAT_ATTENTION_EXP_CUH

#include <cuda_runtime.h>

__device__ __forceinline__ float attention_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* What sums weighed with the largest score `from` are multiplied by where it is `to`. The products are rounded as they
 * are beside scores, so that they cancel however large they are. */
__device__ __forceinline__ float attention_factor(float from, float to, float c) {
    return to == -INFINITY ? 1 : from == -INFINITY ? 0 : attention_exp2(__fmul_rn(from, c) - __fmul_rn(to, c));
}

#endif
