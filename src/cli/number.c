// Conversions between the dtypes and double, written from the formats: sign, exponent, significand.

#include "number.h"

#include <math.h>
#include <string.h>

// A binary format: bits of the significand with the hidden one, and the smallest normal exponent.
typedef struct format {
    const char *name;
    size_t size;
    int precision, least;
} format;

static const format formats[5] = {
    [SAT_F32] = {"f32", 4, 24, -126},
    [SAT_F64] = {"f64", 8, 53, -1022},
    [SAT_F16] = {"f16", 2, 11, -14},
    [SAT_BF16] = {"bf16", 2, 8, -126},
};

size_t number_size(sat_dtype t) { return formats[t].size; }

double number_roundoff(sat_dtype t) { return ldexp(1, -formats[t].precision); }

double number_tiny(sat_dtype t) { return ldexp(1, formats[t].least - formats[t].precision); }

const char *dtype_name(sat_dtype t) { return t >= SAT_F32 && t <= SAT_BF16 ? formats[t].name : "?"; }

const char *dtype_pair_name(sat_dtype a, sat_dtype c) {
    if (a == c) return dtype_name(a);
    return a == SAT_F16 && c == SAT_F32 ? "f16:f32" : a == SAT_BF16 && c == SAT_F32 ? "bf16:f32" : "?";
}

bool dtype_parse(const char *text, sat_dtype *a, sat_dtype *c) {
    for (int t = SAT_F32; t <= SAT_BF16; t++)
        if (strcmp(text, formats[t].name) == 0) return *a = *c = (sat_dtype)t, true;
    *c = SAT_F32;
    if (strcmp(text, "f16:f32") == 0) return *a = SAT_F16, true;
    if (strcmp(text, "bf16:f32") == 0) return *a = SAT_BF16, true;
    return false;
}

static double from_bits16(const format *f, uint16_t bits) {
    int fraction = f->precision - 1, exponent = (bits & 0x7fff) >> fraction, all_ones = 0x7fff >> fraction;
    int significand = bits & ((1 << fraction) - 1);
    double x;
    if (exponent == all_ones) x = significand ? NAN : INFINITY;
    else if (exponent == 0) x = ldexp(significand, f->least - fraction);
    else x = ldexp(significand | (1 << fraction), f->least + exponent - 1 - fraction);
    return bits & 0x8000 ? -x : x;
}

static uint16_t to_bits16(const format *f, double x) {
    int fraction = f->precision - 1, all_ones = 0x7fff >> fraction;
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    x = fabs(x);
    if (isnan(x)) return (uint16_t)(sign | 0x7fff);
    int exponent = 0;
    if (x > 0 && isfinite(x)) frexp(x, &exponent);
    exponent = exponent - 1 < f->least ? f->least : exponent - 1;
    if (isfinite(x)) x = nearbyint(ldexp(x, fraction - exponent)); // whole units of the last place
    if (isfinite(x) && x >= ldexp(1, fraction + 1)) x /= 2, exponent++;
    if (!isfinite(x) || exponent - f->least + 1 >= all_ones) return (uint16_t)(sign | all_ones << fraction);
    int bits = (int)x; // a subnormal lacks the hidden bit, so its exponent field comes out as 0
    if (bits >= 1 << fraction) bits += (exponent - f->least) << fraction;
    return (uint16_t)(sign | bits);
}

double number_load(sat_dtype t, const void *p, int64_t i) {
    if (t == SAT_F64) return ((const double *)p)[i];
    if (t == SAT_F32) return (double)((const float *)p)[i];
    return from_bits16(&formats[t], ((const uint16_t *)p)[i]);
}

void number_store(sat_dtype t, void *p, int64_t i, double x) {
    if (t == SAT_F64) ((double *)p)[i] = x;
    else if (t == SAT_F32) ((float *)p)[i] = (float)x;
    else ((uint16_t *)p)[i] = to_bits16(&formats[t], x);
}
