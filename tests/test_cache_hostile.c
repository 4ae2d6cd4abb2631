/* Imports whose checksums are right and whose content is not: huge and tiny numbers, names that nobody registered,
 * dates to come, bytes that are no text, keys of other devices, thousands of entries. An import takes all of a file or
 * nothing, and whatever it took, the next context answers with a registered variant and a right product. */
#define _GNU_SOURCE
#include "support.h"

#include <inttypes.h>

#include "cache/cache.h"
#include "cache/cache_file.h"
#include "folder.h"
#include "problems.h"

enum { M = 24, N = 7, BLOCK = 4 };

typedef struct target { /* a problem that hostile records are about */
    char key[512], identity[192], variant[128];
    const char *folder;
} target;

static sat_context *open_in(const char *folder, sat_effort effort) {
    sat_context *ctx = NULL;
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = folder, .effort = effort};
    o.threads = 1, o.budget_seconds = 1e-3, o.measure = SAT_MEASURE_WARM;
    assert_ok(sat_context_create(&o, &ctx));
    return ctx;
}

static sat_pattern *pattern_in(sat_context *ctx) {
    uint64_t random = 3;
    return random_pattern(ctx, &random, M, M, BLOCK, BLOCK, 0.4, false);
}

static bool registered(const sat_context *ctx, const char *name) {
    for (size_t i = 0; i < sat_variant_count(ctx); i++)
        if (!strcmp(sat_variant_at(ctx, i)->name, name)) return true;
    return false;
}

/* A plan that this cache answers for: registered, no dense one, and right. */
static void expect_right(const char *folder, sat_effort effort) {
    uint64_t random = 4;
    sat_context *ctx = open_in(folder, effort);
    sat_pattern *pattern = pattern_in(ctx);
    sat_pattern_view a = view_of(pattern);
    sat_problem p = matmul_problem(SAT_F32, N);
    sat_plan *plan = NULL;
    sat_plan_info info = {SAT_SIZED(sat_plan_info)};
    float *values = random_floats(&random, a.stored_blocks * BLOCK * BLOCK), *b = random_floats(&random, M * N),
          *c = random_floats(&random, M * N);
    double *want = dense_product(&a, values, b, N);
    assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
    assert_ok(sat_plan_get_info(plan, &info));
    assert_true(registered(ctx, info.variant));
    for (size_t i = 0; i < sat_variant_count(ctx); i++)
        if (!strcmp(sat_variant_at(ctx, i)->name, info.variant))
            assert_false(sat_variant_at(ctx, i)->flags & (SAT_V_DENSE | SAT_V_NONDETERMINISTIC));
    assert_ok(sat_run(plan, (const void *[]){values, b}, 2, (void *[]){c}, 1, NULL));
    assert_close(c, want, M * N, M);
    sat_plan_free(plan), sat_pattern_free(pattern), sat_context_free(ctx);
    free(values), free(b), free(c), free(want);
}

/* ---- hostile text ---- */

static const char *const numbers[] = {"0",
                                      "-1",
                                      "1e308",
                                      "1e-308",
                                      "4.9e-324",
                                      "1e309",
                                      "nan",
                                      "inf",
                                      "-inf",
                                      "0x10",
                                      "1e",
                                      "",
                                      " 1",
                                      "1 ",
                                      "1,5",
                                      "1e400",
                                      "9223372036854775807",
                                      "9223372036854775808",
                                      "-9223372036854775808",
                                      "18446744073709551616",
                                      "00000001",
                                      "1e-9",
                                      "0.000000000000000001"};
static const char *const words[] = {"ok",
                                    "wrong",
                                    "skipped",
                                    "",
                                    "OK ",
                                    "../../escape",
                                    "/etc/passwd",
                                    "%n%s%n",
                                    "$(x)",
                                    "raced",
                                    "verified",
                                    "'; --",
                                    "cpu_matmul_any_any_c_reference",
                                    "no_such_variant",
                                    "a=b=c",
                                    "=",
                                    "\t",
                                    "\x1b[31m",
                                    "\xff\xfe",
                                    "\xc3\x28"};
static const char *const fields[] = {"kind",
                                     "verdict",
                                     "race",
                                     "when",
                                     "variant",
                                     "revision",
                                     "seconds",
                                     "spread",
                                     "error",
                                     "estimate_seconds",
                                     "prepare_seconds",
                                     "workspace_bytes",
                                     "runs",
                                     "may_win",
                                     "exact",
                                     "message",
                                     "least_seconds",
                                     "busy",
                                     "threads",
                                     "unheard_of",
                                     "build"};
#define COUNT(list) ((int64_t)(sizeof(list) / sizeof(list)[0]))

/* A record that would win: the fastest of all, right, checked. */
static sat_record flattering(uint64_t *r, const char *variant) {
    sat_record x = {.kind = random_below(r, 4) ? SAT_RECORD_RACED : SAT_RECORD_VERIFIED, .verdict = SAT_VERDICT_OK};
    x.seconds = random_below(r, 2) ? 1e-300 : 1e300, x.runs = 2147483647, x.may_win = true;
    x.when = random_below(r, 2) ? INT64_MAX : 0, x.workspace_bytes = INT64_MAX;
    snprintf(x.race, sizeof x.race, "race %lld", (long long)random_below(r, 5));
    snprintf(x.variant, sizeof x.variant, "%s", variant);
    snprintf(x.revision, sizeof x.revision, "%s", random_below(r, 2) ? "1" : "99");
    snprintf(x.full_key, sizeof x.full_key, "op=matmul");
    return x;
}

/* That record, with some of its fields replaced, repeated or made up. */
static void add_line(sat_text *text, uint64_t *r, const target *t) {
    static const char *const names[] = {"no_such_variant", "cpu_matmul_any_any_c_reference",
                                        "cpu_matmul_f32_any_blas_dense", "cuda_matmul_f32_any_sm90_64x64"};
    char extra[256];
    sat_text line = {0};
    sat_record x = flattering(r, random_below(r, 3) ? names[random_below(r, 4)] : t->variant);
    sat_record_format(&line, &x);
    sat_text_add(text, line.data, line.length - 1);
    for (int64_t i = random_below(r, 3); i > 0; i--) {
        const char *value =
            random_below(r, 2) ? numbers[random_below(r, COUNT(numbers))] : words[random_below(r, COUNT(words))];
        snprintf(extra, sizeof extra, "\t%s=%s", fields[random_below(r, COUNT(fields))], value);
        sat_text_adds(text, extra);
    }
    if (random_below(r, 40) == 0) sat_text_add(text, "\0\x01\x02\x7f", 4);
    sat_text_add(text, "\n", 1);
    sat_text_free(&line);
}

static void add_entry(sat_text *text, uint64_t *r, const target *t, bool valid, int64_t lines) {
    char head[1024];
    size_t start = text->length;
    static const char *const devices[] = {"cuda NVIDIA H200", "../../escape", "%s%n", "cpu"};
    const char *identity = random_below(r, 3) ? t->identity : devices[random_below(r, 4)];
    snprintf(head, sizeof head, "sparse_autotune cache 1.0\ndevice=%s\nkey=%s\n", identity,
             random_below(r, 3) ? t->key : "some other key");
    sat_text_adds(text, head);
    for (int64_t i = 0; i < lines; i++) {
        sat_text line = {0};
        sat_record x = flattering(r, random_below(r, 2) ? t->variant : "no_such_variant");
        snprintf(x.race, sizeof x.race, "race %lld", (long long)(valid ? i : 0));
        if (valid) sat_record_format(&line, &x), sat_text_add(text, line.data, line.length);
        else add_line(text, r, t);
        sat_text_free(&line);
    }
    sat_text_seal(text, start);
}

/* Imports; all or nothing, and in a moment's time. */
static sat_status import(const target *t, const sat_text *text) {
    char file[4200];
    int64_t entries = -1;
    sat_context *ctx = open_in(t->folder, SAT_EFFORT_CACHED);
    write_file(in(file, t->folder, "import"), text->data, text->length);
    sat_status status = sat_cache_import(ctx, file, &entries);
    if (status == SAT_BAD_FORMAT) assert_int_equal(entries, 0);
    else assert_true(status == SAT_OK || status == SAT_UNSUPPORTED);
    sat_context_free(ctx);
    return status;
}

static bool count_one(void *user, const char *key, const char *text) {
    (void)key, (void)text;
    ++*(int *)user;
    return true;
}

static int count_entries(const char *folder) {
    int n = 0;
    sat_context *ctx = open_in(folder, SAT_EFFORT_CACHED);
    assert_ok(sat_cache_visit(ctx, count_one, &n));
    sat_context_free(ctx);
    return n;
}

static target find_target(const char *folder) {
    target t = {.folder = folder};
    sat_context *ctx = open_in(folder, SAT_EFFORT_OFF);
    sat_pattern *pattern = pattern_in(ctx);
    sat_problem p = matmul_problem(SAT_F32, N);
    sat_plan *plan = NULL;
    sat_plan_info info = {SAT_SIZED(sat_plan_info)};
    assert_ok(sat_problem_key(ctx, pattern, &p, t.key, sizeof t.key));
    assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
    assert_ok(sat_plan_get_info(plan, &info));
    snprintf(t.variant, sizeof t.variant, "%s", info.variant);
    snprintf(t.identity, sizeof t.identity, "%s", sat_context_device(ctx)->identity);
    sat_plan_free(plan), sat_pattern_free(pattern), sat_context_free(ctx);
    return t;
}

/* ---- tests ---- */

static void hostile_records_never_make_a_wrong_answer(void **state) {
    uint64_t r = 17;
    target t = find_target(*state);
    int taken = 0, refused = 0, rounds = getenv("SAT_TEST_LONG") ? 3000 : 100;
    for (int i = 0; i < rounds; i++) {
        sat_text text = {0};
        for (int64_t n = 1 + random_below(&r, 3); n > 0; n--)
            add_entry(&text, &r, &t, random_below(&r, 2), random_below(&r, 6));
        sat_status status = import(&t, &text);
        taken += status == SAT_OK, refused += status != SAT_OK;
        sat_text_free(&text);
        expect_right(*state, SAT_EFFORT_CACHED);
        if (i % 20 == 0) expect_right(*state, SAT_EFFORT_QUICK);
    }
    print_message("%d imports taken, %d refused\n", taken, refused);
    assert_true(taken > 10 && refused > 10);
}

static void thousands_of_hostile_entries_are_taken_in_a_moment(void **state) {
    uint64_t r = 18;
    target t = find_target(*state), other = t;
    sat_text text = {0};
    for (int i = 0; i < 300; i++) {
        snprintf(other.key, sizeof other.key, "key %d of another", i);
        add_entry(&text, &r, i % 10 ? &other : &t, true, 20);
    }
    add_entry(&text, &r, &t, true, SAT_RECORD_LIMIT / 2); /* one with far more records than are kept */
    assert_int_equal(import(&t, &text), SAT_OK);
    sat_text_free(&text);
    expect_right(*state, SAT_EFFORT_CACHED);
    expect_right(*state, SAT_EFFORT_QUICK);
}

/* What came first stays when a file is refused for its last byte. */
static void one_bad_line_at_the_end_refuses_all_of_a_file(void **state) {
    uint64_t r = 19;
    target t = find_target(*state);
    sat_text text = {0};
    for (int i = 0; i < 5; i++) add_entry(&text, &r, &t, true, 3);
    size_t start = text.length;
    sat_text_adds(&text, "sparse_autotune cache 1.0\ndevice=d\nkey=k\nkind=raced\tverdict=perhaps\n");
    sat_text_seal(&text, start);
    assert_int_equal(import(&t, &text), SAT_BAD_FORMAT);
    assert_int_equal(count_entries(*state), 0);
    sat_text_free(&text);
}

int main(void) {
    if (!access("/dev/shm", W_OK)) setenv("TMPDIR", "/dev/shm", 0);
    const struct CMUnitTest tests[] = {
        TEST_IN_FOLDER(hostile_records_never_make_a_wrong_answer),
        TEST_IN_FOLDER(thousands_of_hostile_entries_are_taken_in_a_moment),
        TEST_IN_FOLDER(one_bad_line_at_the_end_refuses_all_of_a_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
