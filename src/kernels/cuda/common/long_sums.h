/* Long f32 sums in parts, a launch each: so a kernel whose registers are full of sums keeps none for the whole, and
 * one launch of the same code serves where no row is deeper than a part. A launch takes some blocks of every piece, and
 * of each block some columns; its sums are added to what the launches before it left in C, or among the partial sums.
 */
#ifndef SAT_LONG_SUMS_H
#define SAT_LONG_SUMS_H

#include "kernels/cuda/common/scheduler.h"

/* What a launch takes of every piece: some blocks, and of each some columns. */
typedef struct sat_row_part {
    int32_t first_block, blocks;
    int64_t column;
    int32_t deep;      /* columns from there on */
    bool first, whole; /* whole: it reaches the end of its blocks */
} sat_row_part;

static inline sat_row_part sat_row_part_at(int64_t block, int64_t column, sat_parts parts, int64_t depth) {
    sat_row_part p = {(int32_t)block, (int32_t)sat_min(parts.blocks, INT32_MAX), column, 0, false, false};
    p.deep = (int32_t)sat_min(parts.deep, depth - column);
    p.first = block == 0 && column == 0, p.whole = column + parts.deep >= depth;
    return p;
}

/* The next one, where blocks are `depth` deep and no piece has more than `longest`; false: there is none. */
static inline bool sat_next_row_part(sat_row_part *p, sat_parts parts, int64_t depth, int64_t longest) {
    int64_t block = p->first_block, column = p->column + parts.deep;
    if (column >= depth) column = 0, block += parts.blocks;
    if (block >= longest) return false;
    *p = sat_row_part_at(block, column, parts, depth);
    return true;
}

/* What a part has of a piece; false: nothing. `last`: no part comes after it. */
SAT_BOTH static inline bool sat_take_part(const sat_row_part *part, sat_work_item *piece, bool *last) {
    *last = (part->whole && piece->count - part->first_block <= part->blocks) || piece->count == 0;
    if (!part->first && piece->count <= part->first_block) return false;
    piece->first += part->first_block, piece->count = (int32_t)sat_min(piece->count - part->first_block, part->blocks);
    return true;
}

#ifdef __CUDACC__

/* The most blocks of a piece, where rows are cut by `share`; 0: they are not. */
static inline int64_t sat_longest_work_item(const sat_launch *l, int64_t share) {
    int64_t row = l->problem->transpose == SAT_TRANSPOSE ? l->pattern->max_col : l->pattern->max_row;
    return share > 0 && sat_schedule_parts(row, share) > 1 ? share + share / 4 : row;
}

/* run(job) for each part of a job's rows. A job has r, values, b, b_row and part; its blocks, B and depth begin where
 * the part's columns do. */
template <typename JOB, typename RUN>
static sat_status sat_each_part(const sat_launch *l, const JOB &x, sat_parts parts, int64_t longest, RUN run) {
    sat_row_part part = sat_row_part_at(0, 0, parts, x.r.bc);
    sat_status status;
    do {
        JOB y = x;
        y.part = part;
        y.values = sat_at(l->problem->a_dtype, x.values, part.column * x.r.col_step);
        y.b = sat_at(l->problem->b_dtype, x.b, part.column * x.b_row), y.r.k -= part.column;
        run(y);
        status = sat_launched(l);
    } while (status == SAT_OK && sat_next_row_part(&part, parts, x.r.bc, longest));
    return status;
}

#endif
#endif
