/* Fuzzes the Matrix Market reader and its blocking. What is taken must be inside the matrix, and its blocks must be a
 * valid pattern that holds every entry. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cli/mtx.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(bool holds) {
    if (!holds) abort();
}

static void check_blocks(const mtx *m, int64_t block_rows, int64_t block_cols) {
    blocks b;
    double *values;
    mtx_error error;
    if (!mtx_block(m, block_rows, block_cols, 1 << 24, &b, &values, &error)) {
        demand(error.text[0] && !b.row_ptr && !b.col_idx && !values);
        return;
    }
    demand(b.row_ptr[0] == 0 && b.row_ptr[b.grid_rows] == b.count && b.count <= m->count);
    for (int64_t row = 0; row < b.grid_rows; row++)
        for (int64_t i = b.row_ptr[row]; i < b.row_ptr[row + 1]; i++)
            demand(b.col_idx[i] >= 0 && b.col_idx[i] < b.grid_cols &&
                   (i == b.row_ptr[row] || b.col_idx[i - 1] < b.col_idx[i]));
    for (int64_t i = 0; i < m->count; i++) {
        int64_t row = m->entries[i].row / block_rows, col = m->entries[i].col / block_cols, at = b.row_ptr[row];
        while (at < b.row_ptr[row + 1] && b.col_idx[at] != col) at++;
        demand(at < b.row_ptr[row + 1]);
    }
    free(values);
    blocks_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mtx m;
    mtx_error error;
    memset(error.text, 0, sizeof error.text);
    if (!mtx_read_memory((const char *)data, size, 1 << 20, &m, &error)) {
        demand(strncmp(error.text, "line ", 5) == 0 && !m.entries);
        return 0;
    }
    for (int64_t i = 0; i < m.count; i++) {
        const mtx_entry *e = &m.entries[i];
        demand(e->row >= 0 && e->row < m.rows && e->col >= 0 && e->col < m.cols && isfinite(e->value));
    }
    check_blocks(&m, 1, 1);
    check_blocks(&m, 1 + data[size - 1] % 9, 1 + data[size / 2] % 70);
    check_blocks(&m, INT64_MAX, 1 << 30);
    mtx_free(&m);
    return 0;
}
