/* PTX instructions as functions, under PTX's names. First what sm_80 has (cp.async, ldmatrix, mma.sync), then what
 * needs sm_90 or sm_90a (mbarrier with bytes, setmaxnreg, stmatrix, wgmma). TMA's instructions are in tma.cuh.
 * Addresses of shared memory are 32-bit, as smem_address gives them. */
#ifndef SAT_PTX_CUH
#define SAT_PTX_CUH

#include "variant.cuh"

__device__ __forceinline__ uint32_t smem_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* threadIdx.x, read again: what is computed from it is not kept in registers across a loop. */
__device__ __forceinline__ int reread_thread_index() {
    int t;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
    return t;
}

/* ---- cp.async: global to shared memory ---- */

/* 16 bytes, past L1; those beyond the first `valid` are set to zero. Both addresses are multiples of 16. */
__device__ __forceinline__ void cp_async_16(uint32_t to, const void *from, int valid = 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
}

/* 4 or 8 bytes, through L1. */
template <int BYTES> __device__ __forceinline__ void cp_async_small(uint32_t to, const void *from, int valid = BYTES) {
    static_assert(BYTES == 4 || BYTES == 8, "16 bytes have cp_async_16");
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(valid)
                 : "memory");
}

__device__ __forceinline__ void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Waits until at most the last PENDING committed groups are still in flight. */
template <int PENDING> __device__ __forceinline__ void cp_async_wait_group() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* ---- shared memory to fragments ---- */

/* Four 8x8 matrices of 16-bit elements; lane l gives the address of row l%8 of matrix l/8. */
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

/* The same, each 8x8 matrix transposed. */
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

/* One element, for types that ldmatrix does not have. */
__device__ __forceinline__ uint32_t ld_shared_b32(uint32_t from) {
    uint32_t x;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
    return x;
}
__device__ __forceinline__ double ld_shared_f64(uint32_t from) {
    double x;
    asm volatile("ld.shared.f64 %0, [%1];" : "=d"(x) : "r"(from) : "memory");
    return x;
}

/* Transposes an 8x8 matrix of 16-bit elements in registers: lane l has elements 2*(l%4) and 2*(l%4) + 1 of row l/4. */
__device__ __forceinline__ uint32_t movmatrix_trans(uint32_t x) {
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* ---- mma.sync: c += a*b with a 16 x K row-major and b K x 8 column-major ---- */

struct sat_f16_math {
    typedef __half element;
    static constexpr sat_dtype dtype = SAT_F16;
    __device__ static __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};

struct sat_bf16_math {
    typedef __nv_bfloat16 element;
    static constexpr sat_dtype dtype = SAT_BF16;
    __device__ static __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};

/* f32 rounded to TF32: m16n8k8. */
struct sat_tf32_math {
    typedef float element;
    static constexpr sat_dtype dtype = SAT_F32;
    __device__ static __forceinline__ uint32_t round(float x) {
        uint32_t bits;
        asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
        return bits;
    }
    __device__ static __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};

/* f64: m8n8k4, a lane has one element of a, one of b, two of c; and m16n8k8, whose fragments are those of four m8n8k4.
 * Hopper does m8n8k4 at half of its rate. */
struct sat_f64_math {
    typedef double element;
    static constexpr sat_dtype dtype = SAT_F64;
    __device__ static __forceinline__ void multiply(double &c0, double &c1, double a, double b) {
        asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
                     : "+d"(c0), "+d"(c1)
                     : "d"(a), "d"(b));
    }
    __device__ static __forceinline__ void multiply(double (&c)[2], double a, double b) { multiply(c[0], c[1], a, b); }
    __device__ static __forceinline__ void multiply(double (&c)[4], const double (&a)[4], double b0, double b1) {
#if __CUDA_ARCH__ >= 900
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
                     : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b0), "d"(b1));
#else
        multiply(c[0], c[1], a[0], b0), multiply(c[0], c[1], a[2], b1);
        multiply(c[2], c[3], a[1], b0), multiply(c[2], c[3], a[3], b1);
#endif
    }
};

/* ==== sm_90 and sm_90a ==== */

/* ---- mbarrier: a barrier in shared memory that counts arrivals and bytes; `bar` is its address ---- */

__device__ __forceinline__ void mbarrier_init(uint32_t bar, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

/* Makes initialised mbarriers visible to TMA. */
__device__ __forceinline__ void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Arrives, and announces bytes that copies will bring before the phase can complete. */
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive_count(uint32_t bar, int times) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(times) : "memory");
}

/* Waits until the phase of this parity is complete. */
__device__ __forceinline__ void mbarrier_wait(uint32_t bar, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\n"
                 "bra again;\n"
                 "done:\n"
                 "}" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}

/* Whether mbarrier_wait would return at once; the same answer for all lanes. */
__device__ __forceinline__ bool mbarrier_test_wait(uint32_t bar, uint32_t parity) {
    uint32_t yes;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(yes)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return __all_sync(~0u, yes);
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

/* Orders this thread's accesses to shared memory before later ones by TMA and wgmma. */
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* True for one lane of a converged warp. Unlike `lane == 0` it lets the compiler use uniform registers, without a loop
 * over lanes, for the operands of what only that lane does. */
__device__ __forceinline__ bool elect_one() {
    uint32_t yes = 0;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "elect.sync _|p, 0xffffffff;\n"
                 "@p mov.u32 %0, 1;\n"
                 "}"
                 : "+r"(yes));
    return yes;
}

/* Keeps a value in its register: the compiler does not compute it again where it is used. */
__device__ __forceinline__ uint32_t keep_in_register(uint32_t x) {
    asm volatile("" : "+r"(x));
    return x;
}

/* ---- setmaxnreg: registers move between warpgroups; bar: named barriers of some warps ---- */

template <int COUNT> __device__ __forceinline__ void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
__device__ __forceinline__ void named_barrier_sync(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
/* Is counted and does not wait. */
__device__ __forceinline__ void named_barrier_arrive(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* Four 8x8 matrices of 16-bit elements to shared memory; lane l gives the address of row l%8 of matrix l/8. */
__device__ __forceinline__ void stmatrix_x4(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(a), "r"(b), "r"(c),
                 "r"(d)
                 : "memory");
}
__device__ __forceinline__ void stmatrix_x4_trans(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
}

/* ---- wgmma: matrix products of a warpgroup ---- */

/* The descriptor's swizzle mode for lines of 128, 64 or 32 bytes. */
__host__ __device__ constexpr int swizzle_mode_of(int line) { return line == 128 ? 1 : line == 64 ? 2 : 3; }

/* Describes an operand in shared memory. `swizzle`: swizzle_mode_of its lines. `leading` and `stride`: the leading
 * dimension and stride dimension byte offsets of PTX's matrix descriptor, in bytes. */
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t from, int swizzle, uint32_t leading, uint32_t stride) {
    return (uint64_t)((from & 0x3ffff) >> 4) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(stride >> 4) << 32 |
           (uint64_t)swizzle << 62;
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void wgmma_wait_group() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* d = a*b, or d += a*b with `add`; m64nNk16, both operands from shared memory. A_MN_MAJOR: M is contiguous in a,
 * otherwise K. B_MN_MAJOR: N is contiguous in b, otherwise K. (PTX: imm-trans-a, imm-trans-b.) */
template <typename T, int N, int A_MN_MAJOR, int B_MN_MAJOR> struct wgmma_ss;

// clang-format off
#define SAT_SUMS8(d, i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define SAT_SUMS16 SAT_SUMS8(d, 0), SAT_SUMS8(d, 8)
#define SAT_SUMS32(i) SAT_SUMS8(d, i), SAT_SUMS8(d, i + 8), SAT_SUMS8(d, i + 16), SAT_SUMS8(d, i + 24)
#define SAT_SUMS64 SAT_SUMS32(0), SAT_SUMS32(32)
#define SAT_SUMS128 SAT_SUMS64, SAT_SUMS32(64), SAT_SUMS32(96)
#define SAT_D8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define SAT_D16 SAT_D8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SAT_D32 SAT_D16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SAT_D64 \
    SAT_D32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SAT_D128 \
    SAT_D64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

/* The accumulators come first among the operands of the asm, so the numbers of the others depend on how many there
 * are. */
#define SAT_WGMMA_SS(math, name, N, SUMS, LIST, OUT, a_, b_, ta_, tb_, add_) \
    template <int A_MN_MAJOR, int B_MN_MAJOR> struct wgmma_ss<math, N, A_MN_MAJOR, B_MN_MAJOR> { \
        __device__ static __forceinline__ void run(float (&d)[SUMS], uint64_t a, uint64_t b, int add) { \
            asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #add_ ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." name \
                         "." name " {" LIST "}, %" #a_ ", %" #b_ ", p, 1, 1, %" #ta_ ", %" #tb_ "; }" \
                         : OUT \
                         : "l"(a), "l"(b), "n"(A_MN_MAJOR), "n"(B_MN_MAJOR), "r"(add)); \
        } \
    };
#define SAT_WGMMA_SS_ALL(math, name) \
    SAT_WGMMA_SS(math, name, 16, 8, SAT_D8, SAT_SUMS8(d, 0), 8, 9, 10, 11, 12) \
    SAT_WGMMA_SS(math, name, 32, 16, SAT_D16, SAT_SUMS16, 16, 17, 18, 19, 20) \
    SAT_WGMMA_SS(math, name, 64, 32, SAT_D32, SAT_SUMS32(0), 32, 33, 34, 35, 36) \
    SAT_WGMMA_SS(math, name, 128, 64, SAT_D64, SAT_SUMS64, 64, 65, 66, 67, 68) \
    SAT_WGMMA_SS(math, name, 256, 128, SAT_D128, SAT_SUMS128, 128, 129, 130, 131, 132)
SAT_WGMMA_SS_ALL(sat_f16_math, "f16")
SAT_WGMMA_SS_ALL(sat_bf16_math, "bf16")

/* TF32: m64nNk8, N twice the size of d. K is contiguous in what comes from shared memory. `a` may come from registers,
 * which must not change until the product is complete. */
#define SAT_WGMMA_TF32_RS(N, SUMS, LIST, OUT, a0_, a1_, a2_, a3_, b_, add_) \
    __device__ __forceinline__ void wgmma_tf32(float (&d)[SUMS], const uint32_t (&a)[4], uint64_t b, int add) { \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #add_ ", 0; wgmma.mma_async.sync.aligned.m64n" #N \
                     "k8.f32.tf32.tf32 {" LIST "}, {%" #a0_ ", %" #a1_ ", %" #a2_ ", %" #a3_ "}, %" #b_ ", p, 1, 1; }" \
                     : OUT \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add)); \
    }
#define SAT_WGMMA_TF32_SS(N, SUMS, LIST, OUT, a_, b_, add_) \
    __device__ __forceinline__ void wgmma_tf32(float (&d)[SUMS], uint64_t a, uint64_t b, int add) { \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #add_ ", 0; wgmma.mma_async.sync.aligned.m64n" #N \
                     "k8.f32.tf32.tf32 {" LIST "}, %" #a_ ", %" #b_ ", p, 1, 1; }" \
                     : OUT \
                     : "l"(a), "l"(b), "r"(add)); \
    }
SAT_WGMMA_TF32_RS(64, 32, SAT_D32, SAT_SUMS32(0), 32, 33, 34, 35, 36, 37)
SAT_WGMMA_TF32_RS(128, 64, SAT_D64, SAT_SUMS64, 64, 65, 66, 67, 68, 69)
SAT_WGMMA_TF32_RS(256, 128, SAT_D128, SAT_SUMS128, 128, 129, 130, 131, 132, 133)
SAT_WGMMA_TF32_SS(128, 64, SAT_D64, SAT_SUMS64, 64, 65, 66)
SAT_WGMMA_TF32_SS(256, 128, SAT_D128, SAT_SUMS128, 128, 129, 130)
// clang-format on

/* ---- wgmma for attention: N = 80, and `a` from registers ---- */

// clang-format off
#define SAT_D40 SAT_D32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define SAT_D48 SAT_D40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define SAT_SUMS40 SAT_SUMS32(0), SAT_SUMS8(d, 32)
#define SAT_SUMS48 SAT_SUMS40, SAT_SUMS8(d, 40)

SAT_WGMMA_SS(sat_f16_math, "f16", 80, 40, SAT_D40, SAT_SUMS40, 40, 41, 42, 43, 44)
SAT_WGMMA_SS(sat_bf16_math, "bf16", 80, 40, SAT_D40, SAT_SUMS40, 40, 41, 42, 43, 44)

/* d += a*b, m64nNk16: a from registers, in the fragments of mma.sync; b from shared memory, N contiguous. */
template <typename T, int N> struct wgmma_rs;

#define SAT_WGMMA_RS(math, name, N, SUMS, LIST, OUT, a0_, a1_, a2_, a3_, b_) \
    template <> struct wgmma_rs<math, N> { \
        __device__ static __forceinline__ void run(float (&d)[SUMS], const uint32_t *a, uint64_t b) { \
            asm volatile("{ .reg .pred p; setp.eq.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." name "." name \
                         " {" LIST "}, {%" #a0_ ", %" #a1_ ", %" #a2_ ", %" #a3_ "}, %" #b_ ", p, 1, 1, 1; }" \
                         : OUT \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
        } \
    };
#define SAT_WGMMA_RS_ALL(math, name) \
    SAT_WGMMA_RS(math, name, 64, 32, SAT_D32, SAT_SUMS32(0), 32, 33, 34, 35, 36) \
    SAT_WGMMA_RS(math, name, 96, 48, SAT_D48, SAT_SUMS48, 48, 49, 50, 51, 52) \
    SAT_WGMMA_RS(math, name, 128, 64, SAT_D64, SAT_SUMS64, 64, 65, 66, 67, 68) \
    SAT_WGMMA_RS(math, name, 256, 128, SAT_D128, SAT_SUMS128, 128, 129, 130, 131, 132)
SAT_WGMMA_RS_ALL(sat_f16_math, "f16")
SAT_WGMMA_RS_ALL(sat_bf16_math, "bf16")
// clang-format on

/* Tells the compiler that the accumulators change here: nothing that reads or writes them moves before this point. */
template <int COUNT> __device__ __forceinline__ void wgmma_fence_accumulators(float (&d)[COUNT]) {
#pragma unroll
    for (int e = 0; e < COUNT; e++) asm volatile("" : "+f"(d[e])::"memory");
}

#endif
