// cpu_attention_tiled_avx512, cpu_attention_backward_tiled_avx512: tiles of 64 queries by 64 keys with online softmax,
// in panels of 32 rows.

#define VECTOR_BYTES 64
#include "kernels/cpu/common/vector.h"
#include "kernels/cpu/common/convert_x86.h"

#define COLUMNS 8

#define VSELECT(v, b, o) _mm512_mask_blend_ps((__mmask16)(b), o, v)
#define VEXP2_SPLIT(x, n, f)                                                                                           \
    do {                                                                                                               \
        __m512 split_x = (x);                                                                                          \
        n = _mm512_roundscale_ps(split_x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);                              \
        f = _mm512_sub_ps(split_x, n);                                                                                 \
    } while (0)
#define VEXP2_JOIN(p, n)       _mm512_scalef_ps(p, n)
#define VBELOW(x, limit, a, b) _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, limit, _CMP_LT_OQ), b, a)
#define VRECIPROCAL(x)         _mm512_div_ps(_mm512_set1_ps(1.0f), x)

static double rate_on(const sat_device *d) { return (void)d, 0.62; }

#include "attention_tiled.h"

SAT_FAMILY(cpu_attention_tiled_avx512) =
    TILED_FAMILY(SAT_ATTENTION, forward, "AVX-512, tiles of 64 x 64 with online softmax, absent ones passed over");
SAT_FAMILY(cpu_attention_backward_tiled_avx512) = TILED_FAMILY(SAT_ATTENTION_BACKWARD, backward,
                                                               "AVX-512, tiles of 64 x 64, dQ and then dK and dV");
