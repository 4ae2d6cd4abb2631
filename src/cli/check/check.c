// sparse_autotune check: verifies every variant on this machine over a random grid of problems, against a reference of
// its own. What it finds it can repeat: a case is its seed, its variant and its number.
//
// The cases run in a process of their own. When a variant takes that process down, or its device, or does not come
// back, it is reported, and a new process goes on with the others.

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../cli.h"
#include "../isolate.h"
#include "../json.h"
#include "../progress.h"
#include "../table.h"
#include "check_run.h"
#include "power.h"

enum { VARIANTS_MOST = 1024, KEPT_MESSAGES = 3 };

typedef struct tally {
    char name[128];
    char lacks[24];    // what this device has not; "": it can run
    bool wanted, dead; // dead: it took its process with it
    int64_t right, wrong, not_taken;
    char message[KEPT_MESSAGES][1200];
    int64_t number[KEPT_MESSAGES]; // of the case
} tally;

typedef struct check_args {
    setup setup;
    const char *only, *first;
    double seconds, timeout;
    int64_t cases, number, seed, sides, from, report_fd;
    bool json, isolate, no_isolate, worker, list_only, given_seed, tune, by_race, power;
    int argc;
    char **argv;
    // What came of it.
    tally *list;
    int count;
    char device[128];
    int64_t total;
    int at; // the variant and case that run now
    int64_t at_case;
    char problem[512]; // what it was about to run
    char broke[1200];  // how it left the device unusable; "": it did not
    double start;
    progress bar;
} check_args;

/* ---- what a case came to ---- */

static void print_failure(const check_args *c, const tally *t, int64_t number, const char *message) {
    if (c->json) return;
    printf("FAILED %s, case %" PRId64 ": %s\n", t->name, number, message);
    printf("  again: sparse_autotune check --only %s --seed %" PRId64 " --case %" PRId64, t->name, c->seed, number);
    for (int i = 0; i < c->setup.plugins.count; i++) printf(" --plugin %s", c->setup.plugins.item[i]);
    if (c->setup.device) printf(" --device %s", c->setup.device);
    if (c->setup.threads) printf(" --threads %" PRId64, c->setup.threads);
    if (c->sides) printf(" --sides %" PRId64, c->sides);
    if (c->tune) printf(" --tune");
    if (c->by_race) printf(" --by-race");
    putchar('\n');
    fflush(stdout);
}

static void note(check_args *c, int which, int64_t number, case_end end, const char *message) {
    tally *t = &c->list[which];
    c->total += end != CASE_NOT_TAKEN;
    if (end == CASE_RIGHT) t->right++;
    else if (end == CASE_NOT_TAKEN) t->not_taken++;
    else {
        if (t->wrong < KEPT_MESSAGES) {
            snprintf(t->message[t->wrong], sizeof t->message[0], "%s", message);
            t->number[t->wrong] = number;
            progress_clear(&c->bar);
            print_failure(c, t, number, message);
        }
        t->wrong++;
    }
    progress_show(&c->bar, "check: %" PRId64 " cases, %s", c->total, t->name);
}

/* ---- the loop, here or in the worker ---- */

static bool is_over(const check_args *c) { return c->seconds > 0 && now_seconds() - c->start >= c->seconds; }

// Whatever runs after a variant that left the device unusable would be blamed for it.
static int broken(const check_args *c, checker *k, const char *name) {
    checker_close(k);
    if (c->worker) return EXIT_FAILED; // the parent goes on with a new one
    return failure("check", "%s broke the device, and this process cannot use it any more: leave out --no-isolate",
                   name);
}

static int run_loop(check_args *c) {
    checker k;
    if (!checker_open(&k, &c->setup, c->tune, c->by_race)) return checker_close(&k), EXIT_FAILED;
    if (c->worker) k.report_fd = (int)c->report_fd;
    k.sides = c->sides;
    bool skipping = c->first != NULL; // a worker that follows one that died begins in the middle of a round
    for (int64_t number = c->from; number < c->cases && !is_over(c); number++) {
        for (int i = 0; i < c->count && !is_over(c); i++) {
            if (!c->list[i].wanted) continue;
            if (skipping && strcmp(c->first, c->list[i].name) != 0) continue;
            skipping = false;
            char message[1200];
            if (c->worker) isolate_report((int)c->report_fd, "at %d %" PRId64, i, number);
            case_end end =
                checker_run(&k, sat_variant_at(k.many, (size_t)i), (uint64_t)c->seed, number, message, sizeof message);
            bool broke = end == CASE_WRONG && sat_stream_wait(k.many, NULL) != SAT_OK;
            if (c->worker && broke) isolate_report((int)c->report_fd, "broke %s", message);
            else if (c->worker)
                isolate_report((int)c->report_fd, "end %d %s", (int)end, end == CASE_WRONG ? message : "");
            else note(c, i, number, end, message);
            if (broke) return broken(c, &k, c->list[i].name);
        }
        skipping = false;
    }
    checker_close(&k);
    if (c->worker) isolate_report((int)c->report_fd, "done");
    return EXIT_DONE;
}

static void take_line(void *user, const char *line) {
    check_args *c = user;
    int which, end, at = 0;
    int64_t number;
    if (sscanf(line, "at %d %" SCNd64, &which, &number) == 2 && which >= 0 && which < c->count)
        c->at = which, c->at_case = number, c->problem[0] = c->broke[0] = 0;
    else if (strncmp(line, "problem ", 8) == 0) snprintf(c->problem, sizeof c->problem, "%s", line + 8);
    else if (strncmp(line, "broke ", 6) == 0) snprintf(c->broke, sizeof c->broke, "%s", line + 6);
    else if (sscanf(line, "end %d %n", &end, &at) == 1 && at > 0 && c->at >= 0) {
        note(c, c->at, c->at_case, (case_end)end, line + at);
        c->at = -1;
    }
}

// One worker, from `from` on and in its first round from variant `first` on.
static isolate_end run_worker(check_args *c, int64_t from, const char *first, char *message, size_t capacity) {
    size_t names_size = (size_t)c->count * sizeof c->list[0].name + 16;
    char *names = calloc(1, names_size);
    const char **words = calloc((size_t)c->argc + 10, sizeof *words);
    if (!names || !words) {
        free(names);
        free(words);
        snprintf(message, capacity, "not enough memory");
        return ISOLATE_UNABLE;
    }
    char seed[48], begin[48], left[48], start_with[160];
    strcpy(names, "--only=");
    for (int i = 0; i < c->count; i++)
        if (c->list[i].wanted && !c->list[i].dead) strcat(strcat(names, c->list[i].name), ",");
    snprintf(seed, sizeof seed, "--seed=%" PRId64, c->seed);
    snprintf(begin, sizeof begin, "--from=%" PRId64, from);
    snprintf(start_with, sizeof start_with, "--first=%s", first ? first : "");
    double seconds = c->start + c->seconds - now_seconds();
    snprintf(left, sizeof left, "--seconds=%.3f", seconds > 0.001 ? seconds : 0.001);
    int n = 0;
    words[n++] = "check";
    for (int i = 0; i < c->argc; i++) words[n++] = c->argv[i];
    words[n++] = "--worker", words[n++] = names, words[n++] = seed, words[n++] = begin;
    if (first) words[n++] = start_with;
    if (c->seconds > 0) words[n++] = left;
    isolate_job job = {.words = words, .limit_seconds = c->timeout, .line = take_line, .user = c};
    c->at = -1;
    isolate_end end = isolate_run(&job, message, capacity);
    free(names);
    free(words);
    return end;
}

// The next variant of the round after this one; NULL: a new round begins.
static const char *next_variant(const check_args *c, int after) {
    for (int i = after + 1; i < c->count; i++)
        if (c->list[i].wanted && !c->list[i].dead) return c->list[i].name;
    return NULL;
}

static int run_isolated(check_args *c) {
    setenv("OMP_WAIT_POLICY", "passive", 0); // for the workers: right results are wanted, and other work goes on
    int64_t from = c->from;
    const char *first = NULL;
    for (;;) {
        char message[256], text[800];
        isolate_end end = run_worker(c, from, first, message, sizeof message);
        if (end == ISOLATE_DONE) return EXIT_DONE;
        if (end == ISOLATE_UNABLE || c->at < 0) return failure("check", "the process that runs the cases %s", message);
        int dead = c->at;
        snprintf(text, sizeof text, "%s%s%s", message, *c->problem ? "; problem: " : "", c->problem);
        note(c, dead, c->at_case, CASE_WRONG, *c->broke ? c->broke : text);
        c->list[dead].dead = true;
        first = next_variant(c, dead), from = first ? c->at_case : c->at_case + 1;
        if (!first && !next_variant(c, -1)) return EXIT_DONE;
        if (from >= c->cases || is_over(c)) return EXIT_DONE;
    }
}

/* ---- the result ---- */

static bool is_good(const tally *t) { return !t->wanted || (t->wrong == 0 && t->right > 0); }

static const char *remark(const tally *t) {
    if (*t->lacks) return "not on this device";
    if (t->dead) return "took its process or its device down, or did not come back";
    if (t->wrong) return "FAILED";
    return t->right ? "ok" : "NEVER EXERCISED: took none of the cases";
}

static void print_summary(const check_args *c) {
    table t = {.columns = 4};
    int variants = 0;
    table_row(&t, (const char *[]){"variant", "cases", "failed", ""});
    for (int i = 0; i < c->count; i++) {
        const tally *x = &c->list[i];
        if (!x->wanted && !*x->lacks) continue;
        char cases[24] = "-", failed[24] = "-";
        if (x->wanted) {
            snprintf(cases, sizeof cases, "%" PRId64, x->right + x->wrong);
            snprintf(failed, sizeof failed, "%" PRId64, x->wrong);
        }
        variants += x->wanted;
        table_row(&t, (const char *[]){x->name, cases, failed, remark(x)});
    }
    printf("check of %d variant%s on %s, seed %" PRId64 "\n", variants, variants == 1 ? "" : "s", c->device, c->seed);
    table_print(&t, stdout, "  ");
    table_free(&t);
}

static void tally_json(json *j, const tally *t) {
    json_object(j, NULL);
    json_text(j, "variant", t->name);
    json_bool(j, "usable", !*t->lacks);
    json_text(j, "needs", *t->lacks ? t->lacks : NULL);
    json_int(j, "cases", t->right + t->wrong);
    json_int(j, "failed", t->wrong);
    json_int(j, "not_taken", t->not_taken);
    json_bool(j, "ok", is_good(t));
    json_array(j, "failures");
    for (int64_t i = 0; i < t->wrong && i < KEPT_MESSAGES; i++) {
        json_object(j, NULL);
        json_int(j, "case", t->number[i]);
        json_text(j, "message", t->message[i]);
        json_end(j);
    }
    json_end(j);
    json_end(j);
}

static void check_json(const check_args *c, int64_t failed) {
    json j = {.file = stdout};
    json_object(&j, NULL);
    json_int(&j, "version", 1);
    json_text(&j, "device", c->device);
    json_int(&j, "seed", c->seed);
    json_int(&j, "cases", c->total);
    json_int(&j, "failed", failed);
    json_real(&j, "seconds", now_seconds() - c->start);
    json_array(&j, "variants");
    for (int i = 0; i < c->count; i++)
        if (c->list[i].wanted || *c->list[i].lacks) tally_json(&j, &c->list[i]);
    json_end(&j);
    json_end(&j);
}

static int finish(const check_args *c) {
    int bad = 0, wanted = 0;
    int64_t failed = 0;
    for (int i = 0; i < c->count; i++)
        bad += !is_good(&c->list[i]), wanted += c->list[i].wanted, failed += c->list[i].wrong;
    if (c->json) check_json(c, failed);
    else {
        print_summary(c);
        printf("%" PRId64 " case%s in %.1f s, %" PRId64 " failed: %s\n", c->total, c->total == 1 ? "" : "s",
               now_seconds() - c->start, failed, bad == 0 && wanted > 0 ? "all right" : "NOT all right");
    }
    return bad == 0 && wanted > 0 ? EXIT_DONE : EXIT_FAILED;
}

/* ---- set-up ---- */

static bool add_variant(check_args *c, const char *name, const char *lacks) {
    if (c->count == VARIANTS_MOST) return false;
    tally *t = &c->list[c->count++];
    snprintf(t->name, sizeof t->name, "%s", name);
    snprintf(t->lacks, sizeof t->lacks, "%s", lacks);
    return true;
}

// The variants as this process sees them.
static int list_here(check_args *c) {
    sat_context *context = setup_open(&c->setup);
    if (!context) return EXIT_FAILED;
    int code = setup_plugins(&c->setup, context) ? EXIT_DONE : EXIT_FAILED;
    const sat_device *d = sat_context_device(context);
    snprintf(c->device, sizeof c->device, "%s", d->name);
    for (size_t i = 0; code == EXIT_DONE && i < sat_variant_count(context); i++) {
        const sat_variant *v = sat_variant_at(context, i);
        const char *lacks = variant_lacks(v, d);
        if (!add_variant(c, v->name, lacks ? lacks : ""))
            code = failure("check", "more than %d variants", VARIANTS_MOST);
    }
    sat_context_free(context);
    return code;
}

static void take_listed(void *user, const char *line) {
    check_args *c = user;
    char word[24];
    int at = 0;
    if (strncmp(line, "device ", 7) == 0) snprintf(c->device, sizeof c->device, "%s", line + 7);
    else if (sscanf(line, "variant %23[^:]:%n", word, &at) == 1 && at > 0)
        add_variant(c, line + at, strcmp(word, "-") == 0 ? "" : word);
}

// The same from a process of its own: loading a plugin may crash too.
static int list_there(check_args *c) {
    const char **words = calloc((size_t)c->argc + 4, sizeof *words);
    if (!words) return failure("check", "not enough memory");
    words[0] = "check";
    for (int i = 0; i < c->argc; i++) words[i + 1] = c->argv[i];
    words[c->argc + 1] = "--worker", words[c->argc + 2] = "--list";
    isolate_job job = {.words = words, .limit_seconds = c->timeout, .line = take_listed, .user = c, .loud = true};
    char message[256];
    isolate_end end = isolate_run(&job, message, sizeof message);
    free(words);
    return end == ISOLATE_DONE ? EXIT_DONE : failure("check", "the process that lists the variants %s", message);
}

static int report_list(const check_args *c) {
    isolate_report((int)c->report_fd, "device %s", c->device);
    for (int i = 0; i < c->count; i++)
        isolate_report((int)c->report_fd, "variant %s:%s", *c->list[i].lacks ? c->list[i].lacks : "-", c->list[i].name);
    isolate_report((int)c->report_fd, "done");
    return EXIT_DONE;
}

// Marks those asked for. One that this device cannot run is wanted only where it was named, and then fails.
static int choose_variants(check_args *c) {
    for (const char *p = c->only; p && *p;) {
        size_t length = strcspn(p, ",");
        bool known = length == 0;
        for (int i = 0; !known && i < c->count; i++)
            known = strlen(c->list[i].name) == length && memcmp(c->list[i].name, p, length) == 0;
        if (!known)
            return usage_error("check", "--only '%.*s': no variant of that name; `sparse_autotune variants` lists them",
                               (int)length, p);
        p += length + (p[length] == ',');
    }
    for (int i = 0; i < c->count; i++) {
        tally *t = &c->list[i];
        bool named = !c->only || name_in_list(c->only, t->name);
        t->wanted = named && (!*t->lacks || (c->only && !c->worker));
        if (!named) t->lacks[0] = 0;
    }
    return EXIT_DONE;
}

static args_outcome parse_check(check_args *c, int argc, char **argv) {
    const arg list[] = {
        ARG_INT_("cases", &c->cases, "N", 1, 1e12, "cases a variant (300, or as many as --seconds allows)"),
        ARG_REAL_("seconds", &c->seconds, "S", 0.001, 1e9, "stops after so long"),
        {.name = "seed",
         .kind = ARG_INT,
         .to = &c->seed,
         .value = "N",
         .least = 0,
         .most = 0x1p63,
         .given = &c->given_seed,
         .help = "of the cases (from the clock)"},
        ARG_INT_("case", &c->number, "N", 0, 1e12, "runs this one case"),
        ARG_TEXT_("only", &c->only, "NAMES", "only these variants, separated by ','"),
        ARG_INT_("sides", &c->sides, "N", 1, 1 << 16, "sizes up to about N (mostly small ones)"),
        ARG_FLAG_("tune", &c->tune, "tunes each variant's problems, and verifies what the library chooses for them"),
        ARG_FLAG_("by-race", &c->by_race,
                  "verifies by the check of races alone: a right variant that it finds wrong shows"),
        ARG_FLAG_("power", &c->power, "plants faults and says who finds them; `check --power --help` has its options"),
        SETUP_PLUGIN_ARG(c->setup),
        ARG_REAL_("timeout", &c->timeout, "SECONDS", 0.01, 1e6, "a case that takes longer has hung (30)"),
        ARG_FLAG_("no-isolate", &c->no_isolate, "runs the cases in this process, for a debugger or a sanitizer"),
        ARG_FLAG_("isolate", &c->isolate, "runs them in a process of their own (the default)"),
        SETUP_ARGS(c->setup),
        ARG_FLAG_("json", &c->json, "prints one JSON object"),
        ARG_FLAG_("worker", &c->worker, NULL),
        ARG_FLAG_("list", &c->list_only, NULL),
        ARG_INT_("from", &c->from, "N", 0, 1e12, NULL),
        ARG_TEXT_("first", &c->first, "NAME", NULL),
        ARG_INT_("report-fd", &c->report_fd, "FD", 0, 1024, NULL),
    };
    args a = {.command = "check",
              .usage = "[options]",
              .about =
                  "Verifies every variant on this machine over random problems: dtypes, odd sizes, ragged edges,\n"
                  "rectangular blocks, empty and skewed rows, transposes, strides, alpha and beta, bias, activation,\n"
                  "batches, masks of attention, groups of rows and faults in their offsets, index widths, alignments,\n"
                  "thread counts. A variant that crashes or hangs is survived and reported.",
              .list = list,
              .count = sizeof list / sizeof *list};
    return args_parse(&a, argc, argv);
}

int check_main(int argc, char **argv) {
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], "--power") == 0) return power_main(argc, argv);
    check_args c = {.setup = {.command = "check"}, .timeout = 30, .number = -1, .argc = argc, .argv = argv};
    args_outcome parsed = parse_check(&c, argc, argv);
    if (parsed != ARGS_OK) return (int)parsed;
    if (!c.given_seed) c.seed = (int64_t)(time(NULL) & 0x7fffffff);
    if (!c.cases) c.cases = c.seconds > 0 ? INT64_MAX : 300;
    if (c.number >= 0) c.from = c.number, c.cases = c.number + 1;
    c.start = now_seconds();
    c.bar = progress_start(c.worker);
    c.list = calloc(VARIANTS_MOST, sizeof *c.list);
    if (!c.list) return failure("check", "not enough memory");
    bool here = c.worker || c.no_isolate;
    int code = here || c.setup.plugins.count == 0 ? list_here(&c) : list_there(&c);
    if (code == EXIT_DONE && c.list_only) code = report_list(&c);
    else {
        if (code == EXIT_DONE) code = choose_variants(&c);
        if (code == EXIT_DONE) code = here ? run_loop(&c) : run_isolated(&c);
        progress_clear(&c.bar);
        if (code == EXIT_DONE && !c.worker) code = finish(&c);
    }
    free(c.list);
    return code;
}
