// cuda_matmul_union: block rows in groups of 128 rows, along the union of their columns (sm_90a). f16 and bf16.
//
// Low blocks are bound by B's way from L2: it comes once for all rows of a group that have the column. prepare puts
// rows together that share columns; they need not be neighbours, and C is written in place. Eight warps have 32 columns
// each and all rows, so that all have the same to do, whichever rows have a block. Products are mma.sync's, which take
// 16 rows; a warpgroup's would take 64, of which most belong to rows that have no block there, and zero times what is
// not finite is not zero.

#include "groups.cuh"
#include "hopper.cuh"
#include "mma_out.cuh"
#include "tensor_map.cuh"

enum { ROWS = 128, COLUMNS = 256, WARPS = 8, TALL = 64, WIDE = 64, DEEP = 64, STAGES = 5, AHEAD = 4 };
enum { B_BYTES = DEEP * COLUMNS * 2, A_BYTES = 8192, STAGE = B_BYTES + A_BYTES, THREADS = WARPS * 32 + 128 };
enum { SQUARE = sat_mma_square<float>(), SHARED = (int)STAGES * STAGE + (int)WARPS * SQUARE + 1024 };

/* Blocks of op(A): BR rows by 16*KB columns; stored so, or transposed. */
template <int BR_, int KB_, bool TA_> struct shape {
    static constexpr int BR = BR_, KB = KB_, BC = 16 * KB_;
    static constexpr bool TA = TA_;
    static constexpr int GROUP = ROWS / BR, MT = BR / 16;       // block rows of a group, and 16s of a block row
    static constexpr int MINE = TALL / BR;                      // block rows of a warp
    static constexpr int EACH = DEEP / BC, BLOCK = BR * BC * 2; // columns of a stage, bytes of a block
    static constexpr int MOST = A_BYTES / BLOCK;                // blocks of a stage: never fewer than a column has
    static constexpr int LINE = (TA ? BR : BC) * 2;             // of a block in memory
    static_assert(MOST >= GROUP, "a column fits");
};

struct job {
    sat_rows r;
    sat_mma_out out;
    sat_deal deal;
    const sat_union_step *steps;
    const int32_t *row; // the groups' rows
    const char *a;
    bool wide_b;
};

struct tile {
    int panel, count; // count: steps; -1: there are no more tiles
    int row[8];
};

struct barriers {
    uint64_t full[STAGES], empty[STAGES], tile_full[AHEAD], tile_empty[AHEAD];
    uint32_t has[STAGES]; // the rows of each of the stage's columns, eight bits each
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

/* ---- the producer: a lane for each row of the group, and for each column of a stage ---- */

template <class S> struct coming {
    sat_dealt tile;
    sat_union_step step, ahead; // this lane's of 32, and of the 32 after them
    int row, position;          // of this lane's row: its next block
    int got;
    bool ready;

    __device__ __forceinline__ sat_union_step at(const job &x, int i) const {
        i += threadIdx.x % 32;
        return i < tile.piece.count ? x.steps[tile.piece.first + i] : sat_union_step{};
    }
    __device__ __forceinline__ void fetch(const job &x) {
        if (ready || tile.fetch(x.deal)) return;
        bool some = !tile.none(x.deal), mine = some && threadIdx.x % 32 < S::GROUP;
        if (got++ == 0) {
            row = mine ? x.row[tile.piece.row * S::GROUP + (int)threadIdx.x % 32] : -1;
            if (some) step = at(x, 0), ahead = at(x, 32);
            return;
        }
        position = row >= 0 ? (int)x.r.ptr[row] : 0;
        ready = true;
    }
    __device__ __forceinline__ void another() { tile.another(), got = 0, ready = false; }
};

/* Where the lane's next blocks are stored. Transposed ones are looked up, some ahead. */
template <bool TA> struct places {
    int next[3];

    __device__ __forceinline__ int look(const job &x, int position) {
        if (!TA) return position;
        return position < x.r.ptr[x.r.count] ? (int)x.r.block[position] : 0;
    }
    __device__ __forceinline__ void begin(const job &x, int position) {
#pragma unroll
        for (int e = 0; e < 3; e++) next[e] = look(x, position + e);
    }
    __device__ __forceinline__ int take(const job &x, int position) {
        int now = next[0];
        next[0] = next[1], next[1] = next[2], next[2] = look(x, position + 3);
        return now;
    }
};

/* A stage: the next columns, as many as its blocks have room for. */
struct batch {
    uint32_t has;
    int col, columns, blocks; // col: of the column that is this lane's to bring
};

template <class S> __device__ __forceinline__ batch next_batch(const coming<S> &now, int from, int base) {
    batch b = {};
#pragma unroll
    for (int u = 0; u < S::EACH; u++) {
        int i = from - base + u;
        uint32_t rows = __shfl_sync(~0u, i < 32 ? now.step.rows : now.ahead.rows, i % 32);
        int c = __shfl_sync(~0u, i < 32 ? now.step.col : now.ahead.col, i % 32), more = __popc(rows);
        if (b.columns < u || from + u >= now.tile.piece.count || b.blocks + more > S::MOST) continue;
        b.has |= rows << 8 * u, b.columns++, b.blocks += more;
        if (threadIdx.x % 32 == 16 + u) b.col = c;
    }
    return b;
}

template <class S>
__device__ static void produce(const job &x, const CUtensorMap &map, coming<S> &next, barriers *s, uint32_t memory) {
    int lane = threadIdx.x % 32, stage = 0, turn = 0;
    uint32_t parity = 1, tile_parity = 1;
    for (;;) {
        while (!next.ready) next.fetch(x);
        coming<S> now = next;
        bool last = now.tile.none(x.deal);
        if (lane == 0) sat_barrier_wait(sat_shared(&s->tile_empty[turn]), tile_parity);
        __syncwarp();
        tile *t = &s->tiles[turn];
        if (lane < S::GROUP) t->row[lane] = now.row;
        if (lane == 0) t->panel = (int)now.tile.at.panel, t->count = last ? -1 : now.tile.piece.count;
        sat_barrier_arrive(sat_shared(&s->tile_full[turn])); // every lane, for what it wrote
        if (++turn == AHEAD) turn = 0, tile_parity ^= 1;
        if (last) return;
        next.another();
        int count = now.tile.piece.count, n0 = (int)now.tile.at.panel * COLUMNS, base = 0;
        places<S::TA> place;
        if (lane < S::GROUP && now.row >= 0) place.begin(x, now.position);
        for (int from = 0; from < count;) {
            if (from - base >= 32) base += 32, now.step = now.ahead, now.ahead = now.at(x, base + 32);
            batch b = next_batch<S>(now, from, base);
            uint32_t bar = sat_shared(&s->full[stage]), to = memory + stage * STAGE;
            if (lane == 0) {
                sat_barrier_wait(sat_shared(&s->empty[stage]), parity);
                s->has[stage] = b.has;
                sat_barrier_expect(bar, b.columns * S::BC * COLUMNS * 2 + b.blocks * S::BLOCK);
            }
            __syncwarp();
            int slot = 0;
#pragma unroll
            for (int u = 0; u < S::EACH; u++) {
                uint32_t has = b.has >> 8 * u & 255;
                if (lane < S::GROUP && has >> lane & 1) {
                    int before = slot + __popc(has & ((1u << lane) - 1));
                    int block = place.take(x, now.position++);
                    sat_bytes_load(to + B_BYTES + before * S::BLOCK, x.a + (int64_t)block * S::BLOCK, bar, S::BLOCK);
                }
                slot += __popc(has);
            }
            if (lane >= 16 && lane < 16 + b.columns) {
                uint32_t column = to + (lane - 16) * (S::BC * COLUMNS * 2);
                if (x.wide_b) sat_tile_load(column, &map, bar, 0, b.col * S::BC, n0 / 64);
                else
                    for (int i = 0; i < COLUMNS; i += 64)
                        sat_tile_load(column + i * S::BC * 2, &map, bar, n0 + i, b.col * S::BC);
            }
            __syncwarp();
            if (++stage == STAGES) stage = 0, parity ^= 1;
            from += b.columns;
            next.fetch(x);
        }
    }
}

/* ---- the consumers ---- */

/* Blocks lie in shared memory as they are stored, and lines of 32 or 64 bytes meet in the same banks. So a lane takes
 * 4*KB of depth in a row at once, and which of them is where in the fragments follows from that: as long as B's rows
 * come in the same order it does not matter. The order differs by lane such that eight rows of B lie in different
 * banks. */
template <class S> __device__ __forceinline__ int row_of_b(int lane, int kk) {
    int at = lane % 16, q = at % 8 / 2;
    if (S::TA) return kk * 16 + at;
    if (S::KB == 1) return 4 * q + 2 * (at / 8 ^ (q >= 2)) + at % 2;
    return 8 * q + 2 * ((2 * kk + at / 8 + q) % 4) + at % 2;
}

/* A block, as it is fetched, and what products take: 16 rows by 16 of depth each. */
template <class S> struct values {
    uint32_t w[S::MT][2][2 * S::KB];

    /* `mine`: this lane's place in a block. */
    __device__ __forceinline__ void load(uint32_t block, uint32_t mine) {
#pragma unroll
        for (int e = 0; e < 2 * S::MT; e++)
            if constexpr (!S::TA) sat_fetch_words(w[e / 2][e % 2], block + mine + e * 8 * S::LINE);
        if constexpr (S::TA) {
#pragma unroll
            for (int e = 0; e < S::MT * S::KB; e++) {
                uint32_t r[4];
                int mt = e / S::KB, kk = e % S::KB;
                sat_load_turned(r, block + mine + mt * 32 + kk * 16 * S::LINE);
#pragma unroll
                for (int i = 0; i < 4; i++) w[mt][i % 2][kk * 2 + i / 2] = r[i];
            }
        }
    }
    /* Word e + BY becomes word e. */
    template <int BY> __device__ __forceinline__ void turn(bool moves) {
        const values old = *this;
#pragma unroll
        for (int e = 0; e < S::MT * 4 * S::KB; e++) {
            const int mt = e / (4 * S::KB), high = e / (2 * S::KB) % 2, i = e % (2 * S::KB);
            w[mt][high][i] = moves ? old.w[mt][high][(i + BY) % (2 * S::KB)] : old.w[mt][high][i];
        }
    }
    /* As row_of_b has it. */
    __device__ __forceinline__ void settle(int q) {
        if constexpr (S::TA) return;
        if constexpr (S::KB == 1) turn<1>(q >= 2);
        else turn<1>(q & 1), turn<2>(q & 2);
    }
};

template <class S> __device__ __forceinline__ uint32_t place_a(int lane) {
    if (S::TA) return (lane / 16 * 8 + lane % 8) * S::LINE + lane / 8 % 2 * 16;
    return lane / 4 * S::LINE + lane % 4 * 8 * S::KB;
}

/* A stage: its columns one after the other, and of each the blocks in this warp's rows, which `half` they are. Products
 * that are only predicated take their time all the same: so there is a branch around each block's. */
template <typename T, class S>
__device__ __forceinline__ void multiply_stage(float (&d)[TALL / 16][WIDE / 8][4], uint32_t all, uint32_t stage,
                                               const uint32_t (&place_b)[S::KB], uint32_t mine_a, int q, int half) {
    constexpr uint32_t MASK = (1u << S::MINE) - 1;
    uint32_t a = stage + B_BYTES, b = stage;
#pragma unroll 1
    for (; all; all >>= 8, b += S::BC * COLUMNS * 2) {
        uint32_t from = a + (half ? __popc(all & MASK) * S::BLOCK : 0);
        uint32_t has = all >> (half ? S::MINE : 0) & MASK;
        a += __popc(all & 255) * S::BLOCK;
        if (!has) continue;
        uint32_t right[S::KB][WIDE / 16][4];
#pragma unroll
        for (int e = 0; e < S::KB * WIDE / 16; e++)
            sat_load_turned(right[e / (WIDE / 16)][e % (WIDE / 16)],
                            (b + place_b[e / (WIDE / 16)]) ^ e % (WIDE / 16) * 32);
#pragma unroll
        for (int g = 0; g < S::MINE; g++) {
            int some = has >> g & 1; // 0 or 1, but the compiler does not know, and branches
            asm volatile("" : "+r"(some));
#pragma unroll 1
            for (; some > 0; some--, from += S::BLOCK) {
                values<S> v;
                v.load(from, mine_a);
                v.settle(q);
#pragma unroll
                for (int e = 0; e < S::KB * S::MT * WIDE / 8; e++) {
                    const int n = e % (WIDE / 8), mt = e / (WIDE / 8) % S::MT, kk = e / (WIDE / 8) / S::MT;
                    const uint32_t r[4] = {v.w[mt][0][2 * kk], v.w[mt][1][2 * kk], v.w[mt][0][2 * kk + 1],
                                           v.w[mt][1][2 * kk + 1]};
                    T::multiply(d[g * S::MT + mt][n], r, right[kk][n / 2][n % 2 * 2], right[kk][n / 2][n % 2 * 2 + 1]);
                }
            }
        }
    }
}

/* The code is there once: each round takes 16 rows' sums out of the registers. `row`: lane g has the warp's g-th. */
template <typename T, class S>
__device__ __forceinline__ void put(const job &x, const float (&d)[TALL / 16][WIDE / 8][4], int row, int64_t n0,
                                    int lane, float *square) {
#pragma unroll 1
    for (int i = 0; i < TALL / 16; i++) {
        float part[1][WIDE / 8][4];
#pragma unroll
        for (int e = 0; e < TALL / 16 * WIDE / 2; e++)
            if (e / (WIDE / 2) == i) part[0][e / 4 % (WIDE / 8)][e % 4] = d[e / (WIDE / 2)][e / 4 % (WIDE / 8)][e % 4];
        int mine = __shfl_sync(~0u, row, i / S::MT);
        if (mine < 0 || n0 >= x.out.to.n) continue;
        sat_mma_put<typename T::element>(x.out, part, (int64_t)mine * S::BR + i % S::MT * 16, n0, lane, square);
    }
}

template <typename T, class S> __device__ static void consume(const job &x, barriers *s, uint32_t memory) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, stage = 0, turn = 0;
    uint32_t parity = 0, tile_parity = 0;
    float *square = (float *)__cvta_shared_to_generic(memory + STAGES * STAGE + warp * SQUARE);
    uint32_t place_b[S::KB], mine_a = place_a<S>(lane);
#pragma unroll
    for (int kk = 0; kk < S::KB; kk++) { // this warp's 64 columns: lines of 128 bytes
        int row = row_of_b<S>(lane, kk);
        place_b[kk] = warp % 4 * (S::BC * 128) + row * 128 + (lane / 16 ^ row % 8) * 16;
    }
    for (;;) {
        sat_barrier_wait(sat_shared(&s->tile_full[turn]), tile_parity);
        const tile &t = s->tiles[turn];
        int left = t.count, panel = t.panel, row = t.row[warp / 4 * S::MINE + lane % S::MINE];
        __syncwarp();
        if (lane == 0) sat_barrier_arrive(sat_shared(&s->tile_empty[turn]));
        if (++turn == AHEAD) turn = 0, tile_parity ^= 1;
        if (left < 0) break;
        float d[TALL / 16][WIDE / 8][4];
#pragma unroll
        for (int e = 0; e < TALL / 16 * WIDE / 2; e++) d[e / (WIDE / 2)][e / 4 % (WIDE / 8)][e % 4] = 0;
        while (left > 0) {
            sat_barrier_wait(sat_shared(&s->full[stage]), parity);
            uint32_t all = s->has[stage];
            left -= 4 - __clz(all) / 8; // its columns, each of which has rows
            multiply_stage<T, S>(d, all, memory + stage * STAGE, place_b, mine_a, lane % 4, warp / 4);
            __syncwarp();
            if (lane == 0) sat_barrier_arrive(sat_shared(&s->empty[stage]));
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
        put<T, S>(x, d, row, (int64_t)panel * COLUMNS + warp % 4 * WIDE, lane, square);
    }
}

template <typename T, class S>
static __global__ void __launch_bounds__(THREADS, 1)
    multiply(const __grid_constant__ job x, const __grid_constant__ CUtensorMap map) {
    extern __shared__ char memory[];
    __shared__ barriers s;
    uint32_t start = (sat_shared(memory) + 1023) & ~1023u;
    coming<S> next = {};
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
        if (threadIdx.x < WARPS * 32 + 32) produce<S>(x, map, next, &s, start);
    } else {
        sat_registers_more<216>();
        consume<T, S>(x, &s, start);
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

template <typename T, class S> static sat_status start(const sat_launch *l, const job &x, const CUtensorMap &map) {
    unsigned grid = (unsigned)sat_min(x.deal.tiles, l->device->threads);
    return sat_start<multiply<T, S>>(l, grid, THREADS, SHARED, x, map);
}

template <typename T, bool TA> static sat_status start_any(const sat_launch *l, const job &x, const CUtensorMap &map) {
    if (x.r.br == 16)
        return x.r.bc == 16 ? start<T, shape<16, 1, TA>>(l, x, map) : start<T, shape<16, 2, TA>>(l, x, map);
    return x.r.bc == 16 ? start<T, shape<32, 1, TA>>(l, x, map) : start<T, shape<32, 2, TA>>(l, x, map);
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    if (p->m == 0 || p->n == 0) return SAT_OK;
    state *st = (state *)l->state;
    bool ta = p->transpose == SAT_TRANSPOSE;
    job x = {};
    x.r = sat_device_rows(p, l->pattern), x.out = sat_mma_out_of(l);
    x.deal = sat_deal_of(st->work, st->counter, 1, (p->n + COLUMNS - 1) / COLUMNS, 2.0 * (double)COLUMNS * (double)p->k,
                         l->device);
    x.steps = st->steps, x.row = st->row, x.wide_b = p->n % 64 == 0;
    x.a = (const char *)l->operands[0];
    if (st->of != l->operands[1]) {
        st->of = NULL;
        if (!make_map(l, x, &st->b)) return sat_fail(SAT_DEVICE_ERROR, "%s: no tensor map", l->variant->name);
        st->of = l->operands[1];
    }
    if (l->variant->instance.dtype == SAT_F16)
        return ta ? start_any<sat_f16_math, true>(l, x, st->b) : start_any<sat_f16_math, false>(l, x, st->b);
    return ta ? start_any<sat_bf16_math, true>(l, x, st->b) : start_any<sat_bf16_math, false>(l, x, st->b);
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    if (d->capability != 90 || p->a_dtype != v->instance.dtype || a->stored_blocks == 0 || p->n == 0) return false;
    if ((r.br != 16 && r.br != 32) || (r.bc != 16 && r.bc != 32) || r.k % r.bc || p->a_align % 16) return false;
    if (sat_max(p->m, sat_max(p->n, p->k)) > 0x7fff0000) return false;
    if (a->stored_blocks * sat_max(a->block_rows, a->block_cols) > 0x7fff0000) return false;
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
