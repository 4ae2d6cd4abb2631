/* The Matrix Market reader: what it takes, what it refuses and on which line, and how it cuts into blocks. */
#include "support.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/mtx.h"

enum { PLENTY = 1 << 20 };

static mtx read_text(const char *text) {
    mtx m;
    mtx_error error;
    if (!mtx_read_memory(text, strlen(text), PLENTY, &m, &error)) fail_msg("%s", error.text);
    return m;
}

static void refuse(const char *text, const char *message) {
    mtx m;
    mtx_error error;
    if (mtx_read_memory(text, strlen(text), PLENTY, &m, &error)) fail_msg("taken: %s", text);
    if (!strstr(error.text, message)) fail_msg("'%s' does not say '%s'", error.text, message);
    assert_null(m.entries);
}

/* The matrix as a dense one of at most 4x4. */
static void expect_dense(const char *text, int64_t rows, int64_t cols, const double *dense) {
    mtx m = read_text(text);
    double got[16] = {0};
    assert_int_equal(m.rows, rows);
    assert_int_equal(m.cols, cols);
    for (int64_t i = 0; i < m.count; i++) got[m.entries[i].row * cols + m.entries[i].col] += m.entries[i].value;
    for (int64_t i = 0; i < rows * cols; i++)
        if (got[i] != dense[i]) fail_msg("element %" PRId64 " is %g, expected %g", i, got[i], dense[i]);
    mtx_free(&m);
}

static void coordinate_files_are_read(void **state) {
    (void)state;
    expect_dense("%%MatrixMarket matrix coordinate real general\n% a comment\n\n2 3 3\n1 1 1.5\n2 3 -2e1\n\n1 3 4\n", 2,
                 3, (double[]){1.5, 0, 4, 0, 0, -20});
    expect_dense("%%matrixmarket MATRIX Coordinate Integer General\n2 2 1\n2 1 -7\n", 2, 2, (double[]){0, 0, -7, 0});
    expect_dense("%%MatrixMarket matrix coordinate pattern general\r\n2 2 2\r\n1 2\r\n2 2\r\n", 2, 2,
                 (double[]){0, 1, 0, 1});
    expect_dense("%%MatrixMarket matrix coordinate real general\n2 2 1\n 1\t2   3 ", 2, 2, (double[]){0, 3, 0, 0});
}

static void symmetric_files_give_both_halves(void **state) {
    (void)state;
    expect_dense("%%MatrixMarket matrix coordinate real symmetric\n2 2 2\n1 1 3\n2 1 5\n", 2, 2,
                 (double[]){3, 5, 5, 0});
    expect_dense("%%MatrixMarket matrix coordinate real skew-symmetric\n2 2 1\n2 1 5\n", 2, 2, (double[]){0, -5, 5, 0});
    expect_dense("%%MatrixMarket matrix coordinate pattern symmetric\n3 3 1\n3 1\n", 3, 3,
                 (double[]){0, 0, 1, 0, 0, 0, 1, 0, 0});
}

static void array_files_are_read_by_columns_without_their_zeros(void **state) {
    (void)state;
    expect_dense("%%MatrixMarket matrix array real general\n2 3\n1\n2\n3\n4\n5\n6\n", 2, 3,
                 (double[]){1, 3, 5, 2, 4, 6});
    expect_dense("%%MatrixMarket matrix array real symmetric\n3 3\n1\n2\n3\n4\n5\n6\n", 3, 3,
                 (double[]){1, 2, 3, 2, 4, 5, 3, 5, 6});
    expect_dense("%%MatrixMarket matrix array integer skew-symmetric\n3 3\n1\n2\n3\n", 3, 3,
                 (double[]){0, -1, -2, 1, 0, -3, 2, 3, 0});
    mtx m = read_text("%%MatrixMarket matrix array real general\n2 2\n0\n7\n0\n0\n");
    assert_int_equal(m.count, 1);
    mtx_free(&m);
}

static void empty_matrices_are_ordinary(void **state) {
    (void)state;
    mtx m = read_text("%%MatrixMarket matrix coordinate real general\n0 0 0\n");
    assert_int_equal(m.count, 0);
    blocks b;
    mtx_error error;
    double *values;
    assert_true(mtx_block(&m, 4, 4, PLENTY, &b, &values, &error));
    assert_int_equal(b.count, 0);
    assert_int_equal(b.row_ptr[0], 0);
    free(values);
    blocks_free(&b);
    mtx_free(&m);
    m = read_text("%%MatrixMarket matrix array real skew-symmetric\n1 1\n");
    assert_int_equal(m.count, 0);
    mtx_free(&m);
}

static void what_is_not_supported_is_named(void **state) {
    (void)state;
    refuse("%%MatrixMarket matrix coordinate complex general\n1 1 1\n1 1 0 0\n", "line 1: complex");
    refuse("%%MatrixMarket matrix coordinate real hermitian\n1 1 1\n1 1 0\n", "line 1: hermitian");
    refuse("%%MatrixMarket vector coordinate real general\n1 1 1\n1 1 0\n", "line 1: object 'vector'");
    refuse("%%MatrixMarket matrix array pattern general\n1 1\n", "line 1: an array file");
    refuse("%%MatrixMarket matrix coordinate pattern skew-symmetric\n1 1 0\n", "line 1: a pattern file");
    refuse("%%MatrixMarket matrix csr real general\n1 1 1\n", "line 1: format 'csr'");
    refuse("%%MatrixMarket matrix coordinate float general\n1 1 1\n", "line 1: field 'float'");
    refuse("%%MatrixMarket matrix coordinate real diagonal\n1 1 1\n", "line 1: symmetry 'diagonal'");
    refuse("", "line 1: expected '%%MatrixMarket");
    refuse("hello\n", "line 1: expected '%%MatrixMarket");
    refuse("%%MatrixMarket matrix coordinate real\n", "line 1: expected '%%MatrixMarket");
}

static void truncated_files_say_how_far_they_go(void **state) {
    (void)state;
    const char *whole = "%%MatrixMarket matrix coordinate real general\n9 9 3\n1 1 1\n2 2 2\n3 3 3\n";
    refuse("%%MatrixMarket matrix coordinate real general\n", "line 1: the file ends before its sizes");
    refuse("%%MatrixMarket matrix coordinate real general\n9 9 3\n1 1 1\n2 2 2\n",
           "line 4: the file ends after 2 of the 3 entries that line 2 promises");
    refuse("%%MatrixMarket matrix array real general\n2 2\n1\n", "after 1 of the 4 entries");
    for (size_t length = 0; length + 2 < strlen(whole); length++) { /* the last number may lose its line's end */
        char part[128] = "";
        mtx m;
        mtx_error error;
        memcpy(part, whole, length);
        assert_false(mtx_read_memory(part, length, PLENTY, &m, &error));
        assert_non_null(strstr(error.text, "line "));
    }
}

static void files_that_lie_about_their_size_are_refused(void **state) {
    (void)state;
    refuse("%%MatrixMarket matrix coordinate real general\n2 2 1\n1 1 1\n2 2 2\n", "line 4: more entries than the 1");
    refuse("%%MatrixMarket matrix coordinate real general\n2 2 5\n", "line 2: 5 entries do not fit");
    refuse("%%MatrixMarket matrix coordinate real symmetric\n2 2 4\n", "line 2: 4 entries do not fit");
    refuse("%%MatrixMarket matrix coordinate real general\n2147483648 2 1\n", "line 2: expected rows and columns");
    refuse("%%MatrixMarket matrix coordinate real general\n-1 2 1\n", "line 2: expected rows and columns");
    refuse("%%MatrixMarket matrix coordinate real general\n2 2 99999999999999999999\n",
           "line 2: expected rows, columns and");
    refuse("%%MatrixMarket matrix coordinate real general\n2147483647 2147483647 4000000000000000000\n1 1 1\n",
           "line 3: the file ends after 1");
    refuse("%%MatrixMarket matrix array real general\n2147483647 2147483647\n1\n", "line 3: the file ends after 1");
    refuse("%%MatrixMarket matrix coordinate real symmetric\n2 3 1\n2 1 1\n",
           "line 2: a symmetric matrix must be square");
    refuse("%%MatrixMarket matrix coordinate real general\n2 2 1 7\n1 1 1\n", "line 2: '7' after the sizes");
}

static void nonsense_is_refused_on_its_line(void **state) {
    (void)state;
#define HEAD "%%MatrixMarket matrix coordinate real general\n2 2 1\n"
    refuse(HEAD "0 1 1\n", "line 3: row 0 is outside 1 to 2");
    refuse(HEAD "3 1 1\n", "line 3: row 3 is outside 1 to 2");
    refuse(HEAD "1 3 1\n", "line 3: column 3 is outside 1 to 2");
    refuse(HEAD "1 99999999999999999999 1\n", "line 3: expected a row and a column");
    refuse(HEAD "1 1\n", "line 3: expected a finite number");
    refuse(HEAD "1 1 x\n", "line 3: expected a finite number, but found 'x'");
    refuse(HEAD "1 1 nan\n", "line 3: expected a finite number");
    refuse(HEAD "1 1 1e999\n", "line 3: expected a finite number");
    refuse(HEAD "1 1 1 1\n", "line 3: '1' after the entry");
    refuse(HEAD "1.5 1 1\n", "line 3: expected a row and a column");
    refuse("%%MatrixMarket matrix coordinate integer general\n2 2 1\n1 1 1.5\n", "line 3: expected a whole number");
    refuse("%%MatrixMarket matrix coordinate real symmetric\n2 2 1\n1 2 1\n", "line 3: a symmetric file");
    refuse("%%MatrixMarket matrix coordinate real skew-symmetric\n2 2 1\n1 1 1\n", "line 3: a skew-symmetric file");
    mtx m;
    mtx_error error;
    assert_false(mtx_read_memory(HEAD "1 1 \0001\n", sizeof(HEAD "1 1 \0001\n") - 1, PLENTY, &m, &error));
    assert_non_null(strstr(error.text, "line 3: holds a zero byte"));
#undef HEAD
}

static void long_lines_are_refused_unless_they_are_comments(void **state) {
    (void)state;
    static char text[8000];
    int at = sprintf(text, "%%%%MatrixMarket matrix coordinate real general\n%%");
    memset(text + at, 'c', 3000);
    sprintf(text + at + 3000, "\n1 1 1\n1 1 1\n");
    mtx m = read_text(text);
    assert_int_equal(m.count, 1);
    mtx_free(&m);
    at = sprintf(text, "%%%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 1");
    memset(text + at, ' ', 3000);
    strcpy(text + at + 3000, "\n");
    refuse(text, "line 3: longer than 1024");
}

static void memory_stays_below_the_limit(void **state) {
    (void)state;
    static char text[100000];
    int at = sprintf(text, "%%%%MatrixMarket matrix coordinate pattern general\n100 100 5000\n");
    for (int i = 0; i < 5000; i++) at += sprintf(text + at, "%d %d\n", i % 100 + 1, i / 100 + 1);
    mtx m;
    mtx_error error;
    assert_false(mtx_read_memory(text, strlen(text), 4000 * sizeof(mtx_entry), &m, &error));
    assert_non_null(strstr(error.text, "too large"));
    m = read_text("%%MatrixMarket matrix coordinate pattern general\n2147483647 2147483647 1\n2147483647 2147483647\n");
    blocks b;
    assert_false(mtx_block(&m, 1, 1, PLENTY, &b, NULL, &error));
    assert_non_null(strstr(error.text, "more than is allowed"));
    assert_true(mtx_block(&m, 1 << 20, 1 << 20, PLENTY, &b, NULL, &error));
    assert_int_equal(b.count, 1);
    assert_int_equal(b.col_idx[0], 2047);
    blocks_free(&b);
    double *values;
    assert_false(mtx_block(&m, 1 << 20, 1 << 20, PLENTY, &b, &values, &error));
    assert_null(values);
    mtx_free(&m);
}

static void files_that_cannot_be_opened_are_reported(void **state) {
    (void)state;
    mtx m;
    mtx_error error;
    assert_false(mtx_read_file("/nonexistent/a.mtx", PLENTY, &m, &error));
    assert_non_null(strstr(error.text, "cannot be opened"));
    assert_false(mtx_read_file("/", PLENTY, &m, &error)); /* opens, but cannot be read */
    assert_non_null(strstr(error.text, "line "));
}

static void a_file_reads_like_memory(void **state) {
    (void)state;
    char name[] = "/tmp/test_mtx_XXXXXX";
    int fd = mkstemp(name);
    const char *text = "%%MatrixMarket matrix coordinate real general\n3 4 2\n3 4 2.5\n1 1 -1\n";
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    mtx m;
    mtx_error error;
    assert_true(mtx_read_file(name, PLENTY, &m, &error));
    unlink(name);
    assert_int_equal(m.count, 2);
    assert_int_equal(m.entries[0].row, 2);
    assert_int_equal(m.entries[0].col, 3);
    assert_true(m.entries[0].value == 2.5);
    mtx_free(&m);
}

/* Blocking against the definition: every entry is found in its block, sums included, and nothing else is stored. */
static void check_blocking(const mtx *m, int64_t br, int64_t bc) {
    blocks b;
    double *values;
    mtx_error error;
    if (!mtx_block(m, br, bc, PLENTY, &b, &values, &error)) fail_msg("%s", error.text);
    assert_int_equal(b.row_ptr[0], 0);
    assert_int_equal(b.row_ptr[b.grid_rows], b.count);
    double *dense = calloc((size_t)(m->rows * m->cols), sizeof *dense);
    bool *stored = calloc((size_t)(b.grid_rows * b.grid_cols), sizeof *stored);
    for (int64_t i = 0; i < m->count; i++) {
        const mtx_entry *e = &m->entries[i];
        dense[e->row * m->cols + e->col] += e->value;
        stored[e->row / br * b.grid_cols + e->col / bc] = true;
    }
    int64_t expected = 0;
    for (int64_t i = 0; i < b.grid_rows * b.grid_cols; i++) expected += stored[i];
    assert_int_equal(b.count, expected);
    for (int64_t row = 0; row < b.grid_rows; row++)
        for (int64_t t = b.row_ptr[row]; t < b.row_ptr[row + 1]; t++) {
            assert_true(b.col_idx[t] >= 0 && b.col_idx[t] < b.grid_cols);
            assert_true(t == b.row_ptr[row] || b.col_idx[t] > b.col_idx[t - 1]);
            assert_true(stored[row * b.grid_cols + b.col_idx[t]]);
            for (int64_t e = 0; e < br * bc; e++) {
                int64_t i = row * br + e / bc, j = b.col_idx[t] * bc + e % bc;
                double want = i < m->rows && j < m->cols ? dense[i * m->cols + j] : 0;
                assert_true(values[t * br * bc + e] == want);
            }
        }
    free(dense);
    free(stored);
    free(values);
    blocks_free(&b);
}

static void blocks_hold_every_entry_for_any_shape(void **state) {
    (void)state;
    uint64_t random = 12345;
    mtx_entry entries[400];
    for (int round = 0; round < 50; round++) {
        mtx m = {.rows = 1 + round * 3 % 37, .cols = 1 + round * 7 % 41, .entries = entries, .count = round * 8};
        for (int64_t i = 0; i < m.count; i++) { /* some places come up twice: they are added */
            random = random * 6364136223846793005u + 1442695040888963407u;
            entries[i] = (mtx_entry){(int32_t)((random >> 33) % (uint64_t)m.rows),
                                     (int32_t)((random >> 20) % (uint64_t)m.cols), (double)(random >> 60)};
        }
        check_blocking(&m, 1 + round % 5, 1 + round % 7);
        check_blocking(&m, 1, 1);
        check_blocking(&m, 64, 3);
    }
}

static void a_block_side_below_one_is_refused(void **state) {
    (void)state;
    mtx m = {.rows = 4, .cols = 4};
    blocks b;
    mtx_error error;
    assert_false(mtx_block(&m, 0, 4, PLENTY, &b, NULL, &error));
    assert_false(mtx_block(&m, 4, -1, PLENTY, &b, NULL, &error));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(coordinate_files_are_read),
        cmocka_unit_test(symmetric_files_give_both_halves),
        cmocka_unit_test(array_files_are_read_by_columns_without_their_zeros),
        cmocka_unit_test(empty_matrices_are_ordinary),
        cmocka_unit_test(what_is_not_supported_is_named),
        cmocka_unit_test(truncated_files_say_how_far_they_go),
        cmocka_unit_test(files_that_lie_about_their_size_are_refused),
        cmocka_unit_test(nonsense_is_refused_on_its_line),
        cmocka_unit_test(long_lines_are_refused_unless_they_are_comments),
        cmocka_unit_test(memory_stays_below_the_limit),
        cmocka_unit_test(files_that_cannot_be_opened_are_reported),
        cmocka_unit_test(a_file_reads_like_memory),
        cmocka_unit_test(blocks_hold_every_entry_for_any_shape),
        cmocka_unit_test(a_block_side_below_one_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
