/* What cuda_matmul_register and cuda_matmul_vector share: a thread keeps 4 rows x V columns of C in registers while it
 * walks a block row, so nothing is added in memory and each element of C is written once. V = 1 fetches element by
 * element, through any strides; otherwise 16 bytes of B at a time, and of A where its blocks allow. A long f32 sum is
 * added to C in parts. */
#ifndef SAT_WALK_CUH
#define SAT_WALK_CUH

#include "kernels/cuda/common/simt_rates.h"
#include "variant.cuh"

enum { WALK_ROWS = 4, WALK_THREADS = 128 };

template <typename T> struct walk_sum { typedef float type; };
template <> struct walk_sum<double> { typedef double type; };

__device__ __forceinline__ float walk_widen(float x) { return x; }
__device__ __forceinline__ double walk_widen(double x) { return x; }
__device__ __forceinline__ float walk_widen(__half x) { return __half2float(x); }
__device__ __forceinline__ float walk_widen(__nv_bfloat16 x) { return __bfloat162float(x); }

struct walk_job {
    sat_rows r;
    sat_epilogue out;
    const void *values, *b;
    int64_t b_row, b_col;
    int64_t bands, work; /* a band: up to 4 rows of a block row; work: groups of bands x tiles of columns */
    int bands_of_row;
    int lanes;     /* threads side by side along the columns, a power of two */
    bool a_vector; /* the blocks' rows can be read 16 bytes at a time */
    sat_parts parts;
};

template <typename T> struct alignas(16) walk_vector { T x[16 / sizeof(T)]; };

/* V columns of a row of B; beyond the last column zero. */
template <typename T, int V, typename S>
__device__ __forceinline__ void walk_fetch(S (&y)[V], const T *from, int64_t step, int64_t left) {
    if (V > 1 && left >= V) {
        walk_vector<T> v = *(const walk_vector<T> *)from;
#pragma unroll
        for (int j = 0; j < V; j++) y[j] = walk_widen(v.x[j]);
        return;
    }
#pragma unroll
    for (int j = 0; j < V; j++) y[j] = j < left ? walk_widen(from[j * step]) : S(0);
}

/* Column k of up to four rows of a block times row k of B. */
template <typename T, int V, typename S>
__device__ __forceinline__ void walk_step(S (&sum)[WALK_ROWS][V], const walk_job &x, const T *a, const T *b, int rows,
                                          int64_t left) {
    S y[V];
    walk_fetch<T, V>(y, b, x.b_col, left);
#pragma unroll
    for (int i = 0; i < WALK_ROWS; i++) {
        if (i >= rows) continue;
        S s = walk_widen(a[i * x.r.row_step]);
#pragma unroll
        for (int j = 0; j < V; j++) sum[i][j] += s * y[j];
    }
}

/* The same for as many columns k as 16 bytes hold. */
template <typename T, int V, typename S>
__device__ __forceinline__ void walk_steps(S (&sum)[WALK_ROWS][V], const walk_job &x, const T *a, const T *b, int rows,
                                           int64_t left) {
    const int steps = 16 / sizeof(T);
    walk_vector<T> s[WALK_ROWS];
#pragma unroll
    for (int i = 0; i < WALK_ROWS; i++) s[i] = *(const walk_vector<T> *)(a + (i < rows ? i : rows - 1) * x.r.row_step);
#pragma unroll
    for (int k = 0; k < steps; k++) {
        S y[V];
        walk_fetch<T, V>(y, b + k * x.b_row, x.b_col, left);
#pragma unroll
        for (int i = 0; i < WALK_ROWS; i++)
#pragma unroll
            for (int j = 0; j < V; j++) sum[i][j] += walk_widen(s[i].x[k]) * y[j];
    }
}

/* Not inlined: its activations are long, and each thread calls it many times. */
template <typename S>
static __device__ __noinline__ void walk_put(const sat_epilogue &out, int64_t i, int64_t j, S sum, bool first,
                                             bool last) {
    sat_epilogue_store(out, i, j, sum, first, last);
}

template <typename T, int V> static __global__ void walk_rows(const __grid_constant__ walk_job x) {
    typedef typename walk_sum<T>::type S;
    int lane = (int)threadIdx.x % x.lanes, side = (int)threadIdx.x / x.lanes, sides = WALK_THREADS / x.lanes;
    int64_t groups = (x.bands + sides - 1) / sides;
    for (int64_t w = blockIdx.x; w < x.work; w += gridDim.x) {
        int64_t band = w % groups * sides + side, j = (w / groups * x.lanes + lane) * V, left = x.out.n - j;
        if (band >= x.bands || left <= 0) continue;
        int64_t row = band / x.bands_of_row, first = band % x.bands_of_row * WALK_ROWS;
        int rows = (int)sat_min(WALK_ROWS, x.r.br - first);
        int64_t end = x.r.ptr[row + 1], from = x.r.ptr[row], before = 0; /* columns of a block in earlier parts */
        bool begun = false;
        do {
            S sum[WALK_ROWS][V] = {};
            int64_t stop = sat_min(end, from + x.parts.blocks), deep = sat_min(x.r.bc, before + x.parts.deep);
            for (int64_t t = from; t < stop; t++) {
                int64_t k0 = x.r.col[t] * x.r.bc, depth = sat_min(deep, x.r.k - k0), k = before;
                const T *a = (const T *)x.values + sat_block_of(&x.r, t) * x.r.block_elements + first * x.r.row_step;
                const T *b = (const T *)x.b + k0 * x.b_row + j * x.b_col;
                if (V > 1 && x.a_vector)
                    for (const int steps = 16 / sizeof(T); k + steps <= depth; k += steps)
                        walk_steps<T, V>(sum, x, a + k, b + k * x.b_row, rows, left);
                for (; k < depth; k++) walk_step<T, V>(sum, x, a + k * x.r.col_step, b + k * x.b_row, rows, left);
            }
            if (deep < x.r.bc && from < end) before = deep;
            else before = 0, from = stop;
#pragma unroll
            for (int i = 0; i < WALK_ROWS; i++)
#pragma unroll
                for (int v = 0; v < V; v++) {
                    int64_t at = row * x.r.br + first + i;
                    if (i < rows && at < x.out.m && v < left)
                        walk_put(x.out, at, j + v, sum[i][v], !begun, from >= end);
                }
            begun = true;
        } while (from < end);
    }
}

static inline walk_job walk_job_of(const sat_launch *l, int columns) { /* columns a thread has */
    const sat_problem *p = l->problem;
    walk_job x = {sat_device_rows(p, l->pattern),
                  sat_epilogue_of(l),
                  l->operands[0],
                  l->operands[1],
                  p->b.row_stride,
                  p->b.col_stride};
    x.bands_of_row = (int)((x.r.br + WALK_ROWS - 1) / WALK_ROWS);
    x.bands = x.r.count * x.bands_of_row;
    x.parts = sat_parts_in_c(p, x.r.bc, 1);
    for (x.lanes = 1; x.lanes < 32 && x.lanes * columns < p->n;) x.lanes *= 2;
    int64_t sides = WALK_THREADS / x.lanes, width = x.lanes * (int64_t)columns;
    x.work = (x.bands + sides - 1) / sides * ((p->n + width - 1) / width);
    return x;
}

template <typename T, int V> static inline sat_status walk_launch(const sat_launch *l, const walk_job &x) {
    walk_rows<T, V><<<sat_blocks(x.work, 1), WALK_THREADS, 0, (cudaStream_t)l->stream>>>(x);
    return sat_launched(l);
}

/* Bytes that threads ask the caches for: a band's rows of B for every band, its part of A for every tile. */
static inline double walk_traffic(const sat_problem *p, const sat_pattern_view *a, int64_t width) {
    sat_rows r = sat_op_rows(p, a);
    double bands = (double)((r.br + WALK_ROWS - 1) / WALK_ROWS), tiles = (double)((p->n + width - 1) / width);
    double size = (double)sat_dtype_size(p->a_dtype), blocks = (double)a->stored_blocks * (double)p->batch;
    return blocks * size * (bands * (double)r.bc * (double)p->n + (double)r.block_elements * tiles);
}

/* How long the heaviest row takes, which one thread walks: `steps` loads a block, one after the other. */
static inline double walk_alone(const sat_problem *p, const sat_pattern_view *a, double steps) {
    return sat_heaviest(p, a) * steps * SAT_SIMT_LATENCY;
}

#endif
