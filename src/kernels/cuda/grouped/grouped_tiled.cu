// cuda_grouped_tiled, cuda_grouped_weights_tiled: tiles of 64x64 by plain multiply-adds, for any dtype, strides and
// alignment. A thread has 4x4 sums. Strips of both operands go through registers to shared memory, where they have the
// sums' type. Good for f32 and f64, and for layouts that the tensor cores' kernels do not take.

#include "kernels/cuda/common/simt_rates.h"
#include "kernels/cuda/grouped/grouped_tiles.h"

enum { SIDE = 64, BK = 16, THREADS = 256, EACH = 4 };

/* Strides are in elements. A product is C = A*B: of Y, A is rows of X and B is W[group]; of the gradient, A is rows of
 * X transposed and B is rows of Z. Row r of a group moves A by a_group, and B by b_group; W's group moves B by
 * w_stride. */
struct params {
    grouped_order order;
    sat_problem p;
    const void *a, *b, *bias;
    void *c;
    int64_t a_row, a_depth, b_depth, b_col, b_row, w_stride;
};

/* ---- a strip of an operand: SIDE lines by BK along the depth, to shared memory as [BK][SIDE] ---- */

template <typename E, typename T> struct strip {
    static constexpr int PITCH = SIDE + 1;
    T held[SIDE * BK / THREADS];

    __device__ __forceinline__ static void position(bool along_depth, int pass, int &line, int &step) {
        int at = (int)threadIdx.x + pass * THREADS;
        line = along_depth ? at / BK : at % SIDE, step = along_depth ? at % BK : at / SIDE;
    }
    /* What is beyond `lines` or `depth` is zero, and not read. */
    __device__ __forceinline__ void load(const E *from, int64_t line_stride, int64_t depth_stride, int64_t lines,
                                         int64_t depth) {
#pragma unroll
        for (int pass = 0; pass < SIDE * BK / THREADS; pass++) {
            int line, step;
            position(depth_stride < line_stride, pass, line, step);
            held[pass] = line < lines && step < depth ? (T)from[line * line_stride + step * depth_stride] : T(0);
        }
    }
    __device__ __forceinline__ void store(T (*to)[PITCH], int64_t line_stride, int64_t depth_stride) const {
#pragma unroll
        for (int pass = 0; pass < SIDE * BK / THREADS; pass++) {
            int line, step;
            position(depth_stride < line_stride, pass, line, step);
            to[step][line] = held[pass];
        }
    }
};

/* ---- epilogue ---- */

/* Not inlined: activations are long, and each thread calls it many times. */
template <typename T>
static __device__ __noinline__ void store_element(const params &x, int group, int64_t i, int64_t j, T sum) {
    const sat_problem &p = x.p;
    int64_t at = i * p.c.row_stride + j * p.c.col_stride + (x.order.weights ? group * p.c.batch_stride : 0);
    T y = (T)p.alpha * sum;
    if (p.beta != 0) y += (T)p.beta * sat_load_as(T(), p.c_dtype, x.c, at);
    if (x.bias && group >= 0) y += sat_load_as(T(), p.c_dtype, x.bias, group * p.n + j);
    sat_store_from(sat_act(p.grouped.activation, y), p.c_dtype, x.c, at);
}

/* ---- kernel ---- */

/* E: the elements' type, T: the sums'. A long f32 sum is made of parts. */
template <typename E, typename T>
static __global__ void __launch_bounds__(THREADS, 2) multiply(const __grid_constant__ params x) {
    typedef strip<E, T> strip_t;
    __shared__ T a_strip[BK][strip_t::PITCH], b_strip[BK][strip_t::PITCH];
    __shared__ grouped_tile next;
    __shared__ bool some;
    grouped_search search;
    if (threadIdx.x < 32) search.start(x.order);
    for (unsigned number = blockIdx.x;; number += gridDim.x) {
        __syncthreads(); // all have read the tile before
        if (threadIdx.x < 32) {
            grouped_tile t = {};
            bool is = search.find(x.order, number, &t);
            if (threadIdx.x == 0) next = t, some = is;
        }
        __syncthreads();
        if (!some) return;
        grouped_tile t = next;
        bool weights = x.order.weights;
        int64_t i0 = (weights ? 0 : t.begin) + (int64_t)t.row_tile * SIDE, i_end = weights ? x.order.k : t.end;
        int64_t j0 = (int64_t)t.panel * SIDE, depth = weights ? t.end - t.begin : t.group < 0 ? 0 : x.p.k;
        const E *a = (const E *)x.a + i0 * x.a_row + (weights ? t.begin * x.a_depth : 0);
        const E *b = (const E *)x.b + j0 * x.b_col + (weights ? t.begin * x.b_row : sat_max(0, t.group) * x.w_stride);
        int down = threadIdx.x / 16, over = threadIdx.x % 16;
        T total[EACH][EACH] = {}, sum[EACH][EACH] = {};
        strip_t a_held, b_held;
        for (int64_t k = 0; k < depth; k += BK) {
            a_held.load(a + k * x.a_depth, x.a_row, x.a_depth, i_end - i0, depth - k);
            b_held.load(b + k * x.b_depth, x.b_col, x.b_depth, x.p.n - j0, depth - k);
            __syncthreads(); // all have read the strips before
            a_held.store(a_strip, x.a_row, x.a_depth), b_held.store(b_strip, x.b_col, x.b_depth);
            __syncthreads();
#pragma unroll
            for (int s = 0; s < BK; s++) {
                T u[EACH], v[EACH];
#pragma unroll
                for (int e = 0; e < EACH; e++) u[e] = a_strip[s][down + 16 * e], v[e] = b_strip[s][over + 16 * e];
#pragma unroll
                for (int e = 0; e < EACH * EACH; e++) sum[e / EACH][e % EACH] += u[e / EACH] * v[e % EACH];
            }
            if ((k + BK) % SAT_SUM_PART != 0 && k + BK < depth) continue;
#pragma unroll
            for (int e = 0; e < EACH * EACH; e++)
                total[e / EACH][e % EACH] += sum[e / EACH][e % EACH], sum[e / EACH][e % EACH] = 0;
        }
#pragma unroll
        for (int e = 0; e < EACH * EACH; e++) {
            int64_t i = i0 + down + 16 * (e / EACH), j = j0 + over + 16 * (e % EACH);
            if (i < i_end && j < x.p.n) store_element<T>(x, t.group, i, j, total[e / EACH][e % EACH]);
        }
    }
}

/* ---- host ---- */

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)a, (void)d;
    return grouped_fits(p, SIDE, SIDE);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)a;
    return grouped_seconds(p, d, SIDE, SIDE, 0.3 * sat_simt_rate(d, p->compute_dtype));
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    bool weights = p->op == SAT_GROUPED_WEIGHTS;
    double tiles = grouped_most_tiles(p, SIDE, SIDE);
    if (p->n == 0 || (weights ? p->k * p->grouped.groups : p->m) == 0) return SAT_OK;
    params x = {
        grouped_order_of(p, l->operands[3], SIDE, SIDE), *p, l->operands[0], l->operands[1], NULL, l->operands[2]};
    if (!weights && p->grouped.bias) x.bias = l->operands[4];
    x.a_row = weights ? p->a.col_stride : p->a.row_stride, x.a_depth = weights ? p->a.row_stride : p->a.col_stride;
    x.b_depth = x.b_row = p->b.row_stride, x.b_col = p->b.col_stride, x.w_stride = p->b.batch_stride;
    unsigned grid = (unsigned)fmin(tiles, 16.0 * l->device->multiprocessors);
    cudaStream_t stream = (cudaStream_t)l->stream;
    switch (p->a_dtype) {
    case SAT_F16: multiply<__half, float><<<grid, THREADS, 0, stream>>>(x); break;
    case SAT_BF16: multiply<__nv_bfloat16, float><<<grid, THREADS, 0, stream>>>(x); break;
    case SAT_F64: multiply<double, double><<<grid, THREADS, 0, stream>>>(x); break;
    default: multiply<float, float><<<grid, THREADS, 0, stream>>>(x);
    }
    return sat_launched(l);
}

SAT_FAMILY(cuda_grouped_tiled) = {
    .revision = "1",
    .op = SAT_GROUPED,
    .backend = SAT_CUDA,
    .flags = SAT_V_SCRATCH,
    .about = "tiles of 64x64 without tensor cores: any dtype, strides and alignment",
    .supports = supports,
    .estimate = estimate,
    .launch = launch,
};

SAT_FAMILY(cuda_grouped_weights_tiled) = {
    .revision = "1",
    .op = SAT_GROUPED_WEIGHTS,
    .backend = SAT_CUDA,
    .flags = SAT_V_SCRATCH,
    .about = "tiles of 64x64 without tensor cores: any dtype, strides and alignment",
    .supports = supports,
    .estimate = estimate,
    .launch = launch,
};
