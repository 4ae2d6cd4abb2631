/* The tiles of a product of groups on a GPU, and who computes which. The offsets of the groups are in the device's
 * memory and change from run to run, so each CTA reads them: nothing is copied to the host, and a run can be captured.
 *
 * A product is a group: its rows of Y, or the gradient of its W. Of Y the rows behind the last group are one more
 * product, without depth. Tiles are numbered product by product. Inside a product they are numbered in bands of
 * neighbouring row tiles, panel by panel: so the tiles that run at a time share rows of X and columns of W in L2. */
#ifndef SAT_GROUPED_TILES_H
#define SAT_GROUPED_TILES_H

#include "groups.h"

/* ==== host and device: how a product is cut ==== */

enum { GROUPED_BAND_ROWS = 2048 }; /* rows of a band */

typedef struct grouped_order {
    const void *offsets; /* groups + 1, in memory of the device */
    sat_index_type offset_type;
    bool weights; /* the gradient of W */
    int32_t m, groups;
    int32_t k;            /* rows of the gradient of one W */
    int32_t tile_m, band; /* rows of a tile; row tiles of a band */
    uint32_t panels;      /* tiles side by side */
} grouped_order;

/* Of a product: its group, or -1 for the rows of none; the group's rows of X; where the tile is in its output. */
typedef struct grouped_tile {
    int32_t group, begin, end;
    uint32_t row_tile, panel;
} grouped_tile;

static inline grouped_order grouped_order_of(const sat_problem *p, const void *offsets, int tile_m, int tile_n) {
    grouped_order o = {offsets,       p->grouped.offset_type,     p->op == SAT_GROUPED_WEIGHTS,
                       (int32_t)p->m, (int32_t)p->grouped.groups, (int32_t)p->k,
                       tile_m,        GROUPED_BAND_ROWS / tile_m, (uint32_t)((p->n + tile_n - 1) / tile_n)};
    return o;
}

/* How many tiles there can be, whatever the offsets are. */
static inline double grouped_most_tiles(const sat_problem *p, int tile_m, int tile_n) {
    double panels = ceil((double)p->n / tile_n), groups = (double)p->grouped.groups;
    if (p->op == SAT_GROUPED_WEIGHTS) return groups * ceil((double)p->k / tile_m) * panels;
    return (floor((double)p->m / tile_m) + fmin(groups, (double)p->m) + 1) * panels;
}

/* Whether numbers of rows, columns and tiles fit in what the kernels count them with, beyond the last ones too. */
static inline bool grouped_fits(const sat_problem *p, int tile_m, int tile_n) {
    int64_t most = 0x7fff0000;
    return p->m <= most && p->n <= most && p->k <= most && grouped_most_tiles(p, tile_m, tile_n) < 0x40000000;
}

SAT_BOTH static inline uint32_t grouped_row_tiles(const grouped_order *o, int32_t begin, int32_t end) {
    return ((uint32_t)(o->weights ? o->k : end - begin) + (uint32_t)o->tile_m - 1) / (uint32_t)o->tile_m;
}

/* Where tile number `index` of a product with so many row tiles is. */
SAT_BOTH static inline void grouped_place(const grouped_order *o, uint32_t row_tiles, uint32_t index, grouped_tile *t) {
    uint32_t band = (uint32_t)o->band, number = index / (band * o->panels), first = number * band;
    uint32_t high = row_tiles - first < band ? row_tiles - first : band, rest = index - first * o->panels;
    t->panel = rest / high, t->row_tile = first + rest % high;
}

#ifdef __CUDACC__
#include "kernels/cuda/common/epilogue.cuh"

/* ==== device: from a tile's number to the tile ==== */

/* A warp's search, for numbers that only grow. A lane has one of 32 neighbouring products. */
struct grouped_search {
    int first, end;         /* the first of the 32; the row that the last of them ends before */
    bool broken;            /* an offset has broken the rules: all groups from there on are empty */
    unsigned passed, count; /* tiles of the products before the 32, and of the 32 */
    int row_begin, row_end; /* of this lane's product */
    unsigned tiles, before; /* its tiles, and those of the lanes before */
    int ahead;              /* what the lane reads of the next 32, which takes a while */

    /* The row that a group ends before, as it is stored; -1 for what cannot be one. */
    __device__ __forceinline__ static int read_end(const grouped_order &o, int group) {
        if (group >= o.groups) return -1;
        int64_t at = sat_offset_at(o.offsets, o.offset_type, (int64_t)group + 1);
        return at < 0 || at > o.m ? -1 : (int)at;
    }

    __device__ __forceinline__ void start(const grouped_order &o) {
        first = -32, end = 0, passed = count = 0;
        broken = o.groups > 0 && sat_offset_at(o.offsets, o.offset_type, 0) != 0;
        ahead = read_end(o, (int)threadIdx.x % 32);
    }

    /* Goes on to the next 32 products. False: there are none. */
    __device__ bool next_products(const grouped_order &o) {
        int lane = (int)threadIdx.x % 32, products = o.groups + (o.weights ? 0 : 1);
        if (first + 32 >= products) return false;
        first += 32, passed += count;
        int product = first + lane, at = ahead;
        ahead = read_end(o, product + 32);
        int at_before = __shfl_up_sync(~0u, at, 1);
        if (lane == 0) at_before = end;
        /* A lane after the first fault may be wrong about itself. It does not matter: it is empty. */
        unsigned empty = __ballot_sync(~0u, broken || product >= o.groups || at < at_before);
        broken = __any_sync(~0u, broken || (product < o.groups && at < at_before));
        int good = empty ? __ffs((int)empty) - 1 : 32;
        int last = __shfl_sync(~0u, at, (good + 31) % 32);
        if (good > 0) end = last;
        row_begin = lane < good ? at_before : end, row_end = lane < good ? at : end;
        if (product == o.groups) row_end = o.m;
        tiles = product < products ? grouped_row_tiles(&o, row_begin, row_end) * o.panels : 0;
        unsigned sum = tiles;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            unsigned other = __shfl_up_sync(~0u, sum, d);
            if (lane >= d) sum += other;
        }
        before = sum - tiles, count = __shfl_sync(~0u, sum, 31);
        return true;
    }

    /* By a whole warp. False: there is no such tile. */
    __device__ __forceinline__ bool find(const grouped_order &o, unsigned number, grouped_tile *t) {
        while (number - passed >= count)
            if (!next_products(o)) return false;
        unsigned index = number - passed - before; /* beyond `tiles` in the lanes that come later, too */
        int owner = __ffs((int)__ballot_sync(~0u, index < tiles)) - 1;
        t->group = first + owner < o.groups ? first + owner : -1;
        t->begin = __shfl_sync(~0u, row_begin, owner), t->end = __shfl_sync(~0u, row_end, owner);
        grouped_place(&o, grouped_row_tiles(&o, t->begin, t->end), __shfl_sync(~0u, index, owner), t);
        return true;
    }
};

/* ==== device: the epilogue act(alpha*sum + bias + beta*C) on tensor cores ==== */

/* Alpha and the bias are applied to the sums in registers, and the rest is for the shared epilogues. Their C is the
 * output of one product: rows count from C's first row, and end where the product's do. */
struct grouped_epilogue {
    sat_tile_epilogue to;
    const void *bias; /* [group][n]; NULL: none */
    float alpha;
    int64_t group_stride; /* bytes from one group's gradient to the next; 0: all have the same C */
};

/* `packed_relu`: the epilogue applies relu on the packed16 path. A group of Y begins at any row: where C is
 * column-major nothing is aligned. */
grouped_epilogue grouped_epilogue_of(const sat_launch *l, bool packed_relu);

/* Of one product. `row_end`: the row of C that its rows end before. */
__device__ __forceinline__ sat_tile_epilogue grouped_epilogue_at(const grouped_epilogue &e, int group, int row_end) {
    sat_tile_epilogue to = e.to;
    to.out.m = row_end;
    if (e.group_stride != 0) to.out.c = (char *)to.out.c + group * e.group_stride;
    return to;
}

/* alpha*sum + bias, in place. `bias` begins at the lane's first column, and `columns` exist from there on. */
template <typename B, int MT, int NT>
__device__ __forceinline__ void grouped_add_bias(float (&sum)[MT][NT][4], float alpha, const B *bias, int columns) {
#pragma unroll
    for (int n = 0; n < NT; n++) {
        float x = 8 * n < columns ? (float)bias[8 * n] : 0, y = 8 * n + 1 < columns ? (float)bias[8 * n + 1] : 0;
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[i][n][e] = alpha * sum[i][n][e] + (e % 2 ? y : x);
    }
}

/* The same for a tile of a warp, whose first column is j. */
template <int MT, int NT>
__device__ __forceinline__ void grouped_apply(const grouped_epilogue &e, float (&sum)[MT][NT][4], int group, int j) {
    int64_t column = j + (int64_t)(threadIdx.x % 4 * 2), n = e.to.out.n, at = group * n + column;
    int columns = (int)min((int64_t)1024, n - column);
    if (e.bias && group >= 0) {
        if (e.to.out.dtype == SAT_F16) grouped_add_bias(sum, e.alpha, (const __half *)e.bias + at, columns);
        else if (e.to.out.dtype == SAT_BF16)
            grouped_add_bias(sum, e.alpha, (const __nv_bfloat16 *)e.bias + at, columns);
        else grouped_add_bias(sum, e.alpha, (const float *)e.bias + at, columns);
    } else if (e.alpha != 1) {
#pragma unroll
        for (int f = 0; f < MT * NT * 4; f++) sum[f / 4 / NT][f / 4 % NT][f % 4] *= e.alpha;
    }
}

/* ==== host ==== */

/* Seconds of a kernel with such tiles on tensor or plain units of `rate`: tiles that are not full compute as much, and
 * fewer tiles than multiprocessors leave some idle. */
double grouped_seconds(const sat_problem *p, const sat_device *d, int tile_m, int tile_n, double rate);

#endif
#endif
