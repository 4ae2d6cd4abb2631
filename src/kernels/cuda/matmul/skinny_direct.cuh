/* The device side of cuda_matmul_skinny_direct up to its sums. Values and B go from memory straight into the registers
 * of mma.m16n8k16: a product does not care which k comes where as long as both sides agree, nor do sums care which row
 * or column they are until they are stored. So lane 4*g + t takes k 8t to 8t+7 of every 32, in loads as wide as the
 * layout allows: no shared memory, no barrier. A warp asks for a chunk of 64 k at once and multiplies when it is there;
 * many warps keep memory busy. (Deeper prefetch in registers does not help: the compiler waits for all loads at once;
 * telling L2 of blocks ahead cost more than it brought.) */
#ifndef SAT_SKINNY_DIRECT_CUH
#define SAT_SKINNY_DIRECT_CUH

#include "kernels/cuda/common/scheduler.h"
#include "kernels/cuda/common/ptx.cuh"

/* A warp has 16*MT rows and 8*NT columns of C; RW warps lie below each other, CW beside each other, and KS share out k,
 * in chunks of 64. */
template <int MT_, int NT_, int RW_, int CW_, int KS_> struct shape {
    static constexpr int MT = MT_, NT = NT_, RW = RW_, CW = CW_, KS = KS_;
    static constexpr int rows = 16 * MT * RW, columns = 8 * NT * CW, warps = RW * CW * KS;
    static constexpr int side = NT == 1 ? 2 : 4;     /* floats that go through shared memory together */
    static constexpr int units = MT * 4 * NT / side; /* of these, in a lane */
    static constexpr int shared = warps * units * 32 * side * 4;
    static constexpr int on_sm = 16 / warps;             /* CTAs, as registers allow */
    static constexpr int b_words = NT == 1 ? 8 : 4 * NT; /* of 32 k */
};

struct job {
    sat_rows r;
    sat_epilogue out;
    sat_device_schedule w;
    const void *values, *b;
    int64_t b_col, a_batch, b_batch, c_batch;
    int b_row, area_bytes;    /* bytes from a row of B to the next, and of a block */
    int k_bytes, rows8_bytes; /* in a block of op(A), to the next k and to the eighth row below */
    int bc, k;                /* columns of a block of op(A), and of op(A) */
    int shift;                /* 2^shift is bc; -1: no such */
    int step_blocks, step_k;  /* 64 k further: blocks, and k beyond those */
    bool general;             /* chunks of 64 k do not lie within blocks, or k ends inside a block */
    bool wide;                /* C takes a lane's neighbouring columns at once */
};

/* ---- loads: under a predicate and never under a branch, so that the compiler keeps their waits apart ---- */

__device__ __forceinline__ void load_once(uint32_t *r, const void *from, bool wanted) { /* no one else reads these */
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

/* ---- a warp's way along a piece of a row ---- */

/* 8 k of a lane, which never reach over the end of a block; only half of a chunk's 64. */
template <typename S> struct share {
    uint32_t a[8 * S::MT], b[S::b_words];
    int left; /* how many of the 8 there are; only if GENERAL */
};

/* A lane's part of the products: TURNED if op(A) is the transpose; ROWS if B's rows are in chunks of NT elements, else
 * its columns are in chunks of 8. GENERAL if a half's place must be found apart from the other's, or k may end in it.
 */
template <typename S, bool TURNED, bool ROWS, bool GENERAL> struct reader {
    const job &x;
    const int32_t *cols;    /* of the piece */
    const int64_t *blocks;  /* of the piece, if TURNED */
    const char *values, *b; /* from this lane's first row, and first column, on */
    int count, column;      /* of blocks, in the piece; the warp's first */
    int known;              /* the first block whose column some lane knows, and 31 after it */
    int32_t col, at;        /* column and place of block `known` + lane */
    int block[2], k[2];     /* of the next chunk's halves */

    /* Lanes ask for the columns of 32 blocks, and give them to each other. */
    __device__ __forceinline__ void know(int from) {
        int lane = threadIdx.x % 32, i = from + lane < count ? from + lane : count - 1;
        known = from, col = __ldg(cols + i);
        if (TURNED) at = (int)__ldg(blocks + i);
    }

    __device__ __forceinline__ void begin(int chunk) {
        int first = chunk * 64 + threadIdx.x % 4 * 8;
#pragma unroll
        for (int h = 0; h < 1 + GENERAL; h++, first += 32) {
            block[h] = x.shift >= 0 ? first >> x.shift : first / x.bc;
            k[h] = first - block[h] * x.bc;
        }
        know(__shfl_sync(0xffffffffu, block[0], 0));
    }

    __device__ __forceinline__ void advance() {
#pragma unroll
        for (int h = 0; h < 1 + GENERAL; h++) {
            block[h] += x.step_blocks, k[h] += x.step_k;
            if (k[h] >= x.bc) k[h] -= x.bc, block[h]++;
        }
    }

    __device__ __forceinline__ int from_lane(int what, int block) const {
        return __shfl_sync(0xffffffffu, what, block - known);
    }

    /* Before a chunk is asked for: do the lanes know the columns of all its blocks? At most 5, of 16 k. */
    __device__ __forceinline__ void look_ahead() {
        int first = __shfl_sync(0xffffffffu, block[0], 0);
        if (first - known > 32 - 5) know(first);
    }

    __device__ __forceinline__ void load_a(share<S> &s, int h, bool wanted) const {
        int i = block[GENERAL * h], inside = k[GENERAL * h] + (GENERAL ? 0 : h * 32);
        if (GENERAL && i >= count) i = count - 1;
        const char *from = values + (int64_t)(TURNED ? from_lane(at, i) : i) * x.area_bytes + inside * x.k_bytes;
        if constexpr (TURNED) {
#pragma unroll
            for (int e = 0; e < 8; e++) load<4 * S::MT>(s.a + e * S::MT, from + (int64_t)e * x.k_bytes, wanted);
        } else {
#pragma unroll
            for (int e = 0; e < 2 * S::MT; e++) {
                if (S::CW == 1) load_once(s.a + e * 4, from + (int64_t)e * x.rows8_bytes, wanted);
                else load<16>(s.a + e * 4, from + (int64_t)e * x.rows8_bytes, wanted);
            }
        }
    }

    __device__ __forceinline__ void load_b(share<S> &s, int h, bool wanted) const {
        int i = block[GENERAL * h], row = from_lane(col, i) * x.bc + k[GENERAL * h] + (GENERAL ? 0 : h * 32), last = 7;
        if (GENERAL) { /* what is not there comes as the last row that is */
            s.left = i >= count || row >= x.k ? 0 : row + 8 <= x.k ? 8 : x.k - row;
            if (s.left == 0) row = 0;
            last = s.left > 0 ? s.left - 1 : 0;
        }
        const char *from = b + (int64_t)row * x.b_row;
        if constexpr (ROWS) {
#pragma unroll
            for (int e = 0; e < 8; e++)
                load<2 * S::NT>(s.b + e * S::b_words / 8, from + (int64_t)(e < last ? e : last) * x.b_row, wanted);
        } else {
            int mine = column + threadIdx.x % 32 / 4 * S::NT, most = (int)x.out.n - 1;
#pragma unroll
            for (int j = 0; j < S::NT; j++) {
                const char *column = from + (mine + j < most ? mine + j : most) * x.b_col;
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

    /* Pairs of k: w of 0 to 3 has k 2w and 2w+1 of the lane's. h of 0 and 1 are the two rows of a lane in tile i. */
    static __device__ __forceinline__ uint32_t pair_a(const share<S> &s, int i, int h, int w) {
        if (!TURNED) return s.a[(i * 2 + h) * 4 + w];
        uint32_t x = s.a[2 * w * S::MT + i], y = s.a[(2 * w + 1) * S::MT + i];
        return h ? high_halves(x, y) : low_halves(x, y);
    }
    static __device__ __forceinline__ uint32_t pair_b(const share<S> &s, int j, int w) {
        if (!ROWS) return s.b[j * 4 + w];
        constexpr int STEP = S::b_words / 8;
        uint32_t x = s.b[2 * w * STEP + j / 2], y = s.b[(2 * w + 1) * STEP + j / 2];
        return j % 2 ? high_halves(x, y) : low_halves(x, y);
    }
};

template <typename S, bool TURNED> __device__ __forceinline__ int row_of(int i, int h) { /* among the warp's */
    int g = threadIdx.x % 32 / 4;
    return TURNED ? g * 2 * S::MT + 2 * i + h : i * 16 + h * 8 + g;
}

/* ---- products ---- */

/* Which of k 2w and 2w+1 count: padding may hold anything, and so may what came in B's place. */
__device__ __forceinline__ uint32_t mask_of(int left, int w) {
    return left >= 2 * w + 2 ? 0xffffffffu : left == 2 * w + 1 ? 0xffffu : 0;
}

template <typename MATH, typename S, bool TURNED, bool ROWS, bool GENERAL>
__device__ __forceinline__ void multiply_half(float (&sum)[S::MT][S::NT][4], const share<S> &s) {
    typedef reader<S, TURNED, ROWS, GENERAL> R;
#pragma unroll
    for (int q = 0; q < 2; q++) {
        uint32_t fa[S::MT][4], fb[S::NT][2];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int w = 2 * q + e / 2;
            uint32_t mask = GENERAL ? mask_of(s.left, w) : 0xffffffffu;
#pragma unroll
            for (int i = 0; i < S::MT; i++) fa[i][e] = R::pair_a(s, i, e % 2, w) & mask;
#pragma unroll
            for (int j = 0; j < S::NT; j++) fb[j][e / 2] = R::pair_b(s, j, w) & mask;
        }
#pragma unroll
        for (int i = 0; i < S::MT; i++)
#pragma unroll
            for (int j = 0; j < S::NT; j++) MATH::multiply(sum[i][j], fa[i], fb[j][0], fb[j][1]);
    }
}

/* The sums of this warp's share of the piece: chunks `chunk` to `end` - 1, at least one. The values of the first are
 * asked for before the columns are there, which B waits for. */
template <typename MATH, typename S, bool TURNED, bool ROWS, bool GENERAL>
__device__ __forceinline__ void multiply_share(float (&sum)[S::MT][S::NT][4], reader<S, TURNED, ROWS, GENERAL> &from,
                                               int chunk, int end) {
    share<S> s[2] = {};
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
            multiply_half<MATH, S, TURNED, ROWS, GENERAL>(sum, s[h]);
            from.load_a(s[h], h, more);
            from.load_b(s[h], h, more);
        }
    }
}

#endif
