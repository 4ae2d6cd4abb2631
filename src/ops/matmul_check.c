/* Checks a matmul's result without computing it: random +-1 vectors over panels of 64 columns, and from the other
 * side over panels of 64 rows.
 *
 *   C r  = alpha*A*(B r) + beta*C0 r + bias*sum(r)      r: signs, zero outside one panel of columns
 *   l^T C = alpha*(l^T A)*B + beta*l^T C0 + l^T bias    l: signs, zero outside one panel of rows
 *
 * A panel's sums may differ by what rounding can do to its 64 elements: u_out*|C| + depth*u_acc*|A||B|. That is tight
 * enough to see one wrong element or one dropped block, and the right sides are made once for all candidates.
 * An activation is not linear, so there some whole rows and columns are computed element by element as well. */
#include <stdlib.h>

#include "ops/check.h"

typedef struct expectation {
    sat_probe probe;
    uint64_t seed;
    int64_t row_panels, col_panels;
    /* PANELS: [batch][m][col_panels] and [batch][row_panels][n]: alpha*A*B part, the rest, and the magnitude summed.
     * SAMPLES: [batch][row_panels][n] (a row of each panel) and [batch][m][col_panels] (a column of each). */
    double *right, *right_rest, *right_scale;
    double *left, *left_rest, *left_scale;
    int64_t *depth; /* products summed in each row of op(A); [row_panels] maxima follow after [m] */
    double memory[];
} expectation;

enum { TILE = 512 };

static size_t bytes(const sat_problem *p, const sat_pattern_view *a, sat_probe probe) {
    (void)a, (void)probe;
    double sides = (double)p->m * (double)sat_panels(p->n) + (double)sat_panels(p->m) * (double)p->n;
    double work = (double)p->k * (double)sat_panels(p->n) * 2 + (double)p->k * 3;
    return (size_t)((sides * 3 * (double)p->batch + (double)p->m * 2 + work) * 8) + 4096;
}

static void free_expectation(void *e) { free(e); }

static expectation *allocate(const sat_problem *p, sat_probe probe, uint64_t seed) {
    int64_t cp = sat_panels(p->n), rp = sat_panels(p->m), right = p->batch * p->m * cp, left = p->batch * rp * p->n;
    expectation *e = calloc(1, sizeof *e + (size_t)(3 * (right + left) + p->m + rp) * sizeof(double));
    if (!e) return NULL;
    e->probe = probe, e->seed = seed, e->col_panels = cp, e->row_panels = rp;
    e->right = e->memory, e->right_rest = e->right + right, e->right_scale = e->right_rest + right;
    e->left = e->right_scale + right, e->left_rest = e->left + left, e->left_scale = e->left_rest + left;
    e->depth = (int64_t *)(void *)(e->left_scale + left);
    return e;
}

static void fill_depth(expectation *e, const sat_rows *r) {
    for (int64_t row = 0; row < r->count; row++) {
        int64_t depth = 0, i_end = sat_min((row + 1) * r->br, r->m);
        for (int64_t t = r->ptr[row]; t < r->ptr[row + 1]; t++) depth += sat_min(r->bc, r->k - r->col[t] * r->bc);
        for (int64_t i = row * r->br; i < i_end; i++) {
            int64_t *most = &e->depth[r->m + i / SAT_PANEL];
            e->depth[i] = depth;
            if (depth > *most) *most = depth;
        }
    }
}

/* Sums of a row over its panels, signed and absolute; or one sampled element of each panel. */
static void fold_row(const expectation *e, const double *row, int64_t n, double *signed_sum, double *magnitude) {
    for (int64_t c = 0; c < e->col_panels; c++) {
        int64_t j0 = c * SAT_PANEL, j1 = sat_min(j0 + SAT_PANEL, n);
        double s = 0, a = 0;
        if (e->probe == SAT_PROBE_SAMPLES) {
            int64_t j = j0 + (int64_t)(sat_mix(e->seed + (uint64_t)c) % (uint64_t)(j1 - j0));
            s = row[j], a = fabs(row[j]);
        } else {
            for (int64_t j = j0; j < j1; j++) s += row[j] * sat_sign(e->seed, j), a += fabs(row[j]);
        }
        signed_sum[c] = s, magnitude[c] = a;
    }
}

typedef struct side {
    const sat_trial *t;
    const sat_rows *r;
    const void *values, *b;
    expectation *e;
    double *work; /* right: B r and |B| r, [2][k][col_panels] */
    double *right, *right_scale, *left, *left_scale;
} side;

static bool right_side(const side *s) {
    const sat_problem *p = s->t->problem;
    const sat_rows *r = s->r;
    int64_t cp = s->e->col_panels;
    double *br = s->work, *ba = s->work + p->k * cp;
    bool ok = true;
#pragma omp parallel num_threads(s->t->device->threads)
    {
        double *row = malloc((size_t)(p->n + 1) * sizeof *row);
#pragma omp for schedule(static)
        for (int64_t k = 0; k < p->k; k++) {
            if (!row) continue;
            sat_load_row(row, p->b_dtype, s->b, k * p->b.row_stride, p->b.col_stride, p->n);
            fold_row(s->e, row, p->n, br + k * cp, ba + k * cp);
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t row_index = 0; row_index < r->count; row_index++) {
            for (int64_t t = r->ptr[row_index]; t < r->ptr[row_index + 1]; t++) {
                int64_t i0 = row_index * r->br, k0 = r->col[t] * r->bc;
                int64_t rows = sat_min(r->br, r->m - i0), cols = sat_min(r->bc, r->k - k0);
                int64_t base = sat_block_of(r, t) * r->block_elements;
                for (int64_t i = 0; i < rows; i++) {
                    for (int64_t k = 0; k < cols; k++) {
                        double x = sat_load(p->a_dtype, s->values, base + i * r->row_step + k * r->col_step);
                        sat_axpy(s->right + (i0 + i) * cp, br + (k0 + k) * cp, x, cp);
                        sat_axpy(s->right_scale + (i0 + i) * cp, ba + (k0 + k) * cp, fabs(x), cp);
                    }
                }
            }
        }
        if (!row) {
#pragma omp atomic write
            ok = false;
        }
        free(row);
    }
    return ok;
}

/* l^T A of one panel of rows: a thread's own row as long as k, and the list of the columns it touched. */
typedef struct folded_row {
    double *sum, *magnitude; /* [k] each; magnitude is zero where nothing was stored, and again after use */
    int64_t *touched, count;
    double *b; /* a tile of one row of B */
} folded_row;

static void fold_values(const side *s, int64_t q, folded_row *f) {
    const sat_problem *p = s->t->problem;
    const sat_rows *r = s->r;
    int64_t i_end = sat_min((q + 1) * SAT_PANEL, p->m);
    f->count = 0;
    for (int64_t i = q * SAT_PANEL; i < i_end; i++) {
        double weight = sat_weight(s->e->probe, ~s->e->seed, i, p->m);
        if (weight == 0) continue;
        int64_t row = i / r->br, in_row = i % r->br;
        for (int64_t t = r->ptr[row]; t < r->ptr[row + 1]; t++) {
            int64_t k0 = r->col[t] * r->bc, cols = sat_min(r->bc, r->k - k0);
            int64_t base = sat_block_of(r, t) * r->block_elements + in_row * r->row_step;
            for (int64_t k = 0; k < cols; k++) {
                double x = sat_load(p->a_dtype, s->values, base + k * r->col_step);
                if (x == 0) continue; /* adds nothing, and magnitude tells whether a column was touched */
                if (f->magnitude[k0 + k] == 0) f->touched[f->count++] = k0 + k, f->sum[k0 + k] = 0;
                f->sum[k0 + k] += weight * x;
                f->magnitude[k0 + k] += fabs(x);
            }
        }
    }
}

static void multiply_folded(const side *s, int64_t q, folded_row *f) {
    const sat_problem *p = s->t->problem;
    for (int64_t j0 = 0; j0 < p->n; j0 += TILE) { /* the sums of a tile stay in the first-level cache */
        int64_t width = sat_min(TILE, p->n - j0);
        for (int64_t c = 0; c < f->count; c++) {
            int64_t k = f->touched[c];
            sat_load_row(f->b, p->b_dtype, s->b, k * p->b.row_stride + j0 * p->b.col_stride, p->b.col_stride, width);
            sat_axpy2(s->left + q * p->n + j0, s->left_scale + q * p->n + j0, f->b, f->sum[k], f->magnitude[k], width);
        }
    }
    for (int64_t c = 0; c < f->count; c++) f->magnitude[f->touched[c]] = 0;
}

static bool left_side(const side *s) { /* (l^T A) B */
    int64_t k = s->t->problem->k;
    bool ok = true;
#pragma omp parallel num_threads(s->t->device->threads)
    {
        double *memory = calloc((size_t)(3 * k + TILE), sizeof *memory);
        folded_row f = {.sum = memory, .magnitude = memory + k, .b = memory + 3 * k};
        f.touched = (int64_t *)(void *)(memory + 2 * k);
        if (!memory) {
#pragma omp atomic write
            ok = false;
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t q = 0; q < s->e->row_panels; q++) {
            if (!memory) continue;
            fold_values(s, q, &f);
            multiply_folded(s, q, &f);
        }
        free(memory);
    }
    return ok;
}

/* beta*C0 and the bias: what does not change its sign when A or B does. They may cancel, and the rounding of either
 * stays: both count for the magnitude. */
static bool add_rest(const side *s, const void *before, const void *bias, double *right_rest, double *left_rest) {
    const sat_problem *p = s->t->problem;
    const expectation *e = s->e;
    int64_t cp = e->col_panels;
    double *row = malloc((size_t)(2 * p->n + 3 * cp + 1) * sizeof *row), *size = row + p->n;
    double *sum = size + p->n, *magnitude = sum + cp, *unused = magnitude + cp;
    if (!row) return false;
    for (int64_t i = 0; i < p->m; i++) {
        double weight = sat_weight(e->probe, ~e->seed, i, p->m), add = bias ? sat_load(p->c_dtype, bias, i) : 0;
        int64_t q = i / SAT_PANEL;
        if (before) sat_load_row(row, p->c_dtype, before, i * p->c.row_stride, p->c.col_stride, p->n);
        for (int64_t j = 0; j < p->n; j++) {
            double x = before ? p->beta * row[j] : 0;
            row[j] = x + add, size[j] = fabs(x) + fabs(add);
            left_rest[q * p->n + j] += weight * row[j];
            if (weight != 0) s->left_scale[q * p->n + j] += size[j];
        }
        fold_row(e, row, p->n, sum, unused);
        fold_row(e, size, p->n, unused, magnitude);
        for (int64_t c = 0; c < cp; c++) {
            right_rest[i * cp + c] += sum[c];
            s->right_scale[i * cp + c] += magnitude[c];
        }
    }
    free(row);
    return true;
}

static void scale_all(double *x, int64_t n, double by) {
    for (int64_t i = 0; i < n; i++) x[i] *= by;
}

static sat_status expect(const sat_trial *t, sat_probe probe, uint64_t seed, void **out) {
    const sat_problem *p = t->problem;
    sat_rows r = sat_op_rows(p, t->pattern);
    expectation *e = allocate(p, probe, seed);
    if (!e)
        return sat_fail(SAT_OUT_OF_MEMORY, "check: expectation of a %lld x %lld output", (long long)p->m,
                        (long long)p->n);
    fill_depth(e, &r);
    bool ok = true;
    for (int64_t z = 0; z < p->batch && ok; z++) {
        int64_t right = z * p->m * e->col_panels, left = z * e->row_panels * p->n;
        side s = {.t = t, .r = &r, .e = e};
        s.values = sat_at(p->a_dtype, t->operands[0], z * p->a.batch_stride);
        s.b = sat_at(p->b_dtype, t->operands[1], z * p->b.batch_stride);
        s.right = e->right + right, s.right_scale = e->right_scale + right;
        s.left = e->left + left, s.left_scale = e->left_scale + left;
        s.work = malloc((size_t)(2 * p->k * e->col_panels + 1) * sizeof(double));
        ok = s.work && right_side(&s) && left_side(&s);
        free(s.work);
        if (!ok) break;
        scale_all(s.right, p->m * e->col_panels, p->alpha);
        scale_all(s.right_scale, p->m * e->col_panels, fabs(p->alpha));
        scale_all(s.left, e->row_panels * p->n, p->alpha);
        scale_all(s.left_scale, e->row_panels * p->n, fabs(p->alpha));
        const void *before = t->before ? sat_at(p->c_dtype, t->before, z * p->c.batch_stride) : NULL;
        const void *bias = p->bias == SAT_BIAS_ROW ? t->operands[3] : NULL;
        if (before || bias) ok = add_rest(&s, before, bias, e->right_rest + right, e->left_rest + left);
    }
    if (!ok) {
        free(e);
        return sat_fail(SAT_OUT_OF_MEMORY, "check: workspace for a %lld x %lld output", (long long)p->m,
                        (long long)p->n);
    }
    *out = e;
    return SAT_OK;
}

typedef struct comparison {
    const sat_trial *t;
    const expectation *e;
    double sign;
    int64_t z;
    const void *c;
} comparison;

static double wanted(const comparison *w, double product, double rest) {
    double x = w->sign * product + rest;
    return w->e->probe == SAT_PROBE_SAMPLES ? sat_act_f64(w->t->problem->activation, x) : x;
}

/* One panel of rows, both ways. */
static void compare_panel(const comparison *w, int64_t q, double *work, sat_finding *f) {
    const sat_problem *p = w->t->problem;
    const expectation *e = w->e;
    int64_t cp = e->col_panels, n = p->n, i_end = sat_min((q + 1) * SAT_PANEL, p->m);
    double *row = work, *sum = row + n, *shown = sum + cp, *left = shown + cp, *left_shown = left + n;
    memset(left, 0, (size_t)(2 * n) * sizeof *left);
    for (int64_t i = q * SAT_PANEL; i < i_end; i++) {
        sat_load_row(row, p->c_dtype, w->c, i * p->c.row_stride, p->c.col_stride, n);
        fold_row(e, row, n, sum, shown);
        double weight = sat_weight(e->probe, ~e->seed, i, p->m);
        if (weight != 0)
            for (int64_t j = 0; j < n; j++) left[j] += weight * row[j], left_shown[j] += fabs(row[j]);
        int64_t at = (w->z * p->m + i) * cp;
        for (int64_t c = 0; c < cp; c++) {
            double width = (double)sat_min(SAT_PANEL, n - c * SAT_PANEL), scale = e->right_scale[at + c];
            double want = wanted(w, e->right[at + c], e->right_rest[at + c]);
            double bound = sat_allowance(p, e->depth[i], scale, shown[c], width);
            if (!sat_judge(f, sum[c], want, bound, scale) && f->ok) {
                f->ok = false;
                snprintf(f->where, sizeof f->where,
                         "row %lld, columns %lld to %lld: off by %.3g where rounding allows %.3g", (long long)i,
                         (long long)(c * SAT_PANEL), (long long)(c * SAT_PANEL + (int64_t)width - 1),
                         fabs(sum[c] - want), bound);
            }
        }
    }
    int64_t at = (w->z * e->row_panels + q) * n;
    for (int64_t j = 0; j < n; j++) {
        double scale = e->left_scale[at + j], want = wanted(w, e->left[at + j], e->left_rest[at + j]);
        double bound = sat_allowance(p, e->depth[p->m + q], scale, left_shown[j], (double)(i_end - q * SAT_PANEL));
        if (!sat_judge(f, left[j], want, bound, scale) && f->ok) {
            f->ok = false;
            snprintf(f->where, sizeof f->where,
                     "column %lld, rows %lld to %lld: off by %.3g where rounding allows %.3g", (long long)j,
                     (long long)(q * SAT_PANEL), (long long)i_end - 1, fabs(left[j] - want), bound);
        }
    }
}

static sat_status compare(const sat_trial *t, const void *expectation_, sat_finding *finding) {
    const expectation *e = expectation_;
    const sat_problem *p = t->problem;
    bool memory = true;
    *finding = (sat_finding){.ok = true};
    for (int64_t z = 0; z < p->batch; z++) {
        comparison w = {.t = t, .e = e, .sign = t->flipped ? -1 : 1, .z = z};
        w.c = sat_at(p->c_dtype, t->operands[2], z * p->c.batch_stride);
#pragma omp parallel num_threads(t->device->threads)
        {
            double *work = malloc((size_t)(3 * p->n + 2 * e->col_panels + 1) * sizeof *work);
            sat_finding mine = {.ok = true};
#pragma omp for schedule(dynamic, 1) nowait
            for (int64_t q = 0; q < e->row_panels; q++)
                if (work) compare_panel(&w, q, work, &mine);
#pragma omp critical(sat_matmul_check)
            {
                memory = memory && work;
                if (mine.error > finding->error) finding->error = mine.error;
                if (!mine.ok && finding->ok) {
                    finding->ok = false;
                    memcpy(finding->where, mine.where, sizeof mine.where);
                }
            }
            free(work);
        }
    }
    return memory ? SAT_OK : sat_fail(SAT_OUT_OF_MEMORY, "check: a row of %lld columns", (long long)p->n);
}

const sat_checker sat_matmul_check = {.bytes = bytes, .expect = expect, .compare = compare, .free = free_expectation};
