/* The walk of cuda_matmul_small. A warp's lanes are `lanes` side by side along the columns, V columns each, times
 * `groups` that share a block row's products, times block rows. A unit of work is KU columns of a block's R rows: the
 * groups take turns at them, so that even one column of B keeps a warp busy and reads the values in order, and their
 * sums meet by shuffles at the end. */
#ifndef SAT_SMALL_CUH
#define SAT_SMALL_CUH

#include "kernels/cuda/common/long_sums.h"
#include "kernels/cuda/common/simt_epilogue.cuh"

enum { SMALL_THREADS = 128, SMALL_WARPS = SMALL_THREADS / 32 };

struct small_job {
    sat_rows r;
    sat_epilogue out;
    sat_device_schedule w;
    vector_access ways;
    const void *values, *b;
    int64_t b_row, b_col;
    int64_t b_block; /* from a block column's first row of B to the next one's */
    int64_t bands;   /* a band: R rows of a piece */
    int bands_of_piece;
    int32_t whole; /* block columns before this one lie inside the matrix */
    int lane_bits, group_bits;
    unsigned units, tiles; /* of a block's columns, of the columns of C */
    sat_row_part part;
};

/* Elements that one load brings: as many of KU as 16 bytes hold, where that divides it. */
template <typename T, int KU> struct small_load {
    static constexpr int most = 16 / (int)sizeof(T), count = KU % most == 0 ? most : KU % 2 == 0 ? 2 : 1;
    struct alignas(count * sizeof(T)) type {
        T x[count];
    };
};

/* KU columns of a block's R rows times KU rows of B. */
template <typename T, int R, int C, int KU, int V>
__device__ __forceinline__ void small_unit(T (&sum)[R][V], const small_job &x, const T *a, const T *b, int rows) {
    typedef small_load<T, KU> load;
    struct alignas(V * sizeof(T)) row {
        T x[V];
    };
    row y[KU];
#pragma unroll
    for (int k = 0; k < KU; k++) y[k] = *(const row *)(b + k * x.b_row);
#pragma unroll
    for (int k = 0; k < KU; k += load::count)
#pragma unroll
        for (int i = 0; i < R; i++) { /* rows beyond the band read its last one and are not written */
            const T *from = a + (C ? i * C : (i < rows ? i : rows - 1) * x.r.row_step);
            typename load::type s = *(const typename load::type *)(from + k);
#pragma unroll
            for (int e = 0; e < load::count; e++)
#pragma unroll
                for (int j = 0; j < V; j++) sum[i][j] += s.x[e] * y[k + e].x[j];
        }
}

/* The same element by element: where the matrix ends inside, after `deep` columns of A or `left` of C. */
template <typename T, int R, int C, int V>
__device__ __forceinline__ void small_edge(T (&sum)[R][V], const small_job &x, const T *a, const T *b, int rows,
                                           int deep, int left) {
    const int64_t row_step = C ? C : x.r.row_step, col_step = C ? 1 : x.r.col_step;
#pragma unroll 1
    for (int k = 0; k < deep; k++) {
        T y[V];
#pragma unroll
        for (int j = 0; j < V; j++) y[j] = j < left ? b[k * x.b_row + j * x.b_col] : T(0);
#pragma unroll
        for (int i = 0; i < R; i++) {
            T s = a[(i < rows ? i : rows - 1) * row_step + k * col_step];
#pragma unroll
            for (int j = 0; j < V; j++) sum[i][j] += s * y[j];
        }
    }
}

/* C: the columns of a block where the kernel is made for it, and then a band is a whole block; 0: any. */
template <typename T, int R, int C, int KU, int V>
__device__ __forceinline__ void small_walk(T (&sum)[R][V], const small_job &x, const sat_work_item &p, int64_t first,
                                           int64_t j, unsigned group) {
    const unsigned units = C ? C / KU : x.units, step = 1u << x.group_bits, count = (unsigned)p.count;
    const unsigned step_t = step / units, step_u = step % units;
    const int rows = C ? R : (int)sat_min(R, x.r.br - first), left = (int)sat_min(V, x.out.n - j);
    const T *values = (const T *)x.values + (C ? 0 : first * x.r.row_step), *dense = (const T *)x.b + j * x.b_col;
    const int32_t *columns = x.r.col + p.first;
    unsigned t = group / units, u = group % units;
    int32_t next = t < count ? columns[t] : 0;
    while (t < count) {
        int32_t column = next, k = (int32_t)(u * KU);
        int64_t block = sat_block_of(&x.r, p.first + t);
        t += step_t, u += step_u;
        if (u >= units) u -= units, t++;
        if (t < count) next = columns[t]; /* early, since what follows waits for it */
        const T *a = values + block * (C ? R * C : x.r.block_elements) + k * (C ? 1 : x.r.col_step);
        const T *b = dense + column * x.b_block + k * x.b_row;
        if (left == V && column < x.whole) small_unit<T, R, C, KU, V>(sum, x, a, b, rows);
        else {
            int64_t deep = sat_min(KU, x.r.k - column * (C ? C : x.r.bc) - k);
            small_edge<T, R, C, V>(sum, x, a, b, rows, (int)deep, left);
        }
    }
}

/* CTAs a multiprocessor should hold: with fewer registers the compiler would fetch a block in several goes. */
template <int R, int V> constexpr int small_ctas = V == 1 ? (R > 4 ? 6 : 8) : R > 4 ? 3 : 5;

/* Bands fastest, so that what runs together shares a panel of B in L2. */
template <typename T, int R, int C, int KU, int V>
static __global__ void __launch_bounds__(SMALL_THREADS, (small_ctas<R, V>))
    small_rows(const __grid_constant__ small_job x) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, lanes = 1u << x.lane_bits;
    const unsigned group = lane >> x.lane_bits & ((1u << x.group_bits) - 1),
                   side = lane >> (x.lane_bits + x.group_bits);
    const unsigned each = 32u >> (x.lane_bits + x.group_bits); /* bands of a warp */
    for (unsigned tile = blockIdx.y; tile < x.tiles; tile += gridDim.y)
        for (int64_t w = (int64_t)blockIdx.x * SMALL_WARPS * each; w < x.bands;
             w += (int64_t)gridDim.x * SMALL_WARPS * each) {
            int64_t band = w + warp * each + side, j = ((int64_t)tile * lanes + lane % lanes) * V, first = 0;
            bool live = band < x.bands && j < x.out.n;
            if (!C && x.bands_of_piece > 1) first = band % x.bands_of_piece * R, band /= x.bands_of_piece;
            sat_work_item p = {};
            bool last = true;
            if (live) p = sat_work_item_at(x.r, x.w.piece, band);
            live = sat_take_part(&x.part, &p, &last) && live;
            if (!live) p.count = 0;
            if (!last) p.row = ~p.row; /* so that it takes no register of its own */
            T sum[R][V] = {};
            small_walk<T, R, C, KU, V>(sum, x, p, first, j, group);
            for (unsigned other = lanes; other < lanes << x.group_bits; other *= 2)
#pragma unroll
                for (int i = 0; i < R; i++)
#pragma unroll
                    for (int v = 0; v < V; v++) sum[i][v] += __shfl_xor_sync(~0u, sum[i][v], (int)other);
            if (!live || group) continue;
            last = p.row >= 0;
            if (!last) p.row = ~p.row;
            simt_epilogue<T> s = simt_epilogue_of<T>(x.out, x.r, x.w, p, x.ways, x.part.first, last);
#pragma unroll
            for (int i = 0; i < R; i++) simt_store_row<T, V>(s, (int)first + i, j, sum[i], false);
            if (s.activation != SAT_ACT_NONE)
                for (int e = 0; e < R * V; e++) simt_activate(s, (int)first + e / V, j + e % V);
        }
}

#endif
