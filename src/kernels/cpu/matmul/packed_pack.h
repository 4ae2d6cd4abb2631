/* The packed matmul's copies, once for each kind of element: B into panels, rows of a panel one after the other; block
 * values into strips, rows of a strip interleaved, in the order in which the kernels read them. 16-bit values become
 * f32 on the way. Included by matmul_packed.h, which says what must be defined. */

typedef T NAME(packed_four) __attribute__((vector_size(4 * sizeof(T))));
#define FOUR NAME(packed_four)

/* What the source holds: 0: T itself, else f16 or bf16 (only where T is float). */
INLINE int NAME(packed_source)(sat_dtype t) { return t == SAT_F16 || t == SAT_BF16 ? (int)t : 0; }

INLINE const void *NAME(packed_skip)(const int source, const void *p, int64_t elements) {
    return source ? (const void *)((const uint16_t *)p + elements) : (const void *)((const T *)p + elements);
}

INLINE T NAME(packed_get)(const int source, const void *p, int64_t i) {
    if (source == SAT_F16) return (T)_cvtsh_ss(((const uint16_t *)p)[i]);
    if (source == SAT_BF16) return (T)sat_from_bf16(((const uint16_t *)p)[i]);
    return ((const T *)p)[i];
}

INLINE V NAME(packed_get_vector)(const int source, const void *p) {
#if HALVES
    if (source == SAT_F16) return V_LOAD_F16(p);
    if (source == SAT_BF16) return V_LOAD_BF16(p);
#endif
    (void)source;
    return V_LOAD((const T *)p);
}

INLINE FOUR NAME(packed_get_four)(const int source, const void *p) {
    FOUR x;
#if HALVES
    if (source == SAT_F16) return (FOUR)_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)p));
    if (source == SAT_BF16)
        return (FOUR)_mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)p)), 16));
#endif
    (void)source;
    memcpy(&x, p, sizeof x);
    return x;
}

/* to[k*to_row + i] = from[i*from_row + k] for four i and four k. */
INLINE void NAME(packed_turn_four)(const int source, const void *from, int64_t from_row, T *to, int64_t to_row) {
    FOUR r[4], t[4];
    UNROLL for (int i = 0; i < 4; i++) r[i] =
        NAME(packed_get_four)(source, NAME(packed_skip)(source, from, i * from_row));
    t[0] = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5), t[1] = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
    t[2] = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5), t[3] = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
    r[0] = __builtin_shufflevector(t[0], t[2], 0, 1, 4, 5), r[1] = __builtin_shufflevector(t[0], t[2], 2, 3, 6, 7);
    r[2] = __builtin_shufflevector(t[1], t[3], 0, 1, 4, 5), r[3] = __builtin_shufflevector(t[1], t[3], 2, 3, 6, 7);
    UNROLL for (int i = 0; i < 4; i++) memcpy(to + i * to_row, &r[i], sizeof r[i]);
}

/* to[k*to_row + i] = from[i*from_row + k] for rows i and cols k: a matrix turned round. */
INLINE void NAME(packed_turn)(const int source, const void *from, int64_t from_row, int64_t rows, int64_t cols, T *to,
                              int64_t to_row) {
    int64_t i = 0;
    for (; i + 4 <= rows; i += 4) {
        const void *part = NAME(packed_skip)(source, from, i * from_row);
        int64_t k = 0;
        for (; k + 4 <= cols; k += 4)
            NAME(packed_turn_four)(source, NAME(packed_skip)(source, part, k), from_row, to + k * to_row + i, to_row);
        for (; k < cols; k++)
            for (int64_t e = 0; e < 4; e++) to[k * to_row + i + e] = NAME(packed_get)(source, part, e * from_row + k);
    }
    for (; i < rows; i++)
        for (int64_t k = 0; k < cols; k++) to[k * to_row + i] = NAME(packed_get)(source, from, i * from_row + k);
}

/* to[k*to_row + i] = from[k*from_row + i]: a matrix as it is. */
INLINE void NAME(packed_copy)(const int source, const void *from, int64_t from_row, int64_t rows, int64_t cols, T *to,
                              int64_t to_row) {
    for (int64_t k = 0; k < rows; k++) {
        const void *part = NAME(packed_skip)(source, from, k * from_row);
        int64_t i = 0;
        for (; i + 4 <= cols; i += 4) {
            FOUR x = NAME(packed_get_four)(source, NAME(packed_skip)(source, part, i));
            memcpy(to + k * to_row + i, &x, sizeof x);
        }
        for (; i < cols; i++) to[k * to_row + i] = NAME(packed_get)(source, part, i);
    }
}

/* Some rows of B in one panel. */
typedef struct NAME(packed_piece) {
    sat_dtype dtype;
    sat_layout layout;
    const void *b;       /* the first row's first column */
    int64_t rows, more;  /* rows; rows that follow in B and will be packed next */
    int64_t cols, width; /* columns in B, and in the panel: what B has not becomes zero */
    E *to;
} NAME(packed_piece);

#if PAIRS
#include "packed_pairs.h"
#else

INLINE void NAME(packed_rows_of_b)(const int source, const NAME(packed_piece) * x) {
    enum { SOON = 32 }; /* rows lie far apart, often a page: no hardware fetches them in time */
    int64_t bytes = x->cols * (source ? 2 : (int64_t)sizeof(T)), b_row = x->layout.row_stride;
    T *to = x->to;
    for (int64_t k = 0; k < x->rows; k++, to += x->width) {
        const void *from = NAME(packed_skip)(source, x->b, k * b_row);
        const char *later = (const char *)NAME(packed_skip)(source, x->b, (k + SOON) * b_row);
        int64_t j = 0;
        if (k + SOON < x->rows + x->more)
            for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(later + at, 0, 2);
        for (; j + VL <= x->cols; j += VL)
            V_STORE(to + j, NAME(packed_get_vector)(source, NAME(packed_skip)(source, from, j)));
        for (; j < x->cols; j++) to[j] = NAME(packed_get)(source, from, j);
        for (; j < x->width; j++) to[j] = 0;
    }
}

INLINE void NAME(packed_cols_of_b)(const int source, const NAME(packed_piece) * x) {
    T *to = x->to;
    NAME(packed_turn)(source, x->b, x->layout.col_stride, x->cols, x->rows, to, x->width);
    for (int64_t k = 0; k < x->rows; k++)
        for (int64_t j = x->cols; j < x->width; j++) to[k * x->width + j] = 0;
}

INLINE void NAME(packed_any_of_b)(const int source, const NAME(packed_piece) * x) {
    const sat_layout *l = &x->layout;
    T *to = x->to;
    for (int64_t k = 0; k < x->rows; k++, to += x->width)
        for (int64_t j = 0; j < x->width; j++)
            to[j] = j < x->cols ? NAME(packed_get)(source, x->b, k * l->row_stride + j * l->col_stride) : 0;
}

INLINE void NAME(packed_part_of_b)(const int source, const NAME(packed_piece) * x) {
    if (x->layout.col_stride == 1) NAME(packed_rows_of_b)(source, x);
    else if (x->layout.row_stride == 1) NAME(packed_cols_of_b)(source, x);
    else NAME(packed_any_of_b)(source, x);
}

static void NAME(packed_b)(const NAME(packed_piece) * x) {
    switch (NAME(packed_source)(x->dtype)) {
    case 0: NAME(packed_part_of_b)(0, x); break;
#if HALVES
    case SAT_F16: NAME(packed_part_of_b)(SAT_F16, x); break;
    case SAT_BF16: NAME(packed_part_of_b)(SAT_BF16, x); break;
#endif
    }
}

/* A strip of one block: `rows` rows and `steps` k of it. */
INLINE void NAME(packed_part_of_a)(const int source, const void *a, const sat_rows *r, int64_t rows, int64_t steps,
                                   T *to) {
    if (r->col_step == 1) NAME(packed_turn)(source, a, r->row_step, rows, steps, to, rows);
    else NAME(packed_copy)(source, a, r->col_step, steps, rows, to, rows);
}

static void NAME(packed_a)(sat_dtype t, const void *a, const sat_rows *r, int64_t rows, int64_t steps, T *to) {
    switch (NAME(packed_source)(t)) {
    case 0: NAME(packed_part_of_a)(0, a, r, rows, steps, to); break;
#if HALVES
    case SAT_F16: NAME(packed_part_of_a)(SAT_F16, a, r, rows, steps, to); break;
    case SAT_BF16: NAME(packed_part_of_a)(SAT_BF16, a, r, rows, steps, to); break;
#endif
    }
}
#endif
