// Brings no variant: it asks for a plan, which a context of effort `cached` answers by estimate and notes as untuned.

#include "planted.h"
#include "../problems.h"

sat_status sat_plugin(sat_context *context) {
    (void)planted_supports, (void)planted_estimate;
    const int32_t row_ptr[] = {0, 2, 3, 3, 4}, col_idx[] = {0, 3, 1, 2};
    sat_bsr indices = {SAT_SIZED(sat_bsr),    .rows = 60,         .cols = 64,
                       .block_rows = 16,      .block_cols = 16,   .stored_blocks = 4,
                       .index_type = SAT_I32, .row_ptr = row_ptr, .col_idx = col_idx};
    sat_problem problem = matmul_problem(SAT_F32, 24);
    problem.beta = 1;
    sat_pattern *pattern = NULL;
    sat_plan *plan = NULL;
    sat_status status = sat_pattern_create(context, &indices, &pattern);
    if (status == SAT_OK) status = sat_plan_create(context, pattern, &problem, &plan);
    sat_plan_free(plan);
    sat_pattern_free(pattern);
    return status;
}
