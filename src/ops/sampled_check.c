/* Checks a sampled product's result on the host, as matmul_check.c does a matmul's; a line is one row of a stored
 * block.
 *
 *   structure   every element against its sum, which is proven block by block: l^T*S_t*r = (l^T*X_I)*(Y_J*r)
 *   precision   every element of some lines against sums in twice the precision
 *
 * What a block holds beyond the matrix must be exactly zero. */
#include <stdlib.h>

#include "ops/check.h"

enum { WORK = 150 * 1000 * 1000, CHUNK = 256 };

typedef struct expectation {
    uint64_t seed;
    int64_t step, groups;        /* one line of `step` */
    double *sum, *low, *squares; /* [batch][groups][block_cols]; low: where the compute type is f64 */
    double memory[];
} expectation;

static int64_t line_count(const sat_pattern_view *a) { return a->stored_blocks * a->block_rows; }

static int64_t step_of(const sat_problem *p, const sat_pattern_view *a) {
    double dear = p->compute_dtype == SAT_F64 ? 4 : 1;
    return sat_line_step(line_count(a), dear * (double)a->stored_elements * (double)p->k * (double)p->batch, WORK);
}

static int64_t expected_elements(const sat_problem *p, const sat_pattern_view *a) {
    return p->batch * sat_line_groups(line_count(a), step_of(p, a)) * a->block_cols;
}

static size_t bytes(const sat_problem *p, const sat_pattern_view *a, sat_probe probe) {
    double folded = 16.0 * (double)(a->grid_rows + a->grid_cols) * (double)p->k;
    if (probe == SAT_PROBE_STRUCTURE) return (size_t)folded + 4096;
    return (size_t)(3 * expected_elements(p, a)) * sizeof(double) + 4096;
}

static void free_expectation(void *e) { free(e); }

static expectation *allocate(const sat_problem *p, const sat_pattern_view *a, uint64_t seed) {
    int64_t count = expected_elements(p, a);
    expectation *e = calloc(1, sizeof *e + (size_t)(3 * count) * sizeof(double));
    if (!e) return NULL;
    e->seed = seed, e->step = step_of(p, a), e->groups = sat_line_groups(line_count(a), e->step);
    e->sum = e->memory, e->squares = e->sum + count;
    e->low = p->compute_dtype == SAT_F64 ? e->squares + count : NULL;
    return e;
}

static sat_status no_memory(const sat_pattern_view *a) {
    return sat_fail(SAT_OUT_OF_MEMORY, "check: lines of %lld stored blocks", (long long)a->stored_blocks);
}

typedef struct item { /* one of the batch */
    const sat_trial *t;
    const sat_problem *p;
    const sat_pattern_view *a;
    int64_t z;
    const void *x, *y, *s, *before;
} item;

static item make_item(const sat_trial *t, int64_t z) {
    const sat_problem *p = t->problem;
    item w = {.t = t, .p = p, .a = t->pattern, .z = z};
    w.x = sat_at(p->a_dtype, t->operands[0], z * p->a.batch_stride);
    w.y = sat_at(p->b_dtype, t->operands[1], z * p->b.batch_stride);
    w.s = sat_at(p->c_dtype, t->operands[2], z * p->c.batch_stride);
    w.before = t->before ? sat_at(p->c_dtype, t->before, z * p->c.batch_stride) : NULL;
    return w;
}

/* Where a line is: row `row` of the matrix, columns from `col` on, of which `cols` are inside of it: none of a block
 * that no row has. */
typedef struct place {
    int64_t block, row, col, cols;
} place;

static place place_of(const sat_pattern_view *a, int64_t line) {
    int64_t block = line / a->block_rows, col = a->col_idx[block] * a->block_cols;
    int64_t row = sat_row_of_block(a->row_ptr, a->row_end, a->grid_rows, block);
    place at = {.block = block, .row = sat_max(0, row) * a->block_rows + line % a->block_rows, .col = col};
    at.cols = row >= 0 && at.row < a->rows ? sat_min(a->block_cols, a->cols - col) : 0;
    return at;
}

/* ---- precision: lines of true sums ---- */

static sat_true_line line_of(const item *w, const expectation *e, int64_t g) {
    int64_t at = (w->z * e->groups + g) * w->a->block_cols;
    return (sat_true_line){e->sum + at, e->low ? e->low + at : NULL, e->squares + at};
}

static void true_line(const item *w, const expectation *e, int64_t g, double *row) {
    const sat_problem *p = w->p;
    place at = place_of(w->a, sat_line_of_group(line_count(w->a), e->step, e->seed, g));
    sat_true_line to = line_of(w, e, g);
    for (int64_t k = 0; k < p->k && at.cols > 0; k++) {
        sat_load_row(row, p->b_dtype, w->y, k * p->b.row_stride + at.col * p->b.col_stride, p->b.col_stride, at.cols);
        sat_true_add(&to, sat_load(p->a_dtype, w->x, at.row * p->a.row_stride + k * p->a.col_stride), row, at.cols);
    }
}

static sat_status expect(const sat_trial *t, sat_probe probe, uint64_t seed, void **out) {
    const sat_problem *p = t->problem;
    *out = NULL;
    if (probe == SAT_PROBE_STRUCTURE) return SAT_OK;
    expectation *e = allocate(p, t->pattern, seed);
    if (!e) return no_memory(t->pattern);
    bool memory = true;
    for (int64_t z = 0; z < p->batch; z++) {
        item w = make_item(t, z);
#pragma omp parallel num_threads(t->device->threads)
        {
            double *row = malloc((size_t)(w.a->block_cols + 1) * sizeof *row);
            if (!row) {
#pragma omp atomic write
                memory = false;
            }
#pragma omp for schedule(dynamic, 4)
            for (int64_t g = 0; g < e->groups; g++)
                if (row) true_line(&w, e, g, row);
            free(row);
        }
    }
    if (!memory) {
        free(e);
        return no_memory(t->pattern);
    }
    *out = e;
    return SAT_OK;
}

/* ---- comparing ---- */

/* beta*before of a line, and its squares; false where beta is 0. */
static bool rest_of(const item *w, int64_t line, int64_t cols, double *rest, double *squares) {
    if (!w->before) return false;
    sat_load_row(rest, w->p->c_dtype, w->before, line * w->a->block_cols, 1, cols);
    for (int64_t j = 0; j < cols; j++) rest[j] *= w->p->beta, squares[j] = rest[j] * rest[j];
    return true;
}

static void wrong(sat_finding *f, const place *at, int64_t j, double got, double want) {
    f->ok = false;
    snprintf(f->where, sizeof f->where, "block %lld, row %lld, column %lld: %.9g where %.9g is exact",
             (long long)at->block, (long long)at->row, (long long)(at->col + j), got, want);
}

/* What is planted in row i of X reaches all of its elements, what is in column j of Y one of each line. */
static void add_specials(const item *w, const place *at, double *sums) {
    const sat_problem *p = w->p;
    for (int i = 0; i < w->t->special_count; i++) {
        const sat_special *s = &w->t->specials[i];
        bool left = s->operand == 0;
        if (s->item != w->z && (left ? p->a.batch_stride : p->b.batch_stride) != 0) continue;
        if (left ? s->row != at->row : s->col < at->col || s->col >= at->col + at->cols) continue;
        int64_t k = left ? s->col : s->row, first = left ? at->col : s->col,
                end = left ? at->col + at->cols : first + 1;
        double x = sat_load(p->a_dtype, w->x, at->row * p->a.row_stride + k * p->a.col_stride);
        for (int64_t j = first; j < end; j++)
            sums[j - at->col] += x * sat_load(p->b_dtype, w->y, k * p->b.row_stride + j * p->b.col_stride);
    }
}

static void compare_line_exactly(const item *w, int64_t line, double *work, sat_finding *f) {
    const sat_problem *p = w->p;
    int64_t width = w->a->block_cols;
    place at = place_of(w->a, line);
    double *got = work, *want = got + width, *rest = want + width, *squares = rest + width;
    sat_load_row(got, p->c_dtype, w->s, line * width, 1, width);
    for (int64_t j = at.cols; j < width; j++)
        if (got[j] != 0) {
            wrong(f, &at, j, got[j], 0);
            return;
        }
    sat_load_row(want, p->compute_dtype, w->t->sums, (w->z * line_count(w->a) + line) * width, 1, at.cols);
    add_specials(w, &at, want);
    int64_t j = sat_compare_exact(p, got, want, rest_of(w, line, at.cols, rest, squares) ? rest : NULL, at.cols);
    if (j < at.cols) wrong(f, &at, j, got[j], want[j]);
}

static void compare_line_precisely(const item *w, const expectation *e, int64_t g, double *work, sat_finding *f,
                                   sat_squares *seen) {
    const sat_problem *p = w->p;
    int64_t line = sat_line_of_group(line_count(w->a), e->step, e->seed, g), width = w->a->block_cols;
    place at = place_of(w->a, line);
    double *got = work, *rest = got + width, *squares = rest + width, bound[2];
    sat_precision c = {.problem = p, .got = got, .line = line_of(w, e, g), .count = at.cols, .bound = bound};
    c.loss = sat_loss_of_sum(p, SAT_CPU, p->k, p->batch * e->groups * width);
    if (rest_of(w, line, at.cols, rest, squares)) c.rest = rest, c.rest_squares = squares;
    sat_load_row(got, p->c_dtype, w->s, line * width, 1, at.cols);
    int64_t j = sat_compare_precisely(&c, f, seen);
    if (j == at.cols || !f->ok) return;
    f->ok = false;
    snprintf(f->where, sizeof f->where, "block %lld, row %lld, column %lld: off by %.3g where rounding allows %.3g",
             (long long)at.block, (long long)at.row, (long long)(at.col + j), bound[1], bound[0]);
}

static sat_status compare(const sat_trial *t, const void *expectation_, sat_finding *finding) {
    const expectation *e = expectation_;
    bool memory = true;
    sat_squares squares = {0};
    *finding = (sat_finding){.ok = true};
    for (int64_t z = 0; z < t->problem->batch; z++) {
        item w = make_item(t, z);
#pragma omp parallel num_threads(t->device->threads)
        {
            double *work = malloc((size_t)(4 * w.a->block_cols + 1) * sizeof *work);
            sat_finding mine = {.ok = true};
            sat_squares seen = {0};
#pragma omp for schedule(dynamic, 64) nowait
            for (int64_t i = 0; i < (e ? e->groups : line_count(w.a)); i++) {
                if (!work || !mine.ok) continue;
                if (e) compare_line_precisely(&w, e, i, work, &mine, &seen);
                else compare_line_exactly(&w, i, work, &mine);
            }
#pragma omp critical(sat_sampled_check)
            {
                memory = memory && work;
                sat_squares_sum(&squares, &seen);
                sat_finding_add(finding, &mine);
            }
            free(work);
        }
    }
    sat_judge_squares(&squares, finding);
    return memory ? SAT_OK : no_memory(t->pattern);
}

/* ---- proving the sums ---- */

/* l^T*X_I of every block row, or Y_J*r of every block column: [groups][k], each line times its weight. */
static void fold(const item *w, bool right, uint64_t seed, uint64_t *to) {
    const sat_problem *p = w->p;
    const sat_layout *l = right ? &p->b : &p->a;
    const void *from = right ? w->y : w->x;
    sat_dtype type = right ? p->b_dtype : p->a_dtype;
    double scale = w->t->fills[right].scale;
    int64_t groups = right ? w->a->grid_cols : w->a->grid_rows, width = right ? w->a->block_cols : w->a->block_rows;
    int64_t lines = right ? p->n : p->m, line_step = right ? l->col_stride : l->row_stride;
    int64_t k_step = right ? l->row_stride : l->col_stride;
#pragma omp parallel for num_threads(w->t->device->threads) schedule(dynamic, 1)
    for (int64_t g = 0; g < groups; g++) {
        uint64_t *sum = to + g * p->k, row[CHUNK];
        double work[CHUNK];
        for (int64_t k = 0; k < p->k; k++) sum[k] = 0;
        for (int64_t k0 = 0; k0 < p->k; k0 += CHUNK) {
            int64_t depth = sat_min(CHUNK, p->k - k0);
            for (int64_t i = g * width; i < sat_min((g + 1) * width, lines); i++) {
                uint64_t weight = sat_mix(seed + (uint64_t)i);
                sat_integer_row(row, work, type, from, i * line_step + k0 * k_step, k_step, depth, scale);
                for (int64_t k = 0; k < depth; k++) sum[k0 + k] += weight * row[k];
            }
        }
    }
}

static bool block_is_right(const item *w, int64_t g, int64_t t, const uint64_t *left, const uint64_t *right,
                           uint64_t seed) {
    const sat_problem *p = w->p;
    const sat_pattern_view *a = w->a;
    double scale = w->t->fills[0].scale * w->t->fills[1].scale;
    int64_t column = a->col_idx[t] * a->block_cols, cols = sat_min(a->block_cols, a->cols - column);
    uint64_t got = 0, value;
    bool integer = true;
    for (int64_t i = 0; i < sat_min(a->block_rows, a->rows - g * a->block_rows); i++) {
        uint64_t row = 0;
        for (int64_t j = 0; j < cols; j++) {
            int64_t at = ((w->z * a->stored_blocks + t) * a->block_rows + i) * a->block_cols + j;
            integer &= sat_integer(sat_load(p->compute_dtype, w->t->sums, at), scale, &value);
            row += value * sat_mix(~seed + (uint64_t)(column + j));
        }
        got += row * sat_mix(seed + (uint64_t)(g * a->block_rows + i));
    }
    return integer && got == sat_dot_modular(left + g * p->k, right + a->col_idx[t] * p->k, p->k);
}

static sat_status prove(const sat_trial *t, uint64_t seed, sat_finding *finding) {
    const sat_problem *p = t->problem;
    const sat_pattern_view *a = t->pattern;
    uint64_t *left = malloc((size_t)((a->grid_rows + a->grid_cols) * p->k + 1) * sizeof *left);
    if (!left) return no_memory(a);
    uint64_t *right = left + a->grid_rows * p->k;
    int64_t first = a->stored_blocks;
    *finding = (sat_finding){.ok = true};
    for (int64_t z = 0; z < p->batch && finding->ok; z++) {
        item w = make_item(t, z);
        fold(&w, false, seed, left);
        fold(&w, true, ~seed, right);
#pragma omp parallel for num_threads(t->device->threads) schedule(dynamic, 4) reduction(min : first)
        for (int64_t g = 0; g < a->grid_rows; g++)
            for (int64_t b = a->row_ptr[g]; b < a->row_end[g]; b++)
                if (!block_is_right(&w, g, b, left, right, seed) && b < first) first = b;
        if (first == a->stored_blocks) continue;
        finding->ok = false;
        snprintf(finding->where, sizeof finding->where, "the sums of block %lld are not those of X*Y",
                 (long long)first);
    }
    free(left);
    return SAT_OK;
}

const sat_checker sat_sampled_check = {
    .bytes = bytes, .expect = expect, .compare = compare, .free = free_expectation, .prove = prove};
