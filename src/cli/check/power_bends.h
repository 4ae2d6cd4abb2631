/* The fault hooks, one function for each change of a kernel. For power_faults.c alone, whose table they fill. */
#ifndef CLI_POWER_BENDS_H
#define CLI_POWER_BENDS_H

#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "../number.h"
#include "check_reference.h"
#include "power.h"

/* ---- start: the problem, the operands, or the whole launch ---- */

static size_t bytes_of(const run *r, int i) { return (size_t)r->list[i].span * operand_size(&r->list[i]); }

// Lets the loops read operand i in memory that the plan keeps. What is there is of an earlier run, or `made` now.
static sat_status read_kept(run *r, int i, bool *made) {
    *made = !r->state->kept;
    if (*made) r->state->kept = malloc(bytes_of(r, i) + 1);
    if (!r->state->kept) return sat_fail(SAT_OUT_OF_MEMORY, "planted: a copy");
    r->host[i] = r->state->kept;
    return SAT_OK;
}

static sat_status keeps_first(run *r) { // the content of an operand
    int i = r->how->operand;
    const char *now = r->host[i];
    bool made;
    sat_status status = read_kept(r, i, &made);
    if (status == SAT_OK && made) memcpy(r->state->kept, now, bytes_of(r, i));
    return status;
}

// The operand is read where it was in another run.
static sat_status reads_at(run *r, const void *address) {
    int i = r->how->operand;
    if (address == r->launch->operands[i] || r->list[i].span == 0) return SAT_OK;
    bool made;
    sat_status status = read_kept(r, i, &made);
    return status == SAT_OK ? power_peek(r, r->state->kept, address, bytes_of(r, i)) : status;
}

static sat_status keeps_address(run *r) { return reads_at(r, r->state->first[r->how->operand]); }

static sat_status late_address(run *r) { // that of the run before
    return r->state->runs > 0 ? reads_at(r, r->state->before[r->how->operand]) : SAT_OK;
}

static double number_at(const run *r, int i, int64_t at) { return number_load(r->list[i].dtype, r->host[i], at); }

static double largest_of(const run *r, int i) { // of those that are finite
    double largest = 0;
    for (int64_t e = 0; e < r->list[i].span; e++) {
        double x = fabs(number_at(r, i, e));
        if (x > largest && isfinite(x)) largest = x;
    }
    return largest;
}

static sat_status late_limit(run *r) { // inputs are clamped at four times the largest of the run before
    int i = r->how->operand;
    double limit = 4 * r->state->largest, largest = largest_of(r, i);
    r->state->largest = largest;
    if (r->state->runs == 0 || largest <= limit) return SAT_OK;
    const char *now = r->host[i];
    bool made;
    sat_status status = read_kept(r, i, &made);
    for (int64_t e = 0; status == SAT_OK && e < r->list[i].span; e++) {
        double x = number_load(r->list[i].dtype, now, e);
        number_store(r->list[i].dtype, r->state->kept, e, x > limit ? limit : x < -limit ? -limit : x);
    }
    return status;
}

static sat_status nan_stays(run *r) { // in the plan, from a run with NaN on
    int i = r->how->operand;
    r->wrong = r->state->nan;
    for (int64_t z = 0; z < r->list[i].batch; z++)
        for (int64_t e = 0; e < r->list[i].rows * r->list[i].cols; e++)
            if (isnan(number_at(r, i, operand_at(&r->list[i], z, e / r->list[i].cols, e % r->list[i].cols))))
                r->state->nan = true;
    return SAT_OK;
}

static sat_status last_alpha(run *r) { return r->p.alpha = r->me->last_alpha, SAT_OK; }
static sat_status release_breaks(run *r) { return r->wrong = r->me->releases > r->state->releases, SAT_OK; }

static sat_status twin_breaks(run *r) { // the release of another plan of the same pattern
    return r->wrong = r->me->releases > r->state->releases && r->me->released == r->state->pattern, SAT_OK;
}

static sat_status other_thread(run *r) { // than the one that made the plan
    return r->wrong = !pthread_equal(r->state->thread, pthread_self()), SAT_OK;
}

static sat_status flushes_parts(run *r) { // tiny values of A, in block rows that are not full
    double largest = largest_of(r, 0);
    return r->wrong_parts = largest > 0 && largest < (r->p.a_dtype == SAT_F16 ? 0x1p-8 : 0x1p-20), SAT_OK;
}

static sat_status clamps_parts(run *r) { return r->wrong_parts = largest_of(r, 1) > 65504, SAT_OK; }

static sat_status shares_values(run *r) { // one place for the fixed values of all plans
    char *copy = realloc(r->me->fixed, bytes_of(r, 0) + 1);
    if (!copy) return sat_fail(SAT_OUT_OF_MEMORY, "planted: a copy");
    memcpy(copy, r->host[0], bytes_of(r, 0));
    r->me->fixed = copy, r->me->fixed_for = r->a;
    return SAT_OK;
}

static sat_status shared_values(run *r) {
    if (r->p.flags & SAT_FIXED_VALUES) r->host[0] = r->me->fixed;
    return SAT_OK;
}

static sat_status shared_by_pattern(run *r) {
    if (r->p.flags & SAT_FIXED_VALUES && r->me->fixed_for == r->a) r->host[0] = r->me->fixed;
    return SAT_OK;
}

static sat_status keeps_scalars(run *r) {
    if (r->me->runs == 0) r->me->alpha = r->p.alpha, r->me->beta = r->p.beta;
    r->p.alpha = r->me->alpha;
    if (r->p.beta != 0 && r->me->beta != 0) r->p.beta = r->me->beta;
    return SAT_OK;
}

static sat_status alpha_of_minus_1(run *r) { return r->p.alpha = r->p.alpha == -1 ? 1 : r->p.alpha, SAT_OK; }
static sat_status beta_below_0(run *r) { return r->p.beta = fabs(r->p.beta), SAT_OK; }
static sat_status beta_above_1(run *r) { return r->p.beta = fmin(r->p.beta, 1), SAT_OK; }
// Such a kernel has left to threads that were not started what it divided by their number.
static sat_status in_a_region(run *r) { return r->wrong = omp_get_level() > 0 && r->launch->threads > 1, SAT_OK; }
static sat_status one_thread(run *r) { return r->wrong = r->launch->threads == 1, SAT_OK; }
static sat_status run_256(run *r) { return r->wrong = r->me->runs >= 255, SAT_OK; }
static sat_status unaligned(run *r) { return r->wrong = (uintptr_t)r->launch->operands[1] % 16 != 0, SAT_OK; }
static sat_status aligned(run *r) { return r->wrong = (uintptr_t)r->launch->operands[1] % 64 == 0, SAT_OK; }
static sat_status any_order(run *r) { return r->backwards = rng_next(&r->me->random) & 1, SAT_OK; }

static sat_status clean_workspace(run *r) {
    uint64_t word = 0;
    sat_status status = power_peek(r, &word, r->launch->workspace, sizeof word);
    r->wrong = word != 0;
    return status;
}

static sat_status own_workspace(run *r) { // a byte of the last run is expected to be there
    unsigned char byte = 0;
    sat_status status = power_peek(r, &byte, r->launch->workspace, 1);
    r->wrong = r->state->runs > 0 && byte != 0x5c;
    return status == SAT_OK ? power_poke(r, r->launch->workspace, 0x5c) : status;
}

static sat_status last_schedule(run *r) { // that of the plan that was prepared last
    const sat_pattern_view *a = r->me->last ? r->me->last->pattern : r->a;
    if (a->rows == r->a->rows && a->cols == r->a->cols && a->stored_blocks == r->a->stored_blocks) r->a = a;
    return SAT_OK;
}

static sat_status untransposed(run *r) {
    if (r->a->block_rows == r->a->block_cols) r->p.matmul.transpose = SAT_NO_TRANSPOSE;
    return SAT_OK;
}

static sat_status short_stride(run *r) { // between items
    sat_layout *l = &r->list[r->how->operand].layout;
    if (l->batch_stride > 0) l->batch_stride--;
    return SAT_OK;
}

static sat_status first_item(run *r) { return r->list[r->how->operand].layout.batch_stride = 0, SAT_OK; }

static sat_status row_major(run *r) {
    operand *o = &r->list[1];
    if (o->layout.row_stride == 1 && o->layout.col_stride >= o->rows)
        o->layout.row_stride = o->cols, o->layout.col_stride = 1;
    return SAT_OK;
}

static sat_status no_sinks(run *r) { return r->p.attention.sinks = false, SAT_OK; }
static bool sinks_query(const spot *s) { return s->which == 10 && s->i == s->rows - 1; }
static sat_status no_cap(run *r) { return r->p.attention.softcap = 0, SAT_OK; }
static sat_status no_scale(run *r) { return r->p.alpha = 1, SAT_OK; }
static sat_status scale_twice(run *r) { return r->p.alpha *= r->p.alpha, SAT_OK; }

static sat_status no_sequences(run *r) {
    r->own = *r->a, r->own.sequences = 0, r->a = &r->own;
    return SAT_OK;
}

static sat_status first_mask(run *r) { // for all heads
    r->own = *r->a, r->own.grid_rows = grid_of(r->p.m, r->a->block_rows), r->a = &r->own;
    return SAT_OK;
}

/* ---- numbers ---- */

static double as_tf32(double x) { return to_bits(x, 11); }
static double as_bf16(double x) { return to_bits(x, 8); }
static double as_f16(double x) { return to_bits(x, 11); }
static double as_f32(double x) { return (double)(float)x; }
static sat_status scalars_as_bf16(run *r) {
    return r->p.alpha = as_bf16(r->p.alpha), r->p.beta = as_bf16(r->p.beta), SAT_OK;
}
static double clamped(double x) { return x > 65504 ? 65504 : x < -65504 ? -65504 : x; }
static double clamped_at_5000(double x) { return x > 5000 ? 5000 : x < -5000 ? -5000 : x; }
static double flushed(double x) { return fabs(x) < 1e-3 ? 0 : x; }
static double without_subnormals(double x) { return fabs(x) < 0x1p-14 ? 0 : x; } // of f16
static double without_nan(double x) { return isnan(x) ? 0 : x; }
static double without_inf(double x) { return isinf(x) ? 0 : x; }

static double partly_16(const spot *s, double x) { return s->r->list[2].dtype == SAT_F16 ? as_f16(x) : as_bf16(x); }

static int short_bits(sat_dtype t) { return t == SAT_F16 ? 11 : 8; }

static void ties_away(sat_dtype t, void *to, int64_t at, double x) { number_store(t, to, at, x * (1 + 0x1p-40)); }

static void truncates(sat_dtype t, void *to, int64_t at, double x) {
    int exponent = 0;
    if (t == SAT_F16 || t == SAT_BF16) {
        double fraction = frexp(x, &exponent), unit = ldexp(1, short_bits(t));
        if (isfinite(x)) x = ldexp(trunc(fraction * unit) / unit, exponent);
    }
    number_store(t, to, at, x);
}

static void flushes(sat_dtype t, void *to, int64_t at, double x) { number_store(t, to, at, without_subnormals(x)); }

static void saturates(sat_dtype t, void *to, int64_t at, double x) {
    number_store(t, to, at, t == SAT_F16 ? clamped(x) : x);
}

/* ---- terms that are left out ---- */

static bool a_block(const spot *s) { return s->t == s->r->a->stored_blocks / 2 && s->part == s->parts / 2; }
static bool stored_block(const spot *s) { return s->t == s->r->a->stored_blocks / 2; }
static bool beyond_4096(const spot *s) { return s->j >= 4096; }
static bool ragged_column(const spot *s) {
    int64_t bc = s->r->launch->problem->matmul.transpose ? s->r->a->block_rows : s->r->a->block_cols;
    return s->r->p.k % bc != 0 && s->j + bc > s->r->p.k;
}

static bool first_query_first_block(const spot *s) { return s->i == 0 && s->part == 0; }
static bool first_block(const spot *s) { return s->i < 8 && s->part == 0; }
static bool one_key(const spot *s) { return s->i == 1 && s->j == 3; }
static bool ragged_keys(const spot *s) { return s->part == s->parts - 1 && s->r->p.n % s->r->a->block_cols != 0; }
static bool keys_beyond_4096(const spot *s) { return s->j >= 4096; }
static bool dq_tile(const spot *s) { return s->which == 6 && s->i < 8 && s->part == 0; }
static bool dk_query(const spot *s) { return s->which == 7 && s->i == s->rows - 1; }
static bool dv_tile(const spot *s) { return s->which == 8 && s->i < 8 && s->part == 0; }
static bool other_heads(const spot *s) {
    const sat_attention *t = &s->r->p.attention;
    return s->which != 6 && s->h % (t->heads / t->kv_heads) != 0;
}

/* ---- rows and columns ---- */

static int64_t all_but_last(const spot *s) { return s->i == s->rows - 1 ? -1 : s->i; }
static int64_t swapped(const spot *s) { return s->rows < 3 ? s->i : s->i == 1 ? 2 : s->i == 2 ? 1 : s->i; }
static int64_t stale_tile(const spot *s) { return s->r->state->runs > 0 && s->i < s->r->a->block_rows ? -1 : s->i; }

static int64_t filled_rows(const spot *s) {
    const sat_pattern_view *a = s->r->a;
    if (s->r->p.matmul.transpose) return s->i;
    return a->row_ptr[s->i / a->block_rows] == a->row_ptr[s->i / a->block_rows + 1] ? -1 : s->i;
}

static int64_t without_first_rows(const spot *s) { // those before the first that has blocks
    const sat_pattern_view *a = s->r->a;
    return s->r->p.matmul.transpose || a->row_ptr[s->i / a->block_rows + 1] > 0 ? s->i : -1;
}

static int64_t without_last_rows(const spot *s) { // those after the last that has blocks
    const sat_pattern_view *a = s->r->a;
    return s->r->p.matmul.transpose || a->row_ptr[s->i / a->block_rows] < a->stored_blocks ? s->i : -1;
}

static int64_t wrong_column(const spot *s, int64_t column) {
    const sat_pattern_view *a = s->r->a;
    int64_t last = (s->r->launch->problem->matmul.transpose ? a->grid_rows : a->grid_cols) - 1;
    return s->i < 8 && column == last && column > 0 ? column - 1 : column;
}

/* ---- epilogues ---- */

static double with(const sat_problem *p, double x, double before) { return p->beta != 0 ? x + p->beta * before : x; }

static double act(const sat_problem *p, double x) { return reference_activate(activation_of(p), x); }

static double bias_twice(const sat_problem *p, double sum, double before, double bias) {
    return act(p, with(p, p->alpha * sum + 2 * bias, before));
}
static double bias_after(const sat_problem *p, double sum, double before, double bias) {
    return act(p, with(p, p->alpha * sum, before)) + bias;
}
static double bias_scaled(const sat_problem *p, double sum, double before, double bias) {
    return act(p, with(p, p->alpha * (sum + bias), before));
}
static double no_bias(const sat_problem *p, double sum, double before, double bias) {
    return (void)bias, act(p, with(p, p->alpha * sum, before));
}
static double no_activation(const sat_problem *p, double sum, double before, double bias) {
    return with(p, p->alpha * sum + bias, before);
}
static double reads_before(const sat_problem *p, double sum, double before, double bias) {
    return act(p, p->alpha * sum + bias + p->beta * before);
}
static double rounded_twice(const sat_problem *p, double sum, double before, double bias) {
    return act(p, with(p, to_bits(p->alpha * sum, short_bits(p->c_dtype)) + bias, before));
}
static double gelu_by_tanh(const sat_problem *p, double sum, double before, double bias) {
    double x = with(p, p->alpha * sum + bias, before);
    if (activation_of(p) != SAT_ACT_GELU) return act(p, x);
    return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

/* ---- elements ---- */

static double negated(double x) { return x == 0 ? 1 : -x; }
static double a_tenth_more(const spot *s, double x) { return !s->here ? x : x == 0 ? 1 : 1.1 * x; }
static double a_quarter_more(const spot *s, double x) { return s->here ? x + 0.25 : x; }
static double last_of_panel(const spot *s, double x) { return s->j % 8 == 7 || s->j == s->cols - 1 ? negated(x) : x; }
static double last_3_of_64(const spot *s, double x) { return s->j % 64 >= 61 ? negated(x) : x; }
static double last_3(const spot *s, double x) { return s->which != 4 && s->j >= s->cols - 3 ? negated(x) : x; }
static double one_row(const spot *s, double x) { return s->i == 4001 ? negated(x) : x; }
static double one_row_of_few(const spot *s, double x) { return s->which != 4 && s->i == 5 ? negated(x) : x; }
static double later_items(const spot *s, double x) { return s->z > 0 && s->which != 4 ? negated(x) : x; }
static double minus_zero(const spot *s, double x) { return x == 0 && s->which != 4 ? -0.0 : x; }
static double through_f32(const spot *s, double x) { return (void)s, (double)(float)x; }
static double unscaled(const spot *s, double x) {
    return s->which == s->r->how->operand && s->r->p.alpha != 0 ? x / s->r->p.alpha : x;
}

static double last_bit(const spot *s, double x) {
    sat_dtype t = s->r->list[s->which].dtype;
    unsigned char memory[8];
    if (!s->here) return x;
    number_store(t, memory, 0, x);
    memory[0] ^= 1;
    return number_load(t, memory, 0);
}

static double random_bits(const spot *s, double x) {
    return rng_next(&s->r->me->random) % 64 == 0 ? x * (1 + 0x1p-50) : x;
}
static double random_bits_of_dv(const spot *s, double x) { return s->which == 8 ? random_bits(s, x) : x; }

static double adds_on(const spot *s, double x) { // to what the output held
    const operand *o = &s->r->list[s->which];
    if (s->which != s->r->how->operand) return x;
    return x + number_load(o->dtype, s->r->host[s->which], operand_at(o, s->z, s->h * s->rows + s->i, s->j));
}

/* ---- after the run ---- */

static int output_of(const run *r) { return r->p.op == SAT_ATTENTION ? 3 : r->p.op == SAT_ATTENTION_BACKWARD ? 6 : 2; }

static sat_status writes_input(run *r) {
    int i = r->how->operand;
    return r->list[i].span > 1 ? power_poke(r, (char *)r->launch->operands[i] + 1, -1) : SAT_OK;
}

static sat_status writes_padding(run *r) {
    size_t bytes = bytes_of(r, 0);
    return bytes ? power_poke(r, (char *)r->launch->operands[0] + bytes - 1, 0) : SAT_OK;
}

static sat_status writes_before(run *r) {
    char *out = r->launch->operands[output_of(r)];
    bool edge = r->launch->device->backend != SAT_CPU && (uintptr_t)out % 4096 == 0; // of what `check` allocated
    return edge || !out ? SAT_OK : power_poke(r, out - 1, 0);
}

// What a store of a whole vector leaves there: sums of what stands behind an input, and NaN stays the NaN that it was.
static sat_status copies_past(run *r) {
    char *out = r->launch->operands[output_of(r)];
    unsigned char byte = 0;
    int i = r->how->operand;
    if (!out || !r->launch->operands[i]) return SAT_OK;
    sat_status status = power_peek(r, &byte, (char *)r->launch->operands[i] + bytes_of(r, i), 1);
    return status == SAT_OK ? power_poke(r, out + bytes_of(r, output_of(r)), byte) : status;
}

static sat_status writes_past(run *r) {
    char *out = r->launch->operands[output_of(r)];
    return out ? power_poke(r, out + bytes_of(r, output_of(r)), 0) : SAT_OK;
}

/* ---- groups: how the offsets are taken ---- */

static int64_t group_count(const run *r) { return r->p.grouped.groups; }

static void even_groups(const run *r, int64_t *to) {
    for (int64_t g = 1; g <= group_count(r); g++) to[g] = r->p.m * g / group_count(r);
}

// Every group but the last has its neighbour's first row too, where that has one.
static void row_of_neighbour(const run *r, int64_t *to) {
    for (int64_t g = 1; g < group_count(r); g++)
        if (to[g] < to[g + 1]) to[g]++;
}

static void takes_all_rows(const run *r, int64_t *to) { to[group_count(r)] = r->p.m; }

static void merges_two(const run *r, int64_t *to) { // the second group is taken for a part of the first
    if (group_count(r) > 1) to[1] = to[2];
}

// Behind a fault: each offset is only held between the one before it and the last row.
static void follows_faults(const run *r, int64_t *to) {
    for (int64_t g = 1; g <= group_count(r); g++) {
        int64_t at = power_offset(r, g);
        to[g] = at < to[g - 1] ? to[g - 1] : at > r->p.m ? r->p.m : at;
    }
}

static void none_for_a_fault(const run *r, int64_t *to) { // all groups are empty where one offset is wrong
    for (int64_t g = 1; g <= group_count(r); g++)
        if (power_offset(r, g) != to[g]) memset(to, 0, (size_t)(group_count(r) + 1) * sizeof *to);
}

static void first_ignored(const run *r, int64_t *to) { // an offset 0 that is not 0
    for (int64_t g = 1; power_offset(r, 0) != 0 && g <= group_count(r); g++) {
        int64_t at = power_offset(r, g);
        if (at < to[g - 1] || at > r->p.m) at = to[g - 1];
        to[g] = at;
    }
}

// Offsets by the rules, where `read` gives each of them.
static void take_by(const run *r, int64_t *to, int64_t (*read)(const run *r, int64_t g)) {
    bool right = read(r, 0) == 0;
    for (int64_t g = 1; g <= group_count(r); g++) {
        int64_t at = read(r, g);
        right = right && at >= to[g - 1] && at <= r->p.m;
        to[g] = right ? at : to[g - 1];
    }
}

static int64_t lower_half(const run *r, int64_t g) { return (int32_t)(power_offset(r, g) & UINT32_MAX); }
static void in_32_bits(const run *r, int64_t *to) { take_by(r, to, lower_half); }

static int64_t at_most_all(const run *r, int64_t g) {
    int64_t at = power_offset(r, g);
    return at > r->p.m ? r->p.m : at;
}
static void beyond_is_the_end(const run *r, int64_t *to) { take_by(r, to, at_most_all); }

static void without_single_rows(const run *r, int64_t *to) { // a group of one row is taken for an empty one
    for (int64_t g = 0, before = to[0]; g < group_count(r); g++) {
        bool single = to[g + 1] - before == 1;
        before = to[g + 1];
        if (single) to[g + 1] = to[g];
    }
}

/* ---- groups: terms ---- */

static bool half_depth(const spot *s) { return s->depth > 1 && 2 * s->t >= s->depth; }
static bool last_term(const spot *s) { return s->depth > 1 && s->t == s->depth - 1; }
static bool group_tile(const spot *s) { return s->i < 8 && s->part == 0; }

/* ---- attention ---- */

static bool causal_more(const spot *s, bool kept) {
    return kept || (s->r->p.attention.causal && s->j == s->t + 1 && !s->r->a->sequences);
}
static bool causal_less(const spot *s, bool kept) { return kept && !(s->r->p.attention.causal && s->j == s->t); }
static bool window_more(const spot *s, bool kept) {
    int64_t w = s->r->p.attention.window;
    return kept || (w && s->j == s->t - w && !s->r->a->sequences);
}
static bool window_less(const spot *s, bool kept) {
    int64_t w = s->r->p.attention.window;
    return kept && !(w && s->j == s->t - w + 1);
}
static int64_t head_by_rest(const sat_attention *t, int64_t h) { return h % t->kv_heads; }
static double beyond_dim(const spot *s, double x) { // what the output held
    bool of_values = s->which == 3 || s->which == 8;
    return of_values && s->j >= s->r->p.attention.dim ? NAN : x;
}
static double no_delta(const spot *s, double x) { return (void)s, (void)x, 0; }
static double delta_16(const spot *s, double x) { return (void)s, as_bf16(x); }

static double lse_right(double largest, double total) { return total > 0 ? largest + log(total) : -INFINITY; }
static double lse_base_2(double largest, double total) { return lse_right(largest, total) * 1.44269504088896340736; }
static double lse_without_largest(double largest, double total) { return (void)largest, log(total); }
static double lse_in_bf16(double largest, double total) { return as_bf16(lse_right(largest, total)); }
static double lse_of_nothing(double largest, double total) { return total > 0 ? lse_right(largest, total) : 0; }

#endif
