/* Memory as this process may have it: the machine's, less what control groups (version 1 and 2) and resource limits
 * keep from it. Beyond a resource limit an allocation fails; beyond a group's, the kernel ends the process. */
#define _GNU_SOURCE
#include "backend/limits.h"

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "variant.h"

static void at_most(size_t *x, size_t most) {
    if (most < *x) *x = most;
}

static size_t minus(size_t x, size_t y) { return x > y ? x - y : 0; }

static FILE *open_below(const char *root, const char *folder, const char *name) {
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s%s/%s", root, folder, name);
    return length > 0 && (size_t)length < sizeof path ? fopen(path, "re") : NULL;
}

/* ---- control groups ---- */

/* The file's only number; SIZE_MAX where there is no file, or the word "max" in it. */
static size_t read_number(const char *root, const char *folder, const char *name) {
    unsigned long long x;
    FILE *f = open_below(root, folder, name);
    bool found = f && fscanf(f, "%llu", &x) == 1;
    if (f) fclose(f);
    return found && x < SIZE_MAX ? (size_t)x : SIZE_MAX;
}

/* A line "name number" of a file; 0 where it has none. */
static size_t read_line(const char *root, const char *folder, const char *file, const char *name) {
    char word[64];
    unsigned long long x, found = 0;
    FILE *f = open_below(root, folder, file);
    while (f && fscanf(f, "%63s %llu", word, &x) == 2)
        if (strcmp(word, name) == 0) found = x;
    if (f) fclose(f);
    return (size_t)found;
}

/* How a version of control groups calls things. */
typedef struct names {
    const char *limits[2], *used, *cache; /* cache: in memory.stat, what the kernel takes back by itself */
} names;

static const names version_1 = {{"memory.limit_in_bytes"}, "memory.usage_in_bytes", "total_inactive_file"};
static const names version_2 = {{"memory.max", "memory.high"}, "memory.current", "inactive_file"};

static void apply_group(sat_memory *m, const char *root, const char *folder, const names *n) {
    size_t limit = read_number(root, folder, n->limits[0]);
    if (n->limits[1]) at_most(&limit, read_number(root, folder, n->limits[1]));
    if (limit > SIZE_MAX / 4) return; /* version 1 writes a huge number for none */
    size_t used = read_number(root, folder, n->used);
    if (used != SIZE_MAX) used = minus(used, read_line(root, folder, "memory.stat", n->cache));
    at_most(&m->left, minus(limit, used));
    at_most(&m->total, limit);
}

/* The path of this process below a hierarchy's root: of the unified one, or of that of version 1 with memory. */
static bool find_path(const char *root, bool unified, char *path, size_t capacity) {
    char line[PATH_MAX + 128];
    bool found = false;
    FILE *f = open_below(root, "/proc/self", "cgroup");
    while (f && !found && fgets(line, sizeof line, f)) { /* 4:memory,hugetlb:/path */
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':'), *at = controllers ? strchr(++controllers, ':') : NULL;
        if (!at) continue;
        *at++ = 0;
        bool named = false;
        for (char *rest = NULL, *word = strtok_r(controllers, ",", &rest); word; word = strtok_r(NULL, ",", &rest))
            named = named || strcmp(word, "memory") == 0;
        found = (unified ? strncmp(line, "0:", 2) == 0 && !named : named) && strlen(at) < capacity;
        if (found) strcpy(path, at);
    }
    if (f) fclose(f);
    return found;
}

/* The folders of this process's groups, each of which limits it. */
enum { MOST_GROUPS = 64 };
typedef struct groups {
    int count;
    struct {
        char *folder;
        bool unified;
    } list[MOST_GROUPS];
} groups;

static void add_group(groups *g, const char *folder, bool unified) {
    char *copy = g->count < MOST_GROUPS ? strdup(folder) : NULL;
    if (!copy) return;
    g->list[g->count].folder = copy, g->list[g->count++].unified = unified;
}

/* The process's own group in a hierarchy, and all above it. `top`: where that is mounted; `mounted`: what part of it,
 * which in a container is not all. */
static void add_groups(groups *g, const char *root, const char *top, const char *mounted, bool unified) {
    char path[PATH_MAX], folder[PATH_MAX];
    if (!find_path(root, unified, path, sizeof path)) return;
    size_t common = strcmp(mounted, "/") == 0 ? 0 : strlen(mounted);
    bool below = strncmp(path, mounted, common) == 0 && (path[common] == '/' || !path[common]);
    const char *rest = below && !strstr(path, "..") ? path + common : "";
    if ((size_t)snprintf(folder, sizeof folder, "%s%s", top, rest) >= sizeof folder) return;
    for (size_t length = strlen(folder); length > 0 && folder[length - 1] == '/';) folder[--length] = 0;
    for (;;) {
        add_group(g, folder, unified);
        char *slash = strrchr(folder, '/');
        if (strlen(folder) <= strlen(top) || !slash) return;
        *slash = 0;
    }
}

static void find_groups(const char *root, groups *g) {
    char line[2 * PATH_MAX], mounted[PATH_MAX], top[PATH_MAX], kind[64], options[512];
    FILE *f = open_below(root, "/proc/self", "mountinfo");
    while (f && fgets(line, sizeof line, f)) { /* 36 35 98:0 /part /where options more - kind source options */
        const char *end = strstr(line, " - ");
        options[0] = 0;
        if (!end || sscanf(end, " - %63s %*s %511s", kind, options) < 1 || strncmp(kind, "cgroup", 6) != 0) continue;
        if (sscanf(line, "%*s %*s %*s %4095s %4095s", mounted, top) != 2) continue;
        bool unified = strcmp(kind, "cgroup2") == 0;
        if (unified || strstr(options, "memory")) add_groups(g, root, top, mounted, unified);
    }
    if (f) fclose(f);
}

/* Found once: nobody moves a process that computes. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static groups own;
static void find_own(void) { find_groups("", &own); }

static void apply_groups(sat_memory *m, const char *root) {
    groups made_up = {0}, *g = root[0] ? &made_up : &own;
    if (root[0]) find_groups(root, &made_up);
    else (void)pthread_once(&once, find_own);
    for (int i = 0; i < g->count; i++)
        apply_group(m, root, g->list[i].folder, g->list[i].unified ? &version_2 : &version_1);
    for (int i = 0; i < made_up.count; i++) free(made_up.list[i].folder);
}

/* ---- resource limits ---- */

/* In /proc/self/statm, in pages: the first number is the address space, the sixth what it holds of data. */
static size_t used_pages(const char *root, int place) {
    unsigned long long x[6] = {0};
    FILE *f = open_below(root, "/proc/self", "statm");
    int got = f ? fscanf(f, "%llu %llu %llu %llu %llu %llu", &x[0], &x[1], &x[2], &x[3], &x[4], &x[5]) : 0;
    if (f) fclose(f);
    return got == 6 ? (size_t)x[place] : 0;
}

/* What a limit leaves; SIZE_MAX where there is none. */
static size_t left_of(int resource, const char *root, int place, size_t *limit) {
    struct rlimit r;
    *limit = SIZE_MAX;
    if (getrlimit(resource, &r) != 0 || r.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
    *limit = (size_t)r.rlim_cur;
    return minus(*limit, used_pages(root, place) * (size_t)sysconf(_SC_PAGESIZE));
}

size_t sat_address_space_left(void) {
    size_t limit;
    return left_of(RLIMIT_AS, "", 0, &limit);
}

/* ---- all of it ---- */

sat_memory sat_memory_now(const char *root) {
    size_t all = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE), kib = 0, limit;
    FILE *f = open_below(root, "/proc", "meminfo");
    char line[128];
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %zu kB", &kib) == 1) break;
    if (f) fclose(f);
    sat_memory m = {.total = all, .left = kib ? kib * 1024 : all / 2};
    apply_groups(&m, root);
    static const struct { int resource, place; } limits[] = {{RLIMIT_AS, 0}, {RLIMIT_DATA, 5}};
    for (int i = 0; i < 2; i++) {
        at_most(&m.left, left_of(limits[i].resource, root, limits[i].place, &limit));
        at_most(&m.total, limit);
    }
    return m;
}
