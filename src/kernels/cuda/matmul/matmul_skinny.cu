// cuda_matmul_skinny: 1 to 64 columns of 16-bit elements by tensor cores, bound by reading the stored blocks once.
//
// A CTA has tile_m rows of a work item: a block row, or a split-K slice of one. Its warps take turns at the stages of
// the item's k, 32 or 64 each. Each warp has a ring of stages of its own in shared memory, which it fills by cp.async
// and multiplies; no warp waits for another until their accumulators are added at the end, in the order of the warps.
// What counts is bytes in flight, so the rings of a multiprocessor's CTAs take most of its shared memory. The blocks'
// values are requested as soon as the row is known; only B waits for the column indices.

#include "kernels/cuda/common/ptx_sm80.cuh"
#include "kernels/cuda/matmul/skinny_split.cuh"

enum { WARPS = 4, MOST_SHARED = 96 << 10 };
enum b_layout { ROW_MAJOR, COLUMN_MAJOR, STRIDED }; // the first two in aligned chunks of 16 bytes

struct kernel_args {
    sat_rows r;
    sat_epilogue out;
    sat_device_schedule work;
    const void *values, *b;
    int64_t b_row_stride, b_col_stride, a_batch_stride, b_batch_stride, c_batch_stride;
    int bc, block_elements;        // columns of a block of op(A)
    unsigned bc_inverse;           // 65536 / bc, rounded up: exact for k below 256, where a lane's first stage begins
    int step_blocks, step_columns; // from a warp's stage to its next one, WARPS * depth columns further
    b_layout layout;
    bool transposed, ragged_k, vector_store; // op(A) = A^T; k ends inside a block; C takes four elements at once
};

// ---- shared memory: for each warp `stages` stages, each an A tile [rows x depth] and a B tile [columns x depth]

template <int MT, int NT> struct shape { // a CTA's tile of C is 16*MT x 8*NT
    static constexpr int rows = 16 * MT, columns = 8 * NT, depth = MT * NT == 32 ? 32 : 64; // depth: k of a stage
    static constexpr int a_bytes = rows * depth * 2, bytes = a_bytes + columns * depth * 2;
    static constexpr int fit = MOST_SHARED / (WARPS * bytes), stages = fit < 4 ? fit : 4, ring = stages * bytes;
    static constexpr int on_sm = (227 << 10) / (WARPS * ring + 1024), ctas = on_sm < 4 ? on_sm : 4;
    static_assert((rows + 4) * (columns + 4) * 4 <= ring, "a warp's accumulators reuse its ring");
};

// A tile is lines of P chunks of 16 bytes: K-major, a line for each row or column, or MN-major, a line for each k.
// Chunks are swizzled, so that the same chunk of 8 lines is in 8 different groups of banks.
template <int P> __device__ __forceinline__ constexpr uint32_t swizzle(int line) { return line / (8 / P) & (P - 1); }

template <int P> __device__ __forceinline__ uint32_t chunk_offset(int line, int chunk) {
    return (uint32_t)line * P * 16 + (chunk ^ swizzle<P>(line)) * 16;
}

// The offset `lines` below. The line numbers have no bit in common, and tiles begin at multiples of 128 bytes; so the
// offsets of a loop need no registers of their own.
template <int P> __device__ __forceinline__ uint32_t lines_below(uint32_t offset, int lines) {
    return (offset ^ swizzle<P>(lines) * 16) + lines * P * 16;
}

// ---- producer: a warp copies its stages from global memory

__device__ __forceinline__ int clamp(int x, int most) { return x < 0 ? 0 : x > most ? most : x; }

// K-major: LINES lines of DEPTH k. `from` is line 0 at this lane's chunk of 8 k, of which `bytes` exist.
template <int DEPTH, int LINES, typename T>
__device__ __forceinline__ void copy_k_major(uint32_t to, const T *from, int64_t stride, int bytes, int lines) {
    constexpr int P = DEPTH / 8, APART = 32 / P;
    int lane = threadIdx.x % 32, line = lane / P;
    to += chunk_offset<P>(line, lane % P), from += line * stride, stride *= APART, lines -= line;
#pragma unroll
    for (int i = 0; i < LINES / APART; i++, from += stride)
        cp_async_16(lines_below<P>(to, i * APART), from, i * APART < lines ? bytes : 0);
}

// MN-major: DEPTH lines of P chunks. `from` is this lane's first k and its chunk; `left` k exist from there on.
template <int DEPTH, int P, typename T>
__device__ __forceinline__ void copy_mn_major(uint32_t to, const T *from, int64_t stride, int left, int bytes) {
    constexpr int EACH = DEPTH * P / 32;
    int lane = threadIdx.x % 32;
    to += chunk_offset<P>(lane / P * EACH, lane % P);
#pragma unroll
    for (int i = 0; i < EACH; i++, from += stride) cp_async_16(lines_below<P>(to, i), from, i < left ? bytes : 0);
}

// Any strides, element by element to a K-major tile; `from` is this lane's first k.
template <int DEPTH, typename T>
__device__ __forceinline__ void copy_strided(char *to, const T *from, int64_t row_stride, int64_t col_stride, int left,
                                             int n) {
    constexpr int EACH = DEPTH / 32;
    int k = threadIdx.x % 32 * EACH;
#pragma unroll 4
    for (int j = 0; j < n; j++)
#pragma unroll
        for (int i = 0; i < EACH; i++)
            *(T *)(to + chunk_offset<DEPTH / 8>(j, k / 8) + (k % 8 + i) * 2) =
                i < left ? from[i * row_stride + j * col_stride] : T(0);
}

// A lane's first k in a stage, for each kind of copy.
template <int DEPTH> __device__ __forceinline__ int k_major_first() { return threadIdx.x % (DEPTH / 8) * 8; }
template <int DEPTH, int P> __device__ __forceinline__ int mn_major_first() {
    return threadIdx.x % 32 / P * (DEPTH * P / 32);
}

// A lane's position in its warp's next stage: it copies 8 or 16 k from there on, which never cross a block's end.
struct k_position {
    int block, k; // the block, counted from the work item's first; k within it

    __device__ __forceinline__ void begin(const kernel_args &args, int first) {
        block = (int)(first * args.bc_inverse >> 16), k = first - block * args.bc;
    }
    __device__ __forceinline__ void advance(const kernel_args &args) {
        block += args.step_blocks, k += args.step_columns;
        if (k >= args.bc) k -= args.bc, block++;
    }
    // The number of k from here on, in the block and in the matrix.
    __device__ __forceinline__ int left(const kernel_args &args, int64_t col) const {
        return (int)sat_min(args.bc, args.r.k - col * args.bc) - k;
    }
};

template <typename MATH, int MT, int NT> struct loader {
    typedef shape<MT, NT> S;
    typedef typename MATH::element T;
    const kernel_args &args;
    const int32_t *cols; // of the work item
    int64_t first;       // its first block
    int count;           // its blocks
    const T *values, *b; // values: from this CTA's first row on
    k_position at_a, at_b, at_col;

    __device__ __forceinline__ void begin() {
        int start = threadIdx.x / 32 * S::depth;
        at_a.begin(args, start + (args.transposed ? mn_major_first<S::depth, 2 * MT>() : k_major_first<S::depth>()));
        at_b.begin(args, start + (args.layout == ROW_MAJOR      ? mn_major_first<S::depth, NT>()
                                  : args.layout == COLUMN_MAJOR ? k_major_first<S::depth>()
                                                                : mn_major_first<S::depth, 1>()));
        at_col = at_b;
    }

    __device__ __forceinline__ int32_t next_column() {
        int32_t col = at_col.block < count ? cols[at_col.block] : 0;
        at_col.advance(args);
        return col;
    }

    __device__ __forceinline__ void load_a(uint32_t to) {
        bool real = at_a.block < count;
        const T *from = values + (real ? sat_block_of(&args.r, first + at_a.block) * args.block_elements : 0);
        if (args.transposed) {
            int left = real ? at_a.left(args, args.ragged_k ? cols[at_a.block] : 0) : 0;
            from += at_a.k * args.r.col_step + threadIdx.x % (2 * MT) * 8;
            copy_mn_major<S::depth, 2 * MT>(to, from, args.r.col_step, left, 16);
        } else if (args.ragged_k) {
            int left = real ? at_a.left(args, cols[at_a.block]) : 0;
            copy_k_major<S::depth, S::rows>(to, from + at_a.k, args.bc, clamp(2 * left, 16), S::rows);
        } else {
            copy_k_major<S::depth, S::rows>(to, from + at_a.k, args.bc, real ? 16 : 0, S::rows);
        }
        at_a.advance(args);
    }

    __device__ __forceinline__ void load_b(char *tile, int32_t col) {
        int left = at_b.block < count ? at_b.left(args, col) : 0, n = (int)args.out.n, chunk = threadIdx.x % NT * 8;
        const T *from = b + (left > 0 ? col * (int64_t)args.bc + at_b.k : 0) * args.b_row_stride;
        uint32_t to = smem_address(tile);
        if (args.layout == ROW_MAJOR)
            copy_mn_major<S::depth, NT>(to, from + (chunk < n ? chunk : 0), args.b_row_stride, left,
                                        clamp(2 * (n - chunk), 16));
        else if (args.layout == COLUMN_MAJOR)
            copy_k_major<S::depth, S::columns>(to, from, args.b_col_stride, clamp(2 * left, 16), n);
        else copy_strided<S::depth>(tile, from, args.b_row_stride, args.b_col_stride, left, n);
        at_b.advance(args);
    }
};

// ---- consumer: the same warp multiplies them

// ldmatrix, with .trans where the tile is MN-major; without a branch, so that loads overlap with products.
__device__ __forceinline__ void ldmatrix_x4_either(uint32_t (&r)[4], uint32_t from, int mn_major) {
    asm volatile("{\n .reg .pred p;\n setp.ne.s32 p, %5, 0;\n"
                 " @p ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 " @!p ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n}"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from), "r"(mn_major)
                 : "memory");
}

// A lane's address in a tile, and the strides between fragments: for each 16 rows or columns, and for each 16 k, one
// number is XORed and one is added.
struct fragment_addresses {
    uint32_t lane, mn_xor, mn_add, k_xor, k_add;
    int mn_major;
    __device__ __forceinline__ void load(uint32_t (&r)[4], uint32_t tile, int i, int k) const {
        ldmatrix_x4_either(r, (tile + lane ^ i * mn_xor ^ k * k_xor) + i * mn_add + k * k_add, mn_major);
    }
};

// K_CHUNKS in a line of a K-major tile, MN_CHUNKS in one of an MN-major tile. Of the four 8x8 matrices of a load, the
// second is further in m (for A) or in k (for B): `second` is the lane bit that distinguishes matrices in m or n.
template <int K_CHUNKS, int MN_CHUNKS>
__device__ __forceinline__ fragment_addresses fragments_of(bool mn_major, int second) {
    int lane = threadIdx.x % 32, outer = lane / second % 2, k = lane / (24 - second) % 2, in = lane % 8;
    fragment_addresses f = {chunk_offset<K_CHUNKS>(outer * 8 + in, k), 0, K_CHUNKS * 256, 32, 0, mn_major};
    if (mn_major)
        f.lane = chunk_offset<MN_CHUNKS>(k * 8 + in, outer), f.mn_xor = 32, f.mn_add = 0, f.k_xor = 0,
        f.k_add = MN_CHUNKS * 256;
    return f;
}

// With 8 columns of B, a load has 32 k of them.
template <int K_CHUNKS> __device__ __forceinline__ fragment_addresses narrow_fragments(bool mn_major) {
    int lane = threadIdx.x % 32;
    fragment_addresses f = {chunk_offset<K_CHUNKS>(lane % 8, lane / 8), 0, 0, 32, 0, mn_major};
    if (mn_major) f.lane = lane * 16, f.k_xor = 0, f.k_add = 256;
    return f;
}

template <typename MATH, int MT, int NT>
__device__ __forceinline__ void multiply_stage(float (&acc)[MT][NT][4], uint32_t stage, const fragment_addresses &a,
                                               const fragment_addresses &b) {
    typedef shape<MT, NT> S;
    uint32_t fb[(NT + 1) / 2][4];
#pragma unroll
    for (int k = 0; k < S::depth / 16; k++) {
#pragma unroll
        for (int j = 0; j < (NT + 1) / 2; j++)
            if (NT > 1 || k % 2 == 0) b.load(fb[j], stage + S::a_bytes, j, k);
#pragma unroll
        for (int i = 0; i < MT; i++) {
            uint32_t fa[4];
            a.load(fa, stage, i, k);
#pragma unroll
            for (int j = 0; j < NT; j++) {
                int at = NT == 1 ? k % 2 * 2 : j % 2 * 2;
                MATH::multiply(acc[i][j], fa, fb[j / 2][at], fb[j / 2][at + 1]);
            }
        }
    }
}

// A warp's main loop. It has three phases of one loop: A is requested for all stages of the ring, then B, which waits
// for the column indices; then a stage is multiplied and refilled. Column indices are loaded a ring's length ahead.
template <typename MATH, int MT, int NT>
__device__ __forceinline__ void multiply_stages(float (&acc)[MT][NT][4], loader<MATH, MT, NT> &load, char *ring,
                                                int stages) {
    typedef shape<MT, NT> S;
    constexpr int AHEAD = S::stages;
    fragment_addresses a = fragments_of<S::depth / 8, 2 * MT>(load.args.transposed, 8);
    fragment_addresses b = NT == 1 ? narrow_fragments<S::depth / 8>(load.args.layout == ROW_MAJOR)
                                   : fragments_of<S::depth / 8, NT>(load.args.layout == ROW_MAJOR, 16);
    load.begin();
    int32_t col[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) col[i] = load.next_column();
    int mine = (int)((stages + WARPS - 1 - threadIdx.x / 32) / WARPS), offset = 0;
#pragma unroll 1
    for (int i = -2 * AHEAD; i < mine; i++) {
        char *stage = ring + offset;
        if (i >= 0) {
            cp_async_wait_group<AHEAD - 1>();
            __syncwarp();
            multiply_stage<MATH, MT, NT>(acc, smem_address(stage), a, b);
            __syncwarp(); // all lanes have read the stage before it is overwritten
        }
        bool only_a = i < -AHEAD;
        if (i + (only_a ? 2 : 1) * AHEAD < mine && (only_a || i >= 0)) load.load_a(smem_address(stage));
        if (!only_a) {
            if (i + AHEAD < mine) load.load_b(stage + S::a_bytes, col[0]);
            cp_async_commit_group();
#pragma unroll
            for (int c = 1; c < AHEAD; c++) col[c - 1] = col[c];
            col[AHEAD - 1] = load.next_column();
        }
        offset = offset == S::ring - S::bytes ? 0 : offset + S::bytes;
    }
}

// ---- epilogue: the warps' accumulators are added through shared memory

template <int MT, int NT, int ROW_STRIDE, int COL_STRIDE>
__device__ __forceinline__ void store_shared(const float (&acc)[MT][NT][4], float *to) {
    int lane = threadIdx.x % 32;
    to += lane / 4 * ROW_STRIDE + lane % 4 * 2 * COL_STRIDE;
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                to[(i * 16 + e / 2 * 8) * ROW_STRIDE + (j * 8 + e % 2) * COL_STRIDE] = acc[i][j][e];
}

__device__ __forceinline__ void store_vector(sat_dtype t, void *c, int64_t at, const float (&y)[4]) {
    if (t == SAT_F32) {
        *(float4 *)((float *)c + at) = make_float4(y[0], y[1], y[2], y[3]);
    } else if (t == SAT_F16) {
        __half2 h[2] = {__floats2half2_rn(y[0], y[1]), __floats2half2_rn(y[2], y[3])};
        *(uint2 *)((__half *)c + at) = make_uint2(*(uint32_t *)&h[0], *(uint32_t *)&h[1]);
    } else {
        __nv_bfloat162 h[2] = {__floats2bfloat162_rn(y[0], y[1]), __floats2bfloat162_rn(y[2], y[3])};
        *(uint2 *)((__nv_bfloat16 *)c + at) = make_uint2(*(uint32_t *)&h[0], *(uint32_t *)&h[1]);
    }
}

// Four neighbours in a column of C (DOWN) or in a row, from row i of the block row and column j on.
template <bool DOWN>
__device__ __forceinline__ void store4(const kernel_args &args, const sat_epilogue &out, const sat_work_item &item,
                                       int i, int j, float (&y)[4]) {
    constexpr int ROW = DOWN ? 1 : 0, COL = 1 - ROW;
    if (item.partial >= 0) {
        float *partial = (float *)args.work.partial + ((int64_t)item.partial * args.r.br + i) * out.n + j;
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (j + e * COL < out.n) partial[e * ROW * out.n + e * COL] = y[e];
        return;
    }
    int64_t row = (int64_t)item.row * args.r.br + i;
    bool vector = args.vector_store && row + 3 * ROW < out.m && j + 3 * COL < out.n;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        if (row + e * ROW >= out.m || j + e * COL >= out.n) break;
        y[e] = sat_epilogue_apply(out, row + e * ROW, j + e * COL, y[e]);
        if (!vector)
            sat_store_from(y[e], out.dtype, out.c, (row + e * ROW) * out.row_stride + (j + e * COL) * out.col_stride);
    }
    if (vector) store_vector(out.dtype, out.c, row * out.row_stride + j * out.col_stride, y);
}

// Adds the accumulators in the order of the warps. C's contiguous side is the inner one.
template <int MT, int NT, bool DOWN>
__device__ __forceinline__ void reduce_warps(const kernel_args &args, const sat_epilogue &out,
                                             const sat_work_item &item, const float (&acc)[MT][NT][4], char *shared,
                                             int warps) {
    typedef shape<MT, NT> S;
    constexpr int ROW = DOWN ? 1 : S::columns + 4, COL = DOWN ? S::rows + 4 : 1;
    store_shared<MT, NT, ROW, COL>(acc, (float *)(shared + threadIdx.x / 32 * S::ring));
    __syncthreads();
    for (int e = threadIdx.x * 4; e < S::rows * S::columns; e += WARPS * 32 * 4) {
        int i = DOWN ? e % S::rows : e / S::columns, j = DOWN ? e / S::rows : e % S::columns;
        if (j >= out.n) continue;
        float y[4] = {0, 0, 0, 0};
        for (int w = 0; w < warps; w++) {
            float4 v = *(const float4 *)(shared + w * S::ring + (i * ROW + j * COL) * 4);
            y[0] += v.x, y[1] += v.y, y[2] += v.z, y[3] += v.w;
        }
        store4<DOWN>(args, out, item, (int)blockIdx.y * S::rows + i, j, y);
    }
}

// ---- kernel: blockIdx.x is a work item, .y a tile of its rows, .z a matrix of the batch

template <typename MATH, int MT, int NT>
static __global__ void __launch_bounds__(WARPS * 32, shape<MT, NT>::ctas)
    multiply(const __grid_constant__ kernel_args args) {
    typedef shape<MT, NT> S;
    typedef typename MATH::element T;
    extern __shared__ __align__(128) char shared[];
    sat_work_item item = sat_work_item_at(args.r, args.work.item, blockIdx.x);
    loader<MATH, MT, NT> load = {args, args.r.col + item.first, item.first, item.count};
    load.values = (const T *)args.values + blockIdx.z * args.a_batch_stride + blockIdx.y * S::rows * args.r.row_step;
    load.b = (const T *)args.b + blockIdx.z * args.b_batch_stride;
    int stages = (item.count * args.bc + S::depth - 1) / S::depth, warps = stages < WARPS ? stages : WARPS;
    float acc[MT][NT][4] = {};
    multiply_stages<MATH, MT, NT>(acc, load, shared + threadIdx.x / 32 * S::ring, stages);
    sat_epilogue out = args.out;
    out.c = (char *)out.c + blockIdx.z * args.c_batch_stride;
    if (out.row_stride == 1) reduce_warps<MT, NT, true>(args, out, item, acc, shared, warps);
    else reduce_warps<MT, NT, false>(args, out, item, acc, shared, warps);
}

// ---- host: instances

struct instance {
    sat_dtype dtype;
    int tile_m, tile_n, shared, depth;
    void (*run)(kernel_args);
};

template <typename MATH, int MT, int NT> static constexpr instance instance_of() {
    typedef shape<MT, NT> S;
    return {MATH::dtype, S::rows, S::columns, WARPS * S::ring, S::depth, multiply<MATH, MT, NT>};
}

static const instance instances[] = {
    instance_of<sat_f16_math, 1, 1>(),  instance_of<sat_f16_math, 1, 2>(),  instance_of<sat_f16_math, 1, 4>(),
    instance_of<sat_f16_math, 1, 8>(),  instance_of<sat_f16_math, 2, 1>(),  instance_of<sat_f16_math, 2, 2>(),
    instance_of<sat_f16_math, 2, 4>(),  instance_of<sat_f16_math, 2, 8>(),  instance_of<sat_f16_math, 4, 1>(),
    instance_of<sat_f16_math, 4, 2>(),  instance_of<sat_f16_math, 4, 8>(),  instance_of<sat_bf16_math, 1, 1>(),
    instance_of<sat_bf16_math, 1, 2>(), instance_of<sat_bf16_math, 1, 4>(), instance_of<sat_bf16_math, 1, 8>(),
    instance_of<sat_bf16_math, 2, 1>(), instance_of<sat_bf16_math, 2, 2>(), instance_of<sat_bf16_math, 2, 4>(),
    instance_of<sat_bf16_math, 2, 8>(), instance_of<sat_bf16_math, 4, 1>(), instance_of<sat_bf16_math, 4, 2>(),
    instance_of<sat_bf16_math, 4, 8>(),
};

static const instance *find(const sat_variant *v) {
    const sat_instance *x = &v->instance;
    for (const instance &i : instances)
        if (i.dtype == x->dtype && i.tile_m == x->tile_m && i.tile_n == x->tile_n) return &i;
    return NULL;
}

static bool is_split(const sat_variant *v) { return v->instance.option != 0; }

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    int64_t tile_n = v->instance.tile_n;
    sat_rows r = sat_op_rows(p, a);
    if (p->a_dtype != v->instance.dtype || p->n > tile_n || (tile_n > 8 && p->n <= tile_n / 2)) return false;
    if (r.br % v->instance.tile_m || r.bc % 16 || r.br > 16384 || r.bc > 16384 || r.k > INT32_MAX / 2) return false;
    if (r.count > 1 << 30 || p->batch > 65535) return false; // the grid's limits
    if (p->a_align < 16 || (p->batch > 1 && p->a.batch_stride % 8)) return false;
    return !is_split(v) || skinny_schedule_helps(p, a, skinny_share(v, &r, d));
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    return skinny_estimate(v, p, a, d, is_split(v));
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    return skinny_workspace(v, p, a, d, is_split(v));
}

static sat_status prepare(const sat_prepare *l, void **state) {
    const instance *i = find(l->variant);
    return skinny_prepare(l, i->run, i->shared, is_split(l->variant), state);
}

// One side is contiguous, and the other strides are multiples of so many elements.
static bool in_chunks(int64_t contiguous, int64_t other, int64_t batch, int64_t elements) {
    return contiguous == 1 && other % elements == 0 && batch % elements == 0;
}

static b_layout layout_of(const sat_problem *p) {
    int64_t batch = p->batch > 1 ? p->b.batch_stride : 0;
    if (p->b_align < 16) return STRIDED;
    if (in_chunks(p->b.row_stride, p->n > 1 ? p->b.col_stride : 0, batch, 8)) return COLUMN_MAJOR;
    return in_chunks(p->b.col_stride, p->b.row_stride, batch, 8) ? ROW_MAJOR : STRIDED;
}

static bool vector_store(const sat_problem *p) {
    int64_t batch = p->batch > 1 ? p->c.batch_stride : 0;
    if (p->c_align < 4 * sat_dtype_size(p->c_dtype)) return false;
    if (p->c.row_stride == 1) return in_chunks(1, p->n > 1 ? p->c.col_stride : 0, batch, 4);
    return in_chunks(p->c.col_stride, p->c.row_stride, batch, 4);
}

static kernel_args args_of(const sat_launch *l, const instance *i) {
    const sat_problem *p = l->problem;
    kernel_args args = {};
    args.r = sat_device_rows(p, l->pattern), args.out = sat_epilogue_of(l);
    args.work = l->state ? *(const sat_device_schedule *)l->state : sat_whole_rows_schedule(&args.r);
    args.values = l->operands[0], args.b = l->operands[1];
    args.b_row_stride = p->b.row_stride, args.b_col_stride = p->b.col_stride;
    args.a_batch_stride = p->a.batch_stride, args.b_batch_stride = p->b.batch_stride;
    args.c_batch_stride = p->c.batch_stride * (int64_t)sat_dtype_size(p->c_dtype);
    args.bc = (int)args.r.bc, args.block_elements = (int)args.r.block_elements;
    args.bc_inverse = (65536 + args.bc - 1) / args.bc;
    args.step_blocks = WARPS * i->depth / args.bc, args.step_columns = WARPS * i->depth % args.bc;
    args.layout = layout_of(p), args.vector_store = vector_store(p);
    args.transposed = p->matmul.transpose == SAT_TRANSPOSE, args.ragged_k = args.r.k % args.r.bc != 0;
    return args;
}

static sat_status launch(const sat_launch *l) {
    if (l->problem->m == 0 || l->problem->n == 0) return SAT_OK;
    const instance *i = find(l->variant);
    return skinny_launch_batch(l, args_of(l, i), [&](const kernel_args &args, unsigned batch) {
        dim3 grid((unsigned)args.work.items, (unsigned)(args.r.br / i->tile_m), batch);
        i->run<<<grid, WARPS * 32, i->shared, (cudaStream_t)l->stream>>>(args);
        return sat_launched(l);
    });
}

SAT_FAMILY(cuda_matmul_skinny) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .flags = SAT_V_BATCHED,
    .about = "1 to 64 columns by tensor cores, each stored block read once (f16, bf16; block sides of 16 and more)",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_state,
};
