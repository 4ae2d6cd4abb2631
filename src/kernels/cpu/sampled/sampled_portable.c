// cpu_sampled_portable: the packed sampled product in 128-bit vectors of the compiler's own, which every processor with
// SIMD has. Good anywhere; where there is something wider, the wider families win.

#define VECTOR_BYTES 16
#include "kernels/cpu/common/vector.h"
#include "kernels/cpu/common/convert_portable.h"

#define SAMPLED_BF16    0
#define SAMPLED_PEAK(d) ((d)->isa & SAT_ISA_AVX2 ? 0.2 : 0.7) /* 128 bits of 256 or more, no fused multiply-add */
#include "sampled_packed_plan.h"

#define OUTER_TILES(X) X(1, 1) X(2, 1) X(3, 1) X(4, 1) X(5, 1) X(6, 1) X(1, 2) X(2, 2) X(3, 2) X(4, 2) X(5, 2) X(6, 2)
#define DOT_TILES      SAMPLED_DOT_TILES_12

#define FN(name) name##_f32
#include "sampled_packed.h"

#define FN(name) name##_f64
#include "sampled_packed.h"

static sat_status launch(const sat_launch *l) {
    return l->problem->compute_dtype == SAT_F64 ? launch_f64(l) : launch_f32(l);
}

SAT_FAMILY(cpu_sampled_portable) =
    SAMPLED_FAMILY("128-bit register tiles on packed X and Y, whole or along k; any dtype and block shape");
