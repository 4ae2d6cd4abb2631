// cuda_matmul_wgmma: tensor maps bring the tiles, warpgroups multiply them (sm_90a). f16 and bf16.
//
// The pipeline is wgmma_pipe.cuh's; this producer walks the blocks of a row. Large tiles are dealt out by a counter,
// small ones, for few columns, have a CTA each: there the time is the chain from launch to store, not the rate. Blocks
// lower than 64 rows run as 64, whose upper rows nobody stores: what limits such blocks is the way from L2, not the
// tensor cores.

#include "kernels/cuda/common/scheduler.h"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/common/ring.cuh"

struct maps {
    CUtensorMap a, b, c;
};

struct job {
    sat_rows r;
    sat_tile_epilogue out;
    sat_tile_scheduler deal;
    float *partial;
    int a_rows;  // what one copy brings of A, and a slice has
    bool deep_a; // A comes 64 deep where a stage is 32: rows of 128 bytes, since a copy takes its time by lines of that
    bool copied; // C is stored by the copy engine
    bool plain;  // and is the sums
    bool whole_b;
};

struct state {
    sat_device_schedule work;
    unsigned *counter;
    maps m; // of these operands: made anew only where a pointer has changed
    const void *of[3];
    bool copied;
};

/* ---- the producer ---- */

template <typename S> using right = sat_b_loader<S::KS, S::BN>; // a stage of B

/* One lane asks for a stage of A: of the block that begins in this line of A's map, from `in_block` on, the rows from
 * `row` on. */
template <typename S, bool TA>
__device__ __forceinline__ void load_a(const maps &m, uint32_t to, uint32_t bar, int line, int in_block, int row) {
    if (!TA) tma_load(to, &m.a, bar, in_block, line + row);
    else
        for (int i = 0; i < S::BM; i += 64) tma_load(to + i * S::KS * 2, &m.a, bar, row + i, line + in_block);
}

/* Where A lies as it is multiplied, and a CTA stays, A has a warp of its own to bring it: one warp takes so long for
 * a stage that both together begin late. */
template <typename S, bool TA> constexpr bool a_apart = S::GROUPS == 2 && !TA;

/* Takes tiles, tells everybody, and brings B, and A where that is not apart. */
template <typename S, bool TA, bool TB>
__device__ static void produce(const job &x, const maps &m, sat_prefetched_tile &next, sat_ring_shared *s,
                               uint32_t memory) {
    int bc = (int)x.r.bc, lines = (int)(TA ? x.r.bc : x.r.br); // of a block, in A's map
    bool deep_a = sat_deep_a<S, TA>(x.deep_a);
    int bytes = (TA ? S::BM : x.a_rows) * (deep_a ? 64 : S::KS) * 2;
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
        int steps = last ? -1 : piece.count * (bc / S::KS), n0 = (int)now.at.panel * S::BN, slice = (int)now.at.slice;
        if (one) tiles.publish(s, {piece.row, slice, (int)now.at.panel, steps, piece.slot, 0, (int)piece.first});
        tiles.advance();
        if (last) return;
        next.tile.request_next(), next.ready = false;
        if (S::OVER_B && steps == 0) { // zeros, too, leave from a stage
            if (one) {
                mbarrier_wait(empty + at.stage * 8, at.parity);
                mbarrier_arrive(full + at.stage * 8);
            }
            at.advance(false);
        }
        for (int step = 0, t = 0, in_block = 0, line = 0, k = 0; step < steps; step++) {
            if (in_block == 0) {
                if (t % 32 == 0 && t > 0) blocks.fetch(x.r, piece, t);
                k = __shfl_sync(~0u, blocks.k, t % 32);
                if (!a_apart<S, TA>) line = __shfl_sync(~0u, blocks.place, t % 32) * lines;
            }
            if (one) {
                uint32_t bar = full + at.stage * 8;
                bool again = deep_a && in_block % 64; // A came with the stage before
                mbarrier_wait(empty + at.stage * 8, at.parity);
                mbarrier_arrive_expect_tx(bar, S::B + (again ? 0 : bytes));
                right<S>::template load<TB>(&m.b, x.whole_b, memory + at.b(), bar, k + in_block, n0);
                if (!a_apart<S, TA> && !again)
                    load_a<S, TA>(m, memory + at.a(deep_a), bar, line, in_block, slice * S::BM);
            }
            at.advance(!S::DEEP || in_block % 64);
            in_block += S::KS;
            if (in_block < bc) continue;
            in_block = 0, t++;
            next.fetch(x.deal, x.r);
        }
    }
}

/* Brings A: blocks one after the other, as they lie. */
template <typename S>
__device__ static void produce_a(const job &x, const maps &m, sat_ring_shared *s, uint32_t memory) {
    int bc = (int)x.r.bc, br = (int)x.r.br;
    bool deep_a = sat_deep_a<S, false>(x.deep_a);
    uint32_t full = keep_in_register(smem_address(s->full)), empty = full + sizeof s->full;
    bool one = elect_one();
    sat_ring<S> at = {.parity = 1};
    sat_tile_queue tiles = {.parity = 0};
    for (;;) {
        sat_ring_tile t = tiles.receive(s);
        tiles.advance();
        if (t.steps < 0) return;
        if (S::OVER_B && t.steps == 0) at.advance(false);
        int line = t.block * br + t.slice * S::BM;
        for (int step = 0, in_block = 0; step < t.steps; step++) {
            if (one && !(deep_a && in_block % 64)) {
                mbarrier_wait(empty + at.stage * 8, at.parity);
                tma_load(memory + at.a(deep_a), &m.a, full + at.stage * 8, in_block, line);
            }
            at.advance(!S::DEEP || in_block % 64);
            in_block += S::KS;
            if (in_block == bc) in_block = 0, line += br;
        }
    }
}

/* A warpgroup's sums to C, or to the partial sums of a cut row, whose slot the tile has for its `first`. */
template <typename T, typename S>
__device__ __forceinline__ void put(const job &x, const maps &m, const sat_ring_tile &t, float (&d)[S::WN / 2],
                                    uint32_t staging, int group) {
    typedef typename T::element E;
    int in_row = t.slice * S::BM + (S::BM == 128 ? group * 64 : 0), rows = (int)x.r.br - in_row;
    int n0 = t.panel * S::BN + (S::BM == 128 ? 0 : group * S::WN), n = (int)x.out.to.n;
    if (rows <= 0 || n0 >= n) return;
    if constexpr (S::GROUPS == 2)
        if (x.copied && t.first < 0) {
            int i0 = t.row * (int)x.r.br + in_row, down = threadIdx.x / 32 % 4 * 16;
            if (!x.plain) sat_warpgroup_scale(x.out.to, d, i0 + down + threadIdx.x % 32 / 4);
            if (x.out.columns || down < rows)
                sat_warpgroup_tma_store<E, S::WN>(&m.c, d, staging, i0, n0, n, x.out.columns, group);
            return;
        }
    sat_tile_epilogue to = x.out;
    int64_t i0 = t.row * x.r.br + in_row;
    if (x.copied) tma_store_wait_read<0>(), named_barrier_sync(1 + group, 128); // others left from there
    if (t.first >= 0) to = sat_partial_epilogue<float>(x.partial + t.first * x.r.br * n, n), i0 = in_row;
    sat_warpgroup_store<E, S::WN>(to, d, staging, i0, n0, rows, group);
}

template <typename T, typename S, bool TA, bool TB>
static __global__ void __launch_bounds__(S::THREADS, S::ONCE ? 2 : 1)
    multiply(const __grid_constant__ job x, const __grid_constant__ maps m) {
    extern __shared__ __align__(1024) char memory[];
    sat_ring_shared *s = (sat_ring_shared *)(memory + S::BYTES - sizeof *s);
    sat_prefetched_tile next = {};
    griddepcontrol_launch_dependents();
    if (!TA && x.a_rows < S::BM) sat_ring_clear<S>(memory);
    if (threadIdx.x < 32) sat_ring_init<S>(s, a_apart<S, TA>);
    if (threadIdx.x / 32 == S::CONSUMERS / 32) {
        prefetch_tensormap(&m.a), prefetch_tensormap(&m.b);
        next.tile.first();
        while (!next.ready) next.fetch(x.deal, x.r);
    }
    __syncthreads();
    griddepcontrol_wait();
    if (threadIdx.x >= S::CONSUMERS) {
        if (!S::ONCE) setmaxnreg_dec<72>();
        int warp = (threadIdx.x - S::CONSUMERS) / 32;
        if (warp == 0) produce<S, TA, TB>(x, m, next, s, keep_in_register(smem_address(memory)));
        if (a_apart<S, TA> && warp == 1) produce_a<S>(x, m, s, keep_in_register(smem_address(memory)));
    } else {
        if (!S::ONCE) setmaxnreg_inc<216>();
        sat_consume<T, S, TA, TB, false>(s, smem_address(memory), x.deep_a,
                                         [&](const sat_ring_tile &t, float(&d)[S::WN / 2], uint32_t staging,
                                             int group) { put<T, S>(x, m, t, d, staging, group); });
    }
    sat_tile_scheduler_end(x.deal);
}

/* ---- the host's side ---- */

template <typename S> static bool make_maps(const sat_launch *l, const job &x, maps *m) {
    constexpr int KS = S::KS;
    const sat_problem *p = l->problem;
    const sat_pattern_view *a = l->pattern;
    cuuint64_t bc = (cuuint64_t)a->block_cols, rows = (cuuint64_t)(a->stored_blocks * a->block_rows);
    sat_tensor_box ta = {p->a_dtype,
                         l->operands[0],
                         2,
                         {bc, rows},
                         {bc * 2},
                         {x.deep_a ? 64u : (cuuint32_t)KS, (cuuint32_t)x.a_rows},
                         x.deep_a ? 128 : KS * 2};
    if (p->transpose == SAT_TRANSPOSE) ta.box[0] = 64, ta.box[1] = KS, ta.row_bytes = 128;
    return tensormap_encode(&m->a, ta) && right<S>::map(p, l->operands[1], &m->b);
}

template <typename T, typename S, bool TA, bool TB>
static sat_status start(const sat_launch *l, const job &x, const maps &m) {
    unsigned grid = S::ONCE ? x.deal.tiles : (unsigned)sat_min(x.deal.tiles, l->device->threads);
    return sat_start<multiply<T, S, TA, TB>>(l, grid, S::THREADS, S::BYTES, x, m);
}

template <typename T, typename S> static sat_status launch_tile(const sat_launch *l) {
    const sat_problem *p = l->problem;
    if (p->m == 0 || p->n == 0) return SAT_OK;
    state *st = (state *)l->state;
    job x = {};
    x.r = sat_device_rows(p, l->pattern), x.out = sat_warpgroup_epilogue_of(l);
    x.deal =
        sat_tile_scheduler_of(st->work, st->counter, (x.r.br + S::BM - 1) / S::BM, (p->n + S::BN - 1) / S::BN,
                              2.0 * S::BN * (double)p->k, l->device, S::BM == 128 ? SAT_TILES_EACH : SAT_TILES_FEW);
    x.partial = (float *)st->work.partial;
    x.a_rows = (int)sat_min(S::BM, x.r.br);
    x.whole_b = sat_b_whole_chunks(p), x.deep_a = S::DEEP && p->transpose != SAT_TRANSPOSE && x.r.bc % 64 == 0;
    if (!tensormaps_current(st->of, l->operands)) {
        if (!make_maps<S>(l, x, &st->m)) return tensormap_failed(l, st->of);
        st->copied = S::GROUPS > 1 && sat_output_tensormap(l, x.out, x.r.br, &st->m.c);
    }
    x.copied = st->copied, x.plain = sat_epilogue_is_identity(x.out.to);
    const maps &m = st->m;
    bool ta = p->transpose == SAT_TRANSPOSE, tb = p->b.col_stride != 1;
    sat_status status = ta ? (tb ? start<T, S, true, true>(l, x, m) : start<T, S, true, false>(l, x, m))
                           : (tb ? start<T, S, false, true>(l, x, m) : start<T, S, false, false>(l, x, m));
    return status == SAT_OK ? sat_launch_split_reduction(l, x.r, x.out.to, st->work) : status;
}

// rows, columns, depth, stages, warpgroups
#define TILES(X)                                                                                                       \
    X(64, 512, 32, 6, 2)                                                                                               \
    X(64, 256, 64, 5, 2)                                                                                               \
    X(64, 256, 16, 16, 2)                                                                                              \
    X(128, 256, 64, 4, 2)                                                                                              \
    X(128, 128, 64, 6, 2) X(64, 128, 64, 4, 1) X(64, 64, 64, 7, 1) X(64, 32, 64, 8, 1) X(64, 16, 64, 8, 1)

/* Stages of 64x256 are 16 deep where blocks' columns want it. */
static int64_t deep_of(const sat_instance *i, const sat_rows *r) {
    return i->tile_m == 64 && i->tile_n == 256 && r->bc % 64 ? 16 : i->tile_k;
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    int64_t deep = deep_of(&v->instance, &r);
    if (d->capability != 90 || p->a_dtype != v->instance.dtype || a->stored_blocks == 0 || p->n == 0) return false;
    if (r.br % 16 || r.bc % deep || r.k % r.bc || p->a_align % 16) return false;
    if (a->stored_blocks * sat_max(a->block_rows, a->block_cols) > 0x7fffffff) return false;
    if (sat_max(r.count * r.br, sat_max(p->n, p->k)) > 0x7fff0000) return false;
    double tiles = ((double)r.count + (double)a->stored_blocks) * ceil((double)p->n / v->instance.tile_n) *
                   ceil((double)r.br / v->instance.tile_m);
    if (tiles > 0x7fff0000) return false; // more than the counter counts
    if (p->batch > 1 && p->a.batch_stride * 2 % 16 != 0) return false;
    return tensormap_fits(p, p->b, p->k, p->n, p->b_align, 2);
}

static int64_t share_of(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    int64_t panels = (p->n + v->instance.tile_n - 1) / v->instance.tile_n;
    int64_t slices = (r.br + v->instance.tile_m - 1) / v->instance.tile_m;
    return sat_schedule_share(&r, panels * slices, d->threads, sat_max(1, 512 / r.bc));
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

static sat_status launch(const sat_launch *l) {
    const sat_instance *i = &l->variant->instance;
    sat_rows r = sat_op_rows(l->problem, l->pattern);
    int64_t deep = deep_of(i, &r);
#define PICK(bm, bn, ks, stages, groups)                                                                               \
    if (i->tile_m == bm && i->tile_n == bn && deep == ks)                                                              \
        return i->dtype == SAT_F16 ? launch_tile<sat_f16_math, sat_tile_shape<bm, bn, ks, stages, groups>>(l)          \
                                   : launch_tile<sat_bf16_math, sat_tile_shape<bm, bn, ks, stages, groups>>(l);
    TILES(PICK)
    return sat_fail(SAT_INTERNAL, "%s: no such tile", l->variant->name);
}

/* Copies from L2 and products overlap; the longer counts. A multiprocessor has 1/132 of either. */
static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    double bm = v->instance.tile_m, bn = v->instance.tile_n, panels = ceil((double)p->n / bn);
    double slices = ceil((double)r.br / bm), tiles = (double)r.count * slices * panels, items = (double)p->batch;
    double loads = (double)a->stored_blocks * panels * slices * (double)r.bc * (fmin(bm, (double)r.br) + bn) * 2;
    double work = 2 * (double)a->stored_blocks * panels * slices * (double)r.bc * bm * bn;
    double busy = fmin(1, tiles / d->threads), rate = 9e12 * d->threads / 132;
    double time = fmax(loads / rate, work / d->flop_rate[p->a_dtype]) / busy;
    if (deep_of(&v->instance, &r) == 16) // a stage takes so long, however little it brings
        time = fmax(time, (double)a->stored_blocks * panels * slices * (double)(r.bc / 16) * 3e-7 / d->threads / busy);
    return fmax(items * time, sat_bytes(p, a) / d->memory_rate) + items * (tiles / d->threads * 1e-6 + 3e-6);
}

SAT_FAMILY(cuda_matmul_wgmma) = {
    .revision = "3",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .flags = 0,
    .about = "tensor maps and warpgroup products on Hopper; f16, bf16; block sides multiples of 16",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_schedule,
};
