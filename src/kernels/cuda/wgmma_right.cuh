/* A part of B for warpgroup products, 16-bit: DEEP of its rows by COLUMNS of its columns, as tensor maps bring it into
 * shared memory. Row-major in chunks of 64 columns, or of all where those are fewer, DEEP lines each; by columns in
 * lines of DEEP. */
#ifndef SAT_WGMMA_RIGHT_CUH
#define SAT_WGMMA_RIGHT_CUH

#include "hopper.cuh"
#include "tensor_map.cuh"

/* Row-major in whole chunks of 64 columns: one copy brings them all. */
static inline bool sat_right_whole(const sat_problem *p) { return p->n % 64 == 0; }

template <int DEEP, int COLUMNS> struct sat_right {
    static constexpr int CHUNK = COLUMNS < 64 ? COLUMNS : 64, MOST = COLUMNS < 256 ? COLUMNS : 256; // columns of a copy

    static bool map(const sat_problem *p, const void *b, CUtensorMap *to) {
        cuuint64_t n = (cuuint64_t)p->n, k = (cuuint64_t)p->k;
        bool turned = p->b.col_stride != 1;
        cuuint64_t lead = (cuuint64_t)(turned ? p->b.col_stride : p->b.row_stride) * 2;
        sat_tensor t = {p->b_dtype, b, 2, {n, k}, {lead}, {CHUNK, DEEP}, CHUNK * 2};
        if (turned) t = {p->b_dtype, b, 2, {k, n}, {lead}, {DEEP, MOST}, DEEP * 2};
        else if (CHUNK == 64 && sat_right_whole(p))
            t = {p->b_dtype, b, 3, {64, k, n / 64}, {lead, 128}, {64, DEEP, COLUMNS / 64}, 128};
        return sat_map_encode(to, t);
    }

    /* One lane asks for the rows from k on, and the columns from n0 on. TB: by columns. */
    template <bool TB>
    __device__ static __forceinline__ void load(const CUtensorMap *map, bool whole, uint32_t to, uint32_t bar, int k,
                                                int n0) {
        if (TB) {
            for (int i = 0; i < COLUMNS; i += 256) sat_tile_load(to + i * DEEP * 2, map, bar, k, n0 + i);
        } else if (CHUNK == 64 && whole) {
            sat_tile_load(to, map, bar, 0, k, n0 / 64);
        } else {
#pragma unroll 1
            for (int i = 0; i < COLUMNS; i += 64) sat_tile_load(to + i * DEEP * 2, map, bar, n0 + i, k);
        }
    }
};

#endif
