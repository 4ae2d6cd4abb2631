/* The packed matmul's packing; a part of matmul_packed.h, for one element type. B goes into panels, rows of a panel one
 * after the other; block values go into strips, rows of a strip interleaved: the order in which the micro-kernel reads
 * them. 16-bit values are widened to f32 on the way; for instructions that multiply pairs of bf16 they are paired. */

typedef REAL FN(packed_vec4) __attribute__((vector_size(4 * sizeof(REAL))));
#define VEC4 FN(packed_vec4)

/* The dtype of a source: 0 for REAL itself, else f16 or bf16 (only where REAL is float). */
INLINE int FN(packed_source)(sat_dtype t) { return t == SAT_F16 || t == SAT_BF16 ? (int)t : 0; }

INLINE const void *FN(packed_offset)(const int source, const void *p, int64_t elements) {
    return source ? (const void *)((const uint16_t *)p + elements) : (const void *)((const REAL *)p + elements);
}

INLINE REAL FN(packed_load)(const int source, const void *p, int64_t i) {
    if (source == SAT_F16) return (REAL)_cvtsh_ss(((const uint16_t *)p)[i]);
    if (source == SAT_BF16) return (REAL)sat_from_bf16(((const uint16_t *)p)[i]);
    return ((const REAL *)p)[i];
}

INLINE VEC FN(packed_load_vector)(const int source, const void *p) {
#if WIDENS
    if (source == SAT_F16) return vec_widen_f16(vec_load_half(p));
    if (source == SAT_BF16) return vec_widen_bf16(vec_load_half(p));
#endif
    (void)source;
    return VLOAD((const REAL *)p);
}

INLINE VEC4 FN(packed_load4)(const int source, const void *p) {
    VEC4 x;
#if WIDENS
    if (source == SAT_F16) return (VEC4)_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)p));
    if (source == SAT_BF16)
        return (VEC4)_mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)p)), 16));
#endif
    (void)source;
    memcpy(&x, p, sizeof x);
    return x;
}

/* to[k*to_row + i] = from[i*from_row + k] for four i and four k. */
INLINE void FN(packed_transpose4)(const int source, const void *from, int64_t from_row, REAL *to, int64_t to_row) {
    VEC4 r[4], t[4];
    UNROLL for (int i = 0; i < 4; i++) r[i] = FN(packed_load4)(source, FN(packed_offset)(source, from, i * from_row));
    t[0] = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5), t[1] = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
    t[2] = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5), t[3] = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
    r[0] = __builtin_shufflevector(t[0], t[2], 0, 1, 4, 5), r[1] = __builtin_shufflevector(t[0], t[2], 2, 3, 6, 7);
    r[2] = __builtin_shufflevector(t[1], t[3], 0, 1, 4, 5), r[3] = __builtin_shufflevector(t[1], t[3], 2, 3, 6, 7);
    UNROLL for (int i = 0; i < 4; i++) memcpy(to + i * to_row, &r[i], sizeof r[i]);
}

/* to[k*to_row + i] = from[i*from_row + k] for rows i and cols k, transposed. */
INLINE void FN(packed_transpose)(const int source, const void *from, int64_t from_row, int64_t rows, int64_t cols,
                                 REAL *to, int64_t to_row) {
    int64_t i = 0;
    for (; i + 4 <= rows; i += 4) {
        const void *part = FN(packed_offset)(source, from, i * from_row);
        int64_t k = 0;
        for (; k + 4 <= cols; k += 4)
            FN(packed_transpose4)(source, FN(packed_offset)(source, part, k), from_row, to + k * to_row + i, to_row);
        for (; k < cols; k++)
            for (int64_t e = 0; e < 4; e++) to[k * to_row + i + e] = FN(packed_load)(source, part, e * from_row + k);
    }
    for (; i < rows; i++)
        for (int64_t k = 0; k < cols; k++) to[k * to_row + i] = FN(packed_load)(source, from, i * from_row + k);
}

/* to[k*to_row + i] = from[k*from_row + i], not transposed. */
INLINE void FN(packed_copy)(const int source, const void *from, int64_t from_row, int64_t rows, int64_t cols, REAL *to,
                            int64_t to_row) {
    for (int64_t k = 0; k < rows; k++) {
        const void *part = FN(packed_offset)(source, from, k * from_row);
        int64_t i = 0;
        for (; i + 4 <= cols; i += 4) {
            VEC4 x = FN(packed_load4)(source, FN(packed_offset)(source, part, i));
            memcpy(to + k * to_row + i, &x, sizeof x);
        }
        for (; i < cols; i++) to[k * to_row + i] = FN(packed_load)(source, part, i);
    }
}

/* A slice of B: some rows of one panel. */
typedef struct FN(packed_slice) {
    sat_dtype dtype;
    sat_layout layout;
    const void *b;       /* the first row's first column */
    int64_t rows, more;  /* rows; rows that follow in B and are packed next */
    int64_t cols, width; /* columns in B, and in the panel, which is padded with zeros */
    OPERAND *to;
} FN(packed_slice);

#if PACKED_K_STEP == 1

INLINE void FN(packed_pack_b_rows)(const int source, const FN(packed_slice) * x) {
    enum { ROWS_AHEAD = 32 }; /* rows are far apart, often a page: hardware does not prefetch them in time */
    int64_t bytes = x->cols * (source ? 2 : (int64_t)sizeof(REAL)), b_row = x->layout.row_stride;
    REAL *to = x->to;
    for (int64_t k = 0; k < x->rows; k++, to += x->width) {
        const void *from = FN(packed_offset)(source, x->b, k * b_row);
        const char *next = (const char *)FN(packed_offset)(source, x->b, (k + ROWS_AHEAD) * b_row);
        int64_t j = 0;
        if (k + ROWS_AHEAD < x->rows + x->more)
            for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(next + at, 0, 2);
        for (; j + LANES <= x->cols; j += LANES)
            VSTORE(to + j, FN(packed_load_vector)(source, FN(packed_offset)(source, from, j)));
        for (; j < x->cols; j++) to[j] = FN(packed_load)(source, from, j);
        for (; j < x->width; j++) to[j] = 0;
    }
}

INLINE void FN(packed_pack_b_columns)(const int source, const FN(packed_slice) * x) {
    REAL *to = x->to;
    FN(packed_transpose)(source, x->b, x->layout.col_stride, x->cols, x->rows, to, x->width);
    for (int64_t k = 0; k < x->rows; k++)
        for (int64_t j = x->cols; j < x->width; j++) to[k * x->width + j] = 0;
}

INLINE void FN(packed_pack_b_strided)(const int source, const FN(packed_slice) * x) {
    const sat_layout *l = &x->layout;
    REAL *to = x->to;
    for (int64_t k = 0; k < x->rows; k++, to += x->width)
        for (int64_t j = 0; j < x->width; j++)
            to[j] = j < x->cols ? FN(packed_load)(source, x->b, k * l->row_stride + j * l->col_stride) : 0;
}

INLINE void FN(packed_pack_b_from)(const int source, const FN(packed_slice) * x) {
    if (x->layout.col_stride == 1) FN(packed_pack_b_rows)(source, x);
    else if (x->layout.row_stride == 1) FN(packed_pack_b_columns)(source, x);
    else FN(packed_pack_b_strided)(source, x);
}

static void FN(packed_pack_b)(const FN(packed_slice) * x) {
    switch (FN(packed_source)(x->dtype)) {
    case 0: FN(packed_pack_b_from)(0, x); break;
#if WIDENS
    case SAT_F16: FN(packed_pack_b_from)(SAT_F16, x); break;
    case SAT_BF16: FN(packed_pack_b_from)(SAT_BF16, x); break;
#endif
    }
}

/* A strip of one block: `rows` rows of it and `steps` k. */
INLINE void FN(packed_pack_a_from)(const int source, const void *a, const sat_rows *r, int64_t rows, int64_t steps,
                                   REAL *to) {
    if (r->col_step == 1) FN(packed_transpose)(source, a, r->row_step, rows, steps, to, rows);
    else FN(packed_copy)(source, a, r->col_step, steps, rows, to, rows);
}

static void FN(packed_pack_a)(sat_dtype t, const void *a, const sat_rows *r, int64_t rows, int64_t steps, REAL *to) {
    switch (FN(packed_source)(t)) {
    case 0: FN(packed_pack_a_from)(0, a, r, rows, steps, to); break;
#if WIDENS
    case SAT_F16: FN(packed_pack_a_from)(SAT_F16, a, r, rows, steps, to); break;
    case SAT_BF16: FN(packed_pack_a_from)(SAT_BF16, a, r, rows, steps, to); break;
#endif
    }
}

#else /* pairs */

/* Two bf16 of neighbouring k share a 32-bit element, the earlier one in its lower half. Where k is odd the last one's
 * partner is zero, in A and in B alike. */

typedef uint32_t packed_pairs4 __attribute__((vector_size(16)));

/* to[p*to_row + i] is the pair from[i*from_row + 2p] and its neighbour, for rows i and `ks` k. */
static void packed_transpose_pairs(const uint16_t *from, int64_t from_row, int64_t rows, int64_t ks, uint32_t *to,
                                   int64_t to_row) {
    int64_t i = 0, p;
    for (; i + 4 <= rows; i += 4) {
        const uint16_t *part = from + i * from_row;
        for (p = 0; 2 * p + 8 <= ks; p += 4) {
            packed_pairs4 r[4], t[4];
            UNROLL for (int e = 0; e < 4; e++) memcpy(&r[e], part + e * from_row + 2 * p, sizeof r[e]);
            t[0] = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5),
            t[1] = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
            t[2] = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5),
            t[3] = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
            r[0] = __builtin_shufflevector(t[0], t[2], 0, 1, 4, 5),
            r[1] = __builtin_shufflevector(t[0], t[2], 2, 3, 6, 7);
            r[2] = __builtin_shufflevector(t[1], t[3], 0, 1, 4, 5),
            r[3] = __builtin_shufflevector(t[1], t[3], 2, 3, 6, 7);
            UNROLL for (int e = 0; e < 4; e++) memcpy(to + (p + e) * to_row + i, &r[e], sizeof r[e]);
        }
        for (; 2 * p < ks; p++)
            for (int64_t e = 0; e < 4; e++) {
                const uint16_t *x = part + e * from_row + 2 * p;
                to[p * to_row + i + e] = x[0] | (2 * p + 1 < ks ? (uint32_t)x[1] << 16 : 0);
            }
    }
    for (; i < rows; i++)
        for (p = 0; 2 * p < ks; p++) {
            const uint16_t *x = from + i * from_row + 2 * p;
            to[p * to_row + i] = x[0] | (2 * p + 1 < ks ? (uint32_t)x[1] << 16 : 0);
        }
}

/* One row of pairs from two rows; `odd` is NULL where there is no second one. */
INLINE void packed_interleave(const uint16_t *even, const uint16_t *odd, int64_t cols, uint32_t *to) {
    int64_t j = 0;
    for (; j + 16 <= cols; j += 16) {
        __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(even + j)));
        if (odd) {
            __m512i y = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(odd + j)));
            x = _mm512_or_si512(x, _mm512_slli_epi32(y, 16));
        }
        _mm512_storeu_si512(to + j, x);
    }
    for (; j < cols; j++) to[j] = even[j] | (odd ? (uint32_t)odd[j] << 16 : 0);
}

static void FN(packed_pack_b)(const FN(packed_slice) * x) {
    enum { ROWS_AHEAD = 32 };
    int64_t row = x->layout.row_stride, col = x->layout.col_stride;
    const uint16_t *b = x->b;
    if (row == 1 && col != 1) packed_transpose_pairs(b, col, x->cols, x->rows, x->to, x->width);
    for (int64_t k = 0; k < x->rows; k += 2) {
        uint32_t *to = x->to + k / 2 * x->width;
        const uint16_t *even = b + k * row, *odd = k + 1 < x->rows ? even + row : NULL;
        if (col == 1) {
            for (int64_t e = k + ROWS_AHEAD; e < k + ROWS_AHEAD + 2 && e < x->rows + x->more; e++)
                for (int64_t j = 0; j < x->cols; j += 32) __builtin_prefetch(b + e * row + j, 0, 2);
            packed_interleave(even, odd, x->cols, to);
        } else if (row != 1) {
            for (int64_t j = 0; j < x->cols; j++) to[j] = even[j * col] | (odd ? (uint32_t)odd[j * col] << 16 : 0);
        }
        for (int64_t j = x->cols; j < x->width; j++) to[j] = 0;
    }
}

static void FN(packed_pack_a)(sat_dtype t, const void *a, const sat_rows *r, int64_t rows, int64_t ks, OPERAND *to) {
    const uint16_t *from = a;
    (void)t;
    if (r->col_step == 1) packed_transpose_pairs(from, r->row_step, rows, ks, to, rows);
    else
        for (int64_t k = 0; k < ks; k += 2) {
            const uint16_t *even = from + k * r->col_step;
            packed_interleave(even, k + 1 < ks ? even + r->col_step : NULL, rows, to + k / 2 * rows);
        }
}

#endif
