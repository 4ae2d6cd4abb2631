/* What every subcommand shares: the options that make a context, plugins, and finding variants by name. */
#ifndef CLI_SETUP_H
#define CLI_SETUP_H

#include "args.h"
#include "sparse_autotune.h"

typedef struct setup {
    const char *command;
    const char *device, *cache;
    int64_t threads;
    int multiprocessors;
    int effort;  /* place in effort_names: the library's enum in the same order */
    int measure; /* likewise */
    double budget;
    text_list plugins;
} setup;

extern const char *const effort_names[], *const measure_names[];
bool effort_races(int effort); /* under this effort a problem is raced */

#define SETUP_ARGS(s)                                                                                                  \
    ARG_TEXT_("device", &(s).device, "NAME", "cpu, cuda or cuda:1 (the best found)"),                                  \
        ARG_TEXT_("cache", &(s).cache, "DIR", "the cache's folder, instead of $SPARSE_AUTOTUNE_CACHE"),                \
        ARG_INT_("threads", &(s).threads, "N", 1, 4096, "CPU threads (OpenMP's setting)")
#define SETUP_PLUGIN_ARG(s)                                                                                            \
    ARG_LIST_("plugin", &(s).plugins, "FILE.so", "adds the variants of a shared object; may be given again")

/* Prints what went wrong and gives NULL. */
sat_context *setup_open(const setup *s);
/* Calls the plugin's sat_plugin; false with a message. */
bool setup_plugin(sat_context *context, const char *path, char *message, size_t capacity);
/* All of them; prints what went wrong. */
bool setup_plugins(const setup *s, sat_context *context);

const sat_variant *variant_find(const sat_context *context, const char *name); /* NULL: none */
bool name_in_list(const char *list, const char *name);                         /* names separated by ',' */
/* The first name of the list that is no variant, in `out`; false if all are. */
bool unknown_variant(const sat_context *context, const char *list, char *out, size_t capacity);

/* Which instruction set a variant's name asks for and this device lacks: "AVX-512"; NULL if it can run here. */
const char *variant_lacks(const sat_variant *v, const sat_device *d);
const char *isa_text(uint32_t isa, char *out, size_t capacity);
const char *backend_text(sat_backend_kind kind);
const char *operation_text(sat_operation op);

#endif
