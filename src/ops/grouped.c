/* The products of groups, Y = act(alpha*X*W[group] + beta*Y + bias[group]) and the gradient of W: their operands and
 * counts. Their check is beside. */
#include "ops/grouped.h"

#include <stdio.h>
#include <stdlib.h>

extern const sat_checker sat_grouped_check;

enum { MOST_GROUPS = 1 << 20 };
static const int64_t MOST = (int64_t)1 << 40; /* of a size: times the groups it is below 2^63, whatever is empty */
static const double USUAL_SKEW = 2;

/* ---- the problem ---- */

static sat_status check_part(const sat_problem *p) {
    const sat_grouped *g = &p->grouped;
    if (g->groups < 0 || g->groups > MOST_GROUPS)
        return sat_fail(SAT_BAD_SIZE, "groups is %lld; expected 0 to %d", (long long)g->groups, MOST_GROUPS);
    if (g->offset_type != SAT_I32 && g->offset_type != SAT_I64)
        return sat_fail(SAT_BAD_ENUM, "offset_type is %d; expected SAT_I32 or SAT_I64", (int)g->offset_type);
    if (g->offset_type == SAT_I32 && p->m > INT32_MAX)
        return sat_fail(SAT_BAD_ENUM, "offset_type is SAT_I32 beside m %lld; expected SAT_I64", (long long)p->m);
    if ((int)g->activation < SAT_ACT_NONE || g->activation > SAT_ACT_SILU)
        return sat_fail(SAT_BAD_ENUM, "activation is %d; expected one of SAT_ACT_*", (int)g->activation);
    if (!(g->skew >= 0) || !isfinite(g->skew)) return sat_fail(SAT_BAD_SIZE, "skew is %g; expected 0 or more", g->skew);
    if (p->batch != 1) return sat_fail(SAT_UNSUPPORTED, "batch is %lld; expected 1", (long long)p->batch);
    if (p->op == SAT_GROUPED_WEIGHTS && (g->bias || g->activation != SAT_ACT_NONE))
        return sat_fail(SAT_UNSUPPORTED, "bias is %d and activation %d; expected neither", g->bias, (int)g->activation);
    return SAT_OK;
}

static sat_status check_sizes(const sat_problem *p) {
    const int64_t sizes[] = {p->m, p->n, p->k};
    for (int i = 0; i < 3; i++)
        if (sizes[i] < 0 || sizes[i] > MOST)
            return sat_fail(SAT_BAD_SIZE, "%c is %lld; expected 0 to 2^40", "mnk"[i], (long long)sizes[i]);
    return SAT_OK;
}

/* Of one matrix a group: its batch stride leads to the next group's. */
static sat_status normalise_weights(sat_layout *l, const sat_problem *p, bool output, const char *name) {
    int64_t groups = p->grouped.groups, area;
    bool gapless = l->row_stride == 0 && l->col_stride == 0 && l->batch_stride == 0;
    if (gapless && !__builtin_mul_overflow(p->k, p->n, &area)) l->batch_stride = area;
    SAT_TRY(sat_normalise_layout(l, p->k, p->n, groups, output, name));
    if (output || p->k == 0 || p->n == 0) return SAT_OK;
    SAT_TRY(sat_check_broadcast(p, l->row_stride, p->k, name, "row_stride", "rows"));
    SAT_TRY(sat_check_broadcast(p, l->col_stride, p->n, name, "col_stride", "columns"));
    return sat_check_broadcast(p, l->batch_stride, groups, name, "batch_stride", "groups");
}

static sat_status normalise(sat_problem *p, const sat_pattern_view *a) {
    (void)a;
    bool weights = p->op == SAT_GROUPED_WEIGHTS;
    SAT_TRY(sat_normalise_common(p));
    SAT_TRY(check_sizes(p));
    SAT_TRY(check_part(p));
    p->flags &= ~(uint32_t)SAT_FIXED_VALUES;
    if (p->grouped.skew == 0) p->grouped.skew = USUAL_SKEW;
    p->grouped.skew = fmax(1, fmin(p->grouped.skew, (double)p->grouped.groups)); /* one has all rows */
    SAT_TRY(sat_normalise_input(&p->a, p, p->m, p->k, "x"));
    if (weights) SAT_TRY(sat_normalise_input(&p->b, p, p->m, p->n, "z"));
    else SAT_TRY(normalise_weights(&p->b, p, false, "w"));
    if (weights) SAT_TRY(normalise_weights(&p->c, p, true, "w"));
    else SAT_TRY(sat_normalise_layout(&p->c, p->m, p->n, 1, true, "y"));
    SAT_TRY(sat_normalise_align(&p->a_align, p->a_dtype, "a_align"));
    SAT_TRY(sat_normalise_align(&p->b_align, p->b_dtype, "b_align"));
    return sat_normalise_align(&p->c_align, p->c_dtype, "c_align");
}

static bool same(const sat_problem *x, const sat_problem *y) {
    const sat_grouped *g = &x->grouped, *h = &y->grouped;
    return g->groups == h->groups && g->offset_type == h->offset_type && g->bias == h->bias &&
           g->activation == h->activation && g->skew == h->skew;
}

/* ---- operands ---- */

static sat_operand rows_of(const char *name, const sat_problem *p, int64_t cols, sat_dtype t, const sat_layout *l,
                           uint32_t align) {
    return (sat_operand){
        .name = name, .dtype = t, .rows = p->m, .cols = cols, .batch = 1, .layout = *l, .align = align};
}

static sat_operand weights_of(const sat_problem *p, sat_dtype t, const sat_layout *l, uint32_t align) {
    return (sat_operand){
        .name = "w", .dtype = t, .rows = p->k, .cols = p->n, .batch = p->grouped.groups, .layout = *l, .align = align};
}

static int operands(const sat_problem *p, const sat_pattern_view *a, sat_operand *out) {
    const sat_grouped *g = &p->grouped;
    bool weights = p->op == SAT_GROUPED_WEIGHTS;
    (void)a;
    out[0] = rows_of("x", p, p->k, p->a_dtype, &p->a, p->a_align);
    out[1] =
        weights ? rows_of("z", p, p->n, p->b_dtype, &p->b, p->b_align) : weights_of(p, p->b_dtype, &p->b, p->b_align);
    out[2] =
        weights ? weights_of(p, p->c_dtype, &p->c, p->c_align) : rows_of("y", p, p->n, p->c_dtype, &p->c, p->c_align);
    out[2].output = true;
    out[3] = (sat_operand){.name = "offsets",
                           .index = (uint8_t)sat_index_size(g->offset_type),
                           .rows = g->groups + 1,
                           .cols = 1,
                           .batch = 1,
                           .layout = {.row_stride = 1, .col_stride = 1}};
    out[3].align = out[3].index;
    out[4] = (sat_operand){.name = "bias",
                           .dtype = p->c_dtype,
                           .rows = g->groups,
                           .cols = p->n,
                           .batch = 1,
                           .layout = {.row_stride = sat_max(1, p->n), .col_stride = 1},
                           .align = (uint32_t)sat_dtype_size(p->c_dtype)};
    int count = g->bias ? 5 : 4;
    for (int i = 0; i < count; i++)
        out[i].span = sat_layout_span(&out[i].layout, out[i].rows, out[i].cols, out[i].batch);
    return count;
}

static sat_status from_call(sat_problem *p, void *const *operands) {
    if (!operands[4] || p->grouped.bias) return SAT_OK;
    return sat_fail(SAT_UNSUPPORTED, "bias is %p; expected NULL where the problem has none", operands[4]);
}

static sat_status check_indices(const sat_problem *p, void *const *operands) {
    const sat_grouped *g = &p->grouped;
    int64_t before = 0;
    for (int64_t i = 0; i <= g->groups; i++) {
        int64_t at = sat_offset_at(operands[3], g->offset_type, i);
        if (i == 0 && at != 0 && g->groups > 0)
            return sat_fail(SAT_BAD_ROW_PTR, "offsets[0] is %lld; expected 0", (long long)at);
        if (at < before && g->groups > 0)
            return sat_fail(SAT_BAD_ROW_PTR, "offsets[%lld] is %lld, below the %lld before it", (long long)i,
                            (long long)at, (long long)before);
        if (at > p->m && g->groups > 0)
            return sat_fail(SAT_BAD_ROW_PTR, "offsets[%lld] is %lld, beyond the %lld rows", (long long)i, (long long)at,
                            (long long)p->m);
        before = at;
    }
    return SAT_OK;
}

/* ---- counts and keys ---- */

static double flops(const sat_problem *p, const sat_pattern_view *a) {
    (void)a;
    return 2.0 * (double)p->m * (double)p->n * (double)p->k;
}

/* All groups have rows, as far as there are so many. */
static double bytes(const sat_problem *p, const sat_pattern_view *a) {
    double m = (double)p->m, n = (double)p->n, k = (double)p->k, matrices = (double)sat_min(p->grouped.groups, p->m);
    double sa = (double)sat_dtype_size(p->a_dtype), sb = (double)sat_dtype_size(p->b_dtype);
    double sc = (double)sat_dtype_size(p->c_dtype) * (p->beta != 0 ? 2 : 1);
    (void)a;
    if (p->op == SAT_GROUPED_WEIGHTS) return m * k * sa + m * n * sb + (double)p->grouped.groups * k * n * sc;
    return m * k * sa + matrices * k * n * sb + m * n * sc;
}

static void set_key_fields(const sat_problem *p, const sat_pattern_view *a, bool full, sat_key_fields *fields) {
    const sat_grouped *g = &p->grouped;
    sat_matmul like = {.bias = g->bias ? SAT_BIAS_ROW : SAT_BIAS_NONE, .activation = g->activation};
    sat_set_common_key_fields(&like, a, fields);
    fields->skew = g->skew;
    int at = snprintf(fields->more, sizeof fields->more, " groups=%lld offsets=%s", (long long)g->groups,
                      g->offset_type == SAT_I32 ? "i32" : "i64");
    if (full) sat_format_strides(p, fields->more + at, sizeof fields->more - (size_t)at);
}

/* ---- made-up operands ---- */

sat_problem sat_grouped_like_matmul(const sat_problem *p) {
    sat_problem q = *p;
    q.op = SAT_MATMUL, q.matmul = (sat_matmul){.activation = p->grouped.activation};
    if (p->op == SAT_GROUPED_WEIGHTS) q.k = p->m;
    bool repeats = (p->m > 1 && p->a.row_stride == 0) || (p->k > 1 && p->a.col_stride == 0);
    if (repeats) q.b.col_stride = q.b.row_stride = 0;
    q.b.batch_stride = q.a.batch_stride = 0;
    return q;
}

static sat_problem sums_problem(const sat_problem *p, const sat_pattern_view *a) {
    sat_problem q = *p;
    (void)a;
    q.c_dtype = p->compute_dtype, q.c_align = 64, q.alpha = 1, q.beta = 0, q.flags &= SAT_ALLOW_TF32;
    q.grouped.bias = false, q.grouped.activation = SAT_ACT_NONE;
    q.c = (sat_layout){.row_stride = sat_max(p->n, 1), .col_stride = 1};
    if (p->op == SAT_GROUPED_WEIGHTS) q.c.batch_stride = p->k * p->n;
    return q;
}

/* One group may have all rows. */
static void set_fills(const sat_problem *p, const sat_pattern_view *a, int fill_case, sat_fill *fills) {
    (void)a;
    if (fill_case > SAT_FILL_TINY) fill_case = 0;
    sat_problem like = sat_grouped_like_matmul(p);
    sat_exact_fills(&like, like.k, fill_case, &fills[0], &fills[1], &fills[2]);
    fills[3] = (sat_fill){0}, fills[4] = fills[2];
}

/* Sizes of groups that are as uneven as the problem expects: one has `skew` times the mean, the others share the rest
 * at random. */
static void share_rows(const sat_problem *p, uint64_t seed, int64_t rows, int64_t *to) {
    int64_t groups = p->grouped.groups, heavy = (int64_t)(sat_mix(seed) % (uint64_t)groups);
    int64_t most = sat_min(rows, (int64_t)ceil(p->grouped.skew * (double)rows / (double)groups));
    double weights = 0, given = 0;
    if (groups == 1) most = rows;
    for (int64_t g = 0; g < groups; g++)
        if (g != heavy) weights += 0.5 + (double)(sat_mix(seed + 1 + (uint64_t)g) >> 11) * 0x1p-53;
    to[0] = 0;
    for (int64_t g = 0, others = 0; g < groups; g++) {
        if (g != heavy) given += 0.5 + (double)(sat_mix(seed + 1 + (uint64_t)g) >> 11) * 0x1p-53;
        others = weights > 0 ? (int64_t)((double)(rows - most) * fmin(1, given / weights)) : 0;
        to[g + 1] = sat_min(rows, others + (g >= heavy ? most : 0));
    }
}

/* Empty groups and small ones among large ones, in a cycle that has all kinds; EVEN ends with a whole tile. Every
 * second seed begins with the first kind, the others anywhere, but always with a group of one row. A large group has
 * what those before it left of their share. */
static void thin_out(const sat_problem *p, uint64_t seed, int64_t *to) {
    enum { LARGE = -1, EVEN = -2, KINDS = 8 };
    static const int64_t rows[KINDS] = {0, 1, EVEN, 0, 0, 2, LARGE, 3};
    int64_t groups = p->grouped.groups, end = to[groups], left = 0, before = 0;
    int64_t single = (int64_t)(sat_mix(seed ^ 0x51u) % (uint64_t)sat_min(groups, KINDS)); /* the group of one row */
    if (seed & 1) single = sat_min(1, groups - 1);
    for (int64_t g = 0; g < groups; g++) {
        int64_t kind = rows[(g + 1 + KINDS - single) % KINDS], whole = left + to[g + 1] - before;
        left = whole, before = to[g + 1];
        if (kind == EVEN) whole -= whole % (whole >= 192 ? 192 : whole >= 48 ? 48 : 16);
        int64_t taken = kind < 0 ? sat_max(0, whole) : sat_min(kind, end - to[g]);
        to[g + 1] = to[g] + taken, left -= taken;
    }
}

/* Of the structure probe: large has all rows in one group; tiny has empty groups and groups of few rows, and rows
 * behind the last; three more have a fault each. All others are as uneven as the problem expects. */
static void make_indices(const sat_problem *p, sat_probe probe, int fill_case, uint64_t seed, int64_t *to) {
    int64_t groups = p->grouped.groups;
    to[0] = 0;
    if (groups == 0) return;
    if (probe != SAT_PROBE_STRUCTURE) fill_case = 0;
    int64_t which = (int64_t)(sat_mix(seed ^ 0x9e37u) % (uint64_t)groups);
    if (fill_case == SAT_FILL_LARGE) {
        for (int64_t g = 0; g < groups; g++) to[g + 1] = g >= which ? p->m : 0;
        return;
    }
    share_rows(p, seed, fill_case == SAT_FILL_TINY ? p->m - p->m / 5 : p->m, to);
    if (fill_case == SAT_FILL_TINY) thin_out(p, seed, to);
    int64_t at = groups > 2 ? 2 + which % (groups - 2) : 1; /* with groups on both sides, if there are */
    if (fill_case == SAT_FILL_BEYOND) to[at] = p->m + 1;
    if (fill_case == SAT_FILL_BELOW) /* of 64 bits, the lower half is right */
        to[at] = p->grouped.offset_type == SAT_I32 ? INT32_MIN : INT64_MIN + to[at];
    if (fill_case == SAT_FILL_FIRST) to[0] = 1;
}

/* In both factors, and in the last row of X, which may belong to no group. What is planted in a group may not reach
 * another. The first, an infinity, is in the second factor where an element of X that is zero meets it: the offsets are
 * those of the case that comes last among the winner's. */
static int specials(const sat_problem *p, const sat_pattern_view *a, const sat_fill *fills, uint64_t seed,
                    sat_special *out) {
    sat_operand o[SAT_MAX_OPERANDS];
    enum { TRIES = 4096 };
    int count = 0;
    sat_problem like = sat_grouped_like_matmul(p);
    (void)operands(p, a, o);
    if (p->m == 0 || p->n == 0 || p->k == 0 || p->grouped.groups == 0 || !sat_specials_show(&like, o, 2)) return 0;
    bool weights = p->op == SAT_GROUPED_WEIGHTS;
    int64_t *offsets = malloc((size_t)(p->grouped.groups + 1) * sizeof *offsets);
    if (!offsets) return 0;
    make_indices(p, SAT_PROBE_STRUCTURE, 0, sat_operand_seed(seed, 3), offsets);
    for (uint64_t i = 0; i < TRIES && count < SAT_MAX_SPECIALS; i++) {
        uint64_t x = sat_mix(seed + 31 * i);
        int64_t row = (int64_t)(x % (uint64_t)p->m), k = (int64_t)(sat_mix(x) % (uint64_t)p->k);
        int64_t n = (int64_t)(sat_mix(x + 1) % (uint64_t)p->n), group = sat_group_of(offsets, p->grouped.groups, row);
        int64_t at = row * p->a.row_stride + k * p->a.col_stride;
        bool zero = group >= 0 && sat_made_up(&fills[0], sat_operand_seed(seed, 0), at) == 0;
        int before = count;
        if (count == 0 && !zero && i < TRIES / 2) continue;
        if (count % 2) count = sat_special_add(out, count, 0, count == 5 ? p->m - 1 : row, k);
        else count = sat_special_add(out, count, 1, weights ? row : k, n);
        if (!(before % 2) && !weights && count > before) out[before].item = sat_max(group, 0);
    }
    free(offsets);
    return count;
}

/* The first one is the first run at other addresses, and the last one's offsets are those that are planted for. */
static const sat_check_case winner_cases[] = {
    {SAT_PROBE_STRUCTURE, SAT_FILL_LARGE, "with large and tiny inputs, all rows in one group"},
    {SAT_PROBE_STRUCTURE, SAT_FILL_BEYOND, "with an offset beyond the last row"},
    {SAT_PROBE_STRUCTURE, SAT_FILL_BELOW, "with an offset below the one before it"},
    {SAT_PROBE_STRUCTURE, SAT_FILL_FIRST, "with a first offset that is not 0"},
    {SAT_PROBE_STRUCTURE, 0, "with other groups"},
    {0}};
static const sat_check_case other_offsets = {SAT_PROBE_STRUCTURE, SAT_FILL_TINY,
                                             "with empty groups, groups of few rows, and rows of no group"};

#define GROUPED_OP                                                                                                     \
    .part_bytes = sizeof(sat_grouped), .same = same, .output = 2, .normalise = normalise, .operands = operands,        \
    .flops = flops, .bytes = bytes, .set_key_fields = set_key_fields, .sums_problem = sums_problem,                    \
    .set_fills = set_fills, .without_pattern = true, .make_indices = make_indices, .check_indices = check_indices,     \
    .specials = specials, .winner_cases = winner_cases, .other_pattern = &other_offsets,                               \
    .host_checker = &sat_grouped_check

const sat_op sat_op_grouped = {.id = SAT_GROUPED,
                               .name = "grouped",
                               .names = (const char *const[]){"x", "w", "y", "offsets", "bias", NULL},
                               .aligns = "abc--",
                               .from_call = from_call,
                               GROUPED_OP};

const sat_op sat_op_grouped_weights = {.id = SAT_GROUPED_WEIGHTS,
                                       .name = "grouped-weights",
                                       .names = (const char *const[]){"x", "z", "w", "offsets", NULL},
                                       .aligns = "abc-",
                                       GROUPED_OP};
