/* Checks a sampled product block by block without computing it: each stored block times a random +-1 vector, and from
 * the other side where blocks are wide enough for that to see more.
 *
 *   S_t r  = alpha*X_I*(Y_J r) + beta*S0_t r        t: the block in block row I and block column J
 *   l^T S_t = alpha*(l^T X_I)*Y_J + beta*l^T S0_t
 *
 * Bounds are those of the matmul's check. What a block holds beyond the matrix must be exactly zero. */
#include <stdlib.h>

#include "ops/check.h"

enum { CHUNK = 256, WIDE = 16 };

typedef struct expectation {
    uint64_t seed;
    bool both;                                /* the left side too */
    double *right, *right_rest, *right_scale; /* [batch][stored_blocks][block_rows] */
    double *left, *left_rest, *left_scale;    /* [batch][stored_blocks][block_cols] */
    double memory[];
} expectation;

typedef struct side {
    const sat_trial *t;
    const sat_pattern_view *a;
    expectation *e;
    int64_t z;
    const void *x, *y;
    double *folded, *magnitude; /* right: Y_J r, [grid_cols][k]; left: l^T X_I, [grid_rows][k] */
} side;

static size_t bytes(const sat_problem *p, const sat_pattern_view *a, sat_probe probe) {
    (void)probe;
    double per_block = 3 * (double)(a->block_rows + (a->block_cols > WIDE ? a->block_cols : 0));
    double work = 2 * (double)p->k * (double)sat_max(a->grid_cols, a->grid_rows);
    return (size_t)(((double)a->stored_blocks * per_block * (double)p->batch + work) * 8) + 4096;
}

static void free_expectation(void *e) { free(e); }

static expectation *allocate(const sat_problem *p, const sat_pattern_view *a, uint64_t seed) {
    bool both = a->block_cols > WIDE;
    int64_t right = p->batch * a->stored_blocks * a->block_rows;
    int64_t left = both ? p->batch * a->stored_blocks * a->block_cols : 0;
    expectation *e = calloc(1, sizeof *e + (size_t)(3 * (right + left)) * sizeof(double));
    if (!e) return NULL;
    e->seed = seed, e->both = both;
    e->right = e->memory, e->right_rest = e->right + right, e->right_scale = e->right_rest + right;
    e->left = e->right_scale + right, e->left_rest = e->left + left, e->left_scale = e->left_rest + left;
    return e;
}

/* Y_J r for every block column, or l^T X_I for every block row: sums over `width` lines of `lines`, [groups][k]. */
static void fold(const side *s, bool right) {
    const sat_problem *p = s->t->problem;
    const sat_layout *l = right ? &p->b : &p->a;
    const void *from = right ? s->y : s->x;
    sat_dtype type = right ? p->b_dtype : p->a_dtype;
    int64_t groups = right ? s->a->grid_cols : s->a->grid_rows, width = right ? s->a->block_cols : s->a->block_rows;
    int64_t lines = right ? p->n : p->m, line_step = right ? l->col_stride : l->row_stride;
    int64_t k_step = right ? l->row_stride : l->col_stride;
    uint64_t seed = right ? s->e->seed : ~s->e->seed;
#pragma omp parallel for num_threads(s->t->device->threads) schedule(dynamic, 1)
    for (int64_t g = 0; g < groups; g++) {
        double *to = s->folded + g * p->k, *magnitude = s->magnitude + g * p->k, row[CHUNK];
        for (int64_t k0 = 0; k0 < p->k; k0 += CHUNK) {
            int64_t depth = sat_min(CHUNK, p->k - k0);
            for (int64_t i = g * width; i < sat_min((g + 1) * width, lines); i++) {
                double sign = sat_sign(seed, i);
                sat_load_row(row, type, from, i * line_step + k0 * k_step, k_step, depth);
                for (int64_t k = 0; k < depth; k++) {
                    to[k0 + k] += sign * row[k];
                    magnitude[k0 + k] += fabs(row[k]);
                }
            }
        }
    }
}

/* right: one line is a row of X, met by every block of its block row; left: a column of Y, by every block of its
 * block column. Either way a line is converted once and then summed against what fold() made. */
static bool project(const side *s, bool right) {
    const sat_problem *p = s->t->problem;
    const sat_pattern_view *a = s->a;
    int64_t groups = right ? a->grid_rows : a->grid_cols, width = right ? a->block_rows : a->block_cols;
    int64_t lines = right ? p->m : p->n, offset = s->z * a->stored_blocks * width;
    const int64_t *ptr = right ? a->row_ptr : a->t_ptr;
    const int32_t *other = right ? a->col_idx : a->t_row;
    double *sum = (right ? s->e->right : s->e->left) + offset;
    double *scale = (right ? s->e->right_scale : s->e->left_scale) + offset;
    bool ok = true;
#pragma omp parallel num_threads(s->t->device->threads)
    {
        double *line = malloc((size_t)(2 * p->k + 1) * sizeof *line), *line_abs = line + p->k;
        if (!line) {
#pragma omp atomic write
            ok = false;
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t g = 0; g < groups; g++) {
            for (int64_t i = 0; line && i < width && g * width + i < lines; i++) {
                int64_t at = g * width + i;
                if (right) sat_load_row(line, p->a_dtype, s->x, at * p->a.row_stride, p->a.col_stride, p->k);
                else sat_load_row(line, p->b_dtype, s->y, at * p->b.col_stride, p->b.row_stride, p->k);
                for (int64_t k = 0; k < p->k; k++) line_abs[k] = fabs(line[k]);
                for (int64_t t = ptr[g]; t < ptr[g + 1]; t++) {
                    int64_t block = right ? t : a->t_block[t];
                    sum[block * width + i] = p->alpha * sat_dot(line, s->folded + other[t] * p->k, p->k);
                    scale[block * width + i] = fabs(p->alpha) * sat_dot(line_abs, s->magnitude + other[t] * p->k, p->k);
                }
            }
        }
        free(line);
    }
    return ok;
}

/* One block of the output folded both ways: signed sums and magnitudes of rows and of columns, and its padding. */
typedef struct folded_block {
    double *row, *row_abs, *col, *col_abs;
    bool padding_is_zero;
} folded_block;

static void fold_block(const sat_pattern_view *a, sat_dtype type, const void *s, uint64_t seed, int64_t block_row,
                       int64_t t, folded_block *f) {
    memset(f->row, 0, (size_t)(2 * (a->block_rows + a->block_cols)) * sizeof(double));
    f->padding_is_zero = true;
    for (int64_t i = 0; i < a->block_rows; i++) {
        for (int64_t j = 0; j < a->block_cols; j++) {
            int64_t row = block_row * a->block_rows + i, col = a->col_idx[t] * a->block_cols + j;
            double x = sat_load(type, s, (t * a->block_rows + i) * a->block_cols + j);
            if (row >= a->rows || col >= a->cols) {
                f->padding_is_zero = f->padding_is_zero && x == 0;
                continue;
            }
            f->row[i] += sat_sign(seed, col) * x, f->row_abs[i] += fabs(x);
            f->col[j] += sat_sign(~seed, row) * x, f->col_abs[j] += fabs(x);
        }
    }
}

static bool open_block(const sat_pattern_view *a, folded_block *f) {
    f->row = malloc((size_t)(2 * (a->block_rows + a->block_cols)) * sizeof(double));
    if (!f->row) return false;
    f->row_abs = f->row + a->block_rows, f->col = f->row_abs + a->block_rows, f->col_abs = f->col + a->block_cols;
    return true;
}

static bool add_rest(const side *s, const void *before) {
    const sat_problem *p = s->t->problem;
    const sat_pattern_view *a = s->a;
    folded_block f;
    if (!open_block(a, &f)) return false;
    for (int64_t g = 0; g < a->grid_rows; g++) {
        for (int64_t t = a->row_ptr[g]; t < a->row_ptr[g + 1]; t++) {
            fold_block(a, p->c_dtype, before, s->e->seed, g, t, &f);
            int64_t right = (s->z * a->stored_blocks + t) * a->block_rows;
            int64_t left = (s->z * a->stored_blocks + t) * a->block_cols;
            for (int64_t i = 0; i < a->block_rows; i++) {
                s->e->right_rest[right + i] = p->beta * f.row[i];
                s->e->right_scale[right + i] += fabs(p->beta) * f.row_abs[i];
            }
            for (int64_t j = 0; s->e->both && j < a->block_cols; j++) {
                s->e->left_rest[left + j] = p->beta * f.col[j];
                s->e->left_scale[left + j] += fabs(p->beta) * f.col_abs[j];
            }
        }
    }
    free(f.row);
    return true;
}

static sat_status expect(const sat_trial *t, sat_probe probe, uint64_t seed, void **out) {
    (void)probe; /* there is no activation here */
    const sat_problem *p = t->problem;
    const sat_pattern_view *a = t->pattern;
    expectation *e = allocate(p, a, seed);
    int64_t groups = sat_max(a->grid_cols, a->grid_rows);
    double *work = malloc((size_t)(2 * groups * p->k + 1) * sizeof *work);
    bool ok = e && work;
    for (int64_t z = 0; ok && z < p->batch; z++) {
        side s = {.t = t, .a = a, .e = e, .z = z, .folded = work, .magnitude = work + groups * p->k};
        s.x = sat_at(p->a_dtype, t->operands[0], z * p->a.batch_stride);
        s.y = sat_at(p->b_dtype, t->operands[1], z * p->b.batch_stride);
        for (int side_index = 0; ok && side_index < (e->both ? 2 : 1); side_index++) {
            memset(work, 0, (size_t)(2 * groups * p->k) * sizeof *work);
            fold(&s, side_index == 0);
            ok = project(&s, side_index == 0);
        }
        if (ok && t->before) ok = add_rest(&s, sat_at(p->c_dtype, t->before, z * p->c.batch_stride));
    }
    free(work);
    if (!ok) {
        free(e);
        return sat_fail(SAT_OUT_OF_MEMORY, "check: expectation of %lld stored blocks", (long long)a->stored_blocks);
    }
    *out = e;
    return SAT_OK;
}

typedef struct comparison {
    const sat_trial *t;
    const expectation *e;
    int64_t z;
    const void *s;
} comparison;

static bool judge_line(const comparison *w, sat_finding *f, double got, double shown, int64_t at, bool right) {
    const sat_pattern_view *a = w->t->pattern;
    const expectation *e = w->e;
    double product = right ? e->right[at] : e->left[at], rest = right ? e->right_rest[at] : e->left_rest[at];
    double scale = right ? e->right_scale[at] : e->left_scale[at], want = (w->t->flipped ? -product : product) + rest;
    double bound =
        sat_allowance(w->t->problem, w->t->problem->k, scale, shown, (double)(right ? a->block_cols : a->block_rows));
    if (sat_judge(f, got, want, bound, scale)) return true;
    int64_t width = right ? a->block_rows : a->block_cols;
    snprintf(f->where, sizeof f->where, "block %lld, %s %lld: off by %.3g where rounding allows %.3g",
             (long long)(at / width % a->stored_blocks), right ? "row" : "column", (long long)(at % width),
             fabs(got - want), bound);
    return false;
}

static void compare_block(const comparison *w, int64_t g, int64_t t, folded_block *b, sat_finding *f) {
    const sat_pattern_view *a = w->t->pattern;
    fold_block(a, w->t->problem->c_dtype, w->s, w->e->seed, g, t, b);
    if (!b->padding_is_zero && f->ok) {
        f->ok = false;
        snprintf(f->where, sizeof f->where, "block %lld: not zero beyond the matrix", (long long)t);
    }
    int64_t block = w->z * a->stored_blocks + t;
    for (int64_t i = 0; f->ok && i < a->block_rows; i++)
        f->ok = judge_line(w, f, b->row[i], b->row_abs[i], block * a->block_rows + i, true);
    for (int64_t j = 0; w->e->both && f->ok && j < a->block_cols; j++)
        f->ok = judge_line(w, f, b->col[j], b->col_abs[j], block * a->block_cols + j, false);
}

static sat_status compare(const sat_trial *t, const void *expectation_, sat_finding *finding) {
    const sat_problem *p = t->problem;
    const sat_pattern_view *a = t->pattern;
    bool memory = true;
    *finding = (sat_finding){.ok = true};
    for (int64_t z = 0; z < p->batch; z++) {
        comparison w = {.t = t, .e = expectation_, .z = z};
        w.s = sat_at(p->c_dtype, t->operands[2], z * p->c.batch_stride);
#pragma omp parallel num_threads(t->device->threads)
        {
            folded_block b;
            bool opened = open_block(a, &b);
            sat_finding mine = {.ok = true};
#pragma omp for schedule(dynamic, 1) nowait
            for (int64_t g = 0; g < a->grid_rows; g++)
                for (int64_t i = a->row_ptr[g]; opened && i < a->row_ptr[g + 1]; i++)
                    compare_block(&w, g, i, &b, &mine);
#pragma omp critical(sat_sampled_check)
            {
                memory = memory && opened;
                if (mine.error > finding->error) finding->error = mine.error;
                if (!mine.ok && finding->ok) {
                    finding->ok = false;
                    memcpy(finding->where, mine.where, sizeof mine.where);
                }
            }
            if (opened) free(b.row);
        }
    }
    return memory ? SAT_OK
                  : sat_fail(SAT_OUT_OF_MEMORY, "check: a block of %lld x %lld", (long long)a->block_rows,
                             (long long)a->block_cols);
}

const sat_checker sat_sampled_check = {.bytes = bytes, .expect = expect, .compare = compare, .free = free_expectation};
