/* Which store path a launch takes. */
#include "kernels/cuda/common/epilogue.cuh"

sat_tile_epilogue sat_tile_epilogue_of(const sat_launch *l, bool packed_relu) {
    const sat_problem *p = l->problem;
    sat_tile_epilogue o = {sat_epilogue_of(l), SAT_STORE_GENERIC, false, false};
    int64_t size = (int64_t)sat_dtype_size(p->c_dtype);
    o.column_major = p->c.row_stride == 1 && p->c.col_stride != 1;
    int64_t step = o.column_major ? p->c.row_stride : p->c.col_stride;
    int64_t line = o.column_major ? p->c.col_stride : p->c.row_stride;
    o.aligned =
        step == 1 && line * size % 16 == 0 && p->c_align >= 16 && (p->batch == 1 || p->c.batch_stride * size % 16 == 0);
    bool relu = packed_relu && size == 2 && sat_activation_of(p) == SAT_ACT_RELU;
    if (p->beta != 0 || (sat_activation_of(p) != SAT_ACT_NONE && !relu)) return o;
    if (size > 2) o.path = SAT_STORE_PAIRS;
    else if (o.aligned && (o.column_major ? p->m : p->n) % 8 == 0) o.path = SAT_STORE_PACKED16;
    return o;
}
