/* Groups of block rows on the device: the steps of each, its rows, and the groups as a schedule of whole rows. */
#ifndef SAT_GROUPS_CUH
#define SAT_GROUPS_CUH

#include "deal.cuh"
#include "union.h"

/* The workspace: steps, rows, schedule, counter. */
static inline size_t sat_grouped_rows_from(const sat_rows *r) { return sat_union_bytes(r->ptr[r->count]); }
static inline size_t sat_grouped_pieces_from(const sat_rows *r, int size) {
    return sat_grouped_rows_from(r) + (size_t)(r->count + size) * sizeof(int32_t) / 256 * 256 + 256;
}
static inline size_t sat_grouped_bytes(const sat_rows *r, int size) {
    size_t pieces = (size_t)(r->count / size + 2) * sizeof(sat_piece);
    return sat_grouped_pieces_from(r, size) + pieces / 256 * 256 + 512 + SAT_COUNTER_BYTES;
}

static inline sat_status sat_send_groups(const sat_prepare *q, const sat_rows *r, const int32_t *row, int size,
                                         const sat_union *u, sat_plan_work *work) {
    char *to = (char *)q->workspace;
    cudaStream_t stream = (cudaStream_t)q->stream;
    cudaError_t e = cudaMemcpyAsync(to, u->step, (size_t)u->steps * sizeof *u->step, cudaMemcpyHostToDevice, stream);
    if (e == cudaSuccess)
        e = cudaMemcpyAsync(to + sat_grouped_rows_from(r), row, (size_t)(u->groups * size) * sizeof *row,
                            cudaMemcpyHostToDevice, stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream);
    if (e != cudaSuccess) return sat_fail(SAT_DEVICE_ERROR, "%s: %s", q->variant->name, cudaGetErrorString(e));
    sat_rows groups = {.count = u->groups, .ptr = u->ptr};
    return sat_prepare_rows(q, &groups, INT32_MAX, to + sat_grouped_pieces_from(r, size), work);
}

/* Looks for groups of `size` rows that share columns; a step has `each` columns. */
static inline sat_status sat_prepare_groups(const sat_prepare *q, const sat_rows *r, int size, int each,
                                            sat_plan_work *work, const sat_union_step **steps, const int32_t **rows,
                                            unsigned **counter) {
    sat_union u = {};
    int32_t *row = (int32_t *)malloc((size_t)(r->count + size) * sizeof *row);
    sat_status status =
        row && sat_union_groups(r, (r->k + r->bc - 1) / r->bc, size, row) && sat_union_make(r, row, size, each, &u)
            ? sat_send_groups(q, r, row, size, &u, work)
            : sat_fail(SAT_OUT_OF_MEMORY, "%s: groups of %lld rows", q->variant->name, (long long)r->count);
    *steps = (const sat_union_step *)q->workspace;
    *rows = (const int32_t *)((char *)q->workspace + sat_grouped_rows_from(r));
    sat_union_free(&u);
    free(row);
    return status == SAT_OK ? sat_deal_counter(q, sat_grouped_bytes(r, size), counter) : status;
}

#endif
