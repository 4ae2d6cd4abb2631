// cpu_matmul_csr_avx512: rows of single elements, or of thin blocks, times rows of B, whose sums stay in vectors. Good
// for CSR matrices and for blocks of few rows.

#define VECTOR_BYTES 64
#include "kernels/cpu/common/vector.h"

#include "matmul_csr_plan.h"

#define FN(x)            x##_f32
#define CSR_GATHER(p, k) _mm512_i32gather_ps(_mm512_loadu_si512(k), p, 4)
#include "matmul_csr.h"

#define FN(x)            x##_f64
#define CSR_GATHER(p, k) _mm512_i32gather_pd(_mm256_loadu_si256((const __m256i *)(const void *)(k)), p, 8)
#include "matmul_csr.h"

static sat_status launch(const sat_launch *l) {
    if (l->problem->n == 0 || l->problem->m == 0) return SAT_OK;
    return l->problem->compute_dtype == SAT_F64 ? csr_launch_f64(l) : csr_launch_f32(l);
}

SAT_FAMILY(cpu_matmul_csr_avx512) = CSR_FAMILY("rows of single elements times rows of B, sums in vectors (AVX-512)");
