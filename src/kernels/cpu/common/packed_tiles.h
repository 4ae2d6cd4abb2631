/* Tiles of sums in registers, and the packing of what they read: a template, included once for each element type after
 * FN(name) has been defined (common/vector.h). A family defines
 *   OUTER_TILES(X), DOT_TILES(X)        lists of X(rows, columns): none above 8, nor 32 in all
 *   FN(pack_vec), FN(pack_lanes)        a vector of packed elements, and how many: packing takes so many at a time
 *   FN(pack_load)(dtype, p, i)          elements i.. of p, widened
 *   FN(pack_store)(p, v)
 *   FN(pack_transpose)(v)               pack_lanes vectors in place
 * Two kinds of tile:
 *   outer  rows of X times panels [k][lanes] of Y, one step of k at a time
 *   dot    rows of X times columns of Y, both along k; partial sums over k are added up at the end */

/* ---- the tiles ---- */

/* Sums of rows x panels (or columns) over kc steps of k, to out, row by row; from step to step a panel goes on by
 * `step` elements. VPIN keeps operands in registers, where compilers would load them anew in every multiply-add. */
INLINE void FN(outer)(const int rows, const int panels, int64_t kc, const OPERAND *x, int64_t pitch,
                      const OPERAND *const *y, int64_t step, REAL *out) {
    VEC sum[8][8];
    const OPERAND *xr[8], *yp[8];
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
        OPERAND_VEC w[8];
#pragma GCC unroll 8
        for (int c = 0; c < panels; c++) {
            w[c] = VLOAD_OPERAND(yp[c] + k * step);
            VPIN(w[c]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            OPERAND_VEC u = VBROADCAST(xr[i] + k);
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

INLINE void FN(dot)(const int rows, const int columns, int64_t kc, const OPERAND *x, int64_t pitch,
                    const OPERAND *const *y, REAL *out) {
    VEC sum[32];
    const OPERAND *xr[8], *yc[8];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) xr[i] = x + i * pitch;
#pragma GCC unroll 8
    for (int c = 0; c < columns; c++) yc[c] = y[c];
#pragma GCC unroll 32
    for (int e = 0; e < rows * columns; e++) sum[e] = VZERO();
    int64_t k = 0;
    for (; k + OPERAND_LANES <= kc; k += OPERAND_LANES) {
        OPERAND_VEC w[8];
#pragma GCC unroll 8
        for (int c = 0; c < columns; c++) {
            w[c] = VLOAD_OPERAND(yc[c] + k);
            VPIN(w[c]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            OPERAND_VEC u = VLOAD_OPERAND(xr[i] + k);
            VPIN(u);
#pragma GCC unroll 8
            for (int c = 0; c < columns; c++) sum[i * columns + c] = VFMA(u, w[c], sum[i * columns + c]);
        }
    }
    if (k < kc) {
        int some = (int)(kc - k);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            OPERAND_VEC u = VLOAD_SOME(xr[i] + k, some);
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
    static void FN(outer_##rows##_##panels)(int64_t kc, const OPERAND *x, int64_t pitch, const OPERAND *const *y,      \
                                            REAL *out) {                                                               \
        FN(outer)(rows, panels, kc, x, pitch, y, LANES, out);                                                          \
    }
#define DOT_TILE(rows, columns)                                                                                        \
    static void FN(dot_##rows##_##columns)(int64_t kc, const OPERAND *x, int64_t pitch, const OPERAND *const *y,       \
                                           REAL *out) {                                                                \
        FN(dot)(rows, columns, kc, x, pitch, y, out);                                                                  \
    }
OUTER_TILES(OUTER_TILE)
DOT_TILES(DOT_TILE)

#define OUTER_ENTRY(rows, panels) [rows][panels] = FN(outer_##rows##_##panels),
#define DOT_ENTRY(rows, columns)  [rows][columns] = FN(dot_##rows##_##columns),
typedef void (*FN(tile))(int64_t kc, const OPERAND *x, int64_t x_pitch, const OPERAND *const *y, REAL *out);
static const FN(tile) FN(outer_tiles)[9][9] = {OUTER_TILES(OUTER_ENTRY)};
static const FN(tile) FN(dot_tiles)[9][9] = {DOT_TILES(DOT_ENTRY)};
#undef OUTER_TILE
#undef DOT_TILE
#undef OUTER_ENTRY
#undef DOT_ENTRY

/* ---- packing ---- */

#define PACK_VEC       FN(pack_vec)
#define PACK_LANES     FN(pack_lanes)
#define PACK_LOAD      FN(pack_load)
#define PACK_STORE     FN(pack_store)
#define PACK_TRANSPOSE FN(pack_transpose)

/* Rows are short and far apart, which no hardware prefetcher follows: prefetch a later one while copying row r. */
enum { FN(rows_ahead) = 2 };

static inline OPERAND FN(element)(sat_dtype t, const void *src, int64_t i) {
    return sat_dtype_size(t) == sizeof(OPERAND) ? ((const OPERAND *)src)[i] : (OPERAND)sat_load(t, src, i);
}

static inline void FN(copy_row)(OPERAND *dst, int64_t n, sat_dtype t, const void *src, int64_t at) {
    int64_t e = 0;
    for (; e + PACK_LANES <= n; e += PACK_LANES) PACK_STORE(dst + e, PACK_LOAD(t, src, at + e));
    for (; e < n; e++) dst[e] = FN(element)(t, src, at + e);
}

/* Reads along r in vectors, and transposes squares of them. */
static void FN(copy_transposed)(OPERAND *dst, int64_t pitch, int64_t rows, int64_t cols, sat_dtype t, const void *src,
                                int64_t cs) {
    int64_t c = 0;
    for (; c + PACK_LANES <= cols; c += PACK_LANES) {
        int64_t r = 0;
        for (; r + PACK_LANES <= rows; r += PACK_LANES) {
            PACK_VEC w[PACK_LANES];
            if (c + 2 * PACK_LANES < cols && r % (64 / (int64_t)sizeof(OPERAND)) == 0)
                for (int e = 0; e < PACK_LANES; e++) __builtin_prefetch(sat_at(t, src, r + (c + e + PACK_LANES) * cs));
            for (int e = 0; e < PACK_LANES; e++) w[e] = PACK_LOAD(t, src, r + (c + e) * cs);
            PACK_TRANSPOSE(w);
            for (int e = 0; e < PACK_LANES; e++) PACK_STORE(dst + (r + e) * pitch + c, w[e]);
        }
        for (; r < rows; r++)
            for (int e = 0; e < PACK_LANES; e++) dst[r * pitch + c + e] = FN(element)(t, src, r + (c + e) * cs);
    }
    for (; c < cols; c++)
        for (int64_t r = 0; r < rows; r++) dst[r * pitch + c] = FN(element)(t, src, r + c * cs);
}

static void FN(copy)(OPERAND *dst, int64_t pitch, int64_t rows, int64_t cols, sat_dtype t, const void *src, int64_t rs,
                     int64_t cs) {
    if (cs == 1) {
        int64_t line = 64 / (int64_t)sat_dtype_size(t);
        for (int64_t r = 0; r < rows; r++) {
            if (r + FN(rows_ahead) < rows)
                for (int64_t c = 0; c < cols; c += line)
                    __builtin_prefetch(sat_at(t, src, (r + FN(rows_ahead)) * rs + c));
            FN(copy_row)(dst + r * pitch, cols, t, src, r * rs);
        }
    } else if (rs == 1) {
        FN(copy_transposed)(dst, pitch, rows, cols, t, src, cs);
    } else {
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < cols; c++) dst[r * pitch + c] = FN(element)(t, src, r * rs + c * cs);
    }
}
