/* Operand tiles in shared memory, and the fragments of mma.sync that a warp reads from them.
 *
 * A tile consists of lines, a line of vectors of 16 bytes (vec16). In a K-major tile a line runs along k: a row of A or
 * a column of B. In an MN-major tile a line runs along m or n, one line for each k. So op(A) = A and column-major B are
 * K-major; op(A) = A^T and row-major B are MN-major. Vectors are swizzled within 128 bytes, so that the eight vectors
 * which one access reads from eight lines are in different banks. */
#ifndef SAT_MMA_FRAGMENTS_CUH
#define SAT_MMA_FRAGMENTS_CUH

#include "kernels/cuda/common/ptx_sm80.cuh"

/* ---- swizzle ---- */

/* The number that a line's vector indices are XORed with; VECTORS in a line. PAIRED: an access reads two neighbouring
 * vectors of four lines instead of one vector of eight lines. */
template <int VECTORS, int PAIRED> __host__ __device__ constexpr int mma_swizzle(int line) {
    return ((line / (VECTORS >= 8 ? 1 : 8 / VECTORS)) << PAIRED) & ((VECTORS >= 8 ? 8 : VECTORS) - 1);
}

/* Byte offset of a vector in its tile. */
template <int VECTORS, int PAIRED> __host__ __device__ constexpr int mma_vec16_offset(int line, int vec16) {
    return (line * VECTORS + (vec16 ^ mma_swizzle<VECTORS, PAIRED>(line))) * 16;
}

/* From an offset to the same vector `lines` below, and to `vectors` further in the same line. Both require that the
 * bits which are added are zero in the original line and vector, and that tiles begin at multiples of 1024 bytes. */
template <int VECTORS, int PAIRED> __device__ __forceinline__ uint32_t mma_lines_below(uint32_t offset, int lines) {
    return (offset ^ (uint32_t)(mma_swizzle<VECTORS, PAIRED>(lines) * 16)) + (uint32_t)(lines * VECTORS * 16);
}
__device__ __forceinline__ uint32_t mma_vectors_along(uint32_t offset, int vectors) {
    return offset ^ (uint32_t)(vectors * 16);
}

/* ---- kinds of products ----
 *
 * Each kind has fragments `a` (M x K) and `b` (K x 8) and an accumulator of ACCUMULATORS elements a lane: pairs of
 * neighbouring columns, 8 rows apart. lane_offset_* is the byte offset in a tile of the first element or matrix row
 * that a lane reads; load_* reads the fragments of k step `kk` relative to it. round_operands rounds fragments before
 * the product where that is needed. Template parameters: the tile's extent MN in m or n, its extent BK in k, and
 * whether it is K-major. `first` is the warp's first row or column in the tile. */

/* 16-bit elements: ldmatrix, with .trans for MN-major tiles. */
template <class MATH> struct mma_16bit {
    typedef typename MATH::element element;
    typedef float accumulator;
    struct a {
        uint32_t r[4];
    };
    struct b {
        uint32_t r[2];
    };
    static constexpr sat_dtype dtype = MATH::dtype;
    static constexpr int M = 16, K = 16, ACCUMULATORS = 4;
    static constexpr int paired(bool) { return 0; }
    template <int MT, int NT> __device__ static void round_operands(a (&)[MT], b (&)[NT]) {}

    template <int MN, int BK, bool K_MAJOR> __device__ static int lane_offset_a(int lane, int first) {
        if (K_MAJOR) return mma_vec16_offset<BK / 8, 0>(first + (lane & 15), lane >> 4);
        return mma_vec16_offset<MN / 8, 0>((lane >> 4) * 8 + (lane & 7), first / 8 + ((lane >> 3) & 1));
    }
    template <int MN, int BK, bool K_MAJOR> __device__ static int lane_offset_b(int lane, int first) {
        if (K_MAJOR) return mma_vec16_offset<BK / 8, 0>(first + (lane >> 4) * 8 + (lane & 7), (lane >> 3) & 1);
        return mma_vec16_offset<MN / 8, 0>(lane & 15, first / 8 + (lane >> 4));
    }
    /* A 16 x 16 part of the tile: number i in m or n, number kk in k. */
    template <int MN, int BK, bool K_MAJOR>
    __device__ static __forceinline__ void load(uint32_t (&r)[4], uint32_t offset, int i, int kk) {
        if (K_MAJOR) ldmatrix_x4(r, mma_lines_below<BK / 8, 0>(mma_vectors_along(offset, 2 * kk), 16 * i));
        else ldmatrix_x4_trans(r, mma_lines_below<MN / 8, 0>(mma_vectors_along(offset, 2 * i), 16 * kk));
    }
    template <int MN, int BK, bool K_MAJOR, int COUNT>
    __device__ static __forceinline__ void load_a(a (&x)[COUNT], uint32_t offset, int kk) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            if (K_MAJOR) load<MN, BK, true>(x[i].r, offset, i, kk);
            else load<MN, BK, false>(x[i].r, offset, i, kk);
        }
    }
    template <int MN, int BK, bool K_MAJOR, int COUNT>
    __device__ static __forceinline__ void load_b(b (&x)[COUNT], uint32_t offset, int kk) {
        static_assert(COUNT % 2 == 0, "a load has the b fragments of 16 columns");
#pragma unroll
        for (int i = 0; i < COUNT / 2; i++) {
            uint32_t r[4];
            load<MN, BK, K_MAJOR>(r, offset, i, kk);
            x[2 * i].r[0] = r[0], x[2 * i].r[1] = r[1], x[2 * i + 1].r[0] = r[2], x[2 * i + 1].r[1] = r[3];
        }
    }
    __device__ static __forceinline__ void multiply(float (&c)[4], const a &x, const b &y) {
        MATH::multiply(c, x.r, y.r[0], y.r[1]);
    }
};

/* f32 rounded to TF32. ldmatrix moves an f32 as a pair of 16-bit elements, which it cannot transpose: it serves K-major
 * tiles; MN-major tiles are read element by element. */
struct mma_tf32 {
    typedef float element;
    typedef float accumulator;
    struct a {
        uint32_t r[4];
    };
    struct b {
        uint32_t r[2];
    };
    static constexpr sat_dtype dtype = SAT_F32;
    static constexpr int M = 16, K = 8, ACCUMULATORS = 4;
    static constexpr int paired(bool k_major) { return k_major ? 0 : 1; }

    /* To nearest, ties away from zero, as cvt.rna does with more instructions: adds half of the last place that is
     * kept; the product ignores the bits below. Infinities and NaN stay as they are. */
    template <int REGISTERS> __device__ static __forceinline__ void round(uint32_t (&r)[REGISTERS]) {
#pragma unroll
        for (int e = 0; e < REGISTERS; e++)
            if (fabsf(__uint_as_float(r[e])) < INFINITY) r[e] += 0x1000u;
    }
    template <int MT, int NT> __device__ static __forceinline__ void round_operands(a (&x)[MT], b (&y)[NT]) {
#pragma unroll
        for (int i = 0; i < MT; i++) round(x[i].r);
#pragma unroll
        for (int i = 0; i < NT; i++) round(y[i].r);
    }
    template <int MN, int BK, bool K_MAJOR> __device__ static int lane_offset_a(int lane, int first) {
        if (K_MAJOR) return mma_vec16_offset<BK / 4, 0>(first + (lane & 15), lane >> 4);
        return mma_vec16_offset<MN / 4, 1>(lane & 3, first / 4 + (lane >> 4)) + ((lane >> 2) & 3) * 4;
    }
    template <int MN, int BK, bool K_MAJOR> __device__ static int lane_offset_b(int lane, int first) {
        if (K_MAJOR) return mma_vec16_offset<BK / 4, 0>(first + (lane >> 4) * 8 + (lane & 7), (lane >> 3) & 1);
        return lane_offset_a<MN, BK, false>(lane, first);
    }
    template <int MN, int BK, bool K_MAJOR, int COUNT>
    __device__ static __forceinline__ void load_a(a (&x)[COUNT], uint32_t offset, int kk) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            if (K_MAJOR) {
                ldmatrix_x4(x[i].r, mma_lines_below<BK / 4, 0>(mma_vectors_along(offset, 2 * kk), 16 * i));
            } else {
#pragma unroll
                for (int e = 0; e < 4; e++)
                    x[i].r[e] = ld_shared_b32(mma_lines_below<MN / 4, 1>(mma_vectors_along(offset, 4 * i + (e & 1) * 2),
                                                                         8 * kk + (e >> 1) * 4));
            }
        }
    }
    template <int MN, int BK, bool K_MAJOR, int COUNT>
    __device__ static __forceinline__ void load_b(b (&x)[COUNT], uint32_t offset, int kk) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            if (!K_MAJOR) {
                x[i].r[0] = ld_shared_b32(mma_lines_below<MN / 4, 1>(mma_vectors_along(offset, 2 * i), 8 * kk));
                x[i].r[1] = ld_shared_b32(mma_lines_below<MN / 4, 1>(mma_vectors_along(offset, 2 * i), 8 * kk + 4));
            } else if (i % 2 == 0) { /* the b fragments of 16 columns */
                uint32_t r[4];
                ldmatrix_x4(r, mma_lines_below<BK / 4, 0>(mma_vectors_along(offset, 2 * kk), 8 * i));
                x[i].r[0] = r[0], x[i].r[1] = r[1];
                x[i + 1].r[0] = r[2], x[i + 1].r[1] = r[3];
            }
        }
    }
    __device__ static __forceinline__ void multiply(float (&c)[4], const a &x, const b &y) {
        sat_tf32_math::multiply(c, x.r, y.r[0], y.r[1]);
    }
};

/* f32 by plain multiply-adds, with the accumulators of the others: a lane has two rows, 8 apart, and two neighbouring
 * columns. */
struct fma_f32 {
    typedef float element;
    typedef float accumulator;
    struct a {
        float r[2][4]; /* row, k */
    };
    struct b {
        float r[2][4]; /* column, k */
    };
    static constexpr sat_dtype dtype = SAT_F32;
    static constexpr int M = 16, K = 4, ACCUMULATORS = 4;
    static constexpr int paired(bool) { return 0; }
    template <int MT, int NT> __device__ static void round_operands(a (&)[MT], b (&)[NT]) {}

    template <int MN, int BK, bool K_MAJOR> __device__ static int lane_offset_a(int lane, int first) {
        int row = lane >> 2;
        if (K_MAJOR) return mma_vec16_offset<BK / 4, 0>(first + row, 0);
        return mma_vec16_offset<MN / 4, 0>(0, first / 4 + (row >> 2)) + (row & 3) * 4;
    }
    template <int MN, int BK, bool K_MAJOR> __device__ static int lane_offset_b(int lane, int first) {
        int col = (lane & 3) * 2;
        if (K_MAJOR) return mma_vec16_offset<BK / 4, 0>(first + col, 0);
        return mma_vec16_offset<MN / 4, 0>(0, first / 4 + (col >> 2)) + (col & 3) * 4;
    }
    /* Four neighbours along k of the line that is `lines` below. */
    template <int BK>
    __device__ static __forceinline__ void load_line(float (&r)[4], uint32_t offset, int lines, int kk) {
        uint4 v = ld_shared_v4(mma_lines_below<BK / 4, 0>(mma_vectors_along(offset, kk), lines));
        r[0] = __uint_as_float(v.x), r[1] = __uint_as_float(v.y);
        r[2] = __uint_as_float(v.z), r[3] = __uint_as_float(v.w);
    }
    template <int MN, int BK, bool K_MAJOR, int COUNT>
    __device__ static __forceinline__ void load_a(a (&x)[COUNT], uint32_t offset, int kk) {
#pragma unroll
        for (int e = 0; e < 2 * COUNT; e++) {
            float(&r)[4] = x[e / 2].r[e % 2];
            if (K_MAJOR) load_line<BK>(r, offset, 8 * e, kk);
#pragma unroll
            for (int k = 0; k < 4 && !K_MAJOR; k++)
                r[k] = __uint_as_float(
                    ld_shared_b32(mma_lines_below<MN / 4, 0>(mma_vectors_along(offset, 2 * e), 4 * kk + k)));
        }
    }
    template <int MN, int BK, bool K_MAJOR, int COUNT>
    __device__ static __forceinline__ void load_b(b (&x)[COUNT], uint32_t offset, int kk) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
#pragma unroll
            for (int c = 0; c < 2 && K_MAJOR; c++) load_line<BK>(x[i].r[c], offset, 8 * i + c, kk);
#pragma unroll
            for (int k = 0; k < 4 && !K_MAJOR; k++) {
                uint32_t from = mma_lines_below<MN / 4, 0>(mma_vectors_along(offset, 2 * i), 4 * kk + k);
                x[i].r[0][k] = __uint_as_float(ld_shared_b32(from));
                x[i].r[1][k] = __uint_as_float(ld_shared_b32(from + 4));
            }
        }
    }
    __device__ static __forceinline__ void multiply(float (&c)[4], const a &x, const b &y) {
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int e = 0; e < 4; e++) c[e] += x.r[e / 2][k] * y.r[e % 2][k];
    }
};

/* f64. The fragments are made of those of m8n8k4, of which a lane has one element each: ROWS / 8 of them below each
 * other, DEPTH / 4 along k. */
template <int ROWS, int DEPTH> struct mma_f64 {
    typedef double element;
    typedef double accumulator;
    struct a {
        double r[ROWS / 8 * DEPTH / 4];
    };
    struct b {
        double r[DEPTH / 4];
    };
    static constexpr sat_dtype dtype = SAT_F64;
    static constexpr int M = ROWS, K = DEPTH, ACCUMULATORS = ROWS / 4;
    static constexpr int paired(bool) { return 1; }
    template <int MT, int NT> __device__ static void round_operands(a (&)[MT], b (&)[NT]) {}

    template <int MN, int BK, bool K_MAJOR> __device__ static int lane_offset_a(int lane, int first) {
        int row = lane >> 2, k = lane & 3;
        if (K_MAJOR) return mma_vec16_offset<BK / 2, 1>(first + row, k >> 1) + (k & 1) * 8;
        return mma_vec16_offset<MN / 2, 1>(k, first / 2 + (row >> 1)) + (row & 1) * 8;
    }
    template <int MN, int BK, bool K_MAJOR> __device__ static int lane_offset_b(int lane, int first) {
        return lane_offset_a<MN, BK, K_MAJOR>(lane, first);
    }
    /* The lane's element of the 8 x 4 part of the tile: number i in m or n, number kk in k. */
    template <int MN, int BK, bool K_MAJOR>
    __device__ static __forceinline__ double load(uint32_t offset, int i, int kk) {
        if (K_MAJOR) return ld_shared_f64(mma_lines_below<BK / 2, 1>(mma_vectors_along(offset, 2 * kk), 8 * i));
        return ld_shared_f64(mma_lines_below<MN / 2, 1>(mma_vectors_along(offset, 4 * i), 4 * kk));
    }
    template <int MN, int BK, bool K_MAJOR, int COUNT>
    __device__ static __forceinline__ void load_a(a (&x)[COUNT], uint32_t offset, int kk) {
        constexpr int DOWN = ROWS / 8, ALONG = DEPTH / 4;
#pragma unroll
        for (int i = 0; i < COUNT; i++)
#pragma unroll
            for (int e = 0; e < DOWN * ALONG; e++)
                x[i].r[e] = load<MN, BK, K_MAJOR>(offset, i * DOWN + e % DOWN, kk * ALONG + e / DOWN);
    }
    template <int MN, int BK, bool K_MAJOR, int COUNT>
    __device__ static __forceinline__ void load_b(b (&x)[COUNT], uint32_t offset, int kk) {
        constexpr int ALONG = DEPTH / 4;
#pragma unroll
        for (int i = 0; i < COUNT; i++)
#pragma unroll
            for (int e = 0; e < ALONG; e++) x[i].r[e] = load<MN, BK, K_MAJOR>(offset, i, kk * ALONG + e);
    }
    __device__ static __forceinline__ void multiply(double (&c)[ACCUMULATORS], const a &x, const b &y) {
        if constexpr (ROWS == 8) sat_f64_math::multiply(c, x.r[0], y.r[0]);
        else sat_f64_math::multiply(c, x.r, y.r[0], y.r[1]);
    }
};

#endif
