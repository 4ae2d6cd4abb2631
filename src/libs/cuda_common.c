// What the variants of all CUDA libraries share; see cuda_common.h.

#include "libs/cuda_common.h"

#include <stdlib.h>

#include "libs/convert.h"

sat_status sat_libs_status(cudaError_t error, const sat_variant *v, const char *what) {
    if (error == cudaSuccess) return SAT_OK;
    (void)cudaGetLastError(); /* not for the next call to find */
    return sat_fail(error == cudaErrorMemoryAllocation ? SAT_OUT_OF_MEMORY : SAT_DEVICE_ERROR, "%s: %s: %s", v->name,
                    what, cudaGetErrorString(error));
}

sat_status sat_libs_upload(const sat_prepare *p, void *to, const void *from, size_t bytes) {
    cudaError_t error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, p->stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(p->stream);
    return sat_libs_status(error, p->variant, "copying indices");
}

sat_status sat_libs_upload_rows(const sat_prepare *p, int32_t *to) {
    sat_problem as_stored = *p->problem;
    as_stored.matmul.transpose = SAT_NO_TRANSPOSE;
    sat_rows r = sat_op_rows(&as_stored, p->pattern);
    size_t bytes = (size_t)p->pattern->stored_blocks * sizeof(int32_t);
    int32_t *rows = malloc(bytes);
    if (!rows) return sat_fail(SAT_OUT_OF_MEMORY, "%s: no memory on the host", p->variant->name);
    sat_convert_rows(&r, rows);
    sat_status status = sat_libs_upload(p, to, rows, bytes);
    free(rows);
    return status;
}

void *sat_handles_take(sat_handles *h, int device) {
    void *handle = NULL;
    pthread_mutex_lock(&h->lock);
    for (int i = 0; i < h->count && !handle; i++) {
        if (h->idle[i].device != device) continue;
        handle = h->idle[i].handle;
        h->idle[i] = h->idle[--h->count];
    }
    pthread_mutex_unlock(&h->lock);
    return handle;
}

bool sat_handles_give(sat_handles *h, void *handle, int device) {
    pthread_mutex_lock(&h->lock);
    bool room = h->count < (int)(sizeof h->idle / sizeof *h->idle);
    if (room) {
        h->idle[h->count].handle = handle, h->idle[h->count].device = device;
        h->count++;
    }
    pthread_mutex_unlock(&h->lock);
    return room;
}
