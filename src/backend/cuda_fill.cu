/* The CUDA backend's own small kernels: the sweep that makes caches cold, made-up operands, signs, guard zones. */
#include "backend/cuda.h"
#include "ops/check.h"
#include "variant.cuh"

static __global__ void nothing() {}

cudaError_t sat_cuda_nothing(cudaStream_t stream) {
    nothing<<<1, 1, 0, stream>>>();
    return cudaGetLastError();
}

/* Reads, so that what it leaves in L2 need not be written back while the next kernel is timed. */
static __global__ void sweep(const uint4 *from, size_t count, int *never) {
    unsigned sum = 0;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        uint4 x = from[i];
        sum |= x.x ^ x.y ^ x.z ^ x.w;
    }
    if (sum == 0x9e3779b9u) *never = 1; /* the buffer holds zeros: this only keeps the loads alive */
}

cudaError_t sat_cuda_sweep(void *from, size_t bytes, cudaStream_t stream) {
    sweep<<<1024, 256, 0, stream>>>((const uint4 *)from, bytes / sizeof(uint4), (int *)from);
    return cudaGetLastError();
}

/* Keeps its multiprocessors busy for so many cycles. */
static __global__ void spin(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) continue;
}

cudaError_t sat_cuda_spin(int blocks, cudaStream_t stream) {
    spin<<<blocks, 1024, 0, stream>>>(1000000); /* about half a millisecond */
    return cudaGetLastError();
}

/* ---- made-up operands ---- */

struct made_up {
    sat_operand o;
    void *base;
    int64_t items;
    uint64_t seed;
    sat_fill fill;
};

__device__ static void make_one(const made_up &m, int64_t at) {
    sat_device_store(m.o.dtype, m.base, at, sat_made_up(&m.fill, m.seed, at));
}

static __global__ void make_dense(made_up m) {
    int64_t all = m.o.rows * m.o.cols * m.items, step = (int64_t)gridDim.x * blockDim.x;
    bool columns = m.o.layout.row_stride == 1; /* neighbouring threads write neighbouring elements */
    for (int64_t e = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; e < all; e += step) {
        int64_t inner = columns ? m.o.rows : m.o.cols, outer = columns ? m.o.cols : m.o.rows;
        int64_t fast = e % inner, slow = e / inner % outer, z = e / inner / outer;
        int64_t i = columns ? fast : slow, j = columns ? slow : fast;
        int64_t at = sat_operand_at(&m.o, z, i, j);
        sat_device_store(m.o.dtype, m.base, at, sat_made_up_at(&m.fill, &m.o, m.seed, at, i, j));
    }
}

/* A CTA takes block rows; elements beyond the matrix stay NaN. */
static __global__ void make_values(made_up m, sat_pattern_view a) {
    int64_t area = a.block_rows * a.block_cols;
    for (int64_t g = blockIdx.x; g < a.grid_rows; g += gridDim.x) {
        int64_t first = a.device_row_ptr[g], count = a.device_row_end[g] - first;
        for (int64_t z = 0; z < m.items; z++)
            for (int64_t e = threadIdx.x; e < count * area; e += blockDim.x) {
                int64_t t = first + e / area, i = e % area / a.block_cols, j = e % a.block_cols;
                bool inside = g * a.block_rows + i < a.rows && a.device_col_idx[t] * a.block_cols + j < a.cols;
                if (inside) make_one(m, z * m.o.layout.batch_stride + first * area + e);
            }
    }
}

cudaError_t sat_cuda_fill(const sat_operand *o, const sat_pattern_view *a, void *base, uint64_t seed,
                          const sat_fill *fill, cudaStream_t stream) {
    int64_t items = o->layout.batch_stride ? o->batch : 1;
    made_up m = {*o, base, items, seed, *fill};
    if (o->rows * o->cols * items == 0) return cudaSuccess;
    if (o->values) make_values<<<sat_blocks(a->grid_rows, 1), 256, 0, stream>>>(m, *a);
    else make_dense<<<sat_blocks(sat_min(o->rows * o->cols * items, 1 << 24), 256), 256, 0, stream>>>(m);
    return cudaGetLastError();
}

__device__ static unsigned long long digest_sum; /* one tuner a device at a time */

/* Sums of mixed words, as the host's digest has them: integers, so that the order does not matter. */
static __global__ void digest_words(const unsigned char *p, int64_t bytes) {
    int64_t words = (bytes + 7) / 8, step = (int64_t)gridDim.x * blockDim.x;
    unsigned long long sum = 0;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += step) {
        uint64_t word = 0;
        if ((i + 1) * 8 <= bytes && ((uintptr_t)p & 7) == 0) word = ((const uint64_t *)p)[i];
        else
            for (int64_t b = i * 8; b < sat_min(bytes, (i + 1) * 8); b++) word |= (uint64_t)p[b] << (b % 8 * 8);
        sum += (word ^ (word >> 29)) * (2 * (uint64_t)i + 0x9e3779b97f4a7c15u);
    }
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (threadIdx.x % 32 == 0) atomicAdd(&digest_sum, sum);
}

cudaError_t sat_cuda_digest(const void *from, size_t bytes, uint64_t *digest, cudaStream_t stream) {
    unsigned long long sum = 0;
    cudaError_t e = cudaMemcpyToSymbolAsync(digest_sum, &sum, sizeof sum, 0, cudaMemcpyHostToDevice, stream);
    if (e == cudaSuccess && bytes > 0)
        digest_words<<<sat_blocks(sat_min((int64_t)bytes / 8 + 1, 1 << 20), 256), 256, 0, stream>>>(
            (const unsigned char *)from, (int64_t)bytes);
    if (e == cudaSuccess) e = cudaGetLastError();
    if (e == cudaSuccess)
        e = cudaMemcpyFromSymbolAsync(&sum, digest_sum, sizeof sum, 0, cudaMemcpyDeviceToHost, stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream);
    *digest = sum;
    return e;
}

/* ---- guard zones ---- */

__device__ static int dirty; /* one tuner a device at a time */

static __global__ void look(const unsigned char *p, int64_t bytes) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < bytes; i += step)
        if (p[i] != 0xff) dirty = 1;
}

static __global__ void poison(made_up m, int64_t size) {
    int64_t all = m.o.rows * m.o.cols * m.items, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t e = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; e < all; e += step) {
        int64_t at = sat_operand_at(&m.o, e / m.o.cols / m.o.rows, e / m.o.cols % m.o.rows, e % m.o.cols);
        for (int64_t b = 0; b < size; b++) ((unsigned char *)m.base)[at * size + b] = 0xff;
    }
}

static void look_at(const void *p, int64_t bytes, cudaStream_t stream) {
    if (bytes > 0) look<<<sat_blocks(sat_min(bytes, 1 << 22), 256), 256, 0, stream>>>((const unsigned char *)p, bytes);
}

cudaError_t sat_cuda_all_poison(const sat_operand *o, void *base, size_t guard, bool *clean, cudaStream_t stream) {
    int64_t size = (int64_t)sat_dtype_size(o->dtype), bytes = o->span * size;
    int found = 0;
    cudaError_t e = cudaMemcpyToSymbolAsync(dirty, &found, sizeof found, 0, cudaMemcpyHostToDevice, stream);
    look_at((const char *)base - guard, (int64_t)guard, stream);
    look_at((const char *)base + bytes, (int64_t)guard, stream);
    if (o->span != o->rows * o->cols * o->batch && o->rows * o->cols * o->batch > 0) { /* there are gaps */
        made_up m = {*o, base, o->batch, 0, {}};
        poison<<<sat_blocks(sat_min(o->rows * o->cols * o->batch, 1 << 24), 256), 256, 0, stream>>>(m, size);
        look_at(base, bytes, stream);
    }
    if (e == cudaSuccess) e = cudaGetLastError();
    if (e == cudaSuccess) e = cudaMemcpyFromSymbolAsync(&found, dirty, sizeof found, 0, cudaMemcpyDeviceToHost, stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream);
    *clean = !found;
    return e;
}
