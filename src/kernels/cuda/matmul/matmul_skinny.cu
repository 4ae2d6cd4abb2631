// cuda_matmul_skinny: 1 to 64 columns of 16-bit elements by tensor cores, bound by reading the stored blocks once.
//
// A CTA has tile_m rows of a piece of a block row. Its warps share out the piece's k in stages of 32 or 64: each keeps
// a ring of stages of its own in shared memory, filled by cp.async, so no warp waits for another until the sums of all
// are added at the end, in the order of the warps. What counts is bytes under way: the rings of an SM's CTAs take most
// of its shared memory. Values are asked for as soon as the row's place is known; only B waits for the column indices.

#include "kernels/cuda/matmul/skinny_ring.cuh"

// ---- output

// A warp's sums into shared memory, ROW and COL apart.
template <int MT, int NT, int ROW, int COL>
__device__ __forceinline__ void leave_sums(const float (&sum)[MT][NT][4], float *to) {
    int lane = threadIdx.x % 32;
    to += lane / 4 * ROW + lane % 4 * 2 * COL;
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) to[(i * 16 + e / 2 * 8) * ROW + (j * 8 + e % 2) * COL] = sum[i][j][e];
}

__device__ __forceinline__ void store4(sat_dtype t, void *c, int64_t at, const float (&y)[4]) {
    if (t == SAT_F32) {
        *(float4 *)((float *)c + at) = make_float4(y[0], y[1], y[2], y[3]);
    } else if (t == SAT_F16) {
        __half2 h[2] = {__floats2half2_rn(y[0], y[1]), __floats2half2_rn(y[2], y[3])};
        *(uint2 *)((__half *)c + at) = make_uint2(*(uint32_t *)&h[0], *(uint32_t *)&h[1]);
    } else {
        __nv_bfloat162 h[2] = {__floats2bfloat162_rn(y[0], y[1]), __floats2bfloat162_rn(y[2], y[3])};
        *(uint2 *)((__nv_bfloat16 *)c + at) = make_uint2(*(uint32_t *)&h[0], *(uint32_t *)&h[1]);
    }
}

// Four elements next to each other down a column of C, or along a row, from row i of the block row and column j on.
template <bool DOWN>
__device__ __forceinline__ void put4(const job &x, const sat_epilogue &out, const sat_work_item &piece, int i, int j,
                                     float (&y)[4]) {
    constexpr int ROW = DOWN ? 1 : 0, COL = 1 - ROW;
    if (piece.slot >= 0) {
        float *partial = (float *)x.w.partial + ((int64_t)piece.slot * x.r.br + i) * out.n + j;
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (j + e * COL < out.n) partial[e * ROW * out.n + e * COL] = y[e];
        return;
    }
    int64_t row = (int64_t)piece.row * x.r.br + i;
    bool wide = x.wide && row + 3 * ROW < out.m && j + 3 * COL < out.n;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        if (row + e * ROW >= out.m || j + e * COL >= out.n) break;
        y[e] = sat_epilogue_apply(out, row + e * ROW, j + e * COL, y[e]);
        if (!wide)
            sat_store_from(y[e], out.dtype, out.c, (row + e * ROW) * out.row_stride + (j + e * COL) * out.col_stride);
    }
    if (wide) store4(out.dtype, out.c, row * out.row_stride + j * out.col_stride, y);
}

// Adds what the warps left, in their order. C's contiguous side is the inner one.
template <int MT, int NT, bool DOWN>
__device__ __forceinline__ void add_up(const job &x, const sat_epilogue &out, const sat_work_item &piece,
                                       const float (&sum)[MT][NT][4], char *shared, int warps) {
    typedef shape<MT, NT> S;
    constexpr int ROW = DOWN ? 1 : S::columns + 4, COL = DOWN ? S::rows + 4 : 1;
    leave_sums<MT, NT, ROW, COL>(sum, (float *)(shared + threadIdx.x / 32 * S::ring));
    __syncthreads();
    for (int e = threadIdx.x * 4; e < S::rows * S::columns; e += WARPS * 32 * 4) {
        int i = DOWN ? e % S::rows : e / S::columns, j = DOWN ? e / S::rows : e % S::columns;
        if (j >= out.n) continue;
        float y[4] = {0, 0, 0, 0};
        for (int w = 0; w < warps; w++) {
            float4 v = *(const float4 *)(shared + w * S::ring + (i * ROW + j * COL) * 4);
            y[0] += v.x, y[1] += v.y, y[2] += v.z, y[3] += v.w;
        }
        put4<DOWN>(x, out, piece, (int)blockIdx.y * S::rows + i, j, y);
    }
}

// ---- the kernel: blockIdx.x a piece, .y a tile of its rows, .z an item of the batch

template <typename MATH, int MT, int NT>
static __global__ void __launch_bounds__(WARPS * 32, shape<MT, NT>::ctas) multiply(const __grid_constant__ job x) {
    typedef shape<MT, NT> S;
    typedef typename MATH::element T;
    extern __shared__ __align__(128) char shared[];
    sat_work_item piece = sat_work_item_at(x.r, x.w.piece, blockIdx.x);
    ring<MATH, MT, NT> g = {x, x.r.col + piece.first, piece.first, piece.count};
    g.values = (const T *)x.values + blockIdx.z * x.a_batch + blockIdx.y * S::rows * x.r.row_step;
    g.b = (const T *)x.b + blockIdx.z * x.b_batch;
    int stages = (piece.count * x.bc + S::depth - 1) / S::depth, warps = stages < WARPS ? stages : WARPS;
    float sum[MT][NT][4] = {};
    multiply_share<MATH, MT, NT>(sum, g, shared + threadIdx.x / 32 * S::ring, stages);
    sat_epilogue out = x.out;
    out.c = (char *)out.c + blockIdx.z * x.c_batch;
    if (out.row_stride == 1) add_up<MT, NT, true>(x, out, piece, sum, shared, warps);
    else add_up<MT, NT, false>(x, out, piece, sum, shared, warps);
}

// ---- host

typedef void (*kernel)(job);
struct instance {
    kernel run;
    int shared, depth;
};

template <typename MATH, int MT, int NT> static instance instance_of() {
    instance i = {multiply<MATH, MT, NT>, WARPS * shape<MT, NT>::ring, shape<MT, NT>::depth};
    return i;
}

template <typename MATH, int MT> static instance with_rows(int columns) {
    return columns == 8    ? instance_of<MATH, MT, 1>()
           : columns == 16 ? instance_of<MATH, MT, 2>()
           : columns == 32 ? instance_of<MATH, MT, 4>()
                           : instance_of<MATH, MT, 8>();
}

template <typename MATH> static instance with_math(int rows, int columns) {
    return rows == 16   ? with_rows<MATH, 1>(columns)
           : rows == 32 ? with_rows<MATH, 2>(columns)
                        : with_rows<MATH, 4>(columns);
}

static instance choose(const sat_variant *v) {
    return v->instance.dtype == SAT_F16 ? with_math<sat_f16_math>(v->instance.tile_m, v->instance.tile_n)
                                        : with_math<sat_bf16_math>(v->instance.tile_m, v->instance.tile_n);
}

// A piece below some 256 k is not worth its partial sum.
static int64_t share_of(const sat_variant *v, const sat_rows *r, const sat_device *d) {
    return sat_schedule_share(r, r->br / v->instance.tile_m, 2 * d->threads, sat_max(2, 256 / r->bc));
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    int64_t tile_n = v->instance.tile_n;
    sat_rows r = sat_op_rows(p, a);
    if (p->a_dtype != v->instance.dtype || p->n > tile_n || (tile_n > 8 && p->n <= tile_n / 2)) return false;
    if (r.br % v->instance.tile_m || r.bc % 16 || r.br > 16384 || r.bc > 16384 || r.k > INT32_MAX / 2) return false;
    if (r.count > 1 << 30 || p->batch > 65535) return false; // the grid's limits
    if (p->a_align < 16 || (p->batch > 1 && p->a.batch_stride % 8)) return false;
    if (!v->instance.option) return true;
    int64_t longest = p->transpose == SAT_TRANSPOSE ? a->max_col : a->max_row;
    double skew = p->transpose == SAT_TRANSPOSE ? a->t_skew : a->skew;
    return skew > 1.25 || sat_schedule_parts(longest, share_of(v, &r, d)) > 1; // else it is its plain sister
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    double tiles = (double)(r.br / v->instance.tile_m), share = (double)share_of(v, &r, d);
    double longest = (double)(p->transpose == SAT_TRANSPOSE ? a->max_col : a->max_row);
    bool cut = v->instance.option && longest > share * 1.25;
    if (cut) longest = share;
    // From L2 each tile of rows takes B again, and no SM takes more than its part of what L2 gives.
    double l2_rate = 2 * d->memory_rate, tile = (double)r.bc * 2 * (double)(v->instance.tile_m + p->n);
    double l2 = (double)a->stored_blocks * (double)p->batch * tiles * tile / l2_rate;
    double alone = longest * tile / (l2_rate / d->threads), memory = sat_bytes(p, a) / (0.9 * d->memory_rate);
    return fmax(fmax(memory, l2), alone) + (cut ? 4e-6 : 2.5e-6);
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    if (!v->instance.option) return 0;
    sat_rows r = sat_op_rows(p, a);
    sat_schedule s = sat_schedule_count(&r, share_of(v, &r, d));
    return sat_schedule_bytes(&s, r.br, p->n, sizeof(float));
}

static sat_status prepare(const sat_prepare *l, void **state) {
    instance i = choose(l->variant);
    cudaError_t e = cudaFuncSetAttribute(i.run, cudaFuncAttributeMaxDynamicSharedMemorySize, i.shared);
    if (e != cudaSuccess) return sat_fail(SAT_DEVICE_ERROR, "%s: %s", l->variant->name, cudaGetErrorString(e));
    if (!l->variant->instance.option) return SAT_OK;
    sat_rows r = sat_op_rows(l->problem, l->pattern);
    return sat_prepare_schedule(l, share_of(l->variant, &r, l->device), state);
}

// One side contiguous, and whatever else moves a pointer does so by whole chunks.
static bool in_chunks(int64_t contiguous, int64_t other, int64_t batch, int64_t elements) {
    return contiguous == 1 && other % elements == 0 && batch % elements == 0;
}

static order order_of(const sat_problem *p) {
    int64_t batch = p->batch > 1 ? p->b.batch_stride : 0;
    if (p->b_align < 16) return ANY;
    if (in_chunks(p->b.row_stride, p->n > 1 ? p->b.col_stride : 0, batch, 8)) return COLUMNS;
    return in_chunks(p->b.col_stride, p->b.row_stride, batch, 8) ? ROWS : ANY;
}

static bool wide_output(const sat_problem *p) {
    int64_t batch = p->batch > 1 ? p->c.batch_stride : 0;
    if (p->c_align < 4 * sat_dtype_size(p->c_dtype)) return false;
    if (p->c.row_stride == 1) return in_chunks(1, p->n > 1 ? p->c.col_stride : 0, batch, 4);
    return in_chunks(p->c.col_stride, p->c.row_stride, batch, 4);
}

static job job_of(const sat_launch *l, const instance &i) {
    const sat_problem *p = l->problem;
    job x = {};
    x.r = sat_device_rows(p, l->pattern), x.out = sat_epilogue_of(l);
    x.w = l->state ? *(const sat_device_schedule *)l->state : sat_whole_rows_schedule(&x.r);
    x.values = l->operands[0], x.b = l->operands[1];
    x.b_row = p->b.row_stride, x.b_col = p->b.col_stride;
    x.a_batch = p->a.batch_stride, x.b_batch = p->b.batch_stride;
    x.c_batch = p->c.batch_stride * (int64_t)sat_dtype_size(p->c_dtype);
    x.bc = (int)x.r.bc, x.area = (int)x.r.block_elements;
    x.inverse = (65536 + x.bc - 1) / x.bc;
    x.step_blocks = WARPS * i.depth / x.bc, x.step_inside = WARPS * i.depth % x.bc;
    x.b_order = order_of(p), x.wide = wide_output(p);
    x.turned = p->transpose == SAT_TRANSPOSE, x.ragged = x.r.k % x.r.bc != 0;
    return x;
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    if (p->m == 0 || p->n == 0) return SAT_OK;
    instance i = choose(l->variant);
    job x = job_of(l, i);
    dim3 grid((unsigned)x.w.pieces, (unsigned)(x.r.br / l->variant->instance.tile_m), 1);
    if (x.w.joins == 0) { // the whole batch at once; partial sums have room for one item only
        grid.z = (unsigned)p->batch;
        i.run<<<grid, WARPS * 32, i.shared, (cudaStream_t)l->stream>>>(x);
        return sat_launched(l);
    }
    for (int64_t z = 0; z < p->batch; z++) {
        i.run<<<grid, WARPS * 32, i.shared, (cudaStream_t)l->stream>>>(x);
        sat_status status = sat_launched(l);
        if (status == SAT_OK) status = sat_launch_split_reduction(l, x.r, x.out, x.w);
        if (status != SAT_OK) return status;
        x.values = sat_at(p->a_dtype, x.values, x.a_batch), x.b = sat_at(p->b_dtype, x.b, x.b_batch);
        x.out.c = (char *)x.out.c + x.c_batch;
    }
    return SAT_OK;
}

SAT_FAMILY(cuda_matmul_skinny) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .flags = SAT_V_BATCHED,
    .about = "1 to 64 columns by tensor cores, each stored block read once (f16, bf16; block sides of 16 and more)",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_schedule,
};
