/* Checks a grouped product, or the gradient of its weights, on the host, as matmul_check.c does a matmul. A line is a
 * row of Y, or a row of one W of the gradient: a sum over some rows of the second factor, each times an element of X.
 *
 *   structure   every element against its sum; sums are proven by a random vector r: L*r = sum of x * (row*r)
 *   precision   every element of some lines against sums in twice the precision */
#include <stdlib.h>

#include "ops/grouped_lines.h"

enum { WORK = 150 * 1000 * 1000 };

typedef sat_grouped_terms terms;

typedef struct lines {
    const sat_trial *t;
    sat_grouped_lines of;
    int64_t *offsets;
} lines;

static sat_status no_memory(const sat_problem *p) {
    return sat_fail(SAT_OUT_OF_MEMORY, "check: lines of a %lld x %lld product of groups", (long long)p->m,
                    (long long)p->n);
}

static sat_status open_lines(lines *w, const sat_trial *t) {
    const sat_problem *p = t->problem;
    *w = (lines){.t = t, .offsets = malloc((size_t)(p->grouped.groups + 1) * sizeof(int64_t))};
    if (!w->offsets) return no_memory(p);
    (void)sat_groups_take(p, t->operands[3], w->offsets);
    w->of = sat_grouped_lines_of(t, w->offsets);
    return SAT_OK;
}

/* ---- precision: lines of true sums ---- */

typedef struct expectation {
    uint64_t seed;
    int64_t step, chosen;        /* one line of `step` */
    double *sum, *low, *squares; /* [chosen][n]; low: where the compute type is f64 */
    double memory[];
} expectation;

static int64_t step_of(const sat_problem *p) {
    double dear = p->compute_dtype == SAT_F64 ? 4 : 1;
    return sat_line_step(sat_grouped_line_count(p), dear * (double)p->m * (double)p->n * (double)p->k, WORK);
}

static size_t bytes(const sat_problem *p, const sat_pattern_view *a, sat_probe probe) {
    (void)a;
    if (probe == SAT_PROBE_STRUCTURE) return 4096;
    return (size_t)(3 * sat_line_groups(sat_grouped_line_count(p), step_of(p)) * p->n) * sizeof(double) + 4096;
}

static void free_expectation(void *e) { free(e); }

static expectation *allocate(const sat_problem *p, uint64_t seed) {
    int64_t step = step_of(p), chosen = sat_line_groups(sat_grouped_line_count(p), step), count = chosen * p->n;
    expectation *e = calloc(1, sizeof *e + (size_t)(3 * count) * sizeof(double));
    if (!e) return NULL;
    e->seed = seed, e->step = step, e->chosen = chosen;
    e->sum = e->memory, e->squares = e->sum + count;
    e->low = p->compute_dtype == SAT_F64 ? e->squares + count : NULL;
    return e;
}

static int64_t chosen_line(const lines *w, const expectation *e, int64_t i) {
    return sat_line_of_group(w->of.count, e->step, e->seed, i);
}

static sat_true_line true_line(const lines *w, const expectation *e, int64_t i) {
    int64_t at = i * w->of.width;
    return (sat_true_line){e->sum + at, e->low ? e->low + at : NULL, e->squares + at};
}

static void work_out_line(const lines *w, const expectation *e, int64_t i, double *row) {
    terms s = sat_grouped_terms_of(&w->of, chosen_line(w, e, i));
    sat_true_line to = true_line(w, e, i);
    for (int64_t j = 0; j < s.count; j++) {
        sat_load_row(row, w->of.p.b_dtype, w->of.factor, s.row + j * s.row_step, w->of.p.b.col_stride, w->of.width);
        sat_true_add(&to, sat_load(w->of.p.a_dtype, w->of.x, s.x + j * s.x_step), row, w->of.width);
    }
}

static sat_status expect(const sat_trial *t, sat_probe probe, uint64_t seed, void **out) {
    *out = NULL;
    if (probe == SAT_PROBE_STRUCTURE) return SAT_OK;
    lines w;
    SAT_TRY(open_lines(&w, t));
    expectation *e = allocate(t->problem, seed);
    bool memory = e != NULL;
#pragma omp parallel num_threads(t->device->threads) if (memory)
    {
        double *row = malloc((size_t)(w.of.width + 1) * sizeof *row);
        if (!row) {
#pragma omp atomic write
            memory = false;
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < (e ? e->chosen : 0); i++)
            if (row) work_out_line(&w, e, i, row);
        free(row);
    }
    free(w.offsets);
    if (!memory) {
        free(e);
        return no_memory(t->problem);
    }
    *out = e;
    return SAT_OK;
}

/* ---- comparing ---- */

/* beta*before + bias of a line, and the squares of both; false where there is neither. */
static bool rest_of(const lines *w, int64_t line, int64_t group, double *rest, double *squares) {
    const sat_problem *p = &w->of.p;
    const void *bias = group >= 0 ? w->of.bias : NULL;
    if (!w->of.before && !bias) return false;
    for (int64_t j = 0; j < w->of.width; j++) rest[j] = 0;
    if (w->of.before)
        sat_load_row(rest, p->c_dtype, w->of.before, sat_grouped_out_at(&w->of, line), p->c.col_stride, w->of.width);
    for (int64_t j = 0; j < w->of.width; j++) {
        double before = p->beta * rest[j], other = bias ? sat_load(p->c_dtype, bias, group * w->of.width + j) : 0;
        rest[j] = before + other, squares[j] = before * before + other * other;
    }
    return true;
}

static void add_specials(const lines *w, int64_t line, const terms *s, double *sums) {
    const sat_problem *p = &w->of.p;
    for (int i = 0; i < w->t->special_count; i++) {
        const sat_special *at = &w->t->specials[i];
        bool in_x = at->operand == 0;
        int64_t number = sat_grouped_special_term(&w->of, line, s, at);
        if (number < 0) continue;
        double x = sat_load(p->a_dtype, w->of.x, s->x + number * s->x_step);
        for (int64_t j = in_x ? 0 : at->col; j < (in_x ? w->of.width : at->col + 1); j++)
            sums[j] += x * sat_load(p->b_dtype, w->of.factor, s->row + number * s->row_step + j * p->b.col_stride);
    }
}

static void place(const lines *w, int64_t line, int64_t j, char *text, size_t size) {
    if (!w->of.weights) snprintf(text, size, "row %lld, column %lld", (long long)line, (long long)j);
    else
        snprintf(text, size, "group %lld, row %lld, column %lld", (long long)(line / w->of.p.k),
                 (long long)(line % w->of.p.k), (long long)j);
}

static void compare_exactly(const lines *w, int64_t line, double *work, sat_finding *f) {
    const sat_problem *p = &w->of.p;
    double *got = work, *want = got + w->of.width, *rest = want + w->of.width, *squares = rest + w->of.width;
    terms s = sat_grouped_terms_of(&w->of, line);
    char where[96];
    sat_load_row(got, p->c_dtype, w->of.out, sat_grouped_out_at(&w->of, line), p->c.col_stride, w->of.width);
    sat_load_row(want, p->compute_dtype, w->t->sums, line * w->of.width, 1, w->of.width);
    add_specials(w, line, &s, want);
    bool more = rest_of(w, line, s.group, rest, squares);
    int64_t j = sat_compare_exact(&w->of.like, got, want, more ? rest : NULL, w->of.width);
    if (j == w->of.width) return;
    f->ok = false;
    place(w, line, j, where, sizeof where);
    snprintf(f->where, sizeof f->where, "%s: %.9g where %.9g is exact", where, got[j], want[j]);
}

static void compare_precisely(const lines *w, const expectation *e, int64_t i, double *work, sat_finding *f,
                              sat_squares *seen) {
    const sat_problem *p = &w->of.p;
    int64_t line = chosen_line(w, e, i);
    terms s = sat_grouped_terms_of(&w->of, line);
    double *got = work, *rest = got + w->of.width, *squares = rest + w->of.width, bound[2];
    sat_precision c = {
        .problem = &w->of.like, .got = got, .line = true_line(w, e, i), .count = w->of.width, .bound = bound};
    char where[96];
    c.loss = sat_grouped_loss(&w->of, SAT_CPU, s.count, e->chosen * w->of.width);
    if (rest_of(w, line, s.group, rest, squares)) c.rest = rest, c.rest_squares = squares;
    sat_load_row(got, p->c_dtype, w->of.out, sat_grouped_out_at(&w->of, line), p->c.col_stride, w->of.width);
    int64_t j = sat_compare_precisely(&c, f, seen);
    if (j == w->of.width || !f->ok) return;
    f->ok = false;
    place(w, line, j, where, sizeof where);
    snprintf(f->where, sizeof f->where, "%s: off by %.3g where rounding allows %.3g", where, bound[1], bound[0]);
}

static sat_status compare(const sat_trial *t, const void *expectation_, sat_finding *finding) {
    const expectation *e = expectation_;
    lines w;
    SAT_TRY(open_lines(&w, t));
    bool memory = true;
    sat_squares squares = {0};
    *finding = (sat_finding){.ok = true};
#pragma omp parallel num_threads(t->device->threads)
    {
        double *work = malloc((size_t)(4 * w.of.width + 1) * sizeof *work);
        sat_finding mine = {.ok = true};
        sat_squares seen = {0};
#pragma omp for schedule(dynamic, 8) nowait
        for (int64_t i = 0; i < (e ? e->chosen : w.of.count); i++) {
            if (!work || !mine.ok) continue;
            if (e) compare_precisely(&w, e, i, work, &mine, &seen);
            else compare_exactly(&w, i, work, &mine);
        }
#pragma omp critical(sat_grouped_check)
        {
            memory = memory && work;
            sat_squares_sum(&squares, &seen);
            sat_finding_add(finding, &mine);
        }
        free(work);
    }
    free(w.offsets);
    sat_judge_squares(&squares, finding);
    return memory ? SAT_OK : no_memory(t->problem);
}

/* ---- proving the sums ---- */

static uint64_t proven_line(const lines *w, int64_t line, const uint64_t *folded, bool *integer) {
    terms s = sat_grouped_terms_of(&w->of, line);
    uint64_t sum = 0, value;
    for (int64_t j = 0; j < s.count; j++) {
        double x = sat_load(w->of.p.a_dtype, w->of.x, s.x + j * s.x_step);
        *integer &= sat_integer(x, w->t->fills[0].scale, &value);
        sum += value * folded[s.first + j];
    }
    return sum;
}

/* `memory` has room for r and for every row times r. */
static int64_t first_wrong_line(const lines *w, uint64_t seed, uint64_t *memory) {
    const sat_fill *fill = w->t->fills;
    uint64_t *weights = memory, *folded = memory + w->of.width;
    double scale = fill[0].scale * fill[1].scale;
    int64_t wrong = w->of.count;
    bool memory_left = true;
    for (int64_t j = 0; j < w->of.width; j++) weights[j] = sat_mix(seed + (uint64_t)j);
#pragma omp parallel num_threads(w->t->device->threads)
    {
        uint64_t *row = malloc((size_t)(2 * w->of.width + 1) * sizeof *row);
        double *work = row ? (double *)(void *)(row + w->of.width) : NULL;
        if (!row) {
#pragma omp atomic write
            memory_left = false;
        }
#pragma omp for schedule(static)
        for (int64_t r = 0; r < w->of.rows; r++) {
            if (!row) continue;
            sat_integer_row(row, work, w->of.p.b_dtype, w->of.factor, sat_grouped_row_at(&w->of, r),
                            w->of.p.b.col_stride, w->of.width, fill[1].scale);
            folded[r] = sat_dot_modular(row, weights, w->of.width);
        }
#pragma omp for schedule(dynamic, 8) reduction(min : wrong)
        for (int64_t i = 0; i < w->of.count; i++) {
            bool integer = row != NULL;
            if (!row) continue;
            integer &=
                sat_integer_row(row, work, w->of.p.compute_dtype, w->t->sums, i * w->of.width, 1, w->of.width, scale);
            uint64_t got = sat_dot_modular(row, weights, w->of.width), want = proven_line(w, i, folded, &integer);
            if ((!integer || got != want) && i < wrong) wrong = i;
        }
        free(row);
    }
    return memory_left ? wrong : -1;
}

static sat_status prove(const sat_trial *t, uint64_t seed, sat_finding *finding) {
    lines w;
    SAT_TRY(open_lines(&w, t));
    *finding = (sat_finding){.ok = true};
    uint64_t *memory = malloc((size_t)(w.of.width + w.of.rows + 1) * sizeof *memory);
    int64_t wrong = memory ? first_wrong_line(&w, seed, memory) : -1;
    free(memory), free(w.offsets);
    if (wrong < 0) return no_memory(t->problem);
    if (wrong == w.of.count) return SAT_OK;
    finding->ok = false;
    snprintf(finding->where, sizeof finding->where, "the sums of line %lld are not those of its group",
             (long long)wrong);
    return SAT_OK;
}

const sat_checker sat_grouped_check = {
    .bytes = bytes, .expect = expect, .compare = compare, .free = free_expectation, .prove = prove};
