// cuda_matmul_simt: f32 and f64 without tensor cores, for blocks of 8 and more: the main loop of a dense product
// (simt.cuh) that walks a block row. Bound by multiply-adds where a tile has 32 rows or more, by L2 at 16.
// Long f32 sums are made of parts, a launch each (parts.cuh). An instance is a tile: tile_m x tile_n of C a CTA. Option
// 1: heavy rows are cut and joined again in order (schedule.h), and the longest pieces begin first.

#include "kernels/cuda/matmul/simt.cuh"
#include "kernels/cuda/common/simt_rates.h"

enum { BALANCED = 1, SPLIT_DEPTH = 128 };

struct kernel {
    sat_dtype dtype;
    int m, n; // an instance's tile_m, tile_n
    int step, threads, ctas;
    void (*run[2][2])(simt_job); // [B's rows in steps of 16 bytes, else through any strides][rows in parts]
};

template <typename T, int TM, int TN, int WM, int WN, int KT> static constexpr kernel make(sat_dtype dtype) {
    typedef simt_tile<T, TM, TN, WM, WN, KT, true, false> tile;
    constexpr bool parts = sizeof(T) == 4; // sums in f64 are long enough
    return {dtype,
            tile::BM,
            tile::BN,
            KT,
            tile::THREADS,
            tile::CTAS,
            {{simt_rows<simt_tile<T, TM, TN, WM, WN, KT, false, false>>,
              simt_rows<simt_tile<T, TM, TN, WM, WN, KT, false, parts>>},
             {simt_rows<tile>, simt_rows<simt_tile<T, TM, TN, WM, WN, KT, true, parts>>}}};
}

static const kernel kernels[] = {
    make<float, 8, 8, 4, 2, 16>(SAT_F32),  // 128x128
    make<float, 8, 8, 2, 4, 16>(SAT_F32),  // 64x256
    make<float, 8, 8, 2, 2, 16>(SAT_F32),  // 64x128
    make<float, 8, 8, 1, 4, 16>(SAT_F32),  // 32x256
    make<float, 8, 8, 1, 2, 16>(SAT_F32),  // 32x128
    make<float, 4, 16, 1, 2, 16>(SAT_F32), // 16x256
    make<double, 8, 8, 2, 2, 8>(SAT_F64),  // 64x128
    make<double, 8, 8, 1, 2, 8>(SAT_F64),  // 32x128
    make<double, 4, 8, 1, 2, 8>(SAT_F64),  // 16x128
};

static const kernel *kernel_of(const sat_instance *x) {
    for (const kernel &k : kernels)
        if (k.dtype == x->dtype && k.m == x->tile_m && k.n == x->tile_n) return &k;
    return NULL;
}

static bool in_steps(const sat_problem *p, const sat_layout *x, uint32_t align) { // every item of a batch is aligned
    return align >= 16 && (p->batch == 1 || x->batch_stride * (int64_t)sat_dtype_size(p->a_dtype) % 16 == 0);
}

static bool wide(const sat_problem *p) {
    return p->b.col_stride == 1 && p->b.row_stride * (int64_t)sat_dtype_size(p->b_dtype) % 16 == 0 &&
           in_steps(p, &p->b, p->b_align);
}

static simt_values order_of(const sat_problem *p, const sat_rows *r) {
    int64_t vector = 16 / (int64_t)sat_dtype_size(p->a_dtype);
    if (!in_steps(p, &p->a, p->a_align)) return SIMT_SINGLE;
    if (r->col_step == 1) return r->bc % vector ? SIMT_SINGLE : SIMT_ALONG_K;
    return r->br % vector ? SIMT_SINGLE : SIMT_ALONG_M;
}

static int64_t tiles(int64_t all, int64_t each) { return (all + each - 1) / each; }

// At least half of a tile's rows and of a step's columns must be used: below that, others are better.
static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)d;
    const kernel *k = kernel_of(&v->instance);
    sat_rows r = sat_op_rows(p, a);
    if (!k || p->a_dtype != k->dtype || p->c_dtype != k->dtype) return false;
    if (2 * r.br < k->m || 2 * r.bc < k->step || r.br > 1 << 15 || r.bc > 1 << 15) return false;
    double ctas = (double)(r.count + a->stored_blocks) * (double)tiles(r.br, k->m) * (double)tiles(p->n, k->n);
    return ctas < 1 << 30; // the grid has one dimension
}

static int64_t share_of(const kernel *k, const sat_rows *r, int64_t n, const sat_device *d) {
    int64_t walks = tiles(r->br, k->m) * tiles(n, k->n), least = sat_max(1, SPLIT_DEPTH / r->bc);
    return sat_schedule_share(r, walks, 4 * (int64_t)d->threads * k->ctas, least); // a quarter: the last ones end alike
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const kernel *k = kernel_of(&v->instance);
    sat_rows r = sat_op_rows(p, a);
    double row_tiles = (double)tiles(r.br, k->m), tiles_n = (double)tiles(p->n, k->n), ctas = row_tiles * tiles_n;
    double depth = (double)tiles(r.bc, k->step) * k->step, size = (double)sat_dtype_size(p->a_dtype);
    double batch = (double)p->batch, steps = (double)a->stored_blocks * ctas * depth;
    double rate = sat_simt_rate(d, p->compute_dtype) * (0.8 - 2.0 / k->m); // a lower tile has fewer products a load
    double busy = 2 * steps * k->m * k->n / rate, l2 = steps * (k->m + k->n) * size / sat_l2_rate(d);
    double seconds = sat_worst(busy, l2, sat_bytes(p, a) / batch / d->memory_rate);
    if (!wide(p)) seconds *= 1.15;
    if (v->instance.option & BALANCED) return batch * (1.08 * seconds + 8e-6);
    double waves = (double)r.count * ctas / ((double)d->threads * k->ctas);
    if (waves > 1 && waves < 8) seconds *= ceil(waves) / waves; // the last wave is not full
    double alone =
        2 * sat_heaviest(p, a) * depth * k->m * k->n / (0.6 * rate / d->threads); // a multiprocessor to itself
    return batch * (sat_worst(seconds, alone, 0) + 4e-6);
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    if (!(v->instance.option & BALANCED)) return 0;
    sat_rows r = sat_op_rows(p, a);
    sat_schedule all = sat_schedule_count(&r, share_of(kernel_of(&v->instance), &r, p->n, d));
    return sat_schedule_bytes(&all, r.br, p->n, sat_dtype_size(p->c_dtype));
}

static sat_status prepare(const sat_prepare *prepare, void **state) {
    if (!(prepare->variant->instance.option & BALANCED)) return SAT_OK;
    sat_rows r = sat_op_rows(prepare->problem, prepare->pattern);
    const kernel *k = kernel_of(&prepare->variant->instance);
    return sat_prepare_schedule(prepare, share_of(k, &r, prepare->problem->n, prepare->device), state);
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    if (p->m == 0 || p->n == 0) return SAT_OK;
    const kernel *k = kernel_of(&l->variant->instance);
    simt_job x = {sat_device_rows(p, l->pattern), sat_epilogue_of(l)};
    x.w = l->state ? *(const sat_device_schedule *)l->state : sat_whole_rows_schedule(&x.r);
    x.ways = vector_access_of(p, x.r.br);
    x.values = l->operands[0], x.b = l->operands[1], x.b_row = p->b.row_stride, x.b_col = p->b.col_stride;
    x.row_tiles = (int)tiles(x.r.br, k->m), x.order = order_of(p, &x.r);
    unsigned ctas = (unsigned)(x.w.pieces * x.row_tiles * tiles(p->n, k->n));
    sat_rows host = sat_op_rows(p, l->pattern);
    int64_t longest = sat_longest_work_item(l, l->state ? share_of(k, &host, p->n, l->device) : 0);
    sat_parts parts = sat_parts_in_c(p, x.r.bc, 1);
    bool several = longest > parts.blocks || x.r.bc > parts.deep;
    sat_status status = sat_each_part(l, x, parts, longest, [&](const simt_job &part) {
        k->run[wide(p)][several]<<<ctas, k->threads, 0, (cudaStream_t)l->stream>>>(part);
    });
    return status == SAT_OK ? sat_launch_split_reduction(l, x.r, x.out, x.w) : status;
}

SAT_FAMILY(cuda_matmul_simt) = {
    .revision = "3",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .about = "f32 and f64 by plain multiply-adds: tiles in shared memory, registers blocked, any strides",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_schedule,
};
