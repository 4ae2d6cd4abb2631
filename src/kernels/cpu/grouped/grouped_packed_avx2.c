// cpu_grouped_packed_avx2, cpu_grouped_weights_packed_avx2: products of groups by tiles of 4 rows of 3 vectors, or 6 of
// 2, on packed rows of X and panels of the other factor. Good for groups of any size; the direct form for few rows.

#define VECTOR_BYTES 32
#include "kernels/cpu/common/vector.h"
#include "kernels/cpu/common/convert_x86.h"

#define GROUPED_PEAK(d) ((d)->isa & SAT_ISA_AVX512 ? 0.9 : 1) /* where vectors can be wider, they may be no faster */
#include "grouped_packed_plan.h"

// clang-format off
#define OUTER_TILES(X)                                                                                                 \
    X(1, 1) X(2, 1) X(3, 1) X(4, 1) X(5, 1) X(6, 1) X(1, 2) X(2, 2) X(3, 2) X(4, 2) X(5, 2) X(6, 2)                    \
    X(1, 3) X(2, 3) X(3, 3) X(4, 3)
// clang-format on
#define DOT_TILES(X)

#define FN(name) name##_f32
#include "grouped_packed.h"

#define FN(name) name##_f64
#include "grouped_packed.h"

static sat_status launch(const sat_launch *l) {
    return l->problem->compute_dtype == SAT_F64 ? launch_f64(l) : launch_f32(l);
}

SAT_FAMILY(cpu_grouped_packed_avx2) = GROUPED_FAMILY(SAT_GROUPED,
                                                     "AVX2 register tiles on packed X and W; any dtype and layout");
SAT_FAMILY(cpu_grouped_weights_packed_avx2) =
    GROUPED_FAMILY(SAT_GROUPED_WEIGHTS, "AVX2 register tiles on packed X and Z; any dtype and layout");
