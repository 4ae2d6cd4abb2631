// cuda_matmul_wgmma_tf32: f32 rounded to TF32 by warpgroup products (sm_90a).
//
// Such products take operands from shared memory only with the depth contiguous, which a row-major B is not. So the
// sides are exchanged, C^T = B^T * A^T: the stored block, by rows, is the right operand as it is, and B's columns are
// the rows of the left one, which registers may hold: each lane fetches its elements from shared memory. Which column
// is which row of a product does not matter until it is stored, so they are numbered for lanes to meet no bank twice. B
// by columns stays in shared memory. Tensor maps round both to TF32.

#include "deal.cuh"
#include "tensor_map.cuh"
#include "wgmma_pipe.cuh"

enum { ROWS = 64 }; // of a block row, in a tile

/* BN columns, half of them a warpgroup's, in parts of 64. */
template <int BN_, int KS_, int STAGES_> struct shape {
    static constexpr int BN = BN_, KS = KS_, STAGES = STAGES_, GROUPS = 2, PARTS = BN / 128, CONSUMERS = 256;
    static constexpr int A = ROWS * KS * 4, B = KS * BN * 4, STAGE = A + B, OUT = 2 * 64 * 64 * 4;
    static constexpr int OUT_FROM = STAGES * STAGE, BYTES = OUT_FROM + OUT + (int)sizeof(sat_pipe_barriers);
    static constexpr int SLOTS = 1, SLOT = 0, B_FROM = 0, THREADS = CONSUMERS + 128;
};

struct maps {
    CUtensorMap a, b;
};

struct job {
    sat_deal deal;
    sat_rows r;
    sat_mma_out out;
    float *partial;
    bool wide_b; // B row-major in chunks of 32 columns that fill it: one copy brings them all
};

struct state {
    sat_plan_work work;
    unsigned *counter;
    maps m; // of these operands: made anew only where a pointer has changed
    const void *of[2];
};

/* ---- the producer ---- */

/* This lane's block of 32: its position, and its first row of B. */
struct some_blocks {
    int k;
    __device__ void fetch(const job &x, const sat_piece &piece, int first) {
        int mine = first + (int)(threadIdx.x % 32);
        if (mine < piece.count) k = x.r.col[piece.first + mine] * (int)x.r.bc;
    }
};

struct coming {
    sat_dealt tile;
    some_blocks blocks;
    bool ready;

    __device__ void fetch(const job &x) {
        if (ready || tile.fetch(x.deal)) return;
        if (threadIdx.x % 32 < SAT_PIECE_COLUMNS) blocks.k = tile.col * (int)x.r.bc;
        else if (!tile.none(x.deal)) blocks.fetch(x, tile.piece, 0);
        ready = true;
    }
};

template <typename S, bool TB>
__device__ static void load(const job &x, const maps &m, uint32_t to, uint32_t bar, int row, int in_block, int k,
                            int n0) {
    sat_barrier_expect(bar, S::STAGE);
    sat_tile_load(to, &m.a, bar, in_block, row);
    to += S::A;
    if (TB) {
        for (int i = 0; i < S::BN; i += 256) sat_tile_load(to + i * S::KS * 4, &m.b, bar, k, n0 + i);
    } else if (x.wide_b) {
        sat_tile_load(to, &m.b, bar, 0, k, n0 / 32);
    } else {
        for (int i = 0; i < S::BN; i += 32) sat_tile_load(to + i * S::KS * 4, &m.b, bar, n0 + i, k);
    }
}

template <typename S, bool TB>
__device__ static void produce(const job &x, const maps &m, coming &next, sat_pipe_barriers *s, uint32_t memory) {
    int lane = threadIdx.x % 32, bc = (int)x.r.bc, br = (int)x.r.br;
    sat_pipe_ring<S> at = {.parity = 1};
    sat_pipe_tiles tiles = {.parity = 1};
    for (;;) {
        while (!next.ready) next.fetch(x);
        sat_dealt now = next.tile;
        some_blocks blocks = next.blocks;
        const sat_piece &piece = now.piece;
        bool last = now.none(x.deal);
        if (lane == 0)
            tiles.tell(s, {piece.row, (int)now.at.slice, (int)now.at.panel, last ? -1 : piece.count * (bc / S::KS),
                           piece.slot, 0});
        tiles.advance();
        if (last) return;
        next.tile.another(), next.ready = false;
        for (int t = 0; t < piece.count; t++) {
            if (t % 32 == 0 && t > 0) blocks.fetch(x, piece, t);
            int row = ((int)piece.first + t) * br + (int)now.at.slice * ROWS, k = __shfl_sync(~0u, blocks.k, t % 32);
            for (int in_block = 0; in_block < bc; in_block += S::KS) {
                if (lane == 0) {
                    sat_barrier_wait(sat_shared(&s->empty[at.stage]), at.parity);
                    load<S, TB>(x, m, memory + at.stage * S::STAGE, sat_shared(&s->full[at.stage]), row, in_block,
                                k + in_block, now.at.panel * S::BN);
                }
                __syncwarp();
                at.advance(false);
            }
            next.fetch(x);
        }
    }
}

/* ---- the consumers ---- */

/* Column of a part of 64 that this lane's first row of a product is; its second row is 4 further. */
__device__ __forceinline__ int column_of(int lane, int warp) {
    return warp / 2 * 32 + warp % 2 * 8 + lane / 4 % 4 + lane / 16 * 16;
}

/* B's part as the left operand: 8 deep, from rows of 128 bytes whose chunks are exchanged by row. */
template <typename S>
__device__ __forceinline__ void fetch_part(uint32_t (&a)[4], uint32_t b, int part, int group, int step) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, q = lane % 4;
    int column = column_of(lane, warp) % 32, chunk = (group * S::PARTS + part) * 2 + warp / 2;
    uint32_t at = b + chunk * (S::KS * 128) + step * 1024 + q * 128;
    uint32_t place = ((column / 4) ^ q) * 16 + column % 4 * 4;
    a[0] = sat_fetch_bits(at + place), a[1] = sat_fetch_bits(at + (place ^ 16));
    a[2] = sat_fetch_bits(at + 512 + (place ^ 64)), a[3] = sat_fetch_bits(at + 512 + (place ^ 80));
}

/* One stage, two parts at a time: while some are multiplied, the next are fetched. */
template <typename S, bool TB>
__device__ __forceinline__ void multiply_stage(float (&d)[S::PARTS][32], uint32_t from, int group, int add) {
    constexpr int deep = S::KS == 32 ? 1 : 2, eight = S::KS * 4 * 8, STEPS = S::KS / 8;
    uint32_t b = from + S::A;
#pragma unroll
    for (int p = 0; p < S::PARTS; p += 2) {
        uint32_t a[2][STEPS][4];
        sat_group_wait<1>();
        if (!TB)
#pragma unroll
            for (int e = 0; e < 2 * STEPS; e++)
                fetch_part<S>(a[e / STEPS][e % STEPS], b, p + e / STEPS, group, e % STEPS);
        sat_group_fence();
#pragma unroll
        for (int e = 0; e < 2 * STEPS; e++) {
            int part = p + e / STEPS, step = e % STEPS;
            uint64_t right = sat_descriptor(from + step * 32, deep, 16, eight);
            uint32_t rows = b + (group * S::PARTS + part) * 64 * S::KS * 4;
            if (TB) sat_group_tf32(d[part], sat_descriptor(rows + step * 32, deep, 16, eight), right, add || step);
            else sat_group_tf32(d[part], a[e / STEPS][step], right, add || step);
        }
        sat_group_commit();
    }
}

/* 64 columns by 64 rows through shared memory, where rows of C lie as rows again. */
__device__ __forceinline__ static void put_part(const sat_mma_out &o, const float (&d)[32], uint32_t staging,
                                                int64_t i0, int64_t n0, int rows, int group) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, column = column_of(lane, warp),
        thread = threadIdx.x % 128;
#pragma unroll
    for (int e = 0; e < 32; e++) {
        int row = e / 4 * 8 + lane % 4 * 2 + e % 2, c = column + e % 4 / 2 * 4;
        uint32_t at = staging + row * 256 + ((c / 4) ^ (row / 2 & 3)) * 16 + c % 4 * 4;
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(d[e]) : "memory");
    }
    sat_some_sync(1 + group, 128);
    const sat_out &to = o.to;
#pragma unroll 1
    for (int e = 0; e < 8; e++) { // four neighbours: along rows, or down columns
        int at = e * 128 + thread, row = o.columns ? at % 16 * 4 : at / 16, c = o.columns ? at / 16 : at % 16 * 4;
        float y[4];
#pragma unroll
        for (int v = 0; v < 4; v++) {
            int r = o.columns ? row + v : row, cc = o.columns ? c : c + v;
            uint32_t from = staging + r * 256 + ((cc / 4) ^ (r / 2 & 3)) * 16 + cc % 4 * 4;
            y[v] = __uint_as_float(sat_fetch_bits(from));
        }
        int64_t i = i0 + row, j = n0 + c, left = o.columns ? min((int64_t)rows - row, to.m - i) : to.n - j;
        if (row >= rows || i >= to.m || j >= to.n) continue;
        bool whole = o.vectors && left >= 4;
#pragma unroll
        for (int v = 0; v < 4; v++) {
            if (v >= left) break;
            int64_t ii = o.columns ? i + v : i, jj = o.columns ? j : j + v;
            y[v] = sat_finish(to, ii, jj, y[v]);
            if (!whole) ((float *)to.c)[ii * to.row_stride + jj * to.col_stride] = y[v];
        }
        if (whole)
            __stcg((float4 *)((float *)to.c + i * to.row_stride + j * to.col_stride),
                   make_float4(y[0], y[1], y[2], y[3]));
    }
    sat_some_sync(1 + group, 128);
}

/* Part by part; each has its own registers, so its own code. */
template <typename S, int P>
__device__ __forceinline__ static void put_from(const sat_mma_out &to, const float (&d)[S::PARTS][32], uint32_t staging,
                                                int64_t i0, int64_t n0, int rows, int group) {
    if constexpr (P < S::PARTS) {
        if (n0 >= to.to.n) return;
        put_part(to, d[P], staging, i0, n0, rows, group);
        put_from<S, P + 1>(to, d, staging, i0, n0 + 64, rows, group);
    }
}

template <typename S>
__device__ __forceinline__ static void put(const job &x, const sat_pipe_tile &t, const float (&d)[S::PARTS][32],
                                           uint32_t staging, int group) {
    int64_t in_row = t.slice * ROWS, i0 = t.row * x.r.br + in_row, n = x.out.to.n;
    int rows = (int)min((int64_t)ROWS, x.r.br - in_row);
    sat_mma_out to = x.out;
    if (t.first >= 0) to = sat_mma_partial<float>(x.partial + t.first * x.r.br * n, n), i0 = in_row;
    put_from<S, 0>(to, d, staging, i0, (int64_t)t.panel * S::BN + group * S::PARTS * 64, rows, group);
}

template <typename S, bool TB> __device__ static void consume(const job &x, sat_pipe_barriers *s, uint32_t memory) {
    int group = threadIdx.x / 128, lane = threadIdx.x % 32;
    sat_pipe_ring<S> at = {.parity = 0};
    sat_pipe_tiles tiles = {.parity = 0};
    uint32_t staging = memory + S::OUT_FROM + group * (64 * 64 * 4);
    for (;;) {
        sat_pipe_tile t = tiles.hear(s);
        tiles.advance();
        if (t.steps < 0) return;
        int before = -1;
        float d[S::PARTS][32];
        if (t.steps == 0)
#pragma unroll
            for (int e = 0; e < S::PARTS * 32; e++) d[e / 32][e % 32] = 0;
        for (int step = 0; step < t.steps; step++) {
            sat_barrier_wait(sat_shared(&s->full[at.stage]), at.parity);
            multiply_stage<S, TB>(d, memory + at.stage * S::STAGE, group, step);
            if (S::PARTS == 2) sat_group_wait<1>(); // with more parts, the stage before is done by now
            if (before >= 0 && lane == 0) sat_barrier_arrive(sat_shared(&s->empty[before]));
            before = at.stage;
            at.advance(false);
        }
        sat_group_wait<0>();
        if (before >= 0 && lane == 0) sat_barrier_arrive(sat_shared(&s->empty[before]));
        put<S>(x, t, d, staging, group);
    }
}

template <typename S, bool TB>
static __global__ void __launch_bounds__(S::THREADS, 1)
    multiply(const __grid_constant__ job x, const __grid_constant__ maps m) {
    extern __shared__ __align__(1024) char memory[];
    sat_pipe_barriers *s = (sat_pipe_barriers *)(memory + S::BYTES - sizeof *s);
    coming next = {};
    if (threadIdx.x < 32) sat_pipe_init<S>(s);
    if (threadIdx.x / 32 == S::CONSUMERS / 32) {
        sat_prefetch_map(&m.a), sat_prefetch_map(&m.b);
        next.tile.first(), next.fetch(x);
    }
    __syncthreads();
    if (threadIdx.x >= S::CONSUMERS) {
        sat_registers_fewer<56>();
        if (threadIdx.x < S::CONSUMERS + 32) produce<S, TB>(x, m, next, s, sat_shared(memory));
    } else {
        sat_registers_more<224>();
        consume<S, TB>(x, s, sat_shared(memory));
    }
    sat_deal_end(x.deal);
}

/* ---- the host's side ---- */

template <typename S> static bool make_maps(const sat_launch *l, const job &x, maps *m) {
    const sat_problem *p = l->problem;
    const sat_pattern_view *a = l->pattern;
    cuuint64_t bc = (cuuint64_t)a->block_cols, rows = (cuuint64_t)(a->stored_blocks * a->block_rows);
    cuuint64_t n = (cuuint64_t)p->n, k = (cuuint64_t)p->k;
    bool turned = p->b.col_stride != 1;
    cuuint64_t lead = (cuuint64_t)(turned ? p->b.col_stride : p->b.row_stride) * 4;
    sat_tensor ta = {SAT_F32, l->operands[0], 2, {bc, rows}, {bc * 4}, {S::KS, ROWS}, S::KS * 4, true};
    sat_tensor tb = {SAT_F32, l->operands[1], 2, {n, k}, {lead}, {32, S::KS}, 128, true};
    if (turned) tb = {SAT_F32, l->operands[1], 2, {k, n}, {lead}, {S::KS, 256}, S::KS * 4, true};
    else if (x.wide_b)
        tb = {SAT_F32, l->operands[1], 3, {32, k, n / 32}, {lead, 128}, {32, S::KS, S::BN / 32}, 128, true};
    return sat_map_encode(&m->a, ta) && sat_map_encode(&m->b, tb);
}

template <typename S, bool TB> static sat_status start(const sat_launch *l, const job &x, const maps &m) {
    auto kernel = multiply<S, TB>;
    static bool told[64]; // the limit is the function's on a device, and stays
    if (!told[l->device->index % 64]) {
        cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES);
        if (e != cudaSuccess) return sat_launched(l);
        told[l->device->index % 64] = true;
    }
    unsigned grid = (unsigned)sat_min(x.deal.tiles, l->device->threads);
    kernel<<<grid, S::THREADS, S::BYTES, (cudaStream_t)l->stream>>>(x, m);
    return sat_launched(l);
}

template <typename S> static sat_status launch_tile(const sat_launch *l) {
    const sat_problem *p = l->problem;
    if (p->m == 0 || p->n == 0) return SAT_OK;
    state *st = (state *)l->state;
    job x = {};
    x.r = sat_device_rows(p, l->pattern), x.out = sat_mma_out_of(l);
    x.deal = sat_deal_of(st->work, st->counter, x.r.br / ROWS, (p->n + S::BN - 1) / S::BN);
    x.partial = (float *)st->work.partial, x.wide_b = p->n % 32 == 0;
    if (st->of[0] != l->operands[0] || st->of[1] != l->operands[1]) {
        st->of[0] = NULL;
        if (!make_maps<S>(l, x, &st->m)) return sat_fail(SAT_DEVICE_ERROR, "%s: no tensor map", l->variant->name);
        st->of[0] = l->operands[0], st->of[1] = l->operands[1];
    }
    sat_status status = p->b.col_stride != 1 ? start<S, true>(l, x, st->m) : start<S, false>(l, x, st->m);
    return status == SAT_OK ? sat_launch_join(l, x.r, x.out.to, st->work) : status;
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    if (d->capability != 90 || p->a_dtype != SAT_F32 || !(p->flags & SAT_ALLOW_TF32)) return false;
    if (p->transpose == SAT_TRANSPOSE || a->stored_blocks == 0 || p->n == 0 || p->a_align % 16) return false;
    if (a->block_rows % ROWS || a->block_cols % v->instance.tile_k || p->k % a->block_cols) return false;
    if (a->stored_blocks * a->block_rows > 0x7fffffff || sat_max(p->m, sat_max(p->n, p->k)) > 0x7fff0000) return false;
    double tiles = ((double)a->grid_rows + (double)a->stored_blocks) * ceil((double)p->n / v->instance.tile_n) *
                   (double)(a->block_rows / ROWS);
    if (tiles > 0x7fff0000 || (p->batch > 1 && p->a.batch_stride * 4 % 16 != 0)) return false;
    return sat_map_fits(p, p->b, p->k, p->n, p->b_align, 4);
}

static int64_t share_of(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    int64_t panels = (p->n + v->instance.tile_n - 1) / v->instance.tile_n;
    return sat_schedule_share(&r, panels * (r.br / ROWS), d->threads, sat_max(1, 256 / r.bc));
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    sat_schedule s = sat_schedule_count(&r, share_of(v, p, a, d));
    return (sat_schedule_bytes(&s, r.br, p->n, sizeof(float)) + 255) / 256 * 256 + SAT_COUNTER_BYTES;
}

static sat_status prepare(const sat_prepare *q, void **out) {
    if (!sat_map_encoder()) return sat_fail(SAT_DEVICE_ERROR, "%s: this driver makes no tensor maps", q->variant->name);
    state *st = (state *)calloc(1, sizeof *st);
    if (!st) return sat_fail(SAT_OUT_OF_MEMORY, "%s: state", q->variant->name);
    sat_rows r = sat_op_rows(q->problem, q->pattern);
    int64_t share = share_of(q->variant, q->problem, q->pattern, q->device);
    sat_status status = sat_prepare_rows(q, &r, share, (char *)q->workspace, &st->work);
    if (status == SAT_OK)
        status = sat_deal_counter(q, workspace(q->variant, q->problem, q->pattern, q->device), &st->counter);
    if (status == SAT_OK) *out = st;
    else free(st);
    return status;
}

static sat_status launch(const sat_launch *l) {
    if (l->variant->instance.tile_n == 512) return launch_tile<shape<512, 16, 5>>(l);
    return launch_tile<shape<256, 32, 4>>(l);
}

/* Copies from L2 and products overlap; the longer counts. */
static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    double bn = v->instance.tile_n, panels = ceil((double)p->n / bn), slices = (double)(a->block_rows / ROWS);
    double depth = (double)a->stored_blocks * (double)a->block_cols * slices * panels, items = (double)p->batch;
    double tiles = (double)a->grid_rows * slices * panels, busy = fmin(1, tiles / d->threads);
    double loads = depth * ((double)ROWS + bn) * 4 / (9e12 * d->threads / 132),
           work = 2 * depth * (double)ROWS * bn / d->tf32_rate;
    double time = fmax(loads, work) / busy;
    return fmax(items * time, sat_bytes(p, a) / d->memory_rate) + items * (tiles / d->threads * 1.5e-6 + 3e-6);
}

SAT_FAMILY(cuda_matmul_wgmma_tf32) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .about = "f32 as TF32 by warpgroup products on Hopper, sides exchanged; block rows multiples of 64",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_work,
};
