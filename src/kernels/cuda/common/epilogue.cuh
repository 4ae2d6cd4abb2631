/* The epilogue: from accumulators in registers to act(alpha*sum + beta*C + bias) in C. This file has what the epilogues
 * of a warp (mma.sync, warp_epilogue.cuh) and of a warpgroup (wgmma, warpgroup_epilogue.cuh) share.
 *
 * mma.sync and wgmma leave sums in the same fragments. In an 8 x 8 fragment lane l has row l/4 and the neighbouring
 * columns 2*(l%4) and 2*(l%4) + 1. A fragment of 16 x 8 is two of those, one below the other: sums 0 and 1 are of row
 * l/4, sums 2 and 3 of row l/4 + 8. A warp's tile is sum[MT][NT][4], 16*MT rows by 8*NT columns.
 *
 * A "line" is a row of C where C is row-major, and a column where C is column-major: its elements are contiguous. There
 * are three ways to store a warp's tile (sat_store_path), which the host chooses once per launch:
 *
 * - packed16: 16-bit C with alpha and bias only (warpgroups: relu too), aligned, line length a multiple of 8. Sums are
 *   packed to 16 bits and stored 16 bytes at a time. How lanes exchange them differs: see the two other files.
 * - pairs: f32 and f64 C with alpha and bias only. Each lane stores its pairs.
 * - generic: everything else (beta, activations, any strides). Through shared memory, a square of 16 x 16 at a time. */
#ifndef SAT_EPILOGUE_CUH
#define SAT_EPILOGUE_CUH

#include "variant.cuh"

enum sat_store_path { SAT_STORE_PACKED16, SAT_STORE_PAIRS, SAT_STORE_GENERIC };

struct sat_tile_epilogue {
    sat_epilogue out; /* C, alpha, beta, bias, activation */
    sat_store_path path;
    bool column_major; /* lines are columns of C */
    bool aligned;      /* in a line, element 8*i is 16-byte aligned for every i, and elements are contiguous */
};

/* Of a matmul, made on the host. `packed_relu`: the packed16 path applies relu. */
sat_tile_epilogue sat_tile_epilogue_of(const sat_launch *l, bool packed_relu);

/* Whether C is the sums: alpha 1, no bias, no activation. Only for the packed16 path, on which beta is 0. */
__host__ __device__ __forceinline__ bool sat_epilogue_is_identity(const sat_epilogue &o) {
    return o.alpha == 1 && !o.bias && o.activation == SAT_ACT_NONE;
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

/* How many rows and columns of C there are from (i, j) on, at most 1024. */
struct sat_remaining {
    int rows, columns;
};
__device__ __forceinline__ sat_remaining sat_remaining_from(const sat_epilogue &o, int64_t i, int64_t j) {
    sat_remaining remaining = {(int)min((int64_t)1024, o.m - i), (int)min((int64_t)1024, o.n - j)};
    return remaining;
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
    sat_remaining remaining = sat_remaining_from(o, i, j);
    SUM *to = (SUM *)o.c + i * o.row_stride + j * step;
#pragma unroll
    for (int h = 0; h < MT * SUMS / 2; h++, to += 8 * o.row_stride) {
        if (8 * h >= remaining.rows) continue;
        SUM bias_of_row = bias ? bias[i + 8 * h] : 0;
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const SUM *s = sum[h / (SUMS / 2)][n] + h % (SUMS / 2) * 2;
            SUM x = alpha * s[0] + bias_of_row, y = alpha * s[1] + bias_of_row;
            if (PAIRS && 8 * n < remaining.columns) sat_store_pair(to + 8 * n, x, y);
            if (!PAIRS && 8 * n < remaining.columns) __stcg(to + 8 * n * step, x);
            if (!PAIRS && 8 * n + 1 < remaining.columns) __stcg(to + (8 * n + 1) * step, y);
        }
    }
}

/* ---- the generic path: any C ---- */

template <typename E> __device__ __forceinline__ void sat_store_8(E *to, const float *y) {
    __stcg((uint4 *)to, make_uint4(pack_2(E(), y[0], y[1]), pack_2(E(), y[2], y[3]), pack_2(E(), y[4], y[5]),
                                   pack_2(E(), y[6], y[7])));
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
    const sat_epilogue &to = o.out;
    int line = lane % LINES, part = lane / LINES * 8;
    int64_t line_index = (o.column_major ? j : i) + line, element_index = (o.column_major ? i : j) + part;
    int64_t remaining = (o.column_major ? to.m : to.n) - element_index;
    if (line_index >= (o.column_major ? to.n : to.m) || remaining <= 0) return;
    int64_t step = o.column_major ? to.row_stride : to.col_stride;
    int64_t at = line_index * (o.column_major ? to.col_stride : to.row_stride) + element_index * step;
    SUM *y = square + line * SAT_SQUARE_PITCH + part;
    bool together = o.aligned && remaining >= 8;
#pragma unroll 2
    for (int e = 0; e < 8 && e < remaining; e++) {
        SUM x = o.column_major ? sat_epilogue_apply(to, element_index + e, line_index, y[e])
                               : sat_epilogue_apply(to, line_index, element_index + e, y[e]);
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
    const int row_step = o.column_major ? 1 : SAT_SQUARE_PITCH, col_step = o.column_major ? SAT_SQUARE_PITCH : 1;
    SUM *mine = square + lane / 4 * row_step + lane % 4 * 2 * col_step;
#pragma unroll 1
    for (int s = 0; s < MT * NT / 2; s++) {
        __syncwarp();
#pragma unroll
        for (int t = 0; t < MT * NT / 2; t++) {
            if (t != s) continue;
#pragma unroll
            for (int e = 0; e < 2 * SUMS; e++)
                mine[e % SUMS / 2 * 8 * row_step + (e / SUMS * 8 + e % 2) * col_step] =
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

#endif
