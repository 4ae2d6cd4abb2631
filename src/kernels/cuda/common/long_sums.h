/* Long f32 sums in parts (SAT_SUM_PART), one launch a part. A kernel whose registers are full of accumulators then
 * needs no second set for the total, and where no row is longer than a part, one launch of the same kernel does it all.
 * A launch takes some blocks of every work item, and of each block some columns. It adds to what the launches before it
 * stored in C, or among the partial sums of split rows. */
#ifndef SAT_LONG_SUMS_H
#define SAT_LONG_SUMS_H

#include "kernels/cuda/common/scheduler.h"

/* What a launch takes of every work item: some blocks, and of each some columns. */
typedef struct sat_row_part {
    int32_t first_block, blocks;
    int64_t column;
    int32_t deep;      /* columns from there on */
    bool first, whole; /* the first part; its columns reach the end of the blocks */
} sat_row_part;

static inline sat_row_part sat_row_part_at(int64_t block, int64_t column, sat_parts parts, int64_t depth) {
    sat_row_part p = {(int32_t)block, (int32_t)sat_min(parts.blocks, INT32_MAX), column, 0, false, false};
    p.deep = (int32_t)sat_min(parts.deep, depth - column);
    p.first = block == 0 && column == 0, p.whole = column + parts.deep >= depth;
    return p;
}

/* The next part, where blocks have `depth` columns and work items at most `longest` blocks. False: there is none. */
static inline bool sat_next_row_part(sat_row_part *p, sat_parts parts, int64_t depth, int64_t longest) {
    int64_t block = p->first_block, column = p->column + parts.deep;
    if (column >= depth) column = 0, block += parts.blocks;
    if (block >= longest) return false;
    *p = sat_row_part_at(block, column, parts, depth);
    return true;
}

/* Reduces a work item to what the part has of it; false: nothing. `last`: no part comes after this one. */
SAT_BOTH static inline bool sat_take_part(const sat_row_part *part, sat_work_item *item, bool *last) {
    *last = (part->whole && item->count - part->first_block <= part->blocks) || item->count == 0;
    if (!part->first && item->count <= part->first_block) return false;
    item->first += part->first_block, item->count = (int32_t)sat_min(item->count - part->first_block, part->blocks);
    return true;
}

#ifdef __CUDACC__

/* The most blocks of a work item, where rows are split by `share`; share 0: they are not split. */
static inline int64_t sat_longest_work_item(const sat_launch *l, int64_t share) {
    int64_t row = sat_transposed(l->problem) ? l->pattern->max_col : l->pattern->max_row;
    return share > 0 && sat_schedule_parts(row, share) > 1 ? share + share / 4 : row;
}

/* Calls run(arguments) for each part. A kernel's arguments have r, values, b, b_row_stride and part. The pointers of
 * those that run gets, and the depth r.k, begin at the part's first column. */
template <typename ARGS, typename RUN>
static sat_status sat_each_part(const sat_launch *l, const ARGS &all, sat_parts parts, int64_t longest, RUN run) {
    sat_row_part part = sat_row_part_at(0, 0, parts, all.r.bc);
    sat_status status;
    do {
        ARGS args = all;
        args.part = part;
        args.values = sat_at(l->problem->a_dtype, all.values, part.column * all.r.col_step);
        args.b = sat_at(l->problem->b_dtype, all.b, part.column * all.b_row_stride), args.r.k -= part.column;
        run(args);
        status = sat_launched(l);
    } while (status == SAT_OK && sat_next_row_part(&part, parts, all.r.bc, longest));
    return status;
}

#endif
#endif
