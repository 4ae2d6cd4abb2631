/* The epilogue of a warp, after mma.sync (epilogue.cuh has the fragments and the store paths). On the packed16 path
 * lanes exchange registers until each has 16 bytes of a line. */
#ifndef SAT_WARP_EPILOGUE_CUH
#define SAT_WARP_EPILOGUE_CUH

#include "kernels/cuda/common/epilogue.cuh"

/* Transposes an 8x8 matrix of 16-bit elements in registers: lane l has elements 2*(l%4) and 2*(l%4) + 1 of row l/4. */
__device__ __forceinline__ uint32_t movmatrix_trans(uint32_t x) {
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* Transposes a 4 x 4 matrix of words that four neighbouring lanes hold: w[i] of lane q becomes w[q] of lane i. */
__device__ __forceinline__ void sat_transpose_quad(uint32_t (&w)[4], int q) {
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
        bool upper = q & bit;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & bit) continue;
            uint32_t received = __shfl_xor_sync(0xffffffffu, upper ? w[i] : w[i + bit], bit);
            if (upper) w[i] = received;
            else w[i + bit] = received;
        }
    }
}

/* C row-major. Of four fragments side by side each lane gets the 8 columns of one and stores 16 bytes. Where there are
 * only two fragments it stores its own words. */
template <typename E, int HALVES, int NT>
__device__ __forceinline__ void sat_store_packed16_rows(const sat_epilogue &o, uint32_t (&word)[HALVES][NT], int64_t i,
                                                        int64_t j, int q) {
    constexpr int ELEMENTS = NT % 4 ? 2 : 8; /* elements that a lane stores at once */
    sat_remaining remaining = sat_remaining_from(o, i, j + ELEMENTS * q);
    E *to = (E *)o.c + i * o.row_stride + j + ELEMENTS * q;
#pragma unroll
    for (int h = 0; h < HALVES; h++, to += 8 * o.row_stride)
#pragma unroll
        for (int n = 0; n < NT; n += ELEMENTS / 2) {
            if constexpr (ELEMENTS == 2) {
                if (8 * h < remaining.rows && 8 * n < remaining.columns) __stcg((uint32_t *)(to + 8 * n), word[h][n]);
                continue;
            }
            uint32_t w[4] = {word[h][n], word[h][n + 1], word[h][n + 2], word[h][n + 3]};
            sat_transpose_quad(w, q);
            if (8 * h < remaining.rows && 8 * n < remaining.columns)
                __stcg((uint4 *)(to + 8 * n), make_uint4(w[0], w[1], w[2], w[3]));
        }
}

/* C column-major: fragments are transposed first. Of four fragments one below the other each lane gets the 8 rows of
 * one; where there are only two, it stores its own words. */
template <typename E, int HALVES, int NT>
__device__ __forceinline__ void sat_store_packed16_columns(const sat_epilogue &o, uint32_t (&word)[HALVES][NT],
                                                           int64_t i, int64_t j, int q) {
    constexpr int ELEMENTS = HALVES >= 4 ? 8 : 2; /* elements that a lane stores at once */
    sat_remaining remaining = sat_remaining_from(o, i + ELEMENTS * q, j);
    E *to = (E *)o.c + j * o.col_stride + i + ELEMENTS * q;
#pragma unroll
    for (int n = 0; n < NT; n++, to += 8 * o.col_stride)
#pragma unroll
        for (int h = 0; h < HALVES; h += ELEMENTS / 2) {
            bool inside = 8 * h < remaining.rows && 8 * n < remaining.columns;
            uint32_t w[4];
#pragma unroll
            for (int e = 0; e < ELEMENTS / 2; e++) w[e] = movmatrix_trans(word[h + e][n]);
            if (ELEMENTS == 8) sat_transpose_quad(w, q);
            if (inside && ELEMENTS == 8) __stcg((uint4 *)(to + 8 * h), make_uint4(w[0], w[1], w[2], w[3]));
            if (inside && ELEMENTS == 2) __stcg((uint32_t *)(to + 8 * h), w[0]);
        }
}

template <typename E, int MT, int NT>
__device__ __forceinline__ void sat_store_packed16(const sat_tile_epilogue &o, const float (&sum)[MT][NT][4],
                                                   int64_t i0, int64_t j0, int lane) {
    const float alpha = (float)o.out.alpha;
    const E *bias = (const E *)o.out.bias;
    int g = lane >> 2, q = lane & 3;
    uint32_t word[2 * MT][NT];
#pragma unroll
    for (int h = 0; h < 2 * MT; h++) {
        int64_t i = i0 + 8 * h + g;
        float bias_of_row = bias && i < o.out.m ? (float)bias[i] : 0;
#pragma unroll
        for (int n = 0; n < NT; n++)
            word[h][n] = pack_2(E(), alpha * sum[h / 2][n][h % 2 * 2] + bias_of_row,
                                alpha * sum[h / 2][n][h % 2 * 2 + 1] + bias_of_row);
    }
    if (o.column_major) sat_store_packed16_columns<E>(o.out, word, i0, j0 + g, q);
    else sat_store_packed16_rows<E>(o.out, word, i0 + g, j0, q);
}

/* Stores a warp's tile whose first element is (i0, j0) of C. `square`: the warp's sat_square_bytes. */
template <typename E, typename SUM, int MT, int NT, int SUMS>
__device__ __forceinline__ void sat_warp_store(const sat_tile_epilogue &o, const SUM (&sum)[MT][NT][SUMS], int64_t i0,
                                               int64_t j0, int lane, SUM *square) {
    if constexpr (sizeof(E) == 2) {
        if (o.path == SAT_STORE_PACKED16) return sat_store_packed16<E>(o, sum, i0, j0, lane);
    }
    if (o.path == SAT_STORE_PAIRS && o.aligned && !o.column_major && o.out.n % 2 == 0)
        sat_store_pairs<true>(o.out, sum, i0 + lane / 4, j0 + lane % 4 * 2);
    else if (o.path == SAT_STORE_PAIRS) sat_store_pairs<false>(o.out, sum, i0 + lane / 4, j0 + lane % 4 * 2);
    else sat_store_generic(o, sum, i0, j0, lane, square);
}

#endif
