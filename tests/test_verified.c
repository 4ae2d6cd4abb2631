/* What "verified" means: this build, on this machine, on this exact problem. Whatever else the cache says of a variant
 * is a time: the variant is checked here before it serves. */
#define _GNU_SOURCE
#include "support.h"

#include <ftw.h>
#include <sys/stat.h>

#include "core/select.h"
#include "cache/cache_file.h"
#include "core/identity.h"
#include "problems.h"

/* ---- a planted variant, which counts its runs and may lie ---- */

typedef struct planted {
    atomic_int calls;
    bool lies;
    const int32_t *lies_on; /* a pattern whose columns are these; NULL: on none */
} planted;

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)a, (void)d;
    return p->a_dtype == SAT_F32 && p->matmul.transpose == SAT_NO_TRANSPOSE;
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)p, (void)a, (void)d;
    return 1e-9;
}

static bool lying(const planted *me, const sat_pattern_view *a) {
    return me->lies ||
           (me->lies_on && memcmp(me->lies_on, a->col_idx, (size_t)a->stored_blocks * sizeof *a->col_idx) == 0);
}

static sat_status launch(const sat_launch *l) {
    planted *me = l->variant->user;
    const sat_problem *p = l->problem;
    const sat_pattern_view *a = l->pattern;
    const float *values = l->operands[0], *b = l->operands[1];
    float *c = l->operands[2];
    atomic_fetch_add(&me->calls, 1);
    for (int64_t i = 0; i < p->m; i++) {
        int64_t row = i / a->block_rows;
        for (int64_t j = 0; j < p->n; j++) {
            double sum = 0;
            for (int64_t t = a->row_ptr[row]; t < a->row_ptr[row + 1]; t++)
                for (int64_t k = 0; k < a->block_cols; k++)
                    sum += (double)values[(t * a->block_rows + i % a->block_rows) * a->block_cols + k] *
                           b[(a->col_idx[t] * a->block_cols + k) * p->b.row_stride + j * p->b.col_stride];
            float *to = &c[i * p->c.row_stride + j * p->c.col_stride];
            *to = (float)(p->alpha * sum) + (p->beta != 0 ? (float)p->beta * *to : 0);
        }
    }
    if (lying(me, a)) c[p->m / 2 * p->c.row_stride] += 1;
    return SAT_OK;
}

/* ---- scenes ---- */

enum { SIDE = 64, BLOCK = 8, GRID = SIDE / BLOCK, N = 32 };

static char folder[64];
static planted me;

static int remove_entry(const char *path, const struct stat *info, int flag, struct FTW *ftw) {
    (void)info, (void)flag, (void)ftw;
    return remove(path);
}

static int make_folder(void **state) {
    (void)state;
    me = (planted){0};
    snprintf(folder, sizeof folder, "/tmp/sat_test_verified_XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    return nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* A context on folders below the test's own ("a", or layers "b:a"), with the planted variant. */
static sat_context *open_on(const char *names, bool background) {
    char dirs[256] = "";
    sat_context *ctx = NULL;
    for (const char *n = names; *n; n++) {
        size_t length = strlen(dirs);
        if (*n == ':') snprintf(dirs + length, sizeof dirs - length, ":");
        else snprintf(dirs + length, sizeof dirs - length, "%s/%c", folder, *n);
    }
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = dirs,
                             .effort = SAT_EFFORT_CACHED,    .threads = 1,    .background = background};
    assert_ok(sat_context_create(&o, &ctx));
    sat_variant v = {
        SAT_SIZED(sat_variant), .name = "planted",    .revision = "7",  .op = SAT_MATMUL, .backend = SAT_CPU,
        .supports = supports,   .estimate = estimate, .launch = launch, .user = &me,      .about = ""};
    assert_ok(sat_variant_register(ctx, &v));
    return ctx;
}

/* Three blocks in a row. The mirrored pattern has other columns, and is the same to every statistic. */
static sat_pattern *make_pattern(sat_context *ctx, bool mirrored, int32_t col_idx[3 * GRID]) {
    int32_t row_ptr[GRID + 1], own[3 * GRID];
    int32_t *columns = col_idx ? col_idx : own;
    for (int r = 0; r <= GRID; r++) row_ptr[r] = 3 * r;
    for (int r = 0; r < GRID; r++)
        for (int i = 0; i < 3; i++) {
            int32_t c = i == 0 ? r % 2 : i == 1 ? 3 : 5;
            columns[3 * r + (mirrored ? 2 - i : i)] = mirrored ? GRID - 1 - c : c;
        }
    sat_bsr s = {SAT_SIZED(sat_bsr),    .rows = SIDE,        .cols = SIDE,
                 .block_rows = BLOCK,   .block_cols = BLOCK, .stored_blocks = 3 * GRID,
                 .index_type = SAT_I32, .row_ptr = row_ptr,  .col_idx = columns};
    sat_pattern *pattern = NULL;
    assert_ok(sat_pattern_create(ctx, &s, &pattern));
    return pattern;
}

/* Aligned as malloc gives it, so that the one-call form finds the same problem. */
static sat_problem problem(void) {
    sat_problem p = matmul_problem(SAT_F32, N);
    p.a_align = p.b_align = p.c_align = 16;
    return p;
}

static sat_plan_info info_of(const sat_plan *plan) {
    sat_plan_info info = {SAT_SIZED(sat_plan_info)};
    assert_ok(sat_plan_get_info(plan, &info));
    return info;
}

static sat_request request(sat_context *ctx, const sat_pattern *pattern) {
    sat_request q;
    sat_problem p = problem();
    assert_ok(sat_request_make(&q, ctx, pattern, &p));
    return q;
}

static sat_record record_of(const sat_request *q, const sat_variant *v, double seconds, const char *by) {
    sat_record r = {.kind = SAT_RECORD_RACED, .when = 1000, .verdict = SAT_VERDICT_OK, .seconds = seconds, .runs = 9};
    r.may_win = true;
    snprintf(r.race, sizeof r.race, "one");
    snprintf(r.variant, sizeof r.variant, "%s", v->name);
    snprintf(r.revision, sizeof r.revision, "%s", v->revision);
    snprintf(r.full_key, sizeof r.full_key, "%s", q->full_key);
    snprintf(r.checked_by, sizeof r.checked_by, "%s", by);
    if (by[0]) snprintf(r.pattern, sizeof r.pattern, "%016llx", (unsigned long long)sat_pattern_digest(q->pattern));
    return r;
}

/* As if a race had been won by the planted variant, with everybody's verdict marked by `by`. */
static void plant(sat_context *ctx, const char *by) {
    const sat_variant *fit[SAT_MAX_VARIANTS];
    sat_pattern *pattern = make_pattern(ctx, false, NULL);
    sat_request q = request(ctx, pattern);
    size_t count = sat_request_find_candidates(&q, NULL, fit);
    for (size_t i = 0; i < count; i++) {
        sat_record r = record_of(&q, fit[i], strcmp(fit[i]->name, "planted") == 0 ? 0.1 : 1, by);
        assert_ok(sat_cache_add(ctx->cache, q.key, &r, 1));
    }
    sat_pattern_free(pattern);
}

/* One more record of the planted variant: what a check of it found. */
static void plant_check(sat_context *ctx, sat_verdict verdict, const char *by) {
    sat_pattern *pattern = make_pattern(ctx, false, NULL);
    sat_request q = request(ctx, pattern);
    sat_record r = record_of(&q, sat_registry_find(&ctx->registry, "planted"), 0, by);
    r.kind = SAT_RECORD_VERIFIED, r.verdict = verdict, r.when = 2000;
    snprintf(r.race, sizeof r.race, "a check by %s", by); /* no two have the same name */
    assert_ok(sat_cache_add(ctx->cache, q.key, &r, 1));
    sat_pattern_free(pattern);
}

static const char *own_fingerprint(sat_context *ctx) { return sat_cache_fingerprint(ctx->cache); }

/* What a plan of the pattern says now, and how often the planted variant ran while it was made. */
static sat_plan_info plan_now(sat_context *ctx, bool mirrored, int *calls) {
    sat_pattern *pattern = make_pattern(ctx, mirrored, NULL);
    sat_problem p = problem();
    sat_plan *plan = NULL;
    int before = atomic_load(&me.calls);
    assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
    *calls = atomic_load(&me.calls) - before;
    sat_plan_info info = info_of(plan);
    assert_true(info.cached && !info.tuned);
    sat_plan_free(plan);
    sat_pattern_free(pattern);
    return info;
}

static bool is_planted(const sat_plan_info *info) { return strcmp(info->variant, "planted") == 0; }

/* It serves, after a check; and the next plan, in this context or another process, makes none. */
static void expect_one_check(const char *names) {
    int calls;
    sat_context *ctx = open_on(names, false);
    sat_plan_info info = plan_now(ctx, false, &calls);
    assert_true(is_planted(&info) && info.verified && info.pattern_verified);
    assert_true(calls > 0);
    info = plan_now(ctx, false, &calls);
    assert_true(is_planted(&info) && info.verified && info.pattern_verified);
    assert_int_equal(calls, 0);
    sat_context_free(ctx);
    ctx = open_on(names, false);
    info = plan_now(ctx, false, &calls);
    assert_true(is_planted(&info) && info.verified && info.pattern_verified);
    assert_int_equal(calls, 0);
    sat_context_free(ctx);
}

/* ---- whose verdicts count ---- */

static void a_record_of_its_own_is_not_checked_again(void **state) {
    (void)state;
    int calls;
    sat_context *ctx = open_on("a", false);
    plant(ctx, own_fingerprint(ctx));
    sat_context_free(ctx);
    ctx = open_on("a", false);
    sat_plan_info info = plan_now(ctx, false, &calls);
    assert_true(is_planted(&info) && info.verified && info.pattern_verified);
    assert_true(info.tuning_seconds == 0);
    assert_int_equal(calls, 0);
    sat_context_free(ctx);
}

static void a_record_that_nobody_signed_is_checked_once(void **state) {
    (void)state;
    sat_context *ctx = open_on("a", false);
    plant(ctx, "");
    sat_context_free(ctx);
    expect_one_check("a");
}

static void a_record_of_another_build_is_checked_once(void **state) {
    (void)state;
    char machine[256], fingerprint[SAT_DIGEST_SIZE];
    sat_context *ctx = open_on("a", false);
    sat_identity_machine(machine, sizeof machine);
    sat_identity_hash("another build", machine, ctx->device.identity, "", fingerprint);
    assert_string_not_equal(fingerprint, own_fingerprint(ctx));
    plant(ctx, fingerprint);
    sat_context_free(ctx);
    expect_one_check("a");
}

static void a_record_of_another_machine_is_checked_once(void **state) {
    (void)state;
    char fingerprint[SAT_DIGEST_SIZE];
    sat_context *ctx = open_on("a", false);
    sat_identity_hash(sat_build_id, "another machine", ctx->device.identity, "", fingerprint);
    assert_string_not_equal(fingerprint, own_fingerprint(ctx));
    plant(ctx, fingerprint);
    sat_context_free(ctx);
    expect_one_check("a");
}

static void builds_that_share_a_folder_leave_each_others_marks_alone(void **state) {
    (void)state;
    int calls;
    sat_context *ctx = open_on("a", false), *other = open_on("a", false);
    sat_cache_set_fingerprint(other->cache, "00000000000other");
    plant(ctx, own_fingerprint(ctx));
    sat_plan_info info = plan_now(other, false, &calls);
    assert_true(is_planted(&info) && calls > 0);
    sat_context_free(ctx);
    ctx = open_on("a", false);
    info = plan_now(ctx, false, &calls);
    assert_true(is_planted(&info) && info.verified);
    assert_int_equal(calls, 0);
    sat_context_free(ctx), sat_context_free(other);
}

static void a_lower_layers_record_is_checked_once(void **state) {
    (void)state;
    sat_context *ctx = open_on("a", false);
    plant(ctx, own_fingerprint(ctx)); /* the same build and machine: still, it is not the layer that this user writes */
    sat_context_free(ctx);
    expect_one_check("b:a");
}

static void export_to(const char *name, char file[128]) {
    sat_context *ctx = open_on(name, false);
    snprintf(file, 128, "%s/export", folder);
    assert_ok(sat_cache_export(ctx, file));
    sat_context_free(ctx);
}

static void import_from(const char *name, const char *file) {
    int64_t entries = 0;
    sat_context *ctx = open_on(name, false);
    assert_ok(sat_cache_import(ctx, file, &entries));
    assert_int_equal(entries, 1);
    sat_context_free(ctx);
}

static void an_import_is_checked_once(void **state) {
    (void)state;
    char file[128];
    sat_context *ctx = open_on("a", false);
    plant(ctx, own_fingerprint(ctx));
    sat_context_free(ctx);
    export_to("a", file);
    import_from("b", file);
    expect_one_check("b");
}

/* Written by hand, with this build's and machine's own fingerprint and a right checksum. */
static void an_import_that_bears_our_mark_is_checked_once(void **state) {
    (void)state;
    char file[128];
    sat_context *ctx = open_on("a", false);
    sat_pattern *pattern = make_pattern(ctx, false, NULL);
    sat_request q = request(ctx, pattern);
    sat_entry entry;
    sat_text text = {0};
    plant(ctx, own_fingerprint(ctx));
    assert_ok(sat_cache_load(ctx->cache, q.key, &entry));
    assert_string_equal(entry.records[0].checked_by, own_fingerprint(ctx));
    sat_entry_format(&text, ctx->device.identity, q.key, &entry);
    assert_non_null(strstr(text.data, own_fingerprint(ctx)));
    snprintf(file, sizeof file, "%s/export", folder);
    FILE *f = fopen(file, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text.data, 1, text.length, f), text.length);
    assert_int_equal(fclose(f), 0);
    sat_text_free(&text);
    sat_entry_free(&entry);
    sat_pattern_free(pattern);
    sat_context_free(ctx);
    import_from("b", file);
    expect_one_check("b");
}

static void an_export_has_no_fingerprint(void **state) {
    (void)state;
    char file[128], text[1 << 16];
    sat_context *ctx = open_on("a", false);
    plant(ctx, own_fingerprint(ctx));
    export_to("a", file);
    FILE *f = fopen(file, "rb");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    assert_non_null(strstr(text, "variant=planted"));
    assert_null(strstr(text, "by="));
    sat_context_free(ctx);
}

/* Right when it was recorded, wrong now, under the same name and revision. */
static void a_variant_that_has_begun_to_lie_is_found_after_an_import(void **state) {
    (void)state;
    char file[128];
    int calls;
    sat_context *ctx = open_on("a", false);
    plant(ctx, "");
    sat_plan_info info = plan_now(ctx, false, &calls);
    assert_true(is_planted(&info) && calls > 0);
    sat_context_free(ctx);
    export_to("a", file);
    import_from("b", file);
    me.lies = true;
    ctx = open_on("b", false);
    info = plan_now(ctx, false, &calls);
    assert_false(is_planted(&info));
    assert_true(info.verified && calls > 0);
    info = plan_now(ctx, false, &calls);
    assert_false(is_planted(&info));
    assert_int_equal(calls, 0);
    sat_context_free(ctx);
    me.lies = false; /* and wrong once is enough, for this build on this machine */
    ctx = open_on("b", false);
    info = plan_now(ctx, false, &calls);
    assert_false(is_planted(&info));
    assert_int_equal(calls, 0);
    sat_context_free(ctx);
}

static void what_another_machine_found_wrong_serves_after_a_check_here(void **state) {
    (void)state;
    sat_context *ctx = open_on("a", false);
    plant(ctx, own_fingerprint(ctx));
    plant_check(ctx, SAT_VERDICT_WRONG, "another machine.");
    int calls;
    sat_plan_info info = plan_now(ctx, false, &calls); /* this machine found it right */
    assert_true(is_planted(&info) && info.verified);
    plant_check(ctx, SAT_VERDICT_WRONG, own_fingerprint(ctx));
    info = plan_now(ctx, false, &calls);
    assert_false(is_planted(&info));
    sat_context_free(ctx);
    ctx = open_on("b", false);
    plant(ctx, "another machine.");
    plant_check(ctx, SAT_VERDICT_WRONG, "another machine.");
    sat_context_free(ctx);
    expect_one_check("b");
}

static void what_ended_in_an_error_elsewhere_is_left_alone(void **state) {
    (void)state;
    int calls;
    sat_context *ctx = open_on("a", false);
    plant(ctx, own_fingerprint(ctx));
    plant_check(ctx, SAT_VERDICT_ERROR, "another machine.");
    sat_plan_info info = plan_now(ctx, false, &calls);
    assert_false(is_planted(&info));
    assert_int_equal(calls, 0);
    sat_context_free(ctx);
}

static void of_a_race_the_winner_alone_is_verified(void **state) {
    (void)state;
    sat_context *ctx = open_on("a", false);
    sat_pattern *pattern = make_pattern(ctx, false, NULL);
    sat_request q = request(ctx, pattern);
    sat_problem p = problem();
    sat_race *race = NULL;
    sat_entry entry;
    assert_ok(sat_race_run(ctx, pattern, &p, NULL, &race));
    assert_ok(sat_cache_load(ctx->cache, q.key, &entry));
    size_t right = 0, verified = 0;
    for (size_t i = 0; i < entry.count; i++) {
        const sat_variant *v = sat_registry_find(&ctx->registry, entry.records[i].variant);
        right += entry.records[i].verdict == SAT_VERDICT_OK;
        if (!sat_choose_verified(&entry, v, q.full_key, NULL)) continue;
        assert_string_equal(v->name, sat_race_best(race)->variant);
        verified++;
    }
    assert_true(right > 1);
    assert_int_equal(verified, 1);
    sat_entry_free(&entry);
    sat_race_free(race);
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

/* ---- new patterns ---- */

static void a_new_pattern_of_a_known_problem_is_served_at_once_and_says_so(void **state) {
    (void)state;
    int calls;
    sat_context *ctx = open_on("a", false);
    sat_pattern *x = make_pattern(ctx, false, NULL), *y = make_pattern(ctx, true, NULL);
    sat_pattern *again = make_pattern(ctx, false, NULL);
    assert_string_equal(request(ctx, x).full_key, request(ctx, y).full_key);
    assert_true(sat_pattern_digest(x) != sat_pattern_digest(y));
    assert_true(sat_pattern_digest(x) == sat_pattern_digest(again));
    plant(ctx, own_fingerprint(ctx));
    sat_plan_info info = plan_now(ctx, true, &calls);
    assert_true(is_planted(&info) && info.verified && !info.pattern_verified);
    assert_int_equal(calls, 0);
    info = plan_now(ctx, false, &calls);
    assert_true(info.verified && info.pattern_verified);
    sat_pattern_free(x), sat_pattern_free(y), sat_pattern_free(again);
    sat_context_free(ctx);
}

/* Nobody races or checks in the background before this is undone. */
static void hold_the_background(sat_context *ctx) { assert_true(sat_cache_tuning_lock(ctx->cache, 10)); }

static void a_new_pattern_is_checked_in_the_background(void **state) {
    (void)state;
    int calls;
    sat_context *ctx = open_on("a", true);
    plant(ctx, own_fingerprint(ctx));
    sat_pattern *pattern = make_pattern(ctx, true, NULL);
    sat_problem p = problem();
    sat_plan *plan = NULL;
    hold_the_background(ctx);
    assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
    sat_plan_info info = info_of(plan);
    assert_true(is_planted(&info) && info.verified && !info.pattern_verified);
    assert_int_equal(atomic_load(&me.calls), 0);
    sat_cache_tuning_unlock(ctx->cache);
    assert_ok(sat_context_wait(ctx));
    assert_true(atomic_load(&me.calls) > 0);
    info = info_of(plan); /* tells what is so now */
    assert_true(is_planted(&info) && info.verified && info.pattern_verified);
    calls = atomic_load(&me.calls);
    int now;
    info = plan_now(ctx, true, &now);
    assert_true(is_planted(&info) && info.pattern_verified);
    assert_ok(sat_context_wait(ctx));
    assert_int_equal(atomic_load(&me.calls), calls); /* once is enough */
    sat_plan_free(plan);
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

static void a_variant_that_lies_on_a_new_pattern_is_found_in_the_background(void **state) {
    (void)state;
    int32_t columns[3 * GRID];
    int calls;
    uint64_t random = 3;
    sat_context *ctx = open_on("a", true);
    plant(ctx, own_fingerprint(ctx));
    sat_pattern *pattern = make_pattern(ctx, true, columns);
    me.lies_on = columns;
    sat_pattern_view view = view_of(pattern);
    float *values = random_floats(&random, 3 * GRID * BLOCK * BLOCK), *b = random_floats(&random, SIDE * N);
    float *c = random_floats(&random, SIDE * N);
    double *want = dense_product(&view, values, b, N);
    sat_problem p = problem();
    sat_plan *plan = NULL;
    hold_the_background(ctx);
    assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
    assert_ok(sat_bsr_matmul(ctx, pattern, &p, values, b, c, NULL, NULL));
    assert_true(atomic_load(&me.calls) == 1); /* it serves, and its plan waits in the pool */
    sat_cache_tuning_unlock(ctx->cache);
    assert_ok(sat_context_wait(ctx));
    sat_plan_info info = info_of(plan);
    assert_true(is_planted(&info) && !info.verified && !info.pattern_verified);
    memset(c, 0xff, SIDE * N * sizeof *c);
    assert_ok(sat_bsr_matmul(ctx, pattern, &p, values, b, c, NULL, NULL));
    assert_close(c, want, SIDE * N, SIDE);
    info = plan_now(ctx, true, &calls);
    assert_false(is_planted(&info));
    assert_int_equal(calls, 0);
    info = plan_now(ctx, false, &calls); /* nor on the pattern where it was right */
    assert_false(is_planted(&info));
    sat_plan_free(plan);
    sat_pattern_free(pattern);
    sat_context_free(ctx);
    free(values), free(b), free(c), free(want);
}

/* ---- the fingerprint ---- */

static void a_mark_is_of_build_machine_and_device(void **state) {
    (void)state;
    char base[SAT_DIGEST_SIZE], other[SAT_DIGEST_SIZE], machine[256];
    static const char *const parts[][4] = {{"B", "machine", "device", "unique"},
                                           {"build", "M", "device", "unique"},
                                           {"build", "machine", "D", "unique"},
                                           {"build", "machine", "device", "U"},
                                           {"buildm", "achine", "device", "unique"}};
    sat_identity_hash("build", "machine", "device", "unique", base);
    assert_int_equal(strspn(base, "0123456789abcdef"), 16);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        sat_identity_hash(parts[i][0], parts[i][1], parts[i][2], parts[i][3], other);
        assert_string_not_equal(base, other);
    }
    sat_identity_machine(machine, sizeof machine);
    assert_true(machine[0] != 0);
    assert_int_equal(strspn(sat_build_id, "0123456789abcdef"), 64);
    sat_context *x = open_on("a", false), *y = open_on("b", false);
    assert_string_equal(own_fingerprint(x), own_fingerprint(y));
    assert_int_equal(strlen(own_fingerprint(x)), 16);
    assert_null(strstr(machine, own_fingerprint(x)));
    sat_context_free(x), sat_context_free(y);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_record_of_its_own_is_not_checked_again),
        TEST(a_record_that_nobody_signed_is_checked_once),
        TEST(a_record_of_another_build_is_checked_once),
        TEST(a_record_of_another_machine_is_checked_once),
        TEST(builds_that_share_a_folder_leave_each_others_marks_alone),
        TEST(a_lower_layers_record_is_checked_once),
        TEST(an_import_is_checked_once),
        TEST(an_import_that_bears_our_mark_is_checked_once),
        TEST(an_export_has_no_fingerprint),
        TEST(a_variant_that_has_begun_to_lie_is_found_after_an_import),
        TEST(what_another_machine_found_wrong_serves_after_a_check_here),
        TEST(what_ended_in_an_error_elsewhere_is_left_alone),
        TEST(of_a_race_the_winner_alone_is_verified),
        TEST(a_new_pattern_of_a_known_problem_is_served_at_once_and_says_so),
        TEST(a_new_pattern_is_checked_in_the_background),
        TEST(a_variant_that_lies_on_a_new_pattern_is_found_in_the_background),
        TEST(a_mark_is_of_build_machine_and_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
