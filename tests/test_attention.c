/* Attention by the public interface: every bad argument has its status and a message that names it, and results are
 * right against double precision and against themselves. */
#include "support.h"

#include <math.h>
#include "problems.h"

typedef struct fixture {
    sat_context *ctx;
    sat_pattern *pattern; /* 100 x 130, blocks of 16 x 32 */
} fixture;

static int set_up(void **state) {
    static fixture f;
    uint64_t random = 1;
    f.ctx = open_context(SAT_EFFORT_OFF);
    f.pattern = random_pattern(f.ctx, &random, 100, 130, 16, 32, 0.7, false);
    *state = &f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    sat_pattern_free(f->pattern);
    sat_context_free(f->ctx);
    return 0;
}

/* One block that keeps everything. */
static sat_bsr dense_mask(int64_t m, int64_t n) {
    static const int64_t row_ptr[] = {0, 1}, none[] = {0, 0}, col_idx[] = {0};
    sat_bsr b = {SAT_SIZED(sat_bsr), .rows = m, .cols = n, .block_rows = m ? m : 1, .block_cols = n ? n : 1};
    b.stored_blocks = m && n, b.index_type = SAT_I64, b.row_ptr = m && n ? row_ptr : none, b.col_idx = col_idx;
    return b;
}

/* ---- bad input ---- */

static void a_bad_problem_is_refused_by_name(void **state) {
    fixture *f = *state;
    sat_plan *plan = NULL;
    sat_problem p;
#define TRY(change, status, word)                                                                                      \
    p = attention_problem(SAT_F32, 6, 2, 64);                                                                          \
    change;                                                                                                            \
    assert_fails(sat_plan_create(f->ctx, f->pattern, &p, &plan), status, word);                                        \
    assert_null(plan)
    TRY(p.attention.heads = 0, SAT_BAD_SIZE, "heads is 0");
    TRY(p.attention.heads = -6, SAT_BAD_SIZE, "heads is -6");
    TRY(p.attention.kv_heads = 4, SAT_BAD_SIZE, "kv_heads is 4");
    TRY(p.attention.kv_heads = -1, SAT_BAD_SIZE, "kv_heads is -1");
    TRY(p.attention.kv_heads = 12, SAT_BAD_SIZE, "kv_heads is 12");
    TRY(p.attention.dim = 0, SAT_UNSUPPORTED, "dim is 0");
    TRY(p.attention.dim = 577, SAT_UNSUPPORTED, "dim is 577");
    TRY(p.attention.value_dim = -1, SAT_UNSUPPORTED, "value_dim is -1");
    TRY(p.attention.value_dim = 577, SAT_UNSUPPORTED, "value_dim is 577");
    TRY(p.attention.softcap = -1, SAT_UNSUPPORTED, "softcap is -1");
    TRY(p.attention.softcap = NAN, SAT_UNSUPPORTED, "softcap is");
    TRY(p.attention.window = -1, SAT_BAD_SIZE, "window is -1");
    TRY(p.m = 99, SAT_BAD_SIZE, "the mask has 100 rows");
    TRY(p.m = -1, SAT_BAD_SIZE, "m is -1");
    TRY(p.n = 131, SAT_BAD_SIZE, "n is 131");
    TRY(p.k = 32, SAT_BAD_SIZE, "k is 32");
    TRY(p.beta = 1, SAT_UNSUPPORTED, "beta");
    TRY(p.alpha = NAN, SAT_UNSUPPORTED, "alpha");
    TRY(p.room[47] = 1, SAT_BAD_STRUCT, "op attention");
    TRY(p.a_dtype = p.b_dtype = SAT_F16; p.c_dtype = SAT_F32, SAT_UNSUPPORTED, "c_dtype");
    TRY(p.attention.q.row_stride = -1, SAT_BAD_STRIDE, "q:");
    TRY(p.attention.o = ((sat_heads){.head_stride = 6400, .row_stride = 63}), SAT_BAD_STRIDE, "o:");
    TRY(p.batch = 2; p.attention.o = ((sat_heads){.head_stride = 6400, .row_stride = 64}), SAT_BAD_STRIDE, "o:");
    TRY(p.attention.v.row_stride = INT64_MAX / 8, SAT_BAD_SIZE, "v:");
    TRY(p.attention.q.row_stride = 64, SAT_BAD_STRIDE, "q: head_stride is 0");
    TRY(p.attention.v.head_stride = 6400, SAT_BAD_STRIDE, "v: row_stride is 0");
    TRY(p.op = SAT_ATTENTION_BACKWARD; p.attention.do_.head_stride = 64, SAT_BAD_STRIDE, "do: row_stride is 0");
    TRY(p.a_align = 3, SAT_MISALIGNED, "a_align");
    TRY(p.op = SAT_ATTENTION_BACKWARD; p.attention.dk.row_stride = 1, SAT_BAD_STRIDE, "dk:");
    TRY(p.op = SAT_ATTENTION_BACKWARD; p.attention.do_.row_stride = -1, SAT_BAD_STRIDE, "do:");
}

static void bad_offsets_are_refused_by_name(void **state) {
    fixture *f = *state;
    const int64_t falls[] = {0, 60, 40, 100}, over[] = {0, 40, 60, 101}, late[] = {1, 40, 60, 100};
    const int64_t right[] = {0, 40, 60, 100}, keys[] = {0, 50, 50, 100}, little[] = {0, 40, 60, 99};
    sat_pattern *pattern = NULL;
    sat_bsr b = dense_mask(100, 100);
    b.sequences = 3;
    assert_fails(sat_pattern_create(f->ctx, &b, &pattern), SAT_NULL_POINTER, "q_offsets");
    b.q_offsets = falls;
    assert_fails(sat_pattern_create(f->ctx, &b, &pattern), SAT_BAD_ROW_PTR, "q_offsets[2] is 40");
    b.q_offsets = over;
    assert_fails(sat_pattern_create(f->ctx, &b, &pattern), SAT_BAD_ROW_PTR, "q_offsets[3] is 101");
    b.q_offsets = late;
    assert_fails(sat_pattern_create(f->ctx, &b, &pattern), SAT_BAD_ROW_PTR, "q_offsets[0] is 1");
    b.q_offsets = right, b.kv_offsets = falls;
    assert_fails(sat_pattern_create(f->ctx, &b, &pattern), SAT_BAD_ROW_PTR, "kv_offsets[2]");
    b.sequences = -1;
    assert_fails(sat_pattern_create(f->ctx, &b, &pattern), SAT_BAD_SIZE, "sequences is -1");
    b.sequences = 3, b.kv_offsets = keys;
    assert_ok(sat_pattern_create(f->ctx, &b, &pattern));
    sat_pattern_view v = view_of(pattern);
    assert_int_equal(v.sequences, 3);
    assert_int_equal(v.q_offsets[1], 40);
    assert_int_equal(v.kv_offsets[1], 50);
    assert_ptr_equal(v.q_offsets, v.device_q_offsets);
    sat_problem p = attention_problem(SAT_F32, 2, 2, 64);
    sat_plan *plan = NULL;
    p.batch = 2;
    assert_fails(sat_plan_create(f->ctx, pattern, &p, &plan), SAT_BAD_SIZE, "batch is 2");
    sat_pattern_free(pattern);
    b.q_offsets = little, b.kv_offsets = NULL;
    assert_ok(sat_pattern_create(f->ctx, &b, &pattern));
    p.batch = 1;
    assert_fails(sat_plan_create(f->ctx, pattern, &p, &plan), SAT_BAD_ROW_PTR, "q_offsets[3] is 99");
    sat_pattern_free(pattern);
}

/* ---- results ---- */

static void attention_in_double(const sat_pattern_view *a, const sat_attention *t, const float *q, const float *k,
                                const float *v, double *o, double *lse) {
    int64_t share = t->heads / t->kv_heads, m = a->rows, n = a->cols;
    double *p = malloc((size_t)n * sizeof *p);
    for (int64_t h = 0; h < t->heads; h++)
        for (int64_t i = 0; i < m; i++) {
            double most = -INFINITY, sum = 0;
            for (int64_t j = 0; j < n; j++) {
                bool kept = false;
                for (int64_t x = a->row_ptr[i / a->block_rows]; x < a->row_ptr[i / a->block_rows + 1]; x++)
                    kept = kept || a->col_idx[x] == j / a->block_cols;
                if (t->causal && j > i + n - m) kept = false;
                p[j] = kept ? 0 : -INFINITY;
                for (int64_t x = 0; kept && x < t->dim; x++)
                    p[j] += (double)q[(h * m + i) * t->dim + x] * (double)k[(h / share * n + j) * t->dim + x];
                p[j] /= sqrt((double)t->dim);
                most = fmax(most, p[j]);
            }
            for (int64_t j = 0; j < n; j++) sum += p[j] = isinf(most) ? 0 : exp(p[j] - most);
            lse[h * m + i] = sum > 0 ? most + log(sum) : -INFINITY;
            for (int64_t x = 0; x < t->dim; x++) {
                double *to = &o[(h * m + i) * t->dim + x];
                *to = 0;
                for (int64_t j = 0; j < n && sum > 0; j++)
                    *to += p[j] / sum * (double)v[(h / share * n + j) * t->dim + x];
            }
        }
    free(p);
}

static void the_one_call_form_is_right_and_writes_lse_where_it_is_wanted(void **state) {
    fixture *f = *state;
    uint64_t r = 2;
    sat_pattern_view a = view_of(f->pattern);
    sat_problem p = attention_problem(SAT_F32, 4, 2, 40);
    p.attention.causal = true;
    int64_t qs = 4 * 100 * 40, ks = 2 * 130 * 40;
    float *q = random_floats(&r, qs), *k = random_floats(&r, ks), *v = random_floats(&r, ks);
    float *o = malloc((size_t)qs * 4), *lse = malloc(400 * 4);
    double *want = malloc((size_t)qs * 8), want_lse[400];
    attention_in_double(&a, &p.attention, q, k, v, want, want_lse);
    for (int i = 0; i < 3; i++) { /* new, from the pool, without LSE */
        memset(o, 0xff, (size_t)qs * 4), memset(lse, 0xff, 400 * 4);
        assert_ok(sat_attention_forward(f->ctx, f->pattern, &p, q, k, v, o, i < 2 ? lse : NULL, NULL));
        assert_close(o, want, qs, 16);
        for (int64_t j = 0; j < 400 && i < 2; j++)
            assert_true(isinf(want_lse[j]) ? lse[j] == want_lse[j] : fabs(lse[j] - want_lse[j]) < 1e-5);
        if (i == 2) assert_true(isnan(lse[0]));
    }
    free(q), free(k), free(v), free(o), free(lse), free(want);
}

static void run_variant(fixture *f, const sat_pattern *pattern, const sat_problem *p, const char *name,
                        void **operands) {
    sat_plan *plan = NULL;
    assert_ok(sat_plan_create_with(f->ctx, pattern, p, name, &plan));
    assert_ok(run_in_order(plan, p, operands, NULL));
    sat_plan_free(plan);
}

/* L = sum of O*dO, in double by the reference; its slope along a random direction, by differences and by gradients. */
static void gradients_are_slopes(void **state) {
    fixture *f = *state;
    uint64_t r = 3;
    enum { M = 30, N = 40, D = 16, H = 4, KV = 2 };
    sat_pattern *pattern = random_pattern(f->ctx, &r, M, N, 8, 8, 0.6, false);
    sat_problem p = attention_problem(SAT_F64, H, KV, D);
    p.attention.causal = true, p.attention.lse = true;
    sat_problem back = p;
    back.op = SAT_ATTENTION_BACKWARD;
    const int64_t sizes[] = {H * M * D, KV * N * D, KV * N * D, H * M * D, H * M,
                             H * M * D, H * M * D,  KV * N * D, KV * N * D};
    void *x[9];
    double *direction[3];
    for (int i = 0; i < 9; i++) {
        x[i] = malloc((size_t)sizes[i] * 8);
        for (int64_t e = 0; e < sizes[i] && i != 4; e++)
            ((double *)x[i])[e] = (double)(next_random(&r) >> 11) * 0x1p-52 - 1;
    }
    for (int i = 0; i < 3; i++) {
        direction[i] = malloc((size_t)sizes[i] * 8);
        for (int64_t e = 0; e < sizes[i]; e++) direction[i][e] = (double)(next_random(&r) >> 11) * 0x1p-52 - 1;
    }
    run_variant(f, pattern, &p, "cpu_attention_any_any_c_reference", x);
    run_variant(f, pattern, &back, "cpu_attention_backward_any_any_c_reference", x);
    for (int i = 0; i < 3; i++) {
        double slope = 0, loss[2] = {0};
        for (int64_t e = 0; e < sizes[i]; e++) slope += direction[i][e] * ((double *)x[6 + i])[e];
        for (int side = 0; side < 2; side++) {
            double step = side ? 1e-4 : -1e-4;
            for (int64_t e = 0; e < sizes[i]; e++) ((double *)x[i])[e] += step * direction[i][e];
            run_variant(f, pattern, &p, "cpu_attention_any_any_c_reference", x);
            for (int64_t e = 0; e < sizes[3]; e++) loss[side] += ((double *)x[3])[e] * ((double *)x[5])[e];
            for (int64_t e = 0; e < sizes[i]; e++) ((double *)x[i])[e] -= step * direction[i][e];
        }
        double measured = (loss[1] - loss[0]) / 2e-4;
        if (!(fabs(slope - measured) < 1e-5 * (1 + fabs(slope))))
            fail_msg("operand %d: %g, measured %g", i, slope, measured);
    }
    for (int i = 0; i < 9; i++) free(x[i]);
    for (int i = 0; i < 3; i++) free(direction[i]);
    sat_pattern_free(pattern);
}

static const char *const forward_names[] = {"cpu_attention_any_any_c_reference", "cpu_attention_f32_any_avx2_64x64",
                                            "cpu_attention_f32_any_avx512_64x64",
                                            "cpu_attention_any_any_openblas_passes"};

/* Runs on every variant that this machine has. */
static void each_forward(fixture *f, const sat_bsr *mask, const sat_problem *p, void **operands,
                         void (*look)(const float *o, const float *lse)) {
    sat_pattern *pattern = NULL;
    assert_ok(sat_pattern_create(f->ctx, mask, &pattern));
    for (int i = 0; i < 4; i++) {
        sat_plan *plan = NULL;
        sat_status status = sat_plan_create_with(f->ctx, pattern, p, forward_names[i], &plan);
        if (status == SAT_UNSUPPORTED || status == SAT_NOT_FOUND) continue;
        assert_ok(status);
        memset(operands[3], 0xff, 1 << 12), memset(operands[4], 0xff, 1 << 8);
        assert_ok(run_in_order(plan, p, operands, NULL));
        look(operands[3], operands[4]);
        sat_plan_free(plan);
    }
    sat_pattern_free(pattern);
}

static void is_the_second_value(const float *o, const float *lse) {
    for (int x = 0; x < 8; x++) assert_float_equal(o[x], 2, 1e-5);
    assert_float_equal(lse[0], 8e30f, 1e25);
}

static void large_scores_do_not_overflow(void **state) {
    fixture *f = *state;
    float q[16], k[32], v[32], o[1 << 10], lse[1 << 6];
    for (int i = 0; i < 16; i++) q[i] = 1e15f, k[i] = -1e15f, k[16 + i] = 1e15f, v[i] = 1, v[16 + i] = 2;
    for (int i = 0; i < 8; i++) k[8 + i] = 1e15f, v[8 + i] = 2;
    sat_problem p = attention_problem(SAT_F32, 1, 1, 8);
    p.attention.lse = true, p.alpha = 1;
    sat_bsr mask = dense_mask(1, 2);
    each_forward(f, &mask, &p, (void *[]){q, k, v, o, lse}, is_the_second_value);
}

static void is_nothing(const float *o, const float *lse) {
    for (int x = 0; x < 16; x++) assert_true(o[x] == 0);
    assert_true(lse[0] == -INFINITY && lse[1] == -INFINITY);
}

static void a_row_that_keeps_nothing_is_zero(void **state) {
    fixture *f = *state;
    float q[16], k[64], v[64], o[1 << 10], lse[1 << 6];
    for (int i = 0; i < 64; i++) q[i & 15] = 1, k[i] = 1, v[i] = 1;
    sat_problem p = attention_problem(SAT_F32, 1, 1, 8);
    p.attention.lse = true;
    sat_bsr mask = dense_mask(2, 8);
    mask.stored_blocks = 0, mask.row_ptr = (const int64_t[]){0, 0};
    each_forward(f, &mask, &p, (void *[]){q, k, v, o, lse}, is_nothing); /* no block */
    mask = dense_mask(2, 0);
    each_forward(f, &mask, &p, (void *[]){q, k, v, o, lse}, is_nothing); /* no key */
}

static void lengths_of_zero_are_ordinary(void **state) {
    fixture *f = *state;
    float k[32], v[32], dk[32], dv[32];
    for (int i = 0; i < 32; i++) k[i] = v[i] = 1, dk[i] = dv[i] = NAN;
    sat_bsr mask = dense_mask(0, 4);
    sat_pattern *pattern = NULL;
    assert_ok(sat_pattern_create(f->ctx, &mask, &pattern));
    sat_problem p = attention_problem(SAT_F32, 1, 1, 8);
    assert_ok(sat_attention_forward(f->ctx, pattern, &p, NULL, k, v, NULL, NULL, NULL));
    p.op = SAT_ATTENTION_BACKWARD;
    assert_ok(sat_attention_backward(f->ctx, pattern, &p, NULL, k, v, NULL, NULL, NULL, NULL, dk, dv, NULL));
    for (int i = 0; i < 32; i++) assert_true(dk[i] == 0 && dv[i] == 0);
    sat_pattern_free(pattern);
}

/* ---- pointers ---- */

static void gradients_may_share_a_packed_buffer(void **state) {
    fixture *f = *state;
    uint64_t r = 4;
    enum { S = 20, H = 2, D = 8, ROW = 3 * H * D };
    sat_bsr mask = dense_mask(S, S);
    sat_pattern *pattern = NULL;
    assert_ok(sat_pattern_create(f->ctx, &mask, &pattern));
    sat_problem p = attention_problem(SAT_F32, H, H, D);
    p.op = SAT_ATTENTION_BACKWARD;
    sat_heads packed = {.head_stride = D, .row_stride = ROW};
    p.attention.q = p.attention.k = p.attention.v = p.attention.dq = p.attention.dk = p.attention.dv = packed;
    float *x = random_floats(&r, S * ROW), *dx = random_floats(&r, S * ROW + 1), *o = random_floats(&r, S * H * D);
    float *lse = random_floats(&r, S * H), *go = random_floats(&r, S * H * D);
    const float *q = x, *k = x + H * D, *v = x + 2 * H * D;
#define BACK(dq, dk, dv) sat_attention_backward(f->ctx, pattern, &p, q, k, v, o, lse, go, dq, dk, dv, NULL)
    assert_ok(BACK(dx, dx + H * D, dx + 2 * H * D));
    assert_fails(BACK(dx, dx + H * D - 1, dx + 2 * H * D), SAT_OVERLAP, "dq");
    assert_fails(BACK(dx, dx + H * D, dx + H * D), SAT_OVERLAP, "dv");
    assert_fails(BACK(x, dx + H * D, dx + 2 * H * D), SAT_OVERLAP, "q");
    assert_fails(BACK((float *)((char *)dx + 2), dx + H * D, dx + 2 * H * D), SAT_MISALIGNED, "dq");
    assert_fails(BACK(NULL, dx + H * D, dx + 2 * H * D), SAT_NULL_POINTER, "dq");
    packed = (sat_heads){.head_stride = 3 * D, .row_stride = ROW}; /* the three of a head side by side */
    p.attention.dq = p.attention.dk = p.attention.dv = packed;
    assert_ok(BACK(dx, dx + D, dx + 2 * D));
    assert_fails(BACK(dx, dx + D, dx + 4 * D), SAT_OVERLAP, "dv");
    free(x), free(dx), free(o), free(lse), free(go);
    sat_pattern_free(pattern);
}

static void a_race_checks_and_remembers_it(void **state) {
    (void)state;
    uint64_t r = 5;
    sat_context *ctx = open_context(SAT_EFFORT_QUICK);
    sat_pattern *pattern = random_pattern(ctx, &r, 200, 200, 32, 32, 0.5, false);
    for (int op = SAT_ATTENTION; op <= SAT_ATTENTION_BACKWARD; op++) {
        sat_problem p = attention_problem(SAT_BF16, 4, 2, 64);
        p.op = op, p.attention.causal = true;
        sat_race *race = NULL;
        assert_ok(sat_race_run(ctx, pattern, &p, NULL, &race));
        assert_non_null(sat_race_best(race));
        for (size_t i = 0; i < sat_race_count(race); i++) {
            const sat_result *x = sat_race_at(race, i);
            if (x->verdict != SAT_VERDICT_OK && x->verdict != SAT_VERDICT_SKIPPED)
                fail_msg("%s: %s", x->variant, x->message);
        }
        sat_race_free(race);
        sat_plan *plan = NULL;
        assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
        sat_plan_info info = {SAT_SIZED(sat_plan_info)};
        assert_ok(sat_plan_get_info(plan, &info));
        assert_true(info.cached && info.verified && info.flops > 0 && info.bytes > 0);
        sat_plan_free(plan);
    }
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

/* ---- sinks ---- */

/* One query less than keys, all scores 0: of n keys and a sink of s, each weighs 1/(n + e^s). */
static void sinks_are_weighed_and_have_no_value(void **state) {
    fixture *f = *state;
    enum { M = 3, N = 5, DIM = 9, VALUES = 4, HEADS = 2 };
    float q[HEADS * M * DIM] = {0}, k[HEADS * N * DIM], v[HEADS * N * VALUES], o[HEADS * M * VALUES], lse[HEADS * M];
    const float sinks[HEADS] = {1.5f, -INFINITY};
    for (int i = 0; i < HEADS * N * DIM; i++) k[i] = 1;
    for (int i = 0; i < HEADS * N * VALUES; i++) v[i] = (float)(i % VALUES);
    sat_problem p = attention_problem(SAT_F32, HEADS, HEADS, DIM);
    p.attention.value_dim = VALUES, p.attention.sinks = true;
    sat_bsr mask = dense_mask(M, N);
    sat_pattern *pattern;
    assert_ok(sat_pattern_create(f->ctx, &mask, &pattern));
    assert_fails(sat_attention_forward(f->ctx, pattern, &p, q, k, v, o, lse, NULL), SAT_UNSUPPORTED, "sinks");
    for (size_t i = 0, seen = 0; i < sat_variant_count(f->ctx); i++) {
        sat_plan *plan;
        for (int wants_lse = 0; wants_lse < 2; wants_lse++) {
            p.attention.lse = wants_lse;
            if (sat_plan_create_with(f->ctx, pattern, &p, sat_variant_at(f->ctx, i)->name, &plan) != SAT_OK) continue;
            assert_fails(sat_run(plan, (const void *[]){q, k, v}, 3, (void *[]){o, lse}, (size_t)wants_lse + 1, NULL),
                         SAT_BAD_SIZE, "4 (q, k, v, sinks)");
            assert_ok(run_in_order(plan, &p, (void *[]){q, k, v, o, lse, (void *)(uintptr_t)sinks}, NULL));
            for (int at = 0; at < HEADS * M; at++) {
                double total = N + exp((double)sinks[at / M]);
                if (wants_lse) assert_true(fabs((double)lse[at] - log(total)) < 1e-6);
                for (int x = 0; x < VALUES; x++) assert_true(fabs((double)o[at * VALUES + x] - x * N / total) < 1e-6);
            }
            sat_plan_free(plan), seen++;
        }
        assert_true(i + 1 < sat_variant_count(f->ctx) || seen >= 2);
    }
    sat_pattern_free(pattern);
}

static void a_sink_is_the_lse_of_a_row_that_keeps_nothing(void **state) {
    fixture *f = *state;
    float q[16], o[16], lse[2], grads[3 * 16], sinks[] = {-3}, dsinks[1];
    for (int i = 0; i < 16; i++) q[i] = 1;
    sat_problem p = attention_problem(SAT_F32, 1, 1, 8);
    p.attention.sinks = p.attention.lse = true;
    sat_bsr mask = dense_mask(2, 2);
    mask.stored_blocks = 0, mask.row_ptr = (const int64_t[]){0, 0};
    sat_pattern *pattern;
    assert_ok(sat_pattern_create(f->ctx, &mask, &pattern));
    for (size_t i = 0; i < sat_variant_count(f->ctx); i++) {
        sat_plan *plan;
        p.op = sat_variant_at(f->ctx, i)->op, dsinks[0] = NAN;
        if (p.op != SAT_ATTENTION && p.op != SAT_ATTENTION_BACKWARD) continue;
        if (sat_plan_create_with(f->ctx, pattern, &p, sat_variant_at(f->ctx, i)->name, &plan) != SAT_OK) continue;
        if (p.op == SAT_ATTENTION) {
            assert_ok(run_in_order(plan, &p, (void *[]){q, q, q, o, lse, sinks}, NULL));
            for (int x = 0; x < 16; x++) assert_true(o[x] == 0);
            assert_true(fabsf(lse[0] + 3) < 1e-6f && fabsf(lse[1] + 3) < 1e-6f);
        } else {
            assert_ok(run_in_order(plan, &p,
                                   (void *[]){q, q, q, o, lse, q, grads, grads + 16, grads + 32, sinks, dsinks}, NULL));
            for (int x = 0; x < 48; x++) assert_true(grads[x] == 0);
            assert_true(dsinks[0] == 0);
        }
        sat_plan_free(plan);
    }
    sat_pattern_free(pattern);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bad_problem_is_refused_by_name),
        cmocka_unit_test(bad_offsets_are_refused_by_name),
        cmocka_unit_test(the_one_call_form_is_right_and_writes_lse_where_it_is_wanted),
        cmocka_unit_test(gradients_are_slopes),
        cmocka_unit_test(large_scores_do_not_overflow),
        cmocka_unit_test(a_row_that_keeps_nothing_is_zero),
        cmocka_unit_test(lengths_of_zero_are_ordinary),
        cmocka_unit_test(sinks_are_weighed_and_have_no_value),
        cmocka_unit_test(a_sink_is_the_lse_of_a_row_that_keeps_nothing),
        cmocka_unit_test(gradients_may_share_a_packed_buffer),
        cmocka_unit_test(a_race_checks_and_remembers_it),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
