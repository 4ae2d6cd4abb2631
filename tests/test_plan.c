/* Plans, the one-call form, efforts, forced variants, allocators, batches and background tuning. */
#define _GNU_SOURCE
#include "support.h"

#include <unistd.h>
#include "problems.h"

static char folder[64];

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/sat_test_plan_XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static sat_context *open_with(sat_context_options o) {
    sat_context *ctx = NULL;
    o.size = sizeof o;
    o.device = "cpu";
    if (!o.cache_dir) o.cache_dir = "";
    assert_ok(sat_context_create(&o, &ctx));
    return ctx;
}

static sat_plan_info info_of(const sat_plan *plan) {
    sat_plan_info info = {SAT_SIZED(sat_plan_info)};
    assert_ok(sat_plan_get_info(plan, &info));
    return info;
}

typedef struct product {
    sat_pattern *pattern;
    sat_pattern_view view;
    float *values, *b, *c;
    double *want;
    int64_t n;
} product;

static product make_product(sat_context *ctx, uint64_t seed, int64_t rows, int64_t cols, int64_t n) {
    product x = {.n = n};
    uint64_t random = seed;
    x.pattern = random_pattern(ctx, &random, rows, cols, 8, 4, 0.4, seed & 1);
    x.view = view_of(x.pattern);
    x.values = random_floats(&random, x.view.stored_blocks * 32);
    x.b = random_floats(&random, cols * n);
    x.c = random_floats(&random, rows * n);
    memset(x.c, 0xff, (size_t)(rows * n) * sizeof(float));
    x.want = dense_product(&x.view, x.values, x.b, n);
    return x;
}

static void check_product(const product *x) { assert_close(x->c, x->want, x->view.rows * x->n, (double)x->view.cols); }

static void free_product(product *x) {
    sat_pattern_free(x->pattern);
    free(x->values), free(x->b), free(x->c), free(x->want);
}

static void a_plan_computes_the_product_and_tells_what_it_did(void **state) {
    (void)state;
    sat_context *ctx = open_with((sat_context_options){.effort = SAT_EFFORT_QUICK});
    product x = make_product(ctx, 1, 61, 43, 37);
    sat_problem p = matmul_problem(SAT_F32, 37);
    sat_plan *plan = NULL, *copy = NULL;
    assert_ok(sat_plan_create(ctx, x.pattern, &p, &plan));
    assert_true(info_of(plan).tuned && info_of(plan).verified && !info_of(plan).cached);
    assert_true(info_of(plan).flops == 2.0 * (double)x.view.stored_elements * 37);
    assert_ok(sat_run(plan, (const void *[]){x.values, x.b}, 2, (void *[]){x.c}, 1, NULL));
    check_product(&x);
    sat_pattern_free(x.pattern); /* the plan holds on to it */
    assert_ok(sat_plan_dup(plan, &copy));
    assert_string_equal(info_of(copy).variant, info_of(plan).variant);
    assert_true(info_of(copy).tuning_seconds == 0);
    sat_plan_free(plan);
    memset(x.c, 0xff, (size_t)(61 * 37) * sizeof(float));
    assert_ok(sat_run(copy, (const void *[]){x.values, x.b}, 2, (void *[]){x.c}, 1, NULL));
    check_product(&x);
    sat_plan_free(copy), sat_plan_free(NULL);
    x.pattern = NULL;
    free_product(&x);
    sat_context_free(ctx);
}

static void a_second_process_would_find_the_answer_in_the_cache(void **state) {
    (void)state;
    for (int round = 0; round < 2; round++) {
        sat_context *ctx = open_with((sat_context_options){.cache_dir = folder});
        product x = make_product(ctx, 2, 64, 64, 32);
        sat_problem p = matmul_problem(SAT_F32, 32);
        sat_plan *plan = NULL;
        assert_ok(sat_plan_create(ctx, x.pattern, &p, &plan));
        assert_int_equal(info_of(plan).cached, round == 1);
        assert_int_equal(info_of(plan).tuned, round == 0);
        if (round == 1) assert_true(info_of(plan).tuning_seconds == 0);
        sat_plan_free(plan);
        p.n = 31; /* the same bucket, another exact problem: served from the cache after a check of its own */
        assert_ok(sat_plan_create(ctx, x.pattern, &p, &plan));
        assert_true(info_of(plan).verified);
        sat_plan_free(plan);
        free_product(&x);
        sat_context_free(ctx);
    }
}

static bool count_entry(void *user, const char *key, const char *text) {
    assert_non_null(strstr(key, "op="));
    assert_true(text[0] != 0);
    ++*(int *)user;
    return true;
}

static void off_and_cached_tune_nothing_and_cached_notes_what_it_missed(void **state) {
    (void)state;
    char mine[96];
    snprintf(mine, sizeof mine, "%s/efforts", folder);
    for (int i = 0; i < 2; i++) {
        sat_effort effort = i ? SAT_EFFORT_CACHED : SAT_EFFORT_OFF;
        sat_context *ctx = open_with((sat_context_options){.cache_dir = mine, .effort = effort});
        product x = make_product(ctx, 3, 64, 64, 16);
        sat_problem p = matmul_problem(SAT_F32, 16);
        sat_plan *plan = NULL;
        assert_ok(sat_plan_create(ctx, x.pattern, &p, &plan));
        assert_false(info_of(plan).tuned || info_of(plan).cached || info_of(plan).verified);
        assert_ok(sat_run(plan, (const void *[]){x.values, x.b}, 2, (void *[]){x.c}, 1, NULL));
        check_product(&x);
        int entries = 0, untuned = 0;
        assert_ok(sat_cache_visit(ctx, count_entry, &entries));
        assert_ok(sat_cache_visit_untuned(ctx, count_entry, &untuned));
        assert_int_equal(entries, 0);
        assert_int_equal(untuned, i);
        sat_plan_free(plan);
        free_product(&x);
        sat_context_free(ctx);
    }
    sat_context *ctx = open_with((sat_context_options){.cache_dir = mine, .effort = SAT_EFFORT_QUICK});
    product x = make_product(ctx, 3, 64, 64, 16);
    sat_problem p = matmul_problem(SAT_F32, 16);
    sat_plan *plan = NULL;
    int untuned = 0;
    assert_ok(sat_plan_create(ctx, x.pattern, &p, &plan)); /* tuned now, so no longer wanted */
    assert_ok(sat_cache_visit_untuned(ctx, count_entry, &untuned));
    assert_int_equal(untuned, 0);
    sat_plan_free(plan);
    free_product(&x);
    sat_context_free(ctx);
}

static void the_environment_forces_a_variant_where_it_fits(void **state) {
    (void)state;
    setenv("SPARSE_AUTOTUNE_FORCE", "cpu_matmul_any_any_c_reference", 1);
    sat_context *ctx = open_with((sat_context_options){.effort = SAT_EFFORT_QUICK});
    unsetenv("SPARSE_AUTOTUNE_FORCE");
    product x = make_product(ctx, 4, 32, 32, 8);
    sat_problem p = matmul_problem(SAT_F32, 8);
    sat_plan *plan = NULL;
    assert_ok(sat_plan_create(ctx, x.pattern, &p, &plan));
    assert_string_equal(info_of(plan).variant, "cpu_matmul_any_any_c_reference");
    sat_plan_free(plan);
    p = sampled_problem(SAT_F32, 8); /* another operation: the forced one does not fit */
    assert_ok(sat_plan_create(ctx, x.pattern, &p, &plan));
    sat_plan_free(plan);
    free_product(&x);
    sat_context_free(ctx);
}

static void the_environment_sets_the_effort(void **state) {
    (void)state;
    setenv("SPARSE_AUTOTUNE", "off", 1);
    sat_context *ctx = open_with((sat_context_options){0});
    unsetenv("SPARSE_AUTOTUNE");
    product x = make_product(ctx, 4, 32, 32, 8);
    sat_problem p = matmul_problem(SAT_F32, 8);
    sat_plan *plan = NULL;
    assert_ok(sat_plan_create(ctx, x.pattern, &p, &plan));
    assert_false(info_of(plan).tuned);
    sat_plan_free(plan);
    free_product(&x);
    sat_context_free(ctx);
}

static void check_ignored(const char *effort, const char *force, sat_effort in_force, const char *want) {
    setenv("SPARSE_AUTOTUNE", effort, 1);
    setenv("SPARSE_AUTOTUNE_FORCE", force, 1);
    sat_context *ctx = open_with((sat_context_options){0});
    unsetenv("SPARSE_AUTOTUNE");
    unsetenv("SPARSE_AUTOTUNE_FORCE");
    char text[512], cut[12];
    assert_ok(sat_context_ignored(ctx, text, sizeof text));
    assert_string_equal(text, want);
    assert_ok(sat_context_ignored(ctx, cut, sizeof cut));
    assert_int_equal(strncmp(cut, want, sizeof cut - 1), 0);
    assert_int_equal(sat_context_effort(ctx), in_force);
    assert_int_equal(sat_context_ignored(ctx, NULL, 8), SAT_NULL_POINTER);
    assert_int_equal(sat_context_ignored(ctx, text, 0), SAT_BAD_SIZE);
    sat_context_free(ctx);
}

static void a_context_says_what_of_the_environment_it_ignores(void **state) {
    (void)state;
#define ON       "SPARSE_AUTOTUNE is 'on', which counts as quick; expected off, cached, quick, full or pinned"
#define MISSPELT "SPARSE_AUTOTUNE_FORCE is 'cpu_matmul_any_any_c_referense'; no such variant"
    check_ignored("", "", SAT_EFFORT_QUICK, "");
    check_ignored("Full", "cpu_matmul_any_any_c_reference", SAT_EFFORT_FULL, "");
    check_ignored("Pinned", "", SAT_EFFORT_PINNED, "");
    check_ignored("on", "", SAT_EFFORT_QUICK, ON);
    check_ignored("off", "cpu_matmul_any_any_c_referense", SAT_EFFORT_OFF, MISSPELT);
    check_ignored("on", "cpu_matmul_any_any_c_referense", SAT_EFFORT_QUICK, ON "; " MISSPELT);
    sat_context *ctx = open_with((sat_context_options){.effort = SAT_EFFORT_CACHED});
    assert_int_equal(sat_context_effort(ctx), SAT_EFFORT_CACHED);
    sat_context_free(ctx);
    char text[8];
    assert_int_equal(sat_context_effort(NULL), SAT_EFFORT_DEFAULT);
    assert_int_equal(sat_context_ignored(NULL, text, sizeof text), SAT_NULL_POINTER);
}

static void one_call_computes_the_product_and_reuses_its_plan(void **state) {
    (void)state;
    sat_context *ctx = open_with((sat_context_options){.effort = SAT_EFFORT_QUICK});
    for (int i = 0; i < 100; i++) { /* more patterns than the pool has places */
        product x = make_product(ctx, 5, 24, 24, 5);
        sat_problem p = matmul_problem(SAT_F32, 5);
        for (int again = 0; again < 3; again++) {
            memset(x.c, 0xff, 24 * 5 * sizeof(float));
            assert_ok(sat_bsr_matmul(ctx, x.pattern, &p, x.values, x.b, x.c, NULL, NULL));
            check_product(&x);
        }
        free_product(&x);
    }
    product x = make_product(ctx, 5, 24, 24, 5);
    sat_problem p = sampled_problem(SAT_F32, 5);
    assert_fails(sat_bsr_matmul(ctx, x.pattern, &p, x.values, x.b, x.c, NULL, NULL), SAT_BAD_ENUM, "op");
    p = matmul_problem(SAT_F32, 5);
    assert_fails(sat_bsr_matmul(ctx, x.pattern, &p, x.values, NULL, x.c, NULL, NULL), SAT_NULL_POINTER, "b is NULL");
    assert_fails(sat_bsr_matmul(ctx, x.pattern, &p, x.values, x.b, (char *)x.c + 1, NULL, NULL), SAT_MISALIGNED, "c");
    assert_fails(sat_bsr_matmul(ctx, NULL, &p, x.values, x.b, x.c, NULL, NULL), SAT_NULL_POINTER, "pattern");
    free_product(&x);
    sat_context_free(ctx);
}

static void the_sampled_product_is_the_product_at_the_stored_blocks(void **state) {
    (void)state;
    sat_context *ctx = open_with((sat_context_options){.effort = SAT_EFFORT_QUICK});
    uint64_t random = 6;
    int64_t m = 21, n = 18, k = 13;
    sat_pattern *pattern = random_pattern(ctx, &random, m, n, 4, 5, 0.5, false);
    sat_pattern_view v = view_of(pattern);
    float *x = random_floats(&random, m * k), *y = random_floats(&random, k * n);
    float *s = random_floats(&random, v.stored_blocks * 20);
    memset(s, 0xff, (size_t)v.stored_blocks * 20 * sizeof *s);
    sat_problem p = sampled_problem(SAT_F32, k);
    assert_ok(sat_bsr_sampled_matmul(ctx, pattern, &p, x, y, s, NULL));
    for (int64_t r = 0; r < v.grid_rows; r++) {
        for (int64_t t = v.row_ptr[r]; t < v.row_ptr[r + 1]; t++) {
            for (int64_t e = 0; e < 20; e++) {
                int64_t i = r * 4 + e / 5, j = v.col_idx[t] * 5 + e % 5;
                double want = 0;
                for (int64_t q = 0; i < m && j < n && q < k; q++) want += (double)x[i * k + q] * (double)y[q * n + j];
                if (i < m && j < n) assert_close(&s[t * 20 + e], &want, 1, (double)k);
                else assert_true(s[t * 20 + e] == 0);
            }
        }
    }
    free(x), free(y), free(s);
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

static void a_batch_shares_or_steps_through_its_operands(void **state) {
    (void)state;
    sat_context *ctx = open_with((sat_context_options){.effort = SAT_EFFORT_QUICK});
    product x = make_product(ctx, 8, 24, 16, 6);
    uint64_t random = 77;
    enum { BATCH = 3 };
    float *b = random_floats(&random, BATCH * 16 * 6), *c = random_floats(&random, BATCH * 24 * 6);
    for (int interleaved = 0; interleaved < 2; interleaved++) {
        sat_problem p = matmul_problem(SAT_F32, 6);
        p.batch = BATCH;
        p.b.batch_stride = 16 * 6;
        p.c = interleaved ? (sat_layout){.row_stride = 6 * BATCH, .col_stride = 1, .batch_stride = 6}
                          : (sat_layout){.row_stride = 6, .col_stride = 1, .batch_stride = 24 * 6};
        sat_plan *plan = NULL;
        assert_ok(sat_plan_create(ctx, x.pattern, &p, &plan));
        memset(c, 0xff, BATCH * 24 * 6 * sizeof *c);
        assert_ok(sat_run(plan, (const void *[]){x.values, b}, 2, (void *[]){c}, 1, NULL));
        for (int64_t z = 0; z < BATCH; z++) {
            double *want = dense_product(&x.view, x.values, b + z * 16 * 6, 6);
            for (int64_t i = 0; i < 24; i++)
                assert_close(c + z * p.c.batch_stride + i * p.c.row_stride, want + i * 6, 6, 16);
            free(want);
        }
        sat_plan_free(plan);
    }
    free(b), free(c);
    free_product(&x);
    sat_context_free(ctx);
}

static void fixed_values_stay_until_they_are_refreshed(void **state) {
    (void)state;
    sat_context *ctx = open_with((sat_context_options){.effort = SAT_EFFORT_QUICK});
    product x = make_product(ctx, 9, 64, 64, 40);
    sat_problem p = matmul_problem(SAT_F32, 40);
    p.flags = SAT_FIXED_VALUES;
    sat_plan *plan = NULL;
    assert_ok(sat_plan_create(ctx, x.pattern, &p, &plan));
    assert_ok(sat_run(plan, (const void *[]){x.values, x.b}, 2, (void *[]){x.c}, 1, NULL));
    check_product(&x);
    for (int64_t i = 0; i < x.view.stored_blocks * 32; i++) x.values[i] *= -2;
    for (int64_t i = 0; i < 64 * 40; i++) x.want[i] *= -2;
    assert_ok(sat_plan_refresh(plan, x.values, NULL));
    assert_ok(sat_run(plan, (const void *[]){x.values, x.b}, 2, (void *[]){x.c}, 1, NULL));
    check_product(&x);
    assert_fails(sat_plan_refresh(plan, NULL, NULL), SAT_NULL_POINTER, "values");
    sat_plan_free(plan);
    free_product(&x);
    sat_context_free(ctx);
}

static void one_call_takes_the_values_of_every_call(void **state) {
    (void)state;
    sat_context *ctx = open_with((sat_context_options){.effort = SAT_EFFORT_QUICK});
    product x = make_product(ctx, 9, 64, 64, 40);
    sat_problem p = matmul_problem(SAT_F32, 40);
    p.flags = SAT_FIXED_VALUES | SAT_ALLOW_DENSE;
    for (int i = 0; i < 3; i++) {
        assert_ok(sat_bsr_matmul(ctx, x.pattern, &p, x.values, x.b, x.c, NULL, NULL));
        check_product(&x);
        for (int64_t e = 0; e < x.view.stored_blocks * 32; e++) x.values[e] *= -2;
        for (int64_t e = 0; e < 64 * 40; e++) x.want[e] *= -2;
    }
    free_product(&x);
    sat_context_free(ctx);
}

/* A later version's struct may be longer, but what this version does not know must not be asked for. */
static void longer_structs_are_taken_while_their_rest_is_zero(void **state) {
    (void)state;
    sat_context *ctx = open_with((sat_context_options){.effort = SAT_EFFORT_OFF});
    product x = make_product(ctx, 5, 24, 24, 5);
    struct {
        sat_problem problem;
        uint64_t later[2];
    } p = {matmul_problem(SAT_F32, 5), {0}};
    p.problem.size = sizeof p;
    assert_ok(sat_bsr_matmul(ctx, x.pattern, &p.problem, x.values, x.b, x.c, NULL, NULL));
    check_product(&x);
    p.later[1] = 1;
    assert_fails(sat_bsr_matmul(ctx, x.pattern, &p.problem, x.values, x.b, x.c, NULL, NULL), SAT_BAD_STRUCT, "size");
    p.later[1] = 0;
    assert_fails(sat_bsr_sampled_matmul(ctx, x.pattern, &p.problem, x.values, x.b, x.c, NULL), SAT_BAD_ENUM, "op");
    free_product(&x);
    sat_context_free(ctx);
}

static void an_output_inside_an_interleaved_batch_is_refused(void **state) {
    (void)state;
    sat_context *ctx = open_with((sat_context_options){.effort = SAT_EFFORT_OFF});
    uint64_t random = 3;
    sat_pattern *pattern = random_pattern(ctx, &random, 8, 8, 4, 4, 1, false);
    sat_problem p = matmul_problem(SAT_F32, 4);
    p.batch = 2;
    p.b = (sat_layout){8, 1, 0}, p.c = (sat_layout){8, 1, 4};
    float values[64] = {0}, buffer[64] = {0};
    sat_plan *plan = NULL;
    assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
    assert_fails(sat_run(plan, (const void *[]){values, buffer + 4}, 2, (void *[]){buffer}, 1, NULL), SAT_OVERLAP,
                 "overlaps");
    sat_plan_free(plan);
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

/* silu(x) of a large negative x is -0 in every variant, whatever it does to compute an exponential. */
static void activations_hold_at_the_ends(void **state) {
    (void)state;
    sat_context *ctx = open_with((sat_context_options){.effort = SAT_EFFORT_OFF});
    uint64_t random = 3;
    sat_pattern *pattern = random_pattern(ctx, &random, 16, 16, 16, 16, 1, false);
    float values[256], b[16 * 24], c[16 * 24], inputs[] = {-3e38f, -1e37f, -200, -100, 200, 1e37f};
    for (size_t i = 0; i < sat_variant_count(ctx); i++) {
        const sat_variant *v = sat_variant_at(ctx, i);
        if (v->op != SAT_MATMUL) continue;
        for (int act = SAT_ACT_RELU; act <= SAT_ACT_SILU; act++)
            for (int n = 0; n < 2; n++) {
                sat_problem p = matmul_problem(SAT_F32, n ? 24 : 3);
                p.matmul.activation = (sat_activation)act;
                sat_plan *plan = NULL;
                if (sat_plan_create_with(ctx, pattern, &p, v->name, &plan) != SAT_OK) continue; /* does not fit */
                for (size_t e = 0; e < sizeof inputs / sizeof *inputs; e++) {
                    memset(values, 0, sizeof values);
                    for (int k = 0; k < 16; k++) values[17 * k] = inputs[e];
                    for (int k = 0; k < 16 * 24; k++) b[k] = 1;
                    assert_ok(sat_run(plan, (const void *[]){values, b}, 2, (void *[]){c}, 1, NULL));
                    float want = inputs[e] > 0 ? inputs[e] : 0;
                    for (int64_t k = 0; k < 16 * p.n; k++)
                        if (!(c[k] >= want - 1e-30f && c[k] <= want + 1e-30f))
                            fail_msg("%s: activation %d of %g is %g", v->name, act, (double)inputs[e], (double)c[k]);
                }
                sat_plan_free(plan);
            }
    }
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

static void device_memory_is_written_and_read_back(void **state) {
    (void)state;
    sat_context *ctx = open_with((sat_context_options){.effort = SAT_EFFORT_OFF});
    void *memory = NULL;
    int sent[3] = {1, 2, 3}, back[3] = {0};
    assert_ok(sat_memory_alloc(ctx, sizeof sent, &memory));
    assert_ok(sat_memory_write(ctx, memory, sent, sizeof sent));
    assert_ok(sat_stream_wait(ctx, NULL));
    assert_ok(sat_memory_read(ctx, back, memory, sizeof back));
    assert_memory_equal(sent, back, sizeof sent);
    assert_fails(sat_memory_read(ctx, back, NULL, sizeof back), SAT_NULL_POINTER, "NULL");
    assert_fails(sat_memory_write(ctx, memory, NULL, 4), SAT_NULL_POINTER, "host");
    assert_fails(sat_memory_alloc(NULL, 4, &memory), SAT_NULL_POINTER, "context");
    sat_memory_free(ctx, memory);
    sat_memory_free(ctx, NULL);
    sat_context_free(ctx);
}

typedef struct ledger {
    int live, calls;
} ledger;

static void *count_alloc(void *user, size_t bytes, size_t alignment) {
    ledger *l = user;
    void *p = aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    l->live++, l->calls++;
    return p;
}

static void count_free(void *user, void *pointer) {
    ((ledger *)user)->live--;
    free(pointer);
}

static void the_callers_allocator_serves_and_everything_comes_back(void **state) {
    (void)state;
    ledger l = {0};
    sat_allocator allocator = {SAT_SIZED(sat_allocator), count_alloc, count_free, &l};
    sat_context *ctx = open_with((sat_context_options){.effort = SAT_EFFORT_QUICK, .allocator = &allocator});
    allocator.alloc = NULL; /* it was copied */
    product x = make_product(ctx, 10, 64, 64, 40);
    sat_problem p = matmul_problem(SAT_F32, 40);
    sat_plan *plan = NULL;
    assert_ok(sat_plan_create(ctx, x.pattern, &p, &plan));
    assert_true(l.calls > 0);
    assert_ok(sat_run(plan, (const void *[]){x.values, x.b}, 2, (void *[]){x.c}, 1, NULL));
    check_product(&x);
    int calls = l.calls;
    for (int i = 0; i < 10; i++) assert_ok(sat_run(plan, (const void *[]){x.values, x.b}, 2, (void *[]){x.c}, 1, NULL));
    assert_int_equal(l.calls, calls); /* a run allocates nothing */
    sat_plan_free(plan);
    assert_int_equal(l.live, 0);
    free_product(&x);
    sat_context_free(ctx);
}

static void results_do_not_depend_on_the_number_of_threads(void **state) {
    (void)state;
    float *first = NULL;
    for (int threads = 1; threads <= 5; threads += 2) {
        sat_context *ctx = open_with((sat_context_options){.effort = SAT_EFFORT_OFF, .threads = threads});
        product x = make_product(ctx, 12, 300, 200, 90);
        sat_problem p = matmul_problem(SAT_F32, 90);
        sat_plan *plan = NULL;
        assert_ok(sat_plan_create(ctx, x.pattern, &p, &plan));
        assert_ok(sat_run(plan, (const void *[]){x.values, x.b}, 2, (void *[]){x.c}, 1, NULL));
        check_product(&x);
        if (!first) first = memcpy(malloc(300 * 90 * sizeof *first), x.c, 300 * 90 * sizeof *first);
        assert_memory_equal(first, x.c, 300 * 90 * sizeof *first);
        sat_plan_free(plan);
        free_product(&x);
        sat_context_free(ctx);
    }
    free(first);
}

static void a_broken_cache_folder_never_stops_a_product(void **state) {
    (void)state;
    char path[96];
    snprintf(path, sizeof path, "%s/file", folder);
    FILE *f = fopen(path, "w");
    fputs("not a folder", f);
    fclose(f);
    const char *folders[] = {path, "/proc/nowhere/at/all", "/dev/null"};
    for (int i = 0; i < 3; i++) {
        sat_context *ctx = open_with((sat_context_options){.cache_dir = folders[i]});
        product x = make_product(ctx, 13, 48, 48, 20);
        sat_problem p = matmul_problem(SAT_F32, 20);
        for (int round = 0; round < 2; round++) {
            sat_plan *plan = NULL;
            assert_ok(sat_plan_create(ctx, x.pattern, &p, &plan));
            if (round == 1) assert_false(info_of(plan).tuned); /* this process remembers all the same */
            assert_ok(sat_run(plan, (const void *[]){x.values, x.b}, 2, (void *[]){x.c}, 1, NULL));
            check_product(&x);
            sat_plan_free(plan);
        }
        free_product(&x);
        sat_context_free(ctx);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_computes_the_product_and_tells_what_it_did),
        cmocka_unit_test(a_second_process_would_find_the_answer_in_the_cache),
        cmocka_unit_test(off_and_cached_tune_nothing_and_cached_notes_what_it_missed),
        cmocka_unit_test(the_environment_forces_a_variant_where_it_fits),
        cmocka_unit_test(the_environment_sets_the_effort),
        cmocka_unit_test(a_context_says_what_of_the_environment_it_ignores),
        cmocka_unit_test(one_call_computes_the_product_and_reuses_its_plan),
        cmocka_unit_test(the_sampled_product_is_the_product_at_the_stored_blocks),
        cmocka_unit_test(a_batch_shares_or_steps_through_its_operands),
        cmocka_unit_test(fixed_values_stay_until_they_are_refreshed),
        cmocka_unit_test(one_call_takes_the_values_of_every_call),
        cmocka_unit_test(device_memory_is_written_and_read_back),
        cmocka_unit_test(longer_structs_are_taken_while_their_rest_is_zero),
        cmocka_unit_test(an_output_inside_an_interleaved_batch_is_refused),
        cmocka_unit_test(activations_hold_at_the_ends),
        cmocka_unit_test(the_callers_allocator_serves_and_everything_comes_back),
        cmocka_unit_test(results_do_not_depend_on_the_number_of_threads),
        cmocka_unit_test(a_broken_cache_folder_never_stops_a_product),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
