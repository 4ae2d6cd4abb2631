/* The schedule of attention against the definition, pair by pair. */
#include "support.h"

#include "kernels/attention_schedule.h"
#include "problems.h"

static bool kept(const sat_mask *k, int64_t h, int64_t i, int64_t j) {
    sat_range r = sat_keys_of(k, i), q = sat_queries_of(k, j);
    bool inside = j >= r.begin && j < r.end;
    bool other = i >= q.begin && i < q.end; /* the other way round says the same, within a sequence */
    if (!k->sequences) assert_int_equal(inside, other);
    else if (inside) assert_true(other);
    return inside && sat_mask_stores(k, h, i, j);
}

/* Which pairs the schedule visits, and that whole tiles are whole. */
static void compare(const sat_problem *p, const sat_pattern_view *a, int64_t q_rows, int64_t k_rows) {
    sat_mask k = sat_mask_of(p, a);
    sat_attention_schedule *s = sat_attention_schedule_make(p, a, q_rows, k_rows, true);
    assert_non_null(s);
    double pairs = 0, visited = 0, by_key = 0;
    for (int64_t place = 0; place < s->by_query.places; place++) {
        const sat_tile *q = &s->q[place % s->q_tiles];
        int64_t h = place / s->q_tiles, before = -1;
        char *seen = calloc((size_t)k.n + 1, 1);
        for (int64_t t = s->by_query.start[place]; t < s->by_query.start[place + 1]; t++) {
            const sat_tile *x = &s->k[sat_step_tile(s->by_query.step[t])];
            assert_true(sat_step_tile(s->by_query.step[t]) > before);
            before = sat_step_tile(s->by_query.step[t]);
            memset(seen + x->first, 1, (size_t)x->count);
            int64_t inside = 0;
            for (int64_t i = q->first; i < q->first + q->count; i++) {
                int64_t row = 0;
                for (int64_t j = x->first; j < x->first + x->count; j++) row += kept(&k, h, i, j);
                if (x->count <= 64)
                    assert_int_equal(row, __builtin_popcountll(sat_mask_bits(&k, h, i, x->first, x->count)));
                inside += row;
            }
            visited += (double)inside;
            bool whole = inside == q->count * k_rows;
            if (!sat_step_edge(s->by_query.step[t])) assert_true(whole);
        }
        for (int64_t i = q->first; i < q->first + q->count; i++)
            for (int64_t j = 0; j < k.n; j++) {
                bool yes = kept(&k, h, i, j);
                pairs += yes;
                if (yes) assert_true(seen[j]);
            }
        free(seen);
    }
    assert_true(visited == pairs);
    assert_true(pairs * (double)p->attention.heads / (double)s->masks * (double)p->batch == sat_pairs(p, a));
    assert_int_equal(s->by_key.steps, s->by_query.steps);
    for (int64_t place = 0; place < s->by_key.places; place++)
        for (int64_t t = s->by_key.start[place]; t < s->by_key.start[place + 1]; t++) {
            int64_t q = place / s->k_tiles * s->q_tiles + sat_step_tile(s->by_key.step[t]);
            int32_t want = sat_step(place % s->k_tiles, sat_step_edge(s->by_key.step[t]));
            bool found = false;
            for (int64_t u = s->by_query.start[q]; u < s->by_query.start[q + 1]; u++)
                found = found || s->by_query.step[u] == want;
            assert_true(found);
            by_key++;
        }
    assert_true(by_key == (double)s->by_query.steps);
    for (int64_t i = 1; i < s->by_query.places; i++) {
        int64_t x = s->by_query.order[i - 1], y = s->by_query.order[i];
        assert_true(s->by_query.start[x + 1] - s->by_query.start[x] >= s->by_query.start[y + 1] - s->by_query.start[y]);
    }
    sat_attention_schedule_free(s);
}

static void it_visits_what_is_kept(void **state) {
    (void)state;
    uint64_t r = 3;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    for (int i = 0; i < 400; i++) {
        int64_t heads = 1 + random_below(&r, 3), m = random_below(&r, 100), n = random_below(&r, 140);
        int64_t br = 1 + random_below(&r, 40), bc = 1 + random_below(&r, 40);
        bool own = random_below(&r, 3) == 0 && m > 0;
        sat_problem p = attention_problem(SAT_F32, heads, heads, 8);
        p.m = m, p.n = n, p.batch = 1;
        p.attention.causal = random_below(&r, 2), p.attention.window = random_below(&r, 2) * random_below(&r, 50);
        int64_t rows = own ? heads * ((m + br - 1) / br) * br : m;
        sat_pattern *pattern = random_pattern(ctx, &r, rows, n, br, bc, random_below(&r, 3) ? 0.5 : 1, false);
        sat_pattern_view v = view_of(pattern);
        const int64_t q_offsets[] = {0, m / 3, m / 3, m}, kv_offsets[] = {0, n / 2, n / 2 + n / 4, n};
        if (random_below(&r, 2)) v.sequences = 3, v.q_offsets = q_offsets, v.kv_offsets = kv_offsets;
        compare(&p, &v, 1 + random_below(&r, 64), 1 + random_below(&r, 64));
        sat_pattern_free(pattern);
    }
    sat_context_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(it_visits_what_is_kept)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
