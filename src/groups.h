/* Where groups begin and end: what the grouped products' operations, checks and kernels share. */
#ifndef SAT_GROUPS_H
#define SAT_GROUPS_H

#include "variant.h"

static inline size_t sat_index_size(sat_index_type t) { return t == SAT_I32 ? 4 : 8; }

SAT_BOTH static inline int64_t sat_offset_at(const void *offsets, sat_index_type t, int64_t i) {
    return t == SAT_I32 ? ((const int32_t *)offsets)[i] : ((const int64_t *)offsets)[i];
}

/* Whether entry i, read as `at`, breaks the rules, where those before it keep them and the last of these is `before`.
 */
SAT_BOTH static inline bool sat_offset_breaks(int64_t i, int64_t at, int64_t before, int64_t m) {
    return i == 0 ? at != 0 : at < before || at > m;
}

/* Copies the offsets of groups among m rows, and cuts them off at the first fault: from there on groups are empty.
 * Returns where that is, as an index of `offsets`; -1: they are right. What runs reads the copy and nothing else. */
static inline int64_t sat_groups_take(const sat_problem *p, const void *offsets, int64_t *to) {
    const sat_grouped *g = &p->grouped;
    int64_t fault = -1;
    to[0] = 0;
    for (int64_t i = 0; i <= g->groups && g->groups > 0; i++) {
        int64_t before = i > 0 ? to[i - 1] : 0, at = fault < 0 ? sat_offset_at(offsets, g->offset_type, i) : before;
        if (fault < 0 && sat_offset_breaks(i, at, before, p->m)) fault = i, at = before;
        to[i] = at;
    }
    return fault;
}

/* The group of a row, among offsets that sat_groups_take gave; -1: it belongs to none. */
SAT_BOTH static inline int64_t sat_group_of(const int64_t *offsets, int64_t groups, int64_t row) {
    int64_t low = 0, high = groups; /* the first group that ends behind the row */
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (offsets[middle + 1] <= row) low = middle + 1;
        else high = middle;
    }
    return low < groups ? low : -1;
}

#ifdef __CUDACC__
/* sat_groups_take by all threads of one CTA, on the device. The first entry that breaks the rules beside the entry
 * before it is the first fault: all before it are right, and so equal to their copies. */
__device__ inline void sat_groups_take_by_cta(const sat_problem &p, const void *offsets, int64_t *to) {
    __shared__ unsigned long long fault;
    int64_t groups = p.grouped.groups;
    sat_index_type type = p.grouped.offset_type;
    if (threadIdx.x == 0) fault = groups + 1, to[0] = 0;
    __syncthreads();
    if (groups == 0) return;
    for (int64_t i = threadIdx.x; i <= groups; i += blockDim.x) {
        int64_t before = i > 0 ? sat_offset_at(offsets, type, i - 1) : 0;
        if (sat_offset_breaks(i, sat_offset_at(offsets, type, i), before, p.m))
            atomicMin(&fault, (unsigned long long)i);
    }
    __syncthreads();
    int64_t end = (int64_t)fault, last = end < 2 ? 0 : sat_offset_at(offsets, type, end - 1);
    for (int64_t i = 1 + threadIdx.x; i <= groups; i += blockDim.x)
        to[i] = i < end ? sat_offset_at(offsets, type, i) : last;
}
#endif

#endif
