// cuda_attention_backward_mma: the gradients on tensor cores by mma.sync, f16 and bf16 from sm_80 on; the kernels are
// in attention_backward_mma.cuh. First dO*O of each query, then dQ by tiles of queries, then dK and dV by tiles of
// keys: deterministic, dense and block-sparse. Head sizes up to 256, padded as forward.

#include "kernels/cuda/attention/attention_backward_mma.cuh"

struct pass {
    int bm, bn, threads, ctas, bytes, parts;
    void (*run)(attention_back_job);
};

struct kernel {
    sat_dtype dtype;
    int dim;
    pass queries, keys;
};

template <typename MATH, typename S> static constexpr pass pass_of() {
    return {S::BM, S::BN, S::THREADS, S::CTAS, S::BYTES, S::PARTS, attention_backward<MATH, S>};
}

/* D, N, BM, BN, warps, CTAs a multiprocessor */
#define KERNELS(MATH)                                                                                                  \
    {MATH::dtype, 64, pass_of<MATH, attention_back_shape<false, 64, 64, 128, 32, 4, 2>>(),                             \
     pass_of<MATH, attention_back_shape<true, 64, 64, 64, 64, 4, 2>>()},                                               \
        {MATH::dtype, 96, pass_of<MATH, attention_back_shape<false, 96, 96, 128, 32, 4, 2>>(),                         \
         pass_of<MATH, attention_back_shape<true, 96, 96, 64, 64, 4, 2>>()},                                           \
        {MATH::dtype, 128, pass_of<MATH, attention_back_shape<false, 128, 128, 128, 32, 4, 2>>(),                      \
         pass_of<MATH, attention_back_shape<true, 128, 128, 64, 64, 4, 2>>()},                                         \
    {                                                                                                                  \
        MATH::dtype, 256, pass_of<MATH, attention_back_shape<false, 256, 256, 64, 32, 4, 1>>(),                        \
            pass_of<MATH, attention_back_shape<true, 256, 128, 64, 32, 4, 1>>()                                        \
    }

static const kernel kernels[] = {KERNELS(sat_f16_math), KERNELS(sat_bf16_math)};

static const kernel *kernel_for(const sat_variant *v, const sat_problem *p) {
    for (const kernel &k : kernels)
        if (k.dtype == v->instance.dtype && p->attention.dim <= k.dim) return &k;
    return NULL;
}

static attention_shape by_query(const kernel *k) { return {k->queries.bm, k->queries.bn, false}; }
static attention_shape by_key(const kernel *k) { return {k->keys.bn, k->keys.bm, true}; }

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const sat_attention *t = &p->attention;
    const kernel *k = kernel_for(v, p);
    if (!k || p->a_dtype != k->dtype || p->a_align < 16 || p->c_align < 16) return false;
    const sat_heads *const all[] = {&t->q, &t->k, &t->v, &t->o, &t->do_, &t->dq, &t->dk, &t->dv};
    for (const sat_heads *s : all)
        if (!attention_in_steps(s)) return false;
    if (k->queries.bytes > d->shared_bytes || k->keys.bytes > d->shared_bytes) return false;
    return attention_walks(p, a, by_query(k)) && attention_walks(p, a, by_key(k));
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const kernel *k = kernel_for(v, p);
    double rate = d->flop_rate[p->a_dtype] * (d->capability >= 90 ? 0.33 : 0.6) / k->keys.parts;
    double flops = (6 * attention_visited(p, a, by_query(k)) + 8 * attention_visited(p, a, by_key(k))) * k->dim;
    double tiles = ceil((double)p->n / k->keys.bm) * (double)(p->batch * p->attention.kv_heads);
    double waves = fmax(1e-3, tiles / (double)(d->threads * k->keys.ctas)), idle = waves < 4 ? ceil(waves) / waves : 1;
    if (waves < 1) idle = fmax(1, idle / k->keys.ctas);
    return fmax(flops / rate * idle, 2 * sat_attention_bytes(p, a) / d->memory_rate) + 1.2e-5;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)d;
    const kernel *k = kernel_for(v, p);
    return attention_frame_bytes(p, a, by_query(k), by_key(k));
}

static sat_status prepare(const sat_prepare *q, void **out) {
    const sat_problem *p = q->problem;
    const kernel *k = kernel_for(q->variant, p);
    sat_status status = attention_allow(q, (const void *)k->queries.run, k->queries.bytes);
    if (status == SAT_OK) status = attention_allow(q, (const void *)k->keys.run, k->keys.bytes);
    if (status != SAT_OK) return status;
    attention_frame *f = (attention_frame *)calloc(1, sizeof *f);
    if (!f) return sat_fail(SAT_OUT_OF_MEMORY, "%s: state", q->variant->name);
    status = attention_frame_make(q, by_query(k), by_key(k), (char *)q->workspace, f);
    if (status == SAT_OK) *out = f;
    else free(f);
    return status;
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const sat_attention *t = &p->attention;
    const kernel *k = kernel_for(l->variant, p);
    const attention_frame *s = (const attention_frame *)l->state;
    cudaStream_t stream = (cudaStream_t)l->stream;
    unsigned queries = attention_items(&s->by_query), keys = attention_items(&s->by_key);
    const char *q = (const char *)l->operands[0], *key = (const char *)l->operands[1];
    const char *v = (const char *)l->operands[2], *d = (const char *)l->operands[5];
    float c = (float)(p->alpha * 1.44269504088896340736), alpha = (float)p->alpha;
    if (queries > 0) {
        sat_status status = attention_find_delta(l, s);
        if (status != SAT_OK) return status;
        attention_back_job x = {
            s->by_query,    {q, d}, {key, v}, {t->q, t->do_}, {t->k, t->v}, {(char *)l->operands[6], NULL},
            {t->dq, t->dq}, s->lse, s->delta, s->apart,       (int)t->dim,  c,
            alpha};
        k->queries.run<<<queries *(unsigned)k->queries.parts, k->queries.threads, k->queries.bytes, stream>>>(x);
    }
    if (keys > 0) {
        attention_back_job x = {s->by_key,      {key, v},       {q, d},
                                {t->k, t->v},   {t->q, t->do_}, {(char *)l->operands[7], (char *)l->operands[8]},
                                {t->dk, t->dv}, s->lse,         s->delta,
                                s->apart,       (int)t->dim,    c,
                                alpha};
        k->keys.run<<<keys *(unsigned)k->keys.parts, k->keys.threads, k->keys.bytes, stream>>>(x);
    }
    return sat_launched(l);
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
