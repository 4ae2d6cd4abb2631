/* The packed matmul's epilogue; a part of matmul_packed.h, for one element type: act(alpha*tile + beta*C + bias) into
 * C, whatever its strides and dtype. A column-major C is written as the transposed tile. */

#include "kernels/cpu/common/finish_line.h"

/* Rows and columns of C as the micro-kernel left them, and where they go. */
typedef struct FN(packed_result) {
    const sat_problem *problem;
    REAL *tile;               /* [rows][width] */
    int64_t width;            /* distance between its rows */
    int64_t i, rows, j, cols; /* of C */
    void *c;                  /* element (0, 0) */
    const void *bias;
    bool nontemporal;
    REAL *transposed; /* room for PACKED_STORE_ROWS rows */
} FN(packed_result);

/* Stores lines of C: rows of it, or columns where `transposed`. */
static void FN(packed_store_lines)(const FN(packed_result) * x, FN(line) * l, void *c, const REAL *bias,
                                   bool transposed) {
    const sat_problem *p = x->problem;
    int64_t lines = transposed ? x->cols : x->rows, n = transposed ? x->rows : x->cols;
    int64_t next = transposed ? p->c.col_stride : p->c.row_stride;
    if (transposed) l->biases = bias;
    for (int64_t i = 0; i < lines; i++) {
        if (bias && !transposed) l->bias = bias[i];
        REAL *line = transposed ? x->transposed + i * n : x->tile + i * x->width;
        FN(finish_line)(line, sat_at(p->c_dtype, c, i * next), n, l);
    }
}

static void FN(packed_store_strided)(const FN(packed_result) * x, FN(line) * l, void *c, const REAL *bias) {
    const sat_problem *p = x->problem;
    for (int64_t i = 0; i < x->rows; i++) {
        if (bias) l->bias = bias[i];
        for (int64_t j = 0; j < x->cols; j++) {
            void *at = sat_at(p->c_dtype, c, i * p->c.row_stride + j * p->c.col_stride);
            FN(finish_line)(x->tile + i * x->width + j, at, 1, l);
        }
    }
}

/* At most PACKED_STORE_ROWS rows. Overwrites the tile. */
static void FN(packed_store_rows)(const FN(packed_result) * x) {
    const sat_problem *p = x->problem;
    FN(line)
    l = {.alpha = (REAL)p->alpha, .beta = (REAL)p->beta, .activation = p->matmul.activation, .dtype = p->c_dtype};
    REAL biases[PACKED_STORE_ROWS];
    void *at = sat_at(p->c_dtype, x->c, x->i * p->c.row_stride + x->j * p->c.col_stride);
    if (x->bias) FN(read_line)(biases, p->c_dtype, sat_at(p->c_dtype, x->bias, x->i), x->rows);
    const REAL *bias = x->bias ? biases : NULL;
    l.nontemporal = x->nontemporal;
    if (p->c.col_stride == 1) {
        FN(packed_store_lines)(x, &l, at, bias, false);
    } else if (p->c.row_stride == 1) {
        FN(packed_transpose)(0, x->tile, x->width, x->rows, x->cols, x->transposed, x->rows);
        FN(packed_store_lines)(x, &l, at, bias, true);
    } else {
        FN(packed_store_strided)(x, &l, at, bias);
    }
}

static void FN(packed_store)(const FN(packed_result) * x) {
    FN(packed_result) part = *x;
    for (int64_t done = 0; done < x->rows; done += PACKED_STORE_ROWS) {
        part.i = x->i + done, part.rows = sat_min(PACKED_STORE_ROWS, x->rows - done);
        part.tile = x->tile + done * x->width;
        FN(packed_store_rows)(&part);
    }
}
