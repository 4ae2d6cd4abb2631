/* Warpgroup products that attention needs: scores of one more width, and products whose left operand is in registers
 * (sm_90a). */
#ifndef SAT_WGMMA_LEFT_CUH
#define SAT_WGMMA_LEFT_CUH

#include "hopper.cuh"

// clang-format off
#define SAT_D40 SAT_D32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define SAT_D48 SAT_D40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define SAT_SUMS40 SAT_SUMS32(0), SAT_SUMS8(d, 32)
#define SAT_SUMS48 SAT_SUMS40, SAT_SUMS8(d, 40)

SAT_GROUP(sat_f16_math, "f16", 80, 40, SAT_D40, SAT_SUMS40, 40, 41, 42, 43, 44)
SAT_GROUP(sat_bf16_math, "bf16", 80, 40, SAT_D40, SAT_SUMS40, 40, 41, 42, 43, 44)

/* d += a*b, 64 x N x 16: a from registers, in the fragments of mma.sync; b from shared memory with its columns
 * contiguous. */
template <typename T, int N> struct sat_group_left;

#define SAT_LEFT(math, name, N, SUMS, LIST, OUT, a0_, a1_, a2_, a3_, b_) \
    template <> struct sat_group_left<math, N> { \
        __device__ static __forceinline__ void run(float (&d)[SUMS], const uint32_t *a, uint64_t b) { \
            asm volatile("{ .reg .pred p; setp.eq.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." name "." name \
                         " {" LIST "}, {%" #a0_ ", %" #a1_ ", %" #a2_ ", %" #a3_ "}, %" #b_ ", p, 1, 1, 1; }" \
                         : OUT \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
        } \
    };
#define SAT_LEFT_ALL(math, name) \
    SAT_LEFT(math, name, 64, 32, SAT_D32, SAT_SUMS32(0), 32, 33, 34, 35, 36) \
    SAT_LEFT(math, name, 96, 48, SAT_D48, SAT_SUMS48, 48, 49, 50, 51, 52) \
    SAT_LEFT(math, name, 128, 64, SAT_D64, SAT_SUMS64, 64, 65, 66, 67, 68) \
    SAT_LEFT(math, name, 256, 128, SAT_D128, SAT_SUMS128, 128, 129, 130, 131, 132)
SAT_LEFT_ALL(sat_f16_math, "f16")
SAT_LEFT_ALL(sat_bf16_math, "bf16")
// clang-format on

/* Sums are the compiler's again: nothing that reads or writes them moves before this point. */
template <int COUNT> __device__ __forceinline__ void sat_group_settle(float (&d)[COUNT]) {
#pragma unroll
    for (int e = 0; e < COUNT; e++) asm volatile("" : "+f"(d[e])::"memory");
}

#endif
