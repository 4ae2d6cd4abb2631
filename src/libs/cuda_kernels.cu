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
    bool to_left;
};

template <typename U> static __global__ void unpack(unpack_job x) {
    int64_t all = x.blocks * x.area, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < all; at += step) {
        int64_t t = at / x.area, i = at % x.area / x.line, j = at % x.line, row = x.rows[t];
        int64_t to_row = row * x.height + i, to_col = (x.to_left ? t - x.ptr[row] : x.col[t]) * x.line + j;
        if (to_row >= x.most_rows || to_col >= x.most_cols) continue;
        int64_t from = (x.block ? x.block[t] : t) * x.area + i * x.row_step + j * x.col_step;
        ((U *)x.to)[to_row * x.stride + to_col] = ((const U *)x.values)[from];
    }
}

/* Copies as many bytes at once as all lines and pointers are multiples of; a transposed block goes by elements. */
static cudaError_t launch_unpack(const sat_problem *p, const sat_rows *r, int64_t blocks, int64_t most_cols,
                                 bool to_left, const sat_unpack *u, void *stream) {
    int64_t size = (int64_t)sat_dtype_size(p->a_dtype), unit = size;
    if (r->col_step == 1) {
        uint64_t bits = (uint64_t)(r->bc * size) | (uint64_t)(most_cols * size) | (uint64_t)(u->stride * size) |
                        (uint64_t)(uintptr_t)u->values | (uint64_t)(uintptr_t)u->to | 16u;
        unit = (int64_t)(bits & (~bits + 1));
    }
    int64_t line = r->bc * size / unit;
    unpack_job x = {r->ptr,
                    r->block,
                    r->col,
                    u->rows,
                    u->values,
                    u->to,
                    blocks,
                    r->br,
                    line,
                    r->br * line,
                    r->col_step == 1 ? line : r->row_step,
                    r->col_step,
                    u->stride * size / unit,
                    r->m,
                    most_cols * size / unit,
                    to_left};
    unsigned grid = ctas(blocks * x.area);
    cudaStream_t s = (cudaStream_t)stream;
    switch (unit) {
    case 2: unpack<uint16_t><<<grid, 256, 0, s>>>(x); break;
    case 4: unpack<uint32_t><<<grid, 256, 0, s>>>(x); break;
    case 8: unpack<uint2><<<grid, 256, 0, s>>>(x); break;
    default: unpack<uint4><<<grid, 256, 0, s>>>(x); break;
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
    W beta = (W)x.beta;
    for (int64_t line = blockIdx.y; line < x.lines; line += gridDim.y)
        for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < x.length;
             at += (int64_t)gridDim.x * blockDim.x) {
            int64_t i = x.by_rows ? line : at, j = x.by_rows ? at : line, to = i * x.row_stride + j * x.col_stride;
            bool empty = x.ptr && x.ptr[i / x.br] == x.ptr[i / x.br + 1];
            W y = 0;
            if (!empty) y = x.f.sum ? (W)x.f.sum[i * x.f.row_stride + j * x.f.col_stride] : widen(c[to]);
            if ((empty || x.f.sum) && beta != 0) y += beta * widen(c[to]);
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

/* ---- stored blocks out of a whole product ---- */

struct pick_job {
    const int32_t *rows, *col;
    const void *product;
    void *s;
    int64_t blocks, br, bc, m, n, stride;
    double beta;
};

template <typename S, typename P, typename W> static __global__ void pick(pick_job x) {
    int64_t area = x.br * x.bc, all = x.blocks * area, step = (int64_t)gridDim.x * blockDim.x;
    S *s = (S *)x.s;
    W beta = (W)x.beta;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < all; at += step) {
        int64_t t = at / area, i = x.rows[t] * x.br + at % area / x.bc, j = x.col[t] * x.bc + at % x.bc;
        W y = 0;
        if (i < x.m && j < x.n) {
            y = widen(((const P *)x.product)[i * x.stride + j]);
            if (beta != 0) y += beta * widen(s[at]);
        }
        put(s + at, y);
    }
}

cudaError_t sat_libs_pick(const sat_launch *l, const int32_t *rows, sat_dtype t, const void *product, int64_t stride) {
    const sat_problem *p = l->problem;
    const sat_pattern_view *a = l->pattern;
    pick_job x = {rows,          a->device_col_idx, product, l->operands[2], a->stored_blocks,
                  a->block_rows, a->block_cols,     p->m,    p->n,           stride,
                  p->beta};
    unsigned grid = ctas(x.blocks * x.br * x.bc);
    cudaStream_t s = (cudaStream_t)l->stream;
    bool wide = t == SAT_F32;
    switch (p->c_dtype) {
    case SAT_F64: pick<double, double, double><<<grid, 256, 0, s>>>(x); break;
    case SAT_F32: pick<float, float, float><<<grid, 256, 0, s>>>(x); break;
    case SAT_F16:
        if (wide) pick<__half, float, float><<<grid, 256, 0, s>>>(x);
        else pick<__half, __half, float><<<grid, 256, 0, s>>>(x);
        break;
    case SAT_BF16:
        if (wide) pick<__nv_bfloat16, float, float><<<grid, 256, 0, s>>>(x);
        else pick<__nv_bfloat16, __nv_bfloat16, float><<<grid, 256, 0, s>>>(x);
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
