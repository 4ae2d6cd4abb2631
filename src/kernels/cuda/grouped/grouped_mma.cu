// cuda_grouped_mma, cuda_grouped_weights_mma: products of groups on mma.sync, from sm_80 on. f16 and bf16.
//
// A CTA takes tiles of BM x BN from an atomic counter until there are none, and goes through the depth BK at a time, in
// a ring of STAGES stages that cp.async fills. What is outside the group is zero in shared memory: of the gradient in
// both operands, since zero times NaN is NaN. The tiles with 16 rows are for few rows a group: decoding.

#include "kernels/cuda/common/mma_fragments.cuh"
#include "kernels/cuda/common/warp_epilogue.cuh"
#include "kernels/cuda/grouped/grouped_tiles.h"

/* A product is C = A*B: of Y, A is rows of X and B is W[group]; of the gradient, A is rows of X transposed and B is
 * rows of Z. Lines are contiguous: of X rows, of W rows or columns, of Z rows. Strides are in elements. */
struct params {
    grouped_order order;
    grouped_epilogue epilogue;
    unsigned *counter;
    const void *a, *b;
    int64_t a_line, b_line, w_stride; /* from line to line, from one W to the next */
    int n, k;
};

/* ---- shared memory: STAGES stages, each A [BM x BK] and B [BN x BK]; the epilogue's squares are over the first ----
 */

template <typename MATH_, int BM_, int BN_, int WM_, int WN_, int STAGES_> struct shape {
    typedef mma_16bit<MATH_> math;
    typedef typename math::element element;
    static constexpr int BM = BM_, BN = BN_, BK = 64, WM = WM_, WN = WN_, STAGES = STAGES_;
    static constexpr int MT = WM / 16, NT = WN / 8, WARPS = BM / WM * (BN / WN), THREADS = WARPS * 32;
    static constexpr int A_BYTES = BM * BK * 2, STAGE = A_BYTES + BN * BK * 2, BYTES = STAGES * STAGE;
    static constexpr int CTAS = 3 * BYTES <= 200 * 1024 ? 3 : 2; // of a multiprocessor
    static_assert(A_BYTES % 1024 == 0 && STAGE % 1024 == 0, "operand tiles begin at multiples of 1024 bytes");
    static_assert(WARPS * sat_square_bytes<float>() <= BYTES, "the epilogue's squares fit");
};

/* ---- copies ---- */

/* A tile of MN x BK of an operand; K_MAJOR: lines run along the depth. `mn` and `k`: how many exist; beyond them it is
 * zero, and nothing is read. */
template <typename S, int MN, bool K_MAJOR>
__device__ __forceinline__ void copy_tile(uint32_t to, const typename S::element *from, int64_t line_stride, int mn,
                                          int k) {
    constexpr int LINE = (K_MAJOR ? S::BK : MN) / 8, VECTORS = MN * S::BK / 8;
    int lines = K_MAJOR ? mn : k, elements = K_MAJOR ? k : mn;
#pragma unroll
    for (int pass = 0; pass < (VECTORS + S::THREADS - 1) / S::THREADS; pass++) {
        int at = (int)threadIdx.x + pass * S::THREADS, line = at / LINE, vec16 = at % LINE;
        if (VECTORS % S::THREADS != 0 && at >= VECTORS) break;
        int valid = line < lines ? max(0, min(8, elements - vec16 * 8)) : 0;
        const typename S::element *source = valid > 0 ? from + line * line_stride + vec16 * 8 : from;
        cp_async_16(to + mma_vec16_offset<LINE, 0>(line, vec16), source, valid * 2);
    }
}

/* ---- kernel ---- */

/* WEIGHTS: the gradient. W_COLUMNS: of W columns are contiguous. */
template <typename S, bool WEIGHTS, bool W_COLUMNS>
static __global__ void __launch_bounds__(S::THREADS, S::CTAS) multiply(const __grid_constant__ params x) {
    typedef typename S::math math;
    typedef typename S::element element;
    constexpr bool A_K_MAJOR = !WEIGHTS, B_K_MAJOR = !WEIGHTS && W_COLUMNS;
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ grouped_tile next;
    __shared__ bool some;
    const uint32_t base = smem_address(memory);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = warp / (S::BN / S::WN) * S::WM, column = warp % (S::BN / S::WN) * S::WN;
    const uint32_t a_offset = math::template lane_offset_a<S::BM, S::BK, A_K_MAJOR>(lane, row);
    const uint32_t b_offset = S::A_BYTES + math::template lane_offset_b<S::BN, S::BK, B_K_MAJOR>(lane, column);
    griddepcontrol_launch_dependents();
    griddepcontrol_wait();
    grouped_search search;
    unsigned number = blockIdx.x;
    if (warp == 0) search.start(x.order);
    for (;;) {
        if (warp == 0) {
            grouped_tile t = {};
            bool is = search.find(x.order, number, &t);
            if (lane == 0) next = t, some = is, number = gridDim.x + atomicAdd(x.counter, 1u);
            number = __shfl_sync(~0u, number, 0);
        }
        __syncthreads();
        if (!some) break;
        const grouped_tile t = next;
        const int i0 = (WEIGHTS ? 0 : t.begin) + (int)t.row_tile * S::BM, i_end = WEIGHTS ? x.order.k : t.end;
        const int j0 = (int)t.panel * S::BN, depth = WEIGHTS ? t.end - t.begin : t.group < 0 ? 0 : x.k;
        const element *a = (const element *)x.a + (WEIGHTS ? t.begin * x.a_line + i0 : i0 * x.a_line);
        const element *b = (const element *)x.b + (WEIGHTS ? t.begin * x.b_line : max(0, t.group) * x.w_stride) +
                           (B_K_MAJOR ? j0 * x.b_line : j0);
        const int steps = (depth + S::BK - 1) / S::BK;
        auto load = [&](int step) {
            uint32_t to = base + step % S::STAGES * S::STAGE;
            int64_t k = (int64_t)step * S::BK;
            if (step < steps) {
                copy_tile<S, S::BM, A_K_MAJOR>(to, a + (A_K_MAJOR ? k : k * x.a_line), x.a_line, i_end - i0,
                                               depth - (int)k);
                copy_tile<S, S::BN, B_K_MAJOR>(to + S::A_BYTES, b + (B_K_MAJOR ? k : k * x.b_line), x.b_line, x.n - j0,
                                               depth - (int)k);
            }
            cp_async_commit_group();
        };
        float sum[S::MT][S::NT][4] = {};
#pragma unroll 1
        for (int step = 0; step < S::STAGES - 1; step++) load(step);
#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            cp_async_wait_group<S::STAGES - 2>();
            __syncthreads(); // this stage is complete, and all warps have read the one before
            load(step + S::STAGES - 1);
            uint32_t stage = base + step % S::STAGES * S::STAGE;
#pragma unroll
            for (int kk = 0; kk < S::BK / 16; kk++) {
                typename math::a u[S::MT];
                typename math::b v[S::NT];
                math::template load_a<S::BM, S::BK, A_K_MAJOR>(u, stage + a_offset, kk);
                math::template load_b<S::BN, S::BK, B_K_MAJOR>(v, stage + b_offset, kk);
#pragma unroll
                for (int i = 0; i < S::MT; i++)
#pragma unroll
                    for (int j = 0; j < S::NT; j++) math::multiply(sum[i][j], u[i], v[j]);
            }
        }
        cp_async_wait_group<0>();
        __syncthreads(); // all have read the last stage, and the tile's description
        grouped_apply(x.epilogue, sum, t.group, j0 + column);
        sat_warp_store<element>(grouped_epilogue_at(x.epilogue, t.group, i_end), sum, i0 + row, j0 + column, lane,
                                (float *)(memory + warp * sat_square_bytes<float>()));
        __syncthreads(); // copies may overwrite the squares
    }
    sat_tile_counter_end(x.counter, ~0u);
}

/* ---- host ---- */

typedef sat_status (*start_fn)(const sat_launch *l, unsigned grid, const params &x);

struct instance {
    sat_dtype dtype;
    int bm, bn, bytes, ctas;
    double peak;       /* of the device's rate, with full tiles */
    start_fn start[3]; /* W row-major, W column-major, the gradient */
};

template <typename S, bool WEIGHTS, bool W_COLUMNS>
static sat_status start(const sat_launch *l, unsigned grid, const params &x) {
    return sat_start<multiply<S, WEIGHTS, W_COLUMNS>>(l, grid, S::THREADS, S::BYTES, x);
}

template <typename S> static constexpr instance instance_of(double peak) {
    return {S::math::dtype,
            S::BM,
            S::BN,
            S::BYTES,
            S::CTAS,
            peak,
            {start<S, false, false>, start<S, false, true>, start<S, true, false>}};
}

// BM, BN; rows and columns of a warp; stages
static const instance instances[] = {
    instance_of<shape<sat_f16_math, 128, 128, 64, 32, 3>>(0.45),
    instance_of<shape<sat_bf16_math, 128, 128, 64, 32, 3>>(0.45),
    instance_of<shape<sat_f16_math, 64, 128, 32, 64, 4>>(0.4),
    instance_of<shape<sat_bf16_math, 64, 128, 32, 64, 4>>(0.4),
    instance_of<shape<sat_f16_math, 16, 128, 16, 32, 5>>(0.3),
    instance_of<shape<sat_bf16_math, 16, 128, 16, 32, 5>>(0.3),
    instance_of<shape<sat_f16_math, 16, 64, 16, 16, 6>>(0.25),
    instance_of<shape<sat_bf16_math, 16, 64, 16, 16, 6>>(0.25),
};

static const instance *find(const sat_variant *v) {
    for (const instance &i : instances)
        if (i.dtype == v->instance.dtype && i.bm == v->instance.tile_m && i.bn == v->instance.tile_n) return &i;
    return NULL;
}

/* Whether lines of an operand begin at multiples of 16 bytes; `count` lines, in `groups` matrices. */
static bool lines_fit(int64_t line_stride, int64_t count, int64_t group_stride, int64_t groups, uint32_t align) {
    return align % 16 == 0 && (count < 2 || line_stride % 8 == 0) && (groups < 2 || group_stride % 8 == 0);
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const instance *k = find(v);
    bool weights = p->op == SAT_GROUPED_WEIGHTS, columns = p->b.col_stride != 1;
    (void)a;
    if (!k || p->a_dtype != k->dtype || k->bytes + 1024 > d->shared_bytes || !grouped_fits(p, k->bm, k->bn))
        return false;
    if (p->a.col_stride != 1 || !lines_fit(p->a.row_stride, p->m, 0, 1, p->a_align)) return false;
    if (weights) return !columns && lines_fit(p->b.row_stride, p->m, 0, 1, p->b_align);
    if (columns && p->b.row_stride != 1) return false;
    return lines_fit(columns ? p->b.col_stride : p->b.row_stride, columns ? p->n : p->k, p->b.batch_stride,
                     p->grouped.groups, p->b_align);
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

static sat_status prepare(const sat_prepare *q, void **state) {
    *state = NULL;
    unsigned *counter;
    return sat_tile_counter_init(q, SAT_COUNTER_BYTES, &counter);
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const instance *k = find(l->variant);
    bool weights = p->op == SAT_GROUPED_WEIGHTS, columns = p->b.col_stride != 1;
    if (p->n == 0 || (weights ? p->k * p->grouped.groups : p->m) == 0) return SAT_OK;
    params x = {};
    x.order = grouped_order_of(p, l->operands[3], k->bm, k->bn), x.epilogue = grouped_epilogue_of(l, false);
    x.counter = (unsigned *)l->workspace, x.a = l->operands[0], x.b = l->operands[1], x.n = (int)p->n, x.k = (int)p->k;
    x.a_line = p->a.row_stride, x.b_line = !weights && columns ? p->b.col_stride : p->b.row_stride;
    x.w_stride = p->b.batch_stride;
    unsigned grid = (unsigned)fmin(grouped_most_tiles(p, k->bm, k->bn), (double)k->ctas * l->device->multiprocessors);
    return k->start[weights ? 2 : columns](l, grid, x);
}

SAT_FAMILY(cuda_grouped_mma) = {
    .revision = "1",
    .op = SAT_GROUPED,
    .backend = SAT_CUDA,
    .flags = 0,
    .about = "mma.sync; f16, bf16; X row-major, lines of X and W multiples of 16 bytes",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
};

SAT_FAMILY(cuda_grouped_weights_mma) = {
    .revision = "1",
    .op = SAT_GROUPED_WEIGHTS,
    .backend = SAT_CUDA,
    .flags = 0,
    .about = "mma.sync; f16, bf16; X and Z row-major, their rows multiples of 16 bytes",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
};
