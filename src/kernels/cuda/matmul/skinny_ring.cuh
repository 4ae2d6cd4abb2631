/* The device side of cuda_matmul_skinny up to its sums: a warp's ring of stages in shared memory, and the products. */
#ifndef SAT_SKINNY_RING_CUH
#define SAT_SKINNY_RING_CUH

#include "kernels/cuda/common/scheduler.h"
#include "kernels/cuda/common/ptx.cuh"

enum { WARPS = 4, MOST_SHARED = 96 << 10 };
enum order { ROWS, COLUMNS, ANY }; /* B's rows or columns in chunks of 16 bytes, or element by element */

template <int MT, int NT> struct shape {
    static constexpr int rows = 16 * MT, columns = 8 * NT, depth = MT * NT == 32 ? 32 : 64; /* depth: k of a stage */
    static constexpr int a_bytes = rows * depth * 2, bytes = a_bytes + columns * depth * 2;
    static constexpr int fit = MOST_SHARED / (WARPS * bytes), stages = fit < 4 ? fit : 4, ring = stages * bytes;
    static constexpr int on_sm = (227 << 10) / (WARPS * ring + 1024), ctas = on_sm < 4 ? on_sm : 4;
    static_assert((rows + 4) * (columns + 4) * 4 <= ring, "a warp's sums take the place of its ring");
};

struct job {
    sat_rows r;
    sat_epilogue out;
    sat_device_schedule w;
    const void *values, *b;
    int64_t b_row, b_col, a_batch, b_batch, c_batch;
    int bc, area;                 /* columns of a block of op(A), elements of a block */
    unsigned inverse;             /* 65536 / bc, rounded up: exact for the first stages, which are below 256 columns */
    int step_blocks, step_inside; /* a warp's way from one stage to its next: WARPS * depth columns */
    order b_order;
    bool turned, ragged, wide; /* op(A) is the transpose; k ends inside a block; C takes four elements at once */
};

/* ---- shared memory: rows of P chunks of 16 bytes, mixed so that 8 rows have a chunk in 8 different groups of banks
 * ----
 */

template <int P> __device__ __forceinline__ constexpr uint32_t mixed(int row) { return row / (8 / P) & (P - 1); }

template <int P> __device__ __forceinline__ uint32_t place(int row, int chunk) {
    return (uint32_t)row * P * 16 + (chunk ^ mixed<P>(row)) * 16;
}

/* From a place to that `down` rows below it; the rows' numbers have no bit in common, and slots begin at multiples of
 * 128. So the places of a loop need no registers of their own. */
template <int P> __device__ __forceinline__ uint32_t below(uint32_t place, int down) {
    return (place ^ mixed<P>(down) * 16) + down * P * 16;
}

__device__ __forceinline__ int clamp(int x, int most) { return x < 0 ? 0 : x > most ? most : x; }

/* COUNT rows of DEPTH k each; `from` is row 0 at this lane's chunk of 8 k. */
template <int DEPTH, int COUNT, typename T>
__device__ __forceinline__ void copy_along(uint32_t to, const T *from, int64_t step, int bytes, int count) {
    constexpr int P = DEPTH / 8, APART = 32 / P;
    int lane = threadIdx.x % 32, row = lane / P;
    to += place<P>(row, lane % P), from += row * step, step *= APART, count -= row;
#pragma unroll
    for (int i = 0; i < COUNT / APART; i++, from += step)
        cp_async_16(below<P>(to, i * APART), from, i * APART < count ? bytes : 0);
}

/* DEPTH rows, one a k, of P chunks; `from` is this lane's first k and its chunk, `left` the number of k from it on. */
template <int DEPTH, int P, typename T>
__device__ __forceinline__ void copy_across(uint32_t to, const T *from, int64_t step, int left, int bytes) {
    constexpr int EACH = DEPTH * P / 32;
    int lane = threadIdx.x % 32;
    to += place<P>(lane / P * EACH, lane % P);
#pragma unroll
    for (int i = 0; i < EACH; i++, from += step) cp_async_16(below<P>(to, i), from, i < left ? bytes : 0);
}

/* As columns of k, whatever the strides are: `from` is this lane's first k. */
template <int DEPTH, typename T>
__device__ __forceinline__ void gather(char *to, const T *from, int64_t row_step, int64_t col_step, int left, int n) {
    constexpr int EACH = DEPTH / 32;
    int k = threadIdx.x % 32 * EACH;
#pragma unroll 4
    for (int j = 0; j < n; j++)
#pragma unroll
        for (int i = 0; i < EACH; i++)
            *(T *)(to + place<DEPTH / 8>(j, k / 8) + (k % 8 + i) * 2) =
                i < left ? from[i * row_step + j * col_step] : T(0);
}

/* ---- a warp's way along a piece of a row ---- */

/* Where a lane's k of the next stage are: 8 or 16 at most, which never reach over the end of a block. */
struct walker {
    int block, k; /* counted from the piece's first block; k within that block */

    __device__ __forceinline__ void begin(const job &x, int first) {
        block = (int)(first * x.inverse >> 16), k = first - block * x.bc;
    }
    __device__ __forceinline__ void advance(const job &x) {
        block += x.step_blocks, k += x.step_inside;
        if (k >= x.bc) k -= x.bc, block++;
    }
    /* How many k there are from here on, in the block and in the matrix. */
    __device__ __forceinline__ int left(const job &x, int64_t col) const {
        return (int)sat_min(x.bc, x.r.k - col * x.bc) - k;
    }
};

/* A lane's first k of a stage, in each of the ways to copy one. */
template <int DEPTH> __device__ __forceinline__ int first_along() { return threadIdx.x % (DEPTH / 8) * 8; }
template <int DEPTH, int P> __device__ __forceinline__ int first_across() {
    return threadIdx.x % 32 / P * (DEPTH * P / 32);
}

template <typename MATH, int MT, int NT> struct ring {
    typedef shape<MT, NT> S;
    typedef typename MATH::element T;
    const job &x;
    const int32_t *cols; /* of the piece */
    int64_t first;
    int count;
    const T *values, *b; /* values: from this CTA's first row on */
    walker at_a, at_b, at_col;

    __device__ __forceinline__ void begin() {
        int start = threadIdx.x / 32 * S::depth;
        at_a.begin(x, start + (x.turned ? first_across<S::depth, 2 * MT>() : first_along<S::depth>()));
        at_b.begin(x, start + (x.b_order == ROWS      ? first_across<S::depth, NT>()
                               : x.b_order == COLUMNS ? first_along<S::depth>()
                                                      : first_across<S::depth, 1>()));
        at_col = at_b;
    }

    __device__ __forceinline__ int32_t next_column() {
        int32_t col = at_col.block < count ? cols[at_col.block] : 0;
        at_col.advance(x);
        return col;
    }

    __device__ __forceinline__ void fetch_a(uint32_t to) {
        bool real = at_a.block < count;
        const T *from = values + (real ? sat_block_of(&x.r, first + at_a.block) * x.area : 0);
        if (x.turned) {
            int left = real ? at_a.left(x, x.ragged ? cols[at_a.block] : 0) : 0;
            from += at_a.k * x.r.col_step + threadIdx.x % (2 * MT) * 8;
            copy_across<S::depth, 2 * MT>(to, from, x.r.col_step, left, 16);
        } else if (x.ragged) {
            int left = real ? at_a.left(x, cols[at_a.block]) : 0;
            copy_along<S::depth, S::rows>(to, from + at_a.k, x.bc, clamp(2 * left, 16), S::rows);
        } else {
            copy_along<S::depth, S::rows>(to, from + at_a.k, x.bc, real ? 16 : 0, S::rows);
        }
        at_a.advance(x);
    }

    __device__ __forceinline__ void fetch_b(char *slot, int32_t col) {
        int left = at_b.block < count ? at_b.left(x, col) : 0, n = (int)x.out.n, chunk = threadIdx.x % NT * 8;
        const T *from = b + (left > 0 ? col * (int64_t)x.bc + at_b.k : 0) * x.b_row;
        uint32_t to = smem_address(slot);
        if (x.b_order == ROWS)
            copy_across<S::depth, NT>(to, from + (chunk < n ? chunk : 0), x.b_row, left, clamp(2 * (n - chunk), 16));
        else if (x.b_order == COLUMNS) copy_along<S::depth, S::columns>(to, from, x.b_col, clamp(2 * left, 16), n);
        else gather<S::depth>(slot, from, x.b_row, x.b_col, left, n);
        at_b.advance(x);
    }
};

/* ---- products */

/* Both kinds in one straight run of instructions, so that loads overlap with products. */
__device__ __forceinline__ void load_fragment(uint32_t (&r)[4], uint32_t from, int turned) {
    asm volatile("{\n .reg .pred p;\n setp.ne.s32 p, %5, 0;\n"
                 " @p ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 " @!p ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n}"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from), "r"(turned)
                 : "memory");
}

/* Where a lane finds its part of a fragment, and how far apart fragments are: `flip` is or-ed exclusively, `skip`
 * added, for a step of 16 rows of C, or of 16 columns, and for a step of 16 k. */
struct fragments {
    uint32_t lane, flip, skip, k_flip, k_skip;
    int turned;
    __device__ __forceinline__ void load(uint32_t (&r)[4], uint32_t slot, int i, int k) const {
        load_fragment(r, (slot + lane ^ i * flip ^ k * k_flip) + i * skip + k * k_skip, turned);
    }
};

/* Tiles that lie along k (P chunks in a row of k), or across it (Q chunks in a row of the other side). Of four 8x8
 * matrices the second is below the first in A, and right of it in B: `second` is its bit in the lane's number. */
template <int P, int Q> __device__ __forceinline__ fragments fragments_of(bool turned, int second) {
    int lane = threadIdx.x % 32, outer = lane / second % 2, k = lane / (24 - second) % 2, in = lane % 8;
    fragments f = {place<P>(outer * 8 + in, k), 0, P * 256, 32, 0, turned};
    if (turned) f.lane = place<Q>(k * 8 + in, outer), f.flip = 32, f.skip = 0, f.k_flip = 0, f.k_skip = Q * 256;
    return f;
}

/* With 8 columns of B, a load brings 32 k of them. */
template <int P> __device__ __forceinline__ fragments narrow_fragments(bool turned) {
    int lane = threadIdx.x % 32;
    fragments f = {place<P>(lane % 8, lane / 8), 0, 0, 32, 0, turned};
    if (turned) f.lane = lane * 16, f.k_flip = 0, f.k_skip = 256;
    return f;
}

template <typename MATH, int MT, int NT>
__device__ __forceinline__ void multiply_stage(float (&sum)[MT][NT][4], uint32_t slot, const fragments &a,
                                               const fragments &b) {
    typedef shape<MT, NT> S;
    uint32_t fb[(NT + 1) / 2][4];
#pragma unroll
    for (int k = 0; k < S::depth / 16; k++) {
#pragma unroll
        for (int j = 0; j < (NT + 1) / 2; j++)
            if (NT > 1 || k % 2 == 0) b.load(fb[j], slot + S::a_bytes, j, k);
#pragma unroll
        for (int i = 0; i < MT; i++) {
            uint32_t fa[4];
            a.load(fa, slot, i, k);
#pragma unroll
            for (int j = 0; j < NT; j++) {
                int at = NT == 1 ? k % 2 * 2 : j % 2 * 2;
                MATH::multiply(sum[i][j], fa, fb[j / 2][at], fb[j / 2][at + 1]);
            }
        }
    }
}

/* The sums of this warp's share of the piece. The values of a ring's worth of stages go first, since B waits for the
 * column indices; those come a ring's worth ahead. */
template <typename MATH, int MT, int NT>
__device__ __forceinline__ void multiply_share(float (&sum)[MT][NT][4], ring<MATH, MT, NT> &g, char *memory,
                                               int stages) {
    typedef shape<MT, NT> S;
    constexpr int AHEAD = S::stages;
    fragments a = fragments_of<S::depth / 8, 2 * MT>(g.x.turned, 8);
    fragments b = NT == 1 ? narrow_fragments<S::depth / 8>(g.x.b_order == ROWS)
                          : fragments_of<S::depth / 8, NT>(g.x.b_order == ROWS, 16);
    g.begin();
    int32_t col[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) col[i] = g.next_column();
    int mine = (int)((stages + WARPS - 1 - threadIdx.x / 32) / WARPS), slot = 0;
#pragma unroll 1
    for (int i = -2 * AHEAD; i < mine; i++) {
        char *at = memory + slot;
        if (i >= 0) {
            cp_async_wait_group<AHEAD - 1>();
            __syncwarp();
            multiply_stage<MATH, MT, NT>(sum, smem_address(at), a, b);
            __syncwarp(); /* all lanes have read what is now overwritten */
        }
        bool first = i < -AHEAD;
        if (i + (first ? 2 : 1) * AHEAD < mine && (first || i >= 0)) g.fetch_a(smem_address(at));
        if (!first) {
            if (i + AHEAD < mine) g.fetch_b(at + S::a_bytes, col[0]);
            cp_async_commit_group();
#pragma unroll
            for (int c = 1; c < AHEAD; c++) col[c - 1] = col[c];
            col[AHEAD - 1] = g.next_column();
        }
        slot = slot == S::ring - S::bytes ? 0 : slot + S::bytes;
    }
}

#endif
