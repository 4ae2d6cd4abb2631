// cpu_matmul_packed_avx512bf16: as cpu_matmul_packed_avx512, with the instruction that multiplies pairs of bf16 and
// adds them up in f32: two k in each step. It takes subnormal values as zero. Good for bf16 with many columns.

#define VECTOR_BYTES 64
#define VECTOR_BF16
#include "kernels/cpu/common/vector.h"

#define PACKED_EFFICIENCY 1.2
#define PACKED_K_STEP     2
#include "matmul_packed_plan.h"

// clang-format off
#define MAX_ROWS    8
#define MAX_VECTORS 4
#define TILES(X, F)
#define DIRECT_TILES(X, F) \
    X(1, 1, F) X(1, 2, F) X(1, 3, F) X(1, 4, F) X(2, 1, F) X(2, 2, F) X(2, 3, F) X(2, 4, F) X(3, 1, F) X(3, 2, F) \
    X(3, 3, F) X(3, 4, F) X(4, 1, F) X(4, 2, F) X(4, 3, F) X(4, 4, F) X(5, 1, F) X(5, 2, F) X(5, 3, F) X(6, 1, F) \
    X(6, 2, F) X(6, 3, F) X(7, 1, F) X(7, 2, F) X(7, 3, F) X(8, 1, F) X(8, 2, F) X(8, 3, F)
#define K_UNROLL    2
#define PREFETCH_B  0
#define B_IN_PLACE  0
// clang-format on

#define activate_line_bf16x2 activate_line_f32
#define FN(x)                x##_bf16x2
#include "matmul_packed.h"

static sat_status refresh(const sat_launch *l) { return packed_refresh_bf16x2(l); }

static sat_status launch(const sat_launch *l) { return packed_launch_bf16x2(l); }

SAT_FAMILY(cpu_matmul_packed_avx512bf16) =
    PACKED_FAMILY("AVX-512 tiles of bf16 pairs over packed panels of B: many columns, any block shape");
