/* Long f32 sums of one sign on a GPU: every variant of ours that takes f32, forced, is as exact as sums in parts allow.
 * Rows of different lengths, blocks that are deeper than a part and ragged, split rows, and what an epilogue does once
 * however many parts there are. Official libraries sum as they like, and so do tensor cores that TF32 asks for, which
 * truncate; 3xTF32, which is as exact as f32, adds up its steps by plain additions. */
#include "cuda_support.h"
#include "long_sums.h"
#include "problems.h"

static bool ours(const sat_variant *v, sat_operation op) {
    return v->op == op && !(v->flags & SAT_V_LIBRARY) && (!v->instance.dtype || v->instance.dtype == SAT_F32) &&
           !strstr(v->name, "tf32") && !strstr(v->name, "shallow"); /* which takes no sum that is longer than a part */
}

/* As device memory is: loads of 16 bytes, where the strides allow them. */
static void align(sat_problem *p) { p->a_align = p->b_align = p->c_align = 16; }

/* ---- which variants ran: all must, in one of the cases ---- */

enum { MOST = 1024 };
static bool ran[MOST];

static void expect_all_ran(sat_context *ctx, sat_operation op) {
    for (size_t i = 0; i < sat_variant_count(ctx); i++)
        if (ours(sat_variant_at(ctx, i), op) && !ran[i])
            fail_msg("%s: no case here fits it", sat_variant_at(ctx, i)->name);
}

/* Fills the output with NaN, runs the variant, and reads the output; false where it does not fit. */
static bool run(sat_context *ctx, const sat_pattern *pattern, const sat_problem *p, size_t variant, void **device,
                int output, void *host, size_t bytes, const void *before) {
    const sat_variant *v = sat_variant_at(ctx, variant);
    sat_plan *plan = NULL;
    if (!ours(v, p->op) || sat_plan_create_with(ctx, pattern, p, v->name, &plan) != SAT_OK) return false;
    if (before) memcpy(host, before, bytes);
    else memset(host, 0xff, bytes);
    assert_ok(sat_memory_write(ctx, device[output], host, bytes));
    assert_ok(run_in_order(plan, p, device, NULL));
    assert_ok(sat_stream_wait(ctx, NULL));
    assert_ok(sat_memory_read(ctx, host, device[output], bytes));
    sat_plan_free(plan);
    assert_true(variant < MOST);
    return ran[variant] = true;
}

/* ---- products ---- */

/* C = op(A)*B: `m` rows in blocks of `high`, `depth` in blocks of `wide`. `epilogue`: relu(C/2 - C0 + bias), where the
 * sums outweigh C0 only near their end. */
typedef struct shape {
    int64_t m, high, n, depth, wide;
    double density;
    bool epilogue, by_columns;
} shape;

typedef struct product {
    shape s;
    bool turned;
    sat_pattern *pattern;
    sat_problem problem;
    numbers values, b, bias;
    float *before, *c;
    double *want, *scale; /* as C is stored */
    void *device[4];
} product;

static int64_t place(const product *x, int64_t i, int64_t j) {
    return x->s.by_columns ? j * x->s.m + i : i * x->s.n + j;
}

static void add_block(product *x, const sat_pattern_view *a, int64_t row, int64_t t) {
    int64_t area = a->block_rows * a->block_cols;
    for (int64_t e = 0; e < area; e++) {
        int64_t i = row * a->block_rows + e / a->block_cols, k = a->col_idx[t] * a->block_cols + e % a->block_cols;
        if (i >= a->rows || k >= a->cols) continue;
        double value = (double)x->values.exact[t * area + e];
        const float *b = x->b.exact + (x->turned ? i : k) * x->s.n;
        double *to = x->scale + (x->turned ? k : i) * x->s.n;
        for (int64_t j = 0; j < x->s.n; j++) to[j] += value * (double)b[j];
    }
}

static void finish(product *x) {
    double *sum = x->scale;
    x->scale = malloc((size_t)(x->s.m * x->s.n) * sizeof *x->scale);
    for (int64_t i = 0; i < x->s.m; i++)
        for (int64_t j = 0; j < x->s.n; j++) {
            int64_t at = place(x, i, j);
            double before = x->problem.beta * (double)x->before[at], bias = (double)x->bias.exact[i];
            double y = x->problem.alpha * sum[i * x->s.n + j];
            if (!x->s.epilogue) before = bias = 0;
            x->scale[at] = y + fabs(before) + bias, y += before + bias;
            x->want[at] = x->s.epilogue && y < 0 ? 0 : y;
        }
    free(sum);
}

static product make_product(sat_context *ctx, const shape *s, bool turned) {
    uint64_t random = 11;
    product x = {.s = *s, .turned = turned, .problem = matmul_problem(SAT_F32, s->n)};
    x.pattern = turned ? random_pattern(ctx, &random, s->depth, s->m, s->wide, s->high, s->density, false)
                       : random_pattern(ctx, &random, s->m, s->depth, s->high, s->wide, s->density, false);
    sat_pattern_view a = view_of(x.pattern);
    int64_t stored = a.stored_blocks * s->high * s->wide, size = s->m * s->n;
    x.problem.matmul.transpose = turned ? SAT_TRANSPOSE : SAT_NO_TRANSPOSE;
    x.problem.flags = SAT_ALLOW_DENSE | SAT_ALLOW_NONDETERMINISTIC;
    align(&x.problem);
    if (s->by_columns) x.problem.c = (sat_layout){.row_stride = 1, .col_stride = s->m};
    if (s->epilogue) {
        x.problem.alpha = 0.5, x.problem.beta = -1, x.problem.matmul.bias = SAT_BIAS_ROW;
        x.problem.matmul.activation = SAT_ACT_RELU;
    }
    x.values = make_numbers(&random, stored, SAT_F32), x.b = make_numbers(&random, s->depth * s->n, SAT_F32);
    x.bias = make_numbers(&random, s->m, SAT_F32);
    x.before = malloc((size_t)size * sizeof *x.before), x.c = malloc((size_t)size * sizeof *x.c);
    for (int64_t i = 0; i < size; i++) x.before[i] = (float)(0.4 * fmin(1, s->density) * (double)s->depth);
    x.want = calloc((size_t)size, sizeof *x.want), x.scale = calloc((size_t)size, sizeof *x.scale);
    for (int64_t row = 0; row < a.grid_rows; row++)
        for (int64_t t = a.row_ptr[row]; t < a.row_ptr[row + 1]; t++) add_block(&x, &a, row, t);
    finish(&x);
    x.device[0] = to_device(ctx, x.values.data, (size_t)stored * 4);
    x.device[1] = to_device(ctx, x.b.data, (size_t)(s->depth * s->n) * 4);
    x.device[2] = to_device(ctx, x.before, (size_t)size * 4);
    x.device[3] = to_device(ctx, x.bias.data, (size_t)s->m * 4);
    return x;
}

static void free_product(sat_context *ctx, product *x) {
    for (int i = 0; i < 4; i++) sat_memory_free(ctx, x->device[i]);
    free_numbers(&x->values), free_numbers(&x->b), free_numbers(&x->bias);
    free(x->before), free(x->c), free(x->want), free(x->scale);
    sat_pattern_free(x->pattern);
}

static double largest_part(const float *got, const double *want, const double *scale, int64_t count) {
    double largest = 0;
    for (int64_t i = 0; i < count; i++) {
        double error = fabs((double)got[i] - want[i]) / (scale ? scale[i] : want[i]);
        if (!(error <= largest)) largest = error; /* NaN too */
    }
    return largest;
}

static void expect_product(sat_context *ctx, const shape *s, bool turned) {
    product x = make_product(ctx, s, turned);
    int64_t size = s->m * s->n;
    char words[128];
    snprintf(words, sizeof words, "%lldx%lldx%lld in blocks of %lldx%lld%s%s%s", (long long)s->m, (long long)s->n,
             (long long)s->depth, (long long)s->high, (long long)s->wide, turned ? ", transposed" : "",
             s->epilogue ? ", with an epilogue" : "", s->by_columns ? ", C by columns" : "");
    for (size_t i = 0; i < sat_variant_count(ctx); i++) {
        if (!run(ctx, x.pattern, &x.problem, i, x.device, 2, x.c, (size_t)size * 4, s->epilogue ? x.before : NULL))
            continue;
        expect_error(largest_part(x.c, x.want, x.scale, size), bound((double)s->depth, SAT_SUM_PART, 16),
                     sat_variant_at(ctx, i)->name, words);
    }
    free_product(ctx, &x);
}

enum { DEEP = 1 << 16 };

static const shape shapes[] = {
    {.m = 128, .high = 128, .n = 128, .depth = DEEP, .wide = 64, .density = 2},
    {.m = 160, .high = 32, .n = 70, .depth = DEEP, .wide = 24, .density = 0.6, .epilogue = true}, /* rows differ */
    {.m = 64, .high = 16, .n = 64, .depth = DEEP, .wide = 16, .density = 0.6, .epilogue = true, .by_columns = true},
    {.m = 64, .high = 64, .n = 48, .depth = DEEP, .wide = 5000, .density = 2, .epilogue = true}, /* ragged, and deep */
    {.m = 8, .high = 8, .n = 33, .depth = DEEP, .wide = DEEP, .density = 2},
    {.m = 48, .high = 8, .n = 40, .depth = DEEP, .wide = 8, .density = 0.6},
    {.m = 24, .high = 6, .n = 40, .depth = DEEP - 4, .wide = 6, .density = 0.6, .epilogue = true},
    {.m = 24, .high = 4, .n = 200, .depth = DEEP, .wide = 4, .density = 0.6, .by_columns = true},
    {.m = 9, .high = 3, .n = 12, .depth = DEEP, .wide = 3, .density = 0.6},
    {.m = 12, .high = 2, .n = 200, .depth = DEEP, .wide = 2, .density = 0.6, .epilogue = true},
    {.m = 12, .high = 1, .n = 200, .depth = DEEP, .wide = 1, .density = 0.6},
    {.m = 12, .high = 1, .n = 200, .depth = DEEP, .wide = 1, .density = 0.02}, /* rows of one part, */
    {.m = 12, .high = 1, .n = 201, .depth = DEEP, .wide = 1, .density = 0.02}, /* and those of B unaligned */
    {.m = 13, .high = 13, .n = 150, .depth = DEEP, .wide = 5, .density = 0.6},
    {.m = 3, .high = 3, .n = 151, .depth = DEEP, .wide = 7, .density = 0.6},             /* nothing is aligned */
    {.m = 40, .high = 20, .n = 24, .depth = 8 * SAT_SUM_PART, .wide = 12, .density = 2}, /* a part for each of 8 warps
                                                                                          */
    {.m = 256, .high = 128, .n = 1, .depth = 4 * DEEP, .wide = 64, .density = 0.6, .epilogue = true}, /* few lanes */
    {.m = 256, .high = 128, .n = 4, .depth = 4 * DEEP, .wide = 64, .density = 0.6},
    {.m = 256, .high = 128, .n = 8, .depth = 4 * DEEP, .wide = 64, .density = 0.6, .epilogue = true},
    {.m = 64, .high = 32, .n = 1, .depth = 4 * DEEP, .wide = 4 * DEEP, .density = 2},
    {.m = 64, .high = 32, .n = 3, .depth = 4 * DEEP, .wide = 50000, .density = 2, .epilogue = true},
    {.m = 70, .high = 35, .n = 1, .depth = 4 * DEEP, .wide = 3, .density = 0.6},
    {.m = 70, .high = 35, .n = 3, .depth = 4 * DEEP, .wide = 3, .density = 0.6, .epilogue = true},
    {.m = 70, .high = 35, .n = 7, .depth = 4 * DEEP, .wide = 3, .density = 0.6},
};

static void long_products_are_summed_in_parts(void **state) {
    (void)state;
    sat_context *ctx = open_cuda(SAT_EFFORT_OFF);
    for (size_t i = 0; i < 2 * sizeof shapes / sizeof *shapes; i++) expect_product(ctx, &shapes[i / 2], i % 2);
    expect_all_ran(ctx, SAT_MATMUL);
    sat_context_free(ctx);
}

/* ---- sampled products ---- */

/* S = X*Y/2 - S0 at all blocks, `side` rows and columns in blocks of high x wide; Y by rows or by columns. */
static void expect_sampled(sat_context *ctx, int64_t side, int64_t high, int64_t wide, bool by_columns) {
    const int64_t deep = DEEP, size = side * side;
    uint64_t random = 5;
    sat_pattern *pattern = full_pattern(ctx, side, side, high, wide);
    numbers x = make_numbers(&random, side * deep, SAT_F32), y = make_numbers(&random, side * deep, SAT_F32);
    double *want = calloc((size_t)size, sizeof *want), *scale = malloc((size_t)size * sizeof *scale);
    float *before = malloc((size_t)size * sizeof *before), *s = malloc((size_t)size * sizeof *s);
    sat_problem p = sampled_problem(SAT_F32, deep);
    align(&p);
    p.alpha = 0.5, p.beta = -1, p.flags = SAT_ALLOW_DENSE | SAT_ALLOW_NONDETERMINISTIC;
    p.b = by_columns ? (sat_layout){.row_stride = 1, .col_stride = deep}
                     : (sat_layout){.row_stride = side, .col_stride = 1};
    for (int64_t e = 0; e < size; e++) {
        int64_t block = e / (high * wide), in = e % (high * wide), across = side / wide;
        int64_t i = block / across * high + in / wide, j = block % across * wide + in % wide;
        const float *from = y.exact + j * p.b.col_stride;
        for (int64_t k = 0; k < deep; k++) want[e] += (double)x.exact[i * deep + k] * (double)from[k * p.b.row_stride];
        before[e] = 0.4f * (float)deep, scale[e] = 0.5 * want[e] + (double)before[e];
        want[e] = 0.5 * want[e] - (double)before[e];
    }
    void *device[3] = {to_device(ctx, x.data, (size_t)(side * deep) * 4),
                       to_device(ctx, y.data, (size_t)(side * deep) * 4), to_device(ctx, before, (size_t)size * 4)};
    for (size_t i = 0; i < sat_variant_count(ctx); i++)
        if (run(ctx, pattern, &p, i, device, 2, s, (size_t)size * 4, before))
            expect_error(largest_part(s, want, scale, size), bound((double)deep, SAT_SUM_PART, 16),
                         sat_variant_at(ctx, i)->name, by_columns ? "Y by columns" : "Y by rows");
    for (int i = 0; i < 3; i++) sat_memory_free(ctx, device[i]);
    free_numbers(&x), free_numbers(&y), free(want), free(scale), free(before), free(s);
    sat_pattern_free(pattern);
}

static void long_sampled_products_are_summed_in_parts(void **state) {
    (void)state;
    sat_context *ctx = open_cuda(SAT_EFFORT_OFF);
    for (int order = 0; order < 2; order++) {
        expect_sampled(ctx, 128, 128, 128, order);
        expect_sampled(ctx, 96, 16, 32, order);
        expect_sampled(ctx, 12, 4, 6, order);
    }
    expect_all_ran(ctx, SAT_SAMPLED);
    sat_context_free(ctx);
}

/* ---- attention ---- */

static void expect_attention(sat_context *ctx, int64_t queries) {
    attention x = make_attention(queries, 1 << 16);
    sat_pattern *pattern = full_pattern(ctx, x.queries, x.keys, 16, 64);
    sat_problem p = attention_problem(SAT_F32, 1, 1, DIM);
    align(&p);
    size_t size = (size_t)(x.queries * DIM), rows = (size_t)(x.keys * DIM);
    float *o = malloc(size * sizeof *o);
    void *device[4] = {to_device(ctx, x.q.data, size * 4), to_device(ctx, x.k.data, rows * 4),
                       to_device(ctx, x.v.data, rows * 4), to_device(ctx, x.o32, size * 4)};
    for (size_t i = 0; i < sat_variant_count(ctx); i++)
        if (run(ctx, pattern, &p, i, device, 3, o, size * 4, NULL))
            expect_error(largest_part(o, x.o, NULL, (int64_t)size), bound((double)x.keys, SAT_SUM_PART, 16),
                         sat_variant_at(ctx, i)->name, "O");
    for (int i = 0; i < 4; i++) sat_memory_free(ctx, device[i]);
    free(o), free_attention(&x);
    sat_pattern_free(pattern);
}

static void long_rows_of_attention_are_summed_in_parts(void **state) {
    (void)state;
    sat_context *ctx = open_cuda(SAT_EFFORT_OFF);
    expect_attention(ctx, 70);
    expect_attention(ctx, 40); /* few enough for `split` */
    expect_all_ran(ctx, SAT_ATTENTION);
    sat_context_free(ctx);
}

/* Scores that grow from key to key: what lies in O is scaled down part by part. */
static void parts_of_attention_follow_the_largest_score(void **state) {
    (void)state;
    enum { KEYS = 3 * SAT_SUM_PART + 100, QUERIES = 17 };
    sat_context *ctx = open_cuda(SAT_EFFORT_OFF);
    sat_pattern *pattern = full_pattern(ctx, QUERIES, KEYS, QUERIES, 4);
    sat_problem p = attention_problem(SAT_F32, 1, 1, DIM);
    align(&p);
    size_t size = QUERIES * DIM, rows = (size_t)KEYS * DIM;
    float *q = calloc(size, 4), *k = calloc(rows, 4), *v = malloc(rows * 4), *o = malloc(size * 4);
    double *want = calloc(size, sizeof *want);
    uint64_t random = 9;
    for (int64_t i = 0; i < QUERIES; i++) q[i * DIM] = (float)(i - 8); /* falling, flat, rising */
    for (int64_t j = 0; j < KEYS; j++) k[j * DIM] = (float)j / 1024;
    for (size_t i = 0; i < rows; i++) v[i] = positive(&random);
    for (int64_t i = 0; i < QUERIES; i++) {
        double total = 0, most = fmax(0, (double)q[i * DIM] * (double)k[(KEYS - 1) * DIM] / 4);
        for (int64_t j = 0; j < KEYS; j++) {
            double weight = exp((double)q[i * DIM] * (double)k[j * DIM] / 4 - most);
            total += weight;
            for (int e = 0; e < DIM; e++) want[i * DIM + e] += weight * (double)v[j * DIM + e];
        }
        for (int e = 0; e < DIM; e++) want[i * DIM + e] /= total;
    }
    void *device[4] = {to_device(ctx, q, size * 4), to_device(ctx, k, rows * 4), to_device(ctx, v, rows * 4),
                       to_device(ctx, o, size * 4)};
    for (size_t i = 0; i < sat_variant_count(ctx); i++)
        if (run(ctx, pattern, &p, i, device, 3, o, size * 4, NULL)) /* 64: exponents of up to 16, rounded to f32 */
            expect_error(largest_part(o, want, NULL, (int64_t)size), bound(KEYS, SAT_SUM_PART, 64),
                         sat_variant_at(ctx, i)->name, "O of scores that grow");
    for (int i = 0; i < 4; i++) sat_memory_free(ctx, device[i]);
    free(q), free(k), free(v), free(o), free(want);
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

/* dV of many queries, each key's sum over all of them; the queries are those of `heads` that share the keys. */
static void expect_gradient(sat_context *ctx, int64_t queries, int64_t keys, int heads) {
    attention x = make_attention(queries * heads, keys);
    sat_pattern *pattern = full_pattern(ctx, queries, keys, 64, 8);
    sat_problem p = attention_problem(SAT_F32, heads, 1, DIM);
    size_t size = (size_t)(x.queries * DIM) * 4, rows = (size_t)(keys * DIM), bytes = rows * 4;
    double *want = calloc(rows, sizeof *want);
    float *dv = malloc(bytes);
    align(&p);
    p.op = SAT_ATTENTION_BACKWARD;
    for (int64_t i = 0; i < x.queries; i++)
        for (int64_t j = 0; j < keys; j++)
            for (int e = 0; e < DIM; e++)
                want[j * DIM + e] += x.weight[i * keys + j] * (double)x.dout.exact[i * DIM + e];
    void *device[9] = {
        to_device(ctx, x.q.data, size), to_device(ctx, x.k.data, bytes),   to_device(ctx, x.v.data, bytes),
        to_device(ctx, x.o32, size),    to_device(ctx, x.lse, size / DIM), to_device(ctx, x.dout.data, size),
        to_device(ctx, x.q.data, size), to_device(ctx, x.k.data, bytes),   to_device(ctx, x.v.data, bytes)};
    for (size_t i = 0; i < sat_variant_count(ctx); i++)
        if (run(ctx, pattern, &p, i, device, 8, dv, bytes, NULL))
            expect_error(largest_part(dv, want, NULL, (int64_t)rows), bound((double)x.queries, SAT_SUM_PART, 16),
                         sat_variant_at(ctx, i)->name, heads > 1 ? "dV of several heads" : "dV");
    for (int i = 0; i < 9; i++) sat_memory_free(ctx, device[i]);
    free(dv), free(want), free_attention(&x);
    sat_pattern_free(pattern);
}

static void long_columns_of_its_gradients_are_summed_in_parts(void **state) {
    (void)state;
    sat_context *ctx = open_cuda(SAT_EFFORT_OFF);
    expect_gradient(ctx, 1 << 16, 72, 1);
    expect_gradient(ctx, 1 << 13, 72, 5);
    expect_gradient(ctx, 300, 72, 200); /* several heads make a part */
    expect_all_ran(ctx, SAT_ATTENTION_BACKWARD);
    sat_context_free(ctx);
}

int main(void) {
    if (!has_gpu()) return NO_GPU;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_products_are_summed_in_parts),
        cmocka_unit_test(long_sampled_products_are_summed_in_parts),
        cmocka_unit_test(long_rows_of_attention_are_summed_in_parts),
        cmocka_unit_test(parts_of_attention_follow_the_largest_score),
        cmocka_unit_test(long_columns_of_its_gradients_are_summed_in_parts),
    };
    return cmocka_run_group_tests_name("cuda_long_sums", tests, NULL, NULL);
}
