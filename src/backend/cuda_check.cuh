/* What the device checks share: tiles of a matrix as doubles in shared memory, and how a failure gets back to the
 * host. The arithmetic of bounds is ops/check.h's, the same as on the host. */
#ifndef SAT_CUDA_CHECK_CUH
#define SAT_CUDA_CHECK_CUH

#include <stdlib.h>

#include "backend/cuda.h"
#include "ops/check.h"
#include "variant.cuh"

enum { TILE = SAT_PANEL, PITCH = TILE + 1 };

/* What a comparison leaves. `error` only grows, as the bits of a double that is never negative; the first thread that
 * fails writes the rest. */
struct outcome {
    unsigned long long error;
    int failed, kind;
    long long line, from, to;
    double off, bound;
};

__device__ inline void note(outcome *o, int kind, int64_t line, int64_t from, int64_t to, double got, double want,
                            double bound, double scale) {
    double off = fabs(got - want);
    if (scale > 0 && off / scale > 0) {
        unsigned long long bits = (unsigned long long)__double_as_longlong(off / scale);
        if (bits > o->error) atomicMax(&o->error, bits);
    }
    if (off <= bound) return; /* false for NaN */
    if (atomicExch(&o->failed, 1)) return;
    o->kind = kind, o->line = line, o->from = from, o->to = to, o->off = off, o->bound = bound;
}

/* Elements (i0.., j0..) of a matrix into tile[row][column], zero beyond `rows` and `cols`; all threads of the CTA. */
__device__ inline void load_tile(double (*tile)[PITCH], sat_dtype t, const void *base, const sat_layout &l, int64_t i0,
                                 int64_t j0, int64_t rows, int64_t cols) {
    bool turned = l.row_stride == 1 && l.col_stride != 1;
    for (int e = threadIdx.x; e < TILE * TILE; e += blockDim.x) {
        int i = turned ? e % TILE : e / TILE, j = turned ? e / TILE : e % TILE;
        bool inside = i0 + i < rows && j0 + j < cols;
        tile[i][j] = inside ? sat_device_load(t, base, (i0 + i) * l.row_stride + (j0 + j) * l.col_stride) : 0;
    }
}

/* Sums over a warp. */
__device__ inline double warp_sum(double x) {
    for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

/* What every expectation begins with. Its device memory is not from the context's allocator: a checker knows no
 * context. `result` lies behind the doubles. */
struct expectation_base {
    double *memory;
    outcome *result;
};

static inline void free_expectation(void *expectation_) {
    expectation_base *e = (expectation_base *)expectation_;
    if (e) (void)cudaFree(e->memory);
    free(e);
}

/* E derives from expectation_base and is otherwise zero. NULL without memory. */
template <typename E> static E *make_expectation(size_t doubles) {
    E *e = (E *)calloc(1, sizeof(E));
    void *memory = NULL;
    if (e && cudaMalloc(&memory, doubles * sizeof(double) + sizeof(outcome)) == cudaSuccess) {
        e->memory = (double *)memory, e->result = (outcome *)(e->memory + doubles);
        return e;
    }
    (void)cudaGetLastError();
    free(e);
    return NULL;
}

/* Waits for what works it out; hands it over, or frees it. */
static inline sat_status finish_expectation(expectation_base *e, cudaError_t error, cudaStream_t stream, void **out) {
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
    if (error != cudaSuccess) {
        free_expectation(e);
        return sat_cuda_status(error, "working out what a right result shows");
    }
    *out = e;
    return SAT_OK;
}

/* Fetches the outcome, and turns it into a finding by `words(buffer, size, outcome)`. */
typedef void (*outcome_words)(char *to, size_t size, const outcome *o);

static inline sat_status fetch_outcome(const outcome *from, cudaStream_t stream, outcome_words words,
                                       sat_finding *finding) {
    outcome o;
    cudaError_t e = cudaGetLastError();
    if (e == cudaSuccess) e = cudaMemcpyAsync(&o, from, sizeof o, cudaMemcpyDeviceToHost, stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream);
    if (e != cudaSuccess) return sat_cuda_status(e, "checking a result");
    memset(finding, 0, sizeof *finding);
    memcpy(&finding->error, &o.error, sizeof finding->error);
    finding->ok = !o.failed;
    if (o.failed) words(finding->where, sizeof finding->where, &o);
    return SAT_OK;
}

#endif
