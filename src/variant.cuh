/* What a CUDA kernel family sees besides variant.h: elements of any dtype on the device, the block rows as a kernel
 * walks them, and launching. */
#ifndef SAT_VARIANT_CUH
#define SAT_VARIANT_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <pthread.h>

#include "variant.h"

/* ---- elements ---- */

/* Any element, by a dtype known at run time, in a type that is as wide; and back, rounded once. */
template <typename T> __device__ __forceinline__ T sat_load_as(T, sat_dtype t, const void *p, int64_t i) {
    switch (t) {
#define SAT_DTYPE(id, name, stored, on_device, ...)                                                                    \
    case id:                                                                                                           \
        return (T)((const on_device *)p)[i];
#include "base/dtypes.def"
#undef SAT_DTYPE
    }
    __builtin_unreachable();
}

template <typename T> __device__ __forceinline__ void sat_store_from(T x, sat_dtype t, void *p, int64_t i) {
    switch (t) {
#define SAT_DTYPE(id, name, stored, on_device, ...)                                                                    \
    case id:                                                                                                           \
        ((on_device *)p)[i] = (on_device)x;                                                                            \
        return;
#include "base/dtypes.def"
#undef SAT_DTYPE
    }
    __builtin_unreachable();
}

/* As doubles: for references, edges and checks. */
__device__ __forceinline__ double sat_device_load(sat_dtype t, const void *p, int64_t i) {
    return sat_load_as(0.0, t, p, i);
}
__device__ __forceinline__ void sat_device_store(sat_dtype t, void *p, int64_t i, double x) {
    sat_store_from(x, t, p, i);
}

/* ---- the matmul's block rows, as sat_op_rows has them, on the device ---- */

static inline sat_rows sat_device_rows(const sat_problem *p, const sat_pattern_view *a) {
    sat_rows r = sat_op_rows(p, a);
    if (sat_transposed(p)) r.ptr = a->device_t_ptr, r.col = a->device_t_row, r.block = a->device_t_block;
    else r.ptr = a->device_row_ptr, r.col = a->device_col_idx;
    return r;
}

/* ---- output: act(alpha*sum + beta*C + bias) ---- */

struct sat_epilogue {
    void *c;
    const void *bias; /* NULL: none */
    int64_t row_stride, col_stride, m, n;
    double alpha, beta;
    sat_dtype dtype;
    sat_activation activation;
};

static inline sat_epilogue sat_epilogue_of(const sat_launch *l) { /* a matmul's */
    const sat_problem *p = l->problem;
    sat_epilogue o = {l->operands[2],
                      sat_has_bias(p) ? l->operands[3] : NULL,
                      p->c.row_stride,
                      p->c.col_stride,
                      p->m,
                      p->n,
                      p->alpha,
                      p->beta,
                      p->c_dtype,
                      sat_activation_of(p)};
    return o;
}

__device__ __forceinline__ float sat_act(sat_activation act, float x) { return sat_act_f32(act, x); }
__device__ __forceinline__ double sat_act(sat_activation act, double x) { return sat_act_f64(act, x); }

/* What element (i, j) of C becomes, T the type of the sum. Of a long sum in parts the first one brings beta*C and the
 * bias, the others are added to what is in C then, and the activation is for the last. */
template <typename T>
__device__ __forceinline__ T sat_epilogue_apply(const sat_epilogue &o, int64_t i, int64_t j, T sum, bool first = true,
                                                bool last = true) {
    T y = (T)o.alpha * sum, beta = first ? (T)o.beta : T(1);
    if (beta != 0) y += beta * sat_load_as(T(), o.dtype, o.c, i * o.row_stride + j * o.col_stride);
    if (o.bias && first) y += sat_load_as(T(), o.dtype, o.bias, i);
    return last ? sat_act(o.activation, y) : y;
}

template <typename T>
__device__ __forceinline__ void sat_epilogue_store(const sat_epilogue &o, int64_t i, int64_t j, T sum,
                                                   bool first = true, bool last = true) {
    sat_store_from(sat_epilogue_apply(o, i, j, sum, first, last), o.dtype, o.c, i * o.row_stride + j * o.col_stride);
}

/* ---- estimates ---- */

/* For kernels that do everything in double precision and fetch each element when they need it. */
static inline double sat_reference_estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                                            const sat_device *d) {
    (void)v;
    return sat_roofline(d, SAT_F64, sat_flops(p, a), 0.02, 40 * sat_bytes(p, a));
}

/* ---- launching ---- */

static inline unsigned sat_blocks(int64_t work, int64_t each) { /* at most 2^30; kernels stride over the rest */
    return (unsigned)sat_max(1, sat_min((work + each - 1) / each, (int64_t)1 << 30));
}

static inline sat_status sat_cuda_status(const sat_launch *l, cudaError_t error) {
    if (error == cudaSuccess) return SAT_OK;
    return sat_fail(error == cudaErrorMemoryAllocation ? SAT_OUT_OF_MEMORY : SAT_DEVICE_ERROR, "%s: %s",
                    l->variant->name, cudaGetErrorString(error));
}

static inline sat_status sat_launched(const sat_launch *l) { /* after <<<...>>> */
    return sat_cuda_status(l, cudaGetLastError());
}

/* A kernel that sat_start launches begins while the one before it on the stream still ends, on Hopper and later. It
 * calls both of these, the first at its very start, the other before it touches what any other kernel may write or
 * read: operands, partial sums, counters. What a plan alone has written it may read before. */
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void griddepcontrol_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* What a kernel needs before it asks for so much shared memory on a device: the permission. And whether its code waits
 * for the kernel before it. */
static inline cudaError_t sat_make_ready(const void *kernel, int shared, const sat_device *d, bool *early) {
    cudaFuncAttributes a;
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (e == cudaSuccess) e = cudaFuncGetAttributes(&a, kernel);
    *early = e == cudaSuccess && d->capability >= 90 && a.ptxVersion >= 90 && d->driver >= 12030;
    return e;
}

/* Launches KERNEL. */
template <auto KERNEL, typename... ARGUMENTS>
static sat_status sat_start(const sat_launch *l, unsigned grid, int threads, int shared,
                            const ARGUMENTS &...arguments) {
    // By device: 2 * (bytes of shared memory that are allowed, and one more) + whether it begins early; 0: not asked
    // yet. Permissions only grow, one thread at a time: a smaller one would take back what another thread relies on.
    enum { DEVICES = 64 }; // those beyond ask every time
    static int known[DEVICES];
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    int unknown = 0, *mine = l->device->index < DEVICES ? &known[l->device->index] : &unknown;
    int state = __atomic_load_n(mine, __ATOMIC_ACQUIRE);
    if (state / 2 <= shared) {
        bool early = false;
        cudaError_t e = cudaSuccess;
        pthread_mutex_lock(&one_at_a_time);
        state = __atomic_load_n(mine, __ATOMIC_ACQUIRE);
        if (state / 2 <= shared) {
            e = sat_make_ready((const void *)KERNEL, shared, l->device, &early);
            if (e == cudaSuccess) __atomic_store_n(mine, state = 2 * (shared + 1) + early, __ATOMIC_RELEASE);
        }
        pthread_mutex_unlock(&one_at_a_time);
        if (e != cudaSuccess) return (void)cudaGetLastError(), sat_cuda_status(l, e);
    }
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t how = {};
    how.gridDim = dim3(grid), how.blockDim = dim3((unsigned)threads), how.dynamicSmemBytes = (size_t)shared;
    how.stream = (cudaStream_t)l->stream, how.attrs = &attribute, how.numAttrs = state % 2;
    void *all[] = {(void *)&arguments...};
    cudaError_t e = cudaLaunchKernelExC(&how, (const void *)KERNEL, all);
    if (e != cudaSuccess) (void)cudaGetLastError();
    return sat_cuda_status(l, e);
}

#endif
