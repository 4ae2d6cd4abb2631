/* What the tests on the model of CUDA share: a variant whose work the model does, contexts, operands and streams. */
#ifndef FAKE_SUPPORT_H
#define FAKE_SUPPORT_H

#include "support.h"

#include <pthread.h>
#include <stdatomic.h>

#include "fake_cuda.h"
#include "../problems.h"

enum { SIDE = 16, BYTES = SIDE * SIDE * 4 }; /* every operand of the usual problem */

/* ---- a variant of the host's own: it copies its values, or what it prepared, to the output ---- */

typedef struct planted {
    size_t workspace;
    bool prepares, refreshes, allocates;
    int64_t faults_at; /* n that it breaks the device with; -1: any */
    int launches, device;
    void *used; /* the workspace of the last launch */
} planted;

static inline bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                            const sat_device *d) {
    (void)v, (void)a, (void)d;
    return p->a_dtype == SAT_F32 && p->matmul.transpose == SAT_NO_TRANSPOSE;
}

static inline double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                              const sat_device *d) {
    (void)v, (void)p, (void)a, (void)d;
    return 1e-9;
}

static inline size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                               const sat_device *d) {
    (void)p, (void)a, (void)d;
    return ((const planted *)v->user)->workspace;
}

static inline sat_status prepare(const sat_prepare *p, void **state) {
    const planted *x = p->variant->user;
    if (!x->prepares) return SAT_OK;
    *state = malloc(1);
    return cudaMemsetAsync(p->workspace, 7, x->workspace, p->stream) == cudaSuccess ? SAT_OK : SAT_DEVICE_ERROR;
}

static atomic_int too_early; /* memory and states given back while something queued may use them */

static inline void release(const sat_variant *v, void *state) {
    (void)v;
    if (fake_pending()) too_early++;
    free(state);
}

static inline sat_status refresh(const sat_launch *l) {
    cudaError_t e = cudaMemcpyAsync(l->workspace, l->operands[0], BYTES, cudaMemcpyDeviceToDevice, l->stream);
    return e == cudaSuccess ? SAT_OK : sat_fail(SAT_DEVICE_ERROR, "refresh: %s", cudaGetErrorString(e));
}

static inline sat_status launch(const sat_launch *l) {
    planted *x = l->variant->user;
    bool fixed = x->refreshes && (l->problem->flags & SAT_FIXED_VALUES);
    size_t bytes = (size_t)(l->problem->m * l->problem->n) * 4;
    const void *from = x->prepares || fixed ? l->workspace : l->operands[0];
    void *taken = NULL;
    x->launches++, x->used = l->workspace;
    cudaGetDevice(&x->device);
    if (x->allocates && cudaMalloc(&taken, 64) == cudaSuccess) cudaFree(taken);
    if (x->faults_at == -1 || x->faults_at == l->problem->n) fake_fault(l->stream);
    cudaError_t e =
        cudaMemcpyAsync(l->operands[2], from, bytes < BYTES ? bytes : BYTES, cudaMemcpyDeviceToDevice, l->stream);
    if (e == cudaSuccess) return SAT_OK;
    return sat_fail(SAT_DEVICE_ERROR, "planted: %s", cudaGetErrorString(e));
}

static inline void plant(sat_context *ctx, planted *x, const char *name) {
    sat_variant v = {SAT_SIZED(sat_variant),
                     .name = name,
                     .revision = "1",
                     .op = SAT_MATMUL,
                     .backend = SAT_CUDA,
                     .priority = 1000,
                     .user = x,
                     .supports = supports,
                     .estimate = estimate,
                     .workspace = workspace,
                     .release = release,
                     .launch = launch,
                     .prepare = x->prepares ? prepare : NULL,
                     .refresh = x->refreshes ? refresh : NULL};
    assert_ok(sat_variant_register(ctx, &v));
}

/* ---- contexts, patterns and operands ---- */

static inline sat_context *open_with(sat_context_options o) {
    sat_context *ctx = NULL;
    o.size = sizeof o;
    if (!o.device) o.device = "cuda";
    if (!o.cache_dir) o.cache_dir = "";
    if (!o.budget_seconds) o.budget_seconds = 0.02;
    assert_ok(sat_context_create(&o, &ctx));
    return ctx;
}

static inline sat_context *open_fake(void) { return open_with((sat_context_options){.effort = SAT_EFFORT_QUICK}); }

static inline sat_pattern *full_pattern(sat_context *ctx) { /* 16 x 16 in blocks of 4 x 4, all of them stored */
    uint64_t random = 1;
    return random_pattern(ctx, &random, SIDE, SIDE, 4, 4, 1.1, false);
}

typedef struct operands {
    char *at[3];
} operands;

static inline operands make_operands(void) {
    operands o;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(cudaMalloc((void **)&o.at[i], BYTES), cudaSuccess);
        memset(o.at[i], 11 * (i + 1), BYTES);
    }
    return o;
}

static inline void free_operands(operands *o) {
    for (int i = 0; i < 3; i++) cudaFree(o->at[i]);
}

static inline sat_status run(sat_plan *plan, const operands *o, cudaStream_t stream) {
    return sat_run(plan, (const void *[]){o->at[0], o->at[1]}, 2, (void *[]){o->at[2]}, 1, stream);
}

static inline sat_status one_call(sat_context *ctx, const sat_pattern *pattern, int64_t n, const operands *o,
                                  cudaStream_t stream) {
    sat_problem p = matmul_problem(SAT_F32, n);
    return sat_bsr_matmul(ctx, pattern, &p, o->at[0], o->at[1], o->at[2], NULL, stream);
}

static inline cudaStream_t new_stream(void) {
    cudaStream_t s;
    assert_int_equal(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
    return s;
}

static inline void begin_capture(cudaStream_t s) {
    assert_int_equal(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal), cudaSuccess);
}

static inline cudaGraphExec_t end_capture(cudaStream_t s) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    assert_int_equal(cudaStreamEndCapture(s, &graph), cudaSuccess);
    assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    cudaGraphDestroy(graph);
    return exec;
}

static inline void replay(cudaGraphExec_t exec, cudaStream_t s) {
    assert_int_equal(cudaGraphLaunch(exec, s), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(s), cudaSuccess);
}

/* ---- all that most tests begin with: a context with one planted variant, a pattern, operands and a stream ---- */

typedef struct scene {
    planted x;
    sat_context *ctx;
    sat_pattern *pattern;
    sat_problem problem;
    sat_plan *plan; /* of the planted variant, where the test wants it: make_plan() */
    operands o;
    cudaStream_t stream;
} scene;

static inline void open_scene_with(scene *s, planted x, sat_context_options options) {
    *s = (scene){.x = x, .ctx = open_with(options), .problem = matmul_problem(SAT_F32, SIDE)};
    plant(s->ctx, &s->x, "planted");
    s->pattern = full_pattern(s->ctx);
    s->o = make_operands(), s->stream = new_stream();
}

static inline void open_scene(scene *s, planted x) {
    open_scene_with(s, x, (sat_context_options){.effort = SAT_EFFORT_QUICK});
}

static inline void make_plan(scene *s) {
    assert_ok(sat_plan_create_with(s->ctx, s->pattern, &s->problem, "planted", &s->plan));
}

static inline sat_status run_scene(scene *s) { return run(s->plan, &s->o, s->stream); }
static inline sat_status call_scene(scene *s) { return one_call(s->ctx, s->pattern, SIDE, &s->o, s->stream); }

static inline void close_scene(scene *s) {
    sat_plan_free(s->plan), sat_pattern_free(s->pattern), sat_context_free(s->ctx);
    free_operands(&s->o), cudaStreamDestroy(s->stream);
    assert_int_equal(fake.misuses, 0);
}

/* ---- an allocator of the program's own ---- */

static atomic_int held_now;

static inline void *user_alloc(void *user, size_t bytes, size_t alignment) {
    size_t *most = user;
    void *p = NULL;
    (void)alignment;
    if (bytes > *most || cudaMalloc(&p, bytes) != cudaSuccess) return NULL;
    held_now++;
    return p;
}

static inline void user_free(void *user, void *pointer) {
    (void)user;
    if (fake_pending()) too_early++; /* what is queued may use it */
    held_now--;
    cudaFree(pointer);
}

static inline const sat_result *result_of(const sat_race *race, const char *variant) {
    for (size_t i = 0; i < sat_race_count(race); i++)
        if (strcmp(sat_race_at(race, i)->variant, variant) == 0) return sat_race_at(race, i);
    return NULL;
}

static inline int reset(void **state) {
    (void)state;
    fake_reset();
    return 0;
}

#define TEST(name) cmocka_unit_test_setup(name, reset)

#endif
