/* Groups of rows along the union of their columns: every block is met once, in its row's order, and rows that share
 * columns are put together. No GPU needed. */
#include "support.h"

#include "kernels/cuda/matmul/row_groups.h"

static sat_rows make_rows(uint64_t *state, int64_t count, int64_t cols, int64_t percent) {
    int64_t *ptr = malloc((size_t)(count + 1) * sizeof *ptr);
    int32_t *col = malloc((size_t)(count * cols + 1) * sizeof *col);
    ptr[0] = 0;
    for (int64_t i = 0; i < count; i++) {
        ptr[i + 1] = ptr[i];
        if (random_below(state, 8) == 0) continue; /* an empty row */
        for (int64_t j = 0; j < cols; j++)
            if (random_below(state, 100) < percent) col[ptr[i + 1]++] = (int32_t)j;
    }
    return (sat_rows){.count = count, .ptr = ptr, .col = col};
}

/* Goes through a group as a kernel does: rows that an entry names take their next block, column by column. */
static void check_group(const sat_rows *r, const int32_t *row, const sat_union *u, int64_t group, int size,
                        int columns_per_entry) {
    int64_t at[32];
    for (int i = 0; i < size; i++) at[i] = row[i] < 0 ? 0 : r->ptr[row[i]];
    int32_t before = -1;
    for (int64_t s = u->ptr[group]; s < u->ptr[group + 1]; s++) {
        assert_true(u->entry[s].col > before);
        assert_true(u->entry[s].block_mask != 0);
        before = u->entry[s].col;
        for (int i = 0; i < 32; i++) {
            int mine = i % size, column = i / size;
            if (!(u->entry[s].block_mask >> i & 1)) continue;
            assert_true(column < columns_per_entry && row[mine] >= 0);
            assert_true(at[mine] < r->ptr[row[mine] + 1]);
            assert_int_equal(r->col[at[mine]++], before * columns_per_entry + column);
        }
    }
    for (int i = 0; i < size; i++)
        if (row[i] >= 0) assert_int_equal(at[i], r->ptr[row[i] + 1]);
}

static void check_order(const int32_t *row, int64_t rows, int64_t places) { /* each row once */
    char *seen = calloc((size_t)rows + 1, 1);
    int64_t found = 0;
    for (int64_t i = 0; i < places; i++) {
        if (row[i] < 0) continue;
        assert_true(row[i] < rows && !seen[row[i]]);
        seen[row[i]] = 1, found++;
    }
    assert_int_equal(found, rows);
    free(seen);
}

static void every_block_is_met_once(void **unused) {
    (void)unused;
    uint64_t random = 7;
    for (int round = 0; round < 300; round++) {
        int64_t cols = 1 + random_below(&random, 60), percents[] = {0, 3, 12, 50, 100};
        sat_rows r = make_rows(&random, random_below(&random, 70), cols, percents[round % 5]);
        int size = round & 1 ? 2 : 1 + (int)random_below(&random, 32);
        int columns_per_entry = round % 3 ? 1 : 1 + (int)random_below(&random, 32 / size);
        int32_t *row = malloc((size_t)(r.count + size) * sizeof *row);
        sat_union u;
        assert_true(sat_union_groups(&r, cols, size, row));
        assert_true(sat_union_make(&r, row, size, columns_per_entry, &u));
        assert_int_equal(u.groups, (r.count + size - 1) / size);
        check_order(row, r.count, u.groups * size);
        assert_int_equal(u.ptr[u.groups], u.entries);
        assert_true(u.entries <= r.ptr[r.count]);
        assert_true(sat_union_bytes(r.ptr[r.count]) >= (size_t)u.entries * sizeof *u.entry);
        for (int64_t g = 0; g < u.groups; g++) check_group(&r, row + g * size, &u, g, size, columns_per_entry);
        sat_union_free(&u);
        assert_null(u.entry);
        free(row), free((void *)(uintptr_t)r.ptr), free((void *)(uintptr_t)r.col);
    }
}

/* Rows i and i + half are the same: whoever looks for a partner finds one that has all in common with it. */
static void rows_that_share_columns_find_each_other(void **unused) {
    (void)unused;
    enum { HALF = 20, COLS = 100, EACH = 10 };
    int64_t ptr[2 * HALF + 1] = {0};
    int32_t col[2 * HALF * EACH], row[2 * HALF];
    for (int i = 0; i < 2 * HALF; i++) {
        ptr[i + 1] = ptr[i] + EACH;
        for (int j = 0; j < EACH; j++) col[i * EACH + j] = (int32_t)(j * 10 + (i % HALF * (j + 3)) % 10);
    }
    sat_rows r = {.count = 2 * HALF, .ptr = ptr, .col = col};
    sat_union u;
    assert_true(sat_union_groups(&r, COLS, 2, row));
    assert_true(sat_union_make(&r, row, 2, 1, &u));
    assert_int_equal(u.entries, HALF * EACH);
    sat_union_free(&u);
}

/* Equal rows a thousand rows apart: the search window has 2048 rows. */
static void rows_that_share_columns_far_apart_find_each_other(void **unused) {
    (void)unused;
    enum { HALF = 1024, COLS = 4 * HALF, EACH = 4 };
    static int64_t ptr[2 * HALF + 1];
    static int32_t col[2 * HALF * EACH], row[2 * HALF];
    for (int i = 0; i < 2 * HALF; i++) {
        ptr[i + 1] = ptr[i] + EACH;
        for (int j = 0; j < EACH; j++) col[i * EACH + j] = (int32_t)(i % HALF * EACH + j);
    }
    sat_rows r = {.count = 2 * HALF, .ptr = ptr, .col = col};
    assert_true(sat_union_groups(&r, COLS, 2, row));
    for (int i = 0; i < HALF; i++) assert_int_equal(row[2 * i] + HALF, row[2 * i + 1]);
}

/* How many of a row's columns are among those that are marked; marks them if asked to. */
static int64_t in_common(const sat_rows *r, int32_t row, char *marked, bool mark) {
    int64_t common = 0;
    for (int64_t i = r->ptr[row]; i < r->ptr[row + 1]; i++) {
        common += marked[r->col[i]];
        if (mark) marked[r->col[i]] = 1;
    }
    return common;
}

/* By trying everybody: a group begins with the first row that is free, and no free row shares more columns with those
 * in the group than the one that joins them. */
static void whoever_shares_most_with_the_whole_group_joins_it(void **unused) {
    (void)unused;
    uint64_t random = 13;
    for (int round = 0; round < 60; round++) {
        enum { COLS = 50 };
        sat_rows r = make_rows(&random, 1 + random_below(&random, 90), COLS, 5 + 10 * (round % 4));
        int size = 2 + (int)random_below(&random, 9);
        int32_t row[100];
        char taken[100] = {0}, marked[COLS];
        assert_true(sat_union_groups(&r, COLS, size, row));
        for (int64_t i = 0; i < r.count; i++) {
            if (i % size == 0) memset(marked, 0, sizeof marked);
            for (int32_t x = 0; x < r.count; x++) {
                if (taken[x]) continue;
                if (i % size == 0) assert_true(row[i] <= x);
                assert_true(in_common(&r, row[i], marked, false) >= in_common(&r, x, marked, false));
            }
            taken[row[i]] = 1;
            in_common(&r, row[i], marked, true);
        }
        free((void *)(uintptr_t)r.ptr), free((void *)(uintptr_t)r.col);
    }
}

/* By chance a row of density d has a column, and a group unless none of its rows does. A search finds better, but from
 * rows drawn by chance not much. */
static void the_expected_union_is_about_what_a_search_finds(void **unused) {
    (void)unused;
    uint64_t random = 11;
    sat_rows r = make_rows(&random, 256, 256, 12);
    for (int size = 1; size <= 16; size *= 2) {
        sat_union u;
        int32_t row[256];
        assert_true(sat_union_groups(&r, 256, size, row));
        assert_true(sat_union_make(&r, row, size, 1, &u));
        double expected = sat_union_expected(r.count, 256, r.ptr[r.count], size);
        assert_true(expected > 0.9 * (double)u.entries && expected < 1.15 * (double)u.entries);
        sat_union_free(&u);
    }
    free((void *)(uintptr_t)r.ptr), free((void *)(uintptr_t)r.col);
}

/* Rows of several windows: each window is searched alone, and all rows get a group. */
static void many_rows_are_searched_in_windows(void **unused) {
    (void)unused;
    enum { ROWS = 2 * SAT_SEARCH_WINDOW + 37, SIZE = 6 };
    uint64_t random = 5;
    sat_rows r = make_rows(&random, ROWS, 40, 10);
    int32_t *row = malloc((ROWS + SIZE) * sizeof *row);
    sat_union u;
    assert_true(sat_union_groups(&r, 40, SIZE, row));
    assert_true(sat_union_make(&r, row, SIZE, 1, &u));
    check_order(row, ROWS, u.groups * SIZE);
    for (int64_t g = 0; g < u.groups; g++) check_group(&r, row + g * SIZE, &u, g, SIZE, 1);
    sat_union_free(&u);
    free(row), free((void *)(uintptr_t)r.ptr), free((void *)(uintptr_t)r.col);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_is_met_once),
        cmocka_unit_test(rows_that_share_columns_find_each_other),
        cmocka_unit_test(rows_that_share_columns_far_apart_find_each_other),
        cmocka_unit_test(whoever_shares_most_with_the_whole_group_joins_it),
        cmocka_unit_test(the_expected_union_is_about_what_a_search_finds),
        cmocka_unit_test(many_rows_are_searched_in_windows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
