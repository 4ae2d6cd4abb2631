// cuda_attention_backward_tiled: the gradients in tiles on plain f32 units: for f32, and for 16-bit operands that the
// tensor-core kernels do not take. Two passes as in attention_backward_mma.cuh, read there for why: a CTA has 64
// queries and sums up dQ over keys, or 64 keys and sums up dK and dV over queries. Any head size up to 256, any
// strides. Registers are full of sums: each part of a long f32 sum is a launch of its own, added to the gradients.

#include "kernels/cuda/attention/attention_tiled.cuh"

struct back_job {
    attention_walk w;
    const void *own[2], *other[2]; // Q and dO, K and V; or K and V, Q and dO
    sat_heads own_at[2], other_at[2];
    void *out[2]; // dQ; or dK and dV
    sat_heads out_at[2];
    const float *lse, *delta; // of each query: log2(e)*LSE, inf where nothing is kept; and dO*O
    int m, dim;
    float c, alpha;
    bool wide;
    int first_head, heads, first_step, end_step; // of a CTA's heads, and of the steps of each: this part
    bool first;
};

/* Head size D at most; sums over N columns of it, the others are another CTA's. */
template <bool BY_KEY_, int D_, int N_, int CTAS_> struct back_shape {
    static constexpr bool BY_KEY = BY_KEY_;
    static constexpr int D = D_, N = N_, BM = 64, BN = 32, CTAS = CTAS_, THREADS = 2 * BM, ROWS = 8;
    static constexpr int KEYS = BN / 16, GROUPS = N / 64, PARTS = D / N, SUMS = BY_KEY ? 2 : 1;
    static constexpr int PITCH = D + 4, WEIGHTS = BN + 4, OWN = BM * PITCH, TILE = BN * PITCH; // floats
    static constexpr int BYTES = 4 * (2 * OWN + 2 * TILE + BM * WEIGHTS);
};

/* Which pairs of this thread's rows and of columns x, x + 16, ... are kept: weights of the others become 0. */
template <typename S>
__device__ __forceinline__ void mask(float (&p)[S::ROWS][S::KEYS], const back_job &w, const attention_tile &t,
                                     const attention_step &s, int64_t word, int row, int x) {
    if constexpr (S::BY_KEY) {
#pragma unroll
        for (int j = 0; j < S::KEYS; j++) {
            int query = s.first + x + 16 * j;
            uint64_t keep = 0;
            if (x + 16 * j < s.count)
                keep = attention_keep(w.w, query, s.first, t.diagonal, t.first, t.end - t.first, t.first, t.end, word);
            keep >>= row;
#pragma unroll
            for (int i = 0; i < S::ROWS; i++)
                if (!(keep >> i & 1)) p[i][j] = 0;
        }
    } else {
#pragma unroll
        for (int i = 0; i < S::ROWS; i++) {
            int query = min(t.first + row + i, t.end - 1);
            uint64_t keep =
                attention_keep(w.w, query, t.first, t.diagonal, s.first, s.count, t.begin, t.stop, word) >> x;
#pragma unroll
            for (int j = 0; j < S::KEYS; j++)
                if (!(keep >> (16 * j) & 1)) p[i][j] = 0;
        }
    }
}

template <typename S>
__device__ __forceinline__ void put_weights(float *to, const float (&p)[S::ROWS][S::KEYS], int x) {
    __syncwarp(); // the warp has read those before
#pragma unroll
    for (int i = 0; i < S::ROWS; i++)
#pragma unroll
        for (int j = 0; j < S::KEYS; j++) to[i * S::WEIGHTS + x + 16 * j] = p[i][j];
    __syncwarp();
}

template <typename T, typename S>
static __global__ void __launch_bounds__(S::THREADS, S::CTAS) tiled_backward(const __grid_constant__ back_job w) {
    extern __shared__ __align__(16) float shared[];
    float *own = shared, *other = own + 2 * S::OWN;
    int thread = threadIdx.x, x = thread % 16, row = thread / 16 * S::ROWS, part = blockIdx.x % S::PARTS * S::N;
    float *weights = other + 2 * S::TILE + row * S::WEIGHTS, row_lse[S::ROWS], row_delta[S::ROWS];
    const attention_item item = attention_item_of(w.w, blockIdx.x / S::PARTS);
    int64_t heads = (int64_t)w.w.heads * (S::BY_KEY ? w.w.share : 1);
    constexpr bool PARTS = sizeof(T) == 4;
    int first_head = S::BY_KEY ? item.head * w.w.share + (PARTS ? w.first_head : 0) : item.head;
    int stop = first_head + (S::BY_KEY ? (PARTS ? w.heads : w.w.share) : 1);
    if (PARTS && !w.first) {
        int most = 0;
        for (int head = first_head; head < stop; head++) most = max(most, attention_steps_of(w.w, item, head).count);
        if (most <= w.first_step) return; // nothing to add
    }
#pragma unroll
    for (int k = 0; k < 2; k++)
        tiled_load<T, S::BM, S::D, S::THREADS>(
            own + k * S::OWN, (const T *)w.own[k] + sat_heads_at(&w.own_at[k], item.batch, item.head, item.t.first),
            w.own_at[k].row_stride, item.t.end - item.t.first, w.dim, w.wide);
#pragma unroll
    for (int i = 0; i < S::ROWS && !S::BY_KEY; i++) {
        int64_t at = (item.batch * heads + item.head) * w.m + min(item.t.first + row + i, item.t.end - 1);
        row_lse[i] = w.lse[at], row_delta[i] = w.delta[at];
    }
    float sums[S::SUMS][S::ROWS][S::GROUPS * 4] = {};
    for (int head = first_head; head < stop; head++) {
        attention_steps steps = attention_steps_of(w.w, item, head);
        int other_head = S::BY_KEY ? head : head / w.w.share;
        if (PARTS) steps.count = min(steps.count, w.end_step);
#pragma unroll 1
        for (int step = PARTS ? w.first_step : 0; step < steps.count; step++) {
            attention_step t = attention_step_at(w.w, steps, step);
            __syncthreads(); // nobody reads the tiles before any more
#pragma unroll
            for (int k = 0; k < 2; k++)
                tiled_load<T, S::BN, S::D, S::THREADS>(
                    other + k * S::TILE,
                    (const T *)w.other[k] + sat_heads_at(&w.other_at[k], item.batch, other_head, t.first),
                    w.other_at[k].row_stride, t.count, w.dim, w.wide);
            cp_async_commit_group();
            float lse[S::KEYS], delta[S::KEYS];
#pragma unroll
            for (int j = 0; j < S::KEYS && S::BY_KEY; j++) {
                int64_t at = (item.batch * heads + head) * w.m + t.first + min(x + 16 * j, t.count - 1);
                lse[j] = w.lse[at], delta[j] = w.delta[at];
            }
            cp_async_wait_group<0>();
            __syncthreads();
            float p[S::ROWS][S::KEYS], d[S::ROWS][S::KEYS];
            tiled_scores<S>(p, own + row * S::PITCH, other, x);
#pragma unroll
            for (int i = 0; i < S::ROWS; i++)
#pragma unroll
                for (int j = 0; j < S::KEYS; j++)
                    p[i][j] = attention_exp2(fmaf(p[i][j], w.c, -(S::BY_KEY ? lse[j] : row_lse[i])));
            if (t.edge) mask<S>(p, w, item.t, t, (int64_t)(steps.list + step) * w.w.words, row, x);
            if (S::BY_KEY) { // dV
                put_weights<S>(weights, p, x);
                tiled_values<S>(sums[S::SUMS - 1], weights, other + S::TILE + part, x);
            }
            tiled_scores<S>(d, own + S::OWN + row * S::PITCH, other + S::TILE, x);
#pragma unroll
            for (int i = 0; i < S::ROWS; i++)
#pragma unroll
                for (int j = 0; j < S::KEYS; j++) p[i][j] *= d[i][j] - (S::BY_KEY ? delta[j] : row_delta[i]);
            put_weights<S>(weights, p, x);
            tiled_values<S>(sums[0], weights, other + part, x);
        }
    }
    cp_async_wait_group<0>();
#pragma unroll
    for (int k = 0; k < S::SUMS; k++)
#pragma unroll
        for (int i = 0; i < S::ROWS; i++) {
            if (item.t.first + row + i >= item.t.end) continue;
            T *to = (T *)w.out[k] + sat_heads_at(&w.out_at[k], item.batch, item.head, item.t.first + row + i);
#pragma unroll
            for (int e = 0; e < S::GROUPS * 4; e++) {
                int at = part + e / 4 * 64 + 4 * x + e % 4;
                float y = sums[k][i][e] * (k == 0 ? w.alpha : 1);
                if (at < w.dim) to[at] = T(!PARTS || w.first ? y : (float)to[at] + y);
            }
        }
}

/* What both passes need of each query; a warp has one. */
struct delta_job {
    sat_dtype dtype;
    const void *o, *d;
    sat_heads o_at, d_at;
    const float *lse;
    float *lse2, *delta;
    int64_t all, heads, m, dim;
};

static __global__ void find_delta(const __grid_constant__ delta_job w) {
    int64_t step = (int64_t)gridDim.x * blockDim.x / 32;
    for (int64_t at = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32; at < w.all; at += step) {
        int64_t bh = at / w.m, b = bh / w.heads, h = bh % w.heads, i = at % w.m;
        int64_t o = sat_heads_at(&w.o_at, b, h, i), d = sat_heads_at(&w.d_at, b, h, i);
        float sum = 0;
        for (int64_t e = threadIdx.x % 32; e < w.dim; e += 32)
            sum = fmaf(sat_load_as(0.f, w.dtype, w.o, o + e), sat_load_as(0.f, w.dtype, w.d, d + e), sum);
        for (int k = 16; k > 0; k /= 2) sum += __shfl_xor_sync(~0u, sum, k);
        if (threadIdx.x % 32) continue;
        float lse = w.lse[at];
        w.lse2[at] = lse == -INFINITY ? INFINITY : lse * 1.44269504f, w.delta[at] = sum;
    }
}

/* ---- the host's side ---- */

struct pass {
    int bytes, parts;
    void (*run[3])(back_job); // f32, f16, bf16
};

struct kernel {
    int dim, ctas;
    pass queries, keys;
};

template <typename S> static constexpr pass pass_of() {
    return {
        S::BYTES, S::PARTS, {tiled_backward<float, S>, tiled_backward<__half, S>, tiled_backward<__nv_bfloat16, S>}};
}

static const kernel kernels[] = {
    {64, 2, pass_of<back_shape<false, 64, 64, 2>>(), pass_of<back_shape<true, 64, 64, 2>>()},
    {128, 2, pass_of<back_shape<false, 128, 128, 2>>(), pass_of<back_shape<true, 128, 128, 2>>()},
    {256, 1, pass_of<back_shape<false, 256, 256, 1>>(), pass_of<back_shape<true, 256, 128, 1>>()},
};

static const kernel *kernel_for(const sat_problem *p) {
    for (const kernel &k : kernels)
        if (p->attention.dim <= k.dim) return &k;
    return NULL;
}

enum { ROWS = 64, OTHERS = 32 };
static const attention_shape by_query = {ROWS, OTHERS, false}, by_key = {OTHERS, ROWS, true};

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    const kernel *k = kernel_for(p);
    if (!k || p->a_dtype == SAT_F64 || k->queries.bytes > d->shared_bytes || k->keys.bytes > d->shared_bytes)
        return false;
    return attention_walks(p, a, by_query) && attention_walks(p, a, by_key);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    const kernel *k = kernel_for(p);
    double flops = (6 * attention_visited(p, a, by_query) + 8 * attention_visited(p, a, by_key)) * k->dim;
    double tiles = ceil((double)p->n / (double)ROWS) * (double)(p->batch * p->attention.kv_heads);
    double waves = fmax(1e-3, tiles / (double)(d->threads * k->ctas)), idle = waves < 4 ? ceil(waves) / waves : 1;
    if (waves < 1) idle = fmax(1, idle / k->ctas);
    double busy = flops / (0.35 * d->flop_rate[SAT_F32]) * idle * k->keys.parts * (p->a_dtype == SAT_F32 ? 1 : 1.2);
    return fmax(busy, 2 * sat_attention_bytes(p, a) / d->memory_rate) + 1.5e-5;
}

static size_t round_up(double bytes) { return ((size_t)bytes + 255) / 256 * 256; }

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)d;
    return round_up(attention_walk_bytes(p, a, by_query)) + round_up(attention_walk_bytes(p, a, by_key)) +
           2 * round_up(4 * (double)(p->batch * p->attention.heads * p->m));
}

struct state {
    attention_walk by_query, by_key;
    float *lse, *delta;
};

static sat_status prepare(const sat_prepare *q, void **out) {
    const sat_problem *p = q->problem;
    const kernel *k = kernel_for(p);
    int type = tiled_type(p->a_dtype);
    sat_status status = attention_allow(q, (const void *)k->queries.run[type], k->queries.bytes);
    if (status == SAT_OK) status = attention_allow(q, (const void *)k->keys.run[type], k->keys.bytes);
    if (status != SAT_OK) return status;
    state *s = (state *)calloc(1, sizeof *s);
    if (!s) return sat_fail(SAT_OUT_OF_MEMORY, "%s: state", q->variant->name);
    char *at = (char *)q->workspace;
    status = attention_walk_make(q, by_query, at, &s->by_query);
    at += round_up(attention_walk_bytes(p, q->pattern, by_query));
    if (status == SAT_OK) status = attention_walk_make(q, by_key, at, &s->by_key);
    at += round_up(attention_walk_bytes(p, q->pattern, by_key));
    s->lse = (float *)at, s->delta = (float *)(at + round_up(4 * (double)(p->batch * p->attention.heads * p->m)));
    if (status == SAT_OK) *out = s;
    else free(s);
    return status;
}

static bool wide(const sat_problem *p) { // f32 in steps of 16 bytes
    const sat_attention *t = &p->attention;
    return p->a_align >= 16 && attention_in_steps(&t->q) && attention_in_steps(&t->k) && attention_in_steps(&t->v) &&
           attention_in_steps(&t->do_);
}

/* A launch for each part: some steps of one head, or all steps of some heads. Gradients of 16 bits have one. */
template <typename RUN> static void each_part(back_job x, sat_dtype t, bool by_key, RUN run) {
    int heads = by_key ? x.w.share : 1, most = (int)sat_max(1, x.w.longest);
    int part = t == SAT_F32 ? SAT_SUM_PART / x.w.width : INT32_MAX / 2;
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
    const kernel *k = kernel_for(p);
    const state *s = (const state *)l->state;
    cudaStream_t stream = (cudaStream_t)l->stream;
    unsigned queries = attention_items(&s->by_query), keys = attention_items(&s->by_key);
    void *const *o = l->operands;
    int type = tiled_type(p->a_dtype), threads = 2 * ROWS;
    float c = (float)(p->alpha * 1.44269504088896340736), alpha = (float)p->alpha;
    if (queries > 0) {
        int64_t all = p->batch * t->heads * p->m;
        delta_job w = {p->a_dtype, o[3],     o[5], t->o,     t->do_, (const float *)o[4],
                       s->lse,     s->delta, all,  t->heads, p->m,   t->dim};
        find_delta<<<sat_blocks(all, 8), 256, 0, stream>>>(w);
        back_job x = {s->by_query,    {o[0], o[5]}, {o[1], o[2]}, {t->q, t->do_}, {t->k, t->v}, {o[6], NULL},
                      {t->dq, t->dq}, s->lse,       s->delta,     (int)p->m,      (int)t->dim,  c,
                      alpha,          wide(p)};
        each_part(x, p->a_dtype, false, [&](const back_job &part) {
            k->queries.run[type]<<<queries *(unsigned)k->queries.parts, threads, k->queries.bytes, stream>>>(part);
        });
    }
    if (keys > 0) {
        back_job x = {s->by_key,      {o[1], o[2]}, {o[0], o[5]}, {t->k, t->v}, {t->q, t->do_}, {o[7], o[8]},
                      {t->dk, t->dv}, s->lse,       s->delta,     (int)p->m,    (int)t->dim,    c,
                      alpha,          wide(p)};
        each_part(x, p->a_dtype, true, [&](const back_job &part) {
            k->keys.run[type]<<<keys *(unsigned)k->keys.parts, threads, k->keys.bytes, stream>>>(part);
        });
    }
    return sat_launched(l);
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
