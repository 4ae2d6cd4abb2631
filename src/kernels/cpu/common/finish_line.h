/* How lines and rows of sums are finished, for one element type: act(alpha*sum + beta*C + bias) into C, in the dtype of
 * C. A template, included once for each element type after FN(name) has been defined (common/vector.h). */

#ifndef SAT_CPU_ACTIVATION_LINES /* the same for all element types */
#define SAT_CPU_ACTIVATION_LINES

/* Activations of f32 lines, written so that compilers vectorise them: no calls, no branches. Every multiply-add is
 * spelled out, so that an element's result does not depend on its position in a line. */

/* exp(x) is *scale times the result, to one or two units in the last place; x is clamped to what f32 can hold. */
static inline float line_exp(float x, float *scale) {
    const float magic = 0x1.8p23f; /* adding it rounds to a whole number */
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float n = fmaf(x, 1.44269504f, magic) - magic;
    float r = fmaf(n, 2.12194440e-4f, fmaf(n, -0.693359375f, x)); /* log 2 as two numbers: n times the first is exact */
    float p = 0.0013941108434f;
    p = fmaf(p, r, 0.00837512639815f);
    p = fmaf(p, r, 0.0416663528968f);
    p = fmaf(p, r, 0.166664155147f);
    p = fmaf(p, r, 0.500000004712f);
    p = fmaf(p, r, 1.00000003772f);
    *scale = sat_bits_float(((uint32_t)(int32_t)n + 127u) << 23);
    return fmaf(p, r, 1.0f);
}

static inline float line_silu(float x) {
    float scale, e = line_exp(-x, &scale), down = fmaf(e, scale, 1.0f);
    return x / (x < -88.0f ? INFINITY : down);
}

/* x times the normal distribution: its tail is exp(-z^2)/2 times a polynomial of t = 1/(1 + 0.35 z), z = |x|/sqrt 2,
 * fitted at Chebyshev points up to z = 10 with a relative error of 1e-8. */
static inline float line_gelu(float x) {
    float z = fabsf(x) * 0.707106781f, t = 1.0f / fmaf(0.35f, z, 1.0f), scale, e = line_exp(-(z * z), &scale);
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

static inline void activate_line_f32(float *x, int64_t n, sat_activation activation) {
    if (activation == SAT_ACT_GELU)
        for (int64_t j = 0; j < n; j++) x[j] = line_gelu(x[j]);
    else
        for (int64_t j = 0; j < n; j++) x[j] = line_silu(x[j]);
}

static inline void activate_line_f64(double *x, int64_t n, sat_activation activation) {
    for (int64_t j = 0; j < n; j++) x[j] = sat_act_f64(activation, x[j]);
}

#if VECTOR_BYTES > 16
#define line_from_f16(x) _cvtsh_ss(x)
#else
#define line_from_f16(x) sat_from_f16(x)
#endif

#endif

/* How a line of C (contiguous: a row of it, or a column) is finished. */
typedef struct FN(line) {
    REAL alpha, beta, bias;
    const REAL *biases; /* one for each element; NULL: `bias` for all */
    sat_activation activation;
    sat_dtype dtype;
    bool nontemporal; /* store whole cache lines around the cache */
} FN(line);

/* Multiply-adds are spelled out: an element's result may not depend on its position in a line. */
INLINE REAL FN(line_fma)(REAL x, REAL y, REAL z) {
    return sizeof(REAL) == 4 ? (REAL)__builtin_fmaf((float)x, (float)y, (float)z) : (REAL)__builtin_fma(x, y, z);
}

INLINE void FN(scale_line)(REAL *x, const REAL *old, int64_t n, const FN(line) * l) {
    REAL alpha = l->alpha, beta = l->beta, bias = l->bias;
    if (old)
        for (int64_t j = 0; j < n; j++) x[j] = FN(line_fma)(beta, old[j], alpha * x[j]);
    else if (alpha != 1)
        for (int64_t j = 0; j < n; j++) x[j] = alpha * x[j];
    if (l->biases)
        for (int64_t j = 0; j < n; j++) x[j] += l->biases[j];
    else if (bias != 0)
        for (int64_t j = 0; j < n; j++) x[j] += bias;
}

static void FN(activate)(REAL *x, int64_t n, sat_activation activation) {
    if (activation == SAT_ACT_RELU)
        for (int64_t j = 0; j < n; j++) x[j] = x[j] < 0 ? 0 : x[j]; /* NaN stays */
    else if (activation != SAT_ACT_NONE) FN(activate_line)(x, n, activation);
}

/* n elements of C as REAL, and back. */
INLINE void FN(read_line)(REAL *to, sat_dtype t, const void *c, int64_t n) {
    const uint16_t *half = c;
    if (t == SAT_F16)
        for (int64_t j = 0; j < n; j++) to[j] = (REAL)line_from_f16(half[j]);
    else if (t == SAT_BF16)
        for (int64_t j = 0; j < n; j++) to[j] = (REAL)sat_from_bf16(half[j]);
    else memcpy(to, c, (size_t)n * sizeof(REAL));
}

INLINE void FN(write_line)(void *c, const FN(line) * l, const REAL *x, int64_t n) {
    enum { LINE = 64 / sizeof(REAL) };
    uint16_t *to = c;
    int64_t j = 0;
    switch (l->dtype) {
    case SAT_F16:
#if WIDENS && VECTOR_BYTES > 16
        for (; j + 8 <= n; j += 8)
            _mm_storeu_si128((__m128i *)(to + j), _mm256_cvtps_ph(_mm256_loadu_ps(x + j), _MM_FROUND_TO_NEAREST_INT));
#endif
        for (; j < n; j++) to[j] = sat_to_f16((float)x[j]);
        break;
    case SAT_BF16:
        for (; j < n; j++) to[j] = sat_to_bf16((float)x[j]);
        break;
    default:
#if VECTOR_BYTES > 16
        if (l->nontemporal && (uintptr_t)c % 64 == 0)
            for (; j + LINE <= n; j += LINE) {
                UNROLL for (int e = 0; e < LINE; e += LANES) VSTREAM((REAL *)c + j + e, VLOAD(x + j + e));
            }
#endif
        memcpy((REAL *)c + j, x + j, (size_t)(n - j) * sizeof(REAL));
    }
}

/* Overwrites `x`. Goes by parts, all of which but the first begin with a cache line. */
static void FN(finish_line)(REAL *x, void *c, int64_t n, const FN(line) * l) {
    enum { MOST = 64 };
    for (int64_t j = 0, some; j < n; j += some) {
        REAL old[MOST];
        some = sat_min(MOST - (j ? 0 : (int64_t)((uintptr_t)c % 64 / sat_dtype_size(l->dtype))), n - j);
        void *at = sat_at(l->dtype, c, j);
        FN(line) part = *l;
        if (l->biases) part.biases = l->biases + j;
        if (l->beta != 0) FN(read_line)(old, l->dtype, at, some);
        FN(scale_line)(x + j, l->beta != 0 ? old : NULL, some, &part);
        FN(activate)(x + j, some, l->activation);
        FN(write_line)(at, l, x + j, some);
    }
}

/* ---- whole rows of C ---- */

/* Rows may be short, so what a row costs beside its arithmetic counts: many rows are stored by one call, as long lines
 * where C has any. Below, sums of neighbouring rows are `step` elements apart. */

INLINE REAL FN(row_bias)(const sat_launch *l, int64_t row) {
    REAL bias = 0;
    const sat_dtype t = l->problem->c_dtype;
    if (l->problem->matmul.bias == SAT_BIAS_ROW) FN(read_line)(&bias, t, sat_at(t, l->operands[3], row), 1);
    return bias;
}

INLINE FN(line) FN(line_of)(const sat_problem *p) {
    return (FN(line)){
        .alpha = (REAL)p->alpha, .beta = (REAL)p->beta, .activation = p->matmul.activation, .dtype = p->c_dtype};
}

/* Row by row, element by element where those are apart: any dtype, activation and beta. Overwrites the sums. */
static inline void FN(finish_each_row)(const sat_launch *l, REAL *sums, int64_t step, int64_t first, int64_t rows) {
    const sat_problem *p = l->problem;
    const int64_t along = p->c.col_stride, some = along == 1 ? p->n : 1;
    FN(line) line = FN(line_of)(p);
    for (int64_t i = 0; i < rows; i++) {
        line.bias = FN(row_bias)(l, first + i);
        for (int64_t n = 0; n < p->n; n += some) {
            void *c = sat_at(p->c_dtype, l->operands[2], (first + i) * p->c.row_stride + n * along);
            FN(finish_line)(sums + i * step + n, c, some, &line);
        }
    }
}

/* C of the type that is computed in, no activation; read, if beta is not 0, only where it is row-major. */
static inline void FN(finish_plain_rows)(const sat_launch *l, const REAL *sums, int64_t step, int64_t first,
                                         int64_t rows) {
    const sat_problem *p = l->problem;
    const REAL alpha = (REAL)p->alpha, beta = (REAL)p->beta;
    const int64_t down = p->c.row_stride, along = p->c.col_stride, columns = p->n;
    REAL *c = (REAL *)l->operands[2] + first * down;
    if (columns == 1 || along < down) {
        for (int64_t i = 0; i < rows; i++) {
            const REAL bias = FN(row_bias)(l, first + i), *from = sums + i * step;
            REAL *to = c + i * down;
            if (beta != 0)
                for (int64_t n = 0; n < columns; n++) to[n * along] = alpha * from[n] + beta * to[n * along] + bias;
            else if (along == 1)
                for (int64_t n = 0; n < columns; n++) to[n] = alpha * from[n] + bias;
            else
                for (int64_t n = 0; n < columns; n++) to[n * along] = alpha * from[n] + bias;
        }
        return;
    }
    for (int64_t n = 0; n < columns; n++)
        for (int64_t i = 0; i < rows; i++)
            c[i * down + n * along] = alpha * sums[i * step + n] + FN(row_bias)(l, first + i);
}

/* C column-major, or one column: a line is some rows of a column. */
static inline void FN(finish_columns)(const sat_launch *l, const REAL *sums, int64_t step, int64_t first,
                                      int64_t rows) {
    enum { SOME = 64 };
    const sat_problem *p = l->problem;
    FN(line) line = FN(line_of)(p);
    REAL biases[SOME], x[SOME];
    for (int64_t i = 0, some; i < rows; i += some, sums += some * step) {
        some = sat_min(SOME, rows - i);
        if (p->matmul.bias == SAT_BIAS_ROW) {
            for (int64_t e = 0; e < some; e++) biases[e] = FN(row_bias)(l, first + i + e);
            line.biases = biases;
        }
        for (int64_t n = 0; n < p->n; n++) {
            for (int64_t e = 0; e < some; e++) x[e] = sums[e * step + n];
            FN(finish_line)(x, sat_at(p->c_dtype, l->operands[2], first + i + n * p->c.col_stride), some, &line);
        }
    }
}

/* C row-major without gaps, no bias: all rows are one line. Overwrites the sums. */
static inline void FN(finish_one_line)(const sat_launch *l, REAL *sums, int64_t step, int64_t first, int64_t rows) {
    const sat_problem *p = l->problem;
    const FN(line) line = FN(line_of)(p);
    for (int64_t i = 1; i < rows && step > p->n; i++)
        for (int64_t n = 0; n < p->n; n++) sums[i * p->n + n] = sums[i * step + n];
    FN(finish_line)(sums, sat_at(p->c_dtype, l->operands[2], first * p->n), rows * p->n, &line);
}

/* Rows [first, first + rows) of C. May overwrite the sums. Where lines of several rows begin depends on threads, so
 * they do only what gives the same bits at any place of a line. */
static inline void FN(finish_rows)(const sat_launch *l, REAL *sums, int64_t step, int64_t first, int64_t rows) {
    const sat_problem *p = l->problem;
    const bool real = sat_dtype_size(p->c_dtype) == sizeof(REAL), bias = p->matmul.bias == SAT_BIAS_ROW;
    const bool row_major = p->n == 1 || p->c.col_stride < p->c.row_stride;
    const bool plain = p->matmul.activation == SAT_ACT_NONE && (p->beta == 0 || row_major);
    const bool lines = p->beta == 0 && p->matmul.activation <= SAT_ACT_RELU;
    const bool no_gaps = p->n == 1 ? p->c.row_stride == 1 : p->c.col_stride == 1 && p->c.row_stride == p->n;
    if (lines && no_gaps && !bias) FN(finish_one_line)(l, sums, step, first, rows);
    else if (plain && real) FN(finish_plain_rows)(l, sums, step, first, rows);
    else if (lines && p->c.row_stride == 1) FN(finish_columns)(l, sums, step, first, rows);
    else FN(finish_each_row)(l, sums, step, first, rows);
}
