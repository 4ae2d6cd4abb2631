// cuda_matmul_skinny_vector: 1 to 8 columns without tensor cores, any dtype, any block.
//
// A lane has 4 rows of C and goes along k in chunks of 16 bytes, or in elements where nothing is aligned. It requests
// the next chunks of its rows before it multiplies the ones it has. The lanes of a warp are RL groups of rows times
// 32/RL chunks of k, so that rows share their loads of B. A team of warps has a work item: RW warps cover a tile of
// 4*RL*RW rows, and KW of each divide its k. A CTA of 4 warps has several teams where rows are short. Sums are added
// across lanes and then across warps, in a fixed order. Long f32 sums are made in parts, one launch each (long_sums.h).

#include "kernels/cuda/common/long_sums.h"
#include "kernels/cuda/matmul/skinny_split.cuh"

enum { WARPS = 4, WARPS_LOG = 2, ROWS = 4 };            // ROWS: of a lane
enum a_access { A_K_CHUNKS, A_ROW_CHUNKS, A_ELEMENTS }; // chunks along k; along rows, where op(A) = A^T; elements
enum b_access { B_K_CHUNKS, B_N_CHUNKS, B_ELEMENTS };   // chunks along k; chunks of all columns; elements

struct kernel_args {
    sat_rows r;
    sat_epilogue out;
    sat_device_schedule work;
    const void *values, *b;
    int64_t b_row_stride, b_col_stride, a_batch_stride, b_batch_stride, c_batch_stride;
    int br, bc;
    int chunks;                   // of k in a block
    unsigned chunks_inverse;      // 65536 / chunks, rounded up: exact below 256
    int step_blocks, step_chunks; // from a lane's chunk to its next one, 32/RL * KW chunks further
    int rl_log, rw_log, kw_log;   // RL, RW and KW are powers of two
    b_access b_chunks;
    bool keep_in_l1; // A's chunks share a sector with others that are read later
    sat_row_part part;
};

// ---- a chunk: 16 bytes in registers, or one element in the first of them

struct chunk {
    uint32_t w[4];
};

// Element v of a chunk: get() widens it to the accumulator's type, set() loads it, copy() takes it from a chunk.
template <typename T> struct element;
template <> struct element<float> {
    typedef float sum;
    static __device__ __forceinline__ float get(const chunk &c, int v) { return __uint_as_float(c.w[v]); }
    static __device__ __forceinline__ void set(chunk &c, int v, const float *p) { c.w[v] = __float_as_uint(__ldg(p)); }
    static __device__ __forceinline__ void copy(chunk &c, int v, const chunk &from, int at) { c.w[v] = from.w[at]; }
};
template <> struct element<double> {
    typedef double sum;
    static __device__ __forceinline__ double get(const chunk &c, int v) {
        return __hiloint2double((int)c.w[2 * v + 1], (int)c.w[2 * v]);
    }
    static __device__ __forceinline__ void set(chunk &c, int v, const double *p) {
        double d = __ldg(p);
        c.w[2 * v] = (uint32_t)__double2loint(d), c.w[2 * v + 1] = (uint32_t)__double2hiint(d);
    }
    static __device__ __forceinline__ void copy(chunk &c, int v, const chunk &from, int at) {
        c.w[2 * v] = from.w[2 * at], c.w[2 * v + 1] = from.w[2 * at + 1];
    }
};
struct element16 {
    typedef float sum;
    static __device__ __forceinline__ void set_bits(chunk &c, int v, uint32_t bits) { // in ascending order of v
        c.w[v / 2] = v % 2 ? c.w[v / 2] | bits << 16 : bits;
    }
    static __device__ __forceinline__ void set(chunk &c, int v, const void *p) {
        set_bits(c, v, __ldg((const unsigned short *)p));
    }
    static __device__ __forceinline__ void copy(chunk &c, int v, const chunk &from, int at) {
        set_bits(c, v, from.w[at / 2] >> at % 2 * 16 & 0xffffu);
    }
};
template <> struct element<__half> : element16 {
    static __device__ __forceinline__ float get(const chunk &c, int v) {
        return __half2float(__ushort_as_half((unsigned short)(c.w[v / 2] >> v % 2 * 16)));
    }
};
template <> struct element<__nv_bfloat16> : element16 {
    static __device__ __forceinline__ float get(const chunk &c, int v) {
        return __uint_as_float(v % 2 ? c.w[v / 2] & 0xffff0000u : c.w[v / 2] << 16);
    }
};

// Values are read once, so L1 is left to B, unless `keep`.
__device__ __forceinline__ void load_chunk(chunk &c, const void *p, int keep) {
    asm("{\n .reg .pred p;\n setp.ne.s32 p, %5, 0;\n"
        " @p ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];\n"
        " @!p ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];\n}"
        : "=r"(c.w[0]), "=r"(c.w[1]), "=r"(c.w[2]), "=r"(c.w[3])
        : "l"(p), "r"(keep));
}

// Zeros the bytes from `valid` on, which is even.
__device__ __forceinline__ void zero_tail(chunk &c, int valid) {
#pragma unroll
    for (int i = 0; i < 4; i++) c.w[i] = valid >= 4 * i + 4 ? c.w[i] : valid > 4 * i ? c.w[i] & 0xffffu : 0;
}

// ---- A: a lane's tile of 4 rows by V of k

template <typename T, a_access A> struct tile {
    static constexpr int V = A == A_ELEMENTS ? 1 : 16 / (int)sizeof(T);
    static constexpr int SPLIT = sizeof(T) == 8 ? 2 : 1; // chunks of 4 rows
    chunk c[4];
    static_assert(A != A_ROW_CHUNKS || sizeof(T) > 2, "a tile is 4 chunks in each case");

    // from: the block; row: the offset of each row in it
    __device__ __forceinline__ void load(const kernel_args &args, const T *from, const int (&row)[ROWS], int at) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (A == A_K_CHUNKS) load_chunk(c[i], from + row[i] + at * V, args.keep_in_l1);
            else if (A == A_ELEMENTS) element<T>::set(c[i], 0, from + row[i] + at * args.r.col_step);
            else
                load_chunk(c[i], from + row[0] + (at * V + i / SPLIT) * args.r.col_step + i % SPLIT * V,
                           args.keep_in_l1);
        }
    }
    __device__ __forceinline__ typename element<T>::sum get(int s, int v) const {
        return A == A_ROW_CHUNKS ? element<T>::get(c[v * SPLIT + s / V], s % V) : element<T>::get(c[s], v);
    }
    __device__ __forceinline__ void zero_past(int left) { // zeros what is past the matrix: it may be NaN
#pragma unroll
        for (int i = 0; i < 4; i++)
            zero_tail(c[i], A == A_ROW_CHUNKS ? (i / SPLIT < left ? 16 : 0) : left * (int)sizeof(T));
    }
};

// ---- B: a lane's V of k by NV columns, one chunk a column

template <typename T, int NV, int V> struct columns {
    chunk c[NV];

    // k: the first; left: how many exist
    __device__ __forceinline__ void load(const kernel_args &args, const T *b, int64_t k, int left) {
        const T *from = b + k * args.b_row_stride;
        if (V > 1 && args.b_chunks == B_K_CHUNKS && left >= V) {
#pragma unroll
            for (int j = 0; j < NV; j++, from += j < args.out.n ? args.b_col_stride : 0) load_chunk(c[j], from, 1);
        } else if (V > 1 && NV >= V && args.b_chunks == B_N_CHUNKS && left >= V) {
#pragma unroll
            for (int v = 0; v < V; v++, from += args.b_row_stride)
#pragma unroll
                for (int j = 0; j < NV; j += V) {
                    chunk row;
                    load_chunk(row, from + j, 1);
#pragma unroll
                    for (int e = 0; e < V; e++)
                        if (j + e < NV) element<T>::copy(c[j + e], v, row, e);
                }
        } else {
#pragma unroll
            for (int j = 0; j < NV; j++, from += j < args.out.n ? args.b_col_stride : 0) {
                c[j].w[0] = c[j].w[1] = c[j].w[2] = c[j].w[3] = 0;
#pragma unroll
                for (int v = 0; v < V; v++)
                    if (v < left) element<T>::set(c[j], v, from + v * args.b_row_stride);
            }
        }
    }
};

// ---- main loop: a lane's chunks of a work item

template <typename T, int NV, a_access A>
__device__ __forceinline__ void multiply_row(typename element<T>::sum (&sum)[ROWS * NV], const kernel_args &args,
                                             const sat_work_item &item, const T *values, const T *b,
                                             const int (&row)[ROWS], int first) {
    constexpr int V = tile<T, A>::V;
    int block = (int)(first * args.chunks_inverse >> 16), at = first - block * args.chunks;
    tile<T, A> now, next;
    int32_t col = 0, next_col = 0;
    if (block < item.count) {
        now.load(args, values + sat_block_of(&args.r, item.first + block) * args.r.block_elements, row, at);
        col = args.r.col[item.first + block];
    }
    while (block < item.count) {
        int64_t k = (int64_t)col * args.bc + at * V;
        int left = (int)sat_min(V, args.r.k - k);
        block += args.step_blocks, at += args.step_chunks;
        if (at >= args.chunks) at -= args.chunks, block++;
        if (block < item.count) {
            next.load(args, values + sat_block_of(&args.r, item.first + block) * args.r.block_elements, row, at);
            next_col = args.r.col[item.first + block];
        }
        if (left > 0) {
            columns<T, NV, V> bs;
            bs.load(args, b, k, left);
            if (V > 1 && left < V) now.zero_past(left);
#pragma unroll
            for (int j = 0; j < NV; j++)
#pragma unroll
                for (int v = 0; v < V; v++)
#pragma unroll
                    for (int s = 0; s < ROWS; s++) sum[s * NV + j] += now.get(s, v) * element<T>::get(bs.c[j], v);
        }
        now = next, col = next_col;
    }
}

// ---- kernel: blockIdx.x has a work item for each of its teams of RW*KW warps, .y is a tile of rows, .z a matrix of
// the batch

template <typename T, int NV> struct occupancy { // CTAs of a multiprocessor, by registers
    static constexpr int ctas = NV == 1 ? 6 : NV == 4 || sizeof(T) == 4 ? 4 : 3;
};

template <typename T, int NV, a_access A>
static __global__ void __launch_bounds__(WARPS * 32, occupancy<T, NV>::ctas)
    multiply(const __grid_constant__ kernel_args args) {
    typedef typename element<T>::sum S;
    constexpr int COUNT = ROWS * NV;
    __shared__ S sums[WARPS][8 * COUNT]; // of each group of 4 rows
    __shared__ int2 owner[WARPS];        // row (-1: none) and partial of a team's work item
    __shared__ bool ends[WARPS];         // whether this is its last part
    int warp = threadIdx.x / 32, kl = 32 >> args.rl_log, lane = threadIdx.x % kl, rl = threadIdx.x % 32 / kl;
    int team_log = args.rw_log + args.kw_log, groups_log = args.rw_log + args.rl_log; // groups of 4 rows in a tile
    int64_t at = ((int64_t)blockIdx.x << (WARPS_LOG - team_log)) + (warp >> team_log);
    sat_work_item item = {0, -1, 0, -1, 0};
    bool last = true;
    if (at < args.work.items) item = sat_work_item_at(args.r, args.work.item, at);
    if (!sat_take_part(&args.part, &item, &last)) item.row = -1, item.count = 0;
    if (threadIdx.x % 32 == 0)
        owner[warp >> team_log] = make_int2(item.row, item.partial), ends[warp >> team_log] = last;
    int top = ((int)blockIdx.y << groups_log) * ROWS, row[ROWS]; // the tile's first row
    int mine = top + (((warp >> args.kw_log & ((1 << args.rw_log) - 1)) << args.rl_log) + rl) * ROWS;
#pragma unroll
    for (int s = 0; s < ROWS; s++) row[s] = mine + s < args.br ? (mine + s) * (int)args.r.row_step : 0;
    S sum[COUNT] = {};
    multiply_row<T, NV, A>(sum, args, item, (const T *)args.values + blockIdx.z * args.a_batch_stride,
                           (const T *)args.b + blockIdx.z * args.b_batch_stride, row,
                           (warp & ((1 << args.kw_log) - 1)) * kl + lane);
    for (int apart = kl / 2; apart > 0; apart /= 2)
#pragma unroll
        for (int e = 0; e < COUNT; e++) sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], apart);
#pragma unroll
    for (int e = 0; e < COUNT; e++)
        if (lane == (e & (kl - 1))) sums[warp][rl * COUNT + e] = sum[e];
    __syncthreads();
    for (int o = threadIdx.x; o < COUNT << (WARPS_LOG - args.kw_log + args.rl_log); o += WARPS * 32) {
        int group = o / COUNT, e = o % COUNT, j = e % NV; // group: among those of all teams
        int2 own = owner[group >> groups_log];
        int in_block = top + (group & ((1 << groups_log) - 1)) * ROWS + e / NV;
        if (own.x < 0 || in_block >= args.br || j >= args.out.n) continue;
        S total = 0;
        for (int w = 0; w < 1 << args.kw_log; w++)
            total += sums[((group >> args.rl_log) << args.kw_log) + w][(group & ((1 << args.rl_log) - 1)) * COUNT + e];
        int64_t i = (int64_t)own.x * args.br + in_block;
        sat_epilogue out = args.out;
        out.c = (char *)out.c + blockIdx.z * args.c_batch_stride;
        if (own.y >= 0) {
            S *to = (S *)args.work.partial + ((int64_t)own.y * args.br + in_block) * out.n + j;
            *to = args.part.first ? total : *to + total;
        } else if (i < out.m) {
            sat_epilogue_store(out, i, j, total, args.part.first, ends[group >> groups_log]);
        }
    }
}

// ---- host

struct instance {
    sat_dtype dtype;
    int tile_n;
    void (*run[3])(kernel_args); // by a_access
};

template <typename T, int NV> static constexpr instance instance_of(sat_dtype dtype) {
    return {dtype, NV, {multiply<T, NV, A_K_CHUNKS>, multiply<T, NV, A_ROW_CHUNKS>, multiply<T, NV, A_ELEMENTS>}};
}

template <typename T, int NV> static constexpr instance instance16_of(sat_dtype dtype) { // row chunks are elements
    return {dtype, NV, {multiply<T, NV, A_K_CHUNKS>, multiply<T, NV, A_ELEMENTS>, multiply<T, NV, A_ELEMENTS>}};
}

static const instance instances[] = {
    instance_of<float, 1>(SAT_F32),
    instance_of<float, 4>(SAT_F32),
    instance_of<float, 8>(SAT_F32),
    instance_of<double, 1>(SAT_F64),
    instance_of<double, 4>(SAT_F64),
    instance_of<double, 8>(SAT_F64),
    instance16_of<__half, 1>(SAT_F16),
    instance16_of<__half, 4>(SAT_F16),
    instance16_of<__half, 8>(SAT_F16),
    instance16_of<__nv_bfloat16, 1>(SAT_BF16),
    instance16_of<__nv_bfloat16, 4>(SAT_BF16),
    instance16_of<__nv_bfloat16, 8>(SAT_BF16),
};

static const instance *find(const sat_variant *v) {
    for (const instance &i : instances)
        if (i.dtype == v->instance.dtype && i.tile_n == v->instance.tile_n) return &i;
    return NULL;
}

// A variant's options
static bool is_split(const sat_variant *v) { return (v->instance.option & 1) != 0; }
static bool by_elements(const sat_variant *v) { return (v->instance.option & 2) != 0; }

// Whether every chunk of A is whole and aligned.
static bool in_chunks(const sat_problem *p, const sat_rows *r) {
    int64_t size = (int64_t)sat_dtype_size(p->a_dtype), v = 16 / size;
    if (p->a_align < 16 || (p->batch > 1 && p->a.batch_stride * size % 16) || r->bc % v) return false;
    return p->matmul.transpose == SAT_TRANSPOSE ? size > 2 && r->br % ROWS == 0 : true;
}

static a_access access_of(const sat_variant *v, const sat_problem *p) {
    return by_elements(v) ? A_ELEMENTS : p->matmul.transpose == SAT_TRANSPOSE ? A_ROW_CHUNKS : A_K_CHUNKS;
}

// How lanes and warps divide the rows of a block and its k, such that each lane has several chunks.
struct team {
    int rl_log, rw_log, kw_log;
    int64_t chunks; // of k in a block
};

static int warps_log(const team &t) { return t.rw_log + t.kw_log; }
static int64_t rows_of(const team &t) { return ROWS << (t.rl_log + t.rw_log); }

static team team_of(const sat_variant *v, const sat_problem *p, const sat_rows *r) {
    int64_t each = access_of(v, p) == A_ELEMENTS ? 1 : 16 / (int64_t)sat_dtype_size(p->a_dtype);
    team t = {0, 0, 0, r->bc / each};
    while (t.rl_log < 3 && rows_of(t) < r->br) t.rl_log++;
    while (t.rw_log < WARPS_LOG && rows_of(t) < r->br) t.rw_log++;
    double lanes = (double)(32 >> t.rl_log) * (double)sat_max(1, r->count);
    double steps = (double)r->ptr[r->count] * (double)t.chunks / lanes;
    while (warps_log(t) < WARPS_LOG && steps >= 8 << t.kw_log) t.kw_log++;
    return t;
}

static int64_t tiles_of(const sat_rows *r, const team &t) { return (r->br + rows_of(t) - 1) / rows_of(t); }

static int64_t share_of(const sat_variant *v, const sat_problem *p, const sat_rows *r, const sat_device *d) {
    team t = team_of(v, p, r);
    int64_t teams = (int64_t)d->multiprocessors * (16 >> warps_log(t)),
            least = ((32 >> t.rl_log) * 8 << t.kw_log) / t.chunks;
    return sat_schedule_share(r, tiles_of(r, t), teams, sat_max(2, least));
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    int64_t most = v->instance.tile_n;
    sat_rows r = sat_op_rows(p, a);
    if (p->a_dtype != v->instance.dtype || p->n > most || (most > 1 && p->n <= (most == 4 ? 1 : 4))) return false;
    if (r.block_elements > INT32_MAX || r.k > INT32_MAX / 2 || r.br > 1 << 18) return false;
    if (r.count > 1 << 30 || p->batch > 65535) return false; // the grid's limits
    if (in_chunks(p, &r) == by_elements(v)) return false;
    return !is_split(v) || skinny_schedule_helps(p, a, share_of(v, p, &r, d));
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    team t = team_of(v, p, &r);
    double size = (double)sat_dtype_size(p->a_dtype), share = (double)share_of(v, p, &r, d);
    double longest = (double)(p->matmul.transpose == SAT_TRANSPOSE ? a->max_col : a->max_row);
    bool split = is_split(v) && longest > share * 1.25;
    if (split) longest = share;
    // A lane has 4 loads in flight: chunks, or elements, which use less of the memory's rate.
    double busy = by_elements(v) ? 0.1 * size : 0.85, team_rate = 0.87 * d->l2_rate / d->multiprocessors;
    double memory = sat_bytes(p, a) / (fmin(busy, 0.85) * d->memory_rate);
    double alone = longest * (double)(r.bc * rows_of(t)) * size / (fmin(busy, 0.5) * team_rate);
    double math = sat_flops(p, a) / (0.3 * d->flop_rate[p->a_dtype == SAT_F64 ? SAT_F64 : SAT_F32]);
    return fmax(fmax(memory, math), alone) + (split ? 4e-6 : 2.5e-6);
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    if (!is_split(v)) return 0;
    sat_rows r = sat_op_rows(p, a);
    return sat_schedule_workspace(&r, share_of(v, p, &r, d), p->n,
                                  p->a_dtype == SAT_F64 ? sizeof(double) : sizeof(float));
}

static sat_status prepare(const sat_prepare *l, void **state) {
    if (!is_split(l->variant)) return SAT_OK;
    sat_rows r = sat_op_rows(l->problem, l->pattern);
    return sat_prepare_schedule(l, share_of(l->variant, l->problem, &r, l->device), state);
}

static b_access b_access_of(const sat_variant *v, const sat_problem *p) {
    int64_t size = (int64_t)sat_dtype_size(p->b_dtype), batch = p->batch > 1 ? p->b.batch_stride : 0;
    if (p->b_align < 16 || batch * size % 16) return B_ELEMENTS;
    if (p->b.row_stride == 1 && (p->n == 1 || p->b.col_stride * size % 16 == 0)) return B_K_CHUNKS;
    bool full = p->n == v->instance.tile_n && p->n * size % 16 == 0; // no chunk ends past a row
    return full && p->b.col_stride == 1 && p->b.row_stride * size % 16 == 0 ? B_N_CHUNKS : B_ELEMENTS;
}

// For blocks, or parts of them, of so many chunks.
static void set_chunks(kernel_args *args, int64_t chunks) {
    int step = (32 >> args->rl_log) << args->kw_log;
    args->chunks = (int)chunks, args->chunks_inverse = (unsigned)((65536 + chunks - 1) / chunks);
    args->step_blocks = step / args->chunks, args->step_chunks = step % args->chunks;
}

static kernel_args args_of(const sat_launch *l) {
    const sat_problem *p = l->problem;
    sat_rows host = sat_op_rows(p, l->pattern);
    team t = team_of(l->variant, p, &host);
    kernel_args args = {};
    args.r = sat_device_rows(p, l->pattern), args.out = sat_epilogue_of(l);
    args.work = l->state ? *(const sat_device_schedule *)l->state : sat_whole_rows_schedule(&args.r);
    args.values = l->operands[0], args.b = l->operands[1];
    args.b_row_stride = p->b.row_stride, args.b_col_stride = p->b.col_stride;
    args.a_batch_stride = p->a.batch_stride, args.b_batch_stride = p->b.batch_stride;
    args.c_batch_stride = p->c.batch_stride * (int64_t)sat_dtype_size(p->c_dtype);
    args.br = (int)args.r.br, args.bc = (int)args.r.bc, args.rl_log = t.rl_log, args.rw_log = t.rw_log,
    args.kw_log = t.kw_log;
    set_chunks(&args, t.chunks), args.b_chunks = b_access_of(l->variant, p);
    args.keep_in_l1 = p->matmul.transpose == SAT_TRANSPOSE || args.bc * (int)sat_dtype_size(p->a_dtype) < 32;
    return args;
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    if (p->m == 0 || p->n == 0) return SAT_OK;
    auto run = find(l->variant)->run[access_of(l->variant, p)];
    kernel_args args = args_of(l);
    unsigned teams = WARPS >> (args.rw_log + args.kw_log), rows = ROWS << (args.rl_log + args.rw_log);
    sat_rows host = sat_op_rows(p, l->pattern);
    int64_t longest = sat_longest_work_item(l, l->state ? share_of(l->variant, p, &host, l->device) : 0);
    int64_t each = args.bc / args.chunks, lanes = (32 >> args.rl_log)
                                                  << args.kw_log; // k of a chunk; lanes that divide a sum
    sat_parts parts = sat_parts_in_c(p, args.bc, lanes);
    return skinny_launch_batch(l, args, [&](const kernel_args &all, unsigned batch) {
        dim3 grid((unsigned)((all.work.items + teams - 1) / teams), (all.br + rows - 1) / rows, batch);
        return sat_each_part(l, all, parts, longest, [&](kernel_args part) {
            set_chunks(&part, part.part.deep / each);
            run<<<grid, WARPS * 32, 0, (cudaStream_t)l->stream>>>(part);
        });
    });
}

SAT_FAMILY(cuda_matmul_skinny_vector) = {
    .revision = "2",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .flags = SAT_V_BATCHED,
    .about = "1 to 8 columns without tensor cores, each stored block read once: any dtype, any block",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_state,
};
