// cuda_sampled_register: any dtype, any block, any strides. A thread keeps a few sums of a tile; X and Y pass through
// registers into shared memory, widened on the way, read along whichever step is smaller. For small and odd blocks, and
// for what the other families cannot read. A long f32 sum is added to S in parts.

#include "kernels/cuda/sampled/sampled_strip.cuh"

/* BM x BN a CTA, TM x TN a thread. */
template <int BM_, int BN_, int TM_, int TN_> struct shape {
    static constexpr int BM = BM_, BN = BN_, TM = TM_, TN = TN_, DOWN = BM / TM, OVER = BN / TN, THREADS = DOWN * OVER;
    static constexpr int BK = 16;
};

/* Some lines of an operand, BK steps of k: fetched into registers, then put into shared memory as [BK][LINES]. */
template <typename S, typename E, typename T, int LINES> struct part {
    typedef sampled_strip<LINES, S::BK, S::THREADS, S::BK> strip;
    static constexpr int PITCH = LINES + 1; /* odd: neighbours along k meet no bank twice */
    E held[strip::TURNS];

    __device__ __forceinline__ void fetch(const char *base, const int64_t *line_at, int lines, const sampled_side &o,
                                          int64_t k0, int64_t k) {
        strip::each(base, line_at, lines, o, k0, k, [&](int turn, int, int, const char *from, bool real) {
            held[turn] = real ? *(const E *)from : E(0.0f);
        });
    }

    template <bool ALONG> __device__ __forceinline__ void put_as(T *to) const {
#pragma unroll
        for (int turn = 0; turn < strip::TURNS; turn++) {
            int line, step;
            strip::template place<ALONG>(threadIdx.x, turn, line, step);
            to[step * PITCH + line] = sampled_widen<T>(held[turn]);
        }
    }

    __device__ __forceinline__ void put(T *to, const sampled_side &o) const {
        if (o.k_step < o.line_step) put_as<true>(to);
        else put_as<false>(to);
    }
};

/* By way of shared memory, which nobody else may be using. */
template <typename S, typename T>
__device__ __forceinline__ void leave(const sampled_job &w, const sampled_place &t, T *tiles,
                                      const T (&sum)[S::TM][S::TN], bool first) {
    int down = threadIdx.x / S::OVER, over = threadIdx.x % S::OVER;
    for (int i = 0; i < S::TM; i++)
        for (int j = 0; j < S::TN; j++)
            tiles[(down + i * S::DOWN) * sampled_sums<S::BN>::PITCH + over + j * S::OVER] = sum[i][j];
    __syncthreads();
    sampled_store<T, S::BM, S::BN>(w, t, tiles, first);
}

template <typename S, typename E, typename T>
static __global__ void __launch_bounds__(S::THREADS) multiply(sampled_job w) {
    typedef part<S, E, T, S::BM> x_part;
    typedef part<S, E, T, S::BN> y_part;
    constexpr int TILES = S::BK * (x_part::PITCH + y_part::PITCH), SUMS = S::BM * sampled_sums<S::BN>::PITCH;
    __shared__ T tiles[TILES > SUMS ? TILES : SUMS];
    __shared__ int64_t x_at[S::BM], y_at[S::BN];
    sampled_place t;
    if (!sampled_find<S::BM, S::BN>(w, t)) return;
    sampled_lines<S::BM, S::BN>(w, t, x_at, y_at);
    __syncthreads();

    const char *x = w.x.base + blockIdx.y * w.x.batch_step, *y = w.y.base + blockIdx.y * w.y.batch_step;
    static_assert(SAT_SUM_PART % S::BK == 0, "parts of whole steps");
    const bool parts = sizeof(T) == 4 && w.s_dtype == SAT_F32; // S has the type of the sums
    T *xs = tiles, *ys = tiles + S::BK * x_part::PITCH, sum[S::TM][S::TN] = {};
    int down = threadIdx.x / S::OVER, over = threadIdx.x % S::OVER;
    x_part x_next;
    y_part y_next;
    for (int64_t next = 0;; next += S::BK) { // the next tiles are on their way while these are multiplied
        x_next.fetch(x, x_at, t.x_lines, w.x, next, w.k), y_next.fetch(y, y_at, t.y_lines, w.y, next, w.k);
        if (next > 0) {
#pragma unroll
            for (int k = 0; k < S::BK; k++) {
                T a[S::TM], b[S::TN];
                for (int i = 0; i < S::TM; i++) a[i] = xs[k * x_part::PITCH + down + i * S::DOWN];
                for (int j = 0; j < S::TN; j++) b[j] = ys[k * y_part::PITCH + over + j * S::OVER];
                for (int i = 0; i < S::TM; i++)
                    for (int j = 0; j < S::TN; j++) sum[i][j] += a[i] * b[j];
            }
            __syncthreads();
        }
        if (next >= w.k) break;
        if (next > 0 && next % SAT_SUM_PART == 0 && parts) {
            leave<S, T>(w, t, tiles, sum, next == SAT_SUM_PART);
            __syncthreads();
            for (int i = 0; i < S::TM; i++)
                for (int j = 0; j < S::TN; j++) sum[i][j] = 0;
        }
        x_next.put(xs, w.x), y_next.put(ys, w.y);
        __syncthreads();
    }
    leave<S, T>(w, t, tiles, sum, w.k <= SAT_SUM_PART || !parts);
}

/* ---- instances ---- */

typedef struct kernel {
    int bm, bn, bk, threads;
    double peak;                      /* of the plain units' rate, with full tiles */
    void (*multiply[5])(sampled_job); /* by dtype */
} kernel;

template <typename S> static constexpr kernel kernel_of(double peak) {
    return {S::BM,
            S::BN,
            S::BK,
            S::THREADS,
            peak,
            {NULL, multiply<S, float, float>, multiply<S, double, double>, multiply<S, __half, float>,
             multiply<S, __nv_bfloat16, float>}};
}

static const kernel kernels[] = {
    kernel_of<shape<4, 32, 2, 2>>(0.05),
    kernel_of<shape<4, 128, 2, 4>>(0.1),
    kernel_of<shape<16, 64, 4, 4>>(0.2),
    kernel_of<shape<64, 64, 8, 4>>(0.35),
};

static const kernel *kernel_for(const sat_variant *v) {
    for (const kernel &k : kernels)
        if (k.bm == v->instance.tile_m && k.bn == v->instance.tile_n) return &k;
    return NULL;
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)d;
    const kernel *k = kernel_for(v);
    return k && sampled_fits(p, a, k->bm, k->bn);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const kernel *k = kernel_for(v);
    double rate = d->flop_rate[p->compute_dtype];
    if (p->compute_dtype == SAT_F64 && (d->capability == 80 || d->capability >= 90)) rate /= 2; // tensor cores
    return sampled_seconds(p, a, d, k->bm, k->bn, k->bk, rate * k->peak);
}

static sat_status launch(const sat_launch *l) {
    if (l->pattern->stored_blocks == 0) return SAT_OK;
    const kernel *k = kernel_for(l->variant);
    k->multiply[l->problem->a_dtype]<<<sampled_grid(l, k->bm, k->bn), k->threads, 0, (cudaStream_t)l->stream>>>(
        sampled_job_of(l, k->bm, k->bn));
    return sat_launched(l);
}

SAT_FAMILY(cuda_sampled_register) = {
    .revision = "2",
    .op = SAT_SAMPLED,
    .backend = SAT_CUDA,
    .flags = SAT_V_BATCHED,
    .about = "any dtype, block and strides: a few sums a thread, tiles widened into shared memory",
    .supports = supports,
    .estimate = estimate,
    .launch = launch,
};
