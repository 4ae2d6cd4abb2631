/* Sums of matrix products, from the fragments of a warp to C.
 *
 * A lane has pairs of neighbouring columns, row lane/4 of every 8 x 8 square. Plain sums leave from there: 16-bit ones
 * after the four lanes of a line have exchanged words until each has 16 bytes in a row, others as they are. What needs
 * more (beta, an activation, odd strides) goes through shared memory, 16 columns at a time, where a lane has eight
 * elements of a line. */
#ifndef SAT_MMA_OUT_CUH
#define SAT_MMA_OUT_CUH

#include "ptx.cuh"

enum sat_mma_way { SAT_MMA_WORDS, SAT_MMA_PAIRS, SAT_MMA_STAGED };

struct sat_mma_out {
    sat_out to;
    sat_mma_way way;
    bool columns; /* lines are columns of C */
    bool vectors; /* every 8 elements of a line that start at a multiple of 8 are 16-byte aligned */
};

static inline sat_mma_out sat_mma_out_of(const sat_launch *l) {
    const sat_problem *p = l->problem;
    sat_mma_out o = {sat_out_of(l), SAT_MMA_STAGED, false, false};
    int64_t size = (int64_t)sat_dtype_size(p->c_dtype);
    o.columns = p->c.row_stride == 1 && p->c.col_stride != 1;
    int64_t step = o.columns ? p->c.row_stride : p->c.col_stride;
    int64_t line = o.columns ? p->c.col_stride : p->c.row_stride;
    o.vectors =
        step == 1 && line * size % 16 == 0 && p->c_align >= 16 && (p->batch == 1 || p->c.batch_stride * size % 16 == 0);
    if (p->beta != 0 || p->activation != SAT_ACT_NONE) return o;
    if (size > 2) o.way = SAT_MMA_PAIRS;
    else if (o.vectors && (o.columns ? p->m : p->n) % 8 == 0) o.way = SAT_MMA_WORDS;
    return o;
}

/* Where the sums of a piece of a row go until sat_join_rows adds them. */
template <typename SUM> __device__ __forceinline__ sat_mma_out sat_mma_partial(void *partial, int64_t n) {
    sat_mma_out o = {{partial, NULL, n, 1, INT64_MAX, n, 1, 0, sizeof(SUM) == 8 ? SAT_F64 : SAT_F32, SAT_ACT_NONE},
                     SAT_MMA_PAIRS,
                     false,
                     n * (int64_t)sizeof(SUM) % 16 == 0};
    return o;
}

enum { SAT_MMA_PITCH = 20 }; /* elements from line to line of a square in shared memory */

/* Bytes that a warp stages its sums in. */
template <typename SUM> constexpr int sat_mma_square() { return 16 * SAT_MMA_PITCH * (int)sizeof(SUM); }

/* ---- 16-bit, as words ---- */

__device__ __forceinline__ uint32_t sat_mma_pack(__half, float x, float y) {
    __half2 h = __floats2half2_rn(x, y);
    return *(uint32_t *)&h;
}
__device__ __forceinline__ uint32_t sat_mma_pack(__nv_bfloat16, float x, float y) {
    __nv_bfloat162 h = __floats2bfloat162_rn(x, y);
    return *(uint32_t *)&h;
}

/* w[i] of lane q of four becomes w[q] of lane i. */
__device__ __forceinline__ void sat_mma_exchange(uint32_t (&w)[4], int q) {
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

/* Rows and columns from (i, j) on that are inside, as far as a warp's tile reaches. */
struct sat_mma_room {
    int rows, columns;
};
__device__ __forceinline__ sat_mma_room sat_mma_inside(const sat_out &o, int64_t i, int64_t j) {
    sat_mma_room room = {(int)min((int64_t)1024, o.m - i), (int)min((int64_t)1024, o.n - j)};
    return room;
}

/* Rows as lines: each lane ends with 8 columns of the n-th square of four. Of two squares it stores its own words. */
template <typename E, int HALVES, int NT>
__device__ __forceinline__ void sat_mma_put_rows(const sat_out &o, uint32_t (&word)[HALVES][NT], int64_t i, int64_t j,
                                                 int q) {
    constexpr int EACH = NT % 4 ? 2 : 8; /* elements a lane stores at once */
    sat_mma_room room = sat_mma_inside(o, i, j + EACH * q);
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
            sat_mma_exchange(w, q);
            if (8 * h < room.rows && 8 * n < room.columns)
                __stcg((uint4 *)(to + 8 * n), make_uint4(w[0], w[1], w[2], w[3]));
        }
}

/* Columns as lines, once the squares are turned; where there are only two squares in a column, by words. */
template <typename E, int HALVES, int NT>
__device__ __forceinline__ void sat_mma_put_columns(const sat_out &o, uint32_t (&word)[HALVES][NT], int64_t i,
                                                    int64_t j, int q) {
    constexpr int EACH = HALVES >= 4 ? 8 : 2; /* elements a lane stores at once */
    sat_mma_room room = sat_mma_inside(o, i + EACH * q, j);
    E *to = (E *)o.c + j * o.col_stride + i + EACH * q;
#pragma unroll
    for (int n = 0; n < NT; n++, to += 8 * o.col_stride)
#pragma unroll
        for (int h = 0; h < HALVES; h += EACH / 2) {
            bool inside = 8 * h < room.rows && 8 * n < room.columns;
            uint32_t w[4];
#pragma unroll
            for (int e = 0; e < EACH / 2; e++) w[e] = sat_turn_matrix(word[h + e][n]);
            if (EACH == 8) sat_mma_exchange(w, q);
            if (inside && EACH == 8) __stcg((uint4 *)(to + 8 * h), make_uint4(w[0], w[1], w[2], w[3]));
            if (inside && EACH == 2) __stcg((uint32_t *)(to + 8 * h), w[0]);
        }
}

template <typename E, int MT, int NT>
__device__ __forceinline__ void sat_mma_words(const sat_mma_out &o, const float (&sum)[MT][NT][4], int64_t i0,
                                              int64_t j0, int lane) {
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
                sat_mma_pack(E(), alpha * sum[h / 2][n][h % 2 * 2] + more, alpha * sum[h / 2][n][h % 2 * 2 + 1] + more);
    }
    if (o.columns) sat_mma_put_columns<E>(o.to, word, i0, j0 + g, q);
    else sat_mma_put_rows<E>(o.to, word, i0 + g, j0, q);
}

/* ---- f32 and f64, as they lie ---- */

__device__ __forceinline__ void sat_mma_put_pair(float *to, float x, float y) {
    __stcg((float2 *)to, make_float2(x, y));
}
__device__ __forceinline__ void sat_mma_put_pair(double *to, double x, double y) {
    __stcg((double2 *)to, make_double2(x, y));
}

template <bool PAIRS, typename SUM, int MT, int NT, int SUMS>
__device__ __forceinline__ void sat_mma_pairs(const sat_out &o, const SUM (&sum)[MT][NT][SUMS], int64_t i, int64_t j) {
    const SUM alpha = (SUM)o.alpha, *bias = (const SUM *)o.bias;
    const int64_t step = PAIRS ? 1 : o.col_stride;
    sat_mma_room room = sat_mma_inside(o, i, j);
    SUM *to = (SUM *)o.c + i * o.row_stride + j * step;
#pragma unroll
    for (int h = 0; h < MT * SUMS / 2; h++, to += 8 * o.row_stride) {
        if (8 * h >= room.rows) continue;
        SUM more = bias ? bias[i + 8 * h] : 0;
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const SUM *s = sum[h / (SUMS / 2)][n] + h % (SUMS / 2) * 2;
            SUM x = alpha * s[0] + more, y = alpha * s[1] + more;
            if (PAIRS && 8 * n < room.columns) sat_mma_put_pair(to + 8 * n, x, y);
            if (!PAIRS && 8 * n < room.columns) __stcg(to + 8 * n * step, x);
            if (!PAIRS && 8 * n + 1 < room.columns) __stcg(to + (8 * n + 1) * step, y);
        }
    }
}

/* ---- anything, through shared memory ---- */

template <typename E> __device__ __forceinline__ void sat_mma_put_8(E *to, const float *y) {
    __stcg((uint4 *)to, make_uint4(sat_mma_pack(E(), y[0], y[1]), sat_mma_pack(E(), y[2], y[3]),
                                   sat_mma_pack(E(), y[4], y[5]), sat_mma_pack(E(), y[6], y[7])));
}

/* A line's eight elements, finished, from shared memory to C at `at`, neighbours there. */
__device__ __forceinline__ void sat_mma_put_line(const sat_out &o, int64_t at, const float *y) {
    if (o.dtype == SAT_F16) return sat_mma_put_8((__half *)o.c + at, y);
    if (o.dtype == SAT_BF16) return sat_mma_put_8((__nv_bfloat16 *)o.c + at, y);
    float4 *to = (float4 *)((float *)o.c + at);
    __stcg(to, make_float4(y[0], y[1], y[2], y[3]));
    __stcg(to + 1, make_float4(y[4], y[5], y[6], y[7]));
}
__device__ __forceinline__ void sat_mma_put_line(const sat_out &o, int64_t at, const double *y) {
#pragma unroll
    for (int e = 0; e < 8; e += 2) sat_mma_put_pair((double *)o.c + at + e, y[e], y[e + 1]);
}

/* A lane's eight elements of a square whose first element is (i, j) of C, a line in LINES. */
template <typename SUM, int LINES>
__device__ __forceinline__ void sat_mma_put_square(const sat_mma_out &o, SUM *square, int64_t i, int64_t j, int lane) {
    const sat_out &to = o.to;
    int line = lane % LINES, part = lane / LINES * 8;
    int64_t across = (o.columns ? j : i) + line, along = (o.columns ? i : j) + part;
    int64_t room = (o.columns ? to.m : to.n) - along;
    if (across >= (o.columns ? to.n : to.m) || room <= 0) return;
    int64_t step = o.columns ? to.row_stride : to.col_stride;
    int64_t at = across * (o.columns ? to.col_stride : to.row_stride) + along * step;
    SUM *y = square + line * SAT_MMA_PITCH + part;
    bool together = o.vectors && room >= 8;
#pragma unroll 2
    for (int e = 0; e < 8 && e < room; e++) {
        SUM x = o.columns ? sat_finish(to, along + e, across, y[e]) : sat_finish(to, across, along + e, y[e]);
        if (together) y[e] = x;
        else sat_store_from(x, to.dtype, to.c, at + e * step);
    }
    if (together) sat_mma_put_line(to, at, y);
}

/* One square after another: the loop is one in the code too, so that the epilogue is there once. A square is two
 * fragments side by side; where columns are lines, it lies turned in shared memory. */
template <typename SUM, int MT, int NT, int SUMS>
__device__ __forceinline__ void sat_mma_staged(const sat_mma_out &o, const SUM (&sum)[MT][NT][SUMS], int64_t i0,
                                               int64_t j0, int lane, SUM *square) {
    constexpr int M = SUMS * 4;
    const int down = o.columns ? 1 : SAT_MMA_PITCH, right = o.columns ? SAT_MMA_PITCH : 1;
    SUM *mine = square + lane / 4 * down + lane % 4 * 2 * right;
#pragma unroll 1
    for (int s = 0; s < MT * NT / 2; s++) {
        __syncwarp();
#pragma unroll
        for (int t = 0; t < MT * NT / 2; t++) {
            if (t != s) continue;
#pragma unroll
            for (int e = 0; e < 2 * SUMS; e++)
                mine[e % SUMS / 2 * 8 * down + (e / SUMS * 8 + e % 2) * right] =
                    sum[t / (NT / 2)][t % (NT / 2) * 2 + e / SUMS][e % SUMS];
        }
        __syncwarp();
        int64_t i = i0 + s / (NT / 2) * M, j = j0 + s % (NT / 2) * 16;
        if (M == 16 || o.columns) { /* 16 lines of M; as rows, M lines of 16 */
            if (lane < 16 * (M / 8)) sat_mma_put_square<SUM, 16>(o, square, i, j, lane);
        } else if (lane < 16) sat_mma_put_square<SUM, M>(o, square, i, j, lane);
    }
    __syncwarp();
}

/* A warp's sums to rows i0.. and columns j0.. */
template <typename E, typename SUM, int MT, int NT, int SUMS>
__device__ __forceinline__ void sat_mma_put(const sat_mma_out &o, const SUM (&sum)[MT][NT][SUMS], int64_t i0,
                                            int64_t j0, int lane, SUM *square) {
    if constexpr (sizeof(E) == 2) {
        if (o.way == SAT_MMA_WORDS) return sat_mma_words<E>(o, sum, i0, j0, lane);
    }
    if (o.way == SAT_MMA_PAIRS && o.vectors && !o.columns && o.to.n % 2 == 0)
        sat_mma_pairs<true>(o.to, sum, i0 + lane / 4, j0 + lane % 4 * 2);
    else if (o.way == SAT_MMA_PAIRS) sat_mma_pairs<false>(o.to, sum, i0 + lane / 4, j0 + lane % 4 * 2);
    else sat_mma_staged(o, sum, i0, j0, lane, square);
}

#endif
