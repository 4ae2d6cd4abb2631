// cuda_attention_mma: tensor cores by mma.sync and asynchronous copies, for f16 and bf16 from sm_80 on; the kernel is
// in attention_mma.cuh. Dense and block-sparse by the same kernel. Head sizes up to 256; those that are not 64, 96, 128
// or 256 are padded up to the next in shared memory. Needs rows that begin on 16 bytes.

#include "kernels/cuda/attention/attention_mma.cuh"

struct kernel {
    sat_dtype dtype;
    int tile, dim; // an instance's tile_m; head sizes up to this
    int bm, bn, threads, ctas, bytes;
    void (*forward)(attention_job);
};

template <typename MATH, typename S> static constexpr kernel kernel_of(int tile) {
    return {MATH::dtype, tile, S::D, S::BM, S::BN, S::THREADS, S::CTAS, S::BYTES, attention_forward<MATH, S>};
}

/* D, BM, BN, warps, CTAs a multiprocessor; of each tile the head sizes in rising order */
#define KERNELS(MATH)                                                                                                  \
    kernel_of<MATH, attention_mma_shape<64, 128, 64, 4, 2>>(128),                                                      \
        kernel_of<MATH, attention_mma_shape<96, 128, 64, 4, 2>>(128),                                                  \
        kernel_of<MATH, attention_mma_shape<128, 128, 64, 4, 2>>(128),                                                 \
        kernel_of<MATH, attention_mma_shape<256, 128, 32, 8, 1>>(128),                                                 \
        kernel_of<MATH, attention_mma_shape<64, 64, 64, 4, 4>>(64),                                                    \
        kernel_of<MATH, attention_mma_shape<96, 64, 64, 4, 3>>(64),                                                    \
        kernel_of<MATH, attention_mma_shape<128, 64, 64, 4, 2>>(64),                                                   \
        kernel_of<MATH, attention_mma_shape<256, 64, 32, 4, 2>>(64)

static const kernel kernels[] = {KERNELS(sat_f16_math), KERNELS(sat_bf16_math)};

static const kernel *kernel_for(const sat_variant *v, const sat_problem *p) {
    for (const kernel &k : kernels)
        if (k.dtype == v->instance.dtype && k.tile == v->instance.tile_m && p->attention.dim <= k.dim) return &k;
    return NULL;
}

static attention_shape shape_of(const kernel *k) { return {k->bm, k->bn, false}; }

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const sat_attention *t = &p->attention;
    const kernel *k = kernel_for(v, p);
    if (!k || p->a_dtype != k->dtype || p->a_align < 16 || p->c_align < 16) return false;
    if (!attention_in_steps(&t->q) || !attention_in_steps(&t->k) || !attention_in_steps(&t->v) ||
        !attention_in_steps(&t->o))
        return false;
    return k->bytes <= d->shared_bytes && attention_walks(p, a, shape_of(k));
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const kernel *k = kernel_for(v, p);
    double pairs = attention_visited(p, a, shape_of(k)), ctas = (double)d->threads * k->ctas;
    double tiles = ceil((double)p->m / k->bm) * (double)(p->batch * p->attention.heads);
    double rate = d->flop_rate[p->a_dtype] * (d->capability >= 90 ? 0.4 : 0.65) * (k->bm == 128 ? 1 : 0.8);
    if (k->dim == 256) rate *= 0.75;
    double waves = fmax(tiles / ctas, 1e-3), idle = waves < 4 ? ceil(waves) / waves : 1;
    if (waves < 1) idle = fmax(1, idle / k->ctas); // alone on a multiprocessor, a CTA is about as fast as all together
    double busy = 4 * pairs * k->dim / rate * idle;
    return fmax(busy, sat_attention_bytes(p, a) / d->memory_rate) + 5e-6;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)d;
    return (size_t)attention_walk_bytes(p, a, shape_of(kernel_for(v, p)));
}

static sat_status prepare(const sat_prepare *q, void **state) {
    const kernel *k = kernel_for(q->variant, q->problem);
    return attention_prepare(q, (const void *)k->forward, k->bytes, shape_of(k), state);
}

static sat_status launch(const sat_launch *l) {
    const kernel *k = kernel_for(l->variant, l->problem);
    attention_job x = {*(const attention_walk *)l->state};
    unsigned items = attention_items(&x.w);
    if (items == 0) return SAT_OK;
    attention_job_fill(&x, l);
    k->forward<<<items, k->threads, k->bytes, (cudaStream_t)l->stream>>>(x);
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
