/* Memory over many calls: what is in use after the first tenth of them is in use after the last. 20,000 calls of each
 * kind, or a million where SAT_TEST_LONG is set. */
#define _GNU_SOURCE
#include "support.h"

#include <malloc.h>
#include <unistd.h>

#include "sanitized.h" /* SANITIZED: a sanitizer has an allocator of its own, and looks for leaks itself */
#include "problems.h"

enum { M = 16, N = 5, BLOCK = 4, SLACK = 16384 }; /* SLACK: what a C library may hold back or round up */

typedef struct world {
    sat_context *ctx;
    sat_pattern *pattern;
    sat_plan *plan;
    float *values, *b, *c;
    int64_t calls;
} world;

static int64_t in_use(void) {
    struct mallinfo2 m = mallinfo2();
    return (int64_t)(m.uordblks + m.hblkhd);
}

static int64_t resident(void) { /* pages */
    long size = 0, pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld %ld", &size, &pages), 2);
    fclose(f);
    return pages;
}

static int open_world(void **state) {
    uint64_t random = 9;
    world *w = calloc(1, sizeof *w);
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = "", .threads = 1};
    sat_problem p = matmul_problem(SAT_F32, N);
    o.effort = SAT_EFFORT_OFF;
    assert_ok(sat_context_create(&o, &w->ctx));
    w->pattern = random_pattern(w->ctx, &random, M, M, BLOCK, BLOCK, 0.5, false);
    w->values = random_floats(&random, M * M), w->b = random_floats(&random, M * M),
    w->c = random_floats(&random, M * M);
    assert_ok(sat_plan_create(w->ctx, w->pattern, &p, &w->plan));
    w->calls = getenv("SAT_TEST_LONG") ? 1000000 : 20000;
    *state = w;
    return 0;
}

static int close_world(void **state) {
    world *w = *state;
    sat_plan_free(w->plan);
    sat_pattern_free(w->pattern);
    sat_context_free(w->ctx);
    free(w->values), free(w->b), free(w->c), free(w);
    return 0;
}

/* Calls, and compares what is in use after a tenth with what is at the end. */
static void repeat(world *w, int64_t calls, void (*call)(world *w, int64_t i)) {
    int64_t first = 0, pages = 0;
    for (int64_t i = 0; i < calls; i++) {
        call(w, i);
        if (i + 1 == calls / 10) first = in_use(), pages = resident();
    }
    int64_t last = in_use(), more = (resident() - pages) * sysconf(_SC_PAGESIZE);
    print_message("%lld calls: %+lld bytes in use, %+lld resident\n", (long long)calls, (long long)(last - first),
                  (long long)more);
    if (!SANITIZED) assert_true(last - first < SLACK);
    if (!SANITIZED) assert_true(more < 8 << 20);
}

static void run_once(world *w, int64_t i) {
    (void)i;
    assert_ok(sat_run(w->plan, (const void *[]){w->values, w->b}, 2, (void *[]){w->c}, 1, NULL));
}

/* There are more kinds of problem than the pool has places, so that plans come and go. */
static void call_once(world *w, int64_t i) {
    sat_problem p = matmul_problem(SAT_F32, 1 + i % 3);
    p.alpha = (double)(1 + (i % 10 ? 0 : i / 10 % 100)); /* a new plan for one call of ten */
    p.matmul.transpose = i % 2 ? SAT_TRANSPOSE : SAT_NO_TRANSPOSE;
    assert_ok(sat_bsr_matmul(w->ctx, w->pattern, &p, w->values, w->b, w->c, NULL, NULL));
}

static void plan_once(world *w, int64_t i) {
    sat_problem p = i % 2 ? sampled_problem(SAT_F32, 1 + i % 7) : matmul_problem(SAT_F32, 1 + i % 7);
    sat_plan *plan = NULL, *copy = NULL;
    assert_ok(sat_plan_create(w->ctx, w->pattern, &p, &plan));
    assert_ok(sat_plan_dup(plan, &copy));
    sat_plan_free(plan);
    sat_plan_free(copy);
}

static void pattern_once(world *w, int64_t i) {
    uint64_t random = (uint64_t)i;
    sat_pattern *pattern = random_pattern(w->ctx, &random, M, M, BLOCK, BLOCK, 0.5, i % 2);
    (void)view_of(pattern); /* with its transposed index */
    sat_pattern_free(pattern);
}

/* What fails leaves nothing either. */
static void fail_once(world *w, int64_t i) {
    static const int32_t ptr[] = {0, 1, 1, 1, 2}, col[] = {3, 9};
    sat_bsr b = {SAT_SIZED(sat_bsr),  .rows = M,           .cols = M,
                 .block_rows = BLOCK, .block_cols = BLOCK, .stored_blocks = 2};
    sat_problem p = matmul_problem((sat_dtype)(1 + i % 9), i % 3 - 1);
    sat_pattern *pattern = NULL;
    sat_plan *plan = NULL;
    b.index_type = SAT_I32, b.row_ptr = ptr, b.col_idx = col;
    assert_int_equal(sat_pattern_create(w->ctx, &b, &pattern), SAT_COLUMN_RANGE);
    p.b.row_stride = -1;
    assert_int_not_equal(sat_plan_create(w->ctx, w->pattern, &p, &plan), SAT_OK);
    assert_int_not_equal(sat_plan_create_with(w->ctx, w->pattern, &p, "nobody", &plan), SAT_OK);
}

static void context_once(world *w, int64_t i) {
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = "", .threads = 1};
    sat_context *ctx = NULL;
    (void)w, (void)i;
    o.effort = SAT_EFFORT_OFF;
    assert_ok(sat_context_create(&o, &ctx));
    sat_context_free(ctx);
}

static void runs_keep_no_memory(void **state) { repeat(*state, ((world *)*state)->calls, run_once); }
static void one_calls_keep_no_memory(void **state) { repeat(*state, ((world *)*state)->calls, call_once); }
static void plans_keep_no_memory(void **state) { repeat(*state, ((world *)*state)->calls, plan_once); }
static void patterns_keep_no_memory(void **state) { repeat(*state, ((world *)*state)->calls, pattern_once); }
static void failures_keep_no_memory(void **state) { repeat(*state, ((world *)*state)->calls, fail_once); }
static void contexts_keep_no_memory(void **state) { repeat(*state, ((world *)*state)->calls / 200, context_once); }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_keep_no_memory),     cmocka_unit_test(one_calls_keep_no_memory),
        cmocka_unit_test(plans_keep_no_memory),    cmocka_unit_test(patterns_keep_no_memory),
        cmocka_unit_test(failures_keep_no_memory), cmocka_unit_test(contexts_keep_no_memory),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
