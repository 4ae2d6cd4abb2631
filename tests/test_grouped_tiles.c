/* How CUDA kernels cut products of groups into tiles: every tile of a product has one number, neighbours in a band
 * share columns, and no offsets give more tiles than a launch counts on. No GPU needed. */
#include "support.h"

#include "kernels/cuda/grouped/grouped_tiles.h"
#include "problems.h"

static const int tiles[][2] = {{128, 256}, {128, 128}, {64, 256}, {64, 128}, {16, 128}, {64, 64}};
enum { TILES = sizeof tiles / sizeof *tiles };

static sat_problem draw(uint64_t *r, bool weights) {
    sat_problem p = {SAT_SIZED(sat_problem)};
    int64_t m = random_below(r, random_below(r, 2) ? 400 : 20000), n = 1 + random_below(r, 3000);
    int64_t k = 1 + random_below(r, 3000), groups = random_below(r, random_below(r, 2) ? 6 : 400);
    if (weights) assert_ok(sat_problem_grouped_weights(&p, SAT_F16, m, n, k, groups));
    else assert_ok(sat_problem_grouped(&p, SAT_F16, m, n, k, groups));
    return p;
}

static void each_tile_of_a_product_has_one_number(void **state) {
    uint64_t random = 4;
    (void)state;
    for (int number = 0; number < 2000; number++) {
        sat_problem p = draw(&random, number % 2);
        const int *tile = tiles[number % TILES];
        grouped_order o = grouped_order_of(&p, NULL, tile[0], tile[1]);
        int32_t begin = (int32_t)random_below(&random, p.m + 1);
        int32_t end = begin + (int32_t)random_below(&random, p.m - begin + 1);
        uint32_t rows = grouped_row_tiles(&o, begin, end), wanted = (uint32_t)(o.weights ? p.k : end - begin);
        assert_true(rows * (uint32_t)tile[0] >= wanted && (rows == 0 || (rows - 1) * (uint32_t)tile[0] < wanted));
        unsigned char *seen = calloc((size_t)rows * o.panels + 1, 1);
        uint32_t panel = 0, first = 0;
        for (uint32_t i = 0; i < rows * o.panels; i++) {
            grouped_tile t = {0};
            grouped_place(&o, rows, i, &t);
            assert_true(t.row_tile < rows && t.panel < o.panels);
            assert_int_equal(seen[t.row_tile * o.panels + t.panel]++, 0);
            uint32_t band = t.row_tile / (uint32_t)o.band;
            if (i > 0 && band == first) assert_true(t.panel == panel || t.panel == panel + 1);
            if (i > 0) assert_true(band == first || band == first + 1);
            panel = t.panel, first = band;
        }
        free(seen);
    }
}

static void no_offsets_give_more_tiles_than_there_can_be(void **state) {
    uint64_t random = 9;
    (void)state;
    for (int number = 0; number < 2000; number++) {
        sat_problem p = draw(&random, number % 2);
        const int *tile = tiles[number % TILES];
        grouped_order o = grouped_order_of(&p, NULL, tile[0], tile[1]);
        int64_t groups = p.grouped.groups, before = 0;
        double count = 0;
        for (int64_t g = 0; g < groups; g++) { /* groups of one row more than tiles have waste most */
            int64_t left = p.m - before,
                    some = number % 3 ? 1 + tile[0] * random_below(&random, 2) : random_below(&random, left + 1);
            int64_t end = before + sat_min(some, left);
            count += (double)grouped_row_tiles(&o, (int32_t)before, (int32_t)end) * o.panels;
            before = end;
        }
        if (!o.weights) count += (double)grouped_row_tiles(&o, (int32_t)before, (int32_t)p.m) * o.panels;
        assert_true(count <= grouped_most_tiles(&p, tile[0], tile[1]));
        assert_true(grouped_fits(&p, tile[0], tile[1]));
    }
    sat_problem large = draw(&random, false);
    large.m = 0x7fff0001;
    assert_false(grouped_fits(&large, 128, 256));
    large.m = 0x7fff0000, large.n = 0x7fff0000;
    assert_false(grouped_fits(&large, 128, 256));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_tile_of_a_product_has_one_number),
        cmocka_unit_test(no_offsets_give_more_tiles_than_there_can_be),
    };
    return cmocka_run_group_tests_name("grouped_tiles", tests, NULL, NULL);
}
