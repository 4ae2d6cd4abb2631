// cuda_matmul_direct: f64 blocks of 8x8 and 4x4 on tensor cores, without shared memory. It uses few registers, so that
// many warps have loads in flight. Bound by reading, for each stored block, its rows of B from L2. An instance is
// tile_m, the side of a block, and tile_n, a warp's columns. Option 1: heavy rows are split.
//
// A warp has a work item, a block row or a split-K slice of one, times 16 or 32 columns. It loads the fragments of
// mma.m8n8k4 straight from memory. Which k and which column of the matrix is at which place of a fragment is free to
// choose; it is chosen such that every load has 16 bytes a lane, in whole lines of memory:
// - lane (g, q), with g = lane/4 and q = lane%4, has columns 2*column_pair(g) and the next of each 16, in two tiles;
// - its accumulators then are columns 2q, 2q+1 and 8+2q, 8+2q+1 of row g;
// - of an 8x8 block it has k 2q and 2q+1, which are neighbours in a row of the block;
// - 4x4 blocks come in pairs: rows 0-3 of a fragment of A are of the first block, rows 4-7 of the second. The rows of B
//   of each block are multiplied with both, into accumulators of their own, and half of the results is ignored. So no
//   zero of a padded block is multiplied by an infinity.

#include "kernels/cuda/common/ptx_sm80.cuh"
#include "kernels/cuda/common/simt_epilogue.cuh"
#include "kernels/cuda/common/simt_rates.h"

enum { WARPS = 4, COLUMNS = 32 }; // of a CTA

struct kernel_args {
    sat_rows r;
    sat_epilogue out;
    sat_device_schedule work;
    vector_access c_access;
    const double *values, *b;
    int64_t b_row_stride, b_block_stride; // between rows of B, and between the first rows of block columns
    int32_t inside_columns;               // block columns before this one are inside the matrix
};

__device__ __forceinline__ int column_pair(int g) { return g / 2 + g % 2 * 4; }

template <int SIDE_, int WIDTH_, bool TRANSPOSED_> struct shape {
    static constexpr int SIDE = SIDE_, WIDTH = WIDTH_; // of a block; a warp's columns / 16
    static constexpr bool TRANSPOSED = TRANSPOSED_;    // op(A) = A^T
    static constexpr int BLOCKS = 8 / SIDE;            // of a step, which is 8 k
    static constexpr int STEPS = 2 / WIDTH;            // loaded together: 64 bytes of B a lane
    static constexpr int SETS = BLOCKS;                // of accumulators
    static constexpr int ACROSS = 2 / WIDTH;           // warps of a CTA along the columns
};

// ---- loads

// A lane's operands of a step, 8 k: of one 8x8 block or of two 4x4 blocks. The two products of a step are e = 0 and 1.
template <typename S> struct operands {
    double a[S::SIDE == 8 ? 2 : 1];
    double2 b[2][S::WIDTH];
};

// Up to 32 blocks of a row, one a lane.
struct cached_blocks {
    int32_t column;
    int64_t number; // position in the values; if not transposed, of the first block
    int count;
};

template <typename S> struct loader {
    const kernel_args &args;
    const double *values, *dense; // this lane's first element in block 0 and in B's first rows
    int g, q;
    int left; // columns from this lane's first on that exist

    __device__ __forceinline__ loader(const kernel_args &kernel, int lane, int64_t j) : args(kernel) {
        g = lane / 4, q = lane % 4;
        const int row = S::SIDE == 8 ? g : g % 4, k = S::SIDE == 8 ? 2 * q : q;
        values = args.values + (S::TRANSPOSED ? k * S::SIDE + row : row * S::SIDE + k);
        dense = args.b + k * args.b_row_stride + j + 2 * column_pair(g);
        left = (int)sat_min(16 * S::WIDTH, args.out.n - j) - 2 * column_pair(g);
    }

    __device__ __forceinline__ int64_t number(const cached_blocks &all, int t) const {
        return S::TRANSPOSED ? __shfl_sync(~0u, all.number, t) : all.number + t;
    }

    // Values are read once: they are not to evict B from L2.
    __device__ __forceinline__ void load_a(operands<S> &to, int64_t block) const {
        const double *from = values + block * (S::SIDE * S::SIDE);
        if constexpr (S::SIDE == 4) to.a[0] = __ldcs(from);
        else if constexpr (S::TRANSPOSED) to.a[0] = __ldcs(from), to.a[1] = __ldcs(from + S::SIDE);
        else {
            double2 y = __ldcs((const double2 *)from);
            to.a[0] = y.x, to.a[1] = y.y;
        }
    }

    __device__ __forceinline__ void load_b(double2 (&to)[S::WIDTH], const double *from) const {
#pragma unroll
        for (int h = 0; h < S::WIDTH; h++) to[h] = *(const double2 *)(from + 16 * h);
    }

    // Where the matrix may end inside: zero past its depth and its columns.
    __device__ __forceinline__ void load_a_edge(operands<S> &to, int64_t block, int deep) const {
        const double *from = values + block * (S::SIDE * S::SIDE);
        if constexpr (S::SIDE == 4) to.a[0] = q < deep ? *from : 0;
        else
#pragma unroll
            for (int e = 0; e < 2; e++) to.a[e] = 2 * q + e < deep ? from[e * (S::TRANSPOSED ? S::SIDE : 1)] : 0;
    }

    __device__ __forceinline__ void load_b_edge(double2 (&to)[S::WIDTH], const double *from, bool real) const {
#pragma unroll
        for (int h = 0; h < S::WIDTH; h++) {
            to[h].x = real && 16 * h < left ? from[16 * h] : 0;
            to[h].y = real && 16 * h + 1 < left ? from[16 * h + 1] : 0;
        }
    }

    template <bool EDGE> __device__ __forceinline__ void load(operands<S> &to, const cached_blocks &all, int t) const {
        if constexpr (S::SIDE == 8) {
            const int32_t column = __shfl_sync(~0u, all.column, t);
            const int64_t block = number(all, t);
            const double *from = dense + column * args.b_block_stride;
            if constexpr (EDGE) {
                const int deep = (int)sat_min(8, args.r.k - (int64_t)column * 8);
                load_a_edge(to, block, deep);
                load_b_edge(to.b[0], from, 2 * q < deep),
                    load_b_edge(to.b[1], from + args.b_row_stride, 2 * q + 1 < deep);
            } else {
                load_b(to.b[0], from), load_b(to.b[1], from + args.b_row_stride);
                load_a(to, block);
            }
        } else {
            const bool two = t + 1 < all.count; // else the second block is zero
            const int other = two ? t + 1 : t;
            const int32_t column[2] = {__shfl_sync(~0u, all.column, t), __shfl_sync(~0u, all.column, other)};
            const int64_t block = number(all, g < 4 ? t : other);
            const bool mine = two || g < 4;
            if constexpr (EDGE) {
                const int64_t deep[2] = {args.r.k - (int64_t)column[0] * 4,
                                         two ? args.r.k - (int64_t)column[1] * 4 : 0};
                load_a_edge(to, block, (int)sat_min(4, g < 4 ? deep[0] : deep[1]));
#pragma unroll
                for (int e = 0; e < 2; e++) load_b_edge(to.b[e], dense + column[e] * args.b_block_stride, q < deep[e]);
            } else {
                load_b(to.b[0], dense + column[0] * args.b_block_stride);
                if (two) load_b(to.b[1], dense + column[1] * args.b_block_stride);
                else
#pragma unroll
                    for (int h = 0; h < S::WIDTH; h++) to.b[1][h] = double2{};
                to.a[0] = 0;
                if (mine) load_a(to, block);
            }
        }
    }
};

// ---- products

template <typename S> struct accumulators {
    double x[S::SETS][2 * S::WIDTH][2]; // [set][tile], as mma.m8n8k4 has them

    __device__ __forceinline__ void add(const operands<S> &o) {
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
            for (int h = 0; h < S::WIDTH; h++) {
                sat_f64_math::multiply(x[e % S::SETS][2 * h], o.a[S::SIDE == 8 ? e : 0], o.b[e][h].x);
                sat_f64_math::multiply(x[e % S::SETS][2 * h + 1], o.a[S::SIDE == 8 ? e : 0], o.b[e][h].y);
            }
    }

    // Columns 8p + 2q and the next of row g.
    __device__ __forceinline__ double2 pair(int set, int p) const {
        return double2{x[set][p / 2 * 2][p % 2], x[set][p / 2 * 2 + 1][p % 2]};
    }
};

template <typename S, bool EDGE>
__device__ __forceinline__ void multiply_blocks(accumulators<S> &acc, const loader<S> &load, const cached_blocks &all) {
    constexpr int steps = EDGE ? 1 : S::STEPS;
#pragma unroll 1
    for (int t = 0; t < all.count; t += S::BLOCKS * steps) {
        operands<S> step[steps] = {};
#pragma unroll
        for (int i = 0; i < steps; i++)
            if (i == 0 || t + i * S::BLOCKS < all.count) load.template load<EDGE>(step[i], all, t + i * S::BLOCKS);
#pragma unroll
        for (int i = 0; i < steps; i++) acc.add(step[i]);
    }
}

// A warp's work item and first column.
template <typename S> struct warp_position {
    int64_t item, j;
    __device__ __forceinline__ warp_position(int thread) {
        constexpr int items = WARPS / S::ACROSS;
        item = (int64_t)blockIdx.x * items + thread / 32 / S::ACROSS;
        j = (int64_t)blockIdx.y * COLUMNS + thread / 32 % S::ACROSS * 16;
    }
};

// The main loop: 32 blocks at a time. All but their number is computed again each time: registers are for operands.
template <typename S>
__device__ __forceinline__ void main_loop(accumulators<S> &acc, const kernel_args &args, int64_t first, int32_t count) {
#pragma unroll 1
    for (; count > 0; first += 32, count -= 32) {
        const int thread = reread_thread_index(), lane = thread % 32;
        const int64_t j = warp_position<S>(thread).j;
        cached_blocks all = {0, first, count < 32 ? count : 32};
        if (lane < count) all.column = args.r.col[first + lane];
        if constexpr (S::TRANSPOSED) all.number = lane < count ? sat_block_of(&args.r, first + lane) : 0;
        const loader<S> load(args, lane, j);
        if (j + 16 * S::WIDTH <= args.out.n && __all_sync(~0u, all.column < args.inside_columns))
            multiply_blocks<S, false>(acc, load, all);
        else multiply_blocks<S, true>(acc, load, all);
    }
}

// ---- epilogue

template <typename S>
__device__ __forceinline__ void store(const accumulators<S> &acc, const simt_epilogue<double> &out, int lane,
                                      int64_t j) {
    const int g = lane / 4, q = lane % 4, row = S::SIDE == 8 ? g : g % 4;
    constexpr int pairs = S::SIDE == 8 ? 2 * S::WIDTH : S::WIDTH; // that a lane stores
    const int first = S::SIDE == 8 || g < 4 ? 0 : S::WIDTH;
#pragma unroll
    for (int p = 0; p < pairs; p++) {
        double y[2];
        if constexpr (S::SIDE == 8) {
            double2 own = acc.pair(0, p);
            y[0] = own.x, y[1] = own.y;
        } else { // a row's sums of both blocks are in two lanes, which store half of the columns each
            double2 low = g < 4 ? acc.pair(0, p) : acc.pair(1, p);
            double2 high = g < 4 ? acc.pair(0, p + S::WIDTH) : acc.pair(1, p + S::WIDTH);
            double2 give = g < 4 ? high : low, keep = g < 4 ? low : high;
            y[0] = keep.x + __shfl_xor_sync(~0u, give.x, 16), y[1] = keep.y + __shfl_xor_sync(~0u, give.y, 16);
        }
        simt_store_row<double, 2>(out, row, j + 8 * (first + p) + 2 * q, y, false);
    }
    if (out.activation == SAT_ACT_NONE) return;
#pragma unroll 1
    for (int e = 0; e < 2 * pairs; e++) simt_activate(out, row, j + 8 * (first + e / 2) + 2 * q + e % 2);
}

// ---- kernel: rows are the fastest index, so that CTAs that run at the same time read the same columns of B from L2

template <typename S, int CTAS>
static __global__ void __launch_bounds__(32 * WARPS, CTAS) multiply(const __grid_constant__ kernel_args args) {
    accumulators<S> acc = {};
    {
        const warp_position<S> warp(threadIdx.x);
        if (warp.item >= args.work.items || warp.j >= args.out.n) return;
        const sat_work_item item = sat_work_item_at(args.r, args.work.item, warp.item);
        main_loop<S>(acc, args, item.first, item.count);
    }
    const int thread = reread_thread_index();
    const warp_position<S> warp(thread);
    sat_work_item item = {0, (int32_t)warp.item, 0, -1, 0};
    if (args.work.item) item = args.work.item[warp.item];
    store<S>(acc, simt_epilogue_of<double>(args.out, args.r, args.work, item, args.c_access), thread % 32, warp.j);
}

// ---- host: instances

enum { SPLIT = 1, SPLIT_LEAST = 16, WARPS_AT_ONCE = 32 };

struct instance {
    int side, columns;
    void (*run[2])(kernel_args); // [op(A) = A^T]
};

template <int SIDE, int WIDTH, int CTAS> static constexpr instance instance_of() {
    return {SIDE, 16 * WIDTH, {multiply<shape<SIDE, WIDTH, false>, CTAS>, multiply<shape<SIDE, WIDTH, true>, CTAS>}};
}

static const instance instances[] = {
    instance_of<8, 2, 9>(), // 8x32
    instance_of<8, 1, 9>(), // 8x16
    instance_of<4, 2, 7>(), // 4x32
    instance_of<4, 1, 8>(), // 4x16
};

static const instance *find(const sat_instance *x) {
    for (const instance &k : instances)
        if (k.side == x->tile_m && k.columns == x->tile_n) return &k;
    return NULL;
}

// Every matrix of the batch is aligned to 16 bytes.
static bool in_vectors(const sat_problem *p, const sat_layout *x, uint32_t align) {
    return align >= 16 && (p->batch == 1 || x->batch_stride * 8 % 16 == 0);
}

static int64_t tiles(const sat_problem *p) { return (p->n + COLUMNS - 1) / COLUMNS; }

// With fewer than 8 columns, most of a product is unused: other families are faster.
static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)d;
    const int64_t most = 1 << 24;
    sat_rows r = sat_op_rows(p, a);
    if (p->a_dtype != SAT_F64 || p->c_dtype != SAT_F64 || r.br != v->instance.tile_m || r.bc != r.br) return false;
    if (p->n < 8 || p->b.col_stride != 1 || p->b.row_stride % 2 || !in_vectors(p, &p->b, p->b_align)) return false;
    if (r.br == 8 && r.col_step == 1 && !in_vectors(p, &p->a, p->a_align))
        return false; // the other kernels read elements
    return a->block_rows < most && a->block_cols < most && tiles(p) <= 65535 && r.count + a->stored_blocks < 1 << 30;
}

static int64_t share_of(const sat_problem *p, const sat_rows *r, const sat_device *d) {
    return sat_schedule_share(r, tiles(p), 4 * (int64_t)d->multiprocessors * WARPS_AT_ONCE, SPLIT_LEAST);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    double stored = (double)a->stored_blocks, columns = (double)(tiles(p) * COLUMNS), side = (double)r.bc;
    double l2 = 8 * stored * side * (columns + side * (double)tiles(p)) / (0.8 * d->l2_rate);
    double busy = 2 * stored * 8 * side * columns / d->flop_rate[SAT_F64];
    double seconds = sat_worst(l2, busy, sat_bytes(p, a) / (double)p->batch / d->memory_rate);
    if (v->instance.option & SPLIT) return (1.15 * seconds + 7e-6) * (double)p->batch;
    double alone = sat_heaviest(p, a) * side / 8 * 2 * SAT_SIMT_LATENCY;
    return (sat_worst(seconds, alone, 0) + 4e-6) * (double)p->batch;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    if (!(v->instance.option & SPLIT)) return 0;
    sat_rows r = sat_op_rows(p, a);
    return sat_schedule_workspace(&r, share_of(p, &r, d), p->n, sizeof(double));
}

static sat_status prepare(const sat_prepare *prepare, void **state) {
    if (!(prepare->variant->instance.option & SPLIT)) return SAT_OK;
    sat_rows r = sat_op_rows(prepare->problem, prepare->pattern);
    return sat_prepare_schedule(prepare, share_of(prepare->problem, &r, prepare->device), state);
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    if (p->m == 0 || p->n == 0) return SAT_OK;
    const instance *k = find(&l->variant->instance);
    kernel_args args = {sat_device_rows(p, l->pattern), sat_epilogue_of(l)};
    args.work = l->state ? *(const sat_device_schedule *)l->state : sat_whole_rows_schedule(&args.r);
    args.c_access = vector_access_of(p, args.r.br);
    args.values = (const double *)l->operands[0], args.b = (const double *)l->operands[1];
    args.b_row_stride = p->b.row_stride, args.b_block_stride = args.r.bc * args.b_row_stride;
    args.inside_columns = (int32_t)(args.r.k / args.r.bc);
    const int64_t items = WARPS * k->columns / COLUMNS; // of a CTA
    dim3 grid(sat_blocks(args.work.items, items), (unsigned)tiles(p));
    k->run[args.r.col_step != 1]<<<grid, 32 * WARPS, 0, (cudaStream_t)l->stream>>>(args);
    sat_status status = sat_launched(l);
    return status == SAT_OK ? sat_launch_split_reduction(l, args.r, args.out, args.work) : status;
}

SAT_FAMILY(cuda_matmul_direct) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .about = "f64 blocks of 8x8 and 4x4 on tensor cores, operands straight from memory, row-major B",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_state,
};
