// cuda_attention_mma_f32: fused attention in f32 on tensor cores, O = softmax(scale*Q*K^T where kept)*V, dense and
// block-sparse by the same kernel, from sm_80 on. Products are 3xTF32 (attention_mma_f32.cuh), which is as exact as
// f32.
//
// Head sizes up to 256; those that are not 32, 64, 96, 128, 192 or 256 are padded up to the next in shared memory. With
// OPTIONS values may be of another size than keys, rows may begin anywhere, and there are soft caps and sinks. A CTA
// has BM queries of one head, a warp 16 or 32 of them. There is one tile of keys and one of values: values are copied
// while scores are computed, the next keys while values are multiplied. That leaves shared memory for two CTAs and
// more, which hide each other's waiting. Scores and P stay in registers.

#include "kernels/cuda/attention/attention_mma_f32.cuh"

// ---- shared memory: Q, a tile of K, a tile of V ----

// Head sizes up to D. Sizes in bytes.
template <int D_, int BM_, int BN_, int CTAS_> struct tile_shape {
    static constexpr int D = D_, BM = BM_, BN = BN_, WARPS = 4, CTAS = CTAS_, THREADS = 32 * WARPS;
    static constexpr int ROWS = BM / WARPS, MT = ROWS / 16, NT = BN / 8; // of a warp
    static constexpr int PITCH = 4 * D, Q = BM * PITCH, TILE = BN * PITCH, BYTES = Q + 2 * TILE;
    static_assert(ROWS % 16 == 0 && BN % 8 == 0 && BN <= ATTENTION_WORD_KEYS, "");
};

// ---- load ----

template <typename S, int ROWS, bool OPTIONS>
__device__ __forceinline__ void load_rows(uint32_t to, const float *from, int64_t stride, int count, int dim,
                                          bool aligned) {
    if constexpr (OPTIONS) attention_f32_load_any<ROWS, S::D, S::THREADS>(to, from, stride, count, dim, aligned);
    else attention_f32_load_rows<ROWS, S::D, S::THREADS>(to, from, stride, count, dim);
}

// Begins to copy a step's keys, or its values.
template <typename S, bool OPTIONS>
__device__ __forceinline__ void load_step(const attention_args &x, const attention_cta &c, int step, bool values,
                                          uint32_t to) {
    attention_step t = attention_step_at(x.schedule, c.steps, step);
    int64_t stride = values ? x.v_at.row_stride : x.k_at.row_stride;
    const float *from = (const float *)(values ? c.values : c.keys) + t.first * stride;
    load_rows<S, S::BN, OPTIONS>(to, from, stride, t.count, OPTIONS && values ? x.options.value_dim : x.dim,
                                 x.options.aligned);
    cp_async_commit_group();
}

// Changes the sign of Q where the scale is negative: the softmax takes a positive scale.
template <typename S> __device__ __forceinline__ void negate_q(uint32_t q) {
    for (int at = threadIdx.x * 4; at < S::Q; at += S::THREADS * 4)
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(q + at), "r"(ld_shared_b32(q + at) ^ 0x80000000u) : "memory");
}

// ---- mask ----

// Scores of pairs that are not kept become -inf.
template <typename S>
__device__ __forceinline__ void mask_scores(float (&s)[S::MT][S::NT][4], const attention_args &x,
                                            const attention_cta &c, const attention_step &t, int step) {
    const attention_tile &own = c.work.t;
    int thread = reread_thread_index(), row = own.first + thread / 32 * S::ROWS + thread % 32 / 4;
#pragma unroll
    for (int h = 0; h < 2 * S::MT; h++) {
        uint64_t keep =
            attention_kept_keys(x.schedule, min(row + h * 8, own.end - 1), own.first, own.diagonal, t.first, t.count,
                                own.other_begin, own.other_end, (int64_t)(c.steps.list + step) * x.schedule.words);
        attention_mask_row<S::BN>(s[h / 2], h % 2, keep, -INFINITY);
    }
}

// ---- epilogue ----

// LSE and O = o/sum of the warp's rows.
template <typename S, bool OPTIONS>
__device__ __forceinline__ void epilogue(const attention_args &x, const attention_work &work,
                                         const float (&o)[S::MT][S::D / 8][4], attention_rows<S::MT> &r) {
    int lane = threadIdx.x % 32, first = work.t.first + (int)threadIdx.x / 32 * S::ROWS;
#pragma unroll
    for (int h = 0; h < 2 * S::MT; h++) {
        float &sum = r.sum[h / 2][h % 2];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        int row = first + lane / 4 + h * 8;
        attention_end_row<OPTIONS>(x, work, work.head, x.schedule.heads, row, r.m[h / 2][h % 2], sum,
                                   lane % 4 == 0 && row < work.t.end);
    }
    attention_f32_store_rows<S::MT, S::D, OPTIONS>(
        o, r.sum, (float *)x.o + sat_heads_at(&x.o_at, work.batch, work.head, first), x.o_at.row_stride,
        work.t.end - first, OPTIONS ? x.options.value_dim : x.dim, x.options.aligned);
}

// ---- kernel ----

template <typename S, bool OPTIONS>
static __global__ void __launch_bounds__(S::THREADS, S::CTAS)
    attention_forward(const __grid_constant__ attention_args x) {
    extern __shared__ __align__(16) char memory[];
    __shared__ attention_cta cta;
    uint32_t q = smem_address(memory), k = q + S::Q, v = k + S::TILE;
    int count;
    bool busy; // this warp has queries
    {
        attention_cta c;
        c.work = attention_work_at(x.schedule, blockIdx.x);
        c.steps = attention_steps_of(x.schedule, c.work, c.work.head);
        int kv_head = c.work.head / x.schedule.heads_per_kv;
        c.keys = (const char *)((const float *)x.k + sat_heads_at(&x.k_at, c.work.batch, kv_head, 0));
        c.values = (const char *)((const float *)x.v + sat_heads_at(&x.v_at, c.work.batch, kv_head, 0));
        count = c.steps.count, busy = c.work.t.first + (int)threadIdx.x / 32 * S::ROWS < c.work.t.end;
        load_rows<S, S::BM, OPTIONS>(
            q, (const float *)x.q + sat_heads_at(&x.q_at, c.work.batch, c.work.head, c.work.t.first), x.q_at.row_stride,
            c.work.t.end - c.work.t.first, x.dim, x.options.aligned);
        if (count > 0) load_step<S, OPTIONS>(x, c, 0, false, k);
        else cp_async_commit_group();
        if (threadIdx.x == 0) cta = c;
    }
    if (x.negative || count == 0) { // otherwise the first step waits for Q
        cp_async_wait_group<0>();
        __syncthreads();
        if (x.negative) negate_q<S>(q);
    }
    attention_f32_lane rows = attention_f32_lane_abt<S::D>(q + threadIdx.x / 32 * S::ROWS * S::PITCH);
    attention_f32_lane keys = attention_f32_lane_abt<S::D>(k), values = attention_f32_lane_pb<S::D>(v);
    float o[S::MT][S::D / 8][4] = {};
    attention_rows<S::MT> r;
#pragma unroll
    for (int i = 0; i < S::MT; i++) r.m[i][0] = r.m[i][1] = -INFINITY, r.sum[i][0] = r.sum[i][1] = 0;
#pragma unroll 1
    for (int step = 0; step < count; step++) {
        cp_async_wait_group<0>();
        __syncthreads(); // K is there, and every warp has read the V before
        load_step<S, OPTIONS>(x, cta, step, true, v);
        attention_f32_operand<S::MT, S::NT> p;
        if (busy) {
            float s[S::MT][S::NT][4], scale[S::MT][2];
            attention_f32_abt<S::MT, S::NT, S::D>(s, rows, keys);
            attention_step t = attention_step_at(x.schedule, cta.steps, step);
            if (OPTIONS && x.options.cap != 0) attention_cap_scores(s, x.options.cap);
            if (t.edge) mask_scores<S>(s, x, cta, t, step);
            if (attention_softmax<S::MT, S::BN>(s, r, scale, x.scale_log2, x.rescale_above)) {
#pragma unroll
                for (int i = 0; i < S::MT; i++)
#pragma unroll
                    for (int j = 0; j < S::D / 8; j++)
#pragma unroll
                        for (int e = 0; e < 4; e++) o[i][j][e] *= scale[i][e / 2];
            }
            attention_f32_make_operand(p, s);
        }
        cp_async_wait_group<0>();
        __syncthreads(); // V is there, and every warp has read K
        if (step + 1 < count) load_step<S, OPTIONS>(x, cta, step + 1, false, k);
        if (busy) attention_f32_pb<S::MT, S::NT, S::D, S::D>(o, p, values);
    }
    epilogue<S, OPTIONS>(x, cta.work, o, r);
}

// ---- instances ----

struct instance {
    int tile_m, max_dim; // tile_m of a variant; head sizes up to max_dim
    int bm, bn, threads, ctas, bytes;
    void (*plain)(attention_args), (*with_options)(attention_args);
};

template <typename S> static constexpr instance instance_of(int tile_m) {
    return {tile_m,
            S::D,
            S::BM,
            S::BN,
            S::THREADS,
            S::CTAS,
            S::BYTES,
            attention_forward<S, false>,
            attention_forward<S, true>};
}

// D, BM, BN, CTAs a multiprocessor; of each tile the head sizes in rising order.
static const instance instances[] = {
    instance_of<tile_shape<32, 128, 32, 2>>(128), instance_of<tile_shape<64, 128, 32, 2>>(128),
    instance_of<tile_shape<96, 128, 32, 2>>(128), instance_of<tile_shape<32, 64, 32, 4>>(64),
    instance_of<tile_shape<64, 64, 32, 3>>(64),   instance_of<tile_shape<96, 64, 32, 3>>(64),
    instance_of<tile_shape<128, 64, 32, 3>>(64),  instance_of<tile_shape<192, 64, 32, 2>>(64),
    instance_of<tile_shape<256, 64, 16, 2>>(64),
};

static const instance *instance_for(const sat_variant *v, const sat_problem *p) {
    for (const instance &k : instances)
        if (k.tile_m == v->instance.tile_m && attention_widest(p) <= k.max_dim) return &k;
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
    double rate = d->tf32_rate / 3 * (d->capability >= 90 ? 0.38 : 0.6); // of mma.sync
    double waves = fmax(tiles / ctas, 1e-3), idle = waves < 4 ? ceil(waves) / waves : 1;
    if (waves < 1) idle = fmax(1, idle / k->ctas); // alone on a multiprocessor, a CTA is about as fast as all together
    double busy = 4 * pairs * k->max_dim / rate * idle;
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

SAT_FAMILY(cuda_attention_mma_f32) = {
    .revision = "1",
    .op = SAT_ATTENTION,
    .backend = SAT_CUDA,
    .flags = SAT_V_BATCHED,
    .about = "f32 as 3xTF32 on tensor cores (mma.sync), online softmax in registers; skips absent blocks",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = attention_release,
};
