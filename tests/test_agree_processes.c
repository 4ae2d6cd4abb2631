/* Ranks that agree: eight processes with caches of their own, in any order, some late, some killed, some of another
 * kind. Nobody hangs, nobody runs anything but what was agreed on, and all results are right. */
#define _GNU_SOURCE
#include "support.h"

#include <dirent.h>
#include <ftw.h>
#include <math.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "folder.h"
#include "problems.h"
#include "sanitized.h"

enum { WORLD = 8, KEYS = 6, MOST_KEYS = 48 };

/* What a rank writes down, in memory that all of them share. */
typedef struct report {
    char variant[MOST_KEYS][128];
    bool tuned[MOST_KEYS], verified[MOST_KEYS];
    bool done;
} report;

typedef struct job {
    const char *folder;
    int world, keys, round;
    double wait_seconds;
    bool two_kinds;   /* odd ranks have one variant more */
    bool barrier;     /* nobody begins before all have joined */
    bool in_step;     /* all ask for the keys in one order, as the ranks of a training job do */
    int late;         /* ms that a rank may be late */
    int victim;       /* a rank that is killed; -1: none */
    int victim_after; /* once it has made so many plans; < 0: whenever it may be */
    enum { FOLDER, SLOW, DEAF } store;
    report *ranks;
    int *joined;
} job;

/* ---- stores ---- */

static sat_agreement inner; /* of this process */
static int calls;

static void nap(double seconds) {
    nanosleep(
        &(struct timespec){.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)},
        NULL);
}

static sat_status slow_get(void *user, const char *key, double seconds, char *value) {
    (void)user, calls++;
    nap(0.004);
    return inner.get(inner.user, key, seconds, value);
}

static sat_status slow_put(void *user, const char *key, const char *desired, char *value) {
    (void)user, calls++;
    nap(0.004);
    return inner.put(inner.user, key, desired, value);
}

static sat_status deaf_get(void *user, const char *key, double seconds, char *value) {
    (void)user, (void)key, (void)value;
    nap(seconds);
    return SAT_NOT_FOUND;
}

static sat_status deaf_put(void *user, const char *key, const char *desired, char *value) {
    (void)user, (void)key, (void)desired, (void)value;
    return sat_fail(SAT_IO, "nobody listens");
}

/* ---- one rank ---- */

static bool never(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    return (void)v, (void)p, (void)a, (void)d, false;
}

static double no_time(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    return (void)v, (void)p, (void)a, (void)d, 1;
}

static sat_status no_launch(const sat_launch *l) { return (void)l, SAT_INTERNAL; }

static sat_context *open_rank(const job *j, int rank) {
    char cache[300];
    sat_context *ctx = NULL;
    snprintf(cache, sizeof cache, "%s/cache%d", j->folder, rank);
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cpu",        .cache_dir = cache, .threads = 1,
                             .effort = SAT_EFFORT_QUICK,     .budget_seconds = 0.001};
    if (sat_context_create(&o, &ctx) != SAT_OK) _exit(10);
    if (j->two_kinds && rank % 2) {
        sat_variant v = {SAT_SIZED(sat_variant), .name = "other_kind", .revision = "1", .op = SAT_MATMUL};
        v.backend = SAT_CPU, v.supports = never, v.estimate = no_time, v.launch = no_launch;
        if (sat_variant_register(ctx, &v) != SAT_OK) _exit(11);
    }
    char store[300];
    snprintf(store, sizeof store, "%s/store%d", j->folder, j->round);
    inner.size = sizeof inner;
    if (sat_agreement_folder(store, rank, j->world, &inner) != SAT_OK) _exit(12);
    sat_agreement a = inner;
    a.wait_seconds = j->wait_seconds;
    if (j->store == SLOW) a.get = slow_get, a.put = slow_put;
    if (j->store == DEAF) a.get = deaf_get, a.put = deaf_put;
    if (sat_context_agree(ctx, &a) != SAT_OK) _exit(13);
    return ctx;
}

/* Problem i has a key of its own: block shapes are never bucketed. */
static void run_key(sat_context *ctx, int i, report *to) {
    uint64_t random = (uint64_t)i + 1;
    int64_t br = 2 + i % 8, bc = 1 + i / 8, rows = 6 * br, cols = 6 * bc, n = 5;
    sat_pattern *pattern = random_pattern(ctx, &random, rows, cols, br, bc, 0.5, false);
    sat_pattern_view view = view_of(pattern);
    float *values = random_floats(&random, view.stored_blocks * br * bc), *b = random_floats(&random, cols * n);
    float *c = malloc((size_t)(rows * n) * sizeof *c);
    double *want = dense_product(&view, values, b, n);
    sat_problem p = matmul_problem(SAT_F32, n);
    sat_plan *plan = NULL;
    sat_plan_info info = {SAT_SIZED(sat_plan_info)};
    if (sat_plan_create(ctx, pattern, &p, &plan) != SAT_OK) _exit(20);
    if (sat_run(plan, (const void *[]){values, b}, 2, (void *[]){c}, 1, NULL) != SAT_OK) _exit(21);
    if (sat_plan_get_info(plan, &info) != SAT_OK) _exit(22);
    for (int64_t e = 0; e < rows * n; e++)
        if (!(c[e] - want[e] < 1e-4 && c[e] - want[e] > -1e-4)) _exit(23);
    snprintf(to->variant[i], sizeof to->variant[i], "%s", info.variant);
    to->tuned[i] = info.tuned, to->verified[i] = info.verified;
    sat_plan_free(plan);
    sat_pattern_free(pattern);
    free(values), free(b), free(c), free(want);
}

static void be_rank(const job *j, int rank) {
    uint64_t random = (uint64_t)(j->round * 1000 + rank);
    int order[MOST_KEYS];
    if (j->late) nap(1e-3 * (double)random_below(&random, j->late));
    sat_context *ctx = open_rank(j, rank);
    __atomic_add_fetch(j->joined, 1, __ATOMIC_SEQ_CST);
    while (j->barrier && __atomic_load_n(j->joined, __ATOMIC_SEQ_CST) < j->world) nap(1e-3);
    for (int i = 0; i < j->keys; i++) order[i] = i;
    for (int i = j->in_step ? 0 : j->keys - 1; i > 0; i--) {
        int other = (int)random_below(&random, i + 1), keep = order[i];
        order[i] = order[other], order[other] = keep;
    }
    for (int i = 0; i < j->keys; i++) {
        if (rank == j->victim && i == j->victim_after) kill(getpid(), SIGKILL);
        run_key(ctx, order[i], &j->ranks[rank]);
    }
    j->ranks[rank].done = true;
    sat_context_free(ctx);
    sat_agreement_folder_free(&inner);
    _exit(0);
}

/* ---- a job ---- */

static void run_job(job *j) {
    pid_t children[WORLD];
    memset(j->ranks, 0, (size_t)j->world * sizeof *j->ranks);
    *j->joined = 0;
    for (int rank = 0; rank < j->world; rank++) {
        children[rank] = fork();
        assert_true(children[rank] >= 0);
        if (children[rank] == 0) be_rank(j, rank);
    }
    if (j->victim >= 0 && j->victim_after < 0) {
        uint64_t random = (uint64_t)j->round;
        nap(1e-3 * (double)random_below(&random, 300));
        kill(children[j->victim], SIGKILL);
    }
    for (int rank = 0; rank < j->world; rank++) {
        int status;
        assert_int_equal(waitpid(children[rank], &status, 0), children[rank]);
        bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && rank == j->victim;
        if (!killed && !(WIFEXITED(status) && WEXITSTATUS(status) == 0))
            fail_msg("round %d: rank %d ended with %d", j->round, rank, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    }
}

/* Ranks of one kind ran the same variant for every key. */
static void expect_equal(const job *j) {
    for (int rank = 0; rank < j->world; rank++) {
        const report *mine = &j->ranks[rank], *first = NULL;
        for (int other = 0; other < j->world && !first; other++)
            if (j->ranks[other].done && (!j->two_kinds || other % 2 == rank % 2)) first = &j->ranks[other];
        for (int i = 0; mine->done && i < j->keys; i++) {
            if (strcmp(mine->variant[i], first->variant[i]) != 0)
                fail_msg("round %d, key %d: rank %d ran %s, another one %s", j->round, i, rank, mine->variant[i],
                         first->variant[i]);
            assert_true(mine->verified[i]);
        }
    }
}

static job new_job(void **state, int world, int keys) {
    job j = {.folder = *state, .world = world, .keys = keys, .wait_seconds = 20, .victim = -1};
    size_t bytes = WORLD * sizeof(report) + sizeof(int);
    j.ranks = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(j.ranks != MAP_FAILED);
    j.joined = (int *)(void *)(j.ranks + WORLD);
    return j;
}

static void end_job(job *j) { munmap(j->ranks, WORLD * sizeof(report) + sizeof(int)); }

/* ---- tests ---- */

/* Caches stay from round to round, but some are lost: so each rank knows other keys, by other races. */
static void ranks_agree_whatever_they_know_and_whoever_dies(void **state) {
    job j = new_job(state, WORLD, KEYS);
    int rounds = getenv("SAT_TEST_LONG") ? 200 : SANITIZED ? 4 : 8;
    uint64_t random = 42;
    for (j.round = 0; j.round < rounds; j.round++) {
        char path[300];
        for (int rank = 0; rank < WORLD; rank++) {
            snprintf(path, sizeof path, "%s/cache%d", j.folder, rank);
            if (random_below(&random, 2)) remove_tree(path);
        }
        j.late = (int)random_below(&random, 60), j.two_kinds = j.round % 4 == 3;
        j.store = j.round % 5 == 4 ? SLOW : FOLDER;
        j.victim = j.round % 2 ? (int)random_below(&random, WORLD) : -1;
        j.victim_after = j.round % 4 == 1 ? -1 : (int)random_below(&random, KEYS);
        j.wait_seconds = j.victim < 0 ? 20 : 0.2;
        run_job(&j);
        expect_equal(&j);
        snprintf(path, sizeof path, "%s/store%d", j.folder, j.round);
        remove_tree(path);
    }
    end_job(&j);
}

static int races_of(const job *j, int key) {
    int races = 0;
    for (int rank = 0; rank < j->world; rank++) races += j->ranks[rank].tuned[key];
    return races;
}

/* Keys are the same in every run, and so is who owns which. */
static void each_of_four_ranks_tunes_its_share_and_a_second_job_tunes_none(void **state) {
    for (int in_step = 0; in_step < 2; in_step++) {
        job j = new_job(state, 4, SANITIZED ? 12 : MOST_KEYS);
        int most = 0;
        j.barrier = true, j.in_step = in_step, j.round = 2 * in_step;
        run_job(&j);
        expect_equal(&j);
        for (int i = 0; i < j.keys; i++) assert_int_equal(races_of(&j, i), 1);
        for (int rank = 0; rank < j.world; rank++) {
            int mine = 0;
            for (int i = 0; i < j.keys; i++) mine += j.ranks[rank].tuned[i];
            most = mine > most ? mine : most;
        }
        print_message("of %d keys one rank of %d tuned at most %d\n", j.keys, j.world, most);
        if (!SANITIZED) assert_true(most <= 0.3 * j.keys);
        j.round++;
        run_job(&j);
        expect_equal(&j);
        for (int i = 0; i < j.keys; i++) assert_int_equal(races_of(&j, i), 0);
        for (int rank = 0; rank < j.world; rank++) {
            char path[300];
            snprintf(path, sizeof path, "%s/cache%d", j.folder, rank);
            remove_tree(path);
        }
        end_job(&j);
    }
}

static void a_store_that_never_answers_leaves_each_rank_to_itself(void **state) {
    job j = new_job(state, 2, 3);
    j.store = DEAF, j.wait_seconds = 0.05;
    run_job(&j);
    for (int rank = 0; rank < 2; rank++) {
        assert_true(j.ranks[rank].done);
        for (int i = 0; i < 3; i++) assert_true(j.ranks[rank].verified[i]);
    }
    end_job(&j);
}

/* What another process could have written into the folder is a name of the registry, or nothing. */
static void a_hostile_store_makes_nobody_run_anything_wrong(void **state) {
    static const char *const texts[] = {"",         "no such variant", "cpu_matmul_any_any_openblas_dense",
                                        "\x01\x02", "../../x",         "cpu_sampled_any_any_c_reference"};
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++) {
        job j = new_job(state, 1, 2);
        j.round = (int)t;
        pid_t child = fork();
        if (child == 0) {
            sat_context *ctx = open_rank(&j, 0);
            char path[4300], name[300];
            snprintf(name, sizeof name, "%s/store%d", j.folder, j.round);
            /* Whatever key it asks for, the text is there: a folder of that name would be seen as an error, too. */
            for (int i = 0; i < 2; i++) {
                uint64_t random = (uint64_t)i + 1;
                int64_t br = 2 + i % 8, bc = 1 + i / 8;
                sat_pattern *pattern = random_pattern(ctx, &random, 6 * br, 6 * bc, br, bc, 0.5, false);
                sat_problem p = matmul_problem(SAT_F32, 5);
                char key[512], file[120] = "";
                if (sat_problem_key(ctx, pattern, &p, key, sizeof key) != SAT_OK) _exit(30);
                uint64_t hash = 0xcbf29ce484222325u;
                for (const char *at = key; *at; at++) hash = (hash ^ (unsigned char)*at) * 0x100000001b3u;
                char space[17] = "";
                DIR *d = opendir(name); /* it has this rank's file, sparse_autotune.<space>.rank.0 */
                for (struct dirent *e; d && (e = readdir(d));)
                    if (strstr(e->d_name, ".rank.0")) snprintf(space, sizeof space, "%.16s", e->d_name + 16);
                if (!d || closedir(d) || !space[0]) _exit(31);
                snprintf(file, sizeof file, "sparse_autotune.%s.%016llx", space, (unsigned long long)hash);
                snprintf(path, sizeof path, "%s/%s", name, file);
                FILE *f = fopen(path, "w");
                if (!f || fputs(texts[t], f) < 0 || fclose(f)) _exit(32);
                sat_pattern_free(pattern);
                run_key(ctx, i, &j.ranks[0]);
            }
            sat_context_free(ctx);
            _exit(0);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail_msg("'%s': the rank ended with %d", texts[t], status);
        for (int i = 0; i < 2; i++) assert_true(j.ranks[0].variant[i][0] && strstr(j.ranks[0].variant[i], "matmul"));
        end_job(&j);
    }
}

/* ---- contexts of one process as ranks ---- */

static sat_status failing_put(void *user, const char *key, const char *desired, char *value) {
    (void)user, (void)key, (void)desired, (void)value;
    return sat_fail(SAT_IO, "the disk is full");
}

/* A rank with a cache in memory. */
static sat_context *open_member(const char *folder, int rank, sat_effort effort, bool full, sat_agreement *a) {
    char store[300];
    sat_context *ctx = NULL;
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = "", .threads = 1};
    o.effort = effort, o.budget_seconds = 0.001;
    assert_ok(sat_context_create(&o, &ctx));
    snprintf(store, sizeof store, "%s/store", folder);
    *a = (sat_agreement){SAT_SIZED(sat_agreement)};
    assert_ok(sat_agreement_folder(store, rank, 3, a));
    sat_agreement used = *a;
    if (full) used.put = failing_put;
    used.wait_seconds = 5;
    assert_ok(sat_context_agree(ctx, &used));
    return ctx;
}

static sat_plan_info plan_info(sat_context *ctx, uint64_t seed) {
    sat_pattern *pattern = random_pattern(ctx, &seed, 24, 24, 4, 4, 1, false);
    sat_problem p = matmul_problem(SAT_F32, 5);
    sat_plan *plan = NULL;
    sat_plan_info info = {SAT_SIZED(sat_plan_info)};
    assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
    assert_ok(sat_plan_get_info(plan, &info));
    sat_plan_free(plan);
    sat_pattern_free(pattern);
    return info;
}

/* An estimate under SAT_EFFORT_CACHED is that rank's own; what others have raced serves there, verified. */
static void a_rank_that_only_looks_keeps_nobody_from_racing(void **state) {
    sat_agreement a[3];
    sat_context *looks = open_member(*state, 0, SAT_EFFORT_CACHED, false, &a[0]);
    sat_plan_info estimated = plan_info(looks, 1);
    assert_false(estimated.tuned || estimated.verified);
    sat_context *races = open_member(*state, 1, SAT_EFFORT_QUICK, false, &a[1]);
    sat_plan_info raced = plan_info(races, 1), then = plan_info(looks, 1);
    assert_true(raced.tuned && raced.verified);
    assert_string_equal(then.variant, raced.variant);
    assert_true(then.verified && !then.tuned);
    sat_context *full = open_member(*state, 2, SAT_EFFORT_QUICK, true, &a[2]); /* it can read and not write */
    sat_plan_info read = plan_info(full, 1);
    assert_string_equal(read.variant, raced.variant);
    assert_true(read.verified && !read.tuned);
    sat_variant late = {SAT_SIZED(sat_variant), .name = "late", .revision = "1", .op = SAT_MATMUL, .backend = SAT_CPU};
    late.supports = never, late.estimate = no_time, late.launch = no_launch;
    assert_fails(sat_variant_register(races, &late), SAT_UNSUPPORTED, "agrees with other ranks already");
    sat_context_free(looks), sat_context_free(races), sat_context_free(full);
    for (int i = 0; i < 3; i++) sat_agreement_folder_free(&a[i]);
}

static void what_is_wrong_is_named(void **state) {
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_OFF), *busy = NULL;
    sat_agreement good = {SAT_SIZED(sat_agreement), .world = 2, .get = deaf_get, .put = deaf_put}, a = good;
    assert_fails(sat_context_agree(NULL, &a), SAT_NULL_POINTER, "context");
    assert_fails(sat_context_agree(ctx, NULL), SAT_NULL_POINTER, "agreement");
    a.get = NULL;
    assert_fails(sat_context_agree(ctx, &a), SAT_NULL_POINTER, "get");
    a = good, a.put = NULL;
    assert_fails(sat_context_agree(ctx, &a), SAT_NULL_POINTER, "put");
    a = good, a.world = 0;
    assert_fails(sat_context_agree(ctx, &a), SAT_BAD_SIZE, "world is 0");
    a = good, a.rank = 2;
    assert_fails(sat_context_agree(ctx, &a), SAT_BAD_SIZE, "rank is 2");
    a = good, a.wait_seconds = -1;
    assert_fails(sat_context_agree(ctx, &a), SAT_BAD_SIZE, "wait_seconds is -1");
    a.wait_seconds = (double)INFINITY;
    assert_fails(sat_context_agree(ctx, &a), SAT_BAD_SIZE, "wait_seconds is inf");
    assert_ok(sat_context_agree(ctx, &good));
    assert_fails(sat_context_agree(ctx, &good), SAT_DUPLICATE, "already");
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = "", .background = true};
    assert_ok(sat_context_create(&o, &busy));
    assert_fails(sat_context_agree(busy, &good), SAT_UNSUPPORTED, "background");
    a.size = sizeof a;
    assert_fails(sat_agreement_folder(NULL, 0, 1, &a), SAT_NULL_POINTER, "folder");
    assert_fails(sat_agreement_folder("/proc/no such folder", 0, 1, &a), SAT_IO, "cannot be made");
    sat_agreement_folder_free(NULL);
    sat_context_free(busy);
    sat_context_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST_IN_FOLDER(ranks_agree_whatever_they_know_and_whoever_dies),
        TEST_IN_FOLDER(each_of_four_ranks_tunes_its_share_and_a_second_job_tunes_none),
        TEST_IN_FOLDER(a_store_that_never_answers_leaves_each_rank_to_itself),
        TEST_IN_FOLDER(a_hostile_store_makes_nobody_run_anything_wrong),
        TEST_IN_FOLDER(a_rank_that_only_looks_keeps_nobody_from_racing), /* after those that fork */
        cmocka_unit_test(what_is_wrong_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
