// cuda_matmul_small: f32 and f64 for small and odd blocks, and for few columns. No shared memory: a block's values are
// read by all lanes that need them in one broadcast, rows of B side by side, sums stay in registers (small.cuh).
// Bound by fetching, for each stored block, its rows of B from L2. Square blocks of 1, 2, 3, 4, 6 and 8 have kernels
// of their own; any other shape goes through in bands of 4 or 8 rows. Long f32 sums are made of parts, a launch each
// (parts.cuh). Option 1: heavy rows are cut (schedule.h).

#include "kernels/cuda/common/simt_rates.h"
#include "kernels/cuda/matmul/small.cuh"

enum { BALANCED = 1, SPLIT_LEAST = 16, WARPS_AT_ONCE = 32 };

// How a problem is walked.
struct shape {
    int rows, block, unit; // R, C (0: any) and KU of small.cuh
    int wide;              // V: columns a lane has
    int lanes, groups;     // powers of two
    int lane_bits, group_bits;
    int units, bands;
    int64_t tiles;
};

static bool in_steps(const sat_problem *p, const sat_layout *x, uint32_t align, int64_t bytes) {
    return align >= bytes && (p->batch == 1 || x->batch_stride * (int64_t)sat_dtype_size(p->a_dtype) % bytes == 0);
}

// The kernel, by the columns a lane has: with 16 bytes of them a unit is a whole square block, with one it is what a
// load brings, so that neighbouring lanes read neighbouring values.
static void choose_kernel(shape *s, const sat_problem *p, const sat_rows &r) {
    const int size = (int)sat_dtype_size(p->a_dtype), vector = 16 / size, side = (int)r.bc;
    bool square = r.br == r.bc && r.col_step == 1 && (r.bc <= 4 || r.bc == 6 || r.bc == 8);
    int load = side % vector == 0 ? vector : side % 2 == 0 ? 2 : 1;
    if (square && in_steps(p, &p->a, p->a_align, load * size)) {
        s->rows = s->block = side, s->unit = s->wide > 1 || load == 1 ? side : load;
        return;
    }
    bool vectors = r.br > 4 && r.col_step == 1 && r.bc % vector == 0 && in_steps(p, &p->a, p->a_align, 16);
    s->block = 0, s->unit = vectors ? vector : 1, s->rows = r.br > 4 ? 8 : 4;
}

static shape choose(const sat_problem *p, const sat_pattern_view *a) {
    sat_rows r = sat_op_rows(p, a);
    shape s = {};
    int64_t size = (int64_t)sat_dtype_size(p->b_dtype), vector = 16 / size;
    bool wide = p->n >= vector && p->b.col_stride == 1 && p->b.row_stride * size % 16 == 0 &&
                in_steps(p, &p->b, p->b_align, 16);
    s.wide = wide ? (int)vector : 1;
    choose_kernel(&s, p, r);
    s.units = (int)((r.bc + s.unit - 1) / s.unit), s.bands = (int)((r.br + s.rows - 1) / s.rows);
    while (s.lane_bits < 5 && (s.wide << s.lane_bits) < p->n) s.lane_bits++;
    double each = (double)a->stored_blocks * s.units / (double)sat_max(1, r.count); // at least 4 units a group
    while (s.lane_bits + s.group_bits < 5 && each >= 4.0 * (1 << s.group_bits)) s.group_bits++;
    s.lanes = 1 << s.lane_bits, s.groups = 1 << s.group_bits;
    s.tiles = (p->n + s.lanes * s.wide - 1) / (s.lanes * s.wide);
    return s;
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)d;
    const int64_t most = 1 << 24;
    return p->a_dtype == v->instance.dtype && p->c_dtype == p->a_dtype && a->block_rows < most && a->block_cols < most;
}

static int64_t share_of(const shape *s, const sat_rows *r, const sat_device *d) {
    int64_t at_once = (int64_t)d->threads * WARPS_AT_ONCE * (32 / (s->lanes * s->groups));
    return sat_schedule_share(r, s->tiles * s->bands, 4 * at_once, SPLIT_LEAST);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    shape s = choose(p, a);
    double stored = (double)a->stored_blocks, size = (double)sat_dtype_size(p->a_dtype), bands = s.bands;
    double n = (double)p->n, each = s.unit > 1 ? 16 : size; // bytes that a load of A brings
    // Cycles of a multiprocessor's quarter for a unit of a warp: products, loads, which the quarters share, the rest.
    double products = s.rows * s.unit * s.wide * (p->a_dtype == SAT_F64 ? 2.0 : 1.0);
    double unit = products + 4 * (2 * s.rows * s.unit * size / each + 4.0 * s.unit) + 40;
    double warps = stored * bands * s.units * (double)s.tiles * s.lanes / 32, cycles = sat_simt_cycles(d);
    double l2 = stored * size * (bands * (double)r.bc * n + (double)r.block_elements * (double)s.tiles);
    double memory = sat_bytes(p, a) / (double)p->batch / d->memory_rate;
    double seconds = sat_worst(warps * unit / (4 * cycles), l2 / sat_l2_rate(d), memory);
    if (p->b.col_stride != 1 && p->n > 1) seconds *= 3;
    double steps = sat_heaviest(p, a) * s.units / s.groups, alone = SAT_SIMT_LATENCY + unit * d->threads / cycles;
    if (v->instance.option & BALANCED) return (1.15 * seconds + 6e-6) * (double)p->batch;
    return (sat_worst(seconds, steps * alone, 0) + 3e-6) * (double)p->batch;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    if (!(v->instance.option & BALANCED)) return 0;
    sat_rows r = sat_op_rows(p, a);
    shape s = choose(p, a);
    sat_schedule all = sat_schedule_count(&r, share_of(&s, &r, d));
    return sat_schedule_bytes(&all, r.br, p->n, sat_dtype_size(p->c_dtype));
}

static sat_status prepare(const sat_prepare *prepare, void **state) {
    if (!(prepare->variant->instance.option & BALANCED)) return SAT_OK;
    sat_rows r = sat_op_rows(prepare->problem, prepare->pattern);
    shape s = choose(prepare->problem, prepare->pattern);
    return sat_prepare_schedule(prepare, share_of(&s, &r, prepare->device), state);
}

template <typename T, int R, int C, int KU, int V> static void start(const sat_launch *l, const small_job &x) {
    int64_t each = SMALL_WARPS * (32 >> (x.lane_bits + x.group_bits));
    dim3 grid(sat_blocks(x.bands, each), x.tiles < 65535 ? x.tiles : 65535);
    small_rows<T, R, C, KU, V><<<grid, SMALL_THREADS, 0, (cudaStream_t)l->stream>>>(x);
}

template <typename T> static void run(const sat_launch *l, const small_job &x, const shape *s) {
    const int V = 16 / sizeof(T);
    bool wide = s->wide > 1;
    switch (s->block * 2 + wide) {
    case 2: return start<T, 1, 1, 1, 1>(l, x);
    case 3: return start<T, 1, 1, 1, V>(l, x);
    case 4: return start<T, 2, 2, 2, 1>(l, x);
    case 5: return start<T, 2, 2, 2, V>(l, x);
    case 6: return start<T, 3, 3, 3, 1>(l, x);
    case 7: return start<T, 3, 3, 3, V>(l, x);
    case 8: return start<T, 4, 4, V, 1>(l, x);
    case 9: return start<T, 4, 4, 4, V>(l, x);
    case 12: return start<T, 6, 6, 2, 1>(l, x);
    case 13: return start<T, 6, 6, 6, V>(l, x);
    case 16: return start<T, 8, 8, V, 1>(l, x);
    case 17: return start<T, 8, 8, 8, V>(l, x);
    }
    if (s->unit > 1) return wide ? start<T, 8, 0, V, V>(l, x) : start<T, 8, 0, V, 1>(l, x);
    if (s->rows > 4) return wide ? start<T, 8, 0, 1, V>(l, x) : start<T, 8, 0, 1, 1>(l, x);
    return wide ? start<T, 4, 0, 1, V>(l, x) : start<T, 4, 0, 1, 1>(l, x);
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    if (p->m == 0 || p->n == 0) return SAT_OK;
    shape s = choose(p, l->pattern);
    small_job x = {sat_device_rows(p, l->pattern), sat_epilogue_of(l)};
    x.w = l->state ? *(const sat_device_schedule *)l->state : sat_whole_rows_schedule(&x.r);
    x.ways = vector_access_of(p, x.r.br);
    x.values = l->operands[0], x.b = l->operands[1], x.b_row = p->b.row_stride, x.b_col = p->b.col_stride;
    x.b_block = x.r.bc * x.b_row, x.whole = (int32_t)(x.r.k / x.r.bc);
    x.bands_of_piece = s.bands, x.bands = x.w.pieces * s.bands;
    x.lane_bits = s.lane_bits, x.group_bits = s.group_bits;
    x.tiles = (unsigned)s.tiles;
    sat_rows host = sat_op_rows(p, l->pattern);
    int64_t longest = sat_longest_work_item(l, l->state ? share_of(&s, &host, l->device) : 0);
    sat_status status = sat_each_part(l, x, sat_parts_in_c(p, x.r.bc, s.groups), longest, [&](small_job y) {
        y.units = (unsigned)((y.part.deep + s.unit - 1) / s.unit);
        if (p->a_dtype == SAT_F64) run<double>(l, y, &s);
        else run<float>(l, y, &s);
    });
    return status == SAT_OK ? sat_launch_split_reduction(l, x.r, x.out, x.w) : status;
}

SAT_FAMILY(cuda_matmul_small) = {
    .revision = "2",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .about = "small and odd blocks, any strides; sums in registers, values by broadcast, lanes along columns and units",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_schedule,
};
