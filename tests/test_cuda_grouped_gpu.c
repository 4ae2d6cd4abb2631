/* On a GPU: products of groups by every variant against loops on the host, whatever the groups, strides and dtypes are;
 * offsets that break their rules; NaN in another group's rows; runs that are captured and replayed with new offsets. */
#include "cuda_support.h"

#include <cuda_runtime_api.h>

#include "grouped_cases.h"

static sat_context *open_with(int multiprocessors, sat_effort effort) {
    sat_context *ctx = NULL;
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cuda", .cache_dir = "", .effort = effort};
    o.multiprocessors = multiprocessors;
    assert_ok(sat_context_create(&o, &ctx));
    return ctx;
}

static bool is_named(const sat_variant *v, const char *word) { return strstr(v->name, word) != NULL; }

/* ---- a case on the device ---- */

typedef struct device_case {
    grouped_case c;
    void *x, *second, *out, *offsets, *bias;
} device_case;

static size_t bytes_of(const matrix *m) { return (size_t)(m->span + 1) * sat_dtype_size(m->dtype); }

static size_t offset_bytes(const grouped_case *c) {
    return (size_t)(c->problem.grouped.groups + 1) * (c->problem.grouped.offset_type == SAT_I32 ? 4 : 8);
}

/* Factors and offsets, to where they are already. */
static void upload(sat_context *ctx, device_case *d) {
    grouped_case *c = &d->c;
    assert_ok(sat_memory_write(ctx, d->x, c->x.data, bytes_of(&c->x)));
    assert_ok(sat_memory_write(ctx, d->second, c->second.data, bytes_of(&c->second)));
    assert_ok(sat_memory_write(ctx, d->offsets, c->offsets, offset_bytes(c)));
}

static device_case put_on_device(sat_context *ctx, grouped_case c) {
    device_case d = {.c = c};
    size_t items = (size_t)(c.problem.grouped.groups ? c.problem.grouped.groups : 1);
    d.x = to_device(ctx, c.x.data, bytes_of(&c.x)), d.second = to_device(ctx, c.second.data, bytes_of(&c.second));
    d.out = to_device(ctx, c.out.data, bytes_of(&c.out)), d.offsets = to_device(ctx, c.offsets, offset_bytes(&c));
    d.bias = to_device(ctx, c.bias, items * (size_t)c.problem.n * sat_dtype_size(c.problem.c_dtype));
    return d;
}

static void free_device_case(sat_context *ctx, device_case *d) {
    void *all[] = {d->x, d->second, d->out, d->offsets, d->bias};
    for (int i = 0; i < 5; i++) sat_memory_free(ctx, all[i]);
    free_case(&d->c);
}

static sat_status queue(device_case *d, sat_plan *plan, void *stream) {
    const void *inputs[] = {d->x, d->second, d->offsets, d->bias};
    return sat_run(plan, inputs, d->c.problem.grouped.bias ? 4 : 3, (void *[]){d->out}, 1, stream);
}

static void reset_on_device(sat_context *ctx, device_case *d) {
    reset_output(&d->c);
    assert_ok(sat_memory_write(ctx, d->out, d->c.out.data, bytes_of(&d->c.out)));
}

static void expect_on_device(sat_context *ctx, device_case *d, const char *who, int number) {
    assert_ok(sat_memory_read(ctx, d->c.out.data, d->out, bytes_of(&d->c.out)));
    expect_output(&d->c, who, number);
}

/* Runs every variant that takes the case. Returns how many; `named`: how many of them have that word. */
static int run_all(sat_context *ctx, device_case *d, int number, const char *word, int *named) {
    int runs = 0;
    for (size_t i = 0; i < sat_variant_count(ctx); i++) {
        const sat_variant *v = sat_variant_at(ctx, i);
        sat_plan *plan = NULL;
        if (v->op != d->c.problem.op) continue;
        if (sat_plan_create_with(ctx, NULL, &d->c.problem, v->name, &plan) != SAT_OK) continue;
        for (int again = 0; again < 2; again++) { /* the second run finds the counters as the first left them */
            reset_on_device(ctx, d);
            assert_ok(queue(d, plan, NULL));
            assert_ok(sat_stream_wait(ctx, NULL));
            expect_on_device(ctx, d, v->name, number);
        }
        sat_plan_free(plan);
        runs++, *named += is_named(v, word);
    }
    return runs;
}

/* ---- tests ---- */

/* For tensor cores: 16-bit, with several stages along the depth, and several tiles of every size. */
static sat_problem draw_aligned(uint64_t *r, bool weights) {
    sat_problem p = draw_problem(r, weights), q = {SAT_SIZED(sat_problem)};
    int shape = (int)random_below(r, 3); /* which of the sizes is large */
    int64_t m = 1 + random_below(r, shape == 0 ? 900 : 150), n = 1 + random_below(r, shape == 1 ? 700 : 150);
    int64_t k = 1 + random_below(r, shape == 2 ? 900 : 150), groups = 1 + random_below(r, random_below(r, 2) ? 8 : 70);
    if (random_below(r, 2)) n = (n + 7) / 8 * 8, k = (k + 7) / 8 * 8;
    sat_dtype t = random_below(r, 2) ? SAT_F16 : SAT_BF16;
    if (weights) assert_ok(sat_problem_grouped_weights(&q, t, m, n, k, groups));
    else assert_ok(sat_problem_grouped(&q, t, m, n, k, groups));
    q.grouped.offset_type = p.grouped.offset_type, q.grouped.bias = p.grouped.bias;
    q.grouped.activation = p.grouped.activation, q.alpha = p.alpha, q.beta = p.beta;
    if (random_below(r, 2)) q.c_dtype = SAT_F32;
    return q;
}

static void run_cases(int multiprocessors, uint64_t seed, int count) {
    int runs = 0, named = 0;
    sat_context *ctx = open_with(multiprocessors, SAT_EFFORT_OFF);
    bool hopper = sat_context_device(ctx)->capability == 90;
    for (int number = 0; number < count; number++) {
        bool aligned = number % 3 != 0;
        sat_problem drawn = aligned ? draw_aligned(&seed, number % 2) : draw_problem(&seed, number % 2);
        device_case d = put_on_device(ctx, make_case(&seed, &drawn, aligned ? ALIGNED : number % 5 == 0 ? PLAIN : ANY));
        runs += run_all(ctx, &d, number, "_sm90_", &named);
        free_device_case(ctx, &d);
    }
    print_message("%d runs, %d of them by wgmma\n", runs, named);
    assert_true(runs > 2 * count);
    if (hopper) assert_true(named > count);
    sat_context_free(ctx);
}

static void every_variant_gives_each_group_its_own_product(void **state) {
    (void)state;
    run_cases(0, 77, 80);
}

/* A CTA has many tiles, one after the other. */
static void tiles_of_few_multiprocessors_follow_each_other(void **state) {
    (void)state;
    run_cases(2, 78, 50);
}

/* More groups than a warp looks at together, most of them empty, and a fault among the last. */
static void many_groups_are_found_and_cut_off(void **state) {
    uint64_t random = 21;
    int named = 0;
    (void)state;
    sat_context *ctx = open_with(3, SAT_EFFORT_OFF);
    for (int number = 0; number < 24; number++) {
        sat_problem drawn = {SAT_SIZED(sat_problem)};
        int64_t groups = 31 + random_below(&random, 300), fault = groups - random_below(&random, 30);
        if (number % 2) assert_ok(sat_problem_grouped_weights(&drawn, SAT_BF16, 200, 16, 24, groups));
        else assert_ok(sat_problem_grouped(&drawn, SAT_BF16, 200, 40, 24, groups));
        drawn.c_dtype = SAT_F32, drawn.grouped.offset_type = number % 4 < 2 ? SAT_I32 : SAT_I64;
        grouped_case c = make_case(&random, &drawn, ALIGNED);
        if (number % 3) {
            fill(&random, &c.x);
            if (c.weights) fill(&random, &c.second);
            store_offsets(&c, c.groups);
            int64_t bad = number % 3 == 1 ? 201 : -1;
            if (drawn.grouped.offset_type == SAT_I32) ((int32_t *)c.offsets)[fault] = (int32_t)bad;
            else ((int64_t *)c.offsets)[fault] = number % 2 ? INT64_MAX : INT64_MIN;
            for (int64_t g = fault; g <= groups; g++) c.groups[g] = c.groups[fault - 1];
            expect_all(&c);
        }
        device_case d = put_on_device(ctx, c);
        (void)run_all(ctx, &d, number, "_sm90_", &named);
        free_device_case(ctx, &d);
    }
    sat_context_free(ctx);
}

/* From the fault on groups are empty. A run does not see it: its result does. */
static void a_fault_in_the_offsets_ends_the_groups(void **state) {
    static const int64_t offsets[][5] = {
        {1, 10, 20, 30, 40},        {-1, 10, 20, 30, 40},       {0, 10, 5, 30, 40},          {0, 10, 20, 41, 40},
        {0, 10, INT32_MIN, 30, 40}, {0, INT32_MAX, 20, 30, 40}, {INT32_MIN, 10, 20, 30, 40}, {0, 40, 40, 40, 41}};
    static const int64_t meant[][5] = {{0}, {0}, {0, 10, 10, 10, 10}, {0, 10, 20, 20, 20}, {0, 10, 10, 10, 10},
                                       {0}, {0}, {0, 40, 40, 40, 40}};
    uint64_t random = 8;
    int named = 0;
    (void)state;
    sat_context *ctx = open_with(0, SAT_EFFORT_OFF);
    for (size_t f = 0; f < sizeof offsets / sizeof *offsets; f++)
        for (int which = 0; which < 8; which++) {
            sat_problem drawn = {SAT_SIZED(sat_problem)};
            sat_dtype t = which < 4 ? SAT_F32 : SAT_F16;
            if (which % 2) assert_ok(sat_problem_grouped_weights(&drawn, t, 40, 24, 16, 4));
            else assert_ok(sat_problem_grouped(&drawn, t, 40, 24, 16, 4));
            drawn.grouped.offset_type = which % 4 < 2 ? SAT_I32 : SAT_I64, drawn.beta = 0.5;
            grouped_case c = make_case(&random, &drawn, which < 4 ? PLAIN : ALIGNED);
            fill(&random, &c.x);
            if (c.weights) fill(&random, &c.second);
            memcpy(c.groups, meant[f], sizeof meant[f]);
            store_offsets(&c, offsets[f]);
            expect_all(&c);
            device_case d = put_on_device(ctx, c);
            (void)run_all(ctx, &d, (int)f, "_sm90_", &named);
            free_device_case(ctx, &d);
        }
    sat_context_free(ctx);
}

/* A group's rows of X, and of Z, are NaN. It must not be seen in any other group, however tiles and boxes overlap. */
static void nan_stays_in_its_group(void **state) {
    uint64_t random = 31;
    int named = 0;
    (void)state;
    sat_context *ctx = open_with(0, SAT_EFFORT_OFF);
    for (int number = 0; number < 40; number++) {
        sat_problem drawn = draw_aligned(&random, number % 2);
        drawn.grouped.activation = SAT_ACT_NONE;
        grouped_case c = make_case(&random, &drawn, ALIGNED);
        int64_t group = random_below(&random, drawn.grouped.groups);
        matrix *both[] = {&c.x, c.weights ? &c.second : &c.x};
        for (int which = 0; which < 2; which++)
            for (int64_t i = c.groups[group]; i < c.groups[group + 1]; i++)
                for (int64_t j = 0; j < both[which]->cols; j++)
                    sat_store(both[which]->dtype, both[which]->data, at(both[which], 0, i, j), (double)NAN);
        expect_all(&c);
        device_case d = put_on_device(ctx, c);
        (void)run_all(ctx, &d, number, "_sm90_", &named);
        free_device_case(ctx, &d);
    }
    sat_context_free(ctx);
}

/* One graph; the offsets in memory change between its launches. */
static void a_captured_run_takes_the_offsets_of_each_replay(void **state) {
    uint64_t random = 5;
    (void)state;
    sat_context *ctx = open_with(0, SAT_EFFORT_OFF);
    cudaStream_t stream;
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    for (int number = 0; number < 4; number++) {
        sat_problem drawn = {SAT_SIZED(sat_problem)};
        if (number % 2) assert_ok(sat_problem_grouped_weights(&drawn, SAT_F16, 300, 264, 136, 9));
        else assert_ok(sat_problem_grouped(&drawn, SAT_F16, 300, 264, 136, 9));
        for (size_t i = 0; i < sat_variant_count(ctx); i++) {
            const sat_variant *v = sat_variant_at(ctx, i);
            sat_plan *plan = NULL;
            device_case d = put_on_device(ctx, make_case(&random, &drawn, PLAIN));
            d.c.problem.a_align = d.c.problem.b_align = d.c.problem.c_align = 16;
            cudaGraph_t graph = NULL;
            cudaGraphExec_t exec = NULL;
            if (v->op == drawn.op) (void)sat_plan_create_with(ctx, NULL, &d.c.problem, v->name, &plan);
            if (plan) {
                assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
                assert_ok(queue(&d, plan, stream));
                assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
                assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
            }
            for (int replay = 0; replay < 3 && plan; replay++) {
                grouped_case *c = &d.c;
                fill(&random, &c->x);
                if (c->weights) fill(&random, &c->second);
                draw_groups(&random, drawn.m, drawn.grouped.groups, c->groups);
                store_offsets(c, c->groups);
                poison_other_rows(c);
                expect_all(c);
                upload(ctx, &d);
                reset_on_device(ctx, &d);
                assert_int_equal(cudaGraphLaunch(exec, stream), cudaSuccess);
                assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
                expect_on_device(ctx, &d, v->name, replay);
            }
            if (exec) cudaGraphExecDestroy(exec);
            if (graph) cudaGraphDestroy(graph);
            sat_plan_free(plan);
            free_device_case(ctx, &d);
        }
    }
    cudaStreamDestroy(stream);
    sat_context_free(ctx);
}

static void a_plan_is_tuned_and_verified(void **state) {
    uint64_t random = 3;
    (void)state;
    sat_context *ctx = open_with(0, SAT_EFFORT_QUICK);
    for (int number = 0; number < 8; number++) {
        sat_problem drawn = {SAT_SIZED(sat_problem)};
        sat_dtype t = (sat_dtype)(SAT_F32 + number / 2);
        sat_plan *plan = NULL;
        sat_plan_info info = {SAT_SIZED(sat_plan_info)};
        if (number % 2) assert_ok(sat_problem_grouped_weights(&drawn, t, 400, 64, 96, 7));
        else assert_ok(sat_problem_grouped(&drawn, t, 400, 96, 64, 7));
        drawn.grouped.bias = !(number % 2), drawn.beta = number % 2;
        device_case d = put_on_device(ctx, make_case(&random, &drawn, ALIGNED));
        assert_ok(sat_plan_create(ctx, NULL, &d.c.problem, &plan));
        assert_ok(sat_plan_get_info(plan, &info));
        print_message("%s\n", info.variant);
        assert_true(info.verified);
        assert_null(strstr(info.variant, "reference"));
        reset_on_device(ctx, &d);
        assert_ok(queue(&d, plan, NULL));
        assert_ok(sat_stream_wait(ctx, NULL));
        expect_on_device(ctx, &d, info.variant, number);
        sat_plan_free(plan);
        free_device_case(ctx, &d);
    }
    sat_context_free(ctx);
}

/* Every variant alone through the checks of a race; none may be found wrong. */
static void the_race_finds_every_variant_right(void **state) {
    (void)state;
    sat_context *ctx = open_with(0, SAT_EFFORT_QUICK);
    for (int number = 0; number < 8; number++) {
        sat_problem p = {SAT_SIZED(sat_problem)};
        sat_race *race = NULL;
        sat_dtype t = number < 4 ? SAT_F16 : SAT_BF16;
        if (number % 2) assert_ok(sat_problem_grouped_weights(&p, t, 3000, 520, 1032, 12));
        else assert_ok(sat_problem_grouped(&p, t, 3000, 1032, 520, 12));
        p.a_align = p.b_align = p.c_align = 128;
        if (number % 4 >= 2) p.c_dtype = SAT_F32, p.beta = 0.5;
        if (number % 4 == 2) p.grouped.bias = true, p.grouped.activation = SAT_ACT_SILU;
        if (number % 4 == 2) p.b = (sat_layout){.row_stride = 1, .col_stride = 520, .batch_stride = 520 * 1032};
        for (size_t i = 0; i < sat_variant_count(ctx); i++) {
            const sat_variant *v = sat_variant_at(ctx, i);
            sat_race_options o = {SAT_SIZED(sat_race_options), .only = v->name};
            if (v->op != p.op || sat_race_run(ctx, NULL, &p, &o, &race) != SAT_OK) continue;
            const sat_result *x = sat_race_at(race, 0);
            if (x && x->verdict != SAT_VERDICT_OK) fail_msg("case %d: %s: %s", number, x->variant, x->message);
            sat_race_free(race);
        }
    }
    sat_context_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant_gives_each_group_its_own_product),
        cmocka_unit_test(tiles_of_few_multiprocessors_follow_each_other),
        cmocka_unit_test(many_groups_are_found_and_cut_off),
        cmocka_unit_test(a_fault_in_the_offsets_ends_the_groups),
        cmocka_unit_test(nan_stays_in_its_group),
        cmocka_unit_test(a_captured_run_takes_the_offsets_of_each_replay),
        cmocka_unit_test(a_plan_is_tuned_and_verified),
        cmocka_unit_test(the_race_finds_every_variant_right),
    };
    if (!has_gpu()) return NO_GPU;
    return cmocka_run_group_tests_name("cuda_grouped_gpu", tests, NULL, NULL);
}
