/* Races with planted variants: whoever is wrong, stale, careless or failing never wins and is reported. */
#define _GNU_SOURCE
#include "support.h"

#include <time.h>
#include "core/select.h"
#include "folder.h"
#include "problems.h"

typedef enum fault {
    HONEST,
    ONE_WRONG_ELEMENT,
    DROPPED_BLOCK,
    STALE_TILE, /* right at first; later runs leave a corner as it is */
    REMEMBERS,  /* right at first; later runs repeat the first result */
    WRITES_PAST,
    WRITES_GAPS, /* between the rows of a strided output */
    READS_C,     /* although beta is 0 */
    READS_PADDING,
    RETURNS_ERROR,
    FORGETS_ACTIVATION,
    FORGETS_ALPHA,
    NEEDS_FULL_ROWS, /* wrong on patterns with empty rows, which only a winner is tried on */
    SHARED_VALUES,   /* all plans have the fixed values of whichever took its own last */
    FAILS_LATE,      /* an error on patterns with empty rows */
    SLOW,            /* right, and far slower than it says */
    FAULTS
} fault;

typedef struct planted {
    fault fault;
    double estimate; /* 0: boasts, so that it always races */
    int calls;
    float *kept;
} planted;

static sat_status keep_values(const sat_launch *l) {
    planted *me = l->variant->user;
    const sat_pattern_view *a = l->pattern;
    size_t bytes = (size_t)(a->stored_blocks * a->block_rows * a->block_cols) * sizeof *me->kept;
    if (!me->kept) me->kept = malloc(bytes); /* all patterns have as many blocks */
    memcpy(me->kept, l->operands[0], bytes);
    return SAT_OK;
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)a, (void)d;
    return p->a_dtype == SAT_F32 && p->matmul.transpose == SAT_NO_TRANSPOSE;
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)p, (void)a, (void)d;
    const planted *me = v->user;
    return me->estimate > 0 ? me->estimate : 1e-9;
}

static float activation(sat_activation act, float x) { return act == SAT_ACT_RELU ? (x > 0 ? x : 0) : x; }

static sat_status launch(const sat_launch *l) {
    planted *me = l->variant->user;
    const sat_problem *p = l->problem;
    const sat_pattern_view *a = l->pattern;
    const float *values = me->fault == SHARED_VALUES ? me->kept : l->operands[0], *b = l->operands[1];
    float *c = l->operands[2];
    bool later = me->calls++ > 0;
    if (me->fault == SLOW) nanosleep(&(struct timespec){0, 20000000}, NULL);
    if (me->fault == FAILS_LATE && a->empty_rows > 0) return sat_fail(SAT_LIBRARY_ERROR, "planted");
    if (me->fault == RETURNS_ERROR) return sat_fail(SAT_LIBRARY_ERROR, "planted");
    int64_t dropped = a->stored_blocks / 2;
    for (int64_t i = 0; i < p->m; i++) {
        if (me->fault == STALE_TILE && later && i < a->block_rows) continue;
        int64_t row = i / a->block_rows;
        for (int64_t j = 0; j < p->n; j++) {
            double sum = 0;
            for (int64_t t = a->row_ptr[row]; t < a->row_ptr[row + 1]; t++) {
                if (me->fault == DROPPED_BLOCK && t == dropped) continue;
                for (int64_t k = 0; k < a->block_cols; k++) {
                    int64_t at = a->col_idx[t] * a->block_cols + k;
                    if (at >= p->k && me->fault != READS_PADDING) continue;
                    float y = at < p->k ? b[at * p->b.row_stride + j * p->b.col_stride] : 1;
                    sum += (double)values[(t * a->block_rows + i % a->block_rows) * a->block_cols + k] * y;
                }
            }
            float *to = &c[i * p->c.row_stride + j * p->c.col_stride];
            float before = p->beta != 0 ? (float)p->beta * *to : me->fault == READS_C ? 0 * *to : 0;
            float x = (float)((me->fault == FORGETS_ALPHA ? 1 : p->alpha) * sum) + before;
            sat_activation act = p->matmul.activation;
            *to = me->fault == FORGETS_ACTIVATION ? x : activation(act, x);
        }
    }
    if (me->fault == ONE_WRONG_ELEMENT && p->m && p->n)
        c[p->m / 2 * p->c.row_stride + p->n / 3 * p->c.col_stride] += 1.5f;
    if (me->fault == NEEDS_FULL_ROWS && a->empty_rows > 0) c[0] += 1;
    if (me->fault == WRITES_PAST) c[(p->m - 1) * p->c.row_stride + p->n] = 0;
    if (me->fault == WRITES_GAPS && p->c.row_stride > p->n) c[p->n] = 0;
    if (me->fault == REMEMBERS) {
        size_t bytes = (size_t)((p->m - 1) * p->c.row_stride + p->n) * sizeof *c;
        if (!later) me->kept = malloc(bytes), memcpy(me->kept, c, bytes);
        else memcpy(c, me->kept, bytes);
    }
    return SAT_OK;
}

static const char *const names[FAULTS] = {"honest",          "one_wrong_element", "dropped_block",      "stale_tile",
                                          "remembers",       "writes_past",       "writes_gaps",        "reads_c",
                                          "reads_padding",   "returns_error",     "forgets_activation", "forgets_alpha",
                                          "needs_full_rows", "shared_values",     "fails_late",         "slow"};

/* Races the planted variant beside those of the library, and gives its result. */
static sat_result race_with(fault fault, const sat_problem *problem, int64_t rows, int64_t cols, char best[128]) {
    sat_context *ctx = open_context(SAT_EFFORT_QUICK);
    planted me = {.fault = fault};
    sat_variant v = {SAT_SIZED(sat_variant), .name = names[fault], .revision = "1",
                     .op = SAT_MATMUL,       .backend = SAT_CPU,   .user = &me,
                     .supports = supports,   .estimate = estimate, .launch = launch};
    assert_ok(sat_variant_register(ctx, &v));
    uint64_t random = 11 + (uint64_t)fault;
    sat_pattern *pattern = random_pattern(ctx, &random, rows, cols, 8, 8, 0.4, false);
    sat_race *race = NULL;
    assert_ok(sat_race_run(ctx, pattern, problem, NULL, &race));
    sat_result mine = {0};
    for (size_t i = 0; i < sat_race_count(race); i++)
        if (strcmp(sat_race_at(race, i)->variant, names[fault]) == 0) mine = *sat_race_at(race, i);
    const sat_result *winner = sat_race_best(race);
    assert_non_null(winner);
    snprintf(best, 128, "%s", winner->variant);
    /* And a plan made from what was remembered does not take it either. */
    sat_plan *plan = NULL;
    sat_plan_info info = {SAT_SIZED(sat_plan_info)};
    assert_ok(sat_plan_create(ctx, pattern, problem, &plan));
    assert_ok(sat_plan_get_info(plan, &info));
    if (fault != HONEST) assert_string_not_equal(info.variant, names[fault]);
    sat_plan_free(plan);
    sat_race_free(race);
    sat_pattern_free(pattern);
    sat_context_free(ctx);
    free(me.kept);
    return mine;
}

static void an_honest_variant_is_found_right(void **state) {
    (void)state;
    char best[128];
    sat_problem p = matmul_problem(SAT_F32, 70);
    for (int i = 0; i < 4; i++) {
        if (i & 1) p.beta = 0.5;
        if (i & 2) p.matmul.activation = SAT_ACT_RELU;
        sat_result r = race_with(HONEST, &p, 100, 90, best);
        if (r.verdict != SAT_VERDICT_OK) fail_msg("honest: %s", r.message);
        assert_true(r.seconds > 0 && r.runs > 0);
    }
}

static void planted_faults_are_wrong_and_never_win(void **state) {
    (void)state;
    for (fault f = ONE_WRONG_ELEMENT; f < RETURNS_ERROR; f++) {
        char best[128];
        sat_problem p = matmul_problem(SAT_F32, 70);
        if (f == WRITES_GAPS) p.c = (sat_layout){.row_stride = 80, .col_stride = 1};
        sat_result r = race_with(f, &p, 100, 90, best);
        if (r.verdict != SAT_VERDICT_WRONG)
            fail_msg("%s: %s", names[f], r.verdict == SAT_VERDICT_OK ? "ok" : r.message);
        assert_string_not_equal(best, names[f]);
        assert_true(r.message[0] != 0);
    }
}

/* A race of the named variants alone, whose pattern has blocks in every row. */
static sat_race *race_only(sat_context *ctx, const char *only, uint32_t flags) {
    uint64_t random = 5;
    sat_pattern *pattern = random_pattern(ctx, &random, 100, 90, 8, 8, 0.6, false);
    assert_int_equal(view_of(pattern).empty_rows, 0);
    sat_problem p = matmul_problem(SAT_F32, 70);
    p.flags |= flags;
    sat_race_options options = {SAT_SIZED(sat_race_options), .only = only};
    sat_race *race = NULL;
    assert_ok(sat_race_run(ctx, pattern, &p, &options, &race));
    sat_pattern_free(pattern);
    return race;
}

/* A winner runs, another plan of its own does, and it runs again. */
static void fixed_values_that_plans_share_are_found(void **state) {
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_QUICK);
    planted me = {.fault = SHARED_VALUES};
    sat_variant v = {SAT_SIZED(sat_variant), .name = names[SHARED_VALUES], .revision = "1",
                     .op = SAT_MATMUL,       .backend = SAT_CPU,           .user = &me,
                     .supports = supports,   .estimate = estimate,         .launch = launch,
                     .refresh = keep_values};
    assert_ok(sat_variant_register(ctx, &v));
    sat_race *race = race_only(ctx, names[SHARED_VALUES], SAT_FIXED_VALUES);
    assert_null(sat_race_best(race));
    assert_int_equal(sat_race_at(race, 0)->verdict, SAT_VERDICT_WRONG);
    assert_non_null(strstr(sat_race_at(race, 0)->message, "after another plan has run"));
    sat_race_free(race);
    sat_context_free(ctx);
    free(me.kept);
}

/* One that was skipped has its turn where all others failed; what the winner is tried on, it is tried on too. */
static void who_is_called_back_is_tried_like_a_winner(void **state) {
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_QUICK);
    planted two[2] = {{.fault = NEEDS_FULL_ROWS}, {.fault = NEEDS_FULL_ROWS, .estimate = 1}};
    static const char *const called[2] = {"tried_first", "called_back"};
    for (int i = 0; i < 2; i++) {
        sat_variant v = {SAT_SIZED(sat_variant), .name = called[i],    .revision = "1",
                         .op = SAT_MATMUL,       .backend = SAT_CPU,   .user = &two[i],
                         .supports = supports,   .estimate = estimate, .launch = launch};
        assert_ok(sat_variant_register(ctx, &v));
    }
    sat_race *race = race_only(ctx, "tried_first,called_back", 0);
    assert_null(sat_race_best(race));
    for (size_t i = 0; i < sat_race_count(race); i++)
        assert_int_equal(sat_race_at(race, i)->verdict, SAT_VERDICT_WRONG);
    assert_true(sat_race_count(race) == 2 && two[1].calls > 0);
    sat_race_free(race);
    sat_context_free(ctx);
}

static void planted_faults_are_found_under_an_activation_too(void **state) {
    (void)state;
    fault faults[] = {ONE_WRONG_ELEMENT, DROPPED_BLOCK, STALE_TILE, WRITES_PAST, FORGETS_ACTIVATION};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        char best[128];
        sat_problem p = matmul_problem(SAT_F32, 70);
        p.matmul.activation = SAT_ACT_RELU;
        sat_result r = race_with(faults[i], &p, 100, 90, best);
        if (r.verdict != SAT_VERDICT_WRONG) fail_msg("%s was not found", names[faults[i]]);
        assert_string_not_equal(best, names[faults[i]]);
    }
}

static void a_failing_candidate_loses_quietly(void **state) {
    (void)state;
    char best[128];
    sat_problem p = matmul_problem(SAT_F32, 70);
    sat_result r = race_with(RETURNS_ERROR, &p, 100, 90, best);
    assert_int_equal(r.verdict, SAT_VERDICT_ERROR);
    assert_non_null(strstr(r.message, "planted"));
    assert_string_not_equal(best, "returns_error");
}

/* An error in what only winners are tried on. */
static void a_winner_that_fails_late_is_none(void **state) {
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_QUICK);
    planted fails = {.fault = FAILS_LATE};
    sat_variant v = {SAT_SIZED(sat_variant), .name = names[FAILS_LATE], .revision = "1",
                     .op = SAT_MATMUL,       .backend = SAT_CPU,        .user = &fails,
                     .supports = supports,   .estimate = estimate,      .launch = launch};
    assert_ok(sat_variant_register(ctx, &v));
    sat_race *race = race_only(ctx, names[FAILS_LATE], 0);
    assert_null(sat_race_best(race));
    assert_int_equal(sat_race_at(race, 0)->verdict, SAT_VERDICT_ERROR);
    assert_non_null(strstr(sat_race_at(race, 0)->message, "planted"));
    sat_race_free(race);
    sat_context_free(ctx);
}

static void a_second_race_is_read_back_and_a_newcomer_races_the_best(void **state) {
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_QUICK);
    uint64_t random = 2;
    sat_pattern *pattern = random_pattern(ctx, &random, 64, 64, 8, 8, 0.4, false);
    sat_problem p = matmul_problem(SAT_F32, 64);
    sat_race *first = NULL, *second = NULL;
    sat_race_info info = {SAT_SIZED(sat_race_info)};
    assert_ok(sat_race_run(ctx, pattern, &p, NULL, &first));
    assert_ok(sat_race_get_info(first, &info));
    assert_false(info.cached);
    assert_true(info.peak_bytes > 0 && info.seconds > 0);
    assert_ok(sat_race_run(ctx, pattern, &p, NULL, &second));
    assert_ok(sat_race_get_info(second, &info));
    assert_true(info.cached);
    assert_int_equal(sat_race_count(first), sat_race_count(second));
    assert_string_equal(sat_race_best(first)->variant, sat_race_best(second)->variant);
    planted me = {.fault = HONEST};
    sat_variant v = {SAT_SIZED(sat_variant), .name = "newcomer",   .revision = "1",
                     .op = SAT_MATMUL,       .backend = SAT_CPU,   .user = &me,
                     .supports = supports,   .estimate = estimate, .launch = launch};
    assert_ok(sat_variant_register(ctx, &v));
    sat_plan *plan = NULL;
    sat_plan_info plan_info = {SAT_SIZED(sat_plan_info)};
    assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
    assert_ok(sat_plan_get_info(plan, &plan_info));
    assert_true(plan_info.tuned);
    assert_true(me.calls > 0);
    sat_plan_free(plan);
    assert_ok(sat_plan_create(ctx, pattern, &p, &plan)); /* now everybody is known */
    assert_ok(sat_plan_get_info(plan, &plan_info));
    assert_true(plan_info.cached && plan_info.verified && !plan_info.tuned);
    sat_plan_free(plan);
    sat_race_free(first), sat_race_free(second);
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

static void a_boast_does_not_win(void **state) {
    (void)state;
    char best[128];
    sat_problem p = matmul_problem(SAT_F32, 70);
    assert_int_equal(race_with(SLOW, &p, 100, 90, best).verdict, SAT_VERDICT_OK);
    assert_string_not_equal(best, names[SLOW]);
}

/* Beside one that promises a nanosecond everybody seems hopeless; official libraries run all the same if they are quick
 * enough not to be noticed. */
static void a_library_that_takes_little_is_in_the_race(void **state) {
    (void)state;
    static const struct {
        const char *name;
        uint32_t flags;
        double estimate;
        sat_verdict verdict;
    } list[] = {{"boaster", 0, 0, SAT_VERDICT_OK},
                {"a_quick_library", SAT_V_LIBRARY, 0.01, SAT_VERDICT_OK},
                {"a_slow_library", SAT_V_LIBRARY, 1, SAT_VERDICT_SKIPPED},
                {"no_library", 0, 1, SAT_VERDICT_SKIPPED}};
    sat_context *ctx = open_context(SAT_EFFORT_QUICK);
    planted each[4];
    for (int i = 0; i < 4; i++) {
        each[i] = (planted){.fault = HONEST, .estimate = list[i].estimate};
        sat_variant v = {SAT_SIZED(sat_variant), .name = list[i].name,   .revision = "1",  .op = SAT_MATMUL,
                         .backend = SAT_CPU,     .flags = list[i].flags, .user = &each[i], .supports = supports,
                         .estimate = estimate,   .launch = launch};
        assert_ok(sat_variant_register(ctx, &v));
    }
    uint64_t random = 8;
    sat_pattern *pattern = random_pattern(ctx, &random, 64, 64, 8, 8, 0.4, false);
    sat_problem p = matmul_problem(SAT_F32, 32);
    sat_race *race = NULL;
    assert_ok(sat_race_run(ctx, pattern, &p, NULL, &race));
    for (int i = 0; i < 4; i++)
        for (size_t e = 0; e < sat_race_count(race); e++) {
            const sat_result *r = sat_race_at(race, e);
            if (strcmp(r->variant, list[i].name) == 0 && r->verdict != list[i].verdict)
                fail_msg("%s: verdict %d: %s", r->variant, (int)r->verdict, r->message);
        }
    assert_true(each[1].calls > 0 && each[2].calls == 0 && each[3].calls == 0);
    sat_race_free(race);
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

/* Right where alpha is 1, and remembered so; that says nothing about other numbers. */
static void what_was_checked_with_one_alpha_is_checked_again_with_another(void **state) {
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_QUICK);
    planted me = {.fault = FORGETS_ALPHA};
    sat_variant v = {SAT_SIZED(sat_variant), .name = "forgets_alpha", .revision = "1",
                     .op = SAT_MATMUL,       .backend = SAT_CPU,      .user = &me,
                     .supports = supports,   .estimate = estimate,    .launch = launch};
    assert_ok(sat_variant_register(ctx, &v));
    uint64_t random = 5;
    sat_pattern *pattern = random_pattern(ctx, &random, 64, 64, 8, 8, 0.4, false);
    sat_race_options only = {SAT_SIZED(sat_race_options), .only = "forgets_alpha"};
    const double alphas[] = {1, 2, -1e-30, 1e30};
    for (int i = 0; i < 4; i++) {
        sat_problem p = matmul_problem(SAT_F32, 32);
        p.alpha = alphas[i];
        sat_race *race = NULL;
        sat_plan *plan = NULL;
        sat_plan_info info = {SAT_SIZED(sat_plan_info)};
        assert_ok(sat_race_run(ctx, pattern, &p, &only, &race));
        assert_int_equal(sat_race_at(race, 0)->verdict, i ? SAT_VERDICT_WRONG : SAT_VERDICT_OK);
        sat_race_free(race);
        assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
        assert_ok(sat_plan_get_info(plan, &info));
        if (i) assert_string_not_equal(info.variant, "forgets_alpha");
        sat_plan_free(plan);
    }
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

/* Numbers that a dtype barely holds are no reason to call a right variant wrong. */
static void extreme_scalars_fail_nobody(void **state) {
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_QUICK);
    uint64_t random = 6;
    sat_pattern *pattern = random_pattern(ctx, &random, 64, 64, 8, 8, 0.4, false);
    const double scalars[] = {1e-44, 1e-6, 1e38, -1e-37};
    for (int i = 0; i < 16; i++) {
        sat_problem p = matmul_problem(i & 1 ? SAT_F16 : SAT_F32, 32);
        if (i & 2) p.beta = scalars[i / 4];
        else p.alpha = scalars[i / 4];
        p.matmul.activation = SAT_ACT_GELU;
        sat_race *race = NULL;
        assert_ok(sat_race_run(ctx, pattern, &p, NULL, &race));
        for (size_t e = 0; e < sat_race_count(race); e++)
            if (sat_race_at(race, e)->verdict == SAT_VERDICT_WRONG)
                fail_msg("%s: %s", sat_race_at(race, e)->variant, sat_race_at(race, e)->message);
        sat_race_free(race);
    }
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

/* Warm runs of a short product are timed many at once, each adding to what the one before left. */
static void warm_runs_that_add_to_c_are_right(void **state) {
    (void)state;
    uint64_t random = 12;
    sat_context *ctx = NULL;
    sat_context_options o = {
        SAT_SIZED(sat_context_options), .device = "cpu",       .cache_dir = "", .effort = SAT_EFFORT_QUICK,
        .measure = SAT_MEASURE_WARM,    .budget_seconds = 0.05};
    assert_ok(sat_context_create(&o, &ctx));
    sat_pattern *pattern = random_pattern(ctx, &random, 64, 64, 16, 16, 0.5, false);
    for (int sampled = 0; sampled < 2; sampled++) {
        sat_problem p = sampled ? sampled_problem(SAT_F32, 32) : matmul_problem(SAT_F32, 32);
        sat_race *race = NULL;
        p.beta = 0.75;
        assert_ok(sat_race_run(ctx, pattern, &p, NULL, &race));
        for (size_t i = 0; i < sat_race_count(race); i++) {
            const sat_result *r = sat_race_at(race, i);
            if (r->verdict == SAT_VERDICT_WRONG) fail_msg("%s: %s", r->variant, r->message);
        }
        sat_race_free(race);
    }
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

static void only_named_variants_take_part(void **state) {
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_QUICK);
    uint64_t random = 2;
    sat_pattern *pattern = random_pattern(ctx, &random, 32, 32, 8, 8, 0.4, false);
    sat_problem p = matmul_problem(SAT_F32, 32);
    sat_race *race = NULL;
    sat_race_options o = {SAT_SIZED(sat_race_options), .only = "nobody,cpu_matmul_any_any_c_reference"};
    assert_ok(sat_race_run(ctx, pattern, &p, &o, &race));
    assert_int_equal(sat_race_count(race), 1);
    assert_string_equal(sat_race_best(race)->variant, "cpu_matmul_any_any_c_reference");
    sat_race_free(race);
    o.only = "cpu_matmul_any_any_c_refer";
    assert_fails(sat_race_run(ctx, pattern, &p, &o, &race), SAT_NOT_FOUND, "only");
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

static void tuning_beyond_the_memory_limit_is_refused_and_a_plan_is_made_all_the_same(void **state) {
    (void)state;
    sat_context *ctx = NULL;
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = "", .memory_limit = 4096};
    assert_ok(sat_context_create(&o, &ctx));
    uint64_t random = 2;
    sat_pattern *pattern = random_pattern(ctx, &random, 64, 64, 8, 8, 0.4, false);
    sat_problem p = matmul_problem(SAT_F32, 64);
    sat_race *race = NULL;
    assert_fails(sat_race_run(ctx, pattern, &p, NULL, &race), SAT_OUT_OF_MEMORY, "limit");
    for (int i = 0; i < 2; i++) {
        sat_plan *plan = NULL;
        p = i ? sampled_problem(SAT_F32, 64) : matmul_problem(SAT_F32, 64);
        assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
        sat_plan_free(plan);
    }
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

/* Counts the lines that tell of a race, and keeps the last. */
typedef struct race_lines {
    int count;
    char last[1024];
} race_lines;

static void keep_race_line(void *user, sat_log_level level, const char *message) {
    race_lines *lines = user;
    if (level != SAT_LOG_INFO || strncmp(message, "raced ", 6) != 0) return;
    lines->count++;
    snprintf(lines->last, sizeof lines->last, "%s", message);
}

static void a_race_ends_with_a_line_that_names_the_winner(void **state) {
    (void)state;
    race_lines lines = {0};
    sat_context *ctx = NULL;
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cpu",       .cache_dir = "",
                             .effort = SAT_EFFORT_QUICK,     .log = keep_race_line, .log_user = &lines};
    assert_ok(sat_context_create(&o, &ctx));
    uint64_t random = 6;
    sat_pattern *pattern = random_pattern(ctx, &random, 64, 72, 8, 8, 0.4, false);
    sat_problem p = matmul_problem(SAT_F32, 33);
    sat_plan_info info = {SAT_SIZED(sat_plan_info)};
    for (int i = 0; i < 2; i++) { /* the second plan comes from the cache */
        sat_plan *plan = NULL;
        assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
        assert_ok(sat_plan_get_info(plan, &info));
        sat_plan_free(plan);
        assert_int_equal(lines.count, 1);
    }
    const char *const words[] = {" m=64 n=33 k=72 ", info.variant, " s, ", " variants in "};
    for (int i = 0; i < 4; i++)
        if (!strstr(lines.last, words[i])) fail_msg("'%s' lacks '%s'", lines.last, words[i]);
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

static size_t beyond_the_limit(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                               const sat_device *d) {
    (void)v, (void)p, (void)a, (void)d;
    return (size_t)1 << 30;
}

/* Registers a variant whose workspace no context of these tests affords. */
static void register_greedy(sat_context *ctx, planted *greedy, const char *revision) {
    sat_variant v = {SAT_SIZED(sat_variant), .name = "greedy",
                     .revision = revision,   .op = SAT_MATMUL,
                     .backend = SAT_CPU,     .user = greedy,
                     .supports = supports,   .estimate = estimate,
                     .launch = launch,       .workspace = beyond_the_limit};
    assert_ok(sat_variant_register(ctx, &v));
}

static sat_context *open_small(const char *folder, bool background, race_lines *lines) {
    sat_context *ctx = NULL;
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cpu",       .cache_dir = folder,
                             .effort = SAT_EFFORT_QUICK,     .log = keep_race_line, .log_user = lines,
                             .budget_seconds = 1e-3,         .threads = 1,          .memory_limit = 256 << 20,
                             .background = background};
    assert_ok(sat_context_create(&o, &ctx));
    return ctx;
}

static sat_plan_info plan_for(sat_context *ctx, const sat_pattern *pattern, const sat_problem *p) {
    sat_plan *plan = NULL;
    sat_plan_info info = {SAT_SIZED(sat_plan_info)};
    assert_ok(sat_plan_create(ctx, pattern, p, &plan));
    assert_ok(sat_plan_get_info(plan, &info));
    sat_plan_free(plan);
    return info;
}

static void a_variant_without_memory_is_raced_once(void **state) {
    planted greedy = {.fault = HONEST};
    race_lines lines = {0};
    uint64_t random = 8;
    sat_problem p = matmul_problem(SAT_F32, 24);
    for (int opened = 1; opened <= 2; opened++) { /* the second context may have more, and tries again */
        sat_context *ctx = open_small(*state, false, &lines);
        sat_race *race = NULL;
        sat_race_info info = {SAT_SIZED(sat_race_info)};
        register_greedy(ctx, &greedy, "1");
        random = 8;
        sat_pattern *pattern = random_pattern(ctx, &random, 64, 72, 8, 8, 0.4, false);
        assert_true(plan_for(ctx, pattern, &p).tuned);
        for (int i = 0; i < 2; i++) {
            sat_plan_info again = plan_for(ctx, pattern, &p);
            assert_true(again.cached && !again.tuned);
        }
        assert_ok(sat_race_run(ctx, pattern, &p, NULL, &race));
        assert_ok(sat_race_get_info(race, &info));
        assert_true(info.cached);
        assert_int_equal(lines.count, opened);
        sat_race_free(race);
        sat_pattern_free(pattern);
        sat_context_free(ctx);
    }
    assert_int_equal(greedy.calls, 0);
}

static void what_had_no_memory_is_known_by_key_and_revision(void **state) {
    (void)state;
    planted greedy = {.fault = HONEST};
    race_lines lines = {0};
    uint64_t random = 8;
    sat_context *ctx = open_small("", false, &lines);
    sat_problem p = matmul_problem(SAT_F32, 24);
    sat_pattern *pattern = random_pattern(ctx, &random, 64, 72, 8, 8, 0.4, false);
    register_greedy(ctx, &greedy, "1");
    (void)plan_for(ctx, pattern, &p);
    assert_false(sat_memo_without_memory(ctx->memo, "another key", "greedy", "1"));
    sat_entry entry;
    sat_request q;
    const sat_variant *unraced[SAT_MAX_VARIANTS];
    assert_ok(sat_request_make(&q, ctx, pattern, &p));
    assert_true(sat_memo_without_memory(ctx->memo, q.key, "greedy", "1"));
    assert_false(sat_memo_without_memory(ctx->memo, q.key, "greedy", "2"));
    assert_ok(sat_cache_find(ctx->cache, q.key, false, &entry));
    assert_int_equal(sat_select_find_unraced(&q, &entry, unraced), 0);
    sat_entry_free(&entry);
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

/* Another process's race is played by a second context on the same folder, which has the tuning lock. */
static void what_was_raced_while_the_background_waited_is_not_raced_again(void **state) {
    race_lines lines = {0}, others = {0};
    uint64_t random = 9;
    sat_context *ctx = open_small(*state, true, &lines), *other = open_small(*state, false, &others);
    sat_problem p = matmul_problem(SAT_F32, 24);
    sat_pattern *pattern = random_pattern(ctx, &random, 64, 72, 8, 8, 0.4, false);
    random = 9;
    sat_pattern *there = random_pattern(other, &random, 64, 72, 8, 8, 0.4, false);
    sat_request q;
    sat_outcome outcome = {0};
    assert_true(sat_cache_tuning_lock(other->cache, 10));
    assert_false(plan_for(ctx, pattern, &p).cached); /* by estimate; its race waits for the lock */
    assert_ok(sat_request_make(&q, other, there, &p));
    assert_ok(sat_select_run_race(&q, &(sat_race_how){.store = true}, &outcome));
    free(outcome.results);
    sat_cache_tuning_unlock(other->cache);
    assert_ok(sat_context_wait(ctx));
    assert_int_equal(others.count, 1);
    assert_int_equal(lines.count, 0);
    sat_plan_info info = plan_for(ctx, pattern, &p);
    assert_true(info.cached && info.verified);
    sat_pattern_free(pattern), sat_pattern_free(there);
    sat_context_free(ctx), sat_context_free(other);
}

static void empty_problems_race_too(void **state) {
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_QUICK);
    uint64_t random = 4;
    int64_t sizes[][3] = {{0, 16, 8}, {16, 0, 8}, {16, 16, 0}, {16, 16, 8}};
    for (int i = 0; i < 4; i++) {
        sat_pattern *pattern = random_pattern(ctx, &random, sizes[i][0], sizes[i][1], 4, 4, 0, false);
        sat_problem p = matmul_problem(SAT_F32, sizes[i][2]);
        sat_plan *plan = NULL;
        assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
        float c[16 * 8];
        memset(c, 0xff, sizeof c);
        float b[16 * 8] = {1}, values[1] = {0};
        assert_ok(sat_run(plan, (const void *[]){values, b}, 2, (void *[]){c}, 1, NULL));
        for (int64_t e = 0; e < sizes[i][0] * sizes[i][2]; e++) assert_true(c[e] == 0);
        sat_plan_free(plan);
        p = sampled_problem(SAT_F32, sizes[i][2]);
        assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
        sat_plan_free(plan);
        sat_pattern_free(pattern);
    }
    sat_context_free(ctx);
}

static void chosen_by_estimate(sat_context *ctx, const sat_pattern *pattern, char variant[128]) {
    sat_problem p = matmul_problem(SAT_F32, 64);
    sat_plan *plan = NULL;
    sat_plan_info info = {SAT_SIZED(sat_plan_info)};
    assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
    assert_ok(sat_plan_get_info(plan, &info));
    snprintf(variant, 128, "%s", info.variant);
    sat_plan_free(plan);
}

/* In no context of the process. The last test: it changes what the process trusts. */
static void what_was_found_wrong_does_not_serve_by_estimate(void **state) {
    (void)state;
    uint64_t random = 3;
    char first[128], then[128];
    sat_context *ctx = open_context(SAT_EFFORT_OFF), *other = open_context(SAT_EFFORT_OFF);
    sat_pattern *pattern = random_pattern(ctx, &random, 96, 96, 8, 8, 0.4, false);
    sat_pattern *there = random_pattern(other, &random, 96, 96, 8, 8, 0.4, false);
    chosen_by_estimate(ctx, pattern, first);
    sat_registry_distrust(&ctx->registry, sat_registry_find(&ctx->registry, first));
    chosen_by_estimate(ctx, pattern, then);
    assert_string_not_equal(first, then);
    chosen_by_estimate(other, there, then);
    assert_string_not_equal(first, then);
    for (size_t i = 0; i < sat_variant_count(ctx); i++) /* were all of them wrong, the reference is left */
        sat_registry_distrust(&ctx->registry, sat_variant_at(ctx, i));
    chosen_by_estimate(ctx, pattern, then);
    assert_non_null(strstr(then, "_reference"));
    sat_pattern_free(pattern), sat_pattern_free(there);
    sat_context_free(ctx), sat_context_free(other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_honest_variant_is_found_right),
        cmocka_unit_test(planted_faults_are_wrong_and_never_win),
        cmocka_unit_test(fixed_values_that_plans_share_are_found),
        cmocka_unit_test(who_is_called_back_is_tried_like_a_winner),
        cmocka_unit_test(planted_faults_are_found_under_an_activation_too),
        cmocka_unit_test(a_failing_candidate_loses_quietly),
        cmocka_unit_test(a_winner_that_fails_late_is_none),
        cmocka_unit_test(a_second_race_is_read_back_and_a_newcomer_races_the_best),
        cmocka_unit_test(a_boast_does_not_win),
        cmocka_unit_test(a_library_that_takes_little_is_in_the_race),
        cmocka_unit_test(what_was_checked_with_one_alpha_is_checked_again_with_another),
        cmocka_unit_test(extreme_scalars_fail_nobody),
        cmocka_unit_test(warm_runs_that_add_to_c_are_right),
        cmocka_unit_test(only_named_variants_take_part),
        cmocka_unit_test(tuning_beyond_the_memory_limit_is_refused_and_a_plan_is_made_all_the_same),
        cmocka_unit_test(a_race_ends_with_a_line_that_names_the_winner),
        TEST_IN_FOLDER(a_variant_without_memory_is_raced_once),
        cmocka_unit_test(what_had_no_memory_is_known_by_key_and_revision),
        TEST_IN_FOLDER(what_was_raced_while_the_background_waited_is_not_raced_again),
        cmocka_unit_test(empty_problems_race_too),
        cmocka_unit_test(what_was_found_wrong_does_not_serve_by_estimate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
