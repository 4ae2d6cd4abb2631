// The CPU benchmark: prints one JSON object a line, which bench.py turns into the table.
// usage: bench_cpu [--section matmul|skinny|costs|choice]... [--threads N] [--seconds S] [--repeats N]
//                  [--exhaustive S] [--effort quick|full] [--rival libblas.so]

#define _XOPEN_SOURCE 700 // nftw
#include "bench.h"

#include <ftw.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void bench_must(sat_status status, const char *what) {
    if (status == SAT_OK) return;
    fprintf(stderr, "bench: %s: %s: %s\n", what, sat_status_name(status), sat_last_error());
    exit(1);
}

const char *bench_cache_dir(const bench_options *o, const char *name, char *buffer, size_t capacity) {
    snprintf(buffer, capacity, "%s/%s", o->cache_root, name);
    return buffer;
}

sat_context *bench_context(const bench_options *o, const char *cache, int threads) {
    sat_context_options options = {SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = cache,
                                   .effort = o->effort, .threads = threads};
    sat_context *context = NULL;
    bench_must(sat_context_create(&options, &context), "context");
    return context;
}

static void usage(void) {
    fprintf(stderr, "usage: bench_cpu [--section matmul|skinny|costs|choice]... [--threads N] [--seconds S]\n"
                    "                 [--repeats N] [--exhaustive S] [--effort quick|full] [--rival libblas.so]\n");
    exit(2);
}

enum { MATMUL = 1, SKINNY = 2, COSTS = 4, CHOICE = 8 };

static int section(const char *name) {
    static const char *const names[] = {"matmul", "skinny", "costs", "choice"};
    for (int i = 0; i < 4; i++)
        if (strcmp(name, names[i]) == 0) return 1 << i;
    usage();
    return 0;
}

static void print_device(const bench_options *o, const char *rival) {
    sat_context *context = bench_context(o, "", o->threads);
    const sat_device *d = sat_context_device(context);
    printf("{\"section\":\"device\",\"name\":\"%s\",\"identity\":\"%s\",\"threads\":%d,\"rival\":\"%s\",\"library\":\"%"
           "s\"}\n",
           d->name, d->identity, o->threads, rival, sat_version());
    sat_context_free(context);
}

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *level) {
    (void)status, (void)type, (void)level;
    return remove(path);
}

int main(int argc, char **argv) {
    bench_options o = {.row_seconds = 2,
                       .threads = omp_get_max_threads(),
                       .repeats = 3,
                       .exhaustive_seconds = 5,
                       .effort = SAT_EFFORT_QUICK};
    int sections = 0;
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!value) usage();
        if (strcmp(argv[i], "--section") == 0) sections |= section(value);
        else if (strcmp(argv[i], "--threads") == 0) o.threads = atoi(value);
        else if (strcmp(argv[i], "--seconds") == 0) o.row_seconds = atof(value);
        else if (strcmp(argv[i], "--repeats") == 0) o.repeats = atoi(value);
        else if (strcmp(argv[i], "--exhaustive") == 0) o.exhaustive_seconds = atof(value);
        else if (strcmp(argv[i], "--rival") == 0) o.rival = value;
        else if (strcmp(argv[i], "--effort") == 0)
            o.effort = strcmp(value, "full") == 0 ? SAT_EFFORT_FULL : SAT_EFFORT_QUICK;
        else usage();
    }
    if (o.threads < 1 || o.repeats < 1) usage();
    if (sections == 0) sections = MATMUL | SKINNY | COSTS | CHOICE;

    char root[256];
    const char *temporary = getenv("TMPDIR");
    snprintf(root, sizeof root, "%s/sparse_autotune_bench_XXXXXX", temporary ? temporary : "/tmp");
    if (!mkdtemp(root)) {
        perror("bench: mkdtemp");
        return 1;
    }
    o.cache_root = root;
    // Costs first: the process's peak memory is read there, before anything large was held.
    bench_rival rival;
    bool dense = bench_rival_open(&rival, o.rival);
    print_device(&o, dense ? rival.name : "");
    if (sections & COSTS) bench_costs(&o);
    if (sections & MATMUL) {
        if (dense) bench_matmul(&o, &rival);
        else printf("{\"section\":\"skipped\",\"what\":\"matmul\",\"why\":\"no OpenBLAS or MKL was found\"}\n");
    }
    if (sections & SKINNY) bench_skinny(&o);
    if (sections & CHOICE) bench_choice(&o);
    return nftw(root, remove_entry, 16, FTW_DEPTH | FTW_PHYS) == 0 ? 0 : 1;
}
