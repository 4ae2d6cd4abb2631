/* A warp that multiplies on its own: two operand tiles in shared memory that belong to it alone, filled from operands
 * of any strides and alignment or from patches of stored blocks, and the product of the two by mma.sync. It waits for
 * no other warp. Small problems have too few tiles for a pipeline; here many independent warps hide the latency, each
 * with its own part of k, and their sums are added at the end (warp_sums). */
#ifndef SAT_WARP_TILE_CUH
#define SAT_WARP_TILE_CUH

#include "kernels/cuda/common/mma_fragments.cuh"
#include "kernels/cuda/common/tile_patches.h"

/* ---- operands ---- */

/* A dense operand whose tiles are LINES lines; elements of a line are neighbours in memory where `step` is 1. `unit`:
 * bytes that may be copied at once, 16 or a power of two from an element on; of an operand with a step, an element. */
struct warp_operand {
    const char *base;
    int64_t line_stride, step; /* elements */
    int64_t lines, length;
    int unit;
};

/* The largest unit for lines that begin at multiples of line_stride elements from an address of this alignment. */
static inline int warp_unit(int64_t size, int64_t align, int64_t line_stride, int64_t step) {
    if (step != 1) return (int)size;
    int unit = 16;
    while (unit > size && (align % unit || line_stride * size % unit)) unit /= 2;
    return unit == 8 && size < 8 ? 4 : unit;
}

/* Stored blocks as patches. Along a line of a tile a block's elements are neighbours. */
struct warp_patches {
    const char *values;
    unsigned line_stride, along; /* elements from line to line of a block; of a line */
    unsigned area, area_inverse; /* elements of a block; 2^32 divided by that, rounded up */
    unsigned along_inverse;      /* the same for `along` */
    int unit;                    /* as above, of the values' address alone */
    bool pairs;                  /* of two elements: lines are made of them, and they may be copied at once */
};

static inline unsigned warp_inverse(int64_t x) {
    return (unsigned)((((uint64_t)1 << 32) + (uint64_t)x - 1) / (uint64_t)x);
}

/* `lines_are_rows`: a line of a tile is a part of a row of the blocks as r has them. */
static inline warp_patches warp_patches_of(const sat_rows *r, const void *values, int unit, bool lines_are_rows) {
    warp_patches x = {};
    x.values = (const char *)values, x.unit = unit;
    x.line_stride = (unsigned)(lines_are_rows ? r->row_step : r->col_step);
    x.along = (unsigned)(lines_are_rows ? r->bc : r->br), x.area = (unsigned)(r->br * r->bc);
    x.area_inverse = warp_inverse(x.area), x.along_inverse = warp_inverse(x.along);
    x.pairs = unit >= 4 && x.along % 2 == 0;
    return x;
}

/* Blocks of more elements than this are copied patch by patch; smaller ones, all their elements side by side. */
static constexpr unsigned WARP_SMALL_BLOCK = 256;

__device__ __forceinline__ unsigned warp_divide(unsigned x, unsigned by, unsigned inverse) {
    return by == 1 ? x : __umulhi(x, inverse); /* exact: x*by < 2^32 */
}

/* The same blocks in units of two elements. */
__device__ __forceinline__ warp_patches warp_in_pairs(warp_patches x) {
    x.area /= 2, x.along /= 2;
    x.area_inverse *= 2, x.along_inverse *= 2; /* rounded up twice as far: still exact for numbers this small */
    return x;
}

/* The number of the patch that element `e` of a tile's small blocks belongs to, and its place in there. */
__device__ __forceinline__ unsigned warp_small_element(const warp_patches &x, unsigned e, unsigned &line,
                                                       unsigned &at) {
    unsigned number = warp_divide(e, x.area, x.area_inverse), within = e - number * x.area;
    line = warp_divide(within, x.along, x.along_inverse), at = within - line * x.along;
    return number;
}

__device__ __forceinline__ sat_patch warp_patch(uint2 words) {
    sat_patch p;
    memcpy(&p, &words, sizeof p);
    return p;
}
__device__ __forceinline__ uint2 warp_load_patch(const sat_patch *from) { return __ldg((const uint2 *)from); }

/* How a warp goes through a rectangle: 2^bits lanes along a line of `units`, the others on further lines. */
__device__ __forceinline__ int warp_lane_bits(unsigned units) {
    return units > 16 ? 5 : units <= 1 ? 0 : 32 - __clz((int)units - 1);
}

/* ---- a tile of an operand ---- */

template <int BYTES> __device__ __forceinline__ void warp_copy_async(uint32_t to, const void *from, int valid) {
    if constexpr (BYTES == 16) cp_async_16(to, from, valid);
    else cp_async_small<BYTES>(to, from, valid);
}

__device__ __forceinline__ void st_shared_b16(uint32_t to, uint16_t x) {
    asm volatile("st.shared.b16 [%0], %1;" ::"r"(to), "h"(x) : "memory");
}
__device__ __forceinline__ void st_shared_zeros(uint32_t to) {
    asm volatile("st.shared.v4.b32 [%0], {%1,%1,%1,%1};" ::"r"(to), "r"(0) : "memory");
}

/* MN rows of op(A) or columns of B by BK, swizzled as MATH reads it. */
template <class MATH, int MN, int BK, bool K_MAJOR> struct warp_tile {
    typedef typename MATH::element element;
    static constexpr int SIZE = (int)sizeof(element), LINES = K_MAJOR ? MN : BK, LENGTH = K_MAJOR ? BK : MN;
    static constexpr int ELEMENTS = 16 / SIZE, BYTES = MN * BK * SIZE; /* elements of 16 bytes; bytes of a tile */
    static constexpr int IN_FLIGHT = 8;                                /* copies through registers at a time */
    static_assert(BYTES % 1024 == 0, "swizzled offsets are found by XOR");

    __device__ static __forceinline__ uint32_t offset(unsigned line, unsigned at) {
        return (uint32_t)mma_vec16_offset<LENGTH / ELEMENTS, MATH::paired(K_MAJOR)>((int)line, (int)(at / ELEMENTS)) +
               at % ELEMENTS * SIZE;
    }

    __device__ static __forceinline__ void clear(uint32_t tile, int lane) {
#pragma unroll
        for (int e = 0; e < BYTES / 16; e += 32)
            if (BYTES / 16 - e >= 32 || lane < BYTES / 16 - e) st_shared_zeros(tile + (uint32_t)(e + lane) * 16);
    }

    /* Fills the tile from lines line0 on, and places at0 on, of a dense operand. Beyond its end in k it is zero, as far
     * as warp_sums::multiply reads; lines and places beyond its end in m or n are left as they are: they only reach
     * sums that nobody reads. */
    __device__ static __forceinline__ void load(uint32_t tile, const warp_operand &x, int64_t line0, int64_t at0,
                                                int lane) {
        const char *from = x.base + (line0 * x.line_stride + at0 * x.step) * SIZE;
        extent n;
        n.lines = (int)min(x.lines - line0, (int64_t)LINES), n.length = (int)min(x.length - at0, (int64_t)LENGTH);
        n.all_lines = K_MAJOR ? n.lines : round_up_k(n.lines), n.all_length = K_MAJOR ? round_up_k(n.length) : n.length;
        if (x.unit == 16) return copy<16>(tile, from, x, n, lane);
        if (SIZE == 8) return copy<8>(tile, from, x, n, lane);
        if (SIZE == 4 || x.unit >= 4) return copy<4>(tile, from, x, n, lane);
        if constexpr (SIZE == 2) copy_elements(tile, from, x, n, lane);
    }

    /* Fills a tile that was cleared with patches of stored blocks. `mine`: patch `lane`, if there is one. */
    __device__ static __forceinline__ void gather(uint32_t tile, const warp_patches &x, const sat_patch *patches,
                                                  unsigned count, uint2 mine, int lane) {
        if (x.area <= WARP_SMALL_BLOCK) {
            if constexpr (SIZE == 2) {
                if (x.pairs) return gather_small<4>(tile, warp_in_pairs(x), patches, count, lane);
            }
            return gather_small<SIZE>(tile, x, patches, count, lane);
        }
        for (unsigned first = 0; first < count; first += 32) {
            if (first > 0 && first + lane < count) mine = warp_load_patch(patches + first + lane);
            for (unsigned i = 0; i < min(count - first, 32u); i++) {
                uint2 words = {__shfl_sync(~0u, mine.x, i), __shfl_sync(~0u, mine.y, i)};
                sat_patch p = warp_patch(words);
                unsigned line = K_MAJOR ? p.row : p.col, at = K_MAJOR ? p.col : p.row;
                unsigned lines = K_MAJOR ? p.height : p.width, length = K_MAJOR ? p.width : p.height;
                unsigned bits = (p.from | at | length | x.line_stride) * SIZE | 16;
                int unit = min((int)(bits & -bits), x.unit);
                const char *from = x.values + (uint64_t)p.from * SIZE;
                if (unit == 16) gather_patch<16>(tile, from, x, line, at, lines, length, lane);
                else if (SIZE == 8) gather_patch<8>(tile, from, x, line, at, lines, length, lane);
                else if (SIZE == 4 || unit >= 4) gather_patch<4>(tile, from, x, line, at, lines, length, lane);
                else if constexpr (SIZE == 2) gather_patch<2>(tile, from, x, line, at, lines, length, lane);
            }
        }
    }

  private:
    struct extent {
        int lines, length;         /* that exist */
        int all_lines, all_length; /* that are written */
    };
    __device__ static __forceinline__ int round_up_k(int k) { return (k + MATH::K - 1) / MATH::K * MATH::K; }

    /* Lanes side by side along a line, and on as many lines as that leaves room for. */
    template <int UNIT>
    __device__ static __forceinline__ void copy(uint32_t tile, const char *from, const warp_operand &x, const extent &n,
                                                int lane) {
        if constexpr (UNIT >= SIZE) {
            constexpr int EACH = UNIT / SIZE, PER_LINE = LENGTH / EACH, ALONG = PER_LINE < 32 ? PER_LINE : 32;
            const int64_t down = 32 / ALONG * x.line_stride * SIZE;
#pragma unroll 1
            for (int at = lane % ALONG * EACH; at < n.all_length; at += ALONG * EACH) {
                int valid = max(0, min(EACH, n.length - at)) * SIZE;
                const char *source = from + (lane / ALONG * x.line_stride + at * x.step) * SIZE;
#pragma unroll 4
                for (int line = lane / ALONG; line < n.all_lines; line += 32 / ALONG, source += down) {
                    bool some = valid > 0 && line < n.lines;
                    warp_copy_async<UNIT>(tile + offset(line, at), some ? source : x.base, some ? valid : 0);
                }
            }
        }
    }

    /* 16-bit elements one by one: cp.async has no fewer than 4 bytes. */
    __device__ static __forceinline__ void copy_elements(uint32_t tile, const char *from, const warp_operand &x,
                                                         const extent &n, int lane) {
        constexpr int ALONG = LENGTH < 32 ? LENGTH : 32, DOWN = 32 / ALONG;
        constexpr int COUNT = LINES / DOWN < 32 ? LINES / DOWN : 32; /* loads in flight */
        const int64_t down = DOWN * x.line_stride;
#pragma unroll 1
        for (int at = lane % ALONG; at < n.all_length; at += ALONG) {
            const uint16_t *source = (const uint16_t *)from + lane / ALONG * x.line_stride + at * x.step;
#pragma unroll 1
            for (int line = lane / ALONG; line < n.all_lines; line += DOWN * COUNT, source += COUNT * down) {
                uint16_t element[COUNT];
#pragma unroll
                for (int i = 0; i < COUNT; i++)
                    element[i] = at < n.length && line + DOWN * i < n.lines ? __ldg(source + i * down) : 0;
#pragma unroll
                for (int i = 0; i < COUNT; i++)
                    if (line + DOWN * i < n.all_lines) st_shared_b16(tile + offset(line + DOWN * i, at), element[i]);
            }
        }
    }

    /* In three steps, so that all loads of a step are in flight at once: patches, elements, and those to the tile.
     * UNIT: bytes that are copied at once; x counts in such units. 16-bit elements one by one go through registers. */
    template <int UNIT>
    __device__ static __forceinline__ void gather_small(uint32_t tile, const warp_patches &x, const sat_patch *patches,
                                                        unsigned count, int lane) {
        constexpr unsigned EACH = UNIT / SIZE;
        const unsigned all = count * x.area;
        for (unsigned e0 = lane; e0 < all; e0 += 32 * IN_FLIGHT) {
            uint2 words[IN_FLIGHT];
            uint16_t element[IN_FLIGHT];
            uint32_t to[IN_FLIGHT];
#pragma unroll
            for (int i = 0; i < IN_FLIGHT; i++) {
                unsigned e = e0 + 32 * i, line, at, number = warp_small_element(x, e, line, at);
                words[i] = make_uint2(0, 0); /* a patch without height */
                if (e < all) words[i] = warp_load_patch(patches + number);
            }
#pragma unroll
            for (int i = 0; i < IN_FLIGHT; i++) {
                unsigned line, at;
                sat_patch p = warp_patch(words[i]);
                warp_small_element(x, e0 + 32 * i, line, at);
                at *= EACH;
                const unsigned length = K_MAJOR ? p.width : p.height;
                to[i] = ~0u;
                if (line >= (K_MAJOR ? p.height : p.width) || at >= length) continue;
                to[i] = tile + offset((K_MAJOR ? p.row : p.col) + line, (K_MAJOR ? p.col : p.row) + at);
                const char *from = x.values + ((uint64_t)p.from + line * x.line_stride + at) * SIZE;
                if constexpr (UNIT == 2) element[i] = __ldg((const uint16_t *)from);
                else cp_async_small<UNIT>(to[i], from, (int)min(EACH, length - at) * SIZE); // the matrix may end inside
            }
            if constexpr (UNIT == 2) {
#pragma unroll
                for (int i = 0; i < IN_FLIGHT; i++)
                    if (to[i] != ~0u) st_shared_b16(to[i], element[i]);
            }
        }
    }

    /* A patch: as many lanes along a line as it has units, rounded up to a power of two; the others take other lines.
     */
    template <int UNIT>
    __device__ static __forceinline__ void gather_patch(uint32_t tile, const char *from, const warp_patches &x,
                                                        unsigned line0, unsigned at0, unsigned lines, unsigned length,
                                                        int lane) {
        if constexpr (UNIT >= SIZE) {
            constexpr unsigned EACH = UNIT / SIZE;
            const int bits = warp_lane_bits(length / EACH);
            const unsigned step = 32u >> bits;
            for (unsigned at = (lane & ((1u << bits) - 1)) * EACH; at < length; at += 32 * EACH)
                for (unsigned line = (unsigned)lane >> bits; line < lines; line += step * IN_FLIGHT) {
                    uint16_t element[IN_FLIGHT];
#pragma unroll
                    for (int i = 0; i < IN_FLIGHT; i++) {
                        unsigned l = line + step * i;
                        if (l >= lines) continue;
                        const char *source = from + ((uint64_t)l * x.line_stride + at) * SIZE;
                        if constexpr (UNIT == 2) element[i] = __ldg((const uint16_t *)source);
                        else warp_copy_async<UNIT>(tile + offset(line0 + l, at0 + at), source, UNIT);
                    }
                    if constexpr (UNIT == 2) {
#pragma unroll
                        for (int i = 0; i < IN_FLIGHT; i++)
                            if (line + step * i < lines)
                                st_shared_b16(tile + offset(line0 + line + step * i, at0 + at), element[i]);
                    }
                }
        }
    }
};

/* ---- the product of two tiles ---- */

/* What a warp has: BM x BN sums, and tiles of BM and BN by BK. A CTA has WARPS of them. */
template <class MATH_, int BM_, int BN_, int WARPS_, bool A_K_MAJOR_, bool B_K_MAJOR_> struct warp_shape {
    typedef MATH_ math;
    typedef typename math::element element;
    typedef typename math::accumulator accumulator;
    static constexpr int BM = BM_, BN = BN_, WARPS = WARPS_, THREADS = 32 * WARPS;
    static constexpr bool A_K_MAJOR = A_K_MAJOR_, B_K_MAJOR = B_K_MAJOR_;
    static constexpr int BK = 128 / (int)sizeof(element); /* a line of 128 bytes */
    static constexpr int MT = BM / math::M, NT = BN / 8;
    typedef warp_tile<math, BM, BK, A_K_MAJOR> a_tile;
    typedef warp_tile<math, BN, BK, B_K_MAJOR> b_tile;
    static constexpr int TILES = a_tile::BYTES + b_tile::BYTES; /* bytes of a warp */
    static constexpr int PITCH = BN + 4, SUMS = BM * PITCH;     /* of a warp's sums in shared memory, in elements */
    static constexpr int SUM_BYTES = SUMS * (int)sizeof(accumulator);
    static constexpr int SHARED = WARPS * (TILES > SUM_BYTES ? TILES : SUM_BYTES);
    /* Warps that a multiprocessor should have room for in its registers: few sums leave room for many. */
    static constexpr int ROOM = BM * BN * (int)sizeof(accumulator) >= 8192 ? 8 : BM * BN > 256 ? 16 : 24;
    static constexpr int CTAS = ROOM / WARPS;
};

template <class S> struct warp_sums {
    typename S::accumulator sum[S::MT][S::NT][S::math::ACCUMULATORS];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < S::MT; i++)
#pragma unroll
            for (int j = 0; j < S::NT; j++)
#pragma unroll
                for (int e = 0; e < S::math::ACCUMULATORS; e++) sum[i][j][e] = 0;
    }

    /* Adds the product of the two tiles, whose copies were started before. `depth`: of k, what there is. */
    __device__ __forceinline__ void multiply(uint32_t a, uint32_t b, int64_t depth, int lane) {
        cp_async_commit_group();
        cp_async_wait_group<0>();
        __syncwarp();
        a += (uint32_t)S::math::template lane_offset_a<S::BM, S::BK, S::A_K_MAJOR>(lane, 0);
        b += (uint32_t)S::math::template lane_offset_b<S::BN, S::BK, S::B_K_MAJOR>(lane, 0);
#pragma unroll
        for (int kk = 0; kk < S::BK / S::math::K; kk++) {
            if (kk * S::math::K >= depth) break;
            typename S::math::a x[S::MT];
            typename S::math::b y[S::NT];
            S::math::template load_a<S::BM, S::BK, S::A_K_MAJOR>(x, a, kk);
            S::math::template load_b<S::BN, S::BK, S::B_K_MAJOR>(y, b, kk);
            S::math::round_operands(x, y);
#pragma unroll
            for (int i = 0; i < S::MT; i++)
#pragma unroll
                for (int j = 0; j < S::NT; j++) S::math::multiply(sum[i][j], x[i], y[j]);
        }
        __syncwarp(); /* the tiles may be filled again */
    }

    /* To `to`: S::SUMS elements of shared memory, S::PITCH from row to row. */
    __device__ __forceinline__ void store(typename S::accumulator *to, int lane) const {
#pragma unroll
        for (int i = 0; i < S::MT; i++)
#pragma unroll
            for (int j = 0; j < S::NT; j++)
#pragma unroll
                for (int e = 0; e < S::math::ACCUMULATORS; e++)
                    to[(i * S::math::M + lane / 4 + e / 2 * 8) * S::PITCH + j * 8 + lane % 4 * 2 + e % 2] =
                        sum[i][j][e];
    }
};

#endif
