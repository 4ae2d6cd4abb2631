/* Activations of f32 lines, written so that compilers vectorise them: no calls, no branches. Every multiply-add is
 * spelled out, so that an element's result does not depend on its place in a line. */
#ifndef SAT_PACKED_ACT_H
#define SAT_PACKED_ACT_H

#include "variant.h"

/* exp(x) is *scale times the result, to a unit or two; x beyond what f32 holds counts as the last that it does. */
static inline float packed_exp(float x, float *scale) {
    const float magic = 0x1.8p23f; /* what is added to it loses its fraction */
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float n = fmaf(x, 1.44269504f, magic) - magic;
    float r = fmaf(n, 2.12194440e-4f, fmaf(n, -0.693359375f, x)); /* log 2 in two parts: n times the first is exact */
    float p = 0.0013941108434f;
    p = fmaf(p, r, 0.00837512639815f);
    p = fmaf(p, r, 0.0416663528968f);
    p = fmaf(p, r, 0.166664155147f);
    p = fmaf(p, r, 0.500000004712f);
    p = fmaf(p, r, 1.00000003772f);
    *scale = sat_bits_float(((uint32_t)(int32_t)n + 127u) << 23);
    return fmaf(p, r, 1.0f);
}

static inline float packed_silu(float x) {
    float scale, e = packed_exp(-x, &scale), down = fmaf(e, scale, 1.0f);
    return x / (x < -88.0f ? INFINITY : down);
}

/* x times the normal distribution: its tail is exp(-z^2)/2 times a polynomial of t = 1/(1 + 0.35 z), z = |x|/sqrt 2,
 * fitted at Chebyshev's points up to z = 10 with a relative error of 1e-8. */
static inline float packed_gelu(float x) {
    float z = fabsf(x) * 0.707106781f, t = 1.0f / fmaf(0.35f, z, 1.0f), scale, e = packed_exp(-(z * z), &scale);
    float p = 0.0366547279f;
    p = fmaf(p, t, -0.1495435352f);
    p = fmaf(p, t, 0.1596412149f);
    p = fmaf(p, t, 0.00104561349f);
    p = fmaf(p, t, 0.06340511023f);
    p = fmaf(p, t, 0.1585546898f);
    p = fmaf(p, t, 0.1469157809f);
    p = fmaf(p, t, 0.1888063984f);
    p = fmaf(p, t, 0.1970307378f);
    p = fmaf(p, t, 0.1974892664f);
    float half = 0.5f * t * p, tail = e * scale;
    return x * (x > 0 ? fmaf(-half, tail, 1.0f) : half * tail);
}

static inline void packed_activate_line_f32(float *x, int64_t n, sat_activation activation) {
    if (activation == SAT_ACT_GELU)
        for (int64_t j = 0; j < n; j++) x[j] = packed_gelu(x[j]);
    else
        for (int64_t j = 0; j < n; j++) x[j] = packed_silu(x[j]);
}

static inline void packed_activate_line_f64(double *x, int64_t n, sat_activation activation) {
    for (int64_t j = 0; j < n; j++) x[j] = sat_act_f64(activation, x[j]);
}

#endif
