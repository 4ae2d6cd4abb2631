// cpu_grouped_packed_avx512, cpu_grouped_weights_packed_avx512: as the families of AVX2, in vectors twice as wide and
// with twice as many registers (8 rows of 3 vectors, 6 of 4).

#define VECTOR_BYTES 64
#include "kernels/cpu/common/vector.h"
#include "kernels/cpu/common/convert_x86.h"

#define GROUPED_PEAK(d) 1
#include "grouped_packed_plan.h"

// clang-format off
#define OUTER_TILES(X)                                                                                                 \
    X(1, 1) X(2, 1) X(3, 1) X(4, 1) X(5, 1) X(6, 1) X(7, 1) X(8, 1)                                                    \
    X(1, 2) X(2, 2) X(3, 2) X(4, 2) X(5, 2) X(6, 2) X(7, 2) X(8, 2)                                                    \
    X(1, 3) X(2, 3) X(3, 3) X(4, 3) X(5, 3) X(6, 3) X(7, 3) X(8, 3)                                                    \
    X(1, 4) X(2, 4) X(3, 4) X(4, 4) X(5, 4) X(6, 4)
// clang-format on
#define DOT_TILES(X)

#define FN(name) name##_f32
#include "grouped_packed.h"

#define FN(name) name##_f64
#include "grouped_packed.h"

static sat_status launch(const sat_launch *l) {
    return l->problem->compute_dtype == SAT_F64 ? launch_f64(l) : launch_f32(l);
}

SAT_FAMILY(cpu_grouped_packed_avx512) =
    GROUPED_FAMILY(SAT_GROUPED, "AVX-512 register tiles on packed X and W; any dtype and layout");
SAT_FAMILY(cpu_grouped_weights_packed_avx512) =
    GROUPED_FAMILY(SAT_GROUPED_WEIGHTS, "AVX-512 register tiles on packed X and Z; any dtype and layout");
