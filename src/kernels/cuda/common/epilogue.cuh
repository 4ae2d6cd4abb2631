/* The epilogue: from accumulators in registers to act(alpha*sum + beta*C + bias) in C.
 *
 * mma.sync and wgmma leave sums in the same fragments. In an 8 x 8 fragment lane l has row l/4 and the neighbouring
 * columns 2*(l%4) and 2*(l%4) + 1. A fragment of 16 x 8 is two of those, one below the other: sums 0 and 1 are of row
 * l/4, sums 2 and 3 of row l/4 + 8. A warp's tile is sum[MT][NT][4], 16*MT rows by 8*NT columns.
 *
 * A "line" is a row of C where C is row-major, and a column where C is column-major: its elements are contiguous. There
 * are three ways to store a warp's tile (sat_store_path), which the host chooses once per launch:
 *
 * - packed16: 16-bit C with alpha and bias only (warpgroups: relu too), aligned, lines of 8n elements. Sums are packed
 *   to 16 bits in registers; lanes exchange registers until each has 16 bytes of a line. Warpgroups (wgmma) exchange
 *   them through a staging buffer in shared memory instead; see the second half of this file.
 * - pairs: f32 and f64 C with alpha and bias only. Each lane stores its pairs.
 * - generic: everything else (beta, activations, any strides). Through shared memory, a square of 16 x 16 at a time. */
#ifndef SAT_EPILOGUE_CUH
#define SAT_EPILOGUE_CUH

#include "kernels/cuda/common/tma.cuh"

enum sat_store_path { SAT_STORE_PACKED16, SAT_STORE_PAIRS, SAT_STORE_GENERIC };

struct sat_tile_epilogue {
    sat_epilogue to;
    sat_store_path path;
    bool column_major; /* lines are columns of C */
    bool aligned;      /* in a line, element 8*i is 16-byte aligned for every i, and elements are contiguous */
};

static inline sat_tile_epilogue sat_tile_epilogue_of(const sat_launch *l) {
    const sat_problem *p = l->problem;
    sat_tile_epilogue o = {sat_epilogue_of(l), SAT_STORE_GENERIC, false, false};
    int64_t size = (int64_t)sat_dtype_size(p->c_dtype);
    o.column_major = p->c.row_stride == 1 && p->c.col_stride != 1;
    int64_t step = o.column_major ? p->c.row_stride : p->c.col_stride;
    int64_t line = o.column_major ? p->c.col_stride : p->c.row_stride;
    o.aligned =
        step == 1 && line * size % 16 == 0 && p->c_align >= 16 && (p->batch == 1 || p->c.batch_stride * size % 16 == 0);
    if (p->beta != 0 || sat_activation_of(p) != SAT_ACT_NONE) return o;
    if (size > 2) o.path = SAT_STORE_PAIRS;
    else if (o.aligned && (o.column_major ? p->m : p->n) % 8 == 0) o.path = SAT_STORE_PACKED16;
    return o;
}

/* The epilogue of a split-K work item: the bare sums to its partial sum, (rows of a block) x n. The split-K reduction
 * adds them later. */
template <typename SUM> __device__ __forceinline__ sat_tile_epilogue sat_partial_epilogue(void *partial, int64_t n) {
    sat_tile_epilogue o = {
        {partial, NULL, n, 1, INT64_MAX, n, 1, 0, sizeof(SUM) == 8 ? SAT_F64 : SAT_F32, SAT_ACT_NONE},
        SAT_STORE_PAIRS,
        false,
        n * (int64_t)sizeof(SUM) % 16 == 0};
    return o;
}

enum { SAT_SQUARE_PITCH = 20 }; /* elements from line to line of a 16 x 16 square in shared memory */

/* Bytes of shared memory that a warp needs for the generic path. */
template <typename SUM> constexpr int sat_square_bytes() { return 16 * SAT_SQUARE_PITCH * (int)sizeof(SUM); }

/* ---- the packed16 path: 16-bit C ---- */

__device__ __forceinline__ uint32_t sat_pack_2(__half, float x, float y) {
    __half2 h = __floats2half2_rn(x, y);
    return *(uint32_t *)&h;
}
__device__ __forceinline__ uint32_t sat_pack_2(__nv_bfloat16, float x, float y) {
    __nv_bfloat162 h = __floats2bfloat162_rn(x, y);
    return *(uint32_t *)&h;
}

/* Transposes a 4 x 4 matrix of words that four neighbouring lanes hold: w[i] of lane q becomes w[q] of lane i. */
__device__ __forceinline__ void sat_transpose_quad(uint32_t (&w)[4], int q) {
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
        bool upper = q & bit;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & bit) continue;
            uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? w[i] : w[i + bit], bit);
            if (upper) w[i] = got;
            else w[i + bit] = got;
        }
    }
}

/* How many rows and columns of C there are from (i, j) on, at most 1024. */
struct sat_room {
    int rows, columns;
};
__device__ __forceinline__ sat_room sat_room_from(const sat_epilogue &o, int64_t i, int64_t j) {
    sat_room room = {(int)min((int64_t)1024, o.m - i), (int)min((int64_t)1024, o.n - j)};
    return room;
}

/* C row-major. Of four fragments side by side each lane gets the 8 columns of one and stores 16 bytes. Where there are
 * only two fragments it stores its own words. */
template <typename E, int HALVES, int NT>
__device__ __forceinline__ void sat_store_packed16_rows(const sat_epilogue &o, uint32_t (&word)[HALVES][NT], int64_t i,
                                                        int64_t j, int q) {
    constexpr int EACH = NT % 4 ? 2 : 8; /* elements that a lane stores at once */
    sat_room room = sat_room_from(o, i, j + EACH * q);
    E *to = (E *)o.c + i * o.row_stride + j + EACH * q;
#pragma unroll
    for (int h = 0; h < HALVES; h++, to += 8 * o.row_stride)
#pragma unroll
        for (int n = 0; n < NT; n += EACH / 2) {
            if constexpr (EACH == 2) {
                if (8 * h < room.rows && 8 * n < room.columns) __stcg((uint32_t *)(to + 8 * n), word[h][n]);
                continue;
            }
            uint32_t w[4] = {word[h][n], word[h][n + 1], word[h][n + 2], word[h][n + 3]};
            sat_transpose_quad(w, q);
            if (8 * h < room.rows && 8 * n < room.columns)
                __stcg((uint4 *)(to + 8 * n), make_uint4(w[0], w[1], w[2], w[3]));
        }
}

/* C column-major: fragments are transposed first. Of four fragments one below the other each lane gets the 8 rows of
 * one; where there are only two, it stores its own words. */
template <typename E, int HALVES, int NT>
__device__ __forceinline__ void sat_store_packed16_columns(const sat_epilogue &o, uint32_t (&word)[HALVES][NT],
                                                           int64_t i, int64_t j, int q) {
    constexpr int EACH = HALVES >= 4 ? 8 : 2; /* elements that a lane stores at once */
    sat_room room = sat_room_from(o, i + EACH * q, j);
    E *to = (E *)o.c + j * o.col_stride + i + EACH * q;
#pragma unroll
    for (int n = 0; n < NT; n++, to += 8 * o.col_stride)
#pragma unroll
        for (int h = 0; h < HALVES; h += EACH / 2) {
            bool inside = 8 * h < room.rows && 8 * n < room.columns;
            uint32_t w[4];
#pragma unroll
            for (int e = 0; e < EACH / 2; e++) w[e] = movmatrix_trans(word[h + e][n]);
            if (EACH == 8) sat_transpose_quad(w, q);
            if (inside && EACH == 8) __stcg((uint4 *)(to + 8 * h), make_uint4(w[0], w[1], w[2], w[3]));
            if (inside && EACH == 2) __stcg((uint32_t *)(to + 8 * h), w[0]);
        }
}

template <typename E, int MT, int NT>
__device__ __forceinline__ void sat_store_packed16(const sat_tile_epilogue &o, const float (&sum)[MT][NT][4],
                                                   int64_t i0, int64_t j0, int lane) {
    const float alpha = (float)o.to.alpha;
    const E *bias = (const E *)o.to.bias;
    int g = lane >> 2, q = lane & 3;
    uint32_t word[2 * MT][NT];
#pragma unroll
    for (int h = 0; h < 2 * MT; h++) {
        int64_t i = i0 + 8 * h + g;
        float more = bias && i < o.to.m ? (float)bias[i] : 0;
#pragma unroll
        for (int n = 0; n < NT; n++)
            word[h][n] =
                sat_pack_2(E(), alpha * sum[h / 2][n][h % 2 * 2] + more, alpha * sum[h / 2][n][h % 2 * 2 + 1] + more);
    }
    if (o.column_major) sat_store_packed16_columns<E>(o.to, word, i0, j0 + g, q);
    else sat_store_packed16_rows<E>(o.to, word, i0 + g, j0, q);
}

/* ---- the pairs path: f32 and f64 C ---- */

__device__ __forceinline__ void sat_store_pair(float *to, float x, float y) { __stcg((float2 *)to, make_float2(x, y)); }
__device__ __forceinline__ void sat_store_pair(double *to, double x, double y) {
    __stcg((double2 *)to, make_double2(x, y));
}

/* PAIRS: a pair is contiguous and aligned. */
template <bool PAIRS, typename SUM, int MT, int NT, int SUMS>
__device__ __forceinline__ void sat_store_pairs(const sat_epilogue &o, const SUM (&sum)[MT][NT][SUMS], int64_t i,
                                                int64_t j) {
    const SUM alpha = (SUM)o.alpha, *bias = (const SUM *)o.bias;
    const int64_t step = PAIRS ? 1 : o.col_stride;
    sat_room room = sat_room_from(o, i, j);
    SUM *to = (SUM *)o.c + i * o.row_stride + j * step;
#pragma unroll
    for (int h = 0; h < MT * SUMS / 2; h++, to += 8 * o.row_stride) {
        if (8 * h >= room.rows) continue;
        SUM more = bias ? bias[i + 8 * h] : 0;
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const SUM *s = sum[h / (SUMS / 2)][n] + h % (SUMS / 2) * 2;
            SUM x = alpha * s[0] + more, y = alpha * s[1] + more;
            if (PAIRS && 8 * n < room.columns) sat_store_pair(to + 8 * n, x, y);
            if (!PAIRS && 8 * n < room.columns) __stcg(to + 8 * n * step, x);
            if (!PAIRS && 8 * n + 1 < room.columns) __stcg(to + (8 * n + 1) * step, y);
        }
    }
}

/* ---- the generic path: any C ---- */

template <typename E> __device__ __forceinline__ void sat_store_8(E *to, const float *y) {
    __stcg((uint4 *)to, make_uint4(sat_pack_2(E(), y[0], y[1]), sat_pack_2(E(), y[2], y[3]),
                                   sat_pack_2(E(), y[4], y[5]), sat_pack_2(E(), y[6], y[7])));
}

/* Eight finished elements of a line to C, `at` elements from its start. */
__device__ __forceinline__ void sat_store_line(const sat_epilogue &o, int64_t at, const float *y) {
    if (o.dtype == SAT_F16) return sat_store_8((__half *)o.c + at, y);
    if (o.dtype == SAT_BF16) return sat_store_8((__nv_bfloat16 *)o.c + at, y);
    float4 *to = (float4 *)((float *)o.c + at);
    __stcg(to, make_float4(y[0], y[1], y[2], y[3]));
    __stcg(to + 1, make_float4(y[4], y[5], y[6], y[7]));
}
__device__ __forceinline__ void sat_store_line(const sat_epilogue &o, int64_t at, const double *y) {
#pragma unroll
    for (int e = 0; e < 8; e += 2) sat_store_pair((double *)o.c + at + e, y[e], y[e + 1]);
}

/* The square's first element is (i, j) of C. A lane finishes and stores eight elements of one of the square's LINES
 * lines. */
template <typename SUM, int LINES>
__device__ __forceinline__ void sat_store_square(const sat_tile_epilogue &o, SUM *square, int64_t i, int64_t j,
                                                 int lane) {
    const sat_epilogue &to = o.to;
    int line = lane % LINES, part = lane / LINES * 8;
    int64_t across = (o.column_major ? j : i) + line, along = (o.column_major ? i : j) + part;
    int64_t room = (o.column_major ? to.m : to.n) - along;
    if (across >= (o.column_major ? to.n : to.m) || room <= 0) return;
    int64_t step = o.column_major ? to.row_stride : to.col_stride;
    int64_t at = across * (o.column_major ? to.col_stride : to.row_stride) + along * step;
    SUM *y = square + line * SAT_SQUARE_PITCH + part;
    bool together = o.aligned && room >= 8;
#pragma unroll 2
    for (int e = 0; e < 8 && e < room; e++) {
        SUM x = o.column_major ? sat_epilogue_apply(to, along + e, across, y[e])
                               : sat_epilogue_apply(to, across, along + e, y[e]);
        if (together) y[e] = x;
        else sat_store_from(x, to.dtype, to.c, at + e * step);
    }
    if (together) sat_store_line(to, at, y);
}

/* One square after another; a square is two fragments side by side, written transposed where C is column-major.
 * The loop is not unrolled, so that the code of the activations is there only once. */
template <typename SUM, int MT, int NT, int SUMS>
__device__ __forceinline__ void sat_store_generic(const sat_tile_epilogue &o, const SUM (&sum)[MT][NT][SUMS],
                                                  int64_t i0, int64_t j0, int lane, SUM *square) {
    constexpr int M = SUMS * 4;
    const int down = o.column_major ? 1 : SAT_SQUARE_PITCH, across = o.column_major ? SAT_SQUARE_PITCH : 1;
    SUM *mine = square + lane / 4 * down + lane % 4 * 2 * across;
#pragma unroll 1
    for (int s = 0; s < MT * NT / 2; s++) {
        __syncwarp();
#pragma unroll
        for (int t = 0; t < MT * NT / 2; t++) {
            if (t != s) continue;
#pragma unroll
            for (int e = 0; e < 2 * SUMS; e++)
                mine[e % SUMS / 2 * 8 * down + (e / SUMS * 8 + e % 2) * across] =
                    sum[t / (NT / 2)][t % (NT / 2) * 2 + e / SUMS][e % SUMS];
        }
        __syncwarp();
        int64_t i = i0 + s / (NT / 2) * M, j = j0 + s % (NT / 2) * 16;
        if (M == 16 || o.column_major) { /* column-major: 16 lines of M; row-major: M lines of 16; M is 8 for f64 */
            if (lane < 16 * (M / 8)) sat_store_square<SUM, 16>(o, square, i, j, lane);
        } else if (lane < 16) sat_store_square<SUM, M>(o, square, i, j, lane);
    }
    __syncwarp();
}

/* Stores a warp's tile whose first element is (i0, j0) of C. `square`: the warp's sat_square_bytes. */
template <typename E, typename SUM, int MT, int NT, int SUMS>
__device__ __forceinline__ void sat_warp_store(const sat_tile_epilogue &o, const SUM (&sum)[MT][NT][SUMS], int64_t i0,
                                               int64_t j0, int lane, SUM *square) {
    if constexpr (sizeof(E) == 2) {
        if (o.path == SAT_STORE_PACKED16) return sat_store_packed16<E>(o, sum, i0, j0, lane);
    }
    if (o.path == SAT_STORE_PAIRS && o.aligned && !o.column_major && o.to.n % 2 == 0)
        sat_store_pairs<true>(o.to, sum, i0 + lane / 4, j0 + lane % 4 * 2);
    else if (o.path == SAT_STORE_PAIRS) sat_store_pairs<false>(o.to, sum, i0 + lane / 4, j0 + lane % 4 * 2);
    else sat_store_generic(o, sum, i0, j0, lane, square);
}

/* ==== warpgroups ====
 *
 * After wgmma a warpgroup has 64 rows, 16 a warp, by WN columns. 16-bit C with alpha, bias and relu only goes through a
 * staging buffer in shared memory, 64 columns at a time, so that it leaves in lines of 128 bytes: by a TMA store where
 * a tensor map can describe C, otherwise by 16 bytes per thread. This is the packed16 path of a warpgroup. Everything
 * else takes the pairs or the generic path, as above. */

enum {
    SAT_STAGING_WARP = 16 * 128, // bytes of a warp's part of a staging buffer: 16 rows by 64 columns
    SAT_STAGING_BUFFERS = 2,     // one is filled while the other is stored
    SAT_STAGING = SAT_STAGING_BUFFERS * 4 * SAT_STAGING_WARP // bytes of a warpgroup
};

static inline sat_tile_epilogue sat_warpgroup_epilogue_of(const sat_launch *l) {
    const sat_problem *p = l->problem;
    sat_tile_epilogue o = sat_tile_epilogue_of(l);
    bool relu = p->beta == 0 && sat_activation_of(p) == SAT_ACT_RELU;
    if (relu && sat_dtype_size(p->c_dtype) == 2 && o.aligned && (o.column_major ? p->m : p->n) % 8 == 0)
        o.path = SAT_STORE_PACKED16;
    return o;
}

/* Whether C is the sums without change. Only for the packed16 path, on which beta is 0. */
__host__ __device__ __forceinline__ bool sat_epilogue_is_identity(const sat_epilogue &o) {
    return o.alpha == 1 && !o.bias && o.activation == SAT_ACT_NONE;
}

/* alpha*sum + bias and relu, in place. `i`: the row of this thread's first sum. */
template <int COUNT>
__device__ __forceinline__ void sat_warpgroup_apply_alpha_bias_relu(const sat_epilogue &o, float (&d)[COUNT],
                                                                    int64_t i) {
    if (sat_epilogue_is_identity(o)) return;
    float alpha = (float)o.alpha, low = 0, high = 0, least = o.activation == SAT_ACT_RELU ? 0 : -INFINITY;
    if (o.bias && i < o.m) low = sat_load_as(0.f, o.dtype, o.bias, i);
    if (o.bias && i + 8 < o.m) high = sat_load_as(0.f, o.dtype, o.bias, i + 8);
#pragma unroll
    for (int e = 0; e < COUNT; e++) {
        float y = alpha * d[e] + (e % 4 < 2 ? low : high);
        d[e] = y < least ? least : y; // keeps NaN
    }
}

__device__ __forceinline__ uint4 ld_shared_v4(uint32_t from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}

/* Offset of vector `vec16` of 16 bytes in lines of 128 bytes with the 128-byte swizzle, which avoids bank conflicts. */
__device__ __forceinline__ uint32_t sat_swizzled_offset(int line, int vec16) {
    return line * 128 + (vec16 ^ (line & 7)) * 16;
}

template <typename E> __device__ __forceinline__ void sat_pack_8(uint32_t (&w)[4], const float *v) {
#pragma unroll
    for (int e = 0; e < 4; e++) w[e] = sat_pack_2(E(), v[2 * e], v[2 * e + 1]);
}

/* A warp's 16 rows by W columns to a staging buffer; a line is a row. */
template <typename E, int W> __device__ __forceinline__ void sat_write_staging(const float *d, uint32_t staging) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int q = 0; q < W / 16; q++) {
        uint32_t w[4];
        sat_pack_8<E>(w, &d[q * 8]);
        stmatrix_x4(staging + sat_swizzled_offset(lane % 16, q * 2 + lane / 16), w[0], w[1], w[2], w[3]);
    }
}

/* A warpgroup's 64 rows by W columns to a staging buffer, transposed; a line is a column. */
template <typename E, int W>
__device__ __forceinline__ void sat_write_staging_transposed(const float *d, uint32_t staging) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int q = 0; q < W / 16; q++) {
        uint32_t w[4];
        sat_pack_8<E>(w, &d[q * 8]);
        stmatrix_x4_trans(staging + sat_swizzled_offset(q * 16 + lane % 8 + lane / 16 * 8, warp * 2 + lane / 8 % 2),
                          w[0], w[1], w[2], w[3]);
    }
}

/* Stores a warp's 16 rows by W columns, of which `rows` and `columns` exist, to rows that are `pitch` elements apart.
 * Calls alternate between two staging buffers, so that no second barrier is needed. */
template <typename E, int W>
__device__ __forceinline__ void sat_store_rows_staged(const float (&d)[W / 2], uint32_t staging, E *to, int64_t pitch,
                                                      int rows, int columns) {
    constexpr int VECTORS = W / 8;
    int lane = threadIdx.x % 32, row = lane / VECTORS, vec16 = lane % VECTORS;
    sat_write_staging<E, W>(d, staging);
    __syncwarp();
    to += row * pitch + vec16 * 8;
#pragma unroll
    for (int e = 0; e < VECTORS / 2; e++) { // 32 / VECTORS rows at a time
        const int down = e * (32 / VECTORS);
        uint4 v = ld_shared_v4(staging + sat_swizzled_offset(row + down, vec16));
        if (row + down < rows && vec16 * 8 < columns) __stcg((uint4 *)(to + down * pitch), v);
    }
}

/* C row-major: each warp on its own. */
template <typename E, int WN>
__device__ __forceinline__ void sat_warpgroup_store_rows(const sat_epilogue &o, const float (&d)[WN / 2],
                                                         uint32_t staging, int64_t i0, int64_t n0) {
    constexpr int W = WN < 64 ? WN : 64;
    int rows = (int)min((int64_t)16, o.m - i0), columns = (int)min((int64_t)WN, o.n - n0);
    E *to = (E *)o.c + i0 * o.row_stride + n0;
#pragma unroll
    for (int j = 0; j < WN; j += W)
        sat_store_rows_staged<E, W>(reinterpret_cast<const float(&)[W / 2]>(d[j / 2]),
                                    staging + j / W % 2 * SAT_STAGING_WARP, to + j, o.row_stride, rows, columns - j);
    __syncwarp();
}

/* C column-major: the warpgroup together, 64 rows by W columns at a time. `rows`: how many of the 64 exist. `group`:
 * the warpgroup, whose named barrier is 1 + group. */
template <typename E, int WN>
__device__ __forceinline__ void sat_warpgroup_store_columns(const sat_epilogue &o, const float (&d)[WN / 2],
                                                            uint32_t staging, int64_t i0, int64_t n0, int64_t rows,
                                                            int group) {
    constexpr int W = WN < 64 ? WN : 64;
    int column = threadIdx.x % 128 / 8, vec16 = threadIdx.x % 8;
    E *to = (E *)o.c + (n0 + column) * o.col_stride + i0 + vec16 * 8;
    bool inside = vec16 * 8 < min(rows, o.m - i0);
    int columns = (int)min((int64_t)WN, o.n - n0) - column;
#pragma unroll
    for (int j = 0; j < WN; j += W) {
        uint32_t at = staging + j / W % 2 * (4 * SAT_STAGING_WARP);
        sat_write_staging_transposed<E, W>(&d[j / 2], at);
        named_barrier_sync(1 + group, 128);
#pragma unroll
        for (int down = 0; down < W; down += 16) {
            uint4 v = ld_shared_v4(at + sat_swizzled_offset(down + column, vec16));
            if (inside && j + down < columns) __stcg((uint4 *)(to + (j + down) * o.col_stride), v);
        }
    }
    named_barrier_sync(1 + group, 128);
}

/* The same by TMA stores, which run while the warpgroup goes on. C row-major: each warp on its own; column-major: the
 * warpgroup together. */
template <typename E, int WN>
__device__ __forceinline__ void sat_warpgroup_tma_store(const CUtensorMap *c, const float (&d)[WN / 2],
                                                        uint32_t staging, int i0, int n0, int n, bool column_major,
                                                        int group) {
    int warp = threadIdx.x / 32 % 4;
    bool one = threadIdx.x % (column_major ? 128 : 32) == 0;
    if (!column_major) staging += warp * SAT_STAGING_WARP, i0 += warp * 16;
#pragma unroll
    for (int j = 0; j < WN; j += 64) {
        uint32_t at = staging + j / 64 % SAT_STAGING_BUFFERS * (4 * SAT_STAGING_WARP);
        if (n0 + j >= n) break;
        if (one && j == 0) tma_store_wait_read<0>();
        if (one && j > 0) tma_store_wait_read<SAT_STAGING_BUFFERS - 1>();
        if (column_major) {
            named_barrier_sync(1 + group, 128);
            sat_write_staging_transposed<E, 64>(&d[j / 2], at);
        } else {
            __syncwarp();
            sat_write_staging<E, 64>(&d[j / 2], at);
        }
        fence_proxy_async();
        if (column_major) named_barrier_sync(1 + group, 128);
        else __syncwarp();
        if (one) tma_store(c, at, column_major ? i0 : n0 + j, column_major ? n0 + j : i0);
    }
}

/* The tensor map of C for those stores; false where there cannot be one. Where C is column-major a TMA store has 64
 * rows, which must belong to one block row. */
static inline bool sat_output_tensormap(const sat_launch *l, const sat_tile_epilogue &o, int64_t block_rows,
                                        CUtensorMap *map) {
    const sat_problem *p = l->problem;
    if (o.path != SAT_STORE_PACKED16 || block_rows % (o.column_major ? 64 : 16) ||
        !tensormap_fits(p, p->c, p->m, p->n, p->c_align, 2))
        return false;
    cuuint64_t m = (cuuint64_t)p->m, n = (cuuint64_t)p->n;
    sat_tensor_box t = {p->c_dtype, o.to.c, 2, {n, m}, {(cuuint64_t)p->c.row_stride * 2}, {64, 16}, 128};
    if (o.column_major) t = {p->c_dtype, o.to.c, 2, {m, n}, {(cuuint64_t)p->c.col_stride * 2}, {64, 64}, 128};
    return tensormap_encode(map, t);
}

/* Stores a warpgroup's 64 rows from i0 on, of which `rows` exist, by WN columns from n0 on, without TMA. Afterwards TMA
 * may use `staging`. */
template <typename E, int WN>
__device__ __forceinline__ void sat_warpgroup_store(const sat_tile_epilogue &o, float (&d)[WN / 2], uint32_t staging,
                                                    int64_t i0, int64_t n0, int64_t rows, int group) {
    int lane = threadIdx.x % 32, down = threadIdx.x / 32 % 4 * 16;
    bool packed = o.path == SAT_STORE_PACKED16;
    if (packed) sat_warpgroup_apply_alpha_bias_relu(o.to, d, i0 + down + lane / 4);
    if (packed && o.column_major) {
        sat_warpgroup_store_columns<E, WN>(o.to, d, staging, i0, n0, rows, group);
    } else if (down < rows) {
        staging += down / 16 * 2 * SAT_STAGING_WARP;
        const float(&sum)[1][WN / 8][4] = reinterpret_cast<const float(&)[1][WN / 8][4]>(d);
        if (packed) sat_warpgroup_store_rows<E, WN>(o.to, d, staging, i0 + down, n0);
        else if (o.path == SAT_STORE_GENERIC || o.to.dtype != SAT_F32 || o.column_major || !o.aligned || o.to.n % 2)
            sat_store_generic(o, sum, i0 + down, n0, lane, (float *)__cvta_shared_to_generic(staging));
        else sat_store_pairs<true>(o.to, sum, i0 + down + lane / 4, n0 + lane % 4 * 2);
    }
    fence_proxy_async();
}

#endif
