// The planted product and sampled product: plain loops. Sums are in the compute type, one rounding an addition.

#include <stdlib.h>
#include <string.h>

#include "../number.h"
#include "check_reference.h"
#include "power.h"

void power_add_row(const run *r, double *sums, double a, const double *b, int64_t n) {
    if (a == 0 && r->how->skips_zeros) return;
    if (r->how->sum)
        for (int64_t j = 0; j < n; j++) sums[j] = r->how->sum(sums[j] + a * b[j]);
    else if (r->p.compute_dtype == SAT_F64)
        for (int64_t j = 0; j < n; j++) sums[j] += a * b[j];
    else
        for (int64_t j = 0; j < n; j++) sums[j] = (double)(float)(sums[j] + a * b[j]);
}

static void end_part(const spot *s, double *sums, int64_t n) {
    for (int64_t j = 0; s->r->how->part && j < n; j++) sums[j] = s->r->how->part(s, sums[j]);
}

double power_finish(const run *r, double sum, double before, double bias) {
    const sat_problem *p = &r->p;
    if (r->how->epilogue) return r->how->epilogue(p, sum, before, bias);
    double x = p->alpha * sum + bias;
    return reference_activate(activation_of(p), p->beta != 0 ? x + p->beta * before : x);
}

/* ---- matmul ---- */

// The blocks of one row of op(A).
typedef struct line {
    const int64_t *ptr;   // of block rows of op(A)
    const int32_t *col;   // block columns of op(A)
    const int64_t *block; // their places among the values; NULL: the same
    int64_t br, bc, row_step, col_step;
} line;

static line lines_of(const run *r) {
    const sat_pattern_view *a = r->a;
    if (r->launch->problem->matmul.transpose == SAT_NO_TRANSPOSE)
        return (line){a->row_ptr, a->col_idx, NULL, a->block_rows, a->block_cols, a->block_cols, 1};
    line l = {a->t_ptr, a->t_row, a->t_block, a->block_cols, a->block_rows, 1, a->block_cols};
    if (r->p.matmul.transpose == SAT_NO_TRANSPOSE)
        l.row_step = a->block_cols, l.col_step = 1; // a fault: not transposed
    return l;
}

typedef struct item {
    const run *r;
    line l;
    double *values, *b, *c, *bias, *sums;
} item;

// One row of op(A) times B, into x->sums.
static void multiply_row(const item *x, int64_t z, int64_t i) {
    const run *r = x->r;
    const sat_problem *p = &r->p;
    const line *l = &x->l;
    int64_t first = l->ptr[i / l->br], count = l->ptr[i / l->br + 1] - first, n = p->n;
    memset(x->sums, 0, (size_t)n * sizeof *x->sums);
    for (int64_t part = 0; part < count; part++) {
        int64_t t = first + (r->backwards ? count - 1 - part : part), block = l->block ? l->block[t] : t;
        spot s = {
            .r = r, .z = z, .i = i, .part = part, .parts = count, .t = block, .rows = p->m, .cols = n, .which = 2};
        int64_t column = l->col[t];
        if (r->how->column) column = r->how->column(&s, column);
        s.j = column * l->bc;
        if (r->how->skip && r->how->skip(&s)) continue;
        const double *values = x->values + block * r->a->block_rows * r->a->block_cols + i % l->br * l->row_step;
        for (int64_t k = 0; k < l->bc; k++) {
            int64_t row = s.j + (r->backwards ? l->bc - 1 - k : k);
            double value = values[(row - s.j) * l->col_step];
            if (row < p->k) power_add_row(r, x->sums, value, x->b + row * n, n);
            else if (r->how->reads_padding)
                for (int64_t j = 0; j < n; j++) x->sums[j] += value * 0;
        }
        end_part(&s, x->sums, n);
    }
}

// What a dense product adds: zeros where nothing is stored, times B.
static void add_absent(const item *x, int64_t i) {
    const sat_problem *p = &x->r->p;
    const line *l = &x->l;
    for (int64_t k = 0; k < p->k; k++) {
        bool stored = false;
        for (int64_t t = l->ptr[i / l->br]; t < l->ptr[i / l->br + 1]; t++) stored = stored || l->col[t] == k / l->bc;
        if (!stored) power_add_row(x->r, x->sums, 0, x->b + k * p->n, p->n);
    }
}

static void matmul_item(const item *x, int64_t z) {
    const run *r = x->r;
    const sat_problem *p = &r->p;
    for (int64_t i = 0; i < p->m; i++) {
        spot s = {.r = r, .which = 2, .z = z, .i = i, .rows = p->m, .cols = p->n};
        int64_t row = r->how->row ? r->how->row(&s) : i;
        if (row < 0) continue;
        multiply_row(x, z, i);
        if (r->how->absent_too) add_absent(x, i);
        s.parts = x->l.ptr[i / x->l.br + 1] - x->l.ptr[i / x->l.br];
        for (s.j = 0; s.j < p->n; s.j++) {
            s.here = i == p->m / 2 && s.j == p->n / 3;
            power_store(&s, row, power_finish(r, x->sums[s.j], x->c[i * p->n + s.j], x->bias ? x->bias[i] : 0));
        }
    }
}

bool power_matmul(const run *r) {
    bool ok = true;
    for (int64_t z = 0; z < r->p.batch && ok; z++) {
        item x = {.r = r, .l = lines_of(r)};
        x.values = power_load(r, 0, z, 0, r->list[0].rows), x.b = power_load(r, 1, z, 0, r->p.k);
        x.c = power_load(r, 2, z, 0, r->p.m), x.sums = malloc((size_t)(r->p.n + 1) * sizeof *x.sums);
        x.bias = r->p.matmul.bias ? power_load(r, 3, z, 0, r->p.m) : NULL;
        ok = x.values && x.b && x.c && x.sums && (x.bias || !r->p.matmul.bias);
        if (ok) matmul_item(&x, z);
        free(x.values), free(x.b), free(x.c), free(x.sums), free(x.bias);
    }
    return ok;
}

/* ---- sampled ---- */

enum { PART = 8 }; // products of the depth that count as one block

// One row of a stored block.
static void sample_row(const item *x, int64_t z, int64_t block, int64_t row, int64_t in_block) {
    const run *r = x->r;
    const sat_problem *p = &r->p;
    const sat_pattern_view *a = r->a;
    int64_t col = a->col_idx[block] * a->block_cols, width = a->cols - col;
    spot s = {.r = r, .which = 2, .z = z, .i = row, .t = block, .rows = a->rows, .cols = a->cols};
    if (r->how->column) col = r->how->column(&s, a->col_idx[block]) * a->block_cols;
    s.parts = (p->k + PART - 1) / PART;
    if (width > a->block_cols) width = a->block_cols;
    memset(x->sums, 0, (size_t)a->block_cols * sizeof *x->sums);
    for (int64_t at = 0; row < a->rows && at < p->k; at++) {
        int64_t k = r->backwards ? p->k - 1 - at : at;
        s.part = k / PART, s.j = k - k % PART;
        if (!(r->how->skip && r->how->skip(&s)))
            power_add_row(r, x->sums, x->values[row * p->k + k], x->b + k * p->n + col, width);
        if (at % PART == PART - 1) end_part(&s, x->sums, width);
    }
    for (int64_t j = 0; j < a->block_cols; j++) {
        int64_t at = block * a->block_rows + in_block;
        bool inside = row < a->rows && j < width;
        if (!inside && r->how->unwritten) continue;
        s.here = block == a->stored_blocks / 2 && in_block == 0 && j == 0;
        s.j = j; // of the stored values
        double sum = inside ? power_finish(r, x->sums[j], x->c[at * a->block_cols + j], 0) : 0;
        if (inside) power_store(&s, at, sum);
        else
            (r->how->store ? r->how->store : number_store)(p->c_dtype, (char *)(uintptr_t)r->host[2],
                                                           operand_at(&r->list[2], z, at, j), 0);
    }
}

static void sampled_item(const item *x, int64_t z) {
    const sat_pattern_view *a = x->r->a;
    for (int64_t row = 0; row < a->grid_rows; row++)
        for (int64_t block = a->row_ptr[row]; block < a->row_ptr[row + 1]; block++)
            for (int64_t i = 0; i < a->block_rows; i++) {
                spot s = {.r = x->r, .which = 2, .z = z, .i = row * a->block_rows + i, .rows = a->rows, .t = block};
                int64_t from = x->r->how->row ? x->r->how->row(&s) : s.i;
                if (from >= 0) sample_row(x, z, block, from, i);
            }
}

bool power_sampled(const run *r) {
    bool ok = true;
    for (int64_t z = 0; z < r->p.batch && ok; z++) {
        item x = {.r = r};
        x.values = power_load(r, 0, z, 0, r->p.m), x.b = power_load(r, 1, z, 0, r->p.k);
        x.c = power_load(r, 2, z, 0, r->list[2].rows);
        x.sums = malloc((size_t)(r->a->block_cols + 1) * sizeof *x.sums);
        ok = x.values && x.b && x.c && x.sums;
        if (ok) sampled_item(&x, z);
        free(x.values), free(x.b), free(x.c), free(x.sums);
    }
    return ok;
}
