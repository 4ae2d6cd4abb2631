/* Limits of the process: what cannot run under them is left out, and a forked child computes. Each case is a process of
 * its own, forked from one that has never used the library; a watchdog ends the ones that hang. */
#define _GNU_SOURCE
#include "support.h"

#include <math.h>
#include <omp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/limits.h"
#include "backend/threads.h"
#include "variant.h"

#include "sanitized.h" /* SANITIZED: sanitizers take terabytes of address space, and threads of their own */
#include "problems.h"

/* ---- processes ---- */

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #condition, sat_last_error());                             \
            fflush(NULL);                                                                                              \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

static void expect_child(void (*body)(void)) {
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(100);
        body();
        fflush(NULL);
        _exit(0);
    }
    int status = 0;
    while (waitpid(child, &status, 0) != child) {}
    if (WIFSIGNALED(status))
        fail_msg("the child was ended by signal %d%s", WTERMSIG(status),
                 WTERMSIG(status) == SIGALRM ? ", since it hung" : "");
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* ---- a small product ---- */

enum { M = 96, N = 40, BLOCK = 8 };

typedef struct product {
    sat_context *ctx;
    sat_pattern *pattern;
    float *values, *b, *c;
    double *want;
} product;

static product make_product(sat_effort effort, int threads, bool background) {
    product x = {0};
    uint64_t random = 7;
    sat_context_options o = {
        SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = "", .effort = effort, .threads = threads,
        .background = background};
    CHECK(sat_context_create(&o, &x.ctx) == SAT_OK);
    x.pattern = random_pattern(x.ctx, &random, M, M, BLOCK, BLOCK, 0.4, false);
    sat_pattern_view a = view_of(x.pattern);
    x.values = random_floats(&random, a.stored_blocks * BLOCK * BLOCK);
    x.b = random_floats(&random, M * N), x.c = random_floats(&random, M * N);
    x.want = dense_product(&a, x.values, x.b, N);
    return x;
}

static void run_plan(product *x, sat_plan *plan) {
    memset(x->c, 0xff, sizeof *x->c * M * N);
    CHECK(sat_run(plan, (const void *[]){x->values, x->b}, 2, (void *[]){x->c}, 1, NULL) == SAT_OK);
    for (int i = 0; i < M * N; i++) CHECK(fabs((double)x->c[i] - x->want[i]) < 1e-4);
}

static sat_plan *plan_of(product *x, const char *variant) {
    sat_problem p = matmul_problem(SAT_F32, N);
    sat_plan *plan = NULL;
    if (variant) CHECK(sat_plan_create_with(x->ctx, x->pattern, &p, variant, &plan) == SAT_OK);
    else CHECK(sat_plan_create(x->ctx, x->pattern, &p, &plan) == SAT_OK);
    return plan;
}

static const char *library_variant(const sat_context *ctx) {
    for (size_t i = 0; i < sat_variant_count(ctx); i++)
        if ((sat_variant_at(ctx, i)->flags & SAT_V_LIBRARY) && sat_variant_at(ctx, i)->op == SAT_MATMUL)
            return sat_variant_at(ctx, i)->name;
    return NULL;
}

/* Races a product, runs it, and runs every built-in variant that fits. */
static void compute(product *x) {
    sat_problem p = matmul_problem(SAT_F32, N);
    sat_plan *plan = plan_of(x, NULL);
    run_plan(x, plan);
    sat_plan_free(plan);
    for (size_t i = 0; i < sat_variant_count(x->ctx); i++) {
        sat_status status = sat_plan_create_with(x->ctx, x->pattern, &p, sat_variant_at(x->ctx, i)->name, &plan);
        if (status != SAT_OK) continue;
        run_plan(x, plan);
        sat_plan_free(plan);
    }
}

static void close_product(product *x) {
    sat_pattern_free(x->pattern);
    sat_context_free(x->ctx);
    free(x->values), free(x->b), free(x->c), free(x->want);
}

/* ---- control groups, as made-up files ---- */

static char tree[64];

static void put_file(const char *path, const char *text) {
    char full[512];
    snprintf(full, sizeof full, "%s%s", tree, path);
    for (char *slash = strchr(full + strlen(tree) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void new_tree(void) {
    strcpy(tree, "/tmp/sat_limits_XXXXXX");
    assert_non_null(mkdtemp(tree));
    put_file("/proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n");
    put_file("/proc/self/statm", "1000 100 100 10 0 500 0\n");
}

static void drop_tree(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", tree);
    assert_int_equal(system(command), 0);
}

#define MB *((size_t)1 << 20)

static void the_limits_of_control_groups_are_known(void **state) {
    (void)state;
    new_tree();
    assert_int_equal(sat_memory_now(tree).left, (size_t)8000000 * 1024); /* no groups at all */
    /* Version 2: the group itself, and one above it with less left. What the kernel can drop does not count. */
    put_file("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n");
    put_file("/proc/self/cgroup", "0::/user.slice/a/b\n");
    put_file("/sys/fs/cgroup/user.slice/a/b/memory.max", "157286400\n");
    put_file("/sys/fs/cgroup/user.slice/a/b/memory.current", "52428800\n");
    put_file("/sys/fs/cgroup/user.slice/a/b/memory.stat", "anon 4096\nfile 40000000\ninactive_file 20971520\n");
    assert_int_equal(sat_memory_now(tree).total, 150 MB);
    assert_int_equal(sat_memory_now(tree).left, 120 MB);
    put_file("/sys/fs/cgroup/user.slice/a/memory.max", "max\n");
    put_file("/sys/fs/cgroup/user.slice/memory.max", "1073741824\n");
    put_file("/sys/fs/cgroup/user.slice/memory.current", "1048576000\n");
    assert_int_equal(sat_memory_now(tree).left, 24 MB);
    put_file("/sys/fs/cgroup/user.slice/a/memory.high", "20971520\n"); /* beyond it everything is slowed down */
    put_file("/sys/fs/cgroup/user.slice/a/memory.current", "30000000\n");
    assert_int_equal(sat_memory_now(tree).left, 0);
    drop_tree();
    /* Version 1 beside an empty unified hierarchy, in a container that sees only its own part. */
    new_tree();
    put_file("/proc/self/mountinfo",
             "30 23 0:26 /docker/77 /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory\n"
             "31 23 0:27 /docker/77 /sys/fs/cgroup/cpu ro,nosuid - cgroup cgroup rw,cpu,cpuacct\n"
             "32 23 0:28 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw\n");
    put_file("/proc/self/cgroup", "5:cpu,cpuacct:/docker/77\n4:hugetlb,memory:/docker/77/job\n0::/\n");
    put_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "209715200\n");
    put_file("/sys/fs/cgroup/memory/memory.usage_in_bytes", "104857600\n");
    put_file("/sys/fs/cgroup/memory/memory.stat", "total_inactive_file 10485760\n");
    assert_int_equal(sat_memory_now(tree).left, 110 MB);
    put_file("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
    put_file("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1000\n");
    assert_int_equal(sat_memory_now(tree).left, 110 MB);
    assert_int_equal(sat_memory_now(tree).total, 200 MB);
    drop_tree();
}

/* ---- resource limits ---- */

static size_t address_space(void) {
    size_t pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    CHECK(f && fscanf(f, "%zu", &pages) == 1);
    fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static void in_little_address_space(void) {
    size_t limit = address_space() + 200 MB;
    CHECK(setrlimit(RLIMIT_AS, &(struct rlimit){limit, limit}) == 0);
    CHECK(sat_address_space_left() <= 200 MB && sat_memory_now("").left <= 200 MB);
    product x = make_product(SAT_EFFORT_QUICK, 2, false);
    CHECK(library_variant(x.ctx) == NULL);
    CHECK(sat_context_device(x.ctx)->memory_bytes <= (int64_t)limit);
    compute(&x);
    close_product(&x);
}

/* The library is there, and then the room that it would take is gone. */
static void in_address_space_that_shrinks(void) {
    product x = make_product(SAT_EFFORT_OFF, 2, false);
    const char *library = library_variant(x.ctx);
    if (!library) return;
    sat_plan *plan = plan_of(&x, library), *again = NULL;
    sat_problem p = matmul_problem(SAT_F32, N);
    size_t limit = address_space() + 30 MB;
    CHECK(setrlimit(RLIMIT_AS, &(struct rlimit){limit, limit}) == 0);
    CHECK(sat_run(plan, (const void *[]){x.values, x.b}, 2, (void *[]){x.c}, 1, NULL) == SAT_OUT_OF_MEMORY);
    CHECK(strstr(sat_last_error(), "RLIMIT_AS") != NULL);
    CHECK(sat_plan_create_with(x.ctx, x.pattern, &p, library, &again) == SAT_UNSUPPORTED);
    sat_plan_free(plan);
    compute(&x);
    close_product(&x);
}

static void what_address_space_has_no_room_for_is_left_out(void **state) {
    (void)state;
    if (SANITIZED) skip();
    expect_child(in_little_address_space);
    expect_child(in_address_space_that_shrinks);
}

/* Nobody else may have processes under this user, or the limit is reached already; either way none can be started
 * beyond it. Root has no such limit. */
static void limit_threads(rlim_t most) {
    if (geteuid() == 0) CHECK(setgid(61357) == 0 && setuid(61357) == 0);
    CHECK(setrlimit(RLIMIT_NPROC, &(struct rlimit){most, most}) == 0);
}

static void with_no_thread_to_start(void) {
    limit_threads(1);
    if (sat_threads_startable(1) != 0) return; /* this system has no such limit */
    product x = make_product(SAT_EFFORT_QUICK, 8, false);
    CHECK(sat_context_device(x.ctx)->threads == 1);
    CHECK(library_variant(x.ctx) == NULL || sysconf(_SC_NPROCESSORS_ONLN) == 1);
    compute(&x);
    close_product(&x);
}

static void with_few_threads_to_start(void) {
    limit_threads(6);
    if (sat_threads_startable(6) == 6) return;
    product x = make_product(SAT_EFFORT_QUICK, 32, false);
    CHECK(sat_context_device(x.ctx)->threads <= 3); /* half of the five that can be started, and the first */
    compute(&x);
    close_product(&x);
}

static void a_process_that_may_start_no_threads_computes_without(void **state) {
    (void)state;
    if (SANITIZED) skip();
    expect_child(with_no_thread_to_start);
    expect_child(with_few_threads_to_start);
}

static void ask_in_a_region(void) {
    int wrong = 0;
    omp_set_max_active_levels(1);
#pragma omp parallel num_threads(2) reduction(+ : wrong)
    wrong += sat_threads_usable(4000) != 4000; /* it would start none, so none are tried */
    CHECK(wrong == 0);
    CHECK(sat_threads_usable(3) == 3 && sat_threads_usable(2) == 2 && sat_threads_usable(1) == 1);
}

static void threads_are_tried_only_where_a_region_would_start_them(void **state) {
    (void)state;
    expect_child(ask_in_a_region);
}

/* ---- forks ---- */

static void wait_for(pid_t child) {
    int status = 0;
    while (waitpid(child, &status, 0) != child) {}
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void fork_after_computing(void) {
    product x = make_product(SAT_EFFORT_QUICK, 2, false);
    const char *library = library_variant(x.ctx);
    sat_plan *old = plan_of(&x, NULL), *own = plan_of(&x, "cpu_matmul_any_any_c_portable");
    sat_plan *foreign = library ? plan_of(&x, library) : NULL;
    run_plan(&x, old), run_plan(&x, own);
    if (foreign) run_plan(&x, foreign);
    CHECK(!sat_forked());
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        CHECK(sat_forked());
        run_plan(&x, old), run_plan(&x, own);
        if (foreign) {
            sat_plan_info info = {SAT_SIZED(sat_plan_info)};
            run_plan(&x, foreign);
            CHECK(sat_plan_get_info(foreign, &info) == SAT_OK && strcmp(info.variant, library) != 0);
        }
        sat_plan_free(old), sat_plan_free(own), sat_plan_free(foreign);
        compute(&x); /* tunes, in the context that it was born with */
        close_product(&x);
        product y = make_product(SAT_EFFORT_QUICK, 2, false);
        CHECK(sat_context_device(y.ctx)->threads == 1);
        sat_problem p = matmul_problem(SAT_F32, N);
        sat_plan *none = NULL;
        if (library) CHECK(sat_plan_create_with(y.ctx, y.pattern, &p, library, &none) == SAT_UNSUPPORTED);
        compute(&y);
        close_product(&y);
        _exit(0);
    }
    wait_for(child);
    run_plan(&x, own); /* the parent goes on as before */
    CHECK(!sat_forked() && sat_context_device(x.ctx)->threads == 2);
    sat_plan_free(old), sat_plan_free(own), sat_plan_free(foreign);
    close_product(&x);
}

static void fork_beside_the_background_thread(void) {
    product x = make_product(SAT_EFFORT_QUICK, 2, true);
    sat_plan *plan = plan_of(&x, NULL);
    CHECK(sat_context_wait(x.ctx) == SAT_OK);
    run_plan(&x, plan);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        CHECK(sat_context_wait(x.ctx) == SAT_OK);
        run_plan(&x, plan);
        sat_plan_free(plan);
        compute(&x);
        close_product(&x);
        _exit(0);
    }
    wait_for(child);
    sat_plan_free(plan);
    close_product(&x);
}

static void a_forked_child_computes_on_one_thread(void **state) {
    (void)state;
    expect_child(fork_after_computing);
    expect_child(fork_beside_the_background_thread);
}

static void fork_alone(void) {
    sat_threads_watch_forks();
    pid_t child = fork();
    if (child == 0) {
        CHECK(!sat_forked() && sat_threads_usable(2) == 2);
        _exit(0);
    }
    wait_for(child);
}

static void a_child_of_a_process_without_threads_keeps_its_own(void **state) {
    (void)state;
    if (SANITIZED) skip();
    expect_child(fork_alone);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_limits_of_control_groups_are_known),
        cmocka_unit_test(what_address_space_has_no_room_for_is_left_out),
        cmocka_unit_test(a_process_that_may_start_no_threads_computes_without),
        cmocka_unit_test(threads_are_tried_only_where_a_region_would_start_them),
        cmocka_unit_test(a_forked_child_computes_on_one_thread),
        cmocka_unit_test(a_child_of_a_process_without_threads_keeps_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
