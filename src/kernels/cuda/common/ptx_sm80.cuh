/* PTX instructions as functions, under PTX's names: what sm_80 has (cp.async, ldmatrix, mma.sync). */
#ifndef SAT_PTX_SM80_CUH
#define SAT_PTX_SM80_CUH

#include "variant.cuh"

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

/* One element, for a type that ldmatrix does not have. */
__device__ __forceinline__ double ld_shared_f64(uint32_t from) {
    double x;
    asm volatile("ld.shared.f64 %0, [%1];" : "=d"(x) : "r"(from) : "memory");
    return x;
}

/* ---- mma.sync: c += a*b with a 16 x K row-major and b K x 8 column-major ---- */

struct sat_f16_math : sat_f16 {
    __device__ static __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};

struct sat_bf16_math : sat_bf16 {
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

#endif
