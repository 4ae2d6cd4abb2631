// cuda_attention_mma: fused attention on tensor cores by mma.sync, O = softmax(scale*Q*K^T where kept)*V, dense and
// block-sparse by the same kernel, from sm_80 on.
//
// f16 and bf16, head sizes up to 256; those that are not 64, 96, 128 or 256 are padded up to the next in shared memory.
// With OPTIONS values may be of another size than keys, rows may begin anywhere, and there are soft caps and sinks. A
// CTA has BM queries of one head, a warp 16 or 32 of them. Tiles of BN keys and values come by cp.async into a ring of
// two stages, so that one is copied while the other is used, with one barrier a tile. Scores stay in registers, and so
// does P, the A operand of P*V.

#include "kernels/cuda/attention/attention_mma.cuh"

// ---- shared memory: Q, then two stages of K and V ----

// Head sizes of keys up to D, of values up to DV. Sizes in bytes.
template <int D_, int BM_, int BN_, int WARPS_, int CTAS_, int DV_ = D_> struct tile_shape {
    static constexpr int D = D_, DV = DV_, BM = BM_, BN = BN_, WARPS = WARPS_, CTAS = CTAS_, THREADS = 32 * WARPS;
    static constexpr int ROWS = BM / WARPS, MT = ROWS / 16; // of a warp
    static constexpr int PITCH = 2 * D + 16, V_PITCH = 2 * DV + 16, Q = BM * PITCH, TILE = BN * PITCH;
    static constexpr int STAGE = TILE + BN * V_PITCH;
    static constexpr int BYTES = Q + 2 * STAGE;
    static_assert(ROWS % 16 == 0 && BN % 16 == 0 && BN <= ATTENTION_WORD_KEYS && D % 16 == 0 && DV % 16 == 0 && DV <= D,
                  "");
};

// ---- load ----

template <typename S, int D, bool OPTIONS>
__device__ __forceinline__ void load_rows(uint32_t to, const char *from, int64_t stride, int count, int dim,
                                          bool aligned) {
    if constexpr (OPTIONS) attention_load_any<S::BN, D, S::THREADS>(to, from, stride, count, dim, aligned);
    else attention_load_rows<S::BN, D, S::THREADS>(to, from, stride, count, dim);
}

// Begins to copy a step's keys and values; true: some of its pairs may not be kept.
template <typename S, bool OPTIONS>
__device__ __forceinline__ bool load_step(const attention_args &x, const attention_cta &c, int step, uint32_t to) {
    attention_step t = attention_step_at(x.schedule, c.steps, step);
    load_rows<S, S::D, OPTIONS>(to, c.keys + 2 * t.first * x.k_at.row_stride, 2 * x.k_at.row_stride, t.count, x.dim,
                                x.options.aligned);
    load_rows<S, S::DV, OPTIONS>(to + S::TILE, c.values + 2 * t.first * x.v_at.row_stride, 2 * x.v_at.row_stride,
                                 t.count, OPTIONS ? x.options.value_dim : x.dim, x.options.aligned);
    return t.edge;
}

// Changes the sign of Q where the scale is negative: the softmax takes a positive scale.
template <typename S> __device__ __forceinline__ void negate_q(uint32_t q) {
    constexpr int VECTORS = S::D / 8;
    for (int at = threadIdx.x; at < S::BM * VECTORS * 4; at += S::THREADS) {
        uint32_t x = q + at / (VECTORS * 4) * S::PITCH + at % (VECTORS * 4) * 4;
        uint32_t word = ld_shared_b32(x) ^ 0x80008000u;
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(x), "r"(word) : "memory");
    }
}

// ---- mask ----

// Scores of pairs that are not kept become -inf.
template <typename S>
__device__ __forceinline__ void mask_scores(float (&s)[S::MT][S::BN / 8][4], const attention_args &x,
                                            const attention_cta &c, int step) {
    attention_step t = attention_step_at(x.schedule, c.steps, step);
    const attention_tile &own = c.work.t;
    int thread = reread_thread_index(), row = own.first + thread / 32 * S::ROWS + thread % 32 / 4;
    int64_t word = (int64_t)(c.steps.list + step) * x.schedule.words;
#pragma unroll
    for (int i = 0; i < S::MT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int query = min(row + i * 16 + h * 8, own.end - 1);
            uint64_t keep = attention_kept_keys(x.schedule, query, own.first, own.diagonal, t.first, t.count,
                                                own.other_begin, own.other_end, word);
            attention_mask_row<S::BN>(s[i], h, keep, -INFINITY);
        }
}

// ---- epilogue ----

// LSE and O = o/sum of the warp's rows, staged over its rows of Q.
template <typename E, typename S, bool OPTIONS>
__device__ __forceinline__ void epilogue(const attention_args &x, const attention_work &work,
                                         const float (&o)[S::MT][S::DV / 8][4], attention_rows<S::MT> &r, uint32_t q) {
    int lane = threadIdx.x % 32, first = work.t.first + (int)threadIdx.x / 32 * S::ROWS;
#pragma unroll
    for (int i = 0; i < S::MT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float &sum = r.sum[i][h];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            int row = first + lane / 4 + i * 16 + h * 8;
            attention_end_row<OPTIONS>(x, work, work.head, x.schedule.heads, row, r.m[i][h], sum,
                                       lane % 4 == 0 && row < work.t.end);
        }
    __syncwarp(); // the warp has read its rows of Q
    attention_store_rows<E, S::MT, S::DV, S::PITCH, OPTIONS>(
        o, r.sum, q, x.o + 2 * sat_heads_at(&x.o_at, work.batch, work.head, first), 2 * x.o_at.row_stride,
        work.t.end - first, OPTIONS ? x.options.value_dim : x.dim, x.options.aligned);
}

// ---- kernel ----

template <typename MATH, typename S, bool OPTIONS>
static __global__ void __launch_bounds__(S::THREADS, S::CTAS)
    attention_forward(const __grid_constant__ attention_args x) {
    typedef typename MATH::element E;
    extern __shared__ __align__(16) char memory[];
    __shared__ attention_cta cta;
    uint32_t q = smem_address(memory), ring = q + S::Q;
    int count;
    bool next_edge = false, edge; // of the next step, and of this one
    {
        attention_cta c;
        c.work = attention_work_at(x.schedule, blockIdx.x);
        c.steps = attention_steps_of(x.schedule, c.work, c.work.head);
        int kv_head = c.work.head / x.schedule.heads_per_kv;
        c.keys = x.k + 2 * sat_heads_at(&x.k_at, c.work.batch, kv_head, 0);
        c.values = x.v + 2 * sat_heads_at(&x.v_at, c.work.batch, kv_head, 0);
        count = c.steps.count;
        const char *from = x.q + 2 * sat_heads_at(&x.q_at, c.work.batch, c.work.head, c.work.t.first);
        int rows = c.work.t.end - c.work.t.first;
        if constexpr (OPTIONS)
            attention_load_any<S::BM, S::D, S::THREADS>(q, from, 2 * x.q_at.row_stride, rows, x.dim, x.options.aligned);
        else attention_load_rows<S::BM, S::D, S::THREADS>(q, from, 2 * x.q_at.row_stride, rows, x.dim);
        if (count > 0) next_edge = load_step<S, OPTIONS>(x, c, 0, ring);
        cp_async_commit_group();
        if (threadIdx.x == 0) cta = c;
    }
    uint32_t warp_q = q + threadIdx.x / 32 * S::ROWS * S::PITCH, a = warp_q + attention_lane_a<S::PITCH>();
    float o[S::MT][S::DV / 8][4] = {};
    attention_rows<S::MT> r;
#pragma unroll
    for (int i = 0; i < S::MT; i++) r.m[i][0] = r.m[i][1] = -INFINITY, r.sum[i][0] = r.sum[i][1] = 0;
    if (x.negative || count == 0) { // otherwise the first step waits for Q
        cp_async_wait_group<0>();
        __syncthreads();
        if (x.negative) negate_q<S>(q);
    }
#pragma unroll 1
    for (int step = 0; step < count; step++) {
        uint32_t stage = ring + step % 2 * S::STAGE;
        edge = next_edge;
        cp_async_wait_group<0>();
        __syncthreads(); // the stage is full, and every warp has read the other one
        if (step + 1 < count) next_edge = load_step<S, OPTIONS>(x, cta, step + 1, ring + (step + 1) % 2 * S::STAGE);
        cp_async_commit_group();
        float s[S::MT][S::BN / 8][4], scale[S::MT][2];
        uint32_t p[S::MT][S::BN / 16][4];
        attention_mma_abt<MATH, S::MT, S::BN, S::D, S::PITCH>(s, a, stage + attention_lane_bt<S::PITCH>());
        if (OPTIONS && x.options.cap != 0) attention_cap_scores(s, x.options.cap);
        if (edge) mask_scores<S>(s, x, cta, step);
        if (attention_softmax<S::MT, S::BN>(s, r, scale, x.scale_log2, x.rescale_above)) {
#pragma unroll
            for (int i = 0; i < S::MT; i++)
#pragma unroll
                for (int j = 0; j < S::DV / 8; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) o[i][j][e] *= scale[i][e / 2];
        }
        attention_pack_operand<E, S::MT, S::BN>(p, s);
        attention_mma_pb<MATH, S::MT, S::BN, S::DV, S::V_PITCH>(o, p, stage + S::TILE + attention_lane_a<S::V_PITCH>());
    }
    epilogue<E, S, OPTIONS>(x, cta.work, o, r, warp_q);
}

// ---- instances ----

struct instance {
    int tile_m, max_dim, max_value_dim; // tile_m of a variant; head sizes up to these
    int bm, bn, threads, ctas, bytes;
    void (*plain)(attention_args), (*with_options)(attention_args);
};

template <typename MATH, typename S> static constexpr instance instance_of(int tile_m) {
    instance x = {tile_m,     S::D,    S::DV,    S::BM, S::BN,
                  S::THREADS, S::CTAS, S::BYTES, NULL,  attention_forward<MATH, S, true>};
    if constexpr (S::D == S::DV) x.plain = attention_forward<MATH, S, false>;
    return x;
}

// D, BM, BN, warps, CTAs a multiprocessor, DV; of each tile the head sizes in rising order.
template <typename T>
static constexpr instance instances[] = {
    instance_of<T, tile_shape<64, 128, 64, 4, 2>>(128),     instance_of<T, tile_shape<96, 128, 64, 4, 2>>(128),
    instance_of<T, tile_shape<128, 128, 64, 4, 2>>(128),    instance_of<T, tile_shape<192, 128, 64, 8, 1, 128>>(128),
    instance_of<T, tile_shape<256, 128, 32, 8, 1>>(128),    instance_of<T, tile_shape<64, 64, 64, 4, 4>>(64),
    instance_of<T, tile_shape<96, 64, 64, 4, 3>>(64),       instance_of<T, tile_shape<128, 64, 64, 4, 2>>(64),
    instance_of<T, tile_shape<192, 64, 32, 4, 2, 128>>(64), instance_of<T, tile_shape<256, 64, 32, 4, 2>>(64),
};

static const instance *instance_for(const sat_variant *v, const sat_problem *p) {
    int64_t dim = p->attention.dim, value_dim = sat_value_dim(&p->attention);
    if (v->instance.dtype != SAT_F16 && v->instance.dtype != SAT_BF16) return NULL;
    for (const instance &k : v->instance.dtype == SAT_F16 ? instances<sat_f16_math> : instances<sat_bf16_math>)
        if (k.tile_m == v->instance.tile_m && dim <= k.max_dim && value_dim <= k.max_value_dim) return &k;
    return NULL;
}

static void (*kernel_for(const instance *k, const sat_problem *p))(attention_args) {
    return attention_needs_options(p) ? k->with_options : k->plain;
}

static attention_tiling tiling_of(const instance *k) { return {k->bm, k->bn, false}; }

// ---- host ----

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const instance *k = instance_for(v, p);
    if (!k || p->a_dtype != v->instance.dtype) return false;
    return k->bytes <= d->shared_bytes && attention_schedule_fits(p, a, tiling_of(k));
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const instance *k = instance_for(v, p);
    double pairs = attention_visited_pairs(p, a, tiling_of(k)), ctas = (double)d->multiprocessors * k->ctas;
    double tiles = ceil((double)p->m / k->bm) * (double)(p->batch * p->attention.heads);
    double rate = d->flop_rate[p->a_dtype] * (d->capability >= 90 ? 0.4 : 0.65) * (k->bm == 128 ? 1 : 0.8);
    if (k->max_dim == 256) rate *= 0.75;
    double waves = fmax(tiles / ctas, 1e-3), idle = waves < 4 ? ceil(waves) / waves : 1;
    if (waves < 1) idle = fmax(1, idle / k->ctas); // alone on a multiprocessor, a CTA is about as fast as all together
    double busy = 2 * pairs * (k->max_dim + k->max_value_dim) / rate * idle;
    return fmax(busy, sat_attention_bytes(p, a) / d->memory_rate) + 5e-6;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)d;
    return (size_t)attention_schedule_bytes(p, a, tiling_of(instance_for(v, p)));
}

static sat_status prepare(const sat_prepare *q, void **state) {
    const instance *k = instance_for(q->variant, q->problem);
    return attention_prepare(q, (const void *)kernel_for(k, q->problem), k->bytes, tiling_of(k), state);
}

static sat_status launch(const sat_launch *l) {
    const instance *k = instance_for(l->variant, l->problem);
    attention_args x = {*(const attention_schedule *)l->state};
    unsigned ctas = attention_work_count(&x.schedule);
    if (ctas == 0) return SAT_OK;
    attention_fill_args(&x, l);
    kernel_for(k, l->problem)<<<ctas, k->threads, k->bytes, (cudaStream_t)l->stream>>>(x);
    return sat_launched(l);
}

SAT_FAMILY(cuda_attention_mma) = {
    .revision = "1",
    .op = SAT_ATTENTION,
    .backend = SAT_CUDA,
    .flags = SAT_V_BATCHED,
    .about = "tensor cores (mma.sync), online softmax in registers, keys by asynchronous copies; skips absent blocks",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = attention_release,
};
