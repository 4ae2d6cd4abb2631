/* Dtypes: what dtypes.def says of each, as functions that are inlined everywhere, in device code too. */
#ifndef SAT_DTYPE_H
#define SAT_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "sparse_autotune.h"

#ifdef __CUDACC__
#define SAT_BOTH __host__ __device__ /* compiled for the host and for the device */
#else
#define SAT_BOTH
#endif

/* ---- conversions ---- */

SAT_BOTH static inline float sat_bits_float(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

SAT_BOTH static inline uint32_t sat_float_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

SAT_BOTH static inline float sat_from_bf16(uint16_t h) { return sat_bits_float((uint32_t)h << 16); }

SAT_BOTH static inline uint16_t sat_to_bf16(float f) { /* nearest even; NaN stays NaN */
    uint32_t x = sat_float_bits(f);
    if ((x & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((x >> 16) | 0x40u);
    return (uint16_t)((x + 0x7fffu + ((x >> 16) & 1u)) >> 16);
}

SAT_BOTH static inline float sat_from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = (h >> 10) & 0x1fu, man = h & 0x3ffu;
    if (exp == 31) return sat_bits_float(sign | 0x7f800000u | (man << 13));
    if (exp != 0) return sat_bits_float(sign | ((exp + 112) << 23) | (man << 13));
    float f = (float)man * 0x1p-24f; /* zero and subnormals */
    return sign ? -f : f;
}

SAT_BOTH static inline uint16_t sat_to_f16(float f) { /* nearest even; overflow gives infinity */
    uint32_t x = sat_float_bits(f), sign = (x >> 16) & 0x8000u;
    x &= 0x7fffffffu;
    if (x > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((x >> 13) & 0x1ffu)); /* as the hardware does */
    if (x >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
    if (x < 0x38800000u) { /* subnormal in f16: let float addition do the rounding */
        float magic = sat_bits_float(x) + 0.5f;
        return (uint16_t)(sign | (sat_float_bits(magic) - 0x3f000000u));
    }
    x += 0xfffu + ((x >> 13) & 1u);
    return (uint16_t)(sign | ((x - 0x38000000u) >> 13));
}

/* What is stored as a double, and a double rounded once to what is stored: nearest, ties to even. A 16-bit dtype takes
 * doubles that are floats. */
SAT_BOTH static inline double sat_f32_read(float x) { return (double)x; }
SAT_BOTH static inline float sat_f32_round(double x) { return (float)x; }
SAT_BOTH static inline double sat_f64_read(double x) { return x; }
SAT_BOTH static inline double sat_f64_round(double x) { return x; }
SAT_BOTH static inline double sat_f16_read(uint16_t x) { return (double)sat_from_f16(x); }
SAT_BOTH static inline uint16_t sat_f16_round(double x) { return sat_to_f16((float)x); }
SAT_BOTH static inline double sat_bf16_read(uint16_t x) { return (double)sat_from_bf16(x); }
SAT_BOTH static inline uint16_t sat_bf16_round(double x) { return sat_to_bf16((float)x); }

/* ---- the table ---- */

enum {
#define SAT_DTYPE(id, name, stored, on_device, library, compute, bits, unit, tiny) SAT_DTYPE_AT_##name,
#include "base/dtypes.def"
#undef SAT_DTYPE
    SAT_DTYPE_COUNT,
    SAT_DTYPE_SLOTS = SAT_DTYPE_COUNT + 1 /* of an array with a dtype as index: they count from 1 */
};

/* Problems with a dtype that is not in the table are refused when they are normalised: none gets past a switch. */
#define SAT_NO_SUCH_DTYPE() __builtin_unreachable()

/* Bytes of an element; 0 where there is no such dtype. */
SAT_BOTH static inline size_t sat_dtype_size(sat_dtype t) {
    switch (t) {
#define SAT_DTYPE(id, name, stored, on_device, library, compute, bits, unit, tiny)                                     \
    case id:                                                                                                           \
        return sizeof(stored);
#include "base/dtypes.def"
#undef SAT_DTYPE
    }
    return 0;
}

static inline bool sat_dtype_known(sat_dtype t) { return sat_dtype_size(t) != 0; }

/* The dtype of its sums. */
SAT_BOTH static inline sat_dtype sat_dtype_compute(sat_dtype t) {
    switch (t) {
#define SAT_DTYPE(id, name, stored, on_device, library, compute, bits, unit, tiny)                                     \
    case id:                                                                                                           \
        return compute;
#include "base/dtypes.def"
#undef SAT_DTYPE
    }
    SAT_NO_SUCH_DTYPE();
}

/* The largest integer of its bits: exact in this dtype, and in no narrower one. */
static inline double sat_dtype_widest(sat_dtype t) {
    switch (t) {
#define SAT_DTYPE(id, name, stored, on_device, library, compute, bits, unit, tiny)                                     \
    case id:                                                                                                           \
        return (double)((1 << (bits)) - 1);
#include "base/dtypes.def"
#undef SAT_DTYPE
    }
    SAT_NO_SUCH_DTYPE();
}

SAT_BOTH static inline double sat_unit(sat_dtype t) {
    switch (t) {
#define SAT_DTYPE(id, name, stored, on_device, library, compute, bits, unit, tiny)                                     \
    case id:                                                                                                           \
        return unit;
#include "base/dtypes.def"
#undef SAT_DTYPE
    }
    SAT_NO_SUCH_DTYPE();
}

SAT_BOTH static inline double sat_tiny(sat_dtype t) {
    switch (t) {
#define SAT_DTYPE(id, name, stored, on_device, library, compute, bits, unit, tiny)                                     \
    case id:                                                                                                           \
        return tiny;
#include "base/dtypes.def"
#undef SAT_DTYPE
    }
    SAT_NO_SUCH_DTYPE();
}

/* x rounded once to a dtype. */
SAT_BOTH static inline double sat_rounded(sat_dtype t, double x) {
    switch (t) {
#define SAT_DTYPE(id, name, stored, on_device, library, compute, bits, unit, tiny)                                     \
    case id:                                                                                                           \
        return sat_##name##_read(sat_##name##_round(x));
#include "base/dtypes.def"
#undef SAT_DTYPE
    }
    SAT_NO_SUCH_DTYPE();
}

/* Any element as a double, and back. For references and edges, not for inner loops. */
static inline double sat_load(sat_dtype t, const void *p, int64_t i) {
    switch (t) {
#define SAT_DTYPE(id, name, stored, on_device, library, compute, bits, unit, tiny)                                     \
    case id:                                                                                                           \
        return sat_##name##_read(((const stored *)p)[i]);
#include "base/dtypes.def"
#undef SAT_DTYPE
    }
    SAT_NO_SUCH_DTYPE();
}

static inline void sat_store(sat_dtype t, void *p, int64_t i, double x) {
    switch (t) {
#define SAT_DTYPE(id, name, stored, on_device, library, compute, bits, unit, tiny)                                     \
    case id:                                                                                                           \
        ((stored *)p)[i] = sat_##name##_round(x);                                                                      \
        return;
#include "base/dtypes.def"
#undef SAT_DTYPE
    }
    SAT_NO_SUCH_DTYPE();
}

SAT_BOTH static inline void *sat_at(sat_dtype t, const void *p, int64_t i) {
    return (char *)(uintptr_t)p + i * (int64_t)sat_dtype_size(t);
}

#ifdef __cplusplus
extern "C" {
#endif
const char *sat_dtype_name(sat_dtype t); /* "f32"; "?" if unknown */
#ifdef __cplusplus
}
#endif

#endif
