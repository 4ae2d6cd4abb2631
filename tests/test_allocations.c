/* Every allocation of a program's life with the library fails once: contexts, patterns, races, products, attention,
 * the cache. What fails says SAT_OUT_OF_MEMORY, what does not is right, the same call without the failure then works,
 * and nothing is left behind.
 *
 * The linker sends every malloc() and its kin of the library through here. By default some of them fail, one a run;
 * where SAT_TEST_LONG is set, all do. */
#define _GNU_SOURCE
#include "support.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/select.h"
#include "folder.h"
#include "problems.h"

/* ---- allocations that fail, and what is alive ---- */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
int __real_posix_memalign(void **to, size_t alignment, size_t bytes);
char *__real_strdup(const char *text);
void __real_free(void *memory);

enum { ALIVE = 1 << 18 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *alive[ALIVE]; /* open addressing */
static int64_t count_alive;
static bool counting;            /* inside a step */
static int64_t counted, failing; /* allocations of this run; the one that fails, from 1; 0: none */
static int64_t failed;

static size_t place_of(const void *p) { return ((uintptr_t)p * 0x9e3779b97f4a7c15u) >> 46; }

static void *born(void *p) {
    if (!p) return p;
    pthread_mutex_lock(&lock);
    size_t at = place_of(p);
    while (alive[at]) at = (at + 1) % ALIVE;
    alive[at] = p, count_alive++;
    pthread_mutex_unlock(&lock);
    return p;
}

static void gone(void *p) {
    pthread_mutex_lock(&lock);
    size_t at = place_of(p);
    while (alive[at] && alive[at] != p) at = (at + 1) % ALIVE;
    if (p && alive[at] == p) { /* else the C library's own, which it gave us to free */
        count_alive--;
        alive[at] = NULL;
        for (size_t next = (at + 1) % ALIVE; alive[next]; next = (next + 1) % ALIVE) { /* close the gap */
            size_t home = place_of(alive[next]);
            if ((next + ALIVE - home) % ALIVE < (next + ALIVE - at) % ALIVE) continue;
            alive[at] = alive[next], alive[next] = NULL, at = next;
        }
    }
    pthread_mutex_unlock(&lock);
}

static bool fails(void) {
    pthread_mutex_lock(&lock);
    bool now = counting && ++counted == failing;
    failed += now;
    pthread_mutex_unlock(&lock);
    if (now) errno = ENOMEM;
    return now;
}

void *__wrap_malloc(size_t bytes) { return fails() ? NULL : born(__real_malloc(bytes)); }
void *__wrap_calloc(size_t count, size_t bytes) { return fails() ? NULL : born(__real_calloc(count, bytes)); }
char *__wrap_strdup(const char *text) { return fails() ? NULL : born(__real_strdup(text)); }

void *__wrap_realloc(void *old, size_t bytes) {
    if (fails()) return NULL;
    gone(old);
    return born(__real_realloc(old, bytes));
}

int __wrap_posix_memalign(void **to, size_t alignment, size_t bytes) {
    if (fails()) return ENOMEM;
    int error = __real_posix_memalign(to, alignment, bytes);
    if (!error) born(*to);
    return error;
}

void __wrap_free(void *memory) {
    gone(memory);
    __real_free(memory);
}

static void *callers_alloc(void *user, size_t bytes, size_t alignment) {
    void *p = NULL;
    (void)user;
    return posix_memalign(&p, alignment, bytes ? bytes : 1) ? NULL : p;
}

static void callers_free(void *user, void *p) {
    (void)user;
    free(p);
}

/* ---- a program's life ---- */

enum { M = 24, N = 9, BLOCK = 4, DIM = 8 };

typedef struct life {
    const char *folder;
    char export[4300];
    bool own_allocator, quiet; /* quiet: what is not known is estimated */
    sat_context *ctx;
    sat_pattern *pattern, *mask;
    sat_plan *plan, *copy;
    sat_race *race;
    float *values, *b, *c, *x, *s, *q, *o;
    double *want;
    int64_t blocks;
} life;

static bool ignore_entry(void *user, const char *key, const char *text) {
    (void)user, (void)key, (void)text;
    return true;
}

static sat_status make_context(life *l) {
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = l->folder, .threads = 1};
    o.effort = l->quiet ? SAT_EFFORT_CACHED : SAT_EFFORT_QUICK, o.budget_seconds = 1e-4;
    o.measure = SAT_MEASURE_WARM;
    sat_allocator own = {SAT_SIZED(sat_allocator), callers_alloc, callers_free, NULL};
    if (l->own_allocator) o.allocator = &own;
    return sat_context_create(&o, &l->ctx);
}

static sat_status make_pattern(life *l) {
    static const int32_t ptr[] = {0, 2, 2, 3, 5, 6, 8}, col[] = {0, 3, 5, 1, 2, 4, 0, 5};
    sat_bsr b = {SAT_SIZED(sat_bsr),  .rows = M,           .cols = M,
                 .block_rows = BLOCK, .block_cols = BLOCK, .stored_blocks = 8};
    b.index_type = SAT_I32, b.row_ptr = ptr, b.col_idx = col, l->blocks = 8;
    return sat_pattern_create(l->ctx, &b, &l->pattern);
}

static sat_status make_mask(life *l) {
    static const int32_t ptr[] = {0, 1, 3}, col[] = {0, 0, 1};
    sat_bsr b = {SAT_SIZED(sat_bsr), .rows = 8, .cols = 8, .block_rows = 4, .block_cols = 4, .stored_blocks = 3};
    b.index_type = SAT_I32, b.row_ptr = ptr, b.col_idx = col;
    return sat_pattern_create(l->ctx, &b, &l->mask);
}

static sat_status make_plan(life *l) {
    sat_problem p = matmul_problem(SAT_F32, N);
    return sat_plan_create(l->ctx, l->pattern, &p, &l->plan);
}

static sat_status make_plan_again(life *l) {
    sat_plan_free(l->plan);
    l->plan = NULL;
    return make_plan(l);
}

static sat_status check_product(const life *l, sat_status status) {
    for (int64_t i = 0; i < M * N && status == SAT_OK; i++)
        if (!(fabs((double)l->c[i] - l->want[i]) < 1e-5)) fail_msg("element %lld is %g", (long long)i, (double)l->c[i]);
    memset(l->c, 0xff, sizeof *l->c * M * N);
    return status;
}

static sat_status run_plan(life *l) {
    return check_product(l, sat_run(l->plan, (const void *[]){l->values, l->b}, 2, (void *[]){l->c}, 1, NULL));
}

static sat_status copy_plan(life *l) {
    sat_status status = sat_plan_dup(l->plan, &l->copy);
    if (status == SAT_OK)
        status = check_product(l, sat_run(l->copy, (const void *[]){l->values, l->b}, 2, (void *[]){l->c}, 1, NULL));
    sat_plan_free(l->copy);
    l->copy = NULL;
    return status;
}

static sat_status call_matmul(life *l) {
    sat_problem p = matmul_problem(SAT_F32, N);
    p.beta = 0.5;
    for (int64_t i = 0; i < M * N; i++) l->c[i] = 0;
    return check_product(l, sat_bsr_matmul(l->ctx, l->pattern, &p, l->values, l->b, l->c, NULL, NULL));
}

static sat_status call_transposed(life *l) { /* needs the transposed index */
    sat_problem p = matmul_problem(SAT_F32, N);
    p.matmul.transpose = SAT_TRANSPOSE;
    return sat_bsr_matmul(l->ctx, l->pattern, &p, l->values, l->b, l->x, NULL, NULL);
}

static sat_status call_sampled(life *l) {
    sat_problem p = sampled_problem(SAT_F32, N);
    return sat_bsr_sampled_matmul(l->ctx, l->pattern, &p, l->b, l->b, l->s, NULL);
}

static sat_status call_attention(life *l) {
    sat_problem p = attention_problem(SAT_F32, 2, 1, DIM);
    return sat_attention_forward(l->ctx, l->mask, &p, l->q, l->q, l->q, l->o, NULL, NULL);
}

static sat_status call_backward(life *l) {
    sat_problem p = attention_problem(SAT_F32, 1, 1, DIM);
    p.op = SAT_ATTENTION_BACKWARD;
    float *o = l->o, *lse = l->o + 64;
    return sat_attention_backward(l->ctx, l->mask, &p, l->q, l->q, l->q, o, lse, l->q, l->x, l->s, l->c, NULL);
}

/* Races of two or three: the whole field would take a second a race. */
static sat_status race_of(life *l, const sat_pattern *pattern, const sat_problem *p, const char *only) {
    sat_race_options o = {SAT_SIZED(sat_race_options), .fresh = true, .only = only};
    sat_status status = sat_race_run(l->ctx, pattern, p, &o, &l->race);
    sat_race_free(l->race);
    l->race = NULL;
    return status;
}

static sat_status race_matmul(life *l) {
    sat_problem p = matmul_problem(SAT_BF16, 3);
    p.beta = 0.75, p.matmul.transpose = SAT_TRANSPOSE;
    return race_of(l, l->pattern, &p, "cpu_matmul_any_any_c_portable,cpu_matmul_bf16_any_avx2_4x24");
}

static sat_status race_sampled(life *l) {
    sat_problem p = sampled_problem(SAT_F64, 3);
    return race_of(l, l->pattern, &p, "cpu_sampled_any_any_c_6x2v,cpu_sampled_any_any_avx2_4x3_dot");
}

static sat_status race_attention(life *l) {
    sat_problem p = attention_problem(SAT_F32, 1, 1, DIM);
    return race_of(l, l->mask, &p, "cpu_attention_any_any_c_reference,cpu_attention_f32_any_avx2_64x64");
}

static sat_status race_backward(life *l) {
    sat_problem p = attention_problem(SAT_F32, 1, 1, DIM);
    p.op = SAT_ATTENTION_BACKWARD;
    return race_of(l, l->mask, &p, "cpu_attention_backward_any_any_c_reference");
}

static sat_status make_dynamic(life *l, sat_pattern **pattern) {
    static const int32_t ptr[] = {0, 2, 2, 3, 5, 6, 8}, col[] = {0, 3, 5, 1, 2, 4, 0, 5, -1, -1};
    sat_dynamic_bsr b = {SAT_SIZED(sat_dynamic_bsr), .rows = M, .cols = M, .block_rows = BLOCK, .block_cols = BLOCK};
    b.capacity = 8, b.index_type = SAT_I32, b.row_ptr = ptr, b.col_idx = col;
    return sat_pattern_create_dynamic(l->ctx, &b, pattern);
}

static sat_status use_dynamic(life *l) {
    sat_problem p = matmul_problem(SAT_F32, N);
    sat_pattern *pattern = NULL;
    sat_plan *plan = NULL;
    sat_status status = make_dynamic(l, &pattern);
    if (status == SAT_OK) status = sat_plan_create(l->ctx, pattern, &p, &plan);
    if (status == SAT_OK)
        status = check_product(l, sat_run(plan, (const void *[]){l->values, l->b}, 2, (void *[]){l->c}, 1, NULL));
    sat_plan_free(plan);
    sat_pattern_free(pattern);
    return status;
}

static sat_status race_dynamic(life *l) {
    sat_problem p = matmul_problem(SAT_F32, 3);
    sat_pattern *pattern = NULL;
    p.matmul.transpose = SAT_TRANSPOSE;
    sat_status status = make_dynamic(l, &pattern);
    if (status == SAT_OK) status = race_of(l, pattern, &p, "cpu_matmul_any_any_c_portable");
    sat_pattern_free(pattern);
    return status;
}

/* Gradients of attention under a mask a head, padded. */
static sat_status race_masks(life *l) {
    static const int32_t counts[4] = {1, 2, 0, 1}, col[8] = {0};
    sat_dynamic_bsr b = {SAT_SIZED(sat_dynamic_bsr), .rows = 8, .cols = 8, .block_rows = 4, .block_cols = 4};
    b.index_type = SAT_I32, b.row_counts = counts, b.row_stride = 2, b.col_idx = col, b.mask_heads = 2;
    sat_problem p = attention_problem(SAT_F32, 2, 1, DIM);
    sat_pattern *pattern = NULL;
    p.op = SAT_ATTENTION_BACKWARD;
    sat_status status = sat_pattern_create_dynamic(l->ctx, &b, &pattern);
    if (status == SAT_OK) status = race_of(l, pattern, &p, "cpu_attention_backward_f32_any_avx2_64x64");
    sat_pattern_free(pattern);
    return status;
}

static sat_status visit(life *l) {
    sat_status status = sat_cache_visit(l->ctx, ignore_entry, NULL);
    return status == SAT_OK ? sat_cache_visit_untuned(l->ctx, ignore_entry, NULL) : status;
}

static sat_status export_all(life *l) { return sat_cache_export(l->ctx, l->export); }
static sat_status clear_all(life *l) { return sat_cache_clear(l->ctx, NULL, NULL); }

static sat_status import_all(life *l) {
    int64_t entries;
    return sat_cache_import(l->ctx, l->export, &entries);
}

typedef sat_status (*step)(life *l);
/* Answered by estimate and noted as untuned; races are small and keep nothing. */
static const step estimated[] = {
    make_context,    make_pattern, make_mask,      make_plan,     run_plan,    copy_plan,    call_matmul,
    call_transposed, call_sampled, call_attention, call_backward, race_matmul, race_sampled, race_attention,
    race_backward,   use_dynamic,  race_dynamic,   race_masks,    visit,       clear_all,    NULL};
/* One race of all that fit, and the cache it fills. */
static const step raced[] = {make_context, make_pattern, make_plan,       run_plan,  visit, export_all,
                             clear_all,    import_all,   make_plan_again, clear_all, NULL};

static void open_life(life *l, const char *folder, bool own_allocator, bool quiet) {
    uint64_t random = 5;
    *l = (life){.folder = folder, .own_allocator = own_allocator, .quiet = quiet};
    snprintf(l->export, sizeof l->export, "%s/export", folder);
    l->values = random_floats(&random, 8 * BLOCK * BLOCK), l->b = random_floats(&random, M * N);
    l->c = random_floats(&random, M * N + 256), l->x = random_floats(&random, M * N + 256);
    l->s = random_floats(&random, 8 * BLOCK * BLOCK + 256), l->q = random_floats(&random, 2 * 8 * DIM);
    l->o = random_floats(&random, 2 * 8 * DIM);
    l->want = calloc(M * N, sizeof *l->want);
    static const int32_t ptr[] = {0, 2, 2, 3, 5, 6, 8}, col[] = {0, 3, 5, 1, 2, 4, 0, 5};
    for (int r = 0; r < M / BLOCK; r++)
        for (int t = ptr[r]; t < ptr[r + 1]; t++)
            for (int e = 0; e < BLOCK * BLOCK; e++)
                for (int j = 0; j < N; j++)
                    l->want[(r * BLOCK + e / BLOCK) * N + j] +=
                        (double)l->values[t * BLOCK * BLOCK + e] * (double)l->b[(col[t] * BLOCK + e % BLOCK) * N + j];
}

static void close_life(life *l) {
    sat_plan_free(l->plan);
    sat_pattern_free(l->pattern);
    sat_pattern_free(l->mask);
    sat_context_free(l->ctx);
    free(l->values), free(l->b), free(l->c), free(l->x), free(l->s), free(l->q), free(l->o), free(l->want);
}

/* One life in which allocation number `n` fails; how many there were. */
static int64_t live(const char *folder, bool own_allocator, bool quiet, int64_t n) {
    life l;
    const step *steps = quiet ? estimated : raced;
    open_life(&l, folder, own_allocator, quiet);
    counted = 0, failing = n, failed = 0;
    for (int i = 0; steps[i]; i++) {
        int64_t before = failed;
        (void)sat_fail(SAT_OK, "an old message");
        counting = true;
        sat_status status = steps[i](&l);
        counting = false;
        if (status == SAT_OK) continue;
        if (failed == before || status != SAT_OUT_OF_MEMORY || strcmp(sat_last_error(), "an old message") == 0)
            fail_msg("allocation %lld, step %d: %s: %s", (long long)n, i, sat_status_name(status), sat_last_error());
        assert_ok(steps[i](&l)); /* with memory again */
    }
    close_life(&l);
    return counted;
}

static bool all_of_them(void) { return getenv("SAT_TEST_LONG") != NULL; }

static void fail_each(const char *folder, bool own_allocator, bool quiet, int64_t tries) {
    int64_t count = 0;
    for (int i = 0; i < 2; i++) count = live(folder, own_allocator, quiet, 0); /* what is made once is made now */
    int64_t step = all_of_them() || count < tries ? 1 : count / tries, done = 0;
    for (int64_t n = 1; n <= count; n += step, done++) {
        int64_t before = count_alive;
        live(folder, own_allocator, quiet, n);
        if (count_alive != before)
            fail_msg("allocation %lld failed, and %lld pieces of memory are left", (long long)n,
                     (long long)(count_alive - before));
    }
    print_message("%lld allocations, %lld of them failed\n", (long long)count, (long long)done);
    assert_true(done > 4);
}

static void each_allocation_of_a_life_with_races_fails_once(void **state) { fail_each(*state, false, false, 10); }
static void each_allocation_of_a_life_with_its_own_allocator_fails_once(void **state) {
    fail_each(*state, true, true, 60);
}
static void each_allocation_of_a_life_of_estimates_fails_once(void **state) { fail_each(*state, false, true, 150); }

/* Right until its inputs move, which is what a winner is confirmed with first. */
static const void *usual_b;

static bool fits_f32(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)a, (void)d;
    return p->a_dtype == SAT_F32;
}

static double boast(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)p, (void)a, (void)d;
    return 1e-9;
}

static sat_status multiply_unmoved(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const sat_pattern_view *a = l->pattern;
    const float *values = l->operands[0], *b = l->operands[1];
    float *c = l->operands[2];
    if (!usual_b) usual_b = b;
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++) {
            double sum = b == usual_b ? 0 : 1;
            for (int64_t t = a->row_ptr[i / BLOCK]; t < a->row_ptr[i / BLOCK + 1]; t++)
                for (int64_t k = 0; k < BLOCK; k++)
                    sum += (double)values[(t * BLOCK + i % BLOCK) * BLOCK + k] *
                           (double)b[(a->col_idx[t] * BLOCK + k) * p->b.row_stride + j * p->b.col_stride];
            c[i * p->c.row_stride + j * p->c.col_stride] = (float)sum;
        }
    return SAT_OK;
}

static void open_life_with_moved(life *l, const char *folder) {
    open_life(l, folder, false, true);
    assert_ok(make_context(l));
    assert_ok(make_pattern(l));
    sat_variant v = {SAT_SIZED(sat_variant), .name = "moved",      .revision = "1",   .op = SAT_MATMUL,
                     .backend = SAT_CPU,     .supports = fits_f32, .estimate = boast, .launch = multiply_unmoved};
    assert_ok(sat_variant_register(l->ctx, &v));
}

/* From here on allocation number `n` fails. */
static void let_fail(int64_t n) { usual_b = NULL, counted = 0, failing = n, failed = 0, counting = true; }

static void a_winner_whose_confirmation_has_no_memory_does_not_win(void **state) {
    life l;
    int64_t n;
    open_life_with_moved(&l, *state);
    sat_problem p = matmul_problem(SAT_F32, N);
    sat_race_options o = {SAT_SIZED(sat_race_options), .fresh = true, .discard = true, .only = "moved"};
    for (n = 0; n < 2 || failed > 0; n++) { /* 0: none fails, and it is found wrong */
        let_fail(n);
        sat_status status = sat_race_run(l.ctx, l.pattern, &p, &o, &l.race);
        counting = false;
        if (status == SAT_OK && sat_race_best(l.race)) fail_msg("allocation %lld failed, and it won", (long long)n);
        if (status != SAT_OK) assert_int_equal(status, SAT_OUT_OF_MEMORY);
        if (n == 0) assert_int_equal(sat_race_at(l.race, 0)->verdict, SAT_VERDICT_WRONG);
        sat_race_free(l.race);
        l.race = NULL;
    }
    print_message("%lld allocations, each of them failed\n", (long long)n - 2);
    assert_true(n > 20);
    close_life(&l);
}

static void a_variant_whose_check_has_no_memory_is_not_verified(void **state) {
    life l;
    int64_t n;
    sat_request q;
    open_life_with_moved(&l, *state);
    sat_problem p = matmul_problem(SAT_F32, N);
    assert_ok(sat_request_make(&q, l.ctx, l.pattern, &p));
    const sat_variant *moved = sat_registry_find(&l.ctx->registry, "moved");
    for (n = 0; n < 2 || failed > 0; n++) {
        uint64_t check_id = (uint64_t)n + 1;
        let_fail(n);
        assert_ok(sat_select_check_variant(&q, moved, check_id, &(sat_race_how){.store = false}));
        counting = false;
        if (sat_memo_checked(l.ctx->memo, check_id)) fail_msg("allocation %lld failed, and it is right", (long long)n);
    }
    print_message("%lld allocations, each of them failed\n", (long long)n - 2);
    assert_true(n > 20);
    close_life(&l);
}

/* In a process that has not used the library yet: tables that are made once, and libraries that are looked for. */
static void the_first_allocations_of_a_process_fail(void **state) {
    int64_t last = all_of_them() ? 200 : 30;
    for (int64_t n = 1; n <= last; n++) {
        int status;
        fflush(NULL);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            alarm(100);
            life l = {.folder = *state, .quiet = true};
            counted = 0, failing = n, failed = 0;
            counting = true;
            sat_status first = make_context(&l);
            counting = false;
            if (first != SAT_OK && (failed == 0 || first != SAT_OUT_OF_MEMORY)) _exit(1);
            if (first != SAT_OK && make_context(&l) != SAT_OK) _exit(2);
            sat_context_free(l.ctx);
            _exit(failed ? 0 : 3);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        if (WIFSIGNALED(status)) fail_msg("allocation %lld: signal %d", (long long)n, WTERMSIG(status));
        if (WEXITSTATUS(status) == 3) break; /* there are no more */
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

int main(void) {
    if (!access("/dev/shm", W_OK)) setenv("TMPDIR", "/dev/shm", 0); /* hundreds of caches: a disk would take minutes */
    const struct CMUnitTest tests[] = {
        TEST_IN_FOLDER(the_first_allocations_of_a_process_fail), /* before this process has used the library */
        TEST_IN_FOLDER(a_winner_whose_confirmation_has_no_memory_does_not_win),
        TEST_IN_FOLDER(a_variant_whose_check_has_no_memory_is_not_verified),
        TEST_IN_FOLDER(each_allocation_of_a_life_of_estimates_fails_once),
        TEST_IN_FOLDER(each_allocation_of_a_life_with_races_fails_once),
        TEST_IN_FOLDER(each_allocation_of_a_life_with_its_own_allocator_fails_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
