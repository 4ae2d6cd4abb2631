// cuda_matmul_wgmma: C = op(A)*B with TMA loads and wgmma (sm_90a). f16 and bf16.
//
// A tile is BM rows of a block row by BN columns of C. Its K loop runs over the stored blocks of the row, BK at a time.
// Producer warps load A and B into a ring of stages; one or two consumer warpgroups multiply and store.
//
// Large tiles have two consumer warpgroups and a persistent CTA on each multiprocessor, which takes tiles from the
// scheduler. Small tiles, for few columns, have one warpgroup and a CTA a tile: what counts there is the latency from
// launch to store. Blocks with fewer rows than a tile are multiplied as if they had as many, 64 or 128; the other rows
// are not stored. Such blocks are bound by reads of B from L2, not by tensor cores.

#include "kernels/cuda/common/scheduler.h"
#include "kernels/cuda/common/ptx_sm90.cuh"
#include "kernels/cuda/common/ring.cuh"
#include "kernels/cuda/common/warpgroup_epilogue.cuh"

/* ---- parameters ---- */

struct tensor_maps {
    CUtensorMap a, b, c;
};

struct params {
    sat_rows rows; // the stored blocks of op(A)
    sat_tile_epilogue epilogue;
    sat_tile_scheduler scheduler;
    float *partials;     // of split rows
    int a_rows;          // rows per TMA box of A: BM, or a block's where those are fewer
    bool a_two_stages;   // BK 32: a box of A has 64 columns, for two stages; lines of 128 bytes load faster
    bool tma_output;     // C is stored by TMA; then beta is 0
    bool identity;       // alpha 1, no bias, no activation
    bool b_whole_chunks; // row-major B, n a multiple of 64: one TMA box covers the stage
};

/* What `prepare` makes, and the tensor maps of the last launch. */
struct state {
    sat_device_schedule work;
    unsigned *counter;
    tensor_maps maps;
    const void *made_for[3]; // the pointers that the maps were encoded for
    bool tma_output;
};

/* ---- shared memory ---- */

/* A tile, as the producer publishes it to the consumers and to the warp that loads A. */
struct tile {
    int row, slice, panel;
    int steps;       // stages of BK along K; -1: there are no more tiles
    int partial;     // which partial sum it writes; -1: it writes C
    int unused;      // padding, never read; without it ptxas gives other code, and this is the code that was measured
    int first_block; // position of the work item's first block
};

/* The tile's shape and the map of shared memory: [A of all stages][B of all stages][staging for C][barriers, queue].
 *
 * A stage has A, BM x BK, and B, BK x BN. Where BK is 32, a copy of A may have 64 columns and serve a pair of stages.
 * Then A has slots of its own, one a pair. STAGES stages in flight touch at most STAGES/2 + 1 pairs, hence that many A
 * slots. Waiting for the pair's first stage to be empty is enough: stages are released in order, and the last stage of
 * the pair that had the slot before comes at least STAGES + 1 stages earlier.
 *
 * The store paths packed16 and generic (epilogue.cuh) go through the staging area. It is memory of its own, except
 * where
 * - a CTA has one tile only: then it is A's memory;
 * - warpgroups split the columns of B (BM is 64), and a warpgroup's half of B in a stage has the right size: then it is
 *   that half of the tile's last stage. This saves the memory of another stage. */
template <int BM_, int BN_, int BK_, int STAGES_, int WARPGROUPS_> struct shape {
    static constexpr int BM = BM_, BN = BN_, BK = BK_, STAGES = STAGES_, WARPGROUPS = WARPGROUPS_;
    static constexpr int LINE = BN < 64 ? BN * 2 : 128;         // bytes of a line of B in shared memory, B row-major
    static constexpr int WN = BM == 128 ? BN : BN / WARPGROUPS; // columns of a warpgroup; 128 rows are split by rows
    static constexpr bool ONE_TILE = WARPGROUPS == 1;           // a CTA has one tile
    static constexpr int A_BYTES = BM * BK * 2, B_BYTES = BK * BN * 2; // of a stage

    static constexpr bool A_PAIRED = BK == 32; // a copy of A may serve a pair of stages
    static constexpr int A_SLOTS = A_PAIRED ? STAGES / 2 + 1 : STAGES;
    static constexpr int A_SLOT_BYTES = A_PAIRED ? BM * 128 : A_BYTES;

    static constexpr bool STAGING_IN_B = WARPGROUPS == 2 && BM == 64 && B_BYTES == WARPGROUPS * SAT_STAGING;
    static constexpr int STAGING_BYTES = ONE_TILE || STAGING_IN_B ? 0 : WARPGROUPS * SAT_STAGING;

    static constexpr int B_OFFSET = A_SLOTS * A_SLOT_BYTES;
    static constexpr int STAGING_OFFSET = ONE_TILE ? 0 : B_OFFSET + STAGES * B_BYTES;
    static constexpr int RING_OFFSET = B_OFFSET + STAGES * B_BYTES + STAGING_BYTES;
    static constexpr int BYTES = RING_OFFSET + (int)sizeof(sat_ring_shared<tile>);

    static constexpr int CONSUMERS = WARPGROUPS * 128, THREADS = CONSUMERS + (ONE_TILE ? 32 : 128);
    static_assert(BK == 64 || BK == 32 || BK == 16, "lines of BK elements must have a swizzle mode");
    static_assert(BYTES <= 227 * 1024, "more shared memory than a CTA may have");
    static_assert(STAGES <= SAT_MAX_STAGES, "more stages than the ring has barriers");
    static_assert(!ONE_TILE || 2 * (BYTES + 1024) <= 228 * 1024, "two CTAs of a multiprocessor must fit");
};

/* setmaxnreg: with both, 128 * 72 + 256 * 216 = 64512 registers of the 65536 that a multiprocessor has. */
static constexpr int PRODUCER_REGISTERS = 72, CONSUMER_REGISTERS = 216;

/* ---- barriers ---- */

typedef sat_ring_shared<tile> ring_shared;

/* A warp's pipeline state: the next stage, the next slot of A where those differ, and the phase to wait for. */
template <typename S> struct pipeline_state {
    int stage = 0, a_slot = 0;
    uint32_t phase;

    __device__ __forceinline__ void advance(bool next_a_slot) {
        if (++stage == S::STAGES) stage = 0, phase ^= 1;
        if (next_a_slot && ++a_slot == S::A_SLOTS) a_slot = 0;
    }
    /* Offsets of the stage's operands in shared memory. */
    __device__ __forceinline__ uint32_t a(bool two_stages) const {
        return two_stages ? a_slot * S::A_SLOT_BYTES : stage * S::A_BYTES;
    }
    __device__ __forceinline__ uint32_t b() const { return S::B_OFFSET + stage * S::B_BYTES; }
};

/* Whether A is in slots of its own. Most instances know at compile time that it is not, and pay nothing for it. */
template <typename S, bool A_TRANSPOSED> __device__ __forceinline__ bool a_copy_fills_two_stages(bool a_two_stages) {
    return S::A_PAIRED && !A_TRANSPOSED && a_two_stages;
}

/* ---- producers ---- */

/* Whether a warp of its own loads A. One warp that issues the copies of both operands is too slow for large tiles.
 * Transposed A stays with the first warp: its blocks are not consecutive in storage, and that warp looks up where they
 * are. */
template <typename S, bool A_TRANSPOSED> constexpr bool separate_a_producer = S::WARPGROUPS == 2 && !A_TRANSPOSED;

/* By one lane: a stage of A. Loads the rows from `row` on and the columns from `in_block` on of the block that begins
 * at line `line` of A's tensor map. A_TRANSPOSED: blocks are stored transposed, so a line of the map is a column of
 * op(A). */
template <typename S, bool A_TRANSPOSED>
__device__ __forceinline__ void load_a(const tensor_maps &m, uint32_t to, uint32_t bar, int line, int in_block,
                                       int row) {
    if (!A_TRANSPOSED) tma_load(to, &m.a, bar, in_block, line + row);
    else
        for (int i = 0; i < S::BM; i += 64) tma_load(to + i * S::BK * 2, &m.a, bar, row + i, line + in_block);
}

/* Takes tiles from the scheduler, publishes them, and loads B, and A where that has no warp of its own. */
template <typename S, bool A_TRANSPOSED, bool B_COL_MAJOR>
__device__ static void producer(const params &x, const tensor_maps &m, sat_prefetched_tile &next, ring_shared *s,
                                uint32_t smem) {
    int bc = (int)x.rows.bc, lines = (int)(A_TRANSPOSED ? x.rows.bc : x.rows.br); // lines of a block in A's tensor map
    bool two_stages = a_copy_fills_two_stages<S, A_TRANSPOSED>(x.a_two_stages);
    int a_bytes = (A_TRANSPOSED ? S::BM : x.a_rows) * (two_stages ? 64 : S::BK) * 2;
    uint32_t full = keep_in_register(smem_address(s->full)), empty = full + sizeof s->full;
    bool one = elect_one();
    pipeline_state<S> pipe = {.phase = 1};
    sat_tile_queue<tile> queue = {.phase = 1};
    for (;;) {
        while (!next.ready) next.poll(x.scheduler, x.rows);
        sat_fetched_tile now = next.tile;
        sat_lane_blocks blocks = next.blocks;
        const sat_work_item &item = now.item;
        bool last = now.none(x.scheduler);
        int steps = last ? -1 : item.count * (bc / S::BK), n0 = (int)now.coord.panel * S::BN,
            slice = (int)now.coord.slice;
        if (one) queue.publish(s, {item.row, slice, (int)now.coord.panel, steps, item.partial, 0, (int)item.first});
        queue.advance();
        if (last) return;
        next.tile.request_next(), next.ready = false;
        if (S::STAGING_IN_B && steps == 0) { // an empty row: its zeros need a stage's B as their staging area
            if (one) {
                mbarrier_wait(empty + pipe.stage * 8, pipe.phase);
                mbarrier_arrive(full + pipe.stage * 8);
            }
            pipe.advance(false);
        }
        for (int step = 0, block = 0, in_block = 0, line = 0, k = 0; step < steps; step++) {
            if (in_block == 0) { // the item's next block begins
                if (block % 32 == 0 && block > 0) blocks.load_32(x.rows, item, block);
                k = __shfl_sync(~0u, blocks.k, block % 32);
                if (!separate_a_producer<S, A_TRANSPOSED>)
                    line = __shfl_sync(~0u, blocks.block_index, block % 32) * lines;
            }
            bool second_half = S::A_PAIRED && in_block % 64; // of a pair of stages: its A came with the first half
            if (one) {
                uint32_t bar = full + pipe.stage * 8;
                bool a_loaded = two_stages && second_half;
                mbarrier_wait(empty + pipe.stage * 8, pipe.phase);
                mbarrier_arrive_expect_tx(bar, S::B_BYTES + (a_loaded ? 0 : a_bytes));
                sat_load_b<S::BK, S::BN, B_COL_MAJOR>(&m.b, x.b_whole_chunks, smem + pipe.b(), bar, k + in_block, n0);
                if (!separate_a_producer<S, A_TRANSPOSED> && !a_loaded)
                    load_a<S, A_TRANSPOSED>(m, smem + pipe.a(two_stages), bar, line, in_block, slice * S::BM);
            }
            pipe.advance(!S::A_PAIRED || second_half);
            in_block += S::BK;
            if (in_block < bc) continue;
            in_block = 0, block++;
            next.poll(x.scheduler, x.rows);
        }
    }
}

/* Loads A: the blocks of a work item are stored one after the other. The other producer announces the bytes.
 * Bytes may complete before expect_tx; the phase still needs the other producer's arrive.
 *
 * It may skip a wait for `empty`, of the second half of a pair or for an empty row, and never takes an older phase for
 * its own: stages are released in order, and a tile is published after the other producer has waited for all stages of
 * the tile before. */
template <typename S>
__device__ static void producer_of_a(const params &x, const tensor_maps &m, ring_shared *s, uint32_t smem) {
    int bc = (int)x.rows.bc, br = (int)x.rows.br;
    bool two_stages = a_copy_fills_two_stages<S, false>(x.a_two_stages);
    uint32_t full = keep_in_register(smem_address(s->full)), empty = full + sizeof s->full;
    bool one = elect_one();
    pipeline_state<S> pipe = {.phase = 1};
    sat_tile_queue<tile> queue = {.phase = 0};
    for (;;) {
        tile t = queue.receive(s);
        queue.advance();
        if (t.steps < 0) return;
        if (S::STAGING_IN_B && t.steps == 0) pipe.advance(false);
        int line = t.first_block * br + t.slice * S::BM;
        for (int step = 0, in_block = 0; step < t.steps; step++) {
            // `in_block % 64` is the producer's second_half. A name for it gives other code than was measured.
            if (one && !(two_stages && in_block % 64)) {
                mbarrier_wait(empty + pipe.stage * 8, pipe.phase);
                tma_load(smem + pipe.a(two_stages), &m.a, full + pipe.stage * 8, in_block, line);
            }
            pipe.advance(!S::A_PAIRED || in_block % 64);
            in_block += S::BK;
            if (in_block == bc) in_block = 0, line += br;
        }
    }
}

/* ---- consumer ---- */

/* Issues the wgmma of one stage: d = A*B, or d += A*B with `scale_d`. A transposed is MN-major (M is contiguous), B
 * column-major is K-major. Strides in the descriptors, in bytes: 1024 is 8 lines of 128 bytes, 2048 is 16 lines,
 * `chunk` is one chunk of B. */
template <typename T, typename S, bool A_TRANSPOSED, bool B_COL_MAJOR>
__device__ __forceinline__ void multiply_stage(float (&d)[S::WN / 2], uint32_t a, uint32_t b, bool two_stages, int wg,
                                               int scale_d) {
    constexpr int BK = S::BK, k_swizzle = swizzle_mode_of(BK * 2), k_stride = BK * 2 * 8; // K contiguous
    constexpr int n_swizzle = swizzle_mode_of(S::LINE), chunk = BK * S::LINE;             // N contiguous
    if (S::BM == 128) a += wg * 64 * BK * 2;
    else b += B_COL_MAJOR ? wg * S::WN * BK * 2 : wg * (S::WN * 2 / S::LINE) * chunk;
    wgmma_fence();
    // The leading offset is from one chunk of M or N to the next; where K is contiguous it is not used.
#pragma unroll
    for (int k = 0; k < BK / 16; k++) {
        uint64_t da = A_TRANSPOSED ? wgmma_descriptor(a + k * 2048, swizzle_mode_of(128), BK * 128, 1024)
                      : two_stages ? wgmma_descriptor(a + k * 32, swizzle_mode_of(128), 16, 1024)
                                   : wgmma_descriptor(a + k * 32, k_swizzle, 16, k_stride);
        uint64_t db = B_COL_MAJOR ? wgmma_descriptor(b + k * 32, k_swizzle, 16, k_stride)
                                  : wgmma_descriptor(b + k * 16 * S::LINE, n_swizzle, chunk, 8 * S::LINE);
        wgmma_ss<T, S::WN, A_TRANSPOSED, !B_COL_MAJOR>::run(d, da, db, scale_d || k);
    }
    wgmma_commit_group();
}

template <typename T, typename S>
__device__ __forceinline__ void epilogue(const params &x, const tensor_maps &m, const tile &t, float (&d)[S::WN / 2],
                                         uint32_t staging, int wg);

/* Main loop of a warpgroup. The wgmma of a stage runs while the next stage is waited for. So a stage is released one
 * step late, after the next one's wgmma has been issued; or at once where the next stage is not there yet. */
template <typename T, typename S, bool A_TRANSPOSED, bool B_COL_MAJOR>
__device__ __forceinline__ void consumer(const params &x, const tensor_maps &m, ring_shared *s, uint32_t smem) {
    int wg = threadIdx.x / 128, lane = threadIdx.x % 32;
    bool two_stages = a_copy_fills_two_stages<S, A_TRANSPOSED>(x.a_two_stages);
    pipeline_state<S> pipe = {.phase = 0};
    sat_tile_queue<tile> queue = {.phase = 0};
    int mma_stage = -1;              // the stage of the last wgmma, which this warp has not released yet; -1: none
    int epilogue_stage = -1;         // the stage that C is staged in, likewise
    auto release = [&](int &stage) { // and forget it
        if (stage >= 0 && lane == 0) mbarrier_arrive(smem_address(&s->empty[stage]));
        stage = -1;
    };
    auto release_epilogue_stage = [&] {
        if (S::STAGING_IN_B && epilogue_stage >= 0 && lane == 0) tma_store_wait_read<0>();
        if (S::STAGING_IN_B) release(epilogue_stage);
    };
    tile t = queue.receive(s);
    while (t.steps >= 0) {
        int scale_d = 0; // the first wgmma of a tile ignores what is in d
        float d[S::WN / 2];
        if (t.steps == 0)
#pragma unroll
            for (int e = 0; e < S::WN / 2; e++) d[e] = 0;
        for (int step = 0; step < t.steps; step++) {
            bool second_half = S::A_PAIRED && step % 2; // where two_stages, blocks have an even number of steps
            uint32_t bar = smem_address(&s->full[pipe.stage]);
            if (!S::ONE_TILE && mma_stage >= 0 && !mbarrier_test_wait(bar, pipe.phase)) {
                wgmma_wait_group<0>(); // the producer is behind: give it the stage now
                release(mma_stage);
            }
            mbarrier_wait(bar, pipe.phase);
            multiply_stage<T, S, A_TRANSPOSED, B_COL_MAJOR>(
                d, smem + pipe.a(two_stages) + (two_stages && second_half ? 64 : 0), smem + pipe.b(), two_stages, wg,
                scale_d);
            scale_d = 1;
            release_epilogue_stage();
            wgmma_wait_group<1>();
            release(mma_stage);
            mma_stage = pipe.stage;
            pipe.advance(!S::A_PAIRED || second_half);
        }
        queue.advance();
        tile next = queue.receive(s);
        wgmma_wait_group<0>();
        uint32_t staging = smem + S::STAGING_OFFSET + wg * SAT_STAGING;
        if (S::STAGING_IN_B) {
            if (t.steps == 0) { // the stage that the producer set aside
                release_epilogue_stage();
                mbarrier_wait(smem_address(&s->full[pipe.stage]), pipe.phase);
                mma_stage = pipe.stage;
                pipe.advance(false);
            }
            staging = smem + S::B_OFFSET + mma_stage * S::B_BYTES + wg * SAT_STAGING;
            epilogue_stage = mma_stage, mma_stage = -1;
        }
        release(mma_stage);
        if (S::ONE_TILE || S::STAGING_IN_B) named_barrier_sync(1 + wg, 128); // all have read what C is staged over
        epilogue<T, S>(x, m, t, d, staging, wg);
        t = next;
    }
    tma_store_wait_all();
}

/* ---- epilogue ---- */

/* A warpgroup's sums to C, or to the partial sum of a split row. `wg`: the warpgroup. */
template <typename T, typename S>
__device__ __forceinline__ void epilogue(const params &x, const tensor_maps &m, const tile &t, float (&d)[S::WN / 2],
                                         uint32_t staging, int wg) {
    typedef typename T::element E;
    int in_row = t.slice * S::BM + (S::BM == 128 ? wg * 64 : 0), rows = (int)x.rows.br - in_row;
    int n0 = t.panel * S::BN + (S::BM == 128 ? 0 : wg * S::WN), n = (int)x.epilogue.out.n;
    if (rows <= 0 || n0 >= n) return;
    if constexpr (S::WARPGROUPS == 2)
        if (x.tma_output && t.partial < 0) {
            int i0 = t.row * (int)x.rows.br + in_row, down = threadIdx.x / 32 % 4 * 16;
            if (!x.identity) sat_warpgroup_apply_alpha_bias_relu(x.epilogue.out, d, i0 + down + threadIdx.x % 32 / 4);
            if (x.epilogue.column_major || down < rows)
                sat_warpgroup_tma_store<E, S::WN>(&m.c, d, staging, i0, n0, n, x.epilogue.column_major, wg);
            return;
        }
    sat_tile_epilogue to = x.epilogue;
    int64_t i0 = t.row * x.rows.br + in_row;
    // TMA may still read the staging area, other warps' parts of it too: the two ways to store divide it differently
    // (SAT_STAGING).
    if (x.tma_output) tma_store_wait_read<0>(), named_barrier_sync(1 + wg, 128);
    if (t.partial >= 0) to = sat_partial_epilogue<float>(x.partials + t.partial * x.rows.br * n, n), i0 = in_row;
    sat_warpgroup_store<E, S::WN>(to, d, staging, i0, n0, rows, wg);
}

/* ---- kernel ---- */

template <typename T, typename S, bool A_TRANSPOSED, bool B_COL_MAJOR>
static __global__ void __launch_bounds__(S::THREADS, S::ONE_TILE ? 2 : 1)
    matmul_wgmma(const __grid_constant__ params x, const __grid_constant__ tensor_maps m) {
    extern __shared__ __align__(1024) char memory[];
    ring_shared *s = (ring_shared *)(memory + S::RING_OFFSET);
    sat_prefetched_tile next = {};
    griddepcontrol_launch_dependents();
    if (!A_TRANSPOSED && x.a_rows < S::BM) sat_clear_shared<S::B_OFFSET, S::THREADS>(memory);
    if (threadIdx.x < 32) sat_ring_init<S::STAGES>(s, S::WARPGROUPS * 4, separate_a_producer<S, A_TRANSPOSED>);
    if (threadIdx.x / 32 == S::CONSUMERS / 32) {
        prefetch_tensormap(&m.a), prefetch_tensormap(&m.b);
        next.tile.first();
        while (!next.ready) next.poll(x.scheduler, x.rows);
    }
    __syncthreads();
    griddepcontrol_wait();
    if (threadIdx.x >= S::CONSUMERS) {
        if (!S::ONE_TILE) setmaxnreg_dec<PRODUCER_REGISTERS>();
        int warp = (threadIdx.x - S::CONSUMERS) / 32;
        if (warp == 0) producer<S, A_TRANSPOSED, B_COL_MAJOR>(x, m, next, s, keep_in_register(smem_address(memory)));
        if (separate_a_producer<S, A_TRANSPOSED> && warp == 1)
            producer_of_a<S>(x, m, s, keep_in_register(smem_address(memory)));
    } else {
        if (!S::ONE_TILE) setmaxnreg_inc<CONSUMER_REGISTERS>();
        consumer<T, S, A_TRANSPOSED, B_COL_MAJOR>(x, m, s, smem_address(memory));
    }
    sat_tile_counter_end(x.scheduler.counter, x.scheduler.tiles);
}

/* ---- host ---- */

/* BK of a stage. Tiles of 64x256 have BK 16 where the width of a block is not a multiple of 64. */
static int64_t bk_of(const sat_instance *i, const sat_rows *r) {
    return i->tile_m == 64 && i->tile_n == 256 && r->bc % 64 ? 16 : i->tile_k;
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    double tiles = ((double)r.count + (double)a->stored_blocks) * ceil((double)p->n / v->instance.tile_n) *
                   ceil((double)r.br / v->instance.tile_m);
    if (r.br % 16 || r.bc % bk_of(&v->instance, &r) || tiles > 0x7fff0000) return false; // the tile counter is 32-bit
    return tensormaps_fit_matmul(v, p, a, d);
}

/* Loads from L2 and products overlap; the longer counts. */
static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    double bm = v->instance.tile_m, bn = v->instance.tile_n, panels = ceil((double)p->n / bn);
    double slices = ceil((double)r.br / bm), tiles = (double)r.count * slices * panels, batch = (double)p->batch;
    double loads = (double)a->stored_blocks * panels * slices * (double)r.bc * (fmin(bm, (double)r.br) + bn) * 2;
    double work = 2 * (double)a->stored_blocks * panels * slices * (double)r.bc * bm * bn;
    double utilization = fmin(1, tiles / d->multiprocessors), rate = 0.96 * d->l2_rate;
    double time = fmax(loads / rate, work / d->flop_rate[p->a_dtype]) / utilization;
    if (bk_of(&v->instance, &r) == 16) // a stage takes at least 0.3 us, however little it brings
        time = fmax(time, (double)a->stored_blocks * panels * slices * (double)(r.bc / 16) * 3e-7 / d->multiprocessors /
                              utilization);
    return fmax(batch * time, sat_bytes(p, a) / d->memory_rate) + batch * (tiles / d->multiprocessors * 1e-6 + 3e-6);
}

static sat_status make_state(const sat_prepare *q, void *out) {
    state *st = (state *)out;
    return sat_persistent_prepare(q, &st->work, &st->counter);
}

static sat_status prepare(const sat_prepare *q, void **out) {
    return tensormap_prepare(q, sizeof(state), make_state, out);
}

template <typename S> static bool make_maps(const sat_launch *l, const params &x, tensor_maps *m) {
    bool a_made = l->problem->matmul.transpose == SAT_TRANSPOSE
                      ? tensormap_of_a(l, 64, S::BK, &m->a)
                      : tensormap_of_a(l, x.a_two_stages ? 64 : S::BK, x.a_rows, &m->a);
    return a_made && tensormap_of_b(l, S::BK, S::BN, &m->b);
}

template <typename T, typename S, bool A_TRANSPOSED, bool B_COL_MAJOR>
static sat_status start(const sat_launch *l, const params &x, const tensor_maps &m) {
    unsigned grid = S::ONE_TILE ? x.scheduler.tiles : (unsigned)sat_min(x.scheduler.tiles, l->device->multiprocessors);
    return sat_start<matmul_wgmma<T, S, A_TRANSPOSED, B_COL_MAJOR>>(l, grid, S::THREADS, S::BYTES, x, m);
}

template <typename T, typename S> static sat_status launch_tile(const sat_launch *l) {
    const sat_problem *p = l->problem;
    if (p->m == 0 || p->n == 0) return SAT_OK;
    state *st = (state *)l->state;
    params x = {};
    x.rows = sat_device_rows(p, l->pattern), x.epilogue = sat_tile_epilogue_of(l, true);
    x.scheduler = sat_tile_scheduler_of(st->work, st->counter, (x.rows.br + S::BM - 1) / S::BM,
                                        (p->n + S::BN - 1) / S::BN, 2.0 * S::BN * (double)p->k, l->device,
                                        S::BM == 128 ? SAT_TILES_PER_CTA_BALANCE : SAT_TILES_PER_CTA_L2);
    x.partials = (float *)st->work.partial;
    x.a_rows = (int)sat_min(S::BM, x.rows.br);
    x.b_whole_chunks = sat_b_whole_chunks(p);
    x.a_two_stages = S::A_PAIRED && p->matmul.transpose != SAT_TRANSPOSE && x.rows.bc % 64 == 0;
    if (!tensormaps_reuse(st->made_for, 3, l->operands)) {
        if (!make_maps<S>(l, x, &st->maps)) return tensormaps_failed(l, st->made_for);
        st->tma_output = S::WARPGROUPS > 1 && sat_output_tensormap(l, x.epilogue, x.rows.br, &st->maps.c);
    }
    x.tma_output = st->tma_output, x.identity = sat_epilogue_is_identity(x.epilogue.out);
    const tensor_maps &m = st->maps;
    bool a_transposed = p->matmul.transpose == SAT_TRANSPOSE, b_col_major = p->b.col_stride != 1;
    sat_status status = sat_renew_schedule(l, x.rows, st->work);
    if (status != SAT_OK) return status;
    status = a_transposed ? (b_col_major ? start<T, S, true, true>(l, x, m) : start<T, S, true, false>(l, x, m))
                          : (b_col_major ? start<T, S, false, true>(l, x, m) : start<T, S, false, false>(l, x, m));
    return status == SAT_OK ? sat_launch_split_reduction(l, x.rows, x.epilogue.out, st->work) : status;
}

struct instance {
    int tile_m, tile_n, bk;
    sat_dtype dtype;
    sat_status (*launch)(const sat_launch *l);
};

template <typename T, int BM, int BN, int BK, int STAGES, int WARPGROUPS> constexpr instance instance_of() {
    return {BM, BN, BK, T::dtype, launch_tile<T, shape<BM, BN, BK, STAGES, WARPGROUPS>>};
}

// dtype; BM, BN, BK; stages; consumer warpgroups
static constexpr instance instances[] = {
    instance_of<sat_f16, 64, 512, 32, 6, 2>(),  instance_of<sat_bf16, 64, 512, 32, 6, 2>(),
    instance_of<sat_f16, 64, 256, 64, 5, 2>(),  instance_of<sat_bf16, 64, 256, 64, 5, 2>(),
    instance_of<sat_f16, 64, 256, 16, 16, 2>(), instance_of<sat_bf16, 64, 256, 16, 16, 2>(),
    instance_of<sat_f16, 128, 256, 64, 4, 2>(), instance_of<sat_bf16, 128, 256, 64, 4, 2>(),
    instance_of<sat_f16, 128, 128, 64, 6, 2>(), instance_of<sat_bf16, 128, 128, 64, 6, 2>(),
    instance_of<sat_f16, 64, 128, 64, 4, 1>(),  instance_of<sat_bf16, 64, 128, 64, 4, 1>(),
    instance_of<sat_f16, 64, 64, 64, 7, 1>(),   instance_of<sat_bf16, 64, 64, 64, 7, 1>(),
    instance_of<sat_f16, 64, 32, 64, 8, 1>(),   instance_of<sat_bf16, 64, 32, 64, 8, 1>(),
    instance_of<sat_f16, 64, 16, 64, 8, 1>(),   instance_of<sat_bf16, 64, 16, 64, 8, 1>(),
};

static sat_status launch(const sat_launch *l) {
    const sat_instance *i = &l->variant->instance;
    sat_rows r = sat_op_rows(l->problem, l->pattern);
    int64_t bk = bk_of(i, &r);
    for (const instance &x : instances)
        if (x.tile_m == i->tile_m && x.tile_n == i->tile_n && x.bk == bk && x.dtype == i->dtype) return x.launch(l);
    return sat_fail(SAT_INTERNAL, "%s: no such tile", l->variant->name);
}

SAT_FAMILY(cuda_matmul_wgmma) = {
    .revision = "3",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .flags = SAT_V_DYNAMIC, // not SAT_V_BATCHED: one launch per batch item
    .about =
        "TMA and wgmma on Hopper; f16, bf16; block rows multiples of 16; block width a multiple of the stage depth (16 "
        "with 64x256)",
    .supports = supports,
    .estimate = estimate,
    .workspace = sat_persistent_workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_state,
};
