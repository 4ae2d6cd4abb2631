// Contexts, plugins and variants by name.

#include "setup.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const effort_names[] = {"default", "off", "cached", "quick", "full", "pinned", NULL};
const char *const measure_names[] = {"cold", "warm", NULL};

bool effort_races(int effort) {
    return effort == SAT_EFFORT_DEFAULT || effort == SAT_EFFORT_QUICK || effort == SAT_EFFORT_FULL;
}

static void log_warnings(void *user, sat_log_level level, const char *message) {
    if (level <= SAT_LOG_WARN) notice(user, "%s", message);
}

sat_context *setup_open(const setup *s) {
    sat_context_options o = {SAT_SIZED(sat_context_options),
                             .device = s->device,
                             .cache_dir = s->cache,
                             .effort = (sat_effort)s->effort,
                             .measure = (sat_measure)s->measure,
                             .threads = (int)s->threads,
                             .multiprocessors = s->multiprocessors,
                             .budget_seconds = s->budget};
    const char *level = getenv("SPARSE_AUTOTUNE_LOG"); // whoever sets it gets the library's own log
    if (!level || !*level) o.log = log_warnings, o.log_user = (void *)(uintptr_t)s->command;
    sat_context *context = NULL;
    sat_status status = sat_context_create(&o, &context);
    if (status == SAT_OK) return context;
    failure(s->command, "%s (%s)", sat_last_error(), sat_status_name(status));
    return NULL;
}

bool setup_plugin(sat_context *context, const char *path, char *message, size_t capacity) {
    char full[PATH_MAX]; // dlopen takes a name without '/' for a library of the system
    if (!realpath(path, full)) {
        snprintf(message, capacity, "--plugin '%s': %s", path, strerror(errno));
        return false;
    }
    void *handle = dlopen(full, RTLD_NOW | RTLD_LOCAL); // stays loaded: its functions are used until the end
    if (!handle) {
        snprintf(message, capacity, "--plugin '%s': %s", path, dlerror());
        return false;
    }
    sat_plugin_fn load;
    *(void **)&load = dlsym(handle, SAT_PLUGIN_SYMBOL);
    if (!load) {
        snprintf(message, capacity, "--plugin '%s': exports no function " SAT_PLUGIN_SYMBOL, path);
        return false;
    }
    sat_status status = load(context);
    if (status == SAT_OK) return true;
    snprintf(message, capacity, "--plugin '%s': %s (%s)", path, sat_last_error(), sat_status_name(status));
    return false;
}

bool setup_plugins(const setup *s, sat_context *context) {
    char message[PATH_MAX + 256];
    for (int i = 0; i < s->plugins.count; i++)
        if (!setup_plugin(context, s->plugins.item[i], message, sizeof message)) {
            failure(s->command, "%s", message);
            return false;
        }
    return true;
}

const sat_variant *variant_find(const sat_context *context, const char *name) {
    for (size_t i = 0; i < sat_variant_count(context); i++) {
        const sat_variant *v = sat_variant_at(context, i);
        if (strcmp(v->name, name) == 0) return v;
    }
    return NULL;
}

// Calls `each` with every name of the list; false from it stops and is returned.
static bool each_name(const char *list, bool (*each)(void *user, const char *name, size_t length), void *user) {
    for (const char *p = list; *p;) {
        size_t length = strcspn(p, ",");
        if (length > 0 && !each(user, p, length)) return false;
        p += length + (p[length] == ',');
    }
    return true;
}

static bool differs(void *user, const char *name, size_t length) {
    const char *wanted = user;
    return strlen(wanted) != length || memcmp(wanted, name, length) != 0;
}

bool name_in_list(const char *list, const char *name) { return !each_name(list, differs, (void *)(uintptr_t)name); }

typedef struct search {
    const sat_context *context;
    char *out;
    size_t capacity;
} search;

static bool is_known(void *user, const char *name, size_t length) {
    search *s = user;
    snprintf(s->out, s->capacity, "%.*s", (int)length, name);
    return variant_find(s->context, s->out) != NULL;
}

bool unknown_variant(const sat_context *context, const char *list, char *out, size_t capacity) {
    search s = {context, out, capacity};
    return !each_name(list, is_known, &s);
}

// The arch word of a variant's name; the longer words come first, since a name that has one has the shorter too.
static const struct {
    const char *word;
    uint32_t isa;
    const char *text;
} arch_words[] = {
    {"_avx512bf16", SAT_ISA_AVX512_BF16, "AVX-512 BF16"},
    {"_avx512", SAT_ISA_AVX512, "AVX-512"},
    {"_avx2", SAT_ISA_AVX2, "AVX2"},
    {"_amx", SAT_ISA_AMX_BF16, "AMX"},
};

const char *variant_lacks(const sat_variant *v, const sat_device *d) {
    if (v->backend != d->backend) return backend_text(v->backend);
    if (v->backend != SAT_CPU) return NULL;
    for (size_t i = 0; i < sizeof arch_words / sizeof *arch_words; i++)
        if (strstr(v->name, arch_words[i].word)) return d->isa & arch_words[i].isa ? NULL : arch_words[i].text;
    return NULL;
}

const char *isa_text(uint32_t isa, char *out, size_t capacity) {
    size_t at = 0;
    out[0] = 0;
    for (size_t i = sizeof arch_words / sizeof *arch_words; i-- > 0 && at < capacity;)
        if (isa & arch_words[i].isa)
            at += (size_t)snprintf(out + at, capacity - at, "%s%s", at ? ", " : "", arch_words[i].text);
    return out;
}

const char *backend_text(sat_backend_kind kind) { return kind == SAT_CUDA ? "cuda" : "cpu"; }

const char *operation_text(sat_operation op) {
    static const char *const names[] = {"?",       "matmul",         "sampled", "attention", "attention-backward",
                                        "grouped", "grouped-weights"};
    return names[op >= SAT_MATMUL && op <= SAT_GROUPED_WEIGHTS ? op : 0];
}
