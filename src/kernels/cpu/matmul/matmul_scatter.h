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

/* One column: a vector of sums takes a vector of each row of a block. */
static void FN(scatter_wide)(const FN(scatter_run) * r) {
    const REAL *a = r->a;
    const int64_t bc = r->bc;
    for (int64_t t = 0; t < r->count; t++, a += r->a_size) {
        const int64_t first = r->col[t] * bc, inside = sat_min(bc, r->m - first);
        REAL *sums = r->sums + first;
        int64_t c = 0;
        for (; c + LANES <= inside; c += LANES) {
            VEC sum = VLOAD(sums + c);
            for (int64_t i = 0; i < r->rows; i++) sum = VFMA(VBROADCAST(r->x + i), VLOAD(a + i * bc + c), sum);
            VSTORE(sums + c, sum);
        }
        if (c == inside) continue;
        const int tail = (int)(inside - c);
        VEC sum = VLOAD(sums + c);
        for (int64_t i = 0; i < r->rows; i++) sum = VFMA(VBROADCAST(r->x + i), VLOAD_SOME(a + i * bc + c, tail), sum);
        VSTORE_SOME(sums + c, sum, tail); /* beyond them 0 times Inf may have been added */
    }
}

/* np columns. A vector of sums holds `width` elements: a part of a row of sums, or a row, or several rows, whose
 * elements of A are spread over it. `some` vectors at a time share what is read of B. */
#define SCATTER_PANEL(np, width)                                                                                       \
    typedef REAL FN(scatter_vec_##np) __attribute__((vector_size((width) * sizeof(REAL)), aligned(8), may_alias));     \
    INLINE void FN(scatter_rows_##np)(const REAL *a, int64_t step, const REAL *x, int64_t rows, REAL *sums,            \
                                      int some) {                                                                      \
        FN(scatter_vec_##np) sum[4][np / (width)];                                                                     \
        for (int q = 0; q < some; q++)                                                                                 \
            for (int v = 0; v < np / (width); v++)                                                                     \
                sum[q][v] = *(const FN(scatter_vec_##np) *)(const void *)(sums + q * np + v * (width));                \
        for (int64_t i = 0; i < rows; i++)                                                                             \
            for (int q = 0; q < some; q++)                                                                             \
                for (int v = 0; v < np / (width); v++)                                                                 \
                    sum[q][v] +=                                                                                       \
                        a[i * step + q] * *(const FN(scatter_vec_##np) *)(const void *)(x + i * np + v * (width));     \
        for (int q = 0; q < some; q++)                                                                                 \
            for (int v = 0; v < np / (width); v++)                                                                     \
                *(FN(scatter_vec_##np) *)(void *)(sums + q * np + v * (width)) = sum[q][v];                            \
    }                                                                                                                  \
    INLINE void FN(scatter_spread_##np)(const REAL *a, int64_t step, const REAL *x, int64_t rows, REAL *sums,          \
                                        int some) {                                                                    \
        const int together = LANES / np;                                                                               \
        VEC sum[4];                                                                                                    \
        for (int q = 0; q < some; q++) sum[q] = VLOAD(sums + q * LANES);                                               \
        for (int64_t i = 0; i < rows; i++) {                                                                           \
            const VEC b = VREPEAT(x + i * np, np);                                                                     \
            for (int q = 0; q < some; q++) sum[q] = VFMA(VSPREAD(a + i * step + q * together, np), b, sum[q]);         \
        }                                                                                                              \
        for (int q = 0; q < some; q++) VSTORE(sums + q * LANES, sum[q]);                                               \
    }                                                                                                                  \
    static void FN(scatter_panel_##np)(const FN(scatter_run) * r) {                                                    \
        const REAL *a = r->a;                                                                                          \
        for (int64_t t = 0; t < r->count; t++, a += r->a_size) {                                                       \
            const int64_t first = r->col[t] * r->bc, inside = sat_min(r->bc, r->m - first);                            \
            REAL *sums = r->sums + first * np;                                                                         \
            int64_t c = 0;                                                                                             \
            if (np < LANES) {                                                                                          \
                const int together = LANES / (np < LANES ? np : 1);                                                    \
                for (; c + 4 * together <= inside; c += 4 * together)                                                  \
                    FN(scatter_spread_##np)(a + c, r->bc, r->x, r->rows, sums + c * np, 4);                            \
                for (; c + 2 * together <= inside; c += 2 * together)                                                  \
                    FN(scatter_spread_##np)(a + c, r->bc, r->x, r->rows, sums + c * np, 2);                            \
                for (; c + together <= inside; c += together)                                                          \
                    FN(scatter_spread_##np)(a + c, r->bc, r->x, r->rows, sums + c * np, 1);                            \
            }                                                                                                          \
            for (; c + 4 <= inside; c += 4) FN(scatter_rows_##np)(a + c, r->bc, r->x, r->rows, sums + c * np, 4);      \
            switch (inside - c) {                                                                                      \
            case 3: FN(scatter_rows_##np)(a + c, r->bc, r->x, r->rows, sums + c * np, 3); break;                       \
            case 2: FN(scatter_rows_##np)(a + c, r->bc, r->x, r->rows, sums + c * np, 2); break;                       \
            case 1: FN(scatter_rows_##np)(a + c, r->bc, r->x, r->rows, sums + c * np, 1); break;                       \
            }                                                                                                          \
        }                                                                                                              \
    }
SCATTER_PANEL(2, 2)
SCATTER_PANEL(4, 4)
SCATTER_PANEL(8, SCATTER_WIDTH(8))
SCATTER_PANEL(16, SCATTER_WIDTH(16))

static FN(scatter_kernel) FN(scatter_pick)(const sat_pattern_view *a, int64_t np) {
    const int64_t br = a->block_rows, bc = a->block_cols;
    if (np == 2) return FN(scatter_panel_2);
    if (np == 4) return FN(scatter_panel_4);
    if (np == 8) return FN(scatter_panel_8);
    if (np == 16) return FN(scatter_panel_16);
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
