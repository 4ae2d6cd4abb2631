/* The packed matmul's last step, once for each kind of element: act(alpha*tile + beta*C + bias) into C, whatever its
 * strides and dtype. Column-major C is written as the row-major tile turned round. Included by matmul_packed.h. */

/* One line of C, contiguous in memory: `bias` is a value for each element, or one for all. */
typedef struct NAME(packed_line) {
    T alpha, beta, bias;
    const T *biases; /* NULL: one for all */
    sat_activation activation;
    sat_dtype dtype;
} NAME(packed_line);

INLINE void NAME(packed_scale)(T *x, const T *old, int64_t n, const NAME(packed_line) * l) {
    T alpha = l->alpha, beta = l->beta, bias = l->bias;
    if (old)
        for (int64_t j = 0; j < n; j++) x[j] = alpha * x[j] + beta * old[j];
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
    else if (activation != SAT_ACT_NONE)
        for (int64_t j = 0; j < n; j++) x[j] = ACTIVATE(activation, x[j]);
}

/* Up to LINE elements at a time of C as T, and back. */
INLINE void NAME(packed_read_line)(T *to, sat_dtype t, const void *c, int64_t n) {
    if (t == SAT_F16 || t == SAT_BF16)
        for (int64_t j = 0; j < n; j++) to[j] = NAME(packed_get)((int)t, c, j);
    else memcpy(to, c, (size_t)n * sizeof(T));
}

INLINE void NAME(packed_write_line)(void *c, sat_dtype t, const T *x, int64_t n) {
    uint16_t *to = c;
    int64_t j = 0;
    switch (t) {
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
    default: memcpy(c, x, (size_t)n * sizeof(T));
    }
}

/* `x` is used up. */
static void NAME(packed_finish_line)(T *x, void *c, int64_t n, const NAME(packed_line) * l) {
    enum { MOST = 64 };
    for (int64_t j = 0; j < n; j += MOST) {
        T old[MOST];
        int64_t some = sat_min(MOST, n - j);
        void *at = sat_at(l->dtype, c, j);
        NAME(packed_line) part = *l;
        if (l->biases) part.biases = l->biases + j;
        if (l->beta != 0) NAME(packed_read_line)(old, l->dtype, at, some);
        NAME(packed_scale)(x + j, l->beta != 0 ? old : NULL, some, &part);
        NAME(packed_activate)(x + j, some, l->activation);
        NAME(packed_write_line)(at, l->dtype, x + j, some);
    }
}

/* Lines of C are contiguous: rows of it, or columns where `turned`. */
static void NAME(packed_finish)(const sat_problem *p, T *tile, int64_t tile_row, int64_t rows, int64_t cols, void *c,
                                int64_t c_row, const T *bias, bool turned) {
    NAME(packed_line) l = {.alpha = (T)p->alpha, .beta = (T)p->beta, .activation = p->activation, .dtype = p->c_dtype};
    if (turned) l.biases = bias;
    for (int64_t i = 0; i < rows; i++) {
        if (bias && !turned) l.bias = bias[i];
        NAME(packed_finish_line)(tile + i * tile_row, sat_at(p->c_dtype, c, i * c_row), cols, &l);
    }
}

static void NAME(packed_finish_any)(const sat_problem *p, T *tile, int64_t tile_row, int64_t rows, int64_t cols,
                                    void *c, const T *bias) {
    NAME(packed_line) l = {.alpha = (T)p->alpha, .beta = (T)p->beta, .activation = p->activation, .dtype = p->c_dtype};
    for (int64_t i = 0; i < rows; i++) {
        if (bias) l.bias = bias[i];
        for (int64_t j = 0; j < cols; j++) NAME(packed_finish_line)
        (tile + i * tile_row + j, sat_at(p->c_dtype, c, i * p->c.row_stride + j * p->c.col_stride), 1, &l);
    }
}

/* The tile of C from row i, column j on. `turn` is room for another tile. */
static void NAME(packed_store)(const sat_problem *p, T *tile, int64_t tile_row, int64_t i, int64_t rows, int64_t j,
                               int64_t cols, void *c, const void *bias, T *turn) {
    T biases[MAX_H];
    void *at = sat_at(p->c_dtype, c, i * p->c.row_stride + j * p->c.col_stride);
    if (bias) NAME(packed_read_line)(biases, p->c_dtype, sat_at(p->c_dtype, bias, i), rows);
    const T *b = bias ? biases : NULL;
    if (p->c.col_stride == 1) {
        NAME(packed_finish)(p, tile, tile_row, rows, cols, at, p->c.row_stride, b, false);
    } else if (p->c.row_stride == 1) {
        NAME(packed_turn)(0, tile, tile_row, rows, cols, turn, rows);
        NAME(packed_finish)(p, turn, rows, cols, rows, at, p->c.col_stride, b, true);
    } else {
        NAME(packed_finish_any)(p, tile, tile_row, rows, cols, at, b);
    }
}
