// cuda_matmul_wgmma_tf32: C = op(A)*B in f32, rounded to TF32, with TMA loads and wgmma (sm_90a).
//
// For TF32, wgmma reads operands from shared memory only where K is contiguous. Its first operand may also come from
// registers. That leaves three kernels, by the layouts of A and B:
//
//   A as stored, B column-major   K is contiguous in both: both from shared memory.
//   A transposed, B column-major  A's fragments are loaded from shared memory to registers.
//   A as stored, B row-major      the product is computed transposed, C^T = B^T * A^T: a stored block is the second
//                                 operand, and B^T is the first, whose fragments are loaded to registers.
//
// Fragments of 8 along K are loaded while the 8 before are multiplied. With A transposed and B row-major neither
// operand can be the second one; mma.sync does that case. The tensor maps round both operands to TF32.
//
// Where the product is transposed, the columns of B can be assigned to the rows of wgmma in any order. The order used
// here (b_columns) avoids bank conflicts, and leaves each lane four neighbouring columns of C.
//
// The rest is as in matmul_wgmma_sm90.cu: a tile is BM rows of a block row by BN columns of C, a persistent CTA has one
// producer warp, two consumer warpgroups, and a ring of stages between them.

#include "kernels/cuda/common/scheduler.h"
#include "kernels/cuda/common/ptx_sm90.cuh"
#include "kernels/cuda/common/ring.cuh"
#include "kernels/cuda/common/epilogue.cuh"

/* ---- parameters ---- */

struct tensor_maps {
    CUtensorMap a, b;
};

struct params {
    sat_tile_scheduler scheduler;
    sat_rows rows; // the stored blocks of op(A)
    sat_tile_epilogue epilogue;
    float *partials;     // of split rows
    bool b_whole_chunks; // row-major B, n a multiple of 32: one TMA box covers the stage
};

/* What `prepare` makes, and the tensor maps of the last launch. */
struct state {
    sat_device_schedule work;
    unsigned *counter;
    tensor_maps maps;
    const void *made_for[2]; // the pointers that the maps were encoded for
};

/* ---- shared memory ---- */

/* A tile, as the producer publishes it to the consumers. */
struct tile {
    int row, slice, panel;
    int steps;     // stages of BK along K; -1: there are no more tiles
    int partial;   // which partial sum it writes; -1: it writes C
    int unused[2]; // padding, never read; without it ptxas gives other code than was measured
};

enum { A_DEPTH = 32 }; // a copy of A: lines of 128 bytes

/* The tile's shape and the map of shared memory: [A][B of all stages][barriers, queue].
 *
 * A stage has B, BK x BN, and A, BM x BK. Where BK is 16 a copy of A, 32 deep, serves two stages. Then A has slots of
 * its own, one for two stages and one more, as in matmul_wgmma_sm90.cu.
 *
 * A warpgroup's sums are PRODUCTS wgmma tiles of SUMS sums a thread. Transposed, each is 64 columns by all BM rows. */
template <int BM_, int BN_, int BK_, int STAGES_, bool A_TRANSPOSED_, bool B_COL_MAJOR_> struct shape {
    static constexpr int BM = BM_, BN = BN_, BK = BK_, STAGES = STAGES_, CONSUMERS = 256, THREADS = CONSUMERS + 128;
    static constexpr bool A_TRANSPOSED = A_TRANSPOSED_, B_COL_MAJOR = B_COL_MAJOR_;
    static constexpr int A_SLOTS = BK == A_DEPTH ? STAGES : STAGES / 2 + 1;
    static constexpr int A_BYTES = BM * A_DEPTH * 4, B_BYTES = BK * BN * 4; // of a slot; of a stage
    static constexpr int B_OFFSET = A_SLOTS * A_BYTES, RING_OFFSET = B_OFFSET + STAGES * B_BYTES;
    static constexpr int BYTES = RING_OFFSET + (int)sizeof(sat_ring_shared<tile>);
    static constexpr int WN = B_COL_MAJOR && BM == 128 ? BN : BN / 2; // columns of a warpgroup
    static constexpr int PRODUCTS = B_COL_MAJOR ? 1 : WN / 64, SUMS = B_COL_MAJOR ? WN / 2 : BM / 2;
    static_assert(B_COL_MAJOR || !A_TRANSPOSED, "no wgmma takes these");
    static_assert(BK == A_DEPTH || (!B_COL_MAJOR && STAGES % 2 == 0),
                  "a slot of A serves one stage, or two from an even one on");
    static_assert(BYTES <= 227 * 1024, "more shared memory than a CTA may have");
    static_assert(STAGES <= SAT_MAX_STAGES && PRODUCTS * SUMS <= 128, "barriers of the ring; registers for sums");
};

/* setmaxnreg: with both, 128 * 72 + 256 * 216 = 64512 registers of the 65536 that a multiprocessor has. */
static constexpr int PRODUCER_REGISTERS = 72, CONSUMER_REGISTERS = 216;

/* ---- barriers ---- */

typedef sat_ring_shared<tile> ring_shared;

/* A warp's pipeline state: the next stage, the next slot of A, and the phase to wait for. */
template <typename S> struct pipeline_state {
    int stage = 0, a_slot = 0;
    uint32_t phase;

    __device__ __forceinline__ void advance(bool next_a_slot) {
        if (++stage == S::STAGES) stage = 0, phase ^= 1;
        if (next_a_slot && ++a_slot == S::A_SLOTS) a_slot = 0;
    }
    /* Offsets of the operands in shared memory. */
    __device__ __forceinline__ uint32_t a() const { return a_slot * S::A_BYTES; }
    __device__ __forceinline__ uint32_t b() const { return S::B_OFFSET + stage * S::B_BYTES; }
};

/* ---- producer ---- */

/* Whether the stage's A came with the stage before. */
template <typename S> __device__ static bool has_a(int in_block) { return S::BK < A_DEPTH && in_block % A_DEPTH; }

/* By one lane: a stage. The block begins at line `line` of A's tensor map; of it come the rows from `row` on and the
 * columns from `in_block` on. B comes from element (k, n0) on. */
template <typename S>
__device__ static void load(const params &x, const tensor_maps &m, uint32_t a, uint32_t b, uint32_t bar, int line,
                            int row, int in_block, int k, int n0) {
    bool again = has_a<S>(in_block);
    mbarrier_arrive_expect_tx(bar, again ? S::B_BYTES : S::A_BYTES + S::B_BYTES);
    if (S::A_TRANSPOSED)
        for (int i = 0; i < S::BM; i += 32) tma_load(a + i * (A_DEPTH * 4), &m.a, bar, row + i, line + in_block);
    else if (!again) tma_load(a, &m.a, bar, in_block, line + row);
    sat_load_b<S::BK, S::BN, S::B_COL_MAJOR, 4>(&m.b, x.b_whole_chunks, b, bar, k, n0);
}

/* Takes tiles from the scheduler, publishes them, and loads A and B. */
template <typename S>
__device__ static void producer(const params &x, const tensor_maps &m, sat_prefetched_tile &next, ring_shared *s,
                                uint32_t smem) {
    int bc = (int)x.rows.bc,
        lines = (int)(S::A_TRANSPOSED ? x.rows.bc : x.rows.br); // lines of a block in A's tensor map
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
        if (one)
            queue.publish(s, {item.row, (int)now.coord.slice, (int)now.coord.panel,
                              last ? -1 : item.count * (bc / S::BK), item.partial});
        queue.advance();
        if (last) return;
        next.tile.request_next(), next.ready = false;
        for (int t = 0; t < item.count; t++) {
            if (t % 32 == 0 && t > 0) blocks.load_32(x.rows, item, t);
            int block_index = S::A_TRANSPOSED ? __shfl_sync(~0u, blocks.block_index, t % 32) : (int)item.first + t;
            int line = block_index * lines, k = __shfl_sync(~0u, blocks.k, t % 32);
            for (int in_block = 0; in_block < bc; in_block += S::BK) {
                if (one) {
                    mbarrier_wait(empty + pipe.stage * 8, pipe.phase);
                    load<S>(x, m, smem + pipe.a(), smem + pipe.b(), full + pipe.stage * 8, line,
                            (int)now.coord.slice * S::BM, in_block, k + in_block, (int)now.coord.panel * S::BN);
                }
                pipe.advance(S::BK == A_DEPTH || has_a<S>(in_block));
            }
            next.poll(x.scheduler, x.rows);
        }
    }
}

/* ---- consumer: the three products ---- */

// clang-format off
/* TF32: m64nNk8, N twice the size of d. K is contiguous in what comes from shared memory. `a` may come from registers,
 * which must not change until the product is complete. */
#define SAT_WGMMA_TF32_RS(N, SUMS, LIST, OUT, a0_, a1_, a2_, a3_, b_, scale_d_) \
    __device__ __forceinline__ void wgmma_tf32(float (&d)[SUMS], const uint32_t (&a)[4], uint64_t b, int scale_d) { \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #scale_d_ ", 0; wgmma.mma_async.sync.aligned.m64n" #N \
                     "k8.f32.tf32.tf32 {" LIST "}, {%" #a0_ ", %" #a1_ ", %" #a2_ ", %" #a3_ "}, %" #b_ ", p, 1, 1; }" \
                     : OUT \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(scale_d)); \
    }
#define SAT_WGMMA_TF32_SS(N, SUMS, LIST, OUT, a_, b_, scale_d_) \
    __device__ __forceinline__ void wgmma_tf32(float (&d)[SUMS], uint64_t a, uint64_t b, int scale_d) { \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #scale_d_ ", 0; wgmma.mma_async.sync.aligned.m64n" #N \
                     "k8.f32.tf32.tf32 {" LIST "}, %" #a_ ", %" #b_ ", p, 1, 1; }" \
                     : OUT \
                     : "l"(a), "l"(b), "r"(scale_d)); \
    }
SAT_WGMMA_TF32_RS(64, 32, SAT_D32, SAT_SUMS32(0), 32, 33, 34, 35, 36, 37)
SAT_WGMMA_TF32_RS(128, 64, SAT_D64, SAT_SUMS64, 64, 65, 66, 67, 68, 69)
SAT_WGMMA_TF32_RS(256, 128, SAT_D128, SAT_SUMS128, 128, 129, 130, 131, 132, 133)
SAT_WGMMA_TF32_SS(128, 64, SAT_D64, SAT_SUMS64, 64, 65, 66)
SAT_WGMMA_TF32_SS(256, 128, SAT_D128, SAT_SUMS128, 128, 129, 130)
// clang-format on

/* In all three, `release` is called when the stage before is not read any more: its wgmma is complete. */

/* A as stored, B column-major: both from shared memory. */
template <typename S, typename RELEASE>
__device__ __forceinline__ void multiply_from_shared(float (&d)[S::SUMS], uint32_t block, uint32_t b, int wg,
                                                     int scale_d, RELEASE release) {
    if (S::BM == 128) block += wg * 64 * A_DEPTH * 4;
    else b += wg * S::WN * S::BK * 4;
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < S::BK / 8; step++)
        wgmma_tf32(d, wgmma_descriptor(block + step * 32, swizzle_mode_of(128), 16, 1024),
                   wgmma_descriptor(b + step * 32, swizzle_mode_of(128), 16, 1024), scale_d || step);
    wgmma_commit_group();
    wgmma_wait_group<1>();
    release();
}

/* Offset of this lane's first element in a stage of A transposed: chunks of 32 rows, in each a line for every k. */
template <typename S> __device__ __forceinline__ uint32_t a_fragment_offset(int wg) {
    int lane = threadIdx.x % 32, q = lane % 4;
    int row = (S::BM == 128 ? wg * 64 : 0) + (int)threadIdx.x / 32 % 4 * 16 + lane / 4;
    return row / 32 * (A_DEPTH * 128) + q * 128 + (row % 32 / 4 ^ q) * 16 + row % 4 * 4;
}

/* A transposed, B column-major: A from registers. `a`: two sets of fragments, since one may still be read by wgmma. Row
 * +8 is two vectors of 16 bytes on, k + 4 four lines on; with the swizzle both are an exclusive or. */
template <typename S, typename RELEASE>
__device__ __forceinline__ void multiply_a_from_registers(float (&d)[S::SUMS], uint32_t (&a)[2][S::PRODUCTS][4],
                                                          uint32_t mine, uint32_t b, int wg, int scale_d,
                                                          RELEASE release) {
    if (S::BM == 64) b += wg * S::WN * S::BK * 4;
#pragma unroll
    for (int step = 0; step < S::BK / 8; step++) {
        uint32_t(&now)[4] = a[step % 2][0];
        now[0] = ld_shared_b32(mine + step * 1024), now[1] = ld_shared_b32((mine ^ 32) + step * 1024);
        now[2] = ld_shared_b32((mine ^ 64) + step * 1024 + 512),
        now[3] = ld_shared_b32((mine ^ 96) + step * 1024 + 512);
        wgmma_fence();
        wgmma_tf32(d, now, wgmma_descriptor(b + step * 32, swizzle_mode_of(128), 16, 1024), scale_d || step);
        wgmma_commit_group();
        wgmma_wait_group<1>();
        if (step == 0) release();
    }
}

/* The columns of B that a lane has, of the 32 of a warp, where the product is transposed: the four of one vector of 16
 * bytes. The first of two products has two of them, the upper two where `upper`; the second product has the other two.
 * So half a warp that loads two columns a lane from four swizzled lines meets every bank once. */
struct b_columns {
    int vec16;
    bool upper;
};
__device__ __forceinline__ b_columns b_columns_of(int lane) {
    int g = lane / 4;
    return {g / 2 + g % 2 * 4, g / 2 % 2 == 1};
}

/* Offset of this lane's first element in a stage of B row-major: chunks of 32 columns, in each a line for every k. */
template <typename S> __device__ __forceinline__ uint32_t b_fragment_offset(int wg) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, q = lane % 4;
    b_columns c = b_columns_of(lane);
    return (wg * (S::WN / 32) + warp) * (S::BK * 128) + q * 128 + (c.vec16 ^ q) * 16 + c.upper * 8;
}

__device__ __forceinline__ void ld_shared_v2_b32(uint32_t &x, uint32_t &y, uint32_t from) {
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(x), "=r"(y) : "r"(from) : "memory");
}

/* B's fragments of all products, 8 along K. */
template <typename S>
__device__ __forceinline__ void load_b_fragments(uint32_t (&a)[S::PRODUCTS][4], uint32_t from, int step) {
#pragma unroll
    for (int p = 0; p < S::PRODUCTS; p++) {
        uint32_t to = p / 2 * 4 * (S::BK * 128) + step * 1024, other = p % 2 * 8;
        ld_shared_v2_b32(a[p][0], a[p][1], (from ^ other) + to);
        ld_shared_v2_b32(a[p][2], a[p][3], (from ^ other ^ 64) + to + 512);
    }
}

/* A as stored, B row-major: transposed, B from registers. `a`: two sets of fragments, since one may still be read. */
template <typename S, typename RELEASE>
__device__ __forceinline__ void multiply_b_from_registers(float (&d)[S::PRODUCTS][S::SUMS],
                                                          uint32_t (&a)[2][S::PRODUCTS][4], uint32_t block, uint32_t b,
                                                          int scale_d, RELEASE release) {
#pragma unroll
    for (int step = 0; step < S::BK / 8; step++) {
        load_b_fragments<S>(a[step % 2], b, step);
        uint64_t second = wgmma_descriptor(block + step * 32, swizzle_mode_of(128), 16, 1024);
        wgmma_fence();
#pragma unroll
        for (int p = 0; p < S::PRODUCTS; p++) wgmma_tf32(d[p], a[step % 2][p], second, scale_d || step);
        wgmma_commit_group();
        wgmma_wait_group<1>();
        if (step == 0) release();
    }
}

/* ---- consumer: the main loop ---- */

template <typename S>
__device__ __forceinline__ void epilogue(const params &x, const tile &t, const float (&d)[S::PRODUCTS][S::SUMS],
                                         int wg);

/* Of a warpgroup. The last wgmma of a stage still runs when the next stage is waited for, so a stage is released one
 * step late. */
template <typename S> __device__ static void consumer(const params &x, ring_shared *s, uint32_t smem) {
    int wg = threadIdx.x / 128, lane = threadIdx.x % 32;
    pipeline_state<S> pipe = {.phase = 0};
    sat_tile_queue<tile> queue = {.phase = 0};
    uint32_t mine = S::A_TRANSPOSED ? a_fragment_offset<S>(wg) : S::B_COL_MAJOR ? 0 : b_fragment_offset<S>(wg);
    for (;;) {
        tile t = queue.receive(s);
        queue.advance();
        if (t.steps < 0) return;
        int mma_stage = -1; // the stage of the last wgmma, where this warp has not released it yet
        float d[S::PRODUCTS][S::SUMS];
        uint32_t a[2][S::PRODUCTS][4];
        auto release = [&] {
            if (mma_stage >= 0 && lane == 0) mbarrier_arrive(smem_address(&s->empty[mma_stage]));
        };
        if (t.steps == 0)
#pragma unroll
            for (int e = 0; e < S::PRODUCTS * S::SUMS; e++) d[e / S::SUMS][e % S::SUMS] = 0;
        for (int step = 0; step < t.steps; step++) {
            bool second_half = S::BK < A_DEPTH && step % 2; // of a copy of A that serves two stages
            uint32_t block = smem + pipe.a() + (second_half ? S::BK * 4 : 0), b = smem + pipe.b();
            mbarrier_wait(smem_address(&s->full[pipe.stage]), pipe.phase);
            if constexpr (S::A_TRANSPOSED) multiply_a_from_registers<S>(d[0], a, block + mine, b, wg, step, release);
            else if constexpr (S::B_COL_MAJOR) multiply_from_shared<S>(d[0], block, b, wg, step, release);
            else multiply_b_from_registers<S>(d, a, block, b + mine, step, release);
            mma_stage = pipe.stage;
            pipe.advance(S::BK == A_DEPTH || second_half);
        }
        wgmma_wait_group<0>();
        release();
        epilogue<S>(x, t, d, wg);
    }
}

/* ---- epilogue ---- */

/* Row and column of a thread's sum e within its warpgroup's part of the tile. */
struct sum_position {
    int row, column;
};
template <typename S> __device__ __forceinline__ sum_position sum_position_of(int e) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, g = lane / 4, q = lane % 4, product = e / S::SUMS;
    int outer = e % 4 / 2, inner = e % S::SUMS / 4 * 8 + q * 2 + e % 2;
    if (S::B_COL_MAJOR) return {warp * 16 + g + outer * 8, inner};
    b_columns c = b_columns_of(lane);
    return {inner, product / 2 * 128 + warp * 32 + c.vec16 * 4 + (c.upper ^ product % 2) * 2 + outer};
}

/* Any C, element by element. The loop is not unrolled, so that the code of the activations is there only once. */
template <typename S>
__device__ __forceinline__ void store_any(const sat_epilogue &to, const float (&d)[S::PRODUCTS][S::SUMS], int64_t i0,
                                          int64_t n0) {
    constexpr int COUNT = S::PRODUCTS * S::SUMS;
#pragma unroll 1
    for (int s = 0; s < COUNT; s += 4) {
        float y[4];
#pragma unroll
        for (int e = 0; e < COUNT; e++)
            if (e / 4 * 4 == s) y[e % 4] = d[e / S::SUMS][e % S::SUMS];
#pragma unroll
        for (int v = 0; v < 4; v++) {
            sum_position p = sum_position_of<S>(s + v);
            if (i0 + p.row < to.m && n0 + p.column < to.n) sat_epilogue_store(to, i0 + p.row, n0 + p.column, y[v]);
        }
    }
}

/* alpha*sum + bias, and relu. */
struct scaling {
    float alpha, lower_bound;
    const float *bias;
    __device__ explicit scaling(const sat_epilogue &o)
        : alpha((float)o.alpha), lower_bound(o.activation == SAT_ACT_RELU ? 0 : -INFINITY),
          bias((const float *)o.bias) {}
    __device__ __forceinline__ float bias_of(int64_t i) const { return bias ? bias[i] : 0; }
    __device__ __forceinline__ float of(float sum, float bias_of_row) const {
        float y = alpha * sum + bias_of_row;
        return y < lower_bound ? lower_bound : y; // keeps NaN
    }
};

/* From a transposed product to C row-major: 16 bytes a lane, 128 bytes of a row together. */
template <typename S>
__device__ __forceinline__ void store_rows(const sat_epilogue &o, const float (&d)[S::PRODUCTS][S::SUMS], int64_t i0,
                                           int64_t n0) {
    scaling scale(o);
    sum_position mine = sum_position_of<S>(0);
    bool upper = b_columns_of(threadIdx.x % 32).upper;
    int64_t i = i0 + mine.row, j = n0 + mine.column - upper * 2;
    int rows = (int)min((int64_t)1024, o.m - i), columns = (int)min((int64_t)1024, o.n - j);
    float *to = (float *)o.c + i * o.row_stride + j;
#pragma unroll
    for (int r = 0; r < S::BM / 4; r++) {
        const int down = r / 2 * 8 + r % 2, e = r / 2 * 4 + r % 2;
        if (down >= rows) continue;
        float bias = scale.bias_of(i + down);
        float *line = to + down * o.row_stride;
#pragma unroll
        for (int p = 0; p < S::PRODUCTS; p += 2) {
            float x[4] = {d[p][e], d[p][e + 2], d[p + 1][e], d[p + 1][e + 2]}, y[4];
#pragma unroll
            for (int v = 0; v < 4; v++) y[v] = scale.of(upper ? x[v ^ 2] : x[v], bias);
            if (p * 64 < columns) __stcg((float4 *)(line + p * 64), make_float4(y[0], y[1], y[2], y[3]));
        }
    }
}

/* From a transposed product to C column-major: 8 bytes a lane, 32 bytes of a column together. */
template <typename S>
__device__ __forceinline__ void store_columns(const sat_epilogue &o, const float (&d)[S::PRODUCTS][S::SUMS], int64_t i0,
                                              int64_t n0) {
    scaling scale(o);
    int rows = (int)min((int64_t)1024, o.m - i0), columns = (int)min((int64_t)1024, o.n - n0);
#pragma unroll
    for (int x = 0; x < S::SUMS; x += 4) {
        int row = sum_position_of<S>(x).row;
        if (row >= rows) continue;
        float first = scale.bias_of(i0 + row), second = scale.bias_of(i0 + row + 1);
#pragma unroll
        for (int e = 0; e < S::PRODUCTS * 2; e++) {
            const int p = e / 2, h = e % 2 * 2;
            int column = sum_position_of<S>(p * S::SUMS + h).column;
            float *to = (float *)o.c + (n0 + column) * o.col_stride + i0 + row;
            if (column < columns)
                __stcg((float2 *)to, make_float2(scale.of(d[p][x + h], first), scale.of(d[p][x + h + 1], second)));
        }
    }
}

/* A warpgroup's sums, whose first is (i0, n0), to C or to a partial sum. */
template <typename S>
__device__ __forceinline__ void store(const sat_tile_epilogue &to, const float (&d)[S::PRODUCTS][S::SUMS], int64_t i0,
                                      int64_t n0) {
    const sat_epilogue &o = to.out;
    bool simple = o.beta == 0 && (o.activation == SAT_ACT_NONE || o.activation == SAT_ACT_RELU);
    if constexpr (S::B_COL_MAJOR) {
        sum_position mine = sum_position_of<S>(0);
        const float(&sum)[1][S::WN / 8][4] = reinterpret_cast<const float(&)[1][S::WN / 8][4]>(d);
        if (to.path != SAT_STORE_PAIRS) store_any<S>(o, d, i0, n0);
        else if (to.column_major || !to.aligned || o.n % 2)
            sat_store_pairs<false>(o, sum, i0 + mine.row, n0 + mine.column);
        else sat_store_pairs<true>(o, sum, i0 + mine.row, n0 + mine.column);
    } else {
        if (simple && to.aligned && !to.column_major && o.n % 4 == 0) store_rows<S>(o, d, i0, n0);
        else if (simple && to.aligned && to.column_major && o.m % 2 == 0) store_columns<S>(o, d, i0, n0);
        else store_any<S>(o, d, i0, n0);
    }
}

/* A warpgroup's sums to C, or to the partial sum of a split row. */
template <typename S>
__device__ __forceinline__ void epilogue(const params &x, const tile &t, const float (&d)[S::PRODUCTS][S::SUMS],
                                         int wg) {
    int64_t in_row = t.slice * S::BM + (S::B_COL_MAJOR && S::BM == 128 ? wg * 64 : 0), n = x.epilogue.out.n;
    int64_t i0 = t.row * x.rows.br + in_row, n0 = (int64_t)t.panel * S::BN + (S::WN < S::BN ? wg * S::WN : 0);
    if (n0 >= n) return;
    sat_tile_epilogue to = x.epilogue;
    if (t.partial >= 0) to = sat_partial_epilogue<float>(x.partials + t.partial * x.rows.br * n, n), i0 = in_row;
    store<S>(to, d, i0, n0);
}

/* ---- kernel ---- */

template <typename S>
static __global__ void __launch_bounds__(S::THREADS, 1)
    matmul_wgmma_tf32(const __grid_constant__ params x, const __grid_constant__ tensor_maps m) {
    extern __shared__ __align__(1024) char memory[];
    ring_shared *s = (ring_shared *)(memory + S::RING_OFFSET);
    sat_prefetched_tile next = {};
    griddepcontrol_launch_dependents();
    if (threadIdx.x < 32) sat_ring_init<S::STAGES>(s, S::CONSUMERS / 32);
    if (threadIdx.x / 32 == S::CONSUMERS / 32) {
        prefetch_tensormap(&m.a), prefetch_tensormap(&m.b);
        next.tile.first();
        while (!next.ready) next.poll(x.scheduler, x.rows);
    }
    __syncthreads();
    griddepcontrol_wait();
    if (threadIdx.x >= S::CONSUMERS) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x < S::CONSUMERS + 32) producer<S>(x, m, next, s, smem_address(memory));
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        consumer<S>(x, s, smem_address(memory));
    }
    sat_tile_counter_end(x.scheduler.counter, x.scheduler.tiles);
}

/* ---- host ---- */

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    if (!(p->flags & SAT_ALLOW_TF32) || (p->matmul.transpose == SAT_TRANSPOSE && p->b.col_stride == 1)) return false;
    double tiles = ((double)r.count + (double)a->stored_blocks) * ceil((double)p->n / v->instance.tile_n) *
                   (double)(r.br / v->instance.tile_m);
    if (r.br % v->instance.tile_m || r.bc % v->instance.tile_k || tiles > 0x7fff0000) return false;
    return tensormaps_fit_matmul(v, p, a, d);
}

/* Loads from L2 and products overlap; the longer counts. */
static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    double bm = v->instance.tile_m, bn = v->instance.tile_n, panels = ceil((double)p->n / bn);
    double slices = (double)r.br / bm;
    double depth = (double)a->stored_blocks * (double)r.bc * slices * panels, batch = (double)p->batch;
    double tiles = (double)r.count * slices * panels, utilization = fmin(1, tiles / d->multiprocessors);
    double loads = depth * (bm + bn) * 4 / (0.96 * d->l2_rate), work = 2 * depth * bm * bn / d->tf32_rate;
    double time = fmax(loads, work) / utilization;
    return fmax(batch * time, sat_bytes(p, a) / d->memory_rate) + batch * (tiles / d->multiprocessors * 1.5e-6 + 3e-6);
}

static sat_status make_state(const sat_prepare *q, void *out) {
    state *st = (state *)out;
    return sat_persistent_prepare(q, &st->work, &st->counter);
}

static sat_status prepare(const sat_prepare *q, void **out) {
    return tensormap_prepare(q, sizeof(state), make_state, out);
}

template <typename S> static sat_status start(const sat_launch *l, const params &x, const tensor_maps &m) {
    unsigned grid = (unsigned)sat_min(x.scheduler.tiles, l->device->multiprocessors);
    return sat_start<matmul_wgmma_tf32<S>>(l, grid, S::THREADS, S::BYTES, x, m);
}

template <typename S> static sat_status launch_tile(const sat_launch *l) {
    const sat_problem *p = l->problem;
    if (p->m == 0 || p->n == 0) return SAT_OK;
    state *st = (state *)l->state;
    params x = {};
    x.rows = sat_device_rows(p, l->pattern), x.epilogue = sat_tile_epilogue_of(l, false);
    x.scheduler = sat_tile_scheduler_of(st->work, st->counter, x.rows.br / S::BM, (p->n + S::BN - 1) / S::BN,
                                        4.0 * S::BN * (double)p->k, l->device);
    x.partials = (float *)st->work.partial, x.b_whole_chunks = sat_b_whole_chunks(p);
    if (!tensormaps_reuse(st->made_for, 2, l->operands) &&
        !(tensormap_of_a(l, A_DEPTH, S::A_TRANSPOSED ? A_DEPTH : S::BM, &st->maps.a) &&
          tensormap_of_b(l, S::BK, S::BN, &st->maps.b)))
        return tensormaps_failed(l, st->made_for);
    sat_status status = sat_renew_schedule(l, x.rows, st->work);
    if (status == SAT_OK) status = start<S>(l, x, st->maps);
    return status == SAT_OK ? sat_launch_split_reduction(l, x.rows, x.epilogue.out, st->work) : status;
}

struct instance {
    int tile_m, tile_n;
    bool a_transposed, b_col_major;
    sat_status (*launch)(const sat_launch *l);
};

template <int BM, int BN, int BK, int STAGES, bool A_TRANSPOSED, bool B_COL_MAJOR> constexpr instance instance_of() {
    return {BM, BN, A_TRANSPOSED, B_COL_MAJOR, launch_tile<shape<BM, BN, BK, STAGES, A_TRANSPOSED, B_COL_MAJOR>>};
}

// BM, BN, BK; stages; A transposed; B column-major
static constexpr instance instances[] = {
    instance_of<128, 256, 32, 4, false, false>(), instance_of<128, 256, 32, 4, false, true>(),
    instance_of<128, 256, 32, 4, true, true>(),   instance_of<64, 512, 16, 6, false, false>(),
    instance_of<64, 512, 32, 3, false, true>(),   instance_of<64, 512, 32, 3, true, true>(),
    instance_of<64, 256, 32, 5, false, false>(),  instance_of<64, 256, 32, 5, false, true>(),
    instance_of<64, 256, 32, 5, true, true>(),
};

static sat_status launch(const sat_launch *l) {
    const sat_instance *i = &l->variant->instance;
    bool a_transposed = l->problem->matmul.transpose == SAT_TRANSPOSE, b_col_major = l->problem->b.col_stride != 1;
    for (const instance &x : instances)
        if (x.tile_m == i->tile_m && x.tile_n == i->tile_n && x.a_transposed == a_transposed &&
            x.b_col_major == b_col_major)
            return x.launch(l);
    return sat_fail(SAT_INTERNAL, "%s: no such tile", l->variant->name);
}

SAT_FAMILY(cuda_matmul_wgmma_tf32) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .flags = SAT_V_DYNAMIC, // not SAT_V_BATCHED: one launch per batch item
    .about = "f32 as TF32 by TMA and wgmma on Hopper, block rows multiples of 64",
    .supports = supports,
    .estimate = estimate,
    .workspace = sat_persistent_workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_state,
};
