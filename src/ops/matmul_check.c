/* Checks a matmul's result on the host. check.h has the two kinds of operands and the arithmetic of the bounds.
 *
 *   structure   every element against its sum, which another variant has worked out in the compute type and a random
 *               vector r has proven: (op(A)*B)*r = op(A)*(B*r), in integers modulo 2^64
 *   precision   every element of some rows against sums in twice the precision */
#include <stdlib.h>

#include "ops/check.h"

enum { WORK = 150 * 1000 * 1000 }; /* multiply-adds for rows that are worked out */

typedef struct expectation {
    uint64_t seed;
    int64_t step, groups;        /* one row of `step` */
    int64_t *depth;              /* of each row that is worked out */
    double *sum, *low, *squares; /* [batch][groups][n]; low: where the compute type is f64 */
    double memory[];
} expectation;

static int64_t step_of(const sat_problem *p, const sat_pattern_view *a) {
    double dear = p->compute_dtype == SAT_F64 ? 4 : 1;
    return sat_line_step(p->m, dear * (double)a->stored_elements * (double)p->n * (double)p->batch, WORK);
}

static int64_t expected_elements(const sat_problem *p, const sat_pattern_view *a) {
    return p->batch * sat_line_groups(p->m, step_of(p, a)) * p->n;
}

static size_t bytes(const sat_problem *p, const sat_pattern_view *a, sat_probe probe) {
    if (probe == SAT_PROBE_STRUCTURE) return 4096;
    return (size_t)(3 * expected_elements(p, a) + p->m) * sizeof(double) + 4096;
}

static void free_expectation(void *e) { free(e); }

static expectation *allocate(const sat_problem *p, const sat_pattern_view *a, uint64_t seed) {
    int64_t step = step_of(p, a), groups = sat_line_groups(p->m, step), count = p->batch * groups * p->n;
    expectation *e = calloc(1, sizeof *e + (size_t)(3 * count + groups) * sizeof(double));
    if (!e) return NULL;
    e->seed = seed, e->step = step, e->groups = groups;
    e->sum = e->memory, e->squares = e->sum + count;
    e->low = p->compute_dtype == SAT_F64 ? e->squares + count : NULL;
    e->depth = (int64_t *)(void *)(e->squares + 2 * count);
    return e;
}

static sat_status no_memory(const sat_problem *p) {
    return sat_fail(SAT_OUT_OF_MEMORY, "check: rows of a %lld x %lld output", (long long)p->m, (long long)p->n);
}

static int64_t row_of(const expectation *e, int64_t m, int64_t g) { return sat_line_of_group(m, e->step, e->seed, g); }

static sat_true_line line_of(const sat_problem *p, const expectation *e, int64_t z, int64_t g) {
    int64_t at = (z * e->groups + g) * p->n;
    return (sat_true_line){e->sum + at, e->low ? e->low + at : NULL, e->squares + at};
}

/* ---- precision: rows of true sums ---- */

typedef struct item { /* one of the batch */
    const sat_trial *t;
    const sat_problem *p;
    sat_rows r;
    int64_t z;
    const void *values, *b, *c, *before, *bias;
} item;

static item make_item(const sat_trial *t, int64_t z) {
    const sat_problem *p = t->problem;
    item x = {.t = t, .p = p, .r = sat_op_rows(p, t->pattern), .z = z};
    x.values = sat_at(p->a_dtype, t->operands[0], z * p->a.batch_stride);
    x.b = sat_at(p->b_dtype, t->operands[1], z * p->b.batch_stride);
    x.c = sat_at(p->c_dtype, t->operands[2], z * p->c.batch_stride);
    x.before = t->before ? sat_at(p->c_dtype, t->before, z * p->c.batch_stride) : NULL;
    x.bias = p->matmul.bias == SAT_BIAS_ROW ? t->operands[3] : NULL;
    return x;
}

/* Where element (i, k0 + k) of op(A) is, for a block of row i's block row. */
static int64_t value_at(const sat_rows *r, int64_t t, int64_t i, int64_t k) {
    return sat_block_of(r, t) * r->block_elements + i % r->br * r->row_step + k * r->col_step;
}

static int64_t true_row(const item *x, int64_t i, const sat_true_line *to, double *row) {
    const sat_problem *p = x->p;
    const sat_rows *r = &x->r;
    int64_t depth = 0;
    for (int64_t t = r->ptr[i / r->br]; t < r->end[i / r->br]; t++) {
        int64_t k0 = r->col[t] * r->bc, cols = sat_min(r->bc, r->k - k0);
        for (int64_t k = 0; k < cols; k++) {
            sat_load_row(row, p->b_dtype, x->b, (k0 + k) * p->b.row_stride, p->b.col_stride, p->n);
            sat_true_add(to, sat_load(p->a_dtype, x->values, value_at(r, t, i, k)), row, p->n);
        }
        depth += cols;
    }
    return depth;
}

static sat_status expect(const sat_trial *t, sat_probe probe, uint64_t seed, void **out) {
    const sat_problem *p = t->problem;
    *out = NULL;
    if (probe == SAT_PROBE_STRUCTURE) return SAT_OK;
    expectation *e = allocate(p, t->pattern, seed);
    if (!e) return no_memory(p);
    bool memory = true;
    for (int64_t z = 0; z < p->batch; z++) {
        item x = make_item(t, z);
#pragma omp parallel num_threads(t->device->threads)
        {
            double *row = malloc((size_t)(p->n + 1) * sizeof *row);
            if (!row) {
#pragma omp atomic write
                memory = false;
            }
#pragma omp for schedule(dynamic, 1)
            for (int64_t g = 0; g < e->groups; g++) {
                sat_true_line line = line_of(p, e, z, g);
                if (row) e->depth[g] = true_row(&x, row_of(e, p->m, g), &line, row);
            }
            free(row);
        }
    }
    if (!memory) {
        free(e);
        return no_memory(p);
    }
    *out = e;
    return SAT_OK;
}

/* ---- comparing ---- */

/* beta*before + bias of a row, and the squares of both; false where there is neither. */
static bool rest_of(const item *x, int64_t i, double *rest, double *squares) {
    const sat_problem *p = x->p;
    if (!x->before && !x->bias) return false;
    double bias = x->bias ? sat_load(p->c_dtype, x->bias, i) : 0;
    for (int64_t j = 0; j < p->n; j++) rest[j] = 0;
    if (x->before) sat_load_row(rest, p->c_dtype, x->before, i * p->c.row_stride, p->c.col_stride, p->n);
    for (int64_t j = 0; j < p->n; j++) {
        double before = p->beta * rest[j];
        rest[j] = before + bias, squares[j] = before * before + bias * bias;
    }
    return true;
}

/* What is planted in column j of B reaches row i through its stored blocks, and zeros in them: 0*Inf is NaN. */
static void add_specials(const item *x, int64_t i, double *sums) {
    const sat_rows *r = &x->r;
    for (int s = 0; s < x->t->special_count; s++) {
        const sat_special *at = &x->t->specials[s];
        int64_t t = sat_find_block(r, i / r->br, at->row / r->bc);
        if (t < 0 || (at->item != x->z && x->p->b.batch_stride != 0)) continue;
        sums[at->col] += sat_load(x->p->a_dtype, x->values, value_at(r, t, i, at->row % r->bc)) * at->value;
    }
}

static void compare_row_exactly(const item *x, int64_t i, double *work, sat_finding *f) {
    const sat_problem *p = x->p;
    double *got = work, *want = got + p->n, *rest = want + p->n, *squares = rest + p->n;
    sat_load_row(got, p->c_dtype, x->c, i * p->c.row_stride, p->c.col_stride, p->n);
    sat_load_row(want, p->compute_dtype, x->t->sums, (x->z * p->m + i) * p->n, 1, p->n);
    add_specials(x, i, want);
    int64_t j = sat_compare_exact(p, got, want, rest_of(x, i, rest, squares) ? rest : NULL, p->n);
    if (j == p->n) return;
    f->ok = false;
    snprintf(f->where, sizeof f->where, "row %lld, column %lld: %.9g where %.9g is exact", (long long)i, (long long)j,
             got[j], want[j]);
}

static void compare_row_precisely(const item *x, const expectation *e, int64_t g, double *work, sat_finding *f,
                                  sat_squares *seen) {
    const sat_problem *p = x->p;
    int64_t i = row_of(e, p->m, g);
    double *got = work, *rest = got + p->n, *squares = rest + p->n, bound[2];
    sat_precision c = {.problem = p, .got = got, .line = line_of(p, e, x->z, g), .count = p->n, .bound = bound};
    c.loss = sat_loss_of_sum(p, SAT_CPU, e->depth[g], p->batch * e->groups * p->n);
    if (rest_of(x, i, rest, squares)) c.rest = rest, c.rest_squares = squares;
    sat_load_row(got, p->c_dtype, x->c, i * p->c.row_stride, p->c.col_stride, p->n);
    int64_t j = sat_compare_precisely(&c, f, seen);
    if (j == p->n || !f->ok) return;
    f->ok = false;
    snprintf(f->where, sizeof f->where, "row %lld, column %lld: off by %.3g where rounding allows %.3g", (long long)i,
             (long long)j, bound[1], bound[0]);
}

static sat_status compare(const sat_trial *t, const void *expectation_, sat_finding *finding) {
    const expectation *e = expectation_;
    const sat_problem *p = t->problem;
    bool memory = true;
    sat_squares squares = {0};
    *finding = (sat_finding){.ok = true};
    for (int64_t z = 0; z < p->batch; z++) {
        item x = make_item(t, z);
#pragma omp parallel num_threads(t->device->threads)
        {
            double *work = malloc((size_t)(4 * p->n + 1) * sizeof *work);
            sat_finding mine = {.ok = true};
            sat_squares seen = {0};
#pragma omp for schedule(dynamic, 8) nowait
            for (int64_t i = 0; i < (e ? e->groups : p->m); i++) {
                if (!work || !mine.ok) continue;
                if (e) compare_row_precisely(&x, e, i, work, &mine, &seen);
                else compare_row_exactly(&x, i, work, &mine);
            }
#pragma omp critical(sat_matmul_check)
            {
                memory = memory && work;
                sat_squares_sum(&squares, &seen);
                sat_finding_add(finding, &mine);
            }
            free(work);
        }
    }
    sat_judge_squares(&squares, finding);
    return memory ? SAT_OK : no_memory(p);
}

/* ---- proving the sums ---- */

/* What row i of the sums times r must be: row i of op(A) times `folded` = B*r. */
static uint64_t proven_row(const item *x, int64_t i, const uint64_t *folded, bool *integer) {
    const sat_problem *p = x->p;
    const sat_rows *r = &x->r;
    uint64_t sum = 0, value;
    for (int64_t t = r->ptr[i / r->br]; t < r->end[i / r->br]; t++) {
        int64_t k0 = r->col[t] * r->bc, cols = sat_min(r->bc, r->k - k0);
        for (int64_t k = 0; k < cols; k++) {
            *integer &=
                sat_integer(sat_load(p->a_dtype, x->values, value_at(r, t, i, k)), x->t->fills[0].scale, &value);
            sum += value * folded[k0 + k];
        }
    }
    return sum;
}

/* Memory: r, B*r. */
static int64_t first_wrong_row(const item *x, uint64_t seed, uint64_t *memory) {
    const sat_problem *p = x->p;
    const sat_fill *fill = x->t->fills;
    uint64_t *weights = memory, *folded = memory + p->n;
    double scale = fill[0].scale * fill[1].scale;
    int64_t wrong = p->m;
    bool memory_left = true;
    for (int64_t j = 0; j < p->n; j++) weights[j] = sat_mix(seed + (uint64_t)j);
#pragma omp parallel num_threads(x->t->device->threads)
    {
        uint64_t *row = malloc((size_t)(2 * p->n + 1) * sizeof *row);
        double *work = row ? (double *)(void *)(row + p->n) : NULL;
        if (!row) {
#pragma omp atomic write
            memory_left = false;
        }
#pragma omp for schedule(static)
        for (int64_t k = 0; k < p->k; k++) {
            if (!row) continue;
            sat_integer_row(row, work, p->b_dtype, x->b, k * p->b.row_stride, p->b.col_stride, p->n, fill[1].scale);
            folded[k] = sat_dot_modular(row, weights, p->n);
        }
#pragma omp for schedule(dynamic, 8) reduction(min : wrong)
        for (int64_t i = 0; i < p->m; i++) {
            bool integer = row != NULL;
            if (!row) continue;
            integer &=
                sat_integer_row(row, work, p->compute_dtype, x->t->sums, (x->z * p->m + i) * p->n, 1, p->n, scale);
            uint64_t got = sat_dot_modular(row, weights, p->n), want = proven_row(x, i, folded, &integer);
            if ((!integer || got != want) && i < wrong) wrong = i;
        }
        free(row);
    }
    return memory_left ? wrong : -1;
}

static sat_status prove(const sat_trial *t, uint64_t seed, sat_finding *finding) {
    const sat_problem *p = t->problem;
    uint64_t *memory = malloc((size_t)(p->n + p->k + 1) * sizeof *memory);
    sat_status status = memory ? SAT_OK : no_memory(p);
    *finding = (sat_finding){.ok = true};
    for (int64_t z = 0; z < p->batch && status == SAT_OK && finding->ok; z++) {
        item x = make_item(t, z);
        int64_t wrong = first_wrong_row(&x, seed + (uint64_t)z * 7919, memory);
        if (wrong < 0) status = no_memory(p);
        else if (wrong < p->m) {
            finding->ok = false;
            snprintf(finding->where, sizeof finding->where, "the sums of row %lld are not those of A*B",
                     (long long)wrong);
        }
    }
    free(memory);
    return status;
}

const sat_checker sat_matmul_check = {
    .bytes = bytes, .expect = expect, .compare = compare, .free = free_expectation, .prove = prove};
