// A race for people and for programs. Rates count the arithmetic on stored blocks, over the median time.

#include "race_show.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "number.h"
#include "setup.h"
#include "table.h"

const char *verdict_text(sat_verdict v) {
    switch (v) {
    case SAT_VERDICT_OK: return "ok";
    case SAT_VERDICT_WRONG: return "wrong";
    case SAT_VERDICT_ERROR: return "error";
    case SAT_VERDICT_MEMORY: return "memory";
    default: return "skipped";
    }
}

static size_t result_count(const outcome *o) { return o->race ? sat_race_count(o->race) : 0; }

static const sat_result *best_of(const outcome *o) { return o->race ? sat_race_best(o->race) : NULL; }

static uint32_t flags_of(const outcome *o, const char *name) {
    const sat_variant *v = variant_find(o->context, name);
    return v ? v->flags : 0;
}

// The fastest right dense baseline that was timed in this race; NULL if there was none.
static const sat_result *dense_baseline(const outcome *o) {
    const sat_result *best = NULL;
    for (size_t i = 0; i < result_count(o); i++) {
        const sat_result *r = sat_race_at(o->race, i);
        if (r->verdict != SAT_VERDICT_OK || r->seconds <= 0 || !(flags_of(o, r->variant) & SAT_V_DENSE)) continue;
        if (!best || r->seconds < best->seconds) best = r;
    }
    return best;
}

static void describe(const outcome *o, const sat_result *r, char *name, size_t name_size, char *check, size_t size) {
    bool library = flags_of(o, r->variant) & SAT_V_LIBRARY;
    if (library) snprintf(name, name_size, "%s (%s)", r->variant, r->revision);
    else snprintf(name, name_size, "%s", r->variant);
    char t[32];
    if (r->verdict == SAT_VERDICT_OK) {
        int at = snprintf(check, size, "ok   %.1e%s", r->error, r->may_win ? "" : "   a rival to show, cannot win");
        if (r->threads) snprintf(check + at, size - (size_t)at, "   on %d thread%s", r->threads, &"s"[r->threads == 1]);
    } else if (r->verdict == SAT_VERDICT_SKIPPED && *r->message) snprintf(check, size, "skipped   %s", r->message);
    else if (r->verdict == SAT_VERDICT_SKIPPED)
        snprintf(check, size, "skipped   estimated %s", text_seconds(t, sizeof t, r->estimate_seconds));
    else if (r->verdict == SAT_VERDICT_MEMORY) snprintf(check, size, "skipped   %s", r->message);
    else snprintf(check, size, "%s   %s", r->verdict == SAT_VERDICT_WRONG ? "WRONG" : "ERROR", r->message);
}

// How far the quartiles are from each other, half of it, beside the median.
static const char *text_spread(char *out, size_t size, double spread, double seconds, int runs) {
    if (runs < 2) snprintf(out, size, "one run");
    else snprintf(out, size, "+-%.*f %%", spread < 0.0995 * seconds ? 1 : 0, 100 * spread / seconds);
    return out;
}

static void add_results(const outcome *o, table *t) {
    for (size_t i = 0; i < result_count(o); i++) {
        const sat_result *r = sat_race_at(o->race, i);
        char name[192], time[32] = "-", spread[32] = "-", rate[32] = "-", check[256];
        describe(o, r, name, sizeof name, check, sizeof check);
        if (r->seconds > 0 && r->verdict == SAT_VERDICT_OK) {
            text_seconds(time, sizeof time, r->seconds);
            text_spread(spread, sizeof spread, r->spread, r->seconds, r->runs);
            text_rate(rate, sizeof rate, o->info.flops / r->seconds);
        }
        table_row(t, (const char *[]){name, time, spread, rate, check});
    }
    for (int i = 0; i < o->out_count; i++) {
        char check[256];
        snprintf(check, sizeof check, "%s   %s", o->out[i].verdict == SAT_VERDICT_WRONG ? "WRONG" : "ERROR",
                 o->out[i].message);
        table_row(t, (const char *[]){o->out[i].variant, "-", "-", "-", check});
    }
}

// Within the noise a fixed order decides, so the winner need not have the least time. Says which variant it tied with.
static const sat_result *faster_but_tied(const outcome *o, const sat_result *best) {
    const sat_result *fastest = best;
    for (size_t i = 0; i < result_count(o); i++) {
        const sat_result *r = sat_race_at(o->race, i);
        if (r->verdict == SAT_VERDICT_OK && r->may_win && r->seconds > 0 && r->seconds < fastest->seconds) fastest = r;
    }
    return fastest == best ? NULL : fastest;
}

static void print_best(const outcome *o) {
    const sat_result *best = best_of(o), *dense = dense_baseline(o);
    if (!best) {
        printf("  best: none, nothing that may win gave a right result\n");
        return;
    }
    int raced = o->out_count;
    for (size_t i = 0; i < result_count(o); i++) raced += sat_race_at(o->race, i)->verdict != SAT_VERDICT_SKIPPED;
    printf("  best: %s", best->variant);
    const sat_result *tied = faster_but_tied(o, best);
    if (tied) printf(" (a tie with %s)", tied->variant);
    if (dense && strcmp(dense->variant, best->variant) != 0 && best->seconds > 0) {
        double ratio = dense->seconds / best->seconds;
        if (ratio >= 1) printf(", %.1fx faster than dense", ratio);
        else printf(", at %.2f of dense's speed", ratio);
    }
    printf(", %d variant%s", raced, raced == 1 ? "" : "s");
    char t[32];
    if (o->info.cached) printf(", from the cache, no tuning\n");
    else
        printf(" in %s, %s\n", text_seconds(t, sizeof t, o->info.seconds),
               o->remembered ? "remembered" : "not remembered");
    if (o->info.disturbed)
        printf("  the machine was busy: these times are too long%s\n",
               o->remembered ? "; this is raced again, at most twice, when it is needed and the machine is quiet" : "");
}

void race_print(const outcome *o) {
    char title[512];
    spec_title(o->spec, o->blocks, title, sizeof title);
    printf("%s, on %s\n", title, sat_context_device(o->context)->name);
    table t = {.columns = 5};
    table_row(&t, (const char *[]){"variant", "time", "spread",
                                   spec_is_grouped(o->spec) ? "rate" : "rate on stored blocks", "check"});
    add_results(o, &t);
    table_print(&t, stdout, "  ");
    table_free(&t);
    print_best(o);
    fflush(stdout);
}

// What no program can be faster than, by the device's rates: the arithmetic, or the bytes that must move. In runs back
// to back, what fits into a GPU's L2 need not come from memory again.
static double floor_seconds(const outcome *o) {
    const sat_device *d = sat_context_device(o->context);
    bool tf32 = o->spec->a_dtype == SAT_F32 && (o->spec->flags & SAT_ALLOW_TF32);
    double arithmetic = o->info.flops / (tf32 ? d->tf32_rate : d->flop_rate[o->spec->a_dtype]);
    if (o->cold || d->backend == SAT_CPU) return fmax(arithmetic, o->info.bytes / d->memory_rate);
    double beyond = fmax(0, o->info.bytes - (double)d->l2_bytes) / d->memory_rate;
    return fmax(arithmetic, fmax(beyond, o->info.bytes / d->l2_rate));
}

static int by_count(const void *x, const void *y) {
    int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
    return (a > b) - (a < b);
}

static void rows_json(json *j, const blocks *b) {
    int64_t *count = calloc((size_t)b->grid_rows + 1, sizeof *count);
    if (!count || !b->grid_rows) return free(count);
    for (int64_t i = 0; i < b->grid_rows; i++) count[i] = b->row_ptr[i + 1] - b->row_ptr[i];
    qsort(count, (size_t)b->grid_rows, sizeof *count, by_count);
    json_object(j, "blocks_a_row");
    json_int(j, "least", count[0]);
    json_int(j, "median", count[b->grid_rows / 2]);
    json_int(j, "most", count[b->grid_rows - 1]);
    json_end(j);
    free(count);
}

static void attention_json(json *j, const spec *s) {
    json_int(j, "heads", s->heads), json_int(j, "kv_heads", s->kv_heads ? s->kv_heads : s->heads);
    json_int(j, "dim", s->k), json_int(j, "value_dim", s->value_dim ? s->value_dim : s->k);
    json_bool(j, "causal", s->causal), json_int(j, "window", s->window);
    json_int(j, "sequences", s->sequences), json_bool(j, "head_masks", s->head_masks);
    json_bool(j, "batch_masks", s->item_masks);
    json_bool(j, "lse", s->lse), json_real(j, "softcap", s->softcap), json_bool(j, "sinks", s->sinks);
}

static void grouped_json(json *j, const spec *s) {
    json_int(j, "groups", s->groups), json_int(j, "top_k", s->top_k);
    json_real(j, "skew", spec_skew(s));
    json_text(j, "offsets", offset_names[s->offsets]);
}

static void blocks_json(json *j, const blocks *b) {
    double all = (double)b->grid_rows * (double)b->grid_cols;
    json_array(j, "block");
    json_int(j, NULL, b->block_rows), json_int(j, NULL, b->block_cols);
    json_end(j);
    json_int(j, "stored_blocks", b->count);
    json_real(j, "density", all > 0 ? (double)b->count / all : 0);
}

static void problem_json(json *j, const outcome *o) {
    const spec *s = o->spec;
    const blocks *b = o->blocks;
    bool grouped = spec_is_grouped(s);
    json_object(j, "problem");
    json_text(j, "op", operation_names[s->op]);
    json_int(j, "m", s->m), json_int(j, "n", s->n), json_int(j, "k", s->k);
    if (!grouped) blocks_json(j, b);
    json_text(j, "dtype", dtype_pair_name(s->a_dtype, s->c_dtype));
    json_real(j, "flops", o->info.flops);
    json_real(j, "bytes", o->info.bytes);
    json_int(j, "batch", s->batch);
    if (spec_is_attention(s)) attention_json(j, s);
    if (grouped) grouped_json(j, s);
    else json_bool(j, "transpose", s->transpose);
    json_text(j, "measure", o->cold ? "cold" : "warm");
    json_real(j, "floor_seconds", floor_seconds(o));
    rows_json(j, b);
    json_text(j, "key", o->info.key);
    json_end(j);
}

static void result_json(json *j, const outcome *o, const sat_result *r) {
    bool timed = r->seconds > 0;
    json_object(j, NULL);
    json_text(j, "variant", r->variant);
    json_text(j, "verdict", verdict_text(r->verdict));
    if (timed) json_real(j, "seconds", r->seconds);
    else json_text(j, "seconds", NULL);
    if (timed) json_real(j, "flops_per_second", o->info.flops / r->seconds);
    else json_text(j, "flops_per_second", NULL);
    if (r->verdict == SAT_VERDICT_OK) json_real(j, "error", r->error);
    else json_text(j, "error", NULL);
    json_text(j, "message", r->message);
    json_text(j, "revision", r->revision);
    json_bool(j, "may_win", r->may_win);
    json_bool(j, "dense", flags_of(o, r->variant) & SAT_V_DENSE);
    json_bool(j, "library", flags_of(o, r->variant) & SAT_V_LIBRARY);
    json_real(j, "spread", r->spread);
    if (r->least_seconds > 0) json_real(j, "least_seconds", r->least_seconds);
    else json_text(j, "least_seconds", NULL);
    json_int(j, "runs", r->runs);
    json_int(j, "threads", r->threads);
    json_real(j, "estimate_seconds", r->estimate_seconds);
    json_real(j, "prepare_seconds", r->prepare_seconds);
    json_int(j, "workspace_bytes", (int64_t)r->workspace_bytes);
    json_end(j);
}

static void excluded_json(json *j, const outcome *o, const excluded *e) {
    sat_result r = {.verdict = e->verdict};
    const sat_variant *v = variant_find(o->context, e->variant);
    snprintf(r.variant, sizeof r.variant, "%s", e->variant);
    snprintf(r.message, sizeof r.message, "%s", e->message);
    if (v) snprintf(r.revision, sizeof r.revision, "%s", v->revision);
    result_json(j, o, &r);
}

void race_json(json *j, const char *key, const outcome *o) {
    const sat_device *d = sat_context_device(o->context);
    const sat_result *best = best_of(o);
    json_object(j, key);
    json_int(j, "version", 1);
    problem_json(j, o);
    json_object(j, "device");
    json_text(j, "backend", backend_text(d->backend));
    json_text(j, "name", d->name);
    if (d->backend == SAT_CPU) json_int(j, "threads", d->threads);
    else json_int(j, "multiprocessors", d->multiprocessors);
    json_bool(j, "measured", d->measured);
    json_end(j);
    json_bool(j, "cached", o->info.cached);
    json_real(j, "tuning_seconds", o->info.seconds);
    json_int(j, "peak_bytes", (int64_t)o->info.peak_bytes);
    json_bool(j, "remembered", o->remembered);
    json_bool(j, "busy", o->info.disturbed);
    json_text(j, "best", best ? best->variant : NULL);
    json_array(j, "results");
    for (size_t i = 0; i < result_count(o); i++) result_json(j, o, sat_race_at(o->race, i));
    for (int i = 0; i < o->out_count; i++) excluded_json(j, o, &o->out[i]);
    json_end(j);
    json_end(j);
}
