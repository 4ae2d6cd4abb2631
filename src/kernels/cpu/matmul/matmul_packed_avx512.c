// cpu_matmul_packed_avx512: packs B into narrow panels and keeps a register tile of C, 4x64 to 14x32 (f32; f64 half as
// wide), over a whole block row. Good for products with more columns than a vector has; wide ones pay for the packing.

#define VECTOR_BYTES 64
#include "kernels/cpu/common/vector.h"

#define PACKED_EFFICIENCY 0.7
#define PACKED_K_STEP     1
#include "matmul_packed_plan.h"

// clang-format off
#define MAX_ROWS    14
#define MAX_VECTORS 4
#define TILES(X, F) \
    X(9, 1, F) X(9, 2, F) X(10, 1, F) X(10, 2, F) X(11, 1, F) X(11, 2, F) X(12, 1, F) X(12, 2, F) X(13, 1, F) \
    X(13, 2, F) X(14, 1, F) X(14, 2, F)
#define DIRECT_TILES(X, F) \
    X(1, 1, F) X(1, 2, F) X(1, 3, F) X(1, 4, F) X(2, 1, F) X(2, 2, F) X(2, 3, F) X(2, 4, F) X(3, 1, F) X(3, 2, F) \
    X(3, 3, F) X(3, 4, F) X(4, 1, F) X(4, 2, F) X(4, 3, F) X(4, 4, F) X(5, 1, F) X(5, 2, F) X(5, 3, F) X(6, 1, F) \
    X(6, 2, F) X(6, 3, F) X(7, 1, F) X(7, 2, F) X(7, 3, F) X(8, 1, F) X(8, 2, F) X(8, 3, F)
#define K_UNROLL    2
#define PREFETCH_B  0
#define B_IN_PLACE  1
// clang-format on

#define FN(x) x##_f32
#include "matmul_packed.h"

#define FN(x) x##_f64
#include "matmul_packed.h"

static sat_status refresh(const sat_launch *l) {
    return l->problem->compute_dtype == SAT_F64 ? packed_refresh_f64(l) : packed_refresh_f32(l);
}

static sat_status launch(const sat_launch *l) {
    return l->problem->compute_dtype == SAT_F64 ? packed_launch_f64(l) : packed_launch_f32(l);
}

SAT_FAMILY(cpu_matmul_packed_avx512) =
    PACKED_FAMILY("AVX-512 tiles over packed panels of B: many columns, any block shape");
