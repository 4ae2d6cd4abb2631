// cuda_sampled_simt: f32 and f64 without tensor cores. A thread has 8x8 accumulators. Strips of X and Y are in shared
// memory as [k][line], in a ring of stages, copied element by element by cp.async: so any strides and any alignment are
// supported. A long f32 sum is added to S in parts: there are no registers for a second set of accumulators.

#include "kernels/cuda/common/ptx_sm80.cuh"
#include "kernels/cuda/sampled/sampled_strip.cuh"

// BM x BN a CTA; the lanes of a warp are DOWN rows of 32/DOWN. Shared memory: STAGES stages, each a strip of X and one
// of Y, reused for the sums; then the offsets of the lines.
template <typename T_, int BM_, int BN_, int DOWN_, int CTAS_> struct shape {
    typedef T_ T;
    static constexpr int BM = BM_, BN = BN_, DOWN = DOWN_, OVER = 32 / DOWN, CTAS = CTAS_, THREADS = BM * BN / 64;
    static constexpr int SIZE = (int)sizeof(T), BK = 64 / SIZE, STAGES = BM < 32 ? 3 : 4; // low tiles: more CTAs
    static constexpr int X_BYTES = BK * (BM + 4) * SIZE, STAGE = X_BYTES + BK * (BN + 4) * SIZE;
    static constexpr int SUMS = BM * sampled_sums<BN>::PITCH * SIZE;
    static constexpr int RING = STAGES * STAGE > SUMS ? STAGES *STAGE : SUMS, BYTES = RING + 8 * (BM + BN);
};

// ---- producer: all threads copy. Along k they copy whole sectors. Rows are padded, so that these copies, and reads of
// 16 bytes, have no bank conflicts.

template <typename S, int LINES> struct strip {
    static constexpr int PITCH = LINES + 4;

    __device__ static __forceinline__ void copy(uint32_t to, const char *base, const int64_t *line_offset, int lines,
                                                const sampled_operand &o, int64_t k0, int64_t k) {
        sampled_strip<LINES, S::BK, S::THREADS, 32 / S::SIZE>::each(
            base, line_offset, lines, o, k0, k, [&](int, int line, int step, const char *from, bool real) {
                cp_async_small<S::SIZE>(to + (step * PITCH + line) * S::SIZE, from, real ? S::SIZE : 0);
            });
    }
};

// ---- consumer

// A thread's 8 rows, or columns, are vectors of 16 bytes, LANES vectors apart: so neighbouring lanes read neighbours.
template <typename T, int LANES> __device__ __forceinline__ void read8(T (&r)[8], const T *from) {
    constexpr int WIDE = 16 / sizeof(T);
#pragma unroll
    for (int g = 0; g < 8 / WIDE; g++) *(uint4 *)&r[g * WIDE] = *(const uint4 *)&from[g * WIDE * LANES];
}

// ---- kernel: one CTA a tile

template <typename S> static __global__ void __launch_bounds__(S::THREADS, S::CTAS) multiply(sampled_args args) {
    typedef typename S::T T;
    typedef strip<S, S::BM> x_strip;
    typedef strip<S, S::BN> y_strip;
    extern __shared__ __align__(16) char ring[];
    int64_t *x_offset = (int64_t *)(ring + S::RING), *y_offset = x_offset + S::BM;
    sampled_tile t;
    if (!sampled_tile_of<S::BM, S::BN>(args, t)) return;
    sampled_line_offsets<S::BM, S::BN>(args, t, x_offset, y_offset);
    __syncthreads();

    const char *x = args.x.base + blockIdx.y * args.x.batch_stride, *y = args.y.base + blockIdx.y * args.y.batch_stride;
    constexpr int PART = S::SIZE == 4 ? SAT_SUM_PART / S::BK : INT32_MAX / 2;
    int end; // one past the last stage of a part of the sum
    auto load_stage = [&](int stage) {
        uint32_t to = smem_address(ring) + stage % S::STAGES * S::STAGE;
        int64_t k0 = (int64_t)stage * S::BK;
        if (stage < end) {
            x_strip::copy(to, x, x_offset, t.x_lines, args.x, k0, args.k);
            y_strip::copy(to + S::X_BYTES, y, y_offset, t.y_lines, args.y, k0, args.k);
        }
        cp_async_commit_group();
    };

    constexpr int WIDE = 16 / S::SIZE, WARPS_OVER = S::BN / (8 * S::OVER);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int row = warp / WARPS_OVER * 8 * S::DOWN + lane / S::OVER * WIDE;
    int col = warp % WARPS_OVER * 8 * S::OVER + lane % S::OVER * WIDE;
    for (int begin = 0;; begin = end) {
        T acc[8][8] = {};
        end = (int)sat_min((args.k + S::BK - 1) / S::BK, begin + PART);
#pragma unroll 1
        for (int stage = begin; stage < begin + S::STAGES - 1; stage++) load_stage(stage);
        for (int stage = begin; stage < end; stage++) {
            cp_async_wait_group<S::STAGES - 2>();
            __syncthreads(); // this stage is complete, and all warps have read the one before
            load_stage(stage + S::STAGES - 1);
            const T *xs = (const T *)(ring + stage % S::STAGES * S::STAGE) + row;
            const T *ys = (const T *)(ring + stage % S::STAGES * S::STAGE + S::X_BYTES) + col;
#pragma unroll
            for (int k = 0; k < S::BK; k++) {
                T a[8], b[8];
                read8<T, S::DOWN>(a, xs + k * x_strip::PITCH);
                read8<T, S::OVER>(b, ys + k * y_strip::PITCH);
#pragma unroll
                for (int i = 0; i < 8; i++)
#pragma unroll
                    for (int j = 0; j < 8; j++) acc[i][j] += a[i] * b[j];
            }
        }
        cp_async_wait_group<0>();
        __syncthreads();

        T *sums = (T *)ring;
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                sums[(row + i / WIDE * WIDE * S::DOWN + i % WIDE) * sampled_sums<S::BN>::PITCH + col +
                     j / WIDE * WIDE * S::OVER + j % WIDE] = acc[i][j];
        __syncthreads();
        sampled_store<T, S::BM, S::BN>(args, t, sums, begin == 0);
        if ((int64_t)end * S::BK >= args.k) return;
        __syncthreads();
    }
}

// ---- host: instances

struct instance {
    sat_dtype dtype;
    int bm, bn, bk, threads, bytes;
    double peak; // of the device's rate without tensor cores, with full tiles
    void (*run)(sampled_args);
};

template <typename S> static constexpr instance instance_of(double peak) {
    return {S::SIZE == 8 ? SAT_F64 : SAT_F32, S::BM, S::BN, S::BK, S::THREADS, S::BYTES, peak, multiply<S>};
}

static const instance instances[] = {
    instance_of<shape<float, 128, 128, 4, 2>>(0.8),
    instance_of<shape<float, 64, 128, 4, 4>>(0.75),
    instance_of<shape<float, 32, 128, 4, 5>>(0.65),
    instance_of<shape<double, 32, 128, 4, 4>>(0.65),
};

static const instance *find(const sat_variant *v) {
    const sat_instance *i = &v->instance;
    for (const instance &k : instances)
        if (k.dtype == i->dtype && k.bm == i->tile_m && k.bn == i->tile_n) return &k;
    return NULL;
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const instance *k = find(v);
    if (!k || p->a_dtype != k->dtype || 2 * a->block_rows < k->bm) return false;
    return k->bytes + 1024 <= d->l1_bytes && sampled_fits(p, a, k->bm, k->bn);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const instance *k = find(v);
    double rate = d->flop_rate[k->dtype];
    if (k->dtype == SAT_F64 && (d->capability == 80 || d->capability >= 90)) rate /= 2; // it counts the tensor cores
    return sampled_seconds(p, a, d, k->bm, k->bn, k->bk, rate * k->peak);
}

static sat_status prepare(const sat_prepare *prepare, void **state) {
    const instance *k = find(prepare->variant);
    cudaError_t e = cudaFuncSetAttribute((const void *)k->run, cudaFuncAttributeMaxDynamicSharedMemorySize, k->bytes);
    *state = NULL;
    if (e == cudaSuccess) return SAT_OK;
    return sat_fail(SAT_DEVICE_ERROR, "%s: %s", prepare->variant->name, cudaGetErrorString(e));
}

static sat_status launch(const sat_launch *l) {
    if (l->pattern->stored_blocks == 0) return SAT_OK;
    const instance *k = find(l->variant);
    k->run<<<sampled_grid(l, k->bm, k->bn), k->threads, k->bytes, (cudaStream_t)l->stream>>>(
        sampled_args_of(l, k->bm, k->bn));
    return sat_launched(l);
}

SAT_FAMILY(cuda_sampled_simt) = {
    .revision = "2",
    .op = SAT_SAMPLED,
    .backend = SAT_CUDA,
    .flags = SAT_V_BATCHED | SAT_V_DYNAMIC,
    .about = "f32 and f64, 8x8 sums a thread, any strides; neighbours in a block row share a tile",
    .supports = supports,
    .estimate = estimate,
    .prepare = prepare,
    .launch = launch,
};
