/* What the CUDA backend's host code and its kernels know of each other. */
#ifndef SAT_CUDA_H
#define SAT_CUDA_H

#include <cuda_runtime_api.h>

#include "backend/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

sat_status sat_cuda_status(cudaError_t error, const char *what); /* SAT_OK, or a failure whose message names `what` */

/* Makes a device the calling thread's, and puts back the one that enter() returned. */
int sat_cuda_enter(const sat_device *d);
void sat_cuda_leave(const sat_device *d, int before);

/* cuda_fill.cu; all of it is queued on `stream`, and all_poison waits for it. */
cudaError_t sat_cuda_nothing(cudaStream_t stream);                         /* a kernel that does nothing */
cudaError_t sat_cuda_sweep(void *from, size_t bytes, cudaStream_t stream); /* reads all of it, through L2 */
cudaError_t sat_cuda_fill(const sat_operand *o, const sat_pattern_view *a, void *base, uint64_t seed, sat_fill fill,
                          double scale, cudaStream_t stream);
cudaError_t sat_cuda_flip_signs(sat_dtype t, void *base, int64_t elements, cudaStream_t stream);
cudaError_t sat_cuda_all_poison(const sat_operand *o, void *base, size_t guard, bool *clean, cudaStream_t stream);

extern const sat_checker sat_cuda_matmul_check, sat_cuda_sampled_check;

#ifdef __cplusplus
}
#endif

#endif
