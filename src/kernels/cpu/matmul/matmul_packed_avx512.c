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
#define TILES(X)                                                                                                       \
    X(9, 1) X(9, 2) X(10, 1) X(10, 2) X(11, 1) X(11, 2) X(12, 1) X(12, 2) X(13, 1) X(13, 2) X(14, 1) X(14, 2)
#define DIRECT_TILES(X)                                                                                                \
    X(1, 1) X(1, 2) X(1, 3) X(1, 4) X(2, 1) X(2, 2) X(2, 3) X(2, 4) X(3, 1) X(3, 2) X(3, 3) X(3, 4) X(4, 1) X(4, 2)    \
    X(4, 3) X(4, 4) X(5, 1) X(5, 2) X(5, 3) X(6, 1) X(6, 2) X(6, 3) X(7, 1) X(7, 2) X(7, 3) X(8, 1) X(8, 2) X(8, 3)
#define K_UNROLL    2
#define PREFETCH_B  0
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
