/* Tensor maps, which describe a matrix in memory to the copy engine, made by the driver (Hopper). */
#ifndef SAT_TENSOR_MAP_CUH
#define SAT_TENSOR_MAP_CUH

#include <cuda.h>

#include "variant.cuh"

typedef CUresult (*sat_encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                  const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                                  CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* NULL: this driver has no such function. */
static inline sat_encode_fn sat_map_encoder() {
    static sat_encode_fn found; // written once, to the same value by whoever comes first
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
    return found = (sat_encode_fn)function;
}

/* A matrix, or a pile of them, and the box that one copy brings. What a box has outside arrives as zero. */
struct sat_tensor {
    sat_dtype dtype;
    const void *base;
    int rank;
    cuuint64_t size[4], stride[3]; // strides in bytes
    cuuint32_t box[4];
    int row_bytes; // of the box in shared memory: 128, 64 or 32, exchanged as wgmma and ldmatrix like it; 0: as it is
    bool tf32;     // f32 is rounded to TF32 on its way
};

static inline bool sat_map_encode(CUtensorMap *map, const sat_tensor &t) {
    static const cuuint32_t ones[4] = {1, 1, 1, 1};
    CUtensorMapDataType type = t.tf32               ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
                               : t.dtype == SAT_F32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                               : t.dtype == SAT_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                    : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    CUtensorMapSwizzle swizzle = t.row_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                 : t.row_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                 : t.row_bytes == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                     : CU_TENSOR_MAP_SWIZZLE_NONE;
    return sat_map_encoder()(map, type, (cuuint32_t)t.rank, (void *)t.base, t.size, t.stride, t.box, ones,
                             CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Whether maps that were made for `of` serve these operands, too; if not, `of` is what they are made for next. */
template <int N> static inline bool sat_maps_serve(const void *(&of)[N], void *const *operands) {
    bool same = true;
    for (int i = 0; i < N; i++) same = same && of[i] == operands[i], of[i] = operands[i];
    return same;
}

template <int N> static inline sat_status sat_no_map(const sat_launch *l, const void *(&of)[N]) {
    of[0] = NULL;
    return sat_fail(SAT_DEVICE_ERROR, "%s: no tensor map", l->variant->name);
}

/* Whether maps can describe a dense operand: lines, in either direction, that start at multiples of 16 bytes. */
static inline bool sat_map_fits(const sat_problem *p, const sat_layout &l, int64_t rows, int64_t cols, uint32_t align,
                                int64_t size) {
    bool turned = l.col_stride != 1;
    int64_t lead = turned ? l.col_stride : l.row_stride, line = turned ? rows : cols;
    if (turned && l.row_stride != 1) return false;
    if (p->batch > 1 && l.batch_stride * size % 16 != 0) return false;
    return align % 16 == 0 && lead * size % 16 == 0 && lead >= line && lead < (1ll << 36);
}

#endif
