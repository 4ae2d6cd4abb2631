/* The smallest program that uses the installed library: a 4x4 identity in 2x2 blocks times four columns. */
#include <sparse_autotune.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    const int32_t row_ptr[] = {0, 1, 2}, col_idx[] = {0, 1};
    float values[] = {1, 0, 0, 1, 1, 0, 0, 1}, b[16], c[16];
    for (int i = 0; i < 16; i++) b[i] = (float)i;

    sat_context *context = NULL;
    sat_pattern *pattern = NULL;
    sat_bsr bsr = {SAT_SIZED(sat_bsr), 4, 4, 2, 2, 2, SAT_I32, row_ptr, col_idx};
    sat_problem problem = {SAT_SIZED(sat_problem)};
    sat_status status = sat_problem_matmul(&problem, SAT_F32, 4);
    if (status == SAT_OK) status = sat_context_create(NULL, &context);
    if (status == SAT_OK) status = sat_pattern_create(context, &bsr, &pattern);
    if (status == SAT_OK) status = sat_bsr_matmul(context, pattern, &problem, values, b, c, NULL, NULL);
    if (status != SAT_OK) fprintf(stderr, "%s: %s\n", sat_status_name(status), sat_last_error());
    sat_pattern_free(pattern);
    sat_context_free(context);
    return status == SAT_OK && memcmp(b, c, sizeof b) == 0 ? 0 : 1;
}
