/* Work items of a pattern whose indices change: made on the device before every launch, since only it knows the rows.
 * Rows are whole: no row is split, so a product needs no partial sums. */
#ifndef SAT_DYNAMIC_ITEMS_CUH
#define SAT_DYNAMIC_ITEMS_CUH

#include "kernels/cuda/common/scheduler.h"

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

/* Before a launch that goes by the schedule. */
static inline sat_status sat_renew_schedule(const sat_launch *l, const sat_rows &r, const sat_device_schedule &w) {
    if (!l->pattern->dynamic) return SAT_OK;
    unsigned ctas = r.count > SAT_SORTED_ROWS ? sat_blocks(r.count, SAT_SORTED_ROWS) : 1;
    sat_make_row_items<<<ctas, SAT_SORTED_ROWS, 0, (cudaStream_t)l->stream>>>(r, (sat_work_item *)w.item);
    return sat_launched(l);
}

#endif
