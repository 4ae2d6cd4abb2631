// cpu_attention_split_avx2: few queries, keys split into work items of 512, and a reduction. Good for decoding.

#define VECTOR_BYTES 32
#define ROWS         2

#include "attention_split.h"

SAT_FAMILY(cpu_attention_split_avx2) =
    SPLIT_FAMILY("AVX2, up to 32 rows that share keys; keys split over threads, then a reduction");
