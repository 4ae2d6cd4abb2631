/* What the backward kernels on tensor cores have in common: two walks, by queries for dQ and by keys for dK and dV, and
 * before them a pass that finds two numbers of each query. */
#ifndef SAT_ATTENTION_BACKWARD_CUH
#define SAT_ATTENTION_BACKWARD_CUH

#include "kernels/cuda/attention/attention_walk.cuh"

struct attention_frame {
    attention_walk by_query, by_key;
    float *lse, *delta; /* of each query: log2(e)*LSE, inf where nothing is kept; and dO*O */
    int64_t apart;      /* from a head's numbers to the next head's; all these begin on 16 bytes */
};

/* Eight lanes have a row. */
template <typename E> struct attention_delta_job {
    const E *o, *d;
    sat_heads o_at, d_at;
    const float *lse;
    float *lse2, *delta;
    int64_t apart, batch, heads, m;
    int dim;
};

template <typename E> struct alignas(16) attention_eight { E x[8]; };

template <typename E> static __global__ void attention_delta(const __grid_constant__ attention_delta_job<E> x) {
    griddepcontrol_launch_dependents();
    griddepcontrol_wait();
    int64_t all = x.batch * x.heads * x.m, at = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 8;
    int64_t row = sat_min(at, all - 1), bh = row / x.m, i = row % x.m;
    const E *o = x.o + sat_heads_at(&x.o_at, bh / x.heads, bh % x.heads, i);
    const E *d = x.d + sat_heads_at(&x.d_at, bh / x.heads, bh % x.heads, i);
    float sum = 0;
    for (int c = threadIdx.x % 8 * 8; c < x.dim; c += 64) {
        attention_eight<E> y = *(const attention_eight<E> *)(o + c), z = *(const attention_eight<E> *)(d + c);
#pragma unroll
        for (int e = 0; e < 8; e++) sum = fmaf((float)y.x[e], (float)z.x[e], sum);
    }
    for (int k = 4; k > 0; k /= 2) sum += __shfl_xor_sync(~0u, sum, k);
    if (at >= all || threadIdx.x % 8) return;
    float lse = x.lse[row];
    x.lse2[bh * x.apart + i] = lse == -INFINITY ? INFINITY : lse * 1.44269504f, x.delta[bh * x.apart + i] = sum;
}

/* ---- the host's side ---- */

/* The workspace: both walks, then the numbers. */
static inline size_t attention_round_up(double bytes) { return ((size_t)bytes + 255) / 256 * 256; }

static inline int64_t attention_numbers_apart(const sat_problem *p) { return 2 * ((p->m + 3) / 4 * 4); }

static inline size_t attention_frame_bytes(const sat_problem *p, const sat_pattern_view *a, attention_shape by_query,
                                           attention_shape by_key) {
    return attention_round_up(attention_walk_bytes(p, a, by_query)) +
           attention_round_up(attention_walk_bytes(p, a, by_key)) +
           attention_round_up(4 * (double)(p->batch * p->attention.heads * attention_numbers_apart(p)));
}

static inline sat_status attention_frame_make(const sat_prepare *q, attention_shape by_query, attention_shape by_key,
                                              char *at, attention_frame *f) {
    const sat_problem *p = q->problem;
    sat_status status = attention_walk_make(q, by_query, at, &f->by_query);
    at += attention_round_up(attention_walk_bytes(p, q->pattern, by_query));
    if (status == SAT_OK) status = attention_walk_make(q, by_key, at, &f->by_key);
    at += attention_round_up(attention_walk_bytes(p, q->pattern, by_key));
    f->apart = attention_numbers_apart(p);
    f->lse = (float *)at, f->delta = f->lse + f->apart / 2;
    return status;
}

template <typename E> static sat_status attention_find_delta_of(const sat_launch *l, const attention_frame *f) {
    const sat_problem *p = l->problem;
    const sat_attention *t = &p->attention;
    attention_delta_job<E> x = {(const E *)l->operands[3],
                                (const E *)l->operands[5],
                                t->o,
                                t->do_,
                                (const float *)l->operands[4],
                                f->lse,
                                f->delta,
                                f->apart,
                                p->batch,
                                t->heads,
                                p->m,
                                (int)t->dim};
    return sat_start<attention_delta<E>>(l, sat_blocks(x.batch * x.heads * x.m, 32), 256, 0, x);
}

static inline sat_status attention_find_delta(const sat_launch *l, const attention_frame *f) {
    return l->problem->a_dtype == SAT_F16 ? attention_find_delta_of<__half>(l, f)
                                          : attention_find_delta_of<__nv_bfloat16>(l, f);
}

#endif
