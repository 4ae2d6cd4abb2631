// cuda_matmul_wgmma_tf32: f32 rounded to TF32 by warpgroup products (sm_90a).
//
// Such products take operands from shared memory only with the depth contiguous. The stored blocks are like that, and a
// B by columns too: it is multiplied as 16-bit operands are. B by rows is not. There the sides are exchanged, C^T = B^T
// * A^T: the stored block is the right operand as it is, and B's columns are the rows of the left one, which registers
// may hold: each lane fetches its elements from shared memory, 8 deep, while the 8 before are multiplied. Which column
// is which row of a product does not matter until it is stored, so they are numbered for lanes to meet no bank twice,
// and for a lane to end with four neighbours of a row of C. A transposed has its rows contiguous: it comes through
// registers, too, where B lies by columns. Transposed, with B by rows, neither side lies as the right operand must:
// that is left to mma.sync. Tensor maps round both operands to TF32.

#include "kernels/cuda/common/scheduler.h"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/matmul/tf32_out.cuh"
#include "kernels/cuda/common/ring.cuh"

enum { DEEP = 32 }; // what a copy brings of A: lines of 128 bytes

/* BM rows, BN columns and KS of depth a stage; TA: A transposed; TB: B by columns. A comes in slots of its own where KS
 * is less than it is deep: a stage that is free frees the slots before the last but STAGES / 2. */
template <int BM_, int BN_, int KS_, int STAGES_, bool TA_, bool TB_> struct shape {
    static constexpr int BM = BM_, BN = BN_, KS = KS_, STAGES = STAGES_, GROUPS = 2, CONSUMERS = 256;
    static constexpr bool TA = TA_, TB = TB_;
    static constexpr int SLOTS = KS == DEEP ? STAGES : STAGES / 2 + 1, SLOT = BM * DEEP * 4, A = SLOT, B = KS * BN * 4;
    static constexpr int B_FROM = SLOTS * SLOT, BYTES = B_FROM + STAGES * B + (int)sizeof(sat_ring_shared);
    static constexpr int THREADS = CONSUMERS + 128;
    // A warpgroup has PARTS products of HAS sums a thread. Exchanged, each is of 64 columns and all rows.
    static constexpr int WN = TB && BM == 128 ? BN : BN / 2, PARTS = TB ? 1 : WN / 64, HAS = TB ? WN / 2 : BM / 2;
    static_assert(TB || !TA, "no product takes these");
    static_assert(KS == DEEP || (!TB && STAGES % 2 == 0), "a slot of A belongs to a stage, or to two from an even one");
    static_assert(BYTES <= 232448 && STAGES <= SAT_MAX_STAGES && PARTS * HAS <= 128, "what a multiprocessor has");
};

struct maps {
    CUtensorMap a, b;
};

struct job {
    sat_tile_scheduler deal;
    sat_rows r;
    sat_tile_epilogue out;
    float *partial;
    bool wide_b; // B row-major in chunks of 32 columns that fill it: one copy brings them all
};

struct state {
    sat_device_schedule work;
    unsigned *counter;
    maps m; // of these operands: made anew only where a pointer has changed
    const void *of[2];
};

/* ---- the producer ---- */

/* Whether the stage's part of A came with the one before. */
template <typename S> __device__ static bool came_before(int in_block) { return S::KS < DEEP && in_block % DEEP; }

/* Of the block that begins in this line of A's map, from `in_block` on, the rows from `row` on; and B. */
template <typename S>
__device__ static void load(const job &x, const maps &m, uint32_t a, uint32_t b, uint32_t bar, int line, int row,
                            int in_block, int k, int n0) {
    bool again = came_before<S>(in_block);
    mbarrier_arrive_expect_tx(bar, again ? S::B : S::A + S::B);
    if (S::TA)
        for (int i = 0; i < S::BM; i += 32) tma_load(a + i * (DEEP * 4), &m.a, bar, row + i, line + in_block);
    else if (!again) tma_load(a, &m.a, bar, in_block, line + row);
    if (S::TB) {
        for (int i = 0; i < S::BN; i += 256) tma_load(b + i * S::KS * 4, &m.b, bar, k, n0 + i);
    } else if (x.wide_b) {
        tma_load(b, &m.b, bar, 0, k, n0 / 32);
    } else {
#pragma unroll 1
        for (int i = 0; i < S::BN; i += 32) tma_load(b + i * S::KS * 4, &m.b, bar, n0 + i, k);
    }
}

template <typename S>
__device__ static void produce(const job &x, const maps &m, sat_prefetched_tile &next, sat_ring_shared *s,
                               uint32_t memory) {
    int bc = (int)x.r.bc, lines = (int)(S::TA ? x.r.bc : x.r.br); // of a block, in A's map
    uint32_t full = keep_in_register(smem_address(s->full)), empty = full + sizeof s->full;
    bool one = elect_one();
    sat_ring<S> at = {.parity = 1};
    sat_tile_queue tiles = {.parity = 1};
    for (;;) {
        while (!next.ready) next.fetch(x.deal, x.r);
        sat_fetched_tile now = next.tile;
        sat_lane_blocks blocks = next.blocks;
        const sat_work_item &piece = now.piece;
        bool last = now.none(x.deal);
        if (one)
            tiles.publish(s, {piece.row, (int)now.at.slice, (int)now.at.panel, last ? -1 : piece.count * (bc / S::KS),
                              piece.slot, 0});
        tiles.advance();
        if (last) return;
        next.tile.request_next(), next.ready = false;
        for (int t = 0; t < piece.count; t++) {
            if (t % 32 == 0 && t > 0) blocks.fetch(x.r, piece, t);
            int place = S::TA ? __shfl_sync(~0u, blocks.place, t % 32) : (int)piece.first + t;
            int line = place * lines, k = __shfl_sync(~0u, blocks.k, t % 32);
            for (int in_block = 0; in_block < bc; in_block += S::KS) {
                if (one) {
                    mbarrier_wait(empty + at.stage * 8, at.parity);
                    load<S>(x, m, memory + at.a(true), memory + at.b(), full + at.stage * 8, line,
                            (int)now.at.slice * S::BM, in_block, k + in_block, (int)now.at.panel * S::BN);
                }
                at.advance(S::KS == DEEP || came_before<S>(in_block));
            }
            next.fetch(x.deal, x.r);
        }
    }
}

/* ---- the consumers: products ---- */

/* Where this lane's elements begin in a stage of B by rows: line of a group of 32 columns, row lane % 4 of it. */
template <typename S> __device__ __forceinline__ uint32_t first_of_b(int group) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, q = lane % 4;
    sat_tf32_columns c = sat_tf32_columns_of(lane);
    return (group * (S::WN / 32) + warp) * (S::KS * 128) + q * 128 + (c.chunk ^ q) * 16 + c.upper * 8;
}

__device__ __forceinline__ void fetch_two(uint32_t &x, uint32_t &y, uint32_t from) {
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(x), "=r"(y) : "r"(from) : "memory");
}

/* All parts as left operands, 8 deep. */
template <typename S> __device__ __forceinline__ void fetch_parts(uint32_t (&a)[S::PARTS][4], uint32_t from, int step) {
#pragma unroll
    for (int p = 0; p < S::PARTS; p++) {
        uint32_t to = p / 2 * 4 * (S::KS * 128) + step * 1024, other = p % 2 * 8;
        fetch_two(a[p][0], a[p][1], (from ^ other) + to);
        fetch_two(a[p][2], a[p][3], (from ^ other ^ 64) + to + 512);
    }
}

/* One stage, exchanged: while 8 of depth are multiplied, the next are fetched. `a`: two sets, of which one product may
 * still be reading the other at the end. `freed` is called when the stage before is not read any more. */
template <typename S, typename FREED>
__device__ __forceinline__ void multiply_exchanged(float (&d)[S::PARTS][S::HAS], uint32_t (&a)[2][S::PARTS][4],
                                                   uint32_t block, uint32_t b, int add, FREED freed) {
#pragma unroll
    for (int step = 0; step < S::KS / 8; step++) {
        fetch_parts<S>(a[step % 2], b, step);
        uint64_t right = wgmma_descriptor(block + step * 32, 1, 16, 1024);
        wgmma_fence();
#pragma unroll
        for (int p = 0; p < S::PARTS; p++) wgmma_tf32(d[p], a[step % 2][p], right, add || step);
        wgmma_commit_group();
        wgmma_wait_group<1>();
        if (step == 0) freed();
    }
}

/* One stage, B by columns. */
template <typename S, typename FREED>
__device__ __forceinline__ void multiply_plain(float (&d)[S::HAS], uint32_t block, uint32_t b, int group, int add,
                                               FREED freed) {
    if (S::BM == 128) block += group * 64 * DEEP * 4;
    else b += group * S::WN * S::KS * 4;
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < S::KS / 8; step++)
        wgmma_tf32(d, wgmma_descriptor(block + step * 32, 1, 16, 1024), wgmma_descriptor(b + step * 32, 1, 16, 1024),
                   add || step);
    wgmma_commit_group();
    wgmma_wait_group<1>();
    freed();
}

/* Where this lane's first element is in a stage of A transposed: lines of 32 rows, a line each of depth. */
template <typename S> __device__ __forceinline__ uint32_t first_of_a(int group) {
    int lane = threadIdx.x % 32, q = lane % 4;
    int row = (S::BM == 128 ? group * 64 : 0) + (int)threadIdx.x / 32 % 4 * 16 + lane / 4;
    return row / 32 * (DEEP * 128) + q * 128 + (row % 32 / 4 ^ q) * 16 + row % 4 * 4;
}

__device__ __forceinline__ uint32_t fetch_one(uint32_t from) {
    uint32_t x;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
    return x;
}

/* One stage, B by columns and A transposed, `a` as above: rows 8 on are two chunks of 16 bytes on, depth 4 on four. */
template <typename S, typename FREED>
__device__ __forceinline__ void multiply_turned(float (&d)[S::HAS], uint32_t (&a)[2][S::PARTS][4], uint32_t mine,
                                                uint32_t b, int group, int add, FREED freed) {
    if (S::BM == 64) b += group * S::WN * S::KS * 4;
#pragma unroll
    for (int step = 0; step < S::KS / 8; step++) {
        uint32_t(&now)[4] = a[step % 2][0];
        now[0] = fetch_one(mine + step * 1024), now[1] = fetch_one((mine ^ 32) + step * 1024);
        now[2] = fetch_one((mine ^ 64) + step * 1024 + 512), now[3] = fetch_one((mine ^ 96) + step * 1024 + 512);
        wgmma_fence();
        wgmma_tf32(d, now, wgmma_descriptor(b + step * 32, 1, 16, 1024), add || step);
        wgmma_commit_group();
        wgmma_wait_group<1>();
        if (step == 0) freed();
    }
}

/* A warpgroup's sums to C, or to the partial sums of a cut row, whose slot the tile has for its `first`. */
template <typename S>
__device__ __forceinline__ void put(const job &x, const sat_ring_tile &t, const float (&d)[S::PARTS][S::HAS],
                                    int group) {
    int64_t in_row = t.slice * S::BM + (S::TB && S::BM == 128 ? group * 64 : 0), n = x.out.to.n;
    int64_t i0 = t.row * x.r.br + in_row, n0 = (int64_t)t.panel * S::BN + (S::WN < S::BN ? group * S::WN : 0);
    if (n0 >= n) return;
    sat_tile_epilogue to = x.out;
    if (t.first >= 0) to = sat_partial_epilogue<float>(x.partial + t.first * x.r.br * n, n), i0 = in_row;
    sat_tf32_put<S>(to, d, i0, n0);
}

template <typename S> __device__ static void consume(const job &x, sat_ring_shared *s, uint32_t memory) {
    int group = threadIdx.x / 128, lane = threadIdx.x % 32;
    sat_ring<S> at = {.parity = 0};
    sat_tile_queue tiles = {.parity = 0};
    uint32_t mine = S::TA ? first_of_a<S>(group) : S::TB ? 0 : first_of_b<S>(group);
    for (;;) {
        sat_ring_tile t = tiles.receive(s);
        tiles.advance();
        if (t.steps < 0) return;
        int before = -1;
        float d[S::PARTS][S::HAS];
        uint32_t a[2][S::PARTS][4];
        auto freed = [&] {
            if (before >= 0 && lane == 0) mbarrier_arrive(smem_address(&s->empty[before]));
        };
        if (t.steps == 0)
#pragma unroll
            for (int e = 0; e < S::PARTS * S::HAS; e++) d[e / S::HAS][e % S::HAS] = 0;
        for (int step = 0; step < t.steps; step++) {
            bool odd = S::KS < DEEP && step % 2; // the second half of what came of A
            uint32_t block = memory + at.a(true) + (odd ? S::KS * 4 : 0), b = memory + at.b();
            mbarrier_wait(smem_address(&s->full[at.stage]), at.parity);
            if constexpr (S::TA) multiply_turned<S>(d[0], a, block + mine, b, group, step, freed);
            else if constexpr (S::TB) multiply_plain<S>(d[0], block, b, group, step, freed);
            else multiply_exchanged<S>(d, a, block, b + mine, step, freed);
            before = at.stage;
            at.advance(S::KS == DEEP || odd);
        }
        wgmma_wait_group<0>();
        freed();
        put<S>(x, t, d, group);
    }
}

template <typename S>
static __global__ void __launch_bounds__(S::THREADS, 1)
    multiply(const __grid_constant__ job x, const __grid_constant__ maps m) {
    extern __shared__ __align__(1024) char memory[];
    sat_ring_shared *s = (sat_ring_shared *)(memory + S::BYTES - sizeof *s);
    sat_prefetched_tile next = {};
    griddepcontrol_launch_dependents();
    if (threadIdx.x < 32) sat_ring_init<S>(s);
    if (threadIdx.x / 32 == S::CONSUMERS / 32) {
        prefetch_tensormap(&m.a), prefetch_tensormap(&m.b);
        next.tile.first();
        while (!next.ready) next.fetch(x.deal, x.r);
    }
    __syncthreads();
    griddepcontrol_wait();
    if (threadIdx.x >= S::CONSUMERS) {
        setmaxnreg_dec<72>();
        if (threadIdx.x < S::CONSUMERS + 32) produce<S>(x, m, next, s, smem_address(memory));
    } else {
        setmaxnreg_inc<216>();
        consume<S>(x, s, smem_address(memory));
    }
    sat_tile_scheduler_end(x.deal);
}

/* ---- the host's side ---- */

template <typename S> static bool make_maps(const sat_launch *l, const job &x, maps *m) {
    const sat_problem *p = l->problem;
    const sat_pattern_view *a = l->pattern;
    cuuint64_t bc = (cuuint64_t)a->block_cols, rows = (cuuint64_t)(a->stored_blocks * a->block_rows);
    cuuint64_t n = (cuuint64_t)p->n, k = (cuuint64_t)p->k;
    cuuint64_t lead = (cuuint64_t)(S::TB ? p->b.col_stride : p->b.row_stride) * 4;
    sat_tensor_box ta = {SAT_F32, l->operands[0], 2, {bc, rows}, {bc * 4}, {DEEP, S::TA ? DEEP : S::BM}, 128, true};
    sat_tensor_box tb = {SAT_F32, l->operands[1], 2, {n, k}, {lead}, {32, S::KS}, 128, true};
    if (S::TB) tb = {SAT_F32, l->operands[1], 2, {k, n}, {lead}, {S::KS, 256}, S::KS * 4, true};
    else if (x.wide_b)
        tb = {SAT_F32, l->operands[1], 3, {32, k, n / 32}, {lead, 128}, {32, S::KS, S::BN / 32}, 128, true};
    return tensormap_encode(&m->a, ta) && tensormap_encode(&m->b, tb);
}

template <typename S> static sat_status start(const sat_launch *l, const job &x, const maps &m) {
    unsigned grid = (unsigned)sat_min(x.deal.tiles, l->device->threads);
    return sat_start<multiply<S>>(l, grid, S::THREADS, S::BYTES, x, m);
}

template <typename S> static sat_status launch_tile(const sat_launch *l) {
    const sat_problem *p = l->problem;
    if (p->m == 0 || p->n == 0) return SAT_OK;
    state *st = (state *)l->state;
    job x = {};
    x.r = sat_device_rows(p, l->pattern), x.out = sat_tile_epilogue_of(l);
    x.deal = sat_tile_scheduler_of(st->work, st->counter, x.r.br / S::BM, (p->n + S::BN - 1) / S::BN,
                                   4.0 * S::BN * (double)p->k, l->device);
    x.partial = (float *)st->work.partial, x.wide_b = p->n % 32 == 0;
    if (!tensormaps_current(st->of, l->operands) && !make_maps<S>(l, x, &st->m)) return tensormap_failed(l, st->of);
    sat_status status = start<S>(l, x, st->m);
    return status == SAT_OK ? sat_launch_split_reduction(l, x.r, x.out.to, st->work) : status;
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    if (d->capability != 90 || p->a_dtype != SAT_F32 || !(p->flags & SAT_ALLOW_TF32)) return false;
    sat_rows r = sat_op_rows(p, a);
    if (p->transpose == SAT_TRANSPOSE && p->b.col_stride == 1) return false;
    if (a->stored_blocks == 0 || p->n == 0 || p->a_align % 16) return false;
    if (r.br % v->instance.tile_m || r.bc % v->instance.tile_k || r.k % r.bc) return false;
    if (a->stored_blocks * a->block_rows > 0x7fffffff) return false;
    if (sat_max(r.count * r.br, sat_max(p->n, p->k)) > 0x7fff0000) return false;
    double tiles = ((double)r.count + (double)a->stored_blocks) * ceil((double)p->n / v->instance.tile_n) *
                   (double)(r.br / v->instance.tile_m);
    if (tiles > 0x7fff0000 || (p->batch > 1 && p->a.batch_stride * 4 % 16 != 0)) return false;
    return tensormap_fits(p, p->b, p->k, p->n, p->b_align, 4);
}

static int64_t share_of(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    int64_t panels = (p->n + v->instance.tile_n - 1) / v->instance.tile_n;
    return sat_schedule_share(&r, panels * (r.br / v->instance.tile_m), d->threads, sat_max(1, 256 / r.bc));
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    sat_schedule s = sat_schedule_count(&r, share_of(v, p, a, d));
    return (sat_schedule_bytes(&s, r.br, p->n, sizeof(float)) + 255) / 256 * 256 + SAT_COUNTER_BYTES;
}

static sat_status prepare(const sat_prepare *q, void **out) {
    if (!tensormap_encoder())
        return sat_fail(SAT_DEVICE_ERROR, "%s: this driver makes no tensor maps", q->variant->name);
    state *st = (state *)calloc(1, sizeof *st);
    if (!st) return sat_fail(SAT_OUT_OF_MEMORY, "%s: state", q->variant->name);
    sat_rows r = sat_op_rows(q->problem, q->pattern);
    int64_t share = share_of(q->variant, q->problem, q->pattern, q->device);
    sat_status status = sat_upload_schedule(q, &r, share, (char *)q->workspace, &st->work);
    if (status == SAT_OK)
        status = sat_tile_counter_init(q, workspace(q->variant, q->problem, q->pattern, q->device), &st->counter);
    if (status == SAT_OK) *out = st;
    else free(st);
    return status;
}

/* By columns, with as many stages of 32; exchanged, of KS. */
template <int BM, int BN, int DEEP_STAGES, int KS, int STAGES> static sat_status launch_layout(const sat_launch *l) {
    if (l->problem->b.col_stride == 1) return launch_tile<shape<BM, BN, KS, STAGES, false, false>>(l);
    if (l->problem->transpose == SAT_TRANSPOSE) return launch_tile<shape<BM, BN, DEEP, DEEP_STAGES, true, true>>(l);
    return launch_tile<shape<BM, BN, DEEP, DEEP_STAGES, false, true>>(l);
}

static sat_status launch(const sat_launch *l) {
    const sat_instance *i = &l->variant->instance;
    if (i->tile_m == 128) return launch_layout<128, 256, 4, 32, 4>(l);
    return i->tile_n == 512 ? launch_layout<64, 512, 3, 16, 6>(l) : launch_layout<64, 256, 5, 32, 5>(l);
}

/* Copies from L2 and products overlap; the longer counts. */
static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    double bm = v->instance.tile_m, bn = v->instance.tile_n, panels = ceil((double)p->n / bn);
    double slices = (double)r.br / bm;
    double depth = (double)a->stored_blocks * (double)r.bc * slices * panels, items = (double)p->batch;
    double tiles = (double)r.count * slices * panels, busy = fmin(1, tiles / d->threads);
    double loads = depth * (bm + bn) * 4 / (9e12 * d->threads / 132), work = 2 * depth * bm * bn / d->tf32_rate;
    double time = fmax(loads, work) / busy;
    return fmax(items * time, sat_bytes(p, a) / d->memory_rate) + items * (tiles / d->threads * 1.5e-6 + 3e-6);
}

SAT_FAMILY(cuda_matmul_wgmma_tf32) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .about = "f32 as TF32 by warpgroup products on Hopper, block rows multiples of 64",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_schedule,
};
