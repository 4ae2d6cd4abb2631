// cuda_sampled_wgmma: the sampled product S = alpha*(X*Y at the stored blocks of S) with TMA loads and wgmma (sm_90a).
// f16 and bf16.
//
// A tile is BM rows of a block row of S by the columns of several of its stored blocks, side by side: as many as BN
// holds. So X's rows are read once for all of those blocks. Blocks wider than BN are cut into panels of BN columns.
// The K loop runs along X's columns and Y's rows, 64 at a time.
//
// Four producer warps load a ring of stages: one loads X, three load Y. Each lane of those three has blocks of its own,
// since a single lane takes longer to issue many small copies than the copies take. Two consumer warpgroups multiply
// and store. Blocks with fewer than 64 rows are multiplied as 64; the other rows are not stored. Such blocks are bound
// by reads of Y from L2, not by tensor cores.

#include <numeric>

#include "kernels/cuda/common/scheduler.h"
#include "kernels/cuda/common/ptx_sm90.cuh"
#include "kernels/cuda/common/ring.cuh"

/* ---- parameters ---- */

struct tensor_maps {
    CUtensorMap x, y;
};

struct params {
    sat_tile_scheduler scheduler; // its work items are runs of blocks of a block row
    const int32_t *col;           // block column of each stored block
    char *s;                      // the stored blocks
    int m, n, k, br, bc;          // sizes of S and depth; a block is br x bc
    int x_rows;                   // rows per TMA box of X, where k is contiguous
    int y_box;                    // columns per TMA box of Y
    bool whole;                   // row-major Y, n a multiple of 64: a TMA box has several chunks of 64 columns
    bool ragged;                  // the last block column reaches beyond the matrix
    float alpha;
};

/* What `prepare` makes, and the tensor maps of the last launch. */
struct state {
    sat_device_schedule work;
    unsigned *counter;
    tensor_maps maps;
    const void *made_for[2]; // the pointers that the maps were encoded for
};

/* ---- shared memory ---- */

/* A tile, as the producer of X publishes it to the other warps. */
struct tile {
    int row, slice, panel;
    int steps;        // stages of BK along K; -1: there are no more tiles
    int first, count; // its stored blocks: the position of the first, and how many
    int unused;       // padding, never read; without it ptxas gives other code than was measured
};

/* The tile's shape and the map of shared memory: [X of all stages][Y of all stages][staging for S][barriers, queue].
 * A stage has X, BM x BK, and Y, BK x BN. LINE: bytes of a line of Y in shared memory where Y is row-major. A block's
 * columns must fill lines.
 *
 * The sums are written to the staging area before they are stored. Where warpgroups split the columns of Y (BM is 64),
 * a warpgroup stages in its own half of Y of the tile's last stage. This saves the memory of another stage. */
template <int BM_, int BN_, int STAGES_, int LINE_> struct shape {
    static constexpr int BM = BM_, BN = BN_, BK = 64, STAGES = STAGES_, LINE = LINE_, WARPGROUPS = 2;
    static constexpr int WN = BM == 128 ? BN : BN / WARPGROUPS; // columns of a warpgroup; 128 rows are split by rows
    static constexpr int X_BYTES = BM * BK * 2, Y_BYTES = BK * BN * 2; // of a stage
    static constexpr bool STAGING_IN_Y = BM == 64 && Y_BYTES == WARPGROUPS * SAT_STAGING;
    static constexpr int Y_OFFSET = STAGES * X_BYTES, STAGING_OFFSET = Y_OFFSET + STAGES * Y_BYTES;
    static constexpr int RING_OFFSET = STAGING_OFFSET + (STAGING_IN_Y ? 0 : WARPGROUPS * SAT_STAGING);
    static constexpr int BYTES = RING_OFFSET + (int)sizeof(sat_ring_shared<tile>);
    static constexpr int CONSUMERS = WARPGROUPS * 128, THREADS = CONSUMERS + 128;
    static_assert(BYTES <= 227 * 1024, "more shared memory than a CTA may have");
    static_assert(STAGES <= SAT_MAX_STAGES, "more stages than the ring has barriers");
};

/* setmaxnreg: with both, 128 * 72 + 256 * 216 = 64512 registers of the 65536 that a multiprocessor has. */
static constexpr int PRODUCER_REGISTERS = 72, CONSUMER_REGISTERS = 216;

/* ---- barriers ---- */

typedef sat_ring_shared<tile> ring_shared;

/* A warp's pipeline state: the next stage of the ring, and the phase to wait for. */
template <typename S> struct pipeline_state {
    int stage = 0;
    uint32_t phase;

    __device__ __forceinline__ void advance() {
        if (++stage == S::STAGES) stage = 0, phase ^= 1;
    }
};

/* Offsets of a stage's operands in shared memory. */
template <typename S> __device__ __forceinline__ uint32_t x_of(int stage) { return stage * S::X_BYTES; }
template <typename S> __device__ __forceinline__ uint32_t y_of(int stage) { return S::Y_OFFSET + stage * S::Y_BYTES; }

/* ---- producers ---- */

enum { Y_WARPS = 3 };

/* The block of a tile for which this lane of the Y warps loads Y. */
__device__ __forceinline__ int own_block() { return threadIdx.x % 32 * Y_WARPS + threadIdx.x / 32 % 4 - 1; }

/* The next tile, fetched while the current tile's operands are loaded. */
struct prefetched_tile {
    sat_fetched_tile tile;
    bool ready;

    __device__ void poll(const params &x) { ready = ready || !tile.poll(x.scheduler); }
    /* The block column of this lane's block. */
    __device__ int own_column(const params &x) const {
        int mine = own_block();
        return mine < tile.item.count ? x.col[tile.item.first + mine] : 0;
    }
};

/* By one lane: a stage of X. */
template <typename S, bool X_COL_MAJOR>
__device__ static void load_x(const tensor_maps &m, uint32_t to, uint32_t bar, int row, int k) {
    if constexpr (X_COL_MAJOR) {
        for (int i = 0; i < S::BM; i += 64) tma_load(to + i * S::BK * 2, &m.x, bar, row + i, k);
    } else {
        tma_load(to, &m.x, bar, k, row);
    }
}

/* Each lane: one block's columns of a stage of Y, from Y's column `column` to column `at` of the tile. */
template <typename S, bool Y_COL_MAJOR>
__device__ static void load_y(const params &x, const tensor_maps &m, uint32_t to, uint32_t bar, int at, int column,
                              int k, int columns) {
    for (int i = 0; i < columns; i += x.y_box) {
        uint32_t box = to + (at + i) * S::BK * 2; // in both layouts: BK elements a column, or chunks of 64 columns
        if (Y_COL_MAJOR) tma_load(box, &m.y, bar, k, column + i);
        else if (S::LINE == 128 && x.whole) tma_load(box, &m.y, bar, 0, k, (column + i) / 64);
        else tma_load(box, &m.y, bar, column + i, k);
    }
}

/* Which columns of each of its blocks a tile has. */
template <typename S> struct block_columns {
    int from, columns;
    __device__ block_columns(const params &x, int panel) : from(panel * S::BN), columns(min(x.bc - from, S::BN)) {}
};

/* Takes tiles from the scheduler, publishes them, and loads X. Announces the bytes of both operands. */
template <typename S, bool X_COL_MAJOR>
__device__ static void producer_of_x(const params &x, const tensor_maps &m, prefetched_tile &next, ring_shared *s,
                                     uint32_t smem) {
    int steps = (x.k + S::BK - 1) / S::BK, x_bytes = (X_COL_MAJOR ? S::BM : x.x_rows) * S::BK * 2;
    uint32_t full = keep_in_register(smem_address(s->full)), empty = full + sizeof s->full;
    bool one = elect_one();
    pipeline_state<S> pipe = {.phase = 1};
    sat_tile_queue<tile> queue = {.phase = 1};
    for (bool first = true;; first = false) {
        while (!next.ready) next.poll(x);
        sat_fetched_tile now = next.tile;
        bool last = now.none(x.scheduler);
        if (!last && !first && now.item.count == 0) { // where indices change; the first tile is known to other warps
            next.tile.request_next(), next.ready = false;
            continue;
        }
        int slice = (int)now.coord.slice, panel = (int)now.coord.panel, row = now.item.row * x.br + slice * S::BM;
        int count = now.item.count, bytes = x_bytes + count * block_columns<S>(x, panel).columns * S::BK * 2;
        if (one) queue.publish(s, {now.item.row, slice, panel, last ? -1 : steps, (int)now.item.first, count});
        queue.advance();
        if (last) return;
        next.tile.request_next(), next.ready = false;
        for (int step = 0; step < steps; step++) {
            if (one) {
                uint32_t bar = full + pipe.stage * 8;
                mbarrier_wait(empty + pipe.stage * 8, pipe.phase);
                mbarrier_arrive_expect_tx(bar, bytes);
                load_x<S, X_COL_MAJOR>(m, smem + x_of<S>(pipe.stage), bar, row, step * S::BK);
            }
            pipe.advance();
            next.poll(x);
        }
    }
}

/* One of the warps that load Y. `col`: the block column of this lane's block in the CTA's first tile. */
template <typename S, bool Y_COL_MAJOR>
__device__ static void producer_of_y(const params &x, const tensor_maps &m, ring_shared *s, uint32_t smem, int col) {
    int mine = own_block();
    uint32_t full = keep_in_register(smem_address(s->full)), empty = full + sizeof s->full;
    pipeline_state<S> pipe = {.phase = 1};
    sat_tile_queue<tile> queue = {.phase = 0};
    for (bool first = true;; first = false) {
        tile t = queue.receive(s);
        queue.advance();
        if (t.steps < 0) return;
        block_columns<S> part(x, t.panel);
        if (!first && mine < t.count) col = x.col[t.first + mine];
        int column = col * x.bc + part.from;
        bool warp_has_blocks = mine - (int)threadIdx.x % 32 * Y_WARPS < t.count;
        for (int step = 0; step < t.steps; step++) {
            if (warp_has_blocks) { // a warp without blocks must not wait: no phase waits for it, so it could miss one
                mbarrier_wait(empty + pipe.stage * 8, pipe.phase);
                __syncwarp(); // the copies of one lane may complete the phase before another lane has seen it
                if (mine < t.count)
                    load_y<S, Y_COL_MAJOR>(x, m, smem + y_of<S>(pipe.stage), full + pipe.stage * 8, mine * x.bc, column,
                                           step * S::BK, part.columns);
            }
            pipe.advance();
        }
    }
}

/* ---- consumer ---- */

/* Issues the wgmma of one stage: d = X*Y, or d += X*Y with `scale_d`. X column-major is MN-major, Y column-major is
 * K-major. `chunk`: bytes of a chunk of Y. */
template <typename T, typename S, bool X_COL_MAJOR, bool Y_COL_MAJOR>
__device__ __forceinline__ void multiply_stage(float (&d)[S::WN / 2], uint32_t x, uint32_t y, int wg, int scale_d) {
    constexpr int BK = S::BK, k_swizzle = swizzle_mode_of(BK * 2), k_stride = BK * 2 * 8; // K contiguous
    constexpr int n_swizzle = swizzle_mode_of(S::LINE), chunk = BK * S::LINE;             // N contiguous
    if (S::BM == 128) x += wg * 64 * BK * 2;
    else y += Y_COL_MAJOR ? wg * S::WN * BK * 2 : wg * (S::WN * 2 / S::LINE) * chunk;
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BK / 16; k++) {
        uint64_t dx = X_COL_MAJOR ? wgmma_descriptor(x + k * 2048, swizzle_mode_of(128), BK * 128, 1024)
                                  : wgmma_descriptor(x + k * 32, k_swizzle, 16, k_stride);
        uint64_t dy = Y_COL_MAJOR ? wgmma_descriptor(y + k * 32, k_swizzle, 16, k_stride)
                                  : wgmma_descriptor(y + k * 16 * S::LINE, n_swizzle, chunk, 8 * S::LINE);
        wgmma_ss<T, S::WN, X_COL_MAJOR, !Y_COL_MAJOR>::run(d, dx, dy, scale_d || k);
    }
    wgmma_commit_group();
}

template <typename T, typename S>
__device__ static void epilogue(const params &x, const tile &t, float (&d)[S::WN / 2], uint32_t staging, int wg);

/* Main loop of a warpgroup. The wgmma of a stage runs while the next stage is waited for, so a stage is released one
 * step late: when the next one's wgmma has been issued and its own is complete. */
template <typename T, typename S, bool X_COL_MAJOR, bool Y_COL_MAJOR>
__device__ __forceinline__ void consumer(const params &x, ring_shared *s, uint32_t smem) {
    int wg = threadIdx.x / 128, lane = threadIdx.x % 32;
    pipeline_state<S> pipe = {.phase = 0};
    sat_tile_queue<tile> queue = {.phase = 0};
    // Stages that this warp has not released yet, -1 for none: of the last wgmma; the one that S is staged in.
    int mma_stage = -1, epilogue_stage = -1;
    auto release = [&](int &stage) { // and forget it
        if (stage >= 0 && lane == 0) mbarrier_arrive(smem_address(&s->empty[stage]));
        stage = -1;
    };
    auto release_epilogue_stage = [&] {
        if (S::STAGING_IN_Y && epilogue_stage >= 0 && lane == 0) tma_store_wait_read<0>();
        if (S::STAGING_IN_Y) release(epilogue_stage);
    };
    tile t = queue.receive(s);
    while (t.steps >= 0) {
        int scale_d = 0; // the first wgmma of a tile ignores what is in d
        float d[S::WN / 2];
        if (t.steps == 0)
#pragma unroll
            for (int e = 0; e < S::WN / 2; e++) d[e] = 0;
        for (int step = 0; step < t.steps; step++) {
            uint32_t bar = smem_address(&s->full[pipe.stage]);
            if (mma_stage >= 0 && !mbarrier_test_wait(bar, pipe.phase)) {
                wgmma_wait_group<0>(); // the producers are behind: give them the stage now
                release(mma_stage);
            }
            mbarrier_wait(bar, pipe.phase);
            multiply_stage<T, S, X_COL_MAJOR, Y_COL_MAJOR>(d, smem + x_of<S>(pipe.stage), smem + y_of<S>(pipe.stage),
                                                           wg, scale_d);
            scale_d = 1;
            release_epilogue_stage();
            wgmma_wait_group<1>();
            release(mma_stage);
            mma_stage = pipe.stage;
            pipe.advance();
        }
        queue.advance();
        tile next = queue.receive(s);
        wgmma_wait_group<0>();
        uint32_t staging = smem + S::STAGING_OFFSET + wg * SAT_STAGING;
        if (S::STAGING_IN_Y) {
            if (t.steps == 0) { // never: supports() asks for k > 0
                release_epilogue_stage();
                mbarrier_wait(smem_address(&s->full[pipe.stage]), pipe.phase);
                mma_stage = pipe.stage;
                pipe.advance();
            }
            staging = smem + S::Y_OFFSET + mma_stage * S::Y_BYTES + wg * SAT_STAGING;
            epilogue_stage = mma_stage, mma_stage = -1;
        }
        release(mma_stage);
        if (S::STAGING_IN_Y) named_barrier_sync(1 + wg, 128); // all have read the half of Y that S is staged in
        epilogue<T, S>(x, t, d, staging, wg);
        t = next;
    }
    tma_store_wait_all();
}

/* ---- epilogue ---- */

/* Sets sums beyond the matrix to zero. `rows`, `columns`: how many there are from this lane's first element on. */
template <int WN> __device__ static void clear_beyond(float (&d)[WN / 2], int rows, int columns) {
#pragma unroll
    for (int e = 0; e < WN / 2; e++)
        if ((e % 4 < 2 ? 0 : 8) >= rows || e / 4 * 8 + e % 2 >= columns) d[e] = 0;
}

/* A warpgroup's sums to the stored blocks, each warp on its own: 16 rows by W columns at a time, which belong to one
 * block. */
template <typename T, typename S>
__device__ static void epilogue(const params &x, const tile &t, float (&d)[S::WN / 2], uint32_t staging, int wg) {
    typedef typename T::element E;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    constexpr int W = S::LINE / 2;
    int in_row = t.slice * S::BM + (S::BM == 128 ? wg * 64 : 0) + warp * 16;
    int from = t.panel * S::BN + (S::BM == 128 ? 0 : wg * S::WN);
    staging += warp * 2 * SAT_STAGING_WARP;
#pragma unroll
    for (int e = 0; e < S::WN / 2; e++) d[e] *= x.alpha;
#pragma unroll
    for (int j = 0; j < S::WN; j += W) {
        int block = (from + j) / x.bc, in_col = (from + j) % x.bc;
        if (block >= t.count || in_row >= x.br) continue;
        float(&part)[W / 2] = reinterpret_cast<float(&)[W / 2]>(d[j / 2]);
        int rows = x.m - (t.row * x.br + in_row), columns = W;
        if (x.ragged) columns = x.n - (x.col[t.first + block] * x.bc + in_col);
        if (rows < 16 || columns < W) clear_beyond<W>(part, rows - lane / 4, columns - lane % 4 * 2);
        E *to = (E *)x.s + ((int64_t)(t.first + block) * x.br + in_row) * x.bc + in_col;
        sat_store_rows_staged<E, W>(part, staging + j / W % 2 * SAT_STAGING_WARP, to, x.bc, 16, W);
    }
    __syncwarp();
    if (S::STAGING_IN_Y) fence_proxy_async(); // TMA writes there next
}

/* ---- kernel ---- */

template <typename T, typename S, bool X_COL_MAJOR, bool Y_COL_MAJOR>
static __global__ void __launch_bounds__(S::THREADS, 1)
    sampled_wgmma(const __grid_constant__ params x, const __grid_constant__ tensor_maps m) {
    extern __shared__ __align__(1024) char memory[];
    ring_shared *s = (ring_shared *)(memory + S::RING_OFFSET);
    prefetched_tile next = {};
    griddepcontrol_launch_dependents();
    if (!X_COL_MAJOR && x.x_rows < S::BM) sat_clear_shared<S::Y_OFFSET, S::THREADS>(memory);
    if (threadIdx.x < 32) sat_ring_init<S::STAGES>(s, S::WARPGROUPS * 4, Y_WARPS);
    int col = 0;
    if (threadIdx.x >= S::CONSUMERS) {
        prefetch_tensormap(&m.x), prefetch_tensormap(&m.y);
        next.tile.first();
        while (!next.ready) next.poll(x);
        if (threadIdx.x >= S::CONSUMERS + 32) col = next.own_column(x);
    }
    __syncthreads();
    griddepcontrol_wait();
    if (threadIdx.x >= S::CONSUMERS) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x < S::CONSUMERS + 32)
            producer_of_x<S, X_COL_MAJOR>(x, m, next, s, keep_in_register(smem_address(memory)));
        else producer_of_y<S, Y_COL_MAJOR>(x, m, s, keep_in_register(smem_address(memory)), col);
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        consumer<T, S, X_COL_MAJOR, Y_COL_MAJOR>(x, s, smem_address(memory));
    }
    sat_tile_counter_end(x.scheduler.counter, x.scheduler.tiles);
}

/* ---- host ---- */

static int64_t ceil_of(int64_t x, int64_t y) { return (x + y - 1) / y; }

/* Blocks of a block row that a tile holds, at most. */
static int64_t blocks_of_tile(const sat_variant *v, const sat_pattern_view *a) {
    return sat_max(1, v->instance.tile_n / a->block_cols);
}

/* Bytes of a line of Y in shared memory, Y row-major: the longest that a block's columns fill. */
static int line_of(const sat_pattern_view *a) {
    return a->block_cols % 64 == 0 ? 128 : a->block_cols % 32 == 0 ? 64 : 32;
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    int64_t br = a->block_rows, bc = a->block_cols, bm = v->instance.tile_m, bn = v->instance.tile_n;
    if (d->capability != 90 || p->a_dtype != v->instance.dtype || p->c_dtype != p->a_dtype || p->beta != 0)
        return false;
    if (a->stored_blocks == 0 || p->k == 0 || br % 16 || bc % 16) return false;
    if (bm == 128 && (br % bm || line_of(a) != 128)) return false;
    if (p->c_align < 16 || (p->batch > 1 && p->c.batch_stride % 8)) return false;
    if (sat_max(a->grid_rows * br, sat_max(a->grid_cols * bc, p->k)) > 0x7fff0000) return false;
    if (a->stored_blocks > 0x7fff0000) return false;
    double tiles = (double)a->stored_blocks * (double)ceil_of(br, bm) * (double)ceil_of(bc, bn);
    if (tiles > 0x7fff0000) return false;
    return tensormap_fits(p, p->a, p->m, p->k, p->a_align, 2) && tensormap_fits(p, p->b, p->k, p->n, p->b_align, 2);
}

/* Whole waves of tiles over the multiprocessors. In a tile loads from L2 and products overlap; the longer counts. Loads
 * are bound by bytes or by the number of lines. */
static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    double bm = v->instance.tile_m, bn = v->instance.tile_n, each = (double)blocks_of_tile(v, a);
    double rows = (double)sat_max(1, a->grid_rows - a->empty_rows), blocks = (double)a->stored_blocks / rows;
    double tiles = rows * ceil(blocks / each) * (double)ceil_of(a->block_rows, (int64_t)bm) *
                   (double)ceil_of(a->block_cols, (int64_t)bn) * (double)p->batch;
    double waves = fmax(1, ceil(tiles / d->multiprocessors)), depth = (double)ceil_of(p->k, 64) * 64;
    double wide = fmin(bn, each * (double)a->block_cols), rate = 0.96 * d->l2_rate / d->multiprocessors;
    double lines = depth * wide / (p->b.col_stride != 1 ? 64 : line_of(a) / 2);
    double near = fmax(depth * (fmin(bm, (double)a->block_rows) + wide) * 2 / rate, lines * 1.1e-9);
    double compute = 2 * bm * bn * depth / (d->flop_rate[p->a_dtype] / d->multiprocessors);
    return fmax(waves * fmax(near, compute) + (3 + waves) * 1e-6, sat_bytes(p, a) / d->memory_rate);
}

/* The work items, then the tile counter. */
static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)p, (void)d;
    int64_t each = blocks_of_tile(v, a);
    size_t items =
        (size_t)(a->dynamic ? sat_runs_room(a, each) : sat_schedule_runs(a, each, NULL)) * sizeof(sat_work_item);
    return (items + 255) / 256 * 256 + SAT_COUNTER_BYTES;
}

/* A work item is as many neighbouring blocks of a block row as a tile holds. */
static sat_status upload_items(const sat_prepare *q, state *st) {
    const sat_pattern_view *a = q->pattern;
    if (a->dynamic) { // made before every launch
        st->work.items = sat_runs_room(a, blocks_of_tile(q->variant, a));
        st->work.item = (const sat_work_item *)q->workspace;
        return SAT_OK;
    }
    int64_t each = blocks_of_tile(q->variant, a), count = sat_schedule_runs(a, each, NULL);
    sat_work_item *items = (sat_work_item *)malloc((size_t)count * sizeof *items);
    if (!items) return sat_fail(SAT_OUT_OF_MEMORY, "%s: %lld work items", q->variant->name, (long long)count);
    sat_schedule_runs(a, each, items);
    cudaStream_t stream = (cudaStream_t)q->stream;
    cudaError_t e = cudaMemcpyAsync(q->workspace, items, (size_t)count * sizeof *items, cudaMemcpyHostToDevice, stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream);
    free(items);
    st->work.items = count, st->work.item = (const sat_work_item *)q->workspace;
    return e == cudaSuccess ? SAT_OK : sat_fail(SAT_DEVICE_ERROR, "%s: %s", q->variant->name, cudaGetErrorString(e));
}

static sat_status make_state(const sat_prepare *q, void *out) {
    state *st = (state *)out;
    sat_status status = upload_items(q, st);
    if (status != SAT_OK) return status;
    return sat_tile_counter_init(q, workspace(q->variant, q->problem, q->pattern, q->device), &st->counter);
}

static sat_status prepare(const sat_prepare *q, void **out) {
    return tensormap_prepare(q, sizeof(state), make_state, out);
}

template <typename S> static bool make_maps(const sat_launch *l, const params &x, tensor_maps *m) {
    const sat_problem *p = l->problem;
    cuuint64_t rows = (cuuint64_t)p->m, n = (cuuint64_t)p->n, k = (cuuint64_t)p->k;
    cuuint32_t depth = S::BK, box = (cuuint32_t)x.y_box;
    bool x_col_major = p->a.col_stride != 1, y_col_major = p->b.col_stride != 1;
    cuuint64_t lead_x = (cuuint64_t)(x_col_major ? p->a.col_stride : p->a.row_stride) * 2;
    cuuint64_t lead_y = (cuuint64_t)(y_col_major ? p->b.col_stride : p->b.row_stride) * 2;
    sat_tensor_box tx = {p->a_dtype, l->operands[0], 2, {k, rows}, {lead_x}, {depth, (cuuint32_t)x.x_rows}, 128};
    if (x_col_major) tx = {p->a_dtype, l->operands[0], 2, {rows, k}, {lead_x}, {64, depth}, 128};
    sat_tensor_box ty = {p->b_dtype, l->operands[1], 2, {n, k}, {lead_y}, {box, depth}, S::LINE};
    if (y_col_major) ty = {p->b_dtype, l->operands[1], 2, {k, n}, {lead_y}, {depth, box}, 128};
    else if (x.whole) ty = {p->b_dtype, l->operands[1], 3, {64, k, n / 64}, {lead_y, 128}, {64, depth, box / 64}, 128};
    return tensormap_encode(&m->x, tx) && tensormap_encode(&m->y, ty);
}

template <typename T, typename S, bool X_COL_MAJOR, bool Y_COL_MAJOR>
static sat_status start(const sat_launch *l, const params &x, const tensor_maps &m) {
    unsigned grid = (unsigned)sat_min(x.scheduler.tiles, l->device->multiprocessors);
    return sat_start<sampled_wgmma<T, S, X_COL_MAJOR, Y_COL_MAJOR>>(l, grid, S::THREADS, S::BYTES, x, m);
}

template <typename T, typename S> static sat_status launch_tile(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const sat_pattern_view *a = l->pattern;
    state *st = (state *)l->state;
    bool x_col_major = p->a.col_stride != 1, y_col_major = p->b.col_stride != 1;
    params x = {};
    x.scheduler = sat_tile_scheduler_of(st->work, st->counter, ceil_of(a->block_rows, S::BM),
                                        ceil_of(a->block_cols, S::BN), INFINITY, l->device);
    x.col = a->device_col_idx, x.s = (char *)l->operands[2], x.alpha = (float)p->alpha;
    x.m = (int)p->m, x.n = (int)p->n, x.k = (int)p->k, x.br = (int)a->block_rows, x.bc = (int)a->block_cols;
    x.ragged = p->n % x.bc != 0;
    x.x_rows = (int)sat_min(S::BM, x.br);
    x.whole = S::LINE == 128 && p->n % 64 == 0;
    x.y_box = !y_col_major && !x.whole ? S::LINE / 2 : x.bc <= S::BN ? x.bc : std::gcd(x.bc, S::BN);
    if (!tensormaps_reuse(st->made_for, 2, l->operands) && !make_maps<S>(l, x, &st->maps))
        return tensormaps_failed(l, st->made_for);
    sat_status status = sat_renew_runs(l, blocks_of_tile(l->variant, a), st->work);
    if (status != SAT_OK) return status;
    return x_col_major
               ? (y_col_major ? start<T, S, true, true>(l, x, st->maps) : start<T, S, true, false>(l, x, st->maps))
               : (y_col_major ? start<T, S, false, true>(l, x, st->maps) : start<T, S, false, false>(l, x, st->maps));
}

struct instance {
    int tile_m, tile_n, line;
    sat_dtype dtype;
    sat_status (*launch)(const sat_launch *l);
};

template <typename T, int BM, int BN, int STAGES, int LINE> constexpr instance instance_of() {
    return {BM, BN, LINE, T::dtype, launch_tile<T, shape<BM, BN, STAGES, LINE>>};
}

// dtype; rows and columns of the tile; stages; bytes of a line of Y
static constexpr instance instances[] = {
    instance_of<sat_f16, 128, 256, 4, 128>(), instance_of<sat_bf16, 128, 256, 4, 128>(),
    instance_of<sat_f16, 128, 128, 6, 128>(), instance_of<sat_bf16, 128, 128, 6, 128>(),
    instance_of<sat_f16, 64, 256, 5, 128>(),  instance_of<sat_bf16, 64, 256, 5, 128>(),
    instance_of<sat_f16, 64, 256, 5, 64>(),   instance_of<sat_bf16, 64, 256, 5, 64>(),
    instance_of<sat_f16, 64, 256, 5, 32>(),   instance_of<sat_bf16, 64, 256, 5, 32>(),
};

static sat_status launch(const sat_launch *l) {
    const sat_instance *i = &l->variant->instance;
    if (l->pattern->stored_blocks == 0) return SAT_OK;
    for (const instance &x : instances)
        if (x.tile_m == i->tile_m && x.tile_n == i->tile_n && x.line == line_of(l->pattern) && x.dtype == i->dtype)
            return x.launch(l);
    return sat_fail(SAT_INTERNAL, "%s: no such tile", l->variant->name);
}

SAT_FAMILY(cuda_sampled_wgmma) = {
    .revision = "3",
    .op = SAT_SAMPLED,
    .backend = SAT_CUDA,
    .flags = SAT_V_DYNAMIC, // not SAT_V_BATCHED: one launch per batch item
    .about = "TMA and wgmma on Hopper; f16, bf16; block sides multiples of 16 (with tiles of 128 rows: of 128 and 64)",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_state,
};
