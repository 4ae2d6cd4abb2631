/* Problems, contexts and runs: every bad argument has its own status and a message that names it. */
#include "support.h"
#include "problems.h"

typedef struct fixture {
    sat_context *ctx;
    sat_pattern *pattern;
} fixture;

static int set_up(void **state) {
    static fixture f;
    uint64_t random = 1;
    f.ctx = open_context(SAT_EFFORT_OFF);
    f.pattern = random_pattern(f.ctx, &random, 30, 20, 4, 8, 0.5, false);
    *state = &f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    sat_pattern_free(f->pattern);
    sat_context_free(f->ctx);
    return 0;
}

static void a_bad_problem_is_refused_by_name(void **state) {
    fixture *f = *state;
    sat_plan *plan = NULL;
    sat_problem p = matmul_problem(SAT_F32, 10);
    assert_fails(sat_plan_create(NULL, f->pattern, &p, &plan), SAT_NULL_POINTER, "context");
    assert_fails(sat_plan_create(f->ctx, NULL, &p, &plan), SAT_NULL_POINTER, "pattern");
    assert_fails(sat_plan_create(f->ctx, f->pattern, NULL, &plan), SAT_NULL_POINTER, "problem");
    assert_fails(sat_plan_create(f->ctx, f->pattern, &p, NULL), SAT_NULL_POINTER, "plan");
#define TRY(change, status, word)                                                                                      \
    p = matmul_problem(SAT_F32, 10);                                                                                   \
    change;                                                                                                            \
    assert_fails(sat_plan_create(f->ctx, f->pattern, &p, &plan), status, word);                                        \
    assert_null(plan)
    TRY(p.size = 8, SAT_BAD_STRUCT, "sat_problem");
    TRY(p.size = (size_t)-1, SAT_BAD_STRUCT, "sat_problem");
    TRY(p.op = 77, SAT_BAD_ENUM, "op");
    TRY(p.matmul.transpose = 2, SAT_BAD_ENUM, "transpose");
    TRY(p.a_dtype = 0; p.b_dtype = 0; p.c_dtype = 0, SAT_BAD_ENUM, "a_dtype");
    TRY(p.b_dtype = 9, SAT_BAD_ENUM, "b_dtype");
    TRY(p.b_dtype = SAT_F64, SAT_UNSUPPORTED, "b_dtype");
    TRY(p.c_dtype = SAT_F16, SAT_UNSUPPORTED, "c_dtype");
    TRY(p.a_dtype = p.b_dtype = SAT_F16; p.c_dtype = SAT_BF16, SAT_UNSUPPORTED, "c_dtype");
    TRY(p.compute_dtype = SAT_F64, SAT_UNSUPPORTED, "compute_dtype");
    TRY(p.compute_dtype = -1, SAT_BAD_ENUM, "compute_dtype");
    TRY(p.matmul.bias = 5, SAT_BAD_ENUM, "bias");
    TRY(p.matmul.activation = 4, SAT_BAD_ENUM, "activation");
    TRY(p.matmul.activation = -1, SAT_BAD_ENUM, "activation");
    TRY(p.flags = 1u << 20, SAT_BAD_ENUM, "flags");
    TRY(p.n = -1, SAT_BAD_SIZE, "n is -1");
    TRY(p.m = 31, SAT_BAD_SIZE, "m is 31");
    TRY(p.k = 30, SAT_BAD_SIZE, "k is 30");
    TRY(p.batch = -2, SAT_BAD_SIZE, "batch");
    TRY(p.n = INT64_MAX / 2, SAT_BAD_SIZE, "b:");
    TRY(p.b.row_stride = -1, SAT_BAD_STRIDE, "b:");
    TRY(p.c.row_stride = 5; p.c.col_stride = 1, SAT_BAD_STRIDE, "c:");
    TRY(p.c.col_stride = 1, SAT_BAD_STRIDE, "c:");
    TRY(p.batch = 3, SAT_BAD_STRIDE, "c:");
    TRY(p.batch = 3; p.c.batch_stride = 7, SAT_BAD_STRIDE, "c:");
    TRY(p.a_align = 3, SAT_MISALIGNED, "a_align");
    TRY(p.c_align = 2, SAT_MISALIGNED, "c_align");
    TRY(p.alpha = 1.0 / 0.0, SAT_UNSUPPORTED, "alpha");
    TRY(p.beta = 0.0 / 0.0, SAT_UNSUPPORTED, "beta");
    TRY(p.alpha = 1e39, SAT_UNSUPPORTED, "alpha");
    TRY(p.beta = -1e300, SAT_UNSUPPORTED, "beta");
#undef TRY
    p = sampled_problem(SAT_F32, 10);
    p.matmul.transpose = SAT_TRANSPOSE;
    assert_fails(sat_plan_create(f->ctx, f->pattern, &p, &plan), SAT_BAD_STRUCT, "op sampled");
    p = sampled_problem(SAT_F32, -3);
    assert_fails(sat_plan_create(f->ctx, f->pattern, &p, &plan), SAT_BAD_SIZE, "k is -3");
    p = sampled_problem(SAT_F32, 4);
    p.matmul.bias = SAT_BIAS_ROW;
    assert_fails(sat_plan_create(f->ctx, f->pattern, &p, &plan), SAT_BAD_STRUCT, "op sampled");
    p = matmul_problem(SAT_F32, 10);
    assert_fails(sat_plan_create_with(f->ctx, f->pattern, &p, "nobody", &plan), SAT_NOT_FOUND, "nobody");
    assert_fails(sat_plan_create_with(f->ctx, f->pattern, &p, NULL, &plan), SAT_NULL_POINTER, "variant");
    assert_fails(sat_plan_create_with(f->ctx, f->pattern, &p, "cpu_sampled_any_any_c_reference", &plan),
                 SAT_UNSUPPORTED, "does not fit");
}

static void one_leading_dimension_is_not_read_as_a_broadcast(void **state) {
    fixture *f = *state;
    sat_plan *plan = NULL;
    sat_problem p = matmul_problem(SAT_F32, 10);
    p.b.row_stride = 12;
    assert_fails(sat_plan_create(f->ctx, f->pattern, &p, &plan), SAT_BAD_STRIDE, "b: col_stride is 0");
    assert_fails(sat_plan_create(f->ctx, f->pattern, &p, &plan), SAT_BAD_STRIDE, "all 10 columns");
    assert_null(plan);
    p.b = (sat_layout){.col_stride = 31};
    assert_fails(sat_plan_create(f->ctx, f->pattern, &p, &plan), SAT_BAD_STRIDE, "b: row_stride is 0");
    p = sampled_problem(SAT_F32, 5);
    p.a.row_stride = 5;
    assert_fails(sat_plan_create(f->ctx, f->pattern, &p, &plan), SAT_BAD_STRIDE, "a: col_stride is 0");
    p.a.col_stride = 1, p.b.col_stride = 5;
    assert_fails(sat_plan_create(f->ctx, f->pattern, &p, &plan), SAT_BAD_STRIDE, "b: row_stride is 0");
    /* Where there is one column, or nothing at all, its stride says nothing. */
    for (int64_t n = 0; n < 2; n++) {
        p = matmul_problem(SAT_F32, n);
        p.b.row_stride = 12, p.c.row_stride = 12;
        assert_ok(sat_plan_create(f->ctx, f->pattern, &p, &plan));
        sat_plan_free(plan);
    }
}

/* Every variant that fits. A sanitizer sees what steps past the last column. */
static void a_stride_that_leads_nowhere_may_be_any_number(void **state) {
    fixture *f = *state;
    uint64_t random = 43;
    sat_pattern_view a = view_of(f->pattern);
    float *values = random_floats(&random, a.stored_blocks * a.block_rows * a.block_cols),
          *b = random_floats(&random, a.cols), *c = random_floats(&random, a.rows);
    double *want = dense_product(&a, values, b, 1);
    sat_problem p = matmul_problem(SAT_F32, 1);
    p.b = p.c = (sat_layout){.row_stride = 1, .col_stride = INT64_MAX, .batch_stride = INT64_MAX};
    size_t ran = 0;
    for (size_t i = 0; i < sat_variant_count(f->ctx); i++) {
        sat_plan *plan = NULL;
        if (sat_plan_create_with(f->ctx, f->pattern, &p, sat_variant_at(f->ctx, i)->name, &plan) != SAT_OK) continue;
        memset(c, 0xff, (size_t)a.rows * sizeof *c);
        assert_ok(sat_run(plan, (const void *[]){values, b}, 2, (void *[]){c}, 1, NULL));
        assert_close(c, want, a.rows, (double)a.cols);
        sat_plan_free(plan);
        ran++;
    }
    assert_true(ran >= 2);
    free(want), free(c), free(b), free(values);
}

static void a_plan_for_a_trillion_rows_without_blocks_is_made_at_once(void **state) {
    fixture *f = *state;
    const int64_t rows = (int64_t)1 << 40, row_ptr[] = {0, 0};
    sat_bsr empty = {SAT_SIZED(sat_bsr), .rows = rows,       .cols = 0,          .block_rows = rows,   .block_cols = 2,
                     .stored_blocks = 0, .row_ptr = row_ptr, .col_idx = row_ptr, .index_type = SAT_I64};
    sat_problem p = matmul_problem(SAT_F32, 1);
    sat_pattern *pattern = NULL;
    assert_ok(sat_pattern_create(f->ctx, &empty, &pattern));
    for (size_t i = 0; i < sat_variant_count(f->ctx); i++) {
        sat_plan *plan = NULL;
        if (sat_plan_create_with(f->ctx, pattern, &p, sat_variant_at(f->ctx, i)->name, &plan) == SAT_OK)
            sat_plan_free(plan);
    }
    sat_pattern_free(pattern);
}

/* Every variant that fits: B's one row, then its one column, stand for all. */
static void a_broadcast_that_is_asked_for_is_computed(void **state) {
    fixture *f = *state;
    enum { N = 6 };
    uint64_t random = 41;
    sat_pattern_view a = view_of(f->pattern);
    float *values = random_floats(&random, a.stored_blocks * a.block_rows * a.block_cols),
          *c = random_floats(&random, a.rows * N);
    float *line = random_floats(&random, a.cols + N), *b = malloc((size_t)(a.cols * N) * sizeof *b);
    for (int by_rows = 0; by_rows < 2; by_rows++) {
        sat_problem p = matmul_problem(SAT_F32, N);
        p.b = (sat_layout){.row_stride = !by_rows, .col_stride = by_rows};
        p.flags = SAT_ALLOW_BROADCAST;
        for (int64_t i = 0; i < a.cols * N; i++) b[i] = line[by_rows ? i % N : i / N];
        double *want = dense_product(&a, values, b, N);
        for (size_t i = 0; i < sat_variant_count(f->ctx); i++) {
            sat_plan *plan = NULL;
            if (sat_plan_create_with(f->ctx, f->pattern, &p, sat_variant_at(f->ctx, i)->name, &plan) != SAT_OK)
                continue;
            memset(c, 0xff, (size_t)(a.rows * N) * sizeof *c);
            assert_ok(sat_run(plan, (const void *[]){values, line}, 2, (void *[]){c}, 1, NULL));
            assert_close(c, want, a.rows * N, (double)a.cols);
            sat_plan_free(plan);
        }
        free(want);
    }
    free(values), free(c), free(line), free(b);
}

static void every_listed_mix_of_dtypes_has_a_plan(void **state) {
    fixture *f = *state;
    sat_dtype mixes[][2] = {{SAT_F32, SAT_F32}, {SAT_F64, SAT_F64},   {SAT_F16, SAT_F16},
                            {SAT_F16, SAT_F32}, {SAT_BF16, SAT_BF16}, {SAT_BF16, SAT_F32}};
    for (size_t i = 0; i < sizeof mixes / sizeof *mixes; i++) {
        for (int op = 0; op < 2; op++) {
            sat_problem p = op ? sampled_problem(mixes[i][0], 5) : matmul_problem(mixes[i][0], 5);
            p.c_dtype = mixes[i][1];
            sat_plan *plan = NULL;
            assert_ok(sat_plan_create(f->ctx, f->pattern, &p, &plan));
            sat_plan_free(plan);
        }
    }
}

static void a_run_refuses_bad_pointers(void **state) {
    fixture *f = *state;
    sat_problem p = matmul_problem(SAT_F32, 16);
    p.b_align = 32, p.matmul.bias = SAT_BIAS_ROW;
    sat_plan *plan = NULL;
    assert_ok(sat_plan_create(f->ctx, f->pattern, &p, &plan));
    float *values = aligned_alloc(64, 64 * 64), *b = aligned_alloc(64, 64 * 64), *c = aligned_alloc(64, 64 * 64);
    memset(values, 0, 64 * 64), memset(b, 0, 64 * 64);
    float bias[30] = {0};
    assert_fails(sat_run(NULL, (const void *[]){values, b, bias}, 3, (void *[]){c}, 1, NULL), SAT_NULL_POINTER, "plan");
    assert_fails(sat_run(plan, NULL, 3, (void *[]){c}, 1, NULL), SAT_NULL_POINTER, "inputs");
    assert_fails(sat_run(plan, (const void *[]){values, b, bias}, 3, NULL, 1, NULL), SAT_NULL_POINTER, "outputs");
    assert_fails(sat_run(plan, (const void *[]){NULL, b, bias}, 3, (void *[]){c}, 1, NULL), SAT_NULL_POINTER, "values");
    assert_fails(sat_run(plan, (const void *[]){values, NULL, bias}, 3, (void *[]){c}, 1, NULL), SAT_NULL_POINTER,
                 "b is NULL");
    assert_fails(sat_run(plan, (const void *[]){values, b, bias}, 3, (void *[]){NULL}, 1, NULL), SAT_NULL_POINTER,
                 "c is NULL");
    assert_fails(sat_run(plan, (const void *[]){values, b, NULL}, 3, (void *[]){c}, 1, NULL), SAT_NULL_POINTER, "bias");
    assert_fails(sat_run(plan, (const void *[]){values, b + 1, bias}, 3, (void *[]){c}, 1, NULL), SAT_MISALIGNED,
                 "b is");
    assert_fails(sat_run(plan, (const void *[]){values, b, bias}, 3, (void *[]){(char *)c + 2}, 1, NULL),
                 SAT_MISALIGNED, "c is");
    assert_fails(sat_run(plan, (const void *[]){values, b, bias}, 3, (void *[]){b + 16}, 1, NULL), SAT_OVERLAP, "c at");
    assert_fails(sat_run(plan, (const void *[]){c, b, bias}, 3, (void *[]){c}, 1, NULL), SAT_OVERLAP, "values at");
    assert_ok(sat_run(plan, (const void *[]){values, b, bias}, 3, (void *[]){c}, 1, NULL));
    sat_plan_free(plan);
    free(values), free(b), free(c);
}

static void views_side_by_side_in_one_buffer_do_not_overlap(void **state) {
    fixture *f = *state;
    uint64_t random = 9;
    sat_pattern *square = random_pattern(f->ctx, &random, 16, 16, 4, 4, 0.5, false);
    sat_problem p = matmul_problem(SAT_F32, 8);
    p.b = p.c = (sat_layout){.row_stride = 20, .col_stride = 1};
    sat_plan *plan = NULL;
    assert_ok(sat_plan_create(f->ctx, square, &p, &plan));
    float *values = random_floats(&random, 16 * 16), *both = random_floats(&random, 16 * 20);
    assert_ok(sat_run(plan, (const void *[]){values, both}, 2, (void *[]){both + 10}, 1, NULL));
    assert_ok(sat_run(plan, (const void *[]){values, both + 12}, 2, (void *[]){both}, 1, NULL));
    assert_fails(sat_run(plan, (const void *[]){values, both}, 2, (void *[]){both + 7}, 1, NULL), SAT_OVERLAP,
                 "overlaps");
    free(values), free(both);
    sat_plan_free(plan);
    sat_pattern_free(square);
}

static void a_bad_context_option_is_refused_by_name(void **state) {
    (void)state;
    sat_context *ctx = NULL;
    sat_context_options o;
#define TRY(change, status, word)                                                                                      \
    o = (sat_context_options){SAT_SIZED(sat_context_options), .cache_dir = ""};                                        \
    change;                                                                                                            \
    assert_fails(sat_context_create(&o, &ctx), status, word);                                                          \
    assert_null(ctx)
    TRY(o.size = 1, SAT_BAD_STRUCT, "sat_context_options");
    TRY(o.device = "tpu", SAT_NOT_FOUND, "tpu");
    TRY(o.device = "cpu:x", SAT_NOT_FOUND, "cpu:x");
    TRY(o.device = "cpu:7", SAT_NOT_FOUND, "cpu:7");
    TRY(o.effort = 9, SAT_BAD_ENUM, "effort");
    TRY(o.measure = 3, SAT_BAD_ENUM, "measure");
    TRY(o.threads = -1, SAT_BAD_SIZE, "threads");
    TRY(o.budget_seconds = -1, SAT_BAD_SIZE, "budget_seconds");
    sat_allocator half = {SAT_SIZED(sat_allocator), .free = (void (*)(void *, void *))abort};
    TRY(o.allocator = &half, SAT_NULL_POINTER, "allocator");
    half.size = 1;
    TRY(o.allocator = &half, SAT_BAD_STRUCT, "sat_allocator");
    TRY(o.multiprocessors = -1, SAT_BAD_SIZE, "multiprocessors");
#undef TRY
    assert_fails(sat_context_create(NULL, NULL), SAT_NULL_POINTER, "context");
}

static sat_status never(const sat_launch *l) {
    (void)l;
    return SAT_OK;
}

static bool yes(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)p, (void)a, (void)d;
    return true;
}

static double one(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)p, (void)a, (void)d;
    return 1;
}

static void a_bad_variant_is_refused_by_name(void **state) {
    fixture *f = *state;
    sat_variant good = {SAT_SIZED(sat_variant), .name = "mine",  .revision = "1", .op = SAT_MATMUL,
                        .backend = SAT_CPU,     .supports = yes, .estimate = one, .launch = never};
    sat_variant v;
#define TRY(change, status, word)                                                                                      \
    v = good;                                                                                                          \
    change;                                                                                                            \
    assert_fails(sat_variant_register(f->ctx, &v), status, word)
    TRY(v.size = 0, SAT_BAD_STRUCT, "sat_variant");
    TRY(v.name = NULL, SAT_NULL_POINTER, "name");
    TRY(v.name = "", SAT_UNSUPPORTED, "name");
    TRY(v.name = "a\tb", SAT_UNSUPPORTED, "name");
    TRY(v.name = "a,b", SAT_UNSUPPORTED, "name");
    TRY(v.revision = NULL, SAT_NULL_POINTER, "revision");
    TRY(v.op = 0, SAT_BAD_ENUM, "op");
    TRY(v.backend = SAT_CUDA, SAT_UNSUPPORTED, "backend");
    TRY(v.supports = NULL, SAT_NULL_POINTER, "supports");
    TRY(v.estimate = NULL, SAT_NULL_POINTER, "estimate");
    TRY(v.launch = NULL, SAT_NULL_POINTER, "launch");
    TRY(v.name = "cpu_matmul_any_any_c_reference", SAT_DUPLICATE, "registered already");
#undef TRY
    assert_ok(sat_variant_register(f->ctx, &good));
    assert_fails(sat_variant_register(f->ctx, &good), SAT_DUPLICATE, "mine");
}

static void structs_from_an_older_caller_and_a_newer_one_are_told_apart(void **state) {
    fixture *f = *state;
    struct {
        sat_plan_info info;
        char more[64];
    } newer = {.info.size = sizeof newer};
    sat_problem p = matmul_problem(SAT_F32, 4);
    sat_plan *plan = NULL;
    assert_ok(sat_plan_create(f->ctx, f->pattern, &p, &plan));
    memset(newer.more, 1, sizeof newer.more);
    assert_ok(sat_plan_get_info(plan, &newer.info)); /* what this library does not know comes back as zero */
    assert_int_equal(newer.more[0], 0);
    assert_true(newer.info.flops > 0);
    sat_plan_info old = {.size = 16};
    assert_fails(sat_plan_get_info(plan, &old), SAT_BAD_STRUCT, "sat_plan_info");
    sat_plan_free(plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bad_problem_is_refused_by_name),
        cmocka_unit_test(one_leading_dimension_is_not_read_as_a_broadcast),
        cmocka_unit_test(a_stride_that_leads_nowhere_may_be_any_number),
        cmocka_unit_test(a_plan_for_a_trillion_rows_without_blocks_is_made_at_once),
        cmocka_unit_test(a_broadcast_that_is_asked_for_is_computed),
        cmocka_unit_test(every_listed_mix_of_dtypes_has_a_plan),
        cmocka_unit_test(a_run_refuses_bad_pointers),
        cmocka_unit_test(views_side_by_side_in_one_buffer_do_not_overlap),
        cmocka_unit_test(a_bad_context_option_is_refused_by_name),
        cmocka_unit_test(a_bad_variant_is_refused_by_name),
        cmocka_unit_test(structs_from_an_older_caller_and_a_newer_one_are_told_apart),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
