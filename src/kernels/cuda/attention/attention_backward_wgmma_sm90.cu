// cuda_attention_backward_wgmma: the gradients by warpgroup products on Hopper (attention_backward_wgmma.cuh), f16 and
// bf16, head sizes up to 128. First dO*O of each query, then dK and dV by tiles of keys, then dQ by tiles of queries:
// deterministic, dense and block-sparse, any mask. Needs rows that begin on 16 bytes.

#include "kernels/cuda/attention/attention_backward_wgmma.cuh"
#include "kernels/cuda/attention/attention_map.cuh"

typedef sat_status (*start_fn)(const sat_launch *l, const sat_back_job &x, const sat_back_maps &m);

struct kernel {
    sat_dtype dtype;
    int dim, above; // head sizes up to the one, and above the other
    int keys;       // of a step of dQ's
    int bytes;
    double speed; // of a full device, as a part of the rate of its matrix units
    start_fn by_query, by_key;
};

enum { STEP_QUERIES = 64 }; // of a step of dK's and dV's

template <auto KERNEL, typename S>
static sat_status start(const sat_launch *l, const sat_back_job &x, const sat_back_maps &m) {
    unsigned grid = (unsigned)sat_min(x.items, l->device->threads);
    return sat_start<KERNEL>(l, grid, S::THREADS, S::BYTES, x, m);
}

template <typename T, typename Q, typename K> static constexpr kernel kernel_of(double speed) {
    constexpr int above = Q::D == 64 ? 0 : Q::D == 96 ? 64 : 96, bytes = Q::BYTES > K::BYTES ? Q::BYTES : K::BYTES;
    return {T::dtype, Q::D, above, Q::BN, bytes, speed, start<sat_back<T, Q>, Q>, start<sat_back<T, K>, K>};
}

/* Head size, keys of a step of dQ, turns, stages of K and of V; the speed on an H200. */
template <typename T, int D, int KEYS, bool ORDER, int FIRST, int SECOND>
static constexpr kernel kernel_for_size(double speed) {
    return kernel_of<T, sat_back_shape<false, D, KEYS, FIRST, SECOND, ORDER>,
                     sat_back_shape<true, D, STEP_QUERIES, 4, 4, ORDER>>(speed);
}

#define KERNELS(MATH)                                                                                                  \
    kernel_for_size<MATH, 64, 128, true, 3, 3>(0.4), kernel_for_size<MATH, 96, 128, true, 3, 2>(0.5),                  \
        kernel_for_size<MATH, 128, 128, true, 3, 2>(0.66), kernel_for_size<MATH, 64, 64, false, 4, 4>(0.38),           \
        kernel_for_size<MATH, 96, 64, false, 4, 4>(0.48), kernel_for_size<MATH, 128, 64, false, 4, 4>(0.6)

static const kernel kernels[] = {KERNELS(sat_f16_math), KERNELS(sat_bf16_math)};

static const kernel *kernel_for(const sat_variant *v, const sat_problem *p) {
    for (const kernel &k : kernels)
        if (k.dtype == v->instance.dtype && k.keys == v->instance.tile_n && p->attention.dim <= k.dim &&
            p->attention.dim > k.above)
            return &k;
    return NULL;
}

static attention_shape by_query(const kernel *k) { return {SAT_BACK_ROWS, k->keys, false}; }
static attention_shape by_key() { return {STEP_QUERIES, SAT_BACK_ROWS, true}; }

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const sat_attention *t = &p->attention;
    const kernel *k = kernel_for(v, p);
    if (d->capability != 90 || !k || p->a_dtype != k->dtype || p->a_align % 16 || p->c_align % 16) return false;
    if (p->m <= 0 || p->n <= 0 || p->batch <= 0 || k->bytes > d->shared_bytes) return false;
    const sat_heads *const by_queries[] = {&t->q, &t->o, &t->do_, &t->dq}, *const by_keys[] = {&t->k, &t->v, &t->dk,
                                                                                               &t->dv};
    for (int i = 0; i < 4; i++)
        if (!attention_map_fits(p, *by_queries[i], t->heads, p->m) ||
            !attention_map_fits(p, *by_keys[i], t->kv_heads, p->n))
            return false;
    return attention_walks(p, a, by_query(k)) && attention_walks(p, a, by_key());
}

/* Both kernels one after the other; items that the walk visits share the multiprocessors out. */
static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const kernel *k = kernel_for(v, p);
    double rate = d->flop_rate[p->a_dtype] * k->speed;
    double flops = (6 * attention_visited(p, a, by_query(k)) + 8 * attention_visited(p, a, by_key())) * k->dim;
    double tiles = ceil((double)p->n / (double)SAT_BACK_ROWS) * (double)(p->batch * p->attention.kv_heads);
    double waves = fmax(1e-3, tiles / (double)d->threads), idle = waves < 4 ? ceil(waves) / waves : 1;
    return fmax(flops / rate * idle, 2 * sat_attention_bytes(p, a) / d->memory_rate) + 1.2e-5;
}

/* ---- the plan ---- */

enum { COUNTER_BYTES = 256 };

struct state {
    attention_frame frame;
    unsigned *counter; // two of each kernel
    sat_back_maps by_query, by_key;
    const void *of[4]; // what the maps were made for
};

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)d;
    return COUNTER_BYTES + attention_frame_bytes(p, a, by_query(kernel_for(v, p)), by_key());
}

static sat_status prepare(const sat_prepare *q, void **out) {
    if (!tensormap_encoder())
        return sat_fail(SAT_DEVICE_ERROR, "%s: this driver makes no tensor maps", q->variant->name);
    state *st = (state *)calloc(1, sizeof *st);
    if (!st) return sat_fail(SAT_OUT_OF_MEMORY, "%s: state", q->variant->name);
    st->counter = (unsigned *)q->workspace;
    cudaError_t e = cudaMemsetAsync(st->counter, 0, COUNTER_BYTES, (cudaStream_t)q->stream);
    sat_status status = attention_frame_make(q, by_query(kernel_for(q->variant, q->problem)), by_key(),
                                             (char *)q->workspace + COUNTER_BYTES, &st->frame);
    if (e == cudaSuccess) e = cudaStreamSynchronize((cudaStream_t)q->stream);
    if (status == SAT_OK && e != cudaSuccess)
        status = sat_fail(SAT_DEVICE_ERROR, "%s: %s", q->variant->name, cudaGetErrorString(e));
    if (status == SAT_OK) *out = st;
    else free(st);
    return status;
}

/* ---- a launch ---- */

/* lse and delta, (query, which, head) without gaps between heads. */
static bool map_numbers(const sat_problem *p, const attention_frame *f, CUtensorMap *map) {
    cuuint64_t m = (cuuint64_t)p->m, heads = (cuuint64_t)(p->batch * p->attention.heads);
    sat_tensor_box t = {SAT_F32,
                        f->lse,
                        3,
                        {m, 2, heads},
                        {(cuuint64_t)f->apart * 2, (cuuint64_t)f->apart * 4},
                        {STEP_QUERIES + 4, 2, 1}};
    return tensormap_encode(map, t);
}

static sat_status make_maps(const sat_launch *l, int keys, state *st) {
    const sat_problem *p = l->problem;
    const sat_attention *t = &p->attention;
    void *const of[] = {l->operands[0], l->operands[5], l->operands[1], l->operands[2]}; // Q, dO, K, V
    const sat_heads *const at[] = {&t->q, &t->do_, &t->k, &t->v};
    if (tensormaps_current(st->of, of)) return SAT_OK;
    bool ok = map_numbers(p, &st->frame, &st->by_key.numbers);
    for (int i = 0; i < 2 && ok; i++)
        ok = attention_map(p, of[i], *at[i], t->heads, p->m, 64, &st->by_query.own[i]) &&
             attention_map(p, of[i], *at[i], t->heads, p->m, STEP_QUERIES, &st->by_key.other[i]) &&
             attention_map(p, of[2 + i], *at[2 + i], t->kv_heads, p->n, 64, &st->by_key.own[i]) &&
             attention_map(p, of[2 + i], *at[2 + i], t->kv_heads, p->n, keys, &st->by_query.other[i]);
    return ok ? SAT_OK : tensormap_failed(l, st->of);
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const sat_attention *t = &p->attention;
    const kernel *k = kernel_for(l->variant, p);
    state *st = (state *)l->state;
    const attention_frame *f = &st->frame;
    sat_back_job x = {};
    x.lse = f->lse, x.delta = f->delta, x.apart = f->apart, x.dim = (int)t->dim;
    x.c = (float)(p->alpha * 1.44269504088896340736), x.alpha = (float)p->alpha;
    sat_status status = make_maps(l, k->keys, st);
    if (status == SAT_OK) status = attention_find_delta(l, f);
    if (status != SAT_OK) return status;
    x.w = f->by_key, x.items = attention_items(&x.w), x.counter = st->counter;
    x.out[0] = l->operands[7], x.out[1] = l->operands[8], x.out_at[0] = t->dk, x.out_at[1] = t->dv;
    status = k->by_key(l, x, st->by_key);
    if (status != SAT_OK) return status;
    x.w = f->by_query, x.items = attention_items(&x.w), x.counter = st->counter + 2;
    x.out[0] = l->operands[6], x.out_at[0] = t->dq;
    return k->by_query(l, x, st->by_query);
}

SAT_FAMILY(cuda_attention_backward_wgmma) = {
    .revision = "1",
    .op = SAT_ATTENTION_BACKWARD,
    .backend = SAT_CUDA,
    .flags = SAT_V_BATCHED,
    .about = "Hopper: warpgroup products, dK and dV by keys, then dQ by queries; tiles by the copy engine",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = attention_release,
};
