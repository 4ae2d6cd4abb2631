/* Patterns whose indices change between runs: every variant that takes part against loops, on right and on hostile
 * masks under one plan; faults that are returned; keys; what the race finds of variants that do not follow. */
#include "dynamic_cases.h"

/* ---- a case in the host's memory ---- */

typedef struct host_case {
    dynamic_case c;
    void *row_ptr, *col_idx, *first, *second, *out;
    bool brings; /* the pattern has no indices: each run brings its own */
    sat_pattern *pattern;
} host_case;

static host_case put(sat_context *ctx, dynamic_case c) {
    host_case h = {.c = c};
    h.row_ptr = malloc(index_bytes(&c, c.grid_rows + 1)), h.col_idx = malloc(index_bytes(&c, c.capacity + 1));
    h.out = malloc((size_t)(c.wanted + 1) * sat_dtype_size(c.problem.c_dtype));
    h.pattern = make_dynamic_pattern(ctx, &c, h.row_ptr, h.col_idx);
    return h;
}

static host_case put_without_indices(sat_context *ctx, dynamic_case c) {
    host_case h = put(ctx, c);
    sat_pattern_free(h.pattern);
    h.pattern = make_dynamic_pattern(ctx, &c, NULL, NULL);
    h.brings = true;
    return h;
}

static void free_host_case(host_case *h) {
    sat_pattern_free(h->pattern);
    free(h->row_ptr), free(h->col_idx), free(h->out);
    free_dynamic_case(&h->c);
}

/* Indices at new addresses, in memory that ends where they do. */
static void renew_indices(host_case *h) {
    free(h->row_ptr), free(h->col_idx);
    h->row_ptr = malloc(index_bytes(&h->c, h->c.grid_rows + 1)), h->col_idx = malloc(index_bytes(&h->c, h->c.capacity));
}

/* Runs on the mask that the case has now: all that was in the output is NaN. */
static sat_status run_now(host_case *h, sat_plan *plan) {
    dynamic_case *c = &h->c;
    bool sampled = c->problem.op == SAT_SAMPLED;
    sat_dtype t = c->problem.a_dtype;
    void *first = sampled ? stored(c, t, c->x, c->m * c->k, false) : stored(c, t, c->values, value_count(c), true);
    void *second = stored(c, t, sampled ? c->y : c->x, c->k * c->n, false);
    if (h->brings) renew_indices(h);
    store_indices(c, h->row_ptr, h->col_idx);
    memset(h->out, 0xff, (size_t)(c->wanted + 1) * sat_dtype_size(c->problem.c_dtype));
    const void *inputs[] = {first, second, h->row_ptr, h->col_idx};
    sat_status status = sat_run(plan, inputs, h->brings ? 4 : 2, (void *[]){h->out}, 1, NULL);
    free(first), free(second);
    return status;
}

static void run_and_expect(host_case *h, sat_plan *plan, const char *who, int number) {
    sat_status status = run_now(h, plan);
    if (status != h->c.fault)
        fail_msg("%s, mask %d: %s where %s is right: %s", who, number, sat_status_name(status),
                 sat_status_name(h->c.fault), sat_last_error());
    expect_dynamic(&h->c);
    expect_dynamic_output(&h->c, h->out, who, number);
}

static dynamic_case draw_case(uint64_t *r, int which) {
    static const sat_dtype types[] = {SAT_F32, SAT_F64, SAT_F16, SAT_BF16};
    static const int64_t sides[] = {1, 2, 4, 5, 8, 16};
    int64_t gr = 1 + random_below(r, 12), gc = 1 + random_below(r, 12), br = sides[random_below(r, 6)];
    int64_t bc = random_below(r, 3) ? br : sides[random_below(r, 6)], other = 1 + random_below(r, 40);
    int64_t capacity = random_below(r, 4) ? 1 + random_below(r, gr * gc) : gr * gc;
    return make_dynamic_case(r, types[random_below(r, 4)], which, gr, gc, br, bc, other, capacity, random_below(r, 2));
}

/* ---- tests ---- */

static void every_variant_follows_a_mask_that_changes(void **state) {
    uint64_t random = 41;
    int runs = 0, faults = 0;
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    for (int number = 0; number < 60; number++) {
        dynamic_case drawn = draw_case(&random, number % 3);
        host_case h = put(ctx, drawn);
        for (size_t i = 0; i < sat_variant_count(ctx); i++) {
            const sat_variant *v = sat_variant_at(ctx, i);
            sat_plan *plan = NULL;
            if (v->op != drawn.problem.op) continue;
            sat_status status = sat_plan_create_with(ctx, h.pattern, &h.c.problem, v->name, &plan);
            if (!(v->flags & SAT_V_DYNAMIC)) assert_int_equal(status, SAT_UNSUPPORTED);
            if (status != SAT_OK) continue;
            for (int mask = 0; mask < 12; mask++) {
                if (mask % 2) draw_hostile_mask(&random, &h.c);
                else draw_right_mask(&random, &h.c);
                run_and_expect(&h, plan, v->name, number * 100 + mask);
                runs++, faults += h.c.fault != SAT_OK;
            }
            sat_plan_free(plan);
        }
        free_host_case(&h);
    }
    print_message("%d runs, %d with faults\n", runs, faults);
    assert_true(runs > 2000 && faults > 500);
    sat_context_free(ctx);
}

static void a_plan_keeps_up_with_hundreds_of_hostile_masks(void **state) {
    uint64_t random = 6;
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    for (int which = 0; which < 3; which++) {
        host_case h = put(ctx, make_dynamic_case(&random, SAT_F32, which, 9, 7, 4, 4, 11, 40, true));
        sat_plan *plan = NULL, *copy = NULL;
        assert_ok(sat_plan_create(ctx, h.pattern, &h.c.problem, &plan));
        assert_ok(sat_plan_dup(plan, &copy));
        for (int mask = 0; mask < 500; mask++) {
            draw_hostile_mask(&random, &h.c);
            run_and_expect(&h, mask % 5 ? plan : copy, "the estimate's choice", mask);
        }
        sat_plan_free(plan), sat_plan_free(copy);
        free_host_case(&h);
    }
    sat_context_free(ctx);
}

static void runs_of_one_plan_bring_indices_of_many_matrices(void **state) {
    uint64_t random = 31;
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    for (int number = 0; number < 30; number++) {
        host_case h = put_without_indices(ctx, draw_case(&random, number % 3));
        sat_plan *plan = NULL, *copy = NULL;
        assert_ok(sat_plan_create(ctx, h.pattern, &h.c.problem, &plan));
        assert_ok(sat_plan_dup(plan, &copy));
        for (int mask = 0; mask < 20; mask++) {
            if (mask % 2) draw_hostile_mask(&random, &h.c);
            else draw_right_mask(&random, &h.c);
            run_and_expect(&h, mask % 5 ? plan : copy, "indices that were brought", number * 100 + mask);
        }
        assert_ok(sat_pattern_fault(h.pattern, true));
        sat_plan_free(plan), sat_plan_free(copy);
        free_host_case(&h);
    }
    sat_context_free(ctx);
}

static void a_run_without_indices_reads_those_of_the_pattern_again(void **state) {
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    int64_t own_ptr[] = {0, 1}, own_col[] = {0}, other_col[] = {1};
    sat_dynamic_bsr s = {SAT_SIZED(sat_dynamic_bsr), .rows = 1, .cols = 2, .block_rows = 1, .block_cols = 1};
    s.capacity = 1, s.index_type = SAT_I64, s.row_ptr = own_ptr, s.col_idx = own_col;
    sat_problem p = matmul_problem(SAT_F32, 1);
    sat_pattern *pattern = NULL;
    sat_plan *plan = NULL;
    float values[] = {1}, b[] = {10, 20}, c[1];
    assert_ok(sat_pattern_create_dynamic(ctx, &s, &pattern));
    assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
    for (int i = 0; i < 4; i++) {
        const void *inputs[] = {values, b, own_ptr, other_col};
        assert_ok(sat_run(plan, inputs, i % 2 ? 4 : 2, (void *[]){c}, 1, NULL));
        assert_true(c[0] == (i % 2 ? 20 : 10));
    }
    sat_plan_free(plan);
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

static sat_status run_with(sat_plan *plan, size_t count, const void *row_ptr, const void *col_idx) {
    static const float values[4], b[8];
    static float c[8];
    return sat_run(plan, (const void *[]){values, b, row_ptr, col_idx}, count, (void *[]){c}, 1, NULL);
}

static void indices_that_cannot_be_brought_are_refused(void **state) {
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    int32_t row_ptr[4] = {0}, col_idx[5] = {0};
    sat_dynamic_bsr s = {SAT_SIZED(sat_dynamic_bsr), .rows = 2, .cols = 2, .block_rows = 1, .block_cols = 1};
    s.capacity = 4, s.index_type = SAT_I32;
    sat_problem p = matmul_problem(SAT_F32, 1);
    sat_pattern *pattern = NULL, *still = NULL;
    sat_plan *plan = NULL, *of_still = NULL;
    assert_ok(sat_pattern_create_dynamic(ctx, &s, &pattern));
    assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
    assert_fails(run_with(plan, 2, NULL, NULL), SAT_NULL_POINTER, "row_ptr is NULL in the pattern");
    float values[4], b[2], c[2];
    assert_fails(sat_bsr_matmul(ctx, pattern, &p, values, b, c, NULL, NULL), SAT_NULL_POINTER, "NULL in the pattern");
    assert_fails(run_with(plan, 3, row_ptr, NULL), SAT_BAD_SIZE, "input_count is 3");
    assert_fails(run_with(plan, 4, NULL, col_idx), SAT_NULL_POINTER, "row_ptr is NULL");
    assert_fails(run_with(plan, 4, row_ptr, NULL), SAT_NULL_POINTER, "col_idx is NULL");
    assert_fails(run_with(plan, 4, (char *)row_ptr + 2, col_idx), SAT_MISALIGNED, "row_ptr");
    assert_fails(run_with(plan, 4, row_ptr, (char *)col_idx + 1), SAT_MISALIGNED, "col_idx");
    assert_ok(run_with(plan, 4, row_ptr, col_idx));
    sat_bsr fixed = {SAT_SIZED(sat_bsr), .rows = 2, .cols = 2, .block_rows = 1, .block_cols = 1};
    fixed.index_type = SAT_I32, fixed.row_ptr = row_ptr;
    assert_ok(sat_pattern_create(ctx, &fixed, &still));
    assert_ok(sat_plan_create(ctx, still, &p, &of_still));
    assert_fails(run_with(of_still, 4, row_ptr, col_idx), SAT_BAD_SIZE, "input_count is 4");
    sat_plan_free(plan), sat_plan_free(of_still);
    sat_pattern_free(pattern), sat_pattern_free(still);
    sat_context_free(ctx);
}

/* With beta the blocks that nobody has are zero all the same, and every item of a batch has them. */
static void the_sampled_product_clears_what_no_row_has(void **state) {
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    int32_t row_ptr[] = {0, 2, 3, 4}, col_idx[] = {0, 1, 7, 1, 0, 0};
    sat_dynamic_bsr s = {SAT_SIZED(sat_dynamic_bsr), .rows = 3, .cols = 2, .block_rows = 1, .block_cols = 1};
    s.capacity = 6, s.index_type = SAT_I32, s.row_ptr = row_ptr, s.col_idx = col_idx;
    sat_pattern *pattern = NULL;
    assert_ok(sat_pattern_create_dynamic(ctx, &s, &pattern));
    sat_problem p = sampled_problem(SAT_F32, 1);
    p.beta = 1, p.batch = 2;
    p.a.batch_stride = 3, p.a.row_stride = 1, p.a.col_stride = 1, p.b.batch_stride = 0;
    p.c.batch_stride = 7;
    float x[] = {1, 2, 3, 4, 5, 6}, y[] = {10, 20}, out[13];
    const float want[] = {11, 21, 0, 61, 0, 0, 1, 41, 81, 0, 121, 0, 0};
    for (size_t i = 0; i < sat_variant_count(ctx); i++) {
        sat_plan *plan = NULL;
        if (sat_variant_at(ctx, i)->op != SAT_SAMPLED) continue;
        if (sat_plan_create_with(ctx, pattern, &p, sat_variant_at(ctx, i)->name, &plan) != SAT_OK) continue;
        for (int e = 0; e < 13; e++) out[e] = 1;
        assert_fails(sat_run(plan, (const void *[]){x, y}, 2, (void *[]){out}, 1, NULL), SAT_COLUMN_RANGE,
                     "col_idx[2] is 7; expected 0 to 1");
        for (int e = 0; e < 13; e++)
            if (out[e] != want[e])
                fail_msg("%s: element %d is %g where %g is right", sat_variant_at(ctx, i)->name, e, (double)out[e],
                         (double)want[e]);
        sat_plan_free(plan);
    }
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

static void a_fault_is_returned_once_and_says_what_is_wrong(void **state) {
    static const struct {
        int64_t row_ptr[4], col_idx[5];
        sat_status fault;
        const char *word;
    } faults[] = {
        {{1, 2, 3, 4}, {0, 1, 0, 1}, SAT_BAD_ROW_PTR, "row_ptr[0] is 1; expected 0"},
        {{0, 2, 1, 4}, {0, 1, 0, 1}, SAT_BAD_ROW_PTR, "row_ptr[2] is 1, below the 2 before it"},
        {{0, 2, 6, 6}, {0, 1, 0, 1}, SAT_BAD_ROW_PTR, "row_ptr[2] is 6, beyond the capacity of 5"},
        {{0, 2, 3, 4}, {0, 1, -1, 1}, SAT_COLUMN_RANGE, "col_idx[2] is -1; expected 0 to 1"},
        {{0, 2, 3, 5},
         {0, 1, 0, 1, 1},
         SAT_COLUMN_ORDER,
         "col_idx[4] is 1 after 1 in block row 2; expected no repeats"},
        {{0, 2, 3, 5},
         {1, 0, 0, 0, 0},
         SAT_COLUMN_ORDER,
         "col_idx[1] is 0 after 1 in block row 0; expected increasing"},
    };
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    int64_t row_ptr[4], col_idx[5];
    sat_dynamic_bsr s = {SAT_SIZED(sat_dynamic_bsr), .rows = 3, .cols = 2, .block_rows = 1, .block_cols = 1};
    s.capacity = 5, s.index_type = SAT_I64, s.row_ptr = row_ptr, s.col_idx = col_idx;
    sat_pattern *pattern = NULL;
    sat_plan *plan = NULL;
    sat_problem p = matmul_problem(SAT_F32, 1);
    float values[5] = {1, 1, 1, 1, 1}, b[2] = {1, 2}, c[3];
    assert_ok(sat_pattern_create_dynamic(ctx, &s, &pattern));
    assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
    for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
        memcpy(row_ptr, faults[f].row_ptr, sizeof row_ptr), memcpy(col_idx, faults[f].col_idx, sizeof col_idx);
        assert_fails(sat_run(plan, (const void *[]){values, b}, 2, (void *[]){c}, 1, NULL), faults[f].fault,
                     faults[f].word);
        assert_ok(sat_pattern_fault(pattern, true));
        memcpy(row_ptr, (int64_t[]){0, 1, 2, 3}, sizeof row_ptr);
        memcpy(col_idx, (int64_t[]){0, 1, 0}, 3 * sizeof *col_idx);
        assert_ok(sat_run(plan, (const void *[]){values, b}, 2, (void *[]){c}, 1, NULL));
        assert_true(c[0] == 1 && c[1] == 2 && c[2] == 1);
    }
    sat_plan_free(plan);
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    int32_t row_ptr[3] = {0}, col_idx[4] = {0};
    const sat_dynamic_bsr right = {SAT_SIZED(sat_dynamic_bsr),
                                   .rows = 8,
                                   .cols = 8,
                                   .block_rows = 4,
                                   .block_cols = 4,
                                   .capacity = 4,
                                   .index_type = SAT_I32,
                                   .row_ptr = row_ptr,
                                   .col_idx = col_idx};
    sat_pattern *pattern = NULL;
    sat_dynamic_bsr s = right;
    s.capacity = 5;
    assert_fails(sat_pattern_create_dynamic(ctx, &s, &pattern), SAT_BAD_SIZE, "capacity is 5");
    s = right, s.capacity = -1;
    assert_fails(sat_pattern_create_dynamic(ctx, &s, &pattern), SAT_BAD_SIZE, "capacity is -1");
    s = right, s.row_ptr = NULL;
    assert_fails(sat_pattern_create_dynamic(ctx, &s, &pattern), SAT_NULL_POINTER, "row_ptr");
    s = right, s.col_idx = NULL;
    assert_fails(sat_pattern_create_dynamic(ctx, &s, &pattern), SAT_NULL_POINTER, "col_idx");
    s = right, s.col_idx = (char *)col_idx + 2;
    assert_fails(sat_pattern_create_dynamic(ctx, &s, &pattern), SAT_MISALIGNED, "col_idx");
    s = right, s.density = 1.5;
    assert_fails(sat_pattern_create_dynamic(ctx, &s, &pattern), SAT_BAD_SIZE, "density");
    s = right, s.skew = -1;
    assert_fails(sat_pattern_create_dynamic(ctx, &s, &pattern), SAT_BAD_SIZE, "skew");
    s = right, s.index_type = 0;
    assert_fails(sat_pattern_create_dynamic(ctx, &s, &pattern), SAT_BAD_ENUM, "index_type");
    assert_fails(sat_pattern_fault(NULL, false), SAT_NULL_POINTER, "pattern");
    sat_context_free(ctx);
}

static void a_new_mask_is_a_hit_and_other_hints_are_another_key(void **state) {
    uint64_t random = 9;
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_QUICK);
    char first[512], second[512];
    for (int which = 0; which < 3; which++) {
        host_case h = put(ctx, make_dynamic_case(&random, SAT_F32, which, 16, 16, 8, 8, 24, 200, false));
        sat_pattern *other = NULL;
        sat_dynamic_bsr s = {SAT_SIZED(sat_dynamic_bsr), .rows = 128, .cols = 128, .block_rows = 8, .block_cols = 8};
        s.capacity = 200, s.index_type = SAT_I64, s.row_ptr = h.row_ptr, s.col_idx = h.col_idx, s.density = 0.1;
        assert_ok(sat_pattern_create_dynamic(ctx, &s, &other));
        assert_ok(sat_problem_key(ctx, h.pattern, &h.c.problem, first, sizeof first));
        assert_ok(sat_problem_key(ctx, other, &h.c.problem, second, sizeof second));
        assert_string_not_equal(first, second);
        assert_non_null(strstr(first, " dynamic"));
        for (int again = 0; again < 3; again++) {
            sat_plan *plan = NULL;
            sat_plan_info info = {SAT_SIZED(sat_plan_info)};
            draw_hostile_mask(&random, &h.c); /* whatever is there: tuning does not look at it */
            store_indices(&h.c, h.row_ptr, h.col_idx);
            assert_ok(sat_plan_create(ctx, h.pattern, &h.c.problem, &plan));
            assert_ok(sat_plan_get_info(plan, &info));
            assert_int_equal(info.tuned, again == 0);
            assert_int_equal(info.cached, again > 0);
            assert_true(info.verified);
            assert_null(strstr(info.variant, "reference"));
            assert_true(info.workspace_bytes >= 200 * 4);
            run_and_expect(&h, plan, info.variant, again);
            sat_plan_free(plan);
        }
        assert_ok(sat_pattern_fault(h.pattern, true));
        sat_pattern_free(other);
        free_host_case(&h);
    }
    sat_context_free(ctx);
}

static void one_call_does_it_all(void **state) {
    uint64_t random = 4;
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    host_case h = put(ctx, make_dynamic_case(&random, SAT_F32, 0, 6, 6, 4, 4, 5, 30, false));
    for (int mask = 0; mask < 10; mask++) {
        draw_hostile_mask(&random, &h.c);
        store_indices(&h.c, h.row_ptr, h.col_idx);
        void *values = stored(&h.c, SAT_F32, h.c.values, value_count(&h.c), true);
        void *b = stored(&h.c, SAT_F32, h.c.x, h.c.k * h.c.n, false);
        assert_int_equal(sat_bsr_matmul(ctx, h.pattern, &h.c.problem, values, b, h.out, NULL, NULL), h.c.fault);
        expect_dynamic(&h.c);
        expect_dynamic_output(&h.c, h.out, "one call", mask);
        free(values), free(b);
    }
    free_host_case(&h);
    sat_context_free(ctx);
}

static void the_background_and_the_cache_serve_it(void **state) {
    uint64_t random = 12;
    (void)state;
    sat_context *ctx = NULL;
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = "", .background = true};
    o.effort = SAT_EFFORT_QUICK;
    assert_ok(sat_context_create(&o, &ctx));
    host_case h = put(ctx, make_dynamic_case(&random, SAT_F32, 1, 10, 10, 8, 8, 16, 70, false));
    for (int again = 0; again < 2; again++) {
        sat_plan *plan = NULL;
        sat_plan_info info = {SAT_SIZED(sat_plan_info)};
        assert_ok(sat_plan_create(ctx, h.pattern, &h.c.problem, &plan));
        for (int mask = 0; mask < 5; mask++) {
            draw_hostile_mask(&random, &h.c);
            run_and_expect(&h, plan, "in the background", mask);
        }
        assert_ok(sat_plan_get_info(plan, &info));
        assert_int_equal(info.cached, again);
        sat_plan_free(plan);
        assert_ok(sat_context_wait(ctx));
    }
    free_host_case(&h);
    sat_context_free(ctx);
}

/* ---- planted variants ---- */

typedef enum planted_fault { RIGHT, FIRST_MASK_ONLY, NEXT_ROW_IS_THE_END, OWN_BLOCKS_ONLY } planted_fault;

typedef struct planted {
    planted_fault fault;
    int64_t *row_end; /* FIRST_MASK_ONLY: as the first run has it */
} planted;

static planted plan_of_fault;

static bool planted_supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                             const sat_device *d) {
    (void)v, (void)a, (void)d;
    return p->op == SAT_MATMUL && p->a_dtype == SAT_F32 && p->c_dtype == SAT_F32 && !p->matmul.transpose &&
           p->beta == 0 && p->batch == 1 && !p->matmul.bias && !p->matmul.activation;
}

static double planted_estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                               const sat_device *d) {
    (void)v, (void)p, (void)a, (void)d;
    return 1e-9;
}

static sat_status planted_launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const sat_pattern_view *a = l->pattern;
    planted *me = l->variant->user;
    const int64_t *end = a->row_end;
    const float *values = l->operands[0], *b = l->operands[1];
    float *c = l->operands[2];
    if (me->fault == FIRST_MASK_ONLY) {
        if (!me->row_end) {
            me->row_end = malloc((size_t)a->grid_rows * sizeof *me->row_end);
            memcpy(me->row_end, a->row_end, (size_t)a->grid_rows * sizeof *me->row_end);
        }
        end = me->row_end;
    }
    if (me->fault == NEXT_ROW_IS_THE_END) end = a->row_ptr + 1;
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++) {
            int64_t row = i / a->block_rows;
            double sum = 0;
            for (int64_t t = a->row_ptr[row]; t < end[row]; t++)
                for (int64_t k = 0; k < a->block_cols && a->col_idx[t] * a->block_cols + k < p->k; k++)
                    sum += (double)values[(t * a->block_rows + i % a->block_rows) * a->block_cols + k] *
                           b[(a->col_idx[t] * a->block_cols + k) * p->b.row_stride + j * p->b.col_stride];
            bool skipped = me->fault == OWN_BLOCKS_ONLY && a->row_ptr[row] == end[row];
            if (!skipped) c[i * p->c.row_stride + j * p->c.col_stride] = (float)(p->alpha * sum);
        }
    return SAT_OK;
}

static void the_race_finds_variants_that_do_not_follow(void **state) {
    uint64_t random = 2;
    static const char *const words[] = {"", "mask", "faulty columns", "mask"};
    (void)state;
    for (int fault = RIGHT; fault <= OWN_BLOCKS_ONLY; fault++) {
        sat_context *ctx = open_context(SAT_EFFORT_QUICK);
        host_case h = put(ctx, make_dynamic_case(&random, SAT_F32, 0, 12, 12, 4, 4, 8, 90, false));
        plan_of_fault = (planted){.fault = (planted_fault)fault};
        sat_variant v = {SAT_SIZED(sat_variant), .name = "cpu_matmul_f32_any_c_planted", .revision = "1"};
        v.op = SAT_MATMUL, v.backend = SAT_CPU, v.about = "planted", v.flags = SAT_V_DYNAMIC, v.user = &plan_of_fault;
        v.supports = planted_supports, v.estimate = planted_estimate, v.launch = planted_launch;
        assert_ok(sat_variant_register(ctx, &v));
        sat_race *race = NULL;
        sat_race_options o = {SAT_SIZED(sat_race_options), .only = v.name};
        assert_ok(sat_race_run(ctx, h.pattern, &h.c.problem, &o, &race));
        const sat_result *r = sat_race_at(race, 0);
        assert_int_equal(r->verdict, fault == RIGHT ? SAT_VERDICT_OK : SAT_VERDICT_WRONG);
        if (!strstr(r->message, words[fault])) fail_msg("'%s' does not say %s", r->message, words[fault]);
        sat_race_free(race);
        free(plan_of_fault.row_end);
        free_host_case(&h);
        sat_context_free(ctx);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant_follows_a_mask_that_changes),
        cmocka_unit_test(a_plan_keeps_up_with_hundreds_of_hostile_masks),
        cmocka_unit_test(runs_of_one_plan_bring_indices_of_many_matrices),
        cmocka_unit_test(a_run_without_indices_reads_those_of_the_pattern_again),
        cmocka_unit_test(indices_that_cannot_be_brought_are_refused),
        cmocka_unit_test(the_sampled_product_clears_what_no_row_has),
        cmocka_unit_test(a_fault_is_returned_once_and_says_what_is_wrong),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(a_new_mask_is_a_hit_and_other_hints_are_another_key),
        cmocka_unit_test(one_call_does_it_all),
        cmocka_unit_test(the_background_and_the_cache_serve_it),
        cmocka_unit_test(the_race_finds_variants_that_do_not_follow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
