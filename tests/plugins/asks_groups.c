// Brings no variant: it asks for two plans of products of groups, which a context of effort `cached` notes as untuned.

#include "planted.h"

static sat_status ask(sat_context *context, const sat_problem *problem) {
    sat_plan *plan = NULL;
    sat_status status = sat_plan_create(context, NULL, problem, &plan);
    sat_plan_free(plan);
    return status;
}

sat_status sat_plugin(sat_context *context) {
    (void)planted_supports, (void)planted_estimate;
    sat_problem p = {SAT_SIZED(sat_problem)};
    sat_status status = sat_problem_grouped(&p, SAT_F32, 60, 24, 40, 6);
    p.beta = 1;
    p.b = (sat_layout){.row_stride = 1, .col_stride = 44, .batch_stride = 44 * 24};
    p.grouped.bias = true, p.grouped.activation = SAT_ACT_SILU;
    p.grouped.offset_type = SAT_I32, p.grouped.skew = 3;
    if (status == SAT_OK) status = ask(context, &p);
    if (status == SAT_OK) status = sat_problem_grouped_weights(&p, SAT_BF16, 60, 24, 40, 6);
    p.c_dtype = SAT_F32;
    return status == SAT_OK ? ask(context, &p) : status;
}
