/* The persistent tile scheduler with split-K rows.
 *
 * A product C = op(A)*B with sparse A is cut into tiles of C. What a tile costs depends on its block row: the number of
 * stored blocks. Rows may differ by orders of magnitude, so neither one CTA per tile nor the same number of tiles
 * per CTA keeps a GPU busy to the end. The schedule deals with that in four steps:
 *
 * 1. Work items. A block row is one work item. A row with more blocks than a fair share of the work is split along K.
 *    It becomes several work items, each a range of the row's blocks. The items of a split row write partial sums to
 *    the workspace. A second kernel, the split-K reduction, adds them in a fixed order and applies the epilogue. There
 *    are no atomics on sums, so the result does not depend on timing.
 * 2. Longest first. Work items are sorted by their number of blocks, so that no long one begins late.
 * 3. Tiles. A tile is one slice of a work item's rows by one panel of C's columns. sat_tile_at maps a tile's number to
 *    (item, slice, panel), in an order that keeps a few panels of B in L2.
 * 4. Persistent CTAs. There are at most as many CTAs as multiprocessors (a kernel of short tiles may have one for each
 *    tile instead, and then nobody takes a second one). Each begins with the tile of its own number
 *    and takes further numbers from a counter in global memory. A producer warp prefetches the description of the next
 *    tile while it loads the operands of the current one.
 *
 * The first part of this file is plain C and runs on the host; scheduler.c makes the schedule. The second part is CUDA:
 * the schedule on the device, the split-K reduction, and the scheduler as a producer warp uses it. */
#ifndef SAT_SCHEDULER_H
#define SAT_SCHEDULER_H

#include <stdlib.h>

#include "variant.h"

/* ==== host: work items ==== */

enum { SAT_ITEM_COLUMNS = 11 }; /* makes a work item 64 bytes */

/* A block row, or a range of its blocks where it is split. */
typedef struct sat_work_item {
    int64_t first;                 /* its first block, a position in the order of op(A)'s rows */
    int32_t row;                   /* block row */
    int32_t count;                 /* blocks; an empty row has 0 and is an item too, since its output must be written */
    int32_t partial;               /* which partial sum it writes; -1: it is a whole row and writes C */
    int32_t col[SAT_ITEM_COLUMNS]; /* block columns of its first blocks: here they need no second load */
} sat_work_item;

/* A row that was split: its partial sums are `partial` to `partial + parts - 1`. */
typedef struct sat_split_row {
    int32_t row, partial, parts, unused;
} sat_split_row;

typedef struct sat_schedule {
    int64_t items, splits, partials; /* work items, split rows, partial sums */
    int64_t heavy;                   /* the first `heavy` items have more than 2x the mean over non-empty items */
    bool even;                       /* no item has more than 1.25x that mean */
    sat_work_item *item;             /* the work items, longest first; NULL where they were only counted */
    sat_split_row *split;            /* the split rows */
} sat_schedule;

/* The largest number of blocks that a work item should have for `workers` CTAs to get even shares, where each row is
 * read `times` times (once per tile of its output). At least `minimum`: for fewer blocks a partial sum costs more than
 * the balance gains. */
static inline int64_t sat_schedule_share(const sat_rows *r, int64_t times, int64_t workers, int64_t minimum) {
    if (!r->ptr) return INT64_MAX; /* the host does not see the rows */
    double fair = (double)r->ptr[r->count] * (double)times / (double)sat_max(1, workers);
    return sat_max(minimum, fair < 1e15 ? (int64_t)fair + 1 : INT64_MAX);
}

/* Into how many items a row is split. A row of up to 1.25x the share is not split. */
static inline int64_t sat_schedule_parts(int64_t blocks, int64_t share) {
    return blocks - share <= share / 4 ? 1 : (blocks + share - 1) / share;
}

#ifdef __cplusplus
extern "C" {
#endif
/* How many there will be, without making them. */
sat_schedule sat_schedule_count(const sat_rows *r, int64_t share);
/* Makes the schedule of the rows `r`; false: out of memory. Free it with sat_schedule_free. */
bool sat_schedule_make(const sat_rows *r, int64_t share, sat_schedule *s);
void sat_schedule_free(sat_schedule *s);
/* The work items of the sampled product: runs of up to `each` neighbouring blocks of a block row. Returns how many
 * there are, and writes them unless `items` is NULL. */
int64_t sat_schedule_runs(const sat_pattern_view *a, int64_t each, sat_work_item *items);
#ifdef __cplusplus
}
#endif

/* Bytes of a workspace that holds the work items, the split rows and the partial sums, [partial][row in block][column].
 */
static inline size_t sat_schedule_bytes(const sat_schedule *s, int64_t block_rows, int64_t n, size_t element) {
    return (size_t)s->items * sizeof(sat_work_item) + (size_t)s->splits * sizeof(sat_split_row) + 256 +
           (size_t)s->partials * (size_t)block_rows * (size_t)n * element;
}

/* ==== host and device: the order of tiles ==== */

/* A tile is a work item's slice (tile_m of its rows) by a panel (tile_n columns of C). Heavy items come first, each
 * with all its panels. The other items follow, one set of panels in flight after the other: `panels_in_flight` panels
 * are worked on at a time, so that B's columns stay in L2, and within a set the longest items come first. */
typedef struct sat_tile_order {
    unsigned items, heavy, slices, panels, panels_in_flight;
} sat_tile_order;

typedef struct sat_tile_coordinates {
    unsigned item, slice, panel;
} sat_tile_coordinates;

/* How many panels of `panel_bytes` are worked on at a time: enough for `tiles` tiles, but no more than L2 holds beside
 * what is written. Returns 1 if the items are even (none has more than 1.25x the mean). All sets get nearly the same
 * number of panels, since a small last set would begin long tiles late. */
static inline unsigned sat_panels_in_flight(bool even, int64_t tiles_of_panel, int64_t panels, double panel_bytes,
                                            double tiles, double l2_bytes) {
    double wanted = ceil(tiles / (double)sat_max(1, tiles_of_panel));
    double most = fmax(1, floor(0.7 * l2_bytes / fmax(1, panel_bytes)));
    double sets = fmax(1, fmax(ceil((double)panels / most), floor((double)panels / wanted)));
    return even ? 1 : (unsigned)fmax(1, ceil((double)panels / sets));
}

/* Where tile `number` is. */
SAT_BOTH static inline sat_tile_coordinates sat_tile_at(const sat_tile_order *order, unsigned number) {
    unsigned heavy_tiles = order->heavy * order->slices * order->panels, rest = number / order->slices;
    sat_tile_coordinates t;
    t.slice = number % order->slices;
    if (number < heavy_tiles) {
        t.item = rest / order->panels, t.panel = rest % order->panels;
    } else {
        unsigned other_items = order->items - order->heavy;
        unsigned from, wide; /* the set's first panel; its number of panels */
        rest -= order->heavy * order->panels;
        from = rest / (other_items * order->panels_in_flight) * order->panels_in_flight;
        wide = order->panels - from < order->panels_in_flight ? order->panels - from : order->panels_in_flight;
        rest -= from * other_items;
        t.item = order->heavy + rest / wide, t.panel = from + rest % wide;
    }
    return t;
}

#ifdef __CUDACC__
#include "variant.cuh"

/* ==== device: the schedule and the split-K reduction ==== */

/* In the workspace of a family the split rows follow the work items, and the partial sums follow those. `prepare` keeps
 * this, and `launch` passes it to a kernel. */
struct sat_device_schedule {
    int64_t items, splits, heavy; /* work items, split rows, heavy items */
    bool even;
    const sat_work_item *item;  /* in device memory; NULL: work item i is row i, whole */
    const sat_split_row *split; /* in device memory */
    void *partial;              /* the partial sums, [partial][row in block][column] */
};

/* Where nothing is scheduled: one work item a row. */
static inline sat_device_schedule sat_whole_rows_schedule(const sat_rows *r) {
    sat_device_schedule w = {};
    w.items = r->count;
    return w;
}

/* Makes the schedule of `r`, whose arrays are in host memory, and copies it to `to`, which has room for
 * sat_schedule_bytes. */
static inline sat_status sat_upload_schedule(const sat_prepare *prepare, const sat_rows *r, int64_t share, char *to,
                                             sat_device_schedule *w) {
    sat_schedule s;
    if (!r->ptr) { /* made before every launch */
        w->items = r->count, w->item = (const sat_work_item *)to;
        return SAT_OK;
    }
    if (!sat_schedule_make(r, share, &s))
        return sat_fail(SAT_OUT_OF_MEMORY, "%s: schedule of %lld rows", prepare->variant->name, (long long)r->count);
    size_t items = (size_t)s.items * sizeof *s.item, splits = (size_t)s.splits * sizeof *s.split;
    cudaStream_t stream = (cudaStream_t)prepare->stream;
    cudaError_t e = cudaMemcpyAsync(to, s.item, items, cudaMemcpyHostToDevice, stream);
    if (e == cudaSuccess && splits) e = cudaMemcpyAsync(to + items, s.split, splits, cudaMemcpyHostToDevice, stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream);
    w->items = s.items, w->splits = s.splits, w->heavy = s.heavy, w->even = s.even;
    w->item = (const sat_work_item *)to, w->split = (const sat_split_row *)(to + items);
    w->partial = to + (items + splits + 255) / 256 * 256;
    sat_schedule_free(&s);
    if (e == cudaSuccess) return SAT_OK;
    return sat_fail(SAT_DEVICE_ERROR, "%s: %s", prepare->variant->name, cudaGetErrorString(e));
}

/* `prepare` of a family whose state is the schedule of the problem's own rows. */
static inline sat_status sat_prepare_schedule(const sat_prepare *prepare, int64_t share, void **state) {
    sat_rows r = sat_op_rows(prepare->problem, prepare->pattern);
    sat_device_schedule *w = (sat_device_schedule *)calloc(1, sizeof *w);
    if (!w) return sat_fail(SAT_OUT_OF_MEMORY, "%s: state", prepare->variant->name);
    sat_status status = sat_upload_schedule(prepare, &r, share, (char *)prepare->workspace, w);
    if (status == SAT_OK) *state = w;
    else free(w);
    return status;
}

/* The workspace of a persistent kernel with f32 sums: the schedule of the problem's own rows with its partial sums,
 * then the tile counter. */
static inline size_t sat_persistent_workspace(const sat_rows *r, int64_t n, int64_t share) {
    sat_schedule s = sat_schedule_count(r, share);
    return (sat_schedule_bytes(&s, r->br, n, sizeof(float)) + 255) / 256 * 256 + SAT_COUNTER_BYTES;
}

/* Makes both there. */
static inline sat_status sat_persistent_prepare(const sat_prepare *prepare, int64_t share, sat_device_schedule *work,
                                                unsigned **counter) {
    sat_rows r = sat_op_rows(prepare->problem, prepare->pattern);
    sat_status status = sat_upload_schedule(prepare, &r, share, (char *)prepare->workspace, work);
    if (status != SAT_OK) return status;
    return sat_tile_counter_init(prepare, sat_persistent_workspace(&r, prepare->problem->n, share), counter);
}

/* Work item i of a schedule, or row i where `items` is NULL. */
__device__ __forceinline__ sat_work_item sat_work_item_at(const sat_rows &r, const sat_work_item *items, int64_t i) {
    if (items) return items[i];
    sat_work_item whole = {r.ptr[i], (int32_t)i, (int32_t)(r.end[i] - r.ptr[i]), -1, {}};
    return whole;
}

/* The split-K reduction: adds the partial sums of each split row, in their order, and applies the
 * epilogue. One thread an element of C. T: the type of the sums. */
template <typename T> static __global__ void sat_reduce_partials(sat_rows r, sat_epilogue out, sat_device_schedule w) {
    const T *partial = (const T *)w.partial;
    int64_t n = out.n, area = r.br * n, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < w.splits * area; at += step) {
        sat_split_row split = w.split[at / area];
        int64_t in_row = at % area / n, j = at % n, i = split.row * r.br + in_row;
        if (i >= r.m) continue;
        T sum = 0;
        for (int part = 0; part < split.parts; part++) sum += partial[((split.partial + part) * r.br + in_row) * n + j];
        sat_epilogue_store(out, i, j, sum);
    }
}

/* Sums are doubles where the values are. */
static inline sat_status sat_launch_split_reduction(const sat_launch *l, const sat_rows &r, const sat_epilogue &out,
                                                    const sat_device_schedule &w) {
    if (w.splits == 0) return SAT_OK;
    unsigned blocks = sat_blocks(w.splits * r.br * out.n, 256);
    cudaStream_t stream = (cudaStream_t)l->stream;
    if (l->problem->a_dtype == SAT_F64) sat_reduce_partials<double><<<blocks, 256, 0, stream>>>(r, out, w);
    else sat_reduce_partials<float><<<blocks, 256, 0, stream>>>(r, out, w);
    return sat_launched(l);
}

/* ==== device: the persistent tile scheduler ==== */

/* A parameter of the kernel. */
struct sat_tile_scheduler {
    unsigned *counter; /* of tiles; see sat_tile_counter_init */
    const sat_work_item *items;
    sat_tile_order order;
    unsigned tiles; /* how many there are */
};

/* How many tiles a CTA should find among the panels in flight. Several let the counter balance the load. Less than one
 * keeps fewer panels in L2, for kernels that are bound by reads from L2. */
static constexpr double SAT_TILES_PER_CTA_BALANCE = 3, SAT_TILES_PER_CTA_L2 = 0.75;

/* `panel_bytes`: what all work items together read of one panel. */
static inline sat_tile_scheduler sat_tile_scheduler_of(const sat_device_schedule &work, unsigned *counter,
                                                       int64_t slices, int64_t panels, double panel_bytes,
                                                       const sat_device *device,
                                                       double tiles_per_cta = SAT_TILES_PER_CTA_BALANCE) {
    sat_tile_scheduler s = {counter, work.item, {(unsigned)work.items, (unsigned)work.heavy}, 0};
    s.order.slices = (unsigned)slices, s.order.panels = (unsigned)panels;
    s.order.panels_in_flight = sat_panels_in_flight(work.even, work.items * slices, panels, panel_bytes,
                                                    tiles_per_cta * device->multiprocessors, (double)device->l2_bytes);
    s.tiles = s.order.items * s.order.slices * s.order.panels;
    return s;
}

/* A tile's description as a warp fetches it, in steps: take a number from the counter, then load the work item. Each
 * call of poll() takes one step and does not wait for its load, so a producer calls it between the blocks or stages of
 * the current tile. */
struct sat_fetched_tile {
    unsigned number;
    int step; /* 0: take a number; 1: load the work item; 2: done */
    sat_tile_coordinates coord;
    sat_work_item item;
    int col; /* lane i < SAT_ITEM_COLUMNS: block column of the item's block i */

    __device__ __forceinline__ void first() { number = blockIdx.x, step = 1; }
    __device__ __forceinline__ void request_next() { step = 0; }
    /* No tile is left. */
    __device__ __forceinline__ bool none(const sat_tile_scheduler &scheduler) const {
        return number >= scheduler.tiles;
    }

    /* Takes one step. False: no step was left, so the item is there, unless none(). */
    __device__ __forceinline__ bool poll(const sat_tile_scheduler &scheduler) {
        if (step == 0) {
            number = scheduler.tiles; /* if there is a CTA for every tile, there is no next one */
            if (gridDim.x < scheduler.tiles && threadIdx.x % 32 == 0)
                number = gridDim.x + atomicAdd(scheduler.counter, 1u);
        } else if (step == 1) {
            number = __shfl_sync(~0u, number, 0);
            if (!none(scheduler)) {
                coord = sat_tile_at(&scheduler.order, number);
                item = scheduler.items[coord.item];
                if (threadIdx.x % 32 < SAT_ITEM_COLUMNS) col = scheduler.items[coord.item].col[threadIdx.x % 32];
            }
        } else {
            return false;
        }
        step++;
        return true;
    }
};

/* 32 neighbouring blocks of a work item, one per lane. */
struct sat_lane_blocks {
    int block_index, k; /* where the block's values are stored, counted in blocks; its first row of B */

    /* The item's first blocks. */
    __device__ __forceinline__ void begin(const sat_rows &r, const sat_fetched_tile &t) {
        int lane = threadIdx.x % 32;
        if (lane >= SAT_ITEM_COLUMNS || r.block) return load_32(r, t.item, 0);
        block_index = (int)t.item.first + lane, k = t.col * (int)r.bc;
    }
    /* The 32 blocks from `first` on. */
    __device__ __forceinline__ void load_32(const sat_rows &r, const sat_work_item &item, int first) {
        int mine = first + (int)(threadIdx.x % 32);
        if (mine >= item.count) return;
        block_index = (int)sat_block_of(&r, item.first + mine), k = r.col[item.first + mine] * (int)r.bc;
    }
};

/* The next tile and its first blocks, fetched while the current tile's operands are loaded. */
struct sat_prefetched_tile {
    sat_fetched_tile tile;
    sat_lane_blocks blocks;
    bool ready;

    /* Takes one step of the tile, or loads its first blocks, which makes it ready. */
    __device__ __forceinline__ void poll(const sat_tile_scheduler &scheduler, const sat_rows &r) {
        if (ready || tile.poll(scheduler)) return;
        if (!tile.none(scheduler)) blocks.begin(r, tile);
        ready = true;
    }
};

/* ==== device: work items of rows that change ==== */

/* Where indices change, only the device knows the rows: it makes the items before every launch. Rows are whole, so
 * there are no partial sums. */
enum { SAT_SORTED_ROWS = 256 }; /* up to so many are put in order, longest first */

__device__ __forceinline__ void sat_put_row_item(const sat_rows &r, int64_t row, sat_work_item *to) {
    sat_work_item item = {r.ptr[row], (int32_t)row, (int32_t)(r.end[row] - r.ptr[row]), -1, {}};
#pragma unroll
    for (int t = 0; t < SAT_ITEM_COLUMNS; t++)
        if (t < item.count) item.col[t] = r.col[item.first + t];
    *to = item;
}

/* One item a row. */
static __global__ void sat_make_row_items(sat_rows r, sat_work_item *items) {
    __shared__ int32_t counts[SAT_SORTED_ROWS];
    if (r.count > SAT_SORTED_ROWS) {
        int64_t step = (int64_t)gridDim.x * blockDim.x;
        for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < r.count; i += step)
            sat_put_row_item(r, i, items + i);
        return;
    }
    int i = (int)threadIdx.x, place = 0, mine = i < r.count ? (int)(r.end[i] - r.ptr[i]) : 0;
    counts[i] = mine;
    __syncthreads();
    if (i >= r.count) return;
    for (int j = 0; j < (int)r.count; j++) place += counts[j] > mine || (counts[j] == mine && j < i);
    sat_put_row_item(r, i, items + place);
}

/* Runs of up to `each` neighbouring blocks of a row, as sat_schedule_runs makes them, by one CTA. Items that are left,
 * of `room`, have no blocks. */
enum { SAT_RUNS_THREADS = 1024 };

static inline int64_t sat_runs_room(const sat_pattern_view *a, int64_t each) {
    return a->stored_blocks / each + a->grid_rows;
}

static __global__ void __launch_bounds__(SAT_RUNS_THREADS)
    sat_make_run_items(sat_pattern_view a, int64_t each, sat_work_item *items, int64_t room) {
    __shared__ int64_t ends[SAT_RUNS_THREADS];
    int64_t made = 0;
    for (int64_t first = 0; first < a.grid_rows; first += SAT_RUNS_THREADS) {
        int64_t row = first + threadIdx.x, at = row < a.grid_rows ? a.device_row_ptr[row] : 0;
        int64_t end = row < a.grid_rows ? a.device_row_end[row] : 0, mine = (end - at + each - 1) / each;
        __syncthreads();
        ends[threadIdx.x] = mine;
        for (unsigned step = 1; step < SAT_RUNS_THREADS; step *= 2) {
            __syncthreads();
            int64_t before = threadIdx.x >= step ? ends[threadIdx.x - step] : 0;
            __syncthreads();
            ends[threadIdx.x] += before;
        }
        __syncthreads();
        sat_work_item *to = items + made + ends[threadIdx.x] - mine;
        for (; at < end; at += each, to++)
            to->first = at, to->row = (int32_t)row, to->count = (int32_t)sat_min(each, end - at), to->partial = -1;
        made += ends[SAT_RUNS_THREADS - 1];
    }
    for (int64_t i = made + threadIdx.x; i < room; i += SAT_RUNS_THREADS)
        items[i].first = 0, items[i].row = 0, items[i].count = 0, items[i].partial = -1;
}

static inline sat_status sat_renew_runs(const sat_launch *l, int64_t each, const sat_device_schedule &w) {
    if (!l->pattern->dynamic) return SAT_OK;
    sat_make_run_items<<<1, SAT_RUNS_THREADS, 0, (cudaStream_t)l->stream>>>(*l->pattern, each, (sat_work_item *)w.item,
                                                                            w.items);
    return sat_launched(l);
}

/* Before a launch that goes by the schedule. */
static inline sat_status sat_renew_schedule(const sat_launch *l, const sat_rows &r, const sat_device_schedule &w) {
    if (!l->pattern->dynamic) return SAT_OK;
    unsigned ctas = r.count > SAT_SORTED_ROWS ? sat_blocks(r.count, SAT_SORTED_ROWS) : 1;
    sat_make_row_items<<<ctas, SAT_SORTED_ROWS, 0, (cudaStream_t)l->stream>>>(r, (sat_work_item *)w.item);
    return sat_launched(l);
}

#endif
#endif
