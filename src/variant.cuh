/* What a CUDA kernel family sees besides variant.h: elements of any dtype on the device, the block rows as a kernel
 * walks them, the epilogue, and launching. */
#ifndef SAT_VARIANT_CUH
#define SAT_VARIANT_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "variant.h"

/* ---- elements ---- */

template <typename T> struct sat_type;
template <> struct sat_type<float> {
    static constexpr sat_dtype id = SAT_F32;
    typedef float compute;
};
template <> struct sat_type<double> {
    static constexpr sat_dtype id = SAT_F64;
    typedef double compute;
};
template <> struct sat_type<__half> {
    static constexpr sat_dtype id = SAT_F16;
    typedef float compute;
};
template <> struct sat_type<__nv_bfloat16> {
    static constexpr sat_dtype id = SAT_BF16;
    typedef float compute;
};

__device__ __forceinline__ float sat_get(const float *p) { return *p; }
__device__ __forceinline__ double sat_get(const double *p) { return *p; }
__device__ __forceinline__ float sat_get(const __half *p) { return __half2float(*p); }
__device__ __forceinline__ float sat_get(const __nv_bfloat16 *p) { return __bfloat162float(*p); }
__device__ __forceinline__ void sat_put(float *p, float x) { *p = x; }
__device__ __forceinline__ void sat_put(double *p, double x) { *p = x; }
__device__ __forceinline__ void sat_put(__half *p, float x) { *p = __float2half_rn(x); }
__device__ __forceinline__ void sat_put(__nv_bfloat16 *p, float x) { *p = __float2bfloat16_rn(x); }

/* Any element as a double, by a dtype known at run time: for references, edges and checks. */
__device__ __forceinline__ double sat_device_load(sat_dtype t, const void *p, int64_t i) {
    switch (t) {
    case SAT_F64: return ((const double *)p)[i];
    case SAT_F32: return (double)((const float *)p)[i];
    case SAT_F16: return (double)__half2float(((const __half *)p)[i]);
    default: return (double)__bfloat162float(((const __nv_bfloat16 *)p)[i]);
    }
}

__device__ __forceinline__ void sat_device_store(sat_dtype t, void *p, int64_t i, double x) {
    switch (t) {
    case SAT_F64: ((double *)p)[i] = x; break;
    case SAT_F32: ((float *)p)[i] = (float)x; break;
    case SAT_F16: ((__half *)p)[i] = __float2half_rn((float)x); break;
    default: ((__nv_bfloat16 *)p)[i] = __float2bfloat16_rn((float)x); break;
    }
}

/* ---- the matmul's block rows, as sat_op_rows has them, on the device ---- */

static inline sat_rows sat_device_rows(const sat_problem *p, const sat_pattern_view *a) {
    sat_rows r = sat_op_rows(p, a);
    if (p->transpose == SAT_TRANSPOSE) r.ptr = a->device_t_ptr, r.col = a->device_t_row, r.block = a->device_t_block;
    else r.ptr = a->device_row_ptr, r.col = a->device_col_idx;
    return r;
}

__device__ __forceinline__ int64_t sat_device_block(const sat_rows &r, int64_t i) { return r.block ? r.block[i] : i; }

/* ---- epilogue: act(alpha*sum + beta*C + bias) ---- */

__device__ __forceinline__ float sat_device_act(sat_activation act, float x) {
    switch (act) {
    case SAT_ACT_RELU: return x > 0 ? x : x != x ? x : 0;
    case SAT_ACT_GELU: return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case SAT_ACT_SILU: return x / (1.0f + expf(-x));
    default: return x;
    }
}

__device__ __forceinline__ double sat_device_act(sat_activation act, double x) {
    switch (act) {
    case SAT_ACT_RELU: return x > 0 ? x : x != x ? x : 0;
    case SAT_ACT_GELU: return 0.5 * x * (1.0 + erf(x * 0.70710678118654752440));
    case SAT_ACT_SILU: return x / (1.0 + exp(-x));
    default: return x;
    }
}

/* ---- launching ---- */

static inline unsigned sat_blocks(int64_t work, int64_t each) { /* at most 2^30; kernels stride over the rest */
    return (unsigned)sat_max(1, sat_min((work + each - 1) / each, (int64_t)1 << 30));
}

static inline sat_status sat_launched(const sat_launch *l) { /* after <<<...>>> */
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess) return SAT_OK;
    return sat_fail(SAT_DEVICE_ERROR, "%s: %s", l->variant->name, cudaGetErrorString(error));
}

#endif
