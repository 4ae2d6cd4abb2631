// cuda_matmul_short: rows of few blocks by few columns, where the time is the chain from launch to store. f16, bf16.
//
// A CTA has 64 rows of a block row and BN columns, four warps of 16 rows or twice as many side by side. It asks for the
// first STAGES steps, 64 k each, at once, which is mostly all of the row, and multiplies them as they come; there is no
// schedule to read, no loop over tiles, and values are under way before the columns are known that B is read by.

#include "kernels/cuda/common/scheduler.h"
#include "kernels/cuda/common/epilogue.cuh"
#include "kernels/cuda/matmul/mma_tile.cuh"

enum { ROWS = 64, DEEP = 64 };

struct job {
    sat_tile_epilogue out;
    const int64_t *ptr;
    const int32_t *col;
    const char *a, *b;
    int64_t b_line;            // bytes from a row of B to the next; of a column, where those are lines
    unsigned slices, panels;   // of a block row; of C
    unsigned units, a_line;    // steps in a block; bytes from a row of a block to the next
    unsigned a_block, a_slice; // bytes
    int n, br, bc;
};

template <class MATH_, int BN_, int STAGES_, bool B_DEEP_> struct shape {
    typedef sat_mma_16bit<MATH_> math;
    typedef typename math::element element;
    static constexpr int BN = BN_, STAGES = STAGES_, WN = BN < 128 ? BN : BN / 2, NT = WN / 8;
    static constexpr bool B_DEEP = B_DEEP_;
    static constexpr int A_BYTES = ROWS * DEEP * 2, STAGE = A_BYTES + BN * DEEP * 2;
    static constexpr int THREADS = 128 * (BN / WN), PASS = THREADS / 8; // lines of A that the threads copy at once
    static constexpr int SHARED = STAGES * STAGE, CTAS = SHARED <= 75000 ? 3 : 2;
    static constexpr int SQUARE = sat_square_bytes<float>();
    static_assert(SQUARE * 8 <= SHARED, "output passes through what the steps leave");
};

// The row's blocks as a CTA walks them.
template <class S> struct walk {
    const job &x;
    const char *a;
    uint32_t to;
    int first, steps, n0;
    int32_t col; // of block number `lane` of the 32 that are known

    __device__ __forceinline__ void know(int block) {
        int mine = block + (int)threadIdx.x % 32;
        if (mine * (int)x.units < steps) col = __ldg(x.col + first + mine);
    }

    __device__ __forceinline__ void copy_a(int step) const {
        int line = threadIdx.x / 8, chunk = threadIdx.x % 8;
        unsigned block = (unsigned)step / x.units, in = (unsigned)step % x.units;
        const char *from = a + (int64_t)block * x.a_block + in * (DEEP * 2) + line * x.a_line + chunk * 16;
        uint32_t place = to + step % S::STAGES * S::STAGE + sat_mma_place<DEEP / 8, 0>(line, chunk);
#pragma unroll
        for (int p = 0; p < ROWS; p += S::PASS) cp_async_16(place + p * 128, from + p * x.a_line);
    }

    __device__ __forceinline__ void copy_b(int step) const {
        constexpr int CHUNKS = S::B_DEEP ? DEEP / 8 : S::BN / 8, LINES = S::B_DEEP ? S::BN : DEEP;
        unsigned block = (unsigned)step / x.units, in = (unsigned)step % x.units;
        int k = __shfl_sync(0xffffffffu, col, block % 32) * x.bc + (int)in * DEEP;
        uint32_t base = to + step % S::STAGES * S::STAGE + S::A_BYTES;
#pragma unroll
        for (int p = 0; p < LINES * CHUNKS; p += S::THREADS) {
            int line = (p + (int)threadIdx.x) / CHUNKS, chunk = (p + (int)threadIdx.x) % CHUNKS;
            int left = S::B_DEEP ? (n0 + line < x.n ? 16 : 0) : (x.n - n0 - chunk * 8) * 2;
            int64_t at =
                S::B_DEEP ? (n0 + line) * x.b_line + (k + chunk * 8) * 2 : (k + line) * x.b_line + (n0 + chunk * 8) * 2;
            cp_async_16(base + sat_mma_place<CHUNKS, 0>(line, chunk), x.b + (left > 0 ? at : 0),
                        left < 0    ? 0
                        : left > 16 ? 16
                                    : left);
        }
    }
};

template <class S> __device__ __forceinline__ void multiply_step(float (&sum)[1][S::NT][4], uint32_t a, uint32_t b) {
#pragma unroll
    for (int kk = 0; kk < DEEP / 16; kk++) {
        typename S::math::a part_a[1];
        typename S::math::b part_b[S::NT];
        S::math::template load_a<ROWS, DEEP, true>(part_a, a, kk);
        S::math::template load_b<S::BN, DEEP, S::B_DEEP>(part_b, b, kk);
#pragma unroll
        for (int j = 0; j < S::NT; j++) S::math::multiply(sum[0][j], part_a[0], part_b[j]);
    }
}

template <class S>
static __global__ void __launch_bounds__(S::THREADS, S::CTAS) multiply(const __grid_constant__ job x) {
    extern __shared__ __align__(1024) unsigned char shared[];
    griddepcontrol_launch_dependents();
    unsigned tile = blockIdx.x / x.slices, slice = blockIdx.x % x.slices, row = tile / x.panels;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, down = warp % 4 * 16, right = warp / 4 * S::WN;
    int64_t from = __ldg(x.ptr + row), to = __ldg(x.ptr + row + 1);
    walk<S> w = {x,
                 x.a + from * x.a_block + slice * x.a_slice,
                 smem_address(shared),
                 (int)from,
                 (int)(to - from) * (int)x.units,
                 (int)(tile % x.panels) * S::BN};
    constexpr int EARLY = S::STAGES < 4 ? S::STAGES : 4; // steps of A that do not wait for the columns
    w.know(0);
    griddepcontrol_wait();
#pragma unroll
    for (int s = 0; s < EARLY; s++)
        if (s < w.steps) w.copy_a(s);
#pragma unroll
    for (int s = 0; s < S::STAGES; s++) {
        if (s >= EARLY && s < w.steps) w.copy_a(s);
        if (s < w.steps) w.copy_b(s);
        cp_async_commit_group();
    }
    const uint32_t a = w.to + S::math::template find_a<ROWS, DEEP, true>(lane, down);
    const uint32_t b = w.to + S::A_BYTES + S::math::template find_b<S::BN, DEEP, S::B_DEEP>(lane, right);
    float sum[1][S::NT][4] = {};
    for (int s = 0; s < w.steps; s++) {
        cp_async_wait_group<S::STAGES - 1>();
        __syncthreads();
        multiply_step<S>(sum, a + s % S::STAGES * S::STAGE, b + s % S::STAGES * S::STAGE);
        int next = s + S::STAGES;
        if (next < w.steps) {
            if (next % (32 * (int)x.units) == 0) w.know(next / (int)x.units);
            __syncthreads();
            w.copy_a(next), w.copy_b(next);
        }
        cp_async_commit_group();
    }
    __syncthreads();
    sat_warp_store<typename S::element>(x.out, sum, (int64_t)row * x.br + slice * ROWS + down, w.n0 + right, lane,
                                        (float *)(shared + warp * S::SQUARE));
}

// ---- host

struct instance {
    sat_status (*start)(const sat_launch *, unsigned, int, int, const job &);
    int threads, shared, ctas;
};

template <class MATH, int BN, int STAGES> static instance instance_of(bool deep) {
    typedef shape<MATH, BN, STAGES, true> D;
    typedef shape<MATH, BN, STAGES, false> W;
    return {deep ? sat_start<multiply<D>, job> : sat_start<multiply<W>, job>, D::THREADS, D::SHARED, D::CTAS};
}

template <class MATH> static instance with_math(int columns, bool deep) {
    switch (columns) {
    case 16: return instance_of<MATH, 16, 7>(deep);
    case 32: return instance_of<MATH, 32, 7>(deep);
    case 64: return instance_of<MATH, 64, 7>(deep);
    default: return instance_of<MATH, 128, 4>(deep);
    }
}

// B's columns in chunks of 16 bytes, rather than its rows.
static bool deep_b(const sat_problem *p) { return p->b.row_stride == 1 && p->b.col_stride % 8 == 0; }

static instance choose(const sat_variant *v, const sat_problem *p) {
    return v->instance.dtype == SAT_F16 ? with_math<sat_f16_math>(v->instance.tile_n, deep_b(p))
                                        : with_math<sat_bf16_math>(v->instance.tile_n, deep_b(p));
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    int64_t tile_n = v->instance.tile_n, br = a->block_rows, bc = a->block_cols;
    if (p->a_dtype != v->instance.dtype || d->capability < 80 || p->transpose == SAT_TRANSPOSE) return false;
    if (choose(v, p).shared + 1024 > d->shared_bytes) return false;
    if (br % ROWS || bc % DEEP || p->k % bc || br * bc > 1 << 24 || p->k > INT32_MAX || p->n > INT32_MAX) return false;
    if (tile_n > 16 && p->n <= tile_n / 2) return false; // a narrower sister's
    if (a->stored_blocks * (bc / DEEP) > INT32_MAX || p->a_align < 16 || p->b_align < 16) return false;
    if (!deep_b(p) && (p->b.col_stride != 1 || p->b.row_stride % 8 != 0)) return false;
    double tiles = (double)a->grid_rows * (double)(br / ROWS) * ((double)p->n / (double)tile_n + 1);
    if (p->batch > 1 && (p->a.batch_stride % 8 || p->b.batch_stride % 8)) return false;
    return tiles <= INT32_MAX;
}

// From L2 each tile takes its part of A and of B; the longest row is one CTA's.
static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    instance i = choose(v, p);
    double slices = (double)(a->block_rows / ROWS), panels = ceil((double)p->n / v->instance.tile_n);
    double step = 2 * (double)DEEP * (ROWS + v->instance.tile_n), units = (double)(a->block_cols / DEEP);
    double tiles = fmax(1, (double)a->grid_rows * slices * panels), places = (double)d->threads * i.ctas;
    double l2_rate = 2 * d->memory_rate, bytes = (double)a->stored_blocks * units * slices * panels * step;
    double uneven = ceil(tiles / d->threads) / (tiles / d->threads);
    double alone = (double)a->max_row * units * step / (l2_rate / d->threads);
    double rounds = ceil(tiles / places), items = (double)p->batch;
    double time = fmax(bytes / l2_rate * fmin(uneven, 2), alone) + 1e-6 * fmin(rounds, 8) + 2e-6;
    return fmax(items * time, sat_bytes(p, a) / (0.9 * d->memory_rate));
}

// Shared memory such that no multiprocessor has room for more than its share of one round of tiles: CTAs that begin
// while the kernel before still ends would else crowd where that ended first.
static int spread(const instance &i, unsigned tiles, const sat_device *d) {
    unsigned each = (tiles + (unsigned)d->threads - 1) / (unsigned)d->threads;
    return each > 2 ? i.shared : (int)sat_max(i.shared, d->shared_bytes / (each + 1) + 1024);
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const sat_pattern_view *a = l->pattern;
    if (p->m == 0 || p->n == 0) return SAT_OK;
    instance i = choose(l->variant, p);
    sat_rows r = sat_device_rows(p, a);
    job x = {};
    x.out = sat_tile_epilogue_of(l);
    x.ptr = r.ptr, x.col = r.col, x.a = (const char *)l->operands[0], x.b = (const char *)l->operands[1];
    x.b_line = (deep_b(p) ? p->b.col_stride : p->b.row_stride) * 2;
    x.br = (int)r.br, x.bc = (int)r.bc, x.n = (int)p->n;
    x.slices = (unsigned)(r.br / ROWS),
    x.panels = (unsigned)((p->n + l->variant->instance.tile_n - 1) / l->variant->instance.tile_n);
    x.units = (unsigned)(r.bc / DEEP), x.a_line = (unsigned)r.bc * 2;
    x.a_block = (unsigned)(r.br * r.bc * 2), x.a_slice = ROWS * x.a_line;
    unsigned tiles = (unsigned)r.count * x.slices * x.panels;
    return i.start(l, tiles, i.threads, spread(i, tiles, l->device), x);
}

SAT_FAMILY(cuda_matmul_short) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .about = "all of a row under way at once: short rows, few columns (f16, bf16; block sides multiples of 64)",
    .supports = supports,
    .estimate = estimate,
    .launch = launch,
};
