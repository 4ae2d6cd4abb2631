// cuda_matmul_short: rows of few blocks by few columns, where the time is the latency from launch to store. f16, bf16.
//
// A CTA has 64 rows of a block row and BN columns, with four warps of 16 rows, or twice as many side by side. It
// requests its first STAGES stages, 64 k each, at once: mostly the whole row. It multiplies them as they arrive. There
// is no schedule to read and no loop over tiles, and the blocks' values are requested before the column indices, by
// which B is read, have arrived.

#include "kernels/cuda/common/warp_epilogue.cuh"
#include "kernels/cuda/common/mma_fragments.cuh"

enum { BM = 64, BK = 64 };

struct kernel_args {
    sat_tile_epilogue epilogue;
    const int64_t *ptr;
    const int32_t *col;
    const char *a, *b;
    int64_t b_line_stride;                      // bytes between B's rows; between its columns, if it is column-major
    unsigned row_tiles, column_tiles;           // in a block row; in C
    unsigned block_stages, a_row_stride;        // stages in a block; bytes between rows of a block
    unsigned a_block_stride, a_row_tile_stride; // bytes
    int n, br, bc;
};

// ---- shared memory: STAGES stages, each an A tile [BM x BK], K-major, and a B tile [BN x BK]; reused by the epilogue

template <class MATH_, int BN_, int STAGES_, bool B_K_MAJOR_> struct shape {
    typedef mma_16bit<MATH_> math;
    typedef typename math::element element;
    static constexpr int BN = BN_, STAGES = STAGES_, WN = BN < 128 ? BN : BN / 2, NT = WN / 8;
    static constexpr bool B_K_MAJOR = B_K_MAJOR_;
    static constexpr int A_BYTES = BM * BK * 2, STAGE = A_BYTES + BN * BK * 2;
    static constexpr int THREADS = 128 * (BN / WN), PASS = THREADS / 8; // rows of A that the threads copy at once
    static constexpr int SHARED = STAGES * STAGE, CTAS = SHARED <= 75000 ? 3 : 2;
    static constexpr int SQUARE = sat_square_bytes<float>();
    static_assert(SQUARE * 8 <= SHARED, "the epilogue reuses the stages");
};

// ---- producer: all threads copy

template <class S> struct loader {
    const kernel_args &args;
    const char *a;
    uint32_t shared;
    int first, stages, n0; // the row's first block, its stages, the tile's first column
    int32_t col;           // lane i has the column of block i of the 32 that are cached

    __device__ __forceinline__ void cache_columns(int block) {
        int mine = block + (int)threadIdx.x % 32;
        if (mine * (int)args.block_stages < stages) col = __ldg(args.col + first + mine);
    }

    __device__ __forceinline__ void copy_a(int stage) const {
        int line = threadIdx.x / 8, vec16 = threadIdx.x % 8;
        unsigned block = (unsigned)stage / args.block_stages, in = (unsigned)stage % args.block_stages;
        const char *from =
            a + (int64_t)block * args.a_block_stride + in * (BK * 2) + line * args.a_row_stride + vec16 * 16;
        uint32_t to = shared + stage % S::STAGES * S::STAGE + mma_vec16_offset<BK / 8, 0>(line, vec16);
#pragma unroll
        for (int p = 0; p < BM; p += S::PASS) cp_async_16(to + p * 128, from + p * args.a_row_stride);
    }

    __device__ __forceinline__ void copy_b(int stage) const {
        constexpr int VECTORS = S::B_K_MAJOR ? BK / 8 : S::BN / 8, LINES = S::B_K_MAJOR ? S::BN : BK;
        unsigned block = (unsigned)stage / args.block_stages, in = (unsigned)stage % args.block_stages;
        int k = __shfl_sync(0xffffffffu, col, block % 32) * args.bc + (int)in * BK;
        uint32_t to = shared + stage % S::STAGES * S::STAGE + S::A_BYTES;
#pragma unroll
        for (int p = 0; p < LINES * VECTORS; p += S::THREADS) {
            int line = (p + (int)threadIdx.x) / VECTORS, vec16 = (p + (int)threadIdx.x) % VECTORS;
            int left = S::B_K_MAJOR ? (n0 + line < args.n ? 16 : 0) : (args.n - n0 - vec16 * 8) * 2; // bytes that exist
            int64_t at = S::B_K_MAJOR ? (n0 + line) * args.b_line_stride + (k + vec16 * 8) * 2
                                      : (k + line) * args.b_line_stride + (n0 + vec16 * 8) * 2;
            cp_async_16(to + mma_vec16_offset<VECTORS, 0>(line, vec16), args.b + (left > 0 ? at : 0),
                        left < 0    ? 0
                        : left > 16 ? 16
                                    : left);
        }
    }
};

// ---- consumer

template <class S> __device__ __forceinline__ void multiply_stage(float (&acc)[1][S::NT][4], uint32_t a, uint32_t b) {
#pragma unroll
    for (int kk = 0; kk < BK / 16; kk++) {
        typename S::math::a fragment_a[1];
        typename S::math::b fragment_b[S::NT];
        S::math::template load_a<BM, BK, true>(fragment_a, a, kk);
        S::math::template load_b<S::BN, BK, S::B_K_MAJOR>(fragment_b, b, kk);
#pragma unroll
        for (int j = 0; j < S::NT; j++) S::math::multiply(acc[0][j], fragment_a[0], fragment_b[j]);
    }
}

// ---- kernel: one CTA a tile

template <class S>
static __global__ void __launch_bounds__(S::THREADS, S::CTAS) multiply(const __grid_constant__ kernel_args args) {
    extern __shared__ __align__(1024) unsigned char shared[];
    griddepcontrol_launch_dependents();
    unsigned tile = blockIdx.x / args.row_tiles, row_tile = blockIdx.x % args.row_tiles, row = tile / args.column_tiles;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_row = warp % 4 * 16, warp_column = warp / 4 * S::WN;
    int64_t from = __ldg(args.ptr + row), to = __ldg(args.ptr + row + 1);
    loader<S> load = {args,
                      args.a + from * args.a_block_stride + row_tile * args.a_row_tile_stride,
                      smem_address(shared),
                      (int)from,
                      (int)(to - from) * (int)args.block_stages,
                      (int)(tile % args.column_tiles) * S::BN};
    constexpr int EARLY = S::STAGES < 4 ? S::STAGES : 4; // stages of A that do not wait for the column indices
    load.cache_columns(0);
    griddepcontrol_wait();
#pragma unroll
    for (int s = 0; s < EARLY; s++)
        if (s < load.stages) load.copy_a(s);
#pragma unroll
    for (int s = 0; s < S::STAGES; s++) {
        if (s >= EARLY && s < load.stages) load.copy_a(s);
        if (s < load.stages) load.copy_b(s);
        cp_async_commit_group();
    }
    const uint32_t a = load.shared + S::math::template lane_offset_a<BM, BK, true>(lane, warp_row);
    const uint32_t b =
        load.shared + S::A_BYTES + S::math::template lane_offset_b<S::BN, BK, S::B_K_MAJOR>(lane, warp_column);
    float acc[1][S::NT][4] = {};
    for (int s = 0; s < load.stages; s++) {
        cp_async_wait_group<S::STAGES - 1>();
        __syncthreads();
        multiply_stage<S>(acc, a + s % S::STAGES * S::STAGE, b + s % S::STAGES * S::STAGE);
        int next = s + S::STAGES;
        if (next < load.stages) {
            if (next % (32 * (int)args.block_stages) == 0) load.cache_columns(next / (int)args.block_stages);
            __syncthreads();
            load.copy_a(next), load.copy_b(next);
        }
        cp_async_commit_group();
    }
    __syncthreads();
    sat_warp_store<typename S::element>(args.epilogue, acc, (int64_t)row * args.br + row_tile * BM + warp_row,
                                        load.n0 + warp_column, lane, (float *)(shared + warp * S::SQUARE));
}

// ---- host

struct instance {
    sat_dtype dtype;
    int tile_n, threads, shared, ctas;
    sat_status (*start[2])(const sat_launch *, dim3, int, int, const kernel_args &); // [B is K-major]
};

template <class MATH, int BN, int STAGES> static constexpr instance instance_of() {
    typedef shape<MATH, BN, STAGES, true> K;
    typedef shape<MATH, BN, STAGES, false> N;
    return {MATH::dtype, BN,      K::THREADS,
            K::SHARED,   K::CTAS, {sat_start<multiply<N>, kernel_args>, sat_start<multiply<K>, kernel_args>}};
}

static const instance instances[] = {
    instance_of<sat_f16_math, 16, 7>(),  instance_of<sat_f16_math, 32, 7>(),   instance_of<sat_f16_math, 64, 7>(),
    instance_of<sat_f16_math, 128, 4>(), instance_of<sat_bf16_math, 16, 7>(),  instance_of<sat_bf16_math, 32, 7>(),
    instance_of<sat_bf16_math, 64, 7>(), instance_of<sat_bf16_math, 128, 4>(),
};

static const instance *find(const sat_variant *v) {
    for (const instance &i : instances)
        if (i.dtype == v->instance.dtype && i.tile_n == v->instance.tile_n) return &i;
    return NULL;
}

// B is column-major, in vectors of 16 bytes.
static bool b_k_major(const sat_problem *p) { return p->b.row_stride == 1 && p->b.col_stride % 8 == 0; }

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    int64_t tile_n = v->instance.tile_n, br = a->block_rows, bc = a->block_cols;
    if (p->a_dtype != v->instance.dtype || d->capability < 80 || p->matmul.transpose == SAT_TRANSPOSE) return false;
    if (find(v)->shared + 1024 > d->shared_bytes) return false;
    if (br % BM || bc % BK || p->k % bc || br * bc > 1 << 24 || p->k > INT32_MAX || p->n > INT32_MAX) return false;
    if (tile_n > 16 && p->n <= tile_n / 2) return false; // a narrower tile serves
    if (a->stored_blocks * (bc / BK) > INT32_MAX || p->a_align < 16 || p->b_align < 16) return false;
    if (!b_k_major(p) && (p->b.col_stride != 1 || p->b.row_stride % 8 != 0)) return false;
    double tiles = (double)a->grid_rows * (double)(br / BM) * ((double)p->n / (double)tile_n + 1);
    if (p->batch > 1 && (p->a.batch_stride % 8 || p->b.batch_stride % 8)) return false;
    return tiles <= INT32_MAX;
}

// Each tile reads its part of A and of B from L2; one CTA has the longest row.
static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const instance *i = find(v);
    double row_tiles = (double)(a->block_rows / BM), column_tiles = ceil((double)p->n / v->instance.tile_n);
    double stage = 2 * (double)BK * (BM + v->instance.tile_n), stages = (double)(a->block_cols / BK);
    double tiles = fmax(1, (double)a->grid_rows * row_tiles * column_tiles),
           at_once = (double)d->multiprocessors * i->ctas;
    double l2_rate = 0.87 * d->l2_rate, bytes = (double)a->stored_blocks * stages * row_tiles * column_tiles * stage;
    double uneven = ceil(tiles / d->multiprocessors) / (tiles / d->multiprocessors);
    double alone = (double)a->max_row * stages * stage / (l2_rate / d->multiprocessors);
    double waves = ceil(tiles / at_once), batch = (double)p->batch;
    double time = fmax(bytes / l2_rate * fmin(uneven, 2), alone) + 1e-6 * fmin(waves, 8) + 2e-6;
    return fmax(batch * time, sat_bytes(p, a) / (0.9 * d->memory_rate));
}

// Dynamic shared memory, so large that no multiprocessor has room for more than its share of the tiles. The kernel
// starts while the one before it ends; its CTAs would else all go to the multiprocessors that are free first.
static int shared_bytes(const instance *i, unsigned tiles, const sat_device *d) {
    unsigned each = (tiles + (unsigned)d->multiprocessors - 1) / (unsigned)d->multiprocessors;
    return each > 2 ? i->shared : (int)sat_max(i->shared, d->shared_bytes / (each + 1) + 1024);
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const sat_pattern_view *a = l->pattern;
    if (p->m == 0 || p->n == 0) return SAT_OK;
    const instance *i = find(l->variant);
    sat_rows r = sat_device_rows(p, a);
    kernel_args args = {};
    args.epilogue = sat_tile_epilogue_of(l, false);
    args.ptr = r.ptr, args.col = r.col, args.a = (const char *)l->operands[0], args.b = (const char *)l->operands[1];
    args.b_line_stride = (b_k_major(p) ? p->b.col_stride : p->b.row_stride) * 2;
    args.br = (int)r.br, args.bc = (int)r.bc, args.n = (int)p->n;
    args.row_tiles = (unsigned)(r.br / BM),
    args.column_tiles = (unsigned)((p->n + l->variant->instance.tile_n - 1) / l->variant->instance.tile_n);
    args.block_stages = (unsigned)(r.bc / BK), args.a_row_stride = (unsigned)r.bc * 2;
    args.a_block_stride = (unsigned)(r.br * r.bc * 2), args.a_row_tile_stride = BM * args.a_row_stride;
    unsigned tiles = (unsigned)r.count * args.row_tiles * args.column_tiles;
    return i->start[b_k_major(p)](l, tiles, i->threads, shared_bytes(i, tiles, l->device), args);
}

SAT_FAMILY(cuda_matmul_short) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .about = "a whole row in flight at once: short rows, few columns (f16, bf16; block sides multiples of 64)",
    .supports = supports,
    .estimate = estimate,
    .launch = launch,
};
