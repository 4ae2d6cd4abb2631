/* The tile of cuda_matmul_simt. A CTA has BM x BN of C and walks its piece of a block row in steps of KT columns:
 * two stages in shared memory, [k][m] of A and [k][n] of B. While one is multiplied, B's next one comes by cp.async
 * and A's waits in registers, since it has to be turned on its way. A thread keeps TM x TN of C in registers, in
 * groups of 16 bytes, and fetches the operands of step k+1 from shared memory while it multiplies step k. */
#ifndef SAT_SIMT_CUH
#define SAT_SIMT_CUH

#include "kernels/cuda/common/long_sums.h"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/simt_epilogue.cuh"

enum simt_values {
    SIMT_ALONG_K, /* 16 bytes of a block's row at a time */
    SIMT_ALONG_M, /* 16 bytes of op(A)'s column: transposed */
    SIMT_SINGLE   /* element by element */
};

struct simt_job {
    sat_rows r;
    sat_epilogue out;
    sat_device_schedule w;
    vector_access ways;
    const void *values, *b;
    int64_t b_row, b_col;
    int row_tiles; /* of a block row */
    simt_values order;
    sat_row_part part;
};

/* WIDE: B's rows are read 16 bytes at a time; otherwise single elements, through any strides. PARTS: a launch takes a
 * part of every row (parts.cuh); a kernel of its own, since even a test at its end costs the other one some percent. */
template <typename ELEMENT, int ROWS, int COLUMNS, int WARPS_M, int WARPS_N, int STEP, bool B_WIDE, bool IN_PARTS>
struct simt_tile {
    typedef ELEMENT T;
    static constexpr int TM = ROWS, TN = COLUMNS, WM = WARPS_M, WN = WARPS_N, KT = STEP;
    static constexpr bool WIDE = B_WIDE, PARTS = IN_PARTS;
    static constexpr int V = 16 / sizeof(T), THREADS = 32 * WM * WN, BM = 4 * TM * WM, BN = 8 * TN * WN;
    static constexpr int A_PITCH = BM + V, B_PITCH = WIDE ? BN : BN + V; /* keep writes of columns off one bank */
    static constexpr int A_LOADS = BM * KT / V / THREADS;
    static constexpr int CTAS = TM * TN * (int)sizeof(T) > 256 ? 256 / THREADS : 512 / THREADS; /* by registers */
    static constexpr int UNROLL = TM * TN > 64 ? 4 : KT;
    static_assert(KT % UNROLL == 0 && UNROLL % 2 == 0, "operands alternate between two sets of registers");
    static_assert(TM % V == 0 && TN % V == 0 && KT % V == 0, "groups of 16 bytes");
    static_assert(BM * KT / V % THREADS == 0, "each thread has as much of A to bring");
};

template <typename X> struct simt_stage {
    alignas(16) typename X::T a[X::KT][X::A_PITCH];
    alignas(16) typename X::T b[X::KT][X::B_PITCH];
};

/* A thread's part in bringing stages in: the blocks of a piece one after the other, KT columns at a time. */
template <typename X> struct simt_feed {
    typedef typename X::T T;
    typedef simt_vector<T> vector;
    static constexpr int A_ACROSS = X::KT / X::V, A_DOWN = X::BM / X::V; /* vectors of the stage along k, along m */

    const simt_job &x;
    const T *a, *b;          /* what this thread reads of this stage */
    const T *values, *dense; /* the same in block 0, and in row 0 of B */
    int deep;                /* columns of this block that are left */
    int rows, left;          /* of the tile that exist */
    int64_t t, end;          /* next block, and one past the piece's last */
    int32_t column;          /* of block t, fetched early since what follows waits for it */
    int64_t number;
    vector held[X::A_LOADS];

    __device__ __forceinline__ simt_feed(const simt_job &job, const sat_work_item &piece, int first_row, int64_t j)
        : x(job) {
        const int tid = threadIdx.x;
        values =
            (const T *)x.values + first_row * x.r.row_step + a_row(tid) * x.r.row_step + a_step(tid) * x.r.col_step;
        dense = (const T *)x.b + b_row(tid) * x.b_row + (j + b_column(tid)) * x.b_col;
        deep = 0, rows = (int)sat_min(X::BM, x.r.br - first_row), left = (int)sat_min(X::BN, x.out.n - j);
        t = piece.first, end = piece.first + piece.count;
        a = values, b = dense;
        look_ahead();
    }

    __device__ __forceinline__ void look_ahead() {
        if (t < end) column = x.r.col[t], number = sat_block_of(&x.r, t);
    }

    /* On to the next stage; false at the piece's end. */
    __device__ __forceinline__ bool next() {
        deep -= X::KT, a += X::KT * x.r.col_step, b += X::KT * x.b_row;
        if (deep > 0) return true;
        if (t == end) return false;
        int64_t k0 = column * x.r.bc;
        a = values + number * x.r.block_elements, b = dense + k0 * x.b_row;
        deep = (int)sat_min(X::PARTS ? x.part.deep : x.r.bc, x.r.k - k0);
        t++;
        look_ahead();
        return true;
    }

    /* B: 16 bytes a copy, or 8 rows x 4 columns of single elements a warp, which are whole sectors if B is column-major
     * and in 32 banks. */
    static constexpr int B_ACROSS = X::WIDE ? X::BN / X::V : X::THREADS / 8,
                         B_DOWN = X::WIDE ? X::THREADS / B_ACROSS : 8;
    static __device__ __forceinline__ int b_row(int tid) { return X::WIDE ? tid / B_ACROSS : tid % 8; }
    static __device__ __forceinline__ int b_column(int tid) { return X::WIDE ? tid % B_ACROSS * X::V : tid / 8; }

    /* Begins to copy; rows past the block's depth and columns past N become zero. */
    __device__ __forceinline__ void copy_b(simt_stage<X> &to) const {
        static_assert(X::KT % B_DOWN == 0 && X::THREADS % B_ACROSS == 0, "whole rows");
        const int k = b_row(threadIdx.x), n = b_column(threadIdx.x);
        const uint32_t place = smem_address(&to.b[k][n]);
        if constexpr (X::WIDE) {
            const T *from = b;
            if (deep >= X::KT && left == X::BN) {
#pragma unroll
                for (int i = 0; i < X::KT; i += B_DOWN, from += B_DOWN * x.b_row)
                    cp_async_16(place + i * X::B_PITCH * sizeof(T), from);
                return;
            }
            int bytes = left - n >= X::V ? 16 : left > n ? (left - n) * (int)sizeof(T) : 0;
#pragma unroll 2
            for (int i = 0; i < X::KT; i += B_DOWN, from += B_DOWN * x.b_row)
                cp_async_16(place + i * X::B_PITCH * sizeof(T), from, k + i < deep ? bytes : 0);
        } else {
#pragma unroll 1
            for (int i = 0; i < X::KT; i += B_DOWN) {
                const T *from = b + i * x.b_row;
#pragma unroll 4
                for (int c = 0; c < X::BN; c += B_ACROSS, from += B_ACROSS * x.b_col)
                    cp_async_small<sizeof(T)>(place + (i * X::B_PITCH + c) * sizeof(T), from,
                                              k + i < deep && n + c < left ? (int)sizeof(T) : 0);
            }
        }
    }

    /* A: a vector along k, or along m where op(A) is transposed. */
    __device__ __forceinline__ int a_row(int q) const {
        return x.order == SIMT_ALONG_M ? q % A_DOWN * X::V : q / A_ACROSS;
    }
    __device__ __forceinline__ int a_step(int q) const {
        return x.order == SIMT_ALONG_M ? q / A_DOWN : q % A_ACROSS * X::V;
    }

    /* Into registers; what is past the block's depth or the tile's rows becomes zero. */
    __device__ __forceinline__ void fetch_a() {
        static_assert(X::THREADS % A_ACROSS == 0 && X::THREADS % A_DOWN == 0, "steps of whole rows");
        int64_t step =
            x.order == SIMT_ALONG_M ? X::THREADS / A_DOWN * x.r.col_step : X::THREADS / A_ACROSS * x.r.row_step;
        if (deep >= X::KT && rows == X::BM && x.order != SIMT_SINGLE) {
            const T *from = a;
#pragma unroll
            for (int i = 0; i < X::A_LOADS; i++, from += step) held[i] = *(const vector *)from;
            return;
        }
        bool down = x.order == SIMT_ALONG_M;
#pragma unroll
        for (int i = 0; i < X::A_LOADS; i++) {
            int q = (int)threadIdx.x + i * X::THREADS, m = a_row(q), k = a_step(q);
#pragma unroll
            for (int e = 0; e < X::V; e++) {
                bool real = m + (down ? e : 0) < rows && k + (down ? 0 : e) < deep;
                held[i].x[e] = real ? a[i * step + e * (down ? x.r.row_step : x.r.col_step)] : T(0);
            }
        }
    }

    __device__ __forceinline__ void keep_a(simt_stage<X> &to) const {
#pragma unroll
        for (int i = 0; i < X::A_LOADS; i++) {
            int q = (int)threadIdx.x + i * X::THREADS, m = a_row(q), k = a_step(q);
            if (x.order == SIMT_ALONG_M) *(vector *)&to.a[k][m] = held[i];
            else
#pragma unroll
                for (int e = 0; e < X::V; e++) to.a[k + e][m] = held[i].x[e];
        }
    }
};

/* Where a thread's groups of rows and columns begin in the tile. Lanes that differ in bit 0 share B's group, those
 * that differ in bit 1 share A's: so a half-warp's reads of 16 bytes meet in one pass over the banks. */
template <typename X> struct simt_seat {
    int m, n;
    __device__ __forceinline__ simt_seat() {
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        m = warp / X::WN * 4 * X::TM + (lane / 16 * 2 + lane % 2) * X::V;
        n = warp % X::WN * 8 * X::TN + lane / 2 % 8 * X::V;
    }
    static __device__ __forceinline__ int row(int i) { return i / X::V * 4 * X::V + i % X::V; }
    static __device__ __forceinline__ int column(int j) { return j / X::V * 8 * X::V + j % X::V; }
};

template <typename X> struct simt_operands {
    typename X::T a[X::TM], b[X::TN];
    __device__ __forceinline__ void fetch(const simt_stage<X> &from, int k, const simt_seat<X> &seat) {
        typedef simt_vector<typename X::T> vector;
#pragma unroll
        for (int i = 0; i < X::TM; i += X::V) *(vector *)&a[i] = *(const vector *)&from.a[k][seat.m + seat.row(i)];
#pragma unroll
        for (int j = 0; j < X::TN; j += X::V) *(vector *)&b[j] = *(const vector *)&from.b[k][seat.n + seat.column(j)];
    }
};

/* Unrolled so far that the instruction cache still holds it. */
template <typename X>
__device__ __forceinline__ void simt_multiply(typename X::T (&sum)[X::TM][X::TN], const simt_stage<X> &from,
                                              const simt_seat<X> &seat) {
    simt_operands<X> o[2];
    o[0].fetch(from, 0, seat);
#pragma unroll 1
    for (int first = 0; first < X::KT; first += X::UNROLL)
#pragma unroll
        for (int k = 0; k < X::UNROLL; k++) {
            if (k + 1 < X::UNROLL || first + X::UNROLL < X::KT) o[(k + 1) % 2].fetch(from, first + k + 1, seat);
#pragma unroll
            for (int i = 0; i < X::TM; i++)
#pragma unroll
                for (int j = 0; j < X::TN; j++) sum[i][j] += o[k % 2].a[i] * o[k % 2].b[j];
        }
}

/* All blocks of a piece: one barrier a stage, since what is written was last read before the barrier before. */
template <typename X>
__device__ __forceinline__ void simt_walk(typename X::T (&sum)[X::TM][X::TN], simt_stage<X> (&stage)[2],
                                          simt_feed<X> &feed, const simt_seat<X> &seat) {
    bool begun = false;
    for (int now = 0;; now ^= 1, begun = true) {
        bool more = feed.next();
        if (more) {
            feed.copy_b(stage[now]);
            feed.fetch_a();
        }
        cp_async_commit_group();
        if (begun) simt_multiply<X>(sum, stage[now ^ 1], seat);
        if (!more) return;
        feed.keep_a(stage[now]);
        cp_async_wait_group<0>();
        __syncthreads();
    }
}

/* Writes a tile by way of shared memory, V of a thread's rows at a time: so that a loop can do it, along rows or along
 * columns of C. Vectors are swizzled, or a column would lie in one bank. */
template <typename X>
__device__ __forceinline__ void simt_write(const typename X::T (&sum)[X::TM][X::TN], simt_stage<X> (&stage)[2],
                                           const simt_epilogue<typename X::T> &s, int first_row, int64_t j,
                                           const simt_seat<X> &seat) {
    typedef typename X::T T;
    constexpr int rows = X::BM / X::TM * X::V, vectors = X::BN / X::V, band = 4 * X::V;
    static_assert(sizeof stage >= rows * X::BN * sizeof(T), "a part of the tile fits into the stages");
    simt_vector<T> *part = (simt_vector<T> *)stage;
    const int tid = threadIdx.x, own = seat.m / (4 * X::TM) * band + seat.m % band, across = seat.n / X::V;
#pragma unroll 1
    for (int p = 0; p < X::TM / X::V; p++) {
        __syncthreads(); /* whoever still reads what lies there */
#pragma unroll
        for (int i = 0; i < X::TM / X::V; i++) {
            if (i != p) continue;
#pragma unroll
            for (int e = 0; e < X::V; e++)
#pragma unroll
                for (int v = 0; v < X::TN / X::V; v++)
                    part[(own + e) * vectors + ((across + v * 8) ^ (own + e) % 8)] =
                        *(const simt_vector<T> *)&sum[i * X::V + e][v * X::V];
        }
        __syncthreads();
        const int top = first_row + p * band;
#pragma unroll 1
        for (int q = tid; q < rows * vectors; q += X::THREADS) {
            T x[X::V];
            if (s.row_stride < s.col_stride) {
                int m = q % (rows / X::V) * X::V, n = q / (rows / X::V);
#pragma unroll
                for (int e = 0; e < X::V; e++) x[e] = part[(m + e) * vectors + (n / X::V ^ (m + e) % 8)].x[n % X::V];
                simt_store_column<T, X::V>(s, top + m / band * 4 * X::TM + m % band, j + n, x);
            } else {
                int m = q / vectors, n = q % vectors;
                *(simt_vector<T> *)x = part[m * vectors + (n ^ m % 8)];
                simt_store_row<T, X::V>(s, top + m / band * 4 * X::TM + m % band, j + n * X::V, x, true);
            }
        }
    }
}

/* The common case straight from registers: a whole tile along the rows of C, nothing but alpha to do. */
template <typename X>
__device__ __forceinline__ bool simt_write_plain(const typename X::T (&sum)[X::TM][X::TN],
                                                 const simt_epilogue<typename X::T> &s, int first_row, int64_t j,
                                                 const simt_seat<X> &seat) {
    typedef typename X::T T;
    if (!s.along_n || s.beta != 0 || s.bias || s.activation != SAT_ACT_NONE) return false;
    if (first_row + X::BM > s.rows || j + X::BN > s.n) return false;
    T *to = s.c + (first_row + seat.m) * s.row_stride + j + seat.n;
#pragma unroll
    for (int i = 0; i < X::TM; i++)
#pragma unroll
        for (int v = 0; v < X::TN; v += X::V) {
            simt_vector<T> y;
#pragma unroll
            for (int e = 0; e < X::V; e++) y.x[e] = s.alpha * sum[i][v + e];
            *(simt_vector<T> *)(to + seat.row(i) * s.row_stride + seat.column(v)) = y;
        }
    return true;
}

/* One CTA a tile. Rows fastest, so that those that run together share a panel of B in L2; but pieces of a schedule one
 * after the other, so that the shortest come last. */
template <typename X>
static __global__ void __launch_bounds__(X::THREADS, X::CTAS) simt_rows(const __grid_constant__ simt_job x) {
    typedef typename X::T T;
    __shared__ simt_stage<X> stage[2];
    unsigned pieces = (unsigned)x.w.pieces, strips = gridDim.x / pieces;
    unsigned strip = x.w.piece ? blockIdx.x % strips : blockIdx.x / pieces;
    unsigned index = x.w.piece ? blockIdx.x / strips : blockIdx.x % pieces;
    int first_row = (int)(strip % (unsigned)x.row_tiles) * X::BM;
    int64_t j = (int64_t)(strip / (unsigned)x.row_tiles) * X::BN;
    sat_work_item piece = sat_work_item_at(x.r, x.w.piece, index);
    bool last = true;
    if constexpr (X::PARTS)
        if (!sat_take_part(&x.part, &piece, &last)) return;
    simt_seat<X> seat;
    T sum[X::TM][X::TN] = {};
    simt_feed<X> feed(x, piece, first_row, j);
    simt_walk<X>(sum, stage, feed, seat);
    if constexpr (X::PARTS) { /* again: meanwhile it would have taken registers from the sums */
        piece = sat_work_item_at(x.r, x.w.piece, index);
        (void)sat_take_part(&x.part, &piece, &last);
    }
    const simt_epilogue<T> to = simt_epilogue_of<T>(x.out, x.r, x.w, piece, x.ways, !X::PARTS || x.part.first, last);
    if (!simt_write_plain<X>(sum, to, first_row, j, seat)) simt_write<X>(sum, stage, to, first_row, j, seat);
}

#endif
