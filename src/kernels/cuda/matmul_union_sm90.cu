// cuda_matmul_union: block rows in groups of 128 rows, along the union of their columns (sm_90a). f16 and bf16.
//
// Low blocks are bound by B's way from L2: it comes once for all rows of a group that have the column. prepare puts
// rows together that share columns; they need not be neighbours, and C is written in place. Eight warps have 16 rows
// each, by 256 columns; a warp of its own brings B for every column that any of the group's block rows has, and each
// warp multiplies those of its own row and passes over the others. Values go straight into registers, some blocks
// ahead: nobody shares them. Products are mma.sync's, which take 16 rows; a warpgroup's would take 64, of which most
// belong to rows that have no block there, and zero times what is not finite is not zero.

#include "groups.cuh"
#include "tensor_map.cuh"
#include "wgmma_out.cuh"

enum { ROWS = 128, COLUMNS = 256, WARPS = 8, DEEP = 64, STAGES = 6, STAGE = DEEP * COLUMNS * 2, AHEAD = 4 };
enum { OUT = 2 * 8 * SAT_SLICE, SHARED = STAGES * STAGE + OUT + 1024, THREADS = WARPS * 32 + 128 };

struct job {
    sat_rows r;
    sat_mma_out out;
    sat_deal deal;
    const sat_union_step *steps;
    const int32_t *row; // the groups' rows
    const char *a;
    int group, warps_of_row; // block rows of a group, warps of a block row
    bool wide_b;
};

struct tile {
    int panel, count;                         // count: steps; -1: there are no more tiles
    int row[WARPS], first[WARPS], end[WARPS]; // of each of the group's rows: its number, or -1, and its blocks
};

struct barriers {
    uint64_t full[STAGES], empty[STAGES], tile_full[AHEAD], tile_empty[AHEAD];
    alignas(16) uint32_t rows[STAGES][4]; // of the stage's columns
    tile tiles[AHEAD];
};

struct state {
    sat_plan_work work;
    unsigned *counter;
    const sat_union_step *steps;
    const int32_t *row;
    CUtensorMap b;
    const void *of; // the map's
};

/* ---- the producer: lane 0 asks for copies, the others know what of ---- */

struct coming {
    sat_dealt tile;
    sat_union_step step; // this lane's of the first 32
    int row, first, end; // of this lane's row
    int got;
    bool ready;

    __device__ __forceinline__ void look(const job &x, const sat_piece &piece, int from) {
        int mine = from + (int)threadIdx.x % 32;
        if (mine < piece.count) step = x.steps[piece.first + mine];
    }
    __device__ __forceinline__ void fetch(const job &x) {
        if (ready || tile.fetch(x.deal)) return;
        int lane = (int)threadIdx.x % 32;
        bool some = !tile.none(x.deal);
        if (got++ == 0) {
            row = some && lane < x.group ? x.row[tile.piece.row * x.group + lane] : -1;
            if (some) look(x, tile.piece, 0);
            return;
        }
        first = row < 0 ? 0 : (int)x.r.ptr[row], end = row < 0 ? 0 : (int)x.r.ptr[row + 1];
        ready = true;
    }
    __device__ __forceinline__ void another() { tile.another(), got = 0, ready = false; }
};

template <int KB>
__device__ static void produce(const job &x, const CUtensorMap *map, coming &next, barriers *s, uint32_t memory) {
    constexpr int BC = 16 * KB, EACH = DEEP / BC; // columns of a stage
    int lane = threadIdx.x % 32, stage = 0, turn = 0;
    uint32_t parity = 1, tile_parity = 1;
    for (;;) {
        while (!next.ready) next.fetch(x);
        coming now = next;
        bool last = now.tile.none(x.deal);
        if (lane == 0) sat_barrier_wait(sat_shared(&s->tile_empty[turn]), tile_parity);
        __syncwarp();
        tile *t = &s->tiles[turn];
        if (lane < WARPS) t->row[lane] = now.row, t->first[lane] = now.first, t->end[lane] = now.end;
        if (lane == 0) t->panel = (int)now.tile.at.panel, t->count = last ? -1 : now.tile.piece.count;
        sat_barrier_arrive(sat_shared(&s->tile_full[turn])); // every lane, for what it wrote
        if (++turn == AHEAD) turn = 0, tile_parity ^= 1;
        if (last) return;
        next.another();
        int count = now.tile.piece.count, n0 = (int)now.tile.at.panel * COLUMNS;
        for (int from = 0; from < count; from += EACH) {
            if (from % 32 == 0 && from > 0) now.look(x, now.tile.piece, from);
            int mine = from % 32 + lane, here = min(EACH, count - from);
            uint32_t rows = __shfl_sync(~0u, now.step.rows, mine % 32), bar = sat_shared(&s->full[stage]);
            int k = __shfl_sync(~0u, now.step.col, mine % 32) * BC;
            if (lane >= here) rows = 0;
            uint32_t all[4];
#pragma unroll
            for (int e = 0; e < 4; e++) all[e] = __shfl_sync(~0u, rows, e);
            if (lane == 0) {
                sat_barrier_wait(sat_shared(&s->empty[stage]), parity);
                *(uint4 *)s->rows[stage] = make_uint4(all[0], all[1], all[2], all[3]);
                sat_barrier_expect(bar, here * BC * COLUMNS * 2);
            }
            __syncwarp();
            if (lane < here) {
                uint32_t to = memory + stage * STAGE + lane * (BC * COLUMNS * 2);
                if (x.wide_b) sat_tile_load(to, map, bar, 0, k, n0 / 64);
                else
                    for (int i = 0; i < COLUMNS; i += 64) sat_tile_load(to + i * BC * 2, map, bar, n0 + i, k);
            }
            __syncwarp();
            if (++stage == STAGES) stage = 0, parity ^= 1;
            next.fetch(x);
        }
    }
}

/* ---- the consumers ---- */

/* A warp's 16 rows of a block, as fragments: KB of 16 x 16. Which k is where does not matter as long as B has it so.
 * A plain block gives a lane 4 k in a row; of a transposed one it takes pairs and turns them. */
template <int KB, bool TA> struct values {
    uint32_t r[KB][4];

    /* `from`: this lane's place in the block. */
    __device__ __forceinline__ void load(const char *from) {
#pragma unroll
        for (int kk = 0; kk < KB; kk++) {
            uint2 low = __ldg((const uint2 *)(from + kk * 32)),
                  high = __ldg((const uint2 *)(from + kk * 32 + KB * 256));
            bool swap = threadIdx.x % 4 >= 2; // so that eight rows of B lie in different banks
            r[kk][0] = swap ? low.y : low.x, r[kk][1] = swap ? high.y : high.x;
            r[kk][2] = swap ? low.x : low.y, r[kk][3] = swap ? high.x : high.y;
        }
    }
    __device__ __forceinline__ void load_turned(const char *from, int line) { // `line`: bytes from a k to the next
#pragma unroll
        for (int kk = 0; kk < KB; kk++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                r[kk][e] = __ldg((const uint32_t *)(from + (kk * 16 + e / 2 * 8) * line + e % 2 * 16));
    }
    __device__ __forceinline__ void settle() {
        if constexpr (TA) {
#pragma unroll
            for (int kk = 0; kk < KB; kk++)
#pragma unroll
                for (int e = 0; e < 4; e++) r[kk][e] = sat_turn_matrix(r[kk][e]);
        }
    }
};

/* The row of B that lane's line of a matrix load is. */
template <bool TA> __device__ __forceinline__ int row_of_b(int lane) {
    int k = lane % 16, q = k % 8 / 2;
    return TA ? k : 4 * q + 2 * (k / 8 ^ (q >= 2)) + k % 2;
}

/* B's fragments are fetched some products ahead: a warp is often alone with its block. */
template <typename T, int KB>
__device__ __forceinline__ void multiply_block(float (&d)[COLUMNS / 2], const uint32_t (&a)[KB][4], uint32_t b) {
    constexpr int PARTS = COLUMNS / 16, ALL = KB * PARTS, FLIGHT = 4;
    uint32_t part[FLIGHT][4];
    auto fetch = [&](int i) {
        int kk = i / PARTS, c = i % PARTS;
        sat_load_turned(part[i % FLIGHT], ((b + kk * 2048) ^ (c % 4 * 32)) + c / 4 * (16 * KB * 128));
    };
#pragma unroll
    for (int i = 0; i < FLIGHT - 1; i++) fetch(i);
#pragma unroll
    for (int i = 0; i < ALL; i++) {
        if (i + FLIGHT - 1 < ALL) fetch(i + FLIGHT - 1);
        float(&low)[4] = reinterpret_cast<float(&)[4]>(d[i % PARTS * 8]);
        float(&high)[4] = reinterpret_cast<float(&)[4]>(d[i % PARTS * 8 + 4]);
        T::multiply(low, a[i / PARTS], part[i % FLIGHT][0], part[i % FLIGHT][1]);
        T::multiply(high, a[i / PARTS], part[i % FLIGHT][2], part[i % FLIGHT][3]);
    }
}

/* A warp's 16 rows. */
template <typename T>
__device__ __forceinline__ void put(const job &x, float (&d)[COLUMNS / 2], uint32_t staging, int64_t i0, int64_t n0,
                                    int lane) {
    typedef typename T::element E;
    if (x.out.way == SAT_MMA_WORDS && !x.out.columns) {
        sat_group_finish(x.out.to, d, i0 + lane / 4);
        return sat_group_rows<E, COLUMNS>(x.out.to, d, staging, i0, n0);
    }
    const float(&sum)[1][COLUMNS / 8][4] = reinterpret_cast<const float(&)[1][COLUMNS / 8][4]>(d);
    sat_mma_put<E>(x.out, sum, i0, n0, lane, (float *)__cvta_shared_to_generic(staging));
}

template <typename T, int KB, bool TA> __device__ static void consume(const job &x, barriers *s, uint32_t memory) {
    constexpr int BC = 16 * KB, EACH = DEEP / BC, DEPTH = 4 / KB; // blocks of values on their way
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, stage = 0, turn = 0;
    int mine = warp / x.warps_of_row, down = warp % x.warps_of_row * 16, g = lane / 4, q = lane % 4;
    uint32_t parity = 0, tile_parity = 0, staging = memory + STAGES * STAGE + warp * 2 * SAT_SLICE;
    int row_b = row_of_b<TA>(lane);
    uint32_t place_b = memory + row_b * 128 + ((lane / 16) ^ (row_b & 7)) * 16;
    const int line = (int)x.r.col_step * 2; // of a transposed block
    const char *place_a = x.a + (TA ? g * line + (down + 2 * q) * 2 : (down + g) * (BC * 2) + q * 8);
    auto take = [&](values<KB, TA> &to, int block) {
        const char *from = place_a + (TA ? x.r.block[block] : block) * (x.r.block_elements * 2);
        if (TA) to.load_turned(from, line);
        else to.load(from);
    };
    for (;;) {
        sat_barrier_wait(sat_shared(&s->tile_full[turn]), tile_parity);
        const tile *t = &s->tiles[turn];
        int count = sat_read_by_one(&t->count), panel = sat_read_by_one(&t->panel);
        int block = sat_read_by_one(&t->first[mine]), end = sat_read_by_one(&t->end[mine]);
        int row = sat_read_by_one(&t->row[mine]);
        if (lane == 0) sat_barrier_arrive(sat_shared(&s->tile_empty[turn]));
        if (++turn == AHEAD) turn = 0, tile_parity ^= 1;
        if (count < 0) break;
        values<KB, TA> next[DEPTH];
#pragma unroll
        for (int e = 0; e < DEPTH; e++)
            if (block + e < end) take(next[e], block + e);
        float d[COLUMNS / 2];
#pragma unroll
        for (int e = 0; e < COLUMNS / 2; e++) d[e] = 0;
        for (int from = 0; from < count; from += EACH) {
            sat_barrier_wait(sat_shared(&s->full[stage]), parity);
            uint4 rows = {};
            if (lane == 0) rows = *(const uint4 *)s->rows[stage];
            uint32_t wanted = (rows.x >> mine & 1) | (rows.y >> mine & 1) << 1 | (rows.z >> mine & 1) << 2 |
                              (rows.w >> mine & 1) << 3; // of the stage's columns, by this row
            wanted = __shfl_sync(~0u, wanted, 0);
#pragma unroll 1
            for (int u = 0; u < EACH; u++) {
                if (!(wanted >> u & 1)) continue;
                values<KB, TA> now = next[0];
#pragma unroll
                for (int e = 0; e + 1 < DEPTH; e++) next[e] = next[e + 1];
                if (block + DEPTH < end) take(next[DEPTH - 1], block + DEPTH);
                block++;
                now.settle();
                multiply_block<T, KB>(d, now.r, place_b + stage * STAGE + u * (BC * COLUMNS * 2));
            }
            __syncwarp();
            if (lane == 0) sat_barrier_arrive(sat_shared(&s->empty[stage]));
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
        if (row >= 0) put<T>(x, d, staging, row * x.r.br + down, (int64_t)panel * COLUMNS, lane);
    }
}

template <typename T, int KB, bool TA>
static __global__ void __launch_bounds__(THREADS, 1)
    multiply(const __grid_constant__ job x, const __grid_constant__ CUtensorMap map) {
    extern __shared__ char memory[];
    __shared__ barriers s;
    uint32_t start = (sat_shared(memory) + 1023) & ~1023u;
    coming next = {};
    sat_next_may_begin();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++)
            sat_barrier_init(sat_shared(&s.full[i]), 1), sat_barrier_init(sat_shared(&s.empty[i]), WARPS);
        for (int i = 0; i < AHEAD; i++)
            sat_barrier_init(sat_shared(&s.tile_full[i]), 32), sat_barrier_init(sat_shared(&s.tile_empty[i]), WARPS);
        sat_barrier_publish();
    }
    if (threadIdx.x / 32 == WARPS) {
        sat_prefetch_map(&map);
        next.tile.first();
        while (!next.ready) next.fetch(x);
    }
    __syncthreads();
    sat_wait_for_previous();
    if (threadIdx.x >= WARPS * 32) {
        sat_registers_fewer<72>();
        if (threadIdx.x < WARPS * 32 + 32) produce<KB>(x, &map, next, &s, start);
    } else {
        sat_registers_more<216>();
        consume<T, KB, TA>(x, &s, start);
    }
    sat_deal_end(x.deal);
}

/* ---- the host's side ---- */

static bool make_map(const sat_launch *l, const job &x, CUtensorMap *map) {
    const sat_problem *p = l->problem;
    cuuint64_t n = (cuuint64_t)p->n, k = (cuuint64_t)p->k, lead = (cuuint64_t)p->b.row_stride * 2;
    cuuint32_t bc = (cuuint32_t)x.r.bc;
    sat_tensor b = {p->b_dtype, l->operands[1], 2, {n, k}, {lead}, {64, bc}, 128};
    if (x.wide_b) b = {p->b_dtype, l->operands[1], 3, {64, k, n / 64}, {lead, 128}, {64, bc, COLUMNS / 64}, 128};
    return sat_map_encode(map, b);
}

template <typename T, int KB, bool TA>
static sat_status start(const sat_launch *l, const job &x, const CUtensorMap &map) {
    unsigned grid = (unsigned)sat_min(x.deal.tiles, l->device->threads);
    return sat_start<multiply<T, KB, TA>>(l, grid, THREADS, SHARED, x, map);
}

template <typename T> static sat_status start_any(const sat_launch *l, const job &x, const CUtensorMap &map) {
    bool ta = l->problem->transpose == SAT_TRANSPOSE;
    if (x.r.bc == 16) return ta ? start<T, 1, true>(l, x, map) : start<T, 1, false>(l, x, map);
    return ta ? start<T, 2, true>(l, x, map) : start<T, 2, false>(l, x, map);
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    if (p->m == 0 || p->n == 0) return SAT_OK;
    state *st = (state *)l->state;
    job x = {};
    x.r = sat_device_rows(p, l->pattern), x.out = p->c.col_stride == 1 ? sat_group_out_of(l) : sat_mma_out_of(l);
    x.deal = sat_deal_of(st->work, st->counter, 1, (p->n + COLUMNS - 1) / COLUMNS, 2.0 * (double)COLUMNS * (double)p->k,
                         l->device);
    x.steps = st->steps, x.row = st->row, x.a = (const char *)l->operands[0];
    x.group = (int)(ROWS / x.r.br), x.warps_of_row = (int)(x.r.br / 16), x.wide_b = p->n % 64 == 0;
    if (st->of != l->operands[1]) {
        st->of = NULL;
        if (!make_map(l, x, &st->b)) return sat_fail(SAT_DEVICE_ERROR, "%s: no tensor map", l->variant->name);
        st->of = l->operands[1];
    }
    return l->variant->instance.dtype == SAT_F16 ? start_any<sat_f16_math>(l, x, st->b)
                                                 : start_any<sat_bf16_math>(l, x, st->b);
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    if (d->capability != 90 || p->a_dtype != v->instance.dtype || a->stored_blocks == 0 || p->n == 0) return false;
    if ((r.br != 16 && r.br != 32) || (r.bc != 16 && r.bc != 32) || r.k % r.bc || p->a_align % 16) return false;
    if (sat_max(p->m, sat_max(p->n, p->k)) > 0x7fff0000 || a->stored_blocks > 0x7fff0000) return false;
    if ((double)r.count * ceil((double)p->n / (double)COLUMNS) > 0x7fff0000) return false;
    if (p->batch > 1 && p->a.batch_stride * 2 % 16 != 0) return false;
    return p->b.col_stride == 1 && sat_map_fits(p, p->b, p->k, p->n, p->b_align, 2);
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)d;
    sat_rows r = sat_op_rows(p, a);
    return sat_grouped_bytes(&r, (int)(ROWS / r.br));
}

static sat_status prepare(const sat_prepare *q, void **out) {
    if (!sat_map_encoder()) return sat_fail(SAT_DEVICE_ERROR, "%s: this driver makes no tensor maps", q->variant->name);
    state *st = (state *)calloc(1, sizeof *st);
    if (!st) return sat_fail(SAT_OUT_OF_MEMORY, "%s: state", q->variant->name);
    sat_rows r = sat_op_rows(q->problem, q->pattern);
    sat_status status = sat_prepare_groups(q, &r, (int)(ROWS / r.br), &st->work, &st->steps, &st->row, &st->counter);
    if (status == SAT_OK) *out = st;
    else free(st);
    return status;
}

/* What comes from L2: B for each step, values for each panel. */
static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    sat_rows r = sat_op_rows(p, a);
    double panels = ceil((double)p->n / (double)COLUMNS), groups = ceil((double)r.count * (double)r.br / (double)ROWS);
    double steps = sat_union_expected(r.count, (r.k + r.bc - 1) / r.bc, a->stored_blocks, (int)(ROWS / r.br));
    double loads = steps * panels * (double)(r.bc * COLUMNS * 2) + (double)a->stored_elements * 2 * panels;
    double rate = 8.5e12 * d->threads / 132, busy = fmin(1, groups * panels / d->threads), items = (double)p->batch;
    double time = loads / rate / busy + ceil(groups * panels / d->threads) * 1e-6 + 3e-6;
    return fmax(items * time, sat_bytes(p, a) / d->memory_rate);
}

SAT_FAMILY(cuda_matmul_union) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .about = "block rows of 16 or 32 in groups, along the union of their columns, on Hopper; f16, bf16",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_work,
};
