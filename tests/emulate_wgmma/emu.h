#pragma once
#define __device__
#define __host__
#define __global__
#define __shared__ static
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <cstdlib>
#include <functional>
#include <map>
#include <vector>
#include <algorithm>
typedef _Float16 __half;
struct __nv_bfloat16 { uint16_t b; __nv_bfloat16() : b(0) {} __nv_bfloat16(float f) { uint32_t u; memcpy(&u, &f, 4); if (f != f) b = 0x7fff; else b = (u + 0x7fff + (u >> 16 & 1)) >> 16; }
 operator float() const { uint32_t u = (uint32_t)b << 16; float f; memcpy(&f, &u, 4); return f; } };
struct uint4 { uint32_t x, y, z, w; }; struct float4 { float x, y, z, w; }; struct float2 { float x, y; }; struct double2 { double x, y; };
inline uint4 make_uint4(uint32_t a, uint32_t b, uint32_t c, uint32_t d) { return {a, b, c, d}; }
inline float4 make_float4(float a, float b, float c, float d) { return {a, b, c, d}; }
inline float2 make_float2(float a, float b) { return {a, b}; } inline double2 make_double2(double a, double b) { return {a, b}; }
template <typename T> void __stcg(T *p, T v) { assert((uintptr_t)p % sizeof(T) == 0); *p = v; }
struct dim3 { unsigned x, y, z; dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {} };
extern dim3 threadIdx, blockIdx, gridDim, blockDim;
extern char *SMEM;
struct emu_mbar { int count, pending, tx, phase; }; extern std::map<uint32_t, emu_mbar> emu_bar;
void emu_yield(); void emu_gather64(uint64_t *all, uint64_t mine);
template <typename T> void emu_gather(T *all, T mine) { uint64_t w = 0, a[32]; memcpy(&w, &mine, sizeof(T)); emu_gather64(a, w); for (int i = 0; i < 32; i++) memcpy(&all[i], &a[i], sizeof(T)); }
inline void __syncwarp() { uint32_t a[32]; emu_gather<uint32_t>(a, 0); }
template <typename T> T __shfl_sync(unsigned, T x, int l) { T a[32]; emu_gather(a, x); return a[l & 31]; }
template <typename T> T __shfl_up_sync(unsigned, T x, int d) { T a[32]; emu_gather(a, x); int l = threadIdx.x % 32; return l >= d ? a[l - d] : x; }
template <typename T> T __shfl_xor_sync(unsigned, T x, int d) { T a[32]; emu_gather(a, x); return a[(threadIdx.x % 32) ^ d]; }
inline unsigned __ballot_sync(unsigned, bool x) { bool a[32]; emu_gather(a, x); unsigned r = 0; for (int i = 0; i < 32; i++) r |= (unsigned)a[i] << i; return r; }
inline bool __any_sync(unsigned m, bool x) { return __ballot_sync(m, x) != 0; } inline bool __all_sync(unsigned m, bool x) { return __ballot_sync(m, x) == ~0u; }
inline int __ffs(int x) { return __builtin_ffs(x); }
void emu_named(int b, int n); inline void __syncthreads() { emu_named(0, blockDim.x); }
void emu_async(std::function<void()> f); void emu_commit(); void emu_wait(int n);
void emu_run(unsigned grid, int threads, int shared, std::function<void()> f);
template <typename T> T atomicAdd(T *p, T x) { T o = *p; *p += x; return o; }
template <typename T> T atomicMin(T *p, T x) { T o = *p; *p = std::min(o, x); return o; }
using std::min; using std::max;
inline float __uint_as_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
inline void *__cvta_shared_to_generic(size_t p) { return SMEM + p; }
typedef void *cudaStream_t; typedef int cudaError_t; enum { cudaSuccess };
enum { cudaMemcpyDeviceToHost = 2 };
inline cudaError_t cudaMalloc(void **p, size_t n) { *p = malloc(n + 64); memset(*p, 0xa5, n + 64); return 0; }
inline cudaError_t cudaFree(void *p) { free(p); return 0; }
inline cudaError_t cudaGetLastError() { return 0; }
inline cudaError_t cudaMemsetAsync(void *p, int v, size_t n, cudaStream_t) { memset(p, v, n); return 0; }
inline cudaError_t cudaMemcpyAsync(void *p, const void *f, size_t n, int, cudaStream_t) { memcpy(p, f, n); return 0; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return 0; }
inline long long __double_as_longlong(double x) { long long l; memcpy(&l, &x, 8); return l; }
template <typename T> T atomicMax(T *p, T x) { T o = *p; *p = std::max(o, x); return o; }
template <typename T> T atomicExch(T *p, T x) { T o = *p; *p = x; return o; }
