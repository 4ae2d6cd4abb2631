// sparse_autotune: the command line. Dispatches to a subcommand; without one it runs the default race.

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "args.h"
#include "cli.h"
#include "sparse_autotune.h"

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} command;

static const command commands[] = {
    {"race", race_main, "races every variant on a made-up problem or a Matrix Market file, and names the best"},
    {"check", check_main, "verifies every variant on this machine over a random grid of problems"},
    {"tune", tune_main, "races the problems that were answered by estimate"},
    {"cache", cache_main, "lists, shows, exports, imports, merges and clears what is remembered"},
    {"variants", variants_main, "lists the variants and what each supports"},
    {"info", info_main, "shows the device, its libraries, the cache and the environment"},
    {"doctor", doctor_main, "says what is missing for more speed, with a remedy for each"},
};

static int help(void) {
    printf("Usage: sparse_autotune [COMMAND [options]]\n\n"
           "Block-sparse matrix products, as fast as this machine allows. Without a command it races\n"
           "4096x4096x4096, block 64, 87.5 %% sparse, on the best device.\n\nCommands:\n");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        printf("  %-10s %s\n", commands[i].name, commands[i].summary);
    printf("\n`sparse_autotune COMMAND --help` shows a command's options.\n\n"
           "Environment: SPARSE_AUTOTUNE (off, cached, quick, full, pinned), SPARSE_AUTOTUNE_CACHE,\n"
           "SPARSE_AUTOTUNE_DEVICE, SPARSE_AUTOTUNE_FORCE, SPARSE_AUTOTUNE_LOG.\n"
           "Exit status: 0 success, 1 failure, 2 wrong usage.\n");
    return EXIT_DONE;
}

static int dispatch(int argc, char **argv) {
    if (argc < 2) return race_main(0, argv);
    const char *word = argv[1];
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) return help();
    if (strcmp(word, "--version") == 0) return printf("sparse_autotune %s\n", sat_version()), EXIT_DONE;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(word, commands[i].name) == 0) return commands[i].run(argc - 2, argv + 2);
    if (word[0] == '-') return usage_error("", "unknown option '%s'; options follow a command, such as race", word);
    return usage_error("", "unknown command '%s': expected race, check, tune, cache, variants, info or doctor", word);
}

// A closed standard descriptor would be given to the next file opened, and what is printed would land in it. One that
// refuses writing takes its place.
static void hold_standard_files(void) {
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDONLY) != fd) _exit(EXIT_FAILED);
}

int main(int argc, char **argv) {
    hold_standard_files();
    int code = dispatch(argc, argv);
    // Nothing was done if nobody can read it; a reader that left (head) is no news to anyone.
    bool lost = fflush(stdout) != 0 || ferror(stdout);
    if (lost && errno != EPIPE) failure("", "cannot write the output: %s", strerror(errno));
    return lost && code == EXIT_DONE ? EXIT_FAILED : code;
}
