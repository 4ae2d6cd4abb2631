/* The query heads of a key head, split over CTAs: where tiles of keys alone leave multiprocessors idle, each split
 * writes partial sums of dK and dV in f32, (2, batch, key heads, splits, keys, dim), and a kernel adds them up in
 * order. */
#ifndef SAT_ATTENTION_SPLITS_H
#define SAT_ATTENTION_SPLITS_H

#include "attention.h"

/* How many splits, a power of two; the bytes of their sums, 0 without splits. */
int attention_log2_splits(const sat_problem *p, const sat_pattern_view *a, const sat_device *d, int64_t tile_keys);
size_t attention_splits_bytes(const sat_problem *p, int log2_splits);

/* Queues that kernel. All of the kernel that writes the sums must have ended by then. */
sat_status attention_reduce_splits(const sat_launch *l, const float *partial, int log2_splits);

#endif
