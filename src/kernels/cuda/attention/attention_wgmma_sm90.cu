// cuda_attention_wgmma: fused attention on Hopper, O = softmax(scale*Q*K^T where kept)*V, dense and block-sparse.
//
// f16 and bf16, head sizes up to 256. Causal masks, windows and packed sequences visit ranges of keys; masks of blocks
// visit lists of key tiles; where blocks are smaller than 64 rows by half a tile, words of bits say which scores are
// kept. 80-key tiles: ranges only.
// Rows of operands must begin on 16 bytes and the scale must be positive.
//
// A persistent CTA has one to three consumer warpgroups with 64 query rows each, and a producer thread that loads Q and
// tiles of BN keys and values by TMA. A consumer issues S = Q*K^T of the next tile together with O += P*V of this one,
// and computes the next tile's softmax while the tensor cores still work on O. Where all warpgroups visit all tiles
// they take turns at issuing (ping-pong), so that one's softmax overlaps another's products.
//
// A work item is a CTA's rows and key tiles, without the head: 64 rows for each warpgroup and the key tiles that they
// visit. A work tile is a work item of one head. A key tile is BN keys. K and V have a ring of stages each, and not
// that of ring.cuh, since a key tile's K is released before its V.
//
// A visited tile is multiplied whole, and a weight of 0 times Inf or NaN is NaN: such a value at a key that is not kept
// may reach O, as the public header allows.
//
// Shapes: Q is (m, dim), K and V are (n, dim), for every head of every batch item. Work items: attention_work.h.

#include "kernels/cuda/attention/attention_wgmma.cuh"
#include "kernels/cuda/attention/attention_work.h"

enum {
    QUEUE_TILES = 2, // work tiles that the producer may be ahead
    MAX_STAGES = 4,  // of K and of V
    MAX_Q_STAGES = 2,
    PINGPONG_BARRIER = 2,  // named barriers from here on: a warpgroup's turn to issue products
    WARPGROUP_BARRIER = 6, // named barriers from here on: the threads of a warpgroup
};

// What a CTA computes next: a work item of one head.
struct work_tile {
    sat_attention_item item; // key_tiles -1: no more work tiles
    int head, batch;
};

struct kernel_args {
    unsigned *counter;                     // of work tiles; see sat_tile_counter_init
    unsigned work_tiles;                   // items * all_heads
    int items, all_heads, heads_in_flight; // items of a head; heads of all batch items; heads computed together
    const sat_attention_item *item;        // NULL: computed, neighbouring rows and ranges of keys
    const sat_key_tile *listed_tiles;      // of all lists
    bool mask_per_head;                    // each head has its own items
    bool two_boxes_per_tile;               // lists: the halves of a tile need not be neighbours, each has a TMA box
    int heads, heads_per_kv, m, n, dim;
    sat_band band;
    float scale_log2; // scale*log2(e)
    // O and the sum are rescaled only where a row's maximum grows by more. Of scores before scaling: 8/scale_log2,
    // which is finite for the scales that supports() takes.
    float rescale_above;
    void *o;
    int64_t o_batch_stride, o_head_stride, o_row_stride;
    float *lse;                            // NULL: not wanted
    const uint64_t *words;                 // (block row, half tile): keys in stored blocks; NULL: all that are listed
    int block_rows, head_rows, half_tiles; // rows of a block; block rows of a head's mask, 0: one for all
};

struct tensor_maps {
    CUtensorMap q, k, v; // (dim, row, head, batch), boxes of 64 columns
};

// ---- shared memory ----

struct shared_barriers {
    uint64_t k_full[MAX_STAGES], k_empty[MAX_STAGES], v_full[MAX_STAGES], v_empty[MAX_STAGES];
    uint64_t q_full[MAX_Q_STAGES], q_empty[MAX_Q_STAGES], work_full[QUEUE_TILES], work_empty[QUEUE_TILES];
    work_tile work[QUEUE_TILES];
    uint32_t k_claimed, v_claimed; // key tiles whose stage the producer has claimed so far
};

// Head sizes up to D, BN keys a tile, STAGES tiles of K and of V, Q_STAGES tiles of Q. Offsets and sizes in bytes. A
// chunk is 64 columns of an operand.
template <int D_, int BN_, int WARPGROUPS_, int STAGES_, int Q_STAGES_> struct tile_shape {
    static constexpr int D = D_, BN = BN_, WARPGROUPS = WARPGROUPS_, STAGES = STAGES_, Q_STAGES = Q_STAGES_;
    static constexpr int CHUNKS = (D + 63) / 64, CHUNK_BYTES = BN * 128, TILE_BYTES = CHUNKS * CHUNK_BYTES;
    static constexpr int Q_BYTES = WARPGROUPS * CHUNKS * ATTENTION_CHUNK_BYTES;
    static constexpr int K_OFFSET = Q_STAGES * Q_BYTES, V_OFFSET = K_OFFSET + STAGES * TILE_BYTES;
    static constexpr int BARRIER_OFFSET = V_OFFSET + STAGES * TILE_BYTES;
    static constexpr int BYTES = BARRIER_OFFSET + (int)sizeof(shared_barriers);
    static constexpr int CONSUMERS = WARPGROUPS * 128, THREADS = CONSUMERS + (WARPGROUPS == 1 ? 32 : 128);
    // setmaxnreg, where there are several warpgroups: 128 * 40 + 256 * 232 and 128 * 32 + 384 * 160 <= 65536.
    static constexpr int PRODUCER_REGISTERS = WARPGROUPS == 2 ? 40 : 32;
    static constexpr int CONSUMER_REGISTERS = WARPGROUPS == 2 ? 232 : 160;
    // A warpgroup does not read V of a tile before K of its next tile is there. In a list (sat_add_tiles of
    // attention_work.c) that tile is up to WARPGROUPS tiles on. V is loaded one tile behind K, so that WARPGROUPS - 1
    // stages of V must be there meanwhile.
    static_assert(WARPGROUPS <= STAGES + 1, "the producer would wait for a stage that is never freed");
    static_assert(BN % 16 == 0 && D % 16 == 0 && STAGES <= MAX_STAGES && Q_STAGES <= MAX_Q_STAGES, "");
    static_assert(BYTES + 1024 <= 228 * 1024, "shared memory of a multiprocessor");
};

// ---- barriers ----

// By one thread. A stage is full once its copies have arrived, and empty once the first lane of each consumer warp has
// arrived; for warpgroups that do not visit a tile the producer arrives.
template <typename S> __device__ __forceinline__ void init_barriers(shared_barriers *barriers) {
    barriers->k_claimed = 0, barriers->v_claimed = 0;
    for (int i = 0; i < S::STAGES; i++) {
        mbarrier_init(smem_address(&barriers->k_full[i]), 1), mbarrier_init(smem_address(&barriers->v_full[i]), 1);
        mbarrier_init(smem_address(&barriers->k_empty[i]), S::WARPGROUPS * 4);
        mbarrier_init(smem_address(&barriers->v_empty[i]), S::WARPGROUPS * 4);
    }
    for (int i = 0; i < S::Q_STAGES; i++) {
        mbarrier_init(smem_address(&barriers->q_full[i]), 1);
        mbarrier_init(smem_address(&barriers->q_empty[i]), S::WARPGROUPS * 4);
    }
    for (int i = 0; i < QUEUE_TILES; i++) {
        mbarrier_init(smem_address(&barriers->work_full[i]), 1);
        mbarrier_init(smem_address(&barriers->work_empty[i]), S::WARPGROUPS * 4);
    }
    fence_mbarrier_init();
}

// The counts of claimed stages: who sees a count sees what the producer did before it. They are atomics because
// racecheck reports an acquiring load of a released value as a race.
__device__ __forceinline__ void store_claimed(uint32_t *claimed, uint32_t tiles) {
    atom_release_exch(smem_address(claimed), tiles);
}
__device__ __forceinline__ uint32_t load_claimed(uint32_t *claimed) { return atom_acquire_load(smem_address(claimed)); }

// A consumer waits for key tile number `key_tile`, counted over all work tiles of the CTA. The barrier's parity
// distinguishes only one phase of a stage from the next. A warpgroup that skipped the stage's last tiles (`list`) could
// take an older phase for its own, so it first waits until the producer has claimed the stage for this tile.
template <typename S>
__device__ __forceinline__ void wait_full(uint64_t *full, uint32_t *claimed, uint32_t &seen, uint32_t key_tile,
                                          bool list) {
    if (S::WARPGROUPS > 1 && list)
        while ((int)(seen - key_tile) <= 0)
            seen = __shfl_sync(~0u, threadIdx.x % 32 == 0 ? load_claimed(claimed) : 0, 0);
    mbarrier_wait(smem_address(&full[key_tile % S::STAGES]), key_tile / S::STAGES & 1);
}

// ---- producer ----

// The work tile of a number: heads_in_flight heads at a time, and of these the longest items first. Where items are
// uneven, those are the heads whose keys fit into L2 together; otherwise the query heads of one key head.
template <typename S> __device__ __forceinline__ work_tile schedule_tile(const kernel_args &x, unsigned number) {
    work_tile t;
    int in_flight = x.heads_in_flight * x.items, round = (int)number / in_flight, rest = (int)number % in_flight;
    int first = round * x.heads_in_flight, heads = min(x.heads_in_flight, x.all_heads - first);
    int i = rest / heads, head = first + rest % heads; // item i of its head
    t.batch = head / x.heads, t.head = head % x.heads;
    if (x.item) {
        t.item = x.item[(x.mask_per_head ? t.head * x.items : 0) + i];
    } else {
        if (x.band.ahead < SAT_ATTENTION_UNLIMITED)
            i = x.items - 1 - i; // causal, or a window: the last rows keep the most keys
#pragma unroll
        for (int g = 0; g < SAT_MAX_WARPGROUPS; g++) t.item.row[g] = (i * S::WARPGROUPS + g) * SAT_WARPGROUP_ROWS;
        t.item.row_end = x.m, t.item.diagonal = x.n - x.m, t.item.key_begin = 0, t.item.key_end = x.n;
        t.item.list = -1, t.item.pingpong = 1;
    }
    if (t.item.list < 0) sat_clip_keys(&t.item, S::WARPGROUPS * SAT_WARPGROUP_ROWS, S::BN, x.band);
    return t;
}

// Key tile i of a range, and of a list.
template <typename S> __device__ __forceinline__ sat_key_tile range_tile(const sat_attention_item &item, int i) {
    int key = sat_range_tile(&item, i, S::BN);
    return {key, key + S::BN / 2};
}
__device__ __forceinline__ sat_key_tile listed_tile(const kernel_args &x, int list, int key_tiles, int i) {
    int2 t = i < key_tiles ? __ldg((const int2 *)x.listed_tiles + list + i) : make_int2(0, 0); // one load
    return {t.x, t.y};
}

// Loads a tile of K or V.
template <typename S>
__device__ __forceinline__ void load_tile(const kernel_args &x, const CUtensorMap *map, uint32_t to, uint32_t full,
                                          sat_key_tile tile, int head, int batch) {
    mbarrier_arrive_expect_tx(full, S::TILE_BYTES);
    int first = sat_first_key(tile);
    for (int chunk = 0; chunk < S::CHUNKS; chunk++) {
        uint32_t stage_smem = to + chunk * S::CHUNK_BYTES;
        tma_load(stage_smem, map, full, chunk * 64, first, head, batch);
        if (x.two_boxes_per_tile)
            tma_load(stage_smem + S::CHUNK_BYTES / 2, map, full, chunk * 64, tile.second, head, batch);
    }
}

// A stage is empty once every warpgroup has arrived. The producer arrives for those that do not visit the tile.
template <typename S> __device__ __forceinline__ void arrive_for_absent(uint32_t empty, int list, sat_key_tile tile) {
    if (list < 0) return;
    int absent = S::WARPGROUPS - __popc(sat_warpgroup_mask(tile));
    if (absent) mbarrier_arrive_count(empty, absent * 4);
}

// One thread: publishes work tiles and loads their Q, K and V. V of a tile follows K of the next.
template <typename S>
__device__ __forceinline__ void producer(const kernel_args &x, const tensor_maps &maps, shared_barriers *barriers,
                                         uint32_t smem) {
    unsigned number = blockIdx.x;
    uint32_t work_index = 0, base = 0; // work tiles before this one, and their key tiles
    for (;; work_index++) {
        work_tile *to = &barriers->work[work_index % QUEUE_TILES];
        mbarrier_wait(smem_address(&barriers->work_empty[work_index % QUEUE_TILES]), work_index / QUEUE_TILES & 1 ^ 1);
        if (number < x.work_tiles) *to = schedule_tile<S>(x, number);
        else to->item.key_tiles = -1;
        mbarrier_arrive(smem_address(&barriers->work_full[work_index % QUEUE_TILES]));
        if (number >= x.work_tiles) return;
        number = x.work_tiles;
        if (gridDim.x < x.work_tiles) number = gridDim.x + atomicAdd(x.counter, 1u);
        const volatile work_tile *t = to; // read again where it is needed: registers are few here
        int key_tiles = t->item.key_tiles, list = t->item.list, kv_head = t->head / x.heads_per_kv, batch = t->batch;
        sat_key_tile tile, before, next;
        if (list >= 0) next = listed_tile(x, list, key_tiles, 0);
        for (int i = 0; i <= key_tiles; i++) {
            tile = list < 0 ? range_tile<S>(to->item, i) : next;
            if (list >= 0) next = listed_tile(x, list, key_tiles, i + 1);
            if (i < key_tiles) {
                uint32_t key_tile = base + i, stage = key_tile % S::STAGES;
                mbarrier_wait(smem_address(&barriers->k_empty[stage]), key_tile / S::STAGES & 1 ^ 1);
                store_claimed(&barriers->k_claimed, key_tile + 1);
                arrive_for_absent<S>(smem_address(&barriers->k_empty[stage]), list, tile);
                load_tile<S>(x, &maps.k, smem + S::K_OFFSET + stage * S::TILE_BYTES,
                             smem_address(&barriers->k_full[stage]), tile, kv_head, batch);
            }
            if (i == 0) {
                uint32_t stage = work_index % S::Q_STAGES, full = smem_address(&barriers->q_full[stage]);
                mbarrier_wait(smem_address(&barriers->q_empty[stage]), work_index / S::Q_STAGES & 1 ^ 1);
                mbarrier_arrive_expect_tx(full, S::Q_BYTES);
                for (int g = 0; g < S::WARPGROUPS; g++)
                    for (int chunk = 0; chunk < S::CHUNKS; chunk++)
                        tma_load(smem + stage * S::Q_BYTES + (g * S::CHUNKS + chunk) * ATTENTION_CHUNK_BYTES, &maps.q,
                                 full, chunk * 64, t->item.row[g], t->head, batch);
            } else {
                uint32_t key_tile = base + i - 1, stage = key_tile % S::STAGES;
                mbarrier_wait(smem_address(&barriers->v_empty[stage]), key_tile / S::STAGES & 1 ^ 1);
                store_claimed(&barriers->v_claimed, key_tile + 1);
                arrive_for_absent<S>(smem_address(&barriers->v_empty[stage]), list, before);
                load_tile<S>(x, &maps.v, smem + S::V_OFFSET + stage * S::TILE_BYTES,
                             smem_address(&barriers->v_full[stage]), before, kv_head, batch);
            }
            before = tile;
        }
        base += key_tiles;
    }
}

// ---- consumer ----

// Iterates over the key tiles that a warpgroup visits. Of a list, each lane has one of 32 tiles.
template <typename S> struct key_tile_iterator {
    int i, loaded; // this tile; the first of the 32
    sat_key_tile tile, mine;
    unsigned visits;

    __device__ __forceinline__ void begin() { i = -1, loaded = -32, visits = 0; }
    // Moves to the next tile; false: there is none.
    __device__ __forceinline__ bool next(const kernel_args &x, const sat_attention_item &item, int warpgroup) {
        if (item.list < 0) {
            if (++i >= item.key_tiles) return false;
            tile = range_tile<S>(item, i);
            return true;
        }
        while (visits == 0) {
            loaded += 32;
            if (loaded >= item.key_tiles) return false;
            mine = listed_tile(x, item.list, item.key_tiles, loaded + threadIdx.x % 32);
            visits = __ballot_sync(~0u, mine.first >> warpgroup & 1); // a bit of sat_warpgroup_mask
        }
        int lane = __ffs(visits) - 1;
        visits &= visits - 1, i = loaded + lane;
        tile.first = __shfl_sync(~0u, mine.first, lane), tile.second = __shfl_sync(~0u, mine.second, lane);
        return true;
    }
};

// The keys that a lane's two rows keep: from `begin` to before `end`.
struct kept_keys {
    int begin[2], end[2];
};

// Scores that are not kept become -inf.
template <typename S>
__device__ __forceinline__ void mask_scores(float (&scores)[S::BN / 2], const kept_keys &r, sat_key_tile tile) {
    int a = sat_first_key(tile) + (int)(threadIdx.x % 4) * 2, b = a - sat_first_key(tile) + tile.second;
#pragma unroll
    for (int e = 0; e < S::BN / 2; e++) {
        int column = e / 4 * 8 + e % 2, key = column < S::BN / 2 ? a + column : b + column - S::BN / 2;
        if (key < r.begin[e / 2 % 2] || key >= r.end[e / 2 % 2]) scores[e] = -INFINITY;
    }
}

// Scores of keys that are in no stored block become -inf. `row`: the warpgroup's first.
template <typename S>
__device__ __forceinline__ void mask_absent_blocks(float (&scores)[S::BN / 2], const kernel_args &x, const work_tile &t,
                                                   int row, sat_key_tile tile) {
    constexpr int HALF = S::BN / 2;
    uint64_t bits[2][2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int i = min(row + (int)threadIdx.x / 32 % 4 * 16 + (int)threadIdx.x % 32 / 4 + r * 8, t.item.row_end - 1);
        const uint64_t *words = x.words + (int64_t)(t.head * x.head_rows + i / x.block_rows) * x.half_tiles;
#pragma unroll
        for (int h = 0; h < 2; h++) { // beyond the last half tile the limits of the row have masked already
            int at = (h ? tile.second : sat_first_key(tile)) / HALF;
            bits[h][r] = at < x.half_tiles ? __ldg(words + at) >> threadIdx.x % 4 * 2 : 0;
        }
    }
#pragma unroll
    for (int e = 0; e < S::BN / 2; e++) {
        int column = e / 4 * 8 + e % 2;
        if (!(bits[column / HALF][e / 2 % 2] >> column % HALF & 1)) scores[e] = -INFINITY;
    }
}

// One step of the online softmax: scores become weights exp2(c*(score - row_max)), and `sum` grows by this lane's part.
// row_max is the maximum so far, or an earlier one as long as the difference stays small. True: O must be multiplied by
// rescale_factor.
template <typename S>
__device__ __forceinline__ bool softmax(float (&scores)[S::BN / 2], float (&row_max)[2], float (&sum)[2],
                                        float (&rescale_factor)[2], float c, float rescale_above) {
    float top[4] = {scores[0], scores[1], scores[2], scores[3]}, part[4] = {0, 0, 0, 0}, minus[2];
#pragma unroll
    for (int e = 4; e < S::BN / 2; e++) top[e % 4] = fmaxf(top[e % 4], scores[e]);
    top[0] = fmaxf(top[0], top[1]), top[1] = fmaxf(top[2], top[3]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2));
    }
    bool rescale = __any_sync(~0u, top[0] > row_max[0] + rescale_above || top[1] > row_max[1] + rescale_above);
    if (rescale) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float grown = fmaxf(row_max[r], top[r]);
            rescale_factor[r] = attention_rescale(row_max[r], grown, c);
            sum[r] *= rescale_factor[r], row_max[r] = grown;
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) minus[r] = row_max[r] == -INFINITY ? 0 : -__fmul_rn(row_max[r], c);
#pragma unroll
    for (int e = 0; e < S::BN / 2; e++) {
        scores[e] = attention_exp2(fmaf(scores[e], c, minus[e / 2 % 2]));
        part[e % 4] += scores[e];
    }
    sum[0] += part[0] + part[1], sum[1] += part[2] + part[3];
    return rescale;
}

template <typename T, typename S>
__device__ __forceinline__ void epilogue(const kernel_args &x, const work_tile &t, float (&o)[S::D / 2],
                                         const float (&row_max)[2], float (&sum)[2], uint32_t q, int warpgroup,
                                         int row);

template <typename T, typename S>
__device__ __forceinline__ void consumer(const kernel_args &x, shared_barriers *barriers, uint32_t smem) {
    int warpgroup = __shfl_sync(~0u, (int)threadIdx.x / 128, 0), lane = threadIdx.x % 32, entry = 0, q_stage = 0;
    uint32_t entry_parity = 0, q_parity = 0, base = 0; // base: key tiles of the work tiles before
    uint32_t k_seen = 0, v_seen = 0;                   // k_claimed and v_claimed, as last seen
    constexpr bool LISTS = 64 % (S::BN / 2) == 0;      // only then sat_items_fit takes lists
    // The first arrive gives warpgroup 0 the first turn.
    if (S::WARPGROUPS > 1 && warpgroup == S::WARPGROUPS - 1) named_barrier_arrive(PINGPONG_BARRIER, 256);
    for (;;) {
        mbarrier_wait(smem_address(&barriers->work_full[entry]), entry_parity);
        work_tile t = read_shared_broadcast(&barriers->work[entry]);
        if (lane == 0) mbarrier_arrive(smem_address(&barriers->work_empty[entry]));
        if (++entry == QUEUE_TILES) entry = 0, entry_parity ^= 1;
        if (t.item.key_tiles < 0) break;
        const sat_attention_item &item = t.item;
        int row = warpgroup == 0   ? item.row[0]
                  : warpgroup == 1 ? item.row[1]
                                   : item.row[2],
            mine = row + (int)threadIdx.x / 32 % 4 * 16 + lane / 4;
        kept_keys keep;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            keep.begin[r] = sat_row_begin(&item, mine + r * 8, x.band);
            keep.end[r] = sat_row_end(&item, mine + r * 8, x.band);
        }
        // A half tile whose first key is in [low, high] needs no mask: every row of the warpgroup keeps all its keys.
        int low = sat_row_begin(&item, row + SAT_WARPGROUP_ROWS - 1, x.band);
        int high = sat_row_end(&item, row, x.band) - S::BN / 2;
        uint32_t q = smem + q_stage * S::Q_BYTES + warpgroup * S::CHUNKS * ATTENTION_CHUNK_BYTES;
        float o[S::D / 2], row_max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, rescale_factor[2];
#pragma unroll
        for (int e = 0; e < S::D / 2; e++) o[e] = 0;
        mbarrier_wait(smem_address(&barriers->q_full[q_stage]), q_parity);
        key_tile_iterator<S> it;
        it.begin();
        auto needs_mask = [&](sat_key_tile tile) {
            int first = sat_first_key(tile);
            return first > high || tile.second > high || first < low || tile.second < low;
        };
        bool pingpong = S::WARPGROUPS > 1 && item.pingpong;
        if (it.next(x, item, warpgroup)) {
            float scores[S::BN / 2];
            uint32_t p[S::BN / 4];
            uint32_t key_tile = base + it.i; // number of the key tile whose weights are in scores and p
            uint32_t pv_key_tile = 0;        // and of the one whose O += P*V is in flight, where pv_pending
            uint32_t stage = key_tile % S::STAGES;
            wait_full<S>(barriers->k_full, &barriers->k_claimed, k_seen, key_tile, item.list >= 0);
            attention_wgmma_abt<T, S>(scores, q, smem + S::K_OFFSET + stage * S::TILE_BYTES);
            wgmma_wait_group<0>();
            wgmma_fence_accumulators(scores);
            if (lane == 0) mbarrier_arrive(smem_address(&barriers->k_empty[stage]));
            if (needs_mask(it.tile)) mask_scores<S>(scores, keep, it.tile);
            if constexpr (LISTS)
                if (x.words) mask_absent_blocks<S>(scores, x, t, row, it.tile);
            bool rescale = false, pv_pending = false; // O is still zero, so the first rescale is ignored
            softmax<S>(scores, row_max, sum, rescale_factor, x.scale_log2, x.rescale_above);
            for (;;) {
                // it.next() comes first on purpose: ptxas does not move the previous iteration's softmax across its
                // branches, so the softmax stays before wgmma_wait_group, where it overlaps O += P*V.
                bool more = it.next(x, item, warpgroup);
                uint32_t next_key_tile = base + it.i, ks = next_key_tile % S::STAGES, vs = key_tile % S::STAGES;
                wgmma_wait_group<0>();
                wgmma_fence_accumulators(o);
                if (pv_pending && lane == 0) mbarrier_arrive(smem_address(&barriers->v_empty[pv_key_tile % S::STAGES]));
                if (rescale) {
#pragma unroll
                    for (int e = 0; e < S::D / 2; e++) o[e] *= rescale_factor[e / 2 % 2];
                }
                attention_pack_operand<T, S>(p, scores);
                if (!more) break;
                wait_full<S>(barriers->k_full, &barriers->k_claimed, k_seen, next_key_tile, item.list >= 0);
                if (pingpong) named_barrier_sync(PINGPONG_BARRIER + warpgroup, 256);
                attention_wgmma_abt<T, S>(scores, q, smem + S::K_OFFSET + ks * S::TILE_BYTES);
                wait_full<S>(barriers->v_full, &barriers->v_claimed, v_seen, key_tile, item.list >= 0);
                attention_wgmma_pb<T, S>(o, p, smem + S::V_OFFSET + vs * S::TILE_BYTES);
                if (pingpong) named_barrier_arrive(PINGPONG_BARRIER + (warpgroup + 1) % S::WARPGROUPS, 256);
                wgmma_wait_group<1>();
                wgmma_fence_accumulators(scores);
                if (lane == 0) mbarrier_arrive(smem_address(&barriers->k_empty[ks]));
                if (needs_mask(it.tile)) mask_scores<S>(scores, keep, it.tile);
                if constexpr (LISTS)
                    if (x.words) mask_absent_blocks<S>(scores, x, t, row, it.tile);
                rescale = softmax<S>(scores, row_max, sum, rescale_factor, x.scale_log2, x.rescale_above);
                pv_pending = true;
                wgmma_fence_accumulators(scores);
                pv_key_tile = key_tile, key_tile = next_key_tile;
            }
            uint32_t vs = key_tile % S::STAGES;
            wait_full<S>(barriers->v_full, &barriers->v_claimed, v_seen, key_tile, item.list >= 0);
            attention_wgmma_pb<T, S>(o, p, smem + S::V_OFFSET + vs * S::TILE_BYTES);
            wgmma_wait_group<0>();
            wgmma_fence_accumulators(o);
            if (lane == 0) mbarrier_arrive(smem_address(&barriers->v_empty[vs]));
        }
        base += item.key_tiles;
        epilogue<T, S>(x, t, o, row_max, sum, q, warpgroup, row);
        if (lane == 0) mbarrier_arrive(smem_address(&barriers->q_empty[q_stage]));
        if (++q_stage == S::Q_STAGES) q_stage = 0, q_parity ^= 1;
    }
}

// ---- epilogue ----

// LSE and O = o/sum of the warpgroup's rows from `row` on. A warp stages its 16 rows of O over its rows of Q, and
// stores them 16 bytes a lane.
template <typename T, typename S>
__device__ __forceinline__ void epilogue(const kernel_args &x, const work_tile &t, float (&o)[S::D / 2],
                                         const float (&row_max)[2], float (&sum)[2], uint32_t q, int warpgroup,
                                         int row) {
    typedef typename T::element E;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    row += warp * 16;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
        sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
        int i = row + lane / 4 + r * 8;
        if (x.lse && lane % 4 == 0 && i < t.item.row_end)
            x.lse[((int64_t)t.batch * x.heads + t.head) * x.m + i] =
                sum[r] > 0 ? (__fmul_rn(row_max[r], x.scale_log2) + log2f(sum[r])) * 0.69314718056f : -INFINITY;
        sum[r] = sum[r] > 0 ? 1 / sum[r] : sum[r] == 0 ? 0 : sum[r]; // NaN stays
    }
#pragma unroll
    for (int e = 0; e < S::D / 2; e++) o[e] *= sum[e / 2 % 2];
    named_barrier_sync(WARPGROUP_BARRIER + warpgroup, 128); // the warpgroup's products have read Q
    uint32_t staging = q + warp * 2048;
#pragma unroll
    for (int j = 0; j < S::D / 16; j++) {
        uint32_t p[4];
#pragma unroll
        for (int e = 0; e < 4; e++) p[e] = pack_2(E(), o[j * 8 + 2 * e], o[j * 8 + 2 * e + 1]);
        stmatrix_x4(staging + j / 4 * ATTENTION_CHUNK_BYTES + swizzled_offset(lane % 16, j % 4 * 2 + lane / 16), p[0],
                    p[1], p[2], p[3]);
    }
    __syncwarp();
    E *to = (E *)x.o + t.batch * x.o_batch_stride + t.head * x.o_head_stride + lane % 8 * 8;
#pragma unroll
    for (int j = 0; j < S::CHUNKS * 4; j++) {
        int i = j % 4 * 4 + lane / 8, column = j / 4 * 64;
        uint4 v = ld_shared_v4(staging + j / 4 * ATTENTION_CHUNK_BYTES + swizzled_offset(i, lane % 8));
        if (row + i < t.item.row_end && column + lane % 8 * 8 < x.dim)
            __stcg((uint4 *)(to + (row + i) * x.o_row_stride + column), v);
    }
    fence_proxy_async(); // before TMA writes the next Q there
    __syncwarp();
}

// ---- kernel ----

template <typename T, typename S>
static __global__ void __launch_bounds__(S::THREADS, 1)
    attention_forward(const __grid_constant__ kernel_args x, const __grid_constant__ tensor_maps maps) {
    extern __shared__ __align__(1024) char memory[];
    shared_barriers *barriers = (shared_barriers *)(memory + S::BARRIER_OFFSET);
    griddepcontrol_launch_dependents();
    if (threadIdx.x == 0) init_barriers<S>(barriers);
    if (threadIdx.x == S::CONSUMERS)
        prefetch_tensormap(&maps.q), prefetch_tensormap(&maps.k), prefetch_tensormap(&maps.v);
    __syncthreads();
    griddepcontrol_wait();
    if (threadIdx.x >= S::CONSUMERS) {
        if constexpr (S::WARPGROUPS > 1) setmaxnreg_dec<S::PRODUCER_REGISTERS>();
        if (threadIdx.x == S::CONSUMERS) producer<S>(x, maps, barriers, smem_address(memory));
        __syncwarp();
    } else {
        if constexpr (S::WARPGROUPS > 1) setmaxnreg_inc<S::CONSUMER_REGISTERS>();
        consumer<T, S>(x, barriers, smem_address(memory));
    }
    sat_tile_counter_end(x.counter, x.work_tiles);
}

// ---- instances ----

struct instance {
    int max_dim, above_dim; // head sizes up to the one, and above the other
    int tile_keys, warpgroups;
    double speed; // of a full device, as a part of the rate of its tensor cores
    sat_status (*start)(const sat_launch *l, const kernel_args &x, const tensor_maps &maps);
};

static int64_t tile_rows(const instance *inst) { return (int64_t)inst->warpgroups * SAT_WARPGROUP_ROWS; }

template <typename T, typename S>
static sat_status start(const sat_launch *l, const kernel_args &x, const tensor_maps &maps) {
    unsigned grid = (unsigned)sat_min(x.work_tiles, l->device->multiprocessors);
    return sat_start<attention_forward<T, S>>(l, grid, S::THREADS, S::BYTES, x, maps);
}

template <typename T, typename S> static constexpr instance instance_of(double speed) {
    constexpr int above_dim = S::D == 64 ? 0 : S::D == 256 ? 128 : 64;
    return {S::D, above_dim, S::BN, S::WARPGROUPS, speed, start<T, S>};
}

// Of instances with the same tile, the one for the smaller heads comes first. Speeds on an H200.
template <typename T>
static constexpr instance instances[] = {
    instance_of<T, tile_shape<64, 128, 2, 2, 2>>(0.52),  instance_of<T, tile_shape<96, 128, 2, 2, 2>>(0.68),
    instance_of<T, tile_shape<128, 128, 2, 2, 2>>(0.81), instance_of<T, tile_shape<64, 128, 3, 2, 2>>(0.63),
    instance_of<T, tile_shape<128, 80, 3, 2, 2>>(0.83),  instance_of<T, tile_shape<64, 128, 1, 4, 1>>(0.34),
    instance_of<T, tile_shape<128, 128, 1, 3, 1>>(0.5),  instance_of<T, tile_shape<256, 64, 2, 2, 1>>(0.93),
};

static const instance *instance_for(const sat_variant *v, const sat_problem *p) {
    if (v->instance.dtype != SAT_F16 && v->instance.dtype != SAT_BF16) return NULL;
    const sat_instance *i = &v->instance;
    for (const instance &inst : i->dtype == SAT_F16 ? instances<sat_f16> : instances<sat_bf16>)
        if (tile_rows(&inst) == i->tile_m && inst.tile_keys == i->tile_n && p->attention.dim <= inst.max_dim &&
            p->attention.dim > inst.above_dim)
            return &inst;
    return NULL;
}

// ---- supports, estimate ----

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    if (!sat_attention_is_plain(p)) return false;
    const sat_attention *t = &p->attention;
    const instance *inst = instance_for(v, p);
    if (d->capability != 90 || !inst || p->a_dtype != v->instance.dtype || p->a_align % 16 || p->c_align % 16)
        return false;
    if (p->m <= 0 || p->n <= 0 || p->batch <= 0) return false;
    if (p->m >= SAT_ATTENTION_MAX_LENGTH || p->n >= SAT_ATTENTION_MAX_LENGTH) return false;
    if (!(p->alpha > 1e-30 && p->alpha < 1e30)) return false; // masked scores are -inf before they are scaled
    if (!attention_map_fits(p, t->q, t->heads, p->m) || !attention_map_fits(p, t->o, t->heads, p->m) ||
        !attention_map_fits(p, t->k, t->kv_heads, p->n) || !attention_map_fits(p, t->v, t->kv_heads, p->n))
        return false;
    return sat_items_fit(p, a, inst->warpgroups, inst->tile_keys / 2);
}

// The time of a work tile's key tiles on one multiprocessor, times the work tiles that each has.
static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const instance *inst = instance_for(v, p);
    sat_mask mask = sat_mask_of(p, a);
    double heads = (double)(p->batch * p->attention.heads), rows = (double)tile_rows(inst), keys = inst->tile_keys;
    double work_tiles = ((double)((p->m + tile_rows(inst) - 1) / tile_rows(inst)) + (double)mask.sequences / 2) * heads;
    double kept = sat_pairs(p, a) / fmax(1, heads * (double)p->m), most = ceil((double)p->n / keys), key_tiles, longest;
    bool uneven = mask.causal || mask.sequences || !mask.full;
    if (mask.full) key_tiles = fmin(most, kept / keys + (mask.causal || mask.window ? rows / keys / 2 + 0.5 : 0.5));
    else if (sat_needs_words(&mask, inst->tile_keys / 2)) { // a half tile is visited if one of its blocks is stored
        double blocks = fmax(1, 64.0 / (double)mask.block_rows) * fmax(1, keys / 2 / (double)mask.block_cols);
        key_tiles = most * (1 - pow(1 - fmin(1, kept / (double)p->n), blocks)) * 1.1;
    } else key_tiles = kept / keys * (inst->warpgroups > 1 && mask.block_rows < tile_rows(inst) ? 1.6 : 1.1);
    longest = fmin(most, uneven ? 2 * key_tiles : key_tiles);
    double key_tile_time =
        4 * inst->max_dim * rows * keys / (inst->speed * d->flop_rate[p->a_dtype] / d->multiprocessors);
    double waves = work_tiles / d->multiprocessors, key_tiles_per_sm = waves * key_tiles;
    if (!uneven && waves < 8) key_tiles_per_sm = ceil(waves) * key_tiles;
    return fmax(fmax(key_tiles_per_sm, longest) * key_tile_time, sat_attention_bytes(p, a) / d->memory_rate) + 4e-6;
}

// ---- workspace, prepare: the counter, then the work items and the lists ----

struct state {
    sat_device_items work;
    unsigned *counter;
    tensor_maps maps;
    const void *mapped[3]; // the operands that the maps were encoded for
};

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)d;
    const instance *inst = instance_for(v, p);
    return SAT_COUNTER_BYTES + sat_items_bytes(p, a, inst->warpgroups, inst->tile_keys / 2);
}

static sat_status make_state(const sat_prepare *q, void *out) {
    state *st = (state *)out;
    const instance *inst = instance_for(q->variant, q->problem);
    sat_status status = sat_tile_counter_init(q, SAT_COUNTER_BYTES, &st->counter); // at the workspace's start
    if (status != SAT_OK) return status;
    return sat_items_upload(q, inst->warpgroups, inst->tile_keys / 2, (char *)q->workspace + SAT_COUNTER_BYTES,
                            &st->work);
}

static sat_status prepare(const sat_prepare *q, void **out) {
    return tensormap_prepare(q, sizeof(state), make_state, out);
}

// ---- launch ----

static sat_status encode_maps(const sat_launch *l, int key_box, state *st) {
    const sat_problem *p = l->problem;
    const sat_attention *t = &p->attention;
    void *const *o = l->operands;
    if (tensormaps_reuse(st->mapped, 3, o)) return SAT_OK;
    if (!attention_encode_map(p, o[0], t->q, t->heads, p->m, SAT_WARPGROUP_ROWS, &st->maps.q) ||
        !attention_encode_map(p, o[1], t->k, t->kv_heads, p->n, key_box, &st->maps.k) ||
        !attention_encode_map(p, o[2], t->v, t->kv_heads, p->n, key_box, &st->maps.v))
        return tensormaps_failed(l, st->mapped);
    return SAT_OK;
}

// Heads that are computed together. Where items differ in length: all whose keys fit into L2, so that the longest items
// of many heads come first, in rounds of about the same size. Otherwise only the query heads of one key head.
static int heads_in_flight(const sat_problem *p, const sat_device *d, bool uneven) {
    const sat_attention *t = &p->attention;
    int64_t per_kv = t->heads / t->kv_heads, all = p->batch * t->heads;
    if (!uneven) return (int)per_kv;
    double fit = 0.8 * (double)d->l2_bytes / (4.0 * (double)p->n * (double)t->dim);
    int64_t most = sat_max(1, (int64_t)fmin(fit, 1 << 20)) * per_kv, rounds = (all + most - 1) / most;
    return (int)(((all + rounds - 1) / rounds + per_kv - 1) / per_kv * per_kv);
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const sat_attention *t = &p->attention;
    const instance *inst = instance_for(l->variant, p);
    state *st = (state *)l->state;
    sat_mask mask = sat_mask_of(p, l->pattern);
    kernel_args x = {};
    x.counter = st->counter;
    x.item = st->work.item, x.listed_tiles = st->work.listed_tiles, x.items = st->work.items;
    x.all_heads = (int)(p->batch * t->heads), x.work_tiles = (unsigned)(x.items * x.all_heads);
    x.heads_in_flight = heads_in_flight(p, l->device, mask.causal || mask.sequences || !mask.full);
    x.words = st->work.words, x.block_rows = (int)mask.block_rows;
    x.head_rows = (int)mask.head_rows, x.half_tiles = (int)((p->n + inst->tile_keys / 2 - 1) / (inst->tile_keys / 2));
    x.two_boxes_per_tile = !mask.full, x.mask_per_head = x.two_boxes_per_tile && mask.head_rows;
    x.heads = (int)t->heads, x.heads_per_kv = (int)(t->heads / t->kv_heads);
    x.m = (int)p->m, x.n = (int)p->n, x.dim = (int)t->dim, x.band = sat_band_of(&mask);
    x.scale_log2 = (float)(p->alpha * 1.4426950408889634), x.rescale_above = 8 / x.scale_log2;
    x.o = l->operands[3], x.lse = t->lse ? (float *)l->operands[4] : NULL;
    x.o_batch_stride = t->o.batch_stride, x.o_head_stride = t->o.head_stride, x.o_row_stride = t->o.row_stride;
    sat_status status = encode_maps(l, x.two_boxes_per_tile ? inst->tile_keys / 2 : inst->tile_keys, st);
    return status == SAT_OK ? inst->start(l, x, st->maps) : status;
}

SAT_FAMILY(cuda_attention_wgmma) = {
    .revision = "1",
    .op = SAT_ATTENTION,
    .backend = SAT_CUDA,
    .flags = SAT_V_BATCHED,
    .about = "Hopper: wgmma overlapped with the softmax, tiles by TMA, lists of stored blocks",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_state,
};
