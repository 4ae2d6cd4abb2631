/* A schedule on the device: its arrays at the head of a variant's workspace, the partial sums behind them, and the
 * kernel that joins those into rows. */
#ifndef SAT_JOIN_CUH
#define SAT_JOIN_CUH

#include "schedule.h"
#include "variant.cuh"

/* What prepare keeps, and launch hands to a kernel. */
struct sat_plan_work {
    int64_t pieces, joins, heavy;
    bool even;
    const sat_piece *piece; /* on the device; NULL: piece i is row i, whole */
    const sat_join *join;
    void *partial;
};

static inline void sat_release_work(const sat_variant *v, void *state) {
    (void)v;
    free(state);
}

/* Without a schedule: one piece a row. */
static inline sat_plan_work sat_rows_work(const sat_rows *r) {
    sat_plan_work w = {};
    w.pieces = r->count;
    return w;
}

/* Makes the schedule of `r`, whose arrays are the host's, and sends it to `to`, where sat_schedule_bytes fit. */
static inline sat_status sat_prepare_rows(const sat_prepare *prepare, const sat_rows *r, int64_t share, char *to,
                                          sat_plan_work *w) {
    sat_schedule s;
    if (!sat_schedule_make(r, share, &s))
        return sat_fail(SAT_OUT_OF_MEMORY, "%s: schedule of %lld rows", prepare->variant->name, (long long)r->count);
    size_t pieces = (size_t)s.pieces * sizeof *s.piece, joins = (size_t)s.joins * sizeof *s.join;
    cudaStream_t stream = (cudaStream_t)prepare->stream;
    cudaError_t e = cudaMemcpyAsync(to, s.piece, pieces, cudaMemcpyHostToDevice, stream);
    if (e == cudaSuccess && joins) e = cudaMemcpyAsync(to + pieces, s.join, joins, cudaMemcpyHostToDevice, stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream);
    w->pieces = s.pieces, w->joins = s.joins, w->heavy = s.heavy, w->even = s.even;
    w->piece = (const sat_piece *)to, w->join = (const sat_join *)(to + pieces);
    w->partial = to + (pieces + joins + 255) / 256 * 256;
    sat_schedule_free(&s);
    if (e == cudaSuccess) return SAT_OK;
    return sat_fail(SAT_DEVICE_ERROR, "%s: %s", prepare->variant->name, cudaGetErrorString(e));
}

/* The problem's own rows, to the head of the workspace; what launch reads is a family's whole state. */
static inline sat_status sat_prepare_work(const sat_prepare *prepare, int64_t share, void **state) {
    sat_rows r = sat_op_rows(prepare->problem, prepare->pattern);
    sat_plan_work *w = (sat_plan_work *)calloc(1, sizeof *w);
    if (!w) return sat_fail(SAT_OUT_OF_MEMORY, "%s: state", prepare->variant->name);
    sat_status status = sat_prepare_rows(prepare, &r, share, (char *)prepare->workspace, w);
    if (status == SAT_OK) *state = w;
    else free(w);
    return status;
}

__device__ __forceinline__ sat_piece sat_piece_at(const sat_rows &r, const sat_piece *piece, int64_t i) {
    if (piece) return piece[i];
    sat_piece whole = {r.ptr[i], (int32_t)i, (int32_t)(r.ptr[i + 1] - r.ptr[i]), -1, {}};
    return whole;
}

/* Adds the partial sums of cut rows, in the order of their slots; a thread has an element of a row. */
template <typename T> static __global__ void sat_join_rows(sat_rows r, sat_out out, sat_plan_work w) {
    const T *partial = (const T *)w.partial;
    int64_t n = out.n, area = r.br * n, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < w.joins * area; at += step) {
        sat_join join = w.join[at / area];
        int64_t in_row = at % area / n, j = at % n, i = join.row * r.br + in_row;
        if (i >= r.m) continue;
        T sum = 0;
        for (int part = 0; part < join.parts; part++) sum += partial[((join.slot + part) * r.br + in_row) * n + j];
        sat_put(out, i, j, sum);
    }
}

/* Sums are doubles where the values are. */
static inline sat_status sat_launch_join(const sat_launch *l, const sat_rows &r, const sat_out &out,
                                         const sat_plan_work &w) {
    if (w.joins == 0) return SAT_OK;
    unsigned blocks = sat_blocks(w.joins * r.br * out.n, 256);
    cudaStream_t stream = (cudaStream_t)l->stream;
    if (l->problem->a_dtype == SAT_F64) sat_join_rows<double><<<blocks, 256, 0, stream>>>(r, out, w);
    else sat_join_rows<float><<<blocks, 256, 0, stream>>>(r, out, w);
    return sat_launched(l);
}

#endif
