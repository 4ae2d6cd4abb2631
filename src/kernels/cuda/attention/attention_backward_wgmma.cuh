/* The gradients of attention by warpgroup products: dQ by tiles of queries, dK and dV by tiles of keys (sm_90a). Every
 * sum is made in one order, and nothing is added up in memory. A CTA's own rows lie down and those that pass by across,
 * so that weights and dS leave the products as the left factors of the next, in registers.
 *
 * Two warpgroups are at work on different rows, so that one's exponentials pass while the tensor cores work for the
 * other; each has its next product begun before it waits. */
#ifndef SAT_ATTENTION_BACKWARD_WGMMA_CUH
#define SAT_ATTENTION_BACKWARD_WGMMA_CUH

#include "kernels/cuda/attention/attention_backward_wgmma_job.cuh"

/* ---- what both kernels' consumers do ---- */

/* The step that is in a stage of the first ring. The first lane reads it, who says later that the stage is free. */
struct sat_back_step {
    const int4 *from;
    int flags; // 8 * count + 2 * how far the first row is from a multiple of 4 + edge

    __device__ __forceinline__ void read(const int4 *p) { from = p, flags = first_lane(&p->y); }
    __device__ __forceinline__ bool edge() const { return flags & 1; }
    __device__ __forceinline__ int count() const { return flags >> 3; }
    __device__ __forceinline__ int beyond() const { return flags >> 1 & 3; }
    __device__ __forceinline__ int first() const { return first_lane(&from->x); }
    __device__ __forceinline__ int number() const { return first_lane(&from->z); }
    __device__ static __forceinline__ int first_lane(const int *p) {
        int v = 0;
        if (threadIdx.x % 32 == 0) v = *p;
        return __shfl_sync(~0u, v, 0);
    }
};

__device__ __forceinline__ void sat_back_arrive(uint64_t *barrier) { // for the warp
    if (threadIdx.x % 32 == 0) mbarrier_arrive(smem_address(barrier));
}

template <typename S> __device__ __forceinline__ void sat_back_await_first(sat_back_shared *s, uint32_t at) {
    mbarrier_wait(smem_address(&s->full[0][at % S::FIRST]), at / S::FIRST & 1);
}
template <typename S> __device__ __forceinline__ void sat_back_await_second(sat_back_shared *s, uint32_t at) {
    mbarrier_wait(smem_address(&s->full[1][at % S::SECOND]), at / S::SECOND & 1);
}

/* Four lanes with neighbouring words each, of four lines: lane k gets line k's words. */
__device__ __forceinline__ uint4 sat_back_turn_words(const uint32_t (&w)[4]) {
    bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
    uint32_t a = __shfl_xor_sync(~0u, odd ? w[0] : w[1], 1), b = __shfl_xor_sync(~0u, odd ? w[2] : w[3], 1);
    uint32_t a0 = odd ? a : w[0], a1 = odd ? w[1] : a; // of line 0 or 1, from this lane and its neighbour
    uint32_t b0 = odd ? b : w[2], b1 = odd ? w[3] : b; // of line 2 or 3
    uint32_t x = __shfl_xor_sync(~0u, high ? a0 : b0, 2), y = __shfl_xor_sync(~0u, high ? a1 : b1, 2);
    return high ? make_uint4(x, y, b0, b1) : make_uint4(a0, a1, x, y);
}

/* The thread's warpgroup, which the compiler sees to be the warp's; and the row of its first sums in the operand. */
__device__ __forceinline__ int sat_back_group() { return __shfl_sync(~0u, reread_thread_index() / 128, 0); }
__device__ __forceinline__ int sat_back_row(const attention_item &item) {
    return item.t.first + reread_thread_index() / 32 * 16 + reread_thread_index() % 32 / 4;
}

/* A warp's 16 rows of sums, times `factor`, to the item's rows of an operand: a thread has two, 8 apart. */
template <typename T, typename S>
__device__ __forceinline__ void sat_back_put(const float (&d)[S::D / 2], float factor, void *to, const sat_heads &at,
                                             const attention_item &item, int dim) {
    typedef typename T::element E;
    int quad = threadIdx.x % 4 * 8, row = sat_back_row(item);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        E *line = (E *)to + sat_heads_at(&at, item.batch, item.head, row + h * 8) + quad;
#pragma unroll
        for (int j = 0; j < S::D / 8; j += 4) {
            uint32_t w[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                w[k] = sat_pack_2(E(), d[(j + k) * 4 + h * 2] * factor, d[(j + k) * 4 + h * 2 + 1] * factor);
            uint4 v = sat_back_turn_words(w);
            if (row + h * 8 < item.t.end && j * 8 + quad < dim) __stcg((uint4 *)(line + j * 8), v);
        }
    }
}

/* s = own*other^T and d likewise, begun: of Q and K, or K and Q; of dO and V, or V and dO. */
template <typename T, typename S>
__device__ __forceinline__ void sat_back_first(float (&sc)[S::BN / 2], uint32_t memory, uint32_t at) {
    sat_att_scores<T, S>(sc, sat_back_at<S>::own(memory, 0, sat_back_group()), sat_back_at<S>::first(memory, at));
}
template <typename T, typename S>
__device__ __forceinline__ void sat_back_second(float (&d)[S::BN / 2], uint32_t memory, uint32_t at) {
    sat_att_scores<T, S>(d, sat_back_at<S>::own(memory, 1, sat_back_group()), sat_back_at<S>::second(memory, at));
}

/* Where warpgroups take turns: waits for its own, ends it. */
template <typename S> __device__ __forceinline__ void sat_back_my_turn() {
    if (S::ORDER) named_barrier_sync(SAT_BACK_ORDER + sat_back_group(), 256);
}
template <typename S> __device__ __forceinline__ void sat_back_your_turn() {
    if (S::ORDER) named_barrier_arrive(SAT_BACK_ORDER + (sat_back_group() ^ 1), 256);
}

/* ---- dQ: rows are queries, columns keys ---- */

template <typename S>
__device__ __forceinline__ void sat_back_mask_queries(float (&p)[S::BN / 2], const sat_back_job &x,
                                                      const attention_item &item, const sat_back_step &step) {
    int first = step.first(), column = threadIdx.x % 4 * 2, row = sat_back_row(item);
    int64_t word = (int64_t)step.number() * x.w.words;
    const attention_tile &t = item.t;
#pragma unroll
    for (int part = 0; part < (S::BN + 63) / 64; part++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint64_t bits = attention_keep(x.w, min(row + h * 8, t.end - 1), t.first, t.diagonal, first + part * 64,
                                           step.count() - part * 64, t.begin, t.stop, word + part) >>
                            column;
#pragma unroll
            for (int j = part * 8; j < part * 8 + 8 && j < S::BN / 8; j++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (!(bits >> (j % 8 * 8 + e) & 1)) p[j * 4 + h * 2 + e] = 0;
        }
}

template <typename T, typename S>
__device__ __forceinline__ void sat_back_queries(const sat_back_job &x, sat_back_shared *s, uint32_t memory) {
    typedef sat_back_at<S> place;
    uint32_t at = 0; // steps so far
    if (sat_back_group() == 1) sat_back_your_turn<S>();
    for (uint32_t turn = 0;; turn++) {
        const sat_back_turn *t = &s->turns[turn % SAT_BACK_AHEAD];
        mbarrier_wait(smem_address(&s->turn_full[turn % SAT_BACK_AHEAD]), turn / SAT_BACK_AHEAD & 1);
        int left = t->steps;
        if (left < 0) break;
        float dq[S::D / 2], minus[2], delta[2];
#pragma unroll
        for (int e = 0; e < S::D / 2; e++) dq[e] = 0;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int64_t from = ((int64_t)t->item.batch * x.w.heads + t->item.head) * x.apart +
                           min(sat_back_row(t->item) + h * 8, t->item.t.end - 1);
            minus[h] = -x.lse[from], delta[h] = x.delta[from];
        }
        mbarrier_wait(smem_address(&s->own_full), turn & 1);
        if (left > 0) {
            float sc[S::BN / 2], d[S::BN / 2], p[S::BN / 2]; // products alone write the first two
            uint32_t w[S::BN / 4];
            sat_back_await_first<S>(s, at);
            sat_back_first<T, S>(sc, memory, at);
            sat_back_await_second<S>(s, at);
            sat_back_second<T, S>(d, memory, at);
            for (;; at++) {
                sat_back_step step;
                step.read(&s->step[at % S::FIRST]);
                wgmma_wait_group<1>();
                wgmma_fence_accumulators(sc);
#pragma unroll
                for (int e = 0; e < S::BN / 2; e++) p[e] = attention_exp2(fmaf(sc[e], x.c, minus[e / 2 % 2]));
                if (step.edge()) sat_back_mask_queries<S>(p, x, t->item, step);
                wgmma_wait_group<0>();
                wgmma_fence_accumulators(d);
                sat_back_arrive(&s->empty[1][at % S::SECOND]);
#pragma unroll
                for (int e = 0; e < S::BN / 2; e++) p[e] *= d[e] - delta[e / 2 % 2];
                sat_att_pack<T, S>(w, p);
                if (--left == 0) break;
                sat_back_await_first<S>(s, at + 1);
                sat_back_my_turn<S>();
                sat_att_values<T, S>(dq, w, place::first(memory, at));
                sat_back_first<T, S>(sc, memory, at + 1);
                sat_back_your_turn<S>();
                sat_back_await_second<S>(s, at + 1);
                wgmma_wait_group<1>(); // registers are few: the factor's, before another product begins
                sat_back_arrive(&s->empty[0][at % S::FIRST]);
                sat_back_second<T, S>(d, memory, at + 1);
            }
            sat_back_arrive(&s->own_empty);
            sat_att_values<T, S>(dq, w, place::first(memory, at));
            wgmma_wait_group<0>();
            wgmma_fence_accumulators(dq);
            sat_back_arrive(&s->empty[0][at++ % S::FIRST]);
        } else sat_back_arrive(&s->own_empty);
        sat_back_put<T, S>(dq, x.alpha, x.out[0], x.out_at[0], t->item, x.dim);
        mbarrier_arrive(smem_address(&s->turn_empty[turn % SAT_BACK_AHEAD]));
    }
}

/* ---- dK and dV: rows are keys, columns queries ---- */

/* Each lane finds what two queries keep of the warp's 16 keys, and the others ask it. */
template <typename S>
__device__ __forceinline__ void sat_back_mask_keys(float (&p)[S::BN / 2], const sat_back_job &x,
                                                   const attention_item &item, const sat_back_step &step) {
    int lane = threadIdx.x % 32, group = sat_back_group(), key = item.t.first + group * 64;
    int first = step.first(), count = step.count();
    int64_t word = (int64_t)step.number() * x.w.words + group;
    uint32_t mine = 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int i = lane + h * 32;
        uint64_t bits = attention_keep(x.w, first + min(i, count - 1), first, item.t.diagonal, key, item.t.end - key,
                                       item.t.first, item.t.end, word);
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

/* Two numbers of a stage, for the columns of sums j * 4 and on; they may begin on any 4 bytes. */
__device__ __forceinline__ float2 sat_back_pair(uint32_t numbers, int j) {
    float2 v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v.x) : "r"(numbers + j * 32) : "memory");
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v.y) : "r"(numbers + j * 32 + 4) : "memory");
    return v;
}

template <typename T, typename S>
__device__ __forceinline__ void sat_back_keys(const sat_back_job &x, sat_back_shared *s, uint32_t memory) {
    typedef sat_back_at<S> place;
    uint32_t at = 0; // steps so far
    if (sat_back_group() == 1) sat_back_your_turn<S>();
    for (uint32_t turn = 0;; turn++) {
        const sat_back_turn *t = &s->turns[turn % SAT_BACK_AHEAD];
        mbarrier_wait(smem_address(&s->turn_full[turn % SAT_BACK_AHEAD]), turn / SAT_BACK_AHEAD & 1);
        int left = t->steps;
        if (left < 0) break;
        float dk[S::D / 2], dv[S::D / 2];
#pragma unroll
        for (int e = 0; e < S::D / 2; e++) dk[e] = dv[e] = 0;
        wgmma_fence_accumulators(dk), wgmma_fence_accumulators(dv); // now, and not while products are under way
        mbarrier_wait(smem_address(&s->own_full), turn & 1);
        if (left > 0) {
            float sc[S::BN / 2], d[S::BN / 2], p[S::BN / 2]; // products alone write the first two
            uint32_t w[S::BN / 4], y[S::BN / 4];
            bool begun = false;
            sat_back_await_first<S>(s, at);
            sat_back_first<T, S>(sc, memory, at);
            sat_back_await_second<S>(s, at);
            sat_back_second<T, S>(d, memory, at);
            for (;; at++) {
                sat_back_step step;
                step.read(&s->step[at % S::FIRST]);
                uint32_t numbers = memory + S::NUMBERS_FROM + at % S::FIRST * S::NUMBERS_APART +
                                   reread_thread_index() % 4 * 8 + step.beyond() * 4;
                wgmma_wait_group<1>();
                wgmma_fence_accumulators(sc);
                if (begun) { // the sums over the tiles before are there, too
                    sat_back_arrive(&s->empty[0][(at - 1) % S::FIRST]);
                    sat_back_arrive(&s->empty[1][(at - 1) % S::SECOND]);
                }
#pragma unroll
                for (int j = 0; j < S::BN / 8; j++) {
                    float2 lse = sat_back_pair(numbers, j);
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        p[j * 4 + e] = attention_exp2(fmaf(sc[j * 4 + e], x.c, e % 2 ? -lse.y : -lse.x));
                }
                if (step.edge()) sat_back_mask_keys<S>(p, x, t->item, step);
                sat_att_pack<T, S>(w, p);
                sat_att_values<T, S>(dv, w, place::second(memory, at));
                wgmma_wait_group<1>();
                wgmma_fence_accumulators(d);
#pragma unroll
                for (int j = 0; j < S::BN / 8; j++) {
                    float2 delta = sat_back_pair(numbers + S::NUMBER_ROW, j);
#pragma unroll
                    for (int e = 0; e < 4; e++) p[j * 4 + e] *= d[j * 4 + e] - (e % 2 ? delta.y : delta.x);
                }
                sat_att_pack<T, S>(y, p);
                if (--left == 0) break;
                sat_att_values<T, S>(dk, y, place::first(memory, at));
                sat_back_await_first<S>(s, at + 1);
                wgmma_wait_group<1>(); // registers are few: the factor's, before another product begins
                sat_back_my_turn<S>();
                sat_back_first<T, S>(sc, memory, at + 1);
                sat_back_await_second<S>(s, at + 1);
                sat_back_second<T, S>(d, memory, at + 1);
                sat_back_your_turn<S>();
                begun = true;
            }
            sat_back_arrive(&s->own_empty);
            sat_att_values<T, S>(dk, y, place::first(memory, at));
            wgmma_wait_group<0>();
            wgmma_fence_accumulators(dk), wgmma_fence_accumulators(dv);
            sat_back_arrive(&s->empty[0][at % S::FIRST]);
            sat_back_arrive(&s->empty[1][at++ % S::SECOND]);
        } else sat_back_arrive(&s->own_empty);
        sat_back_put<T, S>(dk, x.alpha, x.out[0], x.out_at[0], t->item, x.dim);
        sat_back_put<T, S>(dv, 1, x.out[1], x.out_at[1], t->item, x.dim);
        mbarrier_arrive(smem_address(&s->turn_empty[turn % SAT_BACK_AHEAD]));
    }
}

/* ---- the kernel ---- */

/* dK and dV come first, and dQ begins on multiprocessors that have no more of them: all that it needs was there when
 * the first began. It ends, for who comes next, after that. */
template <typename T, typename S>
static __global__ void __launch_bounds__(S::THREADS, 1)
    sat_back(const __grid_constant__ sat_back_job x, const __grid_constant__ sat_back_maps m) {
    extern __shared__ __align__(1024) char memory[];
    sat_back_shared *s = (sat_back_shared *)(memory + S::SHARED_FROM);
    if (threadIdx.x == 0) sat_back_init<S>(s);
    if (threadIdx.x == 256) {
        prefetch_tensormap(&m.own[0]), prefetch_tensormap(&m.own[1]);
        prefetch_tensormap(&m.other[0]), prefetch_tensormap(&m.other[1]);
        if (S::BY_KEY) prefetch_tensormap(&m.numbers);
    }
    __syncthreads();
    if (S::BY_KEY) griddepcontrol_wait();
    griddepcontrol_launch_dependents();
    if (threadIdx.x >= 256) {
        setmaxnreg_dec<S::FEWER>();
        if (threadIdx.x == 256) sat_back_produce<S>(x, m, s, smem_address(memory));
        if (threadIdx.x == 288) sat_back_deal<S>(x, s);
        __syncwarp();
    } else {
        setmaxnreg_inc<S::MORE>();
        if constexpr (S::BY_KEY) sat_back_keys<T, S>(x, s, smem_address(memory));
        else sat_back_queries<T, S>(x, s, smem_address(memory));
    }
    if (gridDim.x < x.items) {
        __syncthreads();
        if (threadIdx.x == 0 && atomicAdd(x.counter + 1, 1u) == gridDim.x - 1) x.counter[0] = x.counter[1] = 0;
    }
    if (!S::BY_KEY) griddepcontrol_wait();
}

#endif
