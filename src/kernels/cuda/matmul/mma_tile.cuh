/* Tiles of the operands in shared memory, and the fragments that matrix products take out of them.
 *
 * A tile is lines of 16-byte chunks. "Deep" lines run along k, "wide" ones across it: rows of A or columns of B. So
 * op(A) plain and B column-major are deep, op(A) transposed and B row-major are wide. Chunks are stored permuted within
 * 128 bytes, so that the eight chunks which one access wants from eight lines lie in different banks. */
#ifndef SAT_MMA_TILE_CUH
#define SAT_MMA_TILE_CUH

#include "kernels/cuda/common/ptx.cuh"

/* What a line's chunks are permuted by. PAIRED: an access takes two neighbouring chunks of four lines, not one of
 * eight. */
template <int CHUNKS, int PAIRED> __host__ __device__ constexpr int sat_mma_key(int line) {
    return ((line / (CHUNKS >= 8 ? 1 : 8 / CHUNKS)) << PAIRED) & ((CHUNKS >= 8 ? 8 : CHUNKS) - 1);
}

template <int CHUNKS, int PAIRED> __host__ __device__ constexpr int sat_mma_place(int line, int chunk) { /* in bytes */
    return (line * CHUNKS + (chunk ^ sat_mma_key<CHUNKS, PAIRED>(line))) * 16;
}

/* From a place to the same chunk `lines` further on, and to a chunk further on in the same line. Both need bits that
 * are zero in what they are added to, and tiles at multiples of 1024. */
template <int CHUNKS, int PAIRED> __device__ __forceinline__ uint32_t sat_mma_down(uint32_t place, int lines) {
    return (place ^ (uint32_t)(sat_mma_key<CHUNKS, PAIRED>(lines) * 16)) + (uint32_t)(lines * CHUNKS * 16);
}
__device__ __forceinline__ uint32_t sat_mma_along(uint32_t place, int chunks) {
    return place ^ (uint32_t)(chunks * 16);
}

/* Each kind of product has fragments `a` (M x K) and `b` (K x 8), an accumulator of SUMS elements a lane in lines of
 * pairs, 8 rows apart, and says how a lane finds its first place in a tile and the rest from there. `settle` is what
 * fragments need before they are multiplied. W: the tile's extent across k, KS: along it. at: the warp's first row or
 * column in the tile. */

/* ---- 16-bit elements: matrix loads, turned on the way where the lines are wide ---- */

template <class MATH> struct sat_mma_16bit {
    typedef typename MATH::element element;
    typedef float sum;
    struct a {
        uint32_t r[4];
    };
    struct b {
        uint32_t r[2];
    };
    static constexpr sat_dtype dtype = MATH::dtype;
    static constexpr int M = 16, K = 16, SUMS = 4;
    static constexpr int paired(bool) { return 0; }
    template <int MT, int NT> __device__ static void settle(a (&)[MT], b (&)[NT]) {}

    template <int W, int KS, bool DEEP> __device__ static int find_a(int lane, int at) {
        if (DEEP) return sat_mma_place<KS / 8, 0>(at + (lane & 15), lane >> 4);
        return sat_mma_place<W / 8, 0>((lane >> 4) * 8 + (lane & 7), at / 8 + ((lane >> 3) & 1));
    }
    template <int W, int KS, bool DEEP> __device__ static int find_b(int lane, int at) {
        if (DEEP) return sat_mma_place<KS / 8, 0>(at + (lane >> 4) * 8 + (lane & 7), (lane >> 3) & 1);
        return sat_mma_place<W / 8, 0>(lane & 15, at / 8 + (lane >> 4));
    }
    /* 16 x 16 of a tile: the i-th across k, the kk-th along it. */
    template <int W, int KS, bool DEEP>
    __device__ static __forceinline__ void load(uint32_t (&r)[4], uint32_t place, int i, int kk) {
        if (DEEP) ldmatrix_x4(r, sat_mma_down<KS / 8, 0>(sat_mma_along(place, 2 * kk), 16 * i));
        else ldmatrix_x4_trans(r, sat_mma_down<W / 8, 0>(sat_mma_along(place, 2 * i), 16 * kk));
    }
    template <int W, int KS, bool DEEP, int COUNT>
    __device__ static __forceinline__ void load_a(a (&x)[COUNT], uint32_t place, int kk) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            if (DEEP) load<W, KS, true>(x[i].r, place, i, kk);
            else load<W, KS, false>(x[i].r, place, i, kk);
        }
    }
    template <int W, int KS, bool DEEP, int COUNT>
    __device__ static __forceinline__ void load_b(b (&x)[COUNT], uint32_t place, int kk) {
        static_assert(COUNT % 2 == 0, "two at a time");
#pragma unroll
        for (int i = 0; i < COUNT / 2; i++) {
            uint32_t r[4];
            load<W, KS, DEEP>(r, place, i, kk);
            x[2 * i].r[0] = r[0], x[2 * i].r[1] = r[1], x[2 * i + 1].r[0] = r[2], x[2 * i + 1].r[1] = r[3];
        }
    }
    __device__ static __forceinline__ void multiply(float (&c)[4], const a &x, const b &y) {
        MATH::multiply(c, x.r, y.r[0], y.r[1]);
    }
};

/* ---- f32 rounded to TF32: matrix loads move 32-bit pairs of halves, so they serve deep lines; wide ones are read
 * element by element ---- */

struct sat_mma_tf32 {
    typedef float element;
    typedef float sum;
    struct a {
        uint32_t r[4];
    };
    struct b {
        uint32_t r[2];
    };
    static constexpr sat_dtype dtype = SAT_F32;
    static constexpr int M = 16, K = 8, SUMS = 4;
    static constexpr int paired(bool deep) { return deep ? 0 : 1; }

    /* Half of the last place that is kept is added, ties away from zero; the product drops the bits below it. One
     * comparison keeps infinities and NaN: a third of the instructions that cvt.rna becomes. */
    template <int REGISTERS> __device__ static __forceinline__ void round(uint32_t (&r)[REGISTERS]) {
#pragma unroll
        for (int e = 0; e < REGISTERS; e++)
            if (fabsf(__uint_as_float(r[e])) < INFINITY) r[e] += 0x1000u;
    }
    template <int MT, int NT> __device__ static __forceinline__ void settle(a (&x)[MT], b (&y)[NT]) {
#pragma unroll
        for (int i = 0; i < MT; i++) round(x[i].r);
#pragma unroll
        for (int i = 0; i < NT; i++) round(y[i].r);
    }
    template <int W, int KS, bool DEEP> __device__ static int find_a(int lane, int at) {
        if (DEEP) return sat_mma_place<KS / 4, 0>(at + (lane & 15), lane >> 4);
        return sat_mma_place<W / 4, 1>(lane & 3, at / 4 + (lane >> 4)) + ((lane >> 2) & 3) * 4;
    }
    template <int W, int KS, bool DEEP> __device__ static int find_b(int lane, int at) {
        if (DEEP) return sat_mma_place<KS / 4, 0>(at + (lane >> 4) * 8 + (lane & 7), (lane >> 3) & 1);
        return find_a<W, KS, false>(lane, at);
    }
    template <int W, int KS, bool DEEP, int COUNT>
    __device__ static __forceinline__ void load_a(a (&x)[COUNT], uint32_t place, int kk) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            if (DEEP) {
                ldmatrix_x4(x[i].r, sat_mma_down<KS / 4, 0>(sat_mma_along(place, 2 * kk), 16 * i));
            } else {
#pragma unroll
                for (int e = 0; e < 4; e++)
                    x[i].r[e] = ld_shared_b32(
                        sat_mma_down<W / 4, 1>(sat_mma_along(place, 4 * i + (e & 1) * 2), 8 * kk + (e >> 1) * 4));
            }
        }
    }
    template <int W, int KS, bool DEEP, int COUNT>
    __device__ static __forceinline__ void load_b(b (&x)[COUNT], uint32_t place, int kk) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            if (!DEEP) {
                x[i].r[0] = ld_shared_b32(sat_mma_down<W / 4, 1>(sat_mma_along(place, 2 * i), 8 * kk));
                x[i].r[1] = ld_shared_b32(sat_mma_down<W / 4, 1>(sat_mma_along(place, 2 * i), 8 * kk + 4));
            } else if (i % 2 == 0) {
                uint32_t r[4];
                ldmatrix_x4(r, sat_mma_down<KS / 4, 0>(sat_mma_along(place, 2 * kk), 8 * i));
                x[i].r[0] = r[0], x[i].r[1] = r[1];
                x[i + 1].r[0] = r[2], x[i + 1].r[1] = r[3];
            }
        }
    }
    __device__ static __forceinline__ void multiply(float (&c)[4], const a &x, const b &y) {
        sat_tf32_math::multiply(c, x.r, y.r[0], y.r[1]);
    }
};

/* ---- f64: a lane has one element of each fragment, and fetches it ---- */

struct sat_mma_f64 {
    typedef double element;
    typedef double sum;
    typedef double a;
    typedef double b;
    static constexpr sat_dtype dtype = SAT_F64;
    static constexpr int M = 8, K = 4, SUMS = 2;
    static constexpr int paired(bool) { return 1; }
    template <int MT, int NT> __device__ static void settle(a (&)[MT], b (&)[NT]) {}

    template <int W, int KS, bool DEEP> __device__ static int find_a(int lane, int at) {
        int across = lane >> 2, along = lane & 3;
        if (DEEP) return sat_mma_place<KS / 2, 1>(at + across, along >> 1) + (along & 1) * 8;
        return sat_mma_place<W / 2, 1>(along, at / 2 + (across >> 1)) + (across & 1) * 8;
    }
    template <int W, int KS, bool DEEP> __device__ static int find_b(int lane, int at) {
        return find_a<W, KS, DEEP>(lane, at);
    }
    template <int W, int KS, bool DEEP, int COUNT>
    __device__ static __forceinline__ void load_a(double (&x)[COUNT], uint32_t place, int kk) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            if (DEEP) x[i] = ld_shared_f64(sat_mma_down<KS / 2, 1>(sat_mma_along(place, 2 * kk), 8 * i));
            else x[i] = ld_shared_f64(sat_mma_down<W / 2, 1>(sat_mma_along(place, 4 * i), 4 * kk));
        }
    }
    template <int W, int KS, bool DEEP, int COUNT>
    __device__ static __forceinline__ void load_b(double (&x)[COUNT], uint32_t place, int kk) {
        load_a<W, KS, DEEP>(x, place, kk);
    }
    __device__ static __forceinline__ void multiply(double (&c)[2], double x, double y) {
        sat_f64_math::multiply(c, x, y);
    }
};

#endif
