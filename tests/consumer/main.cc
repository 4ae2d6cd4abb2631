// The header as C++ sees it, before C++20 has designated initialisers: a 4x4 identity in 2x2 blocks times four columns.
#include <sparse_autotune.h>

#include <cstdio>
#include <cstring>

int main() {
    const int32_t row_ptr[] = {0, 1, 2}, col_idx[] = {0, 1};
    const double values[] = {1, 0, 0, 1, 1, 0, 0, 1};
    double b[16], c[16];
    for (int i = 0; i < 16; i++) b[i] = i;

    sat_context_options options = {};
    options.size = sizeof options;
    options.device = "cpu";
    sat_bsr bsr = {};
    bsr.size = sizeof bsr;
    bsr.rows = bsr.cols = 4, bsr.block_rows = bsr.block_cols = 2;
    bsr.stored_blocks = 2, bsr.index_type = SAT_I32, bsr.row_ptr = row_ptr, bsr.col_idx = col_idx;
    sat_problem problem = {};
    problem.size = sizeof problem;
    const void *inputs[] = {values, b};
    void *outputs[] = {c};

    sat_context *context = nullptr;
    sat_pattern *pattern = nullptr;
    sat_plan *plan = nullptr;
    sat_status status = sat_problem_matmul(&problem, SAT_F64, 4);
    if (status == SAT_OK) status = sat_context_create(&options, &context);
    if (status == SAT_OK) status = sat_pattern_create(context, &bsr, &pattern);
    if (status == SAT_OK) status = sat_plan_create(context, pattern, &problem, &plan);
    if (status == SAT_OK) status = sat_run(plan, inputs, 2, outputs, 1, nullptr);
    if (status != SAT_OK) std::fprintf(stderr, "%s: %s\n", sat_status_name(status), sat_last_error());
    sat_plan_free(plan);
    sat_pattern_free(pattern);
    sat_context_free(context);
    return status == SAT_OK && std::memcmp(b, c, sizeof b) == 0 ? 0 : 1;
}
