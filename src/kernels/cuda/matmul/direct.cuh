/* The walk of cuda_matmul_direct: tensor cores of f64 on blocks of 8x8 and 4x4, fragments straight from memory. A warp
 * has a block row times 16 or 32 columns. Which of a product's 4 depths and 8 columns is which in the matrix is ours to
 * choose, and chosen so that every load brings 16 bytes a lane in whole lines:
 * - a lane (g, q), g = lane/4 and q = lane%4, has columns 2*direct_place(g) and the next of each 16, in two tiles;
 * - its sums then are columns 2q, 2q+1 and 8+2q, 8+2q+1 of row g;
 * - of an 8x8 block it has depths 2q and 2q+1, which are neighbours in a row of the block;
 * - 4x4 blocks come in pairs: rows 0-3 of a fragment of A are one's, rows 4-7 the other's. Each one's rows of B are
 *   multiplied with both and added to sums of their own, of which half is thrown away: no zero meets an infinity. */
#ifndef SAT_DIRECT_CUH
#define SAT_DIRECT_CUH

#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/simt_epilogue.cuh"

enum { DIRECT_WARPS = 4, DIRECT_COLUMNS = 32 }; /* of a CTA */

struct direct_job {
    sat_rows r;
    sat_epilogue out;
    sat_device_schedule w;
    vector_access ways;
    const double *values, *b;
    int64_t b_row, b_block; /* from a row of B to the next, from a block column's first to the next one's */
    int32_t whole;          /* block columns before this one lie inside the matrix */
};

__device__ __forceinline__ int direct_place(int g) { return g / 2 + g % 2 * 4; }

/* S: side of a block. W: a warp's columns / 16. TURNED: op(A) is transposed. */
template <int SIDE, int WIDTH, bool TRANSPOSED> struct direct_kind {
    static constexpr int S = SIDE, W = WIDTH;
    static constexpr bool TURNED = TRANSPOSED;
    static constexpr int BLOCKS = 8 / S; /* of a step */
    static constexpr int STEPS = 2 / W;  /* fetched together: 64 bytes of B a lane */
    static constexpr int SETS = BLOCKS;  /* of sums */
    static constexpr int ACROSS = 2 / W; /* warps of a CTA along the columns */
};

/* Operands of 8 depths: of one block of 8x8 or of two of 4x4; the two products are e = 0 and 1. */
template <typename X> struct direct_step {
    double a[X::S == 8 ? 2 : 1];
    double2 b[2][X::W];
};

/* Up to 32 blocks of a row, a lane each. */
struct direct_blocks {
    int32_t column;
    int64_t number;
    int count;
};

template <typename X> struct direct_lane {
    const direct_job &x;
    const double *values, *dense; /* what this lane has of block 0 and of B's first rows */
    int g, q;
    int left; /* columns from this lane's first on that exist */

    __device__ __forceinline__ direct_lane(const direct_job &job, int lane, int64_t j) : x(job) {
        g = lane / 4, q = lane % 4;
        const int row = X::S == 8 ? g : g % 4, depth = X::S == 8 ? 2 * q : q;
        values = x.values + (X::TURNED ? depth * X::S + row : row * X::S + depth);
        dense = x.b + depth * x.b_row + j + 2 * direct_place(g);
        left = (int)sat_min(16 * X::W, x.out.n - j) - 2 * direct_place(g);
    }

    __device__ __forceinline__ int64_t number(const direct_blocks &all, int t) const {
        return X::TURNED ? __shfl_sync(~0u, all.number, t) : all.number + t;
    }

    /* Values are read once: they should not drive B out of L2. */
    __device__ __forceinline__ void fetch_a(direct_step<X> &to, int64_t block) const {
        const double *from = values + block * (X::S * X::S);
        if constexpr (X::S == 4) to.a[0] = __ldcs(from);
        else if constexpr (X::TURNED) to.a[0] = __ldcs(from), to.a[1] = __ldcs(from + X::S);
        else {
            double2 y = __ldcs((const double2 *)from);
            to.a[0] = y.x, to.a[1] = y.y;
        }
    }

    __device__ __forceinline__ void fetch_b(double2 (&to)[X::W], const double *from) const {
#pragma unroll
        for (int h = 0; h < X::W; h++) to[h] = *(const double2 *)(from + 16 * h);
    }

    /* Where the matrix may end inside: beyond its depth and its columns there are zeros. */
    __device__ __forceinline__ void edge_a(direct_step<X> &to, int64_t block, int deep) const {
        const double *from = values + block * (X::S * X::S);
        if constexpr (X::S == 4) to.a[0] = q < deep ? *from : 0;
        else
#pragma unroll
            for (int e = 0; e < 2; e++) to.a[e] = 2 * q + e < deep ? from[e * (X::TURNED ? X::S : 1)] : 0;
    }

    __device__ __forceinline__ void edge_b(double2 (&to)[X::W], const double *from, bool real) const {
#pragma unroll
        for (int h = 0; h < X::W; h++) {
            to[h].x = real && 16 * h < left ? from[16 * h] : 0;
            to[h].y = real && 16 * h + 1 < left ? from[16 * h + 1] : 0;
        }
    }

    template <bool EDGE>
    __device__ __forceinline__ void fetch(direct_step<X> &to, const direct_blocks &all, int t) const {
        if constexpr (X::S == 8) {
            const int32_t column = __shfl_sync(~0u, all.column, t);
            const int64_t block = number(all, t);
            const double *from = dense + column * x.b_block;
            if constexpr (EDGE) {
                const int deep = (int)sat_min(8, x.r.k - (int64_t)column * 8);
                edge_a(to, block, deep);
                edge_b(to.b[0], from, 2 * q < deep), edge_b(to.b[1], from + x.b_row, 2 * q + 1 < deep);
            } else {
                fetch_b(to.b[0], from), fetch_b(to.b[1], from + x.b_row);
                fetch_a(to, block);
            }
        } else {
            const bool two = t + 1 < all.count; /* else the second is nought */
            const int other = two ? t + 1 : t;
            const int32_t column[2] = {__shfl_sync(~0u, all.column, t), __shfl_sync(~0u, all.column, other)};
            const int64_t block = number(all, g < 4 ? t : other);
            const bool mine = two || g < 4;
            if constexpr (EDGE) {
                const int64_t deep[2] = {x.r.k - (int64_t)column[0] * 4, two ? x.r.k - (int64_t)column[1] * 4 : 0};
                edge_a(to, block, (int)sat_min(4, g < 4 ? deep[0] : deep[1]));
#pragma unroll
                for (int e = 0; e < 2; e++) edge_b(to.b[e], dense + column[e] * x.b_block, q < deep[e]);
            } else {
                fetch_b(to.b[0], dense + column[0] * x.b_block);
                if (two) fetch_b(to.b[1], dense + column[1] * x.b_block);
                else
#pragma unroll
                    for (int h = 0; h < X::W; h++) to.b[1][h] = double2{};
                to.a[0] = 0;
                if (mine) fetch_a(to, block);
            }
        }
    }
};

template <typename X> struct direct_sums {
    double x[X::SETS][2 * X::W][2]; /* [][tile][] as the machine has them */

    __device__ __forceinline__ void add(const direct_step<X> &s) {
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
            for (int h = 0; h < X::W; h++) {
                sat_f64_math::multiply(x[e % X::SETS][2 * h], s.a[X::S == 8 ? e : 0], s.b[e][h].x);
                sat_f64_math::multiply(x[e % X::SETS][2 * h + 1], s.a[X::S == 8 ? e : 0], s.b[e][h].y);
            }
    }

    /* Columns 8p + 2q and the next of row g. */
    __device__ __forceinline__ double2 pair(int set, int p) const {
        return double2{x[set][p / 2 * 2][p % 2], x[set][p / 2 * 2 + 1][p % 2]};
    }
};

template <typename X, bool EDGE>
__device__ __forceinline__ void direct_walk(direct_sums<X> &sums, const direct_lane<X> &lane,
                                            const direct_blocks &all) {
    constexpr int steps = EDGE ? 1 : X::STEPS;
#pragma unroll 1
    for (int t = 0; t < all.count; t += X::BLOCKS * steps) {
        direct_step<X> step[steps] = {};
#pragma unroll
        for (int i = 0; i < steps; i++)
            if (i == 0 || t + i * X::BLOCKS < all.count) lane.template fetch<EDGE>(step[i], all, t + i * X::BLOCKS);
#pragma unroll
        for (int i = 0; i < steps; i++) sums.add(step[i]);
    }
}

template <typename X>
__device__ __forceinline__ void direct_write(const direct_sums<X> &sums, const simt_epilogue<double> &s, int lane,
                                             int64_t j) {
    const int g = lane / 4, q = lane % 4, row = X::S == 8 ? g : g % 4;
    constexpr int pairs = X::S == 8 ? 2 * X::W : X::W; /* that a lane writes */
    const int first = X::S == 8 || g < 4 ? 0 : X::W;
#pragma unroll
    for (int p = 0; p < pairs; p++) {
        double y[2];
        if constexpr (X::S == 8) {
            double2 own = sums.pair(0, p);
            y[0] = own.x, y[1] = own.y;
        } else { /* lanes of both halves have half of a row's columns each */
            double2 low = g < 4 ? sums.pair(0, p) : sums.pair(1, p);
            double2 high = g < 4 ? sums.pair(0, p + X::W) : sums.pair(1, p + X::W);
            double2 give = g < 4 ? high : low, keep = g < 4 ? low : high;
            y[0] = keep.x + __shfl_xor_sync(~0u, give.x, 16), y[1] = keep.y + __shfl_xor_sync(~0u, give.y, 16);
        }
        simt_store_row<double, 2>(s, row, j + 8 * (first + p) + 2 * q, y, false);
    }
    if (s.activation == SAT_ACT_NONE) return;
#pragma unroll 1
    for (int e = 0; e < 2 * pairs; e++) simt_activate(s, row, j + 8 * (first + e / 2) + 2 * q + e % 2);
}

/* The piece and the columns of a warp. */
template <typename X> struct direct_task {
    int64_t i, j;
    __device__ __forceinline__ direct_task(int thread) {
        constexpr int rows = DIRECT_WARPS / X::ACROSS;
        i = (int64_t)blockIdx.x * rows + thread / 32 / X::ACROSS;
        j = (int64_t)blockIdx.y * DIRECT_COLUMNS + thread / 32 % X::ACROSS * 16;
    }
};

/* 32 blocks at a time, and all but their number is found again for each of them: the registers are for operands. */
template <typename X>
__device__ __forceinline__ void direct_row(direct_sums<X> &sums, const direct_job &x, int64_t first, int32_t count) {
#pragma unroll 1
    for (; count > 0; first += 32, count -= 32) {
        const int thread = reread_thread_index(), lane = thread % 32;
        const int64_t j = direct_task<X>(thread).j;
        direct_blocks all = {0, first, count < 32 ? count : 32};
        if (lane < count) all.column = x.r.col[first + lane];
        if constexpr (X::TURNED) all.number = lane < count ? sat_block_of(&x.r, first + lane) : 0;
        const direct_lane<X> mine(x, lane, j);
        if (j + 16 * X::W <= x.out.n && __all_sync(~0u, all.column < x.whole)) direct_walk<X, false>(sums, mine, all);
        else direct_walk<X, true>(sums, mine, all);
    }
}

/* Rows fastest, so that what runs together shares a panel of B in L2. */
template <typename X, int CTAS>
static __global__ void __launch_bounds__(32 * DIRECT_WARPS, CTAS) direct_rows(const __grid_constant__ direct_job x) {
    direct_sums<X> sums = {};
    {
        const direct_task<X> task(threadIdx.x);
        if (task.i >= x.w.pieces || task.j >= x.out.n) return;
        const sat_work_item piece = sat_work_item_at(x.r, x.w.piece, task.i);
        direct_row<X>(sums, x, piece.first, piece.count);
    }
    const int thread = reread_thread_index();
    const direct_task<X> task(thread);
    sat_work_item piece = {0, (int32_t)task.i, 0, -1, 0};
    if (x.w.piece) piece = x.w.piece[task.i];
    direct_write<X>(sums, simt_epilogue_of<double>(x.out, x.r, x.w, piece, x.ways), thread % 32, task.j);
}

#endif
