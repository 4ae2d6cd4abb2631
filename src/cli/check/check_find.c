// Finds the cases of `check` that a variant takes.

#include "check_find.h"

#include <stdlib.h>

#include "check_grouped.h"
#include "check_mask.h"

enum { ATTEMPTS = 96 };

sat_status case_pattern(sat_context *context, const check_case *c, sat_pattern **pattern) {
    const blocks *b = &c->blocks;
    *pattern = NULL;
    if (is_grouped(&c->problem)) return SAT_OK;
    if (c->mask.used) return mask_pattern(context, c, pattern);
    sat_bsr s = {SAT_SIZED(sat_bsr),
                 .rows = b->rows,
                 .cols = b->cols,
                 .block_rows = b->block_rows,
                 .block_cols = b->block_cols,
                 .stored_blocks = b->count,
                 .index_type = c->index_type,
                 .row_ptr = b->row_ptr,
                 .col_idx = b->col_idx,
                 .sequences = b->sequences,
                 .q_offsets = b->q_offsets,
                 .kv_offsets = b->kv_offsets};
    if (c->index_type == SAT_I64) return sat_pattern_create(context, &s, pattern);
    size_t rows = (size_t)b->grid_rows + 1, count = (size_t)b->count;
    int32_t *narrow = malloc((rows + count) * sizeof *narrow);
    if (!narrow) return SAT_OUT_OF_MEMORY;
    for (size_t i = 0; i < rows; i++) narrow[i] = (int32_t)b->row_ptr[i];
    for (size_t i = 0; i < count; i++) narrow[rows + i] = (int32_t)b->col_idx[i];
    s.row_ptr = narrow, s.col_idx = count ? narrow + rows : NULL;
    sat_status status = sat_pattern_create(context, &s, pattern);
    free(narrow); // the pattern has its own copy: using the caller's later would show
    return status;
}

static bool fits(const sat_variant *v, const sat_device *d, sat_context *host, const check_case *c) {
    sat_problem p = c->problem;
    sat_layout *values = p.op == SAT_SAMPLED ? &p.c : &p.a;
    if (p.op <= SAT_SAMPLED) values->row_stride = c->blocks.block_cols, values->col_stride = 1; // as the library does
    sat_pattern_view view = {SAT_SIZED(sat_pattern_view), .block_rows = 1, .block_cols = 1};    // of no pattern
    sat_pattern *pattern = NULL;
    bool ok = case_pattern(host, c, &pattern) == SAT_OK && (!pattern || sat_pattern_get(pattern, &view) == SAT_OK) &&
              v->supports(v, &p, &view, d);
    sat_pattern_free(pattern);
    return ok;
}

bool case_find(const sat_variant *v, const sat_device *d, sat_context *host, uint64_t seed, int64_t number,
               int64_t sides, int *attempt, check_case *c) {
    for (; *attempt < ATTEMPTS; ++*attempt) {
        if (case_make(v, seed, number, *attempt, sides, c) && fits(v, d, host, c)) return true;
        case_free(c);
    }
    return false;
}
