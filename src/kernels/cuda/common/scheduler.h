/* The persistent tile scheduler with split-K rows.
 *
 * A product C = op(A)*B with sparse A is cut into tiles of C. What a tile costs depends on its block row: the number of
 * stored blocks. Rows may differ by orders of magnitude, so neither one CTA per tile nor the same number of tiles
 * per CTA keeps a GPU busy to the end. The schedule handles that in four steps:
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
 * schedule.c makes the work items, on the host; scheduler.cu brings them to the device, and has the reduction. */
#ifndef SAT_SCHEDULER_H
#define SAT_SCHEDULER_H

#include "variant.h"

/* ==== host and device: work items and the order of tiles ==== */

enum { SAT_ITEM_COLUMNS = 11 }; /* makes a work item 64 bytes */

/* A block row, or a range of its blocks where it is split. */
typedef struct sat_work_item {
    int64_t first;                 /* its first block, a position in the order of op(A)'s rows */
    int32_t row;                   /* block row */
    int32_t count;                 /* blocks; an empty row has 0 and is an item too, since its output must be written */
    int32_t partial;               /* which partial sum it writes; -1: it is a whole row and writes C */
    int32_t col[SAT_ITEM_COLUMNS]; /* block columns of its first blocks: here they need no second load */
} sat_work_item;

/* A tile is a work item's slice (tile_m of its rows) by a panel (tile_n columns of C). Heavy items, those with more
 * than twice the mean number of blocks, come first, each with all its panels. The other items follow, for one set of
 * `panels_in_flight` panels after the other, so that B's columns stay in L2; within a set the longest items come first.
 * This is only the order of tiles: nothing waits for a set to end. */
typedef struct sat_tile_order {
    unsigned items, heavy, slices, panels, panels_in_flight;
} sat_tile_order;

typedef struct sat_tile_coordinates {
    unsigned item, slice, panel;
} sat_tile_coordinates;

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

/* ==== host ==== */

#ifdef __cplusplus
extern "C" {
#endif
/* The largest number of blocks that a work item should have for `workers` CTAs to get even shares, where each row is
 * read `times` times (once per tile of its output). At least `minimum`: for fewer blocks a partial sum costs more than
 * the balance gains. */
int64_t sat_schedule_share(const sat_rows *r, int64_t times, int64_t workers, int64_t minimum);
/* Into how many items a row is split. A row of up to 1.25x the share is not split. */
int64_t sat_schedule_parts(int64_t blocks, int64_t share);
/* Work items, split rows and partial sums that a schedule will have. */
typedef struct sat_schedule_counts {
    int64_t items, splits, partials;
} sat_schedule_counts;
sat_schedule_counts sat_schedule_count(const sat_rows *r, int64_t share);
/* Bytes of a workspace for all three, a sum being (rows of a block) x n elements of this size. */
size_t sat_schedule_workspace(const sat_rows *r, int64_t share, int64_t n, size_t element);
/* The work items of the sampled product: runs of up to `each` neighbouring blocks of a block row. Returns how many
 * there are, and writes them unless `items` is NULL. */
int64_t sat_schedule_runs(const sat_pattern_view *a, int64_t each, sat_work_item *items);
#ifdef __cplusplus
}
#endif

#ifdef __CUDACC__
#include "variant.cuh"

/* The schedule in a family's workspace: work items, then split rows, then partial sums. `prepare` keeps this, and
 * `launch` passes it to a kernel. */
struct sat_device_schedule {
    int64_t items, splits, heavy; /* work items, split rows, heavy items */
    bool even;
    const sat_work_item *item;         /* in device memory; NULL: work item i is row i, whole */
    const struct sat_split_row *split; /* in device memory */
    void *partial;                     /* the partial sums, [partial][row in block][column] */
};

/* Where nothing is scheduled: one work item a row. */
static inline sat_device_schedule sat_whole_rows_schedule(const sat_rows *r) {
    sat_device_schedule w = {};
    w.items = r->count;
    return w;
}

/* Makes the schedule of `r`, whose arrays are in host memory, and copies it to `to`. */
sat_status sat_upload_schedule(const sat_prepare *q, const sat_rows *r, int64_t share, char *to,
                               sat_device_schedule *w);
/* `prepare` of a family whose state is the schedule of the problem's own rows. */
sat_status sat_prepare_schedule(const sat_prepare *q, int64_t share, void **state);
/* Of a persistent matmul with f32 sums: the schedule of the problem's own rows, then the tile counter. */
size_t sat_persistent_workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                                const sat_device *d);
sat_status sat_persistent_prepare(const sat_prepare *q, sat_device_schedule *work, unsigned **counter);
/* Launches the split-K reduction, which adds the partial sums of each split row, in their order, and applies the
 * epilogue. Sums are doubles where the values are. */
sat_status sat_launch_split_reduction(const sat_launch *l, const sat_rows &r, const sat_epilogue &out,
                                      const sat_device_schedule &w);

/* Where indices change, only the device knows the rows: it makes the items before every launch. Rows are whole, so
 * there are no partial sums. One item a row; runs of up to `each` neighbouring blocks of a row, `room` of them, of
 * which those that are left have no blocks. */
sat_status sat_renew_schedule(const sat_launch *l, const sat_rows &r, const sat_device_schedule &w);
int64_t sat_runs_room(const sat_pattern_view *a, int64_t each);
sat_status sat_renew_runs(const sat_launch *l, int64_t each, const sat_device_schedule &w);

/* A parameter of a persistent kernel. */
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
sat_tile_scheduler sat_tile_scheduler_of(const sat_device_schedule &work, unsigned *counter, int64_t slices,
                                         int64_t panels, double panel_bytes, const sat_device *device,
                                         double tiles_per_cta = SAT_TILES_PER_CTA_BALANCE);

/* ==== device ==== */

/* Work item i of a schedule, or row i where `items` is NULL. A row ends where the next begins: this is not for indices
 * that change, where faulty rows leave gaps. */
__device__ __forceinline__ sat_work_item sat_work_item_at(const sat_rows &r, const sat_work_item *items, int64_t i) {
    if (items) return items[i];
    sat_work_item whole = {r.ptr[i], (int32_t)i, (int32_t)(r.ptr[i + 1] - r.ptr[i]), -1, {}};
    return whole;
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

#endif
#endif
