// What a run costs its caller: the host's time of sat_run and of the one-call form, and that a run can be captured into
// a CUDA graph, which allocating or waiting would forbid, and be replayed with new values.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda.h"
#include "bench_gpu.h"

enum { SIDE = 256, BLOCK = 32, COLUMNS = 64, GRID = SIDE / BLOCK, BATCHES = 100, BATCH = 100 };

static void small_job(job *j, sat_context *context) {
    int32_t ptr[GRID + 1] = {0}, col[2 * GRID];
    for (int i = 0; i < GRID; i++) { // the diagonal and one more
        int first = i, second = (i + 3) % GRID;
        col[2 * i] = first < second ? first : second, col[2 * i + 1] = first < second ? second : first;
        ptr[i + 1] = 2 * i + 2;
    }
    sat_bsr s = {SAT_SIZED(sat_bsr), .rows = SIDE, .cols = SIDE, .block_rows = BLOCK, .block_cols = BLOCK};
    s.stored_blocks = 2 * GRID, s.index_type = SAT_I32, s.row_ptr = ptr, s.col_idx = col;
    *j = (job){.problem = {SAT_SIZED(sat_problem)}, .count = 3, .types = {SAT_F16, SAT_F16, SAT_F16}};
    need_ok(sat_problem_matmul(&j->problem, SAT_F16, COLUMNS), "problem");
    need_ok(sat_pattern_create(context, &s, &j->pattern), "pattern");
    j->problem.a_align = j->problem.b_align = j->problem.c_align = 256;
    j->bytes[0] = (size_t)2 * GRID * BLOCK * BLOCK * 2, j->bytes[1] = j->bytes[2] = (size_t)SIDE * COLUMNS * 2;
    for (int i = 0; i < 3; i++) need_ok(sat_memory_alloc(context, j->bytes[i], &j->operands[i]), "operands");
    job_fill(j, context, 1);
}

typedef struct caller {
    sat_context *context;
    sat_plan *plan;
    const job *j;
    cudaStream_t stream;
} caller;

static sat_status call_plan(const caller *c) { return job_run(c->j, c->plan, false, c->stream); }

// What any launch costs here: a kernel that does nothing, by the library's own runtime.
static sat_status call_nothing(const caller *c) {
    return sat_cuda_nothing(c->stream) == cudaSuccess ? SAT_OK : SAT_DEVICE_ERROR;
}

static sat_status call_once(const caller *c) {
    void *const *o = c->j->operands;
    return sat_bsr_matmul(c->context, c->j->pattern, &c->j->problem, o[0], o[1], o[2], NULL, c->stream);
}

// The median over batches that are short enough for the queue to take them without waiting.
static double host_seconds(const caller *c, sat_status (*call)(const caller *)) {
    static double times[BATCHES];
    for (int b = -3; b < BATCHES; b++) {
        double start = now_seconds();
        for (int i = 0; i < BATCH; i++) need_ok(call(c), "a run");
        double taken = (now_seconds() - start) / BATCH;
        if (b >= 0) times[b] = taken;
        need(cudaStreamSynchronize(c->stream) == cudaSuccess, "waiting");
    }
    return median(times, BATCHES);
}

static void print_cost(const char *name, double seconds, double limit) {
    printf("{\"name\": \"%s\", \"seconds\": %.6g, \"limit\": ", name, seconds);
    if (limit > 0) printf("%.6g}\n", limit);
    else printf("null}\n");
}

/* ---- capture ---- */

static void read_result(const caller *c, void *to) {
    need_ok(sat_stream_wait(c->context, c->stream), "waiting");
    need_ok(sat_memory_read(c->context, to, c->j->operands[2], c->j->bytes[2]), "reading");
}

// Captured once; then new values and a new B where the old ones were. The replay must give what a plain run gives.
static const char *capture_and_replay(const caller *c) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    const char *wrong = NULL;
    size_t bytes = c->j->bytes[2], before = 0, after = 0, total;
    char *old = malloc(bytes), *replayed = malloc(bytes), *plain = malloc(bytes);
    need(old && replayed && plain, "memory");
    need_ok(call_plan(c), "a run");
    read_result(c, old);
    (void)cudaMemGetInfo(&before, &total);
    // Global: the strictest, under which any call that may allocate or wait is refused.
    need(cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeGlobal) == cudaSuccess, "capture");
    sat_status status = call_plan(c);
    cudaError_t ended = cudaStreamEndCapture(c->stream, &graph);
    (void)cudaMemGetInfo(&after, &total);
    if (status != SAT_OK) wrong = "sat_run failed while its stream was captured";
    else if (ended != cudaSuccess || !graph) wrong = "the capture was broken by what sat_run did";
    else if (before != after) wrong = "device memory changed hands during the capture";
    else if (cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess) wrong = "the graph cannot be instantiated";
    if (!wrong) {
        job_fill(c->j, c->context, 7);
        need(cudaGraphLaunch(exec, c->stream) == cudaSuccess, "replay");
        read_result(c, replayed);
        need_ok(call_plan(c), "a run");
        read_result(c, plain);
        if (memcmp(replayed, plain, bytes) != 0) wrong = "the replay differs from a plain run";
        else if (memcmp(replayed, old, bytes) == 0) wrong = "the replay did not see the new values";
    }
    if (exec) (void)cudaGraphExecDestroy(exec);
    if (graph) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    free(old), free(replayed), free(plain);
    return wrong;
}

int measure_costs(void) {
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cuda", .cache_dir = ""};
    caller c = {0};
    job j;
    sat_plan_info info = {SAT_SIZED(sat_plan_info)};
    need_ok(sat_context_create(&o, &c.context), "context");
    small_job(&j, c.context);
    c.j = &j;
    need(cudaStreamCreateWithFlags(&c.stream, cudaStreamNonBlocking) == cudaSuccess, "stream");
    need_ok(sat_plan_create(c.context, j.pattern, &j.problem, &c.plan), "plan");
    need_ok(sat_plan_get_info(c.plan, &info), "plan");
    printf("{\"name\": \"plan\", \"variant\": \"%s\", \"tuning_seconds\": %.6g}\n", info.variant, info.tuning_seconds);
    print_cost("an empty kernel, host time of a launch", host_seconds(&c, call_nothing), 0);
    print_cost("sat_run, host time of a call", host_seconds(&c, call_plan), 5e-6);
    print_cost("sat_bsr_matmul, host time of a call", host_seconds(&c, call_once), 0);
    const char *wrong = capture_and_replay(&c);
    printf("{\"name\": \"capture\", \"ok\": %s, \"message\": \"%s\"}\n", wrong ? "false" : "true", wrong ? wrong : "");
    sat_plan_free(c.plan);
    job_close(&j, c.context);
    sat_context_free(c.context);
    return wrong != NULL;
}
