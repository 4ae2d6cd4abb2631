/* The packed matmul's last step, once for each kind of element: act(alpha*tile + beta*C + bias) into C, whatever its
 * strides and dtype. Column-major C is written as the row-major tile turned round. Included by matmul_packed.h. */

#include "packed_act.h"

/* One line of C, contiguous in memory: `bias` is a value for each element, or one for all. */
typedef struct NAME(packed_line) {
    T alpha, beta, bias;
    const T *biases; /* NULL: one for all */
    sat_activation activation;
    sat_dtype dtype;
    bool around; /* write around the cache where lines of memory are whole */
} NAME(packed_line);

/* Multiply-adds are spelled out: an element's result may not depend on its place in a line. */
INLINE T NAME(packed_fma)(T x, T y, T z) {
    return sizeof(T) == 4 ? (T)__builtin_fmaf((float)x, (float)y, (float)z) : (T)__builtin_fma(x, y, z);
}

INLINE void NAME(packed_scale)(T *x, const T *old, int64_t n, const NAME(packed_line) * l) {
    T alpha = l->alpha, beta = l->beta, bias = l->bias;
    if (old)
        for (int64_t j = 0; j < n; j++) x[j] = NAME(packed_fma)(beta, old[j], alpha * x[j]);
    else if (alpha != 1)
        for (int64_t j = 0; j < n; j++) x[j] = alpha * x[j];
    if (l->biases)
        for (int64_t j = 0; j < n; j++) x[j] += l->biases[j];
    else if (bias != 0)
        for (int64_t j = 0; j < n; j++) x[j] += bias;
}

static void NAME(packed_activate)(T *x, int64_t n, sat_activation activation) {
    if (activation == SAT_ACT_RELU)
        for (int64_t j = 0; j < n; j++) x[j] = x[j] < 0 ? 0 : x[j]; /* NaN stays */
    else if (activation != SAT_ACT_NONE) ACTIVATE(x, n, activation);
}

/* Some of C as T, and back. */
INLINE void NAME(packed_read_line)(T *to, sat_dtype t, const void *c, int64_t n) {
    if (t == SAT_F16 || t == SAT_BF16)
        for (int64_t j = 0; j < n; j++) to[j] = NAME(packed_get)((int)t, c, j);
    else memcpy(to, c, (size_t)n * sizeof(T));
}

INLINE void NAME(packed_write_line)(void *c, const NAME(packed_line) * l, const T *x, int64_t n) {
    enum { LINE = 64 / sizeof(T) };
    uint16_t *to = c;
    int64_t j = 0;
    switch (l->dtype) {
    case SAT_F16:
#if HALVES
        for (; j + 8 <= n; j += 8)
            _mm_storeu_si128((__m128i *)(to + j), _mm256_cvtps_ph(_mm256_loadu_ps(x + j), _MM_FROUND_TO_NEAREST_INT));
#endif
        for (; j < n; j++) to[j] = sat_to_f16((float)x[j]);
        break;
    case SAT_BF16:
        for (; j < n; j++) to[j] = sat_to_bf16((float)x[j]);
        break;
    default:
        if (l->around && (uintptr_t)c % 64 == 0)
            for (; j + LINE <= n; j += LINE) {
                UNROLL for (int e = 0; e < LINE; e += VL) V_STREAM((T *)c + j + e, V_LOAD(x + j + e));
            }
        memcpy((T *)c + j, x + j, (size_t)(n - j) * sizeof(T));
    }
}

/* `x` is used up. In parts that begin with a line of memory, all but the first. */
static void NAME(packed_finish_line)(T *x, void *c, int64_t n, const NAME(packed_line) * l) {
    enum { MOST = 64 };
    for (int64_t j = 0, some; j < n; j += some) {
        T old[MOST];
        some = sat_min(MOST - (j ? 0 : (int64_t)((uintptr_t)c % 64 / sat_dtype_size(l->dtype))), n - j);
        void *at = sat_at(l->dtype, c, j);
        NAME(packed_line) part = *l;
        if (l->biases) part.biases = l->biases + j;
        if (l->beta != 0) NAME(packed_read_line)(old, l->dtype, at, some);
        NAME(packed_scale)(x + j, l->beta != 0 ? old : NULL, some, &part);
        NAME(packed_activate)(x + j, some, l->activation);
        NAME(packed_write_line)(at, l, x + j, some);
    }
}

/* Some rows and columns of C, as the kernels left them, and where they go. */
typedef struct NAME(packed_result) {
    const sat_problem *problem;
    T *tile;                  /* [rows][width] */
    int64_t width;            /* distance between its rows */
    int64_t i, rows, j, cols; /* of C */
    void *c;                  /* element (0, 0) */
    const void *bias;
    bool around;
    T *turn; /* room for PACKED_STORE rows */
} NAME(packed_result);

/* Lines of C are contiguous: rows of it, or columns where `turned`. */
static void NAME(packed_store_lines)(const NAME(packed_result) * x, NAME(packed_line) * l, void *c, const T *bias,
                                     bool turned) {
    const sat_problem *p = x->problem;
    int64_t lines = turned ? x->cols : x->rows, n = turned ? x->rows : x->cols;
    int64_t next = turned ? p->c.col_stride : p->c.row_stride;
    if (turned) l->biases = bias;
    for (int64_t i = 0; i < lines; i++) {
        if (bias && !turned) l->bias = bias[i];
        T *line = turned ? x->turn + i * n : x->tile + i * x->width;
        NAME(packed_finish_line)(line, sat_at(p->c_dtype, c, i * next), n, l);
    }
}

static void NAME(packed_store_any)(const NAME(packed_result) * x, NAME(packed_line) * l, void *c, const T *bias) {
    const sat_problem *p = x->problem;
    for (int64_t i = 0; i < x->rows; i++) {
        if (bias) l->bias = bias[i];
        for (int64_t j = 0; j < x->cols; j++) {
            void *at = sat_at(p->c_dtype, c, i * p->c.row_stride + j * p->c.col_stride);
            NAME(packed_finish_line)(x->tile + i * x->width + j, at, 1, l);
        }
    }
}

/* At most PACKED_STORE rows. What stands in the tile is used up. */
static void NAME(packed_store_some)(const NAME(packed_result) * x) {
    const sat_problem *p = x->problem;
    NAME(packed_line) l = {.alpha = (T)p->alpha, .beta = (T)p->beta, .activation = p->activation, .dtype = p->c_dtype};
    T biases[PACKED_STORE];
    void *at = sat_at(p->c_dtype, x->c, x->i * p->c.row_stride + x->j * p->c.col_stride);
    if (x->bias) NAME(packed_read_line)(biases, p->c_dtype, sat_at(p->c_dtype, x->bias, x->i), x->rows);
    const T *bias = x->bias ? biases : NULL;
    l.around = x->around;
    if (p->c.col_stride == 1) {
        NAME(packed_store_lines)(x, &l, at, bias, false);
    } else if (p->c.row_stride == 1) {
        NAME(packed_turn)(0, x->tile, x->width, x->rows, x->cols, x->turn, x->rows);
        NAME(packed_store_lines)(x, &l, at, bias, true);
    } else {
        NAME(packed_store_any)(x, &l, at, bias);
    }
}

static void NAME(packed_store)(const NAME(packed_result) * x) {
    NAME(packed_result) part = *x;
    for (int64_t done = 0; done < x->rows; done += PACKED_STORE) {
        part.i = x->i + done, part.rows = sat_min(PACKED_STORE, x->rows - done);
        part.tile = x->tile + done * x->width;
        NAME(packed_store_some)(&part);
    }
}
