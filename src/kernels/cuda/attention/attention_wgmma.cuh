/* What the Hopper attention kernels share: wgmma of tiles that TMA has loaded, and the tensor maps that it
 * loads them by (sm_90a).
 *
 * Operands have 16 bits and are stored in chunks of 64 columns, so that a row of a chunk is the 128 bytes of the
 * swizzle. Accumulators of a warpgroup have 64 rows, 16 a warp. Element e of a lane is row lane/4 + e/2%2*8 of its warp
 * and column e/4*8 + lane%4*2 + e%2, so that a lane has two rows. A kernel's S has its shape: head sizes up to D, tiles
 * of BN rows, CHUNK bytes from one chunk of a tile to the next. */
#ifndef SAT_ATTENTION_WGMMA_CUH
#define SAT_ATTENTION_WGMMA_CUH

#include "attention.h"
#include "kernels/cuda/common/ptx_sm90.cuh"

/* ---- PTX that attention alone uses ---- */

__device__ __forceinline__ void mbarrier_arrive_count(uint32_t bar, int times) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(times) : "memory");
}

/* Is counted and does not wait. */
__device__ __forceinline__ void named_barrier_arrive(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* Atomics on a word of shared memory: exchange that releases to the CTA, and a load, as `or` with 0, that acquires. */
__device__ __forceinline__ void atom_release_exch(uint32_t at, uint32_t x) {
    asm volatile("{ .reg .b32 o; atom.release.cta.shared::cta.exch.b32 o, [%0], %1; }" ::"r"(at), "r"(x) : "memory");
}
__device__ __forceinline__ uint32_t atom_acquire_load(uint32_t at) {
    uint32_t x;
    asm volatile("atom.acquire.cta.shared::cta.or.b32 %0, [%1], 0;" : "=r"(x) : "r"(at) : "memory");
    return x;
}

/* ---- wgmma for attention: N = 80, and `a` from registers ---- */

// clang-format off
#define SAT_D40 SAT_D32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define SAT_D48 SAT_D40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define SAT_SUMS40 SAT_SUMS32(0), SAT_SUMS8(d, 32)
#define SAT_SUMS48 SAT_SUMS40, SAT_SUMS8(d, 40)

SAT_WGMMA_SS(sat_f16, "f16", 80, 40, SAT_D40, SAT_SUMS40, 40, 41, 42, 43, 44)
SAT_WGMMA_SS(sat_bf16, "bf16", 80, 40, SAT_D40, SAT_SUMS40, 40, 41, 42, 43, 44)

/* d += a*b, m64nNk16: a from registers, in the fragments of mma.sync; b from shared memory, N contiguous. */
template <typename T, int N> struct wgmma_rs;

#define SAT_WGMMA_RS(type, name, N, SUMS, LIST, OUT, a0_, a1_, a2_, a3_, b_) \
    template <> struct wgmma_rs<type, N> { \
        __device__ static __forceinline__ void run(float (&d)[SUMS], const uint32_t *a, uint64_t b) { \
            asm volatile("{ .reg .pred p; setp.eq.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." name "." name \
                         " {" LIST "}, {%" #a0_ ", %" #a1_ ", %" #a2_ ", %" #a3_ "}, %" #b_ ", p, 1, 1, 1; }" \
                         : OUT \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
        } \
    };
#define SAT_WGMMA_RS_ALL(type, name) \
    SAT_WGMMA_RS(type, name, 64, 32, SAT_D32, SAT_SUMS32(0), 32, 33, 34, 35, 36) \
    SAT_WGMMA_RS(type, name, 96, 48, SAT_D48, SAT_SUMS48, 48, 49, 50, 51, 52) \
    SAT_WGMMA_RS(type, name, 128, 64, SAT_D64, SAT_SUMS64, 64, 65, 66, 67, 68) \
    SAT_WGMMA_RS(type, name, 256, 128, SAT_D128, SAT_SUMS128, 128, 129, 130, 131, 132)
SAT_WGMMA_RS_ALL(sat_f16, "f16")
SAT_WGMMA_RS_ALL(sat_bf16, "bf16")
// clang-format on

/* Tells the compiler that the accumulators change here: nothing that reads or writes them moves before this point. */
template <int COUNT> __device__ __forceinline__ void wgmma_fence_accumulators(float (&d)[COUNT]) {
#pragma unroll
    for (int e = 0; e < COUNT; e++) asm volatile("" : "+f"(d[e])::"memory");
}

/* ---- products of tiles ---- */

enum { ATTENTION_CHUNK_BYTES = 64 * 128 }; /* bytes of a chunk of 64 rows */

/* Issues s = A*B^T, (64, BN), over D elements; A is (64, D) and B is (BN, D). */
template <typename T, typename S>
__device__ __forceinline__ void attention_wgmma_abt(float (&s)[S::BN / 2], uint32_t a, uint32_t b) {
    uint64_t da = wgmma_descriptor(a, swizzle_mode_of(128), 16, 1024),
             db = wgmma_descriptor(b, swizzle_mode_of(128), 16, 1024);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < S::D / 16; step++) // descriptors count in 16 bytes
        wgmma_ss<T, S::BN, 0, 0>::run(s, da + (step / 4 * ATTENTION_CHUNK_BYTES + step % 4 * 32) / 16,
                                      db + (step / 4 * S::CHUNK_BYTES + step % 4 * 32) / 16, step > 0);
    wgmma_commit_group();
}

/* Issues o += P*B, (64, D); P is (64, BN) in registers, B is (BN, D). */
template <typename T, typename S>
__device__ __forceinline__ void attention_wgmma_pb(float (&o)[S::D / 2], const uint32_t (&p)[S::BN / 4], uint32_t b) {
    uint64_t db = wgmma_descriptor(b, swizzle_mode_of(128), S::CHUNK_BYTES, 1024);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < S::BN / 16; step++) wgmma_rs<T, S::D>::run(o, &p[step * 4], db + step * 2048 / 16);
    wgmma_commit_group();
}

/* Accumulators as the A operand of the next product: the fragments have the same layout. */
template <typename T, typename S>
__device__ __forceinline__ void attention_pack_operand(uint32_t (&p)[S::BN / 4], const float (&s)[S::BN / 2]) {
#pragma unroll
    for (int e = 0; e < S::BN / 4; e++) p[e] = pack_2(typename T::element(), s[2 * e], s[2 * e + 1]);
}

/* ---- tensor maps ---- */

/* What a tensor map can stride over, in elements: a single row, head or batch item needs no stride. */
static inline bool attention_stride_fits(int64_t stride, int64_t count) {
    return count <= 1 || (stride > 0 && stride % 8 == 0 && stride < (int64_t)1 << 39);
}

static inline bool attention_map_fits(const sat_problem *p, const sat_heads &s, int64_t heads, int64_t rows) {
    return attention_stride_fits(s.batch_stride, p->batch) && attention_stride_fits(s.head_stride, heads) &&
           attention_stride_fits(s.row_stride, rows);
}

static inline cuuint64_t attention_stride_bytes(int64_t stride, int64_t count) {
    return count > 1 ? (cuuint64_t)stride * 2 : 16; // an unused stride must still be a legal one
}

/* (dim, row, head, batch) in boxes of 64 columns by `box_rows`. */
static inline bool attention_encode_map(const sat_problem *p, const void *base, const sat_heads &s, int64_t heads,
                                        int64_t rows, int box_rows, CUtensorMap *map) {
    sat_tensor_box t = {p->a_dtype,
                        base,
                        4,
                        {(cuuint64_t)p->attention.dim, (cuuint64_t)rows, (cuuint64_t)heads, (cuuint64_t)p->batch},
                        {attention_stride_bytes(s.row_stride, rows), attention_stride_bytes(s.head_stride, heads),
                         attention_stride_bytes(s.batch_stride, p->batch)},
                        {64, (cuuint32_t)box_rows, 1, 1},
                        128};
    return tensormap_encode(map, t);
}

#endif
