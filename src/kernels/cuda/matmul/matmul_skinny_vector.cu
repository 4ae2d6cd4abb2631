// cuda_matmul_skinny_vector: 1 to 8 columns by plain multiply-adds, any dtype, any block.
//
// A lane has 4 rows of C and walks along k in chunks of 16 bytes (or elements, where nothing is aligned), asking for
// the next chunks of its rows before it multiplies these. The lanes of a warp are RL groups of rows times 32/RL chunks
// of k, so that rows share what they need of B; R warps cover a tile of 4*RL*R rows, XW warps share out its k. Short
// rows come several to a CTA of 4 warps. Sums are added across lanes and then across warps in a fixed order. Long f32
// sums are made of parts, a launch each (parts.cuh).

#include "kernels/cuda/common/long_sums.h"

enum { WARPS = 4, WARPS_LOG = 2, ROWS = 4 }; // ROWS: a lane's
enum access { ALONG, ACROSS, ELEMENTS };     // chunks along k, chunks along rows (op(A) is the transpose), neither
enum order { K_CHUNKS, N_CHUNKS, ANY };      // B in chunks of k, of all the columns, or element by element

struct job {
    sat_rows r;
    sat_epilogue out;
    sat_device_schedule w;
    const void *values, *b;
    int64_t b_row, b_col, a_batch, b_batch, c_batch;
    int br, bc;
    int chunks;                   // of k in a block
    unsigned inverse;             // 65536 / chunks, rounded up: exact below 256
    int step_blocks, step_chunks; // a lane's way from one chunk to its next: 32/RL * XW chunks
    int rl_log, r_log, xw_log;
    order b_order;
    bool keep; // chunks of A that L1 should keep: neighbours in a sector are not read at once
    sat_row_part part;
};

// ---- chunks of 16 bytes, or one element of one

struct chunk {
    uint32_t w[4];
};

// Elements as the sums take them; `copy` puts one out of another chunk.
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
    static __device__ __forceinline__ void put(chunk &c, int v, uint32_t bits) { // lower halves come first
        c.w[v / 2] = v % 2 ? c.w[v / 2] | bits << 16 : bits;
    }
    static __device__ __forceinline__ void set(chunk &c, int v, const void *p) {
        put(c, v, __ldg((const unsigned short *)p));
    }
    static __device__ __forceinline__ void copy(chunk &c, int v, const chunk &from, int at) {
        put(c, v, from.w[at / 2] >> at % 2 * 16 & 0xffffu);
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

// Values are read once; what L1 has room for is left to B.
__device__ __forceinline__ void load_chunk(chunk &c, const void *p, int keep) {
    asm("{\n .reg .pred p;\n setp.ne.s32 p, %5, 0;\n"
        " @p ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];\n"
        " @!p ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];\n}"
        : "=r"(c.w[0]), "=r"(c.w[1]), "=r"(c.w[2]), "=r"(c.w[3])
        : "l"(p), "r"(keep));
}

// Zero from byte `valid` on, which is even.
__device__ __forceinline__ void cut_chunk(chunk &c, int valid) {
#pragma unroll
    for (int i = 0; i < 4; i++) c.w[i] = valid >= 4 * i + 4 ? c.w[i] : valid > 4 * i ? c.w[i] & 0xffffu : 0;
}

// ---- a lane's tile of A: 4 rows, V of k

template <typename T, access A> struct tile {
    static constexpr int V = A == ELEMENTS ? 1 : 16 / (int)sizeof(T);
    static constexpr int SPLIT = sizeof(T) == 8 ? 2 : 1; // chunks that 4 rows are, across
    chunk c[4];
    static_assert(A != ACROSS || sizeof(T) > 2, "4 chunks either way");

    // `from`: the block, `row`: each row's offset in it
    __device__ __forceinline__ void load(const job &x, const T *from, const int (&row)[ROWS], int at) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (A == ALONG) load_chunk(c[i], from + row[i] + at * V, x.keep);
            else if (A == ELEMENTS) element<T>::set(c[i], 0, from + row[i] + at * x.r.col_step);
            else load_chunk(c[i], from + row[0] + (at * V + i / SPLIT) * x.r.col_step + i % SPLIT * V, x.keep);
        }
    }
    __device__ __forceinline__ typename element<T>::sum get(int s, int v) const {
        return A == ACROSS ? element<T>::get(c[v * SPLIT + s / V], s % V) : element<T>::get(c[s], v);
    }
    __device__ __forceinline__ void cut(int left) { // beyond the matrix there may be NaN
#pragma unroll
        for (int i = 0; i < 4; i++) cut_chunk(c[i], A == ACROSS ? (i / SPLIT < left ? 16 : 0) : left * (int)sizeof(T));
    }
};

// ---- sums

// V of k of NV columns of B, one chunk a column.
template <typename T, int NV, int V> struct columns {
    chunk c[NV];

    // k: the first; left: how many there are
    __device__ __forceinline__ void load(const job &x, const T *b, int64_t k, int left) {
        const T *from = b + k * x.b_row;
        if (V > 1 && x.b_order == K_CHUNKS && left >= V) {
#pragma unroll
            for (int j = 0; j < NV; j++, from += j < x.out.n ? x.b_col : 0) load_chunk(c[j], from, 1);
        } else if (V > 1 && NV >= V && x.b_order == N_CHUNKS && left >= V) {
#pragma unroll
            for (int v = 0; v < V; v++, from += x.b_row)
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
            for (int j = 0; j < NV; j++, from += j < x.out.n ? x.b_col : 0) {
                c[j].w[0] = c[j].w[1] = c[j].w[2] = c[j].w[3] = 0;
#pragma unroll
                for (int v = 0; v < V; v++)
                    if (v < left) element<T>::set(c[j], v, from + v * x.b_row);
            }
        }
    }
};

template <typename T, int NV, access A>
__device__ __forceinline__ void multiply_row(typename element<T>::sum (&sum)[ROWS * NV], const job &x,
                                             const sat_work_item &piece, const T *values, const T *b,
                                             const int (&row)[ROWS], int first) {
    constexpr int V = tile<T, A>::V;
    int block = (int)(first * x.inverse >> 16), at = first - block * x.chunks;
    tile<T, A> now, next;
    int32_t col = 0, next_col = 0;
    if (block < piece.count) {
        now.load(x, values + sat_block_of(&x.r, piece.first + block) * x.r.block_elements, row, at);
        col = x.r.col[piece.first + block];
    }
    while (block < piece.count) {
        int64_t k = (int64_t)col * x.bc + at * V;
        int left = (int)sat_min(V, x.r.k - k);
        block += x.step_blocks, at += x.step_chunks;
        if (at >= x.chunks) at -= x.chunks, block++;
        if (block < piece.count) {
            next.load(x, values + sat_block_of(&x.r, piece.first + block) * x.r.block_elements, row, at);
            next_col = x.r.col[piece.first + block];
        }
        if (left > 0) {
            columns<T, NV, V> bs;
            bs.load(x, b, k, left);
            if (V > 1 && left < V) now.cut(left);
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

// ---- the kernel: blockIdx.x as many pieces as a CTA has teams of R*XW warps, .y a tile of rows, .z an item of a batch

template <typename T, int NV> struct room { // CTAs on an SM, as registers allow
    static constexpr int ctas = NV == 1 ? 6 : NV == 4 || sizeof(T) == 4 ? 4 : 3;
};

template <typename T, int NV, access A>
static __global__ void __launch_bounds__(WARPS * 32, room<T, NV>::ctas) multiply(const __grid_constant__ job x) {
    typedef typename element<T>::sum S;
    constexpr int COUNT = ROWS * NV;
    __shared__ S sums[WARPS][8 * COUNT]; // of each group of rows
    __shared__ int2 owner[WARPS];        // row, -1: none, and slot of a team's piece
    __shared__ bool ends[WARPS];         // no part comes after this one
    int warp = threadIdx.x / 32, kl = 32 >> x.rl_log, lane = threadIdx.x % kl, rl = threadIdx.x % 32 / kl;
    int team_log = x.r_log + x.xw_log, groups_log = x.r_log + x.rl_log; // groups of 4 rows that a tile has
    int64_t at = ((int64_t)blockIdx.x << (WARPS_LOG - team_log)) + (warp >> team_log);
    sat_work_item piece = {0, -1, 0, -1, 0};
    bool last = true;
    if (at < x.w.pieces) piece = sat_work_item_at(x.r, x.w.piece, at);
    if (!sat_take_part(&x.part, &piece, &last)) piece.row = -1, piece.count = 0;
    if (threadIdx.x % 32 == 0)
        owner[warp >> team_log] = make_int2(piece.row, piece.slot), ends[warp >> team_log] = last;
    int top = ((int)blockIdx.y << groups_log) * ROWS, row[ROWS]; // the tile's first row
    int mine = top + (((warp >> x.xw_log & ((1 << x.r_log) - 1)) << x.rl_log) + rl) * ROWS;
#pragma unroll
    for (int s = 0; s < ROWS; s++) row[s] = mine + s < x.br ? (mine + s) * (int)x.r.row_step : 0;
    S sum[COUNT] = {};
    multiply_row<T, NV, A>(sum, x, piece, (const T *)x.values + blockIdx.z * x.a_batch,
                           (const T *)x.b + blockIdx.z * x.b_batch, row, (warp & ((1 << x.xw_log) - 1)) * kl + lane);
    for (int apart = kl / 2; apart > 0; apart /= 2)
#pragma unroll
        for (int e = 0; e < COUNT; e++) sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], apart);
#pragma unroll
    for (int e = 0; e < COUNT; e++)
        if (lane == (e & (kl - 1))) sums[warp][rl * COUNT + e] = sum[e];
    __syncthreads();
    for (int o = threadIdx.x; o < COUNT << (WARPS_LOG - x.xw_log + x.rl_log); o += WARPS * 32) {
        int group = o / COUNT, e = o % COUNT, j = e % NV; // group: counted over all teams
        int2 own = owner[group >> groups_log];
        int in_block = top + (group & ((1 << groups_log) - 1)) * ROWS + e / NV;
        if (own.x < 0 || in_block >= x.br || j >= x.out.n) continue;
        S total = 0;
        for (int w = 0; w < 1 << x.xw_log; w++)
            total += sums[((group >> x.rl_log) << x.xw_log) + w][(group & ((1 << x.rl_log) - 1)) * COUNT + e];
        int64_t i = (int64_t)own.x * x.br + in_block;
        sat_epilogue out = x.out;
        out.c = (char *)out.c + blockIdx.z * x.c_batch;
        if (own.y >= 0) {
            S *to = (S *)x.w.partial + ((int64_t)own.y * x.br + in_block) * out.n + j;
            *to = x.part.first ? total : *to + total;
        } else if (i < out.m) {
            sat_epilogue_store(out, i, j, total, x.part.first, ends[group >> groups_log]);
        }
    }
}

// ---- host

typedef void (*kernel)(job);

template <typename T, int NV> static kernel with_access(access a) {
    if constexpr (sizeof(T) > 2)
        if (a == ACROSS) return multiply<T, NV, ACROSS>;
    return a == ALONG ? multiply<T, NV, ALONG> : multiply<T, NV, ELEMENTS>;
}

template <typename T> static kernel with_columns(int columns, access a) {
    return columns == 1 ? with_access<T, 1>(a) : columns == 4 ? with_access<T, 4>(a) : with_access<T, 8>(a);
}

static kernel choose(sat_dtype t, int columns, access a) {
    return t == SAT_F32   ? with_columns<float>(columns, a)
           : t == SAT_F64 ? with_columns<double>(columns, a)
           : t == SAT_F16 ? with_columns<__half>(columns, a)
                          : with_columns<__nv_bfloat16>(columns, a);
}

// Chunks of 16 bytes, where the blocks' sides and the alignment let every one of them be whole.
static bool in_chunks(const sat_problem *p, const sat_rows *r) {
    int64_t size = (int64_t)sat_dtype_size(p->a_dtype), v = 16 / size;
    if (p->a_align < 16 || (p->batch > 1 && p->a.batch_stride * size % 16) || r->bc % v) return false;
    return p->transpose == SAT_TRANSPOSE ? size > 2 && r->br % ROWS == 0 : true;
}

static access access_of(const sat_variant *v, const sat_problem *p) {
    return v->instance.option & 2 ? ELEMENTS : p->transpose == SAT_TRANSPOSE ? ACROSS : ALONG;
}

// How the rows of a block and its k are shared out: enough to each lane that it has some chunks to walk.
struct team {
    int rl_log, r_log, xw_log;
    int64_t chunks; // of k in a block
};

static int warps_log(const team &t) { return t.r_log + t.xw_log; }
static int64_t rows_of(const team &t) { return ROWS << (t.rl_log + t.r_log); }

static team team_of(const sat_variant *v, const sat_problem *p, const sat_rows *r) {
    int64_t each = access_of(v, p) == ELEMENTS ? 1 : 16 / (int64_t)sat_dtype_size(p->a_dtype);
    team t = {0, 0, 0, r->bc / each};
    while (t.rl_log < 3 && rows_of(t) < r->br) t.rl_log++;
    while (t.r_log < WARPS_LOG && rows_of(t) < r->br) t.r_log++;
    double lanes = (double)(32 >> t.rl_log) * (double)sat_max(1, r->count);
    double steps = (double)r->ptr[r->count] * (double)t.chunks / lanes;
    while (warps_log(t) < WARPS_LOG && steps >= 8 << t.xw_log) t.xw_log++;
    return t;
}

static int64_t tiles_of(const sat_rows *r, const team &t) { return (r->br + rows_of(t) - 1) / rows_of(t); }

static int64_t share_of(const sat_variant *v, const sat_problem *p, const sat_rows *r, const sat_device *d) {
    team t = team_of(v, p, r);
    int64_t teams = (int64_t)d->threads * (16 >> warps_log(t)), least = ((32 >> t.rl_log) * 8 << t.xw_log) / t.chunks;
    return sat_schedule_share(r, tiles_of(r, t), teams, sat_max(2, least));
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    int64_t most = v->instance.tile_n;
    sat_rows r = sat_op_rows(p, a);
    if (p->a_dtype != v->instance.dtype || p->n > most || (most > 1 && p->n <= (most == 4 ? 1 : 4))) return false;
    if (r.block_elements > INT32_MAX || r.k > INT32_MAX / 2 || r.br > 1 << 18) return false;
    if (r.count > 1 << 30 || p->batch > 65535) return false; // the grid's limits
    if (in_chunks(p, &r) == ((v->instance.option & 2) != 0)) return false;
    if (!(v->instance.option & 1)) return true;
    int64_t longest = p->transpose == SAT_TRANSPOSE ? a->max_col : a->max_row;
    double skew = p->transpose == SAT_TRANSPOSE ? a->t_skew : a->skew;
    return skew > 1.25 || sat_schedule_parts(longest, share_of(v, p, &r, d)) > 1; // else it is its plain sister
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    team t = team_of(v, p, &r);
    double size = (double)sat_dtype_size(p->a_dtype), share = (double)share_of(v, p, &r, d);
    double longest = (double)(p->transpose == SAT_TRANSPOSE ? a->max_col : a->max_row);
    bool cut = v->instance.option & 1 && longest > share * 1.25;
    if (cut) longest = share;
    // What is under way from a lane is 4 chunks; elements of 2 or 4 bytes keep the memory less busy.
    double busy = v->instance.option & 2 ? 0.1 * size : 0.85, team_rate = 2 * d->memory_rate / d->threads;
    double memory = sat_bytes(p, a) / (fmin(busy, 0.85) * d->memory_rate);
    double alone = longest * (double)(r.bc * rows_of(t)) * size / (fmin(busy, 0.5) * team_rate);
    double math = sat_flops(p, a) / (0.3 * d->flop_rate[p->a_dtype == SAT_F64 ? SAT_F64 : SAT_F32]);
    return fmax(fmax(memory, math), alone) + (cut ? 4e-6 : 2.5e-6);
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    if (!(v->instance.option & 1)) return 0;
    sat_rows r = sat_op_rows(p, a);
    sat_schedule s = sat_schedule_count(&r, share_of(v, p, &r, d));
    return sat_schedule_bytes(&s, r.br, p->n, p->a_dtype == SAT_F64 ? sizeof(double) : sizeof(float));
}

static sat_status prepare(const sat_prepare *l, void **state) {
    if (!(l->variant->instance.option & 1)) return SAT_OK;
    sat_rows r = sat_op_rows(l->problem, l->pattern);
    return sat_prepare_schedule(l, share_of(l->variant, l->problem, &r, l->device), state);
}

static order order_of(const sat_variant *v, const sat_problem *p) {
    int64_t size = (int64_t)sat_dtype_size(p->b_dtype), batch = p->batch > 1 ? p->b.batch_stride : 0;
    if (p->b_align < 16 || batch * size % 16) return ANY;
    if (p->b.row_stride == 1 && (p->n == 1 || p->b.col_stride * size % 16 == 0)) return K_CHUNKS;
    bool full = p->n == v->instance.tile_n && p->n * size % 16 == 0; // no chunk may reach past a row
    return full && p->b.col_stride == 1 && p->b.row_stride * size % 16 == 0 ? N_CHUNKS : ANY;
}

// How lanes walk along the k of a block that has so many chunks.
static void set_chunks(job *x, int64_t chunks) {
    int step = (32 >> x->rl_log) << x->xw_log;
    x->chunks = (int)chunks, x->inverse = (unsigned)((65536 + chunks - 1) / chunks);
    x->step_blocks = step / x->chunks, x->step_chunks = step % x->chunks;
}

static job job_of(const sat_launch *l) {
    const sat_problem *p = l->problem;
    sat_rows host = sat_op_rows(p, l->pattern);
    team t = team_of(l->variant, p, &host);
    job x = {};
    x.r = sat_device_rows(p, l->pattern), x.out = sat_epilogue_of(l);
    x.w = l->state ? *(const sat_device_schedule *)l->state : sat_whole_rows_schedule(&x.r);
    x.values = l->operands[0], x.b = l->operands[1];
    x.b_row = p->b.row_stride, x.b_col = p->b.col_stride;
    x.a_batch = p->a.batch_stride, x.b_batch = p->b.batch_stride;
    x.c_batch = p->c.batch_stride * (int64_t)sat_dtype_size(p->c_dtype);
    x.br = (int)x.r.br, x.bc = (int)x.r.bc, x.rl_log = t.rl_log, x.r_log = t.r_log, x.xw_log = t.xw_log;
    set_chunks(&x, t.chunks), x.b_order = order_of(l->variant, p);
    x.keep = p->transpose == SAT_TRANSPOSE || x.bc * (int)sat_dtype_size(p->a_dtype) < 32;
    return x;
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    if (p->m == 0 || p->n == 0) return SAT_OK;
    kernel run = choose(p->a_dtype, l->variant->instance.tile_n, access_of(l->variant, p));
    job x = job_of(l);
    unsigned teams = WARPS >> (x.r_log + x.xw_log), rows = ROWS << (x.rl_log + x.r_log);
    dim3 grid((unsigned)((x.w.pieces + teams - 1) / teams), (x.br + rows - 1) / rows, 1);
    sat_rows host = sat_op_rows(p, l->pattern);
    int64_t longest = sat_longest_work_item(l, l->state ? share_of(l->variant, p, &host, l->device) : 0);
    int64_t each = x.bc / x.chunks, lanes = (32 >> x.rl_log) << x.xw_log; // of k in a chunk; that share it out
    sat_parts parts = sat_parts_in_c(p, x.bc, lanes);
    auto start = [&](job y) {
        set_chunks(&y, y.part.deep / each);
        run<<<grid, WARPS * 32, 0, (cudaStream_t)l->stream>>>(y);
    };
    if (x.w.joins == 0) { // the whole batch at once; partial sums have room for one item only
        grid.z = (unsigned)p->batch;
        return sat_each_part(l, x, parts, longest, start);
    }
    for (int64_t z = 0; z < p->batch; z++) {
        sat_status status = sat_each_part(l, x, parts, longest, start);
        if (status == SAT_OK) status = sat_launch_split_reduction(l, x.r, x.out, x.w);
        if (status != SAT_OK) return status;
        x.values = sat_at(p->a_dtype, x.values, x.a_batch), x.b = sat_at(p->b_dtype, x.b, x.b_batch);
        x.out.c = (char *)x.out.c + x.c_batch;
    }
    return SAT_OK;
}

SAT_FAMILY(cuda_matmul_skinny_vector) = {
    .revision = "2",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .flags = SAT_V_BATCHED,
    .about = "1 to 8 columns by plain multiply-adds, each stored block read once: any dtype, any block",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_schedule,
};
