/* The backends of this build, best first. */
#include "backend/backend.h"

#include <strings.h>

static const sat_backend *const backends[] = {
#ifdef SAT_HAVE_CUDA
    &sat_backend_cuda,
#endif
    &sat_backend_cpu};

const sat_backend *sat_backend_at(int i) {
    return i >= 0 && i < (int)(sizeof backends / sizeof *backends) ? backends[i] : NULL;
}

const char *sat_backend_missing(const char *name, size_t length) {
#ifndef SAT_HAVE_CUDA
    if (length == 4 && strncasecmp(name, "cuda", length) == 0)
        return "this build is without CUDA: SAT_CUDA was OFF, or CMake found no nvcc of 12.4 or newer";
#endif
    (void)name, (void)length;
    return NULL;
}
