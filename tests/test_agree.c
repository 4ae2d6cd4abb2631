/* What one rank makes of what others say: it is believed in nothing but the name of a variant, which is checked here.
 * The store of these tests says what they want. */
#define _GNU_SOURCE
#include "support.h"

#include <math.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/select.h"
#include "folder.h"
#include "problems.h"

enum { SIDE = 64, BLOCK = 8, N = 24, MOST = 512 };

/* ---- a store ---- */

typedef struct entry {
    char key[160], value[SAT_AGREED_SIZE];
} entry;

typedef struct store {
    entry list[MOST];
    int count;
    const char *says; /* to every question about a problem; NULL: what was put */
    bool everybody;   /* every rank has joined */
    int claims, waits_for_claims, calls;
    double longest_wait, last_wait; /* for a claim */
} store;

static store shared;

static bool about_a_problem(const char *key) { return !strstr(key, "/rank/") && !strstr(key, "/claim"); }

static entry *look_up(store *s, const char *key) {
    for (int i = 0; i < s->count; i++)
        if (strcmp(s->list[i].key, key) == 0) return &s->list[i];
    return NULL;
}

static sat_status say(const char *text, char *value) {
    memset(value, 'x', SAT_AGREED_SIZE); /* no zero but the one that ends a text, if there is room for it */
    for (size_t i = 0; i < SAT_AGREED_SIZE && (i == 0 || text[i - 1]); i++) value[i] = text[i];
    return SAT_OK;
}

static sat_status store_get(void *user, const char *key, double seconds, char *value) {
    store *s = user;
    s->calls++;
    if (strstr(key, "/claim") && seconds > 0) {
        s->waits_for_claims++, s->last_wait = seconds;
        if (seconds > s->longest_wait) s->longest_wait = seconds;
    }
    if (s->everybody && strstr(key, "/rank/")) return say("here", value);
    if (s->says && about_a_problem(key)) return say(s->says, value);
    const entry *e = look_up(s, key);
    return e ? say(e->value, value) : SAT_NOT_FOUND;
}

static sat_status store_put(void *user, const char *key, const char *desired, char *value) {
    store *s = user;
    s->calls++, s->claims += strstr(key, "/claim") != NULL;
    entry *e = look_up(s, key);
    if (!e) {
        assert_true(s->count < MOST && strlen(key) < sizeof e->key);
        e = &s->list[s->count++];
        snprintf(e->key, sizeof e->key, "%s", key);
        snprintf(e->value, sizeof e->value, "%s", desired);
    }
    return say(e->value, value);
}

/* ---- a planted variant ---- */

typedef struct planted {
    int calls;
    bool lies, fails;
} planted;

static planted me;

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)a, (void)d;
    return p->a_dtype == SAT_F32 && p->matmul.transpose == SAT_NO_TRANSPOSE;
}

static double long_time(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    return (void)v, (void)p, (void)a, (void)d, 10;
}

static sat_status launch(const sat_launch *l) {
    me.calls++;
    if (me.fails) return sat_fail(SAT_LIBRARY_ERROR, "planted");
    multiply_plainly(l);
    if (me.lies) ((float *)l->operands[2])[0] += 1;
    return SAT_OK;
}

/* ---- scenes ---- */

static sat_context *open_with(const char *cache, uint32_t flags) {
    sat_context *ctx = NULL;
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = cache, .threads = 1};
    o.effort = SAT_EFFORT_QUICK, o.budget_seconds = 1e-3;
    assert_ok(sat_context_create(&o, &ctx));
    sat_variant v = {SAT_SIZED(sat_variant), .name = "planted", .revision = "1", .op = SAT_MATMUL, .flags = flags};
    v.backend = SAT_CPU, v.supports = supports, v.estimate = long_time, v.launch = launch;
    assert_ok(sat_variant_register(ctx, &v));
    return ctx;
}

static double most_wait = 0.01;

static void join(sat_context *ctx, int rank, int world, const char *says) {
    sat_agreement a = {SAT_SIZED(sat_agreement), .rank = rank, .world = world, .wait_seconds = most_wait};
    a.get = store_get, a.put = store_put, a.user = &shared;
    shared.says = says;
    assert_ok(sat_context_agree(ctx, &a));
}

static sat_context *open_rank(const char *says) {
    memset(&shared, 0, sizeof shared);
    me = (planted){0};
    sat_context *ctx = open_with("", 0);
    join(ctx, 0, 2, says);
    return ctx;
}

static sat_pattern *make_pattern(sat_context *ctx) {
    uint64_t random = 3;
    return random_pattern(ctx, &random, SIDE, SIDE, BLOCK, BLOCK, 0.4, false);
}

/* A plan, and that what it computes is right. */
static sat_plan_info plan_now(sat_context *ctx, int64_t n) {
    uint64_t random = 4;
    sat_pattern *pattern = make_pattern(ctx);
    sat_pattern_view view = view_of(pattern);
    float *values = random_floats(&random, view.stored_blocks * BLOCK * BLOCK), *b = random_floats(&random, SIDE * n);
    float *c = calloc((size_t)(SIDE * n), sizeof *c);
    double *want = dense_product(&view, values, b, n);
    sat_problem p = matmul_problem(SAT_F32, n);
    sat_plan *plan = NULL;
    sat_plan_info info = {SAT_SIZED(sat_plan_info)};
    assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
    assert_ok(sat_run(plan, (const void *[]){values, b}, 2, (void *[]){c}, 1, NULL));
    assert_ok(sat_plan_get_info(plan, &info));
    assert_close(c, want, SIDE * n, SIDE);
    sat_plan_free(plan);
    sat_pattern_free(pattern);
    free(values), free(b), free(c), free(want);
    return info;
}

static bool is_planted(const sat_plan_info *info) { return strcmp(info->variant, "planted") == 0; }

static sat_request request(sat_context *ctx, const sat_pattern *pattern) {
    sat_request q;
    sat_problem p = matmul_problem(SAT_F32, N);
    assert_ok(sat_request_make(&q, ctx, pattern, &p));
    return q;
}

/* A record in the context's cache, as a check by this build on this machine leaves it. */
static void note(sat_context *ctx, sat_verdict verdict) {
    sat_pattern *pattern = make_pattern(ctx);
    sat_request q = request(ctx, pattern);
    sat_record r = {.kind = SAT_RECORD_VERIFIED, .verdict = verdict, .when = (int64_t)time(NULL), .race = "noted"};
    snprintf(r.variant, sizeof r.variant, "planted");
    snprintf(r.revision, sizeof r.revision, "1");
    snprintf(r.full_key, sizeof r.full_key, "%s", q.full_key);
    memcpy(r.checked_by, sat_cache_fingerprint(ctx->cache), sizeof r.checked_by);
    assert_ok(sat_cache_add(ctx->cache, q.key, &r, 1));
    sat_pattern_free(pattern);
}

/* ---- what is agreed on ---- */

static void what_others_chose_serves_once_it_is_checked_here(void **state) {
    (void)state;
    sat_context *ctx = open_rank("planted");
    sat_plan_info info = plan_now(ctx, N);
    assert_true(is_planted(&info) && info.verified);
    int calls = me.calls;
    assert_true(calls > 5); /* a check and a run */
    info = plan_now(ctx, N);
    assert_true(is_planted(&info) && info.verified);
    assert_int_equal(me.calls, calls + 1);
    sat_context_free(ctx);
}

static void what_is_wrong_here_does_not_serve_whatever_was_agreed_on(void **state) {
    (void)state;
    sat_context *ctx = open_rank("planted,1,1e-9");
    me.lies = true;
    sat_plan_info info = plan_now(ctx, N);
    assert_false(is_planted(&info));
    assert_true(me.calls > 0);
    int calls = me.calls;
    info = plan_now(ctx, N); /* and is not tried again */
    assert_false(is_planted(&info));
    assert_int_equal(me.calls, calls);
    sat_context_free(ctx);
}

/* It may break more than itself, so it is not even tried. */
static void what_ended_in_an_error_here_is_left_alone(void **state) {
    (void)state;
    sat_context *ctx = open_rank("planted");
    note(ctx, SAT_VERDICT_ERROR);
    sat_plan_info info = plan_now(ctx, N);
    assert_false(is_planted(&info));
    assert_int_equal(me.calls, 0);
    sat_context_free(ctx);
    ctx = open_rank("planted"); /* nor where it was found right before */
    note(ctx, SAT_VERDICT_OK), note(ctx, SAT_VERDICT_ERROR);
    info = plan_now(ctx, N);
    assert_false(is_planted(&info));
    assert_int_equal(me.calls, 0);
    sat_context_free(ctx);
}

/* Flags come from the registry: neither serves where the problem does not allow it. */
static void what_is_not_allowed_here_does_not_serve(void **state) {
    static const uint32_t flags[] = {SAT_V_DENSE, SAT_V_NONDETERMINISTIC};
    (void)state;
    for (int i = 0; i < 2; i++) {
        memset(&shared, 0, sizeof shared);
        me = (planted){0};
        sat_context *ctx = open_with("", flags[i]);
        join(ctx, 0, 2, "planted");
        sat_plan_info info = plan_now(ctx, N);
        assert_false(is_planted(&info));
        assert_int_equal(me.calls, 0);
        sat_context_free(ctx);
    }
}

static void nonsense_is_nobodys_answer(void **state) {
    static const char *const texts[] = {
        "",
        ",",
        ",1,1",
        "no such variant",
        "planted\n",
        "plan\x80ted",
        "planted ,1,1",
        "planted,1,1e-6\n",
        "cpu_sampled_any_any_c_reference",
        "planted0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789",
    };
    char filled[SAT_AGREED_SIZE + 1];
    (void)state;
    memset(filled, 'y', SAT_AGREED_SIZE), filled[SAT_AGREED_SIZE] = 0; /* nothing ends it */
    for (size_t i = 0; i <= sizeof texts / sizeof *texts; i++) {
        sat_context *ctx = open_rank(i < sizeof texts / sizeof *texts ? texts[i] : filled);
        sat_plan_info info = plan_now(ctx, N);
        if (is_planted(&info)) fail_msg("'%s' was taken for an answer", shared.says);
        assert_non_null(strstr(info.variant, "matmul"));
        sat_context_free(ctx);
    }
}

/* A number that is none, or none that can be, says nothing; what is remembered is a time. */
static void times_and_threads_that_cannot_be_are_ignored(void **state) {
    static const char *const texts[] = {
        "planted,1,inf", "planted,1,nan", "planted,1,-1", "planted,-5,1e-6",         "planted,1,1e999", "planted,1",
        "planted,,",     "planted,1,0",   "planted,x,1",  "planted,2000000000,1e-6", "planted,1,1e-320"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        sat_context *ctx = open_rank(texts[i]);
        sat_plan_info info = plan_now(ctx, N);
        assert_true(is_planted(&info) && info.verified);
        sat_pattern *pattern = make_pattern(ctx);
        sat_request q = request(ctx, pattern);
        sat_entry e;
        assert_ok(sat_cache_find(ctx->cache, q.key, false, &e));
        for (size_t k = 0; k < e.count; k++) {
            const sat_record *r = &e.records[k];
            bool raced = r->kind == SAT_RECORD_RACED && strcmp(r->variant, "planted") == 0;
            if (raced && !(isfinite(r->seconds) && r->seconds >= 1e-9))
                fail_msg("'%s' is remembered as %g s", texts[i], r->seconds);
        }
        sat_entry_free(&e);
        sat_pattern_free(pattern);
        sat_context_free(ctx);
    }
}

/* Later jobs find it in this rank's own cache. */
static void another_ranks_race_is_remembered(void **state) {
    (void)state;
    int calls = 0;
    for (int job = 0; job < 2; job++) {
        memset(&shared, 0, sizeof shared);
        me = (planted){0};
        sat_context *ctx = open_with(*state, 0);
        join(ctx, 0, 2, job == 0 ? "planted,1,1e-7" : NULL);
        sat_plan_info info = plan_now(ctx, N);
        assert_true(is_planted(&info) && info.verified && !info.tuned);
        if (job == 0) calls = me.calls;
        else assert_int_equal(me.calls, 1);
        sat_context_free(ctx);
    }
    assert_true(calls > 1);
}

static void an_answer_never_changes(void **state) {
    (void)state;
    sat_context *ctx = open_rank("planted");
    sat_plan_info info = plan_now(ctx, N);
    assert_true(is_planted(&info));
    shared.says = "cpu_matmul_any_any_c_portable";
    info = plan_now(ctx, N);
    assert_true(is_planted(&info));
    sat_context_free(ctx);
}

/* ---- plans that were made before ---- */

static void calls_without_a_plan_follow_what_is_agreed_on(void **state) {
    (void)state;
    memset(&shared, 0, sizeof shared);
    me = (planted){0};
    sat_context *ctx = open_with("", 0);
    uint64_t random = 4;
    sat_pattern *pattern = make_pattern(ctx);
    float *values = random_floats(&random, view_of(pattern).stored_blocks * BLOCK * BLOCK);
    float *b = random_floats(&random, SIDE * N), *c = calloc((size_t)(SIDE * N), sizeof *c);
    sat_problem p = matmul_problem(SAT_F32, N);
    assert_ok(sat_bsr_matmul(ctx, pattern, &p, values, b, c, NULL, NULL));
    assert_int_equal(me.calls, 0); /* estimated as far too slow */
    join(ctx, 0, 2, "planted");
    assert_ok(sat_bsr_matmul(ctx, pattern, &p, values, b, c, NULL, NULL));
    int calls = me.calls;
    assert_true(calls > 0);
    assert_ok(sat_bsr_matmul(ctx, pattern, &p, values, b, c, NULL, NULL));
    assert_int_equal(me.calls, calls + 1);
    sat_pattern_free(pattern);
    free(values), free(b), free(c);
    sat_context_free(ctx);
}

/* ---- who tunes ---- */

/* The name of the space that a context joins: what its keys have in common. */
static void space_of(sat_context *ctx, char space[17]) {
    memset(&shared, 0, sizeof shared);
    join(ctx, 0, 2, NULL);
    assert_true(shared.count > 0);
    const char *at = strchr(shared.list[0].key, '/');
    assert_non_null(at);
    snprintf(space, 17, "%.16s", at + 1);
    sat_context_free(ctx);
}

static void ranks_with_other_variants_share_nothing(void **state) {
    (void)state;
    char one[17], same[17], other[17];
    space_of(open_with("", 0), one);
    space_of(open_with("", 0), same);
    sat_context *ctx = open_with("", 0);
    sat_variant v = {SAT_SIZED(sat_variant), .name = "one more", .revision = "1", .op = SAT_MATMUL, .backend = SAT_CPU};
    v.supports = supports, v.estimate = long_time, v.launch = launch;
    assert_ok(sat_variant_register(ctx, &v));
    space_of(ctx, other);
    assert_string_equal(one, same);
    assert_string_not_equal(one, other);
}

enum { KEYS = 8 }; /* so few columns have keys of their own */

/* What the list of claims says: so many of rank 1's, and of rank 0's. */
static void list_claims(int theirs, int mine) {
    char key[160], value[SAT_AGREED_SIZE];
    const char *space = shared.list[0].key;
    for (int i = 0; i < theirs + mine; i++) {
        snprintf(key, sizeof key, "%.*s/taken/%d", (int)(strstr(space, "/rank/") - space), space, i);
        assert_ok(store_put(&shared, key, i < theirs ? "1" : "0", value));
    }
}

/* Two ranks. A key is that one's which has claimed fewer: the other leaves it alone for a moment. Who has not joined is
 * waited for by nobody. */
static void a_key_is_left_to_the_rank_that_has_claimed_the_fewest(void **state) {
    static const struct {
        bool joined;
        int theirs, mine, least, most;
    } cases[] = {
        {false, 0, 0, 0, 0}, {true, 0, 0, KEYS - 1, KEYS}, {true, 0, 2, KEYS, KEYS}, {true, KEYS + 1, 0, 0, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memset(&shared, 0, sizeof shared);
        me = (planted){0};
        sat_context *other = open_with("", 0), *ctx = open_with("", 0);
        if (cases[i].joined) join(other, 1, 2, NULL);
        join(ctx, 0, 2, NULL);
        list_claims(cases[i].theirs, cases[i].mine);
        for (int n = 0; n < KEYS; n++) (void)plan_now(ctx, 1 + n);
        assert_int_equal(shared.claims, KEYS);
        assert_in_range(shared.waits_for_claims, cases[i].least, cases[i].most);
        sat_context_free(ctx), sat_context_free(other);
    }
}

/* The more it has claimed the longer it waits; but where nobody else claims anything, ever less. */
static void a_rank_that_is_ahead_waits_longer_and_not_for_the_idle(void **state) {
    (void)state;
    most_wait = 30;
    for (int ahead = 1; ahead <= 9; ahead += 4) {
        memset(&shared, 0, sizeof shared);
        me = (planted){0};
        sat_context *other = open_with("", 0), *ctx = open_with("", 0);
        join(other, 1, 2, NULL), join(ctx, 0, 2, NULL);
        list_claims(0, ahead);
        for (int n = 0; n < KEYS; n++) (void)plan_now(ctx, 1 + n);
        double expected = ahead == 1 ? 0.4 : 1;
        assert_true(shared.longest_wait > 0.99 * expected && shared.longest_wait < 1.01 * expected);
        assert_true(shared.last_wait < 0.05 * shared.longest_wait);
        sat_context_free(ctx), sat_context_free(other);
    }
    most_wait = 0.01;
}

/* A list that says nonsense, and one that has no end, stop nobody. */
static sat_status endless_get(void *user, const char *key, double seconds, char *value) {
    if (strstr(key, "/taken/")) return ((store *)user)->calls++, say("1", value);
    return store_get(user, key, seconds, value);
}

static void a_list_of_claims_is_not_believed(void **state) {
    static const char *const texts[] = {"-1", "2", "99999999999999999999", "1x", "planted", " "};
    char key[160], value[SAT_AGREED_SIZE];
    (void)state;
    for (size_t i = 0; i <= sizeof texts / sizeof *texts; i++) {
        memset(&shared, 0, sizeof shared);
        me = (planted){0};
        sat_context *ctx = open_with("", 0);
        bool endless = i == sizeof texts / sizeof *texts;
        sat_agreement a = {SAT_SIZED(sat_agreement), .rank = 0, .world = 2, .wait_seconds = 0.01};
        a.get = endless ? endless_get : store_get, a.put = store_put, a.user = &shared;
        assert_ok(sat_context_agree(ctx, &a));
        const char *space = shared.list[0].key;
        snprintf(key, sizeof key, "%.*s/taken/0", (int)(strstr(space, "/rank/") - space), space);
        if (!endless) assert_ok(store_put(&shared, key, texts[i], value));
        assert_true(plan_now(ctx, N).tuned);
        assert_true(shared.calls < 10000);
        sat_context_free(ctx);
    }
}

/* How many calls of the store a rank makes for a key, beside those in which it waits: no more in a large world. */
static void a_large_world_takes_no_more_calls_a_key(void **state) {
    (void)state;
    for (int world = 8; world <= 1 << 14; world <<= 11) {
        memset(&shared, 0, sizeof shared);
        me = (planted){0};
        shared.everybody = true;
        sat_context *ctx = open_with("", 0);
        join(ctx, 3, world, NULL);
        int most = 0;
        for (int n = 0; n < KEYS; n++) {
            int before = shared.calls;
            assert_true(plan_now(ctx, 1 + n).tuned);
            most = shared.calls - before > most ? shared.calls - before : most;
        }
        print_message("world %d: at most %d calls a key\n", world, most);
        assert_true(most <= 11); /* find; list; 4 ranks; the claim and the list once more; claim, list, answer */
        sat_context_free(ctx);
    }
}

/* ---- a folder ---- */

static sat_status folder_get(const sat_agreement *a, char *value) { return a->get(a->user, "a/key", 0, value); }

/* What stands where an answer should: nothing of it is believed, nobody waits for it, and nothing is written beyond the
 * value. */
static void a_folder_in_which_odd_things_stand_says_nothing(void **state) {
    char path[4200], outside[4200], value[SAT_AGREED_SIZE + 1], text[4 * SAT_AGREED_SIZE];
    sat_agreement a = {SAT_SIZED(sat_agreement)};
    assert_ok(sat_agreement_folder(in(path, *state, "store"), 0, 2, &a));
    in(path, *state, "store/a.key"), in(outside, *state, "outside");
    memset(text, 'z', sizeof text);
    for (int i = 0; i < 8; i++) {
        sat_status expected = SAT_IO;
        switch (i) {
        case 0: assert_int_equal(mkfifo(path, 0600), 0); break;
        case 1: assert_int_equal(mkdir(path, 0700), 0); break;
        case 2: assert_int_equal(symlink("/dev/zero", path), 0); break;
        case 3: assert_int_equal(symlink(path, path), 0); break;
        case 4: write_file(path, text, 0), expected = SAT_BAD_FORMAT; break;
        case 5: write_file(path, text, SAT_AGREED_SIZE), expected = SAT_BAD_FORMAT; break;
        case 6: write_file(path, text, sizeof text), expected = SAT_BAD_FORMAT; break;
        default: /* a link to a file that others may write */
            write_file(outside, "planted", 7);
            assert_int_equal(chmod(outside, 0666), 0);
            assert_int_equal(symlink(outside, path), 0);
        }
        memset(value, '#', sizeof value);
        sat_status status = folder_get(&a, value);
        if (status != expected) fail_msg("case %d: %s", i, sat_status_name(status));
        status = a.put(a.user, "a/key", "mine", value);
        if (status != expected) fail_msg("case %d, put: %s", i, sat_status_name(status));
        assert_int_equal(value[SAT_AGREED_SIZE], '#');
        remove(path);
    }
    write_file(path, "planted", 7); /* and a file of this kind is read */
    assert_ok(folder_get(&a, value));
    assert_string_equal(value, "planted");
    assert_ok(a.put(a.user, "a/key", "mine", value));
    assert_string_equal(value, "planted");
    assert_int_equal(chmod(path, 0646), 0);
    assert_true(folder_get(&a, value) == SAT_IO);
    if (getuid() == 0) {
        assert_int_equal(chmod(path, 0644), 0);
        assert_int_equal(chown(path, 65534, 65534), 0);
        assert_true(folder_get(&a, value) == SAT_IO);
    }
    sat_agreement_folder_free(&a);
}

static void what_is_no_folder_or_may_be_written_by_others_is_refused(void **state) {
    char path[4200];
    sat_agreement a = {SAT_SIZED(sat_agreement)};
    write_file(in(path, *state, "file"), "x", 1);
    assert_fails(sat_agreement_folder(path, 0, 2, &a), SAT_IO, "which is no folder");
    in(path, *state, "store");
    assert_int_equal(mkdir(path, 0755), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(chmod(i ? path : (const char *)*state, 0777), 0);
        assert_fails(sat_agreement_folder(path, 0, 2, &a), SAT_IO, "may be written by others");
        assert_int_equal(chmod(i ? path : (const char *)*state, 0755), 0);
    }
    assert_int_equal(chmod(path, 01777), 0);
    assert_fails(sat_agreement_folder(path, 0, 2, &a), SAT_IO, "everybody may write");
    assert_int_equal(chmod(path, 0755), 0);
    if (getuid() == 0) {
        assert_int_equal(chown(path, 65534, 65534), 0);
        assert_fails(sat_agreement_folder(path, 0, 2, &a), SAT_IO, "belongs to user 65534");
        assert_int_equal(chown(path, 0, 0), 0);
    }
    assert_ok(sat_agreement_folder(path, 0, 2, &a));
    sat_agreement_folder_free(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_others_chose_serves_once_it_is_checked_here),
        cmocka_unit_test(what_is_wrong_here_does_not_serve_whatever_was_agreed_on),
        cmocka_unit_test(what_ended_in_an_error_here_is_left_alone),
        cmocka_unit_test(what_is_not_allowed_here_does_not_serve),
        cmocka_unit_test(nonsense_is_nobodys_answer),
        cmocka_unit_test(times_and_threads_that_cannot_be_are_ignored),
        TEST_IN_FOLDER(another_ranks_race_is_remembered),
        cmocka_unit_test(an_answer_never_changes),
        cmocka_unit_test(calls_without_a_plan_follow_what_is_agreed_on),
        cmocka_unit_test(ranks_with_other_variants_share_nothing),
        cmocka_unit_test(a_key_is_left_to_the_rank_that_has_claimed_the_fewest),
        cmocka_unit_test(a_rank_that_is_ahead_waits_longer_and_not_for_the_idle),
        cmocka_unit_test(a_list_of_claims_is_not_believed),
        cmocka_unit_test(a_large_world_takes_no_more_calls_a_key),
        TEST_IN_FOLDER(a_folder_in_which_odd_things_stand_says_nothing),
        TEST_IN_FOLDER(what_is_no_folder_or_may_be_written_by_others_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
