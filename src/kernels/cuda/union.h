/* Groups of block rows along the union of their columns: where rows share a column, what they multiply it
 * by is fetched once. Plain C, so that the host's tests see every block met exactly once. */
#ifndef SAT_UNION_H
#define SAT_UNION_H

#include <stdlib.h>

#include "variant.h"

typedef struct sat_union_step {
    int32_t col;   /* block column */
    uint32_t rows; /* bit i: row i of the group has a block there */
} sat_union_step;

typedef struct sat_union {
    int64_t groups, steps;
    int64_t *ptr; /* of the steps of each group, and one more */
    sat_union_step *step;
} sat_union;

static inline void sat_union_free(sat_union *u) {
    free(u->ptr);
    free(u->step);
    u->ptr = NULL, u->step = NULL;
}

/* Merges `size` (up to 32) rows, -1 for none; their columns ascend. Returns the steps written to `to`. */
static inline int64_t sat_union_merge(const sat_rows *r, const int32_t *row, int size, sat_union_step *to) {
    int64_t at[32], end[32], count = 0;
    for (int i = 0; i < size; i++)
        at[i] = row[i] < 0 ? 0 : r->ptr[row[i]], end[i] = row[i] < 0 ? 0 : r->ptr[row[i] + 1];
    for (;; count++) {
        int32_t col = INT32_MAX;
        for (int i = 0; i < size; i++)
            if (at[i] < end[i] && r->col[at[i]] < col) col = r->col[at[i]];
        if (col == INT32_MAX) return count;
        sat_union_step step = {col, 0};
        for (int i = 0; i < size; i++)
            if (at[i] < end[i] && r->col[at[i]] == col) step.rows |= 1u << i, at[i]++;
        to[count] = step;
    }
}

/* Neighbours in groups; `row` has room for whole groups. */
static inline void sat_union_neighbours(int64_t rows, int size, int32_t *row) {
    for (int64_t i = 0; i < (rows + size - 1) / size * size; i++) row[i] = i < rows ? (int32_t)i : -1;
}

static inline int64_t sat_union_common(const sat_rows *r, int64_t x, int64_t y) { /* columns that both rows have */
    int64_t i = r->ptr[x], j = r->ptr[y], common = 0;
    while (i < r->ptr[x + 1] && j < r->ptr[y + 1]) {
        int32_t a = r->col[i], b = r->col[j];
        common += a == b, i += a <= b, j += b <= a;
    }
    return common;
}

enum { SAT_UNION_WINDOW = 64 }; /* rows that are looked through for a partner */

/* Pairs of rows that share columns: each in turn takes the one behind it that has most in common with it. False: no
 * memory. */
static inline bool sat_union_pairs(const sat_rows *r, int32_t *row) {
    char *taken = (char *)calloc((size_t)r->count + 1, 1);
    if (!taken) return false;
    int64_t at = 0;
    for (int64_t x = 0; x < r->count; x++) {
        int64_t best = -1, most = -1, seen = 0;
        if (taken[x]) continue;
        for (int64_t y = x + 1; y < r->count && seen < SAT_UNION_WINDOW; y++) {
            if (taken[y]) continue;
            int64_t common = sat_union_common(r, x, y);
            seen++;
            if (common > most) most = common, best = y;
        }
        row[at++] = (int32_t)x, row[at++] = (int32_t)best;
        if (best >= 0) taken[best] = 1;
    }
    free(taken);
    return true;
}

/* `row`: groups of `size`, one after the other, each row once. */
static inline bool sat_union_make(const sat_rows *r, const int32_t *row, int size, sat_union *u) {
    u->groups = (r->count + size - 1) / size, u->steps = 0;
    u->ptr = (int64_t *)malloc(((size_t)u->groups + 1) * sizeof *u->ptr);
    u->step = (sat_union_step *)malloc(((size_t)r->ptr[r->count] + 1) * sizeof *u->step);
    if (!u->ptr || !u->step) {
        sat_union_free(u);
        return false;
    }
    u->ptr[0] = 0;
    for (int64_t g = 0; g < u->groups; g++) {
        u->steps += sat_union_merge(r, row + g * size, size, u->step + u->steps);
        u->ptr[g + 1] = u->steps;
    }
    return true;
}

/* Bytes that hold the steps of any such union, and how many there should be where columns are drawn by chance. */
static inline size_t sat_union_bytes(int64_t blocks) {
    return ((size_t)blocks * sizeof(sat_union_step) + 511) / 256 * 256;
}
static inline double sat_union_expected(int64_t rows, int64_t cols, int64_t blocks, int size) {
    double density = (double)blocks / ((double)rows * (double)cols + 1e-9);
    int64_t groups = (rows + size - 1) / size;
    return (double)groups * (double)cols * (1 - pow(1 - (density < 1 ? density : 1), size));
}

#endif
