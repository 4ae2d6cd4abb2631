// The header as C++ sees it.
#include <sparse_autotune.h>

#include <cstring>

int main() {
    sat_context *context = nullptr;
    sat_problem problem = sat_matmul_problem(SAT_F64, 8);
    if (problem.size != sizeof problem || sat_context_create(nullptr, &context) != SAT_OK) return 1;
    sat_context_free(context);
    return std::strcmp(sat_version(), "") == 0 ? 1 : 0;
}
