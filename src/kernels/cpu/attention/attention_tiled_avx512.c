// cpu_attention_tiled_avx512, cpu_attention_backward_tiled_avx512: tiles of 64 queries by 64 keys with online softmax,
// in panels of 32 rows. Good for head sizes up to 256.

#define VECTOR_BYTES 64
#define COLUMNS      8

#include "attention_vector.h"

static double rate_on(const sat_device *d) { return (void)d, 0.62; }

#include "attention_tiled.h"

SAT_FAMILY(cpu_attention_tiled_avx512) =
    TILED_FAMILY(SAT_ATTENTION, forward, "AVX-512, tiles of 64 x 64 with online softmax, absent ones passed over");
SAT_FAMILY(cpu_attention_backward_tiled_avx512) = TILED_FAMILY(SAT_ATTENTION_BACKWARD, backward,
                                                               "AVX-512, tiles of 64 x 64, dQ and then dK and dV");
