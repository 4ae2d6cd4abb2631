/* Patterns: what is refused and how it is named, the owned copy, statistics, the transposed index. */
#include "support.h"

#include <sys/resource.h>

#include "core/pattern.h"

#include "sanitized.h" /* SANITIZED: sanitizers take terabytes of address space */
#include "problems.h"

static sat_bsr good(const int32_t *row_ptr, const int32_t *col_idx) {
    return (sat_bsr){SAT_SIZED(sat_bsr),    .rows = 6,          .cols = 8,
                     .block_rows = 2,       .block_cols = 2,    .stored_blocks = 4,
                     .index_type = SAT_I32, .row_ptr = row_ptr, .col_idx = col_idx};
}

static const int32_t rows_ok[] = {0, 2, 2, 4}, cols_ok[] = {0, 3, 1, 2};

static void each_bad_argument_has_its_status_and_is_named(void **state) {
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    sat_pattern *p = NULL;
    sat_bsr s = good(rows_ok, cols_ok);
    assert_fails(sat_pattern_create(NULL, &s, &p), SAT_NULL_POINTER, "context");
    assert_fails(sat_pattern_create(ctx, NULL, &p), SAT_NULL_POINTER, "indices");
    assert_fails(sat_pattern_create(ctx, &s, NULL), SAT_NULL_POINTER, "pattern");
#define TRY(change, status, word)                                                                                      \
    s = good(rows_ok, cols_ok);                                                                                        \
    change;                                                                                                            \
    assert_fails(sat_pattern_create(ctx, &s, &p), status, word);                                                       \
    assert_null(p)
    TRY(s.size = 3, SAT_BAD_STRUCT, "sat_bsr");
    TRY(s.size = 1 << 20, SAT_BAD_STRUCT, "sat_bsr");
    TRY(s.rows = -1, SAT_BAD_SIZE, "rows");
    TRY(s.cols = -5, SAT_BAD_SIZE, "cols");
    TRY(s.block_rows = 0, SAT_BAD_BLOCK, "block_rows");
    TRY(s.block_cols = -2, SAT_BAD_BLOCK, "block_cols");
    TRY(s.index_type = 7, SAT_BAD_ENUM, "index_type");
    TRY(s.stored_blocks = -1, SAT_BAD_SIZE, "stored_blocks");
    TRY(s.stored_blocks = 13, SAT_BAD_SIZE, "stored_blocks");
    TRY(s.rows = INT64_MAX; s.block_rows = 1, SAT_BAD_SIZE, "rows");
    TRY(s.block_rows = s.block_cols = INT64_MAX / 2, SAT_BAD_SIZE, "stored_blocks");
    TRY(s.block_rows = INT64_MAX / 2; s.stored_blocks = 1, SAT_BAD_SIZE, "overflow");
    TRY(s.row_ptr = NULL, SAT_NULL_POINTER, "row_ptr");
    TRY(s.col_idx = NULL, SAT_NULL_POINTER, "col_idx");
    TRY(s.row_ptr = (const char *)rows_ok + 1, SAT_MISALIGNED, "row_ptr");
    TRY(s.col_idx = (const char *)cols_ok + 2, SAT_MISALIGNED, "col_idx");
    TRY(s.row_ptr = ((const int32_t[]){1, 2, 2, 4}), SAT_BAD_ROW_PTR, "row_ptr[0]");
    TRY(s.row_ptr = ((const int32_t[]){0, 3, 2, 4}), SAT_BAD_ROW_PTR, "row_ptr[2]");
    TRY(s.row_ptr = ((const int32_t[]){0, 2, 5, 4}), SAT_BAD_ROW_PTR, "row_ptr[2]");
    TRY(s.row_ptr = ((const int32_t[]){0, 2, 2, 3}), SAT_BAD_ROW_PTR, "row_ptr[3]");
    TRY(s.col_idx = ((const int32_t[]){0, 4, 1, 2}), SAT_COLUMN_RANGE, "col_idx[1]");
    TRY(s.col_idx = ((const int32_t[]){0, 3, -1, 2}), SAT_COLUMN_RANGE, "col_idx[2]");
    TRY(s.col_idx = ((const int32_t[]){3, 0, 1, 2}), SAT_COLUMN_ORDER, "col_idx[1]");
    TRY(s.col_idx = ((const int32_t[]){0, 3, 2, 2}), SAT_COLUMN_ORDER, "repeats");
#undef TRY
    sat_context_free(ctx);
}

static void both_index_widths_give_the_same_copy(void **state) {
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    int64_t rows64[] = {0, 2, 2, 4}, cols64[] = {0, 3, 1, 2};
    int32_t rows32[] = {0, 2, 2, 4}, cols32[] = {0, 3, 1, 2};
    sat_pattern *p32 = NULL, *p64 = NULL;
    sat_bsr s = good(rows32, cols32);
    assert_ok(sat_pattern_create(ctx, &s, &p32));
    s.index_type = SAT_I64, s.row_ptr = rows64, s.col_idx = cols64;
    assert_ok(sat_pattern_create(ctx, &s, &p64));
    memset(rows32, -1, sizeof rows32), memset(cols32, -1, sizeof cols32); /* the copy is the library's own */
    memset(rows64, -1, sizeof rows64), memset(cols64, -1, sizeof cols64);
    sat_pattern_view x = view_of(p32), y = view_of(p64);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(x.row_ptr[i], rows_ok[i]);
        assert_int_equal(y.row_ptr[i], rows_ok[i]);
        assert_int_equal(x.col_idx[i], cols_ok[i]);
        assert_int_equal(y.col_idx[i], cols_ok[i]);
    }
    assert_int_equal(x.empty_rows, 1);
    assert_int_equal(x.max_row, 2);
    assert_int_equal(x.stored_elements, 16);
    assert_true(x.density > 0.333 && x.density < 0.334);
    assert_true(x.skew == 1.5);
    sat_pattern_free(p32), sat_pattern_free(p64);
    sat_context_free(ctx);
}

static void ragged_edges_are_counted_as_far_as_the_matrix_goes(void **state) {
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    sat_pattern *p = NULL;
    sat_bsr s = {SAT_SIZED(sat_bsr),
                 .rows = 5,
                 .cols = 7,
                 .block_rows = 3,
                 .block_cols = 4,
                 .stored_blocks = 4,
                 .index_type = SAT_I32,
                 .row_ptr = (int32_t[]){0, 2, 4},
                 .col_idx = (int32_t[]){0, 1, 0, 1}};
    assert_ok(sat_pattern_create(ctx, &s, &p));
    assert_int_equal(view_of(p).stored_elements, 35);
    assert_true(view_of(p).overlap == 1.0);
    sat_pattern_free(p);
    sat_context_free(ctx);
}

static void empty_matrices_are_ordinary(void **state) {
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    int32_t zero[4] = {0};
    int64_t sizes[][2] = {{0, 0}, {0, 5}, {5, 0}, {5, 5}};
    for (size_t i = 0; i < 4; i++) {
        sat_pattern *p = NULL;
        sat_bsr s = {SAT_SIZED(sat_bsr), .rows = sizes[i][0],   .cols = sizes[i][1], .block_rows = 2,
                     .block_cols = 3,    .index_type = SAT_I32, .row_ptr = zero};
        assert_ok(sat_pattern_create(ctx, &s, &p));
        assert_int_equal(view_of(p).stored_blocks, 0);
        assert_true(view_of(p).density == 0);
        sat_pattern_free(p);
    }
    sat_pattern_free(NULL);
    sat_context_free(ctx);
}

static sat_pattern *nothing_stored(sat_context *ctx, int64_t rows, int64_t cols, int64_t br, int64_t bc) {
    static const int64_t zeros[8];
    sat_bsr s = {SAT_SIZED(sat_bsr), .rows = rows,          .cols = cols,    .block_rows = br,
                 .block_cols = bc,   .index_type = SAT_I64, .row_ptr = zeros};
    sat_pattern *p = NULL;
    assert_ok(sat_pattern_create(ctx, &s, &p));
    return p;
}

static sat_problem some_problem(int which, int64_t n) {
    sat_problem p = which == 0 ? matmul_problem(SAT_F32, n) : sampled_problem(SAT_F32, n);
    if (which >= 2) p = attention_problem(SAT_F32, 2, 1, 8);
    if (which == 3) p.op = SAT_ATTENTION_BACKWARD;
    return p;
}

/* A block's shape says nothing where none is stored. Every variant plans for it in no time and without overflow. */
static void huge_blocks_of_which_none_is_stored_are_ordinary(void **state) {
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    const int64_t sides[][2] = {{(int64_t)1 << 40, 4}, {4, (int64_t)1 << 40}, {4, (int64_t)1 << 60},
                                {(int64_t)1 << 60, 4}, {INT64_MAX, 1},        {1, INT64_MAX},
                                {INT64_MAX, INT64_MAX}};
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++)
        for (int64_t rows = 0; rows <= 5; rows += 5) {
            sat_pattern *pattern = nothing_stored(ctx, rows, 5, sides[i][0], sides[i][1]);
            sat_pattern_view v = view_of(pattern);
            assert_true(v.block_rows <= 5 && v.block_cols <= 5);
            for (int which = 0; which < 5; which++) {
                sat_problem p = some_problem(which % 4, 3);
                if (which == 4) p.matmul.transpose = SAT_TRANSPOSE;
                for (size_t j = 0; j < sat_variant_count(ctx); j++) {
                    sat_plan *plan = NULL;
                    sat_status status = sat_plan_create_with(ctx, pattern, &p, sat_variant_at(ctx, j)->name, &plan);
                    assert_true(status == SAT_OK || status == SAT_UNSUPPORTED);
                    float c[15], b[15] = {0}, zeros[15] = {0};
                    memset(c, 0xff, sizeof c);
                    if (plan && p.op == SAT_MATMUL)
                        assert_ok(sat_run(plan, (const void *[]){NULL, b}, 2, (void *[]){c}, 1, NULL));
                    if (plan && p.op == SAT_MATMUL && (rows || p.matmul.transpose))
                        assert_memory_equal(c, zeros, sizeof c);
                    sat_plan_free(plan);
                }
            }
            sat_pattern_free(pattern);
        }
    /* Blocks that are no larger than usual are what the caller said. */
    sat_pattern *pattern = nothing_stored(ctx, 5, 5, 64, 4096);
    assert_int_equal(view_of(pattern).block_rows, 64);
    assert_int_equal(view_of(pattern).block_cols, 4096);
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

static void a_product_without_an_element_is_planned_by_nobody(void **state) {
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_QUICK);
    const int64_t large = (int64_t)1 << 40;
    sat_pattern *pattern = nothing_stored(ctx, large, large, large, 1 << 20);
    for (int t = 0; t < 2; t++) {
        sat_problem p = matmul_problem(SAT_F32, 0);
        p.matmul.transpose = t ? SAT_TRANSPOSE : SAT_NO_TRANSPOSE;
        sat_plan *plan = NULL;
        assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
        sat_plan_info info = {SAT_SIZED(sat_plan_info)};
        assert_ok(sat_plan_get_info(plan, &info));
        assert_string_equal(info.variant, "cpu_matmul_any_any_c_reference");
        assert_false(info.tuned);
        assert_ok(sat_run(plan, (const void *[]){NULL, NULL}, 2, (void *[]){NULL}, 1, NULL));
        sat_plan_free(plan);
    }
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

static void the_transposed_index_lists_each_block_once_by_column(void **state) {
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    uint64_t random = 5;
    for (int round = 0; round < 50; round++) {
        sat_pattern *p = random_pattern(ctx, &random, 1 + random_below(&random, 90), 1 + random_below(&random, 90),
                                        1 + random_below(&random, 7), 1 + random_below(&random, 7), 0.3, round & 1);
        sat_pattern_view v = view_of(p);
        char *seen = calloc((size_t)v.stored_blocks + 1, 1);
        assert_int_equal(v.t_ptr[0], 0);
        assert_int_equal(v.t_ptr[v.grid_cols], v.stored_blocks);
        for (int64_t c = 0; c < v.grid_cols; c++) {
            for (int64_t i = v.t_ptr[c]; i < v.t_ptr[c + 1]; i++) {
                int64_t block = v.t_block[i];
                assert_int_equal(seen[block]++, 0);
                assert_int_equal(v.col_idx[block], c);
                assert_true(v.row_ptr[v.t_row[i]] <= block && block < v.row_ptr[v.t_row[i] + 1]);
                if (i > v.t_ptr[c]) assert_true(v.t_row[i] > v.t_row[i - 1]);
            }
        }
        free(seen);
        sat_pattern_free(p);
    }
    sat_context_free(ctx);
}

/* Two billion block columns and six blocks: memory is for what is stored. */
static void a_wide_matrix_takes_memory_for_its_blocks_only(void **state) {
    (void)state;
    static const int32_t row_ptr[] = {0, 2, 3, 6}, col_idx[] = {7, 2147483645, 7, 0, 7, 2147483645};
    struct rlimit before, little = {.rlim_cur = (rlim_t)2 << 30};
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    sat_bsr s = {SAT_SIZED(sat_bsr), .rows = 3,       .cols = 2147483646,
                 .block_rows = 1,    .block_cols = 1, .stored_blocks = 6};
    s.index_type = SAT_I32, s.row_ptr = row_ptr, s.col_idx = col_idx;
    sat_pattern *pattern = NULL;
    assert_int_equal(getrlimit(RLIMIT_DATA, &before), 0);
    little.rlim_max = before.rlim_max;
    if (!SANITIZED) assert_int_equal(setrlimit(RLIMIT_DATA, &little), 0);
    sat_status status = sat_pattern_create(ctx, &s, &pattern);
    if (!SANITIZED) assert_int_equal(setrlimit(RLIMIT_DATA, &before), 0);
    assert_ok(status);
    const sat_pattern_view *v = sat_pattern_by_rows(pattern);
    assert_int_equal(v->max_col, 3);
    assert_int_equal(v->max_row, 3);
    assert_int_equal(v->stored_elements, 6);
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_bad_argument_has_its_status_and_is_named),
        cmocka_unit_test(both_index_widths_give_the_same_copy),
        cmocka_unit_test(ragged_edges_are_counted_as_far_as_the_matrix_goes),
        cmocka_unit_test(empty_matrices_are_ordinary),
        cmocka_unit_test(huge_blocks_of_which_none_is_stored_are_ordinary),
        cmocka_unit_test(a_product_without_an_element_is_planned_by_nobody),
        cmocka_unit_test(the_transposed_index_lists_each_block_once_by_column),
        cmocka_unit_test(a_wide_matrix_takes_memory_for_its_blocks_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
