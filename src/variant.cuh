/* What a CUDA kernel family sees besides variant.h: elements of any dtype on the device, small helpers for registers
 * and shared memory, the block rows as a kernel iterates over them, the tile counter of persistent kernels, and
 * launching. */
#ifndef SAT_VARIANT_CUH
#define SAT_VARIANT_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <pthread.h>
#include <stdlib.h>

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

/* ---- registers and shared memory; addresses of shared memory are 32-bit, as smem_address gives them ---- */

/* The element type of a kernel's 16-bit operands, as a template argument. */
struct sat_f16 {
    typedef __half element;
    static constexpr sat_dtype dtype = SAT_F16;
};
struct sat_bf16 {
    typedef __nv_bfloat16 element;
    static constexpr sat_dtype dtype = SAT_BF16;
};

/* Two elements in a word, x in the lower half. */
__device__ __forceinline__ uint32_t pack_2(__half, float x, float y) {
    __half2 h = __floats2half2_rn(x, y);
    return *(uint32_t *)&h;
}
__device__ __forceinline__ uint32_t pack_2(__nv_bfloat16, float x, float y) {
    __nv_bfloat162 h = __floats2bfloat162_rn(x, y);
    return *(uint32_t *)&h;
}

__device__ __forceinline__ uint32_t smem_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* threadIdx.x, read again: what is computed from it is not kept in registers across a loop. */
__device__ __forceinline__ int reread_thread_index() {
    int t;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
    return t;
}

/* Keeps a value in its register: the compiler does not compute it again where it is used. */
__device__ __forceinline__ uint32_t keep_in_register(uint32_t x) {
    asm volatile("" : "+r"(x));
    return x;
}

/* Lane 0 reads shared memory for the whole warp. So the lane that then arrives at an `empty` barrier is the one that
 * has read. */
template <typename T> __device__ __forceinline__ T read_shared_broadcast(const T *from) {
    static_assert(sizeof(T) % 4 == 0, "words");
    uint32_t word[sizeof(T) / 4];
    bool one = threadIdx.x % 32 == 0;
#pragma unroll
    for (int i = 0; i < (int)(sizeof(T) / 4); i++) word[i] = __shfl_sync(~0u, one ? ((const uint32_t *)from)[i] : 0, 0);
    T read;
    memcpy(&read, word, sizeof read);
    return read;
}

/* Offset of vector `vec16` of 16 bytes in lines of 128 bytes with the 128-byte swizzle, which avoids bank conflicts. */
__device__ __forceinline__ uint32_t swizzled_offset(int line, int vec16) {
    return line * 128 + (vec16 ^ (line & 7)) * 16;
}

__device__ __forceinline__ uint32_t ld_shared_b32(uint32_t from) {
    uint32_t x;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
    return x;
}
__device__ __forceinline__ uint4 ld_shared_v4(uint32_t from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}

/* ---- the matmul's block rows, as sat_op_rows has them, on the device ---- */

static inline sat_rows sat_device_rows(const sat_problem *p, const sat_pattern_view *a) {
    sat_rows r = sat_op_rows(p, a);
    if (sat_transposed(p))
        r.ptr = a->device_t_ptr, r.end = sat_next(r.ptr), r.col = a->device_t_row, r.block = a->device_t_block;
    else r.ptr = a->device_row_ptr, r.end = a->device_row_end, r.col = a->device_col_idx;
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

/* ---- the tile counter of a persistent kernel ---- */

/* A CTA's first tile is blockIdx.x; it takes the numbers of further tiles from a counter in global memory. counter[0]:
 * tiles taken beyond each CTA's first; counter[1]: CTAs that have finished. Both are 0 between launches. */
enum { SAT_COUNTER_BYTES = 256 };

/* Sets the counter, the last SAT_COUNTER_BYTES of a workspace of `bytes`, to zero. */
static inline sat_status sat_tile_counter_init(const sat_prepare *q, size_t bytes, unsigned **counter) {
    *counter = (unsigned *)((char *)q->workspace + bytes - SAT_COUNTER_BYTES);
    cudaError_t e = cudaMemsetAsync(*counter, 0, SAT_COUNTER_BYTES, (cudaStream_t)q->stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize((cudaStream_t)q->stream);
    return e == cudaSuccess ? SAT_OK : sat_fail(SAT_DEVICE_ERROR, "%s: %s", q->variant->name, cudaGetErrorString(e));
}

/* By all threads at the end of a kernel: the last CTA sets the counter back to zero for the next launch. */
__device__ __forceinline__ void sat_tile_counter_end(unsigned *counter, unsigned tiles) {
    if (gridDim.x >= tiles) return; /* nobody took a number */
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(counter + 1, 1u) == gridDim.x - 1) counter[0] = counter[1] = 0;
}

/* ---- launching ---- */

static inline unsigned sat_blocks(int64_t work, int64_t each) { /* at most 2^30; kernels stride over the rest */
    return (unsigned)sat_max(1, sat_min((work + each - 1) / each, (int64_t)1 << 30));
}

/* `release` of a family whose state is one allocation. */
static inline void sat_release_state(const sat_variant *v, void *state) {
    (void)v;
    free(state);
}

static inline sat_status sat_cuda_status(const sat_launch *l, cudaError_t error) {
    if (error == cudaSuccess) return SAT_OK;
    return sat_fail(error == cudaErrorMemoryAllocation ? SAT_OUT_OF_MEMORY : SAT_DEVICE_ERROR, "%s: %s",
                    l->variant->name, cudaGetErrorString(error));
}

static inline sat_status sat_launched(const sat_launch *l) { /* after <<<...>>> */
    return sat_cuda_status(l, cudaGetLastError());
}

/* sat_start uses programmatic dependent launch (PDL) on Hopper and later: a kernel begins while the one before it on
 * the stream still runs. So a kernel calls both of these. The first, at its very start, lets the next kernel begin. The
 * other waits until the kernel before has ended; it comes before any access to what another kernel may write or read:
 * operands, partial sums, counters. What a plan alone has written may be read before; so where indices change, and the
 * kernel before has written them, it is launched without PDL. */
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

/* Allows a kernel so much shared memory on a device. `pdl`: whether it is launched by PDL, which needs code that was
 * compiled for sm_90 and so has griddepcontrol.wait. */
static inline cudaError_t sat_make_ready(const void *kernel, int shared, const sat_device *d, bool *pdl) {
    cudaFuncAttributes a;
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (e == cudaSuccess) e = cudaFuncGetAttributes(&a, kernel);
    *pdl = e == cudaSuccess && d->capability >= 90 && a.ptxVersion >= 90 && d->driver >= 12030;
    return e;
}

/* Launches KERNEL. */
template <auto KERNEL, typename... ARGUMENTS>
static sat_status sat_start(const sat_launch *l, dim3 grid, int threads, int shared, const ARGUMENTS &...arguments) {
    // By device: 2 * (bytes of shared memory that are allowed, and one more) + whether it is launched by PDL; 0: not
    // asked yet. Permissions only grow, one thread at a time: a smaller one would take back what another thread relies
    // on.
    enum { DEVICES = 64 }; // those beyond ask every time
    static int known[DEVICES];
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    int unknown = 0, *mine = l->device->index < DEVICES ? &known[l->device->index] : &unknown;
    int state = __atomic_load_n(mine, __ATOMIC_ACQUIRE);
    if (state / 2 <= shared) {
        bool pdl = false;
        cudaError_t e = cudaSuccess;
        pthread_mutex_lock(&one_at_a_time);
        state = __atomic_load_n(mine, __ATOMIC_ACQUIRE);
        if (state / 2 <= shared) {
            e = sat_make_ready((const void *)KERNEL, shared, l->device, &pdl);
            if (e == cudaSuccess) __atomic_store_n(mine, state = 2 * (shared + 1) + pdl, __ATOMIC_RELEASE);
        }
        pthread_mutex_unlock(&one_at_a_time);
        if (e != cudaSuccess) return (void)cudaGetLastError(), sat_cuda_status(l, e);
    }
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t how = {};
    how.gridDim = grid, how.blockDim = dim3((unsigned)threads), how.dynamicSmemBytes = (size_t)shared;
    how.stream = (cudaStream_t)l->stream, how.attrs = &attribute,
    how.numAttrs = l->pattern && l->pattern->dynamic ? 0 : state % 2;
    void *all[] = {(void *)&arguments...};
    cudaError_t e = cudaLaunchKernelExC(&how, (const void *)KERNEL, all);
    if (e != cudaSuccess) (void)cudaGetLastError();
    return sat_cuda_status(l, e);
}

#endif
