// cuda_matmul_skinny_direct: 9 to 32 columns of 16-bit elements by tensor cores, from memory straight into registers.
//
// A CTA has 64 rows of a work item: a block row, or a split-K slice of one. Its warps divide the rows, and the item's k
// into four parts. No warp waits for another until the accumulators are added at the end, in the order of the warps.
//
// A and B are loaded from global memory into the fragment registers of mma.m16n8k16, without shared memory. A product
// does not depend on which k is in which register as long as A and B agree, and rows and columns of C may be permuted
// until they are stored. So lane 4*g + t takes k 8t to 8t+7 of every 32, in loads as wide as the layout allows. A warp
// loads a chunk of 64 k and multiplies it; many warps keep memory busy.

#include "kernels/cuda/common/ptx_sm80.cuh"
#include "kernels/cuda/matmul/skinny_split.cuh"

// A warp has 16*MT rows and 8*NT columns of C. RW x CW warps cover the CTA's tile, and KS of each divide k.
template <int MT_, int NT_, int RW_, int CW_, int KS_> struct shape {
    static constexpr int MT = MT_, NT = NT_, RW = RW_, CW = CW_, KS = KS_;
    static constexpr int rows = 16 * MT * RW, columns = 8 * NT * CW, warps = RW * CW * KS;
    static constexpr int vector = NT == 1 ? 2 : 4;       // neighbours in a row of C that a lane stores at once
    static constexpr int vectors = MT * 4 * NT / vector; // of a lane
    static constexpr int shared = warps * vectors * 32 * vector * 4;
    static constexpr int on_sm = 16 / warps;                 // CTAs, by registers
    static constexpr int b_registers = NT == 1 ? 8 : 4 * NT; // a lane's part of 32 k of B
};

struct kernel_args {
    sat_rows r;
    sat_epilogue out;
    sat_device_schedule work;
    const void *values, *b;
    int64_t b_col_stride, a_batch_stride, b_batch_stride, c_batch_stride;
    int b_row_stride, block_bytes; // b_row_stride and b_col_stride in bytes, the batch strides of A and B in elements
    int k_stride, rows8_stride;    // bytes in a block of op(A), to the next k and to the eighth row below
    int bc, k;                     // columns of a block of op(A), and of op(A)
    int bc_log2;                   // -1: bc is not a power of two
    int step_blocks, step_columns; // 64 k further: blocks, and columns beyond those
    bool general;                  // chunks of 64 k cross blocks, or k ends inside a block
    bool vector_store;             // C takes a lane's neighbouring columns at once
};

// ---- loads: predicated instead of under a branch, so that the compiler waits for each one apart

__device__ __forceinline__ void load_streaming(uint32_t *r, const void *from, bool wanted) { // read by no other warp
    asm volatile("{\n .reg .pred p;\n setp.ne.s32 p, %5, 0;\n"
                 " @p ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];\n}"
                 : "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3])
                 : "l"(from), "r"((int)wanted));
}

template <int BYTES> __device__ __forceinline__ void load(uint32_t *r, const void *from, bool wanted) {
    int p = wanted;
    if constexpr (BYTES == 16)
        asm volatile("{\n .reg .pred p;\n setp.ne.s32 p, %5, 0;\n @p ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];\n}"
                     : "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3])
                     : "l"(from), "r"(p));
    else if constexpr (BYTES == 8)
        asm volatile("{\n .reg .pred p;\n setp.ne.s32 p, %3, 0;\n @p ld.global.nc.v2.u32 {%0,%1}, [%2];\n}"
                     : "+r"(r[0]), "+r"(r[1])
                     : "l"(from), "r"(p));
    else if constexpr (BYTES == 4)
        asm volatile("{\n .reg .pred p;\n setp.ne.s32 p, %2, 0;\n @p ld.global.nc.u32 %0, [%1];\n}"
                     : "+r"(r[0])
                     : "l"(from), "r"(p));
    else
        asm volatile("{\n .reg .pred p;\n setp.ne.s32 p, %2, 0;\n @p ld.global.nc.u16 %0, [%1];\n}"
                     : "+r"(r[0])
                     : "l"(from), "r"(p));
}

__device__ __forceinline__ uint32_t low_halves(uint32_t x, uint32_t y) { return __byte_perm(x, y, 0x5410); }
__device__ __forceinline__ uint32_t high_halves(uint32_t x, uint32_t y) { return __byte_perm(x, y, 0x7632); }

// A lane's operands of half a chunk: 8 k, which never cross a block's end.
template <typename S> struct lane_operands {
    uint32_t a[8 * S::MT], b[S::b_registers];
    int left; // how many of the 8 k exist; only if GENERAL
};

// TRANSPOSED: op(A) = A^T. ROW_MAJOR: B's rows are read in chunks of NT elements, else its columns in chunks of 8.
// GENERAL: the two halves of a chunk have positions of their own, and k may end in one of them.
template <typename S, bool TRANSPOSED, bool ROW_MAJOR, bool GENERAL> struct loader {
    const kernel_args &args;
    const int32_t *cols;    // of the work item
    const int64_t *blocks;  // of the work item, if TRANSPOSED
    const char *values, *b; // from this lane's first row, and first column, on
    int count, column;      // blocks in the work item; the warp's first column
    int cached;             // lane i holds the column index of block cached + i ...
    int32_t col, position;  // ... and its position in the values
    int block[2], k[2];     // of the next chunk's halves

    // Loads the column indices of 32 blocks, one a lane.
    __device__ __forceinline__ void cache_columns(int from) {
        int lane = threadIdx.x % 32, i = from + lane < count ? from + lane : count - 1;
        cached = from, col = __ldg(cols + i);
        if (TRANSPOSED) position = (int)__ldg(blocks + i);
    }

    __device__ __forceinline__ void begin(int chunk) {
        int first = chunk * 64 + threadIdx.x % 4 * 8;
#pragma unroll
        for (int h = 0; h < 1 + GENERAL; h++, first += 32) {
            block[h] = args.bc_log2 >= 0 ? first >> args.bc_log2 : first / args.bc;
            k[h] = first - block[h] * args.bc;
        }
        cache_columns(__shfl_sync(0xffffffffu, block[0], 0));
    }

    __device__ __forceinline__ void advance() {
#pragma unroll
        for (int h = 0; h < 1 + GENERAL; h++) {
            block[h] += args.step_blocks, k[h] += args.step_columns;
            if (k[h] >= args.bc) k[h] -= args.bc, block[h]++;
        }
    }

    __device__ __forceinline__ int from_cache(int what, int block) const {
        return __shfl_sync(0xffffffffu, what, block - cached);
    }

    // Before a chunk is loaded: makes sure that the columns of its blocks are cached. It has at most 5, of 16 k.
    __device__ __forceinline__ void look_ahead() {
        int first = __shfl_sync(0xffffffffu, block[0], 0);
        if (first - cached > 32 - 5) cache_columns(first);
    }

    __device__ __forceinline__ void load_a(lane_operands<S> &s, int h, bool wanted) const {
        int i = block[GENERAL * h], inside = k[GENERAL * h] + (GENERAL ? 0 : h * 32);
        if (GENERAL && i >= count) i = count - 1;
        const char *from =
            values + (int64_t)(TRANSPOSED ? from_cache(position, i) : i) * args.block_bytes + inside * args.k_stride;
        if constexpr (TRANSPOSED) {
#pragma unroll
            for (int e = 0; e < 8; e++) load<4 * S::MT>(s.a + e * S::MT, from + (int64_t)e * args.k_stride, wanted);
        } else {
#pragma unroll
            for (int e = 0; e < 2 * S::MT; e++) {
                if (S::CW == 1) load_streaming(s.a + e * 4, from + (int64_t)e * args.rows8_stride, wanted);
                else load<16>(s.a + e * 4, from + (int64_t)e * args.rows8_stride, wanted);
            }
        }
    }

    __device__ __forceinline__ void load_b(lane_operands<S> &s, int h, bool wanted) const {
        int i = block[GENERAL * h], row = from_cache(col, i) * args.bc + k[GENERAL * h] + (GENERAL ? 0 : h * 32),
            last = 7;
        if (GENERAL) { // rows that do not exist are read as the last one that does
            s.left = i >= count || row >= args.k ? 0 : row + 8 <= args.k ? 8 : args.k - row;
            if (s.left == 0) row = 0;
            last = s.left > 0 ? s.left - 1 : 0;
        }
        const char *from = b + (int64_t)row * args.b_row_stride;
        if constexpr (ROW_MAJOR) {
#pragma unroll
            for (int e = 0; e < 8; e++)
                load<2 * S::NT>(s.b + e * S::b_registers / 8, from + (int64_t)(e < last ? e : last) * args.b_row_stride,
                                wanted);
        } else {
            int mine = column + threadIdx.x % 32 / 4 * S::NT, most = (int)args.out.n - 1;
#pragma unroll
            for (int j = 0; j < S::NT; j++) {
                const char *column = from + (mine + j < most ? mine + j : most) * args.b_col_stride;
                if (!GENERAL || s.left == 8) load<16>(s.b + j * 4, column, wanted);
                else load_some(s.b + j * 4, column, s.left, wanted);
            }
        }
    }

    static __device__ __forceinline__ void load_some(uint32_t *r, const char *column, int left, bool wanted) {
#pragma unroll
        for (int w = 0; w < 4; w++) {
            uint32_t e[2] = {0, 0};
            load<2>(e, column + 4 * w, wanted && 2 * w < left);
            load<2>(e + 1, column + 4 * w + 2, wanted && 2 * w + 1 < left);
            r[w] = low_halves(e[0], e[1]);
        }
    }

    // The pair of k 2w and 2w+1 of the lane's 8; h is which of the lane's two rows in tile i.
    static __device__ __forceinline__ uint32_t pair_a(const lane_operands<S> &s, int i, int h, int w) {
        if (!TRANSPOSED) return s.a[(i * 2 + h) * 4 + w];
        uint32_t x = s.a[2 * w * S::MT + i], y = s.a[(2 * w + 1) * S::MT + i];
        return h ? high_halves(x, y) : low_halves(x, y);
    }
    static __device__ __forceinline__ uint32_t pair_b(const lane_operands<S> &s, int j, int w) {
        if (!ROW_MAJOR) return s.b[j * 4 + w];
        constexpr int STEP = S::b_registers / 8;
        uint32_t x = s.b[2 * w * STEP + j / 2], y = s.b[(2 * w + 1) * STEP + j / 2];
        return j % 2 ? high_halves(x, y) : low_halves(x, y);
    }
};

// The row of C, among the warp's, of a lane's row h in tile i.
template <typename S, bool TRANSPOSED> __device__ __forceinline__ int row_of(int i, int h) {
    int g = threadIdx.x % 32 / 4;
    return TRANSPOSED ? g * 2 * S::MT + 2 * i + h : i * 16 + h * 8 + g;
}

// ---- products

// Which of k 2w and 2w+1 exist: a block's padding may hold anything, and rows of B past the end are others'.
__device__ __forceinline__ uint32_t mask_of(int left, int w) {
    return left >= 2 * w + 2 ? 0xffffffffu : left == 2 * w + 1 ? 0xffffu : 0;
}

template <typename MATH, typename S, bool TRANSPOSED, bool ROW_MAJOR, bool GENERAL>
__device__ __forceinline__ void multiply_half(float (&acc)[S::MT][S::NT][4], const lane_operands<S> &s) {
    typedef loader<S, TRANSPOSED, ROW_MAJOR, GENERAL> L;
#pragma unroll
    for (int q = 0; q < 2; q++) {
        uint32_t fa[S::MT][4], fb[S::NT][2];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int w = 2 * q + e / 2;
            uint32_t mask = GENERAL ? mask_of(s.left, w) : 0xffffffffu;
#pragma unroll
            for (int i = 0; i < S::MT; i++) fa[i][e] = L::pair_a(s, i, e % 2, w) & mask;
#pragma unroll
            for (int j = 0; j < S::NT; j++) fb[j][e / 2] = L::pair_b(s, j, w) & mask;
        }
#pragma unroll
        for (int i = 0; i < S::MT; i++)
#pragma unroll
            for (int j = 0; j < S::NT; j++) MATH::multiply(acc[i][j], fa[i], fb[j][0], fb[j][1]);
    }
}

// A warp's main loop over chunks `chunk` to `end` - 1, at least one. The first chunk's values are requested before the
// column indices, which B waits for, have arrived.
template <typename MATH, typename S, bool TRANSPOSED, bool ROW_MAJOR, bool GENERAL>
__device__ __forceinline__ void multiply_chunks(float (&acc)[S::MT][S::NT][4],
                                                loader<S, TRANSPOSED, ROW_MAJOR, GENERAL> &from, int chunk, int end) {
    lane_operands<S> s[2] = {};
    from.begin(chunk);
#pragma unroll
    for (int h = 0; h < 2; h++) from.load_a(s[h], h, true);
#pragma unroll
    for (int h = 0; h < 2; h++) from.load_b(s[h], h, true);
#pragma unroll 1
    for (; chunk < end; chunk++) {
        bool more = chunk + 1 < end;
        from.advance();
        if (more) from.look_ahead();
#pragma unroll
        for (int h = 0; h < 2; h++) {
            multiply_half<MATH, S, TRANSPOSED, ROW_MAJOR, GENERAL>(acc, s[h]);
            from.load_a(s[h], h, more);
            from.load_b(s[h], h, more);
        }
    }
}

template <typename MATH, typename S, bool TRANSPOSED, bool ROW_MAJOR, bool GENERAL>
__device__ __forceinline__ void multiply_item(float (&acc)[S::MT][S::NT][4], const kernel_args &args,
                                              const sat_work_item &item, int warp) {
    int rw = warp % S::RW, cw = warp / S::RW % S::CW, ks = warp / S::RW / S::CW,
        chunks = (item.count * args.bc + 63) / 64;
    int chunk = chunks * ks / S::KS, end = chunks * (ks + 1) / S::KS;
    if (chunk == end) return;
    int64_t row = (blockIdx.y * S::RW + rw) * 16 * S::MT;
    int column = cw * 8 * S::NT, first = ROW_MAJOR ? column + threadIdx.x % 32 / 4 * S::NT : 0;
    loader<S, TRANSPOSED, ROW_MAJOR, GENERAL> from = {args, args.r.col + item.first, args.r.block + item.first};
    from.values = (const char *)args.values + (blockIdx.z * args.a_batch_stride + row * args.r.row_step) * 2;
    if (!TRANSPOSED) from.values += item.first * args.block_bytes;
    from.values += row_of<S, TRANSPOSED>(0, 0) * args.r.row_step * 2;
    from.b = (const char *)args.b + (blockIdx.z * args.b_batch_stride + (first < args.out.n ? first : 0)) * 2;
    from.column = column;
    from.count = item.count;
    multiply_chunks<MATH, S, TRANSPOSED, ROW_MAJOR, GENERAL>(acc, from, chunk, end);
}

// ---- epilogue: the warps' accumulators are added through shared memory

// Where vector v of a lane is in C: row h of tile i, from column c of the lane's on.
template <typename S> struct vector_position {
    int i, h, c;
    __device__ __forceinline__ vector_position(int v) {
        constexpr int ACROSS = 2 * S::NT / S::vector;
        i = v / ACROSS / 2, h = v / ACROSS % 2, c = v % ACROSS * S::vector;
    }
};

template <typename S> __device__ __forceinline__ void store_shared(const float (&acc)[S::MT][S::NT][4], float *to) {
#pragma unroll
    for (int u = 0; u < S::vectors; u++) {
        vector_position<S> at(u);
        float v[S::vector];
#pragma unroll
        for (int e = 0; e < S::vector; e++) v[e] = acc[at.i][(at.c + e) % S::NT][at.h * 2 + (at.c + e) / S::NT];
        if constexpr (S::vector == 4) *(float4 *)(to + u * 128) = make_float4(v[0], v[1], v[2], v[3]);
        else *(float2 *)(to + u * 64) = make_float2(v[0], v[1]);
    }
}

template <int COUNT>
__device__ __forceinline__ void store_vector(sat_dtype t, void *c, int64_t at, const float (&y)[COUNT]) {
    if (t == SAT_F32) {
#pragma unroll
        for (int e = 0; e < COUNT; e += 2) *(float2 *)((float *)c + at + e) = make_float2(y[e], y[e + 1]);
        return;
    }
    uint32_t w[COUNT / 2];
#pragma unroll
    for (int e = 0; e < COUNT; e += 2) {
        __half2 h = __floats2half2_rn(y[e], y[e + 1]);
        __nv_bfloat162 b = __floats2bfloat162_rn(y[e], y[e + 1]);
        w[e / 2] = t == SAT_F16 ? *(uint32_t *)&h : *(uint32_t *)&b;
    }
    if constexpr (COUNT == 4) *(uint2 *)((__half *)c + at) = make_uint2(w[0], w[1]);
    else *(uint32_t *)((__half *)c + at) = w[0];
}

// COUNT neighbours in a row of C, from row i of the block row and column j on.
template <int COUNT>
__device__ __forceinline__ void store(const kernel_args &args, const sat_epilogue &out, const sat_work_item &item,
                                      int i, int j, float (&y)[COUNT]) {
    if (item.partial >= 0) {
        float *partial = (float *)args.work.partial + ((int64_t)item.partial * args.r.br + i) * out.n + j;
#pragma unroll
        for (int e = 0; e < COUNT; e++)
            if (j + e < out.n) partial[e] = y[e];
        return;
    }
    int64_t row = (int64_t)item.row * args.r.br + i;
    if (row >= out.m) return;
    bool vector = args.vector_store && j + COUNT <= out.n;
#pragma unroll
    for (int e = 0; e < COUNT; e++) {
        if (j + e >= out.n) break;
        y[e] = sat_epilogue_apply(out, row, j + e, y[e]);
        if (!vector) sat_store_from(y[e], out.dtype, out.c, row * out.row_stride + (j + e) * out.col_stride);
    }
    if (vector) store_vector(out.dtype, out.c, row * out.row_stride + j, y);
}

// Adds the accumulators of the KS warps of the same tile, in their order; each of them stores a part of the vectors.
template <typename S, bool TRANSPOSED>
__device__ __forceinline__ void reduce_warps(const kernel_args &args, const sat_epilogue &out,
                                             const sat_work_item &item, const float *sums, int warp) {
    constexpr int VECTOR = 32 * S::vector, WARP = S::vectors * VECTOR; // floats of all lanes
    int lane = threadIdx.x % 32, at_c = warp % (S::RW * S::CW), rw = at_c % S::RW, cw = at_c / S::RW;
    sums += at_c * WARP + lane * S::vector;
#pragma unroll 1
    for (int u = warp / (S::RW * S::CW); u < S::vectors; u += S::KS) {
        float y[S::vector] = {};
#pragma unroll
        for (int k = 0; k < S::KS; k++)
#pragma unroll
            for (int e = 0; e < S::vector; e++) y[e] += sums[k * S::RW * S::CW * WARP + u * VECTOR + e];
        vector_position<S> at(u);
        int row = ((int)blockIdx.y * S::RW + rw) * 16 * S::MT + row_of<S, TRANSPOSED>(at.i, at.h);
        store(args, out, item, row, cw * 8 * S::NT + lane % 4 * 2 * S::NT + at.c, y);
    }
}

// ---- kernel: blockIdx.x is a work item, .y a tile of its rows, .z a matrix of the batch

template <typename MATH, typename S, bool TRANSPOSED, bool ROW_MAJOR>
static __global__ void __launch_bounds__(S::warps * 32, S::on_sm) multiply(const __grid_constant__ kernel_args args) {
    extern __shared__ __align__(16) float sums[];
    sat_work_item item = sat_work_item_at(args.r, args.work.item, blockIdx.x);
    int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    float acc[S::MT][S::NT][4] = {};
    if (args.general) multiply_item<MATH, S, TRANSPOSED, ROW_MAJOR, true>(acc, args, item, warp);
    else multiply_item<MATH, S, TRANSPOSED, ROW_MAJOR, false>(acc, args, item, warp);
    store_shared<S>(acc, sums + warp * S::vectors * 32 * S::vector + threadIdx.x % 32 * S::vector);
    __syncthreads();
    sat_epilogue out = args.out;
    out.c = (char *)out.c + blockIdx.z * args.c_batch_stride;
    reduce_warps<S, TRANSPOSED>(args, out, item, sums, warp);
}

// ---- host: instances

struct instance {
    sat_dtype dtype;
    int tile_n, threads, shared;
    void (*run[2][2])(kernel_args); // [op(A) = A^T][B's rows in chunks, else its columns]
};

template <typename MATH, typename S> static constexpr instance instance_of() {
    return {MATH::dtype,
            S::columns,
            S::warps * 32,
            S::shared,
            {{multiply<MATH, S, false, false>, multiply<MATH, S, false, true>},
             {multiply<MATH, S, true, false>, multiply<MATH, S, true, true>}}};
}

static const instance instances[] = {
    instance_of<sat_f16_math, shape<2, 2, 2, 1, 4>>(),  // 64x16
    instance_of<sat_f16_math, shape<2, 4, 2, 1, 4>>(),  // 64x32
    instance_of<sat_bf16_math, shape<2, 2, 2, 1, 4>>(), // 64x16
    instance_of<sat_bf16_math, shape<2, 4, 2, 1, 4>>(), // 64x32
};

static const instance *find(const sat_variant *v) {
    for (const instance &i : instances)
        if (i.dtype == v->instance.dtype && i.tile_n == v->instance.tile_n) return &i;
    return NULL;
}

static bool is_split(const sat_variant *v) { return v->instance.option == 1; }

// B's rows in chunks of a lane's columns, all inside the matrix.
static bool row_chunks(const sat_variant *v, const sat_problem *p) {
    int64_t each = sat_min(4, v->instance.tile_n / 8), batch = p->batch > 1 ? p->b.batch_stride : 0;
    return p->b.col_stride == 1 && p->b.row_stride % each == 0 && batch % each == 0 && p->n % each == 0 &&
           (p->b_align ? p->b_align : 2) >= 2 * each;
}

// B's columns in chunks of 8 elements.
static bool column_chunks(const sat_problem *p) {
    int64_t batch = p->batch > 1 ? p->b.batch_stride : 0;
    return p->b_align >= 16 && p->b.row_stride == 1 && (p->n == 1 || p->b.col_stride % 8 == 0) && batch % 8 == 0;
}

static auto kernel_of(const sat_variant *v, const sat_problem *p) {
    return find(v)->run[p->matmul.transpose == SAT_TRANSPOSE][row_chunks(v, p) && !column_chunks(p)];
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    int64_t tile_n = v->instance.tile_n;
    sat_rows r = sat_op_rows(p, a);
    if (p->a_dtype != v->instance.dtype || p->n > tile_n || (tile_n > 8 && p->n <= tile_n / 2)) return false;
    if (r.br % v->instance.tile_m || r.bc % 16 || r.br > 8192 || r.bc > 8192 || r.k > INT32_MAX / 2) return false;
    if (r.count > 1 << 30 || p->batch > 65535) return false; // the grid's limits
    if (p->b.row_stride > 1 << 26 || p->a_align < 16 || (p->batch > 1 && p->a.batch_stride % 8)) return false;
    if (!row_chunks(v, p) && !column_chunks(p)) return false;
    return !is_split(v) || skinny_schedule_helps(p, a, skinny_share(v, &r, d));
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    return skinny_estimate(v, p, a, d, is_split(v));
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    return skinny_workspace(v, p, a, d, is_split(v));
}

static sat_status prepare(const sat_prepare *l, void **state) {
    const sat_variant *v = l->variant;
    return skinny_prepare(l, kernel_of(v, l->problem), find(v)->shared, is_split(v), state);
}

static bool vector_store(const sat_variant *v, const sat_problem *p) {
    int64_t each = v->instance.tile_n == 8 ? 2 : 4, batch = p->batch > 1 ? p->c.batch_stride : 0;
    return p->c.col_stride == 1 && p->c.row_stride % each == 0 && batch % each == 0 &&
           p->c_align >= (uint32_t)each * sat_dtype_size(p->c_dtype) && p->c_dtype != SAT_F64;
}

static kernel_args args_of(const sat_launch *l) {
    const sat_problem *p = l->problem;
    kernel_args args = {};
    args.r = sat_device_rows(p, l->pattern), args.out = sat_epilogue_of(l);
    args.work = l->state ? *(const sat_device_schedule *)l->state : sat_whole_rows_schedule(&args.r);
    args.values = l->operands[0], args.b = l->operands[1];
    args.b_row_stride = (int)p->b.row_stride * 2, args.b_col_stride = p->b.col_stride * 2;
    args.a_batch_stride = p->a.batch_stride, args.b_batch_stride = p->b.batch_stride;
    args.c_batch_stride = p->c.batch_stride * (int64_t)sat_dtype_size(p->c_dtype);
    args.bc = (int)args.r.bc, args.k = (int)args.r.k;
    args.general = args.r.k % args.r.bc != 0 || args.r.bc % 64 != 0;
    args.block_bytes = (int)args.r.block_elements * 2, args.k_stride = (int)args.r.col_step * 2;
    args.rows8_stride = (int)args.r.row_step * 16;
    args.bc_log2 = args.bc & (args.bc - 1) ? -1 : __builtin_ctz((unsigned)args.bc);
    args.step_blocks = 64 / args.bc, args.step_columns = 64 % args.bc;
    args.vector_store = vector_store(l->variant, p);
    return args;
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    if (p->m == 0 || p->n == 0) return SAT_OK;
    const instance *i = find(l->variant);
    auto run = kernel_of(l->variant, p);
    return skinny_launch_batch(l, args_of(l), [&](const kernel_args &args, unsigned batch) {
        dim3 grid((unsigned)args.work.items, (unsigned)(args.r.br / l->variant->instance.tile_m), batch);
        run<<<grid, i->threads, i->shared, (cudaStream_t)l->stream>>>(args);
        return sat_launched(l);
    });
}

SAT_FAMILY(cuda_matmul_skinny_direct) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .flags = SAT_V_BATCHED,
    .about =
        "9 to 32 columns by tensor cores, from memory straight to registers (f16, bf16; block sides of 16 and more)",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_state,
};
