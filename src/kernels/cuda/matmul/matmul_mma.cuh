/* The matmul by mma.sync, for any element type, tile and layout: a multistage pipeline of cp.async copies.
 *
 * A CTA computes tiles of C one after the other: BM rows of a block row by BN columns. It goes through the k of the
 * row's stored blocks, BK at a time, and keeps STAGES stages in shared memory. All threads copy, and all warps
 * multiply. Copies for the next tile start before this one's accumulators are stored.
 *
 * Shared memory: STAGES stages, each an A tile [BM x BK] and a B tile [BN x BK], swizzled (mma_fragments.cuh); then
 * 16 x 16 elements a warp for the epilogue. */
#ifndef SAT_MATMUL_MMA_CUH
#define SAT_MATMUL_MMA_CUH

#include "kernels/cuda/common/warp_epilogue.cuh"
#include "kernels/cuda/common/scheduler.h"
#include "kernels/cuda/common/mma_fragments.cuh"

/* A stage is UNITS units of KU in k; each unit is inside one stored block. Strides are in bytes. */
struct mma_args {
    sat_rows r;
    sat_device_schedule work; /* its work items are whole block rows or split-K slices of them */
    sat_tile_epilogue epilogue;
    const char *a, *b;
    bool a_k_major, b_k_major;
    unsigned row_tiles, column_tiles, tiles; /* in a block row, in C's columns, in all of the batch */
    unsigned block_units, units_inverse;     /* units in a block, and 2^32 divided by that */
    unsigned whole_k_end;                    /* units that begin below this k are inside the matrix */
    unsigned opaque_zero;                    /* 0; see mma_loader */
    unsigned a_block_stride, a_row_tile_stride, a_unit_stride, a_line_stride, a_pass_stride, b_k_stride;
    int64_t a_batch_stride, b_batch_stride, c_batch_stride, b_column_tile_stride, b_line_stride, b_pass_stride;
};

struct mma_tile {
    unsigned row_tile, item, column_tile, batch;
};

/* The row tiles of a work item come first, then the work items, then the column tiles: so CTAs that run at the same
 * time read the same columns of B from L2. */
__device__ __forceinline__ mma_tile mma_tile_at(const mma_args &args, unsigned tile) {
    unsigned items = (unsigned)args.work.items, rest = tile / args.row_tiles;
    mma_tile t = {tile % args.row_tiles, rest % items, rest / items, 0};
    if (t.column_tile >= args.column_tiles)
        t.batch = t.column_tile / args.column_tiles, t.column_tile %= args.column_tiles;
    return t;
}

/* A CTA's tile BM x BN, a warp's tile WM x WN, and the CTAS that a multiprocessor runs at once. */
template <class MATH, int BM_, int BN_, int KU_, int UNITS_, int STAGES_, int WM_, int WN_, int CTAS_>
struct mma_shape {
    typedef MATH math;
    typedef typename MATH::element element;
    typedef typename MATH::accumulator accumulator;
    static constexpr int BM = BM_, BN = BN_, KU = KU_, UNITS = UNITS_, STAGES = STAGES_, WM = WM_, WN = WN_,
                         CTAS = CTAS_;
    static constexpr int BK = KU * UNITS, K_STEPS = BK / MATH::K, MT = WM / MATH::M, NT = WN / 8;
    static constexpr int WARPS = BM / WM * (BN / WN), THREADS = 32 * WARPS;
    static constexpr int A_BYTES = BM * BK * (int)sizeof(element), B_BYTES = BN * BK * (int)sizeof(element);
    static constexpr int STAGE = A_BYTES + B_BYTES, SHARED = STAGES * STAGE + WARPS * sat_square_bytes<accumulator>();
    static_assert(A_BYTES % 1024 == 0 && B_BYTES % 1024 == 0, "swizzled offsets are found by XOR");
    static_assert(K_STEPS % 2 == 0 && STAGES >= 2,
                  "fragments of the next k step are loaded into the other of two sets");
};

/* ---- loader: global to shared memory ---- */

constexpr int mma_log2(int power) { return power == 1 ? 0 : 1 + mma_log2(power / 2); }

/* The vectors of 16 bytes that a thread copies of an operand's tile, whose extent in m or n is MN. K-major or MN-major,
 * a tile has the same number of vectors, and a thread copies every THREADS-th of them, one a pass; only its first
 * vector and the stride between its vectors differ. So one kernel serves both layouts at no cost. */
template <class S, int MN> struct mma_thread_copy {
    static constexpr int ELEMENTS = 16 / (int)sizeof(typename S::element), UNIT_VECTORS = S::KU / ELEMENTS;
    static constexpr int VECTORS = MN * S::BK / ELEMENTS, PASSES = (VECTORS + S::THREADS - 1) / S::THREADS;
    static constexpr int K_LINE = S::BK / ELEMENTS, MN_LINE = MN / ELEMENTS; /* vectors in a line */
    static constexpr int K_LINES_PER_PASS = S::THREADS / K_LINE, MN_LINES_PER_PASS = S::THREADS / MN_LINE;
    /* Consecutive passes over MN-major lines that stay in one unit: they share a block index. */
    static constexpr int UNIT_PASSES = PASSES == 1 ? 1 : MN_LINES_PER_PASS >= S::KU ? 1 : S::KU / MN_LINES_PER_PASS;
    static constexpr int RUNS = PASSES / UNIT_PASSES; /* of such passes */
    static_assert(S::THREADS % K_LINE == 0 && S::THREADS % MN_LINE == 0, "a thread has the same vector of every line");
    static_assert(PASSES == 1 || VECTORS % S::THREADS == 0, "full passes");
    static_assert(mma_swizzle<K_LINE, S::math::paired(true)>(K_LINES_PER_PASS) == 0 || PASSES == 1,
                  "K-major: the swizzle of a thread's lines is the same");

    int vec16, line; /* of its first vector */
    __device__ __forceinline__ explicit mma_thread_copy(bool k_major) {
        constexpr int K_BITS = mma_log2(K_LINE), MN_BITS = mma_log2(MN_LINE);
        vec16 = (int)threadIdx.x & ((k_major ? K_LINE : MN_LINE) - 1),
        line = (int)threadIdx.x >> (k_major ? K_BITS : MN_BITS);
    }
    __device__ __forceinline__ static bool idle() { return VECTORS < S::THREADS && (int)threadIdx.x >= VECTORS; }
    /* The unit that its vectors of a run are in. */
    __device__ __forceinline__ int unit(bool k_major, int run) const {
        if (S::UNITS == 1) return 0;
        return k_major ? vec16 / UNIT_VECTORS
                       : line / S::KU + run * (MN_LINES_PER_PASS > S::KU ? MN_LINES_PER_PASS / S::KU : 1);
    }
    /* Bytes in global memory from the unit's first element to the thread's first vector. */
    __device__ __forceinline__ int64_t global_offset(bool k_major, int64_t line_stride) const {
        return k_major ? line * line_stride + vec16 % UNIT_VECTORS * 16 : line % S::KU * line_stride + vec16 * 16;
    }
    __device__ __forceinline__ uint32_t shared_offset(bool k_major) const {
        return (uint32_t)(k_major ? mma_vec16_offset<K_LINE, S::math::paired(true)>(line, vec16)
                                  : mma_vec16_offset<MN_LINE, S::math::paired(false)>(line, vec16));
    }
    /* The shared address of its vector of a pass, from that of its first vector. */
    __device__ __forceinline__ static uint32_t shared_address(bool k_major, uint32_t first, int pass) {
        uint32_t swizzle = (uint32_t)mma_swizzle<MN_LINE, S::math::paired(false)>(pass * MN_LINES_PER_PASS) * 16;
        return (first ^ (k_major ? 0 : swizzle)) + (uint32_t)(pass * S::THREADS * 16);
    }
    /* Elements of its vector of a pass that exist, where the unit has valid_k and the tile valid_mn. */
    __device__ __forceinline__ int valid(bool k_major, int pass, int valid_k, int valid_mn) const {
        int k = k_major ? vec16 % UNIT_VECTORS * ELEMENTS : line % S::KU + pass % UNIT_PASSES * MN_LINES_PER_PASS;
        int mn = k_major ? line + pass * K_LINES_PER_PASS : vec16 * ELEMENTS;
        int along = k_major ? valid_k - k : valid_mn - mn; /* a vector may end past the edge */
        return (k_major ? mn < valid_mn : k < valid_k) ? max(0, min(ELEMENTS, along)) : 0;
    }
};

/* Copies stage after stage of the CTA's tiles. Block indices are loaded one stage before they are used. They are the
 * same in all lanes. Where the compiler knows that, it moves them to uniform registers, which waits for the load at
 * once. So their addresses contain a zero that it cannot see through. */
template <class S> struct mma_loader {
    typedef mma_thread_copy<S, S::BM> a_copy;
    typedef mma_thread_copy<S, S::BN> b_copy;
    static constexpr int RUNS = b_copy::RUNS, UNIT_PASSES = b_copy::UNIT_PASSES;
    static constexpr int SIZE = (int)sizeof(typename S::element);
    static_assert(S::UNITS == 1 || a_copy::PASSES == 1, "a thread copies from one block of A at a time");

    uint32_t a_shared, b_shared; /* this thread's first vectors in stage 0 */
    unsigned zero;
    unsigned tile;                  /* whose stages are being copied */
    unsigned first, unit, units;    /* its first block; the first unit of its next stage; its number of units */
    unsigned next_first, next_last; /* of the tile after it: its first block; its block count, or the row's end */
    const char *a, *b;              /* this thread's first vector of the tile's rows of block 0, and of B's columns */
    int columns;                    /* of the tile that exist */
    /* The stage to copy next; a column below 0 is past the last unit. */
    bool has_stage;
    unsigned block, a_unit;
    int a_col, b_col[RUNS];
    unsigned b_unit[RUNS];

    /* Loads where a tile begins and ends. The result is not touched here: that would wait for it. */
    __device__ __forceinline__ void prefetch_range(const mma_args &args, unsigned number) {
        if (number >= args.tiles) return;
        unsigned i = mma_tile_at(args, number).item + zero;
        const sat_work_item *item = args.work.item;
        next_first = (unsigned)(item ? item[i].first : args.r.ptr[i]);
        next_last = (unsigned)(item ? item[i].count : args.r.end[i]);
    }

    __device__ __forceinline__ void begin_tile(const mma_args &args) {
        if (tile >= args.tiles) return;
        mma_tile t = mma_tile_at(args, tile);
        first = next_first, unit = 0, units = (next_last - (args.work.item ? 0 : first)) * args.block_units;
        a = args.a + t.batch * args.a_batch_stride + t.row_tile * args.a_row_tile_stride +
            a_copy(args.a_k_major).global_offset(args.a_k_major, args.a_line_stride);
        b = args.b + t.batch * args.b_batch_stride + t.column_tile * args.b_column_tile_stride +
            b_copy(args.b_k_major).global_offset(args.b_k_major, args.b_line_stride);
        columns = (int)min((int64_t)S::BN, args.epilogue.out.n - t.column_tile * (int64_t)S::BN);
        prefetch_range(args, tile + gridDim.x);
    }

    __device__ __forceinline__ void start(const mma_args &args, uint32_t shared) {
        a_shared = shared + a_copy(args.a_k_major).shared_offset(args.a_k_major);
        b_shared = shared + S::A_BYTES + b_copy(args.b_k_major).shared_offset(args.b_k_major);
        zero = threadIdx.x & args.opaque_zero;
        tile = blockIdx.x;
        prefetch_range(args, tile);
        begin_tile(args);
        prefetch_indices(args);
    }

    /* The position of the block that a unit of the tile is in; `in_block`: which of the block's units it is. */
    __device__ __forceinline__ unsigned block_of(const mma_args &args, unsigned number, unsigned &in_block) const {
        unsigned blocks = args.block_units == 1 ? number : __umulhi(number, args.units_inverse);
        in_block = number - blocks * args.block_units;
        return first + blocks + zero;
    }

    /* Loads the block indices of the tile's next stage. A tile without blocks has one stage, of zeros. */
    __device__ __forceinline__ void prefetch_indices(const mma_args &args) {
        has_stage = tile < args.tiles;
        if (!has_stage) return;
        unsigned number = unit + a_copy(args.a_k_major).unit(args.a_k_major, 0);
        a_col = -1;
        if (number < units) {
            block = block_of(args, number, a_unit);
            a_col = args.r.col[block];
            if (args.r.block) block = (unsigned)args.r.block[block];
        }
        b_copy copy(args.b_k_major);
#pragma unroll
        for (int run = 0; run < RUNS; run++) {
            b_col[run] = a_col, b_unit[run] = a_unit;
            if (S::UNITS == 1) continue;
            number = unit + copy.unit(args.b_k_major, run);
            b_col[run] = number < units ? args.r.col[block_of(args, number, b_unit[run])] : -1;
        }
        unit += S::UNITS;
    }

    /* The first k of a unit; at least 2^31 where there is no unit. */
    __device__ __forceinline__ static unsigned k_of(const mma_args &args, int col, unsigned in_block) {
        return (unsigned)col * (unsigned)args.r.bc + in_block * S::KU | ((unsigned)col & 0x80000000u);
    }
    __device__ __forceinline__ static int valid_k(const mma_args &args, unsigned k) {
        return k >> 31 ? 0 : (int)min((int64_t)S::KU, args.r.k - k);
    }

    __device__ __forceinline__ void copy_a(const mma_args &args, uint32_t to) const {
        if (a_copy::idle()) return;
        unsigned k = k_of(args, a_col, a_unit);
        const char *from = a + (uint64_t)block * args.a_block_stride + a_unit * args.a_unit_stride;
        if (k < args.whole_k_end) {
#pragma unroll
            for (int p = 0; p < a_copy::PASSES; p++)
                cp_async_16(a_copy::shared_address(args.a_k_major, to, p), from + (uint64_t)args.a_pass_stride * p);
            return;
        }
        a_copy copy(args.a_k_major);
#pragma unroll 1
        for (int p = 0; p < a_copy::PASSES; p++)
            cp_async_16(a_copy::shared_address(args.a_k_major, to, p), from + (uint64_t)args.a_pass_stride * p,
                        copy.valid(args.a_k_major, p, valid_k(args, k), S::BM) * SIZE);
    }

    __device__ __forceinline__ void copy_b(const mma_args &args, uint32_t to) const {
        if (b_copy::idle()) return;
        const char *from[RUNS];
        unsigned k[RUNS];
        bool whole = columns == S::BN;
#pragma unroll
        for (int run = 0; run < RUNS; run++) {
            k[run] = k_of(args, b_col[run], b_unit[run]);
            from[run] = b + (uint64_t)k[run] * args.b_k_stride;
            if (run > 0 && args.b_k_major) from[run] += args.b_pass_stride * (run * UNIT_PASSES);
            whole = whole && k[run] < args.whole_k_end;
        }
        if (whole) {
#pragma unroll
            for (int p = 0; p < b_copy::PASSES; p++)
                cp_async_16(b_copy::shared_address(args.b_k_major, to, p),
                            from[p / UNIT_PASSES] + args.b_pass_stride * (p % UNIT_PASSES));
            return;
        }
        b_copy copy(args.b_k_major);
#pragma unroll
        for (int run = 0; run < RUNS; run++)
#pragma unroll 1
            for (int p = run * UNIT_PASSES; p < (run + 1) * UNIT_PASSES; p++)
                cp_async_16(b_copy::shared_address(args.b_k_major, to, p),
                            from[run] + args.b_pass_stride * (p % UNIT_PASSES),
                            copy.valid(args.b_k_major, p, valid_k(args, k[run]), columns) * SIZE);
    }

    /* Starts the copies of the next stage, to the one at byte `offset`, and loads the indices of the stage after it. */
    __device__ __forceinline__ void load_stage(const mma_args &args, uint32_t offset) {
        if (has_stage) {
            copy_a(args, a_shared + offset);
            copy_b(args, b_shared + offset);
            if (unit >= units) tile += gridDim.x, begin_tile(args);
            prefetch_indices(args);
        }
        cp_async_commit_group();
    }
};

/* ---- fragments: shared memory to registers ---- */

/* A warp's fragments of one k step. */
template <class S> struct mma_fragments {
    typename S::math::a a[S::MT];
    typename S::math::b b[S::NT];

    __device__ __forceinline__ void load(const mma_args &args, uint32_t a_tile, uint32_t b_tile, int kk) {
        if (args.a_k_major) S::math::template load_a<S::BM, S::BK, true>(a, a_tile, kk);
        else S::math::template load_a<S::BM, S::BK, false>(a, a_tile, kk);
        if (!args.b_k_major) S::math::template load_b<S::BN, S::BK, false>(b, b_tile, kk);
        else S::math::template load_b<S::BN, S::BK, true>(b, b_tile, kk);
    }
};

/* A warp's first row and column in the tile. */
template <class S> __device__ __forceinline__ int mma_warp_row(int warp) { return warp / (S::BN / S::WN) * S::WM; }
template <class S> __device__ __forceinline__ int mma_warp_column(int warp) { return warp % (S::BN / S::WN) * S::WN; }

template <class S> __device__ __forceinline__ int mma_stages_of(const mma_args &args, unsigned tile) {
    int count = sat_work_item_at(args.r, args.work.item, mma_tile_at(args, tile).item).count;
    return max(1, (count * (int)args.block_units + S::UNITS - 1) / S::UNITS);
}

/* ---- epilogue ---- */

/* Where a tile is stored: in C, or for a split-K slice (partial >= 0) among the partial sums. */
template <class S>
__device__ __forceinline__ sat_tile_epilogue mma_epilogue_of(const mma_args &args, int partial, unsigned batch) {
    if (partial >= 0) return sat_partial_epilogue<typename S::accumulator>(args.work.partial, args.epilogue.out.n);
    sat_tile_epilogue o = args.epilogue;
    o.out.c = (char *)o.out.c + batch * args.c_batch_stride;
    return o;
}

template <class S>
__device__ __forceinline__ void mma_store(const mma_args &args, unsigned tile,
                                          const typename S::accumulator (&acc)[S::MT][S::NT][S::math::ACCUMULATORS],
                                          unsigned char *squares) {
    int thread = reread_thread_index(), lane = thread % 32, warp = thread / 32;
    mma_tile t = mma_tile_at(args, tile);
    sat_work_item item = sat_work_item_at(args.r, args.work.item, t.item);
    int64_t i = (item.partial < 0 ? item.row : item.partial) * args.r.br + t.row_tile * S::BM + mma_warp_row<S>(warp);
    int64_t j = t.column_tile * (int64_t)S::BN + mma_warp_column<S>(warp);
    typedef typename S::accumulator accumulator;
    sat_warp_store<typename S::element>(mma_epilogue_of<S>(args, item.partial, t.batch), acc, i, j, lane,
                                        (accumulator *)(squares + warp * sat_square_bytes<accumulator>()));
}

/* ---- kernel ---- */

template <class S>
static __global__ void __launch_bounds__(S::THREADS, S::CTAS) mma_matmul(const __grid_constant__ mma_args args) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int row = mma_warp_row<S>(warp), column = mma_warp_column<S>(warp);
    const uint32_t base = smem_address(shared);
    const uint32_t a_tile = base + (args.a_k_major ? S::math::template lane_offset_a<S::BM, S::BK, true>(lane, row)
                                                   : S::math::template lane_offset_a<S::BM, S::BK, false>(lane, row));
    const uint32_t b_tile = base + S::A_BYTES +
                            (args.b_k_major ? S::math::template lane_offset_b<S::BN, S::BK, true>(lane, column)
                                            : S::math::template lane_offset_b<S::BN, S::BK, false>(lane, column));
    uint32_t stage = 0, free = 0; /* byte offsets of the stage that is multiplied and of the one to copy to */
    mma_loader<S> loader;
    mma_fragments<S> fragments[2];
    typename S::accumulator acc[S::MT][S::NT][S::math::ACCUMULATORS] = {};
    unsigned tile = blockIdx.x;
    int ahead = 0, stages_left = mma_stages_of<S>(args, tile);
    loader.start(args, base);
    for (;;) {
        loader.load_stage(args, free);
        if (ahead < S::STAGES - 1) { /* prologue: fill the pipeline */
            free += S::STAGE;
            if (++ahead < S::STAGES - 1) continue;
            cp_async_wait_group<S::STAGES - 2>();
            __syncthreads();
            fragments[0].load(args, a_tile, b_tile, 0);
            continue;
        }
#pragma unroll
        for (int kk = 0; kk < S::K_STEPS; kk++) {
            if (kk == S::K_STEPS - 1) { /* the next stage is complete, and all warps have read this one */
                cp_async_wait_group<S::STAGES - 2>();
                __syncthreads();
                free = stage;
                stage = stage == (S::STAGES - 1) * S::STAGE ? 0 : stage + S::STAGE;
            }
            fragments[(kk + 1) % 2].load(args, a_tile + stage, b_tile + stage, (kk + 1) % S::K_STEPS);
            S::math::round_operands(fragments[kk % 2].a, fragments[kk % 2].b);
#pragma unroll
            for (int i = 0; i < S::MT; i++)
#pragma unroll
                for (int j = 0; j < S::NT; j++)
                    S::math::multiply(acc[i][j], fragments[kk % 2].a[i], fragments[kk % 2].b[j]);
        }
        if (--stages_left > 0) continue;
        mma_store<S>(args, tile, acc, shared + S::STAGES * S::STAGE);
        tile += gridDim.x;
        if (tile >= args.tiles) break;
        stages_left = mma_stages_of<S>(args, tile);
#pragma unroll
        for (int i = 0; i < S::MT; i++)
#pragma unroll
            for (int j = 0; j < S::NT; j++)
#pragma unroll
                for (int e = 0; e < S::math::ACCUMULATORS; e++) acc[i][j][e] = 0;
    }
}

/* ---- host: instances ---- */

struct mma_instance {
    void (*kernel)(mma_args);
    sat_dtype dtype;
    int bm, bn, bk, ku, wm, wn, threads, shared, ctas;
    int a_k_lines, a_mn_lines, b_k_lines, b_mn_lines; /* lines of A and B between vectors of a thread, by layout */
};

template <class S> constexpr mma_instance mma_instance_of() {
    typedef mma_thread_copy<S, S::BM> a;
    typedef mma_thread_copy<S, S::BN> b;
    return {mma_matmul<S>,
            S::math::dtype,
            S::BM,
            S::BN,
            S::BK,
            S::KU,
            S::WM,
            S::WN,
            S::THREADS,
            S::SHARED,
            S::CTAS,
            a::K_LINES_PER_PASS,
            a::MN_LINES_PER_PASS,
            b::K_LINES_PER_PASS,
            b::MN_LINES_PER_PASS};
}

/* The line of a table of instances that belongs to a variant. */
template <int COUNT> static const mma_instance *mma_find(const mma_instance (&all)[COUNT], const sat_variant *v) {
    for (const mma_instance &k : all)
        if (k.bm == v->instance.tile_m && k.bn == v->instance.tile_n && k.bk == v->instance.tile_k) return &k;
    return NULL;
}

/* f16 and bf16 have the same tiles. */
template <class MATH, int... SHAPE> constexpr mma_instance mma_16bit_tile() {
    return mma_instance_of<mma_shape<mma_16bit<MATH>, SHAPE...>>();
}
template <class MATH>
static constexpr mma_instance mma_16bit_instances[] = {
    /*                   BM   BN  KU units stages WM  WN  CTAs on a multiprocessor */
    mma_16bit_tile<MATH, 128, 256, 32, 1, 6, 64, 64, 1>(), /**/
    mma_16bit_tile<MATH, 128, 128, 32, 1, 5, 64, 64, 2>(), /**/
    mma_16bit_tile<MATH, 64, 512, 32, 1, 5, 64, 64, 1>(),  /**/
    mma_16bit_tile<MATH, 64, 256, 32, 1, 5, 64, 64, 2>(),  /**/
    mma_16bit_tile<MATH, 64, 128, 32, 1, 5, 32, 64, 3>(),  /**/
    mma_16bit_tile<MATH, 64, 64, 64, 1, 4, 32, 32, 3>(),   /**/
    mma_16bit_tile<MATH, 32, 512, 32, 1, 5, 32, 64, 1>(),  /**/
    mma_16bit_tile<MATH, 32, 256, 32, 1, 5, 32, 64, 2>(),  /**/
    mma_16bit_tile<MATH, 32, 64, 32, 1, 5, 16, 32, 4>(),   /**/
    mma_16bit_tile<MATH, 16, 256, 16, 2, 4, 16, 64, 3>(),  /**/
    mma_16bit_tile<MATH, 16, 64, 16, 2, 6, 16, 32, 6>(),   /**/
};

/* ---- host: one instance (matmul_mma.cu) ---- */

/* Tiles of a work item, in one matrix of the batch. */
static inline int64_t mma_tiles(const mma_instance *k, const sat_problem *p, const sat_rows *r) {
    return r->br / k->bm * ((p->n + k->bn - 1) / k->bn);
}
bool mma_supports(const mma_instance *k, const sat_problem *p, const sat_pattern_view *a, const sat_device *d);
/* `longest`: blocks of the longest work item; `items`: the number of work items. */
double mma_seconds(const mma_instance *k, const sat_problem *p, const sat_pattern_view *a, const sat_device *d,
                   double longest, double items);
sat_status mma_prepare_kernel(const mma_instance *k, const sat_variant *v);
/* Without a schedule, `work` is NULL and one launch does the whole batch. */
mma_args mma_args_of(const mma_instance *k, const sat_launch *l, const sat_device_schedule *work);
/* Persistent: as many CTAs as fit at once, each with several tiles. Else one CTA a tile. */
sat_status mma_launch(const mma_instance *k, const sat_launch *l, const mma_args &args, bool persistent);

/* ---- host: the families of a table of instances ---- */

/* Block rows are whole: no schedule, and the whole batch in one launch. */
template <const auto &INSTANCES> struct mma_whole_rows {
    static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
        return mma_supports(mma_find(INSTANCES, v), p, a, d);
    }
    static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
        double longest = (double)(p->matmul.transpose == SAT_TRANSPOSE ? a->max_col : a->max_row);
        double rows = (double)(p->matmul.transpose == SAT_TRANSPOSE ? a->grid_cols : a->grid_rows);
        return mma_seconds(mma_find(INSTANCES, v), p, a, d, longest, rows);
    }
    static sat_status prepare(const sat_prepare *prepare, void **state) {
        *state = NULL;
        return mma_prepare_kernel(mma_find(INSTANCES, prepare->variant), prepare->variant);
    }
    static sat_status launch(const sat_launch *l) {
        const sat_problem *p = l->problem;
        if (p->m == 0 || p->n == 0 || p->batch == 0) return SAT_OK;
        const sat_pattern_view *a = l->pattern;
        bool even = (p->matmul.transpose == SAT_TRANSPOSE ? a->t_skew : a->skew) < 1.5;
        const mma_instance *k = mma_find(INSTANCES, l->variant);
        return mma_launch(k, l, mma_args_of(k, l, NULL), even);
    }
    static constexpr sat_family family = {
        .revision = "2",
        .op = SAT_MATMUL,
        .backend = SAT_CUDA,
        .flags = SAT_V_BATCHED,
        .about = "tensor cores by mma.sync, several stages of copies ahead",
        .supports = supports,
        .estimate = estimate,
        .prepare = prepare,
        .launch = launch,
    };
};

/* Split-K of the block rows that are more than a fair share; the longest work items come first. */
template <const auto &INSTANCES> struct mma_split_rows {
    static int64_t share(const mma_instance *k, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
        sat_rows r = sat_op_rows(p, a);
        return sat_schedule_share(&r, mma_tiles(k, p, &r), (int64_t)d->multiprocessors * k->ctas,
                                  sat_max(1, 512 / r.bc));
    }
    static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
        const mma_instance *k = mma_find(INSTANCES, v);
        sat_rows r = sat_op_rows(p, a);
        int64_t most = share(k, p, a, d), longest = p->matmul.transpose == SAT_TRANSPOSE ? a->max_col : a->max_row;
        sat_schedule_counts s = sat_schedule_count(&r, most);
        double reduction =
            (double)s.partials * (double)r.br * (double)p->n * 8 / d->memory_rate + (s.splits ? 2e-6 : 0);
        return 1.02 * mma_seconds(k, p, a, d, (double)sat_min(longest, most), (double)s.items) + reduction;
    }
    static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                            const sat_device *d) {
        sat_rows r = sat_op_rows(p, a);
        return sat_schedule_workspace(&r, share(mma_find(INSTANCES, v), p, a, d), p->n, p->a_dtype == SAT_F64 ? 8 : 4);
    }
    static sat_status prepare(const sat_prepare *x, void **state) {
        const mma_instance *k = mma_find(INSTANCES, x->variant);
        sat_status status = mma_prepare_kernel(k, x->variant);
        if (status != SAT_OK) return status;
        return sat_prepare_schedule(x, share(k, x->problem, x->pattern, x->device), state);
    }
    static sat_status launch(const sat_launch *l) {
        const sat_problem *p = l->problem;
        if (p->m == 0 || p->n == 0) return SAT_OK;
        const sat_device_schedule *work = (const sat_device_schedule *)l->state;
        const mma_instance *k = mma_find(INSTANCES, l->variant);
        mma_args args = mma_args_of(k, l, work);
        sat_status status = mma_launch(k, l, args, false);
        return status == SAT_OK ? sat_launch_split_reduction(l, args.r, args.epilogue.out, *work) : status;
    }
    static constexpr sat_family family = {
        .revision = "2",
        .op = SAT_MATMUL,
        .backend = SAT_CUDA,
        .about = "the same, longest rows first, heavy rows split and their partial sums added in order",
        .supports = mma_whole_rows<INSTANCES>::supports,
        .estimate = estimate,
        .workspace = workspace,
        .prepare = prepare,
        .launch = launch,
        .release = sat_release_state,
    };
};

#endif
