/* What the Hopper attention kernel visits, piece by piece, against the definition: every kept pair once, no other, with
 * as few tiles as there can be, and the longest pieces first. */
#include "support.h"

#include "kernels/cuda/attention/attention_pieces.h"

typedef struct visit {
    const sat_mask *k;
    int groups;
    int32_t keys; /* of a tile */
    sat_att_reach reach;
    unsigned char *seen; /* of a mask: m x n */
} visit;

/* What a warpgroup does with a half that begins at `key`; `tested`: the kernel would test every pair of the tile. Gives
 * the pairs that are kept. */
static int64_t visit_half(visit *x, const sat_att_piece *p, int32_t row, int32_t key, bool tested) {
    int64_t kept = 0;
    if (key == SAT_ATT_NONE) return 0;
    assert_int_equal(key % SAT_ATT_STEP, 0);
    for (int32_t i = row; i < row + SAT_ATT_ROWS && i < p->row_end; i++) {
        int32_t left = sat_att_left(p, i, x->reach), right = sat_att_right(p, i, x->reach);
        for (int32_t j = key; j < key + x->keys / 2; j++) {
            bool inside = j >= left && j < right;
            if (!tested) assert_true(inside);
            if (!inside) continue;
            assert_in_range(j, 0, x->k->n - 1);
            x->seen[i * x->k->n + j]++, kept++;
        }
    }
    return kept;
}

/* No tile is fetched in vain, and no half of a list's. */
static void visit_tile(visit *x, const sat_att_piece *p, int32_t a, int32_t b, int who) {
    int64_t kept = 0;
    for (int g = 0; g < x->groups; g++) {
        if (!(who >> g & 1)) continue;
        int32_t row = p->row[g], low = sat_att_left(p, row + SAT_ATT_ROWS - 1, x->reach);
        int32_t high = sat_att_right(p, row, x->reach) - x->keys / 2;
        bool tested = a > high || b > high || a < low || b < low;
        int64_t first = visit_half(x, p, row, a, tested), second = visit_half(x, p, row, b, tested);
        if (p->first >= 0) assert_true(first > 0 && (second > 0 || b == SAT_ATT_NONE));
        kept += first + second;
    }
    assert_true(kept > 0);
}

/* What all warpgroups want comes once for all of them, and chunks come by twos. Where an odd one is left of what all
 * want and of each one's own, everybody takes it along with its own. Turns are taken where all visit all. */
static void check_list(const visit *x, const sat_att_lists *l, const sat_att_piece *p) {
    int all = (1 << x->groups) - 1;
    int64_t half = x->keys / 2, shared = 0, own[SAT_ATT_GROUPS] = {0}, apart = 0, along = 0, others = 0;
    char *who = calloc((size_t)(x->k->n / half) + 1, 1);
    for (int32_t i = p->first; i < p->first + p->count; i++) {
        const sat_att_entry *e = &l->entry[i];
        who[e->a / half] |= (char)(e->a & all);
        if (e->b != SAT_ATT_NONE) who[e->b / half] |= (char)(e->a & all);
        others += (e->a & all) != all;
    }
    for (int64_t c = 0; c <= x->k->n / half; c++)
        for (int g = 0; g < x->groups; g++)
            if (who[c] == all) shared += g == 0;
            else own[g] += who[c] >> g & 1;
    for (int g = 0; g < x->groups; g++) apart += (own[g] + 1) / 2, along += (own[g] + 2) / 2;
    apart += (shared + 1) / 2, along += shared / 2;
    assert_int_equal(p->count, shared ? sat_min(apart, along) : apart);
    assert_int_equal(p->order, others == 0);
    free(who);
}

/* Gives its tiles. */
static int32_t visit_piece(visit *x, const sat_att_lists *l, sat_att_piece p) {
    int all = (1 << x->groups) - 1;
    if (p.first < 0) {
        sat_att_narrow(&p, SAT_ATT_ROWS * x->groups, x->keys, x->reach);
        for (int32_t i = 0; i < p.count; i++) {
            int32_t key = sat_att_tile_at(&p, i, x->keys);
            if (i == 0) assert_true(key + x->keys >= p.key_end); /* what causality cuts comes first */
            visit_tile(x, &p, key, key + x->keys / 2, all);
        }
        return p.count;
    }
    check_list(x, l, &p);
    int32_t before[SAT_ATT_GROUPS] = {0};
    for (int32_t i = p.first; i < p.first + p.count; i++) {
        int who = l->entry[i].a & (SAT_ATT_STEP - 1);
        assert_in_range(i, 0, l->entries - 1);
        assert_in_range(who, 1, all);
        if (p.order) assert_int_equal(who, all);
        for (int g = 0; g < x->groups; g++) { /* a warpgroup that waited for longer would stop the others */
            if (!(who >> g & 1)) continue;
            if (before[g]) assert_true(i + 1 - before[g] <= x->groups);
            before[g] = i + 1;
        }
        visit_tile(x, &p, l->entry[i].a & -SAT_ATT_STEP, l->entry[i].b, who);
    }
    return p.count;
}

/* The pieces of a problem without lists, as the kernel makes them up. */
static void plain_pieces(const sat_mask *k, int groups, sat_att_lists *l) {
    l->pieces = (k->m + SAT_ATT_ROWS * groups - 1) / (SAT_ATT_ROWS * groups);
    l->piece = calloc((size_t)l->pieces + 1, sizeof *l->piece);
    for (int64_t i = 0; i < l->pieces; i++) {
        sat_att_piece *p = &l->piece[i];
        for (int g = 0; g < SAT_ATT_GROUPS; g++) p->row[g] = (int32_t)(i * groups + g) * SAT_ATT_ROWS;
        p->row_end = (int32_t)k->m, p->diagonal = (int32_t)(k->n - k->m), p->key_end = (int32_t)k->n;
        p->first = -1, p->order = 1;
    }
}

static void compare(const sat_problem *p, const sat_pattern_view *a, int groups, int32_t keys) {
    sat_mask k = sat_mask_of(p, a);
    int64_t masks = k.full ? 1 : sat_mask_count(&k, p);
    if (!k.full && !sat_att_lists_fit(&k, keys / 2)) return;
    sat_att_lists l = {0};
    bool plain = k.full && !k.sequences;
    if (plain) plain_pieces(&k, groups, &l);
    else assert_true(sat_att_lists_make(&k, masks, a->stored_blocks, groups, keys / 2, &l));
    assert_true(l.pieces <= sat_att_most_pieces(&k, groups));
    if (!k.full) assert_true((double)l.entries <= sat_att_most_entries(&k, a->stored_blocks, keys / 2));
    visit x = {&k, groups, keys, sat_att_reach_of(&k), malloc((size_t)(k.m * k.n) + 1)};
    for (int64_t h = 0; h < masks; h++) {
        memset(x.seen, 0, (size_t)(k.m * k.n));
        int32_t tiles = 0;
        for (int64_t i = 0; i < l.pieces; i++) {
            int32_t before = tiles;
            tiles = visit_piece(&x, &l, l.piece[h * l.pieces + i]);
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
    free(x.seen);
    sat_att_lists_free(&l);
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
    static const int64_t sides[] = {64, 128, 192, 64, 1000, 320};
    static const int32_t widths[] = {128, 80, 64};
    uint64_t r = 5;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    for (int i = 0; i < 600; i++) {
        int64_t heads = 1 + random_below(&r, 2), m = 1 + random_below(&r, 700), n = 1 + random_below(&r, 700);
        int64_t br = sides[random_below(&r, 6)], bc = sides[random_below(&r, 6)];
        bool own = random_below(&r, 3) == 0;
        sat_problem p = sat_attention_problem(SAT_F16, heads, heads, 64);
        p.m = m, p.n = n, p.batch = 1;
        p.attention.causal = random_below(&r, 2), p.attention.window = random_below(&r, 2) * random_below(&r, 300);
        int64_t rows = own ? heads * ((m + br - 1) / br) * br : m;
        double density = random_below(&r, 3) ? (double)(1 + random_below(&r, 9)) / 10 : 1;
        sat_pattern *pattern = random_pattern(ctx, &r, rows, n, br, bc, density, false);
        sat_pattern_view v = view_of(pattern);
        int64_t q_offsets[5], kv_offsets[5];
        offsets_of(&r, m, density < 1 ? 64 : 1, q_offsets), offsets_of(&r, n, 1, kv_offsets);
        if (random_below(&r, 3) == 0) v.sequences = 4, v.q_offsets = q_offsets, v.kv_offsets = kv_offsets;
        for (int groups = 1; groups <= SAT_ATT_GROUPS; groups++) compare(&p, &v, groups, widths[random_below(&r, 3)]);
        sat_pattern_free(pattern);
    }
    sat_context_free(ctx);
}

/* Blocks of 64 x 64, two warpgroups, chunks of 64 keys: 64 rows number i keep `length[i]` chunks from `from[i]` on.
 * With whom do the first ones share a CTA? */
static int32_t partner_of_first(int units, const int32_t *from, const int32_t *length) {
    int64_t ptr[9] = {0};
    int32_t col[256];
    for (int i = 0; i < units; i++) {
        ptr[i + 1] = ptr[i] + length[i];
        for (int j = 0; j < length[i]; j++) col[ptr[i] + j] = from[i] + j;
    }
    sat_mask k = {.m = units * 64, .n = 64 * 64, .block_rows = 64, .block_cols = 64, .row_ptr = ptr, .col_idx = col};
    sat_att_lists l = {0};
    int32_t partner = -1;
    assert_true(sat_att_lists_make(&k, 1, ptr[units], 2, 64, &l));
    for (int64_t i = 0; i < l.pieces; i++)
        if (l.piece[i].row[0] == 0) partner = l.piece[i].row[1] / 64;
    sat_att_lists_free(&l);
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
