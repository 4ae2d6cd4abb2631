/* The sampled product's tiles and copies in vectors; included once a type, before sampled_packed_body.h, after defining
 *   T, FN(name), LANES, V               the type of the sums, its suffix, sums in a vector, and that vector
 *   E, W, STEP                          the same of elements, where it differs: type, vector, elements in a vector
 *   VLOAD(p), VLOAD_SOME(p, n)          unaligned; the first n elements, the others zero
 *   VSTORE(p, v), VBROADCAST(p), VZERO(), VFMA(a, b, c)
 *   VPIN(v)                             keeps v in a register, or compilers load it anew in every multiply-add
 *   VSUM4(p, a, b, c, d)                stores the sums of four vectors' lanes
 *   SQUARE, WV                          how many elements copies take at a time, and a vector of them
 *   WIDEN(dtype, p, i), WSTORE(p, v)    elements i.. of p as such a vector
 *   TRANSPOSE(w)                        SQUARE of them in place
 * and OUTER_TILES(X), DOT_TILES(X), lists of X(rows, columns): none above 8, nor 32 in all. */

#ifndef E
#define E    T
#define W    V
#define STEP LANES
#endif

/* ---- tiles ---- */

static inline __attribute__((always_inline)) void FN(outer)(const int rows, const int panels, int64_t kc, const E *x,
                                                            int64_t pitch, const E *const *y, T *out) {
    V sum[8][8];
    const E *xr[8], *yp[8];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
        xr[i] = x + i * pitch;
#pragma GCC unroll 8
        for (int c = 0; c < panels; c++) sum[i][c] = VZERO();
    }
#pragma GCC unroll 8
    for (int c = 0; c < panels; c++) yp[c] = y[c];
#pragma GCC unroll 2
    for (int64_t k = 0; k < kc; k++) {
        W w[8];
#pragma GCC unroll 8
        for (int c = 0; c < panels; c++) {
            w[c] = VLOAD(yp[c] + k * LANES);
            VPIN(w[c]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            W u = VBROADCAST(xr[i] + k);
            VPIN(u);
#pragma GCC unroll 8
            for (int c = 0; c < panels; c++) sum[i][c] = VFMA(u, w[c], sum[i][c]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int c = 0; c < panels; c++) VSTORE(out + (i * panels + c) * LANES, sum[i][c]);
}

static inline __attribute__((always_inline)) void FN(dot)(const int rows, const int columns, int64_t kc, const E *x,
                                                          int64_t pitch, const E *const *y, T *out) {
    V sum[32];
    const E *xr[8], *yc[8];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) xr[i] = x + i * pitch;
#pragma GCC unroll 8
    for (int c = 0; c < columns; c++) yc[c] = y[c];
#pragma GCC unroll 32
    for (int e = 0; e < rows * columns; e++) sum[e] = VZERO();
    int64_t k = 0;
    for (; k + STEP <= kc; k += STEP) {
        W w[8];
#pragma GCC unroll 8
        for (int c = 0; c < columns; c++) {
            w[c] = VLOAD(yc[c] + k);
            VPIN(w[c]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            W u = VLOAD(xr[i] + k);
            VPIN(u);
#pragma GCC unroll 8
            for (int c = 0; c < columns; c++) sum[i * columns + c] = VFMA(u, w[c], sum[i * columns + c]);
        }
    }
    if (k < kc) {
        int some = (int)(kc - k);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            W u = VLOAD_SOME(xr[i] + k, some);
#pragma GCC unroll 8
            for (int c = 0; c < columns; c++)
                sum[i * columns + c] = VFMA(u, VLOAD_SOME(yc[c] + k, some), sum[i * columns + c]);
        }
    }
    const int all = rows * columns;
#pragma GCC unroll 8
    for (int e = 0; e < all; e += 4)
        VSUM4(out + e, sum[e], sum[e + 1 < all ? e + 1 : e], sum[e + 2 < all ? e + 2 : e],
              sum[e + 3 < all ? e + 3 : e]);
}

#define OUTER_TILE(rows, panels)                                                                                       \
    static void FN(outer_##rows##_##panels)(int64_t kc, const E *x, int64_t pitch, const E *const *y, T *out) {        \
        FN(outer)(rows, panels, kc, x, pitch, y, out);                                                                 \
    }
#define DOT_TILE(rows, columns)                                                                                        \
    static void FN(dot_##rows##_##columns)(int64_t kc, const E *x, int64_t pitch, const E *const *y, T *out) {         \
        FN(dot)(rows, columns, kc, x, pitch, y, out);                                                                  \
    }
OUTER_TILES(OUTER_TILE)
DOT_TILES(DOT_TILE)

#define OUTER_ENTRY(rows, panels) [rows][panels] = FN(outer_##rows##_##panels),
#define DOT_ENTRY(rows, columns)  [rows][columns] = FN(dot_##rows##_##columns),
typedef void (*FN(tile))(int64_t kc, const E *x, int64_t x_pitch, const E *const *y, T *out);
static const FN(tile) FN(outer_tiles)[9][9] = {OUTER_TILES(OUTER_ENTRY)};
static const FN(tile) FN(dot_tiles)[9][9] = {DOT_TILES(DOT_ENTRY)};
#undef OUTER_TILE
#undef DOT_TILE
#undef OUTER_ENTRY
#undef DOT_ENTRY

/* ---- copies ---- */

/* Rows are short and far apart, which no hardware prefetcher follows: ask for a later one while copying row r. */
enum { FN(ahead) = 2 };

static inline E FN(element)(sat_dtype t, const void *src, int64_t i) {
    return sat_dtype_size(t) == sizeof(E) ? ((const E *)src)[i] : (E)sat_load(t, src, i);
}

static inline void FN(copy_row)(E *dst, int64_t n, sat_dtype t, const void *src, int64_t at) {
    int64_t e = 0;
    for (; e + SQUARE <= n; e += SQUARE) WSTORE(dst + e, WIDEN(t, src, at + e));
    for (; e < n; e++) dst[e] = FN(element)(t, src, at + e);
}

/* Reads along r in vectors, and turns squares of them. */
static void FN(copy_turned)(E *dst, int64_t pitch, int64_t rows, int64_t cols, sat_dtype t, const void *src,
                            int64_t cs) {
    int64_t c = 0;
    for (; c + SQUARE <= cols; c += SQUARE) {
        int64_t r = 0;
        for (; r + SQUARE <= rows; r += SQUARE) {
            WV w[SQUARE];
            if (c + 2 * SQUARE < cols && r % (64 / (int64_t)sizeof(E)) == 0)
                for (int e = 0; e < SQUARE; e++) __builtin_prefetch(sat_at(t, src, r + (c + e + SQUARE) * cs));
            for (int e = 0; e < SQUARE; e++) w[e] = WIDEN(t, src, r + (c + e) * cs);
            TRANSPOSE(w);
            for (int e = 0; e < SQUARE; e++) WSTORE(dst + (r + e) * pitch + c, w[e]);
        }
        for (; r < rows; r++)
            for (int e = 0; e < SQUARE; e++) dst[r * pitch + c + e] = FN(element)(t, src, r + (c + e) * cs);
    }
    for (; c < cols; c++)
        for (int64_t r = 0; r < rows; r++) dst[r * pitch + c] = FN(element)(t, src, r + c * cs);
}

static void FN(copy)(E *dst, int64_t pitch, int64_t rows, int64_t cols, sat_dtype t, const void *src, int64_t rs,
                     int64_t cs) {
    if (cs == 1) {
        int64_t line = 64 / (int64_t)sat_dtype_size(t);
        for (int64_t r = 0; r < rows; r++) {
            if (r + FN(ahead) < rows)
                for (int64_t c = 0; c < cols; c += line) __builtin_prefetch(sat_at(t, src, (r + FN(ahead)) * rs + c));
            FN(copy_row)(dst + r * pitch, cols, t, src, r * rs);
        }
    } else if (rs == 1) {
        FN(copy_turned)(dst, pitch, rows, cols, t, src, cs);
    } else {
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < cols; c++) dst[r * pitch + c] = FN(element)(t, src, r * rs + c * cs);
    }
}
