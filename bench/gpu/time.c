// Kernel time of variants: CUDA graphs of ten or more runs (one of those past a millisecond, and fewer rounds of it),
// replayed in turns. Each replay that counts is queued behind one that does not, so the host's time is hidden; pauses
// keep the device from heating up. Then, one run at a time, with the operands out of L2.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cuda.h"
#include "bench_gpu.h"

enum { MOST_VARIANTS = 64, ROUNDS = 15, SLOW_ROUNDS = 5, COLD_ROUNDS = 9, PAUSE_MICROSECONDS = 3000 };

typedef struct entrant {
    char name[128];
    sat_plan *plan;
    sat_plan_info info;
    cudaGraphExec_t graph;       // NULL: its runs cannot be captured
    int calls, most;             // runs of a graph; rounds
    double first, times[ROUNDS]; // first: of one run in the round that does not count
    double cold;                 // seconds; 0: not measured
    int rounds;
    bool estimated; // the estimate would have chosen it
    char message[256];
} entrant;

static struct {
    sat_context *context;
    cudaStream_t stream;
    cudaEvent_t begin, end;
    void *room; // what a sweep reads instead of the operands
    size_t room_bytes;
    double nothing; // an empty kernel's time between two events, behind a sweep
} timing;

static bool queue_runs(const job *j, const entrant *e, int calls) {
    for (int i = 0; i < calls; i++)
        if (job_run(j, e->plan, false, timing.stream) != SAT_OK) return false;
    return true;
}

static bool queue(const job *j, const entrant *e) {
    if (e->graph) return cudaGraphLaunch(e->graph, timing.stream) == cudaSuccess;
    return queue_runs(j, e, e->calls);
}

static double timed(const job *j, const entrant *e, int calls) {
    float ms = 0;
    bool good = calls ? queue_runs(j, e, calls) : queue(j, e);
    good = good && cudaEventRecord(timing.begin, timing.stream) == cudaSuccess;
    good = good && (calls ? queue_runs(j, e, calls) : queue(j, e));
    good = good && cudaEventRecord(timing.end, timing.stream) == cudaSuccess;
    good = good && cudaEventSynchronize(timing.end) == cudaSuccess;
    good = good && cudaEventElapsedTime(&ms, timing.begin, timing.end) == cudaSuccess;
    return good ? ms * 1e-3 : -1;
}

static void capture(const job *j, entrant *e) {
    cudaGraph_t graph = NULL;
    if (cudaStreamBeginCapture(timing.stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) return;
    bool good = queue_runs(j, e, e->calls);
    if (!good) snprintf(e->message, sizeof e->message, "not captured: %.200s", sat_last_error());
    good = cudaStreamEndCapture(timing.stream, &graph) == cudaSuccess && good && graph;
    if (!good || cudaGraphInstantiate(&e->graph, graph, 0) != cudaSuccess) e->graph = NULL;
    if (graph) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
}

// False with a message where it cannot take part.
static bool enter(const job *j, entrant *e) {
    sat_status status = sat_plan_create_with(timing.context, j->pattern, &j->problem, e->name, &e->plan);
    e->info.size = sizeof e->info;
    if (status == SAT_OK) status = sat_plan_get_info(e->plan, &e->info);
    if (status == SAT_OK) status = job_run(j, e->plan, false, timing.stream);
    if (status == SAT_OK) status = sat_stream_wait(timing.context, timing.stream);
    if (status != SAT_OK) {
        snprintf(e->message, sizeof e->message, "%s: %.200s", sat_status_name(status), sat_last_error());
        return false;
    }
    double once = timed(j, e, 3) / 3;
    if (once <= 0) return snprintf(e->message, sizeof e->message, "a run failed: %.200s", sat_last_error()), false;
    e->calls = once < 1e-5 ? 100 : once < 1e-4 ? (int)(1e-3 / once) : once < 1e-3 ? 10 : 1;
    e->most = once < 1e-3 ? ROUNDS : SLOW_ROUNDS;
    capture(j, e);
    return true;
}

static void leave(entrant *e) {
    if (e->graph) (void)cudaGraphExecDestroy(e->graph);
    sat_plan_free(e->plan);
}

/* ---- cold: as the library's own races take it ---- */

static sat_status run_nothing(const job *j, const entrant *e) {
    (void)j, (void)e;
    return sat_cuda_nothing(timing.stream) == cudaSuccess ? SAT_OK : SAT_DEVICE_ERROR;
}

static sat_status run_once(const job *j, const entrant *e) { return job_run(j, e->plan, false, timing.stream); }

// The median time of `run` behind a sweep; negative where something failed.
static double behind_sweep(const job *j, const entrant *e, sat_status (*run)(const job *, const entrant *)) {
    double times[COLD_ROUNDS];
    for (int i = -1; i < COLD_ROUNDS; i++) { // the first is not counted
        float ms = 0;
        bool good = sat_cuda_sweep(timing.room, timing.room_bytes, timing.stream) == cudaSuccess;
        good = good && cudaEventRecord(timing.begin, timing.stream) == cudaSuccess && run(j, e) == SAT_OK;
        good = good && cudaEventRecord(timing.end, timing.stream) == cudaSuccess;
        good = good && cudaEventSynchronize(timing.end) == cudaSuccess;
        good = good && cudaEventElapsedTime(&ms, timing.begin, timing.end) == cudaSuccess;
        if (!good) return -1;
        if (i >= 0) times[i] = ms * 1e-3;
    }
    return median(times, COLD_ROUNDS);
}

static void time_cold(const job *j, entrant *e) {
    double seconds = behind_sweep(j, e, run_once) - timing.nothing;
    e->cold = seconds > 0 ? seconds : 0;
}

/* ---- a job ---- */

static void print_times(const entrant *e) { // in their order, so that those of one round can be compared
    printf("\"times\": [");
    for (int i = 0; i < e->rounds; i++) printf("%s%.6g", i ? ", " : "", e->times[i] / e->calls);
    printf("], ");
}

static void print(const job *j, entrant *e) {
    printf("{\"id\": %d, \"variant\": \"%s\", \"estimated\": %s, ", j->id, e->name, e->estimated ? "true" : "false");
    if (e->rounds > 0) {
        print_times(e);
        if (e->cold > 0) printf("\"cold_seconds\": %.9g, ", e->cold);
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

// The names of a job, and with them the estimate's choice: what a plan has without a race.
static int take_names(const job *j, entrant *all) {
    char names[sizeof j->variants];
    int count = 0, found = -1;
    sat_plan *plan = NULL;
    sat_plan_info info = {SAT_SIZED(sat_plan_info)};
    memcpy(names, j->variants, sizeof names);
    for (char *name = strtok(names, ","); name && count < MOST_VARIANTS - 1; name = strtok(NULL, ","))
        snprintf(all[count++].name, sizeof all[0].name, "%.127s", name);
    if (!j->estimate) return count;
    need_ok(sat_plan_create(timing.context, j->pattern, &j->problem, &plan), "the estimate's plan");
    need_ok(sat_plan_get_info(plan, &info), "the estimate's plan");
    sat_plan_free(plan);
    for (int i = 0; i < count; i++)
        if (strcmp(all[i].name, info.variant) == 0) found = i;
    if (found < 0) snprintf(all[found = count++].name, sizeof all[0].name, "%.127s", info.variant);
    all[found].estimated = true;
    return count;
}

// Whoever is far behind after a first round; not the first, whose time is wanted, nor the estimate's.
static void drop_slow(const job *j, entrant *all, int count) {
    double least = 0;
    for (int i = 0; i < count; i++)
        if (all[i].plan && all[i].first > 0 && (least == 0 || all[i].first < least)) least = all[i].first;
    for (int i = 1; i < count && j->within > 0; i++)
        if (all[i].plan && !all[i].estimated && all[i].first > least * j->within / 100) {
            snprintf(all[i].message, sizeof all[i].message, "left after one round of %.3g us", 1e6 * all[i].first);
            leave(&all[i]), all[i].plan = NULL;
        }
}

static void run_round(const job *j, entrant *all, int count, int round) {
    for (int i = 0; i < count; i++) {
        entrant *e = &all[i];
        if (!e->plan || round >= e->most) continue;
        usleep(PAUSE_MICROSECONDS);
        double seconds = timed(j, e, 0);
        if (round < 0) e->first = seconds / e->calls;
        else if (seconds > 0) e->times[e->rounds++] = seconds;
    }
}

static void run_job(const job *j) {
    static entrant all[MOST_VARIANTS];
    memset(all, 0, sizeof all);
    int count = take_names(j, all);
    for (int i = 0; i < count; i++)
        if (!enter(j, &all[i])) leave(&all[i]), all[i].plan = NULL;
    run_round(j, all, count, -1);
    drop_slow(j, all, count);
    for (int round = 0; round < ROUNDS; round++) run_round(j, all, count, round);
    for (int i = 0; i < count; i++) {
        if (all[i].plan && !j->within) time_cold(j, &all[i]);
        print(j, &all[i]);
        if (all[i].plan) leave(&all[i]);
    }
}

int time_jobs(const char *file) {
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cuda", .cache_dir = "",
                             .effort = SAT_EFFORT_OFF};
    need_ok(sat_context_create(&o, &timing.context), "context");
    need(cudaStreamCreateWithFlags(&timing.stream, cudaStreamNonBlocking) == cudaSuccess, "stream");
    need(cudaEventCreate(&timing.begin) == cudaSuccess && cudaEventCreate(&timing.end) == cudaSuccess, "events");
    timing.room_bytes = 2 * (size_t)sat_context_device(timing.context)->l2_bytes;
    need_ok(sat_memory_alloc(timing.context, timing.room_bytes, &timing.room), "room of a sweep");
    need(cudaMemset(timing.room, 0, timing.room_bytes) == cudaSuccess, "room of a sweep");
    timing.nothing = behind_sweep(NULL, NULL, run_nothing);
    need(timing.nothing > 0, "an empty kernel");
    FILE *f = fopen(file, "r");
    need(f != NULL, file);
    static char line[8192];
    while (fgets(line, sizeof line, f)) {
        job j;
        if (!job_open(&j, timing.context, line)) continue;
        run_job(&j);
        job_close(&j, timing.context);
    }
    fclose(f);
    sat_memory_free(timing.context, timing.room);
    sat_context_free(timing.context);
    return 0;
}
