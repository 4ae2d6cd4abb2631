// cuda_matmul_skinny_direct: 9 to 32 columns of 16-bit elements by tensor cores, from memory straight into registers.
//
// A CTA has 64 rows of a piece of a block row. Its warps share out the rows and the piece's k in four parts; no warp
// waits for another until the sums are added at the end, in the order of the warps.

#include "kernels/cuda/matmul/skinny_direct.cuh"

// ---- output

// `side` floats of a lane next to each other in a row of C. Unit u of a lane is row h of tile i, from column c on.
template <typename S> struct unit {
    int i, h, c;
    __device__ __forceinline__ unit(int u) {
        constexpr int ACROSS = 2 * S::NT / S::side;
        i = u / ACROSS / 2, h = u / ACROSS % 2, c = u % ACROSS * S::side;
    }
};

template <typename S> __device__ __forceinline__ void leave_sums(const float (&sum)[S::MT][S::NT][4], float *to) {
#pragma unroll
    for (int u = 0; u < S::units; u++) {
        unit<S> at(u);
        float v[S::side];
#pragma unroll
        for (int e = 0; e < S::side; e++) v[e] = sum[at.i][(at.c + e) % S::NT][at.h * 2 + (at.c + e) / S::NT];
        if constexpr (S::side == 4) *(float4 *)(to + u * 128) = make_float4(v[0], v[1], v[2], v[3]);
        else *(float2 *)(to + u * 64) = make_float2(v[0], v[1]);
    }
}

template <int COUNT>
__device__ __forceinline__ void store_wide(sat_dtype t, void *c, int64_t at, const float (&y)[COUNT]) {
    if (t == SAT_F32) {
#pragma unroll
        for (int e = 0; e < COUNT; e += 2) *(float2 *)((float *)c + at + e) = make_float2(y[e], y[e + 1]);
        return;
    }
    uint32_t w[COUNT / 2];
#pragma unroll
    for (int e = 0; e < COUNT; e += 2) {
        __half2 h = __floats2half2_rn(y[e], y[e + 1]);
        __nv_bfloat162 b = __floats2bfloat162_rn(y[e], y[e + 1]);
        w[e / 2] = t == SAT_F16 ? *(uint32_t *)&h : *(uint32_t *)&b;
    }
    if constexpr (COUNT == 4) *(uint2 *)((__half *)c + at) = make_uint2(w[0], w[1]);
    else *(uint32_t *)((__half *)c + at) = w[0];
}

// COUNT elements along a row of C, from row i of the block row and column j on.
template <int COUNT>
__device__ __forceinline__ void put(const job &x, const sat_epilogue &out, const sat_work_item &piece, int i, int j,
                                    float (&y)[COUNT]) {
    if (piece.slot >= 0) {
        float *partial = (float *)x.w.partial + ((int64_t)piece.slot * x.r.br + i) * out.n + j;
#pragma unroll
        for (int e = 0; e < COUNT; e++)
            if (j + e < out.n) partial[e] = y[e];
        return;
    }
    int64_t row = (int64_t)piece.row * x.r.br + i;
    if (row >= out.m) return;
    bool wide = x.wide && j + COUNT <= out.n;
#pragma unroll
    for (int e = 0; e < COUNT; e++) {
        if (j + e >= out.n) break;
        y[e] = sat_epilogue_apply(out, row, j + e, y[e]);
        if (!wide) sat_store_from(y[e], out.dtype, out.c, row * out.row_stride + (j + e) * out.col_stride);
    }
    if (wide) store_wide(out.dtype, out.c, row * out.row_stride + j, y);
}

// Adds what the KS warps of the same rows left, in their order; each of them finishes its part of the units.
template <typename S, bool TURNED>
__device__ __forceinline__ void add_up(const job &x, const sat_epilogue &out, const sat_work_item &piece,
                                       const float *sums, int warp) {
    constexpr int UNIT = 32 * S::side, WARP = S::units * UNIT;
    int lane = threadIdx.x % 32, at_c = warp % (S::RW * S::CW), rw = at_c % S::RW, cw = at_c / S::RW;
    sums += at_c * WARP + lane * S::side;
#pragma unroll 1
    for (int u = warp / (S::RW * S::CW); u < S::units; u += S::KS) {
        float y[S::side] = {};
#pragma unroll
        for (int k = 0; k < S::KS; k++)
#pragma unroll
            for (int e = 0; e < S::side; e++) y[e] += sums[k * S::RW * S::CW * WARP + u * UNIT + e];
        unit<S> at(u);
        int row = ((int)blockIdx.y * S::RW + rw) * 16 * S::MT + row_of<S, TURNED>(at.i, at.h);
        put(x, out, piece, row, cw * 8 * S::NT + lane % 4 * 2 * S::NT + at.c, y);
    }
}

// ---- the kernel: blockIdx.x a piece, .y a tile of its rows, .z an item of the batch

template <typename MATH, typename S, bool TURNED, bool ROWS, bool GENERAL>
__device__ __forceinline__ void multiply_piece(float (&sum)[S::MT][S::NT][4], const job &x, const sat_work_item &piece,
                                               int warp) {
    int rw = warp % S::RW, cw = warp / S::RW % S::CW, ks = warp / S::RW / S::CW,
        chunks = (piece.count * x.bc + 63) / 64;
    int chunk = chunks * ks / S::KS, end = chunks * (ks + 1) / S::KS;
    if (chunk == end) return;
    int64_t row = (blockIdx.y * S::RW + rw) * 16 * S::MT;
    int column = cw * 8 * S::NT, first = ROWS ? column + threadIdx.x % 32 / 4 * S::NT : 0;
    reader<S, TURNED, ROWS, GENERAL> from = {x, x.r.col + piece.first, x.r.block + piece.first};
    from.values = (const char *)x.values + (blockIdx.z * x.a_batch + row * x.r.row_step) * 2;
    if (!TURNED) from.values += piece.first * x.area_bytes;
    from.values += row_of<S, TURNED>(0, 0) * x.r.row_step * 2;
    from.b = (const char *)x.b + (blockIdx.z * x.b_batch + (first < x.out.n ? first : 0)) * 2;
    from.column = column;
    from.count = piece.count;
    multiply_share<MATH, S, TURNED, ROWS, GENERAL>(sum, from, chunk, end);
}

template <typename MATH, typename S, bool TURNED, bool ROWS>
static __global__ void __launch_bounds__(S::warps * 32, S::on_sm) multiply(const __grid_constant__ job x) {
    extern __shared__ __align__(16) float sums[];
    sat_work_item piece = sat_work_item_at(x.r, x.w.piece, blockIdx.x);
    int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    float sum[S::MT][S::NT][4] = {};
    if (x.general) multiply_piece<MATH, S, TURNED, ROWS, true>(sum, x, piece, warp);
    else multiply_piece<MATH, S, TURNED, ROWS, false>(sum, x, piece, warp);
    leave_sums<S>(sum, sums + warp * S::units * 32 * S::side + threadIdx.x % 32 * S::side);
    __syncthreads();
    sat_epilogue out = x.out;
    out.c = (char *)out.c + blockIdx.z * x.c_batch;
    add_up<S, TURNED>(x, out, piece, sums, warp);
}

// ---- host

typedef void (*kernel)(job);
struct instance {
    kernel run;
    int threads, shared;
};

template <typename MATH, typename S> static instance instance_of(bool turned, bool rows) {
    instance i = {turned ? (rows ? multiply<MATH, S, true, true> : multiply<MATH, S, true, false>)
                         : (rows ? multiply<MATH, S, false, true> : multiply<MATH, S, false, false>),
                  S::warps * 32, S::shared};
    return i;
}

template <typename MATH> static instance with_math(int columns, bool turned, bool by_rows) {
    return columns == 16 ? instance_of<MATH, shape<2, 2, 2, 1, 4>>(turned, by_rows)
                         : instance_of<MATH, shape<2, 4, 2, 1, 4>>(turned, by_rows);
}

static int64_t chunk_of(const sat_variant *v) { return sat_min(4, v->instance.tile_n / 8); } // a lane's columns

// B's rows in such chunks, all within the matrix.
static bool by_rows(const sat_variant *v, const sat_problem *p) {
    int64_t each = chunk_of(v), batch = p->batch > 1 ? p->b.batch_stride : 0;
    return p->b.col_stride == 1 && p->b.row_stride % each == 0 && batch % each == 0 && p->n % each == 0 &&
           (p->b_align ? p->b_align : 2) >= 2 * each;
}

static bool by_columns(const sat_problem *p) { // B's columns in chunks of 8 elements
    int64_t batch = p->batch > 1 ? p->b.batch_stride : 0;
    return p->b_align >= 16 && p->b.row_stride == 1 && (p->n == 1 || p->b.col_stride % 8 == 0) && batch % 8 == 0;
}

static instance choose(const sat_variant *v, const sat_problem *p) {
    int columns = v->instance.tile_n;
    bool turned = p->transpose == SAT_TRANSPOSE, chunks = by_rows(v, p) && !by_columns(p);
    return v->instance.dtype == SAT_F16 ? with_math<sat_f16_math>(columns, turned, chunks)
                                        : with_math<sat_bf16_math>(columns, turned, chunks);
}

// A piece below some 256 k is not worth its partial sum.
static int64_t share_of(const sat_variant *v, const sat_rows *r, const sat_device *d) {
    return sat_schedule_share(r, r->br / v->instance.tile_m, 2 * d->threads, sat_max(2, 256 / r->bc));
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    int64_t tile_n = v->instance.tile_n;
    sat_rows r = sat_op_rows(p, a);
    if (p->a_dtype != v->instance.dtype || p->n > tile_n || (tile_n > 8 && p->n <= tile_n / 2)) return false;
    if (r.br % v->instance.tile_m || r.bc % 16 || r.br > 8192 || r.bc > 8192 || r.k > INT32_MAX / 2) return false;
    if (r.count > 1 << 30 || p->batch > 65535) return false; // the grid's limits
    if (p->b.row_stride > 1 << 26 || p->a_align < 16 || (p->batch > 1 && p->a.batch_stride % 8)) return false;
    if (!by_rows(v, p) && !by_columns(p)) return false;
    if (v->instance.option != 1) return true;
    int64_t longest = p->transpose == SAT_TRANSPOSE ? a->max_col : a->max_row;
    double skew = p->transpose == SAT_TRANSPOSE ? a->t_skew : a->skew;
    return skew > 1.25 || sat_schedule_parts(longest, share_of(v, &r, d)) > 1; // else it is its plain sister
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    double tiles = (double)(r.br / v->instance.tile_m), share = (double)share_of(v, &r, d);
    double longest = (double)(p->transpose == SAT_TRANSPOSE ? a->max_col : a->max_row);
    bool cut = v->instance.option == 1 && longest > share * 1.25;
    if (cut) longest = share;
    // From L2 each tile of rows takes B again, and no SM takes more than its part of what L2 gives.
    double l2_rate = 2 * d->memory_rate, tile = (double)r.bc * 2 * (double)(v->instance.tile_m + p->n);
    double l2 = (double)a->stored_blocks * (double)p->batch * tiles * tile / l2_rate;
    double alone = longest * tile / (l2_rate / d->threads), memory = sat_bytes(p, a) / (0.9 * d->memory_rate);
    return fmax(fmax(memory, l2), alone) + (cut ? 4e-6 : 2.5e-6);
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    if (v->instance.option != 1) return 0;
    sat_rows r = sat_op_rows(p, a);
    sat_schedule s = sat_schedule_count(&r, share_of(v, &r, d));
    return sat_schedule_bytes(&s, r.br, p->n, sizeof(float));
}

static sat_status prepare(const sat_prepare *l, void **state) {
    instance i = choose(l->variant, l->problem);
    cudaError_t e = cudaFuncSetAttribute(i.run, cudaFuncAttributeMaxDynamicSharedMemorySize, i.shared);
    if (e != cudaSuccess) return sat_fail(SAT_DEVICE_ERROR, "%s: %s", l->variant->name, cudaGetErrorString(e));
    if (l->variant->instance.option != 1) return SAT_OK;
    sat_rows r = sat_op_rows(l->problem, l->pattern);
    return sat_prepare_schedule(l, share_of(l->variant, &r, l->device), state);
}

static bool wide_output(const sat_variant *v, const sat_problem *p) {
    int64_t side = v->instance.tile_n == 8 ? 2 : 4, batch = p->batch > 1 ? p->c.batch_stride : 0;
    return p->c.col_stride == 1 && p->c.row_stride % side == 0 && batch % side == 0 &&
           p->c_align >= (uint32_t)side * sat_dtype_size(p->c_dtype) && p->c_dtype != SAT_F64;
}

static job job_of(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const sat_variant *v = l->variant;
    job x = {};
    x.r = sat_device_rows(p, l->pattern), x.out = sat_epilogue_of(l);
    x.w = l->state ? *(const sat_device_schedule *)l->state : sat_whole_rows_schedule(&x.r);
    x.values = l->operands[0], x.b = l->operands[1];
    x.b_row = (int)p->b.row_stride * 2, x.b_col = p->b.col_stride * 2;
    x.a_batch = p->a.batch_stride, x.b_batch = p->b.batch_stride;
    x.c_batch = p->c.batch_stride * (int64_t)sat_dtype_size(p->c_dtype);
    x.bc = (int)x.r.bc, x.k = (int)x.r.k, x.general = x.r.k % x.r.bc != 0 || x.r.bc % 64 != 0;
    x.area_bytes = (int)x.r.block_elements * 2, x.k_bytes = (int)x.r.col_step * 2;
    x.rows8_bytes = (int)x.r.row_step * 16;
    x.shift = x.bc & (x.bc - 1) ? -1 : __builtin_ctz((unsigned)x.bc);
    x.step_blocks = 64 / x.bc, x.step_k = 64 % x.bc;
    x.wide = wide_output(v, p);
    return x;
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    if (p->m == 0 || p->n == 0) return SAT_OK;
    instance i = choose(l->variant, p);
    job x = job_of(l);
    dim3 grid((unsigned)x.w.pieces, (unsigned)(x.r.br / l->variant->instance.tile_m), 1);
    if (x.w.joins == 0) { // the whole batch at once; partial sums have room for one item only
        grid.z = (unsigned)p->batch;
        i.run<<<grid, i.threads, i.shared, (cudaStream_t)l->stream>>>(x);
        return sat_launched(l);
    }
    for (int64_t z = 0; z < p->batch; z++) {
        i.run<<<grid, i.threads, i.shared, (cudaStream_t)l->stream>>>(x);
        sat_status status = sat_launched(l);
        if (status == SAT_OK) status = sat_launch_split_reduction(l, x.r, x.out, x.w);
        if (status != SAT_OK) return status;
        x.values = sat_at(p->a_dtype, x.values, x.a_batch), x.b = sat_at(p->b_dtype, x.b, x.b_batch);
        x.out.c = (char *)x.out.c + x.c_batch;
    }
    return SAT_OK;
}

SAT_FAMILY(cuda_matmul_skinny_direct) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .flags = SAT_V_BATCHED,
    .about =
        "9 to 32 columns by tensor cores, from memory straight to registers (f16, bf16; block sides of 16 and more)",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_schedule,
};
