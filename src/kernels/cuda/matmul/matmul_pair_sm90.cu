// cuda_matmul_pair: C = op(A)*B for blocks of 64 rows, two block rows at a time (sm_90a). f16 and bf16.
//
// Products with blocks of 64 rows are bound by reads of B from L2. Here a tile is a pair of block rows by 256 columns
// of C. It runs along the union of their columns, and where both rows have a block, B's rows are loaded once for both.
// prepare() searches for rows that share columns (row_groups.h); they need not be neighbours, and each block row is
// stored directly to its own rows of C.
//
// One producer warp loads A and B. Two consumer warpgroups have a row of the pair each, and skip the stages in which
// their row has no block.

#include "kernels/cuda/matmul/row_groups.h"
#include "kernels/cuda/common/ptx_sm90.cuh"
#include "kernels/cuda/common/warpgroup_epilogue.cuh"

/* ---- parameters ---- */

struct tensor_maps {
    CUtensorMap a, b, c;
};

struct params {
    sat_rows rows; // the stored blocks of op(A)
    sat_tile_epilogue epilogue;
    sat_tile_scheduler scheduler; // its work items are pairs; `first` and `count` are union entries
    const sat_union_entry *entries;
    const int32_t *pair_rows; // two block rows a pair, -1 for none
    bool b_whole_chunks;      // row-major B, n a multiple of 64: one TMA box covers the stage
    bool tma_output;          // C is stored by TMA
};

/* What `prepare` makes, and the tensor maps of the last launch. */
struct state {
    sat_device_schedule work;
    unsigned *counter;
    const sat_union_entry *entries;
    const int32_t *pair_rows;
    tensor_maps maps;
    const void *made_for[3]; // the pointers that the maps were encoded for
    bool tma_output;
};

/* ---- shared memory and barriers ---- */

static constexpr int ROWS = 64, BN = 256, BK = 64, STAGES = 4; // rows of a block; a stage of B is BK x BN
static constexpr int CONSUMERS = 256, THREADS = CONSUMERS + 128;
static constexpr int MAX_STAGES = 16, QUEUE_TILES = 4;

/* A tile, as the producer publishes it to the consumers. */
struct tile {
    int row0;   // block row of warpgroup 0, -1 for none
    int unused; // padding, never read; without it ptxas gives other code than was measured
    int panel;
    int steps;      // stages; -1: there are no more tiles
    int row1;       // block row of warpgroup 1, -1 for none
    int unused2[2]; // padding, never read; without it ptxas gives other code than was measured
};

/* A ring of stages and a queue of tiles. `full` completes a phase when the bytes that the producer announced have
 * arrived, `empty` when all consumer warps have read the stage; entries of the queue have the same two. Consumers begin
 * with phase 0, the producer with 1: at first everything is empty. */
struct ring_shared {
    uint64_t full[MAX_STAGES], empty[MAX_STAGES], tile_full[QUEUE_TILES], tile_empty[QUEUE_TILES];
    tile tiles[QUEUE_TILES];
    uint32_t has_block[MAX_STAGES]; // of a stage: bit g if row g of the pair has a block there
};

/* The map of shared memory: [A of all stages][B of all stages][staging for C][barriers, queue]. A stage of A has BK
 * columns of a block of each row. */
static constexpr int BLOCK_BYTES = ROWS * BK * 2, A_BYTES = 2 * BLOCK_BYTES, B_BYTES = BK * BN * 2;
static constexpr int B_OFFSET = STAGES * A_BYTES, STAGING_OFFSET = B_OFFSET + STAGES * B_BYTES;
static constexpr int RING_OFFSET = STAGING_OFFSET + 2 * SAT_STAGING, BYTES = RING_OFFSET + (int)sizeof(ring_shared);
static_assert(BYTES <= 227 * 1024, "more shared memory than a CTA may have");

/* setmaxnreg: with both, 128 * 72 + 256 * 216 = 64512 registers of the 65536 that a multiprocessor has. */
static constexpr int PRODUCER_REGISTERS = 72, CONSUMER_REGISTERS = 216;

/* By the first warp. */
__device__ __forceinline__ void init_barriers(ring_shared *s) {
    int i = threadIdx.x;
    if (i < STAGES) {
        mbarrier_init(smem_address(&s->full[i]), 1);
        mbarrier_init(smem_address(&s->empty[i]), CONSUMERS / 32);
    } else if (i < STAGES + QUEUE_TILES) {
        mbarrier_init(smem_address(&s->tile_full[i - STAGES]), 1);
        mbarrier_init(smem_address(&s->tile_empty[i - STAGES]), CONSUMERS / 32);
    }
    fence_mbarrier_init();
}

/* A warp's pipeline state, of COUNT stages or of COUNT tiles of the queue: the next one, and the phase to wait for. */
template <int COUNT> struct pipeline_state {
    int index = 0;
    int unused = 0; // padding, never read; without it ptxas gives other code than was measured
    uint32_t phase;

    __device__ __forceinline__ void advance() {
        if (++index == COUNT) index = 0, phase ^= 1;
        if (++unused == COUNT) unused = 0;
    }
};

/* ---- producer ---- */

/* The next tile, fetched in steps while the current tile's operands are loaded. */
struct prefetched_tile {
    sat_fetched_tile tile;
    sat_union_entry entry; // lane i: entry i of 32
    int row, first;        // lanes 0 and 1: a block row of the pair, and the position of its first block
    int load_round;        // 0: next are loads of rows and entries; 1: of first blocks
    bool ready;

    /* Loads the entries from `from` on. */
    __device__ __forceinline__ void load_entries(const params &x, int from) {
        int mine = from + (int)threadIdx.x % 32;
        if (mine < tile.item.count) entry = x.entries[tile.item.first + mine];
    }
    __device__ __forceinline__ void poll(const params &x) {
        if (ready || tile.poll(x.scheduler)) return;
        int lane = threadIdx.x % 32;
        bool some = !tile.none(x.scheduler);
        if (load_round++ == 0) {
            if (some && lane < 2) row = x.pair_rows[2 * tile.item.row + lane];
            if (some) load_entries(x, 0);
            return;
        }
        if (some && lane < 2 && row >= 0) first = (int)x.rows.ptr[row];
        ready = true;
    }
    __device__ __forceinline__ void request_next() { tile.request_next(), load_round = 0, ready = false; }
};

/* By one lane: BK columns of a block, from `in_block` on. `position`: of the block in the order of op(A)'s rows.
 * A_TRANSPOSED: blocks are stored transposed. */
template <bool A_TRANSPOSED>
__device__ static void load_a(const params &x, const tensor_maps &m, uint32_t to, uint32_t bar, int position,
                              int in_block) {
    int block = (int)sat_block_of(&x.rows, position);
    if (A_TRANSPOSED) tma_load(to, &m.a, bar, 0, block * (int)x.rows.bc + in_block);
    else tma_load(to, &m.a, bar, in_block, block * ROWS);
}

/* Takes tiles from the scheduler, publishes them, and loads A and B. */
template <bool A_TRANSPOSED, bool B_COL_MAJOR>
__device__ static void producer(const params &x, const tensor_maps &m, prefetched_tile &next, ring_shared *s,
                                uint32_t smem) {
    int bc = (int)x.rows.bc;
    uint32_t full = keep_in_register(smem_address(s->full)), empty = full + sizeof s->full;
    bool one = elect_one();
    pipeline_state<STAGES> stage = {.phase = 1};
    pipeline_state<QUEUE_TILES> queue = {.phase = 1};
    for (;;) {
        while (!next.ready) next.poll(x);
        prefetched_tile now = next;
        bool last = now.tile.none(x.scheduler);
        int count = now.tile.item.count, n0 = (int)now.tile.coord.panel * BN;
        int row[2], block[2]; // of the pair: block rows, and the positions of their next blocks
#pragma unroll
        for (int g = 0; g < 2; g++) row[g] = __shfl_sync(~0u, now.row, g), block[g] = __shfl_sync(~0u, now.first, g);
        if (one) {
            tile t = {row[0], 0, (int)now.tile.coord.panel, last ? -1 : count * (bc / BK), row[1]};
            mbarrier_wait(smem_address(&s->tile_empty[queue.index]), queue.phase);
            s->tiles[queue.index] = t;
            mbarrier_arrive(smem_address(&s->tile_full[queue.index]));
        }
        queue.advance();
        if (last) return;
        next.request_next();
        for (int t = 0; t < count; t++) {
            if (t % 32 == 0 && t > 0) now.load_entries(x, t);
            uint32_t has_block = __shfl_sync(~0u, now.entry.block_mask, t % 32);
            int k = __shfl_sync(~0u, now.entry.col, t % 32) * bc;
            for (int in_block = 0; in_block < bc; in_block += BK) {
                if (one) {
                    uint32_t bar = full + stage.index * 8;
                    mbarrier_wait(empty + stage.index * 8, stage.phase);
                    s->has_block[stage.index] = has_block;
                    mbarrier_arrive_expect_tx(bar, B_BYTES + __popc(has_block) * BLOCK_BYTES);
                    sat_load_b<BK, BN, B_COL_MAJOR>(&m.b, x.b_whole_chunks, smem + B_OFFSET + stage.index * B_BYTES,
                                                    bar, k + in_block, n0);
#pragma unroll
                    for (int g = 0; g < 2; g++)
                        if (has_block >> g & 1)
                            load_a<A_TRANSPOSED>(x, m, smem + stage.index * A_BYTES + g * BLOCK_BYTES, bar, block[g],
                                                 in_block);
                }
                stage.advance();
            }
            block[0] += has_block & 1, block[1] += has_block >> 1 & 1;
            next.poll(x);
        }
    }
}

/* ---- consumer ---- */

/* Issues the wgmma of one stage, d += a*b. A transposed is MN-major, B column-major is K-major. Lines have 128 bytes:
 * 1024 is the bytes of 8 lines, 2048 of 16 lines. */
template <typename T, bool A_TRANSPOSED, bool B_COL_MAJOR>
__device__ __forceinline__ void multiply_stage(float (&d)[BN / 2], uint32_t a, uint32_t b) {
    constexpr int swizzle = swizzle_mode_of(128);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BK / 16; k++) {
        uint64_t da = A_TRANSPOSED ? wgmma_descriptor(a + k * 2048, swizzle, BK * 128, 1024)
                                   : wgmma_descriptor(a + k * 32, swizzle, 16, 1024);
        uint64_t db = B_COL_MAJOR ? wgmma_descriptor(b + k * 32, swizzle, 16, 1024)
                                  : wgmma_descriptor(b + k * 2048, swizzle, BK * 128, 1024);
        wgmma_ss<T, BN, A_TRANSPOSED, !B_COL_MAJOR>::run(d, da, db, 1);
    }
    wgmma_commit_group();
}

template <typename E>
__device__ __forceinline__ void epilogue(const params &x, const tensor_maps &m, const tile &t, float (&d)[BN / 2],
                                         uint32_t staging, int wg);

/* By a whole warp. */
__device__ __forceinline__ tile receive(ring_shared *s, const pipeline_state<QUEUE_TILES> &queue) {
    mbarrier_wait(smem_address(&s->tile_full[queue.index]), queue.phase);
    tile t = read_shared_broadcast(&s->tiles[queue.index]);
    if (threadIdx.x % 32 == 0) mbarrier_arrive(smem_address(&s->tile_empty[queue.index]));
    return t;
}

/* Main loop of a warpgroup, which has one row of the pair. The wgmma of a stage runs while the next stage is waited
 * for, so a stage is released one step late: when the next one's wgmma has been issued and its own is complete. */
template <typename T, bool A_TRANSPOSED, bool B_COL_MAJOR>
__device__ __forceinline__ void consumer(const params &x, const tensor_maps &m, ring_shared *s, uint32_t smem) {
    int wg = threadIdx.x / 128, lane = threadIdx.x % 32;
    pipeline_state<STAGES> stage = {.phase = 0};
    pipeline_state<QUEUE_TILES> queue = {.phase = 0};
    int mma_stage = -1;              // the stage of the last wgmma, where this warp has not released it yet
    auto release = [&](int &which) { // and forget it
        if (which >= 0 && lane == 0) mbarrier_arrive(smem_address(&s->empty[which]));
        which = -1;
    };
    tile t = receive(s, queue);
    while (t.steps >= 0) {
        float d[BN / 2];
#pragma unroll
        for (int e = 0; e < BN / 2; e++) d[e] = 0;
        for (int step = 0; step < t.steps; step++) {
            uint32_t bar = smem_address(&s->full[stage.index]);
            if (mma_stage >= 0 && !mbarrier_test_wait(bar, stage.phase)) {
                wgmma_wait_group<0>(); // the producer is behind: give it the stage now
                release(mma_stage);
            }
            mbarrier_wait(bar, stage.phase);
            bool mine = read_shared_broadcast(&s->has_block[stage.index]) >> wg & 1;
            if (!mine) { // release both stages at once: many more of the other row may follow
                wgmma_wait_group<0>();
                release(mma_stage);
                mma_stage = stage.index;
                release(mma_stage);
                stage.advance();
                continue;
            }
            multiply_stage<T, A_TRANSPOSED, B_COL_MAJOR>(d, smem + stage.index * A_BYTES + wg * BLOCK_BYTES,
                                                         smem + B_OFFSET + stage.index * B_BYTES);
            wgmma_wait_group<1>();
            release(mma_stage);
            mma_stage = stage.index;
            stage.advance();
        }
        queue.advance();
        tile next = receive(s, queue);
        wgmma_wait_group<0>();
        release(mma_stage);
        epilogue<typename T::element>(x, m, t, d, smem + STAGING_OFFSET + wg * SAT_STAGING, wg);
        t = next;
    }
    tma_store_wait_all();
}

/* ---- epilogue ---- */

/* A warpgroup's sums to its block row of C. */
template <typename E>
__device__ __forceinline__ void epilogue(const params &x, const tensor_maps &m, const tile &t, float (&d)[BN / 2],
                                         uint32_t staging, int wg) {
    int row = wg ? t.row1 : t.row0, n0 = t.panel * BN, i0 = row * ROWS;
    if (row < 0) return;
    if (!x.tma_output) return sat_warpgroup_store<E, BN>(x.epilogue, d, staging, (int64_t)row * ROWS, n0, ROWS, wg);
    sat_warpgroup_apply_alpha_bias_relu(x.epilogue.out, d, i0 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4);
    sat_warpgroup_tma_store<E, BN>(&m.c, d, staging, i0, n0, (int)x.epilogue.out.n, x.epilogue.column_major, wg);
}

/* ---- kernel ---- */

template <typename T, bool A_TRANSPOSED, bool B_COL_MAJOR>
static __global__ void __launch_bounds__(THREADS, 1)
    matmul_pair(const __grid_constant__ params x, const __grid_constant__ tensor_maps m) {
    extern __shared__ __align__(1024) char memory[];
    ring_shared *s = (ring_shared *)(memory + RING_OFFSET);
    prefetched_tile next = {};
    griddepcontrol_launch_dependents();
    if (threadIdx.x < 32) init_barriers(s);
    if (threadIdx.x / 32 == CONSUMERS / 32) {
        prefetch_tensormap(&m.a), prefetch_tensormap(&m.b);
        next.tile.first();
        while (!next.ready) next.poll(x);
    }
    __syncthreads();
    griddepcontrol_wait();
    if (threadIdx.x >= CONSUMERS) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x < CONSUMERS + 32)
            producer<A_TRANSPOSED, B_COL_MAJOR>(x, m, next, s, keep_in_register(smem_address(memory)));
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        consumer<T, A_TRANSPOSED, B_COL_MAJOR>(x, m, s, smem_address(memory));
    }
    sat_tile_counter_end(x.scheduler.counter, x.scheduler.tiles);
}

/* ---- host ---- */

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    if (r.br != ROWS || r.bc % 64) return false;
    if ((double)r.count * ceil((double)p->n / BN) > 0x7fff0000) return false; // the tile counter is 32-bit
    return tensormaps_fit_matmul(v, p, a, d);
}

/* Loads from L2 (B for each union entry, blocks for each panel) and products overlap; the longer counts. How many
 * columns rows share is estimated from neighbouring rows. */
static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    sat_rows r = sat_op_rows(p, a);
    double panels = ceil((double)p->n / BN), blocks = (double)a->stored_blocks, batch = (double)p->batch;
    double shared = p->matmul.transpose == SAT_TRANSPOSE ? 0 : a->overlap;
    double entries =
        fmin(sat_union_expected(r.count, (r.k + r.bc - 1) / r.bc, a->stored_blocks, 2), blocks * (1 - shared / 2));
    double loads = panels * (double)r.bc * 2 * (entries * BN + blocks * (double)ROWS), rate = 0.96 * d->l2_rate;
    double work = 2 * blocks * panels * (double)(r.bc * ROWS * BN), tiles = ceil((double)r.count / 2) * panels;
    double time = fmax(loads / rate, work / d->flop_rate[p->a_dtype]) / fmin(1, tiles / d->multiprocessors);
    return fmax(batch * time, sat_bytes(p, a) / d->memory_rate) + batch * (tiles / d->multiprocessors * 1e-6 + 3e-6);
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)d;
    sat_rows r = sat_op_rows(p, a);
    return sat_row_groups_bytes(&r, 2);
}

static sat_status make_state(const sat_prepare *q, void *out) {
    state *st = (state *)out;
    return sat_prepare_row_groups(q, 2, 1, &st->work, &st->entries, &st->pair_rows, &st->counter);
}

static sat_status prepare(const sat_prepare *q, void **out) {
    return tensormap_prepare(q, sizeof(state), make_state, out);
}

template <typename T, bool A_TRANSPOSED, bool B_COL_MAJOR>
static sat_status start(const sat_launch *l, const params &x, const tensor_maps &m) {
    unsigned grid = (unsigned)sat_min(x.scheduler.tiles, l->device->multiprocessors);
    return sat_start<matmul_pair<T, A_TRANSPOSED, B_COL_MAJOR>>(l, grid, THREADS, BYTES, x, m);
}

struct instance {
    bool a_transposed, b_col_major;
    sat_dtype dtype;
    sat_status (*start)(const sat_launch *l, const params &x, const tensor_maps &m);
};

static constexpr instance instances[] = {
    {false, false, SAT_F16, start<sat_f16, false, false>},   {false, true, SAT_F16, start<sat_f16, false, true>},
    {true, false, SAT_F16, start<sat_f16, true, false>},     {true, true, SAT_F16, start<sat_f16, true, true>},
    {false, false, SAT_BF16, start<sat_bf16, false, false>}, {false, true, SAT_BF16, start<sat_bf16, false, true>},
    {true, false, SAT_BF16, start<sat_bf16, true, false>},   {true, true, SAT_BF16, start<sat_bf16, true, true>},
};

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    if (p->m == 0 || p->n == 0) return SAT_OK;
    state *st = (state *)l->state;
    params x = {};
    x.rows = sat_device_rows(p, l->pattern), x.epilogue = sat_tile_epilogue_of(l, true);
    x.scheduler = sat_tile_scheduler_of(st->work, st->counter, 1, (p->n + BN - 1) / BN, 2.0 * BN * (double)p->k,
                                        l->device, SAT_TILES_PER_CTA_L2);
    x.entries = st->entries, x.pair_rows = st->pair_rows, x.b_whole_chunks = sat_b_whole_chunks(p);
    if (!tensormaps_reuse(st->made_for, 3, l->operands)) {
        if (!tensormap_of_a(l, 64, 64, &st->maps.a) || !tensormap_of_b(l, BK, BN, &st->maps.b))
            return tensormaps_failed(l, st->made_for);
        st->tma_output = sat_output_tensormap(l, x.epilogue, ROWS, &st->maps.c);
    }
    x.tma_output = st->tma_output;
    bool a_transposed = p->matmul.transpose == SAT_TRANSPOSE, b_col_major = p->b.col_stride != 1;
    for (const instance &i : instances)
        if (i.a_transposed == a_transposed && i.b_col_major == b_col_major && i.dtype == l->variant->instance.dtype)
            return i.start(l, x, st->maps);
    return sat_fail(SAT_INTERNAL, "%s: no such instance", l->variant->name);
}

SAT_FAMILY(cuda_matmul_pair) = {
    .revision = "2",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .flags = 0, // not SAT_V_BATCHED: one launch per batch item
    .about = "two block rows of 64 that share columns at a time, on Hopper; f16, bf16",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_state,
};
