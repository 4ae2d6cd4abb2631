/* Rows of small blocks taken together: what a CTA that has 256 rows of C copies and multiplies, stage after stage.
 *
 * The rows of a group are walked as one, along the union of their columns, so that a piece of B is fetched once for all
 * rows that have a block there. Everything is in units of 16: a unit is 16 of k, a strip 16 rows, a cell the 16 x 16
 * values of a strip in a unit. Plain C, so that the host's tests see every stored block in it exactly once. */
#ifndef SAT_MMA_UNION_H
#define SAT_MMA_UNION_H

#include "variant.h"

enum {
    SAT_UNION_ROWS = 256,
    SAT_UNION_UNITS = 8,  /* of a stage, at most */
    SAT_UNION_CELLS = 24, /* of a stage, at most; those of one unit, up to 16, always fit */
    SAT_UNION_NONE = 255
};

typedef struct sat_union_stage {
    int32_t k[SAT_UNION_UNITS];          /* where each unit begins */
    uint32_t cell[SAT_UNION_CELLS];      /* where the values of each cell are, in chunks of 16 bytes */
    uint8_t slot[4][SAT_UNION_UNITS][4]; /* by four strips, unit and strip: which cell, or SAT_UNION_NONE */
    uint8_t unit[SAT_UNION_CELLS + 8];   /* the unit of each cell */
    int32_t units, cells;                /* how many */
    int32_t ragged, last;                /* a unit goes beyond the matrix; the group ends here */
} sat_union_stage;

static inline int64_t sat_union_groups(const sat_rows *r) {
    return (r->count * r->br + SAT_UNION_ROWS - 1) / SAT_UNION_ROWS;
}

static inline void sat_union_clear(sat_union_stage *s) {
    memset(s, 0, sizeof *s);
    memset(s->slot, SAT_UNION_NONE, sizeof s->slot);
}

/* The cells of block `at` of the rows' order, row `row` of its group, in the stage's last unit. */
static inline void sat_union_add(const sat_rows *r, sat_union_stage *s, int64_t at, int64_t row, int64_t in_block) {
    for (int64_t i = 0; i < r->br / 16; i++) {
        int64_t strip = row * (r->br / 16) + i;
        int64_t element = sat_block_of(r, at) * r->block_elements + 16 * (i * r->row_step + in_block * r->col_step);
        s->slot[strip / 4][s->units - 1][strip % 4] = (uint8_t)s->cells;
        s->unit[s->cells] = (uint8_t)(s->units - 1);
        s->cell[s->cells++] = (uint32_t)(element / 8);
    }
}

/* The stages of all groups, or only their number where `out` is NULL. first[g] is group g's first; one more at the end.
 */
static inline int64_t sat_union_build(const sat_rows *r, sat_union_stage *out, uint32_t *first) {
    int64_t rows = SAT_UNION_ROWS / r->br, stages = 0;
    for (int64_t g = 0; g < sat_union_groups(r); g++) {
        int64_t base = g * rows, count = sat_min(rows, r->count - base), at[SAT_UNION_ROWS / 16];
        sat_union_stage s;
        sat_union_clear(&s);
        if (first) first[g] = (uint32_t)stages;
        for (int64_t i = 0; i < count; i++) at[i] = r->ptr[base + i];
        for (;;) {
            int64_t column = INT64_MAX, have = 0;
            for (int64_t i = 0; i < count; i++) {
                if (at[i] == r->ptr[base + i + 1] || r->col[at[i]] > column) continue;
                have = r->col[at[i]] == column ? have + 1 : 1;
                column = r->col[at[i]];
            }
            if (column == INT64_MAX) break;
            for (int64_t in = 0; in < r->bc / 16 && column * r->bc + 16 * in < r->k; in++) {
                if (s.units == SAT_UNION_UNITS || s.cells + have * (r->br / 16) > SAT_UNION_CELLS) {
                    if (out) out[stages] = s;
                    stages++;
                    sat_union_clear(&s);
                }
                int64_t k = column * r->bc + 16 * in;
                s.k[s.units++] = (int32_t)k;
                s.ragged |= k + 16 > r->k;
                for (int64_t i = 0; i < count; i++)
                    if (at[i] < r->ptr[base + i + 1] && r->col[at[i]] == column) sat_union_add(r, &s, at[i], i, in);
            }
            for (int64_t i = 0; i < count; i++)
                if (at[i] < r->ptr[base + i + 1] && r->col[at[i]] == column) at[i]++;
        }
        s.last = 1; /* a group without blocks has a stage all the same: its rows are to be written */
        if (out) out[stages] = s;
        stages++;
    }
    if (first) first[sat_union_groups(r)] = (uint32_t)stages;
    return stages;
}

#endif
