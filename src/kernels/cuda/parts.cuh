/* Long f32 sums in parts, a launch each: so a kernel whose registers are full of sums keeps none for the whole, and
 * one launch of the same code serves where no row is deeper than a part. A launch takes some blocks of every piece, and
 * of each block some columns; its sums are added to what the launches before it left in C, or among the partial sums.
 */
#ifndef SAT_PARTS_CUH
#define SAT_PARTS_CUH

#include "join.cuh"

/* The most blocks of a piece, where rows are cut by `share`; 0: they are not. */
static inline int64_t sat_longest_piece(const sat_launch *l, int64_t share) {
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
