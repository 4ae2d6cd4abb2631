/* The schedule of the tile scheduler (scheduler.h), as the host makes it: work items, and the rows that are split. */
#ifndef SAT_SCHEDULE_H
#define SAT_SCHEDULE_H

#include <stdlib.h>

#include "kernels/cuda/common/scheduler.h"

/* A row that was split: its partial sums are `partial` to `partial + parts - 1`. */
typedef struct sat_split_row {
    int32_t row, partial, parts, unused;
} sat_split_row;

typedef struct sat_schedule {
    int64_t items, splits, partials; /* work items, split rows, partial sums */
    int64_t heavy;                   /* the first `heavy` items have more than 2x the mean over non-empty items */
    bool even;                       /* no item has more than 1.25x that mean */
    sat_work_item *item;             /* the work items, longest first */
    sat_split_row *split;            /* the split rows */
} sat_schedule;

#ifdef __cplusplus
extern "C" {
#endif
/* Makes the schedule of the rows `r`; false: out of memory. Free it with sat_schedule_free. */
bool sat_schedule_make(const sat_rows *r, int64_t share, sat_schedule *s);
void sat_schedule_free(sat_schedule *s);
/* How many panels of `panel_bytes` are worked on at a time: enough for `tiles` tiles, but no more than L2 holds beside
 * what is written. Returns 1 if the items are even (none has more than 1.25x the mean). All sets get nearly the same
 * number of panels, since a small last set would begin long tiles late. */
unsigned sat_panels_in_flight(bool even, int64_t tiles_of_panel, int64_t panels, double panel_bytes, double tiles,
                              double l2_bytes);
#ifdef __cplusplus
}
#endif

#endif
