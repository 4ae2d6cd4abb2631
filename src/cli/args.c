// Options, messages and --help from one table a subcommand.

#include "args.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void say(const char *command, const char *format, va_list list) {
    fflush(stdout);
    fprintf(stderr, "sparse_autotune%s%s: ", *command ? " " : "", command);
    vfprintf(stderr, format, list);
    putc('\n', stderr);
}

int usage_error(const char *command, const char *format, ...) {
    va_list list;
    va_start(list, format);
    say(command, format, list);
    va_end(list);
    fprintf(stderr, "Try `sparse_autotune%s%s --help`.\n", *command ? " " : "", command);
    return EXIT_USAGE;
}

int failure(const char *command, const char *format, ...) {
    va_list list;
    va_start(list, format);
    say(command, format, list);
    va_end(list);
    return EXIT_FAILED;
}

void notice(const char *command, const char *format, ...) {
    va_list list;
    va_start(list, format);
    say(command, format, list);
    va_end(list);
}

bool parse_whole(const char *text, int64_t least, int64_t most, int64_t *value) {
    if (!isdigit((unsigned char)text[0]) && !(text[0] == '-' && isdigit((unsigned char)text[1]))) return false;
    char *end;
    errno = 0;
    long long x = strtoll(text, &end, 10);
    if (errno || *end || x < least || x > most) return false;
    *value = x;
    return true;
}

bool parse_real(const char *text, double *value) {
    if (!*text || isspace((unsigned char)text[0])) return false;
    char *end;
    double x = strtod(text, &end);
    if (*end || !isfinite(x)) return false;
    *value = x;
    return true;
}

static int bad_value(const args *a, const arg *o, const char *text) {
    char expected[512] = "";
    if (o->kind == ARG_INT) snprintf(expected, sizeof expected, "a whole number from %.0f to %.0f", o->least, o->most);
    else if (o->kind == ARG_REAL && o->most == HUGE_VAL && o->least == -HUGE_VAL)
        snprintf(expected, sizeof expected, "a finite number");
    else if (o->kind == ARG_REAL && o->most == HUGE_VAL)
        snprintf(expected, sizeof expected, "a finite number of at least %g", o->least);
    else if (o->kind == ARG_REAL) snprintf(expected, sizeof expected, "a number from %g to %g", o->least, o->most);
    else if (o->kind == ARG_PARSE) snprintf(expected, sizeof expected, "%s", o->expected);
    else if (o->kind == ARG_CHOICE) {
        size_t at = (size_t)snprintf(expected, sizeof expected, "one of");
        for (int i = 0; o->choices[i]; i++)
            at += (size_t)snprintf(expected + at, sizeof expected - at, "%s %s", i ? "," : "", o->choices[i]);
    } else snprintf(expected, sizeof expected, "%s", o->value);
    return usage_error(a->command, "%s%s '%s': expected %s", o->name[1] ? "--" : "-", o->name, text, expected);
}

static bool take_value(const arg *o, const char *text) {
    switch (o->kind) {
    case ARG_INT: {
        const double edge = 0x1p63;
        int64_t least = o->least <= -edge ? INT64_MIN : (int64_t)o->least;
        return parse_whole(text, least, o->most >= edge ? INT64_MAX : (int64_t)o->most, o->to);
    }
    case ARG_REAL: {
        double x;
        if (!parse_real(text, &x) || x < o->least || x > o->most) return false;
        *(double *)o->to = x;
        return true;
    }
    case ARG_TEXT:
        if (!*text) return false;
        *(const char **)o->to = text;
        return true;
    case ARG_LIST: {
        text_list *list = o->to;
        if (!*text || list->count == TEXT_LIST_MOST) return false;
        list->item[list->count++] = text;
        return true;
    }
    case ARG_CHOICE:
        for (int i = 0; o->choices[i]; i++)
            if (strcmp(text, o->choices[i]) == 0) return *(int *)o->to = i, true;
        return false;
    default: return o->parse(text, o->to);
    }
}

// How many letters must change; for words of an option's length, so a small table on the stack does.
static int distance(const char *a, size_t n, const char *b) {
    int row[64];
    size_t m = strlen(b);
    if (m >= 63 || n >= 63) return 99;
    for (size_t j = 0; j <= m; j++) row[j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int corner = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            int best = corner + (a[i - 1] != b[j - 1]);
            corner = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[m];
}

static int unknown(const args *a, const char *word, size_t length) {
    const arg *near = NULL;
    int least = 3;
    for (size_t i = 0; i < a->count; i++) {
        int d = a->list[i].help ? distance(word + 2, length - 2, a->list[i].name) : 99;
        if (d < least) least = d, near = &a->list[i];
    }
    if (near)
        return usage_error(a->command, "unknown option '%.*s'; is %s%s meant?", (int)length, word,
                           near->name[1] ? "--" : "-", near->name);
    return usage_error(a->command, "unknown option '%.*s'", (int)length, word);
}

static void print_option(const arg *o) {
    char left[64] = "";
    if (!o->name[1]) snprintf(left, sizeof left, "-%s%s%s", o->name, o->value ? " " : "", o->value ? o->value : "");
    else snprintf(left, sizeof left, "--%s%s%s", o->name, o->value ? " " : "", o->value ? o->value : "");
    printf("  %-26s %s", left, o->help);
    for (int i = 0; o->kind == ARG_CHOICE && o->choices[i]; i++) printf("%s %s", i ? "," : ":", o->choices[i]);
    putchar('\n');
}

static args_outcome print_help(const args *a) {
    printf("Usage: sparse_autotune%s%s %s\n\n%s\n", *a->command ? " " : "", a->command, a->usage, a->about);
    if (a->count > 0) printf("\nOptions:\n");
    for (size_t i = 0; i < a->count; i++)
        if (a->list[i].help) print_option(&a->list[i]);
    printf("  %-26s %s\n", "-h, --help", "shows this");
    if (a->more) printf("\n%s\n", a->more);
    return ARGS_HELP;
}

static const arg *find(const args *a, const char *name, size_t length, bool letter) {
    for (size_t i = 0; i < a->count; i++) {
        const arg *o = &a->list[i];
        if (letter && o->name[0] == name[0] && !o->name[1]) return o;
        if (!letter && o->name[1] && strlen(o->name) == length && memcmp(o->name, name, length) == 0) return o;
    }
    return NULL;
}

// One option at argv[*i]; moves *i on where its value is the next word.
static args_outcome take_option(args *a, int argc, char **argv, int *i) {
    const char *word = argv[*i], *value = NULL;
    bool is_letter = word[1] != '-';
    const char *equals = is_letter ? NULL : strchr(word, '=');
    size_t length = equals ? (size_t)(equals - word) : is_letter ? 2 : strlen(word);
    const arg *o = find(a, is_letter ? word + 1 : word + 2, is_letter ? 1 : length - 2, is_letter);
    if (!o) return (args_outcome)unknown(a, word, is_letter ? strlen(word) : length);
    if (equals) value = equals + 1;
    else if (is_letter && word[2]) value = word + 2;

    if (o->given) *o->given = true;
    if (o->kind == ARG_FLAG) {
        if (value)
            return (args_outcome)usage_error(a->command, "--%s takes no value, but '%s' was given", o->name, value);
        *(bool *)o->to = true;
        return ARGS_OK;
    }
    if (!value && *i + 1 >= argc)
        return (args_outcome)usage_error(a->command, "%.*s needs a value: %s", (int)length, word, o->value);
    if (!value) value = argv[++*i];
    return take_value(o, value) ? ARGS_OK : (args_outcome)bad_value(a, o, value);
}

args_outcome args_parse(args *a, int argc, char **argv) {
    bool options_over = false;
    for (int i = 0; i < argc; i++) {
        const char *word = argv[i];
        if (!options_over && strcmp(word, "--") == 0) {
            options_over = true;
        } else if (!options_over && (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)) {
            return print_help(a);
        } else if (!options_over && word[0] == '-' && word[1]) {
            args_outcome outcome = take_option(a, argc, argv, &i);
            if (outcome != ARGS_OK) return outcome;
        } else {
            if (a->word_count >= a->most_words)
                return (args_outcome)usage_error(a->command, "unexpected argument '%s'", word);
            a->words[a->word_count++] = word;
        }
    }
    return ARGS_OK;
}
