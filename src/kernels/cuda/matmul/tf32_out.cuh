/* Sums of TF32 warpgroup products, from registers to f32 C.
 *
 * A shape S has S::PARTS products of S::HAS sums a thread. S::TB: one, 64 rows by its columns, in the fragments that
 * mma.sync has too. Otherwise sides are exchanged: each has 64 columns of C by all rows of the tile, and the columns
 * are numbered so that a lane has four neighbours in two products. Those leave by lines as they are. */
#ifndef SAT_TF32_OUT_CUH
#define SAT_TF32_OUT_CUH

#include "kernels/cuda/common/epilogue.cuh"

/* A lane's columns of 32, exchanged: the four of a chunk of 16 bytes. Of two products the first has two of them, the
 * upper ones where `upper`, and the second the other two. So half a warp, fetching two columns a lane from four lines
 * whose chunks are exchanged as copies do it, meets every bank once. */
struct sat_tf32_columns {
    int chunk;
    bool upper;
};
__device__ __forceinline__ sat_tf32_columns sat_tf32_columns_of(int lane) {
    int g = lane / 4;
    return {g / 2 + g % 2 * 4, g / 2 % 2 == 1};
}

/* Row and column of sum e of a thread within what its warpgroup has. */
struct sat_tf32_spot {
    int row, column;
};
template <typename S> __device__ __forceinline__ sat_tf32_spot sat_tf32_spot_of(int e) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, g = lane / 4, q = lane % 4, part = e / S::HAS;
    int outer = e % 4 / 2, inner = e % S::HAS / 4 * 8 + q * 2 + e % 2;
    if (S::TB) return {warp * 16 + g + outer * 8, inner};
    sat_tf32_columns c = sat_tf32_columns_of(lane);
    return {inner, part / 2 * 128 + warp * 32 + c.chunk * 4 + (c.upper ^ part % 2) * 2 + outer};
}

/* Anything, four sums after another: the loop is one in the code too, so that the epilogue is there once. */
template <typename S>
__device__ __forceinline__ void sat_tf32_put_any(const sat_epilogue &to, const float (&d)[S::PARTS][S::HAS], int64_t i0,
                                                 int64_t n0) {
    constexpr int COUNT = S::PARTS * S::HAS;
#pragma unroll 1
    for (int s = 0; s < COUNT; s += 4) {
        float y[4];
#pragma unroll
        for (int e = 0; e < COUNT; e++)
            if (e / 4 * 4 == s) y[e % 4] = d[e / S::HAS][e % S::HAS];
#pragma unroll
        for (int v = 0; v < 4; v++) {
            sat_tf32_spot p = sat_tf32_spot_of<S>(s + v);
            if (i0 + p.row < to.m && n0 + p.column < to.n) sat_epilogue_store(to, i0 + p.row, n0 + p.column, y[v]);
        }
    }
}

/* alpha*sum + bias, and relu. */
struct sat_tf32_end {
    float alpha, least;
    const float *bias;
    __device__ explicit sat_tf32_end(const sat_epilogue &o)
        : alpha((float)o.alpha), least(o.activation == SAT_ACT_RELU ? 0 : -INFINITY), bias((const float *)o.bias) {}
    __device__ __forceinline__ float more(int64_t i) const { return bias ? bias[i] : 0; }
    __device__ __forceinline__ float of(float sum, float more) const {
        float y = alpha * sum + more;
        return y < least ? least : y; // NaN stays
    }
};

/* Exchanged, C by rows: 16 bytes a lane, 128 in a row of C. */
template <typename S>
__device__ __forceinline__ void sat_tf32_put_rows(const sat_epilogue &o, const float (&d)[S::PARTS][S::HAS], int64_t i0,
                                                  int64_t n0) {
    sat_tf32_end end(o);
    sat_tf32_spot mine = sat_tf32_spot_of<S>(0);
    bool upper = sat_tf32_columns_of(threadIdx.x % 32).upper;
    int64_t i = i0 + mine.row, j = n0 + mine.column - upper * 2;
    int rows = (int)min((int64_t)1024, o.m - i), columns = (int)min((int64_t)1024, o.n - j);
    float *to = (float *)o.c + i * o.row_stride + j;
#pragma unroll
    for (int r = 0; r < S::BM / 4; r++) {
        const int down = r / 2 * 8 + r % 2, e = r / 2 * 4 + r % 2;
        if (down >= rows) continue;
        float more = end.more(i + down);
        float *line = to + down * o.row_stride;
#pragma unroll
        for (int p = 0; p < S::PARTS; p += 2) {
            float x[4] = {d[p][e], d[p][e + 2], d[p + 1][e], d[p + 1][e + 2]}, y[4];
#pragma unroll
            for (int v = 0; v < 4; v++) y[v] = end.of(upper ? x[v ^ 2] : x[v], more);
            if (p * 64 < columns) __stcg((float4 *)(line + p * 64), make_float4(y[0], y[1], y[2], y[3]));
        }
    }
}

/* Exchanged, C by columns: 8 bytes a lane, 32 in a column of C. */
template <typename S>
__device__ __forceinline__ void sat_tf32_put_columns(const sat_epilogue &o, const float (&d)[S::PARTS][S::HAS],
                                                     int64_t i0, int64_t n0) {
    sat_tf32_end end(o);
    int rows = (int)min((int64_t)1024, o.m - i0), columns = (int)min((int64_t)1024, o.n - n0);
#pragma unroll
    for (int x = 0; x < S::HAS; x += 4) {
        int row = sat_tf32_spot_of<S>(x).row;
        if (row >= rows) continue;
        float first = end.more(i0 + row), second = end.more(i0 + row + 1);
#pragma unroll
        for (int e = 0; e < S::PARTS * 2; e++) {
            const int p = e / 2, h = e % 2 * 2;
            int column = sat_tf32_spot_of<S>(p * S::HAS + h).column;
            float *to = (float *)o.c + (n0 + column) * o.col_stride + i0 + row;
            if (column < columns)
                __stcg((float2 *)to, make_float2(end.of(d[p][x + h], first), end.of(d[p][x + h + 1], second)));
        }
    }
}

/* A warpgroup's sums, whose first is (i0, n0) of C. */
template <typename S>
__device__ __forceinline__ void sat_tf32_put(const sat_tile_epilogue &to, const float (&d)[S::PARTS][S::HAS],
                                             int64_t i0, int64_t n0) {
    const sat_epilogue &o = to.to;
    bool plain = o.beta == 0 && (o.activation == SAT_ACT_NONE || o.activation == SAT_ACT_RELU);
    if constexpr (S::TB) {
        sat_tf32_spot mine = sat_tf32_spot_of<S>(0);
        const float(&sum)[1][S::WN / 8][4] = reinterpret_cast<const float(&)[1][S::WN / 8][4]>(d);
        if (to.way != SAT_STORE_PAIRS) sat_tf32_put_any<S>(o, d, i0, n0);
        else if (to.columns || !to.vectors || o.n % 2) sat_store_pairs<false>(o, sum, i0 + mine.row, n0 + mine.column);
        else sat_store_pairs<true>(o, sum, i0 + mine.row, n0 + mine.column);
    } else {
        if (plain && to.vectors && !to.columns && o.n % 4 == 0) sat_tf32_put_rows<S>(o, d, i0, n0);
        else if (plain && to.vectors && to.columns && o.m % 2 == 0) sat_tf32_put_columns<S>(o, d, i0, n0);
        else sat_tf32_put_any<S>(o, d, i0, n0);
    }
}

#endif
