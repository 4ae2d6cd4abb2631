/* The winner's last trials. Each is one change: of all inputs and their size, of the threads, of the scalars, and of
 * the pattern. A second plan of the same variant stands beside the first all the while. */
#include "core/confirm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/pattern.h"
#include "variant.h"

typedef struct trials {
    sat_stage *stage;
    sat_runner *runner;
    size_t limit;
    uint64_t seed;
    sat_finding *finding;
} trials;

static sat_status run(trials *t, sat_runner *runner) {
    const sat_backend *b = t->stage->ctx->backend;
    void *stream = b->stream(&runner->device);
    SAT_TRY(sat_stage_reset(t->stage));
    SAT_TRY(sat_runner_scribble(runner, 0xa5));
    SAT_TRY(sat_runner_launch(runner, t->stage->pointer, stream));
    return b->sync(&runner->device, stream);
}

/* Runs and checks; `what` was changed, in words. */
static sat_status check(trials *t, sat_runner *runner, const char *what) {
    char where[sizeof t->finding->where];
    SAT_TRY(run(t, runner));
    SAT_TRY(sat_stage_check(t->stage, t->finding));
    if (t->finding->ok) return SAT_OK;
    memcpy(where, t->finding->where, sizeof where);
    snprintf(t->finding->where, sizeof t->finding->where, "%s: %.*s", what, 110, where);
    return SAT_OK;
}

/* ---- one change each ---- */

static sat_status other_inputs(trials *t) {
    t->runner->refreshed = false;
    SAT_TRY(sat_stage_fill(t->stage, SAT_PROBE_EXACT, 2, t->seed));
    return check(t, t->runner, "with large and tiny inputs");
}

static sat_status other_threads(trials *t) {
    if (t->stage->ctx->backend->threads(0) <= 1) return SAT_OK;
    t->runner->most_threads = 1;
    sat_status status = check(t, t->runner, "on one thread");
    t->runner->most_threads = 0;
    return status;
}

/* A key has scalars as 0, 1 or another; the race ran with one of those others. */
static sat_status other_scalars(trials *t) {
    const sat_problem *raced = t->stage->problem;
    sat_problem changed = *raced;
    sat_runner second;
    if (raced->alpha != 0 && raced->alpha != 1) changed.alpha = raced->alpha == -1 ? 2.5 : -1;
    if (raced->beta != 0 && raced->beta != 1) changed.beta = -0.5;
    if (changed.alpha == raced->alpha && changed.beta == raced->beta) return SAT_OK;
    if (!sat_variant_fits(t->runner->variant, &changed, t->stage->pattern, t->stage->device)) return SAT_OK;
    SAT_TRY(sat_runner_open(&second, t->stage->ctx, t->runner->variant, &changed, t->stage->pattern, t->stage->device,
                            t->limit, NULL));
    t->stage->problem = &changed;
    sat_status status = check(t, &second, "with other scalars");
    t->stage->problem = raced;
    sat_runner_close(&second);
    return status;
}

/* As many blocks in the same grid, but in full rows with empty ones between: NULL where there is no such pattern. */
static sat_status skewed(const sat_stage *s, sat_pattern **pattern) {
    const sat_pattern_view *a = s->pattern;
    int64_t *row_ptr = calloc((size_t)a->grid_rows + 1, sizeof *row_ptr), left = a->stored_blocks;
    int32_t *col_idx = malloc((size_t)(a->stored_blocks + 1) * sizeof *col_idx);
    *pattern = NULL;
    if (a->sequences == 0 && row_ptr && col_idx) {
        for (int64_t pass = 0; pass < 2; pass++) /* even rows, then odd ones */
            for (int64_t i = pass; i < a->grid_rows; i += 2) {
                row_ptr[i + 1] = left < a->grid_cols ? left : a->grid_cols;
                left -= row_ptr[i + 1];
            }
        for (int64_t i = 0; i < a->grid_rows; i++) {
            int64_t count = row_ptr[i + 1];
            row_ptr[i + 1] += row_ptr[i];
            for (int64_t j = 0; j < count; j++) col_idx[row_ptr[i] + j] = (int32_t)(a->grid_cols - count + j);
        }
    }
    sat_bsr indices = {SAT_SIZED(sat_bsr),
                       .rows = a->rows,
                       .cols = a->cols,
                       .block_rows = a->block_rows,
                       .block_cols = a->block_cols,
                       .stored_blocks = a->stored_blocks,
                       .index_type = SAT_I64,
                       .row_ptr = row_ptr};
    int64_t *wide = malloc((size_t)(a->stored_blocks + 1) * sizeof *wide);
    for (int64_t i = 0; wide && col_idx && i < a->stored_blocks; i++) wide[i] = col_idx[i];
    indices.col_idx = wide;
    sat_status status = row_ptr && col_idx && wide ? SAT_OK : sat_fail(SAT_OUT_OF_MEMORY, "check: a second pattern");
    if (status == SAT_OK && a->sequences == 0) status = sat_pattern_create(s->ctx, &indices, pattern);
    free(wide), free(col_idx), free(row_ptr);
    return status;
}

static sat_status on_pattern(trials *t, sat_runner *second, const sat_pattern_view *other) {
    const sat_pattern_view *raced = t->stage->pattern;
    t->stage->pattern = other;
    sat_status status = sat_stage_fill(t->stage, SAT_PROBE_EXACT, 3, t->seed + 1);
    if (status == SAT_OK) status = check(t, second, "on a pattern with empty and full rows");
    t->stage->pattern = raced;
    return status;
}

/* ---- all of them ---- */

static sat_status on_same_pattern(trials *t) {
    SAT_TRY(other_inputs(t));
    if (t->finding->ok) SAT_TRY(other_threads(t));
    return t->finding->ok ? other_scalars(t) : SAT_OK;
}

/* A view of a second pattern for the variant; NULL where there is none, or it does not fit. */
static sat_status second_pattern(const trials *t, sat_pattern **pattern, const sat_pattern_view **view) {
    const sat_stage *s = t->stage;
    *pattern = NULL, *view = NULL;
    if (s->pattern->stored_blocks == 0 || s->pattern->stored_blocks == s->pattern->grid_rows * s->pattern->grid_cols)
        return SAT_OK;
    SAT_TRY(skewed(s, pattern));
    if (!*pattern) return SAT_OK;
    *view = sat_pattern_plain(*pattern);
    if (s->pattern->t_ptr) SAT_TRY(sat_pattern_transposed(*pattern, view));
    if (!sat_variant_fits(t->runner->variant, s->problem, *view, s->device)) *view = NULL;
    return SAT_OK;
}

sat_status sat_confirm(sat_stage *stage, sat_runner *runner, size_t limit, uint64_t seed, sat_finding *finding) {
    trials t = {stage, runner, limit, seed, finding};
    sat_pattern *pattern;
    const sat_pattern_view *other;
    sat_runner second = {0};
    *finding = (sat_finding){.ok = true};
    if (!sat_stage_has_exact(stage)) return SAT_OK;
    sat_status status = second_pattern(&t, &pattern, &other);
    if (status == SAT_OK && other) /* ready before the first runs: what two plans share shows */
        status =
            sat_runner_open(&second, stage->ctx, runner->variant, stage->problem, other, stage->device, limit, NULL);
    if (status == SAT_OK) status = on_same_pattern(&t);
    if (status == SAT_OK && finding->ok && other) status = on_pattern(&t, &second, other);
    sat_runner_close(&second);
    sat_pattern_free(pattern);
    return status;
}
