// cuda_attention_tiled: fused attention in tiles without tensor cores, dense and block-sparse. For f32, and for 16-bit
// operands whose rows do not begin on 16 bytes. Any head size up to 256, any strides; with OPTIONS values of another
// size, soft caps and sinks.
//
// A thread has 8 queries by BN/16 keys of the scores, then 8 queries by D/16 columns of O. Weights pass through the
// half warp's own rows of shared memory in between. A long f32 sum over keys is made of parts (SAT_SUM_PART): the parts
// are added up in O, relative to the row maximum at the time, which is kept beside the row's weights.

#include "kernels/cuda/attention/attention_tiled.cuh"

// ---- shared memory: Q, a tile of K, a tile of V, weights ----

// Head sizes up to D. A half warp has 8 rows. Sizes in floats, but for BYTES.
template <int D_, int BM_, int BN_, int CTAS_> struct tile_shape {
    static constexpr int D = D_, BM = BM_, BN = BN_, CTAS = CTAS_, THREADS = BM * 2, ROWS = 8;
    static constexpr int KEYS = BN / 16, VECTORS = D / 64; // of a thread
    static constexpr int PITCH = D + 4, WEIGHTS = BN + 4;
    static constexpr int PART_STEPS = SAT_SUM_PART / BN; // steps of a part of a long sum
    static constexpr int Q = BM * PITCH, TILE = BN * PITCH;
    static constexpr int BYTES = 4 * (Q + 2 * TILE + BM * WEIGHTS);
    static_assert(D % 64 == 0 && BN % 16 == 0 && BN <= ATTENTION_WORD_KEYS, "");
};

// ---- softmax ----

// A thread's rows: their maximum, and this thread's part of the sum of weights.
template <typename S> struct row_state { float m[S::ROWS], sum[S::ROWS]; };

// One step of the online softmax: scores become weights, which go to shared memory. O is rescaled where a row's maximum
// has grown.
template <typename S>
__device__ __forceinline__ void softmax(float (&s)[S::ROWS][S::KEYS], row_state<S> &r,
                                        float (&o)[S::ROWS][S::VECTORS * 4], float c, float *weights, int x) {
#pragma unroll
    for (int i = 0; i < S::ROWS; i++) {
        float top = s[i][0];
#pragma unroll
        for (int j = 1; j < S::KEYS; j++) top = fmaxf(top, s[i][j]);
#pragma unroll
        for (int d = 8; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
        float grown = fmaxf(r.m[i], top), scale = 1, minus = grown == -INFINITY ? 0 : -__fmul_rn(grown, c);
        if (grown > r.m[i]) {
            scale = attention_rescale(r.m[i], grown, c), r.m[i] = grown;
#pragma unroll
            for (int e = 0; e < S::VECTORS * 4; e++) o[i][e] *= scale;
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

// ---- epilogue ----

// Adds a row's part of a long sum to O, where those before it are, and starts the next part from zero. `part_m` is the
// row maximum that O is relative to. The whole warp calls it, with `to` NULL for rows that do not exist.
template <typename T, typename S, bool OPTIONS>
__device__ __forceinline__ void add_part(const attention_args &x, T *to, float (&o)[S::VECTORS * 4], float m,
                                         float *part_m, int column, bool first) {
    float scale = first ? 0 : attention_rescale(*part_m, m, x.scale_log2);
#pragma unroll
    for (int e = 0; e < S::VECTORS * 4; e++) {
        int at = e / 4 * 64 + 4 * column + e % 4;
        if (to && at < (OPTIONS ? x.options.value_dim : x.dim)) to[at] = T(first ? o[e] : (float)to[at] * scale + o[e]);
        o[e] = 0;
    }
    __syncwarp(); // all have read part_m
    *part_m = m;
}

// LSE and O = o/sum, with the parts before added.
template <typename T, typename S, bool OPTIONS>
__device__ __forceinline__ void epilogue(const attention_args &x, const attention_work &work,
                                         const float (&o)[S::ROWS][S::VECTORS * 4], const row_state<S> &r,
                                         const float *weights, int row, int column, bool parts) {
#pragma unroll
    for (int i = 0; i < S::ROWS; i++) {
        float sum = r.sum[i];
#pragma unroll
        for (int d = 8; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
        int query = work.t.first + row + i;
        if (query >= work.t.end) continue;
        attention_end_row<OPTIONS>(x, work, work.head, x.schedule.heads, query, r.m[i], sum, column == 0);
        float before = parts ? attention_rescale(weights[(row + i) * S::WEIGHTS + S::BN], r.m[i], x.scale_log2) : 0;
        T *to = (T *)x.o + sat_heads_at(&x.o_at, work.batch, work.head, query);
#pragma unroll
        for (int e = 0; e < S::VECTORS * 4; e++) {
            int at = e / 4 * 64 + 4 * column + e % 4;
            if (at < (OPTIONS ? x.options.value_dim : x.dim))
                to[at] = T((parts ? (float)to[at] * before + o[i][e] : o[i][e]) * sum);
        }
    }
}

// ---- kernel ----

template <typename T, typename S, bool OPTIONS>
static __global__ void __launch_bounds__(S::THREADS, S::CTAS)
    attention_forward(const __grid_constant__ attention_args x, bool aligned) {
    extern __shared__ __align__(16) float shared[];
    __shared__ attention_cta cta;
    float *q = shared, *k = q + S::Q, *v = k + S::TILE, *weights = v + S::TILE;
    int thread = threadIdx.x, column = thread % 16, row = thread / 16 * S::ROWS, count;
    auto load = [&](const attention_cta &c, int step, bool of_values) {
        attention_step t = attention_step_at(x.schedule, c.steps, step);
        const sat_heads &at = of_values ? x.v_at : x.k_at;
        const T *from = (const T *)(of_values ? c.values : c.keys) + t.first * at.row_stride;
        tiled_load<T, S::BN, S::D, S::THREADS, OPTIONS>(of_values ? v : k, from, at.row_stride, t.count,
                                                        OPTIONS && of_values ? x.options.value_dim : x.dim, aligned);
        cp_async_commit_group();
    };
    {
        attention_cta c;
        c.work = attention_work_at(x.schedule, blockIdx.x);
        c.steps = attention_steps_of(x.schedule, c.work, c.work.head);
        int kv_head = c.work.head / x.schedule.heads_per_kv;
        c.keys = (const char *)((const T *)x.k + sat_heads_at(&x.k_at, c.work.batch, kv_head, 0));
        c.values = (const char *)((const T *)x.v + sat_heads_at(&x.v_at, c.work.batch, kv_head, 0));
        count = c.steps.count;
        const T *from = (const T *)x.q + sat_heads_at(&x.q_at, c.work.batch, c.work.head, c.work.t.first);
        tiled_load<T, S::BM, S::D, S::THREADS, OPTIONS>(q, from, x.q_at.row_stride, c.work.t.end - c.work.t.first,
                                                        x.dim, aligned);
        if (thread == 0) cta = c;
        if (count > 0) load(c, 0, false);
        cp_async_wait_group<0>();
        __syncthreads();
    }
    if (x.negative) // the softmax takes a positive scale
        for (int at = thread; at < S::Q; at += S::THREADS) q[at] = -q[at];
    float o[S::ROWS][S::VECTORS * 4] = {};
    row_state<S> r;
#pragma unroll
    for (int i = 0; i < S::ROWS; i++) r.m[i] = -INFINITY, r.sum[i] = 0;
#pragma unroll 1
    for (int step = 0; step < count; step++) {
        cp_async_wait_group<0>();
        __syncthreads(); // K is there, and every warp has read the V before
        load(cta, step, true);
        float s[S::ROWS][S::KEYS];
        tiled_product<S>(s, q + row * S::PITCH, k, column);
        if (OPTIONS && x.options.cap != 0)
#pragma unroll
            for (int i = 0; i < S::ROWS; i++)
#pragma unroll
                for (int j = 0; j < S::KEYS; j++) s[i][j] = tanhf(s[i][j] * x.options.cap);
        attention_step t = attention_step_at(x.schedule, cta.steps, step);
        if (t.edge) {
            const attention_tile &own = cta.work.t;
#pragma unroll
            for (int i = 0; i < S::ROWS; i++) {
                uint64_t keep = attention_kept_keys(x.schedule, min(own.first + row + i, own.end - 1), own.first,
                                                    own.diagonal, t.first, t.count, own.other_begin, own.other_end,
                                                    (int64_t)(cta.steps.list + step) * x.schedule.words) >>
                                column;
#pragma unroll
                for (int j = 0; j < S::KEYS; j++)
                    if (!(keep >> (16 * j) & 1)) s[i][j] = -INFINITY;
            }
        }
        softmax<S>(s, r, o, x.scale_log2, weights + row * S::WEIGHTS, column);
        cp_async_wait_group<0>();
        __syncthreads(); // V and the weights are there, and every warp has read K
        if (step + 1 < count) load(cta, step + 1, false);
        tiled_accumulate<S>(o, weights + row * S::WEIGHTS, v, column);
        if (sizeof(T) == 4 && (step + 1) % S::PART_STEPS == 0 && step + 1 < count)
#pragma unroll
            for (int i = 0; i < S::ROWS; i++) {
                const attention_work &work = cta.work;
                int query = work.t.first + row + i;
                T *to = (T *)x.o + sat_heads_at(&x.o_at, work.batch, work.head, query);
                add_part<T, S, OPTIONS>(x, query < work.t.end ? to : NULL, o[i], r.m[i],
                                        weights + (row + i) * S::WEIGHTS + S::BN, column, step + 1 == S::PART_STEPS);
            }
    }
    epilogue<T, S, OPTIONS>(x, cta.work, o, r, weights, row, column, sizeof(T) == 4 && count > S::PART_STEPS);
}

// ---- instances ----

struct instance {
    int tile_m, max_dim; // tile_m of a variant; head sizes up to max_dim
    int bm, bn, threads, ctas, bytes;
    void (*plain[3])(attention_args, bool), (*with_options[3])(attention_args, bool); // f32, f16, bf16
};

template <typename S> static constexpr instance instance_of(int tile_m) {
    return {tile_m,
            S::D,
            S::BM,
            S::BN,
            S::THREADS,
            S::CTAS,
            S::BYTES,
            {attention_forward<float, S, false>, attention_forward<__half, S, false>,
             attention_forward<__nv_bfloat16, S, false>},
            {attention_forward<float, S, true>, attention_forward<__half, S, true>,
             attention_forward<__nv_bfloat16, S, true>}};
}

// D, BM, BN, CTAs a multiprocessor; of each tile the head sizes in rising order.
static const instance instances[] = {
    instance_of<tile_shape<64, 128, 64, 1>>(128), instance_of<tile_shape<128, 128, 64, 1>>(128),
    instance_of<tile_shape<64, 64, 64, 3>>(64),   instance_of<tile_shape<128, 64, 32, 2>>(64),
    instance_of<tile_shape<256, 64, 32, 1>>(64),
};

static const instance *instance_for(const sat_variant *v, const sat_problem *p) {
    for (const instance &k : instances)
        if (k.tile_m == v->instance.tile_m && attention_widest(p) <= k.max_dim) return &k;
    return NULL;
}

static void (*kernel_for(const instance *k, const sat_problem *p))(attention_args, bool) {
    return (sat_attention_is_plain(p) ? k->plain : k->with_options)[tiled_type(p->a_dtype)];
}

static attention_tiling tiling_of(const instance *k) { return {k->bm, k->bn, false}; }

// ---- host ----

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const instance *k = instance_for(v, p);
    return k && tiled_type(p->a_dtype) >= 0 && k->bytes <= d->shared_bytes &&
           attention_schedule_fits(p, a, tiling_of(k));
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const instance *k = instance_for(v, p);
    double pairs = attention_visited_pairs(p, a, tiling_of(k)), ctas = (double)d->multiprocessors * k->ctas;
    double tiles = ceil((double)p->m / k->bm) * (double)(p->batch * p->attention.heads);
    double rate = d->flop_rate[SAT_F32] * (k->bn == 64 ? 0.5 : 0.35);
    double waves = fmax(tiles / ctas, 1e-3), idle = waves < 4 ? ceil(waves) / waves : 1;
    if (waves < 1) idle = fmax(1, idle / k->ctas);
    double busy = 4 * pairs * k->max_dim / rate * idle * (p->a_dtype == SAT_F32 ? 1 : 1.2);
    return fmax(busy, sat_attention_bytes(p, a) / d->memory_rate) + 6e-6;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)d;
    return (size_t)attention_schedule_bytes(p, a, tiling_of(instance_for(v, p)));
}

static sat_status prepare(const sat_prepare *q, void **state) {
    const instance *k = instance_for(q->variant, q->problem);
    return attention_prepare(q, (const void *)kernel_for(k, q->problem), k->bytes, tiling_of(k), state);
}

static bool rows_aligned(const sat_problem *p) {
    const sat_attention *t = &p->attention;
    return p->a_align >= 16 && attention_rows_aligned(&t->q) && attention_rows_aligned(&t->k) &&
           attention_rows_aligned(&t->v);
}

static sat_status launch(const sat_launch *l) {
    const instance *k = instance_for(l->variant, l->problem);
    attention_args x = {*(const attention_schedule *)l->state};
    unsigned ctas = attention_work_count(&x.schedule);
    if (ctas == 0) return SAT_OK;
    attention_fill_args(&x, l);
    kernel_for(k, l->problem)<<<ctas, k->threads, k->bytes, (cudaStream_t)l->stream>>>(x, rows_aligned(l->problem));
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
