// Kernel time of variants: CUDA graphs of ten or more runs (one of those past a millisecond, and fewer rounds of it),
// replayed in turns. Each replay that counts is queued behind one that does not, so the host's time is hidden; pauses
// keep the device from heating up.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench_gpu.h"

enum { MOST_VARIANTS = 64, ROUNDS = 15, SLOW_ROUNDS = 5, PAUSE_MICROSECONDS = 3000 };

typedef struct entrant {
    char name[128];
    sat_plan *plan;
    sat_plan_info info;
    cudaGraphExec_t graph; // NULL: its runs cannot be captured
    int calls, most;       // runs of a graph; rounds
    double times[ROUNDS];
    int rounds;
    char message[256];
} entrant;

static struct {
    sat_context *context;
    cudaStream_t stream;
    cudaEvent_t begin, end;
} desk;

static bool queue_runs(const job *j, const entrant *e, int calls) {
    for (int i = 0; i < calls; i++)
        if (sat_run(e->plan, j->operands, desk.stream) != SAT_OK) return false;
    return true;
}

static bool queue(const job *j, const entrant *e) {
    if (e->graph) return cudaGraphLaunch(e->graph, desk.stream) == cudaSuccess;
    return queue_runs(j, e, e->calls);
}

static double timed(const job *j, const entrant *e, int calls) {
    float ms = 0;
    bool good = calls ? queue_runs(j, e, calls) : queue(j, e);
    good = good && cudaEventRecord(desk.begin, desk.stream) == cudaSuccess;
    good = good && (calls ? queue_runs(j, e, calls) : queue(j, e));
    good = good && cudaEventRecord(desk.end, desk.stream) == cudaSuccess;
    good = good && cudaEventSynchronize(desk.end) == cudaSuccess;
    good = good && cudaEventElapsedTime(&ms, desk.begin, desk.end) == cudaSuccess;
    return good ? ms * 1e-3 : -1;
}

static void capture(const job *j, entrant *e) {
    cudaGraph_t graph = NULL;
    if (cudaStreamBeginCapture(desk.stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) return;
    bool good = queue_runs(j, e, e->calls);
    if (!good) snprintf(e->message, sizeof e->message, "not captured: %.200s", sat_last_error());
    good = cudaStreamEndCapture(desk.stream, &graph) == cudaSuccess && good && graph;
    if (!good || cudaGraphInstantiate(&e->graph, graph, 0) != cudaSuccess) e->graph = NULL;
    if (graph) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
}

// False with a message where it cannot take part.
static bool enter(const job *j, entrant *e) {
    sat_status status = sat_plan_create_with(desk.context, j->pattern, &j->problem, e->name, &e->plan);
    e->info.size = sizeof e->info;
    if (status == SAT_OK) status = sat_plan_get_info(e->plan, &e->info);
    if (status == SAT_OK) status = sat_run(e->plan, j->operands, desk.stream);
    if (status == SAT_OK) status = sat_stream_wait(desk.context, desk.stream);
    if (status != SAT_OK) {
        snprintf(e->message, sizeof e->message, "%s: %.200s", sat_status_name(status), sat_last_error());
        return false;
    }
    double once = timed(j, e, 3) / 3;
    if (once <= 0) return snprintf(e->message, sizeof e->message, "a run failed: %.200s", sat_last_error()), false;
    e->calls = once < 3e-6 ? 100 : once < 3e-5 ? (int)(3e-4 / once) : once < 1e-3 ? 10 : 1;
    e->most = once < 1e-3 ? ROUNDS : SLOW_ROUNDS;
    capture(j, e);
    return true;
}

static void leave(entrant *e) {
    if (e->graph) (void)cudaGraphExecDestroy(e->graph);
    sat_plan_free(e->plan);
}

static void print(const job *j, entrant *e) {
    printf("{\"id\": %d, \"variant\": \"%s\", ", j->id, e->name);
    if (e->rounds > 0) {
        double middle = median(e->times, e->rounds) / e->calls;
        printf("\"seconds\": %.9g, \"fastest\": %.9g, \"spread\": %.3g, ", middle, e->times[0] / e->calls,
               (e->times[e->rounds * 3 / 4] - e->times[e->rounds / 4]) / 2 / e->calls);
        printf("\"graph\": %s, \"calls\": %d, \"prepare_seconds\": %.6g, \"workspace_bytes\": %zu, ",
               e->graph ? "true" : "false", e->calls, e->info.prepare_seconds, e->info.workspace_bytes);
    } else printf("\"seconds\": null, ");
    for (char *c = e->message; *c; c++)
        if (*c == '"' || *c == '\\' || (unsigned char)*c < 0x20) *c = '\'';
    printf("\"message\": \"%s\"}\n", e->message);
    fflush(stdout);
}

static void run_job(const job *j) {
    static entrant all[MOST_VARIANTS];
    int count = 0;
    memset(all, 0, sizeof all);
    char names[sizeof j->variants];
    memcpy(names, j->variants, sizeof names);
    for (char *name = strtok(names, ","); name && count < MOST_VARIANTS; name = strtok(NULL, ",")) {
        entrant *e = &all[count++];
        snprintf(e->name, sizeof e->name, "%.127s", name);
        if (!enter(j, e)) leave(e), e->plan = NULL;
    }
    for (int round = -1; round < ROUNDS; round++) // the first is not counted
        for (int i = 0; i < count; i++) {
            entrant *e = &all[i];
            if (!e->plan || round >= e->most) continue;
            usleep(PAUSE_MICROSECONDS);
            double seconds = timed(j, e, 0);
            if (round >= 0 && seconds > 0) e->times[e->rounds++] = seconds;
        }
    for (int i = 0; i < count; i++) {
        print(j, &all[i]);
        if (all[i].plan) leave(&all[i]);
    }
}

int time_jobs(const char *file) {
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cuda", .cache_dir = "",
                             .effort = SAT_EFFORT_OFF};
    need_ok(sat_context_create(&o, &desk.context), "context");
    need(cudaStreamCreateWithFlags(&desk.stream, cudaStreamNonBlocking) == cudaSuccess, "stream");
    need(cudaEventCreate(&desk.begin) == cudaSuccess && cudaEventCreate(&desk.end) == cudaSuccess, "events");
    FILE *f = fopen(file, "r");
    need(f != NULL, file);
    static char line[8192];
    while (fgets(line, sizeof line, f)) {
        job j;
        if (!job_open(&j, desk.context, line)) continue;
        run_job(&j);
        job_close(&j, desk.context);
    }
    fclose(f);
    sat_context_free(desk.context);
    return 0;
}
