// cuda_attention_tiled: online softmax in tiles on plain f32 units. For f32, and for 16-bit operands that the
// tensor-core kernels do not take (rows that do not begin on 16 bytes). A thread has 8 queries by 4 keys of the scores,
// then 8 queries by D/16 columns of O; weights pass through the warp's own rows of shared memory in between. Any head
// size up to 256, any strides, dense and block-sparse. Of f32 a long sum over keys is added to O in parts: what lies
// there is of the largest score of its time, which a row keeps beside its weights.

#include "kernels/cuda/attention/attention_tiled.cuh"

/* Head size D at most. A warp has two times 16 threads, of which each 16 have 8 rows. */
template <int D_, int BM_, int BN_, int CTAS_> struct tiled_shape {
    static constexpr int D = D_, BM = BM_, BN = BN_, CTAS = CTAS_, THREADS = BM * 2, ROWS = 8;
    static constexpr int KEYS = BN / 16, GROUPS = D / 64;   /* of a thread: keys, and groups of four columns */
    static constexpr int PITCH = D + 4, WEIGHTS = BN + 4;   /* floats */
    static constexpr int PART = SAT_SUM_PART / BN;          /* steps */
    static constexpr int Q = BM * PITCH, TILE = BN * PITCH; /* floats */
    static constexpr int BYTES = 4 * (Q + 2 * TILE + BM * WEIGHTS);
    static_assert(D % 64 == 0 && BN % 16 == 0 && BN <= ATTENTION_KEYS, "");
};

template <typename S> struct tiled_rows { float m[S::ROWS], sum[S::ROWS]; };

/* Scores to weights, which go to `weights`; O is multiplied by what its rows' largest score has grown. */
template <typename S>
__device__ __forceinline__ void softmax(float (&s)[S::ROWS][S::KEYS], tiled_rows<S> &r,
                                        float (&o)[S::ROWS][S::GROUPS * 4], float c, float *weights, int x) {
#pragma unroll
    for (int i = 0; i < S::ROWS; i++) {
        float top = s[i][0];
#pragma unroll
        for (int j = 1; j < S::KEYS; j++) top = fmaxf(top, s[i][j]);
#pragma unroll
        for (int d = 8; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
        float more = fmaxf(r.m[i], top), scale = 1, minus = more == -INFINITY ? 0 : -__fmul_rn(more, c);
        if (more > r.m[i]) {
            scale = attention_factor(r.m[i], more, c), r.m[i] = more;
#pragma unroll
            for (int e = 0; e < S::GROUPS * 4; e++) o[i][e] *= scale;
        }
        float part = 0;
#pragma unroll
        for (int j = 0; j < S::KEYS; j++) {
            float w = attention_exp2(fmaf(s[i][j], c, minus));
            part += w, weights[i * S::WEIGHTS + x + 16 * j] = w;
        }
        r.sum[i] = r.sum[i] * scale + part;
    }
}

/* A row's sums of a part to O, where those of earlier parts are; `then` points to the largest score that these had. The
 * whole warp calls it, with `to` NULL for rows that do not exist. */
template <typename T, typename S>
__device__ __forceinline__ void add_part(const attention_job &x, T *to, float (&o)[S::GROUPS * 4], float m, float *then,
                                         int column, bool first) {
    float scale = first ? 0 : attention_factor(*then, m, x.c);
#pragma unroll
    for (int e = 0; e < S::GROUPS * 4; e++) {
        int at = e / 4 * 64 + 4 * column + e % 4;
        if (to && at < x.dim) to[at] = T(first ? o[e] : (float)to[at] * scale + o[e]);
        o[e] = 0;
    }
    __syncwarp(); // all have read it
    *then = m;
}

template <typename T, typename S>
static __global__ void __launch_bounds__(S::THREADS, S::CTAS)
    tiled_forward(const __grid_constant__ attention_job x, bool wide) {
    extern __shared__ __align__(16) float shared[];
    __shared__ attention_place place;
    float *q = shared, *k = q + S::Q, *v = k + S::TILE, *weights = v + S::TILE;
    int thread = threadIdx.x, column = thread % 16, row = thread / 16 * S::ROWS, count;
    auto bring = [&](const attention_place &p, int step, bool of_values) {
        attention_step t = attention_step_at(x.w, p.steps, step);
        const sat_heads &at = of_values ? x.v_at : x.k_at;
        const T *from = (const T *)(of_values ? p.values : p.keys) + t.first * at.row_stride;
        tiled_load<T, S::BN, S::D, S::THREADS>(of_values ? v : k, from, at.row_stride, t.count, x.dim, wide);
        cp_async_commit_group();
    };
    {
        attention_place p;
        p.item = attention_item_of(x.w, blockIdx.x), p.steps = attention_steps_of(x.w, p.item, p.item.head);
        int kv = p.item.head / x.w.share;
        p.keys = (const char *)((const T *)x.k + sat_heads_at(&x.k_at, p.item.batch, kv, 0));
        p.values = (const char *)((const T *)x.v + sat_heads_at(&x.v_at, p.item.batch, kv, 0));
        count = p.steps.count;
        const T *from = (const T *)x.q + sat_heads_at(&x.q_at, p.item.batch, p.item.head, p.item.t.first);
        tiled_load<T, S::BM, S::D, S::THREADS>(q, from, x.q_at.row_stride, p.item.t.end - p.item.t.first, x.dim, wide);
        if (thread == 0) place = p;
        if (count > 0) bring(p, 0, false);
        cp_async_wait_group<0>();
        __syncthreads();
    }
    if (x.negative)
        for (int at = thread; at < S::Q; at += S::THREADS) q[at] = -q[at];
    float o[S::ROWS][S::GROUPS * 4] = {};
    tiled_rows<S> r;
#pragma unroll
    for (int i = 0; i < S::ROWS; i++) r.m[i] = -INFINITY, r.sum[i] = 0;
#pragma unroll 1
    for (int step = 0; step < count; step++) {
        cp_async_wait_group<0>();
        __syncthreads(); // keys are there, and nobody reads the values before any more
        bring(place, step, true);
        float s[S::ROWS][S::KEYS];
        tiled_scores<S>(s, q + row * S::PITCH, k, column);
        attention_step t = attention_step_at(x.w, place.steps, step);
        if (t.edge) {
            const attention_tile &tile = place.item.t;
#pragma unroll
            for (int i = 0; i < S::ROWS; i++) {
                uint64_t keep =
                    attention_keep(x.w, min(tile.first + row + i, tile.end - 1), tile.first, tile.diagonal, t.first,
                                   t.count, tile.begin, tile.stop, (int64_t)(place.steps.list + step) * x.w.words) >>
                    column;
#pragma unroll
                for (int j = 0; j < S::KEYS; j++)
                    if (!(keep >> (16 * j) & 1)) s[i][j] = -INFINITY;
            }
        }
        softmax<S>(s, r, o, x.c, weights + row * S::WEIGHTS, column);
        cp_async_wait_group<0>();
        __syncthreads(); // values are there, weights too, and nobody reads the keys any more
        if (step + 1 < count) bring(place, step + 1, false);
        tiled_values<S>(o, weights + row * S::WEIGHTS, v, column);
        if (sizeof(T) == 4 && (step + 1) % S::PART == 0 && step + 1 < count)
#pragma unroll
            for (int i = 0; i < S::ROWS; i++) {
                const attention_item &item = place.item;
                int query = item.t.first + row + i;
                T *to = (T *)x.o + sat_heads_at(&x.o_at, item.batch, item.head, query);
                add_part<T, S>(x, query < item.t.end ? to : NULL, o[i], r.m[i],
                               weights + (row + i) * S::WEIGHTS + S::BN, column, step + 1 == S::PART);
            }
    }
    const attention_item &item = place.item;
    const bool parts = sizeof(T) == 4 && count > S::PART;
#pragma unroll
    for (int i = 0; i < S::ROWS; i++) {
        float sum = r.sum[i];
#pragma unroll
        for (int d = 8; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
        int query = item.t.first + row + i;
        if (query >= item.t.end) continue;
        if (x.lse && column == 0)
            x.lse[((int64_t)item.batch * x.w.heads + item.head) * x.m + query] =
                sum > 0 ? (__fmul_rn(r.m[i], x.c) + log2f(sum)) * 0.69314718056f : -INFINITY;
        float factor = sum > 0 ? 1 / sum : sum == 0 ? 0 : sum; // NaN stays
        float before = parts ? attention_factor(weights[(row + i) * S::WEIGHTS + S::BN], r.m[i], x.c) : 0;
        T *to = (T *)x.o + sat_heads_at(&x.o_at, item.batch, item.head, query);
#pragma unroll
        for (int e = 0; e < S::GROUPS * 4; e++) {
            int at = e / 4 * 64 + 4 * column + e % 4;
            if (at < x.dim) to[at] = T((parts ? (float)to[at] * before + o[i][e] : o[i][e]) * factor);
        }
    }
}

/* ---- the host's side ---- */

struct kernel {
    int tile, dim, bm, bn, threads, ctas, bytes;
    void (*forward[3])(attention_job, bool); // f32, f16, bf16
};

template <typename S> static constexpr kernel kernel_of(int tile) {
    return {tile,       S::D,
            S::BM,      S::BN,
            S::THREADS, S::CTAS,
            S::BYTES,   {tiled_forward<float, S>, tiled_forward<__half, S>, tiled_forward<__nv_bfloat16, S>}};
}

/* D, BM, BN, CTAs a multiprocessor; of each tile the head sizes in rising order */
static const kernel kernels[] = {
    kernel_of<tiled_shape<64, 128, 64, 1>>(128), kernel_of<tiled_shape<128, 128, 64, 1>>(128),
    kernel_of<tiled_shape<64, 64, 64, 3>>(64),   kernel_of<tiled_shape<128, 64, 32, 2>>(64),
    kernel_of<tiled_shape<256, 64, 32, 1>>(64),
};

static const kernel *kernel_for(const sat_variant *v, const sat_problem *p) {
    for (const kernel &k : kernels)
        if (k.tile == v->instance.tile_m && p->attention.dim <= k.dim) return &k;
    return NULL;
}

static attention_shape shape_of(const kernel *k) { return {k->bm, k->bn, false}; }

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const kernel *k = kernel_for(v, p);
    return k && p->a_dtype != SAT_F64 && k->bytes <= d->shared_bytes && attention_walks(p, a, shape_of(k));
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const kernel *k = kernel_for(v, p);
    double pairs = attention_visited(p, a, shape_of(k)), ctas = (double)d->threads * k->ctas;
    double tiles = ceil((double)p->m / k->bm) * (double)(p->batch * p->attention.heads);
    double rate = d->flop_rate[SAT_F32] * (k->bn == 64 ? 0.5 : 0.35);
    double waves = fmax(tiles / ctas, 1e-3), idle = waves < 4 ? ceil(waves) / waves : 1;
    if (waves < 1) idle = fmax(1, idle / k->ctas);
    double busy = 4 * pairs * k->dim / rate * idle * (p->a_dtype == SAT_F32 ? 1 : 1.2);
    return fmax(busy, sat_attention_bytes(p, a) / d->memory_rate) + 6e-6;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)d;
    return (size_t)attention_walk_bytes(p, a, shape_of(kernel_for(v, p)));
}

static sat_status prepare(const sat_prepare *q, void **state) {
    const kernel *k = kernel_for(q->variant, q->problem);
    return attention_prepare(q, (const void *)k->forward[tiled_type(q->problem->a_dtype)], k->bytes, shape_of(k),
                             state);
}

static bool wide(const sat_problem *p) { // f32 in steps of 16 bytes
    const sat_attention *t = &p->attention;
    return p->a_align >= 16 && attention_in_steps(&t->q) && attention_in_steps(&t->k) && attention_in_steps(&t->v);
}

static sat_status launch(const sat_launch *l) {
    const kernel *k = kernel_for(l->variant, l->problem);
    attention_job x = {*(const attention_walk *)l->state};
    unsigned items = attention_items(&x.w);
    if (items == 0) return SAT_OK;
    attention_job_fill(&x, l);
    k->forward[tiled_type(l->problem->a_dtype)]<<<items, k->threads, k->bytes, (cudaStream_t)l->stream>>>(
        x, wide(l->problem));
    return sat_launched(l);
}

SAT_FAMILY(cuda_attention_tiled) = {
    .revision = "2",
    .op = SAT_ATTENTION,
    .backend = SAT_CUDA,
    .flags = SAT_V_BATCHED,
    .about = "online softmax in tiles on f32 units; any alignment, skips absent blocks",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = attention_release,
};
