/* Tiles dealt out to CTAs that stay: each begins with the one of its own number and takes the others from a counter.
 * What a tile is made of is fetched step by step while the one before is worked on. */
#ifndef SAT_DEAL_CUH
#define SAT_DEAL_CUH

#include "join.cuh"

struct sat_deal {
    unsigned *counter; /* tiles handed out beyond each CTA's first; then CTAs that are done */
    const sat_piece *piece;
    sat_tiles all;
    unsigned tiles;
};

enum { SAT_COUNTER_BYTES = 256 };

/* Tiles a CTA that are worked on together: to choose from, so that all end at the same time; or few, where the way from
 * L2 limits and a panel that stays there counts for more. Measured with transposed products at 4096. */
static constexpr double SAT_TILES_EACH = 3, SAT_TILES_FEW = 0.75;

/* `panel_bytes`: what all pieces read of a panel. */
static inline sat_deal sat_deal_of(const sat_plan_work &work, unsigned *counter, int64_t slices, int64_t panels,
                                   double panel_bytes, const sat_device *d, double each = SAT_TILES_EACH) {
    sat_deal deal = {counter, work.piece, {(unsigned)work.pieces, (unsigned)work.heavy}, 0};
    deal.all.slices = (unsigned)slices, deal.all.panels = (unsigned)panels;
    deal.all.together = sat_tiles_together(work.even, work.pieces * slices, panels, panel_bytes, each * d->threads,
                                           (double)d->l2_bytes);
    deal.tiles = deal.all.pieces * deal.all.slices * deal.all.panels;
    return deal;
}

/* The schedule to the workspace, and behind it, in its last bytes of `bytes`, a counter at zero. */
static inline sat_status sat_deal_counter(const sat_prepare *q, size_t bytes, unsigned **counter) {
    *counter = (unsigned *)((char *)q->workspace + bytes - SAT_COUNTER_BYTES);
    cudaError_t e = cudaMemsetAsync(*counter, 0, SAT_COUNTER_BYTES, (cudaStream_t)q->stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize((cudaStream_t)q->stream);
    return e == cudaSuccess ? SAT_OK : sat_fail(SAT_DEVICE_ERROR, "%s: %s", q->variant->name, cudaGetErrorString(e));
}

/* The next tile of a warp. Each step waits for what the one before asked for. */
struct sat_dealt {
    unsigned number;
    int step;
    sat_tile_place at;
    sat_piece piece;
    int col; /* of this lane's block, in the first SAT_PIECE_COLUMNS */

    __device__ __forceinline__ void first() { number = blockIdx.x, step = 1; }
    __device__ __forceinline__ void another() { step = 0; }
    __device__ __forceinline__ bool none(const sat_deal &d) const { return number >= d.tiles; }

    /* Takes one step. False: there was none left to take, and the piece is there, unless `none`. */
    __device__ __forceinline__ bool fetch(const sat_deal &d) {
        if (step == 0) {
            number = d.tiles; /* where every tile has a CTA, there are no others */
            if (gridDim.x < d.tiles && threadIdx.x % 32 == 0) number = gridDim.x + atomicAdd(d.counter, 1u);
        } else if (step == 1) {
            number = __shfl_sync(~0u, number, 0);
            if (!none(d)) {
                at = sat_tile_at(&d.all, number);
                piece = d.piece[at.piece];
                if (threadIdx.x % 32 < SAT_PIECE_COLUMNS) col = d.piece[at.piece].col[threadIdx.x % 32];
            }
        } else {
            return false;
        }
        step++;
        return true;
    }
};

/* This lane's block of 32 of a piece: where its values are, and its first row of B. */
struct sat_some_blocks {
    int place, k;

    __device__ __forceinline__ void begin(const sat_rows &r, const sat_dealt &t) {
        int lane = threadIdx.x % 32;
        if (lane >= SAT_PIECE_COLUMNS || r.block) return fetch(r, t.piece, 0);
        place = (int)t.piece.first + lane, k = t.col * (int)r.bc;
    }
    __device__ __forceinline__ void fetch(const sat_rows &r, const sat_piece &piece, int first) {
        int mine = first + (int)(threadIdx.x % 32);
        if (mine >= piece.count) return;
        place = (int)sat_block_of(&r, piece.first + mine), k = r.col[piece.first + mine] * (int)r.bc;
    }
};

/* The next tile, with its first blocks, is fetched while this one's are on their way. */
struct sat_coming {
    sat_dealt tile;
    sat_some_blocks blocks;
    bool ready;

    __device__ __forceinline__ void fetch(const sat_deal &d, const sat_rows &r) {
        if (ready || tile.fetch(d)) return;
        if (!tile.none(d)) blocks.begin(r, tile);
        ready = true;
    }
};

/* At a kernel's end, all threads: the last CTA sets the counter back for the next launch. */
__device__ __forceinline__ void sat_deal_end(const sat_deal &d) {
    if (gridDim.x >= d.tiles) return;
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(d.counter + 1, 1u) == gridDim.x - 1) d.counter[0] = d.counter[1] = 0;
}

#endif
