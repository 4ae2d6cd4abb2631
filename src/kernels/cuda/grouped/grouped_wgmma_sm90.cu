// cuda_grouped_wgmma, cuda_grouped_weights_wgmma: products of groups with TMA loads and wgmma (sm_90a). f16 and bf16.
//
// A product is C = A*B. Of Y, A is the group's rows of X and B is its W; of the gradient to W, A is the group's rows of
// X transposed, B its rows of Z, and the depth is as long as the group. A producer warp takes tiles of BM x BN from an
// atomic counter, finds out in the offsets of this run what they are, and loads both operands, 64 of the depth at a
// time, into a ring of stages. Two consumer warpgroups multiply and store.
//
// Boxes of X and Z may reach into the next group. Of Y those are rows of sums that are not stored. Of the gradient they
// would be summed, so the consumers set them to zero in shared memory, in both operands: zero times NaN is NaN.

#include "kernels/cuda/common/ptx_sm90.cuh"
#include "kernels/cuda/common/ring.cuh"
#include "kernels/cuda/common/warpgroup_epilogue.cuh"
#include "kernels/cuda/grouped/grouped_tiles.h"

/* ---- parameters ---- */

/* What a kernel multiplies. Of W either rows or columns are contiguous. */
enum route { W_ROWS, W_COLUMNS, GRADIENT };

struct tensor_maps {
    CUtensorMap a, b, c; // X; W or Z; Y or the gradient, where TMA stores it
};

struct params {
    grouped_order order;
    grouped_epilogue epilogue;
    unsigned *counter; // of tiles; see sat_tile_counter_init
    int n, steps;      // columns of C; stages along k, of Y
    bool one_w;        // all groups have the same W
    bool a_whole;      // X by chunks, k a multiple of 64: a TMA box has all chunks
    bool b_whole;      // W or Z by chunks, n a multiple of 64: likewise
    bool tma_output;   // whole tiles of C are stored by TMA
};

/* What `prepare` makes, and the tensor maps of the last launch. */
struct state {
    unsigned *counter;
    tensor_maps maps;
    const void *made_for[3]; // the pointers that the maps were encoded for
    bool tma_output;         // there is a map of C
};

/* ---- shared memory ---- */

/* A tile, as the producer publishes it to the consumers. */
struct tile {
    int steps;        // stages along the depth; -1: there are no more tiles
    int group;        // -1: rows of no group, whose product is zero
    int row, row_end; // of C: the tile's first, and the row that the product ends before
    int column;       // of C: the tile's first
    int valid;        // of the gradient: rows of the last stage that are the group's
};

/* The tile's shape and the map of shared memory: [A of all stages][B of all stages][staging for C][barriers, queue]. A
 * stage has A, BM x BK, and B, BK x BN. 128 rows are split between the warpgroups by rows, 64 rows by columns. */
template <int BM_, int BN_, int STAGES_> struct shape {
    static constexpr int BM = BM_, BN = BN_, BK = 64, STAGES = STAGES_, WARPGROUPS = 2;
    static constexpr int WN = BM == 128 ? BN : BN / WARPGROUPS; // columns of a warpgroup
    static constexpr int A_BYTES = BM * BK * 2, B_BYTES = BK * BN * 2;
    static constexpr int B_OFFSET = STAGES * A_BYTES, STAGING_OFFSET = B_OFFSET + STAGES * B_BYTES;
    static constexpr int RING_OFFSET = STAGING_OFFSET + WARPGROUPS * SAT_STAGING;
    static constexpr int BYTES = RING_OFFSET + (int)sizeof(sat_ring_shared<tile>);
    static constexpr int CONSUMERS = WARPGROUPS * 128, THREADS = CONSUMERS + 128;
    static_assert(BYTES <= 227 * 1024, "more shared memory than a CTA may have");
    static_assert(STAGES <= SAT_MAX_STAGES, "more stages than the ring has barriers");
};

/* A chunk of an operand whose depth is not contiguous: 64 columns, BK lines of 128 bytes. */
static constexpr int CHUNK_BYTES = 64 * 128;

/* setmaxnreg: with both, 128 * 72 + 256 * 216 = 64512 registers of the 65536 that a multiprocessor has. */
static constexpr int PRODUCER_REGISTERS = 72, CONSUMER_REGISTERS = 216;

/* ---- barriers ---- */

typedef sat_ring_shared<tile> ring_shared;

/* The named barrier of all consumers. Those of the warpgroups are 1 and 2. */
enum { CONSUMER_BARRIER = 3 };

/* A warp's pipeline state: the next stage of the ring, and the phase to wait for. */
template <typename S> struct pipeline_state {
    int stage = 0;
    uint32_t phase;

    __device__ __forceinline__ void advance() {
        if (++stage == S::STAGES) stage = 0, phase ^= 1;
    }
    /* Offsets of the stage's operands in shared memory. */
    __device__ __forceinline__ uint32_t a() const { return stage * S::A_BYTES; }
    __device__ __forceinline__ uint32_t b() const { return S::B_OFFSET + stage * S::B_BYTES; }
};

/* ---- producer ---- */

/* What the consumers need to know of a tile. */
template <typename S, route R> __device__ __forceinline__ tile tile_of(const params &x, const grouped_tile &t) {
    int column = (int)t.panel * S::BN, down = (int)t.row_tile * S::BM, depth = t.end - t.begin;
    if (R != GRADIENT) return {t.group < 0 ? 0 : x.steps, t.group, t.begin + down, t.end, column, 0};
    int steps = (depth + S::BK - 1) / S::BK;
    return {steps, t.group, down, x.order.k, column, depth - (steps - 1) * S::BK};
}

/* By one lane: COUNT chunks of an operand whose depth is not contiguous, from its column `column` and its row `row` on;
 * of W those of one group. `whole`: one box has them all. */
template <int COUNT>
__device__ __forceinline__ void load_chunks(const CUtensorMap *map, bool whole, uint32_t to, uint32_t bar, int column,
                                            int row) {
    if (whole) return tma_load(to, map, bar, 0, row, column / 64);
#pragma unroll 1
    for (int i = 0; i < COUNT; i++) tma_load(to + i * CHUNK_BYTES, map, bar, column + i * 64, row);
}
template <int COUNT>
__device__ __forceinline__ void load_w_chunks(const CUtensorMap *map, bool whole, uint32_t to, uint32_t bar, int column,
                                              int row, int w) {
    if (whole) return tma_load(to, map, bar, 0, row, column / 64, w);
#pragma unroll 1
    for (int i = 0; i < COUNT; i++) tma_load(to + i * CHUNK_BYTES, map, bar, column + i * 64, row, w);
}

/* By one lane: a stage of both operands. `depth`: where it begins, of the gradient from the group's first row on. */
template <typename S, route R>
__device__ __forceinline__ void load_stage(const params &x, const tensor_maps &m, uint32_t a, uint32_t b, uint32_t bar,
                                           const tile &t, int first_row, int depth) {
    int w = x.one_w ? 0 : t.group;
    if constexpr (R == GRADIENT) {
        load_chunks<S::BM / 64>(&m.a, x.a_whole, a, bar, t.row, first_row + depth);
        load_chunks<S::BN / 64>(&m.b, x.b_whole, b, bar, t.column, first_row + depth);
    } else {
        tma_load(a, &m.a, bar, depth, t.row);
        if constexpr (R == W_COLUMNS) tma_load(b, &m.b, bar, depth, t.column, w);
        else load_w_chunks<S::BN / 64>(&m.b, x.b_whole, b, bar, t.column, depth, w);
    }
}

/* Takes tiles, publishes them, and loads their operands. */
template <typename S, route R>
__device__ static void producer(const params &x, const tensor_maps &m, ring_shared *s, uint32_t smem) {
    uint32_t full = keep_in_register(smem_address(s->full)), empty = full + sizeof s->full;
    bool one = elect_one();
    pipeline_state<S> pipe = {.phase = 1};
    sat_tile_queue<tile> queue = {.phase = 1};
    grouped_search search;
    search.start(x.order);
    for (unsigned number = blockIdx.x, next = 0;; number = __shfl_sync(~0u, next, 0)) {
        grouped_tile found = {};
        tile t = {.steps = -1};
        if (search.find(x.order, number, &found)) t = tile_of<S, R>(x, found);
        if (one) queue.publish(s, t);
        queue.advance();
        if (t.steps < 0) return;
        if (threadIdx.x % 32 == 0)
            next = gridDim.x + atomicAdd(x.counter, 1u); // it is there when the copies are issued
        for (int step = 0; step < t.steps; step++) {
            if (one) {
                uint32_t bar = full + pipe.stage * 8;
                mbarrier_wait(empty + pipe.stage * 8, pipe.phase);
                mbarrier_arrive_expect_tx(bar, S::A_BYTES + S::B_BYTES);
                load_stage<S, R>(x, m, smem + pipe.a(), smem + pipe.b(), bar, t, found.begin, step * S::BK);
            }
            pipe.advance();
        }
    }
}

/* ---- consumer ---- */

/* By all consumers, of the gradient: sets a stage's lines from `valid` on to zero, in all chunks of both operands. They
 * are the rows that are not the group's. */
template <typename S> __device__ __forceinline__ void clear_other_rows(uint32_t a, uint32_t b, int valid) {
    constexpr int A_CHUNKS = S::BM / 64, CHUNKS = A_CHUNKS + S::BN / 64;
    int vectors = (S::BK - valid) * 8; // of 16 bytes, of a chunk; the swizzle leaves each in its line
    for (int at = threadIdx.x; at < CHUNKS * vectors; at += S::CONSUMERS) {
        int chunk = at / vectors;
        uint32_t to = chunk < A_CHUNKS ? a + chunk * CHUNK_BYTES : b + (chunk - A_CHUNKS) * CHUNK_BYTES;
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(to + valid * 128 + at % vectors * 16), "r"(0)
                     : "memory");
    }
    fence_proxy_async();
    named_barrier_sync(CONSUMER_BARRIER, S::CONSUMERS);
}

/* Issues the wgmma of one stage: d = A*B, or d += A*B with `scale_d`. Where the depth is contiguous lines are 128 bytes
 * of it, one for each row or column, and 1024 bytes are 8 lines. Otherwise a line is 64 rows or columns of one step of
 * the depth, 2048 bytes are 16 steps, and the leading offset is from one chunk to the next. */
template <typename T, typename S, route R>
__device__ __forceinline__ void multiply_stage(float (&d)[S::WN / 2], uint32_t a, uint32_t b, int wg, int scale_d) {
    constexpr bool A_MN_MAJOR = R == GRADIENT, B_MN_MAJOR = R != W_COLUMNS;
    if (S::BM == 128) a += wg * 64 * S::BK * 2; // 64 lines, or a chunk
    else b += wg * S::WN * S::BK * 2;           // WN lines, or WN / 64 chunks
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < S::BK / 16; k++) {
        uint64_t da = A_MN_MAJOR ? wgmma_descriptor(a + k * 2048, swizzle_mode_of(128), CHUNK_BYTES, 1024)
                                 : wgmma_descriptor(a + k * 32, swizzle_mode_of(128), 16, 1024);
        uint64_t db = B_MN_MAJOR ? wgmma_descriptor(b + k * 2048, swizzle_mode_of(128), CHUNK_BYTES, 1024)
                                 : wgmma_descriptor(b + k * 32, swizzle_mode_of(128), 16, 1024);
        wgmma_ss<T, S::WN, A_MN_MAJOR, B_MN_MAJOR>::run(d, da, db, scale_d || k);
    }
    wgmma_commit_group();
}

template <typename T, typename S, route R>
__device__ __forceinline__ void epilogue(const params &x, const tensor_maps &m, const tile &t, float (&d)[S::WN / 2],
                                         uint32_t staging, int wg);

/* Main loop of a warpgroup. The wgmma of a stage runs while the next stage is waited for. So a stage is released one
 * step late, after the next one's wgmma has been issued; or at once where the next stage is not there yet. */
template <typename T, typename S, route R>
__device__ __forceinline__ void consumer(const params &x, const tensor_maps &m, ring_shared *s, uint32_t smem) {
    int wg = threadIdx.x / 128, lane = threadIdx.x % 32;
    pipeline_state<S> pipe = {.phase = 0};
    sat_tile_queue<tile> queue = {.phase = 0};
    int mma_stage = -1;              // the stage of the last wgmma, which this warp has not released yet; -1: none
    auto release = [&](int &stage) { // and forget it
        if (stage >= 0 && lane == 0) mbarrier_arrive(smem_address(&s->empty[stage]));
        stage = -1;
    };
    tile t = queue.receive(s);
    while (t.steps >= 0) {
        int scale_d = 0; // the first wgmma of a tile ignores what is in d
        float d[S::WN / 2];
        if (t.steps == 0)
#pragma unroll
            for (int e = 0; e < S::WN / 2; e++) d[e] = 0;
        for (int step = 0; step < t.steps; step++) {
            uint32_t bar = smem_address(&s->full[pipe.stage]);
            if (mma_stage >= 0 && !mbarrier_test_wait(bar, pipe.phase)) {
                wgmma_wait_group<0>(); // the producer is behind: give it the stage now
                release(mma_stage);
            }
            mbarrier_wait(bar, pipe.phase);
            if (R == GRADIENT && step == t.steps - 1 && t.valid < S::BK)
                clear_other_rows<S>(smem + pipe.a(), smem + pipe.b(), t.valid);
            multiply_stage<T, S, R>(d, smem + pipe.a(), smem + pipe.b(), wg, scale_d);
            scale_d = 1;
            wgmma_wait_group<1>();
            release(mma_stage);
            mma_stage = pipe.stage;
            pipe.advance();
        }
        queue.advance();
        tile next = queue.receive(s);
        wgmma_wait_group<0>();
        release(mma_stage);
        epilogue<T, S, R>(x, m, t, d, smem + S::STAGING_OFFSET + wg * SAT_STAGING, wg);
        t = next;
    }
    tma_store_wait_all();
}

/* ---- epilogue ---- */

/* A warpgroup's sums to C: 64 rows by WN columns. TMA stores rows that are all the product's, and those behind C's last
 * row, which it leaves out. Where the next rows are another group's, each warp stages its own 16 rows and stores those
 * that are the product's. */
template <typename T, typename S, route R>
__device__ __forceinline__ void epilogue(const params &x, const tensor_maps &m, const tile &t, float (&d)[S::WN / 2],
                                         uint32_t staging, int wg) {
    typedef typename T::element E;
    int row = t.row + (S::BM == 128 ? wg * 64 : 0), column = t.column + (S::BM == 128 ? 0 : wg * S::WN);
    if (row >= t.row_end || column >= x.n) return;
    sat_tile_epilogue to = grouped_epilogue_at(x.epilogue, t.group, t.row_end);
    grouped_apply(x.epilogue, reinterpret_cast<float(&)[1][S::WN / 8][4]>(d), t.group, column);
    if (x.tma_output && (R == GRADIENT || row + 64 <= t.row_end)) {
        sat_warpgroup_apply_alpha_bias_relu(to.out, d, row);
        sat_warpgroup_tma_store<E, S::WN, R == GRADIENT ? 3 : 2>(&m.c, d, staging, row, column, x.n, false, wg,
                                                                 t.group);
        return;
    }
    // The warps' parts of the staging area are others in TMA stores, before and after.
    if (x.tma_output) tma_store_wait_read<0>(), named_barrier_sync(1 + wg, 128);
    sat_warpgroup_store<E, S::WN>(to, d, staging, row, column, t.row_end - row, wg);
    if (x.tma_output) named_barrier_sync(1 + wg, 128);
}

/* ---- kernel ---- */

template <typename T, typename S, route R>
static __global__ void __launch_bounds__(S::THREADS, 1)
    grouped_wgmma(const __grid_constant__ params x, const __grid_constant__ tensor_maps m) {
    extern __shared__ __align__(1024) char memory[];
    ring_shared *s = (ring_shared *)(memory + S::RING_OFFSET);
    griddepcontrol_launch_dependents();
    if (threadIdx.x < 32) sat_ring_init<S::STAGES>(s, S::WARPGROUPS * 4);
    if (threadIdx.x == S::CONSUMERS) prefetch_tensormap(&m.a), prefetch_tensormap(&m.b);
    if (threadIdx.x == 0 && x.tma_output) prefetch_tensormap(&m.c);
    __syncthreads();
    griddepcontrol_wait();
    if (threadIdx.x >= S::CONSUMERS) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x / 32 == S::CONSUMERS / 32) producer<S, R>(x, m, s, keep_in_register(smem_address(memory)));
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        consumer<T, S, R>(x, m, s, smem_address(memory));
    }
    sat_tile_counter_end(x.counter, ~0u);
}

/* ---- host: instances ---- */

typedef sat_status (*start_fn)(const sat_launch *l, unsigned grid, const params &x, const tensor_maps &m);

struct instance {
    sat_dtype dtype;
    int bm, bn;
    double peak;       // of the device's rate, with full tiles
    start_fn start[3]; // by route
};

template <typename T, typename S, route R>
static sat_status start(const sat_launch *l, unsigned grid, const params &x, const tensor_maps &m) {
    return sat_start<grouped_wgmma<T, S, R>>(l, grid, S::THREADS, S::BYTES, x, m);
}

template <typename T, int BM, int BN, int STAGES> static constexpr instance instance_of(double peak) {
    typedef shape<BM, BN, STAGES> S;
    return {T::dtype, BM, BN, peak, {start<T, S, W_ROWS>, start<T, S, W_COLUMNS>, start<T, S, GRADIENT>}};
}

// BM, BN; stages
static const instance instances[] = {
    instance_of<sat_f16, 128, 256, 4>(0.9),  instance_of<sat_bf16, 128, 256, 4>(0.9),
    instance_of<sat_f16, 128, 128, 6>(0.75), instance_of<sat_bf16, 128, 128, 6>(0.75),
    instance_of<sat_f16, 64, 256, 4>(0.7),   instance_of<sat_bf16, 64, 256, 4>(0.7),
    instance_of<sat_f16, 64, 128, 7>(0.5),   instance_of<sat_bf16, 64, 128, 7>(0.5),
};

static const instance *find(const sat_variant *v) {
    for (const instance &i : instances)
        if (i.dtype == v->instance.dtype && i.bm == v->instance.tile_m && i.bn == v->instance.tile_n) return &i;
    return NULL;
}

static route route_of(const sat_problem *p) {
    if (p->op == SAT_GROUPED_WEIGHTS) return GRADIENT;
    return p->b.col_stride == 1 ? W_ROWS : W_COLUMNS;
}

/* ---- host: what the tuner asks ---- */

/* X or Z by a tensor map: row-major, its rows 16-byte aligned. */
static bool rows_fit(const sat_problem *p, const sat_layout &l, int64_t cols, uint32_t align) {
    return l.col_stride == 1 && tensormap_fits(p, l, p->m, cols, align, 2);
}

/* All W in one tensor map; a batch stride of one W alone leads nowhere. */
static bool w_fits(const sat_problem *p) {
    bool many = p->grouped.groups > 1 && p->b.batch_stride != 0;
    if (!tensormap_fits(p, p->b, p->k, p->n, p->b_align, 2)) return false;
    return !many || (p->b.batch_stride % 8 == 0 && p->b.batch_stride < (1ll << 38));
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const instance *k = find(v);
    (void)a;
    if (!k || d->capability != 90 || p->a_dtype != k->dtype || !grouped_fits(p, k->bm, k->bn)) return false;
    if (p->m == 0 || p->n == 0 || p->k == 0 || p->grouped.groups == 0) return false; // no map is of nothing
    if (!rows_fit(p, p->a, p->k, p->a_align)) return false;
    return p->op == SAT_GROUPED_WEIGHTS ? rows_fit(p, p->b, p->n, p->b_align) : w_fits(p);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const instance *k = find(v);
    (void)a;
    return grouped_seconds(p, d, k->bm, k->bn, k->peak * d->flop_rate[k->dtype]);
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)p, (void)a, (void)d;
    return SAT_COUNTER_BYTES;
}

static sat_status make_state(const sat_prepare *q, void *out) {
    return sat_tile_counter_init(q, SAT_COUNTER_BYTES, &((state *)out)->counter);
}

static sat_status prepare(const sat_prepare *q, void **out) {
    return tensormap_prepare(q, sizeof(state), make_state, out);
}

/* ---- host: launch ---- */

/* An operand by chunks: `rows` lines of `columns`. Its box is one chunk, or, if `whole`, `chunks` of them. */
static sat_tensor_box chunk_box(sat_dtype t, const void *base, int64_t columns, int64_t rows, int64_t stride,
                                int chunks, bool whole) {
    cuuint64_t n = (cuuint64_t)columns, depth = (cuuint64_t)rows, line = (cuuint64_t)stride * 2;
    sat_tensor_box one = {t, base, 2, {n, depth}, {line}, {64, 64}, 128};
    sat_tensor_box all = {t, base, 3, {64, depth, n / 64}, {line, 128}, {64, 64, (cuuint32_t)chunks}, 128};
    return whole ? all : one;
}

/* A box of X by rows, or of W by columns, has 64 elements of each line. Of W the last coordinate is the group. */
static bool make_maps(const sat_launch *l, const instance *k, route r, const params &x, tensor_maps *m) {
    const sat_problem *p = l->problem;
    cuuint64_t rows = (cuuint64_t)p->m, n = (cuuint64_t)p->n, depth = (cuuint64_t)p->k;
    cuuint64_t x_line = (cuuint64_t)p->a.row_stride * 2, w_line = (cuuint64_t)p->b.col_stride * 2;
    sat_tensor_box a = {p->a_dtype, l->operands[0], 2, {depth, rows}, {x_line}, {64, (cuuint32_t)k->bm}, 128};
    sat_tensor_box b = {p->b_dtype, l->operands[1], 2, {depth, n}, {w_line}, {64, (cuuint32_t)k->bn}, 128};
    int64_t b_rows = r == GRADIENT ? p->m : p->k;
    if (r == GRADIENT) a = chunk_box(p->a_dtype, a.base, p->k, p->m, p->a.row_stride, k->bm / 64, x.a_whole);
    if (r != W_COLUMNS) b = chunk_box(p->b_dtype, b.base, p->n, b_rows, p->b.row_stride, k->bn / 64, x.b_whole);
    if (r != GRADIENT) {
        b.size[b.rank] = x.one_w ? 1 : (cuuint64_t)p->grouped.groups, b.box[b.rank] = 1;
        b.stride[b.rank - 1] = x.one_w ? b.stride[0] : (cuuint64_t)p->b.batch_stride * 2; // of one nothing is skipped
        b.rank++;
    }
    return tensormap_encode(&m->a, a) && tensormap_encode(&m->b, b);
}

/* The tensor map of C; false where there cannot be one. */
static bool make_output_map(const sat_launch *l, const params &x, tensor_maps *m) {
    const sat_problem *p = l->problem;
    bool gradient = p->op == SAT_GROUPED_WEIGHTS;
    const sat_tile_epilogue &to = x.epilogue.to;
    int64_t rows = gradient ? p->k : p->m, line = p->c.row_stride * 2, item = p->c.batch_stride * 2;
    if (p->grouped.groups < 2) item = line; // of one matrix nothing is skipped
    if (to.path != SAT_STORE_PACKED16 || to.column_major) return false;
    if (!tensormap_fits(p, p->c, rows, p->n, p->c_align, 2) || (gradient && (item <= 0 || item >= 1ll << 39)))
        return false;
    sat_tensor_box c = {p->c_dtype,         l->operands[2], 2,  {(cuuint64_t)p->n, (cuuint64_t)rows},
                        {(cuuint64_t)line}, {64, 16},       128};
    if (gradient) c.rank = 3, c.size[2] = (cuuint64_t)p->grouped.groups, c.stride[1] = (cuuint64_t)item, c.box[2] = 1;
    return tensormap_encode(&m->c, c);
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const instance *k = find(l->variant);
    state *st = (state *)l->state;
    route r = route_of(p);
    params x = {};
    x.order = grouped_order_of(p, l->operands[3], k->bm, k->bn), x.epilogue = grouped_epilogue_of(l, true);
    x.counter = st->counter, x.n = (int)p->n, x.steps = (int)((p->k + 63) / 64);
    x.one_w = p->grouped.groups < 2 || p->b.batch_stride == 0;
    x.a_whole = p->k % 64 == 0, x.b_whole = p->n % 64 == 0;
    if (!tensormaps_reuse(st->made_for, 3, l->operands)) {
        if (!make_maps(l, k, r, x, &st->maps)) return tensormaps_failed(l, st->made_for);
        st->tma_output = make_output_map(l, x, &st->maps);
    }
    x.tma_output = st->tma_output;
    unsigned grid = (unsigned)fmin(grouped_most_tiles(p, k->bm, k->bn), l->device->multiprocessors);
    return k->start[r](l, grid, x, st->maps);
}

SAT_FAMILY(cuda_grouped_wgmma) = {
    .revision = "1",
    .op = SAT_GROUPED,
    .backend = SAT_CUDA,
    .flags = 0,
    .about = "TMA and wgmma on Hopper; f16, bf16; X row-major, lines of X and W multiples of 16 bytes",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_state,
};

SAT_FAMILY(cuda_grouped_weights_wgmma) = {
    .revision = "1",
    .op = SAT_GROUPED_WEIGHTS,
    .backend = SAT_CUDA,
    .flags = 0,
    .about = "TMA and wgmma on Hopper; f16, bf16; X and Z row-major, their rows multiples of 16 bytes",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_state,
};
