// cpu_matmul_skinny_avx2: 1 to 16 columns, bound by reading the stored blocks once; B is packed in the order of the
// steps. Good for products with a few vectors.

#define VECTOR_BYTES 32
#include "kernels/cpu/common/vector.h"

#include "matmul_skinny_plan.h"

#define FN(x) x##_f32
#include "matmul_skinny.h"

#define FN(x) x##_f64
#include "matmul_skinny.h"

static sat_status launch(const sat_launch *l) {
    return l->problem->compute_dtype == SAT_F64 ? launch_f64(l) : launch_f32(l);
}

SAT_FAMILY(cpu_matmul_skinny_avx2) = SKINNY_FAMILY("a matrix times 1 to 16 vectors: streams the blocks once (AVX2)");
