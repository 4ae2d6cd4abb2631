// sparse_autotune tune: races the problems that were answered by estimate while the effort was `cached`. The cache
// noted each as words; a pattern with the same sizes, blocks, skew and overlap is made up from them. Several processes
// share them by a folder (--world, --rank, --store): each problem is raced by one of them, and all remember the winner.

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "number.h"
#include "progress.h"
#include "setup.h"
#include "spec.h"
#include "table.h"

typedef struct note {
    char *key, *text;
} note;

typedef struct notes {
    note *list;
    size_t count, capacity;
    bool lost;
} notes;

// The processes that share the notes.
typedef struct ranks {
    int64_t world, rank;
    double wait;
    const char *store;
    sat_agreement agreement; // user NULL: this process is alone
} ranks;

typedef struct tuning {
    setup setup;
    ranks ranks;
    const char *notes; // the cache whose notes are raced; NULL: the one that results go to
    size_t raced;      // here
} tuning;

static bool collect(void *user, const char *key, const char *text) {
    notes *n = user;
    if (n->count == n->capacity) {
        size_t capacity = n->capacity ? 2 * n->capacity : 64;
        note *grown = realloc(n->list, capacity * sizeof *grown);
        if (!grown) return n->lost = true, false;
        n->list = grown, n->capacity = capacity;
    }
    note *x = &n->list[n->count];
    x->key = strdup(key), x->text = strdup(text);
    if (!x->key || !x->text) return free(x->key), free(x->text), n->lost = true, false;
    n->count++;
    return true;
}

/* ---- from words to a problem ---- */

static const char *value_of(const char *text, const char *name, char *out, size_t capacity) {
    size_t n = strlen(name);
    out[0] = 0;
    for (const char *s = text; *s;) {
        size_t length = strcspn(s, " ");
        if (length > n && memcmp(s, name, n) == 0 && s[n] == '=') {
            snprintf(out, capacity, "%.*s", (int)(length - n - 1), s + n + 1);
            return out;
        }
        s += length + (s[length] == ' ');
    }
    return NULL;
}

static bool has_word(const char *text, const char *word) {
    size_t n = strlen(word);
    for (const char *s = strstr(text, word); s; s = strstr(s + 1, word))
        if ((s == text || s[-1] == ' ') && (s[n] == ' ' || !s[n])) return true;
    return false;
}

static bool whole(const char *text, const char *name, int64_t *out) {
    char word[64];
    return value_of(text, name, word, sizeof word) && parse_whole(word, 0, INT64_MAX, out);
}

static bool real(const char *text, const char *name, double *out) {
    char word[64];
    return value_of(text, name, word, sizeof word) && parse_real(word, out);
}

// Numbers separated by `between`: "64x32", "512,1,0".
static bool several(const char *text, const char *name, char between, int64_t *out, int count) {
    char word[128];
    char *p = word;
    if (!value_of(text, name, word, sizeof word)) return false;
    for (int i = 0; i < count; i++) {
        char *end = strchr(p, between);
        if ((i + 1 < count) != (end != NULL)) return false;
        if (end) *end = 0;
        if (!parse_whole(p, 0, INT64_MAX, &out[i])) return false;
        if (end) p = end + 1;
    }
    return true;
}

static bool choice(const char *text, const char *name, const char *const *names, int *out) {
    char word[64];
    if (!value_of(text, name, word, sizeof word)) return false;
    for (int i = 0; names[i]; i++)
        if (strcmp(word, names[i]) == 0) return *out = i, true;
    return false;
}

static bool dtype(const char *text, const char *name, sat_dtype *out) {
    char word[64];
    sat_dtype c;
    return value_of(text, name, word, sizeof word) && dtype_parse(word, out, &c) && *out == c;
}

static bool layout(const char *text, const char *name, sat_layout *out) {
    int64_t x[3];
    if (!several(text, name, ',', x, 3)) return false;
    *out = (sat_layout){x[0], x[1], x[2]};
    return true;
}

static bool read_attention(const char *text, spec *s) {
    int64_t masks;
    if (!whole(text, "heads", &s->heads) || !whole(text, "kv_heads", &s->kv_heads) ||
        !whole(text, "window", &s->window) || !whole(text, "masks", &masks) ||
        !whole(text, "sequences", &s->sequences) || s->heads < 1 || s->heads > INT32_MAX)
        return false;
    char word[32];
    if (value_of(text, "value_dim", word, sizeof word) && !whole(text, "value_dim", &s->value_dim)) return false;
    if (value_of(text, "softcap", word, sizeof word) && !real(text, "softcap", &s->softcap)) return false;
    s->item_masks = value_of(text, "mask_batch", word, sizeof word);
    s->head_masks = masks > 1, s->causal = has_word(text, "causal"), s->lse = has_word(text, "lse");
    s->sinks = has_word(text, "sinks");
    s->scale = has_word(text, "negative") ? -1 : 0;
    return true;
}

// Operands without a word have no gaps.
static bool read_heads(const char *text, sat_attention *t) {
    static const char *const names[] = {"q_at", "k_at", "v_at", "o_at", "do_at", "dq_at", "dk_at", "dv_at"};
    sat_heads *const list[] = {&t->q, &t->k, &t->v, &t->o, &t->do_, &t->dq, &t->dk, &t->dv};
    char word[128];
    if (value_of(text, "strides", word, sizeof word)) return false;
    for (int i = 0; i < 8; i++) {
        int64_t x[3];
        if (!value_of(text, names[i], word, sizeof word)) continue;
        if (!several(text, names[i], ',', x, 3)) return false;
        *list[i] = (sat_heads){x[0], x[1], x[2]};
    }
    return true;
}

// Sizes, pattern and options. Strides and alignments are exact, so they go straight into the problem.
static bool read_words(const char *text, spec *s) {
    int64_t block[2], beta, bias, t;
    if (!choice(text, "op", operation_names, &s->op) || !choice(text, "act", activation_names, &s->activation) ||
        !whole(text, "m", &s->m) || !whole(text, "n", &s->n) || !whole(text, "k", &s->k) ||
        !several(text, "block", 'x', block, 2) || !whole(text, "batch", &s->batch) || !whole(text, "beta", &beta) ||
        !whole(text, "bias", &bias) || !whole(text, "t", &t) || !whole(text, "blocks", &s->pattern.stored) ||
        !real(text, "skew", &s->pattern.skew) || !real(text, "overlap", &s->pattern.overlap) ||
        !dtype(text, "a", &s->a_dtype) || !dtype(text, "c", &s->c_dtype))
        return false;
    if (block[0] < 1 || block[1] < 1 || s->m > INT32_MAX || s->n > INT32_MAX || s->k > INT32_MAX) return false;
    s->block_rows = block[0], s->block_cols = block[1];
    s->beta = beta ? 1 : 0, s->bias = bias, s->transpose = t;
    if (spec_is_attention(s) && !read_attention(text, s)) return false;
    if (spec_is_grouped(s) &&
        (!whole(text, "groups", &s->groups) || !choice(text, "offsets", offset_names, &s->offsets)))
        return false;
    s->flags = (has_word(text, "tf32") ? SAT_ALLOW_TF32 : 0) | (has_word(text, "dense") ? SAT_ALLOW_DENSE : 0) |
               (has_word(text, "nondeterministic") ? SAT_ALLOW_NONDETERMINISTIC : 0) |
               (has_word(text, "fixed") ? SAT_FIXED_VALUES : 0) | SAT_ALLOW_BROADCAST; // the caller had it
    s->dynamic = has_word(text, "dynamic");
    return true;
}

static bool read_problem(const char *text, const spec *s, const blocks *b, sat_problem *p) {
    int64_t align[3];
    *p = spec_problem(s, b);
    if (!several(text, "align", ',', align, 3)) return false;
    p->a_align = (uint32_t)align[0], p->b_align = (uint32_t)align[1], p->c_align = (uint32_t)align[2];
    if (spec_is_attention(s)) return read_heads(text, &p->attention);
    return layout(text, "a_strides", &p->a) && layout(text, "b_strides", &p->b) && layout(text, "c_strides", &p->c);
}

/* ---- racing ---- */

static bool show_progress(void *user, int done, int total, const char *what) {
    progress_show(user, "[%d/%d] %s", done, total, what);
    return true;
}

// Of several ranks one races the problem; the others wait for it, and check its winner.
static int share_problem(tuning *t, sat_context *context, const spec *s, const blocks *b, const sat_problem *p) {
    sat_pattern *pattern = NULL;
    sat_plan *plan = NULL;
    sat_plan_info info = {SAT_SIZED(sat_plan_info)};
    sat_status status = sat_context_agree(context, &t->ranks.agreement);
    if (status == SAT_OK) status = spec_pattern(context, s, b, &pattern);
    if (status == SAT_OK) status = sat_plan_create(context, pattern, p, &plan);
    if (status == SAT_OK) status = sat_plan_get_info(plan, &info);
    sat_plan_free(plan);
    sat_pattern_free(pattern);
    char title[512];
    spec_title(s, b, title, sizeof title);
    if (status != SAT_OK) return failure("tune", "%s: %s (%s)", title, sat_last_error(), sat_status_name(status));
    if (!info.tuned && !info.cached && !info.verified)
        return failure("tune", "%s: no rank raced it within %g s, and the estimate serves", title, t->ranks.wait);
    t->raced += info.tuned;
    printf("%s: %s, %s\n", title, info.variant, info.tuned ? "raced here" : "checked here");
    fflush(stdout);
    return EXIT_DONE;
}

static int race_problem(sat_context *context, const note *n, const spec *s, const blocks *b, const sat_problem *p) {
    sat_pattern *pattern = NULL;
    sat_race *race = NULL;
    sat_race_info info = {SAT_SIZED(sat_race_info)};
    progress bar = progress_start(false);
    sat_race_options o = {SAT_SIZED(sat_race_options), .progress = show_progress, .progress_user = &bar};
    sat_status status = spec_pattern(context, s, b, &pattern);
    if (status == SAT_OK) status = sat_race_run(context, pattern, p, &o, &race);
    if (status == SAT_OK) status = sat_race_get_info(race, &info);
    progress_clear(&bar);
    sat_pattern_free(pattern);
    char title[512], time[32];
    const sat_result *best = sat_race_best(race);
    spec_title(s, b, title, sizeof title);
    int code = EXIT_DONE;
    if (status != SAT_OK) code = failure("tune", "%s: %s (%s)", title, sat_last_error(), sat_status_name(status));
    else if (!best) code = failure("tune", "%s: nothing that may win gave a right result", title);
    else
        printf("%s: %s, %s%s\n", title, best->variant, text_seconds(time, sizeof time, best->seconds),
               strcmp(info.key, n->key) == 0 ? "" : " (of a problem close to it: its key differs)");
    fflush(stdout);
    sat_race_free(race);
    return code;
}

// Whether this made-up pattern falls under the noted key.
static bool same_key(sat_context *context, const spec *s, const blocks *b, const sat_problem *p, const char *wanted) {
    sat_pattern *pattern = NULL;
    char key[512];
    bool same = spec_pattern(context, s, b, &pattern) == SAT_OK &&
                sat_problem_key(context, pattern, p, key, sizeof key) == SAT_OK && strcmp(key, wanted) == 0;
    sat_pattern_free(pattern);
    return same;
}

// A pattern of few blocks may miss the key by chance, so other seeds are tried before a neighbour is good enough.
static int tune_one(tuning *t, sat_context *context, const note *n) {
    enum { SEEDS = 24 };
    spec s = spec_default();
    blocks b = {0};
    sat_problem p;
    char message[256];
    if (!read_words(n->text, &s)) return failure("tune", "a note that cannot be read: %s", n->text);
    if (s.dynamic && !real(n->key, "density", &s.density)) // what is expected is in the key alone
        return failure("tune", "a note that cannot be read: %s", n->key);
    for (int i = 0; i < SEEDS; i++, s.pattern.seed++) {
        blocks_free(&b);
        if (!spec_blocks(&s, &b, message, sizeof message)) return failure("tune", "%s", message);
        if (!read_problem(n->text, &s, &b, &p)) {
            blocks_free(&b);
            return failure("tune", "a note that cannot be read: %s", n->text);
        }
        if (same_key(context, &s, &b, &p, n->key)) break;
    }
    int code = t->ranks.agreement.user ? share_problem(t, context, &s, &b, &p) : race_problem(context, n, &s, &b, &p);
    blocks_free(&b);
    return code;
}

// Threads and cold or warm are in the key alone; a context has one of each, so each note gets a context that fits.
static int tune_note(tuning *t, const note *n) {
    setup own = t->setup;
    int64_t threads;
    char word[32];
    if (whole(n->key, "threads", &threads) && threads > 0 && threads <= 4096) own.threads = threads;
    if (value_of(n->key, "measure", word, sizeof word)) own.measure = strcmp(word, "warm") == 0;
    sat_context *context = setup_open(&own);
    if (!context) return EXIT_FAILED;
    int code = tune_one(t, context, n);
    sat_context_free(context);
    return code;
}

/* ---- the command ---- */

static int read_notes(const tuning *t, notes *n) {
    setup where = t->setup;
    if (t->notes) where.cache = t->notes;
    sat_context *context = setup_open(&where);
    if (!context) return EXIT_FAILED;
    sat_status status = sat_cache_visit_untuned(context, collect, n);
    int code = EXIT_DONE;
    if (status != SAT_OK) code = failure("tune", "%s (%s)", sat_last_error(), sat_status_name(status));
    else if (n->lost) code = failure("tune", "not enough memory");
    sat_context_free(context);
    return code;
}

static int join_ranks(ranks *r) {
    if (r->rank >= r->world)
        return usage_error("tune", "--rank %lld: expected 0 to %lld, below --world", (long long)r->rank,
                           (long long)r->world - 1);
    if (!r->store && r->world < 2) return EXIT_DONE;
    if (!r->store)
        return usage_error("tune", "--world %lld: expected --store, a folder that all ranks see", (long long)r->world);
    r->agreement.size = sizeof r->agreement;
    sat_status status = sat_agreement_folder(r->store, (int)r->rank, (int)r->world, &r->agreement);
    r->agreement.wait_seconds = r->wait;
    return status == SAT_OK ? EXIT_DONE : failure("tune", "%s (%s)", sat_last_error(), sat_status_name(status));
}

// Each rank begins elsewhere, so that all race at the same time, and finds the others' winners once it comes there.
static int tune_all(tuning *t, const notes *n) {
    int code = EXIT_DONE;
    size_t first = n->count * (size_t)t->ranks.rank / (size_t)t->ranks.world;
    for (size_t i = 0; i < n->count; i++) {
        int one = tune_note(t, &n->list[(first + i) % n->count]);
        if (one > code) code = one;
    }
    printf("%zu %s", n->count, n->count == 1 ? "problem" : "problems");
    if (t->ranks.agreement.user) printf(", %zu raced here", t->raced);
    printf("\n");
    return code;
}

int tune_main(int argc, char **argv) {
    tuning t = {.setup = {.command = "tune", .effort = SAT_EFFORT_QUICK}, .ranks = {.world = 1, .wait = 60}};
    bool list_only = false;
    const arg list[] = {
        SETUP_ARGS(t.setup),
        ARG_CHOICE_("effort", &t.setup.effort, "E", effort_names, "how long to look"),
        ARG_FLAG_("list", &list_only, "lists the problems and tunes nothing"),
        ARG_TEXT_("notes", &t.notes, "DIR", "the cache whose problems are raced, where it is another one"),
        ARG_INT_("world", &t.ranks.world, "N", 1, 1 << 20, "processes that share the problems (1)"),
        ARG_INT_("rank", &t.ranks.rank, "R", 0, (1 << 20) - 1, "which of them this is, from 0 on (0)"),
        ARG_TEXT_("store", &t.ranks.store, "DIR", "a folder that all of them see, new for each run"),
        ARG_REAL_("wait", &t.ranks.wait, "S", 0.001, 86400, "seconds to wait for a race of another one (60)")};
    args a = {
        .command = "tune",
        .usage = "[options]",
        .about = "Races the problems that SPARSE_AUTOTUNE=cached had to answer by estimate, and remembers the results.",
        .list = list,
        .count = sizeof list / sizeof *list};
    args_outcome parsed = args_parse(&a, argc, argv);
    if (parsed != ARGS_OK) return (int)parsed;
    if (!effort_races(t.setup.effort))
        return usage_error("tune", "--effort '%s': expected default, quick or full, since this command races",
                           effort_names[t.setup.effort]);
    notes n = {0};
    int code = list_only ? EXIT_DONE : join_ranks(&t.ranks);
    if (code == EXIT_DONE) code = read_notes(&t, &n);
    for (size_t i = 0; list_only && i < n.count; i++) printf("%s\n", n.list[i].text);
    if (!list_only && code == EXIT_DONE) code = tune_all(&t, &n);
    sat_agreement_folder_free(&t.ranks.agreement);
    for (size_t i = 0; i < n.count; i++) free(n.list[i].key), free(n.list[i].text);
    free(n.list);
    return code;
}
