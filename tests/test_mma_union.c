// Plans of rows taken together: every 16 x 16 cell of every stored block once, in the order of k.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/cuda/mma_union.h"

enum { ROWS = 40, COLS = 30 };

static uint32_t state = 1;
static uint32_t draw(uint32_t n) { return (state = state * 1664525u + 1013904223u) / 65536 % n; }

typedef struct pattern {
    int64_t ptr[ROWS + 1], block[ROWS * COLS];
    int32_t col[ROWS * COLS];
    sat_rows r;
} pattern;

static void make(pattern *p, int64_t br, int64_t bc, uint32_t per_cent) {
    int64_t rows = 1 + draw(ROWS - 1), cols = 1 + draw(COLS - 1), at = 0;
    for (int64_t i = 0; i < rows; i++) {
        p->ptr[i] = at;
        for (int64_t j = 0; j < cols; j++)
            if (draw(100) < per_cent) p->col[at++] = (int32_t)j;
        p->ptr[i + 1] = at;
    }
    for (int64_t b = 0; b < at; b++) p->block[b] = at - 1 - b;
    p->r = (sat_rows){.count = rows,
                      .ptr = p->ptr,
                      .col = p->col,
                      .br = br,
                      .bc = bc,
                      .block_elements = br * bc,
                      .m = rows * br - draw((uint32_t)br),
                      .k = cols * bc - draw((uint32_t)bc)};
    bool turned = draw(2);
    p->r.row_step = turned ? 1 : bc, p->r.col_step = turned ? br : 1;
    if (draw(2)) p->r.block = p->block;
}

// The position of the block of a row that begins at or before k, or -1.
static int64_t block_at(const sat_rows *r, int64_t row, int64_t k) {
    for (int64_t b = r->ptr[row]; b < r->ptr[row + 1]; b++)
        if (r->col[b] == k / r->bc) return b;
    return -1;
}

static int64_t check_stage(const sat_rows *r, const sat_union_stage *s, int64_t group) {
    int64_t found = 0;
    assert_in_range(s->units, 0, SAT_UNION_UNITS);
    assert_in_range(s->cells, 0, SAT_UNION_CELLS);
    for (int64_t strip = 0; strip < 16; strip++) {
        int64_t row = (group * SAT_UNION_ROWS + strip * 16) / r->br, in = strip * 16 % r->br;
        for (int unit = 0; unit < SAT_UNION_UNITS; unit++) {
            int slot = s->slot[strip / 4][unit][strip % 4];
            int64_t b = unit < s->units && row < r->count ? block_at(r, row, s->k[unit]) : -1;
            assert_int_equal(slot == SAT_UNION_NONE, b < 0);
            if (b < 0) continue;
            int64_t k = s->k[unit] % r->bc, block = sat_block_of(r, b) * r->block_elements;
            assert_int_equal((int64_t)s->cell[slot] * 8, block + in * r->row_step + k * r->col_step);
            assert_int_equal(s->unit[slot], unit);
            found++;
        }
    }
    assert_int_equal(found, s->cells);
    for (int unit = 1; unit < s->units; unit++) assert_true(s->k[unit] > s->k[unit - 1]);
    return found;
}

static void every_cell_is_in_a_plan_once(void **unused) {
    (void)unused;
    static const int64_t heights[] = {16, 32, 64}, widths[] = {16, 32, 48, 128};
    pattern *p = calloc(1, sizeof *p);
    assert_non_null(p);
    for (int round = 0; round < 300; round++) {
        make(p, heights[draw(3)], widths[draw(4)], draw(3) ? draw(40) : 100 * draw(2));
        int64_t groups = sat_union_groups(&p->r), count = sat_union_build(&p->r, NULL, NULL), cells = 0, want = 0;
        sat_union_stage *s = calloc((size_t)count, sizeof *s);
        uint32_t *first = calloc((size_t)groups + 1, sizeof *first);
        assert_true(s && first);
        assert_int_equal(sat_union_build(&p->r, s, first), count);
        assert_int_equal(first[groups], count);
        for (int64_t g = 0; g < groups; g++) {
            int32_t before = -1;
            assert_true(first[g] < first[g + 1]);
            for (uint32_t i = first[g]; i < first[g + 1]; i++) {
                cells += check_stage(&p->r, &s[i], g);
                assert_int_equal(s[i].last, i + 1 == first[g + 1]);
                if (s[i].units == 0) continue;
                assert_true(s[i].k[0] > before);
                before = s[i].k[s[i].units - 1];
                assert_int_equal(s[i].ragged, before + 16 > p->r.k);
            }
        }
        for (int64_t b = 0; b < p->r.ptr[p->r.count]; b++) {
            int64_t depth = sat_min(p->r.bc, p->r.k - p->r.col[b] * p->r.bc);
            want += (depth + 15) / 16 * (p->r.br / 16);
        }
        assert_int_equal(cells, want);
        free(s);
        free(first);
    }
    free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_cell_is_in_a_plan_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
