/* Products of groups on the host: which store path a launch takes, and estimates. */
#include "kernels/cuda/grouped/grouped_tiles.h"

grouped_epilogue grouped_epilogue_of(const sat_launch *l, bool packed_relu) {
    const sat_problem *p = l->problem;
    bool weights = p->op == SAT_GROUPED_WEIGHTS, has_bias = p->op == SAT_GROUPED && p->grouped.bias;
    int64_t size = (int64_t)sat_dtype_size(p->c_dtype);
    grouped_epilogue e = {{{l->operands[2], NULL, p->c.row_stride, p->c.col_stride, weights ? p->k : p->m, p->n, 1,
                            p->beta, p->c_dtype, weights ? SAT_ACT_NONE : p->grouped.activation},
                           SAT_STORE_GENERIC,
                           false,
                           false},
                          has_bias ? l->operands[4] : NULL,
                          (float)p->alpha,
                          weights ? p->c.batch_stride * size : 0};
    sat_tile_epilogue &to = e.to;
    to.column_major = p->c.row_stride == 1 && p->c.col_stride != 1;
    int64_t step = to.column_major ? p->c.row_stride : p->c.col_stride;
    int64_t line = to.column_major ? p->c.col_stride : p->c.row_stride;
    to.aligned = step == 1 && line * size % 16 == 0 && p->c_align >= 16 && e.group_stride % 16 == 0;
    if (to.column_major && !weights) to.aligned = false;
    bool relu = to.out.activation == SAT_ACT_RELU && packed_relu && size == 2;
    if (p->beta != 0 || (to.out.activation != SAT_ACT_NONE && !relu)) return e;
    if (size > 2) to.path = SAT_STORE_PAIRS;
    else if (to.aligned && (to.column_major ? to.out.m : p->n) % 8 == 0) to.path = SAT_STORE_PACKED16;
    return e;
}

double grouped_seconds(const sat_problem *p, const sat_device *d, int tile_m, int tile_n, double rate) {
    bool weights = p->op == SAT_GROUPED_WEIGHTS;
    double m = (double)p->m, n = (double)p->n, k = (double)p->k, groups = (double)sat_max(1, p->grouped.groups);
    double used = fmax(1, fmin(groups, m)), panels = ceil(n / tile_n);
    double rows = weights ? ceil(k / tile_m) * tile_m : ceil(m / used / tile_m) * tile_m;
    double products = weights ? groups : used, depth = weights ? ceil(m / groups / 64) * 64 : k;
    double tiles = products * rows / tile_m * panels, waves = ceil(tiles / d->multiprocessors);
    double seconds = waves * d->multiprocessors * 2 * tile_m * tile_n * depth / rate;
    sat_dtype rows_of_n = weights ? p->b_dtype : p->c_dtype, of_w = weights ? p->c_dtype : p->b_dtype;
    double bytes = m * k * (double)sat_dtype_size(p->a_dtype) + m * n * (double)sat_dtype_size(rows_of_n) +
                   (weights ? groups : used) * k * n * (double)sat_dtype_size(of_w);
    return fmax(seconds, bytes / d->memory_rate) + 4e-6;
}
