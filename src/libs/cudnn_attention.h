/* What both directions of attention by cuDNN share: what it takes, and scores with their masks as operations of a
 * graph. */
#ifndef SAT_CUDNN_ATTENTION_H
#define SAT_CUDNN_ATTENTION_H

#include "attention.h"
#include "libs/cudnn.h"

enum { SAT_DNN_STEP = 8 }; /* elements of 16 bytes */

static inline bool strides_fit(const sat_heads *s, int64_t batch, int64_t heads, int64_t rows) {
    return s->row_stride % SAT_DNN_STEP == 0 && s->head_stride % SAT_DNN_STEP == 0 &&
           s->batch_stride % SAT_DNN_STEP == 0 && (batch == 1 || s->batch_stride > 0) &&
           (heads == 1 || s->head_stride > 0) && (rows == 1 || s->row_stride > 0);
}

/* The diagonal position of the last query is the last key: causal takes nothing from it. */
static inline bool right_bound(const sat_problem *p) {
    return (p->attention.causal || p->attention.window) && p->m > 1;
}

/* What each version can do, as cuDNN's own front end has it. */
static inline bool mask_fits(const sat_problem *p) {
    const sat_attention *t = &p->attention;
    int number = sat_cudnn_number();
    if (!t->causal && !t->window) return true;
    if (p->m > p->n || p->n >= 1 << 24) return false; /* rows that keep nothing; places that are no floats */
    if (p->m != p->n && number < 90600 && (p->m % 64 != 0 || p->n % 64 != 0)) return false;
    return !t->window || (p->m > 1 && number >= 91002 && number != 91400);
}

static inline bool sizes_fit(const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    int number = sat_cudnn_number();
    int64_t most = d->capability >= 90 && d->capability < 100 ? 256 : 128;
    bool narrow = (p->a_dtype == SAT_F16 || p->a_dtype == SAT_BF16) && p->c_dtype == p->a_dtype;
    bool known = number >= 90100 && number != 91000 && number != 91001; /* those two have bugs here */
    if (!sat_attention_is_plain(p)) return false;
    if (!known || !narrow || d->capability < 80 || p->m < 1 || p->n < 1 || p->batch < 1 || a->sequences) return false;
    if (a->stored_blocks != a->grid_rows * a->grid_cols || a->stored_blocks == 0 || !mask_fits(p)) return false;
    return p->attention.dim <= most && p->attention.dim % 8 == 0 && p->alpha > 0 && p->a_align >= 16 &&
           p->c_align >= 16;
}

/* All that a graph depends on. */
static inline void fill_key(double *key, const sat_variant *v, const sat_problem *p) {
    const sat_attention *t = &p->attention;
    const sat_heads *s[8] = {&t->q, &t->k, &t->v, &t->o, &t->dq, &t->dk, &t->dv, &t->do_};
    int64_t sizes[12] = {(int64_t)p->op, v->instance.option, p->batch,    p->m,
                         p->n,           t->heads,           t->kv_heads, t->dim,
                         t->causal,      t->window,          t->lse,      (int64_t)p->a_dtype};
    memset(key, 0, SAT_DNN_KEY * sizeof *key);
    for (int i = 0; i < 12; i++) *key++ = (double)sizes[i];
    for (int i = 0; i < 8; i++) {
        *key++ = (double)s[i]->batch_stride, *key++ = (double)s[i]->head_stride, *key++ = (double)s[i]->row_stride;
    }
    *key = p->alpha;
}

/* ---- the graph ---- */

typedef struct maker {
    sat_dnn *g;
    const sat_problem *p;
    int64_t all[4], rows[4]; /* sizes of the scores, and of one number a row of them */
    sat_dnn_type type;       /* of the operands */
} maker;

/* A dimension of size 1 has any stride; the library wants one that looks right. */
static inline sat_dnn_shape shape_of(const sat_problem *p, const sat_heads *s, int64_t heads, int64_t rows,
                                     bool transposed) {
    int64_t row = rows > 1 ? s->row_stride : p->attention.dim, head = heads > 1 ? s->head_stride : row * rows;
    int64_t batch = p->batch > 1 ? s->batch_stride : sat_max(head * heads, row * rows);
    sat_dnn_shape x = {{p->batch, heads, rows, p->attention.dim}, {batch, head, row, 1}};
    sat_dnn_shape y = {{p->batch, heads, p->attention.dim, rows}, {batch, head, 1, row}};
    return transposed ? y : x;
}

static inline int operand(const maker *x, const sat_heads *s, int64_t heads, int64_t rows, bool transposed) {
    sat_dnn_shape shape = shape_of(x->p, s, heads, rows, transposed);
    return sat_dnn_operand(x->g, x->type, &shape, 16);
}

static inline int scores(const maker *x, sat_dnn_type t) { return sat_dnn_inner(x->g, t, x->all); }

static inline int pointwise(const maker *x, sat_dnn_mode mode, sat_dnn_type t, int from, int b) {
    int to = scores(x, t);
    sat_dnn_pointwise(x->g, mode, t, 3, from, b, 0, to);
    return to;
}

static inline int indices(const maker *x, int of, int axis) {
    int to = scores(x, SAT_DNN_I32);
    sat_dnn_pointwise(x->g, SAT_DNN_INDEX, SAT_DNN_F32, axis, of, 0, 0, to);
    return to;
}

static inline int keep(const maker *x, int from, sat_dnn_mode compare, int a, int b) {
    /* older versions want the lowest number there is instead of infinity */
    float none = sat_cudnn_number() < 91000 ? -0x1.fffffep127f : -INFINITY;
    int holds = scores(x, SAT_DNN_BOOL), to = scores(x, SAT_DNN_F32);
    sat_dnn_pointwise(x->g, compare, SAT_DNN_BOOL, 3, a, b, 0, holds);
    sat_dnn_pointwise(x->g, SAT_DNN_SELECT, SAT_DNN_F32, 3, from, sat_dnn_number_f32(x->g, none), holds, to);
    return to;
}

/* Keys up to the query's diagonal position, or past it up to the end of the window. */
static inline int keep_left_of(const maker *x, int from) {
    const sat_problem *p = x->p;
    int row = indices(x, from, 2), column = indices(x, from, 3);
    if (p->m != p->n) {
        row = pointwise(x, SAT_DNN_ADD, SAT_DNN_I32, row, sat_dnn_number_i32(x->g, (int32_t)p->n));
        row = pointwise(x, SAT_DNN_SUB, SAT_DNN_I32, row, sat_dnn_number_i32(x->g, (int32_t)p->m));
    }
    if (!p->attention.causal) {
        int32_t more = (int32_t)p->attention.window - 1;
        row = pointwise(x, SAT_DNN_ADD, SAT_DNN_I32, row, sat_dnn_number_i32(x->g, more));
    }
    return keep(x, from, SAT_DNN_GREATER_EQUAL, row, column);
}

static inline int keep_right_of(const maker *x, int from) {
    const sat_problem *p = x->p;
    int row = indices(x, from, 2), column = indices(x, from, 3);
    float less = (float)(p->attention.window - p->n + p->m);
    column = pointwise(x, SAT_DNN_ADD, SAT_DNN_F32, column, sat_dnn_number_f32(x->g, less));
    return keep(x, from, SAT_DNN_GREATER, column, row);
}

static inline int scaled_scores(const maker *x, int q, int k, int scale) {
    int s = scores(x, SAT_DNN_F32);
    sat_dnn_matmul(x->g, q, k, s);
    return pointwise(x, SAT_DNN_MUL, SAT_DNN_F32, s, scale);
}

/* What is not kept becomes -inf. */
static inline int masked(const maker *x, int s) {
    if (right_bound(x->p)) s = keep_left_of(x, s);
    return x->p->attention.window ? keep_right_of(x, s) : s;
}

static inline maker maker_of(const sat_problem *p) {
    maker x = {.p = p,
               .all = {p->batch, p->attention.heads, p->m, p->n},
               .rows = {p->batch, p->attention.heads, p->m, 1},
               .type = p->a_dtype == SAT_F16 ? SAT_DNN_F16 : SAT_DNN_BF16};
    return x;
}

#endif
