/* Every CUDA variant of this build, even of libraries that are not on this machine, and a made-up device to ask them
 * about: `supports`, `estimate` and `workspace` need no GPU. */
#ifndef SAT_TEST_CUDA_VARIANTS_H
#define SAT_TEST_CUDA_VARIANTS_H

#include "support.h"

#include "ops/op.h"
#include "variant.h"

/* An H200 in round numbers. */
static const sat_device hopper = {
    SAT_SIZED(sat_device),     .backend = SAT_CUDA,   .name = "made up",    .multiprocessors = 132,
    .capability = 90,          .l1_bytes = 228 << 10, .l2_bytes = 50 << 20, .memory_bytes = (int64_t)140 << 30,
    .shared_bytes = 227 << 10, .memory_rate = 4e12,   .l2_rate = 9e12,      .flop_rate = {0, 5e13, 5e13, 6e14, 6e14},
    .tf32_rate = 3e14};

#define SAT_VARIANT(name, family, priority, dtype, tile_m, tile_n, tile_k, option)                                     \
    extern const sat_family sat_family_##family;
#include "kernels/cuda/variants.def"
#include "libs/variants.def"
#undef SAT_VARIANT

static const struct cuda_line {
    const char *name;
    const sat_family *family;
    sat_instance instance;
} cuda_lines[] = {
#define SAT_VARIANT(name, family, priority, dtype, tile_m, tile_n, tile_k, option)                                     \
    {#name, &sat_family_##family, {dtype, tile_m, tile_n, tile_k, option}},
#include "kernels/cuda/variants.def"
#include "libs/variants.def"
#undef SAT_VARIANT
};
enum { CUDA_LINES = sizeof cuda_lines / sizeof *cuda_lines };

/* False for a line that is not CUDA's. */
static inline bool cuda_variant(int i, sat_variant *v) {
    const sat_family *f = cuda_lines[i].family;
    *v = (sat_variant){SAT_SIZED(sat_variant),  .name = cuda_lines[i].name, .op = f->op,
                       .backend = f->backend,   .flags = f->flags,          .instance = cuda_lines[i].instance,
                       .supports = f->supports, .estimate = f->estimate,    .workspace = f->workspace};
    return f->backend == SAT_CUDA;
}

#endif
