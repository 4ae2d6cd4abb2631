/* The kernel of every tensor-core matmul by mma.sync: any element type, tile and layout. */
#ifndef SAT_MMA_KERNEL_CUH
#define SAT_MMA_KERNEL_CUH

#include "kernels/cuda/matmul/mma_feed.cuh"

/* A warp's fragments for one product of the step: part kk of it. */
template <class S> struct sat_mma_parts {
    typename S::math::a a[S::MT];
    typename S::math::b b[S::NT];

    __device__ __forceinline__ void load(const sat_mma_job &job, uint32_t a_place, uint32_t b_place, int kk) {
        if (job.a_deep) S::math::template load_a<S::BM, S::KS, true>(a, a_place, kk);
        else S::math::template load_a<S::BM, S::KS, false>(a, a_place, kk);
        if (!job.b_deep) S::math::template load_b<S::BN, S::KS, false>(b, b_place, kk);
        else S::math::template load_b<S::BN, S::KS, true>(b, b_place, kk);
    }
};

/* A warp's place in a tile. */
template <class S> __device__ __forceinline__ int sat_mma_row(int warp) { return warp / (S::BN / S::WN) * S::WM; }
template <class S> __device__ __forceinline__ int sat_mma_column(int warp) { return warp % (S::BN / S::WN) * S::WN; }

template <class S> __device__ __forceinline__ int sat_mma_steps(const sat_mma_job &job, unsigned tile) {
    int count = sat_work_item_at(job.r, job.work.piece, sat_mma_tile_at(job, tile).piece).count;
    return max(1, (count * (int)job.units + S::UNITS - 1) / S::UNITS);
}

/* Where the sums of a tile go: rows of C, or a slot of partial sums. */
template <class S>
__device__ __forceinline__ sat_tile_epilogue sat_mma_target(const sat_mma_job &job, int slot, unsigned item) {
    if (slot >= 0) return sat_partial_epilogue<typename S::sum>(job.work.partial, job.out.to.n);
    sat_tile_epilogue out = job.out;
    out.to.c = (char *)out.to.c + item * job.c_item;
    return out;
}

template <class S>
__device__ __forceinline__ void sat_mma_store(const sat_mma_job &job, unsigned tile,
                                              const typename S::sum (&sum)[S::MT][S::NT][S::math::SUMS],
                                              unsigned char *squares) {
    int thread = reread_thread_index(), lane = thread % 32, warp = thread / 32;
    sat_mma_tile t = sat_mma_tile_at(job, tile);
    sat_work_item piece = sat_work_item_at(job.r, job.work.piece, t.piece);
    int64_t i = (piece.slot < 0 ? piece.row : piece.slot) * job.r.br + t.slice * S::BM + sat_mma_row<S>(warp);
    int64_t j = t.panel * (int64_t)S::BN + sat_mma_column<S>(warp);
    sat_warp_store<typename S::element>(sat_mma_target<S>(job, piece.slot, t.item), sum, i, j, lane,
                                        (typename S::sum *)(squares + warp * sat_square_bytes<typename S::sum>()));
}

template <class S>
static __global__ void __launch_bounds__(S::THREADS, S::CTAS) sat_mma_matmul(const __grid_constant__ sat_mma_job job) {
    typedef typename S::sum sum_t;
    extern __shared__ __align__(1024) unsigned char shared[];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int row = sat_mma_row<S>(warp), column = sat_mma_column<S>(warp);
    const uint32_t base = smem_address(shared);
    const uint32_t a_place = base + (job.a_deep ? S::math::template find_a<S::BM, S::KS, true>(lane, row)
                                                : S::math::template find_a<S::BM, S::KS, false>(lane, row));
    const uint32_t b_place = base + S::A_BYTES +
                             (job.b_deep ? S::math::template find_b<S::BN, S::KS, true>(lane, column)
                                         : S::math::template find_b<S::BN, S::KS, false>(lane, column));
    uint32_t stage = 0, free = 0; /* the one that is multiplied, the one to copy to */
    sat_mma_feed<S> feed;
    sat_mma_parts<S> parts[2];
    sum_t sum[S::MT][S::NT][S::math::SUMS] = {};
    unsigned tile = blockIdx.x;
    int ahead = 0, steps = sat_mma_steps<S>(job, tile);
    feed.start(job, base);
    for (;;) {
        feed.step(job, free);
        if (ahead < S::STAGES - 1) { /* nothing has come yet */
            free += S::STAGE;
            if (++ahead < S::STAGES - 1) continue;
            cp_async_wait_group<S::STAGES - 2>();
            __syncthreads();
            parts[0].load(job, a_place, b_place, 0);
            continue;
        }
#pragma unroll
        for (int kk = 0; kk < S::KK; kk++) {
            if (kk == S::KK - 1) { /* the next step has come; all have what they need of this one */
                cp_async_wait_group<S::STAGES - 2>();
                __syncthreads();
                free = stage;
                stage = stage == (S::STAGES - 1) * S::STAGE ? 0 : stage + S::STAGE;
            }
            parts[(kk + 1) % 2].load(job, a_place + stage, b_place + stage, (kk + 1) % S::KK);
            S::math::settle(parts[kk % 2].a, parts[kk % 2].b);
#pragma unroll
            for (int i = 0; i < S::MT; i++)
#pragma unroll
                for (int j = 0; j < S::NT; j++) S::math::multiply(sum[i][j], parts[kk % 2].a[i], parts[kk % 2].b[j]);
        }
        if (--steps > 0) continue;
        sat_mma_store<S>(job, tile, sum, shared + S::STAGES * S::STAGE);
        tile += gridDim.x;
        if (tile >= job.tiles) break;
        steps = sat_mma_steps<S>(job, tile);
#pragma unroll
        for (int i = 0; i < S::MT; i++)
#pragma unroll
            for (int j = 0; j < S::NT; j++)
#pragma unroll
                for (int e = 0; e < S::math::SUMS; e++) sum[i][j][e] = 0;
    }
}

#endif
