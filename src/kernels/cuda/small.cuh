/* The walk of cuda_matmul_small. A warp's lanes are `lanes` side by side along the columns, V columns each, times
 * `groups` that share a block row's products, times block rows. A unit of work is KU columns of a block's R rows: the
 * groups take turns at them, so that even one column of B keeps a warp busy and reads the values in order, and their
 * sums meet by shuffles at the end. */
#ifndef SAT_SMALL_CUH
#define SAT_SMALL_CUH

#include "sink.cuh"

enum { SMALL_THREADS = 128, SMALL_WARPS = SMALL_THREADS / 32 };

struct small_job {
    sat_rows r;
    sat_out out;
    sat_plan_work w;
    sink_ways ways;
    const void *values, *b;
    int64_t b_row, b_col;
    int64_t bands, work; /* a band: R rows of a piece; work: groups of bands x tiles of columns */
    int bands_of_piece, lanes, groups;
    int units; /* of a block */
};

/* Elements that one load brings, where KU of them are as aligned as they are long. */
template <typename T, int KU>
struct alignas((KU & (KU - 1)) == 0 && KU * sizeof(T) <= 16 ? KU * sizeof(T) : sizeof(T)) small_vector {
    T x[KU];
};

/* V columns of a row of B; beyond the last column zero. */
template <typename T, int V>
__device__ __forceinline__ void small_fetch(T (&y)[V], const T *from, int64_t step, int64_t left) {
    if (V > 1 && left >= V) {
        small_vector<T, V> v = *(const small_vector<T, V> *)from;
#pragma unroll
        for (int j = 0; j < V; j++) y[j] = v.x[j];
        return;
    }
#pragma unroll
    for (int j = 0; j < V; j++) y[j] = j < left ? from[j * step] : T(0);
}

/* Where row i of the band lies from its first one; what is beyond the band reads its last row and is not written. */
template <int R, int C> __device__ __forceinline__ int64_t small_row(const small_job &x, int i, int rows) {
    return C ? i * C : (i < rows ? i : rows - 1) * x.r.row_step;
}

template <typename T, int R, int C, int V>
__device__ __forceinline__ void small_column(T (&sum)[R][V], const small_job &x, const T *a, const T *b, int rows,
                                             int64_t left) {
    T y[V];
    small_fetch<T, V>(y, b, x.b_col, left);
#pragma unroll
    for (int i = 0; i < R; i++) {
        T s = a[small_row<R, C>(x, i, rows)];
#pragma unroll
        for (int j = 0; j < V; j++) sum[i][j] += s * y[j];
    }
}

template <typename T, int R, int C, int KU, int V>
__device__ __forceinline__ void small_unit(T (&sum)[R][V], const small_job &x, const T *a, const T *b, int rows,
                                           int64_t left) {
    small_vector<T, KU> s[R];
    T y[KU][V];
#pragma unroll
    for (int k = 0; k < KU; k++) small_fetch<T, V>(y[k], b + k * x.b_row, x.b_col, left);
#pragma unroll
    for (int i = 0; i < R; i++) s[i] = *(const small_vector<T, KU> *)(a + small_row<R, C>(x, i, rows));
#pragma unroll
    for (int k = 0; k < KU; k++)
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < V; j++) sum[i][j] += s[i].x[k] * y[k][j];
}

/* Column and place of a piece's block t; past its end the first, which is not used. */
struct small_place {
    int64_t k0, block;
};
__device__ __forceinline__ small_place small_at(const small_job &x, const sat_piece &p, unsigned t) {
    small_place at = {0, 0};
    if (t >= (unsigned)p.count) return at;
    at.k0 = x.r.col[p.first + t];
    at.block = sat_block_of(&x.r, p.first + t);
    return at;
}

/* C: the columns of a block where the kernel is made for it (then a band is a whole block); 0: x.r.bc. */
template <typename T, int R, int C, int KU, int V>
__device__ __forceinline__ void small_walk(T (&sum)[R][V], const small_job &x, const sat_piece &p, int64_t first,
                                           int64_t j, unsigned group) {
    const int64_t bc = C ? C : x.r.bc, left = x.out.n - j;
    const unsigned units = C ? C / KU : (unsigned)x.units, step = (unsigned)x.groups;
    const int rows = (int)sat_min(R, x.r.br - first);
    unsigned t = group / units, u = group % units, step_t = step / units, step_u = step % units;
    small_place next = small_at(x, p, t);
    while (t < (unsigned)p.count) {
        small_place at = next;
        int64_t k = (int64_t)u * KU, k0 = at.k0 * bc + k, most = x.r.k - k0;
        t += step_t, u += step_u;
        if (u >= units) u -= units, t++;
        next = small_at(x, p, t); /* early, since what follows waits for it */
        const T *a = (const T *)x.values + at.block * (C ? R * C : x.r.block_elements) +
                     (C ? k : first * x.r.row_step + k * x.r.col_step);
        const T *b = (const T *)x.b + k0 * x.b_row + j * x.b_col;
        if (most >= KU) small_unit<T, R, C, KU, V>(sum, x, a, b, rows, left);
        else
            for (int q = 0; q < most; q++) /* the matrix ends inside this block */
                small_column<T, R, C, V>(sum, x, a + q * (C ? 1 : x.r.col_step), b + q * x.b_row, rows, left);
    }
}

template <typename T, int R, int C, int KU, int V>
static __global__ void __launch_bounds__(SMALL_THREADS) small_rows(const __grid_constant__ small_job x) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rows_of_warp = 32 / (x.lanes * x.groups);
    int column = lane % x.lanes, group = lane / x.lanes % x.groups, side = lane / x.lanes / x.groups;
    int64_t bands_at_once = SMALL_WARPS * rows_of_warp, stacks = (x.bands + bands_at_once - 1) / bands_at_once;
    for (int64_t w = blockIdx.x; w < x.work; w += gridDim.x) {
        int64_t band = w % stacks * bands_at_once + warp * rows_of_warp + side;
        int64_t j = (w / stacks * x.lanes + column) * V, first = 0, index = band;
        if (!C) index = band / x.bands_of_piece, first = band % x.bands_of_piece * R;
        bool live = band < x.bands && j < x.out.n;
        sat_piece p = {};
        if (live) p = sat_piece_at(x.r, x.w.piece, index);
        T sum[R][V] = {};
        small_walk<T, R, C, KU, V>(sum, x, p, first, j, (unsigned)group);
        for (int other = x.lanes; other < x.lanes * x.groups; other *= 2)
#pragma unroll
            for (int i = 0; i < R; i++)
#pragma unroll
                for (int v = 0; v < V; v++) sum[i][v] += __shfl_xor_sync(~0u, sum[i][v], other);
        if (!live || group) continue;
        sink<T> s = sink_of<T>(x.out, x.r, x.w, p, x.ways);
#pragma unroll
        for (int i = 0; i < R; i++) sink_row<T, V>(s, (int)first + i, j, sum[i]);
        if (s.activation != SAT_ACT_NONE)
            for (int e = 0; e < R * V; e++) sink_activate(s, (int)first + e / V, j + e % V);
    }
}

#endif
