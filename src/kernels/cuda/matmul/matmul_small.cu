// cuda_matmul_small: f32 and f64 for small and odd blocks, and for few columns. Bound by reading, for each stored
// block, its rows of B from L2. Square blocks of 1, 2, 3, 4, 6 and 8 have kernels of their own; any other shape is done
// in bands of 4 or 8 rows. Option 1: heavy rows are split. Long f32 sums are made in parts, one launch each
// (long_sums.h).
//
// There is no shared memory: all lanes that need a value of A read it in one broadcast, neighbouring lanes read
// neighbouring columns of B, and sums stay in registers. A warp's lanes are `lanes` along the columns, V columns each,
// times `groups` that divide the products of a block row, times block rows. A unit of work is KU columns of a block's R
// rows. The groups take turns at the units, so that even one column of B keeps a warp busy and reads the values in
// order; at the end their sums are added by shuffles.

#include "kernels/cuda/common/long_sums.h"
#include "kernels/cuda/common/simt_epilogue.cuh"
#include "kernels/cuda/common/simt_rates.h"

enum { THREADS = 128, WARPS = THREADS / 32 };

struct kernel_args {
    sat_rows r;
    sat_epilogue out;
    sat_device_schedule work;
    vector_access c_access;
    const void *values, *b;
    int64_t b_row_stride, b_col_stride;
    int64_t b_block_stride; // from a block column's first row of B to the next one's
    int64_t bands;          // a band is R rows of a work item
    int bands_of_item;
    int32_t inside_columns; // block columns before this one are inside the matrix
    int lane_bits, group_bits;
    unsigned units, tiles; // of a block's columns, of the columns of C
    sat_row_part part;
};

// ---- products of one unit

// The elements of one load: as many of KU as fit into 16 bytes and divide it.
template <typename T, int KU> struct unit_load {
    static constexpr int most = 16 / (int)sizeof(T), count = KU % most == 0 ? most : KU % 2 == 0 ? 2 : 1;
    struct alignas(count * sizeof(T)) type {
        T x[count];
    };
};

// KU columns of a block's R rows times KU rows of B.
template <typename T, int R, int C, int KU, int V>
__device__ __forceinline__ void multiply_unit(T (&sum)[R][V], const kernel_args &args, const T *a, const T *b,
                                              int rows) {
    typedef unit_load<T, KU> load;
    struct alignas(V * sizeof(T)) row {
        T x[V];
    };
    row y[KU];
#pragma unroll
    for (int k = 0; k < KU; k++) y[k] = *(const row *)(b + k * args.b_row_stride);
#pragma unroll
    for (int k = 0; k < KU; k += load::count)
#pragma unroll
        for (int i = 0; i < R; i++) { // rows past the band read its last one and are not stored
            const T *from = a + (C ? i * C : (i < rows ? i : rows - 1) * args.r.row_step);
            typename load::type s = *(const typename load::type *)(from + k);
#pragma unroll
            for (int e = 0; e < load::count; e++)
#pragma unroll
                for (int j = 0; j < V; j++) sum[i][j] += s.x[e] * y[k + e].x[j];
        }
}

// The same element by element, where the matrix ends inside: `deep` columns of A and `left` columns of C exist.
template <typename T, int R, int C, int V>
__device__ __forceinline__ void multiply_edge(T (&sum)[R][V], const kernel_args &args, const T *a, const T *b, int rows,
                                              int deep, int left) {
    const int64_t row_step = C ? C : args.r.row_step, col_step = C ? 1 : args.r.col_step;
#pragma unroll 1
    for (int k = 0; k < deep; k++) {
        T y[V];
#pragma unroll
        for (int j = 0; j < V; j++) y[j] = j < left ? b[k * args.b_row_stride + j * args.b_col_stride] : T(0);
#pragma unroll
        for (int i = 0; i < R; i++) {
            T s = a[(i < rows ? i : rows - 1) * row_step + k * col_step];
#pragma unroll
            for (int j = 0; j < V; j++) sum[i][j] += s * y[j];
        }
    }
}

// ---- main loop: a group's units of a band

// C: the columns of a block where the kernel is made for one size, and then a band is a whole block; 0: any.
template <typename T, int R, int C, int KU, int V>
__device__ __forceinline__ void multiply_band(T (&sum)[R][V], const kernel_args &args, const sat_work_item &item,
                                              int64_t first, int64_t j, unsigned group) {
    const unsigned units = C ? C / KU : args.units, step = 1u << args.group_bits, count = (unsigned)item.count;
    const unsigned step_t = step / units, step_u = step % units;
    const int rows = C ? R : (int)sat_min(R, args.r.br - first), left = (int)sat_min(V, args.out.n - j);
    const T *values = (const T *)args.values + (C ? 0 : first * args.r.row_step);
    const T *dense = (const T *)args.b + j * args.b_col_stride;
    const int32_t *columns = args.r.col + item.first;
    unsigned t = group / units, u = group % units;
    int32_t next = t < count ? columns[t] : 0;
    while (t < count) {
        int32_t column = next, k = (int32_t)(u * KU);
        int64_t block = sat_block_of(&args.r, item.first + t);
        t += step_t, u += step_u;
        if (u >= units) u -= units, t++;
        if (t < count) next = columns[t]; // loaded early, since the next unit waits for it
        const T *a = values + block * (C ? R * C : args.r.block_elements) + k * (C ? 1 : args.r.col_step);
        const T *b = dense + column * args.b_block_stride + k * args.b_row_stride;
        if (left == V && column < args.inside_columns) multiply_unit<T, R, C, KU, V>(sum, args, a, b, rows);
        else {
            int64_t deep = sat_min(KU, args.r.k - column * (C ? C : args.r.bc) - k);
            multiply_edge<T, R, C, V>(sum, args, a, b, rows, (int)deep, left);
        }
    }
}

// ---- kernel: bands are the fastest index, so that CTAs that run at the same time read the same columns of B from L2

// CTAs of a multiprocessor: with fewer registers the compiler would load a block in several steps.
template <int R, int V> constexpr int ctas = V == 1 ? (R > 4 ? 6 : 8) : R > 4 ? 3 : 5;

template <typename T, int R, int C, int KU, int V>
static __global__ void __launch_bounds__(THREADS, (ctas<R, V>)) multiply(const __grid_constant__ kernel_args args) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, lanes = 1u << args.lane_bits;
    const unsigned group = lane >> args.lane_bits & ((1u << args.group_bits) - 1),
                   side = lane >> (args.lane_bits + args.group_bits);
    const unsigned each = 32u >> (args.lane_bits + args.group_bits); // bands of a warp
    for (unsigned tile = blockIdx.y; tile < args.tiles; tile += gridDim.y)
        for (int64_t w = (int64_t)blockIdx.x * WARPS * each; w < args.bands; w += (int64_t)gridDim.x * WARPS * each) {
            int64_t band = w + warp * each + side, j = ((int64_t)tile * lanes + lane % lanes) * V, first = 0;
            bool live = band < args.bands && j < args.out.n;
            if (!C && args.bands_of_item > 1) first = band % args.bands_of_item * R, band /= args.bands_of_item;
            sat_work_item item = {};
            bool last = true;
            if (live) item = sat_work_item_at(args.r, args.work.item, band);
            live = sat_take_part(&args.part, &item, &last) && live;
            if (!live) item.count = 0;
            if (!last) item.row = ~item.row; // `last` is kept in the sign, which saves a register
            T sum[R][V] = {};
            multiply_band<T, R, C, KU, V>(sum, args, item, first, j, group);
            for (unsigned other = lanes; other < lanes << args.group_bits; other *= 2)
#pragma unroll
                for (int i = 0; i < R; i++)
#pragma unroll
                    for (int v = 0; v < V; v++) sum[i][v] += __shfl_xor_sync(~0u, sum[i][v], (int)other);
            if (!live || group) continue;
            last = item.row >= 0;
            if (!last) item.row = ~item.row;
            simt_epilogue<T> out =
                simt_epilogue_of<T>(args.out, args.r, args.work, item, args.c_access, args.part.first, last);
#pragma unroll
            for (int i = 0; i < R; i++) simt_store_row<T, V>(out, (int)first + i, j, sum[i], false);
            if (out.activation != SAT_ACT_NONE)
                for (int e = 0; e < R * V; e++) simt_activate(out, (int)first + e / V, j + e % V);
        }
}

// ---- host: instances

struct instance {
    int rows, block, unit, columns; // R, C, KU and V
    void (*run)(kernel_args);
};

template <typename T, int R, int C, int KU, int V> static constexpr instance instance_of() {
    return {R, C, KU, V, multiply<T, R, C, KU, V>};
}

template <typename T, int V = 16 / sizeof(T)>
static const instance instances[] = {
    instance_of<T, 1, 1, 1, 1>(), instance_of<T, 1, 1, 1, V>(), // square blocks
    instance_of<T, 2, 2, 2, 1>(), instance_of<T, 2, 2, 2, V>(), //
    instance_of<T, 3, 3, 3, 1>(), instance_of<T, 3, 3, 3, V>(), //
    instance_of<T, 4, 4, V, 1>(), instance_of<T, 4, 4, 4, V>(), //
    instance_of<T, 6, 6, 2, 1>(), instance_of<T, 6, 6, 6, V>(), //
    instance_of<T, 8, 8, V, 1>(), instance_of<T, 8, 8, 8, V>(), //
    instance_of<T, 8, 0, V, 1>(), instance_of<T, 8, 0, V, V>(), // any, aligned
    instance_of<T, 8, 0, 1, 1>(), instance_of<T, 8, 0, 1, V>(), // any
    instance_of<T, 4, 0, 1, 1>(), instance_of<T, 4, 0, 1, V>(), // any of at most 4 rows
};

// How a problem is divided.
struct shape {
    int rows, block, unit; // R, C and KU
    int columns;           // V
    int lanes, groups;     // powers of two
    int lane_bits, group_bits;
    int units, bands;
    int64_t tiles;
};

static const instance *find(sat_dtype dtype, const shape *s) {
    for (const instance &i : dtype == SAT_F64 ? instances<double> : instances<float>)
        if (i.rows == s->rows && i.block == s->block && i.unit == s->unit && i.columns == s->columns) return &i;
    return NULL;
}

enum { SPLIT = 1, SPLIT_LEAST = 16, WARPS_AT_ONCE = 32 };

// Every matrix of the batch is aligned to so many bytes.
static bool in_vectors(const sat_problem *p, const sat_layout *x, uint32_t align, int64_t bytes) {
    return align >= bytes && (p->batch == 1 || x->batch_stride * (int64_t)sat_dtype_size(p->a_dtype) % bytes == 0);
}

// Where a lane has 16 bytes of columns, a unit is a whole square block. Where it has one column, a unit is one load of
// A, so that neighbouring lanes read neighbouring values.
static void choose_unit(shape *s, const sat_problem *p, const sat_rows &r) {
    const int size = (int)sat_dtype_size(p->a_dtype), vector = 16 / size, side = (int)r.bc;
    bool square = r.br == r.bc && r.col_step == 1 && (r.bc <= 4 || r.bc == 6 || r.bc == 8);
    int load = side % vector == 0 ? vector : side % 2 == 0 ? 2 : 1;
    if (square && in_vectors(p, &p->a, p->a_align, load * size)) {
        s->rows = s->block = side, s->unit = s->columns > 1 || load == 1 ? side : load;
        return;
    }
    bool vectors = r.br > 4 && r.col_step == 1 && r.bc % vector == 0 && in_vectors(p, &p->a, p->a_align, 16);
    s->block = 0, s->unit = vectors ? vector : 1, s->rows = r.br > 4 ? 8 : 4;
}

static shape choose(const sat_problem *p, const sat_pattern_view *a) {
    sat_rows r = sat_op_rows(p, a);
    shape s = {};
    int64_t size = (int64_t)sat_dtype_size(p->b_dtype), vector = 16 / size;
    bool vectors = p->n >= vector && p->b.col_stride == 1 && p->b.row_stride * size % 16 == 0 &&
                   in_vectors(p, &p->b, p->b_align, 16);
    s.columns = vectors ? (int)vector : 1;
    choose_unit(&s, p, r);
    s.units = (int)((r.bc + s.unit - 1) / s.unit), s.bands = (int)((r.br + s.rows - 1) / s.rows);
    while (s.lane_bits < 5 && (s.columns << s.lane_bits) < p->n) s.lane_bits++;
    double each = (double)a->stored_blocks * s.units / (double)sat_max(1, r.count); // at least 4 units a group
    while (s.lane_bits + s.group_bits < 5 && each >= 4.0 * (1 << s.group_bits)) s.group_bits++;
    s.lanes = 1 << s.lane_bits, s.groups = 1 << s.group_bits;
    s.tiles = (p->n + s.lanes * s.columns - 1) / (s.lanes * s.columns);
    return s;
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)d;
    const int64_t most = 1 << 24;
    return p->a_dtype == v->instance.dtype && p->c_dtype == p->a_dtype && a->block_rows < most && a->block_cols < most;
}

static int64_t share_of(const shape *s, const sat_rows *r, const sat_device *d) {
    int64_t at_once = (int64_t)d->multiprocessors * WARPS_AT_ONCE * (32 / (s->lanes * s->groups));
    return sat_schedule_share(r, s->tiles * s->bands, 4 * at_once, SPLIT_LEAST);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    shape s = choose(p, a);
    double stored = (double)a->stored_blocks, size = (double)sat_dtype_size(p->a_dtype), bands = s.bands;
    double n = (double)p->n, each = s.unit > 1 ? 16 : size; // bytes of a load of A
    // Cycles of a quarter of a multiprocessor for a warp's unit: products, loads, which the quarters share, the rest.
    double products = s.rows * s.unit * s.columns * (p->a_dtype == SAT_F64 ? 2.0 : 1.0);
    double unit = products + 4 * (2 * s.rows * s.unit * size / each + 4.0 * s.unit) + 40;
    double warps = stored * bands * s.units * (double)s.tiles * s.lanes / 32, cycles = sat_simt_cycles(d);
    double l2 = stored * size * (bands * (double)r.bc * n + (double)r.block_elements * (double)s.tiles);
    double memory = sat_bytes(p, a) / (double)p->batch / d->memory_rate;
    double seconds = sat_worst(warps * unit / (4 * cycles), l2 / d->l2_rate, memory);
    if (p->b.col_stride != 1 && p->n > 1) seconds *= 3;
    double steps = sat_heaviest(p, a) * s.units / s.groups,
           alone = SAT_SIMT_LATENCY + unit * d->multiprocessors / cycles;
    if (v->instance.option & SPLIT) return (1.15 * seconds + 6e-6) * (double)p->batch;
    return (sat_worst(seconds, steps * alone, 0) + 3e-6) * (double)p->batch;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    if (!(v->instance.option & SPLIT)) return 0;
    sat_rows r = sat_op_rows(p, a);
    shape s = choose(p, a);
    return sat_schedule_workspace(&r, share_of(&s, &r, d), p->n, sat_dtype_size(p->c_dtype));
}

static sat_status prepare(const sat_prepare *prepare, void **state) {
    if (!(prepare->variant->instance.option & SPLIT)) return SAT_OK;
    sat_rows r = sat_op_rows(prepare->problem, prepare->pattern);
    shape s = choose(prepare->problem, prepare->pattern);
    return sat_prepare_schedule(prepare, share_of(&s, &r, prepare->device), state);
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    if (p->m == 0 || p->n == 0) return SAT_OK;
    shape s = choose(p, l->pattern);
    const instance *k = find(p->a_dtype, &s);
    kernel_args args = {sat_device_rows(p, l->pattern), sat_epilogue_of(l)};
    args.work = l->state ? *(const sat_device_schedule *)l->state : sat_whole_rows_schedule(&args.r);
    args.c_access = vector_access_of(p, args.r.br);
    args.values = l->operands[0], args.b = l->operands[1];
    args.b_row_stride = p->b.row_stride, args.b_col_stride = p->b.col_stride;
    args.b_block_stride = args.r.bc * args.b_row_stride, args.inside_columns = (int32_t)(args.r.k / args.r.bc);
    args.bands_of_item = s.bands, args.bands = args.work.items * s.bands;
    args.lane_bits = s.lane_bits, args.group_bits = s.group_bits;
    args.tiles = (unsigned)s.tiles;
    sat_rows host = sat_op_rows(p, l->pattern);
    int64_t longest = sat_longest_work_item(l, l->state ? share_of(&s, &host, l->device) : 0);
    dim3 grid(sat_blocks(args.bands, WARPS * (32 / (s.lanes * s.groups))), args.tiles < 65535 ? args.tiles : 65535);
    sat_status status = sat_each_part(l, args, sat_parts_in_c(p, args.r.bc, s.groups), longest, [&](kernel_args part) {
        part.units = (unsigned)((part.part.deep + s.unit - 1) / s.unit);
        k->run<<<grid, THREADS, 0, (cudaStream_t)l->stream>>>(part);
    });
    return status == SAT_OK ? sat_launch_split_reduction(l, args.r, args.out, args.work) : status;
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
    .release = sat_release_state,
};
