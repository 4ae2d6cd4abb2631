/* Stored blocks cut along the lines of dense tiles: put together again, the patches are the matrix. No GPU needed. */
#include "support.h"

#include "kernels/cuda/common/tile_patches.h"

/* A random matrix of blocks, and op(A) as a kernel sees it: transposed, the values stay where they are. */
typedef struct blocks {
    sat_rows r;
    sat_pattern_view view;
    int64_t *ptr, *block;
    int32_t *col;
} blocks;

static blocks make_blocks(uint64_t *random, bool transposed) {
    int64_t sides[] = {1, 2, 3, 8, 16, 17, 64, 100};
    int64_t br = sides[random_below(random, 8)], bc = sides[random_below(random, 8)];
    int64_t rows = random_below(random, 9), cols = 1 + random_below(random, 9), percent = random_below(random, 101);
    blocks b = {0};
    b.ptr = calloc((size_t)rows + 1, sizeof *b.ptr);
    b.block = malloc((size_t)(rows * cols + 1) * sizeof *b.block);
    b.col = malloc((size_t)(rows * cols + 1) * sizeof *b.col);
    int64_t stored = 0;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j++)
            if (random_below(random, 100) < percent) b.col[stored++] = (int32_t)j;
        b.ptr[i + 1] = stored;
    }
    for (int64_t t = 0; t < stored; t++) b.block[t] = stored - 1 - t; /* any order will do */
    b.r =
        (sat_rows){.count = rows, .ptr = b.ptr, .col = b.col, .block = transposed ? b.block : NULL, .br = br, .bc = bc};
    b.r.row_step = transposed ? 1 : bc, b.r.col_step = transposed ? br : 1, b.r.block_elements = br * bc;
    b.r.m = rows * br - (rows ? random_below(random, br) : 0), b.r.k = cols * bc - random_below(random, bc);
    b.view = (sat_pattern_view){.stored_blocks = stored, .grid_rows = rows, .grid_cols = cols};
    return b;
}

static void free_blocks(blocks *b) { free(b->ptr), free(b->block), free(b->col); }

/* Where each element of the matrix is among the values; -1: it is not stored. */
static int64_t *places_of_blocks(const blocks *b, const sat_patch_shape *s) {
    const sat_rows *r = &b->r;
    int64_t *place = malloc((size_t)(s->rows * s->cols + 1) * sizeof *place);
    for (int64_t i = 0; i < s->rows * s->cols; i++) place[i] = -1;
    for (int64_t row = 0; row < r->count; row++)
        for (int64_t t = r->ptr[row]; t < r->ptr[row + 1]; t++)
            for (int64_t i = 0; i < r->br; i++)
                for (int64_t j = 0; j < r->bc; j++) {
                    int64_t y = row * r->br + i, x = r->col[t] * r->bc + j;
                    if (y < s->rows && x < s->cols)
                        place[y * s->cols + x] =
                            sat_block_of(r, t) * r->block_elements + i * r->row_step + j * r->col_step;
                }
    return place;
}

static void take_patch(const blocks *b, const sat_patch_shape *s, const sat_patch_tile *t, const sat_patch *p,
                       int64_t *place) {
    assert_true(p->height > 0 && p->row + p->height <= s->tile_rows);
    assert_true(p->width > 0 && p->col + p->width <= s->tile_cols);
    for (int i = 0; i < p->height; i++)
        for (int j = 0; j < p->width; j++) {
            int64_t y = (int64_t)t->row * s->tile_rows + p->row + i, x = (int64_t)t->col * s->tile_cols + p->col + j;
            assert_true(y < s->rows && x < s->cols);
            assert_int_equal(place[y * s->cols + x], p->from + i * b->r.row_step + j * b->r.col_step);
            place[y * s->cols + x] = -1; /* each element once */
        }
}

static void check_patches(const blocks *b, const sat_patch_shape *s) {
    sat_patches x;
    int64_t *place = places_of_blocks(b, s);
    assert_true(sat_patches_fit(&b->view, &b->r, s));
    assert_true(sat_patches_make(&b->r, s, &x));
    assert_int_equal(x.rows, (s->rows + s->tile_rows - 1) / s->tile_rows);
    assert_int_equal(x.ptr[x.rows], x.tiles);
    assert_true((double)x.count <= sat_patches_bound(&b->view, &b->r, s));
    assert_true(x.tiles <= x.count);
    int64_t seen = 0;
    for (int64_t row = 0; row < x.rows; row++)
        for (uint32_t t = x.ptr[row]; t < x.ptr[row + 1]; t++) {
            assert_int_equal(x.tile[t].row, row);
            assert_true(t == x.ptr[row] || x.tile[t].col > x.tile[t - 1].col);
            assert_int_equal(x.tile[t].first, seen);
            assert_true(x.tile[t].count > 0); /* a tile without patches is none */
            for (uint32_t i = 0; i < x.tile[t].count; i++, seen++) take_patch(b, s, &x.tile[t], &x.patch[seen], place);
        }
    assert_int_equal(seen, x.count);
    for (int64_t i = 0; i < s->rows * s->cols; i++) assert_int_equal(place[i], -1); /* none is left */
    sat_patches_free(&x);
    assert_null(x.patch);
    free(place);
}

static void patches_are_the_matrix(void **unused) {
    (void)unused;
    uint64_t random = 11;
    int tiles[] = {16, 32, 64};
    for (int round = 0; round < 400; round++) {
        blocks b = make_blocks(&random, round & 1);
        bool whole = round % 3 == 0; /* with what blocks hold beyond the matrix */
        sat_patch_shape s = {whole ? b.r.count * b.r.br : b.r.m, whole ? b.view.grid_cols * b.r.bc : b.r.k,
                             tiles[random_below(&random, 3)], tiles[random_below(&random, 3)]};
        check_patches(&b, &s);
        free_blocks(&b);
    }
}

static void too_many_patches_do_not_fit(void **unused) {
    (void)unused;
    sat_rows r = {.count = 1 << 20, .br = 1, .bc = 1, .block_elements = 1};
    sat_patch_shape s = {1 << 20, 1 << 10, 16, 64};
    sat_pattern_view few = {.stored_blocks = SAT_MOST_PATCHES}, many = {.stored_blocks = SAT_MOST_PATCHES + 1};
    assert_true(sat_patches_fit(&few, &r, &s));
    assert_false(sat_patches_fit(&many, &r, &s));
    sat_patch_shape wide = {1 << 20, 1 << 20, 16, 64}; /* a table of all tiles would be too large */
    assert_false(sat_patches_fit(&few, &r, &wide));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(patches_are_the_matrix),
                                       cmocka_unit_test(too_many_patches_do_not_fit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
