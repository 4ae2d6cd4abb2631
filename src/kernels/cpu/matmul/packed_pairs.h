/* The packed matmul's copies for instructions that multiply pairs: two bf16 of neighbouring k share a 32-bit element,
 * the earlier one in its lower half. Where k is odd the last one's partner is zero, in A and in B alike.
 * Included by packed_pack.h in place of its own. */

typedef uint32_t packed_four_pairs __attribute__((vector_size(16)));

/* to[p*to_row + i] = from[i*from_row + 2p], and its neighbour, for rows i and `ks` k. */
static void packed_turn_pairs(const uint16_t *from, int64_t from_row, int64_t rows, int64_t ks, uint32_t *to,
                              int64_t to_row) {
    int64_t i = 0, p;
    for (; i + 4 <= rows; i += 4) {
        const uint16_t *part = from + i * from_row;
        for (p = 0; 2 * p + 8 <= ks; p += 4) {
            packed_four_pairs r[4], t[4];
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
INLINE void packed_zip(const uint16_t *even, const uint16_t *odd, int64_t cols, uint32_t *to) {
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

static void NAME(packed_b)(const NAME(packed_piece) * x) {
    enum { SOON = 32 };
    int64_t row = x->layout.row_stride, col = x->layout.col_stride;
    const uint16_t *b = x->b;
    if (row == 1 && col != 1) packed_turn_pairs(b, col, x->cols, x->rows, x->to, x->width);
    for (int64_t k = 0; k < x->rows; k += 2) {
        uint32_t *to = x->to + k / 2 * x->width;
        const uint16_t *even = b + k * row, *odd = k + 1 < x->rows ? even + row : NULL;
        if (col == 1) {
            for (int64_t e = k + SOON; e < k + SOON + 2 && e < x->rows + x->more; e++)
                for (int64_t j = 0; j < x->cols; j += 32) __builtin_prefetch(b + e * row + j, 0, 2);
            packed_zip(even, odd, x->cols, to);
        } else if (row != 1) {
            for (int64_t j = 0; j < x->cols; j++) to[j] = even[j * col] | (odd ? (uint32_t)odd[j * col] << 16 : 0);
        }
        for (int64_t j = x->cols; j < x->width; j++) to[j] = 0;
    }
}

static void NAME(packed_a)(sat_dtype t, const void *a, const sat_rows *r, int64_t rows, int64_t ks, E *to) {
    const uint16_t *from = a;
    (void)t;
    if (r->col_step == 1) packed_turn_pairs(from, r->row_step, rows, ks, to, rows);
    else
        for (int64_t k = 0; k < ks; k += 2) {
            const uint16_t *even = from + k * r->col_step;
            packed_zip(even, k + 1 < ks ? even + r->col_step : NULL, rows, to + k / 2 * rows);
        }
}
