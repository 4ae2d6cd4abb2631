// sparse_autotune race: makes a problem (or reads its pattern from a file), races every variant, shows each one's
// time, rate and verdict, and names the best. Several block sizes are raced one after the other.

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "memory.h"
#include "number.h"
#include "progress.h"
#include "race_show.h"
#include "setup.h"
#include "table.h"
#include "trial.h"

#define BLOCKS_MOST 16

typedef struct block_list {
    int64_t rows[BLOCKS_MOST], cols[BLOCKS_MOST];
    int count;
    bool given;
} block_list;

typedef struct race_args {
    spec spec;
    setup setup;
    block_list blocks;
    const char *only, *matrix, *trial;
    bool fresh, json, isolate, no_keep;
    bool fixed, dense, tf32, nondeterministic, layout;
    double timeout;
    int64_t seq, kv_seq, dim; /* attention's words for m, n and k; 0: not given */
    int64_t report_fd, seed;
    int argc;
    char **argv;
} race_args;

/* ---- options ---- */

// "64" or "64x32"; gives where it stopped.
static const char *parse_block(const char *p, int64_t *rows, int64_t *cols) {
    char word[48];
    size_t length = strcspn(p, ",");
    if (length == 0 || length >= sizeof word) return NULL;
    memcpy(word, p, length), word[length] = 0;
    char *x = strchr(word, 'x');
    if (x) *x = 0;
    const int64_t most = 1 << 20;
    if (!parse_whole(word, 1, most, rows) || !parse_whole(x ? x + 1 : word, 1, most, cols)) return NULL;
    return p + length;
}

static bool parse_blocks(const char *text, void *to) {
    block_list *list = to;
    list->count = 0, list->given = true;
    for (const char *p = text;; p++) {
        if (list->count == BLOCKS_MOST) return false;
        p = parse_block(p, &list->rows[list->count], &list->cols[list->count]);
        if (!p) return false;
        list->count++;
        if (!*p) return true;
    }
}

static bool parse_size(const char *text, void *to) {
    spec *s = to;
    char word[96];
    if (strlen(text) >= sizeof word) return false;
    strcpy(word, text);
    char *second = strchr(word, 'x'), *third = second ? strchr(second + 1, 'x') : NULL;
    if (!third) return false;
    *second = *third = 0;
    return parse_whole(word, 1, INT32_MAX, &s->m) && parse_whole(second + 1, 1, INT32_MAX, &s->n) &&
           parse_whole(third + 1, 1, INT32_MAX, &s->k);
}

static bool parse_sparsity(const char *text, void *to) {
    char word[64];
    size_t length = strlen(text);
    if (length == 0 || length >= sizeof word) return false;
    memcpy(word, text, length + 1);
    bool percent = word[length - 1] == '%';
    if (percent) word[length - 1] = 0;
    double x;
    if (!parse_real(word, &x)) return false;
    if (percent) x /= 100;
    if (x < 0 || x > 1) return false;
    *(double *)to = x;
    return true;
}

static bool parse_dtype(const char *text, void *to) {
    spec *s = to;
    return dtype_parse(text, &s->a_dtype, &s->c_dtype);
}

static bool parse_layout(const char *text, void *to) {
    race_args *r = to;
    spec *s = &r->spec;
    r->layout = true;
    static const char *const words[] = {"row", "col", "row,row", "row,col", "col,row", "col,col"};
    static const bool first[] = {false, true, false, false, true, true},
                      second[] = {false, true, false, true, false, true};
    for (int i = 0; i < 6; i++)
        if (strcmp(text, words[i]) == 0) return s->col_b = first[i], s->col_c = second[i], true;
    return false;
}

static bool parse_align(const char *text, void *to) {
    int64_t x;
    if (!parse_whole(text, 8, 4096, &x) || (x & (x - 1)) != 0) return false;
    *(int64_t *)to = x;
    return true;
}

static bool parse_scale(const char *text, void *to) { return parse_real(text, to) && *(double *)to != 0; }

static bool parse_anything(const char *text, void *to) { return *(const char **)to = text, true; }

static args_outcome parse_race(race_args *r, int argc, char **argv) {
    spec *s = &r->spec;
    make_request *p = &s->pattern;
    const double most = INT32_MAX;
    const char *sizes = "three sizes such as 4096x512x1024, each from 1 to 2147483647";
    const char *blocks = "sizes such as 64, 64x32 or 16,32,64, each side from 1 to 1048576, at most 16 of them";
    const arg list[] = {
        ARG_INT_("m", &s->m, "M", 1, most, "rows of the result (4096); grouped: tokens (2048)"),
        ARG_INT_("n", &s->n, "N", 1, most, "columns of the result (4096; with --matrix 128; grouped 1024)"),
        ARG_INT_("k", &s->k, "K", 1, most, "inner size (4096; grouped 1024)"),
        ARG_PARSE_("size", s, "MxNxK", parse_size, sizes, "all three at once"),
        ARG_PARSE_("block", &r->blocks, "B[,B...]", parse_blocks, blocks,
                   "64 or 64x32; of several the best is named (64)"),
        ARG_PARSE_("sparsity", &p->sparsity, "S", parse_sparsity, "a number from 0 to 1, or from 0% to 100%",
                   "share of the blocks that are absent (0.875; attention 0)"),
        ARG_REAL_("skew", &p->skew, "X", 1, 1e9,
                  "blocks of the heaviest row, or rows of the largest group, over the mean (1; powerlaw 8; grouped 2)"),
        ARG_REAL_("overlap", &p->overlap, "X", 0, 1, "random: share of a row's columns that the next row has too"),
        ARG_CHOICE_("pattern", &p->kind, "KIND", make_kind_names, "where the blocks are"),
        ARG_INT_("seed", &r->seed, "N", 0, 0x1p63, "of the made-up pattern (1)"),
        ARG_TEXT_("matrix", &r->matrix, "FILE.mtx", "takes the pattern from a Matrix Market file"),
        ARG_PARSE_("dtype", s, "T", parse_dtype, "f32, f64, f16, bf16, f16:f32 or bf16:f32",
                   "f32, f64, f16, bf16; f16:f32 and bf16:f32 have an f32 result"),
        ARG_CHOICE_("op", &s->op, "OP", operation_names, "the operation"),
        ARG_INT_("seq", &r->seq, "N", 1, most, "attention: queries (1024)"),
        ARG_INT_("kv-seq", &r->kv_seq, "N", 1, most, "attention: keys (as many as queries)"),
        ARG_INT_("dim", &r->dim, "N", 1, 576, "attention: elements of a head (64)"),
        ARG_INT_("value-dim", &s->value_dim, "N", 1, 576, "attention: elements of a head of values (as many as keys')"),
        ARG_INT_("heads", &s->heads, "N", 1, 1 << 20, "attention: heads (8)"),
        ARG_INT_("kv-heads", &s->kv_heads, "N", 1, 1 << 20, "attention: heads of keys (as many as heads)"),
        ARG_FLAG_("causal", &s->causal, "attention: keys up to the query's own place"),
        ARG_INT_("window", &s->window, "N", 1, most, "attention: keys closer to there than this"),
        ARG_INT_("sequences", &s->sequences, "N", 1, 1 << 20, "attention: packed sequences of like length"),
        ARG_PARSE_("scale", &s->scale, "X", parse_scale, "a finite number other than 0, which stands for 1/sqrt(dim)",
                   "attention: of the scores (1/sqrt(dim))"),
        ARG_REAL_("softcap", &s->softcap, "X", 1e-4, 1e6, "attention: scores s become X*tanh(s/X)"),
        ARG_FLAG_("sinks", &s->sinks, "attention: each head has a logit without a value"),
        ARG_FLAG_("head-masks", &s->head_masks, "attention: each head has blocks of its own"),
        ARG_FLAG_("batch-masks", &s->item_masks, "attention, --dynamic: each batch item has blocks of its own"),
        ARG_FLAG_("lse", &s->lse, "attention: writes the logarithms of the sums too"),
        ARG_INT_("experts", &s->groups, "N", 1, 1 << 20, "grouped: groups, each with a matrix of its own (8)"),
        ARG_INT_("top-k", &s->top_k, "N", 1, 1 << 20, "grouped: rows of X for each token (1)"),
        ARG_CHOICE_("offsets", &s->offsets, "T", offset_names, "grouped: the type of the offsets (i64)"),
        ARG_FLAG_("transpose", &s->transpose, "matmul: by the transpose of A"),
        ARG_PARSE_("layout", r, "B[,C]", parse_layout, "row or col, or two such as row,col",
                   "storage order, row or col, of B and C (sampled: X and Y; grouped: W and Y, or Z and W)"),
        ARG_INT_("batch", &s->batch, "N", 1, 1 << 20, "products at once (1)"),
        ARG_REAL_("alpha", &s->alpha, "X", -HUGE_VAL, HUGE_VAL, "factor of the product (1)"),
        ARG_REAL_("beta", &s->beta, "X", -HUGE_VAL, HUGE_VAL, "factor of what the output held (0)"),
        ARG_FLAG_("bias", &s->bias, "matmul: adds one value to each row; grouped: to each column of a group"),
        ARG_CHOICE_("activation", &s->activation, "F", activation_names, "matmul, grouped: a function of the result"),
        ARG_PARSE_("align", &s->align, "BYTES", parse_align, "a power of two from 8 to 4096",
                   "of the operands (64; on a GPU 256)"),
        ARG_FLAG_("dynamic", &s->dynamic, "the indices change between runs: each run takes and validates them"),
        ARG_FLAG_("fixed-values", &r->fixed, "block values stay the same between runs (inference)"),
        ARG_FLAG_("allow-dense", &r->dense, "bare dense products may win: they differ where B has Inf or NaN"),
        ARG_FLAG_("allow-tf32", &r->tf32, "f32 inputs may be rounded to TF32"),
        ARG_FLAG_("allow-nondeterministic", &r->nondeterministic, "results may depend on timing"),
        SETUP_ARGS(r->setup),
        ARG_CHOICE_("effort", &r->setup.effort, "E", effort_names, "how long to look"),
        ARG_CHOICE_("measure", &r->setup.measure, "HOW", measure_names, "operands out of the cache, or back to back"),
        ARG_FLAG_("fresh", &r->fresh, "races even where the cache has the answer"),
        ARG_FLAG_("no-keep", &r->no_keep, "does not remember the results"),
        ARG_TEXT_("only", &r->only, "NAMES", "only these variants, separated by ','"),
        SETUP_PLUGIN_ARG(r->setup),
        ARG_FLAG_("isolate", &r->isolate, "tries each variant in a process of its own first (plugins always are)"),
        ARG_REAL_("timeout", &r->timeout, "SECONDS", 0.01, 1e6, "limit of such a trial (60)"),
        ARG_FLAG_("json", &r->json, "prints one JSON object"),
        ARG_PARSE_("trial", &r->trial, "NAME", parse_anything, "", NULL),
        ARG_INT_("report-fd", &r->report_fd, "FD", 0, 1024, NULL),
    };
    args a = {
        .command = "race",
        .usage = "[options]",
        .about = "Races every variant that fits a block-sparse product, or products of groups, checks each, and names\n"
                 "the best.",
        .list = list,
        .count = sizeof list / sizeof *list,
        .more = "matmul: C = A*B, A block-sparse of M x K, B of K x N. sampled: X*Y, M x K times K x N, at the stored\n"
                "blocks of an M x N matrix. attention: softmax(Q*K^T where blocks are stored)*V, of --seq queries by\n"
                "--kv-seq keys; attention-backward: its gradients. grouped: Y = X*W[group], X of M*top-k x K, whose "
                "rows are\n"
                "in groups, each with a W of K x N; grouped-weights: the gradient of W, X^T*Z of each group."};
    return args_parse(&a, argc, argv);
}

/* ---- one race ---- */

typedef struct find_key {
    const char *key;
    bool found;
} find_key;

static bool same_key(void *user, const char *key, const char *text) {
    (void)text;
    find_key *f = user;
    f->found = strcmp(f->key, key) == 0;
    return !f->found;
}

// Whether the cache really holds it now: asked through a second context, since a folder that cannot be written leaves
// the results in the first one's memory.
static bool is_remembered(const setup *s, const sat_context *context, const char *key) {
    find_key f = {.key = key};
    if (!*sat_cache_path(context)) return false;
    sat_context *other = setup_open(s);
    bool found = other && sat_cache_visit(other, same_key, &f) == SAT_OK && f.found;
    sat_context_free(other);
    return found;
}

static bool show_progress(void *user, int done, int total, const char *what) {
    progress_show(user, "[%d/%d] %s", done, total, what);
    return true;
}

// The names that take part, as the library wants them; NULL for all.
static char *names_in(const trials *t) {
    char *list = calloc((size_t)t->count + 1, sizeof t->list[0].name + 1);
    if (!list) return NULL;
    for (int i = 0; i < t->count; i++)
        if (t->list[i].in) strcat(strcat(list, *list ? "," : ""), t->list[i].name);
    return list;
}

// Only plugins of which something survived its trial come into this process.
static bool load_survivors(const race_args *r, const trials *t, sat_context *context) {
    for (int i = 0; i < r->setup.plugins.count; i++) {
        bool wanted = false;
        for (int c = 0; c < t->count; c++) wanted |= t->list[c].plugin == i && t->list[c].in;
        char message[1024];
        if (wanted && !setup_plugin(context, r->setup.plugins.item[i], message, sizeof message))
            return failure("race", "%s", message), false;
    }
    return true;
}

// Fills `out` and gives the exit code; the caller frees out->race.
static int run_race(const race_args *r, const spec *s, const blocks *b, sat_context *context, const char *only,
                    outcome *out) {
    sat_pattern *pattern = NULL;
    sat_race *race = NULL;
    sat_problem p = spec_problem(s, b);
    progress bar = progress_start(false);
    sat_race_options o = {SAT_SIZED(sat_race_options), .only = only, .progress = show_progress, .progress_user = &bar};
    o.fresh = r->fresh;
    o.discard = r->no_keep || r->only; // a race of some says nothing about the rest
    sat_status status = spec_pattern(context, s, b, &pattern);
    if (status == SAT_OK) status = sat_race_run(context, pattern, &p, &o, &race);
    progress_clear(&bar);
    out->race = race;
    out->info.size = sizeof out->info;
    if (status == SAT_OK) status = sat_race_get_info(race, &out->info);
    sat_pattern_free(pattern);
    if (status != SAT_OK) return failure("race", "%s (%s)", sat_last_error(), sat_status_name(status));
    out->remembered = (out->info.cached || !o.discard) && is_remembered(&r->setup, context, out->info.key);
    return EXIT_DONE;
}

typedef struct best_block {
    char variant[128];
    int64_t rows, cols;
    double seconds; /* 0: none yet */
} best_block;

static void open_races(json *j) {
    json_object(j, NULL);
    json_int(j, "version", 1);
    json_array(j, "races");
}

static int show(const race_args *r, const outcome *o, json *j, best_block *best) {
    if (r->json && r->blocks.count > 1 && j->depth == 0) open_races(j); // not before there is something to show
    if (r->json) race_json(j, NULL, o);
    else race_print(o);
    const sat_result *winner = o->race ? sat_race_best(o->race) : NULL;
    if (!winner) return EXIT_FAILED;
    if (best->seconds == 0 || winner->seconds < best->seconds) {
        best->seconds = winner->seconds, best->rows = o->blocks->block_rows, best->cols = o->blocks->block_cols;
        snprintf(best->variant, sizeof best->variant, "%s", winner->variant);
    }
    return EXIT_DONE;
}

// Checks --only and the dtype against this device, then races.
static int race_in(const race_args *r, spec *s, const blocks *b, sat_context *context, trials *t, json *j,
                   best_block *best) {
    char unknown[160];
    if (t && !load_survivors(r, t, context)) return EXIT_FAILED;
    if (!t && r->only && unknown_variant(context, r->only, unknown, sizeof unknown))
        return usage_error("race", "--only '%s': no variant of that name; `sparse_autotune variants` lists them",
                           unknown);
    char *names = t ? names_in(t) : NULL;
    outcome o = {.spec = s, .blocks = b, .context = context, .cold = r->setup.measure == SAT_MEASURE_COLD};
    o.out = t ? t->out : NULL, o.out_count = t ? t->out_count : 0;
    o.info.size = sizeof o.info;
    int code = EXIT_DONE;
    if (!names || *names) code = run_race(r, s, b, context, names ? names : r->only, &o);
    if (code == EXIT_DONE) code = show(r, &o, j, best);
    sat_race_free((sat_race *)(uintptr_t)o.race);
    free(names);
    return code;
}

static int race_block(const race_args *r, int which, json *j, best_block *best) {
    spec s = r->spec;
    s.block_rows = r->blocks.rows[which], s.block_cols = r->blocks.cols[which];
    trials *t = NULL;
    if (r->isolate || r->setup.plugins.count > 0) {
        trial_request q = {.command = "race",
                           .argc = r->argc,
                           .argv = r->argv,
                           .block_rows = s.block_rows,
                           .block_cols = s.block_cols,
                           .everyone = r->isolate,
                           .only = r->only,
                           .limit_seconds = r->timeout};
        t = calloc(1, sizeof *t);
        if (!t) return failure("race", "not enough memory");
        int tried = trials_run(&q, t);
        if (tried != EXIT_DONE) return free(t), tried;
    }
    int code = EXIT_FAILED;
    char message[256];
    blocks b = {0};
    sat_context *context = setup_open(&r->setup);
    if (context && !spec_blocks(&s, &b, message, sizeof message)) failure("race", "%s", message);
    else if (context) {
        spec_dtype(&s, sat_context_device(context));
        code = race_in(r, &s, &b, context, t, j, best);
    }
    sat_context_free(context);
    blocks_free(&b);
    free(t);
    return code;
}

// Several blockings: each in full, then the best of all. Their times come from races one after the other.
static int race_all(const race_args *r) {
    json j = {.file = stdout};
    best_block best = {0};
    bool several = r->blocks.count > 1;
    int code = EXIT_DONE;
    for (int i = 0; i < r->blocks.count; i++) {
        int one = race_block(r, i, &j, &best);
        if (one > code) code = one;
        if (one == EXIT_USAGE) return one;
        if (several && !r->json) putchar('\n');
    }
    if (!several) return code;
    if (r->json) {
        if (j.depth == 0) open_races(&j);
        json_end(&j);
        json_array(&j, "best_block");
        if (best.seconds > 0) json_int(&j, NULL, best.rows), json_int(&j, NULL, best.cols);
        json_end(&j);
        json_text(&j, "best", best.seconds > 0 ? best.variant : NULL);
        json_real(&j, "seconds", best.seconds);
        json_end(&j);
    } else if (best.seconds > 0) {
        char t[32];
        printf("best block: %lldx%lld with %s, %s\n", (long long)best.rows, (long long)best.cols, best.variant,
               text_seconds(t, sizeof t, best.seconds));
    }
    return best.seconds > 0 ? EXIT_DONE : EXIT_FAILED;
}

// An option that only says how a pattern is made up; NULL if none was given.
static const char *drawn_option(const race_args *r) {
    const make_request *p = &r->spec.pattern;
    if (p->sparsity >= 0) return "sparsity";
    if (p->skew > 0 && !spec_is_grouped(&r->spec)) return "skew";
    if (p->overlap >= 0) return "overlap";
    if (p->kind != 0) return "pattern";
    if (r->spec.head_masks) return "head-masks";
    return r->seed != 1 ? "seed" : NULL;
}

static const char *foreign_to_groups(const race_args *r) {
    if (r->matrix) return "matrix";
    if (r->blocks.given && !r->trial) return "block"; // a trial names the block that it is about
    return r->spec.batch != 1 ? "batch" : drawn_option(r);
}

// One that the operation does not have; NULL if none was given.
static const char *foreign_option(const race_args *r) {
    const spec *s = &r->spec;
    spec plain = spec_default();
    bool epilogue = s->op == SAT_MATMUL - 1 || s->op == SAT_GROUPED - 1;
    if (!epilogue && s->bias) return "bias";
    if (!epilogue && s->activation) return "activation";
    if (s->op != SAT_MATMUL - 1 && s->transpose) return "transpose";
    if (s->op != SAT_MATMUL - 1 && r->fixed) return "fixed-values";
    if (spec_is_grouped(s) && s->dynamic) return "dynamic";
    if (s->dynamic && r->fixed) return "fixed-values";
    if (s->dynamic && s->sequences != plain.sequences) return "sequences"; // a mask that changes has none
    if (!s->dynamic && s->item_masks) return "batch-masks";
    if (!spec_is_grouped(s)) {
        if (s->groups != plain.groups) return "experts";
        if (s->top_k != plain.top_k) return "top-k";
        if (s->offsets != plain.offsets) return "offsets";
    }
    if (spec_is_attention(s)) return s->alpha != plain.alpha ? "alpha" : r->layout ? "layout" : NULL;
    const char *foreign = spec_is_grouped(s) ? foreign_to_groups(r) : NULL;
    if (foreign) return foreign;
    if (r->seq) return "seq";
    if (r->kv_seq) return "kv-seq";
    if (r->dim) return "dim";
    if (s->value_dim) return "value-dim";
    if (s->softcap != 0) return "softcap";
    if (s->sinks) return "sinks";
    if (s->heads != plain.heads) return "heads";
    if (s->kv_heads != plain.kv_heads) return "kv-heads";
    if (s->window != plain.window) return "window";
    if (s->sequences != plain.sequences) return "sequences";
    if (s->scale != plain.scale) return "scale";
    if (s->item_masks) return "batch-masks";
    return s->causal ? "causal" : s->head_masks ? "head-masks" : s->lse ? "lse" : NULL;
}

// Takes over attention's words for m, n and k. Where both are given they must agree.
static bool take_words(race_args *r) {
    static const char *const names[] = {"seq", "kv-seq", "dim"};
    const int64_t words[] = {r->seq, r->kv_seq, r->dim};
    int64_t *const sizes[] = {&r->spec.m, &r->spec.n, &r->spec.k};
    for (int i = 0; i < 3; i++) {
        if (words[i] && *sizes[i] && words[i] != *sizes[i])
            return usage_error("race", "--%s %lld: -%c or --size gives %lld", names[i], (long long)words[i], "mnk"[i],
                               (long long)*sizes[i]),
                   false;
        if (words[i]) *sizes[i] = words[i];
    }
    return true;
}

int race_main(int argc, char **argv) {
    race_args r = {
        .spec = spec_default(), .setup = {.command = "race"}, .timeout = 60, .seed = 1, .argc = argc, .argv = argv};
    r.blocks = (block_list){.rows = {64}, .cols = {64}, .count = 1};
    args_outcome parsed = parse_race(&r, argc, argv);
    if (parsed != ARGS_OK) return (int)parsed;
    spec *s = &r.spec;
    s->pattern.seed = (uint64_t)r.seed;
    s->flags = (r.fixed ? SAT_FIXED_VALUES : 0) | (r.dense ? SAT_ALLOW_DENSE : 0) | (r.tf32 ? SAT_ALLOW_TF32 : 0) |
               (r.nondeterministic ? SAT_ALLOW_NONDETERMINISTIC : 0);
    const char *foreign = foreign_option(&r);
    if (foreign) return usage_error("race", "--op %s: takes no --%s", operation_names[s->op], foreign);
    if (!take_words(&r)) return EXIT_USAGE;

    mtx matrix = {0};
    const char *drawn = r.matrix ? drawn_option(&r) : NULL;
    if (drawn) return usage_error("race", "--matrix: the file says where the blocks are; takes no --%s", drawn);
    if (!effort_races(r.setup.effort))
        return usage_error("race", "--effort '%s': expected default, quick or full, since this command races",
                           effort_names[r.setup.effort]);
    if (r.matrix) {
        mtx_error error;
        if (!mtx_read_file(r.matrix, (size_t)(0.5 * memory_bytes()), &matrix, &error))
            return failure("race", "--matrix '%s': %s", r.matrix, error.text);
        s->matrix = &matrix;
    }
    char message[256];
    int code;
    if (!spec_sizes(s, message, sizeof message)) code = usage_error("race", "%s", message);
    else if (r.trial) {
        s->block_rows = r.blocks.rows[0], s->block_cols = r.blocks.cols[0];
        code = trial_child(&r.setup, s, r.trial, (int)r.report_fd);
    } else code = race_all(&r);
    mtx_free(&matrix);
    return code;
}
