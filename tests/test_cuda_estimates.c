/* What every CUDA variant expects of large problems: a batch takes as much longer as it is larger, and what rounds to
 * TF32 goes by the device's rate of that. Nothing here needs a GPU. */
#include "cuda_variants.h"
#include "problems.h"

static const int64_t sides[] = {1, 2, 4, 8, 16, 32, 64, 128};
static const int64_t widths[] = {1, 4, 8, 16, 32, 64, 256, 512, 4096};
enum { SIDES = sizeof sides / sizeof *sides, WIDTHS = sizeof widths / sizeof *widths };

static sat_pattern *patterns[SIDES][2]; /* rows of equal length; one of them much longer */

/* An eighth of the blocks, as many in every row and column. */
static sat_pattern *make_pattern(sat_context *ctx, int64_t side, bool skewed) {
    int64_t grid = 32768 / side < 2048 ? 32768 / side : 2048, stored = 0;
    int64_t *row_ptr = malloc((size_t)(grid + 1) * sizeof *row_ptr);
    int64_t *col_idx = malloc((size_t)(grid * (grid / 8 + 1)) * sizeof *col_idx);
    sat_pattern *pattern = NULL;
    row_ptr[0] = 0;
    for (int64_t i = 0; i < grid; i++) {
        int64_t step = skewed && i == 0 ? 1 : 8;
        for (int64_t j = i % step; j < grid; j += step) col_idx[stored++] = j;
        row_ptr[i + 1] = stored;
    }
    sat_bsr s = {SAT_SIZED(sat_bsr),    .rows = grid * side, .cols = grid * side,
                 .block_rows = side,    .block_cols = side,  .stored_blocks = stored,
                 .index_type = SAT_I64, .row_ptr = row_ptr,  .col_idx = col_idx};
    assert_ok(sat_pattern_create(ctx, &s, &pattern));
    free(row_ptr), free(col_idx);
    return pattern;
}

static sat_context *ctx;

static int open_patterns(void **state) {
    (void)state;
    ctx = open_context(SAT_EFFORT_OFF);
    for (int i = 0; i < SIDES; i++)
        for (int skewed = 0; skewed < 2; skewed++) patterns[i][skewed] = make_pattern(ctx, sides[i], skewed);
    return 0;
}

static int close_patterns(void **state) {
    (void)state;
    for (int i = 0; i < SIDES; i++)
        for (int skewed = 0; skewed < 2; skewed++) sat_pattern_free(patterns[i][skewed]);
    sat_context_free(ctx);
    return 0;
}

/* What a variant may insist on. */
enum { SKEWED = 1, BY_COLUMNS = 2, KINDS = 4 };

/* Each item of a batch with operands of its own. False where the variant does not take it. */
static bool make_problem(const sat_variant *v, const sat_pattern_view *a, sat_dtype t, int64_t width, int64_t batch,
                         int kind, sat_problem *p) {
    *p = v->op == SAT_MATMUL ? matmul_problem(t, width) : sampled_problem(t, width);
    p->batch = batch;
    bool plain = strstr(v->name, "_simt_") && strstr(v->name, "_gathered"); /* for f32 that is not rounded to TF32 */
    p->flags = (plain ? 0 : SAT_ALLOW_TF32) | SAT_ALLOW_NONDETERMINISTIC | SAT_ALLOW_DENSE;
    bool unaligned = strstr(v->name, "_elements") || strstr(v->name, "_aligned"); /* `aligned`: copies are */
    p->a_align = p->b_align = p->c_align = unaligned ? 0 : 128;
    if (kind & BY_COLUMNS) p->b = (sat_layout){1, a->cols, 0}, p->c = (sat_layout){1, a->rows, 0};
    int64_t values = a->stored_blocks * a->block_rows * a->block_cols;
    p->a.batch_stride = v->op == SAT_MATMUL ? values : a->rows * width;
    p->b.batch_stride = a->cols * width;
    p->c.batch_stride = v->op == SAT_MATMUL ? a->rows * width : values;
    assert_ok(sat_op_find(p->op)->normalise(p, a));
    return v->supports(v, p, a, &hopper);
}

/* The most arithmetic among the problems of the lists that the variant takes; false: it takes none. */
static bool largest(const sat_variant *v, sat_dtype t, int kind, sat_pattern_view *a, sat_problem *p) {
    double most = 0;
    for (int i = 0; i < SIDES * WIDTHS; i++) {
        sat_problem this;
        sat_pattern_view view = view_of(patterns[i / WIDTHS][kind & SKEWED]);
        if (!make_problem(v, &view, t, widths[i % WIDTHS], 1, kind, &this)) continue;
        if (sat_flops(&this, &view) <= most) continue;
        most = sat_flops(&this, &view), *p = this, *a = view;
    }
    return most > 0;
}

typedef void (*look_fn)(const sat_variant *v, const sat_pattern_view *a, const sat_problem *p, int kind);

/* Calls `look` with the largest problem of each dtype. A long row is for those that take nothing else: the others may
 * wait for it, whatever the batch. */
static void each_largest(look_fn look) {
    sat_variant v;
    sat_pattern_view a;
    sat_problem p;
    for (int i = 0; i < CUDA_LINES; i++) {
        int found = 0, kind;
        if (!cuda_variant(i, &v) || (v.op != SAT_MATMUL && v.op != SAT_SAMPLED)) continue; /* products alone */
        for (int t = SAT_F32; t <= SAT_BF16; t++) {
            for (kind = 0; kind < KINDS && !largest(&v, (sat_dtype)t, kind, &a, &p);) kind++;
            if (kind == KINDS) continue;
            look(&v, &a, &p, kind);
            found++;
        }
        if (!found) fail_msg("%s takes no problem of the lists", v.name);
    }
}

static void look_at_batch(const sat_variant *v, const sat_pattern_view *a, const sat_problem *one, int kind) {
    sat_problem p;
    if (!make_problem(v, a, one->a_dtype, v->op == SAT_MATMUL ? one->n : one->k, 8, kind, &p))
        fail_msg("%s takes no batch of 8", v->name);
    double seconds = v->estimate(v, one, a, &hopper), ratio = v->estimate(v, &p, a, &hopper) / seconds;
    if (ratio < 3 || ratio > 10)
        fail_msg(
            "%s: block %d, %d columns, dtype %d: a batch of 8 is estimated to take %.2f times as long as one of %g s",
            v->name, (int)a->block_rows, (int)(v->op == SAT_MATMUL ? p.n : p.k), (int)p.a_dtype, ratio, seconds);
}

static void a_batch_of_eight_takes_about_eight_times_as_long(void **state) {
    (void)state;
    each_largest(look_at_batch);
}

static int by_tf32; /* how many go by that rate */

/* On a device that is the same but for TF32. */
static void look_at_rate(const sat_variant *v, const sat_pattern_view *a, const sat_problem *p, int kind) {
    (void)kind;
    sat_device slow = hopper;
    slow.tf32_rate /= 1000;
    if (strstr(v->name, "_padded")) return; /* it takes another kernel there */
    double slower = v->estimate(v, p, a, &slow) / v->estimate(v, p, a, &hopper);
    bool rounds = strstr(v->name, "_tf32") || strstr(v->name, "_cublas") || strstr(v->name, "_cusparse_ell");
    bool expected = rounds && p->a_dtype == SAT_F32;
    if (expected ? slower < 1.5 : slower != 1)
        fail_msg("%s, dtype %d: %.2f times as long on a device with a slow TF32", v->name, (int)p->a_dtype, slower);
    by_tf32 += expected;
}

static void estimates_go_by_the_rate_of_tf32_where_it_is_used(void **state) {
    (void)state;
    by_tf32 = 0;
    each_largest(look_at_rate);
    assert_true(by_tf32 > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_batch_of_eight_takes_about_eight_times_as_long),
        cmocka_unit_test(estimates_go_by_the_rate_of_tf32_where_it_is_used),
    };
    return cmocka_run_group_tests_name("cuda_estimates", tests, open_patterns, close_patterns);
}
