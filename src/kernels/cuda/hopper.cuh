/* Hopper's own instructions by name: barriers in shared memory, bulk tensor copies, warpgroup matrix products (sm_90a).
 */
#ifndef SAT_HOPPER_CUH
#define SAT_HOPPER_CUH

#include <cuda.h>

#include "ptx.cuh"

/* ---- barriers that count arrivals and bytes ---- */

__device__ __forceinline__ void sat_barrier_init(uint32_t bar, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

/* Makes what was initialised visible to the copy engine. */
__device__ __forceinline__ void sat_barrier_publish() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void sat_barrier_expect(uint32_t bar, uint32_t bytes) { /* arrives, too */
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

__device__ __forceinline__ void sat_barrier_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

__device__ __forceinline__ void sat_barrier_arrive_times(uint32_t bar, int times) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(times) : "memory");
}

__device__ __forceinline__ void sat_barrier_wait(uint32_t bar, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\n"
                 "bra again;\n"
                 "done:\n"
                 "}" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}

/* Whether a wait would end at once; the same for all lanes. */
__device__ __forceinline__ bool sat_barrier_passed(uint32_t bar, uint32_t parity) {
    uint32_t yes;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(yes)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return __all_sync(~0u, yes);
}

/* What lane 0 reads of shared memory, for the whole warp: the lane that then says it was read is the one that did. */
template <typename T> __device__ __forceinline__ T sat_read_by_one(const T *from) {
    static_assert(sizeof(T) % 4 == 0, "words");
    uint32_t word[sizeof(T) / 4];
    bool one = threadIdx.x % 32 == 0;
#pragma unroll
    for (int i = 0; i < (int)(sizeof(T) / 4); i++) word[i] = __shfl_sync(~0u, one ? ((const uint32_t *)from)[i] : 0, 0);
    T read;
    memcpy(&read, word, sizeof read);
    return read;
}

/* ---- tiles between global and shared memory, as a tensor map describes them ---- */

__device__ __forceinline__ void sat_tile_load(uint32_t to, const CUtensorMap *map, uint32_t bar, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
                 "[%2];" ::"r"(to),
                 "l"(map), "r"(bar), "r"(x), "r"(y)
                 : "memory");
}

__device__ __forceinline__ void sat_tile_load(uint32_t to, const CUtensorMap *map, uint32_t bar, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, "
                 "%5}], [%2];" ::"r"(to),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

__device__ __forceinline__ void sat_tile_load(uint32_t to, const CUtensorMap *map, uint32_t bar, int x, int y, int z,
                                              int w) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, "
                 "%5, %6}], [%2];" ::"r"(to),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}

/* From shared memory, by groups of copies; what is outside of the tensor is not written. */
__device__ __forceinline__ void sat_tile_store(const CUtensorMap *map, uint32_t from, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(from),
                 "r"(x), "r"(y)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* A group of none, where a store was left out. */
__device__ __forceinline__ void sat_stores_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/* Until all but the last PENDING stores of this thread have read what they store. */
template <int PENDING> __device__ __forceinline__ void sat_stores_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
__device__ __forceinline__ void sat_stores_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

/* What this thread did to shared memory comes before what the copy engine does there next. */
__device__ __forceinline__ void sat_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void sat_prefetch_map(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* True for one lane of a warp that is together. What only that lane does takes its numbers from uniform registers
 * without a loop over lanes, which is how `lane == 0` is compiled. */
__device__ __forceinline__ bool sat_elect() {
    uint32_t yes = 0;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "elect.sync _|p, 0xffffffff;\n"
                 "@p mov.u32 %0, 1;\n"
                 "}"
                 : "+r"(yes));
    return yes;
}

/* Keeps a number in its register: what it was made from is not computed again where it is used. */
__device__ __forceinline__ uint32_t sat_opaque(uint32_t x) {
    asm volatile("" : "+r"(x));
    return x;
}

/* ---- registers between warpgroups, barriers of some warps ---- */

template <int COUNT> __device__ __forceinline__ void sat_registers_fewer() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void sat_registers_more() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
__device__ __forceinline__ void sat_some_sync(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void sat_some_arrive(int barrier, int threads) { // is counted, and does not wait
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* Four 8x8 matrices of 16-bit elements to shared memory; lane l gives the address of row l%8 of matrix l/8. */
__device__ __forceinline__ void sat_store_matrix(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(a), "r"(b), "r"(c),
                 "r"(d)
                 : "memory");
}
__device__ __forceinline__ void sat_store_turned(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
}

/* ---- warpgroup products ---- */

/* How lines of so many bytes, 128, 64 or 32, are exchanged in shared memory, by the number that descriptors have. */
__host__ __device__ constexpr int sat_swizzle_of(int line) { return line == 128 ? 1 : line == 64 ? 2 : 3; }

/* A matrix in shared memory as wgmma reads it. `swizzle` 1, 2, 3: rows of 128, 64, 32 bytes; `leading` and `stride` in
 * bytes. */
__device__ __forceinline__ uint64_t sat_descriptor(uint32_t from, int swizzle, uint32_t leading, uint32_t stride) {
    return (uint64_t)((from & 0x3ffff) >> 4) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(stride >> 4) << 32 |
           (uint64_t)swizzle << 62;
}

__device__ __forceinline__ void sat_group_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void sat_group_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void sat_group_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* d = a*b, or d += a*b with `add`; 64 x N x 16, both from shared memory. TA, TB: that operand lies with its outer size
 * contiguous. */
template <typename T, int N, int TA, int TB> struct sat_group_product;

// clang-format off
#define SAT_SUMS8(d, i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define SAT_SUMS16 SAT_SUMS8(d, 0), SAT_SUMS8(d, 8)
#define SAT_SUMS32(i) SAT_SUMS8(d, i), SAT_SUMS8(d, i + 8), SAT_SUMS8(d, i + 16), SAT_SUMS8(d, i + 24)
#define SAT_SUMS64 SAT_SUMS32(0), SAT_SUMS32(32)
#define SAT_SUMS128 SAT_SUMS64, SAT_SUMS32(64), SAT_SUMS32(96)
#define SAT_D8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define SAT_D16 SAT_D8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SAT_D32 SAT_D16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SAT_D64 \
    SAT_D32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SAT_D128 \
    SAT_D64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

/* The sums come first among an instruction's operands, so the numbers of the others depend on how many they are. */
#define SAT_GROUP(math, name, N, SUMS, LIST, OUT, a_, b_, ta_, tb_, add_) \
    template <int TA, int TB> struct sat_group_product<math, N, TA, TB> { \
        __device__ static __forceinline__ void run(float (&d)[SUMS], uint64_t a, uint64_t b, int add) { \
            asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #add_ ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." name \
                         "." name " {" LIST "}, %" #a_ ", %" #b_ ", p, 1, 1, %" #ta_ ", %" #tb_ "; }" \
                         : OUT \
                         : "l"(a), "l"(b), "n"(TA), "n"(TB), "r"(add)); \
        } \
    };
#define SAT_GROUPS(math, name) \
    SAT_GROUP(math, name, 16, 8, SAT_D8, SAT_SUMS8(d, 0), 8, 9, 10, 11, 12) \
    SAT_GROUP(math, name, 32, 16, SAT_D16, SAT_SUMS16, 16, 17, 18, 19, 20) \
    SAT_GROUP(math, name, 64, 32, SAT_D32, SAT_SUMS32(0), 32, 33, 34, 35, 36) \
    SAT_GROUP(math, name, 128, 64, SAT_D64, SAT_SUMS64, 64, 65, 66, 67, 68) \
    SAT_GROUP(math, name, 256, 128, SAT_D128, SAT_SUMS128, 128, 129, 130, 131, 132)
SAT_GROUPS(sat_f16_math, "f16")
SAT_GROUPS(sat_bf16_math, "bf16")

/* TF32: 64 x N x 8, N twice the count of d. Depth is contiguous in what comes from shared memory; the left operand may
 * come from registers, which then stay as they are until the product is done. */
#define SAT_TF32_LEFT(N, SUMS, LIST, OUT, a_, b_, c_, d_, right_, add_) \
    __device__ __forceinline__ void sat_group_tf32(float (&d)[SUMS], const uint32_t (&a)[4], uint64_t b, int add) { \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #add_ ", 0; wgmma.mma_async.sync.aligned.m64n" #N \
                     "k8.f32.tf32.tf32 {" LIST "}, {%" #a_ ", %" #b_ ", %" #c_ ", %" #d_ "}, %" #right_ ", p, 1, 1; }" \
                     : OUT \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add)); \
    }
#define SAT_TF32_BOTH(N, SUMS, LIST, OUT, a_, b_, add_) \
    __device__ __forceinline__ void sat_group_tf32(float (&d)[SUMS], uint64_t a, uint64_t b, int add) { \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #add_ ", 0; wgmma.mma_async.sync.aligned.m64n" #N \
                     "k8.f32.tf32.tf32 {" LIST "}, %" #a_ ", %" #b_ ", p, 1, 1; }" \
                     : OUT \
                     : "l"(a), "l"(b), "r"(add)); \
    }
SAT_TF32_LEFT(64, 32, SAT_D32, SAT_SUMS32(0), 32, 33, 34, 35, 36, 37)
SAT_TF32_LEFT(128, 64, SAT_D64, SAT_SUMS64, 64, 65, 66, 67, 68, 69)
SAT_TF32_LEFT(256, 128, SAT_D128, SAT_SUMS128, 128, 129, 130, 131, 132, 133)
SAT_TF32_BOTH(128, 64, SAT_D64, SAT_SUMS64, 64, 65, 66)
SAT_TF32_BOTH(256, 128, SAT_D128, SAT_SUMS128, 128, 129, 130)
// clang-format on

#endif
