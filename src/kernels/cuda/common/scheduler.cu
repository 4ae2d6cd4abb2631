/* The schedule on the device, and the split-K reduction. */
#include "kernels/cuda/common/schedule.h"

sat_status sat_upload_schedule(const sat_prepare *prepare, const sat_rows *r, int64_t share, char *to,
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

sat_status sat_prepare_schedule(const sat_prepare *prepare, int64_t share, void **state) {
    sat_rows r = sat_op_rows(prepare->problem, prepare->pattern);
    sat_device_schedule *w = (sat_device_schedule *)calloc(1, sizeof *w);
    if (!w) return sat_fail(SAT_OUT_OF_MEMORY, "%s: state", prepare->variant->name);
    sat_status status = sat_upload_schedule(prepare, &r, share, (char *)prepare->workspace, w);
    if (status == SAT_OK) *state = w;
    else free(w);
    return status;
}

/* Split threshold: a fair share of blocks per CTA, and of depth at least what reads a kilobyte of each line of A. Rows
 * of up to 1.25x are not split: see sat_schedule_parts. */
static int64_t persistent_share(const sat_variant *v, const sat_problem *p, const sat_rows *r, const sat_device *d) {
    int64_t panels = (p->n + v->instance.tile_n - 1) / v->instance.tile_n;
    int64_t slices = (r->br + v->instance.tile_m - 1) / v->instance.tile_m;
    int64_t depth = 1024 / (int64_t)sat_dtype_size(p->a_dtype);
    return sat_schedule_share(r, panels * slices, d->multiprocessors, sat_max(1, depth / r->bc));
}

size_t sat_persistent_workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                                const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    size_t bytes = sat_schedule_workspace(&r, persistent_share(v, p, &r, d), p->n, sizeof(float));
    return (bytes + 255) / 256 * 256 + SAT_COUNTER_BYTES;
}

sat_status sat_persistent_prepare(const sat_prepare *q, sat_device_schedule *work, unsigned **counter) {
    sat_rows r = sat_op_rows(q->problem, q->pattern);
    int64_t share = persistent_share(q->variant, q->problem, &r, q->device);
    sat_status status = sat_upload_schedule(q, &r, share, (char *)q->workspace, work);
    if (status != SAT_OK) return status;
    return sat_tile_counter_init(q, sat_persistent_workspace(q->variant, q->problem, q->pattern, q->device), counter);
}

sat_tile_scheduler sat_tile_scheduler_of(const sat_device_schedule &work, unsigned *counter, int64_t slices,
                                         int64_t panels, double panel_bytes, const sat_device *device,
                                         double tiles_per_cta) {
    sat_tile_scheduler s = {counter, work.item, {(unsigned)work.items, (unsigned)work.heavy}, 0};
    s.order.slices = (unsigned)slices, s.order.panels = (unsigned)panels;
    s.order.panels_in_flight = sat_panels_in_flight(work.even, work.items * slices, panels, panel_bytes,
                                                    tiles_per_cta * device->multiprocessors, (double)device->l2_bytes);
    s.tiles = s.order.items * s.order.slices * s.order.panels;
    return s;
}

/* One thread an element of C. T: the type of the sums. */
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

sat_status sat_launch_split_reduction(const sat_launch *l, const sat_rows &r, const sat_epilogue &out,
                                      const sat_device_schedule &w) {
    if (w.splits == 0) return SAT_OK;
    unsigned blocks = sat_blocks(w.splits * r.br * out.n, 256);
    cudaStream_t stream = (cudaStream_t)l->stream;
    if (l->problem->a_dtype == SAT_F64) sat_reduce_partials<double><<<blocks, 256, 0, stream>>>(r, out, w);
    else sat_reduce_partials<float><<<blocks, 256, 0, stream>>>(r, out, w);
    return sat_launched(l);
}

/* ---- work items of rows that change ---- */

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

int64_t sat_runs_room(const sat_pattern_view *a, int64_t each) { return a->stored_blocks / each + a->grid_rows; }

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

sat_status sat_renew_runs(const sat_launch *l, int64_t each, const sat_device_schedule &w) {
    if (!l->pattern->dynamic) return SAT_OK;
    sat_make_run_items<<<1, SAT_RUNS_THREADS, 0, (cudaStream_t)l->stream>>>(*l->pattern, each, (sat_work_item *)w.item,
                                                                            w.items);
    return sat_launched(l);
}

/* Before a launch that goes by the schedule. */
sat_status sat_renew_schedule(const sat_launch *l, const sat_rows &r, const sat_device_schedule &w) {
    if (!l->pattern->dynamic) return SAT_OK;
    unsigned ctas = r.count > SAT_SORTED_ROWS ? sat_blocks(r.count, SAT_SORTED_ROWS) : 1;
    sat_make_row_items<<<ctas, SAT_SORTED_ROWS, 0, (cudaStream_t)l->stream>>>(r, (sat_work_item *)w.item);
    return sat_launched(l);
}
