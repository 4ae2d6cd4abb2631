// cuda_attention_backward_wgmma: the gradients of fused attention on Hopper, dense and block-sparse, any mask.
//
// f16 and bf16, head sizes up to 128; rows must begin on 16 bytes. Three kernels: the statistics of each query
// (attention_device.cuh), then dK and dV by tiles of keys, then dQ by tiles of queries. Every sum is made in one order
// and nothing is added up in memory, so the result is deterministic. Where many query heads share few tiles of keys,
// the heads are split: each split writes partial sums of dK and dV, and a fourth kernel adds them up.
//
// Both gradient kernels are one template. With P = exp(scale*S - LSE) where kept and dS = P*(dP - delta):
//
//   own rows (A)   other rows (B)   S          dP         sums
//   Q, dO          K, V             Q*K^T      dO*V^T     dQ += dS*K
//   K, V           Q, dO            K*Q^T      V*dO^T     dV += P*dO, dK += dS*Q      (S, dP, P, dS transposed)
//
// A persistent CTA has two consumer warpgroups with 64 own rows each, which stay in shared memory. A producer thread
// loads tiles of BN other rows by TMA into two rings: K or Q for S, and V or dO for dP. P and dS leave the accumulators
// as the A operand of the next product, in registers. A consumer issues its next products before it waits, and the two
// take turns at issuing (ping-pong), so that one's exponentials overlap the other's products.

#include "kernels/cuda/attention/attention_device.cuh"
#include "kernels/cuda/attention/attention_splits.h"
#include "kernels/cuda/attention/attention_wgmma.cuh"

enum {
    QUEUE_TILES = 2,      // work tiles that the scheduler may be ahead
    MAX_STAGES = 4,       // of a ring
    CTA_ROWS = 128,       // own rows of a CTA
    PINGPONG_BARRIER = 2, // named barriers from here on: a warpgroup's turn to issue products
    S_RING = 0,           // K or Q
    DP_RING = 1,          // V or dO
};

struct kernel_args {
    attention_schedule schedule;
    unsigned *counter; // two, 0 between launches: work tiles handed out, CTAs that are done
    unsigned work_tiles;
    const float *lse, *delta; // attention_backward_state has what they are
    int64_t head_stride;
    void *out[2]; // dQ; or dK and dV
    sat_heads out_at[2];
    float *partial; // (2, batch, key heads, splits, keys, dim), of dK and of dV; NULL: query heads are not split
    int log2_splits;
    int dim;
    float scale_log2, scale; // scale_log2: scale*log2(e)
};

struct tensor_maps {
    CUtensorMap own[2], other[2]; // Q and dO, K and V; or K and V, Q and dO
    CUtensorMap statistics;       // (query, lse or delta, head)
};

struct work_tile {
    attention_work work;
    int steps; // over all query heads; -1: there are no more work tiles
};

// ---- shared memory ----

struct shared_barriers {
    uint64_t full[2][MAX_STAGES], empty[2][MAX_STAGES], own_full, own_empty;
    uint64_t work_full[QUEUE_TILES], work_empty[QUEUE_TILES];
    int4 step[MAX_STAGES]; // of each stage of the S ring: step_info
    work_tile work[QUEUE_TILES];
    attention_steps steps; // the producer's own, whose registers are few
};

// Head sizes up to D, tiles of BN rows, stages of both rings. Offsets and sizes in bytes.
template <bool BY_KEY_, int D_, int BN_, int S_STAGES_, int DP_STAGES_, bool PINGPONG_> struct tile_shape {
    static constexpr bool BY_KEY = BY_KEY_, PINGPONG = PINGPONG_;
    static constexpr int D = D_, BN = BN_, S_STAGES = S_STAGES_, DP_STAGES = DP_STAGES_;
    static constexpr int CHUNKS = (D + 63) / 64, CHUNK_BYTES = BN * 128, TILE_BYTES = CHUNKS * CHUNK_BYTES,
                         OWN_BYTES = CHUNKS * ATTENTION_CHUNK_BYTES;
    // lse and delta of the queries of a step. A copy begins on 16 bytes, so that up to 3 queries come before.
    static constexpr int STATISTIC = 4 * (BN + 4), STATISTICS = BY_KEY ? 2 * STATISTIC : 0;
    static constexpr int STATISTICS_PITCH = (STATISTICS + 127) / 128 * 128;
    static constexpr int S_OFFSET = 4 * OWN_BYTES, DP_OFFSET = S_OFFSET + S_STAGES * TILE_BYTES;
    static constexpr int STATISTICS_OFFSET = DP_OFFSET + DP_STAGES * TILE_BYTES;
    static constexpr int BARRIER_OFFSET = STATISTICS_OFFSET + S_STAGES * STATISTICS_PITCH;
    static constexpr int BYTES = BARRIER_OFFSET + (int)sizeof(shared_barriers);
    static constexpr int CONSUMERS = 256, THREADS = 384, PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 240;
    static_assert(S_STAGES <= MAX_STAGES && DP_STAGES <= MAX_STAGES && S_STAGES >= 2 && (!BY_KEY || BN == 64), "");
    static_assert(BYTES + 1024 <= 228 * 1024, "shared memory of a multiprocessor");

    // Addresses of operand k of a warpgroup's own rows, and of the tiles of step `at`.
    __device__ static __forceinline__ uint32_t own(uint32_t smem, int k, int warpgroup) {
        return smem + (k * 2 + warpgroup) * OWN_BYTES;
    }
    __device__ static __forceinline__ uint32_t s_tile(uint32_t smem, uint32_t at) {
        return smem + S_OFFSET + at % S_STAGES * TILE_BYTES;
    }
    __device__ static __forceinline__ uint32_t dp_tile(uint32_t smem, uint32_t at) {
        return smem + DP_OFFSET + at % DP_STAGES * TILE_BYTES;
    }
};

// A step as the producer describes it to the consumers. Lane 0 reads it, because lane 0 later frees the stage.
struct step_info {
    const int4 *from;
    int flags; // 8 * count + 2 * (first row % 4) + edge

    __device__ static __forceinline__ int4 make(const attention_step &t, int number) {
        return make_int4(t.first, t.count << 3 | (t.first & 3) << 1 | t.edge, number, 0);
    }
    __device__ __forceinline__ void read(const int4 *p) { from = p, flags = read_lane_0(&p->y); }
    __device__ __forceinline__ bool edge() const { return flags & 1; }
    __device__ __forceinline__ int count() const { return flags >> 3; }
    __device__ __forceinline__ int misaligned() const { return flags >> 1 & 3; }
    __device__ __forceinline__ int first() const { return read_lane_0(&from->x); }
    __device__ __forceinline__ int number() const { return read_lane_0(&from->z); } // in the lists of the schedule
    __device__ static __forceinline__ int read_lane_0(const int *p) {
        int v = 0;
        if (threadIdx.x % 32 == 0) v = *p;
        return __shfl_sync(~0u, v, 0);
    }
};

// ---- barriers ----

template <typename S> __device__ __forceinline__ void init_barriers(shared_barriers *s) { // by one thread
    for (int i = 0; i < MAX_STAGES; i++)
        for (int k = 0; k < 2; k++) {
            mbarrier_init(smem_address(&s->full[k][i]), 1);
            mbarrier_init(smem_address(&s->empty[k][i]), 8); // lane 0 of each consumer warp
        }
    mbarrier_init(smem_address(&s->own_full), 1), mbarrier_init(smem_address(&s->own_empty), 8);
    for (int i = 0; i < QUEUE_TILES; i++) {
        mbarrier_init(smem_address(&s->work_full[i]), 1);
        mbarrier_init(smem_address(&s->work_empty[i]), 257); // every consumer thread, and the producer
    }
    fence_mbarrier_init();
}

__device__ __forceinline__ void arrive_warp(uint64_t *barrier) { // once for the warp
    if (threadIdx.x % 32 == 0) mbarrier_arrive(smem_address(barrier));
}

template <typename S> __device__ __forceinline__ void wait_s_tile(shared_barriers *s, uint32_t at) {
    mbarrier_wait(smem_address(&s->full[S_RING][at % S::S_STAGES]), at / S::S_STAGES & 1);
}
template <typename S> __device__ __forceinline__ void wait_dp_tile(shared_barriers *s, uint32_t at) {
    mbarrier_wait(smem_address(&s->full[DP_RING][at % S::DP_STAGES]), at / S::DP_STAGES & 1);
}

// ---- scheduler and producer ----

// Query heads of a work tile.
template <typename S> __device__ __forceinline__ int query_heads(const kernel_args &x) {
    return S::BY_KEY ? x.schedule.heads_per_kv : 1;
}

// One thread: publishes the work tiles of this CTA to the producer and the consumers.
template <typename S> __device__ __forceinline__ void scheduler(const kernel_args &x, shared_barriers *s) {
    unsigned number = blockIdx.x;
    for (uint32_t work_index = 0;; work_index++) {
        work_tile *to = &s->work[work_index % QUEUE_TILES];
        int steps = -1;
        mbarrier_wait(smem_address(&s->work_empty[work_index % QUEUE_TILES]), work_index / QUEUE_TILES & 1 ^ 1);
        if (number < x.work_tiles) {
            to->work = attention_work_at(x.schedule, number);
            asm volatile("" ::: "memory"); // registers are few: it is read again
            steps = 0;
#pragma unroll 1
            for (int h = 0; h < query_heads<S>(x); h++)
                steps += attention_steps_of(x.schedule, to->work, to->work.head * query_heads<S>(x) + h).count;
        }
        to->steps = steps;
        mbarrier_arrive(smem_address(&s->work_full[work_index % QUEUE_TILES]));
        if (number >= x.work_tiles) return;
        number = gridDim.x < x.work_tiles ? gridDim.x + atomicAdd(x.counter, 1u) : x.work_tiles;
    }
}

// A tile of other rows.
template <typename S>
__device__ __forceinline__ void load_tile(const CUtensorMap *map, uint32_t to, uint32_t full, int row, int head,
                                          int batch) {
    for (int chunk = 0; chunk < S::CHUNKS; chunk++)
        tma_load(to + chunk * S::CHUNK_BYTES, map, full, chunk * 64, row, head, batch);
}

template <typename S>
__device__ __forceinline__ void load_own(const tensor_maps &m, const attention_work &work, int head, uint32_t smem,
                                         uint32_t full) {
    mbarrier_arrive_expect_tx(full, 4 * S::OWN_BYTES);
#pragma unroll 1
    for (int warpgroup = 0; warpgroup < 2; warpgroup++)
        for (int k = 0; k < 2; k++)
            for (int chunk = 0; chunk < S::CHUNKS; chunk++)
                tma_load(S::own(smem, k, warpgroup) + chunk * ATTENTION_CHUNK_BYTES, &m.own[k], full, chunk * 64,
                         work.t.first + warpgroup * 64, head, work.batch);
}

// One thread: loads what the work tiles need.
template <typename S>
__device__ __forceinline__ void producer(const kernel_args &x, const tensor_maps &m, shared_barriers *s,
                                         uint32_t smem) {
    uint32_t at = 0; // steps so far
    for (uint32_t work_index = 0;; work_index++) {
        const work_tile *to = &s->work[work_index % QUEUE_TILES];
        mbarrier_wait(smem_address(&s->work_full[work_index % QUEUE_TILES]), work_index / QUEUE_TILES & 1);
        if (to->steps < 0) return;
        mbarrier_wait(smem_address(&s->own_empty), work_index & 1 ^ 1);
        int own_head = S::BY_KEY ? to->work.head >> x.log2_splits : to->work.head;
        load_own<S>(m, to->work, own_head, smem, smem_address(&s->own_full));
#pragma unroll 1
        for (int h = 0; h < query_heads<S>(x); h++) {
            int query_head = to->work.head * query_heads<S>(x) + h;
            int head = S::BY_KEY ? query_head : query_head / x.schedule.heads_per_kv;
            s->steps = attention_steps_of(x.schedule, to->work, query_head);
            asm volatile("" ::: "memory");
#pragma unroll 1
            for (int i = 0; i < s->steps.count; i++, at++) {
                attention_step t = attention_step_at(x.schedule, s->steps, i);
                uint32_t stage = at % S::S_STAGES, full = smem_address(&s->full[S_RING][stage]);
                mbarrier_wait(smem_address(&s->empty[S_RING][stage]), at / S::S_STAGES & 1 ^ 1);
                s->step[stage] = step_info::make(t, s->steps.list + i);
                mbarrier_arrive_expect_tx(full, S::TILE_BYTES + S::STATISTICS);
                load_tile<S>(&m.other[0], S::s_tile(smem, at), full, t.first, head, to->work.batch);
                if (S::BY_KEY)
                    tma_load(smem + S::STATISTICS_OFFSET + stage * S::STATISTICS_PITCH, &m.statistics, full,
                             t.first & ~3, 0, to->work.batch * x.schedule.heads * x.schedule.heads_per_kv + head);
                stage = at % S::DP_STAGES, full = smem_address(&s->full[DP_RING][stage]);
                mbarrier_wait(smem_address(&s->empty[DP_RING][stage]), at / S::DP_STAGES & 1 ^ 1);
                mbarrier_arrive_expect_tx(full, S::TILE_BYTES);
                load_tile<S>(&m.other[1], S::dp_tile(smem, at), full, t.first, head, to->work.batch);
            }
        }
        mbarrier_arrive(smem_address(&s->work_empty[work_index % QUEUE_TILES]));
    }
}

// ---- what both consumers do ----

// The thread's warpgroup, which the compiler sees to be the same for the warp.
__device__ __forceinline__ int warpgroup_index() { return __shfl_sync(~0u, reread_thread_index() / 128, 0); }

// The first of a lane's two own rows; the other is 8 below.
__device__ __forceinline__ int lane_row(const attention_work &work) {
    return work.t.first + reread_thread_index() / 32 * 16 + reread_thread_index() % 32 / 4;
}

// Issues S and dP of step `at`, (64, BN).
template <typename T, typename S>
__device__ __forceinline__ void issue_s(float (&sc)[S::BN / 2], uint32_t smem, uint32_t at) {
    attention_wgmma_abt<T, S>(sc, S::own(smem, 0, warpgroup_index()), S::s_tile(smem, at));
}
template <typename T, typename S>
__device__ __forceinline__ void issue_dp(float (&d)[S::BN / 2], uint32_t smem, uint32_t at) {
    attention_wgmma_abt<T, S>(d, S::own(smem, 1, warpgroup_index()), S::dp_tile(smem, at));
}

// Ping-pong: waits for this warpgroup's turn to issue; gives the turn to the other.
template <typename S> __device__ __forceinline__ void wait_turn() {
    if (S::PINGPONG) named_barrier_sync(PINGPONG_BARRIER + warpgroup_index(), 256);
}
template <typename S> __device__ __forceinline__ void pass_turn() {
    if (S::PINGPONG) named_barrier_arrive(PINGPONG_BARRIER + (warpgroup_index() ^ 1), 256);
}

template <typename T, typename S>
__device__ __forceinline__ void epilogue(const float (&d)[S::D / 2], float factor, void *to, const sat_heads &at,
                                         const attention_work &work, int dim);
template <typename S>
__device__ __forceinline__ void store_partial(const float (&d)[S::D / 2], const kernel_args &x, int which,
                                              const attention_work &work);

// ---- consumer of dQ: rows are queries, columns are keys ----

// Weights of pairs that are not kept become 0.
template <typename S>
__device__ __forceinline__ void mask_queries(float (&p)[S::BN / 2], const kernel_args &x, const attention_work &work,
                                             const step_info &step) {
    int first = step.first(), column = threadIdx.x % 4 * 2, row = lane_row(work);
    int64_t word = (int64_t)step.number() * x.schedule.words;
    const attention_tile &t = work.t;
#pragma unroll
    for (int part = 0; part < (S::BN + 63) / 64; part++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint64_t bits =
                attention_kept_keys(x.schedule, min(row + h * 8, t.end - 1), t.first, t.diagonal, first + part * 64,
                                    step.count() - part * 64, t.other_begin, t.other_end, word + part) >>
                column;
#pragma unroll
            for (int j = part * 8; j < part * 8 + 8 && j < S::BN / 8; j++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (!(bits >> (j % 8 * 8 + e) & 1)) p[j * 4 + h * 2 + e] = 0;
        }
}

template <typename T, typename S>
__device__ __forceinline__ void consumer_dq(const kernel_args &x, shared_barriers *s, uint32_t smem) {
    uint32_t at = 0; // steps so far
    if (warpgroup_index() == 1) pass_turn<S>();
    for (uint32_t work_index = 0;; work_index++) {
        const work_tile *t = &s->work[work_index % QUEUE_TILES];
        mbarrier_wait(smem_address(&s->work_full[work_index % QUEUE_TILES]), work_index / QUEUE_TILES & 1);
        int left = t->steps;
        if (left < 0) break;
        float dq[S::D / 2], minus_lse[2], delta[2];
#pragma unroll
        for (int e = 0; e < S::D / 2; e++) dq[e] = 0;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int64_t from = ((int64_t)t->work.batch * x.schedule.heads + t->work.head) * x.head_stride +
                           min(lane_row(t->work) + h * 8, t->work.t.end - 1);
            minus_lse[h] = -x.lse[from], delta[h] = x.delta[from];
        }
        mbarrier_wait(smem_address(&s->own_full), work_index & 1);
        if (left > 0) {
            float sc[S::BN / 2], d[S::BN / 2], p[S::BN / 2]; // only products write S and dP
            uint32_t ds[S::BN / 4];
            wait_s_tile<S>(s, at);
            issue_s<T, S>(sc, smem, at);
            wait_dp_tile<S>(s, at);
            issue_dp<T, S>(d, smem, at);
            for (;; at++) {
                step_info step;
                step.read(&s->step[at % S::S_STAGES]);
                wgmma_wait_group<1>(); // S
                wgmma_fence_accumulators(sc);
#pragma unroll
                for (int e = 0; e < S::BN / 2; e++)
                    p[e] = attention_exp2(fmaf(sc[e], x.scale_log2, minus_lse[e / 2 % 2]));
                if (step.edge()) mask_queries<S>(p, x, t->work, step);
                wgmma_wait_group<0>(); // dP
                wgmma_fence_accumulators(d);
                arrive_warp(&s->empty[DP_RING][at % S::DP_STAGES]);
#pragma unroll
                for (int e = 0; e < S::BN / 2; e++) p[e] *= d[e] - delta[e / 2 % 2];
                attention_pack_operand<T, S>(ds, p);
                if (--left == 0) break;
                wait_s_tile<S>(s, at + 1);
                wait_turn<S>();
                attention_wgmma_pb<T, S>(dq, ds, S::s_tile(smem, at));
                issue_s<T, S>(sc, smem, at + 1);
                pass_turn<S>();
                wait_dp_tile<S>(s, at + 1);
                wgmma_wait_group<1>(); // dQ: its A registers are needed before another product begins
                arrive_warp(&s->empty[S_RING][at % S::S_STAGES]);
                issue_dp<T, S>(d, smem, at + 1);
            }
            arrive_warp(&s->own_empty);
            attention_wgmma_pb<T, S>(dq, ds, S::s_tile(smem, at));
            wgmma_wait_group<0>();
            wgmma_fence_accumulators(dq);
            arrive_warp(&s->empty[S_RING][at++ % S::S_STAGES]);
        } else arrive_warp(&s->own_empty);
        epilogue<T, S>(dq, x.scale, x.out[0], x.out_at[0], t->work, x.dim);
        mbarrier_arrive(smem_address(&s->work_empty[work_index % QUEUE_TILES]));
    }
}

// ---- consumer of dK and dV: rows are keys, columns are queries ----

// Weights of pairs that are not kept become 0. Each lane finds what two queries keep of the warp's 16 keys, and the
// others read it from there.
template <typename S>
__device__ __forceinline__ void mask_keys(float (&p)[S::BN / 2], const kernel_args &x, const attention_work &work,
                                          const step_info &step) {
    int lane = threadIdx.x % 32, warpgroup = warpgroup_index(), key = work.t.first + warpgroup * 64;
    int first = step.first(), count = step.count();
    int64_t word = (int64_t)step.number() * x.schedule.words + warpgroup;
    uint32_t mine = 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int i = lane + h * 32;
        uint64_t bits = attention_kept_keys(x.schedule, first + min(i, count - 1), first, work.t.diagonal, key,
                                            work.t.end - key, work.t.first, work.t.end, word);
        if (i < count) mine |= (uint32_t)(bits >> threadIdx.x / 32 % 4 * 16 & 0xffff) << h * 16;
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            uint32_t bits = __shfl_sync(~0u, mine, j * 8 + lane % 4 * 2 + e) >> lane / 4;
            if (!(bits & 1)) p[j * 4 + e] = 0;
            if (!(bits >> 8 & 1)) p[j * 4 + 2 + e] = 0;
            if (!(bits >> 16 & 1)) p[(j + 4) * 4 + e] = 0;
            if (!(bits >> 24 & 1)) p[(j + 4) * 4 + 2 + e] = 0;
        }
}

// A statistic of two queries, for the columns of accumulators j * 4 and on. It may begin on any 4 bytes.
__device__ __forceinline__ float2 load_statistic(uint32_t from, int j) {
    float2 v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v.x) : "r"(from + j * 32) : "memory");
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v.y) : "r"(from + j * 32 + 4) : "memory");
    return v;
}

template <typename T, typename S>
__device__ __forceinline__ void consumer_dkv(const kernel_args &x, shared_barriers *s, uint32_t smem) {
    uint32_t at = 0; // steps so far
    if (warpgroup_index() == 1) pass_turn<S>();
    for (uint32_t work_index = 0;; work_index++) {
        const work_tile *t = &s->work[work_index % QUEUE_TILES];
        mbarrier_wait(smem_address(&s->work_full[work_index % QUEUE_TILES]), work_index / QUEUE_TILES & 1);
        int left = t->steps;
        if (left < 0) break;
        float dk[S::D / 2], dv[S::D / 2];
#pragma unroll
        for (int e = 0; e < S::D / 2; e++) dk[e] = dv[e] = 0;
        wgmma_fence_accumulators(dk), wgmma_fence_accumulators(dv); // zeroed now, and not while products are in flight
        mbarrier_wait(smem_address(&s->own_full), work_index & 1);
        if (left > 0) {
            float sc[S::BN / 2], d[S::BN / 2], p[S::BN / 2]; // only products write S and dP
            uint32_t weights[S::BN / 4], ds[S::BN / 4];
            bool sums_issued = false;
            wait_s_tile<S>(s, at);
            issue_s<T, S>(sc, smem, at);
            wait_dp_tile<S>(s, at);
            issue_dp<T, S>(d, smem, at);
            for (;; at++) {
                step_info step;
                step.read(&s->step[at % S::S_STAGES]);
                uint32_t statistics = smem + S::STATISTICS_OFFSET + at % S::S_STAGES * S::STATISTICS_PITCH +
                                      reread_thread_index() % 4 * 8 + step.misaligned() * 4;
                wgmma_wait_group<1>(); // S, and the sums over the step before
                wgmma_fence_accumulators(sc);
                if (sums_issued) {
                    arrive_warp(&s->empty[S_RING][(at - 1) % S::S_STAGES]);
                    arrive_warp(&s->empty[DP_RING][(at - 1) % S::DP_STAGES]);
                }
#pragma unroll
                for (int j = 0; j < S::BN / 8; j++) {
                    float2 lse = load_statistic(statistics, j);
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        p[j * 4 + e] = attention_exp2(fmaf(sc[j * 4 + e], x.scale_log2, e % 2 ? -lse.y : -lse.x));
                }
                if (step.edge()) mask_keys<S>(p, x, t->work, step);
                attention_pack_operand<T, S>(weights, p);
                attention_wgmma_pb<T, S>(dv, weights, S::dp_tile(smem, at));
                wgmma_wait_group<1>(); // dP
                wgmma_fence_accumulators(d);
#pragma unroll
                for (int j = 0; j < S::BN / 8; j++) {
                    float2 delta = load_statistic(statistics + S::STATISTIC, j);
#pragma unroll
                    for (int e = 0; e < 4; e++) p[j * 4 + e] *= d[j * 4 + e] - (e % 2 ? delta.y : delta.x);
                }
                attention_pack_operand<T, S>(ds, p);
                if (--left == 0) break;
                attention_wgmma_pb<T, S>(dk, ds, S::s_tile(smem, at));
                wait_s_tile<S>(s, at + 1);
                wgmma_wait_group<1>(); // dV: its A registers are needed before another product begins
                wait_turn<S>();
                issue_s<T, S>(sc, smem, at + 1);
                wait_dp_tile<S>(s, at + 1);
                issue_dp<T, S>(d, smem, at + 1);
                pass_turn<S>();
                sums_issued = true;
            }
            arrive_warp(&s->own_empty);
            attention_wgmma_pb<T, S>(dk, ds, S::s_tile(smem, at));
            wgmma_wait_group<0>();
            wgmma_fence_accumulators(dk), wgmma_fence_accumulators(dv);
            arrive_warp(&s->empty[S_RING][at % S::S_STAGES]);
            arrive_warp(&s->empty[DP_RING][at++ % S::DP_STAGES]);
        } else arrive_warp(&s->own_empty);
        if (x.partial) {
            store_partial<S>(dk, x, 0, t->work);
            store_partial<S>(dv, x, 1, t->work);
        } else {
            epilogue<T, S>(dk, x.scale, x.out[0], x.out_at[0], t->work, x.dim);
            epilogue<T, S>(dv, 1, x.out[1], x.out_at[1], t->work, x.dim);
        }
        mbarrier_arrive(smem_address(&s->work_empty[work_index % QUEUE_TILES]));
    }
}

// ---- epilogue ----

// Transposes 4 words over 4 lanes: w[i] of lane k becomes word k of lane i.
__device__ __forceinline__ uint4 transpose_words(const uint32_t (&w)[4]) {
    bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
    uint32_t a = __shfl_xor_sync(~0u, odd ? w[0] : w[1], 1), b = __shfl_xor_sync(~0u, odd ? w[2] : w[3], 1);
    uint32_t a0 = odd ? a : w[0], a1 = odd ? w[1] : a; // w[0] or w[1], of this lane and its neighbour
    uint32_t b0 = odd ? b : w[2], b1 = odd ? w[3] : b; // w[2] or w[3]
    uint32_t x = __shfl_xor_sync(~0u, high ? a0 : b0, 2), y = __shfl_xor_sync(~0u, high ? a1 : b1, 2);
    return high ? make_uint4(x, y, b0, b1) : make_uint4(a0, a1, x, y);
}

// A warp's 16 rows of sums, times `factor`, to the own rows of an operand, 16 bytes a lane.
template <typename T, typename S>
__device__ __forceinline__ void epilogue(const float (&d)[S::D / 2], float factor, void *to, const sat_heads &at,
                                         const attention_work &work, int dim) {
    typedef typename T::element E;
    int column = threadIdx.x % 4 * 8, row = lane_row(work);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        E *line = (E *)to + sat_heads_at(&at, work.batch, work.head, row + h * 8) + column;
#pragma unroll
        for (int j = 0; j < S::D / 8; j += 4) {
            uint32_t w[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                w[k] = pack_2(E(), d[(j + k) * 4 + h * 2] * factor, d[(j + k) * 4 + h * 2 + 1] * factor);
            uint4 v = transpose_words(w);
            if (row + h * 8 < work.t.end && j * 8 + column < dim) __stcg((uint4 *)(line + j * 8), v);
        }
    }
}

// The same sums as they are, to the partial sums of dK (0) or dV (1). Heads of the schedule are pairs of a key head and
// a split.
template <typename S>
__device__ __forceinline__ void store_partial(const float (&d)[S::D / 2], const kernel_args &x, int which,
                                              const attention_work &work) {
    int column = threadIdx.x % 4 * 2, row = lane_row(work);
    int64_t head = ((int64_t)which * x.schedule.batch + work.batch) * x.schedule.heads + work.head;
    float *to = x.partial + (head * x.schedule.own_length + row) * x.dim + column;
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int j = 0; j < S::D / 8; j++)
            if (row + h * 8 < work.t.end && j * 8 + column < x.dim)
                __stcg((float2 *)(to + h * 8 * x.dim + j * 8), make_float2(d[j * 4 + h * 2], d[j * 4 + h * 2 + 1]));
}

// ---- kernel ----

// dK and dV come first. dQ begins on multiprocessors that have no more of them, since all that it reads was there when
// they began. It waits for them only at its end, for the sake of the kernel that comes next.
template <typename T, typename S>
static __global__ void __launch_bounds__(S::THREADS, 1)
    attention_backward(const __grid_constant__ kernel_args x, const __grid_constant__ tensor_maps m) {
    extern __shared__ __align__(1024) char memory[];
    shared_barriers *s = (shared_barriers *)(memory + S::BARRIER_OFFSET);
    if (threadIdx.x == 0) init_barriers<S>(s);
    if (threadIdx.x == S::CONSUMERS) {
        prefetch_tensormap(&m.own[0]), prefetch_tensormap(&m.own[1]);
        prefetch_tensormap(&m.other[0]), prefetch_tensormap(&m.other[1]);
        if (S::BY_KEY) prefetch_tensormap(&m.statistics);
    }
    __syncthreads();
    if (S::BY_KEY) griddepcontrol_wait();
    griddepcontrol_launch_dependents();
    if (threadIdx.x >= S::CONSUMERS) {
        setmaxnreg_dec<S::PRODUCER_REGISTERS>();
        if (threadIdx.x == S::CONSUMERS) producer<S>(x, m, s, smem_address(memory));
        if (threadIdx.x == S::CONSUMERS + 32) scheduler<S>(x, s);
        __syncwarp();
    } else {
        setmaxnreg_inc<S::CONSUMER_REGISTERS>();
        if constexpr (S::BY_KEY) consumer_dkv<T, S>(x, s, smem_address(memory));
        else consumer_dq<T, S>(x, s, smem_address(memory));
    }
    if (gridDim.x < x.work_tiles) {
        __syncthreads();
        if (threadIdx.x == 0 && atomicAdd(x.counter + 1, 1u) == gridDim.x - 1) x.counter[0] = x.counter[1] = 0;
    }
    if (!S::BY_KEY) griddepcontrol_wait();
}

// ---- instances ----

typedef sat_status (*start_fn)(const sat_launch *l, const kernel_args &x, const tensor_maps &m);

struct instance {
    int max_dim, above_dim; // head sizes up to the one, and above the other
    int step_keys;          // keys of a step of dQ
    int bytes;
    double speed; // of a full device, as a part of the rate of its tensor cores
    start_fn by_query, by_key;
};

enum { STEP_QUERIES = 64 }; // of a step of dK and dV

template <typename T, typename S>
static sat_status start(const sat_launch *l, const kernel_args &x, const tensor_maps &m) {
    unsigned grid = (unsigned)sat_min(x.work_tiles, l->device->multiprocessors);
    return sat_start<attention_backward<T, S>>(l, grid, S::THREADS, S::BYTES, x, m);
}

template <typename T, int D, int STEP_KEYS, bool PINGPONG, int S_STAGES, int DP_STAGES>
static constexpr instance instance_of(double speed) {
    typedef tile_shape<false, D, STEP_KEYS, S_STAGES, DP_STAGES, PINGPONG> Q;
    typedef tile_shape<true, D, STEP_QUERIES, 4, 4, PINGPONG> K;
    constexpr int above_dim = D == 64 ? 0 : D == 96 ? 64 : 96, bytes = Q::BYTES > K::BYTES ? Q::BYTES : K::BYTES;
    return {D, above_dim, STEP_KEYS, bytes, speed, start<T, Q>, start<T, K>};
}

// Head size, keys of a step of dQ, ping-pong, stages of K and of V. Speeds on an H200.
template <typename T>
static constexpr instance instances[] = {
    instance_of<T, 64, 128, true, 3, 3>(0.4),   instance_of<T, 96, 128, true, 3, 2>(0.5),
    instance_of<T, 128, 128, true, 3, 2>(0.66), instance_of<T, 64, 64, false, 4, 4>(0.38),
    instance_of<T, 96, 64, false, 4, 4>(0.48),  instance_of<T, 128, 64, false, 4, 4>(0.6),
};

static const instance *instance_for(const sat_variant *v, const sat_problem *p) {
    if (v->instance.dtype != SAT_F16 && v->instance.dtype != SAT_BF16) return NULL;
    for (const instance &k : v->instance.dtype == SAT_F16 ? instances<sat_f16> : instances<sat_bf16>)
        if (k.step_keys == v->instance.tile_n && p->attention.dim <= k.max_dim && p->attention.dim > k.above_dim)
            return &k;
    return NULL;
}

static attention_tiling by_query(const instance *k) { return {CTA_ROWS, k->step_keys, false}; }
static attention_tiling by_key() { return {STEP_QUERIES, CTA_ROWS, true}; }

// ---- supports, estimate ----

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    if (!sat_attention_is_plain(p)) return false;
    const sat_attention *t = &p->attention;
    const instance *k = instance_for(v, p);
    if (d->capability != 90 || !k || p->a_dtype != v->instance.dtype || p->a_align % 16 || p->c_align % 16)
        return false;
    if (p->m <= 0 || p->n <= 0 || p->batch <= 0 || k->bytes > d->shared_bytes) return false;
    const sat_heads *const of_queries[] = {&t->q, &t->o, &t->do_, &t->dq};
    const sat_heads *const of_keys[] = {&t->k, &t->v, &t->dk, &t->dv};
    for (int i = 0; i < 4; i++)
        if (!attention_map_fits(p, *of_queries[i], t->heads, p->m) ||
            !attention_map_fits(p, *of_keys[i], t->kv_heads, p->n))
            return false;
    return attention_schedule_fits(p, a, by_query(k)) && attention_schedule_fits(p, a, by_key());
}

// Both kernels one after the other, each with its pairs spread over the multiprocessors.
static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const instance *k = instance_for(v, p);
    double rate = d->flop_rate[p->a_dtype] * k->speed;
    double pairs = 6 * attention_visited_pairs(p, a, by_query(k)) + 8 * attention_visited_pairs(p, a, by_key());
    double flops = pairs * k->max_dim;
    int splits = 1 << attention_log2_splits(p, a, d, CTA_ROWS);
    double tiles = ceil((double)p->n / (double)CTA_ROWS) * (double)(p->batch * p->attention.kv_heads * splits);
    double waves = fmax(1e-3, tiles / (double)d->multiprocessors), idle = waves < 4 ? ceil(waves) / waves : 1;
    return fmax(flops / rate * idle, 2 * sat_attention_bytes(p, a) / d->memory_rate) + (splits > 1 ? 1.5e-5 : 1.2e-5);
}

// ---- workspace, prepare: counters, schedules and statistics ----

enum { COUNTER_BYTES = 256 };

struct state {
    attention_backward_state base; // the first: attention_release frees the whole
    unsigned *counter;             // two of each kernel
    tensor_maps by_query, by_key;
    const void *mapped[4]; // the operands that the maps were encoded for
    float *partial;        // NULL: query heads are not split
    int log2_splits;
};

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    return COUNTER_BYTES + attention_backward_bytes(p, a, by_query(instance_for(v, p)), by_key()) +
           attention_splits_bytes(p, attention_log2_splits(p, a, d, CTA_ROWS));
}

static sat_status make_state(const sat_prepare *q, void *out) {
    state *st = (state *)out;
    st->counter = (unsigned *)q->workspace;
    cudaError_t e = cudaMemsetAsync(st->counter, 0, COUNTER_BYTES, (cudaStream_t)q->stream);
    attention_tiling queries = by_query(instance_for(q->variant, q->problem)), keys = by_key();
    char *at = (char *)q->workspace + COUNTER_BYTES;
    sat_status status = attention_backward_make(q, queries, keys, at, &st->base);
    st->log2_splits = attention_log2_splits(q->problem, q->pattern, q->device, CTA_ROWS);
    if (st->log2_splits) { // heads of the schedule by keys are pairs of a key head and a split
        st->partial = (float *)(at + attention_backward_bytes(q->problem, q->pattern, queries, keys));
        st->base.by_key.heads <<= st->log2_splits, st->base.by_key.heads_per_kv >>= st->log2_splits;
    }
    if (e == cudaSuccess) e = cudaStreamSynchronize((cudaStream_t)q->stream);
    if (status == SAT_OK && e != cudaSuccess)
        status = sat_fail(SAT_DEVICE_ERROR, "%s: %s", q->variant->name, cudaGetErrorString(e));
    return status;
}

static sat_status prepare(const sat_prepare *q, void **out) {
    return tensormap_prepare(q, sizeof(state), make_state, out);
}

// ---- launch ----

// (query, lse or delta, head).
static bool encode_statistics(const sat_problem *p, const attention_backward_state *s, CUtensorMap *map) {
    cuuint64_t m = (cuuint64_t)p->m, heads = (cuuint64_t)(p->batch * p->attention.heads);
    sat_tensor_box t = {SAT_F32,
                        s->lse,
                        3,
                        {m, 2, heads},
                        {(cuuint64_t)s->head_stride * 2, (cuuint64_t)s->head_stride * 4},
                        {STEP_QUERIES + 4, 2, 1}};
    return tensormap_encode(map, t);
}

static sat_status encode_maps(const sat_launch *l, int step_keys, state *st) {
    const sat_problem *p = l->problem;
    const sat_attention *t = &p->attention;
    void *const of[] = {l->operands[0], l->operands[5], l->operands[1], l->operands[2]}; // Q, dO, K, V
    const sat_heads *const at[] = {&t->q, &t->do_, &t->k, &t->v};
    if (tensormaps_reuse(st->mapped, 4, of)) return SAT_OK;
    bool ok = encode_statistics(p, &st->base, &st->by_key.statistics);
    for (int i = 0; i < 2 && ok; i++)
        ok = attention_encode_map(p, of[i], *at[i], t->heads, p->m, 64, &st->by_query.own[i]) &&
             attention_encode_map(p, of[i], *at[i], t->heads, p->m, STEP_QUERIES, &st->by_key.other[i]) &&
             attention_encode_map(p, of[2 + i], *at[2 + i], t->kv_heads, p->n, 64, &st->by_key.own[i]) &&
             attention_encode_map(p, of[2 + i], *at[2 + i], t->kv_heads, p->n, step_keys, &st->by_query.other[i]);
    return ok ? SAT_OK : tensormaps_failed(l, st->mapped);
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const sat_attention *t = &p->attention;
    const instance *k = instance_for(l->variant, p);
    state *st = (state *)l->state;
    const attention_backward_state *s = &st->base;
    kernel_args x = {};
    x.lse = s->lse, x.delta = s->delta, x.head_stride = s->head_stride, x.dim = (int)t->dim;
    x.scale_log2 = (float)(p->alpha * 1.44269504088896340736), x.scale = (float)p->alpha;
    sat_status status = encode_maps(l, k->step_keys, st);
    if (status == SAT_OK)
        status =
            p->a_dtype == SAT_F16 ? attention_launch_delta<__half>(l, s) : attention_launch_delta<__nv_bfloat16>(l, s);
    if (status != SAT_OK) return status;
    x.schedule = s->by_key, x.work_tiles = attention_work_count(&x.schedule), x.counter = st->counter;
    x.out[0] = l->operands[7], x.out[1] = l->operands[8], x.out_at[0] = t->dk, x.out_at[1] = t->dv;
    x.partial = st->partial, x.log2_splits = st->log2_splits;
    status = k->by_key(l, x, st->by_key);
    if (status != SAT_OK) return status;
    x.schedule = s->by_query, x.work_tiles = attention_work_count(&x.schedule), x.counter = st->counter + 2;
    x.out[0] = l->operands[6], x.out_at[0] = t->dq;
    status = k->by_query(l, x, st->by_query);
    return status == SAT_OK && st->partial ? attention_reduce_splits(l, st->partial, st->log2_splits) : status;
}

SAT_FAMILY(cuda_attention_backward_wgmma) = {
    .revision = "1",
    .op = SAT_ATTENTION_BACKWARD,
    .backend = SAT_CUDA,
    .flags = SAT_V_BATCHED,
    .about = "Hopper: wgmma, dK and dV by keys, then dQ by queries; tiles by TMA",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = attention_release,
};
