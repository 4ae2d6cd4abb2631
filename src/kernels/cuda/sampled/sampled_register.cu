// cuda_sampled_register: any dtype, any block, any strides. A thread has a few accumulators of a tile. Strips of X and
// Y go through registers to shared memory, where they have the accumulators' type; they are read along the smaller
// stride. For small and odd blocks, and for layouts that the other families do not support. A long f32 sum is added to
// S in parts.

#include "kernels/cuda/sampled/sampled_strip.cuh"

// BM x BN a CTA, TM x TN a thread, BK of k at a time.
template <int BM_, int BN_, int TM_, int TN_> struct shape {
    static constexpr int BM = BM_, BN = BN_, TM = TM_, TN = TN_, DOWN = BM / TM, OVER = BN / TN, THREADS = DOWN * OVER;
    static constexpr int BK = 16;
};

// ---- producer: a strip of an operand is loaded into registers, then stored to shared memory as [BK][LINES]

template <typename S, typename E, typename T, int LINES> struct strip {
    typedef sampled_strip<LINES, S::BK, S::THREADS, S::BK> threads;
    static constexpr int PITCH = LINES + 1; // odd, so that neighbours along k are in different banks
    E held[threads::PASSES];

    __device__ __forceinline__ void load(const char *base, const int64_t *line_offset, int lines,
                                         const sampled_operand &o, int64_t k0, int64_t k) {
        threads::each(base, line_offset, lines, o, k0, k, [&](int pass, int, int, const char *from, bool real) {
            held[pass] = real ? *(const E *)from : E(0.0f);
        });
    }

    template <bool ALONG_K> __device__ __forceinline__ void store_as(T *to) const {
#pragma unroll
        for (int pass = 0; pass < threads::PASSES; pass++) {
            int line, step;
            threads::template position<ALONG_K>(threadIdx.x, pass, line, step);
            to[step * PITCH + line] = sampled_widen<T>(held[pass]);
        }
    }

    __device__ __forceinline__ void store(T *to, const sampled_operand &o) const {
        if (o.k_stride < o.line_stride) store_as<true>(to);
        else store_as<false>(to);
    }
};

// ---- epilogue: through shared memory, which holds no strip at that time

template <typename S, typename T>
__device__ __forceinline__ void store_tile(const sampled_args &args, const sampled_tile &t, T *tiles,
                                           const T (&acc)[S::TM][S::TN], bool first) {
    int down = threadIdx.x / S::OVER, over = threadIdx.x % S::OVER;
    for (int i = 0; i < S::TM; i++)
        for (int j = 0; j < S::TN; j++)
            tiles[(down + i * S::DOWN) * sampled_sums<S::BN>::PITCH + over + j * S::OVER] = acc[i][j];
    __syncthreads();
    sampled_store<T, S::BM, S::BN>(args, t, tiles, first);
}

// ---- kernel: one CTA a tile. E: the element's type, T: the accumulator's

template <typename S, typename E, typename T>
static __global__ void __launch_bounds__(S::THREADS) multiply(sampled_args args) {
    typedef strip<S, E, T, S::BM> x_strip;
    typedef strip<S, E, T, S::BN> y_strip;
    constexpr int TILES = S::BK * (x_strip::PITCH + y_strip::PITCH), SUMS = S::BM * sampled_sums<S::BN>::PITCH;
    __shared__ T tiles[TILES > SUMS ? TILES : SUMS];
    __shared__ int64_t x_offset[S::BM], y_offset[S::BN];
    sampled_tile t;
    if (!sampled_tile_of<S::BM, S::BN>(args, t)) return;
    sampled_line_offsets<S::BM, S::BN>(args, t, x_offset, y_offset);
    __syncthreads();

    const char *x = args.x.base + blockIdx.y * args.x.batch_stride, *y = args.y.base + blockIdx.y * args.y.batch_stride;
    static_assert(SAT_SUM_PART % S::BK == 0, "parts of whole steps");
    const bool parts = sizeof(T) == 4 && args.s_dtype == SAT_F32; // S has the accumulators' type
    T *xs = tiles, *ys = tiles + S::BK * x_strip::PITCH, acc[S::TM][S::TN] = {};
    int down = threadIdx.x / S::OVER, over = threadIdx.x % S::OVER;
    x_strip x_next;
    y_strip y_next;
    for (int64_t next = 0;; next += S::BK) { // loads of the next strips overlap with the products
        x_next.load(x, x_offset, t.x_lines, args.x, next, args.k);
        y_next.load(y, y_offset, t.y_lines, args.y, next, args.k);
        if (next > 0) {
#pragma unroll
            for (int k = 0; k < S::BK; k++) {
                T a[S::TM], b[S::TN];
                for (int i = 0; i < S::TM; i++) a[i] = xs[k * x_strip::PITCH + down + i * S::DOWN];
                for (int j = 0; j < S::TN; j++) b[j] = ys[k * y_strip::PITCH + over + j * S::OVER];
                for (int i = 0; i < S::TM; i++)
                    for (int j = 0; j < S::TN; j++) acc[i][j] += a[i] * b[j];
            }
            __syncthreads();
        }
        if (next >= args.k) break;
        if (next > 0 && next % SAT_SUM_PART == 0 && parts) {
            store_tile<S, T>(args, t, tiles, acc, next == SAT_SUM_PART);
            __syncthreads();
            for (int i = 0; i < S::TM; i++)
                for (int j = 0; j < S::TN; j++) acc[i][j] = 0;
        }
        x_next.store(xs, args.x), y_next.store(ys, args.y);
        __syncthreads();
    }
    store_tile<S, T>(args, t, tiles, acc, args.k <= SAT_SUM_PART || !parts);
}

// ---- host: instances

struct instance {
    int bm, bn, bk, threads;
    double peak;                  // of the rate without tensor cores, with full tiles
    void (*run[5])(sampled_args); // by dtype
};

template <typename S> static constexpr instance instance_of(double peak) {
    return {S::BM,
            S::BN,
            S::BK,
            S::THREADS,
            peak,
            {NULL, multiply<S, float, float>, multiply<S, double, double>, multiply<S, __half, float>,
             multiply<S, __nv_bfloat16, float>}};
}

static const instance instances[] = {
    instance_of<shape<4, 32, 2, 2>>(0.05),
    instance_of<shape<4, 128, 2, 4>>(0.1),
    instance_of<shape<16, 64, 4, 4>>(0.2),
    instance_of<shape<64, 64, 8, 4>>(0.35),
};

static const instance *find(const sat_variant *v) {
    for (const instance &k : instances)
        if (k.bm == v->instance.tile_m && k.bn == v->instance.tile_n) return &k;
    return NULL;
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)d;
    const instance *k = find(v);
    return k && sampled_fits(p, a, k->bm, k->bn);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const instance *k = find(v);
    double rate = d->flop_rate[p->compute_dtype];
    if (p->compute_dtype == SAT_F64 && (d->capability == 80 || d->capability >= 90)) rate /= 2; // tensor cores
    return sampled_seconds(p, a, d, k->bm, k->bn, k->bk, rate * k->peak);
}

static sat_status launch(const sat_launch *l) {
    if (l->pattern->stored_blocks == 0) return SAT_OK;
    const instance *k = find(l->variant);
    k->run[l->problem->a_dtype]<<<sampled_grid(l, k->bm, k->bn), k->threads, 0, (cudaStream_t)l->stream>>>(
        sampled_args_of(l, k->bm, k->bn));
    return sat_launched(l);
}

SAT_FAMILY(cuda_sampled_register) = {
    .revision = "2",
    .op = SAT_SAMPLED,
    .backend = SAT_CUDA,
    .flags = SAT_V_BATCHED | SAT_V_DYNAMIC,
    .about = "any dtype, block and strides: a few sums a thread, tiles widened into shared memory",
    .supports = supports,
    .estimate = estimate,
    .launch = launch,
};
