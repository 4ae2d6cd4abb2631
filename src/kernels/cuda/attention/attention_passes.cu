// cuda_attention_passes: attention in three passes through memory, made of other families' kernels: a sampled product
// computes the scores of stored blocks, a softmax turns them into weights, and a block-sparse product multiplies those
// by V. Every score is written twice and read three times. It is the step of the ladder before the fused kernels, and a
// check on them that shares no code with them. Any stride, block and head size, grouped heads, packed sequences; one
// mask for all heads.

#include "attention.h"
#include "variant.cuh"

#include <stdlib.h>

enum { THREADS = 128, WARPS = THREADS / 32, HEAD_ALIGN = 64 /* elements: the scores of a head begin at multiples */ };

// Families that need no workspace and keep no state. Of those that support a product, the best by estimate is used.
extern "C" const sat_family sat_family_cuda_sampled_mma, sat_family_cuda_sampled_simt, sat_family_cuda_sampled_register;
extern "C" const sat_family sat_family_cuda_matmul_mma_f16, sat_family_cuda_matmul_mma_bf16;
extern "C" const sat_family sat_family_cuda_matmul_simt, sat_family_cuda_matmul_register;

struct candidate {
    const sat_family *family;
    sat_instance instance;
};

static const candidate sampled[] = {
    {&sat_family_cuda_sampled_mma, {SAT_F16, 128, 256, 64, 0}},
    {&sat_family_cuda_sampled_mma, {SAT_F16, 64, 128, 64, 0}},
    {&sat_family_cuda_sampled_mma, {SAT_F16, 16, 256, 32, 0}},
    {&sat_family_cuda_sampled_mma, {SAT_BF16, 128, 256, 64, 0}},
    {&sat_family_cuda_sampled_mma, {SAT_BF16, 64, 128, 64, 0}},
    {&sat_family_cuda_sampled_mma, {SAT_BF16, 16, 256, 32, 0}},
    {&sat_family_cuda_sampled_simt, {SAT_F32, 128, 128, 16, 0}},
    {&sat_family_cuda_sampled_simt, {SAT_F32, 32, 128, 16, 0}},
    {&sat_family_cuda_sampled_register, {(sat_dtype)0, 64, 64, 16, 0}},
    {&sat_family_cuda_sampled_register, {(sat_dtype)0, 16, 64, 16, 0}},
};

static const candidate products[] = {
    {&sat_family_cuda_matmul_mma_f16, {SAT_F16, 128, 128, 32, 0}},
    {&sat_family_cuda_matmul_mma_f16, {SAT_F16, 64, 128, 32, 0}},
    {&sat_family_cuda_matmul_mma_f16, {SAT_F16, 64, 64, 64, 0}},
    {&sat_family_cuda_matmul_mma_f16, {SAT_F16, 32, 64, 32, 0}},
    {&sat_family_cuda_matmul_mma_f16, {SAT_F16, 16, 64, 32, 0}},
    {&sat_family_cuda_matmul_mma_bf16, {SAT_BF16, 128, 128, 32, 0}},
    {&sat_family_cuda_matmul_mma_bf16, {SAT_BF16, 64, 128, 32, 0}},
    {&sat_family_cuda_matmul_mma_bf16, {SAT_BF16, 64, 64, 64, 0}},
    {&sat_family_cuda_matmul_mma_bf16, {SAT_BF16, 32, 64, 32, 0}},
    {&sat_family_cuda_matmul_mma_bf16, {SAT_BF16, 16, 64, 32, 0}},
    {&sat_family_cuda_matmul_simt, {SAT_F32, 64, 128, 0, 0}},
    {&sat_family_cuda_matmul_simt, {SAT_F32, 32, 128, 0, 0}},
    {&sat_family_cuda_matmul_register, {(sat_dtype)0, 0, 0, 0, 0}},
};

// A product of all key heads with one query head each.
struct pass {
    sat_variant variant;
    sat_problem problem;
};

struct passes {
    pass scores, values;
};

/* ---- softmax ---- */

struct softmax_args {
    sat_mask mask;
    const float *scores;  // of each head: the stored blocks in their order
    void *weights;        // the same; of f32 in place
    float *largest, *sum; // (head, query)
    int64_t heads, head_stride;
    float softcap;
    const float *sinks; // of the first head; NULL: none
    int64_t sinks_step; // to that of the next
};

template <typename T> __device__ __forceinline__ T weight_of(float x);
template <> __device__ __forceinline__ float weight_of<float>(float x) { return x; }
template <> __device__ __forceinline__ __half weight_of<__half>(float x) { return __float2half_rn(x); }
template <> __device__ __forceinline__ __nv_bfloat16 weight_of<__nv_bfloat16>(float x) {
    return __float2bfloat16_rn(x);
}

template <bool CAP> __device__ __forceinline__ float weighed(float score, float cap) {
    return CAP ? cap * tanhf(score / cap) : score;
}

// A warp has a query, whose scores are in the stored blocks of its block row. Weights are not divided by their sum yet,
// so that they use the precision of 16 bits well. A sink is a score without a value.
template <typename T, bool CAP> static __global__ void __launch_bounds__(THREADS) softmax(softmax_args x) {
    const sat_mask &k = x.mask;
    int64_t lane = threadIdx.x % 32, step = (int64_t)gridDim.x * WARPS;
    for (int64_t at = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; at < x.heads * k.m; at += step) {
        int64_t head = at / k.m, i = at % k.m, row = i / k.block_rows, block = k.block_rows * k.block_cols;
        int64_t first = k.row_ptr[row], end = k.row_ptr[row + 1], within = i % k.block_rows * k.block_cols;
        sat_range keys = sat_keys_of(&k, i);
        float largest = -INFINITY, sum = 0, part = 0;
        for (int64_t t = first; t < end; t++) {
            int64_t key = k.col_idx[t] * k.block_cols;
            const float *from = x.scores + head * x.head_stride + t * block + within;
            for (int64_t j = lane; j < k.block_cols; j += 32)
                if (key + j >= keys.begin && key + j < keys.end)
                    largest = fmaxf(largest, weighed<CAP>(from[j], x.softcap));
        }
        for (int d = 16; d > 0; d /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, d));
        float sink = x.sinks ? x.sinks[head * x.sinks_step] : -INFINITY;
        largest = fmaxf(largest, sink);
        float base = largest == -INFINITY ? 0 : largest; // nothing kept, or nothing but -inf
        int terms = 0;                                   // of this part of the lane's sum
        for (int64_t t = first; t < end; t++) {
            int64_t key = k.col_idx[t] * k.block_cols, place = head * x.head_stride + t * block + within;
            for (int64_t j = lane; j < k.block_cols; j += 32) {
                bool keep = key + j >= keys.begin && key + j < keys.end;
                float w = keep ? expf(weighed<CAP>(x.scores[place + j], x.softcap) - base) : 0;
                ((T *)x.weights)[place + j] = weight_of<T>(w), part += w;
                if (++terms == SAT_SUM_PART) sum += part, part = 0, terms = 0;
            }
        }
        sum += part;
        for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
        if (lane == 0) x.largest[at] = base, x.sum[at] = sum + expf(sink - base);
    }
}

// O = product/sum, and LSE.
struct finish_args {
    const float *product, *largest, *sum; // product: (head, query, element)
    void *o;                              // of the first head
    float *lse;                           // of the first head, or NULL
    int64_t heads, m, dim, head_step, row_step, lse_step;
    sat_dtype type;
};

static __global__ void __launch_bounds__(THREADS) finish(finish_args x) {
    int64_t step = (int64_t)gridDim.x * THREADS, all = x.heads * x.m * x.dim;
    for (int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x; at < all; at += step) {
        int64_t row = at / x.dim, column = at % x.dim, head = row / x.m, i = row % x.m;
        float sum = x.sum[row], y = sum == 0 ? 0 : x.product[at] / sum;
        sat_store_from(y, x.type, x.o, head * x.head_step + i * x.row_step + column);
        if (x.lse && column == 0) x.lse[head * x.lse_step + i] = sum == 0 ? -INFINITY : x.largest[row] + logf(sum);
    }
}

/* ---- host: plan ---- */

static int64_t elements_of(const sat_pattern_view *a) {
    return (a->stored_blocks * a->block_rows * a->block_cols + HEAD_ALIGN - 1) / HEAD_ALIGN * HEAD_ALIGN;
}

template <int COUNT>
static bool choose(const candidate (&all)[COUNT], const char *name, pass *to, const sat_pattern_view *a,
                   const sat_device *d) {
    double least = INFINITY;
    for (const candidate &c : all) {
        sat_variant v = sat_variant_of(c.family, c.instance, name);
        if (!v.supports(&v, &to->problem, a, d)) continue;
        double seconds = v.estimate(&v, &to->problem, a, d);
        if (seconds < least) least = seconds, to->variant = v;
    }
    return least < INFINITY;
}

static sat_problem scores_problem(const sat_problem *p, const sat_pattern_view *a) {
    const sat_attention *t = &p->attention;
    sat_problem s = {};
    s.size = sizeof s, s.op = SAT_SAMPLED, s.m = p->m, s.n = p->n, s.k = t->dim, s.batch = t->kv_heads;
    s.a_dtype = s.b_dtype = p->a_dtype, s.c_dtype = s.compute_dtype = SAT_F32;
    s.a.row_stride = t->q.row_stride, s.a.col_stride = 1,
    s.a.batch_stride = t->q.head_stride * (t->heads / t->kv_heads);
    s.b.row_stride = 1, s.b.col_stride = t->k.row_stride, s.b.batch_stride = t->k.head_stride;
    s.c.batch_stride = elements_of(a);
    s.a_align = s.b_align = p->a_align, s.c_align = 256, s.alpha = p->alpha;
    return s;
}

static sat_problem values_problem(const sat_problem *p, const sat_pattern_view *a) {
    const sat_attention *t = &p->attention;
    sat_problem s = {};
    s.size = sizeof s, s.op = SAT_MATMUL, s.matmul.transpose = SAT_NO_TRANSPOSE, s.m = p->m, s.n = sat_value_dim(t),
    s.k = p->n, s.batch = t->kv_heads;
    s.a_dtype = s.b_dtype = p->a_dtype, s.c_dtype = s.compute_dtype = SAT_F32;
    s.a.batch_stride = elements_of(a);
    s.b.row_stride = t->v.row_stride, s.b.col_stride = 1, s.b.batch_stride = t->v.head_stride;
    s.c.row_stride = s.n, s.c.col_stride = 1, s.c.batch_stride = p->m * s.n;
    s.a_align = s.c_align = 256, s.b_align = p->a_align, s.alpha = 1;
    return s;
}

/* What the pointers of all heads and batch items are aligned to. */
static uint32_t item_align(const sat_problem *p) {
    const sat_attention *t = &p->attention;
    int64_t all = t->q.head_stride | t->k.head_stride | t->v.head_stride;
    if (p->batch > 1) all |= t->q.batch_stride | t->k.batch_stride | t->v.batch_stride;
    uint64_t bits = (uint64_t)all * sat_dtype_size(p->a_dtype) | p->a_align;
    return (uint32_t)(bits & -bits);
}

static bool plan(passes *to, const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                 const sat_device *d) {
    to->scores.problem = scores_problem(p, a), to->values.problem = values_problem(p, a);
    to->scores.problem.a_align = to->scores.problem.b_align = to->values.problem.b_align = item_align(p);
    return choose(sampled, v->name, &to->scores, a, d) && choose(products, v->name, &to->values, a, d);
}

struct layout { // offsets in the workspace
    size_t scores, weights, largest, sum, product, bytes;
};

static layout layout_of(const sat_problem *p, const sat_pattern_view *a) {
    const sat_attention *t = &p->attention;
    double heads = (double)t->kv_heads, all = heads * (double)elements_of(a), rows = heads * (double)p->m;
    layout x = {};
    x.scores = sat_carve(&x.bytes, 4 * all);
    x.weights = p->a_dtype == SAT_F32 ? x.scores : sat_carve(&x.bytes, 2 * all);
    x.largest = sat_carve(&x.bytes, 4 * rows), x.sum = sat_carve(&x.bytes, 4 * rows);
    x.product = sat_carve(&x.bytes, 4 * rows * (double)sat_value_dim(t));
    return x;
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const sat_attention *t = &p->attention;
    double bytes = 6.0 * (double)t->kv_heads * (double)a->stored_blocks * (double)a->block_rows * (double)a->block_cols;
    if (p->a_dtype == SAT_F64 || a->rows != p->m || p->m == 0 || p->n == 0 || a->stored_blocks == 0) return false;
    if (bytes > (double)d->memory_bytes / 8 || p->batch * t->heads > 4096) return false; // each has its own launches
    passes x;
    return plan(&x, v, p, a, d);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    passes x;
    const sat_attention *t = &p->attention;
    if (!plan(&x, v, p, a, d)) return INFINITY;
    double size = (double)sat_dtype_size(p->a_dtype), all = (double)t->kv_heads * (double)elements_of(a);
    double once = x.scores.variant.estimate(&x.scores.variant, &x.scores.problem, a, d) +
                  x.values.variant.estimate(&x.values.variant, &x.values.problem, a, d);
    double rows = (double)t->kv_heads * (double)p->m * (double)sat_value_dim(t);
    double between = (all * (8 + size) + rows * (4 + size)) / (0.6 * d->memory_rate) + 6e-6;
    return (once + between) * (double)(p->batch * (t->heads / t->kv_heads));
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)d;
    return layout_of(p, a).bytes;
}

static sat_status prepare_pass(const sat_prepare *q, const pass *x) {
    sat_prepare own = *q;
    void *state = NULL;
    own.variant = &x->variant, own.problem = &x->problem, own.workspace = NULL;
    return x->variant.prepare ? x->variant.prepare(&own, &state) : SAT_OK;
}

static sat_status prepare(const sat_prepare *q, void **state) {
    passes *x = (passes *)calloc(1, sizeof *x);
    *state = NULL;
    if (!x) return sat_fail(SAT_OUT_OF_MEMORY, "%s: no memory on the host", q->variant->name);
    sat_status status = plan(x, q->variant, q->problem, q->pattern, q->device)
                            ? SAT_OK
                            : sat_fail(SAT_UNSUPPORTED, "%s: strides or sizes", q->variant->name);
    if (status == SAT_OK) status = prepare_pass(q, &x->scores);
    if (status == SAT_OK) status = prepare_pass(q, &x->values);
    if (status == SAT_OK) *state = x;
    else free(x);
    return status;
}

/* Operands a, b and c in the order of the operation. A family that is not batched has a launch for each item. */
static sat_status multiply(const sat_launch *l, const pass *x, const void *a, const void *b, void *c) {
    const sat_problem *p = &x->problem;
    bool whole = (x->variant.flags & SAT_V_BATCHED) != 0;
    for (int64_t item = 0; item < (whole ? 1 : p->batch); item++) {
        void *operands[SAT_MAX_OPERANDS] = {sat_at(p->a_dtype, a, item * p->a.batch_stride),
                                            sat_at(p->b_dtype, b, item * p->b.batch_stride),
                                            sat_at(p->c_dtype, c, item * p->c.batch_stride)};
        sat_launch own = *l;
        own.variant = &x->variant, own.problem = p, own.operands = operands, own.workspace = own.state = NULL;
        sat_status status = x->variant.launch(&own);
        if (status != SAT_OK) return status;
    }
    return SAT_OK;
}

template <typename T> static sat_status run_softmax(const sat_launch *l, const softmax_args &x) {
    unsigned ctas = sat_blocks(x.heads * x.mask.m, WARPS);
    if (x.softcap != 0) softmax<T, true><<<ctas, THREADS, 0, (cudaStream_t)l->stream>>>(x);
    else softmax<T, false><<<ctas, THREADS, 0, (cudaStream_t)l->stream>>>(x);
    return sat_launched(l);
}

// Query heads `head`, `head + per_kv`, ...: one for each key head.
static sat_status run_heads(const sat_launch *l, const passes *x, int64_t b, int64_t head) {
    const sat_problem *p = l->problem;
    const sat_attention *t = &p->attention;
    int64_t per_kv = t->heads / t->kv_heads;
    layout at = layout_of(p, l->pattern);
    char *w = (char *)l->workspace;
    softmax_args s = {sat_device_mask_of(p, l->pattern),
                      (const float *)(w + at.scores),
                      w + at.weights,
                      (float *)(w + at.largest),
                      (float *)(w + at.sum),
                      t->kv_heads,
                      elements_of(l->pattern),
                      (float)t->softcap,
                      t->sinks ? (const float *)l->operands[sat_sinks_at(p)] + head : NULL,
                      per_kv};
    finish_args f = {(const float *)(w + at.product),
                     s.largest,
                     s.sum,
                     sat_at(p->c_dtype, l->operands[3], sat_heads_at(&t->o, b, head, 0)),
                     t->lse ? (float *)l->operands[4] + (b * t->heads + head) * p->m : NULL,
                     t->kv_heads,
                     p->m,
                     sat_value_dim(t),
                     per_kv * t->o.head_stride,
                     t->o.row_stride,
                     per_kv * p->m,
                     p->c_dtype};
    sat_status status = multiply(l, &x->scores, sat_at(p->a_dtype, l->operands[0], sat_heads_at(&t->q, b, head, 0)),
                                 sat_at(p->a_dtype, l->operands[1], sat_heads_at(&t->k, b, 0, 0)), w + at.scores);
    if (status == SAT_OK)
        status = p->a_dtype == SAT_F32   ? run_softmax<float>(l, s)
                 : p->a_dtype == SAT_F16 ? run_softmax<__half>(l, s)
                                         : run_softmax<__nv_bfloat16>(l, s);
    if (status == SAT_OK)
        status = multiply(l, &x->values, w + at.weights,
                          sat_at(p->a_dtype, l->operands[2], sat_heads_at(&t->v, b, 0, 0)), w + at.product);
    if (status != SAT_OK) return status;
    finish<<<sat_blocks(f.heads * f.m * f.dim, THREADS), THREADS, 0, (cudaStream_t)l->stream>>>(f);
    return sat_launched(l);
}

static sat_status launch(const sat_launch *l) {
    const sat_attention *t = &l->problem->attention;
    for (int64_t b = 0; b < l->problem->batch; b++)
        for (int64_t head = 0; head < t->heads / t->kv_heads; head++) {
            sat_status status = run_heads(l, (const passes *)l->state, b, head);
            if (status != SAT_OK) return status;
        }
    return SAT_OK;
}

SAT_FAMILY(cuda_attention_passes) = {
    .revision = "2",
    .op = SAT_ATTENTION,
    .backend = SAT_CUDA,
    .flags = SAT_V_BATCHED | SAT_V_SCRATCH,
    .about = "scores through memory: sampled product, softmax, block-sparse product; one mask for all heads",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_state,
};
