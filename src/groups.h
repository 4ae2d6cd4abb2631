/* Where groups begin and end: what the grouped products' operations, checks and kernels share. */
#ifndef SAT_GROUPS_H
#define SAT_GROUPS_H

#include "variant.h"

static inline size_t sat_index_size(sat_index_type t) { return t == SAT_I32 ? 4 : 8; }

SAT_BOTH static inline int64_t sat_offset_at(const void *offsets, sat_index_type t, int64_t i) {
    return t == SAT_I32 ? ((const int32_t *)offsets)[i] : ((const int64_t *)offsets)[i];
}

/* Copies the offsets of groups among m rows, and cuts them off at the first fault: from there on groups are empty.
 * Returns where that is, as an index of `offsets`; -1: they are right. What runs reads the copy and nothing else. */
static inline int64_t sat_groups_take(const sat_problem *p, const void *offsets, int64_t *to) {
    const sat_grouped *g = &p->grouped;
    int64_t fault = -1;
    to[0] = 0;
    if (g->groups > 0 && sat_offset_at(offsets, g->offset_type, 0) != 0) fault = 0;
    for (int64_t i = 1; i <= g->groups; i++) {
        int64_t at = fault < 0 ? sat_offset_at(offsets, g->offset_type, i) : to[i - 1];
        if (at < to[i - 1] || at > p->m) fault = i, at = to[i - 1];
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

#endif
