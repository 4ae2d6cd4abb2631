// sparse_autotune doctor: what is found on this machine, what is missing for more speed, and the remedy.

#define _GNU_SOURCE // environ
#include <dirent.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "cli.h"
#include "doctor.h"
#include "json.h"
#include "setup.h"
#include "table.h"
#include "why.h"

/* ---- what was looked at ---- */

enum { WARNINGS = 12, FINDINGS = 32, SLOW_MS = 50 };

typedef struct finding {
    char id[32];
    const char *level; /* "broken": the exit status is 1; "slower"; "note" */
    char what[768], remedy[512];
} finding;

typedef struct doctor {
    const setup *setup;
    sat_context *context;         /* on the CPU where the device that is asked for cannot be had; NULL: neither */
    char no_device[512];          /* why the device that is asked for cannot be had; "" if it can */
    char warnings[WARNINGS][640]; /* what the library said while the context was made */
    int warning_count;
    char ignored[512], no_cuda[512], libraries[512];
    processors processors;
    openmp openmp;
    nvidia nvidia;
    disk disk;
    bool has_cache;
    finding findings[FINDINGS];
    int count;
} doctor;

static finding *add(doctor *d, const char *id, const char *level) {
    static finding lost;
    finding *f = d->count < FINDINGS ? &d->findings[d->count++] : &lost;
    snprintf(f->id, sizeof f->id, "%s", id);
    f->level = level, f->what[0] = f->remedy[0] = 0;
    return f;
}

#define WHAT(f, ...)   snprintf((f)->what, sizeof(f)->what, __VA_ARGS__)
#define REMEDY(f, ...) snprintf((f)->remedy, sizeof(f)->remedy, __VA_ARGS__)

static void keep_warning(void *user, sat_log_level level, const char *message) {
    doctor *d = user;
    if (level > SAT_LOG_WARN || d->warning_count == WARNINGS) return;
    snprintf(d->warnings[d->warning_count++], sizeof d->warnings[0], "%s", message);
}

static sat_status open_context(doctor *d, const char *device) {
    sat_context_options o = {SAT_SIZED(sat_context_options),    .device = device,    .cache_dir = d->setup->cache,
                             .threads = (int)d->setup->threads, .log = keep_warning, .log_user = d};
    return sat_context_create(&o, &d->context);
}

/* Names and versions of the libraries, each once. */
static void list_libraries(doctor *d) {
    for (size_t i = 0; i < sat_variant_count(d->context); i++) {
        const sat_variant *v = sat_variant_at(d->context, i);
        size_t at = strlen(d->libraries);
        if ((v->flags & SAT_V_LIBRARY) && !strstr(d->libraries, v->revision))
            snprintf(d->libraries + at, sizeof d->libraries - at, "%s%s", at ? ", " : "", v->revision);
    }
}

static void look(doctor *d) {
    if (open_context(d, d->setup->device) != SAT_OK) {
        snprintf(d->no_device, sizeof d->no_device, "%s", sat_last_error());
        if (open_context(d, "cpu") != SAT_OK) d->context = NULL;
    }
    look_at_processors(&d->processors);
    look_at_nvidia(&d->nvidia);
    if (d->context) {
        sat_context_ignored(d->context, d->ignored, sizeof d->ignored);
        why_not_cuda(d->context, d->setup->device, d->no_cuda, sizeof d->no_cuda);
        list_libraries(d);
        d->has_cache = *sat_cache_path(d->context) != 0;
        if (d->has_cache) look_at_disk(sat_cache_path(d->context), &d->disk);
    }
    look_at_openmp(&d->openmp); // last: libraries bring theirs along
}

static const sat_device *device(const doctor *d) { return sat_context_device(d->context); }

static bool on_cuda(const doctor *d) { return device(d)->backend == SAT_CUDA; }

/* Is a library left out because its variable says so? */
static bool switched_off(const char *variable) {
    const char *value = getenv(variable);
    return value && *value && *value != '/';
}

/* ---- what may be missing: a function a subject, in the order of the output ---- */

static void check_device(doctor *d) {
    if (!*d->no_device) return;
    finding *f = add(d, "device", "broken");
    WHAT(f, "%s", d->no_device);
    REMEDY(f, "%s", d->setup->device ? "leave --device out" : "unset SPARSE_AUTOTUNE_DEVICE, or correct it");
}

static void check_gpu(doctor *d) {
    const nvidia *n = &d->nvidia;
    if (on_cuda(d) || *d->no_device) return;
    if (n->driver && strstr(d->no_cuda, "without CUDA")) {
        finding *f = add(d, "build_without_cuda", "slower");
        WHAT(f, "an NVIDIA driver is here, and this build has no CUDA code");
        REMEDY(f, n->nvcc[0] ? "build again where nvcc is %s" : "scripts/setup.sh cuda, and build again", n->nvcc);
    } else if (n->driver && strstr(d->no_cuda, "this build needs")) {
        finding *f = add(d, "old_driver", "slower");
        WHAT(f, "%s", d->no_cuda);
        REMEDY(f, "a newer driver, or a build by an older CUDA");
    } else if (n->driver && !strstr(d->no_cuda, "it would work")) {
        finding *f = add(d, "gpu_not_used", "slower");
        WHAT(f, "an NVIDIA driver is here, and no GPU is used: %s", d->no_cuda);
        REMEDY(f, "nvidia-smi shows what the driver sees; CUDA_VISIBLE_DEVICES may hide it");
    } else if (!n->driver && n->gpu) {
        finding *f = add(d, "no_driver", "slower");
        WHAT(f, "an NVIDIA GPU is on the bus, and libcuda.so.1 is not found");
        REMEDY(f, "install NVIDIA's driver; in a container, start it with the GPU (--gpus all)");
    }
}

static void check_libraries(doctor *d) {
    static const struct {
        const char *name, *variable, *package;
    } cuda[] = {{"cuBLAS ", "SPARSE_AUTOTUNE_CUBLAS", "nvidia-cublas"},
                {"cuBLASLt ", "SPARSE_AUTOTUNE_CUBLASLT", "nvidia-cublas"},
                {"cuSPARSE ", "SPARSE_AUTOTUNE_CUSPARSE", "nvidia-cusparse"},
                {"cuDNN ", "SPARSE_AUTOTUNE_CUDNN", "nvidia-cudnn-cu13"}};
    for (size_t i = 0; on_cuda(d) && i < sizeof cuda / sizeof *cuda; i++) {
        if (strstr(d->libraries, cuda[i].name) || switched_off(cuda[i].variable)) continue;
        finding *f = add(d, "library", "slower");
        WHAT(f, "%sis not found: its variants do not take part", cuda[i].name);
        REMEDY(f, "pip install %s, or set CUDA_HOME to a toolkit that has it", cuda[i].package);
    }
    if (on_cuda(d) || *d->libraries || switched_off("SPARSE_AUTOTUNE_BLAS") || switched_off("SPARSE_AUTOTUNE_MKL"))
        return;
    finding *f = add(d, "library", "slower");
    WHAT(f, "neither OpenBLAS nor MKL is found: their variants do not take part");
    REMEDY(f, "install libopenblas0, or pip install mkl");
}

/* Why there are fewer threads than processors, or more. */
static void check_threads(doctor *d) {
    const processors *p = &d->processors;
    const char *asked = getenv("OMP_NUM_THREADS"), *limit = getenv("OMP_THREAD_LIMIT");
    int threads = device(d)->threads, could = p->allowed;
    if (on_cuda(d) || d->setup->threads > 0) return;
    if (p->quota > 0 && p->quota < could) could = (int)ceil(p->quota);
    if (threads > could) {
        finding *f = add(d, "threads", "slower");
        if (could < p->allowed) WHAT(f, "%d threads share the %g processors of the cgroup's quota", threads, p->quota);
        else WHAT(f, "%d threads share %d processors", threads, could);
        REMEDY(f, "OMP_NUM_THREADS=%d%s", could, could < p->allowed ? ", or a larger quota" : "");
    } else if (threads < could && (threads == 1 || 2 * threads < could)) {
        finding *f = add(d, "threads", "slower");
        WHAT(f, "%d of %d processors %s used", threads, could, threads == 1 ? "is" : "are");
        if (asked && *asked) REMEDY(f, "OMP_NUM_THREADS is %.40s: unset it, or say %d", asked, could);
        else if (limit && *limit) REMEDY(f, "OMP_THREAD_LIMIT is %.40s: unset it", limit);
        else REMEDY(f, "more threads cannot be started: look at ulimit -u and the cgroup's pids.max");
    }
    if (p->allowed < p->online && (p->allowed == 1 || 2 * p->allowed < p->online)) {
        finding *f = add(d, "affinity", "slower");
        WHAT(f, "this process may run on %d of %d processors", p->allowed, p->online);
        REMEDY(f, "start it without taskset, or ask the batch system for more processors");
    }
    if (p->quota > 0 && 2 * p->quota < p->online) {
        finding *f = add(d, "quota", "slower");
        WHAT(f, "the cgroup has a quota of %g of %d processors", p->quota, p->online);
        REMEDY(f, "give the container more (--cpus), or its job");
    }
}

static void check_openmp(doctor *d) {
    const openmp *o = &d->openmp;
    if (o->count < 2) return;
    finding *f = add(d, "openmp", "slower");
    WHAT(f, "%d OpenMP run times in one process, each with threads of its own: %.300s and %.300s", o->count, o->path[0],
         o->path[1]);
    REMEDY(f, strstr(o->path[0], "iomp") || strstr(o->path[1], "iomp")
                  ? "MKL_THREADING_LAYER=GNU keeps MKL to GNU's"
                  : "use programs and libraries that share one; OMP_WAIT_POLICY=passive lessens the harm");
}

static void check_cache(doctor *d) {
    const disk *k = &d->disk;
    sat_effort effort = sat_context_effort(d->context);
    bool races = effort == SAT_EFFORT_QUICK || effort == SAT_EFFORT_FULL;
    if (effort == SAT_EFFORT_OFF) return;
    if (effort == SAT_EFFORT_PINNED) { // which writes nothing
        if (d->has_cache && !*k->others) return;
        finding *f = add(d, "cache_pinned", "broken");
        WHAT(f, "the effort is pinned, and no cache is read%s%s: every problem is an error",
             *k->others ? ", since " : "", k->others);
        REMEDY(f, "set SPARSE_AUTOTUNE_CACHE to the folder that has the winners");
    } else if (!d->has_cache) {
        finding *f = add(d, "cache_in_memory", "slower");
        WHAT(f, "results are kept in memory: every process races again");
        REMEDY(f, "set SPARSE_AUTOTUNE_CACHE to a folder of your own");
    } else if (*k->others) {
        finding *f = add(d, "cache_of_others", "slower");
        WHAT(f, "the cache is not used, since %s", k->others);
        REMEDY(f, "chmod go-w it, or set SPARSE_AUTOTUNE_CACHE to a folder of your own");
    } else if (k->error && races) {
        finding *f = add(d, "cache_read_only", "slower");
        WHAT(f, "the cache cannot be written (%.500s: %s): what is raced is forgotten", k->place, strerror(k->error));
        REMEDY(f, "put a folder that can be written before it: SPARSE_AUTOTUNE_CACHE=FOLDER:%s",
               sat_cache_path(d->context));
    } else if (k->seconds > 1e-3 * SLOW_MS) {
        finding *f = add(d, "cache_slow", "slower");
        WHAT(f, "a small file takes %.0f ms to be on the cache's disk (%s)", 1e3 * k->seconds, k->kind);
        REMEDY(f, "put a folder on a local disk before it: SPARSE_AUTOTUNE_CACHE=FOLDER:%s",
               sat_cache_path(d->context));
    } else if (k->network) {
        finding *f = add(d, "cache_on_network", "note");
        WHAT(f, "the cache is on a network disk (%s): each new key waits for it", k->kind);
        REMEDY(f, "a local folder may come before it: SPARSE_AUTOTUNE_CACHE=FOLDER:%s", sat_cache_path(d->context));
    } else if (k->memory) {
        finding *f = add(d, "cache_on_tmpfs", "note");
        WHAT(f, "the cache is on %s: it is lost when the machine restarts", k->kind);
        REMEDY(f, "set SPARSE_AUTOTUNE_CACHE to a folder on a disk");
    }
}

/* Does a name begin with the library's prefix, and is no variable of it, of its packages or of their builds? */
static bool unknown_variable(const char *entry) {
    static const char *const known[] = {"",          "_CACHE",    "_DEVICE", "_FORCE", "_LOG",  "_BLAS",       "_MKL",
                                        "_CUBLAS",   "_CUBLASLT", "_CUDNN",  "_DIR",   "_LINK", "_CHECK_ONLY", "_CMAKE",
                                        "_CUSPARSE", "_NVTX",     "_LIBRARY"};
    size_t prefix = strlen("SPARSE_AUTOTUNE"), length = strcspn(entry, "=");
    if (strncasecmp(entry, "SPARSE_AUTOTUNE", prefix) != 0) return false;
    if (strncmp(entry, "SPARSE_AUTOTUNE", prefix) == 0)
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            if (strlen(known[i]) == length - prefix && strncmp(known[i], entry + prefix, length - prefix) == 0)
                return false;
    return true;
}

static void check_environment(doctor *d) {
    static const char *const levels[] = {"error", "warn", "info", "debug"};
    const char *log = getenv("SPARSE_AUTOTUNE_LOG"), *force = getenv("SPARSE_AUTOTUNE_FORCE");
    bool level = !log || !*log;
    if (*d->ignored) {
        finding *f = add(d, "ignored", "slower");
        WHAT(f, "%s", d->ignored);
        REMEDY(f, "correct it, or unset it");
    }
    for (int i = 0; !level && i < 4; i++) level = strcasecmp(log, levels[i]) == 0;
    if (!level) {
        finding *f = add(d, "ignored", "note");
        WHAT(f, "SPARSE_AUTOTUNE_LOG is '%.60s', which counts as warn", log);
        REMEDY(f, "say error, warn, info or debug");
    }
    for (char **e = environ; *e; e++) {
        if (!unknown_variable(*e)) continue;
        finding *f = add(d, "ignored", "note");
        WHAT(f, "%.*s is no variable of this library: it is ignored", (int)strcspn(*e, "="), *e);
        REMEDY(f, "unset it, or correct its name; the README lists them");
    }
    if (force && *force && !strstr(d->ignored, force)) {
        finding *f = add(d, "forced", "note");
        WHAT(f, "SPARSE_AUTOTUNE_FORCE is '%.120s': that variant is used wherever it fits", force);
        REMEDY(f, "unset it for the fastest one");
    }
    if (sat_context_effort(d->context) == SAT_EFFORT_OFF) {
        finding *f = add(d, "effort", "slower");
        WHAT(f, "the effort is off: nothing is raced, and the cache is not read");
        REMEDY(f, "SPARSE_AUTOTUNE=cached reads the cache and races nothing");
    }
}

/* What the library said itself, and what no check above has said already. */
static void check_warnings(doctor *d) {
    for (int i = 0; i < d->warning_count; i++) {
        const char *text = d->warnings[i];
        bool said =
            strstr(d->ignored, text) || strstr(text, "not used: ") || strstr(text, "results are kept in memory");
        for (int j = 0; j < i; j++) said = said || strcmp(d->warnings[j], text) == 0;
        if (said) continue;
        finding *f = add(d, "warning", "slower");
        WHAT(f, "%s", text);
        REMEDY(f, "%s",
               strstr(text, "is not loaded") ? "let nobody else write it: chmod go-w, chown"
                                             : "see docs/guide/troubleshooting.md");
    }
}

static void check_all(doctor *d) {
    static void (*const checks[])(doctor * d) = {check_device, check_gpu,   check_libraries,   check_threads,
                                                 check_openmp, check_cache, check_environment, check_warnings};
    if (!d->context) {
        check_device(d);
        return;
    }
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) checks[i](d);
}

static bool broken(const doctor *d) {
    for (int i = 0; i < d->count; i++)
        if (strcmp(d->findings[i].level, "broken") == 0) return true;
    return false;
}

/* ---- printing ---- */

static const char *cache_text(const doctor *d, char *out, size_t capacity) {
    if (!d->has_cache) snprintf(out, capacity, "memory only");
    else
        snprintf(out, capacity, "%s (%s; %s)", sat_cache_path(d->context), d->disk.kind,
                 *d->disk.others  ? "not used"
                 : d->disk.error  ? "cannot be written"
                 : d->disk.exists ? "can be written"
                                  : "not made yet");
    return out;
}

static const char *driver_text(const nvidia *n, char *out, size_t capacity) {
    if (!n->driver) snprintf(out, capacity, "%s", n->version[0] ? n->version : "none");
    else
        snprintf(out, capacity, "%s%sCUDA %d.%d", n->version, n->version[0] ? ", " : "", n->cuda / 1000,
                 n->cuda % 1000 / 10);
    return out;
}

static void each_setting(void (*each)(void *user, const char *name, const char *value), void *user) {
    static const char *const others[] = {"OMP_",      "GOMP_", "KMP_",           "MKL_",
                                         "OPENBLAS_", "CUDA_", "XDG_CACHE_HOME", "SPARSE_AUTOTUNE"};
    for (char **e = environ; *e; e++)
        for (size_t i = 0; i < sizeof others / sizeof *others; i++)
            if (strncmp(*e, others[i], strlen(others[i])) == 0) {
                char name[128];
                size_t length = strcspn(*e, "=");
                snprintf(name, sizeof name, "%.*s", (int)length, *e);
                each(user, name, (*e)[length] ? *e + length + 1 : "");
                break;
            }
}

static void print_setting(void *user, const char *name, const char *value) {
    (void)user;
    printf("  environment %s=%s\n", name, value);
}

static void print_found(const doctor *d) {
    char text[PATH_MAX + 128];
    printf("sparse_autotune %s\n", sat_version());
    if (!d->context) return;
    const sat_device *v = device(d);
    printf("  device      %s (%s:%d)\n", v->name, backend_text(v->backend), v->index);
    if (on_cuda(d))
        printf("  processors  %d, capability %d.%d\n", v->multiprocessors, v->capability / 10, v->capability % 10);
    else {
        isa_text(v->isa, text, sizeof text);
        printf("  isa         %s\n", *text ? text : "none beyond the compiler's default");
        printf("  threads     %d; %d of %d processors allowed", v->threads, d->processors.allowed,
               d->processors.online);
        if (d->processors.quota > 0) printf(", a quota of %g", d->processors.quota);
        putchar('\n');
    }
    for (int i = 0; i < d->openmp.count; i++) printf("  openmp      %s\n", d->openmp.path[i]);
    printf("  libraries   %s\n", *d->libraries ? d->libraries : "none found");
    printf("  driver      %s\n", driver_text(&d->nvidia, text, sizeof text));
    printf("  nvcc        %s\n", d->nvidia.nvcc[0] ? d->nvidia.nvcc : "none");
    if (*d->no_cuda) printf("  cuda        not used: %s\n", d->no_cuda);
    printf("  cache       %s\n", cache_text(d, text, sizeof text));
    printf("  effort      %s\n", effort_names[sat_context_effort(d->context)]);
    each_setting(print_setting, NULL);
}

static void print_findings(const doctor *d) {
    if (d->count == 0) printf("nothing is missing\n");
    for (int i = 0; i < d->count; i++)
        printf("%-8s  %s. Remedy: %s\n", d->findings[i].level, d->findings[i].what, d->findings[i].remedy);
}

static void json_setting(void *user, const char *name, const char *value) { json_text(user, name, value); }

static void json_found(json *j, const doctor *d) {
    char text[PATH_MAX + 128];
    const sat_device *v = device(d);
    json_object(j, "device");
    json_text(j, "backend", backend_text(v->backend)), json_text(j, "name", v->name), json_int(j, "index", v->index);
    json_text(j, "isa", isa_text(v->isa, text, sizeof text));
    json_int(j, "threads", v->threads), json_int(j, "multiprocessors", v->multiprocessors);
    json_end(j);
    json_object(j, "processors");
    json_int(j, "online", d->processors.online), json_int(j, "allowed", d->processors.allowed);
    json_real(j, "quota", d->processors.quota > 0 ? d->processors.quota : NAN);
    json_end(j);
    json_array(j, "openmp");
    for (int i = 0; i < d->openmp.count; i++) json_text(j, NULL, d->openmp.path[i]);
    json_end(j);
    json_array(j, "libraries");
    for (const char *p = d->libraries; *p;) {
        const char *end = strstr(p, ", ");
        snprintf(text, sizeof text, "%.*s", (int)(end ? (size_t)(end - p) : strlen(p)), p);
        json_text(j, NULL, text);
        p = end ? end + 2 : p + strlen(p);
    }
    json_end(j);
    json_text(j, "driver", d->nvidia.driver ? driver_text(&d->nvidia, text, sizeof text) : NULL);
    json_text(j, "nvcc", d->nvidia.nvcc[0] ? d->nvidia.nvcc : NULL);
    json_object(j, "cuda");
    json_bool(j, "used", on_cuda(d)), json_text(j, "reason", *d->no_cuda ? d->no_cuda : NULL);
    json_end(j);
    json_object(j, "cache");
    json_text(j, "path", sat_cache_path(d->context));
    json_text(j, "disk", d->has_cache ? d->disk.kind : NULL);
    json_bool(j, "writable", d->has_cache && !d->disk.error && !*d->disk.others);
    json_real(j, "write_seconds", d->disk.seconds > 0 ? d->disk.seconds : NAN);
    json_end(j);
    json_text(j, "effort", effort_names[sat_context_effort(d->context)]);
    json_object(j, "environment");
    each_setting(json_setting, j);
    json_end(j);
}

static void print_json(const doctor *d) {
    json j = {.file = stdout};
    json_object(&j, NULL);
    json_int(&j, "version", 1), json_text(&j, "sparse_autotune", sat_version());
    if (d->context) json_found(&j, d);
    json_array(&j, "findings");
    for (int i = 0; i < d->count; i++) {
        const finding *f = &d->findings[i];
        json_object(&j, NULL);
        json_text(&j, "id", f->id), json_text(&j, "level", f->level);
        json_text(&j, "what", f->what), json_text(&j, "remedy", f->remedy);
        json_end(&j);
    }
    json_end(&j);
    json_end(&j);
}

int doctor_main(int argc, char **argv) {
    setup s = {.command = "doctor"};
    bool as_json = false;
    const arg list[] = {SETUP_ARGS(s), ARG_FLAG_("json", &as_json, "prints one JSON object")};
    args a = {.command = "doctor",
              .usage = "[options]",
              .about =
                  "Shows what is found on this machine and what is missing for more speed, with a remedy for each.\n"
                  "It writes a small file into the cache's folder and removes it. The exit status is 1 only if\n"
                  "something is broken.",
              .list = list,
              .count = sizeof list / sizeof *list};
    args_outcome parsed = args_parse(&a, argc, argv);
    if (parsed != ARGS_OK) return (int)parsed;
    static doctor d; // large
    d.setup = &s;
    look(&d);
    check_all(&d);
    if (as_json) print_json(&d);
    else print_found(&d), print_findings(&d);
    sat_context_free(d.context);
    return broken(&d) ? EXIT_FAILED : EXIT_DONE;
}
