// cpu_attention_reference, cpu_attention_backward_reference: from the definition, in double precision, a row at a time.
// Right for every dtype, mask, stride and head size that the header lists, and takes no memory.

#include "attention.h"

/* One query or one key, with all that a pair needs. */
typedef struct call {
    const sat_launch *l;
    const sat_problem *p;
    const sat_attention *t;
    sat_mask mask;
    int64_t b, h, kv; // batch item, head, the head of its keys
} call;

static double dot(sat_dtype type, const void *x, int64_t at_x, const void *y, int64_t at_y, int64_t dim) {
    double sum = 0;
    for (int64_t e = 0; e < dim; e++) sum += sat_load(type, x, at_x + e) * sat_load(type, y, at_y + e);
    return sum;
}

static double score(const call *c, int64_t i, int64_t j) {
    double cap = c->t->softcap,
           s = c->p->alpha * dot(c->p->a_dtype, c->l->operands[0], sat_heads_at(&c->t->q, c->b, c->h, i),
                                 c->l->operands[1], sat_heads_at(&c->t->k, c->b, c->kv, j), c->t->dim);
    return cap != 0 ? cap * tanh(s / cap) : s;
}

static void add_row(const call *c, double *sum, int operand, const sat_heads *s, int64_t h, int64_t i, int64_t dim,
                    double factor) {
    int64_t at = sat_heads_at(s, c->b, h, i);
    for (int64_t e = 0; e < dim; e++) sum[e] += factor * sat_load(c->p->a_dtype, c->l->operands[operand], at + e);
}

static void store(const call *c, const double *sum, int operand, const sat_heads *s, int64_t h, int64_t i, int64_t dim,
                  double factor) {
    int64_t at = sat_heads_at(s, c->b, h, i);
    for (int64_t e = 0; e < dim; e++) sat_store(c->p->c_dtype, c->l->operands[operand], at + e, sum[e] * factor);
}

/* The next key from j on that query i keeps; r.end if there is none. */
static int64_t next_key(const call *c, int64_t i, int64_t j, sat_range r) {
    while (j < r.end && !sat_mask_stores(&c->mask, c->h, i, j)) j = (j / c->mask.block_cols + 1) * c->mask.block_cols;
    return sat_min(j, r.end);
}

static int64_t next_query(const call *c, int64_t i, int64_t j, sat_range r) {
    while (i < r.end && !sat_mask_stores(&c->mask, c->h, i, j)) i = (i / c->mask.block_rows + 1) * c->mask.block_rows;
    return sat_min(i, r.end);
}

static void forward_row(const call *c, int64_t i) {
    sat_range r = sat_keys_of(&c->mask, i);
    double sink = sat_sink_of(c->p, c->l->operands, c->h);
    double sum[SAT_ATTENTION_MAX_DIM] = {0}, largest = sink, total = 0;
    for (int64_t j = next_key(c, i, r.begin, r); j < r.end; j = next_key(c, i, j + 1, r))
        largest = fmax(largest, score(c, i, j));
    if (!isinf(sink)) total = exp(sink - largest);
    for (int64_t j = next_key(c, i, r.begin, r); j < r.end; j = next_key(c, i, j + 1, r)) {
        double weight = exp(score(c, i, j) - largest);
        total += weight;
        add_row(c, sum, 2, &c->t->v, c->kv, j, c->t->value_dim, weight);
    }
    store(c, sum, 3, &c->t->o, c->h, i, c->t->value_dim, total == 0 ? 0 : 1 / total);
    if (c->t->lse)
        ((float *)c->l->operands[4])[(c->b * c->t->heads + c->h) * c->p->m + i] =
            total == 0 ? -INFINITY : (float)(largest + log(total));
}

/* dS/alpha of a pair, and its weight. */
static double gradient(const call *c, int64_t i, int64_t j, double delta, double *weight) {
    float lse = ((const float *)c->l->operands[4])[(c->b * c->t->heads + c->h) * c->p->m + i];
    double dp = dot(c->p->a_dtype, c->l->operands[5], sat_heads_at(&c->t->do_, c->b, c->h, i), c->l->operands[2],
                    sat_heads_at(&c->t->v, c->b, c->kv, j), c->t->value_dim);
    double s = score(c, i, j), t = c->t->softcap != 0 ? s / c->t->softcap : 0;
    *weight = exp(s - (double)lse);
    return *weight * (dp - delta) * (1 - t * t); // the slope of tanh
}

static double delta_of(const call *c, int64_t i) { // dO*O
    return dot(c->p->a_dtype, c->l->operands[5], sat_heads_at(&c->t->do_, c->b, c->h, i), c->l->operands[3],
               sat_heads_at(&c->t->o, c->b, c->h, i), c->t->value_dim);
}

static void query_row(const call *c, int64_t i) {
    sat_range r = sat_keys_of(&c->mask, i);
    double sum[SAT_ATTENTION_MAX_DIM] = {0}, delta = delta_of(c, i), weight;
    for (int64_t j = next_key(c, i, r.begin, r); j < r.end; j = next_key(c, i, j + 1, r))
        add_row(c, sum, 1, &c->t->k, c->kv, j, c->t->dim, gradient(c, i, j, delta, &weight));
    store(c, sum, 6, &c->t->dq, c->h, i, c->t->dim, c->p->alpha);
}

static void key_row(call *c, int64_t j) {
    sat_range r = sat_queries_of(&c->mask, j);
    int64_t share = c->t->heads / c->t->kv_heads;
    double dk[SAT_ATTENTION_MAX_DIM] = {0}, dv[SAT_ATTENTION_MAX_DIM] = {0};
    for (c->h = c->kv * share; c->h < (c->kv + 1) * share; c->h++)
        for (int64_t i = next_query(c, r.begin, j, r); i < r.end; i = next_query(c, i + 1, j, r)) {
            double weight, ds = gradient(c, i, j, delta_of(c, i), &weight);
            add_row(c, dk, 0, &c->t->q, c->h, i, c->t->dim, ds);
            add_row(c, dv, 5, &c->t->do_, c->h, i, c->t->value_dim, weight);
        }
    store(c, dk, 7, &c->t->dk, c->kv, j, c->t->dim, c->p->alpha);
    store(c, dv, 8, &c->t->dv, c->kv, j, c->t->value_dim, 1);
}

static void gradient_of_sink(call *c) {
    double sink = sat_sink_of(c->p, c->l->operands, c->h), sum = 0;
    const float *lse = c->l->operands[4];
    for (c->b = 0; c->b < c->p->batch && !isinf(sink); c->b++)
        for (int64_t i = 0; i < c->p->m; i++)
            sum -= exp(sink - (double)lse[(c->b * c->t->heads + c->h) * c->p->m + i]) * delta_of(c, i);
    ((float *)c->l->operands[10])[c->h] = (float)sum;
}

static call call_of(const sat_launch *l) { return (call){.l = l, .p = l->problem, .t = &l->problem->attention}; }

static void go_to_item(call *c, int64_t b) { c->b = b, c->mask = sat_mask_of_item(c->p, c->l->pattern, b); }

static sat_status forward(const sat_launch *l) {
    const call all = call_of(l);
    int64_t rows = all.p->batch * all.t->heads * all.p->m, share = all.t->heads / all.t->kv_heads;
#pragma omp parallel for num_threads(l->threads) schedule(dynamic, 16)
    for (int64_t row = 0; row < rows; row++) {
        call c = all;
        go_to_item(&c, row / all.p->m / all.t->heads);
        c.h = row / all.p->m % all.t->heads, c.kv = c.h / share;
        forward_row(&c, row % all.p->m);
    }
    return SAT_OK;
}

static sat_status backward(const sat_launch *l) {
    const call all = call_of(l);
    const sat_attention *t = all.t;
    int64_t queries = all.p->batch * t->heads * all.p->m, keys = all.p->batch * t->kv_heads * all.p->n;
#pragma omp parallel for num_threads(l->threads) schedule(dynamic, 16)
    for (int64_t row = 0; row < queries + keys; row++) {
        call c = all;
        int64_t each = row < queries ? all.p->m : all.p->n, heads = row < queries ? t->heads : t->kv_heads;
        int64_t at = row < queries ? row : row - queries;
        go_to_item(&c, at / each / heads);
        c.h = c.kv = at / each % heads;
        if (row < queries) c.kv = c.h / (t->heads / t->kv_heads), query_row(&c, at % each);
        else key_row(&c, at % each);
    }
#pragma omp parallel for num_threads(l->threads) schedule(dynamic, 1)
    for (int64_t h = 0; h < (t->sinks ? t->heads : 0); h++) {
        call c = all;
        c.h = h;
        gradient_of_sink(&c);
    }
    return SAT_OK;
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    return sat_roofline(d, SAT_F64, sat_attention_flops(p, a), 0.004, sat_attention_bytes(p, a));
}

SAT_FAMILY(cpu_attention_reference) = {
    .revision = "1",
    .op = SAT_ATTENTION,
    .backend = SAT_CPU,
    .flags = SAT_V_REFERENCE | SAT_V_BATCHED | SAT_V_DYNAMIC,
    .about = "from the definition, in double precision; takes everything",
    .supports = sat_takes_all,
    .estimate = estimate,
    .launch = forward,
};

SAT_FAMILY(cpu_attention_backward_reference) = {
    .revision = "1",
    .op = SAT_ATTENTION_BACKWARD,
    .backend = SAT_CPU,
    .flags = SAT_V_REFERENCE | SAT_V_BATCHED | SAT_V_DYNAMIC,
    .about = "from the definition, in double precision; takes everything",
    .supports = sat_takes_all,
    .estimate = estimate,
    .launch = backward,
};
