/* Why a context is not on CUDA. */
#ifndef CLI_WHY_H
#define CLI_WHY_H

#include "sparse_autotune.h"

/* In a few words for people: the build, the driver, the devices, or what was asked for. False where CUDA is used.
 * `asked` is what --device said; NULL: nothing. */
bool why_not_cuda(const sat_context *context, const char *asked, char *why, size_t capacity);

#endif
