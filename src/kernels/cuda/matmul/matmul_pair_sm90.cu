// cuda_matmul_pair: two block rows of 64 at a time, along the union of their columns (sm_90a). f16 and bf16.
//
// Where two rows have the same column, B comes once for both, and the way from L2 is what limits blocks of 64. prepare
// looks for rows that share columns, which need not be neighbours; C is written in place. The pipeline is
// wgmma_pipe.cuh's: a warpgroup has a row, and passes over stages that are not its own.

#include "kernels/cuda/matmul/row_groups.h"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/common/ring.cuh"

enum { HALF = 64 }; // rows of a block

typedef sat_tile_shape<128, 256, 64, 4, 2> S;
typedef sat_b_loader<S::KS, S::BN> right; // a stage of B

struct maps {
    CUtensorMap a, b, c;
};

struct job {
    sat_rows r;
    sat_tile_epilogue out;
    sat_tile_scheduler deal;
    const sat_union_step *steps;
    const int32_t *row;   // two a pair
    bool whole_b, copied; // as in matmul_wgmma_sm90.cu
};

struct state {
    sat_device_schedule work;
    unsigned *counter;
    const sat_union_step *steps;
    const int32_t *row;
    maps m; // of these operands: made anew only where a pointer has changed
    const void *of[3];
    bool copied;
};

/* ---- the producer ---- */

struct coming {
    sat_fetched_tile tile;
    sat_union_step step; // this lane's of the first 32
    int row, first;      // lanes 0 and 1: the pair's rows, and their first blocks
    int got;
    bool ready;

    __device__ __forceinline__ void look(const job &x, int from) {
        int mine = from + (int)threadIdx.x % 32;
        if (mine < tile.piece.count) step = x.steps[tile.piece.first + mine];
    }
    __device__ __forceinline__ void fetch(const job &x) {
        if (ready || tile.fetch(x.deal)) return;
        int lane = threadIdx.x % 32;
        bool some = !tile.none(x.deal);
        if (got++ == 0) {
            if (some && lane < 2) row = x.row[2 * tile.piece.row + lane];
            if (some) look(x, 0);
            return;
        }
        if (some && lane < 2 && row >= 0) first = (int)x.r.ptr[row];
        ready = true;
    }
    __device__ __forceinline__ void request_next() { tile.request_next(), got = 0, ready = false; }
};

/* One row's part of A. */
template <bool TA>
__device__ static void load_a(const job &x, const maps &m, uint32_t to, uint32_t bar, int position, int in_block) {
    int block = (int)sat_block_of(&x.r, position);
    if (TA) tma_load(to, &m.a, bar, 0, block * (int)x.r.bc + in_block);
    else tma_load(to, &m.a, bar, in_block, block * HALF);
}

template <bool TA, bool TB>
__device__ static void produce(const job &x, const maps &m, coming &next, sat_ring_shared *s, uint32_t memory) {
    int bc = (int)x.r.bc;
    uint32_t full = keep_in_register(smem_address(s->full)), empty = full + sizeof s->full;
    bool one = elect_one();
    sat_ring<S> at = {.parity = 1};
    sat_tile_queue tiles = {.parity = 1};
    for (;;) {
        while (!next.ready) next.fetch(x);
        coming now = next;
        bool last = now.tile.none(x.deal);
        int count = now.tile.piece.count, n0 = (int)now.tile.at.panel * S::BN;
        int row[2], position[2];
#pragma unroll
        for (int g = 0; g < 2; g++) row[g] = __shfl_sync(~0u, now.row, g), position[g] = __shfl_sync(~0u, now.first, g);
        if (one) tiles.publish(s, {row[0], 0, (int)now.tile.at.panel, last ? -1 : count * (bc / S::KS), row[1], 0});
        tiles.advance();
        if (last) return;
        next.request_next();
        for (int t = 0; t < count; t++) {
            if (t % 32 == 0 && t > 0) now.look(x, t);
            uint32_t rows = __shfl_sync(~0u, now.step.rows, t % 32);
            int k = __shfl_sync(~0u, now.step.col, t % 32) * bc;
            for (int in_block = 0; in_block < bc; in_block += S::KS) {
                if (one) {
                    uint32_t bar = full + at.stage * 8;
                    mbarrier_wait(empty + at.stage * 8, at.parity);
                    s->groups[at.stage] = rows;
                    mbarrier_arrive_expect_tx(bar, S::B + __popc(rows) * (S::A / 2));
                    right::load<TB>(&m.b, x.whole_b, memory + at.b(), bar, k + in_block, n0);
#pragma unroll
                    for (int g = 0; g < 2; g++)
                        if (rows >> g & 1)
                            load_a<TA>(x, m, memory + at.a(false) + g * (S::A / 2), bar, position[g], in_block);
                }
                at.advance(true);
            }
            position[0] += rows & 1, position[1] += rows >> 1 & 1;
            next.fetch(x);
        }
    }
}

template <typename T, bool TA, bool TB>
static __global__ void __launch_bounds__(S::THREADS, 1)
    multiply(const __grid_constant__ job x, const __grid_constant__ maps m) {
    extern __shared__ __align__(1024) char memory[];
    sat_ring_shared *s = (sat_ring_shared *)(memory + S::BYTES - sizeof *s);
    coming next = {};
    griddepcontrol_launch_dependents();
    if (threadIdx.x < 32) sat_ring_init<S>(s);
    if (threadIdx.x / 32 == S::CONSUMERS / 32) {
        prefetch_tensormap(&m.a), prefetch_tensormap(&m.b);
        next.tile.first();
        while (!next.ready) next.fetch(x);
    }
    __syncthreads();
    griddepcontrol_wait();
    if (threadIdx.x >= S::CONSUMERS) {
        setmaxnreg_dec<72>();
        if (threadIdx.x < S::CONSUMERS + 32) produce<TA, TB>(x, m, next, s, keep_in_register(smem_address(memory)));
    } else {
        setmaxnreg_inc<216>();
        sat_consume<T, S, TA, TB, true>(
            s, smem_address(memory), false,
            [&](const sat_ring_tile &t, float(&d)[S::WN / 2], uint32_t staging, int group) {
                typedef typename T::element E;
                int row = group ? t.first : t.row, n0 = t.panel * S::BN, i0 = row * HALF;
                if (row < 0) return;
                if (!x.copied)
                    return sat_warpgroup_store<E, S::WN>(x.out, d, staging, (int64_t)row * HALF, n0, HALF, group);
                sat_warpgroup_scale(x.out.to, d, i0 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4);
                sat_warpgroup_tma_store<E, S::WN>(&m.c, d, staging, i0, n0, (int)x.out.to.n, x.out.columns, group);
            });
    }
    sat_tile_scheduler_end(x.deal);
}

/* ---- the host's side ---- */

static bool make_maps(const sat_launch *l, maps *m) {
    const sat_problem *p = l->problem;
    const sat_pattern_view *a = l->pattern;
    cuuint64_t bc = (cuuint64_t)a->block_cols, rows = (cuuint64_t)(a->stored_blocks * a->block_rows);
    sat_tensor_box ta = {p->a_dtype, l->operands[0], 2, {bc, rows}, {bc * 2}, {64, 64}, 128};
    return tensormap_encode(&m->a, ta) && right::map(p, l->operands[1], &m->b);
}

template <typename T, bool TA, bool TB> static sat_status start(const sat_launch *l, const job &x, const maps &m) {
    unsigned grid = (unsigned)sat_min(x.deal.tiles, l->device->threads);
    return sat_start<multiply<T, TA, TB>>(l, grid, S::THREADS, S::BYTES, x, m);
}

template <typename T> static sat_status start_any(const sat_launch *l, const job &x, const maps &m) {
    bool ta = l->problem->transpose == SAT_TRANSPOSE, tb = l->problem->b.col_stride != 1;
    return ta ? (tb ? start<T, true, true>(l, x, m) : start<T, true, false>(l, x, m))
              : (tb ? start<T, false, true>(l, x, m) : start<T, false, false>(l, x, m));
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    if (p->m == 0 || p->n == 0) return SAT_OK;
    state *st = (state *)l->state;
    job x = {};
    x.r = sat_device_rows(p, l->pattern), x.out = sat_warpgroup_epilogue_of(l);
    x.deal = sat_tile_scheduler_of(st->work, st->counter, 1, (p->n + S::BN - 1) / S::BN, 2.0 * S::BN * (double)p->k,
                                   l->device, SAT_TILES_FEW);
    x.steps = st->steps, x.row = st->row, x.whole_b = sat_b_whole_chunks(p);
    if (!tensormaps_current(st->of, l->operands)) {
        if (!make_maps(l, &st->m)) return tensormap_failed(l, st->of);
        st->copied = sat_output_tensormap(l, x.out, HALF, &st->m.c);
    }
    x.copied = st->copied;
    return l->variant->instance.dtype == SAT_F16 ? start_any<sat_f16_math>(l, x, st->m)
                                                 : start_any<sat_bf16_math>(l, x, st->m);
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    if (d->capability != 90 || p->a_dtype != v->instance.dtype || a->stored_blocks == 0 || p->n == 0) return false;
    if (r.br != HALF || r.bc % 64 || r.k % r.bc || p->a_align % 16) return false;
    if (a->stored_blocks * sat_max(a->block_rows, a->block_cols) > 0x7fffffff) return false;
    if (sat_max(r.count * r.br, sat_max(p->n, p->k)) > 0x7fff0000) return false;
    if ((double)r.count * ceil((double)p->n / S::BN) > 0x7fff0000) return false;
    if (p->batch > 1 && p->a.batch_stride * 2 % 16 != 0) return false;
    return tensormap_fits(p, p->b, p->k, p->n, p->b_align, 2);
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)d;
    sat_rows r = sat_op_rows(p, a);
    return sat_row_groups_bytes(&r, 2);
}

static sat_status prepare(const sat_prepare *q, void **out) {
    if (!tensormap_encoder())
        return sat_fail(SAT_DEVICE_ERROR, "%s: this driver makes no tensor maps", q->variant->name);
    state *st = (state *)calloc(1, sizeof *st);
    if (!st) return sat_fail(SAT_OUT_OF_MEMORY, "%s: state", q->variant->name);
    sat_rows r = sat_op_rows(q->problem, q->pattern);
    sat_status status = sat_prepare_row_groups(q, &r, 2, 1, &st->work, &st->steps, &st->row, &st->counter);
    if (status == SAT_OK) *out = st;
    else free(st);
    return status;
}

/* What comes from L2: B for each step, values for each panel. Neighbours tell how much rows share. */
static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    sat_rows r = sat_op_rows(p, a);
    double panels = ceil((double)p->n / S::BN), blocks = (double)a->stored_blocks, items = (double)p->batch;
    double shared = p->transpose == SAT_TRANSPOSE ? 0 : a->overlap;
    double steps =
        fmin(sat_union_expected(r.count, (r.k + r.bc - 1) / r.bc, a->stored_blocks, 2), blocks * (1 - shared / 2));
    double loads = panels * (double)r.bc * 2 * (steps * S::BN + blocks * (double)HALF), rate = 9e12 * d->threads / 132;
    double work = 2 * blocks * panels * (double)(r.bc * HALF * S::BN), tiles = ceil((double)r.count / 2) * panels;
    double time = fmax(loads / rate, work / d->flop_rate[p->a_dtype]) / fmin(1, tiles / d->threads);
    return fmax(items * time, sat_bytes(p, a) / d->memory_rate) + items * (tiles / d->threads * 1e-6 + 3e-6);
}

SAT_FAMILY(cuda_matmul_pair) = {
    .revision = "2",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .about = "two block rows of 64 that share columns at a time, on Hopper; f16, bf16",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_schedule,
};
