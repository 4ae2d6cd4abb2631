/* Products of groups: every variant against loops of its own, whatever the groups, strides and dtypes are; offsets that
 * break their rules; what the race finds of variants that are wrong. */
#include "grouped_cases.h"

/* ---- running one ---- */

static sat_status run_case(grouped_case *c, sat_plan *plan) {
    const void *inputs[] = {c->x.data, c->second.data, c->offsets, c->bias};
    reset_output(c);
    return sat_run(plan, inputs, c->problem.grouped.bias ? 4 : 3, (void *[]){c->out.data}, 1, NULL);
}

/* ---- tests ---- */

static void every_variant_gives_each_group_its_own_product(void **state) {
    uint64_t random = 77;
    int runs = 0;
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    for (int number = 0; number < 240; number++) {
        sat_problem drawn = draw_problem(&random, number % 2);
        grouped_case c = make_case(&random, &drawn, (style)(number % 5 == 0));
        for (size_t i = 0; i < sat_variant_count(ctx); i++) {
            const sat_variant *v = sat_variant_at(ctx, i);
            sat_plan *plan = NULL;
            if (v->op != drawn.op || sat_plan_create_with(ctx, NULL, &c.problem, v->name, &plan) != SAT_OK) continue;
            assert_ok(run_case(&c, plan));
            expect_output(&c, v->name, number);
            sat_plan_free(plan);
            runs++;
        }
        free_case(&c);
    }
    print_message("%d runs\n", runs);
    assert_true(runs > 500);
    sat_context_free(ctx);
}

/* One plan, and offsets that change from run to run. */
static void a_plan_takes_the_offsets_of_each_run(void **state) {
    uint64_t random = 5;
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    for (int weights = 0; weights < 2; weights++) {
        sat_problem drawn = {SAT_SIZED(sat_problem)};
        if (weights) assert_ok(sat_problem_grouped_weights(&drawn, SAT_F32, 90, 33, 40, 6));
        else assert_ok(sat_problem_grouped(&drawn, SAT_F32, 90, 33, 40, 6));
        for (size_t i = 0; i < sat_variant_count(ctx); i++) {
            const sat_variant *v = sat_variant_at(ctx, i);
            sat_plan *plan = NULL;
            if (v->op != drawn.op) continue;
            for (int run = 0; run < 6; run++) {
                grouped_case c = make_case(&random, &drawn, PLAIN);
                if (!plan && sat_plan_create_with(ctx, NULL, &c.problem, v->name, &plan) != SAT_OK) plan = NULL;
                if (plan) assert_ok(run_case(&c, plan));
                if (plan) expect_output(&c, v->name, run);
                free_case(&c);
            }
            sat_plan_free(plan);
        }
    }
    sat_context_free(ctx);
}

/* The groups from the fault on are empty, in all variants alike, and the run says what is wrong. */
static void a_fault_in_the_offsets_ends_the_groups_and_is_reported(void **state) {
    static const struct {
        int64_t offsets[5], meant[5];
        const char *word;
    } faults[] = {
        {{1, 10, 20, 30, 40}, {0, 0, 0, 0, 0}, "offsets[0] is 1"},
        {{-1, 10, 20, 30, 40}, {0, 0, 0, 0, 0}, "offsets[0] is -1"},
        {{0, 10, 5, 30, 40}, {0, 10, 10, 10, 10}, "offsets[2] is 5"},
        {{0, 10, 20, 41, 40}, {0, 10, 20, 20, 20}, "offsets[3] is 41, beyond the 40"},
        {{0, 10, INT32_MIN, 30, 40}, {0, 10, 10, 10, 10}, "offsets[2]"},
        {{0, INT32_MAX, 20, 30, 40}, {0, 0, 0, 0, 0}, "offsets[1]"},
    };
    uint64_t random = 8;
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    for (size_t f = 0; f < sizeof faults / sizeof *faults; f++)
        for (int which = 0; which < 4; which++) {
            sat_problem drawn = {SAT_SIZED(sat_problem)};
            if (which % 2) assert_ok(sat_problem_grouped_weights(&drawn, SAT_F32, 40, 17, 20, 4));
            else assert_ok(sat_problem_grouped(&drawn, SAT_F32, 40, 17, 20, 4));
            drawn.grouped.offset_type = which < 2 ? SAT_I32 : SAT_I64, drawn.beta = 0.5;
            grouped_case c = make_case(&random, &drawn, PLAIN);
            fill(&random, &c.x);
            if (c.weights) fill(&random, &c.second);
            memcpy(c.groups, faults[f].meant, sizeof faults[f].meant);
            store_offsets(&c, faults[f].offsets);
            expect_all(&c);
            for (size_t i = 0; i < sat_variant_count(ctx); i++) {
                const sat_variant *v = sat_variant_at(ctx, i);
                sat_plan *plan = NULL;
                if (v->op != drawn.op || sat_plan_create_with(ctx, NULL, &c.problem, v->name, &plan) != SAT_OK)
                    continue;
                assert_fails(run_case(&c, plan), SAT_BAD_ROW_PTR, faults[f].word);
                expect_output(&c, v->name, (int)f);
                sat_plan_free(plan);
            }
            free_case(&c);
        }
    sat_context_free(ctx);
}

static void a_plan_is_tuned_and_verified_and_found_again(void **state) {
    uint64_t random = 3;
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_QUICK);
    for (int weights = 0; weights < 2; weights++) {
        sat_problem drawn = {SAT_SIZED(sat_problem)};
        if (weights) assert_ok(sat_problem_grouped_weights(&drawn, SAT_F32, 200, 48, 64, 7));
        else assert_ok(sat_problem_grouped(&drawn, SAT_F32, 200, 48, 64, 7));
        drawn.grouped.bias = !weights, drawn.beta = weights ? 1 : 0;
        grouped_case c = make_case(&random, &drawn, PLAIN);
        for (int again = 0; again < 2; again++) {
            sat_plan *plan = NULL;
            sat_plan_info info = {SAT_SIZED(sat_plan_info)};
            assert_ok(sat_plan_create(ctx, NULL, &c.problem, &plan));
            assert_ok(sat_plan_get_info(plan, &info));
            assert_int_equal(info.tuned, !again);
            assert_int_equal(info.cached, again);
            assert_true(info.verified);
            assert_null(strstr(info.variant, "reference"));
            assert_ok(run_case(&c, plan));
            expect_output(&c, info.variant, again);
            sat_plan *copy = NULL;
            assert_ok(sat_plan_dup(plan, &copy));
            sat_plan_free(plan);
            assert_ok(run_case(&c, copy));
            expect_output(&c, info.variant, again);
            sat_plan_free(copy);
        }
        free_case(&c);
    }
    sat_context_free(ctx);
}

static void one_call_does_it_all(void **state) {
    uint64_t random = 4;
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    for (int number = 0; number < 40; number++) {
        sat_problem drawn = draw_problem(&random, number % 2);
        grouped_case c = make_case(&random, &drawn, ANY);
        for (int again = 0; again < 2; again++) {
            reset_output(&c);
            if (c.weights)
                assert_ok(sat_grouped_weights(ctx, &c.problem, c.x.data, c.second.data, c.offsets, c.out.data, NULL));
            else
                assert_ok(sat_grouped_matmul(ctx, &c.problem, c.x.data, c.second.data, c.offsets, c.out.data,
                                             c.problem.grouped.bias ? c.bias : NULL, NULL));
            expect_output(&c, "one call", number);
        }
        free_case(&c);
    }
    sat_problem p = {SAT_SIZED(sat_problem)};
    float some[64] = {0};
    int64_t offsets[2] = {0, 4};
    assert_ok(sat_problem_grouped(&p, SAT_F32, 4, 4, 4, 1));
    assert_fails(sat_grouped_matmul(ctx, &p, some, some + 16, offsets, some + 32, some + 48, NULL), SAT_UNSUPPORTED,
                 "bias");
    assert_fails(sat_grouped_weights(ctx, &p, some, some + 16, offsets, some + 32, NULL), SAT_BAD_ENUM, "op");
    sat_context_free(ctx);
}

static void what_is_wrong_is_named(void **state) {
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    sat_plan *plan = NULL;
    uint64_t random = 1;
    sat_pattern *pattern = random_pattern(ctx, &random, 8, 8, 4, 4, 1, false);
    sat_problem good = {SAT_SIZED(sat_problem)}, p;
    assert_ok(sat_problem_grouped(&good, SAT_F32, 8, 8, 8, 2));
    assert_fails(sat_plan_create(ctx, pattern, &good, &plan), SAT_UNSUPPORTED, "pattern");
    p = matmul_problem(SAT_F32, 8);
    assert_fails(sat_plan_create(ctx, NULL, &p, &plan), SAT_NULL_POINTER, "pattern");
#define REFUSED(status, word, change)                                                                                  \
    do {                                                                                                               \
        p = good;                                                                                                      \
        change;                                                                                                        \
        assert_fails(sat_plan_create(ctx, NULL, &p, &plan), status, word);                                             \
    } while (0)
    REFUSED(SAT_BAD_SIZE, "m is -1", p.m = -1);
    REFUSED(SAT_BAD_SIZE, "n is -2", p.n = -2);
    REFUSED(SAT_BAD_SIZE, "k is -3", p.k = -3);
    REFUSED(SAT_BAD_SIZE, "expected 0 to 2^40", (p.k = INT64_MAX, p.n = 0));
    REFUSED(SAT_BAD_SIZE, "groups is -1", p.grouped.groups = -1);
    REFUSED(SAT_BAD_SIZE, "groups is", p.grouped.groups = (int64_t)1 << 40);
    REFUSED(SAT_BAD_ENUM, "offset_type is 0", p.grouped.offset_type = 0);
    REFUSED(SAT_BAD_ENUM, "offset_type is SAT_I32", (p.grouped.offset_type = SAT_I32, p.m = (int64_t)1 << 31));
    REFUSED(SAT_BAD_ENUM, "activation is 9", p.grouped.activation = (sat_activation)9);
    REFUSED(SAT_BAD_SIZE, "skew is", p.grouped.skew = -1);
    REFUSED(SAT_BAD_SIZE, "skew is", p.grouped.skew = (double)NAN);
    REFUSED(SAT_UNSUPPORTED, "batch is 2", p.batch = 2);
    REFUSED(SAT_BAD_STRIDE, "w: batch_stride is 0", p.b = ((sat_layout){.row_stride = 8, .col_stride = 1}));
    REFUSED(SAT_BAD_STRIDE, "x: col_stride is 0", p.a = ((sat_layout){.row_stride = 8}));
    REFUSED(SAT_BAD_STRUCT, "grouped", p.room[sizeof(sat_grouped) / 8] = 1);
    p = good, p.grouped.skew = 1e19; /* at most all rows in one group */
    assert_ok(sat_plan_create(ctx, NULL, &p, &plan));
    sat_plan_free(plan);
    p = good, p.op = SAT_GROUPED_WEIGHTS, p.grouped.bias = true;
    assert_fails(sat_plan_create(ctx, NULL, &p, &plan), SAT_UNSUPPORTED, "bias");
    p = good, p.op = SAT_GROUPED_WEIGHTS, p.c = (sat_layout){.row_stride = 8, .col_stride = 1, .batch_stride = 8};
    assert_fails(sat_plan_create(ctx, NULL, &p, &plan), SAT_BAD_STRIDE, "w: with strides");
    p = good, p.b = (sat_layout){.row_stride = 8, .col_stride = 1}, p.flags = SAT_ALLOW_BROADCAST; /* one W for all */
    assert_ok(sat_plan_create(ctx, NULL, &p, &plan));
    float some[256] = {0};
    assert_fails(sat_run(plan, (const void *[]){some, some}, 2, (void *[]){some + 128}, 1, NULL), SAT_BAD_SIZE,
                 "3 (x, w, offsets)");
    assert_fails(sat_run(plan, (const void *[]){some, some + 64, (char *)some + 2}, 3, (void *[]){some + 128}, 1, NULL),
                 SAT_MISALIGNED, "offsets");
    assert_fails(sat_run(plan, (const void *[]){some, some + 64, some + 128}, 3, (void *[]){some + 128}, 1, NULL),
                 SAT_OVERLAP, "offsets");
    sat_plan_free(plan);
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

/* ---- planted variants ---- */

typedef enum fault {
    RIGHT,
    OLD_OFFSETS,       /* those of the first run of a plan */
    EVEN_GROUPS,       /* as if all had the same number of rows */
    NEXT_GROUPS_ROW,   /* one row too many in each group */
    LEAVES_OTHER_ROWS, /* what belongs to no group, or to an empty one, is not written */
    FOLLOWS_FAULTS,    /* does not stop at a fault */
    LAST_BEYOND,       /* takes an offset beyond the last row for the last row */
    FIRST_IGNORED,     /* a first offset that is not 0 */
    HALF_OF_OFFSETS,   /* reads the lower 32 bits alone */
    NO_SINGLE_ROWS,    /* a group of one row has zeros */
    FIRST_EMPTY,       /* the second group has zeros where the first is empty */
    TWO_EMPTY,         /* the last group has zeros where two groups beside each other are empty */
    LAST_COLUMN,       /* lacks the last product */
    ROUGH_INPUTS,      /* without their last three bits, which no integers have */
    HALF_THE_DEPTH,
    NO_BIAS,
    ZEROS_TIMES_OTHERS, /* adds 0 times what is other groups', which may be NaN */
    FAULT_COUNT
} fault;

static fault planted;

typedef struct planted_state {
    bool taken;
    int64_t offsets[64];
} planted_state;

static sat_status planted_prepare(const sat_prepare *prepare, void **state) {
    (void)prepare;
    *state = calloc(1, sizeof(planted_state));
    return SAT_OK;
}

static void planted_release(const sat_variant *v, void *state) {
    (void)v;
    free(state);
}

static int64_t given(const sat_launch *l, int64_t i) {
    const sat_problem *p = l->problem;
    if (p->grouped.offset_type == SAT_I32) return ((const int32_t *)l->operands[3])[i];
    int64_t x = ((const int64_t *)l->operands[3])[i];
    return planted == HALF_OF_OFFSETS ? (int32_t)(x & UINT32_MAX) : x;
}

static void take_offsets(const sat_launch *l, int64_t *to) {
    const sat_problem *p = l->problem;
    planted_state *s = l->state;
    int64_t groups = p->grouped.groups;
    bool broken = given(l, 0) != 0 && planted != FIRST_IGNORED;
    to[0] = 0;
    for (int64_t g = 1; g <= groups; g++) {
        bool beyond = planted == LAST_BEYOND && !broken && given(l, g) > p->m;
        broken = broken || given(l, g) < to[g - 1] || given(l, g) > p->m;
        to[g] = beyond ? p->m : broken ? to[g - 1] : given(l, g);
        if (planted == FOLLOWS_FAULTS && broken && given(l, g) >= to[g - 1] && given(l, g) <= p->m) to[g] = given(l, g);
    }
    if (planted == EVEN_GROUPS)
        for (int64_t g = 0; g <= groups; g++) to[g] = p->m * g / groups;
    if (planted != OLD_OFFSETS) return;
    if (!s->taken) memcpy(s->offsets, to, (size_t)(groups + 1) * sizeof *to);
    s->taken = true;
    memcpy(to, s->offsets, (size_t)(groups + 1) * sizeof *to);
}

/* Does the variant leave out what belongs to a group? */
static bool left_out(const int64_t *to, int64_t groups, int64_t g) {
    bool two = false;
    for (int64_t i = 0; i + 2 <= groups; i++) two = two || to[i] == to[i + 2];
    return g < groups &&
           ((planted == NO_SINGLE_ROWS && to[g + 1] - to[g] == 1) || (planted == FIRST_EMPTY && g == 1 && to[1] == 0) ||
            (planted == TWO_EMPTY && g == groups - 1 && two));
}

static double load(sat_dtype t, const void *p, int64_t i) {
    int exponent, bits = t == SAT_F64 ? 50 : 21;
    double x = sat_load(t, p, i), part = frexp(x, &exponent);
    return planted == ROUGH_INPUTS && isfinite(x) ? ldexp(rint(ldexp(part, bits)), exponent - bits) : x;
}

static sat_status planted_launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    int64_t groups = p->grouped.groups, to[64];
    bool weights = p->op == SAT_GROUPED_WEIGHTS;
    take_offsets(l, to);
    for (int64_t line = 0; line < (weights ? groups * p->k : p->m); line++) {
        int64_t g = weights ? line / p->k : 0;
        while (!weights && g < groups && line >= to[g + 1]) g++;
        int64_t first = weights ? to[g] : 0, end = weights ? to[g + 1] : g < groups ? p->k : 0;
        if (planted == LEAVES_OTHER_ROWS && first == end && p->beta == 0) continue;
        if (planted == NEXT_GROUPS_ROW && weights && end < p->m) end++;
        if (planted == NEXT_GROUPS_ROW && !weights && g > 0 && line == to[g]) g--;
        if (left_out(to, groups, g)) end = first;
        if (planted == HALF_THE_DEPTH && end - first > 4) end = first + (end - first) / 2;
        for (int64_t j = 0; j < p->n; j++) {
            double sum = 0;
            for (int64_t e = first; e < end - (planted == LAST_COLUMN && j == p->n - 1); e++)
                sum += weights ? load(p->a_dtype, l->operands[0], e * p->a.row_stride + line % p->k * p->a.col_stride) *
                                     load(p->b_dtype, l->operands[1], e * p->b.row_stride + j * p->b.col_stride)
                               : load(p->a_dtype, l->operands[0], line * p->a.row_stride + e * p->a.col_stride) *
                                     load(p->b_dtype, l->operands[1],
                                          g * p->b.batch_stride + e * p->b.row_stride + j * p->b.col_stride);
            if (planted == ZEROS_TIMES_OTHERS && weights)
                for (int64_t e = 0; e < p->m; e++)
                    sum += 0 * load(p->b_dtype, l->operands[1], e * p->b.row_stride + j * p->b.col_stride);
            if (planted == ZEROS_TIMES_OTHERS && !weights)
                for (int64_t e = 0; e < groups * p->k; e++)
                    sum += 0 * load(p->b_dtype, l->operands[1],
                                    e / p->k * p->b.batch_stride + e % p->k * p->b.row_stride + j * p->b.col_stride);
            int64_t place = weights ? g * p->c.batch_stride + line % p->k * p->c.row_stride : line * p->c.row_stride;
            place += j * p->c.col_stride;
            double x = p->alpha * sum + (p->beta != 0 ? p->beta * load(p->c_dtype, l->operands[2], place) : 0);
            if (p->grouped.bias && g < groups && planted != NO_BIAS)
                x += load(p->c_dtype, l->operands[4], g * p->n + j);
            sat_store(p->c_dtype, l->operands[2], place, act(p->grouped.activation, x));
        }
    }
    return SAT_OK;
}

static bool planted_supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                             const sat_device *d) {
    (void)v, (void)a, (void)d;
    return p->grouped.groups < 64;
}

static double planted_estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                               const sat_device *d) {
    return (void)v, (void)p, (void)a, (void)d, 1e-9;
}

static sat_verdict race_planted(sat_context *ctx, const sat_problem *p, char *message, size_t size) {
    sat_race_options o = {SAT_SIZED(sat_race_options), .fresh = true, .discard = true, .only = "planted"};
    if (p->op == SAT_GROUPED_WEIGHTS) o.only = "planted_weights";
    sat_race *race = NULL;
    assert_ok(sat_race_run(ctx, NULL, p, &o, &race));
    assert_int_equal(sat_race_count(race), 1);
    sat_verdict verdict = sat_race_at(race, 0)->verdict;
    snprintf(message, size, "%s", sat_race_at(race, 0)->message);
    sat_race_free(race);
    return verdict;
}

static void the_race_finds_what_is_wrong_and_nothing_else(void **state) {
    static const char *const names[] = {"right",
                                        "old offsets",
                                        "even groups",
                                        "a row of the next group",
                                        "leaves other rows",
                                        "follows faults",
                                        "an offset beyond the rows",
                                        "a first offset that is not 0",
                                        "half of an offset",
                                        "groups of one row",
                                        "an empty first group",
                                        "two empty groups",
                                        "the last column",
                                        "rough inputs",
                                        "half depth",
                                        "leaves the bias out",
                                        "zeros times others"};
    static const sat_dtype types[] = {SAT_F32, SAT_F64, SAT_F16, SAT_BF16};
    (void)state;
    sat_context *ctx = NULL;
    sat_context_options options = {SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = ""};
    options.effort = SAT_EFFORT_QUICK, options.budget_seconds = 1e-3; /* checked, hardly timed */
    assert_ok(sat_context_create(&options, &ctx));
    for (int weights = 0; weights < 2; weights++) {
        sat_variant v = {SAT_SIZED(sat_variant), .name = weights ? "planted_weights" : "planted"};
        v.revision = "1", v.op = weights ? SAT_GROUPED_WEIGHTS : SAT_GROUPED, v.backend = SAT_CPU;
        v.supports = planted_supports, v.estimate = planted_estimate, v.launch = planted_launch;
        v.prepare = planted_prepare, v.release = planted_release;
        assert_ok(sat_variant_register(ctx, &v));
        for (int t = 0; t < 4; t++)
            for (planted = RIGHT; planted < FAULT_COUNT; planted++) {
                char message[224];
                sat_problem p = {SAT_SIZED(sat_problem)};
                if (weights) assert_ok(sat_problem_grouped_weights(&p, types[t], 120, 20, 24, 7));
                else assert_ok(sat_problem_grouped(&p, types[t], 120, 20, 24, 7));
                p.grouped.bias = !weights;
                if ((weights && planted == NO_BIAS) || (t > 1 && planted == ROUGH_INPUTS)) continue;
                sat_verdict verdict = race_planted(ctx, &p, message, sizeof message);
                if ((verdict == SAT_VERDICT_OK) != (planted == RIGHT))
                    fail_msg("%s, %s, %s: verdict %d, %s", weights ? "weights" : "grouped", sat_dtype_name(types[t]),
                             names[planted], (int)verdict, message);
            }
    }
    sat_context_free(ctx);
}

/* No group, no row, no column: what there is of the output is still written, and nothing beside it is touched. */
static void a_race_without_groups_rows_or_columns_is_right(void **state) {
    static const int64_t sizes[][4] = {{91, 142, 111, 0}, {0, 8, 8, 3}, {8, 0, 8, 3}, {8, 8, 0, 3}, {8, 8, 8, 20}};
    (void)state;
    sat_context *ctx = NULL;
    sat_context_options options = {SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = ""};
    options.effort = SAT_EFFORT_QUICK, options.budget_seconds = 1e-3;
    assert_ok(sat_context_create(&options, &ctx));
    for (int i = 0; i < 10; i++) {
        const int64_t *s = sizes[i / 2];
        sat_problem p = {SAT_SIZED(sat_problem)};
        sat_race_options o = {SAT_SIZED(sat_race_options), .fresh = true, .discard = true};
        sat_race *race = NULL;
        assert_ok(sat_problem_grouped(&p, SAT_F32, s[0], s[1], s[2], s[3]));
        p.op = i % 2 ? SAT_GROUPED_WEIGHTS : SAT_GROUPED, p.beta = 0.5;
        assert_ok(sat_race_run(ctx, NULL, &p, &o, &race));
        for (size_t r = 0; r < sat_race_count(race); r++)
            if (sat_race_at(race, r)->verdict == SAT_VERDICT_WRONG ||
                sat_race_at(race, r)->verdict == SAT_VERDICT_ERROR)
                fail_msg("sizes %d: %s: %s", i, sat_race_at(race, r)->variant, sat_race_at(race, r)->message);
        sat_race_free(race);
    }
    sat_context_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant_gives_each_group_its_own_product),
        cmocka_unit_test(a_plan_takes_the_offsets_of_each_run),
        cmocka_unit_test(a_fault_in_the_offsets_ends_the_groups_and_is_reported),
        cmocka_unit_test(a_plan_is_tuned_and_verified_and_found_again),
        cmocka_unit_test(one_call_does_it_all),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(the_race_finds_what_is_wrong_and_nothing_else),
        cmocka_unit_test(a_race_without_groups_rows_or_columns_is_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
