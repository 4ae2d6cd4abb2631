/* Long sums of one sign: every variant is as exact as sums in parts allow, at depths where one long f32 sum is not. */
#include "long_sums.h"
#include "problems.h"

/* ---- products ---- */

/* C = op(A)*B, all of A stored: `m` rows in blocks of `high`, `depth` in blocks of `wide`. */
typedef struct shape {
    int64_t m, high, n, depth, wide;
    bool turned;
    sat_dtype dtype;
} shape;

typedef struct product {
    shape s;
    sat_problem problem;
    numbers values, b;
    double *want;
    float *c;
    char words[96];
} product;

static sat_pattern *product_pattern(sat_context *ctx, const shape *s) {
    if (s->turned) return full_pattern(ctx, s->depth, s->m, s->wide, s->high);
    return full_pattern(ctx, s->m, s->depth, s->high, s->wide);
}

/* The place of element (i, k) of op(A) among the values. */
static int64_t place(const shape *s, int64_t i, int64_t k) {
    int64_t rows = s->m / s->high, cols = (s->depth + s->wide - 1) / s->wide, r = i / s->high, c = k / s->wide;
    int64_t block = s->turned ? c * rows + r : r * cols + c, size = s->high * s->wide;
    i %= s->high, k %= s->wide;
    return block * size + (s->turned ? k * s->high + i : i * s->wide + k);
}

static product make_product(const shape *s) {
    uint64_t random = 11;
    product x = {.s = *s, .problem = matmul_problem(s->dtype, s->n)};
    x.problem.c_dtype = SAT_F32, x.problem.flags = SAT_ALLOW_DENSE;
    x.problem.matmul.transpose = s->turned ? SAT_TRANSPOSE : SAT_NO_TRANSPOSE;
    x.values = make_numbers(&random, s->m * ((s->depth + s->wide - 1) / s->wide * s->wide), s->dtype);
    x.b = make_numbers(&random, s->depth * s->n, s->dtype);
    x.want = calloc((size_t)(s->m * s->n), sizeof *x.want), x.c = malloc((size_t)(s->m * s->n) * sizeof *x.c);
    for (int64_t i = 0; i < s->m; i++)
        for (int64_t k = 0; k < s->depth; k++)
            for (int64_t j = 0; j < s->n; j++)
                x.want[i * s->n + j] += (double)x.values.exact[place(s, i, k)] * (double)x.b.exact[k * s->n + j];
    snprintf(x.words, sizeof x.words, "%lldx%lldx%lld in blocks of %lldx%lld%s", (long long)s->m, (long long)s->n,
             (long long)s->depth, (long long)s->high, (long long)s->wide, s->turned ? ", turned" : "");
    return x;
}

static void free_product(product *x) { free_numbers(&x->values), free_numbers(&x->b), free(x->want), free(x->c); }

/* False where the variant does not fit. */
static bool run_product(product *x, sat_context *ctx, const sat_pattern *pattern, const sat_variant *v) {
    sat_plan *plan = NULL;
    if (v->op != SAT_MATMUL || sat_plan_create_with(ctx, pattern, &x->problem, v->name, &plan) != SAT_OK) return false;
    memset(x->c, 0xff, (size_t)(x->s.m * x->s.n) * sizeof *x->c);
    assert_ok(sat_run(plan, (const void *[]){x->values.data, x->b.data}, 2, (void *[]){x->c}, 1, NULL));
    sat_plan_free(plan);
    return true;
}

static void expect_product(sat_context *ctx, const shape *s) {
    product x = make_product(s);
    sat_pattern *pattern = product_pattern(ctx, s);
    for (size_t i = 0; i < sat_variant_count(ctx); i++) {
        const sat_variant *v = sat_variant_at(ctx, i);
        if (!run_product(&x, ctx, pattern, v)) continue;
        bool library = v->flags & SAT_V_LIBRARY; /* which may be called for each block */
        double part = library && s->wide < SAT_SUM_PART ? (double)s->wide : SAT_SUM_PART;
        expect_error(largest_error(x.c, x.want, s->m * s->n), bound((double)s->depth, part, 16), v->name, x.words);
    }
    sat_pattern_free(pattern);
    free_product(&x);
}

enum { DEEP = 1 << 18 };

static const shape shapes[] = {
    {.m = 4, .high = 4, .n = 16, .depth = DEEP, .wide = 16, .dtype = SAT_F32},
    {.m = 4, .high = 4, .n = 3, .depth = DEEP, .wide = 64, .dtype = SAT_F32},
    {.m = 6, .high = 6, .n = 40, .depth = DEEP, .wide = 64, .dtype = SAT_F32},
    {.m = 13, .high = 13, .n = 16, .depth = DEEP, .wide = 2, .dtype = SAT_F32},
    {.m = 4, .high = 4, .n = 16, .depth = DEEP, .wide = 5000, .dtype = SAT_F32}, /* deeper than a part, and ragged */
    {.m = 4, .high = 4, .n = 40, .depth = DEEP, .wide = DEEP, .dtype = SAT_F32},
    {.m = 17, .high = 17, .n = 1, .depth = DEEP, .wide = DEEP, .dtype = SAT_F32},
    {.m = 64, .high = 1, .n = 16, .depth = DEEP / 4, .wide = 8, .dtype = SAT_F32}, /* rows that nobody cuts */
    {.m = 4, .high = 4, .n = 16, .depth = DEEP, .wide = 32, .dtype = SAT_BF16},
    {.m = 4, .high = 4, .n = 40, .depth = DEEP, .wide = 6000, .dtype = SAT_F16},
};

static void long_products_are_summed_in_parts(void **state) {
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    for (size_t i = 0; i < 2 * sizeof shapes / sizeof *shapes; i++) {
        shape s = shapes[i / 2];
        s.turned = i % 2;
        expect_product(ctx, &s);
    }
    sat_context_free(ctx);
}

/* How many threads there are decides how work is cut, not where parts of a sum begin. */
static void parts_do_not_depend_on_threads(void **state) {
    (void)state;
    const shape some[] = {
        {.m = 24, .high = 6, .n = 120, .depth = 1 << 15, .wide = 24, .dtype = SAT_F32},
        {.m = 24, .high = 6, .n = 120, .depth = 1 << 15, .wide = 3000, .dtype = SAT_F32},
        {.m = 40, .high = 20, .n = 5, .depth = 1 << 15, .wide = 3, .dtype = SAT_F32},
        {.m = 24, .high = 8, .n = 120, .depth = 1 << 15, .wide = 31, .dtype = SAT_BF16},
    };
    for (size_t i = 0; i < 2 * sizeof some / sizeof *some; i++) {
        shape s = some[i / 2];
        s.turned = i % 2;
        product x = make_product(&s);
        float *first = NULL;
        size_t size = (size_t)(s.m * s.n) * sizeof *first, count = 0;
        for (int threads = 1; threads <= 3; threads++) {
            sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = "",
                                     .effort = SAT_EFFORT_OFF, .threads = threads};
            sat_context *ctx = NULL;
            assert_ok(sat_context_create(&o, &ctx));
            sat_pattern *pattern = product_pattern(ctx, &s);
            count = sat_variant_count(ctx);
            if (!first) first = calloc(count, size);
            for (size_t j = 0; j < count; j++) {
                const sat_variant *v = sat_variant_at(ctx, j);
                if ((v->flags & SAT_V_REFERENCE) || !run_product(&x, ctx, pattern, v)) continue;
                float *one = first + j * (size_t)(s.m * s.n);
                if (threads == 1) memcpy(one, x.c, size);
                else if (memcmp(one, x.c, size) != 0)
                    fail_msg("%s, %s: %d threads give another result", v->name, x.words, threads);
            }
            sat_pattern_free(pattern);
            sat_context_free(ctx);
        }
        free(first);
        free_product(&x);
    }
}

static void long_sampled_products_are_summed_in_parts(void **state) {
    (void)state;
    enum { SIDE = 12 };
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    const int64_t deep = 1 << 18;
    uint64_t random = 5;
    sat_pattern *pattern = full_pattern(ctx, SIDE, SIDE, 4, 6);
    numbers x = make_numbers(&random, SIDE * deep, SAT_F32), y = make_numbers(&random, SIDE * deep, SAT_F32);
    for (int order = 0; order < 2; order++) { /* Y by rows, then by columns */
        double want[SIDE * SIDE] = {0};
        float s[SIDE * SIDE];
        sat_problem p = sampled_problem(SAT_F32, deep);
        p.b = order ? (sat_layout){.row_stride = 1, .col_stride = deep}
                    : (sat_layout){.row_stride = SIDE, .col_stride = 1};
        for (int64_t k = 0; k < deep; k++)
            for (int64_t e = 0; e < SIDE * SIDE; e++) {
                int64_t block = e / 24, i = block / 2 * 4 + e % 24 / 6, j = block % 2 * 6 + e % 6;
                want[e] += (double)x.exact[i * deep + k] * (double)y.exact[k * p.b.row_stride + j * p.b.col_stride];
            }
        for (size_t i = 0; i < sat_variant_count(ctx); i++) {
            const sat_variant *v = sat_variant_at(ctx, i);
            sat_plan *plan = NULL;
            if (v->op != SAT_SAMPLED || sat_plan_create_with(ctx, pattern, &p, v->name, &plan) != SAT_OK) continue;
            memset(s, 0xff, sizeof s);
            assert_ok(sat_run(plan, (const void *[]){x.data, y.data}, 2, (void *[]){s}, 1, NULL));
            expect_error(largest_error(s, want, SIDE * SIDE), bound((double)deep, SAT_SUM_PART, 16), v->name,
                         order ? "Y by columns" : "Y by rows");
            sat_plan_free(plan);
        }
    }
    free_numbers(&x), free_numbers(&y);
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

/* ---- attention ---- */

static void long_rows_of_attention_are_summed_in_parts(void **state) {
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    attention x = make_attention(20, 1 << 16);
    sat_pattern *pattern = full_pattern(ctx, x.queries, x.keys, x.queries, x.keys);
    sat_problem p = attention_problem(SAT_F32, 1, 1, DIM);
    float *o = malloc((size_t)(x.queries * DIM) * sizeof *o);
    for (size_t i = 0; i < sat_variant_count(ctx); i++) {
        const sat_variant *v = sat_variant_at(ctx, i);
        sat_plan *plan = NULL;
        if (v->op != SAT_ATTENTION || sat_plan_create_with(ctx, pattern, &p, v->name, &plan) != SAT_OK) continue;
        memset(o, 0xff, (size_t)(x.queries * DIM) * sizeof *o);
        assert_ok(sat_run(plan, (const void *[]){x.q.data, x.k.data, x.v.data}, 3, (void *[]){o}, 1, NULL));
        expect_error(largest_error(o, x.o, x.queries * DIM), bound((double)x.keys, 64, 16), v->name, "O");
        sat_plan_free(plan);
    }
    free(o), free_attention(&x);
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

/* dV of many queries: each key's sum over all of them. */
static void long_columns_of_its_gradients_are_summed_in_parts(void **state) {
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    attention x = make_attention(1 << 15, 24);
    sat_pattern *pattern = full_pattern(ctx, x.queries, x.keys, x.queries, x.keys);
    sat_problem p = attention_problem(SAT_F32, 1, 1, DIM);
    p.op = SAT_ATTENTION_BACKWARD;
    double *want = calloc((size_t)(x.keys * DIM), sizeof *want);
    for (int64_t i = 0; i < x.queries; i++)
        for (int64_t j = 0; j < x.keys; j++)
            for (int e = 0; e < DIM; e++)
                want[j * DIM + e] += x.weight[i * x.keys + j] * (double)x.dout.exact[i * DIM + e];
    float *dq = malloc((size_t)(x.queries * DIM) * sizeof *dq), *dk = malloc((size_t)(x.keys * DIM) * sizeof *dk);
    float *dv = malloc((size_t)(x.keys * DIM) * sizeof *dv);
    for (size_t i = 0; i < sat_variant_count(ctx); i++) {
        const sat_variant *v = sat_variant_at(ctx, i);
        sat_plan *plan = NULL;
        if (v->op != SAT_ATTENTION_BACKWARD || sat_plan_create_with(ctx, pattern, &p, v->name, &plan) != SAT_OK)
            continue;
        memset(dv, 0xff, (size_t)(x.keys * DIM) * sizeof *dv);
        assert_ok(sat_run(plan, (const void *[]){x.q.data, x.k.data, x.v.data, x.o32, x.lse, x.dout.data}, 6,
                          (void *[]){dq, dk, dv}, 3, NULL));
        expect_error(largest_error(dv, want, x.keys * DIM), bound((double)x.queries, 64, 16), v->name, "dV");
        sat_plan_free(plan);
    }
    free(dq), free(dk), free(dv), free(want), free_attention(&x);
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_products_are_summed_in_parts),
        cmocka_unit_test(parts_do_not_depend_on_threads),
        cmocka_unit_test(long_sampled_products_are_summed_in_parts),
        cmocka_unit_test(long_rows_of_attention_are_summed_in_parts),
        cmocka_unit_test(long_columns_of_its_gradients_are_summed_in_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
