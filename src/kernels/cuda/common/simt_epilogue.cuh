/* The epilogue of kernels without tensor cores: a thread stores its accumulators, of f32 or f64, either to C with
 * alpha, beta, bias and activation, or unchanged to the partial sums of a split row. Rows count from the block row's
 * first. */
#ifndef SAT_SIMT_EPILOGUE_CUH
#define SAT_SIMT_EPILOGUE_CUH

#include "kernels/cuda/common/scheduler.h"

/* In which direction C, and the partial sums, can be stored 16 bytes at a time. */
struct vector_access {
    bool along_n, along_m, partial;
};

static inline vector_access vector_access_of(const sat_problem *p, int64_t block_rows) {
    int64_t size = (int64_t)sat_dtype_size(p->c_dtype), cs = p->c.col_stride, rs = p->c.row_stride;
    bool aligned = p->c_align >= 16 && (p->batch == 1 || p->c.batch_stride * size % 16 == 0);
    vector_access access = {aligned && cs == 1 && rs * size % 16 == 0,
                            aligned && rs == 1 && cs * size % 16 == 0 && block_rows * size % 16 == 0,
                            p->n * size % 16 == 0};
    return access;
}

template <typename T> struct simt_epilogue {
    T *c;
    const T *bias; /* NULL: none */
    int64_t row_stride, col_stride, n;
    int rows;
    T alpha, beta;
    sat_activation activation;
    bool along_n, along_m;
};

/* Of a long sum in parts (long_sums.h), the first part applies beta*C and the bias, later parts add to what is stored,
 * and the last one applies the activation. */
template <typename T>
__device__ __forceinline__ simt_epilogue<T>
simt_epilogue_of(const sat_epilogue &o, const sat_rows &r, const sat_device_schedule &work, const sat_work_item &item,
                 const vector_access &access, bool first = true, bool last = true) {
    int64_t top = item.row * r.br;
    simt_epilogue<T> s;
    s.n = o.n, s.rows = (int)sat_min(r.br, o.m - top);
    if (item.partial >= 0) {
        s.c = (T *)work.partial + item.partial * r.br * o.n;
        s.bias = NULL, s.row_stride = o.n, s.col_stride = 1, s.alpha = 1, s.beta = 0;
        s.activation = SAT_ACT_NONE, s.along_n = access.partial, s.along_m = false;
    } else {
        s.c = (T *)o.c + top * o.row_stride;
        s.bias = o.bias ? (const T *)o.bias + top : NULL;
        s.row_stride = o.row_stride, s.col_stride = o.col_stride, s.alpha = (T)o.alpha, s.beta = (T)o.beta;
        s.activation = o.activation, s.along_n = access.along_n, s.along_m = access.along_m;
    }
    if (!first) s.beta = 1, s.bias = NULL;
    if (!last) s.activation = SAT_ACT_NONE;
    return s;
}

template <typename T> struct alignas(16) simt_vector { T x[16 / sizeof(T)]; };

/* V elements, `step` apart from `to` on, of which `left` exist; as one vector of 16 bytes if `aligned`. */
template <typename T, int V>
__device__ __forceinline__ void simt_store(const simt_epilogue<T> &s, T *to, int64_t step, T (&x)[V], int64_t left,
                                           bool aligned, bool activate) {
    const bool vector = V * sizeof(T) == 16 && aligned && left >= V;
    if (s.beta != 0) {
        simt_vector<T> old;
        if (vector) old = *(const simt_vector<T> *)to;
#pragma unroll
        for (int e = 0; e < V; e++)
            if (e < left) x[e] += s.beta * (vector ? old.x[e % (16 / sizeof(T))] : to[e * step]);
    }
    if (activate && s.activation != SAT_ACT_NONE)
#pragma unroll
        for (int e = 0; e < V; e++) x[e] = sat_act(s.activation, x[e]);
    if (vector) {
        simt_vector<T> y;
#pragma unroll
        for (int e = 0; e < V; e++) y.x[e % (16 / sizeof(T))] = x[e];
        *(simt_vector<T> *)to = y;
        return;
    }
#pragma unroll
    for (int e = 0; e < V; e++)
        if (e < left) to[e * step] = x[e];
}

/* Columns j .. j+V-1 of row i. */
template <typename T, int V>
__device__ __forceinline__ void simt_store_row(const simt_epilogue<T> &s, int i, int64_t j, const T (&sum)[V],
                                               bool activate) {
    if (i >= s.rows || j >= s.n) return;
    T x[V], bias = s.bias ? s.bias[i] : T(0);
#pragma unroll
    for (int e = 0; e < V; e++) x[e] = s.alpha * sum[e] + bias;
    simt_store<T, V>(s, s.c + i * s.row_stride + j * s.col_stride, s.col_stride, x, s.n - j, s.along_n, activate);
}

/* Rows i .. i+V-1 of column j. */
template <typename T, int V>
__device__ __forceinline__ void simt_store_column(const simt_epilogue<T> &s, int i, int64_t j, const T (&sum)[V]) {
    if (i >= s.rows || j >= s.n) return;
    T x[V];
#pragma unroll
    for (int e = 0; e < V; e++) x[e] = s.alpha * sum[e] + (s.bias && i + e < s.rows ? s.bias[i + e] : T(0));
    simt_store<T, V>(s, s.c + i * s.row_stride + j * s.col_stride, s.row_stride, x, s.rows - i, s.along_m, true);
}

/* Applies the activation in place to an element that this thread has stored. The code of an activation is long, and
 * accumulators in registers cannot be indexed in a loop; so the loop goes over memory. C has the accumulators' type, so
 * no precision is lost. */
template <typename T> __device__ __forceinline__ void simt_activate(const simt_epilogue<T> &s, int i, int64_t j) {
    if (i >= s.rows || j >= s.n) return;
    T *at = s.c + i * s.row_stride + j * s.col_stride;
    *at = sat_act(s.activation, *at);
}

#endif
