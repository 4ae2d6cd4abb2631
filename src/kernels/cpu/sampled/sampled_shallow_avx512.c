// cpu_sampled_shallow_avx512: sums of few terms. The lanes of a vector are neighbouring stored elements, so that
// nothing is added up over lanes, and small blocks fill vectors too.

#define VECTOR_BYTES 64
#include "kernels/cpu/common/vector.h"

#include "sampled_shallow_plan.h"

#define FN(x) x##_f32
#include "sampled_shallow.h"

#define FN(x) x##_f64
#include "sampled_shallow.h"

static sat_status launch(const sat_launch *l) {
    return l->problem->compute_dtype == SAT_F64 ? shallow_launch_f64(l) : shallow_launch_f32(l);
}

SAT_FAMILY(cpu_sampled_shallow_avx512) = SHALLOW_FAMILY("sums of few terms, stored elements in the lanes (AVX-512)");
