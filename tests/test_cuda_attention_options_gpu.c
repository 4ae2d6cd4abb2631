/* Attention's options on a GPU, alone and combined: values of another size than keys, head sizes that are no multiple
 * of 8, rows that begin anywhere, soft caps, sinks. Every variant of ours that takes a problem is run, forward and
 * backward, and every element compared with the definition in double precision. The bounds are sums of what each step
 * may round, all of one sign. */
#include "cuda_support.h"

#include <math.h>

#include "problems.h"
#include "variant.h"

enum { BATCH = 2, HEADS = 2, KV_HEADS = 1, QUERIES = 70, KEYS = 150, OPERANDS = 11, MOST = 2048 };

typedef struct sizes {
    int64_t dim, value_dim;
} sizes;

static const sizes all_sizes[] = {{64, 64}, {100, 100}, {33, 70}, {192, 128}, {40, 256}, {576, 512}};

/* Block rows and columns, density, causal, window. */
typedef struct mask {
    int64_t block_rows, block_cols;
    double density;
    bool causal;
    int64_t window;
} mask;

static const mask masks[] = {
    {QUERIES, KEYS, 2, false, 0}, {QUERIES, KEYS, 2, true, 40}, {16, 16, 0.5, false, 0}, {7, 33, 0.3, true, 0}};

/* An operand: its elements as doubles, and what a right result may be off by; on the device from `at` on. */
typedef struct numbers {
    double *x, *error;
    int64_t count;
    sat_dtype type;
    void *memory, *at;
} numbers;

typedef struct scene {
    sat_context *ctx;
    sat_pattern *pattern;
    sat_pattern_view view;
    sat_problem p; /* the gradients' */
    int64_t dim, value_dim;
    bool shifted; /* operands begin one element behind 16 bytes */
    numbers o[OPERANDS];
} scene;

static bool ran[MOST];

/* ---- operands ---- */

static numbers make_numbers(int64_t count, sat_dtype type) {
    numbers n = {.count = count, .type = type};
    n.x = calloc((size_t)count, sizeof *n.x), n.error = calloc((size_t)count, sizeof *n.error);
    return n;
}

static numbers random_numbers(uint64_t *random, int64_t count, sat_dtype type, double low, double high) {
    numbers n = make_numbers(count, type);
    for (int64_t i = 0; i < count; i++) {
        double rounded;
        sat_store(type, &rounded, 0, low + (high - low) * (double)(next_random(random) >> 11) * 0x1p-53);
        n.x[i] = sat_load(type, &rounded, 0);
    }
    return n;
}

/* On the device; NaN where it is an output. */
static void place(scene *s, int i, bool output) {
    numbers *n = &s->o[i];
    size_t size = sat_dtype_size(n->type), bytes = (size_t)(n->count + 16) * size;
    char *host = malloc(bytes);
    size_t first = s->shifted ? 1 : 0;
    memset(host, 0xff, bytes);
    for (int64_t e = 0; e < n->count && !output; e++) sat_store(n->type, host, (int64_t)first + e, n->x[e]);
    n->memory = to_device(s->ctx, host, bytes), n->at = (char *)n->memory + first * size;
    free(host);
}

static bool is_kept(const scene *s, int64_t i, int64_t j) {
    const sat_attention *t = &s->p.attention;
    int64_t ahead = j - i - (KEYS - QUERIES), row = i / s->view.block_rows;
    if (t->causal && ahead > 0) return false;
    if (t->window && (ahead >= t->window || ahead <= -t->window)) return false;
    for (int64_t b = s->view.row_ptr[row]; b < s->view.row_ptr[row + 1]; b++)
        if (s->view.col_idx[b] == j / s->view.block_cols) return true;
    return false;
}

/* ---- the definition ---- */

static const double SUM = 0x1p-22; /* an addition of f32 that may truncate, and the product before it */

/* One query: scores and weights of its keys, and what they may be off by. */
typedef struct query {
    double score[KEYS], weight[KEYS], slope[KEYS], slope_error[KEYS], score_error, lse;
    double relative; /* of a weight */
} query;

static double dot(const double *x, const double *y, int64_t n, double *size) {
    double sum = 0;
    *size = 0;
    for (int64_t e = 0; e < n; e++) sum += x[e] * y[e], *size += fabs(x[e] * y[e]);
    return sum;
}

static const double *row_of(const scene *s, int operand, int64_t row, int64_t dim) {
    return s->o[operand].x + row * dim;
}

static double unit(const scene *s) { return sat_unit(s->p.a_dtype); }

/* f16 loses what is smaller. */
static double tiny(const scene *s) { return s->p.a_dtype == SAT_F16 ? 0x1p-24 : 0; }

static void weigh(const scene *s, int64_t b, int64_t h, int64_t i, query *w) {
    double sink = s->p.attention.sinks ? s->o[9].x[h] : -INFINITY, largest = sink, total = 0, furthest = 0;
    double cap = s->p.attention.softcap, alpha = s->p.alpha;
    const double *q = row_of(s, 0, (b * HEADS + h) * QUERIES + i, s->dim);
    w->score_error = 0;
    for (int64_t j = 0; j < KEYS; j++) {
        double size, x = alpha * dot(q, row_of(s, 1, b * KEYS + j, s->dim), s->dim, &size);
        double error = fabs(alpha) * size * (double)(s->dim + 8) * SUM, t = cap != 0 ? tanh(x / cap) : 0;
        w->score[j] = !is_kept(s, i, j) ? -INFINITY : cap != 0 ? cap * t : x;
        w->slope[j] = 1 - t * t, w->slope_error[j] = cap != 0 ? error / cap + 0x1p-19 : 0;
        if (isinf(w->score[j])) continue;
        largest = fmax(largest, w->score[j]), furthest = fmax(furthest, fabs(w->score[j]));
        w->score_error = fmax(w->score_error, error + 0x1p-20 * fabs(w->score[j]));
    }
    for (int64_t j = 0; j < KEYS; j++) total += isinf(w->score[j]) ? 0 : exp(w->score[j] - largest);
    if (!isinf(sink)) total += exp(sink - largest), furthest = fmax(furthest, fabs(sink));
    w->lse = total > 0 ? largest + log(total) : -INFINITY;
    for (int64_t j = 0; j < KEYS; j++) w->weight[j] = isinf(w->score[j]) ? 0 : exp(w->score[j] - w->lse);
    w->relative =
        2 * w->score_error + (8 + furthest + (total > 0 ? fabs(w->lse) : 0)) * 0x1p-21 + unit(s) + (double)KEYS * SUM;
}

static void forward_row(scene *s, int64_t b, int64_t h, int64_t i, const query *w) {
    int64_t row = (b * HEADS + h) * QUERIES + i;
    for (int64_t e = 0; e < s->value_dim; e++) {
        double sum = 0, size = 0, columns = 0;
        for (int64_t j = 0; j < KEYS; j++) {
            double v = row_of(s, 2, b * KEYS + j, s->value_dim)[e];
            sum += w->weight[j] * v, size += w->weight[j] * fabs(v), columns += fabs(v);
        }
        s->o[3].x[row * s->value_dim + e] = sum;
        s->o[3].error[row * s->value_dim + e] = size * w->relative + unit(s) * fabs(sum) + tiny(s) * (columns + 1);
    }
    s->o[4].x[row] = w->lse, s->o[4].error[row] = isinf(w->lse) ? 0 : w->relative;
}

/* x += y*factor, where y is exact, and the factor may be off by `error`. */
static void add(numbers *to, int64_t at, const double *y, int64_t dim, double factor, double error) {
    for (int64_t e = 0; e < dim; e++) {
        to->x[at + e] += factor * y[e];
        to->error[at + e] += error * fabs(y[e]) + fabs(factor * y[e]) * 4 * (double)KEYS * SUM;
    }
}

static void backward_row(scene *s, int64_t b, int64_t h, int64_t i, const query *w) {
    int64_t row = (b * HEADS + h) * QUERIES + i;
    const double *q = row_of(s, 0, row, s->dim), *d = row_of(s, 5, row, s->value_dim);
    double size, delta = dot(d, row_of(s, 3, row, s->value_dim), s->value_dim, &size);
    double of_value = (double)(s->value_dim + 8) * SUM, delta_error = size * of_value;
    if (s->p.attention.sinks) {
        double weight = exp(s->o[9].x[h] - w->lse), u = (16 + fabs(w->lse) + fabs(s->o[9].x[h])) * 0x1p-22;
        s->o[10].x[h] -= weight * delta, s->o[10].error[h] += weight * (fabs(delta) * (u + 0x1p-20) + delta_error);
    }
    for (int64_t j = 0; j < KEYS; j++) {
        int64_t key = b * KEYS + j;
        double dp = dot(d, row_of(s, 2, key, s->value_dim), s->value_dim, &size), p = w->weight[j];
        double ds = p * (dp - delta) * w->slope[j], wide = p * fabs(dp - delta);
        if (isinf(w->score[j])) continue;
        double error = wide * (w->relative + w->slope_error[j]) + p * (size * of_value + delta_error) +
                       unit(s) * fabs(ds) + tiny(s);
        double alpha = s->p.alpha;
        add(&s->o[6], row * s->dim, row_of(s, 1, key, s->dim), s->dim, alpha * ds, fabs(alpha) * error);
        add(&s->o[7], key * s->dim, q, s->dim, alpha * ds, fabs(alpha) * error);
        add(&s->o[8], key * s->value_dim, d, s->value_dim, p, p * w->relative + tiny(s));
    }
}

static void each_query(scene *s, void (*call)(scene *, int64_t, int64_t, int64_t, const query *)) {
    static query w;
    for (int64_t b = 0; b < BATCH; b++)
        for (int64_t h = 0; h < HEADS; h++)
            for (int64_t i = 0; i < QUERIES; i++) weigh(s, b, h, i, &w), call(s, b, h, i, &w);
}

/* ---- a problem ---- */

static void open_scene(scene *s, sat_context *ctx, sat_dtype type, const sizes *z, const mask *m, double cap,
                       bool sinks, int number) {
    uint64_t random = (uint64_t)number + 1;
    *s = (scene){.ctx = ctx, .dim = z->dim, .value_dim = z->value_dim, .shifted = number % 2};
    s->pattern = random_pattern(ctx, &random, QUERIES, KEYS, m->block_rows, m->block_cols, m->density, false);
    s->view = view_of(s->pattern);
    s->p = attention_problem(type, HEADS, KV_HEADS, z->dim);
    s->p.op = SAT_ATTENTION_BACKWARD, s->p.batch = BATCH, s->p.alpha = 2 / sqrt((double)z->dim);
    s->p.a_align = s->p.b_align = s->p.c_align = s->shifted ? (uint32_t)sat_dtype_size(type) : 16;
    s->p.m = QUERIES, s->p.n = KEYS;
    s->p.attention.value_dim = z->value_dim, s->p.attention.softcap = cap, s->p.attention.sinks = sinks;
    s->p.attention.causal = m->causal, s->p.attention.window = m->window;
    int64_t queries = BATCH * HEADS * QUERIES, keys = BATCH * KEYS;
    const int64_t counts[] = {queries * z->dim,
                              keys * z->dim,
                              keys * z->value_dim,
                              queries * z->value_dim,
                              queries,
                              queries * z->value_dim,
                              queries * z->dim,
                              keys * z->dim,
                              keys * z->value_dim,
                              HEADS,
                              HEADS};
    for (int i = 0; i < OPERANDS; i++) {
        bool f32 = i == 4 || i >= 9, given = i < 3 || i == 5 || i == 9;
        s->o[i] = given ? random_numbers(&random, counts[i], f32 ? SAT_F32 : type, i == 9 ? -1 : -2, i == 9 ? 4 : 2)
                        : make_numbers(counts[i], f32 ? SAT_F32 : type);
    }
}

static void close_scene(scene *s) {
    for (int i = 0; i < OPERANDS; i++) free(s->o[i].x), free(s->o[i].error);
    sat_pattern_free(s->pattern);
}

static void compare(const scene *s, int operand, const char *variant) {
    static const char *const names[] = {"q", "k", "v", "o", "lse", "do", "dq", "dk", "dv", "sinks", "dsinks"};
    const numbers *n = &s->o[operand];
    size_t size = sat_dtype_size(n->type), first = s->shifted ? 1 : 0, bytes = (size_t)(n->count + 16) * size;
    char *host = malloc(bytes);
    assert_ok(sat_memory_read(s->ctx, host, n->memory, bytes));
    for (int64_t e = 0; e < n->count; e++) {
        double got = sat_load(n->type, host, (int64_t)first + e), want = n->x[e];
        double most = n->error[e] + (n->type == SAT_F32 ? 0x1p-23 : unit(s)) * fabs(want) + 0x1p-24;
        if ((isinf(want) && got == want) || fabs(got - want) <= most) continue;
        fail_msg(
            "%s, %s, head sizes %d and %d, cap %g, sinks %d, causal %d, window %d, shifted %d: element %d of %s is "
            "%.7g; expected %.7g to within %.2g",
            variant, sat_dtype_name(s->p.a_dtype), (int)s->dim, (int)s->value_dim, s->p.attention.softcap,
            s->p.attention.sinks, s->p.attention.causal, (int)s->p.attention.window, s->shifted, (int)e, names[operand],
            got, want, most);
    }
    for (size_t e = 0; e < bytes; e++) /* around it nothing was written */
        if (e < first * size || e >= (first + (size_t)n->count) * size) assert_int_equal((unsigned char)host[e], 0xff);
    free(host);
}

/* Every variant of ours that takes the problem. */
static void run_all(scene *s, const sat_problem *p, int first_output, int last_output) {
    void *at[OPERANDS];
    int runs = 0;
    for (size_t i = 0; i < sat_variant_count(s->ctx); i++) {
        const sat_variant *v = sat_variant_at(s->ctx, i);
        sat_plan *plan = NULL;
        if (v->op != p->op || v->backend != SAT_CUDA || v->flags & SAT_V_LIBRARY ||
            sat_plan_create_with(s->ctx, s->pattern, p, v->name, &plan) != SAT_OK)
            continue;
        for (int k = 0; k < OPERANDS; k++) {
            bool output = (k >= first_output && k <= last_output) || (k == 10 && p->op != SAT_ATTENTION);
            place(s, k, output), at[k] = s->o[k].at;
        }
        if (p->op == SAT_ATTENTION) at[5] = s->o[9].at;
        assert_ok(run_in_order(plan, p, at, NULL));
        assert_ok(sat_stream_wait(s->ctx, NULL));
        for (int k = first_output; k <= last_output; k++) compare(s, k, v->name);
        if (p->op != SAT_ATTENTION && p->attention.sinks) compare(s, 10, v->name);
        for (int k = 0; k < OPERANDS; k++) sat_memory_free(s->ctx, s->o[k].memory);
        sat_plan_free(plan);
        assert_true(i < MOST);
        ran[i] = true, runs++;
    }
    assert_true(runs > 0); /* the reference takes everything */
}

/* What the forward pass gives, as gradients are given it. */
static void round_results(scene *s) {
    for (int i = 3; i < 5; i++)
        for (int64_t e = 0; e < s->o[i].count; e++) {
            double rounded;
            sat_store(s->o[i].type, &rounded, 0, s->o[i].x[e]);
            s->o[i].x[e] = sat_load(s->o[i].type, &rounded, 0);
        }
}

static void expect_right(sat_context *ctx, sat_dtype type, const sizes *z, const mask *m, double cap, bool sinks,
                         int number) {
    scene s;
    open_scene(&s, ctx, type, z, m, cap, sinks, number);
    each_query(&s, forward_row);
    sat_problem forward = s.p;
    forward.op = SAT_ATTENTION, forward.attention.lse = true;
    run_all(&s, &forward, 3, 4);
    round_results(&s);
    each_query(&s, backward_row);
    run_all(&s, &s.p, 6, 8);
    close_scene(&s);
}

static const sat_dtype types[] = {SAT_F16, SAT_BF16, SAT_F32};

static void every_variant_is_right_under_every_option(void **state) {
    (void)state;
    sat_context *ctx = open_cuda(SAT_EFFORT_OFF);
    int number = 0;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t z = 0; z < sizeof all_sizes / sizeof *all_sizes; z++)
            for (size_t m = 0; m < sizeof masks / sizeof *masks; m++)
                for (int options = 0; options < 4; options++, number++)
                    expect_right(ctx, types[t], &all_sizes[z], &masks[m], options & 1 ? 1.5 : 0, options & 2,
                                 number / 4 + options);
    sat_context_free(ctx);
}

/* By name, so that a kernel that stops taking options is missed. The kernels for Hopper alone take plain problems. */
static void every_family_was_there(void **state) {
    (void)state;
    static const char *const without = "_sm90_";
    sat_context *ctx = open_cuda(SAT_EFFORT_OFF);
    for (size_t i = 0; i < sat_variant_count(ctx); i++) {
        const sat_variant *v = sat_variant_at(ctx, i);
        bool attention = v->op == SAT_ATTENTION || v->op == SAT_ATTENTION_BACKWARD;
        if (!attention || v->backend != SAT_CUDA || v->flags & SAT_V_LIBRARY || strstr(v->name, without)) continue;
        if (!ran[i]) fail_msg("%s: took no problem here", v->name);
    }
    sat_context_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_variant_is_right_under_every_option),
                                       cmocka_unit_test(every_family_was_there)};
    if (!has_gpu()) return NO_GPU;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
