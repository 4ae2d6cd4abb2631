/* The validated copy of indices that change, made by kernels on the caller's stream (indices.h has the rules).
 *
 *   copy        a warp a row: reads pointers and columns once, says which rows are faulty. The last CTA empties what
 *               follows a broken row pointer and records the fault, so a right mask costs this one launch.
 *   transpose   a CTA a column, where a grid of blocks is small: every thread looks for the column in a row of its own
 *               by a search, and the positions found give both where the column begins and its order.
 *               Else columns are counted, summed up, filled in any order, and then put in order.
 *   clear       zeros into blocks that no row has.
 *
 * Atomics count and find extremes; nothing that a result depends on is left to their order. */
#include <cuda_runtime.h>

#include "backend/cuda.h"
#include "variant.cuh"

enum {
    THREADS = 256,
    WARPS = THREADS / 32,
    MOST_CTAS = 2048,
    SEARCHED = 1 << 22, /* blocks of a grid: up to so many, stored or not, are looked for one by one */
    RANKED = 512,       /* rows of a column that are put in order by counting those below each */
    WINDOW = 1 << 15    /* rows whose marks a CTA holds at a time */
};

/* Between runs all of it is 0. Rows count from the last, so that the first row has the largest number. */
struct index_state {
    unsigned long long broken, faulty; /* the first row whose pointers break the rules; whose columns do */
    unsigned long long done;           /* CTAs */
    unsigned long long unused;
};

static size_t state_bytes() { return 256; }

static unsigned grid_for(int64_t work, int64_t each) {
    int64_t ctas = (work + each - 1) / each;
    return (unsigned)(ctas < 1 ? 1 : ctas > MOST_CTAS ? MOST_CTAS : ctas);
}

/* ---- copy ---- */

__device__ static bool copy_columns(const sat_index_copy &x, int64_t begin, int64_t end) {
    int lane = threadIdx.x % 32;
    bool right = true;
    int64_t carried = -1; /* the column before this group of 32 */
    for (int64_t t = begin; t < end; t += 32) {
        bool mine = t + lane < end;
        int64_t col = mine ? sat_offset_at(x.from_col, x.type, t + lane) : 0, before = __shfl_up_sync(~0u, col, 1);
        if (lane == 0) before = carried;
        bool inside = col >= 0 && col < x.grid_cols;
        /* What is written depends on the number alone: where rows overlap, since pointers are broken, all write it. */
        if (mine) x.col_idx[t + lane] = inside ? (int32_t)col : 0;
        right = right && (!mine || (inside && col > before));
        carried = __shfl_sync(~0u, col, 31);
    }
    return __all_sync(~0u, right);
}

/* Rows from the first broken one on are empty, and the fault of the first faulty row is recorded. */
__device__ static void end_faulty(const sat_index_copy &x, int64_t broken, int64_t faulty) {
    int64_t rows = x.grid_rows, first = sat_min(broken, faulty);
    int64_t last = broken > 0 && broken < rows ? __ldcg(&x.row_ptr[broken]) : 0; /* another CTA may have written it */
    __syncthreads();
    for (int64_t i = broken + threadIdx.x; i < rows; i += blockDim.x) x.row_ptr[i + 1] = x.row_end[i] = last;
    if (broken == 0 && threadIdx.x == 0) x.row_ptr[0] = 0;
    if (threadIdx.x > 0 || first == rows) return;
    volatile sat_index_fault *to = x.fault;
    sat_index_fault found;
    sat_index_describe(&x, first, first == broken, &found);
    to->status = found.status, to->row = found.row, to->at = found.at, to->value = found.value;
    to->before = found.before;
    __threadfence_system(); /* the host looks at `runs` first */
    to->runs = to->runs + 1;
}

static __global__ void __launch_bounds__(THREADS) copy_rows(sat_index_copy x, index_state *s) {
    __shared__ bool last;
    int64_t rows = x.grid_rows, step = (int64_t)gridDim.x * WARPS;
    for (int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; i < rows; i += step) {
        int64_t begin = sat_offset_at(x.from_ptr, x.type, i), end = sat_offset_at(x.from_ptr, x.type, i + 1);
        bool breaks = sat_row_breaks(i, begin, end, x.capacity);
        bool right = !breaks && copy_columns(x, begin, end);
        if (threadIdx.x % 32) continue;
        x.row_ptr[i] = begin >= 0 && begin <= x.capacity ? begin : 0, x.row_end[i] = right ? end : breaks ? 0 : begin;
        if (i == rows - 1) x.row_ptr[rows] = breaks ? 0 : end;
        if (breaks) atomicMax(&s->broken, (unsigned long long)(rows - i));
        else if (!right) atomicMax(&s->faulty, (unsigned long long)(rows - i));
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&s->done, 1ull) == gridDim.x - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    volatile index_state *seen = s;
    unsigned long long broken = seen->broken, faulty = seen->faulty;
    if (broken || faulty) end_faulty(x, rows - (int64_t)broken, rows - (int64_t)faulty);
    __syncthreads();
    if (threadIdx.x == 0) s->broken = s->faulty = s->done = 0;
}

/* ---- the transposed index, by searches ---- */

/* The first position in [begin, end) whose column is not below `col`. */
__device__ static int64_t lower_bound(const int32_t *cols, int64_t begin, int64_t end, int32_t col) {
    while (begin < end) {
        int64_t middle = (begin + end) / 2;
        if (cols[middle] < col) begin = middle + 1;
        else end = middle;
    }
    return begin;
}

/* How many of the CTA's threads before this one say yes; `all`: how many do. */
__device__ static int count_before(bool yes, int *counts, int *all) {
    unsigned votes = __ballot_sync(~0u, yes);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, before = __popc(votes & ((1u << lane) - 1));
    __syncthreads();
    if (lane == 0) counts[warp] = __popc(votes);
    __syncthreads();
    *all = 0;
    for (int w = 0; w < WARPS; w++) before += w < warp ? counts[w] : 0, *all += counts[w];
    return before;
}

/* The column's blocks begin behind all blocks of the columns before it. */
__device__ static int64_t column_begin(const sat_index_copy &x, int32_t col, unsigned long long *sum) {
    unsigned long long mine = 0;
    if (threadIdx.x == 0) *sum = 0;
    __syncthreads();
    for (int64_t r = threadIdx.x; r < x.grid_rows; r += THREADS)
        mine += (unsigned long long)(lower_bound(x.col_idx, x.row_ptr[r], x.row_end[r], col) - x.row_ptr[r]);
    if (mine) atomicAdd(sum, mine);
    __syncthreads();
    return (int64_t)*sum;
}

/* One CTA more than there are columns: the last one says where the last column ends. */
static __global__ void __launch_bounds__(THREADS) transpose_by_search(sat_index_copy x) {
    __shared__ unsigned long long sum;
    __shared__ int counts[WARPS];
    for (int64_t c = blockIdx.x; c <= x.grid_cols; c += gridDim.x) {
        int32_t col = (int32_t)c;
        int64_t at = column_begin(x, col, &sum);
        if (threadIdx.x == 0) x.t_ptr[c] = at;
        for (int64_t first = 0; first < x.grid_rows && c < x.grid_cols; first += THREADS) {
            int64_t r = first + threadIdx.x, t = 0;
            bool found = false;
            if (r < x.grid_rows) {
                t = lower_bound(x.col_idx, x.row_ptr[r], x.row_end[r], col);
                found = t < x.row_end[r] && x.col_idx[t] == col;
            }
            int all, before = count_before(found, counts, &all);
            if (found) x.t_row[at + before] = (int32_t)r, x.t_block[at + before] = t;
            at += all;
        }
        __syncthreads();
    }
}

/* ---- the transposed index, by counting ---- */

/* t_ptr[c + 1] becomes how many blocks column c has; it is 0 before. */
static __global__ void __launch_bounds__(THREADS) count_columns(sat_index_copy x) {
    int64_t step = (int64_t)gridDim.x * WARPS;
    for (int64_t r = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; r < x.grid_rows; r += step)
        for (int64_t t = x.row_ptr[r] + threadIdx.x % 32; t < x.row_end[r]; t += 32)
            atomicAdd((unsigned long long *)&x.t_ptr[x.col_idx[t] + 1], 1ull);
}

/* By one CTA: each count becomes the sum of all before and of itself; `next` is where each column begins. */
static __global__ void __launch_bounds__(1024) sum_columns(sat_index_copy x, int64_t *next) {
    __shared__ int64_t part[1024];
    int64_t each = (x.grid_cols + 1023) / 1024, from = sat_min(x.grid_cols, threadIdx.x * each);
    int64_t to = sat_min(x.grid_cols, from + each), sum = 0;
    for (int64_t c = from; c < to; c++) sum += x.t_ptr[c + 1];
    part[threadIdx.x] = sum;
    for (int step = 1; step < 1024; step *= 2) {
        __syncthreads();
        int64_t before = threadIdx.x >= step ? part[threadIdx.x - step] : 0;
        __syncthreads();
        part[threadIdx.x] += before;
    }
    sum = part[threadIdx.x] - sum;
    for (int64_t c = from; c < to; c++) {
        next[c] = sum;
        x.t_ptr[c + 1] = sum += x.t_ptr[c + 1];
    }
}

/* The rows of each column, in any order. */
static __global__ void __launch_bounds__(THREADS) fill_columns(sat_index_copy x, int64_t *next, int32_t *unordered) {
    int64_t step = (int64_t)gridDim.x * WARPS;
    for (int64_t r = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; r < x.grid_rows; r += step)
        for (int64_t t = x.row_ptr[r] + threadIdx.x % 32; t < x.row_end[r]; t += 32)
            unordered[atomicAdd((unsigned long long *)&next[x.col_idx[t]], 1ull)] = (int32_t)r;
}

__device__ static void put(const sat_index_copy &x, int64_t at, int32_t row, int32_t col) {
    x.t_row[at] = row, x.t_block[at] = lower_bound(x.col_idx, x.row_ptr[row], x.row_end[row], col);
}

/* A column of few rows: each goes behind those that are below it. */
__device__ static void rank_column(const sat_index_copy &x, const int32_t *unordered, int64_t begin, int count,
                                   int32_t col, int32_t *rows) {
    for (int i = threadIdx.x; i < count; i += THREADS) rows[i] = unordered[begin + i];
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += THREADS) {
        int below = 0;
        for (int j = 0; j < count; j++) below += rows[j] < rows[i];
        put(x, begin + below, rows[i], col);
    }
}

/* A column of many: its rows are marked, some thousands at a time, and the marks are read in order. */
__device__ static void mark_column(const sat_index_copy &x, const int32_t *unordered, int64_t begin, int64_t end,
                                   int32_t col, uint32_t *marks, int *counts) {
    int64_t at = begin;
    for (int64_t low = 0; low < x.grid_rows && at < end; low += WINDOW) {
        __syncthreads();
        for (int w = threadIdx.x; w < WINDOW / 32; w += THREADS) marks[w] = 0;
        __syncthreads();
        for (int64_t i = begin + threadIdx.x; i < end; i += THREADS) {
            int64_t in = unordered[i] - low;
            if (in >= 0 && in < WINDOW) atomicOr(&marks[in / 32], 1u << in % 32);
        }
        __syncthreads();
        for (int first = 0; first < WINDOW; first += THREADS) {
            int in = first + threadIdx.x, all;
            bool found = marks[in / 32] >> in % 32 & 1;
            int before = count_before(found, counts, &all);
            if (found) put(x, at + before, (int32_t)(low + in), col);
            at += all;
        }
    }
}

static __global__ void __launch_bounds__(THREADS) order_columns(sat_index_copy x, const int32_t *unordered) {
    __shared__ uint32_t marks[WINDOW / 32];
    __shared__ int32_t rows[RANKED];
    __shared__ int counts[WARPS];
    for (int64_t c = blockIdx.x; c < x.grid_cols; c += gridDim.x) {
        int64_t begin = x.t_ptr[c], end = x.t_ptr[c + 1];
        if (end - begin <= RANKED) rank_column(x, unordered, begin, (int)(end - begin), (int32_t)c, rows);
        else mark_column(x, unordered, begin, end, (int32_t)c, marks, counts);
        __syncthreads();
    }
}

static bool searched(const sat_index_copy *x) { return x->grid_rows <= SEARCHED / (x->grid_cols + 1); }

static size_t round_up(size_t bytes) { return (bytes + 255) / 256 * 256; }

static size_t transpose_bytes(const sat_index_copy *x) {
    if (!x->t_ptr || searched(x)) return 0;
    return round_up((size_t)x->grid_cols * sizeof(int64_t)) + round_up((size_t)x->capacity * sizeof(int32_t));
}

static cudaError_t transpose(const sat_index_copy *x, cudaStream_t stream) {
    if (searched(x)) {
        transpose_by_search<<<grid_for(x->grid_cols + 1, 1), THREADS, 0, stream>>>(*x);
        return cudaGetLastError();
    }
    int64_t *next = (int64_t *)((char *)x->scratch + state_bytes());
    int32_t *unordered = (int32_t *)((char *)next + round_up((size_t)x->grid_cols * sizeof *next));
    cudaError_t e = cudaMemsetAsync(x->t_ptr, 0, ((size_t)x->grid_cols + 1) * sizeof *x->t_ptr, stream);
    if (e != cudaSuccess) return e;
    count_columns<<<grid_for(x->grid_rows, WARPS), THREADS, 0, stream>>>(*x);
    sum_columns<<<1, 1024, 0, stream>>>(*x, next);
    fill_columns<<<grid_for(x->grid_rows, WARPS), THREADS, 0, stream>>>(*x, next, unordered);
    order_columns<<<grid_for(x->grid_cols, 1), THREADS, 0, stream>>>(*x, unordered);
    return cudaGetLastError();
}

/* ---- clear ---- */

/* By some threads, which are `threads` and of which this is number `me`. */
__device__ static void clear_bytes(char *from, int64_t bytes, int64_t me, int64_t threads) {
    bool wide = ((uintptr_t)from | (uintptr_t)bytes) % 16 == 0;
    if (wide)
        for (int64_t i = me; i < bytes / 16; i += threads) ((uint4 *)from)[i] = make_uint4(0, 0, 0, 0);
    else
        for (int64_t i = me; i < bytes / 2; i += threads) ((uint16_t *)from)[i] = 0; /* the smallest element */
}

static __global__ void __launch_bounds__(THREADS) clear_blocks(sat_index_copy x, sat_block_values v) {
    int64_t size = (int64_t)v.block_bytes, count = x.row_ptr[x.grid_rows];
    int64_t me = (int64_t)blockIdx.x * THREADS + threadIdx.x, threads = (int64_t)gridDim.x * THREADS;
    int lane = threadIdx.x % 32;
    for (int64_t z = blockIdx.y; z < v.items; z += gridDim.y) {
        char *base = (char *)v.base + z * (int64_t)v.item_bytes;
        clear_bytes(base + count * size, (x.capacity - count) * size, me, threads);
        for (int64_t first = me - lane; first < x.grid_rows; first += threads) { /* a warp, 32 rows */
            int64_t r = first + lane;
            unsigned lost = __ballot_sync(~0u, r < x.grid_rows && x.row_end[r] < x.row_ptr[r + 1]);
            for (; lost; lost &= lost - 1) {
                int64_t row = first + __ffs((int)lost) - 1;
                clear_bytes(base + x.row_end[row] * size, (x.row_ptr[row + 1] - x.row_end[row]) * size, lane, 32);
            }
        }
    }
}

/* ---- what the backend calls, within enter() ---- */

size_t sat_cuda_index_scratch(const sat_index_copy *x) { return state_bytes() + transpose_bytes(x); }

cudaError_t sat_cuda_copy_indices(const sat_index_copy *x, cudaStream_t stream) {
    if (x->grid_rows > 0)
        copy_rows<<<grid_for(x->grid_rows, WARPS), THREADS, 0, stream>>>(*x, (index_state *)x->scratch);
    cudaError_t e = cudaGetLastError();
    return e == cudaSuccess && x->t_ptr ? transpose(x, stream) : e;
}

cudaError_t sat_cuda_clear_blocks(const sat_index_copy *x, const sat_block_values *values, cudaStream_t stream) {
    dim3 grid(grid_for(x->grid_rows + x->capacity, THREADS), (unsigned)sat_min(values->items, 64));
    clear_blocks<<<grid, THREADS, 0, stream>>>(*x, *values);
    return cudaGetLastError();
}
