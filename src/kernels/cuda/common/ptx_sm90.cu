/* Makes tensor maps, on the host, by the driver. */
#include "kernels/cuda/common/ptx_sm90.cuh"

typedef CUresult (*tensormap_encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                        const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
                                        CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                        CUtensorMapFloatOOBfill);

/* The driver's cuTensorMapEncodeTiled; NULL: this driver has none. */
static tensormap_encode_fn tensormap_encoder() {
    static tensormap_encode_fn found; // threads that look at the same time store the same value
    tensormap_encode_fn encode = __atomic_load_n(&found, __ATOMIC_RELAXED);
    if (encode) return encode;
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
    encode = (tensormap_encode_fn)function;
    __atomic_store_n(&found, encode, __ATOMIC_RELAXED);
    return encode;
}

bool tensormap_encode(CUtensorMap *map, const sat_tensor_box &t) {
    static const cuuint32_t ones[4] = {1, 1, 1, 1};
    CUtensorMapDataType type;
    switch (t.dtype) {
    case SAT_F32: type = t.tf32 ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32; break;
    case SAT_F16: type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16; break;
    case SAT_BF16: type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16; break;
    default: return false;
    }
    CUtensorMapSwizzle swizzle = t.swizzle_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                 : t.swizzle_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                 : t.swizzle_bytes == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                         : CU_TENSOR_MAP_SWIZZLE_NONE;
    return tensormap_encoder()(map, type, (cuuint32_t)t.rank, (void *)t.base, t.size, t.stride, t.box, ones,
                               CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

bool tensormaps_reuse(const void **made_for, int count, void *const *operands) {
    bool same = true;
    for (int i = 0; i < count; i++) same = same && made_for[i] == operands[i], made_for[i] = operands[i];
    return same;
}

sat_status tensormaps_failed(const sat_launch *l, const void **made_for) {
    made_for[0] = NULL;
    return sat_fail(SAT_DEVICE_ERROR, "%s: no tensor map", l->variant->name);
}

sat_status tensormap_prepare(const sat_prepare *q, size_t bytes, sat_status (*make)(const sat_prepare *q, void *state),
                             void **state) {
    if (!tensormap_encoder())
        return sat_fail(SAT_DEVICE_ERROR, "%s: this driver makes no tensor maps", q->variant->name);
    void *made = calloc(1, bytes);
    if (!made) return sat_fail(SAT_OUT_OF_MEMORY, "%s: state", q->variant->name);
    sat_status status = make(q, made);
    if (status == SAT_OK) *state = made;
    else free(made);
    return status;
}

bool tensormap_fits(const sat_problem *p, const sat_layout &l, int64_t rows, int64_t cols, uint32_t align,
                    int64_t size) {
    bool column_major = l.col_stride != 1;
    int64_t lead = column_major ? l.col_stride : l.row_stride, line = column_major ? rows : cols;
    if (column_major && l.row_stride != 1) return false;
    if (p->batch > 1 && l.batch_stride * size % 16 != 0) return false;
    return align % 16 == 0 && lead * size % 16 == 0 && lead >= line && lead < (1ll << 36);
}

/* ---- matmul ---- */

bool tensormaps_fit_matmul(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    int64_t size = (int64_t)sat_dtype_size(p->a_dtype);
    if (d->capability != 90 || p->a_dtype != v->instance.dtype || a->stored_blocks == 0 || p->n == 0) return false;
    if (r.k % r.bc || p->a_align % 16 || (p->batch > 1 && p->a.batch_stride * size % 16 != 0)) return false;
    if (a->stored_blocks * sat_max(a->block_rows, a->block_cols) > 0x7fffffff) return false;
    if (sat_max(r.count * r.br, sat_max(p->n, p->k)) > 0x7fff0000) return false;
    return tensormap_fits(p, p->b, p->k, p->n, p->b_align, size);
}

bool tensormap_of_a(const sat_launch *l, int columns, int lines, CUtensorMap *map) {
    const sat_pattern_view *a = l->pattern;
    cuuint64_t size = sat_dtype_size(l->problem->a_dtype), width = (cuuint64_t)a->block_cols;
    sat_tensor_box t = {l->problem->a_dtype,
                        l->operands[0],
                        2,
                        {width, (cuuint64_t)(a->stored_blocks * a->block_rows)},
                        {width * size},
                        {(cuuint32_t)columns, (cuuint32_t)lines},
                        columns * (int)size,
                        true};
    return tensormap_encode(map, t);
}

bool tensormap_of_b(const sat_launch *l, int depth, int columns, CUtensorMap *map) {
    const sat_problem *p = l->problem;
    const int size = (int)sat_dtype_size(p->b_dtype), chunk = (int)sat_min(columns, 128 / size);
    const bool column_major = p->b.col_stride != 1;
    const cuuint64_t n = (cuuint64_t)p->n, k = (cuuint64_t)p->k;
    const cuuint64_t lead = (cuuint64_t)((column_major ? p->b.col_stride : p->b.row_stride) * size);
    sat_tensor_box t = {
        p->b_dtype, l->operands[1], 2, {n, k}, {lead}, {(cuuint32_t)chunk, (cuuint32_t)depth}, chunk * size, true};
    if (column_major) {
        t.size[0] = k, t.size[1] = n;
        t.box[0] = (cuuint32_t)depth, t.box[1] = (cuuint32_t)sat_min(columns, 256), t.swizzle_bytes = depth * size;
    } else if (chunk * size == 128 && sat_b_whole_chunks(p)) {
        t.rank = 3, t.size[0] = (cuuint64_t)chunk, t.size[2] = n / (cuuint64_t)chunk;
        t.stride[1] = 128, t.box[2] = (cuuint32_t)(columns / chunk);
    }
    return tensormap_encode(map, t);
}

bool tensormap_of_c(const sat_launch *l, int rows, int columns, CUtensorMap *map) {
    const sat_problem *p = l->problem;
    if (!tensormap_fits(p, p->c, p->m, p->n, p->c_align, 2)) return false;
    bool column_major = p->c.col_stride != 1;
    cuuint64_t m = (cuuint64_t)p->m, n = (cuuint64_t)p->n;
    cuuint32_t down = (cuuint32_t)rows, across = (cuuint32_t)columns;
    sat_tensor_box t = {p->c_dtype,     l->operands[2], 2, {n, m}, {(cuuint64_t)p->c.row_stride * 2},
                        {across, down}, columns * 2};
    if (column_major)
        t = {p->c_dtype, l->operands[2], 2, {m, n}, {(cuuint64_t)p->c.col_stride * 2}, {down, across}, rows * 2};
    return tensormap_encode(map, t);
}
