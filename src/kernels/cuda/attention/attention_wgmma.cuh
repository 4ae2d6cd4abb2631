/* Attention by warpgroup products: O = softmax(scale*Q*K^T where kept)*V, dense and block-sparse (sm_90a).
 *
 * A CTA has GROUPS warpgroups with 64 query rows each, and a warp that brings tiles of BN keys and values. A warpgroup
 * begins the next tile's scores and the last tile's product with V together, and works on the softmax of the one while
 * the tensor cores do the other; warpgroups take turns with the tensor cores. What a CTA visits: attention_pieces.h. */
#ifndef SAT_ATTENTION_WGMMA_CUH
#define SAT_ATTENTION_WGMMA_CUH

#include "kernels/cuda/attention/attention_exp.cuh"
#include "kernels/cuda/attention/attention_wgmma_job.cuh"

/* How many tiles were asked for: the producer raises it, and whoever sees that sees what came before. Atomics, since
 * racecheck takes a load that acquires what was released for a race. */
__device__ __forceinline__ void sat_att_raise(uint32_t *asked, uint32_t tiles) {
    asm volatile("{ .reg .b32 o; atom.release.cta.shared::cta.exch.b32 o, [%0], %1; }" ::"r"(smem_address(asked)),
                 "r"(tiles)
                 : "memory");
}
__device__ __forceinline__ uint32_t sat_att_look(uint32_t *asked) {
    uint32_t tiles;
    asm volatile("atom.acquire.cta.shared::cta.or.b32 %0, [%1], 0;"
                 : "=r"(tiles)
                 : "r"(smem_address(asked))
                 : "memory");
    return tiles;
}

/* ---- the producer ---- */

/* Which item of the schedule a number is: groups of heads whose keys fit into L2 together, and in each the longest
 * pieces of all heads first. */
template <typename S> __device__ __forceinline__ sat_att_turn sat_att_item(const sat_att_job &x, unsigned number) {
    sat_att_turn t;
    int in_group = x.heads_together * x.pieces, group = (int)number / in_group, rest = (int)number % in_group;
    int first = group * x.heads_together, wide = min(x.heads_together, x.all_heads - first);
    int piece = rest / wide, head = first + rest % wide;
    t.batch = head / x.heads, t.head = head % x.heads;
    if (x.piece) {
        t.p = x.piece[(x.head_masks ? t.head * x.pieces : 0) + piece];
    } else {
        if (x.reach.ahead < SAT_ATT_ALL) piece = x.pieces - 1 - piece;
#pragma unroll
        for (int g = 0; g < SAT_ATT_GROUPS; g++) t.p.row[g] = (piece * S::GROUPS + g) * SAT_ATT_ROWS;
        t.p.row_end = x.m, t.p.diagonal = x.n - x.m, t.p.key_begin = 0, t.p.key_end = x.n;
        t.p.first = -1, t.p.order = 1;
    }
    if (t.p.first < 0) sat_att_narrow(&t.p, S::GROUPS * SAT_ATT_ROWS, S::BN, x.reach);
    return t;
}

/* The halves' first keys of a piece's tile i, in a range of keys or in a list, where the low bits of the first say who
 * wants it. */
template <typename S> __device__ __forceinline__ int2 sat_att_in_range(const sat_att_piece &p, int i) {
    int key = sat_att_tile_at(&p, i, S::BN);
    return make_int2(key, key + S::BN / 2);
}
__device__ __forceinline__ int2 sat_att_in_list(const sat_att_job &x, int first, int count, int i) {
    return i < count ? __ldg(x.entry + first + i) : make_int2(0, 0);
}

template <typename S>
__device__ __forceinline__ void sat_att_bring(const sat_att_job &x, const CUtensorMap *map, uint32_t to, uint32_t full,
                                              int2 tile, int head, int batch) {
    mbarrier_arrive_expect_tx(full, S::TILE);
    int a = tile.x & ~(SAT_ATT_STEP - 1);
    for (int panel = 0; panel < S::PANELS; panel++) {
        uint32_t at = to + panel * S::PANEL;
        tma_load(at, map, full, panel * 64, a, head, batch);
        if (x.halves) tma_load(at + S::PANEL / 2, map, full, panel * 64, tile.y, head, batch);
    }
}

/* A stage is free only where all warpgroups say so: for those that do not want it, the producer does. */
template <typename S> __device__ __forceinline__ void sat_att_excuse(uint32_t empty, int first, int2 tile) {
    if (first < 0) return;
    int absent = S::GROUPS - __popc(tile.x & (SAT_ATT_STEP - 1));
    if (absent) mbarrier_arrive_count(empty, absent * 4);
}

template <typename S>
__device__ __forceinline__ void sat_att_produce(const sat_att_job &x, const sat_att_maps &m, sat_att_shared *s,
                                                uint32_t memory) {
    unsigned number = blockIdx.x;
    uint32_t turn = 0, base = 0; // pieces before this one, and their tiles
    for (;; turn++) {
        sat_att_turn *to = &s->turns[turn % SAT_ATT_AHEAD];
        mbarrier_wait(smem_address(&s->turn_empty[turn % SAT_ATT_AHEAD]), turn / SAT_ATT_AHEAD & 1 ^ 1);
        if (number < x.items) *to = sat_att_item<S>(x, number);
        else to->p.count = -1;
        mbarrier_arrive(smem_address(&s->turn_full[turn % SAT_ATT_AHEAD]));
        if (number >= x.items) return;
        number = x.items;
        if (gridDim.x < x.items) number = gridDim.x + atomicAdd(x.counter, 1u);
        const volatile sat_att_turn *t = to; // read again where it is needed: registers are few here
        int count = t->p.count, first = t->p.first, kv_head = t->head / x.share, batch = t->batch;
        int2 tile, before, next;
        if (first >= 0) next = sat_att_in_list(x, first, count, 0);
        for (int i = 0; i <= count; i++) {
            tile = first < 0 ? sat_att_in_range<S>(to->p, i) : next;
            if (first >= 0) next = sat_att_in_list(x, first, count, i + 1);
            if (i < count) {
                uint32_t at = base + i, stage = at % S::STAGES;
                mbarrier_wait(smem_address(&s->k_empty[stage]), at / S::STAGES & 1 ^ 1);
                sat_att_raise(&s->k_asked, at + 1);
                sat_att_excuse<S>(smem_address(&s->k_empty[stage]), first, tile);
                sat_att_bring<S>(x, &m.k, memory + S::K_FROM + stage * S::TILE, smem_address(&s->k_full[stage]), tile,
                                 kv_head, batch);
            }
            if (i == 0) {
                uint32_t slot = turn % S::QBUF, full = smem_address(&s->q_full[slot]);
                mbarrier_wait(smem_address(&s->q_empty[slot]), turn / S::QBUF & 1 ^ 1);
                mbarrier_arrive_expect_tx(full, S::Q);
                for (int g = 0; g < S::GROUPS; g++)
                    for (int panel = 0; panel < S::PANELS; panel++)
                        tma_load(memory + slot * S::Q + (g * S::PANELS + panel) * 8192, &m.q, full, panel * 64,
                                 t->p.row[g], t->head, batch);
            } else {
                uint32_t at = base + i - 1, stage = at % S::STAGES;
                mbarrier_wait(smem_address(&s->v_empty[stage]), at / S::STAGES & 1 ^ 1);
                sat_att_raise(&s->v_asked, at + 1);
                sat_att_excuse<S>(smem_address(&s->v_empty[stage]), first, before);
                sat_att_bring<S>(x, &m.v, memory + S::V_FROM + stage * S::TILE, smem_address(&s->v_full[stage]), before,
                                 kv_head, batch);
            }
            before = tile;
        }
        base += count;
    }
}

/* ---- the consumers ---- */

/* Where a warpgroup is in its piece. Of a list, each lane has one of 32 entries. */
template <typename S> struct sat_att_walk {
    int i, block;
    int2 tile, mine;
    unsigned wanted;

    __device__ __forceinline__ void begin() { i = -1, block = -32, wanted = 0; }
    /* On to the next tile that the warpgroup wants; false: there is none. */
    __device__ __forceinline__ bool next(const sat_att_job &x, const sat_att_piece &p, int group) {
        if (p.first < 0) {
            if (++i >= p.count) return false;
            tile = sat_att_in_range<S>(p, i);
            return true;
        }
        while (wanted == 0) {
            block += 32;
            if (block >= p.count) return false;
            mine = sat_att_in_list(x, p.first, p.count, block + threadIdx.x % 32);
            wanted = __ballot_sync(~0u, mine.x >> group & 1);
        }
        int lane = __ffs(wanted) - 1;
        wanted &= wanted - 1, i = block + lane;
        tile.x = __shfl_sync(~0u, mine.x, lane), tile.y = __shfl_sync(~0u, mine.y, lane);
        return true;
    }
};

/* Waits for a tile. A barrier tells only this turn of its stage from the one before, so that a warpgroup that did not
 * want what was there before must not ask it too early: the producer says when. */
template <typename S>
__device__ __forceinline__ void sat_att_await(uint64_t *full, uint32_t *asked, uint32_t &seen, uint32_t tile,
                                              bool some) {
    if (S::GROUPS > 1 && some)
        while ((int)(seen - tile) <= 0) seen = __shfl_sync(~0u, threadIdx.x % 32 == 0 ? sat_att_look(asked) : 0, 0);
    mbarrier_wait(smem_address(&full[tile % S::STAGES]), tile / S::STAGES & 1);
}

/* s = Q*K^T, begun. */
template <typename T, typename S>
__device__ __forceinline__ void sat_att_scores(float (&s)[S::BN / 2], uint32_t q, uint32_t k) {
    uint64_t a = wgmma_descriptor(q, 1, 16, 1024), b = wgmma_descriptor(k, 1, 16, 1024);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < S::D / 16; step++) // descriptors count in 16 bytes
        wgmma_ss<T, S::BN, 0, 0>::run(s, a + (step / 4 * 8192 + step % 4 * 32) / 16,
                                      b + (step / 4 * S::PANEL + step % 4 * 32) / 16, step > 0);
    wgmma_commit_group();
}

/* o += P*V, begun. */
template <typename T, typename S>
__device__ __forceinline__ void sat_att_values(float (&o)[S::D / 2], const uint32_t (&p)[S::BN / 4], uint32_t v) {
    uint64_t b = wgmma_descriptor(v, 1, S::PANEL, 1024);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < S::BN / 16; step++) wgmma_rs<T, S::D>::run(o, &p[step * 4], b + step * 2048 / 16);
    wgmma_commit_group();
}

/* What of a tile two rows keep: keys from `left` to before `right`. */
struct sat_att_rows {
    int left[2], right[2];
};

template <typename S>
__device__ __forceinline__ void sat_att_mask(float (&s)[S::BN / 2], const sat_att_rows &r, int2 tile) {
    int a = (tile.x & ~(SAT_ATT_STEP - 1)) + (int)(threadIdx.x % 4) * 2,
        b = a - (tile.x & ~(SAT_ATT_STEP - 1)) + tile.y;
#pragma unroll
    for (int e = 0; e < S::BN / 2; e++) {
        int column = e / 4 * 8 + e % 2, key = column < S::BN / 2 ? a + column : b + column - S::BN / 2;
        if (key < r.left[e / 2 % 2] || key >= r.right[e / 2 % 2]) s[e] = -INFINITY;
    }
}

/* Scores become exp2(c*(score - m)), m the largest so far of the row or, as long as that stays small, of earlier. `sum`
 * grows by this thread's part. True: what was summed up before is to be multiplied by `scale`. */
template <typename S>
__device__ __forceinline__ bool sat_att_softmax(float (&s)[S::BN / 2], float (&m)[2], float (&sum)[2],
                                                float (&scale)[2], float c, float slack) {
    float top[4] = {s[0], s[1], s[2], s[3]}, part[4] = {0, 0, 0, 0}, minus[2];
#pragma unroll
    for (int e = 4; e < S::BN / 2; e++) top[e % 4] = fmaxf(top[e % 4], s[e]);
    top[0] = fmaxf(top[0], top[1]), top[1] = fmaxf(top[2], top[3]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2));
    }
    bool grown = __any_sync(~0u, top[0] > m[0] + slack || top[1] > m[1] + slack);
    if (grown) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float more = fmaxf(m[r], top[r]);
            scale[r] = attention_factor(m[r], more, c);
            sum[r] *= scale[r], m[r] = more;
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) minus[r] = m[r] == -INFINITY ? 0 : -__fmul_rn(m[r], c);
#pragma unroll
    for (int e = 0; e < S::BN / 2; e++) {
        s[e] = attention_exp2(fmaf(s[e], c, minus[e / 2 % 2]));
        part[e % 4] += s[e];
    }
    sum[0] += part[0] + part[1], sum[1] += part[2] + part[3];
    return grown;
}

template <typename T, typename S>
__device__ __forceinline__ void sat_att_pack(uint32_t (&p)[S::BN / 4], const float (&s)[S::BN / 2]) {
#pragma unroll
    for (int e = 0; e < S::BN / 4; e++) p[e] = sat_pack_2(typename T::element(), s[2 * e], s[2 * e + 1]);
}

/* Sums to O, through the warp's part of the place where Q was: 16 rows. */
template <typename T, typename S>
__device__ __forceinline__ void sat_att_put(const sat_att_job &x, const sat_att_turn &t, float (&o)[S::D / 2],
                                            const float (&m)[2], float (&sum)[2], uint32_t q, int group, int row) {
    typedef typename T::element E;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    row += warp * 16;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
        sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
        int i = row + lane / 4 + r * 8;
        if (x.lse && lane % 4 == 0 && i < t.p.row_end)
            x.lse[((int64_t)t.batch * x.heads + t.head) * x.m + i] =
                sum[r] > 0 ? (__fmul_rn(m[r], x.c) + log2f(sum[r])) * 0.69314718056f : -INFINITY;
        sum[r] = sum[r] > 0 ? 1 / sum[r] : sum[r] == 0 ? 0 : sum[r]; // NaN stays
    }
#pragma unroll
    for (int e = 0; e < S::D / 2; e++) o[e] *= sum[e / 2 % 2];
    named_barrier_sync(SAT_ATT_GROUP + group, 128); // nobody reads Q any more
    uint32_t at = q + warp * 2048;
#pragma unroll
    for (int j = 0; j < S::D / 16; j++) {
        uint32_t w[4];
        sat_pack_8<E>(w, &o[j * 8]);
        stmatrix_x4(at + j / 4 * 8192 + sat_slice_at(lane % 16, j % 4 * 2 + lane / 16), w[0], w[1], w[2], w[3]);
    }
    __syncwarp();
    E *to = (E *)x.o + t.batch * x.o_batch + t.head * x.o_head + lane % 8 * 8;
#pragma unroll
    for (int j = 0; j < S::PANELS * 4; j++) {
        int i = j % 4 * 4 + lane / 8, column = j / 4 * 64;
        uint4 v = ld_shared_v4(at + j / 4 * 8192 + sat_slice_at(i, lane % 8));
        if (row + i < t.p.row_end && column + lane % 8 * 8 < x.dim)
            __stcg((uint4 *)(to + (row + i) * x.o_row + column), v);
    }
    fence_proxy_async();
    __syncwarp();
}

template <typename T, typename S>
__device__ __forceinline__ void sat_att_consume(const sat_att_job &x, sat_att_shared *s, uint32_t memory) {
    int group = __shfl_sync(~0u, (int)threadIdx.x / 128, 0), lane = threadIdx.x % 32, turn = 0, slot = 0;
    uint32_t turn_parity = 0, slot_parity = 0, base = 0;
    uint32_t k_seen = 0, v_seen = 0; // tiles that were asked for, as last seen
    if (S::GROUPS > 1 && group == S::GROUPS - 1) named_barrier_arrive(SAT_ATT_ORDER, 256);
    for (;;) {
        mbarrier_wait(smem_address(&s->turn_full[turn]), turn_parity);
        sat_att_turn t = read_shared_broadcast(&s->turns[turn]);
        if (lane == 0) mbarrier_arrive(smem_address(&s->turn_empty[turn]));
        if (++turn == SAT_ATT_AHEAD) turn = 0, turn_parity ^= 1;
        if (t.p.count < 0) break;
        const sat_att_piece &p = t.p;
        int row = group == 0   ? p.row[0]
                  : group == 1 ? p.row[1]
                               : p.row[2],
            mine = row + (int)threadIdx.x / 32 % 4 * 16 + lane / 4;
        sat_att_rows keep;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            keep.left[r] = sat_att_left(&p, mine + r * 8, x.reach);
            keep.right[r] = sat_att_right(&p, mine + r * 8, x.reach);
        }
        // Halves that begin from `low` to `high` every row of the warpgroup keeps.
        int low = sat_att_left(&p, row + SAT_ATT_ROWS - 1, x.reach), high = sat_att_right(&p, row, x.reach) - S::BN / 2;
        uint32_t q = memory + slot * S::Q + group * S::PANELS * 8192;
        float o[S::D / 2], m[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, scale[2];
#pragma unroll
        for (int e = 0; e < S::D / 2; e++) o[e] = 0;
        mbarrier_wait(smem_address(&s->q_full[slot]), slot_parity);
        sat_att_walk<S> at;
        at.begin();
        auto edge = [&](int2 tile) {
            int a = tile.x & ~(SAT_ATT_STEP - 1);
            return a > high || tile.y > high || a < low || tile.y < low;
        };
        bool order = S::GROUPS > 1 && p.order;
        if (at.next(x, p, group)) {
            float sc[S::BN / 2];
            uint32_t w[S::BN / 4];
            uint32_t now = base + at.i, stage = now % S::STAGES, before = 0;
            sat_att_await<S>(s->k_full, &s->k_asked, k_seen, now, p.first >= 0);
            sat_att_scores<T, S>(sc, q, memory + S::K_FROM + stage * S::TILE);
            wgmma_wait_group<0>();
            wgmma_fence_accumulators(sc);
            if (lane == 0) mbarrier_arrive(smem_address(&s->k_empty[stage]));
            if (edge(at.tile)) sat_att_mask<S>(sc, keep, at.tile);
            bool grown = false, begun = false; // nothing to multiply yet
            sat_att_softmax<S>(sc, m, sum, scale, x.c, x.slack);
            for (;;) {
                // The branches here keep the softmax before the wait for the product with V, which it overlaps.
                bool more = at.next(x, p, group);
                uint32_t then = base + at.i, ks = then % S::STAGES, vs = now % S::STAGES;
                wgmma_wait_group<0>();
                wgmma_fence_accumulators(o);
                if (begun && lane == 0) mbarrier_arrive(smem_address(&s->v_empty[before % S::STAGES]));
                if (grown) {
#pragma unroll
                    for (int e = 0; e < S::D / 2; e++) o[e] *= scale[e / 2 % 2];
                }
                sat_att_pack<T, S>(w, sc);
                if (!more) break;
                sat_att_await<S>(s->k_full, &s->k_asked, k_seen, then, p.first >= 0);
                if (order) named_barrier_sync(SAT_ATT_ORDER + group, 256);
                sat_att_scores<T, S>(sc, q, memory + S::K_FROM + ks * S::TILE);
                sat_att_await<S>(s->v_full, &s->v_asked, v_seen, now, p.first >= 0);
                sat_att_values<T, S>(o, w, memory + S::V_FROM + vs * S::TILE);
                if (order) named_barrier_arrive(SAT_ATT_ORDER + (group + 1) % S::GROUPS, 256);
                wgmma_wait_group<1>();
                wgmma_fence_accumulators(sc);
                if (lane == 0) mbarrier_arrive(smem_address(&s->k_empty[ks]));
                if (edge(at.tile)) sat_att_mask<S>(sc, keep, at.tile);
                grown = sat_att_softmax<S>(sc, m, sum, scale, x.c, x.slack), begun = true;
                wgmma_fence_accumulators(sc);
                before = now, now = then;
            }
            uint32_t vs = now % S::STAGES;
            sat_att_await<S>(s->v_full, &s->v_asked, v_seen, now, p.first >= 0);
            sat_att_values<T, S>(o, w, memory + S::V_FROM + vs * S::TILE);
            wgmma_wait_group<0>();
            wgmma_fence_accumulators(o);
            if (lane == 0) mbarrier_arrive(smem_address(&s->v_empty[vs]));
        }
        base += p.count;
        sat_att_put<T, S>(x, t, o, m, sum, q, group, row);
        if (lane == 0) mbarrier_arrive(smem_address(&s->q_empty[slot]));
        if (++slot == S::QBUF) slot = 0, slot_parity ^= 1;
    }
}

template <typename S> __device__ __forceinline__ void sat_att_init(sat_att_shared *s) { // by the first thread
    s->k_asked = 0, s->v_asked = 0;
    for (int i = 0; i < S::STAGES; i++) {
        mbarrier_init(smem_address(&s->k_full[i]), 1), mbarrier_init(smem_address(&s->v_full[i]), 1);
        mbarrier_init(smem_address(&s->k_empty[i]), S::GROUPS * 4);
        mbarrier_init(smem_address(&s->v_empty[i]), S::GROUPS * 4);
    }
    for (int i = 0; i < S::QBUF; i++) {
        mbarrier_init(smem_address(&s->q_full[i]), 1);
        mbarrier_init(smem_address(&s->q_empty[i]), S::GROUPS * 4);
    }
    for (int i = 0; i < SAT_ATT_AHEAD; i++) {
        mbarrier_init(smem_address(&s->turn_full[i]), 1);
        mbarrier_init(smem_address(&s->turn_empty[i]), S::GROUPS * 4);
    }
    fence_mbarrier_init();
}

template <typename T, typename S>
static __global__ void __launch_bounds__(S::THREADS, S::CTAS)
    sat_att_forward(const __grid_constant__ sat_att_job x, const __grid_constant__ sat_att_maps m) {
    extern __shared__ __align__(1024) char memory[];
    sat_att_shared *s = (sat_att_shared *)(memory + S::BARRIERS_FROM);
    griddepcontrol_launch_dependents();
    if (threadIdx.x == 0) sat_att_init<S>(s);
    if (threadIdx.x == S::GROUPS * 128) prefetch_tensormap(&m.q), prefetch_tensormap(&m.k), prefetch_tensormap(&m.v);
    __syncthreads();
    griddepcontrol_wait();
    if (threadIdx.x >= S::GROUPS * 128) {
        if (S::FEWER) setmaxnreg_dec<S::FEWER ? S::FEWER : 24>();
        if (threadIdx.x == S::GROUPS * 128) sat_att_produce<S>(x, m, s, smem_address(memory));
        __syncwarp();
    } else {
        if (S::FEWER) setmaxnreg_inc<S::MORE>();
        sat_att_consume<T, S>(x, s, smem_address(memory));
    }
    if (gridDim.x >= x.items) return;
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(x.counter + 1, 1u) == gridDim.x - 1) x.counter[0] = x.counter[1] = 0;
}

#endif
