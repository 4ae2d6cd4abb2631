// cpu_sampled_packed_avx2: packs chunks of X and Y, keeps a tile of S in registers (4 rows of 3 vectors, 6 of 2), or
// for narrow blocks a tile of dot products along k. Good for any block shape; the direct form reads X and Y in place
// where both are contiguous along k, which suits patterns too sparse to pay for packing.

#define VECTOR_BYTES 32
#include "kernels/cpu/common/vector.h"
#include "kernels/cpu/common/convert_x86.h"

#define SAMPLED_BF16    0
#define SAMPLED_PEAK(d) ((d)->isa & SAT_ISA_AVX512 ? 0.9 : 1) /* where vectors can be wider, they may be no faster */
#include "sampled_packed_plan.h"

// clang-format off
#define OUTER_TILES(X)                                                                                                 \
    X(1, 1) X(2, 1) X(3, 1) X(4, 1) X(5, 1) X(6, 1) X(1, 2) X(2, 2) X(3, 2) X(4, 2) X(5, 2) X(6, 2)                    \
    X(1, 3) X(2, 3) X(3, 3) X(4, 3)
// clang-format on
#define DOT_TILES SAMPLED_DOT_TILES_12

#define FN(name) name##_f32
#include "sampled_packed.h"

#define FN(name) name##_f64
#include "sampled_packed.h"

static sat_status launch(const sat_launch *l) {
    return l->problem->compute_dtype == SAT_F64 ? launch_f64(l) : launch_f32(l);
}

SAT_FAMILY(cpu_sampled_packed_avx2) =
    SAMPLED_FAMILY("AVX2 register tiles on packed X and Y, whole or along k; any dtype and block shape");
