/* Sums of warpgroup products, from registers to C. A warp has 16 rows, in the fragments that mma.sync has too.
 *
 * 16-bit C with nothing but alpha, bias and relu leaves by lines of 128 bytes: through shared memory, then 16 bytes a
 * thread. Everything else takes the ways of mma_out.cuh. */
#ifndef SAT_WGMMA_OUT_CUH
#define SAT_WGMMA_OUT_CUH

#include "hopper.cuh"
#include "mma_out.cuh"
#include "tensor_map.cuh"

enum {
    SAT_SLICE = 16 * 128,       // bytes of a warp's part of a slice of output: 16 rows of 128 bytes
    SAT_SLICES = 2,             // that there is room for
    SAT_STAGING = 8 * SAT_SLICE // of a warpgroup
};

static inline sat_mma_out sat_group_out_of(const sat_launch *l) {
    const sat_problem *p = l->problem;
    sat_mma_out o = sat_mma_out_of(l);
    bool relu = p->beta == 0 && p->activation == SAT_ACT_RELU;
    if (relu && sat_dtype_size(p->c_dtype) == 2 && o.vectors && (o.columns ? p->m : p->n) % 8 == 0)
        o.way = SAT_MMA_WORDS;
    return o;
}

/* Whether C is the sums as they are. */
__host__ __device__ __forceinline__ bool sat_out_plain(const sat_out &o) {
    return o.alpha == 1 && !o.bias && o.activation == SAT_ACT_NONE;
}

/* alpha*sum + bias and relu, in place. */
template <int COUNT> __device__ __forceinline__ void sat_group_finish(const sat_out &o, float (&d)[COUNT], int64_t i) {
    if (sat_out_plain(o)) return;
    float alpha = (float)o.alpha, low = 0, high = 0, least = o.activation == SAT_ACT_RELU ? 0 : -INFINITY;
    if (o.bias && i < o.m) low = sat_load_as(0.f, o.dtype, o.bias, i);
    if (o.bias && i + 8 < o.m) high = sat_load_as(0.f, o.dtype, o.bias, i + 8);
#pragma unroll
    for (int e = 0; e < COUNT; e++) {
        float y = alpha * d[e] + (e % 4 < 2 ? low : high);
        d[e] = y < least ? least : y; // NaN stays
    }
}

__device__ __forceinline__ uint4 sat_shared_16(uint32_t from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}

/* Where chunk `chunk` of 16 bytes of a line of 128 lies. */
__device__ __forceinline__ uint32_t sat_slice_at(int line, int chunk) { return line * 128 + (chunk ^ (line & 7)) * 16; }

template <typename E> __device__ __forceinline__ void sat_pack_8(uint32_t (&w)[4], const float *v) {
#pragma unroll
    for (int e = 0; e < 4; e++) w[e] = sat_mma_pack(E(), v[2 * e], v[2 * e + 1]);
}

/* A warp's 16 rows by W columns, into lines. */
template <typename E, int W> __device__ __forceinline__ void sat_slice_stage(const float *d, uint32_t staging) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int q = 0; q < W / 16; q++) {
        uint32_t w[4];
        sat_pack_8<E>(w, &d[q * 8]);
        sat_store_matrix(staging + sat_slice_at(lane % 16, q * 2 + lane / 16), w[0], w[1], w[2], w[3]);
    }
}

/* A warpgroup's 64 rows by W columns, turned: each line of the slice is a column of C. */
template <typename E, int W> __device__ __forceinline__ void sat_slice_turn(const float *d, uint32_t staging) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int q = 0; q < W / 16; q++) {
        uint32_t w[4];
        sat_pack_8<E>(w, &d[q * 8]);
        sat_store_turned(staging + sat_slice_at(q * 16 + lane % 8 + lane / 16 * 8, warp * 2 + lane / 8 % 2), w[0], w[1],
                         w[2], w[3]);
    }
}

/* A warp's 16 rows by W columns, of which `rows` and `columns` exist, to lines `pitch` apart. The next call may follow
 * with another `staging`, and the one after that with this one. */
template <typename E, int W>
__device__ __forceinline__ void sat_slice_rows(const float (&d)[W / 2], uint32_t staging, E *to, int64_t pitch,
                                               int rows, int columns) {
    constexpr int CHUNKS = W / 8;
    int lane = threadIdx.x % 32, row = lane / CHUNKS, chunk = lane % CHUNKS;
    sat_slice_stage<E, W>(d, staging);
    __syncwarp();
    to += row * pitch + chunk * 8;
#pragma unroll
    for (int e = 0; e < CHUNKS / 2; e++) { // 32 / CHUNKS rows each
        const int down = e * (32 / CHUNKS);
        uint4 v = sat_shared_16(staging + sat_slice_at(row + down, chunk));
        if (row + down < rows && chunk * 8 < columns) __stcg((uint4 *)(to + down * pitch), v);
    }
}

/* C by rows: a warp alone. */
template <typename E, int WN>
__device__ __forceinline__ void sat_group_rows(const sat_out &o, const float (&d)[WN / 2], uint32_t staging, int64_t i0,
                                               int64_t n0) {
    constexpr int W = WN < 64 ? WN : 64;
    int rows = (int)min((int64_t)16, o.m - i0), columns = (int)min((int64_t)WN, o.n - n0);
    E *to = (E *)o.c + i0 * o.row_stride + n0;
#pragma unroll
    for (int j = 0; j < WN; j += W)
        sat_slice_rows<E, W>(reinterpret_cast<const float(&)[W / 2]>(d[j / 2]), staging + j / W % 2 * SAT_SLICE, to + j,
                             o.row_stride, rows, columns - j);
    __syncwarp();
}

/* C by columns: the warpgroup together, 64 rows by W columns at a time, turned. `rows`: of these 64 that exist. */
template <typename E, int WN>
__device__ __forceinline__ void sat_group_columns(const sat_out &o, const float (&d)[WN / 2], uint32_t staging,
                                                  int64_t i0, int64_t n0, int64_t rows, int group) {
    constexpr int W = WN < 64 ? WN : 64;
    int column = threadIdx.x % 128 / 8, chunk = threadIdx.x % 8;
    E *to = (E *)o.c + (n0 + column) * o.col_stride + i0 + chunk * 8;
    bool inside = chunk * 8 < min(rows, o.m - i0);
    int columns = (int)min((int64_t)WN, o.n - n0) - column;
#pragma unroll
    for (int j = 0; j < WN; j += W) {
        uint32_t at = staging + j / W % 2 * (4 * SAT_SLICE);
        sat_slice_turn<E, W>(&d[j / 2], at);
        sat_some_sync(1 + group, 128);
#pragma unroll
        for (int down = 0; down < W; down += 16) {
            uint4 v = sat_shared_16(at + sat_slice_at(down + column, chunk));
            if (inside && j + down < columns) __stcg((uint4 *)(to + (j + down) * o.col_stride), v);
        }
    }
    sat_some_sync(1 + group, 128);
}

/* Both again, stored by the copy engine while the warpgroup goes on. C by rows: a warp alone; by columns: the warpgroup
 * together. */
template <typename E, int WN>
__device__ __forceinline__ void sat_group_copy(const CUtensorMap *c, const float (&d)[WN / 2], uint32_t staging, int i0,
                                               int n0, int n, bool columns, int group) {
    int warp = threadIdx.x / 32 % 4;
    bool one = threadIdx.x % (columns ? 128 : 32) == 0;
    if (!columns) staging += warp * SAT_SLICE, i0 += warp * 16;
#pragma unroll
    for (int j = 0; j < WN; j += 64) {
        uint32_t at = staging + j / 64 % SAT_SLICES * (4 * SAT_SLICE);
        if (n0 + j >= n) break;
        if (one && j == 0) sat_stores_read<0>();
        if (one && j > 0) sat_stores_read<SAT_SLICES - 1>();
        if (columns) {
            sat_some_sync(1 + group, 128);
            sat_slice_turn<E, 64>(&d[j / 2], at);
        } else {
            __syncwarp();
            sat_slice_stage<E, 64>(&d[j / 2], at);
        }
        sat_proxy_fence();
        if (columns) sat_some_sync(1 + group, 128);
        else __syncwarp();
        if (one) sat_tile_store(c, at, columns ? i0 : n0 + j, columns ? n0 + j : i0);
    }
}

/* C for that: false where it cannot be. By columns, whole warpgroups have rows of one block row. */
static inline bool sat_group_map(const sat_launch *l, const sat_mma_out &o, int64_t block_rows, CUtensorMap *map) {
    const sat_problem *p = l->problem;
    if (o.way != SAT_MMA_WORDS || block_rows % (o.columns ? 64 : 16) ||
        !sat_map_fits(p, p->c, p->m, p->n, p->c_align, 2))
        return false;
    cuuint64_t m = (cuuint64_t)p->m, n = (cuuint64_t)p->n;
    sat_tensor t = {p->c_dtype, o.to.c, 2, {n, m}, {(cuuint64_t)p->c.row_stride * 2}, {64, 16}, 128};
    if (o.columns) t = {p->c_dtype, o.to.c, 2, {m, n}, {(cuuint64_t)p->c.col_stride * 2}, {64, 64}, 128};
    return sat_map_encode(map, t);
}

/* Any other way: a warpgroup's 64 rows from i0 on, of which `rows` exist, by WN columns from n0 on. `staging` is the
 * warpgroup's, and free for the copy engine afterwards. */
template <typename E, int WN>
__device__ __forceinline__ void sat_group_put(const sat_mma_out &o, float (&d)[WN / 2], uint32_t staging, int64_t i0,
                                              int64_t n0, int64_t rows, int group) {
    int lane = threadIdx.x % 32, down = threadIdx.x / 32 % 4 * 16;
    bool words = o.way == SAT_MMA_WORDS;
    if (words) sat_group_finish(o.to, d, i0 + down + lane / 4);
    if (words && o.columns) {
        sat_group_columns<E, WN>(o.to, d, staging, i0, n0, rows, group);
    } else if (down < rows) {
        staging += down / 16 * 2 * SAT_SLICE;
        const float(&sum)[1][WN / 8][4] = reinterpret_cast<const float(&)[1][WN / 8][4]>(d);
        if (words) sat_group_rows<E, WN>(o.to, d, staging, i0 + down, n0);
        else if (o.way == SAT_MMA_STAGED || o.to.dtype != SAT_F32 || o.columns || !o.vectors || o.to.n % 2)
            sat_mma_staged(o, sum, i0 + down, n0, lane, (float *)__cvta_shared_to_generic(staging));
        else sat_mma_pairs<true>(o.to, sum, i0 + down + lane / 4, n0 + lane % 4 * 2);
    }
    sat_proxy_fence();
}

#endif
