/* Attention on tensor cores by mma.sync, from sm_80 on: O = softmax(scale*Q*K^T where kept)*V, 16-bit operands, sums in
 * f32. A CTA has BM queries, a warp 16 or 32 of them; tiles of BN keys and values come by asynchronous copies into a
 * ring of two, so that one is on its way while the other is worked on, with one barrier a tile. Scores stay in
 * registers, where the layout of one product's sums is that of the next one's left factor. */
#ifndef SAT_ATTENTION_MMA_CUH
#define SAT_ATTENTION_MMA_CUH

#include "kernels/cuda/attention/attention_exp.cuh"
#include "kernels/cuda/attention/attention_walk.cuh"
#include "kernels/cuda/common/ptx.cuh"

struct attention_job {
    attention_walk w;
    const char *q, *k, *v;
    char *o;
    float *lse; /* NULL: not wanted */
    sat_heads q_at, k_at, v_at, o_at;
    int m, dim;
    float c;       /* |scale|*log2(e) */
    float slack;   /* how far a row's largest score may grow above that which its sums are relative to */
    bool negative; /* the scale is */
};

/* Head size D at most. Rows of shared memory are 16 bytes longer than D: then eight of them begin in different banks.
 */
template <int D_, int BM_, int BN_, int WARPS_, int CTAS_> struct attention_mma_shape {
    static constexpr int D = D_, BM = BM_, BN = BN_, WARPS = WARPS_, CTAS = CTAS_, THREADS = 32 * WARPS;
    static constexpr int ROWS = BM / WARPS, MT = ROWS / 16; /* of a warp */
    static constexpr int PITCH = 2 * D + 16, Q = BM * PITCH, TILE = BN * PITCH, BYTES = Q + 4 * TILE;
    static_assert(ROWS % 16 == 0 && BN % 16 == 0 && BN <= ATTENTION_KEYS && D % 16 == 0, "");
};

/* `count` rows of a tile, zero beyond them and beyond `dim`. */
template <int ROWS, int D, int THREADS>
__device__ __forceinline__ void attention_load(uint32_t to, const char *from, int64_t stride, int count, int dim) {
    constexpr int CHUNKS = D / 8, PITCH = 2 * D + 16;
    static_assert(ROWS * CHUNKS % THREADS == 0, "");
    int thread = reread_thread_index();
#pragma unroll
    for (int i = 0; i < ROWS * CHUNKS / THREADS; i++) {
        int at = thread + i * THREADS, row = at / CHUNKS, chunk = at % CHUNKS;
        bool inside = row < count && chunk * 8 < dim;
        cp_async_16(to + row * PITCH + chunk * 16, inside ? from + row * stride + chunk * 16 : from, inside ? 16 : 0);
    }
}

template <typename E> __device__ __forceinline__ uint32_t attention_pack(float low, float high);
template <> __device__ __forceinline__ uint32_t attention_pack<__half>(float low, float high) {
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
template <> __device__ __forceinline__ uint32_t attention_pack<__nv_bfloat16>(float low, float high) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

/* s(16*MT, BN) = A*B^T, both k-contiguous in shared memory with rows of PITCH bytes, over K elements. */
template <typename MATH, int MT, int BN, int K, int PITCH>
__device__ __forceinline__ void attention_scores(float (&s)[MT][BN / 8][4], uint32_t a, uint32_t b) {
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[i][j][e] = 0;
#pragma unroll
    for (int k = 0; k < K / 16; k++) {
        uint32_t left[MT][4], right[4];
#pragma unroll
        for (int i = 0; i < MT; i++) ldmatrix_x4(left[i], a + i * 16 * PITCH + k * 32);
#pragma unroll
        for (int j = 0; j < BN / 16; j++) {
            ldmatrix_x4(right, b + j * 16 * PITCH + k * 32);
#pragma unroll
            for (int i = 0; i < MT; i++) {
                MATH::multiply(s[i][2 * j], left[i], right[0], right[1]);
                MATH::multiply(s[i][2 * j + 1], left[i], right[2], right[3]);
            }
        }
    }
}

/* o(16*MT, N) += P*B, P in registers as sums have it, B with K rows of PITCH bytes, n-contiguous. */
template <typename MATH, int MT, int K, int N, int PITCH>
__device__ __forceinline__ void attention_values(float (&o)[MT][N / 8][4], const uint32_t (&p)[MT][K / 16][4],
                                                 uint32_t b) {
#pragma unroll
    for (int k = 0; k < K / 16; k++)
#pragma unroll
        for (int j = 0; j < N / 16; j++) {
            uint32_t right[4];
            ldmatrix_x4_trans(right, b + k * 16 * PITCH + j * 32);
#pragma unroll
            for (int i = 0; i < MT; i++) {
                MATH::multiply(o[i][2 * j], p[i][k], right[0], right[1]);
                MATH::multiply(o[i][2 * j + 1], p[i][k], right[2], right[3]);
            }
        }
}

/* Addresses of a lane, to be added to a tile's: left factors and right ones by rows of k, and values. */
template <int PITCH> __device__ __forceinline__ uint32_t attention_lane_left() {
    return threadIdx.x % 16 * PITCH + threadIdx.x / 16 % 2 * 16;
}
template <int PITCH> __device__ __forceinline__ uint32_t attention_lane_right() {
    return (threadIdx.x % 8 + threadIdx.x / 16 % 2 * 8) * PITCH + threadIdx.x / 8 % 2 * 16;
}

/* Sums as 16-bit elements, the left factor of the next product. */
template <typename E, int MT, int BN>
__device__ __forceinline__ void attention_fold(uint32_t (&p)[MT][BN / 16][4], const float (&s)[MT][BN / 8][4]) {
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < BN / 8; j++) {
            p[i][j / 2][j % 2 * 2] = attention_pack<E>(s[i][j][0], s[i][j][1]);
            p[i][j / 2][j % 2 * 2 + 1] = attention_pack<E>(s[i][j][2], s[i][j][3]);
        }
}

/* One row of sums (half h of m-tile i): where the bit of a key is not set, `value`. */
template <int BN>
__device__ __forceinline__ void attention_hide(float (&s)[BN / 8][4], int half, uint64_t keep, float value) {
    keep >>= threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < BN / 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            if (!(keep >> (j * 8 + e) & 1)) s[j][half * 2 + e] = value;
}

template <typename S> struct attention_rows { /* a thread's rows: what the sums are relative to, and of the weights */
    float m[S::MT][2], sum[S::MT][2];
};

/* Scores become weights, exp2(c*(score - m)), m the largest so far of the row or, as long as that stays small, of
 * earlier. True: what was summed up before is to be multiplied by `scale`. */
template <typename S>
__device__ __forceinline__ bool attention_softmax(float (&s)[S::MT][S::BN / 8][4], attention_rows<S> &r,
                                                  float (&scale)[S::MT][2], float c, float slack) {
    float top[S::MT][2];
    bool grown = false;
#pragma unroll
    for (int i = 0; i < S::MT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float x = fmaxf(s[i][0][2 * h], s[i][0][2 * h + 1]);
#pragma unroll
            for (int j = 1; j < S::BN / 8; j++) x = fmaxf(x, fmaxf(s[i][j][2 * h], s[i][j][2 * h + 1]));
            x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
            top[i][h] = fmaxf(x, __shfl_xor_sync(~0u, x, 2));
            grown |= top[i][h] > r.m[i][h] + slack;
        }
    grown = __any_sync(~0u, grown);
    if (grown) {
#pragma unroll
        for (int i = 0; i < S::MT; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float more = fmaxf(r.m[i][h], top[i][h]);
                scale[i][h] = attention_factor(r.m[i][h], more, c);
                r.sum[i][h] *= scale[i][h], r.m[i][h] = more;
            }
    }
#pragma unroll
    for (int i = 0; i < S::MT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float minus = r.m[i][h] == -INFINITY ? 0 : -__fmul_rn(r.m[i][h], c), part = 0;
#pragma unroll
            for (int j = 0; j < S::BN / 8; j++)
#pragma unroll
                for (int e = 2 * h; e < 2 * h + 2; e++) {
                    s[i][j][e] = attention_exp2(fmaf(s[i][j][e], c, minus));
                    part += s[i][j][e];
                }
            r.sum[i][h] += part;
        }
    return grown;
}

/* Sums of a warp's rows to memory, through its rows of a tile in shared memory: `count` rows of `dim` elements. */
template <typename E, int MT, int N, int PITCH>
__device__ __forceinline__ void attention_put(const float (&o)[MT][N / 8][4], const float (&factor)[MT][2],
                                              uint32_t tile, char *to, int64_t stride, int count, int dim) {
    constexpr int CHUNKS = N / 8;
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t x = attention_pack<E>(o[i][j][2 * h] * factor[i][h], o[i][j][2 * h + 1] * factor[i][h]);
                uint32_t at = tile + (i * 16 + h * 8 + lane / 4) * PITCH + j * 16 + lane % 4 * 4;
                asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
            }
    __syncwarp();
    for (int at = lane; at < MT * 16 * CHUNKS; at += 32) {
        int row = at / CHUNKS, chunk = at % CHUNKS;
        if (row >= count || chunk * 8 >= dim) continue;
        uint4 x;
        asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                     : "r"(tile + row * PITCH + chunk * 16)
                     : "memory");
        *(uint4 *)(to + row * stride + chunk * 16) = x;
    }
}

/* The other sign, of a tile in shared memory that this thread has copied part of. */
template <int ROWS, int D, int THREADS> __device__ __forceinline__ void attention_negate(uint32_t tile) {
    constexpr int CHUNKS = D / 8, PITCH = 2 * D + 16;
    for (int at = threadIdx.x; at < ROWS * CHUNKS * 4; at += THREADS) {
        uint32_t x = tile + at / (CHUNKS * 4) * PITCH + at % (CHUNKS * 4) * 4;
        uint32_t word = ld_shared_b32(x) ^ 0x80008000u;
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(x), "r"(word) : "memory");
    }
}

/* What a CTA reads again where it is needed, since registers are few. */
struct attention_place {
    attention_item item;
    attention_steps steps;
    const char *keys, *values;
};

/* Begins to copy a step's tiles; true: it has pairs to be tested. */
template <typename S>
__device__ __forceinline__ bool attention_bring(const attention_job &x, const attention_place &p, int step,
                                                uint32_t to) {
    attention_step t = attention_step_at(x.w, p.steps, step);
    attention_load<S::BN, S::D, S::THREADS>(to, p.keys + 2 * t.first * x.k_at.row_stride, 2 * x.k_at.row_stride,
                                            t.count, x.dim);
    attention_load<S::BN, S::D, S::THREADS>(to + S::TILE, p.values + 2 * t.first * x.v_at.row_stride,
                                            2 * x.v_at.row_stride, t.count, x.dim);
    return t.edge;
}

/* Scores of pairs that are not kept become -inf. */
template <typename S>
__device__ __forceinline__ void attention_mask(float (&s)[S::MT][S::BN / 8][4], const attention_job &x,
                                               const attention_place &p, int step) {
    attention_step t = attention_step_at(x.w, p.steps, step);
    int thread = reread_thread_index(), row = p.item.t.first + thread / 32 * S::ROWS + thread % 32 / 4;
    int64_t word = (int64_t)(p.steps.list + step) * x.w.words;
#pragma unroll
    for (int i = 0; i < S::MT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int mine = min(row + i * 16 + h * 8, p.item.t.end - 1);
            uint64_t keep = attention_keep(x.w, mine, p.item.t.first, p.item.t.diagonal, t.first, t.count,
                                           p.item.t.begin, p.item.t.stop, word);
            attention_hide<S::BN>(s[i], h, keep, -INFINITY);
        }
}

template <typename MATH, typename S>
static __global__ void __launch_bounds__(S::THREADS, S::CTAS)
    attention_forward(const __grid_constant__ attention_job x) {
    typedef typename MATH::element E;
    extern __shared__ __align__(16) char memory[];
    __shared__ attention_place place;
    uint32_t q = smem_address(memory), ring = q + S::Q;
    int count;
    bool next = false, edge; // of the next tile, of this one: it has pairs to be tested
    {
        attention_place p;
        p.item = attention_item_of(x.w, blockIdx.x), p.steps = attention_steps_of(x.w, p.item, p.item.head);
        int kv = p.item.head / x.w.share;
        p.keys = x.k + 2 * sat_heads_at(&x.k_at, p.item.batch, kv, 0);
        p.values = x.v + 2 * sat_heads_at(&x.v_at, p.item.batch, kv, 0);
        count = p.steps.count;
        attention_load<S::BM, S::D, S::THREADS>(
            q, x.q + 2 * sat_heads_at(&x.q_at, p.item.batch, p.item.head, p.item.t.first), 2 * x.q_at.row_stride,
            p.item.t.end - p.item.t.first, x.dim);
        if (count > 0) next = attention_bring<S>(x, p, 0, ring);
        cp_async_commit_group();
        if (threadIdx.x == 0) place = p;
    }
    uint32_t mine = q + threadIdx.x / 32 * S::ROWS * S::PITCH, left = mine + attention_lane_left<S::PITCH>();
    float o[S::MT][S::D / 8][4] = {};
    attention_rows<S> r;
#pragma unroll
    for (int i = 0; i < S::MT; i++) r.m[i][0] = r.m[i][1] = -INFINITY, r.sum[i][0] = r.sum[i][1] = 0;
    if (x.negative || count == 0) { // otherwise the first tile's barrier does
        cp_async_wait_group<0>();
        __syncthreads();
        if (x.negative) attention_negate<S::BM, S::D, S::THREADS>(q);
    }
#pragma unroll 1
    for (int step = 0; step < count; step++) {
        uint32_t tile = ring + step % 2 * 2 * S::TILE;
        edge = next;
        cp_async_wait_group<0>();
        __syncthreads(); // the tile is there, and nobody reads the one before any more
        if (step + 1 < count) next = attention_bring<S>(x, place, step + 1, ring + (step + 1) % 2 * 2 * S::TILE);
        cp_async_commit_group();
        float s[S::MT][S::BN / 8][4], scale[S::MT][2];
        uint32_t p[S::MT][S::BN / 16][4];
        attention_scores<MATH, S::MT, S::BN, S::D, S::PITCH>(s, left, tile + attention_lane_right<S::PITCH>());
        if (edge) attention_mask<S>(s, x, place, step);
        if (attention_softmax<S>(s, r, scale, x.c, x.slack)) {
#pragma unroll
            for (int i = 0; i < S::MT; i++)
#pragma unroll
                for (int j = 0; j < S::D / 8; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) o[i][j][e] *= scale[i][e / 2];
        }
        attention_fold<E, S::MT, S::BN>(p, s);
        attention_values<MATH, S::MT, S::BN, S::D, S::PITCH>(o, p, tile + S::TILE + attention_lane_left<S::PITCH>());
    }

    const attention_item &item = place.item;
    int lane = threadIdx.x % 32, first = item.t.first + (int)threadIdx.x / 32 * S::ROWS;
#pragma unroll
    for (int i = 0; i < S::MT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float &sum = r.sum[i][h];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            int row = first + lane / 4 + i * 16 + h * 8;
            if (x.lse && lane % 4 == 0 && row < item.t.end)
                x.lse[((int64_t)item.batch * x.w.heads + item.head) * x.m + row] =
                    sum > 0 ? (__fmul_rn(r.m[i][h], x.c) + log2f(sum)) * 0.69314718056f : -INFINITY;
            sum = sum > 0 ? 1 / sum : sum == 0 ? 0 : sum; // NaN stays
        }
    __syncwarp(); // O takes the place of the warp's rows of Q
    attention_put<E, S::MT, S::D, S::PITCH>(o, r.sum, mine,
                                            x.o + 2 * sat_heads_at(&x.o_at, item.batch, item.head, first),
                                            2 * x.o_at.row_stride, item.t.end - first, x.dim);
}

/* ---- the host's side ---- */

/* Every row begins on a multiple of 16 bytes, where the first does. */
static inline bool attention_in_steps(const sat_heads *s) {
    return s->batch_stride % 8 == 0 && s->head_stride % 8 == 0 && s->row_stride % 8 == 0;
}

static inline void attention_job_fill(attention_job *x, const sat_launch *l) { /* all but the walk */
    const sat_problem *p = l->problem;
    const sat_attention *t = &p->attention;
    x->q = (const char *)l->operands[0], x->k = (const char *)l->operands[1], x->v = (const char *)l->operands[2];
    x->o = (char *)l->operands[3], x->lse = t->lse ? (float *)l->operands[4] : NULL;
    x->q_at = t->q, x->k_at = t->k, x->v_at = t->v, x->o_at = t->o;
    x->m = (int)p->m, x->dim = (int)t->dim;
    x->c = (float)(fabs(p->alpha) * 1.44269504088896340736), x->negative = p->alpha < 0;
    x->slack = fminf(8 / x->c, 1e30f);
}

#endif
