/* The backends of this build, best first. */
#include "backend/backend.h"

static const sat_backend *const backends[] = {
#ifdef SAT_HAVE_CUDA
    &sat_backend_cuda,
#endif
    &sat_backend_cpu};

const sat_backend *sat_backend_at(int i) {
    return i >= 0 && i < (int)(sizeof backends / sizeof *backends) ? backends[i] : NULL;
}
