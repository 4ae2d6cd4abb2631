// cuda_attention_backward_mma: the gradients of fused attention on tensor cores by mma.sync, dense and block-sparse,
// from sm_80 on.
//
// f16 and bf16, head sizes up to 256, padded in shared memory to 64, 96, 128 or 256. With OPTIONS values may be of
// another size than keys, rows may begin anywhere, and there are soft caps and sinks. Three kernels: the statistics of
// each query (attention_device.cuh), then dQ by tiles of queries, then dK and dV by tiles of keys. Every sum is made in
// one order and nothing is added up in memory, so the result is deterministic.
//
// Both gradient kernels are one template. With P = exp(scale*S - LSE) where kept and dS = P*(dP - delta):
//
//   own rows (A)   other rows (B)   S          dP         sums
//   Q, dO          K, V             Q*K^T      dO*V^T     dQ += dS*K
//   K, V           Q, dO            K*Q^T      V*dO^T     dV += P*dO, dK += dS*Q      (S, dP, P, dS transposed)
//
// A CTA keeps its own rows in shared memory; tiles of other rows come by cp.async into a ring of two stages. P and dS
// are in registers, as the A operand of the next product.

#include "kernels/cuda/attention/attention_mma.cuh"

struct kernel_args {
    attention_schedule schedule;
    const char *own[2], *other[2]; // Q and dO, K and V; or K and V, Q and dO
    sat_heads own_at[2], other_at[2];
    char *out[2]; // dQ; or dK and dV
    sat_heads out_at[2];
    const float *lse, *delta; // attention_backward_state has what they are
    int64_t head_stride;
    int dim;
    float scale_log2, scale; // scale_log2: scale*log2(e)
    attention_options options;
};

// ---- shared memory: two operands of own rows, two stages of two operands and statistics, kept bits ----

// Head sizes up to D. A CTA sums over N columns of them, other CTAs over the others. BM own rows, steps of BN other
// rows. Sizes in bytes.
template <bool BY_KEY_, int D_, int N_, int BM_, int BN_, int WARPS_, int CTAS_> struct tile_shape {
    static constexpr bool BY_KEY = BY_KEY_;
    static constexpr int D = D_, N = N_, BM = BM_, BN = BN_, WARPS = WARPS_, CTAS = CTAS_, THREADS = 32 * WARPS;
    static constexpr int ROWS = BM / WARPS, MT = ROWS / 16; // of a warp
    static constexpr int COLUMN_CTAS = D / N, SUMS = BY_KEY ? 2 : 1;
    static constexpr int PITCH = 2 * D + 16, OWN = BM * PITCH, TILE = BN * PITCH;
    static constexpr int STATISTICS = BY_KEY ? 8 * BN : 0, STAGE = 2 * TILE + STATISTICS; // lse and delta of queries
    static constexpr int KEPT_OFFSET = 2 * OWN + 2 * STAGE, BYTES = KEPT_OFFSET + (BY_KEY ? 8 * BN : 0);
    static_assert((BY_KEY ? BM : BN) <= ATTENTION_WORD_KEYS && D % N == 0 && ROWS % 16 == 0, "");
};

struct step_info {
    attention_step t;
    int64_t word; // its first of `stored`
};

struct shared_cta {
    attention_work work;
    step_info step[2]; // of the stages
};

// ---- load ----

// The next step of a CTA, over its query heads.
struct step_cursor {
    int head, end_head, step;
};

// The rows of operand `k` of a side: the first is of keys' size, the second of values'.
template <typename S, int ROWS, bool OPTIONS>
__device__ __forceinline__ void load_rows(const kernel_args &x, uint32_t to, const char *from, int64_t stride,
                                          int count, int k) {
    if constexpr (OPTIONS)
        attention_load_any<ROWS, S::D, S::THREADS>(to, from, stride, count, k ? x.options.value_dim : x.dim,
                                                   x.options.aligned);
    else attention_load_rows<ROWS, S::D, S::THREADS>(to, from, stride, count, x.dim);
}

// Begins to copy the next step into a stage; false: there is none.
template <typename S, bool OPTIONS>
__device__ __forceinline__ bool load_step(const kernel_args &x, const attention_work &work, step_info *to,
                                          step_cursor &at, uint32_t stage) {
    for (; at.head < at.end_head; at.head++, at.step = 0) {
        attention_steps s = attention_steps_of(x.schedule, work, at.head);
        if (at.step >= s.count) continue;
        attention_step t = attention_step_at(x.schedule, s, at.step);
        int head = S::BY_KEY ? at.head : at.head / x.schedule.heads_per_kv;
#pragma unroll
        for (int k = 0; k < 2; k++)
            load_rows<S, S::BN, OPTIONS>(x, stage + k * S::TILE,
                                         x.other[k] + 2 * sat_heads_at(&x.other_at[k], work.batch, head, t.first),
                                         2 * x.other_at[k].row_stride, t.count, k);
        int thread = reread_thread_index();
        if (S::BY_KEY)
            for (int i = thread; i < S::BN; i += S::THREADS) {
                int64_t from =
                    ((int64_t)work.batch * x.schedule.heads * x.schedule.heads_per_kv + head) * x.head_stride +
                    t.first + (i < t.count ? i : 0);
                uint32_t place = stage + 2 * S::TILE + 4 * i;
                cp_async_small<4>(place, x.lse + from, i < t.count ? 4 : 0);
                cp_async_small<4>(place + 4 * S::BN, x.delta + from, i < t.count ? 4 : 0);
            }
        if (thread == 0) to->t = t, to->word = (int64_t)(s.list + at.step) * x.schedule.words;
        at.step++;
        return true;
    }
    return false;
}

// ---- mask ----

// Weights of pairs that are not kept become 0. `kept`: BN words of shared memory, by key.
template <typename S>
__device__ __forceinline__ void mask_weights(float (&p)[S::MT][S::BN / 8][4], const kernel_args &x,
                                             const attention_work &work, const step_info &step, uint64_t *kept) {
    int thread = reread_thread_index(), row = thread / 32 * S::ROWS + thread % 32 / 4;
    const attention_tile &t = work.t;
    if constexpr (!S::BY_KEY) {
#pragma unroll
        for (int i = 0; i < S::MT; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int query = min(t.first + row + i * 16 + h * 8, t.end - 1);
                attention_mask_row<S::BN>(p[i], h,
                                          attention_kept_keys(x.schedule, query, t.first, t.diagonal, step.t.first,
                                                              step.t.count, t.other_begin, t.other_end, step.word),
                                          0);
            }
    } else {
        for (int i = thread; i < S::BN; i += S::THREADS) {
            int query = step.t.first + i;
            kept[i] = i < step.t.count ? attention_kept_keys(x.schedule, query, step.t.first, t.diagonal, t.first,
                                                             t.end - t.first, t.first, t.end, step.word)
                                       : 0;
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < S::BN / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                uint64_t bits = kept[j * 8 + thread % 4 * 2 + e] >> row;
#pragma unroll
                for (int i = 0; i < S::MT; i++)
#pragma unroll
                    for (int h = 0; h < 2; h++)
                        if (!(bits >> (i * 16 + h * 8) & 1)) p[i][j][h * 2 + e] = 0;
            }
        __syncthreads(); // before the next step's words
    }
}

// ---- weights, with options ----

// Products of Q and K become weights, and those of dO and V dS.
template <typename S>
__device__ __forceinline__ void weigh(float (&s)[S::MT][S::BN / 8][4], float (&d)[S::MT][S::BN / 8][4],
                                      const kernel_args &x, const float *statistics, const float (&row_lse)[S::MT][2],
                                      const float (&row_delta)[S::MT][2]) {
#pragma unroll
    for (int j = 0; j < S::BN / 8; j++) {
        float2 lse = S::BY_KEY ? *(const float2 *)(statistics + j * 8) : make_float2(0, 0);
        float2 delta = S::BY_KEY ? *(const float2 *)(statistics + S::BN + j * 8) : make_float2(0, 0);
#pragma unroll
        for (int i = 0; i < S::MT; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float &p = s[i][j][e], slope = 1;
                if (x.options.cap != 0) p = tanhf(p * x.options.cap), slope -= p * p;
                p = attention_exp2(fmaf(p, x.scale_log2, -(S::BY_KEY ? e % 2 ? lse.y : lse.x : row_lse[i][e / 2])));
                d[i][j][e] = p * slope * (d[i][j][e] - (S::BY_KEY ? e % 2 ? delta.y : delta.x : row_delta[i][e / 2]));
            }
    }
}

// ---- kernel ----

template <typename MATH, typename S, bool OPTIONS>
static __global__ void __launch_bounds__(S::THREADS, S::CTAS)
    attention_backward(const __grid_constant__ kernel_args x) {
    typedef typename MATH::element E;
    extern __shared__ __align__(16) char memory[];
    __shared__ shared_cta cta;
    uint32_t own = smem_address(memory), ring = own + 2 * S::OWN;
    int lane = threadIdx.x % 32;
    step_cursor at;
    bool more;
    float row_lse[S::MT][2], row_delta[S::MT][2];
    {
        attention_work work = attention_work_at(x.schedule, blockIdx.x / S::COLUMN_CTAS);
#pragma unroll
        for (int k = 0; k < 2; k++)
            load_rows<S, S::BM, OPTIONS>(x, own + k * S::OWN,
                                         x.own[k] + 2 * sat_heads_at(&x.own_at[k], work.batch, work.head, work.t.first),
                                         2 * x.own_at[k].row_stride, work.t.end - work.t.first, k);
        at.head = S::BY_KEY ? work.head * x.schedule.heads_per_kv : work.head;
        at.end_head = at.head + (S::BY_KEY ? x.schedule.heads_per_kv : 1);
        at.step = 0;
        more = load_step<S, OPTIONS>(x, work, &cta.step[0], at, ring);
        cp_async_commit_group();
        if (threadIdx.x == 0) cta.work = work;
        int64_t rows = ((int64_t)work.batch * x.schedule.heads + work.head) * x.head_stride;
#pragma unroll
        for (int i = 0; i < S::MT && !S::BY_KEY; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int query =
                    min(work.t.first + (int)threadIdx.x / 32 * S::ROWS + i * 16 + h * 8 + lane / 4, work.t.end - 1);
                row_lse[i][h] = x.lse[rows + query], row_delta[i][h] = x.delta[rows + query];
            }
    }
    uint32_t column_cta = blockIdx.x % S::COLUMN_CTAS, warp_own = own + threadIdx.x / 32 * S::ROWS * S::PITCH;
    float sums[S::SUMS][S::MT][S::N / 8][4] = {};
    if (!more) cp_async_wait_group<0>(), __syncthreads();
#pragma unroll 1
    for (int step = 0; more; step++) {
        uint32_t stage = ring + step % 2 * S::STAGE;
        cp_async_wait_group<0>();
        __syncthreads(); // the stage is full, and every warp has read the other one
        more = load_step<S, OPTIONS>(x, cta.work, &cta.step[(step + 1) % 2], at, ring + (step + 1) % 2 * S::STAGE);
        cp_async_commit_group();
        float s[S::MT][S::BN / 8][4], d[S::MT][S::BN / 8][4];
        uint32_t p[S::MT][S::BN / 16][4];
        attention_mma_abt<MATH, S::MT, S::BN, S::D, S::PITCH>(s, warp_own + attention_lane_a<S::PITCH>(),
                                                              stage + attention_lane_bt<S::PITCH>());
        const float *statistics = (const float *)(memory + (stage - own) + 2 * S::TILE) + lane % 4 * 2;
        if constexpr (OPTIONS) { // both products first: what a soft cap leaves of dS follows from the score
            attention_mma_abt<MATH, S::MT, S::BN, S::D, S::PITCH>(d, warp_own + S::OWN + attention_lane_a<S::PITCH>(),
                                                                  stage + S::TILE + attention_lane_bt<S::PITCH>());
            weigh<S>(s, d, x, statistics, row_lse, row_delta);
            if (cta.step[step % 2].t.edge) {
                mask_weights<S>(s, x, cta.work, cta.step[step % 2], (uint64_t *)(memory + S::KEPT_OFFSET));
                mask_weights<S>(d, x, cta.work, cta.step[step % 2], (uint64_t *)(memory + S::KEPT_OFFSET));
            }
            if (S::BY_KEY) { // dV += P*dO
                attention_pack_operand<E, S::MT, S::BN>(p, s);
                attention_mma_pb<MATH, S::MT, S::BN, S::N, S::PITCH>(
                    sums[S::SUMS - 1], p, stage + S::TILE + attention_lane_a<S::PITCH>() + column_cta * S::N * 2);
            }
            attention_pack_operand<E, S::MT, S::BN>(p, d);
        } else {
#pragma unroll
            for (int j = 0; j < S::BN / 8; j++) {
                float2 l = S::BY_KEY ? *(const float2 *)(statistics + j * 8) : make_float2(0, 0);
#pragma unroll
                for (int i = 0; i < S::MT; i++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        s[i][j][e] = attention_exp2(
                            fmaf(s[i][j][e], x.scale_log2, -(S::BY_KEY ? e % 2 ? l.y : l.x : row_lse[i][e / 2])));
            }
            if (cta.step[step % 2].t.edge)
                mask_weights<S>(s, x, cta.work, cta.step[step % 2], (uint64_t *)(memory + S::KEPT_OFFSET));
            if (S::BY_KEY) { // dV += P*dO
                attention_pack_operand<E, S::MT, S::BN>(p, s);
                attention_mma_pb<MATH, S::MT, S::BN, S::N, S::PITCH>(
                    sums[S::SUMS - 1], p, stage + S::TILE + attention_lane_a<S::PITCH>() + column_cta * S::N * 2);
            }
            attention_mma_abt<MATH, S::MT, S::BN, S::D, S::PITCH>(d, warp_own + S::OWN + attention_lane_a<S::PITCH>(),
                                                                  stage + S::TILE + attention_lane_bt<S::PITCH>());
#pragma unroll
            for (int j = 0; j < S::BN / 8; j++) {
                float2 l = S::BY_KEY ? *(const float2 *)(statistics + S::BN + j * 8) : make_float2(0, 0);
#pragma unroll
                for (int i = 0; i < S::MT; i++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        s[i][j][e] *= d[i][j][e] - (S::BY_KEY ? e % 2 ? l.y : l.x : row_delta[i][e / 2]);
            }
            attention_pack_operand<E, S::MT, S::BN>(p, s);
        }
        attention_mma_pb<MATH, S::MT, S::BN, S::N, S::PITCH>(
            sums[0], p, stage + attention_lane_a<S::PITCH>() + column_cta * S::N * 2); // dQ += dS*K, or dK += dS*Q
    }

    // The epilogue stages the warp's rows of the sums over its own rows.
    const attention_work &work = cta.work;
    int first = work.t.first + (int)threadIdx.x / 32 * S::ROWS;
#pragma unroll
    for (int k = 0; k < S::SUMS; k++) {
        float factor[S::MT][2];
#pragma unroll
        for (int i = 0; i < S::MT; i++) factor[i][0] = factor[i][1] = k == 0 ? x.scale : 1;
        __syncwarp(); // the warp has read its own rows
        attention_store_rows<E, S::MT, S::N, S::PITCH, OPTIONS>(
            sums[k], factor, warp_own + k * S::OWN,
            x.out[k] + 2 * (sat_heads_at(&x.out_at[k], work.batch, work.head, first) + column_cta * S::N),
            2 * x.out_at[k].row_stride, work.t.end - first,
            (OPTIONS && k ? x.options.value_dim : x.dim) - (int)column_cta * S::N, x.options.aligned);
    }
}

// ---- instances ----

struct pass {
    int bm, bn, threads, ctas, bytes, column_ctas;
    void (*plain)(kernel_args), (*with_options)(kernel_args);
};

struct instance {
    int max_dim;
    pass queries, keys;
};

template <typename MATH, typename S> static constexpr pass pass_of() {
    return {S::BM,
            S::BN,
            S::THREADS,
            S::CTAS,
            S::BYTES,
            S::COLUMN_CTAS,
            attention_backward<MATH, S, false>,
            attention_backward<MATH, S, true>};
}

// By key, D, N, BM, BN, warps, CTAs a multiprocessor.
template <typename T>
static constexpr instance instances[] = {
    {64, pass_of<T, tile_shape<false, 64, 64, 128, 32, 4, 2>>(), pass_of<T, tile_shape<true, 64, 64, 64, 64, 4, 2>>()},
    {96, pass_of<T, tile_shape<false, 96, 96, 128, 32, 4, 2>>(), pass_of<T, tile_shape<true, 96, 96, 64, 64, 4, 2>>()},
    {128, pass_of<T, tile_shape<false, 128, 128, 128, 32, 4, 2>>(),
     pass_of<T, tile_shape<true, 128, 128, 64, 64, 4, 2>>()},
    {256, pass_of<T, tile_shape<false, 256, 256, 64, 32, 4, 1>>(),
     pass_of<T, tile_shape<true, 256, 128, 64, 32, 4, 1>>()},
};

static const instance *instance_for(const sat_variant *v, const sat_problem *p) {
    if (v->instance.dtype != SAT_F16 && v->instance.dtype != SAT_BF16) return NULL;
    for (const instance &k : v->instance.dtype == SAT_F16 ? instances<sat_f16_math> : instances<sat_bf16_math>)
        if (attention_widest(p) <= k.max_dim) return &k;
    return NULL;
}

static void (*kernel_for(const pass *k, const sat_problem *p))(kernel_args) {
    return attention_needs_options(p) ? k->with_options : k->plain;
}

static attention_tiling by_query(const instance *k) { return {k->queries.bm, k->queries.bn, false}; }
static attention_tiling by_key(const instance *k) { return {k->keys.bn, k->keys.bm, true}; }

// ---- host ----

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const instance *k = instance_for(v, p);
    if (!k || p->a_dtype != v->instance.dtype) return false;
    if (k->queries.bytes > d->shared_bytes || k->keys.bytes > d->shared_bytes) return false;
    return attention_schedule_fits(p, a, by_query(k)) && attention_schedule_fits(p, a, by_key(k));
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const instance *k = instance_for(v, p);
    double rate = d->flop_rate[p->a_dtype] * (d->capability >= 90 ? 0.33 : 0.6) / k->keys.column_ctas;
    double pairs = 6 * attention_visited_pairs(p, a, by_query(k)) + 8 * attention_visited_pairs(p, a, by_key(k));
    double flops = pairs * k->max_dim;
    double tiles = ceil((double)p->n / k->keys.bm) * (double)(p->batch * p->attention.kv_heads);
    double waves = fmax(1e-3, tiles / (double)(d->multiprocessors * k->keys.ctas)),
           idle = waves < 4 ? ceil(waves) / waves : 1;
    if (waves < 1) idle = fmax(1, idle / k->keys.ctas);
    return fmax(flops / rate * idle, 2 * sat_attention_bytes(p, a) / d->memory_rate) + 1.2e-5;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)d;
    const instance *k = instance_for(v, p);
    return attention_backward_bytes(p, a, by_query(k), by_key(k));
}

static sat_status prepare(const sat_prepare *q, void **out) {
    const instance *k = instance_for(q->variant, q->problem);
    sat_status status = attention_allow_shared(q, (const void *)kernel_for(&k->queries, q->problem), k->queries.bytes);
    if (status == SAT_OK)
        status = attention_allow_shared(q, (const void *)kernel_for(&k->keys, q->problem), k->keys.bytes);
    if (status != SAT_OK) return status;
    attention_backward_state *s = (attention_backward_state *)calloc(1, sizeof *s);
    if (!s) return sat_fail(SAT_OUT_OF_MEMORY, "%s: state", q->variant->name);
    status = attention_backward_make(q, by_query(k), by_key(k), (char *)q->workspace, s);
    if (status == SAT_OK) *out = s;
    else free(s);
    return status;
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const sat_attention *t = &p->attention;
    const instance *k = instance_for(l->variant, p);
    const attention_backward_state *s = (const attention_backward_state *)l->state;
    cudaStream_t stream = (cudaStream_t)l->stream;
    unsigned queries = attention_work_count(&s->by_query), keys = attention_work_count(&s->by_key);
    const char *q = (const char *)l->operands[0], *key = (const char *)l->operands[1];
    const char *v = (const char *)l->operands[2], *d = (const char *)l->operands[5];
    float scale_log2 = (float)(attention_scale(p) * 1.44269504088896340736), scale = (float)p->alpha;
    attention_options options = attention_options_of(l);
    if (queries > 0) {
        sat_status status = attention_needs_options(p) ? attention_launch_delta_any(l, s->lse, s->delta, s->head_stride)
                            : p->a_dtype == SAT_F16    ? attention_launch_delta<__half>(l, s)
                                                       : attention_launch_delta<__nv_bfloat16>(l, s);
        if (status != SAT_OK) return status;
        kernel_args x = {s->by_query,    {q, d}, {key, v}, {t->q, t->do_}, {t->k, t->v}, {(char *)l->operands[6], NULL},
                         {t->dq, t->dq}, s->lse, s->delta, s->head_stride, (int)t->dim,  scale_log2,
                         scale,          options};
        kernel_for(&k->queries,
                   p)<<<queries *(unsigned)k->queries.column_ctas, k->queries.threads, k->queries.bytes, stream>>>(x);
    }
    if (keys > 0) {
        kernel_args x = {s->by_key,      {key, v},       {q, d},
                         {t->k, t->v},   {t->q, t->do_}, {(char *)l->operands[7], (char *)l->operands[8]},
                         {t->dk, t->dv}, s->lse,         s->delta,
                         s->head_stride, (int)t->dim,    scale_log2,
                         scale,          options};
        kernel_for(&k->keys, p)<<<keys *(unsigned)k->keys.column_ctas, k->keys.threads, k->keys.bytes, stream>>>(x);
    }
    sat_status status = sat_launched(l);
    return status == SAT_OK && t->sinks ? attention_launch_sinks(l, s->delta, s->head_stride) : status;
}

SAT_FAMILY(cuda_attention_backward_mma) = {
    .revision = "1",
    .op = SAT_ATTENTION_BACKWARD,
    .backend = SAT_CUDA,
    .flags = SAT_V_BATCHED,
    .about = "tensor cores (mma.sync), dQ by queries, then dK and dV by keys; skips absent blocks",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = attention_release,
};
