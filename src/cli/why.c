// Why a context is not on CUDA: asks for a CUDA device by name, as a program would, and takes the library's own words.

#include "why.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// What comes after "device is 'cuda'; ", which the reader knows.
static const char *without_name(const char *message) {
    static const char *const starts[] = {"device is 'cuda:0'; ", "device is 'cuda'; "};
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
        if (strncmp(message, starts[i], strlen(starts[i])) == 0) return message + strlen(starts[i]);
    return message;
}

bool why_not_cuda(const sat_context *context, const char *asked, char *why, size_t capacity) {
    *why = 0;
    if (sat_context_device(context)->backend == SAT_CUDA) return false;
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cuda", .cache_dir = "",
                             .effort = SAT_EFFORT_OFF};
    sat_context *other = NULL;
    const char *variable = getenv("SPARSE_AUTOTUNE_DEVICE");
    if (sat_context_create(&o, &other) != SAT_OK) snprintf(why, capacity, "%s", without_name(sat_last_error()));
    else if (asked && *asked) snprintf(why, capacity, "it would work, and --device is '%s'", asked);
    else snprintf(why, capacity, "it would work, and SPARSE_AUTOTUNE_DEVICE is '%s'", variable ? variable : "");
    sat_context_free(other);
    return true;
}
