// Attention by cuDNN's fused kernels: the graph that it knows as attention, two products with a softmax between them.
// Every block stored; causal, window, grouped heads, any strides in steps of 16 bytes.
//
// cuDNN knows causal attention with fewer keys than queries only by other means, and packed sequences, too: not taken.

#include "libs/cudnn_attention.h"

enum { WORKSPACE = 8 << 20 }; /* plans that want more are passed over */

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    const sat_attention *t = &p->attention;
    return sizes_fit(p, a, d) && strides_fit(&t->q, p->batch, t->heads, p->m) &&
           strides_fit(&t->k, p->batch, t->kv_heads, p->n) && strides_fit(&t->v, p->batch, t->kv_heads, p->n) &&
           strides_fit(&t->o, p->batch, t->heads, p->m);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    double flops = sat_attention_flops(p, a),
           tiles = ceil((double)p->m / 128) * (double)(p->batch * p->attention.heads);
    double waves = tiles / (double)d->multiprocessors, idle = waves < 1 ? 1 / waves : ceil(waves) / waves;
    double part = (d->capability >= 90 ? 0.7 : 0.6) * (p->attention.causal ? 0.8 : 1);
    double busy = flops / (d->flop_rate[p->a_dtype] * part) * fmin(idle, 8);
    return fmax(busy, sat_attention_bytes(p, a) / (0.8 * d->memory_rate)) + 6e-6;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)p, (void)a, (void)d;
    return WORKSPACE;
}

/* Weights, rounded to the operands' type, from scores; the log of their sums goes to `lse`. */
static int softmax(const maker *x, int from, int lse) {
    int largest = sat_dnn_inner(x->g, SAT_DNN_F32, x->rows), sum = sat_dnn_inner(x->g, SAT_DNN_F32, x->rows);
    int logs = sat_dnn_inner(x->g, SAT_DNN_F32, x->rows), to = scores(x, x->type);
    sat_dnn_reduce(x->g, SAT_DNN_LARGEST, from, largest);
    int power = pointwise(x, SAT_DNN_EXP, SAT_DNN_F32, pointwise(x, SAT_DNN_SUB, SAT_DNN_F32, from, largest), 0);
    sat_dnn_reduce(x->g, SAT_DNN_SUM, power, sum);
    sat_dnn_pointwise(x->g, SAT_DNN_LOG, SAT_DNN_F32, 3, sum, 0, 0, logs);
    sat_dnn_pointwise(x->g, SAT_DNN_ADD, SAT_DNN_F32, 3, largest, logs, 0, lse);
    sat_dnn_pointwise(x->g, SAT_DNN_DIV, SAT_DNN_F32, 3, power, sum, 0, to);
    return to;
}

/* Operands in the order of launch: Q, K, V, O, LSE. */
static void describe(const maker *x) {
    const sat_problem *p = x->p;
    const sat_attention *t = &p->attention;
    int q = operand(x, &t->q, t->heads, p->m, false), k = operand(x, &t->k, t->kv_heads, p->n, true);
    int v = operand(x, &t->v, t->kv_heads, p->n, false), o = operand(x, &t->o, t->heads, p->m, false);
    const sat_dnn_shape sums = {{p->batch, t->heads, p->m, 1}, {t->heads * p->m, p->m, 1, 1}};
    int lse = t->lse ? sat_dnn_operand(x->g, SAT_DNN_F32, &sums, 4) : sat_dnn_inner(x->g, SAT_DNN_F32, x->rows);
    int s = masked(x, scaled_scores(x, q, k, sat_dnn_number_f32(x->g, (float)p->alpha)));
    sat_dnn_matmul(x->g, softmax(x, s, lse), v, o);
}

static void release(const sat_variant *v, void *state) {
    (void)v;
    sat_dnn_close(state);
}

static sat_status prepare(const sat_prepare *p, void **state) {
    double key[SAT_DNN_KEY];
    maker x = maker_of(p->problem);
    *state = NULL;
    fill_key(key, p->variant, p->problem);
    sat_status status = sat_dnn_open(p, key, &x.g);
    if (status == SAT_OK && !sat_dnn_planned(x.g)) {
        describe(&x);
        status = sat_dnn_plan(x.g, WORKSPACE);
    }
    if (status == SAT_OK) *state = x.g;
    else sat_dnn_close(x.g);
    return status;
}

static sat_status launch(const sat_launch *l) { return sat_dnn_run(l, l->state, l->operands, l->workspace); }

SAT_FAMILY(cuda_attention_cudnn) = {
    .version = sat_cudnn_version,
    .op = SAT_ATTENTION,
    .backend = SAT_CUDA,
    .flags = SAT_V_LIBRARY | SAT_V_SCRATCH | SAT_V_BATCHED,
    .about = "cuDNN's fused attention; f16, bf16, no block mask",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = release,
};
