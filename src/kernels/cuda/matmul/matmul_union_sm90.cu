// cuda_matmul_union: C = op(A)*B for blocks of 16 and 32, in row groups along the union of their columns (sm_90a). f16
// and bf16.
//
// Products with small blocks are bound by reads of B from L2. Here a tile is a group of block rows, 128 rows in all, by
// 256 columns of C, and B's rows are loaded once for all rows of the group that have a block there. prepare() searches
// for rows that share columns (row_groups.h); they need not be neighbours, and each block row is stored directly to its
// own rows of C. The K loop of a group is a list of union entries: a block column, or a few neighbouring ones, and
// which rows of the group have blocks there.
//
// The product is computed transposed, C^T = B^T * A^T: wgmma M = 64 columns of B, N = BR, the 16 or 32 rows of a block.
// So a block is multiplied as it is, without padding, and absent blocks are not multiplied at all: zero times Inf or
// NaN would not be zero. One producer warp loads B, another one the blocks. Two consumer warpgroups have half of the
// group's rows each.

#include "kernels/cuda/matmul/row_groups.h"
#include "kernels/cuda/common/ptx_sm90.cuh"
#include "kernels/cuda/common/epilogue.cuh"

/* ---- shapes ---- */

static constexpr int BM = 128, BN = 256, BK = 64, STAGES = 4, QUEUE_TILES = 4;
static constexpr int CONSUMER_WARPS = 8, THREADS = CONSUMER_WARPS * 32 + 128;
static constexpr int MAX_GROUP_ROWS = BM / 16; // block rows of a group: with blocks of 16 rows

/* Blocks of op(A) are BR x BC. A stage is BK deep: it has STAGE_COLUMNS block columns, and for each of them its rows of
 * B and a slot for one block of each of the group's GROUP_ROWS rows.
 *
 * Masks of rows or blocks have one layout: bit column*GROUP_ROWS + row, where `column` counts from the first block
 * column of the entry or the stage, and `row` is a row of the group. */
template <int BR_, int BC_> struct shape {
    static constexpr int BR = BR_, BC = BC_, STAGE_COLUMNS = BK / BC;
    static constexpr int GROUP_ROWS = BM / BR, WG_ROWS = GROUP_ROWS / 2; // block rows of a group, of a warpgroup
    static constexpr int BLOCK_BYTES = BR * BC * 2, B_COLUMN_BYTES = BC * BN * 2; // of a block; of B for a block column
    static constexpr int SUMS = BR / 2; // sums of a thread for 64 columns of a block row
};

/* Block columns of a union entry. Where B is column-major its lines in shared memory are as long as an entry is deep,
 * and short lines are copied slowly. So with blocks 16 wide an entry has four neighbouring columns. */
constexpr int columns_per_entry(bool b_column_major, int bc) { return b_column_major && bc == 16 ? 4 : 1; }
template <typename S, bool B_COL_MAJOR>
constexpr int entries_per_stage = S::STAGE_COLUMNS / columns_per_entry(B_COL_MAJOR, S::BC);

/* ---- parameters ---- */

struct tensor_maps {
    CUtensorMap a, b, c;
};

struct params {
    sat_rows rows; // the stored blocks of op(A)
    sat_tile_epilogue epilogue;
    sat_tile_scheduler scheduler; // its work items are groups; `first` and `count` are entries
    const sat_union_entry *entries;
    const int32_t *group_rows; // block rows of all groups, -1 for none
    bool b_whole_chunks;       // row-major B, n a multiple of 64: one TMA box covers an entry's part
    bool tma_output;           // C is stored by TMA
};

/* What `prepare` makes, and the tensor maps of the last launch. */
struct state {
    sat_device_schedule work;
    unsigned *counter;
    const sat_union_entry *entries;
    const int32_t *group_rows;
    tensor_maps maps;
    const void *made_for[3]; // the pointers that the maps were encoded for
    bool tma_output;
};

/* ---- shared memory and barriers ---- */

/* Dynamic shared memory, 1024-byte aligned: [stages, each A then B][staging for C]. Barriers and queue are static. */
static constexpr int A_STAGE_BYTES = BM * BK * 2, B_STAGE_BYTES = BK * BN * 2,
                     STAGE_BYTES = A_STAGE_BYTES + B_STAGE_BYTES;
static constexpr int SHARED = STAGES * STAGE_BYTES + 2 * SAT_STAGING + 1024;

/* A tile, as the producer of B publishes it to the other warps. */
struct tile {
    int panel, first, count;   // panel; first union entry and number of entries, -1: there are no more tiles
    int row[MAX_GROUP_ROWS];   // block rows of the group, -1 for none
    int block[MAX_GROUP_ROWS]; // positions of their first blocks
    uint32_t block_mask[32];   // sat_union_entry::block_mask of the first entries
};

/* A ring of stages and a queue of tiles. `full` completes a phase when B and the blocks of the stage have arrived,
 * `empty` when all consumer warps have read it. A barrier is waited for by the parity of a phase: consumers begin with
 * phase 0, producers with 1, since at first everything is empty. A tile is large, so all 32 lanes of a producer write
 * or read an entry of the queue and arrive at its barriers.
 *
 * Each role has two pipeline states: `stage` and `phase` of the ring, `queue_entry` and `queue_phase` of the queue.
 * They are plain variables: of a struct, ptxas makes other code than the code that was measured. */
struct ring_shared {
    uint64_t full[STAGES], empty[STAGES], tile_full[QUEUE_TILES], tile_empty[QUEUE_TILES];
    uint32_t block_mask[STAGES]; // which blocks a stage has
    tile tiles[QUEUE_TILES];
};

/* setmaxnreg: with both, 128 * 72 + 256 * 216 = 64512 registers of the 65536 that a multiprocessor has. */
static constexpr int PRODUCER_REGISTERS = 72, CONSUMER_REGISTERS = 216;

static_assert(SHARED + sizeof(ring_shared) <= 227 * 1024, "more shared memory than a CTA may have");

/* ---- producers ---- */

/* 32 union entries of a tile, one a lane, and the 32 after them, which are loaded ahead. */
struct lane_entries {
    sat_union_entry now, later;

    __device__ __forceinline__ static sat_union_entry load(const params &x, int first, int count, int from) {
        int mine = from + (int)threadIdx.x % 32;
        return mine < count ? x.entries[first + mine] : sat_union_entry{0, 0};
    }
    __device__ __forceinline__ void begin(const params &x, int first, int count) {
        now = load(x, first, count, 0), later = load(x, first, count, 32);
    }
    /* `from`: the stage's first entry. At a multiple of 32 the entries loaded ahead become `now`, and 32 more are
     * loaded. */
    __device__ __forceinline__ void advance(const params &x, int first, int count, int from) {
        if (from % 32 == 0 && from > 0) now = later, later = load(x, first, count, from + 32);
    }
    /* Which blocks the stage of the entries from `from` on has, as in ring_shared::block_mask. */
    template <typename S, bool B_COL_MAJOR> __device__ __forceinline__ uint32_t block_mask(int from) const {
        constexpr int ENTRIES = entries_per_stage<S, B_COL_MAJOR>, COLUMNS_PER_ENTRY = S::STAGE_COLUMNS / ENTRIES;
        int entry = (int)threadIdx.x % 32 - from % 32;
        return __reduce_or_sync(
            ~0u, entry >= 0 && entry < ENTRIES ? now.block_mask << entry * (COLUMNS_PER_ENTRY * S::GROUP_ROWS) : 0);
    }
};

/* The next tile, fetched in steps while the current tile's operands are loaded. */
struct prefetched_tile {
    sat_fetched_tile tile;
    lane_entries entries;
    int row, block; // lane i: row i of the group, -1 for none, and the position of its first block
    int load_round; // 0: next are loads of rows and entries; 1: of first blocks
    bool ready;

    template <int GROUP_ROWS> __device__ __forceinline__ void poll(const params &x) {
        if (ready || tile.poll(x.scheduler)) return; // tile.poll() is false once the item is there
        int lane = (int)threadIdx.x % 32;
        bool some = !tile.none(x.scheduler);
        if (load_round++ == 0) {
            row = some && lane < GROUP_ROWS ? x.group_rows[tile.item.row * GROUP_ROWS + lane] : -1;
            if (some) entries.begin(x, (int)tile.item.first, tile.item.count);
            return;
        }
        block = row < 0 ? 0 : (int)x.rows.ptr[row];
        ready = true;
    }
    __device__ __forceinline__ void request_next() { tile.request_next(), load_round = 0, ready = false; }
};

/* Takes tiles from the scheduler, publishes them, and loads B. Announces the bytes of both operands. */
template <typename S, bool B_COL_MAJOR>
__device__ static void producer_of_b(const params &x, const tensor_maps &m, prefetched_tile &next, ring_shared *s,
                                     uint32_t smem) {
    constexpr int ENTRIES = entries_per_stage<S, B_COL_MAJOR>, DEPTH = BK / ENTRIES; // depth of an entry
    constexpr int BYTES = B_STAGE_BYTES / ENTRIES;                                   // of an entry's part of B
    int lane = threadIdx.x % 32, stage = 0, queue_entry = 0;
    uint32_t phase = 1, queue_phase = 1, full = keep_in_register(smem_address(s->full)), empty = full + sizeof s->full;
    bool one = elect_one();
    for (;;) {
        while (!next.ready) next.poll<S::GROUP_ROWS>(x);
        lane_entries entries = next.entries;
        bool last = next.tile.none(x.scheduler);
        int first = (int)next.tile.item.first, count = next.tile.item.count, panel = (int)next.tile.coord.panel;
        // Every lane waits, since every lane writes.
        mbarrier_wait(smem_address(&s->tile_empty[queue_entry]), queue_phase);
        tile *t = &s->tiles[queue_entry];
        if (lane < S::GROUP_ROWS) t->row[lane] = next.row, t->block[lane] = next.block;
        t->block_mask[lane] = entries.now.block_mask;
        if (lane == 0) t->panel = panel, t->first = first, t->count = last ? -1 : count;
        mbarrier_arrive(smem_address(&s->tile_full[queue_entry])); // every lane arrives for what it wrote
        if (++queue_entry == QUEUE_TILES) queue_entry = 0, queue_phase ^= 1;
        if (last) return;
        next.request_next();
        for (int from = 0; from < count; from += ENTRIES) {
            entries.advance(x, first, count, from);
            uint32_t block_mask = entries.block_mask<S, B_COL_MAJOR>(from);
            int k[ENTRIES], here = min(ENTRIES, count - from);
#pragma unroll
            for (int e = 0; e < ENTRIES; e++) k[e] = __shfl_sync(~0u, entries.now.col, from % 32 + e) * DEPTH;
            if (one) {
                uint32_t bar = full + stage * 8, to = smem + stage * STAGE_BYTES + A_STAGE_BYTES;
                mbarrier_wait(empty + stage * 8, phase);
                s->block_mask[stage] = block_mask;
                mbarrier_arrive_expect_tx(bar, here * BYTES + __popc(block_mask) * S::BLOCK_BYTES);
#pragma unroll
                for (int e = 0; e < ENTRIES; e++)
                    if (e < here)
                        sat_load_b<DEPTH, BN, B_COL_MAJOR>(&m.b, x.b_whole_chunks, to + e * BYTES, bar, k[e],
                                                           panel * BN);
            }
            if (++stage == STAGES) stage = 0, phase ^= 1;
            next.poll<S::GROUP_ROWS>(x);
        }
    }
}

/* A stage has 32 slots for blocks, or fewer. Lane i loads slot i: column i / GROUP_ROWS of the stage, row
 * i % GROUP_ROWS of the group. */
template <typename S, bool A_TRANSPOSED> struct lane_block {
    uint32_t own_row_mask; // bits of all slots of this lane's row
    int next_block;        // position of the row's next block, in the order of op(A)'s rows
    int line;              // where this lane's block begins in A's tensor map
    bool there;            // the stage has a block in this lane's slot

    /* Finds this lane's block in the next stage, which has the blocks of `block_mask`, and moves past the row's blocks
     * there. */
    __device__ __forceinline__ void find(const params &x, uint32_t block_mask) {
        uint32_t lane = threadIdx.x % 32, own = block_mask & own_row_mask;
        int block_position = next_block + __popc(own & ((1u << lane) - 1)), block_index = block_position;
        there = block_mask >> lane & 1, next_block += __popc(own);
        if (A_TRANSPOSED && there) block_index = (int)x.rows.block[block_position];
        line = block_index * (A_TRANSPOSED ? S::BC : S::BR);
    }
};

/* Loads the blocks of A. Those of the next stage are found before the current stage is waited for; in the loop
 * `next_entry` is the first entry of that stage. */
template <typename S, bool A_TRANSPOSED, bool B_COL_MAJOR>
__device__ static void producer_of_a(const params &x, const tensor_maps &m, ring_shared *s, uint32_t smem) {
    constexpr int ENTRIES = entries_per_stage<S, B_COL_MAJOR>;
    int lane = threadIdx.x % 32, mine = lane % S::GROUP_ROWS, stage = 0, queue_entry = 0;
    uint32_t phase = 1, queue_phase = 0, full = keep_in_register(smem_address(s->full)), empty = full + sizeof s->full;
    lane_block<S, A_TRANSPOSED> block = {};
    for (int e = 0; e < S::STAGE_COLUMNS; e++) block.own_row_mask |= 1u << (e * S::GROUP_ROWS + mine);
    smem += lane * S::BLOCK_BYTES;
    for (;;) {
        mbarrier_wait(smem_address(&s->tile_full[queue_entry]), queue_phase);
        const tile *t = &s->tiles[queue_entry];
        int first = t->first, count = t->count;
        lane_entries entries;
        entries.now.block_mask = t->block_mask[lane], block.next_block = t->block[mine];
        mbarrier_arrive(smem_address(&s->tile_empty[queue_entry])); // every lane arrives for what it read
        if (++queue_entry == QUEUE_TILES) queue_entry = 0, queue_phase ^= 1;
        if (count < 0) return;
        entries.later = lane_entries::load(x, first, count, 32);
        block.find(x, entries.block_mask<S, B_COL_MAJOR>(0));
        for (int next_entry = ENTRIES; next_entry < count + ENTRIES; next_entry += ENTRIES) {
            lane_block<S, A_TRANSPOSED> now = block;
            if (next_entry < count) {
                entries.advance(x, first, count, next_entry);
                block.find(x, entries.block_mask<S, B_COL_MAJOR>(next_entry));
            }
            mbarrier_wait(empty + stage * 8, phase);
            if (now.there) tma_load(smem + stage * STAGE_BYTES, &m.a, full + stage * 8, 0, now.line);
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
    }
}

/* ---- consumer ---- */

/* C^T = B^T * A^T: wgmma M = 64 columns of B, N = BR. These are the descriptors of B as wgmma's A operand and of a
 * block as its B operand. B column-major is K-major, B row-major MN-major. A block is K-major, and
 * MN-major where blocks are stored transposed. */
template <typename S, bool B_COL_MAJOR> __device__ __forceinline__ uint64_t descriptor_of_b(uint32_t b) {
    constexpr int line = B_COL_MAJOR ? BK / entries_per_stage<S, B_COL_MAJOR> * 2 : 128;
    return wgmma_descriptor(b, swizzle_mode_of(line), B_COL_MAJOR ? 16 : S::BC * 128, 8 * line);
}
template <typename S, bool A_TRANSPOSED> __device__ __forceinline__ uint64_t descriptor_of_block(uint32_t a) {
    constexpr int line = A_TRANSPOSED ? S::BR * 2 : S::BC * 2;
    return wgmma_descriptor(a, swizzle_mode_of(line), A_TRANSPOSED ? S::BLOCK_BYTES : 16, 8 * line);
}
/* The same descriptor, `bytes` further on. Only its lower word changes; the upper one is a constant. */
__device__ __forceinline__ uint64_t descriptor_plus(uint64_t descriptor, int bytes) {
    return (descriptor & ~(uint64_t)0xffffffff) | ((uint32_t)descriptor + bytes / 16);
}

/* Issues the wgmma of one block by all BN columns. 64 columns of B are DEPTH*128 bytes in both layouts, where an entry
 * is DEPTH deep. K + 16 is 32 bytes on when K-major, 16 lines on when MN-major: a line is 128 bytes of B, 2*BR of a
 * block. */
template <typename T, typename S, bool A_TRANSPOSED, bool B_COL_MAJOR>
__device__ __forceinline__ void multiply_block(float *d, uint64_t b, uint64_t block) {
    constexpr int DEPTH = BK / entries_per_stage<S, B_COL_MAJOR>;
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < S::BC / 16; k++)
#pragma unroll
        for (int c = 0; c < BN / 64; c++) {
            float(&sums)[S::SUMS] = reinterpret_cast<float(&)[S::SUMS]>(d[c * S::SUMS]);
            wgmma_ss<T, S::BR, !B_COL_MAJOR, A_TRANSPOSED>::run(
                sums, descriptor_plus(b, c * (DEPTH * 128) + k * (B_COL_MAJOR ? 32 : 16 * 128)),
                descriptor_plus(block, k * (A_TRANSPOSED ? 16 * (2 * S::BR) : 32)), 1);
        }
    wgmma_commit_group();
}

template <typename E, typename S>
__device__ __forceinline__ void epilogue(const params &x, const tensor_maps &m, float (&d)[BN / 2],
                                         const int (&row)[S::WG_ROWS], uint32_t staging, int n0, int wg);

/* Main loop of a warpgroup. It has half of the group's block rows and all BN columns. */
template <typename T, typename S, bool A_TRANSPOSED, bool B_COL_MAJOR>
__device__ static void consumer(const params &x, const tensor_maps &m, ring_shared *s, uint32_t smem) {
    typedef typename T::element E;
    int lane = threadIdx.x % 32, wg = threadIdx.x / 128, stage = 0, queue_entry = 0;
    uint32_t phase = 0, queue_phase = 0, staging = smem + STAGES * STAGE_BYTES + wg * SAT_STAGING;
    for (;;) {
        mbarrier_wait(smem_address(&s->tile_full[queue_entry]), queue_phase);
        const tile *t = &s->tiles[queue_entry];
        int count = read_shared_broadcast(&t->count), n0 = read_shared_broadcast(&t->panel) * BN, row[S::WG_ROWS];
#pragma unroll
        for (int r = 0; r < S::WG_ROWS; r++) row[r] = read_shared_broadcast(&t->row[wg * S::WG_ROWS + r]);
        if (lane == 0) mbarrier_arrive(smem_address(&s->tile_empty[queue_entry]));
        if (++queue_entry == QUEUE_TILES) queue_entry = 0, queue_phase ^= 1;
        if (count < 0) break;
        float d[BN / 2]; // [own block row][64 columns of BN][SUMS]
#pragma unroll
        for (int e = 0; e < BN / 2; e++) d[e] = 0;
        for (int from = 0; from < count; from += entries_per_stage<S, B_COL_MAJOR>) {
            mbarrier_wait(smem_address(&s->full[stage]), phase);
            uint32_t block_mask = read_shared_broadcast(&s->block_mask[stage]) >> wg * S::WG_ROWS;
            uint32_t a = smem + stage * STAGE_BYTES + wg * S::WG_ROWS * S::BLOCK_BYTES;
            uint32_t b = smem + stage * STAGE_BYTES + A_STAGE_BYTES;
#pragma unroll 1
            for (int e = 0; e < S::STAGE_COLUMNS;
                 e++, block_mask >>= S::GROUP_ROWS, a += S::GROUP_ROWS * S::BLOCK_BYTES) {
                constexpr int COLUMNS_PER_ENTRY = S::STAGE_COLUMNS / entries_per_stage<S, B_COL_MAJOR>;
                uint32_t from_b = b + e / COLUMNS_PER_ENTRY * (COLUMNS_PER_ENTRY * S::B_COLUMN_BYTES) +
                                  e % COLUMNS_PER_ENTRY * (S::BC * 2);
#pragma unroll
                for (int r = 0; r < S::WG_ROWS; r++)
                    if (block_mask >> r & 1)
                        multiply_block<T, S, A_TRANSPOSED, B_COL_MAJOR>(
                            &d[r * 4 * S::SUMS], descriptor_of_b<S, B_COL_MAJOR>(from_b),
                            descriptor_plus(descriptor_of_block<S, A_TRANSPOSED>(a), r * S::BLOCK_BYTES));
            }
            wgmma_wait_group<0>();
            if (lane == 0) mbarrier_arrive(smem_address(&s->empty[stage]));
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
        epilogue<E, S>(x, m, d, row, staging, n0, wg);
    }
    tma_store_wait_all();
}

/* ---- epilogue ---- */

/* alpha*sum + bias and relu, in place, for the sums of one block row. `i0`: its first row. */
template <typename S>
__device__ __forceinline__ void apply_alpha_bias_relu(const sat_epilogue &o, float *d, int64_t i0) {
    if (sat_epilogue_is_identity(o)) return;
    float alpha = (float)o.alpha, lower_bound = o.activation == SAT_ACT_RELU ? 0 : -INFINITY;
#pragma unroll
    for (int e = 0; e < S::SUMS; e++) {
        int64_t i = i0 + e / 4 * 8 + threadIdx.x % 4 * 2 + e % 2;
        float bias = o.bias && i >= 0 && i < o.m ? sat_load_as(0.f, o.dtype, o.bias, i) : 0;
#pragma unroll
        for (int c = 0; c < BN / 64; c++) {
            float y = alpha * d[c * S::SUMS + e] + bias;
            d[c * S::SUMS + e] = y < lower_bound ? lower_bound : y; // keeps NaN
        }
    }
}

/* C row-major: the warpgroup together, in four rounds of 8 KB through two staging buffers. The sums are those of C^T,
 * so a line of a buffer, a row of C, is a column of them. A TMA store has 64 columns of a block row. Where one is left
 * out the bulk group is empty: tma_store_wait_read counts on it. */
template <typename E, typename S>
__device__ __forceinline__ void store_rows_by_tma(const params &x, const tensor_maps &m, const float (&d)[BN / 2],
                                                  const int (&row)[S::WG_ROWS], uint32_t staging, int n0, int wg) {
    bool one = threadIdx.x % 128 == 0;
#pragma unroll
    for (int round = 0; round < 4; round++) {
        uint32_t buffer = staging + round % 2 * (SAT_STAGING / 2);
        if (one) tma_store_wait_read<S::WG_ROWS>();
        named_barrier_sync(1 + wg, 128);
#pragma unroll
        for (int i = 0; i < S::WG_ROWS; i++)
            sat_write_staging<E, S::BR, true>(&d[(round * S::WG_ROWS + i) * S::SUMS], buffer + i * (S::BR * 128));
        fence_proxy_async();
        named_barrier_sync(1 + wg, 128);
#pragma unroll
        for (int i = 0; i < S::WG_ROWS; i++) {
            int part = round * S::WG_ROWS + i, r = part / 4, j = n0 + part % 4 * 64;
            if (one && row[r] >= 0 && j < x.epilogue.out.n)
                tma_store(&m.c, buffer + i * (S::BR * 128), j, row[r] * S::BR);
            else if (one) bulk_commit_group();
        }
    }
}

/* Where byte `to` of lines of 32 or 64 bytes is stored under the swizzle of such lines (swizzled_offset: of 128). */
template <int LINE> __device__ __forceinline__ uint32_t swizzled_short_line(uint32_t to) {
    return to ^ (to >> 3 & (LINE - 16));
}

/* C column-major: each warp on its own. A TMA store has 16 columns; their lines are a block's rows. */
template <typename E, typename S>
__device__ __forceinline__ void store_columns_by_tma(const params &x, const tensor_maps &m, const float (&d)[BN / 2],
                                                     const int (&row)[S::WG_ROWS], uint32_t staging, int n0) {
    constexpr int LINE = S::BR * 2;
    int lane = threadIdx.x % 32, down = threadIdx.x / 32 % 4 * 16;
    staging += down / 16 * (SAT_STAGING / 4);
#pragma unroll
    for (int r = 0; r < S::WG_ROWS; r++) {
        if (lane == 0) tma_store_wait_read<0>();
        __syncwarp();
#pragma unroll
        for (int c = 0; c < BN / 64; c++)
#pragma unroll
            for (int q = 0; q < S::BR / 16; q++) {
                uint32_t w[4], to = lane % 16 * LINE + (q * 2 + lane / 16) * 16;
                sat_pack_8<E>(w, &d[(r * 4 + c) * S::SUMS + q * 8]);
                stmatrix_x4(staging + c * (16 * LINE) + swizzled_short_line<LINE>(to), w[0], w[1], w[2], w[3]);
            }
        fence_proxy_async();
        __syncwarp();
        for (int c = 0; lane == 0 && c < BN / 64; c++)
            if (row[r] >= 0 && n0 + c * 64 + down < x.epilogue.out.n)
                tma_store(&m.c, staging + c * (16 * LINE), row[r] * S::BR, n0 + c * 64 + down);
    }
}

/* Any other C: the generic path of epilogue.cuh, each warp on its own, in squares of 16 x 16. */
template <typename S>
__device__ __forceinline__ void store_squares(const params &x, const float (&d)[BN / 2], const int (&row)[S::WG_ROWS],
                                              uint32_t staging, int64_t n0) {
    int lane = threadIdx.x % 32, down = threadIdx.x / 32 % 4 * 16;
    float *square = (float *)__cvta_shared_to_generic(staging + down / 16 * (SAT_STAGING / 4));
    const int row_step = x.epilogue.column_major ? 1 : SAT_SQUARE_PITCH,
              col_step = x.epilogue.column_major ? SAT_SQUARE_PITCH : 1;
    float *mine = square + lane / 4 * col_step + lane % 4 * 2 * row_step;
#pragma unroll 1
    for (int s = 0; s < BN / 16; s++) {
        __syncwarp();
#pragma unroll
        for (int t = 0; t < BN / 16; t++)
#pragma unroll
            for (int e = 0; e < 8; e++)
                if (t == s) mine[e / 2 % 2 * 8 * col_step + (e / 4 * 8 + e % 2) * row_step] = d[t * 8 + e];
        __syncwarp();
        int part = s / (S::BR / 16), r = part / 4, i = s % (S::BR / 16) * 16, in = -1;
#pragma unroll
        for (int g = 0; g < S::WG_ROWS; g++)
            if (g == r) in = row[g];
        if (in >= 0)
            sat_store_square<float, 16>(x.epilogue, square, (int64_t)in * S::BR + i, n0 + part % 4 * 64 + down, lane);
    }
    __syncwarp();
}

/* A warpgroup's sums to C. `row`: its block rows, -1 for none. */
template <typename E, typename S>
__device__ __forceinline__ void epilogue(const params &x, const tensor_maps &m, float (&d)[BN / 2],
                                         const int (&row)[S::WG_ROWS], uint32_t staging, int n0, int wg) {
    if (!x.tma_output) return store_squares<S>(x, d, row, staging, n0);
#pragma unroll
    for (int r = 0; r < S::WG_ROWS; r++)
        apply_alpha_bias_relu<S>(x.epilogue.out, &d[r * 4 * S::SUMS], (int64_t)row[r] * S::BR);
    if (x.epilogue.column_major) store_columns_by_tma<E, S>(x, m, d, row, staging, n0);
    else store_rows_by_tma<E, S>(x, m, d, row, staging, n0, wg);
}

/* ---- kernel ---- */

template <typename T, typename S, bool A_TRANSPOSED, bool B_COL_MAJOR>
static __global__ void __launch_bounds__(THREADS, 1)
    matmul_union(const __grid_constant__ params x, const __grid_constant__ tensor_maps m) {
    extern __shared__ char memory[];
    __shared__ ring_shared s;
    uint32_t smem = (smem_address(memory) + 1023) & ~1023u;
    prefetched_tile next = {};
    griddepcontrol_launch_dependents();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++)
            mbarrier_init(smem_address(&s.full[i]), 1), mbarrier_init(smem_address(&s.empty[i]), CONSUMER_WARPS);
        for (int i = 0; i < QUEUE_TILES; i++)
            mbarrier_init(smem_address(&s.tile_full[i]), 32),
                mbarrier_init(smem_address(&s.tile_empty[i]), CONSUMER_WARPS + 32);
        fence_mbarrier_init();
    }
    if (threadIdx.x / 32 == CONSUMER_WARPS) {
        prefetch_tensormap(&m.a), prefetch_tensormap(&m.b);
        next.tile.first();
        while (!next.ready) next.poll<S::GROUP_ROWS>(x);
    }
    __syncthreads();
    griddepcontrol_wait();
    if (threadIdx.x >= CONSUMER_WARPS * 32) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x / 32 == CONSUMER_WARPS) producer_of_b<S, B_COL_MAJOR>(x, m, next, &s, keep_in_register(smem));
        else if (threadIdx.x / 32 == CONSUMER_WARPS + 1)
            producer_of_a<S, A_TRANSPOSED, B_COL_MAJOR>(x, m, &s, keep_in_register(smem));
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        consumer<T, S, A_TRANSPOSED, B_COL_MAJOR>(x, m, &s, smem);
    }
    sat_tile_counter_end(x.scheduler.counter, x.scheduler.tiles);
}

/* ---- host ---- */

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    if ((r.br != 16 && r.br != 32) || (r.bc != 16 && r.bc != 32)) return false;
    if ((double)r.count * ceil((double)p->n / (double)BN) > 0x7fff0000) return false; // the tile counter is 32-bit
    return tensormaps_fit_matmul(v, p, a, d);
}

static constexpr double SM_CLOCK_HZ = 1.7e9; // assumed

/* Cycles of a wgmma m64nNk16 with N = br. One this narrow takes as long as shared memory needs to deliver its operands,
 * 128 bytes a cycle: 16 cycles for 64 columns of B by K 16, br / 4 for the block. */
static double wgmma_cycles(double br) { return 16 + br / 4; }

/* Loads from L2 (B for each union entry, blocks for each panel) and products overlap; the longer counts. */
static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    sat_rows r = sat_op_rows(p, a);
    double panels = ceil((double)p->n / (double)BN), groups = ceil((double)r.count * (double)r.br / (double)BM);
    double cols = ceil((double)r.k / (double)r.bc), width = columns_per_entry(p->b.col_stride != 1, (int)r.bc);
    double entries = sat_union_expected(r.count, (int64_t)cols, a->stored_blocks, (int)(BM / r.br)); // of one column
    entries =
        groups * cols / width * (1 - pow(1 - fmin(1, entries / (groups * cols)), width)); // of `width` columns each
    double loads = entries * panels * width * (double)(r.bc * BN * 2) + (double)a->stored_elements * 2 * panels;
    double rate = 0.9 * d->l2_rate, utilization = fmin(1, groups * panels / d->multiprocessors),
           batch = (double)p->batch;
    double wgmmas = (double)a->stored_blocks * panels * (double)(r.bc / 16) * (BN / 64);
    double time =
        fmax(loads / rate, wgmmas * wgmma_cycles((double)r.br) / (SM_CLOCK_HZ * d->multiprocessors)) / utilization +
        ceil(groups * panels / d->multiprocessors) * 1e-6 + 3e-6;
    return fmax(batch * time, sat_bytes(p, a) / d->memory_rate);
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)d;
    sat_rows r = sat_op_rows(p, a);
    return sat_row_groups_bytes(&r, (int)(BM / r.br));
}

static sat_status make_state(const sat_prepare *q, void *out) {
    state *st = (state *)out;
    sat_rows r = sat_op_rows(q->problem, q->pattern);
    return sat_prepare_row_groups(q, (int)(BM / r.br), columns_per_entry(q->problem->b.col_stride != 1, (int)r.bc),
                                  &st->work, &st->entries, &st->group_rows, &st->counter);
}

static sat_status prepare(const sat_prepare *q, void **out) {
    return tensormap_prepare(q, sizeof(state), make_state, out);
}

template <typename S> static bool make_maps(const sat_launch *l, tensor_maps *m) {
    bool a_transposed = l->problem->matmul.transpose == SAT_TRANSPOSE, b_col_major = l->problem->b.col_stride != 1;
    int entries = b_col_major ? entries_per_stage<S, true> : entries_per_stage<S, false>;
    return tensormap_of_a(l, a_transposed ? S::BR : S::BC, a_transposed ? S::BC : S::BR, &m->a) &&
           tensormap_of_b(l, BK / entries, BN, &m->b);
}

template <typename T, typename S, bool A_TRANSPOSED, bool B_COL_MAJOR>
static sat_status start(const sat_launch *l, const params &x, const tensor_maps &m) {
    unsigned grid = (unsigned)sat_min(x.scheduler.tiles, l->device->multiprocessors);
    return sat_start<matmul_union<T, S, A_TRANSPOSED, B_COL_MAJOR>>(l, grid, THREADS, SHARED, x, m);
}

template <typename T, typename S> static sat_status launch_shape(const sat_launch *l) {
    const sat_problem *p = l->problem;
    state *st = (state *)l->state;
    params x = {};
    x.rows = sat_device_rows(p, l->pattern), x.epilogue = sat_tile_epilogue_of(l, true);
    x.scheduler = sat_tile_scheduler_of(st->work, st->counter, 1, (p->n + BN - 1) / BN, 2.0 * BN * (double)p->k,
                                        l->device, SAT_TILES_PER_CTA_L2);
    x.entries = st->entries, x.group_rows = st->group_rows, x.b_whole_chunks = sat_b_whole_chunks(p);
    if (!tensormaps_reuse(st->made_for, 3, l->operands)) {
        if (!make_maps<S>(l, &st->maps)) return tensormaps_failed(l, st->made_for);
        st->tma_output = x.epilogue.path == SAT_STORE_PACKED16 &&
                         tensormap_of_c(l, S::BR, x.epilogue.column_major ? 16 : 64, &st->maps.c);
    }
    x.tma_output = st->tma_output;
    const tensor_maps &m = st->maps;
    bool a_transposed = p->matmul.transpose == SAT_TRANSPOSE, b_col_major = p->b.col_stride != 1;
    return a_transposed ? (b_col_major ? start<T, S, true, true>(l, x, m) : start<T, S, true, false>(l, x, m))
                        : (b_col_major ? start<T, S, false, true>(l, x, m) : start<T, S, false, false>(l, x, m));
}

struct instance {
    int block_rows, block_cols; // of op(A)
    sat_dtype dtype;
    sat_status (*launch)(const sat_launch *l);
};

template <typename T, int BR, int BC> constexpr instance instance_of() {
    return {BR, BC, T::dtype, launch_shape<T, shape<BR, BC>>};
}

static constexpr instance instances[] = {
    instance_of<sat_f16, 16, 16>(),  instance_of<sat_bf16, 16, 16>(), instance_of<sat_f16, 16, 32>(),
    instance_of<sat_bf16, 16, 32>(), instance_of<sat_f16, 32, 16>(),  instance_of<sat_bf16, 32, 16>(),
    instance_of<sat_f16, 32, 32>(),  instance_of<sat_bf16, 32, 32>(),
};

static sat_status launch(const sat_launch *l) {
    if (l->problem->m == 0 || l->problem->n == 0) return SAT_OK;
    sat_rows r = sat_op_rows(l->problem, l->pattern);
    for (const instance &x : instances)
        if (x.block_rows == r.br && x.block_cols == r.bc && x.dtype == l->variant->instance.dtype) return x.launch(l);
    return sat_fail(SAT_INTERNAL, "%s: no such block", l->variant->name);
}

SAT_FAMILY(cuda_matmul_union) = {
    .revision = "3",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .flags = 0, // not SAT_V_BATCHED: one launch per batch item
    .about = "block rows of 16 or 32 in groups, along the union of their columns, on Hopper; f16, bf16",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_state,
};
