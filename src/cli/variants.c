// sparse_autotune variants: every variant of this device, and what each supports. Support is asked for, not listed
// anywhere: small problems that differ in one point from one that the variant takes.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "json.h"
#include "make.h"
#include "number.h"
#include "setup.h"
#include "spec.h"
#include "table.h"

static const int64_t block_sides[] = {1, 2, 3, 4, 8, 16, 32, 64, 128};
static const int64_t column_counts[] = {1, 2, 4, 8, 16, 17, 32, 64, 512};
static const struct {
    sat_dtype a, c;
} dtypes[] = {{SAT_F32, SAT_F32}, {SAT_F64, SAT_F64},   {SAT_F16, SAT_F16},
              {SAT_F16, SAT_F32}, {SAT_BF16, SAT_BF16}, {SAT_BF16, SAT_F32}};
static const struct {
    const char *name;
    bool first, second; // by columns: B and C, X and Y, or W and Y
} layouts[] = {{"row,row", false, false}, {"row,col", false, true}, {"col,row", true, false}, {"col,col", true, true}};
enum {
    SIDES = sizeof block_sides / sizeof *block_sides,
    COUNTS = sizeof column_counts / sizeof *column_counts,
    DTYPES = sizeof dtypes / sizeof *dtypes,
    LAYOUTS = sizeof layouts / sizeof *layouts
};

typedef struct support {
    const char *lacks; // what this device has not; NULL if it can run
    bool usable;
    bool dtype[DTYPES], side[SIDES], columns[COUNTS], layout[LAYOUTS];
    bool rectangular, ragged, transposed, transposed_only, epilogue, general;
} support;

// Four block rows and columns of the given block, so that even a block of 128 is a small problem.
static spec small_problem(const sat_variant *v) {
    spec s = spec_default();
    s.op = (int)v->op - 1;
    s.pattern.sparsity = 0.5;
    s.a_dtype = s.c_dtype = v->instance.dtype ? v->instance.dtype : SAT_F32;
    s.n = s.k = 64, s.groups = 4;
    s.align = 256;
    s.flags = SAT_ALLOW_TF32 | SAT_ALLOW_NONDETERMINISTIC | SAT_ALLOW_DENSE;
    return s;
}

static bool takes(sat_context *c, const sat_variant *v, spec s, bool ragged, bool general) {
    int64_t less = ragged ? 1 : 0;
    if (spec_is_grouped(&s)) s.m = 64 - less, s.n -= less, s.k -= less;
    else if (v->op != SAT_MATMUL) s.m = 4 * s.block_rows - less, s.n = 4 * s.block_cols - less;
    else if (s.transpose) s.m = 4 * s.block_cols - less, s.k = 4 * s.block_rows - less;
    else s.m = 4 * s.block_rows - less, s.k = 4 * s.block_cols - less;
    blocks b;
    char message[256];
    if (!spec_blocks(&s, &b, message, sizeof message)) return false;
    sat_problem p = spec_problem(&s, &b);
    if (general) p.b.row_stride *= 2, p.b.col_stride *= 2, p.b.batch_stride *= 2;
    if (general && spec_is_attention(&s)) { // heads side by side in a row, with gaps
        sat_heads side = {.head_stride = 2 * s.k, .row_stride = 2 * s.k * s.heads};
        p.attention.q = p.attention.k = p.attention.v = p.attention.o = side;
    }
    sat_pattern *pattern = NULL;
    sat_plan *plan = NULL;
    bool yes =
        spec_pattern(c, &s, &b, &pattern) == SAT_OK && sat_plan_create_with(c, pattern, &p, v->name, &plan) == SAT_OK;
    sat_plan_free(plan);
    sat_pattern_free(pattern);
    blocks_free(&b);
    return yes;
}

static int64_t *inner(spec *s) { return s->op == SAT_MATMUL - 1 || spec_is_grouped(s) ? &s->n : &s->k; }

// The first problem that it takes, tame ones first; false if none.
static bool find_base(sat_context *c, const sat_variant *v, spec *base) {
    static const int side_order[] = {7, 5, 4, 3, 0, 8, 6, 1, 2}, count_order[] = {7, 0, 3, 8, 4, 6, 1};
    enum { ORDERED_COUNTS = sizeof count_order / sizeof *count_order };
    int once = (DTYPES + 1) * LAYOUTS * SIDES * ORDERED_COUNTS;
    int tries = v->op == SAT_MATMUL ? 2 * once : once; // the second half by the transpose of A
    for (int i = 0; i < tries; i++) {
        spec s = small_problem(v);
        int count = i % ORDERED_COUNTS, side = i / ORDERED_COUNTS % SIDES;
        int order = i / (ORDERED_COUNTS * SIDES) % LAYOUTS, dtype = i % once / (ORDERED_COUNTS * SIDES * LAYOUTS) - 1;
        s.transpose = i >= once;
        if (dtype >= 0) s.a_dtype = dtypes[dtype].a, s.c_dtype = dtypes[dtype].c;
        s.col_b = layouts[order].first, s.col_c = layouts[order].second;
        s.block_rows = s.block_cols = block_sides[side_order[side]];
        *inner(&s) = column_counts[count_order[count]];
        if (takes(c, v, s, false, false)) return *base = s, true;
    }
    return false;
}

static support ask(sat_context *c, const sat_variant *v) {
    support u = {.lacks = variant_lacks(v, sat_context_device(c))};
    spec base, s;
    if (u.lacks || !find_base(c, v, &base)) return u;
    u.usable = true;
    for (int i = 0; i < DTYPES; i++)
        s = base, s.a_dtype = dtypes[i].a, s.c_dtype = dtypes[i].c, u.dtype[i] = takes(c, v, s, false, false);
    bool grouped = spec_is_grouped(&base); // which has no blocks
    for (int i = 0; i < SIDES && !grouped; i++)
        s = base, s.block_rows = s.block_cols = block_sides[i], u.side[i] = takes(c, v, s, false, false);
    for (int i = 0; i < COUNTS; i++)
        s = base, *inner(&s) = column_counts[i], u.columns[i] = takes(c, v, s, false, false);
    s = base, s.block_cols = s.block_cols > 1 ? s.block_cols / 2 : 2,
    u.rectangular = !grouped && takes(c, v, s, false, false);
    u.ragged = takes(c, v, base, true, false);
    s = base, s.transpose = true, u.transposed = v->op == SAT_MATMUL && takes(c, v, s, false, false);
    u.transposed_only = base.transpose;
    for (int i = 0; i < LAYOUTS; i++)
        s = base, s.col_b = layouts[i].first, s.col_c = layouts[i].second, u.layout[i] = takes(c, v, s, false, false);
    s = base, s.alpha = 0.5, s.beta = 0.5, s.bias = true, s.activation = SAT_ACT_GELU;
    u.epilogue = (v->op == SAT_MATMUL || v->op == SAT_GROUPED) && takes(c, v, s, false, false);
    u.general = takes(c, v, base, false, true);
    return u;
}

/* ---- for people ---- */

// "any", or the numbers out of a list that were taken.
static const char *numbers(const bool *yes, const int64_t *list, int count, char *out, size_t capacity) {
    size_t at = 0;
    int taken = 0;
    out[0] = 0;
    for (int i = 0; i < count; i++) taken += yes[i];
    if (taken == count) return "any";
    for (int i = 0; i < count; i++)
        if (yes[i]) at += (size_t)snprintf(out + at, capacity - at, "%s%lld", at ? "," : "", (long long)list[i]);
    return out;
}

static const char *dtype_list(const support *u, char *out, size_t capacity) {
    size_t at = 0;
    out[0] = 0;
    for (int i = 0; i < DTYPES; i++)
        if (u->dtype[i])
            at += (size_t)snprintf(out + at, capacity - at, "%s%s", at ? "," : "",
                                   dtype_pair_name(dtypes[i].a, dtypes[i].c));
    return out;
}

static const char *layout_list(const support *u, char *out, size_t capacity) {
    size_t at = 0;
    int taken = 0;
    out[0] = 0;
    for (int i = 0; i < LAYOUTS; i++) taken += u->layout[i];
    if (taken == LAYOUTS) return "any";
    for (int i = 0; i < LAYOUTS; i++)
        if (u->layout[i]) at += (size_t)snprintf(out + at, capacity - at, "%s%s", at ? " " : "", layouts[i].name);
    return out;
}

static const struct {
    uint32_t flag;
    const char *name;
} flag_names[] = {{SAT_V_REFERENCE, "reference"}, {SAT_V_NONDETERMINISTIC, "nondeterministic"},
                  {SAT_V_DENSE, "dense"},         {SAT_V_LIBRARY, "library"},
                  {SAT_V_BATCHED, "batched"},     {SAT_V_SCRATCH, "scratch"}};
enum { FLAGS = sizeof flag_names / sizeof *flag_names };

static void add_word(char *out, size_t capacity, bool yes, const char *word) {
    size_t at = strlen(out);
    if (yes) snprintf(out + at, capacity - at, "%s%s", at ? ", " : "", word);
}

static const char *inner_name(sat_operation op) {
    static const char *const names[] = {
        [SAT_MATMUL] = "N",  [SAT_SAMPLED] = "K",        [SAT_ATTENTION] = "dim", [SAT_ATTENTION_BACKWARD] = "dim",
        [SAT_GROUPED] = "N", [SAT_GROUPED_WEIGHTS] = "N"};
    return names[op];
}

static void print_variant(const sat_variant *v, const support *u) {
    char types[96], blocks_text[96], counts[96], orders[96], also[160] = "", flags[128] = "";
    for (int i = 0; i < FLAGS; i++) add_word(flags, sizeof flags, v->flags & flag_names[i].flag, flag_names[i].name);
    printf("%s  (%s, revision %s, priority %d%s%s)\n", v->name, operation_text(v->op), v->revision, v->priority,
           *flags ? ", " : "", flags);
    if (v->about) printf("    %s\n", v->about);
    if (u->lacks) printf("    not on this device: needs %s\n", u->lacks);
    else if (!u->usable) printf("    takes none of the problems it was asked about\n");
    if (!u->usable) return;
    add_word(also, sizeof also, u->rectangular, "rectangular blocks");
    add_word(also, sizeof also, u->ragged, "ragged edges");
    add_word(also, sizeof also, u->transposed, u->transposed_only ? "transpose only" : "transpose");
    add_word(also, sizeof also, u->general, "general strides");
    add_word(also, sizeof also, u->epilogue, "bias and activation");
    printf("    dtypes %s; ", dtype_list(u, types, sizeof types));
    if (v->op < SAT_GROUPED)
        printf("block %s; ", numbers(u->side, block_sides, SIDES, blocks_text, sizeof blocks_text));
    printf("%s %s; layout %s%s%s\n", inner_name(v->op),
           numbers(u->columns, column_counts, COUNTS, counts, sizeof counts), layout_list(u, orders, sizeof orders),
           *also ? "; " : "", also);
}

/* ---- for programs ---- */

static void numbers_json(json *j, const char *key, const bool *yes, const int64_t *list, int count) {
    json_array(j, key);
    for (int i = 0; i < count; i++)
        if (yes[i]) json_int(j, NULL, list[i]);
    json_end(j);
}

static void variant_json(json *j, const sat_variant *v, const support *u) {
    json_object(j, NULL);
    json_text(j, "variant", v->name);
    json_text(j, "op", operation_text(v->op));
    json_text(j, "backend", backend_text(v->backend));
    json_text(j, "revision", v->revision);
    json_int(j, "priority", v->priority);
    json_array(j, "flags");
    for (int i = 0; i < FLAGS; i++)
        if (v->flags & flag_names[i].flag) json_text(j, NULL, flag_names[i].name);
    json_end(j);
    json_text(j, "about", v->about);
    json_bool(j, "usable", u->usable);
    json_text(j, "needs", u->lacks);
    json_array(j, "dtypes");
    for (int i = 0; i < DTYPES; i++)
        if (u->dtype[i]) json_text(j, NULL, dtype_pair_name(dtypes[i].a, dtypes[i].c));
    json_end(j);
    numbers_json(j, "blocks", u->side, block_sides, SIDES);
    numbers_json(j, "columns", u->columns, column_counts, COUNTS);
    json_bool(j, "rectangular", u->rectangular), json_bool(j, "ragged", u->ragged);
    json_bool(j, "transpose", u->transposed), json_bool(j, "transpose_only", u->transposed_only);
    json_array(j, "layouts");
    for (int i = 0; i < LAYOUTS; i++)
        if (u->layout[i]) json_text(j, NULL, layouts[i].name);
    json_end(j);
    json_bool(j, "general_strides", u->general), json_bool(j, "epilogue", u->epilogue);
    json_end(j);
}

int variants_main(int argc, char **argv) {
    setup s = {.command = "variants"};
    bool as_json = false, names = false;
    const arg list[] = {SETUP_ARGS(s), SETUP_PLUGIN_ARG(s), ARG_FLAG_("names", &names, "prints the names alone"),
                        ARG_FLAG_("json", &as_json, "prints one JSON object")};
    args a = {.command = "variants",
              .usage = "[options]",
              .about = "Lists the variants of a device, and what each takes of a small set of problems put to it.",
              .list = list,
              .count = sizeof list / sizeof *list};
    args_outcome parsed = args_parse(&a, argc, argv);
    if (parsed != ARGS_OK) return (int)parsed;
    if (!s.cache) s.cache = ""; // nothing here is worth remembering
    sat_context *context = setup_open(&s);
    if (!context) return EXIT_FAILED;
    bool ok = setup_plugins(&s, context);
    json j = {.file = stdout};
    if (ok && as_json) json_object(&j, NULL), json_int(&j, "version", 1), json_array(&j, "variants");
    for (size_t i = 0; ok && i < sat_variant_count(context); i++) {
        const sat_variant *v = sat_variant_at(context, i);
        if (names && !as_json) {
            printf("%s\n", v->name);
            continue;
        }
        support u = ask(context, v);
        if (as_json) variant_json(&j, v, &u);
        else print_variant(v, &u);
    }
    if (ok && as_json) json_end(&j), json_end(&j);
    sat_context_free(context);
    return ok ? EXIT_DONE : EXIT_FAILED;
}
