// cpu_attention_tiled_avx512, cpu_attention_backward_tiled_avx512: panels of 32 rows. See attention_tiled.h.

#include "attention_tiled.h"

#define ISA            SAT_ISA_AVX512
#define V              __m512
#define LANES          16
#define COLUMNS        8
#define VLOAD(p)       _mm512_loadu_ps(p)
#define VSTORE(p, v)   _mm512_storeu_ps(p, v)
#define VSET(x)        _mm512_set1_ps(x)
#define VZERO()        _mm512_setzero_ps()
#define VFMA(a, b, c)  _mm512_fmadd_ps(a, b, c)
#define VADD(a, b)     _mm512_add_ps(a, b)
#define VSUB(a, b)     _mm512_sub_ps(a, b)
#define VMUL(a, b)     _mm512_mul_ps(a, b)
#define VMAX(a, b)     _mm512_max_ps(a, b)
#define VKEEP(v, b, o) _mm512_mask_blend_ps((__mmask16)(b), o, v)
#define VEXP2_SPLIT(x, n, f)                                                                                           \
    do {                                                                                                               \
        __m512 split_x = (x);                                                                                          \
        n = _mm512_roundscale_ps(split_x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);                              \
        f = _mm512_sub_ps(split_x, n);                                                                                 \
    } while (0)
#define VEXP2_JOIN(p, n) _mm512_scalef_ps(p, n)

static double rate_on(const sat_device *d) { return (void)d, 0.62; }

#include "attention_tiled_body.h"

SAT_FAMILY(cpu_attention_tiled_avx512) =
    TILED_FAMILY(SAT_ATTENTION, forward, "AVX-512, tiles of 64 x 64 with online softmax, absent ones passed over");
SAT_FAMILY(cpu_attention_backward_tiled_avx512) = TILED_FAMILY(SAT_ATTENTION_BACKWARD, backward,
                                                               "AVX-512, tiles of 64 x 64, dQ and then dK and dV");
