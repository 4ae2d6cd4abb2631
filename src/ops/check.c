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

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void axpy_avx2(double *y, const double *x, double a, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] += a * x[i];
}
#endif

void sat_axpy(double *y, const double *x, double a, int64_t n) {
#if defined(__x86_64__)
    if (n >= 8 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        axpy_avx2(y, x, a, n);
        return;
    }
#endif
    for (int64_t i = 0; i < n; i++) y[i] += a * x[i];
}

double sat_dot(const double *x, const double *y, int64_t n) {
    double s[8] = {0}; /* independent sums, so that compilers vectorise without reordering by themselves */
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) s[j] += x[i + j] * y[i + j];
    for (; i < n; i++) s[0] += x[i] * y[i];
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}
