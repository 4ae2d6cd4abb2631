/* Random products of groups with what they must give, worked out here by loops: for the tests on a CPU and on a GPU. */
#ifndef SAT_TEST_GROUPED_CASES_H
#define SAT_TEST_GROUPED_CASES_H

#include <math.h>

#include "base/dtype.h"
#include "problems.h"
#include "support.h"

/* ---- a case: a problem with its operands ---- */

typedef struct matrix {
    sat_dtype dtype;
    int64_t rows, cols, items; /* items: one matrix a group */
    sat_layout layout;
    int64_t span;
    void *data;
} matrix;

typedef struct grouped_case {
    sat_problem problem;
    bool weights;
    int64_t *groups; /* offsets, as they are meant: without faults */
    void *offsets;   /* as the library gets them */
    matrix x, second, out;
    void *bias;
    double *before, *want, *bound;
} grouped_case;

static inline int64_t at(const matrix *m, int64_t z, int64_t i, int64_t j) {
    return z * m->layout.batch_stride + i * m->layout.row_stride + j * m->layout.col_stride;
}

static inline double element(const matrix *m, int64_t z, int64_t i, int64_t j) {
    return sat_load(m->dtype, m->data, at(m, z, i, j));
}

/* How matrices are stored. ANY: row-major, column-major or neither, with gaps. PLAIN: row-major without gaps. ALIGNED:
 * lines are multiples of 16 elements apart; W and the output are row-major or column-major. */
typedef enum style { ANY, PLAIN, ALIGNED } style;

/* All of it is NaN. */
static inline matrix make_matrix(uint64_t *r, sat_dtype t, int64_t rows, int64_t cols, int64_t items, style how,
                                 bool columns) {
    bool plain = how == PLAIN;
    int64_t gap = plain || random_below(r, 2) ? 0 : 1 + random_below(r, 5);
    matrix m = {.dtype = t, .rows = rows, .cols = cols, .items = items};
    m.layout = (sat_layout){.row_stride = cols + gap + !cols, .col_stride = 1};
    if (how == ANY && random_below(r, 3) == 0)
        m.layout = (sat_layout){.row_stride = 1, .col_stride = rows + gap + !rows};
    if (how == ANY && random_below(r, 8) == 0)
        m.layout = (sat_layout){.row_stride = 2 * cols + 1 + gap, .col_stride = 2};
    if (how == ALIGNED) {
        gap = 16 * random_below(r, 2);
        m.layout = (sat_layout){.row_stride = (cols + 15) / 16 * 16 + gap, .col_stride = 1};
        if (columns) m.layout = (sat_layout){.row_stride = 1, .col_stride = (rows + 15) / 16 * 16 + gap};
    }
    int64_t one = (rows ? rows - 1 : 0) * m.layout.row_stride + (cols ? cols - 1 : 0) * m.layout.col_stride + 1;
    if (items > 0) m.layout.batch_stride = how == ALIGNED ? (one + 15) / 16 * 16 + gap : one + gap;
    m.span = items > 0 ? items * m.layout.batch_stride : one;
    m.data = malloc((size_t)(m.span + 1) * sat_dtype_size(t));
    memset(m.data, 0xff, (size_t)(m.span + 1) * sat_dtype_size(t));
    return m;
}

static inline void fill(uint64_t *r, matrix *m) {
    for (int64_t z = 0; z < (m->items ? m->items : 1); z++)
        for (int64_t i = 0; i < m->rows; i++)
            for (int64_t j = 0; j < m->cols; j++)
                sat_store(m->dtype, m->data, at(m, z, i, j), (double)(next_random(r) >> 11) * 0x1p-52 - 1);
}

/* Sizes of all kinds: empty groups, one that has most rows, rows of no group at the end. */
static inline void draw_groups(uint64_t *r, int64_t m, int64_t groups, int64_t *to) {
    int64_t style = random_below(r, 4), end = style == 3 ? m : m - random_below(r, m / 4 + 1);
    to[0] = 0;
    for (int64_t g = 1; g <= groups; g++) {
        int64_t left = end - to[g - 1], some = left / (groups - g + 1);
        if (style == 0) some = random_below(r, 2) ? 0 : random_below(r, left + 1);
        if (style == 1) some = g == groups / 2 + 1 ? left : 0;
        to[g] = to[g - 1] + (some > left ? left : some);
    }
}

static inline void store_offsets(grouped_case *c, const int64_t *offsets) {
    int64_t count = c->problem.grouped.groups + 1;
    for (int64_t g = 0; g < count; g++) {
        if (c->problem.grouped.offset_type == SAT_I32) ((int32_t *)c->offsets)[g] = (int32_t)offsets[g];
        else ((int64_t *)c->offsets)[g] = offsets[g];
    }
}

/* Rows of no group stay NaN: nothing may read them. */
static inline void poison_other_rows(grouped_case *c) {
    int64_t end = c->groups[c->problem.grouped.groups];
    matrix *both[] = {&c->x, c->weights ? &c->second : &c->x};
    for (int which = 0; which < 2; which++)
        for (int64_t i = end; i < both[which]->rows; i++)
            for (int64_t j = 0; j < both[which]->cols; j++)
                sat_store(both[which]->dtype, both[which]->data, at(both[which], 0, i, j), (double)NAN);
}

static inline sat_problem draw_problem(uint64_t *r, bool weights) {
    static const sat_dtype types[] = {SAT_F32, SAT_F64, SAT_F16, SAT_BF16};
    static const double alphas[] = {1, 1, -0.5, 2}, betas[] = {0, 0, 1, -0.75};
    sat_problem p = {SAT_SIZED(sat_problem)};
    sat_dtype t = types[random_below(r, 4)];
    int64_t m = random_below(r, 12) == 0 ? 0 : 1 + random_below(r, random_below(r, 3) ? 60 : 400);
    int64_t n = 1 + random_below(r, random_below(r, 4) ? 60 : 600),
            k = 1 + random_below(r, random_below(r, 4) ? 60 : 600);
    int64_t groups = random_below(r, 12) == 0 ? 0 : 1 + random_below(r, 9);
    if (weights) assert_ok(sat_problem_grouped_weights(&p, t, m, n, k, groups));
    else assert_ok(sat_problem_grouped(&p, t, m, n, k, groups));
    p.grouped.offset_type = random_below(r, 2) ? SAT_I32 : SAT_I64;
    if (sat_dtype_size(t) == 2 && random_below(r, 2)) p.c_dtype = SAT_F32;
    p.alpha = alphas[random_below(r, 4)], p.beta = betas[random_below(r, 4)];
    if (!weights) p.grouped.bias = random_below(r, 2), p.grouped.activation = (sat_activation)random_below(r, 4);
    return p;
}

static inline double act(sat_activation a, double x) {
    switch (a) {
    case SAT_ACT_RELU: return x > 0 ? x : 0;
    case SAT_ACT_GELU: return 0.5 * x * (1 + erf(x / sqrt(2)));
    case SAT_ACT_SILU: return x / (1 + exp(-x));
    default: return x;
    }
}

/* What element (z, i, j) of the output must be, and how far from that rounding may leave it. */
static inline void expect_element(grouped_case *c, int64_t z, int64_t i, int64_t j, int64_t number) {
    const sat_problem *p = &c->problem;
    int64_t groups = p->grouped.groups, g = z, depth = 0;
    double sum = 0, magnitude = 0, u = p->compute_dtype == SAT_F64 || p->a_dtype == SAT_F64 ? 0x1p-53 : 0x1p-24;
    if (!c->weights)
        for (g = 0; g < groups && i >= c->groups[g + 1];) g++;
    if (c->weights) {
        for (int64_t row = c->groups[g]; row < c->groups[g + 1]; row++, depth++) {
            double term = element(&c->x, 0, row, i) * element(&c->second, 0, row, j);
            sum += term, magnitude += fabs(term);
        }
    } else if (g < groups) {
        for (int64_t k = 0; k < p->k; k++, depth++) {
            double term = element(&c->x, 0, i, k) * element(&c->second, g, k, j);
            sum += term, magnitude += fabs(term);
        }
    }
    double bias = p->grouped.bias && g < groups ? sat_load(p->c_dtype, c->bias, g * p->n + j) : 0;
    double before = p->beta != 0 ? p->beta * c->before[number] : 0, x = p->alpha * sum + before + bias;
    magnitude = fabs(p->alpha) * magnitude + fabs(before) + fabs(bias);
    c->want[number] = act(p->grouped.activation, x);
    c->bound[number] = 1.13 * (double)(depth + 8) * u * magnitude + 32 * u * fabs(x) +
                       2 * sat_unit(p->c_dtype) * fabs(c->want[number]) + 2 * sat_tiny(p->c_dtype);
}

static inline int64_t items_of(const matrix *m) { return m->items ? m->items : 1; }

static inline void expect_all(grouped_case *c) {
    int64_t number = 0, items = c->weights ? c->problem.grouped.groups : 1;
    for (int64_t z = 0; z < items; z++)
        for (int64_t i = 0; i < c->out.rows; i++)
            for (int64_t j = 0; j < c->out.cols; j++) expect_element(c, z, i, j, number++);
}

static inline grouped_case make_case(uint64_t *r, const sat_problem *drawn, style how) {
    grouped_case c = {.problem = *drawn, .weights = drawn->op == SAT_GROUPED_WEIGHTS};
    sat_problem *p = &c.problem;
    int64_t groups = p->grouped.groups, items = groups ? groups : 1;
    c.groups = malloc((size_t)(groups + 1) * sizeof *c.groups);
    c.offsets = malloc((size_t)(groups + 1) * 8);
    draw_groups(r, p->m, groups, c.groups);
    store_offsets(&c, c.groups);
    c.x = make_matrix(r, p->a_dtype, p->m, p->k, 0, how, false);
    c.second = make_matrix(r, p->a_dtype, c.weights ? p->m : p->k, p->n, c.weights ? 0 : items, how,
                           !c.weights && random_below(r, 2));
    c.out =
        make_matrix(r, p->c_dtype, c.weights ? p->k : p->m, p->n, c.weights ? items : 0, how, random_below(r, 3) == 0);
    fill(r, &c.x), fill(r, &c.second);
    poison_other_rows(&c);
    p->a = c.x.layout, p->b = c.second.layout, p->c = c.out.layout;
    matrix bias = make_matrix(r, p->c_dtype, items, p->n, 0, PLAIN, false);
    if (how == ALIGNED) p->a_align = p->b_align = p->c_align = 16;
    fill(r, &bias);
    c.bias = bias.data;
    size_t count = (size_t)(items_of(&c.out) * c.out.rows * c.out.cols + 1);
    c.before = malloc(count * sizeof *c.before), c.want = malloc(count * sizeof *c.want);
    c.bound = malloc(count * sizeof *c.bound);
    for (size_t i = 0; i < count; i++) c.before[i] = sat_rounded(p->c_dtype, (double)random_below(r, 200) / 100 - 1);
    expect_all(&c);
    return c;
}

static inline void free_case(grouped_case *c) {
    free(c->groups), free(c->offsets), free(c->x.data), free(c->second.data), free(c->out.data), free(c->bias);
    free(c->before), free(c->want), free(c->bound);
}

/* ---- its output ---- */

/* NaN where the output is not read, else what it held. */
static inline void reset_output(grouped_case *c) {
    int64_t number = 0, items = c->weights ? c->problem.grouped.groups : 1;
    memset(c->out.data, 0xff, (size_t)(c->out.span + 1) * sat_dtype_size(c->out.dtype));
    for (int64_t z = 0; z < items && c->problem.beta != 0; z++)
        for (int64_t i = 0; i < c->out.rows; i++)
            for (int64_t j = 0; j < c->out.cols; j++)
                sat_store(c->out.dtype, c->out.data, at(&c->out, z, i, j), c->before[number++]);
}

/* Every element, NaN where NaN is wanted, and that what is between them is still poison. */
static inline void expect_output(grouped_case *c, const char *who, int number_of_case) {
    int64_t number = 0, items = c->weights ? c->problem.grouped.groups : 1;
    const sat_problem *p = &c->problem;
    for (int64_t z = 0; z < items; z++)
        for (int64_t i = 0; i < c->out.rows; i++)
            for (int64_t j = 0; j < c->out.cols; j++, number++) {
                double got = element(&c->out, z, i, j), want = c->want[number];
                if (isnan(want) ? isnan(got) : fabs(got - want) <= c->bound[number]) continue;
                fail_msg("%s, case %d, %s of %lldx%lldx%lld: [%lld][%lld][%lld] is %g; expected %g +- %g", who,
                         number_of_case, sat_dtype_name(p->a_dtype), (long long)p->m, (long long)p->n, (long long)p->k,
                         (long long)z, (long long)i, (long long)j, got, want, c->bound[number]);
            }
    for (int64_t z = 0; z < items; z++)
        for (int64_t i = 0; i < c->out.rows; i++)
            for (int64_t j = 0; j < c->out.cols; j++)
                memset(sat_at(c->out.dtype, c->out.data, at(&c->out, z, i, j)), 0xff, sat_dtype_size(c->out.dtype));
    const unsigned char *bytes = c->out.data;
    for (size_t i = 0; i < (size_t)(c->out.span + 1) * sat_dtype_size(c->out.dtype); i++)
        if (bytes[i] != 0xff) fail_msg("%s wrote beside the elements of its output", who);
}

#endif
