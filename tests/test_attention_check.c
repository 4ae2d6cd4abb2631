/* The check of attention, by itself: right results pass it, whoever computed them; a wrong element or a dropped block
 * does not, in any dtype. */
#include "scene.h"

#include <time.h>

#include "attention.h"
#include "ops/attention_check.h"
#include "problems.h"
#include "sanitized.h"

/* `name` NULL: whichever the estimate prefers. */
static void open_scene(scene *s, sat_pattern *pattern, sat_context *ctx, sat_problem p, const char *name) {
    s->ctx = ctx, s->pattern = pattern;
    assert_ok(sat_pattern_transposed(s->pattern, &s->view));
    assert_ok(sat_request_make(&s->q, s->ctx, s->pattern, &p));
    s->q.problem = s->q.race_problem;
    assert_ok(sat_bench_open(&s->bench, s->ctx, &s->q.problem, s->view, &s->q.device, (size_t)1 << 32));
    sat_selection selection = {0};
    if (name) selection.variant = sat_registry_find(&s->ctx->registry, name);
    else assert_ok(sat_select_by_estimate(&s->q, &selection));
    assert_ok(sat_runner_open(&s->runner, s->ctx, selection.variant, &s->q.problem, s->view, &s->q.device,
                              (size_t)1 << 30, NULL));
}

static sat_problem random_problem(uint64_t *r) {
    const sat_dtype types[] = {SAT_F32, SAT_F64, SAT_F16, SAT_BF16};
    int64_t kv = 1 + random_below(r, 2), heads = kv * (1 + random_below(r, 2));
    sat_problem p = attention_problem(types[random_below(r, 4)], heads, kv, 8 + 8 * random_below(r, 12));
    if (random_below(r, 2)) p.op = SAT_ATTENTION_BACKWARD;
    p.batch = 1 + random_below(r, 2);
    p.attention.causal = random_below(r, 2), p.attention.lse = random_below(r, 2);
    if (random_below(r, 3) == 0) p.attention.window = 1 + random_below(r, 60);
    if (random_below(r, 4) == 0) p.alpha = -0.3;
    if (random_below(r, 3) == 0) p.attention.q = (sat_heads){9000 * heads, 9000, 120};
    return p;
}

static void right_results_pass_everywhere(void **state) {
    (void)state;
    uint64_t r = 5;
    for (int i = 0; i < 80; i++) {
        scene s;
        char where[224];
        sat_context *ctx = open_context(SAT_EFFORT_OFF);
        sat_problem p = random_problem(&r);
        int64_t m = 1 + random_below(&r, 70), n = 1 + random_below(&r, 150);
        sat_pattern *pattern =
            random_pattern(ctx, &r, m, n, 1 + random_below(&r, 40), 1 + random_below(&r, 70), 0.6, i & 1);
        open_scene(&s, pattern, ctx, p, NULL);
        assert_ok(sat_bench_fill(&s.bench, SAT_PROBE_PRECISION, 0, next_random(&r)));
        run(&s);
        if (!passes(&s, where)) fail_msg("case %d, %s by %s: %s", i, s.q.full_key, s.runner.variant->name, where);
        assert_ok(sat_bench_fill(&s.bench, SAT_PROBE_STRUCTURE, 0, next_random(&r)));
        run(&s);
        if (!passes(&s, where)) fail_msg("case %d exact, %s: %s", i, s.q.full_key, where);
        close_scene(&s);
    }
}

/* Every kind of operands that a race has. */
static const sat_check_case cases[] = {{SAT_PROBE_STRUCTURE, SAT_FILL_NO_KEYS, "K is zero"},
                                       {SAT_PROBE_STRUCTURE, SAT_FILL_NO_QUERIES, "Q is zero"},
                                       {SAT_PROBE_PRECISION, 0, "reals"},
                                       {SAT_PROBE_PRECISION, SAT_FILL_FAR, "far apart"},
                                       {SAT_PROBE_PRECISION, SAT_FILL_RISING, "rising"},
                                       {SAT_PROBE_PRECISION, SAT_FILL_FALLING, "falling"},
                                       {0}};

/* Each of them, on each variant that fits. Gives how many were checked. */
static int check_variants(scene *s, uint64_t *r, int number) {
    int checked = 0;
    for (const sat_check_case *c = cases; c->label; c++) {
        bool ladder = c->fill_case == SAT_FILL_RISING || c->fill_case == SAT_FILL_FALLING;
        if (ladder && s->q.problem.op == SAT_ATTENTION_BACKWARD) continue; /* no race has that */
        assert_ok(sat_bench_fill(&s->bench, c->probe, c->fill_case, next_random(r)));
        for (size_t i = 0; i < atomic_load(&s->ctx->registry.count); i++) {
            const sat_variant *v = s->ctx->registry.list[i];
            char where[224];
            if (!sat_variant_fits(v, &s->q.problem, s->view, &s->q.device)) continue;
            sat_runner_close(&s->runner);
            assert_ok(
                sat_runner_open(&s->runner, s->ctx, v, &s->q.problem, s->view, &s->q.device, (size_t)1 << 30, NULL));
            run(s);
            if (!passes(s, where))
                fail_msg("case %d, %s, %s by %s: %s", number, c->label, s->q.full_key, v->name, where);
            checked++;
        }
    }
    return checked;
}

/* The same blocks over packed sequences, some of them empty. */
static sat_pattern *packed(sat_context *ctx, sat_pattern *pattern, uint64_t *r) {
    enum { MOST = 5 };
    sat_pattern_view v = view_of(pattern);
    int64_t q[MOST + 1] = {0}, kv[MOST + 1] = {0}, count = 1 + random_below(r, MOST);
    int64_t *columns = malloc((size_t)(v.stored_blocks + 1) * sizeof *columns);
    for (int64_t i = 0; i < v.stored_blocks; i++) columns[i] = v.col_idx[i];
    for (int64_t i = 1; i <= count; i++) {
        q[i] = i == count ? v.rows : q[i - 1] + random_below(r, v.rows - q[i - 1] + 1);
        kv[i] = i == count ? v.cols : kv[i - 1] + random_below(r, v.cols - kv[i - 1] + 1);
    }
    sat_bsr b = {SAT_SIZED(sat_bsr), v.rows, v.cols, v.block_rows, v.block_cols, v.stored_blocks};
    b.index_type = SAT_I64, b.row_ptr = v.row_ptr, b.col_idx = columns;
    b.sequences = count, b.q_offsets = q, b.kv_offsets = kv;
    sat_pattern *made = NULL;
    assert_ok(sat_pattern_create(ctx, &b, &made));
    sat_pattern_free(pattern);
    free(columns);
    return made;
}

/* One row, or one head, for all. */
static void broadcast(sat_problem *p, uint64_t *r) {
    sat_attention *t = &p->attention;
    sat_heads *const list[] = {&t->q, &t->k, &t->v, &t->do_}, *s = list[random_below(r, 4)];
    *s = random_below(r, 2) ? (sat_heads){.head_stride = t->dim} : (sat_heads){.row_stride = t->dim};
    p->batch = 1, p->flags |= SAT_ALLOW_BROADCAST;
}

static void every_variant_passes_every_round(void **state) {
    (void)state;
    const char *more = getenv("SAT_TEST_CASES"); /* a soak has more */
    uint64_t r = more ? (uint64_t)time(NULL) : 15;
    int checked = 0;
    for (int i = 0; i < (more ? atoi(more) : 60); i++) {
        scene s;
        sat_context *ctx = open_context(SAT_EFFORT_OFF);
        sat_problem p = random_problem(&r);
        bool stacked = random_below(&r, 5) == 0, longer = random_below(&r, 6) == 0;
        int64_t m = 1 + random_below(&r, longer ? 300 : 150), n = 1 + random_below(&r, longer ? 1200 : 200);
        int64_t br = 1 + random_below(&r, 140), bc = 1 + random_below(&r, 140), each = (m + br - 1) / br * br;
        if (stacked) p.m = m;
        if (random_below(&r, 4) == 0) broadcast(&p, &r);
        sat_pattern *pattern = random_pattern(ctx, &r, stacked ? each * p.attention.heads : m, n, br, bc,
                                              random_below(&r, 3) ? 0.6 : 1, i & 1);
        if (!stacked && p.batch == 1 && random_below(&r, 2)) pattern = packed(ctx, pattern, &r);
        open_scene(&s, pattern, ctx, p, NULL);
        checked += check_variants(&s, &r, i);
        close_scene(&s);
    }
    if (more) print_message("%d results were right\n", checked);
}

/* 2 heads, 130 x 200, blocks of 16: small enough that every line is worked out. */
static void open_small(scene *s, uint64_t *r, sat_operation op, sat_dtype type) {
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    sat_problem p = attention_problem(type, 2, 1, 32);
    p.op = op, p.attention.lse = true;
    open_scene(s, random_pattern(ctx, r, 130, 200, 16, 16, 0.7, false), ctx, p, NULL);
    assert_ok(sat_bench_fill(&s->bench, SAT_PROBE_PRECISION, 0, next_random(r)));
    run(s);
    assert_true(passes(s, NULL));
}

static void one_wrong_element_is_found(void **state) {
    (void)state;
    const sat_dtype types[] = {SAT_F32, SAT_F16, SAT_BF16};
    uint64_t r = 6;
    for (int i = 0; i < 60; i++) {
        scene s;
        sat_operation op = i & 1 ? SAT_ATTENTION : SAT_ATTENTION_BACKWARD;
        open_small(&s, &r, op, types[i % 3]);
        int count = s.bench.count, which = op == SAT_ATTENTION ? 3 : 6 + i / 2 % 3;
        assert_true(which < count && s.bench.operand[which].output);
        const sat_operand *o = &s.bench.operand[which];
        int64_t at = 0;
        double x = 0;
        for (int tries = 0; tries < 100 && x == 0; tries++) { /* a row that keeps something */
            at = sat_operand_at(o, 0, random_below(&r, o->rows), random_below(&r, o->cols));
            x = sat_load(o->dtype, s.bench.pointer[which], at);
        }
        sat_store(o->dtype, s.bench.pointer[which], at, x > 0 ? x * 0.25 - 0.01 : x * 0.25 + 0.01);
        if (passes(&s, NULL)) fail_msg("%s: %g for %g was not seen", o->name, 0.25 * x, x);
        close_scene(&s);
    }
}

static void a_row_that_was_not_written_is_found(void **state) {
    (void)state;
    uint64_t r = 7;
    scene s;
    open_small(&s, &r, SAT_ATTENTION, SAT_F32);
    memset((float *)s.bench.pointer[4] + 77, 0xff, 4); /* LSE */
    assert_false(passes(&s, NULL));
    close_scene(&s);
}

/* The same run with one block less in its pattern. */
static void run_without_a_block(scene *s, uint64_t *r) {
    const sat_pattern_view *v = s->view;
    int64_t *ptr = malloc((size_t)(v->grid_rows + 1) * sizeof *ptr), out = random_below(r, v->stored_blocks);
    int32_t *col = malloc((size_t)v->stored_blocks * sizeof *col);
    for (int64_t t = 0; t < v->stored_blocks; t++)
        if (t != out) col[t - (t > out)] = v->col_idx[t];
    for (int64_t g = 0; g <= v->grid_rows; g++) ptr[g] = v->row_ptr[g] - (v->row_ptr[g] > out);
    sat_bsr b = {SAT_SIZED(sat_bsr), v->rows, v->cols, v->block_rows, v->block_cols, v->stored_blocks - 1};
    int64_t *col64 = malloc((size_t)v->stored_blocks * sizeof *col64);
    for (int64_t t = 0; t + 1 < v->stored_blocks; t++) col64[t] = col[t];
    b.index_type = SAT_I64, b.row_ptr = ptr, b.col_idx = col64;
    sat_pattern *less = NULL;
    assert_ok(sat_pattern_create(s->ctx, &b, &less));
    const sat_pattern_view *view;
    assert_ok(sat_pattern_transposed(less, &view));
    sat_runner faulty;
    assert_ok(
        sat_runner_open(&faulty, s->ctx, s->runner.variant, &s->q.problem, view, &s->q.device, (size_t)1 << 30, NULL));
    assert_ok(sat_bench_reset(&s->bench));
    assert_ok(sat_runner_launch(&faulty, s->bench.pointer, NULL));
    sat_runner_close(&faulty);
    sat_pattern_free(less);
    free(ptr), free(col), free(col64);
}

static void a_dropped_block_is_found(void **state) {
    (void)state;
    const sat_dtype types[] = {SAT_F32, SAT_F16, SAT_BF16, SAT_F64};
    uint64_t r = 8;
    for (int i = 0; i < 40; i++) {
        scene s;
        open_small(&s, &r, i & 1 ? SAT_ATTENTION : SAT_ATTENTION_BACKWARD, types[i / 2 % 4]);
        run_without_a_block(&s, &r);
        if (passes(&s, NULL)) fail_msg("case %d: nobody saw it, %s", i, s.q.full_key);
        close_scene(&s);
    }
}

/* Of a long row a block is a small part, and only some lines of so large a problem are worked out. */
static void a_block_of_a_long_row_is_found(void **state) {
    (void)state;
    const sat_dtype types[] = {SAT_F32, SAT_F16, SAT_BF16};
    uint64_t r = 9;
    for (int i = 0; i < 6; i += FEWER(5)) {
        scene s;
        sat_context *ctx = open_context(SAT_EFFORT_OFF);
        sat_problem p = attention_problem(types[i % 3], 1, 1, 64);
        if (i >= 3) p.op = SAT_ATTENTION_BACKWARD;
        open_scene(&s, random_pattern(ctx, &r, 2048, 8192, 128, 128, 0.9, false), ctx, p, NULL);
        char where[224];
        assert_ok(sat_bench_fill(&s.bench, SAT_PROBE_PRECISION, 0, next_random(&r)));
        run(&s);
        if (!passes(&s, where)) fail_msg("%s: %s", s.q.full_key, where);
        run_without_a_block(&s, &r);
        if (passes(&s, NULL)) fail_msg("nobody saw it, %s", s.q.full_key);
        close_scene(&s);
    }
}

/* Equal weights have every row checked: one of 2048 is the mean without one of its 4096 keys. */
static void one_key_of_one_row_of_a_large_problem_is_found(void **state) {
    (void)state;
    const sat_dtype types[] = {SAT_F32, SAT_F16, SAT_BF16};
    uint64_t r = 11;
    for (int i = 0; i < 12; i += FEWER(7)) {
        scene s;
        char where[224];
        sat_context *ctx = open_context(SAT_EFFORT_OFF);
        const int64_t n = 4096, dim = 64;
        sat_problem p = attention_problem(types[i % 3], 2, 1, dim);
        open_scene(&s, random_pattern(ctx, &r, 1024, n, 1024, n, 1, false), ctx, p, NULL);
        assert_ok(sat_bench_fill(&s.bench, SAT_PROBE_STRUCTURE, i & 1, next_random(&r)));
        run(&s);
        if (!passes(&s, where)) fail_msg("%s: %s", s.q.full_key, where);
        int64_t row = random_below(&r, 2048) * dim, key = random_below(&r, n) * dim;
        for (int64_t x = 0; x < dim; x++) {
            double sum = 0;
            for (int64_t j = 0; j < n; j++) sum += sat_load(types[i % 3], s.bench.pointer[2], j * dim + x);
            sum -= sat_load(types[i % 3], s.bench.pointer[2], key + x);
            sat_store(types[i % 3], s.bench.pointer[3], row + x, sum / (double)(n - 1));
        }
        if (passes(&s, NULL)) fail_msg("nobody saw it, %s", s.q.full_key);
        close_scene(&s);
    }
}

/* A gradient that is wrong beside two that are right. */
static void one_wrong_gradient_is_found(void **state) {
    (void)state;
    const sat_dtype types[] = {SAT_F32, SAT_F16, SAT_BF16};
    uint64_t r = 10;
    for (int i = 0; i < 18; i += FEWER(4)) {
        scene s;
        sat_context *ctx = open_context(SAT_EFFORT_OFF);
        sat_problem p = attention_problem(types[i % 3], 1, 1, 128);
        p.op = SAT_ATTENTION_BACKWARD;
        int64_t length = i < 9 ? 256 : 1024;
        open_scene(&s, random_pattern(ctx, &r, length, length, length, length, 1, false), ctx, p, NULL);
        assert_ok(sat_bench_fill(&s.bench, SAT_PROBE_PRECISION, 0, next_random(&r)));
        run(&s);
        char where[224];
        if (!passes(&s, where)) fail_msg("%s: %s", s.q.full_key, where);
        int operand = 6 + i / 3 % 3; // all of it half as large
        for (int64_t x = 0; x < length * 128; x++) {
            double value = sat_load(types[i % 3], s.bench.pointer[operand], x) / 2;
            sat_store(types[i % 3], s.bench.pointer[operand], x, value);
        }
        if (passes(&s, NULL)) fail_msg("operand %d: nobody saw it, %s", operand, s.q.full_key);
        close_scene(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant_passes_every_round),
        cmocka_unit_test(right_results_pass_everywhere),
        cmocka_unit_test(one_wrong_element_is_found),
        cmocka_unit_test(a_row_that_was_not_written_is_found),
        cmocka_unit_test(a_dropped_block_is_found),
        cmocka_unit_test(a_block_of_a_long_row_is_found),
        cmocka_unit_test(one_wrong_gradient_is_found),
        cmocka_unit_test(one_key_of_one_row_of_a_large_problem_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
