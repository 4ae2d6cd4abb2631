// cpu_matmul_left_avx512: X*A with everything in place: vectors of a block's rows times elements of X, 8 rows of X and
// 48 columns (f32; f64 24) at a time in registers. Good for blocks at least half as wide as a vector.

#define VECTOR_BYTES 64
#include "matmul_left_plan.h"

#define FN(x) x##_f32
#include "matmul_left.h"

#define FN(x) x##_f64
#include "matmul_left.h"

static sat_status launch(const sat_launch *l) {
    return l->problem->compute_dtype == SAT_F64 ? left_launch_f64(l) : left_launch_f32(l);
}

SAT_FAMILY(cpu_matmul_left_avx512) = LEFT_FAMILY("AVX-512 tiles of X*A, everything in place; rows of X times blocks");
