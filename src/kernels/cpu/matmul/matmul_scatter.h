/* The scattering matmul: A^T*B with 1 to 16 columns; a template, included once for each element type. It reads from the
 * micro-kernel out to the loop over a slice, the epilogue and the launch.
 *
 * The blocks of A are read once, in the order in which they are stored, whatever their shape. A block in row i and
 * column j multiplies rows i of B and adds to rows j of C, which stay in cache, since columns are few. The stored
 * blocks are cut into slices with sums of their own, which threads take and then add up. */

#include "kernels/cpu/common/finish_line.h"

/* ---- the micro-kernel: neighbouring blocks of one block row ---- */

typedef struct FN(scatter_run) {
    const REAL *a;      /* values of the first block */
    const int32_t *col; /* block columns */
    int64_t count;      /* blocks */
    const REAL *x;      /* rows of B */
    int64_t rows;       /* of them, and of the blocks: less than a block has in a ragged last block row */
    int64_t bc, a_size; /* columns and elements of a block */
    int64_t m;          /* rows of the sums */
    REAL *sums;
} FN(scatter_run);

typedef void (*FN(scatter_kernel))(const FN(scatter_run) * r);

/* One column, blocks narrower than a vector. bc, and rows where it is not 0, are constants. */
INLINE void FN(scatter_narrow)(const FN(scatter_run) * r, int64_t rows, int64_t bc) {
    const REAL *a = r->a;
    for (int64_t t = 0; t < r->count; t++, a += r->a_size) {
        const int64_t first = r->col[t] * bc, inside = sat_min(bc, r->m - first);
        REAL sum[4] = {0};
        for (int64_t i = 0; i < (rows ? rows : r->rows); i++)
#pragma GCC unroll 4
            for (int64_t c = 0; c < bc; c++) sum[c] += c < inside ? r->x[i] * a[i * bc + c] : 0;
#pragma GCC unroll 4
        for (int64_t c = 0; c < bc; c++)
            if (c < inside) r->sums[first + c] += sum[c];
    }
}

static void FN(scatter_1x1)(const FN(scatter_run) * r) { FN(scatter_narrow)(r, 1, 1); }
static void FN(scatter_x1)(const FN(scatter_run) * r) { FN(scatter_narrow)(r, 0, 1); }
static void FN(scatter_2x2)(const FN(scatter_run) * r) { FN(scatter_narrow)(r, r->rows == 2 ? 2 : 0, 2); }
static void FN(scatter_x2)(const FN(scatter_run) * r) { FN(scatter_narrow)(r, 0, 2); }
static void FN(scatter_x3)(const FN(scatter_run) * r) { FN(scatter_narrow)(r, 0, 3); }

/* Below, rows of a block go `side` at a time, with sums of their own: where there are few sums, every addition would
 * wait for the one before. Blocks of few rows do without. */
#define SCATTER_SIDE(sums) ((sums) <= 2 ? 4 : (sums) <= 4 ? 2 : 1)
#define SCATTER_FEW_ROWS   8

/* One column, high blocks of one or two columns: a vector has several rows. */
INLINE void FN(scatter_high)(const FN(scatter_run) * r, int bc) {
    const int together = LANES / bc;
    const REAL *a = r->a;
    for (int64_t t = 0; t < r->count; t++, a += r->a_size) {
        const int64_t first = r->col[t] * bc, inside = sat_min(bc, r->m - first);
        VEC sum[4] = {VZERO(), VZERO(), VZERO(), VZERO()};
        REAL lanes[LANES];
        int64_t i = 0;
        for (; i + 4 * together <= r->rows; i += 4 * together)
#pragma GCC unroll 4
            for (int u = 0; u < 4; u++)
                sum[u] = VFMA(VLOAD(a + (i + u * together) * bc), VSPREAD(r->x + i + u * together, bc), sum[u]);
        for (; i + together <= r->rows; i += together) sum[0] = VFMA(VLOAD(a + i * bc), VSPREAD(r->x + i, bc), sum[0]);
        VSTORE(lanes, VADD(VADD(sum[0], sum[1]), VADD(sum[2], sum[3])));
        for (; i < r->rows; i++)
            for (int c = 0; c < bc; c++) lanes[c] += r->x[i] * a[i * bc + c];
        for (int width = LANES / 2; width >= bc; width /= 2)
            for (int e = 0; e < width; e++) lanes[e] += lanes[e + width];
        for (int64_t c = 0; c < inside; c++) r->sums[first + c] += lanes[c];
    }
}

static void FN(scatter_high_x1)(const FN(scatter_run) * r) { FN(scatter_high)(r, 1); }
static void FN(scatter_high_x2)(const FN(scatter_run) * r) { FN(scatter_high)(r, 2); }

/* One column: a row of a block times an element of B into `some` vectors of sums. tail: elements of the only one; else
 * NULL. */
INLINE void FN(scatter_wide_row)(const REAL *a, const REAL *x, VEC *sum, int some, const int *tail) {
    const VEC b = VBROADCAST(x);
    for (int q = 0; q < some; q++) sum[q] = VFMA(b, tail ? VLOAD_SOME(a, *tail) : VLOAD(a + q * LANES), sum[q]);
}

INLINE void FN(scatter_wide_rows)(const FN(scatter_run) * r, const REAL *a, REAL *sums, int some, const int *tail,
                                  int side) {
    VEC sum[4][4];
    int64_t i = 0;
    for (int u = 0; u < side; u++)
        for (int q = 0; q < some; q++) sum[u][q] = u ? VZERO() : VLOAD(sums + q * LANES);
    for (; i + side <= r->rows; i += side)
        for (int u = 0; u < side; u++) FN(scatter_wide_row)(a + (i + u) * r->bc, r->x + i + u, sum[u], some, tail);
    for (; i < r->rows; i++) FN(scatter_wide_row)(a + i * r->bc, r->x + i, sum[0], some, tail);
    for (int q = 0; q < some; q++) {
        for (int u = 1; u < side; u++) sum[0][q] = VADD(sum[0][q], sum[u][q]);
        if (tail) VSTORE_SOME(sums, sum[0][q], *tail); /* beyond them 0 times Inf may have been added */
        else VSTORE(sums + q * LANES, sum[0][q]);
    }
}

INLINE void FN(scatter_wide_part)(const FN(scatter_run) * r, const REAL *a, REAL *sums, int some, const int *tail) {
    if (r->rows < SCATTER_FEW_ROWS) FN(scatter_wide_rows)(r, a, sums, some, tail, 1);
    else FN(scatter_wide_rows)(r, a, sums, some, tail, SCATTER_SIDE(some));
}

static void FN(scatter_wide)(const FN(scatter_run) * r) {
    const REAL *a = r->a;
    for (int64_t t = 0; t < r->count; t++, a += r->a_size) {
        const int64_t first = r->col[t] * r->bc, inside = sat_min(r->bc, r->m - first);
        REAL *sums = r->sums + first;
        int64_t c = 0;
        for (; c + 4 * LANES <= inside; c += 4 * LANES) FN(scatter_wide_part)(r, a + c, sums + c, 4, NULL);
        for (; c + 2 * LANES <= inside; c += 2 * LANES) FN(scatter_wide_part)(r, a + c, sums + c, 2, NULL);
        for (; c + LANES <= inside; c += LANES) FN(scatter_wide_part)(r, a + c, sums + c, 1, NULL);
        const int tail = (int)(inside - c);
        if (tail) FN(scatter_wide_part)(r, a + c, sums + c, 1, &tail);
    }
}

/* np columns. A vector of sums holds `width` elements: a part of a row of sums, or a row; or, `spread`, it is a whole
 * vector of several rows, over which their elements of A are spread. `some` of them, or of their rows, share what is
 * read of B. */
#define SCATTER_PANEL(np, width)                                                                                       \
    typedef REAL FN(scatter_vec_##np) __attribute__((vector_size((width) * sizeof(REAL)), aligned(8), may_alias));     \
    INLINE void FN(scatter_row_##np)(const REAL *a, const REAL *x, FN(scatter_vec_##np)(*sum)[np / (width)],           \
                                     int some) {                                                                       \
        for (int q = 0; q < some; q++)                                                                                 \
            for (int v = 0; v < np / (width); v++)                                                                     \
                sum[q][v] += a[q] * *(const FN(scatter_vec_##np) *)(const void *)(x + v * (width));                    \
    }                                                                                                                  \
    INLINE void FN(scatter_rows_##np)(const FN(scatter_run) * r, const REAL *a, REAL *sums, int some, int side) {      \
        FN(scatter_vec_##np) sum[4][4][np / (width)], *to = (void *)sums, zero = {0};                                  \
        int64_t i = 0;                                                                                                 \
        for (int u = 0; u < side; u++)                                                                                 \
            for (int e = 0; e < some * np / (width); e++)                                                              \
                sum[u][e / (np / (width))][e % (np / (width))] = u ? zero : to[e];                                     \
        for (; i + side <= r->rows; i += side)                                                                         \
            for (int u = 0; u < side; u++)                                                                             \
                FN(scatter_row_##np)(a + (i + u) * r->bc, r->x + (i + u) * np, sum[u], some);                          \
        for (; i < r->rows; i++) FN(scatter_row_##np)(a + i * r->bc, r->x + i * np, sum[0], some);                     \
        for (int e = 0; e < some * np / (width); e++) {                                                                \
            FN(scatter_vec_##np) all = sum[0][e / (np / (width))][e % (np / (width))];                                 \
            for (int u = 1; u < side; u++) all += sum[u][e / (np / (width))][e % (np / (width))];                      \
            to[e] = all;                                                                                               \
        }                                                                                                              \
    }                                                                                                                  \
    INLINE void FN(scatter_spread_row_##np)(const REAL *a, const REAL *x, VEC *sum, int some) {                        \
        const VEC b = VREPEAT(x, np);                                                                                  \
        for (int q = 0; q < some; q++) sum[q] = VFMA(VSPREAD(a + q * (LANES / np), np), b, sum[q]);                    \
    }                                                                                                                  \
    INLINE void FN(scatter_spread_##np)(const FN(scatter_run) * r, const REAL *a, REAL *sums, int some, int side) {    \
        VEC sum[4][4];                                                                                                 \
        int64_t i = 0;                                                                                                 \
        for (int u = 0; u < side; u++)                                                                                 \
            for (int q = 0; q < some; q++) sum[u][q] = u ? VZERO() : VLOAD(sums + q * LANES);                          \
        for (; i + side <= r->rows; i += side)                                                                         \
            for (int u = 0; u < side; u++)                                                                             \
                FN(scatter_spread_row_##np)(a + (i + u) * r->bc, r->x + (i + u) * np, sum[u], some);                   \
        for (; i < r->rows; i++) FN(scatter_spread_row_##np)(a + i * r->bc, r->x + i * np, sum[0], some);              \
        for (int q = 0; q < some; q++) {                                                                               \
            for (int u = 1; u < side; u++) sum[0][q] = VADD(sum[0][q], sum[u][q]);                                     \
            VSTORE(sums + q * LANES, sum[0][q]);                                                                       \
        }                                                                                                              \
    }                                                                                                                  \
    INLINE void FN(scatter_part_##np)(const FN(scatter_run) * r, const REAL *a, REAL *sums, bool spread, int some) {   \
        const bool few = r->rows < SCATTER_FEW_ROWS;                                                                   \
        if (spread && few) FN(scatter_spread_##np)(r, a, sums, some, 1);                                               \
        else if (spread) FN(scatter_spread_##np)(r, a, sums, some, some < 4 ? 4 : 1);                                  \
        else if (few) FN(scatter_rows_##np)(r, a, sums, some, 1);                                                      \
        else FN(scatter_rows_##np)(r, a, sums, some, SCATTER_SIDE(some * np / (width)));                               \
    }                                                                                                                  \
    INLINE void FN(scatter_block_##np)(const FN(scatter_run) * r, const REAL *a, REAL *sums, int64_t inside) {         \
        const int together = np < LANES ? LANES / np : INT32_MAX / 4;                                                  \
        int64_t c = 0;                                                                                                 \
        for (; np < LANES && c + 4 * together <= inside; c += 4 * together)                                            \
            FN(scatter_part_##np)(r, a + c, sums + c * np, true, 4);                                                   \
        for (; np < LANES && c + 2 * together <= inside; c += 2 * together)                                            \
            FN(scatter_part_##np)(r, a + c, sums + c * np, true, 2);                                                   \
        for (; np < LANES && c + together <= inside; c += together)                                                    \
            FN(scatter_part_##np)(r, a + c, sums + c * np, true, 1);                                                   \
        for (; c + 4 <= inside; c += 4) FN(scatter_part_##np)(r, a + c, sums + c * np, false, 4);                      \
        switch (inside - c) {                                                                                          \
        case 3: FN(scatter_part_##np)(r, a + c, sums + c * np, false, 3); break;                                       \
        case 2: FN(scatter_part_##np)(r, a + c, sums + c * np, false, 2); break;                                       \
        case 1: FN(scatter_part_##np)(r, a + c, sums + c * np, false, 1); break;                                       \
        }                                                                                                              \
    }                                                                                                                  \
    INLINE void FN(scatter_all_##np)(const FN(scatter_run) * r, bool constant) {                                       \
        const REAL *a = r->a;                                                                                          \
        for (int64_t t = 0; t < r->count; t++, a += r->a_size) {                                                       \
            const int64_t first = r->col[t] * r->bc, inside = sat_min(r->bc, r->m - first);                            \
            if (constant && inside == r->bc) FN(scatter_block_##np)(r, a, r->sums + first * np, r->bc);                \
            else FN(scatter_block_##np)(r, a, r->sums + first * np, inside);                                           \
        }                                                                                                              \
    }                                                                                                                  \
    static void FN(scatter_panel_##np)(const FN(scatter_run) * r) { FN(scatter_all_##np)(r, false); }                  \
    SCATTER_SQUARE(np, 1) SCATTER_SQUARE(np, 2) SCATTER_SQUARE(np, 3) SCATTER_SQUARE(np, 4)

/* The same for small squares, whose side is a constant. */
#define SCATTER_SQUARE(np, side)                                                                                       \
    static void FN(scatter_panel_##np##_##side)(const FN(scatter_run) * r) {                                           \
        FN(scatter_run) whole = *r;                                                                                    \
        if (r->rows < side) {                                                                                          \
            FN(scatter_panel_##np)(r);                                                                                 \
            return;                                                                                                    \
        }                                                                                                              \
        whole.rows = whole.bc = side, whole.a_size = (side) * (side);                                                  \
        FN(scatter_all_##np)(&whole, true);                                                                            \
    }
SCATTER_PANEL(2, 2)
SCATTER_PANEL(4, 4)
SCATTER_PANEL(8, SCATTER_WIDTH(8))
SCATTER_PANEL(16, SCATTER_WIDTH(16))

static FN(scatter_kernel) FN(scatter_pick)(const sat_pattern_view *a, int64_t np) {
    const int64_t br = a->block_rows, bc = a->block_cols;
#define SCATTER_SIDES(np)                                                                                              \
    {                                                                                                                  \
        FN(scatter_panel_##np), FN(scatter_panel_##np##_1), FN(scatter_panel_##np##_2), FN(scatter_panel_##np##_3),    \
            FN(scatter_panel_##np##_4)                                                                                 \
    }
    static const FN(scatter_kernel)
        panels[][5] = {SCATTER_SIDES(2), SCATTER_SIDES(4), SCATTER_SIDES(8), SCATTER_SIDES(16)};
#undef SCATTER_SIDES
    if (np > 1) return panels[np == 2 ? 0 : np == 4 ? 1 : np == 8 ? 2 : 3][br == bc && bc <= 4 ? bc : 0];
    if (bc <= 2 && br * bc >= 2 * LANES) return bc == 1 ? FN(scatter_high_x1) : FN(scatter_high_x2);
    if (bc == 1) return br == 1 ? FN(scatter_1x1) : FN(scatter_x1);
    if (bc == 2) return br == 2 ? FN(scatter_2x2) : FN(scatter_x2);
    return bc == 3 ? FN(scatter_x3) : FN(scatter_wide);
}

/* ---- the loop over a slice ---- */

typedef struct FN(scatter_job) {
    const sat_launch *l;
    const sat_problem *p;
    const sat_pattern_view *a;
    scatter_shape s;
    FN(scatter_kernel) kernel;
    REAL *sums; /* of the first slice */
} FN(scatter_job);

/* Rows of B from k on, with zeros in columns that it does not have. */
static void FN(scatter_fill_panel)(const FN(scatter_job) * j, int64_t k, int64_t rows, REAL *x) {
    const sat_problem *p = j->p;
    const int64_t down = p->b.row_stride, along = p->b.col_stride, np = j->s.np;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t n = 0; n < np; n++)
            x[i * np + n] = n < p->n ? FN(widen)(p->b_dtype, j->l->operands[1], (k + i) * down + n * along) : 0;
}

/* Adds blocks [begin, end) of block row `row` of A to a slice's sums. */
static void FN(scatter_blocks)(const FN(scatter_job) * j, int64_t row, int64_t begin, int64_t end, REAL *x,
                               REAL *widened, REAL *sums) {
    const sat_pattern_view *a = j->a;
    const int64_t size = a->block_rows * a->block_cols;
    const int64_t rows = sat_min(a->block_rows, a->rows - row * a->block_rows);
    FN(scatter_run) r = {.x = x, .rows = rows, .bc = a->block_cols, .a_size = size, .m = j->p->m, .sums = sums};
    if (begin >= end) return;
    FN(scatter_fill_panel)(j, row * a->block_rows, rows, x);
    const int64_t most = j->s.widened ? sat_max(1, j->s.widened / size) : end;
    for (int64_t t = begin; t < end; t += most) {
        r.col = a->col_idx + t, r.count = sat_min(most, end - t), r.a = widened;
        const void *values = sat_at(j->p->a_dtype, j->l->operands[0], t * size);
        if (j->s.widened) FN(widen_all)(j->p->a_dtype, values, widened, r.count * size);
        else r.a = values;
        j->kernel(&r);
    }
}

/* ---- the epilogue ---- */

/* Rows [from, to) of C: slices are added up in order. */
static void FN(scatter_store)(const FN(scatter_job) * j, int64_t from, int64_t to) {
    const int64_t np = j->s.np;
    for (int64_t s = 1; s < j->s.slices; s++) {
        const REAL *more = j->sums + s * j->s.sums;
        for (int64_t e = from * np; e < to * np; e++) j->sums[e] += more[e];
    }
    FN(finish_rows)(j->l, j->sums + from * np, np, from, to - from);
}

/* ---- launch ---- */

static sat_status FN(scatter_launch)(const sat_launch *l) {
    const sat_pattern_view *a = l->pattern;
    FN(scatter_job) j = {.l = l, .p = l->problem, .a = a, .s = scatter_shape_of(l->problem, a), .sums = l->workspace};
    j.kernel = FN(scatter_pick)(a, j.s.np);
    REAL *own = j.sums + j.s.slices * j.s.sums;
#pragma omp parallel num_threads(l->threads) if (l->threads > 1)
    {
        const int thread = omp_get_thread_num(), threads = omp_get_num_threads();
        REAL *x = own + thread * (j.s.panel + j.s.widened);
#pragma omp for schedule(dynamic)
        for (int64_t s = 0; s < j.s.slices; s++) {
            REAL *sums = j.sums + s * j.s.sums;
            memset(sums, 0, (size_t)j.s.sums * sizeof *sums);
            const scatter_slice slice = scatter_slice_of(&j.s, a, s);
            for (int64_t row = slice.row; row < a->grid_rows && a->row_ptr[row] < slice.end; row++) FN(scatter_blocks)
            (&j, row, sat_max(slice.begin, a->row_ptr[row]), sat_min(slice.end, a->row_end[row]), x, x + j.s.panel,
             sums);
        }
        FN(scatter_store)(&j, l->problem->m * thread / threads, l->problem->m * (thread + 1) / threads);
    }
    return SAT_OK;
}

#undef FN
#undef SCATTER_WIDTH
#undef SCATTER_PANEL
#undef SCATTER_SQUARE
#undef SCATTER_SIDE
#undef SCATTER_FEW_ROWS
