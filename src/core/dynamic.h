/* Patterns whose indices change between runs: where the caller has them, and what each plan of such a pattern owns: the
 * validated copy, which is made anew before every run, and the record of faults. */
#ifndef SAT_DYNAMIC_H
#define SAT_DYNAMIC_H

#include <pthread.h>

#include "core/context.h"

typedef struct sat_tracker sat_tracker;

/* What a view's `dynamic` points to. A race has one of its own, on masks that it makes up. */
typedef struct sat_dynamic {
    sat_index_type type;
    const void *row_ptr, *col_idx; /* the caller's */
    int64_t row_stride;            /* not 0: padded, and row_ptr has counts */
    pthread_mutex_t lock;
    sat_tracker *trackers; /* of the plans that there are */
    sat_index_fault left;  /* the fault of a plan that is gone, where `runs` is not 0 */
} sat_dynamic;

void sat_dynamic_init(sat_dynamic *s, sat_index_type type, const void *row_ptr, const void *col_idx,
                      int64_t row_stride);
void sat_dynamic_end(sat_dynamic *s); /* after its trackers */
/* A fault that was not returned yet, as a failure. */
sat_status sat_dynamic_fault(const sat_pattern_view *a);

/* `limit` as sat_runner_open has it. */
sat_status sat_tracker_open(sat_tracker **tracker, sat_context *ctx, const sat_device *d, const sat_problem *p,
                            const sat_pattern_view *a, size_t limit);
void sat_tracker_close(sat_tracker *t); /* accepts NULL */
/* The view of the copy: for `prepare` and `launch`, valid as long as the tracker. */
const sat_pattern_view *sat_tracker_view(const sat_tracker *t);
size_t sat_tracker_bytes(const sat_tracker *t);
/* Where the next launch reads row_ptr and col_idx; NULL: where the pattern has them. */
void sat_tracker_read_from(sat_tracker *t, const void *const *indices);
/* Around a launch: queues the copy; and zeros into the blocks of an output of values that no row has. */
sat_status sat_tracker_before(sat_tracker *t, int threads, void *stream);
sat_status sat_tracker_after(sat_tracker *t, void *const *operands, void *stream);
/* What a run on these indices has found and nothing has returned yet, as far as it shows without waiting. */
sat_status sat_tracker_fault(sat_tracker *t);

#endif
