// cuda_matmul_simt: f32 and f64 without tensor cores, for blocks of 8 and more. Bound by multiply-adds where a tile has
// 32 rows or more, by L2 at 16. An instance is a tile of C, tile_m x tile_n a CTA. Option 1: heavy rows are split, and
// the longest work items come first. Long f32 sums are made in parts, one launch each (long_sums.h).
//
// A CTA has BM x BN of C and goes along its work item, a block row or a split-K slice of one, in steps of KT columns.
// Shared memory has two stages, [k][m] of A and [k][n] of B. While one is multiplied, the next one's B arrives by
// cp.async, and its A waits in registers, since it is transposed on its way to shared memory. A thread accumulates TM x
// TN of C in registers, in vectors of 16 bytes, and reads the operands of k+1 from shared memory while it multiplies k.

#include "kernels/cuda/common/long_sums.h"
#include "kernels/cuda/common/ptx_sm80.cuh"
#include "kernels/cuda/common/simt_epilogue.cuh"
#include "kernels/cuda/common/simt_rates.h"

enum a_access {
    ALONG_K, // 16 bytes of a block's row at a time
    ALONG_M, // 16 bytes of a row of the stored block, a column of op(A) = A^T
    ELEMENTS
};

struct kernel_args {
    sat_rows r;
    sat_epilogue out;
    sat_device_schedule work;
    vector_access c_access;
    const void *values, *b;
    int64_t b_row_stride, b_col_stride;
    int row_tiles; // of a block row
    a_access order;
    sat_row_part part;
};

// B_VECTORS: B's rows are read 16 bytes at a time; otherwise by elements, through any strides. PARTS: a launch takes a
// part of every row. That is a kernel of its own, since even a test at the end would slow the other one down.
template <typename ELEMENT, int ROWS, int COLUMNS, int WARPS_M, int WARPS_N, int STEP, bool B_IN_VECTORS, bool IN_PARTS>
struct tile_shape {
    typedef ELEMENT T;
    static constexpr int TM = ROWS, TN = COLUMNS, WM = WARPS_M, WN = WARPS_N, KT = STEP;
    static constexpr bool B_VECTORS = B_IN_VECTORS, PARTS = IN_PARTS;
    static constexpr int V = 16 / sizeof(T), THREADS = 32 * WM * WN, BM = 4 * TM * WM, BN = 8 * TN * WN;
    static constexpr int A_PITCH = BM + V, B_PITCH = B_VECTORS ? BN : BN + V; // padded where columns are written
    static constexpr int A_LOADS = BM * KT / V / THREADS;
    static constexpr int CTAS = TM * TN * (int)sizeof(T) > 256 ? 256 / THREADS : 512 / THREADS; // by registers
    static constexpr int UNROLL = TM * TN > 64 ? 4 : KT;
    static_assert(KT % UNROLL == 0 && UNROLL % 2 == 0, "operands alternate between two sets of registers");
    static_assert(TM % V == 0 && TN % V == 0 && KT % V == 0, "vectors of 16 bytes");
    static_assert(BM * KT / V % THREADS == 0, "all threads load as much of A");
};

// ---- shared memory: two of these

template <typename S> struct stage_memory {
    alignas(16) typename S::T a[S::KT][S::A_PITCH];
    alignas(16) typename S::T b[S::KT][S::B_PITCH];
};

// ---- producer: a thread's part of each stage; the blocks of a work item one after the other, KT columns at a time

template <typename S> struct loader {
    typedef typename S::T T;
    typedef simt_vector<T> vector;
    static constexpr int A_ACROSS = S::KT / S::V, A_DOWN = S::BM / S::V; // vectors of the stage along k, along m

    const kernel_args &args;
    const T *a, *b;          // this thread's first elements of this stage
    const T *values, *dense; // the same in block 0, and in row 0 of B
    int deep;                // columns of this block that are left
    int rows, left;          // rows and columns of the tile that exist
    int64_t t, end;          // the next block, and one past the work item's last
    int32_t column;          // of block t, loaded early since B waits for it
    int64_t number;          // position of block t in the values
    vector held[S::A_LOADS]; // A of the next stage

    __device__ __forceinline__ loader(const kernel_args &kernel, const sat_work_item &item, int first_row, int64_t j)
        : args(kernel) {
        const int tid = threadIdx.x;
        values = (const T *)args.values + first_row * args.r.row_step + a_row(tid) * args.r.row_step +
                 a_step(tid) * args.r.col_step;
        dense = (const T *)args.b + b_row(tid) * args.b_row_stride + (j + b_column(tid)) * args.b_col_stride;
        deep = 0, rows = (int)sat_min(S::BM, args.r.br - first_row), left = (int)sat_min(S::BN, args.out.n - j);
        t = item.first, end = item.first + item.count;
        a = values, b = dense;
        load_index();
    }

    __device__ __forceinline__ void load_index() {
        if (t < end) column = args.r.col[t], number = sat_block_of(&args.r, t);
    }

    // On to the next stage; false at the work item's end.
    __device__ __forceinline__ bool next() {
        deep -= S::KT, a += S::KT * args.r.col_step, b += S::KT * args.b_row_stride;
        if (deep > 0) return true;
        if (t == end) return false;
        int64_t k0 = column * args.r.bc;
        a = values + number * args.r.block_elements, b = dense + k0 * args.b_row_stride;
        deep = (int)sat_min(S::PARTS ? args.part.deep : args.r.bc, args.r.k - k0);
        t++;
        load_index();
        return true;
    }

    // B: 16 bytes a copy; or by elements, 8 rows x 4 columns a warp, which are whole sectors of a column-major B and
    // are written to 32 different banks.
    static constexpr int B_ACROSS = S::B_VECTORS ? S::BN / S::V : S::THREADS / 8,
                         B_DOWN = S::B_VECTORS ? S::THREADS / B_ACROSS : 8;
    static __device__ __forceinline__ int b_row(int tid) { return S::B_VECTORS ? tid / B_ACROSS : tid % 8; }
    static __device__ __forceinline__ int b_column(int tid) { return S::B_VECTORS ? tid % B_ACROSS * S::V : tid / 8; }

    // Starts the copies; rows past the block's depth and columns past N become zero.
    __device__ __forceinline__ void copy_b(stage_memory<S> &to) const {
        static_assert(S::KT % B_DOWN == 0 && S::THREADS % B_ACROSS == 0, "whole rows");
        const int k = b_row(threadIdx.x), n = b_column(threadIdx.x);
        const uint32_t address = smem_address(&to.b[k][n]);
        if constexpr (S::B_VECTORS) {
            const T *from = b;
            if (deep >= S::KT && left == S::BN) {
#pragma unroll
                for (int i = 0; i < S::KT; i += B_DOWN, from += B_DOWN * args.b_row_stride)
                    cp_async_16(address + i * S::B_PITCH * sizeof(T), from);
                return;
            }
            int bytes = left - n >= S::V ? 16 : left > n ? (left - n) * (int)sizeof(T) : 0;
#pragma unroll 2
            for (int i = 0; i < S::KT; i += B_DOWN, from += B_DOWN * args.b_row_stride)
                cp_async_16(address + i * S::B_PITCH * sizeof(T), from, k + i < deep ? bytes : 0);
        } else {
#pragma unroll 1
            for (int i = 0; i < S::KT; i += B_DOWN) {
                const T *from = b + i * args.b_row_stride;
#pragma unroll 4
                for (int c = 0; c < S::BN; c += B_ACROSS, from += B_ACROSS * args.b_col_stride)
                    cp_async_small<sizeof(T)>(address + (i * S::B_PITCH + c) * sizeof(T), from,
                                              k + i < deep && n + c < left ? (int)sizeof(T) : 0);
            }
        }
    }

    // A: the first row and k of vector q, which runs along k, or along m if op(A) = A^T.
    __device__ __forceinline__ int a_row(int q) const {
        return args.order == ALONG_M ? q % A_DOWN * S::V : q / A_ACROSS;
    }
    __device__ __forceinline__ int a_step(int q) const {
        return args.order == ALONG_M ? q / A_DOWN : q % A_ACROSS * S::V;
    }

    // Into registers; what is past the block's depth or the tile's rows becomes zero.
    __device__ __forceinline__ void load_a() {
        static_assert(S::THREADS % A_ACROSS == 0 && S::THREADS % A_DOWN == 0, "steps of whole rows");
        int64_t step =
            args.order == ALONG_M ? S::THREADS / A_DOWN * args.r.col_step : S::THREADS / A_ACROSS * args.r.row_step;
        if (deep >= S::KT && rows == S::BM && args.order != ELEMENTS) {
            const T *from = a;
#pragma unroll
            for (int i = 0; i < S::A_LOADS; i++, from += step) held[i] = *(const vector *)from;
            return;
        }
        bool down = args.order == ALONG_M;
#pragma unroll
        for (int i = 0; i < S::A_LOADS; i++) {
            int q = (int)threadIdx.x + i * S::THREADS, m = a_row(q), k = a_step(q);
#pragma unroll
            for (int e = 0; e < S::V; e++) {
                bool real = m + (down ? e : 0) < rows && k + (down ? 0 : e) < deep;
                held[i].x[e] = real ? a[i * step + e * (down ? args.r.row_step : args.r.col_step)] : T(0);
            }
        }
    }

    // From registers to shared memory.
    __device__ __forceinline__ void store_a(stage_memory<S> &to) const {
#pragma unroll
        for (int i = 0; i < S::A_LOADS; i++) {
            int q = (int)threadIdx.x + i * S::THREADS, m = a_row(q), k = a_step(q);
            if (args.order == ALONG_M) *(vector *)&to.a[k][m] = held[i];
            else
#pragma unroll
                for (int e = 0; e < S::V; e++) to.a[k + e][m] = held[i].x[e];
        }
    }
};

// ---- consumer

// Where a thread's vectors of rows and columns begin in the tile. Lanes that differ in bit 0 share B's vector, those
// that differ in bit 1 share A's: so a half-warp's reads of 16 bytes take one pass over the banks.
template <typename S> struct thread_position {
    int m, n;
    __device__ __forceinline__ thread_position() {
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        m = warp / S::WN * 4 * S::TM + (lane / 16 * 2 + lane % 2) * S::V;
        n = warp % S::WN * 8 * S::TN + lane / 2 % 8 * S::V;
    }
    static __device__ __forceinline__ int row(int i) { return i / S::V * 4 * S::V + i % S::V; }
    static __device__ __forceinline__ int column(int j) { return j / S::V * 8 * S::V + j % S::V; }
};

template <typename S> struct operands {
    typename S::T a[S::TM], b[S::TN];
    __device__ __forceinline__ void load(const stage_memory<S> &from, int k, const thread_position<S> &thread) {
        typedef simt_vector<typename S::T> vector;
#pragma unroll
        for (int i = 0; i < S::TM; i += S::V) *(vector *)&a[i] = *(const vector *)&from.a[k][thread.m + thread.row(i)];
#pragma unroll
        for (int j = 0; j < S::TN; j += S::V)
            *(vector *)&b[j] = *(const vector *)&from.b[k][thread.n + thread.column(j)];
    }
};

// Unrolled as far as the instruction cache holds it.
template <typename S>
__device__ __forceinline__ void multiply_stage(typename S::T (&acc)[S::TM][S::TN], const stage_memory<S> &from,
                                               const thread_position<S> &thread) {
    operands<S> o[2];
    o[0].load(from, 0, thread);
#pragma unroll 1
    for (int first = 0; first < S::KT; first += S::UNROLL)
#pragma unroll
        for (int k = 0; k < S::UNROLL; k++) {
            if (k + 1 < S::UNROLL || first + S::UNROLL < S::KT) o[(k + 1) % 2].load(from, first + k + 1, thread);
#pragma unroll
            for (int i = 0; i < S::TM; i++)
#pragma unroll
                for (int j = 0; j < S::TN; j++) acc[i][j] += o[k % 2].a[i] * o[k % 2].b[j];
        }
}

// The main loop over a work item. One barrier a stage is enough: the stage that is overwritten was last read before the
// previous barrier.
template <typename S>
__device__ __forceinline__ void main_loop(typename S::T (&acc)[S::TM][S::TN], stage_memory<S> (&stage)[2],
                                          loader<S> &load, const thread_position<S> &thread) {
    bool begun = false;
    for (int now = 0;; now ^= 1, begun = true) {
        bool more = load.next();
        if (more) {
            load.copy_b(stage[now]);
            load.load_a();
        }
        cp_async_commit_group();
        if (begun) multiply_stage<S>(acc, stage[now ^ 1], thread);
        if (!more) return;
        load.store_a(stage[now]);
        cp_async_wait_group<0>();
        __syncthreads();
    }
}

// ---- epilogue

// Stores a tile through shared memory, V of each thread's rows at a time: so one loop stores it, along rows or along
// columns of C. Vectors are swizzled; otherwise a column would be in one bank.
template <typename S>
__device__ __forceinline__ void store_staged(const typename S::T (&acc)[S::TM][S::TN], stage_memory<S> (&stage)[2],
                                             const simt_epilogue<typename S::T> &out, int first_row, int64_t j,
                                             const thread_position<S> &thread) {
    typedef typename S::T T;
    constexpr int rows = S::BM / S::TM * S::V, vectors = S::BN / S::V, band = 4 * S::V;
    static_assert(sizeof stage >= rows * S::BN * sizeof(T), "a part of the tile fits into the stages");
    simt_vector<T> *part = (simt_vector<T> *)stage;
    const int tid = threadIdx.x, own = thread.m / (4 * S::TM) * band + thread.m % band, across = thread.n / S::V;
#pragma unroll 1
    for (int p = 0; p < S::TM / S::V; p++) {
        __syncthreads(); // all threads have read what is overwritten
#pragma unroll
        for (int i = 0; i < S::TM / S::V; i++) {
            if (i != p) continue;
#pragma unroll
            for (int e = 0; e < S::V; e++)
#pragma unroll
                for (int v = 0; v < S::TN / S::V; v++)
                    part[(own + e) * vectors + ((across + v * 8) ^ (own + e) % 8)] =
                        *(const simt_vector<T> *)&acc[i * S::V + e][v * S::V];
        }
        __syncthreads();
        const int top = first_row + p * band;
#pragma unroll 1
        for (int q = tid; q < rows * vectors; q += S::THREADS) {
            T x[S::V];
            if (out.row_stride < out.col_stride) {
                int m = q % (rows / S::V) * S::V, n = q / (rows / S::V);
#pragma unroll
                for (int e = 0; e < S::V; e++) x[e] = part[(m + e) * vectors + (n / S::V ^ (m + e) % 8)].x[n % S::V];
                simt_store_column<T, S::V>(out, top + m / band * 4 * S::TM + m % band, j + n, x);
            } else {
                int m = q / vectors, n = q % vectors;
                *(simt_vector<T> *)x = part[m * vectors + (n ^ m % 8)];
                simt_store_row<T, S::V>(out, top + m / band * 4 * S::TM + m % band, j + n * S::V, x, true);
            }
        }
    }
}

// The common case, straight from registers: a whole tile of a row-major C, which needs nothing but alpha.
template <typename S>
__device__ __forceinline__ bool store_direct(const typename S::T (&acc)[S::TM][S::TN],
                                             const simt_epilogue<typename S::T> &out, int first_row, int64_t j,
                                             const thread_position<S> &thread) {
    typedef typename S::T T;
    if (!out.along_n || out.beta != 0 || out.bias || out.activation != SAT_ACT_NONE) return false;
    if (first_row + S::BM > out.rows || j + S::BN > out.n) return false;
    T *to = out.c + (first_row + thread.m) * out.row_stride + j + thread.n;
#pragma unroll
    for (int i = 0; i < S::TM; i++)
#pragma unroll
        for (int v = 0; v < S::TN; v += S::V) {
            simt_vector<T> y;
#pragma unroll
            for (int e = 0; e < S::V; e++) y.x[e] = out.alpha * acc[i][v + e];
            *(simt_vector<T> *)(to + thread.row(i) * out.row_stride + thread.column(v)) = y;
        }
    return true;
}

// ---- kernel: one CTA a tile. Rows are the fastest index, so that CTAs that run at the same time read the same columns
// of B from L2. With a schedule, all tiles of a work item come before the next item, so that the shortest come last.

template <typename S>
static __global__ void __launch_bounds__(S::THREADS, S::CTAS) multiply(const __grid_constant__ kernel_args args) {
    typedef typename S::T T;
    __shared__ stage_memory<S> stage[2];
    unsigned items = (unsigned)args.work.items, tiles = gridDim.x / items; // tiles of an item
    unsigned tile = args.work.item ? blockIdx.x % tiles : blockIdx.x / items;
    unsigned index = args.work.item ? blockIdx.x / tiles : blockIdx.x % items;
    int first_row = (int)(tile % (unsigned)args.row_tiles) * S::BM;
    int64_t j = (int64_t)(tile / (unsigned)args.row_tiles) * S::BN;
    sat_work_item item = sat_work_item_at(args.r, args.work.item, index);
    bool last = true;
    if constexpr (S::PARTS)
        if (!sat_take_part(&args.part, &item, &last)) return;
    thread_position<S> thread;
    T acc[S::TM][S::TN] = {};
    loader<S> load(args, item, first_row, j);
    main_loop<S>(acc, stage, load, thread);
    if constexpr (S::PARTS) { // loaded again: kept, it would take registers from the accumulators
        item = sat_work_item_at(args.r, args.work.item, index);
        (void)sat_take_part(&args.part, &item, &last);
    }
    const simt_epilogue<T> out =
        simt_epilogue_of<T>(args.out, args.r, args.work, item, args.c_access, !S::PARTS || args.part.first, last);
    if (!store_direct<S>(acc, out, first_row, j, thread)) store_staged<S>(acc, stage, out, first_row, j, thread);
}

// ---- host: instances

enum { SPLIT = 1, SPLIT_DEPTH = 128 };

struct instance {
    sat_dtype dtype;
    int tile_m, tile_n;
    int step, threads, ctas;
    void (*run[2][2])(kernel_args); // [B's rows in vectors][rows in parts]
};

template <typename T, int TM, int TN, int WM, int WN, int KT> static constexpr instance instance_of(sat_dtype dtype) {
    typedef tile_shape<T, TM, TN, WM, WN, KT, true, false> S;
    constexpr bool parts = sizeof(T) == 4; // f64 sums need none
    return {dtype,
            S::BM,
            S::BN,
            KT,
            S::THREADS,
            S::CTAS,
            {{multiply<tile_shape<T, TM, TN, WM, WN, KT, false, false>>,
              multiply<tile_shape<T, TM, TN, WM, WN, KT, false, parts>>},
             {multiply<S>, multiply<tile_shape<T, TM, TN, WM, WN, KT, true, parts>>}}};
}

static const instance instances[] = {
    instance_of<float, 8, 8, 4, 2, 16>(SAT_F32),  // 128x128
    instance_of<float, 8, 8, 2, 4, 16>(SAT_F32),  // 64x256
    instance_of<float, 8, 8, 2, 2, 16>(SAT_F32),  // 64x128
    instance_of<float, 8, 8, 1, 4, 16>(SAT_F32),  // 32x256
    instance_of<float, 8, 8, 1, 2, 16>(SAT_F32),  // 32x128
    instance_of<float, 4, 16, 1, 2, 16>(SAT_F32), // 16x256
    instance_of<double, 8, 8, 2, 2, 8>(SAT_F64),  // 64x128
    instance_of<double, 8, 8, 1, 2, 8>(SAT_F64),  // 32x128
    instance_of<double, 4, 8, 1, 2, 8>(SAT_F64),  // 16x128
};

static const instance *find(const sat_instance *x) {
    for (const instance &k : instances)
        if (k.dtype == x->dtype && k.tile_m == x->tile_m && k.tile_n == x->tile_n) return &k;
    return NULL;
}

// Every matrix of the batch is aligned to 16 bytes.
static bool in_vectors(const sat_problem *p, const sat_layout *x, uint32_t align) {
    return align >= 16 && (p->batch == 1 || x->batch_stride * (int64_t)sat_dtype_size(p->a_dtype) % 16 == 0);
}

static bool b_in_vectors(const sat_problem *p) {
    return p->b.col_stride == 1 && p->b.row_stride * (int64_t)sat_dtype_size(p->b_dtype) % 16 == 0 &&
           in_vectors(p, &p->b, p->b_align);
}

static a_access order_of(const sat_problem *p, const sat_rows *r) {
    int64_t vector = 16 / (int64_t)sat_dtype_size(p->a_dtype);
    if (!in_vectors(p, &p->a, p->a_align)) return ELEMENTS;
    if (r->col_step == 1) return r->bc % vector ? ELEMENTS : ALONG_K;
    return r->br % vector ? ELEMENTS : ALONG_M;
}

static int64_t tiles(int64_t all, int64_t each) { return (all + each - 1) / each; }

// At least half of a tile's rows and of a step's columns are used: below that, other families are faster.
static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)d;
    const instance *k = find(&v->instance);
    sat_rows r = sat_op_rows(p, a);
    if (!k || p->a_dtype != k->dtype || p->c_dtype != k->dtype) return false;
    if (2 * r.br < k->tile_m || 2 * r.bc < k->step || r.br > 1 << 15 || r.bc > 1 << 15) return false;
    double ctas =
        (double)(r.count + a->stored_blocks) * (double)tiles(r.br, k->tile_m) * (double)tiles(p->n, k->tile_n);
    return ctas < 1 << 30; // the grid has one dimension
}

// A quarter of a fair share, so that all CTAs end at about the same time.
static int64_t share_of(const instance *k, const sat_rows *r, int64_t n, const sat_device *d) {
    int64_t item_tiles = tiles(r->br, k->tile_m) * tiles(n, k->tile_n), least = sat_max(1, SPLIT_DEPTH / r->bc);
    return sat_schedule_share(r, item_tiles, 4 * (int64_t)d->multiprocessors * k->ctas, least);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const instance *k = find(&v->instance);
    sat_rows r = sat_op_rows(p, a);
    double ctas = (double)tiles(r.br, k->tile_m) * (double)tiles(p->n, k->tile_n);
    double depth = (double)tiles(r.bc, k->step) * k->step, size = (double)sat_dtype_size(p->a_dtype);
    double batch = (double)p->batch, steps = (double)a->stored_blocks * ctas * depth;
    double peak = 0.8 - 2.0 / k->tile_m; // a tile of fewer rows has fewer products a load
    double rate = sat_simt_rate(d, p->compute_dtype) * peak;
    double busy = 2 * steps * k->tile_m * k->tile_n / rate;
    double l2 = steps * (k->tile_m + k->tile_n) * size / d->l2_rate;
    double seconds = sat_worst(busy, l2, sat_bytes(p, a) / batch / d->memory_rate);
    if (!b_in_vectors(p)) seconds *= 1.15;
    if (v->instance.option & SPLIT) return batch * (1.08 * seconds + 8e-6);
    double waves = (double)r.count * ctas / ((double)d->multiprocessors * k->ctas);
    if (waves > 1 && waves < 8) seconds *= ceil(waves) / waves; // the last wave is not full
    double sm_rate = 0.6 * rate / d->multiprocessors,
           alone = 2 * sat_heaviest(p, a) * depth * k->tile_m * k->tile_n / sm_rate;
    return batch * (sat_worst(seconds, alone, 0) + 4e-6);
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    if (!(v->instance.option & SPLIT)) return 0;
    sat_rows r = sat_op_rows(p, a);
    return sat_schedule_workspace(&r, share_of(find(&v->instance), &r, p->n, d), p->n, sat_dtype_size(p->c_dtype));
}

static sat_status prepare(const sat_prepare *prepare, void **state) {
    if (!(prepare->variant->instance.option & SPLIT)) return SAT_OK;
    sat_rows r = sat_op_rows(prepare->problem, prepare->pattern);
    const instance *k = find(&prepare->variant->instance);
    return sat_prepare_schedule(prepare, share_of(k, &r, prepare->problem->n, prepare->device), state);
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    if (p->m == 0 || p->n == 0) return SAT_OK;
    const instance *k = find(&l->variant->instance);
    kernel_args args = {sat_device_rows(p, l->pattern), sat_epilogue_of(l)};
    args.work = l->state ? *(const sat_device_schedule *)l->state : sat_whole_rows_schedule(&args.r);
    args.c_access = vector_access_of(p, args.r.br);
    args.values = l->operands[0], args.b = l->operands[1];
    args.b_row_stride = p->b.row_stride, args.b_col_stride = p->b.col_stride;
    args.row_tiles = (int)tiles(args.r.br, k->tile_m), args.order = order_of(p, &args.r);
    unsigned ctas = (unsigned)(args.work.items * args.row_tiles * tiles(p->n, k->tile_n));
    sat_rows host = sat_op_rows(p, l->pattern);
    int64_t longest = sat_longest_work_item(l, l->state ? share_of(k, &host, p->n, l->device) : 0);
    sat_parts parts = sat_parts_in_c(p, args.r.bc, 1);
    bool several = longest > parts.blocks || args.r.bc > parts.deep;
    sat_status status = sat_each_part(l, args, parts, longest, [&](const kernel_args &part) {
        k->run[b_in_vectors(p)][several]<<<ctas, k->threads, 0, (cudaStream_t)l->stream>>>(part);
    });
    return status == SAT_OK ? sat_launch_split_reduction(l, args.r, args.out, args.work) : status;
}

SAT_FAMILY(cuda_matmul_simt) = {
    .revision = "3",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .about = "f32 and f64 without tensor cores: tiles in shared memory, register blocking, any strides",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_state,
};
