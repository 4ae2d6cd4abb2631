/* Attention, forward and backward: sizes, operands and counts. Its check is beside. */
#include "attention.h"

#include <stdio.h>

#include "base/hash.h"
#include "ops/attention_check.h"

extern const sat_checker sat_attention_check, sat_attention_backward_check;

/* ---- normalising ---- */

static sat_status normalise_shape(sat_attention *t) {
    if (t->heads < 1) return sat_fail(SAT_BAD_SIZE, "heads is %lld; expected 1 or more", (long long)t->heads);
    if (t->kv_heads == 0) t->kv_heads = t->heads;
    if (t->kv_heads < 1 || t->heads % t->kv_heads)
        return sat_fail(SAT_BAD_SIZE, "kv_heads is %lld; expected a number that divides heads, %lld",
                        (long long)t->kv_heads, (long long)t->heads);
    if (t->dim < 1 || t->dim > SAT_ATTENTION_MAX_DIM)
        return sat_fail(SAT_UNSUPPORTED, "dim is %lld; expected 1 to %d", (long long)t->dim, SAT_ATTENTION_MAX_DIM);
    if (t->value_dim < 0 || t->value_dim > SAT_ATTENTION_MAX_DIM)
        return sat_fail(SAT_UNSUPPORTED, "value_dim is %lld; expected 1 to %d, or 0 for dim", (long long)t->value_dim,
                        SAT_ATTENTION_MAX_DIM);
    t->value_dim = sat_value_dim(t);
    if (t->softcap != 0 && !(t->softcap >= 1e-4 && t->softcap <= 1e6))
        return sat_fail(SAT_UNSUPPORTED, "softcap is %g; expected 0, or 1e-4 to 1e6", t->softcap);
    if (t->window < 0) return sat_fail(SAT_BAD_SIZE, "window is %lld; expected 0 or more", (long long)t->window);
    return SAT_OK;
}

/* Masks of a pattern whose indices change: it says itself what they are. */
static sat_status normalise_changing_mask(sat_problem *p, const sat_pattern_view *a) {
    const int64_t masks[] = {a->mask_batch, a->mask_heads}, all[] = {p->batch, p->attention.heads};
    for (int i = 0; i < 2; i++)
        if (masks[i] != 1 && masks[i] != all[i])
            return sat_fail(SAT_BAD_SIZE, "the pattern's mask_%s is %lld; expected 1, or the problem's %s, %lld",
                            i ? "heads" : "batch", (long long)masks[i], i ? "heads" : "batch", (long long)all[i]);
    SAT_TRY(sat_normalise_size(&p->m, a->mask_rows, "m"));
    return sat_normalise_size(&p->n, a->cols, "n");
}

/* The pattern is one mask for all heads, or one a head, stacked. */
static sat_status normalise_mask(sat_problem *p, const sat_pattern_view *a) {
    if (a->dynamic) return normalise_changing_mask(p, a);
    int64_t each = p->m > 0 ? p->m / a->block_rows + (p->m % a->block_rows != 0) : 0, stacked = -1, rows = -1;
    if (p->m < 0) return sat_fail(SAT_BAD_SIZE, "m is %lld; expected 0 or more", (long long)p->m);
    if (!__builtin_mul_overflow(each, p->attention.heads, &stacked) &&
        __builtin_mul_overflow(stacked, a->block_rows, &rows))
        rows = -1;
    if (p->m == 0) p->m = a->rows;
    if (p->m != a->rows && rows != a->rows)
        return sat_fail(SAT_BAD_SIZE,
                        "the mask has %lld rows; expected m, %lld, for all heads, or for each of heads, %lld, its own "
                        "whole blocks: %lld",
                        (long long)a->rows, (long long)p->m, (long long)p->attention.heads, (long long)rows);
    return sat_normalise_size(&p->n, a->cols, "n");
}

static sat_status normalise_sequences(const sat_problem *p, const sat_pattern_view *a) {
    if (a->sequences == 0) return SAT_OK;
    if (p->batch != 1)
        return sat_fail(SAT_BAD_SIZE, "batch is %lld; expected 1 beside %lld packed sequences", (long long)p->batch,
                        (long long)a->sequences);
    const int64_t last[] = {a->q_offsets[a->sequences], a->kv_offsets[a->sequences]}, length[] = {p->m, p->n};
    for (int i = 0; i < 2; i++)
        if (last[i] != length[i])
            return sat_fail(SAT_BAD_ROW_PTR, "%s_offsets[%lld] is %lld; expected %s, %lld", i ? "kv" : "q",
                            (long long)a->sequences, (long long)last[i], i ? "n" : "m", (long long)length[i]);
    return SAT_OK;
}

static sat_status normalise_heads(sat_heads *s, const sat_problem *p, int64_t heads, int64_t rows, int64_t dim,
                                  bool output, const char *name) {
    if (s->batch_stride < 0 || s->head_stride < 0 || s->row_stride < 0)
        return sat_fail(SAT_BAD_STRIDE, "%s: strides are %lld (batch), %lld (head), %lld (row); expected 0 or more",
                        name, (long long)s->batch_stride, (long long)s->head_stride, (long long)s->row_stride);
    bool default_strides = s->batch_stride == 0 && s->head_stride == 0 && s->row_stride == 0;
    const int64_t extent[] = {p->batch, heads, rows, dim};
    bool overflows = false;
    if (default_strides || rows == 0) {
        s->row_stride = dim;
        overflows = __builtin_mul_overflow(rows, dim, &s->head_stride) ||
                    __builtin_mul_overflow(heads, s->head_stride, &s->batch_stride);
    }
    sat_bound_stride(&s->batch_stride, p->batch), sat_bound_stride(&s->head_stride, heads);
    sat_bound_stride(&s->row_stride, rows);
    const int64_t stride[] = {s->batch_stride, s->head_stride, s->row_stride, 1};
    if (overflows || sat_strides_span(extent, stride, 4) < 0)
        return sat_fail(SAT_BAD_SIZE, "%s: batch %lld, %lld heads, %lld x %lld with strides %lld, %lld, %lld overflows",
                        name, (long long)p->batch, (long long)heads, (long long)rows, (long long)dim,
                        (long long)s->batch_stride, (long long)s->head_stride, (long long)s->row_stride);
    if (output && rows > 0 && !sat_strides_distinct(extent, stride, 4))
        return sat_fail(SAT_BAD_STRIDE,
                        "%s: with strides %lld (batch), %lld (head), %lld (row) elements of the output share a place",
                        name, (long long)s->batch_stride, (long long)s->head_stride, (long long)s->row_stride);
    if (output) return SAT_OK;
    SAT_TRY(sat_check_broadcast(p, s->head_stride, rows > 0 ? heads : 0, name, "head_stride", "heads"));
    return sat_check_broadcast(p, s->row_stride, rows, name, "row_stride", "rows");
}

static sat_status normalise_layouts(sat_problem *p) {
    sat_attention *t = &p->attention;
    bool back = p->op == SAT_ATTENTION_BACKWARD;
    SAT_TRY(normalise_heads(&t->q, p, t->heads, p->m, t->dim, false, "q"));
    SAT_TRY(normalise_heads(&t->k, p, t->kv_heads, p->n, t->dim, false, "k"));
    SAT_TRY(normalise_heads(&t->v, p, t->kv_heads, p->n, t->value_dim, false, "v"));
    SAT_TRY(normalise_heads(&t->o, p, t->heads, p->m, t->value_dim, !back, "o"));
    if (!back) {
        t->dq = t->dk = t->dv = t->do_ = (sat_heads){0};
        return SAT_OK;
    }
    SAT_TRY(normalise_heads(&t->do_, p, t->heads, p->m, t->value_dim, false, "do"));
    SAT_TRY(normalise_heads(&t->dq, p, t->heads, p->m, t->dim, true, "dq"));
    SAT_TRY(normalise_heads(&t->dk, p, t->kv_heads, p->n, t->dim, true, "dk"));
    return normalise_heads(&t->dv, p, t->kv_heads, p->n, t->value_dim, true, "dv");
}

static sat_status refuse(const sat_problem *p) {
    if (p->beta != 0) return sat_fail(SAT_UNSUPPORTED, "beta is %g; expected 0 for attention", p->beta);
    if (p->c_dtype != p->a_dtype)
        return sat_fail(SAT_UNSUPPORTED, "c_dtype is not a_dtype; attention has one dtype for all");
    return SAT_OK;
}

/* Rows of all heads can be counted, even where one of the sizes is 0. */
static sat_status normalise_counts(const sat_problem *p) {
    int64_t all;
    if (!__builtin_mul_overflow(sat_max(1, p->batch), p->attention.heads, &all) &&
        !__builtin_mul_overflow(all, sat_max(1, sat_max(p->m, p->n)), &all))
        return SAT_OK;
    return sat_fail(SAT_BAD_SIZE, "batch %lld times %lld heads times %lld x %lld overflows", (long long)p->batch,
                    (long long)p->attention.heads, (long long)p->m, (long long)p->n);
}

static sat_status normalise(sat_problem *p, const sat_pattern_view *a) {
    sat_attention *t = &p->attention;
    SAT_TRY(sat_normalise_common(p));
    SAT_TRY(refuse(p));
    SAT_TRY(normalise_shape(t));
    SAT_TRY(normalise_mask(p, a));
    SAT_TRY(normalise_counts(p));
    if (p->k != 0 && p->k != t->dim)
        return sat_fail(SAT_BAD_SIZE, "k is %lld; expected 0, or dim, %lld", (long long)p->k, (long long)t->dim);
    p->k = t->dim;
    SAT_TRY(normalise_sequences(p, a));
    if (t->window >= p->m + p->n) t->window = 0; /* no two are that far apart */
    if (p->alpha == 0) p->alpha = 1 / sqrt((double)t->dim);
    if (p->op == SAT_ATTENTION_BACKWARD) t->lse = false; /* there it is an input, always */
    p->flags &= ~(uint32_t)SAT_FIXED_VALUES;
    p->a = p->b = p->c = (sat_layout){0};
    SAT_TRY(normalise_layouts(p));
    p->b_align = p->a_align;
    SAT_TRY(sat_normalise_align(&p->a_align, p->a_dtype, "a_align"));
    SAT_TRY(sat_normalise_align(&p->b_align, p->b_dtype, "b_align"));
    return sat_normalise_align(&p->c_align, p->c_dtype, "c_align");
}

/* ---- operands ---- */

static sat_operand heads_operand(const sat_problem *p, const char *name, const sat_heads *s, bool of_keys, int64_t dim,
                                 bool output) {
    const sat_attention *t = &p->attention;
    int64_t heads = of_keys ? t->kv_heads : t->heads, rows = of_keys ? p->n : p->m;
    const int64_t extent[] = {p->batch, heads, rows, dim};
    const int64_t stride[] = {s->batch_stride, s->head_stride, s->row_stride, 1};
    return (sat_operand){.name = name,
                         .dtype = p->a_dtype,
                         .output = output,
                         .rows = heads * rows,
                         .cols = dim,
                         .batch = p->batch,
                         .layout = {.row_stride = s->row_stride, .col_stride = 1, .batch_stride = s->batch_stride},
                         .group = rows,
                         .group_stride = s->head_stride,
                         .align = output ? p->c_align : p->a_align,
                         .span = sat_strides_span(extent, stride, 4)};
}

static sat_operand lse_operand(const sat_problem *p, bool output) {
    int64_t rows = p->attention.heads * p->m;
    return (sat_operand){.name = "lse",
                         .dtype = SAT_F32,
                         .output = output,
                         .rows = rows,
                         .cols = 1,
                         .batch = p->batch,
                         .layout = {.row_stride = 1, .col_stride = 1, .batch_stride = rows},
                         .align = 4,
                         .span = rows * p->batch};
}

/* One number a head, shared by the batch. */
static sat_operand sinks_operand(const sat_problem *p, bool output) {
    int64_t heads = p->attention.heads;
    return (sat_operand){.name = output ? "dsinks" : "sinks",
                         .dtype = SAT_F32,
                         .output = output,
                         .rows = heads,
                         .cols = 1,
                         .batch = output ? 1 : p->batch,
                         .layout = {.row_stride = 1, .col_stride = 1},
                         .align = 4,
                         .span = heads};
}

static int operands(const sat_problem *p, const sat_pattern_view *a, sat_operand *out) {
    (void)a;
    const sat_attention *t = &p->attention;
    bool back = p->op == SAT_ATTENTION_BACKWARD;
    out[0] = heads_operand(p, "q", &t->q, false, t->dim, false);
    out[1] = heads_operand(p, "k", &t->k, true, t->dim, false);
    out[2] = heads_operand(p, "v", &t->v, true, t->value_dim, false);
    out[3] = heads_operand(p, "o", &t->o, false, t->value_dim, !back);
    if (back || t->lse) out[4] = lse_operand(p, !back);
    if (!back && t->sinks && !t->lse) out[4] = sat_operand_absent();
    if (!back && t->sinks) out[5] = sinks_operand(p, false);
    if (!back) return t->sinks ? 6 : t->lse ? 5 : 4;
    out[5] = heads_operand(p, "do", &t->do_, false, t->value_dim, false);
    out[6] = heads_operand(p, "dq", &t->dq, false, t->dim, true);
    out[7] = heads_operand(p, "dk", &t->dk, true, t->dim, true);
    out[8] = heads_operand(p, "dv", &t->dv, true, t->value_dim, true);
    if (t->sinks) out[9] = sinks_operand(p, false), out[10] = sinks_operand(p, true);
    return t->sinks ? 11 : 9;
}

/* ---- operands of a race, see attention_check.h ---- */

/* Odd integers up to the widest that their dtype shows, or that keep eight standard deviations of a sum of `terms`
 * exact in the compute type. All of one row: they add up as they are. */
static double most_of(const sat_problem *p, double terms, bool one_row) {
    double limit = p->compute_dtype == SAT_F64                       ? 0x1p46
                   : p->a_dtype == SAT_F32 && !sat_rounds_to_tf32(p) ? 0x1p22
                                                                     : 0x1p20;
    double sum = one_row ? terms : 8 * 0.77 * sqrt(fmax(1, terms));
    return fmax(3, fmin(sat_exact_widest(p), floor(limit / sum)));
}

static double power_above(double x) { return exp2(ceil(log2(x))); }

/* Sinks are worth about all keys together, so that one that is left out or another head's shows at any length. */
static sat_fill fill_of_sinks(const sat_problem *p, double largest, bool two) {
    return (sat_fill){.scale = 1, .most = two, .offset = log((double)sat_max(1, p->n)) + largest};
}

/* The gradients' V has rank one, and neither it nor dO is above 1, so that f16 holds what they add up to. */
static void fill_uniform(const sat_problem *p, int fill_case, sat_fill *fills) {
    const sat_attention *t = &p->attention;
    fills[fill_case == SAT_FILL_NO_KEYS ? 1 : 0] = (sat_fill){.scale = 0};
    if (t->sinks) fills[sat_sinks_at(p)] = fill_of_sinks(p, 0, true);
    if (p->op == SAT_ATTENTION) {
        fills[2] = (sat_fill){.scale = 1, .most = most_of(p, (double)p->n, t->v.row_stride == 0), .wide = true};
        return;
    }
    fills[2] = (sat_fill){.scale = 0.125, .most = 7, .wide = true, .rank_one = true};
    double most = most_of(p, 49 * (double)t->value_dim, false);
    fills[5] = (sat_fill){.scale = 1 / power_above(most + 1), .most = most, .wide = true};
}

/* The smallest step between scores, 2*alpha times both scales, is worth 40. */
static void fill_far(const sat_problem *p, sat_fill *fills) {
    double softcap = p->attention.softcap, step = softcap != 0 ? 100 * softcap : 20; /* far beyond the cap */
    double both = ceil(log2(step / fabs(p->alpha)));
    if (p->a_dtype == SAT_F16 && softcap != 0) both = fmax(-16, fmin(both, 28));
    fills[0] = (sat_fill){.scale = exp2(ceil(both / 2)), .most = 1};
    fills[1] = (sat_fill){.scale = exp2(floor(both / 2)), .most = 1};
    if (p->attention.sinks)
        fills[sat_sinks_at(p)] = (sat_fill){.scale = 65536, .most = 1}; /* all of a row, or nothing */
    if (p->op == SAT_ATTENTION)
        fills[2].scale = p->a_dtype == SAT_F16 ? 0x1p5 : 0x1p20; /* a kernel that clamps V shows */
}

/* Queries are around 1, so that keys which rise make scores that do: by 6 in 64 keys, which is more than the 8 powers
 * of two that some kernels let a maximum grow by before they scale what they have summed. Those that fall begin around
 * -200, so that a maximum which begins at 0 shows: exp is 0 in f32 below -104. */
static void fill_ladder(const sat_problem *p, bool falls, sat_fill *fills) {
    double rise = 6.0 / 64 / (p->alpha * (double)p->attention.dim), most = 16384 / fmax(1, (double)p->n);
    if (fabs(rise) > most) rise = rise < 0 ? -most : most; /* f16 has to hold them */
    fills[0] = (sat_fill){.scale = 0.5, .offset = 1};
    fills[1] = (sat_fill){.scale = 1, .slope = falls ? -rise : rise};
    double below = 200 / (p->alpha * (double)p->attention.dim);
    if (falls) fills[1].offset = -fmax(-16384, fmin(below, 16384));
    double first = sat_capped(p, p->alpha * (double)p->attention.dim * fills[1].offset);
    if (p->attention.sinks) fills[sat_sinks_at(p)] = (sat_fill){.scale = 1, .offset = first};
}

/* A cap shows where scores reach it. They stay below 30 or so, so that no weight is lost. */
static void set_real_fills(const sat_problem *p, sat_fill *fills) {
    double softcap = p->attention.softcap, deviation = fabs(p->alpha) * sqrt((double)p->attention.dim) / 3;
    double most = softcap != 0 ? fmin(softcap, 6) : 0; /* of the scores' deviation; e^s is e^(most^2/2) on average */
    if (p->attention.sinks) fills[sat_sinks_at(p)] = fill_of_sinks(p, fmin(most * most / 2, 2 * most), false);
    if (softcap == 0) return;
    double each = sqrt(most / deviation);
    fills[0].scale = fills[1].scale = fmax(0x1p-7, fmin(each, 0x1p7));
}

static void set_fills(const sat_problem *p, const sat_pattern_view *a, int fill_case, sat_fill *fills) {
    (void)a;
    if (fill_case <= SAT_FILL_NO_QUERIES) fill_uniform(p, fill_case, fills);
    else if (fill_case == SAT_FILL_FAR) fill_far(p, fills);
    else if (fill_case == SAT_FILL_REALS) set_real_fills(p, fills);
    else fill_ladder(p, fill_case == SAT_FILL_FALLING, fills);
}

static const sat_check_case forward_cases[] = {{SAT_PROBE_STRUCTURE, SAT_FILL_NO_QUERIES, "with queries that are zero"},
                                               {SAT_PROBE_PRECISION, SAT_FILL_FAR, "with scores far apart"},
                                               {SAT_PROBE_PRECISION, SAT_FILL_RISING, "with scores that rise"},
                                               {SAT_PROBE_PRECISION, SAT_FILL_FALLING, "with scores that fall"},
                                               {0}};
/* The gradients have no running maximum: their weights come from LSE. */
static const sat_check_case backward_cases[] = {
    {SAT_PROBE_STRUCTURE, SAT_FILL_NO_QUERIES, "with queries that are zero"},
    {SAT_PROBE_PRECISION, SAT_FILL_FAR, "with scores far apart"},
    {0}};
static const sat_check_case other_scale = {SAT_PROBE_PRECISION, SAT_FILL_REALS, "with another scale"};
static const sat_check_case other_mask = {SAT_PROBE_STRUCTURE, SAT_FILL_NO_QUERIES,
                                          "on a pattern with empty and full rows"};

/* ---- key fields ---- */

static bool gapless(const sat_problem *p, const sat_heads *s, bool of_keys, bool of_values) {
    const sat_attention *t = &p->attention;
    int64_t heads = of_keys ? t->kv_heads : t->heads, rows = of_keys ? p->n : p->m;
    int64_t dim = of_values ? t->value_dim : t->dim;
    return s->row_stride == dim && s->head_stride == rows * dim && s->batch_stride == heads * rows * dim;
}

/* Strides of those that have gaps. Where they do not fit, a number that stands for all of them. */
static void format_strides(const sat_problem *p, char *to, size_t size) {
    const sat_attention *t = &p->attention;
    const sat_heads *const list[] = {&t->q, &t->k, &t->v, &t->o, &t->do_, &t->dq, &t->dk, &t->dv};
    static const char *const names[] = {"q", "k", "v", "o", "do", "dq", "dk", "dv"};
    static const bool of_keys[] = {false, true, true, false, false, false, true, true};
    static const bool of_values[] = {false, false, true, true, true, false, false, true};
    uint64_t all = SAT_HASH_START;
    size_t at = 0;
    to[0] = 0;
    for (int i = 0; i < (p->op == SAT_ATTENTION ? 4 : 8); i++) {
        const int64_t x[] = {list[i]->batch_stride, list[i]->head_stride, list[i]->row_stride};
        for (int j = 0; j < 3; j++) all = sat_hash_number(all, (uint64_t)x[j]);
        if (gapless(p, list[i], of_keys[i], of_values[i]) || at >= size) continue;
        at += (size_t)snprintf(to + at, size - at, " %s_at=%lld,%lld,%lld", names[i], (long long)x[0], (long long)x[1],
                               (long long)x[2]);
    }
    if (at >= size) snprintf(to, size, " strides=%016llx", (unsigned long long)all);
}

static void set_key_fields(const sat_problem *p, const sat_pattern_view *a, bool full, sat_key_fields *fields) {
    const sat_attention *t = &p->attention;
    char *to = fields->more;
    size_t size = sizeof fields->more;
    sat_set_common_key_fields(&(sat_matmul){0}, a, fields);
    sat_mask k = sat_mask_of(p, a);
    int64_t items = sat_item_rows(a) ? p->batch : 1;
    int at =
        snprintf(to, size, " heads=%lld kv_heads=%lld dim=%lld%s window=%lld%s masks=%lld sequences=%lld",
                 (long long)t->heads, (long long)t->kv_heads, (long long)t->dim, t->causal ? " causal" : "",
                 (long long)t->window, t->lse ? " lse" : "", (long long)sat_mask_count(&k, p), (long long)a->sequences);
    if (at < 0 || (size_t)at >= size) return;
    if (items > 1) at += snprintf(to + at, size - (size_t)at, " mask_batch=%lld", (long long)items);
    if (t->value_dim != t->dim) at += snprintf(to + at, size - (size_t)at, " value_dim=%lld", (long long)t->value_dim);
    if (t->sinks) at += snprintf(to + at, size - (size_t)at, " sinks");
    if (t->softcap != 0 && !full) at += snprintf(to + at, size - (size_t)at, " softcap");
    if (!full) return;
    if (t->softcap != 0) at += snprintf(to + at, size - (size_t)at, " softcap=%.9g", t->softcap);
    if (p->alpha < 0) at += snprintf(to + at, size - (size_t)at, " negative");
    format_strides(p, to + at, size - (size_t)at);
}

/* Scores of every scale are the same work, but for their sign; those of the trial are of the size that scales are made
 * for. */
static sat_problem representative(const sat_problem *p) {
    sat_problem q = *p;
    q.alpha = (p->alpha < 0 ? -1 : 1) / sqrt((double)p->attention.dim);
    return q;
}

/* A gradient's O and LSE are what the forward pass gives. */
static sat_problem forward_problem(const sat_problem *p) {
    sat_problem q = *p;
    q.op = SAT_ATTENTION, q.attention.lse = true, q.c_align = p->a_align;
    return q;
}

static sat_status refuse_in_call(sat_problem *p, void *const *operands) {
    (void)operands;
    if (!p->attention.sinks) return SAT_OK;
    return sat_fail(SAT_UNSUPPORTED,
                    "sinks: this call has no argument for them; expected a plan (sat_plan_create, sat_run)");
}

/* LSE is written where there is a place for it. */
static sat_status from_call(sat_problem *p, void *const *operands) {
    p->attention.lse = operands[4] != NULL;
    return refuse_in_call(p, operands);
}

static bool same_heads(const sat_heads *x, const sat_heads *y) {
    return x->batch_stride == y->batch_stride && x->head_stride == y->head_stride && x->row_stride == y->row_stride;
}

static bool same(const sat_problem *one, const sat_problem *other) {
    const sat_attention *x = &one->attention, *y = &other->attention;
    return x->heads == y->heads && x->kv_heads == y->kv_heads && x->dim == y->dim && x->value_dim == y->value_dim &&
           x->softcap == y->softcap && x->sinks == y->sinks && x->causal == y->causal && x->window == y->window &&
           x->lse == y->lse && same_heads(&x->q, &y->q) && same_heads(&x->k, &y->k) && same_heads(&x->v, &y->v) &&
           same_heads(&x->o, &y->o) && same_heads(&x->dq, &y->dq) && same_heads(&x->dk, &y->dk) &&
           same_heads(&x->dv, &y->dv) && same_heads(&x->do_, &y->do_);
}

static bool always(const sat_problem *p) { return (void)p, true; }

const sat_op sat_op_attention = {
    .id = SAT_ATTENTION,
    .name = "attention",
    .part_bytes = sizeof(sat_attention),
    .same = same,
    .takes_dynamic = true,
    .takes_masks = true,
    .output = 3,
    .names = (const char *const[]){"q", "k", "v", "o", "lse", "sinks", NULL},
    .aligns = "aaac--",
    .normalise = normalise,
    .operands = operands,
    .flops = sat_attention_flops,
    .bytes = sat_attention_bytes,
    .set_key_fields = set_key_fields,
    .from_call = from_call,
    .representative = representative,
    .set_fills = set_fills,
    .set_real_fills = set_real_fills,
    .host_checker = &sat_attention_check,
    .winner_cases = forward_cases,
    .other_scale = &other_scale,
    .other_pattern = &other_mask,
};

const sat_op sat_op_attention_backward = {
    .id = SAT_ATTENTION_BACKWARD,
    .name = "attention-backward",
    .part_bytes = sizeof(sat_attention),
    .same = same,
    .takes_dynamic = true,
    .takes_masks = true,
    .output = 6,
    .names = (const char *const[]){"q", "k", "v", "o", "lse", "do", "dq", "dk", "dv", "sinks", "dsinks", NULL},
    .aligns = "aaaa-accc--",
    .normalise = normalise,
    .operands = operands,
    .flops = sat_attention_flops,
    .bytes = sat_attention_bytes,
    .set_key_fields = set_key_fields,
    .from_call = refuse_in_call,
    .representative = representative,
    .set_fills = set_fills,
    .set_real_fills = set_real_fills,
    .forward_problem = forward_problem,
    .needs_columns = always,
    .host_checker = &sat_attention_backward_check,
    .winner_cases = backward_cases,
    .other_scale = &other_scale,
    .other_pattern = &other_mask,
};
