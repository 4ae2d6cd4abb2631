// cuda_matmul_union: block rows in groups of 128 rows, along the union of their columns (sm_90a). f16 and bf16.
//
// Low blocks are bound by B's way from L2: it comes once for all rows of a group that have the column. prepare puts
// rows together that share columns; they need not be neighbours, and C is written in place. The sides are exchanged,
// C^T = B^T * A^T: B's columns are the 64 rows that a warpgroup product has, and a block's rows its columns, 16 or 32.
// So nothing is multiplied that is not there: zero times what is not finite is not zero. One warp brings B, another the
// blocks; a warpgroup has half of the group's rows, by all 256 columns.

#include "kernels/cuda/matmul/row_groups.h"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/common/epilogue.cuh"

static constexpr int ROWS = 128, COLUMNS = 256, WARPS = 8, DEEP = 64, STAGES = 4, AHEAD = 4;
static constexpr int STAGE_A = ROWS * DEEP * 2, STAGE_B = DEEP * COLUMNS * 2, STAGE = STAGE_A + STAGE_B;
static constexpr int SIZES = ROWS / 16; // block rows of a group, at most
static constexpr int SHARED = STAGES * STAGE + 2 * SAT_STAGING + 1024, THREADS = WARPS * 32 + 128;

/* BR x BC: the block. A stage has EACH block columns; of each, B and a place for each row's block. */
template <int BR_, int BC_> struct shape {
    static constexpr int BR = BR_, BC = BC_, EACH = DEEP / BC, SIZE = ROWS / BR, OWN = SIZE / 2; // block rows
    static constexpr int A = BR * BC * 2, B = BC * COLUMNS * 2;                                  // bytes
    static constexpr int SUMS = BR / 2; // of a thread, in 64 columns of a block row
};

/* Block columns in a step of the union. Where B lies by columns its lines are as long as a step is deep, and a copy
 * takes its time by lines: with blocks of 16 four neighbours come together, whoever has them. */
constexpr int each_of(bool turned_b, int bc) { return turned_b && bc == 16 ? 4 : 1; }
template <typename S, bool TB> constexpr int steps_of = S::EACH / each_of(TB, S::BC);       // in a stage
template <typename S, bool TB> using right = sat_b_loader<DEEP / steps_of<S, TB>, COLUMNS>; // a step's part of B

struct maps {
    CUtensorMap a, b, c;
};

struct job {
    sat_rows r;
    sat_tile_epilogue out;
    sat_tile_scheduler deal;
    const sat_union_step *steps;
    const int32_t *row;   // the groups' rows
    bool whole_b, copied; // as in matmul_wgmma_sm90.cu
};

struct tile {
    int panel, first, count;      // steps from `first` on; count -1: there are no more tiles
    int row[SIZES], block[SIZES]; // of the group: its rows, -1 where there is none, and their first blocks
    uint32_t rows[32];            // of its first steps
};

struct barriers {
    uint64_t full[STAGES], empty[STAGES], tile_full[AHEAD], tile_empty[AHEAD];
    uint32_t blocks[STAGES]; // that the stage has: bit SIZE*column + row
    tile tiles[AHEAD];
};

static_assert(SHARED + sizeof(barriers) <= 227 * 1024, "");

struct state {
    sat_device_schedule work;
    unsigned *counter;
    const sat_union_step *steps;
    const int32_t *row;
    maps m; // of these operands: made anew only where a pointer has changed
    const void *of[3];
    bool copied;
};

/* ---- the producers ---- */

/* The steps of a tile, each lane's of 32; the next 32 are on their way. */
struct some_steps {
    sat_union_step now, later;

    __device__ __forceinline__ static sat_union_step at(const job &x, int first, int count, int from) {
        int mine = from + (int)threadIdx.x % 32;
        return mine < count ? x.steps[first + mine] : sat_union_step{0, 0};
    }
    __device__ __forceinline__ void begin(const job &x, int first, int count) {
        now = at(x, first, count, 0), later = at(x, first, count, 32);
    }
    __device__ __forceinline__ void go_on(const job &x, int first, int count, int from) {
        if (from % 32 == 0 && from > 0) now = later, later = at(x, first, count, from + 32);
    }
    /* The blocks of the steps from `from` on that a stage has, as its bits. */
    template <typename S, bool TB> __device__ __forceinline__ uint32_t blocks(int from) const {
        constexpr int STEPS = steps_of<S, TB>;
        int step = (int)threadIdx.x % 32 - from % 32;
        return __reduce_or_sync(~0u, step >= 0 && step < STEPS ? now.rows << step * (S::EACH / STEPS * S::SIZE) : 0);
    }
};

/* The next tile is fetched while this one's operands are on their way. */
struct coming {
    sat_fetched_tile tile;
    some_steps steps;
    int row, block; // of this lane's row: its number, and its first block
    int got;
    bool ready;

    template <int SIZE> __device__ __forceinline__ void fetch(const job &x) {
        if (ready || tile.fetch(x.deal)) return;
        int lane = (int)threadIdx.x % 32;
        bool some = !tile.none(x.deal);
        if (got++ == 0) {
            row = some && lane < SIZE ? x.row[tile.piece.row * SIZE + lane] : -1;
            if (some) steps.begin(x, (int)tile.piece.first, tile.piece.count);
            return;
        }
        block = row < 0 ? 0 : (int)x.r.ptr[row];
        ready = true;
    }
    __device__ __forceinline__ void request_next() { tile.request_next(), got = 0, ready = false; }
};

/* Takes tiles, tells everybody, and brings B. */
template <typename S, bool TB>
__device__ static void produce_b(const job &x, const maps &m, coming &next, barriers *s, uint32_t memory) {
    constexpr int STEPS = steps_of<S, TB>, DEPTH = DEEP / STEPS, BYTES = STAGE_B / STEPS; // a step's
    int lane = threadIdx.x % 32, stage = 0, turn = 0;
    uint32_t parity = 1, tile_parity = 1, full = keep_in_register(smem_address(s->full)), empty = full + sizeof s->full;
    bool one = elect_one();
    for (;;) {
        while (!next.ready) next.fetch<S::SIZE>(x);
        some_steps steps = next.steps;
        bool last = next.tile.none(x.deal);
        int first = (int)next.tile.piece.first, count = next.tile.piece.count, panel = (int)next.tile.at.panel;
        mbarrier_wait(smem_address(&s->tile_empty[turn]), tile_parity); // every lane, for what it writes
        tile *t = &s->tiles[turn];
        if (lane < S::SIZE) t->row[lane] = next.row, t->block[lane] = next.block;
        t->rows[lane] = steps.now.rows;
        if (lane == 0) t->panel = panel, t->first = first, t->count = last ? -1 : count;
        mbarrier_arrive(smem_address(&s->tile_full[turn])); // every lane, for what it wrote
        if (++turn == AHEAD) turn = 0, tile_parity ^= 1;
        if (last) return;
        next.request_next();
        for (int from = 0; from < count; from += STEPS) {
            steps.go_on(x, first, count, from);
            uint32_t blocks = steps.blocks<S, TB>(from);
            int k[STEPS], here = min(STEPS, count - from);
#pragma unroll
            for (int e = 0; e < STEPS; e++) k[e] = __shfl_sync(~0u, steps.now.col, from % 32 + e) * DEPTH;
            if (one) {
                uint32_t bar = full + stage * 8, to = memory + stage * STAGE + STAGE_A;
                mbarrier_wait(empty + stage * 8, parity);
                s->blocks[stage] = blocks;
                mbarrier_arrive_expect_tx(bar, here * BYTES + __popc(blocks) * S::A);
#pragma unroll
                for (int e = 0; e < STEPS; e++)
                    if (e < here)
                        right<S, TB>::template load<TB>(&m.b, x.whole_b, to + e * BYTES, bar, k[e], panel * COLUMNS);
            }
            if (++stage == STAGES) stage = 0, parity ^= 1;
            next.fetch<S::SIZE>(x);
        }
    }
}

/* A lane has a place of each stage: what comes there, and which block of its row is next. */
template <typename S, bool TA> struct some_block {
    uint32_t row; // bits of the stage's blocks that belong to this lane's row
    int next, line;
    bool there;

    __device__ __forceinline__ void look(const job &x, uint32_t blocks) {
        uint32_t lane = threadIdx.x % 32, own = blocks & row;
        int place = next + __popc(own & ((1u << lane) - 1));
        there = blocks >> lane & 1, next += __popc(own);
        if (TA && there) place = (int)x.r.block[place];
        line = place * (TA ? S::BC : S::BR);
    }
};

/* Brings the blocks. What comes next is looked up while this stage is waited for. */
template <typename S, bool TA, bool TB>
__device__ static void produce_a(const job &x, const maps &m, barriers *s, uint32_t memory) {
    int lane = threadIdx.x % 32, mine = lane % S::SIZE, stage = 0, turn = 0;
    uint32_t parity = 1, tile_parity = 0, full = keep_in_register(smem_address(s->full)), empty = full + sizeof s->full;
    some_block<S, TA> block = {};
    for (int e = 0; e < S::EACH; e++) block.row |= 1u << (e * S::SIZE + mine);
    memory += lane * S::A;
    for (;;) {
        mbarrier_wait(smem_address(&s->tile_full[turn]), tile_parity);
        const tile *t = &s->tiles[turn];
        int first = t->first, count = t->count;
        some_steps steps;
        steps.now.rows = t->rows[lane], block.next = t->block[mine];
        mbarrier_arrive(smem_address(&s->tile_empty[turn])); // every lane, for what it read
        if (++turn == AHEAD) turn = 0, tile_parity ^= 1;
        if (count < 0) return;
        steps.later = some_steps::at(x, first, count, 32);
        block.look(x, steps.blocks<S, TB>(0));
        for (int next = steps_of<S, TB>; next < count + steps_of<S, TB>; next += steps_of<S, TB>) {
            some_block<S, TA> now = block;
            if (next < count) {
                steps.go_on(x, first, count, next);
                block.look(x, steps.blocks<S, TB>(next));
            }
            mbarrier_wait(empty + stage * 8, parity);
            if (now.there) tma_load(memory + stage * STAGE, &m.a, full + stage * 8, 0, now.line);
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
    }
}

/* ---- the consumers ---- */

/* Descriptors of B and of the block. TA: the block lies turned; TB: B by columns. */
template <typename S, bool TB> __device__ __forceinline__ uint64_t left_of(uint32_t b) {
    constexpr int line = TB ? DEEP / steps_of<S, TB> * 2 : 128;
    return wgmma_descriptor(b, swizzle_mode_of(line), TB ? 16 : S::BC * 128, 8 * line);
}
template <typename S, bool TA> __device__ __forceinline__ uint64_t right_of(uint32_t a) {
    constexpr int line = TA ? S::BR * 2 : S::BC * 2;
    return wgmma_descriptor(a, swizzle_mode_of(line), TA ? S::A : 16, 8 * line);
}
/* The same, some bytes on: their upper words are known when this is compiled. */
__device__ __forceinline__ uint64_t further(uint64_t descriptor, int bytes) {
    return (descriptor & ~(uint64_t)0xffffffff) | ((uint32_t)descriptor + bytes / 16);
}

/* A block's rows by the warpgroup's 256 columns, begun. */
template <typename T, typename S, bool TA, bool TB>
__device__ __forceinline__ void multiply_block(float *d, uint64_t left, uint64_t right) {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < S::BC / 16; k++)
#pragma unroll
        for (int c = 0; c < COLUMNS / 64; c++) {
            float(&sums)[S::SUMS] = reinterpret_cast<float(&)[S::SUMS]>(d[c * S::SUMS]);
            wgmma_ss<T, S::BR, !TB, TA>::run(sums,
                                             further(left, c * (DEEP / steps_of<S, TB> * 128) + k * (TB ? 32 : 2048)),
                                             further(right, k * (TA ? 32 * S::BR : 32)), 1);
        }
    wgmma_commit_group();
}

/* alpha*sum + bias and relu, in place: a block row's sums. `i0`: its first row. */
template <typename S> __device__ __forceinline__ void finish(const sat_epilogue &o, float *d, int64_t i0) {
    if (sat_epilogue_is_identity(o)) return;
    float alpha = (float)o.alpha, least = o.activation == SAT_ACT_RELU ? 0 : -INFINITY;
#pragma unroll
    for (int e = 0; e < S::SUMS; e++) {
        int64_t i = i0 + e / 4 * 8 + threadIdx.x % 4 * 2 + e % 2;
        float more = o.bias && i >= 0 && i < o.m ? sat_load_as(0.f, o.dtype, o.bias, i) : 0;
#pragma unroll
        for (int c = 0; c < COLUMNS / 64; c++) {
            float y = alpha * d[c * S::SUMS + e] + more;
            d[c * S::SUMS + e] = y < least ? least : y; // NaN stays
        }
    }
}

/* By rows: 8 KB at a time, 64 columns of a block row after the other, put in order by the warpgroup together. */
template <typename E, typename S>
__device__ __forceinline__ void put_rows(const job &x, const maps &m, const float (&d)[COLUMNS / 2],
                                         const int (&row)[S::OWN], uint32_t staging, int n0, int group) {
    bool one = threadIdx.x % 128 == 0;
#pragma unroll
    for (int round = 0; round < 4; round++) {
        uint32_t at = staging + round % 2 * (SAT_STAGING / 2);
        if (one) tma_store_wait_read<S::OWN>();
        named_barrier_sync(1 + group, 128);
#pragma unroll
        for (int i = 0; i < S::OWN; i++)
            sat_slice_stage_transposed<E, S::BR>(&d[(round * S::OWN + i) * S::SUMS], at + i * (S::BR * 128));
        fence_proxy_async();
        named_barrier_sync(1 + group, 128);
#pragma unroll
        for (int i = 0; i < S::OWN; i++) {
            int part = round * S::OWN + i, r = part / 4, j = n0 + part % 4 * 64;
            if (one && row[r] >= 0 && j < x.out.to.n) tma_store(&m.c, at + i * (S::BR * 128), j, row[r] * S::BR);
            else if (one) tma_store_commit_empty_group();
        }
    }
}

/* By columns: lines of a block's rows, a warp alone. */
template <typename E, typename S>
__device__ __forceinline__ void put_columns(const job &x, const maps &m, const float (&d)[COLUMNS / 2],
                                            const int (&row)[S::OWN], uint32_t staging, int n0) {
    constexpr int LINE = S::BR * 2;
    int lane = threadIdx.x % 32, down = threadIdx.x / 32 % 4 * 16;
    staging += down / 16 * (SAT_STAGING / 4);
#pragma unroll
    for (int r = 0; r < S::OWN; r++) {
        if (lane == 0) tma_store_wait_read<0>();
        __syncwarp();
#pragma unroll
        for (int c = 0; c < COLUMNS / 64; c++)
#pragma unroll
            for (int q = 0; q < S::BR / 16; q++) {
                uint32_t w[4], to = lane % 16 * LINE + (q * 2 + lane / 16) * 16;
                sat_pack_8<E>(w, &d[(r * 4 + c) * S::SUMS + q * 8]);
                stmatrix_x4(staging + c * (16 * LINE) + (to ^ (to >> 3 & (LINE - 16))), w[0], w[1], w[2], w[3]);
            }
        fence_proxy_async();
        __syncwarp();
        for (int c = 0; lane == 0 && c < COLUMNS / 64; c++)
            if (row[r] >= 0 && n0 + c * 64 + down < x.out.to.n)
                tma_store(&m.c, staging + c * (16 * LINE), row[r] * S::BR, n0 + c * 64 + down);
    }
}

/* Any other way: squares of 16 columns by 16 rows, a warp alone. */
template <typename S>
__device__ __forceinline__ void put_squares(const job &x, const float (&d)[COLUMNS / 2], const int (&row)[S::OWN],
                                            uint32_t staging, int64_t n0) {
    int lane = threadIdx.x % 32, down = threadIdx.x / 32 % 4 * 16;
    float *square = (float *)__cvta_shared_to_generic(staging + down / 16 * (SAT_STAGING / 4));
    const int right = x.out.columns ? 1 : SAT_SQUARE_PITCH, along = x.out.columns ? SAT_SQUARE_PITCH : 1;
    float *mine = square + lane / 4 * along + lane % 4 * 2 * right;
#pragma unroll 1
    for (int s = 0; s < COLUMNS / 16; s++) {
        __syncwarp();
#pragma unroll
        for (int t = 0; t < COLUMNS / 16; t++)
#pragma unroll
            for (int e = 0; e < 8; e++)
                if (t == s) mine[e / 2 % 2 * 8 * along + (e / 4 * 8 + e % 2) * right] = d[t * 8 + e];
        __syncwarp();
        int part = s / (S::BR / 16), r = part / 4, i = s % (S::BR / 16) * 16, in = -1;
#pragma unroll
        for (int g = 0; g < S::OWN; g++)
            if (g == r) in = row[g];
        if (in >= 0)
            sat_store_square<float, 16>(x.out, square, (int64_t)in * S::BR + i, n0 + part % 4 * 64 + down, lane);
    }
    __syncwarp();
}

template <typename T, typename S, bool TA, bool TB>
__device__ static void consume(const job &x, const maps &m, barriers *s, uint32_t memory) {
    typedef typename T::element E;
    int lane = threadIdx.x % 32, group = threadIdx.x / 128, stage = 0, turn = 0;
    uint32_t parity = 0, tile_parity = 0, staging = memory + STAGES * STAGE + group * SAT_STAGING;
    for (;;) {
        mbarrier_wait(smem_address(&s->tile_full[turn]), tile_parity);
        const tile *t = &s->tiles[turn];
        int count = read_shared_broadcast(&t->count), n0 = read_shared_broadcast(&t->panel) * COLUMNS, row[S::OWN];
#pragma unroll
        for (int r = 0; r < S::OWN; r++) row[r] = read_shared_broadcast(&t->row[group * S::OWN + r]);
        if (lane == 0) mbarrier_arrive(smem_address(&s->tile_empty[turn]));
        if (++turn == AHEAD) turn = 0, tile_parity ^= 1;
        if (count < 0) break;
        float d[COLUMNS / 2];
#pragma unroll
        for (int e = 0; e < COLUMNS / 2; e++) d[e] = 0;
        for (int from = 0; from < count; from += steps_of<S, TB>) {
            mbarrier_wait(smem_address(&s->full[stage]), parity);
            uint32_t blocks = read_shared_broadcast(&s->blocks[stage]) >> group * S::OWN;
            uint32_t a = memory + stage * STAGE + group * S::OWN * S::A, b = memory + stage * STAGE + STAGE_A;
#pragma unroll 1
            for (int e = 0; e < S::EACH; e++, blocks >>= S::SIZE, a += S::SIZE * S::A) {
                constexpr int TOGETHER = S::EACH / steps_of<S, TB>;
                uint32_t left = b + e / TOGETHER * (TOGETHER * S::B) + e % TOGETHER * (S::BC * 2);
#pragma unroll
                for (int r = 0; r < S::OWN; r++)
                    if (blocks >> r & 1)
                        multiply_block<T, S, TA, TB>(&d[r * 4 * S::SUMS], left_of<S, TB>(left),
                                                     further(right_of<S, TA>(a), r * S::A));
            }
            wgmma_wait_group<0>();
            if (lane == 0) mbarrier_arrive(smem_address(&s->empty[stage]));
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
        if (!x.copied) {
            put_squares<S>(x, d, row, staging, n0);
            continue;
        }
#pragma unroll
        for (int r = 0; r < S::OWN; r++) finish<S>(x.out.to, &d[r * 4 * S::SUMS], (int64_t)row[r] * S::BR);
        if (x.out.columns) put_columns<E, S>(x, m, d, row, staging, n0);
        else put_rows<E, S>(x, m, d, row, staging, n0, group);
    }
    tma_store_wait_all();
}

template <typename T, typename S, bool TA, bool TB>
static __global__ void __launch_bounds__(THREADS, 1)
    multiply(const __grid_constant__ job x, const __grid_constant__ maps m) {
    extern __shared__ char memory[];
    __shared__ barriers s;
    uint32_t start = (smem_address(memory) + 1023) & ~1023u;
    coming next = {};
    griddepcontrol_launch_dependents();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++)
            mbarrier_init(smem_address(&s.full[i]), 1), mbarrier_init(smem_address(&s.empty[i]), WARPS);
        for (int i = 0; i < AHEAD; i++)
            mbarrier_init(smem_address(&s.tile_full[i]), 32), mbarrier_init(smem_address(&s.tile_empty[i]), WARPS + 32);
        fence_mbarrier_init();
    }
    if (threadIdx.x / 32 == WARPS) {
        prefetch_tensormap(&m.a), prefetch_tensormap(&m.b);
        next.tile.first();
        while (!next.ready) next.fetch<S::SIZE>(x);
    }
    __syncthreads();
    griddepcontrol_wait();
    if (threadIdx.x >= WARPS * 32) {
        setmaxnreg_dec<72>();
        if (threadIdx.x / 32 == WARPS) produce_b<S, TB>(x, m, next, &s, keep_in_register(start));
        else if (threadIdx.x / 32 == WARPS + 1) produce_a<S, TA, TB>(x, m, &s, keep_in_register(start));
    } else {
        setmaxnreg_inc<216>();
        consume<T, S, TA, TB>(x, m, &s, start);
    }
    sat_tile_scheduler_end(x.deal);
}

/* ---- the host's side ---- */

template <typename S> static bool make_maps(const sat_launch *l, maps *m) {
    const sat_problem *p = l->problem;
    const sat_pattern_view *a = l->pattern;
    cuuint64_t width = (cuuint64_t)a->block_cols, lines = (cuuint64_t)(a->stored_blocks * a->block_rows);
    cuuint32_t br = S::BR, bc = S::BC;
    sat_tensor_box ta = {p->a_dtype, l->operands[0], 2, {width, lines}, {width * 2}, {bc, br}, S::BC * 2};
    if (p->transpose == SAT_TRANSPOSE) ta.box[0] = br, ta.box[1] = bc, ta.row_bytes = S::BR * 2;
    bool made = p->b.col_stride != 1 ? right<S, true>::map(p, l->operands[1], &m->b)
                                     : right<S, false>::map(p, l->operands[1], &m->b);
    return made && tensormap_encode(&m->a, ta);
}

/* C for the copy engine; false where it cannot be. */
template <typename S> static bool map_c(const sat_launch *l, const sat_tile_epilogue &o, CUtensorMap *map) {
    const sat_problem *p = l->problem;
    if (o.way != SAT_STORE_WORDS || !tensormap_fits(p, p->c, p->m, p->n, p->c_align, 2)) return false;
    cuuint64_t m = (cuuint64_t)p->m, n = (cuuint64_t)p->n;
    sat_tensor_box t = {p->c_dtype, o.to.c, 2, {n, m}, {(cuuint64_t)p->c.row_stride * 2}, {64, S::BR}, 128};
    if (o.columns) t = {p->c_dtype, o.to.c, 2, {m, n}, {(cuuint64_t)p->c.col_stride * 2}, {S::BR, 16}, S::BR * 2};
    return tensormap_encode(map, t);
}

template <typename T, typename S, bool TA, bool TB>
static sat_status start(const sat_launch *l, const job &x, const maps &m) {
    unsigned grid = (unsigned)sat_min(x.deal.tiles, l->device->threads);
    return sat_start<multiply<T, S, TA, TB>>(l, grid, THREADS, SHARED, x, m);
}

template <typename T, typename S> static sat_status launch_shape(const sat_launch *l) {
    const sat_problem *p = l->problem;
    state *st = (state *)l->state;
    job x = {};
    x.r = sat_device_rows(p, l->pattern), x.out = sat_warpgroup_epilogue_of(l);
    x.deal = sat_tile_scheduler_of(st->work, st->counter, 1, (p->n + COLUMNS - 1) / COLUMNS,
                                   2.0 * COLUMNS * (double)p->k, l->device, SAT_TILES_FEW);
    x.steps = st->steps, x.row = st->row, x.whole_b = sat_b_whole_chunks(p);
    if (!tensormaps_current(st->of, l->operands)) {
        if (!make_maps<S>(l, &st->m)) return tensormap_failed(l, st->of);
        st->copied = map_c<S>(l, x.out, &st->m.c);
    }
    x.copied = st->copied;
    const maps &m = st->m;
    bool ta = p->transpose == SAT_TRANSPOSE, tb = p->b.col_stride != 1;
    return ta ? (tb ? start<T, S, true, true>(l, x, m) : start<T, S, true, false>(l, x, m))
              : (tb ? start<T, S, false, true>(l, x, m) : start<T, S, false, false>(l, x, m));
}

template <typename T> static sat_status launch_math(const sat_launch *l) {
    sat_rows r = sat_op_rows(l->problem, l->pattern);
    if (r.br == 16) return r.bc == 16 ? launch_shape<T, shape<16, 16>>(l) : launch_shape<T, shape<16, 32>>(l);
    return r.bc == 16 ? launch_shape<T, shape<32, 16>>(l) : launch_shape<T, shape<32, 32>>(l);
}

static sat_status launch(const sat_launch *l) {
    if (l->problem->m == 0 || l->problem->n == 0) return SAT_OK;
    return l->variant->instance.dtype == SAT_F16 ? launch_math<sat_f16_math>(l) : launch_math<sat_bf16_math>(l);
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    if (d->capability != 90 || p->a_dtype != v->instance.dtype || a->stored_blocks == 0 || p->n == 0) return false;
    if ((r.br != 16 && r.br != 32) || (r.bc != 16 && r.bc != 32) || r.k % r.bc || p->a_align % 16) return false;
    if (sat_max(r.count * r.br, sat_max(p->n, p->k)) > 0x7fff0000) return false;
    if (a->stored_blocks * sat_max(a->block_rows, a->block_cols) > 0x7fffffff) return false;
    if ((double)r.count * ceil((double)p->n / (double)COLUMNS) > 0x7fff0000) return false;
    if (p->batch > 1 && p->a.batch_stride * 2 % 16 != 0) return false;
    return tensormap_fits(p, p->b, p->k, p->n, p->b_align, 2);
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)d;
    sat_rows r = sat_op_rows(p, a);
    return sat_row_groups_bytes(&r, (int)(ROWS / r.br));
}

static sat_status prepare(const sat_prepare *q, void **out) {
    if (!tensormap_encoder())
        return sat_fail(SAT_DEVICE_ERROR, "%s: this driver makes no tensor maps", q->variant->name);
    state *st = (state *)calloc(1, sizeof *st);
    if (!st) return sat_fail(SAT_OUT_OF_MEMORY, "%s: state", q->variant->name);
    sat_rows r = sat_op_rows(q->problem, q->pattern);
    sat_status status =
        sat_prepare_row_groups(q, &r, (int)(ROWS / r.br), each_of(q->problem->b.col_stride != 1, (int)r.bc), &st->work,
                               &st->steps, &st->row, &st->counter);
    if (status == SAT_OK) *out = st;
    else free(st);
    return status;
}

/* What comes from L2: B for each step, values for each panel. Products of so few columns take the time in which shared
 * memory gives them 64 of B's. */
static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    sat_rows r = sat_op_rows(p, a);
    double panels = ceil((double)p->n / (double)COLUMNS), groups = ceil((double)r.count * (double)r.br / (double)ROWS);
    double cols = ceil((double)r.k / (double)r.bc), each = each_of(p->b.col_stride != 1, (int)r.bc);
    double steps = sat_union_expected(r.count, (int64_t)cols, a->stored_blocks, (int)(ROWS / r.br));
    steps = groups * cols / each * (1 - pow(1 - fmin(1, steps / (groups * cols)), each)); // the same for each == 1
    double loads = steps * panels * each * (double)(r.bc * COLUMNS * 2) + (double)a->stored_elements * 2 * panels;
    double rate = 8.5e12 * d->threads / 132, busy = fmin(1, groups * panels / d->threads), items = (double)p->batch;
    double products = (double)a->stored_blocks * panels * (double)(r.bc / 16) * 4 * (16 + (double)r.br / 4);
    double time =
        fmax(loads / rate, products / (1.7e9 * d->threads)) / busy + ceil(groups * panels / d->threads) * 1e-6 + 3e-6;
    return fmax(items * time, sat_bytes(p, a) / d->memory_rate);
}

SAT_FAMILY(cuda_matmul_union) = {
    .revision = "3",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .about = "block rows of 16 or 32 in groups, along the union of their columns, on Hopper; f16, bf16",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_schedule,
};
