/* The way of a CTA through its tiles of C, and the copies that run ahead of it.
 *
 * A tile is BM rows of a block row (of a piece of it, where a schedule cut it) and BN columns; its steps are the k of
 * its stored blocks, one after the other, KS at a time: UNITS units of KU, each inside one block. The feed goes on from
 * tile to tile without a pause, so copies for the next one are under way while this one's sums are stored.
 *
 * Deep or wide, an operand's part of a step is as many chunks, and a thread copies every THREADS-th: only where it
 * begins and how far it goes from one to the next differ, so layouts cost nothing here. */
#ifndef SAT_MMA_FEED_CUH
#define SAT_MMA_FEED_CUH

#include "kernels/cuda/common/scheduler.h"
#include "kernels/cuda/common/epilogue.cuh"
#include "kernels/cuda/matmul/mma_tile.cuh"

struct sat_mma_job {
    sat_rows r;
    sat_device_schedule work;
    sat_tile_epilogue out;
    const char *a, *b;
    bool a_deep, b_deep;
    unsigned slices, panels, tiles; /* slices of a block row, panels of columns, all tiles of all items */
    unsigned units, inverse;        /* units of a block, and 2^32 over that */
    unsigned k_whole;               /* units that begin below this are whole */
    unsigned zero;                  /* see sat_mma_feed */
    /* In bytes, from one to the next: blocks, slices of them, units of k, lines, a thread's chunks of a step; b_k: k.
     */
    unsigned a_block, a_slice, a_unit, a_line, a_pass, b_k;
    int64_t a_item, b_item, c_item, b_panel, b_line, b_pass;
};

/* Which tile it is: slices of one piece first, then the pieces, then panels, so that B's panel stays in L2. */
struct sat_mma_tile {
    unsigned slice, piece, panel, item;
};

__device__ __forceinline__ sat_mma_tile sat_mma_tile_at(const sat_mma_job &job, unsigned tile) {
    unsigned pieces = (unsigned)job.work.pieces, rest = tile / job.slices;
    sat_mma_tile t = {tile % job.slices, rest % pieces, rest / pieces, 0};
    if (t.panel >= job.panels) t.item = t.panel / job.panels, t.panel %= job.panels;
    return t;
}

/* Everything about a kernel that is known when it is compiled. */
template <class MATH, int BM_, int BN_, int KU_, int UNITS_, int STAGES_, int WM_, int WN_, int CTAS_>
struct sat_mma_shape {
    typedef MATH math;
    typedef typename MATH::element element;
    typedef typename MATH::sum sum;
    static constexpr int BM = BM_, BN = BN_, KU = KU_, UNITS = UNITS_, STAGES = STAGES_, WM = WM_, WN = WN_,
                         CTAS = CTAS_;
    static constexpr int KS = KU * UNITS, KK = KS / MATH::K, MT = WM / MATH::M, NT = WN / 8;
    static constexpr int WARPS = BM / WM * (BN / WN), THREADS = 32 * WARPS;
    static constexpr int A_BYTES = BM * KS * (int)sizeof(element), B_BYTES = BN * KS * (int)sizeof(element);
    static constexpr int STAGE = A_BYTES + B_BYTES, SHARED = STAGES * STAGE + WARPS * sat_square_bytes<sum>();
    static_assert(A_BYTES % 1024 == 0 && B_BYTES % 1024 == 0, "permuted places are found by exclusive or");
    static_assert(KK % 2 == 0 && STAGES >= 2, "fragments are fetched one product ahead, into two sets");
};

constexpr int sat_mma_bits(int power) { return power == 1 ? 0 : 1 + sat_mma_bits(power / 2); }

/* A thread's chunks of an operand that is W wide. */
template <class S, int W> struct sat_mma_share {
    static constexpr int PER = 16 / (int)sizeof(typename S::element), IN_UNIT = S::KU / PER; /* elements, chunks */
    static constexpr int ALL = W * S::KS / PER, PASSES = (ALL + S::THREADS - 1) / S::THREADS;
    static constexpr int DEEP = S::KS / PER, WIDE = W / PER;                           /* chunks a line */
    static constexpr int DEEP_PASS = S::THREADS / DEEP, WIDE_PASS = S::THREADS / WIDE; /* lines a pass */
    /* Passes that stay inside one unit of wide lines; of as many, the thread needs one index each. */
    static constexpr int RUN = PASSES == 1 ? 1 : WIDE_PASS >= S::KU ? 1 : S::KU / WIDE_PASS, RUNS = PASSES / RUN;
    static_assert(S::THREADS % DEEP == 0 && S::THREADS % WIDE == 0, "a thread keeps its place in the lines");
    static_assert(PASSES == 1 || ALL % S::THREADS == 0, "full passes");
    static_assert(sat_mma_key<DEEP, S::math::paired(true)>(DEEP_PASS) == 0 || PASSES == 1, "deep lines keep their key");

    int chunk, line; /* of its first chunk */
    __device__ __forceinline__ explicit sat_mma_share(bool deep) {
        constexpr int DEEP_BITS = sat_mma_bits(DEEP), WIDE_BITS = sat_mma_bits(WIDE);
        chunk = (int)threadIdx.x & ((deep ? DEEP : WIDE) - 1),
        line = (int)threadIdx.x >> (deep ? DEEP_BITS : WIDE_BITS);
    }
    __device__ __forceinline__ static bool idle() { return ALL < S::THREADS && (int)threadIdx.x >= ALL; }
    /* The unit of its chunks in run number `run`. */
    __device__ __forceinline__ int unit(bool deep, int run) const {
        if (S::UNITS == 1) return 0;
        return deep ? chunk / IN_UNIT : line / S::KU + run * (WIDE_PASS > S::KU ? WIDE_PASS / S::KU : 1);
    }
    /* Bytes from where the unit begins to its first chunk. */
    __device__ __forceinline__ int64_t offset(bool deep, int64_t line_bytes) const {
        return deep ? line * line_bytes + chunk % IN_UNIT * 16 : line % S::KU * line_bytes + chunk * 16;
    }
    __device__ __forceinline__ uint32_t place(bool deep) const {
        return (uint32_t)(deep ? sat_mma_place<DEEP, S::math::paired(true)>(line, chunk)
                               : sat_mma_place<WIDE, S::math::paired(false)>(line, chunk));
    }
    /* Its place in pass p, from that in the first. */
    __device__ __forceinline__ static uint32_t place_in(bool deep, uint32_t first, int p) {
        uint32_t key = (uint32_t)sat_mma_key<WIDE, S::math::paired(false)>(p * WIDE_PASS) * 16;
        return (first ^ (deep ? 0 : key)) + (uint32_t)(p * S::THREADS * 16);
    }
    /* Elements of its chunk of pass p that are inside: `room` along k in the unit, `wide` across it. */
    __device__ __forceinline__ int inside(bool deep, int p, int room, int wide) const {
        int k = deep ? chunk % IN_UNIT * PER : line % S::KU + p % RUN * WIDE_PASS;
        int across = deep ? line + p * DEEP_PASS : chunk * PER;
        int whole = deep ? room - k : wide - across; /* the direction that chunks run in may end inside of one */
        return (deep ? across < wide : k < room) ? max(0, min(PER, whole)) : 0;
    }
};

/* Indices are asked for one step before they are used. They are the same for all lanes; where the compiler sees that,
 * it moves them to uniform registers and waits for them at once, so their addresses have a zero in them that looks as
 * if it differed. */
template <class S> struct sat_mma_feed {
    typedef sat_mma_share<S, S::BM> a_share;
    typedef sat_mma_share<S, S::BN> b_share;
    static constexpr int RUNS = b_share::RUNS, RUN = b_share::RUN;
    static constexpr int SIZE = (int)sizeof(typename S::element);
    static_assert(S::UNITS == 1 || a_share::PASSES == 1, "a thread has one block at a time");

    uint32_t a_to, b_to; /* this thread's first places in a stage */
    unsigned zero;
    unsigned tile;                  /* whose steps are being copied */
    unsigned first, unit, units;    /* its first block; the unit that its next step begins with, of how many */
    unsigned next_first, next_last; /* of the tile after it: its first block; its blocks, or the row's end */
    const char *a, *b;              /* the tile's rows and columns, and this thread's place there */
    int columns;                    /* inside, at most BN */
    /* The step that is copied next. col below 0: there is no such unit */
    bool live;
    unsigned block, a_in;
    int a_col, col[RUNS];
    unsigned in[RUNS];

    /* Asks where tile `at` begins and ends, and does nothing with the answer: that would wait for it. */
    __device__ __forceinline__ void look(const sat_mma_job &job, unsigned at) {
        if (at >= job.tiles) return;
        unsigned i = sat_mma_tile_at(job, at).piece + zero;
        const sat_work_item *piece = job.work.piece;
        next_first = (unsigned)(piece ? piece[i].first : job.r.ptr[i]);
        next_last = (unsigned)(piece ? piece[i].count : job.r.ptr[i + 1]);
    }

    __device__ __forceinline__ void open(const sat_mma_job &job) {
        if (tile >= job.tiles) return;
        sat_mma_tile t = sat_mma_tile_at(job, tile);
        first = next_first, unit = 0, units = (next_last - (job.work.piece ? 0 : first)) * job.units;
        a = job.a + t.item * job.a_item + t.slice * job.a_slice + a_share(job.a_deep).offset(job.a_deep, job.a_line);
        b = job.b + t.item * job.b_item + t.panel * job.b_panel + b_share(job.b_deep).offset(job.b_deep, job.b_line);
        columns = (int)min((int64_t)S::BN, job.out.to.n - t.panel * (int64_t)S::BN);
        look(job, tile + gridDim.x);
    }

    __device__ __forceinline__ void start(const sat_mma_job &job, uint32_t base) {
        a_to = base + a_share(job.a_deep).place(job.a_deep);
        b_to = base + S::A_BYTES + b_share(job.b_deep).place(job.b_deep);
        zero = threadIdx.x & job.zero;
        tile = blockIdx.x;
        look(job, tile);
        open(job);
        fetch(job);
    }

    /* Where unit `at` of the tile is: the position of its block, and which of the block's units it is. */
    __device__ __forceinline__ unsigned find(const sat_mma_job &job, unsigned at, unsigned &in_block) const {
        unsigned blocks = job.units == 1 ? at : __umulhi(at, job.inverse);
        in_block = at - blocks * job.units;
        return first + blocks + zero;
    }

    /* Asks for the indices of the tile's next step; a tile without blocks has one step, of zeros. */
    __device__ __forceinline__ void fetch(const sat_mma_job &job) {
        live = tile < job.tiles;
        if (!live) return;
        unsigned at = unit + a_share(job.a_deep).unit(job.a_deep, 0);
        a_col = -1;
        if (at < units) {
            block = find(job, at, a_in);
            a_col = job.r.col[block];
            if (job.r.block) block = (unsigned)job.r.block[block];
        }
        b_share share(job.b_deep);
#pragma unroll
        for (int run = 0; run < RUNS; run++) {
            col[run] = a_col, in[run] = a_in;
            if (S::UNITS == 1) continue;
            at = unit + share.unit(job.b_deep, run);
            col[run] = at < units ? job.r.col[find(job, at, in[run])] : -1;
        }
        unit += S::UNITS;
    }

    /* k where a unit begins: 2^31 and more if there is none. */
    __device__ __forceinline__ static unsigned k_of(const sat_mma_job &job, int col, unsigned in) {
        return (unsigned)col * (unsigned)job.r.bc + in * S::KU | ((unsigned)col & 0x80000000u);
    }
    __device__ __forceinline__ static int room_at(const sat_mma_job &job, unsigned k) {
        return k >> 31 ? 0 : (int)min((int64_t)S::KU, job.r.k - k);
    }

    __device__ __forceinline__ void copy_a(const sat_mma_job &job, uint32_t to) const {
        if (a_share::idle()) return;
        unsigned k = k_of(job, a_col, a_in);
        const char *from = a + (uint64_t)block * job.a_block + a_in * job.a_unit;
        if (k < job.k_whole) {
#pragma unroll
            for (int p = 0; p < a_share::PASSES; p++)
                cp_async_16(a_share::place_in(job.a_deep, to, p), from + (uint64_t)job.a_pass * p);
            return;
        }
        a_share share(job.a_deep);
#pragma unroll 1
        for (int p = 0; p < a_share::PASSES; p++)
            cp_async_16(a_share::place_in(job.a_deep, to, p), from + (uint64_t)job.a_pass * p,
                        share.inside(job.a_deep, p, room_at(job, k), S::BM) * SIZE);
    }

    __device__ __forceinline__ void copy_b(const sat_mma_job &job, uint32_t to) const {
        if (b_share::idle()) return;
        const char *from[RUNS];
        unsigned k[RUNS];
        bool whole = columns == S::BN;
#pragma unroll
        for (int run = 0; run < RUNS; run++) {
            k[run] = k_of(job, col[run], in[run]);
            from[run] = b + (uint64_t)k[run] * job.b_k;
            if (run > 0 && job.b_deep) from[run] += job.b_pass * (run * RUN);
            whole = whole && k[run] < job.k_whole;
        }
        if (whole) {
#pragma unroll
            for (int p = 0; p < b_share::PASSES; p++)
                cp_async_16(b_share::place_in(job.b_deep, to, p), from[p / RUN] + job.b_pass * (p % RUN));
            return;
        }
        b_share share(job.b_deep);
#pragma unroll
        for (int run = 0; run < RUNS; run++)
#pragma unroll 1
            for (int p = run * RUN; p < (run + 1) * RUN; p++)
                cp_async_16(b_share::place_in(job.b_deep, to, p), from[run] + job.b_pass * (p % RUN),
                            share.inside(job.b_deep, p, room_at(job, k[run]), columns) * SIZE);
    }

    /* Copies the step that is due to the stage at `offset`, and asks for the one after it. */
    __device__ __forceinline__ void step(const sat_mma_job &job, uint32_t offset) {
        if (live) {
            copy_a(job, a_to + offset);
            copy_b(job, b_to + offset);
            if (unit >= units) tile += gridDim.x, open(job);
            fetch(job);
        }
        cp_async_commit_group();
    }
};

#endif
