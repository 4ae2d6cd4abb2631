/* Attention on tensor cores by mma.sync, from sm_80 on: what the forward, the split and the backward kernel share.
 *
 * Operands have 16 bits and sums f32. Tiles are in shared memory with rows of PITCH = 2*D + 16 bytes, 16 more than D
 * elements have, so that 8 neighbouring rows begin in different banks. A warp has MT m-tiles of 16 rows. Of sums
 * [MT][N / 8][4] a lane has rows lane/4 and lane/4 + 8 of each m-tile (elements 0, 1 and 2, 3) and columns lane%4*2 and
 * the next of every 8. That is also the layout of the A operand of the next product. */
#ifndef SAT_ATTENTION_MMA_CUH
#define SAT_ATTENTION_MMA_CUH

#include "kernels/cuda/attention/attention_device.cuh"
#include "kernels/cuda/common/ptx_sm80.cuh"

/* Begins to copy `count` rows of a tile to shared memory; zero beyond them and beyond `dim`. Stride in bytes. */
template <int ROWS, int D, int THREADS>
__device__ __forceinline__ void attention_load_rows(uint32_t to, const char *from, int64_t stride, int count, int dim) {
    constexpr int VECTORS = D / 8, PITCH = 2 * D + 16;
    static_assert(ROWS * VECTORS % THREADS == 0, "");
    int thread = reread_thread_index();
#pragma unroll
    for (int i = 0; i < ROWS * VECTORS / THREADS; i++) {
        int at = thread + i * THREADS, row = at / VECTORS, vec16 = at % VECTORS;
        bool inside = row < count && vec16 * 8 < dim;
        cp_async_16(to + row * PITCH + vec16 * 16, inside ? from + row * stride + vec16 * 16 : from, inside ? 16 : 0);
    }
}

__device__ __forceinline__ void attention_st_shared_v4(uint32_t to, const uint32_t (&x)[4]) {
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

/* 16 bytes of 16-bit elements that may begin anywhere: `count` of them, then zeros. */
__device__ __forceinline__ void attention_copy_elements(uint32_t to, const char *from, int count) {
    uint32_t x[4] = {};
#pragma unroll
    for (int e = 0; e < 8; e++)
        if (e < count) x[e / 2] |= (uint32_t)__ldg((const unsigned short *)from + e) << e % 2 * 16;
    attention_st_shared_v4(to, x);
}

/* attention_load_rows for any head size; rows that do not begin on 16 bytes are copied by element. */
template <int ROWS, int D, int THREADS>
__device__ __forceinline__ void attention_load_any(uint32_t to, const char *from, int64_t stride, int count, int dim,
                                                   bool aligned) {
    constexpr int VECTORS = D / 8, PITCH = 2 * D + 16;
#pragma unroll 2
    for (int at = reread_thread_index(); at < ROWS * VECTORS; at += THREADS) {
        int row = at / VECTORS, vec16 = at % VECTORS, inside = row < count ? max(0, min(8, dim - vec16 * 8)) : 0;
        const char *source = inside ? from + row * stride + vec16 * 16 : from;
        if (aligned) cp_async_16(to + row * PITCH + vec16 * 16, source, 2 * inside);
        else attention_copy_elements(to + row * PITCH + vec16 * 16, source, inside);
    }
}

/* ---- products ---- */

/* What a lane adds to a tile's address for ldmatrix: of an A operand, or of B stored (k, n); and of B stored (n, k). */
template <int PITCH> __device__ __forceinline__ uint32_t attention_lane_a() {
    return threadIdx.x % 16 * PITCH + threadIdx.x / 16 % 2 * 16;
}
template <int PITCH> __device__ __forceinline__ uint32_t attention_lane_bt() {
    return (threadIdx.x % 8 + threadIdx.x / 16 % 2 * 8) * PITCH + threadIdx.x / 8 % 2 * 16;
}

/* s = A*B^T, (16*MT, BN), over K elements; A is (16*MT, K) and B is (BN, K), both in shared memory. */
template <typename MATH, int MT, int BN, int K, int PITCH>
__device__ __forceinline__ void attention_mma_abt(float (&s)[MT][BN / 8][4], uint32_t a, uint32_t b) {
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[i][j][e] = 0;
#pragma unroll
    for (int k = 0; k < K / 16; k++) {
        uint32_t af[MT][4], bf[4];
#pragma unroll
        for (int i = 0; i < MT; i++) ldmatrix_x4(af[i], a + i * 16 * PITCH + k * 32);
#pragma unroll
        for (int j = 0; j < BN / 16; j++) {
            ldmatrix_x4(bf, b + j * 16 * PITCH + k * 32);
#pragma unroll
            for (int i = 0; i < MT; i++) {
                MATH::multiply(s[i][2 * j], af[i], bf[0], bf[1]);
                MATH::multiply(s[i][2 * j + 1], af[i], bf[2], bf[3]);
            }
        }
    }
}

/* o += P*B, (16*MT, N); P is (16*MT, K) in registers, B is (K, N) in shared memory. */
template <typename MATH, int MT, int K, int N, int PITCH>
__device__ __forceinline__ void attention_mma_pb(float (&o)[MT][N / 8][4], const uint32_t (&p)[MT][K / 16][4],
                                                 uint32_t b) {
#pragma unroll
    for (int k = 0; k < K / 16; k++)
#pragma unroll
        for (int j = 0; j < N / 16; j++) {
            uint32_t bf[4];
            ldmatrix_x4_trans(bf, b + k * 16 * PITCH + j * 32);
#pragma unroll
            for (int i = 0; i < MT; i++) {
                MATH::multiply(o[i][2 * j], p[i][k], bf[0], bf[1]);
                MATH::multiply(o[i][2 * j + 1], p[i][k], bf[2], bf[3]);
            }
        }
}

/* Sums as 16-bit elements, the A operand of the next product. */
template <typename E, int MT, int BN>
__device__ __forceinline__ void attention_pack_operand(uint32_t (&p)[MT][BN / 16][4], const float (&s)[MT][BN / 8][4]) {
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < BN / 8; j++) {
            p[i][j / 2][j % 2 * 2] = pack_2(E(), s[i][j][0], s[i][j][1]);
            p[i][j / 2][j % 2 * 2 + 1] = pack_2(E(), s[i][j][2], s[i][j][3]);
        }
}

/* ---- mask, softmax, output ---- */

/* Of one of the lane's two rows of an m-tile, sums of keys whose bit is not set become `value`. */
template <int BN>
__device__ __forceinline__ void attention_mask_row(float (&s)[BN / 8][4], int half, uint64_t keep, float value) {
    keep >>= threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < BN / 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            if (!(keep >> (j * 8 + e) & 1)) s[j][half * 2 + e] = value;
}

/* Products become the tanh of them times `cap`. */
template <int MT, int NT> __device__ __forceinline__ void attention_cap_scores(float (&s)[MT][NT][4], float cap) {
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[i][j][e] = tanhf(s[i][j][e] * cap);
}

/* The lane's rows: the maximum that sums are relative to, and this lane's part of the sum of weights. */
template <int MT> struct attention_rows { float m[MT][2], sum[MT][2]; };

/* One step of the online softmax: scores become weights exp2(c*(score - m)). m is the row maximum, or an earlier one as
 * long as the difference stays small. True: O must be multiplied by `scale`. */
template <int MT, int BN>
__device__ __forceinline__ bool attention_softmax(float (&s)[MT][BN / 8][4], attention_rows<MT> &r,
                                                  float (&scale)[MT][2], float c, float rescale_above) {
    float top[MT][2];
    bool rescale = false;
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float x = fmaxf(s[i][0][2 * h], s[i][0][2 * h + 1]);
#pragma unroll
            for (int j = 1; j < BN / 8; j++) x = fmaxf(x, fmaxf(s[i][j][2 * h], s[i][j][2 * h + 1]));
            x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
            top[i][h] = fmaxf(x, __shfl_xor_sync(~0u, x, 2));
            rescale |= top[i][h] > r.m[i][h] + rescale_above;
        }
    rescale = __any_sync(~0u, rescale);
    if (rescale) {
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float grown = fmaxf(r.m[i][h], top[i][h]);
                scale[i][h] = attention_rescale(r.m[i][h], grown, c);
                r.sum[i][h] *= scale[i][h], r.m[i][h] = grown;
            }
    }
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float minus = r.m[i][h] == -INFINITY ? 0 : -__fmul_rn(r.m[i][h], c), part = 0;
#pragma unroll
            for (int j = 0; j < BN / 8; j++)
#pragma unroll
                for (int e = 2 * h; e < 2 * h + 2; e++) {
                    s[i][j][e] = attention_exp2(fmaf(s[i][j][e], c, minus));
                    part += s[i][j][e];
                }
            r.sum[i][h] += part;
        }
    return rescale;
}

/* Stores the first `count` of 8 elements of 16 bits, anywhere. */
__device__ __forceinline__ void attention_store_elements(char *to, uint4 x, int count) {
    const uint32_t word[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int e = 0; e < 8; e++)
        if (e < count) ((unsigned short *)to)[e] = (unsigned short)(word[e / 2] >> e % 2 * 16);
}

/* Stores a warp's sums times `factor`, staged in its rows of a tile in shared memory: `count` rows of `dim` elements.
 * Stride in bytes. OPTIONS: any head size, and rows begin on 16 bytes where they are `aligned`. */
template <typename E, int MT, int N, int PITCH, bool OPTIONS = false>
__device__ __forceinline__ void attention_store_rows(const float (&o)[MT][N / 8][4], const float (&factor)[MT][2],
                                                     uint32_t tile, char *to, int64_t stride, int count, int dim,
                                                     bool aligned = true) {
    constexpr int VECTORS = N / 8;
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t x = pack_2(E(), o[i][j][2 * h] * factor[i][h], o[i][j][2 * h + 1] * factor[i][h]);
                uint32_t at = tile + (i * 16 + h * 8 + lane / 4) * PITCH + j * 16 + lane % 4 * 4;
                asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
            }
    __syncwarp();
    for (int at = lane; at < MT * 16 * VECTORS; at += 32) {
        int row = at / VECTORS, vec16 = at % VECTORS;
        if (row >= count || vec16 * 8 >= dim) continue;
        if (OPTIONS && (!aligned || vec16 * 8 + 8 > dim)) {
            attention_store_elements(to + row * stride + vec16 * 16, ld_shared_v4(tile + row * PITCH + vec16 * 16),
                                     dim - vec16 * 8);
            continue;
        }
        *(uint4 *)(to + row * stride + vec16 * 16) = ld_shared_v4(tile + row * PITCH + vec16 * 16);
    }
}

#endif
