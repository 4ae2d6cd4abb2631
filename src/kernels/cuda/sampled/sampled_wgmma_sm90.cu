// cuda_sampled_wgmma: the sampled product by warpgroup products (sm_90a). f16 and bf16.
//
// A tile is BM rows of a block row by the columns of as many of its stored blocks as BN holds, side by side: X's rows
// are read once for all of them. The pipeline is wgmma_pipe.cuh's; these producers walk along k: one warp brings X,
// three Y, each lane for a block of its own, since asking for many small copies takes one warp longer than bringing
// them. Blocks lower than 64 rows run as 64, whose upper rows nobody stores: what limits such blocks is the way of Y's
// columns from L2, not the tensor cores.

#include <numeric>

#include "kernels/cuda/common/scheduler.h"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/common/ring.cuh"

struct maps {
    CUtensorMap x, y;
};

struct job {
    sat_tile_scheduler deal;
    const int32_t *col;
    char *s;
    int m, n, k, br, bc;
    int x_rows;  // rows of X that a copy brings, where k is contiguous
    int y_box;   // columns of Y that a copy brings
    bool whole;  // Y row-major in chunks of 64 columns that fill it: one copy brings several
    bool ragged; // the last block column reaches beyond the matrix
    float alpha;
};

struct state {
    sat_device_schedule work;
    unsigned *counter;
    maps m; // of these operands: made anew only where a pointer has changed
    const void *of[2];
};

/* ---- the producer ---- */

enum { Y_WARPS = 3 };

/* This lane's block of a tile that the warp, one of Y_WARPS, brings Y for. */
__device__ __forceinline__ int own_block() { return threadIdx.x % 32 * Y_WARPS + threadIdx.x / 32 % 4 - 1; }

struct coming {
    sat_fetched_tile tile;
    bool ready;

    __device__ void fetch(const job &x) { ready = ready || !tile.fetch(x.deal); }
    /* The column of this lane's block in the tile that is there. */
    __device__ int own_column(const job &x) const {
        int mine = own_block();
        return mine < tile.piece.count ? x.col[tile.piece.first + mine] : 0;
    }
};

template <typename S, bool TA> __device__ static void load_x(const maps &m, uint32_t to, uint32_t bar, int row, int k) {
    if constexpr (TA) {
        for (int i = 0; i < S::BM; i += 64) tma_load(to + i * S::KS * 2, &m.x, bar, row + i, k);
    } else {
        tma_load(to, &m.x, bar, k, row);
    }
}

/* `at`: where the block's columns begin in the tile. */
template <typename S, bool TB>
__device__ static void load_y(const job &x, const maps &m, uint32_t to, uint32_t bar, int at, int column, int k,
                              int columns) {
    for (int i = 0; i < columns; i += x.y_box) {
        uint32_t place = to + (at + i) * S::KS * 2; // the same either way: 64 columns of KS, or KS of a column
        if (TB) tma_load(place, &m.y, bar, k, column + i);
        else if (S::LINE == 128 && x.whole) tma_load(place, &m.y, bar, 0, k, (column + i) / 64);
        else tma_load(place, &m.y, bar, column + i, k);
    }
}

/* Where Y has the columns of a tile's first block, and how many of each block the tile has. */
template <typename S> struct y_part {
    int from, columns;
    __device__ y_part(const job &x, int panel) : from(panel * S::BN), columns(min(x.bc - from, S::BN)) {}
};

/* Takes tiles, tells everybody, and brings X. */
template <typename S, bool TA>
__device__ static void produce_x(const job &x, const maps &m, coming &next, sat_ring_shared *s, uint32_t memory) {
    int steps = (x.k + S::KS - 1) / S::KS, x_bytes = (TA ? S::BM : x.x_rows) * S::KS * 2;
    uint32_t full = keep_in_register(smem_address(s->full)), empty = full + sizeof s->full;
    bool one = elect_one();
    sat_ring<S> at = {.parity = 1};
    sat_tile_queue tiles = {.parity = 1};
    for (;;) {
        while (!next.ready) next.fetch(x);
        sat_fetched_tile now = next.tile;
        bool last = now.none(x.deal);
        int slice = (int)now.at.slice, panel = (int)now.at.panel, row = now.piece.row * x.br + slice * S::BM;
        int count = now.piece.count, bytes = x_bytes + count * y_part<S>(x, panel).columns * S::KS * 2;
        if (one) tiles.publish(s, {now.piece.row, slice, panel, last ? -1 : steps, (int)now.piece.first, count});
        tiles.advance();
        if (last) return;
        next.tile.request_next(), next.ready = false;
        for (int step = 0; step < steps; step++) {
            if (one) {
                uint32_t bar = full + at.stage * 8;
                mbarrier_wait(empty + at.stage * 8, at.parity);
                mbarrier_arrive_expect_tx(bar, bytes);
                load_x<S, TA>(m, memory + at.a(false), bar, row, step * S::KS);
            }
            at.advance(true);
            next.fetch(x);
        }
    }
}

/* Brings Y. `col`: of this lane's block in the first tile. */
template <typename S, bool TB>
__device__ static void produce_y(const job &x, const maps &m, sat_ring_shared *s, uint32_t memory, int col) {
    int mine = own_block();
    uint32_t full = keep_in_register(smem_address(s->full)), empty = full + sizeof s->full;
    sat_ring<S> at = {.parity = 1};
    sat_tile_queue tiles = {.parity = 0};
    for (bool first = true;; first = false) {
        sat_ring_tile t = tiles.receive(s);
        tiles.advance();
        if (t.steps < 0) return;
        y_part<S> part(x, t.panel);
        if (!first && mine < t.count) col = x.col[t.first + mine];
        int column = col * x.bc + part.from;
        bool some = mine - (int)threadIdx.x % 32 * Y_WARPS < t.count;
        for (int step = 0; step < t.steps; step++) {
            if (some) { // a warp that brings nothing is not waited for, and must not wait
                mbarrier_wait(empty + at.stage * 8, at.parity);
                __syncwarp(); // what one lane brings may end the phase that others wait for
                if (mine < t.count)
                    load_y<S, TB>(x, m, memory + at.b(), full + at.stage * 8, mine * x.bc, column, step * S::KS,
                                  part.columns);
            }
            at.advance(true);
        }
    }
}

/* ---- the consumers ---- */

/* What stands beyond the matrix is zero, whatever was multiplied. */
template <int WN>
__device__ static void clear_beyond(float (&d)[WN / 2], int rows, int columns) { // from this lane's first of each on
#pragma unroll
    for (int e = 0; e < WN / 2; e++)
        if ((e % 4 < 2 ? 0 : 8) >= rows || e / 4 * 8 + e % 2 >= columns) d[e] = 0;
}

/* A line's columns of a warp's 16 rows lie in one block: through shared memory and out in such lines. */
template <typename T, typename S>
__device__ static void put(const job &x, const sat_ring_tile &t, float (&d)[S::WN / 2], uint32_t staging, int group) {
    typedef typename T::element E;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    constexpr int W = S::LINE / 2;
    int in_row = t.slice * S::BM + (S::BM == 128 ? group * 64 : 0) + warp * 16;
    int from = t.panel * S::BN + (S::BM == 128 ? 0 : group * S::WN);
    staging += warp * 2 * SAT_SLICE_BYTES;
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
        sat_slice_rows<E, W>(part, staging + j / W % 2 * SAT_SLICE_BYTES, to, x.bc, 16, W);
    }
    __syncwarp();
    if (S::OVER_B) fence_proxy_async(); // copies come there next
}

template <typename T, typename S, bool TA, bool TB>
static __global__ void __launch_bounds__(S::THREADS, 1)
    multiply(const __grid_constant__ job x, const __grid_constant__ maps m) {
    extern __shared__ __align__(1024) char memory[];
    sat_ring_shared *s = (sat_ring_shared *)(memory + S::BYTES - sizeof *s);
    coming next = {};
    griddepcontrol_launch_dependents();
    if (!TA && x.x_rows < S::BM) sat_ring_clear<S>(memory);
    if (threadIdx.x < 32) sat_ring_init<S>(s, Y_WARPS);
    int col = 0;
    if (threadIdx.x >= S::CONSUMERS) {
        prefetch_tensormap(&m.x), prefetch_tensormap(&m.y);
        next.tile.first();
        while (!next.ready) next.fetch(x);
        if (threadIdx.x >= S::CONSUMERS + 32) col = next.own_column(x);
    }
    __syncthreads();
    griddepcontrol_wait();
    if (threadIdx.x >= S::CONSUMERS) {
        setmaxnreg_dec<72>();
        if (threadIdx.x < S::CONSUMERS + 32) produce_x<S, TA>(x, m, next, s, keep_in_register(smem_address(memory)));
        else produce_y<S, TB>(x, m, s, keep_in_register(smem_address(memory)), col);
    } else {
        setmaxnreg_inc<216>();
        sat_consume<T, S, TA, TB, false>(s, smem_address(memory), false,
                                         [&](const sat_ring_tile &t, float(&d)[S::WN / 2], uint32_t staging,
                                             int group) { put<T, S>(x, t, d, staging, group); });
    }
    sat_tile_scheduler_end(x.deal);
}

/* ---- the host's side ---- */

template <typename S> static bool make_maps(const sat_launch *l, const job &x, maps *m) {
    const sat_problem *p = l->problem;
    cuuint64_t rows = (cuuint64_t)p->m, n = (cuuint64_t)p->n, k = (cuuint64_t)p->k;
    cuuint32_t deep = S::KS, box = (cuuint32_t)x.y_box;
    bool turned_x = p->a.col_stride != 1, turned_y = p->b.col_stride != 1;
    cuuint64_t lead_x = (cuuint64_t)(turned_x ? p->a.col_stride : p->a.row_stride) * 2;
    cuuint64_t lead_y = (cuuint64_t)(turned_y ? p->b.col_stride : p->b.row_stride) * 2;
    sat_tensor_box tx = {p->a_dtype, l->operands[0], 2, {k, rows}, {lead_x}, {deep, (cuuint32_t)x.x_rows}, 128};
    if (turned_x) tx = {p->a_dtype, l->operands[0], 2, {rows, k}, {lead_x}, {64, deep}, 128};
    sat_tensor_box ty = {p->b_dtype, l->operands[1], 2, {n, k}, {lead_y}, {box, deep}, S::LINE};
    if (turned_y) ty = {p->b_dtype, l->operands[1], 2, {k, n}, {lead_y}, {deep, box}, 128};
    else if (x.whole) ty = {p->b_dtype, l->operands[1], 3, {64, k, n / 64}, {lead_y, 128}, {64, deep, box / 64}, 128};
    return tensormap_encode(&m->x, tx) && tensormap_encode(&m->y, ty);
}

template <typename T, typename S, bool TA, bool TB>
static sat_status start(const sat_launch *l, const job &x, const maps &m) {
    unsigned grid = (unsigned)sat_min(x.deal.tiles, l->device->threads);
    return sat_start<multiply<T, S, TA, TB>>(l, grid, S::THREADS, S::BYTES, x, m);
}

static int64_t each_of(const sat_variant *v, const sat_pattern_view *a) {
    return sat_max(1, v->instance.tile_n / a->block_cols);
}

static int64_t ceil_of(int64_t x, int64_t y) { return (x + y - 1) / y; }

template <typename T, typename S> static sat_status launch_tile(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const sat_pattern_view *a = l->pattern;
    state *st = (state *)l->state;
    bool ta = p->a.col_stride != 1, tb = p->b.col_stride != 1;
    job x = {};
    x.deal = sat_tile_scheduler_of(st->work, st->counter, ceil_of(a->block_rows, S::BM), ceil_of(a->block_cols, S::BN),
                                   INFINITY, l->device);
    x.col = a->device_col_idx, x.s = (char *)l->operands[2], x.alpha = (float)p->alpha;
    x.m = (int)p->m, x.n = (int)p->n, x.k = (int)p->k, x.br = (int)a->block_rows, x.bc = (int)a->block_cols;
    x.ragged = p->n % x.bc != 0;
    x.x_rows = (int)sat_min(S::BM, x.br);
    x.whole = S::LINE == 128 && p->n % 64 == 0;
    x.y_box = !tb && !x.whole ? S::LINE / 2 : x.bc <= S::BN ? x.bc : std::gcd(x.bc, S::BN);
    if (!tensormaps_current(st->of, l->operands) && !make_maps<S>(l, x, &st->m)) return tensormap_failed(l, st->of);
    return ta ? (tb ? start<T, S, true, true>(l, x, st->m) : start<T, S, true, false>(l, x, st->m))
              : (tb ? start<T, S, false, true>(l, x, st->m) : start<T, S, false, false>(l, x, st->m));
}

// rows, columns, stages, bytes of a line of Y in shared memory
#define TILES(X) X(128, 256, 4, 128) X(128, 128, 6, 128) X(64, 256, 5, 128) X(64, 256, 5, 64) X(64, 256, 5, 32)

static int line_of(const sat_pattern_view *a) {
    return a->block_cols % 64 == 0 ? 128 : a->block_cols % 32 == 0 ? 64 : 32;
}

static sat_status launch(const sat_launch *l) {
    const sat_instance *i = &l->variant->instance;
    if (l->pattern->stored_blocks == 0) return SAT_OK;
#define PICK(bm, bn, stages, line)                                                                                     \
    if (i->tile_m == bm && i->tile_n == bn && line_of(l->pattern) == line)                                             \
        return i->dtype == SAT_F16 ? launch_tile<sat_f16_math, sat_tile_shape<bm, bn, 64, stages, 2, line>>(l)         \
                                   : launch_tile<sat_bf16_math, sat_tile_shape<bm, bn, 64, stages, 2, line>>(l);
    TILES(PICK)
    return sat_fail(SAT_INTERNAL, "%s: no such tile", l->variant->name);
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

/* A piece is as many neighbours of a block row as a tile holds. */
static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)p, (void)d;
    size_t pieces = (size_t)sat_schedule_runs(a, each_of(v, a), NULL) * sizeof(sat_work_item);
    return (pieces + 255) / 256 * 256 + SAT_COUNTER_BYTES;
}

static sat_status send_pieces(const sat_prepare *q, state *st) {
    const sat_pattern_view *a = q->pattern;
    int64_t each = each_of(q->variant, a), count = sat_schedule_runs(a, each, NULL);
    sat_work_item *piece = (sat_work_item *)malloc((size_t)count * sizeof *piece);
    if (!piece) return sat_fail(SAT_OUT_OF_MEMORY, "%s: %lld pieces", q->variant->name, (long long)count);
    sat_schedule_runs(a, each, piece);
    cudaStream_t stream = (cudaStream_t)q->stream;
    cudaError_t e = cudaMemcpyAsync(q->workspace, piece, (size_t)count * sizeof *piece, cudaMemcpyHostToDevice, stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream);
    free(piece);
    st->work.pieces = count, st->work.piece = (const sat_work_item *)q->workspace;
    return e == cudaSuccess ? SAT_OK : sat_fail(SAT_DEVICE_ERROR, "%s: %s", q->variant->name, cudaGetErrorString(e));
}

static sat_status prepare(const sat_prepare *q, void **out) {
    if (!tensormap_encoder())
        return sat_fail(SAT_DEVICE_ERROR, "%s: this driver makes no tensor maps", q->variant->name);
    state *st = (state *)calloc(1, sizeof *st);
    if (!st) return sat_fail(SAT_OUT_OF_MEMORY, "%s: state", q->variant->name);
    sat_status status = send_pieces(q, st);
    if (status == SAT_OK)
        status = sat_tile_counter_init(q, workspace(q->variant, q->problem, q->pattern, q->device), &st->counter);
    if (status == SAT_OK) *out = st;
    else free(st);
    return status;
}

/* Whole rounds of tiles over the multiprocessors; copies from L2 and products overlap, the longer counts. Copies take
 * their time by bytes or by lines. */
static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    double bm = v->instance.tile_m, bn = v->instance.tile_n, each = (double)each_of(v, a);
    double rows = (double)sat_max(1, a->grid_rows - a->empty_rows), blocks = (double)a->stored_blocks / rows;
    double tiles = rows * ceil(blocks / each) * (double)ceil_of(a->block_rows, (int64_t)bm) *
                   (double)ceil_of(a->block_cols, (int64_t)bn) * (double)p->batch;
    double rounds = fmax(1, ceil(tiles / d->threads)), depth = (double)ceil_of(p->k, 64) * 64;
    double wide = fmin(bn, each * (double)a->block_cols), rate = 9e12 / 132;
    double lines = depth * wide / (p->b.col_stride != 1 ? 64 : line_of(a) / 2);
    double near = fmax(depth * (fmin(bm, (double)a->block_rows) + wide) * 2 / rate, lines * 1.1e-9);
    double compute = 2 * bm * bn * depth / (d->flop_rate[p->a_dtype] / d->threads);
    return fmax(rounds * fmax(near, compute) + (3 + rounds) * 1e-6, sat_bytes(p, a) / d->memory_rate);
}

SAT_FAMILY(cuda_sampled_wgmma) = {
    .revision = "3",
    .op = SAT_SAMPLED,
    .backend = SAT_CUDA,
    .about = "tensor maps and warpgroup products on Hopper; f16, bf16; block sides multiples of 16",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_schedule,
};
