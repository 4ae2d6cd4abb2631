/* The gradients of attention on tensor cores by mma.sync: two passes, so that every sum is made in one order and
 * nothing is added up in memory. A CTA has a tile of rows: queries, for which it sums up dQ over keys, or keys, for
 * which it sums up dK and dV over queries. Either way the scores, and dP, are products of its own two tiles with two
 * that pass by, with its rows down and the others' across, so that weights and dS are already the left factors of the
 * next products. */
#ifndef SAT_ATTENTION_BACKWARD_MMA_CUH
#define SAT_ATTENTION_BACKWARD_MMA_CUH

#include "kernels/cuda/attention/attention_backward.cuh"
#include "kernels/cuda/attention/attention_mma.cuh"

struct attention_back_job {
    attention_walk w;
    const char *own[2], *other[2]; /* Q and dO, K and V; or K and V, Q and dO */
    sat_heads own_at[2], other_at[2];
    char *out[2]; /* dQ; or dK and dV */
    sat_heads out_at[2];
    const float *lse, *delta; /* of each query: log2(e)*LSE, inf where nothing is kept; and dO*O */
    int64_t apart;            /* from a head's to the next */
    int dim;
    float c, alpha; /* c: alpha*log2(e) */
};

/* Head size D at most; sums over N columns of it, the others are another CTA's. BM rows of its own, BN of the others.
 */
template <bool BY_KEY_, int D_, int N_, int BM_, int BN_, int WARPS_, int CTAS_> struct attention_back_shape {
    static constexpr bool BY_KEY = BY_KEY_;
    static constexpr int D = D_, N = N_, BM = BM_, BN = BN_, WARPS = WARPS_, CTAS = CTAS_, THREADS = 32 * WARPS;
    static constexpr int ROWS = BM / WARPS, MT = ROWS / 16, PARTS = D / N, SUMS = BY_KEY ? 2 : 1;
    static constexpr int PITCH = 2 * D + 16, OWN = BM * PITCH, TILE = BN * PITCH;
    static constexpr int NUMBERS = BY_KEY ? 8 * BN : 0, STAGE = 2 * TILE + NUMBERS; /* lse and delta of queries */
    static constexpr int KEEP = BY_KEY ? 8 * BN : 0, BYTES = 2 * OWN + 2 * STAGE + KEEP;
    static_assert((BY_KEY ? BM : BN) <= ATTENTION_KEYS && D % N == 0 && ROWS % 16 == 0, "");
};

/* A step that passes by. */
struct attention_back_step {
    attention_step t;
    int64_t word;
};

struct attention_back_place {
    attention_item item;
    attention_back_step step[2]; /* of the stages */
};

/* Where the walk over heads and steps is. */
struct attention_cursor {
    int head, stop, step;
};

/* Begins to copy the next tiles into a stage; false: there are none. */
template <typename S>
__device__ __forceinline__ bool attention_back_bring(const attention_back_job &x, const attention_item &item,
                                                     attention_back_step *to, attention_cursor &at, uint32_t stage) {
    for (; at.head < at.stop; at.head++, at.step = 0) {
        attention_steps s = attention_steps_of(x.w, item, at.head);
        if (at.step >= s.count) continue;
        attention_step t = attention_step_at(x.w, s, at.step);
        int head = S::BY_KEY ? at.head : at.head / x.w.share;
#pragma unroll
        for (int k = 0; k < 2; k++)
            attention_load<S::BN, S::D, S::THREADS>(
                stage + k * S::TILE, x.other[k] + 2 * sat_heads_at(&x.other_at[k], item.batch, head, t.first),
                2 * x.other_at[k].row_stride, t.count, x.dim);
        int thread = reread_thread_index();
        if (S::BY_KEY)
            for (int i = thread; i < S::BN; i += S::THREADS) {
                int64_t from =
                    ((int64_t)item.batch * x.w.heads * x.w.share + head) * x.apart + t.first + (i < t.count ? i : 0);
                uint32_t place = stage + 2 * S::TILE + 4 * i;
                cp_async_small<4>(place, x.lse + from, i < t.count ? 4 : 0);
                cp_async_small<4>(place + 4 * S::BN, x.delta + from, i < t.count ? 4 : 0);
            }
        if (thread == 0) to->t = t, to->word = (int64_t)(s.list + at.step) * x.w.words;
        at.step++;
        return true;
    }
    return false;
}

/* Which pairs of this thread's rows and the tile's are kept: weights of the others become 0. */
template <typename S>
__device__ __forceinline__ void attention_back_mask(float (&p)[S::MT][S::BN / 8][4], const attention_back_job &x,
                                                    const attention_item &item, const attention_back_step &step,
                                                    uint64_t *keep) {
    int thread = reread_thread_index(), row = thread / 32 * S::ROWS + thread % 32 / 4;
    const attention_tile &t = item.t;
    if constexpr (!S::BY_KEY) {
#pragma unroll
        for (int i = 0; i < S::MT; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int query = min(t.first + row + i * 16 + h * 8, t.end - 1);
                attention_hide<S::BN>(p[i], h,
                                      attention_keep(x.w, query, t.first, t.diagonal, step.t.first, step.t.count,
                                                     t.begin, t.stop, step.word),
                                      0);
            }
    } else {
        for (int i = thread; i < S::BN; i += S::THREADS) {
            int query = step.t.first + i;
            keep[i] = i < step.t.count ? attention_keep(x.w, query, step.t.first, t.diagonal, t.first, t.end - t.first,
                                                        t.first, t.end, step.word)
                                       : 0;
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < S::BN / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                uint64_t bits = keep[j * 8 + thread % 4 * 2 + e] >> row;
#pragma unroll
                for (int i = 0; i < S::MT; i++)
#pragma unroll
                    for (int h = 0; h < 2; h++)
                        if (!(bits >> (i * 16 + h * 8) & 1)) p[i][j][h * 2 + e] = 0;
            }
        __syncthreads(); // before the next step's
    }
}

template <typename MATH, typename S>
static __global__ void __launch_bounds__(S::THREADS, S::CTAS)
    attention_backward(const __grid_constant__ attention_back_job x) {
    typedef typename MATH::element E;
    extern __shared__ __align__(16) char memory[];
    __shared__ attention_back_place place;
    uint32_t own = smem_address(memory), ring = own + 2 * S::OWN;
    int lane = threadIdx.x % 32;
    attention_cursor at;
    bool have;
    float row_lse[S::MT][2], row_delta[S::MT][2];
    {
        attention_item item = attention_item_of(x.w, blockIdx.x / S::PARTS);
#pragma unroll
        for (int k = 0; k < 2; k++)
            attention_load<S::BM, S::D, S::THREADS>(
                own + k * S::OWN, x.own[k] + 2 * sat_heads_at(&x.own_at[k], item.batch, item.head, item.t.first),
                2 * x.own_at[k].row_stride, item.t.end - item.t.first, x.dim);
        at.head = S::BY_KEY ? item.head * x.w.share : item.head, at.stop = at.head + (S::BY_KEY ? x.w.share : 1);
        at.step = 0;
        have = attention_back_bring<S>(x, item, &place.step[0], at, ring);
        cp_async_commit_group();
        if (threadIdx.x == 0) place.item = item;
        int64_t rows = ((int64_t)item.batch * x.w.heads + item.head) * x.apart;
#pragma unroll
        for (int i = 0; i < S::MT && !S::BY_KEY; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int query =
                    min(item.t.first + (int)threadIdx.x / 32 * S::ROWS + i * 16 + h * 8 + lane / 4, item.t.end - 1);
                row_lse[i][h] = x.lse[rows + query], row_delta[i][h] = x.delta[rows + query];
            }
    }
    uint32_t part = blockIdx.x % S::PARTS, mine = own + threadIdx.x / 32 * S::ROWS * S::PITCH;
    float sums[S::SUMS][S::MT][S::N / 8][4] = {};
    if (!have) cp_async_wait_group<0>(), __syncthreads();
#pragma unroll 1
    for (int turn = 0; have; turn++) {
        uint32_t stage = ring + turn % 2 * S::STAGE;
        cp_async_wait_group<0>();
        __syncthreads(); // the tiles are there, and nobody reads those before any more
        have =
            attention_back_bring<S>(x, place.item, &place.step[(turn + 1) % 2], at, ring + (turn + 1) % 2 * S::STAGE);
        cp_async_commit_group();
        float s[S::MT][S::BN / 8][4], d[S::MT][S::BN / 8][4];
        uint32_t p[S::MT][S::BN / 16][4];
        attention_scores<MATH, S::MT, S::BN, S::D, S::PITCH>(s, mine + attention_lane_left<S::PITCH>(),
                                                             stage + attention_lane_right<S::PITCH>());
        const float *numbers = (const float *)(memory + (stage - own) + 2 * S::TILE) + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < S::BN / 8; j++) {
            float2 l = S::BY_KEY ? *(const float2 *)(numbers + j * 8) : make_float2(0, 0);
#pragma unroll
            for (int i = 0; i < S::MT; i++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    s[i][j][e] =
                        attention_exp2(fmaf(s[i][j][e], x.c, -(S::BY_KEY ? e % 2 ? l.y : l.x : row_lse[i][e / 2])));
        }
        if (place.step[turn % 2].t.edge)
            attention_back_mask<S>(s, x, place.item, place.step[turn % 2],
                                   (uint64_t *)(memory + 2 * S::OWN + 2 * S::STAGE));
        if (S::BY_KEY) { // dV
            attention_fold<E, S::MT, S::BN>(p, s);
            attention_values<MATH, S::MT, S::BN, S::N, S::PITCH>(
                sums[S::SUMS - 1], p, stage + S::TILE + attention_lane_left<S::PITCH>() + part * S::N * 2);
        }
        attention_scores<MATH, S::MT, S::BN, S::D, S::PITCH>(d, mine + S::OWN + attention_lane_left<S::PITCH>(),
                                                             stage + S::TILE + attention_lane_right<S::PITCH>());
#pragma unroll
        for (int j = 0; j < S::BN / 8; j++) {
            float2 l = S::BY_KEY ? *(const float2 *)(numbers + S::BN + j * 8) : make_float2(0, 0);
#pragma unroll
            for (int i = 0; i < S::MT; i++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    s[i][j][e] *= d[i][j][e] - (S::BY_KEY ? e % 2 ? l.y : l.x : row_delta[i][e / 2]);
        }
        attention_fold<E, S::MT, S::BN>(p, s);
        attention_values<MATH, S::MT, S::BN, S::N, S::PITCH>(sums[0], p,
                                                             stage + attention_lane_left<S::PITCH>() + part * S::N * 2);
    }

    const attention_item &item = place.item;
    int first = item.t.first + (int)threadIdx.x / 32 * S::ROWS;
#pragma unroll
    for (int k = 0; k < S::SUMS; k++) {
        float factor[S::MT][2];
#pragma unroll
        for (int i = 0; i < S::MT; i++) factor[i][0] = factor[i][1] = k == 0 ? x.alpha : 1;
        __syncwarp(); // they take the place of the warp's own rows
        attention_put<E, S::MT, S::N, S::PITCH>(
            sums[k], factor, mine + k * S::OWN,
            x.out[k] + 2 * (sat_heads_at(&x.out_at[k], item.batch, item.head, first) + part * S::N),
            2 * x.out_at[k].row_stride, item.t.end - first, x.dim - (int)part * S::N);
    }
}

#endif
