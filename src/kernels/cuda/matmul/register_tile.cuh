/* The kernel that cuda_matmul_register and cuda_matmul_vector share: a thread keeps a tile of C, 4 rows x V columns, in
 * registers while it goes along a block row. So nothing is added in memory, and each element of C is stored once. V = 1
 * loads element by element, through any strides; otherwise B is loaded 16 bytes at a time, and A where its blocks allow
 * that. A long f32 sum is added to C in parts. */
#ifndef SAT_REGISTER_TILE_CUH
#define SAT_REGISTER_TILE_CUH

#include "kernels/cuda/common/simt_rates.h"
#include "variant.cuh"

enum { REGISTER_TILE_ROWS = 4, REGISTER_TILE_THREADS = 128 };

struct register_tile_args {
    sat_rows r;
    sat_epilogue out;
    const void *values, *b;
    int64_t b_row_stride, b_col_stride;
    int64_t bands, work; /* a band: up to 4 rows of a block row; work: groups of bands x tiles of columns */
    int bands_of_row;
    int lanes;      /* threads along the columns, a power of two */
    bool a_vectors; /* the blocks' rows can be read 16 bytes at a time */
    sat_parts parts;
};

/* ---- elements ---- */

template <typename T> struct accumulator_of { typedef float type; };
template <> struct accumulator_of<double> { typedef double type; };

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ double widen(double x) { return x; }
__device__ __forceinline__ float widen(__half x) { return __half2float(x); }
__device__ __forceinline__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T> struct alignas(16) vector_of { T x[16 / sizeof(T)]; };

/* V columns of a row of B; zero past the last column. */
template <typename T, int V, typename S>
__device__ __forceinline__ void load_b(S (&y)[V], const T *from, int64_t step, int64_t left) {
    if (V > 1 && left >= V) {
        vector_of<T> v = *(const vector_of<T> *)from;
#pragma unroll
        for (int j = 0; j < V; j++) y[j] = widen(v.x[j]);
        return;
    }
#pragma unroll
    for (int j = 0; j < V; j++) y[j] = j < left ? widen(from[j * step]) : S(0);
}

/* ---- products ---- */

/* Column k of up to four rows of a block times row k of B. */
template <typename T, int V, typename S>
__device__ __forceinline__ void multiply_column(S (&sum)[REGISTER_TILE_ROWS][V], const register_tile_args &args,
                                                const T *a, const T *b, int rows, int64_t left) {
    S y[V];
    load_b<T, V>(y, b, args.b_col_stride, left);
#pragma unroll
    for (int i = 0; i < REGISTER_TILE_ROWS; i++) {
        if (i >= rows) continue;
        S s = widen(a[i * args.r.row_step]);
#pragma unroll
        for (int j = 0; j < V; j++) sum[i][j] += s * y[j];
    }
}

/* The same for as many columns k as 16 bytes hold. */
template <typename T, int V, typename S>
__device__ __forceinline__ void multiply_vector(S (&sum)[REGISTER_TILE_ROWS][V], const register_tile_args &args,
                                                const T *a, const T *b, int rows, int64_t left) {
    const int columns = 16 / sizeof(T);
    vector_of<T> s[REGISTER_TILE_ROWS];
#pragma unroll
    for (int i = 0; i < REGISTER_TILE_ROWS; i++)
        s[i] = *(const vector_of<T> *)(a + (i < rows ? i : rows - 1) * args.r.row_step);
#pragma unroll
    for (int k = 0; k < columns; k++) {
        S y[V];
        load_b<T, V>(y, b + k * args.b_row_stride, args.b_col_stride, left);
#pragma unroll
        for (int i = 0; i < REGISTER_TILE_ROWS; i++)
#pragma unroll
            for (int j = 0; j < V; j++) sum[i][j] += widen(s[i].x[k]) * y[j];
    }
}

/* Not inlined: activations are long, and each thread calls it many times. */
template <typename S>
static __device__ __noinline__ void store_element(const sat_epilogue &out, int64_t i, int64_t j, S sum, bool first,
                                                  bool last) {
    sat_epilogue_store(out, i, j, sum, first, last);
}

/* ---- kernel ---- */

template <typename T, int V>
static __global__ void register_tile_matmul(const __grid_constant__ register_tile_args args) {
    typedef typename accumulator_of<T>::type S;
    int lane = (int)threadIdx.x % args.lanes, side = (int)threadIdx.x / args.lanes,
        sides = REGISTER_TILE_THREADS / args.lanes;
    int64_t groups = (args.bands + sides - 1) / sides;
    for (int64_t w = blockIdx.x; w < args.work; w += gridDim.x) {
        int64_t band = w % groups * sides + side, j = (w / groups * args.lanes + lane) * V, left = args.out.n - j;
        if (band >= args.bands || left <= 0) continue;
        int64_t row = band / args.bands_of_row, first = band % args.bands_of_row * REGISTER_TILE_ROWS;
        int rows = (int)sat_min(REGISTER_TILE_ROWS, args.r.br - first);
        int64_t end = args.r.end[row], from = args.r.ptr[row], before = 0; /* a block's columns in earlier parts */
        bool begun = false;
        do {
            S sum[REGISTER_TILE_ROWS][V] = {};
            int64_t stop = sat_min(end, from + args.parts.blocks), deep = sat_min(args.r.bc, before + args.parts.deep);
            for (int64_t t = from; t < stop; t++) {
                int64_t k0 = args.r.col[t] * args.r.bc, depth = sat_min(deep, args.r.k - k0), k = before;
                const T *a =
                    (const T *)args.values + sat_block_of(&args.r, t) * args.r.block_elements + first * args.r.row_step;
                const T *b = (const T *)args.b + k0 * args.b_row_stride + j * args.b_col_stride;
                if (V > 1 && args.a_vectors)
                    for (const int columns = 16 / sizeof(T); k + columns <= depth; k += columns)
                        multiply_vector<T, V>(sum, args, a + k, b + k * args.b_row_stride, rows, left);
                for (; k < depth; k++)
                    multiply_column<T, V>(sum, args, a + k * args.r.col_step, b + k * args.b_row_stride, rows, left);
            }
            if (deep < args.r.bc && from < end) before = deep;
            else before = 0, from = stop;
#pragma unroll
            for (int i = 0; i < REGISTER_TILE_ROWS; i++)
#pragma unroll
                for (int v = 0; v < V; v++) {
                    int64_t at = row * args.r.br + first + i;
                    if (i < rows && at < args.out.m && v < left)
                        store_element(args.out, at, j + v, sum[i][v], !begun, from >= end);
                }
            begun = true;
        } while (from < end);
    }
}

/* ---- host ---- */

/* A family's kernels: one a dtype. */
struct register_tile_instance {
    sat_dtype dtype;
    int columns; /* V */
    void (*run)(register_tile_args);
};

template <int COUNT>
static const register_tile_instance *register_tile_find(const register_tile_instance (&all)[COUNT], sat_dtype dtype) {
    for (const register_tile_instance &i : all)
        if (i.dtype == dtype) return &i;
    return NULL;
}

static inline sat_status register_tile_launch(const sat_launch *l, const register_tile_instance *k, bool a_vectors) {
    const sat_problem *p = l->problem;
    if (p->m == 0 || p->n == 0) return SAT_OK;
    register_tile_args args = {sat_device_rows(p, l->pattern),
                               sat_epilogue_of(l),
                               l->operands[0],
                               l->operands[1],
                               p->b.row_stride,
                               p->b.col_stride};
    args.bands_of_row = (int)((args.r.br + REGISTER_TILE_ROWS - 1) / REGISTER_TILE_ROWS);
    args.bands = args.r.count * args.bands_of_row;
    args.parts = sat_parts_in_c(p, args.r.bc, 1);
    args.a_vectors = a_vectors;
    for (args.lanes = 1; args.lanes < 32 && args.lanes * k->columns < p->n;) args.lanes *= 2;
    int64_t sides = REGISTER_TILE_THREADS / args.lanes, width = args.lanes * (int64_t)k->columns;
    args.work = (args.bands + sides - 1) / sides * ((p->n + width - 1) / width);
    k->run<<<sat_blocks(args.work, 1), REGISTER_TILE_THREADS, 0, (cudaStream_t)l->stream>>>(args);
    return sat_launched(l);
}

/* Bytes that threads request from the caches: rows of B for every band, A for every tile of `width` columns. */
static inline double register_tile_traffic(const sat_problem *p, const sat_pattern_view *a, int64_t width) {
    sat_rows r = sat_op_rows(p, a);
    double bands = (double)((r.br + REGISTER_TILE_ROWS - 1) / REGISTER_TILE_ROWS);
    double tiles = (double)((p->n + width - 1) / width);
    double size = (double)sat_dtype_size(p->a_dtype), blocks = (double)a->stored_blocks * (double)p->batch;
    return blocks * size * (bands * (double)r.bc * (double)p->n + (double)r.block_elements * tiles);
}

/* Seconds for the heaviest row, which one thread goes along: `steps` loads a block, one after the other. */
static inline double register_tile_longest(const sat_problem *p, const sat_pattern_view *a, double steps) {
    return sat_heaviest(p, a) * steps * SAT_SIMT_LATENCY;
}

#endif
