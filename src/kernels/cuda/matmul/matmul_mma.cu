// The host side of one instance of the kernels of matmul_mma.cuh: what it supports, its time, its launch.

#include "kernels/cuda/matmul/matmul_mma.cuh"

/* ---- supports ---- */

static bool mma_b_row_major(const sat_problem *p) { /* with aligned rows */
    return p->b.col_stride == 1 && p->b.row_stride * (int64_t)sat_dtype_size(p->b_dtype) % 16 == 0;
}

/* Copies are vectors of 16 bytes: lines, batch strides and pointers are multiples of that. */
static bool mma_aligned(const sat_problem *p) {
    int64_t size = (int64_t)sat_dtype_size(p->a_dtype);
    bool column_major = p->b.row_stride == 1 && p->b.col_stride * size % 16 == 0;
    if (p->a_align < 16 || p->b_align < 16 || (!column_major && !mma_b_row_major(p))) return false;
    return p->batch == 1 || (p->a.batch_stride * size % 16 == 0 && p->b.batch_stride * size % 16 == 0);
}

/* Blocks as high as the tile or twice as high, or a multiple that no larger tile divides. */
static bool mma_fits(const mma_instance *k, const sat_rows *r) {
    if (r->br % k->bm != 0 || r->bc % k->ku != 0) return false;
    return k->bm == (k->dtype == SAT_F64 ? 64 : 128) || r->br <= 2 * k->bm || r->br % (2 * k->bm) != 0;
}

/* What the kernel counts in 32 bits. */
static bool mma_countable(const mma_instance *k, const sat_problem *p, const sat_pattern_view *a, const sat_rows *r) {
    const int64_t most = INT32_MAX;
    int64_t size = (int64_t)sat_dtype_size(p->a_dtype), units = r->bc / k->ku;
    int64_t longest = p->matmul.transpose == SAT_TRANSPOSE ? a->max_col : a->max_row;
    if (p->n > most || r->k + r->bc > most || a->stored_blocks > most || p->batch > most) return false;
    if (r->block_elements * size > most || (mma_b_row_major(p) && p->b.row_stride * size > most)) return false;
    if ((double)longest * (double)units * (double)units > 4e9) return false;
    double items = (double)(a->stored_blocks + r->count);
    return items * (double)(r->br / k->bm) * ((double)p->n / k->bn + 1) * (double)p->batch < (double)most;
}

bool mma_supports(const mma_instance *k, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    if (!k || p->a_dtype != k->dtype || d->capability < 80 || k->shared + 1024 > d->l1_bytes) return false;
    if (k->dtype == SAT_F32 && !(p->flags & SAT_ALLOW_TF32)) return false;
    sat_rows r = sat_op_rows(p, a);
    return mma_fits(k, &r) && mma_aligned(p) && mma_countable(k, p, a, &r);
}

/* ---- estimate ---- */

/* Seconds of the whole device at the busiest of four: tensor cores, L2 to shared memory, shared memory, memory. */
static double mma_busy_seconds(const mma_instance *k, const sat_problem *p, const sat_pattern_view *a,
                               const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    double size = (double)sat_dtype_size(k->dtype), columns = (double)((p->n + k->bn - 1) / k->bn);
    double depth = (double)a->stored_blocks * (double)r.bc * (double)(r.br / k->bm) * columns * (double)p->batch;
    double per_cycle = d->capability >= 90 ? 4096 : d->capability == 80 ? 2048 : 1024; /* of 16-bit operations */
    double cycles = d->flop_rate[SAT_F16] / (0.75 * per_cycle);                        /* all multiprocessors' */
    double part = k->dtype == SAT_F64 ? (k->bm == 8 ? 0.5 : 0.8) : (d->capability >= 90 ? 0.6 : 0.85) / 0.75;
    double rate = sat_matrix_rate(d, k->dtype) * part;
    double warps = k->threads / 32, tile = (double)(k->bm + k->bn) * size, reads = warps * (k->wm + k->wn) * size;
    double compute = depth * 2 * k->bm * k->bn / rate, shared = depth * (tile + reads) / (cycles * 128 * 0.9);
    double l2 = depth * tile / (0.92 * d->l2_rate), memory = sat_bytes(p, a) / d->memory_rate;
    return fmax(fmax(compute, shared), fmax(l2, memory));
}

double mma_seconds(const mma_instance *k, const sat_problem *p, const sat_pattern_view *a, const sat_device *d,
                   double longest, double items) {
    sat_rows r = sat_op_rows(p, a);
    double tiles = (double)mma_tiles(k, p, &r) * (double)p->batch * fmax(1, items), sms = (double)d->multiprocessors;
    double busy = mma_busy_seconds(k, p, a, d), mean = (double)a->stored_blocks / fmax(1, items);
    double share = fmax(1, tiles / sms),
           uneven = tiles > 8 * sms ? fmin(1.05, ceil(share) / share) : ceil(share) / share;
    double idle = fmax(1, sms * fmin(k->ctas, 2) / tiles);         /* too few tiles for all multiprocessors */
    double tail = busy * sms / tiles * longest / fmax(1e-9, mean); /* the longest item runs when others are done */
    return 3e-6 + 1e-6 * fmin(4, share) + fmax(busy * fmax(uneven, idle), tail);
}

/* ---- launch ---- */

mma_args mma_args_of(const mma_instance *k, const sat_launch *l, const sat_device_schedule *work) {
    const sat_problem *p = l->problem;
    mma_args args = {};
    int64_t size = (int64_t)sat_dtype_size(p->a_dtype);
    args.r = sat_device_rows(p, l->pattern);
    args.work = work ? *work : sat_whole_rows_schedule(&args.r);
    args.epilogue = sat_tile_epilogue_of(l, false);
    args.a = (const char *)l->operands[0], args.b = (const char *)l->operands[1];
    args.a_k_major = args.r.col_step == 1, args.b_k_major = !mma_b_row_major(p);
    args.row_tiles = (unsigned)(args.r.br / k->bm), args.column_tiles = (unsigned)((p->n + k->bn - 1) / k->bn);
    args.tiles = (unsigned)(mma_tiles(k, p, &args.r) * args.work.items * (work ? 1 : p->batch));
    args.block_units = (unsigned)(args.r.bc / k->ku),
    args.units_inverse = (unsigned)((((uint64_t)1 << 32) + args.block_units - 1) / args.block_units);
    args.whole_k_end = (unsigned)sat_max(0, args.r.k - k->ku + 1);
    args.a_block_stride = (unsigned)(args.r.block_elements * size);
    args.a_row_tile_stride = (unsigned)(k->bm * args.r.row_step * size);
    args.a_unit_stride = (unsigned)(k->ku * args.r.col_step * size);
    args.a_line_stride = (unsigned)((args.a_k_major ? args.r.row_step : args.r.col_step) * size);
    args.a_pass_stride = (unsigned)(args.a_k_major ? k->a_k_lines : k->a_mn_lines) * args.a_line_stride;
    args.b_line_stride = (args.b_k_major ? p->b.col_stride : p->b.row_stride) * size;
    args.b_pass_stride = (args.b_k_major ? k->b_k_lines : k->b_mn_lines) * args.b_line_stride;
    args.b_k_stride = (unsigned)(args.b_k_major ? size : args.b_line_stride);
    args.b_column_tile_stride = k->bn * (args.b_k_major ? args.b_line_stride : size);
    args.a_batch_stride = p->a.batch_stride * size, args.b_batch_stride = p->b.batch_stride * size;
    args.c_batch_stride = p->c.batch_stride * (int64_t)sat_dtype_size(p->c_dtype);
    return args;
}

sat_status mma_prepare_kernel(const mma_instance *k, const sat_variant *v) {
    cudaError_t e = cudaFuncSetAttribute(k->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, k->shared);
    if (e == cudaSuccess)
        e = cudaFuncSetAttribute(k->kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared);
    if (e == cudaSuccess) return SAT_OK;
    (void)cudaGetLastError();
    return sat_fail(SAT_DEVICE_ERROR, "%s: %s", v->name, cudaGetErrorString(e));
}

sat_status mma_launch(const mma_instance *k, const sat_launch *l, const mma_args &args, bool persistent) {
    unsigned most = (unsigned)(l->device->multiprocessors * k->ctas);
    unsigned grid = persistent && args.tiles > most ? most : args.tiles;
    k->kernel<<<grid, (unsigned)k->threads, (size_t)k->shared, (cudaStream_t)l->stream>>>(args);
    return sat_launched(l);
}
