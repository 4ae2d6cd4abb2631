// cuda_sampled_mma: tensor cores by mma.sync, with a ring of stages in shared memory that cp.async fills. A CTA
// computes one tile of stored blocks (sampled_tile.cuh). Where it has more warps than warp tiles, the warps divide k,
// and their accumulators are added at the end: so warp tiles stay large and read less of shared memory. f16, bf16, f64,
// and f32 as TF32; either storage order of X and Y.

#include "kernels/cuda/common/ptx_sm80.cuh"
#include "kernels/cuda/sampled/sampled_tile.cuh"

// ---- producer: a tile of an operand in shared memory, LINES (rows of X, columns of Y) x DEPTH, in its global storage
// order

// K_MAJOR: the tile has a row for each line; else a row for each k. Rows are padded, so that copies and fragment loads
// have no bank conflicts.
template <typename T, int LINES, int DEPTH, bool K_MAJOR> struct operand_tile {
    static constexpr int SIZE = (int)sizeof(T), WIDE = 16 / SIZE; // elements of one copy
    static constexpr int ROWS = K_MAJOR ? LINES : DEPTH, COLS = K_MAJOR ? DEPTH : LINES;
    // ldmatrix reads 16-bit elements in rows of 16 bytes: their pitch is an odd number of those. Larger elements are
    // read one by one, 4 k by 8 lines: the pitch is 4 words, 8 words (a row for each k) or 4 doubles more than a
    // multiple of all banks.
    static constexpr int PITCH = COLS * SIZE + (SIZE == 2 || (SIZE == 4 && K_MAJOR) ? 16 : 32); // bytes
    static constexpr int BYTES = ROWS * PITCH;
    static constexpr int LINE_STRIDE = K_MAJOR ? PITCH : SIZE, K_STRIDE = K_MAJOR ? SIZE : PITCH; // bytes

    // Copies k0 .. k0+DEPTH-1 of `lines` lines to the tile at `to`; what does not exist becomes zero. line_offset[i]:
    // bytes from base to line i. In MN-major tiles, the lines of one copy are contiguous. k_stride: in bytes.
    template <int THREADS>
    __device__ static __forceinline__ void load(uint32_t to, const char *base, const int64_t *line_offset, int lines,
                                                int64_t k_stride, int64_t k0, int64_t k) {
        static_assert(ROWS * COLS / WIDE % THREADS == 0 || ROWS * COLS / WIDE < THREADS, "full passes");
        static_assert(THREADS % (COLS / WIDE) == 0, "a thread has the same columns in each pass");
        if (ROWS * COLS / WIDE < THREADS && threadIdx.x >= ROWS * COLS / WIDE) return;
        if (lines == LINES && k0 + DEPTH <= k) copy<THREADS, true>(to, base, line_offset, lines, k_stride, k0, k);
        else copy<THREADS, false>(to, base, line_offset, lines, k_stride, k0, k);
    }

  private:
    // WHOLE: all lines and all k exist, as in nearly all tiles.
    template <int THREADS, bool WHOLE>
    __device__ static __forceinline__ void copy(uint32_t to, const char *base, const int64_t *line_offset, int lines,
                                                int64_t k_stride, int64_t k0, int64_t k) {
        constexpr int PER = COLS / WIDE, STEP = THREADS / PER, PASSES = (ROWS + STEP - 1) / STEP;
        int row = threadIdx.x / PER, col = threadIdx.x % PER * WIDE;
        if (PER == 4 && STEP % 8 == 0) row = row / 8 * 8 + row % 8 / 2 + row % 2 * 4; // against bank conflicts
        int64_t left = K_MAJOR ? k - k0 - col : lines - col;
        int valid = WHOLE || left >= WIDE ? 16 : left > 0 ? (int)left * SIZE : 0;
        const char *from = base + (K_MAJOR ? (k0 + col) * SIZE : line_offset[col] + (k0 + row) * k_stride);
        const char *source[PASSES]; // read before the first copy: a read after a copy would wait for it
#pragma unroll
        for (int i = 0; i < PASSES; i++)
            source[i] = from + (K_MAJOR ? line_offset[row + i * STEP] : i * STEP * k_stride);
        to += row * PITCH + col * SIZE;
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            if (WHOLE) {
                cp_async_16(to + i * STEP * PITCH, source[i]);
                continue;
            }
            bool real = valid > 0 && (K_MAJOR ? row + i * STEP < lines : k0 + row + i * STEP < k);
            cp_async_16(to + i * STEP * PITCH, real ? source[i] : base, real ? valid : 0);
        }
    }
};

// ---- fragments

// The products of ptx_sm80.cuh in one form: 16 x 8 x K; a has 4 registers a lane, b has 2, c has 4.
template <typename MATH> struct product {
    typedef uint32_t word;
    typedef float accumulator;
    static constexpr int K = sizeof(typename MATH::element) == 2 ? 16 : 8;
    __device__ static __forceinline__ void multiply(accumulator (&c)[4], const word (&a)[4], word b0, word b1) {
        MATH::multiply(c, a, b0, b1);
    }
};

template <> struct product<sat_f64_math> {
    typedef double word, accumulator;
    static constexpr int K = 8;
    __device__ static __forceinline__ void multiply(accumulator (&c)[4], const word (&a)[4], word b0, word b1) {
        sat_f64_math::multiply(c, a, b0, b1);
    }
};

__device__ __forceinline__ uint32_t load_element(uint32_t, uint32_t from) { // f32 rounded to TF32
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
    return sat_tf32_math::round(x);
}
__device__ __forceinline__ double load_element(double, uint32_t from) { return ld_shared_f64(from); }

// A fragment: 16 lines x K, in four quarters of 8 lines x K/2. IS_A: the second quarter has the next lines; else, for
// B, the next k, so that two quarters are the b of one product.
template <typename MATH, typename TILE, bool K_MAJOR, bool IS_A> struct fragment {
    typedef typename product<MATH>::word word;
    static constexpr int LINE = TILE::LINE_STRIDE, STEP = TILE::K_STRIDE;

    // A lane's offset in every fragment.
    __device__ static __forceinline__ uint32_t lane() {
        uint32_t l = threadIdx.x % 32;
        if (TILE::SIZE > 2) return l / 4 * LINE + l % 4 * STEP;
        uint32_t half = l / 8 % 2 * 8, other = l / 16 * 8;
        return (IS_A ? half : other) * LINE + (IS_A ? other : half) * STEP + l % 8 * (K_MAJOR ? LINE : STEP);
    }

    // The fragment at an address that includes lane().
    __device__ static __forceinline__ void load(word (&r)[4], uint32_t at) {
        if constexpr (TILE::SIZE == 2 && K_MAJOR) ldmatrix_x4(r, at);
        else if constexpr (TILE::SIZE == 2) ldmatrix_x4_trans(r, at);
        else {
#pragma unroll
            for (int q = 0; q < 4; q++) {
                int lines = (IS_A ? q % 2 : q / 2) * 8, steps = (IS_A ? q / 2 : q % 2) * (product<MATH>::K / 2);
                r[q] = load_element(word(), at + lines * LINE + steps * STEP);
            }
        }
    }
};

// ---- shape and shared memory of a kernel

// BM x BN a CTA, BK of k a stage; WM x WN a warp; the warps of a tile divide k into SLICES.
template <typename MATH_, int BM_, int BN_, int BK_, int WM_, int WN_, int SLICES_, int STAGES_, int CTAS_>
struct shape {
    typedef MATH_ MATH;
    typedef typename MATH::element element;
    typedef ::product<MATH> product;
    static constexpr int BM = BM_, BN = BN_, BK = BK_, WM = WM_, WN = WN_, SLICES = SLICES_, STAGES = STAGES_;
    static constexpr int CTAS = CTAS_, DOWN = BM / WM, OVER = BN / WN, THREADS = 32 * DOWN * OVER * SLICES;
    static constexpr int K_STEPS = BK / product::K / SLICES; // of a warp, in a stage
    static_assert(K_STEPS % 2 == 0, "fragments alternate between two sets of registers");
};

// STAGES stages, each a tile of X and one of Y, reused for the sums; then line offsets.
template <typename S, bool X_K_MAJOR, bool Y_K_MAJOR> struct memory {
    typedef operand_tile<typename S::element, S::BM, S::BK, X_K_MAJOR> x_tile;
    typedef operand_tile<typename S::element, S::BN, S::BK, Y_K_MAJOR> y_tile;
    typedef fragment<typename S::MATH, x_tile, X_K_MAJOR, true> x_fragment;
    typedef fragment<typename S::MATH, y_tile, Y_K_MAJOR, false> y_fragment;
    static constexpr int STAGE = x_tile::BYTES + y_tile::BYTES;
    static constexpr int SUMS =
        S::SLICES * S::BM * sampled_sums<S::BN>::PITCH * (int)sizeof(typename S::product::accumulator);
    static constexpr int RING = S::STAGES * STAGE > SUMS ? S::STAGES *STAGE : SUMS;
    static constexpr int BYTES = RING + 8 * (S::BM + S::BN);
};

// ---- consumer: a warp's fragments of this k step and of the next one, and its accumulators

template <typename S, typename M> struct warp_tile {
    typedef typename S::product product;
    typename product::word a[2][S::WM / 16][4], b[2][S::WN / 16][4];
    typename product::accumulator c[S::WM / 16][S::WN / 8][4];
    uint32_t x_at, y_at; // bytes into a stage
    int sum_at;          // the first accumulator's position in the sums

    __device__ __forceinline__ warp_tile() {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slice = warp / (S::DOWN * S::OVER);
        int row = warp / S::OVER % S::DOWN * S::WM, column = warp % S::OVER * S::WN,
            k = slice * S::K_STEPS * product::K;
        x_at = M::x_fragment::lane() + row * M::x_tile::LINE_STRIDE + k * M::x_tile::K_STRIDE;
        y_at = M::y_fragment::lane() + column * M::y_tile::LINE_STRIDE + k * M::y_tile::K_STRIDE + M::x_tile::BYTES;
        sum_at = (slice * S::BM + row + lane / 4) * sampled_sums<S::BN>::PITCH + column + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < S::WM / 16; i++)
#pragma unroll
            for (int j = 0; j < S::WN / 8; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) c[i][j][e] = 0;
    }

    __device__ __forceinline__ void load(int set, uint32_t stage, int step) {
#pragma unroll
        for (int i = 0; i < S::WM / 16; i++)
            M::x_fragment::load(a[set][i], stage + x_at + i * 16 * M::x_tile::LINE_STRIDE +
                                               step * product::K * M::x_tile::K_STRIDE);
#pragma unroll
        for (int j = 0; j < S::WN / 16; j++)
            M::y_fragment::load(b[set][j], stage + y_at + j * 16 * M::y_tile::LINE_STRIDE +
                                               step * product::K * M::y_tile::K_STRIDE);
    }

    __device__ __forceinline__ void multiply(int set) {
#pragma unroll
        for (int i = 0; i < S::WM / 16; i++)
#pragma unroll
            for (int j = 0; j < S::WN / 8; j++)
                product::multiply(c[i][j], a[set][i], b[set][j / 2][j % 2 * 2], b[set][j / 2][j % 2 * 2 + 1]);
    }

    __device__ __forceinline__ void store_shared(typename product::accumulator *sums) const {
#pragma unroll
        for (int i = 0; i < S::WM / 16; i++)
#pragma unroll
            for (int j = 0; j < S::WN / 8; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    sums[sum_at + (i * 16 + e / 2 * 8) * sampled_sums<S::BN>::PITCH + j * 8 + e % 2] = c[i][j][e];
    }
};

// ---- kernel: one CTA a tile; all threads copy, all warps multiply

template <typename S, bool X_K_MAJOR, bool Y_K_MAJOR>
static __global__ void __launch_bounds__(S::THREADS, S::CTAS) multiply(sampled_args args) {
    typedef memory<S, X_K_MAJOR, Y_K_MAJOR> M;
    typedef typename S::product::accumulator accumulator;
    extern __shared__ __align__(16) char ring[];
    int64_t *x_offset = (int64_t *)(ring + M::RING), *y_offset = x_offset + S::BM;
    sampled_tile t;
    if (!sampled_tile_of<S::BM, S::BN>(args, t)) return;
    sampled_line_offsets<S::BM, S::BN>(args, t, x_offset, y_offset);
    __syncthreads();

    const char *x = args.x.base + blockIdx.y * args.x.batch_stride, *y = args.y.base + blockIdx.y * args.y.batch_stride;
    uint32_t base = smem_address(ring);
    int stages = (int)((args.k + S::BK - 1) / S::BK);
    auto load_stage = [&](int stage) {
        uint32_t to = base + stage % S::STAGES * M::STAGE;
        int64_t k0 = (int64_t)stage * S::BK;
        if (stage < stages) {
            M::x_tile::template load<S::THREADS>(to, x, x_offset, t.x_lines, args.x.k_stride, k0, args.k);
            M::y_tile::template load<S::THREADS>(to + M::x_tile::BYTES, y, y_offset, t.y_lines, args.y.k_stride, k0,
                                                 args.k);
        }
        cp_async_commit_group();
    };

#pragma unroll 1
    for (int stage = 0; stage < S::STAGES - 1; stage++) load_stage(stage);
    warp_tile<S, M> warp;
    cp_async_wait_group<S::STAGES - 2>();
    __syncthreads();
    warp.load(0, base, 0);
    for (int stage = 0; stage < stages; stage++) {
        uint32_t now = base + stage % S::STAGES * M::STAGE, next = base + (stage + 1) % S::STAGES * M::STAGE;
#pragma unroll
        for (int step = 0; step < S::K_STEPS; step++) {
            bool last = step == S::K_STEPS - 1;
            if (last) { // the next stage is complete, and all warps have read this one
                cp_async_wait_group<S::STAGES - 2>();
                __syncthreads();
            }
            warp.load((step + 1) % 2, last ? next : now, last ? 0 : step + 1);
            if (step == 0) load_stage(stage + S::STAGES - 1);
            warp.multiply(step % 2);
        }
    }
    cp_async_wait_group<0>();
    __syncthreads();

    warp.store_shared((accumulator *)ring);
    __syncthreads();
    if (sizeof(typename S::element) == 2 && args.s_dtype == SAT_F32)
        sampled_store_vectors<accumulator, float, S::BM, S::BN, S::SLICES>(args, t, (const accumulator *)ring);
    else
        sampled_store_vectors<accumulator, typename S::element, S::BM, S::BN, S::SLICES>(args, t,
                                                                                         (const accumulator *)ring);
}

// ---- host: instances

struct instance {
    sat_dtype dtype;
    int bm, bn, bk, threads;
    double peak; // of mma.sync's rate, with full tiles
    int bytes[4];
    void (*run[4])(sampled_args); // [2 * X is K-major + Y is K-major]
};

template <typename S> static constexpr instance instance_of(double peak) {
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

// BM, BN, BK; WM, WN; slices of k, stages, CTAs of a multiprocessor
static const instance instances[] = {
    instance_of<shape<sat_f16_math, 128, 256, 64, 64, 64, 1, 4, 1>>(0.85),
    instance_of<shape<sat_f16_math, 128, 128, 64, 64, 64, 2, 4, 1>>(0.8),
    instance_of<shape<sat_f16_math, 64, 128, 64, 64, 64, 2, 4, 2>>(0.75),
    instance_of<shape<sat_f16_math, 64, 64, 128, 64, 64, 4, 3, 2>>(0.7),
    instance_of<shape<sat_f16_math, 32, 256, 32, 32, 64, 1, 4, 2>>(0.6),
    instance_of<shape<sat_f16_math, 16, 256, 32, 16, 64, 1, 5, 2>>(0.4),
    instance_of<shape<sat_bf16_math, 128, 256, 64, 64, 64, 1, 4, 1>>(0.85),
    instance_of<shape<sat_bf16_math, 128, 128, 64, 64, 64, 2, 4, 1>>(0.8),
    instance_of<shape<sat_bf16_math, 64, 128, 64, 64, 64, 2, 4, 2>>(0.75),
    instance_of<shape<sat_bf16_math, 64, 64, 128, 64, 64, 4, 3, 2>>(0.7),
    instance_of<shape<sat_bf16_math, 32, 256, 32, 32, 64, 1, 4, 2>>(0.6),
    instance_of<shape<sat_bf16_math, 16, 256, 32, 16, 64, 1, 5, 2>>(0.4),
    instance_of<shape<sat_tf32_math, 64, 128, 32, 64, 64, 2, 4, 2>>(0.6),
    instance_of<shape<sat_tf32_math, 16, 128, 32, 16, 32, 1, 4, 2>>(0.35),
    instance_of<shape<sat_f64_math, 64, 64, 16, 32, 32, 1, 4, 2>>(0.7),
    instance_of<shape<sat_f64_math, 16, 64, 16, 16, 16, 1, 4, 4>>(0.5),
};

static const instance *find(const sat_variant *v) {
    const sat_instance *i = &v->instance;
    for (const instance &k : instances)
        if (k.dtype == i->dtype && k.bm == i->tile_m && k.bn == i->tile_n && k.bk == i->tile_k) return &k;
    return NULL;
}

// 1: k is contiguous, 0: lines are, -1: neither, or strides are not multiples of 16 bytes.
static int order_of(int64_t line_stride, int64_t k_stride, int64_t wide) {
    if (k_stride == 1 && line_stride % wide == 0) return 1;
    return line_stride == 1 && k_stride % wide == 0 ? 0 : -1;
}

static int layout_of(const sat_problem *p) { // an index of instance.run; -1: the copies do not support it
    int64_t wide = 16 / (int64_t)sat_dtype_size(p->a_dtype);
    int x = order_of(p->a.row_stride, p->a.col_stride, wide), y = order_of(p->b.col_stride, p->b.row_stride, wide);
    return x < 0 || y < 0 ? -1 : 2 * x + y;
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const instance *k = find(v);
    int layout = layout_of(p);
    if (!k || p->a_dtype != k->dtype || layout < 0) return false;
    if (p->a_dtype == SAT_F32 && !(p->flags & SAT_ALLOW_TF32)) return false;
    if (p->a_align < 16 || p->b_align < 16 || p->c_align < 16) return false;
    int64_t wide = 16 / (int64_t)sat_dtype_size(p->a_dtype), wide_c = 16 / (int64_t)sat_dtype_size(p->c_dtype);
    if (p->batch > 1 && (p->a.batch_stride % wide || p->b.batch_stride % wide || p->c.batch_stride % wide_c))
        return false;
    // where lines are contiguous, those of one copy are in one block, and begin on a multiple of 16 bytes
    if (!(layout & 2) && a->block_rows % wide) return false;
    if ((!(layout & 1) && a->block_cols % wide) || a->block_cols % wide_c) return false;
    if (2 * a->block_rows < k->bm) return false; // the tile would be mostly unused
    return k->bytes[layout] + 1024 <= d->l1_bytes && sampled_fits(p, a, k->bm, k->bn);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const instance *k = find(v);
    double rate = sat_matrix_rate(d, p->a_dtype);
    if (p->a_dtype != SAT_F64 && d->capability >= 90) rate *= 0.6; // only wgmma reaches the whole rate
    return sampled_seconds(p, a, d, k->bm, k->bn, k->bk, rate * k->peak);
}

static sat_status prepare(const sat_prepare *prepare, void **state) {
    const instance *k = find(prepare->variant);
    int layout = layout_of(prepare->problem);
    cudaError_t e = cudaFuncSetAttribute((const void *)k->run[layout], cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         k->bytes[layout]);
    *state = NULL;
    if (e == cudaSuccess) return SAT_OK;
    return sat_fail(SAT_DEVICE_ERROR, "%s: %s", prepare->variant->name, cudaGetErrorString(e));
}

static sat_status launch(const sat_launch *l) {
    if (l->pattern->stored_blocks == 0) return SAT_OK;
    const instance *k = find(l->variant);
    int layout = layout_of(l->problem);
    k->run[layout]<<<sampled_grid(l, k->bm, k->bn), k->threads, k->bytes[layout], (cudaStream_t)l->stream>>>(
        sampled_args_of(l, k->bm, k->bn));
    return sat_launched(l);
}

SAT_FAMILY(cuda_sampled_mma) = {
    .revision = "1",
    .op = SAT_SAMPLED,
    .backend = SAT_CUDA,
    .flags = SAT_V_BATCHED | SAT_V_DYNAMIC,
    .about = "tensor cores (mma.sync), tiles by asynchronous copies; neighbours in a block row share a tile",
    .supports = supports,
    .estimate = estimate,
    .prepare = prepare,
    .launch = launch,
};
