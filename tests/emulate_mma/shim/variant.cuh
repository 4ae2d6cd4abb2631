#pragma once
#include <vector_types.h>
#undef __device__
#undef __host__
#undef __global__
#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
#undef __align__
#undef __shared__
#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
#include <cuda_runtime_api.h>
#undef __device__
#undef __host__
#undef __global__
#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
#undef __align__
#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
#include <math.h>
#include <string.h>
#include <stdlib.h>
#include <stdio.h>
#include <functional>
#include <vector>
#include <algorithm>
#include "variant.h"

extern uint3 threadIdx, blockIdx; extern dim3 blockDim, gridDim;
extern char *emu_smem;
void emu_sync();
uint64_t emu_shfl(uint64_t v, int src);
bool emu_any(bool v);
void emu_run(unsigned grid, int threads, int bytes, const std::function<void()> &f);
struct emu_config { dim3 grid; int threads; int bytes; void *stream; };
template <typename K, typename... A> void emu_launch(K *k, emu_config c, A... a) { emu_run(c.grid.x, c.threads, c.bytes, [&] { k(a...); }); }
#define EMU_CONFIG(...) emu_config{__VA_ARGS__}
inline void __syncthreads() { emu_sync(); }
void emu_warp_sync();
inline void __syncwarp() { emu_warp_sync(); }
inline float __shfl_xor_sync(unsigned, float x, int m) { uint32_t b; memcpy(&b, &x, 4); b = (uint32_t)emu_shfl(b, (threadIdx.x % 32) ^ m); memcpy(&x, &b, 4); return x; }
inline bool __any_sync(unsigned, bool v) { return emu_any(v); }
template <typename T> inline T __ldg(const T *p) { return *p; }
inline float __fmul_rn(float a, float b) { volatile float c = a * b; return c; }
inline uint32_t __float_as_uint(float x) { uint32_t b; memcpy(&b, &x, 4); return b; }
inline float __uint_as_float(uint32_t b) { float x; memcpy(&x, &b, 4); return x; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline uint32_t smem_address(const void *p) { return (uint32_t)((const char *)p - emu_smem) + 4096; }
inline int reread_thread_index() { return (int)threadIdx.x; }
inline char *emu_at(uint32_t a) { return emu_smem + a - 4096; }
extern int emu_bytes;
inline void emu_check(uint32_t a, int n) { if (a < 4096 || a - 4096 + n > (uint32_t)emu_bytes || a % n) { fprintf(stderr, "shared address %u of %d\n", a, emu_bytes); abort(); } }
inline uint32_t ld_shared_b32(uint32_t a) { emu_check(a, 4); uint32_t x; memcpy(&x, emu_at(a), 4); return x; }
void emu_bank(uint32_t a);
inline uint4 ld_shared_v4(uint32_t a) { emu_check(a, 16); emu_bank(a); uint4 x; memcpy(&x, emu_at(a), 16); return x; }
inline void emu_st32(uint32_t a, uint32_t x) { emu_check(a, 4); memcpy(emu_at(a), &x, 4); }
inline void emu_st128(uint32_t a, float x, float y, float z, float w) { emu_check(a, 16); float v[4] = {x, y, z, w}; memcpy(emu_at(a), v, 16); }
inline void griddepcontrol_launch_dependents() {}
inline void griddepcontrol_wait() {}
inline uint32_t pack_2(int, float, float) { abort(); }
inline float attention_exp2(float x) { return exp2f(x); }
inline float attention_rescale(float from, float to, float c) {
    return to == -INFINITY ? 1 : from == -INFINITY ? 0 : attention_exp2(__fmul_rn(from, c) - __fmul_rn(to, c));
}
static inline unsigned sat_blocks(int64_t work, int64_t each) { return (unsigned)sat_max(1, sat_min((work + each - 1) / each, (int64_t)1 << 30)); }
static inline sat_status sat_launched(const sat_launch *) { return SAT_OK; }
template <auto KERNEL, typename... ARGUMENTS>
static sat_status sat_start(const sat_launch *l, dim3 grid, int threads, int shared, const ARGUMENTS &...a) {
    emu_launch(KERNEL, emu_config{grid, threads, shared, NULL}, a...);
    return SAT_OK;
}
