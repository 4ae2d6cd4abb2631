// Small kernels around library calls; see cuda_kernels.h. Each is bound by memory, so none is clever.

#include "libs/cuda_kernels.h"

#include <type_traits>

#include "variant.cuh"

/* A dtype that no kernel below is for: `supports` lets none come here. */
static sat_status no_kernel(const sat_launch *l) {
    return sat_fail(SAT_INTERNAL, "%s: no kernel for these dtypes", l->variant->name);
}

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

/* ---- division ----
 *
 * A division by a number that is not known to the compiler takes more instructions than all the rest of a kernel that
 * copies an element. By a multiplication it takes three; where numbers have more than 31 bits, a copy takes so long
 * that it does not matter. */

struct short_divider {
    typedef uint32_t number; /* below 2^31 */
    uint32_t by, inverse;
    int shift;

    static short_divider of(int64_t by) {
        short_divider d = {(uint32_t)by, 0, 0};
        while (((uint64_t)1 << (d.shift + 1)) < (uint64_t)by)
            d.shift++; /* 2^31 * 2^(shift + 1) over `by`, rounded up */
        d.inverse = (uint32_t)((((uint64_t)1 << (32 + d.shift)) + (uint64_t)by - 1) / (uint64_t)by);
        return d;
    }
    __device__ __forceinline__ uint32_t divide(uint32_t x) const { return by == 1 ? x : __umulhi(x, inverse) >> shift; }
};

struct long_divider {
    typedef int64_t number;
    int64_t by;

    static long_divider of(int64_t by) { return {by}; }
    __device__ __forceinline__ int64_t divide(int64_t x) const { return x / by; }
};

/* Few units go one to a thread, to more multiprocessors; of many a thread has EACH in flight. */
enum { MANY_UNITS = 1 << 20, EACH_OF_MANY = 4 };

/* start<divider, EACH>(CTAs) for so many units. */
template <typename START> static sat_status start_units(int64_t all, START start) {
    unsigned grid = ctas((all + EACH_OF_MANY - 1) / EACH_OF_MANY);
    if (all < MANY_UNITS) return start.template operator()<short_divider, 1>(ctas(all));
    if (all < INT32_MAX / 2) return start.template operator()<short_divider, EACH_OF_MANY>(grid);
    return start.template operator()<long_divider, EACH_OF_MANY>(grid);
}

/* ---- blocks into a matrix ---- */

struct unpack_job {
    const int64_t *ptr, *block;
    const int32_t *col, *rows;
    const void *values;
    void *to;
    int64_t blocks, height, line, area; /* of a block, in units of what is copied at once; so are the rest */
    int64_t row_step, col_step, stride, most_rows, most_cols;
    bool to_left, by_columns; /* by_columns: a line, and a row of what is written, is a column of the matrix */
    bool in_order;            /* units are written in the order in which they are stored */
};

/* Where a unit comes from and where it goes; to < 0: nowhere. By the plan's own data alone. */
template <typename D>
static __device__ __forceinline__ void unpack_place(const unpack_job &x, const D &area, const D &line,
                                                    typename D::number at, int64_t &from, int64_t &to) {
    const typename D::number t = area.divide(at), inside = at - t * area.by, i = line.divide(inside),
                             j = inside - i * line.by;
    from = at, to = -1;
    if ((int64_t)t >= x.blocks) return;
    const int64_t row = x.rows[t], col = x.to_left ? (int64_t)t - x.ptr[row] : x.col[t];
    const int64_t to_row = (x.by_columns ? col : row) * x.height + i, to_col = (x.by_columns ? row : col) * x.line + j;
    if (!x.in_order) from = (x.block ? x.block[t] : t) * x.area + i * x.row_step + j * x.col_step;
    if (to_row < x.most_rows && to_col < x.most_cols) to = to_row * x.stride + to_col;
}

/* The places of the first units are known before the kernel before has ended. */
template <typename U, typename D, int EACH> static __global__ void unpack(unpack_job x, D area, D line) {
    typedef typename D::number number;
    griddepcontrol_launch_dependents();
    const number all = (number)(x.blocks * x.area), step = (number)gridDim.x * blockDim.x * EACH;
    number first = (number)blockIdx.x * blockDim.x * EACH + threadIdx.x;
    int64_t from[EACH], to[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) unpack_place(x, area, line, first + (number)e * blockDim.x, from[e], to[e]);
    griddepcontrol_wait();
    while (first < all) {
        U unit[EACH];
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (to[e] >= 0) unit[e] = ((const U *)x.values)[from[e]];
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (to[e] >= 0) ((U *)x.to)[to[e]] = unit[e];
        first += step;
#pragma unroll
        for (int e = 0; e < EACH; e++) unpack_place(x, area, line, first + (number)e * blockDim.x, from[e], to[e]);
    }
}

template <typename U> static sat_status start_unpack(const sat_launch *l, const unpack_job &x) {
    return start_units(x.blocks * x.area, [&]<typename D, int EACH>(unsigned grid) {
        return sat_start<unpack<U, D, EACH>>(l, grid, 256, 0, x, D::of(x.area), D::of(x.line));
    });
}

/* Copies as many bytes at once as all lines and pointers are multiples of; lines whose elements are apart go by
 * elements. */
static sat_status launch_unpack(const sat_launch *l, const sat_rows *r, int64_t most_cols, bool to_left,
                                const sat_unpack *u) {
    bool transposed = u->by_columns;
    int64_t size = (int64_t)sat_dtype_size(l->problem->a_dtype), unit = size, length = transposed ? r->br : r->bc;
    int64_t most_rows = transposed ? most_cols : r->m, row_step = transposed ? r->col_step : r->row_step;
    int64_t col_step = transposed ? r->row_step : r->col_step;
    if (transposed) most_cols = r->m;
    if (col_step == 1) {
        uint64_t bits = (uint64_t)(length * size) | (uint64_t)(most_cols * size) | (uint64_t)(u->stride * size) |
                        (uint64_t)(uintptr_t)u->values | (uint64_t)(uintptr_t)u->to | 16u;
        unit = (int64_t)(bits & (~bits + 1));
    }
    int64_t line = length * size / unit, height = transposed ? r->bc : r->br;
    unpack_job x = {r->ptr,
                    r->block,
                    r->col,
                    u->rows,
                    u->values,
                    u->to,
                    l->pattern->stored_blocks,
                    height,
                    line,
                    height * line,
                    col_step == 1 ? line : row_step,
                    col_step,
                    u->stride * size / unit,
                    most_rows,
                    most_cols * size / unit,
                    to_left,
                    transposed,
                    !r->block && col_step == 1};
    switch (unit) {
    case 2: return start_unpack<uint16_t>(l, x);
    case 4: return start_unpack<uint32_t>(l, x);
    case 8: return start_unpack<uint2>(l, x);
    default: return start_unpack<uint4>(l, x);
    }
}

sat_status sat_libs_spread(const sat_launch *l, const sat_unpack *u) {
    sat_problem as_stored = *l->problem;
    as_stored.matmul.transpose = SAT_NO_TRANSPOSE;
    sat_rows r = sat_device_rows(&as_stored, l->pattern);
    return launch_unpack(l, &r, r.k, false, u);
}

sat_status sat_libs_align_left(const sat_launch *l, const sat_unpack *u) {
    sat_rows r = sat_device_rows(l->problem, l->pattern);
    return launch_unpack(l, &r, u->stride, true, u);
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
    griddepcontrol_launch_dependents();
    griddepcontrol_wait();
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

template <typename U> static sat_status start_copy(const sat_launch *l, const copy_job &x) {
    unsigned threads = x.chunks >= 256 ? 256 : (unsigned)(x.chunks + 31) / 32 * 32;
    dim3 grid((unsigned)sat_min((x.chunks + threads - 1) / threads, 1024), (unsigned)sat_min(x.lines, 65535));
    return sat_start<copy_lines<U>>(l, grid, (int)threads, 0, x);
}

sat_status sat_libs_copy(const sat_launch *l, sat_dtype t, const sat_copying *x) {
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
    switch (sat_dtype_size(t)) {
    case 2: return start_copy<uint16_t>(l, j);
    case 4: return start_copy<uint32_t>(l, j);
    default: return start_copy<uint64_t>(l, j);
    }
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

/* ---- the guard of a dense product: sums of the stored blocks alone ---- */

struct guard_job {
    sat_rows r;
    sat_matrix a, b; /* A: with its zeros */
    double alpha;
};

static guard_job guard_of(const sat_launch *l, const sat_matrix *a) {
    const sat_problem *p = l->problem;
    return {sat_device_rows(p, l->pattern), *a, {l->operands[1], p->b.row_stride, p->b.col_stride}, p->alpha};
}

/* alpha times row i of op(A) times column j of B. */
template <typename T, typename W>
static __device__ __forceinline__ W sparse_sum(const guard_job &x, int64_t i, int64_t j) {
    const sat_rows &r = x.r;
    W sum = 0, part = 0, alpha = (W)x.alpha;
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
    return alpha == 0 ? W(0) : alpha * (sum + part);
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

/* T: of the operands; `void`: no guard. */
template <typename T, typename C, typename W> static __global__ void finish(finish_job x, guard_job guard) {
    griddepcontrol_launch_dependents();
    griddepcontrol_wait();
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
            if constexpr (!std::is_void<T>::value)
                if (!isfinite(sum[j * x.f.col_stride])) y = sparse_sum<T, W>(guard, i, j);
            if ((empty || sum) && beta != 0) y += beta * widen(c[to]);
            if (x.bias) y += widen(((const C *)x.bias)[i]);
            put(c + to, activate(x.act, y));
        }
}

template <typename T, typename C, typename W>
static sat_status start_finish(const sat_launch *l, const finish_job &x, const guard_job &guard) {
    int threads = x.length >= 256 ? 256 : (int)(x.length + 31) / 32 * 32;
    dim3 grid((unsigned)sat_min((x.length + threads - 1) / threads, 1024), (unsigned)sat_min(x.lines, 65535));
    return sat_start<finish<T, C, W>>(l, grid, threads, 0, x, guard);
}

sat_status sat_libs_finish(const sat_launch *l, const sat_finishing *f) {
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
    guard_job guard = f->guard ? guard_of(l, f->guard) : guard_job();
    switch (p->c_dtype) {
    case SAT_F64:
        return f->guard ? start_finish<double, double, double>(l, x, guard)
                        : start_finish<void, double, double>(l, x, guard);
    case SAT_F16:
        return f->guard ? start_finish<__half, __half, float>(l, x, guard)
                        : start_finish<void, __half, float>(l, x, guard);
    case SAT_BF16:
        return f->guard ? start_finish<__nv_bfloat16, __nv_bfloat16, float>(l, x, guard)
                        : start_finish<void, __nv_bfloat16, float>(l, x, guard);
    case SAT_F32:
        if (!f->guard) return start_finish<void, float, float>(l, x, guard);
        if (p->a_dtype == SAT_F32) return start_finish<float, float, float>(l, x, guard);
        if (p->a_dtype == SAT_F16) return start_finish<__half, float, float>(l, x, guard);
        if (p->a_dtype == SAT_BF16) return start_finish<__nv_bfloat16, float, float>(l, x, guard);
    }
    return no_kernel(l);
}

/* ---- columns of a dense product that are not finite, where they are ---- */

struct recompute_job {
    guard_job guard;
    sat_matrix sums;
    int64_t n;
    int columns; /* of a CTA: a power of two */
};

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
    for (int64_t i = threadIdx.x / x.columns; i < x.guard.r.m; i += RECOMPUTE_THREADS / x.columns)
        put(column + i * x.sums.row_stride, sparse_sum<T, W>(x.guard, i, j));
}

template <typename T, typename S, typename W>
static sat_status start_recompute(const sat_launch *l, const recompute_job &x) {
    return sat_start<recompute<T, S, W>>(l, sat_blocks(x.n, x.columns), RECOMPUTE_THREADS, 0, x);
}

sat_status sat_libs_recompute(const sat_launch *l, const sat_matrix *a, sat_dtype t, const sat_matrix *sums) {
    const sat_problem *p = l->problem;
    recompute_job x = {guard_of(l, a), *sums, p->n, 32};
    while (x.columns > 1 && x.n / x.columns < 128) x.columns /= 2; // CTAs for all of a GPU, should many be wrong
    bool wide = t == SAT_F32;
    switch (p->a_dtype) {
    case SAT_F64: return start_recompute<double, double, double>(l, x);
    case SAT_F32: return start_recompute<float, float, float>(l, x);
    case SAT_F16:
        return wide ? start_recompute<__half, float, float>(l, x) : start_recompute<__half, __half, float>(l, x);
    case SAT_BF16:
        return wide ? start_recompute<__nv_bfloat16, float, float>(l, x)
                    : start_recompute<__nv_bfloat16, __nv_bfloat16, float>(l, x);
    }
    return no_kernel(l);
}

/* ---- stored blocks out of a whole product ---- */

struct pick_job {
    const int32_t *rows, *col;
    const void *product;
    void *s;
    int64_t blocks, br, bc, m, n, stride;
    double beta;
};

/* Where in the product an element is; -1: beyond the matrix. By the plan's own data alone. */
template <typename D>
static __device__ __forceinline__ int64_t pick_place(const pick_job &x, const D &area, const D &line,
                                                     typename D::number at) {
    const typename D::number t = area.divide(at), inside = at - t * area.by, down = line.divide(inside);
    if ((int64_t)t >= x.blocks) return -1;
    const int64_t i = x.rows[t] * x.br + down, j = x.col[t] * x.bc + (inside - down * line.by);
    return i < x.m && j < x.n ? i * x.stride + j : -1;
}

/* As `unpack`. */
template <typename S, typename P, typename W, typename D, int EACH>
static __global__ void pick(pick_job x, D area, D line) {
    typedef typename D::number number;
    griddepcontrol_launch_dependents();
    const number all = (number)x.blocks * area.by, step = (number)gridDim.x * blockDim.x * EACH;
    number first = (number)blockIdx.x * blockDim.x * EACH + threadIdx.x;
    int64_t from[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) from[e] = pick_place(x, area, line, first + (number)e * blockDim.x);
    griddepcontrol_wait();
    S *s = (S *)x.s;
    W beta = (W)x.beta;
    while (first < all) {
        W y[EACH];
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            y[e] = 0;
            if (from[e] < 0) continue;
            y[e] = widen(((const P *)x.product)[from[e]]);
            if (beta != 0) y[e] += beta * widen(s[first + (number)e * blockDim.x]);
        }
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const number at = first + (number)e * blockDim.x;
            if (at < all) put(s + at, y[e]);
        }
        first += step;
#pragma unroll
        for (int e = 0; e < EACH; e++) from[e] = pick_place(x, area, line, first + (number)e * blockDim.x);
    }
}

template <typename S, typename P, typename W> static sat_status start_pick(const sat_launch *l, const pick_job &x) {
    return start_units(x.blocks * x.br * x.bc, [&]<typename D, int EACH>(unsigned grid) {
        return sat_start<pick<S, P, W, D, EACH>>(l, grid, 256, 0, x, D::of(x.br * x.bc), D::of(x.bc));
    });
}

sat_status sat_libs_pick(const sat_launch *l, const int32_t *rows, sat_dtype t, const void *product, int64_t stride) {
    const sat_problem *p = l->problem;
    const sat_pattern_view *a = l->pattern;
    pick_job x = {rows,          a->device_col_idx, product, l->operands[2], a->stored_blocks,
                  a->block_rows, a->block_cols,     p->m,    p->n,           stride,
                  p->beta};
    bool wide = t == SAT_F32;
    switch (p->c_dtype) {
    case SAT_F64: return start_pick<double, double, double>(l, x);
    case SAT_F16: return wide ? start_pick<__half, float, float>(l, x) : start_pick<__half, __half, float>(l, x);
    case SAT_BF16:
        return wide ? start_pick<__nv_bfloat16, float, float>(l, x)
                    : start_pick<__nv_bfloat16, __nv_bfloat16, float>(l, x);
    case SAT_F32: return start_pick<float, float, float>(l, x);
    }
    return no_kernel(l);
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
    else if (p->c_dtype == SAT_BF16)
        merge<<<ctas(count), 256, 0, s>>>(product, (__nv_bfloat16 *)l->operands[2], count, beta);
    else return cudaErrorInvalidValue;
    return cudaGetLastError();
}
