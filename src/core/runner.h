/* A variant made ready for one problem: workspace, prepared state, and the call. Races and plans run through this. */
#ifndef SAT_RUNNER_H
#define SAT_RUNNER_H

#include "core/dynamic.h"

/* Workspace that runners of SAT_V_SCRATCH variants share where they never run at once. The caller that opens them frees
 * it. */
typedef struct sat_scratch {
    void *memory;
    size_t bytes;
} sat_scratch;

typedef struct sat_runner {
    sat_context *ctx;
    const sat_variant *variant;
    sat_device device;
    sat_problem problem;
    const sat_pattern_view *pattern;
    sat_tracker *tracker; /* where the indices change; else NULL */
    sat_scratch *scratch; /* lent; NULL: the workspace is its own */
    void *workspace, *state;
    size_t workspace_bytes;
    double prepare_seconds;
    bool refreshed;                      /* the fixed values have been converted */
    int most_threads;                    /* a run may use no more; 0: as many as there are */
    int64_t item_step[SAT_MAX_OPERANDS]; /* bytes from one batch item to the next */
} sat_runner;

/* Does this variant take this call? Backend, operation, determinism, indices that change, and its own `supports`. */
bool sat_variant_fits(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d);

/* `limit`: most bytes of workspace that it may take, or SAT_LIMIT_UNKNOWN; SAT_OUT_OF_MEMORY beyond. `scratch` may be
 * NULL. Variants see the struct's problem and device in `prepare` and `launch`, and may not keep pointers to them. */
sat_status sat_runner_open(sat_runner *r, sat_context *ctx, const sat_variant *v, const sat_problem *p,
                           const sat_pattern_view *a, const sat_device *d, size_t limit, sat_scratch *scratch);
void sat_runner_close(sat_runner *r); /* accepts a zeroed or failed one */
sat_status sat_runner_launch(sat_runner *r, void *const *operands, void *stream);
/* What a run found wrong with indices that change, as sat_tracker_fault has it. */
sat_status sat_runner_fault(const sat_runner *r);
size_t sat_runner_index_bytes(const sat_runner *r); /* of the copy that it has of such indices */
/* Garbage into a workspace that holds nothing from one launch to the next. */
sat_status sat_runner_spoil_workspace(sat_runner *r, int byte);
sat_status sat_runner_refresh(sat_runner *r, const void *values, void *stream);

#endif
