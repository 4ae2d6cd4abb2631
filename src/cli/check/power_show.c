// The table of power: a line for each fault and operation, in each dtype where the race finds it.

#include "power_show.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "../json.h"
#include "../number.h"
#include "../setup.h"
#include "../table.h"

enum { DTYPES = 4 };

bool power_shows(const fault *f, sat_dtype t) { return f->shows >> t & 1; }

bool power_race_expected(const fault *f, sat_dtype t, int64_t depth) {
    return f->race >> t & 1 && (f->deepest[t] == 0 || depth <= f->deepest[t]);
}

static bool check_expected(const power_report *p, const power_row *r) {
    return r->fault->check >> r->dtype & 1 && p->cases >= POWER_CASES;
}

bool power_row_good(const power_report *p, const power_row *r) {
    bool fault = power_shows(r->fault, r->dtype);
    for (int d = 0; d < p->depths; d++) {
        if (!fault && r->race[d] == FOUND) return false; // a false alarm
        if (r->race[d] == MISSED && power_race_expected(r->fault, r->dtype, p->depth[d])) return false;
    }
    if (!fault) return r->check != FOUND;
    return r->check != MISSED || !check_expected(p, r);
}

static int count_of(const power_report *p, const power_row *r, found what) {
    int count = 0;
    for (int d = 0; d < p->depths; d++) count += r->race[d] == what;
    return count;
}

static bool found_by_race(const power_report *p, const power_row *r) {
    return count_of(p, r, MISSED) == 0 && count_of(p, r, FOUND) > 0;
}

/* ---- the table ---- */

// "all", "no", or the depths that it misses.
static void race_cell(const power_report *p, const power_row *r, char *out, size_t capacity) {
    int found = count_of(p, r, FOUND), missed = count_of(p, r, MISSED), at = 0;
    if (!power_row_good(p, r)) at = snprintf(out, capacity, "!");
    if (found + missed == 0) snprintf(out, capacity, "-");
    else if (missed == 0) {
        for (int d = 0; d < p->depths; d++) missed += r->missed[d];
        at += snprintf(out + at, capacity - (size_t)at, "all");
        if (missed > 0) snprintf(out + at, capacity - (size_t)at, ", missed %d", missed);
    } else if (found == 0) snprintf(out + at, capacity - (size_t)at, "no");
    else {
        at += snprintf(out + at, capacity - (size_t)at, "not");
        for (int d = 0; d < p->depths && (size_t)at < capacity; d++)
            if (r->race[d] == MISSED) at += snprintf(out + at, capacity - (size_t)at, " %" PRId64, p->depth[d]);
    }
}

// "all", "no", or the dtypes in which `check` finds it.
static void check_cell(const power_row *rows, int count, char *out, size_t capacity) {
    int found = 0, missed = 0;
    size_t at = 0;
    out[0] = 0;
    for (int i = 0; i < count; i++) {
        found += rows[i].check == FOUND, missed += rows[i].check == MISSED;
        if (rows[i].check == FOUND && at < capacity)
            at += (size_t)snprintf(out + at, capacity - at, "%s%s", at ? " " : "", dtype_name(rows[i].dtype));
    }
    if (missed == 0 || found == 0) snprintf(out, capacity, "%s", found ? "all" : missed ? "no" : "-");
}

// What finds it, the race or `check`, and why not both.
static void remark(const power_report *p, const power_row *rows, int count, char *out, size_t capacity) {
    int by_race = 0, by_check = 0, neither = 0, bad = 0, ran = 0;
    const fault *f = rows[0].fault;
    for (int i = 0; i < count; i++) {
        bool race = found_by_race(p, &rows[i]), check = rows[i].check == FOUND;
        if (rows[i].check == NOT_RUN && count_of(p, &rows[i], FOUND) + count_of(p, &rows[i], MISSED) == 0) continue;
        ran++, by_race += race, by_check += !race && check, neither += !race && !check;
        bad += !power_row_good(p, &rows[i]);
    }
    const char *who = !f->shows         ? (bad ? "" : "right, and found right")
                      : by_race == ran  ? "the race"
                      : neither == ran  ? "neither"
                      : by_check == ran ? "check alone"
                      : neither == 0    ? "the race, or check"
                                        : "not everywhere";
    if (ran == 0) who = "";
    bool explain = f->why && (by_race < ran || f->check != f->shows);
    snprintf(out, capacity, "%s%s%s%s%s", bad ? (f->shows ? "WORSE THAN EXPECTED: " : "FALSE ALARM") : "", who,
             explain ? " (" : "", explain ? f->why : "", explain ? ")" : "");
}

static int group_size(const power_report *p, int first) {
    int n = 1;
    while (first + n < p->count && p->rows[first + n].fault == p->rows[first].fault &&
           p->rows[first + n].op == p->rows[first].op)
        n++;
    return n;
}

static void print_messages(const power_report *p) {
    for (int i = 0; i < p->count; i++) {
        const power_row *r = &p->rows[i];
        if (power_row_good(p, r)) continue;
        printf("NOT AS EXPECTED: %s, %s %s; race: %s; check: %s\n", r->fault->name, operation_text(r->op),
               dtype_name(r->dtype), *r->race_message ? r->race_message : "found nothing",
               *r->check_message ? r->check_message : "found nothing");
    }
}

void power_print(const power_report *p) {
    table t = {.columns = 8};
    int by_race = 0, by_check = 0, neither = 0, bad = 0, faults = 0, checked = 0;
    table_row(&t, (const char *[]){"fault", "operation", "race f32", "f64", "f16", "bf16", "check", "found by"});
    for (int first = 0, n; first < p->count; first += n) {
        const power_row *rows = &p->rows[first];
        char race[DTYPES][64] = {"-", "-", "-", "-"}, check[64], text[256];
        n = group_size(p, first);
        for (int i = 0; i < n; i++) {
            race_cell(p, &rows[i], race[rows[i].dtype - SAT_F32], sizeof race[0]);
            bad += !power_row_good(p, &rows[i]);
            checked += rows[i].check != NOT_RUN;
            if (!power_shows(rows[i].fault, rows[i].dtype)) continue;
            bool raced = found_by_race(p, &rows[i]);
            faults++, by_race += raced, by_check += !raced && rows[i].check == FOUND;
            neither += !raced && rows[i].check != FOUND;
        }
        check_cell(rows, n, check, sizeof check);
        remark(p, rows, n, text, sizeof text);
        table_row(&t, (const char *[]){rows[0].fault->name, operation_text(rows[0].op), race[0], race[1], race[2],
                                       race[3], check, text});
    }
    printf("planted faults on %s; races at depths", p->device);
    for (int d = 0; d < p->depths; d++) printf("%s%" PRId64, d ? ", " : " ", p->depth[d]);
    printf("\n");
    table_print(&t, stdout, "  ");
    table_free(&t);
    print_messages(p);
    printf("%d faults, each in one operation and dtype: the race finds %d at every depth", faults, by_race);
    if (checked) printf(", check alone %d, neither %d", by_check, neither);
    printf("; %d not as expected; %.1f s\n", bad, p->seconds);
}

/* ---- JSON ---- */

static void row_json(json *j, const power_report *p, const power_row *r) {
    json_object(j, NULL);
    json_text(j, "fault", r->fault->name);
    json_text(j, "op", operation_text(r->op));
    json_text(j, "dtype", dtype_name(r->dtype));
    json_bool(j, "is_fault", power_shows(r->fault, r->dtype));
    json_array(j, "race");
    for (int d = 0; d < p->depths; d++) {
        if (r->race[d] == NOT_RUN) continue;
        json_object(j, NULL);
        json_int(j, "depth", p->depth[d]);
        json_bool(j, "found", r->race[d] == FOUND);
        json_int(j, "missed", r->missed[d]);
        json_bool(j, "expected", power_race_expected(r->fault, r->dtype, p->depth[d]));
        json_end(j);
    }
    json_end(j);
    if (r->check != NOT_RUN) {
        json_object(j, "check");
        json_bool(j, "found", r->check == FOUND);
        json_bool(j, "expected", check_expected(p, r));
        json_int(j, "cases", r->cases);
        json_end(j);
    }
    const char *rest = r->check == FOUND ? "check" : r->check == MISSED ? "neither" : NULL;
    json_text(j, "found_by", found_by_race(p, r) ? "race" : rest);
    json_text(j, "why", r->fault->why);
    json_bool(j, "ok", power_row_good(p, r));
    json_text(j, "race_message", *r->race_message ? r->race_message : NULL);
    json_text(j, "check_message", *r->check_message ? r->check_message : NULL);
    json_end(j);
}

void power_json(const power_report *p) {
    json j = {.file = stdout};
    int bad = 0;
    for (int i = 0; i < p->count; i++) bad += !power_row_good(p, &p->rows[i]);
    json_object(&j, NULL);
    json_int(&j, "version", 1);
    json_text(&j, "device", p->device);
    json_real(&j, "seconds", p->seconds);
    json_int(&j, "not_as_expected", bad);
    json_array(&j, "rows");
    for (int i = 0; i < p->count; i++) row_json(&j, p, &p->rows[i]);
    json_end(&j);
    json_end(&j);
}
