// Small kernels around library calls; see cuda_kernels.h. Each is bound by memory, so none is clever.

#include "libs/cuda_kernels.h"

#include "variant.cuh"

static unsigned ctas(int64_t work) { return (unsigned)sat_min(sat_max(1, (work + 255) / 256), 1 << 20); }

/* ---- elements ---- */

static __device__ __forceinline__ float widen(float x) { return x; }
static __device__ __forceinline__ double widen(double x) { return x; }
static __device__ __forceinline__ float widen(__half x) { return __half2float(x); }
static __device__ __forceinline__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
static __device__ __forceinline__ void put(float *to, float x) { *to = x; }
static __device__ __forceinline__ void put(double *to, double x) { *to = x; }
static __device__ __forceinline__ void put(__half *to, float x) { *to = __float2half_rn(x); }
static __device__ __forceinline__ void put(__nv_bfloat16 *to, float x) { *to = __float2bfloat16_rn(x); }
static __device__ __forceinline__ float activate(sat_activation act, float x) { return sat_act_f32(act, x); }
static __device__ __forceinline__ double activate(sat_activation act, double x) { return sat_act_f64(act, x); }

/* ---- blocks into a matrix ---- */

struct unpack_job {
    const int64_t *ptr, *block;
    const int32_t *col, *rows;
    const void *values;
    void *to;
    int64_t blocks, height, line, area; /* of a block, in units of what is copied at once; so are the rest */
    int64_t row_step, col_step, stride, most_rows, most_cols;
    bool to_left, by_columns; /* by_columns: a line, and a row of what is written, is a column of the matrix */
};

/* I: the type of the divisions. Those of 64 bits would take longer than the memory does. */
template <typename U, typename I> static __global__ void unpack(unpack_job x) {
    I all = (I)(x.blocks * x.area), step = (I)gridDim.x * blockDim.x, area = (I)x.area, line = (I)x.line;
    for (I at = (I)blockIdx.x * blockDim.x + threadIdx.x; at < all; at += step) {
        I block = at / area, inside = at - block * area, height = inside / line;
        int64_t t = block, i = height, j = inside - height * line, row = x.rows[t];
        int64_t col = x.to_left ? t - x.ptr[row] : x.col[t];
        int64_t to_row = (x.by_columns ? col : row) * x.height + i, to_col = (x.by_columns ? row : col) * x.line + j;
        if (to_row >= x.most_rows || to_col >= x.most_cols) continue;
        int64_t from = (x.block ? x.block[t] : t) * x.area + i * x.row_step + j * x.col_step;
        ((U *)x.to)[to_row * x.stride + to_col] = ((const U *)x.values)[from];
    }
}

template <typename U> static void start_unpack(const unpack_job &x, cudaStream_t s) {
    int64_t all = x.blocks * x.area;
    if (all < INT32_MAX) unpack<U, uint32_t><<<ctas(all), 256, 0, s>>>(x);
    else unpack<U, int64_t><<<ctas(all), 256, 0, s>>>(x);
}

/* Copies as many bytes at once as all lines and pointers are multiples of; lines whose elements are apart go by
 * elements. */
static cudaError_t launch_unpack(const sat_problem *p, const sat_rows *r, int64_t blocks, int64_t most_cols,
                                 bool to_left, const sat_unpack *u, void *stream) {
    bool turn = u->by_columns;
    int64_t size = (int64_t)sat_dtype_size(p->a_dtype), unit = size, length = turn ? r->br : r->bc;
    int64_t most_rows = turn ? most_cols : r->m, row_step = turn ? r->col_step : r->row_step;
    int64_t col_step = turn ? r->row_step : r->col_step;
    if (turn) most_cols = r->m;
    if (col_step == 1) {
        uint64_t bits = (uint64_t)(length * size) | (uint64_t)(most_cols * size) | (uint64_t)(u->stride * size) |
                        (uint64_t)(uintptr_t)u->values | (uint64_t)(uintptr_t)u->to | 16u;
        unit = (int64_t)(bits & (~bits + 1));
    }
    int64_t line = length * size / unit, height = turn ? r->bc : r->br;
    unpack_job x = {r->ptr,
                    r->block,
                    r->col,
                    u->rows,
                    u->values,
                    u->to,
                    blocks,
                    height,
                    line,
                    height * line,
                    col_step == 1 ? line : row_step,
                    col_step,
                    u->stride * size / unit,
                    most_rows,
                    most_cols * size / unit,
                    to_left,
                    turn};
    cudaStream_t s = (cudaStream_t)stream;
    switch (unit) {
    case 2: start_unpack<uint16_t>(x, s); break;
    case 4: start_unpack<uint32_t>(x, s); break;
    case 8: start_unpack<uint2>(x, s); break;
    default: start_unpack<uint4>(x, s); break;
    }
    return cudaGetLastError();
}

cudaError_t sat_libs_spread(const sat_problem *p, const sat_pattern_view *a, const sat_unpack *u, void *stream) {
    sat_problem as_stored = *p;
    as_stored.matmul.transpose = SAT_NO_TRANSPOSE;
    sat_rows r = sat_device_rows(&as_stored, a);
    return launch_unpack(p, &r, a->stored_blocks, r.k, false, u, stream);
}

cudaError_t sat_libs_align_left(const sat_problem *p, const sat_pattern_view *a, const sat_unpack *u, void *stream) {
    sat_rows r = sat_device_rows(p, a);
    return launch_unpack(p, &r, a->stored_blocks, u->stride, true, u, stream);
}

/* ---- values in another order ---- */

template <typename U> static __global__ void gather(const U *values, const int32_t *from, U *to, int64_t count) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step) to[at] = values[from[at]];
}

cudaError_t sat_libs_gather(sat_dtype t, const void *values, const int32_t *from, void *to, int64_t count,
                            void *stream) {
    cudaStream_t s = (cudaStream_t)stream;
    unsigned grid = ctas(count);
    switch (sat_dtype_size(t)) {
    case 2: gather<<<grid, 256, 0, s>>>((const uint16_t *)values, from, (uint16_t *)to, count); break;
    case 4: gather<<<grid, 256, 0, s>>>((const uint32_t *)values, from, (uint32_t *)to, count); break;
    default: gather<<<grid, 256, 0, s>>>((const uint2 *)values, from, (uint2 *)to, count); break;
    }
    return cudaGetLastError();
}

/* ---- copies with aligned lines ---- */

template <typename U> struct alignas(16) chunk { U of[16 / sizeof(U)]; };

struct copy_job {
    const void *from;
    void *to;
    int64_t from_lines, from_length, from_stride, lines, chunks, stride; /* stride and chunks of the copy, in chunks */
};

/* A thread copies chunks of a line: its loads go one by one, since nothing is known of where a line begins. */
template <typename U> static __global__ void copy_lines(copy_job x) {
    constexpr int COUNT = 16 / (int)sizeof(U);
    for (int64_t line = blockIdx.y; line < x.lines; line += gridDim.y)
        for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < x.chunks;
             at += (int64_t)gridDim.x * blockDim.x) {
            const U *from = (const U *)x.from + line * x.from_stride + at * COUNT;
            const int64_t most = line < x.from_lines ? x.from_length - at * COUNT : 0;
            chunk<U> c = {};
#pragma unroll
            for (int e = 0; e < COUNT; e++)
                if (e < most) c.of[e] = from[e];
            ((chunk<U> *)x.to)[line * x.stride + at] = c;
        }
}

template <typename U> static void start_copy(const copy_job &x, cudaStream_t s) {
    unsigned threads = x.chunks >= 256 ? 256 : (unsigned)(x.chunks + 31) / 32 * 32;
    dim3 grid((unsigned)sat_min((x.chunks + threads - 1) / threads, 1024), (unsigned)sat_min(x.lines, 65535));
    copy_lines<U><<<grid, threads, 0, s>>>(x);
}

cudaError_t sat_libs_copy(sat_dtype t, const sat_copying *x, void *stream) {
    const int64_t step = 16 / (int64_t)sat_dtype_size(t);
    const bool by_rows = x->to.col_stride == 1;
    copy_job j = {x->from.data,
                  x->to.data,
                  by_rows ? x->from_rows : x->from_cols,
                  by_rows ? x->from_cols : x->from_rows,
                  by_rows ? x->from.row_stride : x->from.col_stride,
                  by_rows ? x->rows : x->cols,
                  ((by_rows ? x->cols : x->rows) + step - 1) / step,
                  (by_rows ? x->to.row_stride : x->to.col_stride) / step};
    cudaStream_t s = (cudaStream_t)stream;
    switch (sat_dtype_size(t)) {
    case 2: start_copy<uint16_t>(j, s); break;
    case 4: start_copy<uint32_t>(j, s); break;
    default: start_copy<uint64_t>(j, s); break;
    }
    return cudaGetLastError();
}

/* ---- pointer arrays ---- */

struct point_job {
    sat_pointers x;
    const int64_t *block;
    const int32_t *col;
    int by[3];
};

static __global__ void point(point_job w) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t e = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; e < w.x.count; e += step) {
        int64_t at = w.x.at ? w.x.at[e] : e;
        int64_t index[3] = {w.block ? w.block[at] : at, w.col[at], w.x.row[e]};
#pragma unroll
        for (int i = 0; i < 3; i++) {
            int64_t by = w.by[i] == SAT_BY_BLOCK ? index[0] : w.by[i] == SAT_BY_COL ? index[1] : index[2];
            w.x.to[i][e] = (const char *)w.x.base[i] + by * w.x.step[i];
        }
    }
}

cudaError_t sat_libs_point(const sat_problem *p, const sat_pattern_view *a, const sat_pointers *x, const int by[3],
                           void *stream) {
    sat_rows r = sat_device_rows(p, a);
    point_job w = {*x, r.block, r.col, {by[0], by[1], by[2]}};
    point<<<ctas(x->count), 256, 0, (cudaStream_t)stream>>>(w);
    return cudaGetLastError();
}

/* ---- after a product ---- */

struct finish_job {
    sat_finishing f;
    const int64_t *ptr; /* NULL: no row is left out */
    const void *bias;
    void *c;
    int64_t br, lines, length, row_stride, col_stride;
    bool by_rows; /* a line is a row of C */
    double beta;
    sat_activation act;
};

template <typename C, typename W> static __global__ void finish(finish_job x) {
    C *c = (C *)x.c;
    const W *sum = (const W *)x.f.sum;
    W beta = (W)x.beta;
    for (int64_t line = blockIdx.y; line < x.lines; line += gridDim.y)
        for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < x.length;
             at += (int64_t)gridDim.x * blockDim.x) {
            int64_t i = x.by_rows ? line : at, j = x.by_rows ? at : line, to = i * x.row_stride + j * x.col_stride;
            bool empty = x.ptr && x.ptr[i / x.br] == x.ptr[i / x.br + 1];
            W y = 0;
            if (!empty) y = sum ? sum[i * x.f.row_stride + j * x.f.col_stride] : widen(c[to]);
            if ((empty || sum) && beta != 0) y += beta * widen(c[to]);
            if (x.bias) y += widen(((const C *)x.bias)[i]);
            put(c + to, activate(x.act, y));
        }
}

cudaError_t sat_libs_finish(const sat_launch *l, const sat_finishing *f) {
    const sat_problem *p = l->problem;
    sat_rows r = sat_device_rows(p, l->pattern);
    bool by_rows = p->c.col_stride <= p->c.row_stride;
    finish_job x = {*f,
                    f->check_empty ? r.ptr : NULL,
                    sat_has_bias(p) ? l->operands[3] : NULL,
                    l->operands[2],
                    r.br,
                    by_rows ? p->m : p->n,
                    by_rows ? p->n : p->m,
                    p->c.row_stride,
                    p->c.col_stride,
                    by_rows,
                    p->beta,
                    sat_activation_of(p)};
    dim3 grid((unsigned)sat_min((x.length + 255) / 256, 1024), (unsigned)sat_min(x.lines, 65535));
    cudaStream_t s = (cudaStream_t)l->stream;
    switch (p->c_dtype) {
    case SAT_F64: finish<double, double><<<grid, 256, 0, s>>>(x); break;
    case SAT_F32: finish<float, float><<<grid, 256, 0, s>>>(x); break;
    case SAT_F16: finish<__half, float><<<grid, 256, 0, s>>>(x); break;
    case SAT_BF16: finish<__nv_bfloat16, float><<<grid, 256, 0, s>>>(x); break;
    }
    return cudaGetLastError();
}

/* ---- columns of a dense product that are not finite ---- */

struct recompute_job {
    sat_rows r;
    sat_matrix a, b, sums;
    int64_t n;
    int columns; /* of a CTA: a power of two */
    double alpha;
};

/* Row i of op(A) times column j of B: stored blocks alone. */
template <typename T, typename W>
static __device__ __forceinline__ W sparse_sum(const recompute_job &x, int64_t i, int64_t j) {
    const sat_rows &r = x.r;
    W sum = 0, part = 0;
    int terms = 0;
    for (int64_t t = r.ptr[i / r.br]; t < r.ptr[i / r.br + 1]; t++) {
        int64_t k0 = r.col[t] * r.bc, depth = sat_min(r.bc, r.k - k0); // beyond the matrix is padding: never read
        const T *a = (const T *)x.a.data + i * x.a.row_stride + k0 * x.a.col_stride;
        const T *b = (const T *)x.b.data + k0 * x.b.row_stride + j * x.b.col_stride;
        for (int64_t k = 0; k < depth; k++) {
            part += widen(a[k * x.a.col_stride]) * widen(b[k * x.b.row_stride]);
            if (++terms == SAT_SUM_PART) sum += part, part = 0, terms = 0;
        }
    }
    return sum + part;
}

/* A CTA has whole columns: all of its threads have read row 0 before the first of them writes to it. */
enum { RECOMPUTE_THREADS = 512 };
template <typename T, typename S, typename W>
static __global__ void __launch_bounds__(RECOMPUTE_THREADS) recompute(recompute_job x) {
    griddepcontrol_launch_dependents();
    griddepcontrol_wait();
    int64_t j = (int64_t)blockIdx.x * x.columns + threadIdx.x % x.columns;
    S *column = (S *)x.sums.data + j * x.sums.col_stride;
    bool wrong = j < x.n && !isfinite(widen(*column));
    if (!__syncthreads_or(wrong) || !wrong) return;
    W alpha = (W)x.alpha;
    for (int64_t i = threadIdx.x / x.columns; i < x.r.m; i += RECOMPUTE_THREADS / x.columns)
        put(column + i * x.sums.row_stride, alpha == 0 ? W(0) : alpha * sparse_sum<T, W>(x, i, j));
}

template <typename T, typename S, typename W>
static sat_status start_recompute(const sat_launch *l, const recompute_job &x) {
    return sat_start<recompute<T, S, W>>(l, sat_blocks(x.n, x.columns), RECOMPUTE_THREADS, 0, x);
}

sat_status sat_libs_recompute(const sat_launch *l, const sat_matrix *a, sat_dtype t, const sat_matrix *sums) {
    const sat_problem *p = l->problem;
    sat_matrix b = {l->operands[1], p->b.row_stride, p->b.col_stride};
    recompute_job x = {sat_device_rows(p, l->pattern), *a, b, *sums, p->n, 32, p->alpha};
    while (x.columns > 1 && x.n / x.columns < 128) x.columns /= 2; // CTAs for all of a GPU, should many be wrong
    bool wide = t == SAT_F32;
    switch (p->a_dtype) {
    case SAT_F64: return start_recompute<double, double, double>(l, x);
    case SAT_F32: return start_recompute<float, float, float>(l, x);
    case SAT_F16:
        return wide ? start_recompute<__half, float, float>(l, x) : start_recompute<__half, __half, float>(l, x);
    default:
        return wide ? start_recompute<__nv_bfloat16, float, float>(l, x)
                    : start_recompute<__nv_bfloat16, __nv_bfloat16, float>(l, x);
    }
}

/* ---- stored blocks out of a whole product ---- */

struct pick_job {
    const int32_t *rows, *col;
    const void *product;
    void *s;
    int64_t blocks, br, bc, m, n, stride;
    double beta;
};

/* I: the type of the divisions. Those of 64 bits would take longer than the memory does. */
template <typename S, typename P, typename W, typename I> static __global__ void pick(pick_job x) {
    I line = (I)x.bc, area = (I)x.br * line, all = (I)x.blocks * area, step = (I)gridDim.x * blockDim.x;
    S *s = (S *)x.s;
    W beta = (W)x.beta;
    for (I at = (I)blockIdx.x * blockDim.x + threadIdx.x; at < all; at += step) {
        I t = at / area, within = at - t * area, down = within / line;
        int64_t i = x.rows[t] * x.br + down, j = x.col[t] * x.bc + (within - down * line);
        W y = 0;
        if (i < x.m && j < x.n) {
            y = widen(((const P *)x.product)[i * x.stride + j]);
            if (beta != 0) y += beta * widen(s[at]);
        }
        put(s + at, y);
    }
}

template <typename S, typename P, typename W> static void start_pick(const pick_job &x, cudaStream_t s) {
    int64_t all = x.blocks * x.br * x.bc;
    if (all < INT32_MAX) pick<S, P, W, uint32_t><<<ctas(all), 256, 0, s>>>(x);
    else pick<S, P, W, int64_t><<<ctas(all), 256, 0, s>>>(x);
}

cudaError_t sat_libs_pick(const sat_launch *l, const int32_t *rows, sat_dtype t, const void *product, int64_t stride) {
    const sat_problem *p = l->problem;
    const sat_pattern_view *a = l->pattern;
    pick_job x = {rows,          a->device_col_idx, product, l->operands[2], a->stored_blocks,
                  a->block_rows, a->block_cols,     p->m,    p->n,           stride,
                  p->beta};
    cudaStream_t s = (cudaStream_t)l->stream;
    bool wide = t == SAT_F32;
    switch (p->c_dtype) {
    case SAT_F64: start_pick<double, double, double>(x, s); break;
    case SAT_F32: start_pick<float, float, float>(x, s); break;
    case SAT_F16:
        if (wide) start_pick<__half, float, float>(x, s);
        else start_pick<__half, __half, float>(x, s);
        break;
    case SAT_BF16:
        if (wide) start_pick<__nv_bfloat16, float, float>(x, s);
        else start_pick<__nv_bfloat16, __nv_bfloat16, float>(x, s);
    }
    return cudaGetLastError();
}

template <typename S> static __global__ void merge(const float *product, S *s, int64_t count, float beta) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step)
        put(s + at, product[at] + (beta != 0 ? beta * widen(s[at]) : 0));
}

cudaError_t sat_libs_merge(const sat_launch *l, const float *product) {
    const sat_problem *p = l->problem;
    int64_t count = l->pattern->stored_blocks * l->pattern->block_rows * l->pattern->block_cols;
    cudaStream_t s = (cudaStream_t)l->stream;
    float beta = (float)p->beta;
    if (p->c_dtype == SAT_F16) merge<<<ctas(count), 256, 0, s>>>(product, (__half *)l->operands[2], count, beta);
    else merge<<<ctas(count), 256, 0, s>>>(product, (__nv_bfloat16 *)l->operands[2], count, beta);
    return cudaGetLastError();
}
