/* The sampled product's tiles, shared by its families. A CTA computes BM rows x BN columns: of one stored block (a
 * slice of it, where the block is larger), or of several neighbours in one block row, their columns side by side, so
 * that small blocks fill a tile and share what is read of X. No schedule is needed: a tile finds its blocks itself. */
#ifndef SAT_SAMPLED_TILE_CUH
#define SAT_SAMPLED_TILE_CUH

#include "variant.cuh"

/* An operand seen from its lines: the rows of X, the columns of Y. Steps in bytes. */
struct sampled_side {
    const char *base;
    int64_t line_step, k_step, batch_step;
};

struct sampled_job {
    const int64_t *row_ptr;
    const int32_t *col_idx;
    int64_t grid_rows, br, bc, m, n, k;
    sampled_side x, y;
    char *s;
    int64_t s_batch_step; /* bytes */
    double alpha, beta;
    sat_dtype s_dtype;
    int each;               /* blocks side by side in a tile */
    int slices_m, slices_n; /* tiles that a block is cut into; slices_n is 1 where `each` is not */
};

/* What a tile covers. Lines that exist, of X and of Y, come first in it; so do the columns that are stored. */
struct sampled_place {
    int64_t row;            /* block row */
    int64_t block;          /* first stored block */
    int64_t in_row, in_col; /* where the slice begins within the block */
    int rows, cols;         /* stored */
    int x_lines, y_lines;   /* of those, inside the matrix */
};

static inline int64_t sampled_ceil(int64_t x, int64_t y) { return (x + y - 1) / y; }

static inline int64_t sampled_each(const sat_pattern_view *a, int bn) { return sat_max(1, bn / a->block_cols); }

/* Tiles along the stored blocks; where several blocks share a tile, a block row may have one tile too many. */
static inline int64_t sampled_slots(const sat_pattern_view *a, int64_t each) {
    return each == 1 ? a->stored_blocks : a->stored_blocks / each + a->grid_rows;
}

static inline int64_t sampled_ctas(const sat_pattern_view *a, int bm, int bn) {
    return sampled_slots(a, sampled_each(a, bn)) * sampled_ceil(a->block_rows, bm) * sampled_ceil(a->block_cols, bn);
}

static inline sampled_job sampled_job_of(const sat_launch *l, int bm, int bn) {
    const sat_problem *p = l->problem;
    const sat_pattern_view *a = l->pattern;
    int64_t in = (int64_t)sat_dtype_size(p->a_dtype);
    sampled_job w = {};
    w.row_ptr = a->device_row_ptr, w.col_idx = a->device_col_idx;
    w.grid_rows = a->grid_rows, w.br = a->block_rows, w.bc = a->block_cols;
    w.m = p->m, w.n = p->n, w.k = p->k;
    w.x = {(const char *)l->operands[0], p->a.row_stride * in, p->a.col_stride * in, p->a.batch_stride * in};
    w.y = {(const char *)l->operands[1], p->b.col_stride * in, p->b.row_stride * in, p->b.batch_stride * in};
    w.s = (char *)l->operands[2];
    w.s_batch_step = p->c.batch_stride * (int64_t)sat_dtype_size(p->c_dtype);
    w.alpha = p->alpha, w.beta = p->beta, w.s_dtype = p->c_dtype;
    w.each = (int)sampled_each(a, bn);
    w.slices_m = (int)sampled_ceil(a->block_rows, bm), w.slices_n = (int)sampled_ceil(a->block_cols, bn);
    return w;
}

/* Whether a launch of one CTA a tile fits into a grid. */
static inline bool sampled_fits(const sat_problem *p, const sat_pattern_view *a, int bm, int bn) {
    int64_t cut = sampled_ceil(a->block_rows, bm) * sampled_ceil(a->block_cols, bn);
    return p->batch <= 65535 && sampled_slots(a, sampled_each(a, bn)) <= INT32_MAX / cut;
}

static inline dim3 sampled_grid(const sat_launch *l, int bm, int bn) {
    return dim3((unsigned)sampled_ctas(l->pattern, bm, bn), (unsigned)l->problem->batch);
}

/* Seconds where full tiles run at `rate`: whole rounds of tiles over the multiprocessors, padding included; what tiles
 * read, mostly from L2; what must come from memory. */
static inline double sampled_seconds(const sat_problem *p, const sat_pattern_view *a, const sat_device *d, int bm,
                                     int bn, int bk, double rate) {
    if (a->stored_blocks == 0) return 1e-7;
    int64_t each = sampled_each(a, bn), rows = sat_max(1, a->grid_rows - a->empty_rows);
    double cut = (double)(sampled_ceil(a->block_rows, bm) * sampled_ceil(a->block_cols, bn));
    double tiles = (double)(each == 1 ? a->stored_blocks : rows * sampled_ceil(a->stored_blocks / rows, each));
    tiles *= cut * (double)p->batch;
    double rounds = ceil(tiles / d->threads), depth = (double)sampled_ceil(p->k, bk) * bk;
    double size = (double)sat_dtype_size(p->a_dtype), run = (double)a->block_cols * size;
    double waste = p->b.col_stride < p->b.row_stride && run < 32 ? 32 / run : 1; /* of sectors, by narrow blocks */
    double lines = (double)sat_min(bm, a->block_rows) + (double)sat_min(bn, each * a->block_cols) * waste;
    double compute = rounds * d->threads * 2 * bm * bn * depth / rate;
    double near = tiles * lines * (double)p->k * size / (2.2 * d->memory_rate);
    double far = sat_bytes(p, a) / d->memory_rate;
    return fmax(compute, fmax(near, far)) + 4e-6;
}

__device__ __forceinline__ int64_t sampled_start(const sampled_job &w, int64_t row) {
    return w.each == 1 ? w.row_ptr[row] : w.row_ptr[row] / w.each + row;
}

/* The last block row whose first slot is not beyond `slot`. All threads of the CTA look at once, so that a search takes
 * one or two rounds of memory latency instead of one for each bit. */
__device__ __forceinline__ int64_t sampled_row(const sampled_job &w, int64_t slot) {
    int64_t first = 0, count = w.grid_rows;
    while (count > 1) {
        int64_t step = (count + blockDim.x - 1) / blockDim.x, at = threadIdx.x * step;
        first += step * (__syncthreads_count(at < count && sampled_start(w, first + at) <= slot) - 1);
        count = sat_min(step, w.grid_rows - first);
    }
    return first;
}

/* False where the tile has nothing to do. The answer is the same in all threads. */
template <int BM, int BN> __device__ __forceinline__ bool sampled_find(const sampled_job &w, sampled_place &t) {
    unsigned cut = (unsigned)(w.slices_m * w.slices_n), slot = blockIdx.x / cut, slice = blockIdx.x % cut;
    int64_t last = w.each == 1 ? w.col_idx[slot] : 0; /* on its way while the row is looked for */
    t.row = sampled_row(w, slot), t.block = slot;
    int count = 1;
    if (w.each > 1) {
        t.block = w.row_ptr[t.row] + (slot - sampled_start(w, t.row)) * w.each;
        count = (int)sat_min(w.each, w.row_ptr[t.row + 1] - t.block);
        if (count <= 0) return false;
        last = w.col_idx[t.block + count - 1];
    }
    t.in_row = slice / w.slices_n * BM, t.in_col = slice % w.slices_n * BN;
    t.rows = (int)sat_min(BM, w.br - t.in_row);
    int width = (int)sat_min(BN, w.bc - t.in_col); /* of one block */
    t.cols = count * width;
    t.x_lines = (int)sat_max(0, sat_min(t.rows, w.m - t.row * w.br - t.in_row));
    t.y_lines = t.cols - width + (int)sat_max(0, sat_min(width, w.n - last * w.bc - t.in_col));
    return true;
}

/* Where each line of the tile begins, in bytes from its operand's base; lines that do not exist get a safe 0. */
template <int BM, int BN>
__device__ __forceinline__ void sampled_lines(const sampled_job &w, const sampled_place &t, int64_t *x_at,
                                              int64_t *y_at) {
    for (int i = threadIdx.x; i < BM; i += blockDim.x)
        x_at[i] = i < t.x_lines ? (t.row * w.br + t.in_row + i) * w.x.line_step : 0;
    for (int j = threadIdx.x; j < BN; j += blockDim.x) {
        int64_t b = w.each == 1 ? 0 : j / (int)w.bc, column = 0;
        if (j < t.y_lines) column = w.col_idx[t.block + b] * w.bc + t.in_col + j - b * w.bc;
        y_at[j] = column * w.y.line_step;
    }
}

/* ---- output: a tile of sums in shared memory, in PARTS copies to be added, to the blocks ---- */

template <int BN> struct sampled_sums {
    static constexpr int PITCH = BN + 8; /* pairs of neighbours from 8 rows meet no bank twice */
};

__device__ __forceinline__ int64_t sampled_to(const sampled_job &w, const sampled_place &t, int i, int j) {
    int64_t b = w.each == 1 ? 0 : j / (int)w.bc;
    return ((t.block + b) * w.br + t.in_row + i) * w.bc + t.in_col + j - b * w.bc;
}

/* Element by element, any dtype and alignment. Of a long sum in parts all but the first are added to what is there. */
template <typename T, int BM, int BN>
__device__ __forceinline__ void sampled_store(const sampled_job &w, const sampled_place &t, const T *sums,
                                              bool first = true) {
    char *s = w.s + blockIdx.y * w.s_batch_step;
    const T beta = first ? (T)w.beta : T(1);
    for (int e = threadIdx.x; e < BM * BN; e += blockDim.x) {
        int i = e / BN, j = e % BN;
        if (i >= t.rows || j >= t.cols) continue;
        int64_t to = sampled_to(w, t, i, j);
        T y = (T)w.alpha * sums[i * sampled_sums<BN>::PITCH + j];
        if (beta != 0) y += beta * sat_load_as(T(), w.s_dtype, s, to);
        sat_store_from(i < t.x_lines && j < t.y_lines ? y : (T)0, w.s_dtype, s, to);
    }
}

template <typename T, typename S> __device__ __forceinline__ T sampled_widen(S x) { return (T)x; }
template <> __device__ __forceinline__ float sampled_widen<float>(__half x) { return __half2float(x); }
template <> __device__ __forceinline__ float sampled_widen<float>(__nv_bfloat16 x) { return __bfloat162float(x); }
template <typename S> __device__ __forceinline__ S sampled_narrow(float x) { return x; }
template <typename S> __device__ __forceinline__ S sampled_narrow(double x) { return x; }
template <> __device__ __forceinline__ __half sampled_narrow(float x) { return __float2half_rn(x); }
template <> __device__ __forceinline__ __nv_bfloat16 sampled_narrow(float x) { return __float2bfloat16_rn(x); }

/* 16 bytes of S at a time: a block's columns are a multiple of them, and its values aligned. */
template <typename T, typename S, int BM, int BN, int PARTS>
__device__ __forceinline__ void sampled_store16(const sampled_job &w, const sampled_place &t, const T *sums) {
    constexpr int WIDE = 16 / sizeof(S), ACROSS = BN / WIDE, PITCH = sampled_sums<BN>::PITCH;
    union {
        uint4 all;
        S each[WIDE];
    } out;
    S *s = (S *)(w.s + blockIdx.y * w.s_batch_step);
    for (int e = threadIdx.x; e < t.rows * ACROSS; e += blockDim.x) {
        int i = e / ACROSS, j = e % ACROSS * WIDE;
        if (j >= t.cols) continue;
        int64_t to = sampled_to(w, t, i, j);
        T y[WIDE];
        for (int c = 0; c < WIDE; c++) y[c] = sums[i * PITCH + j + c];
        for (int part = 1; part < PARTS; part++)
            for (int c = 0; c < WIDE; c++) y[c] += sums[(part * BM + i) * PITCH + j + c];
        for (int c = 0; c < WIDE; c++) y[c] *= (T)w.alpha;
        if (w.beta != 0) {
            out.all = *(const uint4 *)(s + to);
            for (int c = 0; c < WIDE; c++) y[c] += (T)w.beta * sampled_widen<T>(out.each[c]);
        }
        for (int c = 0; c < WIDE; c++)
            out.each[c] = sampled_narrow<S>(i < t.x_lines && j + c < t.y_lines ? y[c] : (T)0);
        *(uint4 *)(s + to) = out.all;
    }
}

#endif
