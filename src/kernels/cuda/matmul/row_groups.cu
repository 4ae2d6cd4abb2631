/* Brings row groups to the device. */
#include "kernels/cuda/matmul/row_groups.h"

static size_t rows_from(const sat_rows *r) { return sat_union_bytes(r->ptr[r->count]); }
static size_t items_from(const sat_rows *r, int size) {
    return rows_from(r) + (size_t)(r->count + size) * sizeof(int32_t) / 256 * 256 + 256;
}
size_t sat_row_groups_bytes(const sat_rows *r, int size) {
    size_t items = (size_t)(r->count / size + 2) * sizeof(sat_work_item);
    return items_from(r, size) + items / 256 * 256 + 512 + SAT_COUNTER_BYTES;
}

static sat_status upload(const sat_prepare *q, const sat_rows *r, const int32_t *row, int size, const sat_union *u,
                         sat_device_schedule *work) {
    char *to = (char *)q->workspace;
    cudaStream_t stream = (cudaStream_t)q->stream;
    cudaError_t e =
        cudaMemcpyAsync(to, u->entry, (size_t)u->entries * sizeof *u->entry, cudaMemcpyHostToDevice, stream);
    if (e == cudaSuccess)
        e = cudaMemcpyAsync(to + rows_from(r), row, (size_t)(u->groups * size) * sizeof *row, cudaMemcpyHostToDevice,
                            stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream);
    if (e != cudaSuccess) return sat_fail(SAT_DEVICE_ERROR, "%s: %s", q->variant->name, cudaGetErrorString(e));
    sat_rows groups = {.count = u->groups, .ptr = u->ptr};
    return sat_upload_schedule(q, &groups, INT32_MAX, to + items_from(r, size), work);
}

sat_status sat_prepare_row_groups(const sat_prepare *q, int size, int columns_per_entry, sat_device_schedule *work,
                                  const sat_union_entry **entries, const int32_t **rows, unsigned **counter) {
    const sat_rows problem_rows = sat_op_rows(q->problem, q->pattern), *r = &problem_rows;
    sat_union u = {};
    int32_t *row = (int32_t *)malloc((size_t)(r->count + size) * sizeof *row);
    sat_status status =
        row && sat_union_groups(r, (r->k + r->bc - 1) / r->bc, size, row) &&
                sat_union_make(r, row, size, columns_per_entry, &u)
            ? upload(q, r, row, size, &u, work)
            : sat_fail(SAT_OUT_OF_MEMORY, "%s: groups of %lld rows", q->variant->name, (long long)r->count);
    *entries = (const sat_union_entry *)q->workspace;
    *rows = (const int32_t *)((char *)q->workspace + rows_from(r));
    sat_union_free(&u);
    free(row);
    return status == SAT_OK ? sat_tile_counter_init(q, sat_row_groups_bytes(r, size), counter) : status;
}
