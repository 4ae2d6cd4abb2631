// cpu_sampled_csr_avx2: each stored element a dot product of lines along k, four at a time. Good for single elements
// and thin blocks.

#define VECTOR_BYTES 32
#include "kernels/cpu/common/vector.h"

#include "sampled_csr_plan.h"

#define FN(x) x##_f32
#include "sampled_csr.h"

#define FN(x) x##_f64
#include "sampled_csr.h"

static sat_status launch(const sat_launch *l) {
    return l->problem->compute_dtype == SAT_F64 ? csr_launch_f64(l) : csr_launch_f32(l);
}

SAT_FAMILY(cpu_sampled_csr_avx2) = CSR_FAMILY("each stored element a dot product, four at a time (AVX2)");
