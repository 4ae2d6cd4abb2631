/* Attention under masks whose indices change: every variant that takes part against loops in double precision, forward
 * and backward, on right and on hostile masks under one plan, one for each batch item and head where wanted,
 * compressed and padded; faults, refusals and keys; what the race finds of variants that take another item's mask. */
#include <math.h>

#include "base/dtype.h"
#include "problems.h"
#include "support.h"

/* ---- a case ---- */

typedef struct masked_case {
    sat_problem p;
    int64_t batch, heads, kv_heads, m, n, dim, value_dim;
    int64_t br, bc, mask_batch, mask_heads, each, grid_rows, grid_cols; /* each: block rows of one mask */
    int64_t capacity, row_stride, raw_count;                            /* row_stride 0: compressed */
    sat_index_type type;
    int64_t *raw_ptr, *raw_col; /* what a run is given */
    bool *stored;               /* what it means: grid_rows x grid_cols */
    sat_status fault;
    void *row_ptr, *col_idx;
    sat_pattern *pattern;
    void *data[11];   /* Q, K, V, O, LSE, dO, dQ, dK, dV, sinks, dsinks: as the backward pass has them */
    double *want[11]; /* and what is right, */
    double *size[11]; /* and the magnitude of what was added up */
} masked_case;

enum { Q, K, V, O, LSE, DO, DQ, DK, DV, SINKS, DSINKS };

static int64_t elements(const masked_case *c, int which) {
    int64_t q = c->batch * c->heads * c->m, kv = c->batch * c->kv_heads * c->n;
    const int64_t count[] = {q * c->dim, kv * c->dim, kv * c->value_dim, q * c->value_dim, q,       q * c->value_dim,
                             q * c->dim, kv * c->dim, kv * c->value_dim, c->heads,         c->heads};
    return count[which];
}

static sat_dtype type_of(const masked_case *c, int which) {
    return which == LSE || which == SINKS || which == DSINKS ? SAT_F32 : c->p.a_dtype;
}

static double get(const masked_case *c, int which, int64_t at) {
    return sat_load(type_of(c, which), c->data[which], at);
}

static int64_t pick(uint64_t *r, const int64_t *list, int64_t count) { return list[random_below(r, count)]; }

/* Scores are exact in f32: sums of small integers, scaled by a power of two. */
static void fill(uint64_t *r, masked_case *c) {
    for (int which = Q; which <= SINKS; which++) {
        if (which != Q && which != K && which != V && which != DO && which != SINKS) continue;
        for (int64_t e = 0; e < elements(c, which); e++) {
            double x = (double)(random_below(r, 5) - 2) / 2;
            if (which == SINKS && random_below(r, 4) == 0) x = -(double)INFINITY;
            sat_store(type_of(c, which), c->data[which], e, x);
        }
    }
}

static void choose_form(uint64_t *r, masked_case *c) {
    c->type = random_below(r, 2) ? SAT_I32 : SAT_I64;
    c->mask_batch = random_below(r, 2) ? c->batch : 1, c->mask_heads = random_below(r, 2) ? c->heads : 1;
    c->each = (c->m + c->br - 1) / c->br, c->grid_cols = (c->n + c->bc - 1) / c->bc;
    c->grid_rows = c->mask_batch * c->mask_heads * c->each;
    int64_t all = c->grid_rows * c->grid_cols;
    c->capacity = random_below(r, 2) ? all : 1 + random_below(r, all);
    c->raw_count = c->capacity;
    if (random_below(r, 2)) return;
    c->row_stride = 1 + random_below(r, c->grid_cols + 3), c->raw_count = c->grid_rows * c->row_stride;
}

static masked_case make_case(sat_context *ctx, uint64_t *r, sat_dtype t) {
    static const int64_t sides[] = {1, 3, 8, 16, 33, 64, 100}, dims[] = {8, 16, 20, 64}, caps[] = {0, 0, 1, 5};
    masked_case c = {.batch = 1 + random_below(r, 3), .kv_heads = 1 + random_below(r, 2)};
    c.heads = c.kv_heads * (1 + random_below(r, 3));
    c.m = random_below(r, 4) ? 1 + random_below(r, 150) : 1 + random_below(r, 4), c.n = 1 + random_below(r, 150);
    c.dim = pick(r, dims, 4), c.value_dim = pick(r, dims, 4), c.br = pick(r, sides, 7), c.bc = pick(r, sides, 7);
    c.p = attention_problem(t, c.heads, c.kv_heads, c.dim);
    c.p.batch = c.batch, c.p.alpha = 0.25;
    sat_attention *a = &c.p.attention;
    a->value_dim = c.value_dim, a->lse = true, a->causal = random_below(r, 3) == 0, a->sinks = random_below(r, 3) == 0;
    a->window = random_below(r, 3) ? 0 : 1 + random_below(r, 80), a->softcap = (double)pick(r, caps, 4);
    choose_form(r, &c);
    c.raw_ptr = calloc((size_t)c.grid_rows + 1, 8), c.raw_col = calloc((size_t)c.raw_count + 1, 8);
    c.stored = calloc((size_t)(c.grid_rows * c.grid_cols), sizeof *c.stored);
    size_t width = c.type == SAT_I32 ? 4 : 8;
    c.row_ptr = malloc((size_t)(c.grid_rows + (c.row_stride == 0)) * width);
    c.col_idx = malloc((size_t)c.raw_count * width);
    for (int i = 0; i < 11; i++) {
        c.data[i] = calloc((size_t)elements(&c, i) + 1, sat_dtype_size(type_of(&c, i)));
        c.want[i] = calloc((size_t)elements(&c, i) + 1, 8), c.size[i] = calloc((size_t)elements(&c, i) + 1, 8);
    }
    fill(r, &c);
    sat_dynamic_bsr s = {SAT_SIZED(sat_dynamic_bsr), .rows = c.m, .cols = c.n, .block_rows = c.br, .block_cols = c.bc};
    s.index_type = c.type, s.col_idx = c.col_idx, s.mask_batch = c.mask_batch, s.mask_heads = c.mask_heads;
    if (c.row_stride) s.row_counts = c.row_ptr, s.row_stride = c.row_stride;
    else s.row_ptr = c.row_ptr, s.capacity = c.capacity;
    assert_ok(sat_pattern_create_dynamic(ctx, &s, &c.pattern));
    return c;
}

static void free_case(masked_case *c) {
    sat_pattern_free(c->pattern);
    free(c->raw_ptr), free(c->raw_col), free(c->stored), free(c->row_ptr), free(c->col_idx);
    for (int i = 0; i < 11; i++) free(c->data[i]), free(c->want[i]), free(c->size[i]);
}

/* ---- masks ---- */

/* What the header says of these indices. */
static void understand(masked_case *c) {
    bool broken = false;
    c->fault = SAT_OK;
    memset(c->stored, 0, (size_t)(c->grid_rows * c->grid_cols) * sizeof *c->stored);
    for (int64_t i = 0; i < c->grid_rows; i++) {
        int64_t from = c->raw_ptr[i], to = c->raw_ptr[i + 1], before = -1;
        sat_status fault = SAT_OK;
        if (c->row_stride) {
            int64_t count = c->raw_ptr[i];
            if (count < 0 || count > c->row_stride) fault = SAT_BAD_ROW_PTR;
            from = i * c->row_stride, to = fault ? from : from + count;
        } else {
            broken = broken || from < 0 || (i == 0 && from != 0) || to < from || to > c->capacity;
            if (broken) fault = SAT_BAD_ROW_PTR;
        }
        for (int64_t t = from; t < to && !fault; before = c->raw_col[t++]) {
            if (c->raw_col[t] < 0 || c->raw_col[t] >= c->grid_cols) fault = SAT_COLUMN_RANGE;
            else if (c->raw_col[t] <= before) fault = SAT_COLUMN_ORDER;
        }
        if (fault && !c->fault) c->fault = fault;
        for (int64_t t = from; t < to && !fault; t++) c->stored[i * c->grid_cols + c->raw_col[t]] = true;
    }
}

static void store_indices(const masked_case *c) {
    for (int64_t i = 0; i < c->grid_rows + (c->row_stride == 0); i++) {
        if (c->type == SAT_I64) ((int64_t *)c->row_ptr)[i] = c->raw_ptr[i];
        else ((int32_t *)c->row_ptr)[i] = (int32_t)c->raw_ptr[i];
    }
    for (int64_t t = 0; t < c->raw_count; t++) {
        if (c->type == SAT_I64) ((int64_t *)c->col_idx)[t] = c->raw_col[t];
        else ((int32_t *)c->col_idx)[t] = (int32_t)c->raw_col[t];
    }
}

static int64_t any_number(uint64_t *r, const masked_case *c) {
    static const int64_t wild[] = {-1, 0, 1, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, (int64_t)1 << 32};
    int64_t x = random_below(r, 2) ? random_below(r, c->raw_count + 3) - 1 : wild[random_below(r, 8)];
    return c->type == SAT_I32 ? (int32_t)x : x;
}

/* Even, empty, full, or one heavy row; then, if hostile, some of its numbers are any others. */
static void draw_mask(uint64_t *r, masked_case *c, bool hostile) {
    int64_t kind = random_below(r, 6), heavy = random_below(r, c->grid_rows), at = 0;
    double share = (double)(next_random(r) >> 11) * 0x1p-53;
    for (int64_t t = 0; t < c->raw_count; t++) c->raw_col[t] = any_number(r, c); /* nobody's */
    c->raw_ptr[0] = 0;
    for (int64_t i = 0; i < c->grid_rows; i++) {
        double here = kind == 0 ? 0 : kind == 1 ? 1 : kind == 2 ? (i == heavy ? 1 : 0.05) : share;
        int64_t begin = c->row_stride ? i * c->row_stride : at,
                end = c->row_stride ? begin + c->row_stride : c->capacity;
        at = begin;
        for (int64_t j = 0; j < c->grid_cols && at < end; j++)
            if ((double)(next_random(r) >> 11) * 0x1p-53 < here) c->raw_col[at++] = j;
        if (c->row_stride) c->raw_ptr[i] = at - begin;
        else c->raw_ptr[i + 1] = at;
    }
    for (int64_t i = hostile ? 1 + random_below(r, 4) : 0; i > 0; i--) {
        if (random_below(r, 3) == 0) c->raw_ptr[random_below(r, c->grid_rows)] = any_number(r, c);
        else c->raw_col[random_below(r, c->raw_count)] = any_number(r, c);
    }
    understand(c);
    store_indices(c);
}

static bool is_kept(const masked_case *c, int64_t b, int64_t h, int64_t i, int64_t j) {
    const sat_attention *t = &c->p.attention;
    int64_t ahead = j - i - (c->n - c->m),
            mask = (c->mask_batch > 1 ? b : 0) * c->mask_heads + (c->mask_heads > 1 ? h : 0);
    if (t->causal && ahead > 0) return false;
    if (t->window && (ahead >= t->window || ahead <= -t->window)) return false;
    return c->stored[(mask * c->each + i / c->br) * c->grid_cols + j / c->bc];
}

/* ---- what is right ---- */

static double score(const masked_case *c, int64_t q, int64_t k, double *slope) {
    double s = 0, cap = c->p.attention.softcap;
    for (int64_t x = 0; x < c->dim; x++) s += get(c, Q, q * c->dim + x) * get(c, K, k * c->dim + x);
    s *= c->p.alpha;
    double t = cap > 0 ? tanh(s / cap) : 0;
    *slope = 1 - t * t;
    return cap > 0 ? cap * t : s;
}

static void add(masked_case *c, int which, int64_t at, double term) {
    c->want[which][at] += term, c->size[which][at] += fabs(term);
}

/* A query of O and LSE, in double precision, which the backward pass is given, rounded. */
static void expect_query(masked_case *c, int64_t b, int64_t h, int64_t i, double *weight) {
    int64_t q = (b * c->heads + h) * c->m + i, kv = (b * c->kv_heads + h / (c->heads / c->kv_heads)) * c->n;
    double sink = c->p.attention.sinks ? get(c, SINKS, h) : -(double)INFINITY, most = sink, total = 0, slope;
    for (int64_t j = 0; j < c->n; j++) {
        weight[j] = is_kept(c, b, h, i, j) ? score(c, q, kv + j, &slope) : -(double)INFINITY;
        most = fmax(most, weight[j]);
    }
    for (int64_t j = 0; j < c->n; j++) total += weight[j] = isinf(weight[j]) ? 0 : exp(weight[j] - most);
    if (!isinf(sink)) total += exp(sink - most);
    for (int64_t j = 0; j < c->n; j++)
        for (int64_t x = 0; weight[j] > 0 && x < c->value_dim; x++)
            add(c, O, q * c->value_dim + x, weight[j] / total * get(c, V, (kv + j) * c->value_dim + x));
    c->want[LSE][q] = total > 0 ? most + log(total) : -(double)INFINITY, c->size[LSE][q] = 1 + fabs(c->want[LSE][q]);
    for (int64_t x = 0; x < c->value_dim; x++)
        sat_store(c->p.a_dtype, c->data[O], q * c->value_dim + x, c->want[O][q * c->value_dim + x]);
    sat_store(SAT_F32, c->data[LSE], q, c->want[LSE][q]);
}

/* What a query gives to the gradients, by the O and LSE that are given. */
static void expect_gradients(masked_case *c, int64_t b, int64_t h, int64_t i) {
    int64_t q = (b * c->heads + h) * c->m + i, kv = (b * c->kv_heads + h / (c->heads / c->kv_heads)) * c->n, d = c->dim;
    double delta = 0, size = 0, slope;
    for (int64_t x = 0; x < c->value_dim; x++) {
        double term = get(c, DO, q * c->value_dim + x) * get(c, O, q * c->value_dim + x);
        delta += term, size += fabs(term);
    }
    double sink = c->p.attention.sinks ? get(c, SINKS, h) : -(double)INFINITY;
    if (!isinf(sink)) add(c, DSINKS, h, -exp(sink - get(c, LSE, q)) * delta);
    if (!isinf(sink)) c->size[DSINKS][h] += exp(sink - get(c, LSE, q)) * size;
    for (int64_t j = 0; j < c->n; j++) {
        if (!is_kept(c, b, h, i, j)) continue;
        double w = exp(score(c, q, kv + j, &slope) - get(c, LSE, q)), dp = 0, dp_size = 0;
        for (int64_t x = 0; x < c->value_dim; x++) {
            double term = get(c, DO, q * c->value_dim + x) * get(c, V, (kv + j) * c->value_dim + x);
            dp += term, dp_size += fabs(term);
            add(c, DV, (kv + j) * c->value_dim + x, w * get(c, DO, q * c->value_dim + x));
        }
        double ds = c->p.alpha * w * (dp - delta) * slope, ds_size = c->p.alpha * w * (dp_size + size);
        for (int64_t x = 0; x < d; x++) {
            add(c, DQ, q * d + x, ds * get(c, K, (kv + j) * d + x));
            add(c, DK, (kv + j) * d + x, ds * get(c, Q, q * d + x));
            c->size[DQ][q * d + x] += ds_size, c->size[DK][(kv + j) * d + x] += ds_size; /* |q|, |k| <= 1 */
        }
    }
}

static void expect(masked_case *c) {
    double *weight = malloc((size_t)(c->n + 1) * sizeof *weight);
    for (int which = 0; which < 11; which++)
        for (int64_t e = 0; e < elements(c, which); e++) c->want[which][e] = c->size[which][e] = 0;
    for (int64_t at = 0; at < c->batch * c->heads * c->m; at++)
        expect_query(c, at / c->m / c->heads, at / c->m % c->heads, at % c->m, weight);
    for (int64_t at = 0; at < c->batch * c->heads * c->m; at++)
        expect_gradients(c, at / c->m / c->heads, at / c->m % c->heads, at % c->m);
    free(weight);
}

/* Scores are exact and at most 16. A weight's exponent then is off by 16 units of f32, and so is its LSE; exp and tanh
 * take a few more; sums are of up to 900 terms: 2^-13 of what is added up is above all of it together, and far below a
 * key that is missing or too many. What is added up to nothing is exactly zero. */
static void compare(const masked_case *c, int which, void *got, const char *who, int number) {
    sat_dtype t = type_of(c, which);
    for (int64_t e = 0; e < elements(c, which); e++) {
        double x = sat_load(t, got, e), want = c->want[which][e],
               unit = t == SAT_BF16  ? 0x1p-8
                      : t == SAT_F16 ? 0x1p-11
                                     : 0;
        double bound = 0x1p-13 * c->size[which][e] + unit * fabs(want) + (c->size[which][e] > 0 ? 0x1p-24 : 0);
        if (isinf(want) ? x == want : fabs(x - want) <= bound) continue;
        fail_msg("%s, mask %d: operand %d, element %lld is %.9g where %.9g is right to within %.3g", who, number, which,
                 (long long)e, x, want, bound);
    }
}

/* ---- runs ---- */

static void *poisoned(const masked_case *c, int which) {
    size_t bytes = (size_t)elements(c, which) * sat_dtype_size(type_of(c, which));
    void *to = malloc(bytes + 1);
    memset(to, 0xff, bytes);
    return to;
}

static void run_and_compare(const masked_case *c, sat_plan *plan, bool back, const char *who, int number) {
    void *o[11];
    int first = back ? DQ : O, last = back ? DV : LSE;
    memcpy(o, c->data, sizeof o);
    for (int i = first; i <= last; i++) o[i] = poisoned(c, i);
    if (back) o[DSINKS] = poisoned(c, DSINKS);
    sat_problem p = c->p;
    p.op = back ? SAT_ATTENTION_BACKWARD : SAT_ATTENTION;
    void *forward[] = {o[Q], o[K], o[V], o[O], o[LSE], o[SINKS]};
    sat_status status = run_in_order(plan, &p, back ? o : forward, NULL);
    if (status != c->fault)
        fail_msg("%s, mask %d: %s where %s is right: %s", who, number, sat_status_name(status),
                 sat_status_name(c->fault), sat_last_error());
    for (int i = first; i <= last; i++) compare(c, i, o[i], who, number);
    if (back && p.attention.sinks) compare(c, DSINKS, o[DSINKS], who, number);
    for (int i = first; i <= last; i++) free(o[i]);
    if (back) free(o[DSINKS]);
}

/* ---- tests ---- */

static void every_variant_follows_masks_that_change(void **state) {
    static const sat_dtype types[] = {SAT_F32, SAT_F64, SAT_F16, SAT_BF16};
    uint64_t random = 17;
    int runs = 0, faults = 0, tiled = 0;
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    for (int number = 0; number < 48; number++) {
        masked_case c = make_case(ctx, &random, types[number % 4]);
        sat_plan *plan[64] = {0};
        const sat_variant *variant[64];
        int plans = 0;
        for (size_t i = 0; i < sat_variant_count(ctx); i++) {
            const sat_variant *v = sat_variant_at(ctx, i);
            if (v->op != SAT_ATTENTION && v->op != SAT_ATTENTION_BACKWARD) continue;
            sat_problem p = c.p;
            p.op = v->op;
            sat_status status = sat_plan_create_with(ctx, c.pattern, &p, v->name, &plan[plans]);
            if (!(v->flags & SAT_V_DYNAMIC)) assert_int_equal(status, SAT_UNSUPPORTED);
            if (status == SAT_OK) variant[plans++] = v;
        }
        assert_true(plans >= 2);
        for (int mask = 0; mask < 8; mask++) {
            draw_mask(&random, &c, mask % 2);
            expect(&c);
            for (int i = 0; i < plans; i++) {
                run_and_compare(&c, plan[i], variant[i]->op == SAT_ATTENTION_BACKWARD, variant[i]->name,
                                number * 100 + mask);
                runs++, faults += c.fault != SAT_OK, tiled += strstr(variant[i]->name, "64x64") != NULL;
            }
        }
        for (int i = 0; i < plans; i++) sat_plan_free(plan[i]);
        free_case(&c);
    }
    print_message("%d runs, %d with faults, %d of tiled variants\n", runs, faults, tiled);
    assert_true(runs > 700 && faults > 150);
    sat_context_free(ctx);
}

/* Two masks of four blocks in a row each, for two heads; what stands behind a row's count is nobody's. */
static void padded_masks_say_what_is_wrong_with_them(void **state) {
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    int32_t counts[] = {1, 2, 0, 2}, columns[] = {0, 9, 9, 0, 1, 9, 9, 9, 9, 0, 1, 9};
    sat_dynamic_bsr s = {SAT_SIZED(sat_dynamic_bsr), .rows = 2, .cols = 2, .block_rows = 1, .block_cols = 1};
    s.index_type = SAT_I32, s.row_counts = counts, s.row_stride = 3, s.col_idx = columns, s.mask_heads = 2;
    sat_pattern *pattern = NULL;
    sat_plan *plan = NULL;
    sat_problem p = attention_problem(SAT_F32, 2, 1, 8);
    assert_ok(sat_pattern_create_dynamic(ctx, &s, &pattern));
    assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
    float q[32] = {0}, k[16], v[16], o[32];
    for (int e = 0; e < 16; e++) k[e] = v[e] = e < 8 ? 1 : 3;
    static const struct {
        int place;
        int32_t count, column;
        sat_status fault;
        const char *word;
        float want[4]; /* of each head's queries */
    } masks[] = {
        {0, 1, 0, SAT_OK, "", {1, 2, 0, 2}},
        {0, -1, 0, SAT_BAD_ROW_PTR, "row_counts[0] is -1; expected 0 to row_stride, 3", {0, 2, 0, 2}},
        {3, 4, 0, SAT_BAD_ROW_PTR, "row_counts[3] is 4; expected 0 to row_stride, 3", {1, 2, 0, 0}},
        {3, 2, 1, SAT_COLUMN_ORDER, "col_idx[10] is 1 after 1 in block row 3; expected no repeats", {1, 2, 0, 0}},
        {1, 2, 7, SAT_COLUMN_RANGE, "col_idx[3] is 7; expected 0 to 1", {1, 0, 0, 2}},
        {1, 3, 0, SAT_COLUMN_RANGE, "col_idx[5] is 9; expected 0 to 1", {1, 0, 0, 2}},
        {2, 1, 1, SAT_OK, "", {1, 2, 3, 2}},
    };
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        int32_t count = counts[masks[i].place], column = columns[3 * masks[i].place];
        counts[masks[i].place] = masks[i].count, columns[3 * masks[i].place] = masks[i].column;
        memset(o, 0xff, sizeof o);
        sat_status status = sat_run(plan, (const void *[]){q, k, v}, 3, (void *[]){o}, 1, NULL);
        assert_int_equal(status, masks[i].fault);
        if (status && !strstr(sat_last_error(), masks[i].word)) fail_msg("'%s'", sat_last_error());
        for (int e = 0; e < 32; e++) assert_true(o[e] == masks[i].want[e / 8]);
        assert_ok(sat_pattern_fault(pattern, true)); /* once is enough */
        counts[masks[i].place] = count, columns[3 * masks[i].place] = column;
    }
    sat_plan_free(plan);
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    int32_t row_ptr[9] = {0}, columns[32] = {0};
    sat_pattern *pattern = NULL;
    sat_dynamic_bsr right = {SAT_SIZED(sat_dynamic_bsr), .rows = 8, .cols = 8, .block_rows = 4, .block_cols = 4}, s;
    right.index_type = SAT_I32, right.row_ptr = row_ptr, right.col_idx = columns, right.capacity = 4;
    right.mask_batch = 2, right.mask_heads = 2;
#define TRY(change, status, word)                                                                                      \
    s = right;                                                                                                         \
    change;                                                                                                            \
    assert_fails(sat_pattern_create_dynamic(ctx, &s, &pattern), status, word);                                         \
    assert_null(pattern)
    TRY(s.mask_batch = -1, SAT_BAD_SIZE, "mask_batch is -1");
    TRY(s.mask_heads = -2, SAT_BAD_SIZE, "mask_heads is -2");
    TRY(s.mask_heads = INT64_MAX / 2, SAT_BAD_SIZE, "overflows");
    TRY(s.mask_heads = INT32_MAX, SAT_BAD_SIZE, "rows/block_rows");
    TRY(s.capacity = 17, SAT_BAD_SIZE, "capacity is 17; expected at most the 8 x 2 blocks");
    TRY(s.row_stride = 2, SAT_NULL_POINTER, "row_counts is NULL");
    TRY(s.row_counts = row_ptr; s.row_stride = 2; s.capacity = 0, SAT_BAD_STRUCT, "row_ptr and row_counts");
    const sat_dynamic_bsr compressed = right;
    right.row_ptr = NULL, right.row_counts = row_ptr, right.row_stride = 2, right.capacity = 0;
    TRY(s.capacity = 4, SAT_BAD_SIZE, "capacity is 4; expected 0 beside row_counts");
    TRY(s.row_stride = 0, SAT_BAD_SIZE, "row_stride is 0");
    TRY(s.row_stride = INT64_MAX, SAT_BAD_SIZE, "row_stride is");
    TRY(s.col_idx = NULL, SAT_NULL_POINTER, "col_idx");
    TRY(s.row_counts = (char *)row_ptr + 1, SAT_MISALIGNED, "row_");
#undef TRY
    assert_ok(sat_pattern_create_dynamic(ctx, &right, &pattern));
    sat_pattern_view view = {SAT_SIZED(sat_pattern_view)};
    assert_ok(sat_pattern_get(pattern, &view));
    assert_true(view.mask_batch == 2 && view.mask_heads == 2 && view.mask_rows == 8 && view.grid_rows == 8);
    assert_true(view.rows == 32 && view.stored_blocks == 16);
    sat_plan *plan = NULL;
    sat_problem product = matmul_problem(SAT_F32, 3), p = attention_problem(SAT_F32, 2, 2, 8);
    p.batch = 2;
    assert_fails(sat_plan_create(ctx, pattern, &product, &plan), SAT_UNSUPPORTED, "takes no padded indices");
    p.attention.heads = p.attention.kv_heads = 4;
    assert_fails(sat_plan_create(ctx, pattern, &p, &plan), SAT_BAD_SIZE,
                 "mask_heads is 2; expected 1, or the problem's");
    p = attention_problem(SAT_F32, 2, 2, 8), p.batch = 3;
    assert_fails(sat_plan_create(ctx, pattern, &p, &plan), SAT_BAD_SIZE,
                 "mask_batch is 2; expected 1, or the problem's");
    p.batch = 2, p.m = 9;
    assert_fails(sat_plan_create(ctx, pattern, &p, &plan), SAT_BAD_SIZE, "m is 9");
    p.m = 0;
    assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
    sat_plan_free(plan);
    sat_pattern_free(pattern);
    assert_ok(sat_pattern_create_dynamic(ctx, &compressed, &pattern));
    assert_fails(sat_plan_create(ctx, pattern, &product, &plan), SAT_UNSUPPORTED, "mask_batch is 2 and mask_heads 2");
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

static void a_new_mask_is_a_hit_and_other_masks_are_another_key(void **state) {
    uint64_t random = 3;
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_QUICK);
    int32_t row_ptr[33], columns[256];
    sat_dynamic_bsr s = {SAT_SIZED(sat_dynamic_bsr), .rows = 64, .cols = 64, .block_rows = 8, .block_cols = 8};
    s.index_type = SAT_I32, s.row_ptr = row_ptr, s.col_idx = columns, s.capacity = 256, s.density = 0.5;
    s.mask_batch = 2, s.mask_heads = 2;
    sat_pattern *pattern = NULL, *other = NULL;
    assert_ok(sat_pattern_create_dynamic(ctx, &s, &pattern));
    s.mask_heads = 1, s.capacity = 128;
    assert_ok(sat_pattern_create_dynamic(ctx, &s, &other));
    for (int back = 0; back < 2; back++) {
        char first[512], second[512];
        sat_problem p = attention_problem(SAT_F32, 2, 2, 16);
        p.batch = 2, p.op = back ? SAT_ATTENTION_BACKWARD : SAT_ATTENTION;
        assert_ok(sat_problem_key(ctx, pattern, &p, first, sizeof first));
        assert_ok(sat_problem_key(ctx, other, &p, second, sizeof second));
        assert_string_not_equal(first, second);
        assert_non_null(strstr(first, " dynamic"));
        for (int again = 0; again < 3; again++) {
            sat_plan *plan = NULL;
            sat_plan_info info = {SAT_SIZED(sat_plan_info)};
            for (int i = 0; i < 33; i++) row_ptr[i] = (int32_t)next_random(&random); /* tuning does not look at it */
            assert_ok(sat_plan_create(ctx, pattern, &p, &plan));
            assert_ok(sat_plan_get_info(plan, &info));
            assert_int_equal(info.tuned, again == 0);
            assert_int_equal(info.cached, again > 0);
            assert_true(info.verified);
            sat_plan_free(plan);
        }
    }
    sat_pattern_free(pattern), sat_pattern_free(other);
    sat_context_free(ctx);
}

static void one_call_does_it_all(void **state) {
    uint64_t random = 8;
    (void)state;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    for (int number = 0; number < 6;) {
        masked_case c = make_case(ctx, &random, SAT_F32);
        c.p.attention.sinks = false; /* which need a plan */
        for (int mask = 0; mask < 4; mask++) {
            draw_mask(&random, &c, mask % 2);
            expect(&c);
            void *o = poisoned(&c, O), *lse = poisoned(&c, LSE), *d[3];
            for (int i = 0; i < 3; i++) d[i] = poisoned(&c, DQ + i);
            assert_int_equal(sat_attention_forward(ctx, c.pattern, &c.p, c.data[Q], c.data[K], c.data[V], o, lse, NULL),
                             c.fault);
            sat_problem p = c.p;
            p.op = SAT_ATTENTION_BACKWARD;
            assert_int_equal(sat_attention_backward(ctx, c.pattern, &p, c.data[Q], c.data[K], c.data[V], c.data[O],
                                                    c.data[LSE], c.data[DO], d[0], d[1], d[2], NULL),
                             c.fault);
            compare(&c, O, o, "one call", mask), compare(&c, LSE, lse, "one call", mask);
            for (int i = 0; i < 3; i++) compare(&c, DQ + i, d[i], "one call", mask), free(d[i]);
            free(o), free(lse);
        }
        free_case(&c);
        number++;
    }
    sat_context_free(ctx);
}

/* ---- planted variants: the reference on a view that is not the one it should see ---- */

typedef enum planted_fault { RIGHT, FIRST_ITEM, FIRST_HEAD, FIRST_MASK } planted_fault;

typedef struct planted {
    planted_fault fault;
    const sat_variant *reference;
    int64_t *row_ptr; /* FIRST_MASK: as the first run has it */
} planted;

static sat_status planted_launch(const sat_launch *l) {
    planted *me = l->variant->user;
    sat_pattern_view v = *l->pattern;
    sat_launch changed = *l;
    size_t bytes = ((size_t)v.grid_rows + 1) * sizeof *me->row_ptr;
    if (me->fault == FIRST_ITEM) v.mask_batch = 1;
    if (me->fault == FIRST_HEAD) v.mask_heads = 1;
    if (me->fault == FIRST_MASK && !me->row_ptr) me->row_ptr = malloc(bytes), memcpy(me->row_ptr, v.row_ptr, bytes);
    if (me->fault == FIRST_MASK) v.row_ptr = me->row_ptr;
    changed.pattern = &v;
    return me->reference->launch(&changed);
}

static bool planted_supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                             const sat_device *d) {
    const planted *me = v->user;
    return me->reference->supports(me->reference, p, a, d);
}

static double planted_estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                               const sat_device *d) {
    (void)v, (void)p, (void)a, (void)d;
    return 1e-9;
}

static void the_race_finds_variants_that_take_another_mask(void **state) {
    (void)state;
    int32_t row_ptr[41] = {0}, columns[1];
    for (int trial = 0; trial < 16; trial++) { /* faults, directions, compressed and padded */
        sat_context *ctx = open_context(SAT_EFFORT_QUICK);
        planted me = {.fault = (planted_fault)(trial % 4)};
        const char *name =
            trial & 4 ? "cpu_attention_backward_any_any_c_reference" : "cpu_attention_any_any_c_reference";
        for (size_t i = 0; i < sat_variant_count(ctx); i++)
            if (strcmp(sat_variant_at(ctx, i)->name, name) == 0) me.reference = sat_variant_at(ctx, i);
        sat_variant v = *me.reference;
        v.name = "cpu_attention_any_any_c_planted", v.user = &me, v.launch = planted_launch;
        v.supports = planted_supports, v.estimate = planted_estimate, v.flags = SAT_V_BATCHED | SAT_V_DYNAMIC;
        assert_ok(sat_variant_register(ctx, &v));
        sat_dynamic_bsr s = {SAT_SIZED(sat_dynamic_bsr), .rows = 40, .cols = 40, .block_rows = 4, .block_cols = 4};
        s.index_type = SAT_I32, s.col_idx = columns, s.mask_batch = s.mask_heads = 2, s.density = 0.4;
        if (trial & 8) s.row_counts = row_ptr, s.row_stride = 7;
        else s.row_ptr = row_ptr, s.capacity = 250;
        sat_pattern *pattern = NULL;
        assert_ok(sat_pattern_create_dynamic(ctx, &s, &pattern));
        sat_problem p = attention_problem(SAT_F32, 2, 1, 8);
        p.batch = 2, p.op = v.op;
        sat_race *race = NULL;
        sat_race_options o = {SAT_SIZED(sat_race_options), .only = v.name};
        assert_ok(sat_race_run(ctx, pattern, &p, &o, &race));
        const sat_result *r = sat_race_at(race, 0);
        if (r->verdict != (me.fault == RIGHT ? SAT_VERDICT_OK : SAT_VERDICT_WRONG))
            fail_msg("fault %d: verdict %d, %s", (int)me.fault, (int)r->verdict, r->message);
        sat_race_free(race);
        sat_pattern_free(pattern);
        sat_context_free(ctx);
        free(me.row_ptr);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant_follows_masks_that_change),
        cmocka_unit_test(padded_masks_say_what_is_wrong_with_them),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(a_new_mask_is_a_hit_and_other_masks_are_another_key),
        cmocka_unit_test(one_call_does_it_all),
        cmocka_unit_test(the_race_finds_variants_that_take_another_mask),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
