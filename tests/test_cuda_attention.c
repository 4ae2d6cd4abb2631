/* What the Hopper attention kernel visits, work item by work item, against the definition: every kept pair once, no
 * other, with as few tiles as there can be, and the longest items first. */
#include "support.h"

#include "kernels/cuda/attention/attention_lists.h"
#include "problems.h"

typedef struct visit {
    const sat_mask *k;
    int warpgroups;
    int32_t keys; /* of a tile */
    sat_band band;
    unsigned char *seen;   /* of a mask: m x n */
    const uint64_t *words; /* of all masks; NULL: half tiles are kept whole */
    int64_t mask;
} visit;

/* Whether a key of the half tile that begins at `first` is in a stored block, as the kernel finds out. */
static bool has_bit(const visit *x, int64_t i, int64_t first, int64_t key) {
    int64_t half = x->keys / 2, row = sat_mask_row(x->k, x->mask, i);
    if (!x->words) return true;
    assert_int_equal(first % half, 0);
    return x->words[row * sat_half_tiles(x->k, half) + first / half] >> (key - first) & 1;
}

/* What a warpgroup does with a half that begins at `key`; `tested`: the kernel would test every pair of the tile. Gives
 * the pairs that are kept. */
static int64_t visit_half(visit *x, const sat_attention_item *p, int32_t row, int32_t key, bool tested) {
    int64_t kept = 0;
    if (key == SAT_NO_HALF_TILE) return 0;
    assert_int_equal(key % SAT_KEY_ALIGN, 0);
    for (int32_t i = row; i < row + SAT_WARPGROUP_ROWS && i < p->row_end; i++) {
        int32_t left = sat_row_begin(p, i, x->band), right = sat_row_end(p, i, x->band);
        for (int32_t j = key; j < key + x->keys / 2; j++) {
            bool inside = j >= left && j < right;
            if (!tested) assert_true(inside);
            if (!inside || !has_bit(x, i, key, j)) continue;
            assert_in_range(j, 0, x->k->n - 1);
            x->seen[i * x->k->n + j]++, kept++;
        }
    }
    return kept;
}

/* No tile is fetched in vain, and no half of a list's, unless blocks are kept in part: then a block's rows may be on
 * the other side of a limit than its keys. */
static void visit_tile(visit *x, const sat_attention_item *p, int32_t a, int32_t b, int who) {
    int64_t kept = 0;
    for (int g = 0; g < x->warpgroups; g++) {
        if (!(who >> g & 1)) continue;
        int32_t row = p->row[g], low = sat_row_begin(p, row + SAT_WARPGROUP_ROWS - 1, x->band);
        int32_t high = sat_row_end(p, row, x->band) - x->keys / 2;
        bool tested = a > high || b > high || a < low || b < low;
        int64_t first = visit_half(x, p, row, a, tested), second = visit_half(x, p, row, b, tested);
        if (p->list >= 0 && !x->words) assert_true(first > 0 && (second > 0 || b == SAT_NO_HALF_TILE));
        kept += first + second;
    }
    if (!x->words) assert_true(kept > 0);
}

/* What all warpgroups want comes once for all of them, and half tiles come by twos. Where an odd one is left of what
 * all want and of each one's own, everybody takes it along with its own. Turns are taken where all visit all. */
static void check_list(const visit *x, const sat_attention_items *l, const sat_attention_item *p) {
    int all = (1 << x->warpgroups) - 1;
    int64_t half = x->keys / 2, shared = 0, own[SAT_MAX_WARPGROUPS] = {0}, apart = 0, along = 0, others = 0;
    char *who = calloc((size_t)(x->k->n / half) + 1, 1);
    for (int32_t i = p->list; i < p->list + p->key_tiles; i++) {
        const sat_key_tile *e = &l->tile[i];
        who[e->first / half] |= (char)(e->first & all);
        if (e->second != SAT_NO_HALF_TILE) who[e->second / half] |= (char)(e->first & all);
        others += (e->first & all) != all;
    }
    for (int64_t c = 0; c <= x->k->n / half; c++)
        for (int g = 0; g < x->warpgroups; g++)
            if (who[c] == all) shared += g == 0;
            else own[g] += who[c] >> g & 1;
    for (int g = 0; g < x->warpgroups; g++) apart += (own[g] + 1) / 2, along += (own[g] + 2) / 2;
    apart += (shared + 1) / 2, along += shared / 2;
    assert_int_equal(p->key_tiles, shared ? sat_min(apart, along) : apart);
    assert_int_equal(p->pingpong, others == 0);
    free(who);
}

/* Gives its tiles. */
static int32_t visit_item(visit *x, const sat_attention_items *l, sat_attention_item p) {
    int all = (1 << x->warpgroups) - 1;
    if (p.list < 0) {
        sat_clip_keys(&p, SAT_WARPGROUP_ROWS * x->warpgroups, x->keys, x->band);
        for (int32_t i = 0; i < p.key_tiles; i++) {
            int32_t key = sat_range_tile(&p, i, x->keys);
            if (i == 0) assert_true(key + x->keys >= p.key_end); /* what causality cuts comes first */
            visit_tile(x, &p, key, key + x->keys / 2, all);
        }
        return p.key_tiles;
    }
    check_list(x, l, &p);
    int32_t before[SAT_MAX_WARPGROUPS] = {0};
    for (int32_t i = p.list; i < p.list + p.key_tiles; i++) {
        int who = sat_warpgroup_mask(l->tile[i]);
        assert_in_range(i, 0, l->listed - 1);
        assert_in_range(who, 1, all);
        if (p.pingpong) assert_int_equal(who, all);
        for (int g = 0; g < x->warpgroups; g++) { /* a warpgroup that waited for longer would stop the others */
            if (!(who >> g & 1)) continue;
            if (before[g]) assert_true(i + 1 - before[g] <= x->warpgroups);
            before[g] = i + 1;
        }
        visit_tile(x, &p, sat_first_key(l->tile[i]), l->tile[i].second, who);
    }
    return p.key_tiles;
}

/* The items of a problem without lists, as the kernel computes them. */
static void computed_items(const sat_mask *k, int warpgroups, sat_attention_items *l) {
    l->items = (k->m + SAT_WARPGROUP_ROWS * warpgroups - 1) / (SAT_WARPGROUP_ROWS * warpgroups);
    l->item = calloc((size_t)l->items + 1, sizeof *l->item);
    for (int64_t i = 0; i < l->items; i++) {
        sat_attention_item *p = &l->item[i];
        for (int g = 0; g < SAT_MAX_WARPGROUPS; g++) p->row[g] = (int32_t)(i * warpgroups + g) * SAT_WARPGROUP_ROWS;
        p->row_end = (int32_t)k->m, p->diagonal = (int32_t)(k->n - k->m), p->key_end = (int32_t)k->n;
        p->list = -1, p->pingpong = 1;
    }
}

static void compare(const sat_problem *p, const sat_pattern_view *a, int warpgroups, int32_t keys) {
    sat_mask k = sat_mask_of(p, a);
    int64_t masks = k.full ? 1 : sat_mask_count(&k, p);
    if (!k.full && !sat_lists_fit(&k, keys / 2)) return;
    sat_attention_items l = {0};
    bool plain = k.full && !k.sequences;
    if (plain) computed_items(&k, warpgroups, &l);
    else assert_true(sat_items_make(&k, masks, a->stored_blocks, warpgroups, keys / 2, &l));
    assert_true(l.items <= sat_max_items(&k, warpgroups));
    if (!k.full) assert_true((double)l.listed <= sat_max_listed(&k, a->stored_blocks, keys / 2));
    uint64_t *words = NULL;
    if (sat_needs_words(&k, keys / 2)) {
        words = malloc((size_t)(a->grid_rows * sat_half_tiles(&k, keys / 2) + 1) * sizeof *words);
        sat_fill_words(&k, a->grid_rows, keys / 2, words);
    }
    visit x = {&k, warpgroups, keys, sat_band_of(&k), malloc((size_t)(k.m * k.n) + 1), words, 0};
    for (int64_t h = 0; h < masks; h++) {
        x.mask = h;
        memset(x.seen, 0, (size_t)(k.m * k.n));
        int32_t tiles = 0;
        for (int64_t i = 0; i < l.items; i++) {
            int32_t before = tiles;
            tiles = visit_item(&x, &l, l.item[h * l.items + i]);
            if (i > 0 && !plain) assert_true(before >= tiles); /* the longest first */
        }
        for (int64_t i = 0; i < k.m; i++) {
            sat_range r = sat_keys_of(&k, i);
            for (int64_t j = 0; j < k.n; j++) {
                bool kept = j >= r.begin && j < r.end && sat_mask_stores(&k, h, i, j);
                assert_int_equal(x.seen[i * k.n + j], kept);
            }
        }
    }
    free(x.seen), free(words);
    sat_items_free(&l);
}

static void offsets_of(uint64_t *r, int64_t length, int64_t step, int64_t *offsets) {
    offsets[0] = 0, offsets[4] = length;
    for (int i = 1; i < 4; i++) {
        int64_t x = offsets[i - 1] + random_below(r, length / 2 + 1);
        offsets[i] = sat_min(x / step * step, length);
        if (offsets[i] < offsets[i - 1]) offsets[i] = offsets[i - 1];
    }
}

static void every_kept_pair_is_visited_once(void **state) {
    (void)state;
    static const int64_t sides[] = {64, 128, 192, 1, 1000, 320, 16, 24, 48, 100};
    static const int32_t widths[] = {128, 80, 64};
    uint64_t r = 5;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    for (int i = 0; i < 600; i++) {
        int64_t heads = 1 + random_below(&r, 2), m = 1 + random_below(&r, 700), n = 1 + random_below(&r, 700);
        int64_t br = sides[random_below(&r, 10)], bc = sides[random_below(&r, 10)];
        bool own = random_below(&r, 3) == 0;
        sat_problem p = attention_problem(SAT_F16, heads, heads, 64);
        p.m = m, p.n = n, p.batch = 1;
        p.attention.causal = random_below(&r, 2), p.attention.window = random_below(&r, 2) * random_below(&r, 300);
        int64_t rows = own ? heads * ((m + br - 1) / br) * br : m;
        double density = random_below(&r, 3) ? (double)(1 + random_below(&r, 9)) / 10 : 1;
        sat_pattern *pattern = random_pattern(ctx, &r, rows, n, br, bc, density, false);
        sat_pattern_view v = view_of(pattern);
        int64_t q_offsets[5], kv_offsets[5];
        offsets_of(&r, m, density < 1 ? 64 : 1, q_offsets), offsets_of(&r, n, 1, kv_offsets);
        if (random_below(&r, 3) == 0) v.sequences = 4, v.q_offsets = q_offsets, v.kv_offsets = kv_offsets;
        for (int warpgroups = 1; warpgroups <= SAT_MAX_WARPGROUPS; warpgroups++)
            compare(&p, &v, warpgroups, widths[random_below(&r, 3)]);
        sat_pattern_free(pattern);
    }
    sat_context_free(ctx);
}

/* Blocks of 64 x 64, two warpgroups, half tiles of 64 keys: 64 rows number i keep `length[i]` half tiles from `from[i]`
 * on. With whom do the first ones share a CTA? */
static int32_t partner_of_first(int units, const int32_t *from, const int32_t *length) {
    int64_t ptr[9] = {0};
    int32_t col[256];
    for (int i = 0; i < units; i++) {
        ptr[i + 1] = ptr[i] + length[i];
        for (int j = 0; j < length[i]; j++) col[ptr[i] + j] = from[i] + j;
    }
    sat_mask k = {.m = units * 64, .n = 64 * 64, .block_rows = 64, .block_cols = 64, .row_ptr = ptr, .col_idx = col};
    sat_attention_items l = {0};
    int32_t partner = -1;
    assert_true(sat_items_make(&k, 1, ptr[units], 2, 64, &l));
    for (int64_t i = 0; i < l.items; i++)
        if (l.item[i].row[0] == 0) partner = l.item[i].row[1] / 64;
    sat_items_free(&l);
    return partner;
}

/* A CTA takes as long as its longest rows: 8 beside 8, and 2 alone. */
static void rows_of_like_length_share_a_CTA(void **state) {
    (void)state;
    assert_int_equal(partner_of_first(3, (int32_t[]){0, 10, 20}, (int32_t[]){8, 2, 8}), 2);
    assert_int_equal(partner_of_first(4, (int32_t[]){0, 10, 20, 30}, (int32_t[]){8, 2, 8, 2}), 2);
}

/* By length 0 and 2 would be together, but 0 and 1 read the same keys, which are then fetched once. */
static void neighbours_that_share_keys_share_a_CTA(void **state) {
    (void)state;
    assert_int_equal(partner_of_first(4, (int32_t[]){0, 0, 20, 20}, (int32_t[]){9, 8, 9, 8}), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_kept_pair_is_visited_once),
                                       cmocka_unit_test(rows_of_like_length_share_a_CTA),
                                       cmocka_unit_test(neighbours_that_share_keys_share_a_CTA)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
