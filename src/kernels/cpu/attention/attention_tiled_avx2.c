// cpu_attention_tiled_avx2, cpu_attention_backward_tiled_avx2: tiles of 64 queries by 64 keys with online softmax, in
// panels of 16 rows. Good for head sizes up to 256.

#define VECTOR_BYTES 32
#define COLUMNS      4

#include "attention_vector.h"

static double rate_on(const sat_device *d) { return d->isa & SAT_ISA_AVX512 ? 0.5 : 0.6; }

#include "attention_tiled.h"

SAT_FAMILY(cpu_attention_tiled_avx2) =
    TILED_FAMILY(SAT_ATTENTION, forward, "AVX2, tiles of 64 x 64 with online softmax, absent ones passed over");
SAT_FAMILY(cpu_attention_backward_tiled_avx2) = TILED_FAMILY(SAT_ATTENTION_BACKWARD, backward,
                                                             "AVX2, tiles of 64 x 64, dQ and then dK and dV");
