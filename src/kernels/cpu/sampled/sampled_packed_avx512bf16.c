// cpu_sampled_packed_avx512bf16: dot tiles that multiply pairs of bf16 and add them to f32 in one instruction, twice
// the work of a fused multiply-add. X and Y stay bf16, so packing moves half the bytes. Good for bf16, any block shape.

#define VECTOR_BYTES 64
#define VECTOR_BF16
#include "kernels/cpu/common/vector.h"
#include "kernels/cpu/common/convert_x86.h"

#define SAMPLED_BF16    1
#define SAMPLED_PEAK(d) 1.8 /* of the rate of f32 */
#include "sampled_packed_plan.h"

#define OUTER_TILES(X)
#define DOT_TILES SAMPLED_DOT_TILES_24

typedef __m128i pack_vec_bf16;
enum { pack_lanes_bf16 = 8 };
#define pack_store_bf16(p, v) _mm_storeu_si128((__m128i *)(void *)(p), v)

static inline __m128i pack_load_bf16(sat_dtype t, const void *p, int64_t i) {
    (void)t; /* bf16 stays as it is */
    return _mm_loadu_si128((const __m128i *)(const void *)((const uint16_t *)p + i));
}

static inline void pack_transpose_bf16(__m128i *r) {
    __m128i t[8], u[8];
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm_unpacklo_epi16(r[i], r[i + 4]);
        t[2 * i + 1] = _mm_unpackhi_epi16(r[i], r[i + 4]);
    }
    for (int i = 0; i < 4; i++) {
        u[2 * i] = _mm_unpacklo_epi16(t[i], t[i + 4]);
        u[2 * i + 1] = _mm_unpackhi_epi16(t[i], t[i + 4]);
    }
    for (int i = 0; i < 4; i++) {
        r[2 * i] = _mm_unpacklo_epi16(u[i], u[i + 4]);
        r[2 * i + 1] = _mm_unpackhi_epi16(u[i], u[i + 4]);
    }
}

#define FN(name) name##_bf16
#include "sampled_packed.h"

static sat_status launch(const sat_launch *l) { return launch_bf16(l); }

SAT_FAMILY(cpu_sampled_packed_avx512bf16) = SAMPLED_FAMILY("AVX-512 pairs of bf16 along k; any block shape");
