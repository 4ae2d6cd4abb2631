/* Choices that are pinned (SAT_EFFORT_PINNED): the winner of the cache's race serves in every run, and where it cannot
 * the plan is refused. Nothing else takes its place, however right it is: it would give other bits. */
#define _GNU_SOURCE
#include "support.h"

#include <time.h>
#include <unistd.h>

#include "core/select.h"
#include "folder.h"
#include "problems.h"

enum { SIDE = 64, BLOCK = 8, N = 24 };

/* ---- two planted variants, both right: the winner by the records, and one that is estimated to be faster ---- */

typedef struct planted {
    int calls;
    bool lies, fits, hungry;
} planted;

static planted winner, second;

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)a, (void)d;
    return ((const planted *)v->user)->fits && p->a_dtype == SAT_F32 && p->matmul.transpose == SAT_NO_TRANSPOSE;
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)p, (void)a, (void)d;
    return v->user == &winner ? 10 : 1e-9;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)p, (void)a, (void)d;
    return ((const planted *)v->user)->hungry ? (size_t)1 << 30 : 0;
}

static sat_status launch(const sat_launch *l) {
    planted *me = l->variant->user;
    me->calls++;
    multiply_plainly(l);
    if (me->lies) ((float *)l->operands[2])[0] += 1;
    return SAT_OK;
}

/* ---- scenes ---- */

typedef struct scene {
    sat_effort effort;
    size_t memory_limit;
    const char *revision; /* of the winner, as it is registered; NULL: it is not */
    uint32_t flags;       /* of the winner */
} scene;

static void register_planted(sat_context *ctx, const char *name, const char *revision, uint32_t flags, planted *who) {
    sat_variant v = {SAT_SIZED(sat_variant), .name = name, .revision = revision, .op = SAT_MATMUL, .backend = SAT_CPU};
    v.flags = flags, v.supports = supports, v.estimate = estimate, v.workspace = workspace, v.launch = launch;
    v.user = who;
    assert_ok(sat_variant_register(ctx, &v));
}

static sat_context *open_scene(const char *cache, scene s) {
    sat_context *ctx = NULL;
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = cache, .threads = 1};
    o.effort = s.effort, o.budget_seconds = 1e-3, o.memory_limit = s.memory_limit;
    winner = (planted){.fits = true}, second = (planted){.fits = true};
    assert_ok(sat_context_create(&o, &ctx));
    if (s.revision) register_planted(ctx, "the_winner", s.revision, s.flags, &winner);
    register_planted(ctx, "the_second", "1", 0, &second);
    return ctx;
}

static sat_pattern *make_pattern(sat_context *ctx) {
    uint64_t random = 3;
    return random_pattern(ctx, &random, SIDE, SIDE, BLOCK, BLOCK, 0.4, false);
}

/* A race that the winner won by far, as another machine left it. */
static void remember_race(sat_context *ctx, double seconds_of_second) {
    static const char *const names[] = {"the_winner", "the_second"};
    const double seconds[] = {1e-6, seconds_of_second};
    sat_pattern *pattern = make_pattern(ctx);
    sat_problem p = matmul_problem(SAT_F32, N);
    sat_request q;
    sat_record r[2];
    assert_ok(sat_request_make(&q, ctx, pattern, &p));
    for (int i = 0; i < 2; i++) {
        r[i] = (sat_record){.kind = SAT_RECORD_RACED, .verdict = SAT_VERDICT_OK, .runs = 9, .may_win = true};
        r[i].when = (int64_t)time(NULL), r[i].seconds = seconds[i];
        snprintf(r[i].race, sizeof r[i].race, "noted");
        snprintf(r[i].variant, sizeof r[i].variant, "%s", names[i]);
        snprintf(r[i].revision, sizeof r[i].revision, "1");
        snprintf(r[i].full_key, sizeof r[i].full_key, "%s", q.full_key);
    }
    assert_ok(sat_cache_add(ctx->cache, q.key, r, 2));
    sat_pattern_free(pattern);
}

static sat_status plan_status(sat_context *ctx, int64_t n, uint32_t flags, sat_plan_info *info) {
    sat_pattern *pattern = make_pattern(ctx);
    sat_problem p = matmul_problem(SAT_F32, n);
    sat_plan *plan = NULL;
    p.flags = flags;
    sat_status status = sat_plan_create(ctx, pattern, &p, &plan);
    *info = (sat_plan_info){SAT_SIZED(sat_plan_info)};
    if (status == SAT_OK) assert_ok(sat_plan_get_info(plan, info));
    sat_plan_free(plan);
    sat_pattern_free(pattern);
    return status;
}

static sat_plan_info info;

#define REFUSED(ctx, n, flags, expected, word)                                                                         \
    do {                                                                                                               \
        assert_fails(plan_status(ctx, n, flags, &info), expected, word);                                               \
        assert_int_equal(second.calls, 0);                                                                             \
    } while (0)

#define SERVES(ctx, name)                                                                                              \
    do {                                                                                                               \
        assert_ok(plan_status(ctx, N, 0, &info));                                                                      \
        assert_string_equal(info.variant, name);                                                                       \
        assert_true(info.cached &&info.verified && !info.tuned);                                                       \
    } while (0)

static bool count_notes(void *user, const char *key, const char *text) {
    (void)key, (void)text;
    return ++*(int *)user;
}

static int notes_of(sat_context *ctx) {
    int count = 0;
    assert_ok(sat_cache_visit_untuned(ctx, count_notes, &count));
    return count;
}

/* ---- tests ---- */

static void the_winner_serves_in_every_run_once_it_is_checked(void **state) {
    for (int run = 0; run < 3; run++) {
        sat_context *ctx = open_scene(*state, (scene){.effort = SAT_EFFORT_PINNED, .revision = "1"});
        if (run == 0) remember_race(ctx, 1e-3);
        SERVES(ctx, "the_winner");
        assert_true(run ? winner.calls == 0 : winner.calls > 0); /* what was checked need not be again */
        assert_int_equal(second.calls, 0);
        sat_context_free(ctx);
    }
}

static void what_the_cache_does_not_know_is_named_and_noted(void **state) {
    sat_context *ctx = open_scene(*state, (scene){.effort = SAT_EFFORT_PINNED, .revision = "1"});
    REFUSED(ctx, N, 0, SAT_NOT_FOUND, "nothing is pinned for op=matmul m=64 n=24 k=64");
    assert_int_equal(notes_of(ctx), 1);
    uint64_t random = 3;
    sat_pattern *pattern = make_pattern(ctx);
    float *values = random_floats(&random, view_of(pattern).stored_blocks * BLOCK * BLOCK);
    float *b = random_floats(&random, SIDE * N), *c = calloc((size_t)(SIDE * N), sizeof *c);
    sat_problem p = matmul_problem(SAT_F32, N);
    assert_fails(sat_bsr_matmul(ctx, pattern, &p, values, b, c, NULL, NULL), SAT_NOT_FOUND, "nothing is pinned");
    assert_int_equal(winner.calls, 0);
    remember_race(ctx, 1e-3);
    assert_ok(sat_bsr_matmul(ctx, pattern, &p, values, b, c, NULL, NULL));
    assert_true(winner.calls > 0);
    sat_pattern_free(pattern);
    free(values), free(b), free(c);
    sat_context_free(ctx);
}

static void a_race_is_run_and_not_remembered(void **state) {
    sat_context *ctx = open_scene(*state, (scene){.effort = SAT_EFFORT_PINNED, .revision = "1"});
    sat_pattern *pattern = make_pattern(ctx);
    sat_problem p = matmul_problem(SAT_F32, N);
    sat_race *race = NULL;
    assert_ok(sat_race_run(ctx, pattern, &p, NULL, &race));
    assert_true(sat_race_count(race) > 1);
    sat_race_free(race);
    sat_pattern_free(pattern);
    second.calls = 0;
    REFUSED(ctx, N, 0, SAT_NOT_FOUND, "nothing is pinned");
    sat_context_free(ctx);
}

/* As where a library is missing, or of another version. */
static void a_winner_that_is_not_here_is_not_replaced(void **state) {
    (void)state;
    sat_context *ctx = open_scene("", (scene){.effort = SAT_EFFORT_PINNED});
    remember_race(ctx, 1e-3);
    REFUSED(ctx, N, 0, SAT_NOT_FOUND, "is pinned to the_winner, which is not here");
    sat_context_free(ctx);
    ctx = open_scene("", (scene){.effort = SAT_EFFORT_PINNED, .revision = "2"});
    remember_race(ctx, 1e-3);
    REFUSED(ctx, N, 0, SAT_NOT_FOUND, "is pinned to the_winner of revision 1; here it is 2");
    assert_int_equal(winner.calls, 0);
    sat_context_free(ctx);
    ctx = open_scene("", (scene){.effort = SAT_EFFORT_PINNED, .revision = "2"});
    remember_race(ctx, 0.99e-6); /* a tie, which the winner may have won then */
    REFUSED(ctx, N, 0, SAT_NOT_FOUND, "is pinned to the_winner of revision 1");
    sat_context_free(ctx);
}

static void a_winner_that_cannot_serve_here_is_not_replaced(void **state) {
    (void)state;
    sat_context *ctx = open_scene("", (scene){.effort = SAT_EFFORT_PINNED, .revision = "1"});
    remember_race(ctx, 1e-3);
    winner.fits = false;
    REFUSED(ctx, N, 0, SAT_NOT_FOUND, "is pinned to the_winner, which does not fit it");
    sat_context_free(ctx);
    ctx = open_scene("", (scene){.effort = SAT_EFFORT_PINNED, .revision = "1", .memory_limit = 1 << 20});
    remember_race(ctx, 1e-3);
    winner.hungry = true;
    REFUSED(ctx, N, 0, SAT_OUT_OF_MEMORY, "whose workspace is beyond the memory limit");
    sat_context_free(ctx);
    ctx = open_scene("", (scene){.effort = SAT_EFFORT_PINNED, .revision = "1"});
    remember_race(ctx, 1e-3);
    winner.lies = true;
    for (int again = 0; again < 2; again++)
        REFUSED(ctx, N, 0, SAT_WRONG_RESULT, "is pinned to the_winner, which failed its check here");
    sat_context_free(ctx);
}

/* Its sums may come out in another order in every run. */
static void what_is_not_deterministic_is_never_pinned(void **state) {
    (void)state;
    scene s = {.effort = SAT_EFFORT_PINNED, .revision = "1", .flags = SAT_V_NONDETERMINISTIC};
    sat_context *ctx = open_scene("", s);
    sat_pattern *pattern = make_pattern(ctx);
    remember_race(ctx, 1e-3);
    sat_entry entry;
    sat_request q;
    sat_problem p = matmul_problem(SAT_F32, N);
    p.flags = SAT_ALLOW_NONDETERMINISTIC;
    assert_ok(sat_request_make(&q, ctx, pattern, &p));
    sat_problem plain = matmul_problem(SAT_F32, N);
    sat_request of_plain;
    assert_ok(sat_request_make(&of_plain, ctx, pattern, &plain));
    assert_ok(sat_cache_find(ctx->cache, of_plain.key, false, &entry));
    assert_ok(sat_cache_add(ctx->cache, q.key, entry.records, entry.count)); /* the race where it was allowed */
    sat_entry_free(&entry);
    assert_ok(plan_status(ctx, N, SAT_ALLOW_NONDETERMINISTIC, &info));
    assert_string_equal(info.variant, "the_second");
    assert_int_equal(winner.calls, 0);
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

static sat_status no_get(void *user, const char *key, double seconds, char *value) {
    (void)key, (void)seconds, (void)value;
    ++*(int *)user;
    return SAT_NOT_FOUND;
}

static sat_status other_put(void *user, const char *key, const char *desired, char *value) {
    (void)key, (void)desired;
    ++*(int *)user;
    strcpy(value, "the_second");
    return SAT_OK;
}

/* Whoever answers first there may be another one in the next job. */
static void other_ranks_are_not_asked(void **state) {
    (void)state;
    int calls = 0;
    sat_context *ctx = open_scene("", (scene){.effort = SAT_EFFORT_PINNED, .revision = "1"});
    sat_agreement a = {SAT_SIZED(sat_agreement), .world = 2, .get = no_get, .put = other_put, .user = &calls};
    assert_ok(sat_context_agree(ctx, &a));
    remember_race(ctx, 1e-3);
    calls = 0; /* it said that it is here */
    SERVES(ctx, "the_winner");
    assert_int_equal(calls, 0);
    sat_context_free(ctx);
}

/* Real kernels: the race's winner by the records gives the same bits in each context, whatever else this machine would
 * choose: each variant is pinned in turn. */
static void every_run_gives_the_same_bits(void **state) {
    const char *cache = *state;
    float *first = NULL;
    size_t bytes = SIDE * N * sizeof *first;
    char variant[128] = "";
    for (int run = 0; run < 4; run++) {
        sat_context *ctx = NULL;
        sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = cache, .threads = 1};
        o.effort = run ? SAT_EFFORT_PINNED : SAT_EFFORT_QUICK, o.budget_seconds = 1e-2;
        assert_ok(sat_context_create(&o, &ctx));
        uint64_t random = 9;
        sat_pattern *pattern = make_pattern(ctx);
        float *values = random_floats(&random, view_of(pattern).stored_blocks * BLOCK * BLOCK);
        float *b = random_floats(&random, SIDE * N), *c = calloc(1, bytes);
        sat_problem p = matmul_problem(SAT_F32, N);
        sat_plan *plan = NULL;
        assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
        assert_ok(sat_run(plan, (const void *[]){values, b}, 2, (void *[]){c}, 1, NULL));
        info = (sat_plan_info){SAT_SIZED(sat_plan_info)};
        assert_ok(sat_plan_get_info(plan, &info));
        assert_true(info.tuned == (run == 0));
        if (run == 0) snprintf(variant, sizeof variant, "%s", info.variant), first = c, c = NULL;
        else assert_memory_equal(c, first, bytes);
        assert_string_equal(info.variant, variant);
        sat_plan_free(plan);
        sat_pattern_free(pattern);
        sat_context_free(ctx);
        free(values), free(b), free(c);
    }
    free(first);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST_IN_FOLDER(the_winner_serves_in_every_run_once_it_is_checked),
        TEST_IN_FOLDER(what_the_cache_does_not_know_is_named_and_noted),
        TEST_IN_FOLDER(a_race_is_run_and_not_remembered),
        cmocka_unit_test(a_winner_that_is_not_here_is_not_replaced),
        cmocka_unit_test(a_winner_that_cannot_serve_here_is_not_replaced),
        cmocka_unit_test(what_is_not_deterministic_is_never_pinned),
        cmocka_unit_test(other_ranks_are_not_asked),
        TEST_IN_FOLDER(every_run_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
