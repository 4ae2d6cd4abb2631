/* What the CUDA backend's host code and its kernels know of each other. */
#ifndef SAT_CUDA_H
#define SAT_CUDA_H

#include <cuda_runtime_api.h>

#include "backend/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SAT_CUDA_DEVICES = 64 }; /* the most that one machine has */

sat_status sat_cuda_status(cudaError_t error, const char *what); /* SAT_OK, or a failure whose message names `what` */
/* Why there is no device to be had, after cudaGetDeviceCount failed or found none. */
sat_status sat_cuda_absent(cudaError_t error, int index);

/* cuda_calls.c. How a piece of host code stands to the program's own CUDA calls: the backend's enter and leave. */
typedef enum sat_cuda_way {
    SAT_CUDA_RUN = 0,   /* the device alone: a caller's run, under whatever capture is on */
    SAT_CUDA_ASIDE = 1, /* and no capture forbids it */
    SAT_CUDA_OWN = 2    /* and no other thread uses the tuning stream meanwhile */
} sat_cuda_way;

int sat_cuda_enter_as(const sat_device *d, sat_cuda_way way);
int sat_cuda_enter(const sat_device *d); /* SAT_CUDA_OWN: whatever uses the tuning stream */
void sat_cuda_leave(const sat_device *d, int before);

void sat_cuda_sync_device(const sat_device *d);
bool sat_cuda_capturing(const sat_device *d, void *stream);

/* cuda_fill.cu; all of it is queued on `stream`, and all_poison waits for it. */
cudaError_t sat_cuda_nothing(cudaStream_t stream);                         /* a kernel that does nothing */
cudaError_t sat_cuda_sweep(void *from, size_t bytes, cudaStream_t stream); /* reads all of it, through L2 */
cudaError_t sat_cuda_spin(int blocks, cudaStream_t stream);                /* so many CTAs for half a millisecond */
cudaError_t sat_cuda_fill(const sat_operand *o, const sat_pattern_view *a, void *base, uint64_t seed,
                          const sat_fill *fill, cudaStream_t stream);
cudaError_t sat_cuda_digest(const void *from, size_t bytes, uint64_t *digest, cudaStream_t stream);
cudaError_t sat_cuda_all_poison(const sat_operand *o, void *base, size_t guard, bool *clean, cudaStream_t stream);

/* cuda_rates.cu; waits for all of it. */
cudaError_t sat_cuda_measure(const sat_device *d, void *scratch, size_t bytes, sat_rates *rates, cudaStream_t stream);

/* cuda_indices.cu; within enter(), on the stream of a run. */
size_t sat_cuda_index_scratch(const sat_index_copy *x);
cudaError_t sat_cuda_copy_indices(const sat_index_copy *x, cudaStream_t stream);
cudaError_t sat_cuda_clear_blocks(const sat_index_copy *x, const sat_block_values *values, cudaStream_t stream);

extern const sat_checker sat_cuda_matmul_check, sat_cuda_sampled_check, sat_cuda_attention_check,
    sat_cuda_grouped_check;

#ifdef __cplusplus
}
#endif

#endif
