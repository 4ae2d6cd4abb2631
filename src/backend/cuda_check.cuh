/* What the device checks share: tiles of a matrix as doubles in shared memory, and how a failure gets back to the
 * host. The arithmetic of bounds is ops/check.h's, the same as on the host. */
#ifndef SAT_CUDA_CHECK_CUH
#define SAT_CUDA_CHECK_CUH

#include <stdlib.h>

#include "backend/cuda.h"
#include "ops/check.h"
#include "variant.cuh"

enum { TILE = 64, PITCH = TILE + 1 };

SAT_BOTH static inline int64_t sat_tiles(int64_t n) { return (n + TILE - 1) / TILE; }

/* What a comparison leaves. `error` and `share` only grow, as the bits of doubles that are never negative; the first
 * thread that fails writes the rest. */
struct outcome {
    unsigned long long error, share;
    int failed, kind;
    long long line, column, head;
    double got, want, bound;
    sat_squares squares;
};

__device__ inline void grow(unsigned long long *to, double off, double scale) {
    if (!(scale > 0 && off / scale > 0)) return;
    unsigned long long bits = (unsigned long long)__double_as_longlong(off / scale);
    if (bits > *to) atomicMax(to, bits);
}

__device__ inline void note(outcome *o, int kind, int64_t line, int64_t column, double got, double want, double bound,
                            double scale, int64_t head = 0) {
    double off = fabs(got - want);
    grow(&o->error, off, scale);
    grow(&o->share, off, bound);
    if (off <= bound) return; /* false for NaN */
    if (atomicExch(&o->failed, 1)) return;
    o->kind = kind, o->line = line, o->column = column, o->head = head, o->got = got, o->want = want, o->bound = bound;
}

/* What a trial has planted, as kernels get it. */
struct planted_specials {
    sat_special list[SAT_MAX_SPECIALS];
    int count;
};

static inline planted_specials specials_of(const sat_trial *t) {
    planted_specials s = {};
    s.count = t->special_count;
    for (int i = 0; i < t->special_count; i++) s.list[i] = t->specials[i];
    return s;
}

/* ---- sums in twice the precision ---- */

struct true_sum {
    double sum, low, squares; /* low: what rounding took from `sum` */
};

__device__ inline void add_twice(true_sum *s, double x, double low) {
    double sum = s->sum + x, part = sum - s->sum;
    s->low += low + ((s->sum - (sum - part)) + (x - part));
    s->sum = sum;
}

__device__ inline void add_product(true_sum *s, double a, double b) {
    double x = a * b;
    add_twice(s, x, fma(a, b, -x));
    s->squares += x * x;
}

__device__ inline true_sum warp_true_sum(true_sum s) {
    for (int d = 16; d > 0; d /= 2) {
        double sum = __shfl_xor_sync(0xffffffffu, s.sum, d), low = __shfl_xor_sync(0xffffffffu, s.low, d);
        add_twice(&s, sum, low);
        s.squares += __shfl_xor_sync(0xffffffffu, s.squares, d);
    }
    return s;
}

/* One element against its true sum; `rest` is beta*before + bias. */
__device__ inline void note_precisely(outcome *o, int kind, int64_t line, int64_t column, const sat_problem &p,
                                      sat_loss loss, double got, true_sum s, double rest, double rest_squares,
                                      sat_squares *squares) {
    double x = p.alpha * s.sum + rest, low = p.alpha * s.low,
           scale = sqrt(p.alpha * p.alpha * s.squares + rest_squares);
    double want = sat_act_f64(sat_activation_of(&p), x + low),
           bound = sat_precision_bound(&p, loss.most, scale, x, want);
    if (sat_activation_of(&p) == SAT_ACT_NONE)
        got = (got - x) - low, want = 0; /* in f64 `want` has lost what is looked for */
    note(o, kind, line, column, got, want, bound, scale);
    if (!sat_repeats(&p))
        sat_squares_add(squares, got - want,
                        sat_predicted_square(&p, loss.rms, scale, x, sat_activation_of(&p) == SAT_ACT_NONE ? x : want));
}

/* Elements (i0.., j0..) of a matrix into tile[row][column], zero beyond `rows` and `cols`; all threads of the CTA. */
__device__ inline void load_tile(double (*tile)[PITCH], sat_dtype t, const void *base, const sat_layout &l, int64_t i0,
                                 int64_t j0, int64_t rows, int64_t cols) {
    bool columns = l.row_stride == 1 && l.col_stride != 1;
    for (int e = threadIdx.x; e < TILE * TILE; e += blockDim.x) {
        int i = columns ? e % TILE : e / TILE, j = columns ? e / TILE : e % TILE;
        bool inside = i0 + i < rows && j0 + j < cols;
        tile[i][j] = inside ? sat_device_load(t, base, (i0 + i) * l.row_stride + (j0 + j) * l.col_stride) : 0;
    }
}

/* Sums over a warp. */
template <typename T> __device__ inline T warp_sum(T x) {
    for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

/* Rows of matrices of integers times a random vector, by tiles: to[z*rows + i] += sum over j of m[z][i][j]*r[j]. By
 * CTAs of at least TILE threads; notes what is no integer as a fault of this kind. */
__device__ inline void fold_rows(outcome *o, int kind, sat_dtype type, const void *from, const sat_layout &layout,
                                 int64_t items, int64_t rows, int64_t cols, double scale, uint64_t seed,
                                 unsigned long long *to) {
    __shared__ double tile[TILE][PITCH];
    int64_t across = sat_tiles(cols), each = sat_tiles(rows) * across;
    for (int64_t at = blockIdx.x; at < items * each; at += gridDim.x) {
        int64_t z = at / each, i0 = at % each / across * TILE, j0 = at % across * TILE, i = i0 + threadIdx.x;
        load_tile(tile, type, sat_at(type, from, z * layout.batch_stride), layout, i0, j0, rows, cols);
        __syncthreads();
        if (threadIdx.x < TILE && i < rows) {
            uint64_t sum = 0, value;
            for (int64_t j = 0; j < sat_min(TILE, cols - j0); j++) {
                if (!sat_integer(tile[threadIdx.x][j], scale, &value)) note(o, kind, i, j0 + j, 1, 0, 0, 0);
                sum += value * sat_mix(seed + (uint64_t)(j0 + j));
            }
            atomicAdd(&to[z * rows + i], (unsigned long long)sum); /* integers: the order does not matter */
        }
        __syncthreads();
    }
}

/* All threads of the CTA, once. */
__device__ inline void add_squares(outcome *o, sat_squares mine) {
    double seen = warp_sum(mine.seen), predicted = warp_sum(mine.predicted), weights = warp_sum(mine.weights);
    unsigned long long count = warp_sum((unsigned long long)mine.count);
    if (threadIdx.x % 32 != 0 || count == 0) return;
    atomicAdd(&o->squares.seen, seen);
    atomicAdd(&o->squares.predicted, predicted);
    atomicAdd(&o->squares.weights, weights);
    atomicAdd((unsigned long long *)&o->squares.count, count);
}

/* What every expectation begins with. Its device memory is not from the context's allocator: a checker knows no
 * context. `result` is stored behind the doubles. */
struct expectation_base {
    double *memory;
    outcome *result;
    bool exact; /* nothing is worked out beside the sums */
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
    memcpy(&finding->share, &o.share, sizeof finding->share);
    finding->ok = !o.failed;
    if (o.failed) words(finding->where, sizeof finding->where, &o);
    sat_judge_squares(&o.squares, finding);
    return SAT_OK;
}

#endif
