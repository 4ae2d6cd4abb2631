/* Attention on plain f32 units, what forward and backward share: tiles as floats in shared memory, of which a thread
 * has 8 rows by every 16th of the other side, then 8 rows by groups of four columns. */
#ifndef SAT_ATTENTION_TILED_CUH
#define SAT_ATTENTION_TILED_CUH

#include "kernels/cuda/attention/attention_mma.cuh"

/* `count` rows as floats, zero beyond them and beyond `dim`; asynchronous where `wide`: f32 in steps of 16 bytes. */
template <typename T, int ROWS, int D, int THREADS>
__device__ __forceinline__ void tiled_load(float *to, const T *from, int64_t stride, int count, int dim, bool wide) {
    constexpr int QUADS = D / 4, PITCH = D + 4;
#pragma unroll 4
    for (int at = threadIdx.x; at < ROWS * QUADS; at += THREADS) {
        int row = at / QUADS, column = at % QUADS * 4;
        bool inside = row < count && column < dim;
        const T *source = inside ? from + row * stride + column : from;
        float *place = to + row * PITCH + column;
        if (sizeof(T) == 4 && wide) {
            cp_async_16(smem_address(place), source, inside ? 16 : 0);
        } else if (sizeof(T) == 4) {
            for (int e = 0; e < 4; e++)
                cp_async_small<4>(smem_address(place + e), source + (inside ? e : 0), inside ? 4 : 0);
        } else {
            float4 x = make_float4(0, 0, 0, 0);
            if (inside) x = make_float4((float)source[0], (float)source[1], (float)source[2], (float)source[3]);
            *(float4 *)place = x;
        }
    }
}

/* s = Q*K^T: rows of this thread by keys x, x + 16, ... S: D elements of rows that are PITCH floats; ROWS and KEYS of a
 * thread. */
template <typename S>
__device__ __forceinline__ void tiled_scores(float (&s)[S::ROWS][S::KEYS], const float *q, const float *k, int x) {
#pragma unroll
    for (int i = 0; i < S::ROWS; i++)
#pragma unroll
        for (int j = 0; j < S::KEYS; j++) s[i][j] = 0;
#pragma unroll 2
    for (int d = 0; d < S::D; d += 4) {
        float4 b[S::KEYS];
#pragma unroll
        for (int j = 0; j < S::KEYS; j++) b[j] = *(const float4 *)(k + (x + 16 * j) * S::PITCH + d);
#pragma unroll
        for (int i = 0; i < S::ROWS; i++) {
            float4 a = *(const float4 *)(q + i * S::PITCH + d);
#pragma unroll
            for (int j = 0; j < S::KEYS; j++)
                s[i][j] = fmaf(a.w, b[j].w, fmaf(a.z, b[j].z, fmaf(a.y, b[j].y, fmaf(a.x, b[j].x, s[i][j]))));
        }
    }
}

/* o += P*V: columns 4*x and the next three of every 64, GROUPS of them; BN keys, rows of weights WEIGHTS floats. */
template <typename S>
__device__ __forceinline__ void tiled_values(float (&o)[S::ROWS][S::GROUPS * 4], const float *weights, const float *v,
                                             int x) {
#pragma unroll 1
    for (int k = 0; k < S::BN; k += 4) {
        float4 p[S::ROWS];
#pragma unroll
        for (int i = 0; i < S::ROWS; i++) p[i] = *(const float4 *)(weights + i * S::WEIGHTS + k);
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int g = 0; g < S::GROUPS; g++) {
                float4 b = *(const float4 *)(v + (k + e) * S::PITCH + g * 64 + 4 * x);
#pragma unroll
                for (int i = 0; i < S::ROWS; i++) {
                    float w = e == 0 ? p[i].x : e == 1 ? p[i].y : e == 2 ? p[i].z : p[i].w;
                    o[i][g * 4] = fmaf(w, b.x, o[i][g * 4]), o[i][g * 4 + 1] = fmaf(w, b.y, o[i][g * 4 + 1]);
                    o[i][g * 4 + 2] = fmaf(w, b.z, o[i][g * 4 + 2]), o[i][g * 4 + 3] = fmaf(w, b.w, o[i][g * 4 + 3]);
                }
            }
    }
}

/* Which of the three element types there are kernels for. */
static inline int tiled_type(sat_dtype t) { return t == SAT_F32 ? 0 : t == SAT_F16 ? 1 : 2; }

#endif
