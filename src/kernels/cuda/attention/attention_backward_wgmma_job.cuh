/* What the backward kernels on warpgroup products are given, and the threads that bring their tiles (sm_90a).
 *
 * A CTA has two warpgroups with 64 rows each of its own: Q and dO, or K and V. Tiles of BN rows of the other two pass
 * by in two rings. It takes one item of the walk after the other. */
#ifndef SAT_ATTENTION_BACKWARD_WGMMA_JOB_CUH
#define SAT_ATTENTION_BACKWARD_WGMMA_JOB_CUH

#include "kernels/cuda/attention/attention_backward.cuh"
#include "kernels/cuda/attention/attention_wgmma.cuh"

enum {
    SAT_BACK_AHEAD = 2,  /* items that the producer may be ahead */
    SAT_BACK_STAGES = 4, /* of a ring, at most */
    SAT_BACK_ROWS = 128, /* of a CTA's own */
    SAT_BACK_ORDER = 2,  /* named barriers: turns at the tensor cores, from here on */
};

struct sat_back_job {
    attention_walk w;
    unsigned *counter; /* two, zero before and after */
    unsigned items;
    const float *lse, *delta; /* attention_frame's */
    int64_t apart;
    void *out[2]; /* dQ; or dK and dV */
    sat_heads out_at[2];
    int dim;
    float c, alpha; /* c: alpha*log2(e) */
};

struct sat_back_maps {
    CUtensorMap own[2], other[2]; /* Q and dO, K and V; or K and V, Q and dO */
    CUtensorMap numbers;          /* of queries: (query, lse or delta, head) */
};

struct sat_back_turn {
    attention_item item;
    int steps; /* -1: there are no more items */
};

struct sat_back_shared {
    uint64_t full[2][SAT_BACK_STAGES], empty[2][SAT_BACK_STAGES], own_full, own_empty;
    uint64_t turn_full[SAT_BACK_AHEAD], turn_empty[SAT_BACK_AHEAD];
    int4 step[SAT_BACK_STAGES]; /* of the first ring: first row, its count and kind, number in the list */
    sat_back_turn turns[SAT_BACK_AHEAD];
    attention_steps steps; /* the producer's own, whose registers are few */
};

/* Head size D at most, tiles of BN rows, FIRST and SECOND stages of the two rings. ORDER: warpgroups take turns. */
template <bool BY_KEY_, int D_, int BN_, int FIRST_, int SECOND_, bool ORDER_> struct sat_back_shape {
    static constexpr bool BY_KEY = BY_KEY_, ORDER = ORDER_;
    static constexpr int D = D_, BN = BN_, FIRST = FIRST_, SECOND = SECOND_;
    static constexpr int PANELS = (D + 63) / 64, PANEL = BN * 128, TILE = PANELS * PANEL, OWN = PANELS * 8192; // bytes
    // lse and delta of queries that pass by: copies of those begin on 16 bytes, and may have three queries before
    static constexpr int NUMBER_ROW = 4 * (BN + 4), NUMBERS = BY_KEY ? 2 * NUMBER_ROW : 0;
    static constexpr int NUMBERS_APART = (NUMBERS + 127) / 128 * 128;
    static constexpr int FIRST_FROM = 4 * OWN, SECOND_FROM = FIRST_FROM + FIRST * TILE;
    static constexpr int NUMBERS_FROM = SECOND_FROM + SECOND * TILE, SHARED_FROM = NUMBERS_FROM + FIRST * NUMBERS_APART;
    static constexpr int BYTES = SHARED_FROM + (int)sizeof(sat_back_shared);
    static constexpr int THREADS = 384, FEWER = 24, MORE = 240; // registers
    static_assert(FIRST <= SAT_BACK_STAGES && SECOND <= SAT_BACK_STAGES && FIRST >= 2 && (!BY_KEY || BN == 64), "");
    static_assert(BYTES + 1024 <= 228 * 1024, "shared memory of a multiprocessor");
};

/* Where things are. */
template <typename S> struct sat_back_at {
    __device__ static __forceinline__ uint32_t own(uint32_t memory, int k, int group) {
        return memory + (k * 2 + group) * S::OWN;
    }
    __device__ static __forceinline__ uint32_t first(uint32_t memory, uint32_t at) {
        return memory + S::FIRST_FROM + at % S::FIRST * S::TILE;
    }
    __device__ static __forceinline__ uint32_t second(uint32_t memory, uint32_t at) {
        return memory + S::SECOND_FROM + at % S::SECOND * S::TILE;
    }
};

/* ---- the producers ---- */

/* A tile of the other side: K or Q, or V or dO. */
template <typename S>
__device__ __forceinline__ void sat_back_bring(const CUtensorMap *map, uint32_t to, uint32_t full, int row, int head,
                                               int batch) {
    for (int panel = 0; panel < S::PANELS; panel++)
        tma_load(to + panel * S::PANEL, map, full, panel * 64, row, head, batch);
}

template <typename S>
__device__ __forceinline__ void sat_back_bring_own(const sat_back_maps &m, const attention_item &item, uint32_t memory,
                                                   uint32_t full) {
    mbarrier_arrive_expect_tx(full, 4 * S::OWN);
#pragma unroll 1
    for (int group = 0; group < 2; group++)
        for (int k = 0; k < 2; k++)
            for (int panel = 0; panel < S::PANELS; panel++)
                tma_load(sat_back_at<S>::own(memory, k, group) + panel * 8192, &m.own[k], full, panel * 64,
                         item.t.first + group * 64, item.head, item.batch);
}

/* Query heads that an item of the walk has. */
template <typename S> __device__ __forceinline__ int sat_back_heads(const sat_back_job &x) {
    return S::BY_KEY ? x.w.share : 1;
}

/* Says which items this CTA has: one thread, ahead of the others. */
template <typename S> __device__ __forceinline__ void sat_back_deal(const sat_back_job &x, sat_back_shared *s) {
    unsigned number = blockIdx.x;
    for (uint32_t turn = 0;; turn++) {
        sat_back_turn *to = &s->turns[turn % SAT_BACK_AHEAD];
        int steps = -1;
        mbarrier_wait(smem_address(&s->turn_empty[turn % SAT_BACK_AHEAD]), turn / SAT_BACK_AHEAD & 1 ^ 1);
        if (number < x.items) {
            to->item = attention_item_of(x.w, number);
            asm volatile("" ::: "memory"); // registers are few: it is read again
            steps = 0;
#pragma unroll 1
            for (int h = 0; h < sat_back_heads<S>(x); h++)
                steps += attention_steps_of(x.w, to->item, to->item.head * sat_back_heads<S>(x) + h).count;
        }
        to->steps = steps;
        mbarrier_arrive(smem_address(&s->turn_full[turn % SAT_BACK_AHEAD]));
        if (number >= x.items) return;
        number = gridDim.x < x.items ? gridDim.x + atomicAdd(x.counter, 1u) : x.items;
    }
}

/* Brings what the items need: one thread. */
template <typename S>
__device__ __forceinline__ void sat_back_produce(const sat_back_job &x, const sat_back_maps &m, sat_back_shared *s,
                                                 uint32_t memory) {
    uint32_t at = 0; // steps so far
    for (uint32_t turn = 0;; turn++) {
        const sat_back_turn *to = &s->turns[turn % SAT_BACK_AHEAD];
        mbarrier_wait(smem_address(&s->turn_full[turn % SAT_BACK_AHEAD]), turn / SAT_BACK_AHEAD & 1);
        if (to->steps < 0) return;
        mbarrier_wait(smem_address(&s->own_empty), turn & 1 ^ 1);
        sat_back_bring_own<S>(m, to->item, memory, smem_address(&s->own_full));
#pragma unroll 1
        for (int h = 0; h < sat_back_heads<S>(x); h++) {
            int query_head = to->item.head * sat_back_heads<S>(x) + h;
            int head = S::BY_KEY ? query_head : query_head / x.w.share;
            s->steps = attention_steps_of(x.w, to->item, query_head);
            asm volatile("" ::: "memory");
#pragma unroll 1
            for (int i = 0; i < s->steps.count; i++, at++) {
                attention_step t = attention_step_at(x.w, s->steps, i);
                uint32_t stage = at % S::FIRST, full = smem_address(&s->full[0][stage]);
                mbarrier_wait(smem_address(&s->empty[0][stage]), at / S::FIRST & 1 ^ 1);
                s->step[stage] = make_int4(t.first, t.count << 3 | (t.first & 3) << 1 | t.edge, s->steps.list + i, 0);
                mbarrier_arrive_expect_tx(full, S::TILE + S::NUMBERS);
                sat_back_bring<S>(&m.other[0], sat_back_at<S>::first(memory, at), full, t.first, head, to->item.batch);
                if (S::BY_KEY)
                    tma_load(memory + S::NUMBERS_FROM + stage * S::NUMBERS_APART, &m.numbers, full, t.first & ~3, 0,
                             to->item.batch * x.w.heads * x.w.share + head);
                stage = at % S::SECOND, full = smem_address(&s->full[1][stage]);
                mbarrier_wait(smem_address(&s->empty[1][stage]), at / S::SECOND & 1 ^ 1);
                mbarrier_arrive_expect_tx(full, S::TILE);
                sat_back_bring<S>(&m.other[1], sat_back_at<S>::second(memory, at), full, t.first, head, to->item.batch);
            }
        }
        mbarrier_arrive(smem_address(&s->turn_empty[turn % SAT_BACK_AHEAD]));
    }
}

template <typename S> __device__ __forceinline__ void sat_back_init(sat_back_shared *s) { // by the first thread
    for (int i = 0; i < SAT_BACK_STAGES; i++)
        for (int k = 0; k < 2; k++) {
            mbarrier_init(smem_address(&s->full[k][i]), 1);
            mbarrier_init(smem_address(&s->empty[k][i]), 8); // the first lane of each warp
        }
    mbarrier_init(smem_address(&s->own_full), 1), mbarrier_init(smem_address(&s->own_empty), 8);
    for (int i = 0; i < SAT_BACK_AHEAD; i++) {
        mbarrier_init(smem_address(&s->turn_full[i]), 1);
        mbarrier_init(smem_address(&s->turn_empty[i]), 257); // every thread that reads
    }
    fence_mbarrier_init();
}

#endif
