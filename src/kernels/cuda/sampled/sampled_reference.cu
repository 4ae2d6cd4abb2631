// cuda_sampled_reference: one thread an element of a stored block, in double precision. Supports everything.

#include "variant.cuh"

struct job {
    sat_pattern_view a;
    sat_problem p;
    const void *x, *y;
    void *s;
};

/* A CTA takes block rows; what a block holds beyond the matrix is written as zero. */
static __global__ void multiply(job w) {
    int64_t area = w.a.block_rows * w.a.block_cols;
    for (int64_t g = blockIdx.x; g < w.a.grid_rows; g += gridDim.x) {
        int64_t first = w.a.device_row_ptr[g], count = w.a.device_row_ptr[g + 1] - first;
        for (int64_t e = threadIdx.x; e < count * area; e += blockDim.x) {
            int64_t at = first * area + e, i = g * w.a.block_rows + e % area / w.a.block_cols;
            int64_t j = (int64_t)w.a.device_col_idx[first + e / area] * w.a.block_cols + e % w.a.block_cols;
            if (i >= w.p.m || j >= w.p.n) {
                sat_device_store(w.p.c_dtype, w.s, at, 0);
                continue;
            }
            double sum = 0;
            for (int64_t k = 0; k < w.p.k; k++)
                sum += sat_device_load(w.p.a_dtype, w.x, i * w.p.a.row_stride + k * w.p.a.col_stride) *
                       sat_device_load(w.p.b_dtype, w.y, k * w.p.b.row_stride + j * w.p.b.col_stride);
            double y = w.p.alpha * sum;
            if (w.p.beta != 0) y += w.p.beta * sat_device_load(w.p.c_dtype, w.s, at);
            sat_device_store(w.p.c_dtype, w.s, at, y);
        }
    }
}

static sat_status launch(const sat_launch *l) {
    if (l->pattern->stored_blocks == 0) return SAT_OK;
    job w = {*l->pattern, *l->problem, l->operands[0], l->operands[1], l->operands[2]};
    multiply<<<sat_blocks(l->pattern->grid_rows, 1), 256, 0, (cudaStream_t)l->stream>>>(w);
    return sat_launched(l);
}

SAT_FAMILY(cuda_sampled_reference) = {
    .revision = "1",
    .op = SAT_SAMPLED,
    .backend = SAT_CUDA,
    .flags = SAT_V_REFERENCE,
    .about = "one thread an element of a stored block, in double precision: slow, always right",
    .supports = sat_takes_all,
    .estimate = sat_reference_estimate,
    .launch = launch,
};
