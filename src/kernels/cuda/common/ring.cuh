/* The pipeline of the kernels on warpgroup products: warps of their own keep STAGES tiles of both operands on their way
 * into shared memory, and tell the warpgroups what to make of them; those multiply what has arrived. Large tiles have
 * two warpgroups, which split 128 rows by rows and 64 by columns, and a CTA that goes from tile to tile; small ones
 * have one warpgroup, and a CTA each. */
#ifndef SAT_RING_CUH
#define SAT_RING_CUH

#include "kernels/cuda/common/epilogue.cuh"

/* A tile, as the producer tells the consumers of it. */
struct sat_ring_tile {
    int row, slice, panel;
    int steps;        /* -1: there are no more tiles */
    int first, count; /* what more the output needs to know */
    int block;        /* and who brings A: its first */
};

enum { SAT_TILES_AHEAD = 4 }; /* tiles that the producer may be ahead */
enum { SAT_MAX_STAGES = 16 }; /* at most */

struct sat_ring_shared {
    uint64_t full[SAT_MAX_STAGES], empty[SAT_MAX_STAGES], tile_full[SAT_TILES_AHEAD], tile_empty[SAT_TILES_AHEAD];
    sat_ring_tile tiles[SAT_TILES_AHEAD];
    uint32_t groups[SAT_MAX_STAGES]; /* of a stage, where not all warpgroups multiply it: bit g for number g */
};

/* BM rows, BN columns and KS of depth a stage. LINE: bytes of a row of B in shared memory, row-major. */
template <int BM_, int BN_, int KS_, int STAGES_, int GROUPS_,
          int LINE_ = BN_<64 ? BN_ * 2 : 128> struct sat_tile_shape {
    static constexpr int BM = BM_, BN = BN_, KS = KS_, STAGES = STAGES_, GROUPS = GROUPS_, LINE = LINE_;
    static constexpr int A = BM * KS * 2, B = KS * BN * 2; // a stage's
    // Slots of A, where it may come 64 deep and a stage is 32: when a stage is free again, so is what it left of A.
    static constexpr bool DEEP = KS == 32;
    static constexpr int SLOTS = DEEP ? STAGES / 2 + 1 : STAGES, SLOT = DEEP ? BM * 128 : A;
    static constexpr int B_FROM = SLOTS * SLOT, OUT_FROM = GROUPS == 1 ? 0 : B_FROM + STAGES * B;
    static constexpr int WN = BM == 128 ? BN : BN / GROUPS; // columns of a warpgroup
    // Output is put in order in a place of its own; where a CTA has one tile, over A; where warpgroups have columns of
    // their own, over theirs of the last stage, which buys a stage more.
    static constexpr bool OVER_B = GROUPS == 2 && BM == 64 && B == GROUPS * SAT_STAGING;
    static constexpr int OUT = GROUPS == 1 || OVER_B ? 0 : GROUPS * SAT_STAGING;
    static constexpr int BYTES = B_FROM + STAGES * B + OUT + (int)sizeof(sat_ring_shared); // of shared memory
    static constexpr bool ONCE = GROUPS == 1;                                              // a CTA has one tile
    static constexpr int CONSUMERS = GROUPS * 128, THREADS = CONSUMERS + (GROUPS == 1 ? 32 : 128);
    static_assert(KS == 64 || KS == 32 || KS == 16, "");
    static_assert(BYTES <= 227 * 1024 && STAGES <= SAT_MAX_STAGES, "");
    static_assert(!ONCE || 2 * (BYTES + 1024) <= 228 * 1024, "two CTAs a multiprocessor");
};

/* Where a ring of stages is: the next one, how often it went round, and the slot of A. */
template <typename S> struct sat_ring {
    int stage = 0, slot = 0;
    uint32_t parity;

    __device__ __forceinline__ void advance(bool next_slot) {
        if (++stage == S::STAGES) stage = 0, parity ^= 1;
        if (next_slot && ++slot == S::SLOTS) slot = 0;
    }
    /* Where the stage's operands are; `deep_a`: A comes 64 deep where a stage is 32. */
    __device__ __forceinline__ uint32_t a(bool deep_a) const { return deep_a ? slot * S::SLOT : stage * S::A; }
    __device__ __forceinline__ uint32_t b() const { return S::B_FROM + stage * S::B; }
};

/* Whether A comes deeper than a stage: what is known when this is compiled costs nothing in the loops. */
template <typename S, bool TA> __device__ __forceinline__ bool sat_deep_a(bool deep_a) {
    return S::DEEP && !TA && deep_a;
}

/* By the first warp. `others`: warps that hear of tiles, too. */
template <typename S> __device__ __forceinline__ void sat_ring_init(sat_ring_shared *s, int others = 0) {
    int i = threadIdx.x;
    if (i < S::STAGES) {
        mbarrier_init(smem_address(&s->full[i]), 1);
        mbarrier_init(smem_address(&s->empty[i]), S::GROUPS * 4);
    } else if (i < S::STAGES + SAT_TILES_AHEAD) {
        mbarrier_init(smem_address(&s->tile_full[i - S::STAGES]), 1);
        mbarrier_init(smem_address(&s->tile_empty[i - S::STAGES]), S::GROUPS * 4 + others);
    }
    fence_mbarrier_init();
}

/* By all threads, where copies do not fill A: what no copy writes costs less power as zero. */
template <typename S> __device__ __forceinline__ void sat_ring_clear(char *memory) {
    for (int i = threadIdx.x; i < S::B_FROM / 16; i += S::THREADS) ((uint4 *)memory)[i] = make_uint4(0, 0, 0, 0);
    fence_proxy_async();
}

/* A ring of tiles, from either side. */
struct sat_tile_queue {
    int turn = 0;
    uint32_t parity;

    __device__ __forceinline__ void advance() {
        if (++turn == SAT_TILES_AHEAD) turn = 0, parity ^= 1;
    }
    __device__ __forceinline__ void publish(sat_ring_shared *s, const sat_ring_tile &t) { // one lane
        mbarrier_wait(smem_address(&s->tile_empty[turn]), parity);
        s->tiles[turn] = t;
        mbarrier_arrive(smem_address(&s->tile_full[turn]));
    }
    __device__ __forceinline__ sat_ring_tile receive(sat_ring_shared *s) {
        mbarrier_wait(smem_address(&s->tile_full[turn]), parity);
        sat_ring_tile t = read_shared_broadcast(&s->tiles[turn]);
        if (threadIdx.x % 32 == 0) mbarrier_arrive(smem_address(&s->tile_empty[turn]));
        return t;
    }
};

/* TA, TB: A comes with its rows contiguous, B with its depth contiguous. */
template <typename T, typename S, bool TA, bool TB>
__device__ __forceinline__ void sat_multiply_stage(float (&d)[S::WN / 2], uint32_t a, uint32_t b, bool deep_a,
                                                   int group, int add) {
    constexpr int KS = S::KS, deep = swizzle_mode_of(KS * 2), eight = KS * 2 * 8; // K contiguous
    constexpr int wide = swizzle_mode_of(S::LINE), chunk = KS * S::LINE;          // N contiguous
    if (S::BM == 128) a += group * 64 * KS * 2;
    else b += TB ? group * S::WN * KS * 2 : group * (S::WN * 2 / S::LINE) * chunk;
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < KS / 16; k++) {
        uint64_t da = TA       ? wgmma_descriptor(a + k * 2048, 1, KS * 128, 1024)
                      : deep_a ? wgmma_descriptor(a + k * 32, 1, 16, 1024)
                               : wgmma_descriptor(a + k * 32, deep, 16, eight);
        uint64_t db = TB ? wgmma_descriptor(b + k * 32, deep, 16, eight)
                         : wgmma_descriptor(b + k * 16 * S::LINE, wide, chunk, 8 * S::LINE);
        wgmma_ss<T, S::WN, TA, !TB>::run(d, da, db, add || k);
    }
    wgmma_commit_group();
}

/* A warpgroup's life. `put(tile, sums, staging, group)` takes the sums away. SOME: stages name their warpgroups. */
template <typename T, typename S, bool TA, bool TB, bool SOME, typename PUT>
__device__ __forceinline__ void sat_consume(sat_ring_shared *s, uint32_t memory, bool deep_a, PUT put) {
    int group = threadIdx.x / 128, lane = threadIdx.x % 32;
    deep_a = sat_deep_a<S, TA>(deep_a);
    sat_ring<S> at = {.parity = 0};
    sat_tile_queue tiles = {.parity = 0};
    int before = -1, put_in = -1; // stages to be freed: the one multiplied last, and that which output leaves from
    auto release = [&](int &stage) {
        if (stage >= 0 && lane == 0) mbarrier_arrive(smem_address(&s->empty[stage]));
        stage = -1;
    };
    auto release_put = [&] {
        if (S::OVER_B && put_in >= 0 && lane == 0) tma_store_wait_read<0>();
        if (S::OVER_B) release(put_in);
    };
    sat_ring_tile t = tiles.receive(s);
    while (t.steps >= 0) {
        int done = 0;
        float d[S::WN / 2];
        if (SOME || t.steps == 0)
#pragma unroll
            for (int e = 0; e < S::WN / 2; e++) d[e] = 0;
        for (int step = 0; step < t.steps; step++) {
            bool odd = S::DEEP && step % 2; // the second half of what came 64 deep
            uint32_t bar = smem_address(&s->full[at.stage]);
            if (!S::ONCE && before >= 0 && !mbarrier_test_wait(bar, at.parity)) { // copies are what is waited for
                wgmma_wait_group<0>();
                release(before);
            }
            mbarrier_wait(bar, at.parity);
            bool mine = true;
            if (SOME) mine = read_shared_broadcast(&s->groups[at.stage]) >> group & 1;
            if (!mine) { // what was before is freed too: much may follow
                wgmma_wait_group<0>();
                release(before);
                before = at.stage;
                release(before);
                at.advance(true);
                continue;
            }
            sat_multiply_stage<T, S, TA, TB>(d, memory + at.a(deep_a) + (deep_a && odd ? 64 : 0), memory + at.b(),
                                             deep_a, group, SOME || done);
            done = 1;
            release_put();
            wgmma_wait_group<1>();
            release(before);
            before = at.stage;
            at.advance(!S::DEEP || odd);
        }
        tiles.advance();
        sat_ring_tile next = tiles.receive(s);
        wgmma_wait_group<0>();
        uint32_t staging = memory + S::OUT_FROM + group * SAT_STAGING;
        if (S::OVER_B) {
            if (t.steps == 0) { // a stage without operands
                release_put();
                mbarrier_wait(smem_address(&s->full[at.stage]), at.parity);
                before = at.stage;
                at.advance(false);
            }
            staging = memory + S::B_FROM + before * S::B + group * SAT_STAGING;
            put_in = before, before = -1;
        }
        release(before);
        if (S::ONCE || S::OVER_B) named_barrier_sync(1 + group, 128); // nobody reads any more what output is put over
        put(t, d, staging, group);
        t = next;
    }
    tma_store_wait_all();
}

#endif
