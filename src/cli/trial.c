// Both sides of a trial. The parent calls this program again with the race's own words and the hidden option --trial;
// the child races that one variant alone, remembering nothing, and reports its verdict in a line.

#include "trial.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "isolate.h"
#include "progress.h"

/* ---- the child ---- */

static int list_candidates(const setup *s, const spec *problem, sat_context *context, int fd) {
    size_t before = sat_variant_count(context);
    for (size_t i = 0; i < before; i++) {
        const sat_variant *v = sat_variant_at(context, i);
        int from = v->flags & SAT_V_REFERENCE ? CANDIDATE_TRUSTED : CANDIDATE_BUILT_IN;
        if ((int)v->op == problem->op + 1) isolate_report(fd, "candidate %d %s", from, v->name);
    }
    for (int i = 0; i < s->plugins.count; i++) {
        char message[1024];
        if (!setup_plugin(context, s->plugins.item[i], message, sizeof message)) {
            isolate_report(fd, "problem %s", message);
            return EXIT_FAILED;
        }
        for (; before < sat_variant_count(context); before++)
            if ((int)sat_variant_at(context, before)->op == problem->op + 1)
                isolate_report(fd, "candidate %d %s", i, sat_variant_at(context, before)->name);
    }
    isolate_report(fd, "done");
    return EXIT_DONE;
}

static void report_result(sat_status status, const sat_race *race, int fd) {
    const sat_result *r = race ? sat_race_at(race, 0) : NULL;
    if (status == SAT_UNSUPPORTED || status == SAT_NOT_FOUND || (status == SAT_OK && !r))
        isolate_report(fd, "result unsupported ");
    else if (status != SAT_OK) isolate_report(fd, "result error %s (%s)", sat_last_error(), sat_status_name(status));
    else isolate_report(fd, "result %s %s", verdict_text(r->verdict), r->message);
    isolate_report(fd, "done");
}

static int try_one(spec *problem, sat_context *context, const char *name, int fd) {
    blocks b;
    char message[256];
    spec_dtype(problem, sat_context_device(context));
    if (!spec_blocks(problem, &b, message, sizeof message)) {
        isolate_report(fd, "problem %s", message);
        return EXIT_FAILED;
    }
    sat_pattern *pattern = NULL;
    sat_race *race = NULL;
    sat_problem p = spec_problem(problem, &b);
    sat_race_options o = {SAT_SIZED(sat_race_options), .fresh = true, .only = name};
    sat_status status = spec_pattern(context, problem, &b, &pattern);
    if (status == SAT_OK) status = sat_race_run(context, pattern, &p, &o, &race);
    report_result(status, race, fd);
    sat_race_free(race);
    sat_pattern_free(pattern);
    blocks_free(&b);
    return EXIT_DONE;
}

int trial_child(const setup *s, spec *problem, const char *name, int fd) {
    setup alone = *s;
    alone.cache = "", alone.effort = SAT_EFFORT_QUICK, alone.budget = 0.2;
    sat_context *context = setup_open(&alone);
    if (!context) {
        isolate_report(fd, "problem %s", sat_last_error());
        return EXIT_FAILED;
    }
    int code = EXIT_FAILED;
    if (!*name) code = list_candidates(&alone, problem, context, fd);
    else if (setup_plugins(&alone, context)) code = try_one(problem, context, name, fd);
    sat_context_free(context);
    return code;
}

/* ---- the parent ---- */

typedef struct answer {
    trials *t;
    char problem[1024];
    char verdict[32], message[192];
} answer;

static void take_line(void *user, const char *line) {
    answer *a = user;
    int plugin, at = 0;
    if (sscanf(line, "candidate %d %n", &plugin, &at) == 1 && at > 0 && a->t->count < EXCLUDED_MOST) {
        candidate *c = &a->t->list[a->t->count++];
        c->plugin = plugin, c->in = true;
        snprintf(c->name, sizeof c->name, "%s", line + at);
    } else if (strncmp(line, "problem ", 8) == 0) {
        snprintf(a->problem, sizeof a->problem, "%s", line + 8);
    } else if (strncmp(line, "result ", 7) == 0) {
        size_t length = strcspn(line + 7, " ");
        snprintf(a->verdict, sizeof a->verdict, "%.*s", (int)length, line + 7);
        snprintf(a->message, sizeof a->message, "%s", line + 7 + length + (line[7 + length] == ' '));
    }
}

static isolate_end run_child(const trial_request *q, const char *name, answer *a, char *message, size_t capacity) {
    char block[64], trial[160];
    snprintf(block, sizeof block, "--block=%lldx%lld", (long long)q->block_rows, (long long)q->block_cols);
    snprintf(trial, sizeof trial, "--trial=%s", name);
    const char **words = calloc((size_t)q->argc + 4, sizeof *words);
    if (!words) {
        snprintf(message, capacity, "no memory for its trial");
        return ISOLATE_UNABLE;
    }
    words[0] = q->command;
    for (int i = 0; i < q->argc; i++) words[i + 1] = q->argv[i];
    words[q->argc + 1] = block, words[q->argc + 2] = trial;
    isolate_job job = {.words = words, .limit_seconds = q->limit_seconds, .line = take_line, .user = a};
    isolate_end end = isolate_run(&job, message, capacity);
    free(words);
    return end;
}

static void exclude(trials *t, candidate *c, sat_verdict verdict, const char *message) {
    c->in = false;
    excluded *e = &t->out[t->out_count++];
    e->verdict = verdict;
    snprintf(e->variant, sizeof e->variant, "%s", c->name);
    snprintf(e->message, sizeof e->message, "%.191s", message);
}

static void try_candidate(const trial_request *q, trials *t, candidate *c) {
    answer a = {.t = t};
    char message[192];
    isolate_end end = run_child(q, c->name, &a, message, sizeof message);
    if (end != ISOLATE_DONE) exclude(t, c, SAT_VERDICT_ERROR, *a.problem ? a.problem : message);
    else if (strcmp(a.verdict, "unsupported") == 0) c->in = false;
    else if (strcmp(a.verdict, "wrong") == 0) exclude(t, c, SAT_VERDICT_WRONG, a.message);
    else if (strcmp(a.verdict, "error") == 0) exclude(t, c, SAT_VERDICT_ERROR, a.message);
}

// Whether a candidate has this name of the list `only`; the names are `length` long, not ended.
static bool is_listed(const trials *t, const char *name, size_t length) {
    for (int i = 0; i < t->count; i++)
        if (strlen(t->list[i].name) == length && memcmp(t->list[i].name, name, length) == 0) return true;
    return false;
}

static int check_only(const trial_request *q, const trials *t) {
    for (const char *p = q->only; p && *p;) {
        size_t length = strcspn(p, ",");
        if (length > 0 && !is_listed(t, p, length))
            return usage_error(q->command, "--only '%.*s': no variant of that name does this operation", (int)length,
                               p);
        p += length + (p[length] == ',');
    }
    return EXIT_DONE;
}

int trials_run(const trial_request *q, trials *t) {
    *t = (trials){0};
    answer a = {.t = t};
    char message[192];
    if (run_child(q, "", &a, message, sizeof message) != ISOLATE_DONE)
        return failure(q->command, "%s", *a.problem ? a.problem : message);
    int code = check_only(q, t);
    if (code != EXIT_DONE) return code;
    progress p = progress_start(false);
    int done = 0, total = 0;
    int least = q->everyone ? CANDIDATE_BUILT_IN : 0; // of `plugin`, for those that are tried
    for (int i = 0; i < t->count; i++) total += t->list[i].plugin >= least;
    for (int i = 0; i < t->count; i++) {
        candidate *c = &t->list[i];
        if (q->only && !name_in_list(q->only, c->name)) c->in = false;
        if (!c->in || c->plugin < least) continue;
        progress_show(&p, "trial %d of %d: %s", ++done, total, c->name);
        try_candidate(q, t, c);
    }
    progress_clear(&p);
    return EXIT_DONE;
}
