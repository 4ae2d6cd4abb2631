// cuda_attention_reference, cuda_attention_backward_reference: from the definition, in double precision. A warp has a
// row of an output. Right for every dtype, mask, stride, head size and option that the header lists; slow, needs no
// workspace.

#include "attention.h"
#include "variant.cuh"

enum { WARPS = 4, LANE_ELEMENTS = SAT_ATTENTION_MAX_DIM / 32 };

struct kernel_args {
    sat_problem p;
    sat_mask mask;
    void *operand[SAT_MAX_OPERANDS]; // Q, K, V, O, LSE, dO, dQ, dK, dV
};

// Elements of a row of an operand: of V, O, dO and dV, or of the others.
__device__ static int64_t elements_of(const kernel_args &x, int operand) {
    bool of_values = operand == 2 || operand == 3 || operand == 5 || operand == 8;
    return of_values ? sat_value_dim(&x.p.attention) : x.p.attention.dim;
}

// A row of an operand: lane l has elements l, l + 32, ...
__device__ static void load(double (&r)[LANE_ELEMENTS], const kernel_args &x, int operand, const sat_heads &s,
                            int64_t b, int64_t h, int64_t i) {
    int64_t at = sat_heads_at(&s, b, h, i), count = elements_of(x, operand);
    for (int e = 0; e < LANE_ELEMENTS; e++) {
        int64_t column = threadIdx.x % 32 + 32 * e;
        r[e] = column < count ? sat_device_load(x.p.a_dtype, x.operand[operand], at + column) : 0;
    }
}

__device__ static void store(const double (&r)[LANE_ELEMENTS], double factor, const kernel_args &x, int operand,
                             const sat_heads &s, int64_t b, int64_t h, int64_t i) {
    int64_t at = sat_heads_at(&s, b, h, i), count = elements_of(x, operand);
    for (int e = 0; e < LANE_ELEMENTS; e++) {
        int64_t column = threadIdx.x % 32 + 32 * e;
        if (column < count) sat_device_store(x.p.c_dtype, x.operand[operand], at + column, r[e] * factor);
    }
}

__device__ static double dot(const double (&x)[LANE_ELEMENTS], const double (&y)[LANE_ELEMENTS]) {
    double sum = 0;
    for (int e = 0; e < LANE_ELEMENTS; e++) sum += x[e] * y[e];
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    return sum;
}

__device__ static void add(double (&sum)[LANE_ELEMENTS], const double (&x)[LANE_ELEMENTS], double factor) {
    for (int e = 0; e < LANE_ELEMENTS; e++) sum[e] += factor * x[e];
}

// A score as it is weighed, and by how much a change of the product changes it.
__device__ static double capped(const kernel_args &x, double score) {
    double cap = x.p.attention.softcap;
    return cap != 0 ? cap * tanh(score / cap) : score;
}

__device__ static double slope_of(const kernel_args &x, double score) {
    double cap = x.p.attention.softcap, t = cap != 0 ? tanh(score / cap) : 0;
    return 1 - t * t;
}

__device__ static float *lse_at(const kernel_args &x, int64_t b, int64_t h, int64_t i) {
    return (float *)x.operand[4] + (b * x.p.attention.heads + h) * x.p.m + i;
}

// The next key from j on that query i keeps, and the next query that keeps key j; r.end if there is none.
__device__ static int64_t next_key(const kernel_args &x, int64_t h, int64_t i, int64_t j, sat_range r) {
    while (j < r.end && !sat_mask_stores(&x.mask, h, i, j)) j = (j / x.mask.block_cols + 1) * x.mask.block_cols;
    return sat_min(j, r.end);
}

__device__ static int64_t next_query(const kernel_args &x, int64_t h, int64_t i, int64_t j, sat_range r) {
    while (i < r.end && !sat_mask_stores(&x.mask, h, i, j)) i = (i / x.mask.block_rows + 1) * x.mask.block_rows;
    return sat_min(i, r.end);
}

static __global__ void forward_rows(kernel_args x) {
    const sat_attention &t = x.p.attention;
    int64_t all = x.p.batch * t.heads * x.p.m, step = (int64_t)gridDim.x * WARPS;
    for (int64_t at = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; at < all; at += step) {
        int64_t b = at / x.p.m / t.heads, h = at / x.p.m % t.heads, i = at % x.p.m, kv = h / (t.heads / t.kv_heads);
        sat_range r = sat_keys_of(&x.mask, i);
        double q[LANE_ELEMENTS], row[LANE_ELEMENTS], sum[LANE_ELEMENTS] = {};
        double largest = sat_sink_of(&x.p, x.operand, h), total = isinf(largest) ? 0 : 1;
        load(q, x, 0, t.q, b, h, i);
        for (int64_t j = next_key(x, h, i, r.begin, r); j < r.end; j = next_key(x, h, i, j + 1, r)) {
            load(row, x, 1, t.k, b, kv, j);
            double score = capped(x, x.p.alpha * dot(q, row)), more = fmax(largest, score), less = exp(largest - more);
            double weight = exp(score - more);
            for (int e = 0; e < LANE_ELEMENTS; e++) sum[e] *= less;
            total = total * less + weight, largest = more;
            load(row, x, 2, t.v, b, kv, j);
            add(sum, row, weight);
        }
        store(sum, total == 0 ? 0 : 1 / total, x, 3, t.o, b, h, i);
        if (t.lse && threadIdx.x % 32 == 0)
            *lse_at(x, b, h, i) = total == 0 ? -INFINITY : (float)(largest + log(total));
    }
}

static __global__ void query_rows(kernel_args x) {
    const sat_attention &t = x.p.attention;
    int64_t all = x.p.batch * t.heads * x.p.m, step = (int64_t)gridDim.x * WARPS;
    for (int64_t at = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; at < all; at += step) {
        int64_t b = at / x.p.m / t.heads, h = at / x.p.m % t.heads, i = at % x.p.m, kv = h / (t.heads / t.kv_heads);
        sat_range r = sat_keys_of(&x.mask, i);
        double q[LANE_ELEMENTS], d[LANE_ELEMENTS], row[LANE_ELEMENTS], sum[LANE_ELEMENTS] = {},
                                                                       lse = *lse_at(x, b, h, i);
        load(q, x, 0, t.q, b, h, i), load(d, x, 5, t.do_, b, h, i), load(row, x, 3, t.o, b, h, i);
        double delta = dot(d, row);
        for (int64_t j = next_key(x, h, i, r.begin, r); j < r.end; j = next_key(x, h, i, j + 1, r)) {
            load(row, x, 2, t.v, b, kv, j);
            double dp = dot(d, row);
            load(row, x, 1, t.k, b, kv, j);
            double score = x.p.alpha * dot(q, row);
            add(sum, row, exp(capped(x, score) - lse) * (dp - delta) * slope_of(x, score));
        }
        store(sum, x.p.alpha, x, 6, t.dq, b, h, i);
    }
}

static __global__ void key_rows(kernel_args x) {
    const sat_attention &t = x.p.attention;
    int64_t all = x.p.batch * t.kv_heads * x.p.n, step = (int64_t)gridDim.x * WARPS, per_kv = t.heads / t.kv_heads;
    for (int64_t at = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; at < all; at += step) {
        int64_t b = at / x.p.n / t.kv_heads, kv = at / x.p.n % t.kv_heads, j = at % x.p.n;
        sat_range r = sat_queries_of(&x.mask, j);
        double k[LANE_ELEMENTS], v[LANE_ELEMENTS], q[LANE_ELEMENTS], d[LANE_ELEMENTS], dk[LANE_ELEMENTS] = {},
                                                                                       dv[LANE_ELEMENTS] = {};
        load(k, x, 1, t.k, b, kv, j), load(v, x, 2, t.v, b, kv, j);
        for (int64_t h = kv * per_kv; h < (kv + 1) * per_kv; h++)
            for (int64_t i = next_query(x, h, r.begin, j, r); i < r.end; i = next_query(x, h, i + 1, j, r)) {
                load(d, x, 5, t.do_, b, h, i), load(q, x, 3, t.o, b, h, i);
                double delta = dot(d, q), dp = dot(d, v);
                load(q, x, 0, t.q, b, h, i);
                double score = x.p.alpha * dot(q, k), weight = exp(capped(x, score) - (double)*lse_at(x, b, h, i));
                add(dk, q, weight * (dp - delta) * slope_of(x, score)), add(dv, d, weight);
            }
        store(dk, x.p.alpha, x, 7, t.dk, b, kv, j), store(dv, 1, x, 8, t.dv, b, kv, j);
    }
}

// dsinks; a CTA has a head.
static __global__ void heads_of_sinks(kernel_args x) {
    const sat_attention &t = x.p.attention;
    __shared__ double part[WARPS];
    int64_t h = blockIdx.x;
    double sink = sat_sink_of(&x.p, x.operand, h), sum = 0, o[LANE_ELEMENTS], d[LANE_ELEMENTS];
    for (int64_t at = threadIdx.x / 32; at < x.p.batch * x.p.m && !isinf(sink); at += WARPS) {
        int64_t b = at / x.p.m, i = at % x.p.m;
        load(o, x, 3, t.o, b, h, i), load(d, x, 5, t.do_, b, h, i);
        sum -= exp(sink - (double)*lse_at(x, b, h, i)) * dot(o, d);
    }
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x) return;
    for (int w = 1; w < WARPS; w++) sum += part[w];
    ((float *)x.operand[sat_sinks_at(&x.p) + 1])[h] = (float)sum;
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)p, (void)a, (void)d;
    return true;
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    return sat_roofline(d, SAT_F64, sat_attention_flops(p, a), 0.01, 4 * sat_attention_bytes(p, a)) + 1e-5;
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const sat_attention *t = &p->attention;
    kernel_args x = {*p, sat_device_mask_of(p, l->pattern), {}};
    int last = sat_sinks_at(p) + (p->op == SAT_ATTENTION_BACKWARD), count = t->sinks                 ? last + 1
                                                                            : p->op == SAT_ATTENTION ? 5
                                                                                                     : 9;
    for (int i = 0; i < count; i++) x.operand[i] = l->operands[i];
    cudaStream_t stream = (cudaStream_t)l->stream;
    int64_t queries = p->batch * t->heads * p->m, keys = p->batch * t->kv_heads * p->n;
    unsigned of_queries = sat_blocks(queries, WARPS);
    if (p->op == SAT_ATTENTION) {
        if (queries > 0) forward_rows<<<of_queries, WARPS * 32, 0, stream>>>(x);
    } else {
        if (queries > 0) query_rows<<<of_queries, WARPS * 32, 0, stream>>>(x);
        if (keys > 0) key_rows<<<sat_blocks(keys, WARPS), WARPS * 32, 0, stream>>>(x);
        if (t->sinks) heads_of_sinks<<<(unsigned)t->heads, WARPS * 32, 0, stream>>>(x);
    }
    return sat_launched(l);
}

SAT_FAMILY(cuda_attention_reference) = {
    .revision = "1",
    .op = SAT_ATTENTION,
    .backend = SAT_CUDA,
    .flags = SAT_V_REFERENCE | SAT_V_BATCHED,
    .about = "a warp a query, in double precision: slow, always right",
    .supports = supports,
    .estimate = estimate,
    .launch = launch,
};

SAT_FAMILY(cuda_attention_backward_reference) = {
    .revision = "1",
    .op = SAT_ATTENTION_BACKWARD,
    .backend = SAT_CUDA,
    .flags = SAT_V_REFERENCE | SAT_V_BATCHED,
    .about = "a warp a query, then a warp a key, in double precision: slow, always right",
    .supports = supports,
    .estimate = estimate,
    .launch = launch,
};
