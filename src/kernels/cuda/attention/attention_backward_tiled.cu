// cuda_attention_backward_tiled: the gradients of fused attention in tiles without tensor cores, dense and
// block-sparse. For f32, and for 16-bit operands whose rows do not begin on 16 bytes. Any head size up to 256, any
// strides; with OPTIONS values of another size, soft caps and sinks.
//
// First the statistics of each query, then dQ by tiles of 64 queries, then dK and dV by tiles of 64 keys. Every sum is
// made in one order, so the result is deterministic. Both gradient kernels are one template. With
// P = exp(scale*S - LSE) where kept and dS = P*(dP - delta):
//
//   own rows (A)   other rows (B)   S          dP         sums
//   Q, dO          K, V             Q*K^T      dO*V^T     dQ += dS*K
//   K, V           Q, dO            K*Q^T      V*dO^T     dV += P*dO, dK += dS*Q      (S, dP, P, dS transposed)
//
// Registers are full of sums, so each part of a long f32 sum (SAT_SUM_PART) is a launch of its own, which adds to the
// gradients.

#include "kernels/cuda/attention/attention_tiled.cuh"

struct kernel_args {
    attention_schedule schedule;
    const void *own[2], *other[2]; // Q and dO, K and V; or K and V, Q and dO
    sat_heads own_at[2], other_at[2];
    void *out[2]; // dQ; or dK and dV
    sat_heads out_at[2];
    const float *lse, *delta; // of each query: log2(e)*LSE, inf where nothing is kept; and the sum of dO*O
    int m, dim;
    float scale_log2, scale;                     // scale*log2(e)
    bool aligned;                                // rows begin on 16 bytes
    int first_head, heads, first_step, end_step; // this part: of a CTA's query heads, and of the steps of each
    bool first;                                  // the first part
    attention_options options;
};

// ---- shared memory: two operands of own rows, two of other rows, weights ----

// Head sizes up to D. A CTA sums over N columns of them, other CTAs over the others. Sizes in floats, but for BYTES.
template <bool BY_KEY_, int D_, int N_, int CTAS_> struct tile_shape {
    static constexpr bool BY_KEY = BY_KEY_;
    static constexpr int D = D_, N = N_, BM = 64, BN = 32, CTAS = CTAS_, THREADS = 2 * BM, ROWS = 8;
    static constexpr int KEYS = BN / 16, VECTORS = N / 64, COLUMN_CTAS = D / N, SUMS = BY_KEY ? 2 : 1;
    static constexpr int PITCH = D + 4, WEIGHTS = BN + 4, OWN = BM * PITCH, TILE = BN * PITCH;
    static constexpr int BYTES = 4 * (2 * OWN + 2 * TILE + BM * WEIGHTS);
};

// ---- weights ----

// Weights of pairs that are not kept become 0: this thread's rows by columns x, x + 16, ...
template <typename S>
__device__ __forceinline__ void mask_weights(float (&p)[S::ROWS][S::KEYS], const kernel_args &w,
                                             const attention_tile &t, const attention_step &s, int64_t word, int row,
                                             int x) {
    if constexpr (S::BY_KEY) {
#pragma unroll
        for (int j = 0; j < S::KEYS; j++) {
            int query = s.first + x + 16 * j;
            uint64_t keep = 0;
            if (x + 16 * j < s.count)
                keep = attention_kept_keys(w.schedule, query, s.first, t.diagonal, t.first, t.end - t.first, t.first,
                                           t.end, word);
            keep >>= row;
#pragma unroll
            for (int i = 0; i < S::ROWS; i++)
                if (!(keep >> i & 1)) p[i][j] = 0;
        }
    } else {
#pragma unroll
        for (int i = 0; i < S::ROWS; i++) {
            int query = min(t.first + row + i, t.end - 1);
            uint64_t keep = attention_kept_keys(w.schedule, query, t.first, t.diagonal, s.first, s.count, t.other_begin,
                                                t.other_end, word) >>
                            x;
#pragma unroll
            for (int j = 0; j < S::KEYS; j++)
                if (!(keep >> (16 * j) & 1)) p[i][j] = 0;
        }
    }
}

// To the half warp's rows of shared memory, for the product that follows.
template <typename S>
__device__ __forceinline__ void store_weights(float *to, const float (&p)[S::ROWS][S::KEYS], int x) {
    __syncwarp(); // the warp has read the weights before
#pragma unroll
    for (int i = 0; i < S::ROWS; i++)
#pragma unroll
        for (int j = 0; j < S::KEYS; j++) to[i * S::WEIGHTS + x + 16 * j] = p[i][j];
    __syncwarp();
}

// ---- kernels ----

template <typename T, typename S, bool OPTIONS>
static __global__ void __launch_bounds__(S::THREADS, S::CTAS)
    attention_backward(const __grid_constant__ kernel_args w) {
    extern __shared__ __align__(16) float shared[];
    float *own = shared, *other = own + 2 * S::OWN;
    int thread = threadIdx.x, x = thread % 16, row = thread / 16 * S::ROWS;
    int first_column = blockIdx.x % S::COLUMN_CTAS * S::N;
    float *weights = other + 2 * S::TILE + row * S::WEIGHTS, row_lse[S::ROWS], row_delta[S::ROWS];
    const attention_work work = attention_work_at(w.schedule, blockIdx.x / S::COLUMN_CTAS);
    int64_t heads = (int64_t)w.schedule.heads * (S::BY_KEY ? w.schedule.heads_per_kv : 1);
    constexpr bool PARTS = sizeof(T) == 4;                              // long sums are made of parts
    const int dims[2] = {w.dim, OPTIONS ? w.options.value_dim : w.dim}; // of the first and second operand of each side
    int first_head = S::BY_KEY ? work.head * w.schedule.heads_per_kv + (PARTS ? w.first_head : 0) : work.head;
    int end_head = first_head + (S::BY_KEY ? (PARTS ? w.heads : w.schedule.heads_per_kv) : 1);
    if (PARTS && !w.first) {
        int most = 0;
        for (int head = first_head; head < end_head; head++)
            most = max(most, attention_steps_of(w.schedule, work, head).count);
        if (most <= w.first_step) return; // this part has no steps
    }
#pragma unroll
    for (int k = 0; k < 2; k++)
        tiled_load<T, S::BM, S::D, S::THREADS, OPTIONS>(
            own + k * S::OWN, (const T *)w.own[k] + sat_heads_at(&w.own_at[k], work.batch, work.head, work.t.first),
            w.own_at[k].row_stride, work.t.end - work.t.first, dims[k], w.aligned);
#pragma unroll
    for (int i = 0; i < S::ROWS && !S::BY_KEY; i++) {
        int64_t at = (work.batch * heads + work.head) * w.m + min(work.t.first + row + i, work.t.end - 1);
        row_lse[i] = w.lse[at], row_delta[i] = w.delta[at];
    }
    float sums[S::SUMS][S::ROWS][S::VECTORS * 4] = {};
    for (int head = first_head; head < end_head; head++) {
        attention_steps steps = attention_steps_of(w.schedule, work, head);
        int other_head = S::BY_KEY ? head : head / w.schedule.heads_per_kv;
        if (PARTS) steps.count = min(steps.count, w.end_step);
#pragma unroll 1
        for (int step = PARTS ? w.first_step : 0; step < steps.count; step++) {
            attention_step t = attention_step_at(w.schedule, steps, step);
            __syncthreads(); // every warp has read the tiles before
#pragma unroll
            for (int k = 0; k < 2; k++)
                tiled_load<T, S::BN, S::D, S::THREADS, OPTIONS>(
                    other + k * S::TILE,
                    (const T *)w.other[k] + sat_heads_at(&w.other_at[k], work.batch, other_head, t.first),
                    w.other_at[k].row_stride, t.count, dims[k], w.aligned);
            cp_async_commit_group();
            float lse[S::KEYS], delta[S::KEYS];
#pragma unroll
            for (int j = 0; j < S::KEYS && S::BY_KEY; j++) {
                int64_t at = (work.batch * heads + head) * w.m + t.first + min(x + 16 * j, t.count - 1);
                lse[j] = w.lse[at], delta[j] = w.delta[at];
            }
            cp_async_wait_group<0>();
            __syncthreads();
            float p[S::ROWS][S::KEYS], d[S::ROWS][S::KEYS];
            tiled_product<S>(p, own + row * S::PITCH, other, x);
            if constexpr (OPTIONS) { // both products first: what a soft cap leaves of dS follows from the score
                tiled_product<S>(d, own + S::OWN + row * S::PITCH, other + S::TILE, x);
#pragma unroll
                for (int i = 0; i < S::ROWS; i++)
#pragma unroll
                    for (int j = 0; j < S::KEYS; j++) {
                        float slope = 1;
                        if (w.options.cap != 0) p[i][j] = tanhf(p[i][j] * w.options.cap), slope -= p[i][j] * p[i][j];
                        p[i][j] = attention_exp2(fmaf(p[i][j], w.scale_log2, -(S::BY_KEY ? lse[j] : row_lse[i])));
                        d[i][j] = p[i][j] * slope * (d[i][j] - (S::BY_KEY ? delta[j] : row_delta[i]));
                    }
                if (t.edge) {
                    int64_t word = (int64_t)(steps.list + step) * w.schedule.words;
                    mask_weights<S>(p, w, work.t, t, word, row, x);
                    mask_weights<S>(d, w, work.t, t, word, row, x);
                }
                if (S::BY_KEY) { // dV += P*dO
                    store_weights<S>(weights, p, x);
                    tiled_accumulate<S>(sums[S::SUMS - 1], weights, other + S::TILE + first_column, x);
                }
                store_weights<S>(weights, d, x);
            } else {
#pragma unroll
                for (int i = 0; i < S::ROWS; i++)
#pragma unroll
                    for (int j = 0; j < S::KEYS; j++)
                        p[i][j] = attention_exp2(fmaf(p[i][j], w.scale_log2, -(S::BY_KEY ? lse[j] : row_lse[i])));
                if (t.edge) mask_weights<S>(p, w, work.t, t, (int64_t)(steps.list + step) * w.schedule.words, row, x);
                if (S::BY_KEY) { // dV += P*dO
                    store_weights<S>(weights, p, x);
                    tiled_accumulate<S>(sums[S::SUMS - 1], weights, other + S::TILE + first_column, x);
                }
                tiled_product<S>(d, own + S::OWN + row * S::PITCH, other + S::TILE, x);
#pragma unroll
                for (int i = 0; i < S::ROWS; i++)
#pragma unroll
                    for (int j = 0; j < S::KEYS; j++) p[i][j] *= d[i][j] - (S::BY_KEY ? delta[j] : row_delta[i]);
                store_weights<S>(weights, p, x);
            }
            tiled_accumulate<S>(sums[0], weights, other + first_column, x); // dQ += dS*K, or dK += dS*Q
        }
    }
    cp_async_wait_group<0>();
#pragma unroll
    for (int k = 0; k < S::SUMS; k++)
#pragma unroll
        for (int i = 0; i < S::ROWS; i++) {
            if (work.t.first + row + i >= work.t.end) continue;
            T *to = (T *)w.out[k] + sat_heads_at(&w.out_at[k], work.batch, work.head, work.t.first + row + i);
#pragma unroll
            for (int e = 0; e < S::VECTORS * 4; e++) {
                int at = first_column + e / 4 * 64 + 4 * x + e % 4;
                float y = sums[k][i][e] * (k == 0 ? w.scale : 1);
                if (at < dims[k]) to[at] = T(!PARTS || w.first ? y : (float)to[at] + y);
            }
        }
}

// ---- instances ----

struct pass {
    int bytes, column_ctas;
    void (*plain[3])(kernel_args), (*with_options[3])(kernel_args); // f32, f16, bf16
};

struct instance {
    int max_dim, ctas;
    pass queries, keys;
};

template <typename S> static constexpr pass pass_of() {
    return {S::BYTES,
            S::COLUMN_CTAS,
            {attention_backward<float, S, false>, attention_backward<__half, S, false>,
             attention_backward<__nv_bfloat16, S, false>},
            {attention_backward<float, S, true>, attention_backward<__half, S, true>,
             attention_backward<__nv_bfloat16, S, true>}};
}

// By key, D, N, CTAs a multiprocessor.
static const instance instances[] = {
    {64, 2, pass_of<tile_shape<false, 64, 64, 2>>(), pass_of<tile_shape<true, 64, 64, 2>>()},
    {128, 2, pass_of<tile_shape<false, 128, 128, 2>>(), pass_of<tile_shape<true, 128, 128, 2>>()},
    {256, 1, pass_of<tile_shape<false, 256, 256, 1>>(), pass_of<tile_shape<true, 256, 128, 1>>()},
};

static void (*kernel_for(const pass *k, const sat_problem *p))(kernel_args) {
    return (sat_attention_is_plain(p) ? k->plain : k->with_options)[tiled_type(p->a_dtype)];
}

static const instance *instance_for(const sat_problem *p) {
    for (const instance &k : instances)
        if (attention_widest(p) <= k.max_dim) return &k;
    return NULL;
}

enum { OWN_ROWS = 64, STEP_ROWS = 32 };
static const attention_tiling by_query = {OWN_ROWS, STEP_ROWS, false}, by_key = {STEP_ROWS, OWN_ROWS, true};

// ---- host ----

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    const instance *k = instance_for(p);
    if (!k || tiled_type(p->a_dtype) < 0 || k->queries.bytes > d->shared_bytes || k->keys.bytes > d->shared_bytes)
        return false;
    return attention_schedule_fits(p, a, by_query) && attention_schedule_fits(p, a, by_key);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    const instance *k = instance_for(p);
    double pairs = 6 * attention_visited_pairs(p, a, by_query) + 8 * attention_visited_pairs(p, a, by_key);
    double flops = pairs * k->max_dim;
    double tiles = ceil((double)p->n / (double)OWN_ROWS) * (double)(p->batch * p->attention.kv_heads);
    double waves = fmax(1e-3, tiles / (double)(d->multiprocessors * k->ctas)),
           idle = waves < 4 ? ceil(waves) / waves : 1;
    if (waves < 1) idle = fmax(1, idle / k->ctas);
    double busy =
        flops / (0.35 * d->flop_rate[SAT_F32]) * idle * k->keys.column_ctas * (p->a_dtype == SAT_F32 ? 1 : 1.2);
    return fmax(busy, 2 * sat_attention_bytes(p, a) / d->memory_rate) + 1.5e-5;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)d;
    return attention_round_up(attention_schedule_bytes(p, a, by_query)) +
           attention_round_up(attention_schedule_bytes(p, a, by_key)) +
           2 * attention_round_up(4 * (double)(p->batch * p->attention.heads * p->m));
}

struct state {
    attention_schedule by_query, by_key;
    float *lse, *delta;
};

static sat_status prepare(const sat_prepare *q, void **out) {
    const sat_problem *p = q->problem;
    const instance *k = instance_for(p);
    sat_status status = attention_allow_shared(q, (const void *)kernel_for(&k->queries, p), k->queries.bytes);
    if (status == SAT_OK) status = attention_allow_shared(q, (const void *)kernel_for(&k->keys, p), k->keys.bytes);
    if (status != SAT_OK) return status;
    state *s = (state *)calloc(1, sizeof *s);
    if (!s) return sat_fail(SAT_OUT_OF_MEMORY, "%s: state", q->variant->name);
    char *at = (char *)q->workspace;
    status = attention_schedule_make(q, by_query, at, &s->by_query);
    at += attention_round_up(attention_schedule_bytes(p, q->pattern, by_query));
    if (status == SAT_OK) status = attention_schedule_make(q, by_key, at, &s->by_key);
    at += attention_round_up(attention_schedule_bytes(p, q->pattern, by_key));
    s->lse = (float *)at,
    s->delta = (float *)(at + attention_round_up(4 * (double)(p->batch * p->attention.heads * p->m)));
    if (status == SAT_OK) *out = s;
    else free(s);
    return status;
}

static bool rows_aligned(const sat_problem *p) {
    const sat_attention *t = &p->attention;
    return p->a_align >= 16 && attention_rows_aligned(&t->q) && attention_rows_aligned(&t->k) &&
           attention_rows_aligned(&t->v) && attention_rows_aligned(&t->do_);
}

// A launch for each part: some steps of one head, or all steps of some heads. 16-bit gradients have one part.
template <typename RUN> static void each_part(kernel_args x, sat_dtype t, bool by_key, RUN run) {
    int heads = by_key ? x.schedule.heads_per_kv : 1, most = (int)sat_max(1, x.schedule.max_steps);
    int part = t == SAT_F32 ? SAT_SUM_PART / x.schedule.step_rows : INT32_MAX / 2;
    x.heads = (int)sat_max(1, sat_min(heads, part / most));
    for (x.first_head = 0; x.first_head < heads; x.first_head += x.heads) {
        x.heads = (int)sat_min(x.heads, heads - x.first_head);
        for (x.first_step = 0; x.first_step == 0 || x.first_step < most; x.first_step += part) {
            x.end_step = x.first_step + part, x.first = x.first_head == 0 && x.first_step == 0;
            run(x);
        }
    }
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const sat_attention *t = &p->attention;
    const instance *k = instance_for(p);
    const state *s = (const state *)l->state;
    cudaStream_t stream = (cudaStream_t)l->stream;
    unsigned queries = attention_work_count(&s->by_query), keys = attention_work_count(&s->by_key);
    void *const *o = l->operands;
    int threads = 2 * OWN_ROWS;
    float scale_log2 = (float)(attention_scale(p) * 1.44269504088896340736), scale = (float)p->alpha;
    sat_status status = SAT_OK;
    if (queries > 0) {
        status = attention_launch_delta_any(l, s->lse, s->delta, p->m);
        kernel_args x = {s->by_query,  {o[0], o[5]},   {o[1], o[2]}, {t->q, t->do_}, {t->k, t->v},
                         {o[6], NULL}, {t->dq, t->dq}, s->lse,       s->delta,       (int)p->m,
                         (int)t->dim,  scale_log2,     scale,        rows_aligned(p)};
        x.options = attention_options_of(l);
        each_part(x, p->a_dtype, false, [&](const kernel_args &part) {
            kernel_for(&k->queries,
                       p)<<<queries *(unsigned)k->queries.column_ctas, threads, k->queries.bytes, stream>>>(part);
        });
    }
    if (keys > 0) {
        kernel_args x = {s->by_key,    {o[1], o[2]},   {o[0], o[5]}, {t->k, t->v},   {t->q, t->do_},
                         {o[7], o[8]}, {t->dk, t->dv}, s->lse,       s->delta,       (int)p->m,
                         (int)t->dim,  scale_log2,     scale,        rows_aligned(p)};
        x.options = attention_options_of(l);
        each_part(x, p->a_dtype, true, [&](const kernel_args &part) {
            kernel_for(&k->keys, p)<<<keys *(unsigned)k->keys.column_ctas, threads, k->keys.bytes, stream>>>(part);
        });
    }
    if (status == SAT_OK) status = sat_launched(l);
    return status == SAT_OK && t->sinks ? attention_launch_sinks(l, s->delta, p->m) : status;
}

SAT_FAMILY(cuda_attention_backward_tiled) = {
    .revision = "2",
    .op = SAT_ATTENTION_BACKWARD,
    .backend = SAT_CUDA,
    .flags = SAT_V_BATCHED,
    .about = "in tiles on f32 units, dQ by queries, then dK and dV by keys; any alignment, skips absent blocks",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = attention_release,
};
