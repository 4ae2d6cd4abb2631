/* A tile of a dense operand in shared memory: LINES (rows of the left operand, columns of the right one) by DEPTH steps
 * of k, in the storage order that it has in global memory, filled by asynchronous copies of 16 bytes and read as the
 * fragments of matrix products. Rows are padded so that neither meets a bank twice. */
#ifndef SAT_TILE_CUH
#define SAT_TILE_CUH

#include "kernels/cuda/common/ptx.cuh"

/* ALONG: k is contiguous, and the tile has a row for each line; else lines are, and it has one for each step of k. */
template <typename T, int LINES, int DEPTH, bool ALONG> struct sat_tile {
    static constexpr int SIZE = (int)sizeof(T), WIDE = 16 / SIZE; /* elements of one copy */
    static constexpr int ROWS = ALONG ? LINES : DEPTH, COLS = ALONG ? DEPTH : LINES;
    /* Fragments of 16-bit elements are read as rows of 16 bytes: an odd number of those from row to row. Wider elements
     * are read one by one, 4 steps by 8 lines: 4 (or 8, with a row for each step) words or 4 doubles past a whole round
     * of the banks. */
    static constexpr int PITCH = COLS * SIZE + (SIZE == 2 || (SIZE == 4 && ALONG) ? 16 : 32); /* bytes */
    static constexpr int BYTES = ROWS * PITCH;
    static constexpr int LINE_STEP = ALONG ? PITCH : SIZE, K_STEP = ALONG ? SIZE : PITCH; /* bytes */

    /* Fills the tile at `to` with steps k0.. of the `lines` that exist; what does not exist becomes zero. line_at[i]:
     * bytes from base to line i (where lines are contiguous, those of one copy must be). k_step: bytes from step to
     * step. */
    template <int THREADS>
    __device__ static __forceinline__ void fill(uint32_t to, const char *base, const int64_t *line_at, int lines,
                                                int64_t k_step, int64_t k0, int64_t k) {
        static_assert(ROWS * COLS / WIDE % THREADS == 0 || ROWS * COLS / WIDE < THREADS, "whole rounds of copies");
        static_assert(THREADS % (COLS / WIDE) == 0, "a thread keeps its columns");
        if (ROWS * COLS / WIDE < THREADS && threadIdx.x >= ROWS * COLS / WIDE) return;
        if (lines == LINES && k0 + DEPTH <= k) copy<THREADS, true>(to, base, line_at, lines, k_step, k0, k);
        else copy<THREADS, false>(to, base, line_at, lines, k_step, k0, k);
    }

  private:
    /* WHOLE: everything exists, as nearly always. */
    template <int THREADS, bool WHOLE>
    __device__ static __forceinline__ void copy(uint32_t to, const char *base, const int64_t *line_at, int lines,
                                                int64_t k_step, int64_t k0, int64_t k) {
        constexpr int PER = COLS / WIDE, STEP = THREADS / PER, ROUNDS = (ROWS + STEP - 1) / STEP;
        int row = threadIdx.x / PER, col = threadIdx.x % PER * WIDE;
        if (PER == 4 && STEP % 8 == 0) row = row / 8 * 8 + row % 8 / 2 + row % 2 * 4; /* half rows: banks that differ */
        int64_t left = ALONG ? k - k0 - col : lines - col;
        int valid = WHOLE || left >= WIDE ? 16 : left > 0 ? (int)left * SIZE : 0;
        const char *from = base + (ALONG ? (k0 + col) * SIZE : line_at[col] + (k0 + row) * k_step);
        const char *source[ROUNDS]; /* all of them first: a load and an asynchronous copy in turns would wait */
#pragma unroll
        for (int i = 0; i < ROUNDS; i++) source[i] = from + (ALONG ? line_at[row + i * STEP] : i * STEP * k_step);
        to += row * PITCH + col * SIZE;
#pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            if (WHOLE) {
                cp_async_16(to + i * STEP * PITCH, source[i]);
                continue;
            }
            bool real = valid > 0 && (ALONG ? row + i * STEP < lines : k0 + row + i * STEP < k);
            cp_async_16(to + i * STEP * PITCH, real ? source[i] : base, real ? valid : 0);
        }
    }
};

/* ---- fragments ---- */

/* The products of ptx.cuh as one shape: 16 x 8, K steps at once; a has 4 words a lane, b two, c four sums. */
template <typename MATH> struct sat_product {
    typedef uint32_t word;
    typedef float sum;
    static constexpr int K = sizeof(typename MATH::element) == 2 ? 16 : 8;
    __device__ static __forceinline__ void multiply(sum (&c)[4], const word (&a)[4], word b0, word b1) {
        MATH::multiply(c, a, b0, b1);
    }
};

template <> struct sat_product<sat_f64_math> {
    typedef double word, sum;
    static constexpr int K = 8;
    __device__ static __forceinline__ void multiply(sum (&c)[4], const word (&a)[4], word b0, word b1) {
#if __CUDA_ARCH__ >= 900
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
                     : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b0), "d"(b1));
#else
        double low[2] = {c[0], c[1]}, high[2] = {c[2], c[3]};
        sat_f64_math::multiply(low, a[0], b0), sat_f64_math::multiply(low, a[2], b1);
        sat_f64_math::multiply(high, a[1], b0), sat_f64_math::multiply(high, a[3], b1);
        c[0] = low[0], c[1] = low[1], c[2] = high[0], c[3] = high[1];
#endif
    }
};

__device__ __forceinline__ uint32_t sat_load_word(uint32_t, uint32_t from) { /* f32 as TF32 */
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
    return sat_tf32_math::round(x);
}
__device__ __forceinline__ double sat_load_word(double, uint32_t from) {
    double x;
    asm volatile("ld.shared.f64 %0, [%1];" : "=d"(x) : "r"(from) : "memory");
    return x;
}

/* Fragments of a tile: 16 lines by K steps, in four quarters of 8 lines by K/2 steps. LEFT (a): the quarters come lines
 * first; else (b) steps first, so that two of them make the b of one product. */
template <typename MATH, typename TILE, bool ALONG, bool LEFT> struct sat_fragments {
    typedef sat_product<MATH> product;
    typedef typename product::word word;
    static constexpr int LINE = TILE::LINE_STEP, STEP = TILE::K_STEP;

    /* What a lane adds to every address. */
    __device__ static __forceinline__ uint32_t lane() {
        uint32_t l = threadIdx.x % 32;
        if (TILE::SIZE > 2) return l / 4 * LINE + l % 4 * STEP;
        uint32_t half = l / 8 % 2 * 8, other = l / 16 * 8;
        return (LEFT ? half : other) * LINE + (LEFT ? other : half) * STEP + l % 8 * (ALONG ? LINE : STEP);
    }

    /* The fragment at `at`: the tile, lane(), and LINE and STEP times where it begins. */
    __device__ static __forceinline__ void load(word (&r)[4], uint32_t at) {
        if constexpr (TILE::SIZE == 2 && ALONG) ldmatrix_x4(r, at);
        else if constexpr (TILE::SIZE == 2) ldmatrix_x4_trans(r, at);
        else {
#pragma unroll
            for (int q = 0; q < 4; q++) {
                int lines = (LEFT ? q % 2 : q / 2) * 8, steps = (LEFT ? q / 2 : q % 2) * (product::K / 2);
                r[q] = sat_load_word(word(), at + lines * LINE + steps * STEP);
            }
        }
    }
};

#endif
