/* The matmul with the dense matrix on the left, X*A. A template, included once for each element type.
 *
 * In the library's terms C = A^T*B, where B = X^T and C are column-major. A row of a stored block is then part of a row
 * of C^T: vectors are parts of rows of blocks, elements of B are broadcast, and all three operands stay where they are.
 * A tile is some columns of C times some vectors of a block row of A^T; its sums stay in registers over a part of a
 * long sum. Threads have equal shares of all stored blocks times all strips of columns. */

#include "kernels/cpu/common/finish_line.h"

/* ---- the micro-kernel ---- */

typedef struct FN(left_tile) {
    const REAL *a;           /* the tile's first row and k in block 0 */
    int64_t a_block, a_k;    /* distance between blocks, and k */
    const int64_t *block;    /* where the blocks are, */
    const int32_t *col;      /* and their block columns */
    int64_t blocks, deep[2]; /* blocks; k of each, and of the last */
    const REAL *b;           /* B at the tile's first column and k in block column 0 */
    int64_t b_block, b_col;  /* distance between block columns, and columns */
    REAL *out;               /* [columns][rows] */
    int64_t out_col;         /* distance between columns */
    int last;                /* rows in the last vector */
    bool add;                /* to what `out` holds */
} FN(left_tile);

typedef void (*FN(left_kernel))(const FN(left_tile) * x);

/* One k: b0, b3 and b6 are columns 0, 3 and 6 of B there, so that addresses need no arithmetic of their own. */
INLINE void FN(left_step)(const int COLUMNS, const int VECTORS, const FN(left_tile) * x, const REAL *a, const REAL *b0,
                          const REAL *b3, const REAL *b6, VEC (*acc)[LEFT_VECTORS]) {
    VEC av[LEFT_VECTORS];
    UNROLL for (int j = 0; j < VECTORS; j++) av[j] =
        j == VECTORS - 1 ? VLOAD_SOME(a + j * LANES, x->last) : VLOAD(a + j * LANES);
    UNROLL for (int i = 0; i < COLUMNS; i++) {
        VEC y = VBROADCAST((i < 3 ? b0 : i < 6 ? b3 : b6) + i % 3 * x->b_col);
        UNROLL for (int j = 0; j < VECTORS; j++) VFMA_INTO(acc[i][j], y, av[j]);
    }
}

/* Where a tile has few sums, every addition would wait for the one before: so SIDE k run side by side. */
INLINE void FN(left_multiply)(const int COLUMNS, const int VECTORS, const FN(left_tile) * x) {
    const int SIDE = COLUMNS * VECTORS <= 4 ? 4 : COLUMNS * VECTORS <= 8 ? 2 : 1;
    VEC acc[4][LEFT_COLUMNS][LEFT_VECTORS];
    UNROLL for (int u = 0; u < SIDE; u++) UNROLL for (int i = 0; i < COLUMNS; i++)
        UNROLL for (int j = 0; j < VECTORS; j++) acc[u][i][j] = VZERO();
    for (int64_t t = 0; t < x->blocks; t++) {
        const REAL *a = x->a + x->block[t] * x->a_block, *b0 = x->b + x->col[t] * x->b_block;
        const REAL *b3 = b0 + 3 * x->b_col, *b6 = b0 + 6 * x->b_col;
        const int64_t deep = x->deep[t == x->blocks - 1];
        int64_t k = 0;
        for (; k + SIDE <= deep; k += SIDE)
            UNROLL for (int u = 0; u < SIDE; u++, a += x->a_k)
                FN(left_step)(COLUMNS, VECTORS, x, a, b0 + k + u, b3 + k + u, b6 + k + u, acc[u]);
        for (; k < deep; k++, a += x->a_k) FN(left_step)(COLUMNS, VECTORS, x, a, b0 + k, b3 + k, b6 + k, acc[0]);
    }
    UNROLL for (int i = 0; i < COLUMNS; i++) UNROLL for (int j = 0; j < VECTORS; j++) {
        REAL *out = x->out + i * x->out_col + j * LANES;
        const bool some = j == VECTORS - 1;
        VEC sum = acc[0][i][j];
        if (SIDE == 2) sum = VADD(sum, acc[1][i][j]);
        if (SIDE == 4) sum = VADD(VADD(sum, acc[1][i][j]), VADD(acc[2][i][j], acc[3][i][j]));
        if (x->add) sum = VADD(sum, some ? VLOAD_SOME(out, x->last) : VLOAD(out));
        if (some) VSTORE_SOME(out, sum, x->last);
        else VSTORE(out, sum);
    }
}

#define DEFINE(COLUMNS, VECTORS)                                                                                       \
    static void FN(left_##COLUMNS##x##VECTORS)(const FN(left_tile) * x) { FN(left_multiply)(COLUMNS, VECTORS, x); }
LEFT_TILES(DEFINE)
#undef DEFINE

static const FN(left_kernel) FN(left_kernels)[LEFT_COLUMNS][LEFT_VECTORS] = {
#define LIST(COLUMNS, VECTORS) [COLUMNS - 1][VECTORS - 1] = FN(left_##COLUMNS##x##VECTORS),
    LEFT_TILES(LIST)
#undef LIST
};

/* ---- the loop over a block row ---- */

/* What one block row, some vectors of it, and a strip of columns give: rows i.. and columns n.. of C. */
typedef struct FN(left_part) {
    int64_t block_row, i, rows, n, columns;
} FN(left_part);

/* The sums, part by part; `out` may be C. */
static void FN(left_sums)(const sat_launch *l, const sat_rows *r, const FN(left_part) * q, REAL *out, int64_t out_col) {
    const sat_problem *p = l->problem;
    const int64_t first = r->ptr[q->block_row], end = r->ptr[q->block_row + 1], inside = r->k % r->bc;
    const bool ragged = end > first && inside && (r->col[end - 1] + 1) * r->bc > r->k;
    const FN(left_kernel) kernel = FN(left_kernels)[q->columns - 1][(q->rows - 1) / LANES];
    FN(left_tile) x = {.a_block = r->block_elements, .a_k = r->col_step, .b_block = r->bc, .b_col = p->b.col_stride};
    x.out = out, x.out_col = out_col, x.last = (int)((q->rows - 1) % LANES + 1);
    if (first == end) kernel(&x);
    for (sat_part part = sat_before_parts(first, r->bc); sat_next_part(&part, end, r->bc, sat_part_blocks(r->bc));) {
        x.a = (const REAL *)l->operands[0] + q->i - q->block_row * r->br + part.k * r->col_step;
        x.b = (const REAL *)l->operands[1] + q->n * p->b.col_stride + part.k;
        x.block = r->block + part.t, x.col = r->col + part.t, x.blocks = part.t_end - part.t;
        x.deep[0] = part.k_end - part.k;
        x.deep[1] = (ragged && part.t_end == end ? sat_min(inside, part.k_end) : part.k_end) - part.k;
        kernel(&x);
        x.add = true;
    }
}

/* ---- the epilogue ---- */

/* act(alpha*sums + beta*C + bias), column by column. */
static void FN(left_store)(const sat_launch *l, const FN(left_part) * q, REAL *sums, const REAL *biases) {
    const sat_problem *p = l->problem;
    FN(line) line = FN(line_of)(p);
    line.biases = biases;
    for (int64_t e = 0; e < q->columns; e++) FN(finish_line)
    (sums + e * LEFT_VECTORS * LANES, (REAL *)l->operands[2] + q->i + (q->n + e) * p->c.col_stride, q->rows, &line);
}

static void FN(left_one)(const sat_launch *l, const sat_rows *r, const FN(left_part) * q) {
    const sat_problem *p = l->problem;
    REAL sums[LEFT_COLUMNS * LEFT_VECTORS * LANES], biases[LEFT_VECTORS * LANES];
    const bool bias = p->matmul.bias == SAT_BIAS_ROW;
    if (p->alpha == 1 && p->beta == 0 && !bias && p->matmul.activation == SAT_ACT_NONE) {
        FN(left_sums)(l, r, q, (REAL *)l->operands[2] + q->i + q->n * p->c.col_stride, p->c.col_stride);
        return;
    }
    for (int64_t e = 0; e < q->rows && bias; e++) biases[e] = ((const REAL *)l->operands[3])[q->i + e];
    FN(left_sums)(l, r, q, sums, LEFT_VECTORS * LANES);
    FN(left_store)(l, q, sums, bias ? biases : NULL);
}

/* ---- launch ---- */

/* A block row times a strip of columns: its rows in panels of about equal width. */
static void FN(left_unit)(const sat_launch *l, const sat_rows *r, int64_t block_row, int64_t n, int64_t columns) {
    const int64_t i = block_row * r->br, rows = sat_min(r->br, r->m - i), vectors = (rows + LANES - 1) / LANES;
    const int64_t panels = (vectors + LEFT_VECTORS - 1) / LEFT_VECTORS;
    for (int64_t e = 0; e < panels; e++) {
        const int64_t from = vectors * e / panels * LANES, to = sat_min(vectors * (e + 1) / panels * LANES, rows);
        FN(left_one)(l, r, &(FN(left_part)){block_row, i + from, to - from, n, columns});
    }
}

static sat_status FN(left_launch)(const sat_launch *l) {
    const sat_rows r = sat_op_rows(l->problem, l->pattern);
    const int64_t n = l->problem->n, strips = (n + LEFT_COLUMNS - 1) / LEFT_COLUMNS;
    if (r.count == 0 || n == 0) return SAT_OK;
#pragma omp parallel num_threads(l->threads) if (l->threads > 1)
    {
        const int thread = omp_get_thread_num(), threads = omp_get_num_threads();
        const int64_t end = left_first_unit(&r, strips, thread + 1, threads);
        for (int64_t unit = left_first_unit(&r, strips, thread, threads); unit < end; unit++) {
            const int64_t strip = unit / r.count, from = n * strip / strips, to = n * (strip + 1) / strips;
            FN(left_unit)(l, &r, unit % r.count, from, to - from);
        }
    }
    return SAT_OK;
}

#undef FN
