/* The rows of a product cut into pieces of work: longest first, and a row that is more than a fair share in several.
 * The pieces of a cut row leave partial sums, which join.cuh adds in their order: the result does not depend on who
 * was done first. Plain C, so that the host's tests see every block covered exactly once. */
#ifndef SAT_SCHEDULER_H
#define SAT_SCHEDULER_H

#include <stdlib.h>

#include "variant.h"

enum { SAT_ITEM_COLUMNS = 11 };

typedef struct sat_work_item {
    int64_t first; /* its first block, as a position in the rows' order */
    int32_t row;
    int32_t count;                 /* blocks; 0 for an empty row, which has its output to write all the same */
    int32_t slot;                  /* where its partial sum goes; -1: it is the whole row */
    int32_t col[SAT_ITEM_COLUMNS]; /* of its first blocks: known with the piece, not one load later */
} sat_work_item;

typedef struct sat_split_row { /* a row that was cut: slots slot .. slot + parts - 1 */
    int32_t row, slot, parts, unused;
} sat_split_row;

typedef struct sat_schedule {
    int64_t pieces, joins, slots;
    int64_t heavy;        /* the first so many have over twice as many blocks as the mean of those that have any */
    bool even;            /* none has a quarter more than that mean */
    sat_work_item *piece; /* NULL where only counted */
    sat_split_row *join;
} sat_schedule;

/* The most blocks that a piece should have, so that `workers` CTAs have like shares of all rows, each row walked
 * `times` (once a tile of columns). Never fewer than `least`: below that a partial sum costs more than it evens out. */
static inline int64_t sat_schedule_share(const sat_rows *r, int64_t times, int64_t workers, int64_t least) {
    double fair = (double)r->ptr[r->count] * (double)times / (double)sat_max(1, workers);
    return sat_max(least, fair < 1e15 ? (int64_t)fair + 1 : INT64_MAX);
}

/* A row slightly above the share stays whole. */
static inline int64_t sat_schedule_parts(int64_t blocks, int64_t share) {
    return blocks - share <= share / 4 ? 1 : (blocks + share - 1) / share;
}

static inline sat_schedule sat_schedule_count(const sat_rows *r, int64_t share) {
    sat_schedule s = {0};
    for (int64_t i = 0; i < r->count; i++) {
        int64_t parts = sat_schedule_parts(r->ptr[i + 1] - r->ptr[i], share);
        s.pieces += parts;
        if (parts > 1) s.joins++, s.slots += parts;
    }
    return s;
}

/* Longest first; among equals the order of the rows, which neighbours in memory like. */
static inline int sat_work_item_order(const void *a, const void *b) {
    const sat_work_item *x = (const sat_work_item *)a, *y = (const sat_work_item *)b;
    if (x->count != y->count) return x->count < y->count ? 1 : -1;
    return x->first < y->first ? -1 : x->first > y->first ? 1 : x->row < y->row ? -1 : x->row > y->row;
}

static inline void sat_schedule_free(sat_schedule *s) {
    free(s->piece);
    free(s->join);
    s->piece = NULL, s->join = NULL;
}

static inline bool sat_schedule_make(const sat_rows *r, int64_t share, sat_schedule *s) {
    *s = sat_schedule_count(r, share);
    s->piece = (sat_work_item *)malloc(((size_t)s->pieces + 1) * sizeof *s->piece);
    s->join = (sat_split_row *)malloc(((size_t)s->joins + 1) * sizeof *s->join);
    if (!s->piece || !s->join) {
        sat_schedule_free(s);
        return false;
    }
    int64_t at = 0, joins = 0;
    int32_t slot = 0;
    for (int64_t i = 0; i < r->count; i++) {
        int64_t first = r->ptr[i], blocks = r->ptr[i + 1] - first, parts = sat_schedule_parts(blocks, share);
        if (parts > 1) {
            sat_split_row join = {(int32_t)i, slot, (int32_t)parts, 0};
            s->join[joins++] = join;
        }
        for (int64_t part = 0; part < parts; part++) {
            int64_t from = blocks * part / parts, to = blocks * (part + 1) / parts;
            sat_work_item piece = {first + from, (int32_t)i, (int32_t)(to - from), parts > 1 ? slot++ : -1, {0}};
            for (int64_t t = 0; r->col && t < to - from && t < SAT_ITEM_COLUMNS; t++)
                piece.col[t] = r->col[first + from + t];
            s->piece[at++] = piece;
        }
    }
    qsort(s->piece, (size_t)s->pieces, sizeof *s->piece, sat_work_item_order);
    int64_t busy = s->pieces;
    while (busy > 0 && s->piece[busy - 1].count == 0) busy--;
    while (s->heavy < busy && s->piece[s->heavy].count * busy > 2 * r->ptr[r->count]) s->heavy++;
    s->even = busy == 0 || s->piece[0].count * busy * 4 <= 5 * r->ptr[r->count];
    return true;
}

/* The sampled product's pieces, `each` neighbours of a block row, where there is room for them; returns how many. */
static inline int64_t sat_schedule_runs(const sat_pattern_view *a, int64_t each, sat_work_item *piece) {
    int64_t count = 0;
    for (int64_t row = 0; row < a->grid_rows; row++)
        for (int64_t first = a->row_ptr[row], end = a->row_ptr[row + 1]; first < end; first += each) {
            sat_work_item one = {first, (int32_t)row, (int32_t)sat_min(each, end - first), -1, {0}};
            if (piece) piece[count] = one;
            count++;
        }
    return count;
}

/* Bytes of a workspace that holds the pieces, the joins and the partial sums, [slot][row in block][column]. */
static inline size_t sat_schedule_bytes(const sat_schedule *s, int64_t block_rows, int64_t n, size_t element) {
    return (size_t)s->pieces * sizeof(sat_work_item) + (size_t)s->joins * sizeof(sat_split_row) + 256 +
           (size_t)s->slots * (size_t)block_rows * (size_t)n * element;
}

/* ---- tiles ---- */

/* A piece's rows in `slices`, its columns in `panels`. Heavy pieces come first, with all their panels; the others by
 * `together` panels at a time, which stay in the cache, and the longest of those first: no long one is begun late. */
typedef struct sat_tile_order {
    unsigned pieces, heavy, slices, panels, together;
} sat_tile_order;

typedef struct sat_tile_coordinates {
    unsigned piece, slice, panel;
} sat_tile_coordinates;

/* As many panels of `panel_bytes` as have the tiles that are wanted at a time, but no more than L2 holds beside what is
 * written; one where all pieces are alike. The last ones are hardly fewer: what they begin late takes long. */
static inline unsigned sat_panels_in_flight(bool even, int64_t tiles_of_panel, int64_t panels, double panel_bytes,
                                            double tiles, double l2_bytes) {
    double wanted = ceil(tiles / (double)sat_max(1, tiles_of_panel));
    double most = fmax(1, floor(0.7 * l2_bytes / fmax(1, panel_bytes)));
    double times = fmax(1, fmax(ceil((double)panels / most), floor((double)panels / wanted)));
    return even ? 1 : (unsigned)fmax(1, ceil((double)panels / times));
}

SAT_BOTH static inline sat_tile_coordinates sat_tile_at(const sat_tile_order *d, unsigned number) {
    unsigned first = d->heavy * d->slices * d->panels, rest = number / d->slices;
    sat_tile_coordinates t;
    t.slice = number % d->slices;
    if (number < first) {
        t.piece = rest / d->panels, t.panel = rest % d->panels;
    } else {
        unsigned each = d->pieces - d->heavy, from, wide;
        rest -= d->heavy * d->panels;
        from = rest / (each * d->together) * d->together;
        wide = d->panels - from < d->together ? d->panels - from : d->together;
        rest -= from * each;
        t.piece = d->heavy + rest / wide, t.panel = from + rest % wide;
    }
    return t;
}

#ifdef __CUDACC__
#include "variant.cuh"

/* A schedule on the device: its arrays at the head of a variant's workspace, the partial sums behind them, and the
 * kernel that joins those into rows. */

/* What prepare keeps, and launch hands to a kernel. */
struct sat_device_schedule {
    int64_t pieces, joins, heavy;
    bool even;
    const sat_work_item *piece; /* on the device; NULL: piece i is row i, whole */
    const sat_split_row *join;
    void *partial;
};

static inline void sat_release_schedule(const sat_variant *v, void *state) {
    (void)v;
    free(state);
}

/* Without a schedule: one piece a row. */
static inline sat_device_schedule sat_whole_rows_schedule(const sat_rows *r) {
    sat_device_schedule w = {};
    w.pieces = r->count;
    return w;
}

/* Makes the schedule of `r`, whose arrays are the host's, and sends it to `to`, where sat_schedule_bytes fit. */
static inline sat_status sat_upload_schedule(const sat_prepare *prepare, const sat_rows *r, int64_t share, char *to,
                                             sat_device_schedule *w) {
    sat_schedule s;
    if (!sat_schedule_make(r, share, &s))
        return sat_fail(SAT_OUT_OF_MEMORY, "%s: schedule of %lld rows", prepare->variant->name, (long long)r->count);
    size_t pieces = (size_t)s.pieces * sizeof *s.piece, joins = (size_t)s.joins * sizeof *s.join;
    cudaStream_t stream = (cudaStream_t)prepare->stream;
    cudaError_t e = cudaMemcpyAsync(to, s.piece, pieces, cudaMemcpyHostToDevice, stream);
    if (e == cudaSuccess && joins) e = cudaMemcpyAsync(to + pieces, s.join, joins, cudaMemcpyHostToDevice, stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream);
    w->pieces = s.pieces, w->joins = s.joins, w->heavy = s.heavy, w->even = s.even;
    w->piece = (const sat_work_item *)to, w->join = (const sat_split_row *)(to + pieces);
    w->partial = to + (pieces + joins + 255) / 256 * 256;
    sat_schedule_free(&s);
    if (e == cudaSuccess) return SAT_OK;
    return sat_fail(SAT_DEVICE_ERROR, "%s: %s", prepare->variant->name, cudaGetErrorString(e));
}

/* The problem's own rows, to the head of the workspace; what launch reads is a family's whole state. */
static inline sat_status sat_prepare_schedule(const sat_prepare *prepare, int64_t share, void **state) {
    sat_rows r = sat_op_rows(prepare->problem, prepare->pattern);
    sat_device_schedule *w = (sat_device_schedule *)calloc(1, sizeof *w);
    if (!w) return sat_fail(SAT_OUT_OF_MEMORY, "%s: state", prepare->variant->name);
    sat_status status = sat_upload_schedule(prepare, &r, share, (char *)prepare->workspace, w);
    if (status == SAT_OK) *state = w;
    else free(w);
    return status;
}

__device__ __forceinline__ sat_work_item sat_work_item_at(const sat_rows &r, const sat_work_item *piece, int64_t i) {
    if (piece) return piece[i];
    sat_work_item whole = {r.ptr[i], (int32_t)i, (int32_t)(r.ptr[i + 1] - r.ptr[i]), -1, {}};
    return whole;
}

/* Adds the partial sums of cut rows, in the order of their slots; a thread has an element of a row. */
template <typename T> static __global__ void sat_reduce_partials(sat_rows r, sat_epilogue out, sat_device_schedule w) {
    const T *partial = (const T *)w.partial;
    int64_t n = out.n, area = r.br * n, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < w.joins * area; at += step) {
        sat_split_row join = w.join[at / area];
        int64_t in_row = at % area / n, j = at % n, i = join.row * r.br + in_row;
        if (i >= r.m) continue;
        T sum = 0;
        for (int part = 0; part < join.parts; part++) sum += partial[((join.slot + part) * r.br + in_row) * n + j];
        sat_epilogue_store(out, i, j, sum);
    }
}

/* Sums are doubles where the values are. */
static inline sat_status sat_launch_split_reduction(const sat_launch *l, const sat_rows &r, const sat_epilogue &out,
                                                    const sat_device_schedule &w) {
    if (w.joins == 0) return SAT_OK;
    unsigned blocks = sat_blocks(w.joins * r.br * out.n, 256);
    cudaStream_t stream = (cudaStream_t)l->stream;
    if (l->problem->a_dtype == SAT_F64) sat_reduce_partials<double><<<blocks, 256, 0, stream>>>(r, out, w);
    else sat_reduce_partials<float><<<blocks, 256, 0, stream>>>(r, out, w);
    return sat_launched(l);
}

/* Tiles dealt out to CTAs that stay: each begins with the one of its own number and takes the others from a counter.
 * What a tile is made of is fetched step by step while the one before is worked on. */

struct sat_tile_scheduler {
    unsigned *counter; /* tiles handed out beyond each CTA's first; then CTAs that are done */
    const sat_work_item *piece;
    sat_tile_order all;
    unsigned tiles;
};

enum { SAT_COUNTER_BYTES = 256 };

/* Tiles a CTA that are worked on together: to choose from, so that all end at the same time; or few, where the way from
 * L2 limits and a panel that stays there counts for more. Measured with transposed products at 4096. */
static constexpr double SAT_TILES_EACH = 3, SAT_TILES_FEW = 0.75;

/* `panel_bytes`: what all pieces read of a panel. */
static inline sat_tile_scheduler sat_tile_scheduler_of(const sat_device_schedule &work, unsigned *counter,
                                                       int64_t slices, int64_t panels, double panel_bytes,
                                                       const sat_device *d, double each = SAT_TILES_EACH) {
    sat_tile_scheduler deal = {counter, work.piece, {(unsigned)work.pieces, (unsigned)work.heavy}, 0};
    deal.all.slices = (unsigned)slices, deal.all.panels = (unsigned)panels;
    deal.all.together = sat_panels_in_flight(work.even, work.pieces * slices, panels, panel_bytes, each * d->threads,
                                             (double)d->l2_bytes);
    deal.tiles = deal.all.pieces * deal.all.slices * deal.all.panels;
    return deal;
}

/* The schedule to the workspace, and behind it, in its last bytes of `bytes`, a counter at zero. */
static inline sat_status sat_tile_counter_init(const sat_prepare *q, size_t bytes, unsigned **counter) {
    *counter = (unsigned *)((char *)q->workspace + bytes - SAT_COUNTER_BYTES);
    cudaError_t e = cudaMemsetAsync(*counter, 0, SAT_COUNTER_BYTES, (cudaStream_t)q->stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize((cudaStream_t)q->stream);
    return e == cudaSuccess ? SAT_OK : sat_fail(SAT_DEVICE_ERROR, "%s: %s", q->variant->name, cudaGetErrorString(e));
}

/* The next tile of a warp. Each step waits for what the one before asked for. */
struct sat_fetched_tile {
    unsigned number;
    int step;
    sat_tile_coordinates at;
    sat_work_item piece;
    int col; /* of this lane's block, in the first SAT_ITEM_COLUMNS */

    __device__ __forceinline__ void first() { number = blockIdx.x, step = 1; }
    __device__ __forceinline__ void request_next() { step = 0; }
    __device__ __forceinline__ bool none(const sat_tile_scheduler &d) const { return number >= d.tiles; }

    /* Takes one step. False: there was none left to take, and the piece is there, unless `none`. */
    __device__ __forceinline__ bool fetch(const sat_tile_scheduler &d) {
        if (step == 0) {
            number = d.tiles; /* where every tile has a CTA, there are no others */
            if (gridDim.x < d.tiles && threadIdx.x % 32 == 0) number = gridDim.x + atomicAdd(d.counter, 1u);
        } else if (step == 1) {
            number = __shfl_sync(~0u, number, 0);
            if (!none(d)) {
                at = sat_tile_at(&d.all, number);
                piece = d.piece[at.piece];
                if (threadIdx.x % 32 < SAT_ITEM_COLUMNS) col = d.piece[at.piece].col[threadIdx.x % 32];
            }
        } else {
            return false;
        }
        step++;
        return true;
    }
};

/* This lane's block of 32 of a piece: where its values are, and its first row of B. */
struct sat_lane_blocks {
    int place, k;

    __device__ __forceinline__ void begin(const sat_rows &r, const sat_fetched_tile &t) {
        int lane = threadIdx.x % 32;
        if (lane >= SAT_ITEM_COLUMNS || r.block) return fetch(r, t.piece, 0);
        place = (int)t.piece.first + lane, k = t.col * (int)r.bc;
    }
    __device__ __forceinline__ void fetch(const sat_rows &r, const sat_work_item &piece, int first) {
        int mine = first + (int)(threadIdx.x % 32);
        if (mine >= piece.count) return;
        place = (int)sat_block_of(&r, piece.first + mine), k = r.col[piece.first + mine] * (int)r.bc;
    }
};

/* The next tile, with its first blocks, is fetched while this one's are on their way. */
struct sat_prefetched_tile {
    sat_fetched_tile tile;
    sat_lane_blocks blocks;
    bool ready;

    __device__ __forceinline__ void fetch(const sat_tile_scheduler &d, const sat_rows &r) {
        if (ready || tile.fetch(d)) return;
        if (!tile.none(d)) blocks.begin(r, tile);
        ready = true;
    }
};

/* At a kernel's end, all threads: the last CTA sets the counter back for the next launch. */
__device__ __forceinline__ void sat_tile_scheduler_end(const sat_tile_scheduler &d) {
    if (gridDim.x >= d.tiles) return;
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(d.counter + 1, 1u) == gridDim.x - 1) d.counter[0] = d.counter[1] = 0;
}

#endif
#endif
