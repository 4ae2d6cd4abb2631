/* The winner's last checks. In turn they change all inputs with their magnitude and addresses, the threads, the
 * scalars, the pattern, the calling thread. A second runner of the same variant stays open all the while. */
#include "core/confirm.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/pattern.h"
#include "variant.h"

/* What every check below is given. */
typedef struct confirmation {
    sat_bench *bench;
    sat_runner *runner;
    size_t limit;
    uint64_t seed;
    sat_finding *finding;
} confirmation;

static sat_status run(confirmation *t, sat_runner *runner) {
    const sat_backend *b = t->bench->ctx->backend;
    void *stream = b->stream(&runner->device);
    SAT_TRY(sat_bench_reset(t->bench));
    SAT_TRY(sat_runner_spoil_workspace(runner, 0xa5));
    SAT_TRY(sat_runner_launch(runner, t->bench->pointer, stream));
    return b->sync(&runner->device, stream);
}

typedef struct errand {
    confirmation *confirmation;
    sat_runner *runner;
    sat_status status;
    char message[256];
} errand;

static sat_status run_here(void *user) {
    errand *e = user;
    return run(e->confirmation, e->runner);
}

/* A run on a thread of its own: what a variant keeps for the thread that prepared it is not there. */
static void *run_errand(void *user) {
    errand *e = user;
    e->status = run(e->confirmation, e->runner);
    if (e->status != SAT_OK) snprintf(e->message, sizeof e->message, "%s", sat_last_error());
    return NULL;
}

static sat_status run_on_another_thread(confirmation *t, sat_runner *runner) {
    errand e = {.confirmation = t, .runner = runner};
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_errand, &e) != 0) return run(t, runner); /* none can be started */
    pthread_join(thread, NULL);
    return e.status == SAT_OK ? SAT_OK : sat_fail(e.status, "%s", e.message);
}

/* Checks a run in which `what` was changed, in words. */
static sat_status look(confirmation *t, const char *what) {
    char where[sizeof t->finding->where];
    SAT_TRY(sat_bench_check(t->bench, t->finding));
    if (t->finding->ok) return SAT_OK;
    memcpy(where, t->finding->where, sizeof where);
    snprintf(t->finding->where, sizeof t->finding->where, "%s: %.*s", what, 110, where);
    return SAT_OK;
}

static sat_status check(confirmation *t, sat_runner *runner, const char *what) {
    SAT_TRY(run(t, runner));
    return look(t, what);
}

/* ---- one change each ---- */

static const sat_check_case large_and_tiny[] = {{SAT_PROBE_STRUCTURE, SAT_FILL_LARGE, "with large and tiny inputs"},
                                                {0}};
static const sat_check_case usual_other_pattern = {SAT_PROBE_STRUCTURE, SAT_FILL_TINY,
                                                   "on a pattern with empty and full rows"};

static sat_status other_inputs(confirmation *t) {
    const sat_check_case *cases = t->bench->op->winner_cases ? t->bench->op->winner_cases : large_and_tiny;
    sat_bench_move(t->bench); /* other addresses, too */
    for (const sat_check_case *c = cases; c->label && t->finding->ok; c++) {
        t->runner->refreshed = false;
        SAT_TRY(sat_bench_fill(t->bench, c->probe, c->fill_case, t->seed + (uint64_t)c->fill_case));
        SAT_TRY(check(t, t->runner, c->label));
    }
    return SAT_OK;
}

/* Where the program itself is in a parallel region, OpenMP has one thread, however many are asked for. */
static sat_status in_a_region(confirmation *t) {
    const sat_backend *b = t->bench->ctx->backend;
    if (!b->run_in_region) return SAT_OK;
    SAT_TRY(b->run_in_region(run_here, &(errand){.confirmation = t, .runner = t->runner}));
    return look(t, "in a parallel region");
}

static sat_status other_threads(confirmation *t) {
    int before = t->runner->most_threads;
    if (t->bench->ctx->backend->threads(0) <= 1) return SAT_OK;
    t->runner->most_threads = before == 1 ? 0 : 1;
    sat_status status = check(t, t->runner, before == 1 ? "on all threads" : "on one thread");
    t->runner->most_threads = 0;
    if (status == SAT_OK && t->finding->ok) status = in_a_region(t);
    t->runner->most_threads = before;
    return status;
}

/* The same with other scalars, by a runner of its own; `c` says on which operands, NULL: on those that are there. */
static sat_status with_scalars(confirmation *t, double alpha, double beta, const sat_check_case *c) {
    const sat_problem *raced = t->bench->problem;
    sat_problem changed = *raced;
    sat_runner second;
    changed.alpha = alpha, changed.beta = beta;
    if (!sat_variant_fits(t->runner->variant, &changed, t->bench->run_with, t->bench->device)) return SAT_OK;
    sat_status status = sat_runner_open(&second, t->bench->ctx, t->runner->variant, &changed, t->bench->run_with,
                                        t->bench->device, t->limit, NULL);
    if (status != SAT_OK) return status == SAT_OUT_OF_MEMORY ? SAT_OK : status;
    t->bench->problem = &changed;
    status = c ? sat_bench_fill(t->bench, c->probe, c->fill_case, t->seed + 7) : SAT_OK;
    if (status == SAT_OK) status = check(t, &second, c ? c->label : "with other scalars");
    t->bench->problem = raced;
    sat_runner_close(&second);
    return status;
}

/* A key has scalars as 0, 1 or another; the race ran with one of those others, of few bits so that sums stay exact. */
static sat_status other_scalars(confirmation *t) {
    static const sat_check_case reals = {SAT_PROBE_PRECISION, 0, "with scalars of many bits"};
    const sat_problem *raced = t->bench->problem;
    const sat_check_case *scaled = t->bench->op->other_scale;
    bool alpha = raced->alpha != 0 && raced->alpha != 1, beta = raced->beta != 0 && raced->beta != 1;
    if (scaled) return with_scalars(t, 1.5 * raced->alpha, raced->beta, scaled);
    if (!alpha && !beta) return SAT_OK;
    /* A beta above 1, and one below 0. */
    SAT_TRY(with_scalars(t, !alpha ? raced->alpha : raced->alpha == -1 ? 2.5 : -1, beta ? -0.5 : raced->beta, NULL));
    if (!t->finding->ok) return SAT_OK;
    return with_scalars(t, alpha ? -1.2343 : raced->alpha, beta ? 2.7071 : raced->beta, &reals);
}

/* What a dense product makes of them differs, and may: it wins only where the problem allows that. */
static sat_status not_finite(confirmation *t) {
    if (t->runner->variant->flags & SAT_V_DENSE) return SAT_OK;
    SAT_TRY(sat_bench_plant(t->bench));
    return t->bench->special_count > 0 ? check(t, t->runner, "with NaN and infinities in an input") : SAT_OK;
}

static int64_t fill_row(const sat_pattern_view *a, int64_t i, int64_t left, int64_t *row_ptr) {
    row_ptr[i + 1] = sat_min(left, a->grid_cols);
    return left - row_ptr[i + 1];
}

/* As many blocks in the same grid, but in full rows, with empty ones between and at both ends as far as there are any.
 * `first`: the parity of the rows that are filled first; the last row that has blocks has its first columns, or its
 * last. */
static void lay_blocks(const sat_pattern_view *a, int64_t first, int64_t *row_ptr, int64_t *col_idx) {
    int64_t left = a->stored_blocks, last = a->grid_rows - 1;
    row_ptr[0] = 0;
    for (int64_t pass = 0; pass < 2; pass++)
        for (int64_t i = 1 + (first + pass) % 2; i < last; i += 2) left = fill_row(a, i, left, row_ptr);
    if (last > 0) left = fill_row(a, first ? 0 : last, left, row_ptr);
    (void)fill_row(a, first ? last : 0, left, row_ptr);
    for (int64_t i = 0; i < a->grid_rows; i++) {
        int64_t count = row_ptr[i + 1], start = first ? 0 : a->grid_cols - count;
        row_ptr[i + 1] += row_ptr[i];
        for (int64_t j = 0; j < count; j++) col_idx[row_ptr[i] + j] = start + j;
    }
}

static bool same_blocks(const sat_pattern_view *a, const int64_t *row_ptr, const int64_t *col_idx) {
    bool same = true;
    for (int64_t i = 0; i <= a->grid_rows; i++) same = same && a->row_ptr[i] == row_ptr[i];
    for (int64_t i = 0; i < a->stored_blocks; i++) same = same && a->col_idx[i] == col_idx[i];
    return same;
}

/* NULL where there is no such pattern but the raced one, or it would want sequences. */
static sat_status skewed(const sat_bench *s, sat_pattern **pattern) {
    const sat_pattern_view *a = s->pattern;
    int64_t *row_ptr = malloc((size_t)(a->grid_rows + 1) * sizeof *row_ptr);
    int64_t *col_idx = malloc((size_t)(a->stored_blocks + 1) * sizeof *col_idx);
    sat_status status = row_ptr && col_idx ? SAT_OK : sat_fail(SAT_OUT_OF_MEMORY, "check: a second pattern");
    bool other = false;
    *pattern = NULL;
    for (int64_t first = 0; first < 2 && status == SAT_OK && !other; first++) {
        lay_blocks(a, first, row_ptr, col_idx);
        other = !same_blocks(a, row_ptr, col_idx);
    }
    sat_bsr indices = {SAT_SIZED(sat_bsr),
                       .rows = a->rows,
                       .cols = a->cols,
                       .block_rows = a->block_rows,
                       .block_cols = a->block_cols,
                       .stored_blocks = a->stored_blocks,
                       .index_type = SAT_I64,
                       .row_ptr = row_ptr,
                       .col_idx = col_idx};
    if (other && a->sequences == 0) status = sat_pattern_create(s->ctx, &indices, pattern);
    free(col_idx), free(row_ptr);
    return status;
}

static sat_status on_pattern(confirmation *t, sat_runner *second, const sat_pattern_view *other,
                             const sat_check_case *c) {
    const sat_pattern_view *raced = t->bench->pattern, *run_with = t->bench->run_with;
    t->bench->pattern = other;
    if (!run_with->dynamic) t->bench->run_with = other;
    sat_status status = sat_bench_fill(t->bench, c->probe, c->fill_case, t->seed + 1);
    if (status == SAT_OK) status = check(t, second, other == raced ? "by a second plan" : c->label);
    t->bench->pattern = raced, t->bench->run_with = run_with;
    return status;
}

/* A twin comes and goes, a plan of the raced pattern: what a variant finds by the pattern may not go with it. Where
 * values are fixed the twin has others, and runs; elsewhere it has another scale, if sums depend on that. */
static sat_status twin(confirmation *t, const sat_check_case *c) {
    const sat_bench *s = t->bench;
    bool fixed = s->problem->flags & SAT_FIXED_VALUES;
    sat_problem problem = *s->problem;
    sat_runner runner;
    if (s->op->other_scale && !fixed) problem.alpha *= 1.5;
    if (!sat_variant_fits(t->runner->variant, &problem, s->run_with, s->device)) return SAT_OK;
    sat_status status =
        sat_runner_open(&runner, s->ctx, t->runner->variant, &problem, s->run_with, s->device, t->limit, NULL);
    if (status != SAT_OK) return status == SAT_OUT_OF_MEMORY ? SAT_OK : status;
    if (fixed) status = on_pattern(t, &runner, s->pattern, c);
    sat_runner_close(&runner);
    return status;
}

/* The second runner runs between two runs of the first, which converts its fixed values once: neither may change what
 * the other keeps, and the end of the second may not, either. The first has operands on which its scalars show. */
static sat_status in_turns(confirmation *t, sat_runner *second, const sat_pattern_view *other) {
    const sat_op *op = t->bench->op;
    const sat_check_case *c = op->other_pattern ? op->other_pattern : &usual_other_pattern;
    const sat_check_case *first = op->other_scale ? op->other_scale : c;
    t->runner->refreshed = false;
    SAT_TRY(sat_bench_make(t->bench, first->probe, first->fill_case, t->seed + 2));
    SAT_TRY(run(t, t->runner));
    SAT_TRY(on_pattern(t, second, other, c));
    sat_runner_close(second);
    if (t->finding->ok) SAT_TRY(twin(t, c));
    if (!t->finding->ok) return SAT_OK;
    t->bench->finite_padding = true; /* once: everywhere else NaN shows who reads it */
    sat_status filled = sat_bench_fill(t->bench, first->probe, first->fill_case, t->seed + 2); /* the same again */
    t->bench->finite_padding = false;
    SAT_TRY(filled);
    int before = t->runner->most_threads, all = t->bench->ctx->backend->threads(t->bench->device->threads);
    if (all > 2) t->runner->most_threads = all / 2 + 1; /* neither one thread nor all of them */
    sat_status status = run_on_another_thread(t, t->runner);
    t->runner->most_threads = before;
    return status == SAT_OK ? look(t, "after another plan has run, on another thread") : status;
}

/* The indices change and the plan stays: masks of all kinds under the one that was prepared before any of them. */
static sat_status other_masks(confirmation *t) {
    if (!t->bench->run_with->dynamic) return SAT_OK;
    const sat_op *op = t->bench->op;
    const sat_check_case *c = op->other_pattern ? op->other_pattern : &usual_other_pattern;
    bool padded = t->bench->source.row_stride > 0;
    for (int kind = SAT_MASKS - 1; kind >= 0 && t->finding->ok;
         kind--) { /* the last is as expected, for what follows */
        SAT_TRY(sat_bench_lay_mask(t->bench, (sat_mask_kind)kind, t->seed + 3 + (uint64_t)kind));
        SAT_TRY(sat_bench_fill(t->bench, c->probe, c->fill_case, t->seed + 11 + (uint64_t)kind));
        SAT_TRY(check(t, t->runner, sat_mask_label((sat_mask_kind)kind, padded)));
    }
    return t->finding->ok ? SAT_OK : sat_bench_lay_mask(t->bench, SAT_MASK_EXPECTED, t->seed); /* others come */
}

/* ---- all of them ---- */

static sat_status on_same_pattern(confirmation *t) {
    SAT_TRY(other_inputs(t));
    if (t->finding->ok) SAT_TRY(other_threads(t));
    if (t->finding->ok) SAT_TRY(other_masks(t));
    if (t->finding->ok) SAT_TRY(not_finite(t));
    return t->finding->ok ? other_scalars(t) : SAT_OK;
}

/* A view of a second pattern for the variant; where there is none, or it does not fit, the raced one. */
static sat_status second_pattern(const confirmation *t, sat_pattern **pattern, const sat_pattern_view **view) {
    const sat_bench *s = t->bench;
    *pattern = NULL, *view = s->pattern;
    if (s->run_with->dynamic || s->pattern->stored_blocks == 0 ||
        s->pattern->stored_blocks == s->pattern->grid_rows * s->pattern->grid_cols)
        return SAT_OK;
    SAT_TRY(skewed(s, pattern));
    if (!*pattern) return SAT_OK;
    const sat_pattern_view *other = sat_pattern_by_rows(*pattern);
    if (s->pattern->t_ptr) SAT_TRY(sat_pattern_transposed(*pattern, &other));
    if (sat_variant_fits(t->runner->variant, s->problem, other, s->device)) *view = other;
    return SAT_OK;
}

sat_status sat_confirm(sat_bench *bench, sat_runner *runner, size_t limit, uint64_t seed, sat_finding *finding) {
    confirmation t = {bench, runner, limit, seed, finding};
    sat_pattern *pattern;
    const sat_pattern_view *other;
    sat_runner second = {0};
    *finding = (sat_finding){.ok = true};
    sat_status status = second_pattern(&t, &pattern, &other);
    if (status == SAT_OK) /* opened before the first runs, so that state which both share is found */
        status = sat_runner_open(&second, bench->ctx, runner->variant, bench->problem,
                                 pattern ? other : bench->run_with, bench->device, limit, NULL);
    bool opened = status != SAT_OUT_OF_MEMORY; /* without memory for it the other checks have to suffice */
    if (!opened) status = SAT_OK;
    if (status == SAT_OK) status = on_same_pattern(&t);
    if (status == SAT_OK && finding->ok && opened) status = in_turns(&t, &second, pattern ? other : bench->pattern);
    sat_runner_close(&second);
    sat_pattern_free(pattern);
    return status;
}
