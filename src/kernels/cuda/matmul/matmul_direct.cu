// cuda_matmul_direct: f64 blocks of 8x8 and 4x4 on tensor cores, without shared memory (direct.cuh): few registers, so
// that many warps have their loads under way. Bound by fetching, for each stored block, its rows of B from L2.
// An instance is tile_m, the side of a block, and tile_n, a warp's columns. Option 1: heavy rows are cut (schedule.h).

#include "kernels/cuda/matmul/direct.cuh"
#include "kernels/cuda/common/simt_rates.h"

enum { BALANCED = 1, SPLIT_LEAST = 16, WARPS_AT_ONCE = 32 };

struct kernel {
    int side, columns;
    void (*plain)(direct_job);
    void (*turned)(direct_job);
};

template <int S, int W, int CTAS> static constexpr kernel make() {
    return {S, 16 * W, direct_rows<direct_kind<S, W, false>, CTAS>, direct_rows<direct_kind<S, W, true>, CTAS>};
}

static const kernel kernels[] = {make<8, 2, 9>(), make<8, 1, 9>(), make<4, 2, 7>(), make<4, 1, 8>()};

static const kernel *kernel_of(const sat_instance *x) {
    for (const kernel &k : kernels)
        if (k.side == x->tile_m && k.columns == x->tile_n) return &k;
    return NULL;
}

static bool in_steps(const sat_problem *p, const sat_layout *x, uint32_t align) { // every item of a batch is aligned
    return align >= 16 && (p->batch == 1 || x->batch_stride * 8 % 16 == 0);
}

static int64_t tiles(const sat_problem *p) { return (p->n + DIRECT_COLUMNS - 1) / DIRECT_COLUMNS; }

// Fewer than 8 columns leave most of a product idle: others are better.
static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)d;
    const int64_t most = 1 << 24;
    sat_rows r = sat_op_rows(p, a);
    if (p->a_dtype != SAT_F64 || p->c_dtype != SAT_F64 || r.br != v->instance.tile_m || r.bc != r.br) return false;
    if (p->n < 8 || p->b.col_stride != 1 || p->b.row_stride % 2 || !in_steps(p, &p->b, p->b_align)) return false;
    if (r.br == 8 && r.col_step == 1 && !in_steps(p, &p->a, p->a_align)) return false; // others read single values
    return a->block_rows < most && a->block_cols < most && tiles(p) <= 65535 && r.count + a->stored_blocks < 1 << 30;
}

static int64_t share_of(const sat_problem *p, const sat_rows *r, const sat_device *d) {
    return sat_schedule_share(r, tiles(p), 4 * (int64_t)d->threads * WARPS_AT_ONCE, SPLIT_LEAST);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    double stored = (double)a->stored_blocks, columns = (double)(tiles(p) * DIRECT_COLUMNS), side = (double)r.bc;
    double l2 = 8 * stored * side * (columns + side * (double)tiles(p)) / (0.8 * sat_l2_rate(d));
    double busy = 2 * stored * 8 * side * columns / d->flop_rate[SAT_F64];
    double seconds = sat_worst(l2, busy, sat_bytes(p, a) / (double)p->batch / d->memory_rate);
    if (v->instance.option & BALANCED) return (1.15 * seconds + 7e-6) * (double)p->batch;
    double alone = sat_heaviest(p, a) * side / 8 * 2 * SAT_SIMT_LATENCY;
    return (sat_worst(seconds, alone, 0) + 4e-6) * (double)p->batch;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    if (!(v->instance.option & BALANCED)) return 0;
    sat_rows r = sat_op_rows(p, a);
    sat_schedule all = sat_schedule_count(&r, share_of(p, &r, d));
    return sat_schedule_bytes(&all, r.br, p->n, sizeof(double));
}

static sat_status prepare(const sat_prepare *prepare, void **state) {
    if (!(prepare->variant->instance.option & BALANCED)) return SAT_OK;
    sat_rows r = sat_op_rows(prepare->problem, prepare->pattern);
    return sat_prepare_schedule(prepare, share_of(prepare->problem, &r, prepare->device), state);
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    if (p->m == 0 || p->n == 0) return SAT_OK;
    const kernel *k = kernel_of(&l->variant->instance);
    direct_job x = {sat_device_rows(p, l->pattern), sat_epilogue_of(l)};
    x.w = l->state ? *(const sat_device_schedule *)l->state : sat_whole_rows_schedule(&x.r);
    x.ways = vector_access_of(p, x.r.br);
    x.values = (const double *)l->operands[0], x.b = (const double *)l->operands[1], x.b_row = p->b.row_stride;
    x.b_block = x.r.bc * x.b_row, x.whole = (int32_t)(x.r.k / x.r.bc);
    const int64_t rows = DIRECT_WARPS * k->columns / DIRECT_COLUMNS; // of a CTA
    dim3 grid(sat_blocks(x.w.pieces, rows), (unsigned)tiles(p));
    (x.r.col_step == 1 ? k->plain : k->turned)<<<grid, 32 * DIRECT_WARPS, 0, (cudaStream_t)l->stream>>>(x);
    sat_status status = sat_launched(l);
    return status == SAT_OK ? sat_launch_split_reduction(l, x.r, x.out, x.w) : status;
}

SAT_FAMILY(cuda_matmul_direct) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .about = "f64 blocks of 8x8 and 4x4 on tensor cores, operands straight from memory, B by rows",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_schedule,
};
