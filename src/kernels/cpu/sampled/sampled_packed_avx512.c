// cpu_sampled_packed_avx512: as cpu_sampled_packed_avx2, in vectors twice as wide and with twice as many registers
// (8 rows of 3 vectors, 6 of 4). Good for any block shape.

#define VECTOR_BYTES 64
#include "kernels/cpu/common/vector.h"
#include "kernels/cpu/common/convert_x86.h"

#define SAMPLED_BF16    0
#define SAMPLED_PEAK(d) 1
#include "sampled_packed_plan.h"

// clang-format off
#define OUTER_TILES(X)                                                                                                 \
    X(1, 1) X(2, 1) X(3, 1) X(4, 1) X(5, 1) X(6, 1) X(7, 1) X(8, 1)                                                    \
    X(1, 2) X(2, 2) X(3, 2) X(4, 2) X(5, 2) X(6, 2) X(7, 2) X(8, 2)                                                    \
    X(1, 3) X(2, 3) X(3, 3) X(4, 3) X(5, 3) X(6, 3) X(7, 3) X(8, 3)                                                    \
    X(1, 4) X(2, 4) X(3, 4) X(4, 4) X(5, 4) X(6, 4) X(7, 4)
// clang-format on
#define DOT_TILES SAMPLED_DOT_TILES_24

#define FN(name) name##_f32
#include "sampled_packed.h"

#define FN(name) name##_f64
#include "sampled_packed.h"

static sat_status launch(const sat_launch *l) {
    return l->problem->compute_dtype == SAT_F64 ? launch_f64(l) : launch_f32(l);
}

SAT_FAMILY(cpu_sampled_packed_avx512) =
    SAMPLED_FAMILY("AVX-512 register tiles on packed X and Y, whole or along k; any dtype and block shape");
