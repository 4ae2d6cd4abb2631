/* bench_gpu: what bench/gpu_check measures through the public API: kernel time from CUDA graphs, and the host's time.
 */
#ifndef BENCH_GPU_H
#define BENCH_GPU_H

#include <cuda_runtime_api.h>

#include "sparse_autotune.h"

/* Ends the program with a message unless it holds. */
void need(bool holds, const char *what);
void need_ok(sat_status status, const char *what);
double now_seconds(void);
double median(double *values, int count); /* sorts them */

/* One problem, its pattern and its operands on the device. */
typedef struct job {
    int id;
    sat_problem problem;
    sat_pattern *pattern;
    int count;         /* operands */
    void *operands[9]; /* the most that an operation has: attention's gradients */
    size_t bytes[9];
    sat_dtype types[9];
    char variants[4096]; /* names separated by ',' */
    bool estimate;       /* the estimate's choice takes part too, and is marked */
    int within; /* per cent of the fastest, after one round: who takes longer, but for the first, leaves; 0: all stay */
} job;

/* From a line of words "name=value"; false for a line that says nothing. Ends the program where it makes no sense. */
bool job_open(job *j, sat_context *context, const char *line);
void job_close(job *j, sat_context *context);
/* Runs a plan of the job's problem, or of the forward pass of its gradients. */
sat_status job_run(const job *j, sat_plan *plan, bool forward, void *stream);
/* Random values between -1 and 1 in all operands; the same for the same seed. */
void job_fill(const job *j, sat_context *context, uint64_t seed);

int time_jobs(const char *file); /* prints one JSON object a line for each variant of each job */
int measure_costs(void);         /* prints one JSON object a line for each cost */

#endif
