/* The inner loops of the host checks. They run on every candidate of every race, so they use the vector unit. */
#include "ops/check.h"

void sat_load_row(double *to, sat_dtype t, const void *from, int64_t start, int64_t stride, int64_t count) {
    switch (t) {
    case SAT_F64:
        for (int64_t i = 0; i < count; i++) to[i] = ((const double *)from)[start + i * stride];
        break;
    case SAT_F32:
        for (int64_t i = 0; i < count; i++) to[i] = (double)((const float *)from)[start + i * stride];
        break;
    case SAT_F16:
        for (int64_t i = 0; i < count; i++) to[i] = (double)sat_from_f16(((const uint16_t *)from)[start + i * stride]);
        break;
    case SAT_BF16:
        for (int64_t i = 0; i < count; i++) to[i] = (double)sat_from_bf16(((const uint16_t *)from)[start + i * stride]);
        break;
    }
}

/* Each loop is compiled twice: for any machine, and for those with AVX2. */
#define LOOPS(attribute, suffix)                                                                                       \
    attribute static void axpy##suffix(double *restrict y, const double *restrict x, double a, int64_t n) {            \
        for (int64_t i = 0; i < n; i++) y[i] += a * x[i];                                                              \
    }                                                                                                                  \
    attribute static void axpy2##suffix(double *restrict y, double *restrict z, const double *restrict x, double a,    \
                                        double b, int64_t n) {                                                         \
        for (int64_t i = 0; i < n; i++) y[i] += a * x[i], z[i] += b * fabs(x[i]);                                      \
    }

LOOPS(, _any)
#if defined(__x86_64__)
LOOPS(__attribute__((target("avx2,fma"))), _avx2)
#define CHOOSE(name) (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? name##_avx2 : name##_any)
#else
#define CHOOSE(name) name##_any
#endif

void sat_axpy(double *y, const double *x, double a, int64_t n) { CHOOSE(axpy)(y, x, a, n); }

void sat_axpy2(double *y, double *z, const double *x, double a, double b, int64_t n) {
    CHOOSE(axpy2)(y, z, x, a, b, n);
}

double sat_dot(const double *x, const double *y, int64_t n) {
    double s[8] = {0}; /* independent sums, so that compilers vectorise without reordering by themselves */
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) s[j] += x[i + j] * y[i + j];
    for (; i < n; i++) s[0] += x[i] * y[i];
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}
