/* The epilogue of the families with few columns, for one element type: act(alpha*sum + beta*C + bias) into C, whatever
 * its strides and dtype. A template, included once for each element type.
 *
 * Rows of C are short, so what a row costs beside its arithmetic counts: many rows are stored by one call, as long
 * lines where C has any. */

#include "kernels/cpu/common/finish_line.h"

INLINE REAL FN(few_bias)(const sat_launch *l, int64_t row) {
    return l->problem->matmul.bias == SAT_BIAS_ROW ? FN(widen)(l->problem->c_dtype, l->operands[3], row) : 0;
}

/* Element by element: any dtype, activation and beta. */
static void FN(few_store_elements)(const sat_launch *l, const REAL *sums, int64_t step, int64_t first, int64_t rows) {
    const sat_problem *p = l->problem;
    const REAL alpha = (REAL)p->alpha, beta = (REAL)p->beta;
    void *c = l->operands[2];
    for (int64_t i = 0; i < rows; i++) {
        const REAL bias = FN(few_bias)(l, first + i);
        for (int64_t n = 0; n < p->n; n++) {
            const int64_t at = (first + i) * p->c.row_stride + n * p->c.col_stride;
            REAL x = alpha * sums[i * step + n] + bias;
            if (beta != 0) x += beta * FN(widen)(p->c_dtype, c, at);
            sat_store(p->c_dtype, c, at, FN(sat_act)(p->matmul.activation, x));
        }
    }
}

/* C of the type that is computed in, no activation; read, if beta is not 0, only where it is row-major. */
static void FN(few_store_plain)(const sat_launch *l, const REAL *sums, int64_t step, int64_t first, int64_t rows) {
    const sat_problem *p = l->problem;
    const REAL alpha = (REAL)p->alpha;
    const int64_t down = p->c.row_stride, along = p->c.col_stride, columns = p->n;
    REAL *c = (REAL *)l->operands[2] + first * down;
    if (columns == 1 || along < down) {
        for (int64_t i = 0; i < rows; i++) {
            const REAL bias = FN(few_bias)(l, first + i);
            REAL *to = c + i * down;
            const REAL *from = sums + i * step;
            if (p->beta != 0)
                for (int64_t n = 0; n < columns; n++)
                    to[n * along] = alpha * from[n] + (REAL)p->beta * to[n * along] + bias;
            else if (along == 1)
                for (int64_t n = 0; n < columns; n++) to[n] = alpha * from[n] + bias;
            else
                for (int64_t n = 0; n < columns; n++) to[n * along] = alpha * from[n] + bias;
        }
        return;
    }
    for (int64_t n = 0; n < columns; n++)
        for (int64_t i = 0; i < rows; i++)
            c[i * down + n * along] = alpha * sums[i * step + n] + FN(few_bias)(l, first + i);
}

/* C column-major, or one column: a line is some rows of a column. */
static void FN(few_store_columns)(const sat_launch *l, const REAL *sums, int64_t step, int64_t first, int64_t rows) {
    enum { LINE = 64 };
    const sat_problem *p = l->problem;
    FN(line) line = {.alpha = (REAL)p->alpha, .activation = p->matmul.activation, .dtype = p->c_dtype};
    REAL biases[LINE], x[LINE];
    for (int64_t i = 0, some; i < rows; i += some, sums += some * step) {
        some = sat_min(LINE, rows - i);
        if (p->matmul.bias == SAT_BIAS_ROW) {
            for (int64_t e = 0; e < some; e++) biases[e] = FN(few_bias)(l, first + i + e);
            line.biases = biases;
        }
        for (int64_t n = 0; n < p->n; n++) {
            for (int64_t e = 0; e < some; e++) x[e] = sums[e * step + n];
            FN(finish_line)(x, sat_at(p->c_dtype, l->operands[2], first + i + n * p->c.col_stride), some, &line);
        }
    }
}

/* C row-major without gaps, no bias: all rows are one line. */
static void FN(few_store_rows)(const sat_launch *l, REAL *sums, int64_t step, int64_t first, int64_t rows) {
    const sat_problem *p = l->problem;
    const FN(line) line = {.alpha = (REAL)p->alpha, .activation = p->matmul.activation, .dtype = p->c_dtype};
    for (int64_t i = 1; i < rows && step > p->n; i++)
        for (int64_t n = 0; n < p->n; n++) sums[i * p->n + n] = sums[i * step + n];
    FN(finish_line)(sums, sat_at(p->c_dtype, l->operands[2], first * p->n), rows * p->n, &line);
}

/* Rows [first, first + rows) of C from sums that are `step` elements apart. May overwrite the sums. Where lines begin
 * depends on threads, so they do only what gives the same bits at any place of a line. */
static void FN(few_store)(const sat_launch *l, REAL *sums, int64_t step, int64_t first, int64_t rows) {
    const sat_problem *p = l->problem;
    const bool real = sat_dtype_size(p->c_dtype) == sizeof(REAL), bias = p->matmul.bias == SAT_BIAS_ROW;
    const bool rows_first = p->n == 1 || p->c.col_stride < p->c.row_stride;
    const bool plain = p->matmul.activation == SAT_ACT_NONE && (p->beta == 0 || rows_first);
    const bool lines = p->beta == 0 && p->matmul.activation <= SAT_ACT_RELU;
    const bool no_gaps = p->n == 1 ? p->c.row_stride == 1 : p->c.col_stride == 1 && p->c.row_stride == p->n;
    if (lines && no_gaps && !bias) FN(few_store_rows)(l, sums, step, first, rows);
    else if (plain && real) FN(few_store_plain)(l, sums, step, first, rows);
    else if (lines && p->c.row_stride == 1) FN(few_store_columns)(l, sums, step, first, rows);
    else FN(few_store_elements)(l, sums, step, first, rows);
}
