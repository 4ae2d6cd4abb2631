// The query heads of a key head, split over CTAs: how many splits there are, and the sum of their dK and dV.

#include "kernels/cuda/attention/attention_device.cuh"
#include "kernels/cuda/attention/attention_splits.h"
#include "kernels/cuda/common/mma_fragments.cuh"

int attention_log2_splits(const sat_problem *p, const sat_pattern_view *a, const sat_device *d, int64_t tile_keys) {
    sat_mask k = sat_mask_of(p, a);
    const sat_attention *t = &p->attention;
    int64_t tiles = attention_max_tiles(p->n, a->sequences, tile_keys) * p->batch * t->kv_heads;
    int64_t per_kv = t->heads / sat_max(1, t->kv_heads);
    int n = 0;
    if (k.head_rows && !k.full) return 0; // masks of a key head are in one list
    while (tiles << n < d->multiprocessors && per_kv % (2 << n) == 0) n++;
    return n;
}

size_t attention_splits_bytes(const sat_problem *p, int log2_splits) {
    double rows = (double)(p->batch * p->attention.kv_heads) * (double)p->n * (1 << log2_splits);
    return log2_splits ? attention_round_up(2 * rows * (double)p->attention.dim * sizeof(float)) : 0;
}

template <typename E> struct reduce_args {
    const float *partial; // (2, batch, key heads, splits, keys, dim)
    E *out[2];            // dK and dV
    sat_heads at[2];
    int64_t keys, kv_heads, batch;
    int splits, dim;
    float factor[2];
};

// A thread has 8 elements of a row; splits are added in order.
template <typename E> static __global__ void reduce_splits(const __grid_constant__ reduce_args<E> x) {
    int vectors = x.dim / 8, which = blockIdx.y;
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, row = at / vectors, column = at % vectors * 8;
    int64_t head = row / x.keys, batch = head / x.kv_heads, key = row % x.keys;
    if (batch >= x.batch) return;
    const float *from = x.partial + ((which * x.batch * x.kv_heads + head) * x.splits * x.keys + key) * x.dim + column;
    float sum[8] = {};
    for (int i = 0; i < x.splits; i++, from += x.keys * x.dim) {
        float4 low = __ldcg((const float4 *)from), high = __ldcg((const float4 *)from + 1);
        sum[0] += low.x, sum[1] += low.y, sum[2] += low.z, sum[3] += low.w;
        sum[4] += high.x, sum[5] += high.y, sum[6] += high.z, sum[7] += high.w;
    }
    uint32_t w[4];
#pragma unroll
    for (int e = 0; e < 4; e++) w[e] = pack_2(E(), sum[2 * e] * x.factor[which], sum[2 * e + 1] * x.factor[which]);
    E *to = x.out[which] + sat_heads_at(&x.at[which], batch, head % x.kv_heads, key) + column;
    *(uint4 *)to = make_uint4(w[0], w[1], w[2], w[3]);
}

template <typename E> static sat_status start(const sat_launch *l, const float *partial, int splits) {
    const sat_problem *p = l->problem;
    const sat_attention *t = &p->attention;
    reduce_args<E> x = {partial,
                        {(E *)l->operands[7], (E *)l->operands[8]},
                        {t->dk, t->dv},
                        p->n,
                        t->kv_heads,
                        p->batch,
                        splits,
                        (int)t->dim,
                        {(float)p->alpha, 1}};
    dim3 grid((unsigned)sat_blocks(p->batch * t->kv_heads * p->n * (t->dim / 8), 256), 2);
    reduce_splits<E><<<grid, 256, 0, (cudaStream_t)l->stream>>>(x);
    return sat_launched(l);
}

sat_status attention_reduce_splits(const sat_launch *l, const float *partial, int log2_splits) {
    if (l->problem->a_dtype == SAT_F16) return start<__half>(l, partial, 1 << log2_splits);
    return start<__nv_bfloat16>(l, partial, 1 << log2_splits);
}
