// sparse_autotune cache: lists, shows, exports, imports, merges and clears what is remembered.

#define _GNU_SOURCE // nftw
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "hash.h"
#include "json.h"
#include "setup.h"
#include "table.h"

typedef struct entry {
    char *key, *text;
    char id[12]; // a short name for the key, which is long
} entry;

typedef struct entries {
    entry *list;
    size_t count, capacity;
    bool lost;
} entries;

typedef struct cache_args {
    setup setup;
    bool json;
    const char *out;
    const char *words[256];
    int count; // words after the action
} cache_args;

/* ---- reading ---- */

static void name_key(const char *key, char id[12]) {
    uint64_t h = hash_text(key);
    snprintf(id, 12, "%08" PRIx32, (uint32_t)(h ^ h >> 32));
}

static bool collect(void *user, const char *key, const char *text) {
    entries *e = user;
    if (e->count == e->capacity) {
        size_t capacity = e->capacity ? 2 * e->capacity : 64;
        entry *grown = realloc(e->list, capacity * sizeof *grown);
        if (!grown) return e->lost = true, false;
        e->list = grown, e->capacity = capacity;
    }
    entry *x = &e->list[e->count];
    x->key = strdup(key), x->text = strdup(text);
    if (!x->key || !x->text) return free(x->key), free(x->text), e->lost = true, false;
    name_key(key, x->id);
    e->count++;
    return true;
}

static int by_key(const void *a, const void *b) { return strcmp(((const entry *)a)->key, ((const entry *)b)->key); }

static void entries_free(entries *e) {
    for (size_t i = 0; i < e->count; i++) free(e->list[i].key), free(e->list[i].text);
    free(e->list);
}

static int report(sat_status status) { return failure("cache", "%s (%s)", sat_last_error(), sat_status_name(status)); }

static int read_entries(sat_context *context, entries *e) {
    sat_status status = sat_cache_visit(context, collect, e);
    if (status != SAT_OK) return report(status);
    if (e->lost) return failure("cache", "not enough memory for the entries");
    if (e->count) qsort(e->list, e->count, sizeof *e->list, by_key);
    return EXIT_DONE;
}

// The value of a tab-separated `name=value` field of a record's line; NULL if it has none.
static const char *field(const char *line, const char *end, const char *name, int *length) {
    size_t n = strlen(name);
    for (const char *s = line; s < end;) {
        const char *tab = memchr(s, '\t', (size_t)(end - s)), *stop = tab ? tab : end;
        if ((size_t)(stop - s) > n && memcmp(s, name, n) == 0 && s[n] == '=')
            return *length = (int)(stop - s - (ptrdiff_t)n - 1), s + n + 1;
        s = stop + 1;
    }
    return NULL;
}

typedef struct summary {
    int results;
    char race[64], variant[128];
    double seconds; // the fastest right one of the newest race; 0: none
    double spread;  // its
    bool busy;      // the machine was, during that race
} summary;

static bool field_is(const char *line, const char *end, const char *name, const char *value) {
    int length;
    const char *found = field(line, end, name, &length);
    return found && (size_t)length == strlen(value) && memcmp(found, value, (size_t)length) == 0;
}

// What may win comes from the variants that there are; a record's own word counts for those that are gone.
static bool may_win(const sat_context *context, const char *key, const char *name, const char *line, const char *end) {
    const sat_variant *v = variant_find(context, name);
    if (!v) return field_is(line, end, "may_win", "1");
    if ((v->flags & SAT_V_NONDETERMINISTIC) && !strstr(key, " nondeterministic")) return false;
    return !(v->flags & SAT_V_DENSE) || strstr(key, " dense ");
}

static void summarise_line(const sat_context *context, const char *key, const char *line, const char *end, summary *s) {
    int race_length, length;
    const char *race = field(line, end, "race", &race_length);
    if (!race || !field_is(line, end, "kind", "raced")) return;
    s->results++;
    char name[64];
    snprintf(name, sizeof name, "%.*s", race_length, race);
    if (strcmp(name, s->race) != 0) snprintf(s->race, sizeof s->race, "%s", name), s->seconds = 0; // oldest come first
    s->busy = field_is(line, end, "busy", "1");
    const char *seconds = field(line, end, "seconds", &length);
    double t = seconds ? strtod(seconds, NULL) : 0;
    const char *variant = field(line, end, "variant", &length);
    if (t <= 0 || !variant || !field_is(line, end, "verdict", "ok") || (s->seconds > 0 && t >= s->seconds)) return;
    char found[sizeof s->variant];
    snprintf(found, sizeof found, "%.*s", length, variant);
    if (!may_win(context, key, found, line, end)) return;
    const char *spread = field(line, end, "spread", &length);
    s->seconds = t, s->spread = spread ? strtod(spread, NULL) : 0;
    memcpy(s->variant, found, sizeof found);
}

static summary summarise(const sat_context *context, const entry *e) {
    summary s = {0};
    for (const char *line = e->text; *line;) {
        const char *end = line + strcspn(line, "\n");
        summarise_line(context, e->key, line, end, &s);
        line = end + (*end == '\n');
    }
    return s;
}

/* ---- actions ---- */

static int list_action(const cache_args *c, sat_context *context) {
    entries e = {0};
    int code = read_entries(context, &e);
    json j = {.file = stdout};
    table t = {.columns = 6};
    if (c->json) {
        json_object(&j, NULL);
        json_int(&j, "version", 1), json_text(&j, "cache", sat_cache_path(context)), json_array(&j, "entries");
    } else if (e.count)
        table_row(&t, (const char *[]){"id", "results", "fastest of the last race", "time", "spread", "key"});
    for (size_t i = 0; i < e.count; i++) {
        summary s = summarise(context, &e.list[i]);
        if (c->json) {
            json_object(&j, NULL);
            json_text(&j, "id", e.list[i].id), json_text(&j, "key", e.list[i].key);
            json_int(&j, "results", s.results), json_text(&j, "fastest", s.seconds > 0 ? s.variant : NULL);
            json_real(&j, "seconds", s.seconds), json_real(&j, "spread", s.spread), json_bool(&j, "busy", s.busy);
            json_end(&j);
            continue;
        }
        char count[24], time[32] = "-", spread[48] = "-";
        snprintf(count, sizeof count, "%d", s.results);
        if (s.seconds > 0) {
            text_seconds(time, sizeof time, s.seconds);
            snprintf(spread, sizeof spread, "+-%.1f %%%s", 100 * s.spread / s.seconds, s.busy ? ", busy" : "");
        }
        table_row(&t,
                  (const char *[]){e.list[i].id, count, s.seconds > 0 ? s.variant : "-", time, spread, e.list[i].key});
    }
    if (c->json) json_end(&j), json_end(&j);
    else {
        table_print(&t, stdout, "");
        printf("%zu %s in %s\n", e.count, e.count == 1 ? "entry" : "entries",
               *sat_cache_path(context) ? sat_cache_path(context) : "memory");
    }
    table_free(&t);
    entries_free(&e);
    return code;
}

static const entry *find_entry(const entries *e, const char *word) {
    for (size_t i = 0; i < e->count; i++)
        if (strcmp(e->list[i].key, word) == 0 || strcmp(e->list[i].id, word) == 0) return &e->list[i];
    failure("cache", "'%s': no entry of that key or id; `sparse_autotune cache list` shows them", word);
    return NULL;
}

static int show_action(const cache_args *c, sat_context *context) {
    if (c->count != 1) return usage_error("cache", "show: expected one key or id, as list shows them");
    entries e = {0};
    int code = read_entries(context, &e);
    const entry *x = code == EXIT_DONE ? find_entry(&e, c->words[1]) : NULL;
    if (x && c->json) {
        json j = {.file = stdout};
        json_object(&j, NULL);
        json_int(&j, "version", 1), json_text(&j, "id", x->id), json_text(&j, "key", x->key);
        json_text(&j, "text", x->text);
        json_end(&j);
    } else if (x) fputs(x->text, stdout);
    entries_free(&e);
    return x ? EXIT_DONE : EXIT_FAILED;
}

static int export_action(const cache_args *c, sat_context *context) {
    if (c->count != 1) return usage_error("cache", "export: expected one file to write");
    sat_status status = sat_cache_export(context, c->words[1]);
    return status == SAT_OK ? EXIT_DONE : report(status);
}

static int import_action(const cache_args *c, sat_context *context) {
    if (c->count != 1) return usage_error("cache", "import: expected one file, as export writes them");
    int64_t count = 0;
    sat_status status = sat_cache_import(context, c->words[1], &count);
    if (status != SAT_OK) return report(status);
    printf("%" PRId64 " %s taken from %s\n", count, count == 1 ? "entry" : "entries", c->words[1]);
    return EXIT_DONE;
}

static int clear_action(const cache_args *c, sat_context *context) {
    if (c->count > 1) return usage_error("cache", "clear: expected one key or id, or none for all of this device");
    entries e = {0};
    const char *key = NULL;
    if (c->count == 1) {
        int code = read_entries(context, &e);
        const entry *x = code == EXIT_DONE ? find_entry(&e, c->words[1]) : NULL;
        if (!x) return entries_free(&e), EXIT_FAILED;
        key = x->key;
    }
    int64_t count = 0;
    sat_status status = sat_cache_clear(context, key, &count);
    entries_free(&e);
    if (status != SAT_OK) return report(status);
    printf("%" PRId64 " %s removed\n", count, count == 1 ? "entry" : "entries");
    return EXIT_DONE;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *place) {
    (void)info, (void)kind, (void)place;
    return remove(path);
}

// Through a cache of its own in a temporary folder: import all, export once. The user's cache is not touched.
static int merge_action(const cache_args *c) {
    if (c->count < 1 || !c->out)
        return usage_error("cache", "merge: expected files to read, and -o with a file to write");
    const char *base = getenv("TMPDIR");
    char folder[512];
    if (snprintf(folder, sizeof folder, "%s/sparse_autotune-XXXXXX", base && *base ? base : "/tmp") >=
            (int)sizeof folder ||
        !mkdtemp(folder))
        return failure("cache", "cannot make a temporary folder %s", folder);
    setup s = c->setup;
    s.cache = folder;
    sat_context *context = setup_open(&s);
    sat_status status = SAT_OK;
    for (int i = 1; context && status == SAT_OK && i <= c->count; i++) {
        int64_t count = 0;
        status = sat_cache_import(context, c->words[i], &count);
        if (status == SAT_OK) printf("%" PRId64 " %s from %s\n", count, count == 1 ? "entry" : "entries", c->words[i]);
    }
    if (context && status == SAT_OK) status = sat_cache_export(context, c->out);
    int code = !context ? EXIT_FAILED : status == SAT_OK ? EXIT_DONE : report(status);
    sat_context_free(context);
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return code;
}

static const struct {
    const char *name;
    int (*run)(const cache_args *c, sat_context *context);
} actions[] = {{"list", list_action},     {"show", show_action},   {"export", export_action},
               {"import", import_action}, {"clear", clear_action}, {"merge", NULL}};

int cache_main(int argc, char **argv) {
    cache_args c = {.setup = {.command = "cache"}};
    const arg list[] = {ARG_TEXT_("o", &c.out, "FILE", "merge: the file to write"), SETUP_ARGS(c.setup),
                        ARG_FLAG_("json", &c.json, "list, show: prints one JSON object")};
    args a = {
        .command = "cache",
        .usage = "list | show KEY | export FILE | import FILE | merge FILE... -o OUT | clear [KEY]",
        .about =
            "Looks after what is remembered. KEY is an entry's key, or the id that list shows. Export writes the\n"
            "entries of all devices into one file; import keeps what is there and adds what is not; clear without\n"
            "a key removes every entry of this device.",
        .list = list,
        .count = sizeof list / sizeof *list,
        .most_words = (int)(sizeof c.words / sizeof *c.words),
        .words = c.words};
    args_outcome parsed = args_parse(&a, argc, argv);
    if (parsed != ARGS_OK) return (int)parsed;
    const char *word = a.word_count ? c.words[0] : "list";
    c.count = a.word_count ? a.word_count - 1 : 0;
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++) {
        if (strcmp(word, actions[i].name) != 0) continue;
        if (!actions[i].run) return merge_action(&c);
        if (actions[i].run == list_action && c.count) return usage_error("cache", "list: unexpected '%s'", c.words[1]);
        sat_context *context = setup_open(&c.setup);
        if (!context) return EXIT_FAILED;
        int code = actions[i].run(&c, context);
        sat_context_free(context);
        return code;
    }
    return usage_error("cache", "unknown action '%s': expected list, show, export, import, merge or clear", word);
}
