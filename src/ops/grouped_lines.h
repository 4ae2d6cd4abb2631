/* The output of a product of groups as lines, the same for the check on the host and on a device. A line is a row of Y,
 * or a row of one W of the gradient: a sum over some rows of the second factor, each times an element of X. */
#ifndef SAT_OPS_GROUPED_LINES_H
#define SAT_OPS_GROUPED_LINES_H

#include "ops/grouped.h"

typedef struct sat_grouped_lines {
    sat_problem p, like; /* like: the arithmetic's view of p */
    bool weights;
    int64_t count, width;
    int64_t rows;                                        /* of the second factor, all groups' together */
    const int64_t *offsets;                              /* without faults */
    const void *x, *factor, *out, *before, *bias, *sums; /* before, bias: NULL where there is none */
} sat_grouped_lines;

/* What a line sums up: `count` elements of X, and as many rows of the second factor. */
typedef struct sat_grouped_terms {
    int64_t count, x, x_step, row, row_step;
    int64_t first; /* number of the first row among `rows` */
    int64_t group; /* -1: the line belongs to none */
} sat_grouped_terms;

static inline int64_t sat_grouped_line_count(const sat_problem *p) {
    if (p->n == 0) return 0;
    return p->op == SAT_GROUPED_WEIGHTS ? p->grouped.groups * p->k : p->m;
}

static inline sat_grouped_lines sat_grouped_lines_of(const sat_trial *t, const int64_t *offsets) {
    const sat_problem *p = t->problem;
    sat_grouped_lines w;
    w.p = *p, w.like = sat_grouped_like_matmul(p), w.weights = p->op == SAT_GROUPED_WEIGHTS;
    w.count = sat_grouped_line_count(p), w.width = p->n;
    w.rows = w.weights ? p->m : p->grouped.groups * p->k, w.offsets = offsets;
    w.x = t->operands[0], w.factor = t->operands[1], w.out = t->operands[2], w.before = t->before;
    w.bias = p->op == SAT_GROUPED && p->grouped.bias ? t->operands[4] : NULL, w.sums = t->sums;
    return w;
}

/* Where row number r of the second factor begins. */
SAT_BOTH static inline int64_t sat_grouped_row_at(const sat_grouped_lines *w, int64_t r) {
    const sat_layout *l = &w->p.b;
    return w->weights ? r * l->row_stride : r / w->p.k * l->batch_stride + r % w->p.k * l->row_stride;
}

SAT_BOTH static inline int64_t sat_grouped_out_at(const sat_grouped_lines *w, int64_t line) {
    const sat_layout *l = &w->p.c;
    return w->weights ? line / w->p.k * l->batch_stride + line % w->p.k * l->row_stride : line * l->row_stride;
}

SAT_BOTH static inline sat_grouped_terms sat_grouped_terms_of(const sat_grouped_lines *w, int64_t line) {
    const sat_problem *p = &w->p;
    sat_grouped_terms s;
    s.row_step = p->b.row_stride;
    if (w->weights) {
        s.group = line / p->k, s.first = w->offsets[s.group], s.count = w->offsets[s.group + 1] - s.first;
        s.x = s.first * p->a.row_stride + line % p->k * p->a.col_stride, s.x_step = p->a.row_stride;
    } else {
        s.group = sat_group_of(w->offsets, p->grouped.groups, line);
        s.first = s.group * p->k, s.count = s.group < 0 ? 0 : p->k;
        s.x = line * p->a.row_stride, s.x_step = p->a.col_stride;
    }
    s.row = s.count > 0 ? sat_grouped_row_at(w, s.first) : 0;
    return s;
}

/* The number of the term that what is planted in one of the factors is in; -1: it does not reach the line. What is in X
 * reaches all columns, what is in the second factor its own. */
SAT_BOTH static inline int64_t sat_grouped_special_term(const sat_grouped_lines *w, int64_t line,
                                                        const sat_grouped_terms *s, const sat_special *at) {
    bool in_x = at->operand == 0;
    int64_t row = in_x && !w->weights ? at->col : at->row; /* among those that the depth runs over */
    int64_t number = row - (w->weights ? s->first : 0);
    if (number < 0 || number >= s->count) return -1;
    if (in_x) return line % (w->weights ? w->p.k : w->p.m) == (w->weights ? at->col : at->row) ? number : -1;
    return w->weights || at->item == s->group || w->p.b.batch_stride == 0 ? number : -1;
}

/* What the sums of a line may lose. */
SAT_BOTH static inline sat_loss sat_grouped_loss(const sat_grouped_lines *w, sat_backend_kind backend, int64_t depth,
                                                 int64_t elements) {
    const sat_problem *p = &w->p;
    sat_loss loss = sat_loss_of_sum(&w->like, backend, depth, elements);
    bool x_repeats = (w->weights ? p->a.row_stride : p->a.col_stride) == 0, equal = x_repeats && p->b.row_stride == 0;
    double n = (double)depth + 8;
    if (equal && depth > 1) loss.most = sat_unit(p->compute_dtype) * n * sqrt(n); /* as sat_products_equal has it */
    return loss;
}

#endif
