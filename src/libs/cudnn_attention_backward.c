// The gradients of attention by cuDNN's fused kernels. Two lines in variants.def: one that sums dQ in a fixed order,
// with the derivatives of the scores in workspace, and one that adds to dQ from many places at once, in f32.

#include <stdlib.h>

#include "libs/cudnn_attention.h"

enum { ORDERED = 0, ATOMIC = 1 }; /* sat_instance.option */

typedef struct places { /* of the workspace */
    size_t delta, sums, library, library_bytes, bytes;
} places;

/* What the library takes for itself is not known before it has a plan: a bound. */
static places places_of(const sat_problem *p, int option) {
    const sat_attention *t = &p->attention;
    double rows = (double)(p->batch * t->heads) * (double)p->m, keys = (double)(p->batch * t->heads) * (double)p->n;
    int64_t padded_m = (p->m + 127) / 128 * 128, padded_n = (p->n + 127) / 128 * 128;
    double dim = (double)t->dim, padded = (double)padded_m * (double)padded_n;
    places x = {0};
    x.delta = sat_carve(&x.bytes, 4 * rows);
    x.sums = sat_carve(&x.bytes, option == ATOMIC ? 4 * rows * dim : 0);
    x.library = x.bytes;
    double own = 8 << 20;
    if (option == ORDERED) own += 2 * padded * (double)(p->batch * t->heads);
    if (t->heads != t->kv_heads) own += 4 * keys * dim; /* dK and dV of every query head */
    sat_carve(&x.bytes, own);
    x.library_bytes = x.bytes - x.library;
    return x;
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const sat_attention *t = &p->attention;
    const sat_heads *queries[4] = {&t->q, &t->o, &t->do_, &t->dq}, *keys[4] = {&t->k, &t->v, &t->dk, &t->dv};
    bool fits = sizes_fit(p, a, d) && d->capability >= 90 && d->capability < 100 && (p->m > 1 || p->n > 1);
    fits = fits && (sat_cudnn_number() > 91500 || (sat_cudnn_number() >= 90600 && p->n % 128 == 0));
    for (int i = 0; i < 4 && fits; i++)
        fits = strides_fit(queries[i], p->batch, t->heads, p->m) && strides_fit(keys[i], p->batch, t->kv_heads, p->n);
    return fits && (double)places_of(p, v->instance.option).bytes < (double)d->memory_bytes / 8;
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    double part = (v->instance.option == ATOMIC ? 0.5 : 0.3) * (p->attention.causal ? 0.8 : 1);
    double busy = sat_attention_flops(p, a) / (d->flop_rate[p->a_dtype] * part);
    return fmax(busy, sat_attention_bytes(p, a) / (0.6 * d->memory_rate)) + 2e-5;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)a, (void)d;
    return places_of(p, v->instance.option).bytes;
}

/* ---- the graph ---- */

/* x, (query, key), as (key, query) in the operands' type. */
static int transposed(const maker *x, int from) {
    const int64_t *n = x->all;
    sat_dnn_shape s = {{n[0], n[1], n[3], n[2]}, {n[1] * n[2] * n[3], n[2] * n[3], 1, n[3]}};
    int to = sat_dnn_inner_of(x->g, x->type, &s);
    sat_dnn_transpose(x->g, from, to);
    return to;
}

/* to = a*b, where heads of queries share one of keys: summed over them. */
static void product_of_keys(const maker *x, int a, int b, int to) {
    const sat_problem *p = x->p;
    const sat_attention *t = &p->attention;
    if (t->heads == t->kv_heads) {
        sat_dnn_matmul(x->g, a, b, to);
        return;
    }
    const int64_t size[4] = {p->batch, t->heads, p->n, t->dim};
    int each = sat_dnn_inner(x->g, x->type, size);
    sat_dnn_matmul(x->g, a, b, each);
    sat_dnn_reduce(x->g, SAT_DNN_SUM, each, to);
}

/* sum(dO*O) of each row, into workspace: a number that the library keeps between its kernels. */
static void row_sums(const maker *x, int go, int o, int delta) {
    const sat_problem *p = x->p;
    const int64_t size[4] = {p->batch, p->attention.heads, p->m, p->attention.dim};
    int each = sat_dnn_inner(x->g, SAT_DNN_F32, size), sum = sat_dnn_inner(x->g, SAT_DNN_F32, x->rows);
    sat_dnn_pointwise(x->g, SAT_DNN_MUL, SAT_DNN_F32, 3, go, o, 0, each);
    sat_dnn_reduce(x->g, SAT_DNN_SUM, each, sum);
    sat_dnn_pointwise(x->g, SAT_DNN_MUL, SAT_DNN_F32, 3, sum, sat_dnn_number_f32(x->g, 1), 0, delta);
}

/* dQ = ds*K. */
static void product_of_queries(const maker *x, int option, int ds, int k, int dq) {
    const sat_problem *p = x->p;
    const sat_attention *t = &p->attention;
    sat_dnn_shape shape = shape_of(p, &t->k, t->kv_heads, p->n, false);
    int keys = sat_dnn_inner_of(x->g, x->type, &shape);
    sat_dnn_transpose(x->g, k, keys);
    if (option == ORDERED) {
        sat_dnn_matmul(x->g, ds, keys, dq);
        return;
    }
    const sat_dnn_shape wide = {{p->batch, t->heads, p->m, t->dim},
                                {t->heads * p->m * t->dim, p->m * t->dim, t->dim, 1}};
    int sums = sat_dnn_operand(x->g, SAT_DNN_F32, &wide, 16);
    sat_dnn_matmul(x->g, ds, keys, sums);
    sat_dnn_pointwise(x->g, SAT_DNN_SAME, SAT_DNN_F32, 3, sums, 0, 0, dq);
}

/* Operands in the order of launch, Q, K, V, O, LSE, dO, dQ, dK, dV; then sums of rows, and of dQ. */
static void describe(const maker *x, int option) {
    const sat_problem *p = x->p;
    const sat_attention *t = &p->attention;
    const sat_dnn_shape rows = {{p->batch, t->heads, p->m, 1}, {t->heads * p->m, p->m, 1, 1}};
    int q = operand(x, &t->q, t->heads, p->m, false), k = operand(x, &t->k, t->kv_heads, p->n, true);
    int v = operand(x, &t->v, t->kv_heads, p->n, true), o = operand(x, &t->o, t->heads, p->m, false);
    int lse = sat_dnn_operand(x->g, SAT_DNN_F32, &rows, 4), go = operand(x, &t->do_, t->heads, p->m, false);
    int dq = operand(x, &t->dq, t->heads, p->m, false), dk = operand(x, &t->dk, t->kv_heads, p->n, false);
    int dv = operand(x, &t->dv, t->kv_heads, p->n, false), delta = sat_dnn_operand(x->g, SAT_DNN_F32, &rows, 16);
    int scale = sat_dnn_number_f32(x->g, (float)p->alpha);
    row_sums(x, go, o, delta);
    int s = pointwise(x, SAT_DNN_SUB, SAT_DNN_F32, scaled_scores(x, q, k, scale), lse);
    int weights = pointwise(x, SAT_DNN_EXP, SAT_DNN_F32, masked(x, s), 0);
    product_of_keys(x, transposed(x, weights), go, dv);
    int dp = scores(x, SAT_DNN_F32);
    sat_dnn_matmul(x->g, go, v, dp);
    dp = pointwise(x, SAT_DNN_SUB, SAT_DNN_F32, dp, delta);
    int ds = scores(x, SAT_DNN_F32), scaled = scores(x, SAT_DNN_F32);
    sat_dnn_pointwise(x->g, SAT_DNN_MUL, SAT_DNN_F32, 3, dp, weights, 0, ds);
    sat_dnn_pointwise(x->g, SAT_DNN_MUL, SAT_DNN_F32, 3, ds, scale, 0, scaled);
    product_of_keys(x, transposed(x, scaled), q, dk);
    product_of_queries(x, option, scaled, k, dq);
}

/* ---- the variant ---- */

static void release(const sat_variant *v, void *state) {
    (void)v;
    sat_dnn_close(state);
}

static sat_status prepare(const sat_prepare *p, void **state) {
    double key[SAT_DNN_KEY];
    maker x = maker_of(p->problem);
    int option = p->variant->instance.option;
    *state = NULL;
    fill_key(key, p->variant, p->problem);
    sat_status status = sat_dnn_open(p, key, &x.g);
    if (status == SAT_OK && !sat_dnn_planned(x.g)) {
        describe(&x, option);
        status = sat_dnn_plan(x.g, places_of(p->problem, option).library_bytes);
    }
    if (status == SAT_OK) *state = x.g;
    else sat_dnn_close(x.g);
    return status;
}

static sat_status launch(const sat_launch *l) {
    places at = places_of(l->problem, l->variant->instance.option);
    void *pointers[11];
    memcpy(pointers, l->operands, 9 * sizeof *pointers);
    pointers[9] = sat_libs_place(l->workspace, at.delta), pointers[10] = sat_libs_place(l->workspace, at.sums);
    return sat_dnn_run(l, l->state, pointers, sat_libs_place(l->workspace, at.library));
}

#define GRADIENTS(more, words)                                                                                         \
    {                                                                                                                  \
        .version = sat_cudnn_version, .op = SAT_ATTENTION_BACKWARD, .backend = SAT_CUDA,                               \
        .flags = SAT_V_LIBRARY | SAT_V_SCRATCH | SAT_V_BATCHED | (more), .about = words, .supports = supports,         \
        .estimate = estimate, .workspace = workspace, .prepare = prepare, .launch = launch, .release = release         \
    }

SAT_FAMILY(cuda_attention_backward_cudnn) = GRADIENTS(0,
                                                      "cuDNN's gradients, summed in order; f16, bf16, no block mask");
SAT_FAMILY(cuda_attention_backward_cudnn_atomic) =
    GRADIENTS(SAT_V_NONDETERMINISTIC, "cuDNN's gradients, dQ by atomics; f16, bf16, no block mask");
