/* Attention without tensor cores, what forward and backward share. Tiles are in shared memory as f32, with rows of
 * PITCH floats. A half warp has ROWS rows of its own, and its 16 threads share the columns: of scores, thread x has
 * columns x, x + 16, ... (KEYS of them); of sums, columns 4*x to 4*x + 3 of every 64 (VECTORS times four). */
#ifndef SAT_ATTENTION_TILED_CUH
#define SAT_ATTENTION_TILED_CUH

#include "kernels/cuda/attention/attention_device.cuh"
#include "kernels/cuda/common/ptx_sm80.cuh"

/* Copies `count` rows as floats; zero beyond them and beyond `dim`. f32 is copied by cp.async, 16 bytes at a time where
 * `aligned` says that rows begin on 16 bytes. OPTIONS: any `dim`, otherwise a multiple of 4. */
template <typename T, int ROWS, int D, int THREADS, bool OPTIONS>
__device__ __forceinline__ void tiled_load(float *to, const T *from, int64_t stride, int count, int dim, bool aligned) {
    constexpr int QUADS = D / 4, PITCH = D + 4;
#pragma unroll 4
    for (int at = threadIdx.x; at < ROWS * QUADS; at += THREADS) {
        int row = at / QUADS, column = at % QUADS * 4;
        bool inside = row < count && column < dim;
        int left = OPTIONS ? min(dim - column, 4) : 4; // elements, where it is inside
        const T *source = inside ? from + row * stride + column : from;
        float *place = to + row * PITCH + column;
        if (sizeof(T) == 4 && aligned) {
            cp_async_16(smem_address(place), source, inside ? 4 * left : 0);
        } else if (sizeof(T) == 4) {
            for (int e = 0; e < 4; e++)
                cp_async_small<4>(smem_address(place + e), source + (inside && e < left ? e : 0),
                                  inside && e < left ? 4 : 0);
        } else {
            float4 x = make_float4(0, 0, 0, 0);
            if (inside && left == 4) {
                x = make_float4((float)source[0], (float)source[1], (float)source[2], (float)source[3]);
            } else if (inside) {
                x.x = (float)source[0];
                if (left > 1) x.y = (float)source[1];
                if (left > 2) x.z = (float)source[2];
            }
            *(float4 *)place = x;
        }
    }
}

/* s = A*B^T over D elements: this thread's ROWS rows, from `a` on, by columns x, x + 16, ..., which are rows of B. */
template <typename S>
__device__ __forceinline__ void tiled_product(float (&s)[S::ROWS][S::KEYS], const float *a, const float *b, int x) {
#pragma unroll
    for (int i = 0; i < S::ROWS; i++)
#pragma unroll
        for (int j = 0; j < S::KEYS; j++) s[i][j] = 0;
#pragma unroll 2
    for (int d = 0; d < S::D; d += 4) {
        float4 v[S::KEYS];
#pragma unroll
        for (int j = 0; j < S::KEYS; j++) v[j] = *(const float4 *)(b + (x + 16 * j) * S::PITCH + d);
#pragma unroll
        for (int i = 0; i < S::ROWS; i++) {
            float4 u = *(const float4 *)(a + i * S::PITCH + d);
#pragma unroll
            for (int j = 0; j < S::KEYS; j++)
                s[i][j] = fmaf(u.w, v[j].w, fmaf(u.z, v[j].z, fmaf(u.y, v[j].y, fmaf(u.x, v[j].x, s[i][j]))));
        }
    }
}

/* o += P*B: this thread's ROWS rows of weights, from `weights` on with a pitch of WEIGHTS floats, by BN rows of B. */
template <typename S>
__device__ __forceinline__ void tiled_accumulate(float (&o)[S::ROWS][S::VECTORS * 4], const float *weights,
                                                 const float *b, int x) {
#pragma unroll 1
    for (int k = 0; k < S::BN; k += 4) {
        float4 p[S::ROWS];
#pragma unroll
        for (int i = 0; i < S::ROWS; i++) p[i] = *(const float4 *)(weights + i * S::WEIGHTS + k);
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int g = 0; g < S::VECTORS; g++) {
                float4 v = *(const float4 *)(b + (k + e) * S::PITCH + g * 64 + 4 * x);
#pragma unroll
                for (int i = 0; i < S::ROWS; i++) {
                    float w = e == 0 ? p[i].x : e == 1 ? p[i].y : e == 2 ? p[i].z : p[i].w;
                    o[i][g * 4] = fmaf(w, v.x, o[i][g * 4]), o[i][g * 4 + 1] = fmaf(w, v.y, o[i][g * 4 + 1]);
                    o[i][g * 4 + 2] = fmaf(w, v.z, o[i][g * 4 + 2]), o[i][g * 4 + 3] = fmaf(w, v.w, o[i][g * 4 + 3]);
                }
            }
    }
}

/* The index of an element type in a table of kernels: f32, f16, bf16. -1: there is no kernel for it. */
static inline int tiled_type(sat_dtype t) { return t == SAT_F32 ? 0 : t == SAT_F16 ? 1 : t == SAT_BF16 ? 2 : -1; }

#endif
