// cuda_sampled_mma: tensor cores by mma.sync, fed by a ring of tiles in shared memory that asynchronous copies fill. A
// CTA computes one tile of stored blocks; where its warps are more than the tile needs, they share out k and their sums
// are added at the end, which keeps warp tiles large and so the reads of shared memory few. f16, bf16, f64, and f32 as
// TF32; either storage order of X and Y.

#include "kernels/cuda/sampled/sampled_tile.cuh"
#include "kernels/cuda/sampled/tile.cuh"

/* BM x BN a CTA, BK steps of k a stage; WM x WN a warp. */
template <typename MATH_, int BM_, int BN_, int BK_, int WM_, int WN_, int SLICES_, int STAGES_, int CTAS_>
struct shape {
    typedef MATH_ MATH;
    typedef typename MATH::element element;
    typedef sat_product<MATH> product;
    static constexpr int BM = BM_, BN = BN_, BK = BK_, WM = WM_, WN = WN_, SLICES = SLICES_, STAGES = STAGES_;
    static constexpr int CTAS = CTAS_, DOWN = BM / WM, OVER = BN / WN, THREADS = 32 * DOWN * OVER * SLICES;
    static constexpr int STEPS = BK / product::K / SLICES; /* of a warp, in a stage */
    static_assert(STEPS % 2 == 0, "fragments of two steps take turns");
};

/* The shared memory of a shape, whose operands have k contiguous or not. */
template <typename S, bool X_ALONG, bool Y_ALONG> struct memory {
    typedef sat_tile<typename S::element, S::BM, S::BK, X_ALONG> x_tile;
    typedef sat_tile<typename S::element, S::BN, S::BK, Y_ALONG> y_tile;
    typedef sat_fragments<typename S::MATH, x_tile, X_ALONG, true> x_fragments;
    typedef sat_fragments<typename S::MATH, y_tile, Y_ALONG, false> y_fragments;
    static constexpr int STAGE = x_tile::BYTES + y_tile::BYTES;
    static constexpr int SUMS = S::SLICES * S::BM * sampled_sums<S::BN>::PITCH * (int)sizeof(typename S::product::sum);
    static constexpr int RING = S::STAGES * STAGE > SUMS ? S::STAGES *STAGE : SUMS; /* reused for the sums */
    static constexpr int BYTES = RING + 8 * (S::BM + S::BN);
};

/* One warp's part: fragments of the step at hand and of the next one, and the sums. */
template <typename S, typename M> struct warp_part {
    typedef typename S::product product;
    typename product::word a[2][S::WM / 16][4], b[2][S::WN / 16][4];
    typename product::sum c[S::WM / 16][S::WN / 8][4];
    uint32_t x_at, y_at; /* bytes into a stage */
    int place;           /* of the first sum */

    __device__ __forceinline__ warp_part() {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slice = warp / (S::DOWN * S::OVER);
        int down = warp / S::OVER % S::DOWN * S::WM, over = warp % S::OVER * S::WN, k = slice * S::STEPS * product::K;
        x_at = M::x_fragments::lane() + down * M::x_tile::LINE_STEP + k * M::x_tile::K_STEP;
        y_at = M::y_fragments::lane() + over * M::y_tile::LINE_STEP + k * M::y_tile::K_STEP + M::x_tile::BYTES;
        place = (slice * S::BM + down + lane / 4) * sampled_sums<S::BN>::PITCH + over + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < S::WM / 16; i++)
#pragma unroll
            for (int j = 0; j < S::WN / 8; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) c[i][j][e] = 0;
    }

    __device__ __forceinline__ void load(int turn, uint32_t stage, int step) {
#pragma unroll
        for (int i = 0; i < S::WM / 16; i++)
            M::x_fragments::load(a[turn][i],
                                 stage + x_at + i * 16 * M::x_tile::LINE_STEP + step * product::K * M::x_tile::K_STEP);
#pragma unroll
        for (int j = 0; j < S::WN / 16; j++)
            M::y_fragments::load(b[turn][j],
                                 stage + y_at + j * 16 * M::y_tile::LINE_STEP + step * product::K * M::y_tile::K_STEP);
    }

    __device__ __forceinline__ void multiply(int turn) {
#pragma unroll
        for (int i = 0; i < S::WM / 16; i++)
#pragma unroll
            for (int j = 0; j < S::WN / 8; j++)
                product::multiply(c[i][j], a[turn][i], b[turn][j / 2][j % 2 * 2], b[turn][j / 2][j % 2 * 2 + 1]);
    }

    __device__ __forceinline__ void put(typename product::sum *sums) const {
#pragma unroll
        for (int i = 0; i < S::WM / 16; i++)
#pragma unroll
            for (int j = 0; j < S::WN / 8; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    sums[place + (i * 16 + e / 2 * 8) * sampled_sums<S::BN>::PITCH + j * 8 + e % 2] = c[i][j][e];
    }
};

template <typename S, bool X_ALONG, bool Y_ALONG>
static __global__ void __launch_bounds__(S::THREADS, S::CTAS) multiply(sampled_job w) {
    typedef memory<S, X_ALONG, Y_ALONG> M;
    typedef typename S::product::sum sum;
    extern __shared__ __align__(16) char ring[];
    int64_t *x_at = (int64_t *)(ring + M::RING), *y_at = x_at + S::BM;
    sampled_place t;
    if (!sampled_find<S::BM, S::BN>(w, t)) return;
    sampled_lines<S::BM, S::BN>(w, t, x_at, y_at);
    __syncthreads();

    const char *x = w.x.base + blockIdx.y * w.x.batch_step, *y = w.y.base + blockIdx.y * w.y.batch_step;
    uint32_t at = smem_address(ring);
    int stages = (int)((w.k + S::BK - 1) / S::BK);
    auto fill = [&](int stage) {
        uint32_t to = at + stage % S::STAGES * M::STAGE;
        int64_t k0 = (int64_t)stage * S::BK;
        if (stage < stages) {
            M::x_tile::template fill<S::THREADS>(to, x, x_at, t.x_lines, w.x.k_step, k0, w.k);
            M::y_tile::template fill<S::THREADS>(to + M::x_tile::BYTES, y, y_at, t.y_lines, w.y.k_step, k0, w.k);
        }
        cp_async_commit_group();
    };

#pragma unroll 1
    for (int stage = 0; stage < S::STAGES - 1; stage++) fill(stage);
    warp_part<S, M> part;
    cp_async_wait_group<S::STAGES - 2>();
    __syncthreads();
    part.load(0, at, 0);
    for (int stage = 0; stage < stages; stage++) {
        uint32_t now = at + stage % S::STAGES * M::STAGE, next = at + (stage + 1) % S::STAGES * M::STAGE;
#pragma unroll
        for (int step = 0; step < S::STEPS; step++) {
            bool last = step == S::STEPS - 1;
            if (last) { // the next stage is there, and nobody reads this one any more
                cp_async_wait_group<S::STAGES - 2>();
                __syncthreads();
            }
            part.load((step + 1) % 2, last ? next : now, last ? 0 : step + 1);
            if (step == 0) fill(stage + S::STAGES - 1);
            part.multiply(step % 2);
        }
    }
    cp_async_wait_group<0>();
    __syncthreads();

    part.put((sum *)ring);
    __syncthreads();
    if (sizeof(typename S::element) == 2 && w.s_dtype == SAT_F32)
        sampled_store16<sum, float, S::BM, S::BN, S::SLICES>(w, t, (const sum *)ring);
    else sampled_store16<sum, typename S::element, S::BM, S::BN, S::SLICES>(w, t, (const sum *)ring);
}

/* ---- instances ---- */

typedef struct kernel {
    sat_dtype dtype;
    int bm, bn, bk, threads;
    double peak; /* of mma.sync's rate, with full tiles */
    int bytes[4];
    void (*multiply[4])(sampled_job); /* by whether k is contiguous in X (2) and in Y (1) */
} kernel;

template <typename S> static constexpr kernel kernel_of(double peak) {
    return {S::MATH::dtype,
            S::BM,
            S::BN,
            S::BK,
            S::THREADS,
            peak,
            {memory<S, false, false>::BYTES, memory<S, false, true>::BYTES, memory<S, true, false>::BYTES,
             memory<S, true, true>::BYTES},
            {multiply<S, false, false>, multiply<S, false, true>, multiply<S, true, false>, multiply<S, true, true>}};
}

/* BM, BN, BK; WM, WN; slices of k, stages, CTAs a multiprocessor */
static const kernel kernels[] = {
    kernel_of<shape<sat_f16_math, 128, 256, 64, 64, 64, 1, 4, 1>>(0.85),
    kernel_of<shape<sat_f16_math, 128, 128, 64, 64, 64, 2, 4, 1>>(0.8),
    kernel_of<shape<sat_f16_math, 64, 128, 64, 64, 64, 2, 4, 2>>(0.75),
    kernel_of<shape<sat_f16_math, 64, 64, 128, 64, 64, 4, 3, 2>>(0.7),
    kernel_of<shape<sat_f16_math, 32, 256, 32, 32, 64, 1, 4, 2>>(0.6),
    kernel_of<shape<sat_f16_math, 16, 256, 32, 16, 64, 1, 5, 2>>(0.4),
    kernel_of<shape<sat_bf16_math, 128, 256, 64, 64, 64, 1, 4, 1>>(0.85),
    kernel_of<shape<sat_bf16_math, 128, 128, 64, 64, 64, 2, 4, 1>>(0.8),
    kernel_of<shape<sat_bf16_math, 64, 128, 64, 64, 64, 2, 4, 2>>(0.75),
    kernel_of<shape<sat_bf16_math, 64, 64, 128, 64, 64, 4, 3, 2>>(0.7),
    kernel_of<shape<sat_bf16_math, 32, 256, 32, 32, 64, 1, 4, 2>>(0.6),
    kernel_of<shape<sat_bf16_math, 16, 256, 32, 16, 64, 1, 5, 2>>(0.4),
    kernel_of<shape<sat_tf32_math, 64, 128, 32, 64, 64, 2, 4, 2>>(0.6),
    kernel_of<shape<sat_tf32_math, 16, 128, 32, 16, 32, 1, 4, 2>>(0.35),
    kernel_of<shape<sat_f64_math, 64, 64, 16, 32, 32, 1, 4, 2>>(0.7),
    kernel_of<shape<sat_f64_math, 16, 64, 16, 16, 16, 1, 4, 4>>(0.5),
};

static const kernel *kernel_for(const sat_variant *v) {
    const sat_instance *i = &v->instance;
    for (const kernel &k : kernels)
        if (k.dtype == i->dtype && k.bm == i->tile_m && k.bn == i->tile_n && k.bk == i->tile_k) return &k;
    return NULL;
}

/* 1: k is contiguous, 0: lines are, -1: neither, or not in steps of 16 bytes. */
static int order_of(int64_t line_stride, int64_t k_stride, int64_t wide) {
    if (k_stride == 1 && line_stride % wide == 0) return 1;
    return line_stride == 1 && k_stride % wide == 0 ? 0 : -1;
}

static int layout_of(const sat_problem *p) { /* -1: none that the copies can read */
    int64_t wide = 16 / (int64_t)sat_dtype_size(p->a_dtype);
    int x = order_of(p->a.row_stride, p->a.col_stride, wide), y = order_of(p->b.col_stride, p->b.row_stride, wide);
    return x < 0 || y < 0 ? -1 : 2 * x + y;
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const kernel *k = kernel_for(v);
    int layout = layout_of(p);
    if (!k || p->a_dtype != k->dtype || layout < 0) return false;
    if (p->a_dtype == SAT_F32 && !(p->flags & SAT_ALLOW_TF32)) return false;
    if (p->a_align < 16 || p->b_align < 16 || p->c_align < 16) return false;
    int64_t wide = 16 / (int64_t)sat_dtype_size(p->a_dtype), wide_c = 16 / (int64_t)sat_dtype_size(p->c_dtype);
    if (p->batch > 1 && (p->a.batch_stride % wide || p->b.batch_stride % wide || p->c.batch_stride % wide_c))
        return false;
    // where lines are contiguous, those of one copy lie in one block, and begin on a multiple of 16 bytes
    if (!(layout & 2) && a->block_rows % wide) return false;
    if ((!(layout & 1) && a->block_cols % wide) || a->block_cols % wide_c) return false;
    if (2 * a->block_rows < k->bm) return false; // it would be right, but mostly idle
    return k->bytes[layout] + 1024 <= d->l1_bytes && sampled_fits(p, a, k->bm, k->bn);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const kernel *k = kernel_for(v);
    double rate = sat_matrix_rate(d, p->a_dtype);
    if (p->a_dtype != SAT_F64 && d->capability >= 90) rate *= 0.6; // the rest is for those that use wgmma
    return sampled_seconds(p, a, d, k->bm, k->bn, k->bk, rate * k->peak);
}

static sat_status prepare(const sat_prepare *prepare, void **state) {
    const kernel *k = kernel_for(prepare->variant);
    int layout = layout_of(prepare->problem);
    cudaError_t e = cudaFuncSetAttribute((const void *)k->multiply[layout], cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         k->bytes[layout]);
    *state = NULL;
    if (e == cudaSuccess) return SAT_OK;
    return sat_fail(SAT_DEVICE_ERROR, "%s: %s", prepare->variant->name, cudaGetErrorString(e));
}

static sat_status launch(const sat_launch *l) {
    if (l->pattern->stored_blocks == 0) return SAT_OK;
    const kernel *k = kernel_for(l->variant);
    int layout = layout_of(l->problem);
    k->multiply[layout]<<<sampled_grid(l, k->bm, k->bn), k->threads, k->bytes[layout], (cudaStream_t)l->stream>>>(
        sampled_job_of(l, k->bm, k->bn));
    return sat_launched(l);
}

SAT_FAMILY(cuda_sampled_mma) = {
    .revision = "1",
    .op = SAT_SAMPLED,
    .backend = SAT_CUDA,
    .flags = SAT_V_BATCHED,
    .about = "tensor cores (mma.sync), tiles by asynchronous copies; neighbours in a block row share a tile",
    .supports = supports,
    .estimate = estimate,
    .prepare = prepare,
    .launch = launch,
};
