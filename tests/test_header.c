/* What the header promises about its structs, counts, statuses and messages. */
#define _GNU_SOURCE /* nftw */
#include "support.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "folder.h"
#include "problems.h"

typedef struct fixture {
    sat_context *ctx;
    sat_pattern *pattern;
    float values[256], b[256], c[256];
} fixture;

static int setup(void **state) {
    uint64_t r = 1;
    fixture *f = calloc(1, sizeof *f);
    f->ctx = open_context(SAT_EFFORT_QUICK);
    f->pattern = random_pattern(f->ctx, &r, 8, 8, 4, 4, 1, false);
    for (int i = 0; i < 256; i++) f->values[i] = f->b[i] = (float)(i % 5 - 2);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    fixture *f = *state;
    sat_pattern_free(f->pattern);
    sat_context_free(f->ctx);
    free(f);
    return 0;
}

/* ---- planted variants ---- */

static bool fits(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)a, (void)d;
    return p->n == 6;
}

static double one_second(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    return (void)v, (void)p, (void)a, (void)d, 1;
}

static sat_variant planted_variant(const char *name, sat_status (*launch)(const sat_launch *)) {
    return (sat_variant){SAT_SIZED(sat_variant), .name = name,     .revision = "1",        .op = SAT_MATMUL,
                         .backend = SAT_CPU,     .supports = fits, .estimate = one_second, .launch = launch};
}

/* ---- constructors ---- */

typedef struct roomy {
    sat_problem problem;
    unsigned char behind[96];
} roomy;

static sat_status construct(int which, sat_problem *p) {
    switch (which) {
    case 0: return sat_problem_matmul(p, SAT_F64, 7);
    case 1: return sat_problem_sampled(p, SAT_F16, 9);
    case 2: return sat_problem_attention(p, SAT_BF16, 6, 2, 64);
    case 3: return sat_problem_attention_backward(p, SAT_BF16, 6, 2, 64);
    case 4: return sat_problem_grouped(p, SAT_F32, 12, 5, 4, 3);
    default: return sat_problem_grouped_weights(p, SAT_F32, 12, 5, 4, 3);
    }
}

enum { CONSTRUCTORS = 6 };

/* Products of groups have no pattern. */
static sat_pattern *pattern_for(int which, sat_pattern *pattern) { return which < 4 ? pattern : NULL; }

static void constructors_write_what_the_caller_has(void **state) {
    (void)state;
    const sat_operation ops[] = {SAT_MATMUL,  SAT_SAMPLED,        SAT_ATTENTION, SAT_ATTENTION_BACKWARD,
                                 SAT_GROUPED, SAT_GROUPED_WEIGHTS};
    for (int which = 0; which < CONSTRUCTORS; which++) {
        roomy r;
        /* The size that this header has, and that of a later one. */
        for (size_t more = 0; more <= 64; more += 64) {
            memset(&r, 0x5a, sizeof r);
            r.problem.size = sizeof r.problem + more;
            assert_ok(construct(which, &r.problem));
            assert_int_equal(r.problem.size, sizeof r.problem + more);
            assert_int_equal(r.problem.op, ops[which]);
            for (size_t i = 0; i < sizeof r.behind; i++) assert_int_equal(r.behind[i], i < more ? 0 : 0x5a);
        }
        assert_true(which != 0 || (r.problem.a_dtype == SAT_F64 && r.problem.n == 7 && r.problem.alpha == 1));
        assert_true(which != 1 || (r.problem.c_dtype == SAT_F16 && r.problem.k == 9));
        bool attention = which == 2 || which == 3, grouped = which >= 4;
        assert_true(!attention || (r.problem.attention.heads == 6 && r.problem.attention.kv_heads == 2));
        assert_true(!grouped || (r.problem.m == 12 && r.problem.n == 5 && r.problem.k == 4));
        assert_true(!grouped || (r.problem.grouped.groups == 3 && r.problem.grouped.offset_type == SAT_I64));
        /* One that was never set: nothing is written. */
        memset(&r, 0x5a, sizeof r);
        roomy before = r;
        assert_fails(construct(which, &r.problem), SAT_BAD_STRUCT, "sat_problem");
        assert_memory_equal(&r, &before, sizeof r);
        assert_fails(construct(which, NULL), SAT_NULL_POINTER, "problem is NULL");
    }
}

static void the_gradients_problem_is_the_forward_one_but_for_its_operation(void **state) {
    (void)state;
    sat_problem forward = {SAT_SIZED(sat_problem)}, backward = {SAT_SIZED(sat_problem)};
    assert_ok(sat_problem_attention(&forward, SAT_F32, 4, 2, 16));
    assert_ok(sat_problem_attention_backward(&backward, SAT_F32, 4, 2, 16));
    forward.op = SAT_ATTENTION_BACKWARD;
    assert_memory_equal(&forward, &backward, sizeof forward);
}

/* ---- growth ---- */

static void what_a_later_version_sets_is_refused_and_not_ignored(void **state) {
    fixture *f = *state;
    sat_plan *plan = NULL;
    for (int which = 0; which < CONSTRUCTORS; which++) {
        sat_pattern *pattern = pattern_for(which, f->pattern);
        roomy r = {.problem = {.size = sizeof r}};
        assert_ok(construct(which, &r.problem));
        r.problem.a_dtype = r.problem.b_dtype = r.problem.c_dtype = SAT_F32;
        assert_ok(sat_plan_create(f->ctx, pattern, &r.problem, &plan)); /* longer, and all 0 */
        sat_plan_free(plan);
        r.behind[5] = 1;
        assert_fails(sat_plan_create(f->ctx, pattern, &r.problem, &plan), SAT_BAD_STRUCT, "this version knows");
        r.behind[5] = 0, r.problem.reserved[7] = 1;
        assert_fails(sat_plan_create(f->ctx, pattern, &r.problem, &plan), SAT_BAD_STRUCT, "reserved");
        r.problem.reserved[7] = 0, r.problem.reserved_align = 1;
        assert_fails(sat_plan_create(f->ctx, pattern, &r.problem, &plan), SAT_BAD_STRUCT, "reserved");
        r.problem.reserved_align = 0, r.problem.room[47] = 1;
        assert_fails(sat_plan_create(f->ctx, pattern, &r.problem, &plan), SAT_BAD_STRUCT, "of its own");
        assert_null(plan);
    }
}

static void a_call_with_a_part_of_a_later_version_is_refused_on_a_hit_too(void **state) {
    fixture *f = *state;
    sat_problem p = matmul_problem(SAT_F32, 3);
    assert_ok(sat_bsr_matmul(f->ctx, f->pattern, &p, f->values, f->b, f->c, NULL, NULL));
    p.room[40] = 1;
    assert_fails(sat_bsr_matmul(f->ctx, f->pattern, &p, f->values, f->b, f->c, NULL, NULL), SAT_BAD_STRUCT, "matmul");
}

static void *callers_alloc(void *user, size_t bytes, size_t alignment) {
    ++*(int *)user;
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void callers_free(void *user, void *pointer) {
    --*(int *)user;
    free(pointer);
}

static void an_allocator_is_a_struct_that_can_grow(void **state) {
    (void)state;
    struct {
        sat_allocator it;
        void *later;
    } allocator = {.it = {.size = sizeof allocator, .alloc = callers_alloc, .free = callers_free}};
    int live = 0;
    allocator.it.user = &live;
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = "",
                             .allocator = &allocator.it};
    sat_context *ctx = NULL;
    void *memory = NULL;
    allocator.later = &live;
    assert_fails(sat_context_create(&o, &ctx), SAT_BAD_STRUCT, "sat_allocator");
    allocator.later = NULL;
    assert_ok(sat_context_create(&o, &ctx));
    memset(&allocator, 0, sizeof allocator); /* it was copied */
    assert_ok(sat_memory_alloc(ctx, 100, &memory));
    assert_int_equal(live, 1);
    sat_memory_free(ctx, memory);
    sat_context_free(ctx);
    assert_int_equal(live, 0);
}

static void a_device_has_threads_or_multiprocessors_and_a_rate_for_each_dtype(void **state) {
    fixture *f = *state;
    const sat_device *d = sat_context_device(f->ctx);
    assert_true(d->threads > 0);
    assert_int_equal(d->multiprocessors, 0);
    const size_t slots = sizeof d->flop_rate / sizeof *d->flop_rate;
    for (size_t t = 0; t < slots; t++) assert_true((d->flop_rate[t] > 0) == (t >= SAT_F32 && t <= SAT_BF16));
}

static void an_info_says_how_much_of_it_was_written(void **state) {
    fixture *f = *state;
    struct {
        sat_pattern_view it;
        double later;
    } view = {.it = {.size = sizeof view}, .later = 7};
    assert_ok(sat_pattern_get(f->pattern, &view.it));
    assert_int_equal(view.it.size, sizeof view.it);
    assert_true(view.later == 0);
}

static sat_status nothing(const sat_launch *l) { return (void)l, SAT_OK; }

static void a_variant_of_a_later_version_is_refused(void **state) {
    fixture *f = *state;
    sat_variant v = planted_variant("cpu_matmul_any_any_later", nothing);
    v.reserved[6] = 1;
    assert_fails(sat_variant_register(f->ctx, &v), SAT_BAD_STRUCT, "reserved[6]");
    v.reserved[6] = 0;
    assert_ok(sat_variant_register(f->ctx, &v));
}

/* ---- runs ---- */

static void a_bias_that_the_problem_has_not_is_refused(void **state) {
    fixture *f = *state;
    float bias[8] = {0};
    sat_problem p = matmul_problem(SAT_F32, 3);
    assert_fails(sat_bsr_matmul(f->ctx, f->pattern, &p, f->values, f->b, f->c, bias, NULL), SAT_UNSUPPORTED, "bias");
    p.matmul.bias = SAT_BIAS_ROW;
    assert_ok(sat_bsr_matmul(f->ctx, f->pattern, &p, f->values, f->b, f->c, bias, NULL));
    assert_fails(sat_bsr_matmul(f->ctx, f->pattern, &p, f->values, f->b, f->c, NULL, NULL), SAT_NULL_POINTER, "bias");
}

static void a_run_takes_the_operands_that_its_problem_has(void **state) {
    fixture *f = *state;
    const float *const values = f->values, *const b = f->b; /* const all the way, without a cast */
    float bias[8] = {0}, lse[8], *c = f->c;
    const void *inputs[] = {values, b, bias};
    void *outputs[] = {c, lse};
    sat_plan *plan = NULL;
    sat_problem p = matmul_problem(SAT_F32, 8);
    assert_ok(sat_plan_create(f->ctx, f->pattern, &p, &plan));
    assert_ok(sat_run(plan, inputs, 2, outputs, 1, NULL));
    assert_fails(sat_run(plan, inputs, 3, outputs, 1, NULL), SAT_BAD_SIZE, "input_count is 3; expected 2 (values, b)");
    assert_fails(sat_run(plan, inputs, 1, outputs, 1, NULL), SAT_BAD_SIZE, "input_count is 1; expected 2 (values, b)");
    assert_fails(sat_run(plan, inputs, 2, outputs, 0, NULL), SAT_BAD_SIZE, "output_count is 0; expected 1 (c)");
    assert_fails(sat_run(plan, inputs, 2, outputs, 2, NULL), SAT_BAD_SIZE, "output_count is 2; expected 1 (c)");
    sat_plan_free(plan);
    p.matmul.bias = SAT_BIAS_ROW;
    assert_ok(sat_plan_create(f->ctx, f->pattern, &p, &plan));
    assert_ok(sat_run(plan, inputs, 3, outputs, 1, NULL));
    assert_fails(sat_run(plan, inputs, 2, outputs, 1, NULL), SAT_BAD_SIZE, "expected 3 (values, b, bias)");
    sat_plan_free(plan);
    p = attention_problem(SAT_F32, 1, 1, 8);
    p.attention.lse = true;
    assert_ok(sat_plan_create(f->ctx, f->pattern, &p, &plan));
    assert_fails(sat_run(plan, inputs, 3, outputs, 1, NULL), SAT_BAD_SIZE, "output_count is 1; expected 2 (o, lse)");
    assert_ok(sat_run(plan, (const void *[]){values, b, b}, 3, outputs, 2, NULL));
    sat_plan_free(plan);
}

/* ---- cancelled and busy ---- */

static bool stop_at_the_second(void *user, int done, int total, const char *what) {
    (void)done, (void)total, (void)what;
    return ++*(int *)user < 2;
}

static void a_race_that_is_stopped_says_so_and_leaves_nothing(void **state) {
    fixture *f = *state;
    int calls = 0;
    sat_race *race = NULL;
    sat_problem p = matmul_problem(SAT_F32, 5);
    sat_race_options o = {SAT_SIZED(sat_race_options), .progress = stop_at_the_second, .progress_user = &calls};
    assert_fails(sat_race_run(f->ctx, f->pattern, &p, &o, &race), SAT_CANCELLED, "cancelled");
    assert_null(race);
    assert_int_equal(calls, 2);
    o.progress = NULL;
    assert_ok(sat_race_run(f->ctx, f->pattern, &p, &o, &race));
    sat_race_info info = {SAT_SIZED(sat_race_info)};
    assert_ok(sat_race_get_info(race, &info));
    assert_false(info.cached);
    assert_non_null(sat_race_best(race));
    sat_race_free(race);
}

static atomic_int inside, may_go;

static sat_status wait_inside(const sat_launch *l) {
    (void)l;
    atomic_store(&inside, 1);
    while (!atomic_load(&may_go)) usleep(100);
    return SAT_OK;
}

typedef struct runner {
    fixture *f;
    sat_plan *plan;
    sat_status status;
} runner;

static void *run_once(void *user) {
    runner *r = user;
    r->status = sat_run(r->plan, (const void *[]){r->f->values, r->f->b}, 2, (void *[]){r->f->c}, 1, NULL);
    return NULL;
}

static void a_plan_that_runs_is_busy_for_others(void **state) {
    fixture *f = *state;
    sat_variant v = planted_variant("cpu_matmul_any_any_waits", wait_inside);
    assert_ok(sat_variant_register(f->ctx, &v));
    sat_problem p = matmul_problem(SAT_F32, 6);
    runner first = {.f = f, .status = SAT_INTERNAL}, second = {.f = f};
    assert_ok(sat_plan_create_with(f->ctx, f->pattern, &p, v.name, &first.plan));
    second.plan = first.plan;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run_once, &first), 0);
    while (!atomic_load(&inside)) usleep(100);
    run_once(&second);
    assert_fails(second.status, SAT_BUSY, "sat_plan_dup");
    pid_t child = fork(); /* where nobody runs it */
    if (child == 0) {
        alarm(60);
        atomic_store(&may_go, 1);
        run_once(&second);
        _exit(second.status == SAT_OK ? 0 : 1);
    }
    int ended = -1;
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
    sat_plan *copy = NULL;
    assert_ok(sat_plan_dup(first.plan, &copy)); /* one of its own is not */
    atomic_store(&may_go, 1);
    second.plan = copy;
    run_once(&second);
    assert_ok(second.status);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_ok(first.status);
    run_once(&first); /* nor is this one afterwards */
    assert_ok(first.status);
    sat_plan_free(copy);
    sat_plan_free(first.plan);
}

/* ---- messages ---- */

/* The last message is another call's before each of these. */
#define assert_tells(call, expected, word)                                                                             \
    do {                                                                                                               \
        unsigned before = sat_messages();                                                                              \
        assert_fails(call, expected, word);                                                                            \
        assert_true(sat_messages() > before);                                                                          \
    } while (0)

static sat_status fail_silently(const sat_launch *l) { return (void)l, SAT_LIBRARY_ERROR; }
static sat_status prepare_silently(const sat_prepare *p, void **s) { return (void)p, (void)s, SAT_DEVICE_ERROR; }

static void a_variant_that_fails_without_a_word_has_a_message(void **state) {
    fixture *f = *state;
    sat_variant v = planted_variant("cpu_matmul_any_any_silent", fail_silently);
    assert_ok(sat_variant_register(f->ctx, &v));
    sat_problem p = matmul_problem(SAT_F32, 6);
    sat_plan *plan = NULL;
    assert_ok(sat_plan_create_with(f->ctx, f->pattern, &p, v.name, &plan));
    assert_tells(sat_run(plan, (const void *[]){f->values, f->b}, 2, (void *[]){f->c}, 1, NULL), SAT_LIBRARY_ERROR,
                 "cpu_matmul_any_any_silent: launch failed with SAT_LIBRARY_ERROR");
    sat_plan_free(plan);
    v.name = "cpu_matmul_any_any_unprepared", v.prepare = prepare_silently;
    assert_ok(sat_variant_register(f->ctx, &v));
    assert_tells(sat_plan_create_with(f->ctx, f->pattern, &p, v.name, &plan), SAT_DEVICE_ERROR, "prepare failed");
}

static bool see(void *user, const char *key, const char *text) { return (void)user, (void)key, (void)text, true; }

static void every_failure_of_the_cache_has_a_message(void **state) {
    const char *folder = *state;
    char file[4200];
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = folder};
    sat_context *ctx = NULL;
    int64_t entries;
    assert_ok(sat_context_create(&o, &ctx));
    in(file, folder, "pack");
    assert_tells(sat_cache_import(ctx, file, &entries), SAT_IO, file);
    write_file(file, "not a pack\n", 11);
    assert_tells(sat_cache_import(ctx, file, &entries), SAT_BAD_FORMAT, "cache:");
    assert_tells(sat_cache_export(ctx, "/no/such/folder/pack"), SAT_IO, "/no/such/folder/pack");
    assert_tells(sat_cache_visit(ctx, NULL, NULL), SAT_NULL_POINTER, "visit");
    assert_tells(sat_cache_visit_untuned(ctx, NULL, NULL), SAT_NULL_POINTER, "visit");
    assert_tells(sat_cache_clear(NULL, NULL, NULL), SAT_NULL_POINTER, "context");
    assert_ok(sat_cache_visit(ctx, see, NULL));
    sat_context_free(ctx);
}

static void every_status_has_a_name(void **state) {
    (void)state;
    for (int s = SAT_OK; s <= SAT_BUSY; s++) assert_true(strncmp(sat_status_name(s), "SAT_", 4) == 0);
    assert_string_equal(sat_status_name((sat_status)12345), "unknown status");
    assert_int_equal(SAT_OK, 0);
    assert_int_equal(SAT_UNSUPPORTED, 12);
    assert_int_equal(SAT_INTERNAL, 99);
    assert_int_equal(SAT_CANCELLED, 22);
    assert_int_equal(SAT_BUSY, 23);
    assert_string_equal(sat_status_name(SAT_CANCELLED), "SAT_CANCELLED");
    assert_string_equal(sat_status_name(SAT_BUSY), "SAT_BUSY");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constructors_write_what_the_caller_has),
        cmocka_unit_test(the_gradients_problem_is_the_forward_one_but_for_its_operation),
        cmocka_unit_test_setup_teardown(what_a_later_version_sets_is_refused_and_not_ignored, setup, teardown),
        cmocka_unit_test_setup_teardown(a_call_with_a_part_of_a_later_version_is_refused_on_a_hit_too, setup, teardown),
        cmocka_unit_test(an_allocator_is_a_struct_that_can_grow),
        cmocka_unit_test_setup_teardown(a_device_has_threads_or_multiprocessors_and_a_rate_for_each_dtype, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(an_info_says_how_much_of_it_was_written, setup, teardown),
        cmocka_unit_test_setup_teardown(a_variant_of_a_later_version_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_bias_that_the_problem_has_not_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_run_takes_the_operands_that_its_problem_has, setup, teardown),
        cmocka_unit_test_setup_teardown(a_race_that_is_stopped_says_so_and_leaves_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(a_plan_that_runs_is_busy_for_others, setup, teardown),
        cmocka_unit_test_setup_teardown(a_variant_that_fails_without_a_word_has_a_message, setup, teardown),
        TEST_IN_FOLDER(every_failure_of_the_cache_has_a_message),
        cmocka_unit_test(every_status_has_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
