/* How the warps of a Hopper kernel pass data to each other: a ring of pipeline stages and a queue of tiles.
 *
 * A CTA has producer warps and consumer warpgroups. A producer takes a tile from the scheduler, publishes it in the
 * queue, and loads the tile's operands into the ring, one stage (a step along K) after the other. Consumers receive the
 * tile, multiply the stages as they arrive, and write the result.
 *
 * Every stage has two mbarriers. `full` completes a phase when the bytes that a producer announced have arrived.
 * `empty` completes a phase when all consumer warps have finished reading the stage. Queue entries have the same two. A
 * barrier is waited for by the parity of a phase: consumers begin with phase 0. Producers begin with 1, since the phase
 * before the first counts as complete: the first stages are empty. */
#ifndef SAT_RING_CUH
#define SAT_RING_CUH

#include "kernels/cuda/common/ptx_sm90.cuh"

enum { SAT_MAX_STAGES = 16, SAT_QUEUE_TILES = 4 };

/* The barriers and the queue of tiles. TILE: a tile as a kernel's producer publishes it to its consumers. */
template <typename TILE> struct sat_ring_shared {
    uint64_t full[SAT_MAX_STAGES], empty[SAT_MAX_STAGES], tile_full[SAT_QUEUE_TILES], tile_empty[SAT_QUEUE_TILES];
    TILE tiles[SAT_QUEUE_TILES];
};

/* By the first warp: makes the barriers. `consumer_warps` read stages and tiles; `tile_only_warps`, other producers,
 * read tiles. */
template <int STAGES, typename TILE>
__device__ __forceinline__ void sat_ring_init(sat_ring_shared<TILE> *s, int consumer_warps, int tile_only_warps = 0) {
    int i = threadIdx.x;
    if (i < STAGES) {
        mbarrier_init(smem_address(&s->full[i]), 1);
        mbarrier_init(smem_address(&s->empty[i]), consumer_warps);
    } else if (i < STAGES + SAT_QUEUE_TILES) {
        mbarrier_init(smem_address(&s->tile_full[i - STAGES]), 1);
        mbarrier_init(smem_address(&s->tile_empty[i - STAGES]), consumer_warps + tile_only_warps);
    }
    fence_mbarrier_init();
}

/* By all threads, where copies do not fill the memory of A: the rows that no copy writes become zero. The result does
 * not need it, since those rows are not stored; but products of zeros draw less power, so clocks stay up. */
template <int BYTES, int THREADS> __device__ __forceinline__ void sat_clear_shared(char *memory) {
    for (int i = threadIdx.x; i < BYTES / 16; i += THREADS) ((uint4 *)memory)[i] = make_uint4(0, 0, 0, 0);
    fence_proxy_async();
}

/* A warp's pipeline state of the queue of tiles: the next entry, and the phase to wait for. A kernel has a state of its
 * own for the stages. */
template <typename TILE> struct sat_tile_queue {
    int entry = 0;
    uint32_t phase;

    __device__ __forceinline__ void advance() {
        if (++entry == SAT_QUEUE_TILES) entry = 0, phase ^= 1;
    }
    /* By one lane of the producer. */
    __device__ __forceinline__ void publish(sat_ring_shared<TILE> *s, const TILE &t) {
        mbarrier_wait(smem_address(&s->tile_empty[entry]), phase);
        s->tiles[entry] = t;
        mbarrier_arrive(smem_address(&s->tile_full[entry]));
    }
    /* By a whole warp. */
    __device__ __forceinline__ TILE receive(sat_ring_shared<TILE> *s) {
        mbarrier_wait(smem_address(&s->tile_full[entry]), phase);
        TILE t = read_shared_broadcast(&s->tiles[entry]);
        if (threadIdx.x % 32 == 0) mbarrier_arrive(smem_address(&s->tile_empty[entry]));
        return t;
    }
};

#endif
