/* The tiles of the sampled product, S = X*Y at the stored blocks of S, which its kernels share. A CTA computes BM rows
 * x BN columns: of one stored block, or a part of it where the block is larger; or of several neighbouring blocks in
 * one block row, their columns side by side, so that small blocks fill a tile and share X. No schedule is needed: a CTA
 * finds its blocks by a search. */
#ifndef SAT_SAMPLED_TILE_CUH
#define SAT_SAMPLED_TILE_CUH

#include "variant.cuh"

/* An operand. A line of it is a row of X or a column of Y. Strides are in bytes. */
struct sampled_operand {
    const char *base;
    int64_t line_stride, k_stride, batch_stride;
};

struct sampled_args {
    const int64_t *row_ptr;
    const int64_t *row_end; /* NULL: all rows end where the next begins */
    const int32_t *col_idx;
    int64_t grid_rows, br, bc, m, n, k;
    sampled_operand x, y;
    char *s;
    int64_t s_batch_stride; /* bytes */
    double alpha, beta;
    sat_dtype s_dtype;
    int tile_blocks;             /* blocks side by side in a tile */
    int row_tiles, column_tiles; /* tiles of a block; column_tiles is 1 where tile_blocks is more than 1 */
};

/* What a tile covers. Its rows and columns that are inside the matrix come first. */
struct sampled_tile {
    int64_t row;            /* block row */
    int64_t block;          /* first stored block */
    int64_t in_row, in_col; /* the tile's first row and column in the block */
    int rows, cols;         /* that are stored */
    int x_lines, y_lines;   /* of those, rows of X and columns of Y that exist */
};

/* ---- host ---- */

static inline int64_t sampled_ceil(int64_t x, int64_t y) { return (x + y - 1) / y; }

static inline int64_t sampled_tile_blocks(const sat_pattern_view *a, int bn) { return sat_max(1, bn / a->block_cols); }

/* Tiles along the stored blocks. Where several blocks share a tile, a block row may have one tile too many. */
static inline int64_t sampled_block_tiles(const sat_pattern_view *a, int64_t tile_blocks) {
    return tile_blocks == 1 ? a->stored_blocks : a->stored_blocks / tile_blocks + a->grid_rows;
}

static inline int64_t sampled_ctas(const sat_pattern_view *a, int bm, int bn) {
    return sampled_block_tiles(a, sampled_tile_blocks(a, bn)) * sampled_ceil(a->block_rows, bm) *
           sampled_ceil(a->block_cols, bn);
}

static inline sampled_args sampled_args_of(const sat_launch *l, int bm, int bn) {
    const sat_problem *p = l->problem;
    const sat_pattern_view *a = l->pattern;
    int64_t in = (int64_t)sat_dtype_size(p->a_dtype);
    sampled_args args = {};
    args.row_ptr = a->device_row_ptr, args.col_idx = a->device_col_idx;
    args.row_end = a->dynamic ? a->device_row_end : NULL;
    args.grid_rows = a->grid_rows, args.br = a->block_rows, args.bc = a->block_cols;
    args.m = p->m, args.n = p->n, args.k = p->k;
    args.x = {(const char *)l->operands[0], p->a.row_stride * in, p->a.col_stride * in, p->a.batch_stride * in};
    args.y = {(const char *)l->operands[1], p->b.col_stride * in, p->b.row_stride * in, p->b.batch_stride * in};
    args.s = (char *)l->operands[2];
    args.s_batch_stride = p->c.batch_stride * (int64_t)sat_dtype_size(p->c_dtype);
    args.alpha = p->alpha, args.beta = p->beta, args.s_dtype = p->c_dtype;
    args.tile_blocks = (int)sampled_tile_blocks(a, bn);
    args.row_tiles = (int)sampled_ceil(a->block_rows, bm), args.column_tiles = (int)sampled_ceil(a->block_cols, bn);
    return args;
}

/* Whether one CTA a tile fits into a grid. */
static inline bool sampled_fits(const sat_problem *p, const sat_pattern_view *a, int bm, int bn) {
    int64_t parts = sampled_ceil(a->block_rows, bm) * sampled_ceil(a->block_cols, bn); /* tiles of a block */
    return p->batch <= 65535 && sampled_block_tiles(a, sampled_tile_blocks(a, bn)) <= INT32_MAX / parts;
}

static inline dim3 sampled_grid(const sat_launch *l, int bm, int bn) {
    return dim3((unsigned)sampled_ctas(l->pattern, bm, bn), (unsigned)l->problem->batch);
}

/* Seconds where full tiles run at `rate`: whole waves of tiles, padding included; reads of the tiles, mostly from L2;
 * what must come from memory. */
static inline double sampled_seconds(const sat_problem *p, const sat_pattern_view *a, const sat_device *d, int bm,
                                     int bn, int bk, double rate) {
    if (a->stored_blocks == 0) return 1e-7;
    int64_t blocks = sampled_tile_blocks(a, bn), rows = sat_max(1, a->grid_rows - a->empty_rows);
    double parts = (double)(sampled_ceil(a->block_rows, bm) * sampled_ceil(a->block_cols, bn));
    double tiles = (double)(blocks == 1 ? a->stored_blocks : rows * sampled_ceil(a->stored_blocks / rows, blocks));
    tiles *= parts * (double)p->batch;
    double waves = ceil(tiles / d->multiprocessors), depth = (double)sampled_ceil(p->k, bk) * bk;
    double size = (double)sat_dtype_size(p->a_dtype), run = (double)a->block_cols * size;
    double waste = p->b.col_stride < p->b.row_stride && run < 32 ? 32 / run : 1; /* of sectors, by narrow blocks */
    double lines = (double)sat_min(bm, a->block_rows) + (double)sat_min(bn, blocks * a->block_cols) * waste;
    double compute = waves * d->multiprocessors * 2 * bm * bn * depth / rate;
    double l2 = tiles * lines * (double)p->k * size / (0.95 * d->l2_rate);
    double memory = sat_bytes(p, a) / d->memory_rate;
    return fmax(compute, fmax(l2, memory)) + 4e-6;
}

/* ---- device: finding a tile ---- */

/* The first tile of a block row, counted along the stored blocks. */
__device__ __forceinline__ int64_t sampled_row_start(const sampled_args &args, int64_t row) {
    return args.tile_blocks == 1 ? args.row_ptr[row] : args.row_ptr[row] / args.tile_blocks + row;
}

/* The block row of a tile: the last one that starts at or before it. All threads of the CTA compare at once, so that
 * the search takes one or two memory latencies, not one for each bit. */
__device__ __forceinline__ int64_t sampled_row_of(const sampled_args &args, int64_t number) {
    int64_t first = 0, count = args.grid_rows;
    while (count > 1) {
        int64_t step = (count + blockDim.x - 1) / blockDim.x, at = threadIdx.x * step;
        first += step * (__syncthreads_count(at < count && sampled_row_start(args, first + at) <= number) - 1);
        count = sat_min(step, args.grid_rows - first);
    }
    return first;
}

/* This CTA's tile; false, in all threads alike, where it has no blocks. */
template <int BM, int BN> __device__ __forceinline__ bool sampled_tile_of(const sampled_args &args, sampled_tile &t) {
    unsigned parts = (unsigned)(args.row_tiles * args.column_tiles), number = blockIdx.x / parts,
             part = blockIdx.x % parts;
    int64_t last = args.tile_blocks == 1 ? args.col_idx[number] : 0; /* requested before the search */
    t.row = sampled_row_of(args, number), t.block = number;
    int count = 1;
    if (args.tile_blocks > 1) {
        t.block = args.row_ptr[t.row] + (number - sampled_row_start(args, t.row)) * args.tile_blocks;
        count = (int)sat_min(args.tile_blocks, args.row_ptr[t.row + 1] - t.block);
        if (count <= 0) return false;
        last = args.col_idx[t.block + count - 1];
    }
    if (args.row_end && t.block >= args.row_end[t.row]) return false; /* a faulty row, or beyond the last */
    t.in_row = part / args.column_tiles * BM, t.in_col = part % args.column_tiles * BN;
    t.rows = (int)sat_min(BM, args.br - t.in_row);
    int width = (int)sat_min(BN, args.bc - t.in_col); /* of one block */
    t.cols = count * width;
    t.x_lines = (int)sat_max(0, sat_min(t.rows, args.m - t.row * args.br - t.in_row));
    t.y_lines = t.cols - width + (int)sat_max(0, sat_min(width, args.n - last * args.bc - t.in_col));
    return true;
}

/* The offset of each line of the tile, in bytes from its operand's base; 0 for lines that do not exist. */
template <int BM, int BN>
__device__ __forceinline__ void sampled_line_offsets(const sampled_args &args, const sampled_tile &t, int64_t *x_offset,
                                                     int64_t *y_offset) {
    for (int i = threadIdx.x; i < BM; i += blockDim.x)
        x_offset[i] = i < t.x_lines ? (t.row * args.br + t.in_row + i) * args.x.line_stride : 0;
    for (int j = threadIdx.x; j < BN; j += blockDim.x) {
        int64_t b = args.tile_blocks == 1 ? 0 : j / (int)args.bc, column = 0;
        if (j < t.y_lines) column = args.col_idx[t.block + b] * args.bc + t.in_col + j - b * args.bc;
        y_offset[j] = column * args.y.line_stride;
    }
}

/* ---- device: epilogue, from a tile of sums in shared memory to the stored blocks ---- */

template <int BN> struct sampled_sums {
    static constexpr int PITCH = BN + 8; /* pairs of neighbours in 8 rows are in different banks */
};

/* The position of an element of the tile in the values of S. */
__device__ __forceinline__ int64_t sampled_position(const sampled_args &args, const sampled_tile &t, int i, int j) {
    int64_t b = args.tile_blocks == 1 ? 0 : j / (int)args.bc;
    return ((t.block + b) * args.br + t.in_row + i) * args.bc + t.in_col + j - b * args.bc;
}

/* Element by element, any dtype and alignment. Of a long sum in parts, all but the first add to what is stored. */
template <typename T, int BM, int BN>
__device__ __forceinline__ void sampled_store(const sampled_args &args, const sampled_tile &t, const T *sums,
                                              bool first = true) {
    char *s = args.s + blockIdx.y * args.s_batch_stride;
    const T beta = first ? (T)args.beta : T(1);
    for (int e = threadIdx.x; e < BM * BN; e += blockDim.x) {
        int i = e / BN, j = e % BN;
        if (i >= t.rows || j >= t.cols) continue;
        int64_t to = sampled_position(args, t, i, j);
        T y = (T)args.alpha * sums[i * sampled_sums<BN>::PITCH + j];
        if (beta != 0) y += beta * sat_load_as(T(), args.s_dtype, s, to);
        sat_store_from(i < t.x_lines && j < t.y_lines ? y : (T)0, args.s_dtype, s, to);
    }
}

template <typename T, typename S> __device__ __forceinline__ T sampled_widen(S x) { return (T)x; }
template <> __device__ __forceinline__ float sampled_widen<float>(__half x) { return __half2float(x); }
template <> __device__ __forceinline__ float sampled_widen<float>(__nv_bfloat16 x) { return __bfloat162float(x); }
template <typename S> __device__ __forceinline__ S sampled_narrow(float x) { return x; }
template <typename S> __device__ __forceinline__ S sampled_narrow(double x) { return x; }
template <> __device__ __forceinline__ __half sampled_narrow(float x) { return __float2half_rn(x); }
template <> __device__ __forceinline__ __nv_bfloat16 sampled_narrow(float x) { return __float2bfloat16_rn(x); }

/* 16 bytes of S at a time: a block's columns are a multiple of that, and its values aligned. Adds SLICES tiles of sums,
 * which belong to slices of k. */
template <typename T, typename S, int BM, int BN, int SLICES>
__device__ __forceinline__ void sampled_store_vectors(const sampled_args &args, const sampled_tile &t, const T *sums) {
    constexpr int WIDE = 16 / sizeof(S), ACROSS = BN / WIDE, PITCH = sampled_sums<BN>::PITCH;
    union {
        uint4 all;
        S each[WIDE];
    } out;
    S *s = (S *)(args.s + blockIdx.y * args.s_batch_stride);
    for (int e = threadIdx.x; e < t.rows * ACROSS; e += blockDim.x) {
        int i = e / ACROSS, j = e % ACROSS * WIDE;
        if (j >= t.cols) continue;
        int64_t to = sampled_position(args, t, i, j);
        T y[WIDE];
        for (int c = 0; c < WIDE; c++) y[c] = sums[i * PITCH + j + c];
        for (int slice = 1; slice < SLICES; slice++)
            for (int c = 0; c < WIDE; c++) y[c] += sums[(slice * BM + i) * PITCH + j + c];
        for (int c = 0; c < WIDE; c++) y[c] *= (T)args.alpha;
        if (args.beta != 0) {
            out.all = *(const uint4 *)(s + to);
            for (int c = 0; c < WIDE; c++) y[c] += (T)args.beta * sampled_widen<T>(out.each[c]);
        }
        for (int c = 0; c < WIDE; c++)
            out.each[c] = sampled_narrow<S>(i < t.x_lines && j + c < t.y_lines ? y[c] : (T)0);
        *(uint4 *)(s + to) = out.all;
    }
}

#endif
