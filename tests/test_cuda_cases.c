/* The cases that `check` draws, as every CUDA variant would take them on a made-up H200. Nothing here needs a GPU. */
#include "cuda_variants.h"

#include "cli/check/check_find.h"

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

/* Cases that a variant takes, of so many, by what `is` says of them. */
static int count_cases(const char *name, int cases, bool (*is)(const sat_variant *, const check_case *)) {
    sat_context *host = open_context(SAT_EFFORT_OFF);
    int count = 0, known = 0;
    for (int i = 0; i < CUDA_LINES; i++) {
        sat_variant v;
        if (!cuda_variant(i, &v) || strcmp(v.name, name) != 0) continue;
        known++;
        for (int number = 0; number < cases; number++) {
            check_case c;
            int attempt = 0;
            if (!case_find(&v, &hopper, host, 2, number, 0, &attempt, &c)) continue;
            count += is(&v, &c);
            case_free(&c);
        }
    }
    sat_context_free(host);
    assert_int_equal(known, 1);
    return count;
}

static int64_t ceil_of(int64_t x, int64_t y) { return (x + y - 1) / y; }

static bool has_several_tiles(const sat_variant *v, const check_case *c) { // to each of three CTAs
    return ceil_of(c->problem.m, v->instance.tile_m) * ceil_of(c->problem.n, v->instance.tile_n) > 3;
}

static bool leaves_by_copies(const sat_variant *v, const check_case *c) {
    const sat_problem *p = &c->problem;
    (void)v;
    return p->c_dtype != SAT_F32 && p->beta == 0 && p->matmul.activation <= SAT_ACT_RELU && p->n % 64 == 0 &&
           p->m % 8 == 0;
}

static void large_tiles_come_several_to_a_CTA_and_leave_by_copies(void **state) {
    static const char *const names[] = {
        "cuda_matmul_f16_16n_sm90_128x256_union", "cuda_matmul_bf16_16n_sm90_128x256_union",
        "cuda_matmul_f16_64_sm90_64x256_pair",    "cuda_matmul_f16_16n_sm90_64x512",
        "cuda_matmul_f16_16n_sm90_64x256",        "cuda_matmul_bf16_16n_sm90_128x256"};
    (void)state;
    for (int i = 0; i < 6; i++) {
        int several = count_cases(names[i], 300, has_several_tiles),
            copied = count_cases(names[i], 300, leaves_by_copies);
        if (several < 24 || copied < 8)
            fail_msg("%s: %d and %d of 300 cases; expected 24 and 8", names[i], several, copied);
    }
}

/* All shapes of blocks that have code of their own, in each layout. */
static int wanted_rows, wanted_cols, wanted_layout;

static bool is_wanted(const sat_variant *v, const check_case *c) {
    const sat_problem *p = &c->problem;
    bool transposed = p->matmul.transpose == SAT_TRANSPOSE, columns = p->b.col_stride != 1;
    int64_t rows = transposed ? c->blocks.block_cols : c->blocks.block_rows;
    int64_t cols = transposed ? c->blocks.block_rows : c->blocks.block_cols;
    (void)v;
    return rows == wanted_rows && cols == wanted_cols && wanted_layout == transposed + 2 * columns;
}

static void every_shape_of_low_blocks_has_cases(void **state) {
    (void)state;
    for (wanted_rows = 16; wanted_rows <= 32; wanted_rows += 16)
        for (wanted_cols = 16; wanted_cols <= 32; wanted_cols += 16)
            for (wanted_layout = 0; wanted_layout < 4; wanted_layout++)
                if (count_cases("cuda_matmul_f16_16n_sm90_128x256_union", 400, is_wanted) == 0)
                    fail_msg("block %dx%d, layout %d", wanted_rows, wanted_cols, wanted_layout);
}

/* Lines of each length in both orders of X and of Y; blocks wider than the tile, and higher. */
static bool is_wanted_sampled(const sat_variant *v, const check_case *c) {
    int64_t cols = c->blocks.block_cols, line = cols % 64 == 0 ? 64 : cols % 32 == 0 ? 32 : 16;
    (void)v;
    return line == wanted_cols && wanted_layout == (c->problem.a.col_stride != 1) + 2 * (c->problem.b.col_stride != 1);
}

static bool is_wider(const sat_variant *v, const check_case *c) { return c->blocks.block_cols > v->instance.tile_n; }

static bool is_higher(const sat_variant *v, const check_case *c) {
    return c->blocks.block_rows > v->instance.tile_m && c->blocks.block_rows % v->instance.tile_m != 0;
}

static void sampled_tiles_have_cases_of_every_kind(void **state) {
    static const char name[] = "cuda_sampled_f16_16n_sm90_64x256";
    (void)state;
    for (wanted_cols = 16; wanted_cols <= 64; wanted_cols *= 2)
        for (wanted_layout = 0; wanted_layout < 4; wanted_layout++)
            if (count_cases(name, 300, is_wanted_sampled) == 0)
                fail_msg("lines of %d, layout %d", wanted_cols, wanted_layout);
    assert_true(count_cases(name, 300, is_wider) > 0);
    assert_true(count_cases(name, 300, is_higher) > 0);
    assert_true(count_cases("cuda_sampled_f16_64n_sm90_128x128", 300, is_wider) > 0);
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
        cmocka_unit_test(large_tiles_come_several_to_a_CTA_and_leave_by_copies),
        cmocka_unit_test(every_shape_of_low_blocks_has_cases),
        cmocka_unit_test(sampled_tiles_have_cases_of_every_kind),
        cmocka_unit_test(a_case_is_the_same_every_time),
    };
    return cmocka_run_group_tests_name("cuda_cases", tests, NULL, NULL);
}
