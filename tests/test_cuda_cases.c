/* The cases that `check` draws, as every CUDA variant would take them on a made-up H200. Nothing here needs a GPU. */
#include "cuda_variants.h"

#include "cli/check_find.h"

enum { CASES = 40, LEAST = 30 };

static void every_variant_gets_its_cases(void **state) {
    (void)state;
    sat_context *host = open_context(SAT_EFFORT_OFF);
    for (int i = 0; i < CUDA_LINES; i++) {
        sat_variant v;
        int found = 0;
        if (!cuda_variant(i, &v)) continue;
        for (int number = 0; number < CASES; number++) {
            check_case c;
            int attempt = 0;
            if (!case_find(&v, &hopper, host, 1, number, 0, &attempt, &c)) continue;
            found++;
            case_free(&c);
        }
        bool absent = cuda_lines[i].family->version && !cuda_lines[i].family->version();
        if (absent && found == 0) continue; // what it takes depends on which version of the library is there
        if (found < LEAST) fail_msg("%s takes %d of %d cases; expected %d", v.name, found, CASES, LEAST);
    }
    sat_context_free(host);
}

static void a_case_is_the_same_every_time(void **state) {
    (void)state;
    sat_variant v;
    char first[512], again[512];
    assert_true(cuda_variant(0, &v));
    for (int number = 0; number < 20; number++)
        for (int attempt = 0; attempt < 3; attempt++) {
            check_case c;
            assert_true(case_make(&v, 7, number, attempt, 0, &c));
            case_text(&c, first, sizeof first), case_free(&c);
            assert_true(case_make(&v, 7, number, attempt, 0, &c));
            case_text(&c, again, sizeof again), case_free(&c);
            assert_string_equal(first, again);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant_gets_its_cases),
        cmocka_unit_test(a_case_is_the_same_every_time),
    };
    return cmocka_run_group_tests_name("cuda_cases", tests, NULL, NULL);
}
