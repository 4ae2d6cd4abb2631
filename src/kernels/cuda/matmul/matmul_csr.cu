// cuda_matmul_csr: single elements ("CSR") and blocks with a thin side, any dtype, from 8 columns on. Bound by reading
// a row of B from L2 for every stored element.
//
// A team of 8, 16 or 32 lanes has a row of C. Its lanes load the columns and values of as many entries as there are
// lanes, each its own, and pass them around through shared memory. For each entry every lane loads 16 bytes of the row
// of B, or twice that; 8 such loads are in flight before the first is used. Sums stay in registers. Where blocks are
// larger than one element, a lane works out which element of which block its entry is.
//
// Options: SPLIT splits heavy rows, and sums that are too long for one part. PANELS takes 128 bytes of columns at a
// time, so that this part of B stays in L2. PACK copies B into aligned rows first, where it is column-major or its rows
// are not multiples of 16 bytes.

#include "kernels/cuda/common/scheduler.h"
#include "kernels/cuda/common/simt_rates.h"

enum { THREADS = 128, SPLIT = 1, PANELS = 2, PACK = 4 };
static constexpr int LOADS = 8; // of a lane, in flight

struct kernel_args {
    sat_rows r;
    sat_epilogue out;
    sat_device_schedule work;
    const void *values, *b;
    int64_t b_col_stride;  // elements
    int64_t rows;          // of all work items, each as many as a block has
    unsigned b_row_stride; // bytes
    unsigned panels;
    int n_loaded; // columns that B's rows have
    int lane_bits;
    bool c_vectors; // C can be stored 16 bytes at a time, without an activation
    bool c_columns; // C is column-major, and a CTA's rows are neighbours: it is stored through shared memory
};

// ---- elements

template <typename T> struct sum_of { typedef float type; };
template <> struct sum_of<double> { typedef double type; };

// V columns of a row of B or C, 16 bytes or one element.
template <typename T, int V> struct row_vector {
    uint4 words;

    __device__ __forceinline__ void load(const char *row, int64_t offset) {
        words = __ldg((const uint4 *)(row + offset));
    }
    __device__ __forceinline__ typename sum_of<T>::type get(int v) const {
        T x[V];
        memcpy(x, &words, 16);
        return (typename sum_of<T>::type)x[v];
    }
};
template <typename T> struct row_vector<T, 1> {
    T element;

    __device__ __forceinline__ void load(const char *row, int64_t offset) {
        element = row ? __ldg((const T *)(row + offset)) : T(0);
    }
    __device__ __forceinline__ typename sum_of<T>::type get(int) const { return (typename sum_of<T>::type)element; }
};

// ---- a row's entries

// An entry as it is loaded; nothing is computed from it until it is needed, so that nothing waits for the load.
template <typename T> struct loaded_entry {
    int block_column, in; // -1: there is none; column in the block
    T value;
};

// SINGLE: blocks of one element.
template <typename T, bool SINGLE> struct row_entries {
    const kernel_args &args;
    int64_t first;
    int count, in_block; // entries; row in the block

    __device__ __forceinline__ loaded_entry<T> load(int e) const {
        const sat_rows &r = args.r;
        loaded_entry<T> x = {-1, 0, T(0)};
        if (e >= count) return x;
        int t = e;
        if (!SINGLE) t = (int)((unsigned)e / (unsigned)r.bc), x.in = e - t * (int)r.bc;
        const int64_t at = first + t, block = r.block ? r.block[at] : at;
        const int64_t place = SINGLE ? 0 : in_block * r.row_step + x.in * r.col_step;
        x.block_column = r.col[at];
        x.value = ((const T *)args.values)[(SINGLE ? block : block * r.block_elements) + place];
        return x;
    }
    // The row of B that the entry meets; -1: there is none, or it is beyond the matrix.
    __device__ __forceinline__ int column(const loaded_entry<T> &x) const {
        if (SINGLE || x.block_column < 0) return x.block_column;
        const int c = x.block_column * (int)args.r.bc + x.in;
        return c < (int)args.r.k ? c : -1;
    }
};

static __device__ __forceinline__ int most_of_warp(int x) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) x = max(x, __shfl_xor_sync(~0u, x, apart));
    return x;
}

// An entry as the lanes of its team read it, at once, from shared memory.
template <typename S> struct alignas(16) shared_entry {
    const char *row; // of B
    S value;
};

// What a row of B is where there is no entry: then the loads of a team need no condition.
static __device__ uint4 zeros[64];

// ---- main loop: sum(W, V) = a row times W vectors of columns. The panel's columns begin at b; offset: a lane's
// columns

template <typename T, bool SINGLE, int V, int W>
__device__ __forceinline__ void multiply_row(typename sum_of<T>::type (&sum)[W][V], const row_entries<T, SINGLE> &row,
                                             shared_entry<typename sum_of<T>::type> *shared, const char *b,
                                             const int64_t (&offset)[W]) {
    typedef typename sum_of<T>::type S;
    constexpr int U = LOADS / W; // entries at a time
    const int lanes = 1 << row.args.lane_bits, mine = threadIdx.x & (lanes - 1), most = most_of_warp(row.count);
    const shared_entry<S> *team = shared + (threadIdx.x - mine);
    loaded_entry<T> next = row.load(mine);
    for (int at = 0; at < most; at += lanes) {
        const int c = row.column(next);
        if (c < 0) shared[threadIdx.x] = {V > 1 ? (const char *)zeros : NULL, 0};
        else
            shared[threadIdx.x] = {b + (uint64_t)(unsigned)c * row.args.b_row_stride,
                                   (typename sum_of<T>::type)next.value};
        next = row.load(at + lanes + mine); // in time for the next round
        __syncwarp();
        for (int u = 0; u < lanes && at + u < most; u += U) {
            row_vector<T, V> x[U][W];
            S s[U];
#pragma unroll
            for (int e = 0; e < U; e++) {
                const shared_entry<S> entry = team[u + e];
                s[e] = entry.value;
#pragma unroll
                for (int w = 0; w < W; w++) x[e][w].load(entry.row, offset[w]);
            }
#pragma unroll
            for (int e = 0; e < U; e++)
#pragma unroll
                for (int w = 0; w < W; w++)
#pragma unroll
                    for (int v = 0; v < V; v++) sum[w][v] += s[e] * x[e][w].get(v);
        }
        __syncwarp();
    }
}

// ---- epilogue

// Not inlined: activations are long, and each lane calls it for every element.
template <typename S>
static __device__ __noinline__ void store_element(const sat_epilogue &out, int64_t i, int64_t j, S sum) {
    sat_epilogue_store(out, i, j, sum);
}

// V columns of C of type C, 16 bytes at a time. They are not needed again, so they should not displace B from L2.
template <typename C, int V, typename S>
__device__ __forceinline__ void store_vectors(const sat_epilogue &out, int64_t i, int64_t j, const S (&sum)[V]) {
    constexpr int EACH = 16 / sizeof(C);
    C *to = (C *)out.c + i * out.row_stride + j;
    const S alpha = (S)out.alpha, beta = (S)out.beta, bias = out.bias ? (S)((const C *)out.bias)[i] : S(0);
#pragma unroll
    for (int first = 0; first < V; first += EACH) {
        row_vector<C, EACH> old = {};
        if (beta != 0) old.words = *(const uint4 *)(to + first);
        C y[EACH];
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            S x = alpha * sum[first + e];
            if (beta != 0) x += beta * old.get(e);
            y[e] = (C)(x + bias);
        }
        uint4 words;
        memcpy(&words, y, 16);
        __stcs((uint4 *)(to + first), words);
    }
}

template <typename T, int V, typename S>
__device__ __forceinline__ void store_row(const kernel_args &args, const sat_work_item &item, int in_block, int64_t j,
                                          const S (&sum)[V]) {
    const int64_t left = args.out.n - j, i = item.row * args.r.br + in_block;
    if (item.partial >= 0) {
        S *to = (S *)args.work.partial + (item.partial * args.r.br + in_block) * args.out.n + j;
#pragma unroll
        for (int v = 0; v < V; v++)
            if (v < left) to[v] = sum[v];
        return;
    }
    if constexpr (V > 1) {
        if (args.c_vectors && left >= V) {
            if (sizeof(T) == 2 && args.out.dtype == SAT_F32) store_vectors<S, V>(args.out, i, j, sum);
            else store_vectors<T, V>(args.out, i, j, sum);
            return;
        }
    }
#pragma unroll
    for (int v = 0; v < V; v++)
        if (v < left) store_element(args.out, i, j + v, sum[v]);
}

// The same of a whole CTA: W * lanes * V columns from `first` on of its rows from `top` on. Threads side by side then
// store rows side by side.
template <int V, int W, typename S>
__device__ __forceinline__ void store_columns(const kernel_args &args, int64_t top, int first, const S (&sum)[W][V]) {
    extern __shared__ __align__(16) unsigned char dynamic[];
    S *tile = (S *)dynamic; // [column][row], a row more than there is
    const int lanes = 1 << args.lane_bits, rows = THREADS >> args.lane_bits, mine = threadIdx.x & (lanes - 1);
#pragma unroll
    for (int w = 0; w < W; w++)
#pragma unroll
        for (int v = 0; v < V; v++)
            tile[((w * lanes + mine) * V + v) * (rows + 1) + (threadIdx.x >> args.lane_bits)] = sum[w][v];
    __syncthreads();
    for (int e = threadIdx.x; e < THREADS * V * W; e += THREADS) {
        const int row = e & (rows - 1), column = e / rows;
        if (top + row < args.out.m && first + column < args.out.n)
            sat_epilogue_store(args.out, top + row, first + column, tile[column * (rows + 1) + row]);
    }
    __syncthreads();
}

// ---- kernel: blockIdx.y is the panel of columns, the slower index, so that CTAs that run together share it in L2

// CTAs of a multiprocessor, by registers.
template <typename T, bool SINGLE, int W> constexpr int ctas = sizeof(T) == 8 ? 5 : W == 1 && SINGLE ? 7 : 6;

template <typename T, bool SINGLE, int V, int W>
static __global__ void __launch_bounds__(THREADS, (ctas<T, SINGLE, W>))
    multiply(const __grid_constant__ kernel_args args) {
    typedef typename sum_of<T>::type S;
    __shared__ shared_entry<S> shared[THREADS];
    const int lanes = 1 << args.lane_bits, mine = threadIdx.x & (lanes - 1);
    const int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) >> args.lane_bits; // which row
    bool live = at < args.rows;
    sat_work_item item = {0, 0, 0, -1, {}};
    int in_block = 0;
    if (live) {
        const unsigned br = (unsigned)args.r.br, which = br == 1 ? (unsigned)at : (unsigned)at / br;
        item = sat_work_item_at(args.r, args.work.item, which), in_block = (int)((unsigned)at - which * br);
        live = item.row * args.r.br + in_block < args.out.m;
    }
    const row_entries<T, SINGLE> row = {args, item.first, live ? item.count * (int)args.r.bc : 0, in_block};
    for (unsigned panel = blockIdx.y; panel < args.panels; panel += gridDim.y) {
        const int first = (int)panel * W * lanes * V, step = lanes * V, size = (int)sizeof(T);
        const int64_t col_stride = V > 1 ? size : args.b_col_stride * size;
        int64_t offset[W]; // beyond the last column lanes load what they do not store
#pragma unroll
        for (int w = 0; w < W; w++)
            offset[w] = first + mine * V + w * step < args.n_loaded ? (mine * V + w * step) * col_stride : 0;
        S sum[W][V] = {};
        multiply_row<T, SINGLE, V, W>(sum, row, shared, (const char *)args.b + first * col_stride, offset);
        if (args.c_columns) {
            store_columns<V, W>(args, (int64_t)blockIdx.x * (THREADS >> args.lane_bits), first, sum);
            continue;
        }
#pragma unroll
        for (int w = 0; w < W; w++)
            if (live) store_row<T, V>(args, item, in_block, first + mine * V + w * step, sum[w]);
    }
}

// ---- packing: B, in any order, to rows of `width` columns; 32 x 32 elements a CTA, through shared memory

template <typename U>
static __global__ void pack(const U *b, int64_t row_stride, int64_t col_stride, U *to, int64_t k, int64_t n,
                            int64_t width) {
    __shared__ U tile[32][33];
    const bool along_k = row_stride < col_stride;
    const int x = threadIdx.x % 32, y = threadIdx.x / 32;
    const int64_t k0 = (int64_t)blockIdx.x * 32;
    for (int64_t j0 = (int64_t)blockIdx.y * 32; j0 < width; j0 += (int64_t)gridDim.y * 32) {
        for (int e = y; e < 32; e += THREADS / 32) {
            const int in_k = along_k ? x : e, in_j = along_k ? e : x;
            U value = {};
            if (k0 + in_k < k && j0 + in_j < n) value = b[(k0 + in_k) * row_stride + (j0 + in_j) * col_stride];
            tile[in_k][in_j] = value;
        }
        __syncthreads();
        for (int e = y; e < 32; e += THREADS / 32)
            if (k0 + e < k && j0 + x < width) to[(k0 + e) * width + j0 + x] = tile[e][x];
        __syncthreads();
    }
}

// ---- host

struct instance {
    sat_dtype dtype;
    int columns, vectors;        // V and W
    void (*run[2])(kernel_args); // [blocks of one element]
};

template <typename T, int V, int W> static constexpr instance instance_of(sat_dtype dtype) {
    return {dtype, V, W, {multiply<T, false, V, W>, multiply<T, true, V, W>}};
}

static const instance instances[] = {
    instance_of<float, 4, 1>(SAT_F32),          instance_of<float, 4, 2>(SAT_F32),
    instance_of<float, 1, 1>(SAT_F32),          instance_of<double, 2, 1>(SAT_F64),
    instance_of<double, 2, 2>(SAT_F64),         instance_of<double, 1, 1>(SAT_F64),
    instance_of<__half, 8, 1>(SAT_F16),         instance_of<__half, 8, 2>(SAT_F16),
    instance_of<__half, 1, 1>(SAT_F16),         instance_of<__nv_bfloat16, 8, 1>(SAT_BF16),
    instance_of<__nv_bfloat16, 8, 2>(SAT_BF16), instance_of<__nv_bfloat16, 1, 1>(SAT_BF16),
};

// How a problem is divided.
struct shape {
    int columns, vectors; // of a lane: V and W
    int lane_bits;
    int64_t width, panels; // columns of B's rows as they are read; panels of C
};

static const instance *find(sat_dtype dtype, const shape &s) {
    for (const instance &i : instances)
        if (i.dtype == dtype && i.columns == s.columns && i.vectors == s.vectors) return &i;
    return NULL;
}

enum { THIN = 16, LEAST_COLUMNS = 8, DEEPEST = 1024, SPLIT_LEAST = 64, THREADS_AT_ONCE = 768 };

static bool has(const sat_variant *v, int option) { return (v->instance.option & option) != 0; }

// Every row of x, in every matrix of the batch, begins at a multiple of 16 bytes.
static bool rows_aligned(const sat_problem *p, const sat_layout &x, uint32_t align, sat_dtype dtype) {
    const int64_t size = (int64_t)sat_dtype_size(dtype);
    return align >= 16 && x.col_stride == 1 && x.row_stride * size % 16 == 0 &&
           (p->batch <= 1 || x.batch_stride * size % 16 == 0);
}

static bool reads_vectors(const sat_problem *p) {
    return rows_aligned(p, p->b, p->b_align, p->b_dtype) && p->n * (int64_t)sat_dtype_size(p->b_dtype) % 16 == 0;
}

static shape choose(const sat_variant *v, const sat_problem *p) {
    const int64_t vector = 16 / (int64_t)sat_dtype_size(p->b_dtype);
    shape s = {};
    s.columns = has(v, PACK) || reads_vectors(p) ? (int)vector : 1;
    const int64_t lanes = (p->n + s.columns - 1) / s.columns;
    s.width = lanes * s.columns;
    for (s.lane_bits = 3; s.lane_bits < (has(v, PANELS) ? 3 : 5) && (1 << s.lane_bits) < lanes;) s.lane_bits++;
    s.vectors = s.columns > 1 && lanes > 32 && !has(v, PANELS) ? 2 : 1;
    const int64_t each = (int64_t)s.vectors << s.lane_bits;
    s.panels = (lanes + each - 1) / each;
    return s;
}

// An f32 result is made of parts of long sums; a 16-bit one is coarser than what one sum loses.
static bool in_parts(const sat_problem *p) { return p->compute_dtype == SAT_F32 && p->c_dtype == SAT_F32; }

// Blocks of a work item: even shares, but no more than one part of a long sum, also where a row that is slightly over
// the share stays whole.
static int64_t share_of(const shape &s, const sat_problem *p, const sat_rows *r, const sat_device *d) {
    const int64_t teams = (int64_t)d->multiprocessors * (THREADS_AT_ONCE >> s.lane_bits);
    const int64_t share = sat_schedule_share(r, s.panels * r->br, 4 * teams, sat_max(1, SPLIT_LEAST / r->bc));
    if (!in_parts(p)) return share;
    return sat_max(1, sat_min(share, SAT_SUM_PART * 4 / 5 / r->bc));
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const sat_rows r = sat_op_rows(p, a);
    const int64_t size = (int64_t)sat_dtype_size(p->b_dtype), most = INT32_MAX;
    const shape s = choose(v, p);
    if (sat_min(r.br, r.bc) >= THIN || r.bc > DEEPEST || p->n < LEAST_COLUMNS || p->n > most / 16) return false;
    if (r.k > most - r.bc || r.m > most / 2 || sat_heaviest(p, a) * (double)r.bc > most / 2) return false;
    if (has(v, PACK) ? reads_vectors(p) : p->b.row_stride * size > most) return false;
    if (has(v, PANELS) && (s.panels == 1 || s.columns == 1)) return false;
    const int64_t longest = (int64_t)sat_heaviest(p, a);
    if (has(v, SPLIT)) return sat_schedule_parts(longest, share_of(s, p, &r, d)) > 1;
    return !in_parts(p) || longest * r.bc <= SAT_SUM_PART;
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const sat_rows r = sat_op_rows(p, a);
    const shape s = choose(v, p);
    const double size = (double)sat_dtype_size(p->b_dtype), entries = (double)a->stored_elements;
    const double panel = (double)r.k * (double)(s.columns * s.vectors << s.lane_bits) * size;
    const double gathered = entries * (double)s.width * size * (s.columns > 1 ? 1 : 2);
    // What L2 cannot hold of a panel is read from memory again.
    const double missed = fmax(0, 1 - 0.6 * (double)d->l2_bytes / panel) * gathered / (double)r.br;
    double bytes = sat_bytes(p, a) / (double)p->batch + missed + ((double)s.panels - 1) * entries * (4 + size);
    if (has(v, PACK)) bytes += 2 * (double)r.k * (double)s.width * size;
    // Rows in turn: pointer, entries and rows of B come one after the other.
    const double teams = (double)d->multiprocessors * (THREADS_AT_ONCE >> s.lane_bits);
    const double rows = (double)r.m * (double)s.panels, steps = entries / fmax(1, (double)r.m) * s.vectors / LOADS;
    const double turns = fmax(1, rows / teams) * (3 + steps) * SAT_SIMT_LATENCY;
    double longest = sat_heaviest(p, a);
    if (has(v, SPLIT)) longest = fmin(longest, 1.25 * (double)share_of(s, p, &r, d));
    const double alone = longest * (double)r.bc * s.vectors / LOADS * SAT_SIMT_LATENCY;
    double seconds = sat_worst(gathered / (0.8 * d->l2_rate), bytes / d->memory_rate, turns);
    if (p->c.col_stride != 1) seconds *= 1.5;
    seconds = sat_worst(seconds, alone, 0) + (has(v, SPLIT) ? 6e-6 : 3e-6) + (has(v, PACK) ? 2e-6 : 0);
    return seconds * (double)p->batch;
}

// The workspace: B packed, then the schedule and its partial sums.
static size_t packed_bytes(const sat_variant *v, const sat_problem *p) {
    if (!has(v, PACK)) return 0;
    return ((size_t)p->k * (size_t)choose(v, p).width * sat_dtype_size(p->b_dtype) + 255) / 256 * 256;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    size_t bytes = packed_bytes(v, p);
    if (!has(v, SPLIT)) return bytes;
    const sat_rows r = sat_op_rows(p, a);
    return bytes + sat_schedule_workspace(&r, share_of(choose(v, p), p, &r, d), p->n, sat_dtype_size(p->compute_dtype));
}

static sat_status prepare(const sat_prepare *q, void **state) {
    if (!has(q->variant, SPLIT)) return SAT_OK;
    const sat_problem *p = q->problem;
    const sat_rows r = sat_op_rows(p, q->pattern);
    sat_device_schedule *w = (sat_device_schedule *)calloc(1, sizeof *w);
    if (!w) return sat_fail(SAT_OUT_OF_MEMORY, "%s: state", q->variant->name);
    sat_status status = sat_upload_schedule(q, &r, share_of(choose(q->variant, p), p, &r, q->device),
                                            (char *)q->workspace + packed_bytes(q->variant, p), w);
    if (status == SAT_OK) *state = w;
    else free(w);
    return status;
}

static sat_status pack_b(const sat_launch *l, const shape &s) {
    const sat_problem *p = l->problem;
    const int64_t rs = p->b.row_stride, cs = p->b.col_stride, k = p->k, n = p->n, tiles = (s.width + 31) / 32;
    const dim3 grid((unsigned)((k + 31) / 32), (unsigned)sat_min(tiles, 65535));
    const void *b = l->operands[1];
    void *to = l->workspace;
    cudaStream_t stream = (cudaStream_t)l->stream;
    switch (sat_dtype_size(p->b_dtype)) {
    case 2: pack<<<grid, THREADS, 0, stream>>>((const uint16_t *)b, rs, cs, (uint16_t *)to, k, n, s.width); break;
    case 4: pack<<<grid, THREADS, 0, stream>>>((const uint32_t *)b, rs, cs, (uint32_t *)to, k, n, s.width); break;
    default: pack<<<grid, THREADS, 0, stream>>>((const uint2 *)b, rs, cs, (uint2 *)to, k, n, s.width); break;
    }
    return sat_launched(l);
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    if (p->m == 0 || p->n == 0) return SAT_OK;
    const shape s = choose(l->variant, p);
    const bool packed = has(l->variant, PACK);
    sat_status status = packed && p->k > 0 ? pack_b(l, s) : SAT_OK;
    if (status != SAT_OK) return status;
    kernel_args args = {sat_device_rows(p, l->pattern), sat_epilogue_of(l)};
    args.work = l->state ? *(const sat_device_schedule *)l->state : sat_whole_rows_schedule(&args.r);
    args.values = l->operands[0], args.b = packed ? l->workspace : l->operands[1];
    args.b_row_stride = (unsigned)((packed ? s.width : p->b.row_stride) * (int64_t)sat_dtype_size(p->b_dtype));
    args.b_col_stride = packed ? 1 : p->b.col_stride, args.n_loaded = (int)s.width;
    args.rows = args.work.items * args.r.br, args.lane_bits = s.lane_bits, args.panels = (unsigned)s.panels;
    args.c_vectors = rows_aligned(p, p->c, p->c_align, p->c_dtype) && args.out.activation == SAT_ACT_NONE;
    args.c_columns = !l->state && p->c.row_stride == 1 && p->c.col_stride != 1;
    const int rows = THREADS >> s.lane_bits, columns = (s.columns * s.vectors) << s.lane_bits; // of a CTA
    const size_t shared = args.c_columns ? (size_t)(columns * (rows + 1)) * sat_dtype_size(p->compute_dtype) : 0;
    const dim3 grid(sat_blocks(args.rows, rows), (unsigned)sat_min(s.panels, 65535));
    const bool single = args.r.block_elements == 1;
    find(p->a_dtype, s)->run[single]<<<grid, THREADS, shared, (cudaStream_t)l->stream>>>(args);
    status = sat_launched(l);
    return status == SAT_OK ? sat_launch_split_reduction(l, args.r, args.out, args.work) : status;
}

SAT_FAMILY(cuda_matmul_csr) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .about =
        "single elements and thin blocks, any dtype: a few lanes a row of C, 16 bytes of B a lane, 8 loads in flight",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_state,
};
