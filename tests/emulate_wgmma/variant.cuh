/* What a CUDA kernel family sees besides variant.h: elements of any dtype on the device, small helpers for registers
 * and shared memory, the block rows as a kernel iterates over them, the tile counter of persistent kernels, and
 * launching. */
#ifndef SAT_VARIANT_CUH
#define SAT_VARIANT_CUH

#include "emu.h"
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
inline uint32_t pack_2(__half, float x, float y) { __half h[2] = {(__half)x, (__half)y}; uint32_t w; memcpy(&w, h, 4); return w; }
inline uint32_t pack_2(__nv_bfloat16, float x, float y) { __nv_bfloat16 h[2] = {x, y}; uint32_t w; memcpy(&w, h, 4); return w; }
inline uint32_t smem_address(const void *p) { return (uint32_t)((const char *)p - (const char *)SMEM); }
inline int reread_thread_index() { return threadIdx.x; }
inline uint32_t keep_in_register(uint32_t x) { return x; }
template <typename T> T read_shared_broadcast(const T *from) { uint32_t word[sizeof(T) / 4]; bool one = threadIdx.x % 32 == 0;
 for (int i = 0; i < (int)(sizeof(T) / 4); i++) word[i] = __shfl_sync(~0u, one ? ((const uint32_t *)from)[i] : 0, 0);
 T r; memcpy(&r, word, sizeof r); return r; }
/* Offset of vector `vec16` of 16 bytes in lines of 128 bytes with the 128-byte swizzle, which avoids bank conflicts. */
__device__ __forceinline__ uint32_t swizzled_offset(int line, int vec16) {
    return line * 128 + (vec16 ^ (line & 7)) * 16;
}

inline uint32_t ld_shared_b32(uint32_t from) { uint32_t x; memcpy(&x, SMEM + from, 4); return x; }
inline uint4 ld_shared_v4(uint32_t from) { assert(from % 16 == 0); uint4 v; memcpy(&v, SMEM + from, 16); return v; }
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

/* ---- the tile counter of a persistent kernel ---- */

/* A CTA's first tile is blockIdx.x; it takes the numbers of further tiles from a counter in global memory. counter[0]:
 * tiles taken beyond each CTA's first; counter[1]: CTAs that have finished. Both are 0 between launches. */
enum { SAT_COUNTER_BYTES = 256 };

static inline sat_status sat_tile_counter_init(const sat_prepare *q, size_t, unsigned **c) { *c = (unsigned *)q->workspace; (*c)[0] = (*c)[1] = 0; return SAT_OK; }
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

inline void griddepcontrol_launch_dependents() {}
inline void griddepcontrol_wait() {}
template <auto KERNEL, typename... A> static sat_status sat_start(const sat_launch *, dim3 grid, int threads, int shared, const A &...a) {
 emu_run(grid.x, threads, shared, [&] { KERNEL(a...); }); return SAT_OK; }
#endif
