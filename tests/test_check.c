/* The check of a race, by itself: the reference passes it over a wide grid, and any one planted fault does not. */
#include "scene.h"

#include "ops/check.h"
#include "variant.h"
#include "problems.h"

static sat_problem random_problem(uint64_t *r, bool sampled) {
    sat_dtype types[] = {SAT_F32, SAT_F64, SAT_F16, SAT_BF16};
    sat_dtype type = types[random_below(r, 4)];
    sat_problem p =
        sampled ? sampled_problem(type, 1 + random_below(r, 150)) : matmul_problem(type, 1 + random_below(r, 150));
    if (type != SAT_F64 && random_below(r, 3) == 0) p.c_dtype = SAT_F32;
    if (random_below(r, 3) == 0) p.beta = 0.75;
    if (random_below(r, 3) == 0) p.alpha = -1.5;
    if (!sampled && random_below(r, 2)) p.matmul.transpose = SAT_TRANSPOSE;
    if (!sampled && random_below(r, 3) == 0) p.matmul.bias = SAT_BIAS_ROW;
    return p;
}

static void strides(uint64_t *r, sat_layout *l, int64_t rows, int64_t cols) {
    switch (random_below(r, 4)) {
    case 0: *l = (sat_layout){.row_stride = cols + random_below(r, 5), .col_stride = 1}; break;
    case 1: *l = (sat_layout){.row_stride = 1, .col_stride = rows + random_below(r, 5)}; break;
    case 2: *l = (sat_layout){.row_stride = 2 * cols + 3, .col_stride = 2}; break;
    default: break;
    }
}

static void open_scene(scene *s, uint64_t *r, sat_problem p) {
    s->ctx = open_context(SAT_EFFORT_OFF);
    int64_t rows = 1 + random_below(r, 200), cols = 1 + random_below(r, 200);
    s->pattern = random_pattern(s->ctx, r, rows, cols, 1 + random_below(r, 20), 1 + random_below(r, 40), 0.3, false);
    bool t = p.matmul.transpose == SAT_TRANSPOSE;
    if (p.op == SAT_SAMPLED) {
        strides(r, &p.a, rows, p.k);
        strides(r, &p.b, p.k, cols);
    } else {
        strides(r, &p.b, t ? rows : cols, p.n);
        strides(r, &p.c, t ? cols : rows, p.n);
    }
    assert_ok(sat_pattern_transposed(s->pattern, &s->view));
    assert_ok(sat_request_make(&s->q, s->ctx, s->pattern, &p));
    assert_ok(sat_bench_open(&s->bench, s->ctx, &s->q.problem, s->view, &s->q.device, (size_t)1 << 32));
    const char *name = p.op == SAT_SAMPLED ? "cpu_sampled_any_any_c_reference" : "cpu_matmul_any_any_c_reference";
    assert_ok(sat_runner_open(&s->runner, s->ctx, sat_registry_find(&s->ctx->registry, name), &s->q.problem, s->view,
                              &s->q.device, 0, NULL));
}

/* A place in the output: its element's index in memory. */
static int64_t random_element(scene *s, uint64_t *r) {
    const sat_operand *o = &s->bench.operand[2];
    int64_t i = random_below(r, o->rows), j = random_below(r, o->cols);
    if (o->values) { /* inside the matrix */
        int64_t block = i / s->view->block_rows, row = 0;
        while (s->view->row_ptr[row + 1] <= block) row++;
        if (row * s->view->block_rows + i % s->view->block_rows >= s->view->rows) return -1;
        if (s->view->col_idx[block] * s->view->block_cols + j >= s->view->cols) return -1;
    }
    return i * o->layout.row_stride + j * o->layout.col_stride;
}

static void fill(scene *s, uint64_t *r, sat_probe probe, int fill_case) {
    assert_ok(sat_bench_fill(&s->bench, probe, fill_case, next_random(r)));
}

static void the_reference_passes_everywhere(void **state) {
    (void)state;
    uint64_t r = 21;
    for (int i = 0; i < 400; i++) {
        scene s;
        char where[224];
        sat_problem p = random_problem(&r, i & 1);
        if (!(i & 1) && random_below(&r, 3) == 0) p.matmul.activation = (sat_activation)(1 + random_below(&r, 3));
        open_scene(&s, &r, p);
        for (int fill_case = 0; fill_case < 4; fill_case++) {
            fill(&s, &r, SAT_PROBE_STRUCTURE, fill_case);
            run(&s);
            if (!passes(&s, where)) fail_msg("case %d, structure fill %d, %s: %s", i, fill_case, s.q.full_key, where);
        }
        fill(&s, &r, SAT_PROBE_PRECISION, 0);
        run(&s);
        if (!passes(&s, where)) fail_msg("case %d, precision, %s: %s", i, s.q.full_key, where);
        close_scene(&s);
    }
}

/* The least that an element can be off by, in its dtype. */
static void one_element_that_is_off_by_one_unit_is_found(void **state) {
    (void)state;
    uint64_t r = 22;
    int tried = 0;
    for (int i = 0; i < 400; i++) {
        scene s;
        open_scene(&s, &r, random_problem(&r, i & 1));
        int64_t at = s.bench.operand[2].span > 0 ? random_element(&s, &r) : -1;
        if (at >= 0) {
            sat_dtype t = s.q.problem.c_dtype;
            fill(&s, &r, SAT_PROBE_STRUCTURE, i / 2 % 4);
            run(&s);
            unsigned char *bits = (unsigned char *)s.bench.pointer[2] + (size_t)at * sat_dtype_size(t);
            if (sat_load(t, s.bench.pointer[2], at) != 0) {
                bits[0] ^= 1;
                if (passes(&s, NULL))
                    fail_msg("case %d, %s: the last bit at %lld passed", i, s.q.full_key, (long long)at);
                tried++;
            }
            sat_store(t, s.bench.pointer[2], at, NAN);
            if (passes(&s, NULL)) fail_msg("case %d, %s: NaN at %lld passed", i, s.q.full_key, (long long)at);
        }
        close_scene(&s);
    }
    assert_true(tried > 200);
}

static void an_unwritten_element_and_a_write_outside_are_found(void **state) {
    (void)state;
    uint64_t r = 23;
    for (int i = 0; i < 100; i++) {
        scene s;
        open_scene(&s, &r, random_problem(&r, i & 1));
        const sat_operand *o = &s.bench.operand[2];
        size_t size = sat_dtype_size(o->dtype);
        if (o->span > 0) {
            fill(&s, &r, i & 2 ? SAT_PROBE_STRUCTURE : SAT_PROBE_PRECISION, 0);
            run(&s);
            char *base = s.bench.pointer[2];
            base[-1] = 0;
            assert_false(passes(&s, NULL));
            run(&s);
            base[(size_t)o->span * size] = 0;
            assert_false(passes(&s, NULL));
            run(&s);
            if (!o->values && o->layout.col_stride == 1 && o->layout.row_stride > o->cols && o->rows > 1) {
                base[(size_t)o->cols * size] = 0; /* between two rows */
                assert_false(passes(&s, NULL));
                run(&s);
            }
            assert_true(passes(&s, NULL));
        }
        close_scene(&s);
    }
}

/* One that is written back is not missed: the operands are made anew. */
static void a_write_into_an_input_or_its_padding_is_found(void **state) {
    (void)state;
    uint64_t r = 26;
    for (int i = 0; i < 100; i++) {
        scene s;
        char where[224];
        open_scene(&s, &r, random_problem(&r, i & 1));
        if (s.bench.operand[2].span > 0 && s.bench.operand[i / 2 % 2].span > 0) {
            const sat_operand *o = &s.bench.operand[i / 2 % 2];
            fill(&s, &r, SAT_PROBE_STRUCTURE, 0);
            run(&s);
            size_t at = (size_t)random_below(&r, o->span * (int64_t)sat_dtype_size(o->dtype));
            ((unsigned char *)s.bench.pointer[i / 2 % 2])[at] ^= 4;
            assert_false(passes(&s, where));
            assert_non_null(strstr(where, o->name));
            run(&s);
            assert_true(passes(&s, NULL));
        }
        close_scene(&s);
    }
}

/* Computes on values of which one stored block is zero, and checks against the whole. */
static void a_dropped_block_is_found(void **state) {
    (void)state;
    uint64_t r = 24;
    int tried = 0;
    for (int i = 0; i < 200; i++) {
        scene s;
        sat_problem p = random_problem(&r, false);
        p.n = 2 + p.n;
        open_scene(&s, &r, p);
        int64_t area = s.view->block_rows * s.view->block_cols;
        if (s.view->stored_blocks > 0 && area >= 4) {
            fill(&s, &r, SAT_PROBE_STRUCTURE, i % 4);
            int64_t drop = random_below(&r, s.view->stored_blocks);
            for (int64_t e = 0; e < area; e++) sat_store(p.a_dtype, s.bench.pointer[0], drop * area + e, 0);
            run(&s);
            if (passes(&s, NULL))
                fail_msg("case %d, %s: without block %lld it passed", i, s.q.full_key, (long long)drop);
            tried++;
        }
        close_scene(&s);
    }
    assert_true(tried > 100);
}

static void a_forgotten_activation_is_found(void **state) {
    (void)state;
    uint64_t r = 25;
    for (int i = 0; i < 150; i++) {
        scene s;
        sat_problem p = random_problem(&r, false);
        p.matmul.activation = (sat_activation)(1 + i % 3);
        open_scene(&s, &r, p);
        bool enough = s.view->stored_blocks > 8 && s.q.problem.m * s.q.problem.n > 400;
        fill(&s, &r, i & 1 ? SAT_PROBE_STRUCTURE : SAT_PROBE_PRECISION, i / 2 % 4);
        s.runner.problem.matmul.activation = SAT_ACT_NONE;
        run(&s);
        if (enough && passes(&s, NULL)) fail_msg("case %d, %s: a forgotten activation passed", i, s.q.full_key);
        close_scene(&s);
    }
}

/* The error of one long chain has an exponential tail, so a single element may be many rms off and right; one that is
 * too far off has its own bound. Many that are off are a fault. */
static void one_far_element_is_no_fault_of_the_others_and_many_are(void **state) {
    (void)state;
    for (int64_t count = 1; count <= 1000; count *= 10) {
        sat_squares one = {0}, all = {0};
        for (int64_t i = 0; i < count; i++) {
            sat_squares_add(&one, i == 0 ? 15 : 1, 1);
            sat_squares_add(&all, 2.5, 1);
        }
        assert_true(sat_squares_fit(&one));
        assert_int_equal(sat_squares_fit(&all), count < 100);
    }
}

/* Twenty elements of a long row are nearly all of the sum: their mean is that of twenty, however many others there are.
 */
static void few_elements_that_weigh_most_count_as_few(void **state) {
    (void)state;
    sat_squares s = {0};
    for (int i = 0; i < 20; i++) sat_squares_add(&s, 1.4, 1);
    for (int i = 0; i < 20000; i++) sat_squares_add(&s, 1e-3, 1e-6);
    assert_true(sat_squares_effective(&s) > 19 && sat_squares_effective(&s) < 22);
    assert_true(sat_squares_fit(&s));
    sat_squares alike = {0};
    for (int i = 0; i < 20000; i++) sat_squares_add(&alike, 1.4, 1);
    assert_true(sat_squares_effective(&alike) > 19999);
    assert_false(sat_squares_fit(&alike));
}

/* ---- sums ---- */

/* A variant that the sums come from, as a built-in one that promises to be fast; `writes` into the first of B. */
static float writes;
static bool wrong_sums;

static bool careless_supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                              const sat_device *d) {
    (void)v, (void)a, (void)d;
    return p->a_dtype == SAT_F32 && p->c_dtype == SAT_F32;
}

static double careless_estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                                const sat_device *d) {
    return (void)v, (void)p, (void)a, (void)d, 1e-12;
}

static sat_status careless_launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const sat_pattern_view *a = l->pattern;
    const float *values = l->operands[0];
    float *b = l->operands[1], *c = l->operands[2];
    if (writes != 0) b[0] = writes;
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++) {
            double sum = 0;
            for (int64_t t = a->row_ptr[i / a->block_rows]; t < a->row_ptr[i / a->block_rows + 1]; t++)
                for (int64_t k = 0; k < a->block_cols && a->col_idx[t] * a->block_cols + k < p->k; k++)
                    sum += (double)values[(t * a->block_rows + i % a->block_rows) * a->block_cols + k] *
                           b[(a->col_idx[t] * a->block_cols + k) * p->b.row_stride + j * p->b.col_stride];
            c[i * p->c.row_stride + j * p->c.col_stride] = (float)sum;
        }
    if (wrong_sums) c[p->m * p->n / 2] += 1;
    return SAT_OK;
}

/* Sums come from a variant that may be wrong itself, or write into what it should read: neither changes what is right,
 * and neither hides what it writes from the check that follows. */
static void sums_of_a_wrong_variant_prove_nothing(void **state) {
    (void)state;
    for (int way = 0; way < 4; way++) {
        scene s;
        uint64_t r = 5;
        writes = way == 1 ? 3 : way == 2 ? 0.3F : 0, wrong_sums = way == 3;
        open_scene(&s, &r, matmul_problem(SAT_F32, 40));
        sat_variant v = {SAT_SIZED(sat_variant), .name = "careless", .revision = "1", .op = SAT_MATMUL};
        v.backend = SAT_CPU, v.supports = careless_supports, v.estimate = careless_estimate, v.launch = careless_launch;
        assert_ok(sat_variant_register(s.ctx, &v));
        s.ctx->registry.built_in = atomic_load(&s.ctx->registry.count);
        for (int fill_case = 0; fill_case < 4; fill_case++) {
            fill(&s, &r, SAT_PROBE_STRUCTURE, fill_case);
            run(&s);
            assert_true(passes(&s, NULL)); /* the reference */
            sat_runner right = s.runner;
            assert_ok(sat_runner_open(&s.runner, s.ctx, sat_registry_find(&s.ctx->registry, "careless"), &s.q.problem,
                                      s.view, &s.q.device, 0, NULL));
            run(&s);
            assert_true(passes(&s, NULL) == (way == 0));
            sat_runner_close(&s.runner);
            s.runner = right;
        }
        close_scene(&s);
    }
}

/* One unit in one sum is enough, whatever the operation. */
static void sums_that_are_wrong_are_not_proven(void **state) {
    (void)state;
    uint64_t r = 6;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    sat_pattern *pattern = random_pattern(ctx, &r, 60, 50, 6, 5, 0.4, false);
    sat_problem p[4] = {matmul_problem(SAT_F32, 30), sampled_problem(SAT_F32, 30)};
    p[2].size = p[3].size = sizeof *p;
    assert_ok(sat_problem_grouped(&p[2], SAT_F32, 60, 30, 20, 5));
    assert_ok(sat_problem_grouped_weights(&p[3], SAT_F32, 60, 30, 20, 5));
    for (int i = 0; i < 4; i++) {
        sat_request q;
        sat_bench s;
        assert_ok(sat_request_make(&q, ctx, i < 2 ? pattern : NULL, &p[i]));
        const sat_pattern_view *view = q.view;
        if (i < 2) assert_ok(sat_pattern_transposed(pattern, &view));
        assert_ok(sat_bench_open(&s, ctx, &q.problem, view, &q.device, (size_t)1 << 32));
        for (int fill_case = 0; fill_case < 2; fill_case++) {
            assert_ok(sat_bench_fill(&s, SAT_PROBE_STRUCTURE, fill_case, next_random(&r)));
            sat_trial t = {.device = s.device, .problem = s.problem, .pattern = s.pattern};
            t.operands = s.pointer, t.fills = s.fills, t.sums = s.sums;
            float *sums = s.sums, right;
            int64_t count = (int64_t)(s.sums_bytes / sizeof *sums), at;
            do at = random_below(&r, count);
            while (sums[at] == 0); /* padding of blocks is no sum */
            for (int wrong = 0; wrong < 3; wrong++) {
                sat_finding f;
                right = sums[at];
                sums[at] += wrong == 1 ? 1 : wrong == 2 ? 0.5F : 0;
                assert_ok(s.checker->prove(&t, next_random(&r), &f));
                assert_true(f.ok == (wrong == 0));
                sums[at] = right;
            }
        }
        sat_bench_close(&s);
    }
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_elements_that_weigh_most_count_as_few),
        cmocka_unit_test(the_reference_passes_everywhere),
        cmocka_unit_test(one_element_that_is_off_by_one_unit_is_found),
        cmocka_unit_test(an_unwritten_element_and_a_write_outside_are_found),
        cmocka_unit_test(a_write_into_an_input_or_its_padding_is_found),
        cmocka_unit_test(a_dropped_block_is_found),
        cmocka_unit_test(a_forgotten_activation_is_found),
        cmocka_unit_test(sums_of_a_wrong_variant_prove_nothing),
        cmocka_unit_test(sums_that_are_wrong_are_not_proven),
        cmocka_unit_test(one_far_element_is_no_fault_of_the_others_and_many_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
