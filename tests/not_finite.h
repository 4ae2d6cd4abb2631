/* Products of operands that hold NaN and infinities, on any device: what the stored blocks multiply comes out as IEEE
 * arithmetic has it, and absent blocks multiply nothing. */
#ifndef SAT_TESTS_NOT_FINITE_H
#define SAT_TESTS_NOT_FINITE_H

#include "support.h"

#include "problems.h"
#include "variant.h"

/* What is planted. A plan takes them one after the other, so that each kind comes after finite operands and others. */
typedef enum plant {
    NOTHING,
    ONE_INFINITY,      /* somewhere in B */
    UNDER_NO_BLOCK,    /* NaN in a row of B that no stored block multiplies, if there is one */
    LAST_COLUMN,       /* of B: -Inf in its last row */
    EVERYWHERE,        /* all of B is NaN */
    FIRST_ROW_OF_A,    /* an infinity among the values of the first row: a false alarm */
    TOO_LARGE_FOR_F16, /* in B: sums that only an f16 output cannot hold */
    PLANTS
} plant;

typedef struct specimen {
    sat_problem problem;
    sat_pattern *pattern;
    sat_pattern_view a;
    int64_t count[4]; /* elements of values, B, C and bias */
    sat_dtype dtype[4];
    double *number[4];
    void *device[4];
    int64_t *place; /* of each element of op(A), (m, k), among the values; -1: it is not stored */
} specimen;

static inline double some_number(uint64_t *random) { return 0.5 * (double)(random_below(random, 5) - 2); }

static inline sat_layout some_layout(uint64_t *random, int64_t rows, int64_t cols) {
    int64_t gap = random_below(random, 4);
    return random_below(random, 2) ? (sat_layout){cols + gap, 1, 0} : (sat_layout){1, rows + gap, 0};
}

static inline sat_problem some_problem(uint64_t *random, const sat_pattern_view *a, sat_dtype t, sat_dtype c) {
    static const double alphas[] = {1, 1, -0.5, 0}, betas[] = {0, 0, 0.5, 1};
    static const sat_activation acts[] = {SAT_ACT_NONE, SAT_ACT_NONE, SAT_ACT_RELU, SAT_ACT_GELU};
    sat_problem p = matmul_problem(t, 1 + random_below(random, random_below(random, 2) ? 9 : 300));
    p.c_dtype = c;
    p.matmul.transpose = random_below(random, 2) ? SAT_TRANSPOSE : SAT_NO_TRANSPOSE;
    p.m = p.matmul.transpose ? a->cols : a->rows, p.k = p.matmul.transpose ? a->rows : a->cols;
    p.b = some_layout(random, p.k, p.n), p.c = some_layout(random, p.m, p.n);
    p.alpha = alphas[random_below(random, 4)], p.beta = betas[random_below(random, 4)];
    p.matmul.bias = random_below(random, 3) ? SAT_BIAS_NONE : SAT_BIAS_ROW;
    p.matmul.activation = acts[random_below(random, 4)];
    p.flags = random_below(random, 3) ? 0 : SAT_FIXED_VALUES;
    return p;
}

static inline int64_t at(const sat_layout *l, int64_t i, int64_t j) { return i * l->row_stride + j * l->col_stride; }

/* Where each element of op(A) is among the values. */
static inline int64_t *find_places(const sat_problem *p, const sat_pattern_view *a) {
    int64_t *place = malloc((size_t)(p->m * p->k) * sizeof *place), area = a->block_rows * a->block_cols;
    memset(place, 0xff, (size_t)(p->m * p->k) * sizeof *place);
    for (int64_t row = 0; row < a->grid_rows; row++)
        for (int64_t e = a->row_ptr[row] * area; e < a->row_ptr[row + 1] * area; e++) {
            int64_t i = row * a->block_rows + e % area / a->block_cols;
            int64_t j = a->col_idx[e / area] * a->block_cols + e % a->block_cols;
            if (i >= a->rows || j >= a->cols) continue; /* padding */
            place[p->matmul.transpose ? j * p->k + i : i * p->k + j] = e;
        }
    return place;
}

static inline specimen make_specimen(sat_context *ctx, uint64_t *random, sat_dtype t, sat_dtype c) {
    specimen s = {.dtype = {t, t, c, c}};
    int64_t rows = 1 + random_below(random, random_below(random, 8) ? 90 : 600), cols = 1 + random_below(random, 90);
    int64_t br = 1 + random_below(random, 17), bc = 1 + random_below(random, 17);
    s.pattern = random_pattern(ctx, random, rows, cols, br, bc, 0.3, false);
    s.a = view_of(s.pattern);
    s.problem = some_problem(random, &s.a, t, c);
    s.place = find_places(&s.problem, &s.a);
    const sat_problem *p = &s.problem;
    s.count[0] = s.a.stored_blocks * br * bc, s.count[3] = p->m;
    s.count[1] = at(&p->b, p->k - 1, p->n - 1) + 1, s.count[2] = at(&p->c, p->m - 1, p->n - 1) + 1;
    for (int o = 0; o < 4; o++) {
        s.number[o] = malloc((size_t)(s.count[o] + 1) * sizeof(double));
        assert_ok(sat_memory_alloc(ctx, (size_t)(s.count[o] + 1) * sat_dtype_size(s.dtype[o]), &s.device[o]));
    }
    return s;
}

static inline void free_specimen(sat_context *ctx, specimen *s) {
    for (int o = 0; o < 4; o++) free(s->number[o]), sat_memory_free(ctx, s->device[o]);
    free(s->place);
    sat_pattern_free(s->pattern);
}

/* ---- operands ---- */

static inline int64_t row_under_no_block(const specimen *s, int64_t otherwise) {
    for (int64_t k = 0; k < s->problem.k; k++) {
        bool used = false;
        for (int64_t i = 0; i < s->problem.m; i++) used = used || s->place[i * s->problem.k + k] >= 0;
        if (!used) return k;
    }
    return otherwise;
}

static inline void plant_numbers(specimen *s, plant what, uint64_t *random) {
    const sat_problem *p = &s->problem;
    int64_t k = random_below(random, p->k), j = random_below(random, p->n);
    double *b = s->number[1];
    if (what == ONE_INFINITY) b[at(&p->b, k, j)] = (double)INFINITY;
    if (what == UNDER_NO_BLOCK) b[at(&p->b, row_under_no_block(s, k), j)] = (double)NAN;
    if (what == LAST_COLUMN) b[at(&p->b, p->k - 1, p->n - 1)] = -(double)INFINITY;
    if (what == TOO_LARGE_FOR_F16) b[at(&p->b, k, j)] = s->dtype[1] == SAT_F16 ? 65504 : 1e6;
    for (int64_t e = 0; e < s->count[1] && what == EVERYWHERE; e++) b[e] = (double)NAN;
    for (int64_t e = 0; e < p->k && what == FIRST_ROW_OF_A; e++)
        if (s->place[e] >= 0) s->number[0][s->place[e]] = (double)INFINITY;
}

/* NaN wherever nothing may be read: beyond the matrix, between lines, and in C where beta is 0. */
static inline void fill_specimen(sat_context *ctx, specimen *s, plant what, uint64_t *random) {
    const sat_problem *p = &s->problem;
    for (int o = 0; o < 4; o++)
        for (int64_t e = 0; e < s->count[o]; e++) s->number[o][e] = o == 3 ? some_number(random) : (double)NAN;
    for (int64_t e = 0; e < p->m * p->k; e++)
        if (s->place[e] >= 0) s->number[0][s->place[e]] = some_number(random);
    for (int64_t j = 0; j < p->n; j++) {
        for (int64_t k = 0; k < p->k; k++) s->number[1][at(&p->b, k, j)] = some_number(random);
        for (int64_t i = 0; i < p->m && p->beta != 0; i++) s->number[2][at(&p->c, i, j)] = some_number(random);
    }
    if (random_below(random, 2)) s->number[2][at(&p->c, 0, random_below(random, p->n))] = (double)NAN;
    plant_numbers(s, what, random);
    for (int o = 0; o < 4; o++) {
        size_t bytes = (size_t)(s->count[o] + 1) * sat_dtype_size(s->dtype[o]);
        void *host = calloc(1, bytes);
        for (int64_t e = 0; e < s->count[o]; e++) {
            sat_store(s->dtype[o], host, e, s->number[o][e]);
            s->number[o][e] = sat_load(s->dtype[o], host, e);
        }
        assert_ok(sat_memory_write(ctx, s->device[o], host, bytes));
        free(host);
    }
}

/* ---- results ---- */

/* Element (i, j) of the result, rounded once. */
static inline double expected(const specimen *s, int64_t i, int64_t j) {
    const sat_problem *p = &s->problem;
    double sum = 0, stored = 0;
    for (int64_t k = 0; k < p->k; k++) {
        int64_t place = s->place[i * p->k + k];
        if (place >= 0) sum += s->number[0][place] * s->number[1][at(&p->b, k, j)];
    }
    double y = p->alpha == 0 ? 0 : p->alpha * sum; /* as BLAS has it */
    if (p->beta != 0) y += p->beta * s->number[2][at(&p->c, i, j)];
    if (p->matmul.bias == SAT_BIAS_ROW) y += s->number[3][i];
    sat_store(s->dtype[2], &stored, 0, sat_act_f64(p->matmul.activation, y));
    return sat_load(s->dtype[2], &stored, 0);
}

static inline bool near(sat_dtype t, double got, double want) {
    static const double units[] = {[SAT_F32] = 1e-5, [SAT_F64] = 1e-12, [SAT_F16] = 2e-3, [SAT_BF16] = 2e-2};
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got);
    if (isinf(want) || isinf(got)) return want == got;
    return fabs(got - want) <= units[t] * (1 + fabs(want));
}

static inline void expect_result(sat_context *ctx, const specimen *s, const char *name, plant what) {
    const sat_problem *p = &s->problem;
    size_t bytes = (size_t)s->count[2] * sat_dtype_size(s->dtype[2]);
    void *c = malloc(bytes + 1);
    assert_ok(sat_memory_read(ctx, c, s->device[2], bytes));
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++) {
            double got = sat_load(s->dtype[2], c, at(&p->c, i, j)), want = expected(s, i, j);
            if (near(s->dtype[2], got, want)) continue;
            fail_msg(
                "%s, %lldx%lldx%lld, blocks of %lldx%lld, dtypes %d and %d, alpha %g, beta %g, activation %d, planted "
                "%d: C(%lld, %lld) is %g and not %g",
                name, (long long)p->m, (long long)p->n, (long long)p->k, (long long)s->a.block_rows,
                (long long)s->a.block_cols, (int)s->dtype[0], (int)s->dtype[2], p->alpha, p->beta,
                (int)p->matmul.activation, (int)what, (long long)i, (long long)j, got, want);
        }
    free(c);
}

/* False where the variant does not take such a problem. */
static inline bool expect_right(sat_context *ctx, const sat_variant *v, specimen *s, uint64_t *random) {
    sat_plan *plan = NULL;
    if (sat_plan_create_with(ctx, s->pattern, &s->problem, v->name, &plan) != SAT_OK) return false;
    for (int round = 0; round < 2 * PLANTS; round++) {
        plant what = round % 2 ? NOTHING : (plant)(round / 2);
        fill_specimen(ctx, s, what, random);
        if (s->problem.flags & SAT_FIXED_VALUES) assert_ok(sat_plan_refresh(plan, s->device[0], NULL));
        assert_ok(run_in_order(plan, &s->problem, s->device, NULL));
        assert_ok(sat_stream_wait(ctx, NULL));
        expect_result(ctx, s, v->name, what);
    }
    sat_plan_free(plan);
    return true;
}

/* Whether a variant multiplies B by zeros that are not stored, and mends what comes of it. */
static inline bool is_guarded(const sat_variant *v) {
    return v->op == SAT_MATMUL && (strstr(v->name, "_guarded") || strstr(v->name, "_gathered"));
}

/* Every guarded variant of the context on `count` problems of each dtype; how many runs there were. */
static inline int64_t expect_guarded_right(sat_context *ctx, int count) {
    static const sat_dtype dtypes[][2] = {{SAT_F32, SAT_F32},   {SAT_F64, SAT_F64}, {SAT_F16, SAT_F16},
                                          {SAT_BF16, SAT_BF16}, {SAT_F16, SAT_F32}, {SAT_BF16, SAT_F32}};
    uint64_t random = 26;
    int64_t runs = 0;
    for (int i = 0; i < 6 * count; i++) {
        specimen s = make_specimen(ctx, &random, dtypes[i % 6][0], dtypes[i % 6][1]);
        for (size_t e = 0; e < sat_variant_count(ctx); e++) {
            const sat_variant *v = sat_variant_at(ctx, e);
            if (is_guarded(v)) runs += expect_right(ctx, v, &s, &random);
        }
        free_specimen(ctx, &s);
    }
    return runs;
}

static inline bool has_guarded(sat_context *ctx) {
    bool any = false;
    for (size_t e = 0; e < sat_variant_count(ctx); e++) any = any || is_guarded(sat_variant_at(ctx, e));
    return any;
}

#endif
