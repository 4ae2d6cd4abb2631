// cpu_matmul_packed_avx2: packs B into narrow panels and keeps a register tile of C, 4x24 or 6x16 (f32; f64 half as
// wide), over a whole block row. Good for products with more columns than a vector has; wide ones pay for the packing.

#define VECTOR_BYTES 32
#include "kernels/cpu/common/vector.h"

#define PACKED_EFFICIENCY 0.8
#define PACKED_K_STEP     1
#include "matmul_packed_plan.h"

// clang-format off
#define MAX_ROWS        6
#define MAX_VECTORS     3
#define TILES(X, F) \
    X(5, 1, F) X(5, 2, F) X(6, 1, F) X(6, 2, F)
#define DIRECT_TILES(X, F) \
    X(1, 1, F) X(1, 2, F) X(1, 3, F) X(2, 1, F) X(2, 2, F) X(2, 3, F) X(3, 1, F) X(3, 2, F) X(3, 3, F) X(4, 1, F) \
    X(4, 2, F) X(4, 3, F)
#define K_UNROLL        4
#define PREFETCH_B      1
#define B_IN_PLACE      0
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

SAT_FAMILY(cpu_matmul_packed_avx2) = PACKED_FAMILY("AVX2 tiles over packed panels of B: many columns, any block shape");
