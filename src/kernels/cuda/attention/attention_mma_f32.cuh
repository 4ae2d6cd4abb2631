/* Attention in f32 on tensor cores by 3xTF32: what the forward, the split and the backward kernel share.
 *
 * Each f32 operand is the sum of two TF32 parts, x = large + small: large is x rounded to nearest to 11 bits, small is
 * what is left, whose last bit at most is lost. A product is small*large + large*small + large*large; small*small is
 * below the last bit of f32. Tensor cores truncate every addition. So a sum over keys or queries, which may be long and
 * of one sign, goes through them for one step only, from zero; steps are added by plain additions, which round to
 * nearest. Where x is infinite, or rounds to infinity, small is NaN.
 *
 * Tiles are in shared memory with rows of PITCH = 4*D bytes, D a multiple of 32. Vectors of 16 bytes are swizzled
 * within 128 bytes, so that both ways of reading a tile have no bank conflicts: eight lanes read four neighbouring
 * vectors of two neighbouring rows, or two neighbouring vectors of every second row of eight.
 *
 * Each lane reads vectors of 16 bytes, and the order of the depth, or of the columns, is what makes fragments of
 * mma.m16n8k8 of them. With g = lane/4 and t = lane%4, a fragment has depths t and t + 4 of an operand:
 *   - of A*B^T over d: in step k of two of a chunk of 16, these are d = 4*t + 2*k and the next;
 *   - of P*B over keys: they are keys 2*t and the next of 8, which is where the sums of A*B^T are;
 *   - columns of P*B: of four n-tiles, number j has columns 4*g + j of 32. So a lane has eight neighbouring columns of
 *     the sums, 8*t and on: elements 0 of the four tiles, then elements 1. */
#ifndef SAT_ATTENTION_MMA_F32_CUH
#define SAT_ATTENTION_MMA_F32_CUH

#include "kernels/cuda/attention/attention_mma.cuh"

/* ---- tiles ---- */

/* What the number of a vector in its row is XORed with. */
__device__ __forceinline__ int attention_f32_swizzle(int row) { return (row & 6) ^ (row & 1) << 2; }

/* Begins to copy `count` rows of a tile to shared memory; zero beyond them and beyond `dim`. Stride in elements. */
template <int ROWS, int D, int THREADS>
__device__ __forceinline__ void attention_f32_load_rows(uint32_t to, const float *from, int64_t stride, int count,
                                                        int dim) {
    constexpr int VECTORS = D / 4;
    static_assert(ROWS * VECTORS % THREADS == 0 && D % 32 == 0, "");
    int thread = reread_thread_index();
#pragma unroll 8
    for (int i = 0; i < ROWS * VECTORS / THREADS; i++) {
        int at = thread + i * THREADS, row = at / VECTORS, vec16 = at % VECTORS;
        bool inside = row < count && vec16 * 4 < dim;
        cp_async_16(to + row * 4 * D + (vec16 ^ attention_f32_swizzle(row)) * 16,
                    inside ? from + row * stride + vec16 * 4 : from, inside ? 16 : 0);
    }
}

/* The same for any head size; rows that do not begin on 16 bytes are copied by element. */
template <int ROWS, int D, int THREADS>
__device__ __forceinline__ void attention_f32_load_any(uint32_t to, const float *from, int64_t stride, int count,
                                                       int dim, bool aligned) {
    constexpr int VECTORS = D / 4;
#pragma unroll 2
    for (int at = reread_thread_index(); at < ROWS * VECTORS; at += THREADS) {
        int row = at / VECTORS, vec16 = at % VECTORS, inside = row < count ? max(0, min(4, dim - vec16 * 4)) : 0;
        const float *source = inside ? from + row * stride + vec16 * 4 : from;
        uint32_t place = to + row * 4 * D + (vec16 ^ attention_f32_swizzle(row)) * 16;
        if (aligned) cp_async_16(place, source, 4 * inside);
        else
            for (int e = 0; e < 4; e++)
                cp_async_small<4>(place + 4 * e, e < inside ? source + e : from, e < inside ? 4 : 0);
    }
}

/* The lane's addresses in a tile whose first row is a multiple of 8: of a row of A or B of A*B^T, in even and in odd
 * chunks; and of the two rows of B of P*B. */
struct attention_f32_lane {
    uint32_t at[2];
};
template <int D> __device__ __forceinline__ attention_f32_lane attention_f32_lane_abt(uint32_t tile) {
    int row = threadIdx.x % 32 / 4, vec16 = threadIdx.x % 4 ^ attention_f32_swizzle(row);
    uint32_t line = tile + row * 4 * D;
    return {{line + vec16 * 16, line + (vec16 ^ 4) * 16}};
}
template <int D> __device__ __forceinline__ attention_f32_lane attention_f32_lane_pb(uint32_t tile) {
    int row = threadIdx.x % 4 * 2, vec16 = threadIdx.x % 32 / 4 ^ attention_f32_swizzle(row);
    uint32_t line = tile + row * 4 * D;
    return {{line + vec16 * 16, line + 4 * D + (vec16 ^ 4) * 16}};
}

/* ---- products ---- */

__device__ __forceinline__ void attention_f32_split(uint32_t x, uint32_t &large, uint32_t &small) {
    large = (x + 0x1000u) & 0xffffe000u; /* cvt.rna of what is finite, in half as many instructions */
    small = __float_as_uint(__uint_as_float(x) - __uint_as_float(large));
}

/* s = A*B^T, (16*MT, 8*NT), over D elements. */
template <int MT, int NT, int D>
__device__ __forceinline__ void attention_f32_abt(float (&s)[MT][NT][4], const attention_f32_lane &a,
                                                  const attention_f32_lane &b) {
    constexpr int PITCH = 4 * D;
    constexpr bool APART = MT * NT <= 2; /* few sums are more chains, so that products need not wait for each other */
    float rest[MT][NT][4];
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[i][j][e] = rest[i][j][e] = 0;
#pragma unroll
    for (int c = 0; c < D / 16; c++) {
        uint32_t al[2][MT][4], as[2][MT][4], bl[2][NT][2], bs[2][NT][2];
#pragma unroll
        for (int h = 0; h < 2 * MT; h++) {
            uint4 x = ld_shared_v4(a.at[c % 2] + c / 2 * 128 + h * 8 * PITCH);
            int i = h / 2, e = h % 2;
            attention_f32_split(x.x, al[0][i][e], as[0][i][e]),
                attention_f32_split(x.y, al[0][i][e + 2], as[0][i][e + 2]);
            attention_f32_split(x.z, al[1][i][e], as[1][i][e]),
                attention_f32_split(x.w, al[1][i][e + 2], as[1][i][e + 2]);
        }
#pragma unroll
        for (int j = 0; j < NT; j++) {
            uint4 x = ld_shared_v4(b.at[c % 2] + c / 2 * 128 + j * 8 * PITCH);
            attention_f32_split(x.x, bl[0][j][0], bs[0][j][0]), attention_f32_split(x.y, bl[0][j][1], bs[0][j][1]);
            attention_f32_split(x.z, bl[1][j][0], bs[1][j][0]), attention_f32_split(x.w, bl[1][j][1], bs[1][j][1]);
        }
#pragma unroll
        for (int k = 0; k < 2; k++) {
#pragma unroll
            for (int i = 0; i < MT; i++)
#pragma unroll
                for (int j = 0; j < NT; j++)
                    sat_tf32_math::multiply(APART ? rest[i][j] : s[i][j], as[k][i], bl[k][j][0], bl[k][j][1]);
#pragma unroll
            for (int i = 0; i < MT; i++)
#pragma unroll
                for (int j = 0; j < NT && !APART; j++)
                    sat_tf32_math::multiply(s[i][j], al[k][i], bs[k][j][0], bs[k][j][1]);
#pragma unroll
            for (int i = 0; i < MT; i++)
#pragma unroll
                for (int j = 0; j < NT; j++) sat_tf32_math::multiply(s[i][j], al[k][i], bl[k][j][0], bl[k][j][1]);
#pragma unroll
            for (int i = 0; i < MT; i++)
#pragma unroll
                for (int j = 0; j < NT && APART; j++)
                    sat_tf32_math::multiply(rest[i][j], al[k][i], bs[k][j][0], bs[k][j][1]);
        }
    }
#pragma unroll
    for (int i = 0; i < MT && APART; i++)
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[i][j][e] += rest[i][j][e];
}

/* Sums of A*B^T as the A operand of the next product, KT steps of 8 keys. */
template <int MT, int KT> struct attention_f32_operand { uint32_t large[MT][KT][4], small[MT][KT][4]; };

template <int MT, int KT>
__device__ __forceinline__ void attention_f32_make_operand(attention_f32_operand<MT, KT> &p,
                                                           const float (&s)[MT][KT][4]) {
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int k = 0; k < KT; k++)
#pragma unroll
            for (int e = 0; e < 4; e++) { /* element e of the sums: row e/2, key e%2 */
                int to = e / 2 + e % 2 * 2;
                attention_f32_split(__float_as_uint(s[i][k][e]), p.large[i][k][to], p.small[i][k][to]);
            }
}

/* o += P*B, (16*MT, N); B is (8*KT, N) of a tile whose rows have D elements. */
template <int MT, int KT, int N, int D>
__device__ __forceinline__ void attention_f32_pb(float (&o)[MT][N / 8][4], const attention_f32_operand<MT, KT> &p,
                                                 const attention_f32_lane &b) {
    static_assert(N % 32 == 0, "");
#pragma unroll
    for (int c = 0; c < N / 32; c++) {
        float sum[MT][4][4] = {};
#pragma unroll
        for (int k = 0; k < KT; k++) {
            uint32_t bl[4][2], bs[4][2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint4 x = ld_shared_v4(b.at[h] + k * 32 * D + c * 128);
                attention_f32_split(x.x, bl[0][h], bs[0][h]), attention_f32_split(x.y, bl[1][h], bs[1][h]);
                attention_f32_split(x.z, bl[2][h], bs[2][h]), attention_f32_split(x.w, bl[3][h], bs[3][h]);
            }
#pragma unroll
            for (int i = 0; i < MT; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) sat_tf32_math::multiply(sum[i][j], p.small[i][k], bl[j][0], bl[j][1]);
#pragma unroll
            for (int i = 0; i < MT; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) sat_tf32_math::multiply(sum[i][j], p.large[i][k], bs[j][0], bs[j][1]);
#pragma unroll
            for (int i = 0; i < MT; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) sat_tf32_math::multiply(sum[i][j], p.large[i][k], bl[j][0], bl[j][1]);
        }
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) o[i][4 * c + j][e] += sum[i][j][e];
    }
}

/* ---- output ---- */

/* The column of element e of n-tile j of the lane's sums. */
__device__ __forceinline__ int attention_f32_column(int j, int e) {
    return j / 4 * 32 + threadIdx.x % 4 * 8 + e % 2 * 4 + j % 4;
}

/* Stores a warp's sums times `factor`: `count` rows of `dim` elements, a multiple of 8. Stride in elements. OPTIONS:
 * any head size, and rows begin on 16 bytes where they are `aligned`. */
template <int MT, int N, bool OPTIONS = false>
__device__ __forceinline__ void attention_f32_store_rows(const float (&o)[MT][N / 8][4], const float (&factor)[MT][2],
                                                         float *to, int64_t stride, int count, int dim,
                                                         bool aligned = true) {
#pragma unroll
    for (int h = 0; h < 2 * MT; h++) {
        int row = threadIdx.x % 32 / 4 + h * 8;
        if (row >= count) continue;
#pragma unroll
        for (int j = 0; j < N / 8; j += 4) {
            int column = attention_f32_column(j, 0);
            if (column >= dim) continue;
            if (OPTIONS && (!aligned || column + 8 > dim)) {
#pragma unroll
                for (int e = 0; e < 8; e++)
                    if (column + e < dim)
                        to[row * stride + column + e] = o[h / 2][j + e % 4][h % 2 * 2 + e / 4] * factor[h / 2][h % 2];
                continue;
            }
            float4 *at = (float4 *)(to + row * stride + column);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float x = factor[h / 2][h % 2];
                int k = h % 2 * 2 + e;
                at[e] = make_float4(o[h / 2][j][k] * x, o[h / 2][j + 1][k] * x, o[h / 2][j + 2][k] * x,
                                    o[h / 2][j + 3][k] * x);
            }
        }
    }
}

#endif
