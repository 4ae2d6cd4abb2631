/* TMA, Hopper's tensor memory accelerator: tensor maps, which describe a tensor in global memory and the box that one
 * copy moves, and the copies themselves. */
#ifndef SAT_TMA_CUH
#define SAT_TMA_CUH

#include <cuda.h>

#include "kernels/cuda/common/ptx.cuh"

typedef CUresult (*tensormap_encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                        const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
                                        CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                        CUtensorMapFloatOOBfill);

/* ---- tensor maps, made by the driver on the host ---- */

/* The driver's cuTensorMapEncodeTiled; NULL: this driver has none. */
static inline tensormap_encode_fn tensormap_encoder() {
    static tensormap_encode_fn found; // every thread writes the same value
    if (found) return found;
    void *function = NULL;
    cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    cudaError_t e =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result);
#else
    cudaError_t e = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &result);
#endif
    if (e != cudaSuccess || result != cudaDriverEntryPointSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    return found = (tensormap_encode_fn)function;
}

/* A tensor and the box that one copy moves. Elements of a box outside the tensor are loaded as zero. Dimension 0 is
 * contiguous. */
struct sat_tensor_box {
    sat_dtype dtype;
    const void *base;
    int rank;
    cuuint64_t size[4], stride[3]; // strides in bytes
    cuuint32_t box[4];
    int row_bytes; // swizzle of the box in shared memory, for lines of 128, 64 or 32 bytes; 0: none
    bool tf32;     // f32 is rounded to TF32 by the copy
};

static inline bool tensormap_encode(CUtensorMap *map, const sat_tensor_box &t) {
    static const cuuint32_t ones[4] = {1, 1, 1, 1};
    CUtensorMapDataType type = t.tf32               ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
                               : t.dtype == SAT_F32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                               : t.dtype == SAT_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                    : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    CUtensorMapSwizzle swizzle = t.row_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                 : t.row_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                 : t.row_bytes == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                     : CU_TENSOR_MAP_SWIZZLE_NONE;
    return tensormap_encoder()(map, type, (cuuint32_t)t.rank, (void *)t.base, t.size, t.stride, t.box, ones,
                               CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Whether tensor maps made for the pointers `of` serve these operands too. Sets `of` to the operands. */
template <int N> static inline bool tensormaps_current(const void *(&of)[N], void *const *operands) {
    bool same = true;
    for (int i = 0; i < N; i++) same = same && of[i] == operands[i], of[i] = operands[i];
    return same;
}

template <int N> static inline sat_status tensormap_failed(const sat_launch *l, const void *(&of)[N]) {
    of[0] = NULL;
    return sat_fail(SAT_DEVICE_ERROR, "%s: no tensor map", l->variant->name);
}

/* Whether a tensor map can describe a dense operand: row-major or column-major, its lines 16-byte aligned. */
static inline bool tensormap_fits(const sat_problem *p, const sat_layout &l, int64_t rows, int64_t cols, uint32_t align,
                                  int64_t size) {
    bool column_major = l.col_stride != 1;
    int64_t lead = column_major ? l.col_stride : l.row_stride, line = column_major ? rows : cols;
    if (column_major && l.row_stride != 1) return false;
    if (p->batch > 1 && l.batch_stride * size % 16 != 0) return false;
    return align % 16 == 0 && lead * size % 16 == 0 && lead >= line && lead < (1ll << 36);
}

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

/* From shared to global memory, each store a bulk group of its own. What is outside the tensor is not written. */
__device__ __forceinline__ void tma_store(const CUtensorMap *map, uint32_t from, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(from),
                 "r"(x), "r"(y)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* An empty group, so that tma_store_wait_read counts the same number of groups where a store was left out. */
__device__ __forceinline__ void tma_store_commit_empty_group() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* Waits until all but the last PENDING stores of this thread have read shared memory. */
template <int PENDING> __device__ __forceinline__ void tma_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
__device__ __forceinline__ void tma_store_wait_all() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

__device__ __forceinline__ void prefetch_tensormap(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* ---- a tile of B for wgmma, 16-bit: DEPTH of its rows by COLUMNS of its columns ----
 *
 * B row-major arrives in chunks of 64 columns (or COLUMNS, where those are fewer), each DEPTH lines long. B
 * column-major arrives in lines of DEPTH elements, one a column. */

/* B row-major and n a multiple of 64: a tensor map with three dimensions lets one copy bring all chunks. */
static inline bool sat_b_whole_chunks(const sat_problem *p) { return p->n % 64 == 0; }

template <int DEPTH, int COLUMNS> struct sat_b_loader {
    static constexpr int CHUNK = COLUMNS < 64 ? COLUMNS : 64, MOST = COLUMNS < 256 ? COLUMNS : 256; // columns of a copy

    static bool map(const sat_problem *p, const void *b, CUtensorMap *to) {
        cuuint64_t n = (cuuint64_t)p->n, k = (cuuint64_t)p->k;
        bool column_major = p->b.col_stride != 1;
        cuuint64_t lead = (cuuint64_t)(column_major ? p->b.col_stride : p->b.row_stride) * 2;
        sat_tensor_box t = {p->b_dtype, b, 2, {n, k}, {lead}, {CHUNK, DEPTH}, CHUNK * 2};
        if (column_major) t = {p->b_dtype, b, 2, {k, n}, {lead}, {DEPTH, MOST}, DEPTH * 2};
        else if (CHUNK == 64 && sat_b_whole_chunks(p))
            t = {p->b_dtype, b, 3, {64, k, n / 64}, {lead, 128}, {64, DEPTH, COLUMNS / 64}, 128};
        return tensormap_encode(to, t);
    }

    /* By one lane: loads the tile whose first element is (k, n0). `whole`: sat_b_whole_chunks. */
    template <bool B_COL_MAJOR>
    __device__ static __forceinline__ void load(const CUtensorMap *map, bool whole, uint32_t to, uint32_t bar, int k,
                                                int n0) {
        if (B_COL_MAJOR) {
            for (int i = 0; i < COLUMNS; i += 256) tma_load(to + i * DEPTH * 2, map, bar, k, n0 + i);
        } else if (CHUNK == 64 && whole) {
            tma_load(to, map, bar, 0, k, n0 / 64);
        } else {
#pragma unroll 1
            for (int i = 0; i < COLUMNS; i += 64) tma_load(to + i * DEPTH * 2, map, bar, n0 + i, k);
        }
    }
};

#endif
