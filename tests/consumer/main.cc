// The header as C++ sees it.
#include <sparse_autotune.h>

#include <cstring>

int main() {
    sat_context *context = nullptr;
    sat_problem problem = {};
    problem.size = sizeof problem;
    if (sat_problem_matmul(&problem, SAT_F64, 8) != SAT_OK || problem.matmul.bias != SAT_BIAS_NONE) return 1;
    if (sat_context_create(nullptr, &context) != SAT_OK) return 1;
    sat_context_free(context);
    return std::strcmp(sat_version(), "") == 0 ? 1 : 0;
}
