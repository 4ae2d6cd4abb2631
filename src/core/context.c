/* Making a context: device, registry, cache, environment variables. */
#define _GNU_SOURCE
#include "core/context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "base/ranges.h"
#include "core/agree.h"
#include "core/identity.h"
#include "core/rates.h"
#include "variant.h"

double sat_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- environment ---- */

static const char *environment(const char *name) {
    const char *value = sat_environment(name);
    return value && value[0] ? value : NULL;
}

static int find_word(const char *value, const char *const *words, int count) {
    for (int i = 0; i < count; i++)
        if (strcasecmp(value, words[i]) == 0) return i + 1;
    return 0;
}

static void log_to_stderr(void *user, sat_log_level level, const char *message) {
    (void)user;
    static const char *const names[] = {"", "error", "warn", "info", "debug"};
    fprintf(stderr, "sparse_autotune %s: %s\n", names[level], message);
}

static void open_log(sat_context *ctx) {
    static const char *const levels[] = {"error", "warn", "info", "debug"};
    const char *value = environment("SPARSE_AUTOTUNE_LOG");
    int level = value ? find_word(value, levels, 4) : 0;
    ctx->log = (sat_log){.fn = ctx->options.log, .user = ctx->options.log_user, .level = SAT_LOG_DEBUG};
    if (!ctx->log.fn && value) {
        ctx->log.fn = log_to_stderr;
        ctx->log.level = level ? (sat_log_level)level : SAT_LOG_WARN;
        if (!level)
            sat_logf(&ctx->log, SAT_LOG_WARN, "SPARSE_AUTOTUNE_LOG is '%s'; expected error, warn, info or debug",
                     value);
    }
}

#define NO_EFFORT "SPARSE_AUTOTUNE is '%s', which counts as quick; expected off, cached, quick, full or pinned"

static sat_status read_effort(sat_context *ctx) {
    static const char *const efforts[] = {"off", "cached", "quick", "full", "pinned"};
    sat_effort *effort = &ctx->options.effort;
    if ((int)*effort < SAT_EFFORT_DEFAULT || *effort > SAT_EFFORT_PINNED)
        return sat_fail(SAT_BAD_ENUM, "effort is %d; expected one of SAT_EFFORT_*", (int)*effort);
    if (*effort != SAT_EFFORT_DEFAULT) return SAT_OK;
    *effort = SAT_EFFORT_QUICK;
    const char *value = environment("SPARSE_AUTOTUNE");
    int found = value ? find_word(value, efforts, 5) : 0;
    if (found) *effort = (sat_effort)found;
    else if (value) {
        snprintf(ctx->no_effort, sizeof ctx->no_effort, "%s", value);
        sat_logf(&ctx->log, SAT_LOG_WARN, NO_EFFORT, value);
    }
    return SAT_OK;
}

/* Variants begin with the name of their backend: another one's is not expected here. */
static bool other_backends(const sat_context *ctx, const char *variant) {
    for (int i = 0; sat_backend_at(i); i++) {
        const sat_backend *b = sat_backend_at(i);
        size_t length = strlen(b->name);
        if (b != ctx->backend && strncmp(variant, b->name, length) == 0 && variant[length] == '_') return true;
    }
    return false;
}

sat_effort sat_context_effort(const sat_context *ctx) { return ctx ? ctx->options.effort : SAT_EFFORT_DEFAULT; }

sat_status sat_context_ignored(const sat_context *ctx, char *text, size_t capacity) {
    if (!ctx) return sat_fail(SAT_NULL_POINTER, "context is NULL");
    if (!text) return sat_fail(SAT_NULL_POINTER, "text is NULL");
    if (capacity == 0) return sat_fail(SAT_BAD_SIZE, "capacity is 0; expected at least 1");
    char effort[160] = "", force[192] = "";
    if (ctx->no_effort[0]) snprintf(effort, sizeof effort, NO_EFFORT, ctx->no_effort);
    if (ctx->force[0] && !sat_registry_find(&ctx->registry, ctx->force) && !other_backends(ctx, ctx->force))
        snprintf(force, sizeof force, SAT_NO_FORCE, ctx->force);
    snprintf(text, capacity, "%s%s%s", effort, effort[0] && force[0] ? "; " : "", force);
    return SAT_OK;
}

/* ---- device ---- */

/* Opens the first device of a backend that works. One that is there and cannot be used is logged. */
static bool open_any(sat_context *ctx, const sat_backend *b) {
    int count = b->count();
    ctx->backend = b;
    for (int i = 0; i == 0 || i < count; i++) {
        sat_status status = b->open(i, &ctx->options, &ctx->device);
        if (status == SAT_OK) return true;
        sat_logf(&ctx->log, status == SAT_NOT_FOUND ? SAT_LOG_DEBUG : SAT_LOG_WARN, "not used: %s", sat_last_error());
    }
    return false;
}

static sat_status open_device(sat_context *ctx) {
    const char *name = ctx->options.device ? ctx->options.device : environment("SPARSE_AUTOTUNE_DEVICE");
    if (name && !name[0]) name = NULL;
    const char *colon = name ? strchr(name, ':') : NULL;
    size_t length = colon ? (size_t)(colon - name) : name ? strlen(name) : 0;
    long index = 0;
    if (colon) {
        char *end;
        index = strtol(colon + 1, &end, 10);
        if (end == colon + 1 || *end || index < 0 || index > 1024)
            return sat_fail(SAT_NOT_FOUND, "device is '%s'; expected a number after ':'", name);
    }
    char known[64] = "";
    for (int i = 0; sat_backend_at(i); i++) {
        const sat_backend *b = sat_backend_at(i);
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", b->name);
        if (!name && open_any(ctx, b)) return SAT_OK;
        if (!name || strlen(b->name) != length || strncasecmp(b->name, name, length) != 0) continue;
        ctx->backend = b;
        return b->open((int)index, &ctx->options, &ctx->device);
    }
    const char *missing = name ? sat_backend_missing(name, length) : NULL;
    if (missing) return sat_fail(SAT_NOT_FOUND, "device is '%s'; %s", name, missing);
    return sat_fail(SAT_NOT_FOUND, "device is '%s'; this build knows %s", name ? name : "", known);
}

int sat_threads_now(const sat_context *ctx) {
    int threads = ctx->backend->threads(ctx->options.threads);
    return threads > 0 ? threads : ctx->options.threads;
}

sat_device sat_device_now(const sat_context *ctx) {
    sat_device d = *sat_context_device(ctx);
    int threads = ctx->backend->threads(ctx->options.threads); /* 0: runs have none of the host's */
    if (threads > 0 && d.threads != threads) {
        /* Rates scale with threads; opening again keeps that in one place and cannot fail for a device that opened. */
        sat_context_options now = ctx->options;
        now.threads = threads;
        ctx->backend->open(d.index, &now, &d);
    }
    return d;
}

/* ---- memory ---- */

void *sat_alloc(sat_context *ctx, size_t bytes) {
    return ctx->allocator.alloc(ctx->allocator.user, bytes, ctx->backend->alignment);
}

/* Freeing is safe while work is queued: the backend's own free() waits for it. Another allocator may reuse the memory
 * at once, so the device is synchronised first. */
void sat_free(sat_context *ctx, void *pointer) {
    if (!pointer) return;
    if (ctx->allocator.free != ctx->backend->free) ctx->backend->sync_device(&ctx->device);
    ctx->allocator.free(ctx->allocator.user, pointer);
}

size_t sat_memory_limit(const sat_context *ctx) {
    return ctx->options.memory_limit ? ctx->options.memory_limit : ctx->backend->available(&ctx->device) / 2;
}

/* Up to this size a workspace is taken without asking what is free: asking reads files. */
enum { SMALL_WORKSPACE = 1 << 20 };

bool sat_within_limit(const sat_context *ctx, size_t bytes, size_t *limit) {
    if (bytes == 0) return true;
    if (*limit == SAT_LIMIT_UNKNOWN) {
        if (!ctx->options.memory_limit && bytes <= SMALL_WORKSPACE) return true;
        *limit = sat_memory_limit(ctx);
    }
    return bytes <= *limit;
}

static sat_status open_allocator(sat_context *ctx) {
    sat_allocator *a = &ctx->allocator;
    if (!ctx->options.allocator) {
        *a = (sat_allocator){SAT_SIZED(sat_allocator), ctx->backend->alloc, ctx->backend->free, &ctx->device};
        return SAT_OK;
    }
    SAT_TRY(sat_struct_in(a, sizeof *a, ctx->options.allocator, sizeof *a, "sat_allocator"));
    if (!a->alloc || !a->free)
        return sat_fail(SAT_NULL_POINTER, "allocator: %s is NULL; expected both functions",
                        a->alloc ? "free" : "alloc");
    return SAT_OK;
}

/* ---- create and free ---- */

/* Libraries are searched once a process; every context logs those that were refused. */
static void report_refusals(const sat_context *ctx) {
    char text[512];
    for (int i = 0; sat_refusal_at(i, text, sizeof text); i++) sat_logf(&ctx->log, SAT_LOG_WARN, "%s", text);
}

static sat_status fill(sat_context *ctx) {
    if (ctx->options.threads < 0 || ctx->options.threads > 4096)
        return sat_fail(SAT_BAD_SIZE, "threads is %d; expected 0 to 4096", ctx->options.threads);
    if (ctx->options.multiprocessors < 0)
        return sat_fail(SAT_BAD_SIZE, "multiprocessors is %d; expected 0 or more", ctx->options.multiprocessors);
    if (!(ctx->options.budget_seconds >= 0))
        return sat_fail(SAT_BAD_SIZE, "budget_seconds is %g; expected 0 or more", ctx->options.budget_seconds);
    if (ctx->options.measure != SAT_MEASURE_COLD && ctx->options.measure != SAT_MEASURE_WARM)
        return sat_fail(SAT_BAD_ENUM, "measure is %d; expected SAT_MEASURE_COLD or _WARM", (int)ctx->options.measure);
    open_log(ctx);
    sat_ranges_open();
    SAT_TRY(read_effort(ctx));
    SAT_TRY(open_device(ctx));
    SAT_TRY(open_allocator(ctx));
    SAT_TRY(sat_registry_open(&ctx->registry, ctx->backend->kind));
    report_refusals(ctx);
    const char *force = environment("SPARSE_AUTOTUNE_FORCE");
    if (force) snprintf(ctx->force, sizeof ctx->force, "%s", force);
    SAT_TRY(sat_cache_open(ctx->options.cache_dir, ctx->device.identity, &ctx->log, &ctx->cache));
    char fingerprint[SAT_DIGEST_SIZE];
    sat_identity_fingerprint(ctx->backend, &ctx->device, fingerprint);
    sat_cache_set_fingerprint(ctx->cache, fingerprint);
    sat_rates_open(ctx);
    SAT_TRY(sat_memo_open(&ctx->memo));
    SAT_TRY(sat_pool_open(&ctx->pool));
    if (ctx->options.background) SAT_TRY(sat_background_open(ctx, &ctx->background));
    sat_logf(&ctx->log, SAT_LOG_INFO, "device %s, %zu variants, cache %s", ctx->device.name,
             atomic_load(&ctx->registry.count), sat_cache_dir(ctx->cache));
    return SAT_OK;
}

sat_status sat_context_create(const sat_context_options *options, sat_context **context) {
    if (!context) return sat_fail(SAT_NULL_POINTER, "context is NULL");
    *context = NULL;
    sat_context *ctx = calloc(1, sizeof *ctx);
    if (!ctx) return sat_fail(SAT_OUT_OF_MEMORY, "context");
    sat_status status = SAT_OK;
    if (options)
        status = sat_struct_in(&ctx->options, sizeof ctx->options, options, sizeof *options, "sat_context_options");
    if (status == SAT_OK) status = fill(ctx);
    /* What the caller's pointers lead to is not needed any more and may go. */
    ctx->options.device = ctx->options.cache_dir = NULL, ctx->options.allocator = NULL;
    if (status != SAT_OK) sat_context_free(ctx);
    else *context = ctx;
    return status;
}

void sat_context_free(sat_context *ctx) {
    if (!ctx) return;
    sat_background_close(ctx->background);
    sat_agree_close(ctx->agree);
    sat_pool_close(ctx->pool);
    sat_memo_close(ctx->memo);
    sat_cache_close(ctx->cache);
    sat_registry_close(&ctx->registry);
    sat_rates_close(ctx);
    free(ctx);
}

const sat_device *sat_context_device(const sat_context *ctx) {
    const sat_rated *rated = ctx ? atomic_load(&ctx->rated) : NULL;
    return rated ? &rated->device : ctx ? &ctx->device : NULL;
}

sat_status sat_context_wait(sat_context *ctx) {
    if (!ctx) return sat_fail(SAT_NULL_POINTER, "context is NULL");
    if (ctx->background) sat_background_wait(ctx->background);
    return SAT_OK;
}

/* ---- memory and streams, as the public header offers them ---- */

sat_status sat_memory_alloc(sat_context *ctx, size_t bytes, void **pointer) {
    if (!ctx) return sat_fail(SAT_NULL_POINTER, "context is NULL");
    if (!pointer) return sat_fail(SAT_NULL_POINTER, "pointer is NULL");
    *pointer = sat_alloc(ctx, bytes);
    return *pointer ? SAT_OK : sat_fail(SAT_OUT_OF_MEMORY, "%zu bytes on %s", bytes, ctx->device.name);
}

void sat_memory_free(sat_context *ctx, void *pointer) {
    if (ctx) sat_free(ctx, pointer);
}

static sat_status check_copy(const sat_context *ctx, const void *device, const void *host, size_t bytes) {
    if (!ctx) return sat_fail(SAT_NULL_POINTER, "context is NULL");
    if (bytes == 0) return SAT_OK;
    if (!host) return sat_fail(SAT_NULL_POINTER, "host is NULL");
    if (!device) return sat_fail(SAT_NULL_POINTER, "the device's pointer is NULL");
    if (ctx->backend->usable(&ctx->device, device)) return SAT_OK;
    return sat_fail(SAT_WRONG_MEMORY, "%p is not memory of %s", device, ctx->device.name);
}

sat_status sat_memory_write(sat_context *ctx, void *to, const void *host, size_t bytes) {
    SAT_TRY(check_copy(ctx, to, host, bytes));
    return bytes ? ctx->backend->write(&ctx->device, to, host, bytes) : SAT_OK;
}

sat_status sat_memory_read(sat_context *ctx, void *host, const void *from, size_t bytes) {
    SAT_TRY(check_copy(ctx, from, host, bytes));
    return bytes ? ctx->backend->read(&ctx->device, host, from, bytes) : SAT_OK;
}

sat_status sat_stream_wait(sat_context *ctx, void *stream) {
    if (!ctx) return sat_fail(SAT_NULL_POINTER, "context is NULL");
    if (ctx->backend->capturing(&ctx->device, stream))
        return sat_fail(SAT_UNSUPPORTED, "stream is being captured into a graph; nothing on it runs before that ends");
    return ctx->backend->sync(&ctx->device, stream);
}

/* ---- variants and cache, as the public header offers them ---- */

sat_status sat_variant_register(sat_context *ctx, const sat_variant *variant) {
    if (!ctx) return sat_fail(SAT_NULL_POINTER, "context is NULL");
    if (!variant) return sat_fail(SAT_NULL_POINTER, "variant is NULL");
    sat_variant v;
    SAT_TRY(sat_struct_in(&v, sizeof v, variant, sizeof v, "sat_variant"));
    size_t set = sat_first_set(v.reserved, 0, sizeof v.reserved);
    if (set < sizeof v.reserved)
        return sat_fail(SAT_BAD_STRUCT, "variant: reserved[%zu] is set; expected 0", set / sizeof *v.reserved);
    if (!sat_op_find(v.op))
        return sat_fail(SAT_BAD_ENUM, "variant: op is %d; expected one of sat_operation", (int)v.op);
    if (ctx->agree)
        return sat_fail(SAT_UNSUPPORTED, "variant: this context agrees with other ranks already; register it before");
    if (v.backend != ctx->backend->kind)
        return sat_fail(SAT_UNSUPPORTED, "variant: backend is %d; this context's is %d", (int)v.backend,
                        (int)ctx->backend->kind);
    return sat_registry_add(&ctx->registry, &v);
}

size_t sat_variant_count(const sat_context *ctx) { return ctx ? atomic_load(&ctx->registry.count) : 0; }

const sat_variant *sat_variant_at(const sat_context *ctx, size_t i) {
    return i < sat_variant_count(ctx) ? ctx->registry.list[i] : NULL;
}

const char *sat_cache_path(const sat_context *ctx) { return ctx ? sat_cache_dir(ctx->cache) : ""; }

/* Gives a failure of the cache a message where it has none. Inside the cache most failures are ordinary and set none.
 */
static sat_status with_message(sat_status status, const char *what, unsigned before) {
    if (status == SAT_OK || sat_messages() != before) return status;
    return sat_fail(status, "cache: cannot %s: %s", what,
                    status == SAT_OUT_OF_MEMORY ? "memory ran out"
                    : status == SAT_BAD_FORMAT  ? "a file's content is not what it should be"
                                                : "a file cannot be read or written");
}

static sat_status with_cache(const sat_context *ctx, const void *argument, const char *name) {
    if (!ctx) return sat_fail(SAT_NULL_POINTER, "context is NULL");
    if (!argument) return sat_fail(SAT_NULL_POINTER, "%s is NULL", name);
    return SAT_OK;
}

sat_status sat_cache_visit(sat_context *ctx, sat_cache_visit_fn visit, void *user) {
    SAT_TRY(with_cache(ctx, visit ? ctx : NULL, "visit"));
    unsigned messages = sat_messages();
    return with_message(sat_cache_each(ctx->cache, visit, user), "visit", messages);
}

sat_status sat_cache_visit_untuned(sat_context *ctx, sat_cache_visit_fn visit, void *user) {
    SAT_TRY(with_cache(ctx, visit ? ctx : NULL, "visit"));
    unsigned messages = sat_messages();
    return with_message(sat_cache_each_untuned(ctx->cache, visit, user), "visit what is untuned", messages);
}

sat_status sat_cache_export(sat_context *ctx, const char *file) {
    SAT_TRY(with_cache(ctx, file, "file"));
    unsigned messages = sat_messages();
    return with_message(sat_cache_export_file(ctx->cache, file), "export", messages);
}

sat_status sat_cache_import(sat_context *ctx, const char *file, int64_t *entries) {
    int64_t count = 0;
    SAT_TRY(with_cache(ctx, file, "file"));
    unsigned messages = sat_messages();
    sat_status status = with_message(sat_cache_import_file(ctx->cache, file, &count), "import", messages);
    if (entries) *entries = count;
    return status;
}

sat_status sat_cache_clear(sat_context *ctx, const char *key, int64_t *entries) {
    int64_t count = 0;
    SAT_TRY(with_cache(ctx, ctx, "context"));
    unsigned messages = sat_messages();
    sat_status status = with_message(sat_cache_remove(ctx->cache, key, &count), "clear", messages);
    if (entries) *entries = count;
    return status;
}
