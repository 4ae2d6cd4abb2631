// sparse_autotune check --power: plants faults into a right kernel and says what finds each: the race, or `check`.
//
// The race has the planted variant alone, on a problem in which the fault shows, at several depths. `check` has the
// same variant and the cases of its grid, until one is wrong. What the table of faults expects to be found and is not
// makes the command fail; so does a right kernel that is found wrong.

#include "power.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../cli.h"
#include "../number.h"
#include "../progress.h"
#include "check_run.h"
#include "power_show.h"

typedef struct power {
    setup setup;
    const char *only;
    int op; // place in op_names; 0: all
    sat_dtype dtype, output;
    text_list depths;
    double seconds, start;
    bool json, power;
    planted planted;
    sat_context *race;
    checker check;
    power_report report;
    progress bar;
} power;

static const char *const op_names[] = {"all",     "matmul",          "sampled", "attention", "attention-backward",
                                       "grouped", "grouped-weights", NULL};

/* ---- one race ---- */

static bool is_over(const power *w) { return w->seconds > 0 && now_seconds() - w->start >= w->seconds; }

// Found: wrong, or stopped where a real kernel would have ended its process. False where no race took place.
static bool run_race(power *w, power_row *r, int64_t depth, found *out) {
    sat_pattern *pattern = NULL;
    sat_problem p;
    sat_race *race = NULL;
    char name[64];
    snprintf(name, sizeof name, "planted_%s", operation_text(r->op));
    for (char *c = name; *c; c++) *c = *c == '-' ? '_' : *c;
    sat_race_options o = {SAT_SIZED(sat_race_options), .fresh = true, .only = name};
    w->planted.context = w->race;
    power_begin(&w->planted, r->fault, r->dtype);
    if (!power_scene(w->race, r->fault, r->op, r->dtype, depth, &pattern, &p))
        return failure("check", "--power: %s: %s", r->fault->name, sat_last_error()), false;
    sat_status status = sat_race_run(w->race, pattern, &p, &o, &race);
    const sat_result *result = status == SAT_OK ? sat_race_at(race, 0) : NULL;
    bool stopped = result && result->verdict == SAT_VERDICT_ERROR && strstr(result->message, "planted:");
    bool ran = result && (result->verdict == SAT_VERDICT_OK || result->verdict == SAT_VERDICT_WRONG || stopped);
    if (ran) *out = result->verdict == SAT_VERDICT_OK ? MISSED : FOUND;
    else failure("check", "--power: %s: %s", r->fault->name, result ? result->message : sat_last_error());
    if (ran && *out == FOUND) snprintf(r->race_message, sizeof r->race_message, "%.180s", result->message);
    sat_race_free(race);
    sat_pattern_free(pattern);
    return ran;
}

/* ---- the grid ---- */

enum { GRID_SEED = 1, FEWER = 4 }; // cases where the grid is not expected to find anything

static bool run_check(power *w, power_row *r) {
    const sat_variant *v = NULL;
    for (size_t i = 0; i < sat_variant_count(w->check.many); i++) {
        const sat_variant *x = sat_variant_at(w->check.many, i);
        if (x->user == &w->planted && x->op == r->op) v = x;
    }
    w->planted.context = w->check.many;
    power_begin(&w->planted, r->fault, r->dtype);
    bool expected = r->fault->check >> r->dtype & 1;
    int64_t cases = expected ? w->report.cases : (w->report.cases + FEWER - 1) / FEWER;
    r->check = MISSED;
    for (int64_t number = 0; v && number < cases; number++) {
        char message[1200] = "";
        case_end end = checker_run(&w->check, v, GRID_SEED, number, message, sizeof message);
        r->cases += end != CASE_NOT_TAKEN;
        if (end != CASE_WRONG) continue;
        snprintf(r->check_message, sizeof r->check_message, "%.250s", message);
        r->check = FOUND;
        break;
    }
    return v != NULL;
}

/* ---- all of them ---- */

// Has the device any variant of its own for this? Without one a race has no exact sums to compare with.
static bool is_there(const power *w, sat_operation op) {
    for (size_t i = 0; i < sat_variant_count(w->race); i++) {
        const sat_variant *v = sat_variant_at(w->race, i);
        if (v->op == op && v->user != &w->planted) return true;
    }
    return false;
}

static bool is_wanted(const power *w, const fault *f, sat_operation op, sat_dtype t) {
    if (!(f->ops >> op & 1) || (w->op && w->op != (int)op) || (w->dtype && w->dtype != t)) return false;
    if ((w->only && !strstr(f->name, w->only)) || !is_there(w, op)) return false;
    bool cpu = sat_context_device(w->race)->backend == SAT_CPU;
    return (cpu || !f->threads) && (f->shows == 0 || power_shows(f, t));
}

// Operands are random, and some faults show in most races only: where an expected one is missed, four more races say
// whether it is found twice at least. The misses are counted.
static bool run_races(power *w, power_row *r, int d) {
    enum { MORE = 4, ENOUGH = 2 };
    int64_t depth = w->report.depth[d];
    if (!run_race(w, r, depth, &r->race[d])) return false;
    if (r->race[d] != MISSED || !power_race_expected(r->fault, r->dtype, depth)) return true;
    for (int i = 0; i < MORE; i++) {
        r->missed[d] += r->race[d] == MISSED;
        if (!run_race(w, r, depth, &r->race[d])) return false;
    }
    r->missed[d] += r->race[d] == MISSED;
    r->race[d] = 1 + MORE - r->missed[d] >= ENOUGH ? FOUND : MISSED;
    return true;
}

static bool run_row(power *w, power_row *r) {
    power_report *p = &w->report;
    for (int d = 0; d < p->depths; d++) {
        progress_show(&w->bar, "check --power: %s %s, %s, depth %" PRId64, operation_text(r->op), dtype_name(r->dtype),
                      r->fault->name, p->depth[d]);
        if (is_over(w)) return true;
        if (r->fault->to && r->fault->to < p->depth[d]) continue;
        if (r->fault->from <= p->depth[d] && !run_races(w, r, d)) return false;
    }
    bool once = r->fault->shows == 0 && r->fault->scene; // the scenario is the race's alone: the grid was run without
    return w->report.cases == 0 || once || is_over(w) || run_check(w, r);
}

static bool run_all(power *w) {
    power_report *p = &w->report;
    bool ok = true;
    p->rows = calloc((size_t)fault_count * 16, sizeof *p->rows);
    if (!p->rows) return failure("check", "not enough memory"), false;
    for (sat_operation op = SAT_MATMUL; op <= SAT_GROUPED_WEIGHTS; op++)
        for (int f = 0; f < fault_count; f++)
            for (sat_dtype t = SAT_F32; t <= SAT_BF16 && ok && !is_over(w); t++) {
                if (!is_wanted(w, &fault_table[f], op, t)) continue;
                p->rows[p->count] = (power_row){.fault = &fault_table[f], .op = op, .dtype = t};
                ok = run_row(w, &p->rows[p->count++]);
            }
    progress_clear(&w->bar);
    return ok;
}

/* ---- set-up ---- */

// The library warns of every wrong variant, and here all of them are.
static void say_nothing(void *user, sat_log_level level, const char *message) {
    (void)user, (void)level, (void)message;
}

static bool open_all(power *w) {
    // One timed round is enough: times do not matter here
    sat_context_options o = {
        SAT_SIZED(sat_context_options),   .device = w->setup.device, .cache_dir = "",   .effort = SAT_EFFORT_QUICK,
        .threads = (int)w->setup.threads, .budget_seconds = 1e-9,    .log = say_nothing};
    sat_status status = sat_context_create(&o, &w->race);
    if (status != SAT_OK) return failure("check", "%s (%s)", sat_last_error(), sat_status_name(status)), false;
    snprintf(w->report.device, sizeof w->report.device, "%s", sat_context_device(w->race)->name);
    if (!checker_open(&w->check, &w->setup, false, false)) return false;
    sat_context *all[] = {w->race, w->check.many, w->check.one};
    for (int i = 0; i < 3; i++)
        for (sat_operation op = SAT_MATMUL; op <= SAT_GROUPED_WEIGHTS; op++)
            if (power_register(all[i], op, &w->planted) != SAT_OK)
                return failure("check", "%s", sat_last_error()), false;
    return true;
}

static void close_all(power *w) {
    checker_close(&w->check);
    sat_context_free(w->race);
    power_free(&w->planted);
    free(w->report.rows);
}

static bool parse_dtype(const char *text, void *to) {
    power *w = to;
    return dtype_parse(text, &w->dtype, &w->output) && w->dtype == w->output;
}

static int take_depths(power *w) {
    static const int64_t usual[] = {16, 256, 4096, 16384};
    power_report *p = &w->report;
    for (int i = 0; i < w->depths.count; i++) {
        if (p->depths == POWER_DEPTHS) return usage_error("check", "--depth: more than %d of them", POWER_DEPTHS);
        if (!parse_whole(w->depths.item[i], 16, 1 << 20, &p->depth[p->depths++]))
            return usage_error("check", "--depth '%s': expected a number from 16 to 1048576", w->depths.item[i]);
    }
    for (int i = 0; w->depths.count == 0 && i < 4; i++) p->depth[p->depths++] = usual[i];
    return EXIT_DONE;
}

static args_outcome parse_power(power *w, int argc, char **argv) {
    const arg list[] = {
        ARG_FLAG_("power", &w->power, "this table"),
        ARG_TEXT_("only", &w->only, "TEXT", "only faults with this in their names"),
        ARG_CHOICE_("op", &w->op, "NAME", op_names, "only this operation"),
        ARG_PARSE_("dtype", w, "NAME", parse_dtype, "f32, f64, f16 or bf16", "only this dtype"),
        ARG_LIST_("depth", &w->depths, "N", "products, or keys, in a race; may be given again (16, 256, 4096, 16384)"),
        ARG_INT_("cases", &w->report.cases, "N", 0, 1e6, "cases of the grid of `check`, at most (120); 0: races alone"),
        ARG_REAL_("seconds", &w->seconds, "S", 0.001, 1e9, "stops after so long"),
        SETUP_ARGS(w->setup),
        ARG_FLAG_("json", &w->json, "prints one JSON object"),
    };
    args a = {.command = "check",
              .usage = "--power [options]",
              .about = "Plants one fault after the other into a right kernel and says who finds it: the race, or the\n"
                       "grid of `check`. Fails where one is missed that is expected to be found.",
              .list = list,
              .count = sizeof list / sizeof *list};
    return args_parse(&a, argc, argv);
}

int power_main(int argc, char **argv) {
    power w = {.setup = {.command = "check"}, .report.cases = POWER_CASES};
    args_outcome parsed = parse_power(&w, argc, argv);
    if (parsed != ARGS_OK) return (int)parsed;
    int code = take_depths(&w);
    if (code != EXIT_DONE) return code;
    w.start = now_seconds();
    w.bar = progress_start(false);
    bool ok = open_all(&w) && run_all(&w);
    w.report.seconds = now_seconds() - w.start;
    if (ok && w.report.count == 0) ok = false, failure("check", "--power: no fault has that name, operation and dtype");
    for (int i = 0; i < w.report.count && ok; i++)
        if (!power_row_good(&w.report, &w.report.rows[i])) code = EXIT_FAILED;
    if (ok) (w.json ? power_json : power_print)(&w.report);
    close_all(&w);
    return ok ? code : EXIT_FAILED;
}
