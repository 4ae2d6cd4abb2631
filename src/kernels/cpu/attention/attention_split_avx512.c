// cpu_attention_split_avx512: few queries, keys split into work items of 512, and a reduction. Good for decoding.

#define VECTOR_BYTES 64
#define ROWS         4

#include "attention_split.h"

SAT_FAMILY(cpu_attention_split_avx512) =
    SPLIT_FAMILY("AVX-512, up to 32 rows that share keys; keys split over threads, then a reduction");
