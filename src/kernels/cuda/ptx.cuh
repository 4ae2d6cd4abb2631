/* The machine's instructions by name: asynchronous copies, matrix loads and matrix products, from sm_80 on. */
#ifndef SAT_PTX_CUH
#define SAT_PTX_CUH

#include "variant.cuh"

__device__ __forceinline__ uint32_t sat_shared(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* The thread's number, read where it is asked for: what is made of it is not kept in registers from before a loop. */
__device__ __forceinline__ int sat_thread_here() {
    int t;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
    return t;
}

/* ---- global to shared memory, without passing through registers ---- */

/* 16 bytes, past L1; what lies beyond the first `valid` bytes becomes zero. Both addresses multiples of 16. */
__device__ __forceinline__ void sat_copy16(uint32_t to, const void *from, int valid = 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
}

/* 4 or 8 bytes, through L1. */
template <int BYTES> __device__ __forceinline__ void sat_copy_small(uint32_t to, const void *from, int valid = BYTES) {
    static_assert(BYTES == 4 || BYTES == 8, "16 bytes have sat_copy16");
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(valid)
                 : "memory");
}

__device__ __forceinline__ void sat_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Until at most PENDING of the groups committed last are still under way. */
template <int PENDING> __device__ __forceinline__ void sat_copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* ---- shared memory to the fragments of a matrix product ---- */

/* Four 8x8 matrices of 16-bit elements; lane l gives the address of row l%8 of matrix l/8. */
__device__ __forceinline__ void sat_load_matrix(uint32_t (&r)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

/* The same, each 8x8 matrix transposed on the way. */
__device__ __forceinline__ void sat_load_turned(uint32_t (&r)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

/* One element, where a matrix load has no form for it. */
__device__ __forceinline__ uint32_t sat_fetch_bits(uint32_t from) {
    uint32_t x;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
    return x;
}
__device__ __forceinline__ double sat_fetch_f64(uint32_t from) {
    double x;
    asm volatile("ld.shared.f64 %0, [%1];" : "=d"(x) : "r"(from) : "memory");
    return x;
}

/* An 8x8 matrix of 16-bit elements in registers, transposed: lane l has elements 2*(l%4) and the next of row l/4. */
__device__ __forceinline__ uint32_t sat_turn_matrix(uint32_t x) {
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* ---- products of fragments: c += a*b, a 16 x K row by row, b K x 8 column by column ---- */

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

/* f64: m8n8k4, one element of a and of b a lane, two of c. */
struct sat_f64_math {
    typedef double element;
    static constexpr sat_dtype dtype = SAT_F64;
    __device__ static __forceinline__ void multiply(double (&c)[2], double a, double b) {
        asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
                     : "+d"(c[0]), "+d"(c[1])
                     : "d"(a), "d"(b));
    }
};

#endif
