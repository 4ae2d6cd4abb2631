import re,os
R='./src/'
def rd(p): return open(R+p).read()
os.makedirs('kernels/cuda/common',exist_ok=True); os.makedirs('kernels/cuda/grouped',exist_ok=True)
# variant.cuh
s=rd('variant.cuh')
s=re.sub(r'#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n#include <cuda_runtime.h>\n','#include "emu.h"\n',s)
i=s.index('__device__ __forceinline__ uint32_t pack_2(__half'); j=s.index('/* Offset of vector `vec16`')
s=s[:i]+'''inline uint32_t pack_2(__half, float x, float y) { __half h[2] = {(__half)x, (__half)y}; uint32_t w; memcpy(&w, h, 4); return w; }
inline uint32_t pack_2(__nv_bfloat16, float x, float y) { __nv_bfloat16 h[2] = {x, y}; uint32_t w; memcpy(&w, h, 4); return w; }
inline uint32_t smem_address(const void *p) { return (uint32_t)((const char *)p - (const char *)SMEM); }
inline int reread_thread_index() { return threadIdx.x; }
inline uint32_t keep_in_register(uint32_t x) { return x; }
template <typename T> T read_shared_broadcast(const T *from) { uint32_t word[sizeof(T) / 4]; bool one = threadIdx.x % 32 == 0;
 for (int i = 0; i < (int)(sizeof(T) / 4); i++) word[i] = __shfl_sync(~0u, one ? ((const uint32_t *)from)[i] : 0, 0);
 T r; memcpy(&r, word, sizeof r); return r; }
'''+s[j:]
i=s.index('__device__ __forceinline__ uint32_t ld_shared_b32'); j=s.index("/* ---- the matmul's block rows, as sat_op_rows")
s=s[:i]+'''inline uint32_t ld_shared_b32(uint32_t from) { uint32_t x; memcpy(&x, SMEM + from, 4); return x; }
inline uint4 ld_shared_v4(uint32_t from) { assert(from % 16 == 0); uint4 v; memcpy(&v, SMEM + from, 16); return v; }
'''+s[j:]
i=s.index('/* Sets the counter, the last'); j=s.index('/* By all threads at the end of a kernel: the last CTA')
s=s[:i]+'static inline sat_status sat_tile_counter_init(const sat_prepare *q, size_t, unsigned **c) { *c = (unsigned *)q->workspace; (*c)[0] = (*c)[1] = 0; return SAT_OK; }\n'+s[j:]
i=s.index('static inline sat_status sat_cuda_status'); 
s=s[:i]+'''inline void griddepcontrol_launch_dependents() {}
inline void griddepcontrol_wait() {}
template <auto KERNEL, typename... A> static sat_status sat_start(const sat_launch *, dim3 grid, int threads, int shared, const A &...a) {
 emu_run(grid.x, threads, shared, [&] { KERNEL(a...); }); return SAT_OK; }
#endif
'''
open('variant.cuh','w').write(s)
# ptx80
open('kernels/cuda/common/ptx_sm80.cuh','w').write('''#ifndef P80
#define P80
#include "variant.cuh"
inline void cp_async_16(uint32_t to, const void *from, int valid = 16) { assert(to % 16 == 0 && valid >= 0 && valid <= 16); if (valid) assert((uintptr_t)from % 16 == 0);
 emu_async([=] { char b[16] = {}; memcpy(b, from, valid); memcpy(SMEM + to, b, 16); }); }
inline void cp_async_commit_group() { emu_commit(); }
template <int N> void cp_async_wait_group() { emu_wait(N); }
inline void ldm(uint32_t (&r)[4], uint32_t from, bool trans) { int lane = threadIdx.x % 32; uint32_t a[32]; assert(from % 16 == 0);
 emu_gather(a, from);
 for (int i = 0; i < 4; i++) { uint16_t h[2]; for (int e = 0; e < 2; e++) { int row = trans ? lane % 4 * 2 + e : lane / 4, col = trans ? lane / 4 : lane % 4 * 2 + e;
  memcpy(&h[e], SMEM + a[i * 8 + row] + col * 2, 2); } memcpy(&r[i], h, 4); } }
inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t from) { ldm(r, from, false); }
inline void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t from) { ldm(r, from, true); }
inline double ld_shared_f64(uint32_t) { return 0; }
template <typename E> void mma16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
 int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4; uint32_t A[4][32], B[2][32];
 for (int i = 0; i < 4; i++) emu_gather(A[i], a[i]); emu_gather(B[0], b0), emu_gather(B[1], b1);
 auto el = [](uint32_t w, int e) { E h[2]; memcpy(h, &w, 4); return (float)h[e]; };
 for (int e = 0; e < 4; e++) for (int k = 0; k < 16; k++) { int ra = e / 2, col = 2 * q + e % 2;
  float x = el(A[ra + (k / 8) * 2][g * 4 + k % 8 / 2], k % 2), y = el(B[k / 8][col * 4 + k % 8 / 2], k % 2); c[e] += x * y; } }
struct sat_f16_math : sat_f16 { static void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { mma16<__half>(c, a, b0, b1); } };
struct sat_bf16_math : sat_bf16 { static void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { mma16<__nv_bfloat16>(c, a, b0, b1); } };
struct sat_tf32_math { static void multiply(float (&)[4], const uint32_t (&)[4], uint32_t, uint32_t) {} };
struct sat_f64_math { template <class...A> static void multiply(A&&...) {} };
#endif
''')
s=rd('kernels/cuda/common/warp_epilogue.cuh')
i=s.index('__device__ __forceinline__ uint32_t movmatrix_trans'); j=s.index('/* Transposes a 4 x 4 matrix')
s=s[:i]+'''inline uint32_t movmatrix_trans(uint32_t x) { uint32_t a[32]; emu_gather(a, x); int lane = threadIdx.x % 32; uint16_t h[2];
 for (int e = 0; e < 2; e++) { int row = lane % 4 * 2 + e, col = lane / 4; uint16_t w[2]; memcpy(w, &a[row * 4 + col / 2], 4); h[e] = w[col % 2]; } uint32_t y; memcpy(&y, h, 4); return y; }
'''+s[j:]
open('kernels/cuda/common/warp_epilogue.cuh','w').write(s)
open('kernels/cuda/common/ptx_sm90.cuh','w').write('''#ifndef P90
#define P90
#include "variant.cuh"
typedef uint32_t cuuint32_t; typedef uint64_t cuuint64_t;
inline void mbarrier_init(uint32_t b, int n) { emu_bar[b] = {n, n, 0, 0}; }
inline void fence_mbarrier_init() {}
inline void mdone(uint32_t b) { auto &m = emu_bar.at(b); assert(m.pending >= 0); if (m.pending == 0 && m.tx == 0) m.phase ^= 1, m.pending = m.count; }
inline void mbarrier_arrive_expect_tx(uint32_t b, uint32_t n) { emu_bar.at(b).tx += n, emu_bar.at(b).pending--; mdone(b); }
inline void mbarrier_arrive(uint32_t b) { emu_bar.at(b).pending--; mdone(b); }
inline void mbarrier_wait(uint32_t b, uint32_t p) { while (emu_bar.at(b).phase == (int)p) emu_yield(); }
inline bool mbarrier_test_wait(uint32_t b, uint32_t p) { emu_yield(); return __all_sync(~0u, emu_bar.at(b).phase != (int)p); }
inline void fence_proxy_async() {}
inline bool elect_one() { __syncwarp(); return threadIdx.x % 32 == 7; }
template <int C> void setmaxnreg_dec() {}
template <int C> void setmaxnreg_inc() {}
inline void named_barrier_sync(int b, int n) { emu_named(b, n); }
inline void stm(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d, bool trans) { uint32_t w[4][32]; assert(to % 16 == 0);
 emu_gather(w[0], a), emu_gather(w[1], b), emu_gather(w[2], c), emu_gather(w[3], d); int lane = threadIdx.x % 32, m = lane / 8, r = lane % 8;
 for (int x = 0; x < 8; x++) { int row = trans ? x : r, col = trans ? r : x; uint16_t h[2]; memcpy(h, &w[m][row * 4 + col / 2], 4); memcpy(SMEM + to + x * 2, &h[col % 2], 2); } __syncwarp(); }
inline void stmatrix_x4(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) { stm(to, a, b, c, d, false); }
inline void stmatrix_x4_trans(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) { stm(to, a, b, c, d, true); }
constexpr int swizzle_mode_of(int line) { return line == 128 ? 1 : line == 64 ? 2 : 3; }
inline uint64_t wgmma_descriptor(uint32_t from, int swizzle, uint32_t leading, uint32_t stride) {
 return (uint64_t)((from & 0x3ffff) >> 4) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(stride >> 4) << 32 | (uint64_t)swizzle << 62; }
inline void wgmma_fence() {}
inline void wgmma_commit_group() { emu_commit(); }
template <int N> void wgmma_wait_group() { emu_wait(N); __syncwarp(); }
// element (mn, k) of an operand with the 128-byte swizzle
template <typename E> float operand(uint64_t d, bool mn_major, int mn, int k) {
 uint32_t from = (uint32_t)(d & 0x3fff) << 4, leading = (uint32_t)(d >> 16 & 0x3fff) << 4, stride = (uint32_t)(d >> 32 & 0x3fff) << 4; assert(d >> 62 == 1);
 uint32_t at = mn_major ? from + mn / 64 * leading + k / 8 * stride + k % 8 * 128 + mn % 64 * 2 : from + mn / 8 * stride + mn % 8 * 128 + k * 2;
 at ^= (at >> 7 & 7) << 4; E e; memcpy(&e, SMEM + at, 2); return (float)e; }
template <typename T, int N, int AM, int BM> struct wgmma_ss { static void run(float (&d)[N / 2], uint64_t a, uint64_t b, int scale) {
 typedef typename T::element E; float *to = d; int t = threadIdx.x % 128, row = t / 32 * 16 + t % 32 / 4, q = t % 4;
 emu_async([=] { float av[2][16]; for (int h = 0; h < 2; h++) for (int k = 0; k < 16; k++) av[h][k] = operand<E>(a, AM, row + 8 * h, k);
  for (int n = 0; n < N; n += 8) for (int e = 0; e < 2; e++) { float s0 = 0, s1 = 0; for (int k = 0; k < 16; k++) { float bv = operand<E>(b, BM, n + 2 * q + e, k); s0 += av[0][k] * bv; s1 += av[1][k] * bv; }
   float *p = to + n / 2 + e; p[0] = scale ? p[0] + s0 : s0; p[2] = scale ? p[2] + s1 : s1; } }); } };
struct sat_tensor_box { sat_dtype dtype; const void *base; int rank; cuuint64_t size[4], stride[3]; cuuint32_t box[4]; int swizzle_bytes; bool tf32; };
struct CUtensorMap { sat_tensor_box b; };
typedef void *tensormap_encode_fn;
static inline tensormap_encode_fn tensormap_encoder() { return (void *)1; }
static inline bool tensormap_encode(CUtensorMap *m, const sat_tensor_box &t) { m->b = t; assert((uintptr_t)t.base % 16 == 0); for (int i = 0; i + 1 < t.rank; i++) assert(t.stride[i] % 16 == 0 && t.stride[i] > 0); for (int i = 0; i < t.rank; i++) assert(t.size[i] > 0 && t.box[i] <= 256); return true; }
template <int N> static inline bool tensormaps_reuse(const void *(&made_for)[N], void *const *operands) { bool same = true; for (int i = 0; i < N; i++) same = same && made_for[i] == operands[i], made_for[i] = operands[i]; return same; }
template <int N> static inline sat_status tensormaps_failed(const sat_launch *, const void *(&)[N]) { abort(); }
static inline bool tensormap_fits(const sat_problem *p, const sat_layout &l, int64_t rows, int64_t cols, uint32_t align, int64_t size) {
    bool column_major = l.col_stride != 1;
    int64_t lead = column_major ? l.col_stride : l.row_stride, line = column_major ? rows : cols;
    if (column_major && l.row_stride != 1) return false;
    return align % 16 == 0 && lead * size % 16 == 0 && lead >= line && lead < (1ll << 36); }
inline void tma(uint32_t to, const CUtensorMap *m, uint32_t bar, std::vector<int> c) { const sat_tensor_box &b = m->b; assert(to % 1024 == 0 && b.swizzle_bytes == 128 && b.box[0] == 64 && (int)c.size() == b.rank);
 int box[4] = {1, 1, 1, 1}; for (int i = 0; i < b.rank; i++) box[i] = b.box[i]; c.resize(4); uint32_t o = 0; int total = box[0] * box[1] * box[2] * box[3];
 for (int q = 0; q < total; q++, o += 2) { int ix[4], z = q; for (int i = 0; i < 4; i++) ix[i] = z % box[i] + c[i], z /= box[i]; uint16_t h = 0; bool in = true; int64_t off = 0;
  for (int i = 0; i < b.rank; i++) { in = in && ix[i] >= 0 && ix[i] < (int64_t)b.size[i]; off += i == 0 ? 2ll * ix[0] : (int64_t)ix[i] * (int64_t)b.stride[i - 1]; }
  if (in) memcpy(&h, (const char *)b.base + off, 2); uint32_t at = to + o; at ^= (at >> 7 & 7) << 4; memcpy(SMEM + at, &h, 2); }
 emu_bar.at(bar).tx -= total * 2; mdone(bar); }
inline void tma_load(uint32_t to, const CUtensorMap *m, uint32_t bar, int x, int y) { tma(to, m, bar, {x, y}); }
inline void tma_load(uint32_t to, const CUtensorMap *m, uint32_t bar, int x, int y, int z) { tma(to, m, bar, {x, y, z}); }
inline void tma_load(uint32_t to, const CUtensorMap *m, uint32_t bar, int x, int y, int z, int w) { tma(to, m, bar, {x, y, z, w}); }
inline void bulk_commit_group() {}
inline void tma_store(const CUtensorMap *, uint32_t, int, int) { abort(); }
template <int P> void tma_store_wait_read() {}
inline void tma_store_wait_all() {}
inline void prefetch_tensormap(const CUtensorMap *) {}
#endif
''')
for f in ('grouped_mma.cu','grouped_wgmma_sm90.cu'):
    s=rd('kernels/cuda/grouped/'+f).replace('extern __shared__ __align__(1024) unsigned char memory[]','unsigned char *memory = (unsigned char *)SMEM').replace('extern __shared__ __align__(1024) char memory[]','char *memory = (char *)SMEM')
    s=re.sub(r'asm volatile\("st.shared.v4[^;]*;[^;]*;','memset(SMEM + (to + valid * 128 + at % vectors * 16), 0, 16);',s)
    s=s.replace('smem_address(memory)','0')
    open('kernels/cuda/grouped/'+f,'w').write(s)
