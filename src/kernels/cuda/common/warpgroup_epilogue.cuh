/* The epilogue of a warpgroup, after wgmma (epilogue.cuh has the fragments and the store paths).
 *
 * A warpgroup has 64 rows, 16 a warp, by WN columns. 16-bit C with alpha, bias and relu only goes through a staging
 * buffer in shared memory, 64 columns at a time, so that it leaves in lines of 128 bytes: by a TMA store where a tensor
 * map can describe C, otherwise by 16 bytes per thread. This is the packed16 path of a warpgroup. Everything else takes
 * the pairs or the generic path. */
#ifndef SAT_WARPGROUP_EPILOGUE_CUH
#define SAT_WARPGROUP_EPILOGUE_CUH

#include "kernels/cuda/common/epilogue.cuh"
#include "kernels/cuda/common/ptx_sm90.cuh"

/* alpha*sum + bias and relu, in place. `i`: the row of this thread's first sum. */
template <int COUNT>
__device__ __forceinline__ void sat_warpgroup_apply_alpha_bias_relu(const sat_epilogue &o, float (&d)[COUNT],
                                                                    int64_t i) {
    if (sat_epilogue_is_identity(o)) return;
    float alpha = (float)o.alpha, low = 0, high = 0, lower_bound = o.activation == SAT_ACT_RELU ? 0 : -INFINITY;
    if (o.bias && i < o.m) low = sat_load_as(0.f, o.dtype, o.bias, i);
    if (o.bias && i + 8 < o.m) high = sat_load_as(0.f, o.dtype, o.bias, i + 8);
#pragma unroll
    for (int e = 0; e < COUNT; e++) {
        float y = alpha * d[e] + (e % 4 < 2 ? low : high);
        d[e] = y < lower_bound ? lower_bound : y; // keeps NaN
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

/* C column-major: the warpgroup together, 64 rows by W columns at a time. `rows`: how many of the 64 exist. `wg`: the
 * warpgroup, whose named barrier is 1 + wg. */
template <typename E, int WN>
__device__ __forceinline__ void sat_warpgroup_store_columns(const sat_epilogue &o, const float (&d)[WN / 2],
                                                            uint32_t staging, int64_t i0, int64_t n0, int64_t rows,
                                                            int wg) {
    constexpr int W = WN < 64 ? WN : 64;
    int column = threadIdx.x % 128 / 8, vec16 = threadIdx.x % 8;
    E *to = (E *)o.c + (n0 + column) * o.col_stride + i0 + vec16 * 8;
    bool inside = vec16 * 8 < min(rows, o.m - i0);
    int columns = (int)min((int64_t)WN, o.n - n0) - column;
#pragma unroll
    for (int j = 0; j < WN; j += W) {
        uint32_t buffer = staging + j / W % 2 * (4 * SAT_STAGING_WARP);
        sat_write_staging<E, W, true>(&d[j / 2], buffer);
        named_barrier_sync(1 + wg, 128);
#pragma unroll
        for (int down = 0; down < W; down += 16) {
            uint4 v = ld_shared_v4(buffer + swizzled_offset(down + column, vec16));
            if (inside && j + down < columns) __stcg((uint4 *)(to + (j + down) * o.col_stride), v);
        }
    }
    named_barrier_sync(1 + wg, 128);
}

/* The same by TMA stores, which run while the warpgroup goes on. C row-major: each warp on its own; column-major: the
 * warpgroup together. RANK 3: C is one of many matrices, number `item`. */
template <typename E, int WN, int RANK = 2>
__device__ __forceinline__ void sat_warpgroup_tma_store(const CUtensorMap *c, const float (&d)[WN / 2],
                                                        uint32_t staging, int i0, int n0, int n, bool column_major,
                                                        int wg, int item = 0) {
    int warp = threadIdx.x / 32 % 4;
    bool one = threadIdx.x % (column_major ? 128 : 32) == 0;
    if (!column_major) staging += warp * SAT_STAGING_WARP, i0 += warp * 16; /* [buffer][warp]: SAT_STAGING */
#pragma unroll
    for (int j = 0; j < WN; j += 64) {
        uint32_t buffer = staging + j / 64 % SAT_STAGING_BUFFERS * (4 * SAT_STAGING_WARP);
        if (n0 + j >= n) break;
        if (one && j == 0) tma_store_wait_read<0>();
        if (one && j > 0) tma_store_wait_read<SAT_STAGING_BUFFERS - 1>();
        if (column_major) {
            named_barrier_sync(1 + wg, 128);
            sat_write_staging<E, 64, true>(&d[j / 2], buffer);
        } else {
            __syncwarp();
            sat_write_staging<E, 64, false>(&d[j / 2], buffer);
        }
        fence_proxy_async();
        if (column_major) named_barrier_sync(1 + wg, 128);
        else __syncwarp();
        int x = column_major ? i0 : n0 + j, y = column_major ? n0 + j : i0;
        if (!one) continue;
        if constexpr (RANK == 3) tma_store(c, buffer, x, y, item);
        else tma_store(c, buffer, x, y);
    }
}

/* The tensor map of C for those stores; false where there cannot be one. Where C is column-major a TMA store has 64
 * rows, which must belong to one block row. */
static inline bool sat_output_tensormap(const sat_launch *l, const sat_tile_epilogue &o, int64_t block_rows,
                                        CUtensorMap *map) {
    int rows = o.column_major ? 64 : 16;
    return o.path == SAT_STORE_PACKED16 && block_rows % rows == 0 && tensormap_of_c(l, rows, 64, map);
}

/* Stores a warpgroup's 64 rows from i0 on, of which `rows` exist, by WN columns from n0 on, without TMA. Afterwards TMA
 * may use `staging`. */
template <typename E, int WN>
__device__ __forceinline__ void sat_warpgroup_store(const sat_tile_epilogue &o, float (&d)[WN / 2], uint32_t staging,
                                                    int64_t i0, int64_t n0, int64_t rows, int wg) {
    int lane = threadIdx.x % 32, down = threadIdx.x / 32 % 4 * 16;
    bool packed = o.path == SAT_STORE_PACKED16;
    if (packed) sat_warpgroup_apply_alpha_bias_relu(o.out, d, i0 + down + lane / 4);
    if (packed && o.column_major) {
        sat_warpgroup_store_columns<E, WN>(o.out, d, staging, i0, n0, rows, wg);
    } else if (down < rows) {
        staging += down / 16 * 2 * SAT_STAGING_WARP; /* [warp][buffer]: SAT_STAGING */
        const float(&sum)[1][WN / 8][4] = reinterpret_cast<const float(&)[1][WN / 8][4]>(d);
        if (packed) sat_warpgroup_store_rows<E, WN>(o.out, d, staging, i0 + down, n0);
        else if (o.path == SAT_STORE_GENERIC || o.out.dtype != SAT_F32 || o.column_major || !o.aligned || o.out.n % 2)
            sat_store_generic(o, sum, i0 + down, n0, lane, (float *)__cvta_shared_to_generic(staging));
        else sat_store_pairs<true>(o.out, sum, i0 + down + lane / 4, n0 + lane % 4 * 2);
    }
    fence_proxy_async();
}

#endif
