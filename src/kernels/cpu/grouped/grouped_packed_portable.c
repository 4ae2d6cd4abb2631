// cpu_grouped_portable, cpu_grouped_weights_portable: the packed products of groups in vectors of 128 bits of the
// compiler's own, which every processor with SIMD has.

#define VECTOR_BYTES 16
#include "kernels/cpu/common/vector.h"
#include "kernels/cpu/common/convert_portable.h"

#define GROUPED_PEAK(d) ((d)->isa & SAT_ISA_AVX2 ? 0.2 : 0.7) /* 128 bits of 256 or more, no fused multiply-add */
#include "grouped_packed_plan.h"

#define OUTER_TILES(X) X(1, 1) X(2, 1) X(3, 1) X(4, 1) X(5, 1) X(6, 1) X(1, 2) X(2, 2) X(3, 2) X(4, 2) X(5, 2) X(6, 2)
#define DOT_TILES(X)

#define FN(name) name##_f32
#include "grouped_packed.h"

#define FN(name) name##_f64
#include "grouped_packed.h"

static sat_status launch(const sat_launch *l) {
    return l->problem->compute_dtype == SAT_F64 ? launch_f64(l) : launch_f32(l);
}

SAT_FAMILY(cpu_grouped_portable) = GROUPED_FAMILY(SAT_GROUPED,
                                                  "128-bit register tiles on packed X and W; any dtype and layout");
SAT_FAMILY(cpu_grouped_weights_portable) =
    GROUPED_FAMILY(SAT_GROUPED_WEIGHTS, "128-bit register tiles on packed X and Z; any dtype and layout");
