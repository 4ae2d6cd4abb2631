// sparse_autotune info: what this machine is to the library.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "json.h"
#include "number.h"
#include "setup.h"
#include "table.h"
#include "why.h"

static const char *const variables[] = {"SPARSE_AUTOTUNE",       "SPARSE_AUTOTUNE_CACHE", "SPARSE_AUTOTUNE_DEVICE",
                                        "SPARSE_AUTOTUNE_FORCE", "SPARSE_AUTOTUNE_LOG",   "OMP_NUM_THREADS",
                                        "XDG_CACHE_HOME"};
enum { VARIABLES = sizeof variables / sizeof *variables };

// Calls `each` once for every different library version among the variants.
static void each_library(const sat_context *c, void (*each)(void *user, const sat_variant *v), void *user) {
    for (size_t i = 0; i < sat_variant_count(c); i++) {
        const sat_variant *v = sat_variant_at(c, i);
        bool first = v->flags & SAT_V_LIBRARY;
        for (size_t j = 0; first && j < i; j++) {
            const sat_variant *w = sat_variant_at(c, j);
            if ((w->flags & SAT_V_LIBRARY) && strcmp(w->revision, v->revision) == 0) first = false;
        }
        if (first) each(user, v);
    }
}

static void print_library(void *user, const sat_variant *v) {
    int *count = user;
    printf("%s%s", (*count)++ ? ", " : "", v->revision);
}

static const char *driver_text(const sat_device *d, char *out, size_t capacity) {
    snprintf(out, capacity, "%d.%d", d->driver / 1000, d->driver % 1000 / 10);
    return out;
}

static void print_memory(const sat_device *d) {
    char l1[32], l2[32], l3[32], memory[32];
    text_bytes(l1, sizeof l1, (double)d->l1_bytes), text_bytes(l2, sizeof l2, (double)d->l2_bytes);
    if (d->backend == SAT_CPU)
        printf("  caches      L1 %s and L2 %s a core, L3 %s\n", l1, l2, text_bytes(l3, sizeof l3, (double)d->l3_bytes));
    else
        printf("  caches      L2 %s; shared memory %s a multiprocessor, %s a block\n", l2, l1,
               text_bytes(l3, sizeof l3, (double)d->shared_bytes));
    printf("  memory      %s\n", text_bytes(memory, sizeof memory, (double)d->memory_bytes));
}

static void print_rates(const sat_device *d) {
    char text[32];
    printf("  rates       %s, for estimates: memory %.1f GB/s", d->measured ? "measured" : "nominal",
           d->memory_rate * 1e-9);
    if (d->l2_rate > 0) printf(", L2 %.1f GB/s", d->l2_rate * 1e-9);
    for (int t = SAT_F32; t <= SAT_BF16; t++)
        printf(", %s %s", dtype_name((sat_dtype)t), text_rate(text, sizeof text, d->flop_rate[t]));
    if (d->backend == SAT_CUDA) printf(", tf32 %s", text_rate(text, sizeof text, d->tf32_rate));
    putchar('\n');
}

static void print_info(const sat_context *c, const setup *s) {
    const sat_device *d = sat_context_device(c);
    char text[128], why[512];
    printf("sparse_autotune %s\n", sat_version());
    printf("  device      %s (%s:%d)\n", d->name, backend_text(d->backend), d->index);
    printf("  identity    %s\n", d->identity);
    if (d->backend == SAT_CPU) {
        printf("  threads     %d\n", d->threads);
        isa_text(d->isa, text, sizeof text);
        printf("  isa         %s\n", *text ? text : "none beyond the compiler's default");
    } else {
        printf("  processors  %d, capability %d.%d\n", d->multiprocessors, d->capability / 10, d->capability % 10);
        printf("  driver      %s\n", driver_text(d, text, sizeof text));
    }
    print_memory(d);
    print_rates(d);
    if (why_not_cuda(c, s->device, why, sizeof why)) printf("  cuda        not used: %s\n", why);
    int libraries = 0;
    printf("  libraries   ");
    each_library(c, print_library, &libraries);
    printf("%s\n", libraries ? "" : "none found");
    printf("  variants    %zu\n", sat_variant_count(c));
    printf("  cache       %s\n", *sat_cache_path(c) ? sat_cache_path(c) : "memory only");
    for (int i = 0; i < VARIABLES; i++)
        if (getenv(variables[i])) printf("  environment %s=%s\n", variables[i], getenv(variables[i]));
}

static void json_library(void *user, const sat_variant *v) { json_text(user, NULL, v->revision); }

static void info_json(const sat_context *c, const setup *s) {
    const sat_device *d = sat_context_device(c);
    char isa[128], driver[16], why[512];
    json j = {.file = stdout};
    json_object(&j, NULL);
    json_int(&j, "version", 1);
    json_text(&j, "sparse_autotune", sat_version());
    json_object(&j, "device");
    json_text(&j, "backend", backend_text(d->backend));
    json_text(&j, "name", d->name);
    json_int(&j, "index", d->index);
    json_text(&j, "identity", d->identity);
    json_text(&j, "isa", isa_text(d->isa, isa, sizeof isa));
    if (d->backend == SAT_CPU) json_int(&j, "threads", d->threads);
    else json_int(&j, "multiprocessors", d->multiprocessors);
    json_int(&j, "capability", d->capability);
    json_int(&j, "l1_bytes", d->l1_bytes), json_int(&j, "l2_bytes", d->l2_bytes);
    json_int(&j, "l3_bytes", d->l3_bytes), json_int(&j, "memory_bytes", d->memory_bytes);
    json_int(&j, "shared_bytes", d->shared_bytes);
    json_text(&j, "driver", d->driver ? driver_text(d, driver, sizeof driver) : NULL);
    json_bool(&j, "measured", d->measured);
    json_real(&j, "memory_rate", d->memory_rate);
    json_real(&j, "l2_rate", d->l2_rate);
    json_real(&j, "tf32_rate", d->tf32_rate);
    json_object(&j, "flop_rate");
    for (int t = SAT_F32; t <= SAT_BF16; t++) json_real(&j, dtype_name((sat_dtype)t), d->flop_rate[t]);
    json_end(&j);
    json_end(&j);
    bool unused = why_not_cuda(c, s->device, why, sizeof why);
    json_object(&j, "cuda");
    json_bool(&j, "used", !unused);
    json_text(&j, "reason", unused ? why : NULL);
    json_end(&j);
    json_array(&j, "libraries");
    each_library(c, json_library, &j);
    json_end(&j);
    json_int(&j, "variants", (int64_t)sat_variant_count(c));
    json_text(&j, "cache", sat_cache_path(c));
    json_object(&j, "environment");
    for (int i = 0; i < VARIABLES; i++)
        if (getenv(variables[i])) json_text(&j, variables[i], getenv(variables[i]));
    json_end(&j);
    json_end(&j);
}

int info_main(int argc, char **argv) {
    setup s = {.command = "info"};
    bool as_json = false, measure = false;
    const arg list[] = {SETUP_ARGS(s),
                        ARG_FLAG_("measure", &measure, "measures the device's rates now, and remembers them"),
                        ARG_FLAG_("json", &as_json, "prints one JSON object")};
    args a = {.command = "info",
              .usage = "[options]",
              .about =
                  "Shows the device, its rates, why CUDA is not used where it is not, the libraries, the cache and\n"
                  "the environment variables in force.",
              .list = list,
              .count = sizeof list / sizeof *list};
    args_outcome parsed = args_parse(&a, argc, argv);
    if (parsed != ARGS_OK) return (int)parsed;
    sat_context *context = setup_open(&s);
    if (!context) return EXIT_FAILED;
    sat_status status = measure ? sat_context_measure_rates(context) : SAT_OK;
    if (status != SAT_OK) failure("info", "--measure: %s (%s)", sat_last_error(), sat_status_name(status));
    else if (as_json) info_json(context, &s);
    else print_info(context, &s);
    sat_context_free(context);
    return status == SAT_OK ? EXIT_DONE : EXIT_FAILED;
}
