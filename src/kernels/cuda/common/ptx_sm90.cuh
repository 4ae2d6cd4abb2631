/* PTX instructions of sm_90 and sm_90a as functions, under PTX's names: mbarrier with bytes, setmaxnreg, stmatrix,
 * wgmma; then TMA, the tensor memory accelerator: tensor maps, and the copies. Beside them is what several kernels
 * build on them: the staging of C in shared memory (SAT_STAGING), and the load of a tile of B (sat_load_b). */
#ifndef SAT_PTX_SM90_CUH
#define SAT_PTX_SM90_CUH

#include <cuda.h>

#include "variant.cuh"

/* ---- mbarrier: a barrier in shared memory that counts arrivals and bytes; `bar` is its address ---- */

__device__ __forceinline__ void mbarrier_init(uint32_t bar, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

/* Makes initialised mbarriers visible to TMA. */
__device__ __forceinline__ void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Arrives, and announces bytes that copies will bring before the phase can complete. */
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* Waits until the phase of this parity is complete. */
__device__ __forceinline__ void mbarrier_wait(uint32_t bar, uint32_t parity) {
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

/* Whether mbarrier_wait would return at once; the same answer for all lanes. */
__device__ __forceinline__ bool mbarrier_test_wait(uint32_t bar, uint32_t parity) {
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

/* Orders this thread's accesses to shared memory before later ones by TMA and wgmma. */
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* True for one lane of a converged warp. Unlike `lane == 0` it lets the compiler use uniform registers, without a loop
 * over lanes, for the operands of what only that lane does. */
__device__ __forceinline__ bool elect_one() {
    uint32_t yes = 0;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "elect.sync _|p, 0xffffffff;\n"
                 "@p mov.u32 %0, 1;\n"
                 "}"
                 : "+r"(yes));
    return yes;
}

/* ---- setmaxnreg: registers move between warpgroups; bar: named barriers of some warps ---- */

template <int COUNT> __device__ __forceinline__ void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
__device__ __forceinline__ void named_barrier_sync(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* ---- stmatrix: 16-bit results to shared memory, and on to global memory ---- */

/* Four 8x8 matrices of 16-bit elements to shared memory; lane l gives the address of row l%8 of matrix l/8. */
__device__ __forceinline__ void stmatrix_x4(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(a), "r"(b), "r"(c),
                 "r"(d)
                 : "memory");
}
__device__ __forceinline__ void stmatrix_x4_trans(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
}

/* The staging area of a warpgroup. It is [buffer][warp] for TMA stores and [warp][buffer] for all others, so a switch
 * from one to the other needs a barrier of the warpgroup. */
enum {
    SAT_STAGING_WARP = 16 * 128, // bytes of a warp's part of a staging buffer: 16 rows by 64 columns
    SAT_STAGING_BUFFERS = 2,     // one is filled while the other is stored
    SAT_STAGING = SAT_STAGING_BUFFERS * 4 * SAT_STAGING_WARP // bytes of a warpgroup
};

template <typename E> __device__ __forceinline__ void sat_pack_8(uint32_t (&w)[4], const float *v) {
#pragma unroll
    for (int e = 0; e < 4; e++) w[e] = pack_2(E(), v[2 * e], v[2 * e + 1]);
}

/* Sums to a staging buffer. A warp's 16 rows by W columns, a line is a row; or, TRANSPOSED, its part of a warpgroup's
 * 64 rows by W columns, a line is a column. */
template <typename E, int W, bool TRANSPOSED>
__device__ __forceinline__ void sat_write_staging(const float *d, uint32_t staging) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int q = 0; q < W / 16; q++) {
        uint32_t w[4];
        sat_pack_8<E>(w, &d[q * 8]);
        if (TRANSPOSED)
            stmatrix_x4_trans(staging + swizzled_offset(q * 16 + lane % 8 + lane / 16 * 8, warp * 2 + lane / 8 % 2),
                              w[0], w[1], w[2], w[3]);
        else stmatrix_x4(staging + swizzled_offset(lane % 16, q * 2 + lane / 16), w[0], w[1], w[2], w[3]);
    }
}

/* Stores a warp's 16 rows by W columns, of which `rows` and `columns` exist, to rows that are `pitch` elements apart.
 * Calls alternate between two staging buffers, so that no second barrier is needed. */
template <typename E, int W>
__device__ __forceinline__ void sat_store_rows_staged(const float (&d)[W / 2], uint32_t staging, E *to, int64_t pitch,
                                                      int rows, int columns) {
    constexpr int VECTORS = W / 8;
    int lane = threadIdx.x % 32, row = lane / VECTORS, vec16 = lane % VECTORS;
    sat_write_staging<E, W, false>(d, staging);
    __syncwarp();
    to += row * pitch + vec16 * 8;
#pragma unroll
    for (int e = 0; e < VECTORS / 2; e++) { // 32 / VECTORS rows at a time
        const int down = e * (32 / VECTORS);
        uint4 v = ld_shared_v4(staging + swizzled_offset(row + down, vec16));
        if (row + down < rows && vec16 * 8 < columns) __stcg((uint4 *)(to + down * pitch), v);
    }
}

/* ---- wgmma: matrix products of a warpgroup ---- */

/* The descriptor's swizzle mode for lines of 128, 64 or 32 bytes. */
__host__ __device__ constexpr int swizzle_mode_of(int line) { return line == 128 ? 1 : line == 64 ? 2 : 3; }

/* Describes an operand in shared memory. `swizzle`: swizzle_mode_of its lines. `leading` and `stride`: the leading
 * dimension and stride dimension byte offsets of PTX's matrix descriptor, in bytes. */
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t from, int swizzle, uint32_t leading, uint32_t stride) {
    return (uint64_t)((from & 0x3ffff) >> 4) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(stride >> 4) << 32 |
           (uint64_t)swizzle << 62;
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void wgmma_wait_group() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* d = a*b, or d += a*b with `scale_d`; m64nNk16, both operands from shared memory. A_MN_MAJOR: M is contiguous in a,
 * otherwise K. B_MN_MAJOR: N is contiguous in b, otherwise K. (PTX: imm-trans-a, imm-trans-b.) */
template <typename T, int N, int A_MN_MAJOR, int B_MN_MAJOR> struct wgmma_ss;

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

/* The accumulators come first among the operands of the asm, so the numbers of the others depend on how many there
 * are. */
#define SAT_WGMMA_SS(type, name, N, SUMS, LIST, OUT, a_, b_, ta_, tb_, scale_d_) \
    template <int A_MN_MAJOR, int B_MN_MAJOR> struct wgmma_ss<type, N, A_MN_MAJOR, B_MN_MAJOR> { \
        __device__ static __forceinline__ void run(float (&d)[SUMS], uint64_t a, uint64_t b, int scale_d) { \
            asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #scale_d_ ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." name \
                         "." name " {" LIST "}, %" #a_ ", %" #b_ ", p, 1, 1, %" #ta_ ", %" #tb_ "; }" \
                         : OUT \
                         : "l"(a), "l"(b), "n"(A_MN_MAJOR), "n"(B_MN_MAJOR), "r"(scale_d)); \
        } \
    };
#define SAT_WGMMA_SS_ALL(type, name) \
    SAT_WGMMA_SS(type, name, 16, 8, SAT_D8, SAT_SUMS8(d, 0), 8, 9, 10, 11, 12) \
    SAT_WGMMA_SS(type, name, 32, 16, SAT_D16, SAT_SUMS16, 16, 17, 18, 19, 20) \
    SAT_WGMMA_SS(type, name, 64, 32, SAT_D32, SAT_SUMS32(0), 32, 33, 34, 35, 36) \
    SAT_WGMMA_SS(type, name, 128, 64, SAT_D64, SAT_SUMS64, 64, 65, 66, 67, 68) \
    SAT_WGMMA_SS(type, name, 256, 128, SAT_D128, SAT_SUMS128, 128, 129, 130, 131, 132)
SAT_WGMMA_SS_ALL(sat_f16, "f16")
SAT_WGMMA_SS_ALL(sat_bf16, "bf16")
// clang-format on

/* ---- tensor maps, which describe a tensor in global memory; ptx_sm90.cu makes them on the host ---- */

/* A tensor and the box that one copy moves. Elements of a box outside the tensor are loaded as zero. Dimension 0 is
 * contiguous. */
struct sat_tensor_box {
    sat_dtype dtype;
    const void *base;
    int rank;
    cuuint64_t size[4], stride[3]; // strides in bytes
    cuuint32_t box[4];
    int swizzle_bytes; // the swizzle of the box in shared memory: 128, 64 or 32, the bytes of a line; 0: none
    bool tf32;         // f32 is rounded to TF32 by the copy
};

bool tensormap_encode(CUtensorMap *map, const sat_tensor_box &t);

/* Those of a matmul. A: boxes of `columns` columns by `lines` lines of the stored blocks, one below the other. B: tiles
 * as sat_load_b copies them. C: boxes of `rows` by `columns`; false where there cannot be one. */
bool tensormap_of_a(const sat_launch *l, int columns, int lines, CUtensorMap *map);
bool tensormap_of_b(const sat_launch *l, int depth, int columns, CUtensorMap *map);
bool tensormap_of_c(const sat_launch *l, int rows, int columns, CUtensorMap *map);

/* Whether a tensor map can describe a dense operand: row-major or column-major, its lines 16-byte aligned. */
bool tensormap_fits(const sat_problem *p, const sat_layout &l, int64_t rows, int64_t cols, uint32_t align,
                    int64_t size);
/* What the Hopper kernels of a matmul need, whatever their tiles: that, of A and B, and sizes that fit an int. */
bool tensormaps_fit_matmul(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d);

/* Whether the tensor maps of the last launch, encoded for the `count` pointers of `made_for`, are reused. False: they
 * are to be encoded again; `made_for` already has the new pointers. */
bool tensormaps_reuse(const void **made_for, int count, void *const *operands);
/* The error where encoding failed. It forces it again at the next launch. */
sat_status tensormaps_failed(const sat_launch *l, const void **made_for);

/* `prepare` of a family whose launches make tensor maps: allocates its state, all zero, and has `make` fill it. */
sat_status tensormap_prepare(const sat_prepare *q, size_t bytes, sat_status (*make)(const sat_prepare *q, void *state),
                             void **state);

/* ---- copies, on the device ---- */

/* From global to shared memory: the box whose first element has these coordinates. Its bytes count at mbarrier `bar`.
 */

__device__ __forceinline__ void tma_load(uint32_t to, const CUtensorMap *map, uint32_t bar, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
                 "[%2];" ::"r"(to),
                 "l"(map), "r"(bar), "r"(x), "r"(y)
                 : "memory");
}

__device__ __forceinline__ void tma_load(uint32_t to, const CUtensorMap *map, uint32_t bar, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, "
                 "%5}], [%2];" ::"r"(to),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

__device__ __forceinline__ void tma_load(uint32_t to, const CUtensorMap *map, uint32_t bar, int x, int y, int z,
                                         int w) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, "
                 "%5, %6}], [%2];" ::"r"(to),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}

/* Closes the bulk group of this thread's stores since the last one; without any the group is empty. */
__device__ __forceinline__ void bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/* From shared to global memory, each store a bulk group of its own. What is outside the tensor is not written. */
__device__ __forceinline__ void tma_store(const CUtensorMap *map, uint32_t from, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(from),
                 "r"(x), "r"(y)
                 : "memory");
    bulk_commit_group();
}
__device__ __forceinline__ void tma_store(const CUtensorMap *map, uint32_t from, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
                 "r"(from), "r"(x), "r"(y), "r"(z)
                 : "memory");
    bulk_commit_group();
}
/* Waits until all but the last PENDING stores of this thread have read shared memory. */
template <int PENDING> __device__ __forceinline__ void tma_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
__device__ __forceinline__ void tma_store_wait_all() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

__device__ __forceinline__ void prefetch_tensormap(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* ---- a tile of B for wgmma: DEPTH of its rows by COLUMNS of its columns ----
 *
 * B row-major arrives in chunks of 128 bytes a line (or COLUMNS columns, where those are fewer), each DEPTH lines long.
 * B column-major arrives in lines of DEPTH elements, one a column. */

/* B row-major and n a multiple of a chunk: a tensor map with three dimensions has all chunks in one TMA box. */
static inline bool sat_b_whole_chunks(const sat_problem *p) {
    return p->n % (128 / (int64_t)sat_dtype_size(p->b_dtype)) == 0;
}

/* By one lane: loads the tile of B whose first element is (k, n0). `whole`: sat_b_whole_chunks. SIZE: of an element. */
template <int DEPTH, int COLUMNS, bool B_COL_MAJOR, int SIZE = 2>
__device__ __forceinline__ void sat_load_b(const CUtensorMap *map, bool whole, uint32_t to, uint32_t bar, int k,
                                           int n0) {
    constexpr int CHUNK = 128 / SIZE;
    if (B_COL_MAJOR) {
        for (int i = 0; i < COLUMNS; i += 256) tma_load(to + i * DEPTH * SIZE, map, bar, k, n0 + i);
    } else if (COLUMNS >= CHUNK && whole) {
        tma_load(to, map, bar, 0, k, n0 / CHUNK);
    } else {
#pragma unroll 1
        for (int i = 0; i < COLUMNS; i += CHUNK) tma_load(to + i * DEPTH * SIZE, map, bar, n0 + i, k);
    }
}

#endif
