/* What tests of the CUDA backend share. One that needs a device is called test_cuda_*_gpu.c, and its main begins with
 *     if (!has_gpu()) return NO_GPU; */
#ifndef SAT_TEST_CUDA_SUPPORT_H
#define SAT_TEST_CUDA_SUPPORT_H

#include "support.h"

#include "backend/backend.h"

enum { NO_GPU = 77 }; /* CTest's word for skipped */

static inline bool has_gpu(void) { return sat_backend_cuda.count() > 0; }

static inline sat_context *open_cuda(sat_effort effort) {
    sat_context *ctx = NULL;
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cuda", .cache_dir = "", .effort = effort};
    assert_ok(sat_context_create(&o, &ctx));
    return ctx;
}

/* A copy on the context's device. */
static inline void *to_device(sat_context *ctx, const void *host, size_t bytes) {
    void *device = NULL;
    assert_ok(sat_memory_alloc(ctx, bytes, &device));
    assert_ok(sat_memory_write(ctx, device, host, bytes));
    return device;
}

#endif
