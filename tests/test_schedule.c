/* The schedules of CUDA kernels: every stored block is in exactly one work item, split rows are reduced once, and tiles
 * come in an order in which CTAs end together and panels stay in L2. No GPU needed. */
#include "support.h"

#include "kernels/cuda/common/long_sums.h"
#include "kernels/cuda/common/schedule.h"

typedef enum style { SOME_EMPTY, ONE_GIANT, ONE_ROW, EQUAL, ALL_EMPTY, NO_ROWS, STYLES } style;

/* Rows with so many blocks each; only what a schedule reads. */
static sat_rows make_rows(uint64_t *state, style s) {
    int64_t count = s == NO_ROWS ? 0 : s == ONE_ROW ? 1 : 1 + random_below(state, 300), same = random_below(state, 40);
    int64_t *ptr = malloc((size_t)(count + 1) * sizeof *ptr), giant = count ? random_below(state, count) : 0;
    ptr[0] = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t blocks = random_below(state, 20);
        if (s == SOME_EMPTY && random_below(state, 2)) blocks = 0;
        if (s == ONE_GIANT && i == giant) blocks = 1000 + random_below(state, 100000);
        if (s == ONE_ROW) blocks = random_below(state, 5000);
        if (s == EQUAL) blocks = same;
        if (s == ALL_EMPTY) blocks = 0;
        ptr[i + 1] = ptr[i] + blocks;
    }
    int32_t *col = malloc((size_t)(ptr[count] + 1) * sizeof *col);
    for (int64_t i = 0; i < ptr[count]; i++) col[i] = (int32_t)random_below(state, 1 << 30);
    return (sat_rows){
        .count = count, .ptr = ptr, .col = col, .br = 1 + random_below(state, 64), .bc = 1 + random_below(state, 64)};
}

/* The work items in the order of the blocks, as they were before they were sorted by length. */
static int by_place(const void *a, const void *b) {
    const sat_work_item *x = a, *y = b;
    if (x->row != y->row) return x->row < y->row ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

static void check_order(const sat_schedule *s) {
    for (int64_t i = 1; i < s->items; i++) {
        const sat_work_item *x = &s->item[i - 1], *y = &s->item[i];
        assert_true(x->count > y->count || (x->count == y->count && x->first <= y->first));
    }
}

/* Heavy items come first and have over twice the mean of the items with blocks; the others have not. */
static void check_heavy(const sat_rows *r, const sat_schedule *s) {
    int64_t busy = 0;
    for (int64_t i = 0; i < s->items; i++) busy += s->item[i].count > 0;
    assert_true(s->heavy >= 0 && s->heavy <= busy / 2);
    for (int64_t i = 0; i < s->items; i++) {
        bool over = busy && (double)s->item[i].count > 2.0 * (double)r->ptr[r->count] / (double)busy;
        assert_int_equal(over, i < s->heavy);
    }
}

/* Every slice and panel of every work item has one number. */
static void check_tiles(uint64_t *random, const sat_schedule *s) {
    unsigned slices = 1 + (unsigned)random_below(random, 3), panels = 1 + (unsigned)random_below(random, 9);
    unsigned items = (unsigned)s->items, heavy = (unsigned)s->heavy, tiles = items * slices * panels;
    sat_tile_order all = {items, heavy, slices, panels, 0};
    double panel_bytes = (double)random_below(random, 1 << 24);
    all.panels_in_flight = sat_panels_in_flight(s->even, s->items * slices, panels, panel_bytes, 3 * 132, 60e6);
    assert_true(all.panels_in_flight >= 1 && all.panels_in_flight <= panels);
    assert_true(!s->even || all.panels_in_flight == 1);
    char *seen = calloc((size_t)tiles + 1, 1);
    for (unsigned i = 0; i < tiles; i++) {
        sat_tile_coordinates t = sat_tile_at(&all, i);
        assert_true(t.item < items && t.slice < slices && t.panel < panels);
        assert_int_equal(t.item < heavy, i < heavy * slices * panels);
        char *one = &seen[(t.item * slices + t.slice) * panels + t.panel];
        assert_int_equal(*one, 0);
        *one = 1;
    }
    free(seen);
}

/* Every row from its first block to its last, without gaps, and partials one after the other. */
static void check_cover(const sat_rows *r, const sat_schedule *s, int64_t share) {
    int64_t at = 0, splits = 0, partials = 0;
    qsort(s->item, (size_t)s->items, sizeof *s->item, by_place);
    for (int64_t row = 0; row < r->count; row++) {
        int64_t block = r->ptr[row], length = r->ptr[row + 1] - block, parts = 0, begin = at;
        for (; at < s->items && s->item[at].row == row; at++, parts++) {
            assert_int_equal(s->item[at].first, block);
            assert_true(s->item[at].count <= share + share / 4);
            for (int64_t t = 0; t < s->item[at].count && t < SAT_ITEM_COLUMNS; t++)
                assert_int_equal(s->item[at].col[t], r->col[block + t]);
            block += s->item[at].count;
        }
        assert_int_equal(block, r->ptr[row + 1]);
        assert_true(parts >= 1); /* an empty row has its output to write */
        if (parts == 1) {
            assert_int_equal(s->item[begin].partial, -1);
            continue;
        }
        assert_true(splits < s->splits);
        assert_int_equal(s->split[splits].row, row);
        assert_int_equal(s->split[splits].partial, partials);
        assert_int_equal(s->split[splits].parts, parts);
        for (int64_t i = 0; i < parts; i++) {
            assert_int_equal(s->item[begin + i].partial, partials + i);
            assert_true(s->item[begin + i].count > 0);
            assert_in_range(s->item[begin + i].count, length / parts, (length + parts - 1) / parts); /* alike */
        }
        splits++, partials += parts;
    }
    assert_int_equal(at, s->items);
    assert_int_equal(splits, s->splits);
    assert_int_equal(partials, s->partials);
}

/* As sat_upload_schedule lays it out: work items, split rows, then partial sums at a multiple of 256 bytes. */
static void check_bytes(const sat_rows *r, const sat_schedule *s, int64_t share, int64_t n, size_t element) {
    size_t head = (size_t)s->items * sizeof *s->item + (size_t)s->splits * sizeof *s->split;
    size_t sums = (size_t)s->partials * (size_t)r->br * (size_t)n * element;
    assert_true(sat_schedule_workspace(r, share, n, element) >= (head + 255) / 256 * 256 + sums);
}

static void every_block_is_in_exactly_one_work_item(void **unused) {
    (void)unused;
    uint64_t random = 1;
    for (int round = 0; round < 600; round++) {
        sat_rows r = make_rows(&random, (style)(round % STYLES));
        int64_t times = 1 + random_below(&random, 40), workers = 1 + random_below(&random, 600);
        int64_t share = sat_schedule_share(&r, times, workers, 1 + random_below(&random, 16));
        if (round % 3 == 0) share = 1 + random_below(&random, 8);
        sat_schedule_counts counted = sat_schedule_count(&r, share);
        sat_schedule s;
        assert_true(sat_schedule_make(&r, share, &s));
        assert_int_equal(s.items, counted.items);
        assert_int_equal(s.splits, counted.splits);
        assert_int_equal(s.partials, counted.partials);
        check_order(&s);
        check_heavy(&r, &s);
        check_tiles(&random, &s);
        check_cover(&r, &s, share);
        check_bytes(&r, &s, share, random_below(&random, 300), round & 1 ? 4 : 8);
        sat_schedule_free(&s);
        assert_null(s.item);
        free((void *)(uintptr_t)r.ptr), free((void *)(uintptr_t)r.col);
    }
}

/* The sampled product's: whole rows, one after the other, each block once. */
static void every_block_is_in_exactly_one_run(void **unused) {
    (void)unused;
    uint64_t random = 2;
    for (int round = 0; round < 300; round++) {
        sat_rows r = make_rows(&random, (style)(round % STYLES));
        sat_pattern_view a = {SAT_SIZED(sat_pattern_view), .grid_rows = r.count, .row_ptr = r.ptr, .col_idx = r.col,
                              .stored_blocks = r.ptr[r.count]};
        int64_t each = 1 + random_below(&random, 16), block = 0;
        int64_t count = sat_schedule_runs(&a, each, NULL);
        sat_work_item *item = malloc((size_t)(count + 1) * sizeof *item);
        assert_int_equal(sat_schedule_runs(&a, each, item), count);
        for (int64_t i = 0; i < count; i++) {
            const sat_work_item *p = &item[i];
            assert_int_equal(p->first, block);
            assert_true(p->count >= 1 && p->count <= each);
            assert_true(p->first >= r.ptr[p->row] && p->first + p->count <= r.ptr[p->row + 1]);
            assert_true(p->count == each || p->first + p->count == r.ptr[p->row + 1]); /* as few as can be */
            block += p->count;
        }
        assert_int_equal(block, a.stored_blocks);
        free(item), free((void *)(uintptr_t)r.ptr), free((void *)(uintptr_t)r.col);
    }
}

static void a_share_is_fair_and_never_below_the_least(void **unused) {
    (void)unused;
    int64_t ptr[] = {0, 100, 300, 1000};
    sat_rows r = {.count = 3, .ptr = ptr};
    assert_true(sat_schedule_share(&r, 1, 10, 1) >= 100);
    assert_true(sat_schedule_share(&r, 1, 10, 1) <= 101);
    assert_true(sat_schedule_share(&r, 4, 10, 1) >= 400);
    assert_true(sat_schedule_share(&r, 1, 7, 1) * 7 >= 1000); /* rounding leaves nothing over */
    assert_int_equal(sat_schedule_share(&r, 1, 1000000, 8), 8);
    assert_int_equal(sat_schedule_share(&r, 1, 0, 1), sat_schedule_share(&r, 1, 1, 1));
    assert_true(sat_schedule_share(&r, INT64_MAX, 1, 1) > 0);
}

static void a_row_slightly_above_the_share_stays_whole(void **unused) {
    (void)unused;
    assert_int_equal(sat_schedule_parts(0, 8), 1);
    assert_int_equal(sat_schedule_parts(8, 8), 1);
    assert_int_equal(sat_schedule_parts(10, 8), 1);
    assert_int_equal(sat_schedule_parts(11, 8), 2);
    assert_int_equal(sat_schedule_parts(80, 8), 10);
}

static void equal_rows_are_not_cut_by_a_fair_share(void **unused) {
    (void)unused;
    uint64_t random = 7;
    for (int round = 0; round < 50; round++) {
        sat_rows r = make_rows(&random, EQUAL);
        sat_schedule_counts s = sat_schedule_count(&r, sat_schedule_share(&r, 1, r.count, 1));
        assert_int_equal(s.items, r.count);
        assert_int_equal(s.partials, 0);
        free((void *)(uintptr_t)r.ptr), free((void *)(uintptr_t)r.col);
    }
}

static void heavy_is_over_twice_the_mean_and_even_no_quarter_over_it(void **unused) {
    (void)unused;
    static const struct {
        int64_t blocks[5], heavy;
        bool even;
    } cases[] = {/* a mean of 8: empty rows do not count */
                 {{8, 8, 0, 8, 8}, 0, true},   {{8, 10, 6, 8, 0}, 0, true},  {{8, 11, 5, 8, 0}, 0, false},
                 {{16, 4, 0, 4, 8}, 0, false}, {{4, 17, 4, 7, 0}, 1, false}, {{0, 0, 0, 0, 0}, 0, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t ptr[6] = {0};
        for (int j = 0; j < 5; j++) ptr[j + 1] = ptr[j] + cases[i].blocks[j];
        sat_rows r = {.count = 5, .ptr = ptr};
        sat_schedule s;
        assert_true(sat_schedule_make(&r, 1000, &s));
        assert_int_equal(s.heavy, cases[i].heavy);
        assert_int_equal(s.even, cases[i].even);
        sat_schedule_free(&s);
    }
}

/* Pieces are numbered from the longest on, so within the heavy ones, and within a group of panels, numbers rise. */
static void heavy_rows_come_first_then_groups_of_panels_each_from_its_longest_row_on(void **unused) {
    (void)unused;
    uint64_t random = 3;
    for (int round = 0; round < 300; round++) {
        sat_tile_order all = {.items = 1 + (unsigned)random_below(&random, 20), .slices = 1 + (unsigned)(round % 3)};
        all.heavy = (unsigned)random_below(&random, all.items), all.panels = 1 + (unsigned)random_below(&random, 12);
        all.panels_in_flight = 1 + (unsigned)random_below(&random, all.panels);
        unsigned turn = 0, item = 0;
        for (unsigned i = 0; i < all.items * all.slices * all.panels; i++) {
            sat_tile_coordinates t = sat_tile_at(&all, i);
            unsigned now = t.item < all.heavy ? 0 : 1 + t.panel / all.panels_in_flight;
            assert_true(now > turn || (now == turn && t.item >= item));
            turn = now, item = t.item;
        }
    }
}

enum { WORKERS = 132 };
static const double L2 = 60e6;

/* A CTA that is free takes the next tile, as from the kernels' counter. Returns when the last one ends. */
static int64_t makespan(const sat_schedule *s, const sat_tile_order *all) {
    int64_t done[WORKERS] = {0}, most = 0;
    for (unsigned i = 0; i < all->items * all->panels; i++) {
        int next = 0;
        for (int w = 1; w < WORKERS; w++)
            if (done[w] < done[next]) next = w;
        done[next] += s->item[sat_tile_at(all, i).item].count;
        most = sat_max(most, done[next]);
    }
    return most;
}

/* Nothing can end before a fair share of the work and the longest work item are done. No long row begins late: then
 * what is left over at the end is less than a row of mean length. Rows and panels are powers of two, for which no group
 * of panels is a small one. */
static void skewed_rows_end_within_a_mean_tile_of_the_best(void **unused) {
    (void)unused;
    uint64_t random = 9;
    for (int round = 0; round < 64; round++) {
        int64_t ptr[257] = {0}, rows = 32 << round % 4, panels = 4 << round / 4 % 4;
        for (int64_t i = 0; i < rows; i++) {
            int64_t blocks[] = {1 + random_below(&random, 64), 1 + 64 / (1 + i % 37), i % 16 == 5 ? 64 : 8,
                                i == 7 ? 600 : 8};
            ptr[i + 1] = ptr[i] + blocks[round / 16];
        }
        sat_rows r = {.count = rows, .ptr = ptr};
        sat_schedule s;
        assert_true(sat_schedule_make(&r, sat_schedule_share(&r, panels, WORKERS, 4), &s));
        sat_tile_order all = {(unsigned)s.items, (unsigned)s.heavy, 1, (unsigned)panels, 0};
        all.panels_in_flight = sat_panels_in_flight(s.even, s.items, panels, 2e6, 3 * WORKERS, L2);
        double work = (double)(ptr[rows] * panels), best = fmax(work / WORKERS, s.item[0].count);
        assert_true((double)makespan(&s, &all) < best + (double)ptr[rows] / (double)s.items);
        sat_schedule_free(&s);
    }
}

/* How panels are grouped where rows differ. */
typedef struct grouping {
    int64_t tiles, panels, together; /* tiles of a panel; panels of a group */
    double bytes;                    /* of a panel */
} grouping;

static grouping random_grouping(uint64_t *random) {
    grouping g = {1 + random_below(random, 400), 1 + random_below(random, 64), 0, 0};
    g.bytes = (double)random_below(random, 1 << (14 + random_below(random, 12)));
    g.together = sat_panels_in_flight(false, g.tiles, g.panels, g.bytes, 3 * WORKERS, L2);
    assert_in_range(g.together, 1, g.panels);
    assert_int_equal(sat_panels_in_flight(true, g.tiles, g.panels, g.bytes, 3 * WORKERS, L2), 1);
    return g;
}

static void panels_of_a_group_leave_a_quarter_of_L2_to_what_is_written(void **unused) {
    (void)unused;
    uint64_t random = 4;
    for (int round = 0; round < 5000; round++) {
        grouping g = random_grouping(&random);
        assert_true(g.together == 1 || (double)g.together * g.bytes <= 0.75 * L2);
    }
}

/* Some: two to four. There may be fewer where there are no more panels, or where twice as many would fill half of L2.
 */
static void a_group_of_panels_gives_each_CTA_some_tiles_and_no_more(void **unused) {
    (void)unused;
    uint64_t random = 5;
    for (int round = 0; round < 5000; round++) {
        grouping g = random_grouping(&random);
        bool all = g.together == g.panels, full = 2 * (double)(g.together + 1) * g.bytes >= 0.5 * L2;
        assert_true(all || full || g.together * g.tiles >= 2 * WORKERS);
        assert_true(g.together == 1 || g.together / 2 * g.tiles < 4 * WORKERS); /* half of it would not do */
    }
}

/* The last group lacks less than a panel for each group. */
static void groups_of_panels_are_alike(void **unused) {
    (void)unused;
    uint64_t random = 6;
    for (int round = 0; round < 5000; round++) {
        grouping g = random_grouping(&random);
        int64_t groups = (g.panels + g.together - 1) / g.together;
        assert_true(groups * g.together - g.panels < groups);
    }
    /* 4096^3, block 128, transposed: all 16 panels are faster than 10 and then 6 (docs/internals/hopper.md) */
    assert_int_equal(sat_panels_in_flight(false, 32, 16, 2.0 * 256 * 4096, 3 * WORKERS, L2), 16);
}

/* Of a work item of so many blocks, as launches for items of up to `longest` take it: each column of each block once
 * and in order, no lane's share longer than a part, a first launch and a last one. */
static void check_parts(const sat_problem *p, int64_t count, int64_t longest, int64_t depth, int64_t lanes) {
    sat_parts parts = sat_parts_in_c(p, depth, lanes);
    sat_row_part part = sat_row_part_at(0, 0, parts, depth);
    int64_t block = 0, column = 0;
    bool ended = false;
    int launches = 0;
    do {
        sat_work_item item = {.first = 1000, .row = 7, .count = (int32_t)count, .partial = -1};
        bool last = false;
        assert_int_equal(part.first, launches == 0);
        launches++;
        if (!sat_take_part(&part, &item, &last)) continue;
        assert_false(ended);
        ended = last;
        if (item.count == 0) continue;
        assert_int_equal(item.first, 1000 + block);
        assert_int_equal(part.column, column);
        assert_true(item.count * part.deep <= lanes * SAT_SUM_PART || parts.blocks > count);
        column += part.deep;
        if (column == depth) column = 0, block += item.count;
    } while (sat_next_row_part(&part, parts, depth, longest));
    assert_true(ended);
    assert_int_equal(block, count);
    assert_int_equal(column, 0);
    int64_t terms = longest * depth;
    if (terms <= lanes * SAT_SUM_PART || parts.blocks > longest) assert_int_equal(launches, 1);
}

static void launches_of_parts_take_every_column_of_every_block_once(void **state) {
    (void)state;
    uint64_t random = 3;
    sat_problem p = {.compute_dtype = SAT_F32, .c_dtype = SAT_F32},
                halves = {.compute_dtype = SAT_F32, .c_dtype = SAT_F16};
    for (int i = 0; i < 3000; i++) {
        int64_t depth = 1 + random_below(&random, i % 3 ? 300 : 20000), lanes = 1 << random_below(&random, 8);
        int64_t longest = random_below(&random, i % 3 ? 5000 : 40), count = random_below(&random, longest + 1);
        check_parts(&p, i % 2 ? longest : count, longest, depth, lanes);
        check_parts(&halves, count, longest, depth, lanes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_is_in_exactly_one_work_item),
        cmocka_unit_test(every_block_is_in_exactly_one_run),
        cmocka_unit_test(a_share_is_fair_and_never_below_the_least),
        cmocka_unit_test(a_row_slightly_above_the_share_stays_whole),
        cmocka_unit_test(equal_rows_are_not_cut_by_a_fair_share),
        cmocka_unit_test(heavy_is_over_twice_the_mean_and_even_no_quarter_over_it),
        cmocka_unit_test(heavy_rows_come_first_then_groups_of_panels_each_from_its_longest_row_on),
        cmocka_unit_test(skewed_rows_end_within_a_mean_tile_of_the_best),
        cmocka_unit_test(panels_of_a_group_leave_a_quarter_of_L2_to_what_is_written),
        cmocka_unit_test(a_group_of_panels_gives_each_CTA_some_tiles_and_no_more),
        cmocka_unit_test(groups_of_panels_are_alike),
        cmocka_unit_test(launches_of_parts_take_every_column_of_every_block_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
