/* Options: a table per subcommand says what there is; parsing, messages and --help come from it.
 * A message names the option, the value given and what was expected. */
#ifndef CLI_ARGS_H
#define CLI_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXIT_DONE   0
#define EXIT_FAILED 1
#define EXIT_USAGE  2

typedef enum arg_kind {
    ARG_FLAG = 1, /* bool */
    ARG_INT,      /* int64_t, least to most */
    ARG_REAL,     /* double, least to most, finite */
    ARG_TEXT,     /* const char *, not empty */
    ARG_LIST,     /* text_list: may be given again */
    ARG_CHOICE,   /* int: the place in `choices`, which NULL ends */
    ARG_PARSE     /* whatever `parse` makes of it */
} arg_kind;

#define TEXT_LIST_MOST 32
typedef struct text_list {
    const char *item[TEXT_LIST_MOST];
    int count;
} text_list;

typedef struct arg {
    const char *name; /* of one letter: -m; else --name */
    arg_kind kind;
    void *to;
    const char *value; /* what the help calls the value */
    const char *help;  /* NULL: not shown */
    double least, most;
    const char *const *choices;
    bool (*parse)(const char *text, void *to);
    const char *expected; /* ARG_PARSE: what should have been there */
    bool *given;          /* set where the option was seen; may be NULL */
} arg;

#define ARG_FLAG_(n, t, h)                                                                                             \
    { .name = n, .kind = ARG_FLAG, .to = t, .help = h }
#define ARG_INT_(n, t, v, lo, hi, h)                                                                                   \
    { .name = n, .kind = ARG_INT, .to = t, .value = v, .least = lo, .most = hi, .help = h }
#define ARG_REAL_(n, t, v, lo, hi, h)                                                                                  \
    { .name = n, .kind = ARG_REAL, .to = t, .value = v, .least = lo, .most = hi, .help = h }
#define ARG_TEXT_(n, t, v, h)                                                                                          \
    { .name = n, .kind = ARG_TEXT, .to = t, .value = v, .help = h }
#define ARG_LIST_(n, t, v, h)                                                                                          \
    { .name = n, .kind = ARG_LIST, .to = t, .value = v, .help = h }
#define ARG_CHOICE_(n, t, v, names, h)                                                                                 \
    { .name = n, .kind = ARG_CHOICE, .to = t, .value = v, .choices = names, .help = h }
#define ARG_PARSE_(n, t, v, f, want, h)                                                                                \
    { .name = n, .kind = ARG_PARSE, .to = t, .value = v, .parse = f, .expected = want, .help = h }

typedef struct args {
    const char *command; /* "" for none */
    const char *usage;   /* after the command's name */
    const char *about;
    const arg *list;
    size_t count;
    int most_words; /* words beside the options */
    const char **words;
    int word_count;
    const char *more; /* printed at the end of the help; may be NULL */
} args;

typedef enum args_outcome { ARGS_OK = -1, ARGS_HELP = EXIT_DONE, ARGS_BAD = EXIT_USAGE } args_outcome;

/* argv[0] is the first word after the command. What is not ARGS_OK is the program's exit code. */
args_outcome args_parse(args *a, int argc, char **argv);

/* Prints "sparse_autotune race: ..." on stderr and gives the exit code. */
int usage_error(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
int failure(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
void notice(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

bool parse_whole(const char *text, int64_t least, int64_t most, int64_t *value); /* all of it, or false */
bool parse_real(const char *text, double *value);                                /* finite, all of it */

#endif
